/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_shortage.h - what a heap is known not to have, so that no search that must fail is repeated.
 *
 * Shortage: a 32-bit word for each superblock and for each part of it, 64 words of the page map.
 *
 *   31               14 13                  7 6                    0
 *   | number of changes | length searched for | shortest missing run |     0: no search, nothing is known
 *
 * A length is a code: up to 64 pages the number of pages; above, eight steps from one power of two to the next, up to
 * MAM__SHORT_LONGEST.
 *
 * A thread that searches writes for what, first.  When it has found nothing, it writes the length that it missed, by a
 * compare-and-swap that fails if the word has changed since.  A thread that finds a run leaves what is known of longer
 * ones.  A thread that gives pages back makes the word true again: it looks how long the longest run is that they are
 * part of.  If such a run was missing, runs are missing from the next power of two on, so that the word changes seldom;
 * if it is searched for, the search is void.  Else the word stays as it is, so single pages that come back do not make
 * all threads search for long runs again.
 *
 * Stamp: a 32-bit word for each superblock.  It tells whether anything has come back: pages, or a chunk where there was
 * none.  It is odd while a thread relies on it; then the thread that gives something back makes it the next even
 * number.  A thread that looks for something makes all stamps odd, looks everywhere, and knows that the thing is not
 * there if the sum of the stamps is the same afterwards.
 *
 *   the thread that searches         the thread that gives back
 *   1. marks the word                1. changes the page map or a usage word
 *   2. mam__barrier_all                 2. mam__barrier_all (in mam__look_after_change_u32)
 *   3. searches                      3. reads the words; if they know anything, it ends that
 *   4. confirms by compare-and-swap
 *
 * Of two such threads at least one sees the other: the search finds what came back, or its confirmation fails.  So a
 * full heap is known to be full, and without a shortage a free pays for one look.
 */
#ifndef MAM_DETAIL_HEAP_SHORTAGE_H
#define MAM_DETAIL_HEAP_SHORTAGE_H

#include <mam/detail/heap_layout.h>

enum {
  /* The code of a run that is longer than a look at a few words of the page map tells. */
  MAM__SHORT_MOST = 127,
  /* The longest run that is known to be missing: one of a part's pages.  A longer one could begin two parts before
   * pages that come back. */
  MAM__SHORT_LONGEST = 64 * 64,
  /* The bits of the shortest missing run. */
  MAM__SHORT_PAGES = 127,
  /* The bits of the length that a thread searches for. */
  MAM__SHORT_SEARCHED = 127 << 7,
  /* The lowest bits of that and of the number of changes. */
  MAM__SHORT_LENGTH = 1 << 7,
  MAM__SHORT_NUMBER = 1 << 14
};

MAM__INLINE mam__u32 mam__shortage_next(mam__u32 shortage, mam__u32 low) {
  return (shortage & ~(mam__u32)(MAM__SHORT_NUMBER - 1)) + MAM__SHORT_NUMBER + low;
}

/* The code of a number of pages, rounded down. */
MAM__INLINE mam__u32 mam__length_code(mam__u32 pages) {
  mam__u32 log2 = 31 - mam__leading_zeros_u32(pages), code = 8 * log2 + 16 + (pages >> ((log2 - 3) & 31) & 7);
  return pages <= 64 ? pages : code < MAM__SHORT_MOST ? code : (mam__u32)MAM__SHORT_MOST;
}
/* The same, rounded up; 0 if that is more than is known. */
MAM__INLINE mam__u32 mam__length_code_up(mam__u32 pages) {
  return pages <= 64 ? pages : pages <= MAM__SHORT_LONGEST ? mam__length_code(pages - 1) + 1 : 0;
}

/* Whether a shortage word says that there is no run of a length, whose code is given. */
MAM__INLINE int mam__shortage_covers(mam__u32 shortage, mam__u32 code) {
  return (shortage & MAM__SHORT_PAGES) != 0 && code >= (shortage & MAM__SHORT_PAGES);
}

/* ---- Searching ---- */

/* Marks a shortage word as being searched for a length.  Returns the word to confirm by, or 0 if another thread
 * searches already or the word has changed. */
MAM__INLINE mam__u32 mam__shortage_begin(mam__u32 *shortage, mam__u32 known, mam__u32 code) {
  mam__u32 mark = mam__shortage_next(known, code * MAM__SHORT_LENGTH | (known & MAM__SHORT_PAGES));
  return (known & MAM__SHORT_SEARCHED) == 0 && mam__cas_acq_rel_u32(shortage, known, mark) == known ? mark : 0;
}

/* Ends a search for count pages that mam__shortage_begin marked.  If it found nothing, the word says so, unless it has
 * changed since.  If it found a run, what the word says of longer runs stays. */
