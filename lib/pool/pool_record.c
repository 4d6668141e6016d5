/* SPDX-License-Identifier: BSD-2-Clause */
/* What pools hold at the moment in which a record begins. */
#include "pool/pool_inside.h"

void pool_live_add(struct pool_live *live, const struct record_live *one) {
  if (live->count == live->room) {
    size_t room = live->room == 0 ? 1024 : 2 * live->room;
    struct record_live *larger = realloc(live->all, room * sizeof *larger);
    if (larger == NULL) {
      live->lost++;
      return;
    }
    live->all = larger;
    live->room = room;
  }
  live->all[live->count++] = *one;
}

static void segments_list_locked(struct mam_pool *pool, struct pool_live *live) {
  lock_held(&pool->lock);
  struct record_live one = {.context = pool_record_context(pool), .device = (uint32_t)pool->device};
  one.size = pool->held_bytes;
  if (one.size > 0)
    pool_live_add(live, &one);
  for (struct segment *segment = segment_first(&pool->segments); segment != NULL; segment = segment_next(segment)) {
    /* relaxed: the fronts are frozen */
    if (segment->state != SEGMENT_USED || atomic_load_explicit(&segment->ticket, memory_order_relaxed) % 2 == 0)
      continue;
    one.address = segment->base;
    one.size = segment->as.used.requested_bytes;
    one.site = segment->as.used.site;
    one.tag = segment->as.used.tag;
    pool_live_add(live, &one);
  }
}

void pools_list_live(struct pool_live *live) {
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    const struct pool_front *front = pool->frozen_for_fork;
    bool open = pool->state == POOL_OPEN;
    if (open)
      segments_list_locked(pool, live);
    if (front != NULL)
      front->begin_record(pool, open ? live : NULL);
  }
}
