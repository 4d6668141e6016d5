/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * trace: how much memory a training-like trace (bench_training.h) takes from the driver, over the most that is live;
 * and ns an operation.
 *
 * The trace runs once with what is taken sampled after each allocation and the live blocks checked, and once more, from
 * an empty pool, to be timed.  For a pool of fixed size what counts is the smallest with which the trace succeeds: it
 * is searched for by halving.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_report.h"
#include "bench_training.h"

enum { iterations_usual = 50, iterations_quick = 10, checked_every = 512 };

static const size_t granularity_bytes = (size_t)2 << 20; /* of the driver, and so of a pool's size */

/* An address for each place in the program. */
static const char tags[training_tag_count];

struct trace_cell {
  double reserved_bytes, driver_bytes, smallest_bytes; /* NAN: not known */
  double operation_ns;
};

struct trace_result {
  struct training training;
  struct trace_cell cells[allocators_most];
};

/* A trace on its way through an allocator. */
struct replay {
  const struct bench *bench;
  const struct allocator *allocator;
  const struct training *training;
  struct block *slots, *sorted; /* the latter for checking */
  bool sampled;                 /* and checked */
  bool may_be_refused;
  bool refused;
  size_t reserved_most, free_least;
  uint64_t spent_ns;
};

/* ---- One replay -------------------------------------------------------------------------------------------------- */

static bool replay_sample(struct replay *replay) {
  size_t bytes = 0;
  if (replay->allocator->reserved != NULL) {
    cudaError_t error = replay->allocator->reserved(&bytes);
    if (error != cudaSuccess)
      return blocks_complain(replay->allocator, "asking what is reserved", 0, error);
    replay->reserved_most = bytes > replay->reserved_most ? bytes : replay->reserved_most;
  }
  if (machine_free_bytes(replay->bench->machine, &bytes) && bytes < replay->free_least)
    replay->free_least = bytes;
  return true;
}

static bool replay_check(const struct replay *replay) {
  memcpy(replay->sorted, replay->slots, replay->training->slot_count * sizeof *replay->slots);
  return blocks_check(replay->allocator, replay->sorted, replay->training->slot_count);
}

static bool replay_allocate(struct replay *replay, const struct training_step *step) {
  const struct allocator *allocator = replay->allocator;
  struct block *block = &replay->slots[step->slot];
  void *address = NULL;
  cudaError_t error = allocator->allocate_tagged != NULL
                          ? allocator->allocate_tagged(&address, step->bytes, &tags[step->tag])
                          : allocator->allocate(&address, step->bytes);
  replay->refused = error == cudaErrorMemoryAllocation && replay->may_be_refused;
  if (error != cudaSuccess)
    return !replay->refused && blocks_complain(allocator, "an allocation", step->bytes, error);
  *block = (struct block){address, step->bytes};
  return !replay->sampled || replay_sample(replay);
}

static bool replay_free(struct replay *replay, const struct training_step *step) {
  struct block *block = &replay->slots[step->slot];
  cudaError_t error = replay->allocator->release(block->address, block->bytes);
  block->address = NULL;
  return error == cudaSuccess || blocks_complain(replay->allocator, "a free", block->bytes, error);
}

/* Ends settled, as an iteration does that looks at its loss. */
static bool replay_iteration(struct replay *replay, size_t from, size_t to) {
  bool good = true;
  uint64_t start_ns = clock_now_ns();
  for (size_t i = from; i < to && good; i++) {
    const struct training_step *step = &replay->training->steps[i];
    good = step->bytes > 0 ? replay_allocate(replay, step) : replay_free(replay, step);
    if (replay->sampled && i % checked_every == 0)
      good = good && replay_check(replay);
  }
  replay->spent_ns += clock_now_ns() - start_ns;
  return good && blocks_settle(replay->allocator);
}

/* Runs the whole trace.  False if it was refused or failed; what was live is freed. */
static bool replay_run(struct replay *replay) {
  const struct training *training = replay->training;
  bool good = true;
  replay->refused = false;
  replay->reserved_most = 0;
  replay->free_least = SIZE_MAX;
  replay->spent_ns = 0;
  for (size_t i = 0; i < training->iterations && good; i++)
    good = replay_iteration(replay, i == 0 ? 0 : training->ends[i - 1], training->ends[i]);
  return blocks_release(replay->allocator, replay->slots, training->slot_count) && good;
}

