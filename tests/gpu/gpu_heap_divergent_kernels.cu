/* SPDX-License-Identifier: BSD-2-Clause */
#include <mam/device.cuh>
#include <mam/warp.cuh>

#include <cooperative_groups.h>
#include <new>

#include "gpu_heap_divergent_kernels.h"

namespace groups = cooperative_groups;

typedef unsigned long long word;

/* Code for debuggers keeps each call, which halves the time to compile it. */
#ifdef __CUDACC_DEBUG__
#define INLINE inline
#else
#define INLINE __forceinline__
#endif

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

static __device__ INLINE unsigned thread_in_block(void) {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
static __device__ INLINE unsigned threads_of_block(void) { return blockDim.x * blockDim.y * blockDim.z; }
static __device__ INLINE unsigned thread_in_grid(void) { return blockIdx.x * threads_of_block() + thread_in_block(); }

/* The next number of a thread's sequence. */
static __device__ INLINE unsigned next(unsigned &state) {
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}

static __device__ INLINE unsigned state_begin(const divergent_job &job) {
  return blockIdx.x * 977 + thread_in_block() * 31 + 7 + job.seed * 7919;
}

static __device__ INLINE unsigned size_next(const divergent_job &job, unsigned &state) {
  return job.low + next(state) % (job.high - job.low + 1);
}

/* ---- Whose a block is -------------------------------------------------------------------------------------------- */

static __device__ INLINE void count(word *number, word more) {
  if (more != 0)
    atomicAdd(number, more);
}

/* Sets or clears the bits of a block at that distance from the first page, and counts words of bits that were not all
 * clear, or set, before. */
static __device__ __noinline__ unsigned owners_change(uint32_t *owners, uint64_t distance, unsigned bytes, bool set) {
  unsigned first = (unsigned)(distance / 16), end = first + (bytes + 15) / 16, wrong = 0;
  for (unsigned i = first / 32; i * 32 < end; i++) {
    unsigned from = i * 32 < first ? first - i * 32 : 0, to = end - i * 32 < 32 ? end - i * 32 : 32;
    unsigned mask = (to == 32 ? ~0u : (1u << to) - 1) & ~((1u << from) - 1);
    unsigned old = set ? atomicOr(&owners[i], mask) : atomicAnd(&owners[i], ~mask);
    wrong += (old & mask) != (set ? 0 : mask);
  }
  return wrong;
}

/* What a thread has counted.  The diary adds it to the tally when the thread returns, wherever that is. */
template <bool OWNED> struct diary_of {
  const divergent_job &job;
  unsigned served, refused, freed, added;

  __device__ INLINE diary_of(const divergent_job &own) : job(own), served(0), refused(0), freed(0), added(0) {}
  __device__ INLINE ~diary_of() {
    count(&job.tally->served, served);
    count(&job.tally->refused, refused);
    count(&job.tally->freed, freed);
    count(&job.tally->added, added);
  }

  __device__ INLINE void add_to(word *at) {
    *at = *at + 1;
    added++;
  }

  /* Whether an answer of mam_malloc may be used.  Nothing of the block has been read or written so far. */
  __device__ INLINE bool valid(const void *block, unsigned bytes) {
    uint64_t offset = (uint64_t)block - job.base;
    if (block == NULL) {
      refused++;
      return false;
    }
    served++;
    if (offset < job.bytes && bytes <= job.bytes - offset && (uint64_t)block % 16 == 0)
      return true;
    count(&job.tally->wild, 1);
    job.tally->first_wild = (uint64_t)block;
    return false;
  }

  /* The caller becomes the block's owner.  Whether it may. */
  __device__ INLINE bool got(void *block, unsigned bytes) {
    if (!valid(block, bytes))
      return false;
    if (OWNED && job.owners != NULL)
      count(&job.tally->shared, owners_change(job.owners, (uint64_t)block - job.base, bytes, true));
    word *words = (word *)block;
    if (bytes >= 8)
      add_to(words);
    if (bytes >= 16)
      add_to(words + bytes / 8 - 1);
    return true;
  }

  /* The caller stops being the block's owner, before its free. */
  __device__ INLINE void leaves(void *block, unsigned bytes) {
    if (bytes >= 8)
      add_to((word *)block);
    if (OWNED && job.owners != NULL)
      count(&job.tally->lost, owners_change(job.owners, (uint64_t)block - job.base, bytes, false));
    freed++;
  }

  /* Packs a block and its bytes into one word that is not 0. */
  __device__ INLINE word pack(const void *block, unsigned bytes) const {
    return 1ull << 63 | ((uint64_t)block - job.base) / 16 << 24 | bytes;
  }
  __device__ INLINE void *block_of(word packed) const { return (void *)(job.base + (packed << 1 >> 25) * 16); }
  static __device__ INLINE unsigned bytes_of(word packed) { return packed & 0xFFFFFF; }
};
typedef diary_of<true> diary;

/* Frees a block that came from another thread. */
static __device__ INLINE void packed_free(const mam_device_heap &heap, diary &mine, word packed) {
  if (packed == 0)
    return;
  void *block = mine.block_of(packed);
  mine.leaves(block, mine.bytes_of(packed));
  mam_free(heap, block);
}

/* Allocates a block for another thread; 0 if the request is refused. */
static __device__ INLINE word packed_malloc(const mam_device_heap &heap, diary &mine, unsigned bytes) {
  void *block = mam_malloc(heap, bytes);
  return mine.got(block, bytes) ? mine.pack(block, bytes) : 0;
}

#ifndef DIVERGENT_DEEP
/* ---- Loops ------------------------------------------------------------------------------------------------------- */

/* Sizes: CONSTANT bytes; if that is 0, one size for all, or with VARIED one for each request. */
template <unsigned CONSTANT, bool VARIED, bool OWNED>
static __device__ INLINE void continue_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary_of<OWNED> mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(state) % 8 == 0)
      continue;
    unsigned bytes = CONSTANT != 0 ? CONSTANT : VARIED ? size_next(job, state) : job.low;
    void *block = mam_malloc(heap, bytes);
    if (!mine.got(block, bytes))
      continue;
    if (next(state) % 4 == 0)
      __nanosleep(200);
    mine.leaves(block, bytes);
    mam_free(heap, block);
  }
}

