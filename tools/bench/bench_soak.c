/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * soak: verified random traffic of many threads on our allocator, for a long time.
 *
 * The threads share their slots, so a block is often freed by another thread than allocated it.  A map with a bit for
 * each 512 bytes of the pool shows what is live.  An allocation sets the bits of its block.  If one is set already, two
 * blocks overlap, and the thread that comes second notices.  At the end all is freed, and the pool must give all its
 * memory as one block.  An allocation like that at the beginning tells where the pool lies, which the library does not
 * say.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "bench_blocks.h"
#include "bench_clock.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"
#include "bench_traffic.h"

enum { granule_bytes = 512, word_bits = 64, soak_workers_most = 256, burst = 256, oddity_one_in = 512 };

enum slot_state { slot_empty, slot_busy, slot_live };

struct slot {
  _Atomic int state;  /* busy: the slot and its block belong to the thread that set this */
  struct block block; /* while live, it belongs to no thread */
};

struct soak {
  const struct bench *bench;
  const struct allocator *allocator;
  uintptr_t pool_start;
  size_t pool_bytes;
  _Atomic uint64_t *live_map; /* a bit for each granule */
  struct slot *slots;
  size_t slot_count, size_most_bytes;
  _Atomic bool stop;
  _Atomic unsigned fault_count;
};

/* Only its thread writes it, until that thread has ended. */
struct soaker {
  struct soak *soak;
  pthread_t thread;
  struct numbers_random draw;
  uint64_t malloc_count, free_count, refused_count;
};

static void soak_fault(struct soak *soak, const struct block *block, const char *what) {
  (void)fprintf(stderr, "mam-bench: soak: the block of %zu bytes at %p %s\n", block->bytes, block->address, what);
  /* relaxed: counted, and read after the threads were joined; the stop guards no data */
  atomic_fetch_add_explicit(&soak->fault_count, 1, memory_order_relaxed);
  atomic_store_explicit(&soak->stop, true, memory_order_relaxed);
}

/* ---- The map of live granules ------------------------------------------------------------------------------------ */

/* The bits of word that belong to granules first to last. */
static uint64_t map_mask(size_t word, size_t first, size_t last) {
  uint64_t mask = UINT64_MAX;
  if (word == first / word_bits)
    mask &= UINT64_MAX << first % word_bits;
  if (word == last / word_bits)
    mask &= UINT64_MAX >> (word_bits - 1 - last % word_bits);
  return mask;
}

/* Flips the bits of a block.  Whether all of them were as expected, live or not. */
static bool map_flip(struct soak *soak, const struct block *block, bool expect_live) {
  size_t offset = (uintptr_t)block->address - soak->pool_start;
  size_t first = offset / granule_bytes, last = (offset + block->bytes - 1) / granule_bytes;
  bool as_expected = true;
  for (size_t word = first / word_bits; word <= last / word_bits; word++) {
    uint64_t mask = map_mask(word, first, last);
    /* relaxed: each word's own order of changes is enough.  The allocator itself orders the flip of a free before the
     * flip of the allocation that reuses the memory. */
    uint64_t before = atomic_fetch_xor_explicit(&soak->live_map[word], mask, memory_order_relaxed);
    as_expected = as_expected && (before & mask) == (expect_live ? mask : 0);
  }
  return as_expected;
}

/* ---- A thread's steps -------------------------------------------------------------------------------------------- */

static bool block_in_pool(const struct soak *soak, const struct block *block) {
  uintptr_t start = (uintptr_t)block->address;
  return start >= soak->pool_start && block->bytes <= soak->pool_bytes &&
         start - soak->pool_start <= soak->pool_bytes - block->bytes;
}

static int slot_allocate(struct soaker *soaker, struct slot *slot) {
  struct soak *soak = soaker->soak;
  size_t bytes = numbers_log_uniform(&soaker->draw, 1, soak->size_most_bytes);
  slot->block = (struct block){NULL, bytes};
  cudaError_t error = soak->allocator->allocate(&slot->block.address, bytes);
  if (error == cudaErrorMemoryAllocation) {
    soaker->refused_count++;
    return slot_empty;
  }
  if (error != cudaSuccess) {
    (void)blocks_complain(soak->allocator, "an allocation", bytes, error);
    soak_fault(soak, &slot->block, "could not be allocated");
    return slot_empty;
  }
  soaker->malloc_count++;
  if ((uintptr_t)slot->block.address % soak->allocator->alignment != 0)
    soak_fault(soak, &slot->block, "is not aligned");
  else if (!block_in_pool(soak, &slot->block))
    soak_fault(soak, &slot->block, "is not in the pool");
  else if (!map_flip(soak, &slot->block, false))
    soak_fault(soak, &slot->block, "overlaps a live one");
  else
    return slot_live;
  return slot_empty; /* the block overlaps another one, and is not touched again */
}