MAM__INLINE void mam__shortage_confirm(mam__u32 *shortage, mam__u32 mark, mam__u32 count, int found) {
  mam__u32 missed = found ? 0 : mam__length_code_up(count);
  if (mark != 0)
    (void)mam__cas_acq_rel_u32(shortage, mark,
                               mam__shortage_next(mark, missed != 0 ? missed : mark & MAM__SHORT_PAGES));
}

/* A look for open parts reads 4 shortage words together. */
enum { MAM__PARTS_AHEAD = 4 };

/* The first part, from one on and before end, that may have a run of a length; end if there is none.  With all 0,
 * parts where another thread searches are left out. */
MAM__OUTLINE mam__u32 mam__parts_next(MAM__TAG(1) const mam__u32 *parts, mam__u32 part, mam__u32 end, mam__u32 code,
                                      mam__u32 all) {
  MAM__LOOP
  for (; part < end; part += MAM__PARTS_AHEAD) {
    mam__u32 seen[MAM__PARTS_AHEAD], open = 0;
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__PARTS_AHEAD; i++)
      seen[i] = mam__load_relaxed_u32(&parts[part + i < end ? part + i : part]);
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__PARTS_AHEAD; i++)
      open |= (mam__u32)(part + i < end && !mam__shortage_covers(seen[i], code) &&
                         (all != 0 || (seen[i] & MAM__SHORT_SEARCHED) == 0))
              << i;
    if (open != 0)
      return part + mam__lowest_u32(open);
  }
  return end;
}

/* Whether all superblocks are known to have no run of so many pages, up to 64, and no empty spans. */
MAM__INLINE int mam__pages_are_short(struct mam__heap_control *control, mam__u32 pages) {
  if (mam__load_relaxed_u32(&control->mode) != MAM__MODE_WATCHED)
    return 0;
  mam__u32 superblocks = mam__load_acquire_u32(&control->superblock_count);
  MAM__LOOP
  for (mam__u32 i = 0; i < superblocks; i++)
    if (!mam__shortage_covers(mam__load_relaxed_u32(mam__area_shortage(control->superblocks[i])), pages))
      return 0;
  return 1;
}

/* ---- Stamps ---- */

/* Makes all stamps odd, and returns their sum; 0 while the first superblock is not swept: then memory may come back of
 * which no stamp tells, and searches leave out what is being swept. */
MAM__INLINE mam__u32 mam__stamps_rely(struct mam__heap_control *control) {
  mam__u32 sum = 0, superblocks = mam__load_acquire_u32(&control->superblock_count);
  MAM__LOOP
  for (mam__u32 i = 0; i < superblocks; i++) {
    mam__u32 *stamp = mam__area_stamp(control->superblocks[i]), seen = mam__load_acquire_u32(stamp);
    sum += (seen & 1) != 0 ? seen : mam__or_acq_rel_u32(stamp, 1) | 1;
  }
  mam__barrier_all(); /* pairs with mam__chunk_matters, mam__returned_matters and mam__words_matter */
  return mam__load_acquire_u32(&control->mode) == MAM__MODE_WATCHED ? sum : 0; /* acquire: pairs with mam__swept */
}

/* The sum of the stamps as they are; 0 if the first one is even, since then no thread relies on it. */
MAM__INLINE mam__u32 mam__stamps_sum(struct mam__heap_control *control, struct mam__area first) {
  mam__u32 sum = mam__load_acquire_u32(mam__area_stamp(first));
  if ((sum & 1) == 0)
    return 0;
  mam__u32 superblocks = mam__load_acquire_u32(&control->superblock_count);
  MAM__LOOP
  for (mam__u32 i = 1; i < superblocks; i++)
    sum += mam__load_acquire_u32(mam__area_stamp(control->superblocks[i]));
  return sum;
}

/* Makes an odd stamp the next even number: something has come back. */
MAM__INLINE void mam__stamp_raise(mam__u32 *stamp) {
  mam__u32 known = mam__load_relaxed_u32(stamp);
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && (known & 1) != 0; i++) {
    mam__u32 seen = mam__cas_acq_rel_u32(stamp, known, known + 1);
    if (seen == known)
      return;
    known = seen;
  }
}

/* Whether the class is known to be missing in the heap, whose first superblock is given. */
MAM__INLINE int mam__is_missing(struct mam__heap_control *control, struct mam__area first, mam__u32 size_class) {
  mam__u32 missing = mam__load_relaxed_u32(&control->missing[mam__kind_number(size_class)]),
           sum = mam__stamps_sum(control, first);
  return sum != 0 && missing == sum;
}

/* ---- Giving back ---- */

/* Whether a thread relies on the superblock's stamp, after the caller has freed a chunk. */
MAM__INLINE int mam__chunk_matters(struct mam__area area) {
  return (mam__look_after_change_u32(mam__area_stamp(area)) & 1) != 0;
}

