/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_spans.h - spans: how they begin, how their chunks are freed, and how they end.
 *
 * The life of a span:
 *
 *   pages taken -> entries, owner -> usage words -> chunks used and freed -> all words 0 -> pages given back
 *                  (mam__span_write, mam__span_split)  (mam__chunks_free)       (mam__span_try_end)
 *
 * A free clears the chunks' bits in one usage word by one atomic operation (mam__chunks_free).  In a word that is
 * watched the free does what follows from that; the word's old value decides:
 *
 *   the word became empty   mam__span_end looks whether all words of the span are empty, and ends it if they are
 *   the word was full       the class map gets a hint: here is a free chunk
 *
 * It also gets a hint when an end was tried and taken back: while words were 0, a search may have missed their free
 * chunks and have struck the hint.
 *
 * A word that is not watched needs neither: its empty span stays for its slot (heap_refill.h).  mam__span_watch watches
 * a span from then on, and does once what its frees have left undone.
 *
 * A span ends in two steps.  Each usage word goes from empty to 0 by compare-and-swap, the first one first, so that of
 * several threads that try one goes on.  In a word that is 0 no chunk can be claimed.  If a word is not empty, the
 * thread puts the others back.  When all are 0, the pages are the thread's alone, and it gives them back.
 *
 * All that follows from a free is mam__word_follow.  mam__word_changed is the part of it that most frees need.  What is
 * left to do, seldom, it returns as a word (MAM__LEFT_*), for mam__word_left.  Neither of the two calls a function, so
 * few calls lie in each other, and a free saves few registers.
 */
#ifndef MAM_DETAIL_HEAP_SPANS_H
#define MAM_DETAIL_HEAP_SPANS_H

#include <mam/detail/heap_pages.h>

/* ---- Beginning ---- */

/* Makes a span of pages that the caller owns, with a power of two of chunks.  All of them count as used.  flags:
 * MAM__WORD_WATCHED or 0. */
MAM__INLINE void mam__span_write(struct mam__area area, mam__u32 page, mam__u32 size_class, mam__u32 pages,
                                 mam__u32 chunks, mam__u64 flags, mam__u32 owner) {
  mam__u32 words = (chunks + 31) >> 5;
  mam__u64 word = mam__word_of(size_class, pages, words, chunks < 32 ? chunks : 32) | flags;
  mam__store_relaxed_u16(&mam__area_owners(area)[page], (mam__u16)owner);
  MAM__LOOP
  for (mam__u32 i = 0; i < pages; i++)
    mam__store_relaxed_u16(mam__page_entry(area.words, page + i), mam__entry_of(size_class, i));
  MAM__LOOP
  for (mam__u32 i = 0; i < words; i++)
    mam__store_relaxed_u64(&area.words[page * MAM__PAGE_WORDS + i], word);
}

/* mam__span_write for a thread that acts alone. */
MAM__OUTLINE void mam__span_write_alone(MAM__TAG(2) const struct mam__area *area, mam__u32 page, mam__u32 size_class,
                                        mam__u32 chunks, mam__u32 watched, mam__u32 owner) {
  mam__span_write(*area, page, size_class, mam__class_bytes(size_class) * chunks >> MAM__PAGE_SHIFT, chunks,
                  watched != 0 ? MAM__WORD_WATCHED : 0, owner);
}

/* Sets the hint that the span that begins at page may have a free chunk.  A look tells whether the hint is set already,
 * which makes most calls cheap.  It comes after the change of the usage word whose old value brought the caller here.
 */
MAM__OUTLINE void mam__span_hint(struct mam__area area, mam__u32 page, mam__u32 size_class) {
  mam__u64 *map = mam__area_class(area, size_class);
  if ((mam__load_relaxed_u64(&map[page >> 6]) >> (page & 63) & 1) == 0)
    return;
  if (mam__and_acq_rel_u64(&map[page >> 6], ~(1ull << (page & 63))) == MAM__FULL_WORD)
    mam__map_opened(map, mam__area_map_words(area), page >> 6);
  if (mam__chunk_matters(area))
    mam__stamp_raise(mam__area_stamp(area));
}

/* Makes pages a span of at most so many chunks, that no slot gets.  The first count chunks are the caller's, the others
 * are free at once. */
