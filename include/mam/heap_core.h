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
 *   bits 32..37  how many chunks the word has
 *   bit      39  watched: whoever frees chunks of it sees to what follows from that
 *   bits 40..43  how many words the span has
 *   bits 44..47  the type of its objects, 0 for none
 *   bits 48..55  how many pages the span has
 *   bits 56..63  size class + 1; 0: no span begins here (then the whole word is 0)
 *
 * A span's words are those of its first page, and the words of all other pages are 0.  So a word's place says where its
 * span begins, and whoever changes a word by compare-and-swap has compared the size class with it.
 *
 * A page's entry says size class and type, and how far back its span begins.  It is written before the span's words and
 * read only where a word confirms it; it is not cleared.
 *
 * A kind is a size class with a type: 15 types can be named by the host, for objects whose pointers it knows, so that
 * they can be moved (compact_core.h).  Spans of different kinds have nothing to do with each other.  Without a type, a
 * kind is its size class.
 *
 * A slot owns a span and hands its chunks out by number (a run of tickets): one addition, no search.  Chunks without a
 * ticket yet count as used, so the span stays while it is in a slot.  Each kind has slots for each multiprocessor.
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
  MAM_PAGE_WORDS = 8,    /* usage words of a page: 32 chunks of 16 bytes each */
  MAM_SPAN_PAGES = 64,   /* at most: a word of the page map */
  MAM_HEAP_CLASSES = 40, /* 16 to 128 by 16, then four for each power of two */
  MAM_HEAP_KINDS = MAM_HEAP_CLASSES + MAM_HEAP_TYPES,
  MAM_CHUNK_BYTES = 32 << 10, /* at most; larger requests get whole pages */
  MAM_CLASS_RUN = 255,        /* in a usage word: a request of whole pages, see mam_run_word */
  MAM_ENTRY_RUN = 63,         /* the same in an entry */
  MAM_ENTRY_MOVED = 62,       /* in an entry: of a span whose objects were moved, whatever its size class was */
  MAM_ENTRY_EMPTY = 61,       /* the same of one that had no objects */
  MAM_ENTRY_CLASS_BITS = 6,   /* size class + 1; then how far back, as many; then the type */
  MAM_ENTRY_TYPE_SHIFT = 12,
  MAM_TICKET_BITS = 24,
  MAM_BLOCK_PAGES = 8, /* of a class map's bit */
  MAM_MAP_LEVELS = 3,
  MAM_WAIT_ROUNDS = 100,             /* for another thread's refill, before going another way */
  MAM_RETRIES = 64,                  /* of a compare-and-swap, before looking elsewhere */
  MAM_AHEAD = 8,                     /* words of a map that are looked at together */
  MAM_KEPT_TURNS = 8,                /* for a place among kept words, before a search */
  MAM_OPENINGS = MAM_HEAP_KINDS + 1, /* one for each class, the last for runs and slots */
  MAM_OPENING_SHARE = 256, /* of the heap's pages: all spans of a class together that are being opened in need */
  MAM_COUNTERS = 64        /* among which a count is divided that many threads raise at once */
};
/* How often a request looks for what it needs while others change what there is, before it fails. */
#ifndef MAM_SCARCE_ROUNDS
#define MAM_SCARCE_ROUNDS 1024
#endif
/* How a heap is tuned, measured on an H200: the chunks of a span as base-2 logarithms, from the least shift in the
 * lowest four bits up; from how many MiB on a heap is roomy; what a slot of each of the common classes holds together;
 * and into how many slots the warps of a multiprocessor are divided at most, as a base-2 logarithm. */
#ifndef MAM_CHUNKS
#define MAM_CHUNKS 0x012345678ull
#define MAM_ROOMY_CHUNKS 0x345667788ull
#define MAM_ROOMY_MIB 256
#define MAM_SLOT_BYTES (352 << 10)
#define MAM_ROOMY_SLOT_BYTES (224 << 10)
#define MAM_WARP_BITS 4
#endif

#if MAM_ON_DEVICE
#define MAM_UNROLL _Pragma("unroll")
#define MAM_LOOP _Pragma("unroll 1") /* where code is better small than quick */
#else
#define MAM_UNROLL
#define MAM_LOOP
#endif
#define MAM_NO_PAGE 0xffffffffu
#define MAM_FULL_WORD 0xffffffffffffffffull

/* A superblock: its metadata from words on, its pages from base on.  Small, to be passed by value: all that a kernel
 * would have to load first costs it a round to the L2 cache. */
struct mam_area {
  mam_u64 base;
  mam_u64 *words;
  mam_u32 page_count, unused;
};

/* How a heap grows under running kernels: see heap_grow.h. */
struct mam_growth {
  mam_u64 *bell;            /* a word of the host's memory, as kernels know it; 0: growth is off */
  mam_u32 patience, unused; /* how long a request waits in all: in units of 2^20 ns */
  mam_u64 rung;             /* atomic: the last that was rung, which only rises */
  mam_u64 reply;            /* atomic; the host's alone */
};

/* The most pointers in an object of a type. */
enum { MAM_TYPE_POINTERS = 64 };

/* What the host said of a type. */
struct mam_type_info {
  mam_u32 kind;  /* 0: there is no such type */
  mam_u32 bytes; /* of an object, as the host said */
  mam_u32 pointer_count, unused;
  mam_u16 pointers[MAM_TYPE_POINTERS]; /* where they are in an object, in units of 8 bytes */
};

struct mam_site;

/* Followed in memory by the homes' cursors and then the slots. */
struct mam_heap_control {
  mam_heap heap;
  mam_u32 superblock_count; /* atomic: published after the superblock */
  mam_u32 active;           /* atomic: the superblock to try first, published after it */
  mam_u32 run_cursor;       /* atomic, a hint: where to look for long runs */
  mam_u32 kept_cursor;      /* atomic, a hint: where to look for words that are kept */
  mam_u32 kept_end;         /* atomic, a hint: and where such words end */
  mam_u32 home_count;
  mam_u64 answer;                  /* to a question of the host */
  mam_u64 refused_free;            /* an atomic count */
  mam_u64 failures[MAM_COUNTERS];  /* atomic counts, of which the sum counts: see mam_failed */
  mam_u32 mode;                    /* atomic: how empty spans of the first superblock end, see mam_sweep */
  mam_u32 sweep_next, sweep_done;  /* atomic: words of its page map that were begun and done */
  mam_u32 opening[MAM_OPENINGS];   /* atomic: how many hold what others may get: see mam_claim_scarce */
  mam_u32 missing[MAM_HEAP_KINDS]; /* atomic: the stamps with which nothing was found */
  mam_u32 parked;                  /* atomic: what superblocks that wait in parks take, see mam_parks */
  mam_u64 held[MAM_HEAP_KINDS];    /* atomic: which groups of each kind's slots may hold chunks, see mam_held_bit */
  mam_u64 parks_held;              /* atomic: which groups of parks may hold anything, see mam_parks_raise */
  struct mam_area superblocks[MAM_HEAP_SUPERBLOCKS];
  struct mam_type_info types[MAM_HEAP_TYPES]; /* of type i + 1; written once */
  struct mam_growth growth;
  struct mam_site *sites; /* constant; 0: nothing is recorded.  See heap_record.h */
};

/* The most homes; the most parks of a multiprocessor, one for each warp, and the memory that is counted for each. */
enum { MAM_HOMES = 1024, MAM_PARKS = 64, MAM_PARK_BYTES = 10 << 10 };

MAM_INLINE mam_u64 *mam_cursors(struct mam_heap_control *control) { return (mam_u64 *)(control + 1); }
MAM_INLINE mam_u64 *mam_slots(struct mam_heap_control *control) { return mam_cursors(control) + MAM_HOMES; }
/* After the slots: parks, of two words each.  In the first waits a header of warp heaps that was ended for its next
 * user (warp_core.h), in the second a superblock; 0: none.  The second says with the address, in units of 16 bytes, how
 * many of these the superblock has, or had that was taken last; control->parked is the sum of these numbers. */
MAM_INLINE mam_u64 *mam_parks(struct mam_heap_control *control) {
  return mam_slots(control) + (mam_u64)control->heap.slot_count * MAM_HEAP_KINDS;
}
enum { MAM_PARK_WORDS = 2, MAM_PARK_NUMBER_BITS = 20 };
MAM_INLINE mam_u32 mam_home_count(const mam_heap *heap) { return (heap->home_last >> heap->home_shift) + 1u; }

MAM_INLINE mam_u64 mam_park_address(mam_u64 word) { return word >> MAM_PARK_NUMBER_BITS << 4; }
MAM_INLINE mam_u32 mam_park_number(mam_u64 word) { return (mam_u32)word & ((1u << MAM_PARK_NUMBER_BITS) - 1); }

/* Chunks that were claimed: of chunk_bytes each, at address where the bits of mask are 1, counted from 0. */
struct mam_claim {
  mam_u64 address;
  mam_u32 mask, chunk_bytes;
};

/* ---- Size classes ----
 *
 * A class is a shift and a multiple: chunks of (multiple << shift) * 16 bytes, where the multiple is 1 to 8 at shift 0
 * and 5 to 8 above.  A kind is a size class with a type above its bits; where a size class is wanted below, it may be a
 * kind, unless it says otherwise. */

enum { MAM_KIND_CLASS = 63, MAM_KIND_TYPE_SHIFT = 6, MAM_KIND_BITS = 10 };

MAM_INLINE mam_u32 mam_kind_of(mam_u32 size_class, mam_u32 type) { return size_class | type << MAM_KIND_TYPE_SHIFT; }
MAM_INLINE mam_u32 mam_kind_type(mam_u32 kind) { return kind >> MAM_KIND_TYPE_SHIFT; }
/* Kinds are numbered: size classes, then types. */
MAM_INLINE mam_u32 mam_kind_number(mam_u32 kind) {
  return mam_kind_type(kind) == 0 ? kind : MAM_HEAP_CLASSES - 1 + mam_kind_type(kind);
}
/* The kind of a number; MAM_NO_KIND if there is no such type. */
#define MAM_NO_KIND 0xffffffffu
MAM_INLINE mam_u32 mam_kind_numbered(const struct mam_heap_control *control, mam_u32 number) {
  if (number < MAM_HEAP_CLASSES)
    return number;
  return control->types[number - MAM_HEAP_CLASSES].kind == 0 ? MAM_NO_KIND
                                                             : control->types[number - MAM_HEAP_CLASSES].kind;
}

MAM_INLINE mam_u32 mam_class_shift_of(mam_u32 sixteenths_less_1) {
  mam_u32 zeros = mam_leading_zeros_u32(sixteenths_less_1);
  return zeros < 29 ? 29 - zeros : 0;
}
MAM_INLINE mam_u32 mam_class_shift(mam_u32 kind) {
  mam_u32 size_class = kind & MAM_KIND_CLASS;
  return size_class < 8 ? 0 : (size_class >> 2) - 1;
}
MAM_INLINE mam_u32 mam_class_multiple(mam_u32 kind, mam_u32 shift) { return (kind & MAM_KIND_CLASS) - 4 * shift + 1; }
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

#define MAM_WORD_WATCHED (1ull << 39)

MAM_INLINE mam_u64 mam_word_of(mam_u32 kind, mam_u32 pages, mam_u32 words, mam_u32 chunks) {
  mam_u32 high = ((kind & MAM_KIND_CLASS) + 1) << 24 | pages << 16 | mam_kind_type(kind) << 12 | words << 8 | chunks;
  return (mam_u64)high << 32;
}
/* The kind; none of the heap's if no span begins there. */
MAM_INLINE mam_u32 mam_word_class(mam_u64 word) {
  return ((mam_u32)(word >> 56) - 1) | ((mam_u32)(word >> 44) & 15) << MAM_KIND_TYPE_SHIFT;
}
MAM_INLINE mam_u32 mam_word_span_pages(mam_u64 word) { return (mam_u32)(word >> 48) & 255; }
MAM_INLINE mam_u32 mam_word_span_words(mam_u64 word) { return (mam_u32)(word >> 40) & 15; }
MAM_INLINE mam_u32 mam_word_chunks(mam_u64 word) { return (mam_u32)(word >> 32) & 63; }
MAM_INLINE mam_u32 mam_word_full(mam_u64 word) { return 0xffffffffu >> (32 - mam_word_chunks(word)); }

/* A request of whole pages has two usage words, in whose bits 32 to 55 the lower and the upper half of the number of
 * its pages are.  The lower half of a usage word is all that mam_free changes, so a wrong free inside a run changes
 * nothing. */
MAM_INLINE mam_u64 mam_run_word(mam_u32 pages) {
  return (mam_u64)MAM_CLASS_RUN << 56 | (mam_u64)(pages & 0xffffff) << 32;
}
MAM_INLINE mam_u64 mam_run_word_more(mam_u32 pages) { return (mam_u64)(pages >> 24) << 32; }
MAM_INLINE int mam_word_is_run(mam_u64 word) { return word >> 56 == MAM_CLASS_RUN; }
MAM_INLINE mam_u32 mam_run_pages(mam_u64 word, mam_u64 more) {
  return ((mam_u32)(word >> 32) & 0xffffff) | (mam_u32)(more >> 32) << 24;
}

/* ---- Maps ---- */

MAM_INLINE mam_u64 mam_run_bits(mam_u32 count, mam_u32 from) { return (MAM_FULL_WORD >> (64 - count)) << from; }

/* The word of the lowest level at index was seen to lose its last 1: says so above. */
MAM_OUTLINE void mam_map_opened(mam_u64 *level, mam_u32 count, mam_u32 index) {
  MAM_LOOP
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
  MAM_LOOP
  for (int above = 1; above < MAM_MAP_LEVELS; above++) {
    mam_u64 *upper = level + count, bit = 1ull << (index & 63);
    /* acq_rel: ordered with mam_map_opened's on the same word.  If that came first, the look below sees its cause. */
    mam_u64 old = mam_or_acq_rel_u64(&upper[index >> 6], bit);
    if (mam_load_relaxed_u64(&level[index]) != MAM_FULL_WORD) {
      /* Of the level above there is only one more: mam_map_opened would go on into the next map. */
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

/* The first word of the lowest level from index on that may have a 0; count if there is none. */
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

/* Words of all levels of a map. */
MAM_INLINE mam_u32 mam_map_words(mam_u32 count) {
  mam_u32 second = (count + 63) >> 6;
  return count + second + ((second + 63) >> 6);
}

/* ---- Superblocks ----
 *
 * In the order of addresses: the owners, the shortage and the stamp, the usage words, the page map, the class maps, the
 * moved pages, the kept words, the parts' shortages, the entries, the rings. */

/* The owner of the span that begins at a page: the slot, by its number in its kind plus 1, to which the span was given
 * last; MAM_OWNER_NONE if it never was in a slot; 0 if no span begins there, or it is being made.  Written before the
 * span's words and cleared before its pages are given back. */
#define MAM_OWNER_NONE 0xffffu
MAM_INLINE mam_u16 *mam_page_owner(mam_u64 *words, mam_u32 page) { return (mam_u16 *)(words - 1) - 1 - page; }
MAM_INLINE mam_u64 mam_owners_bytes(mam_u32 pages) { /* so that the usage words after it share few sectors */
  return ((2 * (mam_u64)pages + 8 + 63) & ~(mam_u64)63) - 8;
}
/* Where a superblock's metadata begins, and a superblock whose metadata is a copy elsewhere. */
MAM_INLINE mam_u64 *mam_area_metadata(struct mam_area area) {
  return area.words - 1 - mam_owners_bytes(area.page_count) / 8;
}
MAM_INLINE struct mam_area mam_area_copied(struct mam_area area, mam_u64 *metadata) {
  area.words = metadata + mam_owners_bytes(area.page_count) / 8 + 1;
  return area;
}

MAM_INLINE mam_u32 *mam_area_shortage(struct mam_area area) { return (mam_u32 *)(area.words - 1); }
MAM_INLINE mam_u32 mam_area_map_words(struct mam_area area) { return (area.page_count + 63) >> 6; }
MAM_INLINE mam_u64 *mam_area_pages(struct mam_area area) {
  return area.words + (mam_u64)area.page_count * MAM_PAGE_WORDS;
}
/* Of the class maps. */
MAM_INLINE mam_u32 mam_area_class_words(struct mam_area area) {
  return (area.page_count + 64 * MAM_BLOCK_PAGES - 1) / (64 * MAM_BLOCK_PAGES);
}
MAM_INLINE mam_u64 *mam_area_class(struct mam_area area, mam_u32 size_class) {
  return mam_area_pages(area) + mam_map_words(mam_area_map_words(area)) +
         (mam_u64)mam_kind_number(size_class) * mam_map_words(mam_area_class_words(area));
}
/* A bit for each page: 1 if what was in it has been moved elsewhere.  0 but between the begin of a compaction and its
 * end. */
MAM_INLINE mam_u64 *mam_area_moved(struct mam_area area) {
  return mam_area_class(area, mam_kind_of(0, 1)) + (mam_u64)MAM_HEAP_TYPES * mam_map_words(mam_area_class_words(area));
}
/* A map with a bit for each word of the page map: 0 if it is kept for long runs, see mam_kept_take. */
MAM_INLINE mam_u32 mam_area_kept_words(struct mam_area area) { return (mam_area_map_words(area) + 63) >> 6; }
MAM_INLINE mam_u64 *mam_area_kept(struct mam_area area) { return mam_area_moved(area) + mam_area_map_words(area); }
/* The page map in parts of 64 words: what each is known not to have, a number as the superblock's shortage. */
MAM_INLINE mam_u32 *mam_area_parts(struct mam_area area) {
  return (mam_u32 *)(mam_area_kept(area) + mam_map_words(mam_area_kept_words(area)));
}
MAM_INLINE mam_u16 *mam_area_entries(struct mam_area area) {
  return (mam_u16 *)(mam_area_parts(area) + ((mam_area_kept_words(area) + 1) & ~1u));
}
MAM_INLINE mam_u16 *mam_area_rings(struct mam_area area) { return mam_area_entries(area) + area.page_count; }
MAM_INLINE mam_u64 mam_area_address(struct mam_area area, mam_u32 page) {
  return area.base + ((mam_u64)page << MAM_PAGE_SHIFT);
}

/* ---- Shortage ----
 *
 * What a superblock is known not to have, and what each part of it, so that not everybody searches where there is
 * nothing: a number (23 bits, raised by each change), a bit that says that somebody searches, and a length of runs, 0
 * if nothing is known.  Who searches says so before and confirms it after, if nothing changed: pages that come back in
 * between undo it.  Who finds a run leaves what was known of longer ones. */

enum { MAM_SHORT_PAGES = 255, MAM_SHORT_SEARCHING = 256, MAM_SHORT_NUMBER = 512 };

MAM_INLINE mam_u32 mam_shortage_next(mam_u32 shortage, mam_u32 low) {
  return (shortage & ~(mam_u32)(MAM_SHORT_NUMBER - 1)) + MAM_SHORT_NUMBER + low;
}
/* Whether there is known to be no run of so many pages. */
MAM_INLINE int mam_shortage_covers(mam_u32 shortage, mam_u32 pages) {
  return (shortage & MAM_SHORT_PAGES) != 0 && pages >= (shortage & MAM_SHORT_PAGES);
}

/* ---- Stamps ----
 *
 * A superblock's stamp tells whether anything has come back: pages, or a chunk where none was.  It is odd while
 * somebody relies on it; then whoever gives something back makes it the next even number.  Who looks for something
 * makes all stamps odd, looks everywhere, and knows that it is not there if the sum of the stamps is the same after. So
 * a full heap is known to be full, and what frees cost without that is one look. */

MAM_INLINE mam_u32 *mam_area_stamp(struct mam_area area) { return (mam_u32 *)(area.words - 1) + 1; }

/* Relies on all stamps; returns their sum. */
MAM_OUTLINE mam_u32 mam_stamps_rely(MAM_TAG(1) struct mam_heap_control *control) {
  mam_u32 sum = 0, superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++) {
    mam_u32 *stamp = mam_area_stamp(control->superblocks[i]), seen = mam_load_acquire_u32(stamp);
    sum += (seen & 1) != 0 ? seen : mam_or_acq_rel_u32(stamp, 1) | 1;
  }
  mam_fence_all(); /* pairs with mam_returned */
  return sum;
}

/* Their sum as it is; 0 if nobody relies on the first. */
MAM_INLINE mam_u32 mam_stamps_sum(struct mam_heap_control *control, struct mam_area first) {
  mam_u32 sum = mam_load_acquire_u32(mam_area_stamp(first));
  if ((sum & 1) == 0)
    return 0;
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 1; i < superblocks; i++)
    sum += mam_load_acquire_u32(mam_area_stamp(control->superblocks[i]));
  return sum;
}

/* ---- Pages ---- */

/* Something has come back: what was known to be missing may be there. */
MAM_OUTLINE void mam_stamp_raise(mam_u32 *stamp) {
  mam_u32 known = mam_load_relaxed_u32(stamp);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (known & 1) != 0; i++) {
    mam_u32 seen = mam_cas_acq_rel_u32(stamp, known, known + 1);
    if (seen == known)
      return;
    known = seen;
  }
}

