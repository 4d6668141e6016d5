/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_refill.h - how a slot gets its next span.
 *
 *   mam__ring_take        a span that the slot had before and that is empty now; mam__slot_again gives it to the slot
 *   mam__slot_anew        else a span in pages at the home's cursor (heap_homes.h)
 *   mam__slot_renewed     what may follow later: the ring, the page map's upper levels, a span that is to be watched
 *   mam__slot_fill_alone  else a span in pages from anywhere, which a request in need took (heap_scarce.h)
 *
 * Each of the first two says that the slot is about to hold chunks (control->held, see heap_slots.h), makes the span
 * the slot's, and writes the slot's word.  mam__slot_renewed comes after that: other threads wait for the word and none
 * for the rest.
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

/* ---- What remains after a refill ---- */

/* Sets the bit of the slot's group in control->held, for a slot by its number among all. */
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
    mam__map_filled(mam__area_pages(area), mam__area_map_words(area), page >> 6);
  MAM__FORGET(page_count);
  if ((flagged & MAM__REFILL_RINGED) != 0)
    MAM__OUT_OF_SIGHT(mam__ring_insert)(rings, page_count, home, home_count, tried, page);
  if ((flagged & MAM__REFILL_WATCH) != 0)
    (void)mam__span_watch(area, page);
  if ((flagged & MAM__REFILL_STAMP) != 0)
    mam__stamp_raise(mam__area_stamp(area));
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

/* ---- Filling a slot ---- */

/* What a refill of a slot needs to know of it, by a request word and the slot's number among all. */
struct mam__renewal {
  mam__u64 *place;
  mam__u32 kind, home, limit, owner;
};
MAM__INLINE struct mam__renewal mam__renewal_of(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot) {
  mam__u32 number = slot & MAM__REST_SLOT, kind = wanted & MAM__REST_KIND, count = control->heap.slot_count;
  struct mam__renewal renewal = {mam__slot_at(control, number), kind, wanted >> MAM__REST_HOME & 1023,
                                 1u << (slot >> MAM__REST_CHUNKS), number - mam__kind_number(kind) * count + 1};
  return renewal;
}
/* The word of control->held for the slot's group.  Its bit is set before the barrier of a refill, if it was not seen to
 * be 1: otherwise all refills would change one word. */
MAM__INLINE mam__u64 *mam__renewal_held(struct mam__heap_control *control, struct mam__renewal renewal) {
  return &control->held[mam__kind_number(renewal.kind)];
}
MAM__INLINE void mam__renewal_hold(struct mam__heap_control *control, struct mam__renewal renewal, mam__u64 held) {
  mam__u64 bit = mam__held_bit(control->heap.slot_count, renewal.owner - 1);
  if ((held & bit) == 0)
    (void)mam__or_before_barrier_u64(mam__renewal_held(control, renewal), bit);
}

/* mam__slot_again, after mam__ring_take, and mam__slot_anew refill a slot for a thread that has the task.  prior: the
 * page of the slot's last span in the first superblock; not MAM__NO_PAGE.  The first count chunks are the caller's, as
 * far as there are so many.  They return the slot's word without tickets, and in place of these what is left for
 * mam__slot_renewed, in the bits of MAM__RENEWED.  If mam__slot_anew got nothing, it returns 0; or MAM__SLOT_DRY, if
 * chunks of split spans are to be looked for before pages elsewhere.  Other threads wait for them, so they call little,
 * and what they have to load is under way together. */
enum { MAM__RENEWED = 15 };
MAM__INLINE int mam__is_renewed(mam__u64 renewed) { return renewed > MAM__SLOT_DRY; }

/* So many words of a span are changed together; fewer where the linker counts the registers of each function. */
#if MAM__ON_DEVICE && defined(__CUDACC_RDC__)
enum { MAM__AGAIN_TOGETHER = __CUDA_ARCH__ < 1000 ? 4 : 2 };
#else
enum { MAM__AGAIN_TOGETHER = MAM__PAGE_WORDS };
#endif

/* Makes the words of an empty span full, by compare-and-swap.  Returns which were not empty: a bit for each. */
MAM__INLINE mam__u32 mam__ring_fill(mam__u64 *usage, mam__u32 words, mam__u64 full) {
  mam__u64 empty = mam__word_emptied(full), seen[MAM__AGAIN_TOGETHER];
  mam__u32 failed = 0;
  MAM__FORGET_ADDRESS(empty); /* otherwise each compare-and-swap waits for the one before */
  MAM__FORGET_ADDRESS(full);
  MAM__LOOP
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i += MAM__AGAIN_TOGETHER) {
    MAM__UNROLL
    for (mam__u32 j = 0; j < MAM__AGAIN_TOGETHER; j++)
      seen[j] = i + j == 0 ? mam__cas_between_barriers_u64(usage, empty, full)
                           : mam__cas_between_barriers_if_u64(i + j < words, &usage[i + j], empty, full);
    MAM__UNROLL
    for (mam__u32 j = 0; j < MAM__AGAIN_TOGETHER; j++)
      failed |= (mam__u32)(seen[j] != empty) << (i + j);
  }
  return failed;
}