static int slot_release(struct soaker *soaker, struct slot *slot) {
  struct soak *soak = soaker->soak;
  /* Before the free: after it the memory may be another thread's. */
  if (!map_flip(soak, &slot->block, true))
    soak_fault(soak, &slot->block, "was overwritten in the map by another");
  cudaError_t error = soak->allocator->release(slot->block.address, slot->block.bytes);
  if (error != cudaSuccess) {
    (void)blocks_complain(soak->allocator, "a free", slot->block.bytes, error);
    soak_fault(soak, &slot->block, "could not be freed");
  }
  soaker->free_count++;
  return slot_empty;
}

/* Makes calls that must be refused or do nothing, in the middle of the traffic. */
static void slot_provoke(struct soaker *soaker, const struct slot *slot) {
  struct soak *soak = soaker->soak;
  struct block inside = {(char *)slot->block.address + 1, 0}, nothing = {&inside, 0};
  if (soak->allocator->release(inside.address, 0) != cudaErrorInvalidValue)
    soak_fault(soak, &inside, "was freed, though it is inside another");
  if (soak->allocator->allocate(&nothing.address, 0) != cudaSuccess || nothing.address != NULL)
    soak_fault(soak, &nothing, "is not NULL");
  if (soak->allocator->release(NULL, 0) != cudaSuccess)
    soak_fault(soak, &nothing, "is NULL, and could not be freed");
}

static void soaker_step(struct soaker *soaker) {
  struct soak *soak = soaker->soak;
  struct slot *slot = &soak->slots[numbers_below(&soaker->draw, soak->slot_count)];
  /* acquire: the block; pairs with the release below */
  int state = atomic_exchange_explicit(&slot->state, slot_busy, memory_order_acquire);
  if (state == slot_busy)
    return; /* another thread uses the slot, and will set its state */
  if (state == slot_live && numbers_below(&soaker->draw, oddity_one_in) == 0)
    slot_provoke(soaker, slot);
  state = state == slot_empty ? slot_allocate(soaker, slot) : slot_release(soaker, slot);
  /* release: the block; pairs with the acquire above */
  atomic_store_explicit(&slot->state, state, memory_order_release);
}

static void *soaker_main(void *argument) {
  struct soaker *soaker = argument;
  struct soak *soak = soaker->soak;
  if (!machine_thread_begin(soak->bench->machine))
    soak_fault(soak, &(struct block){0}, "has no context to be allocated in");
  /* relaxed: a flag that guards no data */
  while (!atomic_load_explicit(&soak->stop, memory_order_relaxed))
    for (unsigned i = 0; i < burst; i++)
      soaker_step(soaker);
  return NULL;
}

/* ---- The pool as a whole ----------------------------------------------------------------------------------------- */

static bool pool_info(MAM_PoolInfo *info) {
  *info = (MAM_PoolInfo){.struct_size = sizeof *info};
  cudaError_t error = MAM_PoolGetInfo(NULL, info);
  if (error != cudaSuccess)
    (void)fprintf(stderr, "mam-bench: soak: MAM_PoolGetInfo failed with error %d: %s\n", (int)error, MAM_LastError());
  return error == cudaSuccess;
}

/* Prints the library's own explanation why it cannot serve size bytes. */
static void pool_explain(size_t bytes) {
  char *text = NULL;
  if (MAM_PoolExplain(NULL, bytes, &text) == cudaSuccess)
    (void)fprintf(stderr, "%s\n", text);
  free(text);
}

/* Allocates all of the pool as one block and frees it.  True only if the pool is one hole. */
static bool pool_take_whole(struct soak *soak) {
  struct block whole = {0};
  MAM_PoolInfo info;
  if (!pool_info(&info))
    return false;
  if (!blocks_allocate(soak->allocator, &whole, info.reserved_bytes)) {
    pool_explain(info.reserved_bytes);
    return false;
  }
  soak->pool_start = (uintptr_t)whole.address;
  soak->pool_bytes = info.reserved_bytes;
  return blocks_release(soak->allocator, &whole, 1);
}

/* After all was freed, nothing is live, every allocation had its free, and the pool is one hole at its old place. */
static bool pool_is_whole(struct soak *soak) {
  const uintptr_t start = soak->pool_start;
  const size_t bytes = soak->pool_bytes;
  MAM_PoolInfo info;
  if (!pool_info(&info))
    return false;
  if (info.used_bytes != 0 || info.used_count != 0 || info.malloc_count != info.free_call_count) {
    (void)fprintf(stderr,
                  "mam-bench: soak: all is freed, yet %zu bytes in %zu blocks are live, after %" PRIu64
                  " allocations and %" PRIu64 " frees\n",
                  info.used_bytes, info.used_count, info.malloc_count, info.free_call_count);
    return false;
  }
  if (!pool_take_whole(soak))
    return false;
  if (soak->pool_start != start || soak->pool_bytes != bytes) {
    (void)fprintf(stderr, "mam-bench: soak: the pool is not where it was\n");
    return false;
  }
  return true;
}

/* ---- The test ---------------------------------------------------------------------------------------------------- */

