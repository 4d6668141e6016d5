/* SPDX-License-Identifier: BSD-2-Clause */
/* What mam.h promises about the paper's five functions and about lazy environments. */
#include <pthread.h>
#include <stdio.h>

#include "api_util.h"

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

START_TEST(create_with_texts_is_create_with_those_variables) {
  OK(MAM_CreateWith(0, "chunks", "128M"));
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 128 * MIB);
  char *a = block(MIB);
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
  ck_assert_uint_eq(fake_live_bytes(), 64 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_Destroy());
  OK(MAM_CreateWith(8 * MIB, "device", ""));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 8 * MIB);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 8 * MIB);
}
END_TEST

/* Both for this device and for another one. */
START_TEST(create_with_holds_for_later_environments) {
  fake_set_devices(2);
  use_primary(0);
  OK(MAM_CreateWith(0, "chunks", "128M"));
  OK(MAM_Destroy());
  char *a = block(MIB);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 128 * MIB);
  OK(MAM_CudaFree(a));
  use_primary(1);
  OK(MAM_CreateWith(0, NULL, NULL));
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 128 * MIB);
}
END_TEST

START_TEST(refused_create_with_leaves_all_as_it_was) {
  static const char *const wrong[][3] = {{"chunk", NULL, "chunk"},
                                         {NULL, "0", "limit 0"},
                                         {"vmm", "101%", "101%"},
                                         {"vmm", "10 G", "10 G"},
                                         {"1", "1M", "source 1"}};
  OK(MAM_CreateWith(0, "chunks", "128M"));
  char *a = block(1000);
  MAM_PoolInfo before = info_of(NULL);
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    FAILS(cudaErrorInvalidValue, MAM_CreateWith(0, wrong[i][0], wrong[i][1]));
    assert_error_says(wrong[i][2]);
  }
  FAILS(cudaErrorAlreadyAcquired, MAM_CreateWith(0, "device", "64M"));
  FAILS(cudaErrorNotSupported, MAM_CreateWith(0, "host", NULL));
  assert_error_says("MAM_SOURCE=host");
  assert_unchanged(NULL, before);
  OK(MAM_CudaFree(a));
  OK(MAM_Destroy());
  FAILS(cudaErrorMemoryAllocation, MAM_CreateWith(64 * MIB, NULL, "32M"));
  assert_error_says("the limit of MAM_CreateWith does not allow 67108864 bytes: it allows 33554432");
  FAILS(cudaErrorMemoryAllocation, MAM_CreateWith(0, NULL, "1"));
  assert_error_says("the limit of MAM_CreateWith leaves the default pool less than 2 MiB");
  a = block(1000);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 128 * MIB);
}
END_TEST

START_TEST(first_call_settles_whether_the_default_pool_is_on_the_host) {
  OK(MAM_CreateWith(8 * MIB, "host", NULL));
  (void)block(1000);
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 0);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 8 * MIB);
  OK(MAM_Destroy());
  FAILS(cudaErrorNotSupported, MAM_CreateWith(8 * MIB, "device", NULL));
  OK(MAM_CreateWith(16 * MIB, NULL, NULL));
  ck_assert_uint_eq(info_of(NULL).limit_bytes, 16 * MIB);
}
END_TEST

