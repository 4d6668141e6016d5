/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_runs.h - requests of whole pages.
 *
 *   1. more than 64 pages in a lazy heap: kept words (heap_kept.h)
 *   2. pages from anywhere (mam__pages_any)
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
MAM__INLINE struct mam__found mam__run_claim(struct mam__heap_control *control, mam__u32 pages, mam__u32 home) {
  struct mam__found place = {control->superblocks, MAM__NO_PAGE};
  if (pages > MAM__SPAN_PAGES) { /* others may get what this takes and gives back */
    (void)mam__add_relaxed_u32(&control->opening[MAM__HEAP_KINDS], 1);
    if (mam__load_relaxed_u32(&control->mode) == MAM__MODE_LAZY)
      place.page = MAM__OUT_OF_SIGHT(mam__run_take_kept)(control, place.area, pages);
  }
  mam__u32 sum = 0;
  MAM__LOOP
  for (mam__u32 i = 0;; i++) {
    MAM__FORGET(pages); /* what is computed from it is not kept over the calls */
    MAM__FORGET(home);
    MAM__FORGET_ADDRESS(control);
    if (place.page == MAM__NO_PAGE)
      place = mam__pages_any(control, pages, home << MAM__REST_HOME);
    MAM__FORGET_ADDRESS(control);
    if (i == 0 && pages > MAM__SPAN_PAGES) {
      if (place.page != MAM__NO_PAGE && place.area == control->superblocks)
        MAM__OUT_OF_SIGHT(mam__kept_extend)(control, place.page + pages);
      (void)mam__add_acq_rel_u32(&control->opening[MAM__HEAP_KINDS], ~0u);
    }
    if (place.page != MAM__NO_PAGE || i == MAM__SCARCE_ROUNDS ||
        !MAM__OUT_OF_SIGHT(mam__heap_could)(control, (mam__u64)pages << MAM__PAGE_SHIFT))
      return place;
    MAM__FORGET_ADDRESS(control);
    if (i != 0 && mam__load_acquire_u32(&control->opening[MAM__HEAP_KINDS]) != 0)
      mam__pause();
    else if (i != 0 && mam__stamps_sum(control, control->superblocks[0]) == sum &&
             mam__slots_flush(~0u, control) == 0 && !MAM__OUT_OF_SIGHT(mam__parks_flush)(control) &&
             mam__stamps_sum(control, control->superblocks[0]) == sum)
      return place;
    MAM__FORGET_ADDRESS(control);
    /* A thread that takes a part and gives it back makes other threads look again, and they make it look again.  So
     * each rests longer every time. */
    if (i > 1)
      mam__sleep(i < 9 ? 100u << i : 50000u);
    sum = MAM__OUT_OF_SIGHT(mam__stamps_rely)(control);
  }
}

/* Serves a request of whole pages.  Returns the address; 0 if there is no room. */
MAM__OUTLINE mam__u64 mam__run_malloc(struct mam__heap_control *control, mam__u64 bytes, mam__u32 home) {
  mam__u64 pages = (bytes + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT;
  if (pages == 0 || pages >= MAM__NO_PAGE)
    return 0;
  struct mam__found place = mam__run_claim(control, (mam__u32)pages, home);
  if (place.page == MAM__NO_PAGE)
    return 0;
  mam__u64 *words = &place.area->words[place.page * MAM__PAGE_WORDS];
  mam__store_relaxed_u16(&mam__area_entries(*place.area)[place.page], MAM__ENTRY_RUN);
  if (pages >> 24 != 0)
    mam__store_relaxed_u64(&words[1], mam__run_word_more((mam__u32)pages));
  mam__store_relaxed_u64(words, mam__run_word((mam__u32)pages));
  return mam__area_address(*place.area, place.page);
}

#endif /* MAM_DETAIL_HEAP_RUNS_H */