static __device__ INLINE void break_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job), round = 0;
  for (;;) {
    if (round++ >= job.rounds)
      break;
    unsigned bytes = size_next(job, state), held = 0;
    word blocks[3];
    if (next(state) % 7 == 0)
      continue;
    while (held < 3) {
      if (next(state) % 5 == 0)
        break;
      void *block = mam_malloc(heap, bytes);
      if (!mine.got(block, bytes))
        break;
      blocks[held++] = mine.pack(block, bytes);
      if (next(state) % 3 == 0)
        continue;
      if (next(state) % 6 == 0)
        break;
      bytes = job.low;
    }
    do {
      if (held == 0)
        break;
      packed_free(heap, mine, blocks[--held]);
      if (next(state) % 9 == 0)
        continue;
      __nanosleep(50);
    } while (held > 0);
  }
}

/* Each thread has a place in the mail and fills it at most once. */
static __device__ INLINE void return_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  if (next(state) % 16 == 0)
    return;
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(state) % 64 == 0)
      return;
    unsigned bytes = size_next(job, state);
    void *block = mam_malloc(heap, bytes);
    if (!mine.got(block, bytes)) {
      if (next(state) % 16 == 0)
        return;
      continue;
    }
    if (next(state) % 64 == 0) {
      job.mail[thread_in_grid()] = mine.pack(block, bytes);
      return;
    }
    mine.leaves(block, bytes);
    if (next(state) % 64 == 0) {
      mam_free(heap, block);
      return;
    }
    mam_free(heap, block);
  }
}

/* Frees what is in the mail: each thread frees the block of another one. */
static __device__ INLINE void drain_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  for (unsigned i = thread_in_grid(); i < job.mail_count; i += gridDim.x * threads_of_block()) {
    unsigned place = (i ^ 33) < job.mail_count ? i ^ 33 : i;
    if (job.mail[place] == 0)
      continue;
    packed_free(heap, mine, job.mail[place]);
    job.mail[place] = 0;
  }
}

/* ---- Call sites -------------------------------------------------------------------------------------------------- */

/* A request and its free in a branch of their own. */
#define SITE(condition, size)                                                                                          \
  if (condition) {                                                                                                     \
    unsigned bytes = size;                                                                                             \
    void *block = mam_malloc(heap, bytes);                                                                             \
    if (!mine.got(block, bytes))                                                                                       \
      continue;                                                                                                        \
    mine.leaves(block, bytes);                                                                                         \
    mam_free(heap, block);                                                                                             \
  }

static __device__ INLINE void sites_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    unsigned way = next(state);
    SITE(way & 1, 16)
    SITE(way & 2, job.low)
    SITE(way & 4, 100)
    SITE(way & 8, job.low + way % 64)
    if (way & 16) {
      SITE(way & 32, 48)
      else SITE(way & 64, 1 + way % 130) if (way & 128) continue;
    } else {
      SITE(way & 32, 16)
      if ((way & 128) && thread_in_block() % 3 == 0)
        break;
    }
    SITE((way & 768) == 256, 16)
  }
}

static __device__ INLINE void switch_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job), bytes = 0;
  word held = 0;
  for (unsigned round = 0; round < job.rounds; round++) {
    switch (next(state) % 8) {
    case 0:
      continue;
    case 1:
      packed_free(heap, mine, held);
      held = 0;
      /* fall through */
    case 2:
      if (held == 0)
        held = packed_malloc(heap, mine, 32);
      break;
    case 3:
      bytes = size_next(job, state);
      if (held != 0)
        break;
      held = packed_malloc(heap, mine, bytes);
      /* fall through */
    case 4:
      packed_free(heap, mine, held);
      held = 0;
      break;
    case 5:
      if (held == 0)
        held = packed_malloc(heap, mine, job.low);
      continue;
    default:
      packed_free(heap, mine, held);
      held = 0;
    }
    if (next(state) % 128 == 0)
      break;
  }
  packed_free(heap, mine, held);
}

template <unsigned LEVEL> struct nest {
  static __device__ INLINE void enter(const mam_device_heap &heap, diary &mine, unsigned &state) {
    unsigned bytes = LEVEL * 40;
    void *block = mam_malloc(heap, bytes);
    if (!mine.got(block, bytes))
      return;
    if (next(state) % 4 != 0)
      nest<LEVEL - 1>::enter(heap, mine, state);
    mine.leaves(block, bytes);
    mam_free(heap, block);
  }
};
template <> struct nest<0> {
  static __device__ INLINE void enter(const mam_device_heap &, diary &, unsigned &) {}
};

static __device__ INLINE void templates_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(state) % 8 == 0)
      continue;
    if (next(state) % 2 == 0)
      nest<4>::enter(heap, mine, state);
    else
      nest<2>::enter(heap, mine, state);
  }
}

/* ---- More heaps than one, locks ---------------------------------------------------------------------------------- */

static __device__ INLINE void two_heaps_turns(const mam_device_heap &heap, const divergent_job &job,
                                              const mam_device_heap &other, const divergent_job &other_job) {
  diary mine(job), others(other_job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    bool elsewhere = next(state) % 2 == 0;
    if (next(state) % 8 == 0)
      continue;
    void *block = elsewhere ? mam_malloc(other, job.low) : mam_malloc(heap, job.low);
    if (!(elsewhere ? others.got(block, job.low) : mine.got(block, job.low)))
      continue;
    if (elsewhere) {
      others.leaves(block, job.low);
      mam_free(other, block);
    } else {
      mine.leaves(block, job.low);
      mam_free(heap, block);
    }
  }
}

