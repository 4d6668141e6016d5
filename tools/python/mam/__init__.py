# SPDX-License-Identifier: BSD-2-Clause
"""GPU memory from libmam's pools, for CuPy, Numba, PyTorch and RMM.

    import mam
    mam.reinitialize(limit="50%")                    # if you like; the first allocation makes a pool by itself
    cupy.cuda.set_allocator(mam.cupy_allocator)      # CuPy
    NUMBA_CUDA_MEMORY_MANAGER=mam.numba python ...   # Numba, in the environment; or mam.numba.enable()
    mam.torch.enable()                               # PyTorch, before its first CUDA tensor
    rmm.mr.set_current_device_resource(mam.rmm_resource())
    print(mam.statistics())

All of them share the default pool of the current CUDA context: what one library frees serves the others.  The functions
here mean that pool too, so a thread without a context has none to speak of.  They may be called from any thread.
"""
import importlib
from typing import TYPE_CHECKING, Any, List

from . import torch
from ._library import (
    Error, OutOfMemoryError, Record, Statistics, explain, mark, record, reinitialize, report, reset_peaks, statistics,
    trim,
)
from ._rmm import rmm_resource

if TYPE_CHECKING:
    from . import numba
    from ._cupy import cupy_allocator

__all__ = [
    "Error", "OutOfMemoryError", "Record", "Statistics", "cupy_allocator", "explain", "mark", "numba", "record",
    "reinitialize", "report", "reset_peaks", "rmm_resource", "statistics", "torch", "trim",
]


def __getattr__(name: str) -> Any:
    """What needs a library of others is made when it is first asked for."""
    if name == "cupy_allocator":
        from . import _cupy
        return _cupy.cupy_allocator
    if name == "numba":
        return importlib.import_module("mam.numba")
    raise AttributeError(f"module 'mam' has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)
