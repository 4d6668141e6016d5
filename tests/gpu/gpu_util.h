/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the GPU test programs share: a main that skips without a GPU, checked calls, counters that kernels write and the
 * host reads, the driver's functions, pools that end with their test.
 *
 * It uses only mam.h of the library.  The programs run all tests in one process, because CUDA does not work in a forked
 * child.  So each test leaves nothing behind: gpu_test_end is the teardown of every test case.
 *
 * MAM_TEST_SMALL=1 in the environment shrinks the traffic, for runs under compute-sanitizer.  There a launch may wait
 * for its kernel, so a test that needs a running kernel checks only what it can.
 */
#ifndef MAM_TESTS_GPU_UTIL_H
#define MAM_TESTS_GPU_UTIL_H

#include <check.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "mam.h"

enum {
  GPU_SKIP = 77,              /* the exit status of a test that could not run, for Automake */
  GPU_WATCHDOG_SMALL_S = 600, /* a sanitizer slows kernels by up to 50 */
  GPU_WATCHDOG_S = 120,
  GPU_POOLS_MAX = 16,
};

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- Checked calls, for the thread that runs the test ------------------------------------------------------------ */

/* Fails the test unless the call of the CUDA runtime answers as expected. */
#define GPU_IS(call, expected)                                                                                         \
  do {                                                                                                                 \
    cudaError_t got_ = (call), wanted_ = (expected);                                                                   \
    ck_assert_msg(got_ == wanted_, "%s: %s, expected %s", #call, cudaGetErrorName(got_), cudaGetErrorName(wanted_));   \
  } while (0)
#define GPU_OK(call) GPU_IS(call, cudaSuccess)

/* The same for a call of the library, with its own sentence. */
#define MAM_IS(call, expected)                                                                                         \
  do {                                                                                                                 \
    cudaError_t got_ = (call), wanted_ = (expected);                                                                   \
    ck_assert_msg(got_ == wanted_, "%s: %s, expected %s (last error: %s)", #call, cudaGetErrorName(got_),              \
                  cudaGetErrorName(wanted_), MAM_LastError());                                                         \
  } while (0)
#define MAM_OK(call) MAM_IS(call, cudaSuccess)

/* The same for a call of the driver: its results have the numbers of the runtime's. */
#define DRIVER_OK(call) GPU_IS((cudaError_t)(call), cudaSuccess)

/* ---- Checked calls, for any thread ------------------------------------------------------------------------------- */

/* What went wrong in a thread; "" if nothing did.  Check's macros leave by longjmp, so only the thread that runs the
 * test may use them.  Other threads write here, and the test reads it after it has joined them. */
struct gpu_outcome {
  char text[512];
};

/* Notes the first thing that went wrong.  Always false, so that a caller can return it. */
__attribute__((format(printf, 2, 3))) static inline bool gpu_outcome_fail(struct gpu_outcome *outcome,
                                                                          const char *format, ...) {
  if (outcome->text[0] == '\0') {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(outcome->text, sizeof outcome->text, format, arguments);
    va_end(arguments);
  }
  return false;
}

static inline bool gpu_outcome_try(struct gpu_outcome *outcome, cudaError_t error, const char *call, int line) {
  if (error == cudaSuccess)
    return true;
  return gpu_outcome_fail(outcome, "line %d: %s: %s (last error of the library: %s)", line, call,
                          cudaGetErrorName(error), MAM_LastError());
}

/* True if the call succeeded; otherwise it is noted in *outcome. */
#define GPU_TRY(outcome, call) gpu_outcome_try((outcome), (call), #call, __LINE__)

/* ---- Time and traffic -------------------------------------------------------------------------------------------- */

static inline double gpu_now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static inline bool gpu_small(void) {
  const char *text = getenv("MAM_TEST_SMALL");
  return text != NULL && strcmp(text, "1") == 0;
}

/* The next number of the sequence that *state begins.  It is the same on every machine. */
static inline uint32_t gpu_random(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

/* ---- Counters and words that both sides see ---------------------------------------------------------------------- */

/* A number in mapped host memory, 0 at first.  Ends with cudaFreeHost, which waits for the GPU. */
static inline uint64_t *gpu_counter_new(void) {
  void *counter = NULL;
  GPU_OK(cudaHostAlloc(&counter, sizeof(uint64_t), cudaHostAllocMapped | cudaHostAllocPortable));
  memset(counter, 0, sizeof(uint64_t));
  return counter;
}

/* ---- The driver's functions -------------------------------------------------------------------------------------- */

/* The function of that name with the signature that it had at version; NULL if this driver has none.  The runtime finds
 * it, so the program is not linked with libcuda and can skip where that is missing. */
static inline void *gpu_driver_find(const char *name, unsigned version) {
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  if (error != cudaSuccess)
    (void)cudaGetLastError(); /* so that no later check of the last error sees this one */
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? function : NULL;
}

static inline void *gpu_driver_function(const char *name, unsigned version) {
  void *function = gpu_driver_find(name, version);
  ck_assert_msg(function != NULL, "the driver has no %s of version %u", name, version);
  return function;
}

/* gpu_probe finds it once: a thread that must not have a context yet cannot ask the runtime. */
static PFN_cuCtxGetCurrent_v4000 gpu_context_get_function;
static PFN_cuCtxSetCurrent_v4000 gpu_context_set_function;

static inline bool gpu_context_functions_find(void) {
  *(void **)&gpu_context_get_function = gpu_driver_find("cuCtxGetCurrent", 4000);
  *(void **)&gpu_context_set_function = gpu_driver_find("cuCtxSetCurrent", 4000);
  return gpu_context_get_function != NULL && gpu_context_set_function != NULL;
}

/* The calling thread's current context, NULL if it has none. */
static inline CUcontext gpu_context_current(void) {
  CUcontext context = NULL;
  return gpu_context_get_function(&context) == CUDA_SUCCESS ? context : NULL;
}

static inline cudaError_t gpu_context_set(CUcontext context) { return (cudaError_t)gpu_context_set_function(context); }

/* ---- Pools that end with their test ------------------------------------------------------------------------------ */

static MAM_Pool gpu_pools[GPU_POOLS_MAX];
static int gpu_pool_count;

static inline MAM_Pool gpu_pool_new(const MAM_PoolOptions *options) {
  MAM_Pool pool = NULL;
  ck_assert_int_lt(gpu_pool_count, GPU_POOLS_MAX);
  MAM_OK(MAM_PoolCreate(&pool, options));
  ck_assert_ptr_nonnull(pool);
  gpu_pools[gpu_pool_count++] = pool;
  return pool;
}

/* Destroys a pool of gpu_pool_new before the test ends, and returns what MAM_PoolDestroy said. */
static inline cudaError_t gpu_pool_end(MAM_Pool pool) {
  for (int i = 0; i < gpu_pool_count; i++)
    if (gpu_pools[i] == pool)
      gpu_pools[i--] = gpu_pools[--gpu_pool_count];
  return MAM_PoolDestroy(pool);
}

static inline MAM_PoolInfo gpu_pool_info(MAM_Pool pool) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  MAM_OK(MAM_PoolGetInfo(pool, &info));
  ck_assert_uint_eq(info.used_bytes + info.waiting_bytes + info.free_bytes, info.reserved_bytes);
  ck_assert_uint_eq(info.used_count + info.waiting_count + info.free_count, info.segment_count);
  return info;
}

/* The teardown of every test case.  Nothing of a test, even of a failed one, is left for the next.  It fails on an
 * error that kernels left. */
static inline void gpu_test_end(void) {
  cudaError_t kernels = cudaDeviceSynchronize();
  while (gpu_pool_count > 0)
    (void)MAM_PoolDestroy(gpu_pools[--gpu_pool_count]);
  cudaError_t destroyed = MAM_Destroy();
  (void)cudaGetLastError();
  GPU_OK(kernels);
  MAM_OK(destroyed);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

/* For a program that should run longer. */
static unsigned gpu_watchdog_more_s;

static inline void gpu_watchdog_bark(int signal_number) {
  static const char text[] = "FAIL: the watchdog ended this program: it ran for too long\n";
  (void)signal_number;
  ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
  _exit(written < 0 ? 2 : 1);
}

/* For main, before anything else.  The tests are about the defaults, so the caller's variables of the library are
 * removed. */
static inline void gpu_environment_clear(void) {
  static const char *const names[] = {"MAM_SOURCE", "MAM_REUSE",     "MAM_HEADROOM",
                                      "MAM_LIMIT",  "MAM_LINGER_MS", "MAM_REPORT"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    (void)unsetenv(names[i]);
  if (gpu_small())
    (void)setenv("MAM_HEADROOM", "4G", 1); /* a sanitizer takes memory of the device too */
}

/* Returns 0 if there is a device to test on; otherwise the program's exit status, after a line that says why. */
static inline int gpu_probe(void) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) {
    if (gpu_context_functions_find())
      return 0;
    printf("FAIL: the driver has no cuCtxGetCurrent or no cuCtxSetCurrent\n");
    return EXIT_FAILURE;
  }
  bool absent = error == cudaSuccess || error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ||
                error == cudaErrorStubLibrary;
  printf("%s: no CUDA device: %s\n", absent ? "SKIP" : "FAIL",
         error == cudaSuccess ? "the driver counts none" : cudaGetErrorName(error));
  return absent ? GPU_SKIP : EXIT_FAILURE;
}

/* Adds a case of tests that end with gpu_test_end. */
static inline TCase *gpu_case_add(Suite *suite, const char *name) {
  TCase *tests = tcase_create(name);
  tcase_add_checked_fixture(tests, NULL, gpu_test_end);
  suite_add_tcase(suite, tests);
  return tests;
}

/* Runs the suite, which it frees, in this process.  Returns the exit status for main.  Call gpu_environment_clear
 * and gpu_probe first. */
static inline int gpu_suite_run(Suite *suite) {
  (void)signal(SIGALRM, gpu_watchdog_bark);
  (void)alarm((gpu_small() ? GPU_WATCHDOG_SMALL_S : GPU_WATCHDOG_S) + gpu_watchdog_more_s);
  SRunner *runner = srunner_create(suite);
  srunner_set_fork_status(runner, CK_NOFORK);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
