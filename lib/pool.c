/* SPDX-License-Identifier: BSD-2-Clause */
#include "pool.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chunk_map.h"
#include "error.h"

/* ---- The lock ---- */

static void pool_lock(struct mam_pool *pool) { pthread_mutex_lock(&pool->lock); }

static void pool_unlock(struct mam_pool *pool) {
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
static void pool_step_out(struct mam_pool *pool) {
  pool->users++;
  pool_unlock(pool);
}

static void pool_step_in(struct mam_pool *pool) {
  pool_lock(pool);
  pool->users--;
  pthread_cond_broadcast(&pool->changed);
}

cudaError_t pool_usable_locked(const struct mam_pool *pool) {
  if (pool->state == POOL_OPEN)
    return cudaSuccess;
  if (pool->state == POOL_FORKED)
    return error_set(cudaErrorInitializationError, "the GPU's memory stayed with the parent of this forked process");
  if (pool->state == POOL_LOST || pool->state == POOL_LOSING)
    return error_set(cudaErrorContextIsDestroyed, "the pool's CUDA context was destroyed or reset, its memory with it");
  return cudaErrorInvalidResourceHandle;
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
  struct mam_pool *pool = calloc(1, sizeof *pool);
  if (pool == NULL)
    return NULL;
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

/* ---- Chunks ---- */

static uintptr_t round_up(uintptr_t value, size_t power_of_two) {
  return (value + power_of_two - 1) & ~(uintptr_t)(power_of_two - 1);
}

/* In whole units of the source; down where up would pass the end of the numbers, which no source has. */
static size_t whole_units(size_t bytes) {
  size_t up = round_up(bytes, SOURCE_GRANULARITY_BYTES);
  return up >= bytes ? up : bytes & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
}

/* Puts a chunk's usable part into the trees.  The lock is held. */
static bool chunk_enter_locked(struct mam_pool *pool, struct pool_chunk *chunk) {
  size_t alignment = pool->config.alignment;
  uintptr_t first = round_up(chunk->base, alignment);
  uintptr_t end = (chunk->base + chunk->bytes) & ~(uintptr_t)(alignment - 1);
  chunk->usable_bytes = end > first ? end - first : 0;
  if (chunk->usable_bytes == 0 || !segment_add_chunk(&pool->segments, first, chunk->usable_bytes))
    return false;
  SLIST_INSERT_HEAD(&pool->chunks, chunk, link);
  pool->held_bytes += chunk->bytes;
  return true;
}

/* Closes a pool whose memory is gone, given a sign of it: its context is, or another chunk has its addresses. */
static void pool_abandon(struct mam_pool *pool);

/* Makes a chunk that the source gave the pool's own.  The lock is not held.  On failure the chunk is still loose. */
static cudaError_t chunk_attach(struct mam_pool *pool, uintptr_t base, size_t bytes) {
  struct mam_pool *other;
  struct pool_chunk *chunk = malloc(sizeof *chunk);
  if (chunk == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for a chunk");
  *chunk = (struct pool_chunk){.base = base, .bytes = bytes};
  enum chunk_map_result result;
  while ((result = chunk_map_add(base, bytes, pool, &other)) == CHUNK_MAP_OVERLAP && other != pool)
    pool_abandon(other);
  if (result != CHUNK_MAP_OK) {
    free(chunk);
    if (result == CHUNK_MAP_FULL)
      return error_set(cudaErrorMemoryAllocation, "more than %d chunks in all pools", CHUNK_MAP_CAPACITY);
    return error_set(cudaErrorUnknown, "the source gave the memory at %p twice", (void *)base);
  }
  pool_lock(pool);
  bool entered = chunk_enter_locked(pool, chunk);
  pool_unlock(pool);
  if (entered)
    return cudaSuccess;
  chunk_map_remove(base);
  free(chunk);
  return error_set(cudaErrorMemoryAllocation, "a chunk of %zu bytes at %p does not hold a segment", bytes,
                   (void *)base);
}

/* The same; on failure the source has its chunk back. */
static cudaError_t chunk_adopt(struct mam_pool *pool, uintptr_t base, size_t bytes) {
  cudaError_t error = chunk_attach(pool, base, bytes);
  if (error != cudaSuccess)
    (void)pool->source.operations->chunk_give(&pool->source, base, bytes);
  return error;
}

/* Takes a chunk of at least need bytes, of want if the source has that much.  The lock is not held. */
static cudaError_t chunk_take(struct mam_pool *pool, size_t want, size_t need) {
  const struct source *source = &pool->source;
  uintptr_t base;
  size_t bytes = want;
  cudaError_t error = source->operations->chunk_take(source, bytes, &base);
  if (error == cudaErrorMemoryAllocation && need < want) {
    bytes = need;
    error = source->operations->chunk_take(source, bytes, &base);
  }
  return error == cudaSuccess ? chunk_adopt(pool, base, bytes) : error;
}

/* ---- Opening ---- */

static cudaError_t first_chunk(struct mam_pool *pool) {
  const struct source *source = &pool->source;
  size_t bytes = pool->config.chunk_bytes;
  uintptr_t base;
  if (bytes > 0)
    return chunk_take(pool, bytes, bytes);
  size_t limit_bytes = pool->config.limit_bytes > 0 ? pool->config.limit_bytes : SIZE_MAX;
  cudaError_t error = source_take_largest(source, pool->config.headroom_bytes, limit_bytes, &base, &bytes);
  return error == cudaSuccess ? chunk_adopt(pool, base, bytes) : error;
}

/* A claimed pool's fields before its first chunk. */
static void pool_reset(struct mam_pool *pool, const struct pool_config *config, const struct source *source) {
  pool_lock(pool);
  pool->config = *config;
  pool->config.chunk_bytes = whole_units(config->chunk_bytes);
  pool->config.limit_bytes = whole_units(config->limit_bytes);
  pool->source = *source;
  pool->epoch = 1;
  pool->limit_bytes = SIZE_MAX;
  pool->held_bytes = pool->refused_bytes = pool->requested_bytes = pool->peak_used_bytes = 0;
  pool->malloc_count = pool->free_call_count = pool->failure_count = pool->synchronize_count = 0;
  pool->source_said[0] = '\0';
  pool->watched = false;
  pool_unlock(pool);
}

cudaError_t pool_open(const struct pool_config *config, const struct source *source, struct mam_pool **opened) {
  struct mam_pool *pool = pool_claim();
  if (pool == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for a pool");
  pool_reset(pool, config, source);
  cudaError_t error = first_chunk(pool);
  pool_lock(pool);
  if (error == cudaSuccess) {
    size_t limit_bytes = pool->config.limit_bytes;
    pool->limit_bytes = limit_bytes > pool->held_bytes ? limit_bytes : pool->held_bytes;
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

/* Gives every chunk back, in two rounds: out of the map first, since from chunk_give on another pool may be given the
 * same addresses. */
static cudaError_t chunks_give(struct mam_pool *pool) {
  struct pool_chunk *chunk;
  cudaError_t error = cudaSuccess;
  SLIST_FOREACH(chunk, &pool->chunks, link) { chunk_map_remove(chunk->base); }
  while ((chunk = SLIST_FIRST(&pool->chunks)) != NULL) {
    SLIST_REMOVE_HEAD(&pool->chunks, link);
    cudaError_t given = pool->source.operations->chunk_give(&pool->source, chunk->base, chunk->bytes);
    error = error == cudaSuccess ? given : error;
    free(chunk);
  }
  return error;
}

cudaError_t pool_finish(struct mam_pool *pool) {
  pthread_mutex_lock(&pool->lock);
  while (pool->users > 0)
    pthread_cond_wait(&pool->changed, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
  cudaError_t error = chunks_give(pool); /* the pool is this thread's alone */
  source_close(&pool->source);
  pthread_mutex_lock(&pool->lock);
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

/* Whether the pool is open and still what the caller means. */
static cudaError_t pool_expect_locked(const struct mam_pool *pool, uint64_t default_id) {
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess && default_id != POOL_ANY_ID && pool->config.default_id != default_id)
    error = cudaErrorInvalidResourceHandle;
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
    meant = pool->config.lazy && pool->segments.count[SEGMENT_USED] == 0;
  if (meant)
    retire_locked(pool, POOL_CLOSING);
  else
    pool->watched = false;
  pool_unlock(pool);
  return meant;
}

enum pool_look pool_look(struct mam_pool *pool, uint64_t default_id, uint64_t *malloc_count) {
  pool_lock(pool);
  enum pool_look look = POOL_GONE;
  if (pool_expect_locked(pool, default_id) == cudaSuccess) {
    look = pool->segments.count[SEGMENT_USED] > 0 ? POOL_BUSY : POOL_EMPTY;
    pool->watched = look == POOL_EMPTY;
    *malloc_count = pool->malloc_count;
  }
  pool_unlock(pool);
  return look;
}

static void pool_abandon(struct mam_pool *pool) {
  pool_lock(pool);
  if (pool->state == POOL_OPEN || pool->state == POOL_FORKED) {
    pool_lose(pool);
  } else {
    pool_unlock(pool);
    sched_yield(); /* somebody else is closing it */
  }
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

/* Waits for the GPU, outside the lock, and makes free what was waiting when it began. */
static cudaError_t synchronize_locked(struct mam_pool *pool) {
  uint64_t epoch = pool->epoch++;
  pool->synchronize_count++;
  pool->synchronizing++;
  pool_step_out(pool);
  cudaError_t error = pool->source.operations->synchronize(&pool->source);
  pool_step_in(pool);
  pool->synchronizing--;
  if (error == cudaSuccess)
    segment_pass_epoch(&pool->segments, epoch);
  return error;
}

/* Waits until another thread has done something that may help. */
static cudaError_t await_change_locked(struct mam_pool *pool) {
  pool->users++;
  pthread_cond_wait(&pool->changed, &pool->lock);
  if (--pool->users == 0) /* only pool_finish may wait for that; waiters that woke each other would never rest */
    pthread_cond_broadcast(&pool->changed);
  return cudaSuccess;
}

/* An allocation gives up after so many waits of its own.  One is decisive in one thread; among many, others may take
 * what it made free and free it again, but an allocation that can never be served must not wait for ever. */
enum { OWN_WAITS = 8 };

/* Whether a wait for the GPU can serve bytes: what is free and what waits would be enough. */
static bool wait_may_help(const struct mam_pool *pool, size_t bytes) {
  const struct segment_set *segments = &pool->segments;
  return segments->count[SEGMENT_WAITING] > 0 &&
         bytes <= segments->bytes[SEGMENT_FREE] + segments->bytes[SEGMENT_WAITING];
}

/* Makes what waits free, by another thread's wait if that covers the oldest of it. */
static cudaError_t await_gpu_locked(struct mam_pool *pool, unsigned *own_waits) {
  if (pool->synchronizing > 0 && TAILQ_FIRST(&pool->segments.waiting)->as.waiting.epoch < pool->epoch)
    return await_change_locked(pool);
  ++*own_waits;
  return synchronize_locked(pool);
}

/* How much to ask the source for, for a block of bytes: *need at least, *want if it can be.  False if the limit leaves
 * no room. */
static bool growth_plan(const struct mam_pool *pool, size_t bytes, size_t *want, size_t *need) {
  size_t room = (pool->limit_bytes - pool->held_bytes) & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
  /* Sources align to 512 at least; beyond that, the chunk's ends may be lost. */
  size_t slack = pool->config.alignment > POOL_ALIGNMENT_BYTES ? pool->config.alignment : 0;
  if (room < slack || bytes > room - slack)
    return false;
  *need = round_up(bytes + slack, SOURCE_GRANULARITY_BYTES);
  *want = pool->config.chunk_bytes;
  if (*want < *need)
    *want = *need;
  if (*want > room)
    *want = room;
  return true;
}

/* Takes a further chunk, outside the lock.  cudaErrorMemoryAllocation if there is none, by the limit or the source. */
static cudaError_t grow_locked(struct mam_pool *pool, size_t bytes) {
  size_t want, need;
  if (pool->growing) /* another thread's chunk may do */
    return await_change_locked(pool);
  if (!growth_plan(pool, bytes, &want, &need))
    return cudaErrorMemoryAllocation;
  pool->growing = true;
  pool_step_out(pool);
  cudaError_t error = chunk_take(pool, want, need);
  pool_step_in(pool);
  pool->growing = false;
  if (error == cudaSuccess)
    pool->refused_bytes = 0;
  if (error != cudaErrorMemoryAllocation)
    return error;
  if (pool->refused_bytes == 0 || bytes < pool->refused_bytes)
    pool->refused_bytes = bytes;
  (void)snprintf(pool->source_said, sizeof pool->source_said, "%s", error_last());
  return error;
}

/* Growth, or what came free while the lock was left for it. */
static cudaError_t grow_or_find_locked(struct mam_pool *pool, size_t bytes) {
  cudaError_t error = grow_locked(pool, bytes);
  bool found = error == cudaErrorMemoryAllocation && segment_largest_free(&pool->segments) >= bytes;
  return found ? cudaSuccess : error;
}

/* Something to try again with, or why there is nothing.  Growing waits for nothing, so it goes first, unless the source
 * has refused as much before; the waiting limit keeps what it can waste small. */
static cudaError_t make_room_locked(struct mam_pool *pool, size_t bytes, unsigned *own_waits) {
  bool refused = pool->refused_bytes > 0 && bytes >= pool->refused_bytes;
  cudaError_t error = refused ? cudaErrorMemoryAllocation : grow_or_find_locked(pool, bytes);
  if (error != cudaErrorMemoryAllocation)
    return error;
  if (*own_waits < OWN_WAITS && wait_may_help(pool, bytes))
    return await_gpu_locked(pool, own_waits);
  return refused ? grow_or_find_locked(pool, bytes) : error;
}

/* ---- Malloc and free ---- */

/* The pool has no room: counted, told, and nothing else changed.  Releases the lock. */
static cudaError_t refuse_locked(struct mam_pool *pool, size_t size) {
  MAM_PoolInfo info;
  char said[sizeof pool->source_said];
  pool->failure_count++;
  pool_info_locked(pool, &info);
  memcpy(said, pool->source_said, sizeof said);
  pool_unlock(pool);
  return error_set(cudaErrorMemoryAllocation,
                   "no room for %zu bytes: %zu free, the largest hole %zu, %zu held of at most %zu%s%s", size,
                   info.free_bytes, info.largest_free_bytes, info.reserved_bytes, info.limit_bytes,
                   said[0] != '\0' ? "; the source said: " : "", said);
}

static struct segment *take_locked(struct mam_pool *pool, size_t bytes, cudaError_t *error, bool *no_host_memory) {
  struct segment *segment;
  unsigned own_waits = 0;
  while ((segment = segment_take(&pool->segments, bytes, no_host_memory)) == NULL) {
    *error = *no_host_memory ? cudaErrorMemoryAllocation : make_room_locked(pool, bytes, &own_waits);
    if (*error == cudaSuccess)
      *error = pool_usable_locked(pool); /* the lock was left: it may have been closed */
    if (*error != cudaSuccess)
      return NULL;
  }
  return segment;
}

cudaError_t pool_malloc(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site, void **address) {
  pool_lock(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error != cudaSuccess) {
    pool_unlock(pool);
    return error;
  }
  size_t bytes = round_up(size, pool->config.alignment);
  struct segment *segment = NULL;
  bool no_host_memory = false;
  error = cudaErrorMemoryAllocation;
  if (bytes >= size) /* not rounded past the end of the numbers */
    segment = take_locked(pool, bytes, &error, &no_host_memory);
  if (segment == NULL) {
    if (error == cudaErrorMemoryAllocation && !no_host_memory)
      return refuse_locked(pool, size);
    pool_unlock(pool);
    return no_host_memory ? error_set(error, "no host memory for a segment") : error;
  }
  segment->as.used.requested_bytes = size;
  segment->as.used.site = site;
  pool->malloc_count++;
  pool->requested_bytes += size;
  if (pool->segments.bytes[SEGMENT_USED] > pool->peak_used_bytes)
    pool->peak_used_bytes = pool->segments.bytes[SEGMENT_USED];
  uintptr_t base = segment->base;
  pool_unlock(pool);
  *address = (void *)base;
  return cudaSuccess;
}

static cudaError_t refuse_free(const void *address, bool freed_before) {
  return error_set(cudaErrorInvalidValue, freed_before ? "%p was freed already" : "%p is not the start of a live block",
                   address);
}

static size_t waiting_limit(const struct mam_pool *pool) {
  return pool->config.waiting_limit_bytes > 0 ? pool->config.waiting_limit_bytes : pool->held_bytes / 2;
}

/* Gives a used segment back by the pool's rule of reuse. */
static cudaError_t give_back_locked(struct mam_pool *pool, struct segment *segment) {
  pool->free_call_count++;
  pool->requested_bytes -= segment->as.used.requested_bytes;
  if (pool->config.reuse == MAM_REUSE_IMMEDIATE) {
    segment_free(&pool->segments, segment);
    return cudaSuccess;
  }
  segment_wait(&pool->segments, segment, pool->epoch);
  /* One thread's wait serves all. */
  if (pool->segments.bytes[SEGMENT_WAITING] <= waiting_limit(pool) || pool->synchronizing > 0)
    return cudaSuccess;
  return synchronize_locked(pool);
}

cudaError_t pool_free(void *address, struct pool_emptied *emptied) {
  struct mam_pool *pool = chunk_map_find((uintptr_t)address);
  *emptied = (struct pool_emptied){0};
  if (pool == NULL)
    return refuse_free(address, false);
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  struct segment *segment = error == cudaSuccess ? segment_find(&pool->segments, (uintptr_t)address) : NULL;
  if (segment == NULL || segment->state != SEGMENT_USED) {
    pool_unlock(pool);
    return error == cudaErrorInitializationError ? error : refuse_free(address, segment != NULL);
  }
  error = give_back_locked(pool, segment);
  if (error == cudaErrorContextIsDestroyed) /* as cudaFree has it: the block is not there any more */
    error = cudaErrorInvalidValue;
  if (pool->config.lazy && pool->segments.count[SEGMENT_USED] == 0 && !pool->watched) {
    *emptied = (struct pool_emptied){pool, pool->config.default_id};
    pool->watched = true;
  }
  pool_unlock(pool);
  return error;
}

/* ---- Information ---- */

void pool_info_locked(struct mam_pool *pool, MAM_PoolInfo *info) {
  const struct segment_set *segments = &pool->segments;
  const struct pool_chunk *chunk;
  size_t chunk_count = 0;
  SLIST_FOREACH(chunk, &pool->chunks, link) { chunk_count++; }
  size_t free_bytes = segments->bytes[SEGMENT_FREE], largest = segment_largest_free(&pool->segments);
  *info = (MAM_PoolInfo){
      .struct_size = sizeof *info,
      .used_bytes = segments->bytes[SEGMENT_USED],
      .requested_bytes = pool->requested_bytes,
      .waiting_bytes = segments->bytes[SEGMENT_WAITING],
      .free_bytes = free_bytes,
      .largest_free_bytes = largest,
      .peak_used_bytes = pool->peak_used_bytes,
      .limit_bytes = pool->limit_bytes,
      .chunk_count = chunk_count,
      .used_count = segments->count[SEGMENT_USED],
      .waiting_count = segments->count[SEGMENT_WAITING],
      .free_count = segments->count[SEGMENT_FREE],
      .metadata_bytes = segments->slab_bytes,
      .malloc_count = pool->malloc_count,
      .free_call_count = pool->free_call_count,
      .failure_count = pool->failure_count,
      .synchronize_count = pool->synchronize_count,
      .external_fragmentation = free_bytes > 0 ? 1.0 - (double)largest / (double)free_bytes : 0.0,
  };
  info->reserved_bytes = info->used_bytes + info->waiting_bytes + info->free_bytes;
  info->segment_count = info->used_count + info->waiting_count + info->free_count;
}

cudaError_t pool_info(struct mam_pool *pool, MAM_PoolInfo *info) {
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  if (error == cudaSuccess)
    pool_info_locked(pool, info);
  pool_unlock(pool);
  return error;
}

/* ---- Fork ---- */

void pool_before_fork(void) {
  pthread_mutex_lock(&pools_lock);
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next)
    pthread_mutex_lock(&pool->lock);
  chunk_map_lock();
}

/* Threads that were in the middle of a call do not exist in the child, nor does api.c's reaper.  What they had begun
 * with a pool of host memory is either not visible yet or complete, as the lock was not theirs. */
static void fork_in_child(struct mam_pool *pool) {
  pool->users = pool->synchronizing = 0;
  pool->growing = pool->watched = false;
  pool->linger_until_ns = 0;
  (void)pthread_cond_init(&pool->changed, NULL);
  if (pool->state == POOL_LOSING)
    pool->state = POOL_LOST;
  if (pool->state == POOL_OPEN && pool->source.operations != &source_host)
    pool->state = POOL_FORKED;
}

void pool_after_fork(bool in_child) {
  chunk_map_unlock();
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    if (in_child)
      fork_in_child(pool);
    pthread_mutex_unlock(&pool->lock);
  }
  pthread_mutex_unlock(&pools_lock);
}
