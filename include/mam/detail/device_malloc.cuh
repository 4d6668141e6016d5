/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/device_malloc.cuh - mam_malloc and its kin (mam/device.cuh), for lanes of a warp that ask together.
 *
 * The steps of a request:
 *
 *   1. mam_malloc_kind   The lanes that are here with the same kind form a group.  One atomic addition asks the slot of
 *                        their warp for a ticket each (heap_slots.h).  Most requests end here.  A group that is large
 *                        enough for whole spans asks for no tickets.
 *   2. mam_malloc_more   For the lanes without a ticket: wait for the thread that refills the slot, or refill the slot
 *                        with a span in the home, if the group has that task (heap_refill.h).
 *   3. mam_malloc_rest   The first lane of the group does all there is to do for it (heap_scarce.h), and the heap may
 *                        grow meanwhile (heap_grow.h).  A round may serve a part of the group.
 *
 * A request of whole pages goes to mam_malloc_pages instead.
 *
 * Step 1 and 2 are part of the kernel.  Step 3 is a function out of line, so that kernels do not pay for its registers.
 * What steps keep while they call is little; they compute the rest anew, which they force by MAM_FORGET and empty asm.
 * The lanes of a group all come to each exchange: see "Lanes that act together" in atomics.h.
 */
#ifndef MAM_DETAIL_DEVICE_MALLOC_CUH
#define MAM_DETAIL_DEVICE_MALLOC_CUH

#include <mam/detail/heap_core.h>
#include <mam/detail/heap_grow.h>

/* The home of the calling warp, and the number of its slot in each kind. */
MAM_INLINE mam_u32 mam_home_here(const mam_heap &heap) {
  mam_u32 multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  return (multiprocessor < heap.home_last ? multiprocessor : heap.home_last) >> heap.home_shift;
}
MAM_INLINE mam_u32 mam_slot_here(const mam_heap &heap, mam_u32 home) {
  mam_u32 warp;
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  return home << heap.warp_bits | (warp & ((1u << heap.warp_bits) - 1));
}

/* A page with this flag begins a span that a slot has got again, and the slot is filled already. */
enum { MAM_REST_AGAIN = 1u << 31 };

MAM_INLINE mam_u32 mam_wanted(const mam_heap &heap, mam_u32 kind, mam_u32 home) {
  return kind | home << MAM_REST_HOME | (heap.lazy && mam_kind_type(kind) == 0 ? MAM_REST_LAZY : 0);
}

/* For count requests for chunks that were refused: whether they are made again, as mam_growth_await. */
MAM_OUTLINE mam_plea mam_malloc_refused(struct mam_heap_control *control, mam_u32 wanted, mam_u32 count,
                                        mam_plea plea) {
  mam_u32 pages = mam_span_pages(control->heap.chunks, wanted & MAM_REST_KIND);
  plea = MAM_OUT_OF_SIGHT(mam_growth_await)(&control->growth, pages, plea);
  if (plea == 0)
    mam_failed(control, wanted >> MAM_REST_HOME & 1023, count);
  return plea;
}

/* Serves lanes that got no chunk so far by all means, growth included.  The loop stands here, and not around the code
 * that each kernel has, where it would keep twice the registers.  The first lane acts for the group, and the whole
 * group comes to each exchange.  Lanes that got a chunk leave the group between two rounds. */
MAM_OUTLINE void *mam_malloc_rest(struct mam_heap_control *control, mam_u32 wanted, mam_u32 slot, mam_u32 group) {
  mam_plea plea = 0;
  if (control == 0)
    return 0;
  for (;;) {
    struct mam_claim claim = {0, 0, 0};
    MAM_FORGET(group); /* what is computed from it is not kept over the first lane's calls */
    if (mam_ones_u32(group) >> (slot >> MAM_REST_CHUNKS) == 0) /* too few for a whole span */
      wanted &= ~(mam_u32)MAM_REST_WHOLE;
    if ((group & mam_lane_below()) == 0) {
      claim = mam_claim_chunks(control, wanted, slot, mam_ones_u32(group));
      MAM_FORGET(group);
      plea = claim.mask != 0 ? 0 : MAM_OUT_OF_SIGHT(mam_malloc_refused)(control, wanted, mam_ones_u32(group), plea);
    }
    wanted &= ~(mam_u32)MAM_REST_REFILL;
    MAM_FORGET(group);
    struct mam_lanes lanes = mam_lanes_of(group);
    claim.mask = mam_lanes_first_u32(lanes, claim.mask);
    claim.address = mam_lanes_first_u64(lanes, claim.mask != 0 ? claim.address : plea);
    claim.chunk_bytes = mam_lanes_first_u32(lanes, claim.chunk_bytes);
    mam_u32 got = mam_ones_u32(claim.mask);
    if (lanes.rank < got)
      return (void *)mam_claim_chunk(claim, lanes.rank);
    if (got == 0 && claim.address == 0)
      return 0;
    group &= ~mam_lowest_ones(group, got);
  }
}

