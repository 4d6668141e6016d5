/* SPDX-License-Identifier: BSD-2-Clause */
#include "api/reaper.h"

#include <time.h>

#include "base/clock.h"
#include "base/helper.h"
#include "base/library_call.h"
#include "base/locked.h"

/* A pool of several threads is looked at so often at most, also where it would end at once. */
static const int64_t CROWD_LOOK_NS = 100000000;

static int64_t linger_of(const struct watch *watch) {
  return watch->linger_ns > CROWD_LOOK_NS ? watch->linger_ns : CROWD_LOOK_NS;
}

/* Looks at a watched pool whose time has come: ends it, or says when to look again. */
static void reap_locked(struct mam_pool *pool, uint64_t id) {
  lock_held(&environment_lock);
  uint64_t count = 0;
  enum pool_look look = pool_look(pool, id, &count);
  bool unused = look == POOL_EMPTY && count == pool->watch->linger_malloc_count;
  bool again = look == POOL_CROWDED || (look == POOL_EMPTY && !unused);
  pool->watch->linger_malloc_count = count;
  pool->watch->linger_until_ns = again ? now_ns() + linger_of(pool->watch) : 0;
  if (unused)
    (void)environment_end_locked(pool, id, true);
}

/* A pool that has grown is looked at again and again, and is calm if it served at most so many allocations since the
 * look before, and uses as much as then.  It then keeps so many bytes beside what is used.  One that yields keeps what
 * it used at this look or the one before, whatever it serves.  Where a pool grows again soon after, it is given more
 * and more time, and so is a calm one that has nothing to give: so a program whose steps take longer than a look does
 * not pay for each of them. */
enum { CALM_MALLOCS = 16, CALM_KEPT_BYTES = 32 << 20, CALM_TIMES_MOST = 64, CALM_SOON = 32 };

/* The time between two looks, without patience. */
static int64_t calm_ns(void) {
  const struct options *options;
  int64_t linger_ns = environment_options(&options) == cudaSuccess ? (int64_t)options->linger_ms * 1000000 : 0;
  return linger_ns > CROWD_LOOK_NS ? linger_ns : CROWD_LOOK_NS;
}

static void calm_double(unsigned *times) { *times = *times < CALM_TIMES_MOST ? 2 * *times : CALM_TIMES_MOST; }

static void calm_look_later(struct mam_pool *pool) {
  unsigned times = pool->watch->calm_patience * pool->watch->calm_idle;
  pool->watch->calm_until_ns = now_ns() + (times < CALM_TIMES_MOST ? times : CALM_TIMES_MOST) * calm_ns();
}

static bool calm_is_quiet(const struct pool_calm *before, const struct pool_calm *now) {
  return now->malloc_count - before->malloc_count <= CALM_MALLOCS && now->used_bytes == before->used_bytes;
}

/* How much of what it holds a pool is to keep. */
static size_t calm_keep_bytes(const struct pool_calm *before, const struct pool_calm *now) {
  size_t keep_bytes = SIZE_MAX;
  if (now->yields)
    keep_bytes = now->used_bytes > before->used_bytes ? now->used_bytes : before->used_bytes;
  else if (calm_is_quiet(before, now))
    keep_bytes = now->used_bytes + CALM_KEPT_BYTES;
  return keep_bytes < now->reserved_bytes ? keep_bytes : now->reserved_bytes;
}

/* Looks at a pool that has grown: if it is calm, it gives back what it does not need.  The lock is left for that. */
static void calm_look_locked(struct mam_pool *pool) {
  lock_held(&environment_lock);
  const struct pool_calm before = pool->watch->calm;
  if (!pool_calm_look(pool, &pool->watch->calm) || pool->watch->calm.generation != before.generation) {
    pool->watch->calm_until_ns = 0;
    return;
  }
  const struct pool_calm now = pool->watch->calm;
  size_t keep_bytes = calm_keep_bytes(&before, &now);
  if (keep_bytes == now.reserved_bytes && calm_is_quiet(&before, &now) && !now.yields)
    calm_double(&pool->watch->calm_idle);
  calm_look_later(pool);
  if (keep_bytes == now.reserved_bytes)
    return;
  pool->watch->calm_trimmed_ns = now_ns(); /* before: it may grow again meanwhile */
  environment_exit();
  cudaError_t error = pool_trim_calm(pool, now.generation, keep_bytes);
  environment_enter();
  if (error != cudaSuccess && pool->watch->calm.generation == now.generation)
    pool->watch->calm_trimmed_ns = 0;
}

/* The pool whose time comes first, to be looked at for whatever reason; NULL if there is none. */
static struct mam_pool *next_to_reap(int64_t *until_ns) {
  struct mam_pool *next = NULL;
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    const struct watch *watch = pool->watch;
    if (watch == NULL)
      continue;
    int64_t linger_ns = watch->linger_until_ns, grown_ns = watch->calm_until_ns;
    int64_t first_ns = linger_ns == 0 || (grown_ns != 0 && grown_ns < linger_ns) ? grown_ns : linger_ns;
    if (first_ns != 0 && (next == NULL || first_ns < *until_ns)) {
      next = pool;
      *until_ns = first_ns;
    }
  }
  return next;
}

