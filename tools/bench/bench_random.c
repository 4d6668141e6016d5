/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * random: ns an operation under random traffic over 4096 slots, with log-uniform sizes from 256 B to 64 MiB.  Half of
 * the slots are live.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"
#include "bench_traffic.h"

enum { batch_count = 7, chunk_steps = 512 };

struct random_result {
  size_t size_most_bytes;
  size_t operations[allocators_most];
  double median_ns[allocators_most], least_ns[allocators_most], most_ns[allocators_most];
};

/* The mean of as many operations as fit into batch_ns. */
static bool random_batch(struct traffic *traffic, uint64_t batch_ns, double *mean_ns, size_t *operations) {
  size_t count = 0;
  uint64_t start_ns = clock_now_ns(), now_ns = start_ns;
  for (; now_ns - start_ns < batch_ns; now_ns = clock_now_ns()) {
    if (!traffic_run(traffic, chunk_steps))
      return false;
    count += chunk_steps;
  }
  *mean_ns = clock_span_ns(start_ns, now_ns) / (double)count;
  *operations += count;
  return blocks_settle(traffic->allocator);
}

/* Whether the live blocks are sound.  It keeps the order of the slots. */
static bool random_check(const struct traffic *traffic) {
  struct block blocks[traffic_slot_count];
  memcpy(blocks, traffic->slots, sizeof blocks);
  return blocks_check(traffic->allocator, blocks, traffic_slot_count);
}

static bool random_measure(const struct bench *bench, struct traffic *traffic, struct random_result *result,
                           size_t index) {
  double means_ns[batch_count];
  for (size_t i = 0; i < batch_count; i++) {
    progress_within((double)i, batch_count);
    if (!random_batch(traffic, bench->quick ? 10000000 : 150000000, &means_ns[i], &result->operations[index]) ||
        !random_check(traffic))
      return false;
  }
  result->median_ns[index] = numbers_quantile(means_ns, batch_count, 0.5);
  result->least_ns[index] = means_ns[0]; /* they are sorted by now */
  result->most_ns[index] = means_ns[batch_count - 1];
  return true;
}

static bool random_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct random_result *random_times = result;
  struct traffic traffic;
  bool good = traffic_begin(&traffic, allocator, 1, random_times->size_most_bytes) &&
              random_measure(bench, &traffic, random_times, index);
  return traffic_end(&traffic) && good;
}

static bool random_csv(const struct bench *bench, const struct random_result *result) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "random",
                       "allocator,slots,min_bytes,max_bytes,operations,median_ns,min_ns,max_ns"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    report_csv_row(&csv, "%s,%d,%zu,%zu,%zu,%.3f,%.3f,%.3f", bench->allocators[a]->name, (int)traffic_slot_count,
                   traffic_size_least_bytes, result->size_most_bytes, result->operations[a], result->median_ns[a],
                   result->least_ns[a], result->most_ns[a]);
  return report_csv_close(&csv);
}

bool bench_random(const struct bench *bench) {
  struct random_result result = {.size_most_bytes = traffic_size_fit(bench->capacity_bytes, traffic_slot_count)};
  if (!bench_each(bench, "random", random_part, &result))
    return false;
  struct report_row row;
  char title[160], most[report_label_size];
  report_bytes_text(most, result.size_most_bytes);
  (void)snprintf(title, sizeof title, "random: ns an operation, 4096 slots, log-uniform 256 B to %s", most);
  report_bytes_text(row.label, result.size_most_bytes);
  memcpy(row.values, result.median_ns, sizeof row.values);
  struct report_table table = {.title = title, .row_title = "up to", .rows = &row, .row_count = 1};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  return random_csv(bench, &result);
}
