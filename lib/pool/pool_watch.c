/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How lib/api learns that a lazy pool is empty or calm: a thread reports that it freed the last block, or the reaper
 * watches the pool, which is to look at it from time to time.
 */
#include "pool/pool_inside.h"

bool pool_is_still(struct mam_pool *pool, uint64_t generation) {
  pool_lock(pool);
  bool is = pool->generation == generation;
  pool_unlock(pool);
  return is;
}

bool pool_is_open(struct mam_pool *pool, uint64_t generation) {
  pool_lock(pool);
  bool is = pool->state == POOL_OPEN && pool->generation == generation;
  pool_unlock(pool);
  return is;
}

bool pool_is_empty_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct pool_front_sum sum;
  if (pool->config.front == NULL)
    return pool->segments.count[SEGMENT_USED] == 0;
  pool->config.front->sum(pool, &sum);
  return sum.live == 0;
}

/* All successful allocations, those of the fronts included. */
static uint64_t malloc_count_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct pool_front_sum sum = {0};
  if (pool->config.front != NULL)
    pool->config.front->sum(pool, &sum);
  uint64_t count = pool->malloc_count;
  for (unsigned i = 0; i < FRONT_HIT_KINDS; i++)
    count += sum.hits[i];
  return count;
}

void pool_watch_locked(struct mam_pool *pool, bool watched) {
  lock_held(&pool->lock);
  bool lone = pool->config.lazy && !watched;
  pool->watched = watched;
  /* relaxed, both: hints */
  atomic_store_explicit(&pool->reports_empty, lone, memory_order_relaxed);
  atomic_store_explicit(&pool->wants_watch, lone && pool->crowded, memory_order_relaxed);
}

enum pool_look pool_look(struct mam_pool *pool, uint64_t default_id, uint64_t *malloc_count) {
  const struct pool_front *frozen = pool_freeze(pool);
  enum pool_look look = POOL_GONE;
  if (pool_expect_locked(pool, default_id) == cudaSuccess) {
    look = pool_is_empty_locked(pool) ? POOL_EMPTY : pool->crowded ? POOL_CROWDED : POOL_BUSY;
    pool_watch_locked(pool, look != POOL_BUSY);
    *malloc_count = malloc_count_locked(pool);
  }
  pool_thaw(pool, frozen);
  return look;
}

bool pool_calm_look(struct mam_pool *pool, struct pool_calm *calm) {
  struct pool_front_sum sum = {0};
  MAM_PoolInfo info;
  const struct pool_front *frozen = pool_freeze(pool);
  bool open = pool->state == POOL_OPEN;
  if (open) {
    if (frozen != NULL)
      frozen->sum(pool, &sum);
    pool_info_locked(pool, &sum, &info);
    *calm = (struct pool_calm){pool->generation,    info.malloc_count,  info.used_bytes,
                               info.reserved_bytes, info.waiting_bytes, pool->config.yields};
  }
  pool_thaw(pool, frozen);
  return open;
}

void pool_report_emptied(struct mam_pool *pool, uint64_t generation, struct pool_emptied *emptied) {
  pool_lock(pool);
  if (pool->state == POOL_OPEN && pool->generation == generation && pool->config.lazy && !pool->watched) {
    *emptied = (struct pool_emptied){.pool = pool, .default_id = pool->config.default_id, .generation = generation};
    pool_watch_locked(pool, true);
  }
  pool_unlock(pool);
}

void pool_crowd(struct mam_pool *pool) {
  pool_lock(pool);
  pool->crowded = true;
  pool_watch_locked(pool, pool->watched);
  pool_unlock(pool);
}

void pool_not_watched(struct mam_pool *pool) {
  pool_lock(pool);
  if (pool->state == POOL_OPEN && pool->watched)
    pool_watch_locked(pool, false);
  pool_unlock(pool);
}

bool pool_to_be_watched(struct mam_pool *pool) {
  if (!atomic_load_explicit(&pool->wants_watch, memory_order_relaxed)) /* relaxed: looked at again under the lock */
    return false;
  pool_lock(pool);
  bool watch = pool->state == POOL_OPEN && pool->config.lazy && pool->crowded && !pool->watched;
  if (watch)
    pool_watch_locked(pool, true);
  pool_unlock(pool);
  return watch;
}
