/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_layout.h - where everything of a device heap lies: the control block and the superblocks.
 *
 * A heap has one control block and up to MAM_HEAP_SUPERBLOCKS superblocks.  A kernel gets the handle (mam_device_heap)
 * by value; the handle has what a kernel needs of the first superblock, which never goes.
 *
 *   control block  | struct mam__heap_control | cursors: a word a home | slots | parks: two words each |
 *
 *   slots          slot_count for each kind, in the order of the kinds' numbers (size classes, then types): a word in
 *                  each MAM__SLOT_WORDS words
 *   parks          first word: a header of warp heaps that waits for its next user; second word: a superblock of warp
 *                  heaps that waits (heap_parks.h); 0: nothing
 *
 *   superblock     | (rest) | parts | kept | moved | class maps | page map | rings | owners |
 *                  | entries | shortage, stamp | usage words | pages ... |
 *                            ^ area.words - 1  ^ area.words  ^ area.base
 *
 *   parts          32 bits for each 64 words of the page map: what this part is known not to have
 *   kept           a map with a bit for each word of the page map: 0 if it is kept for long runs (heap_kept.h)
 *   moved          a bit for each page, in use during a compaction (heap_moved.h)
 *   class maps     for each kind a map with a bit for each page: a hint, 0 where a span of the kind begins that may
 *                  have a free chunk (heap_recycle.h)
 *   page map       a map with a bit for each page: the truth about whether it is taken (heap_pages.h)
 *   rings          16 bits a page: which span of a slot is next (heap_refill.h)
 *   owners         16 bits a page: the slot to which the span that begins there was given
 *   entries        16 bits a page, the first page last: see heap_words.h
 *   shortage       32 bits: what the superblock is known not to have; stamp: 32 bits (heap_shortage.h)
 *   usage words    8 words a page (heap_words.h)
 *   pages
 */
#ifndef MAM_DETAIL_HEAP_LAYOUT_H
#define MAM_DETAIL_HEAP_LAYOUT_H

#include <mam/detail/heap_maps.h>

enum {
  /* The most homes.  A home's number has ten bits in a request word (MAM__REST_HOME). */
  MAM__HOMES = 1024,
  /* The distance of two slots' words: a sector of the L2 cache, which serves one atomic operation after the other. */
  MAM__SLOT_WORDS = 4,
  /* The most parks of a multiprocessor, one for each warp. */
  MAM__PARKS = 64,
  /* The tuning counts so many bytes for a park: a header's first block has them (MAM_WARP_OPTIONS_INIT). */
  MAM__PARK_BYTES = 10 << 10,
  /* A park has a word for a header and one for a superblock. */
  MAM__PARK_WORDS = 2,
  /* A park's second word counts the superblock's units of 16 bytes in 20 bits.  The address stands above them. */
  MAM__PARK_NUMBER_BITS = 20,
  /* A count that many threads raise has 64 words, so that they seldom meet.  The sum counts. */
  MAM__COUNTERS = 64,
  /* Each kind has a count of openings.  The last count is for runs, and for slots and parks that are being flushed. */
  MAM__OPENINGS = MAM__HEAP_KINDS + 1,
  /* An object of a type has at most so many pointers. */
  MAM__TYPE_POINTERS = 64,
  /* A thread waits up to 100 times mam__pause, 10 to 20 us, for another thread's refill or sweep, then goes another
   * way.
   */
  MAM__WAIT_ROUNDS = 100
};

/* ---- The control block ---- */

/* A superblock: its usage words and its pages.  It is small, to be passed by value: whatever a kernel has to load first
 * costs it a round to the L2 cache. */
struct mam__area {
  mam__u64 base;
  mam__u64 *words;
  mam__u32 page_count, unused;
};

/* How requests ask the host for memory: see heap_grow.h. */
struct mam__growth {
  mam__u64 *bell;            /* a word of the host's memory, at the address that kernels use; 0: growth is off */
  mam__u32 patience, unused; /* how long a request waits in all, in units of 2^20 ns */
  mam__u64 rung;             /* atomic: the last word that was rung; it only rises */
  mam__u64 reply;            /* atomic; only the host writes it */
};

