/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a pool calls of its fronts (struct pool_front): their beginning and end, their numbers, and fork.
 */
#include "front/front_inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "front/front_check.h"

/* Under --enable-checks, verifies what is frozen, by front_check_frozen or front_check_locked. */
static void fronts_verify(struct mam_pool *pool, const char *(*check)(struct mam_pool *pool, bool still)) {
#ifdef MAM_CHECKS
  const char *fault = check(pool, false);
  if (fault != NULL) {
    (void)fprintf(stderr, "mam: fronts of pool %p: %s\n", (void *)pool, fault);
    abort();
  }
#else
  (void)pool, (void)check;
#endif
}

static void fronts_check_and_thaw_all(struct mam_pool *pool) {
  fronts_verify(pool, front_check_frozen);
  fronts_thaw_all(pool);
}

/* ---- The beginning and the end of a pool ---- */

static bool fronts_open(struct mam_pool *pool) {
  if (pool->fronts != NULL) /* of the pool that had the struct before */
    return true;
  struct fronts *fronts = aligned_alloc(_Alignof(struct fronts), sizeof *fronts);
  if (fronts == NULL)
    return false;
  memset(fronts, 0, sizeof *fronts);
  (void)pthread_mutex_init(&fronts->lock, NULL);
  for (unsigned i = 0; i < FRONT_DEPOT_LOCKS; i++)
    (void)pthread_mutex_init(&fronts->depot_locks[i], NULL);
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    depot_init(&fronts->depots[i], &fronts->depot_locks[i % FRONT_DEPOT_LOCKS]);
  pool->fronts = fronts;
  return true;
}

static void fronts_close(struct mam_pool *pool) {
  struct fronts *fronts = pool->fronts;
  struct front *front;
  fronts_freeze(pool);
  while ((front = fronts->first) != NULL) {
    fronts->first = front->next_of_pool;
    front_detach(front);
    bool orphan = front->orphan;
    biased_other_leave(&front->lock); /* from here on, its thread may free it */
    if (orphan)
      front_free_memory(front);
  }
  memset(&fronts->gone, 0, sizeof fronts->gone);
  memset(fronts->gone_live, 0, sizeof fronts->gone_live);
  fronts->waited_in_vain = false;
  fronts->live = (struct balance_sum){0};
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    slab_forget(&fronts->depots[i]);
  fronts_thaw(pool);
}

bool front_retire(struct mam_pool *pool, uint64_t default_id, bool only_if_empty) {
  if (!only_if_empty)
    return pool_retire(pool, default_id, false);
  fronts_freeze_all(pool);
  bool retired = pool_retire(pool, default_id, true);
  if (retired) /* a front that went on could hand out a block of it */
    for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
      front->default_id = FRONT_NO_DEFAULT_ID;
  fronts_check_and_thaw_all(pool);
  return retired;
}

/* ---- Numbers ---- */

static void front_add_freed_blocks(struct front *front, struct pool_front_sum *sum) {
  uint64_t passed = reuse_passed(front->reuse);
  for (const struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    for (struct freed_block *block = shelf->oldest; block != shelf->next; block = ring_after(shelf, block)) {
      const struct segment *segment = block->segment;
      sum->large_count++;
      sum->large_bytes += segment->bytes;
      sum->requested_bytes -= segment->as.used.requested_bytes; /* the pool counts it until it is given back */
      sum->large_waiting_bytes += block->epoch > passed ? segment->bytes : 0;
      sum->large_waiting_count += block->epoch > passed;
    }
}

static void front_add_resting(const struct front *front, struct pool_front_sum *sum) {
  uint64_t passed = reuse_passed(front->reuse);
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    const struct magazine *magazine = &front->magazines[i];
    size_t blocks = batch_real(magazine->filling) ? magazine->filling->count : 0;
    for (const struct batch *batch = magazine->resting; batch != NULL; batch = batch->next)
      blocks += batch->epoch > passed ? batch->count : 0;
    for (const struct lane *lane = front->lanes; lane < front->lanes + LANES; lane++)
      blocks += lane_blocks(lane, i);
    sum->small_waiting_bytes += blocks * slab_class_bytes(i);
  }
}

