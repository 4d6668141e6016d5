/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of lib/pool share: the lock, how to leave it in the middle of a call, and the functions that one file
 * has for those above it.  A file calls only files that stand before it in this list:
 *
 *   segment*, chunk_map  what is where in a pool; which pool has an address
 *   pool_list            all pools, the state of one, its users
 *   pool_info            numbers, with the fronts held still
 *   pool_watch           how lib/api learns that a pool is empty or calm
 *   pool_wait            fences and waits for the GPU; collecting from the fronts
 *   pool_chunks          what the source gave: chunks, and pieces of an elastic pool's
 *   pool_trim            giving free memory back to the source
 *   pool_close           closing a pool, and losing one whose memory is gone
 *   pool_move            putting memory, new or free, where a block fits
 *   pool_elastic         growth of a pool that maps piece by piece
 *   pool_grow            taking memory from the source: the first chunk, and growth
 *   pool_free            freeing, and the rules of reuse
 *   pool                 allocating
 *   pool_open            opening, and forks
 *   pool_report          reports in JSON and in words
 *
 * pool_check.c is called with --enable-checks, when the lock is left, and by tests.
 */
#ifndef MAM_LIB_POOL_INSIDE_H
#define MAM_LIB_POOL_INSIDE_H

#include <stdio.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/mutex.h"
#include "base/record.h"
#include "pool/pool.h"

/* ---- The lock ---- */

static inline void pool_lock(struct mam_pool *pool) { mutex_lock(&pool->lock); }

static inline void pool_unlock(struct mam_pool *pool) {
  lock_held(&pool->lock);
#ifdef MAM_CHECKS
  const char *fault = pool_check_locked(pool);
  if (fault != NULL) {
    (void)fprintf(stderr, "mam: pool %p: %s\n", (void *)pool, fault);
    abort();
  }
#endif
  pthread_mutex_unlock(&pool->lock);
}

/* Leaves the lock in the middle of a call, to call the source.  The pool cannot be closed meanwhile. */
static inline void pool_step_out(struct mam_pool *pool) {
  pool->users++;
  pool_unlock(pool);
}

static inline void pool_step_in(struct mam_pool *pool) {
  pool_lock(pool);
  pool->users--;
  pthread_cond_broadcast(&pool->changed);
}

/* ---- Numbers ---- */

static inline uintptr_t round_up(uintptr_t value, size_t power_of_two) {
  return (value + power_of_two - 1) & ~(uintptr_t)(power_of_two - 1);
}

/* Rounded up to whole granules of the source; down where up would overflow, as no source has so much. */
static inline size_t whole_units(size_t bytes) {
  size_t up = round_up(bytes, SOURCE_GRANULARITY_BYTES);
  return up >= bytes ? up : bytes & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
}

/* Spares the large holes of a guarded pool (segment.h).  An allocation that must have one anyway sets spared_bytes to 0
 * for as long as it has the lock. */
static inline void pool_spare_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool->segments.spared_bytes = pool->config.guarded ? pool->config.chunk_bytes : 0;
}

/* The bytes of all segments that have memory. */
static inline size_t pool_reserved_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  const size_t *bytes = pool->segments.bytes;
  return bytes[SEGMENT_USED] + bytes[SEGMENT_WAITING] + bytes[SEGMENT_FREE];
}

/* More than so many bytes are not to wait. */
static inline size_t pool_waiting_limit_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  return pool->config.waiting_limit_bytes > 0 ? pool->config.waiting_limit_bytes : pool->held_bytes / 2;
}

/* Raises the peak; called after memory was added. */
static inline void pool_peak_reserved_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  size_t reserved_bytes = pool_reserved_locked(pool);
  if (reserved_bytes > pool->peak_reserved_bytes)
    pool->peak_reserved_bytes = reserved_bytes;
}

/* ---- pool_list.c ---- */

/* The error of a pool that is not open. */
cudaError_t pool_unusable_locked(const struct mam_pool *pool);

/* pool_usable for a caller that has the lock. */
static inline cudaError_t pool_usable_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  return __builtin_expect(pool->state == POOL_OPEN, true) ? cudaSuccess : pool_unusable_locked(pool);
}

/* The same, and whether it still is the pool that the caller means; default_id as for pool_malloc. */
static inline cudaError_t pool_expect_locked(const struct mam_pool *pool, uint64_t default_id) {
  lock_held(&pool->lock);
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess && default_id != POOL_ANY_ID && pool->config.default_id != default_id)
    error = cudaErrorInvalidResourceHandle;
  return error;
}

/* The same, for a caller that knows the generation; POOL_ANY_GENERATION if it does not matter. */
static inline cudaError_t pool_expect_generation_locked(const struct mam_pool *pool, uint64_t generation) {
  lock_held(&pool->lock);
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess && generation != POOL_ANY_GENERATION && pool->generation != generation)
    error = cudaErrorInvalidResourceHandle;
  return error;
}

/* The lock of the list of pools, and of what pools that ended had counted.  Before a pool's lock. */
void pool_list_lock(void);
void pool_list_unlock(void);