/* Whether anything is known of a superblock that a chunk which the caller has just given back may have made untrue. */
MAM_INLINE int mam_chunk_matters(struct mam_area area) {
  return (mam_look_after_change_u32(mam_area_stamp(area)) & 1) != 0;
}

/* The same of pages, in a word of the page map.  A run that begins in one part may end in the next. */
MAM_INLINE int mam_returned_matters(struct mam_area area, mam_u32 index) {
  const mam_u32 *part = &mam_area_parts(area)[index >> 6];
  mam_u32 before = (index & 63) == 0 && index != 0, stamp = mam_look_after_change_u32(mam_area_stamp(area));
  mam_u32 known =
      mam_load_relaxed_u32(mam_area_shortage(area)) | mam_load_relaxed_u32(part) | mam_load_relaxed_u32(part - before);
  return ((known & (MAM_SHORT_NUMBER - 1)) | (stamp & 1)) != 0;
}

/* The same of pages in several words of the page map, eight parts at a time. */
MAM_OUTLINE int mam_words_matter(MAM_TAG(1) mam_u32 index, mam_u32 words, struct mam_area area) {
  mam_u32 part = index == 0 ? 0 : (index - 1) >> 6, last = (index + words - 1) >> 6;
  mam_u32 stamp = mam_look_after_change_u32(mam_area_stamp(area)),
          known = mam_load_relaxed_u32(mam_area_shortage(area));
  MAM_LOOP
  for (; part <= last; part += MAM_AHEAD) {
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_AHEAD; i++)
      known |= mam_load_relaxed_u32(&mam_area_parts(area)[part + i < last ? part + i : last]);
  }
  return ((known & (MAM_SHORT_NUMBER - 1)) | (stamp & 1)) != 0;
}

MAM_OUTLINE void mam_shortage_end(MAM_TAG(1) mam_u32 *shortage) {
  mam_u32 known = mam_load_relaxed_u32(shortage);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (known & (MAM_SHORT_NUMBER - 1)) != 0; i++) {
    mam_u32 seen = mam_cas_acq_rel_u32(shortage, known, mam_shortage_next(known, 0));
    if (seen == known)
      return;
    known = seen;
  }
}

/* Pages have come back, in so many words of the page map. */
MAM_INLINE void mam_pages_back(struct mam_area area, mam_u32 index, mam_u32 words) {
  mam_u32 part = index == 0 ? 0 : (index - 1) >> 6, last = (index + words - 1) >> 6;
  MAM_LOOP
  for (; part <= last; part++) {
    MAM_FORGET(area.page_count); /* not kept over a call */
    MAM_OUT_OF_SIGHT(mam_shortage_end)(&mam_area_parts(area)[part]);
  }
  mam_fence_all(); /* who searches relies on the parts after it has said so of the superblock: see mam_pages_search */
  MAM_OUT_OF_SIGHT(mam_shortage_end)(mam_area_shortage(area));
  MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
}
MAM_OUTLINE void mam_pages_returned(mam_u32 index, mam_u32 words, struct mam_area area) {
  mam_pages_back(area, index, words);
}

/* Gives bits of a word of the page map back that the caller owns. */
MAM_OUTLINE void mam_pages_clear(struct mam_area area, mam_u32 index, mam_u64 bits) {
  /* acq_rel: what the pages' last users did comes before what their next ones do. */
  if (mam_and_acq_rel_u64(&mam_area_pages(area)[index], ~bits) == MAM_FULL_WORD)
    MAM_OUT_OF_SIGHT(mam_map_opened)(mam_area_pages(area), mam_area_map_words(area), index);
  MAM_FORGET(area.page_count);
  if (mam_returned_matters(area, index))
    mam_pages_back(area, index, 1);
}

/* Says of whole words of a map, from index on, that have just become 0, that they have zeros. */
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

MAM_OUTLINE void mam_pages_release(MAM_TAG(2) struct mam_area area, mam_u32 page, mam_u32 count) {
  area.base = 0; /* what is not used need not be kept over the calls */
  MAM_LOOP
  while (count != 0) {
    MAM_FORGET(area.page_count);
    mam_u32 from = page & 63, here = 64 - from < count ? 64 - from : count;
    if (from == 0 && count >= 128) {
      mam_u32 words = count >> 6;
      here = words << 6;
      MAM_LOOP
      for (mam_u32 i = 0; i < words; i++) /* release: as in mam_pages_clear; nobody else changes these words */
        (void)mam_exchange_release_u64(&mam_area_pages(area)[(page >> 6) + i], 0);
      MAM_OUT_OF_SIGHT(mam_map_words_opened)(mam_area_pages(area), mam_area_map_words(area), page >> 6, words);
      if (MAM_OUT_OF_SIGHT(mam_words_matter)(page >> 6, words, area))
        MAM_OUT_OF_SIGHT(mam_pages_returned)(page >> 6, words, area);
    } else
      MAM_OUT_OF_SIGHT(mam_pages_clear)(area, page >> 6, mam_run_bits(here, from));
    page += here;
    count -= here;
  }
}

/* Takes bits of a word of a map if all of them are 0. */
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

/* The lowest place in the word where count bits are 0 in a row; 64 if there is none. */
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

/* Several words of a map as one look; those beyond its end are other metadata. */
MAM_INLINE void mam_map_read(const mam_u64 *word, mam_u64 seen[MAM_AHEAD]) {
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    seen[i] = mam_load_relaxed_u64(word + i);
}

/* Which of them have so many zeros in a row: a bit each. */
MAM_OUTLINE mam_u32 mam_map_look(mam_u32 count, const mam_u64 *word) {
  mam_u64 seen[MAM_AHEAD];
  mam_u32 fits = 0;
  mam_map_read(word, seen);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    fits |= (mam_u32)(mam_run_find(seen[i], count) != 64) << i;
  return fits;
}

/* Which of them but the last have them, and, eight bits above, at their end and the beginning of the next together. */
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

/* Takes so many zeros in a row of one word of a map, if it has them and keeps them: the lowest. */
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

/* The same of the first word that has them from first on and before last. */
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

/* Takes whole words of a map from index on, as long as they are 0, up to count of them; returns how many.  Several at a
 * time are under way.  mam_map_words_filled says above that they are full. */
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
    for (mam_u32 i = good + 1; i < here; i++) /* behind the first that was not to be had */
      if ((failed >> i & 1) == 0)
        (void)mam_exchange_release_u64(&level[index + got + i], 0);
    got += good;
    if (failed != 0)
      break;
  }
  return got;
}

/* Says of whole words of a map, from index on, which the caller owns, that they are full. */
MAM_OUTLINE void mam_map_words_filled(mam_u64 *level, mam_u32 words, mam_u32 index, mam_u32 count) {
  MAM_LOOP
  while (count != 0) {
    mam_u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    (void)mam_or_acq_rel_u64(&level[words + (index >> 6)], mam_run_bits(here, from));
    index += here;
    count -= here;
  }
}

/* Takes as much of a run from page on as is free, up to count pages; returns how much. */
MAM_OUTLINE mam_u32 mam_run_take_at(mam_u32 page, mam_u32 count, struct mam_area area) {
  mam_u64 *map = mam_area_pages(area);
  mam_u32 got = 0;
  MAM_LOOP
  while (got < count) {
    mam_u32 from = (page + got) & 63, here = 64 - from < count - got ? 64 - from : count - got;
    if (from == 0 && count - got >= 128) {
      mam_u32 words = (count - got) >> 6, taken = MAM_OUT_OF_SIGHT(mam_map_take_words)(map, (page + got) >> 6, words);
      MAM_OUT_OF_SIGHT(mam_map_words_filled)(map, mam_area_map_words(area), (page + got) >> 6, taken);
      got += taken << 6;
      if (taken < words)
        break;
      continue;
    }
    if (!MAM_OUT_OF_SIGHT(mam_map_take)(map, mam_area_map_words(area), (page + got) >> 6, mam_run_bits(here, from)))
      break;
    got += here;
  }
  return got;
}

/* Takes a run of up to 64 pages at the end of a word and the beginning of the next.  The page, MAM_NO_PAGE, or, if it
 * got the first part alone, the number of its pages: what is then to be done calls more than a search should. */
MAM_INLINE mam_u32 mam_run_take_across(mam_u32 count, mam_u32 index, const struct mam_area *area, mam_u32 *part) {
  mam_u32 end = mam_leading_zeros_u64(mam_load_relaxed_u64(&mam_area_pages(*area)[index]));
  end = end < count ? end : count - 1;
  if (end == 0 || !MAM_OUT_OF_SIGHT(mam_map_take)(mam_area_pages(*area), mam_area_map_words(*area), index,
                                                  mam_run_bits(end, 64 - end)))
    return MAM_NO_PAGE;
  MAM_FORGET_ADDRESS(area);
  if (MAM_OUT_OF_SIGHT(mam_map_take)(mam_area_pages(*area), mam_area_map_words(*area), index + 1,
                                     mam_run_bits(count - end, 0)))
    return ((index + 1) << 6) - end;
  *part = end;
  return MAM_NO_PAGE;
}

/* Where a search in the page map is, and what it found: page, or MAM_NO_PAGE.  part: so many pages at the end of the
 * word at index were taken for nothing, and are to be given back. */
struct mam_take {
  mam_u32 page, index, part;
};

/* Takes the first run of up to 64 pages that begins in a word of the page map from first on and before last. */
MAM_OUTLINE struct mam_take mam_run_take_near(mam_u32 count, mam_u32 first, mam_u32 last, const struct mam_area *area) {
  struct mam_take take = {MAM_NO_PAGE, first, 0};
  mam_u32 tries = 0;
  MAM_LOOP
  while (take.index < last) {
    MAM_FORGET_ADDRESS(area);
    mam_u32 fits = MAM_OUT_OF_SIGHT(mam_map_look_both)(count, mam_area_pages(*area), take.index);
    mam_u32 at = fits != 0 ? mam_lowest_u32(fits | fits >> 8) : MAM_AHEAD - 1;
    take.index += at;
    if (take.index >= last || at == MAM_AHEAD - 1)
      continue;
    MAM_FORGET_ADDRESS(area);
    if ((fits >> at & 1) != 0)
      take.page =
          MAM_OUT_OF_SIGHT(mam_map_take_in)(take.index, mam_area_pages(*area), mam_area_map_words(*area), count);
    else if (take.index + 1 < mam_area_map_words(*area))
      take.page = mam_run_take_across(count, take.index, area, &take.part);
    else
      take.index++;
    if (take.page != MAM_NO_PAGE || take.part != 0)
      return take;
    if (++tries % MAM_RETRIES == 0)
      take.index++;
  }
  return take;
}

/* The same, and gives back what was taken for nothing. */
MAM_INLINE mam_u32 mam_run_take(mam_u32 count, mam_u32 first, mam_u32 last, const struct mam_area *area) {
  mam_u32 tries = 0;
  MAM_LOOP
  while (first < last) {
    struct mam_take take = MAM_OUT_OF_SIGHT(mam_run_take_near)(count, first, last, area);
    if (take.part == 0)
      return take.page;
    MAM_OUT_OF_SIGHT(mam_pages_clear)(*area, take.index, mam_run_bits(take.part, 64 - take.part));
    first = ++tries % MAM_RETRIES == 0 ? take.index + 1 : take.index;
  }
  return MAM_NO_PAGE;
}

/* Takes a run of any length, over the ends of words too. */
MAM_OUTLINE mam_u32 mam_run_take_long(MAM_TAG(3) const struct mam_area *area, mam_u32 count, mam_u32 first,
                                      mam_u32 last) {
  mam_u32 start = first << 6; /* pages from here on may be free */
  MAM_LOOP
  for (mam_u32 index = first; index < last; index++) {
    mam_u32 begin = index << 6, end = begin + 64;
    mam_u64 word = mam_load_relaxed_u64(&mam_area_pages(*area)[index]);
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
          index = MAM_OUT_OF_SIGHT(mam_map_next)(mam_area_pages(*area), mam_area_map_words(*area), index + 1) - 1;
          start = (index + 1) << 6;
        }
        continue;
      }
    }
    if (end < start + count)
      continue;
    mam_u32 got = MAM_OUT_OF_SIGHT(mam_run_take_at)(start, count, *area);
    if (got == count)
      return start;
    MAM_OUT_OF_SIGHT(mam_pages_release)(*area, start, got);
    start += got + 1;
    index = (start >> 6) - 1;
    if ((start & 63) == 0)
      continue;
  }
  return MAM_NO_PAGE;
}

/* Says that somebody searches; what to confirm it by, 0 if somebody else does. */
MAM_INLINE mam_u32 mam_shortage_begin(mam_u32 *shortage, mam_u32 known) {
  mam_u32 mark = mam_shortage_next(known, MAM_SHORT_SEARCHING | (known & MAM_SHORT_PAGES));
  return (known & MAM_SHORT_SEARCHING) == 0 && mam_cas_acq_rel_u32(shortage, known, mark) == known ? mark : 0;
}

/* Says what a search found, if nothing changed since it began.  What is known of longer runs stays so if it found one.
 */
MAM_INLINE void mam_shortage_confirm(mam_u32 *shortage, mam_u32 mark, mam_u32 count, int found) {
  if (mark != 0)
    (void)mam_cas_acq_rel_u32(shortage, mark, mam_shortage_next(mark, found ? mark & MAM_SHORT_PAGES : count));
}

/* A run of up to 64 pages that begins in a part of the page map, from one of its words on, then from its beginning. */
MAM_OUTLINE mam_u32 mam_part_search(MAM_TAG(2) const struct mam_area *area, mam_u32 part, mam_u32 count, mam_u32 from) {
  mam_u32 mark = mam_load_relaxed_u32(&mam_area_parts(*area)[part]), page = MAM_NO_PAGE;
  if (mam_shortage_covers(mark, count))
    return MAM_NO_PAGE;
  mark = mam_shortage_begin(&mam_area_parts(*area)[part], mark);
  mam_fence_all(); /* pairs with mam_returned_matters */
  MAM_LOOP
  for (int i = 0; i < 2 && page == MAM_NO_PAGE; i++) {
    mam_u32 first = part << 6, end = first + 64 < mam_area_map_words(*area) ? first + 64 : mam_area_map_words(*area);
    mam_u32 middle = first + from < end ? first + from : first;
    page = mam_run_take(count, i == 0 ? middle : first, i == 0 ? end : middle, area);
    MAM_FORGET(part); /* not kept over the calls */
    MAM_FORGET_ADDRESS(area);
  }
  mam_shortage_confirm(&mam_area_parts(*area)[part], mark, count, page != MAM_NO_PAGE);
  return page;
}

/* The first part from one on and before end that may have a run of count pages; end if there is none.  Parts where
 * somebody searches only if all is not 0. */
enum { MAM_PARTS_AHEAD = 4 };
MAM_OUTLINE mam_u32 mam_parts_next(MAM_TAG(1) const mam_u32 *parts, mam_u32 part, mam_u32 end, mam_u32 count,
                                   mam_u32 all) {
  MAM_LOOP
  for (; part < end; part += MAM_PARTS_AHEAD) {
    mam_u32 seen[MAM_PARTS_AHEAD], open = 0;
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_PARTS_AHEAD; i++)
      seen[i] = mam_load_relaxed_u32(&parts[part + i < end ? part + i : part]);
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_PARTS_AHEAD; i++)
      open |= (mam_u32)(part + i < end && !mam_shortage_covers(seen[i], count) &&
                        (all != 0 || (seen[i] & MAM_SHORT_SEARCHING) == 0))
              << i;
    if (open != 0)
      return part + mam_lowest_u32(open);
  }
  return end;
}

