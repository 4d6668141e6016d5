/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap in host memory, for the tests of heap_core.h.  A call of a function here does what a warp does on the
 * GPU, in the steps of mam/device.cuh.  The memory of the blocks is real, so tests can write to it.
 */
#ifndef MAM_TESTS_HEAP_MODEL_H
#define MAM_TESTS_HEAP_MODEL_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mam/detail/heap_core.h>

struct heap_model {
  struct mam__heap_control *control;  /* the first superblock's memory follows it */
  void *memory[MAM_HEAP_SUPERBLOCKS]; /* of the others */
};

/* Makes a superblock of memory. */
static inline void heap_model_add(struct heap_model *model, void *memory, size_t bytes) {
  mam__u32 index = model->control->superblock_count;
  struct mam__area area = mam__area_place((mam__u64)(uintptr_t)memory, bytes);
  mam__area_clear(area, 0, 1);
  model->control->superblocks[index] = area;
  mam__superblocks_publish(model->control, index + 1);
}

/* Adds a superblock of so many bytes. */
static inline void heap_model_grow(struct heap_model *model, size_t bytes) {
  void *memory = model->memory[model->control->superblock_count] = aligned_alloc(MAM__PAGE_BYTES, bytes);
  if (memory == NULL)
    abort();
  heap_model_add(model, memory, bytes);
}

/* Creates a heap of so many bytes, tuned for a GPU of so many multiprocessors. */
static inline struct heap_model *heap_model_create(size_t bytes, unsigned multiprocessors) {
  mam_device_heap heap;
  memset(&heap, 0, sizeof heap);
  mam__heap_tune(&heap, bytes, multiprocessors);
  struct heap_model *model = (struct heap_model *)calloc(1, sizeof *model);
  size_t control_bytes = (mam__control_bytes(&heap) + MAM__PAGE_BYTES - 1) & ~(size_t)(MAM__PAGE_BYTES - 1);
  char *memory = (char *)aligned_alloc(MAM__PAGE_BYTES, control_bytes + bytes);
  if (model == NULL || memory == NULL)
    abort();
  struct mam__heap_control *control = (struct mam__heap_control *)memset(memory, 0, control_bytes);
  control->heap = heap;
  model->control = control;
  heap_model_add(model, memory + control_bytes, bytes);
  mam__control_begin(control, (mam__u64)(uintptr_t)control, control->superblocks[0]);
  mam__slots_clear(control, 0, 1);
  return model;
}

/* Makes a heap lazy, as large heaps are.  The heap is still unused. */
static inline void heap_model_make_lazy(struct heap_model *model) {
  model->control->heap.tuning |= MAM__TUNED_LAZY;
  mam__slots_clear(model->control, 0, 1);
}

/* Makes a type of the heap, as MAM_HeapRegisterType does.  Returns its kind. */
static inline mam__u32 heap_model_type(struct heap_model *model, mam__u32 number, mam__u32 bytes) {
  struct mam__heap_control *control = model->control;
  mam__u32 kind = mam__kind_of(mam__class_of(bytes), number);
  control->types[number - 1].bytes = bytes;
  control->types[number - 1].kind = kind;
  for (mam__u32 i = 0; i < control->heap.slot_count; i++)
    *mam__slot_at(control, mam__kind_number(kind) * control->heap.slot_count + i) =
        mam__slot_limit(&control->heap, kind);
  return kind;
}

static inline void heap_model_destroy(struct heap_model *model) {
  for (mam__u32 i = 0; i < model->control->superblock_count; i++)
    free(model->memory[i]);
  free(model->control);
  free(model);
}

/* Claims a chunk of a span that was split, as a lane does whose slot is dry.  NULL if it finds none quickly. */
static inline void *heap_model_claim(struct heap_model *model, mam__u32 kind) {
  const mam_device_heap *heap = &model->control->heap;
  mam__u32 limit = mam__slot_limit(heap, kind);
  mam__u64 chunk = mam__chunk_claim(mam__heap_words(heap), heap->page_count, kind, limit < 32 ? 1 : limit / 32);
  if ((chunk & MAM__CHUNK_OTHER) != 0)
    chunk = mam__chunk_return(mam__heap_words(heap), heap->page_count, chunk);
  mam__u64 page = (mam__u32)(chunk >> 8);
  return chunk == 0
             ? NULL
             : (void *)(uintptr_t)(heap->base + (page << MAM__PAGE_SHIFT) + (chunk & 255) * mam__class_bytes(kind));
}

