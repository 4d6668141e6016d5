/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_words.h - what single words of a device heap say.  Arithmetic on values; no memory is read here.
 *
 * A size class is a shift and a multiple: its chunks have (multiple << shift) * 16 bytes, where the multiple is 1 to 8
 * at shift 0 and 5 to 8 above.  So there is a class for each 16 bytes up to 128, and four for each power of two above.
 * A kind is a size class, in the lowest six bits, with a type of objects above it; type 0 means none.  A parameter that
 * is called size_class may be a kind, unless its function says otherwise.
 *
 * Usage word: 32 chunks of a span.  A span has 1 to 8 of them, which are the usage words of its first page; the words
 * of its other pages are 0.  A change by compare-and-swap always compares the size class as well.
 *
 *   63       56 55       48 47  44 43  40   39     38  37    32 31                            0
 *   | class + 1 |   pages   | type | words | watched | - | chunks |  a bit for each chunk: free  |
 *
 *   class + 1   0: no span begins here, and the whole word is 0.  255: a request of whole pages (a run)
 *   pages       how many pages the span has
 *   words       how many usage words the span has
 *   watched     the thread that clears bits of the word does what follows from that (heap_spans.h)
 *   chunks      how many chunks the word has, 1 to 32
 *
 * A 1 is a free chunk, so a thread claims chunks by clearing bits, in one atomic operation whatever others do to the
 * word: where no span is, there is nothing to clear.  What the word was before says what the thread has got.
 *
 * The lower half is all that mam_free changes, so a wrong free inside a run changes nothing that matters.
 *
 * Entry: one for each page.  It says to which span the page belongs, and is read before the span's words, which confirm
 * it.  It is written before these words and never cleared.
 *
 *   15  12 11                       6 5         0
 *   | type | pages back to the first  | class + 1 |
 *
 * Slot word: the span that the slot owns, and how many tickets it has handed out.
 *
 *   63                                 24 23             0
 *   | address of the span / 4096          | tickets        |
 */
#ifndef MAM_DETAIL_HEAP_WORDS_H
#define MAM_DETAIL_HEAP_WORDS_H

#include <mam/detail/atomics.h>
#include <mam/heap_types.h>

/* In the place of a page's number: there is none. */
#define MAM__NO_PAGE 0xffffffffu
/* A word of a map that has no 0. */
#define MAM__FULL_WORD 0xffffffffffffffffull

enum {
  /* A page has 4 KiB: the unit in which a superblock's memory is taken.  This is its base-2 logarithm. */
  MAM__PAGE_SHIFT = 12,
  /* The bytes of a page. */
  MAM__PAGE_BYTES = 1 << MAM__PAGE_SHIFT,
  /* Each page has 8 usage words, enough for a page of the smallest class: 8 * 32 chunks of 16 bytes. */
  MAM__PAGE_WORDS = 8,
  /* A span has at most 64 pages, so that one word of the page map can hold it. */
  MAM__SPAN_PAGES = 64,
  /* The classes reach from 16 bytes to 32 KiB: 8 up to 128 bytes, then four for each of 8 powers of two. */
  MAM__HEAP_CLASSES = 40,
  /* Each class is a kind, and each type is one. */
  MAM__HEAP_KINDS = MAM__HEAP_CLASSES + MAM_HEAP_TYPES,
  /* The bytes of the largest class.  Larger requests get whole pages. */
  MAM__CHUNK_BYTES = 32 << 10
};

/* ---- Size classes and kinds ---- */

/* A kind's lowest six bits are the size class. */
enum { MAM__KIND_CLASS = 63 };
/* The type stands above them. */
enum { MAM__KIND_TYPE_SHIFT = 6 };
/* Both have ten bits together, enough for a type of up to 15. */
enum { MAM__KIND_BITS = 10 };

MAM__INLINE mam__u32 mam__kind_of(mam__u32 size_class, mam__u32 type) {
  return size_class | type << MAM__KIND_TYPE_SHIFT;
}
MAM__INLINE mam__u32 mam__kind_type(mam__u32 kind) { return kind >> MAM__KIND_TYPE_SHIFT; }
/* A kind's number: size classes come first, then types. */
MAM__INLINE mam__u32 mam__kind_number(mam__u32 kind) {
  return mam__kind_type(kind) == 0 ? kind : MAM__HEAP_CLASSES - 1 + mam__kind_type(kind);
}
/* A program's mam_type has the number of the heap that it is a type of above its kind. */
enum { MAM__TYPE_HEAP_SHIFT = 16 };
MAM__INLINE mam__u32 mam__type_of(mam__u32 kind, mam__u32 heap) { return kind | heap << MAM__TYPE_HEAP_SHIFT; }
MAM__INLINE mam__u32 mam__type_kind(mam__u32 type) { return type & ((1u << MAM__KIND_BITS) - 1); }
/* In the place of a kind: there is no such type. */
#define MAM__NO_KIND 0xffffffffu

