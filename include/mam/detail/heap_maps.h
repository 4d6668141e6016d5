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
 *   mam_map_opened   a word was all 1 and has a 0: clears the bits above, before anything that relies on them
 *   mam_map_filled   a word became all 1: sets the bit above, then looks at the word again, and takes the bit back if
 *                    the word has a 0 by then
 *
 * So a 1 above an open word stays only while a thread is about to correct it.  A 0 above a full word costs a look.
 *
 * A run is a row of zeros in level 0.  To take it is to set its bits, by a compare-and-swap of its word.  The lowest
 * free bits are taken first.
 *
 * This room knows neither pages nor spans.  MAM_AHEAD words are read together, so that their loads overlap; those
 * beyond the end of a map are other metadata, and the callers leave them out.
 */
#ifndef MAM_DETAIL_HEAP_MAPS_H
#define MAM_DETAIL_HEAP_MAPS_H

#include <mam/detail/heap_words.h>

enum {
  /* A map has three levels.  The last one is searched word by word. */
  MAM_MAP_LEVELS = 3,
  /* A thread tries a compare-and-swap that others disturb 64 times, then it looks elsewhere. */
  MAM_RETRIES = 64,
  /* A look reads 8 words together, so that their loads are under way at the same time. */
  MAM_AHEAD = 8
};

MAM_INLINE mam_u64 mam_run_bits(mam_u32 count, mam_u32 from) { return (MAM_FULL_WORD >> (64 - count)) << from; }

/* The number of words of all levels, where level 0 has count words. */
MAM_INLINE mam_u32 mam_map_words(mam_u32 count) {
  mam_u32 second = (count + 63) >> 6;
  return count + second + ((second + 63) >> 6);
}

/* Clears the bits above a word of level 0 that has just lost its last 1. */
MAM_OUTLINE void mam_map_opened(mam_u64 *level, mam_u32 count, mam_u32 index) {
  MAM_LOOP
  for (int above = 1; above < MAM_MAP_LEVELS; above++) {
    level += count;
    /* acq_rel: a thread that finds this bit 0 sees the change of the word below. */
    if (mam_and_acq_rel_u64(&level[index >> 6], ~(1ull << (index & 63))) != MAM_FULL_WORD)
      return;
    index >>= 6;
    count = (count + 63) >> 6;
  }
}

/* Sets the bits above a word of level 0 that was seen to be all 1.  A thread that cleared a bit of the word meanwhile
 * found nothing above to correct, so the word is read again afterwards. */
MAM_OUTLINE void mam_map_filled(mam_u64 *level, mam_u32 count, mam_u32 index) {
  MAM_LOOP
  for (int above = 1; above < MAM_MAP_LEVELS; above++) {
    mam_u64 *upper = level + count, bit = 1ull << (index & 63);
    /* acq_rel: this change and the one in mam_map_opened are of one word.  If the latter came first, the look below
     * sees what caused it. */
    mam_u64 old = mam_or_acq_rel_u64(&upper[index >> 6], bit);
    if (mam_load_relaxed_u64(&level[index]) != MAM_FULL_WORD) {
      /* One level is left above.  mam_map_opened would go on into the next map. */
      if (mam_and_acq_rel_u64(&upper[index >> 6], ~bit) == MAM_FULL_WORD && above + 1 < MAM_MAP_LEVELS)
        (void)mam_and_acq_rel_u64(&upper[((count + 63) >> 6) + (index >> 12)], ~(1ull << (index >> 6 & 63)));
      return;
    }
    if ((old | bit) != MAM_FULL_WORD)
      return;
    level = upper;
    index >>= 6;
    count = (count + 63) >> 6;
  }
}

