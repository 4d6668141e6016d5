/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * size: the paper's figures 8 and 9.  Blocks of log-uniform random size, 1 B to 1 GiB, are allocated until memory is
 * full, then freed in random order, again and again.  Every call is timed alone and counted by the power of two of its
 * size.
 */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum { bin_count = 30, rounds_least = 3, rounds_most = 200 };

static const size_t size_most_bytes = (size_t)1 << bin_count;

/* Times in ns of one allocator, at sizes from 2^bin to 2^(bin + 1) bytes. */
struct size_bin {
  struct numbers_samples malloc_ns, free_ns;
};

struct size_result {
  struct size_bin bins[allocators_most][bin_count];
};

/* Memory that is being filled. */
struct filling {
  const struct allocator *allocator;
  struct size_bin *bins;
  size_t capacity_bytes;
  struct block *blocks;
  size_t count, room;
};

static size_t size_bin_of(size_t bytes) { return 63 - (size_t)__builtin_clzll(bytes); }

static bool filling_add(struct filling *filling, struct block block, double malloc_ns) {
  if (filling->count == filling->room) {
    size_t room = filling->room == 0 ? 4096 : 2 * filling->room;
    struct block *blocks = realloc(filling->blocks, room * sizeof *blocks);
    if (blocks == NULL)
      return false;
    filling->blocks = blocks;
    filling->room = room;
  }
  filling->blocks[filling->count++] = block;
  return numbers_samples_add(&filling->bins[size_bin_of(block.bytes)].malloc_ns, malloc_ns);
}

/* Allocates until memory is full.  For an allocator that never refuses, it is full with as many bytes as our pool
 * has. */
static bool filling_fill(struct filling *filling, struct numbers_random *requests) {
  size_t total_bytes = 0;
  for (;;) {
    struct block block = {NULL, numbers_log_uniform(requests, 1, size_most_bytes)};
    total_bytes += block.bytes;
    if (!filling->allocator->bounded && total_bytes > filling->capacity_bytes)
      return true;
    uint64_t start_ns = clock_now_ns();
    cudaError_t error = filling->allocator->allocate(&block.address, block.bytes);
    double malloc_ns = clock_span_ns(start_ns, clock_now_ns());
    if (error == cudaErrorMemoryAllocation && filling->count > 0)
      return true;
    if (error != cudaSuccess)
      return blocks_complain(filling->allocator, "an allocation", block.bytes, error);
    if (!filling_add(filling, block, malloc_ns))
      return blocks_complain(filling->allocator, "bookkeeping", block.bytes, cudaErrorMemoryAllocation);
  }
}

static void filling_shuffle(struct filling *filling, struct numbers_random *order) {
  for (size_t i = filling->count; i > 1; i--) {
    size_t other = numbers_below(order, i);
    struct block block = filling->blocks[i - 1];
    filling->blocks[i - 1] = filling->blocks[other];
    filling->blocks[other] = block;
  }
}

static bool filling_empty(struct filling *filling) {
  while (filling->count > 0) {
    const struct block block = filling->blocks[--filling->count];
    uint64_t start_ns = clock_now_ns();
    cudaError_t error = filling->allocator->release(block.address, block.bytes);
    double free_ns = clock_span_ns(start_ns, clock_now_ns());
    if (error != cudaSuccess)
      return blocks_complain(filling->allocator, "a free", block.bytes, error);
    if (!numbers_samples_add(&filling->bins[size_bin_of(block.bytes)].free_ns, free_ns))
      return blocks_complain(filling->allocator, "bookkeeping", block.bytes, cudaErrorMemoryAllocation);
  }
  return true;
}

static bool filling_round(struct filling *filling, struct numbers_random *requests) {
  if (!filling_fill(filling, requests) || !blocks_check(filling->allocator, filling->blocks, filling->count))
    return false;
  filling_shuffle(filling, requests);
  return filling_empty(filling) && blocks_settle(filling->allocator);
}

