/* SPDX-License-Identifier: BSD-2-Clause */
/* What mam.h promises about MAM_SetOutOfMemoryCallback. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api_util.h"

/* The header says that a callback is asked at most so often about one allocation. */
enum { ATTEMPTS_MOST = 16 };

/* ---- A pool of one chunk that is full ---------------------------------------------------------------------------- */

/* An allocation by each function; of the default pool if pool is NULL. */
struct way {
  const char *name;
  bool of_pool;
  cudaError_t (*allocate)(MAM_Pool pool, void **ptr, size_t size);
};

static const char tag;

static cudaError_t plain(MAM_Pool pool, void **ptr, size_t size) {
  (void)pool;
  return MAM_CudaMalloc(ptr, size);
}
static cudaError_t tagged(MAM_Pool pool, void **ptr, size_t size) {
  (void)pool;
  return MAM_CudaMallocTagged(ptr, size, &tag);
}
static cudaError_t on_stream(MAM_Pool pool, void **ptr, size_t size) {
  (void)pool;
  return MAM_CudaMallocAsync(ptr, size, NULL);
}
static cudaError_t pool_tagged(MAM_Pool pool, void **ptr, size_t size) {
  return MAM_PoolMallocTagged(pool, ptr, size, &tag);
}
static cudaError_t pool_on_stream(MAM_Pool pool, void **ptr, size_t size) {
  return MAM_PoolMallocAsync(pool, ptr, size, NULL);
}

static const struct way ways[] = {
    {"MAM_CudaMalloc", false, plain},
    {"MAM_CudaMallocTagged", false, tagged},
    {"MAM_CudaMallocAsync", false, on_stream},
    {"MAM_PoolMalloc", true, MAM_PoolMalloc},
    {"MAM_PoolMallocTagged", true, pool_tagged},
    {"MAM_PoolMallocAsync", true, pool_on_stream},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

static MAM_Pool pool_in_question; /* NULL: the default one */
static void *held;                /* fills it */

/* Makes a pool of 4 MiB with a live block of 3 MiB. */
static void fill_for(const struct way *way) {
  if (way->of_pool)
    pool_in_question = pool_with(options_with(4 * MIB));
  else
    OK(MAM_Create(4 * MIB));
  OK(way->allocate(pool_in_question, &held, 3 * MIB));
}

/* ---- What callbacks see ------------------------------------------------------------------------------------------ */

static struct {
  unsigned questions;
  unsigned wrong; /* questions with other arguments than the header promises */
  char sentence[256];
} seen;

static const char data_of_this_test;

static void note(MAM_Pool pool, size_t size, unsigned attempt, const void *data) {
  seen.questions++;
  seen.wrong += pool != pool_in_question || size != 2 * MIB || attempt != seen.questions || data != &data_of_this_test;
  (void)snprintf(seen.sentence, sizeof seen.sentence, "%s", MAM_LastError());
}

static int frees(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  OK(MAM_CudaFree(held));
  return 1;
}

static int frees_at_the_third_question(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  if (attempt == 3)
    OK(MAM_CudaFree(held));
  return -1;
}

static int never_frees(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  return 1;
}

/* Sets another error by a wrong free of its own, then gives up. */
static int gives_up(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(seen.sentence));
  return 0;
}

static void set(MAM_OutOfMemoryCallback callback) {
  OK(MAM_SetOutOfMemoryCallback(callback, (void *)(uintptr_t)&data_of_this_test));
}

static void *refused(const struct way *way) {
  void *pointer = &seen;
  FAILS(cudaErrorMemoryAllocation, way->allocate(pool_in_question, &pointer, 2 * MIB));
  return pointer;
}

/* ---- One thread -------------------------------------------------------------------------------------------------- */

