/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/warp_core.h - warp heaps, for a GPU and for host threads.  After S. Widmer, D. Wodniok, N. Weber and
 * M. Goesele, "Fast Dynamic Memory Allocator for Massively Parallel Architectures" (FDGMalloc); "the paper" here.
 * lib/heap/README.md, "Warp heaps", has the argument.
 *
 * The life of a header (warp_header.h):
 *
 *   mam__warp_begin, mam__warp_find   a new header, or one that waits in a park, for the lanes that start it
 *   mam__warp_take                   a request takes blocks of the current superblock
 *   mam__warp_refill                 a superblock that waits in the park, or a new one, becomes the current one
 *   mam__warp_enter                  what is to be freed is entered in a list
 *   mam__warp_leave                  lanes tidy up or end; the last one has the round
 *   mam__warp_round                  frees what was handed out; the largest superblock goes into the park
 *   mam__warp_put_away               when no lane takes part, the header goes into its park or is freed
 *
 * Two ways lead to one word.  Lanes are alone with their header if all that take part are here: then they read and
 * write it plainly.  Lanes that come in parts change the same words by compare-and-swap.  The caller knows which of the
 * two it is; each function says what the caller has to order.
 *
 * The file that includes this defines mam__warp_heap_malloc, mam__warp_heap_try and mam__warp_heap_free.
 */
#ifndef MAM_DETAIL_WARP_CORE_H
#define MAM_DETAIL_WARP_CORE_H

#include <mam/detail/heap_core.h>
#include <mam/detail/warp_header.h>

/* A function that is called out of sight may be any function of the same types, for ptxas, so functions that call each
 * other differ in their types (MAM__TAG in atomics.h). */

/* A block of the device heap, for one lane that acts alone, 0 if there is no memory; the same by mam__run_try, for more
 * than MAM__CHUNK_BYTES; and its free.  The file that includes this one defines them. */
MAM__INLINE mam__u64 mam__warp_heap_malloc(struct mam__heap_control *control, mam__u64 bytes);
MAM__INLINE mam__u64 mam__warp_heap_try(struct mam__heap_control *control, mam__u64 bytes);
MAM__INLINE void mam__warp_heap_free(struct mam__heap_control *control, mam__u64 address);

/* ---- Words that lanes share ----
 *
 * alone: all lanes that take part are here, and they have synchronised, so that what each did comes before. */

MAM__INLINE mam__u64 mam__warp_read(mam__u64 *word, int alone) { return alone ? *word : mam__load_relaxed_u64(word); }

/* Changes a word from seen to wanted.  Returns its old value, which is seen if the change was made. */
MAM__INLINE mam__u64 mam__warp_change(mam__u64 *word, mam__u64 seen, mam__u64 wanted, int alone) {
  if (!alone) /* acq_rel: publishes what the new value leads to, and acquires what the old one leads to */
    return mam__cas_acq_rel_u64(word, seen, wanted);
  *word = wanted;
  return seen;
}

/* ---- Lists ---- */

/* Takes count entries side by side in a list, for the caller to write.  Returns 0 if a new list was needed and there
 * was no memory for it, or no list is long enough.  The entries are read after all lanes have arrived
 * (mam__warp_leave), the caller included. */
MAM__OUTLINE mam__u64 *mam__warp_enter(struct mam_warp *warp, mam__u64 *list, mam__u32 count, int alone) {
  mam__u64 seen = mam__warp_read(list, alone);
  MAM__LOOP
  for (;;) {
    mam__u64 at = mam__warp_address(seen), wanted = seen + count, fresh = 0;
    if (at == 0 || mam__warp_number(seen) + count > mam__warp_list_room(warp, at)) {
      fresh = count <= warp->entries ? mam__warp_heap_malloc(warp->control, 8 * (mam__u64)warp->entries + 8) : 0;
      if (fresh == 0)
        return 0;
      mam__store_relaxed_u64((mam__u64 *)fresh, seen);
      wanted = mam__warp_word(fresh, count);
    }
    mam__u64 found = mam__warp_change(list, seen, wanted, alone);
    if (found == seen)
      return mam__warp_list_entry(mam__warp_address(wanted), mam__warp_number(wanted) - count);
    if (fresh != 0)
      mam__warp_heap_free(warp->control, fresh);
    seen = found;
  }
}

/* Frees the entries of a list and of the lists before it, except warp->largest, and the lists.  Each lane does a part.
 * list is the same for all of them, and no lane enters anything in it any more. */
