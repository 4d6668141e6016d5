/* SPDX-License-Identifier: BSD-2-Clause */
/* Malloc and free of a pool: the order in which room is looked for, and the rule by which freed memory is reused. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

/* ---- Making room ---- */

/* An allocation gives up after so many waits of its own.  One is enough where a single thread allocates.  Among many
 * threads, another one may take what the wait made free and free it again; but an allocation that can never be served
 * must not wait for ever.  With 8, four threads that shared four blocks saw a refusal in up to one of three runs of
 * half a second. */
enum { OWN_WAITS = 16 };

/* A fence is asked for once in so many frees: the list of what waits stays short, and a fence costs each free 5 ns. */
enum { FENCE_EVERY = 64 };

/* What an allocation has tried already. */
struct attempt {
  unsigned own_waits, collections;
  bool fenced, at_once; /* at_once: must not wait for the GPU */
};

/* An allocation that is about to be refused collects so many times: after a collection, other threads may have freed
 * blocks, which their fronts keep. */
enum { COLLECTIONS_MOST = 4 };

/* Grows the pool.  cudaSuccess also if that failed, but enough came free while the lock was left for it. */
static cudaError_t grow_or_find_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  cudaError_t error = pool_grow_locked(pool, bytes, at_once);
  bool found = error == cudaErrorMemoryAllocation && segment_largest_free(&pool->segments) >= bytes;
  return found ? cudaSuccess : error;
}

/* ---- Holes that are cut up ---- */

/* The front keeps freed blocks, and others wait: none of them is in a hole.  A block that they would fit must not drive
 * a wedge into the last large hole.  So where memory is short, a block that fits no hole takes from a larger one only
 * after a look at what waits and what the fronts keep.  A look costs a few microseconds, so one allows this part of
 * what the pool holds to be taken.  With a 32nd, the smallest chunk for a trace was up to 4 % of its peak larger. */
enum { CUTS_SHARE = 128 };

/* At least so much, so that a small pool does not look for each block. */
enum { CUTS_LEAST_BYTES = 4 << 20 };

static void cuts_allow_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  size_t most = pool->held_bytes / CUTS_SHARE;
  most = (most < CUTS_LEAST_BYTES ? CUTS_LEAST_BYTES : most) * pool->cuts_times;
  pool->segments.cuts_bytes = most < bytes ? bytes : most;
}

/* In an elastic pool, what a look prevents is growth.  If the pool has not grown since the look before, the next one
 * comes after twice as many bytes, up to so many times the share.  So random traffic that needs no more memory keeps
 * most of its blocks in the fronts, where they are quicker. */
enum { CUTS_TIMES_MOST = 4 };

static void cuts_allow_looked_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  uint64_t growths = atomic_load_explicit(&pool->growths, memory_order_relaxed); /* relaxed: written under the lock */
  bool calm = pool->config.elastic && growths == pool->looked_growths;
  pool->cuts_times = !calm ? 1 : pool->cuts_times < CUTS_TIMES_MOST ? 2 * pool->cuts_times : CUTS_TIMES_MOST;
  pool->looked_growths = growths;
  cuts_allow_locked(pool, bytes);
}

/* segment_take.  A pool that never used more than half of what it holds has room for wedges. */
static struct segment *hole_take_locked(struct mam_pool *pool, size_t bytes, bool close, bool *no_host_memory) {
  lock_held(&pool->lock);
  if (pool->peak_used_bytes <= pool->held_bytes / 2)
    cuts_allow_locked(pool, bytes);
  return segment_take(&pool->segments, bytes, close, no_host_memory);
}

/* ---- What waits for a stream ---- */

static struct pool_stream *stream_find_locked(struct mam_pool *pool, struct context_stream named) {
  lock_held(&pool->lock);
  struct pool_stream *stream;
  SLIST_FOREACH(stream, &pool->streams, link) {
    if (context_stream_same(stream->stream, named))
      break;
  }
  return stream;
}

