/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A free that the quick path did not do, and frees by a rule of their own.
 */
#include "base/error.h"
#include "front/front_inside.h"
#include "front/front_record.h"
#include "pool/chunk_map.h"

/* The pool of a block that the thread has no front for yet, or none that comes first. */
static struct mam_pool *pool_of(uintptr_t address, struct slab **slab) {
  *slab = page_map_find(address);
  /* acquire: as in free_small */
  struct mam_pool *pool = *slab != NULL ? atomic_load_explicit(&(*slab)->pool, memory_order_acquire) : NULL;
  if (pool == NULL)
    *slab = NULL;
  return pool != NULL ? pool : chunk_map_find(address);
}

struct mam_pool *front_pool_of(uintptr_t address) {
  struct slab *slab;
  return pool_of(address, &slab);
}

static cudaError_t slab_free_refused(const struct slab *slab, uintptr_t address) {
  return pool_refuse_free(address, slab_index(slab, address) != UINT32_MAX);
}

/* The pool of a block, its slab, and the thread's front for that pool.  Otherwise free_without follows. */
static cudaError_t free_find(uintptr_t address, struct mam_pool **pool, struct slab **slab, struct front **front,
                             struct pool_emptied *emptied) {
  *emptied = (struct pool_emptied){0};
  *pool = pool_of(address, slab);
  return *pool != NULL ? front_get(*pool, POOL_ANY_ID, front) : cudaErrorInvalidValue;
}

/* A free of a block of no pool, or of one that the thread got no front for or could not enter.  Without memory for a
 * front, no other thread is alone in that pool (front_make). */
static cudaError_t free_without(struct mam_pool *pool, uintptr_t address, cudaError_t error) {
  if (error == cudaErrorMemoryAllocation && pool_enter(pool, POOL_ANY_ID) == cudaSuccess) {
    error = pool_free_from(pool, pool->generation, address); /* constant: it cannot end meanwhile */
    pool_exit(pool);
    return error;
  }
  return error == cudaErrorInitializationError ? error : pool_refuse_free(address, false); /* it has ended */
}

static cudaError_t small_free_slow(struct front *front, struct mam_pool *pool, struct slab *slab, uintptr_t address,
                                   enum front_freed *freed) {
  cudaError_t error = pool_enter(pool, POOL_ANY_ID);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  if (!front_attached(front, pool)) { /* the pool ended, and the block with it */
    pool_exit(pool);
    return pool_refuse_free(address, false);
  }
  do /* again if others collected what was made room with */
    if (!magazine_make_room(front, pool, slab->class))
      error = error_set(cudaErrorMemoryAllocation, "the host has no memory to free %p", (void *)address);
    else
      *freed = front_free_small(front, slab, address);
  while (error == cudaSuccess && *freed == FRONT_FREED_NO_ROOM);
  if (error == cudaSuccess && *freed == FRONT_FREED_NOT)
    error = slab_free_refused(slab, address);
  pool_exit(pool);
  return error;
}

static cudaError_t large_free_slow(struct front *front, struct mam_pool *pool, uintptr_t address,
                                   enum front_freed *freed) {
  cudaError_t error = pool_free_from(pool, front_generation(front, pool), address);
  biased_enter(&front->lock);
  if (front->pool != NULL && error == cudaSuccess)
    *freed = front_count_free(front);
  biased_leave(&front->lock);
  return error;
}

/* Reports a lazy pool's emptying, once; or that it is to be watched. */
static void report_zero(struct front *front, struct pool_emptied *emptied) {
  struct mam_pool *pool = front->zero_pool;
  if (pool_to_be_watched(pool)) { /* of several threads: this one's frees may be of what others allocate */
    *emptied = (struct pool_emptied){.pool = pool, .watch = true};
    return;
  }
  if (pool_enter(pool, POOL_ANY_ID) != cudaSuccess)
    return;
  fronts_freeze(pool);
  if (fronts_live(pool->fronts) == 0)
    pool_report_emptied(pool, front->zero_generation, emptied);
  fronts_thaw(pool);
  pool_exit(pool);
}

void front_zero(struct pool_emptied *emptied) {
  *emptied = (struct pool_emptied){0};
  report_zero(front_mine, emptied);
}

static cudaError_t free_by_front(uintptr_t address, struct pool_emptied *emptied) {
  struct slab *slab;
  struct front *front;
  struct mam_pool *pool;
  enum front_freed freed = FRONT_FREED_NOT;
  cudaError_t error = free_find(address, &pool, &slab, &front, emptied);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  front_hide(); /* free_end records */
  freed = slab != NULL ? front_free_small(front, slab, address) : front_free_large(front, address);
  if (freed > FRONT_FREED_ZERO)
    error = slab != NULL ? small_free_slow(front, pool, slab, address, &freed)
                         : large_free_slow(front, pool, address, &freed);
  if (freed == FRONT_FREED_ZERO)
    report_zero(front, emptied);
  return error;
}

/* After a free that began at the moment before; stream NULL: on none. */
static cudaError_t free_end(cudaError_t error, uint64_t before, uintptr_t address, const struct front_stream *stream) {
  front_call_end();
  front_show();
  front_heed_if_hindered(front_mine); /* the thread's other fronts when it uses them */
  if (error == cudaSuccess && record_on())
    record_freed(before, address, stream != NULL, stream != NULL ? (uintptr_t)stream->handle : 0);
  return error;
}