/* A run of up to 64 pages, from word index on, then from the beginning; at first where nobody else searches, so that
 * all who search look at all once. */
MAM_OUTLINE mam_u32 mam_pages_search(MAM_TAG(4) const struct mam_area *area, mam_u32 count, mam_u32 index) {
  mam_u32 mark = mam_load_relaxed_u32(mam_area_shortage(*area)), page = MAM_NO_PAGE;
  if (count > area->page_count || mam_shortage_covers(mark, count))
    return MAM_NO_PAGE;
  mark = mam_shortage_begin(mam_area_shortage(*area), mark);
  mam_fence_all(); /* pairs with mam_returned_matters and mam_pages_returned */
  MAM_LOOP
  for (mam_u32 turn = 0; turn < 4 && page == MAM_NO_PAGE; turn++) {
    mam_u32 part = (turn & 1) == 0 ? index >> 6 : 0;
    MAM_LOOP
    for (; page == MAM_NO_PAGE; part++) {
      mam_u32 end = (turn & 1) == 0 ? mam_area_kept_words(*area) : index >> 6;
      part = MAM_OUT_OF_SIGHT(mam_parts_next)(mam_area_parts(*area), part, end, count, turn >> 1);
      if (part >= end)
        break;
      page = MAM_OUT_OF_SIGHT(mam_part_search)(area, part, count, part == index >> 6 ? index & 63 : 0);
    }
  }
  mam_shortage_confirm(mam_area_shortage(*area), mark, count, page != MAM_NO_PAGE);
  return page;
}

/* A longer run, from word index on, then from the beginning. */
MAM_INLINE mam_u32 mam_run_search(const struct mam_area *area, mam_u32 count, mam_u32 index) {
  mam_u32 known = mam_load_relaxed_u32(mam_area_shortage(*area)), page = MAM_NO_PAGE;
  if (count > area->page_count || mam_shortage_covers(known, count))
    return MAM_NO_PAGE;
  MAM_LOOP
  for (int i = 0; i < 2 && page == MAM_NO_PAGE; i++)
    page = MAM_OUT_OF_SIGHT(mam_run_take_long)(area, count, i == 0 ? index : 0, mam_area_map_words(*area));
  return page;
}

/* Where pages are; page is MAM_NO_PAGE if nowhere. */
struct mam_place {
  struct mam_area area;
  mam_u32 page;
};

/* The same, of a superblock in a heap's control block: less for a function to keep. */
struct mam_found {
  const struct mam_area *area;
  mam_u32 page;
};

/* ---- Kept words ----
 *
 * In a lazy heap the whole words of the page map that a long run of the first superblock had are kept when it is freed:
 * the map of kept words has a 0 for each of them, so the next long run takes 64 words, 16 MiB, by one atomic operation.
 */

/* Keeps words of the page map that the caller owns. */
MAM_OUTLINE void mam_kept_give(MAM_TAG(1) struct mam_area area, mam_u32 index, mam_u32 count) {
  mam_u64 *level = mam_area_kept(area);
  MAM_LOOP
  while (count != 0) {
    mam_u32 from = index & 63, here = 64 - from < count ? 64 - from : count;
    /* release: what the pages' last users did comes before what their next ones do. */
    (void)mam_and_release_u64(&level[index >> 6], ~mam_run_bits(here, from));
    MAM_OUT_OF_SIGHT(mam_map_words_opened)(level, mam_area_kept_words(area), index >> 6, 1);
    index += here;
    count -= here;
  }
}

/* Takes kept words, more than 64 in a row, from a word of their map on.  Those from count on that end with it are given
 * back. */
MAM_OUTLINE int mam_kept_take_words(MAM_TAG(1) mam_u32 at, mam_u32 count, const struct mam_area *area) {
  mam_u64 *level = mam_area_kept(*area);
  mam_u32 words = mam_area_kept_words(*area), whole = (count + 63) >> 6;
  mam_u32 got = MAM_OUT_OF_SIGHT(mam_map_take_words)(level, at, whole), used = got == whole ? count : 0;
  MAM_OUT_OF_SIGHT(mam_map_words_filled)(level, words, at, got);
  MAM_OUT_OF_SIGHT(mam_kept_give)(*area, (at << 6) + used, (got << 6) - used);
  return got == whole;
}

/* The same of the first that are there, from a word of their map on and before last. */
MAM_OUTLINE mam_u32 mam_kept_take_long(MAM_TAG(1) const struct mam_area *area, mam_u32 count, mam_u32 first,
                                       mam_u32 last) {
  mam_u32 words = mam_area_kept_words(*area), whole = (count + 63) >> 6;
  MAM_LOOP
  while ((first = MAM_OUT_OF_SIGHT(mam_map_next)(mam_area_kept(*area), words, first)) + whole <= last) {
    if (MAM_OUT_OF_SIGHT(mam_kept_take_words)(first, count, area))
      return first << 6;
    first++;
  }
  return MAM_NO_PAGE;
}

/* Takes kept words, so many in a row, the first that are there from index on, then from the beginning. */
MAM_OUTLINE mam_u32 mam_kept_take(MAM_TAG(1) const struct mam_area *area, mam_u32 count, mam_u32 index) {
  mam_u64 *level = mam_area_kept(*area);
  mam_u32 words = mam_area_kept_words(*area), place = index >> 6, found;
  if (count > 64) {
    found = MAM_OUT_OF_SIGHT(mam_kept_take_long)(area, count, place, words);
    return found != MAM_NO_PAGE ? found : MAM_OUT_OF_SIGHT(mam_kept_take_long)(area, count, 0, words);
  }
  found = MAM_OUT_OF_SIGHT(mam_map_take_run)(level, words, count, place, words);
  return found != MAM_NO_PAGE ? found : MAM_OUT_OF_SIGHT(mam_map_take_run)(level, words, count, 0, place);
}

/* Words are taken where a turn says, so that those who ask for as many at the same time do not meet: in places side by
 * side, of which none goes over the end of a word of the map, or begins within one if it is longer.  MAM_NO_PAGE if
 * there is none before end. */
MAM_INLINE mam_u32 mam_kept_place(mam_u32 turn, mam_u32 count, mam_u32 end) {
  if (count > 64) {
    mam_u32 whole = (count + 63) >> 6, places = (end >> 6) / whole;
    return places == 0 ? (mam_u32)MAM_NO_PAGE : turn % places * whole << 6;
  }
  mam_u32 in_word = 64 / count, places = (end >> 6) * in_word + (end & 63) / count, place = turn % places;
  return (place / in_word << 6) + place % in_word * count;
}

/* Takes kept words from index on, if all of them are there. */
MAM_OUTLINE int mam_kept_take_at(MAM_TAG(1) mam_u32 index, const struct mam_area *area, mam_u32 count) {
  if (count > 64)
    return MAM_OUT_OF_SIGHT(mam_kept_take_words)(index >> 6, count, area);
  mam_u64 *word = &mam_area_kept(*area)[index >> 6], bits = mam_run_bits(count, index & 63);
  mam_u64 old = mam_or_acquire_u64(word, bits); /* pairs with mam_kept_give */
  if ((old & bits) != 0 && (bits & ~old) != 0)
    (void)mam_and_release_u64(word, old | ~bits);
  return (old & bits) == 0;
}

/* Gives all kept words back to the page map. */
MAM_OUTLINE void mam_kept_flush(struct mam_area area) {
  mam_u32 words = mam_area_map_words(area);
  MAM_LOOP
  for (mam_u32 i = 0; i < words; i++) {
    mam_u64 *kept = &mam_area_kept(area)[i >> 6], bit = 1ull << (i & 63);
    if (mam_load_relaxed_u64(kept) == MAM_FULL_WORD)
      i |= 63;
    else if ((mam_or_acq_rel_u64(kept, bit) & bit) == 0) /* acquire: pairs with mam_kept_give */
      MAM_OUT_OF_SIGHT(mam_pages_clear)(area, i, MAM_FULL_WORD);
  }
}

/* ---- Homes ----
 *
 * The warps of a multiprocessor, or of a few, have a home: every home_count-th word of the page map.  Its cursor goes
 * round in the first words of it, as many as its upper half says, one for each page that is asked for; if they do not
 * have what is asked for, their number is doubled.  So what is in use lies close together, and different homes do not
 * meet.  (The paper's hash has the same two wishes.) */

enum { MAM_HOME_TRIES = 4, MAM_HOME_NEAR = 2, MAM_HOME_WORDS = 64 };

/* The first word of a home. */
MAM_INLINE mam_u32 mam_home_first(const struct mam_area *area, mam_u32 home) {
  mam_u32 map_words = mam_area_map_words(*area);
  return home < map_words ? home : home % map_words;
}

/* The width of a home's round after one. */
MAM_INLINE mam_u32 mam_home_wider(mam_u32 map_words, mam_u32 first, mam_u32 count, mam_u32 wide) {
  mam_u32 most = (map_words - 1 - first) / count;
  return 2 * wide + 1 < most ? 2 * wide + 1 : most;
}

/* Widens a home's round, if it was as wide as that. */
MAM_INLINE void mam_home_widen(mam_u64 *cursor, mam_u32 wide, mam_u32 wider) {
  mam_u64 at = mam_load_relaxed_u64(cursor);
  if (wide < wider && (mam_u32)(at >> 32) == wide)
    (void)mam_cas_relaxed_u64(cursor, at, (mam_u64)wider << 32 | (wide + 1) << 6);
}

/* Takes bits of the word at index, best these; if they are taken, another run as long, of which taken says where there
 * is none.  An atomic or that mostly succeeds, and undoes what it did if it does not, is quicker than a look and a
 * compare-and-swap, which only one of those who take from a word at a time could win. */
MAM_OUTLINE mam_u32 mam_home_take(const struct mam_area *area, mam_u32 index, mam_u32 from, mam_u32 count) {
  MAM_LOOP
  for (int i = 0; i < MAM_HOME_TRIES && from != 64; i++) {
    mam_u64 bits = mam_run_bits(count, from);
    /* acquire: pairs with mam_pages_clear */
    mam_u64 old = mam_or_acquire_u64(&mam_area_pages(*area)[index], bits);
    if ((old & bits) == 0) {
      if ((old | bits) == MAM_FULL_WORD)
        MAM_OUT_OF_SIGHT(mam_map_filled)(mam_area_pages(*area), mam_area_map_words(*area), index);
      return (index << 6) + from;
    }
    from = mam_run_find(old, count);
    if ((bits & ~old) != 0)
      MAM_OUT_OF_SIGHT(mam_pages_clear)(*area, index, bits & ~old);
  }
  return MAM_NO_PAGE;
}

/* The first of up to MAM_HOME_WORDS words of a home, from one of its turns on, that has so many zeros in a row: by how
 * many turns it is further; MAM_HOME_WORDS if there is none. */
enum { MAM_HOME_AHEAD = 4 };
MAM_OUTLINE mam_u32 mam_home_look(MAM_TAG(1) mam_u32 count, const struct mam_area *area, mam_u32 home,
                                  mam_u32 home_count, mam_u32 turn) {
  mam_u32 first = mam_home_first(area, home), turns = (mam_area_map_words(*area) - 1 - first) / home_count + 1;
  MAM_LOOP
  for (mam_u32 at = 0; at < turns && at < MAM_HOME_WORDS; at += MAM_HOME_AHEAD) {
    mam_u64 seen[MAM_HOME_AHEAD];
    mam_u32 fits = 0;
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_HOME_AHEAD; i++)
      seen[i] = mam_load_relaxed_u64(&mam_area_pages(*area)[first + (turn + at + i) % turns * home_count]);
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_HOME_AHEAD; i++)
      fits |= (mam_u32)(mam_run_find(seen[i], count) != 64) << i;
    if (fits != 0)
      return at + mam_lowest_u32(fits);
  }
  return MAM_HOME_WORDS;
}

/* Takes a run of up to 64 pages in a home of a superblock: at its cursor, then in any of its words from there on. */
MAM_OUTLINE mam_u32 mam_pages_near(mam_u32 count, struct mam_heap_control *control, const struct mam_area *area,
                                   mam_u32 home) {
  mam_u64 *cursor = mam_cursors(control) + home;
  MAM_LOOP
  for (int i = 0; i < MAM_HOME_NEAR; i++) {
    mam_u64 at = mam_add_relaxed_u64(cursor, count);
    mam_u32 from = (mam_u32)at & 63, wide = (mam_u32)(at >> 32), first = mam_home_first(area, home), index;
    if (mam_shortage_covers(mam_load_relaxed_u32(mam_area_shortage(*area)), count))
      return MAM_NO_PAGE;
    if (from + count > 64) /* the next word, then */
      continue;
    index = first + ((mam_u32)at >> 6) % (wide + 1) * control->home_count;
    if (index >= mam_area_map_words(*area)) /* the round is that of a larger superblock */
      index = first;
    mam_u32 page = MAM_OUT_OF_SIGHT(mam_home_take)(area, index, from, count);
    if (page != MAM_NO_PAGE)
      return page;
    mam_home_widen(cursor, wide, mam_home_wider(mam_area_map_words(*area), first, control->home_count, wide));
  }
  mam_u32 turn = (mam_u32)mam_load_relaxed_u64(cursor) / 64;
  MAM_LOOP
  for (int i = 0; i < MAM_HOME_TRIES; i++) {
    mam_u32 further = MAM_OUT_OF_SIGHT(mam_home_look)(count, area, home, control->home_count, turn);
    if (further == MAM_HOME_WORDS)
      break;
    turn += further;
    mam_u32 first = mam_home_first(area, home);
    mam_u32 turns = (mam_area_map_words(*area) - 1 - first) / control->home_count + 1;
    /* Nothing is taken that would have to be given back: where pages are scarce, others would miss it. */
    mam_u32 page = MAM_OUT_OF_SIGHT(mam_map_take_in)(first + turn % turns * control->home_count, mam_area_pages(*area),
                                                     mam_area_map_words(*area), count);
    if (page != MAM_NO_PAGE)
      return page;
    turn++;
  }
  return MAM_NO_PAGE;
}

/* ---- Rings ----
 *
 * Spans of the first superblock in a home's words have a number of 16 bits.  In a lazy heap those that a slot had form
 * a ring: each page on which one begins says which is next.  A ring says where a slot should look first, no more:
 * whether what is there is an empty span of its class is for the usage words to tell. */

enum { MAM_RING_NONE = 0xffff };

MAM_INLINE mam_u32 mam_ring_number(mam_u32 page, mam_u32 home, mam_u32 home_count) {
  mam_u32 turn = ((page >> 6) - home) / home_count;
  return (page >> 6) < home || (page >> 6) - home != turn * home_count || turn >= MAM_RING_NONE >> 6
             ? (mam_u32)MAM_RING_NONE
             : turn << 6 | (page & 63);
}

/* The page; MAM_NO_PAGE if there is no such page. */
MAM_INLINE mam_u32 mam_ring_page(mam_u32 page_count, mam_u32 number, mam_u32 home, mam_u32 home_count) {
  mam_u32 page = (home + (number >> 6) * home_count) << 6 | (number & 63);
  return number == MAM_RING_NONE || page >= page_count ? MAM_NO_PAGE : page;
}

/* Puts the span that begins at page behind the one of that number, which its slot tried before, or MAM_RING_NONE.  A
 * span without a number only leads to the ring. */
MAM_OUTLINE void mam_ring_insert(mam_u16 *rings, mam_u32 page_count, mam_u32 home, mam_u32 home_count, mam_u32 tried,
                                 mam_u32 page) {
  mam_u32 number = mam_ring_number(page, home, home_count), after = number;
  mam_u32 behind = mam_ring_page(page_count, tried, home, home_count);
  if (number == MAM_RING_NONE)
    after = tried;
  else if (behind != MAM_NO_PAGE) {
    after = mam_load_relaxed_u16(&rings[behind]);
    mam_store_relaxed_u16(&rings[behind], (mam_u16)number);
  }
  mam_store_relaxed_u16(&rings[page], (mam_u16)after);
}

/* ---- Spans ---- */

/* The entry of the page of a span that is so far behind its first. */
MAM_INLINE mam_u16 mam_entry_of(mam_u32 kind, mam_u32 back) {
  return (mam_u16)(((kind & MAM_KIND_CLASS) + 1) | back << MAM_ENTRY_CLASS_BITS |
                   mam_kind_type(kind) << MAM_ENTRY_TYPE_SHIFT);
}
MAM_INLINE mam_u32 mam_entry_back(mam_u32 entry) { return entry >> MAM_ENTRY_CLASS_BITS & 63; }

/* Makes pages that the caller owns a span of that owner, all of whose chunks count as used.  flags: MAM_WORD_WATCHED or
 * 0.  Every lane writes its part. */
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

/* A chunk of the span that begins at page may be free: sets the hint.  The look before is what makes it cheap; it comes
 * after the change of the usage word, whose old value decided to come here. */
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

/* What differs between a span's words that are empty: their chunks, and while it is being watched that. */
#define MAM_WORD_CHUNKS (255ull << 32)

/* Whether all words of a span are empty; header: their upper halves but for MAM_WORD_CHUNKS.  *last: the last one,
 * which alone may have fewer than 32 chunks. */
MAM_INLINE int mam_span_empty(const mam_u64 *words, mam_u64 header, mam_u32 count, mam_u64 *last) {
  mam_u64 differs = 0, seen[4];
  MAM_LOOP
  for (mam_u32 i = 0; i < count && differs == 0; i += 4) {
    MAM_UNROLL /* so that the loads are under way together */
        for (mam_u32 j = 0; j < 4; j++) seen[j] = mam_load_relaxed_if_u64(i + j < count, &words[i + j], header);
    MAM_UNROLL
    for (mam_u32 j = 0; j < 4; j++) {
      differs |= (seen[j] ^ header) & ~MAM_WORD_CHUNKS;
      *last = i + j < count ? seen[j] : *last;
    }
  }
  return differs == 0;
}

