/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * pair: one allocation and its free, at sizes from 1 B to 1 GiB.  The mean of a batch, and of the batches the median.
 */
#include <math.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_report.h"

enum { batch_count = 7 };

struct pair_cell {
  size_t batch_pairs;
  double median_ns, least_ns, most_ns;
};

struct pair_result {
  struct pair_cell cells[bench_size_count][allocators_most];
};

/* The mean of a batch, which ends settled. */
static bool pair_batch(const struct allocator *allocator, size_t bytes, size_t pairs, double *mean_ns) {
  struct block block = {0};
  /* The first after a pause may have to fetch memory, in every allocator. */
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

/* How many pairs make a batch that is long against the clock and short against patience. */
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
  cell->least_ns = means_ns[0]; /* sorted by now */
  cell->most_ns = means_ns[batch_count - 1];
  return true;
}

static bool pair_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct pair_result *pair = result;
  for (size_t i = 0; i < bench_size_count; i++) {
    struct pair_cell *cell = &pair->cells[i][index];
    *cell = (struct pair_cell){0, (double)NAN, (double)NAN, (double)NAN};
    if (bench_sizes[i] <= bench->capacity_bytes && !pair_measure(bench, allocator, bench_sizes[i], cell))
      return false;
  }
  return true;
}

static bool pair_csv(const struct bench *bench, const struct pair_result *pair) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "pair", "allocator,bytes,batch_pairs,median_ns,min_ns,max_ns"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < bench_size_count; i++) {
      const struct pair_cell *cell = &pair->cells[i][a];
      if (cell->batch_pairs > 0)
        report_csv_row(&csv, "%s,%zu,%zu,%.3f,%.3f,%.3f", bench->allocators[a]->name, bench_sizes[i], cell->batch_pairs,
                       cell->median_ns, cell->least_ns, cell->most_ns);
    }
  return report_csv_close(&csv);
}

bool bench_pair(const struct bench *bench) {
  struct pair_result pair;
  struct report_row rows[bench_size_count];
  if (!bench_each(bench, "pair", pair_part, &pair))
    return false;
  for (size_t i = 0; i < bench_size_count; i++) {
    report_bytes_text(rows[i].label, bench_sizes[i]);
    for (size_t a = 0; a < bench->allocator_count; a++)
      rows[i].values[a] = pair.cells[i][a].median_ns;
  }
  struct report_table table = {.title = "pair: ns for one allocation and its free (median of 7 batch means)",
                               .row_title = "size",
                               .rows = rows,
                               .row_count = bench_size_count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  return pair_csv(bench, &pair);
}
