/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_runs.h - requests of whole pages.
 *
 *   1. more than 64 pages in a lazy heap: kept words (heap_kept.h)
 *   2. pages from anywhere (mam_pages_any)
 *   3. if there are none: rely on the stamps, look again (2); if nothing came back, free what slots and parks hold
 *   4. 3 again, until a look found nothing, nothing was freed and no stamp has changed; then the request fails
 *
 * A request for a long run takes a part of what it finds and gives it back if the rest is missing.  Others could miss
 * that part, so control->opening counts such requests, and a thread rests before it looks again, longer every time.
 * Unlike for chunks, a heap does not remember that a run is missing; the shortage words do (heap_shortage.h).
 */
#ifndef MAM_DETAIL_HEAP_RUNS_H
#define MAM_DETAIL_HEAP_RUNS_H

#include <mam/detail/heap_scarce.h>

/* Takes a run of pages by all means. */
MAM_INLINE struct mam_found mam_run_claim(struct mam_heap_control *control, mam_u32 pages, mam_u32 home) {
  struct mam_found place = {control->superblocks, MAM_NO_PAGE};
  if (pages > MAM_SPAN_PAGES) { /* others may get what this takes and gives back */
    (void)mam_add_relaxed_u32(&control->opening[MAM_HEAP_KINDS], 1);
    if (mam_load_relaxed_u32(&control->mode) == MAM_MODE_LAZY)
      place.page = MAM_OUT_OF_SIGHT(mam_run_take_kept)(control, place.area, pages);
  }
  mam_u32 sum = 0;
  MAM_LOOP
  for (mam_u32 i = 0;; i++) {
    MAM_FORGET(pages); /* what is computed from it is not kept over the calls */
    MAM_FORGET(home);
    MAM_FORGET_ADDRESS(control);
    if (place.page == MAM_NO_PAGE)
      place = mam_pages_any(control, pages, home << MAM_REST_HOME);
    MAM_FORGET_ADDRESS(control);
    if (i == 0 && pages > MAM_SPAN_PAGES) {
      if (place.page != MAM_NO_PAGE && place.area == control->superblocks)
        MAM_OUT_OF_SIGHT(mam_kept_extend)(control, place.page + pages);
      (void)mam_add_acq_rel_u32(&control->opening[MAM_HEAP_KINDS], ~0u);
    }
    if (place.page != MAM_NO_PAGE || i == MAM_SCARCE_ROUNDS ||
        !MAM_OUT_OF_SIGHT(mam_heap_could)(control, (mam_u64)pages << MAM_PAGE_SHIFT))
      return place;
    MAM_FORGET_ADDRESS(control);
    if (i != 0 && mam_load_acquire_u32(&control->opening[MAM_HEAP_KINDS]) != 0)
      mam_pause();
    else if (i != 0 && mam_stamps_sum(control, control->superblocks[0]) == sum && mam_slots_flush(~0u, control) == 0 &&
             !MAM_OUT_OF_SIGHT(mam_parks_flush)(control) && mam_stamps_sum(control, control->superblocks[0]) == sum)
      return place;
    MAM_FORGET_ADDRESS(control);
    /* A thread that takes a part and gives it back makes other threads look again, and they make it look again.  So
     * each rests longer every time. */
    if (i > 1)
      mam_sleep(i < 9 ? 100u << i : 50000u);
    sum = MAM_OUT_OF_SIGHT(mam_stamps_rely)(control);
  }
}

/* Serves a request of whole pages.  Returns the address; 0 if there is no room. */
MAM_OUTLINE mam_u64 mam_run_malloc(struct mam_heap_control *control, mam_u64 bytes, mam_u32 home) {
  mam_u64 pages = (bytes + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
  if (pages == 0 || pages >= MAM_NO_PAGE)
    return 0;
  struct mam_found place = mam_run_claim(control, (mam_u32)pages, home);
  if (place.page == MAM_NO_PAGE)
    return 0;
  mam_u64 *words = &place.area->words[place.page * MAM_PAGE_WORDS];
  mam_store_relaxed_u16(&mam_area_entries(*place.area)[place.page], MAM_ENTRY_RUN);
  if (pages >> 24 != 0)
    mam_store_relaxed_u64(&words[1], mam_run_word_more((mam_u32)pages));
  mam_store_relaxed_u64(words, mam_run_word((mam_u32)pages));
  return mam_area_address(*place.area, place.page);
}

#endif /* MAM_DETAIL_HEAP_RUNS_H */
