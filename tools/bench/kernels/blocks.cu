/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels that know only blocks, of whatever allocator: whether they overlap, and how long it takes to use them.
 *
 * width lanes look at a block together: one, as a thread that uses its own, or 32, a warp.
 */
#include <stddef.h>
#include <stdint.h>

#include "work.h"

extern "C" __global__ void heap_nothing(void) {}

/* Fills the slots with the blocks of a plain array, the yardstick. */
extern "C" __global__ void heap_plain(struct heap_work work, heap_word base) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  if (request < work.count)
    work.slots[request] = base + request * work.low;
}

static __device__ heap_word request_of(unsigned width) {
  return (blockIdx.x * (heap_word)blockDim.x + threadIdx.x) / width;
}

static __device__ unsigned bytes_of(const struct heap_work &work, heap_word request) {
  return work.sizes != NULL ? work.sizes[request] : heap_size(&work, (unsigned)request);
}

static __device__ bool is_sound(const struct heap_work &work, heap_word request, heap_word low, heap_word high) {
  heap_word block = work.slots[request];
  return block != 0 && block % 16 == 0 && block >= low && block + bytes_of(work, request) <= high;
}

/* Where a block is marked: every 16 bytes, and every 256 if it is large, so that the beginning or end of another block
 * inside it shows.  All marks differ from block to block. */
static __device__ unsigned mark_step(unsigned bytes) { return bytes < 16384 ? 16 : 256; }

extern "C" __global__ void heap_mark(struct heap_work work, unsigned width, heap_word low, heap_word high) {
  heap_word request = request_of(width);
  if (request >= work.count || !is_sound(work, request, low, high))
    return;
  unsigned bytes = bytes_of(work, request), step = mark_step(bytes);
  for (heap_word at = threadIdx.x % width * (heap_word)step; at + 4 <= bytes; at += (heap_word)width * step)
    *(volatile unsigned *)(work.slots[request] + at) = (unsigned)request + 1;
}

/* Checks the marks, and counts what else is wrong. */
extern "C" __global__ void heap_check(struct heap_work work, unsigned width, heap_word low, heap_word high,
                                      struct heap_faults *faults) {
  heap_word request = request_of(width);
  if (request >= work.count)
    return;
  heap_word block = work.slots[request];
  bool leads = threadIdx.x % width == 0;
  if (!is_sound(work, request, low, high)) {
    if (leads)
      atomicAdd(block == 0 ? &faults->failed : block % 16 != 0 ? &faults->misaligned : &faults->outside, 1ull);
    return;
  }
  unsigned bytes = bytes_of(work, request), step = mark_step(bytes);
  bool lost = false;
  for (heap_word at = threadIdx.x % width * (heap_word)step; at + 4 <= bytes; at += (heap_word)width * step)
    lost = lost || *(volatile unsigned *)(block + at) != (unsigned)request + 1;
  if (lost)
    atomicAdd(&faults->overlapped, 1ull);
}

/* Counts the requests that got a block, and the bytes that these asked for. */
extern "C" __global__ void heap_count(struct heap_work work, struct heap_inside *inside) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  bool served = request < work.count && work.slots[request] != 0;
  unsigned served_lanes = __ballot_sync(~0u, served);
  unsigned bytes = served ? bytes_of(work, request) : 0;
  for (int distance = 16; distance > 0; distance /= 2)
    bytes += __shfl_down_sync(~0u, bytes, distance);
  if (threadIdx.x % 32 == 0 && served_lanes != 0) {
    atomicAdd(&inside->blocks, (heap_word)__popc(served_lanes));
    atomicAdd(&inside->asked_bytes, (heap_word)bytes);
  }
}

/* Each thread writes its own block, 16 bytes at a time. */
extern "C" __global__ void heap_write_by_thread(struct heap_work work) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  if (request >= work.count)
    return;
  heap_word block = work.slots[request];
  unsigned word = (unsigned)request;
  for (unsigned at = 0; at < work.low; at += 16)
    *(uint4 *)(block + at) = make_uint4(word, word + 1, word + 2, word + at);
}

extern "C" __global__ void heap_read_by_thread(struct heap_work work, unsigned *sink) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  if (request >= work.count)
    return;
  heap_word block = work.slots[request];
  unsigned sum = 0;
  for (unsigned at = 0; at < work.low; at += 16) {
    uint4 words = *(const uint4 *)(block + at);
    sum += words.x ^ words.y ^ words.z ^ words.w;
  }
  if (sum == 0x9e3779b9u) /* hardly ever true: makes the compiler read the words */
    *sink = sum;
}

/* Each warp writes the blocks of its lanes, one after another, with all lanes on one block. */
extern "C" __global__ void heap_write_by_warp(struct heap_work work) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  unsigned lane = threadIdx.x % 32;
  heap_word own = request < work.count ? work.slots[request] : 0;
  for (int owner = 0; owner < 32; owner++) {
    heap_word block = __shfl_sync(~0u, own, owner);
    for (unsigned at = lane * 4; block != 0 && at < work.low; at += 128)
      *(unsigned *)(block + at) = at + owner;
  }
}

extern "C" __global__ void heap_read_by_warp(struct heap_work work, unsigned *sink) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  unsigned lane = threadIdx.x % 32, sum = 0;
  heap_word own = request < work.count ? work.slots[request] : 0;
  for (int owner = 0; owner < 32; owner++) {
    heap_word block = __shfl_sync(~0u, own, owner);
    for (unsigned at = lane * 4; block != 0 && at < work.low; at += 128)
      sum += *(const unsigned *)(block + at);
  }
  if (sum == 0x9e3779b9u)
    *sink = sum;
}

/* Each thread reads the words of its block one after another.  cycles becomes the time of one access. */
extern "C" __global__ void heap_touch_timed(struct heap_work work, unsigned *sink) {
  heap_word request = blockIdx.x * (heap_word)blockDim.x + threadIdx.x;
  if (request >= work.count)
    return;
  heap_word block = work.slots[request];
  unsigned words = block == 0 ? 0 : work.sizes[request] / 4, sum = 0;
  long long start = clock64();
  for (unsigned i = 0; i < words; i++)
    sum += *(const unsigned *)(block + 4ull * i);
  long long span = clock64() - start;
  if (sum == 0x9e3779b9u)
    *sink = sum;
  work.cycles[request] = words == 0 ? 0 : (unsigned)(span / words);
}
