/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that are cancelled, starved, or at their end, and a system that refuses: no thread hangs, none keeps others
 * from going on, and nothing is left behind.  The tests run on plain host memory, by the public interface.
 *
 * The program has its own version of some functions of the C library: they do the same, but can be slow, refuse, or
 * count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mam.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)
#define OK(call) ck_assert_msg((call) == cudaSuccess, "%s: %s", #call, MAM_LastError())

static void use_host(void) { (void)setenv("MAM_SOURCE", "host", 1); }

static double now_s(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void sleep_ms(unsigned ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  while (nanosleep(&time, &time) != 0)
    ;
}

static MAM_PoolInfo info_of(MAM_Pool pool) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  OK(MAM_PoolGetInfo(pool, &info));
  return info;
}

static void *block(size_t size) {
  void *pointer = NULL;
  OK(MAM_CudaMalloc(&pointer, size));
  return pointer;
}

static void run(pthread_t *thread, void *(*body)(void *), void *argument) {
  ck_assert_int_eq(pthread_create(thread, NULL, body, argument), 0);
}

static void join(pthread_t thread) { ck_assert_int_eq(pthread_join(thread, NULL), 0); }

/* ---- The C library's ---- */

static _Atomic unsigned map_ms; /* how long memory takes to be mapped */
static _Atomic unsigned barriers;

int mprotect(void *address, size_t bytes, int protection) {
  if (map_ms > 0)
    sleep_ms(map_ms);
  return (int)syscall(SYS_mprotect, address, bytes, protection);
}

static long (*real_syscall)(long number, ...);

long syscall(long number, ...) {
  long a[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; i++)
    a[i] = va_arg(arguments, long);
  va_end(arguments);
  barriers += number == SYS_membarrier;
  if (real_syscall == NULL)
    *(void **)&real_syscall = dlsym(RTLD_NEXT, "syscall");
  return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* The loader's lock, which a thread holds while it runs the constructors of what it loads. */
static pthread_mutex_t loader = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static _Atomic unsigned loading;

void *dlopen(const char *name, int flags) {
  (void)name, (void)flags;
  loading++;
  pthread_mutex_lock(&loader);
  pthread_mutex_unlock(&loader);
  return NULL; /* no driver */
}

/* ---- Threads that are cancelled ---- */

/* Not on the stack: a sanitizer does not learn that frames of a cancelled thread are gone. */
static _Thread_local void *held[64];

static void *grow(void *unused) {
  (void)unused;
  (void)MAM_CudaMalloc(&held[0], 64 * MIB);
  pthread_testcancel();
  return NULL;
}

/* One thread grows the pool; another one waits for that and is cancelled. */
static void cancel_one_that_waits(void) {
  pthread_t first, second;
  use_host();
  OK(MAM_Create_auto());
  map_ms = 100;
  run(&first, grow, NULL);
  sleep_ms(30);
  run(&second, grow, NULL);
  sleep_ms(30);
  ck_assert_int_eq(pthread_cancel(second), 0);
  join(second);
  join(first);
  map_ms = 0;
}

START_TEST(cancelled_wait_keeps_no_lock) {
  cancel_one_that_waits();
  OK(MAM_CudaFree(block(100 * MIB)));
  OK(MAM_CudaFree(block(100)));
  OK(MAM_Destroy());
}
END_TEST

START_TEST(process_forks_after_a_cancelled_wait) {
  int status = -1;
  cancel_one_that_waits();
  pid_t child = fork();
  if (child == 0) {
    void *pointer;
    _exit(MAM_CudaMalloc(&pointer, 100 * MIB) == cudaSuccess && MAM_CudaFree(pointer) == cudaSuccess ? 0 : 1);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}
END_TEST

/* Without Check's macros, which have points of cancellation themselves. */
static void *allocate_until_cancelled(void *unused) {
  (void)unused;
  for (unsigned i = 0;; i++) {
    if (MAM_CudaFree(held[i % 64]) != cudaSuccess ||
        MAM_CudaMalloc(&held[i % 64], i % 7 == 0 ? 5 * MIB : 100 + i % 40000) != cudaSuccess ||
        (i % 1000 == 0 && MAM_Trim(0) != cudaSuccess))
      abort();
    pthread_testcancel();
  }
  return NULL;
}

/* A wrong call says so on stderr, where a thread may be cancelled. */
static void *wrong_call(void *answered) {
  static int unused;
  (void)pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &unused);
  (void)pthread_cancel(pthread_self());
  *(volatile int *)answered = (int)MAM_CudaFreeReuse((void *)(uintptr_t)5, (MAM_Reuse)99);
  pthread_testcancel();
  return answered;
}

START_TEST(call_that_prints_its_error_ends_before_a_cancellation) {
  pthread_t thread;
  volatile int answered = -1;
  void *result = NULL;
  (void)setenv("MAM_LOG", "error", 1);
  run(&thread, wrong_call, (void *)(uintptr_t)&answered);
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  ck_assert_int_eq(answered, cudaErrorInvalidValue);
  ck_assert_ptr_eq(result, PTHREAD_CANCELED);
}
END_TEST

/* Wherever the cancellation comes. */
START_TEST(cancelled_threads_leave_a_pool_that_works) {
  use_host();
  OK(MAM_Create_auto());
  for (int round = 0; round < 40; round++) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
      run(&threads[i], allocate_until_cancelled, NULL);
    sleep_ms(round % 5);
    for (int i = 0; i < 3; i++)
      ck_assert_int_eq(pthread_cancel(threads[i]), 0);
    for (int i = 0; i < 3; i++)
      join(threads[i]);
    ck_assert_uint_eq(info_of(NULL).thread_count, 0);
  }
  OK(MAM_CudaFree(block(100)));
  OK(MAM_Destroy());
}
END_TEST

