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
 *   mam__pages_near     in any superblock: at the cursor, then in all words of the home from there on
 *   mam__refill_pages   in the first superblock, to refill a slot: at the cursor or in one of the next words, which are
 *                      looked at together; gives up early, since mam__pages_near and a search come after it
 *   mam__pages_are_scarce  whether chunks of split spans come before a search, after mam__refill_pages found nothing
 */
#ifndef MAM_DETAIL_HEAP_HOMES_H
#define MAM_DETAIL_HEAP_HOMES_H

#include <mam/detail/heap_pages.h>

enum {
  /* A thread tries so many runs in a word, or words of a home, before it looks elsewhere. */
  MAM__HOME_TRIES = 4,
  /* A thread asks the cursor so many times before it looks at the other words of the home. */
  MAM__HOME_NEAR = 2,
  /* A look at the other words of a home ends after so many. */
  MAM__HOME_WORDS = 64,
  /* This look reads so many words together. */
  MAM__HOME_AHEAD = 4
};

/* The first word of a home. */
MAM__INLINE mam__u32 mam__home_first(const struct mam__area *area, mam__u32 home) {
  mam__u32 map_words = mam__area_map_words(*area);
  return home < map_words ? home : home % map_words;
}

/* The width - 1 of a home's round when it doubles, as far as the map has words. */
MAM__INLINE mam__u32 mam__home_wider(mam__u32 map_words, mam__u32 first, mam__u32 count, mam__u32 wide) {
  mam__u32 most = (map_words - 1 - first) / count;
  return 2 * wide + 1 < most ? 2 * wide + 1 : most;
}

/* Widens a home's round, unless another thread has done so since. */
MAM__INLINE void mam__home_widen(mam__u64 *cursor, mam__u32 wide, mam__u32 wider) {
  mam__u64 at = mam__load_relaxed_u64(cursor);
  if (wide < wider && (mam__u32)(at >> 32) == wide)
    (void)mam__cas_relaxed_u64(cursor, at, (mam__u64)wider << 32 | (wide + 1) << 6);
}

/* Takes count bits of the word at index, from the bit `from` on; if they are taken, another run of the word, as far as
 * there is one.  An atomic or mostly succeeds, and undoes what it did if it does not.  That is quicker than a look and
 * a compare-and-swap, which only one of all threads that take from a word at a time could win. */
MAM__OUTLINE mam__u32 mam__home_take(const struct mam__area *area, mam__u32 index, mam__u32 from, mam__u32 count) {
  MAM__LOOP
  for (int i = 0; i < MAM__HOME_TRIES && from != 64; i++) {
    mam__u64 bits = mam__run_bits(count, from);
    /* acquire: pairs with mam__pages_clear */
    mam__u64 old = mam__or_acquire_u64(&mam__area_pages(*area)[index], bits);
    if ((old & bits) == 0) {
      if ((old | bits) == MAM__FULL_WORD)
        mam__map_filled(mam__area_pages(*area), mam__area_map_words(*area), index);
      return (index << 6) + from;
    }
    from = mam__run_find(old, count);
    if ((bits & ~old) != 0)
      MAM__OUT_OF_SIGHT(mam__pages_clear)(*area, index, bits & ~old);
  }
  return MAM__NO_PAGE;
}

/* Looks for the first of up to MAM__HOME_WORDS words of a home, from a turn on, that has count zeros in a row.  Returns
 * how many turns it is away; MAM__HOME_WORDS if there is none. */