MAM__INLINE mam__u32 mam__class_shift_of(mam__u32 sixteenths_less_1) {
  mam__u32 zeros = mam__leading_zeros_u32(sixteenths_less_1);
  return zeros < 29 ? 29 - zeros : 0;
}
MAM__INLINE mam__u32 mam__class_shift(mam__u32 kind) {
  mam__u32 size_class = kind & MAM__KIND_CLASS;
  return size_class < 8 ? 0 : (size_class >> 2) - 1;
}
MAM__INLINE mam__u32 mam__class_multiple(mam__u32 kind, mam__u32 shift) {
  return (kind & MAM__KIND_CLASS) - 4 * shift + 1;
}
MAM__INLINE mam__u32 mam__class_of(mam__u32 bytes) {
  mam__u32 sixteenths_less_1 = (bytes - 1) >> 4, shift = mam__class_shift_of(sixteenths_less_1);
  return 4 * shift + (sixteenths_less_1 >> shift);
}
MAM__INLINE mam__u32 mam__class_bytes(mam__u32 size_class) {
  mam__u32 shift = mam__class_shift(size_class);
  return mam__class_multiple(size_class, shift) << (shift + 4);
}

/* ---- The tuning word ----
 *
 * It is a part of the handle (mam_device_heap, tuning).
 *
 *   63       54 53       50 49      46  45   44       40 39                          0
 *   | home last | home shift | warp bits | lazy | park bits | chunks, 4 bits a shift |
 *
 *   home last    a multiprocessor with a greater number counts as this one
 *   home shift   how many multiprocessors share a slot, as a base-2 logarithm
 *   warp bits    so many bits of a warp's number tell the slots of one multiprocessor apart
 *   lazy         whether slots keep empty spans until pages are scarce
 *   park bits    places for headers of warp heaps that wait for their next user: 0 if there are none, else their
 *                number's base-2 logarithm plus 1
 *   chunks       the chunks of a span, as a base-2 logarithm; the least shift lowest */

#define MAM__TUNED_LAZY (1ull << 45)
MAM__INLINE mam__u64 mam__tuning_of(mam__u64 chunks, mam__u32 park_bits, int lazy, mam__u32 warp_bits,
                                    mam__u32 home_shift, mam__u32 home_last) {
  return chunks | (mam__u64)park_bits << 40 | (lazy ? MAM__TUNED_LAZY : 0) | (mam__u64)warp_bits << 46 |
         (mam__u64)home_shift << 50 | (mam__u64)home_last << 54;
}
MAM__INLINE mam__u32 mam__tuned_park_bits(mam__u64 tuning) { return (mam__u32)(tuning >> 40) & 31; }
MAM__INLINE int mam__tuned_lazy(mam__u64 tuning) { return (tuning & MAM__TUNED_LAZY) != 0; }
MAM__INLINE mam__u32 mam__tuned_warp_bits(mam__u64 tuning) { return (mam__u32)(tuning >> 46) & 15; }
MAM__INLINE mam__u32 mam__tuned_home_shift(mam__u64 tuning) { return (mam__u32)(tuning >> 50) & 15; }
MAM__INLINE mam__u32 mam__tuned_home_last(mam__u64 tuning) { return (mam__u32)(tuning >> 54); }
MAM__INLINE mam__u32 mam__tuned_homes(mam__u64 tuning) {
  return (mam__tuned_home_last(tuning) >> mam__tuned_home_shift(tuning)) + 1;
}

/* A span's number of chunks as a base-2 logarithm, and its number of pages. */
MAM__INLINE mam__u32 mam__span_chunks_log2(mam__u64 tuning, mam__u32 shift) {
  return (mam__u32)(tuning >> (4 * shift)) & 15;
}
MAM__INLINE mam__u32 mam__span_pages(mam__u64 tuning, mam__u32 size_class) {
  mam__u32 shift = mam__class_shift(size_class);
  return mam__class_multiple(size_class, shift) << (mam__span_chunks_log2(tuning, shift) + shift + 4 - MAM__PAGE_SHIFT);
}
/* The chunks of a whole span for count lanes, as a base-2 logarithm: as many as there are lanes, in at most 32 pages;
 * but no fewer than a slot's span has.  slot_chunks: these, as a logarithm. */
MAM__INLINE mam__u32 mam__whole_chunks_log2(mam__u32 count, mam__u32 shift, mam__u32 slot_chunks) {
  mam__u32 lanes = 31 - mam__leading_zeros_u32(count), most = 10 - shift; /* 128 << shift bytes: the largest chunk */
  lanes = lanes < most ? lanes : most;
  return lanes > slot_chunks ? lanes : slot_chunks;
}
/* The number of the chunk in which an offset of a span lies, in units of 16 bytes.  A division by 1 to 8, done by a
 * multiplication; exact below 4096. */
