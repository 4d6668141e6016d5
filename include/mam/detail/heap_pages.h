/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_pages.h - pages of one superblock: runs of them are taken from its page map and given back.
 *
 * The page map has a bit for each page, 1 if it is taken.  It is the truth: a thread owns the pages whose bits it has
 * set, until it clears them.  The thread that clears bits releases what was done in the pages, and the thread that sets
 * them acquires it.
 *
 *   up to 64 pages   mam_pages_search: part by part, first where no other thread searches.  A run lies in one word, or
 *                    at the end of a word and the beginning of the next (mam_run_take_across)
 *   more             mam_run_search, mam_run_take_long: word by word from the beginning of a free row; whole words in
 *                    the middle are taken eight at a time (mam_map_take_words)
 *
 * A run over several words is taken in several steps.  If a later step fails, what was taken is given back.  Another
 * thread may miss these pages meanwhile; that is why giving back ends what is known to be missing (heap_shortage.h).
 */
#ifndef MAM_DETAIL_HEAP_PAGES_H
#define MAM_DETAIL_HEAP_PAGES_H

#include <mam/detail/heap_shortage.h>

/* ---- Giving back ---- */

/* Gives back pages that the caller owns: bits of one word of the page map. */
MAM_OUTLINE void mam_pages_clear(struct mam_area area, mam_u32 index, mam_u64 bits) {
  /* acq_rel: what the pages' last users did comes before what the next ones do. */
  if (mam_and_acq_rel_u64(&mam_area_pages(area)[index], ~bits) == MAM_FULL_WORD)
    MAM_OUT_OF_SIGHT(mam_map_opened)(mam_area_pages(area), mam_area_map_words(area), index);
  MAM_FORGET(area.page_count);
  if (mam_returned_matters(area, index))
    mam_pages_back(area, index, 1);
}

MAM_OUTLINE void mam_pages_release(MAM_TAG(2) struct mam_area area, mam_u32 page, mam_u32 count) {
  area.base = 0; /* what is not used need not be kept over the calls */
  MAM_LOOP
  while (count != 0) {
    MAM_FORGET(area.page_count);
    mam_u32 from = page & 63, here = 64 - from < count ? 64 - from : count;
    if (from == 0 && count >= 128) {
      mam_u32 words = count >> 6;
      here = words << 6;
      MAM_LOOP
      for (mam_u32 i = 0; i < words; i++) /* release: as in mam_pages_clear.  No other thread changes these words. */
        (void)mam_exchange_release_u64(&mam_area_pages(area)[(page >> 6) + i], 0);
      MAM_OUT_OF_SIGHT(mam_map_words_opened)(mam_area_pages(area), mam_area_map_words(area), page >> 6, words);
      if (MAM_OUT_OF_SIGHT(mam_words_matter)(page >> 6, words, area))
        MAM_OUT_OF_SIGHT(mam_pages_returned)(page >> 6, words, area);
    } else
      MAM_OUT_OF_SIGHT(mam_pages_clear)(area, page >> 6, mam_run_bits(here, from));
    page += here;
    count -= here;
  }
}

/* ---- Runs within two words ---- */

/* Takes a run of up to 64 pages at the end of a word and the beginning of the next.  Returns the page, or MAM_NO_PAGE.
 * If it got the first part alone, *part is the number of its pages.  The caller gives them back, because that calls
 * more than a search should. */
MAM_INLINE mam_u32 mam_run_take_across(mam_u32 count, mam_u32 index, const struct mam_area *area, mam_u32 *part) {
  mam_u32 end = mam_leading_zeros_u64(mam_load_relaxed_u64(&mam_area_pages(*area)[index]));
  end = end < count ? end : count - 1;
  if (end == 0 || !MAM_OUT_OF_SIGHT(mam_map_take)(mam_area_pages(*area), mam_area_map_words(*area), index,
                                                  mam_run_bits(end, 64 - end)))
    return MAM_NO_PAGE;
  MAM_FORGET_ADDRESS(area);
  if (MAM_OUT_OF_SIGHT(mam_map_take)(mam_area_pages(*area), mam_area_map_words(*area), index + 1,
                                     mam_run_bits(count - end, 0)))
    return ((index + 1) << 6) - end;
  *part = end;
  return MAM_NO_PAGE;
}

/* The state of a search in the page map, and what it found.  page: the run's first page, or MAM_NO_PAGE.  part: so many
 * pages at the end of the word at index were taken in vain, and are to be given back. */
