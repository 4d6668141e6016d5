/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_maps.h - maps: bits in three levels, which say where something is free.
 *
 * A 0 is worth a look.  A bit of an upper level is 1 if all 64 bits below it are 1.  The levels lie one after the other
 * in memory:
 *
 *   level 0   | word | word | word | ... |  count words: a bit for each thing
 *   level 1   | word | ...               |  a bit for each word of level 0
 *   level 2   | word |                   |  a bit for each word of level 1
 *
 * Level 0 is changed first, by one atomic operation on one word.  Then the levels above follow:
 *
 *   mam__map_opened   a word was all 1 and has a 0: clears the bits above, before anything that relies on them
 *   mam__map_filled   a word became all 1: sets the bit above, then looks at the word again, and takes the bit back if
 *                    the word has a 0 by then
 *
 * So a 1 above an open word stays only while a thread is about to correct it.  A 0 above a full word costs a look.
 *
 * A run is a row of zeros in level 0.  To take it is to set its bits, by a compare-and-swap of its word.  The lowest
 * free bits are taken first.
 *
 * This room knows neither pages nor spans.  MAM__AHEAD words are read together, so that their loads overlap; those
 * beyond the end of a map are other metadata, and the callers leave them out.
 */
#ifndef MAM_DETAIL_HEAP_MAPS_H
#define MAM_DETAIL_HEAP_MAPS_H

#include <mam/detail/heap_words.h>

enum {
  /* A map has three levels.  The last one is searched word by word. */
  MAM__MAP_LEVELS = 3,
  /* A thread tries a compare-and-swap that others disturb 64 times, then it looks elsewhere. */
  MAM__RETRIES = 64,
  /* A look reads 8 words together, so that their loads are under way at the same time. */
  MAM__AHEAD = 8,
  /* So many whole words are taken together. */
  MAM__WORDS_TOGETHER = 8
};

MAM__INLINE mam__u64 mam__run_bits(mam__u32 count, mam__u32 from) { return (MAM__FULL_WORD >> (64 - count)) << from; }

/* The number of words of all levels, where level 0 has count words. */
MAM__INLINE mam__u32 mam__map_words(mam__u32 count) {
  mam__u32 second = (count + 63) >> 6;
  return count + second + ((second + 63) >> 6);
}

/* Clears the bits above a word of level 0 that has just lost its last 1. */
MAM__INLINE void mam__map_opened(mam__u64 *level, mam__u32 count, mam__u32 index) {
  MAM__LOOP
  for (int above = 1; above < MAM__MAP_LEVELS; above++) {
    level += count;
    /* acq_rel: a thread that finds this bit 0 sees the change of the word below. */
    if (mam__and_acq_rel_u64(&level[index >> 6], ~(1ull << (index & 63))) != MAM__FULL_WORD)
      return;
    index >>= 6;
    count = (count + 63) >> 6;
  }
}

/* Sets the bits above a word of level 0 that was seen to be all 1.  A thread that cleared a bit of the word meanwhile
 * found nothing above to correct, so the word is read again afterwards. */
MAM__INLINE void mam__map_filled(mam__u64 *level, mam__u32 count, mam__u32 index) {
  MAM__LOOP
  for (int above = 1; above < MAM__MAP_LEVELS; above++) {
    mam__u64 *upper = level + count, bit = 1ull << (index & 63);
    /* acq_rel: this change and the one in mam__map_opened are of one word.  If the latter came first, the look below
     * sees what caused it. */
    mam__u64 old = mam__or_acq_rel_u64(&upper[index >> 6], bit);
    if (mam__load_relaxed_u64(&level[index]) != MAM__FULL_WORD) {
      /* One level is left above.  mam__map_opened would go on into the next map. */
      if (mam__and_acq_rel_u64(&upper[index >> 6], ~bit) == MAM__FULL_WORD && above + 1 < MAM__MAP_LEVELS)
        (void)mam__and_acq_rel_u64(&upper[((count + 63) >> 6) + (index >> 12)], ~(1ull << (index >> 6 & 63)));
      return;
    }
    if ((old | bit) != MAM__FULL_WORD)
      return;
    level = upper;
    index >>= 6;
    count = (count + 63) >> 6;
  }
}

