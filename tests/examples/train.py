# SPDX-License-Identifier: BSD-2-Clause
"""Three training steps of PyTorch on libmam, recorded to step.mam with the ranges of PyTorch's operators."""
import mam
import torch
from torch.autograd.profiler import emit_nvtx
from torch.cuda import nvtx

mam.torch.enable()  # before the first CUDA tensor
torch.manual_seed(1)
layer = [torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024), torch.nn.LayerNorm(1024)]
model = torch.nn.Sequential(*layer, *layer, *layer).cuda()
optimizer = torch.optim.AdamW(model.parameters())

with mam.record("step.mam"), emit_nvtx():
    for number in range(3):
        mam.mark(f"step {number + 1}")
        with nvtx.range("forward"):
            loss = model(torch.randn(4096, 1024, device="cuda")).square().mean()
        with nvtx.range("backward"):
            loss.backward()
        with nvtx.range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
print(f"loss {loss.item():.3f}; mam-bench picture step.mam makes a page of the three steps")
