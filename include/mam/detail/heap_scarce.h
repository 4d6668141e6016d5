/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_scarce.h - chunks for a request that got no ticket: what a heap does before it refuses.
 *
 * A request goes from step to step, until one of them claims chunks:
 *
 *   VAIN      is the class known to be missing?  Then the request is refused at once.
 *   WAIT      another thread refills the slot: wait for its tickets
 *   SPLIT     no task, or the slot is dry, or pages are scarce: chunks of spans that were split before
 *   REFILL    the request has the task: refill the slot by pages from anywhere
 *   BEGIN     begins a pass over the heap: notes the stamps
 *   RECYCLE   chunks of spans that were split before
 *   OPEN      pages for a whole span of the thread's own, which no slot gets; then, if no other thread opens one, for
 *             a part, halved until it is a chunk's
 *   FLUSH     frees what slots hold of any class, more of it after each pass
 *   PARKS     frees what waits in parks, and ends the pass
 *   LARGER    chunks of larger classes, up to twice as large (max_frag in ScatterAlloc's paper)
 *   REFUSED   there is nothing
 *
 * REFILL and OPEN search for pages (heap_sweep.h), and the turns of that search are steps, too.
 *
 * What a pass did not find may be about to become chunks of the class: empty spans that are not swept yet; pages that
 * another thread took for a span of which it needs a part (control->opening); a slot that is being refilled.  Then the
 * next pass begins without FLUSH and PARKS, unless the request would soon give up.  All requests in need free together,
 * also while other threads free: in a full heap there is always one that does.  If nothing was left to free, and
 * nothing was freed behind the pass (the stamps), LARGER follows.  If that finds nothing, the sum of the stamps is
 * written down as the class's control->missing.  While the sum is the same, requests for the class are refused at once.
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
  /* Other threads are about to have chunks of the class.  One of which this thread waits may be slow, so this is
   * cheap. */
  MAM__COST_BUSY = MAM__COST_PASS + 1,
  /* Slots or parks held something, which is free now; or another thread was emptying a slot, of whatever class, or was
   * refilling one.  In a heap where many requests fail, one always is: when this was as cheap, a refusal took up to
   * nine times as long, and no more requests were served. */
  MAM__COST_FREED = MAM__COST_PASS + 16,
  /* Something came back during the pass, and slots and parks hold nothing. */
  MAM__COST_CHANGED = MAM__COST_PASS + 64
};

/* What threads do not need of the spans of a class that they are opening in need may be one page in 256 of the heap's
 * first superblock together, besides one span that is always allowed.  Otherwise many requests of a small heap took a
 * span each and needed a part.
 *
 * Where a span has more chunks than a warp has lanes, it is 1 / 2^4 of that at first, and twice as much after every
 * six passes of a request: one span serves many requests, so others wait for it until they are seen to be very many.
 */
enum { MAM__OPENING_SHARE = 256, MAM__OPENING_FEWER = 4, MAM__OPENING_PASSES = 6 };

/* ---- Requests ---- */

/* Where a request is: a step (see above), flags, and from bit MAM__STEP_PAGES on the pages of the span that REFILL or
 * OPEN wants, or for LARGER the class. */
enum {
  /* Those before are the turns of a search, MAM__SEARCH_*. */
  MAM__STEP_SEARCHED = MAM__SEARCH_END,
  MAM__STEP_VAIN,
  MAM__STEP_WAIT,
  MAM__STEP_SPLIT,
  MAM__STEP_REFILL,
  MAM__STEP_BEGIN,
  MAM__STEP_RECYCLE,
  MAM__STEP_OPEN,
  MAM__STEP_FLUSH,
  MAM__STEP_PARKS,
  MAM__STEP_LARGER,
  MAM__STEP_REFUSED,
  /* The bits of a step. */
  MAM__STEPS = MAM__SEARCH_STEPS,
  /* The request is in a pass. */
  MAM__STEP_PASS = 32,
  /* The pass has met another thread that is about to have chunks. */
  MAM__STEP_BUSY = 64,
  MAM__STEP_PAGES = 8
};

