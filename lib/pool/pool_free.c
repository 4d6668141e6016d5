/* SPDX-License-Identifier: BSD-2-Clause */
/* Freeing, and the rule by which freed memory is reused. */
#include <stdlib.h>

#include "base/error.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

/* ---- Giving back ---- */

struct waiting_stream *pool_stream_find_locked(struct mam_pool *pool, struct context_stream named) {
  lock_held(&pool->lock);
  struct pool_stream *stream;
  SLIST_FOREACH(stream, &pool->streams, link) {
    if (context_stream_same(stream->stream, named))
      return &stream->waiting;
  }
  return NULL;
}

/* The stream's list, made if there is none; NULL if the host has no memory: then the free is a plain one. */
static struct waiting_stream *stream_list_locked(struct mam_pool *pool, struct context_stream named) {
  lock_held(&pool->lock);
  struct waiting_stream *waiting = pool_stream_find_locked(pool, named);
  struct pool_stream *stream = NULL, *idle;
  if (waiting != NULL)
    return waiting;
  SLIST_FOREACH(idle, &pool->streams, link) {
    if (waiting_stream_empty(&idle->waiting))
      stream = idle;
  }
  if (stream == NULL && (stream = malloc(sizeof *stream)) != NULL) {
    waiting_stream_init(&stream->waiting);
    SLIST_INSERT_HEAD(&pool->streams, stream, link);
  }
  if (stream == NULL)
    return NULL;
  stream->stream = named;
  return &stream->waiting;
}

/* Gives a used segment back by a rule of reuse. */
static void give_back_locked(struct mam_pool *pool, struct segment *segment, const struct pool_rule *rule) {
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
static struct pool_rule own_rule(const struct mam_pool *pool, bool passed) {
  MAM_Reuse reuse = pool->config.reuse == MAM_REUSE_STREAM ? MAM_REUSE_FENCED : pool->config.reuse;
  /* Under the immediate rule a front's blocks have epoch 0, which says that they wait for nothing.  It does not say
   * that no kernel uses them, so they may not be unmapped yet. */
  return (struct pool_rule){.reuse = passed ? MAM_REUSE_IMMEDIATE : reuse,
                            .passed = passed && reuse != MAM_REUSE_IMMEDIATE};
}

/* ---- Freeing a block ---- */

cudaError_t pool_refuse_free(uintptr_t address, bool freed_before) {
  return error_set(cudaErrorInvalidValue,
                   freed_before ? "%p was freed already, or never allocated" : "%p is not the start of a live block",
                   (void *)address);
}

/* After a free: asks for a fence from time to time.  Where the driver has no fences, waits for the GPU if more waits
 * than the waiting limit; one thread's wait serves all. */
static cudaError_t fence_freed_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  bool much = pool->segments.bytes[SEGMENT_WAITING] > pool_waiting_limit_locked(pool);
  if (reuse_passes_by_itself(pool->reuse)) {
    if (much || pool->freed_since >= POOL_FENCE_EVERY)
      pool_fence_locked(pool, 0);
    return cudaSuccess;
  }
  if (!much || pool->synchronizing > 0 || reuse_capturing(pool->reuse))
    return cudaSuccess;
  return pool_synchronize_locked(pool, SIZE_MAX, cudaSuccess);
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
  pool_class_count_locked(pool, segment->bytes, (size_t)-1);
  return segment;
}

cudaError_t pool_accompany(struct mam_pool *pool, struct context_stream stream) {
  bool is_own =
      stream.context == NULL || stream.context == pool->source.context.handle || context_stream_is_capture(stream);
  return is_own ? cudaSuccess : reuse_accompany(pool->reuse, stream.context);
}

static cudaError_t free_by_rule(struct mam_pool *pool, uint64_t generation, uintptr_t address,
                                const struct pool_rule *given, size_t *bytes, struct pool_emptied *emptied) {
  bool freed_before = false;
  pool_lock(pool);
  cudaError_t error = pool_expect_generation_locked(pool, generation);
  struct segment *segment = error == cudaSuccess ? claim_locked(pool, address, &freed_before) : NULL;
  if (segment == NULL) {
    pool_unlock(pool);
    return error == cudaErrorInitializationError ? error
                                                 : pool_refuse_free(address, error == cudaSuccess && freed_before);
  }
  *bytes = segment->bytes;
  struct pool_rule rule = given != NULL ? *given : own_rule(pool, false);
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
  size_t bytes;
  if (emptied != NULL)
    *emptied = (struct pool_emptied){0};
  return pool != NULL ? free_by_rule(pool, POOL_ANY_GENERATION, (uintptr_t)address, NULL, &bytes, emptied)
                      : pool_refuse_free((uintptr_t)address, false);
}

cudaError_t pool_free_from(struct mam_pool *pool, uint64_t generation, uintptr_t address, const struct pool_rule *rule,
                           size_t *bytes) {
  return free_by_rule(pool, generation, address, rule, bytes, NULL);
}

/* ---- For the fronts ---- */

void pool_slab_give(struct mam_pool *pool, uintptr_t base) {
  pool_lock(pool);
  struct pool_rule rule = own_rule(pool, true);
  pool->span_count--;
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
    struct pool_rule rule = own_rule(pool, passed);
    if (!passed && stream.id != 0)
      rule = (struct pool_rule){.reuse = MAM_REUSE_STREAM, .stream = stream};
    pool->free_call_count += count; /* of frees that the front served before */
    for (unsigned i = 0; i < count; i++) {
      pool_class_count_locked(pool, segments[i]->bytes, (size_t)-1);
      pool->requested_bytes -= segments[i]->as.used.requested_bytes;
      give_back_locked(pool, segments[i], &rule);
    }
  }
  pool_unlock(pool);
}
