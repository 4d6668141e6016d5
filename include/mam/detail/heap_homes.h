/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_homes.h - homes: where the warps of a multiprocessor take pages, so that different ones do not meet.
 *
 * The warps of a multiprocessor, or of a few of them, have a home: every home_count-th word of the page map.
 *
 *   words of the page map   0  1  2  3 | 0  1  2  3 | 0  1  2  3 | ...     of 4 homes
 *   turns of home 1            0       |    1       |    2
 *
 * A home's cursor says where the next pages are taken:
 *
 *   63        32 31          6 5       0
 *   | width - 1  | turn        | page    |     the turn counts modulo the width
 *
 * An atomic addition of the number of pages moves it on.  It goes round in the first `width` words of the home.  If a
 * round does not have what is asked for, the width doubles.  So what is in use lies close together.  (The hash of
 * ScatterAlloc's paper has the same two aims.)
 *
 *   mam_pages_near     in any superblock: at the cursor, then in all words of the home from there on
 *   mam_refill_pages   in the first superblock, to refill a slot: at the cursor or in one of the next words, which are
 *                      looked at together; gives up early, since mam_pages_near and a search come after it
 */
#ifndef MAM_DETAIL_HEAP_HOMES_H
#define MAM_DETAIL_HEAP_HOMES_H

#include <mam/detail/heap_pages.h>

enum {
  /* A thread tries so many runs in a word, or words of a home, before it looks elsewhere. */
  MAM_HOME_TRIES = 4,
  /* A thread asks the cursor so many times before it looks at the other words of the home. */
  MAM_HOME_NEAR = 2,
  /* A look at the other words of a home ends after so many. */
  MAM_HOME_WORDS = 64,
  /* This look reads so many words together. */
  MAM_HOME_AHEAD = 4
};

/* The first word of a home. */
MAM_INLINE mam_u32 mam_home_first(const struct mam_area *area, mam_u32 home) {
  mam_u32 map_words = mam_area_map_words(*area);
  return home < map_words ? home : home % map_words;
}

/* The width - 1 of a home's round when it doubles, as far as the map has words. */
MAM_INLINE mam_u32 mam_home_wider(mam_u32 map_words, mam_u32 first, mam_u32 count, mam_u32 wide) {
  mam_u32 most = (map_words - 1 - first) / count;
  return 2 * wide + 1 < most ? 2 * wide + 1 : most;
}

/* Widens a home's round, unless another thread has done so since. */
MAM_INLINE void mam_home_widen(mam_u64 *cursor, mam_u32 wide, mam_u32 wider) {
  mam_u64 at = mam_load_relaxed_u64(cursor);
  if (wide < wider && (mam_u32)(at >> 32) == wide)
    (void)mam_cas_relaxed_u64(cursor, at, (mam_u64)wider << 32 | (wide + 1) << 6);
}

/* Takes count bits of the word at index, from the bit `from` on; if they are taken, another run of the word, as far as
 * there is one.  An atomic or mostly succeeds, and undoes what it did if it does not.  That is quicker than a look and
 * a compare-and-swap, which only one of all threads that take from a word at a time could win. */
MAM_OUTLINE mam_u32 mam_home_take(const struct mam_area *area, mam_u32 index, mam_u32 from, mam_u32 count) {
  MAM_LOOP
  for (int i = 0; i < MAM_HOME_TRIES && from != 64; i++) {
    mam_u64 bits = mam_run_bits(count, from);
    /* acquire: pairs with mam_pages_clear */
    mam_u64 old = mam_or_acquire_u64(&mam_area_pages(*area)[index], bits);
    if ((old & bits) == 0) {
      if ((old | bits) == MAM_FULL_WORD)
        MAM_OUT_OF_SIGHT(mam_map_filled)(mam_area_pages(*area), mam_area_map_words(*area), index);
      return (index << 6) + from;
    }
    from = mam_run_find(old, count);
    if ((bits & ~old) != 0)
      MAM_OUT_OF_SIGHT(mam_pages_clear)(*area, index, bits & ~old);
  }
  return MAM_NO_PAGE;
}

/* Looks for the first of up to MAM_HOME_WORDS words of a home, from a turn on, that has count zeros in a row.  Returns
 * how many turns it is away; MAM_HOME_WORDS if there is none. */
MAM_OUTLINE mam_u32 mam_home_look(MAM_TAG(1) mam_u32 count, const struct mam_area *area, mam_u32 home,
                                  mam_u32 home_count, mam_u32 turn) {
  mam_u32 first = mam_home_first(area, home), turns = (mam_area_map_words(*area) - 1 - first) / home_count + 1;
  MAM_LOOP
  for (mam_u32 at = 0; at < turns && at < MAM_HOME_WORDS; at += MAM_HOME_AHEAD) {
    mam_u64 seen[MAM_HOME_AHEAD];
    mam_u32 fits = 0;
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_HOME_AHEAD; i++)
      seen[i] = mam_load_relaxed_u64(&mam_area_pages(*area)[first + (turn + at + i) % turns * home_count]);
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_HOME_AHEAD; i++)
      fits |= (mam_u32)(mam_run_find(seen[i], count) != 64) << i;
    if (fits != 0)
      return at + mam_lowest_u32(fits);
  }
  return MAM_HOME_WORDS;
}

