/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_spans.h - spans: how they begin, how their chunks are freed, and how they end.
 *
 * The life of a span:
 *
 *   pages taken -> entries, owner -> usage words -> chunks used and freed -> all words 0 -> pages given back
 *                  (mam_span_write, mam_span_split)  (mam_chunks_free)       (mam_span_try_end)
 *
 * A free clears the chunks' bits in one usage word by one atomic operation (mam_chunks_free).  In a word that is
 * watched the free does what follows from that; the word's old value decides:
 *
 *   the word became empty   mam_span_end looks whether all words of the span are empty, and ends it if they are
 *   the word was full       the class map gets a hint: here is a free chunk
 *
 * A word that is not watched needs neither: its empty span stays for its slot (heap_refill.h).  mam_span_watch watches
 * a span from then on, and does once what its frees have left undone.
 *
 * A span ends in two steps.  Each usage word goes from empty to 0 by compare-and-swap, the first one first, so that of
 * several threads that try one goes on.  In a word that is 0 no chunk can be claimed.  If a word is not empty, the
 * thread puts the others back.  When all are 0, the pages are the thread's alone, and it gives them back.
 *
 * mam_word_changed calls almost nothing, so that a free costs a kernel few registers; what is left to do, seldom, it
 * returns as a word (MAM_LEFT_*), and mam_word_follow does it.
 */
#ifndef MAM_DETAIL_HEAP_SPANS_H
#define MAM_DETAIL_HEAP_SPANS_H

#include <mam/detail/heap_pages.h>

/* ---- Beginning ---- */

/* Makes a span of pages that the caller owns.  All of its chunks count as used.  flags: MAM_WORD_WATCHED or 0.  Each
 * lane writes a part. */
MAM_INLINE void mam_span_write(struct mam_area area, mam_u32 page, mam_u32 size_class, mam_u32 pages, mam_u32 chunks,
                               mam_u64 flags, mam_u32 owner, struct mam_lanes lanes) {
  mam_u32 words = (chunks + 31) >> 5;
  mam_u16 *entries = mam_area_entries(area) + page;
  if (lanes.rank == 0)
    mam_store_relaxed_u16(mam_page_owner(area.words, page), (mam_u16)owner);
  MAM_LOOP
  for (mam_u32 i = lanes.rank; i < pages; i += lanes.count)
    mam_store_relaxed_u16(&entries[i], mam_entry_of(size_class, i));
  MAM_LOOP
  for (mam_u32 i = lanes.rank; i < words; i += lanes.count) {
    mam_u32 here = chunks - 32 * i < 32 ? chunks - 32 * i : 32;
    mam_u64 word = mam_word_of(size_class, pages, words, here) | flags;
    mam_store_relaxed_u64(&area.words[page * MAM_PAGE_WORDS + i], word | mam_word_full(word));
  }
}

/* mam_span_write for a thread that acts alone. */
MAM_OUTLINE void mam_span_write_alone(MAM_TAG(2) const struct mam_area *area, mam_u32 page, mam_u32 size_class,
                                      mam_u32 chunks, mam_u32 watched, mam_u32 owner) {
  mam_span_write(*area, page, size_class, mam_class_bytes(size_class) * chunks >> MAM_PAGE_SHIFT, chunks,
                 watched != 0 ? MAM_WORD_WATCHED : 0, owner, mam_lanes_alone());
}

/* Sets the hint that the span that begins at page may have a free chunk.  A look tells whether the hint is set already,
 * which makes most calls cheap.  It comes after the change of the usage word whose old value brought the caller here.
 */
MAM_OUTLINE void mam_span_hint(struct mam_area area, mam_u32 page, mam_u32 size_class) {
  mam_u32 block = page / MAM_BLOCK_PAGES;
  mam_u64 *map = mam_area_class(area, size_class);
  if ((mam_load_relaxed_u64(&map[block >> 6]) >> (block & 63) & 1) == 0)
    return;
  if (mam_and_acq_rel_u64(&map[block >> 6], ~(1ull << (block & 63))) == MAM_FULL_WORD)
    MAM_OUT_OF_SIGHT(mam_map_opened)(map, mam_area_class_words(area), block >> 6);
  if (mam_chunk_matters(area))
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
}

