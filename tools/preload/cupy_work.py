# SPDX-License-Identifier: BSD-2-Clause
"""A loop of small array operations in CuPy for real_programs.py.

usage: cupy_work.py own|none [ROUNDS]
  own    with CuPy's own pool
  none   without a pool: each array is a cudaMalloc
Prints sums of what was computed, and "time ... ms" for the median round.  Exits with 77 without a GPU.
"""
import statistics
import sys
import time

import cupy

ROUNDS = 150
OPERATIONS = 50


def one_round(number):
    total = cupy.zeros(1, dtype=cupy.int64)
    for i in range(OPERATIONS):
        a = cupy.arange(1000 + 37 * i + number, dtype=cupy.int64)
        b = a * 3 + i
        c = cupy.concatenate((a, b[::2]))
        total = total + c.sum() - (c % 7).max()
    return int(total[0])


def main():
    if cupy.cuda.runtime.getDeviceCount() == 0:
        return 77
    if sys.argv[1] == "none":
        cupy.cuda.set_allocator(None)
    sums, times = [], []
    for number in range(int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS):
        start = time.perf_counter()
        sums.append(one_round(number % 10))
        times.append((time.perf_counter() - start) * 1e3)
    print("sums", sums[:10], sum(sums))
    matrix = cupy.arange(512 * 512, dtype=cupy.float64).reshape(512, 512) % 11
    print("product", int((matrix @ matrix).sum()), "sorted", int(cupy.sort(matrix.ravel())[1000]))
    print(f"time {statistics.median(times[len(times) // 4:]):.4f} ms")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        if "NoDevice" not in str(error) and "InsufficientDriver" not in str(error):
            raise
        sys.exit(77)
