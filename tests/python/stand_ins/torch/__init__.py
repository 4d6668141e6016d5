# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch's interface for allocators, as far as mam/torch.py uses it."""
from . import cuda  # noqa: F401

__version__ = "0"


class _C:
    _cuda_customAllocator = None
