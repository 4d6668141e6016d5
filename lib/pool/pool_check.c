/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every invariant of a pool, as segment.h and pool.h state them, verified.  Walks everything; tests call it after each
 * operation, and a build with --enable-checks whenever a pool's lock is released.
 */
#include "pool/pool_inside.h"
#include "pool/segment_inside.h"

/* ---- Segments ---- */

static void check_neighbours(const struct segment *before, const struct segment *segment, const char **fault) {
  fault_unless(fault, segment->bytes > 0, "a segment is empty");
  if (before == NULL) {
    fault_unless(fault, segment->heads_chunk, "the first segment heads no chunk");
    return;
  }
  fault_unless(fault, segment->base >= before->base + before->bytes, "two segments overlap");
  if (segment->heads_chunk)
    return;
  bool same = segment->state == before->state;
  fault_unless(fault, segment->base == before->base + before->bytes, "there is a gap inside a chunk");
  fault_unless(fault, !same || segment->state != SEGMENT_FREE, "two neighbours are free");
  fault_unless(fault, !same || segment->state != SEGMENT_UNMAPPED, "two neighbours are unmapped");
  if (before->state == SEGMENT_WAITING)
    fault_unless(fault, !segment_waits_with(segment, before->as.waiting.stream, before->as.waiting.epoch),
                 "two neighbours wait for the same");
}

/* The pointer tree, the sums, and how many segments wait in the set's list. */
static size_t check_pointer_tree(struct segment_set *set, const char **fault) {
  size_t bytes[SEGMENT_STATES] = {0}, count[SEGMENT_STATES] = {0}, listed = 0;
  const struct segment *before = NULL;
  for (struct segment *segment = segment_first(set); segment != NULL; segment = segment_next(segment)) {
    check_neighbours(before, segment, fault);
    bytes[segment->state] += segment->bytes;
    count[segment->state]++;
    listed += segment->state == SEGMENT_WAITING && segment->as.waiting.stream == NULL;
    before = segment;
  }
  for (int state = 0; state < SEGMENT_STATES; state++)
    fault_unless(fault, bytes[state] == set->bytes[state] && count[state] == set->count[state],
                 "the sums do not agree with the segments");
  return listed;
}

static void check_size_tree(struct segment_set *set, const char **fault) {
  size_t count = 0;
  const struct segment *before = NULL;
  struct segment *segment;
  for (segment = size_first(&set->by_size); segment != NULL; segment = size_next(&set->by_size, segment), count++) {
    fault_unless(fault, segment->state == SEGMENT_FREE, "the size tree holds a segment that is not free");
    fault_unless(fault, segment_find(set, segment->base) == segment,
                 "the size tree holds a segment that the pointer tree has not");
    fault_unless(fault, before == NULL || compare_sizes(before, segment) < 0, "the size tree is out of order");
    before = segment;
  }
  fault_unless(fault, count == set->count[SEGMENT_FREE], "the size tree lacks a free segment");
}

static void check_lists(struct segment_set *set, size_t listed, const char **fault) {
  size_t waiting = 0, unmapped = 0;
  uint64_t epoch = 0;
  const struct segment *segment;
  TAILQ_FOREACH(segment, &set->waiting, as.waiting.link) {
    fault_unless(fault, segment->state == SEGMENT_WAITING && segment->as.waiting.stream == NULL,
                 "the waiting list holds a segment that does not wait in it");
    fault_unless(fault, segment->as.waiting.epoch >= epoch, "the waiting list is out of order");
    epoch = segment->as.waiting.epoch;
    waiting++;
  }
  LIST_FOREACH(segment, &set->unmapped, as.unmapped) {
    fault_unless(fault, segment->state == SEGMENT_UNMAPPED, "the unmapped list holds a segment that is not unmapped");
    unmapped++;
  }
  fault_unless(fault, waiting == listed, "the waiting list lacks a waiting segment");
  fault_unless(fault, unmapped == set->count[SEGMENT_UNMAPPED], "the unmapped list lacks an unmapped segment");
}

