/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a device heap grows while threads run out of memory in it: the code of heap_grow.h, which kernels run, and
 * heap_service.c, with a host that has memory or refuses it.  Also for ThreadSanitizer.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned long long time_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec;
}
#define MAM__ATOMICS_TIME_NS() time_ns()
#define MAM__ATOMICS_PAUSE() (void)sched_yield()

#include "heap/heap_service.h"
#include "mam/detail/heap_grow.h"
#include "support/heap_model.h"
#include "support/run_suite.h"

enum { THREADS = 8, BLOCKS_MOST = 40000, KIB = 1 << 10, MIB = 1 << 20, BLOCK_BYTES = 1000 };

static struct heap_model *model;
static uint64_t bell;
static struct heap_service *service;

/* The memory that the host has left. */
static size_t left_bytes;
static unsigned answers, retries;
static enum heap_answer refusal;
static bool alive;

static struct mam__growth *growth(void) { return &model->control->growth; }

static void reply(mam__u32 round, mam__u32 refused_pages) {
  /* release: the superblock, and what it holds; pairs with the acquire in mam__growth_wait */
  __atomic_store_n(&growth()->reply, mam__round_of(round, refused_pages), __ATOMIC_RELEASE);
}

static mam__u32 round_now(void) { return mam__round_number(__atomic_load_n(&growth()->reply, __ATOMIC_RELAXED)); }

static enum heap_answer answer(void *closure, uint64_t word) {
  mam__u32 round = round_now(), pages = mam__round_pages(word);
  size_t bytes = MIB + (size_t)pages * MAM__PAGE_BYTES;
  (void)closure;
  answers++;
  if (mam__round_number(word) != round || bytes <= left_bytes) {
    if (mam__round_number(word) == round) {
      heap_model_grow(model, bytes);
      left_bytes -= bytes;
    }
    reply(round + 1, 0);
    return HEAP_ANSWER_DONE;
  }
  reply(round + 1, pages);
  return __atomic_load_n(&refusal, __ATOMIC_RELAXED);
}

static enum heap_answer retry(void *closure) {
  (void)closure;
  retries++;
  left_bytes = 64 * MIB;
  reply(round_now() + 1, 0);
  return HEAP_ANSWER_DONE;
}

static bool lives(void *closure) {
  (void)closure;
  return __atomic_load_n(&alive, __ATOMIC_RELAXED);
}

static const struct heap_service_work work = {answer, retry, lives};

static void begin(size_t heap_bytes, size_t more_bytes, unsigned patience_ms) {
  model = heap_model_create(heap_bytes, 4);
  growth()->bell = (mam__u64 *)&bell;
  growth()->patience = (mam__u32)(((mam__u64)patience_ms * 1000000) >> 20) + 1;
  growth()->reply = mam__round_of(1, 0);
  left_bytes = more_bytes;
  answers = retries = 0;
  refusal = HEAP_ANSWER_DONE;
  alive = true;
  service = heap_service_start(&bell, &work, NULL);
  ck_assert_ptr_nonnull(service);
}

static void end(void) {
  if (service != NULL)
    heap_service_stop(service);
  service = NULL;
  heap_model_destroy(model);
}

static void *malloc_patiently(size_t bytes, unsigned slot) {
  mam__plea plea = 0;
  for (;;) {
    void *block = heap_model_malloc(model, bytes, slot);
    mam__u32 pages = bytes > MAM__CHUNK_BYTES
                         ? (mam__u32)((bytes + MAM__PAGE_BYTES - 1) / MAM__PAGE_BYTES)
                         : mam__span_pages(model->control->heap.tuning, mam__class_of((mam__u32)bytes));
    if (block != NULL || (plea = mam__growth_await(growth(), pages, plea)) == 0)
      return block;
  }
}

/* ---- Threads that run out ---------------------------------------------------------------------------------------- */

static unsigned char *blocks[BLOCKS_MOST];
static unsigned served, block_count;

/* Each thread takes its share of the blocks and marks every byte.  A block that two threads have, or one in a
 * superblock that is not ready, is a race. */
