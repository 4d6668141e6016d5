/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdlib.h>
#include <string.h>

#include "bench_distinct.h"
#include "bench_ranges.h"

/* ---- Names ------------------------------------------------------------------------------------------------------- */

struct range_name {
  const char *text;
  size_t length;
  uint32_t index; /* of record.texts */
};

size_t range_name_length(const char *text) {
  for (const char *at = text; (at = strstr(at, ", ")) != NULL; at += 2) {
    size_t word = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz_");
    if (word > 0 && strncmp(at + 2 + word, " = ", 3) == 0)
      return (size_t)(at - text);
  }
  return strlen(text);
}

static bool same_name(const struct range_name *a, const struct range_name *b) {
  return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
}

static int compare_names(const void *a, const void *b) {
  const struct range_name *left = a, *right = b;
  size_t least = left->length < right->length ? left->length : right->length;
  int order = memcmp(left->text, right->text, least);
  if (order != 0)
    return order;
  if (left->length != right->length)
    return left->length < right->length ? -1 : 1;
  return (left->index > right->index) - (left->index < right->index);
}

/* For each text of the record, the first one with the same name.  NULL if the host has no memory. */
static uint32_t *first_of_name(const struct record *record) {
  struct range_name *names = malloc((record->text_count + 1) * sizeof *names);
  uint32_t *first = malloc((record->text_count + 1) * sizeof *first);
  for (size_t i = 0; names != NULL && i < record->text_count; i++)
    names[i] = (struct range_name){record->texts[i], range_name_length(record->texts[i]), (uint32_t)i};
  if (names == NULL || first == NULL) {
    free(names);
    free(first);
    return NULL;
  }
  qsort(names, record->text_count, sizeof *names, compare_names);
  for (size_t i = 0; i < record->text_count; i++)
    first[names[i].index] = i > 0 && same_name(&names[i - 1], &names[i]) ? first[names[i - 1].index] : names[i].index;
  free(names);
  return first;
}

/* ---- Paths ------------------------------------------------------------------------------------------------------- */

/* The innermost open range of a thread. */
struct open_range {
  uint32_t path, depth;
};

struct walk {
  const uint32_t *first_of_name;
  struct distinct paths;
  struct open_range *open; /* of each thread; depth counts those that the path has */
};

static bool range_begin(struct walk *walk, const struct record_event *event) {
  struct open_range *open = &walk->open[event->thread];
  struct range_path path = {open->path, walk->first_of_name[event->text]};
  open->depth++;
  return distinct_find(&walk->paths, &path, &open->path);
}

static void range_end(struct walk *walk, const struct record_event *event) {
  struct open_range *open = &walk->open[event->thread];
  if (open->depth == 0)
    return; /* the range began before the record */
  open->depth--;
  open->path = ((const struct range_path *)walk->paths.items)[open->path].around;
}

static bool events_walk(struct walk *walk, const struct record *record, uint32_t *of_event) {
  for (size_t i = 0; i < record->event_count; i++) {
    const struct record_event *event = &record->events[i];
    if (event->kind == RECORD_PUSH && !range_begin(walk, event))
      return false;
    if (event->kind == RECORD_POP)
      range_end(walk, event);
    /* Of a block that was live before, the thread is not known. */
    if ((event->kind == RECORD_ALLOCATE && !event->before) || event->kind == RECORD_REFUSED)
      of_event[i] = walk->open[event->thread].path;
  }
  return true;
}

bool ranges_make(struct ranges *ranges, const struct record *record) {
  const struct range_path none = {0, 0};
  uint32_t *first = first_of_name(record), index;
  struct walk walk = {.first_of_name = first,
                      .paths.item_bytes = sizeof(struct range_path),
                      .open = calloc(record->thread_count + 1, sizeof *walk.open)};
  *ranges = (struct ranges){.of_event = calloc(record->event_count + 1, sizeof *ranges->of_event)};
  bool made = first != NULL && walk.open != NULL && ranges->of_event != NULL &&
              distinct_find(&walk.paths, &none, &index) && events_walk(&walk, record, ranges->of_event);
  ranges->paths = walk.paths.items;
  ranges->path_count = walk.paths.count;
  free(walk.paths.slots);
  free(walk.open);
  free(first);
  return made;
}

void ranges_free(struct ranges *ranges) {
  free(ranges->paths);
  free(ranges->of_event);
  *ranges = (struct ranges){0};
}