/* Counts what a handle of no heap gave. */
static __device__ INLINE void none_has(const divergent_job &job, const void *first, const void *second) {
  if (first == NULL && second == NULL)
    return;
  count(&job.tally->wild, 1);
  job.tally->first_wild = (uint64_t)(first != NULL ? first : second);
}

/* Lanes that come to a call together, each with the handle of its heap, or of none. */
static __device__ INLINE void heap_of_lane_turns(const mam_device_heap &heap, const divergent_job &job,
                                                 const mam_device_heap &other, const divergent_job &other_job) {
  diary mine(job), others(other_job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    unsigned which = next(state) % 5;
    mam_device_heap none = {}, chosen = which == 0 ? none : which % 2 == 0 ? other : heap;
    diary &its = which != 0 && which % 2 == 0 ? others : mine;
    if (round % 8 == 7) {
      mam_warp *warp = mam_warp_start(chosen);
      void *block = mam_warp_malloc(warp, 16);
      if (which == 0)
        none_has(job, warp, block);
      else {
        its.freed += its.valid(warp, 16);
        its.freed += its.valid(block, 16);
      }
      mam_warp_end(warp);
      continue;
    }
    unsigned bytes = round % 2 == 0 ? job.low : size_next(job, state);
    void *block = mam_malloc(chosen, bytes);
    if (which == 0) {
      none_has(job, block, NULL);
      continue;
    }
    if (!its.got(block, bytes))
      continue;
    its.leaves(block, bytes);
    mam_free(chosen, block);
  }
}

/* One lane of each thread block at a time is in the heap; the others of its warp spin.  The mail has the lock and the
 * last block. */
static __device__ INLINE void locks_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  word *lock = &job.mail[2 * blockIdx.x];
  volatile word *kept = lock + 1;
  for (unsigned round = 0; round < job.rounds;) {
    unsigned bytes = size_next(job, state);
    if (atomicCAS(lock, 0ull, 1ull) != 0)
      continue;
    __threadfence();
    packed_free(heap, mine, *kept);
    *kept = packed_malloc(heap, mine, bytes);
    __threadfence();
    atomicExch(lock, 0ull);
    round++;
  }
  __syncthreads();
  if (thread_in_block() != 0)
    return;
  packed_free(heap, mine, *kept);
  *kept = 0;
}

/* ---- Hands ------------------------------------------------------------------------------------------------------- */

enum { SHARED_PLACES = 512 };

static __device__ INLINE void shared_barrier_turns(const mam_device_heap &heap, const divergent_job &job) {
  __shared__ word box[SHARED_PLACES];
  diary mine(job);
  unsigned state = state_begin(job), self = thread_in_block(), threads = threads_of_block();
  for (unsigned round = 0; round < job.rounds; round++) {
    word packed = 0;
    if (next(state) % 4 != 0)
      packed = packed_malloc(heap, mine, size_next(job, state));
    box[(self + 7 * round + 1) % threads] = packed;
    __syncthreads();
    packed = box[self];
    if (packed != 0 && next(state) % 2 == 0)
      packed_free(heap, mine, packed);
    else if (packed != 0)
      packed_free(heap, mine, packed);
    __syncthreads();
  }
}

/* Leaves a block for another thread, and takes the one that was there. */
static __device__ INLINE word exchange(word *place, word packed, bool within_block) {
  if (within_block)
    __threadfence_block();
  else
    __threadfence();
  packed = atomicExch(place, packed);
  if (within_block)
    __threadfence_block();
  else
    __threadfence();
  return packed;
}

static __device__ INLINE void shared_exchange_turns(const mam_device_heap &heap, const divergent_job &job) {
  __shared__ word box[SHARED_PLACES];
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned i = thread_in_block(); i < SHARED_PLACES; i += threads_of_block())
    box[i] = 0;
  __syncthreads();
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(state) % 8 == 0)
      continue;
    word packed = packed_malloc(heap, mine, size_next(job, state));
    if (packed == 0)
      continue;
    packed_free(heap, mine, exchange(&box[next(state) % SHARED_PLACES], packed, true));
  }
  __syncthreads();
  for (unsigned i = thread_in_block(); i < SHARED_PLACES; i += threads_of_block())
    packed_free(heap, mine, box[i]);
}

static __device__ INLINE void global_exchange_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    word packed = 0;
    if (next(state) % 4 != 0)
      packed = packed_malloc(heap, mine, size_next(job, state));
    if (packed == 0 && next(state) % 2 == 0)
      continue;
    packed_free(heap, mine, exchange(&job.mail[next(state) % job.mail_count], packed, false));
  }
}

/* All lanes meet at the shuffles, and each frees what the lane behind it allocated. */
static __device__ INLINE void lane_exchange_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job), lane = thread_in_block() % 32;
  for (unsigned round = 0; round < job.rounds; round++) {
    word packed = 0;
    if (next(state) % 3 != 0)
      packed = packed_malloc(heap, mine, size_next(job, state));
    __syncwarp();
    packed = __shfl_sync(0xFFFFFFFF, packed, (lane + 1 + round) % 32);
    if (next(state) % 2 == 0)
      __nanosleep(20);
    packed_free(heap, mine, packed);
  }
}

/* ---- Cooperative groups ------------------------------------------------------------------------------------------ */

/* One block for a group, with 16 bytes for each thread: the first thread asks for it, and the last one frees it. */
template <typename Group>
static __device__ INLINE void group_turn(const mam_device_heap &heap, diary &mine, const Group &group) {
  unsigned bytes = group.num_threads() * 16;
  word packed = group.thread_rank() == 0 ? packed_malloc(heap, mine, bytes) : 0;
  packed = group.shfl(packed, 0);
  if (packed == 0)
    return;
  if (group.thread_rank() != 0 && group.thread_rank() != group.num_threads() - 1)
    mine.add_to((word *)mine.block_of(packed) + 2 * group.thread_rank());
  group.sync();
  if (group.thread_rank() == group.num_threads() - 1)
    packed_free(heap, mine, packed);
}

