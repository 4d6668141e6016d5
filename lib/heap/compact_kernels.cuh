/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernel of defragmentation: compact_core.h, whose teams are blocks of threads and warps here.  heap_compact.c says
 * what a run of it is to do.  This file does not know types, roots or where memory comes from.
 *
 *   mam_kernel_compact    slots, passes, pointers, release and lists; struct mam_compact.what says which of them
 *     grid_wait           all threads of the grid wait for each other between two steps
 *     report              the last block tells the host, by one word in its memory
 *
 * lib/heap/README.md, "Defragmentation", has the reasons and what was measured.
 */
#ifndef MAM_LIB_COMPACT_KERNELS_CUH
#define MAM_LIB_COMPACT_KERNELS_CUH

#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_scan.cuh>

#include "heap/compact_types.h"

enum { TEAM_THREADS = MAM_COMPACT_THREADS, WARP_THREADS = 32, WARPS = TEAM_THREADS / WARP_THREADS };

typedef cub::BlockScan<mam__u32, TEAM_THREADS> block_scan;
typedef cub::WarpScan<mam__u32> warp_scan;

/* A block of threads or a warp: count tells which.  The compiler knows count where the functions below are called. */
struct mam_team {
  mam__u32 rank, count;
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

static __device__ __forceinline__ mam__u64 warp_sum(mam__u64 value) {
  for (int distance = WARP_THREADS / 2; distance != 0; distance /= 2)
    value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

static __device__ __forceinline__ mam__u64 mam_team_sum(struct mam_team team, mam__u64 value) {
  __shared__ mam__u64 sums[WARPS];
  value = warp_sum(value);
  if (team.count == WARP_THREADS)
    return value;
  sums[threadIdx.x / WARP_THREADS] = value;
  __syncthreads();
  value = warp_sum(threadIdx.x % WARP_THREADS < WARPS ? sums[threadIdx.x % WARP_THREADS] : 0);
  __syncthreads();
  return value;
}

static __device__ __forceinline__ mam__u32 block_scan_sum(mam__u32 value, mam__u32 *total) {
  __shared__ block_scan::TempStorage storage;
  mam__u32 before;
  block_scan(storage).ExclusiveSum(value, before, *total);
  __syncthreads();
  return before;
}

static __device__ __forceinline__ mam__u32 warp_scan_sum(mam__u32 value, mam__u32 *total) {
  __shared__ warp_scan::TempStorage storage[WARPS];
  mam__u32 before;
  warp_scan(storage[threadIdx.x / WARP_THREADS]).ExclusiveSum(value, before, *total);
  __syncwarp();
  return before;
}

static __device__ __forceinline__ mam__u32 mam_team_scan(struct mam_team team, mam__u32 value, mam__u32 *total) {
  return team.count == WARP_THREADS ? warp_scan_sum(value, total) : block_scan_sum(value, total);
}

static __device__ __forceinline__ mam__u32 mam_read_if_u16(int wanted, const mam__u16 *place) {
  mam__u16 value;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b16 %0, 0;\n\t@p ld.global.u16 %0, [%1];\n\t}"
               : "=&h"(value)
               : "l"(mam__global(place)), "r"(wanted)
               : "memory");
  return value;
}
static __device__ __forceinline__ mam__u64 mam_read_once_if_u64(int wanted, const mam__u64 *place) {
  mam__u64 value;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b64 %0, 0;\n\t"
               "@p ld.global.L1::no_allocate.u64 %0, [%1];\n\t}"
               : "=&l"(value)
               : "l"(mam__global(place)), "r"(wanted)
               : "memory");
  return value;
}

#if __CUDA_ARCH__ >= 800

/* Which lines the L2 cache drops first.  Lines that a compaction marks to be dropped last lose the mark when they are
 * read for their pointers.  If they kept it, the program's kernels would miss that part of the cache for long. */
enum cache_drops { DROPS_FIRST, DROPS_LAST, DROPS_AS_USUAL };

