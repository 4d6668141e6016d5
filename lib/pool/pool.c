/* SPDX-License-Identifier: BSD-2-Clause */
/* Allocating: the order in which room is looked for. */
#include <string.h>

#include "base/error.h"
#include "pool/pool_inside.h"

/* ---- Making room ---- */

/* What an allocation has tried already. */
struct attempt {
  uint64_t epoch; /* the present one at the beginning: what the thread has freed is of it, or of earlier ones */
  unsigned own_waits;
  bool fenced, looked, emptied; /* emptied: the fronts were, of everything, since the last wait */
  bool at_once;                 /* must not wait for the GPU */
};

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

/* In an elastic pool, what a look prevents is growth.  If the pool has not grown since the look before, the next one
 * comes after twice as many bytes: up to half of what the pool holds, but to no more than CUTS_MOST_BYTES, or a 32nd if
 * that is more.  So traffic that needs no more memory keeps most of its blocks in the fronts, where they are quicker.
 */
enum { CUTS_DOUBLINGS = 6, CUTS_TIMES_LARGE = CUTS_SHARE / 32, CUTS_MOST_BYTES = 512 << 20 };

static void cuts_allow_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  size_t share = pool->held_bytes / CUTS_SHARE;
  share = share < CUTS_LEAST_BYTES ? CUTS_LEAST_BYTES : share;
  size_t most = share << (pool->vain_looks < CUTS_DOUBLINGS ? pool->vain_looks : CUTS_DOUBLINGS);
  size_t limit = share * CUTS_TIMES_LARGE;
  limit = limit < CUTS_MOST_BYTES ? CUTS_MOST_BYTES : limit;
  most = most < limit ? most : limit;
  pool->segments.cuts_bytes = most < bytes ? bytes : most;
}

/* A look weighs as much as so many allocations that the trees of an elastic pool serve without one.  With 64, a
 * training whose GPU lags behind grew for speed, by 3 % of its peak. */
enum { LOOK_WEIGHT = 32 };

/* Counts looks, by weight or those in vain, since the pool grew. */
static void look_count_locked(struct mam_pool *pool, unsigned *looks, unsigned weight) {
  lock_held(&pool->lock);
  uint64_t growths = atomic_load_explicit(&pool->growths, memory_order_relaxed); /* relaxed: written under the lock */
  if (growths != pool->looked_growths)
    pool->looks = pool->vain_looks = 0;
  pool->looked_growths = growths;
  *looks += weight;
}

/* A pool that grows holds no more than its blocks need.  A program that comes back to several sizes, with one of them
 * live at a time, has all of it kept for one size when it needs another, and makes a look each time.  After so many
 * looks without growth the pool grows in place of the next one, by a block, or by a part of what it grew so before: by
 * a 64th of its limit in all, and at most so many bytes, until a trim gives some back. */
enum { SPEED_LOOKS = 16, SPEED_STEPS = 4, SPEED_SHARE = 64, SPEED_MOST_BYTES = 256 << 20 };

/* Whether it may: a pool that can grow and give memory back, and whose free chunks do not go back by themselves. */
static bool grows_for_speed(const struct mam_pool *pool) {
  bool by_chunks = pool->config.chunk_bytes < pool->limit_bytes && !pool->config.keeps && !pool->config.gives_all;
  return pool->config.elastic || by_chunks;
}

/* Whether it has grown so.  May leave the lock. */
static bool speed_grow_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  size_t most = pool->limit_bytes / SPEED_SHARE, held_bytes = pool->held_bytes;
  size_t least = bytes < pool->config.chunk_bytes ? pool->config.chunk_bytes : bytes;
  most = most < SPEED_MOST_BYTES ? most : SPEED_MOST_BYTES;
  if (!grows_for_speed(pool) || pool->looks < SPEED_LOOKS * LOOK_WEIGHT || least > most ||
      pool->speed_bytes > most - least || pool->refused_bytes > 0)
    return false;
  size_t left = most - pool->speed_bytes, want = pool->speed_bytes / SPEED_STEPS;
  want = want < bytes ? bytes : want < left ? want : left;
  pool->looks = 0;
  if (pool_grow_locked(pool, want, at_once) != cudaSuccess || pool->held_bytes < held_bytes)
    return false;
  pool->speed_bytes += pool->held_bytes - held_bytes;
  return true;
}

/* A period ends when blocks of so many times what the pool holds were taken. */
enum { PERIOD_TIMES = 64 };