MAM__OUTLINE struct mam__claim mam__span_split(struct mam__found found, mam__u32 size_class, mam__u32 pages,
                                               mam__u32 chunks, mam__u32 count) {
  mam__u32 fit = (pages << MAM__PAGE_SHIFT) / mam__class_bytes(size_class), words, free;
  chunks = fit < chunks ? fit : chunks;
  free = count < chunks;
  words = (chunks + 31) >> 5;
  count = 0xffffffffu >> (32 - (free ? count : chunks));
  mam__store_relaxed_u16(&mam__area_owners(*found.area)[found.page], MAM__OWNER_NONE);
  MAM__LOOP
  for (mam__u32 i = 0; i < pages; i++)
    mam__store_relaxed_u16(mam__page_entry(found.area->words, found.page + i), mam__entry_of(size_class, i));
  mam__barrier(); /* release: the entries, which a thread reads when it frees such a chunk */
  MAM__LOOP
  for (mam__u32 i = 0; i < words; i++) {
    MAM__FORGET(size_class);
    mam__u64 word = mam__word_of(size_class, pages, words, chunks - 32 * i < 32 ? chunks - 32 * i : 32);
    (void)mam__exchange_after_barrier_u64(&found.area->words[found.page * MAM__PAGE_WORDS + i],
                                          MAM__WORD_WATCHED |
                                              (mam__word_emptied(word) & ~(mam__u64)(i == 0 ? count : 0)));
  }
  if (free)
    MAM__OUT_OF_SIGHT(mam__span_hint)(*found.area, found.page, size_class);
  struct mam__claim claim = {mam__area_address(*found.area, found.page), count, mam__class_bytes(size_class)};
  return claim;
}

/* ---- Ending ---- */

/* The bits in which the upper halves of a span's empty words differ: the number of chunks, and, while the span is being
 * watched, MAM__WORD_WATCHED. */
#define MAM__WORD_CHUNKS (255ull << 32)

/* Whether all words of a span are empty.  header: their upper half without MAM__WORD_CHUNKS, and nothing else.  *last:
 * the last word, which alone may have fewer than 32 chunks. */
MAM__INLINE int mam__span_empty(const mam__u64 *words, mam__u64 header, mam__u32 count, mam__u64 *last) {
  mam__u32 differs = 0;
  mam__u64 seen[4];
  MAM__LOOP
  for (mam__u32 i = 0; i < count && differs == 0; i += 4) {
    MAM__UNROLL /* the loads are under way together */
        for (mam__u32 j = 0; j < 4; j++) seen[j] = mam__load_relaxed_if_u64(i + j < count, &words[i + j], header);
    MAM__UNROLL
    for (mam__u32 j = 0; j < 4; j++) {
      differs |= (mam__u32)((seen[j] ^ header) >> 40) | mam__word_used(seen[j]);
      *last = i + j < count ? seen[j] : *last;
    }
  }
  return differs == 0;
}

/* Ends a span that was seen to be empty.  Each word goes from empty to 0 by compare-and-swap, the first word before all
 * others.  If a word is not empty, those that became 0 are put back; no other thread can change them meanwhile.
 * Returns whether the span has ended.  *again: the span is to be looked at again, since another thread may have seen it
 * not empty because of these words. */
MAM__INLINE int mam__span_try_end(mam__u64 *words, mam__u64 header, mam__u32 count, mam__u64 last, mam__u16 *owner,
                                  int *again) {
  mam__u64 empty = mam__word_emptied(header | MAM__WORD_WATCHED | 32ull << 32), first = count == 1 ? last : empty;
  mam__u32 failed = 0;
  *again = 0;
  if (mam__cas_between_barriers_u64(words, first, 0) != first)
    return 0;
  MAM__LOOP
  for (mam__u32 i = 1; i < count; i++) {
    mam__u64 word = i + 1 == count ? last : empty;
    failed |= (mam__u32)(mam__cas_between_barriers_u64(&words[i], word, 0) != word) << i;
  }
  if (failed == 0)
    mam__store_relaxed_u16(owner, 0);
  /* All users of the chunks changed these words.  What they did comes before the release of the pages. */
  mam__barrier();
  if (failed == 0)
    return 1;
  MAM__LOOP
  for (mam__u32 i = count; i-- != 0;)
    if ((failed >> i & 1) == 0)
      (void)mam__exchange_release_u64(&words[i], i == 0 ? first : i + 1 == count ? last : empty);
  *again = 1;
  return 0;
}

