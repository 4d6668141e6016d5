/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/wait.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

/* ---- Whether it is usable ---- */

cudaError_t pool_usable_locked(const struct mam_pool *pool) {
  if (pool->state == POOL_OPEN)
    return cudaSuccess;
  if (pool->state == POOL_FORKED)
    return error_set(cudaErrorInitializationError, "the GPU's memory stayed with the parent of this forked process");
  if (pool->state == POOL_LOST || pool->state == POOL_LOSING)
    return error_set(cudaErrorContextIsDestroyed,
                     "the pool's CUDA context was destroyed or reset, and its memory with it");
  return cudaErrorInvalidResourceHandle;
}

/* Whether the pool is open and still what the caller means. */
cudaError_t pool_expect_locked(const struct mam_pool *pool, uint64_t default_id) {
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess && default_id != POOL_ANY_ID && pool->config.default_id != default_id)
    error = cudaErrorInvalidResourceHandle;
  return error;
}

cudaError_t pool_usable(struct mam_pool *pool) {
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  pool_unlock(pool);
  return error;
}

/* ---- All pools ---- */

static _Atomic(struct mam_pool *) pools;                       /* appended to under pools_lock, read without */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER; /* of pools and of claiming a dead one */

/* acquire: the pool's next and its initialised lock; pairs with the release in pool_new */
struct mam_pool *pool_first(void) {
  return atomic_load_explicit(&pools, memory_order_acquire);
}

