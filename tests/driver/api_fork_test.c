/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program's own fork handlers call libmam, before the fork and after it, in the parent and in the child.  The driver
 * does not work in the child, so a call on its memory may fail there, but it returns.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver/api_util.h"
#include "mam/heap.h"

static MAM_Pool pool;
static MAM_Heap heap;
static void *kept; /* a block that lives all the time */

static bool pair_of(size_t size) {
  void *pointer = NULL;
  return MAM_CudaMalloc(&pointer, size) == cudaSuccess && pointer != NULL && MAM_CudaFree(pointer) == cudaSuccess;
}

static bool call_small(void) { return pair_of(100); }
static bool call_large(void) { return pair_of(3 * MIB); }
static bool call_huge(void) { return pair_of(100 * MIB); }
static bool call_nothing(void) {
  void *pointer = &pointer;
  return MAM_CudaMalloc(&pointer, 0) == cudaSuccess && pointer == NULL;
}
static bool call_refused(void) {
  void *pointer = NULL;
  return MAM_CudaMalloc(&pointer, (size_t)1 << 50) == cudaErrorMemoryAllocation;
}
static bool call_wrong_free(void) { return MAM_CudaFree((char *)kept + 8) == cudaErrorInvalidValue; }
static bool call_async(void) {
  void *pointer = NULL;
  return MAM_CudaMallocAsync(&pointer, 5000, NULL) == cudaSuccess && MAM_CudaFreeAsync(pointer, NULL) == cudaSuccess;
}
static bool call_tagged(void) {
  void *pointer = NULL;
  return MAM_CudaMallocTagged(&pointer, MIB, &pool) == cudaSuccess &&
         MAM_CudaFreeReuse(pointer, MAM_REUSE_IMMEDIATE) == cudaSuccess;
}
static bool call_of_pool(void) {
  void *pointer = NULL;
  return MAM_PoolMalloc(pool, &pointer, MIB) == cudaSuccess && MAM_CudaFree(pointer) == cudaSuccess;
}
static bool call_pool(void) {
  MAM_PoolOptions options = options_with(2 * MIB);
  MAM_Pool made = NULL;
  options.source = MAM_SOURCE_HOST;
  return MAM_PoolCreate(&made, &options) == cudaSuccess && MAM_PoolDestroy(made) == cudaSuccess;
}
static bool call_environment(void) {
  MAM_Pool found = NULL;
  return MAM_PoolDefault(&found) == cudaSuccess && found != NULL;
}
static bool call_info(void) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  return MAM_PoolGetInfo(pool, &info) == cudaSuccess && MAM_PoolResetPeaks(pool) == cudaSuccess;
}
static bool call_report(void) {
  char *json = NULL, *text = NULL;
  bool good = MAM_PoolReport(pool, &json) == cudaSuccess && MAM_PoolExplain(pool, MIB, &text) == cudaSuccess;
  free(json);
  free(text);
  return good;
}
static bool call_trim(void) { return MAM_Trim(0) == cudaSuccess && MAM_PoolTrim(pool, 0) == cudaSuccess; }
static bool call_capture(void) { return MAM_CaptureBegin() == cudaSuccess && MAM_CaptureEnd() == cudaSuccess; }
static bool call_record(void) {
  char path[64];
  (void)snprintf(path, sizeof path, "/tmp/mam-fork-%ld.rec", (long)getpid());
  bool good = MAM_RecordBegin(path) == cudaSuccess && MAM_Mark("fork") == cudaSuccess && pair_of(100) &&
              MAM_RecordEnd() == cudaSuccess;
  (void)unlink(path);
  return good;
}
static int again(MAM_Pool asked, size_t size, unsigned attempt, void *data) {
  (void)asked, (void)size, (void)attempt, (void)data;
  return 0;
}
static bool call_callback(void) {
  return MAM_SetOutOfMemoryCallback(again, NULL) == cudaSuccess && call_refused() &&
         MAM_SetOutOfMemoryCallback(NULL, NULL) == cudaSuccess;
}
/* A library that was built without CUDA has no heaps. */
static bool heap_create(MAM_Heap *made) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = 8 * MIB;
  cudaError_t error = MAM_HeapCreate(made, pool, &options);
  return error == cudaSuccess || error == cudaErrorNotSupported;
}

