/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What mam.h promises, promise by promise, over the fake driver: the public interface above, the driver's side below,
 * and nothing of what lies between.  Each test is a process of its own (Check's fork mode).
 */
#include "mam.h"

#include <check.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake_driver.h"
#include "run_suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- Words ------------------------------------------------------------------------------------------------------- */

static void assert_success(cudaError_t error, const char *what) {
  ck_assert_msg(error == cudaSuccess, "%s: %d, %s", what, (int)error, MAM_LastError());
}
#define OK(call) assert_success(call, #call)
#define FAILS(error, call) ck_assert_int_eq(call, error)

static void assert_error_says(const char *words) {
  ck_assert_msg(strstr(MAM_LastError(), words) != NULL, "\"%s\" does not say \"%s\"", MAM_LastError(), words);
}

static char *block(size_t size) {
  void *pointer = NULL;
  OK(MAM_CudaMalloc(&pointer, size));
  ck_assert_ptr_nonnull(pointer);
  return pointer;
}

static char *block_of(MAM_Pool pool, size_t size) {
  void *pointer = NULL;
  OK(MAM_PoolMalloc(pool, &pointer, size));
  ck_assert_ptr_nonnull(pointer);
  return pointer;
}

static MAM_PoolInfo info_of(MAM_Pool pool) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  OK(MAM_PoolGetInfo(pool, &info));
  return info;
}

static MAM_Pool pool_with(MAM_PoolOptions options) {
  MAM_Pool pool = NULL;
  OK(MAM_PoolCreate(&pool, &options));
  ck_assert_ptr_nonnull(pool);
  return pool;
}

static MAM_PoolOptions options_with(size_t chunk_bytes) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = chunk_bytes;
  return options;
}

/* Every byte counted once; what the pool says it holds is what the driver has given. */
static void assert_adds_up(MAM_Pool pool) {
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_eq(info.used_bytes + info.waiting_bytes + info.free_bytes, info.reserved_bytes);
  ck_assert_uint_eq(info.used_count + info.waiting_count + info.free_count, info.segment_count);
  ck_assert_uint_le(info.requested_bytes, info.used_bytes);
  ck_assert_uint_le(info.used_bytes, info.peak_used_bytes);
  ck_assert_uint_le(info.largest_free_bytes, info.free_bytes);
  ck_assert_uint_le(info.reserved_bytes, info.limit_bytes);
}

/* All but the count of failures is as it was. */
static void assert_unchanged(MAM_Pool pool, MAM_PoolInfo before) {
  MAM_PoolInfo after = info_of(pool);
  before.failure_count = after.failure_count;
  before.synchronize_count = after.synchronize_count;
  ck_assert_mem_eq(&before, &after, sizeof after);
}

/* The driver was never called in a way that is undefined, nor told to free what it had not given. */
static void assert_driver_content(void) {
  ck_assert_uint_eq(fake_violations(), 0);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
}

static void assert_nothing_held(void) {
  ck_assert_uint_eq(fake_live_blocks(), 0);
  assert_driver_content();
}

/* A program that has used the CUDA runtime: the primary context is current. */
static void *use_primary(int device) {
  void *context = fake_primary_retain(device);
  fake_make_current(context);
  return context;
}

static void *use_new_context(int device) {
  void *context = fake_context_create(device);
  ck_assert_ptr_nonnull(context);
  fake_make_current(context);
  return context;
}

static void sleep_ms(unsigned ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  while (nanosleep(&time, &time) != 0)
    ;
}

/* ---- The paper's three uses -------------------------------------------------------------------------------------- */

START_TEST(use_with_explicit_size) {
  OK(MAM_Create(64 * MIB));
  ck_assert_uint_eq(fake_live_bytes(), 64 * MIB);
  char *a = block(MIB), *b = block(3 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(b));
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
  ck_assert_uint_eq(fake_live_bytes(), 64 * MIB);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(use_with_automatic_size) {
  OK(MAM_Create_auto());
  ck_assert_uint_eq(fake_live_blocks(), 1);
  char *a = block(GIB);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(use_without_creation) {
  char *a = block(GIB);
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_CudaFree(a));
  assert_nothing_held();
}
END_TEST

/* ---- MAM_Create -------------------------------------------------------------------------------------------------- */

START_TEST(create_of_no_bytes_is_invalid) {
  FAILS(cudaErrorInvalidValue, MAM_Create(0));
  ck_assert_str_ne(MAM_LastError(), "");
  assert_nothing_held();
}
END_TEST

START_TEST(create_rounds_up_to_the_granularity) {
  OK(MAM_Create(1));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 2 * MIB);
  OK(MAM_Destroy());
  OK(MAM_Create(4 * MIB + 1));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 6 * MIB);
  ck_assert_uint_eq(fake_live_bytes(), 6 * MIB);
}
END_TEST

START_TEST(create_takes_no_more_than_asked_for) {
  void *pointer = NULL;
  OK(MAM_Create(4 * MIB));
  for (int i = 0; i < 4; i++)
    (void)block(MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, 1));
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 4 * MIB);
}
END_TEST

START_TEST(second_create_leaves_the_first_alone) {
  OK(MAM_Create(8 * MIB));
  char *a = block(1000);
  MAM_PoolInfo before = info_of(NULL);
  FAILS(cudaErrorAlreadyAcquired, MAM_Create(16 * MIB));
  ck_assert_str_ne(MAM_LastError(), "");
  FAILS(cudaErrorAlreadyAcquired, MAM_Create_auto());
  assert_unchanged(NULL, before);
  ck_assert_uint_eq(fake_live_bytes(), 8 * MIB);
  OK(MAM_CudaFree(a));
}
END_TEST

START_TEST(create_beside_a_lazy_environment_is_refused) {
  char *a = block(1000);
  FAILS(cudaErrorAlreadyAcquired, MAM_Create(8 * MIB));
  FAILS(cudaErrorAlreadyAcquired, MAM_Create_auto());
  OK(MAM_CudaFree(a));
  assert_nothing_held();
  OK(MAM_Create(8 * MIB));
}
END_TEST

START_TEST(create_of_too_much_changes_nothing) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  fake_set_capacity(64 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_Create(66 * MIB));
  assert_error_says("CUDA_ERROR_OUT_OF_MEMORY");
  FAILS(cudaErrorMemoryAllocation, MAM_Create(SIZE_MAX));
  FAILS(cudaErrorMemoryAllocation, MAM_Create(SIZE_MAX - 4 * MIB));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolGetInfo(NULL, &info));
  assert_nothing_held();
  OK(MAM_Create(64 * MIB));
}
END_TEST

START_TEST(create_wants_one_piece) {
  fake_set_largest(16 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_Create(18 * MIB));
  assert_nothing_held();
}
END_TEST

START_TEST(create_does_not_wait_for_the_gpu) {
  void *context = use_primary(0);
  fake_submit(context);
  OK(MAM_Create(8 * MIB));
  ck_assert(fake_pending(context));
  ck_assert_uint_eq(fake_waits(), 0);
}
END_TEST

START_TEST(without_a_device_there_is_no_device) {
  MAM_Pool pool = NULL;
  void *pointer = &pool;
  fake_set_devices(0);
  FAILS(cudaErrorNoDevice, MAM_Create(MIB));
  assert_error_says("CUDA_ERROR_NO_DEVICE");
  FAILS(cudaErrorNoDevice, MAM_Create_auto());
  FAILS(cudaErrorNoDevice, MAM_CudaMalloc(&pointer, 100));
  ck_assert_ptr_null(pointer);
  FAILS(cudaErrorNoDevice, MAM_PoolCreate(&pool, NULL));
  FAILS(cudaErrorNoDevice, MAM_PoolDefault(&pool));
  ck_assert_ptr_null(pool);
  OK(MAM_CudaFree(NULL));
  OK(MAM_Destroy());
}
END_TEST

/* ---- MAM_Create_auto --------------------------------------------------------------------------------------------- */

START_TEST(auto_leaves_the_headroom) {
  fake_set_capacity(3 * GIB);
  OK(MAM_Create_auto());
  ck_assert_uint_eq(fake_live_bytes(), 3 * GIB - 256 * MIB);
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, fake_live_bytes());
  ck_assert_uint_eq(info_of(NULL).limit_bytes, fake_live_bytes());
}
END_TEST

START_TEST(auto_leaves_the_headroom_of_the_environment_variable) {
  (void)setenv("MAM_HEADROOM", "64M", 1);
  fake_set_capacity(3 * GIB);
  OK(MAM_Create_auto());
  ck_assert_uint_eq(fake_live_bytes(), 3 * GIB - 64 * MIB);
}
END_TEST

/* What the driver calls free may lie in pieces. */
START_TEST(auto_takes_about_the_largest_piece) {
  size_t largest = (size_t)1 << _i;
  fake_set_capacity(64 * GIB);
  fake_set_largest(largest);
  OK(MAM_Create_auto());
  ck_assert_uint_le(fake_live_bytes(), largest);
  ck_assert_uint_ge(fake_live_bytes(), largest - largest / 8);
  ck_assert_uint_eq(fake_live_blocks(), 1);
}
END_TEST

