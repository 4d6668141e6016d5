/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/heap_core.h - the device heap's algorithm, for a GPU and for host threads: ScatterAlloc's structure (superblocks,
 * pages that are split into equal chunks at first use, a usage word with chunk size and bit-field), with a protocol in
 * which each step is one atomic operation on one word.  ARCHITECTURE.md, "The device heap", has the argument.
 *
 * A superblock is divided in pages of 4 KiB.  A span is a run of 1 to 64 pages that is split into up to 256 chunks of
 * one size class.  32 chunks have a usage word, which says everything about them:
 *
 *   bits  0..31  one for each chunk: used, or set aside for a slot
 *   bits 32..39  how many chunks the word has
 *   bits 40..47  how many words the span has
 *   bits 48..55  how many pages the span has
 *   bits 56..63  size class + 1; 0: no span begins here (then the whole word is 0)
 *
 * A span's words are those of its first page, and the words of all other pages are 0.  So a word's place says where its
 * span begins, and whoever changes a word by compare-and-swap has compared the size class with it.
 *
 * A page's entry says how far back its span begins.  It is written before the span's words and read only where a word
 * confirms it; it is not cleared.
 *
 * A slot owns a span and hands its chunks out by number (a run of tickets): one addition, no search.  Chunks without a
 * ticket yet count as used, so the span stays while it is in a slot.  Each size class has slots for each
 * multiprocessor.
 *
 * Maps say where to look.  In all of them a 0 bit is worth a look, and a bit of the level above is 1 if all 64 below it
 * are.  The page map has a bit for each page and is the truth about who owns it; a class map has a bit for each eight
 * pages and is a hint: 0 where a span of the class may have a free chunk.
 */
#ifndef MAM_HEAP_CORE_H
#define MAM_HEAP_CORE_H

#include <mam/atomics.h>
#include <mam/heap_types.h>

enum {
  MAM_PAGE_SHIFT = 12,
  MAM_PAGE_BYTES = 1 << MAM_PAGE_SHIFT,
  MAM_PAGE_WORDS = 8,         /* usage words of a page: 32 chunks of 16 bytes each */
  MAM_SPAN_PAGES = 64,        /* at most: a word of the page map */
  MAM_HEAP_CLASSES = 40,      /* 16 to 128 by 16, then four for each power of two */
  MAM_CHUNK_BYTES = 32 << 10, /* at most; larger requests get whole pages */
  MAM_CLASS_RUN = 255,        /* in a usage word: a request of whole pages, their number in the low 48 bits */
  MAM_ENTRY_RUN = 63,         /* the same in an entry */
  MAM_ENTRY_CLASS_BITS = 6,
  MAM_TICKET_BITS = 24,
  MAM_BLOCK_PAGES = 8, /* of a class map's bit */
  MAM_MAP_LEVELS = 3,
  MAM_WAIT_ROUNDS = 100, /* for another thread's refill, before going another way */
  MAM_RETRIES = 64       /* of a compare-and-swap, before looking elsewhere */
};
/* How a heap is tuned, measured on an H200: the chunks of a span as base-2 logarithms, from the least shift in the
 * lowest four bits up; from how many MiB on a heap is roomy; what a slot of each of the common classes holds together;
 * and into how many slots the warps of a multiprocessor are divided at most, as a base-2 logarithm. */
#ifndef MAM_CHUNKS
#define MAM_CHUNKS 0x012345678ull
#define MAM_ROOMY_CHUNKS 0x345555888ull
#define MAM_ROOMY_MIB 256
#define MAM_SLOT_BYTES (352 << 10)
#define MAM_ROOMY_SLOT_BYTES (1 << 20)
#define MAM_WARP_BITS 3
#endif

#define MAM_NO_PAGE 0xffffffffu
#define MAM_FULL_WORD 0xffffffffffffffffull

/* The parts of a superblock.  Constant while kernels can see it, but for what the pointers lead to. */
struct mam_superblock {
  mam_u64 base; /* of the first page */
  mam_u64 *words;
  mam_u64 *pages;   /* the page map */
  mam_u64 *classes; /* the class maps, one after another */
  mam_u16 *entries;
  mam_u32 page_count, map_words, class_words, class_stride; /* words of a map's lowest level; of all levels of one */
  mam_u32 shortage;                                         /* atomic: see mam_shortage_of */
  mam_u32 unused;
};

struct mam_heap_control {
  mam_heap heap;
  mam_u32 superblock_count; /* atomic: published after the superblock */
  mam_u32 active;           /* atomic, a hint: the superblock to try first */
  mam_u32 run_cursor;       /* atomic, a hint: where to look for long runs */
  mam_u32 home_count;
  mam_u32 *cursors;     /* atomic, hints: a page for each home */
  mam_u64 refused_free; /* atomic counts */
  mam_u64 failures;
  mam_u32 drained[MAM_HEAP_CLASSES]; /* atomic, hints: see mam_steal */
  struct mam_superblock superblocks[MAM_HEAP_SUPERBLOCKS];
};

/* Chunks that were claimed: of chunk_bytes each, at address where the bits of mask are 1, counted from 0. */
struct mam_claim {
  mam_u64 address;
  mam_u32 mask, chunk_bytes;
};

/* ---- Size classes ----
 *
 * A class is a shift and a multiple: chunks of (multiple << shift) * 16 bytes, where the multiple is 1 to 8 at shift 0
 * and 5 to 8 above. */

MAM_INLINE mam_u32 mam_class_shift_of(mam_u32 sixteenths_less_1) {
  mam_u32 zeros = mam_leading_zeros_u32(sixteenths_less_1);
  return zeros < 29 ? 29 - zeros : 0;
}
MAM_INLINE mam_u32 mam_class_shift(mam_u32 size_class) { return size_class < 8 ? 0 : (size_class >> 2) - 1; }
MAM_INLINE mam_u32 mam_class_multiple(mam_u32 size_class, mam_u32 shift) { return size_class - 4 * shift + 1; }
MAM_INLINE mam_u32 mam_class_of(mam_u32 bytes) {
  mam_u32 sixteenths_less_1 = (bytes - 1) >> 4, shift = mam_class_shift_of(sixteenths_less_1);
  return 4 * shift + (sixteenths_less_1 >> shift);
}
MAM_INLINE mam_u32 mam_class_bytes(mam_u32 size_class) {
  mam_u32 shift = mam_class_shift(size_class);
  return mam_class_multiple(size_class, shift) << (shift + 4);
}
/* Chunks of a whole span, and its pages. */
MAM_INLINE mam_u32 mam_span_chunks_log2(mam_u64 chunks, mam_u32 shift) { return (mam_u32)(chunks >> (4 * shift)) & 15; }
MAM_INLINE mam_u32 mam_span_pages(mam_u64 chunks, mam_u32 size_class) {
  mam_u32 shift = mam_class_shift(size_class);
  return mam_class_multiple(size_class, shift) << (mam_span_chunks_log2(chunks, shift) + shift + 4 - MAM_PAGE_SHIFT);
}
/* The chunk of a span in which an offset of so many times 16 bytes lies: a division by 1 to 8, exact below 4096. */
MAM_INLINE mam_u32 mam_chunk_index(mam_u32 sixteenths, mam_u32 shift, mam_u32 multiple) {
  const mam_u64 low = 0x20002aab40008000ull, high = 0x1000124a1556199aull; /* 2^15 / multiple, rounded up */
  mam_u32 inverse = (mam_u32)((multiple <= 4 ? low : high) >> (((multiple - 1) & 3) * 16)) & 0xffff;
  return ((sixteenths >> shift) * inverse) >> 15;
}

