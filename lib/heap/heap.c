/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device heaps as the host sees them: memory of a pool, laid out by heap_core.h, worked on by heap_gpu.h.  heap_look.c
 * looks at them.
 *
 * A heap's first superblock begins with its control block (kernels know its address), the homes and the slots; then
 * come its metadata and its pages.  All of it is the GPU's; what is here is what only the host needs.
 *
 * Above the API floor: memory is taken and given back as any caller does, so that it counts among a pool's live blocks.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/library_call.h"
#include "base/locked.h"
#include "heap/heap_host.h"
#include "pool/pool.h"

/* The control block begins at a multiple of this. */
enum { ALIGNMENT_BYTES = 64 };

/* The longest wait_ms that is accepted: an hour.  A longer one is taken for a mistake. */
enum { WAIT_MOST_MS = 3600000 };

/* ---- Work on the GPU ---- */

static cudaError_t clear_area(const struct mam_heap_host *heap, struct mam__area area) {
  void *arguments[] = {&area};
  return heap_gpu_run(&heap->gpu, HEAP_KERNEL_CLEAR, (size_t)area.page_count * MAM__PAGE_WORDS, arguments);
}

/* A kernel whose argument is the control block alone. */
static cudaError_t run_on_control(const struct mam_heap_host *heap, enum heap_kernel kernel) {
  mam__u64 control = (mam__u64)(uintptr_t)heap->handle.control;
  void *arguments[] = {&control};
  return heap_gpu_run(&heap->gpu, kernel, (size_t)heap->handle.slot_count * MAM__HEAP_KINDS, arguments);
}

/* ---- Creating and destroying ---- */

static bool is_on_a_gpu(const struct mam_pool *pool) {
  const struct source_operations *operations = pool->source.operations;
  return operations == &source_device || operations == &source_vmm || operations == &source_managed;
}

/* Writes an empty heap to the first superblock. */
static cudaError_t begin(struct mam_heap_host *heap, mam__u32 patience) {
  struct mam__heap_control control;
  mam__u64 address = ((mam__u64)(uintptr_t)heap->memory[0] + ALIGNMENT_BYTES - 1) & ~(mam__u64)(ALIGNMENT_BYTES - 1);
  mam__u64 end = (mam__u64)(uintptr_t)heap->memory[0] + heap->bytes[0];
  memset(&control, 0, sizeof control);
  mam__heap_tune(&control.heap, heap->bytes[0], heap->gpu.multiprocessors);
  mam__u64 area_at = address + mam__control_bytes(&control.heap);
  struct mam__area area = mam__area_place(area_at, end > area_at ? end - area_at : 0);
  if (area.page_count == 0)
    return error_set(cudaErrorInvalidValue, "%zu bytes are too few for a heap on this GPU", heap->bytes[0]);
  mam__control_begin(&control, address, area);
  if (heap->bell != NULL) {
    heap->round = 1;
    control.growth.bell = (mam__u64 *)(uintptr_t)heap->bell->word_on_device;
    control.growth.patience = patience;
    control.growth.reply = mam__round_of(heap->round, 0);
  }
  if (heap->records != NULL)
    control.sites = heap->records->sites;
  control.heap.number = heap->handle.number;
  heap->handle = control.heap;
  heap->areas[0] = area;
  cudaError_t error = heap_gpu_write(&heap->gpu, address, &control, sizeof control);
  if (error == cudaSuccess)
    error = clear_area(heap, area);
  return error == cudaSuccess ? run_on_control(heap, HEAP_KERNEL_CLEAR_SLOTS) : error;
}

/* What it takes to grow, if the heap may. */
static cudaError_t open_growth(struct mam_heap_host *heap) {
  const struct context *context = &heap->pool->source.context;
  if (heap->limit_bytes == heap->bytes[0])
    return cudaSuccess;
  cudaError_t error = heap_gpu_open(context, &heap->growing);
  heap->can_grow = error == cudaSuccess;
  return error == cudaSuccess && heap->grow_bytes != 0 ? heap_bell_take(context, &heap->bell) : error;
}

static void close_gpu(struct mam_heap_host *heap) {
  heap_growth_end(heap);
  if (heap->bell != NULL)
    heap_bell_give(heap->bell);
  if (heap->can_grow)
    heap_gpu_close(&heap->growing);
  heap_gpu_close(&heap->gpu);
}