/* Makes pages a span of at most so many chunks, that no slot gets.  The first count chunks are the caller's, the others
 * are free at once. */
MAM_OUTLINE struct mam_claim mam_span_split(struct mam_found found, mam_u32 size_class, mam_u32 pages, mam_u32 chunks,
                                            mam_u32 count) {
  mam_u32 fit = (pages << MAM_PAGE_SHIFT) / mam_class_bytes(size_class), words, free;
  chunks = fit < chunks ? fit : chunks;
  free = count < chunks;
  words = (chunks + 31) >> 5;
  count = 0xffffffffu >> (32 - (free ? count : chunks));
  mam_store_relaxed_u16(mam_page_owner(found.area->words, found.page), MAM_OWNER_NONE);
  MAM_LOOP
  for (mam_u32 i = 0; i < pages; i++)
    mam_store_relaxed_u16(&mam_area_entries(*found.area)[found.page + i], mam_entry_of(size_class, i));
  mam_fence(); /* release: the entries, which a thread reads when it frees such a chunk */
  MAM_LOOP
  for (mam_u32 i = 0; i < words; i++) {
    MAM_FORGET(size_class);
    mam_u64 word = mam_word_of(size_class, pages, words, chunks - 32 * i < 32 ? chunks - 32 * i : 32);
    (void)mam_exchange_after_fence_u64(&found.area->words[found.page * MAM_PAGE_WORDS + i],
                                       word | MAM_WORD_WATCHED | (i == 0 ? count : 0));
  }
  if (free)
    MAM_OUT_OF_SIGHT(mam_span_hint)(*found.area, found.page, size_class);
  struct mam_claim claim = {mam_area_address(*found.area, found.page), count, mam_class_bytes(size_class)};
  return claim;
}

/* ---- Ending ---- */

/* The bits in which the upper halves of a span's empty words differ: the number of chunks, and, while the span is being
 * watched, MAM_WORD_WATCHED. */
#define MAM_WORD_CHUNKS (255ull << 32)

/* Whether all words of a span are empty.  header: their upper half without MAM_WORD_CHUNKS.  *last: the last word,
 * which alone may have fewer than 32 chunks. */
MAM_INLINE int mam_span_empty(const mam_u64 *words, mam_u64 header, mam_u32 count, mam_u64 *last) {
  mam_u64 differs = 0, seen[4];
  MAM_LOOP
  for (mam_u32 i = 0; i < count && differs == 0; i += 4) {
    MAM_UNROLL /* the loads are under way together */
        for (mam_u32 j = 0; j < 4; j++) seen[j] = mam_load_relaxed_if_u64(i + j < count, &words[i + j], header);
    MAM_UNROLL
    for (mam_u32 j = 0; j < 4; j++) {
      differs |= (seen[j] ^ header) & ~MAM_WORD_CHUNKS;
      *last = i + j < count ? seen[j] : *last;
    }
  }
  return differs == 0;
}

/* Ends a span that was seen to be empty.  Each word goes from empty to 0 by compare-and-swap, the first word before all
 * others.  If a word is not empty, those that became 0 are put back; no other thread can change them meanwhile.
 * Returns whether the span has ended.  *again: the span is to be looked at again, since another thread may have seen it
 * not empty because of these words. */