/* Ends a span that was seen to be empty: each word goes from empty to 0 by compare-and-swap, so nobody can claim a
 * chunk in it any more; the first word before all others, so that of several who try one goes on.  If a word is not
 * empty, those that are 0 are put back; only the caller could change them meanwhile.  Returns whether it has ended;
 * *again: it has not, and is to be looked at again, since somebody may have found it not empty because of that. */
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
  /* What the chunks' users did, all of whom changed these words, comes before the release of the pages. */
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

/* ---- Frees ---- */

/* The superblock in which an address lies; 0 if in none. */
MAM_OUTLINE const struct mam_area *mam_area_find(MAM_TAG(1) const struct mam_heap_control *control, mam_u64 address) {
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++)
    if (address - control->superblocks[i].base < (mam_u64)control->superblocks[i].page_count << MAM_PAGE_SHIFT)
      return &control->superblocks[i];
  return 0;
}

/* Where the usage bit of a chunk is. */
struct mam_bit {
  mam_u32 word, bit;
};

/* That of the chunk in which offset (from the first page) lies, given the entry of its page, which is a span's. */
MAM_INLINE struct mam_bit mam_bit_of(mam_u64 offset, mam_u32 entry) {
  mam_u32 size_class = (entry & 63) - 1, shift = mam_class_shift(size_class);
  mam_u32 page = (mam_u32)(offset >> MAM_PAGE_SHIFT), back = mam_entry_back(entry);
  mam_u32 sixteenths = back << (MAM_PAGE_SHIFT - 4) | ((mam_u32)offset & (MAM_PAGE_BYTES - 1)) >> 4;
  mam_u32 chunk = mam_chunk_index(sixteenths, shift, mam_class_multiple(size_class, shift));
  struct mam_bit bit = {(page - back) * MAM_PAGE_WORDS + (chunk >> 5), chunk & 31};
  return bit;
}

/* Whether there is more to do after bits of a usage word were cleared: old was there before. */
MAM_INLINE int mam_word_wants_more(mam_u64 old, mam_u32 bits) {
  return (old & MAM_WORD_WATCHED) != 0 && (((mam_u32)old & ~bits) == 0 || (mam_u32)old == mam_word_full(old));
}

/* What is left to do after mam_word_changed, seldom: in one word. */
enum {
  MAM_LEFT_PAGES_OPENED = 1,
  MAM_LEFT_CLASS_OPENED = 2,
  MAM_LEFT_RETURNED = 4,
  MAM_LEFT_PAGES = 8,
  MAM_LEFT_AGAIN = 16,
  MAM_LEFT_STAMP = 32
};

enum { MAM_SPAN_ENDED = 0xffffffffu };

/* Ends a span, one of whose words was seen to be empty, if they all are: MAM_SPAN_ENDED; else what is left to do. last:
 * the word if it is the only one. */
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

/* Gives the pages of a span back that has ended.  After mam_fence: pairs with who takes them. */
MAM_INLINE mam_u32 mam_span_pages_free(struct mam_area area, mam_u32 page, mam_u32 pages) {
  mam_u32 from = page & 63, left = 0;
  if (from + pages > 64)
    return MAM_LEFT_PAGES;
  if (mam_and_after_fence_u64(&mam_area_pages(area)[page >> 6], ~mam_run_bits(pages, from)) == MAM_FULL_WORD)
    left = MAM_LEFT_PAGES_OPENED;
  return mam_returned_matters(area, page >> 6) ? left | MAM_LEFT_RETURNED : left;
}

/* What comes after bits of a usage word were cleared: a word that became empty may be the last of its span; one that
 * was full is worth a look from now on.  Calls nothing, so that it costs a kernel no more than it is; what seldom is
 * left to do is the result, for mam_word_finish. */
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
    /* The look is what makes the hint cheap; it comes after the change of the usage word, whose old value decided to
     * come here. */
    if ((mam_load_relaxed_u64(hints) & hint) != 0) {
      left |= mam_and_acq_rel_u64(hints, ~hint) == MAM_FULL_WORD ? MAM_LEFT_CLASS_OPENED : 0;
      left |= mam_chunk_matters(area) ? MAM_LEFT_STAMP : 0;
    }
  }
  return left;
}

/* All that comes after bits of a usage word were cleared. */
MAM_OUTLINE void mam_word_follow(mam_u32 word, mam_u32 bits, mam_u64 old, struct mam_area area) {
  mam_u32 left = MAM_LEFT_AGAIN;
  area.base = 0; /* what is not used need not be kept over the calls */
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && (left & MAM_LEFT_AGAIN) != 0; i++) {
    left = MAM_OUT_OF_SIGHT(mam_word_changed)(area, word, old, bits);
    if (left == 0)
      return;
    old &= ~0xffffffffull; /* if it is looked at again, nothing of it is used */
    bits = 0;
    MAM_LOOP
    for (mam_u32 at = 0; (left & MAM_LEFT_PAGES) != 0 && at < 2; at++) { /* in two words of the page map */
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

/* Frees the chunks of a usage word whose bits are given; which of them were none. */
MAM_INLINE mam_u32 mam_chunks_free(struct mam_area area, mam_u32 word, mam_u32 bits) {
  /* release: what the chunks' users did comes before what their next ones do.  Pairs with mam_word_claim. */
  mam_u64 old = mam_and_release_u64(&area.words[word], ~(mam_u64)bits);
  if (((mam_u32)old & bits) != 0 && mam_word_wants_more(old, bits))
    MAM_OUT_OF_SIGHT(mam_word_follow)(word, bits, old, area);
  return bits & ~(mam_u32)old;
}

/* ---- Sweeping ----
 *
 * In a lazy heap a free is one change of one usage word: an empty span stays, to be filled again by the slot that had
 * it (mam_slot_retake).  When the first superblock has no pages for somebody, he and all others in need sweep it, a
 * word of the page map at a time: spans are watched from then on, those that are empty end, and the others' free chunks
 * are in the maps.  Once all of it has been swept, and until the heap is reset, new spans are watched too. */

enum { MAM_MODE_WATCHED, MAM_MODE_LAZY, MAM_MODE_SWEEPING };

/* Watches one usage word that looks like header; what it is then, 0 if it is of no such span any more. */
MAM_INLINE mam_u64 mam_word_watch(mam_u64 *place, mam_u64 header) {
  mam_u64 word = mam_load_relaxed_u64(place);
  MAM_LOOP
  while (((word ^ header) >> 40) == 0 && (word & MAM_WORD_WATCHED) == 0) {
    mam_u64 seen = mam_cas_acq_rel_u64(place, word, word | MAM_WORD_WATCHED);
    word = seen == word ? word | MAM_WORD_WATCHED : seen;
  }
  return ((word ^ header) >> 40) == 0 ? word : 0;
}

/* Watches all words of a span, whose first looks like header, at once.  A bit each for those that have a free chunk;
 * eight bits above for those that are empty; and above these for those that somebody changed meanwhile.  Calls nothing.
 */
MAM_OUTLINE mam_u32 mam_words_watch(MAM_TAG(2) mam_u64 header, mam_u64 *words) {
#if MAM_ON_DEVICE && __CUDA_ARCH__ < 800 /* it would take more than 64 registers: one by one, then */
  return ((1u << mam_word_span_words(header)) - 1) << 16;
#endif
  mam_u64 seen[MAM_PAGE_WORDS];
  mam_u32 found = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = i == 0 ? header : mam_load_relaxed_if_u64(i < mam_word_span_words(header), &words[i], 0);
  mam_fence(); /* as the order of mam_word_watch */
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

/* Watches the span that begins at page, if one does, and does what its frees have left to do.  How many pages that was
 * about. */
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

/* A part has been swept: a word, or the kept ones.  acq_rel: all of that, for who relies on the mode. */
MAM_INLINE void mam_swept(struct mam_heap_control *control) {
  if (mam_add_acq_rel_u32(&control->sweep_done, 1) == mam_area_map_words(control->superblocks[0]))
    (void)mam_exchange_acq_rel_u32(&control->mode, MAM_MODE_WATCHED);
}

/* Sweeps until there is a run of so many pages, which it takes, or all has been swept; then waits a bounded time for
 * others who sweep. */
MAM_OUTLINE mam_u32 mam_sweep(struct mam_heap_control *control, mam_u32 count) {
  const struct mam_area *area = &control->superblocks[0];
  mam_u32 words = mam_area_map_words(*area), index;
  int begins = mam_cas_acq_rel_u32(&control->mode, MAM_MODE_LAZY, MAM_MODE_SWEEPING) == MAM_MODE_LAZY;
  mam_fence_all(); /* pairs with mam_slot_publish and mam_run_free */
  if (begins) {
    MAM_OUT_OF_SIGHT(mam_kept_flush)(*area);
    mam_swept(control);
  }
  MAM_LOOP
  while (mam_load_relaxed_u32(&control->sweep_next) < words &&
         (index = mam_add_relaxed_u32(&control->sweep_next, 1)) < words) {
    mam_u32 page = index << 6;
    MAM_LOOP
    for (mam_u64 taken; page < area->page_count && page >> 6 == index;) { /* the spans that begin in the word */
      taken = mam_load_relaxed_u64(&mam_area_pages(*area)[index]) >> (page & 63);
      if (taken == 0)
        break;
      page += mam_lowest_u64(taken);
      page += page < area->page_count ? MAM_OUT_OF_SIGHT(mam_span_watch)(*area, page) : 0;
    }
    mam_swept(control);
    page = MAM_NO_PAGE;
    if (count <= MAM_SPAN_PAGES)
      page = MAM_OUT_OF_SIGHT(mam_map_take_in)(index, mam_area_pages(*area), words, count);
    if (page != MAM_NO_PAGE)
      return page;
  }
  MAM_LOOP
  for (int i = 0; i < MAM_WAIT_ROUNDS && mam_load_acquire_u32(&control->mode) != MAM_MODE_WATCHED; i++)
    mam_pause();
  return MAM_NO_PAGE;
}

/* Takes a run of pages from any superblock, near the home if that may be.  While the first is being swept, that is the
 * quickest way to a short run, and nothing is searched. */
MAM_OUTLINE struct mam_found mam_pages_claim(MAM_TAG(1) struct mam_heap_control *control, mam_u32 count, mam_u32 home) {
  mam_u32 active = mam_load_acquire_u32(&control->active), index = home * 0x9e3779b1u;
  struct mam_found found = {&control->superblocks[active], MAM_NO_PAGE};
  if (count > MAM_SPAN_PAGES)
    index = mam_add_relaxed_u32(&control->run_cursor, (count + 63) >> 6);
  else {
    found.page = MAM_OUT_OF_SIGHT(mam_pages_near)(count, control, found.area, home);
    if (found.page != MAM_NO_PAGE || mam_load_relaxed_u32(&control->mode) == MAM_MODE_SWEEPING)
      return found;
  }
  MAM_LOOP /* the count is read anew: it pairs with a thread that adds one */
      for (mam_u32 i = 0; i < mam_load_acquire_u32(&control->superblock_count); i++) {
    mam_u32 from = index % mam_area_map_words(*found.area);
    found.page = count <= MAM_SPAN_PAGES ? MAM_OUT_OF_SIGHT(mam_pages_search)(found.area, count, from)
                                         : mam_run_search(found.area, count, from);
    if (found.page != MAM_NO_PAGE) {
      if (i != 0) /* release: the superblock, which may be new; pairs with the load here */
        mam_store_release_u32(&control->active, (mam_u32)(found.area - control->superblocks));
      return found;
    }
    found.area = found.area + 1 < control->superblocks + mam_load_acquire_u32(&control->superblock_count)
                     ? found.area + 1
                     : control->superblocks;
  }
  return found;
}

/* What a thread is asked for that claims chunks, in one word: a kind, whether the caller's lanes have the task of
 * refilling the slot, whether they are so many that they take whole spans, their home, whether the slot was dry, and
 * whether empty spans are left to it. */
enum {
  MAM_REST_KIND = (1 << MAM_KIND_BITS) - 1,
  MAM_REST_REFILL = 1 << MAM_KIND_BITS,
  MAM_REST_WHOLE = 1 << (MAM_KIND_BITS + 1),
  MAM_REST_HOME = MAM_KIND_BITS + 2,
  MAM_REST_DRY = 1 << (MAM_KIND_BITS + 12),
  MAM_REST_LAZY = 1 << (MAM_KIND_BITS + 13)
};
/* Above a slot's number among all: the base-2 logarithm of a span's chunks. */
enum { MAM_REST_CHUNKS = 28, MAM_REST_SLOT = (1 << MAM_REST_CHUNKS) - 1 };

/* The same for such a word, and sweeps where that may bring some. */
MAM_INLINE struct mam_found mam_pages_any(struct mam_heap_control *control, mam_u32 count, mam_u32 wanted) {
  struct mam_found found;
  MAM_LOOP
  for (int swept = 0;; swept = 1) {
    found = MAM_OUT_OF_SIGHT(mam_pages_claim)(control, count, wanted >> MAM_REST_HOME & 1023);
    if (found.page != MAM_NO_PAGE || swept || mam_load_relaxed_u32(&control->mode) == MAM_MODE_WATCHED)
      return found;
    found.area = control->superblocks;
    found.page = MAM_OUT_OF_SIGHT(mam_sweep)(control, count);
    if (found.page != MAM_NO_PAGE)
      return found;
  }
}

/* ---- Claiming chunks ---- */

/* The lowest count ones of bits, or all. */
MAM_INLINE mam_u32 mam_lowest_ones(mam_u32 bits, mam_u32 count) {
  mam_u32 rest = bits;
  if (mam_ones_u32(bits) <= count)
    return bits;
  MAM_LOOP
  while (count-- != 0)
    rest &= rest - 1;
  return bits ^ rest;
}

/* Up to count free chunks of one usage word. */
MAM_INLINE mam_u32 mam_word_claim(mam_u64 *place, mam_u32 size_class, mam_u32 count) {
  mam_u64 word = mam_load_relaxed_u64(place);
  MAM_LOOP
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

/* Which pages of a block begin spans of a class, by their entries: a bit each. */
MAM_OUTLINE mam_u32 mam_block_look(mam_u32 block, mam_u32 size_class, const struct mam_area *area) {
  const mam_u16 *entries = mam_area_entries(*area) + block * MAM_BLOCK_PAGES;
  mam_u32 pages = area->page_count - block * MAM_BLOCK_PAGES, found = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_BLOCK_PAGES; i++)
    found |= (mam_u32)(mam_load_relaxed_u16(&entries[i < pages ? i : 0]) == mam_entry_of(size_class, 0) && i < pages)
             << i;
  return found;
}

/* Which usage words of a span have free chunks of a class: a bit each. */
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

/* Up to count chunks of a class from one word of the spans that begin in a block.  Those who ask at once begin at
 * different words, but in the same block: what is used up first is what lies together. */
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

/* Chunks of a class from the spans of a block.  If there are none, the block is struck from the class's map and then
 * looked at once more: who freed a chunk meanwhile may have found the map in order. */
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

/* The same wherever the map says so. */
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

/* ---- Slots ----
 *
 * A slot's word: the address of a span in pages, above the number of tickets handed out.  At the number of chunks the
 * span is used up; whoever gets past it from there or from below, exactly one, refills the slot.  So as long as there
 * are more tickets than chunks, a thread is about to write the slot's word.  In the place of an address, 0 says that no
 * span was there yet, MAM_SLOT_DRY that there were no pages for one, MAM_SLOT_FLUSHED that the chunks without a ticket
 * are being freed. */

#define MAM_SLOT_DRY ((mam_u64)1 << MAM_TICKET_BITS)
#define MAM_SLOT_FLUSHED ((mam_u64)2 << MAM_TICKET_BITS)
#define MAM_SLOT_TICKETS (MAM_SLOT_DRY - 1)

MAM_INLINE mam_u64 mam_slot_address(mam_u64 slot) { return slot >> MAM_TICKET_BITS << MAM_PAGE_SHIFT; }
MAM_INLINE mam_u64 mam_slot_of(mam_u64 address, mam_u32 tickets) {
  return address << (MAM_TICKET_BITS - MAM_PAGE_SHIFT) | tickets;
}
MAM_INLINE int mam_slot_is_dry(mam_u64 slot) { return (slot & ~MAM_SLOT_TICKETS) == MAM_SLOT_DRY; }
MAM_INLINE mam_u32 mam_slot_limit(const mam_heap *heap, mam_u32 size_class) {
  return 1u << mam_span_chunks_log2(heap->chunks, mam_class_shift(size_class));
}

/* ---- Which slots hold chunks ----
 *
 * control->held has a word for each kind and in it a bit for each group of its slots, up to 64 groups: 1 if a slot of
 * the group may hold a chunk without a ticket, or is about to.  Who refills a slot sets it first.  Who looks for chunks
 * that slots hold (mam_slots_flush) clears it before the look, and sets it again if it saw a slot that is being
 * refilled.
 *
 * Nobody concludes from a 0 what is not so.  A thread that concludes has made the stamps odd and passed a fence (F)
 * before the look.  A thread that refills has seen or set the bit, passes a fence (G), looks at the stamp, and then
 * writes the slot.  If G comes before F, the bit is seen, unless somebody cleared it in between, who saw the slot as it
 * was or later: as one that is being refilled, so the bit is set again and the stamp is raised, or as one that holds
 * chunks, which were freed.  If F comes before G, the refill sees an odd stamp: after the slot is written it sets the
 * bit again, which may have been cleared since the refill saw it, and raises the stamp, so that what was concluded is
 * void. */

MAM_INLINE mam_u32 mam_held_shift(mam_u32 slot_count) {
  mam_u32 bits = 32 - mam_leading_zeros_u32(slot_count - 1);
  return bits > 6 ? bits - 6 : 0;
}
/* The bit of a slot, by its number in its kind. */
MAM_INLINE mam_u64 mam_held_bit(mam_u32 slot_count, mam_u32 slot) {
  return 1ull << (slot >> mam_held_shift(slot_count));
}

/* Says that something waits in a park, after it was put there.  A flush of the parks at the same moment may miss it; it
 * then waits for its next user, or for the next thing that is put in its group. */
MAM_INLINE void mam_parks_raise(struct mam_heap_control *control, const mam_u64 *park) {
  mam_u32 index = (mam_u32)(park - mam_parks(control)) / MAM_PARK_WORDS;
  mam_u64 bit = 1ull << (index >> mam_held_shift(control->heap.parks) & 63);
  if ((mam_load_relaxed_u64(&control->parks_held) & bit) == 0)
    (void)mam_or_relaxed_u64(&control->parks_held, bit);
}

/* What became of a request for tickets. */
struct mam_tickets {
  mam_u64 address;
  mam_u32 mask; /* 0: none */
  int refill;   /* the caller has to refill the slot */
};

/* What a slot's word, as it was when count tickets were asked for, means for who asked. */
MAM_INLINE struct mam_tickets mam_tickets_of(mam_u64 old, mam_u32 chunk_bytes, mam_u32 limit, mam_u32 count) {
  mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS);
  struct mam_tickets tickets = {0, 0, ticket <= limit && ticket + count > limit};
  if (ticket < limit) {
    tickets.address = mam_slot_address(old) + (mam_u64)ticket * chunk_bytes;
    tickets.mask = 0xffffffffu >> (32 - (limit - ticket < count ? limit - ticket : count));
  }
  return tickets;
}

/* acquire: pairs with the refill's publication, and through it with the frees of what was there before. */
MAM_INLINE mam_u64 mam_slot_take(mam_u64 *slot, mam_u32 count) { return mam_add_acquire_u64(slot, count); }

/* Keeps the tickets that were asked for in vain from reaching the address: now is the slot's word, or was.  Every
 * thread that asked in vain calls this before it asks again, and above half of what the tickets can count it does not
 * return before they are fewer.  So above half each thread of a GPU asks once at most, for up to 32 tickets of its
 * warp, and a GPU has less than 2^23 threads at a time. */
MAM_INLINE void mam_slot_keep(mam_u64 *slot, mam_u64 now, mam_u32 limit) {
  MAM_LOOP
  while ((now & MAM_SLOT_TICKETS) > MAM_SLOT_TICKETS / 2) {
    mam_u64 seen = mam_cas_relaxed_u64(slot, now, (now & ~MAM_SLOT_TICKETS) | (limit + 1));
    if (seen == now)
      return;
    now = seen;
  }
}

/* What a thread gets that asked for count tickets of a slot, whose word was old.  If it got fewer than it asked for,
 * the slot is another thread's to refill.  mask 0: none, and the address is not 0 if the thread is to refill the slot.
 */
MAM_INLINE struct mam_claim mam_claim_tickets(mam_u64 *slot, mam_u64 old, mam_u32 size_class, mam_u32 limit,
                                              mam_u32 count) {
  struct mam_tickets tickets = mam_tickets_of(old, mam_class_bytes(size_class), limit, count);
  struct mam_claim claim = {tickets.mask != 0 ? tickets.address : (mam_u64)tickets.refill, tickets.mask,
                            mam_class_bytes(size_class)};
  if (tickets.mask != 0 && tickets.refill)
    (void)mam_exchange_release_u64(slot, (old & ~MAM_SLOT_TICKETS) | limit);
  return claim;
}

/* Waits for whoever refills the slot, and asks for tickets again.  The slot's word as it was then; one without tickets
 * and without a task after a bounded time, or when there is nothing to refill it with. */
MAM_OUTLINE mam_u64 mam_slot_wait(mam_u64 *slot, mam_u32 limit, mam_u32 count) {
  MAM_LOOP
  for (int i = 0; i < MAM_WAIT_ROUNDS; i++) {
    mam_u64 now = mam_load_relaxed_u64(slot);
    if ((now & MAM_SLOT_TICKETS) <= limit) {
      now = mam_slot_take(slot, count);
      if ((now & MAM_SLOT_TICKETS) <= limit)
        return now;
    }
    mam_slot_keep(slot, now, limit);
    if (mam_slot_is_dry(now))
      break;
    mam_pause();
  }
  return MAM_SLOT_TICKETS;
}

/* Whether the superblocks are known to have no run of so many pages, nor empty spans. */
MAM_OUTLINE int mam_pages_are_short(MAM_TAG(2) struct mam_heap_control *control, mam_u32 pages) {
  if (mam_load_relaxed_u32(&control->mode) != MAM_MODE_WATCHED)
    return 0;
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++)
    if (!mam_shortage_covers(mam_load_relaxed_u32(mam_area_shortage(control->superblocks[i])), pages))
      return 0;
  return 1;
}

/* Which of up to MAM_AHEAD slots from one on hold chunks without a ticket: a bit each; eight bits above, which are
 * being refilled. */
MAM_OUTLINE mam_u32 mam_slots_look(MAM_TAG(6) const mam_u64 *slots, mam_u32 limit, mam_u32 left) {
  mam_u64 seen[MAM_AHEAD];
  mam_u32 found = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    seen[i] = mam_load_relaxed_u64(&slots[i < left ? i : 0]);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++) {
    mam_u32 ticket = (mam_u32)(seen[i] & MAM_SLOT_TICKETS);
    found |= (mam_u32)(i < left && ticket < limit) << i | (mam_u32)(i < left && ticket > limit) << (i + MAM_AHEAD);
  }
  return found;
}

