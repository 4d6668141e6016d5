/* SPDX-License-Identifier: BSD-2-Clause */
#include "segment.h"

#include <stdlib.h>

/* ---- The trees ---- */

static int compare_addresses(const struct segment *a, const struct segment *b) {
  return (a->base > b->base) - (a->base < b->base);
}

static int compare_sizes(const struct segment *a, const struct segment *b) {
  return a->bytes != b->bytes ? (a->bytes > b->bytes) - (a->bytes < b->bytes) : compare_addresses(a, b);
}

/* RB_GENERATE_STATIC, spelled out: libbsd's leaves the attribute that it uses undefined on Linux. */
#define TREE_FUNCTION static __attribute__((unused))
RB_GENERATE_INTERNAL(pointer_tree, segment, by_address, compare_addresses, TREE_FUNCTION)
RB_GENERATE_INTERNAL(size_tree, segment, as.by_size, compare_sizes, TREE_FUNCTION)

/* ---- Host memory for segments: slabs that grow, spares in a list ---- */

struct segment_slab {
  struct segment_slab *next;
  struct segment segments[];
};

/* A new slab is a sixteenth of what is held: what is not used yet stays small beside it. */
enum { LEAST_SLAB_SEGMENTS = 64, MOST_SLAB_SEGMENTS = 4096, SLAB_SHARE = 16 };

static bool slab_add(struct segment_set *set) {
  size_t count = set->slab_bytes / sizeof(struct segment) / SLAB_SHARE;
  count = count < LEAST_SLAB_SEGMENTS ? LEAST_SLAB_SEGMENTS : count > MOST_SLAB_SEGMENTS ? MOST_SLAB_SEGMENTS : count;
  size_t bytes = sizeof(struct segment_slab) + count * sizeof(struct segment);
  struct segment_slab *slab = malloc(bytes);
  if (slab == NULL)
    return false;
  slab->next = set->slabs;
  set->slabs = slab;
  set->slab_bytes += bytes;
  for (size_t i = count; i-- > 0;) /* so that they are taken in the order of addresses */
    SLIST_INSERT_HEAD(&set->spares, &slab->segments[i], as.spare);
  return true;
}

static struct segment *spare_take(struct segment_set *set) {
  if (SLIST_EMPTY(&set->spares) && !slab_add(set))
    return NULL;
  struct segment *segment = SLIST_FIRST(&set->spares);
  SLIST_REMOVE_HEAD(&set->spares, as.spare);
  return segment;
}

static void spare_put(struct segment_set *set, struct segment *segment) {
  SLIST_INSERT_HEAD(&set->spares, segment, as.spare);
}

void segment_set_init(struct segment_set *set) {
  *set = (struct segment_set){0};
  RB_INIT(&set->by_address);
  RB_INIT(&set->by_size);
  TAILQ_INIT(&set->waiting);
  SLIST_INIT(&set->spares);
}

void segment_set_clear(struct segment_set *set) {
  for (struct segment_slab *slab = set->slabs, *next; slab != NULL; slab = next) {
    next = slab->next;
    free(slab);
  }
  segment_set_init(set);
}

/* ---- Neighbours ---- */

struct segment *segment_first(struct segment_set *set) {
  return RB_MIN(pointer_tree, &set->by_address);
}

struct segment *segment_next(struct segment *segment) {
  return RB_NEXT(pointer_tree, , segment);
}

/* The neighbour in the same chunk, NULL at the chunk's edge. */
static struct segment *neighbour_before(struct segment *segment) {
  return segment->heads_chunk ? NULL : RB_PREV(pointer_tree, , segment);
}

static struct segment *neighbour_after(struct segment *segment) {
  struct segment *next = RB_NEXT(pointer_tree, , segment);
  return next == NULL || next->heads_chunk ? NULL : next;
}

static void count_add(struct segment_set *set, enum segment_state state, size_t bytes) {
  set->bytes[state] += bytes;
  set->count[state]++;
}

static void count_remove(struct segment_set *set, enum segment_state state, size_t bytes) {
  set->bytes[state] -= bytes;
  set->count[state]--;
}

/* ---- Free segments ---- */

/* Gives a free segment new bounds, which stay between its neighbours' so that the pointer tree does not change.  The
 * size tree only changes if the segment would pass another one: the usual large hole keeps its place. */
static void free_resize(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  const struct segment key = {.base = base, .bytes = bytes};
  const struct segment *smaller = RB_PREV(size_tree, , segment), *larger = RB_NEXT(size_tree, , segment);
  bool stays =
      (smaller == NULL || compare_sizes(smaller, &key) < 0) && (larger == NULL || compare_sizes(&key, larger) < 0);
  set->bytes[SEGMENT_FREE] += bytes - segment->bytes;
  if (!stays)
    RB_REMOVE(size_tree, &set->by_size, segment);
  segment->base = base;
  segment->bytes = bytes;
  if (!stays)
    RB_INSERT(size_tree, &set->by_size, segment);
}

