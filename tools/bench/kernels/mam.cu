/* SPDX-License-Identifier: BSD-2-Clause */
#include <mam/device.cuh>

struct adapter {
  typedef mam_device_heap handle;
  static __device__ void *take(const handle &heap, size_t bytes) { return mam_malloc(heap, bytes); }
  static __device__ void give(const handle &heap, void *block) { mam_free(heap, block); }
  static __device__ size_t size(const handle &heap, void *block) { return mam_malloc_size(heap, block); }
};

#include "kernels.cuh"
