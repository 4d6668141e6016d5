/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdlib.h>
#include <string.h>

#include "pool/segment_inside.h"

/* ---- Host memory for segments: arrays of nodes, spare ones in a list ---- */

struct segment_nodes {
  struct segment_nodes *next;
  struct segment segments[];
};

/* A new array has a sixteenth of the nodes that there are, so that spare nodes stay few in comparison. */
enum { NODES_SHARE = 16 };

/* An array has at least so many nodes, so that a small pool needs few arrays. */
enum { NODES_LEAST = 64 };

/* It has at most so many, because calloc clears it while the caller holds the pool's lock. */
enum { NODES_MOST = 512 };

bool segment_nodes_add(struct segment_set *set) {
  size_t count = set->nodes_bytes / sizeof(struct segment) / NODES_SHARE;
  count = count < NODES_LEAST ? NODES_LEAST : count > NODES_MOST ? NODES_MOST : count;
  size_t bytes = sizeof(struct segment_nodes) + count * sizeof(struct segment);
  struct segment_nodes *nodes = calloc(1, bytes); /* a ticket of 0: no block */
  if (nodes == NULL)
    return false;
  nodes->next = set->nodes;
  set->nodes = nodes;
  set->nodes_bytes += bytes;
  for (size_t i = count; i-- > 0;) /* they are taken in the order of addresses */
    SLIST_INSERT_HEAD(&set->spares, &nodes->segments[i], as.spare);
  return true;
}

void segment_set_init(struct segment_set *set) {
  memset(set, 0, sizeof *set); /* an empty tree is NULL, and so is an empty list without an end */
  set->cuts_bytes = SIZE_MAX;
  TAILQ_INIT(&set->waiting);
}

void segment_set_clear(struct segment_set *set) {
  for (struct segment_nodes *nodes = set->nodes, *next; nodes != NULL; nodes = next) {
    next = nodes->next;
    free(nodes);
  }
  segment_set_init(set);
}

/* ---- Free segments ---- */

/* size_resize, with the sums. */
static void free_resize(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  set->bytes[SEGMENT_FREE] += bytes - segment->bytes;
  size_resize(&set->by_size, segment, base, bytes);
}

void segment_become_free(struct segment_set *set, struct segment *segment) {
  struct segment *before = neighbour_before(segment), *after = neighbour_after(segment);
  bool merge_before = before != NULL && before->state == SEGMENT_FREE;
  bool merge_after = after != NULL && after->state == SEGMENT_FREE;
  if (merge_before) {
    size_t bytes = before->bytes + segment->bytes + (merge_after ? after->bytes : 0);
    if (merge_after)
      segment_remove(set, after);
    segment_absorb(set, segment);
    free_resize(set, before, before->base, bytes);
  } else if (merge_after) {
    uintptr_t base = segment->base;
    size_t bytes = segment->bytes + after->bytes;
    after->heads_chunk = segment->heads_chunk;
    segment_absorb(set, segment);
    free_resize(set, after, base, bytes);
  } else {
    segment->state = SEGMENT_FREE;
    count_add(set, SEGMENT_FREE, segment->bytes);
    size_insert(&set->by_size, segment);
  }
}

void segment_remove(struct segment_set *set, struct segment *segment) {
  size_remove(&set->by_size, segment);
  count_remove(set, SEGMENT_FREE, segment->bytes);
  segment_absorb(set, segment);
}

size_t segment_largest_free(struct segment_set *set) {
  const struct segment *largest = size_last(&set->by_size);
  return largest != NULL ? largest->bytes : 0;
}

void segment_free(struct segment_set *set, struct segment *segment) {
  count_remove(set, SEGMENT_USED, segment->bytes);
  segment_become_free(set, segment);
}

/* ---- Take (the paper, algorithm 1) ---- */

/* segment_cut of a hole. */
static struct segment *split_front(struct segment_set *set, struct segment *hole, size_t bytes) {
  struct segment *front = segment_cut(set, hole, bytes);
  if (front != NULL)
    free_resize(set, hole, hole->base + bytes, hole->bytes - bytes);
  return front;
}

/* Whether a hole is spared from a block of so many bytes. */
static bool spares(const struct segment_set *set, const struct segment *hole, size_t bytes) {
  size_t rest = hole->bytes - bytes;
  return set->spared_bytes > 0 && hole->bytes > set->spared_bytes && (rest > bytes || rest > set->rest_most_bytes);
}

bool segment_is_spared(struct segment_set *set, size_t bytes) {
  const struct segment *hole = set->spared_bytes > 0 ? size_best_fit(&set->by_size, bytes) : NULL;
  return hole != NULL && spares(set, hole, bytes);
}

/* A close fit leaves at most this part of the block over. */
enum { CLOSE_SHARE = 3 };

bool segment_may_cut(const struct segment_set *set, const struct segment *hole, size_t bytes, bool close) {
  size_t rest = hole->bytes - bytes;
  return close ? rest <= bytes / CLOSE_SHARE : rest <= bytes || bytes <= set->cuts_bytes;
}

void segment_cut_count(struct segment_set *set, const struct segment *hole, size_t bytes) {
  if (set->cuts_bytes < SIZE_MAX && hole->bytes - bytes > bytes)
    set->cuts_bytes -= bytes;
}

/* Makes the first bytes of a hole used.  NULL if the host has no memory for the split. */
static struct segment *hole_use(struct segment_set *set, struct segment *hole, size_t bytes, bool *no_host_memory) {
  struct segment *block = hole;
  if (hole->bytes > bytes) {
    block = split_front(set, hole, bytes);
    *no_host_memory = block == NULL;
    if (block == NULL)
      return NULL;
  } else {
    size_remove(&set->by_size, hole);
    count_remove(set, SEGMENT_FREE, bytes);
  }
  block->state = SEGMENT_USED;
  count_add(set, SEGMENT_USED, bytes);
  return block;
}

