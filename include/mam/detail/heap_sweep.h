/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_sweep.h - pages of any superblock, and the sweep of a lazy heap when they are scarce.
 *
 * In a lazy heap a free is one change of one usage word.  An empty span stays, to be filled again by the slot that had
 * it.  When the first superblock has no pages for a request, the thread and all others in need sweep it, a word of the
 * page map at a time: each span is watched from then on, empty ones end, and free chunks of the others get into the
 * class maps.
 *
 *   MAM__MODE_LAZY ----------> MAM__MODE_SWEEPING ----------> MAM__MODE_WATCHED      until the heap is reset
 *     the first request          all words and the
 *     without pages              kept words are done
 *
 * In the mode "watched" new spans are watched from the beginning.
 *
 * The phases of a search for a run of pages (mam__search_turn):
 *
 *   NEAR    up to 64 pages: at the caller's home (mam__pages_near)
 *   ALL     each superblock, the active one first; for a short run not while the first one is being swept
 *   KEPT    words that are kept (heap_kept.h), if any are, then ALL again
 *   SWEEP   then a sweep, if the heap is not in the mode "watched"; the first run that it makes free is taken
 *
 * The first two follow once more.
 */
#ifndef MAM_DETAIL_HEAP_SWEEP_H
#define MAM_DETAIL_HEAP_SWEEP_H

#include <mam/detail/heap_homes.h>
#include <mam/detail/heap_kept.h>
#include <mam/detail/heap_spans.h>

/* At which of up to eight pages a span or a run begins: a bit for each. */
MAM__OUTLINE mam__u32 mam__begins_look(mam__u32 left, const mam__u64 *usage) {
  mam__u64 seen[MAM__AHEAD];
  mam__u32 found = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    seen[i] = mam__load_relaxed_if_u64(i < left, &usage[i * MAM__PAGE_WORDS], 0);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    found |= (mam__u32)(seen[i] != 0) << i;
  return found;
}

/* Sweeps a word of the page map.  covered: nothing that is to be swept begins before that page.  Returns the same for
 * the next word.  The pages of a span or a run are passed over together. */
MAM__INLINE mam__u32 mam__word_sweep(const struct mam__area *area, mam__u32 index, mam__u32 covered) {
  mam__u64 taken = mam__load_relaxed_u64(&mam__area_pages(*area)[index]);
  mam__u32 page = covered > index << 6 ? covered : index << 6;
  MAM__LOOP
  while (page < area->page_count && page >> 6 == index && taken >> (page & 63) != 0) {
    page += mam__lowest_u64(taken >> (page & 63));
    mam__u32 begins =
        page < area->page_count
            ? MAM__OUT_OF_SIGHT(mam__begins_look)(area->page_count - page, &area->words[page * MAM__PAGE_WORDS])
            : 0;
    MAM__FORGET_ADDRESS(area);
    page += mam__lowest_u32(begins | 1u << MAM__AHEAD);
    if (begins != 0 && page >> 6 == index)
      page += mam__span_watch(*area, page);
    MAM__FORGET_ADDRESS(area);
  }
  return page;
}

/* A thread that wants a long run searches for it after so many words that it swept. */
enum { MAM__SWEEP_WORDS = 64 };

/* Sweeps until it can take a run of so many pages, or nothing is left to sweep; then it waits a bounded time for other
 * threads that sweep.  Or it returns after some words, for a run that does not lie in one. */
MAM__OUTLINE mam__u32 mam__sweep(struct mam__heap_control *control, mam__u32 count) {
  mam__u32 index, covered = 0, own = 0;
  (void)mam__cas_acq_rel_u32(&control->mode, MAM__MODE_LAZY, MAM__MODE_SWEEPING);
  mam__barrier_all(); /* pairs with mam__slot_publish */
  MAM__LOOP
  while (mam__load_relaxed_u32(&control->sweep_next) < mam__area_map_words(control->superblocks[0]) &&
         (index = mam__add_relaxed_u32(&control->sweep_next, 1)) < mam__area_map_words(control->superblocks[0])) {
    covered = mam__word_sweep(&control->superblocks[0], index, covered);
    MAM__FORGET_ADDRESS(control); /* what is computed from these is not kept over the calls */
    mam__swept(control, 1);
    mam__u32 page = MAM__NO_PAGE;
    if (count <= MAM__SPAN_PAGES)
      page = MAM__OUT_OF_SIGHT(mam__map_take_in)(index, mam__area_pages(control->superblocks[0]),
                                                 mam__area_map_words(control->superblocks[0]), count);
    MAM__FORGET_ADDRESS(control);
    MAM__FORGET(count);
    if (page != MAM__NO_PAGE || (count > MAM__SPAN_PAGES && ++own == MAM__SWEEP_WORDS))
      return page;
  }
  MAM__LOOP
  for (int i = 0; i < MAM__WAIT_ROUNDS && mam__load_acquire_u32(&control->mode) != MAM__MODE_WATCHED; i++)
    mam__pause();
  return MAM__NO_PAGE;
}

/* ---- A search for pages ---- */

/* Where a search is: one of these in the lowest bits of a step, in whose other bits the caller may have flags; and the
 * superblock, with the number of superblocks that were searched in this round from bit MAM__SEARCHED on.
 *
 * The turns of a search are parts of the caller's loop, and each call lies in an `if` of its own: see
 * lib/heap/README.md, "Registers and stacks". */