/* Makes the words empty again that mam__ring_fill filled.  Returns whether one has become watched meanwhile.  relaxed:
 * the chunks were not used.  The next thread that claims them sees the frees before, also through this change. */
MAM__INLINE int mam__ring_unfill(mam__u64 *usage, mam__u32 words, mam__u64 full, mam__u32 failed) {
  mam__u64 seen[MAM__AGAIN_TOGETHER], watched = 0;
  MAM__LOOP
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i += MAM__AGAIN_TOGETHER) {
    MAM__UNROLL
    for (mam__u32 j = 0; j < MAM__AGAIN_TOGETHER; j++)
      seen[j] = mam__or_relaxed_if_u64(i + j < words && (failed >> (i + j) & 1) == 0, &usage[i + j],
                                       mam__word_whole(full), 0);
    MAM__UNROLL
    for (mam__u32 j = 0; j < MAM__AGAIN_TOGETHER; j++)
      watched |= seen[j] & MAM__WORD_WATCHED;
  }
  return watched != 0;
}

/* Takes the next span in the ring after the one at prior, if it is empty.  Returns the page; MAM__NO_PAGE if it took
 * none. */
MAM__OUTLINE mam__u32 mam__ring_take(struct mam__heap_control *control, mam__u64 *usage, mam__u32 page_count,
                                     mam__u32 wanted, mam__u32 slot, mam__u32 prior) {
  struct mam__area area = {0, usage, page_count, 0};
  struct mam__renewal renewal = mam__renewal_of(control, wanted, slot);
  mam__u64 held = mam__load_relaxed_u64(mam__renewal_held(control, renewal));
  mam__u32 number = mam__load_relaxed_u16(&mam__area_rings(area)[prior]), words = (renewal.limit + 31) >> 5;
  mam__u32 page = mam__ring_page(page_count, number, renewal.home, control->home_count);
  if (page == MAM__NO_PAGE)
    return page;
  mam__renewal_hold(control, renewal, held);
  mam__u64 full = mam__word_of(renewal.kind, mam__request_pages(wanted, slot), words, words > 1 ? 32 : renewal.limit);
  mam__u32 failed = mam__ring_fill(&usage[page * MAM__PAGE_WORDS], words, full);
  if (failed == 0)
    return page;
  if (mam__ring_unfill(&usage[page * MAM__PAGE_WORDS], words, full, failed))
    (void)mam__span_watch(area, page);
  return MAM__NO_PAGE;
}

/* Gives the slot the span that mam__ring_take took.  The barrier stands here and not there: it empties the L1 cache, in
 * which lie the registers that the function gives back to its caller. */
MAM__INLINE mam__u64 mam__slot_again(const mam_device_heap *heap, mam__u32 slot, mam__u32 page, mam__u32 count) {
  /* What the chunks' last users did comes before what threads do that find the span in the slot.  Pairs with
   * mam__held_flush. */
  mam__barrier_all();
  struct mam__area area = mam__area_anew(heap, page);
  mam__u32 stamp = mam__look_after_barrier_u32(mam__area_stamp(area));
  mam__u64 word = mam__slot_of(mam__area_address(area, page), 0);
  (void)mam__exchange_after_barrier_u64(mam__slot_at(heap->control, slot & MAM__REST_SLOT), word | count);
  return word | ((stamp & 1) != 0 ? MAM__REFILL_STAMP >> MAM__REFILL_FLAGS : 0);
}

/* Takes the next span of the slot's ring, if that is empty, and gives it to the slot. */
MAM__OUTLINE mam__u64 mam__slot_again_apart(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                            mam__u32 prior, mam__u32 count) {
  mam__u32 page = MAM__OUT_OF_SIGHT(mam__ring_take)(control, mam__heap_words(&control->heap), control->heap.page_count,
                                                    wanted, slot, prior);
  return page != MAM__NO_PAGE ? mam__slot_again(&control->heap, slot, page, count) : 0;
}

/* Makes a span of pages that mam__refill_pages took, which returned flagged: for the slot, or with MAM__REST_WHOLE for
 * no slot. */
