/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/warp_header.h - the header of a warp heap: its fields, its words, and how it begins.
 *
 * A header is the beginning of a block of the device heap:
 *
 *   | struct mam_warp, with the first list | first superblock: blocks ... |
 *
 * Further superblocks, requests larger than a superblock, and further lists are blocks of the device heap each.
 *
 * A superblock hands its blocks out from its end:
 *
 *   | free ... | handed out ... |      current: the superblock's address, and the number of blocks that are free
 *
 * A list holds what is to be freed: superblocks and larger requests.
 *
 *   | the word of the list before it; 0: none | address | address | ... |
 *
 *   63                          20 19       0
 *   | address / 16                | number    |     a word: of a superblock, blocks; of a list, entries
 */
#ifndef MAM_DETAIL_WARP_HEADER_H
#define MAM_DETAIL_WARP_HEADER_H

#include <mam/detail/heap_layout.h>
#include <mam/warp_types.h>

enum {
  /* A word that holds an address and a number has 20 bits for the number.  The address, a multiple of 16, is above. */
  MAM__WARP_NUMBER_BITS = 20,
  /* The first list, in the header, has so many entries. */
  MAM__WARP_INLINE_ENTRIES = 9,
  /* The smallest block, in bytes. */
  MAM__WARP_LEAST_BLOCK = 16,
  /* Each superblock of a header is four times as large as the one before. */
  MAM__WARP_GROWTH = 4
};
/* The bits of the number. */
#define MAM__WARP_NUMBER 0xfffffu

struct mam_warp {
  mam__u64 current; /* the superblock in use, and how many blocks are left in it, from its beginning */
  mam__u64 lanes;   /* low: the active lanes (ActiveCount in the paper); high: the lanes that take part (TotalCount) */
  mam__u32 block_less_1, block_shift; /* constant: of the block size */
  mam__u64 list;                      /* the list in use, and the number of its entries (SB Counter in the paper) */
  mam__u64 early;                     /* the same for blocks of lanes that tidied up before the others; 0: nothing */
  mam__u64 first;                     /* constant: current when nothing has been handed out */
  struct mam__heap_control *control;
  mam__u64 mark;               /* tells that this is a header: see mam__warp_mark_of */
  mam__u64 owner;              /* the warp, for checks */
  mam__u32 superblock_bytes;   /* constant: of the first superblock that is asked of the device heap */
  mam__u32 next_bytes;         /* of the next superblock */
  mam__u32 entries;            /* constant: of a list other than the first */
  mam__u32 handed_over;        /* 1 if a lane left the header to a later kernel */
  mam__u64 park;               /* constant: the park where the header waits for its next user; 0: it does not */
  mam__u32 most_bytes, unused; /* constant: of a superblock at most */
  mam__u64 largest;            /* a superblock of the list that may wait for its next user; 0: none may */
  mam__u64 inline_before, inline_list[MAM__WARP_INLINE_ENTRIES];
};

/* ---- Words ---- */

MAM__INLINE mam__u64 mam__warp_word(mam__u64 address, mam__u32 number) {
  return address << (MAM__WARP_NUMBER_BITS - 4) | number;
}
MAM__INLINE mam__u64 mam__warp_address(mam__u64 word) { return word >> MAM__WARP_NUMBER_BITS << 4; }
MAM__INLINE mam__u32 mam__warp_number(mam__u64 word) { return (mam__u32)word & MAM__WARP_NUMBER; }
MAM__INLINE mam__u32 mam__warp_active(mam__u64 lanes) { return (mam__u32)lanes; }
MAM__INLINE mam__u32 mam__warp_taking_part(mam__u64 lanes) { return (mam__u32)(lanes >> 32); }
MAM__INLINE mam__u64 mam__warp_all_of(mam__u32 mask) { return (mam__u64)mask << 32 | mask; }

/* The mark of a header at that address.  It is unlikely that anything else in a heap has this value there. */
MAM__INLINE mam__u64 mam__warp_mark_of(mam__u64 address) {
  return address * 0x9e3779b97f4a7c15ull ^ 0x77a4b1ea9c0f5d63ull;
}
MAM__INLINE int mam__warp_is(const struct mam_warp *warp) {
  return mam__load_relaxed_u64(&warp->mark) == mam__warp_mark_of((mam__u64)warp);
}

/* ---- Beginning ---- */

/* The options, with each value brought into its range: a block is a power of two of at least 16 bytes, a list has at
 * least an entry, and each size fits its field. */
MAM__INLINE mam_warp_options mam__warp_options_sound(mam_warp_options options) {
  const mam__u32 most = MAM__WARP_NUMBER * MAM__WARP_LEAST_BLOCK, front = sizeof(struct mam_warp);
  mam__u32 block = options.block_bytes <= MAM__WARP_LEAST_BLOCK ? (mam__u32)MAM__WARP_LEAST_BLOCK : options.block_bytes;
  block = block > 1u << 12 ? 1u << 12 : 1u << (32 - mam__leading_zeros_u32(block - 1));
  mam__u32 superblock = options.superblock_bytes > most ? most : options.superblock_bytes;
  mam__u32 first = options.first_bytes > most ? most : options.first_bytes;
  mam__u32 entries = options.list_entries > 4095 ? 4095 : options.list_entries;
  mam__u32 largest = options.most_bytes > most ? most : options.most_bytes;
  superblock = (superblock < block ? block : superblock) & ~(block - 1);
  mam_warp_options sound = {superblock, first < front ? front : first, entries == 0 ? 1 : entries, block,
                            (largest < superblock ? superblock : largest) & ~(block - 1)};
  return sound;
}

/* Makes a header, for the lanes of mask, of a block of options.first_bytes at address. */
MAM__INLINE struct mam_warp *mam__warp_begin(struct mam__heap_control *control, mam__u64 address,
                                             mam_warp_options options, mam__u32 mask, mam__u64 owner, mam__u64 park) {
  struct mam_warp *warp = (struct mam_warp *)address;
  mam__u64 block = options.block_bytes, end = address + options.first_bytes;
  mam__u64 begin = (address + sizeof *warp + block - 1) & ~(block - 1);
  warp->block_shift = 31 - mam__leading_zeros_u32(options.block_bytes);
  warp->current = warp->first = mam__warp_word(begin, end > begin ? (mam__u32)(end - begin) >> warp->block_shift : 0);
  warp->lanes = mam__warp_all_of(mask);
  warp->block_less_1 = options.block_bytes - 1;
  warp->list = mam__warp_word((mam__u64)&warp->inline_before, 0);
  warp->early = 0;
  warp->control = control;
  warp->mark = mam__warp_mark_of(address);
  warp->owner = owner;
  warp->superblock_bytes = options.superblock_bytes;
  warp->next_bytes = options.superblock_bytes;
  warp->most_bytes = options.most_bytes;
  warp->entries = options.list_entries;
  warp->handed_over = 0;
  warp->park = park;
  warp->largest = 0;
  warp->inline_before = 0;
  return warp;
}

/* ---- Lists ---- */

MAM__INLINE mam__u64 mam__warp_list_inside(const struct mam_warp *warp) { return (mam__u64)&warp->inline_before; }
MAM__INLINE mam__u32 mam__warp_list_room(const struct mam_warp *warp, mam__u64 at) {
  return at == mam__warp_list_inside(warp) ? (mam__u32)MAM__WARP_INLINE_ENTRIES : warp->entries;
}
MAM__INLINE mam__u64 *mam__warp_list_entry(mam__u64 at, mam__u32 index) { return (mam__u64 *)at + 1 + index; }

#endif /* MAM_DETAIL_WARP_HEADER_H */
