/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_pages.h - pages of one superblock: runs of them are taken from its page map and given back.
 *
 * The page map has a bit for each page, 1 if it is taken.  It is the truth: a thread owns the pages whose bits it has
 * set, until it clears them.  The thread that clears bits releases what was done in the pages, and the thread that sets
 * them acquires it.
 *
 * A search (mam__pages_search) goes part by part, first where no other thread searches.
 *
 *   up to 64 pages   mam__run_take: a run lies in one word, or at the end of a word and the beginning of the next
 *                    (mam__run_take_across)
 *   more             mam__run_take_long: word by word from the beginning of a free row; whole words in the middle are
 *                    taken eight at a time (mam__map_take_words)
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
    mam__map_opened(mam__area_pages(area), mam__area_map_words(area), index);
  MAM__FORGET(area.page_count);
  if (mam__returned_matters(area, index, MAM__SHORT_MOST))
    mam__word_back(area, index);
}

/* Gives back a run of pages over several words that the caller owns.  All its words are under way together.  Returns
 * whether the caller is to call mam__pages_returned. */
MAM__OUTLINE int mam__words_clear(MAM__TAG(2) struct mam__area area, mam__u32 page, mam__u32 count) {
  mam__u32 index = page >> 6, words = ((page + count + 63) >> 6) - index;
  mam__u64 *map = mam__area_pages(area), first = ~(MAM__FULL_WORD << (page & 63)),
           last = MAM__FULL_WORD << ((page + count) & 63);
  mam__barrier(); /* release, and not acquire: no other thread changes these bits, and the looks have a barrier */
  (void)mam__and_after_barrier_u64(&map[index], first);
  (void)mam__and_after_barrier_u64(&map[index + words - 1], ((page + count) & 63) != 0 ? last : 0);
  MAM__LOOP
  for (mam__u32 i = 1; i < words - 1; i++)
    (void)mam__exchange_after_barrier_u64(&map[index + i], 0);
  MAM__FORGET(area.page_count); /* what is computed from it is not kept */
  mam__map_words_opened(mam__area_pages(area), mam__area_map_words(area), index, words);
  return MAM__OUT_OF_SIGHT(mam__words_matter)(index, words, area);
}

