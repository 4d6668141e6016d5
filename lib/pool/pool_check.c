/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every invariant of a pool, as pool.h and segment.h state them, verified.  Walks everything; tests call it after each
 * operation, and a build with --enable-checks whenever a pool's lock is released.
 */
#include "pool/pool_inside.h"

static const char *check_chunks(const struct mam_pool *pool) {
  const struct pool_chunk *chunk;
  size_t held = 0, usable = 0, segments = 0;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    held += chunk->bytes;
    usable += chunk->usable_bytes;
  }
  for (int state = 0; state < SEGMENT_STATES; state++)
    segments += pool->segments.bytes[state];
  if (held - pool->segments.bytes[SEGMENT_UNMAPPED] - pool->segments.bytes[SEGMENT_MOVING] != pool->held_bytes)
    return "held_bytes is not the sum of the chunks' mapped parts";
  if (pool->held_bytes > pool->limit_bytes)
    return "the pool holds more than its limit";
  return segments == usable ? NULL : "the segments do not add up to the chunks";
}

/* The pieces of a reserved chunk tile each run of segments that have memory. */
static const char *check_run(const struct pool_chunk *chunk, uintptr_t base, uintptr_t end) {
  for (size_t at = (base - chunk->base) / SOURCE_GRANULARITY_BYTES, left = 0; base < end;
       at++, base += SOURCE_GRANULARITY_BYTES) {
    if ((left == 0) != (chunk->pieces[at] != 0))
      return "the pieces do not tile the mapped memory";
    left = (left == 0 ? chunk->pieces[at] : left) - 1;
    if (left > 0 && base + SOURCE_GRANULARITY_BYTES >= end)
      return "a piece goes on where nothing is mapped";
  }
  return base == end ? NULL : "something is mapped in part of a granule";
}

static const char *check_pieces(struct mam_pool *pool) {
  const struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  const char *fault = NULL;
  if (chunk == NULL || chunk->pieces == NULL)
    return NULL;
  uintptr_t base = chunk->base;
  struct segment *segment = segment_first(&pool->segments);
  for (; segment != NULL && fault == NULL; segment = segment_next(segment)) {
    if (segment->state != SEGMENT_UNMAPPED && segment->state != SEGMENT_MOVING)
      continue;
    fault = check_run(chunk, base, segment->base);
    base = segment->base + segment->bytes;
  }
  return fault != NULL ? fault : check_run(chunk, base, chunk->base + chunk->bytes);
}

static const char *check_segment(const struct mam_pool *pool, const struct segment *segment) {
  if (segment->state == SEGMENT_USED && (segment->base | segment->bytes) % pool->config.alignment != 0)
    return "a used segment is not aligned";
  if (segment->state == SEGMENT_USED && segment->as.used.requested_bytes > segment->bytes)
    return "a used segment is smaller than asked for";
  if (segment->state == SEGMENT_WAITING && segment->as.waiting.epoch > reuse_epoch(pool->reuse))
    return "a segment waits for an epoch to come";
  if (segment->state == SEGMENT_MOVING && !pool->growing)
    return "a segment is moving by itself";
  return NULL;
}

static const char *check_segments(struct mam_pool *pool) {
  size_t requested = 0;
  for (struct segment *segment = segment_first(&pool->segments); segment != NULL; segment = segment_next(segment)) {
    const char *fault = check_segment(pool, segment);
    if (fault != NULL)
      return fault;
    if (segment->state == SEGMENT_USED)
      requested += segment->as.used.requested_bytes;
  }
  if (pool->config.front != NULL) /* which counts some of it */
    return NULL;
  return requested == pool->requested_bytes ? NULL : "requested_bytes is not the sum over the live blocks";
}

const char *pool_check_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (pool->state != POOL_OPEN)
    return NULL;
  const char *fault = segment_set_check(&pool->segments);
  if (fault == NULL)
    fault = check_chunks(pool);
  if (fault == NULL)
    fault = check_pieces(pool);
  if (fault == NULL)
    fault = check_segments(pool);
  if (fault == NULL && pool->segments.bytes[SEGMENT_USED] > pool->peak_used_bytes)
    fault = "more is used than ever was";
  if (fault == NULL && !pool->growing && pool_reserved_locked(pool) > pool->peak_reserved_bytes)
    fault = "more is held than ever was";
  return fault;
}
