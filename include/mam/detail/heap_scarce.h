/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_scarce.h - chunks for a request that got no ticket: what a heap does before it refuses.
 *
 *   mam_request_is_vain   the class is known to be missing: refuse at once
 *   mam_claim_waited      another thread refills the slot: wait for its tickets
 *   mam_slot_refill       the request has the task: refill the slot from anywhere
 *   mam_claim_scarce      passes over the heap, until there is something or the class is known to be missing
 *
 * A pass looks, in this order, for:
 *
 *   RECYCLE   chunks of spans that were split before
 *   OPEN      pages for a whole span of the thread's own, which no slot gets
 *   STEAL     tickets of any slot of the class
 *   PART      pages for a part of a span, halved until they are a chunk's
 *
 * What a pass did not find may be on its way to where it looked: empty spans that are not swept yet; pages that another
 * thread took for a span of which it needs a part (control->opening); a slot that is being refilled (BUSY); what was
 * freed behind the pass (the stamps).  Then the next pass begins.  Otherwise mam_pass_end frees what slots hold of any
 * class, more of it after each pass, and then what waits in parks.  If there was nothing of that either:
 *
 *   LARGER    chunks of larger classes, up to twice as large (max_frag in ScatterAlloc's paper)
 *
 * If there are none of these, the sum of the stamps is written down as the class's control->missing.  While the sum is
 * the same, requests for the class are refused at once.
 */
#ifndef MAM_DETAIL_HEAP_SCARCE_H
#define MAM_DETAIL_HEAP_SCARCE_H

#include <mam/detail/heap_parks.h>
#include <mam/detail/heap_recycle.h>
#include <mam/detail/heap_refill.h>

/* A request makes at most so many passes while other threads change what there is, then it fails.  A test may set it.
 */
#ifndef MAM_SCARCE_ROUNDS
#define MAM_SCARCE_ROUNDS 1024
#endif

/* The spans of a class that are being opened in need may have one page in 256 of the heap's first superblock together,
 * besides one span that is always allowed.  Otherwise many requests of a small heap took a span each and needed a part.
 */
enum { MAM_OPENING_SHARE = 256 };

/* ---- A span of the thread's own ---- */

/* Counts the caller among the threads that open a span of a class, if there may be one more.  Returns whether it did;
 * then the caller calls mam_opening_end. */
MAM_OUTLINE int mam_opening_begin(MAM_TAG(3) struct mam_heap_control *control, mam_u32 size_class, mam_u32 pages) {
  mam_u32 *opening = &control->opening[mam_kind_number(size_class)], seen = mam_load_relaxed_u32(opening);
  if (seen * pages > control->superblocks[0].page_count / MAM_OPENING_SHARE)
    return 0;
  /* acq_rel: a thread that finds the pages taken, and looks here after that, sees this. */
  return mam_cas_acq_rel_u32(opening, seen, seen + 1) == seen;
}

/* release: the hint of the class map; pairs with mam_pass_end. */
MAM_INLINE void mam_opening_end(struct mam_heap_control *control, mam_u32 size_class) {
  (void)mam_add_acq_rel_u32(&control->opening[mam_kind_number(size_class)], ~0u);
}

/* The pages of the smallest span of a class: those of one chunk. */
MAM_INLINE mam_u32 mam_class_least_pages(mam_u32 size_class) {
  return (mam_class_bytes(size_class) + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
}

/* Takes so many pages for a span that no slot gets.  With mask 0 the address is not 0 if other threads are opening such
 * a span. */
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

/* ---- Passes ---- */

/* Ends a pass that found nothing for a class.  sum: the sum of the stamps before the pass.  Returns whether nothing is
 * on its way, and slots and parks hold nothing either. */
MAM_INLINE int mam_pass_end(struct mam_heap_control *control, mam_u32 size_class, mam_u32 sum, int busy, mam_u32 pass) {
  mam_u32 found = MAM_FLUSH_BUSY;
  busy |= mam_load_acquire_u32(&control->mode) != MAM_MODE_WATCHED;
  /* acquire: if a span was opened meanwhile, its stamp has been raised, or the pass could have found it. */
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

/* Where a pass is. */
enum {
  /* Before it begins. */
  MAM_STEP_BEGIN,
  /* The steps of a pass: see above. */
  MAM_STEP_RECYCLE,
  MAM_STEP_OPEN,
  MAM_STEP_STEAL,
  MAM_STEP_PART,
  /* After passes that found nothing. */
  MAM_STEP_LARGER,
  /* A flag: the pass has met another thread that is about to have chunks. */
  MAM_STEP_BUSY = 8
};

/* Whether chunks of a kind may serve a request of a class. */
MAM_INLINE int mam_class_serves(mam_u32 kind, mam_u32 size_class) {
  return kind < MAM_HEAP_CLASSES && mam_class_bytes(kind) <= 2 * mam_class_bytes(size_class);
}

/* Claims up to count chunks by passes over the heap, until there are some or the class is known to be missing. */
MAM_OUTLINE struct mam_claim mam_claim_scarce(struct mam_heap_control *control, mam_u32 wanted, mam_u32 count) {
  struct mam_claim claim = {0, 0, 0};
  mam_u32 pass = 0, sum = 0, step = MAM_STEP_BEGIN, kind = 0, pages = 0;
  MAM_LOOP
  for (;;) {
    MAM_FORGET(wanted); /* what one step computes from it is not kept over the others */
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

/* ---- Requests ---- */

/* Whether a request can only fail.  If so, and it has the task of refilling the slot, the slot becomes dry. */
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

/* Claims chunks for count lanes of which one calls and none has a ticket.  wanted: a request word (MAM_REST_*).  slot:
 * its number among all, with MAM_REST_CHUNKS.  mask 0: there is no room. */
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

/* The chunk of a claim for the lane of that rank. */
MAM_INLINE mam_u64 mam_claim_chunk(struct mam_claim claim, mam_u32 rank) {
  mam_u32 mask = claim.mask;
  MAM_LOOP
  for (; rank != 0; rank--)
    mask &= mask - 1;
  return claim.address + (mam_u64)mam_lowest_u32(mask) * claim.chunk_bytes;
}

/* Whether a superblock of the heap is large enough for bytes. */
MAM_OUTLINE int mam_heap_could(MAM_TAG(1) struct mam_heap_control *control, mam_u64 bytes) {
  mam_u32 superblocks = mam_load_acquire_u32(&control->superblock_count);
  MAM_LOOP
  for (mam_u32 i = 0; i < superblocks; i++)
    if (bytes <= (mam_u64)control->superblocks[i].page_count << MAM_PAGE_SHIFT)
      return 1;
  return 0;
}

/* Counts failed requests of a home. */
MAM_INLINE void mam_failed(struct mam_heap_control *control, mam_u32 home, mam_u32 count) {
  (void)mam_add_relaxed_u64(&control->failures[home % MAM_COUNTERS], count);
}

#endif /* MAM_DETAIL_HEAP_SCARCE_H */
