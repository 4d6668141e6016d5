/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/warp.cuh - the functions of mam/warp.cuh: lanes of a warp that act together on a header (warp_core.h).
 *
 * Lanes that call together with the same header form a group.  What a call costs depends on how many there are:
 *
 *   mam__warp_malloc_whole   a whole warp, alone with its header: reads and writes it plainly
 *   (in mam_warp_malloc)    one lane, alone with its header: the same
 *   mam__warp_malloc_part    all lanes that take part, equal requests: the same
 *   mam__warp_malloc_rest    lanes that come in parts: atomic operations
 *
 * Each of them goes to the device heap when the header's superblock has no room: mam__warp_refill_alone,
 * mam__warp_serve, mam__warp_malloc_large.
 */
#ifndef MAM_DETAIL_WARP_CUH
#define MAM_DETAIL_WARP_CUH

#include <mam/detail/device_free.cuh>
#include <mam/detail/device_malloc.cuh>
#include <mam/detail/warp_core.h>

/* The number of the warp in its grid, for checks. */
MAM__INLINE mam__u64 mam__warp_self(void) {
  mam__u64 block = ((mam__u64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  mam__u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  return block << 6 | thread >> 5;
}
MAM__INLINE mam__u32 mam__warp_lane(void) {
  mam__u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/* mam_malloc for a lane that acts alone, with the handle in the control block. */
MAM__OUTLINE mam__u64 mam__warp_block_malloc(mam__u32, mam__u32, struct mam__heap_control *control, mam__u64 bytes) {
  const mam_device_heap &heap = control->heap;
  mam__u32 home = mam__home_here(heap), kind = mam__class_of((mam__u32)bytes);
  if (bytes - 1 >= MAM__CHUNK_BYTES)
    return (mam__u64)MAM__OUT_OF_SIGHT(mam__malloc_pages)(home, control, bytes);
  mam__u32 slot = kind * heap.slot_count + mam__slot_here(heap, home), wanted = mam__wanted(heap, kind, home);
  mam__u32 chunks_log2 = mam__span_chunks_log2(heap.tuning, mam__class_shift(kind));
  mam__u64 old = mam__slot_take(mam__slot_at(heap.control, slot), 1);
  mam__u32 ticket = (mam__u32)(old & MAM__SLOT_TICKETS);
  if (ticket >> chunks_log2 == 0)
    return (mam__u64)mam__chunk_of(mam__slot_address(old), ticket, kind);
  wanted |= ticket == 1u << chunks_log2 ? MAM__REST_REFILL : 0;
  slot |= chunks_log2 << MAM__REST_CHUNKS;
  mam__u32 prior = mam__heap_page(&heap, old);
  mam__u64 renewed = 0;
  if ((wanted & MAM__REST_REFILL) != 0 && !mam__slot_is_dry(old)) {
    if ((wanted & MAM__REST_LAZY) != 0 && prior != MAM__NO_PAGE)
      renewed = MAM__OUT_OF_SIGHT(mam__slot_again_apart)(control, wanted, slot, prior, 1);
    if (renewed == 0)
      renewed = MAM__OUT_OF_SIGHT(mam__slot_anew)(control, heap.base, heap.page_count, wanted, slot, 1);
    if ((renewed & MAM__RENEWED) != 0)
      renewed = MAM__OUT_OF_SIGHT(mam__slot_renewed)(control, wanted, slot, prior, renewed);
  }
  if (mam__is_renewed(renewed))
    return mam__slot_address(renewed);
  wanted |= mam__slot_is_dry(renewed) ? MAM__REST_DRY : 0;
  return (mam__u64)MAM__OUT_OF_SIGHT(mam__malloc_rest)(control, wanted, slot, mam__mask_of(0));
}
MAM__OUTLINE void mam__warp_block_free(mam__u32, struct mam__heap_control *control, mam__u64 address) {
  mam_free(control->heap, (void *)address);
}
MAM__INLINE mam__u64 mam__warp_heap_malloc(struct mam__heap_control *control, mam__u64 bytes) {
  return MAM__OUT_OF_SIGHT(mam__warp_block_malloc)(0, 0, control, bytes);
}
MAM__OUTLINE mam__u64 mam__warp_block_try(MAM__TAG(4) struct mam__heap_control *control, mam__u64 bytes) {
  mam__u32 pages = (mam__u32)((bytes + MAM__PAGE_BYTES - 1) >> MAM__PAGE_SHIFT);
  return MAM__OUT_OF_SIGHT(mam__run_try)(control, pages, mam__home_here(control->heap));
}
MAM__INLINE mam__u64 mam__warp_heap_try(struct mam__heap_control *control, mam__u64 bytes) {
  return MAM__OUT_OF_SIGHT(mam__warp_block_try)(control, bytes);
}
MAM__INLINE void mam__warp_heap_free(struct mam__heap_control *control, mam__u64 address) {
  MAM__OUT_OF_SIGHT(mam__warp_block_free)(0, control, address);
}

/* Whether the header is one and is this warp's, and this lane takes part, as far as calls are checked. */
MAM__INLINE bool mam__warp_seems_sound(const mam_warp *warp) {
  if (warp == 0 || !MAM_HEAP_CHECKED)
    return warp != 0;
  return mam__warp_is(warp) && mam__load_relaxed_u64(&warp->owner) == mam__warp_self() &&
         (mam__warp_taking_part(mam__load_relaxed_u64(&warp->lanes)) >> mam__warp_lane() & 1) != 0;
}
/* The same; counts a header that is not sound. */
MAM__INLINE bool mam__warp_sound(const mam_warp *warp) {
  bool is_sound = mam__warp_seems_sound(warp);
  if (!is_sound && warp != 0 && mam__warp_is(warp))
    (void)mam__add_relaxed_u64(&warp->control->refused_free, 1);
  return is_sound;
}

/* ---- Starting ---- */

/* Whether the options are those that all headers in parks have. */
MAM__INLINE bool mam__warp_is_usual(mam_warp_options options) {
  const mam_warp_options usual = MAM_WARP_OPTIONS_INIT;
  return options.superblock_bytes == usual.superblock_bytes && options.first_bytes == usual.first_bytes &&
         options.list_entries == usual.list_entries && options.block_bytes == usual.block_bytes &&
         options.most_bytes == usual.most_bytes;
}

/* The park of the calling warp; NULL if the heap is too small to have any. */
MAM__INLINE mam__u64 *mam__warp_park_here(const mam_device_heap &heap) {
  mam__u32 multiprocessor = mam__multiprocessor(), warp = mam__warp_number();
  mam__u32 place = (multiprocessor * MAM__PARKS + warp) & (mam__park_count(&heap) - 1);
  return mam__tuned_park_bits(heap.tuning) != 0 ? &mam__parks(heap.control)[place * MAM__PARK_WORDS] : 0;
}

/* Makes a header for those lanes, of which one calls.  Returns NULL if there is no memory. */
MAM__OUTLINE mam_warp *mam__warp_open(struct mam__heap_control *control, mam_warp_options options, mam__u32 lanes,
                                      mam__u64 *park) {
  if (control == 0)
    return 0;
  /* a 4096th of the heap in bytes, rounded up to a power of two */
  mam__u32 share = 1u << (32 - mam__leading_zeros_u32(control->heap.page_count - 1));
  options.most_bytes = options.most_bytes < share ? options.most_bytes : share;
  mam_warp_options sound = mam__warp_options_sound(options);
  mam__u64 block = mam__warp_heap_malloc(control, sound.first_bytes);
  return block != 0 ? mam__warp_begin(control, block, sound, lanes, mam__warp_self(), (mam__u64)park) : 0;
}

/* As mam_warp_start_lanes, for lanes that have not ended. */
MAM__INLINE mam_warp *mam__warp_start_for(mam_device_heap heap, mam__u32 lanes, mam_warp_options options,
                                          mam_heap_status *why) {
  /* All of these lanes come here, and to the exchange below. */
  mam__u32 leader = 31 - mam__leading_zeros_u32(lanes);
  mam_warp *warp = 0;
  if (mam__warp_lane() == leader) {
    mam__u64 *park = mam__warp_is_usual(options) ? mam__warp_park_here(heap) : 0;
    if (park != 0)
      warp = mam__warp_find(park, lanes, mam__warp_self());
    if (warp == 0)
      warp = MAM__OUT_OF_SIGHT(mam__warp_open)(heap.control, options, lanes, park);
  }
  warp = (mam_warp *)mam__mask_one_u64(lanes, (mam__u64)warp, leader); /* the header is ready for all of them */
  if (why != 0)
    *why = warp != 0 ? MAM_HEAP_OK : heap.control == 0 ? MAM_HEAP_BAD : MAM_HEAP_FULL;
  return warp;
}

MAM__INLINE mam_warp *mam_warp_start_lanes(mam_device_heap heap, unsigned lanes, mam_warp_options options,
                                           mam_heap_status *why) {
  return mam__warp_start_for(heap, mam__mask_alive(lanes), options, why);
}

MAM__INLINE mam_warp *mam_warp_start(mam_device_heap heap) {
  const mam_warp_options options = MAM_WARP_OPTIONS_INIT;
  return mam__warp_start_for(heap, mam__mask_alike_u64((mam__u64)heap.control), options, 0);
}

template <typename Group> static __device__ mam_warp *mam_warp_start(mam_device_heap heap, const Group &group) {
  const mam_warp_options options = MAM_WARP_OPTIONS_INIT;
  mam__u32 lanes = 0;
  MAM__LOOP
  for (mam__u32 rest = group.ballot(1); rest != 0; rest &= rest - 1) /* the ranks of those that have not ended */
    lanes |= 1u << group.shfl(mam__warp_lane(), (int)mam__lowest_u32(rest));
  return mam__warp_start_for(heap, lanes, options, 0);
}

/* ---- Allocating ---- */

/* The sum of the values of the lanes of a group before this lane.  *all: the sum of all. */
MAM__INLINE mam__u64 mam__warp_sum(mam__u32 group, mam__u64 value, mam__u64 *all) {
  mam__u64 before = 0, sum = 0;
  mam__u32 lane = mam__warp_lane(), top = mam__lowest_u32(group);
  if (__all_sync(group, value == __shfl_sync(group, value, (int)top))) {
    *all = value * mam__ones_u32(group);
    return value * mam__ones_u32(group & mam__lane_below());
  }
  MAM__LOOP
  for (mam__u32 rest = group; rest != 0; rest &= rest - 1) {
    before = mam__lowest_u32(rest) == lane ? sum : before;
    sum += __shfl_sync(group, value, (int)mam__lowest_u32(rest));
  }
  *all = sum;
  return before;
}

/* What a request reads of a header, for lanes that are alone with it. */
struct mam__warp_hot {
  mam__u64 current, lanes;
  mam__u32 block_less_1, block_shift;
};
MAM__INLINE struct mam__warp_hot mam__warp_look(const mam_warp *warp) {
  struct mam__warp_hot hot;
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(hot.current), "=l"(hot.lanes)
               : "l"(mam__global(warp))
               : "memory");
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(hot.block_less_1), "=r"(hot.block_shift)
               : "l"(mam__global(&warp->block_less_1))
               : "memory");
  return hot;
}
MAM__INLINE void mam__warp_set_current(mam_warp *warp, mam__u64 current) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(mam__global(warp)), "l"(current) : "memory");
}

