/* SPDX-License-Identifier: BSD-2-Clause */
/* The environment variables: which values are understood, how others are refused, and the defaults. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option_text.h"
#include "base/options.h"
#include "support/run_suite.h"

static struct options options;

START_TEST(defaults_are_those_of_the_table) {
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_int_eq(options.source, MAM_SOURCE_DEVICE);
  ck_assert(options.source_is_auto);
  ck_assert_int_eq(options.reuse, MAM_REUSE_FENCED);
  ck_assert_uint_eq(options.headroom_bytes, (size_t)256 << 20);
  ck_assert_uint_eq(options.linger_ms, 1000);
  ck_assert(!options_log_errors());
}
END_TEST

START_TEST(empty_value_means_the_default) {
  setenv("MAM_SOURCE", "", 1);
  setenv("MAM_HEADROOM", "", 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_int_eq(options.source, MAM_SOURCE_DEVICE);
  ck_assert(options.source_is_auto);
}
END_TEST

START_TEST(every_source_has_a_name) {
  static const char *const names[] = {"device", "pinned", "managed", "host", "vmm"};
  setenv("MAM_SOURCE", names[_i], 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_int_eq((int)options.source, _i);
  ck_assert(!options.source_is_auto);
}
END_TEST

START_TEST(chunks_are_device_memory) {
  setenv("MAM_SOURCE", "chunks", 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_int_eq(options.source, MAM_SOURCE_DEVICE);
  ck_assert(!options.source_is_auto);
  ck_assert(options.source_in_chunks);
}
END_TEST

START_TEST(bytes_take_a_suffix) {
  static const struct {
    const char *text;
    size_t bytes;
  } cases[] = {{"0", 0},
               {"1", 1},
               {"4K", 4096},
               {"3M", (size_t)3 << 20},
               {"2G", (size_t)2 << 30},
               {"4k", 4096},
               {"3m", (size_t)3 << 20},
               {"2g", (size_t)2 << 30}};
  setenv("MAM_HEADROOM", cases[_i].text, 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_uint_eq(options.headroom_bytes, cases[_i].bytes);
}
END_TEST

START_TEST(limit_is_bytes_or_a_percentage) {
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_uint_eq(options.limit_percent, 100);
  ck_assert_uint_eq(options.limit_bytes, 0);
  setenv("MAM_LIMIT", "50%", 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_uint_eq(options.limit_percent, 50);
  setenv("MAM_LIMIT", "12g", 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_uint_eq(options.limit_percent, 0);
  ck_assert_uint_eq(options.limit_bytes, (size_t)12 << 30);
}
END_TEST

START_TEST(every_rule_of_reuse_has_a_name) {
  static const char *const names[] = {"fenced", "immediate", "stream"};
  setenv("MAM_REUSE", names[_i], 1);
  ck_assert_int_eq(options_read(&options), cudaSuccess);
  ck_assert_int_eq((int)options.reuse, _i);
}
END_TEST

START_TEST(what_is_not_understood_is_named_and_changes_nothing) {
  static const struct {
    const char *name, *text;
  } cases[] = {{"MAM_SOURCE", "gpu"},
               {"MAM_SOURCE", "Host"},
               {"MAM_REUSE", "never"},
               {"MAM_HEADROOM", "-1"},
               {"MAM_HEADROOM", "1T"},
               {"MAM_HEADROOM", "1MB"},
               {"MAM_HEADROOM", " 1"},
               {"MAM_HEADROOM", "18014398509481984K"},
               {"MAM_HEADROOM", "99999999999999999999"},
               {"MAM_LINGER_MS", "4294967296"},
               {"MAM_LINGER_MS", "soon"},
               {"MAM_LOG", "verbose"},
               {"MAM_REPORT", "all"},
               {"MAM_LIMIT", "0"},
               {"MAM_LIMIT", "0%"},
               {"MAM_LIMIT", "101%"},
               {"MAM_LIMIT", "1M%"},
               {"MAM_LIMIT", "50%%"},
               {"MAM_LIMIT", "half"}};
  struct options before = {.source = MAM_SOURCE_PINNED, .headroom_bytes = 7};
  options = before;
  setenv(cases[_i].name, cases[_i].text, 1);
  ck_assert_int_eq(options_read(&options), cudaErrorInvalidValue);
  ck_assert_mem_eq(&options, &before, sizeof before);
  ck_assert_ptr_nonnull(strstr(error_last(), cases[_i].name));
  ck_assert_ptr_nonnull(strstr(error_last(), cases[_i].text));
}
END_TEST

START_TEST(devices_are_named_by_their_ordinals) {
  static const char *const wrong[] = {"a", "0 ", "0;1", "0x0", "-1", "99999999999", "0,", ",0", "0,,1"};
  static const char *const right[] = {"0", "1,3", "none", ""};
  struct options_preload preload;
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    setenv("MAM_PRELOAD_SKIP_DEVICES", wrong[i], 1);
    ck_assert_int_eq(options_read_preload(&preload), cudaErrorInvalidValue);
    ck_assert_ptr_nonnull(strstr(error_last(), "MAM_PRELOAD_SKIP_DEVICES"));
  }
  for (unsigned i = 0; i < sizeof right / sizeof right[0]; i++) {
    setenv("MAM_PRELOAD_SKIP_DEVICES", right[i], 1);
    ck_assert_int_eq(options_read_preload(&preload), cudaSuccess);
  }
}
END_TEST

START_TEST(log_is_on_only_for_error) {
  setenv("MAM_LOG", "error", 1);
  ck_assert(options_log_errors());
  setenv("MAM_LOG", "none", 1);
  ck_assert(!options_log_errors());
  setenv("MAM_LOG", "nonsense", 1);
  ck_assert(!options_log_errors());
}
END_TEST

/* Each call reports the mistake, and none remembers it. */
START_TEST(mistake_in_the_environment_reaches_the_caller_until_it_is_mended) {
  void *block = &block;
  setenv("MAM_SOURCE", "nonsense", 1);
  for (int i = 0; i < 2; i++) {
    ck_assert_int_eq(MAM_CudaMalloc(&block, 100), cudaErrorInvalidValue);
    ck_assert_ptr_null(block);
    ck_assert_ptr_nonnull(strstr(MAM_LastError(), "MAM_SOURCE=nonsense"));
  }
  ck_assert_int_eq(MAM_Create(1 << 20), cudaErrorInvalidValue);
  setenv("MAM_SOURCE", "host", 1);
  ck_assert_int_eq(MAM_CudaMalloc(&block, 100), cudaSuccess);
  memset(block, 1, 100); /* the block is host memory */
  ck_assert_int_eq(MAM_CudaFree(block), cudaSuccess);
}
END_TEST

