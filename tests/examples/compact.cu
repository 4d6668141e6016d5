/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation of a device heap.  Objects of a registered type can move, since the heap knows where the pointers to
 * them are: in other objects of types, and in registered roots.
 */
#include <mam.h>
#include <mam/device.cuh>
#include <mam/heap.h>
#include <stddef.h>
#include <stdio.h>

struct node {
  struct node *next;
  float values[6];
};

__global__ void push(mam_device_heap heap, mam_type node_type, struct node **heads, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count)
    return;
  struct node *made = (struct node *)mam_malloc_typed(heap, node_type);
  if (made == NULL)
    return;
  made->next = heads[i];
  heads[i] = made;
}

/* Three of four threads free what they have, so pages are left that hold few nodes. */
__global__ void thin(mam_device_heap heap, struct node **heads, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count || i % 4 == 0 || heads[i] == NULL)
    return;
  struct node *first = heads[i];
  heads[i] = first->next;
  mam_free(heap, first);
}

int main() {
  const int count = 1 << 16;
  const size_t offsets[] = {offsetof(struct node, next)};
  MAM_Heap heap;
  mam_device_heap handle;
  mam_type node_type;
  struct node **heads = NULL;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  MAM_HeapTypeOptions type_options = MAM_HEAP_TYPE_OPTIONS_INIT;
  MAM_HeapCompactInfo info = MAM_HEAP_COMPACT_INFO_INIT;
  options.bytes = (size_t)256 << 20;
  type_options.bytes = sizeof(struct node);
  type_options.pointer_offsets = offsets;
  type_options.pointer_count = 1;
  if (MAM_HeapCreate(&heap, NULL, &options) != cudaSuccess || MAM_HeapHandle(heap, &handle) != cudaSuccess ||
      MAM_CudaMalloc(&heads, count * sizeof *heads) != cudaSuccess ||
      MAM_HeapRegisterType(heap, &type_options, &node_type) != cudaSuccess ||
      MAM_HeapRegisterRoots(heap, heads, count) != cudaSuccess) {
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  cudaMemset(heads, 0, count * sizeof *heads);
  push<<<count / 128, 128>>>(handle, node_type, heads, count);
  thin<<<count / 128, 128>>>(handle, heads, count);
  cudaDeviceSynchronize();                                 /* no kernel uses the heap during a compaction */
  if (MAM_HeapCompact(heap, NULL, &info) != cudaSuccess) { /* the heads lead to where the nodes are then */
    fprintf(stderr, "%s\n", MAM_LastError());
    return 1;
  }
  printf("%zu bytes in pages of nodes before, %zu after\n", info.bytes_before, info.bytes_after);
  MAM_HeapTrim(heap, 0); /* empty superblocks go to the pool */
  MAM_HeapDestroy(heap);
  return MAM_CudaFree(heads) == cudaSuccess ? 0 : 1;
}
