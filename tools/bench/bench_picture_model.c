/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdlib.h>
#include <string.h>

#include "bench_distinct.h"
#include "bench_picture.h"

/* Larger sizes are not believed: the page's numbers, sums included, are exact up to 2^53. */
static const uint64_t size_most = (uint64_t)1 << 50;
static const uint32_t no_block = UINT32_MAX;
/* A gap of a 64th of all bytes ends a span, so there are at most 64 spans; but a smaller gap than this does not. */
static const uint64_t gap_least = (uint64_t)2 << 20;

/* ---- Moments ----------------------------------------------------------------------------------------------------- */

/* The open ranges of all threads.  Each knows the one around it. */
struct open_ranges {
  uint32_t *innermost, *outer; /* 1 + an index of picture.ranges, for each thread and for each range; 0: none */
};

struct maker {
  struct picture *picture;
  struct distinct whos;
  struct open_ranges open;
  uint32_t *by_serial; /* the block with each serial; no_block: there is none, or it was freed */
  uint64_t *taken;     /* by context */
  size_t context_count;
  uint64_t live, taken_sum;
};

static void moment_add(struct maker *maker, uint64_t time_ns, enum moment_kind kind, size_t subject) {
  maker->picture->moments[maker->picture->moment_count++] = (struct picture_moment){
      .time_ns = time_ns, .live = maker->live, .taken = maker->taken_sum, .kind = kind, .subject = (uint32_t)subject};
}

static bool who_find(struct maker *maker, const struct record_event *event, uint32_t *index) {
  const struct picture *picture = maker->picture;
  struct picture_who who = {event->site,
                            event->thread,
                            event->stream,
                            event->tag,
                            event->context,
                            event->device,
                            picture->paths.of_event[event - picture->record->events]};
  return distinct_find(&maker->whos, &who, index);
}

static bool block_begin(struct maker *maker, const struct record_event *event) {
  struct picture *picture = maker->picture;
  struct picture_block block = {.address = event->address,
                                .size = event->size < size_most ? event->size : size_most,
                                .begin = (uint32_t)picture->moment_count};
  if (!who_find(maker, event, &block.who))
    return false;
  if (event->serial < picture->record->event_count)
    maker->by_serial[event->serial] = (uint32_t)picture->block_count;
  maker->live += block.size;
  moment_add(maker, event->time_ns, moment_allocate, picture->block_count);
  picture->blocks[picture->block_count++] = block;
  return true;
}

static void block_end(struct maker *maker, const struct record_event *event) {
  struct picture *picture = maker->picture;
  uint32_t index = event->serial < picture->record->event_count ? maker->by_serial[event->serial] : no_block;
  if (index == no_block) {
    picture->unknown_free_count++;
    return;
  }
  maker->by_serial[event->serial] = no_block;
  picture->blocks[index].end = (uint32_t)picture->moment_count;
  maker->live -= picture->blocks[index].size;
  moment_add(maker, event->time_ns, moment_free, index);
}

static bool refusal_add(struct maker *maker, const struct record_event *event) {
  struct picture *picture = maker->picture;
  struct picture_refusal refusal = {.size = event->size < size_most ? event->size : size_most};
  if (!who_find(maker, event, &refusal.who))
    return false;
  moment_add(maker, event->time_ns, moment_refused, picture->refusal_count);
  picture->refusals[picture->refusal_count++] = refusal;
  return true;
}

static void taken_set(struct maker *maker, const struct record_event *event) {
  uint64_t *taken = &maker->taken[event->context], bytes = event->size < size_most ? event->size : size_most;
  maker->taken_sum += bytes - *taken; /* modulo 2^64, which is right for a difference below 0 */
  *taken = bytes;
  moment_add(maker, event->time_ns, moment_taken, 0);
}

/* ---- Phases ------------------------------------------------------------------------------------------------------ */

static void range_begin(struct maker *maker, const struct record_event *event) {
  struct picture *picture = maker->picture;
  struct open_ranges *open = &maker->open;
  uint32_t index = (uint32_t)picture->range_count++, around = open->innermost[event->thread];
  picture->ranges[index] = (struct picture_range){.begin_ns = event->time_ns,
                                                  .end_ns = picture->end_ns, /* as long as no pop comes */
                                                  .text = event->text,
                                                  .thread = event->thread,
                                                  .depth = around == 0 ? 0 : picture->ranges[around - 1].depth + 1};
  open->outer[index] = around;
  open->innermost[event->thread] = index + 1;
}

