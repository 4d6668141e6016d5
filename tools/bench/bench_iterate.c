/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * iterate: Futhark's case, an FFT of n points whose iterations allocate and free the same blocks again and again.
 *
 * Each of its log2(n) passes allocates its result and a workspace, works on them, and frees the workspace and the
 * result of the pass before.  Sizes vary by up to a sixteenth from pass to pass and from one iteration to the next.  On
 * a GPU the work is real: a copy of the points into the result, and a memset of the workspace.  Each iteration waits
 * for the GPU at its end, as a program does that reads its result.  Allocations and frees are timed, and so is the
 * whole iteration.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum { row_count = 4, point_bytes = 8, iterations_usual = 300, iterations_quick = 30, warm_up = 5 };

static const unsigned powers[row_count] = {12, 16, 20, 24};

/* The places of the program that allocate. */
static const char result_tag, workspace_tag;

struct iterate_cell {
  double allocation_us, iteration_us; /* medians; NAN: not measured */
};

struct iterate_result {
  struct iterate_cell cells[row_count][allocators_most];
};

struct passes {
  const struct bench *bench;
  const struct allocator *allocator;
  unsigned power;
  struct numbers_random sizes;
  uint64_t spent_ns; /* in allocations and frees of this iteration */
};

static CUdeviceptr device_address(const struct block *block) { return (CUdeviceptr)(uintptr_t)block->address; }

/* Enqueues the work of a pass; without a GPU there is none. */
static bool pass_work(const struct passes *passes, const struct block *before, const struct block *result,
                      const struct block *workspace) {
  const struct driver *driver = passes->bench->machine->driver;
  if (passes->bench->source == MAM_SOURCE_HOST || driver == NULL || driver->cuMemsetD8Async == NULL ||
      driver->cuMemcpyDtoDAsync == NULL)
    return true;
  CUresult error = driver->cuMemsetD8Async(device_address(workspace), 0, workspace->bytes, NULL);
  if (error == CUDA_SUCCESS && before->address != NULL)
    error = driver->cuMemcpyDtoDAsync(device_address(result), device_address(before),
                                      (size_t)point_bytes << passes->power, NULL);
  return error == CUDA_SUCCESS ||
         blocks_complain(passes->allocator, "work on blocks", result->bytes, driver_error(driver, error, "a pass"));
}

static bool pass_allocate(struct passes *passes, struct block *result, struct block *workspace) {
  size_t least = (size_t)point_bytes << passes->power;
  size_t result_bytes = least + numbers_below(&passes->sizes, least / 16);
  size_t workspace_bytes = least / 4 + numbers_below(&passes->sizes, least / 64);
  uint64_t start_ns = clock_now_ns();
  bool good = blocks_allocate_tagged(passes->allocator, result, result_bytes, &result_tag) &&
              blocks_allocate_tagged(passes->allocator, workspace, workspace_bytes, &workspace_tag);
  passes->spent_ns += (uint64_t)clock_span_ns(start_ns, clock_now_ns());
  return good;
}

static bool pass_release(struct passes *passes, struct block *blocks, size_t count) {
  uint64_t start_ns = clock_now_ns();
  bool good = blocks_release(passes->allocator, blocks, count);
  passes->spent_ns += (uint64_t)clock_span_ns(start_ns, clock_now_ns());
  return good;
}

/* One pass.  held: the points before it, and after it the new points. */
static bool pass_run(struct passes *passes, struct block *held) {
  struct block result = {0}, workspace = {0};
  bool good = pass_allocate(passes, &result, &workspace);
  struct block live[] = {*held, result, workspace}, old[] = {workspace, *held};
  good = good && blocks_check(passes->allocator, live, 3) && pass_work(passes, held, &result, &workspace);
  good = pass_release(passes, old, 2) && good;
  *held = result;
  return good;
}

static bool iteration_wait(const struct passes *passes) {
  const struct driver *driver = passes->bench->machine->driver;
  if (driver == NULL)
    return true;
  CUresult error = driver->cuCtxSynchronize();
  return error == CUDA_SUCCESS ||
         blocks_complain(passes->allocator, "waiting for the GPU", 0, driver_error(driver, error, "cuCtxSynchronize"));
}