MAM__OUTLINE mam__u32 mam__home_look(MAM__TAG(1) mam__u32 count, const struct mam__area *area, mam__u32 home,
                                     mam__u32 home_count, mam__u32 turn) {
  mam__u32 first = mam__home_first(area, home), turns = (mam__area_map_words(*area) - 1 - first) / home_count + 1;
  MAM__LOOP
  for (mam__u32 at = 0; at < turns && at < MAM__HOME_WORDS; at += MAM__HOME_AHEAD) {
    mam__u64 seen[MAM__HOME_AHEAD];
    mam__u32 fits = 0;
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__HOME_AHEAD; i++)
      seen[i] = mam__load_relaxed_u64(&mam__area_pages(*area)[first + (turn + at + i) % turns * home_count]);
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__HOME_AHEAD; i++)
      fits |= (mam__u32)(mam__run_find(seen[i], count) != 64) << i;
    if (fits != 0)
      return at + mam__lowest_u32(fits);
  }
  return MAM__HOME_WORDS;
}

/* Takes a run of up to 64 pages in a home of a superblock: at the cursor, then in all words from there on. */
MAM__OUTLINE mam__u32 mam__pages_near(mam__u32 count, struct mam__heap_control *control, const struct mam__area *area,
                                      mam__u32 home) {
  mam__u64 *cursor = mam__cursors(control) + home;
  MAM__LOOP
  for (int i = 0; i < MAM__HOME_NEAR; i++) {
    mam__u64 at = mam__add_relaxed_u64(cursor, count);
    mam__u32 from = (mam__u32)at & 63, wide = (mam__u32)(at >> 32), first = mam__home_first(area, home), index;
    if (mam__shortage_covers(mam__load_relaxed_u32(mam__area_shortage(*area)), count))
      return MAM__NO_PAGE;
    if (from + count > 64) /* goes on in the next word */
      continue;
    index = first + ((mam__u32)at >> 6) % (wide + 1) * control->home_count;
    if (index >= mam__area_map_words(*area)) /* the width is that of a larger superblock */
      index = first;
    mam__u32 page = MAM__OUT_OF_SIGHT(mam__home_take)(area, index, from, count);
    if (page != MAM__NO_PAGE)
      return page;
    mam__home_widen(cursor, wide, mam__home_wider(mam__area_map_words(*area), first, control->home_count, wide));
  }
  mam__u32 turn = (mam__u32)mam__load_relaxed_u64(cursor) / 64;
  MAM__LOOP
  for (int i = 0; i < MAM__HOME_TRIES; i++) {
    mam__u32 further = MAM__OUT_OF_SIGHT(mam__home_look)(count, area, home, control->home_count, turn);
    if (further == MAM__HOME_WORDS)
      break;
    turn += further;
    mam__u32 first = mam__home_first(area, home);
    mam__u32 turns = (mam__area_map_words(*area) - 1 - first) / control->home_count + 1;
    /* Only a whole run is taken: where pages are scarce, others would miss a part that is given back. */
    mam__u32 page = MAM__OUT_OF_SIGHT(mam__map_take_in)(first + turn % turns * control->home_count,
                                                        mam__area_pages(*area), mam__area_map_words(*area), count);
    if (page != MAM__NO_PAGE)
      return page;
    turn++;
  }
  return MAM__NO_PAGE;
}

/* Whether pages are scarce: a watched heap of one superblock, and none of four words of its page map, which are taken
 * by chance, has count zeros in a row.  Where a heap has grown, another superblock may have pages. */
MAM__INLINE int mam__pages_are_scarce(struct mam__heap_control *control, struct mam__area area, mam__u32 count) {
  if (mam__load_relaxed_u32(&control->mode) != MAM__MODE_WATCHED ||
      mam__load_relaxed_u32(&control->superblock_count) != 1)
    return 0;
  mam__u32 fits = 0, salt = mam__salt() * 0x9e3779b1u, map_words = mam__area_map_words(area);
  mam__u64 seen[4];
  MAM__UNROLL
  for (mam__u32 i = 0; i < 4; i++) {
    seen[i] = mam__load_relaxed_u64(&mam__area_pages(area)[(mam__u64)salt * map_words >> 32]);
    salt += 0x9e3779b1u;
  }
  MAM__UNROLL
  for (mam__u32 i = 0; i < 4; i++)
    fits |= mam__run_find(seen[i], count) != 64;
  return fits == 0;
}