/* What was freed on the order's stream, if it has one. */
static struct segment *stream_take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                          bool close, bool *no_host_memory) {
  lock_held(&pool->lock);
  *no_host_memory = false;
  struct pool_stream *stream = order->stream.id != 0 ? stream_find_locked(pool, order->stream) : NULL;
  struct segment *segment =
      stream != NULL ? segment_retake(&pool->segments, &stream->waiting, bytes, close, no_host_memory) : NULL;
  pool->stream_hit_count += segment != NULL;
  return segment;
}

/* What was freed on the order's stream, or else a hole. */
static struct segment *fit_take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                       bool *no_host_memory) {
  lock_held(&pool->lock);
  bool close = order->effort == POOL_TAKE_CLOSE, no_node;
  struct segment *segment = stream_take_locked(pool, order, bytes, close, &no_node);
  *no_host_memory = false;
  if (segment == NULL)
    segment = hole_take_locked(pool, bytes, close, no_host_memory);
  *no_host_memory =
      segment == NULL && (*no_host_memory || no_node); /* else room that is there would be tried for ever */
  return segment;
}

/* Whether there is enough room for the block in one piece, though it may have to be cut. */
static bool room_is_there_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes) {
  lock_held(&pool->lock);
  struct pool_stream *stream = order->stream.id != 0 ? stream_find_locked(pool, order->stream) : NULL;
  return segment_largest_free(&pool->segments) >= bytes ||
         (stream != NULL && segment_may_retake(&pool->segments, &stream->waiting, bytes));
}

/* ---- Tries, one after the other ---- */

/* Tries what costs neither memory nor a wait: a fence, and what the fronts keep.  False if both were tried before. */
static bool look_around_locked(struct mam_pool *pool, size_t bytes, struct attempt *attempt) {
  lock_held(&pool->lock);
  if (!attempt->fenced) {
    attempt->fenced = true;
    pool_fence_locked(pool, bytes);
    return true;
  }
  if (attempt->collections == 0 && pool_collection_may_help_locked(pool)) {
    attempt->collections++;
    pool_collect_some_locked(pool, bytes, !pool->config.elastic);
    return true;
  }
  return false;
}

/* Looks for room once more.  cudaSuccess: the caller may try again; else why there is no room.  A hole that would be
 * cut up comes before growth.  Growth waits for nothing, so it comes before a wait, unless the source has refused as
 * much before.  The waiting limit keeps small what growth can waste. */
static cudaError_t make_room_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                    struct attempt *attempt) {
  lock_held(&pool->lock);
  if (look_around_locked(pool, bytes, attempt))
    return cudaSuccess;
  if (room_is_there_locked(pool, order, bytes)) {
    cuts_allow_looked_locked(pool, bytes);
    return cudaSuccess;
  }
  bool refused = pool->refused_bytes > 0 && bytes >= pool->refused_bytes;
  cudaError_t error = refused ? cudaErrorMemoryAllocation : grow_or_find_locked(pool, bytes, attempt->at_once);
  if (error != cudaErrorMemoryAllocation)
    return error;
  if (!attempt->at_once && attempt->own_waits < OWN_WAITS && pool_wait_may_help_locked(pool, bytes) &&
      !reuse_capturing(pool->reuse)) {
    attempt->collections = 0;
    return pool_await_gpu_locked(pool, bytes, &attempt->own_waits);
  }
  if (refused)
    error = grow_or_find_locked(pool, bytes, attempt->at_once);
  if (error != cudaErrorMemoryAllocation || pool->config.front == NULL || ++attempt->collections > COLLECTIONS_MOST)
    return error;
  pool_collect_some_locked(pool, bytes, true);
  return cudaSuccess;
}

/* ---- Holes that are spared ---- */

/* If a block would fit only into a hole that is spared for larger blocks, grows the pool.  If it cannot grow, the hole
 * is spared no longer: returns true, and the caller takes the hole and calls spare_again_locked.  May leave the lock.
 */
static bool spared_is_needed_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
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
  lock_held(&pool->lock);
  pool->segments.spared_bytes = pool->config.guarded ? pool->config.chunk_bytes : 0;
}

/* ---- Giving back ---- */

/* Counts used segments that a slab could have served. */
static void class_count_locked(struct mam_pool *pool, size_t bytes, size_t change) {
  lock_held(&pool->lock);
  if (bytes > POOL_SMALL_MOST_BYTES)
    return;
  _Atomic size_t *count = &pool->live_by_class[(bytes - 1) / POOL_ALIGNMENT_BYTES];
  /* relaxed: a hint, written under the lock */
  atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + change, memory_order_relaxed);
}

