# SPDX-License-Identifier: BSD-2-Clause
"""All-reduces over NCCL between two GPUs in buffers that the program registered (ncclCommRegister).

A process for each GPU.  The buffers are of cudaMalloc, of libmam's default pool, and of a default pool in mapped memory.
NCCL may open a registered buffer in the other process: by CUDA's IPC if it comes from cudaMalloc, which NCCL has to be
allowed (NCCL_LEGACY_CUDA_REGISTER), by a file descriptor if it is mapped.  It uses that for sends and receives, for
example.  Several blocks that lie side by side in one pool are registered, used and freed, round by round.  Prints, of
each kind, whether NCCL took the registration, what it used it for, the median time of an all-reduce of 64 MiB with and
without registration, and whether all data is right.  Exits with 0 if all is well, 1 if not, 77 where there are not two
GPUs, no PyTorch (NCCL comes with it) or no package mam.
"""
import argparse
import collections
import ctypes
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

KINDS = {
    # name: (variables, whether blocks are of libmam)
    "cudaMalloc": ({}, False),
    "libmam": ({}, True),
    "libmam, mapped": ({"MAM_SOURCE": "vmm"}, True),
}
BYTES = 64 << 20
BLOCKS = 4
ROUNDS = 5
TIMES = 20
NCCL_FLOAT, NCCL_SUM = 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def must(result, what):
    if result != 0:
        sys.exit(f"{what}: {result}")


