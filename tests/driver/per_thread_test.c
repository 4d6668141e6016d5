/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * This file is compiled as by nvcc --default-stream per-thread: stream 0 is the calling thread's own, over the fake
 * driver.
 */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1

#include <pthread.h>

#include "api_util.h"

/* The header's calls have to exist as functions, too. */
typedef cudaError_t malloc_call(void **ptr, size_t size, cudaStream_t stream);
typedef cudaError_t free_call(void *ptr, cudaStream_t stream);

static cudaError_t malloc_of_pool(void **ptr, size_t size, cudaStream_t stream) {
  MAM_Pool pool = NULL;
  cudaError_t error = MAM_PoolDefault(&pool);
  return error == cudaSuccess ? MAM_PoolMallocAsync(pool, ptr, size, stream) : error;
}

static cudaError_t free_by_rule(void *ptr, cudaStream_t stream) {
  (void)stream;
  return MAM_CudaFreeReuse(ptr, MAM_REUSE_STREAM);
}

static malloc_call *const mallocs[] = {MAM_CudaMallocAsync, malloc_of_pool};
static free_call *const frees[] = {MAM_CudaFreeAsync, free_by_rule};
enum { call_count = 4 };

struct use {
  malloc_call *malloc;
  free_call *free;
  void *context, *address;
  size_t bytes;
};

/* A kernel on the thread's own stream uses a block, and the block is freed on stream 0. */
static void *free_on_zero(void *argument) {
  struct use *use = argument;
  fake_make_current(use->context);
  OK(use->malloc(&use->address, use->bytes, NULL));
  ck_assert(fake_launch(FAKE_STREAM_PER_THREAD, &(struct fake_range){use->address, use->bytes}, 1));
  OK(use->free(use->address, NULL));
  return NULL;
}

START_TEST(stream_zero_of_another_thread_is_another_stream) {
  struct use use = {mallocs[_i % 2], frees[_i / 2], use_primary(0), NULL, 8 * MIB};
  pthread_t thread;
  void *mine = NULL;
  OK(MAM_Create(64 * MIB));
  ck_assert_int_eq(pthread_create(&thread, NULL, free_on_zero, &use), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  for (int i = 0; i < 4; i++) {
    OK(use.malloc(&mine, use.bytes, NULL));
    ck_assert(!fake_in_use(mine, use.bytes, FAKE_STREAM_PER_THREAD));
  }
}
END_TEST

START_TEST(stream_zero_is_the_threads_own) {
  struct use use = {mallocs[_i % 2], frees[_i / 2], use_primary(0), NULL, 8 * MIB};
  void *again = NULL;
  OK(MAM_Create(64 * MIB));
  (void)free_on_zero(&use);
  OK(use.malloc(&again, use.bytes, FAKE_STREAM_PER_THREAD));
  ck_assert_ptr_eq(again, use.address);
  OK(use.free(again, NULL));
  OK(use.malloc(&again, use.bytes, NULL));
  ck_assert_ptr_eq(again, use.address);
}
END_TEST

START_TEST(legacy_stream_is_still_to_be_had) {
  struct use use = {mallocs[_i % 2], MAM_CudaFreeAsync, use_primary(0), NULL, 8 * MIB};
  void *other = NULL;
  OK(MAM_Create(64 * MIB));
  (void)free_on_zero(&use);
  OK(use.malloc(&other, use.bytes, FAKE_STREAM_LEGACY));
  ck_assert_ptr_ne(other, use.address);
  OK(use.free(other, FAKE_STREAM_LEGACY));
  OK(use.malloc(&use.address, use.bytes, FAKE_STREAM_LEGACY));
  ck_assert_ptr_eq(use.address, other);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("per-thread default streams");
  TCase *tests = add_case(suite, "stream 0");
  tcase_add_loop_test(tests, stream_zero_of_another_thread_is_another_stream, 0, call_count);
  tcase_add_loop_test(tests, stream_zero_is_the_threads_own, 0, call_count);
  tcase_add_loop_test(tests, legacy_stream_is_still_to_be_had, 0, 2);
  return run_suite(suite);
}
