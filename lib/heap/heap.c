/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device heaps as the host sees them: memory of a pool, laid out by heap_core.h, worked on by heap_gpu.h and looked at
 * by heap_view.h.
 *
 * A heap's first superblock begins with its control block (kernels know its address), the homes and the slots; then
 * come its metadata and its pages.  All of it is the GPU's; what is here is what only the host needs.
 *
 * Above the API floor: memory is taken and given back as any caller does, so that it counts among a pool's live blocks.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/error.h"
#include "base/locked.h"
#include "heap/heap_host.h"
#include "heap/heap_view.h"
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

static cudaError_t check_options(const MAM_HeapOptions *options) {
  if (options->struct_size != sizeof *options)
    return error_set(cudaErrorInvalidValue, "struct_size %zu is not sizeof(MAM_HeapOptions)", options->struct_size);
  if (options->bytes < HEAP_LEAST_BYTES)
    return error_set(cudaErrorInvalidValue, "a heap of %zu bytes is too small: the least size is %d bytes",
                     options->bytes, HEAP_LEAST_BYTES);
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
  NOT_CANCELLED;
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
  created->pool = pool;
  created->limit_bytes = options->limit_bytes != 0 ? options->limit_bytes : options->bytes;
  created->grow_bytes = options->grow_bytes;
  created->process = getpid();
  locks_init(created);
  error = create_in_pool(created, options);
  if (error != cudaSuccess) {
    locks_destroy(created);
    free(created);
    return error;
  }
  heap_list_add(created);
  *heap = created;
  return cudaSuccess;
}

cudaError_t MAM_HeapDestroy(MAM_Heap heap) {
  NOT_CANCELLED;
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
  locks_destroy(heap);
  free(heap);
  return error;
}

cudaError_t MAM_HeapHandle(MAM_Heap heap, mam_device_heap *handle) {
  NOT_CANCELLED;
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
  NOT_CANCELLED;
  cudaError_t error = heap_enter(heap);
  if (error != cudaSuccess)
    return error;
  pthread_mutex_lock(&heap->superblocks_lock);
  error = heap_grow_locked(heap, bytes, false);
  if (error == cudaSuccess)
    error = heap_growth_reopen_locked(heap);
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
  NOT_CANCELLED;
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
  NOT_CANCELLED;
  cudaError_t error = heap_enter(heap);
  return error == cudaSuccess ? heap_leave(heap, reset_locked(heap)) : error;
}

/* ---- Seeing in ---- */

/* Bytes of metadata of a superblock, from its first word's neighbour on. */
static size_t area_metadata_bytes(struct mam__area area) { return (size_t)mam__area_metadata_bytes(area.page_count); }

static void view_free(struct heap_view *view) {
  for (mam__u32 i = 0; i < view->count; i++)
    free(mam__area_metadata(view->areas[i]));
  free(view->control);
}

/* The superblocks at one moment. */
struct table {
  mam__u32 count;
  struct mam__area areas[MAM_HEAP_SUPERBLOCKS];
  size_t reserved_bytes;
  uint64_t growth_count;
};

static void table_take(struct mam_heap_host *heap, struct table *table) {
  pthread_mutex_lock(&heap->superblocks_lock);
  table->count = heap->count;
  memcpy(table->areas, heap->areas, heap->count * sizeof heap->areas[0]);
  table->reserved_bytes = heap->reserved_bytes;
  table->growth_count = heap->growth_count;
  pthread_mutex_unlock(&heap->superblocks_lock);
}

/* Copies everything that kernels know about the heap; undone by view_free. */
static cudaError_t view_take(struct mam_heap_host *heap, const struct table *table, struct heap_view *view) {
  size_t bytes = (size_t)mam__control_bytes(&heap->handle);
  cudaError_t error = cudaSuccess;
  memset(view, 0, sizeof *view);
  view->control = malloc(bytes);
  if (view->control != NULL)
    error = heap_gpu_read(&heap->gpu, view->control, (mam__u64)(uintptr_t)heap->handle.control, bytes);
  for (; error == cudaSuccess && view->control != NULL && view->count < table->count; view->count++) {
    struct mam__area area = table->areas[view->count];
    mam__u64 *copy = malloc(area_metadata_bytes(area));
    if (copy == NULL)
      break;
    view->areas[view->count] = mam__area_copied(area, copy);
    error = heap_gpu_read(&heap->gpu, copy, (mam__u64)(uintptr_t)mam__area_metadata(area), area_metadata_bytes(area));
  }
  if (error == cudaSuccess && (view->control == NULL || view->count < table->count))
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a copy of the heap's metadata");
  if (error != cudaSuccess) {
    view_free(view);
    return error;
  }
  view->slots = mam__slots(view->control);
  heap_view_settle(view);
  return cudaSuccess;
}

