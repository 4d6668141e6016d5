/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp_core.h - warp heaps, for a GPU and for host threads: a header that lanes of a warp share, superblocks that
 * are handed out from their ends, and lists of what is to be freed.  After S. Widmer, D. Wodniok, N. Weber and
 * M. Goesele, "Fast Dynamic Memory Allocator for Massively Parallel Architectures" (FDGMalloc); "the paper" here.
 * ARCHITECTURE.md, "Warp heaps", has the argument.
 *
 * A header's block in the device heap holds, in the order of addresses: the header, its first list, and the first
 * superblock.  Further superblocks, requests that are larger than one, and further lists are blocks of the device heap
 * each, and all but lists are entries of a list.
 *
 * Two ways to one word.  Lanes of which none that takes part is missing are alone with their header: they read and
 * write it plainly.  Lanes that come in parts change the same words by compare-and-swap.  Which of the two it is, the
 * caller knows; what it has to order, see each function.
 *
 * Whoever includes this file defines mam_warp_heap_malloc and mam_warp_heap_free.
 */
#ifndef MAM_WARP_CORE_H
#define MAM_WARP_CORE_H

#include <mam/atomics.h>
#include <mam/heap_core.h>
#include <mam/warp_types.h>

/* A word that says a place and a number: the place's address, a multiple of 16, and 20 bits. */
enum { MAM_WARP_NUMBER_BITS = 20 };
#define MAM_WARP_NUMBER 0xfffffu

/* A list is a word, the address of the list before it (0: none), and then its entries, addresses of blocks. */
struct mam_warp {
  mam_u64 current; /* place: the superblock in use; number: the blocks left in it, from its beginning */
  mam_u64 lanes;   /* low 32 bits: those that are active (ActiveCount); high: those that take part (TotalCount) */
  mam_u32 block_less_1, block_shift; /* of the block size: constant */
  mam_u64 list;  /* place: the list in use; number: its entries so far (SB Counter).  The lists before it are full */
  mam_u64 early; /* the same for what lanes were given that had tidied up when others had not; 0: nothing */
  mam_u64 first; /* constant: current, when nothing has been handed out */
  struct mam_heap_control *control;
  mam_u64 mark;                      /* of a header that is one: see mam_warp_mark_of */
  mam_u64 owner;                     /* the warp, for whoever checks */
  mam_u32 superblock_bytes, entries; /* constant: of a list */
  mam_u32 handed_over;               /* whether a lane left it to a later kernel */
  mam_u32 header_bytes;              /* constant: the header's block */
  mam_u64 unused[3];
};
enum { MAM_WARP_BYTES = 128, MAM_WARP_LEAST_BLOCK = 16 };

/* Memory from and to the device heap, for one lane that acts alone; 0 if there is none. */
MAM_OUTLINE mam_u64 mam_warp_heap_malloc(struct mam_heap_control *control, mam_u64 bytes);
MAM_OUTLINE void mam_warp_heap_free(struct mam_heap_control *control, mam_u64 address);

/* ---- Words ---- */

MAM_INLINE mam_u64 mam_warp_word(mam_u64 address, mam_u32 number) {
  return address << (MAM_WARP_NUMBER_BITS - 4) | number;
}
MAM_INLINE mam_u64 mam_warp_address(mam_u64 word) { return word >> MAM_WARP_NUMBER_BITS << 4; }
MAM_INLINE mam_u32 mam_warp_number(mam_u64 word) { return (mam_u32)word & MAM_WARP_NUMBER; }
MAM_INLINE mam_u32 mam_warp_active(mam_u64 lanes) { return (mam_u32)lanes; }
MAM_INLINE mam_u32 mam_warp_taking_part(mam_u64 lanes) { return (mam_u32)(lanes >> 32); }
MAM_INLINE mam_u64 mam_warp_all_of(mam_u32 mask) { return (mam_u64)mask << 32 | mask; }

/* What a header says of itself: nothing else in a heap is likely to say it at that address. */
MAM_INLINE mam_u64 mam_warp_mark_of(mam_u64 address) { return address * 0x9e3779b97f4a7c15ull ^ 0x77a4b1ea9c0f5d63ull; }
MAM_INLINE int mam_warp_is(const struct mam_warp *warp) {
  return mam_load_relaxed_u64(&warp->mark) == mam_warp_mark_of((mam_u64)warp);
}

/* ---- Beginning ---- */

MAM_INLINE mam_u32 mam_warp_list_bytes(mam_u32 entries) { return 8 * entries + 8; }
/* Of the header with its first list. */
MAM_INLINE mam_u32 mam_warp_front_bytes(mam_u32 entries) {
  return (MAM_WARP_BYTES + mam_warp_list_bytes(entries) + 15) & ~15u;
}