def nccl_open():
    """NCCL's library, as PyTorch has loaded it."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if "libnccl.so" in line)
    nccl = ctypes.CDLL(path)
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    nccl.ncclCommRegister.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    nccl.ncclCommDeregister.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                   ctypes.c_void_p, ctypes.c_void_p]
    for name in ("ncclSend", "ncclRecv"):
        getattr(nccl, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
                                        ctypes.c_void_p]
    nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]
    return nccl


class Memory:
    """Blocks of cudaMalloc or of libmam, as tensors."""

    def __init__(self, torch, of_libmam):
        self.torch = torch
        if of_libmam:
            from mam._library import library as library_open

            library = library_open()
            self.allocate, self.release = library.MAM_CudaMalloc, library.MAM_CudaFree
        else:
            with open("/proc/self/maps", encoding="utf-8") as maps:
                runtime = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))
            self.allocate, self.release = runtime.cudaMalloc, runtime.cudaFree
        self.allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.release.argtypes = [ctypes.c_void_p]

    def block_new(self):
        address = ctypes.c_void_p()
        must(self.allocate(ctypes.byref(address), BYTES), "an allocation")
        return address.value

    def tensor(self, address):
        class Buffer:
            __cuda_array_interface__ = {"shape": (BYTES // 4,), "typestr": "<f4", "data": (address, False), "version": 2}

        return self.torch.as_tensor(Buffer(), device="cuda")


def reduce_all(torch, nccl, comm, memory, addresses, seed):
    """Times of all-reduces in place, in ms; whether the sums are right."""
    stream = torch.cuda.current_stream()
    right, times = True, []
    for index, address in enumerate(addresses):
        tensor = memory.tensor(address)
        tensor.fill_(seed + index)
        for turn in range(TIMES // BLOCKS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            must(nccl.ncclAllReduce(address, address, BYTES // 4, NCCL_FLOAT, NCCL_SUM, comm, stream.cuda_stream),
                 "ncclAllReduce")
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        want = float((seed + index) << (TIMES // BLOCKS))  # each all-reduce of two ranks doubles
        right = right and bool((tensor == want).all().item())
    return times, right


def exchange(torch, nccl, comm, memory, rank, addresses, seed):
    """Each rank sends its first half of the blocks and receives into the others.  Whether the data is right."""
    stream, half = torch.cuda.current_stream(), len(addresses) // 2
    for index, address in enumerate(addresses):
        memory.tensor(address).fill_(seed + 100 * rank + index)
    torch.cuda.synchronize()
    must(nccl.ncclGroupStart(), "ncclGroupStart")
    for index in range(half):
        must(nccl.ncclSend(addresses[index], BYTES // 4, NCCL_FLOAT, 1 - rank, comm, stream.cuda_stream), "ncclSend")
        must(nccl.ncclRecv(addresses[half + index], BYTES // 4, NCCL_FLOAT, 1 - rank, comm, stream.cuda_stream),
             "ncclRecv")
    must(nccl.ncclGroupEnd(), "ncclGroupEnd")
    torch.cuda.synchronize()
    return all(bool((memory.tensor(addresses[half + index]) == seed + 100 * (1 - rank) + index).all().item())
               for index in range(half))


def rank_run(rank, kind, file):
    import torch

    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")
    nccl, memory = nccl_open(), Memory(torch, KINDS[kind][1])
    unique = UniqueId()
    if rank == 0:
        must(nccl.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
        with open(file + ".new", "wb") as new:
            new.write(bytes(unique))
        os.rename(file + ".new", file)
    else:
        while not os.path.exists(file):
            time.sleep(0.01)
        with open(file, "rb") as old:
            unique = UniqueId.from_buffer_copy(old.read())
    comm = ctypes.c_void_p()
    must(nccl.ncclCommInitRank(ctypes.byref(comm), 2, unique, rank), "ncclCommInitRank")
    plain, registered, right, taken = [], [], True, 0
    for turn in range(ROUNDS):
        addresses = [memory.block_new() for _ in range(BLOCKS)]
        times, good = reduce_all(torch, nccl, comm, memory, addresses, 1 + turn)
        plain, right = plain + times, right and good
        handles = [ctypes.c_void_p() for _ in addresses]
        for address, handle in zip(addresses, handles):
            must(nccl.ncclCommRegister(comm, address, BYTES, ctypes.byref(handle)), "ncclCommRegister")
            taken += handle.value is not None
        times, good = reduce_all(torch, nccl, comm, memory, addresses, 11 + turn)
        registered, right = registered + times, right and good
        right = right and exchange(torch, nccl, comm, memory, rank, addresses, 21 + turn)
        for handle in handles:
            must(nccl.ncclCommDeregister(comm, handle), "ncclCommDeregister")
        for address in addresses:
            must(memory.release(address), "a free")
    must(nccl.ncclCommDestroy(comm), "ncclCommDestroy")
    print(f"{kind}, GPU {rank}: {taken} of {ROUNDS * BLOCKS} registered; all-reduce of {BYTES >> 20} MiB in place "
          f"{statistics.median(plain):.3f} ms, registered {statistics.median(registered):.3f}; data "
          f"{'right' if right else 'WRONG'}", flush=True)
    return 0 if right else 1


def uses_of(log):
    """What NCCL says of registered buffers: each kind of line, without its numbers, and how often."""
    lines = collections.Counter()
    with open(log, encoding="utf-8", errors="replace") as text:
        for line in text:
            if "regist" in line.lower() and "NCCL INFO" in line:
                words = line.split("NCCL INFO", 1)[1].strip()
                lines[re.sub(r"0x[0-9a-f]+|\d+", "#", words)[:110]] += 1
    return lines


def kind_run(kind, folder):
    environment = dict(os.environ, NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="REG", NCCL_LEGACY_CUDA_REGISTER="1",
                       **KINDS[kind][0])
    file = os.path.join(folder, kind.replace(", ", "-"))
    ranks = []
    for rank in range(2):
        environment["NCCL_DEBUG_FILE"] = f"{file}.log{rank}"
        ranks.append(subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), "--rank", str(rank), "--kind", kind,
                                       "--file", file], env=environment))
    statuses = [rank.wait() for rank in ranks]
    if os.path.exists(f"{file}.log0"):
        for line, count in sorted(uses_of(f"{file}.log0").items()):
            print(f"  NCCL, {count} times: {line}")
    return statuses == [0, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--rank", "--kind", "--file"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return rank_run(int(arguments.rank), arguments.kind, arguments.file)
    try:
        import mam  # noqa: F401
        import torch
    except ImportError as error:
        print(f"SKIP: {error}")
        return 77
    if torch.cuda.device_count() < 2:
        print("SKIP: there are not two GPUs")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        results = [kind_run(kind, folder) for kind in KINDS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
