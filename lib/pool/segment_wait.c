/* SPDX-License-Identifier: BSD-2-Clause */
#include <string.h>

#include "pool/segment_inside.h"

/* ---- The lists ---- */

void waiting_stream_init(struct waiting_stream *stream) {
  memset(stream->words, 0, sizeof stream->words);
  for (unsigned i = 0; i < STREAM_BINS; i++)
    TAILQ_INIT(&stream->bins[i]);
}

/* The first list of a stream from this one on that is not empty.  STREAM_BINS if there is none. */
static unsigned bin_from(const struct waiting_stream *stream, unsigned bin) {
  uint64_t mask = ~(uint64_t)0 << bin % 64;
  for (unsigned word = bin / 64; word < STREAM_WORDS; word++, mask = ~(uint64_t)0)
    if ((stream->words[word] & mask) != 0)
      return word * 64 + (unsigned)__builtin_ctzl(stream->words[word] & mask);
  return STREAM_BINS;
}

bool waiting_stream_empty(const struct waiting_stream *stream) { return bin_from(stream, 0) == STREAM_BINS; }

/* The list of a stream for segments of so many bytes. */
static unsigned bin_of(size_t bytes) { return size_branch(bytes) / (SIZE_BRANCHES / STREAM_BINS); }

/* Puts a waiting segment at the end of its list. */
static void waiting_insert(struct segment_set *set, struct segment *segment) {
  struct waiting_stream *stream = segment->as.waiting.stream;
  if (stream == NULL) {
    TAILQ_INSERT_TAIL(&set->waiting, segment, as.waiting.link);
    return;
  }
  unsigned bin = bin_of(segment->bytes);
  TAILQ_INSERT_TAIL(&stream->bins[bin], segment, as.waiting.link);
  stream->words[bin / 64] |= (uint64_t)1 << bin % 64;
}

/* Takes a waiting segment out of its list.  Its size has not changed since it was put there. */
static void waiting_remove(struct segment_set *set, struct segment *segment) {
  struct waiting_stream *stream = segment->as.waiting.stream;
  if (stream == NULL) {
    TAILQ_REMOVE(&set->waiting, segment, as.waiting.link);
    return;
  }
  unsigned bin = bin_of(segment->bytes);
  TAILQ_REMOVE(&stream->bins[bin], segment, as.waiting.link);
  if (TAILQ_EMPTY(&stream->bins[bin]))
    stream->words[bin / 64] &= ~((uint64_t)1 << bin % 64);
}

/* ---- Free, to be used again later ---- */

void segment_wait_on(struct segment_set *set, struct waiting_stream *stream, struct segment *segment, uint64_t epoch) {
  struct segment *before = neighbour_before(segment), *after = neighbour_after(segment);
  count_remove(set, SEGMENT_USED, segment->bytes);
  count_add(set, SEGMENT_WAITING, segment->bytes);
  segment->state = SEGMENT_WAITING;
  if (segment_waits_with(after, stream, epoch)) {
    waiting_remove(set, after);
    segment->bytes += after->bytes;
    set->count[SEGMENT_WAITING]--;
    segment_absorb(set, after);
  }
  if (segment_waits_with(before, stream, epoch)) { /* its node stays and goes to the end of the list */
    waiting_remove(set, before);
    before->bytes += segment->bytes;
    set->count[SEGMENT_WAITING]--;
    segment_absorb(set, segment);
    segment = before;
  }
  segment->as.waiting.stream = stream;
  segment->as.waiting.epoch = epoch;
  waiting_insert(set, segment);
}

/* ---- Take from what waits for a stream ---- */

/* The smallest segment that is large enough, among those of a list that were freed last.  NULL if there is none. */
static struct segment *bin_fit(const struct waiting_list *bin, size_t bytes) {
  struct segment *segment, *best = NULL;
  unsigned tries = 0;
  TAILQ_FOREACH_REVERSE(segment, bin, waiting_list, as.waiting.link) {
    if (segment->bytes >= bytes && (best == NULL || segment->bytes < best->bytes))
      best = segment;
    if (++tries == FIT_TRIES || (best != NULL && best->bytes == bytes))
      break;
  }
  return best;
}

/* A segment of the first list that has one large enough, from the smallest sizes on.  NULL if none has. */
static struct segment *stream_fit(const struct waiting_stream *stream, size_t bytes) {
  struct segment *fit = NULL;
  for (unsigned bin = bin_of(bytes); fit == NULL && (bin = bin_from(stream, bin)) < STREAM_BINS; bin++)
    fit = bin_fit(&stream->bins[bin], bytes);
  return fit;
}

/* Whether a segment is the stream's to take: free, or waiting for the stream. */
static bool is_open_to(const struct segment *segment, const struct waiting_stream *stream) {
  return segment != NULL && (segment->state == SEGMENT_FREE || segment_waits_with(segment, stream, 0));
}

/* Where a run of neighbours begins that are open to the stream, if the waiting segment is the first in it that waits;
 * else NULL. */