/* Notes how much is live, now that a block of so many bytes is. */
static void live_note_locked(struct mam_pool *pool, size_t live_bytes, size_t bytes) {
  lock_held(&pool->lock);
  if (pool->taken_bytes / PERIOD_TIMES > pool->held_bytes) {
    pool->live_last_bytes = pool->live_most_bytes;
    pool->live_most_bytes = pool->taken_bytes = 0;
  }
  pool->taken_bytes += bytes;
  if (live_bytes > pool->live_most_bytes)
    pool->live_most_bytes = live_bytes;
}

/* A pool that cannot grow goes by what is live after so many looks. */
enum { LIVE_LOOKS = 256 };

/* Whether the pool has room for wedges: it never used more than half of what it holds, with what fronts keep.  They may
 * come to keep more than half though little is ever live.  So a pool that cannot grow, and makes look after look, has
 * room if no more than half was live lately. */
static bool has_room_locked(const struct mam_pool *pool) {
  lock_held(&pool->lock);
  size_t lately = pool->live_most_bytes > pool->live_last_bytes ? pool->live_most_bytes : pool->live_last_bytes;
  bool by_live = pool->held_bytes >= pool->limit_bytes && pool->looks >= LIVE_LOOKS * LOOK_WEIGHT;
  return (by_live ? lately : pool->peak_taken_bytes) <= pool->held_bytes / 2;
}

/* segment_take; not close either if there is room. */
static struct segment *hole_take_locked(struct mam_pool *pool, size_t bytes, bool close, bool *no_host_memory) {
  lock_held(&pool->lock);
  bool room = has_room_locked(pool);
  if (room)
    cuts_allow_locked(pool, bytes);
  return segment_take(&pool->segments, bytes, close && !room, no_host_memory);
}

/* ---- What waits for a stream ---- */

/* What was freed on the order's stream, NULL if it has none, or nothing was. */
static struct waiting_stream *order_stream_locked(struct mam_pool *pool, const struct pool_order *order) {
  lock_held(&pool->lock);
  return order->stream.id != 0 ? pool_stream_find_locked(pool, order->stream) : NULL;
}

/* What was freed on the order's stream, or else a hole.  Then large holes are spared again, whatever it was. */
static struct segment *fit_take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                       bool *no_host_memory) {
  lock_held(&pool->lock);
  bool close = order->effort == POOL_TAKE_CLOSE, no_node = false;
  struct waiting_stream *stream = order_stream_locked(pool, order);
  struct segment *segment = stream != NULL ? segment_retake(&pool->segments, stream, bytes, close, &no_node) : NULL;
  pool->stream_hit_count += segment != NULL;
  *no_host_memory = false;
  if (segment == NULL)
    segment = hole_take_locked(pool, bytes, close, no_host_memory);
  *no_host_memory =
      segment == NULL && (*no_host_memory || no_node); /* else room that is there would be tried for ever */
  pool_spare_locked(pool);
  return segment;
}

/* Whether there is enough room for the block in one piece, though it may have to be cut. */
static bool room_is_there_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes) {
  lock_held(&pool->lock);
  struct waiting_stream *stream = order_stream_locked(pool, order);
  return segment_largest_free(&pool->segments) >= bytes ||
         (stream != NULL && segment_may_retake(&pool->segments, stream, bytes));
}

/* ---- Tries, one after the other ---- */

/* What the fronts keep: what is taken and not live. */
static size_t kept_bytes_locked(const struct mam_pool *pool, size_t live_bytes) {
  lock_held(&pool->lock);
  size_t taken = pool->segments.bytes[SEGMENT_USED];
  return taken > live_bytes ? taken - live_bytes : 0;
}

/* Whether the fronts may have come to keep something since the last look.  Not if the program has only allocated since:
 * a look for each block of a loop that allocates many would ask for fences and find nothing. */
static bool look_may_help_locked(struct mam_pool *pool, size_t live_bytes) {
  lock_held(&pool->lock);
  size_t kept = kept_bytes_locked(pool, live_bytes);
  if (kept > pool->left_bytes)
    return true;
  pool->left_bytes = kept; /* what is freed from now on is more */
  return false;
}

/* Brings back what the fronts keep, until there is a hole of enough bytes.  The epoch is as in struct attempt. */
static void look_locked(struct mam_pool *pool, size_t enough, size_t live_bytes, uint64_t epoch) {
  lock_held(&pool->lock);
  bool passed = reuse_passed(pool->reuse) >= epoch;
  pool_collect_locked(pool, enough, !pool->config.elastic);
  bool complete = passed && pool->collected_epoch != 0;
  pool->left_bytes = complete ? kept_bytes_locked(pool, live_bytes) : 0;
}

