# SPDX-License-Identifier: BSD-2-Clause
"""The current allocator."""
from . import memory, stream  # noqa: F401

_allocator = None


def set_allocator(allocator):
    global _allocator
    _allocator = allocator


def alloc(size):
    return _allocator(size)