/* ---- Threads of other priorities ---- */

static _Atomic bool stop;

static void *allocate_and_free(void *idle) {
  if (idle != NULL)
    (void)sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
  void *pointer;
  bool right = true;
  while (!stop) /* Check's own marks would take most of the time */
    right = MAM_CudaMalloc(&pointer, 100000) == cudaSuccess && MAM_CudaFree(pointer) == cudaSuccess && right;
  ck_assert(right);
  return NULL;
}

/* On one processor, a thread that describes a pool waits for threads that are inside it and do not have the
 * processor. */
static void describe_beside(bool fifo, bool idle) {
  pthread_t thread;
  cpu_set_t before, one;
  ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
  int processor = 0;
  while (!CPU_ISSET(processor, &before))
    processor++;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
  use_host();
  OK(MAM_Create_auto());
  run(&thread, allocate_and_free, idle ? &idle : NULL);
  sleep_ms(50);
  if (fifo && sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 10}) != 0)
    (void)fprintf(stderr, "SCHED_FIFO is not allowed here, and not tried\n");
  double worst_s = 1;
  for (int round = 0; round < 5 && worst_s >= 0.2; round++) { /* other programs may have the processor for a while */
    worst_s = 0;
    for (int i = 0; i < 50; i++) {
      double start_s = now_s();
      (void)info_of(NULL);
      worst_s = now_s() - start_s > worst_s ? now_s() - start_s : worst_s;
      sleep_ms(2);
    }
  }
  (void)sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
  stop = true;
  (void)sched_setaffinity(0, sizeof before, &before);
  join(thread);
  (void)printf("at most %.1f ms\n", worst_s * 1e3);
  ck_assert_msg(worst_s < 0.2, "%.0f ms", worst_s * 1e3); /* some ms on an idle machine; a second by sched_yield */
}

START_TEST(who_waits_lets_threads_of_lower_priority_run) { describe_beside(_i == 0, _i == 1); }
END_TEST

/* ---- Threads at their end ---- */

/* ThreadSanitizer does not know a thread any more in the last rounds of its destructors. */
#ifdef __SANITIZE_THREAD__
enum { LATE_ROUNDS = 1 };
#else
enum { LATE_ROUNDS = PTHREAD_DESTRUCTOR_ITERATIONS };
#endif

static pthread_key_t late;
static _Thread_local int late_rounds;

static void late_destructor(void *value) {
  void *small = block(1000), *large = block(MIB);
  OK(MAM_CudaFree(small));
  OK(MAM_CudaFree(large));
  OK(MAM_CudaFree(((void **)value)[late_rounds++]));
  if (late_rounds < LATE_ROUNDS)
    (void)pthread_setspecific(late, value);
}

static void *end_late(void *blocks) {
  OK(MAM_CudaFree(block(100)));
  (void)pthread_setspecific(late, blocks);
  return NULL;
}

