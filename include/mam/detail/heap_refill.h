/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_refill.h - how a slot gets its next span.
 *
 *   mam_held_set      says that the slot is about to hold chunks (heap_slots.h)
 *   mam_ring_take     a span that the slot had before and that is empty now: its words go from empty to full
 *   mam_refill_pages  else pages at the home's cursor, of which mam_span_write makes a span (heap_homes.h)
 *   mam_pages_any     else pages from anywhere (mam_slot_refill)
 *   mam_slot_publish  writes the slot's word; the first chunks are the caller's
 *   mam_slot_filled   what may follow later: the ring, the page map's upper levels, a span that is to be watched
 *
 * The slot's word is written before mam_slot_filled, since other threads wait for the word and none for the rest.
 *
 * Rings.  In a lazy heap the spans that a slot has had form a ring: each page on which one begins says which is next
 * (area_rings), by a number of 16 bits within the home.  A ring only says where the slot looks first; the usage words
 * tell whether an empty span of the class is there.
 *
 *   15            6 5       0
 *   | turn          | page    |     the turn of the home's word (heap_homes.h); 0xffff: none
 *
 * A refill and the begin of a sweep meet in two words: the refill writes the span and then reads the mode, the sweep
 * changes the mode and then reads the spans, with mam_fence_all between.  So at least one of them sees what the other
 * did, and no span remains unwatched.
 */
#ifndef MAM_DETAIL_HEAP_REFILL_H
#define MAM_DETAIL_HEAP_REFILL_H

#include <mam/detail/heap_slots.h>
#include <mam/detail/heap_sweep.h>

/* ---- Rings ---- */

/* This number says: the span has none. */
enum { MAM_RING_NONE = 0xffff };

MAM_INLINE mam_u32 mam_ring_number(mam_u32 page, mam_u32 home, mam_u32 home_count) {
  mam_u32 turn = ((page >> 6) - home) / home_count;
  return (page >> 6) < home || (page >> 6) - home != turn * home_count || turn >= MAM_RING_NONE >> 6
             ? (mam_u32)MAM_RING_NONE
             : turn << 6 | (page & 63);
}

/* The page of a number; MAM_NO_PAGE if there is none. */
MAM_INLINE mam_u32 mam_ring_page(mam_u32 page_count, mam_u32 number, mam_u32 home, mam_u32 home_count) {
  mam_u32 page = (home + (number >> 6) * home_count) << 6 | (number & 63);
  return number == MAM_RING_NONE || page >= page_count ? MAM_NO_PAGE : page;
}

/* Puts the span that begins at page into a ring, behind the span of the number `tried` (perhaps MAM_RING_NONE).  A span
 * without a number only leads to the ring. */
MAM_OUTLINE void mam_ring_insert(mam_u16 *rings, mam_u32 page_count, mam_u32 home, mam_u32 home_count, mam_u32 tried,
                                 mam_u32 page) {
  mam_u32 number = mam_ring_number(page, home, home_count), after = number;
  mam_u32 behind = mam_ring_page(page_count, tried, home, home_count);
  if (number == MAM_RING_NONE)
    after = tried;
  else if (behind != MAM_NO_PAGE) {
    after = mam_load_relaxed_u16(&rings[behind]);
    mam_store_relaxed_u16(&rings[behind], (mam_u16)number);
  }
  mam_store_relaxed_u16(&rings[page], (mam_u16)after);
}

/* Takes the next span in the ring after the one at prior, if it is empty: each of its words goes from empty to full by
 * compare-and-swap.  If a word is not empty, the others are put back.  Returns in the lower half the page, or
 * MAM_NO_PAGE; in the upper half the page + 1 of a span that was put back and has become watched meanwhile, or 0.
 * Calls nothing. */