/* ---- For a refill ---- */

/* These flags stand above the number of a page of the first superblock. */
/* mam__refill_pages filled the page's word of the map, so mam__map_filled is to be called. */
#define MAM__REFILL_FILLED (1u << 30)
/* The span gets a place in a ring. */
#define MAM__REFILL_RINGED (1u << 29)
/* The span is to be watched. */
#define MAM__REFILL_WATCH (1u << 28)
/* The stamp is to be raised. */
#define MAM__REFILL_STAMP (1u << 27)
/* They stand from this bit on.  Below it are the bits of the page's number. */
enum { MAM__REFILL_FLAGS = 27 };
#define MAM__REFILL_PAGE (MAM__REFILL_STAMP - 1)

/* A refill looks at so many words together. */
enum { MAM__WORDS_AHEAD = 3 };

/* What a look returns: the run's first bit in its word, and the word's number from bit MAM__LOOK_WORD on. */
enum {
  /* In the place of the bit: there is no run. */
  MAM__LOOK_NONE = 64,
  /* The bit's number takes 7 bits, so the word's number begins above them. */
  MAM__LOOK_WORD = 8
};

/* Looks at up to MAM__WORDS_AHEAD words, each `distance` behind the one before, for count zeros in a row.  The first
 * word comes first if it has them from the bit `from` on; else any of the words, by chance, so that threads that look
 * at the same time do not meet.  Returns MAM__LOOK_*.  Calls nothing. */
MAM__INLINE mam__u32 mam__words_look(mam__u32 count, const mam__u64 *words, mam__u32 distance, mam__u32 left,
                                     mam__u32 from) {
  mam__u64 starts[MAM__WORDS_AHEAD];
  mam__u32 fits = 0, at = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__WORDS_AHEAD; i++) {
    starts[i] = ~mam__load_relaxed_if_u64(i < left, &words[at], MAM__FULL_WORD);
    at += distance;
    MAM__FORGET(at); /* otherwise all addresses are computed first, each in registers of its own */
  }
  MAM__LOOP
  for (mam__u32 have = 1; have < count;) { /* as mam__run_find, in all words together */
    mam__u32 step = have < count - have ? have : count - have;
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__WORDS_AHEAD; i++)
      starts[i] &= starts[i] >> step;
    have += step;
  }
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__WORDS_AHEAD; i++)
    fits |= (mam__u32)(starts[i] != 0) << i;
  if (fits == 0)
    return MAM__LOOK_NONE;
  mam__u32 behind = starts[0] >> from != 0 ? 1 : fits & ~0u << mam__salt() % MAM__WORDS_AHEAD;
  mam__u32 word = mam__lowest_u32(behind != 0 ? behind : fits);
  mam__u64 start = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__WORDS_AHEAD; i++)
    start |= i == word ? starts[i] : 0;
  return word << MAM__LOOK_WORD | (start >> from != 0 ? mam__lowest_u64(start >> from) + from : mam__lowest_u64(start));
}

/* Takes a run of pages of the home in the word at the cursor's turn, or in one of the next words of the round.  at: the
 * cursor's value, of which the lowest bits say from which page on the word is preferred.  Moves the cursor to the word.
 * Returns as mam__refill_pages. */
