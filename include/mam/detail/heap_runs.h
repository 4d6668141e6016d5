/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_runs.h - requests of whole pages.
 *
 *   1. more than 64 pages in a lazy heap: kept words (heap_kept.h)
 *   2. pages from anywhere (mam__search_turn)
 *   3. if there are none: rely on the stamps, look again (2), then free a part of what slots and parks hold, a larger
 *      one each time (mam__flush_turn)
 *   4. 3 again, until there is nothing: a look found nothing, nothing was freed and no stamp has changed; or until the
 *      looks have cost too much
 *
 * All requests in need free parts at the same time, and a look has a cost: as in heap_scarce.h.
 *
 * A request for a long run takes a part of what it finds and gives it back if the rest is missing.  Others could miss
 * that part, so control->opening counts such requests, and a thread rests before it looks again, longer every time.
 * Unlike for chunks, a heap does not remember that a run is missing; the shortage words do (heap_shortage.h).
 */
#ifndef MAM_DETAIL_HEAP_RUNS_H
#define MAM_DETAIL_HEAP_RUNS_H

#include <mam/detail/heap_scarce.h>

/* A request that can do with less looks at so many words of the page map for a long run. */
enum { MAM__TRY_WORDS = 512 };

/* Takes a run of pages by all means.  wanted: a request word, of which the home counts. */
MAM__INLINE struct mam__found mam__run_claim(struct mam__heap_control *control, mam__u32 pages, mam__u32 wanted) {
  mam__u32 page = MAM__NO_PAGE, at = 0, sum = 0, spent = 0 /* as in heap_scarce.h */;
  if (pages > MAM__SPAN_PAGES) { /* others may get what this takes and gives back */
    (void)mam__add_relaxed_u32(&control->opening[MAM__HEAP_KINDS], 1);
    page = MAM__OUT_OF_SIGHT(mam__run_take_kept)(control, control->superblocks, pages);
  }
  MAM__LOOP
  for (;;) {
    mam__u32 step = page != MAM__NO_PAGE ? (mam__u32)MAM__SEARCH_END : (mam__u32)MAM__SEARCH_NEAR;
    at = page != MAM__NO_PAGE ? 0 : mam__load_acquire_u32(&control->active);
    MAM__LOOP
    while (step != MAM__SEARCH_END && page == MAM__NO_PAGE) {
      MAM__FORGET(pages); /* what is computed from these is not kept over the calls */
      MAM__FORGET_ADDRESS(control);
      page = mam__search_turn(control, pages, &wanted, &step, &at, page);
    }
    MAM__FORGET_ADDRESS(control);
    if (spent == 0 && pages > MAM__SPAN_PAGES) {
      if (page != MAM__NO_PAGE && mam__search_area(control, at) == control->superblocks)
        MAM__OUT_OF_SIGHT(mam__kept_extend)(control, (page + pages) >> 6);
      (void)mam__add_acq_rel_u32(&control->opening[MAM__HEAP_KINDS], ~0u);
    }
    if (page != MAM__NO_PAGE || spent % MAM__COST_PASS >= MAM__SCARCE_PATIENCE ||
        !MAM__OUT_OF_SIGHT(mam__heap_could)(control, (mam__u64)pages << MAM__PAGE_SHIFT))
      break;
    MAM__FORGET_ADDRESS(control);
    /* Many threads flush at once, each a part, so that the search after that finds something. */
    mam__u32 found = MAM__FLUSH_FREED;
    if (spent != 0) {
      found = mam__flush_begin(MAM__HEAP_KINDS, spent < 16 * MAM__COST_PASS ? 1u << spent / MAM__COST_PASS : ~0u);
      MAM__LOOP
      while (mam__flush_turn(control, &found)) {
      }
      found &= MAM__FLUSH_FREED | MAM__FLUSH_BUSY;
    }
    MAM__FORGET_ADDRESS(control);
    if (found == 0 && MAM__OUT_OF_SIGHT(mam__parks_flush)(control))
      found = MAM__FLUSH_FREED;
    MAM__FORGET_ADDRESS(control);
    if (found == 0 && sum != 0 && mam__load_acquire_u32(&control->opening[MAM__HEAP_KINDS]) == 0 &&
        mam__stamps_sum(control, control->superblocks[0]) == sum)
      break;
    MAM__FORGET_ADDRESS(control);
    /* A thread that takes a part and gives it back makes other threads look again, and they make it look again.  So
     * each rests longer every time. */
    if ((found & MAM__FLUSH_FREED) == 0)
      mam__sleep(100u << spent % MAM__COST_PASS / 128);
    if ((found & MAM__FLUSH_FREED) == 0 && sum == 0)
      spent += MAM__COST_BUSY;
    else
      spent += (found & MAM__FLUSH_FREED) != 0 ? MAM__COST_FREED : MAM__COST_CHANGED;
    sum = mam__stamps_rely(control);
  }
  struct mam__found place = {mam__search_area(control, at), page};
  return place;
}