MAM_OUTLINE mam_u64 mam_ring_take(mam_u64 *usage, const mam_u16 *rings, mam_u32 page_count, mam_u32 prior,
                                  mam_u32 size_class, mam_u32 chunks_log2, mam_u32 home, mam_u32 home_count) {
  mam_u32 page = mam_ring_page(page_count, mam_load_relaxed_u16(&rings[prior]), home, home_count), failed = 0;
  mam_u32 words = ((1u << chunks_log2) + 31) >> 5;
  if (page == MAM_NO_PAGE)
    return page;
  mam_u64 empty = mam_word_of(size_class, (mam_class_bytes(size_class) << chunks_log2) >> MAM_PAGE_SHIFT, words,
                              words > 1 ? 32 : 1u << chunks_log2);
  mam_u64 seen[MAM_PAGE_WORDS], watched = 0;
  usage += page * MAM_PAGE_WORDS;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = mam_cas_between_fences_if_u64(i < words, &usage[i], empty, empty | mam_word_full(empty));
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    failed |= (mam_u32)(seen[i] != empty) << i;
  if (failed == 0)
    return page;
  /* relaxed: the chunks were not used.  The next thread that claims them sees the frees before, also through this
   * change. */
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = mam_and_relaxed_if_u64(i < words && (failed >> i & 1) == 0, &usage[i], ~(mam_u64)mam_word_full(empty), 0);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    watched |= seen[i] & MAM_WORD_WATCHED;
  return (watched != 0 ? (mam_u64)(page + 1) << 32 : 0) | MAM_NO_PAGE;
}

/* ---- Requests ---- */

/* A request for chunks that is to fill a slot: what a kernel knows of it and of the heap without loading anything. */
struct mam_request {
  struct mam_heap_control *control;
  struct mam_area area; /* the first superblock */
  mam_u64 *slot;        /* 0: the lanes are so many that they take whole spans */
  mam_u32 size_class, chunks_log2, home, home_count;
  mam_u32 prior;             /* the page of the slot's last span in area, or MAM_NO_PAGE */
  mam_u32 owner, slot_count; /* the slot's number in its kind plus 1; the number of slots */
  int lazy;                  /* as mam_heap's */
};

/* The request that a request word describes, for a slot by its number among all. */
MAM_INLINE struct mam_request mam_request_of(const mam_heap *heap, mam_u32 wanted, mam_u32 slot, mam_u32 prior) {
  mam_u32 number = slot & MAM_REST_SLOT, kind = wanted & MAM_REST_KIND;
  struct mam_request request = {heap->control,
                                {heap->base, heap->words, heap->page_count, 0},
                                (wanted & MAM_REST_WHOLE) != 0 ? 0 : &heap->slots[number],
                                kind,
                                slot >> MAM_REST_CHUNKS,
                                wanted >> MAM_REST_HOME & 1023,
                                mam_home_count(heap),
                                prior,
                                number - mam_kind_number(kind) * heap->slot_count + 1,
                                heap->slot_count,
                                (wanted & MAM_REST_LAZY) != 0};
  return request;
}

/* The number of the request's slot among all. */
MAM_INLINE mam_u32 mam_request_number(const struct mam_request *request) {
  return mam_kind_number(request->size_class) * request->slot_count + request->owner - 1;
}

/* ---- Filling a slot ---- */

/* Sets the bit of the slot's group in control->held.  The caller then refills the slot. */
MAM_INLINE void mam_held_set(const struct mam_request *request) {
  mam_u64 *held = &request->control->held[mam_kind_number(request->size_class)];
  mam_u64 bit = mam_held_bit(request->slot_count, request->owner - 1);
  if ((mam_load_relaxed_u64(held) & bit) == 0) /* otherwise all refills would change one word */
    (void)mam_or_before_fence_u64(held, bit);
}

/* The same without the look, for a slot by its number among all. */
MAM_OUTLINE void mam_held_raise(struct mam_heap_control *control, mam_u32 slot) {
  mam_u32 count = control->heap.slot_count;
  (void)mam_or_before_fence_u64(&control->held[slot / count], mam_held_bit(count, slot % count));
}

/* Does what is left after a slot got a new span of the first superblock.  flagged: the span's page, and MAM_REFILL_*.
 * prior: the page of the slot's last span, or MAM_NO_PAGE.  It comes after the slot's word was written, since other
 * threads wait for that word and none for this.  A thread that looks up the span's place in the ring too early finds
 * that of an older span. */
