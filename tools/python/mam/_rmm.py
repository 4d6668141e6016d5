# SPDX-License-Identifier: BSD-2-Clause
"""RMM's memory from libmam, through RMM's callback resource."""
import ctypes
from typing import Any, Optional

from . import _library


def _stream_of(stream: Any) -> Optional[int]:
    """The handle of RMM's stream object; None if it cannot be known."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        return None
    return int((protocol() if callable(protocol) else protocol)[1])


def _allocate(size: int, stream: Any = None) -> int:
    pointer = ctypes.c_void_p()
    handle = _library.library()
    number = _stream_of(stream)
    if number is None:
        _library.check(handle.MAM_CudaMalloc(ctypes.byref(pointer), size))
    else:
        _library.check(handle.MAM_CudaMallocAsync(ctypes.byref(pointer), size, number))
    return pointer.value or 0


def _deallocate(pointer: int, size: int, stream: Any = None) -> None:
    del size
    handle = _library.library()
    number = _stream_of(stream)
    if number is not None and handle.MAM_CudaFreeAsync(pointer, number) == 0:
        return
    _library.check(handle.MAM_CudaFree(pointer))  # the stream may be gone; this waits for all of them


def rmm_resource() -> Any:
    """A resource for rmm.mr.set_current_device_resource, ordered by the streams that RMM names.

    RMM calls Python for each allocation of a callback resource.  Out of memory is a MemoryError that says why."""
    import rmm

    return rmm.mr.CallbackMemoryResource(_allocate, _deallocate)
