# SPDX-License-Identifier: BSD-2-Clause
"""The public names."""
from .cudadrv.driver import (  # noqa: F401
    GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer, set_memory_manager,
)