/* A rule of reuse for one block. */
struct rule {
  MAM_Reuse reuse;
  struct context_stream stream; /* of MAM_REUSE_STREAM */
  bool passed;                  /* the GPU is known to be done with the block; reuse is MAM_REUSE_IMMEDIATE */
};

/* The stream's list, made if there is none; NULL if the host has no memory: then the free is a plain one. */
static struct waiting_stream *stream_list_locked(struct mam_pool *pool, struct context_stream named) {
  lock_held(&pool->lock);
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
  lock_held(&pool->lock);
  struct waiting_stream *stream = NULL;
  /* relaxed: the lock is held, and no front has the segment */
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

/* The pool's rule for a plain free.  Such a free names no stream, so work of any stream may still use the block, and in
 * a pool with MAM_REUSE_STREAM the block waits for all of it. */
static struct rule own_rule(const struct mam_pool *pool, bool passed) {
  MAM_Reuse reuse = pool->config.reuse == MAM_REUSE_STREAM ? MAM_REUSE_FENCED : pool->config.reuse;
  /* Under the immediate rule a front's blocks have epoch 0, which says that they wait for nothing.  It does not say
   * that no kernel uses them, so they may not be unmapped yet. */
  return (struct rule){.reuse = passed ? MAM_REUSE_IMMEDIATE : reuse, .passed = passed && reuse != MAM_REUSE_IMMEDIATE};
}

/* Takes segments back that a front has kept. */
static void give_kept_locked(struct mam_pool *pool, struct segment *const *segments, unsigned count,
                             const struct rule *rule) {
  lock_held(&pool->lock);
  pool->free_call_count += count; /* of frees that the front served before */
  for (unsigned i = 0; i < count; i++) {
    class_count_locked(pool, segments[i]->bytes, (size_t)-1);
    pool->requested_bytes -= segments[i]->as.used.requested_bytes;
    give_back_locked(pool, segments[i], rule);
  }
}

/* ---- Malloc ---- */

/* Refuses an allocation: counts it and sets the error.  Leaves the lock. */
static cudaError_t refuse_locked(struct mam_pool *pool, size_t size) {
  lock_held(&pool->lock);
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

static struct segment *take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                   cudaError_t *error, bool *no_host_memory) {
  lock_held(&pool->lock);
  bool at_once = order->effort == POOL_TAKE_AT_ONCE;
  struct attempt attempt = {.at_once = at_once};
  if (bytes > pool->limit_bytes) { /* nothing that could be tried would help */
    *error = cudaErrorMemoryAllocation;
    return NULL;
  }
  while (true) {
    bool needed = spared_is_needed_locked(pool, bytes, at_once);
    *error = pool_usable_locked(pool); /* the lock was left: it may have been closed */
    struct segment *segment = *error == cudaSuccess ? fit_take_locked(pool, order, bytes, no_host_memory) : NULL;
    if (needed)
      spare_again_locked(pool);
    if (segment != NULL || *error != cudaSuccess)
      return segment;
    *error = *no_host_memory ? cudaErrorMemoryAllocation : make_room_locked(pool, order, bytes, &attempt);
    if (*error != cudaSuccess)
      return NULL;
  }
}

static void peak_update_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (pool->segments.bytes[SEGMENT_USED] > pool->peak_used_bytes)
    pool->peak_used_bytes = pool->segments.bytes[SEGMENT_USED];
}

/* A segment becomes the program's.  From the unlock on any thread may free the block, by the address of an earlier
 * block at the same place.  So all fields of the segment are written here. */
static void hand_out_locked(struct mam_pool *pool, struct segment *segment, const struct pool_order *order,
                            struct pool_block *block) {
  lock_held(&pool->lock);
  *block = (struct pool_block){segment, segment->base, segment->bytes, pool->ticket_next, false};
  pool->ticket_next += 2;
  segment->as.used.requested_bytes = order->size;
  segment->as.used.site = order->site;
  segment->as.used.tag = order->tag;
  /* relaxed: a free of this block takes the lock first */
  atomic_store_explicit(&segment->ticket, block->ticket, memory_order_relaxed);
  class_count_locked(pool, segment->bytes, 1);
  pool->malloc_count++;
  pool->requested_bytes += order->size;
  peak_update_locked(pool);
}

