/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * stall: the longest time of a single allocation or free while a kernel of 200 ms runs and memory is left.
 *
 * For 150 ms of that time, threads allocate and free blocks of one size, and each keeps a few live.  Memory that is
 * freed meanwhile may not be handed out before the kernel ends.  So large blocks are allocated slowly enough that a
 * quarter of the memory lasts for the 150 ms: no thread waits for lack of memory.  Without a GPU the traffic is the
 * same, without a kernel.
 *
 * A control runs beside it: as many threads that only read the clock, and the longest time between two readings.  The
 * machine causes these times, and not an allocator.  Among the long calls, too, those are told apart in which the
 * thread neither slept nor had a processor all the time: the machine had given the processor to another thread.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_kernel.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"

enum {
  kernel_ms = 200,
  traffic_ms = 150,
  traffic_quick_ms = 30,
  live_blocks = 16, /* of a thread */
  size_count = 4,
  crew_count = 2,
  threads_most = 8,
  cache_line_bytes = 64
};

static const size_t sizes[size_count] = {512, (size_t)64 << 10, (size_t)2 << 20, (size_t)64 << 20};
static const unsigned crews[crew_count] = {1, threads_most};
static const uint64_t long_ns = 1000000; /* calls that take longer are counted */
static const uint64_t sample_calls = 64; /* calls between two looks; a look takes 0.5 us */

struct stall_cell {
  double malloc_most_ns, free_most_ns;        /* NAN: not measured */
  uint64_t calls, long_calls, kept_out_calls; /* kept_out_calls: long ones in which the thread had no processor */
  bool outlasted;                             /* the traffic ended later than the kernel */
};

struct stall_result {
  struct stall_cell cells[size_count][crew_count][allocators_most];
  struct stall_cell control[crew_count]; /* malloc_most_ns: the longest time between two readings */
};

/* What the threads of a measurement share. */
struct stall {
  const struct bench *bench;
  const struct allocator *allocator; /* NULL: the control */
  size_t bytes;
  uint64_t duration_ns, pairs_most; /* of a thread */
  pthread_barrier_t ready;
  _Atomic bool failed;
};

/* Only its thread writes it, until that thread has ended. */
struct stall_thread {
  _Alignas(cache_line_bytes) struct stall *stall;
  pthread_t thread;
  struct block blocks[live_blocks];
  uint64_t malloc_most_ns, free_most_ns, calls, long_calls, kept_out_calls;
  struct clock_thread had; /* at most sample_calls ago */
};

/* ---- A thread ---------------------------------------------------------------------------------------------------- */

static void thread_count(struct stall_thread *thread, uint64_t *most_ns, uint64_t span_ns) {
  *most_ns = span_ns > *most_ns ? span_ns : *most_ns;
  bool is_long = span_ns > long_ns;
  if (thread->calls++ % sample_calls == 0 || is_long) {
    struct clock_thread had = clock_thread_now();
    thread->long_calls += is_long;
    thread->kept_out_calls += is_long && had.sleeps == thread->had.sleeps && had.cpu_ns - thread->had.cpu_ns < long_ns;
    thread->had = had;
  }
}

/* Frees the block of a slot, if there is one, and allocates another. */
static bool thread_step(struct stall_thread *thread, struct block *block) {
  const struct stall *stall = thread->stall;
  const struct allocator *allocator = stall->allocator;
  cudaError_t error;
  uint64_t start_ns = clock_now_ns();
  if (block->address != NULL) {
    error = allocator->release(block->address, block->bytes);
    uint64_t end_ns = clock_now_ns();
    thread_count(thread, &thread->free_most_ns, end_ns - start_ns);
    block->address = NULL;
    if (error != cudaSuccess)
      return blocks_complain(allocator, "a free", block->bytes, error);
    start_ns = end_ns;
  }
  void *address = NULL;
  error = allocator->allocate(&address, stall->bytes);
  thread_count(thread, &thread->malloc_most_ns, clock_now_ns() - start_ns);
  if (error != cudaSuccess)
    return blocks_complain(allocator, "an allocation", stall->bytes, error);
  *block = (struct block){address, stall->bytes};
  return true;
}

