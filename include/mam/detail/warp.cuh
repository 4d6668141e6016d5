/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/warp.cuh - the functions of mam/warp.cuh: lanes of a warp that act together on a header (warp_core.h).
 *
 * Lanes that call together with the same header form a group.  What a call costs depends on how many there are:
 *
 *   mam_warp_malloc_whole   a whole warp, alone with its header: reads and writes it plainly
 *   (in mam_warp_malloc)    one lane, alone with its header: the same
 *   mam_warp_malloc_part    all lanes that take part, equal requests: the same
 *   mam_warp_malloc_rest    lanes that come in parts: atomic operations
 *
 * Each of them goes to the device heap when the header's superblock has no room: mam_warp_refill_alone,
 * mam_warp_serve, mam_warp_malloc_large.
 */
#ifndef MAM_DETAIL_WARP_CUH
#define MAM_DETAIL_WARP_CUH

#include <mam/detail/device_free.cuh>
#include <mam/detail/device_malloc.cuh>
#include <mam/detail/warp_core.h>

/* The number of the warp in its grid, for checks. */
MAM_INLINE mam_u64 mam_warp_self(void) {
  mam_u64 block = ((mam_u64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  mam_u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  return block << 6 | thread >> 5;
}
MAM_INLINE mam_u32 mam_warp_lane(void) {
  mam_u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/* Both serve a lane that alone has to refill a slot, if that is quick: the first with a span that the slot had before,
 * the second with a span in new pages of the home.  Each returns the address of the span, whose first chunk is the
 * lane's; 0 if it had none. */
MAM_OUTLINE mam_u64 mam_warp_slot_again(mam_u32 wanted, mam_u32 slot, mam_u32 prior, struct mam_heap_control *control) {
  struct mam_request request = mam_request_of(&control->heap, wanted, slot, prior);
  struct mam_area area = request.area;
  if (!request.lazy || prior == MAM_NO_PAGE)
    return 0;
  mam_held_set(&request);
  mam_u64 taken =
      MAM_OUT_OF_SIGHT(mam_ring_take)(area.words, control->heap.entries + area.page_count, area.page_count, prior,
                                      request.size_class, request.chunks_log2, request.home, request.home_count);
  mam_u32 page = mam_slot_retake(&request, taken, 1);
  return page != MAM_NO_PAGE ? mam_area_address(area, page) : 0;
}
MAM_OUTLINE mam_u64 mam_warp_slot_anew(MAM_TAG(1) mam_u32 wanted, mam_u32 slot, mam_u32 prior,
                                       struct mam_heap_control *control) {
  struct mam_request request = mam_request_of(&control->heap, wanted, slot, prior);
  struct mam_area area = request.area;
  mam_u32 pages = (mam_class_bytes(request.size_class) << request.chunks_log2) >> MAM_PAGE_SHIFT;
  mam_held_set(&request);
  mam_u32 page = MAM_OUT_OF_SIGHT(mam_refill_pages)(&mam_cursors(control)[request.home], area.words, area.page_count,
                                                    request.home, request.home_count, pages);
  if (page == MAM_NO_PAGE)
    return 0;
  (void)mam_slot_fill(&request, area, page, 1, mam_lanes_alone());
  return mam_area_address(area, page & MAM_REFILL_PAGE);
}

/* mam_malloc for a lane that acts alone, with the handle in the control block. */
MAM_OUTLINE mam_u64 mam_warp_block_malloc(mam_u32, mam_u32, struct mam_heap_control *control, mam_u64 bytes) {
  const mam_heap &heap = control->heap;
  mam_u32 home = mam_home_here(heap), kind = mam_class_of((mam_u32)bytes);
  if (bytes - 1 >= MAM_CHUNK_BYTES)
    return (mam_u64)MAM_OUT_OF_SIGHT(mam_malloc_pages)(home, control, bytes);
  mam_u32 slot = kind * heap.slot_count + mam_slot_here(heap, home), wanted = mam_wanted(heap, kind, home);
  mam_u32 chunks_log2 = mam_span_chunks_log2(heap.chunks, mam_class_shift(kind));
  mam_u64 old = mam_slot_take(&heap.slots[slot], 1);
  mam_u32 ticket = (mam_u32)(old & MAM_SLOT_TICKETS);
  if (ticket >> chunks_log2 == 0)
    return (mam_u64)mam_chunk_of(mam_slot_address(old), ticket, kind);
  wanted |= ticket == 1u << chunks_log2 ? MAM_REST_REFILL : 0;
  slot |= chunks_log2 << MAM_REST_CHUNKS;
  mam_u32 prior = mam_slot_page(old, heap.base, heap.page_count);
  mam_u64 address = 0;
  if ((wanted & MAM_REST_REFILL) != 0 && !mam_slot_is_dry(old))
    address = MAM_OUT_OF_SIGHT(mam_warp_slot_again)(wanted, slot, prior, control);
  if ((wanted & MAM_REST_REFILL) != 0 && !mam_slot_is_dry(old) && address == 0)
    address = MAM_OUT_OF_SIGHT(mam_warp_slot_anew)(wanted, slot, prior, control);
  return address != 0 ? address : (mam_u64)MAM_OUT_OF_SIGHT(mam_malloc_rest)(control, wanted, slot, mam_mask_of(0));
}
MAM_OUTLINE void mam_warp_block_free(mam_u32, struct mam_heap_control *control, mam_u64 address) {
  mam_free(control->heap, (void *)address);
}
MAM_INLINE mam_u64 mam_warp_heap_malloc(struct mam_heap_control *control, mam_u64 bytes) {
  return MAM_OUT_OF_SIGHT(mam_warp_block_malloc)(0, 0, control, bytes);
}
MAM_INLINE void mam_warp_heap_free(struct mam_heap_control *control, mam_u64 address) {
  MAM_OUT_OF_SIGHT(mam_warp_block_free)(0, control, address);
}

/* Whether the header is one and is this warp's, and this lane takes part, as far as calls are checked. */
MAM_INLINE bool mam_warp_seems_sound(const mam_warp *warp) {
  if (warp == 0 || !MAM_HEAP_CHECKED)
    return warp != 0;
  return mam_warp_is(warp) && mam_load_relaxed_u64(&warp->owner) == mam_warp_self() &&
         (mam_warp_taking_part(mam_load_relaxed_u64(&warp->lanes)) >> mam_warp_lane() & 1) != 0;
}
/* The same; counts a header that is not sound. */
MAM_INLINE bool mam_warp_sound(const mam_warp *warp) {
  bool is_sound = mam_warp_seems_sound(warp);
  if (!is_sound && warp != 0 && mam_warp_is(warp))
    (void)mam_add_relaxed_u64(&warp->control->refused_free, 1);
  return is_sound;
}

/* ---- Starting ---- */

/* Whether the options are those that all headers in parks have. */
MAM_INLINE bool mam_warp_is_usual(mam_warp_options options) {
  const mam_warp_options usual = MAM_WARP_OPTIONS_INIT;
  return options.superblock_bytes == usual.superblock_bytes && options.first_bytes == usual.first_bytes &&
         options.list_entries == usual.list_entries && options.block_bytes == usual.block_bytes &&
         options.most_bytes == usual.most_bytes;
}

/* The park of the calling warp; NULL if the heap is too small to have any. */
MAM_INLINE mam_u64 *mam_warp_park_here(const mam_heap &heap) {
  mam_u32 multiprocessor, warp;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  mam_u32 place = (multiprocessor * MAM_PARKS + warp) & (heap.parks - 1);
  return heap.parks != 0 ? &heap.slots[heap.slot_count * MAM_HEAP_KINDS + place * MAM_PARK_WORDS] : 0;
}

/* Makes a header for those lanes, of which one calls.  Returns NULL if there is no memory. */
MAM_OUTLINE mam_warp *mam_warp_open(struct mam_heap_control *control, mam_warp_options options, mam_u32 lanes,
                                    mam_u64 *park) {
  if (control == 0)
    return 0;
  /* a 4096th of the heap in bytes, rounded up to a power of two */
  mam_u32 share = 1u << (32 - mam_leading_zeros_u32(control->heap.page_count - 1));
  options.most_bytes = options.most_bytes < share ? options.most_bytes : share;
  mam_warp_options sound = mam_warp_options_sound(options);
  mam_u64 block = mam_warp_heap_malloc(control, sound.first_bytes);
  return block != 0 ? mam_warp_begin(control, block, sound, lanes, mam_warp_self(), (mam_u64)park) : 0;
}

static __device__ __forceinline__ mam_warp *mam_warp_start_lanes(mam_heap heap, unsigned lanes,
                                                                 mam_warp_options options, mam_heap_status *why) {
  lanes = mam_mask_of(lanes); /* all of these lanes come here, and to the exchange below */
  mam_u32 leader = 31 - mam_leading_zeros_u32(lanes);
  mam_warp *warp = 0;
  if (mam_warp_lane() == leader) {
    mam_u64 *park = mam_warp_is_usual(options) ? mam_warp_park_here(heap) : 0;
    if (park != 0)
      warp = mam_warp_find(park, lanes, mam_warp_self());
    if (warp == 0)
      warp = MAM_OUT_OF_SIGHT(mam_warp_open)(heap.control, options, lanes, park);
  }
  __syncwarp(lanes); /* the header is ready for all of them */
  warp = (mam_warp *)__shfl_sync(lanes, (mam_u64)warp, (int)leader);
  if (why != 0)
    *why = warp != 0 ? MAM_HEAP_OK : heap.control == 0 ? MAM_HEAP_BAD : MAM_HEAP_FULL;
  return warp;
}

static __device__ __forceinline__ mam_warp *mam_warp_start(mam_heap heap) {
  const mam_warp_options options = MAM_WARP_OPTIONS_INIT;
  return mam_warp_start_lanes(heap, __activemask(), options, 0);
}

template <typename Group> static __device__ mam_warp *mam_warp_start(mam_heap heap, const Group &group) {
  const mam_warp_options options = MAM_WARP_OPTIONS_INIT;
  mam_u32 lanes = 0;
  for (unsigned rank = 0; rank < group.size(); rank++)
    lanes |= 1u << group.shfl(mam_warp_lane(), rank);
  return mam_warp_start_lanes(heap, lanes, options, 0);
}

/* ---- Allocating ---- */

/* The sum of the values of the lanes of a group before this lane.  *all: the sum of all. */
MAM_INLINE mam_u64 mam_warp_sum(mam_u32 group, mam_u64 value, mam_u64 *all) {
  mam_u64 before = 0, sum = 0;
  mam_u32 lane = mam_warp_lane(), top = mam_lowest_u32(group);
  if (__all_sync(group, value == __shfl_sync(group, value, (int)top))) {
    *all = value * mam_ones_u32(group);
    return value * mam_ones_u32(group & mam_lane_below());
  }
  MAM_LOOP
  for (mam_u32 rest = group; rest != 0; rest &= rest - 1) {
    before = mam_lowest_u32(rest) == lane ? sum : before;
    sum += __shfl_sync(group, value, (int)mam_lowest_u32(rest));
  }
  *all = sum;
  return before;
}

/* What a request reads of a header, for lanes that are alone with it. */
struct mam_warp_hot {
  mam_u64 current, lanes;
  mam_u32 block_less_1, block_shift;
};
MAM_INLINE struct mam_warp_hot mam_warp_look(const mam_warp *warp) {
  struct mam_warp_hot hot;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(hot.current), "=l"(hot.lanes)
               : "l"(mam_global(warp))
               : "memory");
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(hot.block_less_1), "=r"(hot.block_shift)
               : "l"(mam_global(&warp->block_less_1))
               : "memory");
  return hot;
}
MAM_INLINE void mam_warp_set_current(mam_warp *warp, mam_u64 current) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(mam_global(warp)), "l"(current) : "memory");
}