START_TEST(callback_that_frees_lets_the_allocation_succeed) {
  const struct way *way = &ways[_i];
  void *pointer = NULL;
  fill_for(way);
  set(frees);
  OK(way->allocate(pool_in_question, &pointer, 2 * MIB));
  ck_assert_ptr_nonnull(pointer);
  ck_assert_uint_eq(seen.questions, 1);
  ck_assert_uint_eq(seen.wrong, 0);
  ck_assert_uint_eq(info_of(pool_in_question).used_count, 1);
  assert_adds_up(pool_in_question);
  assert_driver_content();
}
END_TEST

START_TEST(callback_is_asked_again_until_there_is_memory) {
  const struct way *way = &ways[_i];
  void *pointer = NULL;
  fill_for(way);
  set(frees_at_the_third_question);
  OK(way->allocate(pool_in_question, &pointer, 2 * MIB));
  ck_assert_uint_eq(seen.questions, 3);
  ck_assert_uint_eq(seen.wrong, 0);
}
END_TEST

START_TEST(callback_that_never_frees_is_asked_a_bounded_number_of_times) {
  const struct way *way = &ways[_i];
  fill_for(way);
  MAM_PoolInfo before = info_of(pool_in_question);
  set(never_frees);
  ck_assert_ptr_null(refused(way));
  ck_assert_uint_eq(seen.questions, ATTEMPTS_MOST);
  ck_assert_uint_eq(seen.wrong, 0);
  assert_unchanged(pool_in_question, before);
  seen.questions = 0;
  ck_assert_ptr_null(refused(way));
  ck_assert_uint_eq(seen.questions, ATTEMPTS_MOST);
}
END_TEST

START_TEST(callback_that_gives_up_leaves_the_error_as_it_was) {
  const struct way *way = &ways[_i];
  char sentence[256];
  fill_for(way);
  (void)refused(way);
  (void)snprintf(sentence, sizeof sentence, "%s", MAM_LastError());
  MAM_PoolInfo before = info_of(pool_in_question);
  set(gives_up);
  ck_assert_ptr_null(refused(way));
  ck_assert_uint_eq(seen.questions, 1);
  ck_assert_uint_eq(seen.wrong, 0);
  ck_assert_str_eq(seen.sentence, sentence);
  ck_assert_str_eq(MAM_LastError(), sentence);
  assert_unchanged(pool_in_question, before);
}
END_TEST

START_TEST(unset_callback_is_not_asked) {
  fill_for(&ways[0]);
  set(never_frees);
  OK(MAM_SetOutOfMemoryCallback(NULL, NULL));
  (void)refused(&ways[0]);
  ck_assert_uint_eq(seen.questions, 0);
}
END_TEST

START_TEST(other_errors_and_successes_ask_nothing) {
  void *pointer = NULL;
  fill_for(&ways[0]);
  set(never_frees);
  FAILS(cudaErrorInvalidValue, MAM_CudaMalloc((void **)NULL, 2 * MIB));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolMalloc(NULL, &pointer, 2 * MIB));
  OK(MAM_CudaMalloc(&pointer, 0));
  OK(MAM_CudaMalloc(&pointer, 100));
  ck_assert_uint_eq(seen.questions, 0);
}
END_TEST

/* In the callback, small blocks come from what the thread keeps.  Large ones fail: no second callback is asked. */
static int allocates(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  void *small = NULL, *large = &small;
  note(pool, size, attempt, data);
  OK(MAM_CudaMalloc(&small, 100));
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&large, 2 * MIB));
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMallocAsync(&large, 2 * MIB, NULL));
  ck_assert_ptr_null(large);
  OK(MAM_CudaFree(small));
  if (attempt == 2)
    OK(MAM_CudaFree(held));
  return 1;
}

START_TEST(callback_that_allocates_is_not_asked_about_that) {
  void *pointer = NULL;
  fill_for(&ways[0]);
  set(allocates);
  OK(MAM_CudaMalloc(&pointer, 2 * MIB));
  ck_assert_uint_eq(seen.questions, 2);
  ck_assert_uint_eq(seen.wrong, 0);
}
END_TEST

static int replaces_itself(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  set(frees);
  return 1;
}

