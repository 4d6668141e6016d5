/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * threads: million operations (allocations and frees) a second of 1 to 16 threads together, in three kinds of traffic.
 * T: pairs of 4 KiB.  R: random traffic, each thread over its own slots.  X: half of the threads allocate 4 KiB blocks
 * and hand each to a thread of the other half, which frees it.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"
#include "bench_traffic.h"

enum { pair_bytes = 4096, ring_size = 256, spins_most = 1000, burst = 64, cache_line_bytes = 64 };
enum {
  repetitions_most = 3,
  powers_most = 8,
  configurations_most = 3 * powers_most,
  workers_most = 1 << (powers_most - 1)
};

/* A bounded queue of blocks from one thread to another. */
struct ring {
  _Alignas(cache_line_bytes) _Atomic size_t written; /* only the sender writes it */
  _Alignas(cache_line_bytes) _Atomic size_t read;    /* only the receiver writes it */
  _Alignas(cache_line_bytes) void *items[ring_size];
};

/* The threads of one measurement, and what they share. */
struct crew {
  const struct bench *bench;
  const struct allocator *allocator;
  size_t size_most_bytes; /* of R */
  pthread_barrier_t ready;
  _Atomic bool stop, failed;
  struct worker *workers;
  unsigned count;
};

/* Only its thread writes it, until that thread has ended. */
struct worker {
  _Alignas(cache_line_bytes) struct crew *crew;
  pthread_t thread;
  unsigned index;
  uint64_t start_ns, end_ns, operations;
  uintptr_t address_bits;  /* all addresses of T and X, or-ed, for their alignment */
  struct traffic *traffic; /* R */
  struct ring *ring;       /* X: shared by a sender and its receiver */
};

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

/* Waits a moment.  Other threads may need this core. */
static void ring_wait(unsigned *spins) {
  if (++*spins > spins_most)
    (void)sched_yield();
}

static bool ring_push(struct ring *ring, void *item, const struct crew *crew) {
  /* relaxed: only this thread writes it */
  size_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
  unsigned spins = 0;
  /* acquire: the receiver is done with the place; pairs with the release in ring_pull */
  while (written - atomic_load_explicit(&ring->read, memory_order_acquire) == ring_size) {
    /* relaxed: a flag that guards no data */
    if (atomic_load_explicit(&crew->failed, memory_order_relaxed))
      return false;
    ring_wait(&spins);
  }
  ring->items[written % ring_size] = item;
  /* release: publishes the item; pairs with the acquire in ring_pull */
  atomic_store_explicit(&ring->written, written + 1, memory_order_release);
  return true;
}

static bool ring_pull(struct ring *ring, void **item, const struct crew *crew) {
  /* relaxed: only this thread writes it */
  size_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
  unsigned spins = 0;
  /* acquire: the item; pairs with the release in ring_push */
  while (atomic_load_explicit(&ring->written, memory_order_acquire) == read) {
    /* relaxed: a flag that guards no data */
    if (atomic_load_explicit(&crew->failed, memory_order_relaxed))
      return false;
    ring_wait(&spins);
  }
  *item = ring->items[read % ring_size];
  /* release: gives the place back after it was read; pairs with the acquire in ring_push */
  atomic_store_explicit(&ring->read, read + 1, memory_order_release);
  return true;
}

/* ---- What a worker does between the start and the stop ----------------------------------------------------------- */

static bool crew_stopped(const struct crew *crew) {
  /* relaxed: a flag that guards no data */
  return atomic_load_explicit(&crew->stop, memory_order_relaxed);
}

static bool pairs_work(struct worker *worker) {
  const struct allocator *allocator = worker->crew->allocator;
  while (!crew_stopped(worker->crew)) {
    for (unsigned i = 0; i < burst; i++) {
      void *address = NULL;
      cudaError_t error = allocator->allocate(&address, pair_bytes);
      worker->address_bits |= (uintptr_t)address;
      if (error == cudaSuccess)
        error = allocator->release(address, pair_bytes);
      if (error != cudaSuccess)
        return blocks_complain(allocator, "an allocation or its free", pair_bytes, error);
    }
    worker->operations += 2 * burst;
  }
  return true;
}

