# SPDX-License-Identifier: BSD-2-Clause
"""Managers, pointers that call a finalizer once, and a driver with 1 GiB of which half is free."""
import contextlib
import weakref
from collections import namedtuple

MemoryInfo = namedtuple("MemoryInfo", "free,total")
USE_NV_BINDING = False
manager = None


class CudaAPIError(RuntimeError):
    def __init__(self, code, msg):
        super().__init__(code, msg)
        self.code, self.msg = code, msg


class _Deallocations:
    cleared = deferred = 0

    def clear(self):
        self.cleared += 1

    @contextlib.contextmanager
    def disable(self):
        self.deferred += 1
        yield
        self.deferred -= 1


class HostOnlyCUDAMemoryManager:
    def __init__(self, *args, **kwargs):
        self.context = kwargs.pop("context")
        self.allocations, self.deallocations = {}, _Deallocations()

    def reset(self):
        self.allocations.clear()
        self.deallocations.clear()

    @contextlib.contextmanager
    def defer_cleanup(self):
        with self.deallocations.disable():
            yield


class GetIpcHandleMixin:
    def get_ipc_handle(self, memory):
        raise CudaAPIError(1, f"no handle of {memory.size} bytes")


class NumbaCUDAMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    def get_memory_info(self):
        return MemoryInfo(1 << 29, 1 << 30)


class MemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size = context, pointer, size
        self._finalizer = weakref.finalize(self, finalizer)

    @property
    def device_pointer_value(self):
        return int(getattr(self.device_pointer, "value", self.device_pointer))


def set_memory_manager(plugin):
    global manager
    if plugin(context=None).interface_version != 1:
        raise RuntimeError("another version")
    manager = plugin