/* A request of a group of lanes that got no ticket.  Its first lane acts for all.  Functions that call others keep it
 * in registers, and nothing that can be computed from it (mam__request_forget). */
struct mam__request {
  struct mam__heap_control *control;
  mam__u32 wanted; /* a request word: MAM__REST_* */
  mam__u32 slot;   /* its number among all, with MAM__REST_CHUNKS */
  mam__u32 group;  /* a 1 for each lane */
  mam__u32 step;   /* MAM__STEP_* */
  mam__u32 sum;    /* of the stamps before the pass */
  mam__u32 spent;  /* what passes have cost: MAM__COST_* */
  mam__u32 at;     /* where a search is (MAM__SEARCHED); FLUSH: where the flush is (mam__flush_begin) */
};

/* What was computed from the request is not kept any more.  The first one is for callers that need no more of it than
 * what it forgets. */
MAM__INLINE void mam__request_forget_lanes(struct mam__request *request) {
  MAM__FORGET_ADDRESS(request->control);
  MAM__FORGET_THREE(request->wanted, request->slot, request->group);
}
MAM__INLINE void mam__request_forget(struct mam__request *request) {
  mam__request_forget_lanes(request);
  MAM__FORGET_THREE(request->step, request->sum, request->at);
}
/* The step, after which nothing else is kept. */
MAM__INLINE mam__u32 mam__request_step(struct mam__request *request) {
  mam__request_forget(request);
  return request->step & MAM__STEPS;
}
/* The pages, or the class, of a step. */
MAM__INLINE mam__u32 mam__step_pages(const struct mam__request *request) { return request->step >> MAM__STEP_PAGES; }

/* The number of the pass in which the request is, from 1 on; 0: it is in none. */
MAM__INLINE mam__u32 mam__request_pass(const struct mam__request *request) {
  return (request->step & MAM__STEP_PASS) != 0 ? 1 + request->spent / MAM__COST_PASS : 0;
}

MAM__INLINE mam__u32 mam__request_class(const struct mam__request *request) { return request->wanted & MAM__REST_KIND; }
MAM__INLINE mam__u32 mam__request_count(const struct mam__request *request) { return mam__ones_u32(request->group); }
/* Makes the request's slot dry: the task goes to the next request, and no thread waits for it.  release: as in
 * mam__slot_flush. */
MAM__INLINE void mam__request_dry(const struct mam__request *request) {
  (void)mam__exchange_release_u64(mam__slot_at(request->control, request->slot & MAM__REST_SLOT),
                                  MAM__SLOT_DRY | 1u << (request->slot >> MAM__REST_CHUNKS));
}

/* ---- Parts of steps that call nothing, or little ---- */

/* How many pages the threads that open spans of a class may not need, by the passes of a request that would open one.
 */
MAM__INLINE mam__u32 mam__opening_most(struct mam__heap_control *control, mam__u32 size_class, mam__u32 passes) {
  mam__u32 grown = passes / MAM__OPENING_PASSES, fewer = 0;
  if (mam__slot_limit(&control->heap, size_class) > 32 && grown < MAM__OPENING_FEWER)
    fewer = MAM__OPENING_FEWER - grown;
  return control->superblocks[0].page_count / MAM__OPENING_SHARE >> fewer;
}

/* Counts the caller among the threads that open a span of a class, if there may be one more.  spare: the pages of the
 * span that the caller does not need.  passes: how many the caller has made.  Returns whether it did; then the caller
 * calls mam__opening_end.  A caller that is turned away may count for a moment.
 *
 * Where the spans of a class have one page, that page counts: otherwise each of 2,000 requests of 16 bytes that waited
 * for a slow refill took a page of its own. */
