/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_refill.h - how a slot gets its next span.
 *
 *   mam__held_set      says that the slot is about to hold chunks (heap_slots.h)
 *   mam__ring_take     a span that the slot had before and that is empty now: its words go from empty to full
 *   mam__refill_pages  else pages at the home's cursor, of which mam__span_write makes a span (heap_homes.h)
 *   mam__pages_any     else pages from anywhere (mam__slot_refill)
 *   mam__slot_publish  writes the slot's word; the first chunks are the caller's
 *   mam__slot_filled   what may follow later: the ring, the page map's upper levels, a span that is to be watched
 *
 * The slot's word is written before mam__slot_filled, since other threads wait for the word and none for the rest.
 *
 * Rings.  In a lazy heap the spans that a slot has had form a ring: each page on which one begins says which is next
 * (mam__area_rings), by a number of 16 bits within the home.  A ring only says where the slot looks first; the usage
 * words tell whether an empty span of the class is there.
 *
 *   15            6 5       0
 *   | turn          | page    |     the turn of the home's word (heap_homes.h); 0xffff: none
 *
 * A refill and the begin of a sweep meet in two words: the refill writes the span and then reads the mode, the sweep
 * changes the mode and then reads the spans, with mam__barrier_all between.  So at least one of them sees what the
 * other did, and no span remains unwatched.
 */
#ifndef MAM_DETAIL_HEAP_REFILL_H
#define MAM_DETAIL_HEAP_REFILL_H

#include <mam/detail/heap_slots.h>
#include <mam/detail/heap_sweep.h>

/* ---- Rings ---- */

/* This number says: the span has none. */
enum { MAM__RING_NONE = 0xffff };

MAM__INLINE mam__u32 mam__ring_number(mam__u32 page, mam__u32 home, mam__u32 home_count) {
  mam__u32 turn = ((page >> 6) - home) / home_count;
  return (page >> 6) < home || (page >> 6) - home != turn * home_count || turn >= MAM__RING_NONE >> 6
             ? (mam__u32)MAM__RING_NONE
             : turn << 6 | (page & 63);
}

/* The page of a number; MAM__NO_PAGE if there is none. */
MAM__INLINE mam__u32 mam__ring_page(mam__u32 page_count, mam__u32 number, mam__u32 home, mam__u32 home_count) {
  mam__u32 page = (home + (number >> 6) * home_count) << 6 | (number & 63);
  return number == MAM__RING_NONE || page >= page_count ? MAM__NO_PAGE : page;
}

/* Puts the span that begins at page into a ring, behind the span of the number `tried` (perhaps MAM__RING_NONE).  A
 * span without a number only leads to the ring. */
MAM__OUTLINE void mam__ring_insert(mam__u16 *rings, mam__u32 page_count, mam__u32 home, mam__u32 home_count,
                                   mam__u32 tried, mam__u32 page) {
  mam__u32 number = mam__ring_number(page, home, home_count), after = number;
  mam__u32 behind = mam__ring_page(page_count, tried, home, home_count);
  if (number == MAM__RING_NONE)
    after = tried;
  else if (behind != MAM__NO_PAGE) {
    after = mam__load_relaxed_u16(&rings[behind]);
    mam__store_relaxed_u16(&rings[behind], (mam__u16)number);
  }
  mam__store_relaxed_u16(&rings[page], (mam__u16)after);
}

/* Takes the next span in the ring after the one at prior, if it is empty: each of its words goes from empty to full by
 * compare-and-swap.  If a word is not empty, the others are put back.  Returns in the lower half the page, or
 * MAM__NO_PAGE; in the upper half the page + 1 of a span that was put back and has become watched meanwhile, or 0.
 * Calls nothing. */
MAM__OUTLINE mam__u64 mam__ring_take(mam__u64 *usage, const mam__u16 *rings, mam__u32 page_count, mam__u32 prior,
                                     mam__u32 size_class, mam__u32 chunks_log2, mam__u32 home, mam__u32 home_count) {
  mam__u32 page = mam__ring_page(page_count, mam__load_relaxed_u16(&rings[prior]), home, home_count), failed = 0;
  mam__u32 words = ((1u << chunks_log2) + 31) >> 5;
  if (page == MAM__NO_PAGE)
    return page;
  mam__u64 empty = mam__word_of(size_class, (mam__class_bytes(size_class) << chunks_log2) >> MAM__PAGE_SHIFT, words,
                                words > 1 ? 32 : 1u << chunks_log2);
  mam__u64 seen[MAM__PAGE_WORDS], watched = 0;
  usage += page * MAM__PAGE_WORDS;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    seen[i] = mam__cas_between_barriers_if_u64(i < words, &usage[i], empty, empty | mam__word_full(empty));
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    failed |= (mam__u32)(seen[i] != empty) << i;
  if (failed == 0)
    return page;
  /* relaxed: the chunks were not used.  The next thread that claims them sees the frees before, also through this
   * change. */
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    seen[i] =
        mam__and_relaxed_if_u64(i < words && (failed >> i & 1) == 0, &usage[i], ~(mam__u64)mam__word_full(empty), 0);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    watched |= seen[i] & MAM__WORD_WATCHED;
  return (watched != 0 ? (mam__u64)(page + 1) << 32 : 0) | MAM__NO_PAGE;
}