static struct segment *run_begin(struct segment *segment, const struct waiting_stream *stream) {
  struct segment *before = neighbour_before(segment);
  if (before == NULL || before->state != SEGMENT_FREE)
    return segment;
  return is_open_to(neighbour_before(before), stream) ? NULL : before;
}

/* So many segments are looked at for a run, so that the search has a bound. */
enum { RUN_TRIES = 4096 };

/* The first segment of a run of so many bytes that is open to the stream, the largest segments first.  NULL if none was
 * found. */
static struct segment *run_fit(const struct waiting_stream *stream, size_t bytes) {
  struct segment *segment, *first;
  unsigned tries = 0;
  for (unsigned bin = STREAM_BINS; bin-- > 0;)
    TAILQ_FOREACH(segment, &stream->bins[bin], as.waiting.link) {
      size_t run_bytes = 0;
      first = run_begin(segment, stream);
      for (struct segment *next = first; is_open_to(next, stream); next = neighbour_after(next), tries++)
        run_bytes += next->bytes;
      if (run_bytes >= bytes)
        return first;
      if (++tries > RUN_TRIES)
        return NULL;
    }
  return NULL;
}

/* Makes a run of neighbours one segment that waits for the stream. */
static void run_join(struct segment_set *set, struct segment *first, struct waiting_stream *stream) {
  uint64_t epoch = 0;
  size_t bytes = 0;
  for (struct segment *segment = first, *next; is_open_to(segment, stream); segment = next) {
    next = neighbour_after(segment);
    bytes += segment->bytes;
    count_remove(set, segment->state, segment->bytes);
    if (segment->state == SEGMENT_FREE) {
      size_remove(&set->by_size, segment);
    } else {
      epoch = segment->as.waiting.epoch > epoch ? segment->as.waiting.epoch : epoch;
      waiting_remove(set, segment);
    }
    if (segment != first)
      segment_absorb(set, segment);
  }
  first->bytes = bytes;
  first->state = SEGMENT_WAITING;
  first->as.waiting.stream = stream;
  first->as.waiting.epoch = epoch;
  count_add(set, SEGMENT_WAITING, bytes);
  waiting_insert(set, first);
}

bool segment_may_retake(struct segment_set *set, struct waiting_stream *stream, size_t bytes) {
  if (stream_fit(stream, bytes) != NULL)
    return true;
  struct segment *first = run_fit(stream, bytes);
  if (first != NULL)
    run_join(set, first, stream);
  return first != NULL;
}

struct segment *segment_retake(struct segment_set *set, struct waiting_stream *stream, size_t bytes, bool close,
                               bool *no_host_memory) {
  *no_host_memory = false;
  struct segment *segment = stream_fit(stream, bytes), *front = segment;
  const struct segment *hole = segment != NULL && segment->bytes > bytes ? size_best_fit(&set->by_size, bytes) : NULL;
  if (segment == NULL || (hole != NULL && hole->bytes < segment->bytes))
    return NULL;
  if (!segment_may_cut(set, segment, bytes, close))
    return NULL;
  if (segment->bytes > bytes) {
    front = segment_cut(set, segment, bytes);
    *no_host_memory = front == NULL;
    if (front == NULL)
      return NULL;
    segment_cut_count(set, segment, bytes);
    waiting_remove(set, segment);
    segment->base += bytes;
    segment->bytes -= bytes;
    set->bytes[SEGMENT_WAITING] -= bytes;
    waiting_insert(set, segment);
  } else {
    waiting_remove(set, segment);
    count_remove(set, SEGMENT_WAITING, bytes);
  }
  front->state = SEGMENT_USED;
  count_add(set, SEGMENT_USED, bytes);
  return front;
}

/* ---- Epochs that have passed ---- */

/* Makes segments of a list free, from its first on, until one waits for a later epoch or *most are free.  *most counts
 * down. */
static void list_pass(struct segment_set *set, struct waiting_list *list, uint64_t epoch, unsigned *most) {
  struct segment *segment;
  while ((segment = TAILQ_FIRST(list)) != NULL && segment->as.waiting.epoch <= epoch && *most > 0) {
    --*most;
    waiting_remove(set, segment);
    count_remove(set, SEGMENT_WAITING, segment->bytes);
    segment_become_free(set, segment);
  }
}

bool segment_pass_some(struct segment_set *set, uint64_t epoch, unsigned most) {
  list_pass(set, &set->waiting, epoch, &most);
  return most > 0;
}

bool segment_pass_stream(struct segment_set *set, struct waiting_stream *stream, uint64_t epoch, unsigned most) {
  for (unsigned bin = 0; most > 0 && (bin = bin_from(stream, bin)) < STREAM_BINS; bin++)
    list_pass(set, &stream->bins[bin], epoch, &most);
  return most > 0;
}

uint64_t segment_waiting_epoch(const struct segment_set *set) {
  const struct segment *last = TAILQ_LAST(&set->waiting, waiting_list);
  return last != NULL ? last->as.waiting.epoch : 0;
}
