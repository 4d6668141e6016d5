/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Many threads do everything: malloc, free, create, destroy, questions, fork.  A build for ThreadSanitizer finds most.
 * Each test runs for MAM_TEST_MS milliseconds, 500 by default.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/biased.h"
#include "front/front_check.h"
#include "support/busy_fork.h"
#include "support/imaginary_source.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)

enum { THREADS = 8 };

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static _Atomic int64_t end_ms;

static bool time_is_up(void) { return now_ms() >= end_ms; }

/* xorshift64*: one state a thread. */
static size_t random_below(uint64_t *state, size_t bound) {
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return (size_t)((*state * UINT64_C(0x2545F4914F6CDD1D)) >> 32) % bound;
}

/* Counts faults: Check's own assertions are for the main thread. */
static _Atomic unsigned faults;
static void expect(bool holds, int line, const char *what) {
  if (holds)
    return;
  faults++;
  (void)fprintf(stderr, "line %d: %s\n", line, what);
}
#define EXPECT(condition) expect(condition, __LINE__, #condition)

static int test_ms(void) {
  const char *text = getenv("MAM_TEST_MS");
  return text != NULL ? atoi(text) : 500;
}

static void run_threads(void *(*body)(void *), int count) {
  pthread_t threads[THREADS];
  end_ms = now_ms() + test_ms();
  for (int i = 0; i < count; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)(i + 1)), 0);
  for (int i = 0; i < count; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(faults, 0);
}

/* ---- One pool, random traffic ---- */

enum { POOL_MIB = 64, CELL_BYTES = 512 };

static struct mam_pool *pool;
static uintptr_t pool_base;
static _Atomic unsigned char owners[POOL_MIB * 2048]; /* the thread that holds each 512 bytes of the pool; 0: none */

static void *owned_malloc(size_t size, unsigned char owner) {
  void *address;
  cudaError_t error = pool_malloc(pool, POOL_ANY_ID, size, NULL, &address);
  EXPECT(error == cudaSuccess || error == cudaErrorMemoryAllocation);
  if (error != cudaSuccess)
    return NULL;
  size_t first = ((uintptr_t)address - pool_base) / CELL_BYTES, cells = (size + CELL_BYTES - 1) / CELL_BYTES;
  for (size_t i = first; i < first + cells; i++)
    EXPECT(atomic_exchange(&owners[i], owner) == 0);
  return address;
}

static void owned_free(void *address, size_t size, unsigned char owner) {
  struct pool_emptied emptied;
  size_t first = ((uintptr_t)address - pool_base) / CELL_BYTES, cells = (size + CELL_BYTES - 1) / CELL_BYTES;
  for (size_t i = first; i < first + cells; i++)
    EXPECT(atomic_exchange(&owners[i], 0) == owner);
  EXPECT(pool_free(address, &emptied) == cudaSuccess);
}

static void *traffic(void *number) {
  enum { SLOTS = 64 };
  unsigned char owner = (unsigned char)(uintptr_t)number;
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  void *blocks[SLOTS] = {NULL};
  size_t sizes[SLOTS];
  while (!time_is_up()) {
    size_t slot = random_below(&state, SLOTS);
    if (blocks[slot] == NULL) {
      sizes[slot] = 1 + random_below(&state, 256 * 1024);
      blocks[slot] = owned_malloc(sizes[slot], owner);
    } else {
      owned_free(blocks[slot], sizes[slot], owner);
      blocks[slot] = NULL;
    }
  }
  for (size_t slot = 0; slot < SLOTS; slot++)
    if (blocks[slot] != NULL)
      owned_free(blocks[slot], sizes[slot], owner);
  return NULL;
}

