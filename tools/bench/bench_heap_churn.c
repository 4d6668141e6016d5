/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * churn, threads: the paper's scenario.  In each round a thread that has a block frees it, and one that has none
 * allocates, each with a chance of 0.75.  After some rounds the share of live blocks is steady, and the measurement
 * begins.  churn gives the milliseconds of a round.  threads (figure 3) gives the cycles of a call, and how much they
 * vary.
 */
#include <math.h>
#include <stdio.h>

#include "bench_heap.h"
#include "bench_numbers.h"

enum { warm_rounds = 10, rounds = 20, chance = heap_chance_whole / 4 * 3, timed_requests_most = 1 << 20 };

static struct heap_work churn_work(const struct heap_run *run) {
  struct heap_work work = heap_work_of(run);
  work.alloc_chance = work.free_chance = chance;
  work.sizes = (unsigned *)run->gpu->sizes;
  work.cycles = (unsigned *)run->gpu->cycles;
  return work;
}

static bool churn_begin(const struct heap_run *run) {
  return gpu_clear(run->gpu, run->gpu->slots, run->what->requests * sizeof(heap_word)) &&
         gpu_clear(run->gpu, run->gpu->sizes, run->what->requests * sizeof(unsigned));
}

/* Runs rounds without measuring, until the share of live blocks is steady. */
static bool churn_warm(const struct heap_run *run, CUfunction kernel, struct heap_work *work) {
  unsigned count = heap_repetitions(run, warm_rounds);
  for (unsigned i = 0; i < (count < 6 ? 6 : count); i++) {
    work->seed++;
    if (!heap_kernel_run(run, kernel, work))
      return false;
  }
  return true;
}

/* Frees the blocks that are left. */
static bool churn_end(const struct heap_run *run, struct heap_work *work) {
  return heap_kernel_run(run, run->heap->free, work);
}

/* ---- Milliseconds of a round ------------------------------------------------------------------------------------- */

static size_t churn_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  struct heap_case *next = cases;
  const size_t roomy = heap_roomy_bytes, tight = (size_t)1 << 30, threads = (size_t)1 << 20;
  next = heap_case_set(next, "16 B, 8 GiB", 16, 16, threads, roomy);
  next = heap_case_set(next, "512 B, 8 GiB", 512, 512, threads, roomy);
  next = heap_case_set(next, "128-160 B, 8 GiB", 128, 160, threads, roomy);
  if (quick)
    return (size_t)(next - cases);
  next = heap_case_set(next, "16 B, 1 GiB", 16, 16, threads, tight);
  next = heap_case_set(next, "512 B, 1 GiB", 512, 512, threads, tight);
  next = heap_case_set(next, "128-160 B, 1 GiB", 128, 160, threads, tight);
  next = heap_case_set(next, "2^17, 128-160 B", 128, 160, threads / 8, roomy);
  return (size_t)(next - cases);
}

static bool churn_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return what->requests <= allocator->requests_most && (!allocator->fixed || what->heap_bytes == heap_roomy_bytes);
}

/* Blocks of many rounds are live together, so overlaps of memory that was reused show here. */
static bool churn_verify(const struct heap_run *run, struct heap_work *work) {
  struct heap_inside inside = {0};
  struct heap_work seen = *work;
  size_t empty = 0;
  return heap_kernel_run(run, run->heap->churn_timed, work) && heap_blocks_sound(run, &seen, &empty) &&
         gpu_blocks_count(run->gpu, &seen, &inside);
}

static bool churn_run(const struct heap_run *run, struct heap_result *result) {
  double round_us[rounds];
  struct heap_work work = churn_work(run);
  unsigned count = heap_repetitions(run, rounds);
  bool good = churn_begin(run) && churn_warm(run, run->heap->churn_timed, &work) && churn_verify(run, &work);
  for (unsigned i = 0; good && i < count; i++) {
    work.seed++;
    good = heap_kernel_time(run, run->heap->churn, &work, &round_us[i]);
  }
  if (!good || !churn_end(run, &work))
    return false;
  double median_us = numbers_quantile(round_us, count, 0.5);
  const double values[] = {median_us / 1e3, round_us[0] / 1e3, round_us[count - 1] / 1e3};
  return heap_result_add(result, 0, values, 3);
}

