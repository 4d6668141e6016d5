/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * trace: how much memory a training-like trace (bench_training.h) takes from the driver, over the peak of its live
 * bytes; and ns an operation.
 *
 * The trace runs twice.  The first time, the memory is sampled after each allocation, and the live blocks are checked.
 * The second time, it is timed in an empty pool.  For a pool of fixed size the figure is the smallest pool in which the
 * trace succeeds, which is found by halving.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_replay.h"
#include "bench_report.h"

enum { iterations_usual = 50, iterations_quick = 10 };

struct trace_cell {
  double reserved_bytes, driver_bytes, smallest_bytes; /* NAN: not known */
  double operation_ns;
};

struct trace_result {
  struct training training;
  struct trace_cell cells[allocators_most];
};

/* ---- The test ---------------------------------------------------------------------------------------------------- */

/* The most memory that is held.  The pool is closed before and after. */
static bool trace_sample(struct replay *replay, struct trace_cell *cell) {
  size_t free_bytes = 0;
  bool has_driver = machine_free_bytes(replay->bench->machine, &free_bytes);
  if (!blocks_pool_open(replay->allocator, replay->bench->chunk_bytes))
    return false;
  replay->sampled = true;
  bool good = replay_run(replay);
  replay->sampled = false;
  if (replay->allocator->reserved != NULL)
    cell->reserved_bytes = (double)replay->reserved_most;
  if (has_driver && replay->free_least != SIZE_MAX)
    cell->driver_bytes = (double)free_bytes - (double)replay->free_least;
  return blocks_pool_close(replay->allocator) && good;
}

static bool trace_measure(struct replay *replay, struct trace_cell *cell) {
  const struct allocator *allocator = replay->allocator;
  *cell = (struct trace_cell){(double)NAN, (double)NAN, (double)NAN, (double)NAN};
  if (!trace_sample(replay, cell))
    return false;
  if (allocator->sized && !replay_smallest(replay, &cell->smallest_bytes))
    return false;
  if (!blocks_pool_open(allocator, replay->bench->chunk_bytes) || !replay_run(replay))
    return false;
  cell->operation_ns = (double)replay->spent_ns / (double)replay->training->step_count;
  return true;
}

/* The pool is open before and after, as bench_each expects. */
static bool trace_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct trace_result *trace = result;
  struct replay replay;
  bool good = replay_make(&replay, bench, allocator, &trace->training) && blocks_pool_close(allocator) &&
              trace_measure(&replay, &trace->cells[index]);
  replay_free(&replay);
  return good;
}

static bool trace_csv(const struct bench *bench, const struct trace_result *trace) {
  struct report_csv csv;
  const struct training *training = &trace->training;
  if (!report_csv_open(&csv, bench->csv_directory, "trace",
                       "allocator,seed,iterations,operations,peak_live_bytes,reserved_bytes,driver_bytes,"
                       "smallest_pool_bytes,operation_ns"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++) {
    const struct trace_cell *cell = &trace->cells[a];
    char text[160];
    (void)snprintf(text, sizeof text, "%s,%llu,%zu,%zu,%zu", bench->allocators[a]->name,
                   (unsigned long long)bench->trace_seed, training->iterations, training->step_count,
                   training->peak_bytes);
    report_csv_numbers(
        &csv, text,
        (const double[]){cell->reserved_bytes, cell->driver_bytes, cell->smallest_bytes, cell->operation_ns}, 4);
  }
  return report_csv_close(&csv);
}

static void trace_print(const struct bench *bench, const struct trace_result *trace) {
  enum { ratio_rows = 3 };
  struct report_row rows[ratio_rows] = {{.label = "reserved"}, {.label = "driver"}, {.label = "smallest"}};
  struct report_row time_row = {.label = "ns"};
  double peak_bytes = (double)trace->training.peak_bytes;
  for (size_t a = 0; a < bench->allocator_count; a++) {
    const struct trace_cell *cell = &trace->cells[a];
    rows[0].values[a] = cell->reserved_bytes / peak_bytes;
    rows[1].values[a] = cell->driver_bytes / peak_bytes;
    rows[2].values[a] = cell->smallest_bytes / peak_bytes;
    time_row.values[a] = cell->operation_ns;
  }
  char title[160], peak[report_label_size];
  report_bytes_text(peak, trace->training.peak_bytes);
  (void)snprintf(title, sizeof title,
                 "trace: memory taken over the peak of live blocks, %s (%zu iterations, seed %llu)", peak,
                 trace->training.iterations, (unsigned long long)bench->trace_seed);
  struct report_table table = {.title = title, .row_title = "as seen", .rows = rows, .row_count = ratio_rows};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  (void)printf("reserved: as the pool says.  driver: by which the driver's free memory shrank.  smallest: the smallest "
               "pool of fixed size\nwith which the trace succeeds.\n");
  table = (struct report_table){.title = "trace: ns an operation", .row_title = "", .rows = &time_row, .row_count = 1};
  report_table_print(&table, bench->allocators, bench->allocator_count);
}

bool bench_trace(const struct bench *bench) {
  struct bench tagged = bench_with_tags(bench);
  struct trace_result trace;
  size_t iterations = bench->quick ? iterations_quick : iterations_usual;
  bool good = training_draw(&trace.training, bench->trace_seed, iterations, bench->capacity_bytes / 2);
  if (!good)
    (void)fprintf(stderr, "mam-bench: trace: no trace fits half of %zu bytes\n", bench->capacity_bytes);
  good = good && bench_each(&tagged, "trace", trace_part, &trace);
  if (good) {
    trace_print(&tagged, &trace);
    good = trace_csv(&tagged, &trace);
  }
  training_free(&trace.training);
  return good;
}
