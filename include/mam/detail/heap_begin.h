/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_begin.h - how a heap begins: tuning, control block, empty superblocks; and how slots are emptied.
 *
 * The host calls these, or its kernels do, while no other thread uses the heap; mam_superblocks_publish alone may run
 * beside requests.
 *
 *   mam_heap_tune            how large spans are, and how many slots, homes and parks there are
 *   mam_area_place           where a superblock's metadata and pages lie in its memory (heap_layout.h)
 *   mam_control_begin        writes the control block
 *   mam_area_clear           writes an empty superblock's metadata, each thread a part
 *   mam_slots_clear          the same for cursors, slots and parks
 *   mam_superblocks_publish  makes a new superblock known to requests
 *   mam_slots_drain          frees what slots and parks hold, so that only the program's blocks remain
 */
#ifndef MAM_DETAIL_HEAP_BEGIN_H
#define MAM_DETAIL_HEAP_BEGIN_H

#include <mam/detail/heap_parks.h>
#include <mam/detail/heap_refill.h>

/* These are measured on an H200.  A program that defines one of them defines all. */
#ifndef MAM_CHUNKS
/* The number of chunks of a span as base-2 logarithms, four bits for each shift, the least shift lowest: 256 chunks of
 * up to 128 bytes, half as many for each further power of two. */
#define MAM_CHUNKS 0x012345678ull
/* The same for a roomy heap.  Its spans have more chunks above 128 bytes, so there are fewer refills. */
#define MAM_ROOMY_CHUNKS 0x345667788ull
/* A heap of at least so many MiB is roomy. */
#define MAM_ROOMY_MIB 256
/* One slot of each of the common classes holds so many bytes together.  A heap has as many slots of each class as an
 * eighth of it has room for. */
#define MAM_SLOT_BYTES (352 << 10)
/* The same for a roomy heap. */
#define MAM_ROOMY_SLOT_BYTES (224 << 10)
/* The warps of a multiprocessor have at most 16 slots of each class: a base-2 logarithm. */
#define MAM_WARP_BITS 4
#endif

/* Chooses how large spans are, and how many slots, homes and parks there are, for a heap of bytes on a GPU of so many
 * multiprocessors.  There are many slots, as long as those of the common classes hold a small share of the heap.  If
 * all classes are in use, their slots can hold most of it. */
MAM_INLINE void mam_heap_tune(mam_heap *heap, mam_u64 bytes, mam_u32 multiprocessors) {
  int roomy = bytes >= (mam_u64)MAM_ROOMY_MIB << 20;
  mam_u64 share = (bytes / 8) / (roomy ? MAM_ROOMY_SLOT_BYTES : MAM_SLOT_BYTES);
  if (multiprocessors > MAM_HOMES)
    multiprocessors = MAM_HOMES;
  heap->lazy = (unsigned)roomy;
  heap->chunks = roomy ? MAM_ROOMY_CHUNKS : MAM_CHUNKS;
  heap->home_last = (mam_u16)(multiprocessors - 1);
  heap->warp_bits = heap->home_shift = 0;
  MAM_LOOP
  while (heap->warp_bits < MAM_WARP_BITS && share >= (mam_u64)multiprocessors << (heap->warp_bits + 1))
    heap->warp_bits++;
  MAM_LOOP
  while (share < multiprocessors >> heap->home_shift && multiprocessors >> heap->home_shift > 1)
    heap->home_shift++;
  heap->slot_count = ((heap->home_last >> heap->home_shift) + 1u) << heap->warp_bits;
  heap->parks = 0;
  MAM_LOOP
  while (heap->parks < multiprocessors * MAM_PARKS && (heap->parks + 1) * (2ull * MAM_PARK_BYTES) <= bytes / 16)
    heap->parks = heap->parks == 0 ? 1 : 2 * heap->parks;
}

/* The bytes of the control block, with cursors, slots and parks. */
MAM_INLINE mam_u64 mam_control_bytes(const mam_heap *heap) {
  return sizeof(struct mam_heap_control) +
         8 * (MAM_HOMES + (mam_u64)heap->slot_count * MAM_HEAP_KINDS + (mam_u64)heap->parks * MAM_PARK_WORDS);
}

/* Writes the control block of a heap whose first superblock is area.  Kernels know the control block at address. */
MAM_INLINE void mam_control_begin(struct mam_heap_control *control, mam_u64 address, struct mam_area area) {
  mam_heap *heap = &control->heap;
  heap->control = (struct mam_heap_control *)address;
  heap->slots = mam_slots(heap->control);
  heap->words = area.words;
  heap->entries = mam_area_entries(area);
  heap->base = area.base;
  heap->page_count = area.page_count;
  control->home_count = mam_home_count(heap);
  control->superblock_count = 1;
  control->superblocks[0] = area;
}

/* ---- Empty metadata ---- */