/* ---- Requests ---- */

/* A request for chunks that is to fill a slot: what a kernel knows of it and of the heap without loading anything. */
struct mam__request {
  struct mam__heap_control *control;
  struct mam__area area; /* the first superblock */
  mam__u64 *slot;        /* 0: the lanes are so many that they take whole spans */
  mam__u32 size_class, chunks_log2, home, home_count;
  mam__u32 prior;             /* the page of the slot's last span in area, or MAM__NO_PAGE */
  mam__u32 owner, slot_count; /* the slot's number in its kind plus 1; the number of slots */
  int lazy;                   /* as mam_device_heap's */
};

/* The request that a request word describes, for a slot by its number among all. */
MAM__INLINE struct mam__request mam__request_of(const mam_device_heap *heap, mam__u32 wanted, mam__u32 slot,
                                                mam__u32 prior) {
  mam__u32 number = slot & MAM__REST_SLOT, kind = wanted & MAM__REST_KIND;
  struct mam__request request = {heap->control,
                                 mam__heap_area(heap),
                                 (wanted & MAM__REST_WHOLE) != 0 ? 0 : &mam__slots(heap->control)[number],
                                 kind,
                                 slot >> MAM__REST_CHUNKS,
                                 wanted >> MAM__REST_HOME & 1023,
                                 mam__home_count(heap),
                                 prior,
                                 number - mam__kind_number(kind) * heap->slot_count + 1,
                                 heap->slot_count,
                                 (wanted & MAM__REST_LAZY) != 0};
  return request;
}

/* The number of the request's slot among all. */
MAM__INLINE mam__u32 mam__request_number(const struct mam__request *request) {
  return mam__kind_number(request->size_class) * request->slot_count + request->owner - 1;
}

/* ---- Filling a slot ---- */

/* Sets the bit of the slot's group in control->held.  The caller then refills the slot. */
MAM__INLINE void mam__held_set(const struct mam__request *request) {
  mam__u64 *held = &request->control->held[mam__kind_number(request->size_class)];
  mam__u64 bit = mam__held_bit(request->slot_count, request->owner - 1);
  if ((mam__load_relaxed_u64(held) & bit) == 0) /* otherwise all refills would change one word */
    (void)mam__or_before_barrier_u64(held, bit);
}

/* The same without the look, for a slot by its number among all. */
MAM__OUTLINE void mam__held_raise(struct mam__heap_control *control, mam__u32 slot) {
  mam__u32 count = control->heap.slot_count;
  (void)mam__or_before_barrier_u64(&control->held[slot / count], mam__held_bit(count, slot % count));
}

/* Does what is left after a slot got a new span of the first superblock.  flagged: the span's page, and MAM__REFILL_*.
 * prior: the page of the slot's last span, or MAM__NO_PAGE.  It comes after the slot's word was written, since other
 * threads wait for that word and none for this.  A thread that looks up the span's place in the ring too early finds
 * that of an older span. */
MAM__OUTLINE void mam__slot_filled(MAM__TAG(1) mam__u64 *usage, mam__u32 page_count, mam__u32 home, mam__u32 home_count,
                                   mam__u32 prior, mam__u32 flagged) {
  struct mam__area area = {0, usage, page_count, 0};
  mam__u16 *rings = mam__area_rings(area);
  mam__u32 page = flagged & MAM__REFILL_PAGE, tried = MAM__RING_NONE;
  if (prior < page_count) /* loaded early, so that it is under way during what follows */
    tried = mam__load_relaxed_u16(&rings[prior]);
  if ((flagged & MAM__REFILL_FILLED) != 0)
    MAM__OUT_OF_SIGHT(mam__map_filled)(mam__area_pages(area), mam__area_map_words(area), page >> 6);
  MAM__FORGET(page_count);
  if ((flagged & MAM__REFILL_RINGED) != 0)
    MAM__OUT_OF_SIGHT(mam__ring_insert)(rings, page_count, home, home_count, tried, page);
  if ((flagged & MAM__REFILL_WATCH) != 0)
    (void)MAM__OUT_OF_SIGHT(mam__span_watch)(area, page);
  if ((flagged & MAM__REFILL_STAMP) != 0)
    MAM__OUT_OF_SIGHT(mam__stamp_raise)(mam__area_stamp(area));
}

