# SPDX-License-Identifier: BSD-2-Clause
"""Kernels and arrays of Numba for real_programs.py.  Numba finds the driver's functions by cuGetProcAddress.

usage: numba_work.py [ROUNDS]
Prints sums, and "time ... ms" for the median round.  Exits with 77 without a GPU.
"""
import statistics
import sys
import time
import warnings

import numpy

# Older versions of Numba use names that newer versions of NumPy do not have.
for old, new in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
    if not hasattr(numpy, old) and hasattr(numpy, new):
        setattr(numpy, old, getattr(numpy, new))

from numba import cuda

warnings.filterwarnings("ignore")
ROUNDS = 60


@cuda.jit
def saxpy(a, x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


def one_round(number):
    total = 0
    for i in range(10):
        count = 1000 + 513 * i + number
        x = cuda.to_device(numpy.arange(count, dtype=numpy.int64))
        y = cuda.to_device(numpy.full(count, number, dtype=numpy.int64))
        out = cuda.device_array(count, dtype=numpy.int64)
        saxpy[(count + 127) // 128, 128](3, x, y, out)
        total += int(out.copy_to_host().sum())
    return total


def main():
    if not cuda.is_available():
        print("SKIP: Numba finds no GPU")
        return 77
    sums, times = [], []
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS):
        start = time.perf_counter()
        sums.append(one_round(number % 10))
        times.append((time.perf_counter() - start) * 1e3)
    print("sums", sums[:10], sum(sums))
    print(f"time {statistics.median(times[len(times) // 4:]):.4f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