START_TEST(random_traffic_never_overlaps_and_leaves_one_hole) {
  const struct pool_config config = {.reuse = _i == 0 ? MAM_REUSE_FENCED : MAM_REUSE_IMMEDIATE,
                                     .alignment = POOL_ALIGNMENT_BYTES,
                                     .chunk_bytes = POOL_MIB * MIB};
  MAM_PoolInfo info;
  void *all;
  imaginary_reset();
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &pool), cudaSuccess);
  pool_base = (uintptr_t)1 << 40;
  run_threads(traffic, THREADS);
  /* An allocation of the whole pool brings back what still waits. */
  ck_assert_int_eq(pool_malloc(pool, POOL_ANY_ID, POOL_MIB * MIB, NULL, &all), cudaSuccess);
  ck_assert_int_eq(pool_info(pool, POOL_ANY_ID, &info), cudaSuccess);
  ck_assert_uint_eq(info.segment_count, 1);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count + 1);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}
END_TEST

/* Each thread holds at most one block, and there is one for each: no thread may be refused. */
static void *hold_one_block(void *number) {
  void *block;
  struct pool_emptied emptied;
  (void)number;
  while (!time_is_up()) {
    bool served = pool_malloc(pool, POOL_ANY_ID, 2 * MIB, NULL, &block) == cudaSuccess;
    EXPECT(served);
    if (served)
      EXPECT(pool_free(block, &emptied) == cudaSuccess);
  }
  return NULL;
}

START_TEST(demand_that_capacity_covers_is_never_refused) {
  const struct pool_config config = {
      .reuse = MAM_REUSE_FENCED, .alignment = POOL_ALIGNMENT_BYTES, .chunk_bytes = 4 * 2 * MIB};
  imaginary_reset();
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &pool), cudaSuccess);
  run_threads(hold_one_block, 4);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
}
END_TEST

/* ---- The biased lock ---- */

static struct biased biased;
static pthread_mutex_t biased_others = PTHREAD_MUTEX_INITIALIZER;
static uint64_t biased_counter; /* not atomic: the lock protects it */
static _Atomic uint64_t biased_turns;

static void biased_own(void) {
  for (int i = 0; i < 1000; i++) {
    biased_enter(&biased);
    biased_counter++;
    biased_leave(&biased);
  }
  biased_turns += 1000;
}

static void biased_borrow(void) {
  pthread_mutex_lock(&biased_others);
  biased_other_want(&biased);
  biased_barrier();
  biased_other_await(&biased);
  biased_counter++;
  biased_other_leave(&biased);
  pthread_mutex_unlock(&biased_others);
  biased_turns++;
}

static void *biased_body(void *number) {
  while (!time_is_up())
    if ((uintptr_t)number == 1)
      biased_own();
    else
      biased_borrow();
  return NULL;
}

START_TEST(a_biased_lock_loses_no_addition) {
  biased_register();
  biased_owner_barrier |= _i == 1 ? BIASED_OWNER_BARRIER : 0; /* as where the kernel has no membarrier */
  biased_init(&biased);
  run_threads(biased_body, 4);
  ck_assert_uint_gt(biased_counter, 0);
  ck_assert_uint_eq(biased_counter, biased_turns);
}
END_TEST

/* ---- The default pool: everything against everything ---- */

static void set_up_host(void) {
  setenv("MAM_SOURCE", "host", 1);
  setenv("MAM_LINGER_MS", "5", 1);
}

static void one_call(uint64_t *state, void **block) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  cudaError_t error;
  switch (random_below(state, 16)) {
  case 0:
    error = MAM_Create(4 * MIB);
    EXPECT(error == cudaSuccess || error == cudaErrorAlreadyAcquired);
    break;
  case 1:
    EXPECT(MAM_Destroy() == cudaSuccess);
    break;
  case 3:
    EXPECT(MAM_Trim(random_below(state, 4) * MIB) == cudaSuccess);
    break;
  case 2:
    error = MAM_PoolGetInfo(NULL, &info);
    EXPECT(error == cudaErrorInvalidResourceHandle || info.reserved_bytes % 512 == 0);
    break;
  default:
    if (*block == NULL) {
      error = MAM_CudaMalloc(block, 1 + random_below(state, 100000));
      EXPECT(error == cudaErrorMemoryAllocation || (error == cudaSuccess && *block != NULL));
    } else {
      error = MAM_CudaFree(*block);
      EXPECT(error == cudaSuccess || error == cudaErrorInvalidValue); /* another thread may have destroyed the pool */
      *block = NULL;
    }
  }
}