static bool iteration_run(struct passes *passes, double *allocation_us, double *iteration_us) {
  struct block held = {0};
  bool good = true;
  passes->spent_ns = 0;
  uint64_t start_ns = clock_now_ns();
  for (unsigned i = 0; i < passes->power && good; i++)
    good = pass_run(passes, &held);
  good = good && iteration_wait(passes); /* the program would read the result here */
  good = pass_release(passes, &held, 1) && good;
  *iteration_us = clock_span_ns(start_ns, clock_now_ns()) / 1e3;
  *allocation_us = (double)passes->spent_ns / 1e3;
  return good && blocks_settle(passes->allocator);
}

static bool iterate_measure(const struct bench *bench, struct passes *passes, struct iterate_cell *cell) {
  double allocation_us[iterations_usual], iteration_us[iterations_usual];
  size_t count = bench->quick ? iterations_quick : iterations_usual;
  for (size_t i = 0; i < warm_up; i++)
    if (!iteration_run(passes, &allocation_us[0], &iteration_us[0]))
      return false;
  for (size_t i = 0; i < count; i++)
    if (!iteration_run(passes, &allocation_us[i], &iteration_us[i]))
      return false;
  cell->allocation_us = numbers_quantile(allocation_us, count, 0.5);
  cell->iteration_us = numbers_quantile(iteration_us, count, 0.5);
  return true;
}

/* Three blocks are live at a time; those of a whole iteration may wait for reuse. */
static size_t needed_bytes(unsigned power) { return ((size_t)point_bytes << power) * power * 2; }

static bool iterate_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct iterate_result *iterate = result;
  for (size_t i = 0; i < row_count; i++) {
    struct passes passes = {
        .bench = bench, .allocator = allocator, .power = powers[i], .sizes = numbers_seed(powers[i])};
    struct iterate_cell *cell = &iterate->cells[i][index];
    progress_within((double)i, row_count);
    *cell = (struct iterate_cell){(double)NAN, (double)NAN};
    if (needed_bytes(powers[i]) <= bench->capacity_bytes && !iterate_measure(bench, &passes, cell))
      return false;
  }
  return true;
}

static void iterate_print(const struct bench *bench, const struct iterate_result *iterate, const char *title,
                          bool of_allocation) {
  struct report_row rows[row_count];
  for (size_t i = 0; i < row_count; i++) {
    (void)snprintf(rows[i].label, sizeof rows[i].label, "2^%u", powers[i]);
    for (size_t a = 0; a < bench->allocator_count; a++)
      rows[i].values[a] = of_allocation ? iterate->cells[i][a].allocation_us : iterate->cells[i][a].iteration_us;
  }
  struct report_table table = {.title = title, .row_title = "points", .rows = rows, .row_count = row_count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  size_t measured = 0;
  while (measured < row_count && needed_bytes(powers[measured]) <= bench->capacity_bytes)
    measured++;
  report_left_out_print(&table, measured, bench->capacity_bytes);
}

static bool iterate_csv(const struct bench *bench, const struct iterate_result *iterate) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "iterate", "allocator,points,passes,allocation_us,iteration_us"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < row_count; i++) {
      const struct iterate_cell *cell = &iterate->cells[i][a];
      char text[96];
      (void)snprintf(text, sizeof text, "%s,%zu,%u", bench->allocators[a]->name, (size_t)1 << powers[i], powers[i]);
      report_csv_numbers(&csv, text, (const double[]){cell->allocation_us, cell->iteration_us}, 2);
    }
  return report_csv_close(&csv);
}

bool bench_iterate(const struct bench *bench) {
  struct bench tagged = bench_with_tags(bench);
  struct iterate_result iterate;
  if (!bench_each(&tagged, "iterate", iterate_part, &iterate))
    return false;
  iterate_print(&tagged, &iterate, "iterate: us of an iteration that go into allocations and frees (median)", true);
  iterate_print(&tagged, &iterate, "iterate: us of an iteration as a whole (median)", false);
  return iterate_csv(&tagged, &iterate);
}