/* What mam__word_changed leaves to mam__word_left. */
enum {
  /* A word of the page map has got its first 0: mam__map_opened. */
  MAM__LEFT_PAGES_OPENED = 1,
  /* The same of the class map. */
  MAM__LEFT_CLASS_OPENED = 2,
  /* Pages came back, and something was known to be missing: mam__word_back. */
  MAM__LEFT_RETURNED = 4,
  /* The span has ended, and its pages go on in the next word of the page map: mam__bits_free. */
  MAM__LEFT_PAGES = 8,
  /* A chunk came back, and a thread relies on the stamp: mam__stamp_raise. */
  MAM__LEFT_STAMP = 16
};

/* What mam__span_end returns. */
enum {
  /* The span is in use. */
  MAM__SPAN_USED,
  /* The span has ended. */
  MAM__SPAN_ENDED,
  /* The span is to be looked at again: see mam__span_try_end. */
  MAM__SPAN_AGAIN
};

/* Ends the span, one of whose words was seen to be empty, if all are.  last: the word, if it is the only one. */
MAM__INLINE mam__u32 mam__span_end(struct mam__area area, mam__u32 page, mam__u64 header, mam__u64 last) {
  mam__u64 *words = &area.words[page * MAM__PAGE_WORDS];
  mam__u32 count = mam__word_span_words(header);
  int again = 0;
  if (count != 1 && !mam__span_empty(words, header, count, &last))
    return MAM__SPAN_USED;
  return mam__span_try_end(words, header, count, last, &mam__area_owners(area)[page], &again)
             ? (mam__u32)MAM__SPAN_ENDED
         : again ? (mam__u32)MAM__SPAN_AGAIN
                 : (mam__u32)MAM__SPAN_USED;
}

/* Gives back pages of a span that has ended: bits of one word of the page map.  Returns what is left to do.  It comes
 * after mam__barrier, which releases what was done in the pages.  run: how long a run they are part of; 0: as long as
 * the free pages around them. */
MAM__INLINE mam__u32 mam__bits_free(struct mam__area area, mam__u32 index, mam__u32 from, mam__u32 count,
                                    mam__u32 run) {
  mam__u64 bits = mam__run_bits(count, from), old = mam__and_after_barrier_u64(&mam__area_pages(area)[index], ~bits);
  run = run == 0 ? mam__run_around(old & ~bits, from, from + count) : run;
  return (old == MAM__FULL_WORD ? MAM__LEFT_PAGES_OPENED : 0) |
         (mam__returned_matters(area, index, run) ? MAM__LEFT_RETURNED : 0);
}

/* The same for all of them, or for those of the first word. */
MAM__INLINE mam__u32 mam__span_pages_free(struct mam__area area, mam__u32 page, mam__u32 pages) {
  mam__u32 from = page & 63;
  if (from + pages <= 64)
    return mam__bits_free(area, page >> 6, from, pages, 0);
  return mam__bits_free(area, page >> 6, from, 64 - from, MAM__SHORT_MOST) | MAM__LEFT_PAGES;
}

/* ---- Freeing chunks ---- */

/* Whether something follows from freeing chunks of a usage word whose value was old. */
MAM__INLINE int mam__word_wants_more(mam__u64 old, mam__u32 bits) {
  return (old & MAM__WORD_WATCHED) != 0 &&
         ((mam__word_free(old) | bits) == mam__word_whole(old) || mam__word_free(old) == 0);
}
/* Which of the bits that a free has set in a word, whose value was old, are of no chunk that was used. */
MAM__INLINE mam__u32 mam__word_wrong(mam__u64 old, mam__u32 bits) { return bits & ~mam__word_used(old); }

/* Does what follows from freeing chunks of a usage word (see above), as far as most frees need it.  Returns what is
 * left to do. */
MAM__JOINED mam__u32 mam__word_changed(mam__u64 *usage, mam__u32 page_count, mam__u32 word, mam__u64 old,
                                       mam__u32 bits) {
  struct mam__area area = {0, usage, page_count, 0};
  mam__u32 page = word / MAM__PAGE_WORDS, left = 0, tries = MAM__RETRIES, again, hinted = mam__word_free(old) == 0;
  old |= bits;
  MAM__LOOP
  do {
    MAM__FORGET(page); /* what is computed from these is not kept */
    MAM__FORGET_ADDRESS(old);
    again = 0;
    if (mam__word_free(old) == mam__word_whole(old)) {
      again = mam__span_end(area, page, old & ~(MAM__FULL_WORD >> 24), old);
      MAM__FORGET(area.page_count);
      if (again == MAM__SPAN_ENDED)
        return left | mam__span_pages_free(area, page, mam__word_span_pages(old));
    }
    if ((again | hinted) != 0) {
      mam__u64 *hints = &mam__area_class(area, mam__word_class(old))[page >> 6];
      mam__u64 hint = 1ull << (page & 63);
      /* The look makes the hint cheap.  It comes after the change of the usage word, whose old value brought the caller
       * here. */
      if ((mam__load_relaxed_u64(hints) & hint) != 0) {
        left |= mam__and_acq_rel_u64(hints, ~hint) == MAM__FULL_WORD ? MAM__LEFT_CLASS_OPENED : 0;
        left |= mam__chunk_matters(area) ? MAM__LEFT_STAMP : 0;
      }
    }
    hinted = 0;
    old = mam__word_emptied(old); /* if the span is looked at again, no chunk of the word is used */
  } while (again != 0 && --tries != 0);
  return left;
}

