/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_begin.h - how a heap begins: tuning, control block, empty superblocks; and how slots are emptied.
 *
 * The host calls these, or its kernels do, while no other thread uses the heap; mam__superblocks_publish alone may run
 * beside requests.
 *
 *   mam__heap_tune            how large spans are, and how many slots, homes and parks there are
 *   mam__area_place           where a superblock's metadata and pages lie in its memory (heap_layout.h)
 *   mam__control_begin        writes the control block
 *   mam__area_clear           writes an empty superblock's metadata, each thread a part
 *   mam__slots_clear          the same for cursors, slots and parks
 *   mam__superblocks_publish  makes a new superblock known to requests
 *   mam__slots_drain          frees what slots and parks hold, so that only the program's blocks remain
 */
#ifndef MAM_DETAIL_HEAP_BEGIN_H
#define MAM_DETAIL_HEAP_BEGIN_H

#include <mam/detail/heap_parks.h>
#include <mam/detail/heap_refill.h>

/* These are measured on an H200.  A program that defines one of them defines all. */
#ifndef MAM__CHUNKS
/* The number of chunks of a span as base-2 logarithms, four bits for each shift, the least shift lowest: 256 chunks of
 * up to 128 bytes, half as many for each further power of two. */
#define MAM__CHUNKS 0x012345678ull
/* The same for a vast heap.  Its spans have more chunks above 512 bytes, so there are fewer refills; warp heaps take 8
 * and 32 KiB at a time. */
#define MAM__VAST_CHUNKS 0x345667788ull
/* A heap of at least so many MiB is roomy: it is lazy, and has more slots. */
#define MAM__ROOMY_MIB 256
/* A heap of at least so many MiB is vast.  A slot of each class then holds 4.6 MiB together, else 1.6 MiB or less.  If
 * many classes are in use, a smaller heap with such spans has most of its memory in spans of which little is in use: of
 * 1 GiB, with 600 MiB live, it refused 4 % of the requests. */
#define MAM__VAST_MIB 8192
/* One slot of each of the common classes holds so many bytes together.  A heap has as many slots of each class as an
 * eighth of it has room for. */
#define MAM__SLOT_BYTES (352 << 10)
/* The same for a roomy heap. */
#define MAM__ROOMY_SLOT_BYTES (224 << 10)
/* The warps of a multiprocessor have at most 16 slots of each class: a base-2 logarithm. */
#define MAM__WARP_BITS 4
#endif

/* Chooses how large spans are, and how many slots, homes and parks there are, for a heap of bytes on a GPU of so many
 * multiprocessors.  There are many slots, as long as those of the common classes hold a small share of the heap.  If
 * all classes are in use, their slots can hold most of it. */
MAM__INLINE void mam__heap_tune(mam_device_heap *heap, mam__u64 bytes, mam__u32 multiprocessors) {
  int roomy = bytes >= (mam__u64)MAM__ROOMY_MIB << 20;
  mam__u64 share = bytes / 8 / (roomy ? MAM__ROOMY_SLOT_BYTES : MAM__SLOT_BYTES);
  if (multiprocessors > MAM__HOMES)
    multiprocessors = MAM__HOMES;
  mam__u64 chunks = bytes >= (mam__u64)MAM__VAST_MIB << 20 ? MAM__VAST_CHUNKS : MAM__CHUNKS;
  mam__u32 warp_bits = 0, home_shift = 0, park_bits = 0;
  MAM__LOOP
  while (warp_bits < MAM__WARP_BITS && share >= (mam__u64)multiprocessors << (warp_bits + 1))
    warp_bits++;
  MAM__LOOP
  while (share < multiprocessors >> home_shift && multiprocessors >> home_shift > 1)
    home_shift++;
  MAM__LOOP
  while (1u << park_bits >> 1 < multiprocessors * MAM__PARKS &&
         ((1u << park_bits >> 1) + 1) * (2ull * MAM__PARK_BYTES) <= bytes / 16)
    park_bits++;
  heap->tuning = mam__tuning_of(chunks, park_bits, roomy, warp_bits, home_shift, multiprocessors - 1);
  heap->slot_count = (mam__u16)(mam__tuned_homes(heap->tuning) << warp_bits);
}

/* The bytes of the control block, with cursors, slots and parks. */
MAM__INLINE mam__u64 mam__control_bytes(const mam_device_heap *heap) {
  return sizeof(struct mam__heap_control) +
         8 * (MAM__HOMES + (mam__u64)heap->slot_count * (MAM__HEAP_KINDS * MAM__SLOT_WORDS) +
              (mam__u64)mam__park_count(heap) * MAM__PARK_WORDS);
}

/* Writes the control block of a heap whose first superblock is area.  Kernels know the control block at address, a
 * multiple of 16. */
MAM__INLINE void mam__control_begin(struct mam__heap_control *control, mam__u64 address, struct mam__area area) {
  mam_device_heap *heap = &control->heap;
  heap->control = (struct mam__heap_control *)address;
  heap->base = area.base;
  heap->page_count = area.page_count;
  control->home_count = mam__tuned_homes(heap->tuning);
  control->superblock_count = 1;
  control->superblocks[0] = area;
}

/* ---- Empty metadata ---- */