/* What the host has said of a type. */
struct mam__type_info {
  mam__u32 kind;  /* 0: there is no such type */
  mam__u32 bytes; /* of an object */
  mam__u32 pointer_count, unused;
  mam__u16 pointers[MAM__TYPE_POINTERS]; /* their places in an object, in units of 8 bytes */
};

struct mam__site;

/* How empty spans of the first superblock end: see heap_sweep.h. */
enum {
  /* A free ends them. */
  MAM__MODE_WATCHED,
  /* They stay for their slots. */
  MAM__MODE_LAZY,
  /* Threads in need are ending them. */
  MAM__MODE_SWEEPING
};

/* The head of the control block.  Homes' cursors, slots and parks follow it in memory. */
struct mam__heap_control {
  mam_device_heap heap;
  /* What follows, and the slots behind the control block, lie in the memory sectors in which they were measured.  Where
   * they lie 24 bytes lower, a request that fails beside a million others takes a third longer. */
  mam__u64 unused[5];
  mam__u32 superblock_count; /* atomic: written after a new superblock */
  mam__u32 active;           /* atomic: the superblock to try first; written after it */
  mam__u32 run_cursor;       /* atomic, a hint: where to look for long runs */
  mam__u32 kept_cursor;      /* atomic, a hint: the next turn for kept words (heap_kept.h) */
  mam__u32 home_count;
  mam__u64 answer;                   /* of a kernel, to a question of the host */
  mam__u64 refused_free;             /* atomic: frees that were refused */
  mam__u64 failures[MAM__COUNTERS];  /* atomic: requests that failed, see mam__failed */
  mam__u32 mode;                     /* atomic: MAM__MODE_* */
  mam__u32 sweep_next, sweep_done;   /* atomic: words of the page map whose sweep was begun and done */
  mam__u32 opening[MAM__OPENINGS];   /* atomic: threads that hold memory which others may get: see heap_scarce.h */
  mam__u32 missing[MAM__HEAP_KINDS]; /* atomic: the sum of the stamps with which nothing was found */
  mam__u32 parked;                   /* atomic: what superblocks in parks take, see heap_parks.h */
  mam__u32 kept_end;                 /* atomic: how far words of the page map are kept, see heap_kept.h */
  mam__u64 held[MAM__HEAP_KINDS];    /* atomic: which groups of each kind's slots may hold chunks, see heap_slots.h */
  mam__u64 parks_held;               /* atomic: which groups of parks may hold anything */
  struct mam__area superblocks[MAM_HEAP_SUPERBLOCKS];
  struct mam__type_info types[MAM_HEAP_TYPES]; /* of the types from 1 on; written once */
  struct mam__growth growth;
  struct mam__site *sites; /* constant; 0: nothing is recorded.  See heap_record.h */
};

MAM__INLINE mam__u64 *mam__cursors(struct mam__heap_control *control) { return (mam__u64 *)(control + 1); }
/* The word of a slot, by its number among all.  32 bits suffice for its place: a heap has fewer than 2^20 slots, since
 * there are at most 2^14 of each kind.  With 64 a kernel for sm_75 takes two registers more. */
MAM__INLINE mam__u64 *mam__slot_at(struct mam__heap_control *control, mam__u32 number) {
  mam__u32 offset = (mam__u32)sizeof(struct mam__heap_control) + 8 * (MAM__HOMES + number * MAM__SLOT_WORDS);
  return (mam__u64 *)((char *)control + offset);
}
/* Two words for each park: see heap_parks.h. */
MAM__INLINE mam__u64 *mam__parks(struct mam__heap_control *control) {
  return mam__slot_at(control, control->heap.slot_count * MAM__HEAP_KINDS);
}
/* The superblock whose pages begin at base.  Its usage words end there. */
MAM__INLINE struct mam__area mam__area_at(mam__u64 base, mam__u32 page_count) {
  struct mam__area area = {base, (mam__u64 *)base - (mam__u64)page_count * MAM__PAGE_WORDS, page_count, 0};
  return area;
}
/* The first superblock by a handle, and its usage words. */
MAM__INLINE struct mam__area mam__heap_area(const mam_device_heap *heap) {
  return mam__area_at(heap->base, heap->page_count);
}
MAM__INLINE mam__u64 *mam__heap_words(const mam_device_heap *heap) { return mam__heap_area(heap).words; }

