/* SPDX-License-Identifier: BSD-2-Clause */
#include <mam/device.cuh>

#include "gpu_compact_kernels.h"
#include "gpu_kernels.h"

static const unsigned threads_per_block = 128;

static unsigned grid_for(unsigned threads) { return (threads + threads_per_block - 1) / threads_per_block; }

static __device__ unsigned thread_here(void) { return blockIdx.x * blockDim.x + threadIdx.x; }

static __device__ uint32_t *pattern_of(struct gpu_object *object) { return (uint32_t *)(object + 1); }

static __device__ unsigned pattern_words(const struct gpu_objects &objects) {
  return (objects.bytes - (unsigned)sizeof(struct gpu_object)) / 4;
}

static __global__ void create_kernel(mam_device_heap heap, struct gpu_objects objects,
                                     struct gpu_compact_tally *tally) {
  unsigned number = thread_here();
  if (number >= objects.count || objects.table[number] != NULL)
    return;
  struct gpu_object *object = (struct gpu_object *)mam_malloc_typed(heap, objects.type);
  objects.table[number] = object;
  if (object == NULL) {
    atomicAdd(&tally->refused, 1);
    return;
  }
  object->number = number;
  for (unsigned i = 0; i < GPU_COMPACT_LINKS; i++)
    object->links[i] = NULL;
  for (unsigned i = 0; i < pattern_words(objects); i++)
    pattern_of(object)[i] = gpu_pattern_word(number, i);
}

static __global__ void link_kernel(struct gpu_objects objects) {
  unsigned number = thread_here();
  if (number >= objects.count || objects.table[number] == NULL)
    return;
  for (unsigned i = 0; i < GPU_COMPACT_LINKS; i++) {
    unsigned to = objects.links[number * GPU_COMPACT_LINKS + i];
    objects.table[number]->links[i] = to == GPU_COMPACT_NONE ? NULL : objects.table[to];
  }
}

static __global__ void thin_kernel(mam_device_heap heap, struct gpu_objects objects, const unsigned char *keep) {
  unsigned number = thread_here();
  if (number >= objects.count || objects.table[number] == NULL || keep[number] != 0)
    return;
  mam_free(heap, objects.table[number]);
  objects.table[number] = NULL;
}

static __global__ void check_kernel(struct gpu_objects objects, struct gpu_compact_tally *tally) {
  unsigned number = thread_here();
  struct gpu_object *object = number < objects.count ? objects.table[number] : NULL;
  if (object == NULL)
    return;
  atomicAdd(&tally->live, 1);
  if (object->number != number) {
    atomicAdd(&tally->wrong_objects, 1);
    return;
  }
  for (unsigned i = 0; i < GPU_COMPACT_LINKS; i++) {
    unsigned to = objects.links[number * GPU_COMPACT_LINKS + i];
    if (object->links[i] != (to == GPU_COMPACT_NONE ? NULL : objects.table[to]))
      atomicAdd(&tally->wrong_links, 1);
  }
  for (unsigned i = 0; i < pattern_words(objects); i++)
    if (pattern_of(object)[i] != gpu_pattern_word(number, i))
      atomicAdd(&tally->wrong_bytes, 1);
  if (number + 1 < objects.count && objects.table[number + 1] != NULL)
    atomicAdd(&tally->distance, (unsigned long long)llabs((char *)objects.table[number + 1] - (char *)object));
}

static __global__ void forward_kernel(mam_device_heap heap, struct gpu_objects objects) {
  unsigned number = thread_here();
  if (number < objects.count)
    mam_forward(heap, &objects.table[number]);
}

static __global__ void walk_kernel(struct gpu_object **head, unsigned limit, unsigned *numbers) {
  struct gpu_object *at = *head;
  for (unsigned i = 0; i < limit; i++) {
    numbers[i] = at == NULL ? GPU_COMPACT_NONE : (unsigned)at->number;
    at = at == NULL ? NULL : at->links[0];
  }
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

extern "C" cudaError_t gpu_compact_create(mam_device_heap heap, struct gpu_objects objects,
                                          struct gpu_compact_tally *tally) {
  create_kernel<<<grid_for(objects.count), threads_per_block>>>(heap, objects, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_compact_link(struct gpu_objects objects) {
  link_kernel<<<grid_for(objects.count), threads_per_block>>>(objects);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_compact_thin(mam_device_heap heap, struct gpu_objects objects, const unsigned char *keep) {
  thin_kernel<<<grid_for(objects.count), threads_per_block>>>(heap, objects, keep);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_compact_check(struct gpu_objects objects, struct gpu_compact_tally *tally) {
  check_kernel<<<grid_for(objects.count), threads_per_block>>>(objects, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_compact_forward(mam_device_heap heap, struct gpu_objects objects) {
  forward_kernel<<<grid_for(objects.count), threads_per_block>>>(heap, objects);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_compact_walk(struct gpu_object **head, unsigned limit, unsigned *numbers) {
  walk_kernel<<<1, 1>>>(head, limit, numbers);
  return cudaGetLastError();
}