/* Works until the time is over, with pauses if the bytes would not last. */
static bool thread_work(struct stall_thread *thread) {
  const struct stall *stall = thread->stall;
  uint64_t start_ns = clock_now_ns(), pairs = 0;
  for (uint64_t now_ns = start_ns; now_ns - start_ns < stall->duration_ns; now_ns = clock_now_ns()) {
    double share = (double)(now_ns - start_ns) / (double)stall->duration_ns;
    if ((double)pairs > share * (double)stall->pairs_most) {
      (void)sched_yield();
      continue;
    }
    if (!thread_step(thread, &thread->blocks[pairs++ % live_blocks]))
      return false;
  }
  return true;
}

static void thread_watch(struct stall_thread *thread) {
  uint64_t start_ns = clock_now_ns(), last_ns = start_ns;
  while (last_ns - start_ns < thread->stall->duration_ns) {
    uint64_t now_ns = clock_now_ns();
    thread_count(thread, &thread->malloc_most_ns, now_ns - last_ns);
    last_ns = now_ns;
  }
}

static void *thread_main(void *argument) {
  struct stall_thread *thread = argument;
  struct stall *stall = thread->stall;
  bool good = stall->allocator == NULL || machine_thread_begin(stall->bench->machine) ||
              blocks_complain(stall->allocator, "entering the context", 0, cudaErrorUnknown);
  (void)pthread_barrier_wait(&stall->ready);
  thread->had = clock_thread_now();
  if (stall->allocator == NULL)
    thread_watch(thread);
  else
    good = good && thread_work(thread);
  if (!good) /* relaxed: read after the join */
    atomic_store_explicit(&stall->failed, true, memory_order_relaxed);
  return NULL;
}

/* ---- A measurement ----------------------------------------------------------------------------------------------- */

static bool kernel_complain(const struct stall *stall, const char *what) {
  const char *name = stall->allocator != NULL ? stall->allocator->name : "control";
  (void)fprintf(stderr, "mam-bench: stall: %s: %s: %s\n", name, what, error_last());
  return false;
}

static void threads_start(struct stall *stall, struct stall_thread *threads, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    threads[i].stall = stall;
    if (pthread_create(&threads[i].thread, NULL, thread_main, &threads[i]) != 0) {
      (void)fprintf(stderr, "mam-bench: cannot start thread %u of %u\n", i + 1, count);
      exit(EXIT_FAILURE); /* earlier threads wait at the barrier */
    }
  }
}

/* Starts the kernel, lets the threads work meanwhile, and waits for both.  kernel NULL: there is none. */
static bool traffic_beside(struct stall *stall, struct stall_thread *threads, unsigned count,
                           const struct kernel *kernel, struct stall_cell *cell) {
  bool runs = false;
  threads_start(stall, threads, count);
  bool good = kernel == NULL || kernel_start(kernel, kernel_ms) || kernel_complain(stall, "starting the kernel");
  (void)pthread_barrier_wait(&stall->ready);
  for (unsigned i = 0; i < count; i++)
    (void)pthread_join(threads[i].thread, NULL);
  if (good && kernel != NULL) {
    good = (kernel_runs(kernel, &runs) && kernel_wait(kernel)) || kernel_complain(stall, "the kernel");
    cell->outlasted = !runs;
  }
  /* relaxed: the threads were joined */
  return !atomic_load_explicit(&stall->failed, memory_order_relaxed) && good;
}

/* Checks the live blocks of all threads together, and frees them. */
static bool threads_end(const struct stall *stall, const struct stall_thread *threads, unsigned count) {
  struct block blocks[threads_most * live_blocks];
  for (unsigned i = 0; i < count; i++)
    memcpy(&blocks[i * live_blocks], threads[i].blocks, sizeof threads[i].blocks);
  bool good = blocks_check(stall->allocator, blocks, (size_t)count * live_blocks);
  good = blocks_release(stall->allocator, blocks, (size_t)count * live_blocks) && good;
  return blocks_settle(stall->allocator) && good;
}

