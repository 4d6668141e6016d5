/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * full: how much of a pool of fixed size is live when it refuses a block.  Sizes are log-uniform.
 *
 * Two figures for each pool and range of sizes: the share that is live at the first refusal, and the mean share at the
 * refusals of the rounds after that.  In each round every second block, by chance, is freed, and blocks are allocated
 * until one is refused.  The yardstick is plain best fit: a freed block is free at once and joins its neighbours, and
 * nothing is kept.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_best_fit.h"
#include "bench_blocks.h"
#include "bench_numbers.h"
#include "bench_report.h"

enum { pool_count = 3, range_count = 3, cell_count = pool_count * range_count, rounds_usual = 30, rounds_quick = 5 };

static const size_t pools_bytes[pool_count] = {(size_t)16 << 20, (size_t)64 << 20, (size_t)256 << 20};

static const struct range {
  const char *name;
  size_t least_bytes, most_bytes;
} ranges[range_count] = {
    {"256 B to 16 KiB", 256, 16 << 10}, {"256 B to 1 MiB", 256, 1 << 20}, {"16 KiB to 1 MiB", 16 << 10, 1 << 20}};

struct full_shares {
  double first, later; /* NAN: not known */
};

struct full_result {
  struct full_shares cells[allocators_most][cell_count], best_fit[cell_count];
};

/* A pool under test: an allocator, or best fit if that is NULL. */
struct full_pool {
  const struct allocator *allocator;
  struct best_fit fit;
  struct block *blocks; /* count live ones; of best fit any address that is not NULL */
  size_t count, room, bytes, live_bytes;
  struct numbers_random draw;
};

/* Allocates a block in the place `at`.  *refused: there is no room.  False, after a complaint, at any other error. */
static bool full_allocate(struct full_pool *pool, size_t at, size_t bytes, bool *refused) {
  struct block *block = &pool->blocks[at];
  *refused = false;
  if (pool->allocator == NULL) {
    *refused = !best_fit_allocate(&pool->fit, (uint32_t)at, bytes);
    block->address = *refused ? NULL : pool;
  } else {
    cudaError_t error = pool->allocator->allocate(&block->address, bytes);
    if (error != cudaSuccess && error != cudaErrorMemoryAllocation)
      return blocks_complain(pool->allocator, "an allocation", bytes, error);
    *refused = error != cudaSuccess;
  }
  block->bytes = bytes;
  if (*refused)
    block->address = NULL;
  else
    pool->live_bytes += bytes;
  return true;
}

static bool full_release(struct full_pool *pool, size_t at) {
  struct block *block = &pool->blocks[at];
  pool->live_bytes -= block->bytes;
  if (pool->allocator != NULL)
    return blocks_release(pool->allocator, block, 1);
  best_fit_release(&pool->fit, (uint32_t)at);
  block->address = NULL;
  return true;
}

/* Allocates until a block is refused.  The places of freed blocks are used again. */
static bool full_fill(struct full_pool *pool, const struct range *range, double *share) {
  bool refused = false;
  for (size_t at = 0; !refused; at++) {
    while (at < pool->count && pool->blocks[at].address != NULL)
      at++;
    if (at == pool->room) {
      (void)fprintf(stderr, "mam-bench: full: a pool of %zu bytes has room for more than %zu blocks\n", pool->bytes,
                    at);
      return false;
    }
    if (!full_allocate(pool, at, numbers_log_uniform(&pool->draw, range->least_bytes, range->most_bytes), &refused))
      return false;
    if (!refused && at == pool->count)
      pool->count++;
  }
  *share = (double)pool->live_bytes / (double)pool->bytes;
  return true;
}

static bool full_rounds(struct full_pool *pool, const struct range *range, size_t rounds, struct full_shares *shares) {
  bool good = full_fill(pool, range, &shares->first);
  shares->later = 0;
  for (size_t i = 0; i < rounds && good; i++) {
    for (size_t at = 0; at < pool->count && good; at++)
      if (pool->blocks[at].address != NULL && numbers_below(&pool->draw, 2) == 0)
        good = full_release(pool, at);
    double share = 0;
    good = good && (pool->allocator == NULL || blocks_settle(pool->allocator)) && full_fill(pool, range, &share);
    shares->later += share / (double)rounds;
  }
  return good;
}