struct segment *segment_take(struct segment_set *set, size_t bytes, bool close, bool *no_host_memory) {
  *no_host_memory = false;
  struct segment *hole = size_best_fit(&set->by_size, bytes);
  /* All other holes that fit are at least as large: if this one is spared, or would be cut up, they are too. */
  if (hole == NULL || spares(set, hole, bytes) || !segment_may_cut(set, hole, bytes, close))
    return NULL;
  segment_cut_count(set, hole, bytes);
  return hole_use(set, hole, bytes, no_host_memory);
}

/* Whether an aligned block fits into a hole.  *skip is set to the bytes that stay before the block. */
static bool aligned_fits(const struct segment *hole, size_t bytes, size_t alignment, size_t *skip) {
  *skip = -hole->base & (alignment - 1);
  return hole->bytes >= bytes && hole->bytes - bytes >= *skip;
}

/* The hole for an aligned block.  NULL if there is none, or if the best one is spared. */
static struct segment *best_aligned_fit(struct segment_set *set, size_t bytes, size_t alignment, size_t *skip) {
  struct segment *hole = size_best_fit(&set->by_size, bytes);
  for (unsigned tries = 0; hole != NULL && tries < FIT_TRIES; tries++, hole = size_next(&set->by_size, hole))
    if (aligned_fits(hole, bytes, alignment, skip))
      return spares(set, hole, bytes) ? NULL : hole;
  hole = hole != NULL ? size_best_fit(&set->by_size, bytes + alignment) : NULL;
  return hole != NULL && aligned_fits(hole, bytes, alignment, skip) ? hole : NULL;
}

struct segment *segment_take_aligned(struct segment_set *set, size_t bytes, size_t alignment, bool *no_host_memory) {
  size_t skip;
  struct segment *hole = best_aligned_fit(set, bytes, alignment, &skip);
  struct segment *front = hole != NULL && skip > 0 ? split_front(set, hole, skip) : NULL;
  *no_host_memory = hole != NULL && skip > 0 && front == NULL;
  if (hole == NULL || *no_host_memory)
    return NULL;
  struct segment *block = hole_use(set, hole, bytes, no_host_memory);
  if (front != NULL) /* joins the hole again if there is no block */
    segment_become_free(set, front);
  return block;
}

/* ---- Memory that comes and goes under a range of addresses ---- */

/* Joins an unmapped segment with its neighbour: its bytes belong to the neighbour already. */
static void unmapped_absorb(struct segment_set *set, struct segment *segment) {
  LIST_REMOVE(segment, as.unmapped);
  set->count[SEGMENT_UNMAPPED]--;
  segment_absorb(set, segment);
}

/* Makes a segment unmapped and joins it with unmapped neighbours.  The caller has taken it out of its former state. */
static void segment_become_unmapped(struct segment_set *set, struct segment *segment) {
  struct segment *before = neighbour_before(segment), *after = neighbour_after(segment);
  count_add(set, SEGMENT_UNMAPPED, segment->bytes);
  segment->state = SEGMENT_UNMAPPED;
  LIST_INSERT_HEAD(&set->unmapped, segment, as.unmapped);
  if (after != NULL && after->state == SEGMENT_UNMAPPED) {
    segment->bytes += after->bytes;
    unmapped_absorb(set, after);
  }
  if (before != NULL && before->state == SEGMENT_UNMAPPED) {
    before->bytes += segment->bytes;
    unmapped_absorb(set, segment);
  }
}

/* Makes a segment free or unmapped.  The caller has taken it out of its former state, if it had one. */
static void segment_become(struct segment_set *set, struct segment *segment, enum segment_state state) {
  if (state == SEGMENT_FREE)
    segment_become_free(set, segment);
  else
    segment_become_unmapped(set, segment);
}

bool segment_add_chunk(struct segment_set *set, uintptr_t base, size_t bytes, enum segment_state state) {
  struct segment *segment = spare_take(set);
  if (segment == NULL)
    return false;
  segment_make(segment, base, bytes, true);
  RB_INSERT(pointer_tree, &set->by_address, segment);
  segment_become(set, segment, state);
  return true;
}

/* Sees to two spare nodes.  False if the host has no memory. */
static bool spares_two(struct segment_set *set) {
  const struct segment *first = SLIST_FIRST(&set->spares);
  return (first != NULL && SLIST_NEXT(first, as.spare) != NULL) || segment_nodes_add(set);
}

struct segment *segment_move(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  enum segment_state state = segment->state;
  size_t front_bytes = base - segment->base, rest_bytes = segment->bytes - front_bytes - bytes;
  if (!spares_two(set))
    return NULL;
  if (state == SEGMENT_FREE)
    size_remove(&set->by_size, segment);
  else
    LIST_REMOVE(segment, as.unmapped);
  count_remove(set, state, segment->bytes);
  struct segment *front = front_bytes > 0 ? segment_cut(set, segment, front_bytes) : NULL;
  segment->base = base;
  struct segment *moving = rest_bytes > 0 ? segment_cut(set, segment, bytes) : segment;
  moving->bytes = bytes;
  moving->state = SEGMENT_MOVING;
  count_add(set, SEGMENT_MOVING, bytes);
  if (moving != segment) {
    segment->base = base + bytes;
    segment->bytes = rest_bytes;
    segment_become(set, segment, state);
  }
  if (front != NULL)
    segment_become(set, front, state);
  return moving;
}

void segment_moved(struct segment_set *set, struct segment *moving, enum segment_state state) {
  count_remove(set, SEGMENT_MOVING, moving->bytes);
  segment_become(set, moving, state);
}
