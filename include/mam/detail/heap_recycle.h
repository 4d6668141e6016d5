/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_recycle.h - free chunks of spans that were split before, and belong to no slot.
 *
 * The class map of a kind says where to look: a 0 for eight pages (a block) in which a span of the kind may have a free
 * chunk.  It is a hint.  The way down:
 *
 *   mam__recycle_any   each superblock
 *   mam__recycle       the class map, eight words at a time.  If a block has nothing, its bit is set, and the block is
 *                      looked at once more: a thread that freed a chunk meanwhile may have seen the 0 and left it
 *   mam__class_look    one of the blocks that eight words name, by chance
 *   mam__block_look    the spans of the kind that begin in the block, by their entries
 *   mam__span_claim    one of a span's usage words with free chunks, by chance: its lowest free bits are set by
 *                      compare-and-swap
 *
 * A claim takes the chunks of one word, up to 32.  Of the threads that change a word at the same time only one
 * succeeds, so they are to meet seldom.  Therefore each begins at another place of the class map, and takes a block, a
 * span and a word by chance.
 *
 * The lanes of a warp look for chunks of different kinds, and run together.  So there is one loop, of which each turn
 * tries one span.  A lane that has to try again takes another turn.  In loops within loops the other lanes would wait
 * for it in each.
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

/* The first 1 of bits, counted from a bit on and then from the lowest.  bits is not 0. */
MAM__INLINE mam__u32 mam__bit_behind(mam__u32 bits, mam__u32 from) {
  return bits >> from != 0 ? mam__lowest_u32(bits >> from) + from : mam__lowest_u32(bits);
}

/* Which pages of a block begin spans of a class, by their entries: a bit for each. */
MAM__OUTLINE mam__u32 mam__block_look(mam__u64 *words, mam__u32 page_count, mam__u32 block, mam__u32 size_class) {
  struct mam__area area = {0, words, page_count, 0};
  const mam__u16 *entries = mam__area_entries(area) + block * MAM__BLOCK_PAGES;
  mam__u32 pages = page_count - block * MAM__BLOCK_PAGES, found = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__BLOCK_PAGES; i++)
    found |= (mam__u32)(mam__load_relaxed_u16(&entries[i < pages ? i : 0]) == mam__entry_of(size_class, 0) && i < pages)
             << i;
  return found;
}

/* Claims up to count free chunks of one usage word, which was seen.  Returns their bits. */
MAM__INLINE mam__u32 mam__word_claim(mam__u64 *place, mam__u64 word, mam__u32 size_class, mam__u32 count) {
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && mam__word_class(word) == size_class; i++) {
    mam__u32 bits = mam__lowest_ones(~(mam__u32)word & mam__word_full(word), count);
    if (bits == 0)
      return 0;
    /* acquire: pairs with the frees of these chunks.  There is nothing to release. */
    mam__u64 seen = mam__cas_acquire_u64(place, word, word | bits);
    if (seen == word)
      return bits;
    word = seen;
  }
  return 0;
}

/* Chunks of a usage word. */
struct mam__bits {
  mam__u32 bits; /* 0: none */
  mam__u32 word; /* the word's number in its span */
};

/* Claims up to count chunks of one usage word of a span of a class, whose words are given.  If another span is there
 * now, or none, it claims none.  Calls nothing. */
