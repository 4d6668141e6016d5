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
 * mam__kept_flush gives all kept words back to the page map, when the heap begins to sweep because pages are scarce.
 *
 * Many threads ask for runs of the same length at the same time.  A cursor gives each of them a turn, and a turn is a
 * place of its own (mam__kept_place): places lie side by side, none crosses the end of a word of the kept map, and a
 * place of more than 64 words begins with a word.  If the words of a place are not all there, the next turn is tried;
 * after MAM__KEPT_TURNS of them the map is searched.
 */
#ifndef MAM_DETAIL_HEAP_KEPT_H
#define MAM_DETAIL_HEAP_KEPT_H

#include <mam/detail/heap_pages.h>

/* A thread tries so many turns before it searches. */
enum { MAM__KEPT_TURNS = 8 };

/* ---- Giving ---- */

/* Keeps words of the page map that the caller owns. */
MAM__OUTLINE void mam__kept_give(MAM__TAG(1) struct mam__area area, mam__u32 index, mam__u32 count) {
  mam__u64 *level = mam__area_kept(area);
  MAM__LOOP
  while (count != 0) {
    mam__u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    /* release: what the pages' last users did comes before what the next ones do. */
    (void)mam__and_release_u64(&level[index >> 6], ~mam__run_bits(here, from));
    MAM__OUT_OF_SIGHT(mam__map_words_opened)(level, mam__area_kept_words(area), index >> 6, 1);
    index += here;
    count -= here;
  }
}

/* Gives all kept words back to the page map. */
MAM__OUTLINE void mam__kept_flush(struct mam__area area) {
  mam__u32 words = mam__area_map_words(area);
  MAM__LOOP
  for (mam__u32 i = 0; i < words; i++) {
    mam__u64 *kept = &mam__area_kept(area)[i >> 6], bit = 1ull << (i & 63);
    if (mam__load_relaxed_u64(kept) == MAM__FULL_WORD)
      i |= 63;
    else if ((mam__or_acq_rel_u64(kept, bit) & bit) == 0) /* acquire: pairs with mam__kept_give */
      MAM__OUT_OF_SIGHT(mam__pages_clear)(area, i, MAM__FULL_WORD);
  }
}

/* Raises control->kept_end: words before page will be kept when a new long run is freed. */
MAM__OUTLINE void mam__kept_extend(MAM__TAG(1) struct mam__heap_control *control, mam__u32 page) {
  mam__u32 known = mam__load_relaxed_u32(&control->kept_end);
  MAM__LOOP
  while (known < page >> 6) {
    mam__u32 seen = mam__cas_acq_rel_u32(&control->kept_end, known, page >> 6);
    known = seen == known ? page >> 6 : seen;
  }
}

/* ---- Taking ---- */

/* Takes more than 64 kept words in a row, from the word `at` of their map on.  Returns whether they were all there.
 * Words are taken whole, so those behind the first count are given back. */
MAM__OUTLINE int mam__kept_take_words(MAM__TAG(1) mam__u32 at, mam__u32 count, const struct mam__area *area) {
  mam__u64 *level = mam__area_kept(*area);
  mam__u32 words = mam__area_kept_words(*area), whole = (count + 63) >> 6;
  mam__u32 got = MAM__OUT_OF_SIGHT(mam__map_take_words)(level, at, whole), used = got == whole ? count : 0;
  MAM__OUT_OF_SIGHT(mam__map_words_filled)(level, words, at, got);
  MAM__OUT_OF_SIGHT(mam__kept_give)(*area, (at << 6) + used, (got << 6) - used);
  return got == whole;
}

/* The same at the first place that has them, from a word of the map on and before last.  Returns the first kept word,
 * or MAM__NO_PAGE. */
MAM__OUTLINE mam__u32 mam__kept_take_long(MAM__TAG(1) const struct mam__area *area, mam__u32 count, mam__u32 first,
                                          mam__u32 last) {
  mam__u32 words = mam__area_kept_words(*area), whole = (count + 63) >> 6;
  MAM__LOOP
  while ((first = MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_kept(*area), words, first)) + whole <= last) {
    if (MAM__OUT_OF_SIGHT(mam__kept_take_words)(first, count, area))
      return first << 6;
    first++;
  }
  return MAM__NO_PAGE;
}

/* Takes count kept words in a row: the first that are there from index on, then from the beginning. */
MAM__OUTLINE mam__u32 mam__kept_take(MAM__TAG(1) const struct mam__area *area, mam__u32 count, mam__u32 index) {
  mam__u64 *level = mam__area_kept(*area);
  mam__u32 words = mam__area_kept_words(*area), place = index >> 6, found;
  if (count > 64) {
    found = MAM__OUT_OF_SIGHT(mam__kept_take_long)(area, count, place, words);
    return found != MAM__NO_PAGE ? found : MAM__OUT_OF_SIGHT(mam__kept_take_long)(area, count, 0, words);
  }
  found = MAM__OUT_OF_SIGHT(mam__map_take_run)(level, words, count, place, words);
  return found != MAM__NO_PAGE ? found : MAM__OUT_OF_SIGHT(mam__map_take_run)(level, words, count, 0, place);
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
MAM__OUTLINE mam__u32 mam__kept_take_turns(const struct mam__area *area, mam__u32 *cursor, mam__u32 count,
                                           mam__u32 end) {
  MAM__LOOP
  for (int i = 0; i < MAM__KEPT_TURNS; i++) {
    mam__u32 place = mam__kept_place(mam__add_relaxed_u32(cursor, 1), count, end);
    if (place == MAM__NO_PAGE || MAM__OUT_OF_SIGHT(mam__kept_take_at)(place, area, count))
      return place;
  }
  return MAM__NO_PAGE;
}

/* Takes a long run out of kept words.  Turns go through all words that a long run ever had.  If runs of other lengths
 * have been there, a search of all threads from one place would take as long as there are requests, so the search
 * begins at the cursor. */
MAM__OUTLINE mam__u32 mam__run_take_kept(struct mam__heap_control *control, const struct mam__area *area,
                                         mam__u32 pages) {
  mam__u32 count = (pages + 63) >> 6, end = mam__load_relaxed_u32(&control->kept_end);
  if (count > end)
    return MAM__NO_PAGE;
  mam__u32 first = MAM__OUT_OF_SIGHT(mam__kept_take_turns)(area, &control->kept_cursor, count, end);
  if (first == MAM__NO_PAGE)
    first = MAM__OUT_OF_SIGHT(mam__kept_take)(area, count, mam__load_relaxed_u32(&control->kept_cursor) % end);
  if (first == MAM__NO_PAGE)
    return first;
  if ((pages & 63) != 0)
    MAM__OUT_OF_SIGHT(mam__pages_clear)(*area, first + (pages >> 6), mam__run_bits(64 - (pages & 63), pages & 63));
  return first << 6;
}

#endif /* MAM_DETAIL_HEAP_KEPT_H */