/* ---- Usage words ---- */

MAM_INLINE mam_u64 mam_word_of(mam_u32 size_class, mam_u32 pages, mam_u32 words, mam_u32 chunks) {
  return (mam_u64)(size_class + 1) << 56 | (mam_u64)pages << 48 | (mam_u64)words << 40 | (mam_u64)chunks << 32;
}
MAM_INLINE mam_u32 mam_word_class(mam_u64 word) { return (mam_u32)(word >> 56) - 1; }
MAM_INLINE mam_u32 mam_word_span_pages(mam_u64 word) { return (mam_u32)(word >> 48) & 255; }
MAM_INLINE mam_u32 mam_word_span_words(mam_u64 word) { return (mam_u32)(word >> 40) & 255; }
MAM_INLINE mam_u32 mam_word_chunks(mam_u64 word) { return (mam_u32)(word >> 32) & 255; }
MAM_INLINE mam_u32 mam_word_full(mam_u64 word) { return 0xffffffffu >> (32 - mam_word_chunks(word)); }

/* ---- Maps ---- */

MAM_INLINE mam_u64 mam_run_bits(mam_u32 count, mam_u32 from) { return (MAM_FULL_WORD >> (64 - count)) << from; }

/* The word of the lowest level at index was seen to lose its last 1: says so above. */
MAM_OUTLINE void mam_map_opened(mam_u64 *level, mam_u32 count, mam_u32 index) {
  for (int above = 1; above < MAM_MAP_LEVELS; above++) {
    level += count;
    /* acq_rel: after the change below, which a thread that finds this bit 0 has to see. */
    if (mam_and_acq_rel_u64(&level[index >> 6], ~(1ull << (index & 63))) != MAM_FULL_WORD)
      return;
    index >>= 6;
    count = (count + 63) >> 6;
  }
}

/* The word of the lowest level at index was seen to be all 1: says so above.  It may have changed meanwhile, and who
 * changed it found nothing above to correct; so it is looked at again after. */
MAM_OUTLINE void mam_map_filled(mam_u64 *level, mam_u32 count, mam_u32 index) {
  for (int above = 1; above < MAM_MAP_LEVELS; above++) {
    mam_u64 *upper = level + count, bit = 1ull << (index & 63);
    /* acq_rel: ordered with mam_map_opened's on the same word.  If that came first, the look below sees its cause. */
    mam_u64 old = mam_or_acq_rel_u64(&upper[index >> 6], bit);
    if (mam_load_relaxed_u64(&level[index]) != MAM_FULL_WORD) {
      if (mam_and_acq_rel_u64(&upper[index >> 6], ~bit) == MAM_FULL_WORD && above + 1 < MAM_MAP_LEVELS)
        mam_map_opened(upper, (count + 63) >> 6, index >> 6);
      return;
    }
    if ((old | bit) != MAM_FULL_WORD)
      return;
    level = upper;
    index >>= 6;
    count = (count + 63) >> 6;
  }
}