/* Does what mam__word_changed left.  old: the usage word's value. */
MAM__JOINED void mam__word_left(mam__u64 *usage, mam__u32 page_count, mam__u32 word, mam__u64 old, mam__u32 left) {
  struct mam__area area = {0, usage, page_count, 0};
  mam__u32 index = word / MAM__PAGE_WORDS / 64, pages = left;
  MAM__LOOP
  for (;;) {
    MAM__FORGET(area.page_count);
    if ((pages & MAM__LEFT_PAGES_OPENED) != 0) {
      mam__map_opened(mam__area_pages(area), mam__area_map_words(area), index);
      MAM__FORGET(area.page_count);
      pages |= mam__returned_matters(area, index, MAM__SHORT_MOST) ? MAM__LEFT_RETURNED : 0;
    }
    MAM__FORGET(area.page_count);
    if ((pages & MAM__LEFT_RETURNED) != 0)
      mam__word_back(area, index);
    if ((pages & MAM__LEFT_PAGES) == 0)
      break;
    index++;
    MAM__FORGET(word);
    pages =
        mam__bits_free(area, index, 0, (word / MAM__PAGE_WORDS & 63) + mam__word_span_pages(old) - 64, MAM__SHORT_MOST);
  }
  MAM__FORGET(word);
  MAM__FORGET(area.page_count);
  if ((left & MAM__LEFT_CLASS_OPENED) != 0) {
    mam__map_opened(mam__area_class(area, mam__word_class(old)), mam__area_map_words(area),
                    word / MAM__PAGE_WORDS / 64);
    left |= mam__chunk_matters(area) ? MAM__LEFT_STAMP : 0;
  }
  if ((left & MAM__LEFT_STAMP) != 0)
    mam__stamp_raise(mam__area_stamp(area));
}

/* Does all that follows from freeing chunks of a usage word. */
MAM__OUTLINE void mam__word_follow(mam__u32 word, mam__u32 bits, mam__u64 old, struct mam__area area) {
  mam__u32 left = mam__word_changed(area.words, area.page_count, word, old, bits);
  if (left != 0)
    mam__word_left(area.words, area.page_count, word, old, left);
}

/* Clears again those of wrong bits that are of no chunk. */
MAM__INLINE void mam__wrong_undo(struct mam__area area, mam__u32 word, mam__u64 old, mam__u32 wrong) {
  if ((wrong & ~mam__word_whole(old)) != 0)
    (void)mam__and_relaxed_u64(&area.words[word], ~(mam__u64)(wrong & ~mam__word_whole(old)));
}

/* Frees the chunks of a usage word whose bits are given.  Returns the bits of those that were not used. */
MAM__INLINE mam__u32 mam__chunks_free(struct mam__area area, mam__u32 word, mam__u32 bits) {
  /* release: what the chunks' users did comes before what the next ones do.  Pairs with mam__word_claim. */
  mam__u64 old = mam__or_release_u64(&area.words[word], bits);
  mam__u32 wrong = mam__word_wrong(old, bits);
  mam__wrong_undo(area, word, old, wrong);
  if (wrong != bits && mam__word_wants_more(old, bits & ~wrong))
    MAM__OUT_OF_SIGHT(mam__word_follow)(word, bits & ~wrong, old, area);
  return wrong;
}

/* ---- Watching ---- */

/* Makes one usage word watched, if its upper half is that of header.  Returns its value then; 0 if it is no longer a
 * word of that span. */
MAM__INLINE mam__u64 mam__word_watch(mam__u64 *place, mam__u64 header) {
  mam__u64 word = mam__load_relaxed_u64(place);
  MAM__LOOP
  while (((word ^ header) >> 40) == 0 && (word & MAM__WORD_WATCHED) == 0) {
    mam__u64 seen = mam__cas_acq_rel_u64(place, word, word | MAM__WORD_WATCHED);
    word = seen == word ? word | MAM__WORD_WATCHED : seen;
  }
  return ((word ^ header) >> 40) == 0 ? word : 0;
}