MAM__INLINE int mam__opening_begin(struct mam__heap_control *control, mam__u32 size_class, mam__u32 spare,
                                   mam__u32 passes) {
  mam__u32 *opening = &control->opening[mam__kind_number(size_class)], seen = mam__load_relaxed_u32(opening);
  mam__u32 most = mam__opening_most(control, size_class, passes);
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

/* What mam__pages_before says. */
enum {
  /* There are no pages. */
  MAM__PAGES_SHORT,
  /* Other threads are opening spans of the class. */
  MAM__PAGES_OPENING,
  /* The caller may search. */
  MAM__PAGES_SEARCH
};

/* Begins a search for pages: for the slot's span, or for one of the lanes' own with MAM__REST_WHOLE or in a pass.
 * in_pass: the number of the pass, from 1 on; 0: none.  In a pass mam__opening_end follows if the span is shared. */
MAM__OUTLINE mam__u32 mam__pages_before(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                        mam__u32 pages, mam__u32 count, mam__u32 in_pass) {
  mam__u32 size_class = wanted & MAM__REST_KIND;
  mam__u32 needed = (mam__class_bytes(size_class) * count + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT;
  if (in_pass == 0) {
    if ((wanted & MAM__REST_WHOLE) == 0)
      MAM__OUT_OF_SIGHT(mam__held_raise)(control, slot & MAM__REST_SLOT);
    return MAM__PAGES_SEARCH;
  }
  if (mam__pages_are_short(control, pages))
    return MAM__PAGES_SHORT;
  return mam__span_is_shared(size_class, pages, count) &&
                 !mam__opening_begin(control, size_class, pages > needed ? pages - needed : 0, in_pass - 1)
             ? MAM__PAGES_OPENING
             : MAM__PAGES_SEARCH;
}

/* Makes a span of pages that the caller has taken: for the slot, or for the lanes with MAM__REST_WHOLE; or in a pass
 * one that no slot gets, and whose chunks belong to the heap but for those of the lanes. */
MAM__OUTLINE struct mam__claim mam__span_begin(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot,
                                               mam__u32 pages, mam__u32 count, mam__u32 in_pass,
                                               struct mam__found found) {
  if (in_pass == 0)
    return mam__slot_fill_alone(control, wanted, slot, count, found);
  struct mam__claim claim = MAM__OUT_OF_SIGHT(mam__span_split)(
      found, wanted & MAM__REST_KIND, pages, mam__slot_limit(&control->heap, wanted & MAM__REST_KIND), count);
  if (mam__span_is_shared(wanted & MAM__REST_KIND, pages, count))
    mam__opening_end(control, wanted & MAM__REST_KIND);
  return claim;
}

/* Whether a request can only fail: then returns MAM__REQUEST_VAIN, and if it has the task of refilling the slot, the
 * slot becomes dry.  Else returns MAM__REST_DRY if the slot is dry and its task is taken, or 0. */
enum { MAM__REQUEST_VAIN = 1 };
MAM__OUTLINE mam__u32 mam__request_is_vain(MAM__TAG(5) struct mam__heap_control *control, mam__u32 wanted,
                                           mam__u32 slot) {
  mam__u64 *place = mam__slot_at(control, slot & MAM__REST_SLOT);
  if (!mam__is_missing(control, control->superblocks[0], wanted & MAM__REST_KIND))
    return mam__slot_dry_taken(mam__load_relaxed_u64(place), 1u << (slot >> MAM__REST_CHUNKS));
  if ((wanted & (MAM__REST_REFILL | MAM__REST_WHOLE)) == MAM__REST_REFILL)
    (void)mam__exchange_release_u64(place, MAM__SLOT_DRY | 1u << (slot >> MAM__REST_CHUNKS));
  else if ((wanted & MAM__REST_WHOLE) == 0)
    mam__slot_keep(place, mam__load_relaxed_u64(place), 1u << (slot >> MAM__REST_CHUNKS));
  return MAM__REQUEST_VAIN;
}

/* Begins a pass.  Returns the sum of the stamps; 0 as mam__stamps_rely; or MAM__PASS_VAIN if the class is known to be
 * missing. */
#define MAM__PASS_VAIN 0xffffffffu
MAM__OUTLINE mam__u32 mam__pass_begin(struct mam__heap_control *control, mam__u32 size_class) {
  if (mam__is_missing(control, control->superblocks[0], size_class))
    return MAM__PASS_VAIN;
  mam__u32 sum = mam__stamps_rely(control);
  return sum != MAM__PASS_VAIN ? sum : 0;
}

/* ---- The order of steps ---- */

/* Whether chunks of a kind may serve a request of a class. */
MAM__INLINE int mam__class_serves(mam__u32 kind, mam__u32 size_class) {
  return kind < MAM__HEAP_CLASSES && mam__class_bytes(kind) <= 2 * mam__class_bytes(size_class);
}

/* Ends a pass that found nothing, after what slots and parks hold was freed, or not.  flush: MAM__FLUSH_*.  Returns 0
 * if nothing is on its way, and slots and parks hold nothing either. */
MAM__INLINE int mam__pass_end(struct mam__request *request, mam__u32 flush) {
  if ((flush & MAM__FLUSH_FREED) != 0)
    request->spent += MAM__COST_FREED;
  else if ((request->step & MAM__STEP_BUSY) != 0 || (flush & MAM__FLUSH_BUSY) != 0 ||
           mam__load_acquire_u32(&request->control->opening[MAM__HEAP_KINDS]) != 0) {
    mam__pause();
    request->spent += (request->step & MAM__STEP_BUSY) != 0 ? MAM__COST_BUSY : MAM__COST_FREED;
  } else if (mam__stamps_sum(request->control, request->control->superblocks[0]) != request->sum) {
    mam__sleep(6400); /* what comes back is not enough for all */
    request->spent += MAM__COST_CHANGED;
  } else
    return 0;
  return 1;
}

/* Another step of the same pass, or search. */
MAM__INLINE void mam__step_to(struct mam__request *request, mam__u32 step) {
  request->step = (request->step & ~(mam__u32)MAM__STEPS) | step;
}

/* The next step of a pass after its pages were not there.  While other threads open spans of the class, it takes no
 * part of one: their chunks are worth waiting for, and parts would be left all over the heap. */
MAM__INLINE void mam__step_smaller(struct mam__request *request) {
  mam__u32 number = mam__kind_number(mam__request_class(request)), spent = request->spent;
  mam__u32 least = mam__class_least_pages(mam__request_class(request)), pages = mam__step_pages(request);
  if (pages > least && (request->step & MAM__STEP_BUSY) == 0) {
    request->step = (pages / 2 > least ? pages / 2 : least) << MAM__STEP_PAGES | MAM__STEP_PASS | MAM__STEP_OPEN;
    return;
  }
  /* acquire: if a span was opened meanwhile, its stamp has been raised, or the pass could have found it. */
  if (request->sum == 0 /* the pass began during a sweep */ ||
      mam__load_acquire_u32(&request->control->opening[number]) != 0)
    request->step |= MAM__STEP_BUSY;
  if ((request->step & MAM__STEP_BUSY) == 0 || spent % MAM__COST_PASS + MAM__COST_LATE >= MAM__SCARCE_PATIENCE) {
    mam__step_to(request, MAM__STEP_FLUSH);
    request->at = mam__flush_begin(number, spent < 16 * MAM__COST_PASS ? 2u << spent / MAM__COST_PASS : ~0u);
  } else {
    (void)mam__pass_end(request, MAM__FLUSH_BUSY);
    request->step = MAM__STEP_BEGIN;
  }
}

/* The next step after a search that found no pages. */
MAM__INLINE void mam__step_without_pages(struct mam__request *request) {
  if ((request->step & MAM__STEP_PASS) != 0) {
    if (mam__span_is_shared(mam__request_class(request), mam__step_pages(request), mam__request_count(request)))
      mam__opening_end(request->control, mam__request_class(request));
    mam__step_smaller(request);
  } else {
    if ((request->wanted & MAM__REST_WHOLE) == 0)
      mam__request_dry(request);
    request->step = MAM__STEP_BEGIN;
  }
}

/* The step after VAIN, WAIT and SPLIT.  Chunks of spans that were split before come before pages for a request without
 * the task of refilling a slot, or with the task, where the slot is dry or pages are scarce.  They are quicker to have,
 * and more pages become free. */
MAM__INLINE void mam__step_thorough(struct mam__request *request, mam__u32 step) {
  mam__u32 fills = request->wanted & (MAM__REST_REFILL | MAM__REST_WHOLE);
  if (step != MAM__STEP_SPLIT && mam__load_relaxed_u32(&request->control->mode) == MAM__MODE_WATCHED &&
      (fills == 0 || (fills == MAM__REST_REFILL && (request->wanted & MAM__REST_DRY) != 0)))
    request->step = MAM__STEP_SPLIT;
  else if (fills != 0)
    request->step = mam__request_pages(request->wanted, request->slot) << MAM__STEP_PAGES | MAM__STEP_REFILL;
  else
    request->step = MAM__STEP_BEGIN;
}

/* The step after FLUSH and PARKS found nothing, and the step after LARGER. */
MAM__INLINE void mam__step_larger(struct mam__request *request, mam__u32 size_class) {
  mam__u32 *missing = &request->control->missing[mam__kind_number(mam__request_class(request))];
  request->step = size_class << MAM__STEP_PAGES | MAM__STEP_LARGER;
  if (mam__class_serves(size_class, mam__request_class(request)))
    return;
  if (mam__stamps_sum(request->control, request->control->superblocks[0]) == request->sum)
    mam__store_relaxed_u32(missing, request->sum);
  request->step = MAM__STEP_REFUSED;
}

/* Sets the request's next step after one that claimed nothing.  told: what the step said. */
MAM__INLINE void mam__step_next(struct mam__request *request, mam__u32 told) {
  mam__u32 step = request->step & MAM__STEPS;
  if (step < MAM__STEP_SEARCHED)
    return;
  if (step == MAM__STEP_SEARCHED)
    mam__step_without_pages(request);
  else if (step == MAM__STEP_VAIN && told == MAM__REQUEST_VAIN)
    request->step = MAM__STEP_REFUSED;
  else if (step <= MAM__STEP_SPLIT) {
    request->wanted |= step != MAM__STEP_SPLIT ? told : 0;
    if (step == MAM__STEP_VAIN && (request->wanted & (MAM__REST_REFILL | MAM__REST_WHOLE | MAM__REST_DRY)) == 0)
      request->step = MAM__STEP_WAIT;
    else
      mam__step_thorough(request, step);
  } else if (step == MAM__STEP_BEGIN) {
    request->sum = told;
    request->step = told == MAM__PASS_VAIN ? MAM__STEP_REFUSED : MAM__STEP_RECYCLE;
  } else if (step == MAM__STEP_RECYCLE)
    request->step = mam__span_pages(request->control->heap.tuning, mam__request_class(request)) << MAM__STEP_PAGES |
                    MAM__STEP_PASS | MAM__STEP_OPEN;
  else if (told == MAM__PAGES_SEARCH && (step == MAM__STEP_OPEN || step == MAM__STEP_REFILL)) {
    mam__step_to(request, MAM__SEARCH_NEAR);
    request->at = mam__load_acquire_u32(&request->control->active);
  } else if (step == MAM__STEP_OPEN) {
    request->step |= told == MAM__PAGES_OPENING ? MAM__STEP_BUSY : 0;
    mam__step_smaller(request);
  } else if (step == MAM__STEP_FLUSH)
    mam__step_to(request, told != 0 ? MAM__STEP_FLUSH : MAM__STEP_PARKS);
  else if (step == MAM__STEP_LARGER)
    mam__step_larger(request, mam__step_pages(request) + 1);
  else if (mam__pass_end(request, told == 1 ? (mam__u32)MAM__FLUSH_FREED : request->at)) /* PARKS */
    request->step = MAM__STEP_BEGIN;
  else
    mam__step_larger(request, mam__request_class(request) + 1);
  if (request->step == MAM__STEP_BEGIN && request->spent % MAM__COST_PASS >= MAM__SCARCE_PATIENCE)
    request->step = MAM__STEP_REFUSED;
}

/* ---- All steps ---- */

/* Claims chunks for the lanes of a request, from a first step on.  mask 0: there is no room.
 *
 * Each turn does one step.  Each call lies in an `if` of its own, none in another loop, and only the request is kept
 * over calls: see lib/heap/README.md, "Registers and stacks". */
MAM__INLINE struct mam__claim mam__claim_chunks(struct mam__request *request, mam__u32 first) {
  struct mam__claim claim;
  request->step = first;
  request->sum = request->spent = request->at = 0;
  MAM__LOOP
  for (;;) {
    mam__u32 told = MAM__NO_PAGE, step = mam__request_step(request); /* told: what the step says, or a page */
    if (step == MAM__STEP_REFUSED) { /* so that what earlier steps claimed is not kept */
      struct mam__claim none = {0, 0, 0};
      claim = none;
      break;
    }
    if (step == MAM__STEP_VAIN)
      told = MAM__OUT_OF_SIGHT(mam__request_is_vain)(request->control, request->wanted, request->slot);
    step = mam__request_step(request);
    if (step == MAM__STEP_BEGIN)
      told = MAM__OUT_OF_SIGHT(mam__pass_begin)(request->control, mam__request_class(request));
    step = mam__request_step(request);
    if (step == MAM__STEP_REFILL || step == MAM__STEP_OPEN)
      told = MAM__OUT_OF_SIGHT(mam__pages_before)(request->control, request->wanted, request->slot,
                                                  mam__step_pages(request), mam__request_count(request),
                                                  mam__request_pass(request));
    step = mam__request_step(request);
    if (step == MAM__STEP_FLUSH)
      told = (mam__u32)mam__flush_turn(request->control, &request->at);
    step = mam__request_step(request);
    if (step == MAM__STEP_PARKS && (request->at & (MAM__FLUSH_FREED | MAM__FLUSH_BUSY)) == 0)
      told = (mam__u32)MAM__OUT_OF_SIGHT(mam__parks_flush)(request->control);
    step = mam__request_step(request);
    if (step == MAM__STEP_WAIT) {
      claim = MAM__OUT_OF_SIGHT(mam__claim_waited)(request->control, request->wanted, request->slot,
                                                   mam__request_count(request));
      if (claim.mask != 0)
        break;
      told = (mam__u32)claim.address;
    }
    step = mam__request_step(request);
    if (step == MAM__STEP_SPLIT || step == MAM__STEP_RECYCLE || step == MAM__STEP_LARGER) {
      claim = MAM__OUT_OF_SIGHT(mam__recycle_any)(
          request->control, step == MAM__STEP_LARGER ? mam__step_pages(request) : mam__request_class(request),
          mam__request_count(request));
      if (claim.mask != 0)
        break;
    }
    mam__request_forget(request);
    told = mam__search_turn(request->control, mam__step_pages(request), &request->wanted, &request->step, &request->at,
                            told);
    step = mam__request_step(request);
    if (step < MAM__STEP_SEARCHED && told != MAM__NO_PAGE) {
      struct mam__found found = {mam__search_area(request->control, request->at), told};
      claim =
          MAM__OUT_OF_SIGHT(mam__span_begin)(request->control, request->wanted, request->slot, mam__step_pages(request),
                                             mam__request_count(request), request->step & MAM__STEP_PASS, found);
      break;
    }
    mam__step_next(request, told);
  }
  mam__request_forget(request);
  if (claim.mask != 0 && request->step == MAM__STEP_SPLIT && (request->wanted & MAM__REST_REFILL) != 0)
    mam__request_dry(request);
  return claim;
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