static __device__ __forceinline__ mam__u64 cache_policy(enum cache_drops drops) {
  mam__u64 policy;
  if (drops == DROPS_FIRST)
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else if (drops == DROPS_LAST)
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  else
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

static __device__ __forceinline__ mam__u64 mam_read_pointer_if(int wanted, const mam__u64 *place) {
  mam__u64 value;
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\tmov.b64 %0, 0;\n\t"
               "@p ld.global.L1::no_allocate.L2::cache_hint.u64 %0, [%1], %3;\n\t}"
               : "=&l"(value)
               : "l"(mam__global(place)), "r"(wanted), "l"(cache_policy(DROPS_AS_USUAL))
               : "memory");
  return value;
}

/* Its line is dropped first and makes room for what is written. */
static __device__ __forceinline__ struct mam_unit mam_read_unit_once(const struct mam_unit *place) {
  struct mam_unit unit;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.u64 {%0, %1}, [%2], %3;"
               : "=l"(unit.low), "=l"(unit.high)
               : "l"(mam__global(place)), "l"(cache_policy(DROPS_FIRST))
               : "memory");
  return unit;
}

static __device__ __forceinline__ void mam_write_unit(struct mam_unit *place, struct mam_unit unit, int keep) {
  asm volatile("st.global.L2::cache_hint.v2.u64 [%0], {%1, %2}, %3;"
               :
               : "l"(mam__global(place)), "l"(unit.low), "l"(unit.high),
                 "l"(keep ? cache_policy(DROPS_LAST) : cache_policy(DROPS_AS_USUAL))
               : "memory");
}

#else

static __device__ __forceinline__ mam__u64 mam_read_pointer_if(int wanted, const mam__u64 *place) {
  return mam_read_once_if_u64(wanted, place);
}

static __device__ __forceinline__ struct mam_unit mam_read_unit_once(const struct mam_unit *place) {
  struct mam_unit unit;
  asm volatile("ld.global.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
               : "=l"(unit.low), "=l"(unit.high)
               : "l"(mam__global(place))
               : "memory");
  return unit;
}

static __device__ __forceinline__ void mam_write_unit(struct mam_unit *place, struct mam_unit unit, int) {
  *place = unit;
}

#endif

#include "heap/compact_core.h"

/* ---- All blocks together ----
 *
 * A block's threads write, wait for each other by __syncthreads, and one of them executes a memory barrier and
 * arrives.  After the wait, one thread executes a memory barrier again before all of them read.  So every block
 * reads what all blocks wrote. */

enum { BARRIER_ARRIVED = 0, BARRIER_TURN = 32 }; /* in two lines of the cache */

/* Waits until a word of the barrier has reached a value. */
static __device__ void grid_watch(const struct mam_compact &compact, mam__u32 word, mam__u32 until) {
  while (mam__load_relaxed_u32(&compact.barrier[word]) < until)
    continue;
  mam__barrier();
}

/* A block arrives at the barrier.  Returns whether it is the last one.  The last one sees what all blocks have written.
 */
static __device__ bool grid_arrive(const struct mam_compact &compact, mam__u32 turn) {
  bool last = false;
  __syncthreads();
  if (threadIdx.x == 0) {
    mam__barrier();
    last = mam__add_relaxed_u32(&compact.barrier[BARRIER_ARRIVED], 1) + 1 == turn * gridDim.x;
    if (last)
      mam__barrier();
  }
  return __syncthreads_or(last) != 0;
}

/* Ends what grid_arrive began: the other blocks wait until the last one gets here. */
static __device__ void grid_pass(const struct mam_compact &compact, mam__u32 turn, bool last) {
  if (last)
    __syncthreads();
  if (threadIdx.x == 0 && last) {
    mam__barrier();
    mam__store_relaxed_u32(&compact.barrier[BARRIER_TURN], turn);
  } else if (threadIdx.x == 0)
    grid_watch(compact, BARRIER_TURN, turn);
  __syncthreads();
}

/* All threads of the grid wait for each other.  Each sees afterwards what the others wrote before.  turn: how often
 * they have waited. */
