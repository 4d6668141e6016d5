/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A heap as heap_compact.c and heap_warp.c see it, which work on it and do not know struct mam_heap_host.
 */
#ifndef MAM_LIB_HEAP_INSIDE_H
#define MAM_LIB_HEAP_INSIDE_H

#include <stdbool.h>

#include "heap/heap_gpu.h"
#include "mam/detail/heap_core.h"
#include "mam/heap.h"

struct heap_compact;

/* Good while the heap's lock is held. */
struct heap_inside {
  const struct heap_gpu *gpu;
  MAM_Pool pool;
  const mam_device_heap *handle;
  const struct mam__area *areas;
  mam__u32 count;                /* of superblocks */
  bool *is_compacting;           /* a compaction has begun and not ended */
  struct heap_compact **compact; /* what heap_compact.c knows of the heap; NULL: nothing yet */
};

/* Takes the lock of a heap, also while it is being compacted. */
cudaError_t heap_inside_enter(MAM_Heap heap, struct heap_inside *inside);
/* Returns error. */
cudaError_t heap_inside_leave(MAM_Heap heap, cudaError_t error);

/* Of heap_compact.c: frees what it knows of a heap that is being destroyed.  gives: its block of the pool too, which is
 * still the heap's.  compact may be NULL.  No lock is needed. */
void heap_compact_free(struct heap_compact *compact, const struct heap_gpu *gpu, bool gives);

#endif
