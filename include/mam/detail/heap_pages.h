/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_pages.h - pages of one superblock: runs of them are taken from its page map and given back.
 *
 * The page map has a bit for each page, 1 if it is taken.  It is the truth: a thread owns the pages whose bits it has
 * set, until it clears them.  The thread that clears bits releases what was done in the pages, and the thread that sets
 * them acquires it.
 *
 *   up to 64 pages   mam__pages_search: part by part, first where no other thread searches.  A run lies in one word, or
 *                    at the end of a word and the beginning of the next (mam__run_take_across)
 *   more             mam__run_search, mam__run_take_long: word by word from the beginning of a free row; whole words in
 *                    the middle are taken eight at a time (mam__map_take_words)
 *
 * A run over several words is taken in several steps.  If a later step fails, what was taken is given back.  Another
 * thread may miss these pages meanwhile; that is why giving back ends what is known to be missing (heap_shortage.h).
 */
#ifndef MAM_DETAIL_HEAP_PAGES_H
#define MAM_DETAIL_HEAP_PAGES_H

#include <mam/detail/heap_shortage.h>

/* ---- Giving back ---- */

/* Gives back pages that the caller owns: bits of one word of the page map. */
MAM__OUTLINE void mam__pages_clear(struct mam__area area, mam__u32 index, mam__u64 bits) {
  /* acq_rel: what the pages' last users did comes before what the next ones do. */
  if (mam__and_acq_rel_u64(&mam__area_pages(area)[index], ~bits) == MAM__FULL_WORD)
    MAM__OUT_OF_SIGHT(mam__map_opened)(mam__area_pages(area), mam__area_map_words(area), index);
  MAM__FORGET(area.page_count);
  if (mam__returned_matters(area, index, MAM__SHORT_MOST))
    mam__pages_back(area, index, 1);
}

MAM__OUTLINE void mam__pages_release(MAM__TAG(2) struct mam__area area, mam__u32 page, mam__u32 count) {
  area.base = 0; /* what is not used need not be kept over the calls */
  MAM__LOOP
  while (count != 0) {
    MAM__FORGET(area.page_count);
    mam__u32 from = page & 63, here = 64 - from < count ? 64 - from : count;
    if (from == 0 && count >= 128) {
      mam__u32 words = count >> 6;
      here = words << 6;
      MAM__LOOP
      for (mam__u32 i = 0; i < words; i++) /* release: as in mam__pages_clear.  No other thread changes these words. */
        (void)mam__exchange_release_u64(&mam__area_pages(area)[(page >> 6) + i], 0);
      MAM__OUT_OF_SIGHT(mam__map_words_opened)(mam__area_pages(area), mam__area_map_words(area), page >> 6, words);
      if (MAM__OUT_OF_SIGHT(mam__words_matter)(page >> 6, words, area))
        MAM__OUT_OF_SIGHT(mam__pages_returned)(page >> 6, words, area);
    } else
      MAM__OUT_OF_SIGHT(mam__pages_clear)(area, page >> 6, mam__run_bits(here, from));
    page += here;
    count -= here;
  }
}

/* ---- Runs within two words ---- */

/* Takes a run of up to 64 pages at the end of a word and the beginning of the next.  Returns the page, or MAM__NO_PAGE.
 */
MAM__INLINE mam__u32 mam__run_take_across(mam__u32 count, mam__u32 index, const struct mam__area *area) {
  mam__u32 end = mam__leading_zeros_u64(mam__load_relaxed_u64(&mam__area_pages(*area)[index]));
  end = end < count ? end : count - 1;
  if (end == 0 || !MAM__OUT_OF_SIGHT(mam__map_take)(mam__area_pages(*area), mam__area_map_words(*area), index,
                                                    mam__run_bits(end, 64 - end)))
    return MAM__NO_PAGE;
  MAM__FORGET_ADDRESS(area);
  if (MAM__OUT_OF_SIGHT(mam__map_take)(mam__area_pages(*area), mam__area_map_words(*area), index + 1,
                                       mam__run_bits(count - end, 0)))
    return ((index + 1) << 6) - end;
  MAM__OUT_OF_SIGHT(mam__pages_clear)(*area, index, mam__run_bits(end, 64 - end));
  return MAM__NO_PAGE;
}

/* Takes the first run of up to 64 pages that begins in a word of the page map, from the word at index on and before
 * last.  Returns the page, or MAM__NO_PAGE. */