START_TEST(auto_works_with_little_memory) {
  static const size_t capacities[] = {8 * MIB, 20 * MIB, 256 * MIB, 258 * MIB, 300 * MIB};
  fake_set_capacity(capacities[_i]);
  OK(MAM_Create_auto());
  ck_assert_uint_ge(fake_live_bytes(), 4 * MIB);
  ck_assert_uint_lt(fake_live_bytes(), capacities[_i]);
  char *a = block(MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(auto_without_memory_fails) {
  fake_set_capacity(0);
  FAILS(cudaErrorMemoryAllocation, MAM_Create_auto());
  ck_assert_str_ne(MAM_LastError(), "");
  fake_set_capacity(64 * MIB);
  OK(MAM_Create_auto());
}
END_TEST

START_TEST(auto_does_not_wait_for_the_gpu) {
  void *context = use_primary(0);
  fake_submit(context);
  OK(MAM_Create_auto());
  ck_assert_uint_eq(fake_waits(), 0);
}
END_TEST

/* ---- MAM_Destroy ------------------------------------------------------------------------------------------------- */

START_TEST(destroy_of_nothing_succeeds) {
  OK(MAM_Destroy());
  OK(MAM_Create(2 * MIB));
  OK(MAM_Destroy());
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(destroy_ends_live_blocks) {
  OK(MAM_Create(8 * MIB));
  char *a = block(1000);
  OK(MAM_Destroy());
  assert_nothing_held();
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  assert_nothing_held();
}
END_TEST

START_TEST(destroy_ends_a_lazy_environment) {
  char *a = block(1000);
  OK(MAM_Destroy());
  assert_nothing_held();
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
}
END_TEST

START_TEST(destroy_waits_for_the_gpu) {
  void *context = use_primary(0);
  OK(MAM_Create(8 * MIB));
  fake_submit(context);
  OK(MAM_Destroy());
  ck_assert(!fake_pending(context));
}
END_TEST

START_TEST(destroy_passes_on_what_the_driver_said) {
  OK(MAM_Create(8 * MIB));
  fake_fail("cuMemFree", 1, 700);
  FAILS((cudaError_t)700, MAM_Destroy());
  assert_error_says("CUDA_ERROR_ILLEGAL_ADDRESS");
  OK(MAM_Create(4 * MIB));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 4 * MIB);
}
END_TEST

START_TEST(references_to_the_context_do_not_pile_up) {
  OK(MAM_Create(8 * MIB)); /* by a thread without a context, which thereby gets the primary one */
  OK(MAM_Destroy());
  unsigned retains = fake_retains(0);
  for (int i = 0; i < 10; i++) {
    OK(MAM_Create(8 * MIB));
    OK(MAM_Destroy());
  }
  ck_assert_uint_eq(fake_retains(0), retains);
}
END_TEST

/* ---- MAM_CudaMalloc ---------------------------------------------------------------------------------------------- */

START_TEST(malloc_without_a_pointer_is_invalid) {
  FAILS(cudaErrorInvalidValue, MAM_CudaMalloc(NULL, 100));
  ck_assert_str_ne(MAM_LastError(), "");
  FAILS(cudaErrorInvalidValue, MAM_CudaMalloc(NULL, 0));
  assert_nothing_held();
}
END_TEST

START_TEST(malloc_of_no_bytes_gives_null) {
  void *pointer = &pointer;
  OK(MAM_CudaMalloc(&pointer, 0));
  ck_assert_ptr_null(pointer);
  OK(MAM_Create(4 * MIB));
  pointer = &pointer;
  MAM_PoolInfo before = info_of(NULL);
  OK(MAM_CudaMalloc(&pointer, 0));
  ck_assert_ptr_null(pointer);
  assert_unchanged(NULL, before);
}
END_TEST

START_TEST(blocks_are_aligned_apart_and_inside_the_chunk) {
  enum { count = 200 };
  char *blocks[count];
  size_t sizes[count];
  uintptr_t chunk;
  OK(MAM_Create(64 * MIB));
  size_t chunk_bytes = fake_largest_live(&chunk);
  for (size_t i = 0; i < count; i++) {
    sizes[i] = 1 + i * i * 7;
    blocks[i] = block(sizes[i]);
    ck_assert_uint_eq((uintptr_t)blocks[i] % 512, 0);
    ck_assert_uint_ge((uintptr_t)blocks[i], chunk);
    ck_assert_uint_le((uintptr_t)blocks[i] + sizes[i], chunk + chunk_bytes);
    for (size_t j = 0; j < i; j++)
      ck_assert(blocks[j] + sizes[j] <= blocks[i] || blocks[i] + sizes[i] <= blocks[j]);
  }
  assert_adds_up(NULL);
  for (size_t i = 0; i < count; i++)
    OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_eq(info_of(NULL).used_bytes, 0);
}
END_TEST

START_TEST(refused_malloc_writes_null_and_changes_nothing) {
  static const size_t sizes[] = {4 * MIB, (size_t)1 << 50, SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2 + 1};
  OK(MAM_Create(4 * MIB));
  (void)block(1000);
  MAM_PoolInfo before = info_of(NULL);
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    void *pointer = &pointer;
    FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, sizes[i]));
    ck_assert_ptr_null(pointer);
    ck_assert_str_ne(MAM_LastError(), "");
    assert_unchanged(NULL, before);
    ck_assert_uint_eq(info_of(NULL).failure_count, before.failure_count + i + 1);
  }
  (void)block(MIB);
}
END_TEST

START_TEST(refused_lazy_malloc_leaves_no_environment) {
  void *pointer = &pointer;
  fake_set_capacity(GIB);
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, 2 * GIB));
  ck_assert_ptr_null(pointer);
  assert_nothing_held();
  char *a = block(MIB);
  OK(MAM_CudaFree(a));
}
END_TEST

START_TEST(thread_without_a_context_gets_the_first_device_s) {
  char *a = block(1000);
  void *primary = fake_primary_retain(0);
  ck_assert_ptr_eq(fake_current(), primary);
  OK(MAM_CudaFree(a));
}
END_TEST

/* The runtime does not take it back either; other things of the program may live in it. */
START_TEST(context_given_to_a_thread_stays) {
  char *a = block(1000);
  void *given = fake_current();
  OK(MAM_CudaFree(a)); /* ends the lazy environment */
  ck_assert_ptr_eq(fake_current(), given);
  ck_assert(fake_context_alive(given));
}
END_TEST

START_TEST(all_of_a_chunk_can_be_had) {
  OK(MAM_Create(8 * MIB));
  char *a = block(8 * MIB);
  OK(MAM_CudaFree(a));
  a = block(8 * MIB);
  OK(MAM_CudaFree(a));
}
END_TEST

START_TEST(driver_error_of_a_lazy_creation_comes_through) {
  void *pointer = &pointer;
  fake_fail("cuMemGetInfo", 1, 719);
  FAILS((cudaError_t)719, MAM_CudaMalloc(&pointer, 100));
  ck_assert_ptr_null(pointer);
  assert_error_says("cuMemGetInfo");
  assert_error_says("CUDA_ERROR_LAUNCH_FAILED");
}
END_TEST

/* ---- MAM_CudaFree ------------------------------------------------------------------------------------------------ */

START_TEST(free_of_null_succeeds) {
  OK(MAM_CudaFree(NULL));
  OK(MAM_Create(2 * MIB));
  OK(MAM_CudaFree(NULL));
  ck_assert_uint_eq(info_of(NULL).free_call_count, 0);
}
END_TEST

START_TEST(second_free_is_invalid) {
  OK(MAM_Create(4 * MIB));
  char *a = block(1000), *b = block(1000);
  OK(MAM_CudaFree(a));
  MAM_PoolInfo before = info_of(NULL);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  ck_assert_str_ne(MAM_LastError(), "");
  assert_unchanged(NULL, before);
  OK(MAM_CudaFree(b));
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(b));
}
END_TEST

START_TEST(second_free_of_a_lazy_last_block_is_invalid) {
  char *a = block(1000);
  OK(MAM_CudaFree(a));
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  assert_nothing_held();
}
END_TEST

START_TEST(free_of_what_is_no_block_is_invalid) {
  uintptr_t chunk;
  OK(MAM_Create(4 * MIB));
  char *a = block(4 * KIB), *b = block(1000);
  size_t chunk_bytes = fake_largest_live(&chunk);
  char *foreign[] = {a + 1,
                     a + 512,
                     a + 4 * KIB - 1,
                     b + 1000,
                     b + 512,
                     (char *)chunk + chunk_bytes,
                     (char *)chunk + chunk_bytes - 512,
                     (char *)chunk - 1,
                     (char *)&chunk,
                     (char *)1,
                     (char *)UINTPTR_MAX};
  MAM_PoolInfo before = info_of(NULL);
  for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
    FAILS(cudaErrorInvalidValue, MAM_CudaFree(foreign[i]));
    assert_unchanged(NULL, before);
  }
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(b));
  assert_driver_content();
}
END_TEST

START_TEST(free_before_anything_else_is_invalid) {
  int local;
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(&local));
  assert_nothing_held();
}
END_TEST

static void *free_it(void *pointer) { return MAM_CudaFree(pointer) == cudaSuccess ? pointer : NULL; }

START_TEST(any_thread_frees) {
  pthread_t thread;
  void *freed = NULL;
  OK(MAM_Create(4 * MIB));
  char *a = block(1000);
  ck_assert_int_eq(pthread_create(&thread, NULL, free_it, a), 0);
  ck_assert_int_eq(pthread_join(thread, &freed), 0);
  ck_assert_ptr_eq(freed, a);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
}
END_TEST

START_TEST(free_does_not_wait_for_the_gpu) {
  void *context = use_primary(0);
  OK(MAM_Create(8 * MIB));
  char *a = block(MIB);
  fake_submit(context);
  OK(MAM_CudaFree(a));
  ck_assert(fake_pending(context));
  ck_assert_uint_eq(fake_waits(), 0);
}
END_TEST

/* ---- The lazy environment's life --------------------------------------------------------------------------------- */

START_TEST(lazy_environment_lives_as_long_as_a_block) {
  char *a = block(1000), *b = block(1000);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  a = block(MIB);
  OK(MAM_CudaFree(b));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_CudaFree(a));
  assert_nothing_held();
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
}
END_TEST

START_TEST(lazy_environment_waits_for_the_gpu_when_it_goes) {
  void *context = use_primary(0);
  char *a = block(1000);
  fake_submit(context);
  OK(MAM_CudaFree(a));
  ck_assert(!fake_pending(context));
  assert_nothing_held();
}
END_TEST

START_TEST(lazy_environment_that_comes_back_stays_a_while) {
  (void)setenv("MAM_LINGER_MS", "60000", 1);
  for (int i = 0; i < 1000; i++) {
    char *a = block(1000);
    OK(MAM_CudaFree(a));
  }
  ck_assert_uint_le(fake_calls("cuMemAlloc"), 2);
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* Somebody ends it within some seconds. */
static void assert_goes_by_itself(void) {
  for (int i = 0; i < 500 && fake_live_blocks() > 0; i++)
    sleep_ms(10);
  assert_nothing_held();
}

START_TEST(lazy_environment_can_linger_for_no_time) {
  (void)setenv("MAM_LINGER_MS", "0", 1);
  for (int i = 0; i < 10; i++) {
    OK(MAM_CudaFree(block(1000)));
    assert_goes_by_itself();
  }
}
END_TEST

START_TEST(lingering_environment_goes_in_the_end) {
  (void)setenv("MAM_LINGER_MS", "30", 1);
  void *context = use_primary(0);
  OK(MAM_CudaFree(block(1000)));
  for (int i = 0; i < 3; i++) {
    OK(MAM_CudaFree(block(1000)));
    assert_goes_by_itself();
    ck_assert_ptr_eq(fake_current(), context);
  }
  char *a = block(1000);
  sleep_ms(100);
  ck_assert_uint_eq(fake_live_blocks(), 1); /* a live block keeps it */
  OK(MAM_CudaFree(a));
}
END_TEST

START_TEST(explicit_environment_takes_the_place_of_a_lingering_one) {
  (void)setenv("MAM_LINGER_MS", "60000", 1);
  for (int i = 0; i < 2; i++)
    OK(MAM_CudaFree(block(1000)));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  char *a = block(1000);
  FAILS(cudaErrorAlreadyAcquired, MAM_Create(4 * MIB)); /* not while it holds a block */
  OK(MAM_CudaFree(a));
  OK(MAM_Create(4 * MIB));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
}
END_TEST

START_TEST(explicit_environment_outlives_its_last_block) {
  if (_i == 0)
    OK(MAM_Create(8 * MIB));
  else
    OK(MAM_Create_auto());
  for (int i = 0; i < 3; i++) {
    char *a = block(1000);
    OK(MAM_CudaFree(a));
    ck_assert_uint_eq(fake_live_blocks(), 1);
  }
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
}
END_TEST

START_TEST(explicit_environment_may_follow_a_lazy_one) {
  char *a = block(1000);
  OK(MAM_CudaFree(a));
  OK(MAM_Create(8 * MIB));
  a = block(1000);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_live_bytes(), 8 * MIB);
}
END_TEST

