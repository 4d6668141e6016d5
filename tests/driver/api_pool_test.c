/* SPDX-License-Identifier: BSD-2-Clause */
/* What mam.h promises about pools as objects, the reuse of their memory, and what a program can see in them. */
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "api_util.h"

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
static void spoil_source(MAM_PoolOptions *options) { options->source = (MAM_Source)5; }
static void spoil_source_below(MAM_PoolOptions *options) { options->source = (MAM_Source)-1; }
static void spoil_reuse(MAM_PoolOptions *options) { options->reuse = (MAM_Reuse)3; }
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
  options.source = MAM_SOURCE_HOST; /* has no device */
  ck_assert_int_eq(MAM_PoolCreate(&pool, &options), cudaSuccess);
  ck_assert_int_eq(MAM_PoolDestroy(pool), cudaSuccess);
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
  assert_error_says("MAM_Destroy");
  ck_assert_uint_eq(fake_live_bytes(), 8 * MIB);
  OK(MAM_CudaFree(a));
  OK(MAM_Destroy());
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolDestroy(pool));
}
END_TEST

START_TEST(default_pool_is_created_when_asked_for) {
  MAM_Pool pool = NULL;
  OK(MAM_PoolDefault(&pool));
  ck_assert_uint_eq(fake_calls("cuMemAddressReserve"), 1);
  char *a = block_of(pool, 1000);
  OK(MAM_CudaFree(a)); /* the last block of a lazy environment */
  assert_nothing_held();
}
END_TEST

static const char *const give_functions[] = {"cuMemFree", "cuMemFreeHost", "cuMemFree"};

