/* SPDX-License-Identifier: BSD-2-Clause */
/* A file of the program, compiled in several ways.  PART is its name.  PLAIN: it does not include mam/replace.cuh, and
 * is linked with a file that does.  EMPTY: it has no kernels. */
#ifndef PLAIN
#include <mam/replace.cuh>
#endif
#include "gpu_replace_kernels.h"

#define NAME_OF(part, name) gpu_replace_##part##_##name
#define NAME_IN(part, name) NAME_OF(part, name)
#define NAME(name) NAME_IN(PART, name)

#ifdef EMPTY
extern "C" int NAME(kernels)(void) { return 0; }
#else
struct alignas(128) part_line {
  char bytes[128];
};

static __global__ void leave_kernel(void **blocks) {
  blocks[4 * threadIdx.x] = malloc(24);
  blocks[4 * threadIdx.x + 1] = new long[7];
#ifdef PLAIN /* CUDA has no such operator */
  blocks[4 * threadIdx.x + 2] = new part_line;
#else
  blocks[4 * threadIdx.x + 2] = threadIdx.x % 2 != 0 ? new part_line : new (std::nothrow_t{}) part_line;
#endif
  blocks[4 * threadIdx.x + 3] = __nv_aligned_device_malloc(100, 1024);
}

static __global__ void free_kernel(void **blocks) {
  free(blocks[4 * threadIdx.x]);
  delete[](long *) blocks[4 * threadIdx.x + 1];
  delete (part_line *)blocks[4 * threadIdx.x + 2];
  free(blocks[4 * threadIdx.x + 3]);
}

/* Each thread keeps values over requests and frees of many sizes, and counts in *wrong those that are others then. */
static __global__ void __launch_bounds__(1024)
    keep_kernel(const volatile unsigned *values, unsigned rounds, unsigned *wrong) {
  unsigned kept[GPU_REPLACE_KEPT], at = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
  for (unsigned i = 0; i < GPU_REPLACE_KEPT; i++)
    kept[i] = values[at + i];
  for (unsigned round = 0; round < rounds; round++) {
    unsigned drawn = (at + 77 * round) * 2654435761u;
    void *first = malloc(1 + (drawn >> 20)), *second = __nv_aligned_device_malloc(1 + (drawn >> 26), 64);
    long *third = new long[1 + (drawn >> 27)];
    part_line *fourth = new part_line;
    if ((drawn & 3) != 0)
      free(first);
    delete[] third;
    free(second);
    delete fourth;
    if ((drawn & 3) == 0)
      free(first);
  }
#pragma unroll
  for (unsigned i = 0; i < GPU_REPLACE_KEPT; i++)
    if (kept[i] != values[at + i])
      atomicAdd(wrong, 1);
}

extern "C" cudaError_t NAME(keep)(const unsigned *values, unsigned rounds, unsigned *wrong, unsigned blocks) {
  keep_kernel<<<blocks, 1024>>>(values, rounds, wrong);
  return cudaGetLastError();
}

extern "C" cudaError_t NAME(leave)(void **blocks, unsigned threads) {
  leave_kernel<<<1, threads>>>(blocks);
  return cudaGetLastError();
}

extern "C" cudaError_t NAME(free)(void **blocks, unsigned threads) {
  free_kernel<<<1, threads>>>(blocks);
  return cudaGetLastError();
}
#endif