static bool size_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct size_result *size = result;
  struct filling filling = {.allocator = allocator, .bins = size->bins[index], .capacity_bytes = bench->capacity_bytes};
  const uint64_t budget_ns = bench->quick ? 500000000 : 5000000000;
  uint64_t start_ns = clock_now_ns();
  bool good = true;
  for (unsigned round = 0; good && round < rounds_most; round++) {
    if (round >= rounds_least && clock_now_ns() - start_ns > budget_ns)
      break;
    progress_within((double)(clock_now_ns() - start_ns), (double)budget_ns);
    /* Each allocator gets the same sizes in the n-th round. */
    struct numbers_random requests = numbers_seed(round);
    good = filling_round(&filling, &requests);
  }
  free(filling.blocks);
  return good;
}

static void size_csv_row(const struct report_csv *csv, const char *name, size_t bin, struct size_bin *times) {
  char text[64];
  (void)snprintf(text, sizeof text, "%s,%zu,%zu", name, (size_t)1 << bin, times->malloc_ns.count);
  double numbers[] = {
      numbers_mean(times->malloc_ns.values, times->malloc_ns.count),
      numbers_quantile(times->malloc_ns.values, times->malloc_ns.count, 0.5),
      numbers_quantile(times->malloc_ns.values, times->malloc_ns.count, 0.99),
      numbers_mean(times->free_ns.values, times->free_ns.count),
      numbers_quantile(times->free_ns.values, times->free_ns.count, 0.5),
      numbers_quantile(times->free_ns.values, times->free_ns.count, 0.99),
  };
  report_csv_numbers(csv, text, numbers, sizeof numbers / sizeof numbers[0]);
}

static bool size_csv(const struct bench *bench, struct size_result *size) {
  struct report_csv csv;
  if (!report_csv_open(
          &csv, bench->csv_directory, "size",
          "allocator,bytes,count,malloc_mean_ns,malloc_median_ns,malloc_p99_ns,free_mean_ns,free_median_ns,"
          "free_p99_ns"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t bin = 0; bin < bin_count; bin++)
      size_csv_row(&csv, bench->allocators[a]->name, bin, &size->bins[a][bin]);
  return report_csv_close(&csv);
}

/* Prints one table, of allocations or frees, of means or a quantile.  It has every third power of two; the CSV has
 * all. */
static void size_print(const struct bench *bench, struct size_result *size, const char *title, bool of_free,
                       double share) {
  struct report_row rows[bin_count];
  size_t row_count = 0;
  for (size_t bin = 0; bin < bin_count; bin += 3) {
    struct report_row *row = &rows[row_count++];
    report_bytes_text(row->label, (size_t)1 << bin);
    for (size_t a = 0; a < bench->allocator_count; a++) {
      struct size_bin *times = &size->bins[a][bin];
      struct numbers_samples *samples = of_free ? &times->free_ns : &times->malloc_ns;
      row->values[a] = share < 0 ? numbers_mean(samples->values, samples->count)
                                 : numbers_quantile(samples->values, samples->count, share);
    }
  }
  struct report_table table = {.title = title, .row_title = "size", .rows = rows, .row_count = row_count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
}

static void size_report(const struct bench *bench, struct size_result *size) {
  size_print(bench, size, "size, figure 8: ns of an allocation while memory fills, mean, from size to twice that",
             false, -1);
  size_print(bench, size, "the same, median", false, 0.5);
  size_print(bench, size, "size, figure 9: ns of a free in random order, mean, from size to twice that", true, -1);
  size_print(bench, size, "the same, median", true, 0.5);
}

bool bench_size(const struct bench *bench) {
  struct size_result size = {0};
  bool good = bench_each(bench, "size", size_part, &size);
  if (good) {
    size_report(bench, &size);
    good = size_csv(bench, &size);
  }
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t bin = 0; bin < bin_count; bin++) {
      numbers_samples_free(&size.bins[a][bin].malloc_ns);
      numbers_samples_free(&size.bins[a][bin].free_ns);
    }
  return good;
}