/* Serves requests of whole pages, or of nothing. */
MAM_OUTLINE void *mam_malloc_pages(mam_u32 home, struct mam_heap_control *control, size_t bytes) {
  mam_plea plea = 0;
  if (control == 0 || bytes == 0)
    return 0;
  for (;;) {
    void *block = (void *)MAM_OUT_OF_SIGHT(mam_run_malloc)(control, bytes, home);
    mam_u64 pages = ((mam_u64)bytes + MAM_PAGE_BYTES - 1) >> MAM_PAGE_SHIFT;
    if (block != 0)
      return block;
    plea = pages < MAM_NO_PAGE ? MAM_OUT_OF_SIGHT(mam_growth_await)(&control->growth, (mam_u32)pages, plea) : 0;
    if (plea == 0) {
      mam_failed(control, home, 1);
      return 0;
    }
  }
}

/* The address of a chunk, by its number in a span. */
MAM_INLINE void *mam_chunk_of(mam_u64 address, mam_u32 number, mam_u32 size_class) {
  mam_u32 shift = mam_class_shift(size_class);
  return (void *)(address + ((mam_u64)(number * mam_class_multiple(size_class, shift)) << (shift + 4)));
}

/* The lanes that got no ticket, of a group that asked together.  ticket: the first lane's.  limit: the slot's number of
 * chunks.  All lanes compute the same. */
MAM_INLINE mam_u32 mam_lanes_without(mam_u32 group, mam_u32 ticket, mam_u32 limit) {
  return ticket >= limit ? group : group & ~mam_lowest_ones(group, limit - ticket);
}

/* Serves lanes of a group of which none has a ticket.  It keeps little over its calls: the rest it computes anew from
 * the kind, which it hides from the compiler for that purpose. */
MAM_INLINE void *mam_malloc_more(const mam_heap &heap, mam_u32 wanted, mam_u32 slot, mam_u32 prior, mam_u32 group) {
  mam_u32 rank;
  if ((wanted & (MAM_REST_WHOLE | MAM_REST_REFILL | MAM_REST_DRY)) == 0) {
    mam_u64 old = 0;
    if ((group & mam_lane_below()) == 0)
      old = MAM_OUT_OF_SIGHT(mam_slot_wait)(&heap.slots[slot & MAM_REST_SLOT], 1u << (slot >> MAM_REST_CHUNKS),
                                            mam_ones_u32(group));
    asm volatile("" : "+r"(wanted), "+r"(slot), "+r"(group));
    old = mam_mask_first_u64(group, old); /* all of the group: no lane has left it */
    rank = mam_ones_u32(group & mam_lane_below());
    mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS), limit = 1u << (slot >> MAM_REST_CHUNKS);
    group = mam_lanes_without(group, ticket, limit);
    if (ticket + rank < limit)
      return mam_chunk_of(mam_slot_address(old), ticket + rank, wanted & MAM_REST_KIND);
    wanted |= ticket <= limit ? MAM_REST_REFILL : 0;
    prior = mam_slot_page(old, heap.base, heap.page_count);
  }
  if ((wanted & (MAM_REST_WHOLE | MAM_REST_REFILL)) != 0 && (wanted & MAM_REST_DRY) == 0 && heap.control != 0) {
    mam_u32 page = MAM_NO_PAGE;
    if ((group & mam_lane_below()) == 0) {
      struct mam_request request = mam_request_of(&heap, wanted, slot, prior);
      struct mam_area area = request.area;
      if ((wanted & MAM_REST_REFILL) != 0)
        mam_held_set(&request);
      if ((wanted & MAM_REST_LAZY) != 0 && (wanted & MAM_REST_REFILL) != 0 && prior != MAM_NO_PAGE)
        page = MAM_REST_AGAIN |
               mam_slot_retake(&request,
                               MAM_OUT_OF_SIGHT(mam_ring_take)(area.words, heap.entries + area.page_count,
                                                               area.page_count, prior, wanted & MAM_REST_KIND,
                                                               request.chunks_log2, request.home, request.home_count),
                               mam_ones_u32(group));
      if (page == MAM_NO_PAGE)
        page = MAM_OUT_OF_SIGHT(mam_refill_pages)(
            &mam_cursors(heap.control)[request.home], area.words, area.page_count, request.home, request.home_count,
            (mam_class_bytes(wanted & MAM_REST_KIND) << (slot >> MAM_REST_CHUNKS)) >> MAM_PAGE_SHIFT);
    }
    asm volatile("" : "+r"(wanted), "+r"(slot), "+r"(group), "+r"(prior));
    page = mam_mask_first_u32(group, page); /* all of the group, without the lanes that the wait above has served */
    if (page != MAM_NO_PAGE) {
      struct mam_request request = mam_request_of(&heap, wanted, slot, prior);
      struct mam_lanes lanes = mam_lanes_of(group);
      mam_u32 got = lanes.count;
      if ((page & MAM_REST_AGAIN) == 0)
        got = mam_slot_fill(&request, request.area, page, lanes.count, lanes);
      page &= MAM_REFILL_PAGE;
      group &= ~mam_lowest_ones(group, got);
      if (lanes.rank < got)
        return mam_chunk_of(mam_area_address(request.area, page), lanes.rank, wanted & MAM_REST_KIND);
      wanted &= ~(mam_u32)MAM_REST_REFILL;
    }
  }
  return MAM_OUT_OF_SIGHT(mam_malloc_rest)(heap.control, wanted, slot, group);
}