MAM_OUTLINE void mam_slot_filled(MAM_TAG(1) mam_u64 *usage, mam_u32 page_count, mam_u32 home, mam_u32 home_count,
                                 mam_u32 prior, mam_u32 flagged) {
  struct mam_area area = {0, usage, page_count, 0};
  mam_u16 *rings = mam_area_rings(area);
  mam_u32 page = flagged & MAM_REFILL_PAGE, tried = MAM_RING_NONE;
  if (prior < page_count) /* loaded early, so that it is under way during what follows */
    tried = mam_load_relaxed_u16(&rings[prior]);
  if ((flagged & MAM_REFILL_FILLED) != 0)
    MAM_OUT_OF_SIGHT(mam_map_filled)(mam_area_pages(area), mam_area_map_words(area), page >> 6);
  MAM_FORGET(page_count);
  if ((flagged & MAM_REFILL_RINGED) != 0)
    MAM_OUT_OF_SIGHT(mam_ring_insert)(rings, page_count, home, home_count, tried, page);
  if ((flagged & MAM_REFILL_WATCH) != 0)
    (void)MAM_OUT_OF_SIGHT(mam_span_watch)(area, page);
  if ((flagged & MAM_REFILL_STAMP) != 0)
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
}

/* Writes a slot's word.  Returns what is left to do as MAM_REFILL_*: to watch a span that is not watched, if a sweep
 * has begun; to raise the stamp, if a thread may have missed what the slot holds (heap_slots.h).  first: the usage
 * words of the first superblock.  lazy: the span is not watched. */
MAM_INLINE mam_u32 mam_slot_publish(struct mam_heap_control *control, const mam_u64 *first, mam_u64 *slot, mam_u64 word,
                                    int lazy) {
  mam_fence_all(); /* releases the words and entries of the span as well */
  mam_u32 mode = mam_look_after_fence_u32(&control->mode);
  mam_u32 stamp = mam_look_after_fence_u32((mam_u32 *)(first - 1) + 1);
  (void)mam_exchange_after_fence_u64(slot, word);
  return (lazy && mode != MAM_MODE_LAZY ? MAM_REFILL_WATCH : 0) | ((stamp & 1) != 0 ? MAM_REFILL_STAMP : 0);
}

/* Gives a slot the span that mam_ring_take took.  The first count chunks are the caller's.  Returns the page;
 * MAM_NO_PAGE if nothing was taken. */
MAM_INLINE mam_u32 mam_slot_retake(const struct mam_request *request, mam_u64 taken, mam_u32 count) {
  struct mam_area area = request->area;
  mam_u32 page = (mam_u32)taken;
  if (taken >> 32 != 0) /* it became watched while it was in use */
    (void)MAM_OUT_OF_SIGHT(mam_span_watch)(area, (mam_u32)(taken >> 32) - 1);
  if (page == MAM_NO_PAGE)
    return page;
  /* What the chunks' last users did comes before what threads do that find the span in the slot.  Pairs with
   * mam_held_flush. */
  mam_fence_all();
  mam_u32 stamp = mam_look_after_fence_u32(mam_area_stamp(area));
  (void)mam_exchange_after_fence_u64(request->slot, mam_slot_of(mam_area_address(area, page), count));
  if ((stamp & 1) != 0) {
    MAM_OUT_OF_SIGHT(mam_held_raise)(request->control, mam_request_number(request));
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
  }
  return page;
}

/* Before sm_80 this would cost a kernel ten registers as a part of it. */
#if MAM_ON_DEVICE && __CUDA_ARCH__ < 800
#define MAM_SLOT_FILL MAM_OUTLINE
#else
#define MAM_SLOT_FILL MAM_INLINE
#endif

/* Makes a span of pages that the caller took and gives it to the slot, if there is one.  flagged: the page, perhaps
 * with MAM_REFILL_FILLED.  The first chunks are the lanes'.  Returns how many they get.  Each lane takes part. */
MAM_SLOT_FILL mam_u32 mam_slot_fill(const struct mam_request *request, struct mam_area area, mam_u32 flagged,
                                    mam_u32 count, struct mam_lanes lanes) {
  mam_u32 limit = 1u << request->chunks_log2, bytes = mam_class_bytes(request->size_class);
  mam_u32 page = flagged & MAM_REFILL_PAGE;
  int ringed = request->lazy && request->slot != 0 && area.words == request->area.words;
  int lazy = ringed && mam_ring_number(page, request->home, request->home_count) != MAM_RING_NONE;
  count = count < limit ? count : limit;
  mam_span_write(area, page, request->size_class, (bytes << request->chunks_log2) >> MAM_PAGE_SHIFT, limit,
                 lazy ? 0 : MAM_WORD_WATCHED, request->slot != 0 ? request->owner : MAM_OWNER_NONE, lanes);
  MAM_FORGET(lanes.rank);
  mam_lanes_sync(lanes);
  if (lanes.rank != 0)
    return count;
  if (request->slot != 0)
    flagged |= mam_slot_publish(request->control, request->area.words, request->slot,
                                mam_slot_of(mam_area_address(area, page), count), lazy);
  flagged |= ringed ? MAM_REFILL_RINGED : 0;
  if ((flagged & MAM_REFILL_STAMP) != 0)
    MAM_OUT_OF_SIGHT(mam_held_raise)(request->control, mam_request_number(request));
  if ((flagged & ~MAM_REFILL_PAGE) != 0)
    MAM_OUT_OF_SIGHT(mam_slot_filled)
  (area.words, area.page_count, request->home, request->home_count, request->prior, flagged);
  return count;
}