/* Does what mam__malloc_rest of mam/device.cuh does for count lanes.  Returns how many got a block. */
static inline unsigned heap_model_malloc_rest(struct heap_model *model, mam__u32 wanted, mam__u32 place, unsigned count,
                                              void **blocks) {
  unsigned done = 0;
  while (done < count) {
    if ((wanted & MAM__REST_WHOLE) != 0)
      place = mam__whole_rest(&wanted, place, model->control->heap.tuning, count - done);
    struct mam__request request = {model->control, wanted, place, 0xffffffffu >> (32 - (count - done)), 0, 0, 0, 0};
    struct mam__claim claim = mam__claim_chunks(&request, MAM__STEP_VAIN);
    wanted = request.wanted & ~(mam__u32)(MAM__REST_REFILL | MAM__REST_DRY);
    if (claim.mask == 0)
      return done;
    for (mam__u32 i = 0; i < mam__ones_u32(claim.mask); i++)
      blocks[done++] = (void *)(uintptr_t)mam__claim_chunk(claim, i);
  }
  return done;
}

/* Does what count lanes of a warp do that ask for a chunk of a kind each: mam__malloc_kind, mam__malloc_more and
 * mam__malloc_rest of mam/device.cuh.  Writes the blocks in the order of the lanes.  Returns how many lanes got one. */
static inline unsigned heap_model_malloc_kind(struct heap_model *model, mam__u32 kind, unsigned slot, unsigned count,
                                              void **blocks) {
  const mam_device_heap *heap = &model->control->heap;
  mam__u32 home = slot >> mam__tuned_warp_bits(heap->tuning), limit = mam__slot_limit(heap, kind),
           log2 = mam__lowest_u32(limit);
  unsigned done = 0;
  mam__u32 number = mam__kind_number(kind) * model->control->heap.slot_count + slot,
           place = number | log2 << MAM__REST_CHUNKS;
  mam__u32 wanted =
      kind | home << MAM__REST_HOME | (mam__tuned_lazy(heap->tuning) && mam__kind_type(kind) == 0 ? MAM__REST_LAZY : 0);
  mam__u32 prior = MAM__NO_PAGE;
  struct mam__claim claim = {0, 0, mam__class_bytes(kind)};
  mam__u64 old = MAM__SLOT_TICKETS;
  if (count < limit)
    old = mam__slot_take(mam__slot_at(model->control, number), count);
  struct mam__tickets tickets = mam__tickets_of(old, claim.chunk_bytes, limit, count);
  claim.address = tickets.address;
  claim.mask = tickets.mask;
  if (count >= limit) {
    wanted |= MAM__REST_WHOLE;
    log2 = mam__whole_chunks_log2(count, mam__class_shift(kind), log2);
    place = number | log2 << MAM__REST_CHUNKS;
  } else if (mam__ones_u32(claim.mask) < count)
    wanted |= mam__slot_rest(old, limit);
  prior = mam__heap_page(heap, old);
  for (mam__u32 i = 0; i < mam__ones_u32(claim.mask); i++)
    blocks[done++] = (void *)(uintptr_t)mam__claim_chunk(claim, i);
  if (done < count && (wanted & (MAM__REST_REFILL | MAM__REST_WHOLE)) != 0 && (wanted & MAM__REST_DRY) == 0) {
    mam__u32 got = count - done;
    mam__u64 renewed = 0;
    if ((wanted & MAM__REST_REFILL) != 0 && (wanted & MAM__REST_LAZY) != 0 && prior != MAM__NO_PAGE)
      renewed = mam__slot_again_apart(model->control, wanted, place, prior, got);
    if (renewed == 0)
      renewed = mam__slot_anew(model->control, heap->base, heap->page_count, wanted, place, got);
    if (renewed == MAM__SLOT_DRY)
      wanted |= MAM__REST_DRY;
    if ((renewed & MAM__RENEWED) != 0)
      renewed = mam__slot_renewed(model->control, wanted, place, prior, renewed);
    if (mam__is_renewed(renewed)) {
      mam__u64 address = mam__slot_address(renewed);
      got = got < 1u << log2 ? got : 1u << log2;
      for (mam__u32 i = 0; i < got; i++)
        blocks[done++] = (void *)(uintptr_t)(address + (mam__u64)i * claim.chunk_bytes);
      wanted &= ~(mam__u32)MAM__REST_REFILL;
    }
  }
  if (done < count && (wanted & MAM__REST_DRY) != 0) {
    unsigned left = count - done, first_failed = 0;
    for (unsigned lane = 0; lane < left; lane++) { /* each lane for itself */
      blocks[done] = heap_model_claim(model, kind);
      if (blocks[done] == NULL) {
        first_failed |= lane == 0;
        continue;
      }
      done++;
      if (lane == 0 && (wanted & MAM__REST_REFILL) != 0)
        (void)mam__exchange_release_u64(mam__slot_at(model->control, number), MAM__SLOT_DRY | limit);
    }
    if (first_failed) /* the first lane keeps the task for itself */
      done += heap_model_malloc_rest(model, wanted, place, 1, blocks + done);
    wanted &= ~(mam__u32)MAM__REST_REFILL;
  }
  return done + heap_model_malloc_rest(model, wanted, place, count - done, blocks + done);
}