START_TEST(source_uses_its_own_calls) {
  MAM_PoolOptions options = options_with(4 * MIB);
  options.source = (MAM_Source)_i;
  MAM_Pool pool = pool_with(options);
  for (int i = 0; i < 3; i++)
    ck_assert_uint_eq(fake_calls(take_function(i)), i == _i);
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

START_TEST(pool_is_filled_to_its_limit_with_any_alignment) {
  MAM_PoolOptions options = options_with(2 * MIB);
  options.limit_bytes = 8 * MIB;
  options.alignment = alignments[_i];
  MAM_Pool pool = pool_with(options);
  (void)block_of(pool, 2 * MIB);
  (void)block_of(pool, 6 * MIB);
  ck_assert_uint_eq(info_of(pool).reserved_bytes, 8 * MIB);
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

/* How the other pool holds its memory, and the new one. */
static const struct {
  MAM_Source other, source;
} given_back[] = {{MAM_SOURCE_VMM, MAM_SOURCE_DEVICE},
                  {MAM_SOURCE_VMM, MAM_SOURCE_VMM},
                  {MAM_SOURCE_DEVICE, MAM_SOURCE_DEVICE},
                  {MAM_SOURCE_DEVICE, MAM_SOURCE_VMM}};
enum { given_back_count = sizeof given_back / sizeof given_back[0] };

START_TEST(new_pool_gets_what_another_one_has_free) {
  MAM_PoolOptions options = options_with(2 * MIB);
  options.source = given_back[_i].other;
  options.limit_bytes = 900 * MIB;
  fake_set_capacity(GIB);
  MAM_Pool other = pool_with(options);
  char *block = block_of(other, 800 * MIB);
  (void)block_of(other, MIB); /* a pool of chunks keeps the last one */
  OK(MAM_CudaFree(block));
  options = options_with(700 * MIB);
  options.source = given_back[_i].source;
  MAM_Pool pool = pool_with(options);
  (void)block_of(pool, 700 * MIB);
  assert_adds_up(other);
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
  ck_assert_uint_eq((size_t)labs(b - a), 4 * MIB); /* the fake driver gives chunks side by side */
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

/* A pool of 8 MiB in which no free waits for the GPU because of the waiting limit. */
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

START_TEST(waiting_bytes_past_the_limit_synchronise_without_fences) {
  MAM_PoolOptions options = options_with(8 * MIB);
  use_driver_without_fences();
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

static void *brackets_captures(void *ended) {
  while (!atomic_load((atomic_bool *)ended)) {
    OK(MAM_CaptureBegin());
    OK(MAM_CaptureEnd());
  }
  return NULL;
}

/* The capture may begin after a free or a trim has looked whether there is one.  An allocation may be refused: all
 * waits, and a capture forbids the wait. */
START_TEST(a_capture_that_begins_meanwhile_fails_no_free_and_no_trim) {
  MAM_PoolOptions options = options_with(8 * MIB);
  atomic_bool ended = false;
  pthread_t thread;
  use_driver_without_fences();
  options.context = use_primary(0);
  options.waiting_limit_bytes = 1;
  MAM_Pool pool = pool_with(options);
  ck_assert_int_eq(pthread_create(&thread, NULL, brackets_captures, &ended), 0);
  for (int i = 0; i < 3000; i++) {
    void *block = NULL;
    fake_submit(options.context);
    if (MAM_PoolMalloc(pool, &block, 100000) == cudaSuccess)
      OK(MAM_CudaFree(block));
    OK(MAM_PoolTrim(pool, 0));
  }
  atomic_store(&ended, true);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_uint_eq(info_of(pool).used_bytes, 0);
}
END_TEST

START_TEST(waiting_limit_without_fences_is_half_of_what_is_held) {
  use_driver_without_fences();
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

/* With fences a free does not wait, however much memory does. */
START_TEST(no_free_synchronises_with_fences) {
  MAM_PoolOptions options = options_with(8 * MIB);
  options.context = use_primary(0);
  options.waiting_limit_bytes = 1;
  MAM_Pool pool = pool_with(options);
  char *blocks[8];
  for (int i = 0; i < 8; i++)
    blocks[i] = block_of(pool, MIB);
  fake_submit(options.context);
  for (int i = 0; i < 8; i++)
    OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  ck_assert_uint_eq(fake_waits(), 0);
  ck_assert(fake_pending(options.context));
  ck_assert_uint_eq(info_of(pool).used_bytes, 0);
  ck_assert_uint_eq(info_of(pool).synchronize_count, 0);
  assert_adds_up(pool);
}
END_TEST

/* Freed memory comes back by itself when the GPU is done with it.  The loop allocates many times the pool's size. */
START_TEST(no_malloc_with_memory_left_synchronises_with_fences) {
  static const size_t sizes[] = {1000, 3 * KIB, 100 * KIB, MIB, 3 * MIB};
  void *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  for (int i = 0; i < 400; i++) {
    size_t bytes = sizes[i % (sizeof sizes / sizeof sizes[0])];
    char *a = block_of(pool, bytes);
    const struct fake_range range = {a, bytes};
    ck_assert(!fake_in_use(a, bytes, FAKE_NO_STREAM));
    ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
    OK(MAM_CudaFree(a));
    fake_finish(context);
  }
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  ck_assert_uint_gt(info_of(pool).fence_count, 0);
  assert_adds_up(pool);
}
END_TEST

/* A growth is one mapping.  Memory that is freed while the GPU lags behind does not serve again, so the pool grows. */
START_TEST(growth_takes_one_mapping) {
  MAM_PoolOptions options = options_with(0);
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 512 * MIB;
  MAM_Pool pool = pool_with(options);
  char *idle = block_of(pool, 32 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemMap"), 1);
  fake_submit(options.context);
  OK(MAM_CudaFree(idle));
  (void)block_of(pool, 32 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemMap"), 2);
  (void)block_of(pool, 128 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemMap"), 3);
  ck_assert(fake_pending(options.context));
  fake_finish(options.context);
  ck_assert_ptr_eq(block_of(pool, 32 * MIB), idle);
  ck_assert_uint_eq(fake_calls("cuMemMap"), 3);
  assert_adds_up(pool);
}
END_TEST

/* A pool that grows during GPU work takes back what threads keep and the GPU is done with.  It leaves the rest to the
 * threads, because it could not use that. */
START_TEST(growth_leaves_threads_what_the_gpu_still_uses) {
  MAM_PoolOptions options = options_with(0);
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 512 * MIB;
  MAM_Pool pool = pool_with(options);
  void *early = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *late = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  const struct fake_range done = {block_of(pool, 4 * MIB), 4 * MIB}, used = {block_of(pool, 6 * MIB), 6 * MIB};
  ck_assert(fake_launch(early, &done, 1));
  OK(MAM_CudaFree((void *)done.address));
  (void)block_of(pool, 64 * MIB); /* asks for a fence that does not pass yet */
  ck_assert_uint_eq(info_of(pool).cached_bytes, 4 * MIB);
  ck_assert(fake_launch(late, &used, 1));
  OK(MAM_CudaFree((void *)used.address));
  fake_finish_stream(early);
  (void)block_of(pool, 64 * MIB);
  ck_assert_uint_eq(info_of(pool).cached_bytes, 6 * MIB);
  ck_assert_ptr_eq(block_of(pool, 4 * MIB), done.address);
  fake_finish(options.context);
  ck_assert_ptr_eq(block_of(pool, 6 * MIB), used.address);
  assert_adds_up(pool);
}
END_TEST

/* A pool that maps memory as it needs it. */
static MAM_Pool mapped_pool(size_t limit_bytes) {
  MAM_PoolOptions options = options_with(0);
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = limit_bytes;
  return pool_with(options);
}

/* Allocates a block of each size, and frees them in the same order. */
static void round_of(MAM_Pool pool, const size_t *sizes_kib, size_t count) {
  char *blocks[64];
  ck_assert_uint_le(count, sizeof blocks / sizeof blocks[0]);
  for (size_t i = 0; i < count; i++)
    blocks[i] = block_of(pool, sizes_kib[i] * KIB);
  for (size_t i = 0; i < count; i++)
    OK(MAM_CudaFree(blocks[i]));
}

/* A thread keeps some of these apart, each by itself, and has a place for the others in which blocks of other sizes lie
 * too.  The pool has grown enough after the first round. */
START_TEST(a_loop_over_ten_sizes_is_served_by_what_it_freed) {
  enum { SIZES = 10, ROUNDS = 50 };
  static const size_t sizes_kib[SIZES] = {8847, 7107, 8776, 6072, 12902, 1710, 2908, 1976, 1352, 5171};
  MAM_Pool pool = mapped_pool(16 * GIB);
  MAM_PoolInfo before = {0};
  for (int round = 0; round < 2 * ROUNDS; round++) {
    if (round == ROUNDS)
      before = info_of(pool);
    round_of(pool, sizes_kib, SIZES);
  }
  MAM_PoolInfo after = info_of(pool);
  ck_assert_uint_eq(after.size_hit_count - before.size_hit_count, SIZES * ROUNDS);
  ck_assert_uint_le(after.fence_count - before.fence_count, 2 * ROUNDS);
  assert_adds_up(pool);
}
END_TEST

/* One block is live at a time.  A pool that held no more than the largest would have to bring it back for each other
 * size.  _i: it maps memory; or it takes chunks, which are as large as the largest block, or smaller. */
START_TEST(temporaries_of_several_sizes_are_served_by_what_was_freed) {
  enum { SIZES = 5, ROUNDS = 100 };
  static const size_t sizes_kib[SIZES] = {8847, 1710, 12902, 5171, 2908}, chunk_mib[] = {0, 14, 4};
  MAM_PoolOptions options = options_with(chunk_mib[_i] * MIB);
  options.context = use_primary(0);
  options.limit_bytes = 16 * GIB;
  MAM_Pool pool = _i == 0 ? mapped_pool(16 * GIB) : pool_with(options);
  MAM_PoolInfo before = {0};
  for (int round = 0; round < 2 * ROUNDS; round++) {
    if (round == ROUNDS)
      before = info_of(pool);
    for (size_t i = 0; i < SIZES; i++)
      OK(MAM_CudaFree(block_of(pool, sizes_kib[i] * KIB)));
  }
  MAM_PoolInfo after = info_of(pool);
  ck_assert_uint_ge(after.size_hit_count - before.size_hit_count, SIZES * ROUNDS / 20 * 19);
  ck_assert_uint_le(after.fence_count - before.fence_count, SIZES * ROUNDS);
  ck_assert_uint_le(after.reserved_bytes, 128 * MIB);
  assert_adds_up(pool);
}
END_TEST

/* Sizes that never come again: what the pool takes beyond its need is a 64th of its limit, for whatever it is good. */
START_TEST(a_pool_takes_little_for_speed_alone) {
  enum { LIVE = 8, CALLS = 20000 };
  char *blocks[LIVE] = {NULL};
  MAM_Pool pool = mapped_pool(2 * GIB);
  unsigned seed = 1;
  for (int call = 0; call < CALLS; call++) {
    char **block = &blocks[call % LIVE];
    seed = seed * 1664525 + 1013904223;
    if (*block != NULL)
      OK(MAM_CudaFree(*block));
    *block = block_of(pool, (64 + (seed >> 12) % 4096) * KIB);
  }
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_le(info.peak_used_bytes, LIVE * 4160 * KIB);
  ck_assert_uint_le(info.peak_reserved_bytes, info.peak_used_bytes + info.peak_used_bytes / 4 + 2 * GIB / 64);
  assert_adds_up(pool);
}
END_TEST

/* One block is live, at most a 32nd of a pool that cannot grow.  What the thread keeps of other sizes comes to more
 * than half of it.  _i: nothing came before; most of the pool was in one block; or more than the pool was asked for. */
START_TEST(what_a_thread_keeps_does_not_make_memory_short) {
  enum { SIZES = 32, CALLS = 8000 };
  MAM_PoolOptions options = options_with(GIB);
  options.context = use_primary(0);
  MAM_Pool pool = pool_with(options);
  MAM_PoolInfo before = {0};
  void *block = NULL;
  unsigned seed = 1;
  if (_i == 1)
    OK(MAM_CudaFree(block_of(pool, GIB / 4 * 3)));
  if (_i == 2)
    FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &block, 2 * GIB));
  for (int call = 0; call < 2 * CALLS; call++) {
    if (call == CALLS)
      before = info_of(pool);
    seed = seed * 1664525 + 1013904223;
    OK(MAM_CudaFree(block_of(pool, ((seed >> 12) % SIZES + 1) * MIB)));
  }
  MAM_PoolInfo after = info_of(pool);
  ck_assert_uint_ge(after.size_hit_count - before.size_hit_count, CALLS / 2);
  assert_adds_up(pool);
}
END_TEST

/* With one block live, in a pool that has room for all of them. */
START_TEST(temporaries_on_a_stream_are_served_by_what_was_freed_on_it) {
  enum { SIZES = 3, ROUNDS = 100 };
  static const size_t sizes_kib[SIZES] = {4096, 5461, 6827};
  MAM_PoolOptions options = options_with(GIB);
  options.context = use_primary(0);
  MAM_Pool pool = pool_with(options);
  for (int round = 0; round < ROUNDS; round++)
    for (size_t i = 0; i < SIZES; i++) {
      void *block = NULL;
      OK(MAM_PoolMallocAsync(pool, &block, sizes_kib[i] * KIB, NULL));
      OK(MAM_CudaFreeAsync(block, NULL));
    }
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_ge(info.stream_hit_count, SIZES * ROUNDS * 9 / 10);
  ck_assert_uint_ge(info.cached_bytes, (sizes_kib[0] + sizes_kib[1] + sizes_kib[2]) * KIB); /* the thread keeps all */
  assert_adds_up(pool);
}
END_TEST

/* More sizes than a thread keeps apart; _i: small beside the pool, or a part of it that counts.  The pool has grown
 * enough after some rounds.  Most of what a round allocates it finds where the round before freed all. */
START_TEST(a_loop_over_many_sizes_asks_for_few_fences) {
  enum { SIZES = 40, ROUNDS = 50 };
  static const size_t least_kib[] = {9 * KIB, 64 * KIB};
  fake_set_capacity(8 * GIB);
  MAM_Pool pool = mapped_pool(6 * GIB);
  size_t sizes_kib[SIZES];
  uint64_t before = 0;
  for (size_t i = 0; i < SIZES; i++)
    sizes_kib[i] = least_kib[_i] + i * least_kib[_i] / 64;
  for (int round = 0; round < 2 * ROUNDS; round++) {
    if (round == ROUNDS)
      before = info_of(pool).fence_count;
    round_of(pool, sizes_kib, SIZES);
  }
  ck_assert_uint_le(info_of(pool).fence_count - before, 4 * ROUNDS);
  assert_adds_up(pool);
}
END_TEST

/* There is nothing that a fence could make free. */
START_TEST(a_pool_that_only_grows_asks_for_no_fence) {
  enum { SIZES = 64 };
  char *blocks[SIZES];
  fake_set_capacity(8 * GIB);
  MAM_Pool pool = mapped_pool(6 * GIB);
  for (size_t i = 0; i < SIZES; i++)
    blocks[i] = block_of(pool, (64 - i % 3 * 20) * MIB + i * MIB / 64);
  ck_assert_uint_eq(info_of(pool).fence_count, 0);
  for (size_t i = 0; i < SIZES; i++)
    OK(MAM_CudaFree(blocks[i]));
  assert_adds_up(pool);
}
END_TEST

struct other_thread {
  MAM_Pool pool;
  pthread_barrier_t turn;
};

static void *frees_a_little_and_stays(void *argument) {
  struct other_thread *other = argument;
  char *block = block_of(other->pool, 768 * KIB);
  pthread_barrier_wait(&other->turn); /* the pool is filled */
  pthread_barrier_wait(&other->turn);
  OK(MAM_CudaFree(block));
  pthread_barrier_wait(&other->turn); /* the block is needed */
  pthread_barrier_wait(&other->turn);
  return NULL;
}

/* So little that the thread has not told the others of it. */
START_TEST(a_pool_does_not_grow_beside_what_another_thread_freed) {
  enum { MOST = 2048 };
  static char *blocks[MOST];
  struct other_thread other = {.pool = mapped_pool(2 * GIB)};
  pthread_t thread;
  size_t count = 0;
  ck_assert_int_eq(pthread_barrier_init(&other.turn, NULL, 2), 0);
  blocks[count++] = block_of(other.pool, 768 * KIB);
  ck_assert_int_eq(pthread_create(&thread, NULL, frees_a_little_and_stays, &other), 0);
  pthread_barrier_wait(&other.turn);
  while (count < MOST / 2 || info_of(other.pool).largest_free_bytes >= 768 * KIB)
    blocks[count++] = block_of(other.pool, 768 * KIB);
  uint64_t held_bytes = info_of(other.pool).reserved_bytes;
  pthread_barrier_wait(&other.turn);
  pthread_barrier_wait(&other.turn);
  blocks[count++] = block_of(other.pool, 768 * KIB);
  ck_assert_uint_eq(info_of(other.pool).reserved_bytes, held_bytes);
  pthread_barrier_wait(&other.turn);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  for (size_t i = 0; i < count; i++)
    OK(MAM_CudaFree(blocks[i]));
  assert_adds_up(other.pool);
}
END_TEST

/* A look leaves slabs that are partly used.  Then small blocks fill them, of which the pool hears nothing. */
START_TEST(a_pool_does_not_grow_beside_what_the_thread_freed) {
  enum { SMALL = 1 << 13, LARGE = 10, IN_SLAB = 128 };
  static char *small[SMALL], *large[LARGE];
  MAM_Pool pool = mapped_pool(2 * GIB);
  for (size_t i = 0; i < SMALL; i++)
    small[i] = block_of(pool, 4 * KIB);
  for (size_t i = 0; i < LARGE; i++)
    large[i] = block_of(pool, 2 * MIB);
  for (size_t i = 0; i < SMALL; i++)
    if (i % IN_SLAB != 0)
      OK(MAM_CudaFree(small[i]));
  char *one = block_of(pool, 40 * MIB); /* more than is free: the pool looks, and grows */
  for (size_t i = 0; i < SMALL / 4 * 3; i++)
    if (i % IN_SLAB != 0)
      small[i] = block_of(pool, 4 * KIB);
  while (info_of(pool).largest_free_bytes >= MIB)
    (void)block_of(pool, MIB);
  uint64_t held_bytes = info_of(pool).reserved_bytes;
  for (size_t i = 0; i < LARGE; i++)
    OK(MAM_CudaFree(large[i]));
  char *other = block_of(pool, 16 * MIB);
  ck_assert_uint_eq(info_of(pool).reserved_bytes, held_bytes);
  OK(MAM_CudaFree(other));
  OK(MAM_CudaFree(one));
  assert_adds_up(pool);
}
END_TEST

/* What is left for one call to bring back, when the memory is needed for a large block, is little. */
START_TEST(many_freed_small_blocks_are_free_memory_soon) {
  enum { COUNT = 1 << 15 };
  static char *blocks[COUNT];
  MAM_PoolOptions options = options_with(GIB);
  options.context = use_primary(0);
  MAM_Pool pool = pool_with(options);
  for (size_t i = 0; i < COUNT; i++)
    blocks[i] = block_of(pool, 4 * KIB);
  for (size_t i = 0; i < COUNT; i++)
    OK(MAM_CudaFree(blocks[i * 25 % COUNT])); /* an odd step: each block once */
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_eq(info.used_bytes, 0);
  ck_assert_uint_ge(info.free_bytes, GIB - 32 * MIB);
  ck_assert_uint_le(info.fence_count, COUNT / 1024);
  assert_adds_up(pool);
}
END_TEST

/* A hole at the end of a piece that is partly used cannot be given back, and with a free piece elsewhere the limit has
 * room for a block: if the memory of that piece comes to lie beside the hole. */
START_TEST(a_pool_at_its_limit_moves_memory_beside_a_hole) {
  MAM_PoolOptions options = options_with(32 * MIB);
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 130 * MIB;
  MAM_Pool pool = pool_with(options);
  char *whole = block_of(pool, 96 * MIB), *part = block_of(pool, 8 * MIB);
  ck_assert_uint_eq(info_of(pool).reserved_bytes, 128 * MIB);
  OK(MAM_CudaFree(whole));
  OK(MAM_CudaFree(block_of(pool, 110 * MIB)));
  ck_assert_uint_le(info_of(pool).reserved_bytes, 130 * MIB);
  OK(MAM_CudaFree(part));
  assert_adds_up(pool);
}
END_TEST

enum { limit_seeds = 24, limit_steps = 4000, limit_blocks = 64 };

static unsigned limit_random(unsigned *state, unsigned bound) {
  *state ^= *state << 13, *state ^= *state >> 17, *state ^= *state << 5;
  return *state % bound;
}

/* Blocks come and go in a pool that is too small for them.  Each refusal is tried again after a trim, which gives all
 * free pieces back. */
static void refuse_and_trim(MAM_Pool pool, unsigned state, unsigned *refused, unsigned *mended) {
  void *blocks[limit_blocks] = {NULL};
  for (int i = 0; i < limit_steps; i++) {
    void **block = &blocks[limit_random(&state, limit_blocks)];
    size_t bytes = (1 + (size_t)limit_random(&state, 4 << 20)) << limit_random(&state, 4);
    if (*block != NULL) {
      OK(MAM_CudaFree(*block));
      *block = NULL;
    } else if (MAM_PoolMalloc(pool, block, bytes) != cudaSuccess) {
      ++*refused;
      OK(MAM_PoolTrim(pool, 0));
      *mended += MAM_PoolMalloc(pool, block, bytes) == cudaSuccess;
    }
  }
}

/* One of 120 was mended by a trim when the pool tried one place alone, and one of 900 since it tries all. */
START_TEST(a_trim_hardly_ever_makes_room_that_a_pool_at_its_limit_did_not_find) {
  MAM_PoolOptions options = options_with(0);
  unsigned refused = 0, mended = 0;
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 256 * MIB;
  for (unsigned seed = 0; seed < limit_seeds; seed++) {
    MAM_Pool pool = pool_with(options);
    refuse_and_trim(pool, 2463534242u + seed * 7919, &refused, &mended);
    OK(MAM_PoolDestroy(pool));
  }
  ck_assert_uint_gt(refused, 1000);
  ck_assert_uint_lt(mended, refused / 250);
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

/* By the immediate rule memory is free under a kernel, but it must not be taken from its addresses. */
START_TEST(no_piece_moves_under_a_kernel_by_the_immediate_rule) {
  MAM_PoolOptions options = options_with(0);
  void *pointer = NULL;
  char *row[4];
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  options.reuse = MAM_REUSE_IMMEDIATE;
  options.limit_bytes = 16 * MIB;
  MAM_Pool pool = pool_with(options);
  for (int i = 0; i < 4; i++)
    row[i] = block_of(pool, 4 * MIB);
  const struct fake_range used[] = {{row[0], 4 * MIB}, {row[2], 4 * MIB}};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, used, 2));
  OK(MAM_CudaFree(row[0]));
  OK(MAM_CudaFree(row[2]));
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(pool, &pointer, 8 * MIB));
  ck_assert(fake_pending(options.context));
  ck_assert_uint_eq(fake_calls("cuMemUnmap"), 0);
  fake_finish(options.context);
  OK(MAM_PoolMalloc(pool, &pointer, 8 * MIB));
  ck_assert_uint_eq(fake_calls("cuMemRetainAllocationHandle"), 2);
  ck_assert_uint_eq(fake_faults(), 0);
  ck_assert(fake_holds(row[1], 4 * MIB));
  ck_assert(fake_holds(row[3], 4 * MIB));
  ck_assert(fake_holds(pointer, 8 * MIB));
  assert_adds_up(pool);
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

/* Where a freed block was, and how often the GPU had been seen idle at the free. */
struct ghost {
  uintptr_t address;
  size_t bytes;
  unsigned idle;
};

/* Random traffic while work begins and ends: no block overlaps one that was freed under work that still runs.  The test
 * decides this by the fake driver's clock alone. */
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
        if (fake_waits() != waits) { /* this call waited for the GPU before it chose a block */
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

/* Where only a wait can free memory, the wait reports the error. */
START_TEST(error_of_the_gpu_comes_through_malloc) {
  use_driver_without_fences();
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

/* With fences a later call reports the error, since a free does not ask the driver. */
START_TEST(error_of_the_gpu_does_not_stop_a_free) {
  void *pointer = &pointer, *context = use_primary(0);
  MAM_Pool pool = fenced_pool(context);
  char *a = block_of(pool, 8 * MIB);
  fake_poison(context, 700);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(info_of(pool).used_count, 0);
  ck_assert_uint_eq(info_of(pool).free_call_count, 1);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(a));
  FAILS((cudaError_t)700, MAM_PoolMalloc(pool, &pointer, 8 * MIB));
  assert_error_says("CUDA_ERROR_ILLEGAL_ADDRESS");
}
END_TEST

START_TEST(error_of_the_gpu_comes_through_a_free_that_waits) {
  MAM_PoolOptions options = options_with(8 * MIB);
  use_driver_without_fences();
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

/* After an illegal access the driver answers every question about the current context with that error. */
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
  OK(MAM_CudaFree(block(1000))); /* so that the driver is loaded */
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
  OK(MAM_CudaFree(b)); /* two holes: the block b, and the rest of the chunk */
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
  ck_assert_uint_eq(info.waiting_bytes + info.free_bytes, 8 * MIB);
  ck_assert_uint_eq(info.peak_used_bytes, 1024 + MIB + 512);
  OK(MAM_PoolMalloc(pool, &pointer, 8 * MIB)); /* what threads and slabs keep comes back where it is needed */
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

/* A chunk's segments stand in order of address and cover the chunk without gaps. */
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

/* The text has the number of bytes. */
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

/* What is free lies on both sides of a block, and the limit leaves less than is asked for.  The last size is too much.
 */
START_TEST(explain_says_that_free_memory_gives_way) {
  static const char *const sources[] = {"vmm", "chunks"};
  char *text = NULL;
  void *pointer;
  use_primary(0);
  OK(MAM_CreateWith(0, sources[_i], "600M"));
  char *first = block(150 * MIB), *kept = block(64 * MIB), *last = block(150 * MIB);
  OK(MAM_CudaFree(first));
  OK(MAM_CudaFree(last));
  OK(MAM_Trim(info_of(NULL).reserved_bytes - 1)); /* which collects, and gives one of the two back */
  OK(MAM_PoolExplain(NULL, 400 * MIB, &text));
  ck_assert_msg(strstr(text, "give way") != NULL, "%s", text);
  free(text);
  OK(MAM_CudaFree(block(400 * MIB)));
  OK(MAM_Trim(0));
  OK(MAM_PoolExplain(NULL, 590 * MIB, &text));
  ck_assert_msg(strstr(text, "in use") != NULL, "%s", text);
  free(text);
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, 590 * MIB));
  OK(MAM_CudaFree(kept));
  OK(MAM_Destroy());
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
  static int something;
  return MAM_LastError()[0] == '\0' ? NULL : &something;
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

int main(void) {
  Suite *suite = suite_create("pools");
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
  tcase_add_loop_test(tcase, pool_is_filled_to_its_limit_with_any_alignment, 0,
                      sizeof alignments / sizeof alignments[0]);
  tcase_add_loop_test(tcase, new_pool_gets_what_another_one_has_free, 0, given_back_count);
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
  tcase_add_test(tcase, waiting_bytes_past_the_limit_synchronise_without_fences);
  tcase_add_test(tcase, a_capture_that_begins_meanwhile_fails_no_free_and_no_trim);
  tcase_add_test(tcase, waiting_limit_without_fences_is_half_of_what_is_held);
  tcase_add_test(tcase, no_free_synchronises_with_fences);
  tcase_add_test(tcase, no_malloc_with_memory_left_synchronises_with_fences);
  tcase_add_test(tcase, growth_takes_one_mapping);
  tcase_add_test(tcase, growth_leaves_threads_what_the_gpu_still_uses);
  tcase_add_test(tcase, a_loop_over_ten_sizes_is_served_by_what_it_freed);
  tcase_add_loop_test(tcase, temporaries_of_several_sizes_are_served_by_what_was_freed, 0, 3);
  tcase_add_test(tcase, a_pool_takes_little_for_speed_alone);
  tcase_add_loop_test(tcase, what_a_thread_keeps_does_not_make_memory_short, 0, 3);
  tcase_add_test(tcase, temporaries_on_a_stream_are_served_by_what_was_freed_on_it);
  tcase_add_loop_test(tcase, a_loop_over_many_sizes_asks_for_few_fences, 0, 2);
  tcase_add_test(tcase, a_pool_that_only_grows_asks_for_no_fence);
  tcase_add_test(tcase, a_pool_does_not_grow_beside_what_another_thread_freed);
  tcase_add_test(tcase, a_pool_does_not_grow_beside_what_the_thread_freed);
  tcase_add_test(tcase, many_freed_small_blocks_are_free_memory_soon);
  tcase_add_test(tcase, a_pool_at_its_limit_moves_memory_beside_a_hole);
  tcase_add_test(tcase, a_trim_hardly_ever_makes_room_that_a_pool_at_its_limit_did_not_find);
  tcase_add_test(tcase, immediate_reuse_never_synchronises);
  tcase_add_test(tcase, no_piece_moves_under_a_kernel_by_the_immediate_rule);
  tcase_add_test(tcase, reuse_of_the_default_pool_by_environment_variable);
  tcase_add_test(tcase, freed_memory_that_waits_joins_its_neighbours_afterwards);
  tcase_add_loop_test(tcase, no_block_lies_where_running_work_may_read, 0, 4);
  tcase_add_test(tcase, error_of_the_gpu_comes_through_malloc);
  tcase_add_test(tcase, error_of_the_gpu_comes_through_a_free_that_waits);
  tcase_add_test(tcase, error_of_the_gpu_does_not_stop_a_free);
  tcase_add_loop_test(tcase, sticky_error_ends_no_call_in_a_loop, 0, 2);
  tcase_add_test(tcase, sticky_error_comes_through_creation);
  tcase_add_test(tcase, failed_wait_hands_out_nothing);
  tcase = add_case(suite, "information");
  tcase_add_test(tcase, info_counts_what_was_done);
  tcase_add_test(tcase, info_of_the_default_pool_does_not_create_it);
  tcase_add_test(tcase, info_without_room_is_invalid);
  tcase_add_loop_test(tcase, info_writes_no_more_than_its_size, 2, sizeof(MAM_PoolInfo) / sizeof(size_t) + 8);
  tcase_add_test(tcase, report_tiles_every_chunk);
  tcase_add_test(tcase, explain_says_what_was_asked_and_what_is_there);
  tcase_add_test(tcase, explain_differs_when_the_pool_can_serve);
  tcase_add_loop_test(tcase, explain_says_that_free_memory_gives_way, 0, 2);
  tcase_add_test(tcase, explain_says_what_waits);
  tcase_add_test(tcase, explain_says_what_the_source_said);
  tcase_add_test(tcase, explain_and_report_without_a_place_are_invalid);
  tcase_add_test(tcase, last_error_is_the_thread_s_own);
  return run_suite(suite);
}
