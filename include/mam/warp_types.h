/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp_types.h - what host code and kernels both say about warp heaps.  Needs no other header.
 */
#ifndef MAM_WARP_TYPES_H
#define MAM_WARP_TYPES_H

/* How a warp heap takes memory of its device heap.  Start from MAM_WARP_OPTIONS_INIT.  What is out of its range becomes
 * the nearest value that is not. */
typedef struct mam_warp_options {
  unsigned superblock_bytes; /* of the first superblock that is asked of the device heap, at least block_bytes */
  unsigned first_bytes;      /* of the header's block, in which a superblock is already */
  unsigned list_entries;     /* of a list of superblocks, 1 to 4095; the first few are in the header */
  unsigned block_bytes;      /* what requests are rounded up to: a power of two, 16 to 4096 */
  unsigned most_bytes; /* superblocks grow fourfold up to this, to nearly 16 MiB, and to a 4096th of the heap; what
                          lanes ask for together that is more is served by the device heap directly */
} mam_warp_options;

/* clang-format off */
#define MAM_WARP_OPTIONS_INIT { 32u << 10, 10u << 10, 126, 16, 2u << 20 }
/* clang-format on */

#endif /* MAM_WARP_TYPES_H */