/* Serves requests of a group that together are larger than any superblock, by the device heap directly.  The group is
 * divided into pieces of neighbouring lanes, as few as possible, none larger than a superblock except for its last
 * request.  Returns NULL to the lanes of a piece for which there is no memory.  Entries of the list are taken before
 * the device heap is asked: see mam__warp_refill_alone. */
MAM__OUTLINE void *mam__warp_malloc_large(mam_warp *warp, mam__u64 *list, mam__u32 group, mam__u64 before,
                                          mam__u64 blocks, int alone) {
  mam__u32 shift = warp->block_shift, lane = mam__warp_lane();
  mam__u32 piece = before >> 32 != 0 ? 0 : (mam__u32)before / (warp->superblock_bytes >> shift);
  mam__u32 lanes = mam__mask_of(__match_any_sync(group, piece)), first = mam__lowest_u32(lanes);
  mam__u64 begin = __shfl_sync(group, before, (int)first);
  mam__u64 bytes = (__shfl_sync(group, before + blocks, (int)(31 - mam__leading_zeros_u32(lanes))) - begin) << shift;
  mam__u64 block = 0, entry = 0, offset = (before - begin) << shift;
  mam__u32 leaders = __ballot_sync(group, lane == first);
  if (lane == mam__lowest_u32(group))
    entry = (mam__u64)MAM__OUT_OF_SIGHT(mam__warp_enter)(warp, list, mam__ones_u32(leaders), alone);
  entry = __shfl_sync(group, entry, (int)mam__lowest_u32(group));
  if (lane == first && entry != 0) {
    block = mam__warp_heap_malloc(warp->control, bytes);
    mam__store_relaxed_u64((mam__u64 *)entry + mam__ones_u32(leaders & mam__lane_below()), block);
  }
  __syncwarp(group);
  block = __shfl_sync(group, block, (int)first);
  return block != 0 ? (void *)(block + offset) : 0;
}

