/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Small blocks, the slow way: a magazine that has nothing to give, or no room, asks for a fence or turns to the depot.
 */
#include "front/front_inside.h"

/* A class of blocks of at most so many bytes gets its first slab at once if a slab is at most this part of the pool:
 * then a slab for a single block is no loss. */
enum { AT_ONCE_MOST_BYTES = 4096, SLAB_SHARE = 512 };

/* Another class gets its first slab when so many of its blocks are live as segments. */
enum { SLAB_CROWD = SLAB_BATCH };

/* How many segments, live or kept by a front, a slab of the class could have served. */
static size_t class_live_segments(const struct mam_pool *pool, unsigned class) {
  size_t count = 0, first = class > 0 ? slab_class_bytes(class - 1) / SLAB_UNIT_BYTES : 0;
  for (size_t i = first; i < slab_class_bytes(class) / SLAB_UNIT_BYTES; i++)
    count += atomic_load_explicit(&pool->live_by_size[i], memory_order_relaxed); /* relaxed: a hint */
  return count;
}

/* Whether the class may be served from slabs. */
static bool class_has_slabs(const struct front *front, const struct mam_pool *pool, unsigned class) {
  const struct depot *depot = &pool->fronts->depots[class];
  if (front->alignment != POOL_ALIGNMENT_BYTES || front->no_slabs)
    return false;
  /* relaxed, both: hints that need not be exact */
  if (atomic_load_explicit(&depot->slab_count, memory_order_relaxed) > 0)
    return true;
  size_t limit = atomic_load_explicit(&pool->limit_hint, memory_order_relaxed);
  if (slab_class_bytes(class) <= AT_ONCE_MOST_BYTES && limit / SLAB_SHARE >= SLAB_BYTES)
    return true;
  return class_live_segments(pool, class) >= SLAB_CROWD;
}

/* The epoch that the magazine waits for, 0 if for none.  full: if no more may rest in it. */
static uint64_t magazine_waits_for(struct front *front, struct magazine *magazine, unsigned class, bool full) {
  biased_enter(&front->lock);
  unsigned least = full ? SLAB_BATCH : 1;
  if (magazine->resting_count == 0 && batch_real(magazine->filling) && magazine->filling->count >= least)
    magazine_rest(magazine, front_stamp(front));
  bool asks = magazine->resting != NULL && (!full || magazine->resting_count >= resting_most(class));
  uint64_t epoch = asks ? magazine->resting->epoch : 0;
  biased_leave(&front->lock);
  return epoch;
}

/* Makes what the thread freed itself ready again, if the GPU is done with it. */
static bool magazine_turn(struct front *front, unsigned class, bool full) {
  struct magazine *magazine = &front->magazines[class];
  uint64_t epoch = magazine_waits_for(front, magazine, class, full);
  return epoch != 0 && reuse_reach(front->reuse, epoch);
}

/* Gets blocks into the magazine of a class, which has slabs.  The caller is a user of the pool. */
static bool magazine_refill(struct front *front, struct mam_pool *pool, unsigned class) {
  struct depot *depot = &pool->fronts->depots[class];
  struct batch *batch = slab_refill(pool, depot, class);
  if (batch == NULL)
    return magazine_turn(front, class, false);
  biased_enter(&front->lock);
  struct batch *surplus = magazine_load(&front->magazines[class], batch);
  biased_leave(&front->lock);
  slab_rest(pool, depot, surplus, no_stream);
  return true;
}

bool magazine_make_room(struct front *front, struct mam_pool *pool, unsigned class) {
  struct magazine *magazine = &front->magazines[class];
  struct depot *depot = &pool->fronts->depots[class];
  struct batch *shell = slab_shell_take(depot), *rested = NULL;
  biased_enter(&front->lock);
  if (batch_real(magazine->filling) && magazine->filling->count == SLAB_BATCH) {
    magazine_rest(magazine, front_stamp(front));
    if (magazine->resting_count > resting_most(class))
      rested = resting_pull(magazine);
  }
  if (magazine->shells == NULL) { /* else one for each free that is refused would gather */
    shell_keep(magazine, shell);
    shell = NULL;
  }
  bool room = magazine->filling->count < SLAB_BATCH || magazine_open(magazine);
  biased_leave(&front->lock);
  if (rested != NULL)
    slab_fence(pool, depot);
  slab_rest(pool, depot, shell, no_stream);
  slab_rest(pool, depot, rested, no_stream);
  return room;
}

/* From what a fence has made ready, or from the depot, again if another thread collected the refill; *address stays 0
 * if there is none.  What is loaded is empty before a refill, as no other thread brings anything. */
static void small_malloc(struct front *front, struct mam_pool *pool, unsigned class,
                         const struct front_request *request, uintptr_t *address) {
  do {
    biased_enter(&front->lock);
    *address = front_pop_small(front, class, request->size, request->lane);
    biased_leave(&front->lock);
  } while (*address == 0 && (lane_refill(front, pool, request->lane, class) || magazine_refill(front, pool, class)));
}

cudaError_t small_serve(struct front *front, const struct front_request *request, struct mam_pool *pool,
                        uintptr_t *address) {
  unsigned class = slab_class(request->size);
  (void)magazine_turn(front, class, true);
  if (!class_has_slabs(front, pool, class))
    return cudaSuccess;
  cudaError_t error = pool_enter(pool, request->default_id);
  if (error != cudaSuccess)
    return error;
  if (front_pool(front) == pool)
    small_malloc(front, pool, class, request, address);
  else
    error = cudaErrorInvalidResourceHandle;
  pool_exit(pool);
  return error;
}

uintptr_t small_serve_held(struct front *front, const struct front_request *request, struct mam_pool *pool,
                           struct slab_missing *missing) {
  unsigned class = slab_class(request->size);
  struct depot *depot = &pool->fronts->depots[class];
  *missing = (struct slab_missing){0, 0};
  if (front->pool != pool || !class_has_slabs(front, pool, class))
    return 0;
  bool by_lane = request->lane != NULL && lane_blocks(request->lane, class) == 0;
  struct batch *batch = by_lane ? slab_retake(depot, request->lane->stream) : NULL, *surplus = NULL;
  if (batch != NULL)
    surplus = lane_load(request->lane, class, batch);
  else if ((batch = slab_refill_at_hand(pool, depot, class, missing)) != NULL)
    surplus = magazine_load(&front->magazines[class], batch);
  slab_rest(pool, depot, surplus, no_stream);
  return batch != NULL ? front_pop_small(front, class, request->size, request->lane) : 0;
}