/* Takes a segment that is in no state any more out of the pointer tree: its bytes belong to a neighbour now. */
static void segment_absorbed(struct segment_set *set, struct segment *segment) {
  RB_REMOVE(pointer_tree, &set->by_address, segment);
  spare_put(set, segment);
}

/* Makes a segment that was just taken out of its former state free. */
static void segment_become_free(struct segment_set *set, struct segment *segment) {
  struct segment *before = neighbour_before(segment), *after = neighbour_after(segment);
  bool merge_before = before != NULL && before->state == SEGMENT_FREE;
  bool merge_after = after != NULL && after->state == SEGMENT_FREE;
  if (merge_before && merge_after) {
    size_t bytes = before->bytes + segment->bytes + after->bytes;
    RB_REMOVE(size_tree, &set->by_size, after);
    count_remove(set, SEGMENT_FREE, after->bytes);
    segment_absorbed(set, after);
    segment_absorbed(set, segment);
    free_resize(set, before, before->base, bytes);
  } else if (merge_before) {
    size_t bytes = before->bytes + segment->bytes;
    segment_absorbed(set, segment);
    free_resize(set, before, before->base, bytes);
  } else if (merge_after) {
    uintptr_t base = segment->base;
    size_t bytes = segment->bytes + after->bytes;
    after->heads_chunk = segment->heads_chunk;
    segment_absorbed(set, segment);
    free_resize(set, after, base, bytes);
  } else {
    segment->state = SEGMENT_FREE;
    count_add(set, SEGMENT_FREE, segment->bytes);
    RB_INSERT(size_tree, &set->by_size, segment);
  }
}

bool segment_add_chunk(struct segment_set *set, uintptr_t base, size_t bytes) {
  struct segment *segment = spare_take(set);
  if (segment == NULL)
    return false;
  *segment = (struct segment){.base = base, .bytes = bytes, .state = SEGMENT_FREE, .heads_chunk = true};
  RB_INSERT(pointer_tree, &set->by_address, segment);
  RB_INSERT(size_tree, &set->by_size, segment);
  count_add(set, SEGMENT_FREE, bytes);
  return true;
}

size_t segment_largest_free(struct segment_set *set) {
  struct segment *largest = RB_MAX(size_tree, &set->by_size);
  return largest == NULL ? 0 : largest->bytes;
}

/* ---- Take (the paper, algorithm 1) ---- */