/* Takes a run of up to 64 pages in a home of a superblock: at the cursor, then in all words from there on. */
MAM_OUTLINE mam_u32 mam_pages_near(mam_u32 count, struct mam_heap_control *control, const struct mam_area *area,
                                   mam_u32 home) {
  mam_u64 *cursor = mam_cursors(control) + home;
  MAM_LOOP
  for (int i = 0; i < MAM_HOME_NEAR; i++) {
    mam_u64 at = mam_add_relaxed_u64(cursor, count);
    mam_u32 from = (mam_u32)at & 63, wide = (mam_u32)(at >> 32), first = mam_home_first(area, home), index;
    if (mam_shortage_covers(mam_load_relaxed_u32(mam_area_shortage(*area)), count))
      return MAM_NO_PAGE;
    if (from + count > 64) /* goes on in the next word */
      continue;
    index = first + ((mam_u32)at >> 6) % (wide + 1) * control->home_count;
    if (index >= mam_area_map_words(*area)) /* the width is that of a larger superblock */
      index = first;
    mam_u32 page = MAM_OUT_OF_SIGHT(mam_home_take)(area, index, from, count);
    if (page != MAM_NO_PAGE)
      return page;
    mam_home_widen(cursor, wide, mam_home_wider(mam_area_map_words(*area), first, control->home_count, wide));
  }
  mam_u32 turn = (mam_u32)mam_load_relaxed_u64(cursor) / 64;
  MAM_LOOP
  for (int i = 0; i < MAM_HOME_TRIES; i++) {
    mam_u32 further = MAM_OUT_OF_SIGHT(mam_home_look)(count, area, home, control->home_count, turn);
    if (further == MAM_HOME_WORDS)
      break;
    turn += further;
    mam_u32 first = mam_home_first(area, home);
    mam_u32 turns = (mam_area_map_words(*area) - 1 - first) / control->home_count + 1;
    /* Only a whole run is taken: where pages are scarce, others would miss a part that is given back. */
    mam_u32 page = MAM_OUT_OF_SIGHT(mam_map_take_in)(first + turn % turns * control->home_count, mam_area_pages(*area),
                                                     mam_area_map_words(*area), count);
    if (page != MAM_NO_PAGE)
      return page;
    turn++;
  }
  return MAM_NO_PAGE;
}

/* ---- For a refill ---- */

/* These flags stand above the number of a page of the first superblock. */
/* mam_refill_pages filled the page's word of the map, so mam_map_filled is to be called. */
#define MAM_REFILL_FILLED (1u << 30)
/* The span gets a place in a ring. */
#define MAM_REFILL_RINGED (1u << 29)
/* The span is to be watched. */
#define MAM_REFILL_WATCH (1u << 28)
/* The stamp is to be raised. */
#define MAM_REFILL_STAMP (1u << 27)
/* The bits of the page's number. */
#define MAM_REFILL_PAGE (MAM_REFILL_STAMP - 1)

/* A refill looks at 8 words together; at 4 where the linker counts the registers of each function. */
#if defined(__CUDACC_RDC__) && defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
enum { MAM_WORDS_AHEAD = 4 };
#else
enum { MAM_WORDS_AHEAD = MAM_AHEAD };
#endif

/* What a look returns: the run's first bit in its word, and the word's number from bit MAM_LOOK_WORD on. */
enum {
  /* In the place of the bit: there is no run. */
  MAM_LOOK_NONE = 64,
  /* The bit's number takes 7 bits, so the word's number begins above them. */
  MAM_LOOK_WORD = 8
};

/* Looks at up to MAM_WORDS_AHEAD words, each `distance` behind the one before, for count zeros in a row.  The first
 * word comes first if it has them from the bit `from` on; else any of the words, by chance, so that threads that look
 * at the same time do not meet.  Returns MAM_LOOK_*.  Calls nothing. */
MAM_OUTLINE mam_u32 mam_words_look(mam_u32 count, const mam_u64 *words, mam_u32 distance, mam_u32 left, mam_u32 from) {
  mam_u64 starts[MAM_WORDS_AHEAD];
  mam_u32 fits = 0, at = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++) {
    starts[i] = ~mam_load_relaxed_if_u64(i < left, &words[at], MAM_FULL_WORD);
    at += distance;
    MAM_FORGET(at); /* otherwise all addresses are computed first, each in registers of its own */
  }
  MAM_LOOP
  for (mam_u32 have = 1; have < count;) { /* as mam_run_find, in all words together */
    mam_u32 step = have < count - have ? have : count - have;
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++)
      starts[i] &= starts[i] >> step;
    have += step;
  }
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++)
    fits |= (mam_u32)(starts[i] != 0) << i;
  if (fits == 0)
    return MAM_LOOK_NONE;
  mam_u32 behind = starts[0] >> from != 0 ? 1 : fits & ~0u << mam_salt() % MAM_WORDS_AHEAD;
  mam_u32 word = mam_lowest_u32(behind != 0 ? behind : fits);
  mam_u64 start = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++)
    start |= i == word ? starts[i] : 0;
  return word << MAM_LOOK_WORD | (start >> from != 0 ? mam_lowest_u64(start >> from) + from : mam_lowest_u64(start));
}