/* With a driver or without one, the library does not fall back to host memory by itself. */
START_TEST(without_a_driver_nothing_is_allocated) {
  void *block = &block;
  const char *reason;
  cudaError_t error = MAM_CudaMalloc(&block, 100);
  if (error == cudaSuccess) { /* there is a GPU: the test cannot tell its address from a host address, and ends it */
    ck_assert_int_eq(MAM_CudaFree(block), cudaSuccess);
    return;
  }
  reason = MAM_LastError();
  ck_assert_ptr_null(block);
  ck_assert_msg(strlen(reason) > 0, "no reason given for error %d", (int)error);
  ck_assert_int_ne(MAM_Create(1 << 20), cudaSuccess);
  ck_assert_int_ne(MAM_Create_auto(), cudaSuccess);
  ck_assert_int_eq(MAM_Destroy(), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(NULL), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFree(&block), cudaErrorInvalidValue);
  ck_assert_int_ne(MAM_CudaMalloc(&block, 0), cudaSuccess);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("options");
  TCase *tests = tcase_create("options");
  tcase_add_test(tests, defaults_are_those_of_the_table);
  tcase_add_test(tests, empty_value_means_the_default);
  tcase_add_loop_test(tests, every_source_has_a_name, 0, 5);
  tcase_add_test(tests, chunks_are_device_memory);
  tcase_add_loop_test(tests, bytes_take_a_suffix, 0, 8);
  tcase_add_loop_test(tests, what_is_not_understood_is_named_and_changes_nothing, 0, 19);
  tcase_add_test(tests, limit_is_bytes_or_a_percentage);
  tcase_add_loop_test(tests, every_rule_of_reuse_has_a_name, 0, 3);
  tcase_add_test(tests, devices_are_named_by_their_ordinals);
  tcase_add_test(tests, log_is_on_only_for_error);
  tcase_add_test(tests, mistake_in_the_environment_reaches_the_caller_until_it_is_mended);
  tcase_add_test(tests, without_a_driver_nothing_is_allocated);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
