/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fronts of a pool as a list: holding them still, adding them up, and leaving the list.
 */
#include <stdlib.h>

#include "front/front_inside.h"

__thread __attribute__((tls_model("initial-exec"))) struct front *front_mine;
__thread __attribute__((tls_model("initial-exec"))) struct front *front_at_hand;

/* ---- Holding still ---- */

void front_take(struct front *front) {
  if (biased_other_want(&front->lock))
    biased_barrier();
  biased_other_await(&front->lock);
}

void fronts_freeze(struct mam_pool *pool) {
  struct fronts *fronts = pool->fronts;
  struct front *front;
  bool barrier = false;
  pthread_mutex_lock(&fronts->lock);
  for (front = fronts->first; front != NULL; front = front->next_of_pool)
    barrier = biased_other_want(&front->lock) || barrier;
  if (barrier)
    biased_barrier();
  for (front = fronts->first; front != NULL; front = front->next_of_pool)
    biased_other_await(&front->lock);
}

void fronts_thaw(struct mam_pool *pool) {
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    biased_other_leave(&front->lock);
  pthread_mutex_unlock(&pool->fronts->lock);
}

void fronts_freeze_all(struct mam_pool *pool) {
  fronts_freeze(pool);
  for (unsigned i = 0; i < FRONT_DEPOT_LOCKS; i++)
    pthread_mutex_lock(&pool->fronts->depot_locks[i]);
}

void fronts_thaw_all(struct mam_pool *pool) {
  for (unsigned i = 0; i < FRONT_DEPOT_LOCKS; i++)
    pthread_mutex_unlock(&pool->fronts->depot_locks[i]);
  fronts_thaw(pool);
}

/* ---- Adding up ---- */

int64_t fronts_live_bytes(const struct fronts *fronts) {
  int64_t bytes = atomic_load_explicit(&fronts->live.bytes, memory_order_relaxed);
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool)
    bytes += front->balance.bytes - front->balance.published;
  return bytes;
}

bool fronts_in_use(const struct fronts *fronts) {
  bool allocates = false;
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool)
    allocates |= front->allocates;
  return allocates || fronts_live_bytes(fronts) != 0;
}

int64_t fronts_peak_bytes(struct fronts *fronts) {
  int64_t bytes = atomic_load_explicit(&fronts->live.bytes, memory_order_relaxed);
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool)
    bytes += front->balance.most - front->balance.published;
  return balance_note(&fronts->live, bytes); /* noted, so that no later answer is less */
}

void front_add_numbers(const struct front *front, struct pool_front_sum *sum) {
  const struct front_numbers *numbers = &front->numbers;
  sum->requested_bytes += (size_t)numbers->requested_bytes;
  sum->hits[FRONT_HIT_TAG] += numbers->tag_hits;
  sum->hits[FRONT_HIT_STREAM] += numbers->stream_large_hits + numbers->stream_small_hits;
  sum->hits[FRONT_HIT_MAGAZINE] -= numbers->stream_small_hits; /* of those that the magazines count */
  sum->stream_large_hits += numbers->stream_large_hits;
  sum->hits[FRONT_HIT_SIZE] +=
      (front->ticket_next - front->ticket_first) / 2 - numbers->tag_hits - numbers->stream_large_hits;
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    const struct magazine *magazine = &front->magazines[i];
    uint64_t mallocs = magazine_mallocs(magazine), frees = magazine_frees(magazine);
    sum->hits[FRONT_HIT_MAGAZINE] += mallocs;
    sum->frees += frees;
    sum->live_small_count += mallocs - frees;
    sum->live_small_bytes += (mallocs - frees) * slab_class_bytes(i);
    uint64_t left_over = (uint64_t)magazine->codes - (mallocs - frees); /* in steps, see slab_code */
    sum->requested_bytes += (mallocs - frees) * slab_class_bytes(i) - (left_over << slab_code_shift(i));
  }
}

/* ---- Leaving ---- */

void front_unlink(struct fronts *fronts, struct front *front) {
  struct front **link = &fronts->first;
  while (*link != front)
    link = &(*link)->next_of_pool;
  *link = front->next_of_pool;
  balance_publish(&front->balance, &fronts->live);
  front_add_numbers(front, &fronts->gone);
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    fronts->gone_live[i] += magazine_live(&front->magazines[i]);
}

void front_free_memory(struct front *front) {
  for (struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    if (!ring_is_none(shelf))
      free(shelf->ring);
  free(front->memory);
}