MAM_INLINE int mam_span_try_end(mam_u64 *words, mam_u64 header, mam_u32 count, mam_u64 last, mam_u16 *owner,
                                int *again) {
  mam_u64 full = header | MAM_WORD_WATCHED | 32ull << 32, first = count == 1 ? last : full;
  mam_u32 failed = 0;
  *again = 0;
  if (mam_cas_between_fences_u64(words, first, 0) != first)
    return 0;
  MAM_LOOP
  for (mam_u32 i = 1; i < count; i++) {
    mam_u64 word = i + 1 == count ? last : full;
    failed |= (mam_u32)(mam_cas_between_fences_u64(&words[i], word, 0) != word) << i;
  }
  if (failed == 0)
    mam_store_relaxed_u16(owner, 0);
  /* All users of the chunks changed these words.  What they did comes before the release of the pages. */
  mam_fence();
  if (failed == 0)
    return 1;
  MAM_LOOP
  for (mam_u32 i = count; i-- != 0;)
    if ((failed >> i & 1) == 0)
      (void)mam_exchange_release_u64(&words[i], i == 0 ? first : i + 1 == count ? last : full);
  *again = 1;
  return 0;
}

/* What a caller of mam_word_changed has left to do. */
enum {
  /* A word of the page map has got its first 0: mam_map_opened. */
  MAM_LEFT_PAGES_OPENED = 1,
  /* The same of the class map. */
  MAM_LEFT_CLASS_OPENED = 2,
  /* Pages came back, and something was known to be missing: mam_pages_returned. */
  MAM_LEFT_RETURNED = 4,
  /* The span has ended, and its pages lie in two words of the page map: mam_pages_clear. */
  MAM_LEFT_PAGES = 8,
  /* The span is to be looked at again: see mam_span_try_end. */
  MAM_LEFT_AGAIN = 16,
  /* A chunk came back, and a thread relies on the stamp: mam_stamp_raise. */
  MAM_LEFT_STAMP = 32
};

/* mam_span_end returns this instead of MAM_LEFT_* when the span has ended. */
enum { MAM_SPAN_ENDED = 0xffffffffu };

/* Ends the span, one of whose words was seen to be empty, if all are.  Returns MAM_SPAN_ENDED or what is left to do.
 * last: the word, if it is the only one. */
MAM_OUTLINE mam_u32 mam_span_end(mam_u64 *usage, mam_u64 header, mam_u32 page, mam_u64 last) {
  mam_u64 *words = &usage[page * MAM_PAGE_WORDS];
  mam_u32 count = mam_word_span_words(header);
  int again = 0;
  if (count != 1 && !mam_span_empty(words, header, count, &last))
    return 0;
  return mam_span_try_end(words, header, count, last, mam_page_owner(usage, page), &again) ? (mam_u32)MAM_SPAN_ENDED
         : again                                                                           ? MAM_LEFT_AGAIN
                                                                                           : 0;
}

/* Gives back the pages of a span that has ended, in the page map, and returns what is left to do.  It comes after
 * mam_fence, which releases what was done in the pages. */
MAM_INLINE mam_u32 mam_span_pages_free(struct mam_area area, mam_u32 page, mam_u32 pages) {
  mam_u32 from = page & 63, left = 0;
  if (from + pages > 64)
    return MAM_LEFT_PAGES;
  if (mam_and_after_fence_u64(&mam_area_pages(area)[page >> 6], ~mam_run_bits(pages, from)) == MAM_FULL_WORD)
    left = MAM_LEFT_PAGES_OPENED;
  return mam_returned_matters(area, page >> 6) ? left | MAM_LEFT_RETURNED : left;
}

/* ---- Freeing chunks ---- */

/* Whether something follows from clearing bits of a usage word whose value was old. */
MAM_INLINE int mam_word_wants_more(mam_u64 old, mam_u32 bits) {
  return (old & MAM_WORD_WATCHED) != 0 && (((mam_u32)old & ~bits) == 0 || (mam_u32)old == mam_word_full(old));
}

/* Does what follows from clearing bits of a usage word (see above), as far as it is short.  Returns what is left to do,
 * for mam_word_follow. */
