/* SPDX-License-Identifier: BSD-2-Clause */
/* All pools there ever were, whether one is usable, and its users. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "pool/pool_inside.h"

/* ---- Whether a pool is usable ---- */

cudaError_t pool_unusable_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (pool->state == POOL_FORKED)
    return error_set(cudaErrorInitializationError, "the GPU's memory stayed with the parent of this forked process");
  if (pool->state == POOL_LOST || pool->state == POOL_LOSING)
    return error_set(cudaErrorContextIsDestroyed,
                     "the pool's CUDA context was destroyed or reset, and its memory with it");
  return cudaErrorInvalidResourceHandle;
}

cudaError_t pool_usable(struct mam_pool *pool) {
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  pool_unlock(pool);
  return error;
}

cudaError_t pool_enter(struct mam_pool *pool, uint64_t default_id) {
  pool_lock(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess)
    pool->users++;
  pool_unlock(pool);
  return error;
}

void pool_exit(struct mam_pool *pool) {
  pool_lock(pool);
  if (--pool->users == 0 && pool->state != POOL_OPEN)
    pthread_cond_broadcast(&pool->changed);
  pool_unlock(pool);
}

/* ---- All pools ---- */

static _Atomic(struct mam_pool *) pools;                       /* appended to under pools_lock, read without */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER; /* of pools, and of taking a dead one */

void pool_list_lock(void) { pthread_mutex_lock(&pools_lock); }
void pool_list_unlock(void) { pthread_mutex_unlock(&pools_lock); }

/* acquire: the pool's next and its initialised lock; pairs with the release in pool_new */
struct mam_pool *pool_first(void) {
  return atomic_load_explicit(&pools, memory_order_acquire);
}

static struct mam_pool *pool_new(void) {
  lock_held(&pools_lock);
  pthread_mutexattr_t attributes;
  struct mam_pool *pool = aligned_alloc(_Alignof(struct mam_pool), sizeof *pool);
  if (pool == NULL)
    return NULL;
  memset(pool, 0, sizeof *pool);
  /* Adaptive: the lock is held for tens of nanoseconds, a sleep and a wake cost thousands. */
  (void)pthread_mutexattr_init(&attributes);
  (void)pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
  (void)pthread_mutex_init(&pool->lock, &attributes);
  (void)pthread_mutexattr_destroy(&attributes);
  pthread_cond_init(&pool->changed, NULL);
  segment_set_init(&pool->segments);
  pool->state = POOL_OPENING;
  pool->next = pool_first();
  /* release: publishes the new pool; pairs with the acquire in pool_first */
  atomic_store_explicit(&pools, pool, memory_order_release);
  return pool;
}

struct mam_pool *pool_list_take(void) {
  pthread_mutex_lock(&pools_lock);
  struct mam_pool *pool;
  bool taken = false;
  for (pool = pool_first(); pool != NULL; pool = pool->next) {
    pool_lock(pool);
    taken = pool->state == POOL_DEAD;
    if (taken)
      pool->state = POOL_OPENING;
    pool_unlock(pool);
    if (taken)
      break;
  }
  if (pool == NULL)
    pool = pool_new();
  pthread_mutex_unlock(&pools_lock);
  return pool;
}

/* Where the last search ended: a program with many pools uses few of them at a time.  Acquire and release as for pools:
 * a thread that reads the pointer uses the lock in it. */
static _Atomic(struct mam_pool *) last_default, last_known;

struct mam_pool *pool_find_default(uint64_t default_id) {
  struct mam_pool *pool = atomic_load_explicit(&last_default, memory_order_acquire);
  /* relaxed: a hint, checked again under the pool's lock; here and below */
  if (pool != NULL && atomic_load_explicit(&pool->default_id, memory_order_relaxed) == default_id)
    return pool;
  for (pool = pool_first(); pool != NULL; pool = pool->next)
    if (atomic_load_explicit(&pool->default_id, memory_order_relaxed) == default_id)
      break;
  if (pool != NULL)
    atomic_store_explicit(&last_default, pool, memory_order_release);
  return pool;
}

bool pool_is_known(struct mam_pool *known) {
  if (known != NULL && atomic_load_explicit(&last_known, memory_order_acquire) == known)
    return true;
  struct mam_pool *pool = pool_first();
  while (pool != NULL && pool != known)
    pool = pool->next;
  if (pool != NULL)
    atomic_store_explicit(&last_known, pool, memory_order_release);
  return pool != NULL;
}
