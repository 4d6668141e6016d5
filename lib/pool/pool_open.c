/* SPDX-License-Identifier: BSD-2-Clause */
/* Opening a pool, and forks. */
#include <string.h>

#include "base/error.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

/* A block leaves at most this part of the limit over in a chunk that is spared (segment.h): what many blocks leave over
 * is of no use to other processes. */
enum { REST_SHARE = 32 };

/* A chunk that was taken for a block is not spared from it: it is larger by what rounding and the alignment leave. */
static size_t rest_most_bytes(const struct mam_pool *pool) {
  size_t share = pool->limit_bytes / REST_SHARE, least = SOURCE_GRANULARITY_BYTES + pool->config.alignment;
  return share > least ? share : least;
}

/* Sets the fields of a pool that was taken from the list, before its first chunk. */
static void pool_reset(struct mam_pool *pool, const struct pool_config *config, const struct source *source) {
  const size_t begin = offsetof(struct mam_pool, unfenced_epoch);
  pool_lock(pool);
  pool->config = *config;
  pool->config.chunk_bytes = whole_units(config->chunk_bytes);
  pool->config.limit_bytes = whole_units(config->limit_bytes);
  pool->source = *source;
  pool->generation++;
  memset((char *)pool + begin, 0, offsetof(struct mam_pool, frozen_for_fork) - begin);
  pool->ticket_next = 1;
  for (unsigned i = 0; i < POOL_SMALL_SIZES; i++)
    atomic_store_explicit(&pool->live_by_size[i], 0, memory_order_relaxed); /* relaxed: a hint */
  pool->limit_bytes = SIZE_MAX;
  /* relaxed, both: as where they are read; the last pool's */
  atomic_store_explicit(&pool->crowded, false, memory_order_relaxed);
  atomic_store_explicit(&pool->grown, false, memory_order_relaxed);
  pool_spare_locked(pool);
  pool->segments.rest_most_bytes = SIZE_MAX;
  pool_unlock(pool);
}

/* The device of a source; 0 on host memory, or if the driver does not say. */
static int device_of(const struct source *source) {
  const struct driver *driver = source->context.driver;
  struct context_visit visit;
  CUdevice device = 0;
  if (driver == NULL || driver->cuCtxGetDevice == NULL || context_enter(&source->context, &visit) != cudaSuccess)
    return 0;
  if (driver->cuCtxGetDevice(&device) != CUDA_SUCCESS)
    device = 0;
  context_leave(&source->context, &visit);
  return device;
}

cudaError_t pool_open(const struct pool_config *config, const struct source *source, struct mam_pool **opened) {
  struct mam_pool *pool = pool_list_take();
  if (pool == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a pool");
  pool_reset(pool, config, source);
  pool->device = device_of(source);
  pool->reuse = reuse_open(source);
  cudaError_t error = cudaSuccess;
  if (pool->reuse != NULL && (config->front == NULL || config->front->open(pool)))
    /* release: what open made; pairs with the acquire in pool_freeze */
    atomic_store_explicit(&pool->in_front, config->front, memory_order_release);
  else
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a pool");
  if (error == cudaSuccess)
    error = pool_first_chunk(pool);
  if (error != cudaSuccess && pool->reuse != NULL)
    reuse_close(pool->reuse);
  pool_lock(pool);
  if (error == cudaSuccess) {
    size_t limit_bytes = pool->config.limit_bytes, user_limit_bytes = pool->config.user_limit_bytes;
    if (user_limit_bytes > 0 && limit_bytes > user_limit_bytes)
      limit_bytes = user_limit_bytes;
    pool_peak_reserved_locked(pool);
    pool->limit_bytes = limit_bytes > pool->held_bytes ? limit_bytes : pool->held_bytes;
    pool->segments.rest_most_bytes = rest_most_bytes(pool);
    pool_watch_locked(pool, false);
    atomic_store_explicit(&pool->limit_hint, pool->limit_bytes, memory_order_relaxed); /* relaxed: a hint, as the id */
    pool->state = POOL_OPEN;
    atomic_store_explicit(&pool->default_id, config->default_id, memory_order_relaxed);
    *opened = pool;
  } else {
    pool->state = POOL_DEAD;
  }
  pool_unlock(pool);
  return error;
}

/* ---- Fork ---- */

void pool_before_fork(void) {
  pool_list_lock();
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    const struct pool_front *front = atomic_load_explicit(&pool->in_front, memory_order_acquire); /* as pool_freeze */
    if (front != NULL)
      front->freeze(pool);
    pthread_mutex_lock(&pool->lock);
    pool->frozen_for_fork = front;
  }
  reuse_before_fork();
  chunk_map_lock();
  context_before_fork();
}

/* Threads that were in the middle of a call do not exist in the child, nor does lib/api's reaper.  What they had begun
 * with a pool of host memory is either not visible yet or complete, as the lock was not theirs. */
static void fork_in_child(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool->users = pool->synchronizing = 0;
  pool->wanted_bytes = 0;
  pool->growing = false;
  pool_watch_locked(pool, false);
  pool_settle_locked(pool);
  (void)pthread_cond_init(&pool->changed, NULL);
  if (pool->state == POOL_LOSING)
    pool->state = POOL_LOST;
  if (pool->state == POOL_OPEN && pool->source.operations != &source_host)
    pool->state = POOL_FORKED;
}

void pool_after_fork(bool in_child) {
  if (in_child)
    mutex_forked();
  context_after_fork(in_child);
  chunk_map_unlock();
  reuse_after_fork(in_child);
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    const struct pool_front *front = pool->frozen_for_fork;
    if (in_child)
      fork_in_child(pool);
    if (front != NULL)
      front->after_fork(pool, in_child);
    pthread_mutex_unlock(&pool->lock); /* last: a thread that takes it may then wait for a lock that the caller has */
  }
  for (struct mam_pool *pool = in_child ? pool_first() : NULL; pool != NULL; pool = pool->next)
    if (pool->state == POOL_FORKED && pool->frozen_for_fork != NULL) /* the child's only thread reads them */
      pool->frozen_for_fork->close(pool);
  pool_list_unlock();
}
