/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An allocation and a free in a pool of one chunk.
 *
 * prints: a block of 1000 bytes at 0x[0-9a-f]*
 */
/* README: begin */
#include <mam.h>
#include <stdio.h>

int main(void) {
  void *block;
  if (MAM_Create((size_t)256 << 20) != cudaSuccess || /* one chunk of 256 MiB */
      MAM_CudaMalloc(&block, 1000) != cudaSuccess) {
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  printf("a block of 1000 bytes at %p\n", block);
  /* copies and kernels use the block here */
  MAM_CudaFree(block);
  return MAM_Destroy() == cudaSuccess ? 0 : 1;
}
/* README: end */