template <unsigned TILE>
static __device__ INLINE void tiles_of(const mam_device_heap &heap, diary &mine, unsigned state) {
  auto tile = groups::tiled_partition<TILE>(groups::this_thread_block());
  unsigned common = tile.shfl(state, 0);
  for (unsigned round = 0; round < mine.job.rounds; round++) {
    if (next(common) % 4 == 0)
      continue;
    group_turn(heap, mine, tile);
    if (next(state) % 2 == 0)
      packed_free(heap, mine, packed_malloc(heap, mine, 32));
    tile.sync();
  }
}

static __device__ INLINE void tiles_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  if (thread_in_block() / 32 % 2 == 0)
    tiles_of<4>(heap, mine, state);
  else
    tiles_of<16>(heap, mine, state);
}

static __device__ INLINE void coalesced_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    unsigned way = next(state) % 4;
    if (way == 0)
      continue;
    if (way == 1) {
      group_turn(heap, mine, groups::coalesced_threads());
      continue;
    }
    if (way == 2)
      group_turn(heap, mine, groups::labeled_partition(groups::coalesced_threads(), (int)(next(state) % 3)));
    packed_free(heap, mine, packed_malloc(heap, mine, size_next(job, state)));
  }
}

static __device__ INLINE void grid_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  groups::grid_group grid = groups::this_grid();
  unsigned state = state_begin(job), self = thread_in_grid(), threads = (unsigned)grid.size();
  for (unsigned round = 0; round < job.rounds; round++) {
    word packed = 0;
    if (next(state) % 4 != 0)
      packed = packed_malloc(heap, mine, size_next(job, state));
    job.mail[(self + 33 + 1000 * round) % threads] = packed;
    grid.sync();
    packed = job.mail[self];
    if (packed != 0)
      packed_free(heap, mine, packed);
    job.mail[self] = 0;
    grid.sync();
  }
}

static __device__ INLINE void cluster_turns(const mam_device_heap &heap, const divergent_job &job) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  __shared__ word box[SHARED_PLACES];
  diary mine(job);
  groups::cluster_group cluster = groups::this_cluster();
  unsigned state = state_begin(job), self = thread_in_block();
  cluster.sync(); /* a block's shared memory is there once the block runs */
  for (unsigned round = 0; round < job.rounds; round++) {
    word packed = 0;
    if (next(state) % 4 != 0)
      packed = packed_malloc(heap, mine, size_next(job, state));
    unsigned neighbour = (cluster.block_rank() + 1 + round) % cluster.num_blocks();
    cluster.map_shared_rank(box, neighbour)[(self + round) % threads_of_block()] = packed;
    cluster.sync();
    packed_free(heap, mine, box[self]);
    cluster.sync();
  }
#else
  (void)heap;
  count(&job.tally->unsupported, 1);
#endif
}

/* ---- Sizes of thread blocks, of requests ------------------------------------------------------------------------- */

static __device__ INLINE void large_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    unsigned way = next(state) % 64, bytes = size_next(job, state);
    if (way < 8)
      continue;
    if (way == 8)
      bytes = 33000 + next(state) % 100000;
    else if (way < 16)
      bytes = 1000 + next(state) % 30000;
    packed_free(heap, mine, packed_malloc(heap, mine, bytes));
  }
}

/* ---- Warp heaps -------------------------------------------------------------------------------------------------- */

enum { WARP_BLOCKS = 4 };

/* The blocks that a lane has of a warp heap. */
struct warp_blocks {
  word packed[WARP_BLOCKS];
  unsigned used;
};

/* Whether the lane owns the memory from now on.  Headers lie in the heap too, so sums are no check here: the words
 * themselves are checked. */
static __device__ INLINE void warp_keep(diary &mine, warp_blocks &own, void *block, unsigned bytes) {
  if (!mine.valid(block, bytes))
    return;
  count(&mine.job.tally->shared, owners_change(mine.job.owners, (uint64_t)block - mine.job.base, bytes, true));
  ((word *)block)[0] = (uint64_t)block ^ thread_in_grid();
  ((word *)block)[bytes / 8 - 1] = (uint64_t)block ^ thread_in_grid();
  own.packed[own.used++] = mine.pack(block, bytes);
}

static __device__ INLINE void warp_leave(diary &mine, warp_blocks &own) {
  while (own.used > 0) {
    word packed = own.packed[--own.used];
    word *words = (word *)mine.block_of(packed);
    unsigned last = mine.bytes_of(packed) / 8 - 1;
    word expected = (uint64_t)words ^ thread_in_grid();
    count(&mine.job.tally->changed, words[0] != expected || words[last] != expected);
    count(&mine.job.tally->lost,
          owners_change(mine.job.owners, (uint64_t)words - mine.job.base, mine.bytes_of(packed), false));
    mine.freed++;
  }
}

/* The life of a header that the lanes have started. */
static __device__ INLINE void warp_life(diary &mine, mam_warp *warp, unsigned &state) {
  warp_blocks own;
  own.used = 0;
  for (unsigned i = 0; i < 6; i++) {
    if (next(state) % 4 == 0)
      continue;
    unsigned bytes = 16 + next(state) % mine.job.high;
    if (next(state) % 8 == 0 || own.used == WARP_BLOCKS) {
      warp_leave(mine, own);
      mam_warp_tidy_up(warp);
      continue;
    }
    warp_keep(mine, own, mam_warp_malloc(warp, bytes), bytes);
    if (next(state) % 16 == 0)
      break;
  }
  warp_leave(mine, own);
  mam_warp_end(warp);
}

static __device__ INLINE void warp_parts_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(state) % 4 == 0)
      continue;
    mam_warp *warp = mam_warp_start(heap);
    if (!mine.valid(warp, 16))
      continue;
    mine.freed++;
    warp_life(mine, warp, state);
    if (next(state) % 64 == 0)
      break;
  }
}