enum { thread_count = 8, thread_rounds = 200 };
static pthread_barrier_t start_line;

static void *malloc_and_free(void *context) {
  void *pointer = NULL;
  fake_make_current(context);
  (void)pthread_barrier_wait(&start_line);
  for (size_t i = 0; i < thread_rounds; i++) {
    if (MAM_CudaMalloc(&pointer, 100 + i) != cudaSuccess || pointer == NULL || MAM_CudaFree(pointer) != cudaSuccess)
      return NULL;
  }
  return context;
}

static void run_threads(void *(*routine)(void *), void *argument) {
  pthread_t threads[thread_count];
  ck_assert_int_eq(pthread_barrier_init(&start_line, NULL, thread_count), 0);
  for (int i = 0; i < thread_count; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, routine, argument), 0);
  for (int i = 0; i < thread_count; i++) {
    void *result = NULL;
    ck_assert_int_eq(pthread_join(threads[i], &result), 0);
    ck_assert_ptr_eq(result, argument);
  }
  (void)pthread_barrier_destroy(&start_line);
}

/* Coming and going at its fastest, under all threads at once. */
START_TEST(lazy_environment_comes_and_goes_under_threads) {
  (void)setenv("MAM_LINGER_MS", _i == 0 ? "0" : "60000", 1);
  run_threads(malloc_and_free, use_primary(0));
  ck_assert_uint_le(fake_live_blocks(), 1);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

static void *malloc_one(void *context) {
  void *pointer = NULL;
  fake_make_current(context);
  (void)pthread_barrier_wait(&start_line);
  return MAM_CudaMalloc(&pointer, 1000) == cudaSuccess && pointer != NULL ? context : NULL;
}

START_TEST(threads_create_one_lazy_environment) {
  run_threads(malloc_one, use_primary(0));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  ck_assert_uint_eq(info_of(NULL).used_count, thread_count);
}
END_TEST

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

START_TEST(each_context_has_its_environment) {
  void *first = use_primary(0);
  OK(MAM_Create(4 * MIB));
  char *a = block(1000);
  void *second = use_new_context(0);
  OK(MAM_Create(8 * MIB));
  char *b = block(2000);
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 8 * MIB);
  ck_assert_uint_eq(info_of(NULL).requested_bytes, 2000);
  fake_make_current(first);
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 4 * MIB);
  ck_assert_uint_eq(info_of(NULL).requested_bytes, 1000);
  OK(MAM_Destroy());
  ck_assert_uint_eq(fake_live_bytes(), 8 * MIB);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  OK(MAM_CudaFree(b));
  fake_make_current(second);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(each_device_has_its_environment) {
  fake_set_devices(2);
  use_primary(0);
  char *a = block(1000);
  use_primary(1);
  char *b = block(1000);
  ck_assert_uint_eq(fake_live_blocks(), 2);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_CudaFree(b));
  assert_nothing_held();
}
END_TEST

START_TEST(free_finds_its_environment_from_any_context) {
  void *first = use_primary(0);
  OK(MAM_Create(4 * MIB));
  char *a = block(1000), *b = block(1000), *c = block(1000);
  void *second = use_new_context(0);
  OK(MAM_CudaFree(a));
  ck_assert_ptr_eq(fake_current(), second);
  fake_make_current(NULL);
  OK(MAM_CudaFree(b));
  ck_assert_ptr_null(fake_current());
  fake_context_destroy(second);
  OK(MAM_CudaFree(c));
  fake_make_current(first);
  ck_assert_uint_eq(info_of(NULL).used_count, 0);
  assert_driver_content();
}
END_TEST

START_TEST(lazy_last_block_freed_from_another_context_ends_the_environment) {
  use_primary(0);
  char *a = block(1000);
  void *other = use_new_context(0);
  OK(MAM_CudaFree(a));
  ck_assert_ptr_eq(fake_current(), other);
  assert_nothing_held();
}
END_TEST

/* The new context gets the handle and the addresses of the old one. */
START_TEST(pointers_of_a_destroyed_context_are_invalid) {
  fake_primary_retain(0);
  void *old = use_new_context(0);
  OK(MAM_Create(4 * MIB));
  char *a = block(1000), *b = block(1000);
  fake_context_destroy(old);
  ck_assert_uint_eq(fake_live_blocks(), 0);
  void *new = use_new_context(0);
  ck_assert_ptr_eq(new, old);
  OK(MAM_Create(4 * MIB));
  char *c = block(5000);
  ck_assert_ptr_eq(c, a);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(b));
  ck_assert_uint_eq(info_of(NULL).used_count, 1);
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  OK(MAM_CudaFree(c));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* As above, but the new memory lies across the old. */
START_TEST(memory_across_that_of_a_destroyed_context_is_the_new_owner_s) {
  void *old = use_new_context(0);
  OK(MAM_Create(4 * MIB));
  (void)block(1000);
  fake_context_destroy(old);
  use_new_context(0);
  OK(MAM_Create(64 * MIB));
  char *a = block(64 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* A context is to outlive its pools, so the answer is not promised; but it must do no harm. */
START_TEST(free_after_the_context_was_destroyed_is_harmless) {
  void *primary = use_primary(0);
  OK(MAM_Create(4 * MIB));
  void *old = use_new_context(0);
  char *a = block(1000);
  fake_context_destroy(old);
  fake_make_current(primary);
  (void)MAM_CudaFree(a);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  assert_driver_content();
}
END_TEST

START_TEST(pool_of_a_destroyed_context_can_be_destroyed) {
  use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.context = fake_context_create(0);
  MAM_Pool pool = pool_with(options);
  (void)block_of(pool, 1000);
  fake_context_destroy(options.context);
  (void)MAM_PoolDestroy(pool);
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

/* The chunk of somebody else at the same address must not be freed by the pool that lost it. */
START_TEST(pool_of_a_destroyed_context_frees_nobody_s_memory) {
  void *primary = use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.context = fake_context_create(0);
  MAM_Pool lost = pool_with(options);
  (void)block_of(lost, 1000);
  fake_context_destroy(options.context);
  options.context = primary;
  MAM_Pool other = pool_with(options);
  char *a = block_of(other, 1000);
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  if (lost != other)
    (void)MAM_PoolDestroy(lost);
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_PoolDestroy(other));
  assert_nothing_held();
}
END_TEST

START_TEST(growth_of_a_pool_whose_context_is_gone_fails) {
  void *pointer = &pointer;
  use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.limit_bytes = 64 * MIB;
  options.context = fake_context_create(0);
  MAM_Pool pool = pool_with(options);
  fake_context_destroy(options.context);
  ck_assert_int_ne(MAM_PoolMalloc(pool, &pointer, 8 * MIB), cudaSuccess);
  ck_assert_ptr_null(pointer);
  assert_nothing_held();
}
END_TEST

START_TEST(pool_of_a_destroyed_context_says_so) {
  void *pointer = &pointer;
  use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.context = fake_context_create(0);
  options.waiting_limit_bytes = 4 * MIB;
  MAM_Pool pool = pool_with(options);
  (void)MAM_CudaFree(block_of(pool, 4 * MIB));
  fake_context_destroy(options.context);
  FAILS(cudaErrorContextIsDestroyed, MAM_PoolMalloc(pool, &pointer, MIB));
  ck_assert_ptr_null(pointer);
  (void)MAM_PoolDestroy(pool);
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolMalloc(pool, &pointer, MIB));
  assert_nothing_held();
}
END_TEST

START_TEST(environment_comes_back_after_a_reset) {
  void *primary = use_primary(0);
  OK(MAM_Create(4 * MIB));
  char *a = block(1000), *b = block(1000);
  fake_primary_reset(0);
  ck_assert_uint_eq(fake_live_blocks(), 0);
  char *c = block(1000); /* lazily: the explicit one went with its context */
  ck_assert_ptr_eq(fake_current(), primary);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(b));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_CudaFree(c));
  (void)a;
  assert_nothing_held();
}
END_TEST

START_TEST(pointers_are_invalid_after_a_reset) {
  use_primary(0);
  char *a = block(1000);
  fake_primary_reset(0);
  use_primary(0); /* the program itself brings the context back */
  OK(MAM_Create(4 * MIB));
  char *b = block(1000);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a + 4096));
  OK(MAM_CudaFree(b));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* On driver 580 references to a primary context outlive its reset, so each is still to be released. */
START_TEST(reset_leaves_references_balanced) {
  use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.device = 0;
  unsigned before = fake_retains(0);
  MAM_Pool pool = pool_with(options);
  fake_primary_reset(0);
  (void)MAM_PoolDestroy(pool);
  ck_assert_uint_eq(fake_retains(0), before);
  assert_nothing_held();
}
END_TEST

START_TEST(pool_on_another_device_leaves_the_current_context) {
  fake_set_devices(2);
  void *current = use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.device = 1;
  MAM_Pool pool = pool_with(options);
  ck_assert_ptr_eq(fake_current(), current);
  char *a = block_of(pool, 1000);
  fake_submit(current);
  OK(MAM_CudaFree(a));
  OK(MAM_PoolDestroy(pool));
  ck_assert(fake_pending(current));
  ck_assert_ptr_eq(fake_current(), current);
  ck_assert_uint_eq(fake_retains(1), 0);
  assert_nothing_held();
}
END_TEST

/* The thread as it was before: contexts, their order, capture mode. */
static void assert_thread_is(void *context, int depth) {
  ck_assert_ptr_eq(fake_current(), context);
  ck_assert_int_eq(fake_stack_depth(), depth);
  ck_assert_int_eq(fake_capture_mode(), 0);
}

