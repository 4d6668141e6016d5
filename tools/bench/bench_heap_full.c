/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * share, small, failing, create: how much of a heap is handed out before a request fails; what rounds cost in a heap
 * that is partly full; how long a request takes that fails; how long it takes to make a heap and to empty it.
 */
#include <math.h>
#include <stdio.h>

#include "bench_clock.h"
#include "bench_heap.h"
#include "bench_numbers.h"
#include "bench_report.h"

static const size_t mib = (size_t)1 << 20;

/* An allocator with one heap for the whole process, or one that hands nothing out, cannot be filled to a known size. */
static bool full_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  (void)what;
  return allocator->hands_out && !allocator->fixed;
}

/* ---- Share ------------------------------------------------------------------------------------------------------- */

enum { share_batches = 256 };

static size_t share_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned heaps_mib[] = {8, 64, 256}, sizes[] = {16, 64, 256, 1024, 4096, 48, 160, 512, 2048, 8192};
  struct heap_case *next = cases;
  for (size_t h = 0; h < 3; h++) {
    size_t heap_bytes = heaps_mib[h] * mib;
    char label[heap_label_size], bytes[report_label_size];
    for (size_t i = 0; i < (quick ? 5 : sizeof sizes / sizeof sizes[0]); i++) {
      report_bytes_text(bytes, sizes[i]);
      (void)snprintf(label, sizeof label, "%u MiB, %.10s", heaps_mib[h], bytes);
      next = heap_case_set(next, label, sizes[i], sizes[i], heap_bytes / share_batches / sizes[i], heap_bytes);
      if (next[-1].requests == 0)
        next[-1].requests = 1;
    }
    (void)snprintf(label, sizeof label, "%u MiB, mixed", heaps_mib[h]);
    next = heap_case_set(next, label, 4, 512, heap_bytes / share_batches / 258, heap_bytes);
  }
  return (size_t)(next - cases);
}

/* Lists are long when they are full of small blocks. */
static bool share_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return full_fits(allocator, what) && (!allocator->slow || (what->heap_bytes == 8 * mib && what->high >= 64));
}

struct share {
  struct heap_work work; /* of the next batch */
  size_t first_bytes;    /* handed out in batches before the first batch with a refusal */
  size_t all_bytes;      /* in all */
  size_t all_requests;
  bool refused;
};

/* One batch of requests, into slots of its own. */
static bool share_batch(const struct heap_run *run, struct share *share) {
  struct heap_inside inside = {0};
  if (!heap_kernel_run(run, run->heap->malloc, &share->work) || !gpu_blocks_count(run->gpu, &share->work, &inside))
    return false;
  share->all_bytes += (size_t)inside.asked_bytes;
  share->all_requests += (size_t)share->work.count;
  share->refused = share->refused || inside.blocks < share->work.count;
  if (!share->refused)
    share->first_bytes = share->all_bytes;
  share->work.slots += share->work.count;
  return true;
}

/* A size depends on the request's number among all requests, so that all blocks can be checked at once. */
static bool share_fill(const struct heap_run *run, struct share *share) {
  size_t room = run->gpu->requests_most;
  bool good = true;
  for (unsigned i = 0; good && i < share_batches + 8 && share->all_requests + share->work.count <= room; i++) {
    good = share_batch(run, share);
    share->work.seed += (unsigned)share->work.count * 0x9e3779b9u;
  }
  return good;
}

/* Checks all blocks and frees them. */
static bool share_free(const struct heap_run *run, const struct share *share) {
  struct heap_work whole = heap_work_of(run);
  size_t refused = 0;
  whole.count = share->all_requests;
  return heap_blocks_sound(run, &whole, &refused) && heap_kernel_run(run, run->heap->free, &whole);
}

static bool share_run(const struct heap_run *run, struct heap_result *result) {
  struct share share = {.work = heap_work_of(run)};
  struct heap_survey survey = {0};
  if (!share_fill(run, &share) || !run->heap->allocator->survey(run->heap, &survey) || !share_free(run, &share))
    return false;
  double bytes = (double)run->what->heap_bytes;
  const double values[] = {(double)share.first_bytes / bytes, (double)share.all_bytes / bytes,
                           (double)survey.metadata_bytes / bytes, share.refused ? 1 : 0};
  return heap_result_add(result, 0, values, 4);
}

const struct heap_test heap_share = {
    .name = "share",
    .help = "how much of 8, 64 and 256 MiB is handed out before the first refusal, and in all",
    .metrics = {"share_first", "share_all", "share_metadata", "was_full"},
    .tables = {{"share of the heap's bytes handed out before the first refusal", 0, true},
               {"the same in all", 1, true}},
    .cases = share_cases,
    .fits = share_fits,
    .run = share_run,
};

/* ---- Small ------------------------------------------------------------------------------------------------------- */

enum { small_warm_rounds = 8, small_rounds = 20, small_low = 16, small_high = 1024 };

