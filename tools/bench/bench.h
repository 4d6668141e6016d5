/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What every test of mam-bench gets, and the tests themselves: one file each, bench_NAME.c.
 *
 * A test measures all allocators of the list in turn, each with the memory to itself, prints its table and writes its
 * CSV.  It returns false, after a message on stderr, if a call failed or an address was wrong.
 */
#ifndef MAM_BENCH_H
#define MAM_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench_allocators.h"
#include "bench_machine.h"

struct bench {
  const struct machine *machine;
  MAM_Source source;
  MAM_Reuse reuse;
  const struct allocator *allocators[allocators_most]; /* ours first */
  size_t allocator_count;
  size_t chunk_bytes;        /* for MAM_Create; 0: MAM_Create_auto */
  size_t capacity_bytes;     /* of our pool; every allocator counts as full with so many bytes */
  const char *csv_directory; /* NULL: none */
  bool quick;                /* shorter and rougher, for a look or for CI */
  size_t live_most;          /* for the test live */
  unsigned threads_most;     /* for the test threads; how many soak uses */
  unsigned soak_s;
  uint64_t trace_seed; /* for the tests trace, chunk, cold, full and loop */
};

bool bench_quickstart(const struct bench *bench);
bool bench_size(const struct bench *bench);
bool bench_live(const struct bench *bench);
bool bench_pair(const struct bench *bench);
bool bench_random(const struct bench *bench);
bool bench_threads(const struct bench *bench);
bool bench_trace(const struct bench *bench);
bool bench_chunk(const struct bench *bench);
bool bench_cold(const struct bench *bench);
bool bench_full(const struct bench *bench);
bool bench_iterate(const struct bench *bench);
bool bench_loop(const struct bench *bench);
bool bench_stall(const struct bench *bench);
bool bench_soak(const struct bench *bench);

/* One allocator's part of a test; index is its place in the list and result the test's own. */
typedef bool bench_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result);

/* Runs a part for every allocator, opens it before and closes it after, and shows the progress (bench_progress.h). */
bool bench_each(const struct bench *bench, const char *test, bench_part *part, void *result);

/* The same bench, with our allocator once more at the end of the list, which then allocates with tags. */
struct bench bench_with_tags(const struct bench *bench);

#endif
