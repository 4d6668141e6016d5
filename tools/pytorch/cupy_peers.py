# SPDX-License-Identifier: BSD-2-Clause
"""CuPy on two GPUs: copies between arrays of the two, and kernels of each that read arrays of the other.

It runs with CuPy's own pool, with libmam's by mam.cupy_allocator, and with the latter in mapped memory, a process for
each, with arrays from 1 KB to 256 MB that are made and dropped in between.  Prints the median times and whether all data
is right.  Under mam-run, start it with --only cupy.
Exits with 0 if all is well, 1 if not, 77 where there are not two GPUs, no CuPy or no package mam.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

KINDS = {
    # name: (variables, whether arrays are of libmam)
    "cupy": ({}, False),
    "libmam": ({}, True),
    "mapped": ({"MAM_SOURCE": "vmm"}, True),
}
SIZES = [1 << 10, 300 << 10, 5 << 20, 256 << 20]
ROUNDS = 12


def timed(cupy, work):
    start = time.perf_counter()
    result = work()
    for device in range(2):
        cupy.cuda.Device(device).synchronize()
    return (time.perf_counter() - start) * 1e6, result


def array_new(cupy, device, size, seed):
    with cupy.cuda.Device(device):
        return cupy.arange(seed, seed + size // 8, dtype=cupy.int64)


def total(cupy, device, array):
    with cupy.cuda.Device(device):
        return int(cupy.sum(array).get())


def sum_of(first, count):
    return count * first + count * (count - 1) // 2


def size_run(cupy, size, times):
    """One round of a size, in both directions.  Whether the data is right."""
    right, count = True, size // 8
    for device in range(2):
        peer = 1 - device
        here = array_new(cupy, device, size, 7 + device)
        there = array_new(cupy, peer, size, 100)
        with cupy.cuda.Device(peer):
            us, copy = timed(cupy, lambda: cupy.asarray(here))  # a copy from the other device
            times["copy"].append(us)
            us, mixed = timed(cupy, lambda: there + here)  # a kernel that reads the other device's array
            times["kernel"].append(us)
        del here
        right = right and total(cupy, peer, copy) == sum_of(7 + device, count)
        right = right and total(cupy, peer, mixed) == sum_of(7 + device, count) + sum_of(100, count)
    return right


def kind_run(kind):
    import cupy

    if KINDS[kind][1]:
        import mam

        cupy.cuda.set_allocator(mam.cupy_allocator)
    good = True
    for size in SIZES:
        times = {"copy": [], "kernel": []}
        right = all([size_run(cupy, size, times) for _ in range(ROUNDS)])
        good = good and right
        print(f"{kind}: {size} bytes: copy {statistics.median(times['copy']):.1f} us, kernel "
              f"{statistics.median(times['kernel']):.1f} us, data {'right' if right else 'WRONG'}", flush=True)
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(KINDS))
    parser.add_argument("--kind", choices=list(KINDS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kind is not None:
        return kind_run(arguments.kind)
    try:
        import cupy
        import mam  # noqa: F401
    except ImportError as error:
        print(f"SKIP: {error}")
        return 77
    if cupy.cuda.runtime.getDeviceCount() < 2:
        print("SKIP: there are not two GPUs")
        return 77
    statuses = [
        subprocess.run([sys.executable, "-B", os.path.abspath(__file__), "--kind", kind], check=False,
                       env=dict(os.environ, **KINDS[kind][0])).returncode
        for kind in ([arguments.only] if arguments.only else KINDS)
    ]
    return 0 if not any(statuses) else 1


if __name__ == "__main__":
    sys.exit(main())
