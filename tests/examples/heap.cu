/* SPDX-License-Identifier: BSD-2-Clause */
/* A device heap: kernels allocate and free by themselves. */
/* README: begin */
#include <mam.h>
#include <mam/device.cuh>
#include <mam/heap.h>
#include <stdio.h>

__global__ void lists(mam_device_heap heap) {
  int *numbers = (int *)mam_malloc(heap, (threadIdx.x + 1) * sizeof(int));
  if (numbers != NULL) /* a full heap answers at once */
    numbers[threadIdx.x] = 1;
  mam_free(heap, numbers);
}

int main() {
  MAM_Heap heap;
  mam_device_heap handle; /* what kernels get, by value */
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = (size_t)256 << 20; /* from the pool that MAM_CudaMalloc uses */
  if (MAM_HeapCreate(&heap, NULL, &options) != cudaSuccess || MAM_HeapHandle(heap, &handle) != cudaSuccess) {
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  lists<<<1000, 128>>>(handle);
  return MAM_HeapDestroy(heap) == cudaSuccess ? 0 : 1;
}
/* README: end */