/* The first word of level 0, from index on, that may have a 0; count if there is none. */
MAM__OUTLINE mam__u32 mam__map_next(const mam__u64 *level, mam__u32 count, mam__u32 index) {
  const mam__u64 *second = level + count, *third = second + ((count + 63) >> 6);
  MAM__LOOP
  while (index < count) {
    mam__u64 open = ~mam__load_relaxed_u64(&second[index >> 6]) & (MAM__FULL_WORD << (index & 63));
    if (open != 0)
      return (index & ~63u) + mam__lowest_u64(open);
    mam__u32 group = (index >> 6) + 1;
    MAM__LOOP
    while (group < (count + 63) >> 6) {
      open = ~mam__load_relaxed_u64(&third[group >> 6]) & (MAM__FULL_WORD << (group & 63));
      if (open != 0) {
        group = (group & ~63u) + mam__lowest_u64(open);
        break;
      }
      group = (group | 63) + 1;
    }
    index = group << 6;
  }
  return count;
}

/* The word at index of an empty map, counted through all levels, where level 0 has so many bits: 0 but for the bits
 * past the end. */
MAM__INLINE mam__u64 mam__map_open_word(mam__u32 bits, mam__u32 index) {
  MAM__LOOP
  for (int level = 0; level < MAM__MAP_LEVELS; level++) {
    mam__u32 words = (bits + 63) / 64;
    if (index < words)
      return index + 1 < words || bits % 64 == 0 ? 0 : MAM__FULL_WORD << bits % 64;
    index -= words;
    bits = words;
  }
  return MAM__FULL_WORD;
}

/* ---- Runs of zeros ---- */

/* The lowest bit from which on count bits of the word are 0; 64 if there is none. */
MAM__INLINE mam__u32 mam__run_find(mam__u64 word, mam__u32 count) {
  mam__u64 starts = ~word;
  MAM__LOOP
  for (mam__u32 have = 1; have < count;) {
    mam__u32 step = have < count - have ? have : count - have;
    starts &= starts >> step;
    have += step;
  }
  return starts == 0 ? 64 : mam__lowest_u64(starts);
}

/* Reads MAM__AHEAD words. */
MAM__INLINE void mam__map_read(const mam__u64 *word, mam__u64 seen[MAM__AHEAD]) {
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD; i++)
    seen[i] = mam__load_relaxed_u64(word + i);
}

/* Which of MAM__AHEAD words but the last have count zeros in a row: a bit for each.  Eight bits above: at the end of
 * which words and the beginning of the next ones count zeros lie together. */
MAM__OUTLINE mam__u32 mam__map_look_both(mam__u32 count, const mam__u64 *level, mam__u32 index) {
  mam__u64 seen[MAM__AHEAD];
  mam__u32 fits = 0;
  mam__map_read(&level[index], seen);
  MAM__UNROLL
  for (mam__u32 i = 0; i < MAM__AHEAD - 1; i++) {
    mam__u32 end = mam__leading_zeros_u64(seen[i]), begin = seen[i + 1] != 0 ? mam__lowest_u64(seen[i + 1]) : 64;
    fits |= (mam__u32)(mam__run_find(seen[i], count) != 64) << i;
    fits |= (mam__u32)(end != 0 && begin != 0 && end + begin >= count) << (i + 8);
  }
  return fits;
}

/* ---- Taking ---- */

