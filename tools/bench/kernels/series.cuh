/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of `mam-bench warp`, the same for all allocators: each allocator's file defines
 *
 *   struct series {
 *     struct handle;                                     at most heap_handle_words words, passed by value
 *     __device__ series(const handle &, const series_work &);
 *     __device__ void *take(unsigned i);                 the thread's request i; NULL if it has nothing
 *     __device__ void finish();                          frees all that this thread has taken
 *     __device__ heap_word keep();                       leaves it to another kernel, which
 *     static __device__ void drop(const handle &, const series_work &, heap_word thread);   frees it
 *   };
 *
 * and includes this file, which makes a module of it.
 */
#include "series.h"

static __device__ heap_word series_thread() { return blockIdx.x * (heap_word)blockDim.x + threadIdx.x; }

/* An adapter defines this if its kernel needs it for thread blocks of 1,024. */
#ifndef SERIES_BOUNDS
#define SERIES_BOUNDS
#endif

/* What is timed: the requests, and the frees. */
extern "C" __global__ void SERIES_BOUNDS series_whole(series::handle heap, struct series_work work) {
  if (series_thread() >= work.threads)
    return;
  unsigned failed = 0;
  series self(heap, work);
#pragma unroll 1
  for (unsigned i = 0; i < work.count; i++)
    failed += self.take(i) == NULL;
  self.finish();
  if (failed != 0)
    atomicAdd(work.failed, (heap_word)failed);
}

/* The two halves as kernels of their own, so that the blocks can be checked in between. */
extern "C" __global__ void series_keep(series::handle heap, struct series_work work) {
  heap_word thread = series_thread();
  if (thread >= work.threads)
    return;
  series self(heap, work);
#pragma unroll 1
  for (unsigned i = 0; i < work.count; i++)
    work.slots[i * work.threads + thread] = (heap_word)self.take(i);
  work.handles[thread] = self.keep();
}

extern "C" __global__ void series_drop(series::handle heap, struct series_work work) {
  if (series_thread() < work.threads)
    series::drop(heap, work, series_thread());
}
