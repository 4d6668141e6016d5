# SPDX-License-Identifier: BSD-2-Clause
"""Trains a small transformer with PyTorch's own allocator and with libmam, each in a process of its own, and compares.

The two processes take turns of a few steps, on the same processors: a host that is shared with others changes its speed
from second to second, by more than what is to be measured, but for both of a pair of turns alike.  Prints the median
step time of either and the median ratio of the pairs, for a case that the GPU bounds and one that the host bounds;
checks that the losses are the same; and, under libmam, captures CUDA graphs and replays them beside other traffic.
Exits with 0 if all is well, 1 if not, 77 where there is no GPU.
"""
import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading

# Same sums in the same order in every process: what differs then is the allocator.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

CASES = {
    # name: (layers, width, heads, sequence, batch)
    "gpu": (12, 1024, 16, 512, 24),
    "host": (6, 256, 4, 32, 2),
}
WARM_UP = 20
TURN_STEPS = 11  # the first of which is not timed: before it the GPU has nothing to do
PROCESSORS = 4
VOCABULARY = 8192


# ---- The model --------------------------------------------------------------------------------------------------


def model_new(torch, layers, width, heads, sequence):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.before_attention = nn.LayerNorm(width)
            self.before_mlp = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def attend(self, x):
            # By hand, and not by scaled_dot_product_attention, whose gradients are not the same each time.
            count, length, _ = x.shape
            q, k, v = self.qkv(x).view(count, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            weights = torch.softmax(q @ k.transpose(-2, -1) * (width // heads) ** -0.5, dim=-1)
            return self.out((weights @ v).transpose(1, 2).reshape(count, length, width))

        def forward(self, x):
            x = x + self.attend(self.before_attention(x))
            return x + self.mlp(self.before_mlp(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, width)
            self.places = nn.Parameter(torch.zeros(sequence, width))
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, VOCABULARY)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    torch.manual_seed(1)
    return Model().cuda()


def loss_of(torch, model, tokens):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def train(torch, layers, width, heads, sequence, batch, turns):
    """Trains for a turn whenever turns yields, and calls what it yields with the times of the steps in milliseconds.
    Returns the losses."""
    model = model_new(torch, layers, width, heads, sequence)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator().manual_seed(2)
    data = torch.randint(VOCABULARY, (16, batch, sequence + 1), generator=generator).pin_memory()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(TURN_STEPS)]
    losses = []

    def step():
        loss = loss_of(torch, model, data[len(losses) % len(data)].cuda(non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    for tell in turns:
        for mark in marks:
            step()
            mark.record()
        torch.cuda.synchronize()
        tell([a.elapsed_time(b) for a, b in zip(marks, marks[1:])])
    return torch.stack(losses).tolist()


# ---- Graphs -----------------------------------------------------------------------------------------------------


class Traffic:
    """Eager tensors that come and go; those that stay know what they hold, so that a graph which writes to memory that
    is not its own is caught, and theirs fills all memory that a graph gave up too early."""

    def __init__(self, torch):
        self.torch = torch
        self.random = torch.Generator().manual_seed(3)
        self.kept = []
        self.number = 0

    def run(self, count=200):
        for _ in range(count):
            self.number += 1
            size = 1 << int(self.torch.randint(23, (1,), generator=self.random))
            self.kept.append((self.torch.full((size,), float(self.number), device="cuda"), float(self.number)))
            if len(self.kept) > 64:
                index = int(self.torch.randint(len(self.kept), (1,), generator=self.random))
                tensor, value = self.kept.pop(index)
                self.check(tensor, value)

    @staticmethod
    def check(tensor, value):
        if not bool((tensor == value).all()):
            raise AssertionError("a tensor was changed that no graph owns")

    def end(self):
        for tensor, value in self.kept:
            self.check(tensor, value)
        self.kept.clear()


def warm_up(torch, function):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def alike(torch, what, got, wanted):
    if not torch.allclose(got, wanted, rtol=1e-3, atol=1e-4):
        raise AssertionError(f"{what}: differs from the eager result by {(got - wanted).abs().max().item():g}")


def inference_graph(torch, model, batches, pool=None):
    tokens = batches[0].clone()

    def infer():
        with torch.no_grad():
            return model(tokens)

    warm_up(torch, infer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        result = infer()
    return graph, tokens, result


def inference_is_right(torch, model, batches, traffic, inference):
    graph, tokens, result = inference
    for batch in batches:
        traffic.run()
        tokens.copy_(batch)
        graph.replay()
        traffic.run(20)
        with torch.no_grad():
            alike(torch, "inference", result, model(batch))


def gradients_are_right(torch, model, batches, traffic):
    tokens = batches[0].clone()
    inputs = list(model.parameters())

    def step():
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return (loss, *torch.autograd.grad(loss, inputs))

    warm_up(torch, step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for batch in batches:
        traffic.run()
        tokens.copy_(batch)
        graph.replay()
        traffic.run(20)
        for got, wanted in zip(results, step()):
            alike(torch, "gradient", got, wanted)


def graphs_are_right(torch):
    model = model_new(torch, 4, 256, 4, 64)
    generator = torch.Generator().manual_seed(4)
    batches = [torch.randint(VOCABULARY, (4, 64), generator=generator).cuda() for _ in range(8)]
    longer = [torch.cat((batch, batch[:, :1]), dim=1) for batch in batches]
    traffic = Traffic(torch)
    first = inference_graph(torch, model, batches)
    inference_is_right(torch, model, batches, traffic, first)
    second = inference_graph(torch, model, batches, pool=first[0].pool())
    for inference in (first, second):
        inference_is_right(torch, model, batches, traffic, inference)
    del first, inference
    gc.collect()
    inference_is_right(torch, model, batches, traffic, second)
    gradients_are_right(torch, model, longer, traffic)
    traffic.end()
    torch.cuda.synchronize()


def recorded_streams_are_safe(torch):
    """A tensor that another stream reads late is not overwritten after it was deleted."""
    side = torch.cuda.Stream()
    sums = []
    for value in range(1, 51):
        tensor = torch.full((1 << 20,), float(value), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            tensor.record_stream(side)
            sums.append((tensor == value).sum())
        del tensor
        for _ in range(4):
            torch.full((1 << 20,), -1.0, device="cuda")
    torch.cuda.synchronize()
    if any(int(count) != 1 << 20 for count in sums):
        raise AssertionError("a tensor was overwritten that a recorded stream still had to read")


# ---- The processes ----------------------------------------------------------------------------------------------


def say(what):
    print(json.dumps(what), flush=True)


def turns():
    """One for each line of standard input, once the first of them is asked for."""
    say("ready")
    for _ in sys.stdin:
        yield say


def worker(allocator, what):
    """Runs in a process of its own; says lines of JSON, the last of them what it has held and found."""
    import torch
    import torch.utils.deterministic

    if not torch.cuda.is_available():
        return 77
    if allocator == "mam":
        import mam_torch

        mam_torch.enable()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    answer = {}
    if what == "graph":
        recorded_streams_are_safe(torch)
        graphs_are_right(torch)
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # they are memory of the capture that needed them first
        torch.cuda.empty_cache()  # until then the memory of a graph outlives it, as in PyTorch's own cache
        answer["pools"] = mam_torch.graph_pools() if allocator == "mam" else 0
    else:
        answer["losses"] = train(torch, *CASES[what], turns())
    if allocator == "mam":
        answer["reserved"] = mam_torch.report()["reserved_bytes"]
    else:
        answer["reserved"] = torch.cuda.max_memory_reserved()
    say(answer)
    return 0


class Worker:
    """A process, and its lines.  It is ended if it takes too long, and at the end of a with."""

    def __init__(self, allocator, what, seconds):
        self.allocator = allocator
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--worker", allocator, what],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.limit = threading.Timer(seconds, self.process.kill)
        self.limit.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.limit.cancel()
        with self.process:  # closes its pipes, and waits for it
            self.process.kill()

    def check_end(self):
        status = self.process.wait()
        if status == 77:
            print("SKIP: PyTorch finds no GPU")
            sys.exit(77)
        if status != 0:
            raise AssertionError(f"the process with {self.allocator} ended with status {status}")

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            self.check_end()
            raise AssertionError(f"the process with {self.allocator} ended without an answer")
        return json.loads(line)

    def turn(self):
        """The median time of a turn's steps."""
        self.process.stdin.write("turn\n")
        self.process.stdin.flush()
        return statistics.median(self.hear())

    def finish(self):
        """The last answer of a process, which then ends well."""
        self.process.stdin.close()
        answer = self.hear()
        self.check_end()
        return answer


def losses_are_equal(name, native, mam):
    worst = max(abs(a - b) / abs(a) for a, b in zip(native, mam))
    print(f"case {name}: losses from {native[0]:.4f} to {native[-1]:.4f}, " +
          ("the same" if native == mam else f"apart by up to {worst:.1e} of themselves"))
    return worst < 1e-4


def compare(name, pairs, limit, seconds):
    """Pairs of turns, the order turned each time."""
    with Worker("native", name, seconds) as first, Worker("mam", name, seconds) as second:
        workers = (first, second)
        times = {worker: [] for worker in workers}
        for worker in workers:
            worker.hear()
        for pair in range(pairs):
            for worker in workers if pair % 2 == 0 else reversed(workers):
                times[worker].append(worker.turn())
        native, mam = (worker.finish() for worker in workers)
    ratios = [b / a for a, b in zip(*times.values())]
    ratio = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios)
    native_ms, mam_ms = (statistics.median(times[worker]) for worker in workers)
    print(f"case {name}: native {native_ms:.3f} ms, mam {mam_ms:.3f} ms a step, median ratio of {pairs} pairs of turns "
          f"{ratio:.4f} (half of them {low:.3f} to {high:.3f})")
    native_mib, mam_mib = (answer["reserved"] / 2**20 for answer in (native, mam))
    print(f"case {name}: memory held: native {native_mib:.0f} MiB, mam {mam_mib:.0f} MiB")
    good = losses_are_equal(name, native["losses"], mam["losses"])
    if ratio > limit:
        print(f"case {name}: FAIL: the ratio is more than {limit}")
        good = False
    return good


def graphs(seconds):
    good = True
    for allocator in ("native", "mam"):
        with Worker(allocator, "graph", seconds) as worker:
            pools = worker.finish()["pools"]
        print(f"graphs: {allocator}: captured, replayed beside other traffic, right"
              + (f"; {pools} graph pools left" if allocator == "mam" else ""))
        # PyTorch may keep a workspace of cuBLASLt, which the first capture made in its pool.
        good = good and pools <= 1
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of turns (default: 20)")
    parser.add_argument("--limit", type=float, default=1.02, help="the largest ratio of step times (default: 1.02)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each process (default: 120)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        sys.exit(worker(*arguments.worker))
    if arguments.pairs < 2:
        parser.error("--pairs: at least 2")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-PROCESSORS:])
    try:
        good = graphs(arguments.timeout)
        for name in CASES:
            good = compare(name, arguments.pairs, arguments.limit, arguments.timeout) and good
    except (AssertionError, OSError) as error:
        print(f"FAIL: {error}")
        good = False
    print("PASS" if good else "FAIL")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