struct mam_take {
  mam_u32 page, index, part;
};

/* Takes the first run of up to 64 pages that begins in a word of the page map, from the word first on and before last.
 */
MAM_OUTLINE struct mam_take mam_run_take_near(mam_u32 count, mam_u32 first, mam_u32 last, const struct mam_area *area) {
  struct mam_take take = {MAM_NO_PAGE, first, 0};
  mam_u32 tries = 0;
  MAM_LOOP
  while (take.index < last) {
    MAM_FORGET_ADDRESS(area);
    mam_u32 fits = MAM_OUT_OF_SIGHT(mam_map_look_both)(count, mam_area_pages(*area), take.index);
    mam_u32 at = fits != 0 ? mam_lowest_u32(fits | fits >> 8) : MAM_AHEAD - 1;
    take.index += at;
    if (take.index >= last || at == MAM_AHEAD - 1)
      continue;
    MAM_FORGET_ADDRESS(area);
    if ((fits >> at & 1) != 0)
      take.page =
          MAM_OUT_OF_SIGHT(mam_map_take_in)(take.index, mam_area_pages(*area), mam_area_map_words(*area), count);
    else if (take.index + 1 < mam_area_map_words(*area))
      take.page = mam_run_take_across(count, take.index, area, &take.part);
    else
      take.index++;
    if (take.page != MAM_NO_PAGE || take.part != 0)
      return take;
    if (++tries % MAM_RETRIES == 0)
      take.index++;
  }
  return take;
}

/* The same; gives back what was taken in vain. */
MAM_INLINE mam_u32 mam_run_take(mam_u32 count, mam_u32 first, mam_u32 last, const struct mam_area *area) {
  mam_u32 tries = 0;
  MAM_LOOP
  while (first < last) {
    struct mam_take take = MAM_OUT_OF_SIGHT(mam_run_take_near)(count, first, last, area);
    if (take.part == 0)
      return take.page;
    MAM_OUT_OF_SIGHT(mam_pages_clear)(*area, take.index, mam_run_bits(take.part, 64 - take.part));
    first = ++tries % MAM_RETRIES == 0 ? take.index + 1 : take.index;
  }
  return MAM_NO_PAGE;
}

/* Takes a run of up to 64 pages that begins in a part of the page map: from word `from` of the part on, then from its
 * beginning. */
MAM_OUTLINE mam_u32 mam_part_search(MAM_TAG(2) const struct mam_area *area, mam_u32 part, mam_u32 count, mam_u32 from) {
  mam_u32 mark = mam_load_relaxed_u32(&mam_area_parts(*area)[part]), page = MAM_NO_PAGE;
  if (mam_shortage_covers(mark, count))
    return MAM_NO_PAGE;
  mark = mam_shortage_begin(&mam_area_parts(*area)[part], mark);
  mam_fence_all(); /* pairs with mam_returned_matters */
  MAM_LOOP
  for (int i = 0; i < 2 && page == MAM_NO_PAGE; i++) {
    mam_u32 first = part << 6, end = first + 64 < mam_area_map_words(*area) ? first + 64 : mam_area_map_words(*area);
    mam_u32 middle = first + from < end ? first + from : first;
    page = mam_run_take(count, i == 0 ? middle : first, i == 0 ? end : middle, area);
    MAM_FORGET(part); /* not kept over the calls */
    MAM_FORGET_ADDRESS(area);
  }
  mam_shortage_confirm(&mam_area_parts(*area)[part], mark, count, page != MAM_NO_PAGE);
  return page;
}

/* Takes a run of up to 64 pages, from the word at index on, then from the beginning.  The first two turns leave out
 * parts where other threads search, so that together all look at each part once. */
