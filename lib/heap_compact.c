/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation as the host directs it: types and roots, the order of the kernels of compact_kernels.cuh, and the
 * memory that they work in.  All of it under the heap's lock.
 *
 * The GPU is waited for once after each pass, to learn whether another is worth it, except after the last one that is
 * allowed, and once at the end.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "compact_types.h"
#include "error.h"
#include "heap_inside.h"

enum { ALIGN_BYTES = 256 };

struct heap_roots {
  struct heap_roots *next;
  mam_u64 address, count;
};

struct heap_compact {
  mam_u32 types;
  bool is_open;
  struct heap_roots *roots;
  void *memory; /* of the pool; begins with a struct mam_compact */
  size_t memory_bytes;
};

bool heap_compact_is_open(const struct heap_compact *compact) { return compact != NULL && compact->is_open; }

void heap_compact_free(struct heap_compact *compact) {
  if (compact == NULL)
    return;
  while (compact->roots != NULL) {
    struct heap_roots *roots = compact->roots;
    compact->roots = roots->next;
    free(roots);
  }
  if (compact->memory != NULL)
    (void)MAM_CudaFree(compact->memory);
  free(compact);
}

/* As heap_inside_enter, for what is refused while a compaction is under way; *compact is what is known of it. */
static cudaError_t enter(MAM_Heap heap, struct heap_inside *inside, struct heap_compact **compact) {
  cudaError_t error = heap_inside_enter(heap, inside);
  if (error != cudaSuccess)
    return error;
  if (*inside->compact == NULL)
    *inside->compact = calloc(1, sizeof **inside->compact);
  *compact = *inside->compact;
  if (*compact == NULL)
    return heap_inside_leave(heap, error_set(cudaErrorMemoryAllocation, "no host memory for a heap's types"));
  if ((*compact)->is_open)
    return heap_inside_leave(
        heap, error_set(cudaErrorIllegalState, "a compaction of heap %p has begun and not ended", (void *)heap));
  return cudaSuccess;
}

/* ---- Types ---- */

static cudaError_t check_type(const MAM_HeapTypeOptions *options) {
  if (options->struct_size != sizeof *options)
    return error_set(cudaErrorInvalidValue, "struct_size %zu is not sizeof(MAM_HeapTypeOptions)", options->struct_size);
  if (options->bytes == 0 || options->bytes > MAM_CHUNK_BYTES)
    return error_set(cudaErrorInvalidValue, "objects of a type have 1 to %d bytes, not %zu", MAM_CHUNK_BYTES,
                     options->bytes);
  if (options->pointer_count > MAM_TYPE_POINTERS || (options->pointer_count != 0 && options->pointer_offsets == NULL))
    return error_set(cudaErrorInvalidValue, "an object has up to %d pointers, not %zu, and offsets for them",
                     MAM_TYPE_POINTERS, options->pointer_count);
  for (size_t i = 0; i < options->pointer_count; i++) {
    size_t offset = options->pointer_offsets[i];
    if (offset % 8 != 0 || offset > options->bytes || options->bytes - offset < 8)
      return error_set(cudaErrorInvalidValue, "no pointer is at offset %zu of an object of %zu bytes", offset,
                       options->bytes);
  }
  return cudaSuccess;
}

