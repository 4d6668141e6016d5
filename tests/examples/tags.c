/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks by tag, for a place in a loop whose sizes vary.  A freed block is kept under its tag and serves the next
 * allocation with that tag if it is large enough and at most twice as large as asked for.
 *
 * prints: 9[0-9] of 101 allocations by tag
 */
#include <mam.h>
#include <stdio.h>

static const char scratch_tag; /* its address is the tag; nothing reads it */

int main(void) {
  void *model;
  MAM_Create_auto();
  if (MAM_CudaMalloc(&model, 64 << 20) != cudaSuccess)
    return 1;
  for (size_t step = 0; step < 100; step++) {
    void *scratch;
    if (MAM_CudaMallocTagged(&scratch, (8 << 20) - (step << 12), &scratch_tag) != cudaSuccess) {
      fprintf(stderr, "%s\n", MAM_LastError());
      return 1;
    }
    /* kernels use the block here */
    MAM_CudaFree(scratch);
  }
  MAM_PoolInfo info = MAM_POOL_INFO_INIT;
  if (MAM_PoolGetInfo(NULL, &info) == cudaSuccess)
    printf("%llu of %llu allocations by tag\n", (unsigned long long)info.tag_hit_count,
           (unsigned long long)info.malloc_count);
  MAM_CudaFree(model);
  return MAM_Destroy() == cudaSuccess ? 0 : 1;
}
