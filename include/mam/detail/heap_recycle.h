/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_recycle.h - free chunks of spans that were split before, and belong to no slot.
 *
 * The class map of a kind says where to look: a 0 for eight pages (a block) in which a span of the kind may have a free
 * chunk.  It is a hint.  The way down:
 *
 *   mam_recycle_any     each superblock
 *   mam_recycle         each 0 of the class map, from the home's place on
 *   mam_recycle_block   a block; if it has nothing, its bit is set, and it is looked at once more: a thread that freed
 *                       a chunk meanwhile may have seen the 0 and left it
 *   mam_block_claim     the spans that begin in the block (by their entries), and their usage words with free chunks
 *   mam_word_claim      one usage word: the lowest free bits are set by compare-and-swap
 *
 * A claim takes the chunks of one word, up to 32.  Threads that ask at the same time begin at different words of the
 * same block, so that what is used up first is what lies together.
 */
#ifndef MAM_DETAIL_HEAP_RECYCLE_H
#define MAM_DETAIL_HEAP_RECYCLE_H

#include <mam/detail/heap_spans.h>

/* The lowest count ones of bits; all of them if there are no more. */
MAM_INLINE mam_u32 mam_lowest_ones(mam_u32 bits, mam_u32 count) {
  mam_u32 rest = bits;
  if (mam_ones_u32(bits) <= count)
    return bits;
  MAM_LOOP
  while (count-- != 0)
    rest &= rest - 1;
  return bits ^ rest;
}

/* Claims up to count free chunks of one usage word.  Returns their bits. */
MAM_INLINE mam_u32 mam_word_claim(mam_u64 *place, mam_u32 size_class, mam_u32 count) {
  mam_u64 word = mam_load_relaxed_u64(place);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && mam_word_class(word) == size_class; i++) {
    mam_u32 bits = mam_lowest_ones(~(mam_u32)word & mam_word_full(word), count);
    if (bits == 0)
      return 0;
    /* acq_rel: pairs with the frees of these chunks */
    mam_u64 seen = mam_cas_acq_rel_u64(place, word, word | bits);
    if (seen == word)
      return bits;
    word = seen;
  }
  return 0;
}

/* Which pages of a block begin spans of a class, by their entries: a bit for each. */
MAM_OUTLINE mam_u32 mam_block_look(mam_u32 block, mam_u32 size_class, const struct mam_area *area) {
  const mam_u16 *entries = mam_area_entries(*area) + block * MAM_BLOCK_PAGES;
  mam_u32 pages = area->page_count - block * MAM_BLOCK_PAGES, found = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_BLOCK_PAGES; i++)
    found |= (mam_u32)(mam_load_relaxed_u16(&entries[i < pages ? i : 0]) == mam_entry_of(size_class, 0) && i < pages)
             << i;
  return found;
}

/* Which usage words of a span have free chunks of a class: a bit for each. */
MAM_OUTLINE mam_u32 mam_span_look(MAM_TAG(2) mam_u32 size_class, const mam_u64 *words) {
  mam_u64 seen[MAM_PAGE_WORDS];
  mam_u32 open = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = mam_load_relaxed_u64(&words[i]);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    open |= (mam_u32)(i < mam_word_span_words(seen[0]) && mam_word_class(seen[i]) == size_class &&
                      (~(mam_u32)seen[i] & mam_word_full(seen[i])) != 0)
            << i;
  return open;
}

/* Claims up to count chunks of a class from one word of the spans that begin in a block. */
MAM_OUTLINE struct mam_claim mam_block_claim(const struct mam_area *area, mam_u32 block, mam_u32 size_class,
                                             mam_u32 count) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  mam_u32 salt = mam_salt() % MAM_PAGE_WORDS;
  MAM_LOOP
  for (mam_u32 begins = MAM_OUT_OF_SIGHT(mam_block_look)(block, size_class, area); begins != 0; begins &= begins - 1) {
    mam_u32 page = block * MAM_BLOCK_PAGES + mam_lowest_u32(begins);
    mam_u64 *words = &area->words[page * MAM_PAGE_WORDS];
    mam_u32 open = MAM_OUT_OF_SIGHT(mam_span_look)(size_class, words);
    MAM_LOOP
    for (open = (open >> salt | open << (MAM_PAGE_WORDS - salt)) & ((1u << MAM_PAGE_WORDS) - 1); open != 0;
         open &= open - 1) {
      mam_u32 i = (mam_lowest_u32(open) + salt) % MAM_PAGE_WORDS;
      if ((claim.mask = mam_word_claim(&words[i], size_class, count)) != 0) {
        claim.address = mam_area_address(*area, page) + (mam_u64)(32 * i) * claim.chunk_bytes;
        return claim;
      }
    }
  }
  return claim;
}

/* The same; if there are none, sets the block's bit in the class map and looks once more. */
MAM_OUTLINE struct mam_claim mam_recycle_block(MAM_TAG(4) const struct mam_area *area, mam_u32 block,
                                               mam_u32 size_class, mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  mam_u64 bit = 1ull << (block & 63);
  MAM_LOOP
  for (int struck = 0;; struck = 1) {
    claim = MAM_OUT_OF_SIGHT(mam_block_claim)(area, block, size_class, count);
    if (struck && claim.mask != 0)
      MAM_OUT_OF_SIGHT(mam_span_hint)(*area, block * MAM_BLOCK_PAGES, size_class);
    if (struck || claim.mask != 0)
      return claim;
    if ((mam_or_acq_rel_u64(&mam_area_class(*area, size_class)[block >> 6], bit) | bit) == MAM_FULL_WORD)
      MAM_OUT_OF_SIGHT(mam_map_filled)(mam_area_class(*area, size_class), mam_area_class_words(*area), block >> 6);
  }
}

/* The same for all blocks of a superblock that the class map names. */
MAM_OUTLINE struct mam_claim mam_recycle(MAM_TAG(2) const struct mam_area *area, mam_u32 size_class, mam_u32 count,
                                         mam_u32 home) {
  struct mam_claim claim = {0, 0, 0};
  mam_u32 first = home % mam_area_class_words(*area), index = first, last = mam_area_class_words(*area);
  MAM_LOOP
  for (;;) {
    index = MAM_OUT_OF_SIGHT(mam_map_next)(mam_area_class(*area, size_class), mam_area_class_words(*area), index);
    if (index >= last) {
      if (last == first || first == 0)
        return claim;
      index = 0;
      last = first;
      continue;
    }
    MAM_LOOP
    for (mam_u64 open = ~mam_load_relaxed_u64(&mam_area_class(*area, size_class)[index]); open != 0; open &= open - 1) {
      claim = MAM_OUT_OF_SIGHT(mam_recycle_block)(area, (index << 6) + mam_lowest_u64(open), size_class, count);
      if (claim.mask != 0)
        return claim;
    }
    index++;
  }
}

/* The same for all superblocks. */
MAM_OUTLINE struct mam_claim mam_recycle_any(MAM_TAG(3) struct mam_heap_control *control, mam_u32 size_class,
                                             mam_u32 count, mam_u32 home) {
  struct mam_claim claim = {0, 0, 0};
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks && claim.mask == 0; i++)
    claim = MAM_OUT_OF_SIGHT(mam_recycle)(&control->superblocks[i], size_class, count, home);
  return claim;
}

#endif /* MAM_DETAIL_HEAP_RECYCLE_H */
