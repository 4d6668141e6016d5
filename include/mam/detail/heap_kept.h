/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_kept.h - kept words: memory of freed long runs that the next long run takes quickly.
 *
 * In a lazy heap, when a long run of the first superblock is freed, the whole words of the page map that it had stay
 * taken there and are kept: the map of kept words gets a 0 for each of them.  The next long run takes up to 64 such
 * words, 16 MiB, by one atomic operation.
 *
 *   page map     1111 1111 1111 ...       all taken
 *   kept map     1  0  0  1 ...           a bit for each word of the page map; 0: kept
 *
 * When a request finds no pages, words are not kept any more, until the heap is reset.  Requests in need, and all for
 * long runs, give the kept words back to the page map, a part at a time.
 *
 *   control->kept_end    below MAM__KEPT_OFF: words are kept, but none from there on
 *                        else: no more words are kept; so many parts below MAM__KEPT_DONE may have some
 *
 * Many threads ask for runs of the same length at the same time.  A cursor gives each of them a turn, and a turn is a
 * place of its own (mam__kept_place): places lie side by side, none crosses the end of a word of the kept map, and a
 * place of more than 64 words begins with a word.  If the words of a place are not all there, the next turn is tried;
 * after MAM__KEPT_TURNS of them the page map is searched.
 */
#ifndef MAM_DETAIL_HEAP_KEPT_H
#define MAM_DETAIL_HEAP_KEPT_H

#include <mam/detail/heap_pages.h>

enum {
  /* A thread tries so many turns before it searches. */
  MAM__KEPT_TURNS = 8,
  MAM__KEPT_OFF = 1 << 29,
  MAM__KEPT_DONE = 1 << 30
};

/* ---- Giving ---- */

/* Keeps words of the page map that the caller owns. */
MAM__OUTLINE void mam__kept_give(MAM__TAG(1) struct mam__area area, mam__u32 index, mam__u32 count) {
  MAM__LOOP
  while (count != 0) {
    mam__u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    /* release: what the pages' last users did comes before what the next ones do. */
    (void)mam__and_release_u64(&mam__area_kept(area)[index >> 6], ~mam__run_bits(here, from));
    index += here;
    count -= here;
  }
}

/* After words were given to the kept map, from index on: if another thread has ended meanwhile that words are kept,
 * gives those that are still there back to the page map. */
MAM__OUTLINE void mam__kept_settle(mam__u32 *kept_end, struct mam__area area, mam__u32 index, mam__u32 count) {
  /* Either this sees the end, or that thread sees the words. */
  if (mam__look_after_change_u32(kept_end) < MAM__KEPT_OFF)
    return;
  MAM__LOOP
  for (mam__u32 last = index + count; index < last; index++) {
    mam__u64 bit = 1ull << (index & 63);
    if ((mam__or_acquire_u64(&mam__area_kept(area)[index >> 6], bit) & bit) == 0) /* pairs with mam__kept_give */
      MAM__OUT_OF_SIGHT(mam__pages_clear)(area, index, MAM__FULL_WORD);
  }
}

/* Raises control->kept_end: words before `end` may be kept when a long run is freed. */
MAM__OUTLINE void mam__kept_extend(MAM__TAG(1) struct mam__heap_control *control, mam__u32 end) {
  mam__u32 known = mam__load_relaxed_u32(&control->kept_end);
  MAM__LOOP
  while (known < end) {
    mam__u32 seen = mam__cas_acq_rel_u32(&control->kept_end, known, end);
    known = seen == known ? end : seen;
  }
}

/* ---- No more ---- */

/* Counts words of the page map that were swept, or parts whose kept words were given back.  The last one ends the
 * sweep. acq_rel: a thread that relies on the mode sees all of that. */
MAM__INLINE void mam__swept(struct mam__heap_control *control, mam__u32 count) {
  mam__u32 all = mam__area_map_words(control->superblocks[0]) + mam__area_part_count(control->superblocks[0]);
  if (mam__add_acq_rel_u32(&control->sweep_done, count) + count == all)
    (void)mam__exchange_acq_rel_u32(&control->mode, MAM__MODE_WATCHED);
}

/* Gives the kept words of a part back to the page map, after words are not kept any more.  Returns the part, or
 * MAM__NO_PAGE if all have been given back.  The caller counts in control->opening, since others miss what this has
 * in its hands, and counts the part by mam__swept. */
MAM__OUTLINE mam__u32 mam__kept_drain(struct mam__heap_control *control, struct mam__area area) {
  mam__u32 at = mam__load_relaxed_u32(&control->kept_end);
  if (at < MAM__KEPT_DONE)
    at = mam__add_acq_rel_u32(&control->kept_end, 1); /* release: the count in control->opening comes before */
  if (at >= MAM__KEPT_DONE)
    return MAM__NO_PAGE;
  mam__u32 part = MAM__KEPT_DONE - 1 - at;
  /* acq_rel: pairs with mam__kept_give; and a thread that gives words here after this sees that none are kept. */
  mam__u64 words = ~mam__or_acq_rel_u64(&mam__area_kept(area)[part], MAM__FULL_WORD);
  MAM__LOOP
  while (words != 0) {
    mam__u32 from = mam__lowest_u64(words), row = ~(words >> from) != 0 ? mam__lowest_u64(~(words >> from)) : 64;
    words &= ~mam__run_bits(row, from);
    mam__pages_release(area, part << 12 | from << 6, row << 6);
  }
  return part;
}

/* Ends that words are kept, and gives parts back until it can take a run of pages that begins in one of them.  Returns
 * the page, or MAM__NO_PAGE. */