/* The first word of level 0, from index on, that may have a 0; count if there is none. */
MAM_OUTLINE mam_u32 mam_map_next(const mam_u64 *level, mam_u32 count, mam_u32 index) {
  const mam_u64 *second = level + count, *third = second + ((count + 63) >> 6);
  MAM_LOOP
  while (index < count) {
    mam_u64 open = ~mam_load_relaxed_u64(&second[index >> 6]) & (MAM_FULL_WORD << (index & 63));
    if (open != 0)
      return (index & ~63u) + mam_lowest_u64(open);
    mam_u32 group = (index >> 6) + 1;
    MAM_LOOP
    while (group < (count + 63) >> 6) {
      open = ~mam_load_relaxed_u64(&third[group >> 6]) & (MAM_FULL_WORD << (group & 63));
      if (open != 0) {
        group = (group & ~63u) + mam_lowest_u64(open);
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
MAM_INLINE mam_u64 mam_map_open_word(mam_u32 bits, mam_u32 index) {
  MAM_LOOP
  for (int level = 0; level < MAM_MAP_LEVELS; level++) {
    mam_u32 words = (bits + 63) / 64;
    if (index < words)
      return index + 1 < words || bits % 64 == 0 ? 0 : MAM_FULL_WORD << bits % 64;
    index -= words;
    bits = words;
  }
  return MAM_FULL_WORD;
}

/* ---- Runs of zeros ---- */

/* The lowest bit from which on count bits of the word are 0; 64 if there is none. */
MAM_INLINE mam_u32 mam_run_find(mam_u64 word, mam_u32 count) {
  mam_u64 starts = ~word;
  MAM_LOOP
  for (mam_u32 have = 1; have < count;) {
    mam_u32 step = have < count - have ? have : count - have;
    starts &= starts >> step;
    have += step;
  }
  return starts == 0 ? 64 : mam_lowest_u64(starts);
}

/* Reads MAM_AHEAD words. */
MAM_INLINE void mam_map_read(const mam_u64 *word, mam_u64 seen[MAM_AHEAD]) {
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    seen[i] = mam_load_relaxed_u64(word + i);
}

/* Which of MAM_AHEAD words have count zeros in a row: a bit for each. */
MAM_OUTLINE mam_u32 mam_map_look(mam_u32 count, const mam_u64 *word) {
  mam_u64 seen[MAM_AHEAD];
  mam_u32 fits = 0;
  mam_map_read(word, seen);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    fits |= (mam_u32)(mam_run_find(seen[i], count) != 64) << i;
  return fits;
}

/* Which of MAM_AHEAD words but the last have count zeros in a row: a bit for each.  Eight bits above: at the end of
 * which words and the beginning of the next ones count zeros lie together. */
MAM_OUTLINE mam_u32 mam_map_look_both(mam_u32 count, const mam_u64 *level, mam_u32 index) {
  mam_u64 seen[MAM_AHEAD];
  mam_u32 fits = 0;
  mam_map_read(&level[index], seen);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD - 1; i++) {
    mam_u32 end = mam_leading_zeros_u64(seen[i]), begin = seen[i + 1] != 0 ? mam_lowest_u64(seen[i + 1]) : 64;
    fits |= (mam_u32)(mam_run_find(seen[i], count) != 64) << i;
    fits |= (mam_u32)(end != 0 && begin != 0 && end + begin >= count) << (i + 8);
  }
  return fits;
}

/* ---- Taking ---- */

/* Takes bits of a word if all of them are 0.  Returns whether it did. */
MAM_OUTLINE int mam_map_take(mam_u64 *level, mam_u32 count, mam_u32 index, mam_u64 bits) {
  mam_u64 word = mam_load_relaxed_u64(&level[index]);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (word & bits) == 0; i++) {
    /* acquire: pairs with mam_pages_clear and mam_kept_give. */
    mam_u64 seen = mam_cas_acquire_u64(&level[index], word, word | bits);
    if (seen == word) {
      if ((word | bits) == MAM_FULL_WORD)
        MAM_OUT_OF_SIGHT(mam_map_filled)(level, count, index);
      return 1;
    }
    word = seen;
  }
  return 0;
}

/* Takes the lowest count zeros in a row of the word at index.  Returns the number of the first bit in the map, or
 * MAM_NO_PAGE if the word has no such row or others take it. */
MAM_OUTLINE mam_u32 mam_map_take_in(mam_u32 index, mam_u64 *level, mam_u32 words, mam_u32 count) {
  mam_u64 word = mam_load_relaxed_u64(&level[index]);
  mam_u32 from;
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (from = mam_run_find(word, count)) != 64; i++) {
    /* acquire: as in mam_map_take */
    mam_u64 bits = mam_run_bits(count, from), seen = mam_cas_acquire_u64(&level[index], word, word | bits);
    if (seen == word) {
      if ((word | bits) == MAM_FULL_WORD)
        MAM_OUT_OF_SIGHT(mam_map_filled)(level, words, index);
      return (index << 6) + from;
    }
    word = seen;
  }
  return MAM_NO_PAGE;
}

/* Takes count zeros in a row of the first word that has them, from the word first on and before last.  Returns as
 * mam_map_take_in. */
MAM_OUTLINE mam_u32 mam_map_take_run(mam_u64 *level, mam_u32 words, mam_u32 count, mam_u32 first, mam_u32 last) {
  mam_u32 tries = 0, index = MAM_OUT_OF_SIGHT(mam_map_next)(level, words, first);
  MAM_LOOP
  while (index < last) {
    mam_u32 fits = MAM_OUT_OF_SIGHT(mam_map_look)(count, &level[index]), next = index + MAM_AHEAD, page = MAM_NO_PAGE;
    if (fits != 0 && (next = index + mam_lowest_u32(fits)) < last) {
      page = MAM_OUT_OF_SIGHT(mam_map_take_in)(next, level, words, count);
      if (++tries == MAM_RETRIES) {
        tries = 0;
        next++;
      }
    }
    if (page != MAM_NO_PAGE)
      return page;
    index = (index ^ next) >> 6 != 0 ? MAM_OUT_OF_SIGHT(mam_map_next)(level, words, next) : next;
  }
  return MAM_NO_PAGE;
}

/* ---- Whole words ---- */

/* Takes whole words from index on, as long as they are 0, up to count of them.  Eight compare-and-swaps are under way
 * together.  Returns how many words it took; mam_map_words_filled then sets the bits above. */
MAM_OUTLINE mam_u32 mam_map_take_words(MAM_TAG(2) mam_u64 *level, mam_u32 index, mam_u32 count) {
  mam_u32 got = 0;
  MAM_LOOP
  while (got < count) {
    mam_u32 here = count - got < 8 ? count - got : 8, failed = 0;
    mam_u64 seen[8];
    MAM_UNROLL
    for (mam_u32 i = 0; i < 8; i++)
      seen[i] = mam_cas_between_fences_if_u64(i < here, &level[index + got + i], 0, MAM_FULL_WORD);
    MAM_UNROLL
    for (mam_u32 i = 0; i < 8; i++)
      failed |= (mam_u32)(seen[i] != 0) << i;
    mam_fence(); /* acquire: pairs with mam_pages_clear and mam_kept_give */
    mam_u32 good = failed == 0 ? here : mam_lowest_u32(failed);
    MAM_LOOP
    for (mam_u32 i = good + 1; i < here; i++) /* words behind the first one that was not 0 */
      if ((failed >> i & 1) == 0)
        (void)mam_exchange_release_u64(&level[index + got + i], 0);
    got += good;
    if (failed != 0)
      break;
  }
  return got;
}

/* Sets the bits above whole words, from index on, which the caller has taken. */
MAM_OUTLINE void mam_map_words_filled(mam_u64 *level, mam_u32 words, mam_u32 index, mam_u32 count) {
  MAM_LOOP
  while (count != 0) {
    mam_u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    (void)mam_or_acq_rel_u64(&level[words + (index >> 6)], mam_run_bits(here, from));
    index += here;
    count -= here;
  }
}

/* Clears the bits above whole words, from index on, which have just become 0. */
MAM_OUTLINE void mam_map_words_opened(MAM_TAG(1) mam_u64 *level, mam_u32 words, mam_u32 index, mam_u32 count) {
  mam_u64 *second = level + words, *third = second + ((words + 63) >> 6);
  MAM_LOOP
  while (count != 0) {
    mam_u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    if (mam_and_acq_rel_u64(&second[index >> 6], ~mam_run_bits(here, from)) == MAM_FULL_WORD)
      (void)mam_and_acq_rel_u64(&third[index >> 12], ~(1ull << (index >> 6 & 63)));
    index += here;
    count -= here;
  }
}

#endif /* MAM_DETAIL_HEAP_MAPS_H */
