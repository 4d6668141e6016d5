/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A free that the quick path did not do, and frees by a rule of their own.
 */
#include "base/error.h"
#include "front/front_quick.h"
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

/* A free on its way. */
struct freeing {
  uintptr_t address;
  struct mam_pool *pool; /* that has the address; NULL: none */
  uint64_t generation;   /* that the pool must be of, 0: of any */
  struct slab *slab;     /* NULL: a large block */
  struct front *front;   /* the thread's for the pool */
  enum front_freed freed;
};

static cudaError_t no_memory(const struct freeing *one) {
  return error_set(cudaErrorMemoryAllocation, "the host has no memory to free %p", (void *)one->address);
}

/* A free by a thread that the host has no memory for a front for.  Without one no other thread is alone in that pool
 * (front_make).  A large block goes to the pool; a small one stays live, as only a front has a place for it. */
static cudaError_t free_frontless(struct freeing *one) {
  uint64_t generation = one->generation != 0 ? one->generation : one->pool->generation; /* the pool is entered */
  size_t bytes = 0;
  if (one->slab == NULL) {
    cudaError_t error = pool_free_from(one->pool, generation, one->address, NULL, &bytes);
    atomic_fetch_sub_explicit(&one->pool->fronts->live.bytes, (int64_t)bytes, memory_order_relaxed);
    return error;
  }
  uint32_t index = slab_index(one->slab, one->address);
  /* acquire: as in free_small; relaxed: nothing goes by it but what the caller is told */
  bool ours =
      generation == one->pool->generation && atomic_load_explicit(&one->slab->pool, memory_order_acquire) == one->pool;
  if (ours && index != UINT32_MAX && atomic_load_explicit(slab_live(one->slab, index), memory_order_relaxed) != 0)
    return no_memory(one);
  return pool_refuse_free(one->address, index != UINT32_MAX);
}

/* A free of a block of no pool, or of one that the thread got no front for or could not enter. */
static cudaError_t free_without(struct freeing *one, cudaError_t error) {
  if (error == cudaErrorMemoryAllocation && pool_enter(one->pool, POOL_ANY_ID) == cudaSuccess) {
    error = free_frontless(one);
    pool_exit(one->pool);
    return error;
  }
  return error == cudaErrorInitializationError ? error : pool_refuse_free(one->address, false); /* it has ended */
}

static cudaError_t slab_freed(const struct freeing *one) {
  bool freed_before = slab_index(one->slab, one->address) != UINT32_MAX;
  return one->freed == FRONT_FREED_NOT ? pool_refuse_free(one->address, freed_before) : cudaSuccess;
}

/* A small block that the magazine may have no room for, or the lane: again if others collected what was made room with.
 */
static cudaError_t small_free(struct freeing *one, struct lane *lane) {
  unsigned class = one->slab->class;
  while ((one->freed = front_free_small(one->front, one->slab, one->address, lane)) == FRONT_FREED_NO_ROOM) {
    bool room = lane != NULL ? lane_make_room(one->front, one->pool, lane, class)
                             : magazine_make_room(one->front, one->pool, class);
    if (!room)
      return no_memory(one);
  }
  return slab_freed(one);
}

/* A small block goes to the depot by itself. */
static cudaError_t small_free_alone(struct freeing *one, bool at_once) {
  struct front *front = one->front;
  struct slab *slab = one->slab;
  struct magazine *magazine = &front->magazines[slab->class];
  struct depot *depot = &one->pool->fronts->depots[slab->class];
  struct batch *batch = slab_shell_take(depot);
  uint32_t index = slab_index(slab, one->address);
  if (batch == NULL)
    return no_memory(one);
  biased_enter(&front->lock);
  /* acquire: as in free_small */
  bool ours = front->pool == one->pool && atomic_load_explicit(&slab->pool, memory_order_acquire) == one->pool;
  if (ours && index != UINT32_MAX && magazine_claim(magazine, front->alone, slab_live(slab, index))) {
    magazine->filled_blocks++;
    batch->blocks[batch->count++] = (struct slab_block){one->address, slab_live(slab, index)};
    one->freed = freed_count(front, slab_class_bytes(slab->class));
  }
  biased_leave(&front->lock);
  batch->epoch = at_once ? 0 : reuse_epoch(one->pool->reuse);
  if (at_once && one->freed != FRONT_FREED_NOT) /* its slab may go back to the pool, whose memory is not unmapped before
                                                   this epoch has passed */
    pool_freed_unfenced(one->pool);
  slab_rest(one->pool, depot, batch, no_stream);
  return slab_freed(one);
}

/* A large block that the front does not keep; rule NULL: by the pool's own. */
static cudaError_t large_free(struct freeing *one, const struct pool_rule *rule) {
  struct front *front = one->front;
  biased_enter(&front->lock);
  bool attached = front->pool == one->pool; /* else the pool has ended, and the block with it */
  biased_leave(&front->lock);
  size_t bytes = 0;
  cudaError_t error = attached ? pool_free_from(one->pool, front->generation, one->address, rule, &bytes)
                               : pool_refuse_free(one->address, false);
  biased_enter(&front->lock);
  if (bytes > 0)
    one->freed = front->pool != NULL ? freed_count(front, bytes) : FRONT_FREED;
  biased_leave(&front->lock);
  return error;
}

