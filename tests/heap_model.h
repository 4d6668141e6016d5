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

#include <mam/heap_core.h>

struct heap_model {
  struct mam_heap_control control;
  void *memory[MAM_HEAP_SUPERBLOCKS];
};

/* Adds a superblock of bytes; false if there is no memory for it. */
static inline int heap_model_grow(struct heap_model *model, size_t bytes) {
  mam_u32 index = model->control.superblock_count;
  struct mam_superblock *superblock = &model->control.superblocks[index];
  void *memory = aligned_alloc(MAM_PAGE_BYTES, bytes);
  if (memory == NULL || !mam_superblock_place(superblock, (mam_u64)(uintptr_t)memory, bytes)) {
    free(memory);
    return 0;
  }
  mam_superblock_clear(superblock, 0, 1);
  model->memory[index] = memory;
  __atomic_store_n(&model->control.superblock_count, index + 1, __ATOMIC_RELEASE);
  return 1;
}

/* A heap of bytes, as for a GPU of so many multiprocessors; NULL if there is no memory. */
static inline struct heap_model *heap_model_create(size_t bytes, unsigned multiprocessors) {
  struct heap_model *model = (struct heap_model *)calloc(1, sizeof *model);
  if (model == NULL || !heap_model_grow(model, bytes))
    abort();
  mam_heap *heap = &model->control.heap;
  heap->control = &model->control;
  mam_heap_tune(&model->control, bytes, multiprocessors);
  heap->slots = (unsigned long long *)calloc((size_t)heap->slot_count * MAM_HEAP_CLASSES, sizeof(mam_u64));
  model->control.cursors = (mam_u32 *)calloc(model->control.home_count, sizeof(mam_u32));
  heap->words = model->control.superblocks[0].words;
  heap->entries = model->control.superblocks[0].entries;
  heap->base = model->control.superblocks[0].base;
  heap->page_count = model->control.superblocks[0].page_count;
  mam_slots_clear(&model->control, 0, 1);
  return model;
}

static inline void heap_model_destroy(struct heap_model *model) {
  for (mam_u32 i = 0; i < model->control.superblock_count; i++)
    free(model->memory[i]);
  free(model->control.heap.slots);
  free(model->control.cursors);
  free(model);
}

/* What count lanes of a warp get that ask for as many bytes each, in their order; returns how many got a block. */
static inline unsigned heap_model_malloc_warp(struct heap_model *model, size_t bytes, unsigned slot, unsigned count,
                                              void **blocks) {
  const mam_heap *heap = &model->control.heap;
  unsigned done = 0;
  if (bytes > MAM_CHUNK_BYTES) {
    while (done < count) {
      mam_u64 address = mam_run_malloc(&model->control, bytes, mam_slot_home(heap, slot));
      if (address == 0)
        break;
      blocks[done++] = (void *)(uintptr_t)address;
    }
    return done;
  }
  mam_u32 size_class = mam_class_of((mam_u32)bytes), limit = mam_slot_limit(heap, size_class);
  mam_u64 *place = count >= limit ? NULL : mam_slot_at(heap, size_class, slot);
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  int refill = 0;
  if (place != NULL) {
    struct mam_tickets tickets = mam_slot_take(place, size_class, limit, count);
    refill = tickets.refill;
    claim.address = tickets.address;
    claim.mask = tickets.mask;
  }
  for (;;) {
    for (mam_u32 i = 0; i < mam_ones_u32(claim.mask); i++)
      blocks[done++] = (void *)(uintptr_t)mam_claim_chunk(claim, i);
    if (done == count)
      return done;
    if (count - done < limit)
      place = mam_slot_at(heap, size_class, slot);
    claim = mam_claim_chunks(&model->control, place, size_class, count - done, &refill, mam_slot_home(heap, slot),
                             mam_lanes_of(1));
    if (claim.mask == 0)
      return done;
  }
}

static inline void *heap_model_malloc(struct heap_model *model, size_t bytes, unsigned slot) {
  void *block = NULL;
  return bytes != 0 && heap_model_malloc_warp(model, bytes, slot, 1, &block) == 1 ? block : NULL;
}

static inline int heap_model_free(struct heap_model *model, const void *block) {
  return mam_block_free(&model->control, (mam_u64)(uintptr_t)block);
}

/* Pages that nobody owns. */
static inline mam_u32 heap_model_free_pages(const struct heap_model *model) {
  mam_u32 pages = 0;
  for (mam_u32 i = 0; i < model->control.superblock_count; i++)
    for (mam_u32 j = 0; j < model->control.superblocks[i].map_words; j++)
      pages += 64 - mam_ones_u64(model->control.superblocks[i].pages[j]);
  return pages;
}

#endif
