/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of defragmentation: compact_core.h, a block of threads for each team.  Their order is compact.c's.
 */
#ifndef MAM_LIB_COMPACT_KERNELS_CUH
#define MAM_LIB_COMPACT_KERNELS_CUH

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include <mam/heap_core.h>

enum { TEAM_THREADS = 256 };

typedef cub::BlockReduce<mam_u64, TEAM_THREADS> team_reduce;
typedef cub::BlockScan<mam_u32, TEAM_THREADS> team_scan;

struct mam_team {
  mam_u32 rank, count;
};

static __device__ struct mam_team team_here(void) {
  struct mam_team team = {threadIdx.x, TEAM_THREADS};
  return team;
}

static __device__ void mam_team_sync(struct mam_team) { __syncthreads(); }

static __device__ mam_u64 mam_team_sum(struct mam_team team, mam_u64 value) {
  __shared__ team_reduce::TempStorage storage;
  __shared__ mam_u64 all;
  value = team_reduce(storage).Sum(value);
  if (team.rank == 0)
    all = value;
  __syncthreads();
  value = all;
  __syncthreads();
  return value;
}

static __device__ mam_u32 mam_team_scan(struct mam_team, mam_u32 value, mam_u32 *total) {
  __shared__ team_scan::TempStorage storage;
  mam_u32 before;
  team_scan(storage).ExclusiveSum(value, before, *total);
  __syncthreads();
  return before;
}

#include "compact_core.h"

/* Empties the slots of types: they are behind those of size classes. */
extern "C" __global__ void mam_kernel_compact_slots(struct mam_compact *compact) {
  const mam_heap *heap = &compact->control->heap;
  mam_u32 i = MAM_HEAP_CLASSES * heap->slot_count + blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < (MAM_HEAP_CLASSES + compact->types) * heap->slot_count; i += gridDim.x * blockDim.x)
    mam_compact_slot_empty(compact->control, i);
}

/* Counts slots that somebody asked meanwhile. */
extern "C" __global__ void mam_kernel_compact_watch(struct mam_compact *compact) {
  const mam_heap *heap = &compact->control->heap;
  mam_u32 i = MAM_HEAP_CLASSES * heap->slot_count + blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < (MAM_HEAP_CLASSES + compact->types) * heap->slot_count; i += gridDim.x * blockDim.x)
    if (!mam_compact_slot_is_untouched(compact->control, i))
      (void)mam_add_relaxed_u32(&compact->slots_used, 1);
}

extern "C" __global__ void __launch_bounds__(TEAM_THREADS)
    mam_kernel_compact_look(struct mam_compact *compact, mam_u32 with_spans) {
  for (mam_u32 tile = blockIdx.x; tile < compact->tiles; tile += gridDim.x)
    mam_tile_look(team_here(), compact, tile, (int)with_spans);
}

extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_sum(struct mam_compact *compact) {
  mam_compact_sum(team_here(), compact);
}

extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_order(struct mam_compact *compact) {
  for (mam_u32 tile = blockIdx.x; tile < compact->tiles; tile += gridDim.x)
    mam_tile_order(team_here(), compact, tile);
}

extern "C" __global__ void __launch_bounds__(TEAM_THREADS) mam_kernel_compact_merge(struct mam_compact *compact) {
  __shared__ struct mam_merge_room room;
  for (mam_u32 number = blockIdx.x; mam_compact_merge(team_here(), compact, &room, number); number += gridDim.x)
    continue;
}

/* A warp for each usage word of the spans in the list. */
extern "C" __global__ void mam_kernel_compact_rewrite(struct mam_compact *compact) {
  if (compact->done.moved == 0)
    return;
  mam_heap heap = compact->control->heap;
  mam_u64 chunks = (mam_u64)compact->span_count * MAM_SPAN_CHUNKS, step = (mam_u64)gridDim.x * blockDim.x;
  for (mam_u64 i = (mam_u64)blockIdx.x * blockDim.x + threadIdx.x; i < chunks; i += step)
    mam_object_rewrite(&heap, compact, (mam_u32)(i / MAM_SPAN_CHUNKS), (mam_u32)(i % MAM_SPAN_CHUNKS));
}

extern "C" __global__ void mam_kernel_compact_roots(const struct mam_compact *compact, mam_u64 *roots, mam_u64 count) {
  if (compact->done.moved == 0)
    return;
  mam_heap heap = compact->control->heap;
  for (mam_u64 i = (mam_u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (mam_u64)gridDim.x * blockDim.x)
    mam_pointer_rewrite(&heap, &roots[i]);
}

/* A warp for each word of a superblock's page map. */
extern "C" __global__ void mam_kernel_compact_release(struct mam_area area) {
  mam_u32 warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, step = gridDim.x * blockDim.x / 32;
  for (mam_u32 i = warp; i < mam_area_map_words(area); i += step)
    mam_moved_release(area, i, mam_lanes_of(0xffffffff));
}

#endif
