/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of device_replace.cu behind host functions, and one that leaves its blocks behind. */
#include "device_replace.cu"

#include "gpu_replace_kernels.h"

static __global__ void leave_kernel(void **blocks) {
  node *left = new node((int)threadIdx.x);
  char *bytes = (char *)malloc(40);
  blocks[2 * threadIdx.x] = left;
  blocks[2 * threadIdx.x + 1] = bytes;
}

static __global__ void free_kernel(void **blocks) {
  delete (node *)blocks[2 * threadIdx.x];
  free(blocks[2 * threadIdx.x + 1]);
}

extern "C" cudaError_t gpu_replace_use(MAM_Heap heap) { return mam_replace_use(heap); }

extern "C" cudaError_t gpu_replace_list(int *sums, int length, unsigned threads) {
  list_kernel<<<1, threads>>>(sums, length);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_replace_leave(void **blocks, unsigned threads) {
  leave_kernel<<<1, threads>>>(blocks);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_replace_free(void **blocks, unsigned threads) {
  free_kernel<<<1, threads>>>(blocks);
  return cudaGetLastError();
}

extern "C" int gpu_replace_host(void) { return host(); }
