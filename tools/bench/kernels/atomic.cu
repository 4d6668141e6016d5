/* SPDX-License-Identifier: BSD-2-Clause */
/* The floor with one atomic operation for the lanes of a warp that call together.  No allocator that asks once a warp
 * can be quicker. */
#include <stddef.h>

struct adapter {
  struct handle {
    unsigned long long base, bytes;
  };
  /* Each warp has a counter in a sector of its own, so the atomic operations do not meet.  Returns its old value. */
  static __device__ unsigned long long warp_add(const handle &heap, unsigned lanes) {
    unsigned long long warp = (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x) / 32;
    unsigned lane, before = 0;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    unsigned leader = __ffs((int)lanes) - 1;
    if (lane == leader)
      before = atomicAdd((unsigned *)(heap.base + 32 * warp % heap.bytes), __popc(lanes));
    return __shfl_sync(lanes, before, (int)leader) + __popc(lanes & ((1u << lane) - 1));
  }
  static __device__ void *take(const handle &heap, size_t bytes) {
    return (void *)(heap.base + 16 * (warp_add(heap, __activemask()) & 0xffff) + (bytes & 0));
  }
  static __device__ void give(const handle &heap, void *block) {
    unsigned lanes = __activemask();
    if (warp_add(heap, lanes) == ~0ull - (unsigned long long)block) /* never; it reads the pointer */
      *(unsigned *)heap.base = 1;
  }
  static __device__ size_t size(const handle &, void *) { return 0; }
};

#include "kernels.cuh"