/* So many words are made watched together. */
enum { MAM__WATCH_TOGETHER = 4 };

/* Makes all words of a span watched, whose first word looks like header.  Returns a bit for each word that has a free
 * chunk; eight bits above for each that is empty; above these for each that another thread changed meanwhile.  Calls
 * nothing. */
MAM__JOINED mam__u32 mam__words_watch(mam__u64 header, mam__u64 *words) {
  mam__u64 seen[MAM__WATCH_TOGETHER];
  mam__u32 found = 0;
  MAM__LOOP
  for (mam__u32 at = 0; at < mam__word_span_words(header); at += MAM__WATCH_TOGETHER) {
    mam__u32 these = 0;
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__WATCH_TOGETHER; i++)
      seen[i] = mam__load_relaxed_if_u64(at + i < mam__word_span_words(header), &words[at + i], 0);
    mam__barrier(); /* the order that mam__word_watch has */
    MAM__UNROLL
    for (mam__u32 i = 0; i < MAM__WATCH_TOGETHER; i++) {
      int alike = ((seen[i] ^ header) >> 40) == 0;
      mam__u64 old = mam__cas_between_barriers_if_u64(alike && (seen[i] & MAM__WORD_WATCHED) == 0, &words[at + i],
                                                      seen[i], seen[i] | MAM__WORD_WATCHED);
      these |= (mam__u32)(alike && mam__word_free(seen[i]) != 0) << i;
      these |= (mam__u32)(alike && mam__word_used(seen[i]) == 0) << (i + 8) | (mam__u32)(old != seen[i]) << (i + 16);
    }
    mam__barrier();
    found |= these << at;
  }
  return found;
}

/* What mam__words_watched returns. */
struct mam__watched {
  mam__u64 old;   /* an empty word of the span as it is now, for mam__word_follow; 0: none was empty */
  mam__u32 word;  /* the number of that word in the superblock */
  mam__u32 pages; /* of what begins there, a run or a span, or fewer; 1 if nothing does */
};

/* Makes the span that begins at page watched, if there is one, and sets its hint. */
MAM__OUTLINE struct mam__watched mam__words_watched(struct mam__area area, mam__u32 page) {
  mam__u64 *words = &area.words[page * MAM__PAGE_WORDS], header = mam__load_relaxed_u64(words);
  struct mam__watched watched = {0, 0, 1};
  if (mam__word_class(header) == MAM__NO_KIND)
    return watched;
  if (mam__word_is_run(header)) { /* not by the second word: it may be another span's by now */
    mam__u32 pages = mam__run_pages(header, 0);
    watched.pages = pages != 0 ? pages : 1;
    return watched;
  }
  mam__u32 found = mam__words_watch(header, words);
  MAM__LOOP
  for (mam__u32 again = found >> 16; again != 0; again &= again - 1) {
    mam__u32 i = mam__lowest_u32(again);
    mam__u64 word = mam__word_watch(&words[i], header);
    found |= (mam__u32)(word != 0 && mam__word_free(word) != 0) << i;
    found |= (mam__u32)(word != 0 && mam__word_used(word) == 0) << (i + 8);
  }
  if ((found & 255) != 0)
    MAM__OUT_OF_SIGHT(mam__span_hint)(area, page, mam__word_class(header));
  watched.old = (found >> 8 & 255) != 0 ? mam__word_emptied(header) | MAM__WORD_WATCHED : 0;
  watched.word = page * MAM__PAGE_WORDS + (watched.old != 0 ? mam__lowest_u32(found >> 8) : 0);
  watched.pages = mam__word_span_pages(header);
  return watched;
}

/* Makes the span that begins at page watched, if there is one, and does what its frees have left undone.  Returns how
 * many pages what begins there has, a run or a span, or fewer; 1 if nothing does. */
MAM__INLINE mam__u32 mam__span_watch(struct mam__area area, mam__u32 page) {
  struct mam__watched watched = MAM__OUT_OF_SIGHT(mam__words_watched)(area, page);
  if (watched.old != 0)
    MAM__OUT_OF_SIGHT(mam__word_follow)(watched.word, 0, watched.old, area);
  return watched.pages;
}

#endif /* MAM_DETAIL_HEAP_SPANS_H */