MAM__OUTLINE mam__u32 mam__run_take(mam__u32 count, mam__u32 index, mam__u32 last, const struct mam__area *area) {
  mam__u32 tries = 0, page = MAM__NO_PAGE;
  MAM__LOOP
  while (index < last) {
    MAM__FORGET(index); /* what is computed from them is not kept over the calls */
    MAM__FORGET_ADDRESS(area);
    mam__u32 fits = MAM__OUT_OF_SIGHT(mam__map_look_both)(count, mam__area_pages(*area), index);
    mam__u32 at = fits != 0 ? mam__lowest_u32(fits | fits >> 8) : MAM__AHEAD - 1;
    index += at;
    if (index >= last || at == MAM__AHEAD - 1)
      continue;
    MAM__FORGET_ADDRESS(area);
    if ((fits >> at & 1) != 0)
      page = MAM__OUT_OF_SIGHT(mam__map_take_in)(index, mam__area_pages(*area), mam__area_map_words(*area), count);
    else if (index + 1 < mam__area_map_words(*area))
      page = mam__run_take_across(count, index, area);
    else
      index++;
    if (page != MAM__NO_PAGE)
      return page;
    if (++tries % MAM__RETRIES == 0)
      index++;
  }
  return MAM__NO_PAGE;
}

/* Takes a run of up to 64 pages that begins in a part of the page map: from word `from` of the part on, then from its
 * beginning. */
MAM__INLINE mam__u32 mam__part_search(const struct mam__area *area, mam__u32 part, mam__u32 count, mam__u32 from) {
  mam__u32 mark = mam__load_relaxed_u32(&mam__area_parts(*area)[part]), page = MAM__NO_PAGE;
  if (mam__shortage_covers(mark, count))
    return MAM__NO_PAGE;
  mark = mam__shortage_begin(&mam__area_parts(*area)[part], mark, count);
  mam__barrier_all(); /* pairs with mam__returned_matters */
  MAM__LOOP
  for (int i = 0; i < 2 && page == MAM__NO_PAGE; i++) {
    MAM__FORGET(part); /* not kept over the calls */
    MAM__FORGET(from);
    MAM__FORGET_ADDRESS(area);
    mam__u32 first = part << 6, end = first + 64 < mam__area_map_words(*area) ? first + 64 : mam__area_map_words(*area);
    mam__u32 middle = first + from < end ? first + from : first;
    page = MAM__OUT_OF_SIGHT(mam__run_take)(count, i == 0 ? middle : first, i == 0 ? end : middle, area);
  }
  MAM__FORGET(part);
  MAM__FORGET_ADDRESS(area);
  mam__shortage_confirm(&mam__area_parts(*area)[part], mark, count, page != MAM__NO_PAGE);
  return page;
}

/* Takes a run of up to 64 pages, from the word at index on, then from the beginning.  The first two turns leave out
 * parts where other threads search, so that together all look at each part once. */
MAM__OUTLINE mam__u32 mam__pages_search(MAM__TAG(4) const struct mam__area *area, mam__u32 count, mam__u32 index) {
  mam__u32 mark = mam__load_relaxed_u32(mam__area_shortage(*area)), page = MAM__NO_PAGE;
  if (count > area->page_count || mam__shortage_covers(mark, count))
    return MAM__NO_PAGE;
  mark = mam__shortage_begin(mam__area_shortage(*area), mark, count);
  mam__barrier_all(); /* pairs with mam__returned_matters and mam__pages_returned */
  MAM__LOOP
  for (mam__u32 turn = 0; turn < 4 && page == MAM__NO_PAGE; turn++) {
    mam__u32 part = (turn & 1) == 0 ? index >> 6 : 0;
    MAM__LOOP
    for (; page == MAM__NO_PAGE; part++) {
      MAM__FORGET(index);
      MAM__FORGET_ADDRESS(area);
      mam__u32 end = (turn & 1) == 0 ? mam__area_kept_words(*area) : index >> 6;
      part = MAM__OUT_OF_SIGHT(mam__parts_next)(mam__area_parts(*area), part, end, count, turn >> 1);
      if (part >= end)
        break;
      page = mam__part_search(area, part, count, part == index >> 6 ? index & 63 : 0);
    }
  }
  mam__shortage_confirm(mam__area_shortage(*area), mark, count, page != MAM__NO_PAGE);
  return page;
}

/* ---- Longer runs ---- */

/* Takes pages from page on, as long as they are free, up to count.  Returns how many it took.  The pages of the first
 * word come first, so that of threads that want the same run one gets it. */