/* The first word of the lowest level from index on that may have a 0; count if there is none. */
MAM_INLINE mam_u32 mam_map_next(const mam_u64 *level, mam_u32 count, mam_u32 index) {
  const mam_u64 *second = level + count, *third = second + ((count + 63) >> 6);
  while (index < count) {
    mam_u64 open = ~mam_load_relaxed_u64(&second[index >> 6]) & (MAM_FULL_WORD << (index & 63));
    if (open != 0)
      return (index & ~63u) + mam_lowest_u64(open);
    mam_u32 group = (index >> 6) + 1;
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

/* Words of all levels of a map. */
MAM_INLINE mam_u32 mam_map_words(mam_u32 count) {
  mam_u32 second = (count + 63) >> 6;
  return count + second + ((second + 63) >> 6);
}

/* ---- Shortage ----
 *
 * What a superblock is known not to have, so that in a full heap not everybody searches: a number (23 bits, raised by
 * each change), a bit that says that somebody searches, and a length of runs, 0 if nothing is known.  Who searches says
 * so before and confirms it after, if nothing changed: pages that come back in between undo it. */

enum { MAM_SHORT_PAGES = 255, MAM_SHORT_SEARCHING = 256, MAM_SHORT_NUMBER = 512 };

MAM_INLINE mam_u32 mam_shortage_next(mam_u32 shortage, mam_u32 low) {
  return (shortage & ~(mam_u32)(MAM_SHORT_NUMBER - 1)) + MAM_SHORT_NUMBER + low;
}
/* Whether there is known to be no run of so many pages. */
MAM_INLINE int mam_shortage_covers(mam_u32 shortage, mam_u32 pages) {
  return (shortage & MAM_SHORT_SEARCHING) == 0 && (shortage & MAM_SHORT_PAGES) != 0 &&
         pages >= (shortage & MAM_SHORT_PAGES);
}

/* ---- Pages ---- */

/* Pages have come back: what was known to be missing may be there. */
MAM_OUTLINE void mam_shortage_end(mam_u32 *shortage) {
  mam_u32 known = mam_load_relaxed_u32(shortage);
  for (int i = 0; i < MAM_RETRIES && (known & (MAM_SHORT_NUMBER - 1)) != 0; i++) {
    mam_u32 seen = mam_cas_acq_rel_u32(shortage, known, mam_shortage_next(known, 0));
    if (seen == known)
      return;
    known = seen;
  }
}

/* Gives bits of a word of the page map back that the caller owns. */
MAM_INLINE void mam_pages_clear(struct mam_superblock *superblock, mam_u32 index, mam_u64 bits) {
  /* acq_rel: what the pages' last users did comes before what their next ones do. */
  if (mam_and_acq_rel_u64(&superblock->pages[index], ~bits) == MAM_FULL_WORD)
    mam_map_opened(superblock->pages, superblock->map_words, index);
  if ((mam_load_relaxed_u32(&superblock->shortage) & (MAM_SHORT_NUMBER - 1)) != 0)
    mam_shortage_end(&superblock->shortage);
}

MAM_OUTLINE void mam_pages_release(struct mam_superblock *superblock, mam_u32 page, mam_u32 count) {
  while (count != 0) {
    mam_u32 from = page & 63, here = 64 - from < count ? 64 - from : count;
    mam_pages_clear(superblock, page >> 6, mam_run_bits(here, from));
    page += here;
    count -= here;
  }
}

/* Takes bits of a word of the page map if all of them are free. */
MAM_INLINE int mam_pages_take_bits(struct mam_superblock *superblock, mam_u32 index, mam_u64 bits) {
  mam_u64 word = mam_load_relaxed_u64(&superblock->pages[index]);
  for (int i = 0; i < MAM_RETRIES && (word & bits) == 0; i++) {
    /* acq_rel: pairs with mam_pages_clear. */
    mam_u64 seen = mam_cas_acq_rel_u64(&superblock->pages[index], word, word | bits);
    if (seen == word) {
      if ((word | bits) == MAM_FULL_WORD)
        mam_map_filled(superblock->pages, superblock->map_words, index);
      return 1;
    }
    word = seen;
  }
  return 0;
}

/* The same with an atomic or, which needs no look before: for places where mostly nobody has been. */
MAM_INLINE int mam_pages_try_bits(struct mam_superblock *superblock, mam_u32 index, mam_u64 bits) {
  mam_u64 old = mam_or_acq_rel_u64(&superblock->pages[index], bits); /* acq_rel: pairs with mam_pages_clear */
  if ((old & bits) != 0) {
    if ((bits & ~old) != 0)
      mam_pages_clear(superblock, index, bits & ~old);
    return 0;
  }
  if ((old | bits) == MAM_FULL_WORD)
    mam_map_filled(superblock->pages, superblock->map_words, index);
  return 1;
}

/* The lowest place in the word where count bits are 0 in a row; 64 if there is none. */
MAM_INLINE mam_u32 mam_run_find(mam_u64 word, mam_u32 count) {
  mam_u64 starts = ~word;
  for (mam_u32 have = 1; have < count;) {
    mam_u32 step = have < count - have ? have : count - have;
    starts &= starts >> step;
    have += step;
  }
  return starts == 0 ? 64 : mam_lowest_u64(starts);
}

/* Takes a run of up to 64 pages that lies in one word of the page map, in the first word that has one from first on and
 * before last. */
MAM_INLINE mam_u32 mam_run_take_short(struct mam_superblock *superblock, mam_u32 count, mam_u32 first, mam_u32 last) {
  for (mam_u32 index = first;; index++) {
    index = mam_map_next(superblock->pages, superblock->map_words, index);
    if (index >= last)
      return MAM_NO_PAGE;
    for (int i = 0; i < MAM_RETRIES; i++) {
      mam_u32 from = mam_run_find(mam_load_relaxed_u64(&superblock->pages[index]), count);
      if (from == 64)
        break;
      if (mam_pages_take_bits(superblock, index, mam_run_bits(count, from)))
        return (index << 6) + from;
    }
  }
}

/* Takes as much of a run from page on as is free, up to count pages; returns how much. */
MAM_INLINE mam_u32 mam_run_take_at(struct mam_superblock *superblock, mam_u32 page, mam_u32 count) {
  mam_u32 got = 0;
  while (got < count) {
    mam_u32 from = (page + got) & 63, here = 64 - from < count - got ? 64 - from : count - got;
    if (!mam_pages_take_bits(superblock, (page + got) >> 6, mam_run_bits(here, from)))
      break;
    got += here;
  }
  return got;
}

/* Takes a run of any length, over the ends of words too. */
MAM_OUTLINE mam_u32 mam_run_take_long(struct mam_superblock *superblock, mam_u32 count, mam_u32 first, mam_u32 last) {
  mam_u32 start = first << 6; /* pages from here on may be free */
  for (mam_u32 index = first; index < last; index++) {
    mam_u32 begin = index << 6, end = begin + 64;
    mam_u64 word = mam_load_relaxed_u64(&superblock->pages[index]);
    if (start > begin)
      word |= mam_run_bits(start - begin, 0); /* tried already */
    if (word != 0) {
      mam_u32 from = mam_lowest_u64(word);
      if (start <= begin && begin + from >= start + count)
        end = begin + from;
      else if (count < 64 && (from = mam_run_find(word, count)) != 64)
        start = begin + from;
      else {
        start = end - mam_leading_zeros_u64(word);
        if (word == MAM_FULL_WORD) {
          index = mam_map_next(superblock->pages, superblock->map_words, index + 1) - 1;
          start = (index + 1) << 6;
        }
        continue;
      }
    }
    if (end < start + count)
      continue;
    mam_u32 got = mam_run_take_at(superblock, start, count);
    if (got == count)
      return start;
    mam_pages_release(superblock, start, got);
    start += got + 1;
    index = (start >> 6) - 1;
    if ((start & 63) == 0)
      continue;
  }
  return MAM_NO_PAGE;
}

/* A run of pages, from word index on, then from the beginning, then over the ends of words. */
MAM_OUTLINE mam_u32 mam_pages_search(struct mam_superblock *superblock, mam_u32 count, mam_u32 index) {
  mam_u32 known = mam_load_relaxed_u32(&superblock->shortage), mark = 0, page = MAM_NO_PAGE;
  if (count > superblock->page_count || mam_shortage_covers(known, count))
    return MAM_NO_PAGE;
  if ((known & MAM_SHORT_SEARCHING) == 0 && count <= MAM_SPAN_PAGES) {
    mark = mam_shortage_next(known, MAM_SHORT_SEARCHING | count);
    if (mam_cas_acq_rel_u32(&superblock->shortage, known, mark) != known)
      mark = 0;
  }
  if (index >= superblock->map_words)
    index = 0;
  if (count <= MAM_SPAN_PAGES) {
    page = mam_run_take_short(superblock, count, index, superblock->map_words);
    if (page == MAM_NO_PAGE)
      page = mam_run_take_short(superblock, count, 0, index);
  } else
    page = mam_run_take_long(superblock, count, index, superblock->map_words);
  if (page == MAM_NO_PAGE)
    page = mam_run_take_long(superblock, count, 0, superblock->map_words);
  if (mark != 0)
    (void)mam_cas_acq_rel_u32(&superblock->shortage, mark, mam_shortage_next(mark, page == MAM_NO_PAGE ? count : 0));
  return page;
}

/* Where pages were found. */
struct mam_place {
  mam_u32 superblock, page;
};

/* Takes a run of pages from any superblock.  Who shares a home looks near what it had before. */
MAM_OUTLINE struct mam_place mam_pages_claim(struct mam_heap_control *control, mam_u32 count, mam_u32 home) {
  struct mam_place place = {mam_load_relaxed_u32(&control->active), MAM_NO_PAGE};
  struct mam_superblock *superblock = &control->superblocks[place.superblock];
  mam_u32 known = mam_load_relaxed_u32(&superblock->shortage), index = 0;
  if (count <= MAM_SPAN_PAGES && !mam_shortage_covers(known, count)) {
    mam_u32 cursor = mam_add_relaxed_u32(&control->cursors[home], count);
    mam_u32 from = cursor & 63;
    index = cursor >> 6;
    if (from + count > 64 || index >= superblock->map_words) {
      index += from + count > 64 ? control->home_count : 0;
      if (index >= superblock->map_words)
        index = home % superblock->map_words;
      from = 0;
      mam_store_relaxed_u32(&control->cursors[home], (index << 6) + count);
    }
    if (mam_pages_try_bits(superblock, index, mam_run_bits(count, from))) {
      place.page = (index << 6) + from;
      return place;
    }
  } else if (count > MAM_SPAN_PAGES)
    index = mam_add_relaxed_u32(&control->run_cursor, (count + 63) >> 6) % superblock->map_words;
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count); /* pairs with who adds one */
  for (mam_u32 i = 0; i < superblocks; i++) {
    place.page = mam_pages_search(&control->superblocks[place.superblock], count, index);
    if (place.page != MAM_NO_PAGE) {
      if (i != 0)
        mam_store_relaxed_u32(&control->active, place.superblock);
      if (count <= MAM_SPAN_PAGES)
        mam_store_relaxed_u32(&control->cursors[home], place.page + count);
      return place;
    }
    place.superblock = place.superblock + 1 < superblocks ? place.superblock + 1 : 0;
  }
  return place;
}

/* ---- Spans ---- */

MAM_INLINE mam_u64 mam_page_address(const struct mam_superblock *superblock, mam_u32 page) {
  return superblock->base + ((mam_u64)page << MAM_PAGE_SHIFT);
}

/* Makes pages that the caller owns a span, all of whose chunks count as used.  Every lane writes its part. */
MAM_INLINE void mam_span_write(struct mam_superblock *superblock, mam_u32 page, mam_u32 size_class, mam_u32 pages,
                               mam_u32 chunks, struct mam_lanes lanes) {
  mam_u32 words = (chunks + 31) >> 5;
  for (mam_u32 i = lanes.rank; i < pages; i += lanes.count)
    mam_store_relaxed_u16(&superblock->entries[page + i], (mam_u16)((size_class + 1) | i << MAM_ENTRY_CLASS_BITS));
  for (mam_u32 i = lanes.rank; i < words; i += lanes.count) {
    mam_u32 here = chunks - 32 * i < 32 ? chunks - 32 * i : 32;
    mam_u64 word = mam_word_of(size_class, pages, words, here);
    mam_store_relaxed_u64(&superblock->words[page * MAM_PAGE_WORDS + i], word | mam_word_full(word));
  }
}

/* A chunk of the span that begins at page may be free: sets the hint.  The look before is what makes it cheap; it comes
 * after the change of the usage word, whose old value decided to come here. */
MAM_OUTLINE void mam_span_hint(struct mam_superblock *superblock, mam_u32 page, mam_u32 size_class) {
  mam_u32 block = page / MAM_BLOCK_PAGES;
  mam_u64 *map = superblock->classes + (mam_u64)size_class * superblock->class_stride;
  if ((mam_load_relaxed_u64(&map[block >> 6]) >> (block & 63) & 1) != 0 &&
      mam_and_acq_rel_u64(&map[block >> 6], ~(1ull << (block & 63))) == MAM_FULL_WORD)
    mam_map_opened(map, superblock->class_words, block >> 6);
}

/* Whether all words of a span are empty; header: its words' upper half but for the number of chunks. */
MAM_INLINE int mam_span_empty(const mam_u64 *words, mam_u64 header, mam_u32 count) {
  for (mam_u32 i = 0; i < count; i++)
    if ((mam_load_relaxed_u64(&words[i]) & ~(255ull << 32)) != header)
      return 0;
  return 1;
}

/* Ends a span if it is empty: each word goes from empty to 0 by compare-and-swap, so nobody can claim a chunk in it any
 * more.  If one does not, those before are put back; only the caller could change them meanwhile.  Somebody else may
 * have found the span not empty because of that, so then it is looked at again. */
MAM_OUTLINE int mam_span_end(struct mam_superblock *superblock, mam_u32 page, mam_u64 header) {
  mam_u64 *words = &superblock->words[page * MAM_PAGE_WORDS];
  mam_u32 count = mam_word_span_words(header);
  header &= ~(MAM_FULL_WORD >> 24);
  for (int i = 0; i < MAM_RETRIES && mam_span_empty(words, header, count); i++) {
    mam_u32 ended = 0;
    while (ended < count) {
      mam_u64 word = mam_load_relaxed_u64(&words[ended]);
      /* acq_rel: what the chunks' users did, all of whom changed this word, comes before the release of the pages. */
      if ((word & ~(255ull << 32)) != header || mam_cas_acq_rel_u64(&words[ended], word, 0) != word)
        break;
      ended++;
    }
    if (ended == count) {
      mam_pages_release(superblock, page, mam_word_span_pages(header));
      return 1;
    }
    while (ended-- != 0)
      (void)mam_exchange_release_u64(&words[ended], header | 32ull << 32);
  }
  return 0;
}

/* ---- Claiming chunks ---- */

/* The lowest count ones of bits, or all. */
MAM_INLINE mam_u32 mam_lowest_ones(mam_u32 bits, mam_u32 count) {
  mam_u32 rest = bits;
  if (mam_ones_u32(bits) <= count)
    return bits;
  while (count-- != 0)
    rest &= rest - 1;
  return bits ^ rest;
}

/* Up to count free chunks of one usage word. */
MAM_INLINE mam_u32 mam_word_claim(mam_u64 *place, mam_u32 size_class, mam_u32 count) {
  mam_u64 word = mam_load_relaxed_u64(place);
  for (int i = 0; i < MAM_RETRIES && mam_word_class(word) == size_class; i++) {
    mam_u32 bits = mam_lowest_ones(~(mam_u32)word & mam_word_full(word), count);
    if (bits == 0)
      return 0;
    /* acq_rel: pairs with the frees of these chunks. */
    mam_u64 seen = mam_cas_acq_rel_u64(place, word, word | bits);
    if (seen == word)
      return bits;
    word = seen;
  }
  return 0;
}

/* Chunks of a class from the spans that begin in a block. */
MAM_INLINE struct mam_claim mam_block_claim(struct mam_superblock *superblock, mam_u32 block, mam_u32 size_class,
                                            mam_u32 count) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  mam_u32 page = block * MAM_BLOCK_PAGES, end = page + MAM_BLOCK_PAGES;
  for (; page < end && page < superblock->page_count; page++) {
    mam_u64 *words = &superblock->words[page * MAM_PAGE_WORDS];
    mam_u64 first = 0;
    if (mam_load_relaxed_u16(&superblock->entries[page]) == size_class + 1)
      first = mam_load_relaxed_u64(words);
    if (first == 0 || mam_word_class(first) != size_class)
      continue;
    for (mam_u32 i = 0; i < mam_word_span_words(first); i++)
      if ((claim.mask = mam_word_claim(&words[i], size_class, count)) != 0) {
        claim.address = mam_page_address(superblock, page) + (mam_u64)(32 * i) * claim.chunk_bytes;
        return claim;
      }
  }
  return claim;
}

