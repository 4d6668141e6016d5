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
 * The steps of mam__pages_any, for a run of pages:
 *
 *   1. up to 64 pages: at the caller's home (mam__pages_near)
 *   2. a search of each superblock, the active one first; not while the first one is being swept
 *   3. if the heap is not in the mode "watched": kept words (heap_kept.h), then a sweep; the first run that they make
 *      free is taken
 *   4. 1 and 2 again
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
    page += mam__lowest_u32(begins | 1u << MAM__AHEAD);
    if (begins != 0 && page >> 6 == index)
      page += MAM__OUT_OF_SIGHT(mam__span_watch)(*area, page);
  }
  return page;
}

/* Sweeps until it can take a run of so many pages, or nothing is left to sweep.  Then it waits a bounded time for other
 * threads that sweep. */
MAM__OUTLINE mam__u32 mam__sweep(struct mam__heap_control *control, mam__u32 count) {
  const struct mam__area *area = &control->superblocks[0];
  mam__u32 words = mam__area_map_words(*area), index, covered = 0, own = 0;
  (void)mam__cas_acq_rel_u32(&control->mode, MAM__MODE_LAZY, MAM__MODE_SWEEPING);
  mam__barrier_all(); /* pairs with mam__slot_publish */
  MAM__LOOP
  while (mam__load_relaxed_u32(&control->sweep_next) < words &&
         (index = mam__add_relaxed_u32(&control->sweep_next, 1)) < words) {
    covered = mam__word_sweep(area, index, covered);
    mam__swept(control, 1);
    mam__u32 page = MAM__NO_PAGE;
    if (count <= MAM__SPAN_PAGES)
      page = MAM__OUT_OF_SIGHT(mam__map_take_in)(index, mam__area_pages(*area), words, count);
    else if (++own % 64 == 0) /* a search costs as much as some of these words */
      page = MAM__OUT_OF_SIGHT(mam__pages_search)(area, count, index & ~63u);
    if (page != MAM__NO_PAGE)
      return page;
  }
  MAM__LOOP
  for (int i = 0; i < MAM__WAIT_ROUNDS && mam__load_acquire_u32(&control->mode) != MAM__MODE_WATCHED; i++)
    mam__pause();
  return MAM__NO_PAGE;
}

/* Takes a run of pages from any superblock, if possible near the home, also of those that were kept.  While the first
 * superblock is being swept, a short run comes quickest from the sweep, so nothing is searched. */
MAM__OUTLINE struct mam__found mam__pages_claim(MAM__TAG(1) struct mam__heap_control *control, mam__u32 count,
                                                mam__u32 home) {
  mam__u32 active = mam__load_acquire_u32(&control->active), index = home * 0x9e3779b1u;
  struct mam__found found = {&control->superblocks[active], MAM__NO_PAGE};
  if (count > MAM__SPAN_PAGES)
    index = mam__add_relaxed_u32(&control->run_cursor, (count + 63) >> 6);
  else {
    found.page = MAM__OUT_OF_SIGHT(mam__pages_near)(count, control, found.area, home);
    if (found.page != MAM__NO_PAGE || mam__load_relaxed_u32(&control->mode) == MAM__MODE_SWEEPING)
      return found;
  }
  mam__u32 kept = mam__load_acquire_u32(&control->kept_end) < MAM__KEPT_DONE; /* pairs with mam__kept_drain */
  MAM__LOOP
  for (mam__u32 i = 0;; i++) {
    if (i >= mam__load_acquire_u32(&control->superblock_count)) { /* pairs with mam__superblocks_publish */
      if (!kept)
        return found;
      found.area = control->superblocks;
      found.page = MAM__OUT_OF_SIGHT(mam__kept_claim)(control, count);
      if (found.page != MAM__NO_PAGE)
        return found;
      kept = i = 0; /* once more: other threads have given words back, too */
    }
    mam__u32 from = index % mam__area_map_words(*found.area);
    found.page = MAM__OUT_OF_SIGHT(mam__pages_search)(found.area, count, from);
    if (found.page != MAM__NO_PAGE) {
      if (i != 0) /* release: the superblock, which may be new; pairs with the load above */
        mam__store_release_u32(&control->active, (mam__u32)(found.area - control->superblocks));
      return found;
    }
    found.area = found.area + 1 < control->superblocks + mam__load_acquire_u32(&control->superblock_count)
                     ? found.area + 1
                     : control->superblocks;
  }
}

/* Takes a run of pages for a request word's home, and sweeps if that may bring some. */
MAM__INLINE struct mam__found mam__pages_any(struct mam__heap_control *control, mam__u32 count, mam__u32 wanted) {
  struct mam__found found;
  MAM__LOOP
  for (int swept = 0;; swept = 1) {
    found = MAM__OUT_OF_SIGHT(mam__pages_claim)(control, count, wanted >> MAM__REST_HOME & 1023);
    if (found.page != MAM__NO_PAGE || swept || mam__load_relaxed_u32(&control->mode) == MAM__MODE_WATCHED)
      return found;
    found.area = control->superblocks;
    found.page = MAM__OUT_OF_SIGHT(mam__sweep)(control, count);
    if (found.page != MAM__NO_PAGE)
      return found;
  }
}

#endif /* MAM_DETAIL_HEAP_SWEEP_H */