/* Serves requests of a group that together are larger than any superblock, by the device heap directly.  The group is
 * divided into pieces of neighbouring lanes, as few as possible, none larger than a superblock except for its last
 * request.  Returns NULL to the lanes of a piece for which there is no memory.  Entries of the list are taken before
 * the device heap is asked: see mam_warp_refill_alone. */
MAM_OUTLINE void *mam_warp_malloc_large(mam_warp *warp, mam_u64 *list, mam_u32 group, mam_u64 before, mam_u64 blocks,
                                        int alone) {
  mam_u32 shift = warp->block_shift, lane = mam_warp_lane();
  mam_u32 piece = before >> 32 != 0 ? 0 : (mam_u32)before / (warp->superblock_bytes >> shift);
  mam_u32 lanes = mam_mask_of(__match_any_sync(group, piece)), first = mam_lowest_u32(lanes);
  mam_u64 begin = __shfl_sync(group, before, (int)first);
  mam_u64 bytes = (__shfl_sync(group, before + blocks, (int)(31 - mam_leading_zeros_u32(lanes))) - begin) << shift;
  mam_u64 block = 0, entry = 0, offset = (before - begin) << shift;
  mam_u32 leaders = __ballot_sync(group, lane == first);
  if (lane == mam_lowest_u32(group))
    entry = (mam_u64)MAM_OUT_OF_SIGHT(mam_warp_enter)(warp, list, mam_ones_u32(leaders), alone);
  entry = __shfl_sync(group, entry, (int)mam_lowest_u32(group));
  if (lane == first && entry != 0) {
    block = mam_warp_heap_malloc(warp->control, bytes);
    mam_store_relaxed_u64((mam_u64 *)entry + mam_ones_u32(leaders & mam_lane_below()), block);
  }
  __syncwarp(group);
  block = __shfl_sync(group, block, (int)first);
  return block != 0 ? (void *)(block + offset) : 0;
}