/* The same for lanes that ask for so many bytes each. */
static inline unsigned heap_model_malloc_warp(struct heap_model *model, size_t bytes, unsigned slot, unsigned count,
                                              void **blocks) {
  unsigned done = 0;
  if (bytes <= MAM__CHUNK_BYTES)
    return count == 0 ? 0 : heap_model_malloc_kind(model, mam__class_of((mam__u32)bytes), slot, count, blocks);
  for (; done < count; done++) {
    mam__u64 address =
        mam__run_malloc(model->control, bytes, slot >> mam__tuned_warp_bits(model->control->heap.tuning));
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
  return mam__block_free(model->control, (mam__u64)(uintptr_t)block);
}

/* How many pages are free. */
static inline mam__u32 heap_model_free_pages(const struct heap_model *model) {
  mam__u32 pages = 0;
  for (mam__u32 i = 0; i < model->control->superblock_count; i++)
    for (mam__u32 j = 0; j < mam__area_map_words(model->control->superblocks[i]); j++)
      pages += 64 - mam__ones_u64(mam__area_pages(model->control->superblocks[i])[j]);
  return pages;
}

/* How many pages a length's code in a shortage word means (heap_shortage.h). */
static inline mam__u32 heap_model_length(mam__u32 code) { return code <= 64 ? code : (8 + code % 8) << (code / 8 - 5); }

/* Whether what is open in a word of a map is seen in the levels above it.  What stays closed above is not found in a
 * heap whose maps are too long to be looked at word by word, and no later change opens it. */
static inline int heap_model_opens_above(const mam__u64 *map, mam__u32 words) {
  for (mam__u32 word = 0; word < words; word++)
    if (map[word] != MAM__FULL_WORD && ((map[words + word / 64] >> word % 64 & 1) != 0 ||
                                        (map[words + (words + 63) / 64 + word / 4096] >> word / 64 % 64 & 1) != 0))
      return 0;
  return 1;
}

/* Whether all run lengths that the shortage words of a superblock say are missing are missing: of a part, that no such
 * run begins there. */
static inline int heap_model_shortages_hold(struct mam__area area) {
  const mam__u32 *parts = mam__area_parts(area);
  mam__u32 whole = heap_model_length(*mam__area_shortage(area) & MAM__SHORT_PAGES), run = 0;
  for (mam__u32 page = area.page_count; page-- != 0;) {
    run = (mam__area_pages(area)[page / 64] >> page % 64 & 1) == 0 ? run + 1 : 0;
    mam__u32 part = heap_model_length(parts[page / 4096] & MAM__SHORT_PAGES);
    if ((whole != 0 && run >= whole) || (part != 0 && run >= part))
      return 0;
  }
  return 1;
}

#endif