/* Tries what costs little memory and no wait: a fence, and what the fronts keep.  False if both were tried before.
 * Before growth a look is made, too, if what the fronts keep could serve the block, or other threads may have freed
 * what they have not published. */
static bool look_around_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                               struct attempt *attempt) {
  lock_held(&pool->lock);
  size_t live_bytes = order->live_bytes > order->size ? order->live_bytes - order->size : 0; /* without the order's */
  if (!attempt->fenced) {
    attempt->fenced = true;
    pool_fence_locked(pool, bytes);
    return true;
  }
  bool may_serve = !order->live_exact || kept_bytes_locked(pool, live_bytes) >= bytes;
  bool growth = may_serve && !room_is_there_locked(pool, order, bytes);
  if (!attempt->looked && (look_may_help_locked(pool, live_bytes) || growth) &&
      pool_collection_may_help_locked(pool, attempt->epoch)) {
    attempt->looked = true;
    look_count_locked(pool, &pool->looks, LOOK_WEIGHT);
    if (!speed_grow_locked(pool, bytes, attempt->at_once)) {
      look_locked(pool, bytes, live_bytes, attempt->epoch);
      attempt->emptied = !pool->config.elastic;
    }
    return true;
  }
  return false;
}

/* Whether the front waits for the GPU: what a wait makes free for a small block may lie in slabs, which are the front's
 * to search. */
static bool front_waits(const struct mam_pool *pool, const struct pool_order *order) {
  return pool->config.front != NULL && order->size <= POOL_SMALL_MOST_BYTES;
}

/* Looks for room once more.  cudaSuccess: the caller may try again; else why there is no room.  A hole that would be
 * cut up comes before growth.  Growth waits for nothing, so it comes before a wait, unless the source has refused as
 * much before.  The waiting limit keeps small what growth can waste. */
static cudaError_t make_room_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                    struct attempt *attempt) {
  lock_held(&pool->lock);
  if (look_around_locked(pool, order, bytes, attempt))
    return cudaSuccess;
  if (room_is_there_locked(pool, order, bytes)) {
    cuts_allow_locked(pool, bytes);
    if (pool->config.elastic)
      look_count_locked(pool, &pool->vain_looks, 1);
    return cudaSuccess;
  }
  bool refused = pool->refused_bytes > 0 && bytes >= pool->refused_bytes;
  cudaError_t error = refused ? cudaErrorMemoryAllocation : grow_or_find_locked(pool, bytes, attempt->at_once);
  if (error != cudaErrorMemoryAllocation)
    return error;
  if (!attempt->at_once && !front_waits(pool, order) && attempt->own_waits < POOL_WAITS_MOST &&
      pool_wait_may_help_locked(pool, bytes) && !reuse_capturing(pool->reuse)) {
    attempt->looked = attempt->emptied = false;
    error = pool_await_gpu_locked(pool, bytes, &attempt->own_waits);
    if (error != cudaErrorMemoryAllocation)
      return error;
  }
  if (refused)
    error = grow_or_find_locked(pool, bytes, attempt->at_once);
  if (error != cudaErrorMemoryAllocation || pool->config.front == NULL || attempt->emptied)
    return error;
  pool_collect_locked(pool, bytes, true);
  attempt->emptied = true;
  return cudaSuccess;
}

/* ---- Holes that are spared ---- */

/* If a block would fit only into a hole that is spared for larger blocks, grows the pool.  If it cannot grow, the hole
 * is spared no longer, until fit_take_locked.  May leave the lock. */
static void spared_grow_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  while (segment_is_spared(&pool->segments, bytes) && pool->state == POOL_OPEN) {
    bool refused = pool->refused_bytes > 0 && bytes >= pool->refused_bytes;
    if (!refused && pool_grow_locked(pool, bytes, at_once) == cudaSuccess)
      continue;
    if (!at_once && pool->growing) { /* a trim for another process, say, which may be giving the hole's chunk back */
      (void)pool_await_change_locked(pool);
      continue;
    }
    if (!at_once && pool_give_one_locked(pool))
      continue;
    pool->segments.spared_bytes = 0;
  }
}

/* ---- Malloc ---- */

