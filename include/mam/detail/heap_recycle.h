/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_recycle.h - free chunks of spans that were split before, and belong to no slot.
 *
 * The class map of a kind says where to look: a 0 for eight pages (a block) in which a span of the kind may have a free
 * chunk.  It is a hint.  The way down:
 *
 *   mam__recycle_any     each superblock
 *   mam__recycle         the class map, eight words at a time, from the first one on.  If a block has nothing, its bit
 *                       is set, and it is looked at once more: a thread that freed a chunk meanwhile may have seen the
 *                       0 and left it
 *   mam__class_look      one of the blocks that these words name, by chance
 *   mam__block_claim     the spans that begin in the block (by their entries), and their usage words with free chunks
 *   mam__word_claim      one usage word: the lowest free bits are set by compare-and-swap
 *
 * A claim takes the chunks of one word, up to 32.  Of the threads that change a word at the same time only one
 * succeeds, so they are to meet seldom: within eight words of the class map each goes to another block.  It is not
 * farther away, so that what is used up first is what lies together, and the spans behind it become empty.
 */
#ifndef MAM_DETAIL_HEAP_RECYCLE_H
#define MAM_DETAIL_HEAP_RECYCLE_H

#include <mam/detail/heap_spans.h>

/* The lowest count ones of bits; all of them if there are no more. */
MAM__INLINE mam__u32 mam__lowest_ones(mam__u32 bits, mam__u32 count) {
  mam__u32 rest = bits;
  if (mam__ones_u32(bits) <= count)
    return bits;
  MAM__LOOP
  while (count-- != 0)
    rest &= rest - 1;
  return bits ^ rest;
}

/* Claims up to count free chunks of one usage word.  Returns their bits. */
MAM__INLINE mam__u32 mam__word_claim(mam__u64 *place, mam__u32 size_class, mam__u32 count) {
  mam__u64 word = mam__load_relaxed_u64(place);
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && mam__word_class(word) == size_class; i++) {
    mam__u32 bits = mam__lowest_ones(~(mam__u32)word & mam__word_full(word), count);
    if (bits == 0)
      return 0;
    /* acq_rel: pairs with the frees of these chunks */
    mam__u64 seen = mam__cas_acq_rel_u64(place, word, word | bits);
    if (seen == word)
      return bits;
    word = seen;
  }
  return 0;
}

/* Which pages of a block begin spans of a class, by their entries: a bit for each. */
MAM__OUTLINE mam__u32 mam__block_look(mam__u32 block, mam__u32 size_class, const struct mam__area *area) {
  const mam__u16 *entries = mam__area_entries(*area) + block * MAM__BLOCK_PAGES;
  mam__u32 pages = area->page_count - block * MAM__BLOCK_PAGES, found = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__BLOCK_PAGES; i++)
    found |= (mam__u32)(mam__load_relaxed_u16(&entries[i < pages ? i : 0]) == mam__entry_of(size_class, 0) && i < pages)
             << i;
  return found;
}

/* Which usage words of a span have free chunks of a class: a bit for each. */
MAM__OUTLINE mam__u32 mam__span_look(MAM__TAG(2) mam__u32 size_class, const mam__u64 *words) {
  mam__u64 seen[MAM__PAGE_WORDS];
  mam__u32 open = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    seen[i] = mam__load_relaxed_u64(&words[i]);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    open |= (mam__u32)(i < mam__word_span_words(seen[0]) && mam__word_class(seen[i]) == size_class &&
                       (~(mam__u32)seen[i] & mam__word_full(seen[i])) != 0)
            << i;
  return open;
}

/* Claims up to count chunks of a class from one word of the spans that begin in a block. */
MAM__OUTLINE struct mam__claim mam__block_claim(const struct mam__area *area, mam__u32 block, mam__u32 size_class,
                                                mam__u32 count) {
  struct mam__claim claim = {0, 0, mam__class_bytes(size_class)};
  mam__u32 salt = mam__salt() % MAM__PAGE_WORDS;
  MAM__LOOP
  for (mam__u32 begins = MAM__OUT_OF_SIGHT(mam__block_look)(block, size_class, area); begins != 0;
       begins &= begins - 1) {
    mam__u32 page = block * MAM__BLOCK_PAGES + mam__lowest_u32(begins);
    mam__u64 *words = &area->words[page * MAM__PAGE_WORDS];
    mam__u32 open = MAM__OUT_OF_SIGHT(mam__span_look)(size_class, words);
    MAM__LOOP
    for (open = (open >> salt | open << (MAM__PAGE_WORDS - salt)) & ((1u << MAM__PAGE_WORDS) - 1); open != 0;
         open &= open - 1) {
      mam__u32 i = (mam__lowest_u32(open) + salt) % MAM__PAGE_WORDS;
      if ((claim.mask = mam__word_claim(&words[i], size_class, count)) != 0) {
        claim.address = mam__area_address(*area, page) + (mam__u64)(32 * i) * claim.chunk_bytes;
        return claim;
      }
    }
  }
  return claim;
}