static struct mam_pool *pool_new(void) {
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

/* A pool for a new purpose: a dead one or a new one, POOL_OPENING.  NULL if the host has no memory. */
static struct mam_pool *pool_claim(void) {
  pthread_mutex_lock(&pools_lock);
  struct mam_pool *pool;
  bool claimed = false;
  for (pool = pool_first(); pool != NULL; pool = pool->next) {
    pool_lock(pool);
    claimed = pool->state == POOL_DEAD;
    if (claimed)
      pool->state = POOL_OPENING;
    pool_unlock(pool);
    if (claimed)
      break;
  }
  if (pool == NULL)
    pool = pool_new();
  pthread_mutex_unlock(&pools_lock);
  return pool;
}

/* Where the last search ended: a program with many pools uses few of them at a time.  Acquire and release as for pools:
 * whoever reads the pointer uses the lock in it. */
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

/* ---- Opening ---- */

/* A claimed pool's fields before its first chunk. */
static void pool_reset(struct mam_pool *pool, const struct pool_config *config, const struct source *source) {
  pool_lock(pool);
  pool->config = *config;
  pool->config.chunk_bytes = whole_units(config->chunk_bytes);
  pool->config.limit_bytes = whole_units(config->limit_bytes);
  pool->source = *source;
  pool->generation++;
  pool->freed_since = 0;
  pool->collected_epoch = pool->unfenced_epoch = 0;
  pool->ticket_next = 1;
  for (unsigned i = 0; i < POOL_SMALL_CLASSES; i++)
    atomic_store_explicit(&pool->live_by_class[i], 0, memory_order_relaxed); /* relaxed: a hint */
  pool->limit_bytes = SIZE_MAX;
  pool->held_bytes = pool->moved_bytes = pool->wanted_bytes = pool->refused_bytes = pool->requested_bytes =
      pool->peak_used_bytes = pool->peak_reserved_bytes = 0;
  pool->malloc_count = pool->free_call_count = pool->failure_count = pool->synchronize_count = 0;
  pool->stream_hit_count = 0;
  pool->source_said[0] = '\0';
  pool->watched = pool->crowded = false;
  pool->segments.spared_bytes = config->guarded ? pool->config.chunk_bytes : 0;
  pool_unlock(pool);
}

cudaError_t pool_open(const struct pool_config *config, const struct source *source, struct mam_pool **opened) {
  struct mam_pool *pool = pool_claim();
  if (pool == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a pool");
  pool_reset(pool, config, source);
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
    /* relaxed: hints */
    atomic_store_explicit(&pool->limit_hint, pool->limit_bytes, memory_order_relaxed);
    atomic_store_explicit(&pool->reports_empty, config->lazy, memory_order_relaxed);
    atomic_store_explicit(&pool->wants_watch, false, memory_order_relaxed);
    pool->state = POOL_OPEN;
    atomic_store_explicit(&pool->default_id, config->default_id, memory_order_relaxed);
    *opened = pool;
  } else {
    pool->state = POOL_DEAD;
  }
  pool_unlock(pool);
  return error;
}

/* ---- Closing ---- */

/* Takes the first step of closing or losing an open pool: from here on nobody finds it. */
static void retire_locked(struct mam_pool *pool, enum pool_state state) {
  pool->state = state;
  atomic_store_explicit(&pool->default_id, 0, memory_order_relaxed); /* relaxed: a hint */
  pthread_cond_broadcast(&pool->changed);
}

static void streams_free_locked(struct mam_pool *pool) {
  struct pool_stream *stream;
  while ((stream = SLIST_FIRST(&pool->streams)) != NULL) {
    SLIST_REMOVE_HEAD(&pool->streams, link);
    free(stream);
  }
}

static struct pool_past past; /* under pools_lock */

struct pool_past pool_past(void) {
  pthread_mutex_lock(&pools_lock);
  struct pool_past known = past;
  pthread_mutex_unlock(&pools_lock);
  return known;
}

/* Remembers what a default pool that ends had counted. */
static void past_add(struct mam_pool *pool) {
  MAM_PoolInfo info;
  struct pool_front_sum sum = {0};
  if (pool->config.default_id == 0)
    return;
  const struct pool_front *frozen = pool_freeze(pool);
  if (frozen != NULL)
    frozen->sum(pool, &sum);
  pool_info_locked(pool, &sum, &info);
  pool_thaw(pool, frozen);
  pthread_mutex_lock(&pools_lock);
  past.malloc_count += info.malloc_count;
  past.hit_count += info.magazine_hit_count + info.size_hit_count + info.tag_hit_count;
  past.synchronize_count += info.synchronize_count;
  past.peak_used_bytes = info.peak_used_bytes > past.peak_used_bytes ? info.peak_used_bytes : past.peak_used_bytes;
  pthread_mutex_unlock(&pools_lock);
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

/* Takes a pool apart whose memory is gone; the lock is held and released.  What is nobody's default stays its owner's.
 */
static void pool_lose(struct mam_pool *pool) {
  retire_locked(pool, pool->config.default_id != 0 ? POOL_CLOSING : POOL_LOSING);
  pool_unlock(pool);
  (void)pool_finish(pool);
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

/* Whether no block is live.  With fronts, they are frozen. */
static bool pool_is_empty_locked(struct mam_pool *pool) {
  struct pool_front_sum sum;
  if (pool->config.front == NULL)
    return pool->segments.count[SEGMENT_USED] == 0;
  pool->config.front->sum(pool, &sum);
  return sum.live == 0;
}

/* All successful allocations, those of the fronts included. */
static uint64_t pool_malloc_count_locked(struct mam_pool *pool) {
  struct pool_front_sum sum = {0};
  if (pool->config.front != NULL)
    pool->config.front->sum(pool, &sum);
  uint64_t count = pool->malloc_count;
  for (unsigned i = 0; i < FRONT_HIT_KINDS; i++)
    count += sum.hits[i];
  return count;
}

static void pool_watch_locked(struct mam_pool *pool, bool watched) {
  bool lone = pool->config.lazy && !watched;
  pool->watched = watched;
  /* relaxed, both: hints */
  atomic_store_explicit(&pool->reports_empty, lone, memory_order_relaxed);
  atomic_store_explicit(&pool->wants_watch, lone && pool->crowded, memory_order_relaxed);
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

enum pool_look pool_look(struct mam_pool *pool, uint64_t default_id, uint64_t *malloc_count) {
  const struct pool_front *frozen = pool_freeze(pool);
  enum pool_look look = POOL_GONE;
  if (pool_expect_locked(pool, default_id) == cudaSuccess) {
    look = pool_is_empty_locked(pool) ? POOL_EMPTY : pool->crowded ? POOL_CROWDED : POOL_BUSY;
    pool_watch_locked(pool, look != POOL_BUSY);
    *malloc_count = pool_malloc_count_locked(pool);
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
    *calm = (struct pool_calm){pool->generation, info.malloc_count, info.used_bytes, info.reserved_bytes,
                               info.waiting_bytes};
  }
  pool_thaw(pool, frozen);
  return open;
}

void pool_abandon(struct mam_pool *pool) {
  pool_lock(pool);
  if (pool->state == POOL_OPEN || pool->state == POOL_FORKED) {
    pool_lose(pool);
    return;
  }
  struct wait wait = {WAIT_LOOKS, WAIT_FIRST_NS};
  bool closing = pool->state == POOL_CLOSING || pool->state == POOL_LOSING;
  while (pool->state == POOL_CLOSING || pool->state == POOL_LOSING) /* somebody else's work */
    pthread_cond_wait(&pool->changed, &pool->lock);
  pool_unlock(pool);
  if (!closing) /* it is being opened */
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

/* ---- Making room ---- */

/* So many segments come free in one hold of the lock at most, for the sake of other threads. */
enum { PASS_MOST = 256 };

/* Makes up to PASS_MOST segments free that waited for an epoch that has passed.  Whether these were all. */
static bool pass_some_locked(struct mam_pool *pool) {
  uint64_t passed = reuse_passed(pool->reuse);
  struct pool_stream *stream;
  bool all = segment_pass_some(&pool->segments, passed, PASS_MOST);
  SLIST_FOREACH(stream, &pool->streams, link) {
    all = all && segment_pass_stream(&pool->segments, &stream->waiting, passed, PASS_MOST);
  }
  return all;
}

/* Makes free what waited for an epoch that has passed, until there is a hole of enough bytes: tens of thousands of
 * blocks may have waited for one kernel, and who needs one of them does not go through all. */
static void pass_locked(struct mam_pool *pool, size_t enough) {
  while (!pass_some_locked(pool) && segment_largest_free(&pool->segments) < enough) {
    pool_step_out(pool);
    pool_step_in(pool);
  }
}

/* Whether anything waits for a stream. */
static bool streams_wait_locked(struct mam_pool *pool) {
  const struct pool_stream *stream;
  SLIST_FOREACH(stream, &pool->streams, link) {
    if (!waiting_stream_empty(&stream->waiting))
      return true;
  }
  return false;
}

/* An epoch with which all that waits has passed, 0 if nothing waits. */
static uint64_t waiting_epoch_locked(struct mam_pool *pool) {
  return streams_wait_locked(pool) ? reuse_epoch(pool->reuse) : segment_waiting_epoch(&pool->segments);
}

/* Whether a wait that has begun will free something. */
static bool wait_covers_some_locked(struct mam_pool *pool) {
  const struct segment *first = TAILQ_FIRST(&pool->segments.waiting);
  return streams_wait_locked(pool) || (first != NULL && first->as.waiting.epoch < reuse_epoch(pool->reuse));
}

/* Waits for the GPU, outside the lock, and makes free what was waiting when it began, as far as pass_locked does. */
static cudaError_t synchronize_locked(struct mam_pool *pool, size_t enough) {
  pool->synchronize_count++;
  pool->synchronizing++;
  pool_step_out(pool);
  cudaError_t error = reuse_synchronize(pool->reuse);
  pool_step_in(pool);
  pool->synchronizing--;
  pass_locked(pool, enough);
  return error;
}

/* Asks for a fence of what waits, outside the lock, and makes free what has passed, as far as pass_locked does.  Never
 * waits for the GPU; who needs something gives an idle one the time to say so. */
static void fence_locked(struct mam_pool *pool, size_t enough) {
  uint64_t epoch = waiting_epoch_locked(pool);
  pool->freed_since = 0;
  if (epoch == 0)
    return;
  pool_step_out(pool);
  (void)(enough > 0 ? reuse_reach_soon : reuse_reach)(pool->reuse, epoch);
  pool_step_in(pool);
  pass_locked(pool, enough);
}

/* An allocation gives up after so many waits of its own.  One is decisive in one thread; among many, others may take
 * what it made free and free it again, but an allocation that can never be served must not wait for ever. */
enum { OWN_WAITS = 8 };

/* What a wait for what waits in front of the pool can bring back, at most: with the last block of a slab comes the
 * whole span.  The lock is left for it. */
static size_t front_waiting_bytes_locked(struct mam_pool *pool) {
  const struct pool_front *front = pool->config.front;
  struct pool_front_sum sum;
  if (front == NULL)
    return 0;
  pool_step_out(pool);
  front->freeze(pool);
  front->sum(pool, &sum);
  front->thaw(pool);
  pool_step_in(pool);
  return sum.kept_waiting_bytes + (sum.small_waiting_bytes > 0 ? sum.span_bytes - sum.live_small_bytes : 0);
}

/* Whether a wait for the GPU can serve bytes: what is free and what waits would be enough.  An elastic pool can put
 * both elsewhere in its addresses, beside what it may still map. */
static bool wait_may_help(struct mam_pool *pool, size_t bytes) {
  size_t waiting = front_waiting_bytes_locked(pool) + pool->segments.bytes[SEGMENT_WAITING];
  size_t room = pool->config.elastic ? pool->limit_bytes - pool->held_bytes : 0;
  return waiting > 0 && bytes <= pool->segments.bytes[SEGMENT_FREE] + waiting + room;
}

/* Makes what waits free, by another thread's wait if that covers the oldest of it. */
static cudaError_t await_gpu_locked(struct mam_pool *pool, size_t bytes, unsigned *own_waits) {
  if (pool->synchronizing > 0 && wait_covers_some_locked(pool))
    return pool_await_change_locked(pool);
  ++*own_waits;
  return synchronize_locked(pool, bytes);
}

/* Growth, or what came free while the lock was left for it. */
static cudaError_t grow_or_find_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  cudaError_t error = pool_grow_locked(pool, bytes, at_once);
  bool found = error == cudaErrorMemoryAllocation && segment_largest_free(&pool->segments) >= bytes;
  return found ? cudaSuccess : error;
}

/* What an allocation has tried already. */
struct attempt {
  unsigned own_waits, collections;
  bool fenced, at_once; /* at_once: must not wait for the GPU */
};

/* Other threads may keep what they freed after a collection: an allocation that is about to be refused tries again. */
enum { COLLECTIONS_MOST = 4 };

/* Brings back what the fronts keep. */
static void collect_locked(struct mam_pool *pool, size_t enough, bool all) {
  uint64_t passed = reuse_passed(pool->reuse);
  pool_step_out(pool);
  bool complete = pool->config.front->collect(pool, all);
  pool_step_in(pool);
  pool->collected_epoch = complete ? passed : 0;
  fence_locked(pool, enough);
}

void pool_collect_locked(struct mam_pool *pool) {
  if (pool->config.front != NULL)
    collect_locked(pool, SIZE_MAX, true);
  else
    fence_locked(pool, SIZE_MAX);
}

/* Whether the fronts may keep what the GPU is done with, after a fence: not if no epoch has passed since they were last
 * collected, as what was freed later waits for a later one.  Then a running kernel costs one collection, not one for
 * each growth.  The lock is left for the fence. */
static bool collection_may_help_locked(struct mam_pool *pool) {
  if (pool->config.front == NULL || pool->config.reuse == MAM_REUSE_IMMEDIATE)
    return pool->config.front != NULL;
  pool_step_out(pool);
  (void)reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
  pool_step_in(pool);
  return reuse_passed(pool->reuse) > pool->collected_epoch;
}

/* What costs no memory and no wait: a fence, and what the fronts keep.  False if both were tried. */
static bool look_around_locked(struct mam_pool *pool, size_t bytes, struct attempt *attempt) {
  if (!attempt->fenced) {
    attempt->fenced = true;
    fence_locked(pool, bytes);
    return true;
  }
  if (attempt->collections == 0 && collection_may_help_locked(pool)) {
    attempt->collections++;
    collect_locked(pool, bytes, !pool->config.elastic);
    return true;
  }
  return false;
}

/* Something to try again with, or why there is nothing.  Growing waits for nothing, so it goes before waiting, unless
 * the source has refused as much before; the waiting limit keeps what it can waste small. */
static cudaError_t make_room_locked(struct mam_pool *pool, size_t bytes, struct attempt *attempt) {
  if (look_around_locked(pool, bytes, attempt))
    return cudaSuccess;
  bool refused = pool->refused_bytes > 0 && bytes >= pool->refused_bytes;
  cudaError_t error = refused ? cudaErrorMemoryAllocation : grow_or_find_locked(pool, bytes, attempt->at_once);
  if (error != cudaErrorMemoryAllocation)
    return error;
  if (!attempt->at_once && attempt->own_waits < OWN_WAITS && wait_may_help(pool, bytes) &&
      !reuse_capturing(pool->reuse)) {
    attempt->collections = 0;
    return await_gpu_locked(pool, bytes, &attempt->own_waits);
  }
  if (refused)
    error = grow_or_find_locked(pool, bytes, attempt->at_once);
  if (error != cudaErrorMemoryAllocation || pool->config.front == NULL || ++attempt->collections > COLLECTIONS_MOST)
    return error;
  collect_locked(pool, bytes, true);
  return cudaSuccess;
}

/* ---- Malloc and free ---- */

/* The pool has no room: counted, told, and nothing else changed.  Releases the lock. */
static cudaError_t refuse_locked(struct mam_pool *pool, size_t size) {
  MAM_PoolInfo info;
  char said[sizeof pool->source_said];
  pool->failure_count++;
  pool_info_locked(pool, NULL, &info);
  memcpy(said, pool->source_said, sizeof said);
  bool capturing = info.waiting_bytes > 0 && reuse_capturing(pool->reuse);
  pool_unlock(pool);
  return error_set(
      cudaErrorMemoryAllocation,
      "no room for %zu bytes: %zu are free, %zu in the largest hole; the pool holds %zu of at most %zu%s%s%s", size,
      info.free_bytes, info.largest_free_bytes, info.reserved_bytes, info.limit_bytes,
      capturing ? "; freed memory must wait for the end of the stream capture" : "",
      said[0] != '\0' ? "; the source said: " : "", said);
}

/* A block would fit, but into a hole that is spared for larger ones: grows rather than take that.  If it cannot, the
 * hole is spared no longer: true, and the caller takes it and calls spare_again_locked.  May leave the lock. */
static bool spared_is_needed_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  while (segment_is_spared(&pool->segments, bytes) && pool->state == POOL_OPEN) {
    bool refused = pool->refused_bytes > 0 && bytes >= pool->refused_bytes;
    if (!refused && pool_grow_locked(pool, bytes, at_once) == cudaSuccess)
      continue;
    if (!at_once && pool_give_one_locked(pool))
      continue;
    pool->segments.spared_bytes = 0;
    return true;
  }
  return false;
}

static void spare_again_locked(struct mam_pool *pool) {
  pool->segments.spared_bytes = pool->config.guarded ? pool->config.chunk_bytes : 0;
}

static struct segment *take_locked(struct mam_pool *pool, size_t bytes, bool at_once, cudaError_t *error,
                                   bool *no_host_memory) {
  struct attempt attempt = {.at_once = at_once};
  if (bytes > pool->limit_bytes) { /* nothing that could be tried would help */
    *error = cudaErrorMemoryAllocation;
    return NULL;
  }
  while (true) {
    bool needed = spared_is_needed_locked(pool, bytes, at_once);
    *error = pool_usable_locked(pool); /* the lock was left: it may have been closed */
    struct segment *segment = *error == cudaSuccess ? segment_take(&pool->segments, bytes, no_host_memory) : NULL;
    if (needed)
      spare_again_locked(pool);
    if (segment != NULL || *error != cudaSuccess)
      return segment;
    *error = *no_host_memory ? cudaErrorMemoryAllocation : make_room_locked(pool, bytes, &attempt);
    if (*error != cudaSuccess)
      return NULL;
  }
}

/* Counts used segments that a slab could have served. */
static void class_count_locked(struct mam_pool *pool, size_t bytes, size_t change) {
  if (bytes > POOL_SMALL_MOST_BYTES)
    return;
  _Atomic size_t *count = &pool->live_by_class[(bytes - 1) / POOL_ALIGNMENT_BYTES];
  /* relaxed: a hint, written under the lock */
  atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + change, memory_order_relaxed);
}

static void peak_update_locked(struct mam_pool *pool) {
  if (pool->segments.bytes[SEGMENT_USED] > pool->peak_used_bytes)
    pool->peak_used_bytes = pool->segments.bytes[SEGMENT_USED];
}

/* A segment becomes the program's.  From the unlock on any thread may free the block, by an address that it had of a
 * block before this one: what the segment says is therefore written here. */
static void hand_out_locked(struct mam_pool *pool, struct segment *segment, const struct pool_order *order,
                            struct pool_block *block) {
  *block = (struct pool_block){segment, segment->base, segment->bytes, pool->ticket_next, false};
  pool->ticket_next += 2;
  segment->as.used.requested_bytes = order->size;
  segment->as.used.site = order->site;
  segment->as.used.tag = order->tag;
  /* relaxed: whoever frees it now does so with the lock */
  atomic_store_explicit(&segment->ticket, block->ticket, memory_order_relaxed);
  class_count_locked(pool, segment->bytes, 1);
  pool->malloc_count++;
  pool->requested_bytes += order->size;
  peak_update_locked(pool);
}

/* A rule of reuse for one block. */
struct rule {
  MAM_Reuse reuse;
  struct context_stream stream; /* of MAM_REUSE_STREAM */
  bool passed;                  /* immediate, and the GPU is known to be done with it */
};

static struct pool_stream *stream_find_locked(struct mam_pool *pool, struct context_stream named) {
  struct pool_stream *stream;
  SLIST_FOREACH(stream, &pool->streams, link) {
    if (context_stream_same(stream->stream, named))
      break;
  }
  return stream;
}

/* The stream's list, made if there is none; NULL if the host has no memory: then the free is a plain one. */
static struct waiting_stream *stream_list_locked(struct mam_pool *pool, struct context_stream named) {
  struct pool_stream *stream = stream_find_locked(pool, named), *idle;
  if (stream == NULL) {
    SLIST_FOREACH(idle, &pool->streams, link) {
      if (waiting_stream_empty(&idle->waiting))
        stream = idle;
    }
    if (stream == NULL && (stream = malloc(sizeof *stream)) != NULL) {
      waiting_stream_init(&stream->waiting);
      SLIST_INSERT_HEAD(&pool->streams, stream, link);
    }
    if (stream != NULL)
      stream->stream = named;
  }
  return stream != NULL ? &stream->waiting : NULL;
}

/* Gives a used segment back by a rule of reuse. */
static void give_back_locked(struct mam_pool *pool, struct segment *segment, const struct rule *rule) {
  struct waiting_stream *stream = NULL;
  /* relaxed: nobody's any more */
  atomic_store_explicit(&segment->ticket, 0, memory_order_relaxed);
  if (rule->reuse == MAM_REUSE_IMMEDIATE) {
    if (!rule->passed)
      pool->unfenced_epoch = reuse_epoch(pool->reuse);
    segment_free(&pool->segments, segment);
    return;
  }
  if (rule->reuse == MAM_REUSE_STREAM)
    stream = stream_list_locked(pool, rule->stream);
  segment_wait_on(&pool->segments, stream, segment, reuse_epoch(pool->reuse));
  pool->freed_since++;
}

/* The rule that a pool's own frees go by.  A plain free names no stream, whose work would be all that may still use the
 * block, so in a pool by streams it waits for all. */
static struct rule own_rule(const struct mam_pool *pool, bool passed) {
  MAM_Reuse reuse = pool->config.reuse == MAM_REUSE_STREAM ? MAM_REUSE_FENCED : pool->config.reuse;
  return (struct rule){.reuse = passed ? MAM_REUSE_IMMEDIATE : reuse, .passed = passed};
}

/* Takes segments back that a front kept. */
static void give_kept_locked(struct mam_pool *pool, struct segment *const *segments, unsigned count,
                             const struct rule *rule) {
  pool->free_call_count += count; /* here at last */
  for (unsigned i = 0; i < count; i++) {
    class_count_locked(pool, segments[i]->bytes, (size_t)-1);
    pool->requested_bytes -= segments[i]->as.used.requested_bytes;
    give_back_locked(pool, segments[i], rule);
  }
}

static const struct rule rule_immediate = {.reuse = MAM_REUSE_IMMEDIATE};

/* More memory than there must be, for speed, and no more than that; of a pool that gives it back where it is needed. */
static void grow_in_place_locked(struct mam_pool *pool, size_t bytes, size_t most) {
  size_t half = pool->limit_bytes / 2;
  if (pool->config.in_chunks && bytes < pool->config.chunk_bytes)
    bytes = pool->config.chunk_bytes;
  bool gives = pool->config.elastic || (pool->config.in_chunks && bytes <= most);
  if (gives && pool->refused_bytes == 0 && bytes <= half && pool->held_bytes <= half - bytes)
    (void)grow_or_find_locked(pool, bytes, false);
}

/* Errors: as pool_malloc. */
static cudaError_t order_expect_locked(const struct mam_pool *pool, const struct pool_order *order) {
  cudaError_t error = pool_expect_locked(pool, order->default_id);
  bool other = order->generation != POOL_ANY_GENERATION && order->generation != pool->generation;
  return error == cudaSuccess && other ? cudaErrorInvalidResourceHandle : error;
}

/* What was freed on the order's stream, if it has one. */
static struct segment *stream_take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes) {
  struct pool_stream *stream = order->stream.id != 0 ? stream_find_locked(pool, order->stream) : NULL;
  struct segment *segment = stream != NULL ? segment_retake(&pool->segments, &stream->waiting, bytes) : NULL;
  pool->stream_hit_count += segment != NULL;
  return segment;
}

cudaError_t pool_take(struct mam_pool *pool, const struct pool_order *order, struct pool_block *block) {
  bool contended = pthread_mutex_trylock(&pool->lock) != 0;
  if (contended)
    pool_lock(pool);
  cudaError_t error = order_expect_locked(pool, order);
  if (error == cudaSuccess && order->passed_count > 0)
    give_kept_locked(pool, order->passed, order->passed_count, &rule_immediate);
  if (error != cudaSuccess) {
    pool_unlock(pool);
    return error;
  }
  bool at_once = order->effort == POOL_TAKE_AT_ONCE;
  bool any = order->effort == POOL_TAKE_ANY || at_once, no_host_memory = false;
  size_t bytes = round_up(order->size, pool->config.alignment);
  struct segment *segment = NULL;
  error = cudaErrorMemoryAllocation;
  if (order->effort == POOL_TAKE_GROWTH && bytes >= order->size)
    grow_in_place_locked(pool, order->growth_bytes, order->growth_most_bytes);
  if (bytes >= order->size) /* not rounded past the end of the numbers */
    segment = stream_take_locked(pool, order, bytes);
  if (bytes >= order->size && segment == NULL)
    segment = any ? take_locked(pool, bytes, at_once, &error, &no_host_memory)
                  : segment_take(&pool->segments, bytes, &no_host_memory);
  if (segment == NULL) {
    if (any && error == cudaErrorMemoryAllocation && !no_host_memory)
      return refuse_locked(pool, order->size);
    pool_unlock(pool);
    return any && no_host_memory ? error_set(error, "the host has no memory for a segment") : error;
  }
  hand_out_locked(pool, segment, order, block);
  block->contended = contended;
  pool_unlock(pool);
  return cudaSuccess;
}

cudaError_t pool_malloc(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site, void **address) {
  struct pool_order order = {.default_id = default_id, .size = size, .site = site, .effort = POOL_TAKE_ANY};
  struct pool_block block;
  cudaError_t error = pool_take(pool, &order, &block);
  if (error == cudaSuccess)
    *address = (void *)block.address;
  return error;
}

cudaError_t pool_refuse_free(uintptr_t address, bool freed_before) {
  return error_set(cudaErrorInvalidValue, freed_before ? "%p was freed already" : "%p is not the start of a live block",
                   (void *)address);
}

static size_t waiting_limit(const struct mam_pool *pool) {
  return pool->config.waiting_limit_bytes > 0 ? pool->config.waiting_limit_bytes : pool->held_bytes / 2;
}

/* A fence is asked for once in so many frees: then what waits is a short list, and a fence costs a free 1 ns. */
enum { FENCE_EVERY = 256 };

/* After frees: what waits is fenced by and by.  Only where the driver has no fences, a free waits for the GPU, when
 * more waits than may; one thread's wait serves all. */
static cudaError_t fence_freed_locked(struct mam_pool *pool) {
  bool much = pool->segments.bytes[SEGMENT_WAITING] > waiting_limit(pool);
  if (reuse_passes_by_itself(pool->reuse)) {
    if (much || pool->freed_since >= FENCE_EVERY)
      fence_locked(pool, 0);
    return cudaSuccess;
  }
  if (!much || pool->synchronizing > 0 || reuse_capturing(pool->reuse))
    return cudaSuccess;
  return synchronize_locked(pool, SIZE_MAX);
}

/* Takes a block out of the program's hands; the lock is held.  NULL if it is none. */
static struct segment *claim_locked(struct mam_pool *pool, uintptr_t address, bool *freed_before) {
  struct segment *segment = segment_find(&pool->segments, address);
  *freed_before = segment != NULL;
  if (segment == NULL || segment->state != SEGMENT_USED)
    return NULL;
  /* relaxed: if it is odd, the exchange decides */
  uint64_t ticket = atomic_load_explicit(&segment->ticket, memory_order_relaxed);
  *freed_before = ticket != 0;
  /* acq_rel: of two frees one finds the ticket; and what its front wrote into the segment, see shelf_pop.  relaxed on
   * failure: somebody else freed it */
  if (ticket % 2 == 0 || !atomic_compare_exchange_strong_explicit(&segment->ticket, &ticket, 0, memory_order_acq_rel,
                                                                  memory_order_relaxed))
    return NULL;
  pool->free_call_count++;
  pool->requested_bytes -= segment->as.used.requested_bytes;
  class_count_locked(pool, segment->bytes, (size_t)-1);
  return segment;
}

bool pool_is_still(struct mam_pool *pool, uint64_t generation) {
  pool_lock(pool);
  bool is = pool->generation == generation;
  pool_unlock(pool);
  return is;
}

void pool_report_emptied(struct mam_pool *pool, uint64_t generation, struct pool_emptied *emptied) {
  pool_lock(pool);
  if (pool->state == POOL_OPEN && pool->generation == generation && pool->config.lazy && !pool->watched) {
    *emptied = (struct pool_emptied){.pool = pool, .default_id = pool->config.default_id, .generation = generation};
    pool_watch_locked(pool, true);
  }
  pool_unlock(pool);
}

static bool is_of_pool(const struct mam_pool *pool, struct context_stream stream) {
  return stream.context == NULL || stream.context == pool->source.context.handle;
}

cudaError_t pool_accompany(struct mam_pool *pool, struct context_stream stream) {
  return is_of_pool(pool, stream) ? cudaSuccess : reuse_accompany(pool->reuse, stream.context);
}

/* The same, where it has something to do, with the lock left. */
static cudaError_t accompany_locked(struct mam_pool *pool, struct context_stream stream) {
  if (is_of_pool(pool, stream))
    return cudaSuccess;
  pool_step_out(pool);
  cudaError_t error = pool_accompany(pool, stream);
  pool_step_in(pool);
  return error;
}

static cudaError_t free_by_rule(struct mam_pool *pool, uint64_t generation, uintptr_t address, const struct rule *given,
                                struct pool_emptied *emptied) {
  bool freed_before = false;
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess && generation != POOL_ANY_GENERATION && generation != pool->generation)
    error = cudaErrorInvalidResourceHandle;
  cudaError_t accompanied = error == cudaSuccess && given != NULL ? accompany_locked(pool, given->stream) : cudaSuccess;
  if (accompanied != cudaSuccess) {
    pool_unlock(pool);
    return accompanied;
  }
  if (error == cudaSuccess) /* the lock may have been left */
    error = pool_usable_locked(pool);
  struct segment *segment = error == cudaSuccess ? claim_locked(pool, address, &freed_before) : NULL;
  if (segment == NULL) {
    pool_unlock(pool);
    return error == cudaErrorInitializationError ? error
                                                 : pool_refuse_free(address, error == cudaSuccess && freed_before);
  }
  struct rule rule = given != NULL ? *given : own_rule(pool, false);
  give_back_locked(pool, segment, &rule);
  error = fence_freed_locked(pool);
  if (error == cudaErrorContextIsDestroyed) /* as cudaFree has it: the block is not there any more */
    error = cudaErrorInvalidValue;
  bool empty = pool->config.front == NULL && pool->segments.count[SEGMENT_USED] == 0;
  generation = pool->generation;
  pool_unlock(pool);
  if (empty && emptied != NULL)
    pool_report_emptied(pool, generation, emptied);
  return error;
}

