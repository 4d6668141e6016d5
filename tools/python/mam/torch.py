# SPDX-License-Identifier: BSD-2-Clause
"""PyTorch on libmam: its CUDA tensors come from libmam's pools instead of PyTorch's own cache.

    import mam
    mam.torch.enable()      # before the first CUDA tensor

What PyTorch does not offer with a pluggable allocator is not offered here either: torch.cuda.memory_stats() and its
relatives (memory_stats() here has the figures), torch.cuda.MemPool, and the graph trees of torch.compile
(mode="reduce-overhead"; torch.cuda.graph works).  After a capture that failed, freed memory stays with the process.

A captured graph has memory of its own, which stays until the graph and its tensors are gone and torch.cuda.empty_cache()
runs, or memory runs out.  torch.cuda.graph empties the cache before it captures.

Out of memory is a torch.OutOfMemoryError that says what the pool holds; where PyTorch was built with the C++ library's
strings of before C++11, as its wheels were before 2.7, it is the RuntimeError that torch.OutOfMemoryError derives from.
"""
import ctypes
import os
import threading
from typing import Any, Dict, Iterable, Optional, Tuple

from . import _library
from ._library import explain, report

__all__ = ["enable", "enabled", "explain", "graph_pools", "memory_stats", "report", "reset_peak_memory_stats"]

# PyTorch's setter, and the function that it takes.
_HOOKS = (
    ("set_record_stream_fn", "mam_torch_record_stream"),
    ("set_reset_fn", "mam_torch_empty_cache"),
    ("set_begin_allocate_to_pool", "mam_torch_begin"),
    ("set_end_allocate_to_pool_fn", "mam_torch_end"),
    ("set_release_pool", "mam_torch_release"),
)

# c10::OutOfMemoryError: its constructor of a place and a std::string, or its base class's, and its type.
_CONSTRUCTORS = tuple(f"_ZN3c10{name}C1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
                      for name in ("16OutOfMemoryError", "5Error"))
_TYPE = "_ZTIN3c1016OutOfMemoryErrorE"

_lock = threading.Lock()
_enabled: Optional[Any] = None  # PyTorch's wrapper, which has to live


def _symbol(libraries: Iterable[ctypes.CDLL], names: Tuple[str, ...]) -> int:
    """The address of the first of the names that one of the libraries has; 0 if none has any."""
    libraries = tuple(libraries)
    for name in names:
        for library in libraries:
            try:
                return ctypes.addressof(ctypes.c_char.in_dll(library, name))
            except ValueError:
                continue
    return 0


def _teach_out_of_memory(torch: Any, bridge: ctypes.CDLL) -> None:
    folder = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "lib")
    libraries = []
    for name in ("libc10.so", "libc10_cuda.so"):
        try:  # those that PyTorch has loaded
            libraries.append(ctypes.CDLL(os.path.join(folder, name), mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except OSError:
            continue
    constructor, kind = _symbol(libraries, _CONSTRUCTORS), _symbol(libraries, (_TYPE,))
    use = bridge.mam_torch_out_of_memory
    use.argtypes, use.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    if constructor != 0 and kind != 0:
        use(constructor, kind)


def enable() -> None:
    """Makes libmam PyTorch's allocator for this process, which must not have allocated CUDA memory yet.

    A second call does nothing."""
    global _enabled
    import torch

    with _lock:
        if _enabled is not None:
            return
        if not hasattr(torch._C, "_cuda_customAllocator"):
            raise _library.Error(f"PyTorch {torch.__version__} was built without CUDA, or is older than 2.0")
        bridge = _library.bridge()
        wrapper = torch.cuda.memory.CUDAPluggableAllocator(_library.bridge_path(), "mam_torch_alloc", "mam_torch_free")
        allocator = wrapper.allocator()
        for setter, function in _HOOKS:
            getattr(allocator, setter)(_library.function_address(getattr(bridge, function)))
        _teach_out_of_memory(torch, bridge)
        try:
            torch.cuda.memory.change_current_allocator(wrapper)
        except RuntimeError as error:
            raise _library.Error(f"PyTorch keeps its allocator: {error}; mam.torch.enable() has to come before the first "
                                 "CUDA tensor") from error
        _enabled = wrapper


def enabled() -> bool:
    """Whether enable() has made libmam PyTorch's allocator."""
    return _enabled is not None


def _of(device: Any, function: Any) -> Any:
    """Calls a function with the device current."""
    if device is None:
        return function()
    import torch

    with torch.cuda.device(device):
        return function()


def memory_stats(device: Any = None) -> Dict[str, int]:
    """What the default pool of a device (of the current one if device is None) holds, in the names of PyTorch's own
    memory_stats where it has one.  The pools of captured graphs are not counted.

    active_bytes are those that tensors or the GPU still use; waiting_bytes are the part that is freed."""
    now = _of(device, _library.statistics)
    return {
        "allocated_bytes.all.current": now.used_bytes,
        "allocated_bytes.all.peak": now.peak_used_bytes,
        "requested_bytes.all.current": now.requested_bytes,
        "active_bytes.all.current": now.used_bytes + now.waiting_bytes,
        "waiting_bytes.all.current": now.waiting_bytes,
        "reserved_bytes.all.current": now.reserved_bytes,
        "reserved_bytes.all.peak": now.peak_reserved_bytes,
        "allocation.all.current": now.used_count,
        "allocation.all.allocated": now.malloc_count,
        "allocation.all.freed": now.free_call_count,
        "segment.all.current": now.chunk_count,
        "largest_free_bytes": now.largest_free_bytes,
        "limit_bytes": now.limit_bytes,
        "num_ooms": now.failure_count,
        "num_sync_all_streams": now.synchronize_count,
    }


def reset_peak_memory_stats(device: Any = None) -> None:
    """Begins the peaks of memory_stats anew."""
    _of(device, _library.reset_peaks)


def graph_pools() -> int:
    """How many pools of captured graphs there are: those of living graphs, those in which tensors live on, and those
    that torch.cuda.empty_cache() or a lack of memory will end.  torch.cuda.graph empties the cache."""
    return int(_library.bridge().mam_torch_graph_pools())
