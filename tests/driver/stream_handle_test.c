/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a stream's handle may come to mean between two calls, over the fake driver, in programs that tell the library
 * nothing of it.  In each test the thread has used the handle so often before that the library serves it quickly.
 */
#include "api_util.h"

static const size_t sizes[] = {1000, 4 * KIB, 64 * KIB, 4 * MIB};
enum { size_count = sizeof sizes / sizeof sizes[0], pairs_used = 50, mode_count = 3, tries = 4 };

static char *block_on(size_t bytes, void *stream) {
  void *pointer = NULL;
  OK(MAM_CudaMallocAsync(&pointer, bytes, stream));
  ck_assert_ptr_nonnull(pointer);
  return pointer;
}

static void run_kernel(void *stream, const void *address, size_t bytes) {
  struct fake_range range = {address, bytes};
  ck_assert(fake_launch(stream, &range, 1));
}

/* Pairs of the same size, and a block that is left. */
static char *use_stream(size_t bytes, void *stream) {
  char *a = block_on(bytes, stream);
  for (int i = 0; i < pairs_used; i++) {
    OK(MAM_CudaFreeAsync(a, stream));
    a = block_on(bytes, stream);
  }
  return a;
}

/* ---- What is asked ----------------------------------------------------------------------------------------------- */

static unsigned calls_of_pairs(const char *name, size_t bytes, void *stream) {
  unsigned before = fake_calls(name);
  OK(MAM_CudaFreeAsync(use_stream(bytes, stream), stream));
  return fake_calls(name) - before;
}

/* Of each of the two calls, whether the stream is captured and which it is; of the allocation, whether its context is
 * current. */
START_TEST(pair_on_a_created_stream_asks_five_times) {
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  unsigned pairs = pairs_used + 1;
  OK(MAM_Create(256 * MIB));
  OK(MAM_CudaFreeAsync(use_stream(sizes[_i], stream), stream));
  ck_assert_uint_eq(calls_of_pairs("cuStreamIsCapturing", sizes[_i], stream), 2 * pairs);
  ck_assert_uint_eq(calls_of_pairs("cuStreamGetId", sizes[_i], stream), 2 * pairs);
  ck_assert_uint_eq(calls_of_pairs("cuCtxGetCurrent", sizes[_i], stream), pairs);
  ck_assert_uint_eq(calls_of_pairs(NULL, sizes[_i], stream), 5 * pairs);
}
END_TEST

START_TEST(pair_on_the_legacy_stream_asks_twice) {
  (void)use_primary(0);
  OK(MAM_Create(256 * MIB));
  OK(MAM_CudaFreeAsync(use_stream(sizes[_i], NULL), NULL));
  ck_assert_uint_eq(calls_of_pairs(NULL, sizes[_i], NULL), 2 * (pairs_used + 1));
}
END_TEST

/* ---- The handle of a stream that is gone ------------------------------------------------------------------------- */

/* The second context is on the same device or on another one, and either can use the other's memory. */
static void use_contexts(void *contexts[2], bool other_device) {
  fake_set_peers();
  fake_set_devices(2);
  contexts[1] = other_device ? fake_primary_retain(1) : fake_context_create(0);
  contexts[0] = use_primary(0);
  for (int i = 0; i < 2 && other_device; i++)
    fake_peer_enable(contexts[i], 1 - i);
}

/* Ends a stream and creates one of the context, which gets its handle. */
static void hand_over(void *stream, void *context) {
  void *current = fake_current();
  fake_stream_destroy(stream);
  fake_make_current(context);
  ck_assert_ptr_eq(fake_stream_create(FAKE_STREAM_NON_BLOCKING), stream);
  fake_make_current(current);
}