/* Serves requests of a whole warp that is alone with its header, when there was no superblock. */
MAM_OUTLINE void *mam_warp_malloc_more(mam_u32 before, mam_u32 blocks, mam_warp *warp) {
  void *block = MAM_OUT_OF_SIGHT(mam_warp_malloc_large)(warp, &warp->list, 0xffffffffu, before, blocks, 1);
  /* If there is no room for all of them together, perhaps there is for some. */
  return block != 0
             ? block
             : (void *)MAM_OUT_OF_SIGHT(mam_warp_direct)(warp, &warp->list, (mam_u64)blocks << warp->block_shift, 0);
}

/* Serves lanes that come in parts, or whose requests are too large for one word.  Lanes with the same header form a
 * group. A group is alone with its header if all lanes that take part are in it: no other lane can come then.  Fewer
 * and fewer lanes take part, so even an old value that says so is right. */
MAM_OUTLINE void *mam_warp_malloc_rest(MAM_TAG(3) mam_warp *warp, size_t bytes) {
  mam_u32 group = mam_mask_alike_u64((mam_u64)warp), self = 1u << mam_warp_lane();
  __syncwarp(group); /* what other lanes of the group did to the header comes before */
  mam_u64 lanes = mam_warp_look(warp).lanes;
  if (lanes != mam_warp_all_of(group))
    lanes = mam_load_relaxed_u64(&warp->lanes);
  mam_u64 *list = mam_warp_list_of(warp, lanes, self);
  mam_u64 blocks = mam_warp_blocks(warp, bytes), all = 0, address = 0;
  if (!__all_sync(group, bytes != 0 && list == &warp->list)) {
    if (bytes == 0 || list == 0 || !mam_warp_sound(warp))
      return 0;
    group = mam_mask_alike_u64((mam_u64)list);
  }
  mam_u64 before = mam_warp_sum(group, blocks, &all);
  int alone = lanes == mam_warp_all_of(group);
  if (all > warp->most_bytes >> warp->block_shift)
    address = (mam_u64)MAM_OUT_OF_SIGHT(mam_warp_malloc_large)(warp, list, group, before, blocks, alone);
  else {
    if ((group & mam_lane_below()) == 0 && (!alone || (address = mam_warp_take(warp, (mam_u32)all, 1)) == 0))
      address = MAM_OUT_OF_SIGHT(mam_warp_serve)(alone, warp, list, all);
    __syncwarp(group);
    address = __shfl_sync(group, address, (int)mam_lowest_u32(group));
    address = address != 0 ? address + (before << warp->block_shift) : 0;
  }
  /* If there is no room for all of them together, perhaps there is for some. */
  return address != 0 ? (void *)address : (void *)MAM_OUT_OF_SIGHT(mam_warp_direct)(warp, list, bytes, 0);
}