/* Takes a run of pages of the home in the word at the cursor's turn, or in one of the next words of the round.  at: the
 * cursor's value, of which the lowest bits say from which page on the word is preferred.  Moves the cursor to the word.
 * Returns as mam_refill_pages. */
MAM_OUTLINE mam_u32 mam_refill_look(mam_u32 pages, mam_u64 at, mam_u32 home, mam_u32 home_count, struct mam_area area,
                                    mam_u64 *cursor) {
  mam_u32 turn = (mam_u32)at >> 6, wide = (mam_u32)(at >> 32);
  if (home + wide * home_count >= mam_area_map_words(area)) /* the width is that of a larger superblock */
    return MAM_NO_PAGE;
  mam_u32 left = wide + 1 - turn < MAM_WORDS_AHEAD ? wide + 1 - turn : (mam_u32)MAM_WORDS_AHEAD,
          index = home + turn * home_count;
  mam_u32 seen =
      MAM_OUT_OF_SIGHT(mam_words_look)(pages, &mam_area_pages(area)[index], home_count, left, (mam_u32)at & 63);
  mam_u32 from = seen & 127, word = seen >> MAM_LOOK_WORD, step = from == MAM_LOOK_NONE ? left : word;
  if (step != 0)
    (void)mam_add_relaxed_u64(cursor, step << 6);
  if (from == MAM_LOOK_NONE)
    return MAM_NO_PAGE;
  index += word * home_count;
  mam_u64 bits = mam_run_bits(pages, from);
  mam_u64 old = mam_or_acquire_u64(&mam_area_pages(area)[index], bits); /* pairs with mam_pages_clear */
  if ((old & bits) == 0)
    return ((index << 6) + from) | ((old | bits) == MAM_FULL_WORD ? MAM_REFILL_FILLED : 0);
  if ((bits & ~old) != 0)
    MAM_OUT_OF_SIGHT(mam_pages_clear)(area, index, bits & ~old);
  return MAM_NO_PAGE;
}

/* The cursor's value for the next try, after words of the round had no room.  If the round is over, it becomes wider.
 */
MAM_INLINE mam_u64 mam_refill_widen(mam_u64 *cursor, mam_u32 map_words, mam_u32 home, mam_u32 home_count) {
  mam_u64 at = mam_load_relaxed_u64(cursor);
  mam_u32 turn = (mam_u32)at >> 6, wide = (mam_u32)(at >> 32),
          wider = mam_home_wider(map_words, home, home_count, wide);
  mam_u64 widened = (mam_u64)wider << 32 | (wide + 1) << 6;
  if (turn > wide && wider > wide && mam_cas_relaxed_u64(cursor, at, widened) == at)
    return widened;
  return (mam_u64)wide << 32 | turn % (wide + 1) << 6;
}

/* Takes a run of pages in the caller's home of the first superblock, where that is quick: at the cursor, elsewhere in
 * its word, or in one of the next words.  If a round ends without a run, it becomes wider.  Returns the page, perhaps
 * with MAM_REFILL_FILLED; MAM_NO_PAGE if there was none. */
MAM_OUTLINE mam_u32 mam_refill_pages(mam_u64 *cursor, mam_u64 *usage, mam_u32 page_count, mam_u32 home,
                                     mam_u32 home_count, mam_u32 pages) {
  struct mam_area area = {0, usage, page_count, 0};
  mam_u64 at = mam_add_relaxed_u64(cursor, pages);
  mam_u32 from = (mam_u32)at & 63, turn = (mam_u32)at >> 6, page;
  if (from + pages > 64) { /* goes on in the next word */
    turn++;
    from = 0;
  }
  at = (at & ~(mam_u64)0xffffffff) | turn % ((mam_u32)(at >> 32) + 1) << 6 | from;
  page = MAM_OUT_OF_SIGHT(mam_refill_look)(pages, at, home, home_count, area, cursor);
  MAM_LOOP
  for (int i = 1; i < MAM_HOME_TRIES && page == MAM_NO_PAGE; i++) {
    if (mam_shortage_covers(mam_load_relaxed_u32(mam_area_shortage(area)), pages))
      return page;
    at = mam_refill_widen(cursor, mam_area_map_words(area), home, home_count);
    page = MAM_OUT_OF_SIGHT(mam_refill_look)(pages, at, home, home_count, area, cursor);
  }
  return page;
}

#endif /* MAM_DETAIL_HEAP_HOMES_H */
