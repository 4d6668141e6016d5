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
 *   2. mam_fence_all                 2. mam_fence_all (in mam_look_after_change_u32)
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
  MAM_SHORT_PAGES = 255,
  /* A thread is searching. */
  MAM_SHORT_SEARCHING = 256,
  /* The lowest bit of the number of changes. */
  MAM_SHORT_NUMBER = 512
};

MAM_INLINE mam_u32 mam_shortage_next(mam_u32 shortage, mam_u32 low) {
  return (shortage & ~(mam_u32)(MAM_SHORT_NUMBER - 1)) + MAM_SHORT_NUMBER + low;
}
/* Whether a shortage word says that there is no run of so many pages. */
MAM_INLINE int mam_shortage_covers(mam_u32 shortage, mam_u32 pages) {
  return (shortage & MAM_SHORT_PAGES) != 0 && pages >= (shortage & MAM_SHORT_PAGES);
}

/* ---- Searching ---- */

/* Marks a shortage word as being searched.  Returns the word to confirm by, or 0 if another thread searches already or
 * the word has changed. */
MAM_INLINE mam_u32 mam_shortage_begin(mam_u32 *shortage, mam_u32 known) {
  mam_u32 mark = mam_shortage_next(known, MAM_SHORT_SEARCHING | (known & MAM_SHORT_PAGES));
  return (known & MAM_SHORT_SEARCHING) == 0 && mam_cas_acq_rel_u32(shortage, known, mark) == known ? mark : 0;
}

/* Ends a search that mam_shortage_begin marked.  If it found nothing, the word says so, unless it has changed since.
 * If it found a run, what the word says of longer runs stays. */
MAM_INLINE void mam_shortage_confirm(mam_u32 *shortage, mam_u32 mark, mam_u32 count, int found) {
  if (mark != 0)
    (void)mam_cas_acq_rel_u32(shortage, mark, mam_shortage_next(mark, found ? mark & MAM_SHORT_PAGES : count));
}

/* A look for open parts reads 4 shortage words together. */
enum { MAM_PARTS_AHEAD = 4 };

/* The first part, from one on and before end, that may have a run of count pages; end if there is none.  With all 0,
 * parts where another thread searches are left out. */
MAM_OUTLINE mam_u32 mam_parts_next(MAM_TAG(1) const mam_u32 *parts, mam_u32 part, mam_u32 end, mam_u32 count,
                                   mam_u32 all) {
  MAM_LOOP
  for (; part < end; part += MAM_PARTS_AHEAD) {
    mam_u32 seen[MAM_PARTS_AHEAD], open = 0;
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_PARTS_AHEAD; i++)
      seen[i] = mam_load_relaxed_u32(&parts[part + i < end ? part + i : part]);
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_PARTS_AHEAD; i++)
      open |= (mam_u32)(part + i < end && !mam_shortage_covers(seen[i], count) &&
                        (all != 0 || (seen[i] & MAM_SHORT_SEARCHING) == 0))
              << i;
    if (open != 0)
      return part + mam_lowest_u32(open);
  }
  return end;
}

/* Whether all superblocks are known to have no run of so many pages, and no empty spans. */
MAM_OUTLINE int mam_pages_are_short(MAM_TAG(2) struct mam_heap_control *control, mam_u32 pages) {
  if (mam_load_relaxed_u32(&control->mode) != MAM_MODE_WATCHED)
    return 0;
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++)
    if (!mam_shortage_covers(mam_load_relaxed_u32(mam_area_shortage(control->superblocks[i])), pages))
      return 0;
  return 1;
}

/* ---- Stamps ---- */

/* Makes all stamps odd, and returns their sum. */
MAM_OUTLINE mam_u32 mam_stamps_rely(MAM_TAG(1) struct mam_heap_control *control) {
  mam_u32 sum = 0, superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++) {
    mam_u32 *stamp = mam_area_stamp(control->superblocks[i]), seen = mam_load_acquire_u32(stamp);
    sum += (seen & 1) != 0 ? seen : mam_or_acq_rel_u32(stamp, 1) | 1;
  }
  mam_fence_all(); /* pairs with mam_chunk_matters, mam_returned_matters and mam_words_matter */
  return sum;
}

