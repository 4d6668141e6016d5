/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef MAM_HEAP_CORE_H
#define MAM_HEAP_CORE_H

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

/* What kernels are given: the same for the life of a heap.  Its fields are the library's. */
typedef struct mam_heap {
  unsigned long long words[16];
} mam_heap;

#endif /* MAM_HEAP_CORE_H */
