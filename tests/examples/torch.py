# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's tensors in libmam's pool."""
# README: begin
import torch
import mam_torch

mam_torch.enable()  # before the first CUDA tensor
print(torch.ones(1000, device="cuda").sum().item())
torch.cuda.empty_cache()  # gives unused memory back to the driver
# README: end