static size_t small_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const struct {
    unsigned heap_mib, threads;
  } loads[] = {{64, 1 << 14}, {64, 1 << 16}, {16, 1 << 14}, {8, 12288}, {1024, 1 << 20}, {8192, 1 << 22}};
  struct heap_case *next = cases;
  for (size_t i = 0; i < (quick ? 4 : sizeof loads / sizeof loads[0]); i++) {
    char label[heap_label_size];
    (void)snprintf(label, sizeof label, "%u MiB, %u", loads[i].heap_mib, loads[i].threads);
    next = heap_case_set(next, label, small_low, small_high, loads[i].threads, loads[i].heap_mib * mib);
  }
  return (size_t)(next - cases);
}

static bool small_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return full_fits(allocator, what) && what->requests <= allocator->requests_most;
}

/* Sets the work of one kernel: half of the blocks are freed, or every thread without a block requests one. */
static void small_frees(struct heap_work *work, bool frees) {
  work->seed++;
  work->alloc_chance = frees ? 0 : heap_chance_whole;
  work->free_chance = frees ? heap_chance_whole / 2 : 0;
}

/* Rounds that are not timed.  Their kernel notes sizes, so that the blocks can be checked. */
static bool small_warm(const struct heap_run *run, struct heap_work *work) {
  size_t refused = 0;
  bool good = gpu_clear(run->gpu, run->gpu->slots, run->what->requests * sizeof(heap_word)) &&
              gpu_clear(run->gpu, run->gpu->sizes, run->what->requests * sizeof(unsigned));
  work->sizes = (unsigned *)run->gpu->sizes;
  work->cycles = (unsigned *)run->gpu->cycles;
  for (unsigned i = 0; good && i < 2 * heap_repetitions(run, small_warm_rounds) + 1; i++) {
    small_frees(work, i % 2 == 1);
    good = heap_kernel_run(run, run->heap->churn_timed, work);
  }
  return good && heap_blocks_sound(run, work, &refused);
}

/* How many requests of the last round got no block. */
static bool small_refused(const struct heap_run *run, struct heap_work *work, double *refused) {
  struct heap_inside inside = {0};
  if (!gpu_blocks_count(run->gpu, work, &inside))
    return false;
  *refused += (double)(work->count - inside.blocks);
  return true;
}

static bool small_run(const struct heap_run *run, struct heap_result *result) {
  double alloc_us[small_rounds], free_us[small_rounds], refused = 0;
  struct heap_work work = heap_work_of(run);
  unsigned rounds = heap_repetitions(run, small_rounds);
  bool good = small_warm(run, &work);
  for (unsigned i = 0; good && i < rounds; i++) {
    small_frees(&work, true);
    good = heap_kernel_time(run, run->heap->churn, &work, &free_us[i]);
    small_frees(&work, false);
    good = good && heap_kernel_time(run, run->heap->churn, &work, &alloc_us[i]) && small_refused(run, &work, &refused);
  }
  struct share share = {.work = heap_work_of(run)};
  share.work.count = run->what->heap_bytes / share_batches / ((small_low + small_high) / 2);
  if (!good || !heap_kernel_run(run, run->heap->free, &work) || !share_fill(run, &share) || !share_free(run, &share))
    return false;
  double bytes = (double)run->what->heap_bytes, median_us = numbers_quantile(alloc_us, rounds, 0.5);
  const double values[] = {median_us,
                           alloc_us[0],
                           alloc_us[rounds - 1],
                           numbers_quantile(free_us, rounds, 0.5),
                           refused / rounds / (double)run->what->requests,
                           (double)share.first_bytes / bytes,
                           (double)share.all_bytes / bytes};
  result->status = refused == 0 ? heap_good : heap_refused;
  return heap_result_add(result, 0, values, 7);
}

const struct heap_test heap_small = {
    .name = "small",
    .help = "rounds that free half of the blocks, of 16 B to 1 KiB, and allocate as many, in heaps partly full",
    .metrics = {"alloc_us", "alloc_least_us", "alloc_most_us", "free_us", "share_refused", "share_first", "share_all"},
    .tables = {{"us of the allocating kernel", 0, false},
               {"us of the freeing kernel", 3, false},
               {"share of the requests refused", 4, false},
               {"share of the heap handed out after it, before the first refusal", 5, true}},
    .cases = small_cases,
    .fits = small_fits,
    .run = small_run,
};

/* ---- Failing ----------------------------------------------------------------------------------------------------- */

static size_t failing_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  static const unsigned sizes[] = {16, 4096};
  struct heap_case *next = cases;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    for (unsigned threads_log2 = 0; threads_log2 <= 20; threads_log2 += quick ? 10 : 5) {
      char label[heap_label_size];
      (void)snprintf(label, sizeof label, "%u B 2^%u", sizes[i], threads_log2);
      next = heap_case_set(next, label, sizes[i], sizes[i], (size_t)1 << threads_log2, 16 * mib);
    }
  return (size_t)(next - cases);
}