/* Chunks of a class from spans that were split before, where the class's map says so.  A block in which there are none
 * is struck from the map and then looked at once more: who freed a chunk meanwhile may have found the map in order. */
MAM_OUTLINE struct mam_claim mam_recycle(struct mam_superblock *superblock, mam_u32 size_class, mam_u32 count,
                                         mam_u32 home) {
  struct mam_claim claim = {0, 0, 0};
  mam_u64 *map = superblock->classes + (mam_u64)size_class * superblock->class_stride;
  mam_u32 words = superblock->class_words, start = home % words;
  for (int wrapped = 0; wrapped < 2; wrapped++) {
    mam_u32 last = wrapped ? start : words;
    for (mam_u32 index = wrapped ? 0 : start; (index = mam_map_next(map, words, index)) < last; index++) {
      mam_u64 open = ~mam_load_relaxed_u64(&map[index]);
      for (; open != 0; open &= open - 1) {
        mam_u32 bit = mam_lowest_u64(open), block = (index << 6) + bit;
        claim = mam_block_claim(superblock, block, size_class, count);
        if (claim.mask != 0)
          return claim;
        if ((mam_or_acq_rel_u64(&map[index], 1ull << bit) | 1ull << bit) == MAM_FULL_WORD)
          mam_map_filled(map, words, index);
        claim = mam_block_claim(superblock, block, size_class, count);
        if (claim.mask != 0) {
          mam_span_hint(superblock, block * MAM_BLOCK_PAGES, size_class);
          return claim;
        }
      }
    }
  }
  return claim;
}