static void *take(void *argument) {
  unsigned thread = (unsigned)(uintptr_t)argument;
  for (unsigned i = thread; i < block_count; i += THREADS) {
    blocks[i] = malloc_patiently(BLOCK_BYTES, thread % model->control->heap.slot_count);
    if (blocks[i] == NULL)
      continue;
    memset(blocks[i], (int)(i % 251), BLOCK_BYTES);
    (void)__atomic_fetch_add(&served, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void take_by_threads(unsigned count) {
  pthread_t threads[THREADS];
  served = 0;
  block_count = count;
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, take, (void *)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < count; i++) {
    unsigned j = 0;
    while (blocks[i] != NULL && j < BLOCK_BYTES && blocks[i][j] == i % 251)
      j++;
    ck_assert(blocks[i] == NULL || j == BLOCK_BYTES);
  }
}

START_TEST(threads_that_ask_for_16_times_the_heap_are_served) {
  begin(MIB, 64 * MIB, 60000);
  take_by_threads(16 * MIB / BLOCK_BYTES);
  ck_assert_uint_eq(served, 16 * MIB / BLOCK_BYTES);
  for (unsigned i = 0; i < block_count; i++)
    ck_assert(heap_model_free(model, blocks[i]));
  end();
  ck_assert_uint_ge(answers, 12);
}
END_TEST

/* Each superblock is asked for once or twice, not by every thread. */
START_TEST(the_host_hears_of_a_shortage_seldom) {
  begin(MIB, 64 * MIB, 60000);
  take_by_threads(16 * MIB / BLOCK_BYTES);
  mam__u32 superblocks = model->control->superblock_count;
  end();
  ck_assert_uint_le(answers, 2 * superblocks);
}
END_TEST

START_TEST(refusal_reaches_all_and_ends_the_waiting) {
  begin(MIB, 3 * MIB, 60000);
  unsigned long long begin_ns = time_ns();
  take_by_threads(16 * MIB / BLOCK_BYTES);
  ck_assert_uint_lt(served, 16 * MIB / BLOCK_BYTES);
  ck_assert_uint_ge(served, 2 * MIB / BLOCK_BYTES);
  ck_assert_uint_lt((time_ns() - begin_ns) / 1000000, 30000);
  end();
}
END_TEST

START_TEST(request_that_nobody_answers_gives_up_in_time) {
  begin(MIB, 64 * MIB, 60000);
  heap_service_stop(service);
  service = NULL;
  growth()->patience = 30;
  while (heap_model_malloc(model, BLOCK_BYTES, 0) != NULL)
    ;
  unsigned long long begin_ns = time_ns();
  ck_assert_ptr_null(malloc_patiently(BLOCK_BYTES, 0));
  ck_assert_uint_ge((time_ns() - begin_ns) / 1000000, 29);
  end();
}
END_TEST

START_TEST(heap_without_growth_fails_at_once) {
  begin(MIB, 64 * MIB, 60000);
  growth()->bell = NULL;
  while (heap_model_malloc(model, BLOCK_BYTES, 0) != NULL)
    ;
  ck_assert_ptr_null(malloc_patiently(BLOCK_BYTES, 0));
  end();
  ck_assert_uint_eq(answers, 0);
}
END_TEST

START_TEST(request_larger_than_every_superblock_is_served) {
  begin(MIB, 64 * MIB, 60000);
  unsigned char *block = malloc_patiently(20 * MIB, 0);
  ck_assert_ptr_nonnull(block);
  memset(block, 7, 20 * MIB);
  ck_assert(heap_model_free(model, block));
  end();
  ck_assert_uint_eq(answers, 1);
}
END_TEST

/* A refusal of a large request does not hold for small ones. */
START_TEST(small_request_is_served_after_a_large_one_was_refused) {
  begin(256 * KIB, 4 * MIB, 60000);
  ck_assert_ptr_null(malloc_patiently(32 * MIB, 0));
  while (heap_model_malloc(model, BLOCK_BYTES, 0) != NULL)
    ;
  ck_assert_ptr_nonnull(malloc_patiently(BLOCK_BYTES, 0));
  unsigned long long begin_ns = time_ns();
  ck_assert_ptr_null(malloc_patiently(32 * MIB, 0));
  ck_assert_uint_lt((time_ns() - begin_ns) / 1000000, 30000);
  end();
}
END_TEST

START_TEST(what_was_refused_is_asked_for_again_after_a_while) {
  begin(MIB, 0, 60000);
  __atomic_store_n(&refusal, HEAP_ANSWER_LATER, __ATOMIC_RELAXED);
  while (heap_model_malloc(model, BLOCK_BYTES, 0) != NULL)
    ;
  ck_assert_ptr_null(malloc_patiently(BLOCK_BYTES, 0));
  void *block = NULL;
  for (unsigned i = 0; i < 1000 && block == NULL; i++) {
    (void)usleep(10000);
    block = malloc_patiently(BLOCK_BYTES, 0);
  }
  ck_assert_ptr_nonnull(block);
  end();
  ck_assert_uint_eq(retries, 1);
}
END_TEST

/* A late store to the bell hides a ring that the host has not seen.  The request is heard all the same. */
START_TEST(ring_that_is_overwritten_is_made_good) {
  begin(MIB, 64 * MIB, 60000);
  __atomic_store_n(&growth()->reply, mam__round_of(7, 0), __ATOMIC_RELEASE);
  __atomic_store_n(&growth()->rung, mam__round_of(7, 4096), __ATOMIC_RELAXED); /* rung for this round, but hidden */
  __atomic_store_n(&bell, mam__round_of(6, 3), __ATOMIC_RELAXED);              /* by this one */
  ck_assert_ptr_nonnull(malloc_patiently(4 * MIB, 0));
  end();
  ck_assert_uint_eq(answers, 2);
}
END_TEST

/* ---- The service ------------------------------------------------------------------------------------------------- */

START_TEST(service_ends_when_there_is_nobody_to_ring) {
  begin(MIB, 64 * MIB, 60000);
  __atomic_store_n(&alive, false, __ATOMIC_RELAXED);
  (void)usleep(50000);
  __atomic_store_n(&bell, mam__round_of(1, 1), __ATOMIC_RELAXED);
  (void)usleep(50000);
  end();
  ck_assert_uint_eq(answers, 0);
}
END_TEST

START_TEST(what_was_rung_before_is_nobodys) {
  bell = mam__round_of(1, 5);
  begin(MIB, 64 * MIB, 60000);
  (void)usleep(50000);
  end();
  ck_assert_uint_eq(answers, 0);
}
END_TEST

START_TEST(idle_service_hardly_runs) {
  struct timespec before, after;
  begin(MIB, 64 * MIB, 60000);
  (void)usleep(100000); /* the service is awake at first */
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  (void)usleep(500000);
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  end();
  double used_ms = (double)(after.tv_sec - before.tv_sec) * 1e3 + (double)(after.tv_nsec - before.tv_nsec) / 1e6;
  (void)printf("an idle service used %.2f ms in 500 ms\n", used_ms);
  ck_assert_double_lt(used_ms, 50);
}
END_TEST

/* A forked child has no service: the child stops nothing, and the parent's service goes on. */
START_TEST(forked_child_stops_nothing) {
  int status = -1;
  begin(MIB, 64 * MIB, 60000);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    heap_service_stop(service);
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ck_assert_ptr_nonnull(malloc_patiently(4 * MIB, 0));
  end();
}
END_TEST

/* A process that exits while a service runs ends; so does its forked child. */
START_TEST(process_exits_with_a_service) {
  int status = -1;
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    begin(MIB, 64 * MIB, 60000);
    pid_t grandchild = fork();
    if (grandchild == 0)
      exit(0);
    (void)waitpid(grandchild, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap growth");
  TCase *tests = tcase_create("rounds");
  tcase_set_timeout(tests, 100);
  tcase_add_test(tests, threads_that_ask_for_16_times_the_heap_are_served);
  tcase_add_test(tests, the_host_hears_of_a_shortage_seldom);
  tcase_add_test(tests, refusal_reaches_all_and_ends_the_waiting);
  tcase_add_test(tests, request_that_nobody_answers_gives_up_in_time);
  tcase_add_test(tests, heap_without_growth_fails_at_once);
  tcase_add_test(tests, request_larger_than_every_superblock_is_served);
  tcase_add_test(tests, small_request_is_served_after_a_large_one_was_refused);
  tcase_add_test(tests, what_was_refused_is_asked_for_again_after_a_while);
  tcase_add_test(tests, ring_that_is_overwritten_is_made_good);
  suite_add_tcase(suite, tests);
  tests = tcase_create("service");
  tcase_set_timeout(tests, 30);
  tcase_add_test(tests, service_ends_when_there_is_nobody_to_ring);
  tcase_add_test(tests, what_was_rung_before_is_nobodys);
  tcase_add_test(tests, idle_service_hardly_runs);
  tcase_add_test(tests, forked_child_stops_nothing);
  tcase_add_test(tests, process_exits_with_a_service);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
