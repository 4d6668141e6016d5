/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_parks.h - parks: where warp heaps leave a header and a superblock for their next user (warp_core.h).
 *
 *   word 0   | address of a header                                 |     0: none
 *   word 1   | address of a superblock / 16  | units of 16 bytes   |     address 0: none
 *              63                          20 19                  0
 *
 * The number in the second word is that of the superblock, or of the one that was taken last.  control->parked is the
 * sum of these numbers.  control->parks_held has a bit for each group of parks, up to 64 groups: 1 if anything may wait
 * there.
 *
 * What waits in parks belongs to no program.  A heap that has nothing left frees it (mam__parks_flush).
 */
#ifndef MAM_DETAIL_HEAP_PARKS_H
#define MAM_DETAIL_HEAP_PARKS_H

#include <mam/detail/heap_blocks.h>

/* Says that something waits in a park.  The caller has put it there.  A flush at the same moment may miss it.  Then it
 * waits for its next user, or until something else is put into its group. */
MAM__INLINE void mam__parks_raise(struct mam__heap_control *control, const mam__u64 *park) {
  mam__u32 index = (mam__u32)(park - mam__parks(control)) / MAM__PARK_WORDS;
  mam__u64 bit = 1ull << (index >> mam__held_shift(mam__park_count(&control->heap)) & 63);
  if ((mam__load_relaxed_u64(&control->parks_held) & bit) == 0)
    (void)mam__or_relaxed_u64(&control->parks_held, bit);
}

/* Takes the superblock that waits in the second word of a park.  Returns its address; 0 if there is none. */
MAM__INLINE mam__u64 mam__park_empty(struct mam__heap_control *control, mam__u64 *place) {
  mam__u64 word = 0;
  if (mam__park_address(mam__load_relaxed_u64(place)) != 0)
    word = mam__exchange_acq_rel_u64(place, 0); /* acquire: what was done in it; pairs with mam__warp_keep */
  if (word != 0)
    (void)mam__add_relaxed_u32(&control->parked, 0u - mam__park_number(word));
  return mam__park_address(word);
}

/* Frees what waits in parks.  Returns whether there was anything. */
MAM__OUTLINE int mam__parks_flush(struct mam__heap_control *control) {
  mam__u32 at = 0;
  int found = 0;
  /* acquire: if another thread has what waited in its hands, the caller sees that in the count below. */
  if (mam__load_acquire_u64(&control->parks_held) == 0)
    return 0;
  (void)mam__add_relaxed_u32(&control->opening[MAM__HEAP_KINDS], 1);
  mam__u64 groups = mam__exchange_acq_rel_u64(&control->parks_held, 0);
  MAM__LOOP
  for (; at < mam__park_count(&control->heap); at++) {
    if ((groups >> (at >> mam__held_shift(mam__park_count(&control->heap))) & 1) == 0) {
      at |= (1u << mam__held_shift(mam__park_count(&control->heap))) - 1;
      continue;
    }
    mam__u64 *park = &mam__parks(control)[(mam__u64)at * MAM__PARK_WORDS];
    mam__u64 header = 0, block = mam__park_empty(control, park + 1);
    if (mam__load_relaxed_u64(park) != 0)
      header = mam__exchange_acq_rel_u64(park, 0); /* acquire: what was done in it; pairs with mam__warp_put_away */
    if (block != 0)
      (void)MAM__OUT_OF_SIGHT(mam__block_free)(control, block);
    if (header != 0)
      (void)MAM__OUT_OF_SIGHT(mam__block_free)(control, header);
    found |= (block | header) != 0;
  }
  (void)mam__add_acq_rel_u32(&control->opening[MAM__HEAP_KINDS], ~0u); /* release: as in mam__opening_end */
  return found;
}

#endif /* MAM_DETAIL_HEAP_PARKS_H */
