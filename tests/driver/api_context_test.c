/* SPDX-License-Identifier: BSD-2-Clause */
/* What mam.h promises about several contexts, devices and processes, and about their end. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api_util.h"

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
  ck_assert_uint_eq(fake_calls("cuMemAddressReserve"), 2);
  OK(MAM_CudaFree(a));
  ck_assert_uint_eq(fake_calls("cuMemAddressFree"), 1);
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

/* As above, but the new memory is larger than the old one, and contains it. */
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

/* A program has to keep a context alive longer than its pools.  The answer is not promised, but the call must do no
 * harm. */
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

/* Another chunk may be at the same address by now.  The pool that lost its chunk must not free that one. */
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

/* The pool notices the loss where it asks the driver: here by a wait. */
START_TEST(pool_of_a_destroyed_context_says_so) {
  void *pointer = &pointer;
  use_driver_without_fences();
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
  char *c = block(1000); /* of a lazy environment: the created one went with its context */
  ck_assert_ptr_eq(fake_current(), primary);
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(b));
  ck_assert(fake_holds(c, 1000));
  ck_assert_uint_gt(fake_reserved_bytes(), 0);
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

/* Mappings belong to the device and stay when a context is reset.  The library gives them back like any others. */
START_TEST(mapped_memory_is_given_back_after_a_reset) {
  use_primary(0);
  if (_i == 0)
    OK(MAM_Create_auto());
  (void)block(40 * MIB);
  fake_primary_reset(0);
  ck_assert_uint_gt(fake_live_bytes(), 0);
  use_primary(0);
  char *b = block(1000); /* of a new environment */
  ck_assert_uint_lt(fake_live_bytes(), 40 * MIB);
  ck_assert_uint_eq(fake_calls("cuMemAddressFree"), 1);
  ck_assert_uint_eq(fake_calls("cuMemAddressReserve"), 2);
  OK(MAM_CudaFree(b));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* With driver 580 references to a primary context stay when it is reset, so the library still releases each. */
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

/* ---- Which context is meant, by the quick question -------------------------------------------------------------- */

enum { sizes_used = 3, pairs_used = 100 };

/* Pairs that the calling thread's front serves, small and large.  The blocks lie in the memory that the driver gave. */
static void use_quick_pairs(void) {
  static const size_t sizes[sizes_used] = {100, 5000, 3 * MIB};
  char *blocks[sizes_used];
  for (int pair = 0; pair < pairs_used; pair++) {
    for (int i = 0; i < sizes_used; i++) {
      blocks[i] = block(sizes[i]);
      ck_assert_msg(fake_holds(blocks[i], sizes[i]), "pair %d: %zu bytes at %p are not the driver's", pair, sizes[i],
                    (void *)blocks[i]);
    }
    for (int i = 0; i < sizes_used; i++)
      OK(MAM_CudaFree(blocks[i]));
  }
}

/* Only documented calls: the fake driver counts the look-up of any other as a violation. */
START_TEST(pair_asks_the_driver_for_an_id_once) {
  use_primary(0);
  OK(MAM_Create_auto());
  use_quick_pairs();
  char *pointer = block(100);
  unsigned ids = fake_calls("cuCtxGetId"), all = fake_calls(NULL);
  for (int i = 0; i < pairs_used; i++) {
    OK(MAM_CudaFree(pointer));
    pointer = block(100);
  }
  ids = fake_calls("cuCtxGetId") - ids;
  all = fake_calls(NULL) - all;
  ck_assert_uint_ge(ids, pairs_used);
  ck_assert_uint_lt(all, pairs_used + pairs_used / 5); /* beside the questions, refills and fences */
  OK(MAM_CudaFree(pointer));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(driver_without_ids_is_asked_for_the_handle_once) {
  fake_hide("cuCtxGetId");
  use_primary(0);
  OK(MAM_Create_auto());
  use_quick_pairs();
  char *pointer = block(100);
  unsigned all = fake_calls(NULL);
  for (int i = 0; i < pairs_used; i++) {
    OK(MAM_CudaFree(pointer));
    pointer = block(100);
  }
  ck_assert_uint_lt(fake_calls(NULL) - all, pairs_used + pairs_used / 5);
  OK(MAM_CudaFree(pointer));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

static void *reset_primary(void *unused) {
  (void)unused;
  fake_primary_reset(0);
  return NULL;
}

/* The handle is the same before and after. */
START_TEST(reset_in_another_thread_is_noticed_at_once) {
  pthread_t thread;
  void *primary = use_primary(0);
  for (int life = 0; life < 3; life++) {
    OK(MAM_Create(16 * MIB));
    use_quick_pairs();
    ck_assert_int_eq(pthread_create(&thread, NULL, reset_primary, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_uint_eq(fake_live_blocks(), 0);
    use_quick_pairs(); /* of a lazy environment */
    OK(MAM_Destroy());
    ck_assert_ptr_eq(fake_current(), primary);
  }
  assert_nothing_held();
}
END_TEST

START_TEST(handle_that_comes_back_is_another_context) {
  fake_primary_retain(0);
  void *handle = use_new_context(0);
  for (int life = 0; life < 3; life++) {
    OK(MAM_Create(16 * MIB));
    use_quick_pairs();
    fake_context_destroy(handle);
    ck_assert_ptr_eq(use_new_context(0), handle);
    ck_assert_int_eq(MAM_PoolGetInfo(NULL, &(MAM_PoolInfo){.struct_size = sizeof(MAM_PoolInfo)}),
                     cudaErrorInvalidResourceHandle); /* it has none */
    use_quick_pairs();
    OK(MAM_Destroy());
  }
  assert_nothing_held();
}
END_TEST

/* In turns, so that each question is about another context than the one before. */
START_TEST(contexts_in_turns_keep_their_environments) {
  void *contexts[2] = {use_primary(0), fake_context_create(0)};
  char *blocks[2];
  for (int i = 0; i < 2; i++) {
    fake_make_current(contexts[i]);
    OK(MAM_Create(16 * MIB));
    use_quick_pairs();
  }
  for (int turn = 0; turn < pairs_used; turn++) {
    for (int i = 0; i < 2; i++) {
      fake_make_current(contexts[i]);
      blocks[i] = block(1000);
      ck_assert_uint_eq(info_of(NULL).used_count, 1);
    }
    OK(MAM_CudaFree(blocks[0]));
    OK(MAM_CudaFree(blocks[1]));
  }
  for (int i = 0; i < 2; i++) {
    fake_make_current(contexts[i]);
    OK(MAM_Destroy());
  }
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

/* The thread has the contexts, their order and the capture mode that it had before. */
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
  OK(MAM_PoolMalloc(pool, &a, 4 * MIB)); /* waits for the GPU */
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
  use_driver_without_fences();
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

START_TEST(failing_fences_and_mappings_do_not_change_the_thread) {
  static const char *const functions[] = {"cuMemAddressReserve", "cuCtxGetDevice", "cuMemCreate",      "cuMemMap",
                                          "cuMemSetAccess",      "cuMemUnmap",     "cuMemAddressFree", "cuEventCreate",
                                          "cuCtxRecordEvent",    "cuEventQuery"};
  void *pointer = NULL, *other = fake_context_create(0);
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 4 * MIB;
  options.context = other;
  void *current = use_primary(0);
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    MAM_Pool pool = NULL;
    fake_fail(functions[i], 1, 999);
    if (MAM_PoolCreate(&pool, &options) == cudaSuccess) {
      for (int round = 0; round < 2; round++)
        if (MAM_PoolMalloc(pool, &pointer, 4 * MIB) == cudaSuccess)
          OK(MAM_CudaFree(pointer));
      (void)MAM_PoolDestroy(pool);
    }
    ck_assert_msg(fake_failures() == i + 1, "%s was not called", functions[i]);
    assert_thread_is(current, 1);
  }
  assert_driver_content();
}
END_TEST

/* Before CUDA 12.0 contexts have no ids. */
START_TEST(older_driver_does_too) {
  use_greedy_chunks();
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

static int asked_for_memory(MAM_Pool pool, size_t size, unsigned attempt, void *data) {
  (void)pool, (void)size, (void)attempt;
  ++*(unsigned *)data;
  return 0;
}

/* Since B freed a block of A on its stream, A's fences cover the work of B.  A wait would end B's capture. */
START_TEST(allocation_beside_a_capture_of_another_context_is_refused_without_a_wait) {
  void *a = use_primary(0), *b = fake_context_create(0), *pointer = NULL;
  unsigned asked = 0;
  OK(MAM_SetOutOfMemoryCallback(asked_for_memory, &asked));
  OK(MAM_Create(64 * MIB));
  char *large = block(60 * MIB), *small = block(MIB);
  fake_make_current(b);
  void *stream = fake_stream_create(0);
  ck_assert(fake_launch(stream, &(struct fake_range){small, MIB}, 1));
  OK(MAM_CudaFreeAsync(small, stream));
  OK(MAM_CaptureBegin());
  fake_make_current(a);
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &(struct fake_range){large, 60 * MIB}, 1));
  OK(MAM_CudaFree(large));
  unsigned waits = fake_waits();
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&pointer, 50 * MIB));
  ck_assert_uint_eq(fake_waits(), waits);
  ck_assert_uint_eq(asked, 1);
  ck_assert_uint_eq(fake_violations(), 0);
}
END_TEST

/* The end of the bracket ends the capture, too.  After that the stream may be destroyed, so the library asks nothing
 * about it. */
START_TEST(stream_captured_in_brackets_of_another_context_is_not_asked_for) {
  void *a = use_primary(0), *b = fake_context_create(0);
  OK(MAM_Create(64 * MIB));
  char *pointer = block(MIB);
  fake_make_current(b);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_CaptureBegin());
  fake_stream_capture_begin(stream, 2);
  OK(MAM_CudaFreeAsync(pointer, stream));
  ck_assert(fake_stream_capture_end(stream));
  OK(MAM_CaptureEnd());
  fake_stream_destroy(stream);
  fake_make_current(a);
  for (int i = 0; i < 10; i++) {
    fake_submit(a);
    OK(MAM_CudaFree(block(40 * MIB)));
  }
  ck_assert_uint_eq(fake_violations(), 0);
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

/* No context is current in the child, and the driver does not work there. */
static bool child_has_host_memory(void *argument) {
  static const uintptr_t streams[] = {0, 1, 2, 0x99};
  MAM_Pool host = *(MAM_Pool *)argument;
  void *pointer;
  bool good = true;
  for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
    cudaStream_t stream = (cudaStream_t)streams[i];
    good = good && MAM_PoolMallocAsync(host, &pointer, 100, stream) == cudaSuccess && pointer != NULL;
    good = good && MAM_CudaFreeAsync(pointer, stream) == cudaSuccess;
  }
  good = good && MAM_PoolMalloc(host, &pointer, 100) == cudaSuccess;
  return good && MAM_CudaFreeReuse(pointer, MAM_REUSE_STREAM) == cudaSuccess;
}

START_TEST(forked_child_is_served_host_memory_on_any_stream) {
  use_primary(0);
  MAM_PoolOptions options = options_with(4 * MIB);
  options.source = MAM_SOURCE_HOST;
  MAM_Pool host = pool_with(options);
  (void)block(1000);
  in_child(child_has_host_memory, &host);
}
END_TEST

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

int main(void) {
  Suite *suite = suite_create("contexts");
  TCase *tcase = add_case(suite, "contexts");
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
  tcase_add_loop_test(tcase, mapped_memory_is_given_back_after_a_reset, 0, 2);
  tcase_add_test(tcase, reset_leaves_references_balanced);
  tcase_add_test(tcase, pair_asks_the_driver_for_an_id_once);
  tcase_add_test(tcase, driver_without_ids_is_asked_for_the_handle_once);
  tcase_add_test(tcase, reset_in_another_thread_is_noticed_at_once);
  tcase_add_test(tcase, handle_that_comes_back_is_another_context);
  tcase_add_test(tcase, contexts_in_turns_keep_their_environments);
  tcase_add_test(tcase, pool_on_another_device_leaves_the_current_context);
  tcase_add_test(tcase, no_call_changes_the_thread);
  tcase_add_test(tcase, failing_calls_do_not_change_the_thread);
  tcase_add_test(tcase, failing_fences_and_mappings_do_not_change_the_thread);
  tcase_add_test(tcase, older_driver_does_too);
  tcase_add_test(tcase, chunk_is_taken_while_another_thread_captures);
  tcase_add_test(tcase, allocation_beside_a_capture_of_another_context_is_refused_without_a_wait);
  tcase_add_test(tcase, stream_captured_in_brackets_of_another_context_is_not_asked_for);
  tcase = add_case(suite, "fork");
  tcase_add_test(tcase, forked_child_is_refused_the_gpu);
  tcase_add_test(tcase, forked_child_is_served_host_memory_on_any_stream);
  tcase_add_test(tcase, forked_child_keeps_host_pools);
  tcase_add_test(tcase, forked_child_keeps_the_default_pool_of_the_host);
  tcase_add_test(tcase, child_of_a_process_that_did_not_use_the_gpu_may);
  return run_suite(suite);
}
