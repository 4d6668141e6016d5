/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp.h - warp heaps that kernels did not end: the calls of the host.
 *
 * A kernel that starts a warp heap (mam/warp.cuh) has to end it, or to hand it over to a kernel that does.  A warp heap
 * that no kernel ends keeps its memory in the device heap.  The calls here find and free it.
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

/* The header of a warp heap that was not ended. */
typedef struct MAM_WarpHeader {
  void *address;          /* on the device: what mam_warp_start returned */
  uint32_t total_lanes;   /* a bit for each lane that takes part (the paper on FDGMalloc: TotalCount) */
  uint32_t active_lanes;  /* a bit for each of these that has not tidied up in this round (ActiveCount) */
  uint32_t handed_over;   /* 1 if the header waits for mam_warp_adopt; then no lane takes part */
  uint32_t block_bytes;   /* its requests are rounded up to a multiple of this */
  size_t allocated_count; /* superblocks except the first one, and requests that were larger than a superblock */
  size_t bytes;           /* of all its blocks in the device heap, the header's own block included */
} MAM_WarpHeader;

/* Lists the headers that were not ended, in the order of their addresses.  The call writes the first capacity headers
 * to the array headers, and the number of all to *count.  headers may be NULL if capacity is 0.  No kernel may use the
 * heap during the call.  It takes 48 bytes of the heap's pool for each live block of at least 192 bytes, and gives them
 * back before it returns.
 *
 * The call knows a header by a mark in it.  After MAM_HeapReset, a block in the place of a former header may still have
 * the mark, until its owner writes to it.
 *
 * cudaErrorInvalidValue          count is NULL, or headers is NULL and capacity is not 0
 * cudaErrorMemoryAllocation      the pool or the host has no memory for the work */
MAM_API cudaError_t MAM_WarpList(MAM_Heap heap, MAM_WarpHeader *headers, size_t capacity, size_t *count);

/* Frees all memory of a header, and the header, as if all its lanes had ended it.  header is a device address and may
 * be NULL.  No kernel may use the header during the call.
 *
 * cudaSuccess                    the header is freed; also for NULL
 * cudaErrorInvalidValue          no header begins at that address */
MAM_API cudaError_t MAM_WarpEnd(MAM_Heap heap, void *header);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* MAM_WARP_H */
