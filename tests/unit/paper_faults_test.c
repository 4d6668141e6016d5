/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The faults of the program that came with the MAM paper, a test each, on plain host memory through the public
 * functions.  Other tests have the rest: exported names check_symbols.sh, header guard and extern "C" check_headers.sh,
 * more than one device api_context_test.c.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mam.h"
#include "mam.h" /* once more, for the header guard */
#include "support/imaginary_source.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)

static void set_up(void) {
  setenv("MAM_SOURCE", "host", 1);
  (void)alarm(60); /* a lock that stays taken would hang */
}

/* Address space of the process, in pages. */
static long mapped_pages(void) {
  long pages = -1;
  FILE *file = fopen("/proc/self/statm", "r");
  ck_assert_ptr_nonnull(file);
  ck_assert_int_eq(fscanf(file, "%ld", &pages), 1);
  ck_assert_int_eq(fclose(file), 0);
  return pages;
}

static void *must_malloc(size_t size) {
  void *block = NULL;
  ck_assert_int_eq(MAM_CudaMalloc(&block, size), cudaSuccess);
  return block;
}

/* "Segment links never initialised": the first and the last segment of a chunk have no neighbour outside it. */
START_TEST(first_and_last_block_of_a_chunk_can_be_freed) {
  ck_assert_int_eq(MAM_Create(2 * MIB), cudaSuccess);
  void *first = must_malloc(MIB), *last = must_malloc(MIB);
  ck_assert_int_eq(MAM_CudaFree(last), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(first), cudaSuccess);
  ck_assert_ptr_eq(must_malloc(2 * MIB), first);
}
END_TEST

/* "A failed allocation or a free of NULL or of a foreign pointer keeps the lock forever": another thread gets the
 * lock. */
static void *malloc_once(void *unused) {
  void *block;
  (void)unused;
  return (void *)(uintptr_t)MAM_CudaMalloc(&block, 512);
}

START_TEST(refused_calls_release_the_lock) {
  pthread_t thread;
  void *block = must_malloc(512), *none, *result;
  int foreign;
  ck_assert_int_eq(MAM_CudaMalloc(&none, (size_t)1 << 50), cudaErrorMemoryAllocation);
  ck_assert_int_eq(MAM_CudaMalloc(NULL, 1), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_CudaFree(NULL), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(&foreign), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_CudaFree((char *)block + 1), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_Create(0), cudaErrorInvalidValue);
  ck_assert_int_eq(MAM_Create(MIB), cudaErrorAlreadyAcquired);
  ck_assert_int_eq(pthread_create(&thread, NULL, malloc_once, NULL), 0);
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  ck_assert_ptr_null(result); /* cudaSuccess */
}
END_TEST

START_TEST(double_free_does_not_hand_a_block_out_twice) {
  setenv("MAM_REUSE", "immediate", 1);
  must_malloc(512);
  void *block = must_malloc(512);
  ck_assert_int_eq(MAM_CudaFree(block), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(block), cudaErrorInvalidValue);
  void *one = must_malloc(512), *two = must_malloc(512);
  ck_assert_ptr_ne(one, two);
}
END_TEST

START_TEST(zero_bytes_take_no_segment) {
  MAM_PoolInfo before = {.struct_size = sizeof before}, after = before;
  MAM_Pool pool;
  void *none = &none;
  void *block = must_malloc(512);
  ck_assert_int_eq(MAM_PoolDefault(&pool), cudaSuccess);
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &before), cudaSuccess);
  ck_assert_int_eq(MAM_CudaMalloc(&none, 0), cudaSuccess);
  ck_assert_ptr_null(none);
  none = &none;
  ck_assert_int_eq(MAM_PoolMalloc(pool, &none, 0), cudaSuccess);
  ck_assert_ptr_null(none);
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &after), cudaSuccess);
  ck_assert_mem_eq(&before, &after, sizeof before);
  ck_assert_ptr_ne(must_malloc(512), block);
}
END_TEST

START_TEST(every_block_is_aligned_to_512) {
  for (size_t size = 1; size < 3000; size += 7)
    ck_assert_uint_eq((uintptr_t)must_malloc(size) % 512, 0);
}
END_TEST

/* "Only one CUDA error counts as an error": that program takes all errors but "out of memory" for a chunk. */
START_TEST(any_error_of_the_source_is_an_error) {
  static const int errors[] = {1, 2, 3, 100, 201, 700, 999};
  const struct pool_config config = {.alignment = 512, .chunk_bytes = _i % 2 == 0 ? 2 * MIB : 0};
  struct mam_pool *pool = NULL;
  imaginary_reset();
  imaginary.take_error = (cudaError_t)errors[_i / 2];
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &pool), errors[_i / 2]);
  ck_assert_ptr_null(pool);
}
END_TEST