static void cell_fill(struct stall_cell *cell, const struct stall_thread *threads, unsigned count) {
  uint64_t malloc_most_ns = 0, free_most_ns = 0;
  for (unsigned i = 0; i < count; i++) {
    malloc_most_ns = threads[i].malloc_most_ns > malloc_most_ns ? threads[i].malloc_most_ns : malloc_most_ns;
    free_most_ns = threads[i].free_most_ns > free_most_ns ? threads[i].free_most_ns : free_most_ns;
    cell->calls += threads[i].calls;
    cell->long_calls += threads[i].long_calls;
    cell->kept_out_calls += threads[i].kept_out_calls;
  }
  cell->malloc_most_ns = (double)malloc_most_ns;
  cell->free_most_ns = free_most_ns > 0 ? (double)free_most_ns : (double)NAN;
}

static bool stall_measure(const struct bench *bench, const struct allocator *allocator, size_t bytes, unsigned count,
                          const struct kernel *kernel, struct stall_cell *cell) {
  static struct stall_thread threads[threads_most];
  struct stall stall = {.bench = bench,
                        .allocator = allocator,
                        .bytes = bytes,
                        .duration_ns = (bench->quick ? traffic_quick_ms : traffic_ms) * (uint64_t)1000000,
                        .pairs_most = bench->capacity_bytes / 4 / bytes / count};
  memset(threads, 0, sizeof threads);
  if (pthread_barrier_init(&stall.ready, NULL, count + 1) != 0) {
    (void)fprintf(stderr, "mam-bench: no host memory for %u threads\n", count);
    return false;
  }
  bool good = traffic_beside(&stall, threads, count, kernel, cell);
  good = (allocator == NULL || threads_end(&stall, threads, count)) && good;
  (void)pthread_barrier_destroy(&stall.ready);
  cell_fill(cell, threads, count);
  return good;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

/* One control, with the first allocator's measurement. */
static bool stall_control(const struct bench *bench, size_t index, const struct kernel *kernel,
                          struct stall_result *stall) {
  bool good = true;
  for (size_t j = 0; j < crew_count && index == 0 && good; j++) {
    stall->control[j] = (struct stall_cell){0};
    good = stall_measure(bench, NULL, 1, crews[j], kernel, &stall->control[j]);
  }
  return good;
}

static bool stall_cells(const struct bench *bench, const struct allocator *allocator, size_t index,
                        const struct kernel *kernel, struct stall_result *stall) {
  for (size_t i = 0; i < size_count; i++)
    for (size_t j = 0; j < crew_count; j++) {
      struct stall_cell *cell = &stall->cells[i][j][index];
      progress_within((double)(i * crew_count + j), size_count * crew_count);
      *cell = (struct stall_cell){.malloc_most_ns = (double)NAN, .free_most_ns = (double)NAN};
      /* With less, the live blocks would be most of the memory that may be taken. */
      bool fits = sizes[i] * live_blocks * crews[j] <= bench->capacity_bytes / 8;
      if (fits && !stall_measure(bench, allocator, sizes[i], crews[j], kernel, cell))
        return false;
    }
  return true;
}

static bool stall_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct kernel kernel = {0};
  bool has_kernel = bench->source != MAM_SOURCE_HOST && kernel_possible(bench->machine);
  bool good = !has_kernel || kernel_open(&kernel, bench->machine);
  if (!good)
    (void)fprintf(stderr, "mam-bench: stall: no kernel: %s\n", error_last());
  good = good && stall_cells(bench, allocator, index, has_kernel ? &kernel : NULL, result) &&
         stall_control(bench, index, has_kernel ? &kernel : NULL, result);
  kernel_close(&kernel);
  return good;
}

