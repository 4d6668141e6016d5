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
#include <mam/warp_types.h>

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

#include <mam/detail/warp.cuh>

#endif /* MAM_WARP_CUH */
