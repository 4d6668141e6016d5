/* SPDX-License-Identifier: BSD-2-Clause */
/* A process whose keys for thread-specific data are used up when the library is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "mam.h"
#include "support/run_suite.h"

#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s: %s", #call, MAM_LastError())

/* Sanitizers begin before this program, need keys, and may not look a function up so early. */
#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { SANITIZED = true };
static bool keys_left;
#else
enum { SANITIZED = false };

/* The libraries of this program are loaded before main, and get no key. */
static bool keys_left;

int pthread_key_create(pthread_key_t *key, void (*destructor)(void *)) {
  int (*create)(pthread_key_t *, void (*)(void *));
  if (!keys_left)
    return EAGAIN;
  *(void **)&create = dlsym(RTLD_NEXT, "pthread_key_create");
  return create(key, destructor);
}
#endif

static pthread_key_t keys[16]; /* the first keys */
static int destroyed;

static void value_destroy(void *value) { destroyed += value == &keys; }

static void *use_the_pool(void *unused) {
  (void)unused;
  void *small = NULL, *large = NULL;
  for (int i = 0; i < 16; i++)
    ck_assert_int_eq(pthread_setspecific(keys[i], &keys), 0);
  for (int i = 0; i < 100; i++) {
    OK(MAM_CudaMalloc(&small, 1000));
    OK(MAM_CudaMalloc(&large, (size_t)1 << 20));
    OK(MAM_CudaFree(small));
    ck_assert_int_eq(MAM_CudaFree(small), cudaErrorInvalidValue);
    OK(MAM_CudaFree(large));
    ck_assert_int_eq(MAM_CudaFree(large), cudaErrorInvalidValue);
  }
  for (int i = 0; i < 16; i++)
    ck_assert_ptr_eq(pthread_getspecific(keys[i]), &keys);
  return NULL;
}

START_TEST(threads_use_pools_and_leave_nothing_behind) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  pthread_t thread;
  (void)setenv("MAM_SOURCE", "host", 1);
  OK(MAM_Create_auto());
  for (int round = 1; round <= 20; round++) {
    ck_assert_int_eq(pthread_create(&thread, NULL, use_the_pool, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(destroyed, 16 * round);
    OK(MAM_PoolGetInfo(NULL, &info));
    ck_assert_uint_eq(info.thread_count, 0);
    ck_assert_uint_eq(info.used_count, 0);
  }
  OK(MAM_Destroy());
}
END_TEST

int main(void) {
  if (SANITIZED)
    return 77;
  keys_left = true;
  for (int i = 0; i < 16; i++)
    if (pthread_key_create(&keys[i], value_destroy) != 0)
      return 99;
  Suite *suite = suite_create("no keys");
  TCase *tests = tcase_create("no keys");
  tcase_set_timeout(tests, 20);
  tcase_add_test(tests, threads_use_pools_and_leave_nothing_behind);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
