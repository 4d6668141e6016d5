/* SPDX-License-Identifier: BSD-2-Clause */
/* What heap.c says of a heap to those who build on it: heap_warp.c. */
#ifndef MAM_LIB_HEAP_INSIDE_H
#define MAM_LIB_HEAP_INSIDE_H

#include "heap_gpu.h"
#include "mam/heap.h"

struct heap_inside {
  const struct heap_gpu *gpu;
  MAM_Pool pool;
  uint64_t control; /* on the device: the control block, and its answer to a question of the host */
  uint64_t answer;
};

/* Takes the lock of a heap, under which work on the GPU is in order; on failure it is not taken. */
cudaError_t heap_inside_enter(MAM_Heap heap, struct heap_inside *inside);

/* Leaves it, and returns error. */
cudaError_t heap_inside_leave(MAM_Heap heap, cudaError_t error);

#endif
