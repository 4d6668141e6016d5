/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Trace events in JSON, with times in microseconds, for chrome://tracing and ui.perfetto.dev.
 *
 * There are counters: one for each of the call sites that hold the most at the peak, one for all other sites, one for
 * all blocks, and one for the memory that is taken from the driver.  Ranges are complete events of their threads, marks
 * are instant events, and a block is an asynchronous event from its allocation to its free.
 */
#include <stdlib.h>

#include "bench_picture.h"

enum { counters_most = 20, process = 1 };

struct site_bytes {
  uint64_t bytes;
  uint32_t site;
};

struct trace {
  FILE *stream;
  const struct picture *picture;
  uint64_t *site_live; /* bytes by site; those of sites without a counter are in others */
  bool *has_counter;   /* by site */
  uint64_t others;
};

static const char *site_name(const struct picture *picture, uint32_t site) {
  return site < picture->record->site_count ? picture->record->sites[site].name : "";
}

/* Begins an event.  The caller writes the rest, from a comma on, and the end. */
static void event_begin(FILE *stream, const char *phase, uint64_t time_ns, uint32_t thread) {
  (void)fprintf(stream, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%u,\"ts\":%llu.%03u", phase, process, thread + 1,
                (unsigned long long)(time_ns / 1000), (unsigned)(time_ns % 1000));
}

static void event_name(FILE *stream, const char *text) {
  (void)fputs(",\"name\":", stream);
  picture_text(stream, text);
}

static void meta_print(FILE *stream, const struct picture *picture) {
  const struct record *record = picture->record;
  (void)fprintf(stream, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":", process);
  picture_text(stream, record->command);
  (void)fputs("}}", stream);
  for (size_t i = 0; i < record->thread_count; i++) {
    (void)fprintf(
        stream, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_name\",\"args\":{\"name\":", process, i + 1);
    picture_text(stream, record->threads[i]);
    (void)fputs("}}", stream);
  }
}

/* ---- Counters ---------------------------------------------------------------------------------------------------- */

static int compare_site_bytes(const void *a, const void *b) {
  const struct site_bytes *left = a, *right = b;
  if (left->bytes != right->bytes)
    return left->bytes < right->bytes ? 1 : -1;
  return (left->site > right->site) - (left->site < right->site);
}

/* Chooses the sites that have a counter: those that hold the most at the peak. */
static bool counters_choose(struct trace *trace) {
  const struct picture *picture = trace->picture;
  size_t site_count = picture->record->site_count;
  struct site_bytes *sites = calloc(site_count + 1, sizeof *sites);
  if (sites == NULL)
    return false;
  for (size_t i = 0; i < site_count; i++)
    sites[i].site = (uint32_t)i;
  for (size_t i = 0; i < picture->block_count; i++) {
    const struct picture_block *block = &picture->blocks[i];
    if (block->begin <= picture->peak && picture->peak < block->end)
      sites[picture->whos[block->who].site].bytes += block->size;
  }
  qsort(sites, site_count, sizeof *sites, compare_site_bytes);
  for (size_t i = 0; i < site_count && i < counters_most; i++)
    trace->has_counter[sites[i].site] = true;
  free(sites);
  return true;
}

static void counter_print(FILE *stream, const struct picture_moment *moment, const char *name, uint64_t bytes) {
  event_begin(stream, "C", moment->time_ns, 0);
  event_name(stream, name);
  (void)fprintf(stream, ",\"args\":{\"bytes\":%llu}}", (unsigned long long)bytes);
}

static void site_change(struct trace *trace, const struct picture_moment *moment, const struct picture_block *block) {
  uint32_t site = trace->picture->whos[block->who].site;
  bool counted = trace->has_counter[site];
  uint64_t *live = counted ? &trace->site_live[site] : &trace->others;
  *live += moment->kind == moment_allocate ? block->size : 0 - block->size;
  counter_print(trace->stream, moment, counted ? site_name(trace->picture, site) : "other call sites", *live);
  counter_print(trace->stream, moment, "all blocks", moment->live);
}

/* ---- Blocks, ranges, marks --------------------------------------------------------------------------------------- */