/* Writes an empty superblock's metadata.  Of count threads each writes a part. */
MAM_INLINE void mam_area_clear(struct mam_area area, mam_u64 rank, mam_u64 count) {
  mam_u64 words = (mam_u64)area.page_count * MAM_PAGE_WORDS, map = mam_map_words(mam_area_map_words(area));
  mam_u64 classes = (mam_u64)MAM_HEAP_KINDS * mam_map_words(mam_area_class_words(area));
  MAM_LOOP
  for (mam_u64 i = rank; i < words; i += count)
    area.words[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < map; i += count)
    mam_area_pages(area)[i] = mam_map_open_word(area.page_count, (mam_u32)i);
  MAM_LOOP
  for (mam_u64 i = rank; i < classes; i += count)
    mam_area_class(area, 0)[i] = MAM_FULL_WORD;
  MAM_LOOP
  for (mam_u64 i = rank; i < mam_area_map_words(area); i += count)
    mam_area_moved(area)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < mam_map_words(mam_area_kept_words(area)); i += count)
    mam_area_kept(area)[i] = MAM_FULL_WORD;
  MAM_LOOP
  for (mam_u64 i = rank; i < mam_area_kept_words(area); i += count)
    mam_area_parts(area)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < area.page_count; i += count)
    mam_area_entries(area)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < area.page_count; i += count)
    mam_area_rings(area)[i] = MAM_RING_NONE;
  MAM_LOOP
  for (mam_u64 i = rank; i < area.page_count; i += count)
    *mam_page_owner(area.words, (mam_u32)i) = 0;
  if (rank == 0)
    area.words[-1] = 0;
}

/* Empties cursors, slots, parks and what is known about them, in the same way. */
MAM_INLINE void mam_slots_clear(struct mam_heap_control *control, mam_u64 rank, mam_u64 count) {
  const mam_heap *heap = &control->heap;
  if (rank == 0) {
    control->mode = heap->lazy ? MAM_MODE_LAZY : MAM_MODE_WATCHED;
    control->sweep_next = control->sweep_done = 0;
    control->run_cursor = control->kept_cursor = control->kept_end = 0;
    control->parked = 0;
    control->parks_held = 0;
  }
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->parks * MAM_PARK_WORDS; i += count)
    mam_parks(control)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < MAM_HOMES; i += count)
    mam_cursors(control)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->slot_count * MAM_HEAP_KINDS; i += count)
    heap->slots[i] = mam_slot_limit(heap, mam_kind_numbered(control, (mam_u32)(i / heap->slot_count)));
  MAM_LOOP
  for (mam_u64 i = rank; i < MAM_HEAP_KINDS; i += count)
    control->missing[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < MAM_HEAP_KINDS; i += count)
    control->held[i] = 0;
}

/* Makes a new superblock known: the heap has count of them.  Threads that wait for memory look again. */
MAM_INLINE void mam_superblocks_publish(struct mam_heap_control *control, mam_u32 count) {
  mam_store_relaxed_u32(&control->active, 0);
  /* acq_rel: after what was written to the new superblock */
  (void)mam_exchange_acq_rel_u32(&control->superblock_count, count);
  (void)mam_add_acq_rel_u32(mam_area_stamp(control->superblocks[0]), 2);
}

/* Frees what slots and parks hold, each thread a part.  No other thread may use the heap. */
MAM_INLINE void mam_slots_drain(struct mam_heap_control *control, mam_u64 rank, mam_u64 count) {
  const mam_heap *heap = &control->heap;
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->parks * MAM_PARK_WORDS; i += count) {
    mam_u64 word = mam_exchange_release_u64(&mam_parks(control)[i], 0); /* also if it names no superblock */
    mam_u64 block = i % MAM_PARK_WORDS == 0 ? word : mam_park_address(word);
    if (i % MAM_PARK_WORDS != 0 && word != 0)
      (void)mam_add_relaxed_u32(&control->parked, 0u - mam_park_number(word));
    if (block != 0)
      (void)MAM_OUT_OF_SIGHT(mam_block_free)(control, block);
  }
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->slot_count * MAM_HEAP_KINDS; i += count) {
    mam_u32 size_class = mam_kind_numbered(control, (mam_u32)(i / heap->slot_count));
    mam_u32 limit = mam_slot_limit(heap, size_class);
    mam_u64 slot = mam_exchange_release_u64(&heap->slots[i], limit);
    MAM_LOOP
    for (mam_u32 ticket = (mam_u32)(slot & MAM_SLOT_TICKETS); ticket < limit; ticket++)
      (void)MAM_OUT_OF_SIGHT(mam_block_free)(control,
                                             mam_slot_address(slot) + (mam_u64)ticket * mam_class_bytes(size_class));
  }
}

#endif /* MAM_DETAIL_HEAP_BEGIN_H */