START_TEST(destructors_that_allocate_leave_nothing_behind) {
  void *blocks[LATE_ROUNDS];
  pthread_t thread;
  use_host();
  ck_assert_int_eq(pthread_key_create(&late, late_destructor), 0);
  OK(MAM_Create_auto());
  (void)block(100);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < LATE_ROUNDS; i++)
      blocks[i] = block(i % 2 == 0 ? 1000 : 3 * MIB);
    run(&thread, end_late, blocks);
    join(thread);
    ck_assert_uint_eq(info_of(NULL).thread_count, 1);
    ck_assert_uint_eq(info_of(NULL).used_count, 1);
  }
  OK(MAM_Destroy());
}
END_TEST

/* ---- Threads that only free ---- */

enum { PIPE = 256, PASSED_ON = 20000 };
static void *_Atomic passed_on[PIPE];

static void *free_what_comes(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < PASSED_ON; i++) {
    void *pointer;
    while ((pointer = atomic_exchange(&passed_on[i % PIPE], NULL)) == NULL)
      (void)sched_yield();
    OK(MAM_CudaFree(pointer));
  }
  return NULL;
}

START_TEST(thread_that_only_frees_in_a_lazy_environment_needs_no_barrier_for_each) {
  pthread_t thread;
  use_host();
  void *kept = block(100);
  run(&thread, free_what_comes, NULL);
  sleep_ms(10);
  unsigned before = barriers;
  for (unsigned i = 0; i < PASSED_ON; i++) {
    void *pointer = block(i % 2 == 0 ? 1000 : MIB), *none = NULL;
    while (!atomic_compare_exchange_strong(&passed_on[i % PIPE], &none, pointer)) {
      none = NULL;
      (void)sched_yield();
    }
  }
  join(thread);
  ck_assert_uint_lt(barriers - before, PASSED_ON / 20); /* a collection executes some barriers */
  OK(MAM_CudaFree(kept));
}
END_TEST

static void *allocate_all(void *blocks) {
  for (unsigned i = 0; i < PASSED_ON; i++)
    ((void **)blocks)[i] = block(1000);
  return NULL;
}

START_TEST(blocks_of_a_thread_that_ended_need_no_barrier_each) {
  static void *blocks[PASSED_ON];
  pthread_t thread;
  use_host();
  run(&thread, allocate_all, blocks);
  join(thread);
  unsigned before = barriers;
  for (unsigned i = 0; i < PASSED_ON; i++)
    OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_lt(barriers - before, PASSED_ON / 20);
}
END_TEST

/* The environment ends although no thread can tell the last free. */
START_TEST(environment_of_several_threads_still_ends) {
  static void *blocks[PASSED_ON];
  pthread_t thread;
  use_host();
  run(&thread, allocate_all, blocks);
  join(thread);
  for (unsigned i = 0; i < PASSED_ON; i++)
    OK(MAM_CudaFree(blocks[i]));
  MAM_PoolInfo info = {.struct_size = sizeof info};
  for (int i = 0; i < 500 && MAM_PoolGetInfo(NULL, &info) == cudaSuccess; i++)
    sleep_ms(10);
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &info), cudaErrorInvalidResourceHandle);
}
END_TEST

/* ---- The loader ---- */

static void *create(void *unused) {
  (void)unused;
  ck_assert_int_eq(MAM_Create(MIB), cudaErrorNoDevice);
  return NULL;
}

static void *destroy(void *unused) {
  (void)unused;
  OK(MAM_Destroy());
  return NULL;
}

static void *allocate(void *unused) {
  (void)unused;
  void *pointer;
  ck_assert_int_eq(MAM_CudaMalloc(&pointer, 1000), cudaErrorNoDevice);
  return NULL;
}

/* A constructor of a plugin calls the library while another thread makes it load the driver. */
START_TEST(driver_is_loaded_under_no_lock) {
  static void *(*const bodies[])(void *) = {create, destroy, allocate};
  pthread_t thread;
  (void)unsetenv("MAM_SOURCE");
  pthread_mutex_lock(&loader);
  run(&thread, bodies[_i], NULL);
  while (loading == 0)
    sleep_ms(1);
  ck_assert_int_eq(MAM_Create_auto(), cudaErrorNoDevice);
  OK(MAM_Destroy());
  pthread_mutex_unlock(&loader);
  join(thread);
}
END_TEST