static struct segment *take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                   cudaError_t *error, bool *no_host_memory) {
  lock_held(&pool->lock);
  bool at_once = order->effort == POOL_TAKE_AT_ONCE;
  struct attempt attempt = {.epoch = reuse_epoch(pool->reuse), .at_once = at_once};
  if (bytes > pool->limit_bytes) { /* nothing that could be tried would help */
    *error = cudaErrorMemoryAllocation;
    return NULL;
  }
  while (true) {
    spared_grow_locked(pool, bytes, at_once);
    *error = pool_usable_locked(pool); /* the lock was left: it may have been closed */
    struct segment *segment = *error == cudaSuccess ? fit_take_locked(pool, order, bytes, no_host_memory) : NULL;
    if (segment != NULL || *error != cudaSuccess)
      return segment;
    *error = *no_host_memory ? cudaErrorMemoryAllocation : make_room_locked(pool, order, bytes, &attempt);
    if (*error != cudaSuccess)
      return NULL;
  }
}

static void peak_update_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (pool->segments.bytes[SEGMENT_USED] > pool->peak_taken_bytes)
    pool->peak_taken_bytes = pool->segments.bytes[SEGMENT_USED];
}

/* A segment becomes the program's.  From the unlock on any thread may free the block, by the address of an earlier
 * block at the same place.  So all fields of the segment are written here. */
static void hand_out_locked(struct mam_pool *pool, struct segment *segment, const struct pool_order *order,
                            struct pool_block *block) {
  lock_held(&pool->lock);
  *block = (struct pool_block){
      .segment = segment, .address = segment->base, .bytes = segment->bytes, .ticket = pool->ticket_next};
  pool->ticket_next += 2;
  segment->as.used.requested_bytes = order->size;
  segment->as.used.site = order->site;
  segment->as.used.tag = order->tag;
  /* relaxed: a free of this block takes the lock first */
  atomic_store_explicit(&segment->ticket, block->ticket, memory_order_relaxed);
  pool_class_count_locked(pool, segment->bytes, 1);
  pool->malloc_count++;
  pool->requested_bytes += order->size;
  pool->looks -= pool->looks > 0 && grows_for_speed(pool);
  live_note_locked(pool, order->live_bytes > 0 ? order->live_bytes : pool->segments.bytes[SEGMENT_USED],
                   segment->bytes);
  peak_update_locked(pool);
}

/* Memory for speed, for blocks of so many bytes: of holes, without a look, or else by growth beyond what the pool
 * needs, to half of its limit at most; only a pool that can give the memory back grows so. */
static void speed_up_locked(struct mam_pool *pool, size_t bytes, const struct pool_order *order) {
  lock_held(&pool->lock);
  size_t half = pool->limit_bytes / 2, growth = order->growth_bytes;
  if (pool->config.in_chunks && growth < pool->config.chunk_bytes)
    growth = pool->config.chunk_bytes;
  bool gives = pool->config.elastic || (pool->config.in_chunks && growth <= order->growth_most_bytes);
  if (segment_largest_free(&pool->segments) < bytes && gives && pool->refused_bytes == 0 && growth <= half &&
      pool->held_bytes <= half - growth)
    (void)pool_grow_locked(pool, growth, false);
  cuts_allow_locked(pool, order->growth_bytes);
}

/* Errors: as pool_malloc. */
static cudaError_t order_expect_locked(const struct mam_pool *pool, const struct pool_order *order) {
  lock_held(&pool->lock);
  cudaError_t error = pool_expect_locked(pool, order->default_id);
  return error == cudaSuccess ? pool_expect_generation_locked(pool, order->generation) : error;
}

/* What is free, with nothing spared.  Leaves the lock first. */
static struct segment *last_take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                        bool *no_host_memory) {
  lock_held(&pool->lock);
  pool_fence_locked(pool, bytes);
  if (order_expect_locked(pool, order) != cudaSuccess)
    return NULL;
  cuts_allow_locked(pool, bytes);
  pool->segments.spared_bytes = 0;
  return fit_take_locked(pool, order, bytes, no_host_memory);
}

/* By the order's effort, which may leave the lock.  *error: why, if there is none. */
static struct segment *effort_take_locked(struct mam_pool *pool, const struct pool_order *order, size_t bytes,
                                          cudaError_t *error, bool *no_host_memory) {
  lock_held(&pool->lock);
  *error = cudaErrorMemoryAllocation;
  if (bytes < order->size) /* rounded past the end of the numbers */
    return NULL;
  switch (order->effort) {
  case POOL_TAKE_ANY:
  case POOL_TAKE_AT_ONCE:
    return take_locked(pool, order, bytes, error, no_host_memory);
  case POOL_TAKE_LAST:
    return last_take_locked(pool, order, bytes, no_host_memory);
  case POOL_TAKE_GROWTH:
    speed_up_locked(pool, bytes, order);
    break;
  default:
    break;
  }
  return fit_take_locked(pool, order, bytes, no_host_memory);
}