static bool soak_prepare(struct soak *soak) {
  size_t map_words = soak->pool_bytes / granule_bytes / word_bits + 1;
  soak->live_map = calloc(map_words, sizeof *soak->live_map);
  soak->slots = calloc(soak->slot_count, sizeof *soak->slots);
  if (soak->live_map != NULL && soak->slots != NULL)
    return true;
  (void)fprintf(stderr, "mam-bench: soak: no host memory for its map of the pool\n");
  return false;
}

static void soak_run(struct soak *soak, struct soaker *soakers, unsigned count) {
  unsigned started = 0;
  for (; started < count; started++) {
    soakers[started] = (struct soaker){.soak = soak, .draw = numbers_seed(started + 1)};
    if (pthread_create(&soakers[started].thread, NULL, soaker_main, &soakers[started]) != 0) {
      soak_fault(soak, &(struct block){0}, "has no thread to be allocated by");
      break;
    }
  }
  uint64_t start_ns = clock_now_ns();
  /* relaxed: a flag that guards no data */
  while (!atomic_load_explicit(&soak->stop, memory_order_relaxed) &&
         clock_now_ns() - start_ns < soak->bench->soak_s * (uint64_t)1000000000) {
    progress_within((double)(clock_now_ns() - start_ns) / 1e9, soak->bench->soak_s);
    clock_sleep_ms(20);
  }
  /* relaxed: the same */
  atomic_store_explicit(&soak->stop, true, memory_order_relaxed);
  for (unsigned i = 0; i < started; i++)
    (void)pthread_join(soakers[i].thread, NULL);
}

static void soak_drain(struct soak *soak, struct soaker *soaker) {
  for (size_t i = 0; i < soak->slot_count; i++)
    if (soak->slots[i].state == slot_live)
      soak->slots[i].state = slot_release(soaker, &soak->slots[i]);
}

static bool soak_report(const struct soak *soak, const struct soaker *total, unsigned threads) {
  struct report_csv csv;
  MAM_PoolInfo info;
  if (!pool_info(&info))
    return false;
  char most[report_label_size];
  report_bytes_text(most, soak->size_most_bytes);
  (void)printf("\nsoak: %u threads, %u s, 1 B to %s: %" PRIu64 " allocations, %" PRIu64 " frees, %" PRIu64
               " refusals, %" PRIu64 " synchronisations\n",
               threads, soak->bench->soak_s, most, total->malloc_count, total->free_count, total->refused_count,
               info.synchronize_count);
  if (!report_csv_open(&csv, soak->bench->csv_directory, "soak",
                       "allocator,threads,seconds,mallocs,frees,refusals,faults,synchronizations"))
    return false;
  report_csv_row(&csv, "%s,%u,%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%u,%" PRIu64, soak->allocator->name, threads,
                 soak->bench->soak_s, total->malloc_count, total->free_count, total->refused_count, soak->fault_count,
                 info.synchronize_count);
  return report_csv_close(&csv);
}

/* Runs the traffic in an open pool and checks the result. */
static bool soak_measure(struct soak *soak, struct soaker *soakers, unsigned threads) {
  struct soaker total = {.soak = soak};
  soak_run(soak, soakers, threads);
  soak_drain(soak, &total);
  for (unsigned i = 0; i < threads; i++) {
    total.malloc_count += soakers[i].malloc_count;
    total.free_count += soakers[i].free_count;
    total.refused_count += soakers[i].refused_count;
  }
  bool whole = soak->fault_count == 0 && pool_is_whole(soak);
  if (total.refused_count > 0) /* the slots need a quarter of the pool, so there was room */
    (void)fprintf(stderr, "mam-bench: soak: %" PRIu64 " allocations were refused with most of the pool free\n",
                  total.refused_count);
  bool good = whole && total.refused_count == 0;
  good = soak_report(soak, &total, threads) && good;
  (void)printf("soak: %s\n", good ? "no fault; all was freed, and the pool is one hole" : "FAILED");
  return good;
}

static bool soak_part(const struct bench *bench, const struct allocator *allocator, size_t index, void *result) {
  static struct soaker soakers[soak_workers_most];
  (void)index;
  (void)result;
  unsigned threads = bench->threads_most;
  size_t slots = (size_t)traffic_slot_count * threads, room = bench->capacity_bytes / 4 / granule_bytes;
  slots = slots < room ? slots : room; /* a block takes a granule at least */
  struct soak soak = {.bench = bench,
                      .allocator = allocator,
                      .slot_count = slots,
                      .size_most_bytes = traffic_size_fit(bench->capacity_bytes, slots)};
  bool good = pool_take_whole(&soak) && soak_prepare(&soak) && soak_measure(&soak, soakers, threads);
  free(soak.live_map);
  free(soak.slots);
  return good;
}

bool bench_soak(const struct bench *bench) {
  struct bench ours = *bench;
  ours.allocator_count = 1;
  if (ours.chunk_bytes ==
      0) /* one chunk, as there is one map; a pool that grows may use any of twice as many addresses */
    ours.chunk_bytes = ours.capacity_bytes /= 2;
  return bench_each(&ours, "soak", soak_part, NULL);
}