/* Writes a slot's word.  Returns what is left to do as MAM__REFILL_*: to watch a span that is not watched, if a sweep
 * has begun; to raise the stamp, if a thread may have missed what the slot holds (heap_slots.h).  first: the usage
 * words of the first superblock.  lazy: the span is not watched. */
MAM__INLINE mam__u32 mam__slot_publish(struct mam__heap_control *control, const mam__u64 *first, mam__u64 *slot,
                                       mam__u64 word, int lazy) {
  mam__barrier_all(); /* releases the words and entries of the span as well */
  mam__u32 mode = mam__look_after_barrier_u32(&control->mode);
  mam__u32 stamp = mam__look_after_barrier_u32((mam__u32 *)(first - 1) + 1);
  (void)mam__exchange_after_barrier_u64(slot, word);
  return (lazy && mode != MAM__MODE_LAZY ? MAM__REFILL_WATCH : 0) | ((stamp & 1) != 0 ? MAM__REFILL_STAMP : 0);
}

/* Gives a slot the span that mam__ring_take took.  The first count chunks are the caller's.  Returns the page;
 * MAM__NO_PAGE if nothing was taken. */
MAM__INLINE mam__u32 mam__slot_retake(const struct mam__request *request, mam__u64 taken, mam__u32 count) {
  struct mam__area area = request->area;
  mam__u32 page = (mam__u32)taken;
  if (taken >> 32 != 0) /* it became watched while it was in use */
    (void)MAM__OUT_OF_SIGHT(mam__span_watch)(area, (mam__u32)(taken >> 32) - 1);
  if (page == MAM__NO_PAGE)
    return page;
  /* What the chunks' last users did comes before what threads do that find the span in the slot.  Pairs with
   * mam__held_flush. */
  mam__barrier_all();
  mam__u32 stamp = mam__look_after_barrier_u32(mam__area_stamp(area));
  (void)mam__exchange_after_barrier_u64(request->slot, mam__slot_of(mam__area_address(area, page), count));
  if ((stamp & 1) != 0) {
    MAM__OUT_OF_SIGHT(mam__held_raise)(request->control, mam__request_number(request));
    MAM__OUT_OF_SIGHT(mam__stamp_raise)(mam__area_stamp(area));
  }
  return page;
}

/* Makes a span of pages that the caller took and gives it to the slot, if there is one.  flagged: the page, perhaps
 * with MAM__REFILL_FILLED.  The first chunks are the lanes'.  Returns how many they get.  Each lane takes part. */
MAM__INLINE mam__u32 mam__slot_fill(const struct mam__request *request, struct mam__area area, mam__u32 flagged,
                                    mam__u32 count, struct mam__lanes lanes) {
  mam__u32 limit = 1u << request->chunks_log2, bytes = mam__class_bytes(request->size_class);
  mam__u32 page = flagged & MAM__REFILL_PAGE;
  int ringed = request->lazy && request->slot != 0 && area.words == request->area.words;
  int lazy = ringed && mam__ring_number(page, request->home, request->home_count) != MAM__RING_NONE;
  count = count < limit ? count : limit;
  mam__span_write(area, page, request->size_class, (bytes << request->chunks_log2) >> MAM__PAGE_SHIFT, limit,
                  lazy ? 0 : MAM__WORD_WATCHED, request->slot != 0 ? request->owner : MAM__OWNER_NONE, lanes);
  MAM__FORGET(lanes.rank);
  mam__lanes_sync(lanes);
  if (lanes.rank != 0)
    return count;
  if (request->slot != 0)
    flagged |= mam__slot_publish(request->control, request->area.words, request->slot,
                                 mam__slot_of(mam__area_address(area, page), count), lazy);
  flagged |= ringed ? MAM__REFILL_RINGED : 0;
  if ((flagged & MAM__REFILL_STAMP) != 0)
    MAM__OUT_OF_SIGHT(mam__held_raise)(request->control, mam__request_number(request));
  if ((flagged & ~MAM__REFILL_PAGE) != 0)
    MAM__OUT_OF_SIGHT(mam__slot_filled)
  (area.words, area.page_count, request->home, request->home_count, request->prior, flagged);
  return count;
}