static __device__ INLINE void warp_tiles_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  auto tile = groups::tiled_partition<8>(groups::this_thread_block());
  unsigned state = state_begin(job), common = tile.shfl(state, 0);
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(common) % 4 == 0)
      continue;
    mam_warp *warp = mam_warp_start(heap, tile);
    if (!mine.valid(warp, 16))
      continue;
    mine.freed++;
    warp_life(mine, warp, state);
  }
}

static __device__ INLINE void warp_lanes_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job), common = __shfl_sync(0xFFFFFFFF, state, 0), lane = thread_in_block() % 32;
  mam_warp_options options = MAM_WARP_OPTIONS_INIT;
  for (unsigned round = 0; round < job.rounds; round++) {
    unsigned lanes = next(common) | 1;
    if ((lanes >> lane & 1) == 0) {
      packed_free(heap, mine, packed_malloc(heap, mine, size_next(job, state)));
      continue;
    }
    mam_heap_status why = MAM_HEAP_BAD;
    mam_warp *warp = mam_warp_start_lanes(heap, lanes, options, &why);
    count(&job.tally->changed, (warp != NULL) != (why == MAM_HEAP_OK));
    if (!mine.valid(warp, 16))
      continue;
    mine.freed++;
    warp_life(mine, warp, state);
  }
}
#else
/* ---- Functions that the compiler does not see ---------------------------------------------------------------------
 */

/* A function that is called through a pointer takes a word and returns one: a block that the caller has, or 0. */
typedef word call(const mam_device_heap &heap, diary &mine, word packed, unsigned bytes);

static __device__ word call_malloc(const mam_device_heap &heap, diary &mine, word packed, unsigned bytes) {
  return packed != 0 ? packed : packed_malloc(heap, mine, bytes);
}
static __device__ word call_malloc_16(const mam_device_heap &heap, diary &mine, word packed, unsigned) {
  return packed != 0 ? packed : packed_malloc(heap, mine, 16);
}
static __device__ word call_free(const mam_device_heap &heap, diary &mine, word packed, unsigned) {
  packed_free(heap, mine, packed);
  return 0;
}
static __device__ word call_nothing(const mam_device_heap &, diary &, word packed, unsigned) { return packed; }

static __device__ call *const calls[] = {call_malloc, call_free, call_malloc_16, call_nothing};

static __device__ INLINE void pointers_turns(const mam_device_heap &heap, const divergent_job &job) {
  diary mine(job);
  unsigned state = state_begin(job);
  word packed = 0;
  for (unsigned round = 0; round < job.rounds; round++) {
    if (next(state) % 8 == 0)
      continue;
    packed = calls[next(state) % 4](heap, mine, packed, size_next(job, state));
  }
  packed_free(heap, mine, packed);
}

/* Trees.  Little is live across the calls, since the default stack is small.  The tally counts what was found. */
struct node {
  node *left, *right;
  word id;
};

static __device__ INLINE unsigned node_bytes(unsigned depth) { return (unsigned)sizeof(node) + depth % 5 * 40; }

/* Checks a node's address before it is used. */
static __device__ INLINE node *node_checked(void *block, const divergent_job &job) {
  uint64_t offset = (uint64_t)block - job.base;
  if (block == NULL || (offset < job.bytes && (uint64_t)block % 16 == 0))
    return (node *)block;
  count(&job.tally->wild, 1);
  job.tally->first_wild = (uint64_t)block;
  return NULL;
}

static __device__ __noinline__ node *node_new(const mam_device_heap &heap, const divergent_job &job, unsigned depth) {
  return node_checked(mam_malloc(heap, node_bytes(depth)), job);
}

typedef node *builder(const mam_device_heap &heap, const divergent_job &job, unsigned depth, word id);
typedef unsigned tearer(const mam_device_heap &heap, node *tree, word id);

static __device__ __noinline__ node *tree_build(const mam_device_heap &heap, const divergent_job &job, unsigned depth,
                                                word id) {
  node *tree = node_new(heap, job, depth);
  if (tree == NULL)
    return NULL;
  tree->id = id;
  tree->left = depth > 0 ? tree_build(heap, job, depth - 1, 2 * id) : NULL;
  tree->right = depth > 0 && id % 5 != 0 ? tree_build(heap, job, depth - 1, 2 * id + 1) : NULL;
  return tree;
}

/* Tears a tree down.  Returns how many nodes had changed. */
static __device__ __noinline__ unsigned tree_tear(const mam_device_heap &heap, node *tree, word id) {
  if (tree == NULL)
    return 0;
  unsigned wrong = tree->id != id;
  if (wrong != 0)
    return wrong;
  wrong += tree_tear(heap, tree->left, 2 * id) + tree_tear(heap, tree->right, 2 * id + 1);
  mam_free(heap, tree);
  return wrong;
}

/* The same with a loop down the right side: each of the two functions calls itself within a loop, in which it allocates
 * or frees. */
static __device__ __noinline__ node *tree_build_along(const mam_device_heap &heap, const divergent_job &job,
                                                      unsigned depth, word id) {
  node *top = NULL, *above = NULL;
  for (;; depth--, id = 2 * id + 1) {
    node *tree = node_checked(mam_malloc(heap, node_bytes(depth)), job);
    if (tree == NULL)
      break;
    tree->id = id;
    tree->right = NULL;
    tree->left = depth > 0 ? tree_build_along(heap, job, depth - 1, 2 * id) : NULL;
    if (above != NULL)
      above->right = tree;
    else
      top = tree;
    if (depth == 0 || id % 5 == 0)
      break;
    above = tree;
  }
  return top;
}

static __device__ __noinline__ unsigned tree_tear_along(const mam_device_heap &heap, node *tree, word id) {
  unsigned wrong = 0;
  for (; tree != NULL; id = 2 * id + 1) {
    if (tree->id != id)
      return wrong + 1;
    wrong += tree_tear_along(heap, tree->left, 2 * id);
    node *right = tree->right;
    mam_free(heap, tree);
    tree = right;
  }
  return wrong;
}