/* Serves requests of a whole warp that is alone with its header, when there was no superblock. */
MAM__OUTLINE void *mam__warp_malloc_more(mam__u32 before, mam__u32 blocks, mam_warp *warp) {
  void *block = MAM__OUT_OF_SIGHT(mam__warp_malloc_large)(warp, &warp->list, 0xffffffffu, before, blocks, 1);
  /* If there is no room for all of them together, perhaps there is for some. */
  return block != 0
             ? block
             : (void *)MAM__OUT_OF_SIGHT(mam__warp_direct)(warp, &warp->list, (mam__u64)blocks << warp->block_shift, 0);
}

/* Serves lanes that come in parts, or whose requests are too large for one word.  Lanes with the same header form a
 * group. A group is alone with its header if all lanes that take part are in it: no other lane can come then.  Fewer
 * and fewer lanes take part, so even an old value that says so is right. */
MAM__OUTLINE void *mam__warp_malloc_rest(MAM__TAG(3) mam_warp *warp, size_t bytes) {
  mam__u32 group = mam__mask_alike_u64((mam__u64)warp), self = 1u << mam__warp_lane();
  __syncwarp(group); /* what other lanes of the group did to the header comes before */
  mam__u64 lanes = mam__warp_look(warp).lanes;
  if (lanes != mam__warp_all_of(group))
    lanes = mam__load_relaxed_u64(&warp->lanes);
  mam__u64 *list = mam__warp_list_of(warp, lanes, self);
  mam__u64 blocks = mam__warp_blocks(warp, bytes), all = 0, address = 0;
  if (!__all_sync(group, bytes != 0 && list == &warp->list)) {
    if (bytes == 0 || list == 0 || !mam__warp_sound(warp))
      return 0;
    group = mam__mask_alike_u64((mam__u64)list);
  }
  mam__u64 before = mam__warp_sum(group, blocks, &all);
  int alone = lanes == mam__warp_all_of(group);
  if (all > warp->most_bytes >> warp->block_shift)
    address = (mam__u64)MAM__OUT_OF_SIGHT(mam__warp_malloc_large)(warp, list, group, before, blocks, alone);
  else {
    if ((group & mam__lane_below()) == 0 && (!alone || (address = mam__warp_take(warp, (mam__u32)all, 1)) == 0))
      address = MAM__OUT_OF_SIGHT(mam__warp_serve)(alone, warp, list, all);
    __syncwarp(group);
    address = __shfl_sync(group, address, (int)mam__lowest_u32(group));
    address = address != 0 ? address + (before << warp->block_shift) : 0;
  }
  /* If there is no room for all of them together, perhaps there is for some. */
  return address != 0 ? (void *)address : (void *)MAM__OUT_OF_SIGHT(mam__warp_direct)(warp, list, bytes, 0);
}

