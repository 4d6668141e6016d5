/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_sweep.h - pages of any superblock, and the sweep of a lazy heap when they are scarce.
 *
 * In a lazy heap a free is one change of one usage word.  An empty span stays, to be filled again by the slot that had
 * it.  When the first superblock has no pages for a request, the thread and all others in need sweep it, a word of the
 * page map at a time: each span is watched from then on, empty ones end, and free chunks of the others get into the
 * class maps.
 *
 *   MAM_MODE_LAZY ----------> MAM_MODE_SWEEPING ----------> MAM_MODE_WATCHED      until the heap is reset
 *     the first request          all words and the
 *     without pages              kept words are done
 *
 * In the mode "watched" new spans are watched from the beginning.
 *
 * The steps of mam_pages_any, for a run of pages:
 *
 *   1. up to 64 pages: at the caller's home (mam_pages_near)
 *   2. a search of each superblock, the active one first; not while the first one is being swept
 *   3. if the heap is not in the mode "watched": a sweep, which takes the first run that it makes free
 *   4. 1 and 2 again
 */
#ifndef MAM_DETAIL_HEAP_SWEEP_H
#define MAM_DETAIL_HEAP_SWEEP_H

#include <mam/detail/heap_homes.h>
#include <mam/detail/heap_kept.h>
#include <mam/detail/heap_spans.h>

/* Counts a part that was swept: a word of the page map, or the kept words.  The last one changes the mode.  acq_rel: a
 * thread that relies on the mode sees all of the sweep. */
MAM_INLINE void mam_swept(struct mam_heap_control *control) {
  if (mam_add_acq_rel_u32(&control->sweep_done, 1) == mam_area_map_words(control->superblocks[0]))
    (void)mam_exchange_acq_rel_u32(&control->mode, MAM_MODE_WATCHED);
}

/* Sweeps until it can take a run of so many pages, or nothing is left to sweep.  Then it waits a bounded time for other
 * threads that sweep. */
MAM_OUTLINE mam_u32 mam_sweep(struct mam_heap_control *control, mam_u32 count) {
  const struct mam_area *area = &control->superblocks[0];
  mam_u32 words = mam_area_map_words(*area), index;
  int begins = mam_cas_acq_rel_u32(&control->mode, MAM_MODE_LAZY, MAM_MODE_SWEEPING) == MAM_MODE_LAZY;
  mam_fence_all(); /* pairs with mam_slot_publish and mam_run_keep */
  if (begins) {
    MAM_OUT_OF_SIGHT(mam_kept_flush)(*area);
    mam_swept(control);
  }
  MAM_LOOP
  while (mam_load_relaxed_u32(&control->sweep_next) < words &&
         (index = mam_add_relaxed_u32(&control->sweep_next, 1)) < words) {
    mam_u32 page = index << 6;
    MAM_LOOP
    for (mam_u64 taken; page < area->page_count && page >> 6 == index;) { /* each span that begins in the word */
      taken = mam_load_relaxed_u64(&mam_area_pages(*area)[index]) >> (page & 63);
      if (taken == 0)
        break;
      page += mam_lowest_u64(taken);
      page += page < area->page_count ? MAM_OUT_OF_SIGHT(mam_span_watch)(*area, page) : 0;
    }
    mam_swept(control);
    page = MAM_NO_PAGE;
    if (count <= MAM_SPAN_PAGES)
      page = MAM_OUT_OF_SIGHT(mam_map_take_in)(index, mam_area_pages(*area), words, count);
    if (page != MAM_NO_PAGE)
      return page;
  }
  MAM_LOOP
  for (int i = 0; i < MAM_WAIT_ROUNDS && mam_load_acquire_u32(&control->mode) != MAM_MODE_WATCHED; i++)
    mam_pause();
  return MAM_NO_PAGE;
}

/* Takes a run of pages from any superblock, if possible near the home.  While the first superblock is being swept, a
 * short run comes quickest from the sweep, so nothing is searched. */
MAM_OUTLINE struct mam_found mam_pages_claim(MAM_TAG(1) struct mam_heap_control *control, mam_u32 count, mam_u32 home) {
  mam_u32 active = mam_load_acquire_u32(&control->active), index = home * 0x9e3779b1u;
  struct mam_found found = {&control->superblocks[active], MAM_NO_PAGE};
  if (count > MAM_SPAN_PAGES)
    index = mam_add_relaxed_u32(&control->run_cursor, (count + 63) >> 6);
  else {
    found.page = MAM_OUT_OF_SIGHT(mam_pages_near)(count, control, found.area, home);
    if (found.page != MAM_NO_PAGE || mam_load_relaxed_u32(&control->mode) == MAM_MODE_SWEEPING)
      return found;
  }
  MAM_LOOP /* the count is read each time: it pairs with mam_superblocks_publish */
      for (mam_u32 i = 0; i < mam_load_acquire_u32(&control->superblock_count); i++) {
    mam_u32 from = index % mam_area_map_words(*found.area);
    found.page = count <= MAM_SPAN_PAGES ? MAM_OUT_OF_SIGHT(mam_pages_search)(found.area, count, from)
                                         : mam_run_search(found.area, count, from);
    if (found.page != MAM_NO_PAGE) {
      if (i != 0) /* release: the superblock, which may be new; pairs with the load above */
        mam_store_release_u32(&control->active, (mam_u32)(found.area - control->superblocks));
      return found;
    }
    found.area = found.area + 1 < control->superblocks + mam_load_acquire_u32(&control->superblock_count)
                     ? found.area + 1
                     : control->superblocks;
  }
  return found;
}

/* Takes a run of pages for a request word's home, and sweeps if that may bring some. */
MAM_INLINE struct mam_found mam_pages_any(struct mam_heap_control *control, mam_u32 count, mam_u32 wanted) {
  struct mam_found found;
  MAM_LOOP
  for (int swept = 0;; swept = 1) {
    found = MAM_OUT_OF_SIGHT(mam_pages_claim)(control, count, wanted >> MAM_REST_HOME & 1023);
    if (found.page != MAM_NO_PAGE || swept || mam_load_relaxed_u32(&control->mode) == MAM_MODE_WATCHED)
      return found;
    found.area = control->superblocks;
    found.page = MAM_OUT_OF_SIGHT(mam_sweep)(control, count);
    if (found.page != MAM_NO_PAGE)
      return found;
  }
}

#endif /* MAM_DETAIL_HEAP_SWEEP_H */
