/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shorthands for the tests of what mam.h promises, over the fake driver.  They know the public interface and the
 * driver's side, and nothing between the two.  Each test is a process of its own (Check's fork mode).
 */
#ifndef MAM_TESTS_API_UTIL_H
#define MAM_TESTS_API_UTIL_H

#include "mam.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/fake_driver.h"
#include "support/run_suite.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static inline void assert_success(cudaError_t error, const char *what) {
  ck_assert_msg(error == cudaSuccess, "%s: %d, %s", what, (int)error, MAM_LastError());
}
#define OK(call) assert_success(call, #call)
#define FAILS(error, call) ck_assert_int_eq(call, error)

static inline void assert_error_says(const char *words) {
  ck_assert_msg(strstr(MAM_LastError(), words) != NULL, "\"%s\" does not say \"%s\"", MAM_LastError(), words);
}

static inline char *block(size_t size) {
  void *pointer = NULL;
  OK(MAM_CudaMalloc(&pointer, size));
  ck_assert_ptr_nonnull(pointer);
  return pointer;
}

static inline char *block_of(MAM_Pool pool, size_t size) {
  void *pointer = NULL;
  OK(MAM_PoolMalloc(pool, &pointer, size));
  ck_assert_ptr_nonnull(pointer);
  return pointer;
}

static inline MAM_PoolInfo info_of(MAM_Pool pool) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  OK(MAM_PoolGetInfo(pool, &info));
  return info;
}

static inline MAM_Pool pool_with(MAM_PoolOptions options) {
  MAM_Pool pool = NULL;
  OK(MAM_PoolCreate(&pool, &options));
  ck_assert_ptr_nonnull(pool);
  return pool;
}

static inline MAM_PoolOptions options_with(size_t chunk_bytes) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = chunk_bytes;
  return options;
}

/* Every byte is counted once, and the pool holds what the driver gave. */
static inline void assert_adds_up(MAM_Pool pool) {
  MAM_PoolInfo info = info_of(pool);
  ck_assert_uint_eq(info.used_bytes + info.waiting_bytes + info.free_bytes, info.reserved_bytes);
  ck_assert_uint_eq(info.used_count + info.waiting_count + info.free_count, info.segment_count);
  ck_assert_uint_le(info.requested_bytes, info.used_bytes);
  ck_assert_uint_le(info.used_bytes, info.peak_used_bytes);
  ck_assert_uint_le(info.largest_free_bytes, info.free_bytes);
  ck_assert_uint_le(info.cached_bytes, info.waiting_bytes + info.free_bytes);
  ck_assert_uint_le(info.reserved_bytes, info.limit_bytes);
}

/* The program's blocks are as before.  The failed call may have moved freed memory from waiting to free, and out of
 * caches. */
static inline void assert_unchanged(MAM_Pool pool, MAM_PoolInfo before) {
  MAM_PoolInfo after = info_of(pool);
  ck_assert_uint_eq(after.used_bytes, before.used_bytes);
  ck_assert_uint_eq(after.used_count, before.used_count);
  ck_assert_uint_eq(after.requested_bytes, before.requested_bytes);
  ck_assert_uint_eq(after.peak_used_bytes, before.peak_used_bytes);
  ck_assert_uint_eq(after.reserved_bytes, before.reserved_bytes);
  ck_assert_uint_eq(after.chunk_count, before.chunk_count);
  ck_assert_uint_eq(after.limit_bytes, before.limit_bytes);
  ck_assert_uint_eq(after.malloc_count, before.malloc_count);
  ck_assert_uint_eq(after.free_call_count, before.free_call_count);
  assert_adds_up(pool);
}

/* For use before the first call: lazy environments take the largest chunk, as the paper's do. */
static inline void use_greedy_chunks(void) { (void)setenv("MAM_SOURCE", "device", 1); }

/* For use before the first call: a driver before 12.5, which can only wait for work and not say whether it has
 * passed. */
static inline void use_driver_without_fences(void) { fake_hide("cuCtxRecordEvent"); }

/* The library never called the driver in an undefined way, nor freed what the driver had not given. */
static inline void assert_driver_content(void) {
  ck_assert_uint_eq(fake_violations(), 0);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
  ck_assert_uint_eq(fake_faults(), 0);
}

static inline void assert_nothing_held(void) {
  ck_assert_uint_eq(fake_live_blocks(), 0);
  ck_assert_uint_eq(fake_reserved_bytes(), 0);
  assert_driver_content();
}

/* A program that has used the CUDA runtime: the primary context is current. */
static inline void *use_primary(int device) {
  void *context = fake_primary_retain(device);
  fake_make_current(context);
  return context;
}

static inline void *use_new_context(int device) {
  void *context = fake_context_create(device);
  ck_assert_ptr_nonnull(context);
  fake_make_current(context);
  return context;
}

static inline void sleep_ms(unsigned ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  while (nanosleep(&time, &time) != 0)
    ;
}

/* The driver's function that takes a chunk for a source: device, pinned or managed. */
static inline const char *take_function(int source) {
  static const char *const names[] = {"cuMemAlloc", "cuMemHostAlloc", "cuMemAllocManaged"};
  return names[source];
}

static inline TCase *add_case(Suite *suite, const char *name) {
  TCase *tcase = tcase_create(name);
  tcase_set_timeout(tcase, 10);
  suite_add_tcase(suite, tcase);
  return tcase;
}

#endif
