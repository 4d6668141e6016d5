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

struct lane {
  CUstream handle; /* by which the thread named the stream last */
  bool quick;      /* the handle may be asked about: the stream is of the pool's context and was not captured */
  struct context_stream stream;
  uint64_t mark; /* LANE_NONE: the lane has no stream */
  struct batch *loaded[SLAB_CLASSES], *second[SLAB_CLASSES];
};

static inline bool lane_has_room(const struct batch *batch) { return batch != NULL && batch->count < SLAB_BATCH; }
static inline bool lane_has_block(const struct batch *batch) { return batch != NULL && batch->count > 0; }

static inline void lane_swap(struct lane *lane, unsigned class) {
  struct batch *loaded = lane->loaded[class];
  lane->loaded[class] = lane->second[class];
  lane->second[class] = loaded;
}

/* A block that was freed on the stream; 0 if there is none. */
static inline uintptr_t lane_pop(struct lane *lane, struct magazine *magazine, unsigned class, size_t size) {
  if (!lane_has_block(lane->loaded[class])) {
    if (!lane_has_block(lane->second[class]))
      return 0;
    lane_swap(lane, class);
  }
  magazine->loaded_blocks++; /* as if it came to the magazine and left at once */
  return magazine_pop_of(magazine, lane->loaded[class], class, size);
}

/* Whether a free on the stream has room. */
static inline bool lane_opens(struct lane *lane, unsigned class) {
  if (lane_has_room(lane->loaded[class]))
    return true;
  if (lane_has_room(lane->second[class]))
    lane_swap(lane, class);
  return lane_has_room(lane->loaded[class]);
}

/* How many blocks of a class are in the lane. */
static inline size_t lane_blocks(const struct lane *lane, unsigned class) {
  const struct batch *loaded = lane->loaded[class], *second = lane->second[class];
  return (loaded != NULL ? loaded->count : 0) + (second != NULL ? second->count : 0);
}

/* Where there is room; the block is claimed. */
static inline void lane_push(struct lane *lane, struct magazine *magazine, unsigned class, struct slab_block block) {
  struct batch *to = lane->loaded[class];
  magazine->filled_blocks++;
  to->blocks[to->count++] = block;
}

/* Takes a batch, empty or of the stream, as the one to allocate from and free to.  Returns the one that there is no
 * place for any more, or NULL. */
static inline struct batch *lane_load(struct lane *lane, unsigned class, struct batch *batch) {
  struct batch *surplus = lane->second[class];
  lane->second[class] = lane->loaded[class];
  lane->loaded[class] = batch;
  return surplus;
}

#endif