MAM__OUTLINE void mam__warp_flush(struct mam_warp *warp, mam__u64 list, struct mam__lanes lanes) {
  mam__u64 at;
  MAM__LOOP
  while ((at = mam__warp_address(list)) != 0) {
    mam__u32 count = mam__warp_number(list);
    list = mam__load_relaxed_u64((mam__u64 *)at);
    MAM__LOOP
    for (mam__u32 i = lanes.rank; i < count; i += lanes.count) {
      mam__u64 block = mam__load_relaxed_u64(mam__warp_list_entry(at, i));
      /* 0: the entry was taken before the device heap was asked, and the device heap had no memory */
      if (block != 0 && block != mam__warp_address(mam__load_relaxed_u64(&warp->largest)))
        mam__warp_heap_free(warp->control, block);
    }
    mam__lanes_sync(lanes);                                     /* all lanes have read the list */
    if (at - (mam__u64)warp >= sizeof *warp && lanes.rank == 0) /* the first list is inside the header */
      mam__warp_heap_free(warp->control, at);
  }
}

/* ---- Superblocks that wait ----
 *
 * The largest superblock of a round waits in its header's park, for the next header there that needs one.  So after the
 * first few, series of rounds do not ask the device heap.  All superblocks that wait have a limited share of the heap
 * together. */

/* Superblocks that wait take at most an eighth of the first superblock of the heap. */
#ifndef MAM__WARP_SHARE
#define MAM__WARP_SHARE 8
#endif

MAM__INLINE mam__u64 *mam__warp_waiting(mam__u64 park) { return (mam__u64 *)park + 1; }

/* Counts so many more blocks as waiting, if they may.  Returns whether they may. */
MAM__INLINE int mam__warp_may_wait(struct mam__heap_control *control, mam__u32 blocks) {
  mam__u64 most = (mam__u64)control->heap.page_count * (MAM__PAGE_BYTES / MAM__WARP_LEAST_BLOCK / MAM__WARP_SHARE);
  if (mam__load_relaxed_u32(&control->parked) + (mam__u64)blocks > most)
    return 0;
  if (mam__add_relaxed_u32(&control->parked, blocks) + (mam__u64)blocks <= most)
    return 1;
  (void)mam__add_relaxed_u32(&control->parked, 0u - blocks);
  return 0;
}

/* Puts the largest superblock of a round that is over into the park, by one lane.  If there is none, or it may not
 * wait, warp->largest is 0 afterwards, and the superblock is freed with the rest of the list. */
MAM__OUTLINE void mam__warp_keep(MAM__TAG(2) struct mam_warp *warp) {
  struct mam__heap_control *control = warp->control;
  mam__u64 largest = mam__load_relaxed_u64(&warp->largest), *place = mam__warp_waiting(warp->park);
  if (largest == 0)
    return;
  mam__u64 there = mam__load_relaxed_u64(place);
  mam__u32 blocks = mam__warp_number(largest), known = mam__warp_number(there),
           more = blocks > known ? blocks - known : 0;
  if ((mam__warp_address(there) != 0 && more == 0) || (more != 0 && !mam__warp_may_wait(control, more))) {
    mam__store_relaxed_u64(&warp->largest, 0);
    return;
  }
  /* acq_rel: what was done in it comes before what its next user does; the same for the superblock that was there. */
  there = mam__exchange_acq_rel_u64(place, largest);
  mam__parks_raise(control, (const mam__u64 *)warp->park);
  known = mam__warp_number(there);
  if (known + more != blocks) /* the number that was there is another than the one that this counted from */
    (void)mam__add_relaxed_u32(&control->parked, blocks - known - more);
  if (mam__warp_address(there) != 0)
    mam__warp_heap_free(control, mam__warp_address(there));
}

/* Takes the superblock that waits in the park, if it has so many blocks.  Returns its word; else 0. */
MAM__INLINE mam__u64 mam__warp_take_waiting(struct mam_warp *warp, mam__u32 blocks) {
  mam__u64 *place = mam__warp_waiting(warp->park);
  if (warp->park == 0)
    return 0;
  mam__u64 there = mam__and_acq_rel_u64(place, MAM__WARP_NUMBER); /* acq_rel: as in mam__warp_keep */
  mam__u32 number = mam__warp_number(there);
  if (mam__warp_address(there) == 0 || number >= blocks)
    return mam__warp_address(there) != 0 ? there : 0;
  if (mam__cas_acq_rel_u64(place, number, there) != number)
    mam__warp_heap_free(warp->control, mam__warp_address(there));
  return 0;
}

