/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks in the order of a stream: what is freed on it serves the next allocation on it at once.
 *
 * prints: step 0: 0x[0-9a-f]*
 * prints: step 1: the same block
 * prints: step 2: the same block
 */
#include <mam.h>
#include <stdio.h>

int main(void) {
  cudaStream_t stream = 0; /* the default stream; any other will do */
  void *first = NULL;
  MAM_Create_auto();
  for (int step = 0; step < 3; step++) {
    void *scratch;
    if (MAM_CudaMallocAsync(&scratch, 1 << 20, stream) != cudaSuccess) {
      fprintf(stderr, "%s\n", MAM_LastError());
      return 1;
    }
    if (step == 0) {
      first = scratch;
      printf("step 0: %p\n", first);
    } else {
      printf("step %d: %s block\n", step, scratch == first ? "the same" : "another");
    }
    /* kernels on the stream use the block here */
    MAM_CudaFreeAsync(scratch, stream);
  }
  return MAM_Destroy() == cudaSuccess ? 0 : 1;
}
