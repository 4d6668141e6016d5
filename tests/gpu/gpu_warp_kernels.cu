/* SPDX-License-Identifier: BSD-2-Clause */
#include <mam/warp.cuh>

#include <cooperative_groups.h>

#include "gpu_warp_kernels.h"

#if MAM_HEAP_CHECKED
#define NAME(name) gpu_warp_checked_##name
#else
#define NAME(name) gpu_warp_##name
#endif

namespace groups = cooperative_groups;

static const unsigned threads_per_block = 128;

static __device__ void count(unsigned long long *number, unsigned long long more) {
  if (more != 0)
    atomicAdd(number, more);
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

struct request {
  unsigned bytes;
  uint32_t seed;
};

static __device__ struct request request_of(const struct gpu_warp_traffic &traffic, unsigned thread, unsigned round,
                                            unsigned i) {
  uint32_t seed = (thread * 0x9E3779B1u ^ round * 0x85EBCA6Bu ^ i * 0xC2B2AE35u) + traffic.seed;
  seed = (seed ^ seed >> 15) * 0x2C1B3C6Du;
  struct request request = {traffic.low + (seed >> 8) % (traffic.high - traffic.low + 1), seed};
  return request;
}

static __device__ void block_write(uint64_t block, struct request request) {
  for (unsigned i = 0; i < request.bytes / 4; i++)
    ((uint32_t *)block)[i] = gpu_pattern_word(request.seed, i);
  for (unsigned i = request.bytes / 4 * 4; i < request.bytes; i++)
    ((uint8_t *)block)[i] = gpu_pattern_byte(request.seed, i);
}

/* Volatile, so that memory is read and not a cache. */
static __device__ unsigned block_changes(uint64_t block, struct request request) {
  unsigned changes = 0;
  for (unsigned i = 0; i < request.bytes / 4; i++) {
    uint32_t difference = ((const volatile uint32_t *)block)[i] ^ gpu_pattern_word(request.seed, i);
    for (; difference != 0; difference >>= 8)
      changes += (difference & 0xFF) != 0;
  }
  for (unsigned i = request.bytes / 4 * 4; i < request.bytes; i++)
    changes += ((const volatile uint8_t *)block)[i] != gpu_pattern_byte(request.seed, i);
  return changes;
}

/* Makes a request and counts everything that its answer says. */
static __device__ uint64_t ask(mam_warp *warp, unsigned bytes, struct gpu_warp_tally *tally) {
  mam_heap_status why = MAM_HEAP_BAD;
  uint64_t block = (uint64_t)mam_warp_malloc_why(warp, bytes, &why);
  count(block != 0 ? &tally->served : &tally->refused[(unsigned)why < 5 ? why : MAM_HEAP_BAD], 1);
  count(&tally->contradictions, (block != 0) != (why == MAM_HEAP_OK));
  count(&tally->misaligned, block % 16 != 0);
  return block;
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

static __device__ bool takes_part(const struct gpu_warp_traffic &traffic, unsigned thread) {
  unsigned mask = (thread / 32 + traffic.seed) * 0x9E3779B1u | 1u << (thread / 32 % 32);
  bool by_mask =
      traffic.lanes == GPU_WARP_SOME || traffic.lanes == GPU_WARP_FULL_MASK || traffic.lanes == GPU_WARP_PASSERS_BY;
  return !by_mask || (mask >> thread % 32 & 1) != 0;
}

template <unsigned Size> static __device__ mam_warp *start_tile(mam_device_heap heap) {
  return mam_warp_start(heap, groups::tiled_partition<Size>(groups::this_thread_block()));
}

static __device__ mam_warp *start(mam_device_heap heap, const struct gpu_warp_traffic &traffic) {
  switch (traffic.lanes) {
  case GPU_WARP_TILES:
    return start_tile<1>(heap);
  case GPU_WARP_TILES + 1:
    return start_tile<2>(heap);
  case GPU_WARP_TILES + 2:
    return start_tile<4>(heap);
  case GPU_WARP_TILES + 3:
    return start_tile<8>(heap);
  case GPU_WARP_TILES + 4:
    return start_tile<16>(heap);
  case GPU_WARP_TILES + 5:
    return start_tile<32>(heap);
  case GPU_WARP_FULL_MASK:
    return mam_warp_start_lanes(heap, 0xFFFFFFFF, traffic.options, NULL);
  default:
    return mam_warp_start_lanes(heap, __activemask(), traffic.options, NULL);
  }
}

static __device__ uint64_t ask_as_lanes_do(mam_warp *warp, const struct gpu_warp_traffic &traffic, unsigned bytes,
                                           struct gpu_warp_tally *tally) {
  uint64_t block = 0;
  if (traffic.lanes == GPU_WARP_ONE_BY_ONE) {
    for (unsigned lane = 0; lane < 32; lane++)
      if (lane == threadIdx.x % 32)
        block = ask(warp, bytes, tally);
    return block;
  }
  if (traffic.lanes == GPU_WARP_HALVES && threadIdx.x % 2 == 0)
    return ask(warp, bytes, tally);
  return ask(warp, bytes, tally);
}

/* One round: requests with their patterns, which are all checked at the end.  If blocks is NULL, only the last few are
 * remembered. */
static __device__ void round_run(mam_warp *warp, const struct gpu_warp_traffic &traffic, unsigned thread,
                                 unsigned round, uint64_t *blocks, struct gpu_warp_tally *tally) {
  for (unsigned i = 0; i < traffic.requests; i++) {
    struct request request = request_of(traffic, thread, round, i);
    uint64_t block = ask_as_lanes_do(warp, traffic, request.bytes, tally);
    blocks[i * traffic.threads + thread] = block;
    if (block != 0)
      block_write(block, request);
  }
  for (unsigned i = 0; i < traffic.requests; i++)
    if (blocks[i * traffic.threads + thread] != 0)
      count(&tally->changed_bytes,
            block_changes(blocks[i * traffic.threads + thread], request_of(traffic, thread, round, i)));
}

static __device__ unsigned rounds_of(const struct gpu_warp_traffic &traffic, unsigned thread) {
  return traffic.lanes == GPU_WARP_END_EARLY ? 1 + thread * 7 % traffic.rounds : traffic.rounds;
}

static __global__ void run_kernel(mam_device_heap heap, struct gpu_warp_traffic traffic, int keeps, uint64_t *headers,
                                  uint64_t *blocks, struct gpu_warp_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  bool takes = takes_part(traffic, thread);
  if (thread >= traffic.threads || (!takes && traffic.lanes != GPU_WARP_PASSERS_BY))
    return;
  if (takes) {
    mam_warp *warp = start(heap, traffic);
    count(warp != NULL ? &tally->started : &tally->not_started, 1);
    unsigned rounds = rounds_of(traffic, thread);
    for (unsigned round = 0; warp != NULL && round < rounds; round++) {
      round_run(warp, traffic, thread, round, blocks, tally);
      if (round + 1 < rounds && (traffic.lanes != GPU_WARP_TIDY_LESS || (thread + round) % 5 != 0))
        mam_warp_tidy_up(warp);
    }
    if (keeps)
      headers[thread] = (uint64_t)mam_warp_hand_over(warp);
    else
      mam_warp_end(warp);
  }
  __syncwarp(__activemask()); /* passers-by */
}

static __global__ void check_kernel(struct gpu_warp_traffic traffic, const uint64_t *headers, const uint64_t *blocks,
                                    struct gpu_warp_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= traffic.threads || headers[thread] == 0)
    return;
  for (unsigned i = 0; i < traffic.requests; i++)
    if (blocks[i * traffic.threads + thread] != 0)
      count(&tally->changed_bytes, block_changes(blocks[i * traffic.threads + thread],
                                                 request_of(traffic, thread, rounds_of(traffic, thread) - 1, i)));
}

static __global__ void finish_kernel(struct gpu_warp_traffic traffic, const uint64_t *headers,
                                     struct gpu_warp_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= traffic.threads)
    return;
  mam_warp *warp = mam_warp_adopt((mam_warp *)headers[thread]);
  if (warp == NULL)
    return;
  count(&tally->adopted, 1);
  struct request request = {100, thread};
  uint64_t block = ask(warp, request.bytes, tally);
  if (block != 0) {
    block_write(block, request);
    count(&tally->changed_bytes, block_changes(block, request));
  }
  mam_warp_end(warp);
}