START_TEST(no_call_changes_the_thread) {
  MAM_PoolOptions options = options_with(4 * MIB);
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_Pool pool = NULL;
  void *a = NULL, *b = NULL;
  char *text = NULL;
  options.limit_bytes = 8 * MIB;
  options.context = fake_context_create(0);
  void *current = use_primary(0);
  struct {
    cudaError_t error;
  } results[] = {
      {MAM_Create(4 * MIB)},
      {MAM_PoolCreate(&pool, &options)},
      {MAM_CudaMalloc(&a, 1000)},
      {MAM_PoolMalloc(pool, &b, 1000)},
  };
  for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
    ck_assert_int_eq(results[i].error, cudaSuccess);
  assert_thread_is(current, 1);
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(b));
  assert_thread_is(current, 1);
  OK(MAM_PoolMalloc(pool, &b, 4 * MIB)); /* grows */
  OK(MAM_PoolMalloc(pool, &a, 4 * MIB)); /* synchronises */
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &a, 4 * MIB));
  assert_thread_is(current, 1);
  FAILS(cudaErrorAlreadyAcquired, MAM_Create(MIB));
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(&a));
  OK(MAM_PoolGetInfo(pool, &info));
  OK(MAM_PoolReport(pool, &text));
  free(text);
  OK(MAM_PoolExplain(pool, 1, &text));
  free(text);
  assert_thread_is(current, 1);
  OK(MAM_PoolDestroy(pool));
  OK(MAM_Destroy());
  assert_thread_is(current, 1);
  assert_nothing_held();
}
END_TEST

START_TEST(failing_calls_do_not_change_the_thread) {
  static const char *const functions[] = {"cuMemAlloc", "cuMemGetInfo", "cuCtxSynchronize", "cuMemFree"};
  void *current = use_primary(0), *pointer = NULL;
  MAM_PoolOptions options = options_with(4 * MIB);
  options.context = fake_context_create(0);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    MAM_Pool pool = NULL;
    options.chunk_bytes = i == 1 ? 0 : 4 * MIB;
    fake_fail(functions[i], 1, 999);
    if (MAM_PoolCreate(&pool, &options) == cudaSuccess) {
      (void)MAM_CudaFree(block_of(pool, 4 * MIB));
      (void)MAM_PoolMalloc(pool, &pointer, 4 * MIB);
      (void)MAM_PoolDestroy(pool);
    }
    ck_assert_uint_eq(fake_failures(), i + 1);
    assert_thread_is(current, 1);
  }
}
END_TEST

/* Before CUDA 12.0 contexts have no ids. */
START_TEST(older_driver_does_too) {
  fake_hide("cuCtxGetId");
  fake_hide("cuThreadExchangeStreamCaptureMode");
  OK(MAM_CudaFree(block(1000)));
  void *first = use_primary(0);
  OK(MAM_Create(4 * MIB));
  char *a = block(1000);
  use_new_context(0);
  char *b = block(1000);
  ck_assert_uint_eq(fake_live_blocks(), 2);
  OK(MAM_CudaFree(b));
  OK(MAM_CudaFree(a));
  fake_make_current(first);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(chunk_is_taken_while_another_thread_captures) {
  use_primary(0);
  fake_capture_begin();
  OK(MAM_Create(4 * MIB));
  char *a = block(MIB);
  OK(MAM_CudaFree(a));
  ck_assert(fake_capture_end());
}
END_TEST

/* ---- Pools as objects -------------------------------------------------------------------------------------------- */

START_TEST(pool_takes_its_first_chunk_at_once) {
  MAM_Pool pool = pool_with(options_with(4 * MIB));
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

START_TEST(pool_options_null_are_the_default_ones) {
  MAM_Pool pool = NULL;
  fake_set_capacity(GIB);
  OK(MAM_PoolCreate(&pool, NULL));
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_ge(info.reserved_bytes, GIB / 2);
  ck_assert_uint_eq(info.reserved_bytes, fake_live_bytes());
  ck_assert_uint_eq(info.limit_bytes, info.reserved_bytes);
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

START_TEST(pool_is_not_the_default_one) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_Pool pool = pool_with(options_with(4 * MIB));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolGetInfo(NULL, &info));
  OK(MAM_Destroy());
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  char *a = block_of(pool, 100);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
}
END_TEST

struct wrong_option {
  const char *name;
  void (*spoil)(MAM_PoolOptions *options);
};

static void spoil_size(MAM_PoolOptions *options) { options->struct_size = 0; }
static void spoil_source(MAM_PoolOptions *options) { options->source = (MAM_Source)4; }
static void spoil_source_below(MAM_PoolOptions *options) { options->source = (MAM_Source)-1; }
static void spoil_reuse(MAM_PoolOptions *options) { options->reuse = (MAM_Reuse)2; }
static void spoil_alignment_small(MAM_PoolOptions *options) { options->alignment = 8; }
static void spoil_alignment_odd(MAM_PoolOptions *options) { options->alignment = 1536; }
static void spoil_alignment_large(MAM_PoolOptions *options) { options->alignment = 4 * MIB; }

static const struct wrong_option wrong_options[] = {
    {"struct_size", spoil_size},          {"source", spoil_source},
    {"source", spoil_source_below},       {"reuse", spoil_reuse},
    {"alignment", spoil_alignment_small}, {"alignment", spoil_alignment_odd},
    {"alignment", spoil_alignment_large},
};
enum { wrong_option_count = sizeof wrong_options / sizeof wrong_options[0] };

START_TEST(wrong_option_is_named) {
  MAM_PoolOptions options = options_with(4 * MIB);
  MAM_Pool pool = (MAM_Pool)&options;
  wrong_options[_i].spoil(&options);
  FAILS(cudaErrorInvalidValue, MAM_PoolCreate(&pool, &options));
  assert_error_says(wrong_options[_i].name);
  ck_assert_ptr_eq(pool, (MAM_Pool)&options);
  assert_nothing_held();
}
END_TEST

START_TEST(pool_create_without_a_place_is_invalid) {
  FAILS(cudaErrorInvalidValue, MAM_PoolCreate(NULL, NULL));
  FAILS(cudaErrorInvalidValue, MAM_PoolDefault(NULL));
  assert_nothing_held();
}
END_TEST

START_TEST(pool_on_a_device_that_is_not_there) {
  MAM_PoolOptions options = options_with(4 * MIB);
  MAM_Pool pool = NULL;
  options.device = 1;
  FAILS(cudaErrorInvalidDevice, MAM_PoolCreate(&pool, &options));
  ck_assert_ptr_null(pool);
  options.device = -2;
  ck_assert_int_ne(MAM_PoolCreate(&pool, &options), cudaSuccess);
  ck_assert_ptr_null(pool);
  ck_assert_uint_eq(fake_retains(0), 0);
  assert_nothing_held();
}
END_TEST

START_TEST(pool_in_a_dead_context_is_refused) {
  MAM_PoolOptions options = options_with(4 * MIB);
  MAM_Pool pool = NULL;
  options.context = fake_context_create(0);
  fake_context_destroy(options.context);
  ck_assert_int_ne(MAM_PoolCreate(&pool, &options), cudaSuccess);
  ck_assert_ptr_null(pool);
  assert_nothing_held();
}
END_TEST

START_TEST(refused_pool_leaves_no_reference_to_its_device) {
  MAM_PoolOptions options = options_with(GIB);
  MAM_Pool pool = NULL;
  options.device = 0;
  fake_set_capacity(64 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolCreate(&pool, &options));
  ck_assert_ptr_null(pool);
  ck_assert_uint_eq(fake_retains(0), 0);
  ck_assert_ptr_null(fake_current());
}
END_TEST

START_TEST(pool_that_is_gone_is_no_handle) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  char *text = NULL;
  MAM_Pool pool = pool_with(options_with(4 * MIB));
  char *a = block_of(pool, 1000);
  void *pointer = &pointer;
  OK(MAM_PoolDestroy(pool));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolDestroy(pool));
  ck_assert_str_ne(MAM_LastError(), "");
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolMalloc(pool, &pointer, 100));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolGetInfo(pool, &info));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolReport(pool, &text));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolExplain(pool, 1, &text));
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  ck_assert_ptr_null(text);
  assert_nothing_held();
}
END_TEST

START_TEST(null_pool) {
  void *pointer = &pointer;
  OK(MAM_PoolDestroy(NULL));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolMalloc(NULL, &pointer, 100));
  MAM_Pool pool = pool_with(options_with(4 * MIB));
  FAILS(cudaErrorInvalidValue, MAM_PoolMalloc(pool, NULL, 100));
  OK(MAM_PoolMalloc(pool, &pointer, 0));
  ck_assert_ptr_null(pointer);
}
END_TEST

START_TEST(default_pool_is_an_object_too) {
  MAM_Pool pool = NULL, again = NULL;
  OK(MAM_Create(8 * MIB));
  OK(MAM_PoolDefault(&pool));
  OK(MAM_PoolDefault(&again));
  ck_assert_ptr_eq(pool, again);
  char *a = block_of(pool, 1000);
  ck_assert_uint_eq(info_of(NULL).requested_bytes, 1000);
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolDestroy(pool));
  ck_assert_uint_eq(fake_live_bytes(), 8 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_Destroy());
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolDestroy(pool));
}
END_TEST

START_TEST(default_pool_is_created_when_asked_for) {
  MAM_Pool pool = NULL;
  OK(MAM_PoolDefault(&pool));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  char *a = block_of(pool, 1000);
  OK(MAM_CudaFree(a)); /* it was lazy, and this its last block */
  assert_nothing_held();
}
END_TEST

static const char *const take_functions[] = {"cuMemAlloc", "cuMemHostAlloc", "cuMemAllocManaged"};
static const char *const give_functions[] = {"cuMemFree", "cuMemFreeHost", "cuMemFree"};

START_TEST(source_uses_its_own_calls) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.source = (MAM_Source)_i;
  MAM_Pool pool = pool_with(options);
  for (int i = 0; i < 3; i++)
    ck_assert_uint_eq(fake_calls(take_functions[i]), i == _i);
  char *a = block_of(pool, MIB), *b = block_of(pool, MIB);
  ck_assert_uint_eq((uintptr_t)b % 512, 0);
  OK(MAM_CudaFree(a));
  OK(MAM_PoolDestroy(pool));
  ck_assert_uint_eq(fake_calls(give_functions[_i]), 1);
  assert_nothing_held();
}
END_TEST

START_TEST(largest_chunk_of_each_source) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = (MAM_Source)_i;
  fake_set_capacity(GIB);
  fake_set_host_capacity(GIB);
  MAM_Pool pool = pool_with(options);
  ck_assert_uint_gt(info_of(pool).reserved_bytes, 0);
  ck_assert_uint_eq(info_of(pool).reserved_bytes, fake_live_bytes());
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

START_TEST(host_pool_serves_memory_without_the_driver) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.source = MAM_SOURCE_HOST;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, MIB);
  (void)memset(a, 0x5a, MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_PoolDestroy(pool));
  ck_assert_uint_eq(fake_calls(NULL), 0);
}
END_TEST

static const size_t alignments[] = {16, 256, 512, 4096, 64 * KIB, 2 * MIB};

START_TEST(alignment_is_the_one_asked_for) {
  MAM_PoolOptions options = options_with(64 * MIB);
  options.alignment = alignments[_i];
  MAM_Pool pool = pool_with(options);
  char *first = block_of(pool, 1), *second = block_of(pool, 1);
  ck_assert_uint_eq((uintptr_t)first % alignments[_i], 0);
  ck_assert_uint_eq((size_t)labs(second - first), alignments[_i]);
  ck_assert_uint_eq(info_of(pool).used_bytes, 2 * alignments[_i]);
  ck_assert_uint_eq(info_of(pool).requested_bytes, 2);
}
END_TEST