static __device__ builder tree_build_left, tree_build_right;
static __device__ tearer tree_tear_left, tree_tear_right;
static __device__ builder *const builders[] = {tree_build_left, tree_build_right};
static __device__ tearer *const tearers[] = {tree_tear_left, tree_tear_right};

static __device__ node *tree_build_left(const mam_device_heap &heap, const divergent_job &job, unsigned depth,
                                        word id) {
  node *tree = node_new(heap, job, depth);
  if (tree == NULL)
    return NULL;
  tree->id = id;
  tree->right = NULL;
  tree->left = depth > 0 ? builders[(id >> depth) % 2](heap, job, depth - 1, 2 * id) : NULL;
  return tree;
}
static __device__ node *tree_build_right(const mam_device_heap &heap, const divergent_job &job, unsigned depth,
                                         word id) {
  node *tree = node_new(heap, job, depth);
  if (tree == NULL)
    return NULL;
  tree->id = id;
  tree->left = NULL;
  tree->right = depth > 0 ? builders[(id >> depth) % 2](heap, job, depth - 1, 2 * id + 1) : NULL;
  return tree;
}
static __device__ unsigned tree_tear_left(const mam_device_heap &heap, node *tree, word id) {
  if (tree == NULL || tree->id != id)
    return tree != NULL;
  unsigned wrong = tree->left != NULL ? tearers[id % 2](heap, tree->left, 2 * id) : 0;
  wrong += tree->right != NULL ? tearers[(id + 1) % 2](heap, tree->right, 2 * id + 1) : 0;
  mam_free(heap, tree);
  return wrong;
}
static __device__ unsigned tree_tear_right(const mam_device_heap &heap, node *tree, word id) {
  if (tree == NULL || tree->id != id)
    return tree != NULL;
  unsigned wrong = tree->right != NULL ? tearers[id % 2](heap, tree->right, 2 * id + 1) : 0;
  wrong += tree->left != NULL ? tearers[(id + 1) % 2](heap, tree->left, 2 * id) : 0;
  mam_free(heap, tree);
  return wrong;
}

static __device__ INLINE void recursion_turns(const mam_device_heap &heap, const divergent_job &job, unsigned depth) {
  unsigned wrong = 0;
  for (unsigned round = 0; round < job.rounds; round++) {
    word id = 1 + (thread_in_grid() + round) % 65536;
    if (id % 8 == 0)
      continue;
    unsigned levels = id % 3 == 0 ? depth / 2 : depth;
    node *tree = round % 2 == 0 ? tree_build(heap, job, levels, id) : tree_build_along(heap, job, levels, id);
    wrong += round / 2 % 2 == 0 ? tree_tear(heap, tree, id) : tree_tear_along(heap, tree, id);
  }
  count(&job.tally->changed, wrong);
}

static __device__ INLINE void recursion_pointers_turns(const mam_device_heap &heap, const divergent_job &job,
                                                       unsigned depth) {
  unsigned wrong = 0;
  for (unsigned round = 0; round < job.rounds; round++) {
    word id = 1 + (thread_in_grid() + round) % 65536;
    if (id % 8 == 0)
      continue;
    wrong += tearers[round % 2](heap, builders[id % 2](heap, job, id % 3 == 0 ? depth / 2 : depth, id), id);
  }
  count(&job.tally->changed, wrong);
}

/* An object that has one more object of either kind, and frees itself. */
struct shape {
  shape *inner;
  word id;
  __device__ shape(word own) : inner(NULL), id(own) {}
  virtual __device__ void grow(const mam_device_heap &heap, const divergent_job &job, unsigned depth) = 0;
  virtual __device__ unsigned end(const mam_device_heap &heap, word expected) = 0;
};

static __device__ __noinline__ shape *shape_new(const mam_device_heap &heap, const divergent_job &job, word id);

struct narrow_shape : shape {
  __device__ narrow_shape(word own) : shape(own) {}
  virtual __device__ void grow(const mam_device_heap &heap, const divergent_job &job, unsigned depth) {
    inner = shape_new(heap, job, id * 3 + 1);
    if (inner != NULL && depth > 0)
      inner->grow(heap, job, depth - 1);
  }
  virtual __device__ unsigned end(const mam_device_heap &heap, word expected) {
    unsigned wrong = id != expected;
    wrong += inner != NULL ? inner->end(heap, expected * 3 + 1) : 0;
    mam_free(heap, this);
    return wrong;
  }
};

struct broad_shape : shape {
  word more[20];
  __device__ broad_shape(word own) : shape(own) { more[19] = ~own; }
  virtual __device__ void grow(const mam_device_heap &heap, const divergent_job &job, unsigned depth) {
    if (depth == 0)
      return;
    inner = shape_new(heap, job, id * 3 + 1);
    if (inner != NULL)
      inner->grow(heap, job, depth - 1);
  }
  virtual __device__ unsigned end(const mam_device_heap &heap, word expected) {
    unsigned wrong = (id != expected) + (more[19] != ~expected);
    wrong += inner != NULL ? inner->end(heap, expected * 3 + 1) : 0;
    mam_free(heap, this);
    return wrong;
  }
};

static __device__ __noinline__ shape *shape_new(const mam_device_heap &heap, const divergent_job &job, word id) {
  bool narrow = id / 3 % 2 == 0;
  void *block = mam_malloc(heap, narrow ? sizeof(narrow_shape) : sizeof(broad_shape));
  uint64_t offset = (uint64_t)block - job.base;
  if (block == NULL)
    return NULL;
  if (offset >= job.bytes || (uint64_t)block % 16 != 0) {
    count(&job.tally->wild, 1);
    job.tally->first_wild = (uint64_t)block;
    return NULL;
  }
  return narrow ? (shape *)new (block) narrow_shape(id) : (shape *)new (block) broad_shape(id);
}

