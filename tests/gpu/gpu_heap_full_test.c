/* SPDX-License-Identifier: BSD-2-Clause */
/* A device heap at its limits: full and empty again, grown between kernels, trimmed, reset, misused. */
#include "gpu_heap_util.h"

/* ---- Full -------------------------------------------------------------------------------------------------------- */

/* Fills the heap with more requests than it can serve, empties it, and repeats that.  As much must fit each time. */
static void fills_and_recovers(size_t heap_bytes, unsigned low, unsigned high, double least_share) {
  struct gpu_heap heap = gpu_heap_of(heap_bytes);
  double mean = (low + (double)high) / 2;
  struct gpu_heap_traffic traffic = {.count = (unsigned)((double)heap_bytes * 1.25 / mean), .low = low, .high = high};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  for (unsigned round = 0; round < 4; round++) {
    unsigned long long served = tally->served, refused = tally->refused[MAM_HEAP_FULL];
    GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    gpu_heap_sound(tally);
    served = tally->served - served;
    ck_assert_uint_gt(tally->refused[MAM_HEAP_FULL], refused);
    ck_assert_uint_eq(gpu_heap_refused(tally), tally->refused[MAM_HEAP_FULL]);
    ck_assert_msg((double)served * mean >= least_share * (double)heap_bytes, "round %u: only %llu blocks of %u to %u",
                  round, served, low, high);
    gpu_heap_holds(&heap, served);
    ck_assert_uint_ge(gpu_heap_info(&heap).failure_count, 1);
    GPU_OK(gpu_heap_release(heap.handle, traffic, 777, 0, 1, slots, tally, NULL));
    gpu_heap_sound(tally);
    gpu_heap_holds(&heap, 0);
  }
}

START_TEST(full_heap_of_one_size_answers_and_recovers) {
  static const unsigned sizes[] = {16, 64, 256, 1024, 4096};
  fills_and_recovers(gpu_small() ? 4 * MIB : 64 * MIB, sizes[_i], sizes[_i], 0.9);
}
END_TEST

START_TEST(small_heap_of_mixed_sizes_answers_and_recovers) { fills_and_recovers(8 * MIB, 4, 512, 0.75); }
END_TEST

START_TEST(smallest_heap_answers_and_recovers) { fills_and_recovers(256 * 1024, 16, 64, 0.5); }
END_TEST

START_TEST(memory_of_one_size_serves_another_afterwards) {
  struct gpu_heap heap = gpu_heap_of(16 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  static const unsigned sizes[] = {16, 4096, 48, 1000, 16, 160};
  unsigned long long *slots = gpu_heap_slots(16 * MIB / 16);
  for (unsigned i = 0; i < 6; i++) {
    struct gpu_heap_traffic traffic = {
        .count = (unsigned)(14 * MIB / ((sizes[i] + 15) / 16 * 16)), .low = sizes[i], .high = sizes[i], .seed = i};
    unsigned long long served = tally->served;
    GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_release(heap.handle, traffic, 5, 0, 1, slots, tally, NULL));
    gpu_heap_sound(tally);
    ck_assert_msg((double)(tally->served - served) >= 0.9 * traffic.count, "of %u blocks of %u bytes only %llu",
                  traffic.count, sizes[i], tally->served - served);
  }
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* Blocks of all classes come and go; then the empty heap is asked for runs, by all threads at once.  What the slots of
 * the classes still keep must come back for them. */
START_TEST(runs_find_what_small_blocks_left) {
  static const unsigned shares[] = {30, 60, 90};
  enum { run_bytes = 128 * 1024, least_log = 4, classes_end_log = 15 };
  size_t heap_bytes = gpu_small() ? 16 * MIB : 512 * MIB;
  for (unsigned i = 0; i < 3; i++) {
    struct gpu_heap heap = gpu_heap_of(heap_bytes);
    struct gpu_heap_tally *tally = gpu_heap_tally_new();
    for (unsigned log = least_log; log < classes_end_log; log++) {
      struct gpu_heap_traffic small = {
          .count = (unsigned)(heap_bytes / 4096), .low = 1u << log, .high = (2u << log) - 1, .seed = log};
      GPU_OK(gpu_heap_churn(heap.handle, small, 4, tally, NULL));
    }
    gpu_heap_sound(tally);
    gpu_heap_holds(&heap, 0);
    struct gpu_heap_traffic runs = {
        .count = (unsigned)(heap_bytes * shares[i] / 100 / run_bytes), .low = run_bytes, .high = run_bytes};
    unsigned long long *slots = gpu_heap_slots(runs.count), served = tally->served;
    GPU_OK(gpu_heap_allocate(heap.handle, runs, slots, tally, NULL));
    GPU_OK(gpu_heap_check(runs, slots, tally, NULL));
    gpu_heap_sound(tally);
    served = tally->served - served;
    ck_assert_msg(served >= runs.count * (shares[i] > 60 ? 0.8 : 1), "%u%% of the heap: of %u runs only %llu",
                  shares[i], runs.count, served);
    GPU_OK(gpu_heap_release(heap.handle, runs, 0, 0, 1, slots, tally, NULL));
    gpu_heap_sound(tally);
    gpu_heap_holds(&heap, 0);
  }
}
END_TEST

START_TEST(answers_say_why_there_is_no_block) {
  struct gpu_heap heap = gpu_heap_of(4 * MIB);
  unsigned long long *slot = gpu_heap_slots(1);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  GPU_OK(gpu_heap_ask(heap.handle, 0, slot, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_ZERO], 1);
  GPU_OK(gpu_heap_ask(heap.handle, 4 * MIB + 1, slot, tally, NULL));
  GPU_OK(gpu_heap_ask(heap.handle, (unsigned long long)1 << 40, slot, tally, NULL));
  GPU_OK(gpu_heap_ask(heap.handle, ~0ull, slot, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_TOO_LARGE], 3);
  ck_assert_uint_eq(tally->served, 0);
  mam_device_heap nothing = {0};
  GPU_OK(gpu_heap_ask(nothing, 16, slot, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_BAD], 1);
  ck_assert_uint_eq(*slot, 0);
}
END_TEST

/* ---- Growth ------------------------------------------------------------------------------------------------------ */

START_TEST(heap_grows_between_kernels_and_trims) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = 8 * MIB;
  options.limit_bytes = 64 * MIB;
  struct gpu_heap heap = gpu_heap_new(&options);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = (unsigned)(40 * MIB / 256), .low = 256, .high = 256};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_lt(tally->served, traffic.count);
  for (unsigned i = 0; i < 5; i++)
    MAM_OK(MAM_HeapGrow(heap.heap, 8 * MIB));
  ck_assert_uint_eq(gpu_heap_info(&heap).reserved_bytes, 48 * MIB);
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
  gpu_heap_sound(tally);
  gpu_heap_holds(&heap, traffic.count);
  MAM_IS(MAM_HeapGrow(heap.heap, 64 * MIB), cudaErrorMemoryAllocation);
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
  GPU_OK(gpu_heap_release(heap.handle, traffic, 9, 0, 1, slots, tally, NULL));
  gpu_heap_sound(tally);
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  ck_assert_uint_eq(gpu_heap_info(&heap).reserved_bytes, 8 * MIB);
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* ---- Reset and misuse -------------------------------------------------------------------------------------------- */