cudaError_t pool_take(struct mam_pool *pool, const struct pool_order *order, struct pool_block *block) {
  bool contended = pthread_mutex_trylock(&pool->lock) != 0;
  if (contended)
    pool_lock(pool);
  cudaError_t error = order_expect_locked(pool, order);
  if (error == cudaSuccess && order->stream.id != 0 && pool->freed_since >= POOL_FENCE_EVERY) { /* by pool_give */
    pool_fence_locked(pool, 0);
    error = order_expect_locked(pool, order);
  }
  if (error != cudaSuccess) {
    pool_unlock(pool);
    return error;
  }
  bool any = order->effort == POOL_TAKE_ANY || order->effort == POOL_TAKE_AT_ONCE, no_host_memory = false;
  struct segment *segment =
      effort_take_locked(pool, order, round_up(order->size, pool->config.alignment), &error, &no_host_memory);
  if (segment == NULL && order->effort == POOL_TAKE_CLOSE && pool->held_bytes >= pool->limit_bytes)
    look_count_locked(pool, &pool->looks, LOOK_WEIGHT); /* the thread will look at what it keeps itself */
  if (segment == NULL) {
    block->used_bytes = pool->segments.bytes[SEGMENT_USED];
    block->slab_bytes = pool->span_count * POOL_SLAB_BYTES;
    block->waiting_bytes = pool->segments.bytes[SEGMENT_WAITING];
    block->room_bytes = pool_room_bytes_locked(pool);
    pool_unlock(pool);
    if (any && error == cudaErrorMemoryAllocation && !no_host_memory)
      return (cudaError_t)CUDA_ERROR_NOT_READY;
    return any && no_host_memory ? error_set(error, "the host has no memory for a segment") : error;
  }
  hand_out_locked(pool, segment, order, block);
  block->contended = contended;
  pool_unlock(pool);
  return cudaSuccess;
}

cudaError_t pool_refuse(struct mam_pool *pool, uint64_t generation, size_t size) {
  MAM_PoolInfo info;
  char said[sizeof pool->source_said];
  pool_lock(pool);
  cudaError_t error = pool_expect_generation_locked(pool, generation);
  if (error != cudaSuccess) {
    pool_unlock(pool);
    return error;
  }
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

cudaError_t pool_malloc(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site, void **address) {
  struct pool_order order = {.default_id = default_id, .size = size, .site = site, .effort = POOL_TAKE_ANY};
  struct pool_block block;
  cudaError_t error = pool_take(pool, &order, &block);
  if (error == cudaSuccess)
    *address = (void *)block.address;
  return error == (cudaError_t)CUDA_ERROR_NOT_READY ? pool_refuse(pool, POOL_ANY_GENERATION, size) : error;
}

/* ---- For the fronts ---- */

/* Grows the pool for a slab.  A hole that is spared does not count as room. */
static cudaError_t span_grow_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  const size_t bytes = 2 * POOL_SLAB_BYTES; /* wherever they begin, there is one in them */
  bool spares = pool->segments.spared_bytes > 0;
  return spares ? pool_grow_locked(pool, bytes, false) : grow_or_find_locked(pool, bytes, false);
}

static struct segment *span_take_locked(struct mam_pool *pool, bool *no_host_memory) {
  lock_held(&pool->lock);
  return segment_take_aligned(&pool->segments, POOL_SLAB_BYTES, POOL_SLAB_BYTES, no_host_memory);
}

cudaError_t pool_slab_take(struct mam_pool *pool, uintptr_t *base) {
  struct segment *segment = NULL;
  bool no_host_memory;
  pool_lock(pool);
  cudaError_t error = pool_usable_locked(pool);
  while (error == cudaSuccess && (segment = span_take_locked(pool, &no_host_memory)) == NULL)
    error = no_host_memory ? cudaErrorMemoryAllocation : span_grow_locked(pool);
  if (error == cudaErrorMemoryAllocation && pool->segments.spared_bytes > 0) { /* a hole that is spared, then */
    pool->segments.spared_bytes = 0;
    segment = span_take_locked(pool, &no_host_memory);
    pool_spare_locked(pool);
  }
  if (segment != NULL) {
    segment->as.used.requested_bytes = 0; /* it is no block: its ticket is 0, as that of each free segment */
    segment->as.used.site = NULL;
    pool->span_count++;
    peak_update_locked(pool);
    *base = segment->base;
  }
  pool_unlock(pool);
  return segment != NULL ? cudaSuccess : error;
}
