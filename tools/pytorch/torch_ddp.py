# SPDX-License-Identifier: BSD-2-Clause
"""Trains one model on two GPUs with DistributedDataParallel over NCCL, with PyTorch's own allocator and with libmam.

Each allocator has a run of its own: a process for each GPU, the same seeds, the same batches.  Prints, of each run, the
median time of a step and of an all-reduce of 256 MiB, and the losses; says whether the losses are the same.  Under
mam-run, start it with --only plain and PYTORCH_NO_CUDA_MEMORY_CACHING=1, and compare with its output without.
Exits with 0 if all is well, 1 if not, 77 where there are not two GPUs or no PyTorch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

STEPS = 40
WARM_UP = 10
WIDTH = 4096
BATCH = 256
REDUCE_ELEMENTS = 64 << 20
REDUCES = 20


def model_new(torch):
    layers = []
    for _ in range(8):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.LayerNorm(WIDTH)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))


def timed(torch, work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3, result


def train(torch, rank):
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(model_new(torch).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(rank)
    times, losses = [], []

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    for index in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=generator)
        y = x.mean(dim=1, keepdim=True).cuda()
        ms, loss = timed(torch, lambda x=x.cuda(), y=y: step(x, y))
        losses.append(loss)
        if index >= WARM_UP:
            times.append(ms)
    return times, losses


def reduce(torch):
    times = []
    for index in range(REDUCES):
        tensor = torch.ones(REDUCE_ELEMENTS, device="cuda")  # a new block each time
        ms, _ = timed(torch, lambda tensor=tensor: torch.distributed.all_reduce(tensor))
        assert tensor[0].item() == 2 and tensor[-1].item() == 2, "the sum is wrong"
        if index >= REDUCES // 4:
            times.append(ms)
    return times


def run_rank(allocator, rank, port):
    import torch

    torch.use_deterministic_algorithms(True)
    if allocator == "mam":
        import mam_torch

        mam_torch.enable()  # before PyTorch makes its own allocator, which it does when a device is set
    torch.cuda.set_device(rank)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
    times, losses = train(torch, rank)
    reduces = reduce(torch)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    print(json.dumps({"step_ms": statistics.median(times), "reduce_ms": statistics.median(reduces), "losses": losses}))


def run(allocator, port):
    """What the two ranks found, None if one of them failed."""
    command = [sys.executable, "-B", os.path.abspath(__file__), "--allocator", allocator, "--port", str(port), "--rank"]
    ranks = [subprocess.Popen(command + [str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode != 0 for rank in ranks):
        return None
    return [json.loads(output.strip().splitlines()[-1]) for output in outputs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["plain", "mam"])
    parser.add_argument("--allocator", choices=["plain", "mam"], help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=29571)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        run_rank(arguments.allocator, arguments.rank, arguments.port)
        return 0
    try:
        import torch
    except ImportError:
        print("SKIP: there is no PyTorch")
        return 77
    if torch.cuda.device_count() < 2:
        print("SKIP: there are not two GPUs")
        return 77
    found = {}
    for index, allocator in enumerate([arguments.only] if arguments.only else ["plain", "mam"]):
        found[allocator] = run(allocator, arguments.port + index)
        if found[allocator] is None:
            print(f"FAILED: {allocator}: a rank failed")
            return 1
        first = found[allocator][0]
        print(f"{allocator}: step {first['step_ms']:.2f} ms, all-reduce of {REDUCE_ELEMENTS * 4 >> 20} MiB "
              f"{first['reduce_ms']:.3f} ms, losses {first['losses'][0]:.9f} ... {first['losses'][-1]:.9f}")
    if len(found) == 2:
        same = all(a["losses"] == b["losses"] for a, b in zip(found["plain"], found["mam"]))
        print(f"losses: {'the same' if same else 'DIFFERENT'}")
        return 0 if same else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