/* Makes a run of pages that the caller took.  Returns its address; 0 if it took none. */
MAM__INLINE mam__u64 mam__run_begin(struct mam__found place, mam__u32 pages) {
  if (place.page == MAM__NO_PAGE)
    return 0;
  mam__u64 *words = &place.area->words[place.page * MAM__PAGE_WORDS];
  mam__store_relaxed_u16(mam__page_entry(place.area->words, place.page), MAM__ENTRY_RUN);
  if (pages >> 16 != 0)
    mam__store_relaxed_u64(&words[1], mam__run_word_more(pages));
  mam__store_relaxed_u64(words, mam__run_word(pages));
  return mam__area_address(*place.area, place.page);
}

/* Serves a request of whole pages.  Returns the address; 0 if there is no room. */
MAM__OUTLINE mam__u64 mam__run_malloc(struct mam__heap_control *control, mam__u64 bytes, mam__u32 home) {
  mam__u64 pages = (bytes + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT;
  return pages == 0 || pages >= MAM__NO_PAGE
             ? 0
             : mam__run_begin(mam__run_claim(control, (mam__u32)pages, home << MAM__REST_HOME), (mam__u32)pages);
}

/* The same for a caller that can do with less memory: where a look at a part of the heap finds nothing, it returns 0.
 */
MAM__OUTLINE mam__u64 mam__run_try(MAM__TAG(1) struct mam__heap_control *control, mam__u32 pages, mam__u32 home) {
  struct mam__found place = {&control->superblocks[mam__load_acquire_u32(&control->active)], MAM__NO_PAGE};
  if (pages <= MAM__SPAN_PAGES) {
    place.page = MAM__OUT_OF_SIGHT(mam__pages_near)(pages, control, place.area, home);
    return mam__run_begin(place, pages);
  }
  (void)mam__add_relaxed_u32(&control->opening[MAM__HEAP_KINDS], 1); /* as in mam__run_claim */
  place.page = MAM__OUT_OF_SIGHT(mam__run_take_kept)(control, control->superblocks, pages);
  if (place.page != MAM__NO_PAGE)
    place.area = control->superblocks;
  else {
    mam__u32 words = mam__area_map_words(*place.area),
             index = mam__add_relaxed_u32(&control->run_cursor, (pages + 63) >> 6) % words;
    place.page =
        mam__run_take_any(place.area, pages, index, index + MAM__TRY_WORDS < words ? index + MAM__TRY_WORDS : words);
    if (place.page != MAM__NO_PAGE && place.area == control->superblocks)
      MAM__OUT_OF_SIGHT(mam__kept_extend)(control, (place.page + pages) >> 6);
  }
  (void)mam__add_acq_rel_u32(&control->opening[MAM__HEAP_KINDS], ~0u);
  return mam__run_begin(place, pages);
}

#endif /* MAM_DETAIL_HEAP_RUNS_H */
