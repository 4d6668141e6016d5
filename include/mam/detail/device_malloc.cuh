/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/device_malloc.cuh - mam_malloc and its kin (mam/device.cuh), for lanes of a warp that ask together.
 *
 * The steps of a request:
 *
 *   1. mam__malloc_kind   The lanes that are here with the same heap and kind form a group.  One atomic addition asks
 * the slot of their warp for a ticket each (heap_slots.h).  Most requests end here.  A group that is large enough for
 * whole spans asks for no tickets.
 *   2. mam__malloc_more   For the lanes without a ticket.  The first lane refills the slot near the home, if the group
 *                        has that task, or waits for the thread that does (heap_refill.h).  If the slot is dry, or
 *                        pages are scarce, each lane claims a chunk of a span that was split before, where that is
 *                        quick (heap_recycle.h).
 *   3. mam__malloc_rest   The first lane of the group does all there is to do for it (heap_scarce.h), and the heap may
 *                        grow meanwhile (heap_grow.h).  A round may serve a part of the group.
 *
 * A request of whole pages goes to mam__malloc_pages instead.
 *
 * Step 1 and 2 are part of the kernel.  Step 3 is a function out of line, so that kernels do not pay for its registers.
 * What steps keep while they call is little; they compute the rest anew, which they force by MAM__FORGET and empty asm.
 * The lanes of a group all come to each exchange: see "Lanes that act together" in atomics.h.
 */
#ifndef MAM_DETAIL_DEVICE_MALLOC_CUH
#define MAM_DETAIL_DEVICE_MALLOC_CUH

#include <mam/detail/heap_core.h>
#include <mam/detail/heap_grow.h>

/* The home of the calling warp, and the number of its slot in each kind. */
MAM__INLINE mam__u32 mam__home_here(const mam_device_heap &heap) {
  mam__u32 last = mam__tuned_home_last(heap.tuning), multiprocessor = mam__multiprocessor();
  return (multiprocessor < last ? multiprocessor : last) >> mam__tuned_home_shift(heap.tuning);
}
MAM__INLINE mam__u32 mam__slot_here(const mam_device_heap &heap, mam__u32 home) {
  mam__u32 warp = mam__warp_number(), bits = mam__tuned_warp_bits(heap.tuning);
  return home << bits | (warp & ((1u << bits) - 1));
}

MAM__INLINE mam__u32 mam__wanted(const mam_device_heap &heap, mam__u32 kind, mam__u32 home) {
  return kind | home << MAM__REST_HOME |
         (mam__tuned_lazy(heap.tuning) && mam__kind_type(kind) == 0 ? MAM__REST_LAZY : 0);
}

/* For count requests for chunks that were refused: whether they are made again, as mam__growth_await. */
MAM__OUTLINE mam__plea mam__malloc_refused(struct mam__heap_control *control, mam__u32 wanted, mam__u32 count,
                                           mam__plea plea) {
  mam__u32 pages = mam__span_pages(control->heap.tuning, wanted & MAM__REST_KIND);
  plea = MAM__OUT_OF_SIGHT(mam__growth_await)(&control->growth, pages, plea);
  if (plea == 0)
    mam__failed(control, wanted >> MAM__REST_HOME & 1023, count);
  return plea;
}

/* Serves lanes that got no chunk so far by all means, growth included.  The loop stands here, and not around the code
 * that each kernel has, where it would keep twice the registers.  The first lane acts for the group, and the whole
 * group comes to each exchange.  Lanes that got a chunk leave the group between two rounds. */
MAM__OUTLINE void *mam__malloc_rest(struct mam__heap_control *control, mam__u32 wanted, mam__u32 slot, mam__u32 group) {
  struct mam__request request = {control, wanted, slot, group, 0, 0, 0, 0};
  mam__plea plea = 0;
  mam__u32 got;
  void *block;
  if (control == 0)
    return 0;
  do {
    mam__request_forget_lanes(&request);
    if ((request.wanted & MAM__REST_WHOLE) != 0)
      request.slot =
          mam__whole_rest(&request.wanted, request.slot, request.control->heap.tuning, mam__request_count(&request));
    /* The first lane alone has steps to take.  If it claims nothing, the address becomes the group's plea. */
    struct mam__claim claim = mam__claim_chunks(&request, mam__is_first(request.group) ? (mam__u32)MAM__STEP_VAIN
                                                                                       : (mam__u32)MAM__STEP_REFUSED);
    mam__request_forget_lanes(&request);
    if (claim.mask == 0 && mam__is_first(request.group))
      claim.address =
          MAM__OUT_OF_SIGHT(mam__malloc_refused)(request.control, request.wanted, mam__request_count(&request), plea);
    request.wanted &= ~(mam__u32)(MAM__REST_REFILL | MAM__REST_DRY); /* in the next round the slot may be another */
    mam__request_forget_lanes(&request);
    if ((request.group & (request.group - 1)) != 0) { /* groups take turns in an exchange, and most are of one lane */
      claim.mask = mam__mask_first_u32(request.group, claim.mask);
      claim.address = mam__mask_first_u64(request.group, claim.address);
      claim.chunk_bytes = mam__mask_first_u32(request.group, claim.chunk_bytes);
    }
    mam__request_forget_lanes(&request);
    mam__u32 rank = mam__ones_u32(request.group & mam__lane_below());
    got = mam__ones_u32(claim.mask);
    block = rank < got ? (void *)mam__claim_chunk(claim, rank) : 0;
    plea = got != 0 ? 0 : claim.address;
    request.group &= ~mam__lowest_ones(request.group, got);
  } while (block == 0 && (got != 0 || plea != 0));
  return block;
}