/* The mask of a whole warp. */
#define MAM__WARP_WHOLE 0xffffffffu

/* 0 if all lanes of a whole warp have the same value. */
MAM__INLINE mam__u32 mam__warp_differs(mam__u32 value) { return value ^ __shfl_sync(MAM__WARP_WHOLE, value, 0); }
MAM__INLINE mam__u32 mam__warp_header_differs(const mam_warp *warp) {
  return mam__warp_differs((mam__u32)(mam__u64)warp) | mam__warp_differs((mam__u32)((mam__u64)warp >> 32));
}

/* The sum of the values of a whole warp's lanes up to this lane's, included. */
MAM__INLINE mam__u32 mam__warp_scan(mam__u32 value, mam__u32 lane) {
  MAM__UNROLL
  for (mam__u32 step = 1; step < 32; step *= 2) {
    mam__u32 other = __shfl_up_sync(MAM__WARP_WHOLE, value, step);
    value += lane >= step ? other : 0;
  }
  return value;
}

/* Serves a whole warp that is alone with its header.  hot: the header, as all lanes have read it. */
MAM__INLINE void *mam__warp_malloc_whole(mam_warp *warp, struct mam__warp_hot hot, mam__u32 bytes) {
  mam__u32 blocks = (bytes + hot.block_less_1) >> hot.block_shift, lane = mam__warp_lane();
  mam__u32 before = lane * blocks, all = 32 * blocks, left = mam__warp_number(hot.current);
  if (!__all_sync(MAM__WARP_WHOLE, mam__warp_differs(bytes) == 0)) {
    before = mam__warp_scan(blocks, lane);
    all = __shfl_sync(MAM__WARP_WHOLE, before, 31);
    before -= blocks;
  }
  mam__u64 address = mam__warp_address(hot.current) + ((mam__u64)(left - all) << hot.block_shift);
  if (all <= left) {
    if (lane == 0)
      mam__warp_set_current(warp, hot.current - all);
    __syncwarp(MAM__WARP_WHOLE); /* this change of the header comes before what any of them does next */
    return (void *)(address + ((mam__u64)before << hot.block_shift));
  }
  address = 0;
  if (lane == 0)
    address = MAM__OUT_OF_SIGHT(mam__warp_refill_alone)(all, warp);
  __syncwarp(MAM__WARP_WHOLE);
  address = __shfl_sync(MAM__WARP_WHOLE, address, 0);
  return address != 0 ? (void *)(address + ((mam__u64)before << hot.block_shift))
                      : MAM__OUT_OF_SIGHT(mam__warp_malloc_more)(before, blocks, warp);
}

