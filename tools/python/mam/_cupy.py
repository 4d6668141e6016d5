# SPDX-License-Identifier: BSD-2-Clause
"""CuPy's memory from libmam: CuPy calls the C functions of the bridge, and no Python runs for an allocation.

As with CuPy's own pool, a freed array's memory may serve the stream on which it was allocated at once; a program that
uses an array on another stream waits for that before it drops the array.  Out of memory is a MemoryError that says what
the pool holds."""
import ctypes
from typing import Any, Callable

import cupy.cuda.memory
import cupy.cuda.stream

from . import _library


def _stream_function() -> int:
    """The C function by which CuPy names its current stream; 0 if this CuPy does not offer it.

    Without it allocations name no stream, which is safe on all."""
    capsule = getattr(cupy.cuda.stream, "__pyx_capi__", {}).get("get_current_stream_ptr")
    if capsule is None:
        return 0
    signature = ctypes.pythonapi.PyCapsule_GetName
    signature.argtypes, signature.restype = (ctypes.py_object,), ctypes.c_char_p
    name = signature(capsule)
    if name != b"intptr_t (void)":
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    return int(pointer(capsule, name))


def _make() -> Callable[[int], Any]:
    bridge = _library.bridge()
    use = bridge.mam_cupy_use
    use.argtypes, use.restype = (ctypes.c_void_p, ctypes.c_void_p), None
    use(_stream_function(), _library.function_address(ctypes.pythonapi.PyErr_Clear))
    return cupy.cuda.memory.CFunctionAllocator(0, _library.function_address(bridge.mam_cupy_malloc),
                                               _library.function_address(bridge.mam_cupy_free), bridge).malloc


cupy_allocator = _make()