const struct heap_test heap_churn = {
    .name = "churn",
    .help = "rounds in which 2^20 threads allocate or free with a chance of 0.75",
    .metrics = {"round_ms", "round_least_ms", "round_most_ms"},
    .tables = {{"ms of a round", 0, false}},
    .cases = churn_cases,
    .fits = churn_fits,
    .run = churn_run,
};

/* ---- Cycles of a call: figure 3 ---------------------------------------------------------------------------------- */

static size_t threads_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned sizes[] = {16, 32, 64, 128};
  struct heap_case *next = cases;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i += quick ? 3 : 1)
    for (unsigned threads_log2 = 5; threads_log2 <= 20; threads_log2 += quick ? 3 : 1) {
      char label[heap_label_size];
      (void)snprintf(label, sizeof label, "%u B 2^%u", sizes[i], threads_log2);
      next = heap_case_set(next, label, sizes[i], sizes[i], (size_t)1 << threads_log2, (size_t)1 << 30);
    }
  return (size_t)(next - cases);
}

/* Slow allocators run up to about the paper's 15,000 threads. */
static bool threads_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return allocator->hands_out && what->requests <= allocator->requests_most &&
         (!allocator->slow || what->requests <= 16384);
}

/* Sums over rounds, for means that are weighted by the number of calls. */
struct cycles_total {
  double count, sum, squares, most;
};

static void cycles_total_add(struct cycles_total *total, struct gpu_cycles round) {
  if (round.count == 0)
    return;
  double count = (double)round.count;
  total->count += count;
  total->sum += count * round.mean;
  total->squares += count * round.mean * round.mean * (1 + round.variation * round.variation);
  total->most = round.most > total->most ? round.most : total->most;
}

static double cycles_total_mean(const struct cycles_total *total) {
  return total->count == 0 ? (double)NAN : total->sum / total->count;
}

static double cycles_total_variation(const struct cycles_total *total) {
  double mean = cycles_total_mean(total), variance = total->squares / total->count - mean * mean;
  return total->count == 0 ? (double)NAN : variance > 0 ? sqrt(variance) / mean : 0;
}

static bool threads_run(const struct heap_run *run, struct heap_result *result) {
  static const unsigned kinds[] = {0, heap_cycles_free, heap_cycles_failed};
  struct cycles_total totals[3] = {{0}};
  struct heap_work work = churn_work(run);
  unsigned count = run->heap->allocator->slow ? 4 : 10;
  bool good = churn_begin(run) && churn_warm(run, run->heap->churn_timed, &work);
  for (unsigned i = 0; good && i < count; i++) {
    struct gpu_cycles sums[3];
    work.seed++;
    good = heap_kernel_run(run, run->heap->churn_timed, &work) && gpu_cycles_sum(run->gpu, &work, kinds, 3, sums);
    for (size_t kind = 0; good && kind < 3; kind++)
      cycles_total_add(&totals[kind], sums[kind]);
  }
  size_t empty = 0;
  if (!good || !heap_blocks_sound(run, &work, &empty) || !churn_end(run, &work))
    return false;
  result->status = totals[2].count == 0 ? heap_good : heap_refused;
  const double values[] = {cycles_total_mean(&totals[0]), cycles_total_variation(&totals[0]), totals[0].most,
                           cycles_total_mean(&totals[1]), cycles_total_variation(&totals[1]), totals[1].most};
  return heap_result_add(result, 0, values, 6);
}

const struct heap_test heap_threads = {
    .name = "threads",
    .help = "the paper's figure 3: cycles of a call in churn, and their variation, by threads",
    .metrics = {"malloc_cycles", "malloc_variation", "malloc_most_cycles", "free_cycles", "free_variation",
                "free_most_cycles"},
    .tables = {{"figure 3: mean cycles of a malloc", 0, false},
               {"their coefficient of variation", 1, false},
               {"mean cycles of a free", 3, false},
               {"their coefficient of variation", 4, false}},
    .cases = threads_cases,
    .fits = threads_fits,
    .run = threads_run,
};