/* ---- A sandbox that comes late ---- */

static void refuse(int number) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(pool_goes_on_when_the_barrier_is_refused) {
  pthread_t threads[2];
  use_host();
  OK(MAM_Create_auto());
  void *kept = block(100), *blocks[500];
  refuse(SYS_membarrier);
  if (_i == 1)
    refuse(SYS_sched_setaffinity);
  for (int i = 0; i < 2; i++)
    run(&threads[i], allocate_and_free, NULL);
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < 500; i++)
      blocks[i] = block(i % 3 == 0 ? MIB : 1000);
    ck_assert_uint_ge(info_of(NULL).used_count, 501);
    for (int i = 0; i < 500; i++)
      OK(MAM_CudaFree(blocks[i]));
    ck_assert_int_eq(MAM_CudaFree(blocks[7]), cudaErrorInvalidValue);
    OK(MAM_Trim(0));
  }
  stop = true;
  for (int i = 0; i < 2; i++)
    join(threads[i]);
  ck_assert_uint_eq(info_of(NULL).used_count, 1);
  OK(MAM_CudaFree(kept));
  OK(MAM_Destroy());
}
END_TEST

/* ---- A host without memory ---- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* While it is set, calloc refuses small objects, such as a struct watch. */
static _Atomic bool small_objects_refused;
static _Atomic unsigned refusals;
void *__libc_calloc(size_t count, size_t bytes);

void *calloc(size_t count, size_t bytes) {
  if (!small_objects_refused || count != 1 || bytes < 64 || bytes >= 200)
    return __libc_calloc(count, bytes);
  refusals++;
  return NULL;
}

static void *allocate_without_small_objects(void *argument) {
  void **pointer = argument;
  small_objects_refused = true;
  *pointer = block(MIB);
  small_objects_refused = false;
  return NULL;
}

/* Once two threads use the environment, only the reaper notices its last free. */
START_TEST(environment_ends_though_its_watch_had_no_memory_at_first) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  pthread_t thread;
  void *first, *second = NULL;
  use_host();
  (void)setenv("MAM_LINGER_MS", "100", 1);
  (void)allocate_without_small_objects(&first);
  run(&thread, allocate_without_small_objects, &second);
  join(thread);
  ck_assert_uint_gt(refusals, 0);
  OK(MAM_CudaFree(first));
  OK(MAM_CudaFree(second));
  OK(MAM_CudaFree(block(MIB)));
  double start_s = now_s();
  while (MAM_PoolGetInfo(NULL, &info) == cudaSuccess && info.reserved_bytes != 0 && now_s() - start_s < 5)
    sleep_ms(20);
  ck_assert_double_lt(now_s() - start_s, 5);
}
END_TEST

/* ---- Pools that ended ---- */

static size_t resident_bytes(void) {
  unsigned long pages = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  ck_assert_ptr_nonnull(file);
  ck_assert_int_eq(fscanf(file, "%lu %lu", &pages, &resident), 2);
  ck_assert_int_eq(fclose(file), 0);
  return resident * (size_t)sysconf(_SC_PAGESIZE);
}

enum { ENDING_POOLS = 200 };
static MAM_Pool ending[ENDING_POOLS], lasting;
static pthread_barrier_t pools_used, pools_ended;
static size_t in_use_bytes;

static void pools_make(void) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST;
  options.chunk_bytes = 2 * MIB;
  for (int i = 0; i < ENDING_POOLS; i++)
    OK(MAM_PoolCreate(&ending[i], &options));
  OK(MAM_PoolCreate(&lasting, &options));
}

static void pools_use(void) {
  void *pointer;
  for (int i = 0; i < ENDING_POOLS; i++) {
    OK(MAM_PoolMalloc(ending[i], &pointer, 100000));
    OK(MAM_CudaFree(pointer));
  }
  in_use_bytes = resident_bytes();
}

static void pools_end(void) {
  for (int i = 0; i < ENDING_POOLS; i++)
    OK(MAM_PoolDestroy(ending[i]));
}

/* What the pools' thread kept is 30 KiB and more for each. */
static void assert_fronts_are_gone(void) {
  ck_assert_uint_le(resident_bytes() + ENDING_POOLS * 16 * (MIB >> 10), in_use_bytes);
}