/* Makes the slots of a new kind usable: their spans are used up. */
static cudaError_t write_slots(const struct heap_inside *inside, mam_u32 kind) {
  mam_u32 count = inside->handle->slot_count;
  mam_u64 *slots = malloc(count * sizeof *slots);
  if (slots == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for a type's slots");
  for (mam_u32 i = 0; i < count; i++)
    slots[i] = mam_slot_limit(inside->handle, kind);
  mam_u64 place = (mam_u64)(uintptr_t)inside->handle->slots + (mam_u64)mam_kind_number(kind) * count * sizeof *slots;
  cudaError_t error = heap_gpu_write(inside->gpu, place, slots, count * sizeof *slots);
  free(slots);
  return error;
}

static cudaError_t register_type(const struct heap_inside *inside, struct heap_compact *compact,
                                 const MAM_HeapTypeOptions *options, mam_type *type) {
  struct mam_type_info info = {.bytes = (mam_u32)options->bytes, .pointer_count = (mam_u32)options->pointer_count};
  if (compact->types == MAM_HEAP_TYPES)
    return error_set(cudaErrorMemoryAllocation, "the heap has %d types already", MAM_HEAP_TYPES);
  info.kind = mam_kind_of(mam_class_of(info.bytes), compact->types + 1);
  for (size_t i = 0; i < options->pointer_count; i++)
    info.pointers[i] = (mam_u16)(options->pointer_offsets[i] / 8);
  mam_u64 place = (mam_u64)(uintptr_t)&inside->handle->control->types[compact->types];
  cudaError_t error = write_slots(inside, info.kind);
  if (error == cudaSuccess)
    error = heap_gpu_write(inside->gpu, place, &info, sizeof info);
  if (error != cudaSuccess)
    return error;
  compact->types++;
  *type = info.kind;
  return cudaSuccess;
}

cudaError_t MAM_HeapRegisterType(MAM_Heap heap, const MAM_HeapTypeOptions *options, mam_type *type) {
  struct heap_inside inside;
  struct heap_compact *compact;
  if (options == NULL || type == NULL)
    return error_set(cudaErrorInvalidValue, "options is NULL, or type is");
  cudaError_t error = check_type(options);
  if (error == cudaSuccess)
    error = enter(heap, &inside, &compact);
  return error == cudaSuccess ? heap_inside_leave(heap, register_type(&inside, compact, options, type)) : error;
}

/* ---- Roots ---- */

/* The link to the roots that begin at an address, or to the end of the list. */
static struct heap_roots **find_roots(struct heap_compact *compact, const void *pointers) {
  struct heap_roots **link = &compact->roots;
  while (*link != NULL && (*link)->address != (mam_u64)(uintptr_t)pointers)
    link = &(*link)->next;
  return link;
}

static cudaError_t register_roots(struct heap_compact *compact, const void *pointers, size_t count) {
  struct heap_roots **link = find_roots(compact, pointers);
  if (*link != NULL)
    return error_set(cudaErrorAlreadyAcquired, "roots at %p are registered", pointers);
  struct heap_roots *roots = calloc(1, sizeof *roots);
  if (roots == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for roots");
  roots->address = (mam_u64)(uintptr_t)pointers;
  roots->count = count;
  *link = roots;
  return cudaSuccess;
}

cudaError_t MAM_HeapRegisterRoots(MAM_Heap heap, void *pointers, size_t count) {
  struct heap_inside inside;
  struct heap_compact *compact;
  if (pointers == NULL || (uintptr_t)pointers % 8 != 0 || count == 0)
    return error_set(cudaErrorInvalidValue, "%zu roots at %p", count, pointers);
  cudaError_t error = enter(heap, &inside, &compact);
  return error == cudaSuccess ? heap_inside_leave(heap, register_roots(compact, pointers, count)) : error;
}

static cudaError_t forget_roots(struct heap_compact *compact, const void *pointers) {
  struct heap_roots **link = find_roots(compact, pointers), *roots = *link;
  if (roots == NULL)
    return error_set(cudaErrorInvalidValue, "no roots at %p are registered", pointers);
  *link = roots->next;
  free(roots);
  return cudaSuccess;
}

cudaError_t MAM_HeapForgetRoots(MAM_Heap heap, void *pointers) {
  struct heap_inside inside;
  struct heap_compact *compact;
  cudaError_t error = enter(heap, &inside, &compact);
  return error == cudaSuccess ? heap_inside_leave(heap, forget_roots(compact, pointers)) : error;
}

/* ---- The work ---- */

static mam_u64 aligned(mam_u64 bytes) { return (bytes + ALIGN_BYTES - 1) & ~(mam_u64)(ALIGN_BYTES - 1); }

/* Lays the work out in memory at base; returns how many bytes it needs. */
static mam_u64 lay_out(const struct heap_inside *inside, mam_u32 types, mam_u32 n, mam_u64 base,
                       struct mam_compact *work) {
  *work = (struct mam_compact){.control = inside->handle->control, .types = types, .n = n};
  work->superblocks = inside->count;
  for (mam_u32 i = 0; i < inside->count; i++) {
    work->tiles += (inside->areas[i].page_count + MAM_COMPACT_TILE - 1) / MAM_COMPACT_TILE;
    work->first[i + 1] = work->tiles * MAM_COMPACT_TILE;
  }
  mam_u64 pages = (mam_u64)work->tiles * MAM_COMPACT_TILE, at = base + aligned(sizeof *work);
  work->order = (mam_u32 *)(uintptr_t)at;
  at += pages * sizeof *work->order;
  work->spans = (mam_u32 *)(uintptr_t)at;
  at += pages * sizeof *work->spans;
  work->candidates = (mam_u8 *)(uintptr_t)at;
  at += pages / MAM_COMPACT_GROUP;
  work->sums = (mam_u32 *)(uintptr_t)at;
  return at + aligned((mam_u64)types * work->tiles * sizeof *work->sums) - base;
}

static cudaError_t take_memory(const struct heap_inside *inside, struct heap_compact *compact, size_t bytes) {
  void *memory;
  if (compact->memory_bytes >= bytes)
    return cudaSuccess;
  cudaError_t error = MAM_PoolMalloc(inside->pool, &memory, bytes);
  if (error != cudaSuccess)
    return error;
  if (compact->memory != NULL)
    (void)MAM_CudaFree(compact->memory);
  compact->memory = memory;
  compact->memory_bytes = bytes;
  return cudaSuccess;
}

/* What a compaction needs to know until it is done. */
struct run {
  struct heap_gpu_work gpu;
  struct heap_compact *compact;
  const struct heap_inside *inside;
  struct mam_compact work; /* as it was when it was last read */
  mam_u64 address;         /* of the one on the GPU */
  unsigned pass_limit, pass_count;
};

static void run_kernel(struct run *run, enum heap_kernel kernel, size_t threads) {
  void *arguments[] = {&run->address};
  heap_gpu_work_run(&run->gpu, kernel, threads, arguments);
}

static size_t tile_threads(const struct run *run) { return (size_t)run->work.tiles * MAM_COMPACT_GROUPS; }

static size_t slot_threads(const struct run *run) { return (size_t)run->inside->handle->slot_count * run->work.types; }

static void look(struct run *run, mam_u32 with_spans) {
  void *arguments[] = {&run->address, &with_spans};
  heap_gpu_work_run(&run->gpu, HEAP_KERNEL_COMPACT_LOOK, tile_threads(run), arguments);
  run_kernel(run, HEAP_KERNEL_COMPACT_SUM, MAM_COMPACT_GROUPS);
}

/* Passes until one merges nothing, or as many as are allowed. */
static cudaError_t passes(struct run *run) {
  cudaError_t error = cudaSuccess;
  bool more = true;
  while (more && error == cudaSuccess) {
    mam_u64 merges = run->work.done.merges;
    look(run, run->pass_count == 0);
    run_kernel(run, HEAP_KERNEL_COMPACT_ORDER, tile_threads(run));
    run_kernel(run, HEAP_KERNEL_COMPACT_MERGE, tile_threads(run) * MAM_COMPACT_GROUP);
    run->pass_count++;
    if (run->pass_count == run->pass_limit)
      break;
    heap_gpu_work_read(&run->gpu, &run->work, run->address, sizeof run->work);
    error = heap_gpu_work_wait(&run->gpu);
    more = run->work.done.merges != merges;
  }
  return error;
}

static void rewrite(struct run *run) {
  run_kernel(run, HEAP_KERNEL_COMPACT_REWRITE, SIZE_MAX / 2);
  for (struct heap_roots *roots = run->compact->roots; roots != NULL; roots = roots->next) {
    void *arguments[] = {&run->address, &roots->address, &roots->count};
    heap_gpu_work_run(&run->gpu, HEAP_KERNEL_COMPACT_ROOTS, (size_t)roots->count, arguments);
  }
}

static void release(struct run *run) {
  for (mam_u32 i = 0; i < run->inside->count; i++) {
    struct mam_area area = run->inside->areas[i];
    void *arguments[] = {&area};
    heap_gpu_work_run(&run->gpu, HEAP_KERNEL_COMPACT_RELEASE, (size_t)mam_area_map_words(area) * 32, arguments);
  }
}

/* Reads how it went, once the GPU is done. */
static cudaError_t finish(struct run *run) {
  run_kernel(run, HEAP_KERNEL_COMPACT_WATCH, slot_threads(run));
  heap_gpu_work_read(&run->gpu, &run->work, run->address, sizeof run->work);
  cudaError_t error = heap_gpu_work_end(&run->gpu);
  if (error == cudaSuccess && run->work.slots_used != 0)
    error = error_set(cudaErrorIllegalState, "kernels allocated objects during a compaction: the heap may be damaged");
  return error;
}

static double fragmentation(const struct mam_compact_found *found) {
  return found->spans == 0 ? 0 : (double)found->free_level / 65536 / (double)found->spans;
}

static void fill_info(const struct run *run, MAM_HeapCompactInfo *info) {
  const struct mam_compact *work = &run->work;
  MAM_HeapCompactInfo filled = {.struct_size = info->struct_size};
  filled.pass_count = work->passes + (work->done.merges != work->merges_before);
  filled.live_count = (size_t)work->found.live;
  filled.moved_count = (size_t)work->done.moved;
  filled.moved_bytes = (size_t)work->done.moved_bytes;
  filled.bytes_before = (size_t)work->found_first.pages << MAM_PAGE_SHIFT;
  filled.bytes_after = (size_t)work->found.pages << MAM_PAGE_SHIFT;
  filled.fragmentation_before = fragmentation(&work->found_first);
  filled.fragmentation_after = fragmentation(&work->found);
  memcpy(info, &filled, info->struct_size < sizeof filled ? info->struct_size : sizeof filled);
}

/* The last part. */
static cudaError_t end(const struct heap_inside *inside, struct heap_compact *compact) {
  struct run run = {.inside = inside, .compact = compact, .address = (mam_u64)(uintptr_t)compact->memory};
  compact->is_open = false;
  if (compact->types == 0)
    return cudaSuccess;
  run.work.types = compact->types;
  cudaError_t error = heap_gpu_work_begin(inside->gpu, &run.gpu);
  if (error != cudaSuccess)
    return error;
  release(&run);
  return finish(&run);
}

/* The whole of it, or the first part. */
static cudaError_t compact_begin(struct run *run, MAM_HeapCompactInfo *info, bool to_the_end) {
  cudaError_t error = heap_gpu_work_begin(run->inside->gpu, &run->gpu);
  if (error != cudaSuccess)
    return error;
  heap_gpu_work_write(&run->gpu, run->address, &run->work, sizeof run->work);
  run_kernel(run, HEAP_KERNEL_COMPACT_SLOTS, slot_threads(run));
  error = passes(run);
  if (info != NULL)
    look(run, 0);
  rewrite(run);
  if (to_the_end)
    release(run);
  cudaError_t finished = finish(run);
  error = error != cudaSuccess ? error : finished;
  if (error == cudaErrorIllegalState && !to_the_end)
    (void)end(run->inside, run->compact); /* on failure none has begun */
  run->compact->is_open = !to_the_end && error == cudaSuccess;
  if (info != NULL && (error == cudaSuccess || error == cudaErrorIllegalState))
    fill_info(run, info);
  return error;
}

/* Without types there is nothing to do. */
static cudaError_t begin(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info,
                         bool to_the_end) {
  struct heap_inside inside;
  struct run run = {.inside = &inside, .pass_limit = options->pass_limit};
  cudaError_t error = enter(heap, &inside, &run.compact);
  if (error != cudaSuccess)
    return error;
  if (run.compact->types == 0) {
    run.compact->is_open = !to_the_end;
    if (info != NULL)
      fill_info(&run, info);
    return heap_inside_leave(heap, cudaSuccess);
  }
  error =
      take_memory(&inside, run.compact, (size_t)lay_out(&inside, run.compact->types, options->targets, 0, &run.work));
  if (error == cudaSuccess) {
    run.address = (mam_u64)(uintptr_t)run.compact->memory;
    (void)lay_out(&inside, run.compact->types, options->targets, run.address, &run.work);
    error = compact_begin(&run, info, to_the_end);
  }
  return heap_inside_leave(heap, error);
}

/* ---- The interface ---- */

static cudaError_t check_options(const MAM_HeapCompactOptions *options, const MAM_HeapCompactInfo *info) {
  if (options->struct_size != sizeof *options)
    return error_set(cudaErrorInvalidValue, "struct_size %zu is not sizeof(MAM_HeapCompactOptions)",
                     options->struct_size);
  if (options->targets < 1 || options->targets > MAM_COMPACT_TARGETS)
    return error_set(cudaErrorInvalidValue, "targets is 1 to %d, not %u", MAM_COMPACT_TARGETS, options->targets);
  if (info != NULL && info->struct_size < sizeof info->struct_size)
    return error_set(cudaErrorInvalidValue, "struct_size of info is too small");
  return cudaSuccess;
}

static const MAM_HeapCompactOptions defaults = MAM_HEAP_COMPACT_OPTIONS_INIT;

cudaError_t MAM_HeapCompact(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info) {
  options = options == NULL ? &defaults : options;
  cudaError_t error = check_options(options, info);
  return error == cudaSuccess ? begin(heap, options, info, true) : error;
}

cudaError_t MAM_HeapCompactBegin(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info) {
  options = options == NULL ? &defaults : options;
  cudaError_t error = check_options(options, info);
  return error == cudaSuccess ? begin(heap, options, info, false) : error;
}

cudaError_t MAM_HeapCompactEnd(MAM_Heap heap) {
  struct heap_inside inside;
  cudaError_t error = heap_inside_enter(heap, &inside);
  if (error != cudaSuccess)
    return error;
  if (!heap_compact_is_open(*inside.compact))
    return heap_inside_leave(heap,
                             error_set(cudaErrorIllegalState, "no compaction of heap %p has begun", (void *)heap));
  return heap_inside_leave(heap, end(&inside, *inside.compact));
}