MAM__OUTLINE mam__u32 mam__run_take_at(mam__u32 page, mam__u32 count, struct mam__area area) {
  mam__u64 *map = mam__area_pages(area);
  mam__u32 got = 0;
  MAM__LOOP
  while (got < count) {
    mam__u32 from = (page + got) & 63, here = 64 - from < count - got ? 64 - from : count - got;
    if (from == 0 && got != 0 && count - got >= 128) {
      mam__u32 words = (count - got) >> 6,
               taken = MAM__OUT_OF_SIGHT(mam__map_take_words)(map, (page + got) >> 6, words);
      MAM__OUT_OF_SIGHT(mam__map_words_filled)(map, mam__area_map_words(area), (page + got) >> 6, taken);
      got += taken << 6;
      if (taken == words)
        continue;
      /* Words behind the one that another thread has were taken and given back. */
      mam__u32 behind = words - taken - 1 < 7 ? words - taken - 1 : 7, first = ((page + got) >> 6) + 1;
      if (behind != 0 && MAM__OUT_OF_SIGHT(mam__words_matter)(first, behind, area))
        MAM__OUT_OF_SIGHT(mam__pages_returned)(first, behind, area);
      break;
    }
    if (!MAM__OUT_OF_SIGHT(mam__map_take)(map, mam__area_map_words(area), (page + got) >> 6, mam__run_bits(here, from)))
      break;
    got += here;
  }
  return got;
}

/* How far away the first word of the page map is, of up to seven from a word on, in which a run of more than 64 pages
 * may begin: its last page is free, and so are the pages of the next word that `next` names.  7 if there is none; 8 if
 * all pages of eight words are taken.  left: how many words there are.  Calls nothing. */
MAM__OUTLINE mam__u32 mam__long_look(const mam__u64 *words, mam__u32 left, mam__u64 next) {
  mam__u64 seen[MAM__AHEAD], open = 0;
  mam__u32 fits = 1u << (MAM__AHEAD - 1);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++) {
    seen[i] = mam__load_relaxed_if_u64(i < left, &words[i], MAM__FULL_WORD);
    open |= ~seen[i];
  }
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD - 1; i++)
    fits |= (mam__u32)(seen[i] >> 63 == 0 && (seen[i + 1] & next) == 0) << i;
  return open != 0 ? mam__lowest_u32(fits) : (mam__u32)MAM__AHEAD;
}

/* Takes a run of more than 64 pages that lies in the words from first on and before last.  If another thread disturbs
 * that, it goes on `skip` pages behind what it took: the whole run, which the other one is likely to get, or a page. */
MAM__OUTLINE mam__u32 mam__run_take_long(MAM__TAG(3) const struct mam__area *area, mam__u32 count, mam__u32 first,
                                         mam__u32 last, mam__u32 skip) {
  mam__u32 start = first << 6; /* the candidate: pages from here on may be free */
  MAM__LOOP
  for (mam__u32 index = first; index < last; index++) {
    if (start >= index << 6) { /* no row of free pages leads here */
      mam__u32 further = MAM__OUT_OF_SIGHT(mam__long_look)(
          &mam__area_pages(*area)[index], mam__area_map_words(*area) - index, count < 128 ? 1 : MAM__FULL_WORD);
      if (further == MAM__AHEAD) {
        index = MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_pages(*area), mam__area_map_words(*area), index + further);
        start = index-- << 6;
        continue;
      }
      index += further;
      start = start < index << 6 ? index << 6 : start;
      if (index >= last)
        break;
    }
    mam__u32 begin = index << 6;
    mam__u64 word = mam__load_relaxed_u64(&mam__area_pages(*area)[index]);
    if (start > begin)
      word |= mam__run_bits(start - begin, 0); /* this part of the word has been tried */
    if (begin + (word != 0 ? mam__lowest_u64(word) : 64) < start + count) {
      start = word != 0 ? begin + 64 - mam__leading_zeros_u64(word) : start;
      continue;
    }
    mam__u32 got = MAM__OUT_OF_SIGHT(mam__run_take_at)(start, count, *area);
    if (got == count)
      return start;
    MAM__OUT_OF_SIGHT(mam__pages_release)(*area, start, got);
    start += got + skip;
    index = (start >> 6) - 1;
  }
  return MAM__NO_PAGE;
}

/* Takes a run of more than 64 pages, from the word at index on, then from the beginning.  The second turn leaves
 * nothing out. */
MAM__OUTLINE mam__u32 mam__run_search(MAM__TAG(3) const struct mam__area *area, mam__u32 count, mam__u32 index) {
  mam__u32 known = mam__load_relaxed_u32(mam__area_shortage(*area)), page = MAM__NO_PAGE;
  if (count > area->page_count || mam__shortage_covers(known, count))
    return MAM__NO_PAGE;
  MAM__LOOP
  for (int i = 0; i < 2 && page == MAM__NO_PAGE; i++)
    page = MAM__OUT_OF_SIGHT(mam__run_take_long)(area, count, i == 0 ? index : 0, mam__area_map_words(*area),
                                                 i == 0 ? count : 1);
  return page;
}

#endif /* MAM_DETAIL_HEAP_PAGES_H */