static const struct rule rule_immediate = {.reuse = MAM_REUSE_IMMEDIATE};

/* Grows a pool beyond what it needs, for speed, to half of its limit at most; only a pool that can give the memory
 * back. */
static void grow_in_place_locked(struct mam_pool *pool, size_t bytes, size_t most) {
  lock_held(&pool->lock);
  size_t half = pool->limit_bytes / 2;
  if (pool->config.in_chunks && bytes < pool->config.chunk_bytes)
    bytes = pool->config.chunk_bytes;
  bool gives = pool->config.elastic || (pool->config.in_chunks && bytes <= most);
  if (gives && pool->refused_bytes == 0 && bytes <= half && pool->held_bytes <= half - bytes)
    (void)grow_or_find_locked(pool, bytes, false);
}

/* Memory for speed, for blocks of so many bytes: of holes, without a look, or else by growth. */
static void speed_up_locked(struct mam_pool *pool, size_t bytes, const struct pool_order *order) {
  lock_held(&pool->lock);
  if (segment_largest_free(&pool->segments) < bytes)
    grow_in_place_locked(pool, order->growth_bytes, order->growth_most_bytes);
  cuts_allow_locked(pool, order->growth_bytes);
}

/* Errors: as pool_malloc. */
static cudaError_t order_expect_locked(const struct mam_pool *pool, const struct pool_order *order) {
  lock_held(&pool->lock);
  cudaError_t error = pool_expect_locked(pool, order->default_id);
  bool other = order->generation != POOL_ANY_GENERATION && order->generation != pool->generation;
  return error == cudaSuccess && other ? cudaErrorInvalidResourceHandle : error;
}

cudaError_t pool_take(struct mam_pool *pool, const struct pool_order *order, struct pool_block *block) {
  bool contended = pthread_mutex_trylock(&pool->lock) != 0;
  if (contended)
    pool_lock(pool);
  cudaError_t error = order_expect_locked(pool, order);
  if (error == cudaSuccess && order->stream.id != 0 && pool->freed_since >= FENCE_EVERY) { /* by pool_give */
    pool_fence_locked(pool, 0);
    error = order_expect_locked(pool, order);
  }
  if (error == cudaSuccess && order->passed_count > 0)
    give_kept_locked(pool, order->passed, order->passed_count, &rule_immediate);
  if (error != cudaSuccess) {
    pool_unlock(pool);
    return error;
  }
  bool any = order->effort == POOL_TAKE_ANY || order->effort == POOL_TAKE_AT_ONCE, no_host_memory = false;
  size_t bytes = round_up(order->size, pool->config.alignment);
  struct segment *segment = NULL;
  error = cudaErrorMemoryAllocation;
  if (order->effort == POOL_TAKE_GROWTH && bytes >= order->size)
    speed_up_locked(pool, bytes, order);
  if (bytes >= order->size) /* not rounded past the end of the numbers */
    segment = any ? take_locked(pool, order, bytes, &error, &no_host_memory)
                  : fit_take_locked(pool, order, bytes, &no_host_memory);
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

/* ---- Free ---- */

cudaError_t pool_refuse_free(uintptr_t address, bool freed_before) {
  return error_set(cudaErrorInvalidValue, freed_before ? "%p was freed already" : "%p is not the start of a live block",
                   (void *)address);
}

static size_t waiting_limit(const struct mam_pool *pool) {
  return pool->config.waiting_limit_bytes > 0 ? pool->config.waiting_limit_bytes : pool->held_bytes / 2;
}

/* After a free: asks for a fence from time to time.  Where the driver has no fences, waits for the GPU if more waits
 * than the waiting limit; one thread's wait serves all. */
static cudaError_t fence_freed_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  bool much = pool->segments.bytes[SEGMENT_WAITING] > waiting_limit(pool);
  if (reuse_passes_by_itself(pool->reuse)) {
    if (much || pool->freed_since >= FENCE_EVERY)
      pool_fence_locked(pool, 0);
    return cudaSuccess;
  }
  if (!much || pool->synchronizing > 0 || reuse_capturing(pool->reuse))
    return cudaSuccess;
  return pool_synchronize_locked(pool, SIZE_MAX);
}