static bool random_work(struct worker *worker) {
  while (!crew_stopped(worker->crew)) {
    if (!traffic_run(worker->traffic, burst))
      return false;
    worker->operations += burst;
  }
  return true;
}

static bool sender_work(struct worker *worker) {
  const struct allocator *allocator = worker->crew->allocator;
  while (!crew_stopped(worker->crew)) {
    void *address = NULL;
    cudaError_t error = allocator->allocate(&address, pair_bytes);
    worker->address_bits |= (uintptr_t)address;
    if (error != cudaSuccess)
      return blocks_complain(allocator, "an allocation", pair_bytes, error);
    if (!ring_push(worker->ring, address, worker->crew))
      return false;
    worker->operations++;
  }
  return ring_push(worker->ring, NULL, worker->crew); /* the end */
}

static bool receiver_work(struct worker *worker) {
  const struct allocator *allocator = worker->crew->allocator;
  void *address = NULL;
  while (ring_pull(worker->ring, &address, worker->crew)) {
    if (address == NULL)
      return true;
    cudaError_t error = allocator->release(address, pair_bytes);
    if (error != cudaSuccess)
      return blocks_complain(allocator, "a free by another thread", pair_bytes, error);
    worker->operations++;
  }
  return false;
}

static bool exchange_work(struct worker *worker) {
  return worker->index % 2 == 0 ? sender_work(worker) : receiver_work(worker);
}

/* ---- Preparing and cleaning up; random traffic begins in its own thread ------------------------------------------ */

static bool nothing_begin(struct worker *worker) {
  (void)worker;
  return true;
}

static bool nothing_end(struct crew *crew) {
  (void)crew;
  return true;
}

static bool random_begin(struct worker *worker) {
  worker->traffic = calloc(1, sizeof *worker->traffic);
  if (worker->traffic == NULL)
    return blocks_complain(worker->crew->allocator, "bookkeeping", sizeof *worker->traffic, cudaErrorMemoryAllocation);
  return traffic_begin(worker->traffic, worker->crew->allocator, worker->index + 1, worker->crew->size_most_bytes);
}

/* Checks the live blocks of all threads together. */
static bool random_check(const struct crew *crew) {
  struct block *blocks = calloc((size_t)crew->count * traffic_slot_count, sizeof *blocks);
  if (blocks == NULL)
    return blocks_complain(crew->allocator, "bookkeeping", 0, cudaErrorMemoryAllocation);
  for (unsigned i = 0; i < crew->count; i++)
    memcpy(&blocks[(size_t)i * traffic_slot_count], crew->workers[i].traffic->slots,
           traffic_slot_count * sizeof *blocks);
  bool good = blocks_check(crew->allocator, blocks, (size_t)crew->count * traffic_slot_count);
  free(blocks);
  return good;
}

static bool random_end(struct crew *crew) {
  /* relaxed: the threads were joined */
  bool good = !atomic_load_explicit(&crew->failed, memory_order_relaxed) && random_check(crew);
  for (unsigned i = 0; i < crew->count; i++) {
    if (crew->workers[i].traffic != NULL)
      good = traffic_end(crew->workers[i].traffic) && good;
    free(crew->workers[i].traffic);
  }
  return good;
}

struct kind {
  char name;
  unsigned threads_least;
  bool (*begin)(struct worker *worker); /* in each thread, before the start */
  bool (*work)(struct worker *worker);
  bool (*end)(struct crew *crew); /* after all threads were joined */
};

static const struct kind kinds[] = {
    {'T', 1, nothing_begin, pairs_work, nothing_end},
    {'R', 1, random_begin, random_work, random_end},
    {'X', 2, nothing_begin, exchange_work, nothing_end},
};

