/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * live: the paper's figure 10.  It measures the time of an allocation of 1 to 10 bytes while n blocks are live, for n =
 * 1, 10, ... 10^7, and the host memory for each of the n blocks: by the resident set of the process, by what malloc has
 * given out, and by what the pool says of itself.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum {
  step_most = 8,          /* 10^0 to 10^7 */
  batch_most = 1000,      /* allocations while n blocks are live, of which the mean is taken */
  resident_least = 100000 /* with fewer blocks the resident set, counted in pages, says nothing */
};

enum live_state { live_measured, live_over_budget, live_refused };
static const char *const state_texts[] = {"measured", "not run: over the time budget", "not run: memory is full"};

/* Ways to count host memory. */
enum memory { memory_resident, memory_malloc, memory_metadata, memory_count };

struct live_cell {
  enum live_state state;
  size_t batch;
  double malloc_ns;
  double host_bytes[memory_count]; /* for each live block; NAN: not known */
};

struct live_result {
  size_t step_count;
  struct live_cell cells[step_most][allocators_most];
};

struct live_run {
  const struct allocator *allocator;
  struct block *blocks;
  size_t count;
  uint64_t spent_ns, budget_ns; /* filling */
};

/* Allocates until count blocks are live. */
static bool live_fill(struct live_run *run, size_t count, enum live_state *state) {
  struct numbers_random sizes = numbers_seed(count);
  uint64_t start_ns = clock_now_ns();
  *state = live_measured;
  while (run->count < count && *state == live_measured) {
    struct block *block = &run->blocks[run->count];
    block->bytes = 1 + numbers_below(&sizes, 10);
    cudaError_t error = run->allocator->allocate(&block->address, block->bytes);
    if (error == cudaErrorMemoryAllocation)
      *state = live_refused;
    else if (error != cudaSuccess)
      return blocks_complain(run->allocator, "an allocation", block->bytes, error);
    else if (++run->count % 256 == 0 && clock_now_ns() - start_ns + run->spent_ns > run->budget_ns)
      *state = live_over_budget;
  }
  run->spent_ns += clock_now_ns() - start_ns;
  return true;
}

/* The mean of batch more allocations, which are then freed. */
static bool live_batch(struct live_run *run, size_t batch, double *mean_ns) {
  struct block *blocks = &run->blocks[run->count];
  cudaError_t error = cudaSuccess;
  size_t done = 0;
  for (size_t i = 0; i < batch; i++)
    blocks[i].bytes = 1 + i % 10;
  uint64_t start_ns = clock_now_ns();
  for (; done < batch && error == cudaSuccess; done++)
    error = run->allocator->allocate(&blocks[done].address, blocks[done].bytes);
  *mean_ns = clock_span_ns(start_ns, clock_now_ns()) / (double)batch;
  if (error != cudaSuccess)
    return blocks_complain(run->allocator, "an allocation", blocks[done - 1].bytes, error);
  return blocks_release(run->allocator, blocks, batch);
}

static bool live_measure(struct live_run *run, size_t batch, double *median_ns) {
  enum { few = 7, many = 101 };
  double means_ns[many];
  size_t repetitions = batch < batch_most ? many : few; /* a short batch is close to the clock's cost */
  for (size_t i = 0; i < repetitions; i++)
    if (!live_batch(run, batch, &means_ns[i]))
      return false;
  *median_ns = numbers_quantile(means_ns, repetitions, 0.5);
  return true;
}

/* Reads the memory now, in each way; NAN where it is not known. */
static bool memory_read(const struct allocator *allocator, double bytes[memory_count]) {
  size_t resident_bytes = clock_resident_bytes(), malloc_bytes = clock_malloc_bytes(), metadata_bytes = 0;
  if (allocator->metadata != NULL) {
    cudaError_t error = allocator->metadata(&metadata_bytes);
    if (error != cudaSuccess)
      return blocks_complain(allocator, "asking for its host memory", 0, error);
  }
  bytes[memory_resident] = resident_bytes != 0 ? (double)resident_bytes : (double)NAN;
  bytes[memory_malloc] = malloc_bytes != 0 ? (double)malloc_bytes : (double)NAN;
  bytes[memory_metadata] = allocator->metadata != NULL ? (double)metadata_bytes : (double)NAN;
  return true;
}

/* The memory that each of count blocks has added. */
static bool memory_measure(const struct live_run *run, const double before[memory_count], size_t count,
                           double per_block[memory_count]) {
  double now[memory_count] = {0};
  if (!memory_read(run->allocator, now))
    return false;
  for (size_t i = 0; i < memory_count; i++)
    per_block[i] = (now[i] - before[i]) / (double)count;
  return true;
}