/* The pool is there for as long as the first superblock is. */
static cudaError_t create_in_pool(struct mam_heap_host *heap, const MAM_HeapOptions *options) {
  cudaError_t error = heap_memory_take(heap, options->bytes, false);
  if (error != cudaSuccess)
    return error;
  heap->generation = heap->pool->generation;
  if (!is_on_a_gpu(heap->pool))
    error = error_set(cudaErrorNotSupported, "a device heap needs a pool of GPU memory");
  if (error == cudaSuccess)
    error = heap_gpu_open(&heap->pool->source.context, &heap->gpu);
  if (error != cudaSuccess)
    goto give_back;
  error = open_growth(heap);
  if (error == cudaSuccess && options->records != 0)
    error = heap_records_begin(&heap->gpu, heap->pool, &heap->records);
  if (error == cudaSuccess)
    error = begin(heap, (mam__u32)(((mam__u64)options->wait_ms * 1000000 + (1 << 20) - 1) >> 20));
  if (error == cudaSuccess && heap->bell != NULL)
    error = heap_growth_begin(heap);
  if (error == cudaSuccess)
    return cudaSuccess;
  close_gpu(heap);
  heap_records_end(heap->records, true);

give_back:
  (void)heap_memory_give(heap);
  return error;
}

/* No GPU has as much. */
static const size_t heap_most_bytes = (size_t)3 << 40;

static cudaError_t check_options(const MAM_HeapOptions *options) {
  if (options->struct_size != sizeof *options)
    return error_set(cudaErrorInvalidValue, "struct_size %zu is not sizeof(MAM_HeapOptions)", options->struct_size);
  if (options->bytes < HEAP_LEAST_BYTES)
    return error_set(cudaErrorInvalidValue, "a heap of %zu bytes is too small: the least size is %d bytes",
                     options->bytes, HEAP_LEAST_BYTES);
  if (options->bytes > heap_most_bytes)
    return error_set(cudaErrorInvalidValue, "a heap of %zu bytes is too large: the largest size is %zu bytes",
                     options->bytes, heap_most_bytes);
  if (options->limit_bytes != 0 && options->limit_bytes < options->bytes)
    return error_set(cudaErrorInvalidValue, "limit_bytes %zu is less than bytes %zu", options->limit_bytes,
                     options->bytes);
  if (options->grow_bytes != 0 && options->grow_bytes < HEAP_LEAST_BYTES)
    return error_set(cudaErrorInvalidValue, "grow_bytes %zu is less than %d", options->grow_bytes, HEAP_LEAST_BYTES);
  if (options->grow_bytes != 0 && options->limit_bytes <= options->bytes)
    return error_set(cudaErrorInvalidValue, "grow_bytes is set, but limit_bytes is not more than bytes");
  if (options->records > 1)
    return error_set(cudaErrorInvalidValue, "records is %u: it must be 0 or 1", options->records);
  if (options->wait_ms > WAIT_MOST_MS)
    return error_set(cudaErrorInvalidValue, "wait_ms %u is more than %d", options->wait_ms, WAIT_MOST_MS);
  return cudaSuccess;
}

static void locks_init(struct mam_heap_host *heap) {
  (void)pthread_mutex_init(&heap->lock, NULL);
  (void)pthread_mutex_init(&heap->superblocks_lock, NULL);
}

static void locks_destroy(struct mam_heap_host *heap) {
  (void)pthread_mutex_destroy(&heap->superblocks_lock);
  (void)pthread_mutex_destroy(&heap->lock);
}

cudaError_t MAM_HeapCreate(MAM_Heap *heap, MAM_Pool pool, const MAM_HeapOptions *options) {
  LIBRARY_CALL;
  static const MAM_HeapOptions defaults = MAM_HEAP_OPTIONS_INIT;
  options = options == NULL ? &defaults : options;
  cudaError_t error = heap == NULL ? error_set(cudaErrorInvalidValue, "heap is NULL") : check_options(options);
  if (error == cudaSuccess)
    error = heap_gpu_known();
  if (error == cudaSuccess && pool == NULL)
    error = MAM_PoolDefault(&pool);
  if (error != cudaSuccess)
    return error;
  struct mam_heap_host *created = calloc(1, sizeof *created);
  if (created == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap");
  heap_list_set_up();
  error = heap_number_take(&created->handle.number);
  if (error != cudaSuccess) {
    free(created);
    return error;
  }
  created->pool = pool;
  created->limit_bytes = options->limit_bytes != 0 ? options->limit_bytes : options->bytes;
  created->grow_bytes = options->grow_bytes;
  created->process = getpid();
  locks_init(created);
  error = create_in_pool(created, options);
  if (error != cudaSuccess) {
    heap_number_give(created->handle.number);
    locks_destroy(created);
    free(created);
    return error;
  }
  heap_list_add(created);
  *heap = created;
  return cudaSuccess;
}

cudaError_t MAM_HeapDestroy(MAM_Heap heap) {
  LIBRARY_CALL;
  if (heap == NULL)
    return cudaSuccess;
  cudaError_t error = heap_check(heap);
  if (error != cudaSuccess)
    return error;
  heap_list_remove(heap);
  heap_growth_end(heap);
  bool gives = heap_has_memory(heap);
  heap_compact_free(heap->compact, &heap->gpu, gives);
  close_gpu(heap);
  heap_records_end(heap->records, gives);
  while (gives && heap->count != 0) {
    cudaError_t given = heap_memory_give(heap);
    error = error != cudaSuccess ? error : given;
  }
  heap_number_give(heap->handle.number);
  locks_destroy(heap);
  free(heap);
  return error;
}

cudaError_t MAM_HeapHandle(MAM_Heap heap, mam_device_heap *handle) {
  LIBRARY_CALL;
  cudaError_t error = heap_check(heap);
  if (error != cudaSuccess)
    return error;
  error = heap_check_memory(heap);
  if (error != cudaSuccess)
    return error;
  if (handle == NULL)
    return error_set(cudaErrorInvalidValue, "handle is NULL");
  *handle = heap->handle;
  return cudaSuccess;
}

/* ---- Growing, shrinking, emptying ---- */

cudaError_t MAM_HeapGrow(MAM_Heap heap, size_t bytes) {
  LIBRARY_CALL;
  cudaError_t error = heap_enter(heap);
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&heap->superblocks_lock);
  error = heap_grow_locked(heap, bytes, false);
  if (error == cudaSuccess) /* a failure changes nothing any more: kernels that were refused ask at the next growth */
    (void)heap_growth_reopen_locked(heap);
  pthread_mutex_unlock(&heap->superblocks_lock);
  return heap_leave(heap, error);
}

