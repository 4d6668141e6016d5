/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A heap as other files of the library see it that work on it: heap_compact.c, heap_warp.c.
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
  const mam_heap *handle;
  const struct mam_area *areas;
  mam_u32 count;                 /* of superblocks */
  struct heap_compact **compact; /* what heap_compact.c knows of the heap; NULL: nothing yet */
};

/* Takes the lock of a heap, in whatever state a compaction of it is. */
cudaError_t heap_inside_enter(MAM_Heap heap, struct heap_inside *inside);
/* Returns error. */
cudaError_t heap_inside_leave(MAM_Heap heap, cudaError_t error);

/* Of heap_compact.c, with the heap's lock held: whether a compaction has begun and not ended. */
bool heap_compact_is_open(const struct heap_compact *compact);
/* The same without the lock, of a heap that goes.  NULL is nothing. */
void heap_compact_free(struct heap_compact *compact, const struct heap_gpu *gpu);

#endif