MAM__OUTLINE struct mam__bits mam__span_claim(mam__u64 *words, mam__u32 size_class, mam__u32 count) {
  struct mam__bits claim = {0, 0};
  mam__u64 seen[MAM__PAGE_WORDS], word = 0;
  mam__u32 open = 0;
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    seen[i] = mam__load_relaxed_u64(&words[i]);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++) {
    open |= (mam__u32)(i < mam__word_span_words(seen[0]) && mam__word_class(seen[i]) == size_class &&
                       (~(mam__u32)seen[i] & mam__word_full(seen[i])) != 0)
            << i;
    MAM__FORGET(open); /* otherwise what each word says takes registers of its own */
  }
  if (open == 0)
    return claim;
  claim.word = mam__bit_behind(open, mam__salt() % MAM__PAGE_WORDS);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__PAGE_WORDS; i++)
    word |= i == claim.word ? seen[i] : 0;
  MAM__LOOP
  while ((claim.bits = mam__word_claim(&words[claim.word], word, size_class, count)) == 0) {
    open &= ~(1u << claim.word);
    if (open == 0)
      break;
    claim.word = mam__lowest_u32(open);
    word = mam__load_relaxed_u64(&words[claim.word]);
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

/* The first of the MAM__AHEAD words of a class map among which a word is, and which are looked at together. */
MAM__INLINE mam__u32 mam__class_first(mam__u32 index) { return index / MAM__AHEAD * MAM__AHEAD; }

/* Claims up to count chunks of one usage word of a superblock, which is given by its words and its number of pages. The
 * claim's address is counted from the first page. */
MAM__OUTLINE struct mam__claim mam__recycle(mam__u64 *words, mam__u32 page_count, mam__u32 size_class, mam__u32 count) {
  struct mam__area area = {0, words, page_count, 0};
  struct mam__claim claim = {0, 0, 0};
  struct mam__bits found = {0, 0};
  /* left:   how many words of the class map are to be looked at yet, those around the block's included
   * begins: the spans of the block that were not tried yet
   * steps:  the looks at blocks, of which each is looked at twice */
  mam__u32 left = mam__area_class_words(area), begins = 0, steps = 0, page = 0;
  mam__u32 block = (mam__salt() * 0x9e3779b1u >> 8) % left << 6;
  MAM__LOOP
  while (found.bits == 0) {
    MAM__FORGET(area.page_count); /* what is computed from it is not kept over the calls */
    if (begins == 0 && steps % 2 == 0) {
      mam__u32 first = mam__class_first(block >> 6);
      mam__u32 next = MAM__OUT_OF_SIGHT(mam__class_look)(&mam__area_class(area, size_class)[first],
                                                         mam__area_class_words(area) - first);
      MAM__FORGET(area.page_count);
      if (next == MAM__NO_PAGE || steps >= 2 * 64 * MAM__AHEAD) { /* to the next words */
        next = MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_class(area, size_class), mam__area_class_words(area),
                                                mam__class_first(block >> 6) + MAM__AHEAD);
        MAM__FORGET(area.page_count);
        next = next < mam__area_class_words(area) ? mam__class_first(next) : mam__area_class_words(area);
        first = mam__class_first(block >> 6);
        if (next - first >= left)
          return claim;
        left -= next - first;
        block = next < mam__area_class_words(area) ? next << 6 : 0;
        steps = 0;
        continue;
      }
      block = (mam__class_first(block >> 6) << 6) + next;
    } else if (begins == 0) { /* the block has none: it is not named again until a chunk of it is freed */
      mam__u64 bit = 1ull << (block & 63);
      if ((mam__or_acq_rel_u64(&mam__area_class(area, size_class)[block >> 6], bit) | bit) == MAM__FULL_WORD)
        MAM__OUT_OF_SIGHT(mam__map_filled)(mam__area_class(area, size_class), mam__area_class_words(area), block >> 6);
    }
    MAM__FORGET(area.page_count);
    if (begins == 0) {
      begins = MAM__OUT_OF_SIGHT(mam__block_look)(area.words, area.page_count, block, size_class);
      steps++;
    }
    if (begins != 0) {
      page = mam__bit_behind(begins, mam__salt() % MAM__BLOCK_PAGES);
      begins &= ~(1u << page);
      page += block * MAM__BLOCK_PAGES;
      found = MAM__OUT_OF_SIGHT(mam__span_claim)(&area.words[page * MAM__PAGE_WORDS], size_class, count);
    }
  }
  if (steps % 2 == 0)
    MAM__OUT_OF_SIGHT(mam__span_hint)(area, block * MAM__BLOCK_PAGES, size_class);
  claim.mask = found.bits;
  claim.chunk_bytes = mam__class_bytes(size_class);
  claim.address = ((mam__u64)page << MAM__PAGE_SHIFT) + (mam__u64)(32 * found.word) * claim.chunk_bytes;
  return claim;
}

/* The same for all superblocks, with the chunks' address. */
MAM__OUTLINE struct mam__claim mam__recycle_any(MAM__TAG(3) struct mam__heap_control *control, mam__u32 size_class,
                                                mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  mam__u32 i = 0;
  MAM__LOOP
  do { /* there is always a first superblock, and it never changes */
    claim = MAM__OUT_OF_SIGHT(mam__recycle)(control->superblocks[i].words, control->superblocks[i].page_count,
                                            size_class, count);
    MAM__FORGET_ADDRESS(control);
    if (claim.mask != 0) {
      claim.address += control->superblocks[i].base;
      return claim;
    }
  } while (++i < mam__load_acquire_u32(&control->superblock_count));
  return claim;
}

#endif /* MAM_DETAIL_HEAP_RECYCLE_H */
