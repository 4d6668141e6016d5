/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * chunk: the smallest pool of fixed size in which a training-like trace succeeds, over the peak of its live bytes.
 *
 * Half of the traces come from bench_training.h and half from bench_network.h, in turn.  The yardstick is plain best
 * fit: a freed block is free at once and joins its neighbours, and nothing is kept.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_best_fit.h"
#include "bench_network.h"
#include "bench_replay.h"
#include "bench_report.h"

enum { traces_usual = 12, traces_quick = 4, iterations_usual = 30, iterations_quick = 8 };

struct chunk_trace {
  bool network;
  uint64_t seed;
  struct training training;
  double smallest_bytes[allocators_most], operation_ns[allocators_most]; /* NAN: not known */
  double best_fit_bytes;
};

struct chunk_result {
  size_t trace_count;
  struct chunk_trace traces[traces_usual];
};

/* ---- Plain best fit ---------------------------------------------------------------------------------------------- */

struct yardstick {
  const struct training *training;
  struct best_fit fit;
};

static bool yardstick_fits(void *what, size_t pool_bytes, bool *good) {
  struct yardstick *yardstick = what;
  bool fits = *good;
  best_fit_begin(&yardstick->fit, pool_bytes);
  for (size_t i = 0; i < yardstick->training->step_count && fits; i++) {
    const struct training_step *step = &yardstick->training->steps[i];
    if (step->bytes > 0)
      fits = best_fit_allocate(&yardstick->fit, step->slot, step->bytes);
    else
      best_fit_release(&yardstick->fit, step->slot);
  }
  return fits;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

static bool chunk_yardstick(const struct bench *bench, struct chunk_trace *trace) {
  struct yardstick yardstick = {.training = &trace->training};
  bool good = best_fit_make(&yardstick.fit, trace->training.slot_count) &&
              replay_search(yardstick_fits, &yardstick, trace->training.peak_bytes, bench->capacity_bytes,
                            &trace->best_fit_bytes);
  best_fit_free(&yardstick.fit);
  return good;
}

static bool chunk_draw(const struct bench *bench, struct chunk_result *result) {
  size_t iterations = bench->quick ? iterations_quick : iterations_usual, count = result->trace_count;
  for (size_t i = 0; i < count; i++) {
    struct chunk_trace *trace = &result->traces[i];
    trace->network = i % 2 == 1;
    trace->seed = bench->trace_seed + i / 2;
    bool drawn = (trace->network ? network_draw : training_draw)(&trace->training, trace->seed, iterations,
                                                                 bench->capacity_bytes / 2);
    if (!drawn || !chunk_yardstick(bench, trace)) {
      (void)fprintf(stderr, "mam-bench: chunk: no trace fits half of %zu bytes, or the host has no memory\n",
                    bench->capacity_bytes);
      return false;
    }
  }
  return true;
}

static bool chunk_measure(struct replay *replay, double *smallest_bytes, double *operation_ns) {
  if (!replay_smallest(replay, smallest_bytes) || isnan(*smallest_bytes))
    return isnan(*smallest_bytes);
  if (!blocks_pool_open(replay->allocator, (size_t)*smallest_bytes))
    return false;
  replay->may_be_refused = true; /* the library's threads run beside it, so the pool may fit only now and then */
  bool ran = replay_run(replay);
  if (ran)
    *operation_ns = (double)replay->spent_ns / (double)replay->training->step_count;
  return blocks_pool_close(replay->allocator) && (ran || replay->refused);
}

/* The pool is open before and after, as bench_each expects. */
static bool chunk_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct chunk_result *chunk = result;
  bool good = blocks_pool_close(allocator);
  for (size_t i = 0; i < chunk->trace_count && good; i++) {
    struct chunk_trace *trace = &chunk->traces[i];
    struct replay replay;
    trace->smallest_bytes[index] = trace->operation_ns[index] = (double)NAN;
    if (!allocator->sized)
      continue;
    good = replay_make(&replay, bench, allocator, &trace->training) &&
           chunk_measure(&replay, &trace->smallest_bytes[index], &trace->operation_ns[index]);
    replay_free(&replay);
  }
  return good && blocks_pool_open(allocator, bench->chunk_bytes);
}

static bool chunk_csv(const struct bench *bench, const struct chunk_result *result) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "chunk",
                       "allocator,trace,seed,iterations,operations,peak_live_bytes,smallest_pool_bytes,operation_ns"))
    return false;
  for (size_t i = 0; i < result->trace_count; i++) {
    const struct chunk_trace *trace = &result->traces[i];
    for (size_t a = 0; a <= bench->allocator_count; a++) {
      bool yardstick = a == bench->allocator_count;
      if (!yardstick && !bench->allocators[a]->sized)
        continue;
      char text[160];
      (void)snprintf(text, sizeof text, "%s,%s,%llu,%zu,%zu,%zu", yardstick ? "best fit" : bench->allocators[a]->name,
                     trace->network ? "network" : "training", (unsigned long long)trace->seed,
                     trace->training.iterations, trace->training.step_count, trace->training.peak_bytes);
      const double numbers[] = {yardstick ? trace->best_fit_bytes : trace->smallest_bytes[a],
                                yardstick ? (double)NAN : trace->operation_ns[a]};
      report_csv_numbers(&csv, text, numbers, 2);
    }
  }
  return report_csv_close(&csv);
}

static void chunk_label(char label[report_label_size], const struct chunk_trace *trace) {
  (void)snprintf(label, report_label_size, "%s %u", trace->network ? "network" : "training", (unsigned)trace->seed);
}

static void chunk_print(const struct bench *bench, const struct chunk_result *result) {
  struct report_row rows[traces_usual], times[traces_usual];
  struct report_column columns[allocators_most + 1];
  size_t count = 0;
  for (size_t a = 0; a < bench->allocator_count; a++) {
    if (!bench->allocators[a]->sized)
      continue;
    for (size_t i = 0; i < result->trace_count; i++) {
      rows[i].values[count] = result->traces[i].smallest_bytes[a] / (double)result->traces[i].training.peak_bytes;
      times[i].values[count] = result->traces[i].operation_ns[a];
    }
    columns[count++].name = bench->allocators[a]->name;
  }
  columns[count].name = "best fit";
  for (size_t i = 0; i < result->trace_count; i++) {
    const struct chunk_trace *trace = &result->traces[i];
    chunk_label(rows[i].label, trace);
    chunk_label(times[i].label, trace);
    rows[i].values[count] = trace->best_fit_bytes / (double)trace->training.peak_bytes;
  }
  struct report_table table = {.title = "chunk: smallest pool of fixed size over the peak of live blocks",
                               .row_title = "trace",
                               .rows = rows,
                               .row_count = result->trace_count};
  report_columns_print(&table, columns, count + 1);
  table = (struct report_table){.title = "chunk: ns an operation in that pool",
                                .row_title = "trace",
                                .rows = times,
                                .row_count = result->trace_count};
  report_columns_print(&table, columns, count);
}

bool bench_chunk(const struct bench *bench) {
  struct bench tagged = bench_with_tags(bench);
  struct chunk_result result = {.trace_count = bench->quick ? traces_quick : traces_usual};
  bool good = chunk_draw(bench, &result) && bench_each(&tagged, "chunk", chunk_part, &result);
  if (good) {
    chunk_print(&tagged, &result);
    good = chunk_csv(&tagged, &result);
  }
  for (size_t i = 0; i < result.trace_count; i++)
    training_free(&result.traces[i].training);
  return good;
}