cudaError_t pool_free(void *address, struct pool_emptied *emptied) {
  struct mam_pool *pool = chunk_map_find((uintptr_t)address);
  if (emptied != NULL)
    *emptied = (struct pool_emptied){0};
  return pool != NULL ? free_by_rule(pool, POOL_ANY_GENERATION, (uintptr_t)address, NULL, emptied)
                      : pool_refuse_free((uintptr_t)address, false);
}

cudaError_t pool_free_from(struct mam_pool *pool, uint64_t generation, uintptr_t address) {
  return free_by_rule(pool, generation, address, NULL, NULL);
}

cudaError_t pool_free_reuse(struct mam_pool *pool, uint64_t generation, uintptr_t address, MAM_Reuse reuse,
                            struct context_stream stream) {
  return free_by_rule(pool, generation, address, &(struct rule){.reuse = reuse, .stream = stream}, NULL);
}

/* ---- For the fronts ---- */

cudaError_t pool_enter(struct mam_pool *pool, uint64_t default_id) {
  pool_lock(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess)
    pool->users++;
  pool_unlock(pool);
  return error;
}

void pool_crowd(struct mam_pool *pool) {
  pool_lock(pool);
  pool->crowded = true;
  pool_watch_locked(pool, pool->watched);
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

void pool_exit(struct mam_pool *pool) {
  pool_lock(pool);
  if (--pool->users == 0 && pool->state != POOL_OPEN)
    pthread_cond_broadcast(&pool->changed);
  pool_unlock(pool);
}

/* Growth for a span.  Where holes are spared, one of them is no room. */
static cudaError_t span_grow_locked(struct mam_pool *pool, size_t bytes) {
  bool spares = pool->segments.spared_bytes > 0;
  return spares ? pool_grow_locked(pool, 2 * bytes, false) : grow_or_find_locked(pool, 2 * bytes, false);
}

/* A span from a hole that is spared, when the pool could not grow. */
static struct segment *span_of_spared_locked(struct mam_pool *pool, size_t bytes) {
  bool no_host_memory;
  pool->segments.spared_bytes = 0;
  struct segment *segment = segment_take_aligned(&pool->segments, bytes, bytes, &no_host_memory);
  spare_again_locked(pool);
  return segment;
}

cudaError_t pool_span_take(struct mam_pool *pool, size_t bytes, uintptr_t *base) {
  struct segment *segment;
  bool no_host_memory;
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  while ((segment = segment_take_aligned(&pool->segments, bytes, bytes, &no_host_memory)) == NULL) {
    if (error == cudaSuccess)
      error = no_host_memory ? cudaErrorMemoryAllocation : span_grow_locked(pool, bytes);
    if (error == cudaErrorMemoryAllocation && pool->segments.spared_bytes > 0)
      segment = span_of_spared_locked(pool, bytes);
    if (error != cudaSuccess)
      break;
  }
  if (segment != NULL) {
    /* relaxed: nobody's block */
    atomic_store_explicit(&segment->ticket, 0, memory_order_relaxed);
    segment->as.used.requested_bytes = 0;
    segment->as.used.site = NULL;
    peak_update_locked(pool);
    *base = segment->base;
  }
  pool_unlock(pool);
  return segment != NULL ? cudaSuccess : error;
}

void pool_span_give(struct mam_pool *pool, uintptr_t base, bool passed) {
  pool_lock(pool);
  struct rule rule = own_rule(pool, passed);
  give_back_locked(pool, segment_find(&pool->segments, base), &rule);
  pool_unlock(pool);
}

void pool_give(struct mam_pool *pool, uint64_t generation, struct segment *const *segments, unsigned count,
               uint64_t epoch) {
  if (count == 0)
    return;
  pool_lock(pool);
  if (pool->generation == generation && pool->state == POOL_OPEN) { /* else it takes all apart, or has */
    struct rule rule = own_rule(pool, epoch <= reuse_passed(pool->reuse));
    give_kept_locked(pool, segments, count, &rule);
  }
  pool_unlock(pool);
}

/* ---- Information ---- */

void pool_info_locked(struct mam_pool *pool, const struct pool_front_sum *front, MAM_PoolInfo *info) {
  static const struct pool_front_sum nothing;
  const struct pool_front_sum *sum = front != NULL ? front : &nothing;
  const struct segment_set *segments = &pool->segments;
  const struct pool_chunk *chunk;
  size_t chunk_count = 0, slab_count = sum->span_bytes / SOURCE_GRANULARITY_BYTES;
  SLIST_FOREACH(chunk, &pool->chunks, link) { chunk_count++; }
  size_t free_bytes = segments->bytes[SEGMENT_FREE], largest = segment_largest_free(&pool->segments);
  size_t cached_bytes = sum->kept_bytes + sum->span_bytes - sum->live_small_bytes;
  size_t cached_waiting_bytes = sum->kept_waiting_bytes + sum->small_waiting_bytes;
  *info = (MAM_PoolInfo){
      .struct_size = sizeof *info,
      .used_bytes = segments->bytes[SEGMENT_USED] - cached_bytes,
      .requested_bytes = pool->requested_bytes + sum->requested_bytes,
      .waiting_bytes = segments->bytes[SEGMENT_WAITING] + cached_waiting_bytes,
      .free_bytes = free_bytes + cached_bytes - cached_waiting_bytes,
      .largest_free_bytes = largest,
      .peak_used_bytes = pool->peak_used_bytes,
      .limit_bytes = pool->limit_bytes,
      .peak_reserved_bytes = pool->peak_reserved_bytes,
      .chunk_count = chunk_count,
      .used_count = segments->count[SEGMENT_USED] - slab_count - sum->kept_count + sum->live_small_count,
      .waiting_count = segments->count[SEGMENT_WAITING] + sum->kept_waiting_count,
      .free_count = segments->count[SEGMENT_FREE] + sum->kept_count - sum->kept_waiting_count,
      .metadata_bytes = segments->slab_bytes + sum->metadata_bytes,
      .malloc_count = pool->malloc_count,
      .free_call_count = pool->free_call_count + sum->frees,
      .failure_count = pool->failure_count,
      .synchronize_count = pool->synchronize_count,
      .external_fragmentation = free_bytes > 0 ? 1.0 - (double)largest / (double)free_bytes : 0.0,
      .cached_bytes = cached_bytes,
      .slab_count = slab_count,
      .thread_count = sum->thread_count,
      .magazine_hit_count = sum->hits[FRONT_HIT_MAGAZINE],
      .size_hit_count = sum->hits[FRONT_HIT_SIZE],
      .tag_hit_count = sum->hits[FRONT_HIT_TAG],
      .stream_hit_count = pool->stream_hit_count,
  };
  for (unsigned i = 0; i < FRONT_HIT_KINDS; i++)
    info->malloc_count += sum->hits[i];
  reuse_counts(pool->reuse, &info->fence_count);
  info->reserved_bytes = info->used_bytes + info->waiting_bytes + info->free_bytes;
  info->segment_count = info->used_count + info->waiting_count + info->free_count;
}

const struct pool_front *pool_freeze(struct mam_pool *pool) {
  /* acquire: the fronts; pairs with the release in pool_open */
  const struct pool_front *front = atomic_load_explicit(&pool->in_front, memory_order_acquire);
  if (front != NULL)
    front->freeze(pool);
  pool_lock(pool);
  return front;
}

void pool_thaw(struct mam_pool *pool, const struct pool_front *frozen) {
  pool_unlock(pool);
  if (frozen != NULL)
    frozen->thaw(pool);
}

cudaError_t pool_info(struct mam_pool *pool, uint64_t default_id, MAM_PoolInfo *info) {
  struct pool_front_sum sum = {0};
  const struct pool_front *frozen = pool_freeze(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess) {
    if (frozen != NULL)
      frozen->sum(pool, &sum);
    pool_info_locked(pool, &sum, info);
  }
  pool_thaw(pool, frozen);
  return error;
}

cudaError_t pool_reset_peaks(struct mam_pool *pool, uint64_t default_id) {
  pool_lock(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess) {
    pool->peak_used_bytes = pool->segments.bytes[SEGMENT_USED];
    pool->peak_reserved_bytes = pool_reserved_locked(pool);
  }
  pool_unlock(pool);
  return error;
}

/* ---- Fork ---- */

void pool_before_fork(void) {
  pthread_mutex_lock(&pools_lock);
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    const struct pool_front *front = atomic_load_explicit(&pool->in_front, memory_order_acquire); /* as pool_freeze */
    if (front != NULL)
      front->before_fork(pool);
    pthread_mutex_lock(&pool->lock);
    pool->frozen_for_fork = front;
  }
  reuse_before_fork();
  chunk_map_lock();
}

/* Threads that were in the middle of a call do not exist in the child, nor does the reaper of lib/api.  What they had begun
 * with a pool of host memory is either not visible yet or complete, as the lock was not theirs. */
static void fork_in_child(struct mam_pool *pool) {
  pool->users = pool->synchronizing = 0;
  pool->wanted_bytes = 0;
  pool->growing = pool->watched = false;
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
  chunk_map_unlock();
  reuse_after_fork(in_child);
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    const struct pool_front *front = pool->frozen_for_fork;
    if (in_child)
      fork_in_child(pool);
    pthread_mutex_unlock(&pool->lock);
    if (front != NULL)
      front->after_fork(pool, in_child);
  }
  for (struct mam_pool *pool = in_child ? pool_first() : NULL; pool != NULL; pool = pool->next)
    if (pool->state == POOL_FORKED && pool->frozen_for_fork != NULL) /* the child's only thread reads them */
      pool->frozen_for_fork->close(pool);
  pthread_mutex_unlock(&pools_lock);
}
