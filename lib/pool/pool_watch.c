/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How lib/api learns that a lazy pool is empty or calm: a thread reports that it freed the last block, or the reaper
 * watches the pool, which is to look at it from time to time.
 */
#include "pool/pool_inside.h"

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
  return !sum.in_use;
}

void pool_watch_locked(struct mam_pool *pool, bool watched) {
  lock_held(&pool->lock);
  /* relaxed: a hint */
  atomic_store_explicit(&pool->reports_empty, pool->config.lazy && !watched, memory_order_relaxed);
}

enum pool_look pool_look(struct mam_pool *pool, uint64_t default_id, uint64_t *malloc_count) {
  const struct pool_front *frozen = pool_freeze(pool);
  enum pool_look look = POOL_GONE;
  MAM_PoolInfo info;
  if (pool_expect_locked(pool, default_id) == cudaSuccess) {
    /* relaxed: a hint */
    bool crowded = atomic_load_explicit(&pool->crowded, memory_order_relaxed);
    look = pool_is_empty_locked(pool) ? POOL_EMPTY : crowded ? POOL_CROWDED : POOL_BUSY;
    pool_watch_locked(pool, look != POOL_BUSY);
    pool_info_locked(pool, frozen, &info);
    *malloc_count = info.malloc_count;
  }
  pool_thaw(pool, frozen);
  return look;
}

bool pool_calm_look(struct mam_pool *pool, struct pool_calm *calm) {
  MAM_PoolInfo info;
  const struct pool_front *frozen = pool_freeze(pool);
  bool open = pool->state == POOL_OPEN;
  if (open) {
    pool_info_locked(pool, frozen, &info);
    *calm = (struct pool_calm){pool->generation,    info.malloc_count,  info.used_bytes,
                               info.reserved_bytes, info.waiting_bytes, pool->config.yields};
  }
  pool_thaw(pool, frozen);
  return open;
}

/* Whether a thread that finds the lazy pool empty, or crowded, is to say so. */
static bool reports_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  /* relaxed: written under the lock */
  return pool->state == POOL_OPEN && atomic_load_explicit(&pool->reports_empty, memory_order_relaxed);
}

void pool_report_emptied(struct mam_pool *pool, uint64_t generation, struct pool_emptied *emptied) {
  pool_lock(pool);
  if (reports_locked(pool) && pool->generation == generation) {
    *emptied = (struct pool_emptied){.pool = pool, .default_id = pool->config.default_id, .generation = generation};
    pool_watch_locked(pool, true);
  }
  pool_unlock(pool);
}

void pool_not_watched(struct mam_pool *pool) {
  pool_lock(pool);
  pool_watch_locked(pool, false);
  pool_unlock(pool);
}

bool pool_to_be_watched(struct mam_pool *pool) {
  /* relaxed, both: looked at again under the lock, or need not be exact */
  if (!atomic_load_explicit(&pool->crowded, memory_order_relaxed) ||
      !atomic_load_explicit(&pool->reports_empty, memory_order_relaxed))
    return false;
  pool_lock(pool);
  bool watch = reports_locked(pool);
  if (watch)
    pool_watch_locked(pool, true);
  pool_unlock(pool);
  return watch;
}
