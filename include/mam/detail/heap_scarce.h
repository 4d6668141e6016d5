/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_scarce.h - chunks for a request that got no ticket: what a heap does before it refuses.
 *
 *   mam__request_is_vain   the class is known to be missing: refuse at once
 *   mam__claim_waited      another thread refills the slot: wait for its tickets
 *   mam__claim_split       no task, or the slot is dry, or pages are scarce: chunks of spans that were split before
 *   mam__slot_refill       the request has the task: refill the slot from anywhere
 *   mam__claim_scarce      passes over the heap, until there is something or the class is known to be missing
 *
 * A pass looks, in this order, for:
 *
 *   RECYCLE   chunks of spans that were split before
 *   OPEN      pages for a whole span of the thread's own, which no slot gets
 *   PART      pages for a part of a span, halved until they are a chunk's
 *
 * What a pass did not find may be about to become chunks of the class: empty spans that are not swept yet; pages that
 * another thread took for a span of which it needs a part (control->opening); a slot that is being refilled (BUSY).
 * Then the next pass begins.  Otherwise, and before a request gives up, mam__pass_end frees what slots hold of any
 * class, more of it after each pass, and then what waits in parks.  All requests in need do so together, also while
 * other threads free: in a full heap there is always one that does.  If nothing was left to free, and nothing was freed
 * behind the pass (the stamps):
 *
 *   LARGER    chunks of larger classes, up to twice as large (max_frag in ScatterAlloc's paper)
 *
 * If there are none of these, the sum of the stamps is written down as the class's control->missing.  While the sum is
 * the same, requests for the class are refused at once.
 *
 * Where other threads free and allocate all the time, a request may find each time that something came back, and that
 * another thread was quicker.  So each pass has a cost (MAM__COST_*).  When a request has spent MAM__SCARCE_PATIENCE,
 * it fails.
 */
#ifndef MAM_DETAIL_HEAP_SCARCE_H
#define MAM_DETAIL_HEAP_SCARCE_H

#include <mam/detail/heap_parks.h>
#include <mam/detail/heap_recycle.h>
#include <mam/detail/heap_refill.h>

/* What the passes of a request may cost together.  A test may set it. */
#ifndef MAM__SCARCE_PATIENCE
#define MAM__SCARCE_PATIENCE 1024
#endif

/* What a pass costs that found nothing.  A request adds that up in the lower half of a word, and counts its passes in
 * the upper half. */
enum {
  MAM__COST_PASS = 65536,
  /* When no more than so much is left to spend, a request frees what slots hold also while others open spans. */
  MAM__COST_LATE = 24,
  /* Something is on its way.  A thread of which this one waits may be slow, so this is cheap. */
  MAM__COST_BUSY = MAM__COST_PASS + 1,
  /* Slots or parks held something, which is free now. */
  MAM__COST_FREED = MAM__COST_PASS + 16,
  /* Something came back during the pass, and slots and parks hold nothing. */
  MAM__COST_CHANGED = MAM__COST_PASS + 64
};

/* What threads do not need of the spans of a class that they are opening in need may be one page in 256 of the heap's
 * first superblock together, besides one span that is always allowed.  Otherwise many requests of a small heap took a
 * span each and needed a part. */
enum { MAM__OPENING_SHARE = 256 };

/* ---- A span of the thread's own ---- */

/* Counts the caller among the threads that open a span of a class, if there may be one more.  spare: the pages of the
 * span that the caller does not need.  Returns whether it did; then the caller calls mam__opening_end.  A caller that
 * is turned away may count for a moment.
 *
 * Where the spans of a class have one page, that page counts: otherwise each of 2,000 requests of 16 bytes that waited
 * for a slow refill took a page of its own. */
MAM__OUTLINE int mam__opening_begin(MAM__TAG(3) struct mam__heap_control *control, mam__u32 size_class,
                                    mam__u32 spare) {
  mam__u32 *opening = &control->opening[mam__kind_number(size_class)], seen = mam__load_relaxed_u32(opening);
  mam__u32 most = control->superblocks[0].page_count / MAM__OPENING_SHARE;
  spare += mam__span_pages(control->heap.tuning, size_class) == 1;
  if (seen * spare > most)
    return 0;
  /* An addition, because of many that compare and swap at a time one succeeds.  acq_rel: a thread that finds the pages
   * taken, and looks here after that, sees this. */
  seen = mam__add_acq_rel_u32(opening, 1);
  if (seen * spare <= most)
    return 1;
  (void)mam__add_acq_rel_u32(opening, ~0u);
  return 0;
}

/* release: the hint of the class map; pairs with mam__pass_end. */
MAM__INLINE void mam__opening_end(struct mam__heap_control *control, mam__u32 size_class) {
  (void)mam__add_acq_rel_u32(&control->opening[mam__kind_number(size_class)], ~0u);
}

/* Whether a span of so many pages has chunks for other threads than those that want count.  If not, they need not know
 * of it. */
MAM__INLINE int mam__span_is_shared(mam__u32 size_class, mam__u32 pages, mam__u32 count) {
  return mam__class_bytes(size_class) * (count + 1) <= pages << MAM__PAGE_SHIFT;
}

/* The pages of the smallest span of a class: those of one chunk. */
MAM__INLINE mam__u32 mam__class_least_pages(mam__u32 size_class) {
  return (mam__class_bytes(size_class) + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT;
}

/* Takes so many pages for a span that no slot gets.  With mask 0 the address is not 0 if other threads are opening such
 * a span. */
MAM__INLINE struct mam__claim mam__claim_own(struct mam__heap_control *control, mam__u32 wanted, mam__u32 pages,
                                             mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  if (MAM__OUT_OF_SIGHT(mam__pages_are_short)(control, pages))
    return claim;
  claim.address = 1;
  mam__u32 needed = (mam__class_bytes(wanted & MAM__REST_KIND) * count + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT;
  if (mam__span_is_shared(wanted & MAM__REST_KIND, pages, count) &&
      !MAM__OUT_OF_SIGHT(mam__opening_begin)(control, wanted & MAM__REST_KIND, pages > needed ? pages - needed : 0))
    return claim;
  MAM__FORGET(wanted);
  struct mam__found found = mam__pages_any(control, pages, wanted);
  MAM__FORGET(wanted);
  MAM__FORGET_ADDRESS(control);
  claim.address = 0;
  if (found.page != MAM__NO_PAGE)
    claim = MAM__OUT_OF_SIGHT(mam__span_split)(found, wanted & MAM__REST_KIND, pages,
                                               mam__slot_limit(&control->heap, wanted & MAM__REST_KIND), count);
  MAM__FORGET(count); /* not kept over the calls */
  if (mam__span_is_shared(wanted & MAM__REST_KIND, pages, count))
    mam__opening_end(control, wanted & MAM__REST_KIND);
  return claim;
}

/* ---- Passes ---- */

/* Ends a pass that found nothing for a class.  sum: the sum of the stamps before the pass.  busy: the pass has met
 * another thread that is about to have chunks.  spent: what passes have cost so far.  Returns what they have cost now;
 * 0 if nothing is on its way, and slots and parks hold nothing either. */
MAM__INLINE mam__u32 mam__pass_end(struct mam__heap_control *control, mam__u32 size_class, mam__u32 sum, int busy,
                                   mam__u32 spent) {
  mam__u32 found = MAM__FLUSH_BUSY;
  busy |= sum == 0; /* the pass began during a sweep */
  /* acquire: if a span was opened meanwhile, its stamp has been raised, or the pass could have found it. */
  busy |= mam__load_acquire_u32(&control->opening[mam__kind_number(size_class)]) != 0;
  if (!busy || spent % MAM__COST_PASS + MAM__COST_LATE >= MAM__SCARCE_PATIENCE) {
    found = mam__slots_flush(spent < 16 * MAM__COST_PASS ? 2u << spent / MAM__COST_PASS : ~0u, control,
                             mam__kind_number(size_class));
    MAM__FORGET_ADDRESS(control);
    if (found == 0 && MAM__OUT_OF_SIGHT(mam__parks_flush)(control))
      found = MAM__FLUSH_FREED;
  }
  if ((found & MAM__FLUSH_FREED) != 0)
    return spent + MAM__COST_FREED;
  if (busy || found != 0 || mam__load_acquire_u32(&control->opening[MAM__HEAP_KINDS]) != 0) {
    mam__pause();
    return spent + MAM__COST_BUSY;
  }
  if (mam__stamps_sum(control, control->superblocks[0]) == sum)
    return 0;
  mam__sleep(6400); /* what comes back is not enough for all */
  return spent + MAM__COST_CHANGED;
}

/* Where a pass is. */
enum {
  /* Before it begins. */
  MAM__STEP_BEGIN,
  /* The steps of a pass: see above. */
  MAM__STEP_RECYCLE,
  MAM__STEP_OPEN,
  MAM__STEP_PART,
  /* After passes that found nothing. */
  MAM__STEP_LARGER,
  /* A flag: the pass has met another thread that is about to have chunks. */
  MAM__STEP_BUSY = 8
};

/* Whether chunks of a kind may serve a request of a class. */
MAM__INLINE int mam__class_serves(mam__u32 kind, mam__u32 size_class) {
  return kind < MAM__HEAP_CLASSES && mam__class_bytes(kind) <= 2 * mam__class_bytes(size_class);
}

/* Claims up to count chunks by passes over the heap, until there are some or the class is known to be missing. */
MAM__OUTLINE struct mam__claim mam__claim_scarce(struct mam__heap_control *control, mam__u32 wanted, mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  mam__u32 spent = 0, sum = 0, step = MAM__STEP_BEGIN, kind = 0, pages = 0;
  MAM__LOOP
  for (;;) {
    MAM__FORGET(wanted); /* what one step computes from it is not kept over the others */
    MAM__FORGET_ADDRESS(control);
    if (step == MAM__STEP_BEGIN) {
      if (spent % MAM__COST_PASS >= MAM__SCARCE_PATIENCE ||
          MAM__OUT_OF_SIGHT(mam__is_missing)(control, control->superblocks[0], wanted & MAM__REST_KIND))
        return claim;
      sum = MAM__OUT_OF_SIGHT(mam__stamps_rely)(control);
      MAM__FORGET(wanted);
      MAM__FORGET_ADDRESS(control);
      kind = wanted & MAM__REST_KIND;
      pages = mam__span_pages(control->heap.tuning, kind);
      step = MAM__STEP_RECYCLE;
    }
    claim.mask = 0;
    if (step == MAM__STEP_RECYCLE || step == MAM__STEP_LARGER)
      claim = MAM__OUT_OF_SIGHT(mam__recycle_any)(control, kind, count);
    else
      claim = mam__claim_own(control, wanted, pages, count);
    if (claim.mask != 0)
      return claim;
    MAM__FORGET(wanted);
    MAM__FORGET_ADDRESS(control);
    step |= claim.address != 0 ? MAM__STEP_BUSY : 0;
    if ((step & ~(mam__u32)MAM__STEP_BUSY) < MAM__STEP_OPEN)
      step++;
    else if (step < MAM__STEP_LARGER && pages > mam__class_least_pages(wanted & MAM__REST_KIND)) {
      pages = pages / 2;
      if (pages < mam__class_least_pages(wanted & MAM__REST_KIND))
        pages = mam__class_least_pages(wanted & MAM__REST_KIND);
      step = MAM__STEP_PART;
    } else if (step == MAM__STEP_LARGER ||
               (spent = mam__pass_end(control, wanted & MAM__REST_KIND, sum, step >= MAM__STEP_BUSY, spent)) == 0) {
      step = MAM__STEP_LARGER;
      if (mam__class_serves(++kind, wanted & MAM__REST_KIND))
        continue;
      if (mam__stamps_sum(control, control->superblocks[0]) == sum)
        mam__store_relaxed_u32(&control->missing[mam__kind_number(wanted & MAM__REST_KIND)], sum);
      return claim;
    } else
      step = MAM__STEP_BEGIN;
  }
}

/* ---- Requests ---- */

/* Returns 1 if a request can only fail; then, if it has the task of refilling the slot, the slot becomes dry.  Else
 * returns MAM__REST_DRY if the slot is dry and its task is taken, or 0. */
MAM__OUTLINE mam__u32 mam__request_is_vain(MAM__TAG(5) struct mam__heap_control *control, mam__u32 wanted,
                                           mam__u32 slot) {
  mam__u64 *place = mam__slot_at(control, slot & MAM__REST_SLOT);
  if (!MAM__OUT_OF_SIGHT(mam__is_missing)(control, control->superblocks[0], wanted & MAM__REST_KIND))
    return mam__slot_dry_taken(mam__load_relaxed_u64(place), 1u << (slot >> MAM__REST_CHUNKS));
  if ((wanted & (MAM__REST_REFILL | MAM__REST_WHOLE)) == MAM__REST_REFILL)
    (void)mam__exchange_release_u64(place, MAM__SLOT_DRY | 1u << (slot >> MAM__REST_CHUNKS));
  else if ((wanted & MAM__REST_WHOLE) == 0)
    mam__slot_keep(place, mam__load_relaxed_u64(place), 1u << (slot >> MAM__REST_CHUNKS));
  return 1;
}

/* Takes chunks of spans that were split, for a request without the task of refilling a slot, or with the task, where
 * the slot is dry or pages are scarce.  That is quicker than a search for pages, and more of them become free.  A
 * request that has the task leaves it to the next one: it makes the slot dry, so no thread waits for it. */
MAM__INLINE struct mam__claim mam__claim_split(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                               mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  if ((wanted & MAM__REST_WHOLE) != 0 || mam__load_relaxed_u32(&control->mode) != MAM__MODE_WATCHED ||
      (wanted & (MAM__REST_REFILL | MAM__REST_DRY)) == MAM__REST_REFILL)
    return claim;
  claim = MAM__OUT_OF_SIGHT(mam__recycle_any)(control, wanted & MAM__REST_KIND, count);
  MAM__FORGET(wanted);
  MAM__FORGET(slot);
  MAM__FORGET_ADDRESS(control);
  if (claim.mask != 0 && (wanted & MAM__REST_REFILL) != 0) /* release: as in mam__request_is_vain */
    (void)mam__exchange_release_u64(mam__slot_at(control, slot & MAM__REST_SLOT),
                                    MAM__SLOT_DRY | 1u << (slot >> MAM__REST_CHUNKS));
  return claim;
}

/* Claims chunks for count lanes of which one calls and none has a ticket.  wanted: a request word (MAM__REST_*).  slot:
 * its number among all, with MAM__REST_CHUNKS.  mask 0: there is no room. */
MAM__INLINE struct mam__claim mam__claim_chunks(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                                mam__u32 count) {
  struct mam__claim claim = {0, 0, 0};
  mam__u32 vain = MAM__OUT_OF_SIGHT(mam__request_is_vain)(control, wanted, slot);
  if (vain == 1)
    return claim;
  wanted |= vain;
  if ((wanted & (MAM__REST_REFILL | MAM__REST_WHOLE | MAM__REST_DRY)) == 0) {
    claim = MAM__OUT_OF_SIGHT(mam__claim_waited)(control, wanted, slot, count);
    if (claim.mask != 0)
      return claim;
    wanted |= (mam__u32)claim.address;
  }
  MAM__FORGET(wanted);
  claim = mam__claim_split(control, wanted, slot, count);
  if (claim.mask != 0)
    return claim;
  MAM__FORGET(wanted);
  if ((wanted & (MAM__REST_REFILL | MAM__REST_WHOLE)) != 0) {
    claim = MAM__OUT_OF_SIGHT(mam__slot_refill)(control, wanted, slot, count);
    if (claim.mask != 0)
      return claim;
  }
  return MAM__OUT_OF_SIGHT(mam__claim_scarce)(control, wanted, count);
}

/* The chunk of a claim for the lane of that rank. */
MAM__INLINE mam__u64 mam__claim_chunk(struct mam__claim claim, mam__u32 rank) {
  mam__u32 mask = claim.mask;
  MAM__LOOP
  for (; rank != 0; rank--)
    mask &= mask - 1;
  return claim.address + (mam__u64)mam__lowest_u32(mask) * claim.chunk_bytes;
}

/* Whether a superblock of the heap is large enough for bytes. */
MAM__OUTLINE int mam__heap_could(MAM__TAG(1) struct mam__heap_control *control, mam__u64 bytes) {
  mam__u32 superblocks = mam__load_acquire_u32(&control->superblock_count);
  MAM__LOOP
  for (mam__u32 i = 0; i < superblocks; i++)
    if (bytes <= (mam__u64)control->superblocks[i].page_count << MAM__PAGE_SHIFT)
      return 1;
  return 0;
}

/* Counts failed requests of a home. */
MAM__INLINE void mam__failed(struct mam__heap_control *control, mam__u32 home, mam__u32 count) {
  (void)mam__add_relaxed_u64(&control->failures[home % MAM__COUNTERS], count);
}

#endif /* MAM_DETAIL_HEAP_SCARCE_H */
