/* SPDX-License-Identifier: BSD-2-Clause */
/* CUDA's own malloc and free in kernels.  Its heap is the context's. */
#include <stddef.h>

struct adapter {
  struct handle {
    unsigned long long unused;
  };
  static __device__ void *take(const handle &, size_t bytes) { return malloc(bytes); }
  static __device__ void give(const handle &, void *block) { free(block); }
  static __device__ size_t size(const handle &, void *) { return 0; }
};

#include "kernels.cuh"