/* A pool to open: a dead one or a new one, which becomes POOL_OPENING.  NULL if the host has no memory. */
struct mam_pool *pool_list_take(void);

/* ---- pool_info.c ---- */

/* The same numbers as pool_info, after pool_freeze; frozen NULL: without the fronts. */
void pool_info_locked(struct mam_pool *pool, const struct pool_front *frozen, MAM_PoolInfo *info);

/* Holds everything still, for numbers that fit together: fronts, then the lock. */
const struct pool_front *pool_freeze(struct mam_pool *pool); /* for pool_thaw; NULL: no fronts */
void pool_thaw(struct mam_pool *pool, const struct pool_front *frozen);

/* ---- pool_watch.c ---- */

/* Whether no block is live.  The fronts are frozen. */
bool pool_is_empty_locked(struct mam_pool *pool);

/* Says whether lib/api looks at a lazy pool from now on, or the next emptying is reported. */
void pool_watch_locked(struct mam_pool *pool, bool watched);

/* ---- pool_wait.c: each leaves the lock in between, unless said otherwise ---- */

/* Asks for a fence of what waits, and makes free what has passed, until there is a hole of enough bytes.  Never waits
 * for the GPU.  If enough is not 0, an idle GPU is given the time to say that it is done. */
void pool_fence_locked(struct mam_pool *pool, size_t enough);

/* Waits for the GPU, and makes free what was waiting when the wait began, until there is a hole of enough bytes.
 * if_captured: what it returns if a stream capture has begun since the caller asked, and forbids the wait. */
cudaError_t pool_synchronize_locked(struct mam_pool *pool, size_t enough, cudaError_t if_captured);

/* What is free, and what a pool that gives memory back for a growth may still take. */
size_t pool_room_bytes_locked(struct mam_pool *pool);

/* Whether a wait for the GPU can serve bytes: room and what waits would be enough. */
bool pool_wait_may_help_locked(struct mam_pool *pool, size_t bytes);

/* What waits for the GPU, in the fronts and in the pool. */
size_t pool_waiting_bytes_locked(struct mam_pool *pool);

/* Makes what waits free, by another thread's wait if that covers the oldest of it, else by one of the caller's, which
 * *own_waits counts.  Before that, all that the fronts keep is collected. */
cudaError_t pool_await_gpu_locked(struct mam_pool *pool, size_t bytes, unsigned *own_waits);

/* Waits until another thread has done something that may help. */
cudaError_t pool_await_change_locked(struct mam_pool *pool);

/* Brings back what the fronts keep, as pool_front's collect, and makes free what has passed, as pool_fence_locked. */
void pool_collect_locked(struct mam_pool *pool, size_t enough, bool all);

/* Whether the fronts may keep what the GPU is done with, after a fence for the epoch: not if no epoch has passed since
 * they were last collected, as what was freed later waits for a later one.  Then a running kernel costs one collection,
 * not one for each growth. */
bool pool_collection_may_help_locked(struct mam_pool *pool, uint64_t epoch);

/* ---- pool_chunks.c ---- */

static inline void pool_held_change_locked(struct mam_pool *pool, size_t change) {
  lock_held(&pool->lock);
  pool->held_bytes += change;
  pool->source_call_count += change != 0;
  if (change != 0 && record_on())
    record_taken(pool_record_context(pool), pool->device, (int64_t)change);
}

/* Ends what pool->growing began: a growth or a trim. */
void pool_growing_end_locked(struct mam_pool *pool);

/* The place of a reserved chunk for the piece that begins at an address; and a piece's bytes. */
static inline uint32_t *pool_piece_at(struct pool_chunk *chunk, uintptr_t address) {
  return &chunk->pieces[(address - chunk->base) / SOURCE_GRANULARITY_BYTES];
}
static inline size_t pool_piece_bytes(uint32_t piece) { return (size_t)piece * SOURCE_GRANULARITY_BYTES; }

/* Gives every chunk back; the pool is the caller's alone. */
cudaError_t pool_chunks_give(struct mam_pool *pool);

/* In a forked child: ends the moves of a thread that does not exist there.  What was moving has no memory then: host
 * pages that it had stay as they are until something is mapped there. */
void pool_settle_locked(struct mam_pool *pool);

/* ---- pool_trim.c: each leaves the lock in between, unless said otherwise ---- */

/* pool_trim of a pool that no thread grows or trims at the moment, without a collection. */
cudaError_t pool_trim_locked(struct mam_pool *pool, size_t keep_bytes);

/* Gives one chunk, or piece, that is free back to the source.  False if there is none, or another thread grows or
 * trims. May wait for what the source waits for. */
bool pool_give_one_locked(struct mam_pool *pool);

/* A part of an unmapped segment that is to get memory, and serves with what is free before it, after it, or both.
 * unmapped NULL: none. */
struct pool_place {
  struct segment *unmapped;
  uintptr_t base;
  size_t bytes;
  bool with_before, with_after;
};

/* segment_move, with an error text where the host has no memory.  Keeps the lock. */
struct segment *pool_move_out_locked(struct mam_pool *pool, struct segment *segment, uintptr_t base, size_t bytes);

