/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/heap_types.h - types of device heaps that host code and kernels share.  Needs no other header.
 */
#ifndef MAM_HEAP_TYPES_H
#define MAM_HEAP_TYPES_H

/* Why a request got no memory. */
typedef enum mam_heap_status {
  MAM_HEAP_OK = 0,        /* it got memory */
  MAM_HEAP_FULL = 1,      /* the heap has no room for it */
  MAM_HEAP_TOO_LARGE = 2, /* the heap could not serve it even if it were empty */
  MAM_HEAP_ZERO = 3,      /* it is for 0 bytes */
  MAM_HEAP_BAD = 4        /* the handle is that of no heap, or the calling lane does not take part in the warp heap */
} mam_heap_status;
/* The most superblocks of a heap. */
enum { MAM_HEAP_SUPERBLOCKS = 64 };

/* The most types of a heap. */
enum { MAM_HEAP_TYPES = 15 };

/* A type of objects of one heap, from MAM_HeapRegisterType.  It is no type of another heap.  0 is no type. */
typedef unsigned int mam_type;

struct mam__heap_control;

/* The device handle of a heap: what MAM_HeapHandle writes and kernels take by value.  It is constant for the life of
 * the heap.  The fields are the library's: values that a kernel would otherwise have to load first.  The fields of the
 * first superblock are here because a heap keeps that superblock until its end.  A recursive function that has a handle
 * keeps it in each of its frames, so the handle is small. */
typedef struct mam_device_heap {
  struct mam__heap_control *control;
  unsigned long long tuning; /* how spans and slots are laid out: see detail/heap_words.h */
  unsigned long long base;   /* the address of the first superblock's pages */
  unsigned int page_count;   /* their number */
  unsigned short slot_count; /* slots of each size class */
  unsigned short number;     /* no other heap of the process has it at the same time; 0: the handle is of none */
} mam_device_heap;

/* Deprecated: the name differed from the host's MAM_Heap by case alone. */
typedef mam_device_heap mam_heap;

#endif /* MAM_HEAP_TYPES_H */