/* Whether no page of the last superblock is taken. */
static cudaError_t last_is_empty(struct mam_heap_host *heap, bool *empty) {
  struct mam__area area = heap->areas[heap->count - 1];
  size_t words = mam__area_map_words(area);
  mam__u64 *map = malloc(words * sizeof *map);
  if (map == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for the map of a superblock");
  cudaError_t error = heap_gpu_read(&heap->gpu, map, (mam__u64)(uintptr_t)mam__area_pages(area), words * sizeof *map);
  *empty = error == cudaSuccess;
  for (size_t i = 0; i < words && *empty; i++)
    *empty = map[i] == mam__map_open_word(area.page_count, (mam__u32)i);
  free(map);
  return error;
}

static cudaError_t trim_locked(struct mam_heap_host *heap, size_t keep_bytes) {
  lock_held(&heap->superblocks_lock);
  bool empty = true;
  mam__u32 before = heap->count;
  cudaError_t error = run_on_control(heap, HEAP_KERNEL_DRAIN);
  while (error == cudaSuccess && empty && heap->count > 1 && heap->reserved_bytes > keep_bytes) {
    error = last_is_empty(heap, &empty);
    if (error != cudaSuccess || !empty)
      break;
    error = heap_shrink_locked(heap, heap->count - 1);
    if (error == cudaSuccess)
      error = heap_memory_give(heap);
  }
  return error == cudaSuccess && heap->count < before ? heap_growth_reopen_locked(heap) : error;
}

cudaError_t MAM_HeapTrim(MAM_Heap heap, size_t keep_bytes) {
  LIBRARY_CALL;
  cudaError_t error = heap_enter(heap);
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&heap->superblocks_lock);
  error = trim_locked(heap, keep_bytes);
  pthread_mutex_unlock(&heap->superblocks_lock);
  return heap_leave(heap, error);
}

static cudaError_t reset_locked(struct mam_heap_host *heap) {
  lock_held(&heap->lock);
  cudaError_t error = run_on_control(heap, HEAP_KERNEL_CLEAR_SLOTS);
  for (mam__u32 i = 0; i < heap->count && error == cudaSuccess; i++)
    error = clear_area(heap, heap->areas[i]);
  return error;
}

cudaError_t MAM_HeapReset(MAM_Heap heap) {
  LIBRARY_CALL;
  cudaError_t error = heap_enter(heap);
  return error == cudaSuccess ? heap_leave(heap, reset_locked(heap)) : error;
}

/* ---- A block's free ---- */

static cudaError_t free_locked(struct mam_heap_host *heap, void *block) {
  lock_held(&heap->lock);
  mam__u64 control = (mam__u64)(uintptr_t)heap->handle.control, address = (mam__u64)(uintptr_t)block, freed = 0;
  void *arguments[] = {&control, &address};
  cudaError_t error = heap_gpu_run(&heap->gpu, HEAP_KERNEL_FREE, 1, arguments);
  if (error == cudaSuccess)
    error = heap_gpu_read(&heap->gpu, &freed, (mam__u64)(uintptr_t)&heap->handle.control->answer, sizeof freed);
  if (error == cudaSuccess && freed == 0)
    error = error_set(cudaErrorInvalidValue, "no live block of the heap begins at %p", block);
  return error;
}

cudaError_t MAM_HeapFree(MAM_Heap heap, void *block) {
  LIBRARY_CALL;
  cudaError_t error = heap_enter(heap);
  if (error != cudaSuccess)
    return error;
  return heap_leave(heap, block == NULL ? cudaSuccess : free_locked(heap, block));
}