/* Only whether it is on the host is settled then. */
START_TEST(first_call_that_fails_leaves_no_limit) {
  FAILS(cudaErrorMemoryAllocation, MAM_CreateWith(0, "host", "1M"));
  (void)block(3 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 0);
  FAILS(cudaErrorNotSupported, MAM_CreateWith(0, "device", NULL));
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

/* The free memory that the driver reports may lie in pieces. */
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
  OK(MAM_Create(8 * MIB)); /* this thread has no context, so it gets the primary one */
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

/* The runtime leaves the context with the thread, too: the program may have other things in it. */
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

/* The environment ends by itself within some seconds. */
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

/* The library remembers that an environment came back, whatever other contexts and pools do in between. */
START_TEST(environments_of_several_contexts_do_not_thrash) {
  (void)setenv("MAM_LINGER_MS", "60000", 1);
  void *contexts[] = {use_new_context(0), use_new_context(0)};
  for (int i = 0; i < 100; i++) {
    fake_make_current(contexts[i % 2]);
    OK(MAM_CudaFree(block(1000)));
    if (i < 4)
      OK(MAM_PoolDestroy(pool_with(options_with(2 * MIB))));
  }
  /* Two chunks for each context, four for the pools, and some tries for the largest chunk beside another context's. */
  ck_assert_uint_le(fake_calls("cuMemAlloc"), 4 + 4 + 40);
}
END_TEST

START_TEST(failing_end_of_a_lingering_environment_does_not_stand_in_the_way) {
  (void)setenv("MAM_LINGER_MS", "60000", 1);
  for (int i = 0; i < 2; i++)
    OK(MAM_CudaFree(block(1000)));
  fake_fail("cuMemFree", 1, 999);
  OK(MAM_Create(4 * MIB));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 4 * MIB);
}
END_TEST

START_TEST(explicit_environment_takes_the_place_of_a_lingering_one) {
  (void)setenv("MAM_LINGER_MS", "60000", 1);
  for (int i = 0; i < 2; i++)
    OK(MAM_CudaFree(block(1000)));
  ck_assert_uint_eq(fake_live_blocks(), 1);
  char *a = block(1000);
  FAILS(cudaErrorAlreadyAcquired, MAM_Create(4 * MIB)); /* no: the environment has a live block */
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

/* The environment begins and ends as often as possible while several threads use it. */
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

/* ---- Environments of mapped memory -------------------------------------------------------------------------------
 *
 * What MAM_Create_auto and lazy creation make where the driver can.
 */

static void assert_no_chunk_was_taken(void) {
  for (int source = 0; source < 3; source++)
    ck_assert_uint_eq(fake_calls(take_function(source)), 0);
}

START_TEST(auto_maps_nothing_before_the_first_block) {
  OK(MAM_Create_auto());
  ck_assert_uint_gt(fake_reserved_bytes(), 0);
  ck_assert_uint_eq(fake_live_bytes(), 0);
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, 0);
  assert_no_chunk_was_taken();
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(mapped_environment_grows_with_its_blocks) {
  char *blocks[16];
  if (_i == 0)
    OK(MAM_Create_auto());
  for (int i = 0; i < 16; i++) {
    blocks[i] = block(20 * MIB);
    size_t held = info_of(NULL).reserved_bytes;
    ck_assert(fake_holds(blocks[i], 20 * MIB));
    ck_assert_uint_eq(held, fake_live_bytes());
    ck_assert_uint_ge(held, (size_t)(i + 1) * 20 * MIB);
    ck_assert_uint_le(held, (size_t)(i + 1) * 24 * MIB); /* far less than all memory */
    assert_adds_up(NULL);
  }
  assert_no_chunk_was_taken();
  for (int i = 0; i < 16; i++)
    OK(MAM_CudaFree(blocks[i]));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* The last free of a lazy environment unmaps all its memory and gives its addresses back. */
START_TEST(lazy_mapped_environment_goes_with_its_last_block) {
  char *a = block(1000), *b = block(100 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemAddressReserve"), 1);
  OK(MAM_CudaFree(b));
  ck_assert_uint_gt(fake_live_bytes(), 0);
  OK(MAM_CudaFree(a));
  assert_nothing_held();
  ck_assert_uint_eq(fake_calls("cuMemUnmap"), fake_calls("cuMemMap"));
  ck_assert_uint_eq(fake_calls("cuMemRelease"), fake_calls("cuMemCreate"));
  ck_assert_uint_eq(fake_calls("cuMemAddressFree"), 1);
}
END_TEST

/* Nothing is unmapped under a kernel. */
START_TEST(end_of_a_mapped_environment_waits_for_the_gpu) {
  void *context = use_primary(0);
  char *a = block(MIB);
  const struct fake_range range = {a, MIB};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  if (_i == 0)
    OK(MAM_CudaFree(a));
  else
    OK(MAM_Destroy());
  ck_assert(!fake_pending(context));
  assert_nothing_held();
}
END_TEST

START_TEST(mapped_environment_leaves_the_headroom) {
  void *pointer = &pointer;
  if (_i == 0)
    (void)setenv("MAM_HEADROOM", "64M", 1);
  size_t limit = 3 * GIB - (_i == 0 ? 64 * MIB : 256 * MIB);
  fake_set_capacity(3 * GIB);
  OK(MAM_Create_auto());
  ck_assert_uint_eq(info_of(NULL).limit_bytes, limit);
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, limit + 1));
  char *all = block(limit);
  ck_assert(fake_holds(all, limit));
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, 1));
}
END_TEST