/* The kernel of the stream that is gone still uses what was freed on it. */
START_TEST(allocation_on_the_next_stream_of_the_handle_takes_nothing_of_the_last) {
  void *contexts[2];
  size_t bytes = sizes[_i % size_count];
  use_contexts(contexts, _i / size_count == 0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *next = contexts[_i / size_count != 2];
  OK(MAM_Create(256 * MIB));
  char *a = use_stream(bytes, stream);
  run_kernel(stream, a, bytes);
  OK(MAM_CudaFreeAsync(a, stream));
  hand_over(stream, next);
  for (int i = 0; i < tries; i++)
    ck_assert(!fake_in_use(block_on(bytes, stream), bytes, stream));
  ck_assert_uint_eq(fake_waits(), 0);
}
END_TEST

/* Freed on a stream of another context, a block waits for that context's work, too: however much is asked for. */
START_TEST(free_on_the_next_stream_of_the_handle_is_on_that) {
  void *contexts[2], *pointer;
  size_t bytes = sizes[_i % size_count];
  use_contexts(contexts, _i / size_count == 0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *next = contexts[_i / size_count != 2];
  OK(MAM_Create(8 * MIB));
  char *a = use_stream(bytes, stream);
  hand_over(stream, next);
  run_kernel(stream, a, bytes);
  OK(MAM_CudaFreeAsync(a, stream));
  hand_over(stream, contexts[0]);
  while (fake_waits() == 0 && MAM_CudaMallocAsync(&pointer, bytes, stream) == cudaSuccess)
    ck_assert(!fake_in_use(pointer, bytes, FAKE_NO_STREAM));
  ck_assert_uint_eq(fake_waits(), 1);
}
END_TEST

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

/* A pool's blocks are those of the current context, whatever the stream. */
START_TEST(stream_of_another_context_does_not_choose_the_pool) {
  void *contexts[2];
  size_t bytes = sizes[_i / 2];
  use_contexts(contexts, _i % 2 == 0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  for (int i = 2; i-- > 0;) {
    fake_make_current(contexts[i]);
    OK(MAM_Create(64 * MIB));
  }
  OK(MAM_CudaFreeAsync(use_stream(bytes, stream), stream));
  fake_make_current(contexts[1]);
  (void)block_on(bytes, stream);
  ck_assert_uint_eq(info_of(NULL).used_count, 1);
  fake_make_current(contexts[0]);
  ck_assert_uint_eq(info_of(NULL).used_count, 0);
}
END_TEST

/* The pool of the context that is gone has a block yet, which is freed on a stream of the next one. */
START_TEST(context_with_the_handle_of_one_that_is_gone_has_its_own_pool) {
  void *const others[] = {NULL, FAKE_STREAM_PER_THREAD};
  (void)fake_primary_retain(0);
  void *context = use_new_context(0), *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_Create(64 * MIB));
  char *left[] = {use_stream(MIB, stream), use_stream(MIB, stream), use_stream(MIB, stream)};
  fake_stream_destroy(stream);
  fake_context_destroy(context);
  ck_assert_ptr_eq(use_new_context(0), context);
  ck_assert_ptr_eq(fake_stream_create(FAKE_STREAM_NON_BLOCKING), stream);
  if (_i > 0)
    stream = others[_i - 1];
  for (int i = 0; i < 3; i++) {
    (void)MAM_CudaFreeAsync(left[i], stream);
    ck_assert(fake_holds(block_on(MIB, stream), MIB));
  }
  assert_driver_content();
}
END_TEST

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

START_TEST(free_is_the_first_call_in_a_capture) {
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *pointer = NULL;
  OK(MAM_Create(64 * MIB));
  char *a = use_stream(4 * MIB, stream);
  ck_assert(fake_stream_capture_begin(stream, _i));
  OK(MAM_CudaFreeAsync(a, stream));
  (void)MAM_CudaMalloc(&pointer, 64 * MIB); /* this would have to fence, and to wait */
  ck_assert(fake_stream_capture_end(stream));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
  ck_assert_ptr_null(pointer);
}
END_TEST

/* The graph may run before what the stream had to do earlier. */
START_TEST(allocation_is_the_first_call_in_a_capture) {
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  size_t bytes = sizes[_i / mode_count];
  OK(MAM_Create(256 * MIB));
  char *a = use_stream(bytes, stream);
  run_kernel(stream, a, bytes);
  OK(MAM_CudaFreeAsync(a, stream));
  ck_assert(fake_stream_capture_begin(stream, _i % mode_count));
  for (int i = 0; i < tries; i++)
    ck_assert(!fake_in_use(block_on(bytes, stream), bytes, FAKE_NO_STREAM));
  ck_assert(fake_stream_capture_end(stream));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* ---- Without a driver -------------------------------------------------------------------------------------------- */

/* There a handle is any number. */
START_TEST(pool_of_host_memory_is_not_the_default_one) {
  void *stream = (void *)(uintptr_t)0x1000, *pointer = NULL;
  ck_assert_int_eq(setenv("MAM_SOURCE", "host", 1), 0);
  MAM_PoolOptions options = options_with(64 * MIB);
  options.source = MAM_SOURCE_HOST;
  MAM_Pool pool = pool_with(options);
  (void)use_stream(sizes[_i], stream);
  for (int i = 0; i < pairs_used; i++) {
    OK(MAM_PoolMallocAsync(pool, &pointer, sizes[_i], stream));
    OK(MAM_CudaFreeAsync(pointer, stream));
  }
  (void)block_on(sizes[_i], stream);
  ck_assert_uint_eq(info_of(pool).used_count, 0);
  ck_assert_uint_eq(info_of(NULL).used_count, 2);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("handles of streams");
  TCase *asked = add_case(suite, "asked"), *handles = add_case(suite, "handles");
  TCase *contexts = add_case(suite, "contexts"), *captures = add_case(suite, "captures");
  tcase_add_loop_test(asked, pair_on_a_created_stream_asks_five_times, 0, size_count);
  tcase_add_loop_test(asked, pair_on_the_legacy_stream_asks_twice, 0, size_count);
  tcase_add_loop_test(handles, allocation_on_the_next_stream_of_the_handle_takes_nothing_of_the_last, 0,
                      3 * size_count);
  tcase_add_loop_test(handles, free_on_the_next_stream_of_the_handle_is_on_that, 0, 3 * size_count);
  tcase_add_loop_test(contexts, stream_of_another_context_does_not_choose_the_pool, 0, 2 * size_count);
  tcase_add_loop_test(contexts, context_with_the_handle_of_one_that_is_gone_has_its_own_pool, 0, 3);
  tcase_add_loop_test(captures, free_is_the_first_call_in_a_capture, 0, mode_count);
  tcase_add_loop_test(captures, allocation_is_the_first_call_in_a_capture, 0, size_count * mode_count);
  tcase_add_loop_test(contexts, pool_of_host_memory_is_not_the_default_one, 0, size_count);
  return run_suite(suite);
}
