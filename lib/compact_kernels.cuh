/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of defragmentation: compact_core.h, with blocks of threads and warps for teams.  Their order is
 * compact.c's.
 */
#ifndef MAM_LIB_COMPACT_KERNELS_CUH
#define MAM_LIB_COMPACT_KERNELS_CUH

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

#include <mam/heap_core.h>

enum { TEAM_THREADS = 256, WARP_THREADS = 32, WARPS = TEAM_THREADS / WARP_THREADS };

typedef cub::BlockReduce<mam_u64, TEAM_THREADS> block_reduce;
typedef cub::BlockScan<mam_u32, TEAM_THREADS> block_scan;
typedef cub::WarpScan<mam_u32> warp_scan;

/* A block of threads or a warp, which count tells apart; it is known where the functions below are called. */
struct mam_team {
  mam_u32 rank, count;
};

static __device__ __forceinline__ struct mam_team block_here(void) {
  struct mam_team team = {threadIdx.x, TEAM_THREADS};
  return team;
}

static __device__ __forceinline__ struct mam_team warp_here(void) {
  struct mam_team team = {threadIdx.x % WARP_THREADS, WARP_THREADS};
  return team;
}

static __device__ __forceinline__ void mam_team_sync(struct mam_team team) {
  if (team.count == WARP_THREADS)
    __syncwarp();
  else
    __syncthreads();
}

static __device__ __forceinline__ mam_u64 warp_sum(mam_u64 value) {
  for (int distance = WARP_THREADS / 2; distance != 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

static __device__ __forceinline__ mam_u64 block_sum(struct mam_team team, mam_u64 value) {
  __shared__ block_reduce::TempStorage storage;
  __shared__ mam_u64 all;
  value = block_reduce(storage).Sum(value);
  if (team.rank == 0)
    all = value;
  __syncthreads();
  value = all;
  __syncthreads();
  return value;
}

static __device__ __forceinline__ mam_u64 mam_team_sum(struct mam_team team, mam_u64 value) {
  return team.count == WARP_THREADS ? warp_sum(value) : block_sum(team, value);
}

static __device__ __forceinline__ mam_u32 block_scan_sum(mam_u32 value, mam_u32 *total) {
  __shared__ block_scan::TempStorage storage;
  mam_u32 before;
  block_scan(storage).ExclusiveSum(value, before, *total);
  __syncthreads();
  return before;
}

static __device__ __forceinline__ mam_u32 warp_scan_sum(mam_u32 value, mam_u32 *total) {
  __shared__ warp_scan::TempStorage storage[WARPS];
  mam_u32 before;
  warp_scan(storage[threadIdx.x / WARP_THREADS]).ExclusiveSum(value, before, *total);
  __syncwarp();
  return before;
}

static __device__ __forceinline__ mam_u32 mam_team_scan(struct mam_team team, mam_u32 value, mam_u32 *total) {
  return team.count == WARP_THREADS ? warp_scan_sum(value, total) : block_scan_sum(value, total);
}

#include "compact_core.h"

/* Begins a compaction: writes what it works with, and empties the slots of types, which are behind those of size
 * classes. */
extern "C" __global__ void mam_kernel_compact_begin(struct mam_compact *compact, struct mam_compact begun) {
  const mam_heap *heap = &begun.control->heap;
  mam_u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0)
    *compact = begun;
  for (i += MAM_HEAP_CLASSES * heap->slot_count; i < (MAM_HEAP_CLASSES + begun.types) * heap->slot_count;
       i += gridDim.x * blockDim.x)
    mam_compact_slot_empty(begun.control, i);
}

/* Counts slots that somebody asked meanwhile. */
extern "C" __global__ void mam_kernel_compact_watch(struct mam_compact *compact) {
  const mam_heap *heap = &compact->control->heap;
  mam_u32 i = MAM_HEAP_CLASSES * heap->slot_count + blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < (MAM_HEAP_CLASSES + compact->types) * heap->slot_count; i += gridDim.x * blockDim.x)
    if (!mam_compact_slot_is_untouched(compact->control, i))
      (void)mam_add_relaxed_u32(&compact->slots_used, 1);
}

/* Begins a pass with that n. */
extern "C" __global__ void __launch_bounds__(TEAM_THREADS)
    mam_kernel_compact_look(struct mam_compact *compact, mam_u32 n, mam_u32 with_spans) {
  if (blockIdx.x == 0 && threadIdx.x == 0)
    compact->n = n; /* for the kernels that follow */
  for (mam_u32 tile = blockIdx.x; tile < compact->tiles; tile += gridDim.x)
    mam_tile_look(block_here(), compact, n, tile, (int)with_spans);
}

extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_sum(struct mam_compact *compact) {
  mam_compact_sum(block_here(), compact);
}

extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_order(struct mam_compact *compact) {
  for (mam_u32 tile = blockIdx.x; tile < compact->tiles; tile += gridDim.x)
    mam_tile_order(block_here(), compact, tile);
}

/* Of one number of all threads of a block, to the sum that all blocks share. */
static __device__ void done_add(mam_u64 *sum, mam_u64 value) {
  value = block_sum(block_here(), value);
  if (threadIdx.x == 0 && value != 0)
    (void)mam_add_relaxed_u64(sum, value);
}

/* A warp for each merge. */
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_merge(struct mam_compact *compact) {
  __shared__ struct mam_merge_room rooms[WARPS];
  struct mam_team team = warp_here();
  struct mam_merge_room *room = &rooms[threadIdx.x / WARP_THREADS];
  struct mam_compact_done sum = {0, 0, 0, 0};
  mam_u32 number = blockIdx.x * WARPS + threadIdx.x / WARP_THREADS;
  while (mam_compact_merge(team, compact, room, number, &sum))
    number += gridDim.x * WARPS;
  if (!__syncthreads_or(sum.moved != 0))
    return;
  done_add(&compact->done.merges, team.rank == 0 ? sum.merges : 0);
  done_add(&compact->done.moved, team.rank == 0 ? sum.moved : 0);
  done_add(&compact->done.moved_bytes, team.rank == 0 ? sum.moved_bytes : 0);
  done_add(&compact->done.pages, team.rank == 0 ? sum.pages : 0);
}

/* A warp for each span with pointers. */
extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_rewrite(struct mam_compact *compact) {
  if (compact->done.moved == 0)
    return;
  mam_heap heap = compact->control->heap;
  mam_u32 count = compact->span_count;
  for (mam_u32 span = blockIdx.x * WARPS + threadIdx.x / WARP_THREADS; span < count; span += gridDim.x * WARPS)
    mam_span_rewrite(warp_here(), &heap, compact, span);
}

extern "C" __global__ void mam_kernel_compact_roots(const struct mam_compact *compact, mam_u64 *roots, mam_u64 count) {
  if (compact->done.moved == 0)
    return;
  mam_heap heap = compact->control->heap;
  mam_u64 threads = (mam_u64)gridDim.x * blockDim.x;
  mam_u64 first = (mam_u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (; first < count; first += MAM_COMPACT_BATCH * threads)
    mam_roots_rewrite(&heap, roots, count, first, threads);
}

/* A warp for each word of a superblock's page map. */
extern "C" __global__ void mam_kernel_compact_release(struct mam_area area) {
  mam_u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, step = gridDim.x * blockDim.x / 32;
  for (mam_u32 i = warp; i < mam_area_map_words(area); i += step)
    mam_moved_release(area, i, mam_lanes_of(0xffffffff));
}

#endif