START_TEST(callback_may_set_another_one) {
  void *pointer = NULL;
  fill_for(&ways[0]);
  set(replaces_itself);
  OK(MAM_CudaMalloc(&pointer, 2 * MIB));
  ck_assert_uint_eq(seen.questions, 2);
  ck_assert_uint_eq(seen.wrong, 0);
}
END_TEST

static int ends_the_pool(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  OK(MAM_PoolDestroy(pool));
  return 1;
}

START_TEST(pool_that_the_callback_ends_is_no_handle) {
  void *pointer = &seen;
  fill_for(&ways[3]);
  set(ends_the_pool);
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolMalloc(pool_in_question, &pointer, 2 * MIB));
  ck_assert_ptr_null(pointer);
  ck_assert_uint_eq(seen.questions, 1);
  assert_nothing_held();
}
END_TEST

static int ends_the_environment(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  note(pool, size, attempt, data);
  OK(MAM_Destroy());
  OK(MAM_Create(8 * MIB));
  return 1;
}

START_TEST(default_pool_that_the_callback_replaces_serves) {
  void *pointer = NULL;
  fill_for(&ways[_i]);
  set(ends_the_environment);
  OK(ways[_i].allocate(NULL, &pointer, 2 * MIB));
  ck_assert_uint_eq(seen.questions, 1);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 8 * MIB);
}
END_TEST

/* A pool has all memory of the device, so no default pool can be created until it ends. */
static int ends_the_other_pool(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  (void)size, (void)data;
  seen.questions++;
  seen.wrong += pool != NULL || attempt != 1;
  OK(MAM_PoolDestroy(pool_in_question));
  return 1;
}

START_TEST(default_pool_without_memory_to_begin_with_asks_too) {
  void *pointer = NULL;
  use_greedy_chunks();
  fake_set_capacity(64 * MIB);
  pool_in_question = pool_with(options_with(64 * MIB));
  set(ends_the_other_pool);
  OK(MAM_CudaMalloc(&pointer, MIB));
  ck_assert_uint_eq(seen.questions, 1);
  ck_assert_uint_eq(seen.wrong, 0);
  assert_driver_content();
}
END_TEST

static int trims_the_other_pool(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  (void)pool, (void)size, (void)data;
  seen.questions++;
  OK(MAM_CudaFree(held));
  OK(MAM_PoolTrim(pool_in_question, 0));
  return attempt == 1;
}

START_TEST(default_pool_that_grows_takes_what_the_callback_gave_back) {
  MAM_PoolOptions options = options_with(2 * MIB);
  void *pointer = NULL;
  fake_set_capacity(256 * MIB);
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 200 * MIB;
  pool_in_question = pool_with(options);
  OK(MAM_PoolMalloc(pool_in_question, &held, 200 * MIB));
  set(trims_the_other_pool);
  OK(MAM_CudaMalloc(&pointer, 100 * MIB));
  ck_assert_uint_eq(seen.questions, 1);
  assert_driver_content();
}
END_TEST

/* ---- Several threads --------------------------------------------------------------------------------------------- */

static MAM_Pool looked_at; /* for a thread without a context, to which NULL would mean no pool */

static void *looks_around(void *unused) {
  MAM_Pool pool = NULL;
  MAM_PoolInfo info = {.struct_size = sizeof info};
  void *pointer = NULL;
  char *text = NULL;
  MAM_PoolOptions options = options_with(2 * MIB);
  (void)unused;
  bool good = MAM_PoolGetInfo(looked_at, &info) == cudaSuccess && MAM_Trim(0) == cudaSuccess &&
              MAM_PoolExplain(looked_at, 2 * MIB, &text) == cudaSuccess &&
              MAM_PoolCreate(&pool, &options) == cudaSuccess && MAM_PoolMalloc(pool, &pointer, 100) == cudaSuccess &&
              MAM_PoolDestroy(pool) == cudaSuccess && MAM_CudaFree(held) == cudaSuccess;
  free(text);
  return good ? unused : NULL;
}