/* One of the blocks that MAM__AHEAD words of a class map name, as far as there are `left`, by chance.  Returns how many
 * blocks it is behind the first one of these words; MAM__NO_PAGE if they name none. */
MAM__OUTLINE mam__u32 mam__class_look(MAM__TAG(2) const mam__u64 *map, mam__u32 left) {
  mam__u64 seen[MAM__AHEAD], open = 0;
  mam__u32 any = 0, salt = mam__salt() * 0x9e3779b1u; /* close numbers give unrelated upper bits */
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    seen[i] = mam__load_relaxed_if_u64(i < left, &map[i], MAM__FULL_WORD);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    any |= (mam__u32)(seen[i] != MAM__FULL_WORD) << i;
  if (any == 0)
    return MAM__NO_PAGE;
  mam__u32 from = (salt >> 24) * (left < MAM__AHEAD ? left : (mam__u32)MAM__AHEAD) >> 8;
  mam__u32 behind = any & ~0u << from, word = mam__lowest_u32(behind != 0 ? behind : any);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    open |= i == word ? ~seen[i] : 0;
  mam__u64 later = open & MAM__FULL_WORD << (salt >> 16 & 63);
  return word << 6 | mam__lowest_u64(later != 0 ? later : open);
}

/* mam__block_claim for all blocks of a superblock that the class map names.  If a block has none, its bit in the class
 * map is set, and the block is looked at once more.  It is not named again until a chunk of it is freed. */
MAM__OUTLINE struct mam__claim mam__recycle(MAM__TAG(2) const struct mam__area *area, mam__u32 size_class,
                                            mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  mam__u32 index =
      MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_class(*area, size_class), mam__area_class_words(*area), 0);
  mam__u32 block = MAM__NO_PAGE, tries = 0;
  MAM__LOOP
  for (int struck = 0;; struck = !struck) {
    MAM__LOOP
    while (!struck) { /* to the next block */
      if (index >= mam__area_class_words(*area))
        return claim;
      block = MAM__OUT_OF_SIGHT(mam__class_look)(&mam__area_class(*area, size_class)[index],
                                                 mam__area_class_words(*area) - index);
      if (block != MAM__NO_PAGE && tries++ < MAM__AHEAD * 64) /* as many as there are blocks */
        break;
      tries = 0;
      index = MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_class(*area, size_class), mam__area_class_words(*area),
                                               index + MAM__AHEAD);
    }
    block += struck ? 0 : index << 6;
    claim = MAM__OUT_OF_SIGHT(mam__block_claim)(area, block, size_class, count);
    MAM__FORGET_ADDRESS(area); /* what is computed from it is not kept over the call */
    if (struck && claim.mask != 0)
      MAM__OUT_OF_SIGHT(mam__span_hint)(*area, block * MAM__BLOCK_PAGES, size_class);
    if (claim.mask != 0)
      return claim;
    mam__u64 bit = 1ull << (block & 63);
    if (!struck && (mam__or_acq_rel_u64(&mam__area_class(*area, size_class)[block >> 6], bit) | bit) == MAM__FULL_WORD)
      MAM__OUT_OF_SIGHT(mam__map_filled)(mam__area_class(*area, size_class), mam__area_class_words(*area), block >> 6);
  }
}

/* The same for all superblocks. */
MAM__OUTLINE struct mam__claim mam__recycle_any(MAM__TAG(3) struct mam__heap_control *control, mam__u32 size_class,
                                                mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  mam__u32 superblocks = mam__load_acquire_u32(&control->superblock_count);
  MAM__LOOP
  for (mam__u32 i = 0; i < superblocks && claim.mask == 0; i++)
    claim = MAM__OUT_OF_SIGHT(mam__recycle)(&control->superblocks[i], size_class, count);
  return claim;
}

#endif /* MAM_DETAIL_HEAP_RECYCLE_H */
