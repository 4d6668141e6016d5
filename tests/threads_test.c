/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Many threads on everything: malloc, free, create, destroy, ask, fork.  Worth most in a build for ThreadSanitizer.
 * Each test runs for MAM_TEST_MS milliseconds, 500 by default.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "imaginary_source.h"
#include "run_suite.h"

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

/* Faults are counted: Check's own assertions are for the main thread. */
static _Atomic unsigned faults;
static void expect(bool holds, int line, const char *what) {
  if (holds)
    return;
  faults++;
  (void)fprintf(stderr, "line %d: %s\n", line, what);
}
#define EXPECT(condition) expect(condition, __LINE__, #condition)

static void run_threads(void *(*body)(void *), int count) {
  pthread_t threads[THREADS];
  const char *text = getenv("MAM_TEST_MS");
  end_ms = now_ms() + (text != NULL ? atoi(text) : 500);
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
static _Atomic unsigned char owners[POOL_MIB * 2048]; /* who holds each 512 bytes of the pool, 0 for nobody */

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
  /* What still waits comes back for this one. */
  ck_assert_int_eq(pool_malloc(pool, POOL_ANY_ID, POOL_MIB * MIB, NULL, &all), cudaSuccess);
  ck_assert_int_eq(pool_info(pool, &info), cudaSuccess);
  ck_assert_uint_eq(info.segment_count, 1);
  ck_assert_uint_eq(info.malloc_count, info.free_call_count + 1);
  ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  ck_assert_uint_eq(imaginary.taken_bytes, 0);
}
END_TEST

/* Each thread holds at most one block, and there is one for each: nobody may be refused. */
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
      EXPECT(error == cudaSuccess || error == cudaErrorInvalidValue); /* destroyed by another thread */
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
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &info), cudaErrorInvalidResourceHandle);
}
END_TEST

/* The last block is freed again and again, by each thread: the environment ends and comes back under the others. */
static void *malloc_and_free(void *number) {
  void *block;
  (void)number;
  while (!time_is_up()) {
    EXPECT(MAM_CudaMalloc(&block, 4096) == cudaSuccess);
    EXPECT(MAM_CudaFree(block) == cudaSuccess);
    if ((uintptr_t)number == 1)
      (void)usleep(12000); /* past the linger time */
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
      EXPECT(error == cudaSuccess || error == cudaErrorInvalidValue); /* its pool is gone, and its block with it */
    }
    EXPECT(MAM_PoolDestroy(mine) == cudaSuccess);
  }
  return NULL;
}

START_TEST(pools_come_and_go_while_others_free) { run_threads(pools_come_and_go, THREADS); }
END_TEST

/* ---- Fork ---- */

#ifdef __SANITIZE_THREAD__
/* A child of this test starts a thread, the library's own, which ThreadSanitizer takes for a mistake after fork. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

START_TEST(child_of_a_busy_process_can_allocate) {
  pthread_t threads[4];
  void *block = NULL;
  end_ms = now_ms() + 2000;
  for (uintptr_t i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, create_destroy_malloc_free, (void *)(i + 1)), 0);
  for (int i = 0; i < 20; i++) {
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
      (void)alarm(20); /* a lock left behind would hang */
      (void)MAM_Destroy();
      _exit(MAM_CudaMalloc(&block, 100) == cudaSuccess && MAM_CudaFree(block) == cudaSuccess ? 0 : 1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status %#x", (unsigned)status);
  }
  end_ms = 0;
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(faults, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("threads");
  TCase *one = tcase_create("one pool"), *all = tcase_create("public functions");
  tcase_set_timeout(one, 120);
  tcase_add_loop_test(one, random_traffic_never_overlaps_and_leaves_one_hole, 0, 2);
  tcase_add_test(one, demand_that_capacity_covers_is_never_refused);
  suite_add_tcase(suite, one);
  tcase_set_timeout(all, 120);
  tcase_add_checked_fixture(all, set_up_host, NULL);
  tcase_add_test(all, default_pool_survives_create_destroy_malloc_and_free_at_once);
  tcase_add_test(all, first_mallocs_at_once_make_one_environment);
  tcase_add_loop_test(all, environment_ends_and_comes_back_under_its_users, 0, THREADS);
  tcase_add_test(all, pools_come_and_go_while_others_free);
  tcase_add_test(all, child_of_a_busy_process_can_allocate);
  suite_add_tcase(suite, all);
  return run_suite(suite);
}
