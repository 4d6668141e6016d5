/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/heap_types.h - what host code and kernels both say about a device heap.  Needs no other header.
 */
#ifndef MAM_HEAP_TYPES_H
#define MAM_HEAP_TYPES_H

/* Why a request got no memory. */
typedef enum mam_heap_status {
  MAM_HEAP_OK = 0,
  MAM_HEAP_FULL = 1,
  MAM_HEAP_TOO_LARGE = 2,
  MAM_HEAP_ZERO = 3,
  MAM_HEAP_BAD = 4
} mam_heap_status;

/* The most superblocks that a heap can have. */
enum { MAM_HEAP_SUPERBLOCKS = 64 };

/* The most types that a heap can have. */
enum { MAM_HEAP_TYPES = 15 };

/* A type of objects in one heap: what MAM_HeapRegisterType wrote.  0 is none. */
typedef unsigned int mam_type;

struct mam_heap_control;

/* What kernels are given, by value: constant for the life of a heap.  Its fields are the library's: addresses on the
 * device, and what a kernel would otherwise have to load first.  The first superblock's are here because it never goes.
 */
typedef struct mam_heap {
  struct mam_heap_control *control;
  unsigned long long *slots; /* MAM_HEAP_KINDS times slot_count */
  unsigned long long *words; /* of the first superblock: see detail/heap_layout.h */
  unsigned short *entries;   /* of the first superblock */
  unsigned long long base;   /* of the first superblock's first page */
  unsigned long long chunks; /* of a span: base-2 logarithms, four bits for each shift */
  unsigned int page_count;   /* of the first superblock */
  unsigned int slot_count;   /* of each size class */
  unsigned int parks;        /* places for headers of warp heaps that wait for their next user: 0 or a power of two */
  unsigned short home_last;  /* multiprocessors beyond it count as this one */
  unsigned char warp_bits;   /* of a warp's number that tell a multiprocessor's slots apart */
  unsigned char home_shift;  /* so many multiprocessors share a slot, as a base-2 logarithm */
  unsigned int lazy;         /* whether empty spans are left to their slots until pages are scarce */
} mam_heap;

#endif /* MAM_HEAP_TYPES_H */
