/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp.cuh - heaps of warps on a device heap: many small requests for the price of one, freed all at once.
 *
 *   __global__ void kernel(mam_heap heap) {
 *     mam_warp *warp = mam_warp_start(heap);
 *     while (...) {
 *       void *block = mam_warp_malloc(warp, bytes);
 *       ...
 *       mam_warp_tidy_up(warp);
 *     }
 *     mam_warp_end(warp);
 *   }
 *
 * They go back to FDGMalloc: S. Widmer, D. Wodniok, N. Weber, M. Goesele, "Fast Dynamic Memory Allocator for Massively
 * Parallel Architectures".  mam-warp(7) has the concepts.
 *
 * Lanes of one warp start a header together and share it: these lanes take part, until each has ended.  Lanes that do
 * not may pass by.  Every function may be called by any of the lanes that take part, together or not: those that come
 * together are served together.  No function waits for lanes that do not come.
 *
 * For sm_75 and later, by nvcc and NVRTC; no other header is needed.  mam_heap: as in mam/device.cuh.
 *
 * Defined before the header is included:
 *   MAM_HEAP_CHECKED   1 to have misuse noticed: a header that is none (any more), or is another warp's.  Such calls do
 *                      nothing, give NULL, and are counted (MAM_HeapInfo, refused_free_count).  It costs time.
 */
#ifndef MAM_WARP_CUH
#define MAM_WARP_CUH

#include <mam/device.cuh>
#include <mam/warp_core.h>

typedef struct mam_warp mam_warp;

/* A header for the lanes that are here together, which take part from now on; with its first superblock.  The same for
 * all of them.  NULL if the heap has no room for it. */
static __device__ mam_warp *mam_warp_start(mam_heap heap);

/* The same with other options, and for given lanes, which all make this call: bits of a warp.  *why as from
 * mam_malloc_why; may be NULL. */
static __device__ mam_warp *mam_warp_start_lanes(mam_heap heap, unsigned lanes, mam_warp_options options,
                                                 mam_heap_status *why);

/* The same for a group of cooperative groups, within a warp: a tile, or coalesced threads. */
template <typename Group> static __device__ mam_warp *mam_warp_start(mam_heap heap, const Group &group);

/* Allocates bytes, rounded up to blocks of the header's; a multiple of 16 as its address, of the block size from a new
 * superblock.  Lanes that ask together get their memory side by side, in their order.  It is theirs until they tidy up
 * or end; it cannot be freed by mam_free.
 * NULL if bytes is 0, warp is NULL, the lane does not take part, or the heap has no room; then nothing is lost. */
static __device__ void *mam_warp_malloc(mam_warp *warp, size_t bytes);

/* mam_warp_malloc that writes to *why, as mam_malloc_why does; MAM_HEAP_BAD also if the lane does not take part. */
static __device__ void *mam_warp_malloc_why(mam_warp *warp, size_t bytes, mam_heap_status *why);

/* Frees what the lanes have allocated, when all that take part have called this: the last one does it.  A lane that is
 * early goes on; what it allocates then is freed the time after. */
static __device__ void mam_warp_tidy_up(mam_warp *warp);

/* The lane takes part no longer.  When none does, everything is freed, the header too. */
static __device__ void mam_warp_end(mam_warp *warp);

/* As mam_warp_end, but the memory stays, with the header, which is returned: for mam_warp_adopt in a later kernel.  It
 * is enough that one lane hands over, and the others end.  NULL if the lane does not take part. */
static __device__ mam_warp *mam_warp_hand_over(mam_warp *warp);

/* The lanes that are here together with the same header take part in it from now on.  It must have been handed over, by
 * lanes that have all returned from their last call.  NULL if it was not, or has been adopted since. */
static __device__ mam_warp *mam_warp_adopt(mam_warp *warp);

/* ---- How ---- */

/* The warp's place in its grid, for checks. */
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

MAM_OUTLINE mam_u64 mam_warp_heap_malloc(struct mam_heap_control *control, mam_u64 bytes) {
  return (mam_u64)mam_malloc(control->heap, bytes);
}
MAM_OUTLINE void mam_warp_heap_free(struct mam_heap_control *control, mam_u64 address) {
  mam_free(control->heap, (void *)address);
}

/* Whether the header is one, and this warp's, as far as is to be checked. */
MAM_INLINE bool mam_warp_sound(mam_warp *warp) {
  if (warp == 0)
    return false;
  if (!MAM_HEAP_CHECKED || (mam_warp_is(warp) && mam_load_relaxed_u64(&warp->owner) == mam_warp_self()))
    return true;
  if (mam_warp_is(warp))
    (void)mam_add_relaxed_u64(&warp->control->refused_free, 1);
  return false;
}