static void *create_destroy_malloc_free(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  void *block = NULL;
  while (!time_is_up())
    one_call(&state, &block);
  return NULL;
}

START_TEST(default_pool_survives_create_destroy_malloc_and_free_at_once) {
  void *block;
  run_threads(create_destroy_malloc_free, THREADS);
  ck_assert_int_eq(MAM_Destroy(), cudaSuccess);
  ck_assert_int_eq(MAM_CudaMalloc(&block, 1), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(block), cudaSuccess);
}
END_TEST

/* ---- Lazy creation ---- */

static pthread_barrier_t barrier;
static MAM_Pool first_pools[THREADS];
static void *first_blocks[THREADS];

static void *first_malloc(void *number) {
  uintptr_t index = (uintptr_t)number - 1;
  (void)pthread_barrier_wait(&barrier);
  EXPECT(MAM_CudaMalloc(&first_blocks[index], 100) == cudaSuccess);
  EXPECT(MAM_PoolDefault(&first_pools[index]) == cudaSuccess);
  return NULL;
}

START_TEST(first_mallocs_at_once_make_one_environment) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  pthread_barrier_init(&barrier, NULL, THREADS);
  run_threads(first_malloc, THREADS);
  for (int i = 1; i < THREADS; i++)
    ck_assert_ptr_eq(first_pools[i], first_pools[0]);
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &info), cudaSuccess);
  ck_assert_uint_eq(info.used_count, THREADS);
  ck_assert_uint_eq(info.malloc_count, THREADS);
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(MAM_CudaFree(first_blocks[i]), cudaSuccess);
  /* Several threads used the environment, so only the reaper notices that it is empty. */
  for (int tries = 0; tries < 500 && MAM_PoolGetInfo(NULL, &info) == cudaSuccess; tries++)
    (void)usleep(10000);
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &info), cudaErrorInvalidResourceHandle);
}
END_TEST

/* Each thread frees the last block again and again: the environment ends and comes back while others use it. */
static void *malloc_and_free(void *number) {
  void *block;
  (void)number;
  while (!time_is_up()) {
    EXPECT(MAM_CudaMalloc(&block, 4096) == cudaSuccess);
    EXPECT(MAM_CudaFree(block) == cudaSuccess);
    if ((uintptr_t)number == 1)
      (void)usleep(12000); /* longer than MAM_LINGER_MS */
  }
  return NULL;
}

START_TEST(environment_ends_and_comes_back_under_its_users) { run_threads(malloc_and_free, 1 + _i); }
END_TEST

/* ---- Pools as objects, blocks freed by other threads ---- */

enum { MAILBOXES = 16 };
static _Atomic(void *) mailboxes[MAILBOXES];

static void *pools_come_and_go(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST, options.chunk_bytes = 2 * MIB, options.limit_bytes = 8 * MIB;
  while (!time_is_up()) {
    MAM_Pool mine;
    void *block;
    EXPECT(MAM_PoolCreate(&mine, &options) == cudaSuccess);
    for (int i = 0; i < 50; i++) {
      EXPECT(MAM_PoolMalloc(mine, &block, 1 + random_below(&state, 100000)) == cudaSuccess);
      void *other = atomic_exchange(&mailboxes[random_below(&state, MAILBOXES)], block);
      cudaError_t error = MAM_CudaFree(other);
      EXPECT(error == cudaSuccess || error == cudaErrorInvalidValue); /* the block may have ended with its pool */
    }
    EXPECT(MAM_PoolDestroy(mine) == cudaSuccess);
  }
  return NULL;
}

START_TEST(pools_come_and_go_while_others_free) { run_threads(pools_come_and_go, THREADS); }
END_TEST

/* Errors of programs: a thread frees what is not its own, or not any more.  The pool stays sound, and nothing is
 * lost. */
static MAM_Pool wronged_pool;