/* ---- Slots ----
 *
 * A slot's word: the address of a span in pages, above the number of tickets handed out.  At the number of chunks the
 * span is used up; whoever gets past it from there or from below, exactly one, refills the slot.  In the place of an
 * address, 0 says that no span was there yet, MAM_SLOT_DRY that there were no pages for one. */

#define MAM_SLOT_DRY ((mam_u64)1 << MAM_TICKET_BITS)
#define MAM_SLOT_TICKETS (MAM_SLOT_DRY - 1)

MAM_INLINE mam_u64 mam_slot_address(mam_u64 slot) { return slot >> MAM_TICKET_BITS << MAM_PAGE_SHIFT; }
MAM_INLINE mam_u64 mam_slot_of(mam_u64 address, mam_u32 tickets) {
  return address << (MAM_TICKET_BITS - MAM_PAGE_SHIFT) | tickets;
}
MAM_INLINE int mam_slot_is_dry(mam_u64 slot) { return (slot & ~MAM_SLOT_TICKETS) == MAM_SLOT_DRY; }
MAM_INLINE mam_u64 *mam_slot_at(const mam_heap *heap, mam_u32 size_class, mam_u32 slot) {
  return &heap->slots[size_class * heap->slot_count + slot];
}
MAM_INLINE mam_u32 mam_slot_limit(const mam_heap *heap, mam_u32 size_class) {
  return 1u << mam_span_chunks_log2(heap->chunks, mam_class_shift(size_class));
}
/* The home of a slot's users. */
MAM_INLINE mam_u32 mam_slot_home(const mam_heap *heap, mam_u32 slot) { return slot >> heap->warp_bits; }

/* What became of a request for tickets. */
struct mam_tickets {
  mam_u64 address;
  mam_u32 mask; /* 0: none */
  int refill;   /* the caller has to refill the slot */
};

MAM_INLINE struct mam_tickets mam_slot_take(mam_u64 *slot, mam_u32 size_class, mam_u32 limit, mam_u32 count) {
  /* acquire: pairs with the refill's publication, and through it with the frees of what was there before. */
  mam_u64 old = mam_add_acquire_u64(slot, count);
  mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS);
  struct mam_tickets tickets = {0, 0, ticket <= limit && ticket + count > limit};
  if (ticket < limit) {
    tickets.address = mam_slot_address(old) + (mam_u64)ticket * mam_class_bytes(size_class);
    tickets.mask = 0xffffffffu >> (32 - (limit - ticket < count ? limit - ticket : count));
  }
  return tickets;
}

/* Waits for whoever refills the slot; tickets if there are, or the task of refilling it, or neither, after a bounded
 * time or when there is nothing to refill it with. */
MAM_OUTLINE struct mam_tickets mam_slot_wait(mam_u64 *slot, mam_u32 size_class, mam_u32 limit, mam_u32 count) {
  struct mam_tickets tickets = {0, 0, 0};
  for (int i = 0; i < MAM_WAIT_ROUNDS; i++) {
    mam_u64 now = mam_load_relaxed_u64(slot);
    if ((now & MAM_SLOT_TICKETS) <= limit) {
      tickets = mam_slot_take(slot, size_class, limit, count);
      if (tickets.mask != 0 || tickets.refill)
        return tickets;
    } else if (mam_slot_is_dry(now))
      return tickets;
    else if ((now & MAM_SLOT_TICKETS) > MAM_SLOT_TICKETS / 2) /* far from reaching the address, and kept so */
      (void)mam_cas_acq_rel_u64(slot, now, (now & ~MAM_SLOT_TICKETS) | (limit + 1));
    mam_pause();
  }
  return tickets;
}

/* The sum of what the superblocks are known not to have, if that is no span of so many pages; else 0. */
MAM_INLINE mam_u32 mam_shortage_sum(struct mam_heap_control *control, mam_u32 pages) {
  mam_u32 sum = 0, superblocks = mam_load_acquire_u32(&control->superblock_count);
  for (mam_u32 i = 0; i < superblocks; i++) {
    mam_u32 shortage = mam_load_relaxed_u32(&control->superblocks[i].shortage);
    if (!mam_shortage_covers(shortage, pages))
      return 0;
    sum += shortage;
  }
  return sum;
}