static void range_end(struct maker *maker, const struct record_event *event) {
  uint32_t index = maker->open.innermost[event->thread];
  if (index == 0)
    return; /* the range began before the record */
  maker->picture->ranges[index - 1].end_ns = event->time_ns;
  maker->open.innermost[event->thread] = maker->open.outer[index - 1];
}

static void mark_add(struct picture *picture, const struct record_event *event) {
  picture->marks[picture->mark_count++] = (struct picture_mark){event->time_ns, event->text, event->thread};
}

static bool event_take(struct maker *maker, const struct record_event *event) {
  switch ((enum record_kind)event->kind) {
  case RECORD_ALLOCATE:
    return block_begin(maker, event);
  case RECORD_REFUSED:
    return refusal_add(maker, event);
  case RECORD_FREE:
    block_end(maker, event);
    return true;
  case RECORD_TAKEN:
    taken_set(maker, event);
    return true;
  case RECORD_PUSH:
    range_begin(maker, event);
    return true;
  case RECORD_POP:
    range_end(maker, event);
    return true;
  case RECORD_MARK:
    mark_add(maker->picture, event);
    return true;
  default:
    return true;
  }
}

/* ---- Spans ------------------------------------------------------------------------------------------------------- */

static uint64_t extent_end(const struct picture_span *span) { return span->address + span->bytes; }

static int compare_spans(const void *a, const void *b) {
  uint64_t left = ((const struct picture_span *)a)->address, right = ((const struct picture_span *)b)->address;
  return (left > right) - (left < right);
}

/* Joins sorted spans whose gap is at most this large.  Returns how many are left. */
static size_t spans_join(struct picture_span *spans, size_t count, uint64_t gap) {
  size_t joined = 0;
  for (size_t i = 0; i < count; i++) {
    struct picture_span *last = &spans[joined == 0 ? 0 : joined - 1];
    if (joined == 0 || (spans[i].address > extent_end(last) && spans[i].address - extent_end(last) > gap))
      spans[joined++] = spans[i];
    else if (extent_end(&spans[i]) > extent_end(last))
      last->bytes = extent_end(&spans[i]) - last->address;
  }
  return joined;
}

static struct picture_span span_of(const struct picture_block *block) {
  uint64_t unit = picture_granularity_bytes, bytes = block->size == 0 ? unit : (block->size + unit - 1) / unit * unit;
  /* No end may overflow, not even that of a span with a gap as large as a span behind it. */
  return (struct picture_span){block->address,
                               bytes < UINT64_MAX - block->address ? bytes : UINT64_MAX - block->address, 0};
}

static void blocks_place(struct picture *picture) {
  for (size_t i = 0; i < picture->block_count; i++) {
    struct picture_block *block = &picture->blocks[i];
    size_t low = 0, high = picture->span_count;
    while (high - low > 1) { /* the last span that begins at the address or before */
      size_t middle = low + (high - low) / 2;
      *(picture->spans[middle].address <= block->address ? &low : &high) = middle;
    }
    block->position = picture->spans[low].position + (block->address - picture->spans[low].address);
  }
}