static void wronged_begin(MAM_Reuse reuse) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST, options.chunk_bytes = 16 * MIB, options.limit_bytes = 64 * MIB;
  options.reuse = reuse;
  ck_assert_int_eq(MAM_PoolCreate(&wronged_pool, &options), cudaSuccess);
}

static void wronged_end(void) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  ck_assert_int_eq(MAM_PoolGetInfo(wronged_pool, &info), cudaSuccess);
  ck_assert_uint_eq(info.used_count, 0);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count);
  ck_assert_uint_eq(info.used_bytes + info.waiting_bytes + info.free_bytes, info.reserved_bytes);
  ck_assert_int_eq(MAM_PoolDestroy(wronged_pool), cudaSuccess);
}

static const MAM_Reuse reuses[] = {MAM_REUSE_FENCED, MAM_REUSE_IMMEDIATE};

static void free_perhaps(void *block) {
  cudaError_t error = MAM_CudaFree(block);
  EXPECT(error == cudaSuccess || error == cudaErrorInvalidValue);
}

/* Some threads free an address again and again while another one gets it again and again. */
static _Atomic(void *) guessed_block;

static void *malloc_beside_guesses(void *number) {
  while (!time_is_up()) {
    void *block;
    if ((uintptr_t)number == 1) {
      EXPECT(MAM_PoolMalloc(wronged_pool, &block, MIB) == cudaSuccess);
      atomic_store(&guessed_block, block);
    }
    free_perhaps(atomic_load(&guessed_block));
  }
  return NULL;
}

START_TEST(frees_of_a_guessed_address_break_nothing) {
  wronged_begin(reuses[_i]);
  atomic_store(&guessed_block, NULL);
  run_threads(malloc_beside_guesses, 3);
  wronged_end();
}
END_TEST

/* The first free that a second thread makes in a pool is of a block that the first thread is freeing. */
static _Atomic bool guess_wanted;

static void *guess_when_told(void *unused) {
  (void)unused;
  while (!time_is_up()) {
    if (!atomic_load(&guess_wanted)) {
      (void)sched_yield();
      continue;
    }
    free_perhaps(atomic_load(&guessed_block));
    atomic_store(&guess_wanted, false);
  }
  return NULL;
}

static unsigned pairs_beside_a_guess(size_t size) {
  unsigned taken = 0;
  for (int after = 0; after < 16; after += !atomic_load(&guess_wanted)) {
    void *block;
    EXPECT(MAM_PoolMalloc(wronged_pool, &block, size) == cudaSuccess);
    if (atomic_exchange(&guessed_block, block) == NULL)
      atomic_store(&guess_wanted, true);
    taken += MAM_CudaFree(block) != cudaSuccess;
  }
  return taken;
}

START_TEST(first_free_of_a_second_thread_takes_no_block_twice) {
  static const size_t sizes[] = {64, 300000};
  pthread_t thread;
  unsigned taken = 0;
  end_ms = INT64_MAX;
  ck_assert_int_eq(pthread_create(&thread, NULL, guess_when_told, NULL), 0);
  int64_t until_ms = now_ms() + test_ms();
  while (now_ms() < until_ms) {
    wronged_begin(MAM_REUSE_IMMEDIATE);
    atomic_store(&guessed_block, NULL);
    taken += pairs_beside_a_guess(sizes[_i]);
    wronged_end();
  }
  end_ms = 0;
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_uint_eq(faults, 0);
  ck_assert_uint_gt(taken, 0);
}
END_TEST

/* All threads free what is at a few places, without clearing them, and the addresses 512 bytes behind. */
enum { WRONGED = 32 };
static _Atomic(void *) wronged[WRONGED];
static const char wronged_tag;

