# SPDX-License-Identifier: BSD-2-Clause
"""Memory by two C functions, called with the GIL held.  C++ exceptions of theirs are not caught here."""
import ctypes


class _Memory:
    def __init__(self, size, param, malloc, free, device):
        self.size = size
        self._free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(free)
        self._param, self._device, self.ptr = param, device, 0
        if size > 0:
            call = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(malloc)
            self.ptr = call(param, size, device)

    def __del__(self):
        if self.ptr:
            self._free(self._param, self.ptr, self._device)


class CFunctionAllocator:
    def __init__(self, param, malloc_func, free_func, owner):
        self._functions = (param, malloc_func, free_func)
        self._owner = owner

    def malloc(self, size):
        return _Memory(size, *self._functions, 0)