/* ---- A measurement ----------------------------------------------------------------------------------------------- */

struct assignment {
  struct worker *worker;
  const struct kind *kind;
};

static void *worker_main(void *argument) {
  const struct assignment *assignment = argument;
  struct worker *worker = assignment->worker;
  struct crew *crew = worker->crew;
  bool good = machine_thread_begin(crew->bench->machine) ||
              blocks_complain(crew->allocator, "entering the context", 0, cudaErrorUnknown);
  good = good && assignment->kind->begin(worker);
  (void)pthread_barrier_wait(&crew->ready);
  worker->start_ns = clock_now_ns();
  good = good && assignment->kind->work(worker);
  worker->end_ns = clock_now_ns();
  if (!good) /* relaxed: a flag that guards no data */
    atomic_store_explicit(&crew->failed, true, memory_order_relaxed);
  return NULL;
}

/* Starts the workers, lets them work for a while, and joins them. */
static bool crew_work(struct crew *crew, const struct kind *kind, unsigned duration_ms) {
  struct assignment assignments[workers_most];
  for (unsigned i = 0; i < crew->count; i++) {
    assignments[i] = (struct assignment){&crew->workers[i], kind};
    if (pthread_create(&crew->workers[i].thread, NULL, worker_main, &assignments[i]) != 0) {
      (void)fprintf(stderr, "mam-bench: cannot start thread %u of %u\n", i + 1, crew->count);
      exit(EXIT_FAILURE); /* earlier threads wait at the barrier */
    }
  }
  (void)pthread_barrier_wait(&crew->ready);
  clock_sleep_ms(duration_ms);
  /* relaxed: a flag that guards no data */
  atomic_store_explicit(&crew->stop, true, memory_order_relaxed);
  for (unsigned i = 0; i < crew->count; i++)
    (void)pthread_join(crew->workers[i].thread, NULL);
  /* relaxed: the threads were joined */
  return !atomic_load_explicit(&crew->failed, memory_order_relaxed);
}

static double crew_rate(const struct crew *crew) {
  uint64_t start_ns = UINT64_MAX, end_ns = 0, operations = 0;
  for (unsigned i = 0; i < crew->count; i++) {
    const struct worker *worker = &crew->workers[i];
    start_ns = worker->start_ns < start_ns ? worker->start_ns : start_ns;
    end_ns = worker->end_ns > end_ns ? worker->end_ns : end_ns;
    operations += worker->operations;
  }
  return (double)operations * 1e3 / (double)(end_ns - start_ns);
}

static bool crew_aligned(const struct crew *crew) {
  uintptr_t bits = 0;
  for (unsigned i = 0; i < crew->count; i++)
    bits |= crew->workers[i].address_bits;
  if (bits % crew->allocator->alignment == 0)
    return true;
  (void)fprintf(stderr, "mam-bench: %s: an address is not a multiple of %zu\n", crew->allocator->name,
                crew->allocator->alignment);
  return false;
}

