# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's tensors and CuPy's arrays in one pool of libmam."""
# README: begin
import cupy, mam, torch
mam.reinitialize(limit="80%")  # if you like
mam.torch.enable()  # before the first CUDA tensor
cupy.cuda.set_allocator(mam.cupy_allocator)
print(torch.ones(1000, device="cuda").sum().item(), cupy.ones(1000).sum(), mam.statistics())
# README: end
