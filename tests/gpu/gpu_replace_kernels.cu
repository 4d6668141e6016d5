/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of device_replace.cu behind host functions, and those of aligned blocks. */
#include "tree/device_replace.cu"

#include "gpu_replace_kernels.h"

extern "C" cudaError_t gpu_replace_use(MAM_Heap heap) { return mam_replace_use(heap); }
extern "C" cudaError_t gpu_replace_create(size_t bytes) { return mam_replace_create(bytes); }
extern "C" cudaError_t gpu_replace_destroy(void) { return mam_replace_destroy(); }
extern "C" MAM_Heap gpu_replace_heap(void) { return mam_replace_heap(); }

extern "C" cudaError_t gpu_replace_list(int *sums, int length, unsigned threads) {
  list_kernel<<<1, threads>>>(sums, length);
  return cudaGetLastError();
}

static_assert((int)DOORS == (int)GPU_REPLACE_DOORS, "");

extern "C" cudaError_t gpu_replace_take(void **blocks, unsigned threads) {
  doors_take<<<1, threads>>>(blocks, 200);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_replace_give(void **blocks, unsigned threads) {
  doors_give<<<1, threads>>>(blocks);
  return cudaGetLastError();
}

extern "C" int gpu_replace_host(void) { return host(); }

static __global__ void aligned_kernel(mam_device_heap heap, void **blocks, unsigned count, size_t alignment,
                                      size_t bytes) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned i = thread; i < count; i += gridDim.x * blockDim.x)
    blocks[i] = mam_malloc_aligned(heap, alignment, bytes);
}

static __global__ void aligned_free_kernel(mam_device_heap heap, void **blocks, unsigned count, unsigned step) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  for (unsigned i = thread * step; i < count; i += gridDim.x * blockDim.x * step) {
    mam_free(heap, blocks[i]);
    blocks[i] = nullptr;
  }
}

extern "C" cudaError_t gpu_aligned_take(mam_device_heap heap, void **blocks, unsigned count, size_t alignment,
                                        size_t bytes) {
  aligned_kernel<<<32, 128>>>(heap, blocks, count, alignment, bytes);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_aligned_give(mam_device_heap heap, void **blocks, unsigned count, unsigned step) {
  aligned_free_kernel<<<32, 128>>>(heap, blocks, count, step);
  return cudaGetLastError();
}