MAM__INLINE mam__u64 mam__slot_begin(struct mam__heap_control *control, struct mam__area area, mam__u32 wanted,
                                     mam__u32 slot, mam__u32 count, mam__u32 flagged) {
  struct mam__renewal renewal = mam__renewal_of(control, wanted, slot);
  mam__u32 page = flagged & MAM__REFILL_PAGE, whole = wanted & MAM__REST_WHOLE;
  int ringed = (wanted & MAM__REST_LAZY) != 0 && whole == 0;
  int lazy = ringed && mam__ring_number(page, renewal.home, control->home_count) != MAM__RING_NONE;
  mam__span_write(area, page, renewal.kind, mam__request_pages(wanted, slot), renewal.limit,
                  lazy ? 0 : MAM__WORD_WATCHED, whole != 0 ? MAM__OWNER_NONE : renewal.owner);
  if (whole == 0) {
    count = count < renewal.limit ? count : renewal.limit;
    flagged |=
        mam__slot_publish(control, area.words, renewal.place, mam__slot_of(mam__area_address(area, page), count), lazy);
  }
  flagged |= ringed ? MAM__REFILL_RINGED : 0;
  return mam__slot_of(mam__area_address(area, page), flagged >> MAM__REFILL_FLAGS);
}

/* Takes pages of the home and makes a span of them.  With MAM__REST_WHOLE no slot gets it. */
MAM__OUTLINE mam__u64 mam__slot_anew(struct mam__heap_control *control, mam__u64 base, mam__u32 page_count,
                                     mam__u32 wanted, mam__u32 slot, mam__u32 count) {
  struct mam__area area = mam__area_at(base, page_count);
  struct mam__renewal renewal = mam__renewal_of(control, wanted, slot);
  mam__u64 held = mam__load_relaxed_u64(mam__renewal_held(control, renewal));
  mam__u64 at = mam__add_relaxed_u64(&mam__cursors(control)[renewal.home], mam__request_pages(wanted, slot));
  if ((wanted & MAM__REST_WHOLE) == 0)
    mam__renewal_hold(control, renewal, held);
  mam__u32 flagged = mam__refill_pages(control, area, wanted, slot, at);
  MAM__FORGET(slot);
  MAM__FORGET(wanted);
  MAM__FORGET_ADDRESS(control);
  MAM__FORGET(page_count);
  if (flagged == MAM__NO_PAGE)
    return (wanted & MAM__REST_WHOLE) == 0 && mam__pages_are_scarce(control, area, mam__request_pages(wanted, slot))
               ? MAM__SLOT_DRY
               : 0;
  return mam__slot_begin(control, area, wanted, slot, count, flagged);
}

/* Does what a refill has left to do.  renewed: what it returned.  Returns the slot's word without tickets. */
MAM__OUTLINE mam__u64 mam__slot_renewed(MAM__TAG(1) struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                        mam__u32 prior, mam__u64 renewed) {
  mam__u32 flags = (mam__u32)renewed << MAM__REFILL_FLAGS;
  if ((flags & MAM__REFILL_STAMP) != 0)
    MAM__OUT_OF_SIGHT(mam__held_raise)(control, slot & MAM__REST_SLOT);
  MAM__OUT_OF_SIGHT(mam__slot_filled)
  (mam__heap_words(&control->heap), control->heap.page_count, wanted >> MAM__REST_HOME & 1023, control->home_count,
   prior, flags | mam__heap_page(&control->heap, renewed));
  return renewed & ~(mam__u64)MAM__RENEWED;
}

/* Gives a slot a span of pages of any superblock that the thread took; with MAM__REST_WHOLE no slot gets it.  The first
 * count chunks are the thread's. */
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
    if (mam__slot_is_dry(mam__load_relaxed_u64(mam__slot_at(control, slot & MAM__REST_SLOT))))
      (void)mam__exchange_release_u64(mam__slot_at(control, slot & MAM__REST_SLOT),
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
  mam__u64 *place = mam__slot_at(control, slot & MAM__REST_SLOT);
  mam__u32 prior = mam__heap_page(&control->heap, mam__load_relaxed_u64(place));
  flagged |= found.page | mam__slot_publish(control, mam__heap_words(&control->heap), place,
                                            mam__slot_of(claim.address, count), lazy);
  if ((flagged & MAM__REFILL_STAMP) != 0)
    MAM__OUT_OF_SIGHT(mam__held_raise)(control, slot & MAM__REST_SLOT);
  if ((flagged & ~MAM__REFILL_PAGE) != 0)
    MAM__OUT_OF_SIGHT(mam__slot_filled)
  (found.area->words, found.area->page_count, wanted >> MAM__REST_HOME & 1023, control->home_count, prior, flagged);
  return claim;
}

#endif /* MAM_DETAIL_HEAP_REFILL_H */