static void block_print(const struct trace *trace, const struct picture_moment *moment,
                        const struct picture_block *block) {
  const struct picture *picture = trace->picture;
  const struct picture_who *who = &picture->whos[block->who];
  event_begin(trace->stream, moment->kind == moment_allocate ? "b" : "e", moment->time_ns, who->thread);
  (void)fprintf(trace->stream, ",\"cat\":\"blocks\",\"id\":%zu", (size_t)(block - picture->blocks));
  event_name(trace->stream, site_name(picture, who->site));
  if (moment->kind == moment_allocate) {
    (void)fprintf(trace->stream, ",\"args\":{\"address\":\"%#llx\",\"bytes\":%llu,\"context\":%u",
                  (unsigned long long)block->address, (unsigned long long)block->size, who->context);
    if (who->stream > 0 && who->stream <= picture->record->stream_count)
      (void)fprintf(trace->stream, ",\"stream\":\"%#llx\"",
                    (unsigned long long)picture->record->streams[who->stream - 1]);
    if (who->tag > 0 && who->tag < picture->record->text_count) {
      (void)fputs(",\"tag\":", trace->stream);
      picture_text(trace->stream, picture->record->texts[who->tag]);
    }
    (void)fputc('}', trace->stream);
  }
  (void)fputc('}', trace->stream);
}

static void refusal_print(const struct trace *trace, const struct picture_moment *moment) {
  const struct picture_refusal *refusal = &trace->picture->refusals[moment->subject];
  const struct picture_who *who = &trace->picture->whos[refusal->who];
  event_begin(trace->stream, "i", moment->time_ns, who->thread);
  (void)fputs(",\"s\":\"t\",\"name\":\"refused\",\"args\":{\"site\":", trace->stream);
  picture_text(trace->stream, site_name(trace->picture, who->site));
  (void)fprintf(trace->stream, ",\"bytes\":%llu}}", (unsigned long long)refusal->size);
}

static void moments_print(struct trace *trace) {
  const struct picture *picture = trace->picture;
  for (size_t i = 0; i < picture->moment_count; i++) {
    const struct picture_moment *moment = &picture->moments[i];
    if (moment->kind == moment_taken) {
      counter_print(trace->stream, moment, "taken of the driver", moment->taken);
    } else if (moment->kind == moment_refused) {
      refusal_print(trace, moment);
    } else {
      const struct picture_block *block = &picture->blocks[moment->subject];
      site_change(trace, moment, block);
      block_print(trace, moment, block);
    }
  }
}

static void phases_print(FILE *stream, const struct picture *picture) {
  for (size_t i = 0; i < picture->range_count; i++) {
    const struct picture_range *range = &picture->ranges[i];
    uint64_t duration_ns = range->end_ns - range->begin_ns;
    event_begin(stream, "X", range->begin_ns, range->thread);
    (void)fprintf(stream, ",\"dur\":%llu.%03u", (unsigned long long)(duration_ns / 1000),
                  (unsigned)(duration_ns % 1000));
    event_name(stream, picture->record->texts[range->text]);
    (void)fputc('}', stream);
  }
  for (size_t i = 0; i < picture->mark_count; i++) {
    const struct picture_mark *mark = &picture->marks[i];
    event_begin(stream, "i", mark->time_ns, mark->thread);
    (void)fputs(",\"s\":\"p\"", stream);
    event_name(stream, picture->record->texts[mark->text]);
    (void)fputc('}', stream);
  }
}

bool picture_trace(FILE *stream, const struct picture *picture) {
  size_t site_count = picture->record->site_count;
  struct trace trace = {.stream = stream,
                        .picture = picture,
                        .site_live = calloc(site_count + 1, sizeof *trace.site_live),
                        .has_counter = calloc(site_count + 1, sizeof *trace.has_counter)};
  bool made = trace.site_live != NULL && trace.has_counter != NULL && counters_choose(&trace);
  if (made) {
    (void)fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", stream);
    meta_print(stream, picture);
    phases_print(stream, picture);
    moments_print(&trace);
    (void)fputs("\n]}\n", stream);
  } else {
    (void)fputs("mam-bench: picture: the host has no memory for it\n", stderr);
  }
  free(trace.site_live);
  free(trace.has_counter);
  return made;
}
