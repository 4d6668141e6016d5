/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels that call an allocator, the same for all: each allocator's file defines
 *
 *   struct adapter {
 *     struct handle;                                           at most heap_handle_words words, passed by value
 *     static __device__ void *take(const handle &, size_t);    NULL if it has nothing
 *     static __device__ void give(const handle &, void *);     of a block that is not NULL
 *     static __device__ size_t size(const handle &, void *);   bytes of a live block; 0 if it cannot say
 *   };
 *
 * and includes this file, which makes a module of it.  All modules have kernels of the same names.
 */
#include "work.h"

struct requester {
  heap_word request;
  bool asks;
};

static __device__ struct requester requester_of(const struct heap_work &work) {
  heap_word thread = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  struct requester self = {thread >> work.every_shift, (thread & ((1u << work.every_shift) - 1)) == 0};
  self.asks = self.asks && self.request < work.count;
  return self;
}

extern "C" __global__ void heap_malloc(adapter::handle heap, struct heap_work work) {
  struct requester self = requester_of(work);
  if (self.asks)
    work.slots[self.request] = (heap_word)adapter::take(heap, heap_size(&work, (unsigned)self.request));
}

extern "C" __global__ void heap_free(adapter::handle heap, struct heap_work work) {
  struct requester self = requester_of(work);
  if (!self.asks)
    return;
  heap_word block = work.slots[self.request];
  if (block != 0)
    adapter::give(heap, (void *)block);
}

/* Makes a request and measures its cycles, from one clock to the other. */
static __device__ void *take_timed(const adapter::handle &heap, size_t bytes, unsigned *cycles) {
  long long start = clock64();
  void *block = adapter::take(heap, bytes);
  long long span = clock64() - start;
  *cycles = (unsigned)(span < heap_cycles_most ? span : heap_cycles_most) | (block == NULL ? heap_cycles_failed : 0);
  return block;
}

static __device__ void give_timed(const adapter::handle &heap, void *block, unsigned *cycles) {
  long long start = clock64();
  adapter::give(heap, block);
  long long span = clock64() - start;
  *cycles = (unsigned)(span < heap_cycles_most ? span : heap_cycles_most) | heap_cycles_free;
}

/* One round of churn: a thread that has a block frees it, and one that has none allocates, each with its chance. */
extern "C" __global__ void heap_churn(adapter::handle heap, struct heap_work work) {
  struct requester self = requester_of(work);
  if (!self.asks)
    return;
  heap_word block = work.slots[self.request];
  unsigned chance = heap_mix((unsigned)self.request * 0x85ebca6bu ^ heap_mix(work.seed)) % heap_chance_whole;
  if (block == 0 && chance < work.alloc_chance)
    work.slots[self.request] = (heap_word)adapter::take(heap, heap_size(&work, (unsigned)self.request));
  if (block != 0 && chance < work.free_chance) {
    adapter::give(heap, (void *)block);
    work.slots[self.request] = 0;
  }
}

/* The same, and notes the cycles of each call and the size. */
extern "C" __global__ void heap_churn_timed(adapter::handle heap, struct heap_work work) {
  struct requester self = requester_of(work);
  if (!self.asks)
    return;
  heap_word block = work.slots[self.request];
  unsigned chance = heap_mix((unsigned)self.request * 0x85ebca6bu ^ heap_mix(work.seed)) % heap_chance_whole;
  unsigned cycles = 0;
  if (block == 0 && chance < work.alloc_chance) {
    unsigned bytes = heap_size(&work, (unsigned)self.request);
    work.slots[self.request] = (heap_word)take_timed(heap, bytes, &cycles);
    work.sizes[self.request] = bytes;
  }
  if (block != 0 && chance < work.free_chance) {
    give_timed(heap, (void *)block, &cycles);
    work.slots[self.request] = 0;
  }
  work.cycles[self.request] = cycles;
}

/* Adds up the live blocks: their number, their size, and how much of it is not used. */
extern "C" __global__ void heap_look_inside(adapter::handle heap, struct heap_work work, struct heap_inside *inside) {
  struct requester self = requester_of(work);
  if (!self.asks || work.slots[self.request] == 0)
    return;
  heap_word asked = work.sizes[self.request], size = adapter::size(heap, (void *)work.slots[self.request]);
  atomicAdd(&inside->blocks, 1ull);
  atomicAdd(&inside->asked_bytes, asked);
  atomicAdd(&inside->block_bytes, size);
  if (size != 0)
    atomicAdd(&inside->waste, ((double)size - (double)asked) / (double)size);
}