/* Where free memory lies in pieces, mapping makes one block of them. */
START_TEST(mapped_environment_does_not_mind_pieces) {
  fake_set_largest(16 * MIB);
  char *a = block(GIB);
  ck_assert(fake_holds(a, GIB));
  OK(MAM_CudaFree(a));
  assert_nothing_held();
}
END_TEST

START_TEST(trim_gives_mapped_memory_back) {
  OK(MAM_Create_auto());
  char *a = block(40 * MIB), *b = block(80 * MIB), *c = block(1000);
  OK(MAM_CudaFree(b));
  ck_assert_uint_ge(fake_live_bytes(), 120 * MIB);
  OK(MAM_Trim(100 * MIB));
  ck_assert_uint_le(fake_live_bytes(), 100 * MIB);
  OK(MAM_Trim(0));
  ck_assert_uint_lt(fake_live_bytes(), 80 * MIB);
  ck_assert(fake_holds(a, 40 * MIB));
  ck_assert(fake_holds(c, 1000));
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, fake_live_bytes());
  assert_adds_up(NULL);
  OK(MAM_CudaFree(a));
  OK(MAM_CudaFree(c));
  OK(MAM_Trim(0));
  ck_assert_uint_eq(fake_live_bytes(), 0);
  b = block(80 * MIB);
  ck_assert(fake_holds(b, 80 * MIB));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(trim_leaves_what_the_gpu_may_use) {
  void *context = use_primary(0);
  OK(MAM_Create_auto());
  char *a = block(40 * MIB);
  const struct fake_range range = {a, 40 * MIB};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  OK(MAM_CudaFree(a));
  OK(MAM_Trim(0));
  ck_assert(fake_pending(context));
  ck_assert(fake_holds(a, 40 * MIB));
  fake_finish(context);
  OK(MAM_Trim(0));
  ck_assert_uint_eq(fake_live_bytes(), 0);
  assert_driver_content();
}
END_TEST

/* Only together are the waiting, the free and the unmapped memory enough. */
START_TEST(mapped_environment_waits_where_it_would_fail) {
  void *context = use_primary(0);
  (void)setenv("MAM_HEADROOM", "0", 1);
  fake_set_capacity(64 * MIB);
  OK(MAM_Create_auto());
  (void)block(30 * MIB);
  char *b = block(24 * MIB);
  const struct fake_range range = {b, 24 * MIB};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  OK(MAM_CudaFree(b));
  ck_assert(fake_pending(context));
  ck_assert(fake_holds(block(32 * MIB), 32 * MIB));
  assert_adds_up(NULL);
  assert_driver_content();
}
END_TEST

START_TEST(trim_without_an_environment_does_nothing) {
  OK(MAM_Trim(0));
  assert_nothing_held();
}
END_TEST

