/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp.cuh - warp heaps: many small requests of a warp for the price of one, freed all at once.
 *
 *   __global__ void kernel(mam_device_heap heap) {
 *     mam_warp *warp = mam_warp_start(heap);
 *     while (...) {
 *       void *block = mam_warp_malloc(warp, bytes);
 *       ...
 *       mam_warp_tidy_up(warp);
 *     }
 *     mam_warp_end(warp);
 *   }
 *
 * A warp heap takes its memory from a device heap.  The design goes back to FDGMalloc: S. Widmer, D. Wodniok, N. Weber,
 * M. Goesele, "Fast Dynamic Memory Allocator for Massively Parallel Architectures".  mam-warp(7) has the concepts.
 *
 * Lanes of one warp start a header together and share it.  A lane takes part until it ends.  Other lanes of the warp
 * need not come.  Each lane that takes part may call any function, together with others or alone; the library serves
 * lanes that call together as one.  No function waits for lanes that do not come.
 *
 * The header works for sm_75 and later, with nvcc and NVRTC.  It needs no header outside of include/mam.  The device
 * handle is that of mam/device.cuh.  Sizes are in bytes.
 *
 * The program may define before it includes the header:
 *   MAM_HEAP_CHECKED   1: the functions notice a header that is invalid or belongs to another warp.  Such a call does
 *                      nothing, returns NULL, and is counted (MAM_HeapInfo, refused_free_count).  This costs time.
 *                      Default 0.
 */
#ifndef MAM_WARP_CUH
#define MAM_WARP_CUH

#include <mam/device.cuh>
#include <mam/warp_types.h>

typedef struct mam_warp mam_warp;

/* Starts a warp heap for the lanes that make this call together with the same device heap.  They take part from here
 * on.  Returns the header, the same for all of them, or NULL if the device heap has no room.  The header has its first
 * superblock. */
static __device__ mam_warp *mam_warp_start(mam_device_heap heap);

/* Starts a warp heap with other options for the given lanes: a bit for each lane of the warp.  All of these lanes make
 * the call, with the same arguments, and no others.  Lanes that have ended, and those that a small thread block does
 * not have, do not take part, as with __shfl_sync.  why may be NULL.  Otherwise *why becomes MAM_HEAP_OK; MAM_HEAP_FULL
 * if the device heap has no room; or MAM_HEAP_BAD if heap is no handle of a heap. */
static __device__ mam_warp *mam_warp_start_lanes(mam_device_heap heap, unsigned lanes, mam_warp_options options,
                                                 mam_heap_status *why);

/* Starts a warp heap for a group of cooperative groups within one warp: a tile, or coalesced threads.  All threads of
 * the group make the call, with the same device heap. */
template <typename Group> static __device__ mam_warp *mam_warp_start(mam_device_heap heap, const Group &group);

/* Allocates bytes bytes, rounded up to the header's block size, for the calling lane.  The address is a multiple of 16.
 * Lanes that call together get neighbouring memory, in the order of the lanes.  The memory is not initialised.  It
 * belongs to the lane until the lane tidies up or ends.  mam_free cannot free it.
 *
 * Returns NULL if bytes is 0, warp is NULL, the lane does not take part, or the device heap has no room.  Then nothing
 * changed. */
static __device__ void *mam_warp_malloc(mam_warp *warp, size_t bytes);

/* Allocates as mam_warp_malloc does and writes the reason to *why, which must not be NULL, as mam_malloc_why does.
 * MAM_HEAP_BAD also means that warp is NULL or the lane does not take part. */
static __device__ void *mam_warp_malloc_why(mam_warp *warp, size_t bytes, mam_heap_status *why);

/* Frees all memory that the lanes have allocated, when all lanes that take part have called this.  The last one frees
 * it.  No lane waits: a lane that has called it goes on, and what it allocates before the others have called it is
 * freed at the time after.  warp may be NULL, which does nothing. */
static __device__ void mam_warp_tidy_up(mam_warp *warp);

/* Ends the calling lane's part.  When no lane takes part any more, the last one frees all memory and the header.  warp
 * may be NULL, which does nothing. */
static __device__ void mam_warp_end(mam_warp *warp);

/* Ends the calling lane's part, but keeps the memory and the header for a later kernel, which calls mam_warp_adopt.
 * One lane that hands over is enough; the others end.  Returns the header, or NULL if the lane does not take part. */
static __device__ mam_warp *mam_warp_hand_over(mam_warp *warp);

/* Takes over a header for the lanes that make this call together with the same header.  They take part from here on.
 * The header must have been handed over, by lanes that have all returned from their last call.  Returns the header, or
 * NULL if warp is NULL, the header was not handed over, or other lanes have adopted it since. */
static __device__ mam_warp *mam_warp_adopt(mam_warp *warp);

#include <mam/detail/warp.cuh>

#endif /* MAM_WARP_CUH */
