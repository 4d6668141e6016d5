/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads under libmam_preload whose contexts come and go.  The driver gives the addresses of a context that has ended
 * to the next one, and its handle too.  No thread uses what is another's.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "preload_util.h"

enum { RUN_MS = 1500, THREADS_MOST = 6 };

static _Atomic bool ends;

/* A thread that does something again and again until the end. */
static pthread_t threads[THREADS_MOST];
static unsigned thread_count;

static void start(void *(*run)(void *), void *argument) {
  ck_assert_uint_lt(thread_count, THREADS_MOST);
  ck_assert_int_eq(pthread_create(&threads[thread_count++], NULL, run, argument), 0);
}

static void await_all(void) {
  (void)usleep(RUN_MS * 1000);
  atomic_store(&ends, true);
  for (unsigned i = 0; i < thread_count; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(fake_violations(), 0);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
}

static void *use_device(int device) {
  void *context = NULL;
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

/* The blocks of one context, all alive at once. */
enum { BLOCKS = 24, BLOCK_MIB = 3 };

static void blocks_live_and_die(void) {
  address_t blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) {
    OK(cuMemAlloc_v2(&blocks[i], BLOCK_MIB * MIB));
    for (int j = 0; j < i; j++)
      ck_assert_uint_ne(blocks[i], blocks[j]);
    if (i % 8 == 7)
      OK(cuCtxSynchronize());
  }
  for (int i = 0; i < BLOCKS; i++)
    OK(cuMemFree_v2(blocks[i]));
}

static void *make_contexts(void *unused) {
  while (!atomic_load(&ends)) {
    void *context = fake_context_create(0);
    OK(cuCtxSetCurrent(context));
    blocks_live_and_die();
    OK(cuCtxDestroy_v2(context));
  }
  return unused;
}

static void *reset_device(void *unused) {
  while (!atomic_load(&ends)) {
    (void)use_device(1);
    blocks_live_and_die();
    OK(cuDevicePrimaryCtxReset_v2(1));
    OK(cuDevicePrimaryCtxRelease(1));
  }
  return unused;
}

/* Relaxed captures, whose keepers hold back what other threads free meanwhile. */
static void *capture(void *unused) {
  void *context = use_device(0), *stream = fake_stream_create(1);
  while (!atomic_load(&ends)) {
    void *graph = NULL;
    OK(cuStreamBeginCapture_v2(stream, 2));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
  }
  OK(cuStreamDestroy_v2(stream));
  return context == NULL ? context : unused;
}

static void *ask_for_memory(void *unused) {
  (void)use_device(0);
  while (!atomic_load(&ends)) {
    size_t free_bytes, total_bytes;
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    ck_assert_uint_le(free_bytes, total_bytes);
    (void)usleep(100);
  }
  return unused;
}

/* Makes the pools of all contexts give back what they can, and takes addresses that were theirs. */
static void *fill(void *unused) {
  (void)use_device(0);
  while (!atomic_load(&ends)) {
    address_t address;
    if (cuMemAlloc_v2(&address, 3500 * MIB) == 0)
      OK(cuMemFree_v2(address));
    (void)usleep(1000);
  }
  return unused;
}

START_TEST(contexts_come_and_go_beside_captures) {
  (void)begin();
  start(capture, NULL);
  start(capture, NULL);
  start(make_contexts, NULL);
  if (_i == 1)
    start(make_contexts, NULL);
  await_all();
}
END_TEST

START_TEST(a_device_is_reset_beside_captures_on_another) {
  fake_set_devices(2);
  (void)begin();
  start(capture, NULL);
  start(capture, NULL);
  start(reset_device, NULL);
  await_all();
}
END_TEST

START_TEST(contexts_come_and_go_beside_questions) {
  (void)begin();
  start(ask_for_memory, NULL);
  for (int i = 0; i < 3; i++)
    start(make_contexts, NULL);
  await_all();
}
END_TEST

/* Small contexts, so that they come and go often. */
static void *make_small_contexts(void *unused) {
  while (!atomic_load(&ends)) {
    address_t blocks[4];
    int count = 0;
    void *context = fake_context_create(0);
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 4; i++) /* there may be no memory */
      count += cuMemAlloc_v2(&blocks[count], (size_t)(i + 1) * 700000) == 0;
    while (count > 0)
      OK(cuMemFree_v2(blocks[--count]));
    OK(cuCtxDestroy_v2(context));
  }
  return unused;
}

START_TEST(contexts_come_and_go_where_memory_is_scarce) {
  (void)begin();
  start(fill, NULL);
  for (int i = 0; i < 3; i++)
    start(make_small_contexts, NULL);
  await_all();
}
END_TEST

static Suite *contexts_suite(void) {
  Suite *suite = suite_create("contexts under the preload library");
  TCase *tests = tcase_create("threads");
  tcase_set_timeout(tests, 60);
  tcase_add_loop_test(tests, contexts_come_and_go_beside_captures, 0, 2);
  tcase_add_test(tests, a_device_is_reset_beside_captures_on_another);
  tcase_add_test(tests, contexts_come_and_go_beside_questions);
  tcase_add_test(tests, contexts_come_and_go_where_memory_is_scarce);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(int count, char **arguments) {
  (void)count;
  return preload_run_suite(arguments, contexts_suite);
}
