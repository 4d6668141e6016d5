/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory goes back to the driver, also from between live blocks, which do not move.
 *
 * prints: with both blocks: [0-9]* bytes held
 * prints: trimmed: less than 64 MiB held
 */
#include <mam.h>
#include <stdio.h>

static size_t held_bytes(void) {
  MAM_PoolInfo info = MAM_POOL_INFO_INIT;
  return MAM_PoolGetInfo(NULL, &info) == cudaSuccess ? info.reserved_bytes : 0;
}

int main(void) {
  void *large = NULL, *small = NULL;
  MAM_Create_auto();
  if (MAM_CudaMalloc(&small, 1000) != cudaSuccess || MAM_CudaMalloc(&large, (size_t)1 << 30) != cudaSuccess) {
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  printf("with both blocks: %zu bytes held\n", held_bytes());
  MAM_CudaFree(large);
  MAM_Trim(0); /* keep what the live blocks need */
  printf("trimmed: %s than 64 MiB held\n", held_bytes() < (size_t)64 << 20 ? "less" : "more");
  MAM_CudaFree(small);
  return MAM_Destroy() == cudaSuccess ? 0 : 1;
}
