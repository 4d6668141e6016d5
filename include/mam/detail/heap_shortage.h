/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_shortage.h - what a heap is known not to have, so that no search that must fail is repeated.
 *
 * Shortage: a 32-bit word for each superblock and for each part of it, 64 words of the page map.
 *
 *   31                 9   8         7                    0
 *   | number of changes | searching | shortest missing run |     in pages; 0: nothing is known
 *
 * A thread that searches sets "searching" first.  When it has found nothing, it writes the length that it missed, by a
 * compare-and-swap that fails if the word has changed since.  A thread that finds a run leaves what is known of longer
 * ones.  A thread that gives pages back raises the number and clears the rest.
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
  /* The bits of the shortest missing run, which has at most 64 pages: longer ones are not recorded. */
  MAM__SHORT_PAGES = 255,
  /* A thread is searching. */
  MAM__SHORT_SEARCHING = 256,
  /* The lowest bit of the number of changes. */
  MAM__SHORT_NUMBER = 512
};

MAM__INLINE mam__u32 mam__shortage_next(mam__u32 shortage, mam__u32 low) {
  return (shortage & ~(mam__u32)(MAM__SHORT_NUMBER - 1)) + MAM__SHORT_NUMBER + low;
}
/* Whether a shortage word says that there is no run of so many pages. */
MAM__INLINE int mam__shortage_covers(mam__u32 shortage, mam__u32 pages) {
  return (shortage & MAM__SHORT_PAGES) != 0 && pages >= (shortage & MAM__SHORT_PAGES);
}

/* ---- Searching ---- */

/* Marks a shortage word as being searched.  Returns the word to confirm by, or 0 if another thread searches already or
 * the word has changed. */
MAM__INLINE mam__u32 mam__shortage_begin(mam__u32 *shortage, mam__u32 known) {
  mam__u32 mark = mam__shortage_next(known, MAM__SHORT_SEARCHING | (known & MAM__SHORT_PAGES));
  return (known & MAM__SHORT_SEARCHING) == 0 && mam__cas_acq_rel_u32(shortage, known, mark) == known ? mark : 0;
}

/* Ends a search that mam__shortage_begin marked.  If it found nothing, the word says so, unless it has changed since.
 * If it found a run, what the word says of longer runs stays. */
MAM__INLINE void mam__shortage_confirm(mam__u32 *shortage, mam__u32 mark, mam__u32 count, int found) {
  if (mark != 0)
    (void)mam__cas_acq_rel_u32(shortage, mark, mam__shortage_next(mark, found ? mark & MAM__SHORT_PAGES : count));
}

/* A look for open parts reads 4 shortage words together. */
enum { MAM__PARTS_AHEAD = 4 };

/* The first part, from one on and before end, that may have a run of count pages; end if there is none.  With all 0,
 * parts where another thread searches are left out. */
MAM__OUTLINE mam__u32 mam__parts_next(MAM__TAG(1) const mam__u32 *parts, mam__u32 part, mam__u32 end, mam__u32 count,
                                      mam__u32 all) {
  MAM__LOOP
  for (; part < end; part += MAM__PARTS_AHEAD) {
    mam__u32 seen[MAM__PARTS_AHEAD], open = 0;
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__PARTS_AHEAD; i++)
      seen[i] = mam__load_relaxed_u32(&parts[part + i < end ? part + i : part]);
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__PARTS_AHEAD; i++)
      open |= (mam__u32)(part + i < end && !mam__shortage_covers(seen[i], count) &&
                         (all != 0 || (seen[i] & MAM__SHORT_SEARCHING) == 0))
              << i;
    if (open != 0)
      return part + mam__lowest_u32(open);
  }
  return end;
}

/* Whether all superblocks are known to have no run of so many pages, and no empty spans. */
MAM__OUTLINE int mam__pages_are_short(MAM__TAG(2) struct mam__heap_control *control, mam__u32 pages) {
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
MAM__OUTLINE mam__u32 mam__stamps_rely(MAM__TAG(1) struct mam__heap_control *control) {
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
MAM__OUTLINE void mam__stamp_raise(mam__u32 *stamp) {
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
MAM__OUTLINE int mam__is_missing(struct mam__heap_control *control, struct mam__area first, mam__u32 size_class) {
  mam__u32 missing = mam__load_relaxed_u32(&control->missing[mam__kind_number(size_class)]),
           sum = mam__stamps_sum(control, first);
  return sum != 0 && missing == sum;
}

/* ---- Giving back ---- */

/* Whether a thread relies on the superblock's stamp, after the caller has freed a chunk. */
MAM__INLINE int mam__chunk_matters(struct mam__area area) {
  return (mam__look_after_change_u32(mam__area_stamp(area)) & 1) != 0;
}

/* Whether anything is known of the superblock that pages which the caller has just given back, in the word at index of
 * the page map, may have made untrue.  A run that begins in one part may end in the next. */
MAM__INLINE int mam__returned_matters(struct mam__area area, mam__u32 index) {
  const mam__u32 *part = &mam__area_parts(area)[index >> 6];
  mam__u32 before = (index & 63) == 0 && index != 0, stamp = mam__look_after_change_u32(mam__area_stamp(area));
  mam__u32 known = mam__load_relaxed_u32(mam__area_shortage(area)) | mam__load_relaxed_u32(part) |
                   mam__load_relaxed_u32(part - before);
  return ((known & (MAM__SHORT_NUMBER - 1)) | (stamp & 1)) != 0;
}

/* The same for pages in several words of the page map.  Eight parts are read together. */
MAM__OUTLINE int mam__words_matter(MAM__TAG(1) mam__u32 index, mam__u32 words, struct mam__area area) {
  mam__u32 part = index == 0 ? 0 : (index - 1) >> 6, last = (index + words - 1) >> 6;
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

MAM__OUTLINE void mam__shortage_end(MAM__TAG(1) mam__u32 *shortage) {
  mam__u32 known = mam__load_relaxed_u32(shortage);
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && (known & (MAM__SHORT_NUMBER - 1)) != 0; i++) {
    mam__u32 seen = mam__cas_acq_rel_u32(shortage, known, mam__shortage_next(known, 0));
    if (seen == known)
      return;
    known = seen;
  }
}

/* Ends what is known to be missing, after pages came back in so many words of the page map. */
MAM__INLINE void mam__pages_back(struct mam__area area, mam__u32 index, mam__u32 words) {
  mam__u32 part = index == 0 ? 0 : (index - 1) >> 6, last = (index + words - 1) >> 6;
  MAM__LOOP
  for (; part <= last; part++) {
    MAM__FORGET(area.page_count); /* not kept over a call */
    MAM__OUT_OF_SIGHT(mam__shortage_end)(&mam__area_parts(area)[part]);
  }
  mam__barrier_all(); /* a search relies on the parts after it has marked the superblock: see mam__pages_search */
  MAM__OUT_OF_SIGHT(mam__shortage_end)(mam__area_shortage(area));
  MAM__OUT_OF_SIGHT(mam__stamp_raise)(mam__area_stamp(area));
}
MAM__OUTLINE void mam__pages_returned(mam__u32 index, mam__u32 words, struct mam__area area) {
  mam__pages_back(area, index, words);
}

#endif /* MAM_DETAIL_HEAP_SHORTAGE_H */