/* pool_trim_locked of an elastic pool, while the caller grows it.  What is free beside the place stays. */
cudaError_t pool_pieces_trim_locked(struct mam_pool *pool, size_t keep_bytes, struct pool_place place);
/* Whether the GPU is known to be done with all free memory, after asking for a fence if need be.  Never in a pool that
 * keeps its memory. */
bool pool_free_may_be_unmapped_locked(struct mam_pool *pool);

/* Whether a free segment is what the place serves with. */
static inline bool pool_is_beside(const struct segment *segment, struct pool_place place) {
  return (place.with_before && segment->base + segment->bytes == place.base) ||
         (place.with_after && segment->base == place.base + place.bytes);
}

/* The bytes of the next piece at *base or above that lies wholly in a free segment; *base becomes the piece's.  0 if
 * there is none.  Keeps the lock. */
size_t pool_piece_within_locked(const struct mam_pool *pool, const struct segment *segment, uintptr_t *base);

/* The bytes of all pieces that lie wholly in a free segment; and of those that are beside the place, if there is one.
 * Both keep the lock. */
size_t pool_free_pieces_bytes_locked(struct mam_pool *pool);
size_t pool_pieces_beside_locked(struct mam_pool *pool, struct pool_place place);

/* Gives back a chunk that is free as a whole.  None if the pool has none (the last one may have to stay), is closing,
 * or has a hole of enough bytes.  The chunk is out of the map before the source has it: from then on another pool may
 * be given the same addresses.  Returns whether the source took one; if it was asked, *error is its answer. */
bool pool_chunk_give_locked(struct mam_pool *pool, size_t enough, cudaError_t *error);

/* ---- pool_close.c ---- */

/* Closes a pool whose memory is gone: another chunk has these addresses, which the chunk map said were the pool's.  By
 * now they may be no longer, as another pool has begun in its place: that one stays. */
void pool_abandon(struct mam_pool *pool, uintptr_t base, size_t bytes);

/* ---- pool_move.c: pieces of an elastic pool's chunk ---- */

/* A mapping costs 50 us, and 60 to 140 us for each GiB of it (H200).  So what is mapped at once is one piece, unless it
 * is so large that several cost little in comparison.  A piece can only be given back as a whole: of a large block's
 * pieces, some may be free while a smaller block lies in another. */
enum { POOL_PIECE_MOST_BYTES = 512 << 20 };

/* How large a place may become, and makes it larger.  It grows away from what it serves with. */
size_t pool_place_most_bytes(struct pool_place place);
void pool_place_resize(struct pool_place *place, size_t bytes);

/* Maps memory at a place.  Leaves the lock. */
cudaError_t pool_place_fill_locked(struct mam_pool *pool, struct pool_place place);

/* Moves free pieces to a place, and maps the rest of it.  The place may become larger, by a piece that is too large.
 * Other free pieces are given back, if the pool would hold more than most_bytes otherwise.  Leaves the lock.
 * cudaErrorMemoryAllocation without *asked: they are not enough for that. */
cudaError_t pool_place_move_locked(struct mam_pool *pool, struct pool_place *place, size_t most_bytes, bool *asked);

/* ---- pool_elastic.c: each leaves the lock in between ---- */

/* Maps what a block of bytes needs, or more (generous).  cudaErrorMemoryAllocation without *asked: the limit, or no
 * addresses. */
cudaError_t pool_elastic_try_locked(struct mam_pool *pool, size_t bytes, bool generous, bool *asked);

/* The same, and moves what is free elsewhere in the addresses, where that is better than growth or all that is left. */
cudaError_t pool_elastic_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked);

/* ---- pool_grow.c ---- */

/* Takes what a new pool begins with.  The lock is not held. */
cudaError_t pool_first_chunk(struct mam_pool *pool);

/* Makes the pool larger by what a block of bytes needs, outside the lock.  cudaErrorMemoryAllocation if it cannot be,
 * by the limit or the source; cudaSuccess says that it may be worth to look again.  at_once: other pools, whose memory
 * may have to wait for the GPU, are not asked for theirs. */
cudaError_t pool_grow_locked(struct mam_pool *pool, size_t bytes, bool at_once);

/* ---- pool_free.c ---- */

/* A fence is asked for once in so many frees: the list of what waits stays short, and a fence costs each free 5 ns. */
enum { POOL_FENCE_EVERY = 64 };

/* Counts used segments that a slab could have served. */
static inline void pool_class_count_locked(struct mam_pool *pool, size_t bytes, size_t change) {
  lock_held(&pool->lock);
  if (bytes > POOL_SMALL_MOST_BYTES)
    return;
  _Atomic size_t *count = &pool->live_by_size[(bytes - 1) / POOL_ALIGNMENT_BYTES];
  /* relaxed: a hint, written under the lock */
  atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + change, memory_order_relaxed);
}

/* What was freed on a stream; NULL if nothing was. */
struct waiting_stream *pool_stream_find_locked(struct mam_pool *pool, struct context_stream named);

#endif