/* The options that were meant: a power of two of at least 16 bytes as block, at least an entry in a list, and sizes
 * that their fields can say. */
MAM_INLINE mam_warp_options mam_warp_options_sound(mam_warp_options options) {
  mam_u32 least = options.block_bytes <= MAM_WARP_LEAST_BLOCK ? MAM_WARP_LEAST_BLOCK : options.block_bytes;
  least = least > 1u << 12 ? 1u << 12 : 1u << (32 - mam_leading_zeros_u32(least - 1));
  mam_u32 entries = options.list_entries == 0 ? 1 : options.list_entries > 4095 ? 4095 : options.list_entries;
  mam_u32 most = MAM_WARP_NUMBER * MAM_WARP_LEAST_BLOCK, superblock = options.superblock_bytes;
  superblock = superblock > most ? most : superblock < least ? least : superblock;
  mam_u32 front = mam_warp_front_bytes(entries);
  mam_u32 first = options.first_bytes > most ? most : options.first_bytes < front ? front : options.first_bytes;
  mam_warp_options sound = {superblock & ~(least - 1), first, entries, least};
  return sound;
}

/* Makes a header of a block of options.first_bytes at address, for those lanes. */
MAM_INLINE struct mam_warp *mam_warp_begin(struct mam_heap_control *control, mam_u64 address, mam_warp_options options,
                                           mam_u32 mask, mam_u64 owner) {
  struct mam_warp *warp = (struct mam_warp *)address;
  mam_u32 shift = 31 - mam_leading_zeros_u32(options.block_bytes);
  mam_u64 begin = (address + mam_warp_front_bytes(options.list_entries) + options.block_bytes - 1) &
                  ~(mam_u64)(options.block_bytes - 1);
  mam_u64 end = address + options.first_bytes;
  warp->current = warp->first = mam_warp_word(begin, end > begin ? (mam_u32)(end - begin) >> shift : 0);
  warp->lanes = mam_warp_all_of(mask);
  warp->block_less_1 = options.block_bytes - 1;
  warp->block_shift = shift;
  warp->list = mam_warp_word(address + MAM_WARP_BYTES, 0);
  warp->early = 0;
  warp->control = control;
  warp->mark = mam_warp_mark_of(address);
  warp->owner = owner;
  warp->superblock_bytes = options.superblock_bytes;
  warp->entries = options.list_entries;
  warp->handed_over = 0;
  warp->header_bytes = options.first_bytes;
  *(mam_u64 *)(address + MAM_WARP_BYTES) = 0;
  return warp;
}

/* ---- Lists ---- */

MAM_INLINE mam_u64 *mam_warp_list_entries(mam_u64 list) { return (mam_u64 *)mam_warp_address(list) + 1; }
MAM_INLINE mam_u64 mam_warp_list_inside(const struct mam_warp *warp) { return (mam_u64)warp + MAM_WARP_BYTES; }

/* Registers a block in a list; 0 if a new list was needed and there was no memory for it.  By lanes in parts too: a
 * place is taken by compare-and-swap, and written after.  Whoever reads it comes after all lanes have arrived
 * (mam_warp_leave), this one included. */
MAM_INLINE int mam_warp_register(struct mam_warp *warp, mam_u64 *list, mam_u64 block) {
  mam_u64 seen = mam_load_relaxed_u64(list);
  MAM_LOOP
  for (;;) {
    int has_room = seen != 0 && mam_warp_number(seen) < warp->entries;
    mam_u64 wanted = seen + 1, fresh = 0;
    if (!has_room) {
      fresh = mam_warp_heap_malloc(warp->control, mam_warp_list_bytes(warp->entries));
      if (fresh == 0)
        return 0;
      mam_store_relaxed_u64((mam_u64 *)fresh, seen == 0 ? 0 : mam_warp_address(seen));
      wanted = mam_warp_word(fresh, 1);
    }
    /* acq_rel: publishes the new list's link; whoever finds the list has it. */
    mam_u64 found = mam_cas_acq_rel_u64(list, seen, wanted);
    if (found == seen) {
      mam_store_relaxed_u64(&mam_warp_list_entries(wanted)[mam_warp_number(wanted) - 1], block);
      return 1;
    }
    if (fresh != 0)
      mam_warp_heap_free(warp->control, fresh);
    seen = found;
  }
}

/* Frees the entries of a list and of those before it, and the lists: each lane its part.  The list is the same for all
 * of them, and nobody registers in it any more. */