MAM_OUTLINE mam_u32 mam_word_changed(struct mam_area area, mam_u32 word, mam_u64 old, mam_u32 bits) {
  mam_u32 page = word / MAM_PAGE_WORDS, left = 0;
  if (((mam_u32)old & ~bits) == 0) {
    mam_u64 header = old & ~(MAM_FULL_WORD >> 24), last = old & ~(mam_u64)bits;
    left = MAM_OUT_OF_SIGHT(mam_span_end)(area.words, header, page, last);
    MAM_FORGET(area.page_count);
    if (left == MAM_SPAN_ENDED)
      return mam_span_pages_free(area, page, mam_word_span_pages(old));
  }
  if ((mam_u32)old == mam_word_full(old)) {
    mam_u64 *hints = &mam_area_class(area, mam_word_class(old))[page / MAM_BLOCK_PAGES >> 6];
    mam_u64 hint = 1ull << (page / MAM_BLOCK_PAGES & 63);
    /* The look makes the hint cheap.  It comes after the change of the usage word, whose old value brought the caller
     * here. */
    if ((mam_load_relaxed_u64(hints) & hint) != 0) {
      left |= mam_and_acq_rel_u64(hints, ~hint) == MAM_FULL_WORD ? MAM_LEFT_CLASS_OPENED : 0;
      left |= mam_chunk_matters(area) ? MAM_LEFT_STAMP : 0;
    }
  }
  return left;
}

/* Does all that follows from clearing bits of a usage word. */
MAM_OUTLINE void mam_word_follow(mam_u32 word, mam_u32 bits, mam_u64 old, struct mam_area area) {
  mam_u32 left = MAM_LEFT_AGAIN;
  area.base = 0; /* what is not used need not be kept over the calls */
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (left & MAM_LEFT_AGAIN) != 0; i++) {
    left = MAM_OUT_OF_SIGHT(mam_word_changed)(area, word, old, bits);
    if (left == 0)
      return;
    old &= ~0xffffffffull; /* if the span is looked at again, no chunk of the word is used */
    bits = 0;
    MAM_LOOP
    for (mam_u32 at = 0; (left & MAM_LEFT_PAGES) != 0 && at < 2;
         at++) { /* the span lies in two words of the page map */
      MAM_FORGET(word);
      mam_u32 from = word / MAM_PAGE_WORDS & 63, here = 64 - from;
      MAM_OUT_OF_SIGHT(mam_pages_clear)
      (area, word / MAM_PAGE_WORDS / 64 + at,
       at == 0 ? mam_run_bits(here, from) : mam_run_bits(mam_word_span_pages(old) - here, 0));
    }
    MAM_FORGET(word);
    MAM_FORGET(area.page_count);
    if ((left & MAM_LEFT_PAGES_OPENED) != 0) {
      MAM_OUT_OF_SIGHT(mam_map_opened)(mam_area_pages(area), mam_area_map_words(area), word / MAM_PAGE_WORDS / 64);
      MAM_FORGET(word);
      MAM_FORGET(area.page_count);
      left |= mam_returned_matters(area, word / MAM_PAGE_WORDS / 64) ? MAM_LEFT_RETURNED : 0;
    }
    MAM_FORGET(word);
    MAM_FORGET(area.page_count);
    if ((left & MAM_LEFT_RETURNED) != 0)
      MAM_OUT_OF_SIGHT(mam_pages_returned)(word / MAM_PAGE_WORDS / 64, 1, area);
    MAM_FORGET(word);
    MAM_FORGET(area.page_count);
    if ((left & MAM_LEFT_CLASS_OPENED) != 0) {
      MAM_OUT_OF_SIGHT(mam_map_opened)
      (mam_area_class(area, mam_word_class(old)), mam_area_class_words(area),
       word / MAM_PAGE_WORDS / MAM_BLOCK_PAGES / 64);
      left |= mam_chunk_matters(area) ? MAM_LEFT_STAMP : 0;
    }
    if ((left & MAM_LEFT_STAMP) != 0)
      MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
  }
}

/* Frees the chunks of a usage word whose bits are given.  Returns the bits that were 0 already. */
MAM_INLINE mam_u32 mam_chunks_free(struct mam_area area, mam_u32 word, mam_u32 bits) {
  /* release: what the chunks' users did comes before what the next ones do.  Pairs with mam_word_claim. */
  mam_u64 old = mam_and_release_u64(&area.words[word], ~(mam_u64)bits);
  if (((mam_u32)old & bits) != 0 && mam_word_wants_more(old, bits))
    MAM_OUT_OF_SIGHT(mam_word_follow)(word, bits, old, area);
  return bits & ~(mam_u32)old;
}