MAM__INLINE mam__u32 mam__chunk_index(mam__u32 sixteenths, mam__u32 shift, mam__u32 multiple) {
  const mam__u64 low = 0x20002aab40008000ull, high = 0x1000124a1556199aull; /* 2^15 / multiple, rounded up */
  mam__u32 inverse = (mam__u32)((multiple <= 4 ? low : high) >> (((multiple - 1) & 3) * 16)) & 0xffff;
  return ((sixteenths >> shift) * inverse) >> 15;
}

/* ---- Usage words ---- */

/* This number in the place of the size class + 1 in a usage word says: a request of whole pages.  No class has it. */
enum { MAM__CLASS_RUN = 255 };

/* The word is watched: see heap_spans.h. */
#define MAM__WORD_WATCHED (1ull << 39)

/* A word whose chunks are all used. */
MAM__INLINE mam__u64 mam__word_of(mam__u32 kind, mam__u32 pages, mam__u32 words, mam__u32 chunks) {
  mam__u32 high = ((kind & MAM__KIND_CLASS) + 1) << 24 | pages << 16 | mam__kind_type(kind) << 12 | words << 8 | chunks;
  return (mam__u64)high << 32;
}
/* The word's kind.  If no span begins there, it is none of the heap's kinds. */
MAM__INLINE mam__u32 mam__word_class(mam__u64 word) {
  return ((mam__u32)(word >> 56) - 1) | ((mam__u32)(word >> 44) & 15) << MAM__KIND_TYPE_SHIFT;
}
MAM__INLINE mam__u32 mam__word_span_pages(mam__u64 word) { return (mam__u32)(word >> 48) & 255; }
MAM__INLINE mam__u32 mam__word_span_words(mam__u64 word) { return (mam__u32)(word >> 40) & 15; }
MAM__INLINE mam__u32 mam__word_chunks(mam__u64 word) { return (mam__u32)(word >> 32) & 63; }
/* A bit for each of the word's chunks; 0 if no span begins there. */
MAM__INLINE mam__u32 mam__word_whole(mam__u64 word) { return mam__first_ones_u32(mam__word_chunks(word)); }
MAM__INLINE mam__u32 mam__word_free(mam__u64 word) { return (mam__u32)word; }
MAM__INLINE mam__u32 mam__word_used(mam__u64 word) { return mam__word_whole(word) & ~mam__word_free(word); }
/* The same word without free chunks, and with all of them free. */
MAM__INLINE mam__u64 mam__word_filled(mam__u64 word) { return word & ~(mam__u64)0xffffffff; }
MAM__INLINE mam__u64 mam__word_emptied(mam__u64 word) { return mam__word_filled(word) | mam__word_whole(word); }

/* A run has two usage words.  Bits 40 to 55 of the first one hold the lower 16 bits of its number of pages, those of
 * the second one the upper 16.  The number of chunks is 0 in both, so every free of a chunk there is refused. */
MAM__INLINE mam__u64 mam__run_word(mam__u32 pages) {
  return (mam__u64)MAM__CLASS_RUN << 56 | (mam__u64)(pages & 0xffff) << 40;
}
MAM__INLINE mam__u64 mam__run_word_more(mam__u32 pages) { return (mam__u64)(pages >> 16) << 40; }
MAM__INLINE int mam__word_is_run(mam__u64 word) { return word >> 56 == MAM__CLASS_RUN; }
MAM__INLINE mam__u32 mam__run_pages(mam__u64 word, mam__u64 more) {
  return ((mam__u32)(word >> 40) & 0xffff) | ((mam__u32)(more >> 40) & 0xffff) << 16;
}

/* ---- Entries ---- */

enum {
  /* This number in the place of the size class + 1 says: a request of whole pages. */
  MAM__ENTRY_RUN = 63,
  /* This number says: a span whose objects were moved, whatever its size class was. */
  MAM__ENTRY_MOVED = 62,
  /* This number says: a span that a compaction gave up and that had no objects. */
  MAM__ENTRY_EMPTY = 61,
  /* The size class + 1 has six bits; how far back the span begins has the next six. */
  MAM__ENTRY_CLASS_BITS = 6,
  /* The type stands above both. */
  MAM__ENTRY_TYPE_SHIFT = 12
};

/* The entry of a page that is `back` pages behind the first page of its span. */
MAM__INLINE mam__u16 mam__entry_of(mam__u32 kind, mam__u32 back) {
  return (mam__u16)(((kind & MAM__KIND_CLASS) + 1) | back << MAM__ENTRY_CLASS_BITS |
                    mam__kind_type(kind) << MAM__ENTRY_TYPE_SHIFT);
}
MAM__INLINE mam__u32 mam__entry_back(mam__u32 entry) { return entry >> MAM__ENTRY_CLASS_BITS & 63; }

