/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What every test of `mam-bench heap` gets, and the tests themselves: bench_heap_NAME.c.
 *
 * A test is a list of cases, each measured on every allocator.  A cell is one case of one allocator.  It gives one row
 * of numbers, or a row for each step if the test follows something over time.  Cells are independent of each other, so
 * that those of a guarded allocator can run in another process.
 */
#ifndef MAM_BENCH_HEAP_H
#define MAM_BENCH_HEAP_H

#include <stdbool.h>
#include <stddef.h>

#include "bench_heap_allocators.h"

enum { heap_metrics_most = 10, heap_cases_most = 96, heap_label_size = 24, heap_tables_most = 4 };

struct heap_case {
  char label[heap_label_size];
  unsigned low, high; /* bytes of a request */
  size_t requests;    /* in one kernel */
  unsigned every_shift;
  size_t heap_bytes;
  unsigned superblocks;
};

enum heap_status { heap_good, heap_refused, heap_hung, heap_failed, heap_not_run };

struct heap_row {
  double step; /* of a test over time; else 0 */
  double values[heap_metrics_most];
};

/* The result of a cell.  Its owner calls heap_result_free. */
struct heap_result {
  enum heap_status status;
  struct heap_row *rows;
  size_t row_count, row_room;
};

struct heap_run {
  const struct heap_gpu *gpu;
  struct heap *heap; /* of the case, and empty */
  const struct heap_case *what;
  bool quick;
};

/* A metric that is printed as a table of its own, with cases in rows and allocators in columns. */
struct heap_table {
  const char *title;
  unsigned metric;
  bool higher_is_better;
};

struct heap_test {
  const char *name, *help;
  const char *metrics[heap_metrics_most];     /* column names; NULL ends them */
  struct heap_table tables[heap_tables_most]; /* a NULL title ends them */
  size_t (*cases)(bool quick, struct heap_case cases[heap_cases_most]);
  /* Whether the test can measure this allocator. */
  bool (*fits)(const struct heap_allocator *allocator, const struct heap_case *what);
  bool (*run)(const struct heap_run *run, struct heap_result *result);
};

extern const struct heap_test heap_uniform, heap_mixed, heap_warp, heap_large, heap_churn, heap_share, heap_failing,
    heap_access, heap_create, heap_threads, heap_fill, heap_spread, heap_small, heap_latency;

extern const size_t heap_roomy_bytes; /* the heap of tests that should not run out of memory */

/* Adds a row; false if there is no host memory. */
bool heap_result_add(struct heap_result *result, double step, const double *values, size_t count);
void heap_result_free(struct heap_result *result);

/* Fills a case and returns the next one's place. */
struct heap_case *heap_case_set(struct heap_case *what, const char *label, unsigned low, unsigned high, size_t requests,
                                size_t heap_bytes);

/* The requests of a case, without times and sizes. */
struct heap_work heap_work_of(const struct heap_run *run);

/* How often a measurement is repeated. */
unsigned heap_repetitions(const struct heap_run *run, unsigned usual);

/* Runs one kernel of an allocator on the work; the second function returns its microseconds. */
bool heap_kernel_run(const struct heap_run *run, CUfunction kernel, struct heap_work *work);
bool heap_kernel_time(const struct heap_run *run, CUfunction kernel, struct heap_work *work, double *us);

/* Whether the blocks of work are sound, with a message if not.  A request without a block is no fault of the blocks,
 * but is counted.  An allocator that hands nothing out passes. */
bool heap_blocks_sound(const struct heap_run *run, const struct heap_work *work, size_t *failed);

/* The command. */
int bench_heap(int argc, char **argv);

#endif