/* What the front does not keep goes to the pool's list of the stream. */
static cudaError_t free_on(struct freeing *one, const struct front_stream *stream) {
  struct lane *lane = lane_get(one->front, one->pool, stream);
  cudaError_t error = pool_accompany(one->pool, stream->name);
  if (error != cudaSuccess)
    return error;
  if (one->slab != NULL)
    return small_free(one, lane);
  one->freed = front_free_large(one->front, one->address, lane);
  const struct pool_rule rule = {.reuse = MAM_REUSE_STREAM, .stream = lane->stream};
  return one->freed > FRONT_FREED_ZERO ? large_free(one, &rule) : cudaSuccess;
}

/* On a stream, by a rule, or, if both are NULL, plainly. */
static cudaError_t free_by_front(struct freeing *one, const struct pool_rule *rule, const struct front_stream *stream) {
  if (rule == NULL && stream == NULL) {
    one->freed = one->slab != NULL ? front_free_small(one->front, one->slab, one->address, NULL)
                                   : front_free_large(one->front, one->address, NULL);
    if (one->freed <= FRONT_FREED_ZERO)
      return cudaSuccess;
  }
  if (one->slab == NULL && stream == NULL)
    return large_free(one, rule);
  cudaError_t error = pool_enter(one->pool, POOL_ANY_ID);
  if (error != cudaSuccess)
    return free_without(one, error);
  if (front_pool(one->front) != one->pool) /* the pool ended, and the block with it */
    error = pool_refuse_free(one->address, false);
  else if (stream != NULL)
    error = free_on(one, stream);
  else
    error = rule != NULL ? small_free_alone(one, rule->reuse == MAM_REUSE_IMMEDIATE) : small_free(one, NULL);
  pool_exit(one->pool);
  return error;
}

/* Reports a lazy pool's emptying, once; or that it is to be watched. */
static void report_zero(struct front *front, struct pool_emptied *emptied) {
  struct mam_pool *pool = front_pool(front);
  if (pool == NULL) /* it has ended */
    return;
  if (pool_to_be_watched(pool)) { /* of several threads: this one's frees may be of what others allocate */
    *emptied = (struct pool_emptied){.pool = pool, .watch = true};
    return;
  }
  if (pool_enter(pool, POOL_ANY_ID) != cudaSuccess)
    return;
  fronts_freeze(pool);
  if (!fronts_in_use(pool->fronts))
    pool_report_emptied(pool, front->generation, emptied);
  fronts_thaw(pool);
  pool_exit(pool);
}

void front_zero(struct pool_emptied *emptied) {
  *emptied = (struct pool_emptied){0};
  report_zero(front_mine, emptied);
}

/* pool NULL: of whichever pool has the address. */
static cudaError_t free_of(uintptr_t address, struct mam_pool *pool, uint64_t generation, const struct pool_rule *rule,
                           const struct front_stream *stream, struct pool_emptied *emptied) {
  uint64_t before = record_on() ? record_before() : 0;
  struct freeing one = {.address = address, .generation = generation, .freed = FRONT_FREED_NOT};
  *emptied = (struct pool_emptied){0};
  one.pool = pool_of(address, &one.slab);
  if (pool != NULL && pool != one.pool)
    one.pool = NULL;
  cudaError_t error = one.pool != NULL ? front_get(one.pool, POOL_ANY_ID, &one.front) : cudaErrorInvalidValue;
  if (error == cudaSuccess && generation != 0 && generation != one.front->generation)
    error = cudaErrorInvalidValue;
  if (error == cudaSuccess) {
    front_hide(); /* the end of this records */
    error = free_by_front(&one, rule, stream);
  } else {
    error = free_without(&one, error);
  }
  if (error == cudaSuccess && one.freed == FRONT_FREED_ZERO)
    report_zero(one.front, emptied);
  front_call_end();
  front_show();
  front_heed_if_hindered(front_mine); /* the thread's other fronts when it uses them */
  if (error == cudaSuccess && record_on())
    record_freed(before, address, stream != NULL, stream != NULL ? (uintptr_t)stream->handle : 0);
  return error;
}

cudaError_t front_free(uintptr_t address, struct pool_emptied *emptied) {
  return free_of(address, NULL, 0, NULL, NULL, emptied);
}

cudaError_t front_free_of(struct mam_pool *pool, uint64_t generation, uintptr_t address, struct pool_emptied *emptied) {
  return free_of(address, pool, generation, NULL, NULL, emptied);
}

cudaError_t front_free_reuse(uintptr_t address, MAM_Reuse reuse, struct pool_emptied *emptied) {
  return free_of(address, NULL, 0, &(struct pool_rule){.reuse = reuse}, NULL, emptied);
}

cudaError_t front_free_on(uintptr_t address, const struct front_stream *stream, struct pool_emptied *emptied) {
  return free_of(address, NULL, 0, NULL, stream, emptied);
}
