/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Series of an allocator whose blocks are freed one by one: the thread remembers them, the first few in an array of its
 * own, the others in the slots.  The allocator's file defines
 *
 *   struct adapter, as for kernels.cuh
 *
 * and includes this file.
 */
#include "series.h"

enum { series_own_most = 16 };

struct series {
  typedef adapter::handle handle;

  __device__ series(const handle &heap_, const struct series_work &work_) : heap(heap_), work(work_) {}

  __device__ void *take(unsigned i) {
    void *block = adapter::take(heap, work.bytes);
    if (i < series_own_most)
      own[i] = block;
    else
      work.slots[i * work.threads + thread()] = (heap_word)block;
    return block;
  }

  __device__ void finish() {
#pragma unroll 1
    for (unsigned i = 0; i < work.count; i++) {
      void *block = i < series_own_most ? own[i] : (void *)work.slots[i * work.threads + thread()];
      if (block != NULL)
        adapter::give(heap, block);
    }
  }

  __device__ heap_word keep() { return 0; }

  static __device__ void drop(const handle &heap, const struct series_work &work, heap_word thread) {
#pragma unroll 1
    for (unsigned i = 0; i < work.count; i++) {
      heap_word block = work.slots[i * work.threads + thread];
      if (block != 0)
        adapter::give(heap, (void *)block);
    }
  }

private:
  static __device__ heap_word thread() { return blockIdx.x * (heap_word)blockDim.x + threadIdx.x; }
  const handle &heap;
  const struct series_work &work;
  void *own[series_own_most];
};

#include "series.cuh"