/* "The size search underflows when little memory is free", and "fails after ten guesses". */
START_TEST(largest_chunk_is_found_whatever_is_left) {
  const struct pool_config config = {.alignment = 512, .headroom_bytes = 256 * MIB};
  struct mam_pool *pool;
  imaginary_reset();
  imaginary.capacity_bytes = ((size_t)2 << 20) << _i;
  ck_assert_int_eq(pool_open(&config, &imaginary_source, &pool), _i == 0 ? cudaErrorMemoryAllocation : cudaSuccess);
  if (_i > 0) {
    ck_assert_uint_ge(imaginary.taken_bytes, imaginary.capacity_bytes / 2 - imaginary.capacity_bytes / 2 % (2 * MIB));
    ck_assert_int_eq(pool_close(pool, 0), cudaSuccess);
  }
}
END_TEST

START_TEST(automatic_destruction_happens) {
  enum { SLACK_PAGES = 100000 }; /* for stacks and shadows; the chunk is as large as the machine's memory */
  must_malloc(1);                /* so that what a first call sets up is there */
  ck_assert_int_eq(MAM_Destroy(), cudaSuccess);
  long before = mapped_pages();
  setenv("MAM_LINGER_MS", "0", 1);
  void *one = must_malloc(MIB), *two = must_malloc(MIB);
  ck_assert_int_gt(mapped_pages(), before + SLACK_PAGES);
  ck_assert_int_eq(MAM_CudaFree(one), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(two), cudaSuccess);
  for (int tenths = 0; mapped_pages() > before + SLACK_PAGES && tenths < 300; tenths++)
    (void)usleep(100000); /* a second environment lingers for a while */
  ck_assert_int_le(mapped_pages(), before + SLACK_PAGES);
}
END_TEST

/* "Destroying while another thread allocates": every block lies in memory that exists when the block is handed out. */
static _Atomic bool stop;

static void *malloc_again_and_again(void *unused) {
  void *block;
  uintptr_t faults = 0;
  (void)unused;
  while (!stop)
    faults += MAM_CudaMalloc(&block, 4096) != cudaSuccess;
  return (void *)faults;
}

START_TEST(destroy_waits_for_those_who_allocate) {
  pthread_t threads[2];
  void *faults;
  for (int i = 0; i < 2; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, malloc_again_and_again, NULL), 0);
  for (int i = 0; i < 200; i++)
    ck_assert_int_eq(MAM_Destroy(), cudaSuccess);
  stop = true;
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(pthread_join(threads[i], &faults), 0);
    ck_assert_ptr_null(faults);
  }
}
END_TEST

START_TEST(second_create_leaks_nothing_and_changes_nothing) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  ck_assert_int_eq(MAM_Create(4 * MIB), cudaSuccess);
  long before = mapped_pages();
  ck_assert_int_eq(MAM_Create(64 * MIB), cudaErrorAlreadyAcquired);
  ck_assert_int_eq(MAM_Create_auto(), cudaErrorAlreadyAcquired);
  ck_assert_int_le(mapped_pages(), before + 10);
  ck_assert_int_eq(MAM_PoolGetInfo(NULL, &info), cudaSuccess);
  ck_assert_uint_eq(info.reserved_bytes, 4 * MIB);
}
END_TEST

/* The library writes nothing to stdout, and to stderr only if asked. */
START_TEST(failures_are_quiet) {
  char path[] = "/tmp/mam-quiet-XXXXXX";
  int file = mkstemp(path), foreign;
  void *none;
  ck_assert_int_ge(file, 0);
  (void)unlink(path);
  (void)fflush(NULL);
  int saved_stdout = dup(STDOUT_FILENO), saved_stderr = dup(STDERR_FILENO);
  (void)dup2(file, STDOUT_FILENO);
  (void)dup2(file, STDERR_FILENO);
  cudaError_t refused = MAM_CudaMalloc(&none, (size_t)1 << 50), foreign_free = MAM_CudaFree(&foreign);
  (void)fflush(NULL);
  off_t quiet = lseek(file, 0, SEEK_END);
  setenv("MAM_LOG", "error", 1);
  (void)MAM_CudaFree(&foreign);
  (void)fflush(NULL);
  off_t told = lseek(file, 0, SEEK_END);
  (void)dup2(saved_stdout, STDOUT_FILENO);
  (void)dup2(saved_stderr, STDERR_FILENO);
  ck_assert_int_eq(refused, cudaErrorMemoryAllocation);
  ck_assert_int_eq(foreign_free, cudaErrorInvalidValue);
  ck_assert_int_eq(quiet, 0);
  ck_assert_int_gt(told, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("faults of the paper's program");
  TCase *tests = tcase_create("faults");
  tcase_add_checked_fixture(tests, set_up, NULL);
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, first_and_last_block_of_a_chunk_can_be_freed);
  tcase_add_test(tests, refused_calls_release_the_lock);
  tcase_add_test(tests, double_free_does_not_hand_a_block_out_twice);
  tcase_add_test(tests, zero_bytes_take_no_segment);
  tcase_add_test(tests, every_block_is_aligned_to_512);
  tcase_add_loop_test(tests, any_error_of_the_source_is_an_error, 0, 14);
  tcase_add_loop_test(tests, largest_chunk_is_found_whatever_is_left, 0, 20);
  tcase_add_test(tests, automatic_destruction_happens);
  tcase_add_test(tests, destroy_waits_for_those_who_allocate);
  tcase_add_test(tests, second_create_leaks_nothing_and_changes_nothing);
  tcase_add_test(tests, failures_are_quiet);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