static void fill_info(const struct table *table, const struct heap_view *view, MAM_HeapInfo *info) {
  heap_view_info(view, info);
  info->struct_size = sizeof *info;
  info->reserved_bytes = table->reserved_bytes;
  info->metadata_bytes = table->reserved_bytes - info->page_count * (size_t)MAM__PAGE_BYTES;
  info->growth_count = table->growth_count;
}

/* ---- Blocks that are live ---- */

struct listing {
  MAM_HeapBlock *blocks;
  size_t capacity, count;
};

static bool list_block(void *closure, uint64_t address, uint64_t bytes) {
  struct listing *listing = closure;
  if (listing->count < listing->capacity)
    listing->blocks[listing->count] = (MAM_HeapBlock){.address = (void *)(uintptr_t)address, .bytes = (size_t)bytes};
  listing->count++;
  return true;
}

/* All of them with what is recorded of them: an array of info->live_count for the caller to free, and the numbers. */
static cudaError_t recorded_take(struct mam_heap_host *heap, const struct heap_view *view, MAM_HeapInfo *info,
                                 MAM_HeapBlock **blocks) {
  struct listing listing = {calloc(info->live_count + 1, sizeof(MAM_HeapBlock)), info->live_count, 0};
  if (listing.blocks == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap's blocks");
  heap_view_walk(view, list_block, &listing);
  cudaError_t error = heap_records_read(heap->records, &heap->gpu, heap->pool, listing.blocks, info->live_count);
  if (error != cudaSuccess) {
    free(listing.blocks);
    return error;
  }
  heap_view_records(listing.blocks, info->live_count, info);
  *blocks = listing.blocks;
  return cudaSuccess;
}

/* A heap at one moment. */
struct look {
  struct heap_view view;
  MAM_HeapInfo info;
  MAM_HeapBlock *recorded; /* info.live_count; NULL: the heap has no records */
};

static void look_end(struct look *look) {
  view_free(&look->view);
  free(look->recorded);
}

/* Takes the heap's lock only meanwhile.  Undone by look_end. */
static cudaError_t look_begin(MAM_Heap heap, struct look *look) {
  cudaError_t error = heap_enter(heap);
  if (error != cudaSuccess)
    return error;
  struct table table;
  table_take(heap, &table);
  look->recorded = NULL;
  error = view_take(heap, &table, &look->view);
  if (error == cudaSuccess) {
    fill_info(&table, &look->view, &look->info);
    if (heap->records != NULL)
      error = recorded_take(heap, &look->view, &look->info, &look->recorded);
    if (error != cudaSuccess)
      view_free(&look->view);
  }
  return heap_leave(heap, error);
}

cudaError_t MAM_HeapGetInfo(MAM_Heap heap, MAM_HeapInfo *info) {
  NOT_CANCELLED;
  if (info == NULL || info->struct_size < sizeof info->struct_size)
    return error_set(cudaErrorInvalidValue, "info is NULL or its struct_size is too small");
  struct look look;
  size_t size = info->struct_size < sizeof look.info ? info->struct_size : sizeof look.info;
  cudaError_t error = look_begin(heap, &look);
  if (error != cudaSuccess)
    return error;
  look_end(&look);
  look.info.struct_size = info->struct_size;
  memcpy(info, &look.info, size);
  return cudaSuccess;
}

cudaError_t MAM_HeapList(MAM_Heap heap, MAM_HeapBlock *blocks, size_t capacity, size_t *count) {
  NOT_CANCELLED;
  if (count == NULL || (blocks == NULL && capacity != 0))
    return error_set(cudaErrorInvalidValue, "count is NULL, or blocks is NULL and capacity is not 0");
  struct look look;
  struct listing listing = {blocks, capacity, 0};
  cudaError_t error = look_begin(heap, &look);
  if (error != cudaSuccess)
    return error;
  heap_view_walk(&look.view, list_block, &listing);
  if (look.recorded != NULL && capacity != 0)
    memcpy(blocks, look.recorded, (capacity < listing.count ? capacity : listing.count) * sizeof *blocks);
  look_end(&look);
  *count = listing.count;
  return cudaSuccess;
}

cudaError_t MAM_HeapReport(MAM_Heap heap, char **json) {
  NOT_CANCELLED;
  if (json == NULL)
    return error_set(cudaErrorInvalidValue, "json is NULL");
  struct look look;
  cudaError_t error = look_begin(heap, &look);
  if (error != cudaSuccess)
    return error;
  char *text = heap_view_report(&look.view, &look.info, look.recorded);
  look_end(&look);
  if (text == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for the heap's report");
  *json = text;
  return cudaSuccess;
}

/* ---- The pool ---- */

static cudaError_t share_of_heaps(MAM_Pool pool, MAM_HeapShare *share) {
  for (struct mam_heap_host *heap = heap_visit_next(NULL, pool); heap != NULL; heap = heap_visit_next(heap, pool)) {
    MAM_HeapInfo info = {.struct_size = sizeof info};
    cudaError_t error = MAM_HeapGetInfo(heap, &info);
    if (error != cudaSuccess) {
      heap_visit_end(heap);
      return error;
    }
    share->heap_count++;
    share->heap_bytes += info.reserved_bytes + (heap->records != NULL ? MAM__SITES * sizeof(struct mam__site) : 0);
    share->heap_used_bytes += info.used_bytes;
    share->heap_free_bytes += info.free_bytes;
  }
  return cudaSuccess;
}

cudaError_t MAM_HeapGetShare(MAM_Pool pool, MAM_HeapShare *share) {
  NOT_CANCELLED;
  if (share == NULL || share->struct_size < sizeof share->struct_size)
    return error_set(cudaErrorInvalidValue, "share is NULL or its struct_size is too small");
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_HeapShare filled = {.struct_size = share->struct_size};
  cudaError_t error = MAM_PoolGetInfo(pool, &info);
  if (error == cudaSuccess && pool == NULL && info.used_bytes != 0) /* it is there, then */
    error = MAM_PoolDefault(&pool);
  if (error == cudaSuccess && pool != NULL)
    error = share_of_heaps(pool, &filled);
  if (error != cudaSuccess)
    return error;
  filled.reserved_bytes = info.reserved_bytes;
  filled.waiting_bytes = info.waiting_bytes;
  filled.free_bytes = info.free_bytes;
  filled.call_bytes = info.used_bytes - filled.heap_bytes;
  filled.heap_metadata_bytes = filled.heap_bytes - filled.heap_used_bytes - filled.heap_free_bytes;
  memcpy(share, &filled, share->struct_size < sizeof filled ? share->struct_size : sizeof filled);
  return cudaSuccess;
}

/* ---- Blocks ---- */

struct range {
  uint64_t from, end;
  bool inside; /* a live block */
};

static bool find_range(void *closure, uint64_t address, uint64_t bytes) {
  struct range *range = closure;
  range->inside = range->inside || (address <= range->from && range->end <= address + bytes);
  return !range->inside;
}

cudaError_t MAM_HeapCopy(MAM_Heap heap, void *to, const void *from, size_t bytes) {
  NOT_CANCELLED;
  struct range range = {(uint64_t)(uintptr_t)from, (uint64_t)(uintptr_t)from + bytes, false};
  if (to == NULL || range.end < range.from)
    return error_set(cudaErrorInvalidValue, "to is NULL, or %zu bytes go past the end of the address space", bytes);
  struct look look;
  cudaError_t error = look_begin(heap, &look);
  if (error != cudaSuccess)
    return error;
  heap_view_walk(&look.view, find_range, &range);
  look_end(&look);
  if (!range.inside)
    return error_set(cudaErrorInvalidValue, "%zu bytes at %p are not in one live block of the heap", bytes, from);
  return heap_gpu_read(&heap->gpu, to, range.from, bytes);
}

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
  NOT_CANCELLED;
  cudaError_t error = heap_enter(heap);
  if (error != cudaSuccess)
    return error;
  return heap_leave(heap, block == NULL ? cudaSuccess : free_locked(heap, block));
}