/* Serves requests of whole pages, or of nothing. */
MAM__OUTLINE void *mam__malloc_pages(mam__u32 home, struct mam__heap_control *control, size_t bytes) {
  mam__plea plea = 0;
  while (control != 0 && bytes != 0) {
    void *block = (void *)MAM__OUT_OF_SIGHT(mam__run_malloc)(control, bytes, home);
    if (block != 0)
      return block;
    MAM__FORGET_ADDRESS(bytes); /* what is computed from it is not kept over the calls */
    mam__u64 pages = ((mam__u64)bytes + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT;
    /* 0 pages: the bytes were rounded past the end of the numbers */
    plea = pages - 1 < MAM__NO_PAGE - 1 ? MAM__OUT_OF_SIGHT(mam__growth_await)(&control->growth, (mam__u32)pages, plea)
                                        : 0;
    if (plea == 0) {
      mam__failed(control, home, 1);
      break;
    }
  }
  return 0;
}

/* The address of a chunk, by its number in a span. */
MAM__INLINE void *mam__chunk_of(mam__u64 address, mam__u32 number, mam__u32 size_class) {
  mam__u32 shift = mam__class_shift(size_class);
  return (void *)(address + ((mam__u64)(number * mam__class_multiple(size_class, shift)) << (shift + 4)));
}

/* The lanes that got no ticket, of a group that asked together.  ticket: the first lane's.  limit: the slot's number of
 * chunks.  All lanes compute the same. */
MAM__INLINE mam__u32 mam__lanes_without(mam__u32 group, mam__u32 ticket, mam__u32 limit) {
  return ticket >= limit ? group : group & ~mam__lowest_ones(group, limit - ticket);
}

/* The compiler does not keep what this returns. */
MAM__INLINE mam__u32 mam__slot_chunks(mam__u32 wanted, mam__u32 slot) {
  return (1 + mam__request_zero(wanted)) << (slot >> MAM__REST_CHUNKS);
}

/* Serves lanes of a group of which none has a ticket.  What it keeps over a call, each frame of a recursive function
 * keeps.  So it keeps `wanted`, `slot`, `prior`, the group and a slot's word, and computes the rest anew.  ptxas keeps
 * a register, too, for each place where lanes meet again.  So no call lies in two `if`s, and the loop has one exit.
 *
 * If the slot is dry or pages are scarce, each lane claims a chunk for itself.  Lanes that found none form a group
 * again: those that come to the match together, and all of them go on to mam__malloc_rest. */
MAM__INLINE void *mam__malloc_more(const mam_device_heap &heap, mam__u32 wanted, mam__u32 slot, mam__u32 prior,
                                   mam__u32 group) {
  const mam__u32 fills = MAM__REST_WHOLE | MAM__REST_REFILL, again = MAM__REST_LAZY | MAM__REST_REFILL;
  void *block = 0;
  mam__u32 goes_on;
  MAM__LOOP
  do {
    mam__u64 old = 0;
    /* Refills come first: a lane of this warp that waits for a refill may wait for one of another warp, whose lanes
     * wait for this one.  The first lane goes by its number: the mask of mam__is_first would be kept over calls, since
     * the rank needs it. */
    int has_span = (wanted & (again | MAM__REST_DRY)) == again && prior != MAM__NO_PAGE &&
                   mam__lane_number() == mam__lowest_u32(group);
#if __CUDA_ARCH__ < 800 /* as parts of the kernel these steps would cost a register too many there */
    if (has_span)
      old = MAM__OUT_OF_SIGHT(mam__slot_again_apart)(heap.control, wanted, slot, prior, mam__ones_u32(group));
#else
    if (has_span) {
      mam__u32 page = MAM__OUT_OF_SIGHT(mam__ring_take)(heap.control, mam__area_anew(&heap, wanted).words,
                                                        heap.page_count, wanted, slot, prior);
      MAM__FORGET(wanted);
      old = page != MAM__NO_PAGE ? mam__slot_again(&heap, slot, page, mam__ones_u32(group)) : mam__request_zero(wanted);
    }
#endif
    MAM__FORGET_THREE(wanted, slot, group);
    if ((wanted & fills) != 0 && (wanted & MAM__REST_DRY) == 0 && old == 0 && mam__is_first(group))
      old = MAM__OUT_OF_SIGHT(mam__slot_anew)(heap.control, heap.base, heap.page_count, wanted, slot,
                                              mam__ones_u32(group));
    MAM__FORGET_THREE(wanted, slot, group);
    if ((old & MAM__RENEWED) != 0)
      old = MAM__OUT_OF_SIGHT(mam__slot_renewed)(heap.control, wanted, slot, prior, old);
    MAM__FORGET_THREE(wanted, slot, group);
    old |= mam__is_renewed(old) ? 0 : MAM__SLOT_TICKETS;
    if ((wanted & MAM__REST_WAITS) != 0 && mam__lane_number() == mam__lowest_u32(group))
      old = MAM__OUT_OF_SIGHT(mam__slot_wait)(mam__slot_at(heap.control, slot & MAM__REST_SLOT),
                                              mam__slot_chunks(wanted, slot), mam__ones_u32(group));
    MAM__FORGET_THREE(wanted, slot, group);
    old = mam__mask_first_u64(group, old); /* all of the group: no lane has left it */
    mam__u32 rank = mam__ones_u32(group & mam__lane_below());
    mam__u32 ticket = (mam__u32)(old & MAM__SLOT_TICKETS), limit = mam__slot_chunks(wanted, slot);
    group = mam__lanes_without(group, ticket, limit);
    if (ticket + rank < limit)
      block = mam__chunk_of(mam__slot_address(old), ticket + rank, wanted & MAM__REST_KIND);
    if ((wanted & MAM__REST_WAITS) != 0) {
      wanted = (wanted & ~(mam__u32)MAM__REST_WAITS) | mam__slot_rest(old, limit);
      prior = mam__area_slot_page(mam__area_anew(&heap, wanted), old);
      goes_on = wanted & MAM__REST_REFILL;
    } else {
      wanted &= ticket < limit ? ~(mam__u32)MAM__REST_REFILL : ~0u;
      goes_on = 0;
    }
    wanted |= mam__slot_is_dry(old) ? MAM__REST_DRY : 0;
  } while (block == 0 && goes_on != 0 && (wanted & MAM__REST_DRY) == 0);
  MAM__FORGET_THREE(wanted, slot, group);
  if (block != 0)
    return block;
  mam__u64 chunk = 0;
  if ((wanted & MAM__REST_DRY) != 0)
    chunk = MAM__OUT_OF_SIGHT(mam__chunk_claim)(mam__area_anew(&heap, wanted).words, heap.page_count,
                                                wanted & MAM__REST_KIND,
                                                slot >> MAM__REST_CHUNKS > 5 ? mam__slot_chunks(wanted, slot) >> 5 : 1);
  if ((chunk & MAM__CHUNK_OTHER) != 0)
    chunk = MAM__OUT_OF_SIGHT(mam__chunk_return)(mam__area_anew(&heap, wanted).words, heap.page_count, chunk);
  MAM__FORGET_THREE(wanted, slot, group);
  if (chunk != 0) {
    if (mam__is_first(group) && (wanted & MAM__REST_REFILL) != 0) /* leaves the task to the next request */
      (void)mam__exchange_release_u64(mam__slot_at(heap.control, slot & MAM__REST_SLOT),
                                      MAM__SLOT_DRY | mam__slot_chunks(wanted, slot));
    mam__u32 page = (mam__u32)(chunk >> 8);
    return mam__chunk_of(mam__area_address(mam__area_anew(&heap, wanted), page), (mam__u32)chunk & 255,
                         wanted & MAM__REST_KIND);
  }
  if ((wanted & MAM__REST_DRY) != 0) {
    wanted &= mam__is_first(group) ? ~0u : ~(mam__u32)MAM__REST_REFILL;
    /* A slot's word tells the heap and the kind.  What else there is in the request words is alike. */
    group = mam__mask_alike_u64((mam__u64)mam__slot_at(heap.control, slot & MAM__REST_SLOT) |
                                ((wanted & MAM__REST_REFILL) != 0));
  }
  return MAM__OUT_OF_SIGHT(mam__malloc_rest)(heap.control, wanted, slot, group);
}

/* Allocates a chunk of a kind, whose number, shift and multiple are given. */
MAM__INLINE void *mam__malloc_kind(const mam_device_heap &heap, mam__u32 home, mam__u32 kind, mam__u32 number,
                                   mam__u32 shift, mam__u32 multiple) {
  mam__u32 chunks_log2 = mam__span_chunks_log2(heap.tuning, shift);
  mam__u32 slot = number * heap.slot_count + mam__slot_here(heap, home);
  mam__u32 wish = kind | (mam__u32)heap.number << 16; /* a match of 64 bits takes longer */
  mam__u32 here = __activemask(), group = __match_any_sync(here, wish), count = mam__ones_u32(group);
  mam__u32 rank = mam__ones_u32(group & mam__lane_below());
  /* A group that is large enough for whole spans asks for no tickets. */
  mam__u64 old = MAM__SLOT_TICKETS;
  int few = count >> chunks_log2 == 0;
  if (few && rank == 0) /* acquire: as in mam__slot_take; this addition is the part that every kernel has */
    old = mam__add_acquire_u64(mam__slot_at(heap.control, slot), count);
  /* All lanes that were here come to this exchange, whatever their group.  Groups by themselves would take turns. */
  old = mam__mask_one_u64(here, old, mam__lowest_u32(group));
  mam__u32 ticket = (mam__u32)(old & MAM__SLOT_TICKETS), mine = ticket + rank;
  if (mine >> chunks_log2 == 0)
    return (void *)(mam__slot_address(old) + ((mam__u64)(mine * multiple) << (shift + 4)));
  mam__u32 wanted = mam__wanted(heap, kind, home);
  if (few) {
    mam__u32 rest = mam__slot_rest(old, 1u << chunks_log2);
    wanted |= rest != 0 ? rest : (mam__u32)MAM__REST_WAITS;
  } else if (heap.control != 0) /* a handle of no heap has nothing to do: its bytes are 0, so no group is few */
    wanted |= MAM__REST_WHOLE;
  chunks_log2 = few ? chunks_log2 : mam__whole_chunks_log2(count, shift, chunks_log2);
  mam__u32 prior = mam__heap_page(&heap, old);
  group = mam__lanes_without(mam__mask_of(group), ticket, 1u << chunks_log2); /* so ptxas keeps fewer registers */
  return mam__malloc_more(heap, wanted, slot | chunks_log2 << MAM__REST_CHUNKS, prior, group);
}

/* Whether a request gets a chunk of a span.  Others are for whole pages, or for nothing. */
MAM__INLINE int mam__is_chunk(size_t bytes) { return bytes - 1 < MAM__CHUNK_BYTES; }

/* Serves a request for which mam__is_chunk holds.  The handle stays where it is: what steps need of it, they load anew.
 */
MAM__INLINE void *mam__malloc_chunk(const mam_device_heap &heap, mam__u32 home, size_t bytes) {
  mam__u32 less = (mam__u32)(bytes - 1) >> 4, shift = mam__class_shift_of(less), multiple = (less >> shift) + 1;
  mam__u32 size_class = 4 * shift + multiple - 1;
  return mam__malloc_kind(heap, home, size_class, size_class, shift, multiple);
}

MAM__INLINE void *mam__malloc(const mam_device_heap &heap, size_t bytes) {
  mam__u32 home = mam__home_here(heap);
  if (!mam__is_chunk(bytes))
    return MAM__OUT_OF_SIGHT(mam__malloc_pages)(home, heap.control, bytes);
  return mam__malloc_chunk(heap, home, bytes);
}

MAM__INLINE void *mam_malloc(mam_device_heap heap, size_t bytes) { return mam__malloc(heap, bytes); }

MAM__INLINE void *mam_malloc_typed(mam_device_heap heap, mam_type type) {
  mam__u32 kind = mam__type_kind(type), shift = mam__class_shift(kind);
  if (!mam__is_type(&heap, type))
    return 0;
  return mam__malloc_kind(heap, mam__home_here(heap), kind, mam__kind_number(kind), shift,
                          mam__class_multiple(kind, shift));
}

MAM__INLINE void *mam_malloc_why(mam_device_heap heap, size_t bytes, mam_heap_status *why) {
  void *block = mam_malloc(heap, bytes);
  *why = block != 0                                                ? MAM_HEAP_OK
         : heap.control == 0                                       ? MAM_HEAP_BAD
         : bytes == 0                                              ? MAM_HEAP_ZERO
         : MAM__OUT_OF_SIGHT(mam__heap_could)(heap.control, bytes) ? MAM_HEAP_FULL
                                                                   : MAM_HEAP_TOO_LARGE;
  return block;
}

#endif /* MAM_DETAIL_DEVICE_MALLOC_CUH */