/* Tickets of any slot of the class.  If there are none, the claim's address says whether somebody is about to refill a
 * slot. */
MAM_OUTLINE struct mam_claim mam_steal(MAM_TAG(2) struct mam_heap_control *control, mam_u32 size_class, mam_u32 count) {
  struct mam_claim claim = {0, 0, mam_class_bytes(size_class)};
  const mam_heap *heap = &control->heap;
  mam_u32 limit = mam_slot_limit(heap, size_class);
  mam_u64 *slots = &heap->slots[mam_kind_number(size_class) * heap->slot_count];
  MAM_LOOP
  for (mam_u32 at = 0; at < heap->slot_count; at += MAM_AHEAD) {
    mam_u64 groups = mam_load_relaxed_u64(&control->held[mam_kind_number(size_class)]);
    groups &= MAM_FULL_WORD << (at >> mam_held_shift(heap->slot_count));
    if (groups == 0)
      break;
    mam_u32 first = mam_lowest_u64(groups) << mam_held_shift(heap->slot_count);
    at = first > at ? first : at;
    mam_u32 seen = MAM_OUT_OF_SIGHT(mam_slots_look)(&slots[at], limit, heap->slot_count - at);
    claim.address |= seen >> MAM_AHEAD != 0;
    MAM_LOOP
    for (seen &= (1u << MAM_AHEAD) - 1; seen != 0; seen &= seen - 1) {
      mam_u64 *slot = &slots[at + mam_lowest_u32(seen)], now = mam_slot_take(slot, count);
      struct mam_claim taken = mam_claim_tickets(slot, now, size_class, limit, count);
      if (taken.mask != 0)
        return taken;
      if (taken.address != 0) /* not now */
        (void)mam_exchange_release_u64(slot, (now & ~MAM_SLOT_TICKETS) | limit);
      else
        mam_slot_keep(slot, now, limit);
    }
  }
  return claim;
}

/* Whether the caller may open a span of a class, as it is to undo afterwards: in a small heap one at a time, so that
 * many who ask at once do not take a span each, of which they need a part. */
MAM_OUTLINE int mam_opening_begin(MAM_TAG(3) struct mam_heap_control *control, mam_u32 size_class, mam_u32 pages) {
  mam_u32 *opening = &control->opening[mam_kind_number(size_class)], seen = mam_load_relaxed_u32(opening);
  if (seen * pages > control->superblocks[0].page_count / MAM_OPENING_SHARE)
    return 0;
  /* acq_rel: before the pages are taken, for who finds them taken and looks here after that. */
  return mam_cas_acq_rel_u32(opening, seen, seen + 1) == seen;
}

/* release: the hint; pairs with mam_claim_scarce. */
MAM_INLINE void mam_opening_end(struct mam_heap_control *control, mam_u32 size_class) {
  (void)mam_add_acq_rel_u32(&control->opening[mam_kind_number(size_class)], ~0u);
}

/* Makes pages a span of a class, of at most so many chunks, that no slot gets: but for count, they are free at once. */
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
  mam_fence(); /* release: the entries, which a thread reads that frees such a chunk */
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

/* Chunks of spans that were split before, in any superblock. */
MAM_OUTLINE struct mam_claim mam_recycle_any(MAM_TAG(3) struct mam_heap_control *control, mam_u32 size_class,
                                             mam_u32 count, mam_u32 home) {
  struct mam_claim claim = {0, 0, 0};
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks && claim.mask == 0; i++)
    claim = MAM_OUT_OF_SIGHT(mam_recycle)(&control->superblocks[i], size_class, count, home);
  return claim;
}

/* Frees the chunks of a slot that have no ticket yet; whether there were any.  Meanwhile the slot's word says so: who
 * asks for tickets waits, and a chunk that is being freed is not taken for a live one. */
MAM_OUTLINE int mam_slot_flush(MAM_TAG(2) mam_u32 limit, struct mam_heap_control *control, mam_u32 number) {
  mam_u64 now = mam_load_relaxed_u64(&control->heap.slots[number]);
  mam_u32 ticket = (mam_u32)(now & MAM_SLOT_TICKETS);
  /* acq_rel: whose tickets they are, and what the span's words were when the slot was refilled. */
  if (ticket >= limit || mam_cas_acq_rel_u64(&control->heap.slots[number], now, MAM_SLOT_FLUSHED | (limit + 1)) != now)
    return 0;
  const struct mam_area *area = MAM_OUT_OF_SIGHT(mam_area_find)(control, mam_slot_address(now));
  MAM_LOOP
  for (; ticket < limit; ticket = (ticket | 31) + 1) {
    mam_u32 word = (mam_u32)((mam_slot_address(now) - area->base) >> MAM_PAGE_SHIFT) * MAM_PAGE_WORDS;
    mam_u32 bits = 0xffffffffu << (ticket & 31);
    if (limit < 32)
      bits &= (1u << limit) - 1;
    (void)mam_chunks_free(*area, word + (ticket >> 5), bits);
  }
  (void)mam_exchange_release_u64(&control->heap.slots[number], (now & ~MAM_SLOT_TICKETS) | limit);
  return 1;
}

/* ---- Blocks ---- */

/* Gives a long run back, of which whole words of the page map are kept. */
MAM_OUTLINE void mam_run_keep(struct mam_heap_control *control, struct mam_area area, mam_u32 page, mam_u32 count) {
  area.base = 0;
  mam_u32 first = (page + 63) >> 6, last = (page + count) >> 6;
  MAM_OUT_OF_SIGHT(mam_pages_release)(area, page, (first << 6) - page);
  MAM_OUT_OF_SIGHT(mam_kept_give)(area, first, last - first);
  MAM_OUT_OF_SIGHT(mam_pages_release)(area, last << 6, page + count - (last << 6));
  /* Of this and of who begins to sweep, one sees what the other did. */
  if (mam_look_after_change_u32(&control->mode) != MAM_MODE_LAZY)
    MAM_OUT_OF_SIGHT(mam_kept_flush)(area);
}

/* The pages of a request of whole pages; 0 if none begins at page. */
MAM_INLINE mam_u32 mam_run_pages_at(const struct mam_area *area, mam_u32 page) {
  const mam_u64 *words = &area->words[page * MAM_PAGE_WORDS];
  mam_u64 word = mam_load_relaxed_u64(words);
  return mam_word_is_run(word) ? mam_run_pages(word, mam_load_relaxed_u64(&words[1])) : 0;
}

/* Frees a request of whole pages; 0 if none begins at page. */
MAM_OUTLINE int mam_run_free(MAM_TAG(1) struct mam_heap_control *control, struct mam_area area, mam_u32 page) {
  mam_u64 *place = &area.words[page * MAM_PAGE_WORDS], word = mam_load_relaxed_u64(place);
  /* acq_rel: of two frees one ends it; what its user did comes before. */
  if (!mam_word_is_run(word) || mam_cas_acq_rel_u64(place, word, 0) != word)
    return 0;
  mam_u64 more = mam_load_relaxed_u64(&place[1]);
  mam_u32 count = mam_run_pages(word, more);
  if (more != 0)
    mam_store_relaxed_u64(&place[1], 0);
  if (count >= 2 * MAM_SPAN_PAGES && mam_load_relaxed_u32(&control->mode) == MAM_MODE_LAZY &&
      area.words == control->superblocks[0].words)
    MAM_OUT_OF_SIGHT(mam_run_keep)(control, area, page, count);
  else
    MAM_OUT_OF_SIGHT(mam_pages_release)(area, page, count);
  return 1;
}

/* What begins at an address. */
struct mam_block {
  const struct mam_area *area;
  mam_u32 page;
  mam_u32 pages;      /* of a live run; 0: none begins there */
  mam_u32 size_class; /* of a live chunk, plus 1; 0: none begins there */
  struct mam_bit bit; /* the chunk's */
};

/* How long a check waits for a slot that is being refilled: in rounds of mam_pause, a second. */
enum { MAM_CHECK_ROUNDS = 5000000 };

/* Whether a chunk whose bit was seen to be 1 is live, and not set aside for a slot.
 *
 * The span's owner says to which slot it was given when it was made.  Later, when it was empty, another slot of the
 * same home may have taken it, but none elsewhere (mam_ring_take).  If the span is in one of these slots, chunks below
 * the next ticket are live.  If one of them is being refilled, perhaps with this span, the answer is known when it has
 * been. Else all chunks of the span were handed out.  A thread that rightly frees a chunk got it after the owner was
 * written and the slot's word was; so it sees both. */
MAM_OUTLINE int mam_chunk_is_live(struct mam_heap_control *control, mam_u32 kind, mam_u64 address, mam_u32 chunk) {
  mam_u64 first = address - (mam_u64)chunk * mam_class_bytes(kind);
  const struct mam_area *area = MAM_OUT_OF_SIGHT(mam_area_find)(control, address);
  mam_u16 *place = mam_page_owner(area->words, (mam_u32)((first - area->base) >> MAM_PAGE_SHIFT));
  MAM_LOOP
  for (mam_u32 i = 0; i < MAM_CHECK_ROUNDS; i++) {
    mam_u32 owner = mam_load_relaxed_u16(place), bits = control->heap.warp_bits, waits = 0;
    if (owner == 0 || owner == MAM_OWNER_NONE)
      return owner != 0;
    mam_u64 *slots =
        &control->heap.slots[mam_kind_number(kind) * control->heap.slot_count + ((owner - 1) >> bits << bits)];
    MAM_LOOP
    for (mam_u32 at = 0; at < 1u << bits; at++) {
      mam_u64 slot = mam_load_acquire_u64(&slots[at]);
      mam_u32 ticket = (mam_u32)(slot & MAM_SLOT_TICKETS);
      if (mam_slot_address(slot) == first)
        return chunk < ticket;
      waits |= ticket > mam_slot_limit(&control->heap, kind);
    }
    if (waits == 0)
      return 1;
    mam_pause();
  }
  return 0;
}

/* Looks at what begins at an address. */
MAM_OUTLINE struct mam_block mam_block_at(struct mam_heap_control *control, mam_u64 address) {
  struct mam_block block = {MAM_OUT_OF_SIGHT(mam_area_find)(control, address), 0, 0, 0, {0, 0}};
  if (block.area == 0)
    return block;
  mam_u64 offset = address - block.area->base;
  block.page = (mam_u32)(offset >> MAM_PAGE_SHIFT);
  mam_u32 entry = mam_load_relaxed_u16(&mam_area_entries(*block.area)[block.page]);
  if (entry == MAM_ENTRY_RUN) {
    if ((offset & (MAM_PAGE_BYTES - 1)) == 0)
      block.pages = mam_run_pages_at(block.area, block.page);
    return block;
  }
  mam_u32 size_class = (entry & 63) - 1, back = mam_entry_back(entry);
  if (size_class >= MAM_HEAP_CLASSES || back > block.page)
    return block;
  block.bit = mam_bit_of(offset, entry);
  mam_u64 word = mam_load_relaxed_u64(&block.area->words[block.bit.word]);
  mam_u32 chunk = (block.bit.word & (MAM_PAGE_WORDS - 1)) * 32 + block.bit.bit;
  if (word >> 56 == size_class + 1 && (word >> block.bit.bit & 1) != 0 && back < mam_word_span_pages(word) &&
      offset == ((mam_u64)(block.page - back) << MAM_PAGE_SHIFT) + (mam_u64)chunk * mam_class_bytes(size_class) &&
      MAM_OUT_OF_SIGHT(mam_chunk_is_live)(control, mam_word_class(word), address, chunk))
    block.size_class = size_class + 1;
  return block;
}

/* How many bytes the live block at address has; 0 if none begins there. */
MAM_OUTLINE mam_u64 mam_block_bytes(struct mam_heap_control *control, mam_u64 address) {
  struct mam_block block = MAM_OUT_OF_SIGHT(mam_block_at)(control, address);
  return block.size_class != 0 ? mam_class_bytes(block.size_class - 1) : (mam_u64)block.pages << MAM_PAGE_SHIFT;
}

/* Frees the block at address, with all checks that there are; 0 if none begins there. */
MAM_OUTLINE int mam_block_free(struct mam_heap_control *control, mam_u64 address) {
  struct mam_block block = MAM_OUT_OF_SIGHT(mam_block_at)(control, address);
  int freed = 0;
  if (block.pages != 0)
    freed = MAM_OUT_OF_SIGHT(mam_run_free)(control, *block.area, block.page);
  else if (block.size_class != 0)
    freed = mam_chunks_free(*block.area, block.bit.word, 1u << block.bit.bit) == 0;
  if (!freed)
    (void)mam_add_relaxed_u64(&control->refused_free, 1);
  return freed;
}

/* ---- Chunks that slots hold ---- */

/* Which of up to MAM_AHEAD kinds from one on have slots that may hold chunks: a bit each. */
MAM_OUTLINE mam_u32 mam_held_look(MAM_TAG(1) const mam_u64 *held, mam_u32 left) {
  mam_u32 found = 0;
  mam_u64 seen[MAM_AHEAD];
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    seen[i] = mam_load_relaxed_u64(&held[i < left ? i : 0]);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_AHEAD; i++)
    found |= (mam_u32)(i < left && seen[i] != 0) << i;
  return found;
}

/* What a flush found: chunks, which it freed; and slots that were being refilled. */
enum { MAM_FLUSH_FREED = 1, MAM_FLUSH_BUSY = 2 };

/* Frees what slots hold of a group, the first that may hold any, of a kind from that number on.  Returns the kind's
 * number, MAM_HEAP_KINDS if there is none, above MAM_FLUSH_*. */