/* The place of a chunk's usage bit: the number of the word in the superblock, and the bit in it. */
struct mam__bit {
  mam__u32 word, bit;
};

/* The usage bit of the chunk in which an offset from the superblock's first page lies.  The page's entry is that of a
 * span. */
MAM__INLINE struct mam__bit mam__bit_of(mam__u64 offset, mam__u32 entry) {
  mam__u32 size_class = (entry & 63) - 1, shift = mam__class_shift(size_class);
  mam__u32 page = (mam__u32)(offset >> MAM__PAGE_SHIFT), back = mam__entry_back(entry);
  mam__u32 sixteenths = back << (MAM__PAGE_SHIFT - 4) | ((mam__u32)offset & (MAM__PAGE_BYTES - 1)) >> 4;
  mam__u32 chunk = mam__chunk_index(sixteenths, shift, mam__class_multiple(size_class, shift));
  struct mam__bit bit = {(page - back) * MAM__PAGE_WORDS + (chunk >> 5), chunk & 31};
  return bit;
}

/* ---- Slot words ---- */

/* Tickets have 24 bits of a slot's word.  40 remain for the address, and mam__slot_keep keeps tickets from reaching it.
 */
enum { MAM__TICKET_BITS = 24 };

/* In the place of an address: a refill found no pages, or got a chunk of a split span first.  (0 there says that no
 * span was there yet.) */
#define MAM__SLOT_DRY ((mam__u64)1 << MAM__TICKET_BITS)
/* The same: the chunks without a ticket are being freed. */
#define MAM__SLOT_FLUSHED ((mam__u64)2 << MAM__TICKET_BITS)
/* The bits of the tickets. */
#define MAM__SLOT_TICKETS (MAM__SLOT_DRY - 1)

MAM__INLINE mam__u64 mam__slot_address(mam__u64 slot) { return slot >> MAM__TICKET_BITS << MAM__PAGE_SHIFT; }
MAM__INLINE mam__u64 mam__slot_of(mam__u64 address, mam__u32 tickets) {
  return address << (MAM__TICKET_BITS - MAM__PAGE_SHIFT) | tickets;
}
MAM__INLINE int mam__slot_is_dry(mam__u64 slot) { return (slot & ~MAM__SLOT_TICKETS) == MAM__SLOT_DRY; }

/* ---- Request words ----
 *
 * Two words carry a request for chunks through the functions that serve it: `wanted` and `slot`. */

enum {
  /* wanted: the kind. */
  MAM__REST_KIND = (1 << MAM__KIND_BITS) - 1,
  /* wanted: the caller's lanes have the task of refilling the slot. */
  MAM__REST_REFILL = 1 << MAM__KIND_BITS,
  /* wanted: the lanes are so many that they take whole spans, without the slot. */
  MAM__REST_WHOLE = 1 << (MAM__KIND_BITS + 1),
  /* wanted: the home has ten bits from this bit on. */
  MAM__REST_HOME = MAM__KIND_BITS + 2,
  /* wanted: chunks of split spans come first.  The slot was dry, and its tickets were few (mam__slot_rest); or it is
   * dry, and another request has its task; or a refill found that pages are scarce (mam__slot_anew). */
  MAM__REST_DRY = 1 << (MAM__KIND_BITS + 12),
  /* wanted: empty spans are left to their slots. */
  MAM__REST_LAZY = 1 << (MAM__KIND_BITS + 13),
  /* wanted, in mam__malloc_more alone: another thread refills the slot. */
  MAM__REST_WAITS = 1 << (MAM__KIND_BITS + 14)
};
enum {
  /* slot: from this bit on the base-2 logarithm of a span's chunks. */
  MAM__REST_CHUNKS = 28,
  /* slot: the bits below are the slot's number among all. */
  MAM__REST_SLOT = (1 << MAM__REST_CHUNKS) - 1
};

/* 0.  The compiler does not know that, so in a loop that changes `wanted` it computes anew what it adds this to, and
 * keeps no register for it. */
MAM__INLINE mam__u32 mam__request_zero(mam__u32 wanted) { return wanted >> 31; }

/* The pages of the span that a request fills a slot with. */
MAM__INLINE mam__u32 mam__request_pages(mam__u32 wanted, mam__u32 slot) {
  return (mam__class_bytes(wanted & MAM__REST_KIND) << (slot >> MAM__REST_CHUNKS)) >> MAM__PAGE_SHIFT;
}

#endif /* MAM_DETAIL_HEAP_WORDS_H */