/* Waits until another thread has taken every lock of the library. */
static int has_another_thread_look(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  pthread_t thread;
  void *good = NULL;
  note(pool, size, attempt, data);
  if (pthread_create(&thread, NULL, looks_around, data) != 0 || pthread_join(thread, &good) != 0 || good == NULL)
    seen.wrong++;
  return 1;
}

START_TEST(no_lock_is_held_while_the_callback_runs) {
  void *pointer = NULL;
  fill_for(&ways[_i]);
  looked_at = pool_in_question;
  if (looked_at == NULL)
    OK(MAM_PoolDefault(&looked_at));
  set(has_another_thread_look);
  OK(ways[_i].allocate(pool_in_question, &pointer, 2 * MIB));
  ck_assert_uint_eq(seen.questions, 1);
  ck_assert_uint_eq(seen.wrong, 0);
}
END_TEST

enum { ASKERS = 4, SETTINGS = 200 };

/* The data of a callback.  It may be gone as soon as the callback is no longer set. */
struct token {
  _Atomic bool gone;
};
static _Atomic unsigned gone_seen, questions;
static _Atomic bool stop;

static int checks_its_data(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  const struct token *token = data;
  (void)pool, (void)size;
  questions++;
  for (int look = 0; look < 100; look++)
    gone_seen += token->gone;
  return attempt < 3;
}

static void *asks(void *unused) {
  void *pointer;
  while (!stop)
    (void)MAM_PoolMalloc(pool_in_question, &pointer, 2 * MIB);
  return unused;
}

START_TEST(data_of_a_callback_that_was_unset_is_not_used_any_more) {
  static struct token tokens[SETTINGS];
  pthread_t threads[ASKERS];
  fill_for(&ways[3]);
  for (int i = 0; i < ASKERS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, asks, NULL), 0);
  for (int i = 0; i < SETTINGS || questions == 0; i++) {
    struct token *token = &tokens[i % SETTINGS];
    token->gone = false;
    OK(MAM_SetOutOfMemoryCallback(checks_its_data, token));
    if (i % 2 == 0)
      sched_yield();
    OK(MAM_SetOutOfMemoryCallback(NULL, NULL));
    token->gone = true;
  }
  stop = true;
  for (int i = 0; i < ASKERS; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(gone_seen, 0);
}
END_TEST

/* Two threads are inside a callback while each of them sets another one. */
static pthread_barrier_t both;

static int meets_and_sets(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  (void)pool, (void)size, (void)attempt;
  questions++;
  (void)pthread_barrier_wait(&both);
  (void)MAM_SetOutOfMemoryCallback(NULL, NULL);
  (void)pthread_barrier_wait(&both);
  return data != NULL;
}

static void *fails_once(void *unused) {
  void *pointer;
  (void)unused;
  return MAM_PoolMalloc(pool_in_question, &pointer, 2 * MIB) == cudaErrorMemoryAllocation ? held : NULL;
}

START_TEST(two_callbacks_do_not_wait_for_each_other) {
  pthread_t threads[2];
  void *result;
  fill_for(&ways[3]);
  ck_assert_int_eq(pthread_barrier_init(&both, NULL, 2), 0);
  OK(MAM_SetOutOfMemoryCallback(meets_and_sets, &both));
  for (int i = 0; i < 2; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, fails_once, NULL), 0);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(pthread_join(threads[i], &result), 0);
    ck_assert_ptr_nonnull(result);
  }
  ck_assert_uint_eq(questions, 2);
}
END_TEST

static int waits_for_the_test(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  (void)pool, (void)size, (void)attempt, (void)data;
  (void)pthread_barrier_wait(&both);
  (void)pthread_barrier_wait(&both);
  return 0;
}

static void *unsets(void *unset) {
  (void)MAM_SetOutOfMemoryCallback(NULL, NULL);
  *(_Atomic bool *)unset = true;
  return NULL;
}