enum { MAM_FLUSH_NUMBER = 2 };
MAM_OUTLINE mam_u32 mam_held_flush(MAM_TAG(1) mam_u32 number, struct mam_heap_control *control) {
  mam_u32 further = MAM_AHEAD, found = 0;
  MAM_LOOP
  while (further == MAM_AHEAD && number < MAM_HEAP_KINDS) {
    mam_u32 seen = MAM_OUT_OF_SIGHT(mam_held_look)(&control->held[number], MAM_HEAP_KINDS - number);
    number += further = mam_lowest_u32(seen | 1u << MAM_AHEAD);
  }
  mam_u64 groups = number < MAM_HEAP_KINDS ? mam_load_relaxed_u64(&control->held[number]) : 0;
  if (groups == 0)
    return (number < MAM_HEAP_KINDS ? number + 1 : (mam_u32)MAM_HEAP_KINDS) << MAM_FLUSH_NUMBER;
  mam_u32 kind = mam_kind_numbered(control, number), group = mam_lowest_u64(groups);
  mam_u32 limit = kind != MAM_NO_KIND ? mam_slot_limit(&control->heap, kind) : 0;
  mam_u32 at = group << mam_held_shift(control->heap.slot_count);
  mam_u32 last = (group + 1) << mam_held_shift(control->heap.slot_count);
  last = last < control->heap.slot_count ? last : control->heap.slot_count;
  (void)mam_and_acq_rel_u64(&control->held[number], ~(1ull << group));
  mam_fence_all(); /* pairs with mam_slot_publish */
  MAM_LOOP
  for (; at < last; at += MAM_AHEAD) {
    mam_u32 first = number * control->heap.slot_count + at;
    mam_u32 seen = MAM_OUT_OF_SIGHT(mam_slots_look)(&control->heap.slots[first], limit, last - at);
    found |= seen >> MAM_AHEAD != 0 ? MAM_FLUSH_BUSY : 0;
    MAM_LOOP
    for (seen &= (1u << MAM_AHEAD) - 1; seen != 0; seen &= seen - 1) {
      first = number * control->heap.slot_count + at;
      found |= MAM_OUT_OF_SIGHT(mam_slot_flush)(limit, control, first + mam_lowest_u32(seen));
    }
  }
  if ((found & MAM_FLUSH_BUSY) != 0) {
    (void)mam_or_acq_rel_u64(&control->held[number], 1ull << group);
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(control->superblocks[0]));
    number++; /* not again at once */
  }
  return number << MAM_FLUSH_NUMBER | found;
}

/* Frees the chunks without a ticket of groups of slots: of so many more, once there were any.  MAM_FLUSH_*. */
MAM_INLINE mam_u32 mam_slots_flush(mam_u32 more, struct mam_heap_control *control) {
  mam_u32 found = 0, at = 0;
  (void)mam_add_relaxed_u32(&control->opening[MAM_HEAP_KINDS], 1);
  MAM_LOOP
  while (at >> MAM_FLUSH_NUMBER < MAM_HEAP_KINDS && more != 0) {
    at = MAM_OUT_OF_SIGHT(mam_held_flush)(at >> MAM_FLUSH_NUMBER, control);
    found |= at & (MAM_FLUSH_FREED | MAM_FLUSH_BUSY);
    more -= (found & MAM_FLUSH_FREED) != 0;
  }
  (void)mam_add_acq_rel_u32(&control->opening[MAM_HEAP_KINDS], ~0u); /* release: as in mam_opening_end */
  return found;
}

/* Takes the superblock that waits in the second word of a park, if one does: its address, else 0. */
MAM_INLINE mam_u64 mam_park_empty(struct mam_heap_control *control, mam_u64 *place) {
  mam_u64 word = 0;
  if (mam_park_address(mam_load_relaxed_u64(place)) != 0)
    word = mam_exchange_acq_rel_u64(place, 0); /* acquire: what was done in it; pairs with who left it */
  if (word != 0)
    (void)mam_add_relaxed_u32(&control->parked, 0u - mam_park_number(word));
  return mam_park_address(word);
}

/* Frees what waits in parks; whether there was anything. */
MAM_OUTLINE int mam_parks_flush(struct mam_heap_control *control) {
  mam_u32 at = 0;
  int found = 0;
  if (mam_load_relaxed_u64(&control->parks_held) == 0)
    return 0;
  (void)mam_add_relaxed_u32(&control->opening[MAM_HEAP_KINDS], 1);
  mam_u64 groups = mam_exchange_acq_rel_u64(&control->parks_held, 0);
  MAM_LOOP
  for (; at < control->heap.parks; at++) {
    if ((groups >> (at >> mam_held_shift(control->heap.parks)) & 1) == 0) {
      at |= (1u << mam_held_shift(control->heap.parks)) - 1;
      continue;
    }
    mam_u64 *park = &mam_parks(control)[(mam_u64)at * MAM_PARK_WORDS];
    mam_u64 header = 0, block = mam_park_empty(control, park + 1);
    if (mam_load_relaxed_u64(park) != 0)
      header = mam_exchange_acq_rel_u64(park, 0); /* acquire: what was done in it; pairs with mam_warp_put_away */
    if (block != 0)
      (void)MAM_OUT_OF_SIGHT(mam_block_free)(control, block);
    if (header != 0)
      (void)MAM_OUT_OF_SIGHT(mam_block_free)(control, header);
    found |= (block | header) != 0;
  }
  (void)mam_add_acq_rel_u32(&control->opening[MAM_HEAP_KINDS], ~0u); /* release: as in mam_opening_end */
  return found;
}

/* Whether the heap, whose first superblock is given, is known to have nothing for a class. */
MAM_OUTLINE int mam_is_missing(struct mam_heap_control *control, struct mam_area first, mam_u32 size_class) {
  mam_u32 missing = mam_load_relaxed_u32(&control->missing[mam_kind_number(size_class)]),
          sum = mam_stamps_sum(control, first);
  return sum != 0 && missing == sum;
}

/* The span of a slot's word, as a page of the first superblock; MAM_NO_PAGE if it is none. */
MAM_INLINE mam_u32 mam_slot_page(mam_u64 slot, mam_u64 base, mam_u32 page_count) {
  mam_u64 page = (slot >> MAM_TICKET_BITS) - (base >> MAM_PAGE_SHIFT);
  return page < page_count ? (mam_u32)page : MAM_NO_PAGE;
}

/* Takes a span for a slot that it had before, if that is empty now: the next in its ring after prior.  Each of its
 * words goes from empty to full by compare-and-swap; if one is not empty, the others are put back.  Below: its page,
 * MAM_NO_PAGE if there is none that is empty.  Above: the page, plus 1, of a span that was put back and is watched by
 * now; 0 for none.  Calls nothing, as mam_refill_pages. */
MAM_OUTLINE mam_u64 mam_ring_take(mam_u64 *usage, const mam_u16 *rings, mam_u32 page_count, mam_u32 prior,
                                  mam_u32 size_class, mam_u32 chunks_log2, mam_u32 home, mam_u32 home_count) {
  mam_u32 page = mam_ring_page(page_count, mam_load_relaxed_u16(&rings[prior]), home, home_count), failed = 0;
  mam_u32 words = ((1u << chunks_log2) + 31) >> 5;
  if (page == MAM_NO_PAGE)
    return page;
  mam_u64 empty = mam_word_of(size_class, (mam_class_bytes(size_class) << chunks_log2) >> MAM_PAGE_SHIFT, words,
                              words > 1 ? 32 : 1u << chunks_log2);
  mam_u64 seen[MAM_PAGE_WORDS], watched = 0;
  usage += page * MAM_PAGE_WORDS;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = mam_cas_between_fences_if_u64(i < words, &usage[i], empty, empty | mam_word_full(empty));
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    failed |= (mam_u32)(seen[i] != empty) << i;
  if (failed == 0)
    return page;
  /* relaxed: the chunks were not used; who claims them next sees the frees before, through this change as well. */
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    seen[i] = mam_and_relaxed_if_u64(i < words && (failed >> i & 1) == 0, &usage[i], ~(mam_u64)mam_word_full(empty), 0);
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_PAGE_WORDS; i++)
    watched |= seen[i] & MAM_WORD_WATCHED;
  return (watched != 0 ? (mam_u64)(page + 1) << 32 : 0) | MAM_NO_PAGE;
}

/* A request for chunks that is to fill a slot: everything about it and its heap that a kernel knows without asking its
 * memory. */
struct mam_request {
  struct mam_heap_control *control;
  struct mam_area area; /* the first superblock */
  mam_u64 *slot;        /* 0: the caller's lanes are so many that they take whole spans */
  mam_u32 size_class, chunks_log2, home, home_count;
  mam_u32 prior;             /* where in area the slot's span was, or MAM_NO_PAGE */
  mam_u32 owner, slot_count; /* the slot's number in its kind plus 1, and how many there are */
  int lazy;                  /* as mam_heap's */
};

/* Says that the slot is about to hold chunks: before it is refilled. */
MAM_INLINE void mam_held_set(const struct mam_request *request) {
  mam_u64 *held = &request->control->held[mam_kind_number(request->size_class)];
  mam_u64 bit = mam_held_bit(request->slot_count, request->owner - 1);
  if ((mam_load_relaxed_u64(held) & bit) == 0) /* or all that refill would change one word */
    (void)mam_or_before_fence_u64(held, bit);
}

/* The same of a slot by its number among all. */
MAM_OUTLINE void mam_held_raise(struct mam_heap_control *control, mam_u32 slot) {
  mam_u32 count = control->heap.slot_count;
  (void)mam_or_before_fence_u64(&control->held[slot / count], mam_held_bit(count, slot % count));
}

/* The number among all of the slot of a request. */
MAM_INLINE mam_u32 mam_request_number(const struct mam_request *request) {
  return mam_kind_number(request->size_class) * request->slot_count + request->owner - 1;
}

/* Fills a slot again with a span that mam_ring_take took: of its chunks the first count are the caller's.  The page;
 * MAM_NO_PAGE if it took none. */
MAM_INLINE mam_u32 mam_slot_retake(const struct mam_request *request, mam_u64 taken, mam_u32 count) {
  struct mam_area area = request->area;
  mam_u32 page = (mam_u32)taken;
  if (taken >> 32 != 0) /* its sweeper saw it in use */
    (void)MAM_OUT_OF_SIGHT(mam_span_watch)(area, (mam_u32)(taken >> 32) - 1);
  if (page == MAM_NO_PAGE)
    return page;
  /* What the chunks' users did comes before what those do who find the span in the slot.  Pairs with mam_held_flush. */
  mam_fence_all();
  mam_u32 stamp = mam_look_after_fence_u32(mam_area_stamp(area));
  (void)mam_exchange_after_fence_u64(request->slot, mam_slot_of(mam_area_address(area, page), count));
  if ((stamp & 1) != 0) {
    MAM_OUT_OF_SIGHT(mam_held_raise)(request->control, mam_request_number(request));
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
  }
  return page;
}

/* With a page of the first superblock: mam_refill_pages filled its word of the map; and for mam_slot_filled, that the
 * span gets a place in a ring, that it is to be watched, and that the stamp is to be raised. */
#define MAM_REFILL_FILLED (1u << 30)
#define MAM_REFILL_RINGED (1u << 29)
#define MAM_REFILL_WATCH (1u << 28)
#define MAM_REFILL_STAMP (1u << 27)
#define MAM_REFILL_PAGE (MAM_REFILL_STAMP - 1)

/* What is left to do after a slot got a new span, of the first superblock: its page, with flags; prior is where the
 * slot's span was before, or MAM_NO_PAGE.  Comes after the span is in the slot, since others may wait for that, and
 * nobody for this: who looks for its place in a ring before finds that of a span long gone. */
MAM_OUTLINE void mam_slot_filled(MAM_TAG(1) mam_u64 *usage, mam_u32 page_count, mam_u32 home, mam_u32 home_count,
                                 mam_u32 prior, mam_u32 flagged) {
  struct mam_area area = {0, usage, page_count, 0};
  mam_u16 *rings = mam_area_rings(area);
  mam_u32 page = flagged & MAM_REFILL_PAGE, tried = MAM_RING_NONE;
  if (prior < page_count) /* early, to be under way with what follows */
    tried = mam_load_relaxed_u16(&rings[prior]);
  if ((flagged & MAM_REFILL_FILLED) != 0)
    MAM_OUT_OF_SIGHT(mam_map_filled)(mam_area_pages(area), mam_area_map_words(area), page >> 6);
  MAM_FORGET(page_count);
  if ((flagged & MAM_REFILL_RINGED) != 0)
    MAM_OUT_OF_SIGHT(mam_ring_insert)(rings, page_count, home, home_count, tried, page);
  if ((flagged & MAM_REFILL_WATCH) != 0)
    (void)MAM_OUT_OF_SIGHT(mam_span_watch)(area, page);
  if ((flagged & MAM_REFILL_STAMP) != 0)
    MAM_OUT_OF_SIGHT(mam_stamp_raise)(mam_area_stamp(area));
}

/* Publishes a span in a slot.  What is left to do then, as for mam_slot_filled: a span that is not watched has to be
 * from now on, since of this, which looks at the mode after the span's words were written, and of who begins to sweep,
 * one sees what the other did; and the stamp, since somebody may have missed what the slot holds (mam_held_set). */
MAM_INLINE mam_u32 mam_slot_publish(struct mam_heap_control *control, const mam_u64 *first, mam_u64 *slot, mam_u64 word,
                                    int lazy) {
  mam_fence_all(); /* the release too: the words and entries of the span */
  mam_u32 mode = mam_look_after_fence_u32(&control->mode);
  mam_u32 stamp = mam_look_after_fence_u32((mam_u32 *)(first - 1) + 1);
  (void)mam_exchange_after_fence_u64(slot, word);
  return (lazy && mode != MAM_MODE_LAZY ? MAM_REFILL_WATCH : 0) | ((stamp & 1) != 0 ? MAM_REFILL_STAMP : 0);
}

/* The request that a word describes, of a slot of that number among all. */
MAM_INLINE struct mam_request mam_request_of(const mam_heap *heap, mam_u32 wanted, mam_u32 slot, mam_u32 prior) {
  mam_u32 number = slot & MAM_REST_SLOT, kind = wanted & MAM_REST_KIND;
  struct mam_request request = {heap->control,
                                {heap->base, heap->words, heap->page_count, 0},
                                (wanted & MAM_REST_WHOLE) != 0 ? 0 : &heap->slots[number],
                                kind,
                                slot >> MAM_REST_CHUNKS,
                                wanted >> MAM_REST_HOME & 1023,
                                mam_home_count(heap),
                                prior,
                                number - mam_kind_number(kind) * heap->slot_count + 1,
                                heap->slot_count,
                                (wanted & MAM_REST_LAZY) != 0};
  return request;
}

/* Before sm_80 it would cost a kernel ten registers to have this as a part of it. */
#if MAM_ON_DEVICE && __CUDA_ARCH__ < 800
#define MAM_SLOT_FILL MAM_OUTLINE
#else
#define MAM_SLOT_FILL MAM_INLINE
#endif

/* Gives a slot, if there is one, a span in pages that the caller took, perhaps with MAM_REFILL_FILLED: the first chunks
 * are the lanes'.  Every lane takes part. */
MAM_SLOT_FILL mam_u32 mam_slot_fill(const struct mam_request *request, struct mam_area area, mam_u32 flagged,
                                    mam_u32 count, struct mam_lanes lanes) {
  mam_u32 limit = 1u << request->chunks_log2, bytes = mam_class_bytes(request->size_class);
  mam_u32 page = flagged & MAM_REFILL_PAGE;
  int ringed = request->lazy && request->slot != 0 && area.words == request->area.words;
  int lazy = ringed && mam_ring_number(page, request->home, request->home_count) != MAM_RING_NONE;
  count = count < limit ? count : limit;
  mam_span_write(area, page, request->size_class, (bytes << request->chunks_log2) >> MAM_PAGE_SHIFT, limit,
                 lazy ? 0 : MAM_WORD_WATCHED, request->slot != 0 ? request->owner : MAM_OWNER_NONE, lanes);
  MAM_FORGET(lanes.rank);
  mam_lanes_sync(lanes);
  if (lanes.rank != 0)
    return count;
  if (request->slot != 0)
    flagged |= mam_slot_publish(request->control, request->area.words, request->slot,
                                mam_slot_of(mam_area_address(area, page), count), lazy);
  flagged |= ringed ? MAM_REFILL_RINGED : 0;
  if ((flagged & MAM_REFILL_STAMP) != 0)
    MAM_OUT_OF_SIGHT(mam_held_raise)(request->control, mam_request_number(request));
  if ((flagged & ~MAM_REFILL_PAGE) != 0)
    MAM_OUT_OF_SIGHT(mam_slot_filled)
  (area.words, area.page_count, request->home, request->home_count, request->prior, flagged);
  return count;
}

/* How many words a refill looks at together: fewer where the linker counts the registers of each function. */
#if defined(__CUDACC_RDC__) && defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 800 || __CUDA_ARCH__ >= 1000)
enum { MAM_WORDS_AHEAD = 4 };
#else
enum { MAM_WORDS_AHEAD = MAM_AHEAD };
#endif

/* What a look says: where a run begins, MAM_LOOK_NONE if there is none; and from MAM_LOOK_WORD on, in which word. */
enum { MAM_LOOK_NONE = 64, MAM_LOOK_WORD = 8 };

/* Of up to MAM_AHEAD words, each so far from the one before, one that has count zeros in a row: the first if it has
 * them from a place on, else one by chance, so that those who look at the same time do not meet.  Calls nothing. */