const char *segment_set_check(struct segment_set *set) {
  const char *fault = NULL;
  size_t listed = check_pointer_tree(set, &fault);
  check_size_tree(set, &fault);
  check_lists(set, listed, &fault);
  return fault;
}

/* ---- The pool ---- */

static void check_chunks(const struct mam_pool *pool, const char **fault) {
  const struct pool_chunk *chunk;
  const size_t *bytes = pool->segments.bytes;
  size_t held = 0, usable = 0, segments = 0;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    held += chunk->bytes;
    usable += chunk->usable_bytes;
  }
  for (int state = 0; state < SEGMENT_STATES; state++)
    segments += bytes[state];
  fault_unless(fault, held - bytes[SEGMENT_UNMAPPED] - bytes[SEGMENT_MOVING] == pool->held_bytes,
               "held_bytes is not the sum of the chunks' mapped parts");
  fault_unless(fault, pool->held_bytes <= pool->limit_bytes, "the pool holds more than its limit");
  fault_unless(fault, segments == usable, "the segments do not add up to the chunks");
}

/* The pieces of a reserved chunk tile each run of segments that have memory. */
static void check_run(const struct pool_chunk *chunk, uintptr_t base, uintptr_t end, const char **fault) {
  for (size_t at = (base - chunk->base) / SOURCE_GRANULARITY_BYTES, left = 0; base < end;
       at++, base += SOURCE_GRANULARITY_BYTES) {
    if (!fault_unless(fault, (left == 0) == (chunk->pieces[at] != 0), "the pieces do not tile the mapped memory"))
      return;
    left = (left == 0 ? chunk->pieces[at] : left) - 1;
    fault_unless(fault, left == 0 || base + SOURCE_GRANULARITY_BYTES < end, "a piece goes on where nothing is mapped");
  }
  fault_unless(fault, base == end, "something is mapped in part of a granule");
}

static void check_pieces(struct mam_pool *pool, const char **fault) {
  const struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  if (chunk == NULL || !chunk->reserved)
    return;
  uintptr_t base = chunk->base;
  for (struct segment *segment = segment_first(&pool->segments); segment != NULL; segment = segment_next(segment))
    if (segment->state == SEGMENT_UNMAPPED || segment->state == SEGMENT_MOVING) {
      check_run(chunk, base, segment->base, fault);
      base = segment->base + segment->bytes;
    }
  check_run(chunk, base, chunk->base + chunk->bytes, fault);
}

static void check_segments(struct mam_pool *pool, const char **fault) {
  size_t requested = 0;
  for (struct segment *segment = segment_first(&pool->segments); segment != NULL; segment = segment_next(segment)) {
    bool used = segment->state == SEGMENT_USED;
    fault_unless(fault, !used || (segment->base | segment->bytes) % pool->config.alignment == 0,
                 "a used segment is not aligned");
    fault_unless(fault, !used || segment->as.used.requested_bytes <= segment->bytes,
                 "a used segment is smaller than asked for");
    fault_unless(fault, segment->state != SEGMENT_WAITING || segment->as.waiting.epoch <= reuse_epoch(pool->reuse),
                 "a segment waits for an epoch to come");
    fault_unless(fault, segment->state != SEGMENT_MOVING || pool->growing, "a segment is moving by itself");
    requested += used ? segment->as.used.requested_bytes : 0;
  }
  fault_unless(fault, pool->config.front != NULL || requested == pool->requested_bytes, /* fronts count some of it */
               "requested_bytes is not the sum over the live blocks");
}

const char *pool_check_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  if (pool->state != POOL_OPEN)
    return NULL;
  const char *fault = segment_set_check(&pool->segments);
  check_chunks(pool, &fault);
  if (fault == NULL) /* else the segments may not be the chunks' */
    check_pieces(pool, &fault);
  check_segments(pool, &fault);
  fault_unless(&fault, pool->segments.bytes[SEGMENT_USED] <= pool->peak_taken_bytes, "more is used than ever was");
  fault_unless(&fault, pool->growing || pool_reserved_locked(pool) <= pool->peak_reserved_bytes,
               "more is held than ever was");
  return fault;
}
