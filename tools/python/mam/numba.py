# SPDX-License-Identifier: BSD-2-Clause
"""Numba's device memory from libmam: a plugin for its external memory management.

    NUMBA_CUDA_MEMORY_MANAGER=mam.numba python program.py

or mam.numba.enable() before Numba makes its first context.  Pinned and mapped host memory, and managed memory, stay
Numba's own.  Numba names no stream when it allocates or frees, so freed memory is used again when all work is done that
was submitted before, as with cudaFree.  Out of memory is Numba's CudaAPIError with libmam's text."""
import contextlib
import ctypes
import itertools
from typing import Any, Callable, Dict, Iterator

from numba import cuda
from numba.cuda.cudadrv import driver as _driver

from . import _library

_OUT_OF_MEMORY = 2


def _api_error(code: int) -> Exception:
    return _driver.CudaAPIError(code, f"libmam: {_library.error_of(code)}")


def _pointer_of(address: int) -> Any:
    """What MemoryPointer takes: of NVIDIA's bindings or, in older versions, of ctypes."""
    binding = getattr(_driver, "binding", None)
    if binding is not None and getattr(_driver, "USE_NV_BINDING", True):
        return binding.CUdeviceptr(address)
    return ctypes.c_uint64(address)


class MamNumbaManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """The memory manager of one of Numba's contexts."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Number: address, of those that live; an address may come again.  No lock: a finalizer may run in the middle of
        # any function, and each step is one operation of a dictionary.
        self._blocks: Dict[int, int] = {}
        self._numbers = itertools.count()

    @property
    def interface_version(self) -> int:
        """Of Numba's interface."""
        return 1

    def initialize(self) -> None:
        """Loads the library, so that a missing one is told at once."""
        _library.library()

    def memalloc(self, size: int) -> Any:
        """Allocates in the current context."""
        address = ctypes.c_void_p()
        code = _library.library().MAM_CudaMalloc(ctypes.byref(address), size)
        if code == _OUT_OF_MEMORY:
            self.deallocations.clear()  # as Numba does: what it keeps of mapped host memory
            code = _library.library().MAM_CudaMalloc(ctypes.byref(address), size)
        if code != 0:
            raise _api_error(code)
        number = next(self._numbers)
        self._blocks[number] = address.value or 0
        return cuda.MemoryPointer(self.context, _pointer_of(address.value or 0), size, finalizer=self._finalizer(number))

    def _finalizer(self, number: int) -> Callable[[], None]:
        blocks = self._blocks  # and not self, which may go first

        def free() -> None:
            address = blocks.pop(number, 0)
            if address != 0:  # else a reset has freed it
                _library.library().MAM_CudaFree(address)

        return free

    def reset(self) -> None:
        """Frees what this manager has allocated."""
        super().reset()
        for number in list(self._blocks):
            self._finalizer(number)()

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """As in Numba for host memory.  Frees of device memory wait for nothing and are not put off."""
        with super().defer_cleanup():
            yield

    def get_memory_info(self) -> Any:
        """What the driver and the pool have free, and what there is."""
        own = _driver.NumbaCUDAMemoryManager.get_memory_info(self)
        return cuda.MemoryInfo(free=min(own.free + _library.statistics().free_bytes, own.total), total=own.total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """As in Numba.  Memory that is mapped piece by piece has no such handle."""
        try:
            return super().get_ipc_handle(memory)
        except _driver.CudaAPIError as error:
            raise _driver.CudaAPIError(
                error.code, f"{error.msg}; libmam: mapped memory has no IPC handle: set MAM_SOURCE=chunks, or call "
                "mam.reinitialize(source='chunks') first") from error


_numba_memory_manager = MamNumbaManager  # the name that Numba looks for


def enable() -> None:
    """Makes libmam Numba's memory manager, for contexts that Numba makes from now on."""
    cuda.set_memory_manager(MamNumbaManager)
