# SPDX-License-Identifier: BSD-2-Clause
"""A resource of two Python functions, and a stream of a number."""


class Stream:
    def __init__(self, number):
        self._number = number

    def __cuda_stream__(self):
        return (0, self._number)


class CallbackMemoryResource:
    def __init__(self, allocate_func, deallocate_func):
        self._allocate, self._deallocate = allocate_func, deallocate_func

    def allocate(self, size, stream=Stream(0)):
        return self._allocate(size, stream)

    def deallocate(self, pointer, size, stream=Stream(0)):
        self._deallocate(pointer, size, stream)
