/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_heap_allocators.h"

#include <stdio.h>
#include <string.h>

#include "bench_clock.h"
#include "mam.h"
#include "mam/heap.h"

enum { malloc_heap_limit = 2 /* CU_LIMIT_MALLOC_HEAP_SIZE */, list_arena_threads = 256 };

/* ---- Plain memory: the floor and the lists ----------------------------------------------------------------------- */

static bool memory_open(struct heap *heap) {
  if (!gpu_accept(heap->gpu, heap->gpu->driver->cuMemAlloc(&heap->memory, heap->bytes), "cuMemAlloc"))
    return false;
  heap->low = heap->handle[0] = heap->memory;
  heap->handle[1] = heap->bytes;
  heap->high = heap->low + heap->bytes;
  return true;
}

static void memory_close(struct heap *heap) {
  if (heap->memory != 0)
    (void)heap->gpu->driver->cuMemFree(heap->memory);
}

static bool list_reset(struct heap *heap) {
  void *parameters[] = {heap->handle};
  return gpu_run(heap->gpu, heap->prepare, list_arena_threads, parameters);
}

static bool list_open(struct heap *heap) {
  if (!memory_open(heap) || !gpu_function(heap->gpu, heap->module, "heap_prepare", &heap->prepare) ||
      !gpu_function(heap->gpu, heap->module, "heap_survey", &heap->look_free))
    return false;
  uint64_t start_ns = clock_now_ns();
  if (!list_reset(heap))
    return false;
  heap->create_us = clock_span_ns(start_ns, clock_now_ns()) / 1e3;
  return true;
}

static bool list_survey(struct heap *heap, struct heap_survey *survey) {
  CUdeviceptr counts = heap->gpu->scratch;
  void *parameters[] = {heap->handle, &counts};
  return gpu_clear(heap->gpu, counts, sizeof *survey) &&
         gpu_run(heap->gpu, heap->look_free, list_arena_threads, parameters) &&
         gpu_read(heap->gpu, survey, counts, sizeof *survey);
}

/* ---- CUDA's own -------------------------------------------------------------------------------------------------- */

/* The limit can only be set once, before the first kernel that allocates. */
static bool cuda_open(struct heap *heap) {
  heap->high = ~(heap_word)0;
  return gpu_accept(heap->gpu, heap->gpu->driver->cuCtxSetLimit(malloc_heap_limit, heap->bytes), "cuCtxSetLimit");
}

static void cuda_close(struct heap *heap) { (void)heap; }

/* ---- Ours -------------------------------------------------------------------------------------------------------- */

static const size_t pool_slack_bytes = (size_t)4 << 20; /* for the heap's own data and rounding */

static bool mam_accept(cudaError_t error, const char *what) {
  if (error != cudaSuccess)
    (void)fprintf(stderr, "mam-bench: heap: %s: error %d: %s\n", what, (int)error, MAM_LastError());
  return error == cudaSuccess;
}

/* The pool is one piece of device memory, whose ends the driver knows. */
static bool mam_pool_open(struct heap *heap) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = heap->bytes + pool_slack_bytes;
  return mam_accept(MAM_PoolCreate((MAM_Pool *)&heap->pool, &options), "MAM_PoolCreate");
}

/* Learns the ends of the chunk from a block of the pool. */
static bool mam_ends_learn(struct heap *heap) {
  const struct driver *driver = heap->gpu->driver;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  void *block = NULL;
  unsigned char first;
  if (!mam_accept(MAM_PoolMalloc(heap->pool, &block, 512), "MAM_PoolMalloc") ||
      !gpu_accept(heap->gpu, driver->cuMemGetAddressRange(&base, &bytes, (CUdeviceptr)block), "cuMemGetAddressRange"))
    return false;
  heap->low = base;
  heap->high = base + bytes;
  /* The first work waits until the driver has cleared the memory: 1.7 ms for 8 GiB. */
  return gpu_read(heap->gpu, &first, (CUdeviceptr)block, sizeof first) &&
         mam_accept(MAM_CudaFree(block), "MAM_CudaFree");
}

static bool mam_grow(struct heap *heap, size_t superblock_bytes) {
  for (unsigned i = 1; i < heap->superblocks; i++)
    if (!mam_accept(MAM_HeapGrow(heap->own, superblock_bytes), "MAM_HeapGrow"))
      return false;
  return true;
}

static bool mam_open(struct heap *heap) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = heap->bytes / heap->superblocks;
  options.limit_bytes = heap->bytes;
  if (!mam_pool_open(heap) || !mam_ends_learn(heap))
    return false;
  uint64_t start_ns = clock_now_ns();
  if (!mam_accept(MAM_HeapCreate((MAM_Heap *)&heap->own, heap->pool, &options), "MAM_HeapCreate"))
    return false;
  heap->create_us = clock_span_ns(start_ns, clock_now_ns()) / 1e3;
  _Static_assert(sizeof heap->handle >= sizeof(mam_device_heap), "the handle has to fit");
  mam_device_heap handle;
  if (!mam_grow(heap, options.bytes) || !mam_accept(MAM_HeapHandle(heap->own, &handle), "MAM_HeapHandle"))
    return false;
  memcpy(heap->handle, &handle, sizeof handle);
  return true;
}