static bool stall_csv(const struct bench *bench, const struct stall_result *stall) {
  struct report_csv csv;
  if (!report_csv_open(
          &csv, bench->csv_directory, "stall",
          "allocator,bytes,threads,calls,calls_over_1ms,outlasted_kernel,malloc_max_ns,free_max_ns,kept_out"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < size_count; i++)
      for (size_t j = 0; j < crew_count; j++) {
        const struct stall_cell *cell = &stall->cells[i][j][a];
        char text[160];
        (void)snprintf(text, sizeof text, "%s,%zu,%u,%llu,%llu,%d", bench->allocators[a]->name, sizes[i], crews[j],
                       (unsigned long long)cell->calls, (unsigned long long)cell->long_calls, cell->outlasted);
        report_csv_numbers(&csv, text,
                           (const double[]){cell->malloc_most_ns, cell->free_most_ns, (double)cell->kept_out_calls}, 3);
      }
  for (size_t j = 0; j < crew_count; j++) {
    const struct stall_cell *cell = &stall->control[j];
    char text[160];
    (void)snprintf(text, sizeof text, "control,0,%u,%llu,%llu,%d", crews[j], (unsigned long long)cell->calls,
                   (unsigned long long)cell->long_calls, cell->outlasted);
    report_csv_numbers(&csv, text, (const double[]){cell->malloc_most_ns, (double)NAN, (double)cell->kept_out_calls},
                       3);
  }
  return report_csv_close(&csv);
}

static void stall_print(const struct bench *bench, const struct stall_result *stall, const char *title, bool of_free) {
  struct report_row rows[size_count * crew_count];
  for (size_t i = 0; i < size_count; i++)
    for (size_t j = 0; j < crew_count; j++) {
      struct report_row *row = &rows[i * crew_count + j];
      char size[report_label_size];
      report_bytes_text(size, sizes[i]);
      (void)snprintf(row->label, sizeof row->label, "%.12s x%u", size, crews[j]);
      for (size_t a = 0; a < bench->allocator_count; a++) {
        const struct stall_cell *cell = &stall->cells[i][j][a];
        row->values[a] = (of_free ? cell->free_most_ns : cell->malloc_most_ns) / 1e3;
      }
    }
  struct report_table table = {.title = title, .row_title = "size", .rows = rows, .row_count = size_count * crew_count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
}

/* Prints how many calls there were, and which were slow. */
static void stall_explain(const struct bench *bench, const struct stall_result *stall) {
  for (size_t a = 0; a < bench->allocator_count; a++) {
    unsigned long long calls = 0, long_calls = 0, kept_out_calls = 0, outlasted = 0;
    for (size_t i = 0; i < size_count; i++)
      for (size_t j = 0; j < crew_count; j++) {
        const struct stall_cell *cell = &stall->cells[i][j][a];
        calls += cell->calls;
        long_calls += cell->long_calls;
        kept_out_calls += cell->kept_out_calls;
        outlasted += cell->outlasted;
      }
    (void)printf("%s: %llu calls, %llu of them longer than 1 ms, %llu of these because the thread had no processor; in "
                 "%llu of %d measurements the kernel ended first.\n",
                 bench->allocators[a]->name, calls, long_calls, kept_out_calls, outlasted, size_count * crew_count);
  }
  for (size_t j = 0; j < crew_count; j++)
    (void)printf("Of %u threads that only read the clock, the longest time between two readings was %.0f us; %llu were "
                 "longer than 1 ms.\n",
                 crews[j], stall->control[j].malloc_most_ns / 1e3, (unsigned long long)stall->control[j].long_calls);
}

bool bench_stall(const struct bench *bench) {
  struct stall_result stall;
  if (!bench_each(bench, "stall", stall_part, &stall))
    return false;
  bool has_kernel = bench->source != MAM_SOURCE_HOST && kernel_possible(bench->machine);
  const char *malloc_title = "stall: the longest allocation, us, while a kernel of 200 ms runs; size and threads";
  const char *none_title = "stall: the longest allocation, us, with no kernel beside; size and threads";
  stall_print(bench, &stall, has_kernel ? malloc_title : none_title, false);
  stall_print(bench, &stall, "the same, the longest free", true);
  stall_explain(bench, &stall);
  return stall_csv(bench, &stall);
}