/* ---- Misuse ------------------------------------------------------------------------------------------------------ */

static __global__ void misuse_kernel(mam_device_heap heap, uint64_t *headers, struct gpu_warp_tally *tally) {
  mam_warp *warp = NULL;
  if (threadIdx.x % 5 == 0)
    warp = mam_warp_start(heap);
  headers[threadIdx.x] = (uint64_t)warp;
  uint64_t block = ask(warp, 40, tally);
  if (block != 0)
    *(volatile unsigned *)block = threadIdx.x;
  if (threadIdx.x == 5)
    mam_warp_end(warp);
}

static __global__ void intrude_kernel(const uint64_t *headers, unsigned count_of_headers,
                                      struct gpu_warp_tally *tally) {
  for (unsigned i = 0; i < count_of_headers; i++)
    if (headers[i] != 0) {
      (void)ask((mam_warp *)headers[i], 48, tally);
      mam_warp_tidy_up((mam_warp *)headers[i]);
      mam_warp_end((mam_warp *)headers[i]);
    }
}

/* ---- From the host ----------------------------------------------------------------------------------------------- */

/* Groups that the program names also come in blocks of a warp and a quarter. */
static unsigned block_for(struct gpu_warp_traffic traffic) {
  return traffic.lanes == GPU_WARP_FULL_MASK || traffic.lanes >= GPU_WARP_TILES ? 40 : threads_per_block;
}
static unsigned grid_for(struct gpu_warp_traffic traffic) {
  return (traffic.threads + block_for(traffic) - 1) / block_for(traffic);
}

extern "C" cudaError_t NAME(run)(mam_device_heap heap, struct gpu_warp_traffic traffic, int keeps, uint64_t *headers,
                                 uint64_t *blocks, struct gpu_warp_tally *tally) {
  run_kernel<<<grid_for(traffic), block_for(traffic)>>>(heap, traffic, keeps, headers, blocks, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t NAME(check)(struct gpu_warp_traffic traffic, const uint64_t *headers, const uint64_t *blocks,
                                   struct gpu_warp_tally *tally) {
  check_kernel<<<grid_for(traffic), block_for(traffic)>>>(traffic, headers, blocks, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t NAME(finish)(struct gpu_warp_traffic traffic, const uint64_t *headers,
                                    struct gpu_warp_tally *tally) {
  finish_kernel<<<grid_for(traffic), block_for(traffic)>>>(traffic, headers, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t NAME(misuse)(mam_device_heap heap, unsigned threads, uint64_t *headers,
                                    struct gpu_warp_tally *tally) {
  misuse_kernel<<<1, threads>>>(heap, headers, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t NAME(intrude)(const uint64_t *headers, unsigned count_of_headers, struct gpu_warp_tally *tally) {
  intrude_kernel<<<1, 32>>>(headers, count_of_headers, tally);
  return cudaGetLastError();
}