MAM__INLINE mam__u32 mam__refill_look(mam__u32 pages, mam__u64 at, mam__u32 home, mam__u32 home_count,
                                      struct mam__area area, mam__u64 *cursor) {
  mam__u32 turn = (mam__u32)at >> 6, wide = (mam__u32)(at >> 32);
  if (home + wide * home_count >= mam__area_map_words(area)) /* the width is that of a larger superblock */
    return MAM__NO_PAGE;
  mam__u32 left = wide + 1 - turn < MAM__WORDS_AHEAD ? wide + 1 - turn : (mam__u32)MAM__WORDS_AHEAD,
           index = home + turn * home_count;
  mam__u32 seen = mam__words_look(pages, &mam__area_pages(area)[index], home_count, left, (mam__u32)at & 63);
  MAM__FORGET(area.page_count); /* what is computed from these is not kept over the look */
  MAM__FORGET_ADDRESS(area.words);
  MAM__FORGET(home);
  mam__u32 from = seen & 127, word = seen >> MAM__LOOK_WORD, step = from == MAM__LOOK_NONE ? left : word;
  if (step != 0)
    (void)mam__add_relaxed_u64(cursor, step << 6);
  if (from == MAM__LOOK_NONE)
    return MAM__NO_PAGE;
  index = home + (turn + word) * home_count;
  mam__u64 bits = mam__run_bits(pages, from);
  mam__u64 old = mam__or_acquire_u64(&mam__area_pages(area)[index], bits); /* pairs with mam__pages_clear */
  if ((old & bits) == 0)
    return ((index << 6) + from) | ((old | bits) == MAM__FULL_WORD ? MAM__REFILL_FILLED : 0);
  if ((bits & ~old) != 0)
    MAM__OUT_OF_SIGHT(mam__pages_clear)(area, index, bits & ~old);
  return MAM__NO_PAGE;
}

/* The cursor's value for the next try, after words of the round had no room.  If the round is over, it becomes wider.
 */
MAM__INLINE mam__u64 mam__refill_widen(mam__u64 *cursor, mam__u32 map_words, mam__u32 home, mam__u32 home_count) {
  mam__u64 at = mam__load_relaxed_u64(cursor);
  mam__u32 turn = (mam__u32)at >> 6, wide = (mam__u32)(at >> 32),
           wider = mam__home_wider(map_words, home, home_count, wide);
  mam__u64 widened = (mam__u64)wider << 32 | (wide + 1) << 6;
  if (turn > wide && wider > wide && mam__cas_relaxed_u64(cursor, at, widened) == at)
    return widened;
  return (mam__u64)wide << 32 | turn % (wide + 1) << 6;
}

/* Where a home's round goes on for so many pages, by the cursor's value before they were added. */
MAM__INLINE mam__u64 mam__cursor_at(mam__u64 at, mam__u32 pages) {
  mam__u32 from = (mam__u32)at & 63, turn = (mam__u32)at >> 6;
  if (from + pages > 64) { /* goes on in the next word */
    turn++;
    from = 0;
  }
  return (at & ~(mam__u64)0xffffffff) | turn % ((mam__u32)(at >> 32) + 1) << 6 | from;
}

/* Takes the pages of a slot's span in the home of a request word, where that is quick: at the cursor, elsewhere in its
 * word, or in one of the next words.  at: the cursor's value, to which the caller has added the pages.  If a round ends
 * without a run, it becomes wider.  Returns the page, perhaps with MAM__REFILL_FILLED; MAM__NO_PAGE if there was none.
 */
MAM__INLINE mam__u32 mam__refill_pages(struct mam__heap_control *control, struct mam__area area, mam__u32 wanted,
                                       mam__u32 slot, mam__u64 at) {
  at = mam__cursor_at(at, mam__request_pages(wanted, slot));
  MAM__LOOP
  for (int i = 1;; i++) {
    MAM__FORGET(wanted); /* what is computed from these is not kept over the look */
    MAM__FORGET(slot);
    MAM__FORGET_ADDRESS(control);
    MAM__FORGET(area.page_count);
    mam__u32 home = wanted >> MAM__REST_HOME & 1023, pages = mam__request_pages(wanted, slot);
    mam__u32 page = mam__refill_look(pages, at, home, control->home_count, area, &mam__cursors(control)[home]);
    if (page != MAM__NO_PAGE || i == MAM__HOME_TRIES ||
        mam__shortage_covers(mam__load_relaxed_u32(mam__area_shortage(area)), pages))
      return page;
    at = mam__refill_widen(&mam__cursors(control)[home], mam__area_map_words(area), home, control->home_count);
  }
}

#endif /* MAM_DETAIL_HEAP_HOMES_H */