/* The mask of a whole warp. */
#define MAM_WARP_WHOLE 0xffffffffu

/* 0 if all lanes of a whole warp have the same value. */
MAM_INLINE mam_u32 mam_warp_differs(mam_u32 value) { return value ^ __shfl_sync(MAM_WARP_WHOLE, value, 0); }
MAM_INLINE mam_u32 mam_warp_header_differs(const mam_warp *warp) {
  return mam_warp_differs((mam_u32)(mam_u64)warp) | mam_warp_differs((mam_u32)((mam_u64)warp >> 32));
}

/* The sum of the values of a whole warp's lanes up to this lane's, included. */
MAM_INLINE mam_u32 mam_warp_scan(mam_u32 value, mam_u32 lane) {
  MAM_UNROLL
  for (mam_u32 step = 1; step < 32; step *= 2) {
    mam_u32 other = __shfl_up_sync(MAM_WARP_WHOLE, value, step);
    value += lane >= step ? other : 0;
  }
  return value;
}

/* Serves a whole warp that is alone with its header.  hot: the header, as all lanes have read it. */
MAM_INLINE void *mam_warp_malloc_whole(mam_warp *warp, struct mam_warp_hot hot, mam_u32 bytes) {
  mam_u32 blocks = (bytes + hot.block_less_1) >> hot.block_shift, lane = mam_warp_lane();
  mam_u32 before = lane * blocks, all = 32 * blocks, left = mam_warp_number(hot.current);
  if (!__all_sync(MAM_WARP_WHOLE, mam_warp_differs(bytes) == 0)) {
    before = mam_warp_scan(blocks, lane);
    all = __shfl_sync(MAM_WARP_WHOLE, before, 31);
    before -= blocks;
  }
  mam_u64 address = mam_warp_address(hot.current) + ((mam_u64)(left - all) << hot.block_shift);
  if (all <= left) {
    if (lane == 0)
      mam_warp_set_current(warp, hot.current - all);
    __syncwarp(MAM_WARP_WHOLE); /* this change of the header comes before what any of them does next */
    return (void *)(address + ((mam_u64)before << hot.block_shift));
  }
  address = 0;
  if (lane == 0)
    address = MAM_OUT_OF_SIGHT(mam_warp_refill_alone)(all, warp);
  __syncwarp(MAM_WARP_WHOLE);
  address = __shfl_sync(MAM_WARP_WHOLE, address, 0);
  return address != 0 ? (void *)(address + ((mam_u64)before << hot.block_shift))
                      : MAM_OUT_OF_SIGHT(mam_warp_malloc_more)(before, blocks, warp);
}