static bool live_steps(struct live_run *run, struct live_result *live, size_t index) {
  double before[memory_count] = {0};
  if (!memory_read(run->allocator, before))
    return false;
  size_t count = 1;
  enum live_state state = live_measured;
  for (size_t step = 0; step < live->step_count; step++, count *= 10) {
    struct live_cell *cell = &live->cells[step][index];
    progress_within((double)step, (double)live->step_count);
    if (state == live_measured && !live_fill(run, count, &state))
      return false;
    *cell = (struct live_cell){
        state, count < batch_most ? count : batch_most, (double)NAN, {(double)NAN, (double)NAN, (double)NAN}};
    if (state != live_measured)
      continue;
    if (count >= resident_least && !memory_measure(run, before, count, cell->host_bytes))
      return false;
    if (!live_measure(run, cell->batch, &cell->malloc_ns))
      return false;
  }
  return blocks_check(run->allocator, run->blocks, run->count);
}

static bool live_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct live_result *live = result;
  size_t room = batch_most;
  for (size_t step = 0, count = 1; step < live->step_count; step++, count *= 10)
    room = count + batch_most;
  struct live_run run = {.allocator = allocator,
                         .blocks = malloc(room * sizeof(struct block)),
                         .budget_ns = bench->quick ? 3000000000 : 20000000000};
  if (run.blocks == NULL)
    return blocks_complain(allocator, "bookkeeping", room * sizeof(struct block), cudaErrorMemoryAllocation);
  memset(run.blocks, 0xff, room * sizeof(struct block)); /* becomes resident now, and not during the measurement */
  bool good = live_steps(&run, live, index);
  good = blocks_release(allocator, run.blocks, run.count) && good;
  free(run.blocks);
  return good;
}

static bool live_csv(const struct bench *bench, const struct live_result *live) {
  struct report_csv csv;
  if (!report_csv_open(
          &csv, bench->csv_directory, "live",
          "allocator,live,batch,state,malloc_ns,host_bytes_per_block,malloc_bytes_per_block,metadata_bytes_per_block"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++) {
    size_t count = 1;
    for (size_t step = 0; step < live->step_count; step++, count *= 10) {
      const struct live_cell *cell = &live->cells[step][a];
      char text[128];
      (void)snprintf(text, sizeof text, "%s,%zu,%zu,%s", bench->allocators[a]->name, count, cell->batch,
                     state_texts[cell->state]);
      report_csv_numbers(&csv, text,
                         (const double[]){cell->malloc_ns, cell->host_bytes[memory_resident],
                                          cell->host_bytes[memory_malloc], cell->host_bytes[memory_metadata]},
                         4);
    }
  }
  return report_csv_close(&csv);
}

/* Prints the times, or the host memory by one of the ways. */
static void live_print(const struct bench *bench, const struct live_result *live, const char *title,
                       enum memory memory) {
  bool of_memory = memory != memory_count;
  struct report_row rows[step_most];
  size_t row_count = 0, count = 1;
  for (size_t step = 0; step < live->step_count; step++, count *= 10) {
    if (of_memory && count < resident_least)
      continue;
    struct report_row *row = &rows[row_count++];
    report_count_text(row->label, count);
    for (size_t a = 0; a < bench->allocator_count; a++)
      row->values[a] = of_memory ? live->cells[step][a].host_bytes[memory] : live->cells[step][a].malloc_ns;
  }
  struct report_table table = {.title = title, .row_title = "live", .rows = rows, .row_count = row_count};
  if (row_count > 0)
    report_table_print(&table, bench->allocators, bench->allocator_count);
}

/* Explains the dashes in the tables. */
static void live_explain(const struct bench *bench, const struct live_result *live) {
  for (size_t a = 0; a < bench->allocator_count; a++) {
    size_t count = 1;
    for (size_t step = 0; step < live->step_count; step++, count *= 10)
      if (live->cells[step][a].state != live_measured)
        (void)printf("%s with %zu live: %s.\n", bench->allocators[a]->name, count,
                     state_texts[live->cells[step][a].state]);
  }
}

bool bench_live(const struct bench *bench) {
  struct live_result live = {0};
  for (size_t count = 1; live.step_count < step_most && count <= bench->live_most; count *= 10)
    live.step_count++;
  if (!bench_each(bench, "live", live_part, &live))
    return false;
  live_print(bench, &live, "live, figure 10: ns of an allocation of 1 to 10 bytes after n live ones", memory_count);
  live_print(bench, &live, "live: bytes of host memory for each of n live blocks, by the process's resident set",
             memory_resident);
  live_print(bench, &live, "the same, by what malloc has given out", memory_malloc);
  live_print(bench, &live, "the same, by what the pool counts as its own", memory_metadata);
  live_explain(bench, &live);
  return live_csv(bench, &live);
}