/* Serves equal requests of some lanes of a warp, if they are alone with their header and its superblock has room for
 * all of them; else returns NULL.  Calls nothing. */
MAM__OUTLINE void *mam__warp_malloc_part(MAM__TAG(2) mam_warp *warp, size_t bytes) {
  mam__u32 here = mam__mask_alike_u64((mam__u64)warp);
  __syncwarp(here); /* what other lanes did to the header comes before */
  struct mam__warp_hot hot = mam__warp_look(warp);
  mam__u32 top = mam__lowest_u32(here), blocks = (mam__u32)(bytes + hot.block_less_1) >> hot.block_shift;
  mam__u32 same = __shfl_sync(here, (mam__u32)bytes, (int)top), left = mam__warp_number(hot.current);
  /* The vote needs what each lane has read, so no lane writes before all have read. */
  if (!__all_sync(here, (hot.lanes == mam__warp_all_of(here)) & (bytes == same) & (bytes - 1 < 1u << 24) &
                            (mam__ones_u32(here) * blocks <= left)))
    return 0;
  left -= mam__ones_u32(here) * blocks;
  if (mam__warp_lane() == top)
    mam__warp_set_current(warp, mam__warp_word(mam__warp_address(hot.current), left));
  __syncwarp(here); /* this change of the header comes before what any of them does next */
  left += mam__ones_u32(here & mam__lane_below()) * blocks;
  return (void *)(mam__warp_address(hot.current) + ((mam__u64)left << hot.block_shift));
}

