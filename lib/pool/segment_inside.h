/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of segments share.  A file calls only files that stand before it in this list:
 *
 *   segment_tree    the pointer tree and the size tree
 *   segment         host memory for segments; chunks; take and free
 *   segment_wait    segments that wait for an epoch
 *
 * segment.h has what the other files of lib/pool use.
 */
#ifndef MAM_LIB_SEGMENT_INSIDE_H
#define MAM_LIB_SEGMENT_INSIDE_H

#include "pool/segment.h"

/* ---- The pointer tree: segment_tree.c ---- */

/* Both return less than 0, 0 or more than 0, as strcmp. */
inline int compare_addresses(const struct segment *a, const struct segment *b) {
  return (a->base > b->base) - (a->base < b->base);
}

static inline int compare_sizes(const struct segment *a, const struct segment *b) {
  return a->bytes != b->bytes ? (a->bytes > b->bytes) - (a->bytes < b->bytes) : compare_addresses(a, b);
}

/* The functions of <bsd/sys/tree.h> for the pointer tree.  They are inline so that the step from a segment to its
 * neighbour costs no call.  The compiler puts what it does not inline into segment_tree.c, once. */
RB_GENERATE_INTERNAL(pointer_tree, segment, by_address, compare_addresses, inline)

/* The neighbour in the same chunk, NULL at the chunk's edge. */
static inline struct segment *neighbour_before(struct segment *segment) {
  return segment->heads_chunk ? NULL : RB_PREV(pointer_tree, , segment);
}

static inline struct segment *neighbour_after(struct segment *segment) {
  struct segment *next = RB_NEXT(pointer_tree, , segment);
  return next == NULL || next->heads_chunk ? NULL : next;
}

/* Inserts a segment just before next.  The place is known, so there is no search from the root. */
static inline void pointer_tree_insert_before(struct pointer_tree *tree, struct segment *segment,
                                              struct segment *next) {
  struct segment *parent = RB_LEFT(next, by_address);
  if (parent == NULL) {
    RB_SET(segment, next, by_address);
    RB_LEFT(next, by_address) = segment;
  } else {
    while (RB_RIGHT(parent, by_address) != NULL)
      parent = RB_RIGHT(parent, by_address);
    RB_SET(segment, parent, by_address);
    RB_RIGHT(parent, by_address) = segment;
  }
  pointer_tree_RB_INSERT_COLOR(tree, segment);
}

/* ---- The size tree: segment_tree.c ---- */

/* The branch for segments of so many bytes. */
static inline unsigned size_branch(size_t bytes) {
  if (bytes < SIZE_STEPS)
    return 0;
  unsigned log = 63 - (unsigned)__builtin_clzl(bytes);
  return log * SIZE_STEPS + (unsigned)(bytes >> (log - SIZE_STEP_BITS)) % SIZE_STEPS;
}

void size_insert(struct size_forest *forest, struct segment *segment);
void size_remove(struct size_forest *forest, struct segment *segment);

/* Gives a segment of the size tree new bounds.  They lie between those of its neighbours, so that the pointer tree does
 * not change.  The size tree changes only if the segment would pass another one.  A large hole mostly keeps its place.
 */
void size_resize(struct size_forest *forest, struct segment *segment, uintptr_t base, size_t bytes);

/* The smallest segment of at least so many bytes, of these the one with the lowest address.  NULL if there is none. */
struct segment *size_best_fit(struct size_forest *forest, size_t bytes);

/* In the order of sizes, then addresses.  NULL: there is none, or no further one. */
struct segment *size_first(struct size_forest *forest);
struct segment *size_next(struct size_forest *forest, struct segment *segment);
struct segment *size_last(struct size_forest *forest);

/* ---- Nodes: segment.c ---- */

/* Adds an array of spare nodes.  False if the host has no memory. */
bool segment_nodes_add(struct segment_set *set);

/* Takes a spare node.  NULL if the host has no memory. */
static inline struct segment *spare_take(struct segment_set *set) {
  if (SLIST_EMPTY(&set->spares) && !segment_nodes_add(set))
    return NULL;
  struct segment *segment = SLIST_FIRST(&set->spares);
  SLIST_REMOVE_HEAD(&set->spares, as.spare);
  return segment;
}

static inline void spare_put(struct segment_set *set, struct segment *segment) {
  SLIST_INSERT_HEAD(&set->spares, segment, as.spare);
}

/* Makes a spare node a segment.  The caller sets its state.  Its ticket is 0 and stays 0: a thread may still compare
 * it with an old ticket. */
static inline void segment_make(struct segment *segment, uintptr_t base, size_t bytes, bool heads_chunk) {
  segment->base = base;
  segment->bytes = bytes;
  segment->state = SEGMENT_FREE;
  segment->heads_chunk = heads_chunk;
}

/* Cuts the first bytes off a larger segment, as one that is in no state yet and not counted.  The caller gives the
 * rest, which keeps its node and its place in the pointer tree, its new bounds.  NULL if the host has no memory. */
static inline struct segment *segment_cut(struct segment_set *set, struct segment *segment, size_t bytes) {
  struct segment *front = spare_take(set);
  if (front == NULL)
    return NULL;
  segment_make(front, segment->base, bytes, segment->heads_chunk);
  segment->heads_chunk = false;
  pointer_tree_insert_before(&set->by_address, front, segment);
  return front;
}

/* ---- Changes of state: segment.c ---- */

/* A segment joins or leaves a state: the sums. */
static inline void count_add(struct segment_set *set, enum segment_state state, size_t bytes) {
  set->bytes[state] += bytes;
  set->count[state]++;
}

static inline void count_remove(struct segment_set *set, enum segment_state state, size_t bytes) {
  set->bytes[state] -= bytes;
  set->count[state]--;
}

/* Takes a segment out of the pointer tree: its bytes belong to a neighbour.  The caller has taken it out of its former
 * state. */
static inline void segment_absorb(struct segment_set *set, struct segment *segment) {
  RB_REMOVE(pointer_tree, &set->by_address, segment);
  spare_put(set, segment);
}

/* Makes a segment free and joins it with free neighbours.  The caller has taken it out of its former state.  Afterwards
 * the pointer is not valid. */
void segment_become_free(struct segment_set *set, struct segment *segment);

/* Whether a block may be cut from a larger segment: if the fit is close, where that is asked for; else if it is no more
 * than twice the block's size, or cuts_bytes allows it. */
bool segment_may_cut(const struct segment_set *set, const struct segment *hole, size_t bytes, bool close);

/* Where segments are searched one by one, so many are looked at: holes for an aligned block, the smallest first, and a
 * list of a stream's, the last freed first.  A search through all of them would have no bound. */
enum { FIT_TRIES = 16 };

/* Counts such a cut.  The segment is still whole. */
void segment_cut_count(struct segment_set *set, const struct segment *hole, size_t bytes);

/* ---- What waits: segment_wait.c ---- */

/* Whether a segment waits for this stream, at whatever epoch; or, if stream is NULL, for this epoch in the set's list.
 * Two such neighbours are joined.  segment may be NULL. */
static inline bool segment_waits_with(const struct segment *segment, const struct waiting_stream *stream,
                                      uint64_t epoch) {
  return segment != NULL && segment->state == SEGMENT_WAITING && segment->as.waiting.stream == stream &&
         (stream != NULL || segment->as.waiting.epoch == epoch);
}

#endif