/* Writes an empty superblock's metadata.  Of count threads each writes a part. */
MAM__INLINE void mam__area_clear(struct mam__area area, mam__u64 rank, mam__u64 count) {
  mam__u64 words = (mam__u64)area.page_count * MAM__PAGE_WORDS, map = mam__map_words(mam__area_map_words(area));
  mam__u64 classes = MAM__HEAP_KINDS * map;
  MAM__LOOP
  for (mam__u64 i = rank; i < words; i += count)
    area.words[i] = 0;
  MAM__LOOP
  for (mam__u64 i = rank; i < map; i += count)
    mam__area_pages(area)[i] = mam__map_open_word(area.page_count, (mam__u32)i);
  MAM__LOOP
  for (mam__u64 i = rank; i < classes; i += count)
    mam__area_class(area, 0)[i] = MAM__FULL_WORD;
  MAM__LOOP
  for (mam__u64 i = rank; i < mam__area_map_words(area); i += count)
    mam__area_moved(area)[i] = 0;
  MAM__LOOP
  for (mam__u64 i = rank; i < mam__area_part_count(area); i += count) {
    mam__area_kept(area)[i] = MAM__FULL_WORD;
    mam__area_parts(area)[i] = 0;
  }
  MAM__LOOP
  for (mam__u64 i = rank; i < area.page_count; i += count)
    *mam__page_entry(area.words, (mam__u32)i) = 0;
  MAM__LOOP
  for (mam__u64 i = rank; i < area.page_count; i += count)
    mam__area_rings(area)[i] = MAM__RING_NONE;
  MAM__LOOP
  for (mam__u64 i = rank; i < area.page_count; i += count)
    mam__area_owners(area)[i] = 0;
  if (rank == 0)
    area.words[-1] = 0;
}

/* Empties cursors, slots, parks and what is known about them, in the same way. */
MAM__INLINE void mam__slots_clear(struct mam__heap_control *control, mam__u64 rank, mam__u64 count) {
  const mam_device_heap *heap = &control->heap;
  if (rank == 0) {
    control->mode = mam__tuned_lazy(heap->tuning) ? MAM__MODE_LAZY : MAM__MODE_WATCHED;
    control->sweep_next = control->sweep_done = 0;
    control->run_cursor = control->kept_cursor = 0;
    control->kept_end = mam__tuned_lazy(heap->tuning) ? 0 : ~0u;
    control->parked = 0;
    control->parks_held = 0;
  }
  MAM__LOOP
  for (mam__u64 i = rank; i < (mam__u64)mam__park_count(heap) * MAM__PARK_WORDS; i += count)
    mam__parks(control)[i] = 0;
  MAM__LOOP
  for (mam__u64 i = rank; i < MAM__HOMES; i += count)
    mam__cursors(control)[i] = 0;
  MAM__LOOP
  for (mam__u64 i = rank; i < (mam__u64)heap->slot_count * MAM__HEAP_KINDS; i += count)
    *mam__slot_at(control, i) = mam__slot_limit(heap, mam__kind_numbered(control, (mam__u32)(i / heap->slot_count)));
  MAM__LOOP
  for (mam__u64 i = rank; i < MAM__HEAP_KINDS; i += count)
    control->missing[i] = 0;
  MAM__LOOP
  for (mam__u64 i = rank; i < MAM__HEAP_KINDS; i += count)
    control->held[i] = 0;
}

/* Makes a new superblock known: the heap has count of them.  Threads that wait for memory look again. */
MAM__INLINE void mam__superblocks_publish(struct mam__heap_control *control, mam__u32 count) {
  mam__store_relaxed_u32(&control->active, 0);
  /* acq_rel: after what was written to the new superblock */
  (void)mam__exchange_acq_rel_u32(&control->superblock_count, count);
  (void)mam__add_acq_rel_u32(mam__area_stamp(control->superblocks[0]), 2);
}

/* Frees what slots and parks hold, each thread a part.  No other thread may use the heap. */
MAM__INLINE void mam__slots_drain(struct mam__heap_control *control, mam__u64 rank, mam__u64 count) {
  const mam_device_heap *heap = &control->heap;
  MAM__LOOP
  for (mam__u64 i = rank; i < (mam__u64)mam__park_count(heap) * MAM__PARK_WORDS; i += count) {
    mam__u64 word = mam__exchange_release_u64(&mam__parks(control)[i], 0); /* also if it names no superblock */
    mam__u64 block = i % MAM__PARK_WORDS == 0 ? word : mam__park_address(word);
    if (i % MAM__PARK_WORDS != 0 && word != 0)
      (void)mam__add_relaxed_u32(&control->parked, 0u - mam__park_number(word));
    if (block != 0)
      (void)MAM__OUT_OF_SIGHT(mam__block_free)(control, block);
  }
  MAM__LOOP
  for (mam__u64 i = rank; i < (mam__u64)heap->slot_count * MAM__HEAP_KINDS; i += count) {
    mam__u32 size_class = mam__kind_numbered(control, (mam__u32)(i / heap->slot_count));
    mam__u32 limit = mam__slot_limit(heap, size_class);
    mam__u64 slot = mam__exchange_release_u64(mam__slot_at(control, i), limit);
    MAM__LOOP
    for (mam__u32 ticket = (mam__u32)(slot & MAM__SLOT_TICKETS); ticket < limit; ticket++)
      (void)MAM__OUT_OF_SIGHT(mam__block_free)(control, mam__slot_address(slot) +
                                                            (mam__u64)ticket * mam__class_bytes(size_class));
  }
}

#endif /* MAM_DETAIL_HEAP_BEGIN_H */