/* allocator: NULL for best fit.  Its pool is closed before and after. */
static bool full_measure(const struct bench *bench, const struct allocator *allocator, size_t cell,
                         struct full_shares *shares) {
  const struct range *range = &ranges[cell % range_count];
  struct full_pool pool = {
      .allocator = allocator, .bytes = pools_bytes[cell / range_count], .draw = numbers_seed(bench->trace_seed)};
  size_t rounds = bench->quick ? rounds_quick : rounds_usual;
  pool.room = pool.bytes / range->least_bytes + 1;
  pool.blocks = calloc(pool.room, sizeof *pool.blocks);
  bool good = pool.blocks != NULL && (allocator != NULL || best_fit_make(&pool.fit, pool.room));
  if (!good)
    (void)fprintf(stderr, "mam-bench: full: the host has no memory for %zu blocks\n", pool.room);
  if (good && allocator == NULL) {
    best_fit_begin(&pool.fit, pool.bytes);
    good = full_rounds(&pool, range, rounds, shares);
  } else if (good && (good = blocks_pool_open(allocator, pool.bytes))) {
    good = full_rounds(&pool, range, rounds, shares) && blocks_check(allocator, pool.blocks, pool.count);
    good = blocks_release(allocator, pool.blocks, pool.count) && good;
    good = blocks_pool_close(allocator) && good;
  }
  if (allocator == NULL)
    best_fit_free(&pool.fit);
  free(pool.blocks);
  return good;
}

/* The pool is open before and after, as bench_each expects. */
static bool full_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct full_result *full = result;
  bool good = blocks_pool_close(allocator);
  for (size_t i = 0; i < cell_count && good; i++) {
    full->cells[index][i] = (struct full_shares){(double)NAN, (double)NAN};
    if (allocator->sized && pools_bytes[i / range_count] <= bench->capacity_bytes)
      good = full_measure(bench, allocator, i, &full->cells[index][i]);
  }
  return good && blocks_pool_open(allocator, bench->chunk_bytes);
}

static bool full_csv(const struct bench *bench, const struct full_result *result) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "full",
                       "allocator,pool_bytes,min_bytes,max_bytes,share_first,share_later"))
    return false;
  for (size_t a = 0; a <= bench->allocator_count; a++) {
    bool yardstick = a == bench->allocator_count;
    for (size_t i = 0; i < cell_count && (yardstick || bench->allocators[a]->sized); i++) {
      const struct full_shares *cell = yardstick ? &result->best_fit[i] : &result->cells[a][i];
      char text[160];
      (void)snprintf(text, sizeof text, "%s,%zu,%zu,%zu", yardstick ? "best fit" : bench->allocators[a]->name,
                     pools_bytes[i / range_count], ranges[i % range_count].least_bytes,
                     ranges[i % range_count].most_bytes);
      report_csv_numbers(&csv, text, (const double[]){cell->first, cell->later}, 2);
    }
  }
  return report_csv_close(&csv);
}

static void full_print(const struct bench *bench, const struct full_result *result) {
  static const char *const titles[] = {
      "full: share of a pool of fixed size that is live at the first refusal",
      "the same: mean share at the refusals of rounds in which every second block is freed"};
  for (size_t t = 0; t < sizeof titles / sizeof titles[0]; t++) {
    struct report_row rows[cell_count];
    struct report_column columns[allocators_most + 1];
    size_t count = 0;
    for (size_t a = 0; a <= bench->allocator_count; a++) {
      bool yardstick = a == bench->allocator_count;
      if (!yardstick && !bench->allocators[a]->sized)
        continue;
      for (size_t i = 0; i < cell_count; i++) {
        const struct full_shares *cell = yardstick ? &result->best_fit[i] : &result->cells[a][i];
        rows[i].values[count] = t == 0 ? cell->first : cell->later;
      }
      columns[count++].name = yardstick ? "best fit" : bench->allocators[a]->name;
    }
    for (size_t i = 0; i < cell_count; i++)
      (void)snprintf(rows[i].label, sizeof rows[i].label, "%3uM: %.15s",
                     (unsigned)(pools_bytes[i / range_count] >> 20) % 1000, ranges[i % range_count].name);
    const struct report_table table = {.title = titles[t],
                                       .row_title = "pool: sizes",
                                       .higher_is_better = true,
                                       .rows = rows,
                                       .row_count = cell_count};
    report_columns_print(&table, columns, count);
  }
}

bool bench_full(const struct bench *bench) {
  struct full_result result = {0};
  bool good = true;
  for (size_t i = 0; i < cell_count && good; i++)
    good = full_measure(bench, NULL, i, &result.best_fit[i]);
  if (!good || !bench_each(bench, "full", full_part, &result))
    return false;
  full_print(bench, &result);
  return full_csv(bench, &result);
}