START_TEST(pools_that_ended_leave_little_to_their_thread) {
  use_host();
  pools_make(), pools_use(), pools_end();
  assert_fronts_are_gone();
}
END_TEST

static void *use_until_they_end(void *unused) {
  void *pointer;
  pools_use();
  (void)pthread_barrier_wait(&pools_used);
  (void)pthread_barrier_wait(&pools_ended);
  OK(MAM_PoolMalloc(lasting, &pointer, 100000));
  assert_fronts_are_gone();
  OK(MAM_CudaFree(pointer));
  return unused;
}

/* Its next new pool shows it. */
START_TEST(pools_that_ended_leave_little_to_other_threads) {
  pthread_t thread;
  use_host();
  pools_make();
  ck_assert_int_eq(pthread_barrier_init(&pools_used, NULL, 2) | pthread_barrier_init(&pools_ended, NULL, 2), 0);
  run(&thread, use_until_they_end, NULL);
  (void)pthread_barrier_wait(&pools_used);
  pools_end();
  (void)pthread_barrier_wait(&pools_ended);
  join(thread);
  OK(MAM_PoolDestroy(lasting));
}
END_TEST
#endif

/* ---- A pool of many chunks ---- */

START_TEST(pool_of_many_chunks_leaves_room_for_others) {
  enum { CHUNKS = 5000 };
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_Pool pool = NULL;
  void *pointer;
  use_host();
  options.source = MAM_SOURCE_HOST;
  options.chunk_bytes = 2 * MIB;
  options.limit_bytes = CHUNKS * 2 * MIB;
  OK(MAM_PoolCreate(&pool, &options));
  for (int i = 0; i < CHUNKS; i++)
    OK(MAM_PoolMalloc(pool, &pointer, 2 * MIB));
  ck_assert_uint_eq(info_of(pool).chunk_count, CHUNKS);
  OK(MAM_CudaFree(block(100)));
  OK(MAM_PoolDestroy(pool));
}
END_TEST

/* The GPU has no work in plain host memory, so no wait is needed that a stream capture would forbid. */
START_TEST(pool_of_host_memory_ends_in_a_capture) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  MAM_Pool pool;
  void *pointer;
  unsigned char resident;
  use_host();
  options.source = MAM_SOURCE_HOST;
  options.limit_bytes = 64 * MIB;
  OK(MAM_CaptureBegin());
  OK(MAM_PoolCreate(&pool, &options));
  OK(MAM_PoolMalloc(pool, &pointer, 2 * MIB));
  OK(MAM_CudaFree(pointer));
  OK(MAM_PoolDestroy(pool));
  ck_assert(mincore(pointer, 1, &resident) != 0 && errno == ENOMEM); /* nothing is mapped there */
  OK(MAM_CaptureEnd());
}
END_TEST

int main(void) {
  Suite *suite = suite_create("hardship");
  TCase *tests = tcase_create("hardship");
  tcase_set_timeout(tests, 20);
  tcase_add_test(tests, cancelled_wait_keeps_no_lock);
  tcase_add_test(tests, process_forks_after_a_cancelled_wait);
  tcase_add_test(tests, call_that_prints_its_error_ends_before_a_cancellation);
  tcase_add_test(tests, cancelled_threads_leave_a_pool_that_works);
  tcase_add_loop_test(tests, who_waits_lets_threads_of_lower_priority_run, 0, 3);
  tcase_add_test(tests, destructors_that_allocate_leave_nothing_behind);
  tcase_add_test(tests, thread_that_only_frees_in_a_lazy_environment_needs_no_barrier_for_each);
  tcase_add_test(tests, blocks_of_a_thread_that_ended_need_no_barrier_each);
  tcase_add_test(tests, environment_of_several_threads_still_ends);
  tcase_add_loop_test(tests, driver_is_loaded_under_no_lock, 0, 3);
  tcase_add_loop_test(tests, pool_goes_on_when_the_barrier_is_refused, 0, 2);
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  tcase_add_test(tests, environment_ends_though_its_watch_had_no_memory_at_first);
  tcase_add_test(tests, pools_that_ended_leave_little_to_their_thread);
  tcase_add_test(tests, pools_that_ended_leave_little_to_other_threads);
#endif
  tcase_add_test(tests, pool_of_many_chunks_leaves_room_for_others);
  tcase_add_test(tests, pool_of_host_memory_ends_in_a_capture);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