static bool call_heap(void) {
  MAM_HeapInfo info = {.struct_size = sizeof info};
  return heap == NULL || MAM_HeapGetInfo(heap, &info) == cudaSuccess;
}
static bool call_new_heap(void) {
  MAM_Heap made = NULL;
  return heap_create(&made) && (made == NULL || MAM_HeapDestroy(made) == cudaSuccess);
}

static bool (*const calls[])(void) = {call_small,       call_large,    call_huge,   call_nothing, call_refused,
                                      call_wrong_free,  call_async,    call_tagged, call_of_pool, call_pool,
                                      call_environment, call_info,     call_report, call_trim,    call_capture,
                                      call_record,      call_callback, call_heap,   call_new_heap};
enum { CALLS = sizeof calls / sizeof *calls };

static bool (*call)(void);
static _Atomic unsigned good_before, good_after;

static void before(void) { atomic_fetch_add(&good_before, call()); }
static void after_in_parent(void) { atomic_fetch_add(&good_after, call()); }
static void after_in_child(void) { (void)call(); }

/* The library registers handlers when it is loaded, and when the driver is initialised.  These come between the two if
 * early, else later. */
static void handle(bool early) {
  if (early)
    ck_assert_int_eq(pthread_atfork(before, after_in_parent, after_in_child), 0);
  (void)use_primary(0);
  fake_back_memory(); /* for heaps */
  OK(MAM_Create_auto());
  kept = block(1000);
  pool = pool_with(options_with(64 * MIB));
  ck_assert(heap_create(&heap));
  if (!early)
    ck_assert_int_eq(pthread_atfork(before, after_in_parent, after_in_child), 0);
}

static void fork_once(void) {
  int status = 1;
  pid_t child = fork();
  if (child == 0) {
    (void)call();
    _exit(0);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

START_TEST(fork_handlers_call_the_library) {
  call = calls[_i / 2];
  handle(_i % 2 == 0);
  ck_assert(call());
  for (int i = 0; i < 3; i++)
    fork_once();
  ck_assert_uint_eq(atomic_load(&good_before), 3);
  ck_assert_uint_eq(atomic_load(&good_after), 3);
  ck_assert(call());
  ck_assert_uint_eq(info_of(pool).used_count, heap != NULL);
  OK(MAM_CudaFree(kept));
}
END_TEST

/* A sanitizer's allocator may be held by a thread that is not in the child. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
static _Atomic bool ends;

static void *allocate_for_long(void *context) {
  fake_make_current(context);
  for (size_t i = 0; !atomic_load(&ends); i++)
    ck_assert(pair_of(i % 5 == 0 ? (i * 77777) % (8 * MIB) + 1 : i % 4096 + 1));
  return NULL;
}

/* Two threads fork at a time, beside threads that allocate. */
static void *fork_often(void *context) {
  fake_make_current(context);
  for (int i = 0; i < 40; i++) {
    int status = 1;
    pid_t child = fork();
    if (child == 0)
      _exit(0);
    ck_assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  }
  return NULL;
}

START_TEST(fork_handlers_call_beside_busy_threads) {
  enum { THREADS = 3 };
  pthread_t busy[THREADS], forks;
  call = _i == 0 ? call_small : call_large;
  handle(true);
  void *context = fake_current();
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&busy[i], NULL, allocate_for_long, context), 0);
  ck_assert_int_eq(pthread_create(&forks, NULL, fork_often, context), 0);
  (void)fork_often(context);
  ck_assert_int_eq(pthread_join(forks, NULL), 0);
  atomic_store(&ends, true);
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_join(busy[i], NULL), 0);
  ck_assert_uint_eq(atomic_load(&good_before), 80);
  ck_assert_uint_eq(atomic_load(&good_after), 80);
}
END_TEST
#endif

static bool fork_from_a_call(void) {
  fork_once();
  return true;
}

/* A handler that forks itself would do so for ever. */
static bool nested;
static bool call_nested(void) {
  if (nested)
    return pair_of(100);
  nested = true;
  bool good = fork_from_a_call();
  nested = false;
  return good;
}

START_TEST(a_fork_handler_forks) {
  call = call_nested;
  handle(true);
  fork_once();
  ck_assert(pair_of(MIB));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("fork handlers");
  TCase *tcase = add_case(suite, "fork handlers");
  tcase_add_loop_test(tcase, fork_handlers_call_the_library, 0, 2 * CALLS);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  tcase_add_loop_test(tcase, fork_handlers_call_beside_busy_threads, 0, 2);
#endif
  tcase_add_test(tcase, a_fork_handler_forks);
  return run_suite(suite);
}
