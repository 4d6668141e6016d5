/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Measures what a hook costs under mam-run.  A pair is an allocation and its free.  The program times pairs of
 * cuMemAlloc and cuMemFree, which it finds as other programs do, and pairs of MAM_CudaMalloc and MAM_CudaFree, in turns
 * in one process.  Without mam-run the former are the driver's own.
 *
 * usage: hook_cost [pair|first]
 *
 *   pair     prints a CSV row for each size, with the bytes and these ns:
 *            of a pair by the functions that dlsym finds; by those that cuGetProcAddress finds; by libmam; and what a
 *            hook adds to a call, which is half of what it adds to a pair
 *   first    prints microseconds: from before cuInit to a context, for the first pair in it, for the second pair
 *
 * Exits with 77 without a GPU.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mam.h"

enum {
  /* Pairs that are timed at once, so that reading the clock is a small part of the time. */
  PAIRS = 2000,
  /* Times of which the median is taken: odd. */
  TURNS = 41,
  /* CUDA 12.0: the version of the functions that cuGetProcAddress is asked for. */
  PROC_ADDRESS_VERSION = 12000
};

typedef unsigned long long address;

/* The driver's functions as dlsym finds them. */
static struct {
  int (*init)(unsigned);
  int (*retain)(void **, int);
  int (*set)(void *);
  int (*proc_address)(const char *, void **, int, unsigned long long, void *);
  int (*malloc)(address *, size_t);
  int (*free)(address);
} driver;

/* The same as cuGetProcAddress finds them. */
static int (*asked_malloc)(address *, size_t);
static int (*asked_free)(address);

static bool driver_open(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL)
    return false;
  *(void **)&driver.init = dlsym(library, "cuInit");
  *(void **)&driver.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&driver.set = dlsym(library, "cuCtxSetCurrent");
  *(void **)&driver.proc_address = dlsym(library, "cuGetProcAddress_v2");
  *(void **)&driver.malloc = dlsym(library, "cuMemAlloc_v2");
  *(void **)&driver.free = dlsym(library, "cuMemFree_v2");
  int found = 0;
  if (driver.init == NULL || driver.retain == NULL || driver.set == NULL || driver.proc_address == NULL ||
      driver.malloc == NULL || driver.free == NULL)
    return false;
  return driver.proc_address("cuMemAlloc", (void **)&asked_malloc, PROC_ADDRESS_VERSION, 0, &found) == 0 &&
         driver.proc_address("cuMemFree", (void **)&asked_free, PROC_ADDRESS_VERSION, 0, &found) == 0;
}

static double now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int pair_symbol(size_t bytes) {
  address block = 0;
  int error = driver.malloc(&block, bytes);
  return error != 0 ? error : driver.free(block);
}

static int pair_asked(size_t bytes) {
  address block = 0;
  int error = asked_malloc(&block, bytes);
  return error != 0 ? error : asked_free(block);
}

static int pair_direct(size_t bytes) {
  void *block = NULL;
  cudaError_t error = MAM_CudaMalloc(&block, bytes);
  return (int)(error != cudaSuccess ? error : MAM_CudaFree(block));
}

/* Nanoseconds of one pair.  A pair that fails is fast and would spoil the mean, so it ends the program. */
static double pairs_time(int (*pair)(size_t), size_t bytes, int pairs) {
  double start = now_ns();
  for (int i = 0; i < pairs; i++) {
    int error = pair(bytes);
    if (error != 0) {
      fprintf(stderr, "hook_cost: %zu bytes: error %d: %s\n", bytes, error, MAM_LastError());
      exit(1);
    }
  }
  return (now_ns() - start) / pairs;
}

static int compare_doubles(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

static double median(double times[TURNS]) {
  qsort(times, TURNS, sizeof times[0], compare_doubles);
  return times[TURNS / 2];
}

/* Keeps one block, so that the pool is not created and ended with each pair. */
static void one_kept(void) {
  address block = 0;
  void *direct = NULL;
  if (driver.malloc(&block, 1) != 0 || MAM_CudaMalloc(&direct, 1) != cudaSuccess)
    exit((puts("FAIL: no first block"), 1));
}

static void size_measure(size_t bytes) {
  static int (*const kinds[3])(size_t) = {pair_symbol, pair_asked, pair_direct};
  static double times[3][TURNS];
  int pairs =
      pairs_time(pair_symbol, bytes, 20) > 5000 ? 20 : PAIRS; /* fewer if they are the driver's own, which are slow */
  for (int turn = 0; turn < TURNS; turn++)
    for (int kind = 0; kind < 3; kind++)
      times[kind][turn] = pairs_time(kinds[kind], bytes, kind == 2 ? PAIRS : pairs);
  double symbol = median(times[0]), asked = median(times[1]), direct = median(times[2]);
  printf("%zu,%.1f,%.1f,%.1f,%.1f\n", bytes, symbol, asked, direct, (symbol - direct) / 2);
}

static int measure_pairs(void) {
  const size_t sizes[] = {1, 1024, 32768, 65536, 1 << 20, 16 << 20, 256 << 20};
  one_kept();
  printf("bytes,by_symbol_ns,by_proc_address_ns,direct_ns,more_a_call_ns\n");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
    size_measure(sizes[i]);
  return 0;
}

static int measure_first(double started_ns) {
  double ready = now_ns();
  int error = pair_symbol(1 << 20);
  double first = now_ns();
  error = error != 0 ? error : pair_symbol(1 << 20);
  printf("context_us,first_pair_us,second_pair_us\n%.1f,%.1f,%.1f\n", (ready - started_ns) / 1e3, (first - ready) / 1e3,
         (now_ns() - first) / 1e3);
  return error;
}

int main(int argc, char *argv[]) {
  void *context = NULL;
  double start = now_ns();
  if (!driver_open() || driver.init(0) != 0)
    return (puts("SKIP: no CUDA device"), 77);
  if (driver.retain(&context, 0) != 0 || driver.set(context) != 0)
    return (puts("FAIL: no context"), 1);
  return argc > 1 && strcmp(argv[1], "first") == 0 ? measure_first(start) : measure_pairs();
}
