/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp.h - warp heaps that kernels left behind: what the host does with them.
 *
 * A kernel that starts a warp heap (mam/warp.cuh) has to end it, or to hand it over to one that does.  What was never
 * ended keeps its memory in the device heap.  Here it is found and freed.
 *
 * Units, results, threads and streams: as in mam/heap.h.
 */
#ifndef MAM_WARP_H
#define MAM_WARP_H

#include <mam/heap.h>
#include <mam/warp_types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A header that was not ended. */
typedef struct MAM_WarpHeader {
  void *address;         /* on the device: what mam_warp_start returned */
  uint32_t total_lanes;  /* a bit for each lane that takes part (the paper: TotalCount) */
  uint32_t active_lanes; /* of these, that have not tidied up while others have (ActiveCount) */
  uint32_t handed_over;  /* 1 if it waits for mam_warp_adopt; then no lane takes part */
  uint32_t block_bytes;  /* what its requests are rounded up to */
  size_t
      allocated_count; /* its superblocks and requests that were larger than one, the first superblock not included */
  size_t bytes;        /* of all its blocks in the device heap, its own included */
} MAM_WarpHeader;

/* Writes up to capacity headers that were not ended, in the order of their addresses, to headers and how many there are
 * in all to *count.  No kernel may use the heap meanwhile.  headers may be NULL if capacity is 0.  The work takes 8
 * bytes of the heap's pool for each live block of the heap that could be a header, and is done when this returns.
 *
 * A header is known by what it says of itself.  After MAM_HeapReset a block may still say so in whose place a header
 * was, until its owner writes to it.
 *
 * cudaErrorMemoryAllocation      the pool or the host has no memory for the work */
MAM_API cudaError_t MAM_WarpList(MAM_Heap heap, MAM_WarpHeader *headers, size_t capacity, size_t *count);

/* Frees everything that a header holds, and the header, as if all of its lanes had ended it.  No kernel may use it
 * meanwhile.
 *
 * cudaSuccess                    freed; also for NULL
 * cudaErrorInvalidValue          no header begins there */
MAM_API cudaError_t MAM_WarpEnd(MAM_Heap heap, void *header);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MAM_WARP_H */