/* The rate of so many threads, in millions of operations a second. */
static bool crew_measure(struct crew *crew, const struct kind *kind, unsigned duration_ms, double *rate) {
  struct worker *workers = aligned_alloc(_Alignof(struct worker), crew->count * sizeof *workers);
  struct ring *rings = aligned_alloc(_Alignof(struct ring), (crew->count + 1) / 2 * sizeof *rings);
  bool good = false;
  if (workers == NULL || rings == NULL || pthread_barrier_init(&crew->ready, NULL, crew->count + 1) != 0) {
    (void)fprintf(stderr, "mam-bench: no host memory for %u threads\n", crew->count);
    goto release;
  }
  memset(rings, 0, (crew->count + 1) / 2 * sizeof *rings);
  for (unsigned i = 0; i < crew->count; i++)
    workers[i] = (struct worker){.crew = crew, .index = i, .ring = &rings[i / 2]};
  crew->workers = workers;
  good = crew_work(crew, kind, duration_ms);
  *rate = crew_rate(crew);
  good = kind->end(crew) && good;
  good = crew_aligned(crew) && blocks_settle(crew->allocator) && good;
  (void)pthread_barrier_destroy(&crew->ready);

release:
  free(workers);
  free(rings);
  return good;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

struct configuration {
  const struct kind *kind;
  unsigned threads;
  double rates[allocators_most];
};

struct threads_result {
  size_t size_most_bytes;
  size_t count;
  struct configuration configurations[configurations_most];
};

/* In the first repetition a pool grows.  It does not count: the full test takes the median of three, the quick one the
 * second of two. */
static bool configuration_measure(const struct bench *bench, const struct allocator *allocator, size_t size_most_bytes,
                                  const struct configuration *configuration, double *rate) {
  double rates[repetitions_most];
  size_t repetitions = bench->quick ? 2 : repetitions_most;
  for (size_t i = 0; i < repetitions; i++) {
    struct crew crew = {
        .bench = bench, .allocator = allocator, .size_most_bytes = size_most_bytes, .count = configuration->threads};
    if (!crew_measure(&crew, configuration->kind, bench->quick ? 50 : 300, &rates[i]))
      return false;
  }
  *rate = bench->quick ? rates[1] : numbers_quantile(rates, repetitions, 0.5);
  return true;
}

static bool threads_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  struct threads_result *threads = result;
  for (size_t i = 0; i < threads->count; i++) {
    struct configuration *configuration = &threads->configurations[i];
    progress_within((double)i, (double)threads->count);
    if (!configuration_measure(bench, allocator, threads->size_most_bytes, configuration, &configuration->rates[index]))
      return false;
  }
  return true;
}

static void threads_plan(struct threads_result *threads, unsigned threads_most) {
  for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++)
    for (unsigned count = kinds[kind].threads_least; count <= threads_most && count <= workers_most; count *= 2)
      threads->configurations[threads->count++] = (struct configuration){.kind = &kinds[kind], .threads = count};
}

static bool threads_csv(const struct bench *bench, const struct threads_result *threads) {
  struct report_csv csv;
  if (!report_csv_open(&csv, bench->csv_directory, "threads", "allocator,test,threads,max_bytes,million_per_s"))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t i = 0; i < threads->count; i++) {
      const struct configuration *configuration = &threads->configurations[i];
      size_t bytes = configuration->kind->name == 'R' ? threads->size_most_bytes : pair_bytes;
      report_csv_row(&csv, "%s,%c,%u,%zu,%.4f", bench->allocators[a]->name, configuration->kind->name,
                     configuration->threads, bytes, configuration->rates[a]);
    }
  return report_csv_close(&csv);
}

bool bench_threads(const struct bench *bench) {
  struct threads_result threads = {
      .size_most_bytes = traffic_size_fit(bench->capacity_bytes, (size_t)traffic_slot_count * bench->threads_most)};
  struct report_row rows[configurations_most];
  threads_plan(&threads, bench->threads_most);
  if (!bench_each(bench, "threads", threads_part, &threads))
    return false;
  for (size_t i = 0; i < threads.count; i++) {
    (void)snprintf(rows[i].label, sizeof rows[i].label, "%c%u", threads.configurations[i].kind->name,
                   threads.configurations[i].threads);
    memcpy(rows[i].values, threads.configurations[i].rates, sizeof rows[i].values);
  }
  struct report_table table = {.title = "threads: million operations a second in all (allocations and frees)",
                               .row_title = "threads",
                               .higher_is_better = true,
                               .rows = rows,
                               .row_count = threads.count};
  report_table_print(&table, bench->allocators, bench->allocator_count);
  char most[report_label_size];
  report_bytes_text(most, threads.size_most_bytes);
  (void)printf("T: pairs of 4 KiB.  R: random traffic, 4096 slots a thread, 256 B to %s.  X: half of the threads "
               "allocate 4 KiB, the others free.\n",
               most);
  return threads_csv(bench, &threads);
}