/* mam__slot_fill for a thread that acts alone, with pages of any superblock. */
MAM__INLINE struct mam__claim mam__slot_fill_alone(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                                   mam__u32 count, struct mam__found found) {
  mam__u32 limit = 1u << (slot >> MAM__REST_CHUNKS), owner = MAM__OWNER_NONE, flagged = 0;
  /* After a sweep new spans are watched from the beginning. */
  if ((wanted & (MAM__REST_LAZY | MAM__REST_WHOLE)) == MAM__REST_LAZY && found.area == control->superblocks &&
      mam__load_relaxed_u32(&control->mode) == MAM__MODE_LAZY)
    flagged = MAM__REFILL_RINGED;
  int lazy = flagged != 0 &&
             mam__ring_number(found.page, wanted >> MAM__REST_HOME & 1023, control->home_count) != MAM__RING_NONE;
  if ((wanted & MAM__REST_WHOLE) == 0) {
    owner = (slot & MAM__REST_SLOT) % control->heap.slot_count + 1;
    /* A check passes over a dry slot, so the slot is dry no more before the span's words are written.  The barrier
     * pairs with the acquire of the usage word in mam__block_at. */
    if (mam__slot_is_dry(mam__load_relaxed_u64(&mam__slots(control)[slot & MAM__REST_SLOT])))
      (void)mam__exchange_release_u64(&mam__slots(control)[slot & MAM__REST_SLOT],
                                      (1u << (slot >> MAM__REST_CHUNKS)) + 1);
    mam__barrier();
  }
  MAM__OUT_OF_SIGHT(mam__span_write_alone)(found.area, found.page, wanted & MAM__REST_KIND, limit, !lazy, owner);
  MAM__FORGET(wanted);
  MAM__FORGET(slot);
  MAM__FORGET_ADDRESS(control);
  struct mam__claim claim = {mam__area_address(*found.area, found.page), 0, mam__class_bytes(wanted & MAM__REST_KIND)};
  count = count < 1u << (slot >> MAM__REST_CHUNKS) ? count : 1u << (slot >> MAM__REST_CHUNKS);
  claim.mask = 0xffffffffu >> (32 - count);
  if ((wanted & MAM__REST_WHOLE) != 0)
    return claim;
  mam__u64 *place = &mam__slots(control)[slot & MAM__REST_SLOT];
  mam__u32 prior = mam__slot_page(mam__load_relaxed_u64(place), control->heap.base, control->heap.page_count);
  flagged |= found.page | mam__slot_publish(control, mam__heap_words(&control->heap), place,
                                            mam__slot_of(claim.address, count), lazy);
  if ((flagged & MAM__REFILL_STAMP) != 0)
    MAM__OUT_OF_SIGHT(mam__held_raise)(control, slot & MAM__REST_SLOT);
  if ((flagged & ~MAM__REFILL_PAGE) != 0)
    MAM__OUT_OF_SIGHT(mam__slot_filled)
  (found.area->words, found.area->page_count, wanted >> MAM__REST_HOME & 1023, control->home_count, prior, flagged);
  return claim;
}

/* Gives a slot a span in pages from anywhere, for a thread that acts alone; or, with MAM__REST_WHOLE, takes the span
 * for the thread itself.  The first count chunks are the thread's.  If there are no pages, the slot becomes dry. */
MAM__OUTLINE struct mam__claim mam__slot_refill(MAM__TAG(5) struct mam__heap_control *control, mam__u32 wanted,
                                                mam__u32 slot, mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  if ((wanted & MAM__REST_WHOLE) == 0)
    MAM__OUT_OF_SIGHT(mam__held_raise)(control, slot & MAM__REST_SLOT);
  struct mam__found found = mam__pages_any(
      control, (mam__class_bytes(wanted & MAM__REST_KIND) << (slot >> MAM__REST_CHUNKS)) >> MAM__PAGE_SHIFT, wanted);
  MAM__FORGET(slot);
  MAM__FORGET_ADDRESS(control);
  if (found.page != MAM__NO_PAGE)
    claim = mam__slot_fill_alone(control, wanted, slot, count, found);
  else if ((wanted & MAM__REST_WHOLE) == 0)
    (void)mam__exchange_release_u64(&mam__slots(control)[slot & MAM__REST_SLOT],
                                    MAM__SLOT_DRY | 1u << (slot >> MAM__REST_CHUNKS));
  return claim;
}

#endif /* MAM_DETAIL_HEAP_REFILL_H */
