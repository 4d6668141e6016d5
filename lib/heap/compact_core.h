/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Defragmentation of a device heap: the algorithm.  The GPU runs it, and a test runs it on the host.  It follows M.
 * Springer, "CompactGpu: Massively Parallel Memory Defragmentation on GPUs" ("the paper").  The paper's blocks are
 * spans here, and its allocation sizes are types.  lib/heap/README.md, "Defragmentation", has the reasons.
 *
 *             target                source
 *   before    | x |   | y |   |     | a |   |   | b |
 *   after     | x | a | y | b |     table: where a is, 0, 0, where b is
 *
 * A candidate is a span of one type that is not empty and at most n/(n+1) full.  A pass orders the candidates of each
 * type from the last page of the heap to the first.  Of r candidates, the first B = r/(n+1) are sources.  The objects
 * of source i go to free chunks of its targets i + B, i + 2B .. i + nB.  They fit, because n full-sized targets have
 * n/(n+1) of a span free.  The last target is filled first, so that what stays is at the beginning of the heap.  n may
 * grow from pass to pass.  While many candidates are nearly empty, n = 1 takes most spans away.
 *
 * The paper leaves candidates alone if there are at most n of them.  Here as many stay as are needed to hold all
 * objects, as targets, and the others become sources.
 *
 * A source has a table of new addresses at its beginning, with a place for each chunk, until the end of the compaction.
 * So an address in a source tells where its object is.  It keeps its usage words as long.  Meanwhile the map of moved
 * pages has a 1 for each of its pages, and its entries have the size class MAM__ENTRY_MOVED, so no free and no request
 * takes it for a span.
 *
 * The program does not use the heap meanwhile, and all threads wait for each other between the steps of a pass.  So no
 * access needs a memory order.
 *
 * A team is a set of threads that do one piece of work together.  The file that includes this one defines before it:
 *
 *   struct mam_team                       rank and count
 *   mam_team_sync(team)                   the team's threads wait for each other
 *   mam_team_sum(team, value)             the sum of all threads' 64-bit values, for each of them
 *   mam_team_scan(team, value, total)     the sum of the 32-bit values of the threads before; *total: of all threads
 *   mam_read_if_u16(wanted, place)        the value there, 0 if it is not wanted; without a branch, so reads overlap
 *   mam_read_once_if_u64(wanted, place)   the same for a value that is not read again soon
 *   mam_read_pointer_if(wanted, place)    the same for a pointer; the L2 cache need not keep its line any longer
 *   mam_read_unit_once(place)             a unit that is not read again
 *   mam_write_unit(place, unit, keep)     keep: the L2 cache is to keep the line until its pointers are read
 */
#ifndef MAM_LIB_COMPACT_CORE_H
#define MAM_LIB_COMPACT_CORE_H

#include "heap/compact_merge.h"
#include "heap/compact_rewrite.h"

/* ---- The end ---- */

/* Gives back those pages of a word of a superblock's page map that were moved. */
MAM__INLINE void mam_moved_release(struct mam__area area, mam__u32 index, struct mam__lanes lanes) {
  mam__u64 moved = mam__area_moved(area)[index];
  if (moved == 0)
    return;
  MAM__LOOP
  for (mam__u32 i = lanes.rank; i < 64; i += lanes.count)
    if ((moved >> i & 1) != 0) {
      mam__u16 *entry = mam__page_entry(area.words, index * 64 + i);
      mam__u64 *words = mam_span_words_at(area, index * 64 + i);
      MAM__LOOP
      for (mam__u32 word = 0; mam__entry_back(*entry) == 0 && word < MAM__PAGE_WORDS; word++)
        words[word] = 0;
      *entry = 0;
    }
  mam__lanes_sync(lanes);
  if (lanes.rank != 0)
    return;
  mam__area_moved(area)[index] = 0;
  mam__pages_clear(area, index, moved);
}

#endif
