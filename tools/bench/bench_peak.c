/* SPDX-License-Identifier: BSD-2-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_peak.h"
#include "bench_ranges.h"
#include "bench_report.h"
#include "bench_text.h"

enum { holders_shown = 10, ranges_shown = 8, characters_shown = 100, unit_bytes = 512 };

static size_t whole_units(size_t bytes) {
  return bytes > SIZE_MAX - unit_bytes ? bytes : (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

struct peak peak_find(const struct record *record, uint32_t context) {
  struct peak peak = {.record = record, .context = context};
  size_t live = 0, count = 0;
  for (size_t i = 0; i < record->event_count; i++) {
    const struct record_event *event = &record->events[i];
    if (event_is(event, context, RECORD_ALLOCATE)) {
      live += whole_units(event->size);
      count++;
    } else if (event_is(event, context, RECORD_FREE) && event->serial != RECORD_NO_SERIAL) {
      live -= whole_units(event->size);
      count--;
    }
    if (live > peak.bytes) {
      peak.bytes = live;
      peak.count = count;
      peak.event = i;
    }
  }
  return peak;
}

/* ---- Who holds the peak ------------------------------------------------------------------------------------------ */

/* Of what the blocks are told apart by: a call site, or a path of ranges. */
struct holder {
  uint32_t index;
  size_t bytes, count;
};

static int compare_holders(const void *a, const void *b) {
  const struct holder *left = a, *right = b;
  if (left->bytes != right->bytes)
    return left->bytes < right->bytes ? 1 : -1;
  return left->index < right->index ? -1 : left->index > right->index;
}

/* What each holder, of so many, has at the peak, the largest first.  of_event: whose an allocation is.  The caller
 * frees it.  NULL if the host has no memory. */
static struct holder *holders_find(const struct peak *peak, const uint32_t *of_event, size_t holder_count) {
  const struct record *record = peak->record;
  struct holder *holders = calloc(holder_count + 1, sizeof *holders);
  uint32_t *of_serial = malloc((record->allocation_count + 1) * sizeof *of_serial);
  if (holders == NULL || of_serial == NULL) {
    free(holders);
    free(of_serial);
    return NULL;
  }
  for (size_t i = 0; i < holder_count; i++)
    holders[i].index = (uint32_t)i;
  for (size_t i = 0; i <= peak->event && i < record->event_count; i++) {
    const struct record_event *event = &record->events[i];
    bool begins = event_is(event, peak->context, RECORD_ALLOCATE);
    if (!begins && (!event_is(event, peak->context, RECORD_FREE) || event->serial == RECORD_NO_SERIAL))
      continue;
    if (begins)
      of_serial[event->serial] = of_event[i];
    struct holder *holder = &holders[of_serial[event->serial]];
    holder->bytes += begins ? whole_units(event->size) : -whole_units(event->size);
    holder->count += begins ? 1 : (size_t)-1;
  }
  free(of_serial);
  qsort(holders, holder_count, sizeof *holders, compare_holders);
  return holders;
}

static void site_print(const void *record, uint32_t site) {
  const char *name = ((const struct record *)record)->sites[site].name;
  text_print(stdout, name, strlen(name), SIZE_MAX); /* a part of a mangled name is of no use */
}

/* The names of ranges, the outermost first. */
static void path_print(const struct record *record, const struct ranges *ranges, uint32_t path) {
  const struct range_path *at = &ranges->paths[path];
  if (path == 0) {
    (void)printf("no range");
    return;
  }
  if (at->around != 0) {
    path_print(record, ranges, at->around);
    (void)printf(" / ");
  }
  text_print(stdout, record->texts[at->name], range_name_length(record->texts[at->name]), characters_shown);
}

struct paths {
  const struct record *record;
  const struct ranges *ranges;
};

static void paths_print(const void *paths, uint32_t path) {
  path_print(((const struct paths *)paths)->record, ((const struct paths *)paths)->ranges, path);
}

