/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_recycle.h - free chunks of spans that were split before, and belong to no slot.
 *
 * The class map of a kind says where to look: a 0 for a page on which a span of the kind begins that may have a free
 * chunk.  It is a hint.
 *
 * The quick way, mam__chunk_claim, is for one lane and one chunk, and for the first superblock.  By chance it takes a
 * word of the class map, a page of those that it names, a usage word of the span, and a bit of its free chunks.  It
 * clears the bit.  No other thread can make that fail, unless it takes the same chunk; so many may claim chunks of a
 * word at the same time.  By then the word may be another span's.  Then the thread has got a chunk of that span, and
 * gives it back by a free.  Where no span is, no bit is 1, and there is nothing to get.
 *
 * The thorough way finds each free chunk that there is all the time, and chunks for a whole group:
 *
 *   mam__recycle_any   each superblock
 *   mam__recycle       the class map, eight words at a time.  If a span has nothing, its bit is set, and the span is
 *                      looked at once more: a thread that freed a chunk meanwhile may have seen the 0 and left it
 *   mam__class_look    one of the pages that eight words name, by chance
 *   mam__span_claim    one of a span's usage words with free chunks, by chance: its lowest free bits are cleared by
 *                      compare-and-swap
 *
 * The lanes of a warp look for chunks of different kinds, and run together.  So mam__recycle is one loop, of which each
 * turn tries one span.  A lane that has to try again takes another turn.  In loops within loops the other lanes would
 * wait for it in each.
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

/* Claims up to count free chunks of one usage word, which was seen.  Returns their bits. */
MAM__INLINE mam__u32 mam__word_claim(mam__u64 *place, mam__u64 word, mam__u32 size_class, mam__u32 count) {
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && mam__word_class(word) == size_class; i++) {
    /* A wrong free may have set a bit of no chunk, for a moment. */
    mam__u32 bits = mam__lowest_ones(mam__word_free(word) & mam__word_whole(word), count);
    if (bits == 0)
      return 0;
    /* acquire: pairs with the frees of these chunks.  There is nothing to release. */
    mam__u64 seen = mam__cas_acquire_u64(place, word, word & ~(mam__u64)bits);
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
                       mam__word_free(seen[i]) != 0)
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

/* One of the ones of a word that is not 0, by chance. */
MAM__INLINE mam__u32 mam__bit_any(mam__u64 word, mam__u32 salt) {
  mam__u64 behind = word & MAM__FULL_WORD << (salt & 63);
  return mam__lowest_u64(behind != 0 ? behind : word);
}

enum {
  /* A quick claim looks at so many spans. */
  MAM__QUICK_TRIES = 12,
  /* It tries so many chunks of one word, of which others claim at the same time. */
  MAM__QUICK_CHUNKS = 8
};

/* Claims one free chunk of a superblock where that is quick: of a few usage words of the kind, which it takes by
 * chance.  span_words: how many a span of the kind has.  Returns what its bit is, counted from the superblock's first
 * word on, and above MAM__CHUNK_FOUND flags; 0 if it found none.  Calls nothing.
 *
 * The thread clears a bit without knowing what the word is by then.  If it gets a chunk of another kind, the caller
 * gives that back (MAM__CHUNK_OTHER). */
#define MAM__CHUNK_FOUND (1ull << 62)
#define MAM__CHUNK_OTHER (1ull << 63)
MAM__OUTLINE mam__u64 mam__chunk_claim(mam__u64 *words, mam__u32 page_count, mam__u32 kind, mam__u32 span_words) {
  struct mam__area area = {0, words, page_count, 0};
  const mam__u64 *map = mam__area_class(area, kind);
  mam__u32 map_words = mam__area_map_words(area), salt = mam__salt() * 0x9e3779b1u;
  MAM__LOOP
  for (int i = 0; i < MAM__QUICK_TRIES; i++) {
    salt = salt * 0x2c1b3c6du + 0x297a2d39u;
    mam__u32 index = (mam__u32)((mam__u64)salt * map_words >> 32);
    mam__u64 open = ~mam__load_relaxed_u64(&map[index]), above = ~mam__load_relaxed_u64(&map[map_words + (index >> 6)]);
    if (open == 0 && above != 0) { /* few spans of the kind */
      index = (index & ~63u) | mam__bit_any(above, salt >> 20);
      open = ~mam__load_relaxed_u64(&map[index]);
    }
    if (open == 0) {
      if (map_words <= 64)
        break;
      i += 3;
      continue;
    }
    index = (index << 6 | mam__bit_any(open, salt >> 14)) * MAM__PAGE_WORDS;
    mam__u32 other = salt >> 8 & (span_words - 1);
    mam__u64 word = mam__load_relaxed_u64(&words[index]), later = mam__load_relaxed_u64(&words[index + other]);
    if (mam__word_class(later) == kind && mam__word_free(later) != 0) {
      word = later;
      index += other;
    }
    MAM__LOOP
    for (int j = 0; j < MAM__QUICK_CHUNKS && mam__word_class(word) == kind && mam__word_free(word) != 0; j++) {
      mam__u32 bit = mam__bit_any(mam__word_free(word), salt >> 3 & 31);
      /* acquire: pairs with the free of the chunk */
      word = mam__and_acquire_u64(&words[index], ~(1ull << bit));
      if ((mam__word_free(word) & mam__word_whole(word)) >> bit & 1)
        return MAM__CHUNK_FOUND | (mam__word_class(word) != kind ? MAM__CHUNK_OTHER : 0) | (mam__u64)index << 5 | bit;
      salt += 0x9e3779b1u;
    }
  }
  return 0;
}

