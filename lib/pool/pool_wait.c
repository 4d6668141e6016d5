/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How waiting memory becomes free: by fences that have passed, by waits for the GPU, and by having the fronts bring
 * back what they keep.
 */
#include "pool/pool_inside.h"

/* ---- Epochs that have passed ---- */

/* A thread makes at most so many segments free before it lets other threads have the lock. */
enum { PASS_MOST = 256 };

/* Makes up to PASS_MOST segments free that waited for an epoch that has passed.  Whether these were all. */
static bool pass_some_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  uint64_t passed = reuse_passed(pool->reuse);
  struct pool_stream *stream;
  bool all = segment_pass_some(&pool->segments, passed, PASS_MOST);
  SLIST_FOREACH(stream, &pool->streams, link) {
    all = all && segment_pass_stream(&pool->segments, &stream->waiting, passed, PASS_MOST);
  }
  return all;
}

/* Makes free what waited for an epoch that has passed, until there is a hole of enough bytes.  Tens of thousands of
 * blocks may have waited for one kernel, and a thread that needs one of them must not go through all. */
static void pass_locked(struct mam_pool *pool, size_t enough) {
  lock_held(&pool->lock);
  while (!pass_some_locked(pool) && segment_largest_free(&pool->segments) < enough) {
    pool_step_out(pool);
    pool_step_in(pool);
  }
}

/* Whether anything waits for a stream. */
static bool streams_wait_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  const struct pool_stream *stream;
  SLIST_FOREACH(stream, &pool->streams, link) {
    if (!waiting_stream_empty(&stream->waiting))
      return true;
  }
  return false;
}

/* An epoch with which all that waits has passed, 0 if nothing waits. */
static uint64_t waiting_epoch_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  return streams_wait_locked(pool) ? reuse_epoch(pool->reuse) : segment_waiting_epoch(&pool->segments);
}

void pool_fence_locked(struct mam_pool *pool, size_t enough) {
  lock_held(&pool->lock);
  uint64_t epoch = waiting_epoch_locked(pool);
  pool->freed_since = 0;
  if (epoch == 0)
    return;
  pool_step_out(pool);
  (void)(enough > 0 ? reuse_reach_soon : reuse_reach)(pool->reuse, epoch);
  pool_step_in(pool);
  pass_locked(pool, enough);
}

/* ---- Waits for the GPU ---- */

/* Whether a wait that has begun will free something. */
static bool wait_covers_some_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  const struct segment *first = TAILQ_FIRST(&pool->segments.waiting);
  return streams_wait_locked(pool) || (first != NULL && first->as.waiting.epoch < reuse_epoch(pool->reuse));
}

cudaError_t pool_synchronize_locked(struct mam_pool *pool, size_t enough, cudaError_t if_captured) {
  lock_held(&pool->lock);
  pool->synchronize_count++;
  pool->synchronizing++;
  pool_step_out(pool);
  cudaError_t error = reuse_synchronize(pool->reuse);
  pool_step_in(pool);
  pool->synchronizing--;
  pass_locked(pool, enough);
  return error == cudaErrorStreamCaptureUnsupported ? if_captured : error;
}

/* The sums over the fronts, 0 if there are none.  Leaves the lock. */
static struct pool_front_sum front_sum_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  const struct pool_front *front = pool->config.front;
  struct pool_front_sum sum = {0};
  if (front == NULL)
    return sum;
  pool_step_out(pool);
  front->freeze(pool);
  front->sum(pool, &sum);
  front->thaw(pool);
  pool_step_in(pool);
  return sum;
}

size_t pool_room_bytes_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  size_t more = pool->config.elastic || !pool->config.keeps ? pool->limit_bytes - pool->held_bytes : 0;
  return pool->segments.bytes[SEGMENT_FREE] + more;
}

bool pool_wait_may_help_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  struct pool_front_sum sum = front_sum_locked(pool);
  size_t waiting = pool->segments.bytes[SEGMENT_WAITING] + sum.large_waiting_bytes;
  if (sum.small_waiting_bytes > 0) /* at most: with the last block of a slab comes the whole slab */
    waiting += sum.slab_bytes - sum.live_small_bytes;
  return waiting > 0 && bytes <= pool_room_bytes_locked(pool) + waiting;
}

size_t pool_waiting_bytes_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct pool_front_sum sum = front_sum_locked(pool);
  return pool->segments.bytes[SEGMENT_WAITING] + sum.large_waiting_bytes + sum.small_waiting_bytes;
}

bool pool_wait_before_slab(struct mam_pool *pool) {
  bool waited = false;
  if (reuse_passes_by_itself(pool->reuse))
    return false;
  pool_lock(pool);
  size_t waiting = pool_waiting_bytes_locked(pool);
  if (pool->state == POOL_OPEN && waiting > pool_waiting_limit_locked(pool) && pool->synchronizing == 0 &&
      !reuse_capturing(pool->reuse))
    waited = pool_synchronize_locked(pool, SIZE_MAX, cudaErrorMemoryAllocation) == cudaSuccess;
  pool_unlock(pool);
  return waited;
}

cudaError_t pool_await_change_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool->users++;
  pthread_cond_wait(&pool->changed, &pool->lock);
  if (--pool->users == 0) /* for pool_finish; waiters that woke each other each time would never sleep */
    pthread_cond_broadcast(&pool->changed);
  return cudaSuccess;
}

/* ---- What the fronts keep ---- */

void pool_collect_locked(struct mam_pool *pool, size_t enough, bool all) {
  lock_held(&pool->lock);
  uint64_t passed = reuse_passed(pool->reuse);
  if (pool->config.front != NULL) {
    pool_step_out(pool);
    bool complete = pool->config.front->collect(pool, all);
    pool_step_in(pool);
    pool->collected_epoch = complete ? passed : 0;
  }
  pool_fence_locked(pool, enough);
}

bool pool_collection_may_help_locked(struct mam_pool *pool, uint64_t epoch) {
  lock_held(&pool->lock);
  if (pool->config.front == NULL || pool->config.reuse == MAM_REUSE_IMMEDIATE)
    return pool->config.front != NULL;
  pool_step_out(pool);
  (void)reuse_reach_soon(pool->reuse, epoch);
  pool_step_in(pool);
  return reuse_passed(pool->reuse) > pool->collected_epoch;
}

/* ---- Waits that serve an allocation ---- */

cudaError_t pool_await_gpu_locked(struct mam_pool *pool, size_t bytes, unsigned *own_waits) {
  lock_held(&pool->lock);
  if (pool->synchronizing > 0 && wait_covers_some_locked(pool))
    return pool_await_change_locked(pool);
  pool_collect_locked(pool, bytes, true); /* a batch that is being filled has no epoch that the wait could make pass */
  if (segment_largest_free(&pool->segments) >= bytes)
    return cudaSuccess;
  ++*own_waits;
  return pool_synchronize_locked(pool, bytes, cudaErrorMemoryAllocation);
}

cudaError_t pool_await_gpu(struct mam_pool *pool, uint64_t generation, size_t enough) {
  cudaError_t error = cudaErrorMemoryAllocation;
  pool_lock(pool);
  if (pool->state == POOL_OPEN && pool->generation == generation && !reuse_capturing(pool->reuse))
    error = pool_synchronize_locked(pool, enough, cudaErrorMemoryAllocation);
  pool_unlock(pool);
  return error;
}
