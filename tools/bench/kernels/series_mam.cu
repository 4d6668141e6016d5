/* SPDX-License-Identifier: BSD-2-Clause */
#include <mam/device.cuh>

struct adapter {
  typedef mam_device_heap handle;
  static __device__ void *take(const handle &heap, size_t bytes) { return mam_malloc(heap, bytes); }
  static __device__ void give(const handle &heap, void *block) { mam_free(heap, block); }
};

#define SERIES_BOUNDS __launch_bounds__(1024)
#include "series_blocks.cuh"