MAM_INLINE void mam_warp_flush(struct mam_warp *warp, mam_u64 list, struct mam_lanes lanes) {
  mam_u64 at = mam_warp_address(list), inside = mam_warp_list_inside(warp);
  mam_u32 count = mam_warp_number(list);
  struct mam_heap_control *control = warp->control;
  MAM_LOOP
  while (at != 0) {
    mam_u64 before = mam_load_relaxed_u64((mam_u64 *)at);
    MAM_LOOP
    for (mam_u32 i = lanes.rank; i < count; i += lanes.count)
      mam_warp_heap_free(control, mam_load_relaxed_u64((mam_u64 *)at + 1 + i));
    mam_lanes_sync(lanes); /* all have read it before it goes */
    if (at != inside && lanes.rank == 0)
      mam_warp_heap_free(control, at);
    at = before;
    count = warp->entries;
  }
}

/* ---- Requests ---- */

/* How many blocks bytes are; more than any superblock has if they are too many. */
MAM_INLINE mam_u64 mam_warp_blocks(const struct mam_warp *warp, mam_u64 bytes) {
  return bytes >> 40 != 0 ? (mam_u64)1 << 40 : (bytes + warp->block_less_1) >> warp->block_shift;
}

/* So many blocks of the current superblock, from the end of what is left: the address; 0 if it has not as many. */
MAM_INLINE mam_u64 mam_warp_take(struct mam_warp *warp, mam_u32 blocks) {
  mam_u64 seen = mam_load_relaxed_u64(&warp->current);
  MAM_LOOP
  while (mam_warp_number(seen) >= blocks) {
    /* acq_rel: with what put the superblock there. */
    mam_u64 found = mam_cas_acq_rel_u64(&warp->current, seen, seen - blocks);
    if (found == seen)
      return mam_warp_address(seen) + ((mam_u64)(mam_warp_number(seen) - blocks) << warp->block_shift);
    seen = found;
  }
  return 0;
}

/* A block of the device heap of its own for a request, registered; 0 if there is no memory. */
MAM_INLINE mam_u64 mam_warp_direct(struct mam_warp *warp, mam_u64 *list, mam_u64 bytes) {
  mam_u64 block = mam_warp_heap_malloc(warp->control, bytes);
  if (block == 0 || mam_warp_register(warp, list, block))
    return block;
  mam_warp_heap_free(warp->control, block);
  return 0;
}

/* A new superblock, of which the first request takes its blocks.  It becomes the current one if more is left in it. */
MAM_INLINE mam_u64 mam_warp_refill(struct mam_warp *warp, mam_u32 blocks) {
  mam_u64 superblock = mam_warp_direct(warp, &warp->list, warp->superblock_bytes);
  if (superblock == 0)
    return 0;
  mam_u32 left = (warp->superblock_bytes >> warp->block_shift) - blocks;
  mam_u64 fresh = mam_warp_word(superblock, left), seen = mam_load_relaxed_u64(&warp->current);
  MAM_LOOP
  while (mam_warp_number(seen) < left) {
    mam_u64 found = mam_cas_acq_rel_u64(&warp->current, seen, fresh);
    if (found == seen)
      break;
    seen = found;
  }
  return superblock + ((mam_u64)left << warp->block_shift);
}

/* Where a lane's blocks are registered: with the others', or, if it has tidied up and others have not, for later; 0 if
 * it does not take part.  Only its own tidying up makes a lane early, so what was looked up stays good; that it is not
 * early any more does no harm, since what is registered late is freed late. */
MAM_INLINE mam_u64 *mam_warp_list_of(struct mam_warp *warp, mam_u64 lanes, mam_u32 self) {
  return (mam_warp_taking_part(lanes) & self) == 0 ? 0
         : (mam_warp_active(lanes) & self) != 0    ? &warp->list
                                                   : &warp->early;
}

/* A request of lanes together, one of which calls: from the current superblock, a new one, or, if it is larger than one
 * or there is none or the lanes are early, by the device heap as it is; 0 if there is no memory. */
MAM_INLINE mam_u64 mam_warp_serve(struct mam_warp *warp, mam_u64 *list, mam_u64 blocks) {
  mam_u64 address = 0;
  if (list == &warp->list && blocks <= warp->superblock_bytes >> warp->block_shift) {
    address = mam_warp_take(warp, (mam_u32)blocks);
    if (address == 0)
      address = mam_warp_refill(warp, (mam_u32)blocks);
  }
  return address != 0 ? address : mam_warp_direct(warp, list, blocks << warp->block_shift);
}

/* ---- Leaving ----
 *
 * A lane that tidies up is not active until all have; a lane that ends does not take part any more.  Who makes the last
 * active lane inactive has the round: all that was handed out to active lanes is nobody's now.  Lanes that tidied up
 * before may go on meanwhile; what they are given is registered as early, and waits for the round after. */