static __device__ INLINE void recursion_virtual_turns(const mam_device_heap &heap, const divergent_job &job,
                                                      unsigned depth) {
  unsigned wrong = 0;
  for (unsigned round = 0; round < job.rounds; round++) {
    word id = 1 + (thread_in_grid() + round) % 65536;
    if (id % 8 == 0)
      continue;
    shape *outer = shape_new(heap, job, id);
    if (outer == NULL)
      continue;
    outer->grow(heap, job, id % 3 == 0 ? depth / 2 : depth);
    wrong += outer->end(heap, id);
  }
  count(&job.tally->changed, wrong);
}
#endif

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* The cases that a kernel has, as bits.  With DIVERGENT_APART each case has a kernel of its own.  Otherwise a few share
 * one, because ptxas takes a second or more in each kernel for the functions that are not inlined. */
#define CASE(name) (1ull << DIVERGENT_##name)
#ifdef DIVERGENT_APART
#define KERNEL(cases, which) (cases & which)
#else
#define KERNEL(cases, which) (cases)
#endif

#ifndef DIVERGENT_DEEP
static const word loop_cases =
    CASE(CONTINUE_OWNED) | CASE(CONTINUE_VARIED) | CASE(BREAK) | CASE(RETURN) | CASE(ODD_SHAPE) | CASE(LARGE);
static const word site_cases = CASE(SITES) | CASE(SWITCH) | CASE(TEMPLATES) | CASE(TWO_HEAPS) | CASE(HEAP_OF_LANE);
static const word hand_cases = CASE(LOCKS) | CASE(SHARED_BARRIER) | CASE(SHARED_EXCHANGE) | CASE(GLOBAL_EXCHANGE) |
                               CASE(LANE_EXCHANGE) | CASE(DRAIN);
static const word group_cases = CASE(TILES) | CASE(COALESCED) | CASE(GRID) | CASE(CLUSTER);
static const word warp_cases = CASE(WARP_PARTS) | CASE(WARP_TILES) | CASE(WARP_LANES);
#else
static const word deep_cases = CASE(POINTERS) | CASE(RECURSION) | CASE(RECURSION_POINTERS) | CASE(RECURSION_VIRTUAL);
#endif

/* Runs the case if the kernel has it.  Not even code for debuggers has the cases that a kernel lacks. */
#define TURNS(name, turns)                                                                                             \
  if constexpr ((CASES & CASE(name)) != 0) {                                                                           \
    if (CASES == CASE(name) || which == DIVERGENT_##name) {                                                            \
      turns;                                                                                                           \
      return;                                                                                                          \
    }                                                                                                                  \
  }

/* The parameters have addresses, so the kernel passes these on to its functions and makes no copy. */
template <word CASES>
static __global__ void kernel(const __grid_constant__ mam_device_heap heap, const __grid_constant__ divergent_job job,
                              const __grid_constant__ mam_device_heap other,
                              const __grid_constant__ divergent_job other_job, divergent_case which) {
#ifndef DIVERGENT_DEEP
  TURNS(CONTINUE_PLAIN, (continue_turns<0, false, false>(heap, job)))
  TURNS(CONTINUE_CONSTANT, (continue_turns<16, false, false>(heap, job)))
  TURNS(CONTINUE_OWNED, (continue_turns<0, false, true>(heap, job)))
  TURNS(CONTINUE_VARIED, (continue_turns<0, true, true>(heap, job)))
  TURNS(BREAK, break_turns(heap, job))
  TURNS(ODD_SHAPE, break_turns(heap, job))
  TURNS(RETURN, return_turns(heap, job))
  TURNS(LARGE, large_turns(heap, job))
  TURNS(SITES, sites_turns(heap, job))
  TURNS(SWITCH, switch_turns(heap, job))
  TURNS(TEMPLATES, templates_turns(heap, job))
  TURNS(TWO_HEAPS, two_heaps_turns(heap, job, other, other_job))
  TURNS(HEAP_OF_LANE, heap_of_lane_turns(heap, job, other, other_job))
  TURNS(LOCKS, locks_turns(heap, job))
  TURNS(SHARED_BARRIER, shared_barrier_turns(heap, job))
  TURNS(SHARED_EXCHANGE, shared_exchange_turns(heap, job))
  TURNS(GLOBAL_EXCHANGE, global_exchange_turns(heap, job))
  TURNS(LANE_EXCHANGE, lane_exchange_turns(heap, job))
  TURNS(DRAIN, drain_turns(heap, job))
  TURNS(TILES, tiles_turns(heap, job))
  TURNS(COALESCED, coalesced_turns(heap, job))
  TURNS(GRID, grid_turns(heap, job))
  TURNS(CLUSTER, cluster_turns(heap, job))
  TURNS(WARP_PARTS, warp_parts_turns(heap, job))
  TURNS(WARP_TILES, warp_tiles_turns(heap, job))
  TURNS(WARP_LANES, warp_lanes_turns(heap, job))
#else
  TURNS(POINTERS, pointers_turns(heap, job))
  TURNS(RECURSION, recursion_turns(heap, job, 3))
  TURNS(RECURSION_POINTERS, recursion_pointers_turns(heap, job, 4))
  TURNS(RECURSION_VIRTUAL, recursion_virtual_turns(heap, job, 4))
#endif
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* What a launch needs apart from its kernel. */
struct order {
  mam_device_heap heap;
  divergent_job job;
  mam_device_heap other;
  divergent_job other_job;
  divergent_case which;
  cudaStream_t stream;
};

/* As many threads as the job wants and the kernel allows, in whole warps. */
template <word CASES> static unsigned threads_for(const order &order) {
  cudaFuncAttributes attributes;
  if (cudaFuncGetAttributes(&attributes, kernel<CASES>) != cudaSuccess || attributes.maxThreadsPerBlock < 32)
    return order.job.threads;
  unsigned most = (unsigned)attributes.maxThreadsPerBlock / 32 * 32;
  return order.job.threads < most ? order.job.threads : most;
}

template <word CASES> static cudaError_t start(const order &order, dim3 threads) {
  kernel<CASES><<<order.job.blocks, threads, 0, order.stream>>>(order.heap, order.job, order.other, order.other_job,
                                                                order.which);
  return cudaGetLastError();
}
template <word CASES> static cudaError_t start(const order &order) {
  return start<CASES>(order, dim3(threads_for<CASES>(order)));
}

#ifndef DIVERGENT_DEEP
/* Starts the kernel, and then the one that frees what is left in the mail. */
template <word CASES> static cudaError_t start_and_drain(order order) {
  cudaError_t error = start<CASES>(order);
  order.which = DIVERGENT_DRAIN;
  return error != cudaSuccess ? error : start<KERNEL(hand_cases, CASE(DRAIN))>(order);
}

/* All thread blocks have to run at once, or the barrier would wait for ever. */
template <word CASES> static cudaError_t start_grid(order order) {
  int device = 0, multiprocessors = 1, together = 1;
  unsigned threads = threads_for<CASES>(order);
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&together, kernel<CASES>, (int)threads, 0);
  if (error != cudaSuccess)
    return error;
  unsigned most = (unsigned)(multiprocessors * (together < 2 ? together : 2));
  void *arguments[] = {&order.heap, &order.job, &order.other, &order.other_job, &order.which};
  return cudaLaunchCooperativeKernel((void *)kernel<CASES>, order.job.blocks < most ? order.job.blocks : most, threads,
                                     arguments, 0, order.stream);
}

