/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The public functions that look at a device heap: its numbers, its live blocks, a report, the bytes of a block,
 * whether an address lies in it.
 *
 *   table_take       view_take        the public function
 *   superblocks -->  their       -->  numbers, blocks, a report
 *                    metadata
 *
 * A look holds the heap's lock while it copies, and works on the copy (heap_view.h) without it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/library_call.h"
#include "heap/heap_host.h"
#include "heap/heap_view.h"

/* ---- A look ---- */

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

/* ---- What it shows ---- */

cudaError_t MAM_HeapGetInfo(MAM_Heap heap, MAM_HeapInfo *info) {
  LIBRARY_CALL;
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
  LIBRARY_CALL;
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
  LIBRARY_CALL;
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

/* ---- An address ---- */

cudaError_t MAM_HeapContains(MAM_Heap heap, const void *address, int *contains) {
  LIBRARY_CALL;
  cudaError_t error = heap_check(heap);
  if (error == cudaSuccess)
    error = heap_check_memory(heap);
  if (error != cudaSuccess)
    return error;
  if (contains == NULL)
    return error_set(cudaErrorInvalidValue, "contains is NULL");
  struct table table;
  table_take(heap, &table);
  *contains = 0;
  for (mam__u32 i = 0; i < table.count && *contains == 0; i++)
    *contains = (int)mam__area_has(&table.areas[i], (mam__u64)(uintptr_t)address);
  return cudaSuccess;
}

/* ---- A pool's heaps ---- */

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
  LIBRARY_CALL;
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

/* ---- A copy of a block ---- */

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
  LIBRARY_CALL;
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
