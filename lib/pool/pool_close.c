/* SPDX-License-Identifier: BSD-2-Clause */
/* Closing a pool, and losing one whose memory is gone. */
#include "base/wait.h"
#include "pool/pool_inside.h"

/* Takes the first step of closing or losing an open pool: from here on it is not found any more. */
static void retire_locked(struct mam_pool *pool, enum pool_state state) {
  lock_held(&pool->lock);
  pool->state = state;
  atomic_store_explicit(&pool->default_id, 0, memory_order_relaxed); /* relaxed: a hint */
  pthread_cond_broadcast(&pool->changed);
}

static void streams_free_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct pool_stream *stream;
  while ((stream = SLIST_FIRST(&pool->streams)) != NULL) {
    SLIST_REMOVE_HEAD(&pool->streams, link);
    free(stream);
  }
}

static struct pool_past past; /* under pools_lock */

struct pool_past pool_past(void) {
  pool_list_lock();
  struct pool_past known = past;
  pool_list_unlock();
  return known;
}

/* Remembers what a pool that ends had counted. */
static void past_add(struct mam_pool *pool) {
  MAM_PoolInfo info;
  struct pool_past_kind *kind = pool->config.default_id != 0 ? &past.defaults : &past.others;
  const struct pool_front *frozen = pool_freeze(pool);
  pool_info_locked(pool, frozen, &info);
  pool_thaw(pool, frozen);
  pool_list_lock();
  past.left_count += info.used_count;
  past.left_bytes += info.requested_bytes;
  kind->pool_count++;
  kind->malloc_count += info.malloc_count;
  kind->hit_count += info.magazine_hit_count + info.size_hit_count + info.tag_hit_count;
  kind->synchronize_count += info.synchronize_count;
  kind->peak_used_bytes = info.peak_used_bytes > kind->peak_used_bytes ? info.peak_used_bytes : kind->peak_used_bytes;
  pool_list_unlock();
}

cudaError_t pool_finish(struct mam_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  while (pool->users > 0)
    pthread_cond_wait(&pool->changed, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
  past_add(pool);
  if (pool->config.front != NULL)
    pool->config.front->close(pool);
  cudaError_t error = pool_chunks_give(pool); /* the pool is this thread's alone */
  reuse_close(pool->reuse);
  source_close(&pool->source);
  pthread_mutex_lock(&pool->lock);
  streams_free_locked(pool);
  segment_set_clear(&pool->segments);
  pool->state = pool->state == POOL_LOSING ? POOL_LOST : POOL_DEAD;
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->lock);
  return error;
}

cudaError_t pool_close(struct mam_pool *pool, uint64_t default_id) {
  pool_lock(pool);
  while (pool->state == POOL_LOSING)
    pthread_cond_wait(&pool->changed, &pool->lock);
  bool lost = pool->state == POOL_LOST; /* nothing is left but the handle */
  cudaError_t error = lost ? cudaSuccess : pool_expect_locked(pool, default_id);
  if (lost)
    pool->state = POOL_DEAD;
  else if (error == cudaSuccess)
    retire_locked(pool, POOL_CLOSING);
  pool_unlock(pool);
  return error == cudaSuccess && !lost ? pool_finish(pool) : error;
}

bool pool_retire(struct mam_pool *pool, uint64_t default_id, bool only_if_empty) {
  pool_lock(pool);
  bool meant = pool_expect_locked(pool, default_id) == cudaSuccess;
  if (meant && only_if_empty)
    meant = pool->config.lazy && pool_is_empty_locked(pool);
  if (meant)
    retire_locked(pool, POOL_CLOSING);
  else
    pool_watch_locked(pool, false);
  pool_unlock(pool);
  return meant;
}

/* ---- Memory that is gone ---- */

/* Takes a pool apart whose memory is gone, and leaves the lock.  A pool that is no default pool stays, as POOL_LOST. */
static void pool_lose(struct mam_pool *pool) {
  lock_held(&pool->lock);
  retire_locked(pool, pool->config.default_id != 0 ? POOL_CLOSING : POOL_LOSING);
  pool_unlock(pool);
  (void)pool_finish(pool);
}

static bool has_memory_locked(struct mam_pool *pool, uintptr_t base, size_t bytes) {
  lock_held(&pool->lock);
  const struct pool_chunk *chunk;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    if (chunk->base < base + bytes && base < chunk->base + chunk->bytes)
      return true;
  }
  return false;
}

void pool_abandon(struct mam_pool *pool, uintptr_t base, size_t bytes) {
  pool_lock(pool);
  if ((pool->state == POOL_OPEN || pool->state == POOL_FORKED) && has_memory_locked(pool, base, bytes)) {
    pool_lose(pool);
    return;
  }
  struct wait wait = {WAIT_LOOKS, WAIT_FIRST_NS};
  bool closing = pool->state == POOL_CLOSING || pool->state == POOL_LOSING;
  while (pool->state == POOL_CLOSING || pool->state == POOL_LOSING) /* by another thread */
    pthread_cond_wait(&pool->changed, &pool->lock);
  pool_unlock(pool);
  if (!closing) /* its chunk is not in the list yet, or it has ended, and another pool has begun in its place */
    wait_more(&wait);
}

void pool_abandon_gone(void) {
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    pool_lock(pool);
    if (pool->state == POOL_OPEN && !pool->source.operations->lives(&pool->source))
      pool_lose(pool);
    else
      pool_unlock(pool);
  }
}