/* ---- Requests ---- */

/* The number of blocks that bytes are; a number larger than any superblock's if bytes are too many. */
MAM__INLINE mam__u64 mam__warp_blocks(const struct mam_warp *warp, mam__u64 bytes) {
  return bytes >> 40 != 0 ? (mam__u64)1 << 40 : (bytes + warp->block_less_1) >> warp->block_shift;
}

/* Takes blocks of the current superblock, from the end of what is left.  Returns the address; 0 if there are fewer. */
MAM__INLINE mam__u64 mam__warp_take(struct mam_warp *warp, mam__u32 blocks, int alone) {
  mam__u64 seen = mam__warp_read(&warp->current, alone);
  MAM__LOOP
  while (mam__warp_number(seen) >= blocks) {
    mam__u64 found = mam__warp_change(&warp->current, seen, seen - blocks, alone);
    if (found == seen)
      return mam__warp_address(seen) + ((mam__u64)(mam__warp_number(seen) - blocks) << warp->block_shift);
    seen = found;
  }
  return 0;
}

/* Enters a block of the device heap in a list, or frees it if that fails.  Returns its address; 0 if it failed. */
MAM__INLINE mam__u64 mam__warp_register(struct mam_warp *warp, mam__u64 *list, mam__u64 block, int alone) {
  mam__u64 *entry = block != 0 ? MAM__OUT_OF_SIGHT(mam__warp_enter)(warp, list, 1, alone) : 0;
  if (entry != 0)
    mam__store_relaxed_u64(entry, block);
  else if (block != 0)
    mam__warp_heap_free(warp->control, block);
  return entry != 0 ? block : 0;
}

/* Allocates a block of the device heap and enters it in a list.  Returns its address; 0 if there is no memory. */
MAM__INLINE mam__u64 mam__warp_own(struct mam_warp *warp, mam__u64 *list, mam__u64 bytes, int alone) {
  return mam__warp_register(warp, list, mam__warp_heap_malloc(warp->control, bytes), alone);
}
MAM__OUTLINE mam__u64 mam__warp_direct(struct mam_warp *warp, mam__u64 *list, mam__u64 bytes, int alone) {
  return mam__warp_own(warp, list, bytes, alone);
}

/* The next size: MAM__WARP_GROWTH times as large, at most `most`. */
MAM__INLINE mam__u32 mam__warp_grown(mam__u32 bytes, mam__u32 most) {
  return bytes < most / MAM__WARP_GROWTH ? bytes * MAM__WARP_GROWTH : most;
}
/* A new superblock of the device heap for so many blocks: of the next size, or larger if need be.  A header waits for
 * what it needs, and not for the next size: where memory is short, that is what others need.  Returns its word; 0 if
 * there is no memory. */
MAM__OUTLINE mam__u64 mam__warp_superblock(MAM__TAG(1) struct mam_warp *warp, mam__u32 blocks) {
  mam__u32 shift = warp->block_shift, need = blocks << shift, bytes = mam__load_relaxed_u32(&warp->next_bytes);
  mam__u32 least = need > warp->superblock_bytes ? need : warp->superblock_bytes;
  bytes = need <= bytes ? bytes : mam__warp_grown(need, warp->most_bytes);
  mam__u64 block = bytes > MAM__CHUNK_BYTES && bytes > least ? mam__warp_heap_try(warp->control, bytes)
                                                             : mam__warp_heap_malloc(warp->control, bytes);
  if (block == 0 && bytes > least)
    block = mam__warp_heap_malloc(warp->control, bytes = least);
  return block != 0 ? mam__warp_word(block, bytes >> shift) : 0;
}

/* A superblock of at least so many blocks: the one that waits, or a new one.  It is entered in the list.  Returns its
 * word; 0 if there is none. */
MAM__INLINE mam__u64 mam__warp_another(struct mam_warp *warp, mam__u32 blocks) {
  mam__u64 superblock = mam__warp_take_waiting(warp, blocks);
  if (superblock == 0)
    superblock = MAM__OUT_OF_SIGHT(mam__warp_superblock)(warp, blocks);
  return mam__warp_register(warp, &warp->list, mam__warp_address(superblock), 0) != 0 ? superblock : 0;
}

