/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lanes, the slow way: finding a stream's lane, naming one, and what it exchanges with the depots.
 */
#include "front/front_inside.h"

static const struct lane_batches no_batches;

/* Sends a batch that has left a lane to its depot.  The epoch is the present one, also in a pool by the immediate rule:
 * that is for plain frees. */
static void lane_batch_rest(struct mam_pool *pool, unsigned class, struct batch *batch, struct context_stream stream) {
  if (batch != NULL)
    batch->epoch = reuse_epoch(pool->reuse);
  slab_rest(pool, &pool->fronts->depots[class], batch, stream);
}

static void lane_batches_rest(struct mam_pool *pool, const struct lane_batches *batches, struct context_stream stream) {
  for (unsigned i = 0; i < 2 * SLAB_CLASSES; i++)
    lane_batch_rest(pool, i / 2, batches->of_class[i / 2][i % 2], stream);
}

void lanes_empty(struct front *front) {
  for (struct lane *lane = front->lanes; lane < front->lanes + LANES; lane++)
    if (lane->mark != LANE_NONE) {
      lane_batches_rest(front->pool, &lane->batches, lane->stream);
      lane->batches = no_batches;
    }
}

/* ---- Naming ---- */

static struct lane *lane_find(struct front *front, struct context_stream stream) {
  for (struct lane *lane = front->lanes; lane < front->lanes + LANES; lane++)
    if (lane->mark != LANE_NONE && context_stream_same(lane->stream, stream))
      return lane;
  return NULL;
}

/* Makes the lane another stream's.  If the pool has ended, so have the lane's blocks. */
static void lane_name(struct front *front, struct mam_pool *pool, struct lane *lane, struct context_stream stream) {
  struct lane_batches batches = no_batches;
  struct context_stream before = lane->stream;
  bool enters = pool_enter(pool, POOL_ANY_ID) == cudaSuccess;
  biased_enter(&front->lock);
  if (enters && front->pool == pool) {
    batches = lane->batches;
    lane->batches = no_batches;
  }
  lane->stream = stream;
  lane->mark = ++front->lane_marks;
  lane->handle = NULL;
  lane->quick = false;
  biased_leave(&front->lock);
  lane_batches_rest(pool, &batches, before);
  if (enters)
    pool_exit(pool);
}

struct lane *lane_get(struct front *front, struct mam_pool *pool, const struct front_stream *stream) {
  struct lane *lane = lane_find(front, stream->name);
  if (lane == NULL) {
    lane = &front->lanes[front->lane_next++ % LANES];
    lane_name(front, pool, lane, stream->name);
  }
  bool quick = (lane->quick && lane->handle == stream->handle) || context_has_stream(&front->context, stream->name);
  for (struct lane *other = front->lanes; other < front->lanes + LANES; other++)
    other->quick = other->quick && other->handle != stream->handle;
  lane->handle = stream->handle;
  lane->quick = quick;
  front->last_lane = lane;
  return lane;
}

/* ---- The depot ---- */

static bool lane_give(struct front *front, struct mam_pool *pool, struct lane *lane, unsigned class,
                      struct batch *batch) {
  if (batch == NULL)
    return false;
  biased_enter(&front->lock);
  struct batch *surplus = lane_load(lane, class, batch);
  biased_leave(&front->lock);
  lane_batch_rest(pool, class, surplus, lane->stream);
  return true;
}

bool lane_refill(struct front *front, struct mam_pool *pool, struct lane *lane, unsigned class) {
  struct depot *depot = &pool->fronts->depots[class];
  return lane != NULL && lane_give(front, pool, lane, class, slab_retake(depot, lane->stream));
}

bool lane_make_room(struct front *front, struct mam_pool *pool, struct lane *lane, unsigned class) {
  struct depot *depot = &pool->fronts->depots[class];
  slab_fence(pool, depot);
  return lane_give(front, pool, lane, class, slab_shell_take(depot));
}