static __device__ void grid_wait(const struct mam_compact &compact, mam__u32 *turn) {
  ++*turn;
  __syncthreads();
  if (threadIdx.x == 0) {
    mam__barrier();
    (void)mam__add_relaxed_u32(&compact.barrier[BARRIER_ARRIVED], 1);
    grid_watch(compact, BARRIER_ARRIVED, *turn * gridDim.x);
  }
  __syncthreads();
}

static __device__ mam__u32 grid_rank(void) { return blockIdx.x * TEAM_THREADS + threadIdx.x; }
static __device__ mam__u32 grid_threads(void) { return gridDim.x * TEAM_THREADS; }
static __device__ mam__u32 grid_warp(void) { return grid_rank() / WARP_THREADS; }
static __device__ mam__u32 grid_warps(void) { return gridDim.x * WARPS; }

/* ---- Pieces of a compaction ---- */

/* What a block's threads share.  They merge and rewrite at different times, so both use the same memory. */
struct rewrite_room {
  struct mam_span_left spans[TEAM_THREADS];
  struct mam__type_info types[MAM_HEAP_TYPES];
  struct mam_shape shapes[MAM_HEAP_TYPES + 1];
};
struct merge_room {
  struct mam_merge_room warps[WARPS];
  struct mam_compact_done done; /* atomic: all warps of the block add to it */
};
union room {
  struct merge_room merge;
  struct rewrite_room rewrite;
};

/* The first tile of a warp.  It goes on in steps of the number of warps.  The last warps come first, because the first
 * warps have slots to empty. */
static __device__ mam__u32 tile_first(void) { return grid_warps() - 1 - grid_warp(); }

/* Empties all typed slots.  Returns the span of the thread's last slot, for which the caller calls
 * mam_slot_emptied_end. */
static __device__ struct mam_slot_emptied slots_empty(const struct mam_compact &compact) {
  struct mam_slot_emptied emptied = {{0, 0, 0, 0}, 0, 0, 0, 0};
  mam__u32 count = compact.heap.slot_count;
  for (mam__u32 i = grid_rank(); i < compact.types * count; i += grid_threads()) {
    mam_slot_emptied_end(&emptied);
    emptied = mam_compact_slot_empty(&compact, i / count, i % count);
  }
  return emptied;
}

/* Counts the slots that were used during the run. */
static __device__ void slots_watch(const struct mam_compact &compact) {
  mam__u32 count = compact.heap.slot_count;
  for (mam__u32 i = grid_rank(); i < compact.types * count; i += grid_threads())
    if (!mam_compact_slot_is_untouched(&compact, i / count, i % count))
      (void)mam__add_relaxed_u32(&compact.state->slots_used, 1);
}

/* Looks at all tiles.  The last block that arrives makes the sums while the others wait.  The first block adds up what
 * was found; no other block waits for that. */
static __device__ void look(const struct mam_compact &compact, mam__u32 n, struct mam_slot_emptied *emptied,
                            mam__u32 *turn) {
  for (mam__u32 tile = tile_first(); tile < compact.tiles; tile += grid_warps())
    mam_tile_look(warp_here(), &compact, n, tile, emptied != NULL);
  if (emptied != NULL)
    mam_slot_emptied_end(emptied);
  bool last = grid_arrive(compact, ++*turn);
  if (last)
    mam_compact_sum(block_here(), &compact);
  grid_pass(compact, *turn, last);
  if (blockIdx.x == 0)
    mam_compact_found_sum(block_here(), &compact);
}

/* Each warp takes one merge after the other. */
static __device__ void merge(const struct mam_compact &compact, mam__u32 n, struct merge_room *room) {
  enum { NUMBERS = sizeof(struct mam_compact_done) / sizeof(mam__u64) };
  const struct mam_compact_done none = {0, 0, 0, 0};
  struct mam_team team = warp_here();
  struct mam_compact_done sum = none;
  mam__u32 number = grid_warp();
  if (threadIdx.x == 0)
    room->done = none;
  __syncthreads();
  while (mam_compact_merge(team, &compact, &room->warps[threadIdx.x / WARP_THREADS], n, number, &sum))
    number += grid_warps();
  if (team.rank == 0 && sum.moved != 0) {
    (void)atomicAdd(&room->done.merges, sum.merges);
    (void)atomicAdd(&room->done.moved, sum.moved);
    (void)atomicAdd(&room->done.moved_bytes, sum.moved_bytes);
    (void)atomicAdd(&room->done.pages, sum.pages);
  }
  __syncthreads();
  if (threadIdx.x < NUMBERS && room->done.moved != 0)
    (void)mam__add_relaxed_u64((mam__u64 *)&compact.state->done + threadIdx.x, ((mam__u64 *)&room->done)[threadIdx.x]);
}