/* Gives back any run of pages that the caller owns. */
MAM__INLINE void mam__pages_release(struct mam__area area, mam__u32 page, mam__u32 count) {
  area.base = 0; /* what is not used need not be kept over the calls */
  MAM__FORGET(page);
  MAM__FORGET(count);
  if (count != 0 && (page & 63) + count <= 64)
    MAM__OUT_OF_SIGHT(mam__pages_clear)(area, page >> 6, mam__run_bits(count, page & 63));
  else if (count != 0 && MAM__OUT_OF_SIGHT(mam__words_clear)(area, page, count))
    MAM__OUT_OF_SIGHT(mam__pages_returned)(page, count, area);
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

/* ---- Longer runs ---- */

/* Takes pages from page on, as long as they are free, up to count.  Returns how many it took.  The pages of the first
 * word come first, so that of threads that want the same run one gets it.  If they are not all there, the caller calls
 * mam__run_undo. */
MAM__INLINE mam__u32 mam__run_take_at(mam__u32 page, mam__u32 count, const struct mam__area *area) {
  mam__u32 got = 0;
  MAM__LOOP
  while (got < count) {
    MAM__FORGET_ADDRESS(area);
    mam__u64 *map = mam__area_pages(*area);
    mam__u32 from = (page + got) & 63, here = 64 - from < count - got ? 64 - from : count - got, wanted = here, took;
    if (from == 0 && got != 0 && count - got >= 128) {
      wanted = (count - got) >> 6;
      took = MAM__OUT_OF_SIGHT(mam__map_take_words)(map, (page + got) >> 6, wanted);
      MAM__OUT_OF_SIGHT(mam__map_words_filled)(map, mam__area_map_words(*area), (page + got) >> 6, took);
      took <<= 6;
      wanted <<= 6;
    } else
      took = MAM__OUT_OF_SIGHT(mam__map_take)(map, mam__area_map_words(*area), (page + got) >> 6,
                                              mam__run_bits(here, from))
                 ? here
                 : 0;
    got += took;
    if (took != wanted)
      break;
  }
  return got;
}

/* Tells of whole words behind the one at index of the page map, which were taken and given back because another thread
 * has that one.  count: how many pages of a run were missing from there on. */
MAM__OUTLINE void mam__words_behind(MAM__TAG(1) mam__u32 index, mam__u32 count, const struct mam__area *area) {
  mam__u32 words = (count >> 6) - 1;
  MAM__OUT_OF_SIGHT(mam__pages_returned)
  ((index + 1) << 6, (words < MAM__WORDS_TOGETHER ? words : (mam__u32)MAM__WORDS_TOGETHER) << 6, *area);
}

/* Gives back got pages, which mam__run_take_at took of count. */
MAM__OUTLINE void mam__run_undo(mam__u32 page, mam__u32 got, mam__u32 count, const struct mam__area *area) {
  mam__pages_release(*area, page, got);
  MAM__FORGET_ADDRESS(area);
  if (got != 0 && ((page + got) & 63) == 0 && count - got >= 128) /* whole words were tried */
    MAM__OUT_OF_SIGHT(mam__words_behind)((page + got) >> 6, count - got, area);
}

/* Where a long run was tried: from page on, of which so many pages were taken. */
struct mam__tried {
  mam__u32 page, got;
};

/* What a look at eight words of the page map found. */
struct mam__row {
  mam__u32 page;  /* where the first row of so many free pages begins; MAM__NO_PAGE: there is none */
  mam__u32 start; /* where the row begins that goes on behind the words */
  mam__u32 full;  /* whether all pages are taken */
};

/* Looks for count free pages in a row that begins at page start or behind it.  words: eight of the page map, of which
 * `left` are there.  begin: their first page.  start is in the first word, or a row leads from there to the words. */
MAM__OUTLINE struct mam__row mam__row_look(const mam__u64 *words, mam__u32 left, mam__u32 begin, mam__u32 count,
                                           mam__u32 start) {
  mam__u64 seen[MAM__AHEAD], open = 0;
  struct mam__row row = {MAM__NO_PAGE, start, 0};
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    seen[i] = mam__load_relaxed_if_u64(i < left, &words[i], MAM__FULL_WORD);
  if (start > begin)
    seen[0] |= mam__run_bits(start - begin, 0); /* this part of the word has been tried */
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++) {
    mam__u32 free = seen[i] != 0 ? mam__lowest_u64(seen[i]) : 64;
    if (row.page == MAM__NO_PAGE && begin + 64 * i + free >= row.start + count)
      row.page = row.start;
    if (seen[i] != 0)
      row.start = begin + 64 * (i + 1) - mam__leading_zeros_u64(seen[i]);
    open |= ~seen[i];
  }
  row.full = open == 0;
  return row;
}

/* Takes a run of more than 64 pages that begins at page start or behind it, and before word last.  If it does not get
 * the first one that it tries whole, the caller calls mam__run_undo.  page is MAM__NO_PAGE if it tried none. */
MAM__OUTLINE struct mam__tried mam__run_take_long(MAM__TAG(3) const struct mam__area *area, mam__u32 count,
                                                  mam__u32 start, mam__u32 last) {
  struct mam__tried tried = {MAM__NO_PAGE, 0};
  mam__u32 index = start >> 6;
  MAM__LOOP
  while (start < last << 6 && index < mam__area_map_words(*area)) {
    struct mam__row row = MAM__OUT_OF_SIGHT(mam__row_look)(
        &mam__area_pages(*area)[index], mam__area_map_words(*area) - index, index << 6, count, start);
    MAM__FORGET_ADDRESS(area);
    if (row.page < last << 6) {
      tried.page = row.page;
      tried.got = mam__run_take_at(row.page, count, area);
      break;
    }
    index += MAM__AHEAD;
    start = row.start;
    if (row.full != 0) {
      index = MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_pages(*area), mam__area_map_words(*area), index);
      start = index << 6;
    }
  }
  return tried;
}