/* Serves equal requests of some lanes of a warp, if they are alone with their header and its superblock has room for
 * all of them; else returns NULL.  Calls nothing. */
MAM_OUTLINE void *mam_warp_malloc_part(MAM_TAG(2) mam_warp *warp, size_t bytes) {
  mam_u32 here = mam_mask_alike_u64((mam_u64)warp);
  __syncwarp(here); /* what other lanes did to the header comes before */
  struct mam_warp_hot hot = mam_warp_look(warp);
  mam_u32 top = mam_lowest_u32(here), blocks = (mam_u32)(bytes + hot.block_less_1) >> hot.block_shift;
  mam_u32 same = __shfl_sync(here, (mam_u32)bytes, (int)top), left = mam_warp_number(hot.current);
  /* The vote needs what each lane has read, so no lane writes before all have read. */
  if (!__all_sync(here, (hot.lanes == mam_warp_all_of(here)) & (bytes == same) & (bytes - 1 < 1u << 24) &
                            (mam_ones_u32(here) * blocks <= left)))
    return 0;
  left -= mam_ones_u32(here) * blocks;
  if (mam_warp_lane() == top)
    mam_warp_set_current(warp, mam_warp_word(mam_warp_address(hot.current), left));
  __syncwarp(here); /* this change of the header comes before what any of them does next */
  left += mam_ones_u32(here & mam_lane_below()) * blocks;
  return (void *)(mam_warp_address(hot.current) + ((mam_u64)left << hot.block_shift));
}