template <word CASES> static cudaError_t start_clusters(const order &order) {
  cudaLaunchAttribute attribute;
  cudaLaunchConfig_t config = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 4;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.gridDim = dim3((order.job.blocks + 3) / 4 * 4);
  config.blockDim = dim3(threads_for<CASES>(order));
  config.stream = order.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel<CASES>, order.heap, order.job, order.other, order.other_job, order.which);
}
#endif

/* Starts a case by the kernel that has these cases. */
#define START(name, cases)                                                                                             \
  case DIVERGENT_##name:                                                                                               \
    return start<KERNEL(cases, CASE(name))>(order);

extern "C" cudaError_t DIVERGENT_LAUNCH(enum divergent_case which, mam_device_heap heap, struct divergent_job job,
                                        mam_device_heap other, struct divergent_job other_job, cudaStream_t stream) {
  order order = {heap, job, other, other_job, which, stream};
  switch (which) {
#ifndef DIVERGENT_DEEP
    START(CONTINUE_PLAIN, CASE(CONTINUE_PLAIN))
    START(CONTINUE_CONSTANT, CASE(CONTINUE_CONSTANT))
    START(CONTINUE_OWNED, loop_cases)
    START(CONTINUE_VARIED, loop_cases)
    START(BREAK, loop_cases)
    START(LARGE, loop_cases)
    START(SITES, site_cases)
    START(SWITCH, site_cases)
    START(TEMPLATES, site_cases)
    START(TWO_HEAPS, site_cases)
    START(HEAP_OF_LANE, site_cases)
    START(LOCKS, hand_cases)
    START(SHARED_BARRIER, hand_cases)
    START(SHARED_EXCHANGE, hand_cases)
    START(LANE_EXCHANGE, hand_cases)
    START(TILES, group_cases)
    START(COALESCED, group_cases)
    START(WARP_PARTS, warp_cases)
    START(WARP_TILES, warp_cases)
    START(WARP_LANES, warp_cases)
  case DIVERGENT_RETURN:
    return start_and_drain<KERNEL(loop_cases, CASE(RETURN))>(order);
  case DIVERGENT_GLOBAL_EXCHANGE:
    return start_and_drain<KERNEL(hand_cases, CASE(GLOBAL_EXCHANGE))>(order);
  case DIVERGENT_GRID:
    return start_grid<KERNEL(group_cases, CASE(GRID))>(order);
  case DIVERGENT_CLUSTER:
    return start_clusters<KERNEL(group_cases, CASE(CLUSTER))>(order);
  case DIVERGENT_ODD_SHAPE:
    return start<KERNEL(loop_cases, CASE(ODD_SHAPE))>(order, dim3(11, 3, 5));
  case DIVERGENT_WIDE:
    return start<CASE(CONTINUE_PLAIN)>(order, dim3(1024)); /* if the kernel allows fewer, the launch fails */
#else
    START(POINTERS, deep_cases)
    START(RECURSION, deep_cases)
    START(RECURSION_POINTERS, deep_cases)
    START(RECURSION_VIRTUAL, deep_cases)
#endif
  default:
    return cudaErrorInvalidValue;
  }
}

#ifdef DIVERGENT_SUMS
static __global__ void sum_kernel(const word *words, word count_of_words, word *sum) {
  word own = 0;
  for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < count_of_words; i += gridDim.x * (word)blockDim.x)
    own += words[i];
  count(sum, own);
}

static __global__ void bits_kernel(const uint32_t *owners, word count_of_words, word *bits) {
  unsigned own = 0;
  for (word i = blockIdx.x * (word)blockDim.x + threadIdx.x; i < count_of_words; i += gridDim.x * (word)blockDim.x)
    own += __popc(owners[i]);
  count(bits, own);
}

extern "C" cudaError_t divergent_sum(const word *words, word count_of_words, word *sum, cudaStream_t stream) {
  sum_kernel<<<2048, 256, 0, stream>>>(words, count_of_words, sum);
  return cudaGetLastError();
}

extern "C" cudaError_t divergent_bits(const uint32_t *owners, word count_of_words, word *bits, cudaStream_t stream) {
  bits_kernel<<<512, 256, 0, stream>>>(owners, count_of_words, bits);
  return cudaGetLastError();
}
#endif