MAM_OUTLINE mam_u32 mam_pages_search(MAM_TAG(4) const struct mam_area *area, mam_u32 count, mam_u32 index) {
  mam_u32 mark = mam_load_relaxed_u32(mam_area_shortage(*area)), page = MAM_NO_PAGE;
  if (count > area->page_count || mam_shortage_covers(mark, count))
    return MAM_NO_PAGE;
  mark = mam_shortage_begin(mam_area_shortage(*area), mark);
  mam_fence_all(); /* pairs with mam_returned_matters and mam_pages_returned */
  MAM_LOOP
  for (mam_u32 turn = 0; turn < 4 && page == MAM_NO_PAGE; turn++) {
    mam_u32 part = (turn & 1) == 0 ? index >> 6 : 0;
    MAM_LOOP
    for (; page == MAM_NO_PAGE; part++) {
      mam_u32 end = (turn & 1) == 0 ? mam_area_kept_words(*area) : index >> 6;
      part = MAM_OUT_OF_SIGHT(mam_parts_next)(mam_area_parts(*area), part, end, count, turn >> 1);
      if (part >= end)
        break;
      page = MAM_OUT_OF_SIGHT(mam_part_search)(area, part, count, part == index >> 6 ? index & 63 : 0);
    }
  }
  mam_shortage_confirm(mam_area_shortage(*area), mark, count, page != MAM_NO_PAGE);
  return page;
}

/* ---- Longer runs ---- */

/* Takes pages from page on, as long as they are free, up to count.  Returns how many it took. */
MAM_OUTLINE mam_u32 mam_run_take_at(mam_u32 page, mam_u32 count, struct mam_area area) {
  mam_u64 *map = mam_area_pages(area);
  mam_u32 got = 0;
  MAM_LOOP
  while (got < count) {
    mam_u32 from = (page + got) & 63, here = 64 - from < count - got ? 64 - from : count - got;
    if (from == 0 && count - got >= 128) {
      mam_u32 words = (count - got) >> 6, taken = MAM_OUT_OF_SIGHT(mam_map_take_words)(map, (page + got) >> 6, words);
      MAM_OUT_OF_SIGHT(mam_map_words_filled)(map, mam_area_map_words(area), (page + got) >> 6, taken);
      got += taken << 6;
      if (taken < words)
        break;
      continue;
    }
    if (!MAM_OUT_OF_SIGHT(mam_map_take)(map, mam_area_map_words(area), (page + got) >> 6, mam_run_bits(here, from)))
      break;
    got += here;
  }
  return got;
}

/* Takes a run of any length that begins in the words from first on and before last. */
MAM_OUTLINE mam_u32 mam_run_take_long(MAM_TAG(3) const struct mam_area *area, mam_u32 count, mam_u32 first,
                                      mam_u32 last) {
  mam_u32 start = first << 6; /* the candidate: pages from here on may be free */
  MAM_LOOP
  for (mam_u32 index = first; index < last; index++) {
    mam_u32 begin = index << 6, end = begin + 64;
    mam_u64 word = mam_load_relaxed_u64(&mam_area_pages(*area)[index]);
    if (start > begin)
      word |= mam_run_bits(start - begin, 0); /* this part of the word has been tried */
    if (word != 0) {
      mam_u32 from = mam_lowest_u64(word);
      if (start <= begin && begin + from >= start + count)
        end = begin + from;
      else if (count < 64 && (from = mam_run_find(word, count)) != 64)
        start = begin + from;
      else {
        start = end - mam_leading_zeros_u64(word);
        if (word == MAM_FULL_WORD) {
          index = MAM_OUT_OF_SIGHT(mam_map_next)(mam_area_pages(*area), mam_area_map_words(*area), index + 1) - 1;
          start = (index + 1) << 6;
        }
        continue;
      }
    }
    if (end < start + count)
      continue;
    mam_u32 got = MAM_OUT_OF_SIGHT(mam_run_take_at)(start, count, *area);
    if (got == count)
      return start;
    MAM_OUT_OF_SIGHT(mam_pages_release)(*area, start, got);
    start += got + 1;
    index = (start >> 6) - 1;
    if ((start & 63) == 0)
      continue;
  }
  return MAM_NO_PAGE;
}

/* Takes a run of more than 64 pages, from the word at index on, then from the beginning. */
MAM_INLINE mam_u32 mam_run_search(const struct mam_area *area, mam_u32 count, mam_u32 index) {
  mam_u32 known = mam_load_relaxed_u32(mam_area_shortage(*area)), page = MAM_NO_PAGE;
  if (count > area->page_count || mam_shortage_covers(known, count))
    return MAM_NO_PAGE;
  MAM_LOOP
  for (int i = 0; i < 2 && page == MAM_NO_PAGE; i++)
    page = MAM_OUT_OF_SIGHT(mam_run_take_long)(area, count, i == 0 ? index : 0, mam_area_map_words(*area));
  return page;
}

#endif /* MAM_DETAIL_HEAP_PAGES_H */