MAM__OUTLINE mam__u32 mam__kept_claim(MAM__TAG(3) struct mam__heap_control *control, mam__u32 count) {
  const struct mam__area *area = &control->superblocks[0];
  mam__u32 page = MAM__NO_PAGE, part, known = mam__load_relaxed_u32(&control->kept_end);
  MAM__LOOP
  while (known < MAM__KEPT_OFF) {
    mam__u32 parts = (known + 63) >> 6;
    mam__u32 seen = mam__cas_acq_rel_u32(&control->kept_end, known, MAM__KEPT_DONE - parts);
    mam__barrier_all(); /* pairs with mam__kept_settle */
    if (seen == known) {
      mam__swept(control, mam__area_part_count(*area) - parts);
      break;
    }
    known = seen;
  }
  (void)mam__add_relaxed_u32(&control->opening[MAM__HEAP_KINDS], 1);
  MAM__LOOP
  while (page == MAM__NO_PAGE && (part = MAM__OUT_OF_SIGHT(mam__kept_drain)(control, *area)) != MAM__NO_PAGE) {
    mam__swept(control, 1);
    if (count <= area->page_count)
      page = mam__words_search(area, count, part << 6, mam__part_end(*area, part));
  }
  (void)mam__add_acq_rel_u32(&control->opening[MAM__HEAP_KINDS], ~0u); /* release: as in mam__opening_end */
  return page;
}

/* ---- Taking ---- */

/* Takes more than 64 kept words in a row, from the word `at` of their map on.  Returns whether they were all there.
 * Words are taken whole, so those behind the first count are given back. */
MAM__OUTLINE int mam__kept_take_words(MAM__TAG(1) mam__u32 at, mam__u32 count, const struct mam__area *area) {
  mam__u32 whole = (count + 63) >> 6, got = MAM__OUT_OF_SIGHT(mam__map_take_words)(mam__area_kept(*area), at, whole);
  mam__u32 used = got == whole ? count : 0;
  MAM__OUT_OF_SIGHT(mam__kept_give)(*area, (at << 6) + used, (got << 6) - used);
  return got == whole;
}

/* The place of a turn for count words; MAM__NO_PAGE if there is none before end. */
MAM__INLINE mam__u32 mam__kept_place(mam__u32 turn, mam__u32 count, mam__u32 end) {
  if (count > 64) {
    mam__u32 whole = (count + 63) >> 6, places = (end >> 6) / whole;
    return places == 0 ? (mam__u32)MAM__NO_PAGE : turn % places * whole << 6;
  }
  mam__u32 in_word = 64 / count, places = (end >> 6) * in_word + (end & 63) / count, place = turn % places;
  return (place / in_word << 6) + place % in_word * count;
}

/* Takes count kept words from index on, if all of them are there. */
MAM__OUTLINE int mam__kept_take_at(MAM__TAG(1) mam__u32 index, const struct mam__area *area, mam__u32 count) {
  if (count > 64)
    return MAM__OUT_OF_SIGHT(mam__kept_take_words)(index >> 6, count, area);
  mam__u64 *word = &mam__area_kept(*area)[index >> 6], bits = mam__run_bits(count, index & 63);
  mam__u64 old = mam__or_acquire_u64(word, bits); /* pairs with mam__kept_give */
  if ((old & bits) != 0 && (bits & ~old) != 0)
    (void)mam__and_release_u64(word, old | ~bits);
  return (old & bits) == 0;
}

/* Takes the kept words of the next turn that has them, up to MAM__KEPT_TURNS turns. */
MAM__OUTLINE mam__u32 mam__kept_take_turns(struct mam__heap_control *control, const struct mam__area *area,
                                           mam__u32 count, mam__u32 end) {
  MAM__LOOP
  for (int i = 0; i < MAM__KEPT_TURNS; i++) {
    mam__u32 place = mam__kept_place(mam__add_relaxed_u32(&control->kept_cursor, 1), count, end);
    if (place == MAM__NO_PAGE)
      return place;
    int took = MAM__OUT_OF_SIGHT(mam__kept_take_at)(place, area, count);
    mam__u32 whole = count > 64 ? (count + 63) & ~63u : count, used = took ? count : 0;
    if (used != whole) /* some words were perhaps taken and given back */
      MAM__OUT_OF_SIGHT(mam__kept_settle)(&control->kept_end, *area, place + used, whole - used);
    if (took)
      return place;
  }
  return MAM__NO_PAGE;
}

/* Takes a long run out of kept words.  Turns go through all words that a long run ever had.  If words are not kept any
 * more, it helps to give them back: threads would search in vain for what is only given back later. */
MAM__OUTLINE mam__u32 mam__run_take_kept(struct mam__heap_control *control, const struct mam__area *area,
                                         mam__u32 pages) {
  mam__u32 count = (pages + 63) >> 6, end = mam__load_relaxed_u32(&control->kept_end);
  if (end >= MAM__KEPT_OFF && end < MAM__KEPT_DONE &&
      MAM__OUT_OF_SIGHT(mam__kept_drain)(control, *area) != MAM__NO_PAGE)
    mam__swept(control, 1);
  if (pages > area->page_count || count > end || end >= MAM__KEPT_OFF)
    return MAM__NO_PAGE;
  mam__u32 first = MAM__OUT_OF_SIGHT(mam__kept_take_turns)(control, area, count, end);
  if (first == MAM__NO_PAGE)
    return first;
  if ((pages & 63) != 0)
    MAM__OUT_OF_SIGHT(mam__pages_clear)(*area, first + (pages >> 6), mam__run_bits(64 - (pages & 63), pages & 63));
  return first << 6;
}

#endif /* MAM_DETAIL_HEAP_KEPT_H */
