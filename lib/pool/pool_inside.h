/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What pool.c and pool_grow.c share: the lock and how to leave it in the middle of a call, and each other's doors.
 * pool_grow.c deals with the source's memory (chunks, growth, giving back), pool.c with everything else.
 */
#ifndef MAM_LIB_POOL_INSIDE_H
#define MAM_LIB_POOL_INSIDE_H

#include <stdio.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/mutex.h"
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

/* Leaves the lock in the middle of a call, to call the source; nobody can close the pool meanwhile. */
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

/* In whole units of the source; down where up would pass the end of the numbers, which no source has. */
static inline size_t whole_units(size_t bytes) {
  size_t up = round_up(bytes, SOURCE_GRANULARITY_BYTES);
  return up >= bytes ? up : bytes & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
}

/* What is in segments that have memory. */
static inline size_t pool_reserved_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  const size_t *bytes = pool->segments.bytes;
  return bytes[SEGMENT_USED] + bytes[SEGMENT_WAITING] + bytes[SEGMENT_FREE];
}

/* After memory was added. */
static inline void pool_peak_reserved_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  size_t reserved_bytes = pool_reserved_locked(pool);
  if (reserved_bytes > pool->peak_reserved_bytes)
    pool->peak_reserved_bytes = reserved_bytes;
}

/* ---- pool.c ---- */

/* Closes a pool whose memory is gone, given a sign of it: its context is, or another chunk has its addresses. */
void pool_abandon(struct mam_pool *pool);

/* Brings back what the fronts keep, and makes free what the GPU is done with.  Leaves the lock meanwhile. */
void pool_collect_locked(struct mam_pool *pool);

/* ---- pool_grow.c ---- */

/* Waits until another thread has done something that may help. */
cudaError_t pool_await_change_locked(struct mam_pool *pool);

/* Takes what a new pool begins with.  The lock is not held. */
cudaError_t pool_first_chunk(struct mam_pool *pool);

/* Gives every chunk back; the pool is the caller's alone. */
cudaError_t pool_chunks_give(struct mam_pool *pool);

/* Makes the pool larger by what a block of bytes needs, outside the lock.  cudaErrorMemoryAllocation if it cannot be,
 * by the limit or the source; cudaSuccess says that it may be worth to look again.  at_once: other pools, whose memory
 * may have to wait for the GPU, are not asked for theirs. */
cudaError_t pool_grow_locked(struct mam_pool *pool, size_t bytes, bool at_once);

/* Gives one chunk, or piece, that is free back to the source.  False if there is none, or another thread grows or
 * trims. May wait for what the source waits for. */
bool pool_give_one_locked(struct mam_pool *pool);

/* In a forked child: ends the moves of a thread that does not exist there. */
void pool_settle_locked(struct mam_pool *pool);

#endif