static void *wrong_traffic(void *number) {
  static const size_t sizes[] = {64, 4096, 20000, 300000};
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  while (!time_is_up()) {
    _Atomic(void *) *slot = &wronged[random_below(&state, WRONGED)];
    const void *tag = random_below(&state, 2) == 0 ? &wronged_tag : NULL;
    void *block = NULL;
    if (random_below(&state, 2) == 0) {
      free_perhaps((void *)((uintptr_t)atomic_load(slot) + 512 * random_below(&state, 2)));
      continue;
    }
    EXPECT(MAM_PoolMallocTagged(wronged_pool, &block, sizes[random_below(&state, 4)], tag) == cudaSuccess);
    free_perhaps(atomic_exchange(slot, block));
  }
  return NULL;
}

START_TEST(wrong_frees_by_many_threads_break_nothing) {
  wronged_begin(reuses[_i]);
  for (size_t i = 0; i < WRONGED; i++)
    atomic_store(&wronged[i], NULL);
  run_threads(wrong_traffic, THREADS);
  for (size_t i = 0; i < WRONGED; i++)
    free_perhaps(atomic_load(&wronged[i]));
  wronged_end();
}
END_TEST

/* ---- Elastic pools ---- */

/* The imaginary elastic source, for several threads. */
static pthread_mutex_t elastic_lock = PTHREAD_MUTEX_INITIALIZER;

static cudaError_t locked_map(const struct source *source, uintptr_t base, size_t bytes) {
  pthread_mutex_lock(&elastic_lock);
  cudaError_t error = imaginary_map(source, base, bytes);
  pthread_mutex_unlock(&elastic_lock);
  return error;
}

static cudaError_t locked_unmap(const struct source *source, uintptr_t base, size_t bytes) {
  pthread_mutex_lock(&elastic_lock);
  cudaError_t error = imaginary_unmap(source, base, bytes);
  pthread_mutex_unlock(&elastic_lock);
  return error;
}

static cudaError_t locked_remap(const struct source *source, uintptr_t base, size_t bytes, uintptr_t to, bool *there) {
  pthread_mutex_lock(&elastic_lock);
  cudaError_t error = imaginary_remap(source, base, bytes, to, there);
  pthread_mutex_unlock(&elastic_lock);
  return error;
}

static struct mam_pool *rivals[2];

/* Each pool may have all memory of the source, so each makes the other give memory back. */
static void *rival_traffic(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  void *blocks[8] = {0};
  struct pool_emptied emptied;
  while (!time_is_up()) {
    struct mam_pool *rival = rivals[random_below(&state, 2)];
    void **block = &blocks[random_below(&state, 8)];
    if (*block != NULL)
      EXPECT(pool_free(*block, &emptied) == cudaSuccess);
    *block = NULL;
    cudaError_t error = pool_malloc(rival, POOL_ANY_ID, 1 + random_below(&state, 8 * MIB), NULL, block);
    EXPECT(error == cudaSuccess || error == cudaErrorMemoryAllocation);
    if (random_below(&state, 64) == 0)
      EXPECT(pool_trim(rival, POOL_ANY_ID, random_below(&state, 64) * MIB, false) == cudaSuccess);
  }
  for (int i = 0; i < 8; i++)
    EXPECT(blocks[i] == NULL || pool_free(blocks[i], &emptied) == cudaSuccess);
  return NULL;
}

START_TEST(rivals_for_one_memory_give_back_to_each_other) {
  struct source_operations operations = imaginary_elastic_operations;
  operations.map = locked_map, operations.unmap = locked_unmap, operations.remap = locked_remap;
  const struct source source = {.operations = &operations};
  const struct pool_config config = {
      .reuse = MAM_REUSE_FENCED, .alignment = POOL_ALIGNMENT_BYTES, .waiting_limit_bytes = 1};
  imaginary_reset();
  imaginary.capacity_bytes = 128 * MIB;
  for (int i = 0; i < 2; i++)
    ck_assert_int_eq(pool_open(&config, &source, &rivals[i]), cudaSuccess);
  run_threads(rival_traffic, THREADS);
  for (int i = 0; i < 2; i++) {
    pthread_mutex_lock(&rivals[i]->lock);
    ck_assert_ptr_null(pool_check_locked(rivals[i]));
    ck_assert_uint_eq(rivals[i]->segments.bytes[SEGMENT_USED], 0);
    pthread_mutex_unlock(&rivals[i]->lock);
    ck_assert_int_eq(reuse_synchronize(rivals[i]->reuse), cudaSuccess); /* for frees during the last wait */
    ck_assert_int_eq(pool_trim(rivals[i], POOL_ANY_ID, 0, false), cudaSuccess);
  }
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
  for (int i = 0; i < 2; i++)
    ck_assert_int_eq(pool_close(rivals[i], 0), cudaSuccess);
}
END_TEST