START_TEST(unsetting_a_callback_waits_until_it_has_returned) {
  pthread_t asker, setter;
  _Atomic bool unset = false;
  fill_for(&ways[3]);
  ck_assert_int_eq(pthread_barrier_init(&both, NULL, 2), 0);
  OK(MAM_SetOutOfMemoryCallback(waits_for_the_test, NULL));
  ck_assert_int_eq(pthread_create(&asker, NULL, fails_once, NULL), 0);
  (void)pthread_barrier_wait(&both);
  ck_assert_int_eq(pthread_create(&setter, NULL, unsets, &unset), 0);
  sleep_ms(50);
  ck_assert(!unset);
  (void)pthread_barrier_wait(&both);
  ck_assert_int_eq(pthread_join(asker, NULL), 0);
  ck_assert_int_eq(pthread_join(setter, NULL), 0);
}
END_TEST

/* A thread of the parent is inside a callback.  The child does not have this thread and does not wait for it. */
START_TEST(forked_child_waits_for_no_thread_of_its_parent) {
  pthread_t thread;
  int status = 0;
  fill_for(&ways[3]);
  ck_assert_int_eq(pthread_barrier_init(&both, NULL, 2), 0);
  OK(MAM_SetOutOfMemoryCallback(waits_for_the_test, NULL));
  ck_assert_int_eq(pthread_create(&thread, NULL, fails_once, NULL), 0);
  (void)pthread_barrier_wait(&both);
  pid_t child = fork();
  if (child == 0)
    _exit(MAM_SetOutOfMemoryCallback(NULL, NULL) == cudaSuccess ? 0 : 1);
  ck_assert_int_gt(child, 0);
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  (void)pthread_barrier_wait(&both);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

/* The callback that the parent began goes on in the child. */
static int forks(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  (void)pool, (void)size, (void)attempt;
  *(pid_t *)data = fork();
  return 0;
}

START_TEST(fork_in_a_callback_returns_twice) {
  pid_t child = -1;
  int status = 0;
  fill_for(&ways[3]);
  OK(MAM_SetOutOfMemoryCallback(forks, &child));
  bool good = fails_once(NULL) != NULL;
  if (child == 0)
    _exit(MAM_SetOutOfMemoryCallback(NULL, NULL) == cudaSuccess ? 0 : 1);
  ck_assert(good);
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("api_last_word");
  TCase *tcase = tcase_create("one thread");
  suite_add_tcase(suite, tcase);
  tcase_add_loop_test(tcase, callback_that_frees_lets_the_allocation_succeed, 0, WAYS);
  tcase_add_loop_test(tcase, callback_is_asked_again_until_there_is_memory, 0, WAYS);
  tcase_add_loop_test(tcase, callback_that_never_frees_is_asked_a_bounded_number_of_times, 0, WAYS);
  tcase_add_loop_test(tcase, callback_that_gives_up_leaves_the_error_as_it_was, 0, WAYS);
  tcase_add_test(tcase, unset_callback_is_not_asked);
  tcase_add_test(tcase, other_errors_and_successes_ask_nothing);
  tcase_add_test(tcase, callback_that_allocates_is_not_asked_about_that);
  tcase_add_test(tcase, callback_may_set_another_one);
  tcase_add_test(tcase, pool_that_the_callback_ends_is_no_handle);
  tcase_add_loop_test(tcase, default_pool_that_the_callback_replaces_serves, 0, 3);
  tcase_add_test(tcase, default_pool_without_memory_to_begin_with_asks_too);
  tcase_add_test(tcase, default_pool_that_grows_takes_what_the_callback_gave_back);
  tcase = tcase_create("several threads");
  suite_add_tcase(suite, tcase);
  tcase_add_loop_test(tcase, no_lock_is_held_while_the_callback_runs, 0, WAYS);
  tcase_add_test(tcase, data_of_a_callback_that_was_unset_is_not_used_any_more);
  tcase_add_test(tcase, unsetting_a_callback_waits_until_it_has_returned);
  tcase_add_test(tcase, two_callbacks_do_not_wait_for_each_other);
  tcase_add_test(tcase, forked_child_waits_for_no_thread_of_its_parent);
  tcase_add_test(tcase, fork_in_a_callback_returns_twice);
  return run_suite(suite);
}
