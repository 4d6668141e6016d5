/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * uniform, mixed, warp, large: in one kernel every thread, or one of a warp, allocates a block, and in a second kernel
 * the same threads free them.  The result is the median of some repetitions.  The first one is not timed; its blocks
 * are checked.
 */
#include <stdio.h>

#include "bench_heap.h"
#include "bench_numbers.h"
#include "bench_report.h"

enum { repetitions = 15, repetitions_most = 16, rate_metrics = 6 };

static const double long_us = 100000;

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static struct heap_case *rate_case(struct heap_case *next, unsigned low, unsigned high, unsigned threads_log2) {
  char label[heap_label_size], bytes[report_label_size];
  report_bytes_text(bytes, high);
  if (low == high)
    (void)snprintf(label, sizeof label, "2^%u %.12s", threads_log2, bytes);
  else
    (void)snprintf(label, sizeof label, "2^%u %u-%u B", threads_log2, low, high);
  return heap_case_set(next, label, low, high, (size_t)1 << threads_log2, heap_roomy_bytes);
}

static size_t uniform_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned sizes[] = {16, 64, 256, 1024, 4096, 32, 48, 80, 96, 128, 160, 384, 512, 768, 1536, 2048, 3072};
  const size_t count = quick ? 5 : sizeof sizes / sizeof sizes[0];
  struct heap_case *next = cases;
  for (unsigned threads_log2 = 20; threads_log2 >= 17; threads_log2 -= 3)
    for (size_t i = 0; i < count; i++)
      next = rate_case(next, sizes[i], sizes[i], threads_log2);
  return (size_t)(next - cases);
}

static size_t mixed_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  struct heap_case *next = rate_case(cases, 4, 512, 20);
  next = rate_case(next, 4, 512, 17);
  if (!quick) {
    next = rate_case(next, 16, 128, 20);
    next = rate_case(next, 16, 4096, 20);
    next = rate_case(next, 4, 512, 14);
  }
  return (size_t)(next - cases);
}

static size_t warp_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned sizes[] = {64, 16, 256, 1024, 4096};
  struct heap_case *next = cases;
  for (size_t i = 0; i < (quick ? 2 : sizeof sizes / sizeof sizes[0]); i++) {
    rate_case(next, sizes[i], sizes[i], 15)->every_shift = 0;
    next->every_shift = 5;
    next++;
  }
  return (size_t)(next - cases);
}

/* As many requests as the smaller test has threads, but at most half of the heap. */
static size_t large_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  struct heap_case *next = cases;
  for (unsigned bytes_log2 = 13; bytes_log2 <= 30; bytes_log2 += quick ? 4 : 1)
    next = rate_case(next, 1u << bytes_log2, 1u << bytes_log2, bytes_log2 <= 15 ? 17 : 32 - bytes_log2);
  return (size_t)(next - cases);
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static bool rate_pair(const struct heap_run *run, struct heap_work *work, double *malloc_us, double *free_us) {
  return heap_kernel_time(run, run->heap->malloc, work, malloc_us) &&
         heap_kernel_time(run, run->heap->free, work, free_us);
}

/* The first repetition, in which the blocks are checked between the two kernels. */
static bool rate_verify(const struct heap_run *run, struct heap_work *work, size_t *failed, double *malloc_us,
                        double *free_us) {
  return heap_kernel_time(run, run->heap->malloc, work, malloc_us) && heap_blocks_sound(run, work, failed) &&
         heap_kernel_time(run, run->heap->free, work, free_us);
}

/* How many requests of the last kernel were refused, by their slots. */
static bool rate_refusals(const struct heap_run *run, const struct heap_work *work, size_t *failed) {
  struct heap_inside inside = {0};
  if (run->heap->allocator->hands_out && !gpu_blocks_count(run->gpu, work, &inside))
    return false;
  *failed = run->heap->allocator->hands_out ? run->what->requests - (size_t)inside.blocks : 0;
  return true;
}

static bool rate_run(const struct heap_run *run, struct heap_result *result) {
  double malloc_us[repetitions_most], free_us[repetitions_most];
  struct heap_work work = heap_work_of(run);
  unsigned count = heap_repetitions(run, repetitions);
  size_t failed_first = 0, failed_last = 0;
  bool good = rate_verify(run, &work, &failed_first, &malloc_us[0], &free_us[0]);
  if (good && malloc_us[0] + free_us[0] > long_us) /* then a cold start makes no difference, and one run is enough */
    count = 0;
  for (unsigned i = 0; good && i < count; i++)
    good = rate_pair(run, &work, &malloc_us[i], &free_us[i]);
  if (!good || !rate_refusals(run, &work, &failed_last))
    return false;
  double requests = (double)run->what->requests;
  count = count == 0 ? 1 : count;
  double malloc_median = numbers_quantile(malloc_us, count, 0.5), free_median = numbers_quantile(free_us, count, 0.5);
  const double values[rate_metrics] = {
      malloc_median, free_median, requests / malloc_median, requests / free_median, malloc_us[0], free_us[0],
  };
  result->status = failed_first + failed_last == 0 ? heap_good : heap_refused;
  return heap_result_add(result, 0, values, rate_metrics);
}

static bool rate_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return what->requests <= allocator->requests_most;
}

/* Slow allocators are left out: the smaller sizes show how their time grows. */
static bool large_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return rate_fits(allocator, what) && !allocator->slow;
}

/* numbers_quantile sorts, so the first number is the least. */
#define RATE_METRICS                                                                                                   \
  { "malloc_us", "free_us", "malloc_million_s", "free_million_s", "malloc_least_us", "free_least_us" }
#define RATE_TABLES                                                                                                    \
  {                                                                                                                    \
    {"million mallocs a second", 2, true}, {"million frees a second", 3, true},                                        \
        {"us of the kernel of mallocs, with its launch", 0, false}, {                                                  \
      "us of the kernel of frees, with its launch", 1, false                                                           \
    }                                                                                                                  \
  }

const struct heap_test heap_uniform = {
    .name = "uniform",
    .help = "2^20 and 2^17 threads allocate a block each, then free it: 16 B to 4 KiB",
    .metrics = RATE_METRICS,
    .tables = RATE_TABLES,
    .cases = uniform_cases,
    .fits = rate_fits,
    .run = rate_run,
};

const struct heap_test heap_mixed = {
    .name = "mixed",
    .help = "the same with sizes drawn from a range",
    .metrics = RATE_METRICS,
    .tables = RATE_TABLES,
    .cases = mixed_cases,
    .fits = rate_fits,
    .run = rate_run,
};

const struct heap_test heap_warp = {
    .name = "warp",
    .help = "the same with one request in each of 32,768 warps",
    .metrics = RATE_METRICS,
    .tables = RATE_TABLES,
    .cases = warp_cases,
    .fits = rate_fits,
    .run = rate_run,
};

const struct heap_test heap_large = {
    .name = "large",
    .help = "the same with 8 KiB to 1 GiB",
    .metrics = RATE_METRICS,
    .tables = RATE_TABLES,
    .cases = large_cases,
    .fits = large_fits,
    .run = rate_run,
};
