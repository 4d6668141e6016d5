/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels that record where they allocate. */
#define MAM_HEAP_RECORDED 1
#include <mam/device.cuh>

#include "gpu_record_kernels.h"

static __global__ void record_kernel(mam_device_heap heap, void **blocks) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  size_t bytes = gpu_record_bytes(thread);
#line 99 "first.cu"
  if (thread % 2 == 0)
    blocks[thread] = mam_malloc(heap, bytes);
#line 199 "second.cu"
  if (thread % 2 != 0)
    blocks[thread] = mam_malloc(heap, bytes);
  if (blocks[thread] != NULL)
    for (size_t i = 0; i < mam_malloc_size(heap, blocks[thread]); i++)
      ((char *)blocks[thread])[i] = (char)thread; /* all of it is the caller's: the record lies behind */
}

static __global__ void end_kernel(mam_device_heap heap, void **blocks) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread % 3 != 0)
    mam_free(heap, blocks[thread]);
}

extern "C" cudaError_t gpu_record_allocate(mam_device_heap heap, void **blocks, unsigned threads) {
  record_kernel<<<threads / 32, 32>>>(heap, blocks);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_record_free(mam_device_heap heap, void **blocks, unsigned threads) {
  end_kernel<<<threads / 32, 32>>>(heap, blocks);
  return cudaGetLastError();
}