static bool spans_make(struct picture *picture) {
  uint64_t bytes = 0, gap;
  picture->spans = malloc((picture->block_count + 1) * sizeof *picture->spans);
  if (picture->spans == NULL)
    return false;
  for (size_t i = 0; i < picture->block_count; i++)
    picture->spans[i] = span_of(&picture->blocks[i]);
  qsort(picture->spans, picture->block_count, sizeof *picture->spans, compare_spans);
  picture->span_count = spans_join(picture->spans, picture->block_count, 0);
  for (size_t i = 0; i < picture->span_count; i++)
    bytes += picture->spans[i].bytes;
  gap = bytes / 64 > gap_least ? bytes / 64 : gap_least;
  picture->span_count = spans_join(picture->spans, picture->span_count, gap);
  bytes = 0;
  for (size_t i = 0; i < picture->span_count; i++) {
    picture->spans[i].position = bytes;
    bytes += picture->spans[i].bytes;
  }
  blocks_place(picture);
  return true;
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

static size_t kind_count(const struct record *record, enum record_kind kind) {
  size_t count = 0;
  for (size_t i = 0; i < record->event_count; i++)
    count += record->events[i].kind == (uint32_t)kind;
  return count;
}

static bool maker_start(struct maker *maker) {
  const struct record *record = maker->picture->record;
  size_t events = record->event_count + 1;
  maker->by_serial = malloc(events * sizeof *maker->by_serial);
  for (size_t i = 0; i < record->event_count; i++)
    if (record->events[i].context >= maker->context_count)
      maker->context_count = (size_t)record->events[i].context + 1;
  maker->taken = calloc(maker->context_count + 1, sizeof *maker->taken);
  maker->open = (struct open_ranges){calloc(record->thread_count + 1, sizeof *maker->open.innermost),
                                     calloc(kind_count(record, RECORD_PUSH) + 1, sizeof *maker->open.outer)};
  if (maker->by_serial != NULL) /* no_block has all bits set */
    (void)memset(maker->by_serial, 0xff, events * sizeof *maker->by_serial);
  return maker->by_serial != NULL && maker->taken != NULL && maker->open.innermost != NULL && maker->open.outer != NULL;
}

/* The picture has what was found. */
static void maker_end(struct maker *maker) {
  struct picture *picture = maker->picture;
  picture->whos = maker->whos.items;
  picture->who_count = maker->whos.count;
  free(maker->whos.slots);
  free(maker->by_serial);
  free(maker->taken);
  free(maker->open.innermost);
  free(maker->open.outer);
}

static bool moments_make(struct picture *picture) {
  struct maker maker = {.picture = picture, .whos.item_bytes = sizeof(struct picture_who)};
  const struct record *record = picture->record;
  bool made = maker_start(&maker);
  for (size_t i = 0; made && i < record->event_count; i++)
    made = event_take(&maker, &record->events[i]);
  maker_end(&maker);
  return made;
}

static bool picture_room(struct picture *picture) {
  const struct record *record = picture->record;
  picture->blocks = malloc((kind_count(record, RECORD_ALLOCATE) + 1) * sizeof *picture->blocks);
  picture->moments = malloc((record->event_count + 1) * sizeof *picture->moments);
  picture->refusals = malloc((kind_count(record, RECORD_REFUSED) + 1) * sizeof *picture->refusals);
  picture->marks = malloc((kind_count(record, RECORD_MARK) + 1) * sizeof *picture->marks);
  picture->ranges = malloc((kind_count(record, RECORD_PUSH) + 1) * sizeof *picture->ranges);
  return picture->blocks != NULL && picture->moments != NULL && picture->refusals != NULL && picture->marks != NULL &&
         picture->ranges != NULL;
}

/* Memory that was given back to the driver is no hole. */
static void holes_bound(struct picture *picture) {
  if (kind_count(picture->record, RECORD_TAKEN) == 0)
    return;
  for (size_t i = 0; i < picture->moment_count; i++) {
    struct picture_moment *moment = &picture->moments[i];
    uint64_t idle = moment->taken > moment->live ? moment->taken - moment->live : 0;
    if (moment->hole > idle)
      moment->hole = idle;
  }
}

/* Fills in what needs all moments. */
static void picture_close(struct picture *picture) {
  uint64_t most = 0;
  picture->peak = picture->moment_count;
  for (size_t i = 0; i < picture->block_count; i++)
    if (picture->blocks[i].end <= picture->blocks[i].begin)
      picture->blocks[i].end = (uint32_t)picture->moment_count;
  for (size_t i = 0; i < picture->moment_count; i++)
    if (picture->moments[i].live > most) {
      most = picture->moments[i].live;
      picture->peak = i;
    }
  holes_bound(picture);
}

bool picture_make(struct picture *picture, const struct record *record) {
  *picture = (struct picture){.record = record};
  picture->end_ns = record->event_count == 0 ? 0 : record->events[record->event_count - 1].time_ns;
  if (picture_room(picture) && ranges_make(&picture->paths, record) && moments_make(picture) && spans_make(picture) &&
      picture_holes(picture)) {
    picture_close(picture);
    return true;
  }
  (void)fputs("mam-bench: picture: the host has no memory for it\n", stderr);
  return false;
}

void picture_free(struct picture *picture) {
  free(picture->blocks);
  free(picture->moments);
  free(picture->refusals);
  free(picture->whos);
  free(picture->spans);
  free(picture->marks);
  free(picture->ranges);
  ranges_free(&picture->paths);
  *picture = (struct picture){0};
}
