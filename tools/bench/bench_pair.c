/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * pair: one allocation and its free, at sizes from 1 B to 1 GiB in powers of four.  The result is the median of the
 * means of batches.
 */
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum { batch_count = 7, size_count = 16 };

static size_t pair_bytes(size_t index) { return (size_t)1 << 2 * index; }

struct pair_cell {
  size_t batch_pairs; /* 0: not measured */
  bool failed;
  double median_ns, least_ns, most_ns;
};

struct pair_result {
  struct pair_cell cells[size_count][allocators_most];
};

/* The mean of a batch.  At its end all frees have taken effect. */
static bool pair_batch(const struct allocator *allocator, size_t bytes, size_t pairs, double *mean_ns) {
  struct block block = {0};
  /* After a pause, the first pair may have to fetch memory, in every allocator. */
  if (!blocks_allocate(allocator, &block, bytes) || !blocks_check(allocator, &block, 1) ||
      !blocks_release(allocator, &block, 1))
    return false;
  cudaError_t error = cudaSuccess;
  uint64_t start_ns = clock_now_ns();
  for (size_t i = 0; i < pairs && error == cudaSuccess; i++) {
    error = allocator->allocate(&block.address, bytes);
    if (error == cudaSuccess)
      error = allocator->release(block.address, bytes);
  }
  *mean_ns = clock_span_ns(start_ns, clock_now_ns()) / (double)pairs;
  if (error != cudaSuccess)
    return blocks_complain(allocator, "an allocation or its free", bytes, error);
  return blocks_settle(allocator);
}

/* The number of pairs in a batch: long against the clock's cost, and short enough to wait for. */
static bool pair_calibrate(const struct allocator *allocator, size_t bytes, double batch_ns, size_t *pairs) {
  double mean_ns = 0;
  *pairs = 1;
  for (size_t count = 1; (double)count * mean_ns < batch_ns && count <= 1u << 22; count *= 2) {
    if (!pair_batch(allocator, bytes, count, &mean_ns))
      return false;
    *pairs = count;
  }
  return true;
}

static bool pair_measure(const struct bench *bench, const struct allocator *allocator, size_t bytes,
                         struct pair_cell *cell) {
  double means_ns[batch_count];
  if (!pair_calibrate(allocator, bytes, bench->quick ? 2e6 : 20e6, &cell->batch_pairs))
    return false;
  for (size_t i = 0; i < batch_count; i++)
    if (!pair_batch(allocator, bytes, cell->batch_pairs, &means_ns[i]))
      return false;
  cell->median_ns = numbers_quantile(means_ns, batch_count, 0.5);
  cell->least_ns = means_ns[0]; /* they are sorted by now */
  cell->most_ns = means_ns[batch_count - 1];
  return true;
}

/* If one size fails, that is reported, and the other sizes are still measured. */
static bool pair_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct pair_result *pair = result;
  for (size_t i = 0; i < size_count; i++) {
    progress_within((double)i, size_count);
    struct pair_cell *cell = &pair->cells[i][index];
    *cell = (struct pair_cell){0, false, (double)NAN, (double)NAN, (double)NAN};
    if (pair_bytes(i) <= bench->capacity_bytes && !pair_measure(bench, allocator, pair_bytes(i), cell))
      cell->failed = true;
  }
  return true;
}

static bool pair_csv(const struct bench *bench, const struct pair_result *pair) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "pair",
                       "allocator,bytes,batch_pairs,failed,median_ns,min_ns,max_ns"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < size_count; i++) {
      const struct pair_cell *cell = &pair->cells[i][a];
      char text[128];
      (void)snprintf(text, sizeof text, "%s,%zu,%zu,%d", bench->allocators[a]->name, pair_bytes(i), cell->batch_pairs,
                     cell->failed);
      if (cell->batch_pairs > 0 || cell->failed)
        report_csv_numbers(&csv, text, (const double[]){cell->median_ns, cell->least_ns, cell->most_ns}, 3);
    }
  return report_csv_close(&csv);
}

/* Explains the dashes in the table.  False if there was a failure. */
static bool pair_explain(const struct bench *bench, const struct pair_result *pair) {
  bool good = true;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < size_count; i++) {
      if (!pair->cells[i][a].failed)
        continue;
      (void)printf("%s at %zu bytes: FAILED.\n", bench->allocators[a]->name, pair_bytes(i));
      good = false;
    }
  return good;
}

bool bench_pair(const struct bench *bench) {
  struct pair_result pair;
  struct report_row rows[size_count];
  if (!bench_each(bench, "pair", pair_part, &pair))
    return false;
  for (size_t i = 0; i < size_count; i++) {
    report_bytes_text(rows[i].label, pair_bytes(i));
    for (size_t a = 0; a < bench->allocator_count; a++)
      rows[i].values[a] = pair.cells[i][a].median_ns;
  }
  struct report_table table = {.title = "pair: ns for one allocation and its free (median of 7 batch means)",
                               .row_title = "size",
                               .rows = rows,
                               .row_count = size_count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  size_t measured = 0;
  while (measured < size_count && pair_bytes(measured) <= bench->capacity_bytes)
    measured++;
  report_left_out_print(&table, measured, bench->capacity_bytes);
  bool good = pair_explain(bench, &pair);
  return pair_csv(bench, &pair) && good;
}