enum mam_warp_leaving { MAM_WARP_TIDIES, MAM_WARP_ENDS };
enum { MAM_WARP_NOTHING, MAM_WARP_ROUND };

/* Lanes of mask leave, one of which calls.  Those that do not take part, or have tidied up already, are no lanes here.
 */
MAM_INLINE int mam_warp_leave(struct mam_warp *warp, mam_u32 mask, enum mam_warp_leaving how) {
  mam_u64 seen = mam_load_relaxed_u64(&warp->lanes);
  MAM_LOOP
  for (;;) {
    mam_u64 wanted = seen & ~(how == MAM_WARP_ENDS ? mam_warp_all_of(mask) : (mam_u64)mask);
    /* acq_rel: what these lanes did comes before what the last one does. */
    mam_u64 found = mam_cas_acq_rel_u64(&warp->lanes, seen, wanted);
    if (found == seen)
      return mam_warp_active(seen) != 0 && mam_warp_active(wanted) == 0 ? MAM_WARP_ROUND : MAM_WARP_NOTHING;
    seen = found;
  }
}

/* Frees the header, and with it the first superblock.  It says no longer that it is one. */
MAM_INLINE void mam_warp_vanish(struct mam_warp *warp) {
  struct mam_heap_control *control = warp->control;
  mam_store_relaxed_u64(&warp->mark, 0);
  mam_store_relaxed_u64(&warp->lanes, 0);
  mam_warp_heap_free(control, (mam_u64)warp);
}

/* Whether the header stays although no lane takes part. */
MAM_INLINE int mam_warp_stays(struct mam_warp *warp, mam_u64 lanes) {
  return mam_warp_taking_part(lanes) == 0 && mam_load_relaxed_u32(&warp->handed_over) != 0;
}

/* Has the header as if nothing had been handed out, but to lanes that were early, and makes all that take part active.
 * Returns the lanes. */
MAM_INLINE mam_u64 mam_warp_renew(struct mam_warp *warp) {
  mam_u64 early = mam_load_relaxed_u64(&warp->early), seen;
  MAM_LOOP
  while (early != 0 && (seen = mam_cas_acq_rel_u64(&warp->early, early, 0)) != early)
    early = seen;
  mam_store_relaxed_u64(&warp->list, early != 0 ? early : mam_warp_word(mam_warp_list_inside(warp), 0));
  mam_store_relaxed_u64(&warp->current, warp->first);
  mam_u64 lanes = mam_load_relaxed_u64(&warp->lanes);
  MAM_LOOP
  for (;;) {
    /* acq_rel: publishes the above to lanes that find themselves active. */
    seen = mam_cas_acq_rel_u64(&warp->lanes, lanes, mam_warp_all_of(mam_warp_taking_part(lanes)));
    if (seen == lanes)
      return lanes;
    lanes = seen;
  }
}

/* Ends a round, for who has it: frees what active lanes were given, then makes all that still take part active.  If
 * none does, the header goes, unless it was handed over.  Those lanes share the work. */
MAM_INLINE void mam_warp_round(struct mam_warp *warp, struct mam_lanes lanes) {
  if (mam_lanes_first_u64(lanes, (mam_u64)mam_warp_stays(warp, mam_load_relaxed_u64(&warp->lanes))) != 0)
    return;
  mam_warp_flush(warp, mam_lanes_first_u64(lanes, mam_load_relaxed_u64(&warp->list)), lanes);
  mam_u64 goes = 0;
  if (lanes.rank == 0) {
    mam_u64 left = mam_warp_renew(warp);
    goes = mam_warp_taking_part(left) == 0 && !mam_warp_stays(warp, left);
  }
  if (mam_lanes_first_u64(lanes, goes) == 0)
    return;
  mam_warp_flush(warp, mam_lanes_first_u64(lanes, mam_load_relaxed_u64(&warp->list)), lanes);
  mam_warp_flush(warp, mam_lanes_first_u64(lanes, mam_load_relaxed_u64(&warp->early)), lanes);
  if (lanes.rank == 0)
    mam_warp_vanish(warp);
}

/* Takes a header that was handed over, for those lanes; 0 if it was not, or another warp has it. */
MAM_INLINE int mam_warp_adopt_by(struct mam_warp *warp, mam_u32 mask, mam_u64 owner) {
  if (!mam_warp_is(warp) || mam_load_relaxed_u32(&warp->handed_over) == 0)
    return 0;
  /* acq_rel: after what its lanes did that left it. */
  if (mam_cas_acq_rel_u64(&warp->lanes, 0, mam_warp_all_of(mask)) != 0)
    return 0;
  mam_store_relaxed_u32(&warp->handed_over, 0);
  mam_store_relaxed_u64(&warp->owner, owner);
  return 1;
}

#endif /* MAM_WARP_CORE_H */