/* ---- Watching ---- */

/* Makes one usage word watched, if its upper half is that of header.  Returns its value then; 0 if it is no longer a
 * word of that span. */
MAM_INLINE mam_u64 mam_word_watch(mam_u64 *place, mam_u64 header) {
  mam_u64 word = mam_load_relaxed_u64(place);
  MAM_LOOP
  while (((word ^ header) >> 40) == 0 && (word & MAM_WORD_WATCHED) == 0) {
    mam_u64 seen = mam_cas_acq_rel_u64(place, word, word | MAM_WORD_WATCHED);
    word = seen == word ? word | MAM_WORD_WATCHED : seen;
  }
  return ((word ^ header) >> 40) == 0 ? word : 0;
}

/* Makes all words of a span watched, whose first word looks like header.  Returns a bit for each word that has a free
 * chunk; eight bits above for each that is empty; above these for each that another thread changed meanwhile.  Calls
 * nothing. */
MAM_OUTLINE mam_u32 mam_words_watch(MAM_TAG(2) mam_u64 header, mam_u64 *words) {
#if MAM_ON_DEVICE && __CUDA_ARCH__ < 800 /* it takes more than 64 registers there: the caller does it word by word */
  return ((1u << mam_word_span_words(header)) - 1) << 16;
#endif
  mam_u64 seen[MAM_PAGE_WORDS];
  mam_u32 found = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = i == 0 ? header : mam_load_relaxed_if_u64(i < mam_word_span_words(header), &words[i], 0);
  mam_fence(); /* the order that mam_word_watch has */
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++) {
    int alike = ((seen[i] ^ header) >> 40) == 0;
    mam_u64 old = mam_cas_between_fences_if_u64(alike && (seen[i] & MAM_WORD_WATCHED) == 0, &words[i], seen[i],
                                                seen[i] | MAM_WORD_WATCHED);
    found |= (mam_u32)(alike && (mam_u32)seen[i] != mam_word_full(seen[i])) << i;
    found |= (mam_u32)(alike && (mam_u32)seen[i] == 0) << (i + 8) | (mam_u32)(old != seen[i]) << (i + 16);
  }
  mam_fence();
  return found;
}

/* Makes the span that begins at page watched, if there is one, and does what its frees have left undone.  Returns how
 * many pages the caller can skip. */
MAM_OUTLINE mam_u32 mam_span_watch(struct mam_area area, mam_u32 page) {
  mam_u64 *words = &area.words[page * MAM_PAGE_WORDS], header = mam_load_relaxed_u64(words);
  if (header == 0 || header >> 56 == MAM_CLASS_RUN)
    return 1;
  mam_u32 found = MAM_OUT_OF_SIGHT(mam_words_watch)(header, words);
  MAM_LOOP
  for (mam_u32 again = found >> 16; again != 0; again &= again - 1) {
    mam_u32 i = mam_lowest_u32(again);
    mam_u64 word = mam_word_watch(&words[i], header);
    found |= (mam_u32)(word != 0 && (mam_u32)word != mam_word_full(word)) << i;
    found |= (mam_u32)(word != 0 && (mam_u32)word == 0) << (i + 8);
  }
  if ((found & 255) != 0)
    MAM_OUT_OF_SIGHT(mam_span_hint)(area, page, mam_word_class(header));
  if ((found >> 8 & 255) != 0) {
    mam_u32 word = page * MAM_PAGE_WORDS + mam_lowest_u32(found >> 8);
    mam_u64 empty = (header & ~(mam_u64)0xffffffff) | MAM_WORD_WATCHED;
    MAM_OUT_OF_SIGHT(mam_word_follow)(word, 0, empty, area);
  }
  return mam_word_span_pages(header);
}

#endif /* MAM_DETAIL_HEAP_SPANS_H */
