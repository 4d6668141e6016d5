# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch on libmam: its CUDA tensors come from libmam's pools instead of PyTorch's own cache.

    import mam_torch
    mam_torch.enable()      # before the first CUDA tensor

It needs libmam_torch.so, built from mam_torch.cc, beside this file or at the path that is given.

What PyTorch does not offer with a pluggable allocator is not offered here either: torch.cuda.memory_stats() and its
relatives (report() says what the pool holds), torch.cuda.MemPool, and the graph trees of torch.compile
(mode="reduce-overhead"; torch.cuda.graph works).  Out of memory is a RuntimeError that says what the pool holds, not
torch.OutOfMemoryError.  After a capture that failed, freed memory stays with the process.
"""
import ctypes
import json
import os

import torch

_library = None

# PyTorch's setter, and the function that it takes.
_HOOKS = (
    ("set_record_stream_fn", "mam_torch_record_stream"),
    ("set_reset_fn", "mam_torch_empty_cache"),
    ("set_begin_allocate_to_pool", "mam_torch_begin"),
    ("set_end_allocate_to_pool_fn", "mam_torch_end"),
    ("set_release_pool", "mam_torch_release"),
)


def enable(path=None):
    """Makes libmam PyTorch's allocator for this process.  It must not have allocated CUDA memory yet."""
    global _library
    if path is None:
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmam_torch.so")
    library = ctypes.CDLL(path)
    wrapper = torch.cuda.memory.CUDAPluggableAllocator(path, "mam_torch_alloc", "mam_torch_free")
    allocator = wrapper.allocator()
    for setter, function in _HOOKS:
        getattr(allocator, setter)(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(wrapper)
    _library = library


def report():
    """What the default pool of the current device holds: MAM_PoolReport as a dictionary."""
    text = ctypes.c_char_p()
    error = _library.MAM_PoolReport(None, ctypes.byref(text))
    if error != 0:
        _library.MAM_LastError.restype = ctypes.c_char_p
        raise RuntimeError(f"libmam: {_library.MAM_LastError().decode()}")
    try:
        return json.loads(text.value)
    finally:
        ctypes.CDLL(None).free(text)


def graph_pools():
    """How many pools of captured graphs there are: those of living graphs, and those in which tensors live on."""
    return _library.mam_torch_graph_pools()