/* Claims the block at an address, to free it.  NULL if it is no live block. */
static struct segment *claim_locked(struct mam_pool *pool, uintptr_t address, bool *freed_before) {
  lock_held(&pool->lock);
  struct segment *segment = segment_find(&pool->segments, address);
  *freed_before = segment != NULL;
  if (segment == NULL || segment->state != SEGMENT_USED)
    return NULL;
  /* relaxed: if it is odd, the exchange decides */
  uint64_t ticket = atomic_load_explicit(&segment->ticket, memory_order_relaxed);
  *freed_before = ticket != 0;
  /* acq_rel: of two frees one finds the ticket; and what the block's front wrote into the segment.  relaxed on failure:
   * another thread freed it */
  if (ticket % 2 == 0 || !atomic_compare_exchange_strong_explicit(&segment->ticket, &ticket, 0, memory_order_acq_rel,
                                                                  memory_order_relaxed))
    return NULL;
  pool->free_call_count++;
  pool->requested_bytes -= segment->as.used.requested_bytes;
  class_count_locked(pool, segment->bytes, (size_t)-1);
  return segment;
}

static bool is_of_pool(const struct mam_pool *pool, struct context_stream stream) {
  return stream.context == NULL || stream.context == pool->source.context.handle || context_stream_is_capture(stream);
}

cudaError_t pool_accompany(struct mam_pool *pool, struct context_stream stream) {
  return is_of_pool(pool, stream) ? cudaSuccess : reuse_accompany(pool->reuse, stream.context);
}

/* pool_accompany, with the lock left if there is something to do. */
static cudaError_t accompany_locked(struct mam_pool *pool, struct context_stream stream) {
  lock_held(&pool->lock);
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

/* Grows the pool for a slab.  A hole that is spared does not count as room. */
static cudaError_t span_grow_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  bool spares = pool->segments.spared_bytes > 0;
  return spares ? pool_grow_locked(pool, 2 * bytes, false) : grow_or_find_locked(pool, 2 * bytes, false);
}

/* Memory for a slab from a hole that is spared, in a pool that could not grow. */
static struct segment *span_of_spared_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  bool no_host_memory;
  pool->segments.spared_bytes = 0;
  struct segment *segment = segment_take_aligned(&pool->segments, bytes, bytes, &no_host_memory);
  spare_again_locked(pool);
  return segment;
}

cudaError_t pool_slab_take(struct mam_pool *pool, size_t bytes, uintptr_t *base) {
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
    /* relaxed: it is no block */
    atomic_store_explicit(&segment->ticket, 0, memory_order_relaxed);
    segment->as.used.requested_bytes = 0;
    segment->as.used.site = NULL;
    peak_update_locked(pool);
    *base = segment->base;
  }
  pool_unlock(pool);
  return segment != NULL ? cudaSuccess : error;
}

void pool_slab_give(struct mam_pool *pool, uintptr_t base, bool passed) {
  pool_lock(pool);
  struct rule rule = own_rule(pool, passed);
  give_back_locked(pool, segment_find(&pool->segments, base), &rule);
  pool_unlock(pool);
}

void pool_freed_unfenced(struct mam_pool *pool) {
  pool_lock(pool);
  pool->unfenced_epoch = reuse_epoch(pool->reuse);
  pool_unlock(pool);
}

void pool_give(struct mam_pool *pool, uint64_t generation, struct segment *const *segments, unsigned count,
               uint64_t epoch, struct context_stream stream) {
  if (count == 0)
    return;
  pool_lock(pool);
  if (pool->generation == generation && pool->state == POOL_OPEN) { /* else its segments go, or have gone */
    bool passed = epoch <= reuse_passed(pool->reuse);
    struct rule rule = own_rule(pool, passed);
    if (!passed && stream.id != 0)
      rule = (struct rule){.reuse = MAM_REUSE_STREAM, .stream = stream};
    give_kept_locked(pool, segments, count, &rule);
  }
  pool_unlock(pool);
}