START_TEST(reset_frees_everything) {
  struct gpu_heap heap = gpu_heap_of(32 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = 20000, .low = 1, .high = 900};
  for (unsigned i = 0; i < 10; i++) {
    unsigned long long *slots = gpu_heap_slots(traffic.count);
    traffic.seed = i;
    GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    gpu_heap_sound(tally);
    ck_assert_uint_eq(gpu_heap_refused(tally), 0);
    gpu_heap_holds(&heap, traffic.count);
    MAM_OK(MAM_HeapReset(heap.heap));
    gpu_heap_holds(&heap, 0);
  }
}
END_TEST

START_TEST(double_and_foreign_frees_are_counted_and_harm_nothing) {
  struct gpu_heap heap = gpu_heap_of(16 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = 1000, .low = 64, .high = 64};
  unsigned long long *slots = gpu_heap_slots(traffic.count), *slot = gpu_heap_slots(1);
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  GPU_OK(gpu_heap_ask(heap.handle, 64, slot, tally, NULL));
  gpu_heap_sound(tally);
  GPU_OK(gpu_heap_free_address(heap.handle, 0, NULL));
  GPU_OK(gpu_heap_free_address(heap.handle, *slot, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(gpu_heap_info(&heap).refused_free_count, 0);
  GPU_OK(gpu_heap_free_address(heap.handle, *slot, NULL));
  GPU_OK(gpu_heap_free_address(heap.handle, (unsigned long long)(uintptr_t)slots, NULL));
  GPU_OK(gpu_heap_free_address(heap.handle, 16, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(gpu_heap_info(&heap).refused_free_count, 3);
  ck_assert_uint_eq(gpu_heap_info(&heap).live_count, traffic.count);
  GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
  GPU_OK(gpu_heap_release(heap.handle, traffic, 0, 0, 1, slots, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_eq(gpu_heap_info(&heap).live_count, 0);
}
END_TEST

static Suite *heap_full_suite(void) {
  Suite *suite = suite_create("ends of device heaps");
  TCase *full = gpu_heap_case_add(suite, "full");
  tcase_add_loop_test(full, full_heap_of_one_size_answers_and_recovers, 0, 5);
  tcase_add_test(full, small_heap_of_mixed_sizes_answers_and_recovers);
  tcase_add_test(full, smallest_heap_answers_and_recovers);
  tcase_add_test(full, memory_of_one_size_serves_another_afterwards);
  tcase_add_test(full, runs_find_what_small_blocks_left);
  tcase_add_test(full, answers_say_why_there_is_no_block);
  TCase *growth = gpu_heap_case_add(suite, "growth");
  tcase_add_test(growth, heap_grows_between_kernels_and_trims);
  TCase *reset = gpu_heap_case_add(suite, "reset and misuse");
  tcase_add_test(reset, reset_frees_everything);
  tcase_add_test(reset, double_and_foreign_frees_are_counted_and_harm_nothing);
  return suite;
}

int main(void) { return gpu_heap_main(heap_full_suite); }