/* Tickets of any slot of the class.  That there are none is remembered until pages come back. */
MAM_OUTLINE struct mam_claim mam_steal(struct mam_heap_control *control, mam_u32 size_class, mam_u32 count) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  const mam_heap *heap = &control->heap;
  mam_u32 limit = mam_slot_limit(heap, size_class);
  mam_u32 sum = mam_shortage_sum(control, mam_span_pages(heap->chunks, size_class));
  if (sum != 0 && mam_load_relaxed_u32(&control->drained[size_class]) == sum)
    return claim;
  for (mam_u32 i = 0; i < heap->slot_count; i++) {
    mam_u64 *slot = mam_slot_at(heap, size_class, i);
    if ((mam_load_relaxed_u64(slot) & MAM_SLOT_TICKETS) >= limit)
      continue;
    struct mam_tickets tickets = mam_slot_take(slot, size_class, limit, count);
    if (tickets.refill) /* not now */
      (void)mam_exchange_release_u64(slot, limit);
    if (tickets.mask != 0) {
      claim.address = tickets.address;
      claim.mask = tickets.mask;
      return claim;
    }
  }
  if (sum != 0 && mam_shortage_sum(control, mam_span_pages(heap->chunks, size_class)) == sum)
    mam_store_relaxed_u32(&control->drained[size_class], sum);
  return claim;
}

/* Chunks from a new span of so many pages that no slot gets: what is not taken is free at once. */
MAM_OUTLINE struct mam_claim mam_span_open(struct mam_heap_control *control, mam_u32 size_class, mam_u32 pages,
                                           mam_u32 count, mam_u32 home) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  struct mam_place place = mam_pages_claim(control, pages, home);
  mam_u32 limit = mam_slot_limit(&control->heap, size_class);
  mam_u32 chunks = (pages << MAM_PAGE_SHIFT) / claim.chunk_bytes;
  chunks = chunks < limit ? chunks : limit;
  if (place.page == MAM_NO_PAGE)
    return claim;
  struct mam_superblock *superblock = &control->superblocks[place.superblock];
  mam_u64 *words = &superblock->words[place.page * MAM_PAGE_WORDS];
  count = count < chunks ? count : chunks;
  mam_span_write(superblock, place.page, size_class, pages, chunks, mam_lanes_of(1));
  claim.address = mam_page_address(superblock, place.page);
  claim.mask = 0xffffffffu >> (32 - count);
  for (mam_u32 i = 0; i < (chunks + 31) >> 5; i++) /* release: after the entries, which who frees such a chunk reads */
    (void)mam_and_release_u64(&words[i], ~(mam_u64)(i == 0 ? ~claim.mask : 0xffffffffu));
  if (count < chunks)
    mam_span_hint(superblock, place.page, size_class);
  return claim;
}

/* Chunks of a class when a slot cannot be refilled: of spans that were split before; a span of one's own; what slots
 * still hold; a part of a span; and at last larger chunks, up to twice as large (the paper's max_frag). */
MAM_OUTLINE struct mam_claim mam_claim_scarce(struct mam_heap_control *control, mam_u32 size_class, mam_u32 count,
                                              mam_u32 home) {
  struct mam_claim claim = {0, 0, 0};
  mam_u32 bytes = mam_class_bytes(size_class), least = (bytes + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
  for (mam_u32 other = size_class; other < MAM_HEAP_CLASSES && mam_class_bytes(other) <= 2 * bytes; other++) {
    mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
    mam_u32 pages = mam_span_pages(control->heap.chunks, other);
    for (mam_u32 i = 0; i < superblocks && claim.mask == 0; i++)
      claim = mam_recycle(&control->superblocks[i], other, count, home);
    if (claim.mask == 0 && other == size_class)
      claim = mam_span_open(control, size_class, pages, count, home);
    if (claim.mask == 0)
      claim = mam_steal(control, other, count);
    while (claim.mask == 0 && other == size_class && pages > least) {
      pages = pages / 2 > least ? pages / 2 : least;
      claim = mam_span_open(control, size_class, pages, count, home);
    }
    if (claim.mask != 0)
      return claim;
  }
  return claim;
}

/* A slot's refill, of which the caller has the task: all chunks of a new span, the first of them the caller's.  Every
 * lane takes part.  mask 0 if there are no pages. */
MAM_INLINE struct mam_claim mam_slot_refill(struct mam_heap_control *control, mam_u64 *slot, mam_u32 size_class,
                                            mam_u32 count, mam_u32 home, struct mam_lanes lanes) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  struct mam_place place = {0, MAM_NO_PAGE};
  mam_u32 limit = mam_slot_limit(&control->heap, size_class);
  mam_u32 pages = mam_span_pages(control->heap.chunks, size_class);
  if (lanes.rank == 0)
    place = mam_pages_claim(control, pages, home);
  place.page = mam_lanes_first_u32(lanes, place.page);
  if (place.page != MAM_NO_PAGE) {
    place.superblock = mam_lanes_first_u32(lanes, place.superblock);
    struct mam_superblock *superblock = &control->superblocks[place.superblock];
    mam_span_write(superblock, place.page, size_class, pages, limit, lanes);
    claim.address = mam_page_address(superblock, place.page);
    count = count < limit ? count : limit;
    claim.mask = 0xffffffffu >> (32 - count);
    mam_lanes_sync(lanes);
  }
  /* release: the words and entries of the span. */
  if (lanes.rank == 0 && slot != 0)
    (void)mam_exchange_release_u64(slot, place.page == MAM_NO_PAGE ? MAM_SLOT_DRY | limit
                                                                   : mam_slot_of(claim.address, count));
  return claim;
}

/* Chunks for count lanes of which none has a ticket; those that get none have to call again.  *refill: the caller has
 * the task of refilling the slot, on return for its next call.  slot 0: a whole span for the caller, no slot is asked.
 * mask 0: there is no room.  Every lane takes part. */
MAM_INLINE struct mam_claim mam_claim_chunks(struct mam_heap_control *control, mam_u64 *slot, mam_u32 size_class,
                                             mam_u32 count, int *refill, mam_u32 home, struct mam_lanes lanes) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  if (slot != 0 && !*refill) {
    struct mam_tickets tickets = {0, 0, 0};
    if (lanes.rank == 0)
      tickets = mam_slot_wait(slot, size_class, mam_slot_limit(&control->heap, size_class), count);
    claim.address = mam_lanes_first_u64(lanes, tickets.address);
    claim.mask = mam_lanes_first_u32(lanes, tickets.mask);
    *refill = (int)mam_lanes_first_u32(lanes, (mam_u32)tickets.refill);
    if (claim.mask != 0)
      return claim;
  }
  if (slot == 0 || *refill) {
    *refill = 0;
    claim = mam_slot_refill(control, slot, size_class, count, home, lanes);
    if (claim.mask != 0)
      return claim;
  }
  if (lanes.rank == 0)
    claim = mam_claim_scarce(control, size_class, count, home);
  claim.address = mam_lanes_first_u64(lanes, claim.address);
  claim.mask = mam_lanes_first_u32(lanes, claim.mask);
  claim.chunk_bytes = mam_lanes_first_u32(lanes, claim.chunk_bytes);
  return claim;
}

