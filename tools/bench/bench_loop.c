/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * loop: a program that allocates n blocks of n sizes, frees them in the same order, and does so again and again, each n
 * in a new pool.  The result is the time of one allocation and its free: the median of the means of batches of rounds.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum { batch_count = 5, count_count = 6, counts_least = 10, blocks_most = counts_least << (count_count - 1) };
enum { range_count = 2, cell_count = range_count * count_count };

static const struct range {
  const char *name;
  size_t least_bytes, most_bytes;
} ranges[range_count] = {{"1 to 16 MiB", 1 << 20, 16 << 20}, {"64 to 128 MiB", 64 << 20, 128 << 20}};

/* The sizes of a cell's blocks, log-uniform. */
struct loop_sizes {
  size_t count, bytes[blocks_most], sum_bytes;
};

struct loop_cell {
  size_t rounds; /* of a batch; 0: not measured */
  double median_ns, least_ns, most_ns;
};

struct loop_result {
  struct loop_sizes sizes[cell_count];
  struct loop_cell cells[cell_count][allocators_most];
};

static const struct range *cell_range(size_t cell) { return &ranges[cell / count_count]; }

static void sizes_draw(const struct bench *bench, size_t cell, struct loop_sizes *sizes) {
  const struct range *range = cell_range(cell);
  struct numbers_random draw = numbers_seed(bench->trace_seed);
  sizes->count = (size_t)counts_least << cell % count_count;
  sizes->sum_bytes = 0;
  for (size_t i = 0; i < sizes->count; i++) {
    sizes->bytes[i] = numbers_log_uniform(&draw, range->least_bytes, range->most_bytes);
    sizes->sum_bytes += sizes->bytes[i];
  }
}

/* looks: whether the blocks are looked at. */
static bool loop_round(const struct allocator *allocator, const struct loop_sizes *sizes, struct block *blocks,
                       bool looks) {
  bool good = true;
  for (size_t i = 0; i < sizes->count && good; i++)
    good = blocks_allocate(allocator, &blocks[i], sizes->bytes[i]);
  good = good && (!looks || blocks_check(allocator, blocks, sizes->count));
  return blocks_release(allocator, blocks, sizes->count) && good;
}

/* The mean of an allocation and its free.  At its end all frees have taken effect. */
static bool loop_batch(const struct allocator *allocator, const struct loop_sizes *sizes, struct block *blocks,
                       size_t rounds, double *mean_ns) {
  bool good = true;
  uint64_t start_ns = clock_now_ns();
  for (size_t i = 0; i < rounds && good; i++)
    good = loop_round(allocator, sizes, blocks, false);
  *mean_ns = clock_span_ns(start_ns, clock_now_ns()) / (double)(rounds * sizes->count);
  return good && blocks_settle(allocator);
}

static bool loop_measure(const struct bench *bench, const struct allocator *allocator, const struct loop_sizes *sizes,
                         struct block *blocks, struct loop_cell *cell) {
  const double batch_ns = bench->quick ? 2e6 : 20e6;
  double means_ns[batch_count], mean_ns = 0;
  if (!loop_round(allocator, sizes, blocks, true))
    return false;
  for (size_t rounds = 1; (double)(rounds * sizes->count) * mean_ns < batch_ns; rounds *= 2) {
    if (!loop_batch(allocator, sizes, blocks, rounds, &mean_ns))
      return false;
    cell->rounds = rounds;
  }
  for (size_t i = 0; i < batch_count; i++)
    if (!loop_batch(allocator, sizes, blocks, cell->rounds, &means_ns[i]))
      return false;
  cell->median_ns = numbers_quantile(means_ns, batch_count, 0.5);
  cell->least_ns = means_ns[0]; /* they are sorted by now */
  cell->most_ns = means_ns[batch_count - 1];
  return true;
}

/* The pool is open before and after, as bench_each expects. */
static bool loop_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct loop_result *loop = result;
  struct block *blocks = calloc(blocks_most, sizeof *blocks);
  bool good = blocks != NULL || blocks_complain(allocator, "bookkeeping", blocks_most * sizeof *blocks, 2);
  for (size_t i = 0; i < cell_count && good; i++) {
    progress_within((double)i, cell_count);
    struct loop_cell *cell = &loop->cells[i][index];
    *cell = (struct loop_cell){0, (double)NAN, (double)NAN, (double)NAN};
    if (loop->sizes[i].sum_bytes <= bench->capacity_bytes / 2)
      good = blocks_pool_close(allocator) && blocks_pool_open(allocator, bench->chunk_bytes) &&
             loop_measure(bench, allocator, &loop->sizes[i], blocks, cell);
  }
  free(blocks);
  return good;
}

static bool loop_csv(const struct bench *bench, const struct loop_result *loop) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "loop",
                       "allocator,blocks,min_bytes,max_bytes,rounds,median_ns,least_ns,most_ns"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < cell_count; i++) {
      const struct loop_cell *cell = &loop->cells[i][a];
      char text[128];
      (void)snprintf(text, sizeof text, "%s,%zu,%zu,%zu,%zu", bench->allocators[a]->name, loop->sizes[i].count,
                     cell_range(i)->least_bytes, cell_range(i)->most_bytes, cell->rounds);
      if (cell->rounds > 0)
        report_csv_numbers(&csv, text, (const double[]){cell->median_ns, cell->least_ns, cell->most_ns}, 3);
    }
  return report_csv_close(&csv);
}

/* A range's table ends where the blocks would take more than half of the memory. */
static void loop_print(const struct bench *bench, const struct loop_result *loop, size_t range) {
  struct report_row rows[count_count];
  char title[128];
  size_t count = 0;
  for (const struct loop_cell(*cells)[allocators_most] = &loop->cells[range * count_count];
       count < count_count && cells[count][0].rounds > 0; count++) {
    (void)snprintf(rows[count].label, sizeof rows[count].label, "%zu", loop->sizes[range * count_count + count].count);
    for (size_t a = 0; a < bench->allocator_count; a++)
      rows[count].values[a] = cells[count][a].median_ns;
  }
  (void)snprintf(title, sizeof title, "loop: ns for one allocation and its free, in a loop over n sizes of %s",
                 ranges[range].name);
  const struct report_table table = {.title = title, .row_title = "n", .rows = rows, .row_count = count};
  if (count > 0)
    report_table_print(&table, bench->allocators, bench->allocator_count);
  if (count < count_count)
    (void)printf("Not measured: %zu sizes of %s and more, which take more than half of the memory.\n",
                 loop->sizes[range * count_count + count].count, ranges[range].name);
}

bool bench_loop(const struct bench *bench) {
  struct loop_result *loop = calloc(1, sizeof *loop);
  if (loop == NULL) {
    (void)fprintf(stderr, "mam-bench: loop: the host has no memory\n");
    return false;
  }
  for (size_t i = 0; i < cell_count; i++)
    sizes_draw(bench, i, &loop->sizes[i]);
  bool good = bench_each(bench, "loop", loop_part, loop);
  for (size_t i = 0; i < range_count && good; i++)
    loop_print(bench, loop, i);
  good = good && loop_csv(bench, loop);
  free(loop);
  return good;
}