/* The sum of the stamps as they are; 0 if the first one is even, since then no thread relies on it. */
MAM_INLINE mam_u32 mam_stamps_sum(struct mam_heap_control *control, struct mam_area first) {
  mam_u32 sum = mam_load_acquire_u32(mam_area_stamp(first));
  if ((sum & 1) == 0)
    return 0;
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 1; i < superblocks; i++)
    sum += mam_load_acquire_u32(mam_area_stamp(control->superblocks[i]));
  return sum;
}

/* Makes an odd stamp the next even number: something has come back. */
MAM_OUTLINE void mam_stamp_raise(mam_u32 *stamp) {
  mam_u32 known = mam_load_relaxed_u32(stamp);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (known & 1) != 0; i++) {
    mam_u32 seen = mam_cas_acq_rel_u32(stamp, known, known + 1);
    if (seen == known)
      return;
    known = seen;
  }
}

/* Whether the class is known to be missing in the heap, whose first superblock is given. */
MAM_OUTLINE int mam_is_missing(struct mam_heap_control *control, struct mam_area first, mam_u32 size_class) {
  mam_u32 missing = mam_load_relaxed_u32(&control->missing[mam_kind_number(size_class)]),
          sum = mam_stamps_sum(control, first);
  return sum != 0 && missing == sum;
}

/* ---- Giving back ---- */

/* Whether a thread relies on the superblock's stamp, after the caller has freed a chunk. */
MAM_INLINE int mam_chunk_matters(struct mam_area area) {
  return (mam_look_after_change_u32(mam_area_stamp(area)) & 1) != 0;
}

/* Whether anything is known of the superblock that pages which the caller has just given back, in the word at index of
 * the page map, may have made untrue.  A run that begins in one part may end in the next. */
MAM_INLINE int mam_returned_matters(struct mam_area area, mam_u32 index) {
  const mam_u32 *part = &mam_area_parts(area)[index >> 6];
  mam_u32 before = (index & 63) == 0 && index != 0, stamp = mam_look_after_change_u32(mam_area_stamp(area));
  mam_u32 known =
      mam_load_relaxed_u32(mam_area_shortage(area)) | mam_load_relaxed_u32(part) | mam_load_relaxed_u32(part - before);
  return ((known & (MAM_SHORT_NUMBER - 1)) | (stamp & 1)) != 0;
}

/* The same for pages in several words of the page map.  Eight parts are read together. */
MAM_OUTLINE int mam_words_matter(MAM_TAG(1) mam_u32 index, mam_u32 words, struct mam_area area) {
  mam_u32 part = index == 0 ? 0 : (index - 1) >> 6, last = (index + words - 1) >> 6;
  mam_u32 stamp = mam_look_after_change_u32(mam_area_stamp(area)),
          known = mam_load_relaxed_u32(mam_area_shortage(area));
  MAM_LOOP
  for (; part <= last; part += MAM_AHEAD) {
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_AHEAD; i++)
      known |= mam_load_relaxed_u32(&mam_area_parts(area)[part + i < last ? part + i : last]);
  }
  return ((known & (MAM_SHORT_NUMBER - 1)) | (stamp & 1)) != 0;
}

MAM_OUTLINE void mam_shortage_end(MAM_TAG(1) mam_u32 *shortage) {
  mam_u32 known = mam_load_relaxed_u32(shortage);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (known & (MAM_SHORT_NUMBER - 1)) != 0; i++) {
    mam_u32 seen = mam_cas_acq_rel_u32(shortage, known, mam_shortage_next(known, 0));
    if (seen == known)
      return;
    known = seen;
  }
}

/* Ends what is known to be missing, after pages came back in so many words of the page map. */
MAM_INLINE void mam_pages_back(struct mam_area area, mam_u32 index, mam_u32 words) {
  mam_u32 part = index == 0 ? 0 : (index - 1) >> 6, last = (index + words - 1) >> 6;
  MAM_LOOP
  for (; part <= last; part++) {
    MAM_FORGET(area.page_count); /* not kept over a call */
    MAM_OUT_OF_SIGHT(mam_shortage_end)(&mam_area_parts(area)[part]);
  }
  mam_fence_all(); /* a search relies on the parts after it has marked the superblock: see mam_pages_search */
  MAM_OUT_OF_SIGHT(mam_shortage_end)(mam_area_shortage(area));
  MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
}
MAM_OUTLINE void mam_pages_returned(mam_u32 index, mam_u32 words, struct mam_area area) {
  mam_pages_back(area, index, words);
}

#endif /* MAM_DETAIL_HEAP_SHORTAGE_H */