/* The chunk of a claim that is for the lane of that rank. */
MAM_INLINE mam_u64 mam_claim_chunk(struct mam_claim claim, mam_u32 rank) {
  mam_u32 mask = claim.mask;
  for (; rank != 0; rank--)
    mask &= mask - 1;
  return claim.address + (mam_u64)mam_lowest_u32(mask) * claim.chunk_bytes;
}

/* A request of whole pages: the address, 0 if there is no room. */
MAM_OUTLINE mam_u64 mam_run_malloc(struct mam_heap_control *control, mam_u64 bytes, mam_u32 home) {
  mam_u64 pages = (bytes + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
  if (pages == 0 || pages >= MAM_NO_PAGE)
    return 0;
  struct mam_place place = mam_pages_claim(control, (mam_u32)pages, home);
  if (place.page == MAM_NO_PAGE)
    return 0;
  struct mam_superblock *superblock = &control->superblocks[place.superblock];
  mam_store_relaxed_u16(&superblock->entries[place.page], MAM_ENTRY_RUN);
  mam_store_relaxed_u64(&superblock->words[place.page * MAM_PAGE_WORDS], (mam_u64)MAM_CLASS_RUN << 56 | pages);
  return mam_page_address(superblock, place.page);
}

/* Whether bytes could ever be served by the heap as large as it is. */
MAM_OUTLINE int mam_heap_could(struct mam_heap_control *control, mam_u64 bytes) {
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  for (mam_u32 i = 0; i < superblocks; i++)
    if (bytes <= (mam_u64)control->superblocks[i].page_count << MAM_PAGE_SHIFT)
      return 1;
  return 0;
}

/* ---- Frees ---- */

/* The superblock in which an address lies; superblock_count if in none. */
MAM_OUTLINE mam_u32 mam_superblock_of(struct mam_heap_control *control, mam_u64 address) {
  mam_u32 i = 0, superblocks = mam_load_acquire_u32(&control->superblock_count);
  while (i < superblocks &&
         (address < control->superblocks[i].base ||
          (address - control->superblocks[i].base) >> MAM_PAGE_SHIFT >= control->superblocks[i].page_count))
    i++;
  return i;
}

/* Where the usage bit of a chunk is. */
struct mam_bit {
  mam_u32 word, bit;
};

/* That of the chunk in which offset (from the first page) lies, given the entry of its page, which is a span's. */
MAM_INLINE struct mam_bit mam_bit_of(mam_u64 offset, mam_u32 entry) {
  mam_u32 size_class = (entry & 63) - 1, shift = mam_class_shift(size_class);
  mam_u32 page = (mam_u32)(offset >> MAM_PAGE_SHIFT), back = entry >> MAM_ENTRY_CLASS_BITS;
  mam_u32 sixteenths = back << (MAM_PAGE_SHIFT - 4) | ((mam_u32)offset & (MAM_PAGE_BYTES - 1)) >> 4;
  mam_u32 chunk = mam_chunk_index(sixteenths, shift, mam_class_multiple(size_class, shift));
  struct mam_bit bit = {(page - back) * MAM_PAGE_WORDS + (chunk >> 5), chunk & 31};
  return bit;
}

/* What comes after bits of a usage word were cleared: old was there before.  A word that became empty may be the last
 * of its span; one that was full is worth a look from now on. */
MAM_OUTLINE void mam_word_changed(struct mam_superblock *superblock, mam_u32 word, mam_u64 old, mam_u32 left) {
  mam_u32 page = word / MAM_PAGE_WORDS;
  if (left == 0 && mam_span_end(superblock, page, old))
    return;
  if ((mam_u32)old == mam_word_full(old))
    mam_span_hint(superblock, page, mam_word_class(old));
}

/* Frees chunks of one usage word; returns how many of them were none. */
MAM_INLINE mam_u32 mam_word_free(struct mam_superblock *superblock, mam_u32 word, mam_u32 bits) {
  /* release: what the chunks' users did comes before what their next ones do.  Pairs with mam_word_claim. */
  mam_u64 old = mam_and_release_u64(&superblock->words[word], ~(mam_u64)bits);
  mam_u32 left = (mam_u32)old & ~bits, freed = (mam_u32)old & bits;
  if (freed != 0 && (left == 0 || (mam_u32)old == mam_word_full(old)))
    mam_word_changed(superblock, word, old, left);
  return mam_ones_u32(bits ^ freed);
}

/* Frees a request of whole pages; 0 if none begins at page. */
MAM_OUTLINE int mam_run_free(struct mam_superblock *superblock, mam_u32 page) {
  mam_u64 *place = &superblock->words[page * MAM_PAGE_WORDS], word = mam_load_relaxed_u64(place);
  /* acq_rel: of two frees one ends it; what its user did comes before. */
  if (word >> 56 != MAM_CLASS_RUN || mam_cas_acq_rel_u64(place, word, 0) != word)
    return 0;
  mam_pages_release(superblock, page, (mam_u32)word);
  return 1;
}

/* How many bytes the live block at address has; 0 if none begins there. */
MAM_OUTLINE mam_u64 mam_block_bytes(struct mam_heap_control *control, mam_u64 address) {
  mam_u32 which = mam_superblock_of(control, address);
  if (which == mam_load_acquire_u32(&control->superblock_count))
    return 0;
  struct mam_superblock *superblock = &control->superblocks[which];
  mam_u64 offset = address - superblock->base;
  mam_u32 page = (mam_u32)(offset >> MAM_PAGE_SHIFT), entry = mam_load_relaxed_u16(&superblock->entries[page]);
  if (entry == MAM_ENTRY_RUN) {
    mam_u64 word = mam_load_relaxed_u64(&superblock->words[page * MAM_PAGE_WORDS]);
    int is_run = word >> 56 == MAM_CLASS_RUN && (offset & (MAM_PAGE_BYTES - 1)) == 0;
    return is_run ? (word & (MAM_FULL_WORD >> 16)) << MAM_PAGE_SHIFT : 0;
  }
  mam_u32 size_class = (entry & 63) - 1, back = entry >> MAM_ENTRY_CLASS_BITS;
  if (size_class >= MAM_HEAP_CLASSES || back > page)
    return 0;
  struct mam_bit bit = mam_bit_of(offset, entry);
  mam_u64 word = mam_load_relaxed_u64(&superblock->words[bit.word]);
  mam_u64 chunk = (mam_u64)((bit.word & (MAM_PAGE_WORDS - 1)) * 32 + bit.bit) * mam_class_bytes(size_class);
  if (word >> 56 != size_class + 1 || (word >> bit.bit & 1) == 0 || back >= mam_word_span_pages(word) ||
      offset != ((mam_u64)(page - back) << MAM_PAGE_SHIFT) + chunk)
    return 0;
  return mam_class_bytes(size_class);
}

/* Frees the block at address, with all checks that there are; 0 if none begins there. */
MAM_OUTLINE int mam_block_free(struct mam_heap_control *control, mam_u64 address) {
  int freed = 0;
  if (mam_block_bytes(control, address) != 0) {
    struct mam_superblock *superblock = &control->superblocks[mam_superblock_of(control, address)];
    mam_u64 offset = address - superblock->base;
    mam_u32 page = (mam_u32)(offset >> MAM_PAGE_SHIFT), entry = mam_load_relaxed_u16(&superblock->entries[page]);
    if (entry == MAM_ENTRY_RUN)
      freed = mam_run_free(superblock, page);
    else {
      struct mam_bit bit = mam_bit_of(offset, entry);
      freed = mam_word_free(superblock, bit.word, 1u << bit.bit) == 0;
    }
  }
  if (!freed)
    (void)mam_add_relaxed_u64(&control->refused_free, 1);
  return freed;
}

/* ---- Beginning ---- */

/* Bytes of metadata in front of so many pages. */
MAM_INLINE mam_u64 mam_superblock_metadata_bytes(mam_u32 pages) {
  mam_u32 map_words = (pages + 63) / 64, class_words = (pages + 64 * MAM_BLOCK_PAGES - 1) / (64 * MAM_BLOCK_PAGES);
  mam_u64 words = (mam_u64)pages * MAM_PAGE_WORDS + mam_map_words(map_words) +
                  (mam_u64)MAM_HEAP_CLASSES * mam_map_words(class_words);
  return 8 * words + 2 * (mam_u64)pages;
}

/* Lays a superblock out in bytes of memory at address, a multiple of 8: metadata, then pages to its end.  Touches no
 * memory.  0 if it is too small for a page. */
MAM_INLINE int mam_superblock_place(struct mam_superblock *superblock, mam_u64 address, mam_u64 bytes) {
  mam_u64 end = (address + bytes) & ~(mam_u64)(MAM_PAGE_BYTES - 1);
  mam_u64 most = end > address ? (end - address) / (MAM_PAGE_BYTES + 66) : 0;
  mam_u32 pages = most < 1u << 31 ? (mam_u32)most : 1u << 31;
  while (pages != 0 && end - ((mam_u64)pages << MAM_PAGE_SHIFT) < address + mam_superblock_metadata_bytes(pages))
    pages--;
  superblock->page_count = pages;
  superblock->map_words = (pages + 63) / 64;
  superblock->class_words = (pages + 64 * MAM_BLOCK_PAGES - 1) / (64 * MAM_BLOCK_PAGES);
  superblock->class_stride = mam_map_words(superblock->class_words);
  superblock->base = end - ((mam_u64)pages << MAM_PAGE_SHIFT);
  superblock->words = (mam_u64 *)address;
  superblock->pages = superblock->words + (mam_u64)pages * MAM_PAGE_WORDS;
  superblock->classes = superblock->pages + mam_map_words(superblock->map_words);
  superblock->entries = (mam_u16 *)(superblock->classes + MAM_HEAP_CLASSES * (mam_u64)superblock->class_stride);
  superblock->shortage = superblock->unused = 0;
  return pages != 0;
}

/* The word at index of a map's levels whose lowest has so many bits, when all of them are 0 but those past the end. */
MAM_INLINE mam_u64 mam_map_open_word(mam_u32 bits, mam_u32 index) {
  for (int level = 0; level < MAM_MAP_LEVELS; level++) {
    mam_u32 words = (bits + 63) / 64;
    if (index < words)
      return index + 1 < words || bits % 64 == 0 ? 0 : MAM_FULL_WORD << bits % 64;
    index -= words;
    bits = words;
  }
  return MAM_FULL_WORD;
}

/* Writes an empty superblock's metadata: of count threads each its part. */
MAM_INLINE void mam_superblock_clear(const struct mam_superblock *superblock, mam_u64 rank, mam_u64 count) {
  mam_u64 words = (mam_u64)superblock->page_count * MAM_PAGE_WORDS, map = mam_map_words(superblock->map_words);
  mam_u64 classes = (mam_u64)MAM_HEAP_CLASSES * superblock->class_stride;
  for (mam_u64 i = rank; i < words; i += count)
    superblock->words[i] = 0;
  for (mam_u64 i = rank; i < map; i += count)
    superblock->pages[i] = mam_map_open_word(superblock->page_count, (mam_u32)i);
  for (mam_u64 i = rank; i < classes; i += count)
    superblock->classes[i] = MAM_FULL_WORD;
  for (mam_u64 i = rank; i < superblock->page_count; i += count)
    superblock->entries[i] = 0;
}

/* The same for the slots and homes. */
MAM_INLINE void mam_slots_clear(const struct mam_heap_control *control, mam_u64 rank, mam_u64 count) {
  const mam_heap *heap = &control->heap;
  for (mam_u64 i = rank; i < (mam_u64)heap->slot_count * MAM_HEAP_CLASSES; i += count)
    heap->slots[i] = mam_slot_limit(heap, (mam_u32)(i / heap->slot_count));
  for (mam_u64 i = rank; i < control->home_count; i += count)
    control->cursors[i] = (mam_u32)i % control->superblocks[0].map_words * 64;
}

/* Chooses for a heap of bytes on a GPU of so many multiprocessors how large spans are and how many slots there are, so
 * that what slots hold is a small share of the heap even with many size classes in use. */
MAM_INLINE void mam_heap_tune(struct mam_heap_control *control, mam_u64 bytes, mam_u32 multiprocessors) {
  mam_heap *heap = &control->heap;
  int roomy = bytes >= (mam_u64)MAM_ROOMY_MIB << 20;
  mam_u64 share = (bytes / 8) / (roomy ? MAM_ROOMY_SLOT_BYTES : MAM_SLOT_BYTES);
  heap->chunks = roomy ? MAM_ROOMY_CHUNKS : MAM_CHUNKS;
  heap->home_last = (mam_u16)(multiprocessors - 1);
  heap->warp_bits = heap->home_shift = 0;
  while (heap->warp_bits < MAM_WARP_BITS && share >= (mam_u64)multiprocessors << (heap->warp_bits + 1))
    heap->warp_bits++;
  while (share < multiprocessors >> heap->home_shift && multiprocessors >> heap->home_shift > 1)
    heap->home_shift++;
  control->home_count = ((multiprocessors - 1) >> heap->home_shift) + 1;
  heap->slot_count = control->home_count << heap->warp_bits;
}

#endif /* MAM_HEAP_CORE_H */