/* Whether a run of that length, a code, voids what a shortage word says.  run here and below: a code. */
MAM__INLINE int mam__shortage_ends(mam__u32 known, mam__u32 run) {
  mam__u32 missing = known & MAM__SHORT_PAGES, searched = known & MAM__SHORT_SEARCHED;
  return (missing - 1 < run) | (searched - 1 < run * MAM__SHORT_LENGTH); /* 0 - 1 is the largest number */
}

/* How long a run of free pages is in a word of the page map, of which the pages from `from` on and before `to` are a
 * part; MAM__SHORT_MOST if it may go on in another word. */
MAM__INLINE mam__u32 mam__run_around(mam__u64 word, mam__u32 from, mam__u32 to) {
  mam__u64 below = word & ~(MAM__FULL_WORD << from), above = to < 64 ? word >> to : 0;
  return below == 0 || above == 0 ? (mam__u32)MAM__SHORT_MOST
                                  : to + mam__lowest_u64(above) - (64 - mam__leading_zeros_u64(below));
}

/* Whether pages which the caller has just given back, in the word at index of the page map, may have voided anything
 * that is known of the superblock.  run: how long a run they are part of; MAM__SHORT_MOST if that is not known.  A run
 * that begins in one part may end in the next. */
MAM__INLINE int mam__returned_matters(struct mam__area area, mam__u32 index, mam__u32 run) {
  const mam__u32 *part = &mam__area_parts(area)[index >> 6];
  mam__u32 before = index >= 64, stamp = mam__look_after_change_u32(mam__area_stamp(area));
  mam__u32 shortage = mam__load_relaxed_u32(mam__area_shortage(area)), first = mam__load_relaxed_u32(part),
           second = mam__load_relaxed_u32(part - before);
  return ((stamp & 1) != 0) | mam__shortage_ends(shortage, run) | mam__shortage_ends(first, run) |
         mam__shortage_ends(second, run);
}

/* The same for pages in several words of the page map.  Eight parts are read together. */
MAM__OUTLINE int mam__words_matter(MAM__TAG(1) mam__u32 index, mam__u32 words, struct mam__area area) {
  mam__u32 part = index < 64 ? 0 : (index >> 6) - 1, last = (index + words - 1) >> 6;
  mam__u32 stamp = mam__look_after_change_u32(mam__area_stamp(area)),
           known = mam__load_relaxed_u32(mam__area_shortage(area));
  MAM__LOOP
  for (; part <= last; part += MAM__AHEAD) {
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__AHEAD; i++)
      known |= mam__load_relaxed_u32(&mam__area_parts(area)[part + i < last ? part + i : last]);
  }
  return ((known & (MAM__SHORT_NUMBER - 1)) | (stamp & 1)) != 0;
}

/* The part where the first run may begin that has pages of a word of the page map: the one before the word's, if the
 * pages before are free.  The caller has changed the word and passed mam__barrier_all.  If another thread frees the
 * pages before, at the same time, one of the two sees the other's. */
MAM__INLINE mam__u32 mam__run_part(const mam__u64 *map, mam__u32 index) {
  mam__u64 before = mam__load_relaxed_if_u64((index & 63) != 0, &map[index - 1], 0);
  return (index >> 6) - (index >= 64 && before == 0);
}

/* The longest run of free pages that a word of the page map has a part of, or an end of; MAM__SHORT_MOST if it may go
 * on in further words. */
MAM__INLINE mam__u32 mam__run_longest(const mam__u64 *map, mam__u32 words, mam__u32 index) {
  mam__u64 word = mam__load_relaxed_u64(&map[index]), rest = ~word;
  mam__u64 before = mam__load_relaxed_if_u64(index != 0, &map[index - 1], MAM__FULL_WORD);
  mam__u64 after = mam__load_relaxed_if_u64(index + 1 < words, &map[index + 1], MAM__FULL_WORD);
  if (word == 0 || before == 0 || after == 0)
    return MAM__SHORT_MOST;
  mam__u32 first = mam__lowest_u64(word) + mam__leading_zeros_u64(before);
  mam__u32 last = mam__leading_zeros_u64(word) + mam__lowest_u64(after);
  mam__u32 longest = first > last ? first : last, inside = 0;
  MAM__LOOP
  for (; rest != 0; inside++)
    rest &= rest >> 1;
  return mam__length_code(inside > longest ? inside : longest);
}

/* Makes a shortage word true after pages came back, which are part of a run of that length.  A compare-and-swap that
 * fails is another thread's change. */
