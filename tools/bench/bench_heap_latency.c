/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * latency: how long a single malloc or free takes, above all a slow one, by how full the heap is.  Each thread has a
 * load of its own: it allocates if it has no block, and frees its block with a chance of a quarter.  So four of five
 * threads have a block.  Sizes are drawn evenly, so that these blocks fill the wanted share of the heap.
 */
#include <math.h>
#include <stdio.h>

#include "bench_heap.h"
#include "bench_numbers.h"

enum { warm_rounds = 10, timed_requests = 1 << 20, slow_threads_most = 1 << 14, free_chance = heap_chance_whole / 4 };

static const double live_share = 0.8; /* of the threads, with the chances above */

static size_t latency_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned heaps_mib[] = {8, 64, 1024, 8192}, loads[] = {50, 75, 90};
  struct heap_case *next = cases;
  for (size_t h = 0; h < (quick ? 2 : 4); h++)
    for (unsigned threads_log2 = 14; threads_log2 <= 17; threads_log2 += 3)
      for (size_t l = 0; l < 3; l++) {
        size_t heap_bytes = (size_t)heaps_mib[h] << 20, threads = (size_t)1 << threads_log2;
        double mean = (double)heap_bytes * loads[l] / 100 / (live_share * (double)threads);
        char label[heap_label_size];
        (void)snprintf(label, sizeof label, "%u MiB 2^%u %u %%", heaps_mib[h], threads_log2, loads[l]);
        next = heap_case_set(next, label, 16, (unsigned)(2 * mean) - 16, threads, heap_bytes);
      }
  return (size_t)(next - cases);
}

static bool latency_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return allocator->hands_out && what->requests <= allocator->requests_most &&
         (!allocator->fixed || what->heap_bytes == heap_roomy_bytes) &&
         (!allocator->slow || what->requests <= slow_threads_most);
}

/* Microseconds of calls. */
struct latency {
  struct numbers_samples malloc, free, failed;
};

static void latency_end(struct latency *latency) {
  numbers_samples_free(&latency->malloc);
  numbers_samples_free(&latency->free);
  numbers_samples_free(&latency->failed);
}

static bool latency_note(const struct heap_run *run, const struct heap_work *work, struct latency *latency) {
  size_t count = (size_t)work->count;
  unsigned *cycles = run->gpu->host_cycles;
  bool room = true;
  if (!gpu_read(run->gpu, cycles, run->gpu->cycles, count * sizeof *cycles))
    return false;
  for (size_t i = 0; room && i < count; i++) {
    struct numbers_samples *samples = (cycles[i] & heap_cycles_failed) != 0 ? &latency->failed
                                      : (cycles[i] & heap_cycles_free) != 0 ? &latency->free
                                                                            : &latency->malloc;
    if (cycles[i] != 0)
      room = numbers_samples_add(samples, (cycles[i] & heap_cycles_most) / run->gpu->clock_mhz);
  }
  if (!room)
    (void)fputs("mam-bench: heap: no host memory\n", stderr);
  return room;
}

static unsigned latency_rounds(const struct heap_run *run) {
  unsigned rounds = (unsigned)(timed_requests / run->what->requests);
  return run->heap->allocator->slow ? 4 : run->quick ? rounds / 4 : rounds;
}

static bool latency_measure(const struct heap_run *run, struct heap_work *work, struct latency *latency) {
  unsigned rounds = latency_rounds(run);
  size_t empty = 0;
  bool good = gpu_clear(run->gpu, run->gpu->slots, run->what->requests * sizeof(heap_word)) &&
              gpu_clear(run->gpu, run->gpu->sizes, run->what->requests * sizeof(unsigned));
  for (unsigned i = 0; good && i < warm_rounds + rounds; i++) {
    work->seed++;
    good = heap_kernel_run(run, run->heap->churn_timed, work) && (i < warm_rounds || latency_note(run, work, latency));
  }
  return good && heap_blocks_sound(run, work, &empty) && heap_kernel_run(run, run->heap->free, work);
}

static double longest(struct numbers_samples *samples) {
  return samples->count == 0 ? (double)NAN : numbers_quantile(samples->values, samples->count, 1);
}

static double quantile(struct numbers_samples *samples, double share) {
  return numbers_quantile(samples->values, samples->count, share);
}

static bool latency_add(const struct heap_run *run, struct latency *latency, struct heap_result *result) {
  struct numbers_samples *malloc = &latency->malloc, *free = &latency->free, *failed = &latency->failed;
  double asked = (double)(malloc->count + failed->count);
  double live_bytes = (run->what->low + run->what->high) / 2.0 * live_share * (double)run->what->requests;
  const double values[] = {
      quantile(malloc, 0.5), quantile(malloc, 0.99),       quantile(malloc, 0.9999), longest(malloc),
      quantile(free, 0.5),   quantile(free, 0.99),         quantile(free, 0.9999),   longest(free),
      longest(failed),       (double)failed->count / asked};
  result->status = failed->count == 0 ? heap_good : heap_refused;
  return heap_result_add(result, round(100 * live_bytes / (double)run->what->heap_bytes), values, 10);
}

static bool latency_run(const struct heap_run *run, struct heap_result *result) {
  struct latency latency = {{0}, {0}, {0}};
  struct heap_work work = heap_work_of(run);
  work.alloc_chance = heap_chance_whole;
  work.free_chance = free_chance;
  work.sizes = (unsigned *)run->gpu->sizes;
  work.cycles = (unsigned *)run->gpu->cycles;
  bool good = latency_measure(run, &work, &latency) && latency_add(run, &latency, result);
  latency_end(&latency);
  return good;
}

const struct heap_test heap_latency = {
    .name = "latency",
    .help = "how long a single call takes, the slowest too, in heaps that are half full to nearly full",
    .metrics = {"malloc_median_us", "malloc_99_us", "malloc_9999_us", "malloc_longest_us", "free_median_us",
                "free_99_us", "free_9999_us", "free_longest_us", "failed_longest_us", "share_refused"},
    .tables = {{"us of a malloc, 99.99 %", 2, false},
               {"us of a malloc, the longest", 3, false},
               {"us of a free, the longest", 7, false},
               {"share of requests refused", 9, false}},
    .cases = latency_cases,
    .fits = latency_fits,
    .run = latency_run,
};