static void *reaper(void *unused) {
  (void)unused;
  struct mam_pool *pool;
  int64_t until_ns = 0;
  environment_enter();
  while (!environment_reaper.process_ends && (pool = next_to_reap(&until_ns)) != NULL) {
    if (until_ns > now_ns()) {
      struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
      (void)pthread_cond_timedwait(&environment_reaper.wakes, &environment_lock, &until);
    } else if (until_ns == pool->watch->calm_until_ns) {
      calm_look_locked(pool);
    } else {
      reap_locked(pool,
                  atomic_load_explicit(&pool->default_id, memory_order_relaxed)); /* relaxed: checked by pool_look */
    }
  }
  environment_reaper.runs = false;
  environment_exit();
  helper_end();
  return NULL;
}

/* The lock is held. */
static bool reaper_start(void) {
  if (!environment_reaper.runs && !environment_reaper.process_ends)
    environment_reaper.runs = helper_start(NULL, reaper, NULL) == 0;
  return environment_reaper.runs;
}

void reaper_watch(struct mam_pool *pool) {
  environment_enter();
  if (environment_watch_locked(pool) != NULL) {
    pool->watch->linger_until_ns = now_ns() + linger_of(pool->watch);
    (void)pthread_cond_broadcast(&environment_reaper.wakes);
    (void)reaper_start(); /* without it, the environment stays until MAM_Destroy */
  } else {
    pool_not_watched(pool);
  }
  environment_exit();
}

/* A pool has grown that is not looked at yet. */
static void calm_begin_locked(struct mam_pool *pool) {
  lock_held(&environment_lock);
  uint64_t generation = pool->watch->calm.generation;
  if (!pool_calm_look(pool, &pool->watch->calm))
    return;
  if (generation != pool->watch->calm.generation || pool->watch->calm_patience == 0)
    pool->watch->calm_patience = 1;
  pool->watch->calm_idle = 1;
  pool->watch->calm_trimmed_ns = 0;
  calm_look_later(pool);
}

/* One that is looked at has grown.  If it gave back too early, it is given more time from now on. */
static void calm_go_on_locked(struct mam_pool *pool) {
  lock_held(&environment_lock);
  int64_t trimmed_ns = pool->watch->calm_trimmed_ns;
  if (trimmed_ns != 0 && now_ns() - trimmed_ns < CALM_SOON * (int64_t)pool->watch->calm_patience * calm_ns())
    calm_double(&pool->watch->calm_patience);
  else if (trimmed_ns != 0)
    pool->watch->calm_patience = 1;
  pool->watch->calm_trimmed_ns = 0;
  if (pool->watch->calm_idle > 1) {
    pool->watch->calm_idle = 1;
    calm_look_later(pool);
  }
}

/* A look may still be due that was meant for the pool before this one in the struct. */
static bool calm_is_looked_at(struct mam_pool *pool) {
  return pool->watch->calm_until_ns != 0 && pool_is_open(pool, pool->watch->calm.generation);
}

/* In a forked child no pool that has grown may be left. */
void reaper_watch_grown(void) {
  LIBRARY_CALL;
  int64_t until_ns = 0;
  environment_enter();
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next)
    if (environment_watch_locked(pool) != NULL && pool_has_grown(pool))
      (calm_is_looked_at(pool) ? calm_go_on_locked : calm_begin_locked)(pool);
  if (environment_reaper.runs)
    (void)pthread_cond_broadcast(&environment_reaper.wakes);
  else if (next_to_reap(&until_ns) != NULL)
    (void)reaper_start(); /* without it, the memory stays until a trim */
  environment_exit();
}

cudaError_t reaper_emptied(const struct pool_emptied *emptied) {
  struct mam_pool *pool = emptied->pool;
  cudaError_t error = cudaSuccess;
  environment_enter();
  if (!pool_is_open(pool, emptied->generation)) { /* it has ended without this, and another was made of its struct */
    environment_exit();
    return cudaSuccess;
  }
  struct watch *watch = pool->watch;
  bool lingers = watch != NULL && watch->linger_ns > 0 && reaper_start();
  if (lingers) {
    (void)pool_look(pool, emptied->default_id, &watch->linger_malloc_count);
    watch->linger_until_ns = now_ns() + watch->linger_ns;
    /* Its time may come before the one that the reaper waits for. */
    (void)pthread_cond_broadcast(&environment_reaper.wakes);
  } else {
    if (watch != NULL)
      watch->linger_until_ns = 0;
    error = environment_end_locked(pool, emptied->default_id, true);
  }
  environment_exit();
  return error;
}

void reaper_end(void) {
  environment_enter();
  environment_reaper.process_ends = true;
  if (environment_reaper.runs)
    pthread_cond_broadcast(&environment_reaper.wakes);
  environment_exit();
}