/* The span of a slot's word as a page of the first superblock; MAM__NO_PAGE if it is not there. */
MAM__INLINE mam__u32 mam__area_slot_page(struct mam__area area, mam__u64 slot) {
  mam__u64 page = (slot >> MAM__TICKET_BITS) - (area.base >> MAM__PAGE_SHIFT);
  return page < area.page_count ? (mam__u32)page : MAM__NO_PAGE;
}
MAM__INLINE mam__u32 mam__heap_page(const mam_device_heap *heap, mam__u64 slot) {
  return mam__area_slot_page(mam__heap_area(heap), slot);
}
/* The first superblock, computed anew each time: see mam__request_zero. */
MAM__INLINE struct mam__area mam__area_anew(const mam_device_heap *heap, mam__u32 wanted) {
  mam_device_heap known = *heap;
  known.base += mam__request_zero(wanted);
  known.page_count += mam__request_zero(wanted);
  return mam__heap_area(&known);
}

/* The number of parks. */
MAM__INLINE mam__u32 mam__park_count(const mam_device_heap *heap) {
  return 1u << mam__tuned_park_bits(heap->tuning) >> 1;
}
MAM__INLINE mam__u64 mam__park_address(mam__u64 word) { return word >> MAM__PARK_NUMBER_BITS << 4; }
MAM__INLINE mam__u32 mam__park_number(mam__u64 word) { return (mam__u32)word & ((1u << MAM__PARK_NUMBER_BITS) - 1); }

/* The kind of a number; MAM__NO_KIND if there is no such type. */
MAM__INLINE mam__u32 mam__kind_numbered(const struct mam__heap_control *control, mam__u32 number) {
  if (number < MAM__HEAP_CLASSES)
    return number;
  return control->types[number - MAM__HEAP_CLASSES].kind == 0 ? MAM__NO_KIND
                                                              : control->types[number - MAM__HEAP_CLASSES].kind;
}

/* Whether a number is a type of the heap.  The handle may be that of no heap.  A number that was a type of a heap that
 * has ended may stand for another size here, so all of it is compared. */
MAM__INLINE int mam__is_type(const mam_device_heap *heap, mam_type type) {
  mam__u32 number = mam__kind_type(mam__type_kind(type));
  return number != 0 && heap->control != 0 && type == mam__type_of(heap->control->types[number - 1].kind, heap->number);
}

/* ---- Superblocks ---- */

/* The entry of a page.  A free finds it by the usage words alone. */
MAM__INLINE mam__u16 *mam__page_entry(mam__u64 *words, mam__u32 page) {
  return (mam__u16 *)(words - 1) - 1 - (mam__u64)page;
}
/* The words that 16 bits for each page take. */
MAM__INLINE mam__u64 mam__entries_words(mam__u32 pages) { return ((mam__u64)pages + 3) >> 2; }

MAM__INLINE mam__u32 *mam__area_shortage(struct mam__area area) { return (mam__u32 *)(area.words - 1); }
MAM__INLINE mam__u32 mam__area_map_words(struct mam__area area) { return (area.page_count + 63) >> 6; }
/* The page map and the class maps have the same levels. */
MAM__INLINE mam__u64 *mam__area_pages(struct mam__area area) {
  return area.words - 1 - 3 * mam__entries_words(area.page_count) - mam__map_words(mam__area_map_words(area));
}
MAM__INLINE mam__u64 *mam__area_class(struct mam__area area, mam__u32 size_class) {
  return mam__area_pages(area) -
         (mam__u64)(MAM__HEAP_KINDS - mam__kind_number(size_class)) * mam__map_words(mam__area_map_words(area));
}
/* The map of moved pages.  It is 0 except between the begin and the end of a compaction. */
MAM__INLINE mam__u64 *mam__area_moved(struct mam__area area) {
  return mam__area_pages(area) - (mam__u64)MAM__HEAP_KINDS * mam__map_words(mam__area_map_words(area)) -
         mam__area_map_words(area);
}
/* The parts of the page map: 64 words each. */
MAM__INLINE mam__u32 mam__area_part_count(struct mam__area area) { return (mam__area_map_words(area) + 63) >> 6; }
/* The kept map: a word for each part. */
MAM__INLINE mam__u64 *mam__area_kept(struct mam__area area) {
  return mam__area_moved(area) - mam__area_part_count(area);
}
/* The shortage word of each part. */
MAM__INLINE mam__u32 *mam__area_parts(struct mam__area area) {
  return (mam__u32 *)(mam__area_kept(area) - ((mam__area_part_count(area) + 1) >> 1));
}
/* The owner of the span that begins at a page.  It is written before the span's words and cleared before its pages are
 * given back.
 *   0                 no span begins there, or it is being made
 *   MAM__OWNER_NONE    the span never was in a slot
 *   other             the slot to which the span was given last: its number in its kind, plus 1 */
