/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation, the host's part: types and roots, and the memory that the kernel of compact_kernels.cuh works in.
 * The heap's lock is held in all of it.  What the kernel does with objects and pointers is not known here.
 *
 *   MAM_HeapRegisterType, MAM_HeapRegisterRoots     what can be moved, and which pointers lead to it
 *   MAM_HeapCompact                                 passes, pointers and release in one run of the kernel
 *   MAM_HeapCompactBegin, MAM_HeapCompactEnd        the same in two runs: old pointers can be followed in between
 *   MAM_HeapObjects                                 lists the objects of a type by a run of the same kernel
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/last_word.h"
#include "base/library_call.h"
#include "heap/compact_types.h"
#include "heap/heap_inside.h"

/* Each table that the kernel works in begins at a multiple of this, so that no two share a cache line. */
enum { ALIGN_BYTES = 256 };

struct heap_compact {
  mam__u32 types, types_with_pointers, pointers_most, root_count, root_room;
  mam__u32 kinds[MAM_HEAP_TYPES];
  bool roots_changed;
  struct mam_compact_roots *roots;
  void *memory; /* a block of the pool, which the kernel works in */
  size_t memory_bytes;
  struct mam_compact_report *report; /* pinned host memory: what the kernel reports */
  mam__u32 runs;
};

void heap_compact_free(struct heap_compact *compact, const struct heap_gpu *gpu, bool gives) {
  if (compact == NULL)
    return;
  if (gives && compact->memory != NULL)
    (void)MAM_CudaFree(compact->memory);
  if (compact->report != NULL)
    heap_gpu_host_give(gpu, compact->report);
  free(compact->roots);
  free(compact);
}

/* heap_inside_enter for a call that is refused while a compaction is under way.  *compact is what is known about types
 * and roots. */
static cudaError_t enter(MAM_Heap heap, struct heap_inside *inside, struct heap_compact **compact) {
  cudaError_t error = heap_inside_enter(heap, inside);
  if (error != cudaSuccess)
    return error;
  if (*inside->compact == NULL)
    *inside->compact = calloc(1, sizeof **inside->compact);
  *compact = *inside->compact;
  if (*compact == NULL)
    return heap_inside_leave(heap, error_set(cudaErrorMemoryAllocation, "the host has no memory for a heap's types"));
  if (*inside->is_compacting)
    return heap_inside_leave(
        heap, error_set(cudaErrorIllegalState, "a compaction of heap %p has begun and not ended", (void *)heap));
  return cudaSuccess;
}

/* ---- Types ---- */

static cudaError_t check_type(const MAM_HeapTypeOptions *options) {
  if (options->struct_size != sizeof *options)
    return error_set(cudaErrorInvalidValue, "struct_size %zu is not sizeof(MAM_HeapTypeOptions)", options->struct_size);
  if (options->bytes == 0 || options->bytes > MAM__CHUNK_BYTES)
    return error_set(cudaErrorInvalidValue, "an object of a type has 1 to %d bytes, not %zu", MAM__CHUNK_BYTES,
                     options->bytes);
  if (options->pointer_count > MAM__TYPE_POINTERS || (options->pointer_count != 0 && options->pointer_offsets == NULL))
    return error_set(cudaErrorInvalidValue, "an object has at most %d pointers, not %zu, and each needs an offset",
                     MAM__TYPE_POINTERS, options->pointer_count);
  for (size_t i = 0; i < options->pointer_count; i++) {
    size_t offset = options->pointer_offsets[i];
    if (offset % 8 != 0 || offset > options->bytes || options->bytes - offset < 8)
      return error_set(cudaErrorInvalidValue, "a pointer cannot be at offset %zu of an object of %zu bytes", offset,
                       options->bytes);
  }
  return cudaSuccess;
}