START_TEST(pool_grows_by_its_step_up_to_its_limit) {
  MAM_PoolOptions options = options_with(4 * MIB);
  void *pointer = &pointer;
  options.limit_bytes = 12 * MIB;
  MAM_Pool pool = pool_with(options);
  ck_assert_uint_eq(info_of(pool).limit_bytes, 12 * MIB);
  for (unsigned i = 1; i <= 3; i++) {
    (void)block_of(pool, 4 * MIB);
    ck_assert_uint_eq(fake_live_bytes(), 4 * MIB * i);
    ck_assert_uint_eq(info_of(pool).chunk_count, i);
    ck_assert_uint_eq(info_of(pool).reserved_bytes, 4 * MIB * i);
  }
  MAM_PoolInfo before = info_of(pool);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 1));
  ck_assert_ptr_null(pointer);
  assert_unchanged(pool, before);
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

START_TEST(pool_grows_by_more_for_a_block_that_needs_it) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.limit_bytes = 64 * MIB;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, 20 * MIB);
  ck_assert_uint_eq(info_of(pool).chunk_count, 2);
  ck_assert_uint_eq(info_of(pool).reserved_bytes, 24 * MIB);
  OK(MAM_CudaFree(a));
  assert_adds_up(pool);
}
END_TEST

START_TEST(growth_makes_do_with_what_the_source_has) {
  MAM_PoolOptions options = options_with(16 * MIB);
  options.limit_bytes = GIB;
  fake_set_capacity(20 * MIB);
  MAM_Pool pool = pool_with(options);
  (void)block_of(pool, 16 * MIB);
  (void)block_of(pool, MIB);
  ck_assert_uint_le(fake_live_bytes(), 20 * MIB);
}
END_TEST

START_TEST(pool_without_a_limit_does_not_grow) {
  void *pointer = &pointer;
  MAM_Pool pool = pool_with(options_with(4 * MIB));
  (void)block_of(pool, 4 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 1));
  ck_assert_uint_eq(fake_live_bytes(), 4 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
}
END_TEST

static const struct {
  size_t chunk_bytes, limit_bytes;
} limits[] = {{0, 64 * MIB}, {64 * MIB, 16 * MIB}, {0, MIB}, {3 * MIB, 3 * MIB}, {2 * MIB, 9 * MIB}, {MIB, MIB}};
enum { limit_count = sizeof limits / sizeof limits[0] };

START_TEST(limit_is_never_passed) {
  MAM_PoolOptions options = options_with(limits[_i].chunk_bytes);
  MAM_Pool pool = NULL;
  options.limit_bytes = limits[_i].limit_bytes;
  cudaError_t error = MAM_PoolCreate(&pool, &options);
  size_t rounded = (options.limit_bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
  ck_assert_uint_le(fake_live_bytes(), rounded);
  if (options.chunk_bytes > rounded) {
    FAILS(cudaErrorInvalidValue, error);
    ck_assert_ptr_null(pool);
    assert_error_says("limit_bytes");
    return;
  }
  ck_assert_int_eq(error, cudaSuccess);
  ck_assert_uint_eq(info_of(pool).limit_bytes, rounded);
  (void)block_of(pool, MIB);
  void *pointer;
  while (MAM_PoolMalloc(pool, &pointer, MIB) == cudaSuccess)
    ck_assert_uint_le(fake_live_bytes(), rounded);
  ck_assert_uint_eq(fake_live_bytes(), rounded);
}
END_TEST

START_TEST(blocks_do_not_lie_across_chunks) {
  MAM_PoolOptions options = options_with(4 * MIB);
  void *pointer = &pointer;
  options.limit_bytes = 8 * MIB;
  options.reuse = MAM_REUSE_IMMEDIATE;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, 4 * MIB), *b = block_of(pool, 4 * MIB);
  ck_assert_uint_eq((size_t)labs(b - a), 4 * MIB); /* the fake gives neighbours */
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(b));
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 4 * MIB + 1));
  ck_assert_uint_eq(info_of(pool).free_count, 2);
}
END_TEST

START_TEST(growth_does_not_wait_for_the_gpu) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.context = use_primary(0);
  options.limit_bytes = 64 * MIB;
  MAM_Pool pool = pool_with(options);
  fake_submit(options.context);
  for (int i = 0; i < 16; i++)
    (void)block_of(pool, 4 * MIB);
  ck_assert(fake_pending(options.context));
}
END_TEST

/* ---- Reuse ------------------------------------------------------------------------------------------------------- */

/* A pool of 8 MiB that never synchronises for the waiting limit alone. */
static MAM_Pool fenced_pool(void *context) {
  MAM_PoolOptions options = options_with(8 * MIB);
  options.context = context;
  options.waiting_limit_bytes = 8 * MIB;
  return pool_with(options);
}

START_TEST(freed_block_is_not_handed_out_under_running_work) {
  void *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *a = block_of(pool, MIB);
  fake_submit(context);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(info_of(pool).waiting_bytes, MIB);
  ck_assert_uint_eq(info_of(pool).waiting_count, 1);
  assert_adds_up(pool);
  for (int i = 0; i < 7; i++) {
    char *b = block_of(pool, MIB);
    ck_assert(b + MIB <= a || a + MIB <= b);
  }
  ck_assert(fake_pending(context));
  ck_assert_uint_eq(fake_waits(), 0);
  ck_assert_uint_eq(info_of(pool).synchronize_count, 0);
}
END_TEST

START_TEST(malloc_waits_only_where_it_would_fail) {
  void *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *a = block_of(pool, MIB);
  (void)block_of(pool, 7 * MIB);
  fake_submit(context);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_waits(), 0);
  ck_assert_ptr_eq(block_of(pool, MIB), a);
  ck_assert_uint_eq(fake_waits(), 1);
  ck_assert_uint_eq(info_of(pool).synchronize_count, 1);
}
END_TEST

START_TEST(malloc_that_fails_anyway_has_tried_what_waits) {
  void *pointer = &pointer, *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *a = block_of(pool, MIB);
  (void)block_of(pool, 7 * MIB);
  OK(MAM_CudaFree(a));
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 2 * MIB));
  ck_assert_ptr_null(pointer);
  ck_assert_uint_le(fake_calls("cuCtxSynchronize"), 1);
  ck_assert_ptr_eq(block_of(pool, MIB), a);
  ck_assert_uint_le(fake_calls("cuCtxSynchronize"), 1);
}
END_TEST

START_TEST(pool_with_nothing_waiting_fails_without_waiting) {
  void *pointer = &pointer, *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  (void)block_of(pool, 8 * MIB);
  fake_submit(context);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 1));
  ck_assert(fake_pending(context));
}
END_TEST

START_TEST(growth_is_preferred_to_waiting) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.context = use_primary(0);
  options.limit_bytes = 8 * MIB;
  options.waiting_limit_bytes = 8 * MIB;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, 4 * MIB);
  fake_submit(options.context);
  OK(MAM_CudaFree(a));
  ck_assert_ptr_ne(block_of(pool, 4 * MIB), a);
  ck_assert(fake_pending(options.context));
}
END_TEST

START_TEST(waiting_bytes_past_the_limit_synchronise) {
  MAM_PoolOptions options = options_with(8 * MIB);
  options.context = use_primary(0);
  options.waiting_limit_bytes = MIB;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, MIB / 2), *b = block_of(pool, MIB / 2), *c = block_of(pool, MIB / 2);
  fake_submit(options.context);
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(b));
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  ck_assert_uint_eq(info_of(pool).waiting_bytes, MIB);
  OK(MAM_CudaFree(c));
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 1);
  ck_assert_uint_eq(fake_waits(), 1);
  ck_assert_uint_eq(info_of(pool).waiting_bytes, 0);
  ck_assert_uint_eq(info_of(pool).free_count, 1);
  ck_assert_uint_eq(info_of(pool).synchronize_count, 1);
}
END_TEST

START_TEST(waiting_limit_is_half_of_what_is_held) {
  void *context = use_primary(0);
  OK(MAM_Create(8 * MIB));
  char *blocks[8];
  for (int i = 0; i < 8; i++)
    blocks[i] = block(MIB);
  fake_submit(context);
  for (int i = 0; i < 4; i++)
    OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  OK(MAM_CudaFree(blocks[4]));
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 1);
}
END_TEST

START_TEST(immediate_reuse_never_synchronises) {
  MAM_PoolOptions options = options_with(8 * MIB);
  void *pointer = &pointer;
  options.context = use_primary(0);
  options.reuse = MAM_REUSE_IMMEDIATE;
  options.waiting_limit_bytes = 1;
  MAM_Pool pool = pool_with(options);
  fake_submit(options.context);
  char *a = block_of(pool, 8 * MIB);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(info_of(pool).waiting_bytes, 0);
  ck_assert_ptr_eq(block_of(pool, 8 * MIB), a);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 1));
  ck_assert(fake_pending(options.context));
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  ck_assert_uint_eq(info_of(pool).synchronize_count, 0);
}
END_TEST

START_TEST(reuse_of_the_default_pool_by_environment_variable) {
  (void)setenv("MAM_REUSE", "immediate", 1);
  void *context = use_primary(0);
  OK(MAM_Create(8 * MIB));
  char *a = block(8 * MIB);
  fake_submit(context);
  OK(MAM_CudaFree(a));
  ck_assert_ptr_eq(block(8 * MIB), a);
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
}
END_TEST

START_TEST(freed_memory_that_waits_joins_its_neighbours_afterwards) {
  void *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *blocks[8];
  for (int i = 0; i < 8; i++)
    blocks[i] = block_of(pool, MIB);
  for (int i = 0; i < 8; i++)
    OK(MAM_CudaFree(blocks[(i * 3) % 8]));
  char *all = block_of(pool, 8 * MIB);
  ck_assert_ptr_eq(all, blocks[0]);
  ck_assert_uint_eq(info_of(pool).segment_count, 1);
}
END_TEST

/* Where a freed block lay, and how often the GPU had been seen idle then. */
struct ghost {
  uintptr_t address;
  size_t bytes;
  unsigned idle;
};

/* Random traffic with work coming and going: no block ever lies on one that was freed under work which still runs.
 * The oracle knows the fake's clock only. */
