/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * quickstart: what an allocation and a free cost, at sizes from 1 B to 1 GiB.  Some blocks are allocated, then freed.
 */
#include <math.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum { size_count = 8, held_most = 256, rounds_least = 7, rounds_most = 301 };

static const size_t sizes[size_count] = {
    1, 512, (size_t)4 << 10, (size_t)64 << 10, (size_t)1 << 20, (size_t)16 << 20, (size_t)128 << 20, (size_t)1 << 30};

static const uint64_t cell_budget_ns = 60000000; /* so that the whole table takes seconds */

struct quickstart_result {
  struct report_row malloc_rows[size_count], free_rows[size_count];
};

struct round_times {
  double malloc_ns, free_ns; /* each */
};

/* Allocates count blocks, then frees them. */
static bool round_run(const struct allocator *allocator, struct block *blocks, size_t count, size_t bytes,
                      struct round_times *times) {
  cudaError_t error = cudaSuccess;
  size_t done = 0;
  uint64_t start_ns = clock_now_ns();
  for (; done < count && error == cudaSuccess; done++) {
    blocks[done].bytes = bytes;
    error = allocator->allocate(&blocks[done].address, bytes);
  }
  times->malloc_ns = clock_span_ns(start_ns, clock_now_ns()) / (double)count;
  if (error != cudaSuccess) {
    (void)blocks_complain(allocator, "an allocation", bytes, error);
    (void)blocks_release(allocator, blocks, done - 1);
    return false;
  }
  if (!blocks_check(allocator, blocks, count))
    return false;
  start_ns = clock_now_ns();
  for (size_t i = 0; i < count && error == cudaSuccess; i++)
    error = allocator->release(blocks[i].address, bytes);
  times->free_ns = clock_span_ns(start_ns, clock_now_ns()) / (double)count;
  return error == cudaSuccess || blocks_complain(allocator, "a free", bytes, error);
}

static bool cell_measure(const struct allocator *allocator, size_t count, size_t bytes, struct round_times *median) {
  struct block blocks[held_most];
  double malloc_ns[rounds_most], free_ns[rounds_most];
  size_t rounds = 0;
  uint64_t start_ns = clock_now_ns();
  while (rounds < rounds_most && (rounds < rounds_least || clock_now_ns() - start_ns < cell_budget_ns)) {
    struct round_times times;
    /* After a pause, the first round may have to fetch memory, in every allocator.  It is not counted. */
    if (!round_run(allocator, blocks, count, bytes, &times) || !round_run(allocator, blocks, count, bytes, &times) ||
        !blocks_settle(allocator))
      return false;
    malloc_ns[rounds] = times.malloc_ns;
    free_ns[rounds] = times.free_ns;
    rounds++;
  }
  *median = (struct round_times){numbers_quantile(malloc_ns, rounds, 0.5), numbers_quantile(free_ns, rounds, 0.5)};
  return true;
}

static bool quickstart_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct quickstart_result *quickstart = result;
  for (size_t i = 0; i < size_count; i++) {
    progress_within((double)i, size_count);
    /* An eighth of the pool: it is far from full even if all freed memory waits. */
    size_t count = bench->capacity_bytes / 8 / sizes[i];
    count = count > held_most ? held_most : count < 1 ? 1 : count;
    struct round_times median = {(double)NAN, (double)NAN};
    if (sizes[i] <= bench->capacity_bytes && !cell_measure(allocator, count, sizes[i], &median))
      return false;
    quickstart->malloc_rows[i].values[index] = median.malloc_ns;
    quickstart->free_rows[i].values[index] = median.free_ns;
  }
  return true;
}

bool bench_quickstart(const struct bench *bench) {
  struct quickstart_result quickstart;
  for (size_t i = 0; i < size_count; i++) {
    report_bytes_text(quickstart.malloc_rows[i].label, sizes[i]);
    report_bytes_text(quickstart.free_rows[i].label, sizes[i]);
  }
  if (!bench_each(bench, "quickstart", quickstart_part, &quickstart))
    return false;
  struct report_table table = {
      .title = "An allocation, ns", .row_title = "size", .rows = quickstart.malloc_rows, .row_count = size_count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  table.title = "A free, ns";
  table.rows = quickstart.free_rows;
  report_table_print(&table, bench->allocators, bench->allocator_count);
  size_t measured = 0;
  while (measured < size_count && sizes[measured] <= bench->capacity_bytes)
    measured++;
  report_left_out_print(&table, measured, bench->capacity_bytes);
  report_remarks_print(bench->allocators, bench->allocator_count);
  return true;
}