static bool failing_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  return full_fits(allocator, what) && !allocator->slow;
}

/* Requests blocks until nothing is left, large ones first, because they fill the heap sooner. */
static bool failing_fill(const struct heap_run *run) {
  struct heap_work work = heap_work_of(run);
  struct heap_inside inside = {0};
  for (unsigned bytes = 65536; bytes >= 16; bytes /= 4)
    for (unsigned i = 0; i < 64; i++) {
      work.low = work.high = bytes;
      work.count = run->what->heap_bytes / bytes / 4;
      if (!heap_kernel_run(run, run->heap->malloc, &work) || !gpu_blocks_count(run->gpu, &work, &inside))
        return false;
      if (inside.blocks == 0)
        break;
    }
  return true;
}

static bool failing_run(const struct heap_run *run, struct heap_result *result) {
  static const unsigned kinds[] = {heap_cycles_failed, 0};
  struct heap_work work = heap_work_of(run);
  struct gpu_cycles sums[2] = {{0}};
  double nothing_us = 0, kernel_us = 0;
  work.alloc_chance = heap_chance_whole;
  work.sizes = (unsigned *)run->gpu->sizes;
  work.cycles = (unsigned *)run->gpu->cycles;
  bool good = failing_fill(run) && gpu_clear(run->gpu, run->gpu->slots, run->what->requests * sizeof(heap_word));
  for (unsigned i = 0; good && i < 3; i++)
    good = gpu_time(run->gpu, run->gpu->nothing, run->what->requests, NULL, &nothing_us) &&
           heap_kernel_time(run, run->heap->malloc, &work, &kernel_us);
  good = good && heap_kernel_run(run, run->heap->churn_timed, &work) &&
         gpu_cycles_sum(run->gpu, &work, kinds, 2, sums) && run->heap->allocator->reset(run->heap);
  if (!good)
    return false;
  if (sums[1].count != 0) {
    (void)fprintf(stderr, "mam-bench: heap: failing: %s still served %zu requests\n", run->heap->allocator->name,
                  sums[1].count);
    result->status = heap_refused;
  }
  const double values[] = {sums[0].mean / run->gpu->clock_mhz, sums[0].most / run->gpu->clock_mhz, kernel_us,
                           nothing_us};
  return heap_result_add(result, 0, values, 4);
}

const struct heap_test heap_failing = {
    .name = "failing",
    .help = "how long a request takes that a full heap refuses, by threads that ask at once",
    .metrics = {"mean_us", "most_us", "kernel_us", "empty_kernel_us"},
    .tables = {{"mean us of a request that fails", 0, false},
               {"the longest", 1, false},
               {"us of the kernel, with its launch", 2, false}},
    .cases = failing_cases,
    .fits = failing_fits,
    .run = failing_run,
};

/* ---- Create ------------------------------------------------------------------------------------------------------ */

static size_t create_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  struct heap_case *next = heap_case_set(cases, "8 GiB", 64, 64, 1 << 20, heap_roomy_bytes);
  next = heap_case_set(next, "64 MiB", 64, 64, 1 << 18, 64 * mib);
  if (!quick)
    next = heap_case_set(next, "1 GiB", 64, 64, 1 << 20, 1024 * mib);
  return (size_t)(next - cases);
}

/* Each repetition makes a new heap, uses it, and empties it while it still has traces of that use. */
static bool create_run(const struct heap_run *run, struct heap_result *result) {
  enum { count = 5 };
  double create_us[count], reset_us[count];
  struct heap_survey survey = {0};
  struct heap *heap = run->heap;
  for (unsigned i = 0; i < count; i++) {
    const struct heap_allocator *allocator = heap->allocator;
    heap_end(heap);
    if (!heap_begin(heap, allocator, run->gpu, run->what->heap_bytes, run->what->superblocks))
      return false;
    create_us[i] = heap->create_us;
    struct heap_work work = heap_work_of(run);
    if (!heap_kernel_run(run, heap->malloc, &work))
      return false;
    uint64_t start_ns = clock_now_ns();
    if (!allocator->reset(heap))
      return false;
    reset_us[i] = clock_span_ns(start_ns, clock_now_ns()) / 1e3;
  }
  if (!heap->allocator->survey(heap, &survey))
    return false;
  const double values[] = {numbers_quantile(create_us, count, 0.5), numbers_quantile(reset_us, count, 0.5),
                           (double)survey.metadata_bytes / (double)run->what->heap_bytes};
  return heap_result_add(result, 0, values, 3);
}

const struct heap_test heap_create = {
    .name = "create",
    .help = "how long it takes to make a heap in memory that is there, and to empty it",
    .metrics = {"create_us", "reset_us", "share_metadata"},
    .tables = {{"us to make a heap", 0, false}, {"us to empty it", 1, false}, {"share of metadata", 2, false}},
    .cases = create_cases,
    .fits = full_fits,
    .run = create_run,
};