START_TEST(no_block_lies_where_running_work_may_read) {
  enum { live_limit = 40, rounds = 20000 };
  static struct ghost ghosts[rounds];
  static struct ghost live[live_limit];
  unsigned idle = 0, ghost_count = 0, live_count = 0, waits = 0;
  void *context = use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.limit_bytes = 8 * MIB;
  MAM_Pool pool = pool_with(options);
  srand((unsigned)_i);
  for (int round = 0; round < rounds; round++) {
    switch (rand() % 8) {
    case 0:
      fake_submit(context);
      break;
    case 1:
      if (rand() % 16 == 0) {
        fake_finish(context);
        idle++;
      }
      break;
    case 2:
    case 3:
    case 4:
      if (live_count > 0) {
        unsigned index = (unsigned)rand() % live_count;
        bool pending = fake_pending(context);
        if (pending)
          ghosts[ghost_count++] = (struct ghost){live[index].address, live[index].bytes, idle};
        OK(MAM_CudaFree((void *)live[index].address));
        live[index] = live[--live_count];
      }
      break;
    default:
      if (live_count < live_limit) {
        void *pointer = NULL;
        size_t bytes = (size_t)(rand() % 512 + 1) * KIB;
        cudaError_t error = MAM_PoolMalloc(pool, &pointer, bytes);
        if (fake_waits() != waits) { /* this call waited before it chose */
          waits = fake_waits();
          idle++;
        }
        ck_assert(error == cudaSuccess || error == cudaErrorMemoryAllocation);
        if (error != cudaSuccess)
          break;
        live[live_count++] = (struct ghost){(uintptr_t)pointer, bytes, idle};
        for (unsigned i = 0; i < ghost_count; i++)
          ck_assert(ghosts[i].idle != idle || ghosts[i].address + ghosts[i].bytes <= (uintptr_t)pointer ||
                    (uintptr_t)pointer + bytes <= ghosts[i].address);
      }
    }
    if (fake_waits() != waits) {
      waits = fake_waits();
      idle++;
    }
    if (ghost_count > 0 && ghosts[ghost_count - 1].idle != idle)
      ghost_count = 0;
  }
  assert_adds_up(pool);
  ck_assert_uint_gt(waits, 0);
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

START_TEST(error_of_the_gpu_comes_through_malloc) {
  void *pointer = &pointer, *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *a = block_of(pool, 8 * MIB);
  OK(MAM_CudaFree(a));
  fake_poison(context, 700);
  FAILS((cudaError_t)700, MAM_PoolMalloc(pool, &pointer, MIB));
  ck_assert_ptr_null(pointer);
  assert_error_says("CUDA_ERROR_ILLEGAL_ADDRESS");
}
END_TEST

START_TEST(error_of_the_gpu_comes_through_free_which_frees) {
  MAM_PoolOptions options = options_with(8 * MIB);
  options.context = use_primary(0);
  options.waiting_limit_bytes = KIB;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, MIB);
  fake_fail("cuCtxSynchronize", 1, 700);
  FAILS((cudaError_t)700, MAM_CudaFree(a));
  assert_error_says("CUDA_ERROR_ILLEGAL_ADDRESS");
  ck_assert_uint_eq(info_of(pool).used_count, 0);
  ck_assert_uint_eq(info_of(pool).free_call_count, 1);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
}
END_TEST

/* After an illegal access every question about the current context answers with it. */
START_TEST(sticky_error_ends_no_call_in_a_loop) {
  void *pointer = &pointer, *context = use_primary(0);
  if (_i == 0)
    OK(MAM_Create(8 * MIB));
  char *a = block(MIB), *b = block(MIB);
  fake_poison(context, 700);
  cudaError_t error = MAM_CudaMalloc(&pointer, MIB);
  ck_assert_msg(error == cudaSuccess || error == (cudaError_t)700, "%d", (int)error);
  ck_assert(error == cudaSuccess ? fake_holds(pointer, MIB) : pointer == NULL);
  error = MAM_CudaFree(a);
  ck_assert_msg(error == cudaSuccess || error == (cudaError_t)700, "%d", (int)error);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  FAILS((cudaError_t)700, MAM_Destroy());
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(b));
}
END_TEST

START_TEST(sticky_error_comes_through_creation) {
  void *pointer = &pointer, *context = use_primary(0);
  OK(MAM_CudaFree(block(1000))); /* the driver is known */
  fake_poison(context, 700);
  FAILS((cudaError_t)700, MAM_CudaMalloc(&pointer, MIB));
  ck_assert_ptr_null(pointer);
  FAILS((cudaError_t)700, MAM_Create(MIB));
  FAILS((cudaError_t)700, MAM_Create_auto());
  assert_error_says("CUDA_ERROR_ILLEGAL_ADDRESS");
  assert_nothing_held();
}
END_TEST

START_TEST(failed_wait_hands_out_nothing) {
  void *pointer = &pointer, *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *a = block_of(pool, 8 * MIB);
  fake_submit(context);
  OK(MAM_CudaFree(a));
  fake_fail("cuCtxSynchronize", 1, 999);
  FAILS(cudaErrorUnknown, MAM_PoolMalloc(pool, &pointer, MIB));
  ck_assert_ptr_null(pointer);
  ck_assert_uint_eq(info_of(pool).waiting_bytes, 8 * MIB);
  ck_assert_ptr_eq(block_of(pool, MIB), a);
}
END_TEST

/* ---- Fork -------------------------------------------------------------------------------------------------------- */

/* Runs body in a forked child, where asserts are exit statuses. */
static void in_child(bool (*body)(void *), void *argument) {
  int status = 0;
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0)
    _exit(body(argument) ? EXIT_SUCCESS : EXIT_FAILURE);
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS, "the child failed: %s %d",
                WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : status);
}

struct forked {
  MAM_Pool pool;
  char *default_block;
  char *pool_block;
};

static bool child_is_refused(void *argument) {
  const struct forked *forked = argument;
  void *pointer = argument;
  bool refused = MAM_CudaMalloc(&pointer, 100) == cudaErrorInitializationError && pointer == NULL;
  pointer = argument;
  refused = refused && MAM_PoolMalloc(forked->pool, &pointer, 100) == cudaErrorInitializationError && pointer == NULL;
  refused = refused && MAM_CudaFree(forked->default_block) == cudaErrorInitializationError;
  refused = refused && MAM_CudaFree(forked->pool_block) == cudaErrorInitializationError;
  return refused && MAM_CudaFree(NULL) == cudaSuccess && MAM_LastError()[0] != '\0';
}

START_TEST(forked_child_is_refused_the_gpu) {
  use_primary(0);
  OK(MAM_Create(4 * MIB));
  struct forked forked = {.pool = pool_with(options_with(4 * MIB))};
  forked.default_block = block(1000);
  forked.pool_block = block_of(forked.pool, 1000);
  in_child(child_is_refused, &forked);
  OK(MAM_CudaFree(forked.default_block));
  OK(MAM_CudaFree(forked.pool_block));
  OK(MAM_PoolDestroy(forked.pool));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

static bool host_pool_works(void *argument) {
  struct forked *forked = argument;
  void *pointer = NULL;
  MAM_Pool pool = NULL;
  MAM_PoolOptions options = options_with(2 * MIB);
  options.source = MAM_SOURCE_HOST;
  bool works = forked->pool_block[0] == 'p' && MAM_PoolMalloc(forked->pool, &pointer, 1000) == cudaSuccess;
  if (!works)
    return false;
  (void)memset(pointer, 'c', 1000);
  works = MAM_CudaFree(pointer) == cudaSuccess && MAM_CudaFree(forked->pool_block) == cudaSuccess;
  works = works && MAM_PoolCreate(&pool, &options) == cudaSuccess && MAM_PoolDestroy(pool) == cudaSuccess;
  return works && MAM_PoolDestroy(forked->pool) == cudaSuccess;
}

START_TEST(forked_child_keeps_host_pools) {
  use_primary(0);
  OK(MAM_Create(4 * MIB));
  MAM_PoolOptions options = options_with(4 * MIB);
  options.source = MAM_SOURCE_HOST;
  struct forked forked = {.pool = pool_with(options)};
  forked.pool_block = block_of(forked.pool, 1000);
  forked.pool_block[0] = 'p';
  in_child(host_pool_works, &forked);
  ck_assert_int_eq(forked.pool_block[0], 'p');
  OK(MAM_CudaFree(forked.pool_block));
  OK(MAM_PoolDestroy(forked.pool));
}
END_TEST

static bool default_pool_works(void *argument) {
  void *pointer = NULL;
  (void)argument;
  if (MAM_CudaMalloc(&pointer, 1000) != cudaSuccess)
    return false;
  (void)memset(pointer, 1, 1000);
  return MAM_CudaFree(pointer) == cudaSuccess;
}

START_TEST(forked_child_keeps_the_default_pool_of_the_host) {
  (void)setenv("MAM_SOURCE", "host", 1);
  char *a = block(1000);
  in_child(default_pool_works, NULL);
  OK(MAM_CudaFree(a));
}
END_TEST

static bool device_pool_opens(void *argument) {
  void *pointer = NULL;
  (void)argument;
  return MAM_CudaMalloc(&pointer, 1000) == cudaSuccess && pointer != NULL && MAM_CudaFree(pointer) == cudaSuccess;
}

START_TEST(child_of_a_process_that_did_not_use_the_gpu_may) { in_child(device_pool_opens, NULL); }
END_TEST

/* ---- Environment variables --------------------------------------------------------------------------------------- */

START_TEST(default_pool_on_the_host_never_calls_the_driver) {
  (void)setenv("MAM_SOURCE", "host", 1);
  for (int i = 0; i < 3; i++) {
    char *a = block(MIB);
    (void)memset(a, 0x11, MIB);
    OK(MAM_CudaFree(a));
  }
  OK(MAM_Destroy());
  OK(MAM_Create(8 * MIB));
  char *a = block(MIB);
  (void)memset(a, 0x22, MIB);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a + 512));
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 8 * MIB);
  OK(MAM_Destroy());
  OK(MAM_Create_auto());
  OK(MAM_Destroy());
  ck_assert_uint_eq(fake_calls(NULL), 0);
}
END_TEST

START_TEST(default_pool_on_the_host_is_one_for_all_contexts) {
  (void)setenv("MAM_SOURCE", "host", 1);
  OK(MAM_Create(8 * MIB));
  (void)block(1000);
  use_new_context(0);
  (void)block(1000);
  ck_assert_uint_eq(info_of(NULL).used_count, 2);
}
END_TEST

