/* SPDX-License-Identifier: BSD-2-Clause */
#include "pool/segment_inside.h"

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

bool segment_add_reserved(struct segment_set *set, uintptr_t base, size_t bytes) {
  struct segment *segment = segment_chunk_make(set, base, bytes);
  if (segment != NULL)
    segment_become_unmapped(set, segment);
  return segment != NULL;
}

/* Gives a part that was cut off a segment the state of that segment.  The part has no neighbour of that state. */
static void part_put_back(struct segment_set *set, struct segment *part, enum segment_state state) {
  if (state == SEGMENT_FREE)
    segment_become_free(set, part);
  else
    segment_become_unmapped(set, part);
}

struct segment *segment_move(struct segment_set *set, struct segment *segment, uintptr_t base, size_t bytes) {
  enum segment_state state = segment->state;
  size_t front_bytes = base - segment->base, rest_bytes = segment->bytes - front_bytes - bytes;
  struct segment *front = front_bytes > 0 ? spare_take(set) : NULL, *rest = rest_bytes > 0 ? spare_take(set) : NULL;
  if ((front_bytes > 0 && front == NULL) || (rest_bytes > 0 && rest == NULL)) {
    if (front != NULL)
      spare_put(set, front);
    return NULL;
  }
  if (state == SEGMENT_FREE)
    size_remove(&set->by_size, segment);
  else
    LIST_REMOVE(segment, as.unmapped);
  count_remove(set, state, segment->bytes);
  segment->base = base;
  segment->bytes = bytes;
  segment->state = SEGMENT_MOVING;
  count_add(set, SEGMENT_MOVING, bytes);
  if (front != NULL) {
    segment_make(front, base - front_bytes, front_bytes, segment->heads_chunk);
    segment->heads_chunk = false;
    pointer_tree_insert_before(&set->by_address, front, segment);
    part_put_back(set, front, state);
  }
  if (rest != NULL) {
    segment_make(rest, base + bytes, rest_bytes, false);
    RB_INSERT(pointer_tree, &set->by_address, rest);
    part_put_back(set, rest, state);
  }
  return segment;
}

void segment_moved_to_free(struct segment_set *set, struct segment *moving) {
  count_remove(set, SEGMENT_MOVING, moving->bytes);
  segment_become_free(set, moving);
}

void segment_moved_to_unmapped(struct segment_set *set, struct segment *moving) {
  count_remove(set, SEGMENT_MOVING, moving->bytes);
  segment_become_unmapped(set, moving);
}
