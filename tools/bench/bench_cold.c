/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * cold: what the first 10,000 operations of a new pool cost.  Each operation allocates or frees a random slot.  There
 * are four ranges of sizes, log-uniform.  The figures are the time of all operations with the creation of the pool, the
 * longest call, and the memory held at the end over the peak of live bytes.  The yardstick of the memory is plain best
 * fit (bench_best_fit.h), with the end of its highest block so far.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_best_fit.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_report.h"

/* granule_bytes: what a block takes at least. */
enum { operation_count = 10000, range_count = 4, granule_bytes = 512 };

static const struct range {
  const char *name;
  size_t slot_count, least_bytes, most_bytes;
} ranges[range_count] = {{"256 B to 64 MiB", 4096, 256, 64 << 20},
                         {"100 KB to 100 MB", 300, 100000, 100000000},
                         {"1 MB to 2 GB", 60, 1000000, 2000000000},
                         {"256 B to 1 MiB", 2700, 256, 1 << 20}};

struct cold_cell {
  double all_ms, longest_us, taken; /* taken: memory held over the peak of live bytes; NAN: not known */
  size_t peak_bytes;
};

struct cold_result {
  struct cold_cell cells[allocators_most][range_count], best_fit[range_count];
};

/* The largest size of a range.  It is less where the memory is small: half of the slots are live on average, and then
 * take a quarter of it.  At times more are live, and what is free lies between them. */
static size_t range_most_bytes(const struct bench *bench, const struct range *range) {
  double total = (double)bench->capacity_bytes / 4, count = (double)range->slot_count / 2;
  bool fits = count * numbers_log_uniform_mean(range->least_bytes, range->most_bytes) <= total;
  return fits ? range->most_bytes : numbers_log_uniform_fit(range->least_bytes, range->most_bytes, count, total);
}

/* Whether that is so with blocks of the least size. */
static bool range_fits(const struct bench *bench, const struct range *range) {
  size_t least = range->least_bytes < granule_bytes ? granule_bytes : range->least_bytes;
  return range->slot_count / 2 * least <= bench->capacity_bytes / 4;
}

/* The same requests to best fit. */
static bool cold_best_fit(const struct bench *bench, const struct range *range, struct cold_cell *cell) {
  struct numbers_random draw = numbers_seed(bench->trace_seed);
  size_t most_bytes = range_most_bytes(bench, range), live_bytes = 0;
  struct best_fit fit = {0};
  size_t *held = calloc(range->slot_count, sizeof *held); /* bytes of each slot; 0: empty */
  bool good = held != NULL && best_fit_make(&fit, range->slot_count);
  if (good)
    best_fit_begin(&fit, SIZE_MAX / 2);
  for (size_t i = 0; i < operation_count && good; i++) {
    size_t slot = numbers_below(&draw, range->slot_count);
    size_t bytes = numbers_log_uniform(&draw, range->least_bytes, most_bytes);
    if (held[slot] == 0)
      good = best_fit_allocate(&fit, (uint32_t)slot, bytes);
    else
      best_fit_release(&fit, (uint32_t)slot);
    live_bytes += held[slot] == 0 ? bytes : -held[slot];
    held[slot] = held[slot] == 0 ? bytes : 0;
    cell->peak_bytes = live_bytes > cell->peak_bytes ? live_bytes : cell->peak_bytes;
  }
  if (good)
    cell->taken = (double)fit.extent_bytes / (double)cell->peak_bytes;
  else
    (void)fprintf(stderr, "mam-bench: cold: the host has no memory\n");
  best_fit_free(&fit);
  free(held);
  return good;
}

/* One operation on a slot, which also keeps *live_bytes. */
static bool cold_operate(const struct allocator *allocator, struct block *slot, size_t bytes, size_t *live_bytes) {
  if (slot->address == NULL) {
    *live_bytes += bytes;
    return blocks_allocate(allocator, slot, bytes);
  }
  *live_bytes -= slot->bytes;
  return blocks_release(allocator, slot, 1);
}

static bool cold_run(const struct bench *bench, const struct allocator *allocator, const struct range *range,
                     struct block *slots, struct cold_cell *cell) {
  struct numbers_random draw = numbers_seed(bench->trace_seed);
  size_t most_bytes = range_most_bytes(bench, range), live_bytes = 0;
  uint64_t begin_ns = clock_now_ns(), longest_ns = 0;
  if (!blocks_pool_open(allocator, bench->chunk_bytes))
    return false;
  bool good = true;
  uint64_t before_ns = clock_now_ns(), now_ns = before_ns;
  for (size_t i = 0; i < operation_count && good; i++, before_ns = now_ns) {
    size_t slot = numbers_below(&draw, range->slot_count);
    good =
        cold_operate(allocator, &slots[slot], numbers_log_uniform(&draw, range->least_bytes, most_bytes), &live_bytes);
    now_ns = clock_now_ns();
    longest_ns = i > 0 && now_ns - before_ns > longest_ns ? now_ns - before_ns : longest_ns;
    cell->peak_bytes = live_bytes > cell->peak_bytes ? live_bytes : cell->peak_bytes;
  }
  cell->all_ms = (double)(now_ns - begin_ns) / 1e6;
  cell->longest_us = (double)longest_ns / 1e3;
  return good;
}