static uint64_t free_begin(void) { return record_on() ? record_before() : 0; }

cudaError_t front_free(uintptr_t address, struct pool_emptied *emptied) {
  uint64_t before = free_begin();
  return free_end(free_by_front(address, emptied), before, address, NULL);
}

/* ---- By a rule of its own ---- */

/* A block of a slab goes to the depot by itself. */
static cudaError_t small_free_alone(struct front *front, struct mam_pool *pool, struct slab *slab, uintptr_t address,
                                    bool at_once) {
  uint32_t index = slab_index(slab, address);
  cudaError_t error = pool_enter(pool, POOL_ANY_ID);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  struct depot *depot = &pool->fronts->depots[slab->class];
  struct batch *batch = slab_shell_take(depot);
  if (batch == NULL)
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory to free %p", (void *)address);
  biased_enter(&front->lock);
  /* acquire: as in free_small */
  bool ours = front->pool == pool && atomic_load_explicit(&slab->pool, memory_order_acquire) == pool;
  bool claimed = error == cudaSuccess && ours && index != UINT32_MAX &&
                 magazine_claim(&front->magazines[slab->class], front->alone, slab_live(slab, index));
  if (claimed)
    front->magazines[slab->class].filled_blocks++;
  biased_leave(&front->lock);
  if (claimed) {
    batch->blocks[batch->count++] = (struct slab_block){address, slab_live(slab, index)};
    batch->epoch = at_once ? 0 : reuse_epoch(pool->reuse);
    if (at_once) /* its slab may go back to the pool, whose memory is not unmapped before this epoch has passed */
      pool_freed_unfenced(pool);
    slab_rest(pool, depot, batch, at_once);
  } else if (error == cudaSuccess) {
    slab_shell_give(depot, batch);
    error = slab_free_refused(slab, address);
  }
  pool_exit(pool);
  return error;
}

static enum front_freed freed_elsewhere(struct front *front) {
  biased_enter(&front->lock);
  enum front_freed freed = front->pool != NULL ? front_count_free(front) : FRONT_FREED;
  biased_leave(&front->lock);
  return freed;
}

static cudaError_t free_by_rule(uintptr_t address, MAM_Reuse reuse, struct pool_emptied *emptied) {
  struct slab *slab;
  struct front *front;
  struct mam_pool *pool;
  cudaError_t error = free_find(address, &pool, &slab, &front, emptied);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  if (slab != NULL)
    error = small_free_alone(front, pool, slab, address, reuse == MAM_REUSE_IMMEDIATE);
  else
    error = pool_free_reuse(pool, front_generation(front, pool), address, reuse, no_stream);
  if (error == cudaSuccess && freed_elsewhere(front) == FRONT_FREED_ZERO)
    report_zero(front, emptied);
  return error;
}

cudaError_t front_free_reuse(uintptr_t address, MAM_Reuse reuse, struct pool_emptied *emptied) {
  uint64_t before = free_begin();
  return free_end(free_by_rule(address, reuse, emptied), before, address, NULL);
}

/* ---- On a stream ---- */

static cudaError_t small_free_on(struct front *front, struct mam_pool *pool, struct slab *slab, uintptr_t address,
                                 struct lane *lane, enum front_freed *freed) {
  cudaError_t error = cudaSuccess;
  while ((*freed = front_free_small_on(front, slab, address, lane)) == FRONT_FREED_NO_ROOM && error == cudaSuccess)
    if (!lane_make_room(front, pool, lane, slab->class))
      error = error_set(cudaErrorMemoryAllocation, "the host has no memory to free %p", (void *)address);
  return error == cudaSuccess && *freed == FRONT_FREED_NOT ? slab_free_refused(slab, address) : error;
}

/* What the front does not keep goes to the pool's list of the stream. */
static cudaError_t large_free_on(struct front *front, struct mam_pool *pool, uintptr_t address, struct lane *lane,
                                 enum front_freed *freed) {
  *freed = front_free_large_on(front, address, lane);
  if (*freed != FRONT_FREED_NOT)
    return cudaSuccess;
  cudaError_t error = pool_free_reuse(pool, front_generation(front, pool), address, MAM_REUSE_STREAM, lane->stream);
  if (error == cudaSuccess)
    *freed = freed_elsewhere(front);
  return error;
}

static cudaError_t free_on(uintptr_t address, const struct front_stream *stream, struct pool_emptied *emptied) {
  struct slab *slab;
  struct front *front;
  struct mam_pool *pool;
  enum front_freed freed;
  cudaError_t error = free_find(address, &pool, &slab, &front, emptied);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  front_hide(); /* free_end records */
  error = pool_enter(pool, POOL_ANY_ID);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  struct lane *lane = lane_get(front, pool, stream);
  error = pool_accompany(pool, stream->name);
  if (error == cudaSuccess)
    error = slab != NULL ? small_free_on(front, pool, slab, address, lane, &freed)
                         : large_free_on(front, pool, address, lane, &freed);
  pool_exit(pool);
  if (error == cudaSuccess && freed == FRONT_FREED_ZERO)
    report_zero(front, emptied);
  return error;
}

cudaError_t front_free_on(uintptr_t address, const struct front_stream *stream, struct pool_emptied *emptied) {
  uint64_t before = free_begin();
  return free_end(free_on(address, stream, emptied), before, address, stream);
}