/* Inserts a segment whose place is known, just before another, without a search from the root. */
static void pointer_tree_insert_before(struct pointer_tree *tree, struct segment *segment, struct segment *next) {
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

static struct segment *best_fit(struct segment_set *set, size_t bytes) {
  struct segment key = {.base = 0, .bytes = bytes};
  return RB_NFIND(size_tree, &set->by_size, &key);
}

/* Cuts the first bytes off a larger free segment as a new segment.  The rest keeps its place in the pointer tree, as
 * the new one goes just before it. */
static struct segment *split_front(struct segment_set *set, struct segment *hole, size_t bytes) {
  struct segment *front = spare_take(set);
  if (front == NULL)
    return NULL;
  *front = (struct segment){.base = hole->base, .bytes = bytes, .heads_chunk = hole->heads_chunk};
  hole->heads_chunk = false;
  free_resize(set, hole, hole->base + bytes, hole->bytes - bytes);
  pointer_tree_insert_before(&set->by_address, front, hole);
  return front;
}

struct segment *segment_take(struct segment_set *set, size_t bytes, bool *no_host_memory) {
  *no_host_memory = false;
  struct segment *segment = best_fit(set, bytes);
  if (segment == NULL)
    return NULL;
  if (segment->bytes > bytes) {
    segment = split_front(set, segment, bytes);
    if (segment == NULL) {
      *no_host_memory = true;
      return NULL;
    }
  } else {
    RB_REMOVE(size_tree, &set->by_size, segment);
    count_remove(set, SEGMENT_FREE, bytes);
  }
  segment->state = SEGMENT_USED;
  count_add(set, SEGMENT_USED, bytes);
  return segment;
}

/* ---- Free (the paper, algorithm 2), at once or after an epoch ---- */

struct segment *segment_find(struct segment_set *set, uintptr_t base) {
  struct segment key = {.base = base};
  return RB_FIND(pointer_tree, &set->by_address, &key);
}

void segment_free(struct segment_set *set, struct segment *segment) {
  count_remove(set, SEGMENT_USED, segment->bytes);
  segment_become_free(set, segment);
}

static bool waits_for(const struct segment *segment, uint64_t epoch) {
  return segment != NULL && segment->state == SEGMENT_WAITING && segment->as.waiting.epoch == epoch;
}

void segment_wait(struct segment_set *set, struct segment *segment, uint64_t epoch) {
  struct segment *before = neighbour_before(segment), *after = neighbour_after(segment);
  count_remove(set, SEGMENT_USED, segment->bytes);
  count_add(set, SEGMENT_WAITING, segment->bytes);
  segment->state = SEGMENT_WAITING;
  segment->as.waiting.epoch = epoch;
  if (waits_for(after, epoch)) {
    TAILQ_REMOVE(&set->waiting, after, as.waiting.link);
    segment->bytes += after->bytes;
    set->count[SEGMENT_WAITING]--;
    segment_absorbed(set, after);
  }
  if (waits_for(before, epoch)) {
    before->bytes += segment->bytes;
    set->count[SEGMENT_WAITING]--;
    segment_absorbed(set, segment);
  } else {
    TAILQ_INSERT_TAIL(&set->waiting, segment, as.waiting.link);
  }
}

void segment_pass_epoch(struct segment_set *set, uint64_t epoch) {
  struct segment *segment;
  while ((segment = TAILQ_FIRST(&set->waiting)) != NULL && segment->as.waiting.epoch <= epoch) {
    TAILQ_REMOVE(&set->waiting, segment, as.waiting.link);
    count_remove(set, SEGMENT_WAITING, segment->bytes);
    segment_become_free(set, segment);
  }
}

/* ---- Check ---- */

static const char *check_neighbours(const struct segment *before, const struct segment *segment) {
  if (segment->bytes == 0)
    return "a segment is empty";
  if (before == NULL)
    return segment->heads_chunk ? NULL : "the first segment heads no chunk";
  if (segment->base < before->base + before->bytes)
    return "two segments overlap";
  if (segment->heads_chunk)
    return NULL;
  if (segment->base != before->base + before->bytes)
    return "there is a gap inside a chunk";
  if (segment->state == SEGMENT_FREE && before->state == SEGMENT_FREE)
    return "two neighbours are free";
  if (before->state == SEGMENT_WAITING && waits_for(segment, before->as.waiting.epoch))
    return "two neighbours wait for the same epoch";
  return NULL;
}

static const char *check_pointer_tree(struct segment_set *set) {
  size_t bytes[SEGMENT_STATES] = {0}, count[SEGMENT_STATES] = {0};
  const struct segment *before = NULL;
  for (struct segment *segment = segment_first(set); segment != NULL; segment = segment_next(segment)) {
    const char *fault = check_neighbours(before, segment);
    if (fault != NULL)
      return fault;
    bytes[segment->state] += segment->bytes;
    count[segment->state]++;
    before = segment;
  }
  for (int state = 0; state < SEGMENT_STATES; state++)
    if (bytes[state] != set->bytes[state] || count[state] != set->count[state])
      return "the sums do not agree with the segments";
  return NULL;
}

static const char *check_size_tree(struct segment_set *set) {
  size_t count = 0;
  const struct segment *before = NULL;
  struct segment *segment;
  RB_FOREACH(segment, size_tree, &set->by_size) {
    if (segment->state != SEGMENT_FREE)
      return "the size tree holds a segment that is not free";
    if (segment_find(set, segment->base) != segment)
      return "the size tree holds a segment that the pointer tree has not";
    if (before != NULL && compare_sizes(before, segment) >= 0)
      return "the size tree is out of order";
    before = segment;
    count++;
  }
  return count == set->count[SEGMENT_FREE] ? NULL : "the size tree lacks a free segment";
}

static const char *check_waiting_list(struct segment_set *set) {
  size_t count = 0;
  uint64_t epoch = 0;
  struct segment *segment;
  TAILQ_FOREACH(segment, &set->waiting, as.waiting.link) {
    if (segment->state != SEGMENT_WAITING)
      return "the waiting list holds a segment that does not wait";
    if (segment->as.waiting.epoch < epoch)
      return "the waiting list is out of order";
    epoch = segment->as.waiting.epoch;
    count++;
  }
  return count == set->count[SEGMENT_WAITING] ? NULL : "the waiting list lacks a waiting segment";
}

const char *segment_set_check(struct segment_set *set) {
  const char *fault = check_pointer_tree(set);
  if (fault == NULL)
    fault = check_size_tree(set);
  if (fault == NULL)
    fault = check_waiting_list(set);
  return fault;
}
