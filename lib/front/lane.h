/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lanes: what a front knows of a stream on which its thread allocates or frees.  A block that was freed on a stream may
 * go out again on that stream at once, and to everybody when its epoch has passed.
 *
 *   small block   a batch of the lane; of its class a lane has two, and a third one goes to the depot, which still
 *                 knows the stream
 *   large block   on a shelf or in a bin, among the others, with the lane's mark
 *
 * A thread that frees on one stream more than a lane keeps, or on more streams than a front has lanes, is served by the
 * depots and by the pool.  A lane that is taken for another stream sends its batches to the depots; its mark is never
 * given again, so that the large blocks with it wait for their epoch.
 *
 * A lane is found by the stream's handle, which alone says nothing: each time, before the thread enters its front, the
 * driver is asked whether it still means that stream (context_stream_still).
 *
 * The owner alone names a lane, and does so inside; it may read the names when it is not.  The batches are the
 * front's, as those of a magazine.
 */
#ifndef MAM_LIB_LANE_H
#define MAM_LIB_LANE_H

#include "cuda/context.h"
#include "front/magazine.h"

/* Streams that a thread may use in turn: PyTorch has 32 beside the default one, of which a thread uses a few. */
enum { LANES = 16 };

/* No lane's mark. */
enum { LANE_NONE = 0 };

/* Two of each class; NULL: none. */
struct lane_batches {
  struct batch *of_class[SLAB_CLASSES][2];
};

struct lane {
  CUstream handle; /* by which the thread named the stream last */
  bool quick;      /* the handle may be asked about: the stream is of the pool's context and was not captured */
  struct context_stream stream;
  uint64_t mark; /* LANE_NONE: the lane has no stream */
  struct lane_batches batches;
};

/* Of the two batches of a class, a block that is freed comes to the first one, if that has room.  If the answer is
 * full, so are both. */
static inline struct batch *lane_filling(const struct lane *lane, unsigned class) {
  struct batch *first = lane->batches.of_class[class][0], *second = lane->batches.of_class[class][1];
  if (first != NULL && first->count < SLAB_BATCH)
    return first;
  return second != NULL ? second : &magazine_no_room;
}

/* An allocation takes from the second one, if that has blocks; so the last block in is the first one out.  If the
 * answer is empty, so are both. */
static inline struct batch *lane_loaded(const struct lane *lane, unsigned class) {
  struct batch *first = lane->batches.of_class[class][0], *second = lane->batches.of_class[class][1];
  if (second != NULL && second->count > 0)
    return second;
  return first != NULL ? first : &magazine_nothing;
}

/* How many blocks of a class are in the lane. */
static inline size_t lane_blocks(const struct lane *lane, unsigned class) {
  const struct batch *first = lane->batches.of_class[class][0], *second = lane->batches.of_class[class][1];
  return (first != NULL ? first->count : 0) + (second != NULL ? second->count : 0);
}

/* Takes a batch of the stream's where there is no block, to allocate from: it comes first.  Or takes an empty one where
 * there is no room, to free to: it comes second, and the second one first.  Returns the batch that there is no place
 * for any more, or NULL. */
static inline struct batch *lane_load(struct lane *lane, unsigned class, struct batch *batch) {
  struct batch **batches = lane->batches.of_class[class], *surplus = NULL;
  if (batch->count > 0) {
    surplus = batches[0];
    batches[0] = batch;
    return surplus;
  }
  if (batches[1] != NULL) {
    surplus = batches[0];
    batches[0] = batches[1];
  }
  batches[1] = batch;
  return surplus;
}

#endif