static MAM_Pool trimmed;

/* A block keeps its content, whatever is trimmed around it. */
static void *stamped_traffic(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  unsigned char *blocks[8] = {0};
  size_t sizes[8] = {0};
  while (!time_is_up()) {
    size_t i = random_below(&state, 8);
    if (blocks[i] != NULL) {
      EXPECT(blocks[i][0] == (uintptr_t)number && blocks[i][sizes[i] - 1] == (uintptr_t)number);
      EXPECT(MAM_CudaFree(blocks[i]) == cudaSuccess);
    }
    sizes[i] = 1 + random_below(&state, random_below(&state, 2) == 0 ? 3 * MIB : 4096);
    EXPECT(MAM_PoolMalloc(trimmed, (void **)&blocks[i], sizes[i]) == cudaSuccess);
    blocks[i][0] = blocks[i][sizes[i] - 1] = (unsigned char)(uintptr_t)number;
    if (random_below(&state, 32) == 0)
      EXPECT(MAM_PoolTrim(trimmed, random_below(&state, 64) * MIB) == cudaSuccess);
  }
  return NULL;
}

START_TEST(blocks_keep_their_content_while_the_pool_is_trimmed) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST, options.limit_bytes = 1024 * MIB;
  ck_assert_int_eq(MAM_PoolCreate(&trimmed, &options), cudaSuccess);
  run_threads(stamped_traffic, THREADS);
  ck_assert_ptr_null(front_check(trimmed, true));
  ck_assert_int_eq(MAM_PoolDestroy(trimmed), cudaSuccess);
}
END_TEST

/* Bursts with pauses: the pool is calm and gives memory back, or ends and comes back. */
static void *bursts(void *number) {
  unsigned char *blocks[8];
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < 8; i++) {
      EXPECT(MAM_CudaMalloc((void **)&blocks[i], 20 * MIB) == cudaSuccess);
      blocks[i][0] = blocks[i][20 * MIB - 1] = (unsigned char)(uintptr_t)number;
    }
    for (int i = 0; i < 8; i++) {
      EXPECT(blocks[i][0] == (uintptr_t)number && blocks[i][20 * MIB - 1] == (uintptr_t)number);
      EXPECT(MAM_CudaFree(blocks[i]) == cudaSuccess);
    }
    struct timespec pause = {.tv_nsec = 150000000 + 70000000 * round};
    (void)nanosleep(&pause, NULL);
  }
  return NULL;
}

START_TEST(bursts_of_threads_meet_a_pool_that_gives_back) {
  ck_assert_int_eq(setenv("MAM_SOURCE", "host", 1), 0);
  ck_assert_int_eq(setenv("MAM_LINGER_MS", "100", 1), 0);
  run_threads(bursts, THREADS);
}
END_TEST

/* ---- Fork ---- */

#ifdef __SANITIZE_THREAD__
/* A child of this test starts the library's thread, which ThreadSanitizer takes for a mistake after a fork. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

static int child(void) {
  void *block = NULL;
  (void)MAM_Destroy();
  return MAM_CudaMalloc(&block, 100) == cudaSuccess && MAM_CudaFree(block) == cudaSuccess ? 0 : 1;
}

/* Forks so many children beside four busy threads, one after the other. */
static void fork_beside(void *(*work)(void *), int (*body)(void), int children) {
  pthread_t threads[4];
  end_ms = now_ms() + 600000; /* later than the end of all children */
  for (uintptr_t i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, work, (void *)(i + 1)), 0);
  for (int i = 0; i < children; i++)
    ck_assert(busy_fork(body));
  end_ms = 0;
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(faults, 0);
}

