/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * access: how long it takes to write and to read blocks, against the same kernels on a plain array.  Each thread uses
 * its own block, or a whole warp uses the blocks of its threads.
 */
#include <math.h>
#include <stdio.h>

#include "bench_heap.h"
#include "bench_numbers.h"
#include "bench_report.h"

enum { access_repetitions = 9, access_repetitions_most = 10, access_kinds = 4 };

static size_t access_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned sizes[] = {16, 64, 256, 1024, 32, 128, 512};
  struct heap_case *next = cases;
  for (size_t i = 0; i < (quick ? 4 : sizeof sizes / sizeof sizes[0]); i++)
    for (unsigned threads_log2 = 20; threads_log2 >= 17; threads_log2 -= 3) {
      char label[heap_label_size], bytes[report_label_size];
      report_bytes_text(bytes, sizes[i]);
      (void)snprintf(label, sizeof label, "2^%u %.12s", threads_log2, bytes);
      next = heap_case_set(next, label, sizes[i], sizes[i], (size_t)1 << threads_log2, heap_roomy_bytes);
    }
  return (size_t)(next - cases);
}

static bool access_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return allocator->hands_out && what->requests <= allocator->requests_most;
}

/* The medians of writing and reading by thread and by warp, on the blocks in the slots. */
static bool access_time(const struct heap_run *run, struct heap_work *work, double median_us[access_kinds]) {
  const struct heap_gpu *gpu = run->gpu;
  const CUfunction kernels[access_kinds] = {gpu->write_by_thread, gpu->read_by_thread, gpu->write_by_warp,
                                            gpu->read_by_warp};
  CUdeviceptr sink = gpu->scratch;
  void *parameters[] = {work, &sink};
  double us[access_repetitions_most];
  for (size_t kind = 0; kind < access_kinds; kind++) {
    for (unsigned i = 0; i < access_repetitions_most; i++)
      if (!gpu_time(gpu, kernels[kind], (size_t)work->count, parameters, &us[i]))
        return false;
    median_us[kind] = numbers_quantile(us + 1, access_repetitions, 0.5); /* the first one only warms caches */
  }
  return true;
}

static bool access_plain(const struct heap_run *run, struct heap_work *work, double median_us[access_kinds]) {
  const struct driver *driver = run->gpu->driver;
  CUdeviceptr array = 0;
  if (!gpu_accept(run->gpu, driver->cuMemAlloc(&array, (size_t)work->count * work->low), "cuMemAlloc"))
    return false;
  void *parameters[] = {work, &array};
  bool good = gpu_run(run->gpu, run->gpu->plain, (size_t)work->count, parameters) && access_time(run, work, median_us);
  return gpu_accept(run->gpu, driver->cuMemFree(array), "cuMemFree") && good;
}

/* Fills every slot, because the kernels of access read every one. */
static bool access_allocate(const struct heap_run *run, struct heap_work *work) {
  size_t failed = 0;
  if (!heap_kernel_run(run, run->heap->malloc, work) || !heap_blocks_sound(run, work, &failed))
    return false;
  if (failed != 0)
    (void)fprintf(stderr, "mam-bench: heap: access: %s refused %zu of %zu\n", run->heap->allocator->name, failed,
                  run->what->requests);
  return failed == 0;
}

static bool access_run(const struct heap_run *run, struct heap_result *result) {
  struct heap_work work = heap_work_of(run);
  double values[3 * access_kinds], *plain_us = values + access_kinds, *ratio = plain_us + access_kinds;
  if (!access_allocate(run, &work) || !access_time(run, &work, values) ||
      !heap_kernel_run(run, run->heap->free, &work) || !access_plain(run, &work, plain_us))
    return false;
  for (size_t kind = 0; kind < access_kinds; kind++)
    ratio[kind] = values[kind] / plain_us[kind];
  const double row[] = {ratio[0], ratio[1], ratio[2], ratio[3], values[0], values[1], values[2], values[3]};
  return heap_result_add(result, 0, row, 8);
}

const struct heap_test heap_access = {
    .name = "access",
    .help = "how long it takes to write and read blocks, against a plain array",
    .metrics = {"thread_write_ratio", "thread_read_ratio", "warp_write_ratio", "warp_read_ratio", "thread_write_us",
                "thread_read_us", "warp_write_us", "warp_read_us"},
    .tables = {{"time to write each block by its thread, over a plain array's", 0, false},
               {"to read them so", 1, false},
               {"to write them by warps", 2, false},
               {"to read them so", 3, false}},
    .cases = access_cases,
    .fits = access_fits,
    .run = access_run,
};