static __device__ __forceinline__ void *mam_warp_malloc(mam_warp *warp, size_t bytes) {
  if (warp == 0)
    return 0;
  mam_u32 here = __activemask();
  if (!MAM_HEAP_CHECKED && here == MAM_WARP_WHOLE) {
    __syncwarp(MAM_WARP_WHOLE); /* what other lanes did to the header comes before */
    struct mam_warp_hot hot = mam_warp_look(warp);
    /* The vote needs what each lane has read, so no lane writes before all have read. */
    if (__all_sync(MAM_WARP_WHOLE,
                   (mam_warp_header_differs(warp) == 0) & (hot.lanes == MAM_FULL_WORD) & (bytes - 1 < 1u << 24)))
      return mam_warp_malloc_whole(warp, hot, (mam_u32)bytes);
  } else if (!MAM_HEAP_CHECKED && (here & (here - 1)) == 0) { /* one lane, perhaps alone with its header */
    struct mam_warp_hot hot = mam_warp_look(warp);
    mam_u32 blocks = (mam_u32)(bytes + hot.block_less_1) >> hot.block_shift, left = mam_warp_number(hot.current);
    if (hot.lanes == mam_warp_all_of(here) && bytes - 1 < 1u << 24 && blocks <= left) {
      mam_warp_set_current(warp, hot.current - blocks);
      return (void *)(mam_warp_address(hot.current) + ((mam_u64)(left - blocks) << hot.block_shift));
    }
  } else if (!MAM_HEAP_CHECKED) {
    void *block = MAM_OUT_OF_SIGHT(mam_warp_malloc_part)(warp, bytes);
    if (block != 0)
      return block;
  }
  return MAM_OUT_OF_SIGHT(mam_warp_malloc_rest)(warp, bytes);
}

static __device__ __forceinline__ void *mam_warp_malloc_why(mam_warp *warp, size_t bytes, mam_heap_status *why) {
  void *block = mam_warp_malloc(warp, bytes);
  *why = block != 0                                                                               ? MAM_HEAP_OK
         : !mam_warp_seems_sound(warp)                                                            ? MAM_HEAP_BAD
         : bytes == 0                                                                             ? MAM_HEAP_ZERO
         : (mam_warp_taking_part(mam_load_relaxed_u64(&warp->lanes)) >> mam_warp_lane() & 1) == 0 ? MAM_HEAP_BAD
         : MAM_OUT_OF_SIGHT(mam_heap_could)(warp->control, bytes)                                 ? MAM_HEAP_FULL
                                                                                                  : MAM_HEAP_TOO_LARGE;
  return block;
}

/* ---- Leaving ---- */

/* Lanes leave.  Those with the same header that leave in the same way form a group. */
MAM_OUTLINE void mam_warp_leave_here(MAM_TAG(2) mam_warp *warp, enum mam_warp_leaving how) {
  mam_u32 group = mam_mask_alike_u64((mam_u64)warp | (mam_u64)how);
  struct mam_lanes lanes = mam_lanes_of(group);
  __syncwarp(group); /* what each lane did comes before its leaving */
  if (mam_lanes_all(lanes, mam_warp_look(warp).lanes == mam_warp_all_of(group))) {
    mam_warp_leave_together(warp, lanes, how);
    return;
  }
  mam_u64 what = MAM_WARP_NOTHING;
  if (lanes.rank == 0)
    what = (mam_u64)mam_warp_leave(warp, group, how);
  __syncwarp(group);
  if (mam_lanes_first_u64(lanes, what) == MAM_WARP_ROUND)
    MAM_OUT_OF_SIGHT(mam_warp_round)(warp, lanes);
  __syncwarp(group);
}