/* Notes the memory that is held at the end. */
static bool cold_taken(const struct allocator *allocator, struct cold_cell *cell) {
  size_t bytes;
  cell->taken = (double)NAN;
  if (allocator->reserved == NULL)
    return true;
  cudaError_t error = allocator->reserved(&bytes);
  if (error != cudaSuccess)
    return blocks_complain(allocator, "asking what is reserved", 0, error);
  cell->taken = (double)bytes / (double)cell->peak_bytes;
  return true;
}

static bool cold_measure(const struct bench *bench, const struct allocator *allocator, const struct range *range,
                         struct cold_cell *cell) {
  if (!range_fits(bench, range)) {
    *cell = (struct cold_cell){(double)NAN, (double)NAN, (double)NAN, 0};
    return true;
  }
  struct block *slots = calloc(range->slot_count, sizeof *slots);
  if (slots == NULL)
    return blocks_complain(allocator, "bookkeeping", range->slot_count * sizeof *slots, cudaErrorMemoryAllocation);
  bool good = cold_run(bench, allocator, range, slots, cell) && cold_taken(allocator, cell) &&
              blocks_check(allocator, slots, range->slot_count);
  good = blocks_release(allocator, slots, range->slot_count) && good;
  free(slots);
  return blocks_pool_close(allocator) && good;
}

/* The pool is open before and after, as bench_each expects. */
static bool cold_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct cold_result *cold = result;
  bool good = blocks_pool_close(allocator);
  for (size_t i = 0; i < range_count && good; i++)
    good = cold_measure(bench, allocator, &ranges[i], &cold->cells[index][i]);
  return good && blocks_pool_open(allocator, bench->chunk_bytes);
}

static bool cold_csv(const struct bench *bench, const struct cold_result *result) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "cold",
                       "allocator,slots,min_bytes,max_bytes,operations,peak_live_bytes,all_ms,longest_us,taken"))
    return false;
  for (size_t a = 0; a <= bench->allocator_count; a++)
    for (size_t i = 0; i < range_count; i++) {
      bool yardstick = a == bench->allocator_count;
      const struct cold_cell *cell = yardstick ? &result->best_fit[i] : &result->cells[a][i];
      char text[160];
      (void)snprintf(text, sizeof text, "%s,%zu,%zu,%zu,%d,%zu", yardstick ? "best fit" : bench->allocators[a]->name,
                     ranges[i].slot_count, ranges[i].least_bytes, range_most_bytes(bench, &ranges[i]),
                     (int)operation_count, cell->peak_bytes);
      report_csv_numbers(&csv, text, (const double[]){cell->all_ms, cell->longest_us, cell->taken}, 3);
    }
  return report_csv_close(&csv);
}

static void cold_print(const struct bench *bench, const struct cold_result *result) {
  struct report_column columns[allocators_most + 1];
  size_t count = bench->allocator_count;
  for (size_t a = 0; a < count; a++)
    columns[a].name = bench->allocators[a]->name;
  columns[count].name = "best fit";
  static const char *const titles[] = {"cold: ms for a new pool and its first 10,000 random operations",
                                       "the same: us of the longest call after the first",
                                       "the same: memory taken at the end, over the peak of live blocks"};
  for (size_t t = 0; t < sizeof titles / sizeof titles[0]; t++) {
    struct report_row rows[range_count];
    for (size_t i = 0; i < range_count; i++) {
      (void)snprintf(rows[i].label, sizeof rows[i].label, "%s", ranges[i].name);
      rows[i].values[count] = result->best_fit[i].taken;
      for (size_t a = 0; a < count; a++) {
        const struct cold_cell *cell = &result->cells[a][i];
        rows[i].values[a] = t == 0 ? cell->all_ms : t == 1 ? cell->longest_us : cell->taken;
      }
    }
    const struct report_table table = {
        .title = titles[t], .row_title = "sizes", .rows = rows, .row_count = range_count};
    report_columns_print(&table, columns, t == 2 ? count + 1 : count);
  }
}

bool bench_cold(const struct bench *bench) {
  struct cold_result result = {0};
  for (size_t i = 0; i < range_count; i++) {
    result.best_fit[i] = (struct cold_cell){(double)NAN, (double)NAN, (double)NAN, 0};
    if (range_fits(bench, &ranges[i]) && !cold_best_fit(bench, &ranges[i], &result.best_fit[i]))
      return false;
  }
  if (!bench_each(bench, "cold", cold_part, &result))
    return false;
  cold_print(bench, &result);
  return cold_csv(bench, &result);
}