enum {
  /* A short run at the caller's home. */
  MAM__SEARCH_NEAR,
  /* Each superblock, the active one first. */
  MAM__SEARCH_ALL,
  /* Kept words, until the heap is watched. */
  MAM__SEARCH_KEPT,
  /* The sweep, until the heap is watched. */
  MAM__SEARCH_SWEEP,
  /* The first two once more, after all was swept. */
  MAM__SEARCH_NEAR_LAST,
  MAM__SEARCH_ALL_LAST,
  MAM__SEARCH_END,
  MAM__SEARCH_STEPS = 31,
  MAM__SEARCHED = 8
};

/* The superblock that a search looks at, or where it found something. */
MAM__INLINE const struct mam__area *mam__search_area(struct mam__heap_control *control, mam__u32 at) {
  return &control->superblocks[at & ((1 << MAM__SEARCHED) - 1)];
}

/* The phase of a search for count pages after one that found nothing. */
MAM__INLINE mam__u32 mam__search_next(struct mam__heap_control *control, mam__u32 count, mam__u32 phase, mam__u32 *at) {
  mam__u32 superblocks = mam__load_acquire_u32(&control->superblock_count); /* pairs with mam__superblocks_publish */
  mam__u32 mode = mam__load_relaxed_u32(&control->mode), last = phase >= MAM__SEARCH_NEAR_LAST;
  if (phase == MAM__SEARCH_NEAR || phase == MAM__SEARCH_NEAR_LAST) {
    /* While the first superblock is being swept, a short run comes quickest from the sweep. */
    if (count > MAM__SPAN_PAGES || mode != MAM__MODE_SWEEPING)
      return phase + 1;
  } else if (phase == MAM__SEARCH_ALL || phase == MAM__SEARCH_ALL_LAST) {
    mam__u32 next = (*at & ((1 << MAM__SEARCHED) - 1)) + 1, searched = (*at >> MAM__SEARCHED) + 1;
    *at = searched << MAM__SEARCHED | (next < superblocks ? next : 0);
    if (searched < superblocks)
      return phase;
  } else {
    *at = mam__load_acquire_u32(&control->active);
    if (phase == MAM__SEARCH_KEPT) /* other threads have given words back, too */
      return MAM__SEARCH_ALL;
    return mam__load_relaxed_u32(&control->sweep_next) < mam__area_map_words(control->superblocks[0])
               ? MAM__SEARCH_NEAR
               : MAM__SEARCH_NEAR_LAST;
  }
  *at = 0;
  if (last || mode == MAM__MODE_WATCHED)
    return MAM__SEARCH_END;
  return mam__load_acquire_u32(&control->kept_end) < MAM__KEPT_DONE /* pairs with mam__kept_drain */
             ? MAM__SEARCH_KEPT
             : MAM__SEARCH_SWEEP;
}

/* The phase of a search, computed anew. */
MAM__INLINE mam__u32 mam__search_phase(mam__u32 *step) {
  MAM__FORGET(*step);
  return *step & MAM__SEARCH_STEPS;
}

/* A turn of a search for a run of pages near the home of a request word.  page: MAM__NO_PAGE.  Returns the page, or
 * MAM__NO_PAGE.  The search is over with MAM__SEARCH_END; then, and with a larger step, this returns what it was given.
 */
MAM__INLINE mam__u32 mam__search_turn(struct mam__heap_control *control, mam__u32 count, mam__u32 *wanted,
                                      mam__u32 *step, mam__u32 *at, mam__u32 page) {
  mam__u32 phase = mam__search_phase(step);
  if ((phase == MAM__SEARCH_NEAR || phase == MAM__SEARCH_NEAR_LAST) && count <= MAM__SPAN_PAGES)
    page = MAM__OUT_OF_SIGHT(mam__pages_near)(count, control, mam__search_area(control, *at),
                                              *wanted >> MAM__REST_HOME & 1023);
  MAM__FORGET_THREE(*wanted, *at, count);
  phase = mam__search_phase(step);
  if (phase == MAM__SEARCH_ALL || phase == MAM__SEARCH_ALL_LAST) {
    mam__u32 from = count > MAM__SPAN_PAGES ? mam__add_relaxed_u32(&control->run_cursor, (count + 63) >> 6)
                                            : (*wanted >> MAM__REST_HOME & 1023) * 0x9e3779b1u;
    page = MAM__OUT_OF_SIGHT(mam__pages_search)(mam__search_area(control, *at), count,
                                                from % mam__area_map_words(*mam__search_area(control, *at)));
  }
  if (mam__search_phase(step) == MAM__SEARCH_KEPT)
    page = MAM__OUT_OF_SIGHT(mam__kept_claim)(control, count);
  if (mam__search_phase(step) == MAM__SEARCH_SWEEP)
    page = MAM__OUT_OF_SIGHT(mam__sweep)(control, count);
  MAM__FORGET(*at);
  phase = mam__search_phase(step);
  if (phase < MAM__SEARCH_END && page == MAM__NO_PAGE)
    *step = (*step & ~(mam__u32)MAM__SEARCH_STEPS) | mam__search_next(control, count, phase, at);
  else if (phase < MAM__SEARCH_END && *at >> MAM__SEARCHED != 0) /* release: the superblock, which may be new */
    mam__store_release_u32(&control->active, *at & ((1 << MAM__SEARCHED) - 1));
  return page;
}

#endif /* MAM_DETAIL_HEAP_SWEEP_H */