/* The same until it gets one, or there is none. */
MAM__INLINE mam__u32 mam__run_take_any(const struct mam__area *area, mam__u32 count, mam__u32 first, mam__u32 last) {
  mam__u32 start = first << 6;
  MAM__LOOP
  for (;;) {
    struct mam__tried tried = MAM__OUT_OF_SIGHT(mam__run_take_long)(area, count, start, last);
    if (tried.page == MAM__NO_PAGE || tried.got == count)
      return tried.page;
    MAM__FORGET_ADDRESS(area);
    start = tried.page + tried.got + 1; /* another thread has the page before */
    MAM__OUT_OF_SIGHT(mam__run_undo)(tried.page, tried.got, count, area);
  }
}

/* ---- Searching ---- */

MAM__INLINE mam__u32 mam__part_end(struct mam__area area, mam__u32 part) {
  mam__u32 words = mam__area_map_words(area), end = (part + 1) << 6;
  return end < words ? end : words;
}

/* Takes a run that begins in the words from first on and before last. */
MAM__INLINE mam__u32 mam__words_search(const struct mam__area *area, mam__u32 count, mam__u32 first, mam__u32 last) {
  return count <= 64 ? MAM__OUT_OF_SIGHT(mam__run_take)(count, first, last, area)
                     : mam__run_take_any(area, count, first, last);
}

/* Takes a run, from the word at index on, then from the beginning.  The first two turns leave out parts where other
 * threads search, so that together all look at each part once.  A search of a whole part that finds nothing is
 * remembered, and so is one of all parts. */
MAM__OUTLINE mam__u32 mam__pages_search(MAM__TAG(4) const struct mam__area *area, mam__u32 count, mam__u32 index) {
  mam__u32 code = mam__length_code(count), whole = mam__load_relaxed_u32(mam__area_shortage(*area)),
           page = MAM__NO_PAGE;
  if (count > area->page_count || mam__shortage_covers(whole, code))
    return MAM__NO_PAGE;
  whole = mam__shortage_begin(mam__area_shortage(*area), whole, code);
  mam__barrier_all(); /* pairs with mam__returned_matters and mam__pages_returned */
  mam__u32 first = index;
  MAM__LOOP
  for (mam__u32 turn = 0; turn < 4;) {
    MAM__FORGET(index);
    MAM__FORGET(code);
    MAM__FORGET_ADDRESS(area);
    mam__u32 end = (turn & 1) == 0 ? mam__area_part_count(*area) : (index >> 6) + 1;
    mam__u32 part = MAM__OUT_OF_SIGHT(mam__parts_next)(mam__area_parts(*area), first >> 6, end, code, turn >> 1);
    if (part >= end) {
      first = (++turn & 1) == 0 ? index : 0;
      continue;
    }
    MAM__FORGET_ADDRESS(area);
    first = part == first >> 6 ? first : part << 6;
    mam__u32 mark = mam__load_relaxed_u32(&mam__area_parts(*area)[part]);
    mark = (first & 63) == 0 && !mam__shortage_covers(mark, code)
               ? mam__shortage_begin(&mam__area_parts(*area)[part], mark, code)
               : 0;
    mam__barrier_all(); /* pairs with mam__returned_matters */
    MAM__FORGET(count); /* what is computed from these is not kept over the calls, here and below */
    page = mam__words_search(area, count, first, mam__part_end(*area, part));
    MAM__FORGET(code);
    MAM__FORGET_ADDRESS(area);
    MAM__FORGET(first);
    mam__shortage_confirm(&mam__area_parts(*area)[first >> 6], mark, count, page != MAM__NO_PAGE);
    if (page != MAM__NO_PAGE)
      break;
    first = (first | 63) + 1;
  }
  mam__shortage_confirm(mam__area_shortage(*area), whole, count, page != MAM__NO_PAGE);
  return page;
}

#endif /* MAM_DETAIL_HEAP_PAGES_H */