START_TEST(child_of_a_busy_process_can_allocate) { fork_beside(create_destroy_malloc_free, child, 20); }
END_TEST

/* The pool is full and its sizes vary, so its free pieces move. */
static void *moving_traffic(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  void *blocks[6] = {0};
  while (!time_is_up()) {
    size_t i = random_below(&state, 6);
    EXPECT(MAM_CudaFree(blocks[i]) == cudaSuccess);
    blocks[i] = NULL;
    (void)MAM_PoolMalloc(trimmed, &blocks[i], 1 + random_below(&state, 12 * MIB));
  }
  return NULL;
}

/* What was on its way in the parent has memory nowhere in the child, and the child's pool goes on with the rest. */
static int child_of_moves(void) {
  void *blocks[8] = {0};
  uint64_t state = 7;
  for (int i = 0; i < 64; i++) {
    void **block = &blocks[random_below(&state, 8)];
    if (MAM_CudaFree(*block) != cudaSuccess)
      return 1;
    *block = NULL;
    if (MAM_PoolMalloc(trimmed, block, 1 + random_below(&state, 12 * MIB)) == cudaSuccess)
      ((volatile char *)*block)[0] = 1;
  }
  if (MAM_PoolTrim(trimmed, 0) != cudaSuccess)
    return 2;
  pthread_mutex_lock(&trimmed->lock);
  const char *fault = pool_check_locked(trimmed);
  pthread_mutex_unlock(&trimmed->lock);
  if (fault != NULL)
    (void)fprintf(stderr, "in the child: %s\n", fault);
  return fault == NULL ? 0 : 3;
}

START_TEST(child_of_a_pool_that_moves_memory_goes_on) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST, options.limit_bytes = 96 * MIB;
  ck_assert_int_eq(MAM_PoolCreate(&trimmed, &options), cudaSuccess);
  fork_beside(moving_traffic, child_of_moves, 100);
  ck_assert_int_eq(MAM_PoolDestroy(trimmed), cudaSuccess);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("threads");
  TCase *one = tcase_create("one pool"), *all = tcase_create("public functions"), *claims = tcase_create("claims");
  tcase_set_timeout(one, 120);
  tcase_add_loop_test(one, random_traffic_never_overlaps_and_leaves_one_hole, 0, 2);
  tcase_add_loop_test(one, a_biased_lock_loses_no_addition, 0, 2);
  tcase_add_test(one, demand_that_capacity_covers_is_never_refused);
  tcase_add_test(one, rivals_for_one_memory_give_back_to_each_other);
  suite_add_tcase(suite, one);
  tcase_set_timeout(all, 120);
  tcase_add_checked_fixture(all, set_up_host, NULL);
  tcase_add_test(all, default_pool_survives_create_destroy_malloc_and_free_at_once);
  tcase_add_test(all, first_mallocs_at_once_make_one_environment);
  tcase_add_loop_test(all, environment_ends_and_comes_back_under_its_users, 0, THREADS);
  tcase_add_test(all, pools_come_and_go_while_others_free);
  tcase_add_loop_test(all, frees_of_a_guessed_address_break_nothing, 0, 2);
  tcase_add_loop_test(all, wrong_frees_by_many_threads_break_nothing, 0, 2);
  tcase_add_test(all, blocks_keep_their_content_while_the_pool_is_trimmed);
  tcase_add_test(all, bursts_of_threads_meet_a_pool_that_gives_back);
  tcase_add_test(all, child_of_a_busy_process_can_allocate);
  tcase_add_test(all, child_of_a_pool_that_moves_memory_goes_on);
  suite_add_tcase(suite, all);
  tcase_set_timeout(claims, 120);
  tcase_add_checked_fixture(claims, set_up_host, NULL);
  tcase_add_loop_test(claims, first_free_of_a_second_thread_takes_no_block_twice, 0, 2);
  suite_add_tcase(suite, claims);
  return run_suite(suite);
}