static void mam_close(struct heap *heap) {
  if (heap->own != NULL)
    (void)mam_accept(MAM_HeapDestroy(heap->own), "MAM_HeapDestroy");
  if (heap->pool != NULL)
    (void)mam_accept(MAM_PoolDestroy(heap->pool), "MAM_PoolDestroy");
}

static bool mam_reset(struct heap *heap) { return mam_accept(MAM_HeapReset(heap->own), "MAM_HeapReset"); }

static bool mam_survey(struct heap *heap, struct heap_survey *survey) {
  MAM_HeapInfo info = {.struct_size = sizeof info};
  if (!mam_accept(MAM_HeapGetInfo(heap->own, &info), "MAM_HeapGetInfo"))
    return false;
  *survey = (struct heap_survey){info.free_bytes, info.largest_free_bytes, info.metadata_bytes};
  return true;
}

/* ---- The list ---------------------------------------------------------------------------------------------------- */

static const struct heap_allocator allocators[] = {
    {.name = "MAM",
     .image = "mam",
     .hands_out = true,
     .requests_most = (size_t)1 << 22,
     .open = mam_open,
     .close = mam_close,
     .reset = mam_reset,
     .survey = mam_survey},
    {.name = "floor", .image = "floor", .requests_most = (size_t)1 << 22, .open = memory_open, .close = memory_close},
    {.name = "one-atomic",
     .image = "atomic",
     .requests_most = (size_t)1 << 22,
     .open = memory_open,
     .close = memory_close},
    {.name = "CUDA",
     .image = "cuda",
     .hands_out = true,
     .guarded = true,
     .fixed = true,
     .slow = true,
     .requests_most = (size_t)1 << 20,
     .open = cuda_open,
     .close = cuda_close},
    {.name = "mp-lists",
     .image = "mp_lists",
     .hands_out = true,
     .slow = true,
     .requests_most = (size_t)1 << 17,
     .open = list_open,
     .close = memory_close,
     .reset = list_reset,
     .survey = list_survey},
    {.name = "size-list",
     .image = "size_list",
     .hands_out = true,
     .slow = true,
     .requests_most = (size_t)1 << 12,
     .open = list_open,
     .close = memory_close,
     .reset = list_reset,
     .survey = list_survey},
};

size_t heap_allocators_get(const struct heap_allocator *list[heap_allocators_most]) {
  size_t count = 0;
  _Static_assert(sizeof allocators / sizeof allocators[0] <= heap_allocators_most, "the list has to fit");
  for (size_t i = 0; i < sizeof allocators / sizeof allocators[0]; i++)
    if (gpu_image(allocators[i].image) != NULL)
      list[count++] = &allocators[i];
  return count;
}

/* ---- A heap ------------------------------------------------------------------------------------------------------ */

static bool heap_kernels_load(struct heap *heap) {
  const struct heap_gpu *gpu = heap->gpu;
  return gpu_module_open(gpu, heap->allocator->image, &heap->module) &&
         gpu_function(gpu, heap->module, "heap_malloc", &heap->malloc) &&
         gpu_function(gpu, heap->module, "heap_free", &heap->free) &&
         gpu_function(gpu, heap->module, "heap_churn", &heap->churn) &&
         gpu_function(gpu, heap->module, "heap_churn_timed", &heap->churn_timed) &&
         gpu_function(gpu, heap->module, "heap_look_inside", &heap->look_inside);
}

/* CUDA's own heap needs this order: its limit is set before its kernels are loaded.  Another heap needs its kernels
 * first. */
bool heap_begin(struct heap *heap, const struct heap_allocator *allocator, const struct heap_gpu *gpu, size_t bytes,
                unsigned superblocks) {
  *heap = (struct heap){.allocator = allocator, .gpu = gpu, .bytes = bytes, .superblocks = superblocks};
  if (allocator->fixed)
    return allocator->open(heap) && heap_kernels_load(heap);
  return heap_kernels_load(heap) && allocator->open(heap);
}

void heap_end(struct heap *heap) {
  if (heap->allocator == NULL)
    return;
  heap->allocator->close(heap);
  if (heap->module != NULL)
    (void)heap->gpu->driver->cuModuleUnload(heap->module);
  *heap = (struct heap){0};
}

bool heap_want(struct heap *heap, const struct heap_allocator *allocator, const struct heap_gpu *gpu, size_t bytes,
               unsigned superblocks) {
  if (heap->allocator == allocator && (allocator->fixed || (heap->bytes == bytes && heap->superblocks == superblocks)))
    return true;
  heap_end(heap);
  return heap_begin(heap, allocator, gpu, bytes, superblocks);
}