MAM_OUTLINE mam_u32 mam_words_look(mam_u32 count, const mam_u64 *words, mam_u32 distance, mam_u32 left, mam_u32 from) {
  mam_u64 starts[MAM_WORDS_AHEAD];
  mam_u32 fits = 0, at = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++) {
    starts[i] = ~mam_load_relaxed_if_u64(i < left, &words[at], MAM_FULL_WORD);
    at += distance;
    MAM_FORGET(at); /* or all addresses are computed before, each in registers of its own */
  }
  MAM_LOOP
  for (mam_u32 have = 1; have < count;) { /* as mam_run_find, in all of them */
    mam_u32 step = have < count - have ? have : count - have;
    MAM_UNROLL
    for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++)
      starts[i] &= starts[i] >> step;
    have += step;
  }
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++)
    fits |= (mam_u32)(starts[i] != 0) << i;
  if (fits == 0)
    return MAM_LOOK_NONE;
  mam_u32 behind = starts[0] >> from != 0 ? 1 : fits & ~0u << mam_salt() % MAM_WORDS_AHEAD;
  mam_u32 word = mam_lowest_u32(behind != 0 ? behind : fits);
  mam_u64 start = 0;
  MAM_UNROLL
  for (mam_u32 i = 0; i < MAM_WORDS_AHEAD; i++)
    start |= i == word ? starts[i] : 0;
  return word << MAM_LOOK_WORD | (start >> from != 0 ? mam_lowest_u64(start >> from) + from : mam_lowest_u64(start));
}

/* Takes a run of pages of the home's word at a turn, or of one of the next in its round, which are looked at together;
 * best from a place in that word on.  at: the home's cursor, in that word.  The page: as mam_refill_pages. */
MAM_OUTLINE mam_u32 mam_refill_look(mam_u32 pages, mam_u64 at, mam_u32 home, mam_u32 home_count, struct mam_area area,
                                    mam_u64 *cursor) {
  mam_u32 turn = (mam_u32)at >> 6, wide = (mam_u32)(at >> 32);
  if (home + wide * home_count >= mam_area_map_words(area)) /* the round is that of a larger superblock */
    return MAM_NO_PAGE;
  mam_u32 left = wide + 1 - turn < MAM_WORDS_AHEAD ? wide + 1 - turn : (mam_u32)MAM_WORDS_AHEAD,
          index = home + turn * home_count;
  mam_u32 seen =
      MAM_OUT_OF_SIGHT(mam_words_look)(pages, &mam_area_pages(area)[index], home_count, left, (mam_u32)at & 63);
  mam_u32 from = seen & 127, word = seen >> MAM_LOOK_WORD, step = from == MAM_LOOK_NONE ? left : word;
  if (step != 0)
    (void)mam_add_relaxed_u64(cursor, step << 6);
  if (from == MAM_LOOK_NONE)
    return MAM_NO_PAGE;
  index += word * home_count;
  mam_u64 bits = mam_run_bits(pages, from);
  mam_u64 old = mam_or_acquire_u64(&mam_area_pages(area)[index], bits); /* pairs with mam_pages_clear */
  if ((old & bits) == 0)
    return ((index << 6) + from) | ((old | bits) == MAM_FULL_WORD ? MAM_REFILL_FILLED : 0);
  if ((bits & ~old) != 0)
    MAM_OUT_OF_SIGHT(mam_pages_clear)(area, index, bits & ~old);
  return MAM_NO_PAGE;
}

/* A home's cursor, after words of its round had no room: of a wider round, if it has been round once. */
MAM_INLINE mam_u64 mam_refill_widen(mam_u64 *cursor, mam_u32 map_words, mam_u32 home, mam_u32 home_count) {
  mam_u64 at = mam_load_relaxed_u64(cursor);
  mam_u32 turn = (mam_u32)at >> 6, wide = (mam_u32)(at >> 32),
          wider = mam_home_wider(map_words, home, home_count, wide);
  mam_u64 widened = (mam_u64)wider << 32 | (wide + 1) << 6;
  if (turn > wide && wider > wide && mam_cas_relaxed_u64(cursor, at, widened) == at)
    return widened;
  return (mam_u64)wide << 32 | turn % (wide + 1) << 6;
}

/* Takes a run of pages in the caller's home of the first superblock, where that is quickly done: at the home's cursor,
 * or elsewhere in that word, or in one of the next.  A round that is over without it becomes wider.  The page, perhaps
 * with MAM_REFILL_FILLED; MAM_NO_PAGE if none was there. */
MAM_OUTLINE mam_u32 mam_refill_pages(mam_u64 *cursor, mam_u64 *usage, mam_u32 page_count, mam_u32 home,
                                     mam_u32 home_count, mam_u32 pages) {
  struct mam_area area = {0, usage, page_count, 0};
  mam_u64 at = mam_add_relaxed_u64(cursor, pages);
  mam_u32 from = (mam_u32)at & 63, turn = (mam_u32)at >> 6, page;
  if (from + pages > 64) { /* the next word, then */
    turn++;
    from = 0;
  }
  at = (at & ~(mam_u64)0xffffffff) | turn % ((mam_u32)(at >> 32) + 1) << 6 | from;
  page = MAM_OUT_OF_SIGHT(mam_refill_look)(pages, at, home, home_count, area, cursor);
  MAM_LOOP
  for (int i = 1; i < MAM_HOME_TRIES && page == MAM_NO_PAGE; i++) {
    if (mam_shortage_covers(mam_load_relaxed_u32(mam_area_shortage(area)), pages))
      return page;
    at = mam_refill_widen(cursor, mam_area_map_words(area), home, home_count);
    page = MAM_OUT_OF_SIGHT(mam_refill_look)(pages, at, home, home_count, area, cursor);
  }
  return page;
}

/* Whether a request can only fail; then the task of refilling the slot, if it had that, is done. */
MAM_OUTLINE int mam_request_is_vain(MAM_TAG(5) struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot) {
  mam_u64 *place = &control->heap.slots[slot & MAM_REST_SLOT];
  if (!MAM_OUT_OF_SIGHT(mam_is_missing)(control, control->superblocks[0], wanted & MAM_REST_KIND))
    return 0;
  if ((wanted & (MAM_REST_REFILL | MAM_REST_WHOLE)) == MAM_REST_REFILL)
    (void)mam_exchange_release_u64(place, MAM_SLOT_DRY | 1u << (slot >> MAM_REST_CHUNKS));
  else if ((wanted & MAM_REST_WHOLE) == 0)
    mam_slot_keep(place, mam_load_relaxed_u64(place), 1u << (slot >> MAM_REST_CHUNKS));
  return 1;
}

/* As mam_span_write, for a caller that is alone. */
MAM_OUTLINE void mam_span_write_alone(MAM_TAG(2) const struct mam_area *area, mam_u32 page, mam_u32 size_class,
                                      mam_u32 chunks, mam_u32 watched, mam_u32 owner) {
  mam_span_write(*area, page, size_class, mam_class_bytes(size_class) * chunks >> MAM_PAGE_SHIFT, chunks,
                 watched != 0 ? MAM_WORD_WATCHED : 0, owner, mam_lanes_alone());
}

/* As mam_slot_fill, for a caller that is alone. */
MAM_OUTLINE struct mam_claim mam_slot_fill_alone(struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                                 mam_u32 count, struct mam_found found) {
  mam_u32 limit = 1u << (slot >> MAM_REST_CHUNKS), owner = MAM_OWNER_NONE, flagged = 0;
  /* Once the heap has swept, new spans are watched: better from the beginning. */
  if ((wanted & (MAM_REST_LAZY | MAM_REST_WHOLE)) == MAM_REST_LAZY && found.area == control->superblocks &&
      mam_load_relaxed_u32(&control->mode) == MAM_MODE_LAZY)
    flagged = MAM_REFILL_RINGED;
  int lazy =
      flagged != 0 && mam_ring_number(found.page, wanted >> MAM_REST_HOME & 1023, control->home_count) != MAM_RING_NONE;
  if ((wanted & MAM_REST_WHOLE) == 0)
    owner = (slot & MAM_REST_SLOT) % control->heap.slot_count + 1;
  MAM_OUT_OF_SIGHT(mam_span_write_alone)(found.area, found.page, wanted & MAM_REST_KIND, limit, !lazy, owner);
  MAM_FORGET(wanted);
  MAM_FORGET(slot);
  MAM_FORGET_ADDRESS(control);
  struct mam_claim claim = {mam_area_address(*found.area, found.page), 0, mam_class_bytes(wanted & MAM_REST_KIND)};
  count = count < 1u << (slot >> MAM_REST_CHUNKS) ? count : 1u << (slot >> MAM_REST_CHUNKS);
  claim.mask = 0xffffffffu >> (32 - count);
  if ((wanted & MAM_REST_WHOLE) != 0)
    return claim;
  mam_u64 *place = &control->heap.slots[slot & MAM_REST_SLOT];
  mam_u32 prior = mam_slot_page(mam_load_relaxed_u64(place), control->heap.base, control->heap.page_count);
  flagged |=
      found.page | mam_slot_publish(control, control->heap.words, place, mam_slot_of(claim.address, count), lazy);
  if ((flagged & MAM_REFILL_STAMP) != 0)
    MAM_OUT_OF_SIGHT(mam_held_raise)(control, slot & MAM_REST_SLOT);
  if ((flagged & ~MAM_REFILL_PAGE) != 0)
    MAM_OUT_OF_SIGHT(mam_slot_filled)
  (found.area->words, found.area->page_count, wanted >> MAM_REST_HOME & 1023, control->home_count, prior, flagged);
  return claim;
}

/* Tickets of a slot that another thread refills: as mam_claim_tickets. */
MAM_OUTLINE struct mam_claim mam_claim_waited(MAM_TAG(1) struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                              mam_u32 count) {
  mam_u64 *place = &control->heap.slots[slot & MAM_REST_SLOT];
  mam_u32 limit = 1u << (slot >> MAM_REST_CHUNKS);
  return mam_claim_tickets(place, MAM_OUT_OF_SIGHT(mam_slot_wait)(place, limit, count), wanted & MAM_REST_KIND, limit,
                           count);
}

/* ---- By all means ----
 *
 * A thread that has no ticket goes through steps, each of which may bring it chunks.  First, if it has the task, it
 * refills its slot.  Then it makes passes over the heap.  A pass looks, in this order, for chunks of spans that were
 * split before; pages for a span of the thread's own, which no slot gets; tickets of any slot of the class; and pages
 * for a part of a span, halved until they are a chunk's.
 *
 * What a pass did not find may be on its way to where it looked: empty spans that nobody swept yet; pages that a thread
 * took for a span of which it needs a part (opening); a slot that is being refilled (busy); what was freed behind the
 * pass (the stamps).  If none of that was the case, what slots hold of any class is freed, more of it after each pass.
 * If there was nothing of that either, larger chunks serve, up to twice as large (the paper's max_frag).  If there are
 * none of these, it is known that the class is missing, and whoever asks is told so until a stamp changes. */

/* Ends a pass that found nothing for a class, when the stamps' sum was that.  Whether slots and parks hold nothing
 * either, and nothing is on its way. */
MAM_INLINE int mam_pass_end(struct mam_heap_control *control, mam_u32 size_class, mam_u32 sum, int busy, mam_u32 pass) {
  mam_u32 found = MAM_FLUSH_BUSY;
  busy |= mam_load_acquire_u32(&control->mode) != MAM_MODE_WATCHED;
  /* acquire: what was opened meanwhile has raised a stamp, or was there for the pass. */
  busy |= (mam_load_acquire_u32(&control->opening[mam_kind_number(size_class)]) |
           mam_load_acquire_u32(&control->opening[MAM_HEAP_KINDS])) != 0;
  if (busy)
    mam_pause();
  else if (mam_stamps_sum(control, control->superblocks[0]) == sum) {
    found = mam_slots_flush(pass < 16 ? 1u << pass : ~0u, control);
    MAM_FORGET_ADDRESS(control);
    if (found == 0 && MAM_OUT_OF_SIGHT(mam_parks_flush)(control))
      found = MAM_FLUSH_FREED;
    if (found == MAM_FLUSH_BUSY)
      mam_pause();
  }
  return found == 0 && mam_stamps_sum(control, control->superblocks[0]) == sum;
}

/* Where a pass is; with MAM_STEP_BUSY, when it has met another thread that is about to have chunks. */
enum {
  MAM_STEP_BEGIN,
  MAM_STEP_RECYCLE,
  MAM_STEP_OPEN,
  MAM_STEP_STEAL,
  MAM_STEP_PART,
  MAM_STEP_LARGER,
  MAM_STEP_BUSY = 8
};

/* The pages of the least span of a class. */
MAM_INLINE mam_u32 mam_class_least_pages(mam_u32 size_class) {
  return (mam_class_bytes(size_class) + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
}

/* Chunks of a span of the caller's own, which no slot gets, in so many pages.  If there are none, the claim's address
 * says whether another thread is opening such a span. */
MAM_INLINE struct mam_claim mam_claim_own(struct mam_heap_control *control, mam_u32 wanted, mam_u32 pages,
                                          mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  if (MAM_OUT_OF_SIGHT(mam_pages_are_short)(control, pages))
    return claim;
  claim.address = 1;
  if (!MAM_OUT_OF_SIGHT(mam_opening_begin)(control, wanted & MAM_REST_KIND, pages))
    return claim;
  MAM_FORGET(wanted);
  struct mam_found found = mam_pages_any(control, pages, wanted);
  MAM_FORGET(wanted);
  MAM_FORGET_ADDRESS(control);
  claim.address = 0;
  if (found.page != MAM_NO_PAGE)
    claim = MAM_OUT_OF_SIGHT(mam_span_split)(found, wanted & MAM_REST_KIND, pages,
                                             mam_slot_limit(&control->heap, wanted & MAM_REST_KIND), count);
  mam_opening_end(control, wanted & MAM_REST_KIND);
  return claim;
}

/* Whether chunks of a kind may serve a request of a class. */
MAM_INLINE int mam_class_serves(mam_u32 kind, mam_u32 size_class) {
  return kind < MAM_HEAP_CLASSES && mam_class_bytes(kind) <= 2 * mam_class_bytes(size_class);
}

/* Chunks for a request whose slot has none, by passes over the heap: until there is something, or the class is known to
 * be missing. */
MAM_OUTLINE struct mam_claim mam_claim_scarce(struct mam_heap_control *control, mam_u32 wanted, mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  mam_u32 pass = 0, sum = 0, step = MAM_STEP_BEGIN, kind = 0, pages = 0;
  MAM_LOOP
  for (;;) {
    MAM_FORGET(wanted); /* what a step computes from it is not kept over the others */
    MAM_FORGET_ADDRESS(control);
    if (step == MAM_STEP_BEGIN) {
      if (pass++ == MAM_SCARCE_ROUNDS ||
          MAM_OUT_OF_SIGHT(mam_is_missing)(control, control->superblocks[0], wanted & MAM_REST_KIND))
        return claim;
      sum = MAM_OUT_OF_SIGHT(mam_stamps_rely)(control);
      MAM_FORGET(wanted);
      MAM_FORGET_ADDRESS(control);
      kind = wanted & MAM_REST_KIND;
      pages = mam_span_pages(control->heap.chunks, kind);
      step = MAM_STEP_RECYCLE;
    }
    claim.mask = 0;
    if (step == MAM_STEP_RECYCLE || step == MAM_STEP_LARGER)
      claim = MAM_OUT_OF_SIGHT(mam_recycle_any)(control, kind, count, wanted >> MAM_REST_HOME & 1023);
    else if ((step & ~(mam_u32)MAM_STEP_BUSY) == MAM_STEP_STEAL)
      claim = MAM_OUT_OF_SIGHT(mam_steal)(control, kind, count);
    else
      claim = mam_claim_own(control, wanted, pages, count);
    if (claim.mask != 0)
      return claim;
    MAM_FORGET(wanted);
    MAM_FORGET_ADDRESS(control);
    step |= claim.address != 0 ? MAM_STEP_BUSY : 0;
    if ((step & ~(mam_u32)MAM_STEP_BUSY) < MAM_STEP_STEAL)
      step++;
    else if (step < MAM_STEP_LARGER && pages > mam_class_least_pages(wanted & MAM_REST_KIND)) {
      pages = pages / 2;
      if (pages < mam_class_least_pages(wanted & MAM_REST_KIND))
        pages = mam_class_least_pages(wanted & MAM_REST_KIND);
      step = MAM_STEP_PART;
    } else if (step == MAM_STEP_LARGER ||
               mam_pass_end(control, wanted & MAM_REST_KIND, sum, step >= MAM_STEP_BUSY, pass)) {
      step = MAM_STEP_LARGER;
      if (mam_class_serves(++kind, wanted & MAM_REST_KIND))
        continue;
      if (mam_stamps_sum(control, control->superblocks[0]) == sum)
        mam_store_relaxed_u32(&control->missing[mam_kind_number(wanted & MAM_REST_KIND)], sum);
      step = MAM_STEP_BEGIN;
    } else
      step = MAM_STEP_BEGIN;
  }
}

/* Gives a slot, unless the caller takes whole spans, a span in pages from wherever there are some, for a caller that is
 * alone; the first count chunks are its.  If there are none, the slot says so. */
MAM_OUTLINE struct mam_claim mam_slot_refill(MAM_TAG(5) struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                             mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  if ((wanted & MAM_REST_WHOLE) == 0)
    MAM_OUT_OF_SIGHT(mam_held_raise)(control, slot & MAM_REST_SLOT);
  struct mam_found found = mam_pages_any(control, mam_span_pages(control->heap.chunks, wanted & MAM_REST_KIND), wanted);
  MAM_FORGET(slot);
  MAM_FORGET_ADDRESS(control);
  if (found.page != MAM_NO_PAGE)
    claim = MAM_OUT_OF_SIGHT(mam_slot_fill_alone)(control, wanted, slot, count, found);
  else if ((wanted & MAM_REST_WHOLE) == 0)
    (void)mam_exchange_release_u64(&control->heap.slots[slot & MAM_REST_SLOT],
                                   MAM_SLOT_DRY | 1u << (slot >> MAM_REST_CHUNKS));
  return claim;
}

/* Chunks for count lanes together, of which one calls, and none has a ticket.  mask 0: there is no room.  wanted: what
 * for (MAM_REST_*); slot: its number among all, with MAM_REST_CHUNKS. */
MAM_INLINE struct mam_claim mam_claim_chunks(struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot,
                                             mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  if (MAM_OUT_OF_SIGHT(mam_request_is_vain)(control, wanted, slot))
    return claim;
  MAM_FORGET(wanted);
  if ((wanted & (MAM_REST_REFILL | MAM_REST_WHOLE)) == 0) {
    claim = MAM_OUT_OF_SIGHT(mam_claim_waited)(control, wanted, slot, count);
    if (claim.mask != 0)
      return claim;
    wanted |= claim.address != 0 ? MAM_REST_REFILL : 0;
  }
  MAM_FORGET(wanted);
  if ((wanted & (MAM_REST_REFILL | MAM_REST_WHOLE)) != 0) {
    claim = MAM_OUT_OF_SIGHT(mam_slot_refill)(control, wanted, slot, count);
    if (claim.mask != 0)
      return claim;
  }
  return MAM_OUT_OF_SIGHT(mam_claim_scarce)(control, wanted, count);
}

/* The chunk of a claim that is for the lane of that rank. */
MAM_INLINE mam_u64 mam_claim_chunk(struct mam_claim claim, mam_u32 rank) {
  mam_u32 mask = claim.mask;
  MAM_LOOP
  for (; rank != 0; rank--)
    mask &= mask - 1;
  return claim.address + (mam_u64)mam_lowest_u32(mask) * claim.chunk_bytes;
}

/* Whether bytes could ever be served by the heap as large as it is. */
MAM_OUTLINE int mam_heap_could(MAM_TAG(1) struct mam_heap_control *control, mam_u64 bytes) {
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++)
    if (bytes <= (mam_u64)control->superblocks[i].page_count << MAM_PAGE_SHIFT)
      return 1;
  return 0;
}