MAM__INLINE void mam__shortage_end(mam__u32 *shortage, mam__u32 run) {
  mam__u32 known = mam__load_relaxed_u32(shortage);
  MAM__LOOP
  while (mam__shortage_ends(known, run)) {
    mam__u32 missing = known & MAM__SHORT_PAGES, searched = known & MAM__SHORT_SEARCHED;
    if (missing != 0 && missing <= run)
      missing = run < 64 ? 2u << (31 - mam__leading_zeros_u32(run)) : run < MAM__SHORT_MOST ? run + 1 : 0;
    if (searched <= run * MAM__SHORT_LENGTH)
      searched = 0;
    mam__u32 seen = mam__cas_acq_rel_u32(shortage, known, mam__shortage_next(known, missing | searched));
    if (seen == known)
      return;
    known = seen;
  }
}

/* How long a run is free around pages that came back in a word of the page map, if that voids what is known or a thread
 * relies on the stamp; else 0.  The caller has passed mam__barrier_all since it changed the word.  All loads are under
 * way together: in a heap that is nearly full most calls end here. */
MAM__INLINE mam__u32 mam__returned_run(mam__u32 index, struct mam__area area) {
  mam__u32 part = index >> 6, before = mam__run_part(mam__area_pages(area), index);
  mam__u32 known[] = {mam__load_relaxed_u32(mam__area_shortage(area)),
                      mam__load_relaxed_u32(&mam__area_parts(area)[part]),
                      mam__load_relaxed_u32(&mam__area_parts(area)[before])};
  mam__u32 stamp = mam__load_relaxed_u32(mam__area_stamp(area));
  mam__u32 run = mam__run_longest(mam__area_pages(area), mam__area_map_words(area), index);
  return (stamp & 1) != 0 || mam__shortage_ends(known[0], run) || mam__shortage_ends(known[1], run) ||
                 mam__shortage_ends(known[2], run)
             ? run
             : 0;
}

/* Makes what is known true, after pages came back which are part of a run of that length.  It begins in the part first
 * or behind it, and the pages end in the part last. */
MAM__INLINE void mam__parts_back(struct mam__area area, mam__u32 first, mam__u32 last, mam__u32 run) {
  MAM__LOOP
  for (; first <= last + 1; first++) {
    if (first > last)
      mam__barrier_all(); /* a search relies on the parts after it has marked the superblock: see mam__pages_search */
    mam__shortage_end(first <= last ? &mam__area_parts(area)[first] : mam__area_shortage(area), run);
  }
  mam__stamp_raise(mam__area_stamp(area));
}

/* The same after pages came back in a word of the page map, or in so many words. */
MAM__INLINE void mam__word_back(struct mam__area area, mam__u32 index) {
  mam__u32 run = mam__returned_run(index, area);
  if (run != 0)
    mam__parts_back(area, mam__run_part(mam__area_pages(area), index), index >> 6, run);
}

/* How long a run is at most, a code, that has pages of those which came back: another thread may have taken some again.
 * MAM__SHORT_MOST if it may go on in further words than those beside them. */
MAM__JOINED mam__u32 mam__run_with(const mam__u64 *map, mam__u32 words, mam__u32 page, mam__u32 count) {
  mam__u32 index = page >> 6, last = (page + count - 1) >> 6, from = page & 63, to = (page + count - 1) & 63;
  mam__u64 word = mam__load_relaxed_u64(&map[index]) & ~(MAM__FULL_WORD << from);
  mam__u64 end = mam__load_relaxed_u64(&map[last]) & MAM__FULL_WORD << to << 1;
  mam__u64 before = mam__load_relaxed_if_u64(index != 0, &map[index - 1], MAM__FULL_WORD);
  mam__u64 after = mam__load_relaxed_if_u64(last + 1 < words, &map[last + 1], MAM__FULL_WORD);
  if ((word == 0 && before == 0) || (end == 0 && after == 0))
    return MAM__SHORT_MOST;
  mam__u32 below = word != 0 ? from + mam__leading_zeros_u64(word) - 64 : from + mam__leading_zeros_u64(before);
  mam__u32 above = end != 0 ? mam__lowest_u64(end) - to - 1 : 63 - to + mam__lowest_u64(after);
  return mam__length_code(below + count + above);
}

/* The same after pages in several words came back. */
MAM__OUTLINE void mam__pages_returned(mam__u32 page, mam__u32 count, struct mam__area area) {
  mam__u32 index = page >> 6, last = (page + count - 1) >> 6;
  const mam__u64 *map = mam__area_pages(area);
  mam__u32 run =
      last - index < 2 ? mam__run_with(map, mam__area_map_words(area), page, count) : (mam__u32)MAM__SHORT_MOST;
  mam__parts_back(area, mam__run_part(map, index), last >> 6, run);
}

#endif /* MAM_DETAIL_HEAP_SHORTAGE_H */