/* ---- A pool for each replay -------------------------------------------------------------------------------------- */

static bool pool_open(const struct allocator *allocator, size_t chunk_bytes) {
  cudaError_t error = allocator->open(chunk_bytes);
  return error == cudaSuccess || blocks_complain(allocator, "making a pool", chunk_bytes, error);
}

static bool pool_close(const struct allocator *allocator) {
  cudaError_t error = allocator->close();
  return error == cudaSuccess || blocks_complain(allocator, "ending the pool", 0, error);
}

/* Whether the trace fits a pool of so many bytes; *good turns false if anything else went wrong. */
static bool pool_fits(struct replay *replay, size_t chunk_bytes, bool *good) {
  if (!pool_open(replay->allocator, chunk_bytes)) {
    *good = false;
    return false;
  }
  bool fits = replay_run(replay);
  *good = pool_close(replay->allocator) && (fits || replay->refused);
  return fits && *good;
}

/* The smallest pool with which the trace succeeds, to a thousandth; NAN if it needs more than there is. */
static bool pool_search(struct replay *replay, double *smallest_bytes) {
  bool good = true;
  size_t peak_bytes = replay->training->peak_bytes;
  size_t grain = peak_bytes / 1000 / granularity_bytes * granularity_bytes + granularity_bytes;
  size_t low = peak_bytes / granularity_bytes * granularity_bytes;
  size_t high = low + granularity_bytes;
  while (good && high <= replay->bench->capacity_bytes && !pool_fits(replay, high, &good)) {
    size_t step = high - low + grain;
    low = high;
    high += 2 * step;
  }
  if (high > replay->bench->capacity_bytes)
    return good;
  while (good && high - low > grain) {
    size_t middle = low + (high - low) / 2 / granularity_bytes * granularity_bytes;
    if (pool_fits(replay, middle, &good))
      high = middle;
    else
      low = middle;
  }
  *smallest_bytes = (double)high;
  return good;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

/* What is taken at the most.  The pool is closed before and after. */
static bool trace_sample(struct replay *replay, struct trace_cell *cell) {
  size_t free_bytes = 0;
  bool has_driver = machine_free_bytes(replay->bench->machine, &free_bytes);
  if (!pool_open(replay->allocator, replay->bench->chunk_bytes))
    return false;
  replay->sampled = true;
  bool good = replay_run(replay);
  replay->sampled = false;
  if (replay->allocator->reserved != NULL)
    cell->reserved_bytes = (double)replay->reserved_most;
  if (has_driver && replay->free_least != SIZE_MAX)
    cell->driver_bytes = (double)free_bytes - (double)replay->free_least;
  return pool_close(replay->allocator) && good;
}

static bool trace_measure(struct replay *replay, struct trace_cell *cell) {
  const struct allocator *allocator = replay->allocator;
  *cell = (struct trace_cell){(double)NAN, (double)NAN, (double)NAN, (double)NAN};
  if (!trace_sample(replay, cell))
    return false;
  if (allocator->sized) {
    replay->may_be_refused = true;
    if (!pool_search(replay, &cell->smallest_bytes))
      return false;
    replay->may_be_refused = false;
  }
  if (!pool_open(allocator, replay->bench->chunk_bytes) || !replay_run(replay))
    return false;
  cell->operation_ns = (double)replay->spent_ns / (double)replay->training->step_count;
  return true;
}

/* The pool is open before and after, as bench_each wants it. */
static bool trace_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct trace_result *trace = result;
  size_t slot_count = trace->training.slot_count;
  struct replay replay = {.bench = bench,
                          .allocator = allocator,
                          .training = &trace->training,
                          .slots = calloc(slot_count, sizeof(struct block)),
                          .sorted = malloc(slot_count * sizeof(struct block))};
  bool good = replay.slots != NULL && replay.sorted != NULL;
  if (!good)
    (void)blocks_complain(allocator, "bookkeeping", 2 * slot_count * sizeof(struct block), cudaErrorMemoryAllocation);
  good = good && pool_close(allocator) && trace_measure(&replay, &trace->cells[index]);
  free(replay.slots);
  free(replay.sorted);
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