/* Takes bits of a word if all of them are 0.  Returns whether it did. */
MAM__OUTLINE int mam__map_take(mam__u64 *level, mam__u32 count, mam__u32 index, mam__u64 bits) {
  mam__u64 word = mam__load_relaxed_u64(&level[index]);
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && (word & bits) == 0; i++) {
    /* acquire: pairs with mam__pages_clear and mam__kept_give. */
    mam__u64 seen = mam__cas_acquire_u64(&level[index], word, word | bits);
    if (seen == word) {
      if ((word | bits) == MAM__FULL_WORD)
        mam__map_filled(level, count, index);
      return 1;
    }
    word = seen;
  }
  return 0;
}

/* Takes the lowest count zeros in a row of the word at index.  Returns the number of the first bit in the map, or
 * MAM__NO_PAGE if the word has no such row or others take it. */
MAM__OUTLINE mam__u32 mam__map_take_in(mam__u32 index, mam__u64 *level, mam__u32 words, mam__u32 count) {
  mam__u64 word = mam__load_relaxed_u64(&level[index]);
  mam__u32 from;
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && (from = mam__run_find(word, count)) != 64; i++) {
    /* acquire: as in mam__map_take */
    mam__u64 bits = mam__run_bits(count, from), seen = mam__cas_acquire_u64(&level[index], word, word | bits);
    if (seen == word) {
      if ((word | bits) == MAM__FULL_WORD)
        mam__map_filled(level, words, index);
      return (index << 6) + from;
    }
    word = seen;
  }
  return MAM__NO_PAGE;
}

/* ---- Whole words ---- */

/* Takes whole words from index on, as long as they are 0, up to count of them.  MAM__WORDS_TOGETHER compare-and-swaps
 * are under way together.  What they took behind a word that was not 0 is given back.  Returns how many words it took;
 * mam__map_words_filled then sets the bits above. */
MAM__OUTLINE mam__u32 mam__map_take_words(MAM__TAG(2) mam__u64 *level, mam__u32 index, mam__u32 count) {
  mam__u32 got = 0;
  MAM__LOOP
  while (got < count) {
    mam__u32 here = count - got < MAM__WORDS_TOGETHER ? count - got : (mam__u32)MAM__WORDS_TOGETHER, failed = 0;
    mam__u64 seen[MAM__WORDS_TOGETHER];
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__WORDS_TOGETHER; i++)
      seen[i] = mam__cas_between_barriers_if_u64(i < here, &level[index + got + i], 0, MAM__FULL_WORD);
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__WORDS_TOGETHER; i++)
      failed |= (mam__u32)(seen[i] != 0) << i;
    mam__barrier(); /* acquire: pairs with mam__pages_clear and mam__kept_give */
    mam__u32 good = failed == 0 ? here : mam__lowest_u32(failed);
    MAM__LOOP
    for (mam__u32 i = good + 1; i < here; i++) /* words behind the first one that was not 0 */
      if ((failed >> i & 1) == 0)
        (void)mam__exchange_release_u64(&level[index + got + i], 0);
    got += good;
    if (failed != 0)
      break;
  }
  return got;
}

/* Sets the bits above whole words, from index on, which the caller has taken. */
MAM__OUTLINE void mam__map_words_filled(mam__u64 *level, mam__u32 words, mam__u32 index, mam__u32 count) {
  MAM__LOOP
  while (count != 0) {
    mam__u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    (void)mam__or_acq_rel_u64(&level[words + (index >> 6)], mam__run_bits(here, from));
    index += here;
    count -= here;
  }
}

/* Clears the bits above whole words, from index on, which have just become 0. */
MAM__INLINE void mam__map_words_opened(mam__u64 *level, mam__u32 words, mam__u32 index, mam__u32 count) {
  mam__u64 *second = level + words, *third = second + ((words + 63) >> 6);
  MAM__LOOP
  while (count != 0) {
    mam__u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    if (mam__and_acq_rel_u64(&second[index >> 6], ~mam__run_bits(here, from)) == MAM__FULL_WORD)
      (void)mam__and_acq_rel_u64(&third[index >> 12], ~(1ull << (index >> 6 & 63)));
    index += here;
    count -= here;
  }
}

#endif /* MAM_DETAIL_HEAP_MAPS_H */