/* mam_slot_fill for a thread that acts alone, with pages of any superblock. */
MAM_OUTLINE struct mam_claim mam_slot_fill_alone(struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                                 mam_u32 count, struct mam_found found) {
  mam_u32 limit = 1u << (slot >> MAM_REST_CHUNKS), owner = MAM_OWNER_NONE, flagged = 0;
  /* After a sweep new spans are watched from the beginning. */
  if ((wanted & (MAM_REST_LAZY | MAM_REST_WHOLE)) == MAM_REST_LAZY && found.area == control->superblocks &&
      mam_load_relaxed_u32(&control->mode) == MAM_MODE_LAZY)
    flagged = MAM_REFILL_RINGED;
  int lazy =
      flagged != 0 && mam_ring_number(found.page, wanted >> MAM_REST_HOME & 1023, control->home_count) != MAM_RING_NONE;
  if ((wanted & MAM_REST_WHOLE) == 0)
    owner = (slot & MAM_REST_SLOT) % control->heap.slot_count + 1;
  MAM_OUT_OF_SIGHT(mam_span_write_alone)(found.area, found.page, wanted & MAM_REST_KIND, limit, !lazy, owner);
  MAM_FORGET(wanted);
  MAM_FORGET(slot);
  MAM_FORGET_ADDRESS(control);
  struct mam_claim claim = {mam_area_address(*found.area, found.page), 0, mam_class_bytes(wanted & MAM_REST_KIND)};
  count = count < 1u << (slot >> MAM_REST_CHUNKS) ? count : 1u << (slot >> MAM_REST_CHUNKS);
  claim.mask = 0xffffffffu >> (32 - count);
  if ((wanted & MAM_REST_WHOLE) != 0)
    return claim;
  mam_u64 *place = &control->heap.slots[slot & MAM_REST_SLOT];
  mam_u32 prior = mam_slot_page(mam_load_relaxed_u64(place), control->heap.base, control->heap.page_count);
  flagged |=
      found.page | mam_slot_publish(control, control->heap.words, place, mam_slot_of(claim.address, count), lazy);
  if ((flagged & MAM_REFILL_STAMP) != 0)
    MAM_OUT_OF_SIGHT(mam_held_raise)(control, slot & MAM_REST_SLOT);
  if ((flagged & ~MAM_REFILL_PAGE) != 0)
    MAM_OUT_OF_SIGHT(mam_slot_filled)
  (found.area->words, found.area->page_count, wanted >> MAM_REST_HOME & 1023, control->home_count, prior, flagged);
  return claim;
}

/* Gives a slot a span in pages from anywhere, for a thread that acts alone; or, with MAM_REST_WHOLE, takes the span for
 * the thread itself.  The first count chunks are the thread's.  If there are no pages, the slot becomes dry. */
MAM_OUTLINE struct mam_claim mam_slot_refill(MAM_TAG(5) struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                             mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  if ((wanted & MAM_REST_WHOLE) == 0)
    MAM_OUT_OF_SIGHT(mam_held_raise)(control, slot & MAM_REST_SLOT);
  struct mam_found found = mam_pages_any(control, mam_span_pages(control->heap.chunks, wanted & MAM_REST_KIND), wanted);
  MAM_FORGET(slot);
  MAM_FORGET_ADDRESS(control);
  if (found.page != MAM_NO_PAGE)
    claim = MAM_OUT_OF_SIGHT(mam_slot_fill_alone)(control, wanted, slot, count, found);
  else if ((wanted & MAM_REST_WHOLE) == 0)
    (void)mam_exchange_release_u64(&control->heap.slots[slot & MAM_REST_SLOT],
                                   MAM_SLOT_DRY | 1u << (slot >> MAM_REST_CHUNKS));
  return claim;
}

#endif /* MAM_DETAIL_HEAP_REFILL_H */