static __device__ __forceinline__ void mam_warp_tidy_up(mam_warp *warp) {
  if (mam_warp_sound(warp))
    MAM_OUT_OF_SIGHT(mam_warp_leave_here)(warp, MAM_WARP_TIDIES);
}

/* Frees the count blocks, at most as many as fit in the header's list, that a whole warp has entered; except a
 * superblock that waits. */
MAM_OUTLINE void mam_warp_free_few(mam_u32 count, mam_warp *warp) {
  struct mam_heap_control *control = warp->control;
  mam_u32 lane = mam_warp_lane();
  mam_u64 block = lane < count ? mam_load_relaxed_u64(mam_warp_list_entry((mam_u64)&warp->inline_before, lane)) : 0;
  if (lane == 0)
    MAM_OUT_OF_SIGHT(mam_warp_keep)(warp);
  __syncwarp(MAM_WARP_WHOLE);
  mam_u64 kept = mam_warp_address(mam_load_relaxed_u64(&warp->largest));
  __syncwarp(MAM_WARP_WHOLE); /* all lanes have read it before the header goes */
  if (block != 0 && block != kept)
    mam_warp_heap_free(control, block);
}

/* Ends a whole warp that is alone with its header, if the header has only its first list.  Each lane frees one block,
 * and one lane puts the header away.  Returns whether it did. */
MAM_INLINE bool mam_warp_end_whole(mam_warp *warp) {
  __syncwarp(MAM_WARP_WHOLE); /* what each lane did comes before */
  mam_u64 inside = mam_warp_word(mam_warp_list_inside(warp), 0), list = warp->list;
  bool is_plain = (mam_warp_header_differs(warp) == 0) & (warp->lanes == MAM_FULL_WORD) &
                  (list - inside <= MAM_WARP_INLINE_ENTRIES) & (warp->early == 0) & (warp->handed_over == 0);
  if (!__all_sync(MAM_WARP_WHOLE, is_plain))
    return false;
  if (list != inside)
    MAM_OUT_OF_SIGHT(mam_warp_free_few)((mam_u32)(list - inside), warp);
  if (mam_warp_lane() == 31)
    mam_warp_put_away(warp);
  return true;
}

static __device__ __forceinline__ void mam_warp_end(mam_warp *warp) {
  if (!mam_warp_sound(warp) || (__activemask() == MAM_WARP_WHOLE && mam_warp_end_whole(warp)))
    return;
  MAM_OUT_OF_SIGHT(mam_warp_leave_here)(warp, MAM_WARP_ENDS);
}

static __device__ __forceinline__ mam_warp *mam_warp_hand_over(mam_warp *warp) {
  if (!mam_warp_sound(warp) || (mam_warp_taking_part(mam_load_relaxed_u64(&warp->lanes)) >> mam_warp_lane() & 1) == 0)
    return 0;
  mam_store_relaxed_u32(&warp->handed_over, 1);
  MAM_OUT_OF_SIGHT(mam_warp_leave_here)(warp, MAM_WARP_ENDS);
  return warp;
}

MAM_OUTLINE mam_warp *mam_warp_adopt_rest(mam_warp *warp) {
  mam_u32 group = mam_mask_alike_u64((mam_u64)warp);
  mam_u32 adopted = 0;
  if ((group & mam_lane_below()) == 0)
    adopted = (mam_u32)mam_warp_adopt_by(warp, group, mam_warp_self());
  __syncwarp(group);
  return __shfl_sync(group, adopted, (int)mam_lowest_u32(group)) != 0 ? warp : 0;
}

static __device__ __forceinline__ mam_warp *mam_warp_adopt(mam_warp *warp) {
  return warp != 0 ? MAM_OUT_OF_SIGHT(mam_warp_adopt_rest)(warp) : 0;
}

#endif /* MAM_DETAIL_WARP_CUH */