MAM__INLINE void *mam_warp_malloc(mam_warp *warp, size_t bytes) {
  if (warp == 0)
    return 0;
  mam__u32 here = __activemask();
  if (!MAM_HEAP_CHECKED && here == MAM__WARP_WHOLE) {
    __syncwarp(MAM__WARP_WHOLE); /* what other lanes did to the header comes before */
    struct mam__warp_hot hot = mam__warp_look(warp);
    /* The vote needs what each lane has read, so no lane writes before all have read. */
    if (__all_sync(MAM__WARP_WHOLE,
                   (mam__warp_header_differs(warp) == 0) & (hot.lanes == MAM__FULL_WORD) & (bytes - 1 < 1u << 24)))
      return mam__warp_malloc_whole(warp, hot, (mam__u32)bytes);
  } else if (!MAM_HEAP_CHECKED && (here & (here - 1)) == 0) { /* one lane, perhaps alone with its header */
    struct mam__warp_hot hot = mam__warp_look(warp);
    mam__u32 blocks = (mam__u32)(bytes + hot.block_less_1) >> hot.block_shift, left = mam__warp_number(hot.current);
    if (hot.lanes == mam__warp_all_of(here) && bytes - 1 < 1u << 24 && blocks <= left) {
      mam__warp_set_current(warp, hot.current - blocks);
      return (void *)(mam__warp_address(hot.current) + ((mam__u64)(left - blocks) << hot.block_shift));
    }
  } else if (!MAM_HEAP_CHECKED) {
    void *block = MAM__OUT_OF_SIGHT(mam__warp_malloc_part)(warp, bytes);
    if (block != 0)
      return block;
  }
  return MAM__OUT_OF_SIGHT(mam__warp_malloc_rest)(warp, bytes);
}

MAM__INLINE void *mam_warp_malloc_why(mam_warp *warp, size_t bytes, mam_heap_status *why) {
  void *block = mam_warp_malloc(warp, bytes);
  *why = block != 0                                                                                  ? MAM_HEAP_OK
         : !mam__warp_seems_sound(warp)                                                              ? MAM_HEAP_BAD
         : bytes == 0                                                                                ? MAM_HEAP_ZERO
         : (mam__warp_taking_part(mam__load_relaxed_u64(&warp->lanes)) >> mam__warp_lane() & 1) == 0 ? MAM_HEAP_BAD
         : MAM__OUT_OF_SIGHT(mam__heap_could)(warp->control, bytes)                                  ? MAM_HEAP_FULL
                                                                    : MAM_HEAP_TOO_LARGE;
  return block;
}

/* ---- Leaving ---- */

/* Lanes leave.  Those with the same header that leave in the same way form a group. */
MAM__OUTLINE void mam__warp_leave_here(MAM__TAG(2) mam_warp *warp, enum mam__warp_leaving how) {
  mam__u32 group = mam__mask_alike_u64((mam__u64)warp | (mam__u64)how);
  struct mam__lanes lanes = mam__lanes_of(group);
  __syncwarp(group); /* what each lane did comes before its leaving */
  if (mam__lanes_all(lanes, mam__warp_look(warp).lanes == mam__warp_all_of(group))) {
    mam__warp_leave_together(warp, lanes, how);
    return;
  }
  mam__u64 what = MAM__WARP_NOTHING;
  if (lanes.rank == 0)
    what = (mam__u64)mam__warp_leave(warp, group, how);
  __syncwarp(group);
  if (mam__lanes_first_u64(lanes, what) == MAM__WARP_ROUND)
    MAM__OUT_OF_SIGHT(mam__warp_round)(warp, lanes);
  __syncwarp(group);
}

