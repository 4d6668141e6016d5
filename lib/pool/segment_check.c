/* SPDX-License-Identifier: BSD-2-Clause */
#include "pool/segment_inside.h"

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
  if (segment->state == SEGMENT_UNMAPPED && before->state == SEGMENT_UNMAPPED)
    return "two neighbours are unmapped";
  if (before->state == SEGMENT_WAITING &&
      segment_waits_with(segment, before->as.waiting.stream, before->as.waiting.epoch))
    return "two neighbours wait for the same";
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
  for (segment = size_first(&set->by_size); segment != NULL; segment = size_next(&set->by_size, segment)) {
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
  size_t count = 0, expected = 0;
  uint64_t epoch = 0;
  struct segment *segment;
  TAILQ_FOREACH(segment, &set->waiting, as.waiting.link) {
    if (segment->state != SEGMENT_WAITING || segment->as.waiting.stream != NULL)
      return "the waiting list holds a segment that does not wait in it";
    if (segment->as.waiting.epoch < epoch)
      return "the waiting list is out of order";
    epoch = segment->as.waiting.epoch;
    count++;
  }
  for (segment = segment_first(set); segment != NULL; segment = segment_next(segment))
    expected += segment->state == SEGMENT_WAITING && segment->as.waiting.stream == NULL;
  return count == expected ? NULL : "the waiting list lacks a waiting segment";
}

static const char *check_unmapped_list(struct segment_set *set) {
  size_t count = 0;
  struct segment *segment;
  LIST_FOREACH(segment, &set->unmapped, as.unmapped) {
    if (segment->state != SEGMENT_UNMAPPED)
      return "the unmapped list holds a segment that is not unmapped";
    count++;
  }
  return count == set->count[SEGMENT_UNMAPPED] ? NULL : "the unmapped list lacks an unmapped segment";
}

const char *segment_set_check(struct segment_set *set) {
  const char *fault = check_pointer_tree(set);
  if (fault == NULL)
    fault = check_size_tree(set);
  if (fault == NULL)
    fault = check_waiting_list(set);
  if (fault == NULL)
    fault = check_unmapped_list(set);
  return fault;
}