/* Makes the slots of a new kind usable: each begins without a ticket left. */
static cudaError_t write_slots(const struct heap_inside *inside, mam__u32 kind) {
  mam__u32 count = inside->handle->slot_count, words = count * MAM__SLOT_WORDS;
  mam__u64 *slots = calloc(words, sizeof *slots);
  if (slots == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a type's slots");
  for (mam__u32 i = 0; i < count; i++)
    slots[i * MAM__SLOT_WORDS] = mam__slot_limit(inside->handle, kind);
  mam__u64 place = (mam__u64)(uintptr_t)mam__slot_at(inside->handle->control, mam__kind_number(kind) * count);
  cudaError_t error = heap_gpu_write(inside->gpu, place, slots, words * sizeof *slots);
  free(slots);
  return error;
}

static cudaError_t register_type(const struct heap_inside *inside, struct heap_compact *compact,
                                 const MAM_HeapTypeOptions *options, mam_type *type) {
  struct mam__type_info info = {.bytes = (mam__u32)options->bytes, .pointer_count = (mam__u32)options->pointer_count};
  if (compact->types == MAM_HEAP_TYPES)
    return error_set(cudaErrorMemoryAllocation, "the heap has %d types already", MAM_HEAP_TYPES);
  info.kind = mam__kind_of(mam__class_of(info.bytes), compact->types + 1);
  for (size_t i = 0; i < options->pointer_count; i++)
    info.pointers[i] = (mam__u16)(options->pointer_offsets[i] / 8);
  mam__u64 place = (mam__u64)(uintptr_t)&inside->handle->control->types[compact->types];
  cudaError_t error = write_slots(inside, info.kind);
  if (error == cudaSuccess)
    error = heap_gpu_write(inside->gpu, place, &info, sizeof info);
  if (error != cudaSuccess)
    return error;
  compact->kinds[compact->types] = info.kind;
  compact->types_with_pointers |= (info.pointer_count != 0 ? 1u : 0) << compact->types;
  compact->types++;
  if (compact->pointers_most < info.pointer_count)
    compact->pointers_most = info.pointer_count;
  *type = mam__type_of(info.kind, inside->handle->number);
  return cudaSuccess;
}

cudaError_t MAM_HeapRegisterType(MAM_Heap heap, const MAM_HeapTypeOptions *options, mam_type *type) {
  LIBRARY_CALL;
  struct heap_inside inside;
  struct heap_compact *compact;
  if (options == NULL || type == NULL)
    return error_set(cudaErrorInvalidValue, "options or type is NULL");
  cudaError_t error = check_type(options);
  if (error == cudaSuccess)
    error = enter(heap, &inside, &compact);
  return error == cudaSuccess ? heap_inside_leave(heap, register_type(&inside, compact, options, type)) : error;
}

/* ---- Roots ---- */

/* The place of the roots that begin at an address.  root_count if there are none. */
static mam__u32 find_roots(const struct heap_compact *compact, const void *pointers) {
  mam__u32 i = 0;
  while (i < compact->root_count && compact->roots[i].pointers != pointers)
    i++;
  return i;
}

static cudaError_t register_roots(struct heap_compact *compact, void *pointers, size_t count) {
  if (find_roots(compact, pointers) < compact->root_count)
    return error_set(cudaErrorAlreadyAcquired, "roots that begin at %p are registered already", pointers);
  if (compact->root_count == compact->root_room) {
    mam__u32 room = compact->root_room == 0 ? 4 : 2 * compact->root_room;
    struct mam_compact_roots *roots = realloc(compact->roots, room * sizeof *roots);
    if (roots == NULL)
      return error_set(cudaErrorMemoryAllocation, "the host has no memory for roots");
    compact->roots = roots;
    compact->root_room = room;
  }
  compact->roots[compact->root_count++] = (struct mam_compact_roots){pointers, count};
  compact->roots_changed = true;
  return cudaSuccess;
}

cudaError_t MAM_HeapRegisterRoots(MAM_Heap heap, void *pointers, size_t count) {
  LIBRARY_CALL;
  struct heap_inside inside;
  struct heap_compact *compact;
  if (pointers == NULL || (uintptr_t)pointers % 8 != 0 || count == 0)
    return error_set(cudaErrorInvalidValue,
                     "%zu roots at %p: the count must not be 0, and the address must be a multiple of 8 and not NULL",
                     count, pointers);
  if (count > (UINTPTR_MAX - (uintptr_t)pointers) / 8)
    return error_set(cudaErrorInvalidValue, "%zu roots at %p: there are not so many addresses", count, pointers);
  cudaError_t error = enter(heap, &inside, &compact);
  return error == cudaSuccess ? heap_inside_leave(heap, register_roots(compact, pointers, count)) : error;
}

static cudaError_t forget_roots(struct heap_compact *compact, const void *pointers) {
  mam__u32 place = find_roots(compact, pointers);
  if (place == compact->root_count)
    return error_set(cudaErrorInvalidValue, "no roots that begin at %p are registered", pointers);
  compact->roots[place] = compact->roots[--compact->root_count];
  compact->roots_changed = true;
  return cudaSuccess;
}

cudaError_t MAM_HeapForgetRoots(MAM_Heap heap, void *pointers) {
  LIBRARY_CALL;
  struct heap_inside inside;
  struct heap_compact *compact;
  cudaError_t error = enter(heap, &inside, &compact);
  return error == cudaSuccess ? heap_inside_leave(heap, forget_roots(compact, pointers)) : error;
}

/* ---- A run of the kernel ---- */

static mam__u64 aligned(mam__u64 bytes) { return (bytes + ALIGN_BYTES - 1) & ~(mam__u64)(ALIGN_BYTES - 1); }

/* Fills in *work for memory at base.  Returns how many bytes of memory it needs. */
static mam__u64 lay_out(const struct heap_inside *inside, const struct heap_compact *compact, mam__u64 base,
                        struct mam_compact *work) {
  *work = (struct mam_compact){.heap = *inside->handle,
                               .control = inside->handle->control,
                               .report = compact->report,
                               .types = compact->types,
                               .types_with_pointers = compact->types_with_pointers,
                               .pointers_most = compact->pointers_most,
                               .root_count = compact->root_count,
                               .superblocks = inside->count};
  memcpy(work->kinds, compact->kinds, sizeof work->kinds);
  for (mam__u32 i = 0; i < inside->count; i++) {
    work->tiles += (inside->areas[i].page_count + MAM_COMPACT_TILE - 1) / MAM_COMPACT_TILE;
    work->first[i + 1] = work->tiles * MAM_COMPACT_TILE;
  }
  mam__u64 pages = (mam__u64)work->tiles * MAM_COMPACT_TILE, at = base;
  work->barrier = (mam__u32 *)(uintptr_t)at;
  at += ALIGN_BYTES;
  work->state = (struct mam_compact_state *)(uintptr_t)at;
  at += aligned(sizeof *work->state);
  work->order = (mam__u32 *)(uintptr_t)at;
  at += pages * sizeof *work->order;
  work->spans = (mam__u32 *)(uintptr_t)at;
  at += pages * sizeof *work->spans;
  work->candidates = (mam__u16 *)(uintptr_t)at;
  at += aligned(pages / MAM_COMPACT_GROUP * sizeof *work->candidates);
  work->with_pointers = (mam__u8 *)(uintptr_t)at;
  at += aligned(pages / MAM_COMPACT_GROUP * sizeof *work->with_pointers);
  work->found = (struct mam_tile_found *)(uintptr_t)at;
  at += aligned((mam__u64)work->tiles * sizeof *work->found);
  work->sums = (mam__u32 *)(uintptr_t)at;
  at += aligned((mam__u64)MAM_HEAP_TYPES * work->tiles * sizeof *work->sums);
  work->roots = (struct mam_compact_roots *)(uintptr_t)at;
  return at + aligned((compact->root_count + 1) * sizeof *work->roots) - base;
}

/* Takes memory of so many bytes, unless there is enough.  The words of a new block's barrier are 0. */
static cudaError_t take_memory(const struct heap_inside *inside, struct heap_compact *compact, size_t bytes) {
  static const mam__u32 barrier[ALIGN_BYTES / sizeof(mam__u32)];
  void *memory;
  NO_LAST_WORD; /* the heap's lock is held */
  if (compact->memory_bytes >= bytes)
    return cudaSuccess;
  cudaError_t error = MAM_PoolMalloc(inside->pool, &memory, bytes);
  if (error != cudaSuccess)
    return error;
  error = heap_gpu_write(inside->gpu, (mam__u64)(uintptr_t)memory, barrier, sizeof barrier);
  if (error != cudaSuccess) {
    (void)MAM_CudaFree(memory);
    return error;
  }
  if (compact->memory != NULL)
    (void)MAM_CudaFree(compact->memory);
  compact->memory = memory;
  compact->memory_bytes = bytes;
  compact->roots_changed = true;
  return cudaSuccess;
}

/* Fills in *work, except what is to be done. */
static cudaError_t prepare(const struct heap_inside *inside, struct heap_compact *compact, struct mam_compact *work) {
  cudaError_t error = cudaSuccess;
  if (compact->report == NULL) {
    error = heap_gpu_host_take(inside->gpu, (void **)&compact->report, sizeof *compact->report);
    if (error == cudaSuccess) /* another heap may have used this memory for its runs */
      compact->report->end = 0;
  }
  if (error == cudaSuccess)
    error = take_memory(inside, compact, (size_t)lay_out(inside, compact, 0, work));
  if (error != cudaSuccess)
    return error;
  (void)lay_out(inside, compact, (mam__u64)(uintptr_t)compact->memory, work);
  if (compact->roots_changed && compact->root_count != 0)
    error = heap_gpu_write(inside->gpu, (mam__u64)(uintptr_t)work->roots, compact->roots,
                           compact->root_count * sizeof *compact->roots);
  compact->roots_changed = error != cudaSuccess;
  return error;
}

/* Runs the kernel, which does what work->what says and fills in compact->report. */
static cudaError_t run(const struct heap_inside *inside, struct heap_compact *compact, struct mam_compact *work) {
  void *arguments[] = {work};
  const struct heap_gpu_sign sign = {&compact->report->end, (mam__u64)++compact->runs << 32, ~0ull << 32};
  work->number = compact->runs;
  cudaError_t error = heap_gpu_run_together(inside->gpu, HEAP_KERNEL_COMPACT, MAM_COMPACT_BLOCKS, MAM_COMPACT_THREADS,
                                            arguments, &sign);
  if (error == cudaSuccess && (mam__u32)compact->report->end != 0)
    error = error_set(cudaErrorIllegalState, "kernels allocated objects meanwhile: the heap may be damaged");
  return error;
}

static double fragmentation(const struct mam_compact_found *found) {
  return found->spans == 0 ? 0 : (double)found->free_level / 65536 / (double)found->spans;
}

static void fill_info(const struct mam_compact_state *report, MAM_HeapCompactInfo *info) {
  MAM_HeapCompactInfo filled = {.struct_size = info->struct_size};
  filled.pass_count = report->passes;
  filled.live_count = (size_t)report->found.live;
  filled.moved_count = (size_t)report->done.moved;
  filled.moved_bytes = (size_t)report->done.moved_bytes;
  filled.bytes_before = (size_t)report->found_first.pages << MAM__PAGE_SHIFT;
  filled.bytes_after = (size_t)report->found.pages << MAM__PAGE_SHIFT;
  filled.fragmentation_before = fragmentation(&report->found_first);
  filled.fragmentation_after = fragmentation(&report->found);
  memcpy(info, &filled, info->struct_size < sizeof filled ? info->struct_size : sizeof filled);
}

static cudaError_t release(const struct heap_inside *inside, struct heap_compact *compact) {
  struct mam_compact work;
  cudaError_t error = prepare(inside, compact, &work);
  work.what = MAM_COMPACT_RELEASE;
  return error == cudaSuccess ? run(inside, compact, &work) : error;
}

/* Runs a compaction, with the release of pages or without.  A run that notices misuse fails, and a failed call must
 * leave no compaction under way.  So the pages are then released here. */
static cudaError_t compact_typed(const struct heap_inside *inside, struct heap_compact *compact,
                                 const MAM_HeapCompactOptions *options, mam__u32 what) {
  struct mam_compact work;
  cudaError_t error = prepare(inside, compact, &work);
  if (error != cudaSuccess)
    return error;
  work.what = MAM_COMPACT_PASSES | what;
  work.n_first = options->targets_first;
  work.n_last = options->targets;
  work.pass_limit = options->pass_limit;
  error = run(inside, compact, &work);
  if (error == cudaErrorIllegalState && (what & MAM_COMPACT_RELEASE) == 0)
    (void)release(inside, compact);
  return error;
}

/* Begins a compaction, and also ends it if to_the_end.  A heap without types has nothing to move. */
static cudaError_t begin(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info,
                         bool to_the_end) {
  static const struct mam_compact_state nothing;
  struct heap_inside inside;
  struct heap_compact *compact;
  cudaError_t error = enter(heap, &inside, &compact);
  if (error != cudaSuccess)
    return error;
  if (compact->types != 0)
    error = compact_typed(&inside, compact, options,
                          (info != NULL ? MAM_COMPACT_INFO | MAM_COMPACT_STATE : 0) |
                              (to_the_end ? MAM_COMPACT_RELEASE : 0));
  *inside.is_compacting = !to_the_end && error == cudaSuccess;
  if (info != NULL && error == cudaSuccess)
    fill_info(compact->types != 0 ? &compact->report->state : &nothing, info);
  return heap_inside_leave(heap, error);
}

/* ---- The interface ---- */

static cudaError_t check_options(const MAM_HeapCompactOptions *options, const MAM_HeapCompactInfo *info) {
  if (options->struct_size != sizeof *options)
    return error_set(cudaErrorInvalidValue, "struct_size %zu is not sizeof(MAM_HeapCompactOptions)",
                     options->struct_size);
  if (options->targets < 1 || options->targets > MAM_COMPACT_TARGETS)
    return error_set(cudaErrorInvalidValue, "targets must be 1 to %d, not %u", MAM_COMPACT_TARGETS, options->targets);
  if (options->targets_first < 1 || options->targets_first > options->targets)
    return error_set(cudaErrorInvalidValue, "targets_first must be 1 to targets, not %u", options->targets_first);
  if (info != NULL && info->struct_size < sizeof info->struct_size)
    return error_set(cudaErrorInvalidValue, "the struct_size of info is too small");
  return cudaSuccess;
}

static const MAM_HeapCompactOptions defaults = MAM_HEAP_COMPACT_OPTIONS_INIT;

cudaError_t MAM_HeapCompact(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info) {
  LIBRARY_CALL;
  options = options == NULL ? &defaults : options;
  cudaError_t error = check_options(options, info);
  return error == cudaSuccess ? begin(heap, options, info, true) : error;
}

cudaError_t MAM_HeapCompactBegin(MAM_Heap heap, const MAM_HeapCompactOptions *options, MAM_HeapCompactInfo *info) {
  LIBRARY_CALL;
  options = options == NULL ? &defaults : options;
  cudaError_t error = check_options(options, info);
  return error == cudaSuccess ? begin(heap, options, info, false) : error;
}

cudaError_t MAM_HeapCompactEnd(MAM_Heap heap) {
  LIBRARY_CALL;
  struct heap_inside inside;
  cudaError_t error = heap_inside_enter(heap, &inside);
  if (error != cudaSuccess)
    return error;
  if (!*inside.is_compacting)
    return heap_inside_leave(heap,
                             error_set(cudaErrorIllegalState, "no compaction of heap %p has begun", (void *)heap));
  struct heap_compact *compact = *inside.compact;
  *inside.is_compacting = false;
  return heap_inside_leave(heap, compact->types != 0 ? release(&inside, compact) : cudaSuccess);
}

/* ---- Lists of objects ---- */

static cudaError_t list(const struct heap_inside *inside, struct heap_compact *compact, mam_type type, void **objects,
                        size_t capacity, size_t *count) {
  struct mam_compact work;
  mam__u32 number = mam__kind_type(mam__type_kind(type));
  if (number == 0 || number > compact->types ||
      type != mam__type_of(compact->kinds[number - 1], inside->handle->number))
    return error_set(cudaErrorInvalidValue, "the heap has no type %u", type);
  cudaError_t error = prepare(inside, compact, &work);
  if (error != cudaSuccess)
    return error;
  work.what = MAM_COMPACT_OBJECTS | MAM_COMPACT_STATE;
  work.object_type = number;
  work.objects = (mam__u64 *)objects;
  work.object_room = capacity;
  error = run(inside, compact, &work);
  if (error == cudaSuccess)
    *count = compact->report->state.object_count;
  return error;
}

cudaError_t MAM_HeapObjects(MAM_Heap heap, mam_type type, void **objects, size_t capacity, size_t *count) {
  LIBRARY_CALL;
  struct heap_inside inside;
  struct heap_compact *compact;
  if (count == NULL || (objects == NULL && capacity != 0))
    return error_set(cudaErrorInvalidValue, "count is NULL, or objects is NULL and capacity is not 0");
  cudaError_t error = enter(heap, &inside, &compact);
  if (error != cudaSuccess)
    return error;
  return heap_inside_leave(heap, list(&inside, compact, type, objects, capacity, count));
}
