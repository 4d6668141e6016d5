/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap in host memory, for the tests of heap_core.h: what a warp does there, one thread does here.  The memory
 * of the blocks is real, so that tests can write to it.
 */
#ifndef MAM_TESTS_HEAP_MODEL_H
#define MAM_TESTS_HEAP_MODEL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mam/detail/heap_core.h>

struct heap_model {
  struct mam_heap_control *control;
  void *memory[MAM_HEAP_SUPERBLOCKS];
};

/* Adds a superblock of bytes. */
static inline void heap_model_grow(struct heap_model *model, size_t bytes) {
  mam_u32 index = model->control->superblock_count;
  void *memory = aligned_alloc(MAM_PAGE_BYTES, bytes);
  if (memory == NULL)
    abort();
  struct mam_area area = mam_area_place((mam_u64)(uintptr_t)memory, bytes);
  mam_area_clear(area, 0, 1);
  model->memory[index] = memory;
  model->control->superblocks[index] = area;
  mam_superblocks_publish(model->control, index + 1);
}

/* A heap of bytes, as for a GPU of so many multiprocessors. */
static inline struct heap_model *heap_model_create(size_t bytes, unsigned multiprocessors) {
  mam_heap heap;
  memset(&heap, 0, sizeof heap);
  mam_heap_tune(&heap, bytes, multiprocessors);
  struct heap_model *model = (struct heap_model *)calloc(1, sizeof *model);
  struct mam_heap_control *control = (struct mam_heap_control *)calloc(1, mam_control_bytes(&heap));
  if (model == NULL || control == NULL)
    abort();
  control->heap = heap;
  model->control = control;
  heap_model_grow(model, bytes);
  mam_control_begin(control, (mam_u64)(uintptr_t)control, control->superblocks[0]);
  mam_slots_clear(control, 0, 1);
  return model;
}

/* Makes the heap, still unused, one that leaves empty spans to their slots, as large ones do. */
static inline void heap_model_make_lazy(struct heap_model *model) {
  model->control->heap.lazy = 1;
  mam_slots_clear(model->control, 0, 1);
}

static inline void heap_model_destroy(struct heap_model *model) {
  for (mam_u32 i = 0; i < model->control->superblock_count; i++)
    free(model->memory[i]);
  free(model->control);
  free(model);
}

/* What count lanes of a warp get that ask for a chunk of a kind each, in their order; returns how many got one.  As
 * mam_malloc_kind, mam_malloc_more and mam_malloc_rest (mam/device.cuh). */
static inline unsigned heap_model_malloc_kind(struct heap_model *model, mam_u32 kind, unsigned slot, unsigned count,
                                              void **blocks) {
  const mam_heap *heap = &model->control->heap;
  mam_u32 home = slot >> heap->warp_bits, limit = mam_slot_limit(heap, kind), log2 = mam_lowest_u32(limit);
  unsigned done = 0;
  mam_u32 number = mam_kind_number(kind) * heap->slot_count + slot, place = number | log2 << MAM_REST_CHUNKS;
  mam_u32 wanted = kind | home << MAM_REST_HOME | (heap->lazy && mam_kind_type(kind) == 0 ? MAM_REST_LAZY : 0);
  mam_u32 prior = MAM_NO_PAGE;
  struct mam_claim claim = {0, 0, mam_class_bytes(kind)};
  mam_u64 old = MAM_SLOT_TICKETS;
  if (count < limit)
    old = mam_slot_take(&heap->slots[number], count);
  struct mam_tickets tickets = mam_tickets_of(old, claim.chunk_bytes, limit, count);
  claim.address = tickets.address;
  claim.mask = tickets.mask;
  wanted |= count >= limit ? MAM_REST_WHOLE : tickets.refill ? MAM_REST_REFILL : 0;
  prior = mam_slot_page(old, heap->base, heap->page_count);
  for (mam_u32 i = 0; i < mam_ones_u32(claim.mask); i++)
    blocks[done++] = (void *)(uintptr_t)mam_claim_chunk(claim, i);
  if (done < count && (wanted & (MAM_REST_REFILL | MAM_REST_WHOLE)) != 0 && !mam_slot_is_dry(old)) {
    struct mam_request request = mam_request_of(heap, wanted, place, prior);
    mam_u32 page = MAM_NO_PAGE, got = count - done;
    if ((wanted & MAM_REST_REFILL) != 0)
      mam_held_set(&request);
    if ((wanted & MAM_REST_REFILL) != 0 && request.lazy && prior != MAM_NO_PAGE)
      page = mam_slot_retake(&request,
                             mam_ring_take(heap->words, mam_area_rings(request.area), heap->page_count, prior, kind,
                                           log2, home, request.home_count),
                             got);
    if (page == MAM_NO_PAGE) {
      page = mam_refill_pages(&mam_cursors(model->control)[home], heap->words, heap->page_count, home,
                              request.home_count, mam_span_pages(heap->chunks, kind));
      if (page != MAM_NO_PAGE)
        got = mam_slot_fill(&request, request.area, page, got, mam_lanes_alone());
    }
    if (page != MAM_NO_PAGE) {
      mam_u64 address = mam_area_address(request.area, page & MAM_REFILL_PAGE);
      for (mam_u32 i = 0; i < got; i++)
        blocks[done++] = (void *)(uintptr_t)(address + (mam_u64)i * claim.chunk_bytes);
      wanted &= ~(mam_u32)MAM_REST_REFILL;
    }
  }
  while (done < count) {
    if (count - done < limit)
      wanted &= ~(mam_u32)MAM_REST_WHOLE;
    claim = mam_claim_chunks(model->control, wanted, place, count - done);
    wanted &= ~(mam_u32)MAM_REST_REFILL;
    if (claim.mask == 0)
      return done;
    for (mam_u32 i = 0; i < mam_ones_u32(claim.mask); i++)
      blocks[done++] = (void *)(uintptr_t)mam_claim_chunk(claim, i);
  }
  return done;
}

/* The same for as many bytes each. */
static inline unsigned heap_model_malloc_warp(struct heap_model *model, size_t bytes, unsigned slot, unsigned count,
                                              void **blocks) {
  unsigned done = 0;
  if (bytes <= MAM_CHUNK_BYTES)
    return count == 0 ? 0 : heap_model_malloc_kind(model, mam_class_of((mam_u32)bytes), slot, count, blocks);
  for (; done < count; done++) {
    mam_u64 address = mam_run_malloc(model->control, bytes, slot >> model->control->heap.warp_bits);
    if (address == 0)
      return done;
    blocks[done] = (void *)(uintptr_t)address;
  }
  return done;
}

static inline void *heap_model_malloc(struct heap_model *model, size_t bytes, unsigned slot) {
  void *block = NULL;
  return bytes != 0 && heap_model_malloc_warp(model, bytes, slot, 1, &block) == 1 ? block : NULL;
}

static inline int heap_model_free(struct heap_model *model, const void *block) {
  return mam_block_free(model->control, (mam_u64)(uintptr_t)block);
}

/* Pages that nobody owns. */
static inline mam_u32 heap_model_free_pages(const struct heap_model *model) {
  mam_u32 pages = 0;
  for (mam_u32 i = 0; i < model->control->superblock_count; i++)
    for (mam_u32 j = 0; j < mam_area_map_words(model->control->superblocks[i]); j++)
      pages += 64 - mam_ones_u64(mam_area_pages(model->control->superblocks[i])[j]);
  return pages;
}

#endif
