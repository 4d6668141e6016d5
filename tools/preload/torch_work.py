# SPDX-License-Identifier: BSD-2-Clause
"""Work of PyTorch for real_programs.py.  It knows nothing of libmam.

usage: torch_work.py train|host-bound|graph [STEPS]
  train        trains a small transformer; the GPU's time bounds it.  Prints losses, and "time ... ms" for the median
               step
  host-bound   the same with a smaller one; the host's time bounds it
  graph        captures a step of inference as a CUDA graph, and replays it beside other work.  Prints whether the
               capture worked.  Exits with 1 if a replay gives a wrong result or writes to other memory
PYTORCH_NO_CUDA_MEMORY_CACHING=1 in the environment switches PyTorch's own cache off.  Exits with 77 without a GPU.
"""
import os
import statistics
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

SHAPES = {  # layers, width, heads, sequence, batch, steps
    "train": (8, 1024, 16, 512, 8, 40),
    "host-bound": (6, 256, 4, 32, 2, 120),
    "graph": (4, 256, 4, 64, 4, 0),
}
WARM_UP = 5
VOCABULARY = 8192


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                                       torch.nn.Linear(4 * width, width))

    def forward(self, x):
        # Attention in plain operations, whose gradients are the same in each run.
        count, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(count, length, width))
        return x + self.mlp(self.norms[1](x))


class Model(torch.nn.Module):
    def __init__(self, layers, width, heads):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, width)
        self.blocks = torch.nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = torch.nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens)))


def train(shape, steps):
    layers, width, heads, sequence, batch, _ = shape
    torch.manual_seed(1)
    model = Model(layers, width, heads).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randint(VOCABULARY, (8, batch, sequence + 1)).pin_memory()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(WARM_UP + steps + 1)]
    losses = []
    marks[0].record()
    for step in range(WARM_UP + steps):
        tokens = data[step % len(data)].cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        marks[step + 1].record()
    torch.cuda.synchronize()
    times = [first.elapsed_time(second) for first, second in zip(marks[WARM_UP:], marks[WARM_UP + 1:])]
    for step, loss in enumerate(torch.stack(losses).tolist()):
        if step % 5 == 0:
            print(f"loss {step} {loss!r}")
    print(f"time {statistics.median(times):.4f} ms")
    return 0


def captured(function):
    """The graph of a call, its result and ""; or None, None and the reason why there is no graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            result = function()
    except Exception as error:  # PyTorch raises several types here
        return None, None, str(error).splitlines()[0]
    return graph, result, ""


def capture(shape):
    layers, width, heads, sequence, batch, _ = shape
    torch.manual_seed(1)
    model = Model(layers, width, heads).cuda().eval()
    tokens = torch.randint(VOCABULARY, (batch, sequence)).cuda()
    with torch.no_grad():
        graph, result, why = captured(lambda: model(tokens))
        if graph is None:
            print(f"capture failed: {why}")
            return 0
        for seed in range(5):
            torch.manual_seed(seed)
            tokens.copy_(torch.randint(VOCABULARY, (batch, sequence)))
            # If the graph does not own its memory, some of these get it, and the replay writes to them.
            others = [torch.full((1 << (10 + i % 12),), float(i), device="cuda") for i in range(200)]
            graph.replay()
            if any(not bool((other == float(i)).all()) for i, other in enumerate(others)):
                print("FAIL: a replay wrote to memory of others")
                return 1
            if not torch.allclose(result, model(tokens), rtol=1e-3, atol=1e-4):
                print("FAIL: a replay gives a wrong result")
                return 1
            del others
    print("capture worked")
    return 0


def main():
    if not torch.cuda.is_available():
        print("SKIP: PyTorch finds no GPU")
        return 77
    shape = SHAPES[sys.argv[1]]
    # warn_only: all operations here have a deterministic form, so none needs to be refused.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    if sys.argv[1] == "graph":
        return capture(shape)
    return train(shape, int(sys.argv[2]) if len(sys.argv) > 2 else shape[-1])


if __name__ == "__main__":
    sys.exit(main())