MAM__INLINE void mam_warp_tidy_up(mam_warp *warp) {
  if (mam__warp_sound(warp))
    MAM__OUT_OF_SIGHT(mam__warp_leave_here)(warp, MAM__WARP_TIDIES);
}

/* Frees the count blocks, at most as many as fit in the header's list, that a whole warp has entered; except a
 * superblock that waits. */
MAM__OUTLINE void mam__warp_free_few(mam__u32 count, mam_warp *warp) {
  struct mam__heap_control *control = warp->control;
  mam__u32 lane = mam__warp_lane();
  mam__u64 block = lane < count ? mam__load_relaxed_u64(mam__warp_list_entry((mam__u64)&warp->inline_before, lane)) : 0;
  if (lane == 0)
    MAM__OUT_OF_SIGHT(mam__warp_keep)(warp);
  __syncwarp(MAM__WARP_WHOLE);
  mam__u64 kept = mam__warp_address(mam__load_relaxed_u64(&warp->largest));
  __syncwarp(MAM__WARP_WHOLE); /* all lanes have read it before the header goes */
  if (block != 0 && block != kept)
    mam__warp_heap_free(control, block);
}

/* Ends a whole warp that is alone with its header, if the header has only its first list.  Each lane frees one block,
 * and one lane puts the header away.  Returns whether it did. */
MAM__INLINE bool mam__warp_end_whole(mam_warp *warp) {
  __syncwarp(MAM__WARP_WHOLE); /* what each lane did comes before */
  mam__u64 inside = mam__warp_word(mam__warp_list_inside(warp), 0), list = warp->list;
  bool is_plain = (mam__warp_header_differs(warp) == 0) & (warp->lanes == MAM__FULL_WORD) &
                  (list - inside <= MAM__WARP_INLINE_ENTRIES) & (warp->early == 0) & (warp->handed_over == 0);
  if (!__all_sync(MAM__WARP_WHOLE, is_plain))
    return false;
  if (list != inside)
    MAM__OUT_OF_SIGHT(mam__warp_free_few)((mam__u32)(list - inside), warp);
  if (mam__warp_lane() == 31)
    mam__warp_put_away(warp);
  return true;
}

MAM__INLINE void mam_warp_end(mam_warp *warp) {
  if (!mam__warp_sound(warp) || (__activemask() == MAM__WARP_WHOLE && mam__warp_end_whole(warp)))
    return;
  MAM__OUT_OF_SIGHT(mam__warp_leave_here)(warp, MAM__WARP_ENDS);
}

MAM__INLINE mam_warp *mam_warp_hand_over(mam_warp *warp) {
  if (!mam__warp_sound(warp) ||
      (mam__warp_taking_part(mam__load_relaxed_u64(&warp->lanes)) >> mam__warp_lane() & 1) == 0)
    return 0;
  mam__store_relaxed_u32(&warp->handed_over, 1);
  MAM__OUT_OF_SIGHT(mam__warp_leave_here)(warp, MAM__WARP_ENDS);
  return warp;
}

MAM__OUTLINE mam_warp *mam__warp_adopt_rest(mam_warp *warp) {
  mam__u32 group = mam__mask_alike_u64((mam__u64)warp);
  mam__u32 adopted = 0;
  if ((group & mam__lane_below()) == 0)
    adopted = (mam__u32)mam__warp_adopt_by(warp, group, mam__warp_self());
  __syncwarp(group);
  return __shfl_sync(group, adopted, (int)mam__lowest_u32(group)) != 0 ? warp : 0;
}

MAM__INLINE mam_warp *mam_warp_adopt(mam_warp *warp) {
  return warp != 0 ? MAM__OUT_OF_SIGHT(mam__warp_adopt_rest)(warp) : 0;
}

#endif /* MAM_DETAIL_WARP_CUH */