/* All passes, with n from n_first to n_last. */
static __device__ void passes(const struct mam_compact &compact, union room *room, struct mam_slot_emptied *emptied,
                              mam__u32 *turn) {
  mam__u64 merges = 0;
  mam__u32 n = compact.n_first;
  for (mam__u32 pass = 1; n != 0; pass++) {
    look(compact, n, pass == 1 ? emptied : NULL, turn);
    for (mam__u32 tile = tile_first(); tile < compact.tiles; tile += grid_warps())
      mam_tile_order(warp_here(), &compact, tile);
    grid_wait(compact, turn);
    merge(compact, n, &room->merge);
    grid_wait(compact, turn);
    mam__u64 now = compact.state->done.merges;
    if (grid_rank() == 0 && now != merges)
      compact.state->passes++;
    n = pass == compact.pass_limit ? 0 : mam_next_n(n, compact.n_last, now - merges, compact.state->found.spans);
    merges = now;
  }
}

/* Reads the spans that the block rewrites next: every gridDim.x-th of the list, from first on, one for each thread.
 * Returns how many there are. */
static __device__ mam__u32 rewrite_list(const struct mam_compact &compact, struct rewrite_room *room, mam__u32 first,
                                        mam__u32 end) {
  mam__u32 count = (end - first + gridDim.x - 1) / gridDim.x;
  count = count < TEAM_THREADS ? count : TEAM_THREADS;
  if (threadIdx.x < count)
    room->spans[threadIdx.x] = mam_span_left_at(&compact, room->types, first + threadIdx.x * gridDim.x);
  __syncthreads();
  return count;
}

/* Rewrites the spans that were read.  A warp takes a part of a span.  It reads the pointers of the next part before it
 * rewrites those of this one. */
static __device__ void rewrite_listed(const struct mam_rewriting &rewriting, const struct rewrite_room *room,
                                      mam__u32 count, mam__u32 parts) {
  mam__u32 bit = threadIdx.x % WARP_THREADS, i = threadIdx.x / WARP_THREADS;
  struct mam_pointers now, next;
  if (i < count * parts)
    mam_pointers_read(&now, &room->spans[i % count], i / count, bit);
#pragma unroll 1
  for (; i < count * parts; i += WARPS) {
    if (i + WARPS < count * parts)
      mam_pointers_read(&next, &room->spans[(i + WARPS) % count], (i + WARPS) / count, bit);
    mam_pointers_rewrite(&now, &rewriting);
    now = next;
  }
}

/* Rewrites the pointers in spans, then the roots.  All threads do both. */
static __device__ void rewrite(const struct mam_compact &compact, struct rewrite_room *room, mam__u32 *turn) {
  if (compact.state->done.moved == 0)
    return;
  const struct mam_rewriting rewriting = mam_rewriting_of(&compact, room->shapes, compact.state->passes);
  for (mam__u32 tile = tile_first(); tile < compact.tiles; tile += grid_warps())
    mam_tile_left(warp_here(), &compact, tile);
  if (threadIdx.x < compact.types)
    room->shapes[threadIdx.x + 1] = mam_shape_of(compact.kinds[threadIdx.x]);
  for (mam__u32 i = threadIdx.x; i < compact.types * (sizeof(struct mam__type_info) / 4); i += TEAM_THREADS)
    ((mam__u32 *)room->types)[i] = ((const mam__u32 *)compact.control->types)[i];
  grid_wait(compact, turn);
  mam__u32 parts = mam_span_parts(&compact), end = compact.state->left_count;
  for (mam__u32 first = blockIdx.x; first < end; first += TEAM_THREADS * gridDim.x) {
    rewrite_listed(rewriting, room, rewrite_list(compact, room, first, end), parts);
    __syncthreads(); /* the next spans may use the room */
  }
  for (mam__u32 i = 0; i < compact.root_count; i++) {
    struct mam_compact_roots roots = compact.roots[i];
    for (mam__u64 first = grid_rank(); first < roots.count; first += (mam__u64)MAM_COMPACT_BATCH * grid_threads())
      mam_roots_rewrite(&rewriting, roots.pointers, roots.count, first, grid_threads());
  }
}

