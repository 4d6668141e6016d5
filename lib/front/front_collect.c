/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Collecting: what fronts hold goes back to their pool.
 */
#include "front/front_inside.h"

#include <limits.h>

/* Batches that a collection puts back into their slabs where growing is the other way: a fraction of a millisecond. */
enum { RECLAIM_MOST = 256 };

static void shelves_empty(struct front *front, uint64_t passed) {
  struct segment *segments[FRONT_GIVEN_MOST];
  uint64_t epoch = 0, lane;
  unsigned count;
  for (struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    while ((count = shelf_clear(shelf, passed, segments, &epoch, &lane, FRONT_GIVEN_MOST)) > 0)
      pool_give(front->pool, front->generation, segments, count, epoch, front_stream(front, lane));
}

void front_empty(struct front *front, uint64_t passed) {
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    if (passed < FRONT_EVERY_EPOCH)
      magazine_empty_passed(&front->magazines[i], front->pool, &front->pool->fronts->depots[i], passed);
    else
      magazine_empty_all(&front->magazines[i], front->pool, &front->pool->fronts->depots[i], front_stamp(front));
  lanes_empty(front);
  shelves_empty(front, passed);
}

/* Fronts whose threads did not survive a fork are emptied like any other, and then freed. */
static void orphans_free(struct fronts *fronts) {
  for (struct front *front = fronts->first, *next; front != NULL; front = next) {
    next = front->next_of_pool;
    if (front->orphan) {
      front_unlink(fronts, front);
      biased_other_leave(&front->lock);
      front_free_memory(front);
    }
  }
}

/* All at once: then nothing is on its way from one thread to another. */
static void fronts_empty_and_hold(struct mam_pool *pool) {
  fronts_freeze(pool);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    front_empty(front, FRONT_EVERY_EPOCH);
  orphans_free(pool->fronts);
}

/* One after the other, so that a thread is kept out for as long as its own front takes, not for all of them.  Under
 * the fenced rule, only of what has passed: the rest helps no thread yet, and to move thousands of blocks through the
 * pool's lock beside a running kernel took a millisecond. */
static void fronts_empty_in_turn(struct mam_pool *pool) {
  uint64_t passed = pool->config.reuse == MAM_REUSE_FENCED ? reuse_passed(pool->reuse) : FRONT_EVERY_EPOCH;
  pthread_mutex_lock(&pool->fronts->lock);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
    bool own = front == front_mine; /* no other thread wants it: each holds the fronts' lock */
    if (own)
      biased_enter(&front->lock);
    else
      front_take(front);
    front_empty(front, passed);
    if (own)
      biased_leave(&front->lock);
    else
      biased_other_leave(&front->lock);
  }
  pthread_mutex_unlock(&pool->fronts->lock);
}

/* Whether no batch was left. */
static bool depots_reclaim(struct mam_pool *pool, unsigned most) {
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    (void)slab_reclaim(pool, &pool->fronts->depots[i], &most);
  return most > 0;
}

void fronts_hold(struct mam_pool *pool) {
  fronts_empty_and_hold(pool);
  (void)reuse_reach(pool->reuse, reuse_epoch(pool->reuse)); /* what was just freed may have passed already */
  (void)depots_reclaim(pool, UINT_MAX);
}

bool fronts_collect(struct mam_pool *pool, bool all) {
  if (!all) {
    fronts_empty_in_turn(pool);
    return depots_reclaim(pool, RECLAIM_MOST);
  }
  fronts_empty_and_hold(pool);
  fronts_thaw(pool);
  (void)reuse_reach(pool->reuse, reuse_epoch(pool->reuse)); /* as above */
  return depots_reclaim(pool, UINT_MAX);
}