/* Takes blocks of a new superblock, which becomes the current one if more is left in it.  Returns the address; 0 if
 * there is no superblock or it would be too large. */
MAM__OUTLINE mam__u64 mam__warp_refill(struct mam_warp *warp, mam__u32 blocks) {
  if (blocks > warp->most_bytes >> warp->block_shift)
    return 0;
  mam__u64 superblock = mam__warp_another(warp, blocks);
  if (superblock == 0)
    return 0;
  mam__store_relaxed_u32(&warp->next_bytes,
                         mam__warp_grown(mam__warp_number(superblock) << warp->block_shift, warp->most_bytes));
  if (warp->park != 0 && mam__warp_number(mam__load_relaxed_u64(&warp->largest)) < mam__warp_number(superblock))
    mam__store_relaxed_u64(&warp->largest, superblock); /* if several lanes do this at once, any of them wins */
  mam__u64 left = superblock - blocks, seen = mam__load_relaxed_u64(&warp->current), found;
  MAM__LOOP
  while (mam__warp_number(seen) < mam__warp_number(left) &&
         (found = mam__cas_acq_rel_u64(&warp->current, seen, left)) != seen)
    seen = found;
  return mam__warp_address(left) + ((mam__u64)mam__warp_number(left) << warp->block_shift);
}

/* The same for lanes that are alone.  It reads all fields before it asks the device heap, since what a thread does
 * before it acquires memory there has to be read again afterwards.  In the rare cases it calls mam__warp_refill. */
MAM__OUTLINE mam__u64 mam__warp_refill_alone(mam__u32 blocks, struct mam_warp *warp) {
  mam__u64 list = warp->list, current = warp->current, largest = warp->largest, at = mam__warp_address(list);
  mam__u32 shift = warp->block_shift, most = warp->most_bytes;
  int waits = warp->park != 0;
  if (blocks > most >> shift)
    return 0;
  if (mam__warp_number(list) >= mam__warp_list_room(warp, at))
    return MAM__OUT_OF_SIGHT(mam__warp_refill)(warp, blocks);
  mam__u64 superblock = mam__warp_take_waiting(warp, blocks);
  if (superblock == 0)
    superblock = MAM__OUT_OF_SIGHT(mam__warp_superblock)(warp, blocks);
  if (superblock == 0)
    return 0;
  mam__store_relaxed_u64(mam__warp_list_entry(at, mam__warp_number(list)), mam__warp_address(superblock));
  warp->list = list + 1;
  warp->next_bytes = mam__warp_grown(mam__warp_number(superblock) << shift, most);
  if (waits && mam__warp_number(largest) < mam__warp_number(superblock))
    warp->largest = superblock;
  superblock -= blocks;
  if (mam__warp_number(current) < mam__warp_number(superblock))
    warp->current = superblock;
  return mam__warp_address(superblock) + ((mam__u64)mam__warp_number(superblock) << shift);
}

/* The list where a lane's blocks are entered: the list in use; the early one, if the lane has tidied up and others have
 * not; 0 if the lane does not take part.  Only its own tidying up makes a lane early, so the answer stays right.  If
 * the lane stops being early meanwhile, its block is freed a round later. */
MAM__INLINE mam__u64 *mam__warp_list_of(struct mam_warp *warp, mam__u64 lanes, mam__u32 self) {
  return (mam__warp_taking_part(lanes) & self) == 0 ? 0
         : (mam__warp_active(lanes) & self) != 0    ? &warp->list
                                                    : &warp->early;
}

/* Serves a request of lanes together, of which one calls: from the current superblock, from a new one, or directly by
 * the device heap, if the request is larger than a superblock, there is none, or the lanes are early.  Returns 0 if
 * there is no memory. */
MAM__OUTLINE mam__u64 mam__warp_serve(int alone, struct mam_warp *warp, mam__u64 *list, mam__u64 blocks) {
  mam__u64 address = 0;
  if (list == &warp->list && blocks <= MAM__WARP_NUMBER) {
    address = mam__warp_take(warp, (mam__u32)blocks, alone);
    if (address == 0)
      address = alone ? MAM__OUT_OF_SIGHT(mam__warp_refill_alone)((mam__u32)blocks, warp)
                      : MAM__OUT_OF_SIGHT(mam__warp_refill)(warp, (mam__u32)blocks);
  }
  return address != 0 ? address : MAM__OUT_OF_SIGHT(mam__warp_direct)(warp, list, blocks << warp->block_shift, alone);
}