static const char *const mapping_functions[] = {
    "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate",    "cuMemRelease",     "cuMemMap",
    "cuMemUnmap",          "cuMemSetAccess",   "cuCtxGetDevice", "cuDeviceTotalMem", "cuMemRetainAllocationHandle"};
enum { mapping_function_count = sizeof mapping_functions / sizeof mapping_functions[0] };

/* In the last run the driver can map, but the device cannot. */
START_TEST(without_mapping_there_is_the_largest_chunk) {
  if (_i < mapping_function_count)
    fake_hide(mapping_functions[_i]);
  else
    fake_set_maps_nothing();
  char *a = block(1000);
  ck_assert_uint_eq(fake_live_blocks(), 1);
  OK(MAM_CudaFree(a));
  assert_nothing_held();
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
  OK(MAM_Create_auto());
  ck_assert_uint_eq(fake_live_bytes(), 4 * GIB - 256 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemAddressReserve"), 0);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(create_with_a_size_is_one_chunk) {
  OK(MAM_Create(64 * MIB));
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
  ck_assert_uint_eq(fake_calls("cuMemAddressReserve"), 0);
  OK(MAM_CudaFree(block(MIB)));
  OK(MAM_Trim(0)); /* the chunk is the pool */
  ck_assert_uint_eq(fake_live_bytes(), 64 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 1);
}
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
    ck_assert_uint_eq(fake_calls(take_function(i)), i == _i);
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

int main(void) {
  Suite *suite = suite_create("environments");
  TCase *tcase = add_case(suite, "uses");
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
  tcase_add_test(tcase, use_with_explicit_size);
  tcase_add_test(tcase, use_with_automatic_size);
  tcase_add_test(tcase, use_without_creation);
  tcase = add_case(suite, "create");
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
  tcase_add_test(tcase, create_of_no_bytes_is_invalid);
  tcase_add_test(tcase, create_rounds_up_to_the_granularity);
  tcase_add_test(tcase, create_takes_no_more_than_asked_for);
  tcase_add_test(tcase, second_create_leaves_the_first_alone);
  tcase_add_test(tcase, create_beside_a_lazy_environment_is_refused);
  tcase_add_test(tcase, create_with_texts_is_create_with_those_variables);
  tcase_add_test(tcase, create_with_holds_for_later_environments);
  tcase_add_test(tcase, refused_create_with_leaves_all_as_it_was);
  tcase_add_test(tcase, first_call_settles_whether_the_default_pool_is_on_the_host);
  tcase_add_test(tcase, first_call_that_fails_leaves_no_limit);
  tcase_add_test(tcase, create_of_too_much_changes_nothing);
  tcase_add_test(tcase, create_wants_one_piece);
  tcase_add_test(tcase, create_does_not_wait_for_the_gpu);
  tcase_add_test(tcase, without_a_device_there_is_no_device);
  tcase = add_case(suite, "create_auto");
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
  tcase_add_test(tcase, auto_leaves_the_headroom);
  tcase_add_test(tcase, auto_leaves_the_headroom_of_the_environment_variable);
  tcase_add_loop_test(tcase, auto_takes_about_the_largest_piece, 23, 36);
  tcase_add_loop_test(tcase, auto_works_with_little_memory, 0, 5);
  tcase_add_test(tcase, auto_without_memory_fails);
  tcase_add_test(tcase, auto_does_not_wait_for_the_gpu);
  tcase = add_case(suite, "destroy");
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
  tcase_add_test(tcase, destroy_of_nothing_succeeds);
  tcase_add_test(tcase, destroy_ends_live_blocks);
  tcase_add_test(tcase, destroy_ends_a_lazy_environment);
  tcase_add_test(tcase, destroy_waits_for_the_gpu);
  tcase_add_test(tcase, destroy_passes_on_what_the_driver_said);
  tcase_add_test(tcase, references_to_the_context_do_not_pile_up);
  tcase = add_case(suite, "malloc");
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
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
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
  tcase_add_test(tcase, free_of_null_succeeds);
  tcase_add_test(tcase, second_free_is_invalid);
  tcase_add_test(tcase, second_free_of_a_lazy_last_block_is_invalid);
  tcase_add_test(tcase, free_of_what_is_no_block_is_invalid);
  tcase_add_test(tcase, free_before_anything_else_is_invalid);
  tcase_add_test(tcase, any_thread_frees);
  tcase_add_test(tcase, free_does_not_wait_for_the_gpu);
  tcase = add_case(suite, "lazy");
  tcase_add_checked_fixture(tcase, use_greedy_chunks, NULL);
  tcase_add_test(tcase, lazy_environment_lives_as_long_as_a_block);
  tcase_add_test(tcase, lazy_environment_waits_for_the_gpu_when_it_goes);
  tcase_add_test(tcase, lazy_environment_that_comes_back_stays_a_while);
  tcase_add_test(tcase, lazy_environment_can_linger_for_no_time);
  tcase_add_test(tcase, lingering_environment_goes_in_the_end);
  tcase_add_test(tcase, environments_of_several_contexts_do_not_thrash);
  tcase_add_test(tcase, failing_end_of_a_lingering_environment_does_not_stand_in_the_way);
  tcase_add_test(tcase, explicit_environment_takes_the_place_of_a_lingering_one);
  tcase_add_loop_test(tcase, explicit_environment_outlives_its_last_block, 0, 2);
  tcase_add_test(tcase, explicit_environment_may_follow_a_lazy_one);
  tcase_add_loop_test(tcase, lazy_environment_comes_and_goes_under_threads, 0, 2);
  tcase_add_loop_test(tcase, threads_create_one_lazy_environment, 0, 10);
  tcase = add_case(suite, "mapped");
  tcase_add_test(tcase, auto_maps_nothing_before_the_first_block);
  tcase_add_loop_test(tcase, mapped_environment_grows_with_its_blocks, 0, 2);
  tcase_add_test(tcase, lazy_mapped_environment_goes_with_its_last_block);
  tcase_add_loop_test(tcase, end_of_a_mapped_environment_waits_for_the_gpu, 0, 2);
  tcase_add_loop_test(tcase, mapped_environment_leaves_the_headroom, 0, 2);
  tcase_add_test(tcase, mapped_environment_does_not_mind_pieces);
  tcase_add_test(tcase, trim_gives_mapped_memory_back);
  tcase_add_test(tcase, trim_leaves_what_the_gpu_may_use);
  tcase_add_test(tcase, mapped_environment_waits_where_it_would_fail);
  tcase_add_test(tcase, trim_without_an_environment_does_nothing);
  tcase_add_loop_test(tcase, without_mapping_there_is_the_largest_chunk, 0, mapping_function_count + 1);
  tcase_add_test(tcase, create_with_a_size_is_one_chunk);
  /* The same tests as with chunks. */
  tcase_add_test(tcase, auto_without_memory_fails);
  tcase_add_test(tcase, auto_does_not_wait_for_the_gpu);
  tcase_add_test(tcase, refused_lazy_malloc_leaves_no_environment);
  tcase_add_test(tcase, lazy_environment_waits_for_the_gpu_when_it_goes);
  tcase_add_test(tcase, second_free_of_a_lazy_last_block_is_invalid);
  tcase_add_test(tcase, lazy_environment_can_linger_for_no_time);
  tcase_add_test(tcase, explicit_environment_may_follow_a_lazy_one);
  tcase = add_case(suite, "variables");
  tcase_add_test(tcase, default_pool_on_the_host_never_calls_the_driver);
  tcase_add_test(tcase, default_pool_on_the_host_is_one_for_all_contexts);
  tcase_add_loop_test(tcase, default_pool_takes_the_source_of_the_environment_variable, 0, 3);
  tcase_add_loop_test(tcase, wrong_environment_variable_is_named, 0, 4);
  return run_suite(suite);
}