/* ---- Starting ---- */

static __device__ __forceinline__ mam_warp *mam_warp_start_lanes(mam_heap heap, unsigned lanes,
                                                                 mam_warp_options options, mam_heap_status *why) {
  mam_u32 leader = 31 - mam_leading_zeros_u32(lanes);
  mam_warp_options sound = mam_warp_options_sound(options);
  mam_warp *warp = 0;
  if (mam_warp_lane() == leader) {
    void *block = mam_malloc(heap, sound.first_bytes);
    if (block != 0)
      warp = mam_warp_begin(heap.control, (mam_u64)block, sound, lanes, mam_warp_self());
  }
  __syncwarp(lanes); /* the header is there for all of them */
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

/* The sum of the values of the lanes of a group that come before this one, and of all. */
MAM_INLINE mam_u64 mam_warp_sum(mam_u32 group, mam_u64 value, mam_u64 *all) {
  mam_u64 before = 0, sum = 0;
  mam_u32 lane = mam_warp_lane();
  MAM_LOOP
  for (mam_u32 rest = group; rest != 0; rest &= rest - 1) {
    before = mam_lowest_u32(rest) == lane ? sum : before;
    sum += __shfl_sync(group, value, (int)mam_lowest_u32(rest));
  }
  *all = sum;
  return before;
}

/* The hot part of a header, as lanes see it that are alone with it. */
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

/* Requests of lanes that come in parts, differ, or find the superblock too small; each group of one header together. */
MAM_OUTLINE void *mam_warp_malloc_rest(mam_warp *warp, size_t bytes) {
  mam_u32 group = __match_any_sync(__activemask(), (mam_u64)warp), self = 1u << mam_warp_lane();
  __syncwarp(group); /* what others of them did to the header comes before */
  struct mam_warp_hot hot = mam_warp_look(warp);
  mam_u64 *list = mam_warp_list_of(warp, hot.lanes, self);
  if (bytes == 0 || list == 0 || !mam_warp_sound(warp))
    return 0;
  mam_u64 blocks = mam_warp_blocks(warp, bytes), all = 0, address = 0;
  group = __match_any_sync(__activemask(), (mam_u64)list);
  mam_u64 before = mam_warp_sum(group, blocks, &all); /* the sum needs what each has read */
  if (group == mam_warp_active(hot.lanes) && all <= mam_warp_number(hot.current)) {
    if ((group & mam_lane_below()) == 0)
      mam_warp_set_current(warp, hot.current - all);
    __syncwarp(group);
    return (void *)(mam_warp_address(hot.current) + ((mam_warp_number(hot.current) - all + before) << hot.block_shift));
  }
  if ((group & mam_lane_below()) == 0)
    address = mam_warp_serve(warp, list, all);
  __syncwarp(group);
  address = __shfl_sync(group, address, (int)mam_lowest_u32(group));
  if (address != 0)
    return (void *)(address + (before << hot.block_shift));
  /* No room for all of them together; perhaps for some. */
  return (void *)mam_warp_direct(warp, list, bytes);
}

/* Whether a whole warp calls with the same header and the same bytes. */
MAM_INLINE bool mam_warp_alike(const mam_warp *warp, size_t bytes) {
#ifdef WARP_MATCH
  int alike;
  (void)__match_all_sync(0xffffffffu, ((mam_u64)warp << 14) ^ (mam_u32)bytes, &alike);
  return alike;
#else
  mam_u32 low = (mam_u32)(mam_u64)warp, high = (mam_u32)((mam_u64)warp >> 32);
  return ((low ^ __shfl_sync(0xffffffffu, low, 0)) | (high ^ __shfl_sync(0xffffffffu, high, 0)) |
          ((mam_u32)bytes ^ __shfl_sync(0xffffffffu, (mam_u32)bytes, 0))) == 0;
#endif
}

static __device__ __forceinline__ void *mam_warp_malloc(mam_warp *warp, size_t bytes) {
  if (warp == 0)
    return 0;
  if (!MAM_HEAP_CHECKED && __activemask() == 0xffffffffu) {
    bool alike = mam_warp_alike(warp, bytes);
    __syncwarp(0xffffffffu); /* what others of them did to the header comes before */
    struct mam_warp_hot hot = mam_warp_look(warp);
    mam_u32 blocks = ((mam_u32)bytes + hot.block_less_1) >> hot.block_shift, left = mam_warp_number(hot.current);
    bool good = alike & (mam_warp_active(hot.lanes) == 0xffffffffu) & (32 * blocks <= left) & (bytes - 1 < (1u << 24));
    /* The vote needs what each lane has read: so all have read when one writes. */
    if (__all_sync(0xffffffffu, good)) {
      mam_u32 lane = mam_warp_lane();
      if (lane == 0)
        mam_warp_set_current(warp, hot.current - 32 * blocks);
      __syncwarp(0xffffffffu);
      return (void *)(mam_warp_address(hot.current) + ((mam_u64)(left - (32 - lane) * blocks) << hot.block_shift));
    }
  }
  return mam_out_of_sight(mam_warp_malloc_rest)(warp, bytes);
}

static __device__ __forceinline__ void *mam_warp_malloc_why(mam_warp *warp, size_t bytes, mam_heap_status *why) {
  void *block = mam_warp_malloc(warp, bytes);
  *why = block != 0                                                                               ? MAM_HEAP_OK
         : !mam_warp_sound(warp)                                                                  ? MAM_HEAP_BAD
         : bytes == 0                                                                             ? MAM_HEAP_ZERO
         : (mam_warp_taking_part(mam_load_relaxed_u64(&warp->lanes)) >> mam_warp_lane() & 1) == 0 ? MAM_HEAP_BAD
         : mam_out_of_sight(mam_heap_could)(warp->control, bytes)                                 ? MAM_HEAP_FULL
                                                                                                  : MAM_HEAP_TOO_LARGE;
  return block;
}

/* ---- Leaving ---- */

/* Lanes leave, each group of one header together. */
MAM_OUTLINE void mam_warp_leave_rest(mam_warp *warp, enum mam_warp_leaving how) {
  mam_u32 group = __match_any_sync(__activemask(), (mam_u64)warp);
  struct mam_lanes lanes = mam_lanes_of(group);
  mam_u64 what = MAM_WARP_NOTHING;
  __syncwarp(group); /* what each did comes before its leaving */
  if (lanes.rank == 0)
    what = (mam_u64)mam_warp_leave(warp, group, how);
  __syncwarp(group);
  if (mam_lanes_first_u64(lanes, what) == MAM_WARP_ROUND)
    mam_warp_round(warp, lanes);
  __syncwarp(group);
}

static __device__ __forceinline__ void mam_warp_tidy_up(mam_warp *warp) {
  if (mam_warp_sound(warp))
    mam_out_of_sight(mam_warp_leave_rest)(warp, MAM_WARP_TIDIES);
}

static __device__ __forceinline__ void mam_warp_end(mam_warp *warp) {
  if (!mam_warp_sound(warp))
    return;
  if (__activemask() == 0xffffffffu) {
    bool same = mam_warp_alike(warp, 0);
    __syncwarp(0xffffffffu);
    mam_u64 list = mam_warp_word(mam_warp_list_inside(warp), 0);
    bool plain =
        same & (warp->lanes == MAM_FULL_WORD) & (warp->list == list) & (warp->early == 0) & (warp->handed_over == 0);
    if (__all_sync(0xffffffffu, plain)) {
      if (mam_warp_lane() == 0)
        mam_warp_vanish(warp);
      return;
    }
  }
  mam_out_of_sight(mam_warp_leave_rest)(warp, MAM_WARP_ENDS);
}

static __device__ __forceinline__ mam_warp *mam_warp_hand_over(mam_warp *warp) {
  if (!mam_warp_sound(warp) || (mam_warp_taking_part(mam_load_relaxed_u64(&warp->lanes)) >> mam_warp_lane() & 1) == 0)
    return 0;
  mam_store_relaxed_u32(&warp->handed_over, 1);
  mam_out_of_sight(mam_warp_leave_rest)(warp, MAM_WARP_ENDS);
  return warp;
}

MAM_OUTLINE mam_warp *mam_warp_adopt_rest(mam_warp *warp) {
  mam_u32 group = __match_any_sync(__activemask(), (mam_u64)warp);
  mam_u32 adopted = 0;
  if ((group & mam_lane_below()) == 0)
    adopted = (mam_u32)mam_warp_adopt_by(warp, group, mam_warp_self());
  mam_fence(); /* lanes may have read the header before, as it was */
  __syncwarp(group);
  return __shfl_sync(group, adopted, (int)mam_lowest_u32(group)) != 0 ? warp : 0;
}

static __device__ __forceinline__ mam_warp *mam_warp_adopt(mam_warp *warp) {
  return warp != 0 ? mam_out_of_sight(mam_warp_adopt_rest)(warp) : 0;
}

#endif /* MAM_WARP_CUH */