START_TEST(default_pool_takes_the_source_of_the_environment_variable) {
  static const char *const names[] = {"device", "pinned", "managed"};
  (void)setenv("MAM_SOURCE", names[_i], 1);
  OK(MAM_Create(4 * MIB));
  for (int i = 0; i < 3; i++)
    ck_assert_uint_eq(fake_calls(take_functions[i]), i == _i);
  (void)block(1000);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

static const struct {
  const char *name, *value;
} wrong_variables[] = {
    {"MAM_SOURCE", "nonsense"}, {"MAM_REUSE", "sometimes"}, {"MAM_HEADROOM", "much"}, {"MAM_LINGER_MS", "-1"}};

START_TEST(wrong_environment_variable_is_named) {
  void *pointer = &pointer;
  (void)setenv(wrong_variables[_i].name, wrong_variables[_i].value, 1);
  FAILS(cudaErrorInvalidValue, MAM_CudaMalloc(&pointer, 100));
  ck_assert_ptr_null(pointer);
  assert_error_says(wrong_variables[_i].name);
  assert_error_says(wrong_variables[_i].value);
  FAILS(cudaErrorInvalidValue, MAM_Create(MIB));
  FAILS(cudaErrorInvalidValue, MAM_Create_auto());
  assert_nothing_held();
}
END_TEST

/* ---- Seeing in --------------------------------------------------------------------------------------------------- */

START_TEST(info_counts_what_was_done) {
  void *pointer = &pointer;
  MAM_PoolOptions options = options_with(8 * MIB);
  options.reuse = MAM_REUSE_IMMEDIATE;
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, 1000), *b = block_of(pool, MIB), *c = block_of(pool, 1);
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_eq(info.used_bytes, 1024 + MIB + 512);
  ck_assert_uint_eq(info.requested_bytes, 1000 + MIB + 1);
  ck_assert_uint_eq(info.malloc_count, 3);
  ck_assert_uint_eq(info.used_count, 3);
  ck_assert_uint_eq(info.chunk_count, 1);
  ck_assert_uint_gt(info.metadata_bytes, 0);
  ck_assert_double_eq(info.external_fragmentation, 0.0);
  OK(MAM_CudaFree(b)); /* two holes: of b, and the rest */
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 8 * MIB));
  info = info_of(pool);
  size_t rest = 8 * MIB - 1024 - MIB - 512;
  ck_assert_uint_eq(info.free_count, 2);
  ck_assert_uint_eq(info.free_bytes, rest + MIB);
  ck_assert_uint_eq(info.largest_free_bytes, rest);
  ck_assert_double_eq_tol(info.external_fragmentation, 1.0 - (double)rest / (double)(rest + MIB), 1e-12);
  ck_assert_uint_eq(info.peak_used_bytes, 1024 + MIB + 512);
  ck_assert_uint_eq(info.failure_count, 1);
  ck_assert_uint_eq(info.free_call_count, 1);
  assert_adds_up(pool);
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(c));
  info = info_of(pool);
  ck_assert_uint_eq(info.free_bytes, 8 * MIB);
  ck_assert_uint_eq(info.segment_count, 1);
  ck_assert_uint_eq(info.peak_used_bytes, 1024 + MIB + 512);
}
END_TEST

START_TEST(info_of_the_default_pool_does_not_create_it) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  char *text = NULL;
  use_primary(0);
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolGetInfo(NULL, &info));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolReport(NULL, &text));
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolExplain(NULL, 1, &text));
  ck_assert_ptr_null(text);
  assert_nothing_held();
}
END_TEST

START_TEST(info_without_room_is_invalid) {
  MAM_PoolInfo info = {.struct_size = 0};
  OK(MAM_Create(4 * MIB));
  FAILS(cudaErrorInvalidValue, MAM_PoolGetInfo(NULL, NULL));
  FAILS(cudaErrorInvalidValue, MAM_PoolGetInfo(NULL, &info));
  info.struct_size = sizeof(size_t);
  FAILS(cudaErrorInvalidValue, MAM_PoolGetInfo(NULL, &info));
}
END_TEST

START_TEST(info_writes_no_more_than_its_size) {
  struct {
    MAM_PoolInfo info;
    unsigned char behind[64];
  } place;
  unsigned char untouched[sizeof place];
  size_t size = (size_t)_i * sizeof(size_t);
  (void)memset(untouched, 0xa5, sizeof untouched);
  (void)memset(&place, 0xa5, sizeof place);
  OK(MAM_Create(4 * MIB));
  (void)block(1000);
  place.info.struct_size = size;
  OK(MAM_PoolGetInfo(NULL, &place.info));
  ck_assert_uint_eq(place.info.reserved_bytes, 4 * MIB);
  size_t written = size < sizeof place.info ? size : sizeof place.info;
  ck_assert_mem_eq((unsigned char *)&place + written, untouched, sizeof place - written);
  if (size > offsetof(MAM_PoolInfo, requested_bytes))
    ck_assert_uint_eq(place.info.requested_bytes, 1000);
}
END_TEST

static size_t number_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  ck_assert_msg(json_is_integer(value), "no number \"%s\" in the report", key);
  return (size_t)json_integer_value(value);
}

static uintptr_t address_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  if (json_is_string(value))
    return (uintptr_t)strtoull(json_string_value(value), NULL, 0);
  return number_of(object, key);
}

/* The segments of a chunk in order of address, end to end from its start to its end. */
static size_t assert_tiled(const json_t *chunk) {
  const json_t *segments = json_object_get(chunk, "segments"), *segment;
  uintptr_t at = address_of(chunk, "base");
  uintptr_t end = at + number_of(chunk, "bytes");
  size_t index;
  ck_assert(json_is_array(segments));
  json_array_foreach(segments, index, segment) {
    ck_assert_uint_eq(address_of(segment, "base"), at);
    ck_assert_uint_gt(number_of(segment, "bytes"), 0);
    at += number_of(segment, "bytes");
  }
  ck_assert_uint_eq(at, end);
  return json_array_size(segments);
}

START_TEST(report_tiles_every_chunk) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.limit_bytes = 64 * MIB;
  options.waiting_limit_bytes = 64 * MIB;
  MAM_Pool pool = pool_with(options);
  char *text = NULL, *blocks[20];
  json_error_t error;
  for (size_t i = 0; i < 20; i++)
    blocks[i] = block_of(pool, (i + 1) * 100 * KIB);
  for (size_t i = 0; i < 20; i += 3)
    OK(MAM_CudaFree(blocks[i]));
  OK(MAM_PoolReport(pool, &text));
  json_t *report = json_loads(text, JSON_REJECT_DUPLICATES, &error);
  ck_assert_msg(report != NULL, "line %d: %s in %s", error.line, error.text, text);
  const json_t *chunks = json_object_get(report, "chunks"), *chunk;
  size_t index, segments = 0, bytes = 0;
  json_array_foreach(chunks, index, chunk) {
    segments += assert_tiled(chunk);
    bytes += number_of(chunk, "bytes");
  }
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_gt(info.chunk_count, 1);
  ck_assert_uint_eq(json_array_size(chunks), info.chunk_count);
  ck_assert_uint_eq(segments, info.segment_count);
  ck_assert_uint_eq(bytes, info.reserved_bytes);
  json_decref(report);
  free(text);
}
END_TEST

/* The number stands in the text as itself, or in another unit after it. */
static void assert_text_has(const char *text, size_t bytes) {
  char number[32];
  (void)snprintf(number, sizeof number, "%zu", bytes);
  ck_assert_msg(strstr(text, number) != NULL, "no %s in: %s", number, text);
}

START_TEST(explain_says_what_was_asked_and_what_is_there) {
  MAM_PoolOptions options = options_with(8 * MIB);
  options.reuse = MAM_REUSE_IMMEDIATE;
  MAM_Pool pool = pool_with(options);
  void *pointer = NULL;
  char *a = block_of(pool, MIB), *text = NULL;
  (void)block_of(pool, 2 * MIB);
  OK(MAM_CudaFree(a));
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 5777777));
  OK(MAM_PoolExplain(pool, 5777777, &text));
  assert_text_has(text, 5777777);
  assert_text_has(text, 6 * MIB); /* free */
  assert_text_has(text, 5 * MIB); /* the largest hole */
  assert_text_has(text, 8 * MIB); /* the limit */
  free(text);
}
END_TEST

START_TEST(explain_differs_when_the_pool_can_serve) {
  char *can = NULL, *cannot = NULL;
  OK(MAM_Create(8 * MIB));
  OK(MAM_PoolExplain(NULL, MIB, &can));
  OK(MAM_PoolExplain(NULL, 9 * MIB, &cannot));
  ck_assert_str_ne(can, cannot);
  free(can);
  free(cannot);
}
END_TEST

START_TEST(explain_says_what_waits) {
  char *text = NULL;
  MAM_Pool pool = fenced_pool(use_primary(0));
  OK(MAM_CudaFree(block_of(pool, 3 * MIB)));
  OK(MAM_PoolExplain(pool, 8 * MIB, &text));
  assert_text_has(text, 3 * MIB);
  ck_assert_ptr_nonnull(strstr(text, "wait"));
  free(text);
}
END_TEST

START_TEST(explain_says_what_the_source_said) {
  MAM_PoolOptions options = options_with(8 * MIB);
  void *pointer = NULL;
  char *text = NULL;
  options.limit_bytes = GIB;
  fake_set_capacity(8 * MIB);
  MAM_Pool pool = pool_with(options);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 16 * MIB));
  OK(MAM_PoolExplain(pool, 16 * MIB, &text));
  ck_assert_msg(strstr(text, "CUDA_ERROR_OUT_OF_MEMORY") != NULL, "%s", text);
  free(text);
}
END_TEST

START_TEST(explain_and_report_without_a_place_are_invalid) {
  OK(MAM_Create(8 * MIB));
  FAILS(cudaErrorInvalidValue, MAM_PoolReport(NULL, NULL));
  FAILS(cudaErrorInvalidValue, MAM_PoolExplain(NULL, 1, NULL));
}
END_TEST

static void *last_error_of_a_new_thread(void *unused) {
  (void)unused;
  return MAM_LastError()[0] == '\0' ? NULL : &start_line;
}

START_TEST(last_error_is_the_thread_s_own) {
  pthread_t thread;
  void *said_something = &thread;
  ck_assert_str_eq(MAM_LastError(), "");
  OK(MAM_Create(2 * MIB));
  ck_assert_str_eq(MAM_LastError(), "");
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(&thread));
  ck_assert_str_ne(MAM_LastError(), "");
  ck_assert_int_eq(pthread_create(&thread, NULL, last_error_of_a_new_thread, NULL), 0);
  ck_assert_int_eq(pthread_join(thread, &said_something), 0);
  ck_assert_ptr_null(said_something);
  OK(MAM_CudaFree(NULL));
  ck_assert_str_ne(MAM_LastError(), "");
}
END_TEST

/* ------------------------------------------------------------------------------------------------------------------ */

static TCase *add_case(Suite *suite, const char *name) {
  TCase *tcase = tcase_create(name);
  tcase_set_timeout(tcase, 10);
  suite_add_tcase(suite, tcase);
  return tcase;
}

