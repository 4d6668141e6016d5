/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A warp heap: the lanes of a warp allocate small blocks together and free all of them by one call.  While the lanes
 * call together, an allocation takes no atomic operation.
 */
#include <mam.h>
#include <mam/heap.h>
#include <mam/warp.cuh>
#include <mam/warp.h>
#include <stdio.h>

__global__ void rows(mam_device_heap heap, int steps, size_t bytes) {
  mam_warp *warp = mam_warp_start(heap); /* the lanes that call together share it */
  for (int step = 0; step < steps; step++) {
    float *row = (float *)mam_warp_malloc(warp, bytes); /* side by side with the other lanes' rows */
    if (row != NULL)
      row[0] = (float)step;
    mam_warp_tidy_up(warp); /* frees all blocks; the lanes go on */
  }
  mam_warp_end(warp); /* frees the rest; mam_warp_hand_over leaves it to a later kernel instead */
}

int main() {
  MAM_Heap heap;
  mam_device_heap handle;
  size_t left = 0;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = (size_t)256 << 20;
  if (MAM_HeapCreate(&heap, NULL, &options) != cudaSuccess || MAM_HeapHandle(heap, &handle) != cudaSuccess) {
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  rows<<<100, 128>>>(handle, 10, 100);
  if (cudaDeviceSynchronize() != cudaSuccess || MAM_WarpList(heap, NULL, 0, &left) != cudaSuccess)
    return 1;
  printf("%zu warp heaps were not ended\n", left); /* MAM_WarpEnd frees such a one */
  return MAM_HeapDestroy(heap) == cudaSuccess ? 0 : 1;
}