static size_t front_host_bytes(struct front *front) {
  size_t bytes = sizeof *front;
  for (const struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    bytes += ring_is_none(shelf) ? 0 : (size_t)(shelf->end - shelf->ring) * sizeof *shelf->ring;
  return bytes;
}

static void fronts_sum(struct mam_pool *pool, struct pool_front_sum *sum) {
  *sum = pool->fronts->gone;
  sum->in_use = fronts_in_use(pool->fronts);
  sum->peak_bytes = (size_t)fronts_peak_bytes(pool->fronts);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
    front_add_numbers(front, sum);
    front_add_freed_blocks(front, sum);
    front_add_resting(front, sum);
    sum->metadata_bytes += front_host_bytes(front);
    sum->thread_count++;
  }
  /* A large block that was freed was handed out again, or is still the front's, or went to the pool, which counts it.
   */
  sum->frees += sum->hits[FRONT_HIT_SIZE] + sum->hits[FRONT_HIT_TAG] + sum->stream_large_hits + sum->large_count;
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    struct slab_sum slabs = slab_count(pool, &pool->fronts->depots[i], i);
    sum->slab_bytes += slabs.slab_bytes;
    sum->small_waiting_bytes += slabs.waiting_bytes;
    sum->metadata_bytes += slabs.host_bytes;
  }
}

static void fronts_reset_peak(struct mam_pool *pool) {
  struct balance_sum *live = &pool->fronts->live;
  atomic_store_explicit(&live->most, 0, memory_order_relaxed);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    balance_publish(&front->balance, live);
  atomic_store_explicit(&live->most, atomic_load_explicit(&live->bytes, memory_order_relaxed), memory_order_relaxed);
}

/* ---- Fork ---- */

static void fronts_after_fork(struct mam_pool *pool, bool in_child) {
  lock_held(&pool->lock);
  if (in_child)
    biased_register();
  if (in_child)
    for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
      front->orphan = !front_is_mine(front);
      front->allocates = front->allocates && !front->orphan; /* its thread will not end the call */
      if (front->orphan) /* its thread may have said that it is inside, and not yet stood back */
        biased_leave(&front->lock);
    }
  fronts_verify(pool, front_check_locked);
  fronts_thaw_all(pool);
}

/* ---- The beginning of a record ---- */

static void slab_list_live(const struct slab *slab, struct record_live *one, struct pool_live *live) {
  for (uint32_t i = 0; i < slab->block_count; i++) {
    /* relaxed: the fronts are frozen */
    uint8_t code = atomic_load_explicit(slab_live(slab, i), memory_order_relaxed);
    if (code == 0)
      continue;
    one->address = slab->base + i * slab_class_bytes(slab->class);
    one->size = slab_requested_bytes(slab_live(slab, i), slab->class, code);
    pool_live_add(live, one);
  }
}

static void fronts_begin_record(struct mam_pool *pool, struct pool_live *live) {
  struct record_live one = {.context = pool_record_context(pool), .device = (uint32_t)pool->device};
  const struct slab *slab;
  for (unsigned i = 0; i < SLAB_CLASSES && live != NULL; i++)
    TAILQ_FOREACH(slab, &pool->fronts->depots[i].slabs, link)
  slab_list_live(slab, &one, live);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    biased_other_hinder(&front->lock);
}

const struct pool_front front_operations = {.open = fronts_open,
                                            .collect = fronts_collect,
                                            .close = fronts_close,
                                            .freeze = fronts_freeze_all,
                                            .thaw = fronts_check_and_thaw_all,
                                            .sum = fronts_sum,
                                            .reset_peak = fronts_reset_peak,
                                            .after_fork = fronts_after_fork,
                                            .begin_record = fronts_begin_record};