/* Gives the pages of moved spans back.  A warp takes a word of the page map at a time. */
static __device__ void release(const struct mam_compact &compact) {
  for (mam__u32 i = 0; i < compact.superblocks; i++) {
    struct mam__area area = compact.control->superblocks[i];
    for (mam__u32 word = grid_warp(); word < mam__area_map_words(area); word += grid_warps())
      mam_moved_release(area, word, mam__lanes_of(~0u));
  }
}

/* Lists the objects of a type.  A warp takes a span at a time. */
static __device__ void list(const struct mam_compact &compact, const struct mam_slot_emptied *emptied, mam__u32 *turn) {
  for (mam__u32 tile = tile_first(); tile < compact.tiles; tile += grid_warps())
    mam_tile_list(warp_here(), &compact, tile);
  mam_slot_emptied_end(emptied);
  grid_wait(compact, turn);
  mam__u32 count = compact.state->span_count;
  for (mam__u32 span = grid_warp(); span < count; span += grid_warps())
    mam_span_list(warp_here(), &compact, span);
}

/* Done by the last block: the others do not touch memory any more.  The host reads one word and need not wait for the
 * end of the kernel.  A host that has read it knows that kernels which begin later see all that was done. */
static __device__ void report(const struct mam_compact &compact) {
  mam__u64 end = (mam__u64)compact.number << 32 | compact.state->slots_used;
  if (threadIdx.x == 0) {
    mam__store_relaxed_u32(&compact.barrier[BARRIER_ARRIVED], 0);
    mam__store_relaxed_u32(&compact.barrier[BARRIER_TURN], 0);
  }
  if ((compact.what & MAM_COMPACT_STATE) != 0)
    for (mam__u32 i = threadIdx.x; i < sizeof *compact.state / sizeof(mam__u32); i += TEAM_THREADS)
      ((mam__u32 *)&compact.report->state)[i] = ((const mam__u32 *)compact.state)[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system(); /* release; the host reads the word with acquire */
    mam__store_relaxed_system_u64(&compact.report->end, end);
  }
}

/* ---- The kernel ----
 *
 * One kernel does everything, and all its blocks run at the same time.  A launch and a wait of the host cost more
 * than most of the steps. */

extern "C" __global__ void __launch_bounds__(TEAM_THREADS, MAM_COMPACT_BLOCKS)
    mam_kernel_compact(const __grid_constant__ struct mam_compact compact) {
  __shared__ union room room;
  mam__u32 turn = 0;
  struct mam_slot_emptied emptied = {{0, 0, 0, 0}, 0, 0, 0, 0};
  if ((compact.what & (MAM_COMPACT_PASSES | MAM_COMPACT_OBJECTS)) != 0) {
    const struct mam_compact_state none = {};
    if (grid_rank() == 0)
      *compact.state = none;
    emptied = slots_empty(compact);
    grid_wait(compact, &turn);
  }
  if ((compact.what & MAM_COMPACT_OBJECTS) != 0)
    list(compact, &emptied, &turn);
  if ((compact.what & MAM_COMPACT_PASSES) != 0) {
    passes(compact, &room, &emptied, &turn);
    if ((compact.what & MAM_COMPACT_INFO) != 0)
      look(compact, compact.n_last, NULL, &turn);
    rewrite(compact, &room.rewrite, &turn);
    grid_wait(compact, &turn);
  }
  if ((compact.what & MAM_COMPACT_RELEASE) != 0)
    release(compact);
  slots_watch(compact);
  if (grid_arrive(compact, turn + 1))
    report(compact);
}

#endif