/* ---- Leaving ----
 *
 * A lane that tidies up is not active until all have tidied up.  A lane that ends does not take part any more.  The
 * lane that makes the last active lane inactive has the round: it frees all that was handed out to active lanes.  Lanes
 * that tidied up before may go on meanwhile; their new blocks are entered as early, and are freed in the next round.
 *
 * A lane that hands over wants its memory to stay.  After that rounds free nothing. */

enum mam__warp_leaving { MAM__WARP_TIDIES, MAM__WARP_ENDS };
enum { MAM__WARP_NOTHING, MAM__WARP_ROUND };

/* Lanes of mask leave, of which one calls.  Lanes of mask that do not take part, or have tidied up, change nothing.
 * Returns whether the caller has the round. */
MAM__INLINE int mam__warp_leave(struct mam_warp *warp, mam__u32 mask, enum mam__warp_leaving how) {
  mam__u64 seen = mam__load_relaxed_u64(&warp->lanes);
  MAM__LOOP
  for (;;) {
    mam__u64 wanted = seen & ~(how == MAM__WARP_ENDS ? mam__warp_all_of(mask) : (mam__u64)mask);
    /* acq_rel: what these lanes did comes before what the last lane does */
    mam__u64 found = mam__cas_acq_rel_u64(&warp->lanes, seen, wanted);
    if (found == seen)
      return mam__warp_active(seen) != 0 && mam__warp_active(wanted) == 0 ? MAM__WARP_ROUND : MAM__WARP_NOTHING;
    seen = found;
  }
}

/* Frees the header with the first superblock, and clears its mark. */
MAM__INLINE void mam__warp_vanish(struct mam_warp *warp) {
  struct mam__heap_control *control = warp->control;
  mam__store_relaxed_u64(&warp->mark, 0);
  mam__store_relaxed_u64(&warp->lanes, 0);
  mam__warp_heap_free(control, (mam__u64)warp);
}

/* Puts a header that holds nothing into its park, or frees it if it has none.  One lane calls, and no other uses the
 * header any more. */
MAM__INLINE void mam__warp_put_away(struct mam_warp *warp) {
  mam__u64 *park = (mam__u64 *)warp->park;
  struct mam__heap_control *control = warp->control;
  if (park == 0) {
    mam__warp_vanish(warp);
    return;
  }
  warp->mark = 0;
  warp->lanes = 0;
  warp->current = warp->first;
  warp->next_bytes = warp->superblock_bytes;
  warp->list = mam__warp_word(mam__warp_list_inside(warp), 0);
  warp->early = warp->largest = 0;
  /* acq_rel: what was done in it comes before what its next user does; the same for the header that was there. */
  mam__u64 other = mam__exchange_acq_rel_u64(park, (mam__u64)warp);
  mam__parks_raise(control, park);
  if (other != 0)
    mam__warp_heap_free(((struct mam_warp *)other)->control, other);
}

/* Takes the header that waits in a park, for the lanes of mask.  Returns 0 if there is none. */
MAM__INLINE struct mam_warp *mam__warp_find(mam__u64 *park, mam__u32 mask, mam__u64 owner) {
  struct mam_warp *warp = (struct mam_warp *)mam__exchange_acq_rel_u64(park, 0); /* acq_rel: as in mam__warp_put_away */
  if (warp != 0) {
    warp->lanes = mam__warp_all_of(mask);
    warp->owner = owner;
    warp->mark = mam__warp_mark_of((mam__u64)warp);
  }
  return warp;
}

/* Frees what active lanes were given.  The caller has the round. */
MAM__INLINE void mam__warp_flush_round(struct mam_warp *warp, mam__u64 list, struct mam__lanes lanes) {
  if (lanes.rank == 0)
    MAM__OUT_OF_SIGHT(mam__warp_keep)(warp);
  mam__lanes_sync(lanes);
  MAM__OUT_OF_SIGHT(mam__warp_flush)(warp, list, lanes);
}

/* Frees everything.  The caller is the last. */
MAM__INLINE void mam__warp_finish(struct mam_warp *warp, struct mam__lanes lanes) {
  mam__warp_flush_round(warp, mam__lanes_first_u64(lanes, mam__load_relaxed_u64(&warp->list)), lanes);
  MAM__OUT_OF_SIGHT(mam__warp_flush)(warp, mam__lanes_first_u64(lanes, mam__load_relaxed_u64(&warp->early)), lanes);
  if (lanes.rank == 0)
    mam__warp_put_away(warp);
}