static void holders_print(const struct peak *peak, const struct holder *holders, size_t holder_count, const char *what,
                          void (*print)(const void *names, uint32_t index), const void *names) {
  char text[report_label_size];
  size_t shown = 0, bytes = 0, more = 0;
  for (; shown < holder_count && shown < holders_shown && holders[shown].bytes > 0; shown++) {
    report_bytes_text(text, holders[shown].bytes);
    (void)printf("  %10s  %5.1f %%  %7zu blocks  ", text, 100 * (double)holders[shown].bytes / (double)peak->bytes,
                 holders[shown].count);
    print(names, holders[shown].index);
    (void)printf("\n");
  }
  for (size_t i = shown; i < holder_count; i++) {
    bytes += holders[i].bytes;
    more += holders[i].bytes > 0;
  }
  report_bytes_text(text, bytes);
  if (more > 0)
    (void)printf("  %10s  %5.1f %%  by %zu more %s\n", text, 100 * (double)bytes / (double)peak->bytes, more, what);
}

/* Returns whether one site holds nearly all: that of a library that allocates for others. */
static bool sites_print(const struct peak *peak) {
  const struct record *record = peak->record;
  uint32_t *of_event = malloc((record->event_count + 1) * sizeof *of_event);
  for (size_t i = 0; of_event != NULL && i < record->event_count; i++)
    of_event[i] = record->events[i].site;
  struct holder *holders = of_event != NULL ? holders_find(peak, of_event, record->site_count) : NULL;
  bool one = holders != NULL && record->site_count > 0 && holders[0].bytes >= peak->bytes / 10 * 9;
  if (holders != NULL)
    holders_print(peak, holders, record->site_count, "call sites", site_print, record);
  free(holders);
  free(of_event);
  return one;
}

static void ranges_print(const struct peak *peak) {
  struct ranges ranges;
  struct holder *holders = NULL;
  if (ranges_make(&ranges, peak->record) && ranges.path_count > 1)
    holders = holders_find(peak, ranges.of_event, ranges.path_count);
  if (holders != NULL) {
    (void)printf("in the ranges:\n");
    holders_print(peak, holders, ranges.path_count, "ranges", paths_print, &(struct paths){peak->record, &ranges});
  }
  free(holders);
  ranges_free(&ranges);
}

void peak_print_holders(const struct peak *peak) {
  (void)printf("\nwho holds the peak:\n");
  if (sites_print(peak))
    ranges_print(peak);
}

/* ---- When it was ------------------------------------------------------------------------------------------------- */

static void quoted_print(const char *before, const char *text) {
  (void)printf("%s\"", before);
  text_print(stdout, text, strlen(text), characters_shown);
  (void)printf("\"");
}

void peak_print_moment(const struct peak *peak) {
  const struct record *record = peak->record;
  const struct record_event *at = &record->events[peak->event];
  uint32_t mark = 0, ranges[ranges_shown];
  size_t depth = 0;
  char text[report_label_size];
  for (size_t i = 0; i < peak->event; i++) {
    const struct record_event *event = &record->events[i];
    if (event->kind == RECORD_MARK)
      mark = event->text;
    if (event->thread != at->thread)
      continue;
    if (event->kind == RECORD_PUSH && depth++ < ranges_shown)
      ranges[depth - 1] = event->text;
    else if (event->kind == RECORD_POP && depth > 0)
      depth--;
  }
  report_bytes_text(text, peak->bytes);
  (void)printf("peak of live bytes: %s in %zu blocks, %.6f s after the beginning", text, peak->count,
               (double)at->time_ns / 1e9);
  if (mark != 0)
    quoted_print(", after the mark ", record->texts[mark]);
  for (size_t i = 0; i < depth && i < ranges_shown; i++)
    quoted_print(i == 0 ? ", in the range " : " / ", record->texts[ranges[i]]);
  (void)printf("\n");
}