#define MAM__OWNER_NONE 0xffffu
MAM__INLINE mam__u16 *mam__area_owners(struct mam__area area) {
  return (mam__u16 *)(area.words - 1 - 2 * mam__entries_words(area.page_count));
}
MAM__INLINE mam__u16 *mam__area_rings(struct mam__area area) {
  return (mam__u16 *)(area.words - 1 - 3 * mam__entries_words(area.page_count));
}
MAM__INLINE mam__u64 mam__area_address(struct mam__area area, mam__u32 page) {
  return area.base + ((mam__u64)page << MAM__PAGE_SHIFT);
}

MAM__INLINE mam__u32 *mam__area_stamp(struct mam__area area) { return (mam__u32 *)(area.words - 1) + 1; }

/* The bytes of metadata in front of so many pages. */
MAM__INLINE mam__u64 mam__area_metadata_bytes(mam__u32 pages) {
  struct mam__area area = mam__area_at((mam__u64)1 << 62, pages); /* wherever it lies */
  return area.base - (mam__u64)mam__area_parts(area);
}
/* Where a superblock's metadata begins; and the same superblock with its metadata copied to another place. */
MAM__INLINE mam__u64 *mam__area_metadata(struct mam__area area) { return (mam__u64 *)mam__area_parts(area); }
MAM__INLINE struct mam__area mam__area_copied(struct mam__area area, mam__u64 *metadata) {
  area.words = metadata + (area.words - mam__area_metadata(area));
  return area;
}

/* Lays a superblock out in bytes of memory at address: pages up to the end, metadata in front of them.  Touches no
 * memory.  The result has page_count 0 if there is no room for a page. */
MAM__INLINE struct mam__area mam__area_place(mam__u64 address, mam__u64 bytes) {
  mam__u64 end = (address + bytes) & ~(mam__u64)(MAM__PAGE_BYTES - 1);
  mam__u64 most = end > address ? (end - address) / (MAM__PAGE_BYTES + 76) : 0;
  mam__u32 pages = most < 1u << 31 ? (mam__u32)most : 1u << 31;
  MAM__LOOP
  while (pages != 0 && end - ((mam__u64)pages << MAM__PAGE_SHIFT) < address + mam__area_metadata_bytes(pages))
    pages--;
  return mam__area_at(end - ((mam__u64)pages << MAM__PAGE_SHIFT), pages);
}

/* Whether an address lies in a page of a superblock. */
MAM__INLINE mam__u32 mam__area_has(const struct mam__area *area, mam__u64 address) {
  return address - area->base < (mam__u64)area->page_count << MAM__PAGE_SHIFT;
}

/* The superblock in which an address lies; 0 if there is none. */
MAM__INLINE const struct mam__area *mam__area_find(const struct mam__heap_control *control, mam__u64 address) {
  mam__u32 superblocks = mam__load_acquire_u32(&control->superblock_count);
  MAM__LOOP
  for (mam__u32 i = 0; i < superblocks; i++)
    if (mam__area_has(&control->superblocks[i], address))
      return &control->superblocks[i];
  return 0;
}

/* ---- What a search returns ---- */

/* A page and its superblock.  page is MAM__NO_PAGE if there is none. */
struct mam__place {
  struct mam__area area;
  mam__u32 page;
};

/* The same, with the superblock's place in the control block, which takes a function fewer registers. */
struct mam__found {
  const struct mam__area *area;
  mam__u32 page;
};

/* Chunks that a thread has claimed: those where mask has a 1, counted from address on, of chunk_bytes each.  mask 0:
 * none; then address may say why, as each function tells. */
struct mam__claim {
  mam__u64 address;
  mam__u32 mask, chunk_bytes;
};

#endif /* MAM_DETAIL_HEAP_LAYOUT_H */