/* Resets the header, except for what early lanes were given, which the list holds afterwards. */
MAM__INLINE void mam__warp_rewind(struct mam_warp *warp) {
  mam__u64 early = mam__load_relaxed_u64(&warp->early), seen;
  MAM__LOOP
  while (early != 0 && (seen = mam__cas_acq_rel_u64(&warp->early, early, 0)) != early)
    early = seen;
  mam__store_relaxed_u64(&warp->largest, 0);
  /* release, both: what all lanes did with their blocks comes before what a lane does that is given these again; pairs
   * with the acquire in mam__warp_change.  Such a lane may have found itself active by a relaxed load. */
  mam__store_release_u64(&warp->list, early != 0 ? early : mam__warp_word(mam__warp_list_inside(warp), 0));
  mam__store_release_u64(&warp->current, warp->first);
}

/* Makes all lanes that take part active.  Returns whether there are any. */
MAM__INLINE int mam__warp_activate(struct mam_warp *warp) {
  mam__u64 lanes = mam__load_relaxed_u64(&warp->lanes);
  MAM__LOOP
  for (;;) {
    /* acq_rel: publishes what was done before to lanes that find themselves active */
    mam__u64 seen = mam__cas_acq_rel_u64(&warp->lanes, lanes, mam__warp_all_of(mam__warp_taking_part(lanes)));
    if (seen == lanes)
      return mam__warp_taking_part(lanes) != 0;
    lanes = seen;
  }
}

/* Ends a round: frees what active lanes were given, then makes all lanes that still take part active.  If there are
 * none, frees the header.  The lanes share the work. */
MAM__OUTLINE void mam__warp_round(struct mam_warp *warp, struct mam__lanes lanes) {
  mam__u64 stays = mam__lanes_first_u64(lanes, mam__load_relaxed_u32(&warp->handed_over));
  if (stays == 0)
    mam__warp_flush_round(warp, mam__lanes_first_u64(lanes, mam__load_relaxed_u64(&warp->list)), lanes);
  mam__u64 goes = 0;
  if (lanes.rank == 0) {
    if (stays == 0)
      mam__warp_rewind(warp);
    goes = !mam__warp_activate(warp) && mam__load_relaxed_u32(&warp->handed_over) == 0;
  }
  if (mam__lanes_first_u64(lanes, goes) != 0)
    mam__warp_finish(warp, lanes);
}

/* mam__warp_leave and mam__warp_round together, for lanes that are alone with their header. */
MAM__INLINE void mam__warp_leave_together(struct mam_warp *warp, struct mam__lanes lanes, enum mam__warp_leaving how) {
  mam__u64 list = warp->list, early = warp->early;
  mam__u32 stays = warp->handed_over;
  mam__lanes_sync(lanes); /* all lanes have read it */
  if (stays == 0) {
    mam__warp_flush_round(warp, list, lanes);
    MAM__OUT_OF_SIGHT(mam__warp_flush)(warp, early, lanes);
  }
  if (lanes.rank == 0) {
    if (stays == 0 && how == MAM__WARP_ENDS)
      mam__warp_put_away(warp);
    else if (how == MAM__WARP_ENDS)
      warp->lanes = 0;
    else if (stays == 0) {
      warp->list = mam__warp_word(mam__warp_list_inside(warp), 0);
      warp->early = warp->largest = 0;
      warp->current = warp->first;
    }
  }
  mam__lanes_sync(lanes); /* the changes are there for all of them */
}

/* Takes a header that was handed over, for the lanes of mask.  Returns 0 if it was not handed over, or another warp has
 * taken it. */
MAM__INLINE int mam__warp_adopt_by(struct mam_warp *warp, mam__u32 mask, mam__u64 owner) {
  if (!mam__warp_is(warp) || mam__load_relaxed_u32(&warp->handed_over) == 0)
    return 0;
  /* acq_rel: after what the lanes did that left it */
  if (mam__cas_acq_rel_u64(&warp->lanes, 0, mam__warp_all_of(mask)) != 0)
    return 0;
  mam__store_relaxed_u32(&warp->handed_over, 0);
  mam__store_relaxed_u64(&warp->owner, owner);
  return 1;
}

#endif /* MAM_DETAIL_WARP_CORE_H */