/* Gives back a chunk of another kind that mam__chunk_claim got.  Returns 0. */
MAM__OUTLINE mam__u64 mam__chunk_return(mam__u64 *words, mam__u32 page_count, mam__u64 chunk) {
  struct mam__area area = {0, words, page_count, 0};
  (void)mam__chunks_free(area, (mam__u32)(chunk >> 5), 1u << (chunk & 31));
  return 0;
}

/* One of the pages that MAM__AHEAD words of a class map name, as far as there are `left`, by chance.  Returns how many
 * pages it is behind the first one of these words; MAM__NO_PAGE if they name none. */
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
  return word << 6 | mam__bit_any(open, salt >> 16);
}

/* Claims up to count chunks of one usage word of a superblock, which is given by its words and its number of pages. The
 * claim's address is counted from the first page. */
MAM__OUTLINE struct mam__claim mam__recycle(mam__u64 *words, mam__u32 page_count, mam__u32 size_class, mam__u32 count) {
  struct mam__area area = {0, words, page_count, 0};
  struct mam__claim claim = {0, 0, 0};
  struct mam__bits found = {0, 0};
  /* left:  how many words of the class map are to be looked at yet, those around `first` included
   * first: the first of the words that are looked at together
   * steps: the looks at spans, of which each is looked at twice */
  mam__u32 left = mam__area_map_words(area), steps = 0, page = 0;
  mam__u32 first = (mam__salt() * 0x9e3779b1u >> 8) % left / MAM__AHEAD * MAM__AHEAD;
  MAM__LOOP
  while (found.bits == 0) {
    MAM__FORGET(area.page_count); /* what is computed from it is not kept over the calls */
    if (steps % 2 == 0) {
      mam__u32 next = MAM__OUT_OF_SIGHT(mam__class_look)(&mam__area_class(area, size_class)[first],
                                                         mam__area_map_words(area) - first);
      MAM__FORGET(area.page_count);
      if (next == MAM__NO_PAGE || steps >= 2 * 64 * MAM__AHEAD) { /* to the next words */
        next = MAM__OUT_OF_SIGHT(mam__map_next)(mam__area_class(area, size_class), mam__area_map_words(area),
                                                first + MAM__AHEAD);
        MAM__FORGET(area.page_count);
        next = next < mam__area_map_words(area) ? next / MAM__AHEAD * MAM__AHEAD : mam__area_map_words(area);
        if (next - first >= left)
          return claim;
        left -= next - first;
        first = next < mam__area_map_words(area) ? next : 0;
        steps = 0;
        continue;
      }
      page = (first << 6) + next;
    } else { /* the span has none: it is not named again until a chunk of it is freed */
      mam__u64 bit = 1ull << (page & 63);
      if ((mam__or_acq_rel_u64(&mam__area_class(area, size_class)[page >> 6], bit) | bit) == MAM__FULL_WORD)
        mam__map_filled(mam__area_class(area, size_class), mam__area_map_words(area), page >> 6);
    }
    MAM__FORGET(area.page_count);
    found = MAM__OUT_OF_SIGHT(mam__span_claim)(&area.words[page * MAM__PAGE_WORDS], size_class, count);
    steps++;
  }
  if (steps % 2 == 0)
    MAM__OUT_OF_SIGHT(mam__span_hint)(area, page, size_class);
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