/* Allocates a chunk of a kind, whose number, shift and multiple are given. */
MAM_INLINE void *mam_malloc_kind(const mam_heap &heap, mam_u32 home, mam_u32 kind, mam_u32 number, mam_u32 shift,
                                 mam_u32 multiple) {
  mam_u32 chunks_log2 = mam_span_chunks_log2(heap.chunks, shift);
  mam_u32 slot = number * heap.slot_count + mam_slot_here(heap, home);
  mam_u32 here = __activemask(), group = __match_any_sync(here, kind), count = mam_ones_u32(group);
  mam_u32 rank = mam_ones_u32(group & mam_lane_below());
  /* A group that is large enough for whole spans asks for no tickets. */
  mam_u64 old = MAM_SLOT_TICKETS;
  int few = count >> chunks_log2 == 0;
  if (few && rank == 0) /* acquire: as in mam_slot_take; this addition is the part that every kernel has */
    old = mam_add_acquire_u64(&heap.slots[slot], count);
  /* All lanes that were here come to this exchange, whatever their group.  Groups by themselves would take turns. */
  here = mam_mask_of(here);
  __syncwarp(here); /* what a group's first lane acquired comes before what the others do with their chunks */
  old = __shfl_sync(here, old, (int)mam_lowest_u32(group));
  mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS), mine = ticket + rank;
  if (mine >> chunks_log2 == 0)
    return (void *)(mam_slot_address(old) + ((mam_u64)(mine * multiple) << (shift + 4)));
  mam_u32 wanted = mam_wanted(heap, kind, home);
  wanted |= !few ? MAM_REST_WHOLE
                 : (ticket <= 1u << chunks_log2 ? MAM_REST_REFILL : 0) | (mam_slot_is_dry(old) ? MAM_REST_DRY : 0);
  mam_u32 prior = mam_slot_page(old, heap.base, heap.page_count);
  group = mam_lanes_without(mam_mask_of(group), ticket, 1u << chunks_log2);
  return mam_malloc_more(heap, wanted, slot | chunks_log2 << MAM_REST_CHUNKS, prior, group);
}

static __device__ __forceinline__ void *mam_malloc(mam_heap heap, size_t bytes) {
  mam_u32 home = mam_home_here(heap);
  if (bytes - 1 >= MAM_CHUNK_BYTES)
    return MAM_OUT_OF_SIGHT(mam_malloc_pages)(home, heap.control, bytes);
  mam_u32 less = (mam_u32)(bytes - 1) >> 4, shift = mam_class_shift_of(less), multiple = (less >> shift) + 1;
  mam_u32 size_class = 4 * shift + multiple - 1;
  return mam_malloc_kind(heap, home, size_class, size_class, shift, multiple);
}

static __device__ __forceinline__ void *mam_malloc_typed(mam_heap heap, mam_type type) {
  mam_u32 shift = mam_class_shift(type);
  if (mam_kind_type(type) == 0)
    return 0;
  return mam_malloc_kind(heap, mam_home_here(heap), type, mam_kind_number(type), shift,
                         mam_class_multiple(type, shift));
}

static __device__ __forceinline__ void *mam_malloc_why(mam_heap heap, size_t bytes, mam_heap_status *why) {
  void *block = mam_malloc(heap, bytes);
  *why = block != 0                                              ? MAM_HEAP_OK
         : heap.control == 0                                     ? MAM_HEAP_BAD
         : bytes == 0                                            ? MAM_HEAP_ZERO
         : MAM_OUT_OF_SIGHT(mam_heap_could)(heap.control, bytes) ? MAM_HEAP_FULL
                                                                 : MAM_HEAP_TOO_LARGE;
  return block;
}

#endif /* MAM_DETAIL_DEVICE_MALLOC_CUH */