/* Counts requests of a home that failed. */
MAM_INLINE void mam_failed(struct mam_heap_control *control, mam_u32 home, mam_u32 count) {
  (void)mam_add_relaxed_u64(&control->failures[home % MAM_COUNTERS], count);
}

/* Takes kept words where turns say, for a few turns. */
MAM_OUTLINE mam_u32 mam_kept_take_turns(const struct mam_area *area, mam_u32 *cursor, mam_u32 count, mam_u32 end) {
  MAM_LOOP
  for (int i = 0; i < MAM_KEPT_TURNS; i++) {
    mam_u32 place = mam_kept_place(mam_add_relaxed_u32(cursor, 1), count, end);
    if (place == MAM_NO_PAGE || MAM_OUT_OF_SIGHT(mam_kept_take_at)(place, area, count))
      return place;
  }
  return MAM_NO_PAGE;
}

/* A long run of words that were kept.  All take turns in those words that a long run ever had; if runs of other lengths
 * have been there, a search that all began in one place would take as long as there are requests. */
MAM_OUTLINE mam_u32 mam_run_take_kept(struct mam_heap_control *control, const struct mam_area *area, mam_u32 pages) {
  mam_u32 count = (pages + 63) >> 6, end = mam_load_relaxed_u32(&control->kept_end);
  if (count > end)
    return MAM_NO_PAGE;
  mam_u32 first = MAM_OUT_OF_SIGHT(mam_kept_take_turns)(area, &control->kept_cursor, count, end);
  if (first == MAM_NO_PAGE)
    first = MAM_OUT_OF_SIGHT(mam_kept_take)(area, count, mam_load_relaxed_u32(&control->kept_cursor) % end);
  if (first == MAM_NO_PAGE)
    return first;
  if ((pages & 63) != 0)
    MAM_OUT_OF_SIGHT(mam_pages_clear)(*area, first + (pages >> 6), mam_run_bits(64 - (pages & 63), pages & 63));
  return first << 6;
}

/* Where words are kept once a new long run is freed that ends before page. */
MAM_OUTLINE void mam_kept_extend(MAM_TAG(1) struct mam_heap_control *control, mam_u32 page) {
  mam_u32 known = mam_load_relaxed_u32(&control->kept_end);
  MAM_LOOP
  while (known < page >> 6) {
    mam_u32 seen = mam_cas_acq_rel_u32(&control->kept_end, known, page >> 6);
    known = seen == known ? page >> 6 : seen;
  }
}

/* A run of pages by all means: as in mam_claim_chunks, except that it is not remembered which are missing. */
MAM_INLINE struct mam_found mam_run_claim(struct mam_heap_control *control, mam_u32 pages, mam_u32 home) {
  struct mam_found place = {control->superblocks, MAM_NO_PAGE};
  if (pages > MAM_SPAN_PAGES) { /* others may get what is taken and given back */
    (void)mam_add_relaxed_u32(&control->opening[MAM_HEAP_KINDS], 1);
    if (mam_load_relaxed_u32(&control->mode) == MAM_MODE_LAZY)
      place.page = MAM_OUT_OF_SIGHT(mam_run_take_kept)(control, place.area, pages);
  }
  mam_u32 sum = 0;
  MAM_LOOP
  for (mam_u32 i = 0;; i++) {
    MAM_FORGET(pages); /* what is computed from it is not kept over the calls */
    MAM_FORGET(home);
    MAM_FORGET_ADDRESS(control);
    if (place.page == MAM_NO_PAGE)
      place = mam_pages_any(control, pages, home << MAM_REST_HOME);
    MAM_FORGET_ADDRESS(control);
    if (i == 0 && pages > MAM_SPAN_PAGES) {
      if (place.page != MAM_NO_PAGE && place.area == control->superblocks)
        MAM_OUT_OF_SIGHT(mam_kept_extend)(control, place.page + pages);
      (void)mam_add_acq_rel_u32(&control->opening[MAM_HEAP_KINDS], ~0u);
    }
    if (place.page != MAM_NO_PAGE || i == MAM_SCARCE_ROUNDS ||
        !MAM_OUT_OF_SIGHT(mam_heap_could)(control, (mam_u64)pages << MAM_PAGE_SHIFT))
      return place;
    MAM_FORGET_ADDRESS(control);
    if (i != 0 && mam_load_acquire_u32(&control->opening[MAM_HEAP_KINDS]) != 0)
      mam_pause();
    else if (i != 0 && mam_stamps_sum(control, control->superblocks[0]) == sum && mam_slots_flush(~0u, control) == 0 &&
             !MAM_OUT_OF_SIGHT(mam_parks_flush)(control) && mam_stamps_sum(control, control->superblocks[0]) == sum)
      return place;
    MAM_FORGET_ADDRESS(control);
    /* A thread that takes a part of what it finds and gives it back makes others look again, as they make it: so each
     * rests longer every time. */
    if (i > 1)
      mam_sleep(i < 9 ? 100u << i : 50000u);
    sum = MAM_OUT_OF_SIGHT(mam_stamps_rely)(control);
  }
}

/* A request of whole pages: the address, 0 if there is no room. */
MAM_OUTLINE mam_u64 mam_run_malloc(struct mam_heap_control *control, mam_u64 bytes, mam_u32 home) {
  mam_u64 pages = (bytes + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
  if (pages == 0 || pages >= MAM_NO_PAGE)
    return 0;
  struct mam_found place = mam_run_claim(control, (mam_u32)pages, home);
  if (place.page == MAM_NO_PAGE)
    return 0;
  mam_u64 *words = &place.area->words[place.page * MAM_PAGE_WORDS];
  mam_store_relaxed_u16(&mam_area_entries(*place.area)[place.page], MAM_ENTRY_RUN);
  if (pages >> 24 != 0)
    mam_store_relaxed_u64(&words[1], mam_run_word_more((mam_u32)pages));
  mam_store_relaxed_u64(words, mam_run_word((mam_u32)pages));
  return mam_area_address(*place.area, place.page);
}

/* ---- Moved objects ----
 *
 * Between the begin and the end of a compaction a span whose objects were moved begins with a table: for each chunk the
 * address where its object went, 0 if it had none.  From there it may have been moved on. */

/* The superblock of an address, page_count 0 if it is in none: while nobody changes their number. */
MAM_INLINE struct mam_area mam_forward_area(const mam_heap *heap, mam_u64 address) {
  struct mam_area area = {heap->base, heap->words, heap->page_count, 0};
  MAM_LOOP
  for (mam_u32 i = 1; (address - area.base) >> MAM_PAGE_SHIFT >= area.page_count; i++) {
    if (i >= heap->control->superblock_count) {
      area.page_count = 0;
      break;
    }
    area = heap->control->superblocks[i];
  }
  return area;
}

/* An address in a span of a kind that begins at page: the object, by its chunk's number. */
MAM_INLINE mam_u32 mam_span_chunk_at(struct mam_area area, mam_u32 page, mam_u32 kind, mam_u64 address) {
  mam_u32 sixteenths = (mam_u32)(address - mam_area_address(area, page)) >> 4, shift = mam_class_shift(kind);
  return mam_chunk_index(sixteenths, shift, mam_class_multiple(kind, shift));
}

/* Where the object is now at which, or into which, an address leads: what does not lead to a moved object is returned
 * as it is.  After the kernels that move. */
MAM_INLINE mam_u64 mam_forwarded(const mam_heap *heap, mam_u64 address) {
  MAM_LOOP
  while (address != 0) {
    struct mam_area area = mam_forward_area(heap, address);
    mam_u32 page = (mam_u32)((address - area.base) >> MAM_PAGE_SHIFT);
    if (area.page_count == 0 || (mam_area_moved(area)[page >> 6] >> (page & 63) & 1) == 0)
      break;
    mam_u32 entry = mam_area_entries(area)[page];
    page -= mam_entry_back(entry);
    mam_u32 kind = mam_word_class(area.words[(mam_u64)page * MAM_PAGE_WORDS]);
    mam_u32 chunk = mam_span_chunk_at(area, page, kind, address);
    mam_u64 span = mam_area_address(area, page), to = ((const mam_u64 *)span)[chunk];
    if ((entry & 63) != MAM_ENTRY_MOVED || to == 0)
      break;
    address += to - (span + (mam_u64)chunk * mam_class_bytes(kind));
  }
  return address;
}

/* ---- Beginning ---- */

/* Bytes of metadata in front of so many pages. */
MAM_INLINE mam_u64 mam_area_metadata_bytes(mam_u32 pages) {
  struct mam_area area = {0, 0, pages, 0};
  return mam_owners_bytes(pages) + 8 + (mam_u64)mam_area_entries(area) + 4 * (mam_u64)pages;
}

/* Lays a superblock out in bytes of memory at address, a multiple of 8: metadata, then pages to its end.  Touches no
 * memory.  page_count 0 if it is too small for a page. */
MAM_INLINE struct mam_area mam_area_place(mam_u64 address, mam_u64 bytes) {
  mam_u64 end = (address + bytes) & ~(mam_u64)(MAM_PAGE_BYTES - 1);
  mam_u64 most = end > address ? (end - address) / (MAM_PAGE_BYTES + 70) : 0;
  struct mam_area area = {0, 0, most < 1u << 31 ? (mam_u32)most : 1u << 31, 0};
  MAM_LOOP
  while (area.page_count != 0 &&
         end - ((mam_u64)area.page_count << MAM_PAGE_SHIFT) < address + mam_area_metadata_bytes(area.page_count))
    area.page_count--;
  area.base = end - ((mam_u64)area.page_count << MAM_PAGE_SHIFT);
  area.words = (mam_u64 *)(address + mam_owners_bytes(area.page_count) + 8);
  return area;
}

/* The word at index of a map's levels whose lowest has so many bits, when all of them are 0 but those past the end. */
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

/* Writes an empty superblock's metadata: of count threads each its part. */
MAM_INLINE void mam_area_clear(struct mam_area area, mam_u64 rank, mam_u64 count) {
  mam_u64 words = (mam_u64)area.page_count * MAM_PAGE_WORDS, map = mam_map_words(mam_area_map_words(area));
  mam_u64 classes = (mam_u64)MAM_HEAP_KINDS * mam_map_words(mam_area_class_words(area));
  MAM_LOOP
  for (mam_u64 i = rank; i < words; i += count)
    area.words[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < map; i += count)
    mam_area_pages(area)[i] = mam_map_open_word(area.page_count, (mam_u32)i);
  MAM_LOOP
  for (mam_u64 i = rank; i < classes; i += count)
    mam_area_class(area, 0)[i] = MAM_FULL_WORD;
  MAM_LOOP
  for (mam_u64 i = rank; i < mam_area_map_words(area); i += count)
    mam_area_moved(area)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < mam_map_words(mam_area_kept_words(area)); i += count)
    mam_area_kept(area)[i] = MAM_FULL_WORD;
  MAM_LOOP
  for (mam_u64 i = rank; i < mam_area_kept_words(area); i += count)
    mam_area_parts(area)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < area.page_count; i += count)
    mam_area_entries(area)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < area.page_count; i += count)
    mam_area_rings(area)[i] = MAM_RING_NONE;
  MAM_LOOP
  for (mam_u64 i = rank; i < area.page_count; i += count)
    *mam_page_owner(area.words, (mam_u32)i) = 0;
  if (rank == 0)
    area.words[-1] = 0;
}

/* The same for the homes and slots, and what is known about them. */
MAM_INLINE void mam_slots_clear(struct mam_heap_control *control, mam_u64 rank, mam_u64 count) {
  const mam_heap *heap = &control->heap;
  if (rank == 0) {
    control->mode = heap->lazy ? MAM_MODE_LAZY : MAM_MODE_WATCHED;
    control->sweep_next = control->sweep_done = 0;
    control->run_cursor = control->kept_cursor = control->kept_end = 0;
    control->parked = 0;
    control->parks_held = 0;
  }
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->parks * MAM_PARK_WORDS; i += count)
    mam_parks(control)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < MAM_HOMES; i += count)
    mam_cursors(control)[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->slot_count * MAM_HEAP_KINDS; i += count)
    heap->slots[i] = mam_slot_limit(heap, mam_kind_numbered(control, (mam_u32)(i / heap->slot_count)));
  MAM_LOOP
  for (mam_u64 i = rank; i < MAM_HEAP_KINDS; i += count)
    control->missing[i] = 0;
  MAM_LOOP
  for (mam_u64 i = rank; i < MAM_HEAP_KINDS; i += count)
    control->held[i] = 0;
}

/* Tells who waits for memory that there may be some: after a superblock was added. */
MAM_INLINE void mam_superblocks_publish(struct mam_heap_control *control, mam_u32 count) {
  mam_store_relaxed_u32(&control->active, 0);
  /* acq_rel: after what was written to a new superblock. */
  (void)mam_exchange_acq_rel_u32(&control->superblock_count, count);
  (void)mam_add_acq_rel_u32(mam_area_stamp(control->superblocks[0]), 2);
}

/* Frees the chunks that slots still hold, a thread's part of the slots.  Nobody else may use the heap. */
MAM_INLINE void mam_slots_drain(struct mam_heap_control *control, mam_u64 rank, mam_u64 count) {
  const mam_heap *heap = &control->heap;
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->parks * MAM_PARK_WORDS; i += count) {
    mam_u64 word = mam_exchange_release_u64(&mam_parks(control)[i], 0); /* also if it names no superblock */
    mam_u64 block = i % MAM_PARK_WORDS == 0 ? word : mam_park_address(word);
    if (i % MAM_PARK_WORDS != 0 && word != 0)
      (void)mam_add_relaxed_u32(&control->parked, 0u - mam_park_number(word));
    if (block != 0)
      (void)MAM_OUT_OF_SIGHT(mam_block_free)(control, block);
  }
  MAM_LOOP
  for (mam_u64 i = rank; i < (mam_u64)heap->slot_count * MAM_HEAP_KINDS; i += count) {
    mam_u32 size_class = mam_kind_numbered(control, (mam_u32)(i / heap->slot_count));
    mam_u32 limit = mam_slot_limit(heap, size_class);
    mam_u64 slot = mam_exchange_release_u64(&heap->slots[i], limit);
    MAM_LOOP
    for (mam_u32 ticket = (mam_u32)(slot & MAM_SLOT_TICKETS); ticket < limit; ticket++)
      (void)MAM_OUT_OF_SIGHT(mam_block_free)(control,
                                             mam_slot_address(slot) + (mam_u64)ticket * mam_class_bytes(size_class));
  }
}

/* Chooses for a heap of bytes on a GPU of so many multiprocessors how large spans are and how many slots there are:
 * many, as long as those of the common classes hold a small share of the heap.  All classes in use can hold most of it.
 */
MAM_INLINE void mam_heap_tune(mam_heap *heap, mam_u64 bytes, mam_u32 multiprocessors) {
  int roomy = bytes >= (mam_u64)MAM_ROOMY_MIB << 20;
  mam_u64 share = (bytes / 8) / (roomy ? MAM_ROOMY_SLOT_BYTES : MAM_SLOT_BYTES);
  if (multiprocessors > MAM_HOMES)
    multiprocessors = MAM_HOMES;
  heap->lazy = (unsigned)roomy;
  heap->chunks = roomy ? MAM_ROOMY_CHUNKS : MAM_CHUNKS;
  heap->home_last = (mam_u16)(multiprocessors - 1);
  heap->warp_bits = heap->home_shift = 0;
  MAM_LOOP
  while (heap->warp_bits < MAM_WARP_BITS && share >= (mam_u64)multiprocessors << (heap->warp_bits + 1))
    heap->warp_bits++;
  MAM_LOOP
  while (share < multiprocessors >> heap->home_shift && multiprocessors >> heap->home_shift > 1)
    heap->home_shift++;
  heap->slot_count = ((heap->home_last >> heap->home_shift) + 1u) << heap->warp_bits;
  heap->parks = 0;
  MAM_LOOP
  while (heap->parks < multiprocessors * MAM_PARKS && (heap->parks + 1) * (2ull * MAM_PARK_BYTES) <= bytes / 16)
    heap->parks = heap->parks == 0 ? 1 : 2 * heap->parks;
}

/* Bytes of the control block, with the homes and slots that follow it. */
MAM_INLINE mam_u64 mam_control_bytes(const mam_heap *heap) {
  return sizeof(struct mam_heap_control) +
         8 * (MAM_HOMES + (mam_u64)heap->slot_count * MAM_HEAP_KINDS + (mam_u64)heap->parks * MAM_PARK_WORDS);
}

/* Makes a control block, which kernels know by another address, that of a heap whose first superblock is area. */
MAM_INLINE void mam_control_begin(struct mam_heap_control *control, mam_u64 address, struct mam_area area) {
  mam_heap *heap = &control->heap;
  heap->control = (struct mam_heap_control *)address;
  heap->slots = mam_slots(heap->control);
  heap->words = area.words;
  heap->entries = mam_area_entries(area);
  heap->base = area.base;
  heap->page_count = area.page_count;
  control->home_count = mam_home_count(heap);
  control->superblock_count = 1;
  control->superblocks[0] = area;
}

#endif /* MAM_HEAP_CORE_H */
