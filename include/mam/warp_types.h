/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/warp_types.h - types of warp heaps that host code and kernels share.  Needs no other header.
 */
#ifndef MAM_WARP_TYPES_H
#define MAM_WARP_TYPES_H

/* How a warp heap takes memory from its device heap.  Start from MAM_WARP_OPTIONS_INIT.  A value out of its range
 * counts as the nearest one in it. */
typedef struct mam_warp_options {
  unsigned superblock_bytes; /* the size of the first superblock from the device heap: at least block_bytes */
  unsigned first_bytes;      /* the size of the header's block, which has a superblock in it */
  unsigned list_entries;     /* superblocks in one list, 1 to 4095; the header itself has room for a few */
  unsigned block_bytes;      /* requests are rounded up to a multiple of this: a power of two, 16 to 4096 */
  unsigned most_bytes; /* each superblock is four times as large as the one before, up to this, to nearly 16 MiB, and to
                          a 4096th of the heap rounded up to a power of two, but at least superblock_bytes.  If lanes
                          ask for more together, the device heap serves them directly */
} mam_warp_options;

/* clang-format off */
#define MAM_WARP_OPTIONS_INIT { 32u << 10, 10u << 10, 126, 16, 2u << 20 }
/* clang-format on */

#endif /* MAM_WARP_TYPES_H */