static void add_paper_s_five(Suite *suite) {
  TCase *tcase = add_case(suite, "uses");
  tcase_add_test(tcase, use_with_explicit_size);
  tcase_add_test(tcase, use_with_automatic_size);
  tcase_add_test(tcase, use_without_creation);
  tcase = add_case(suite, "create");
  tcase_add_test(tcase, create_of_no_bytes_is_invalid);
  tcase_add_test(tcase, create_rounds_up_to_the_granularity);
  tcase_add_test(tcase, create_takes_no_more_than_asked_for);
  tcase_add_test(tcase, second_create_leaves_the_first_alone);
  tcase_add_test(tcase, create_beside_a_lazy_environment_is_refused);
  tcase_add_test(tcase, create_of_too_much_changes_nothing);
  tcase_add_test(tcase, create_wants_one_piece);
  tcase_add_test(tcase, create_does_not_wait_for_the_gpu);
  tcase_add_test(tcase, without_a_device_there_is_no_device);
  tcase = add_case(suite, "create_auto");
  tcase_add_test(tcase, auto_leaves_the_headroom);
  tcase_add_test(tcase, auto_leaves_the_headroom_of_the_environment_variable);
  tcase_add_loop_test(tcase, auto_takes_about_the_largest_piece, 23, 36);
  tcase_add_loop_test(tcase, auto_works_with_little_memory, 0, 5);
  tcase_add_test(tcase, auto_without_memory_fails);
  tcase_add_test(tcase, auto_does_not_wait_for_the_gpu);
  tcase = add_case(suite, "destroy");
  tcase_add_test(tcase, destroy_of_nothing_succeeds);
  tcase_add_test(tcase, destroy_ends_live_blocks);
  tcase_add_test(tcase, destroy_ends_a_lazy_environment);
  tcase_add_test(tcase, destroy_waits_for_the_gpu);
  tcase_add_test(tcase, destroy_passes_on_what_the_driver_said);
  tcase_add_test(tcase, references_to_the_context_do_not_pile_up);
  tcase = add_case(suite, "malloc");
  tcase_add_test(tcase, malloc_without_a_pointer_is_invalid);
  tcase_add_test(tcase, malloc_of_no_bytes_gives_null);
  tcase_add_test(tcase, blocks_are_aligned_apart_and_inside_the_chunk);
  tcase_add_test(tcase, refused_malloc_writes_null_and_changes_nothing);
  tcase_add_test(tcase, refused_lazy_malloc_leaves_no_environment);
  tcase_add_test(tcase, thread_without_a_context_gets_the_first_device_s);
  tcase_add_test(tcase, context_given_to_a_thread_stays);
  tcase_add_test(tcase, all_of_a_chunk_can_be_had);
  tcase_add_test(tcase, driver_error_of_a_lazy_creation_comes_through);
  tcase = add_case(suite, "free");
  tcase_add_test(tcase, free_of_null_succeeds);
  tcase_add_test(tcase, second_free_is_invalid);
  tcase_add_test(tcase, second_free_of_a_lazy_last_block_is_invalid);
  tcase_add_test(tcase, free_of_what_is_no_block_is_invalid);
  tcase_add_test(tcase, free_before_anything_else_is_invalid);
  tcase_add_test(tcase, any_thread_frees);
  tcase_add_test(tcase, free_does_not_wait_for_the_gpu);
}

static void add_lazy_and_contexts(Suite *suite) {
  TCase *tcase = add_case(suite, "lazy");
  tcase_add_test(tcase, lazy_environment_lives_as_long_as_a_block);
  tcase_add_test(tcase, lazy_environment_waits_for_the_gpu_when_it_goes);
  tcase_add_test(tcase, lazy_environment_that_comes_back_stays_a_while);
  tcase_add_test(tcase, lazy_environment_can_linger_for_no_time);
  tcase_add_test(tcase, lingering_environment_goes_in_the_end);
  tcase_add_test(tcase, explicit_environment_takes_the_place_of_a_lingering_one);
  tcase_add_loop_test(tcase, explicit_environment_outlives_its_last_block, 0, 2);
  tcase_add_test(tcase, explicit_environment_may_follow_a_lazy_one);
  tcase_add_loop_test(tcase, lazy_environment_comes_and_goes_under_threads, 0, 2);
  tcase_add_loop_test(tcase, threads_create_one_lazy_environment, 0, 10);
  tcase = add_case(suite, "contexts");
  tcase_add_test(tcase, each_context_has_its_environment);
  tcase_add_test(tcase, each_device_has_its_environment);
  tcase_add_test(tcase, free_finds_its_environment_from_any_context);
  tcase_add_test(tcase, lazy_last_block_freed_from_another_context_ends_the_environment);
  tcase_add_test(tcase, pointers_of_a_destroyed_context_are_invalid);
  tcase_add_test(tcase, memory_across_that_of_a_destroyed_context_is_the_new_owner_s);
  tcase_add_test(tcase, free_after_the_context_was_destroyed_is_harmless);
  tcase_add_test(tcase, pool_of_a_destroyed_context_can_be_destroyed);
  tcase_add_test(tcase, pool_of_a_destroyed_context_frees_nobody_s_memory);
  tcase_add_test(tcase, growth_of_a_pool_whose_context_is_gone_fails);
  tcase_add_test(tcase, pool_of_a_destroyed_context_says_so);
  tcase_add_test(tcase, environment_comes_back_after_a_reset);
  tcase_add_test(tcase, pointers_are_invalid_after_a_reset);
  tcase_add_test(tcase, reset_leaves_references_balanced);
  tcase_add_test(tcase, pool_on_another_device_leaves_the_current_context);
  tcase_add_test(tcase, no_call_changes_the_thread);
  tcase_add_test(tcase, failing_calls_do_not_change_the_thread);
  tcase_add_test(tcase, older_driver_does_too);
  tcase_add_test(tcase, chunk_is_taken_while_another_thread_captures);
}

static void add_pools(Suite *suite) {
  TCase *tcase = add_case(suite, "pools");
  tcase_add_test(tcase, pool_takes_its_first_chunk_at_once);
  tcase_add_test(tcase, pool_options_null_are_the_default_ones);
  tcase_add_test(tcase, pool_is_not_the_default_one);
  tcase_add_loop_test(tcase, wrong_option_is_named, 0, wrong_option_count);
  tcase_add_test(tcase, pool_create_without_a_place_is_invalid);
  tcase_add_test(tcase, pool_on_a_device_that_is_not_there);
  tcase_add_test(tcase, pool_in_a_dead_context_is_refused);
  tcase_add_test(tcase, refused_pool_leaves_no_reference_to_its_device);
  tcase_add_test(tcase, pool_that_is_gone_is_no_handle);
  tcase_add_test(tcase, null_pool);
  tcase_add_test(tcase, default_pool_is_an_object_too);
  tcase_add_test(tcase, default_pool_is_created_when_asked_for);
  tcase_add_loop_test(tcase, source_uses_its_own_calls, 0, 3);
  tcase_add_loop_test(tcase, largest_chunk_of_each_source, 0, 3);
  tcase_add_test(tcase, host_pool_serves_memory_without_the_driver);
  tcase_add_loop_test(tcase, alignment_is_the_one_asked_for, 0, sizeof alignments / sizeof alignments[0]);
  tcase = add_case(suite, "growth");
  tcase_add_test(tcase, pool_grows_by_its_step_up_to_its_limit);
  tcase_add_test(tcase, pool_grows_by_more_for_a_block_that_needs_it);
  tcase_add_test(tcase, growth_makes_do_with_what_the_source_has);
  tcase_add_test(tcase, pool_without_a_limit_does_not_grow);
  tcase_add_loop_test(tcase, limit_is_never_passed, 0, limit_count);
  tcase_add_test(tcase, blocks_do_not_lie_across_chunks);
  tcase_add_test(tcase, growth_does_not_wait_for_the_gpu);
  tcase = add_case(suite, "reuse");
  tcase_add_test(tcase, freed_block_is_not_handed_out_under_running_work);
  tcase_add_test(tcase, malloc_waits_only_where_it_would_fail);
  tcase_add_test(tcase, malloc_that_fails_anyway_has_tried_what_waits);
  tcase_add_test(tcase, pool_with_nothing_waiting_fails_without_waiting);
  tcase_add_test(tcase, growth_is_preferred_to_waiting);
  tcase_add_test(tcase, waiting_bytes_past_the_limit_synchronise);
  tcase_add_test(tcase, waiting_limit_is_half_of_what_is_held);
  tcase_add_test(tcase, immediate_reuse_never_synchronises);
  tcase_add_test(tcase, reuse_of_the_default_pool_by_environment_variable);
  tcase_add_test(tcase, freed_memory_that_waits_joins_its_neighbours_afterwards);
  tcase_add_loop_test(tcase, no_block_lies_where_running_work_may_read, 0, 4);
  tcase_add_test(tcase, error_of_the_gpu_comes_through_malloc);
  tcase_add_test(tcase, error_of_the_gpu_comes_through_free_which_frees);
  tcase_add_loop_test(tcase, sticky_error_ends_no_call_in_a_loop, 0, 2);
  tcase_add_test(tcase, sticky_error_comes_through_creation);
  tcase_add_test(tcase, failed_wait_hands_out_nothing);
}

static void add_the_rest(Suite *suite) {
  TCase *tcase = add_case(suite, "fork");
  tcase_add_test(tcase, forked_child_is_refused_the_gpu);
  tcase_add_test(tcase, forked_child_keeps_host_pools);
  tcase_add_test(tcase, forked_child_keeps_the_default_pool_of_the_host);
  tcase_add_test(tcase, child_of_a_process_that_did_not_use_the_gpu_may);
  tcase = add_case(suite, "variables");
  tcase_add_test(tcase, default_pool_on_the_host_never_calls_the_driver);
  tcase_add_test(tcase, default_pool_on_the_host_is_one_for_all_contexts);
  tcase_add_loop_test(tcase, default_pool_takes_the_source_of_the_environment_variable, 0, 3);
  tcase_add_loop_test(tcase, wrong_environment_variable_is_named, 0, 4);
  tcase = add_case(suite, "information");
  tcase_add_test(tcase, info_counts_what_was_done);
  tcase_add_test(tcase, info_of_the_default_pool_does_not_create_it);
  tcase_add_test(tcase, info_without_room_is_invalid);
  tcase_add_loop_test(tcase, info_writes_no_more_than_its_size, 2, sizeof(MAM_PoolInfo) / sizeof(size_t) + 8);
  tcase_add_test(tcase, report_tiles_every_chunk);
  tcase_add_test(tcase, explain_says_what_was_asked_and_what_is_there);
  tcase_add_test(tcase, explain_differs_when_the_pool_can_serve);
  tcase_add_test(tcase, explain_says_what_waits);
  tcase_add_test(tcase, explain_says_what_the_source_said);
  tcase_add_test(tcase, explain_and_report_without_a_place_are_invalid);
  tcase_add_test(tcase, last_error_is_the_thread_s_own);
}

int main(void) {
  Suite *suite = suite_create("api");
  add_paper_s_five(suite);
  add_lazy_and_contexts(suite);
  add_pools(suite);
  add_the_rest(suite);
  return run_suite(suite);
}
