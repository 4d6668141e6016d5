/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap serves calls from lanes in any order: lanes that diverged, parts of warps, tiles of cooperative groups,
 * several kernels and streams at once.  Another thread, warp, kernel or stream may free a block.
 */
#include "gpu_heap_util.h"

enum { STREAMS = 6 };

static unsigned scaled(unsigned count) { return gpu_small() ? count / 32 + 33 : count; }

/* These lanes make requests; other threads check and free the blocks. */
static void lanes_are_served(enum gpu_heap_lanes lanes, unsigned low, unsigned high) {
  struct gpu_heap heap = gpu_heap_of(256 * MIB);
  struct gpu_heap_traffic traffic = {.count = scaled(50000), .low = low, .high = high, .lanes = lanes};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  for (unsigned round = 0; round < 4; round++) {
    traffic.seed = round;
    GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    /* 1, 33 or 65 places on: another lane of the same warp, or another warp */
    GPU_OK(gpu_heap_release(heap.handle, traffic, 1 + 32 * round, 0, 1, slots, tally, NULL));
    gpu_heap_sound(tally);
    ck_assert_uint_eq(gpu_heap_refused(tally), 0);
    ck_assert_uint_gt(tally->served, 0);
    ck_assert_uint_eq(tally->served, tally->freed);
    gpu_heap_holds(&heap, 0);
  }
}

START_TEST(whole_warps_are_served) { lanes_are_served(GPU_HEAP_TOGETHER, 4, 512); }
END_TEST
START_TEST(diverged_lanes_are_served) { lanes_are_served(GPU_HEAP_ONE_BY_ONE, 4, 512); }
END_TEST
START_TEST(tiles_of_cooperative_groups_are_served) { lanes_are_served(GPU_HEAP_IN_TILES, 4, 512); }
END_TEST
START_TEST(parts_of_warps_are_served) {
  lanes_are_served(GPU_HEAP_SOME, 64, 64);
  gpu_heap_test_end();
  lanes_are_served(GPU_HEAP_SOME, 1, 3000);
}
END_TEST

/* ---- Hands ------------------------------------------------------------------------------------------------------- */

START_TEST(blocks_change_hands_within_a_kernel) {
  struct gpu_heap heap = gpu_heap_of(512 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = scaled(60000), .low = 16, .high = 400, .seed = 1};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  for (unsigned i = 0; i < 3; i++) {
    GPU_OK(gpu_heap_exchange(heap.handle, traffic, gpu_small() ? 3 : 20, slots, tally, NULL));
    GPU_OK(gpu_heap_drain(heap.handle, traffic, slots, tally, NULL));
    gpu_heap_sound(tally);
    ck_assert_uint_eq(gpu_heap_refused(tally), 0);
    ck_assert_uint_eq(tally->served, tally->freed);
    gpu_heap_holds(&heap, 0);
  }
}
END_TEST

static void streams_open(cudaStream_t streams[STREAMS]) {
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
}

static void streams_close(const cudaStream_t streams[STREAMS]) {
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(cudaStreamDestroy(streams[i]));
}

START_TEST(blocks_are_freed_on_another_stream) {
  struct gpu_heap heap = gpu_heap_of(256 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = scaled(50000), .low = 1, .high = 600};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  cudaStream_t streams[STREAMS];
  streams_open(streams);
  for (unsigned i = 0; i < STREAMS; i++) {
    GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, streams[i]));
    GPU_OK(cudaStreamSynchronize(streams[i]));
    GPU_OK(gpu_heap_check(traffic, slots, tally, streams[(i + 1) % STREAMS]));
    GPU_OK(gpu_heap_release(heap.handle, traffic, 5000, 0, 1, slots, tally, streams[(i + 1) % STREAMS]));
    GPU_OK(cudaStreamSynchronize(streams[(i + 1) % STREAMS]));
  }
  gpu_heap_sound(tally);
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  gpu_heap_holds(&heap, 0);
  streams_close(streams);
}
END_TEST

START_TEST(kernels_of_several_streams_use_one_heap_at_once) {
  struct gpu_heap heap = gpu_heap_of(GIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = scaled(20000), .low = 1, .high = 700};
  unsigned long long *slots = gpu_heap_slots((size_t)STREAMS * traffic.count);
  cudaStream_t streams[STREAMS];
  streams_open(streams);
  for (unsigned round = 0; round < (gpu_small() ? 1 : 5); round++)
    for (unsigned i = 0; i < STREAMS; i++) {
      unsigned long long *own = slots + (size_t)i * traffic.count;
      traffic.seed = i;
      traffic.lanes = i % 2 == 0 ? GPU_HEAP_TOGETHER : GPU_HEAP_SOME;
      GPU_OK(gpu_heap_allocate(heap.handle, traffic, own, tally, streams[i]));
      GPU_OK(gpu_heap_churn(heap.handle, traffic, 4, tally, streams[i]));
      GPU_OK(gpu_heap_check(traffic, own, tally, streams[i]));
      GPU_OK(gpu_heap_release(heap.handle, traffic, 100, round % 2, 2, own, tally, streams[i]));
    }
  gpu_heap_sound(tally);
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  gpu_heap_holds(&heap, tally->served - tally->freed);
  streams_close(streams);
}
END_TEST

START_TEST(two_heaps_keep_apart) {
  struct gpu_heap one = gpu_heap_of(64 * MIB), other = gpu_heap_of(64 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = scaled(20000), .low = 1, .high = 500};
  unsigned long long *slots = gpu_heap_slots(traffic.count), *other_slots = gpu_heap_slots(traffic.count);
  GPU_OK(gpu_heap_allocate(one.handle, traffic, slots, tally, NULL));
  GPU_OK(gpu_heap_allocate(other.handle, traffic, other_slots, tally, NULL));
  gpu_heap_sound(tally);
  GPU_OK(gpu_heap_release(one.handle, traffic, 3, 0, 1, slots, tally, NULL));
  GPU_OK(gpu_heap_check(traffic, other_slots, tally, NULL));
  gpu_heap_sound(tally);
  gpu_heap_holds(&one, 0);
  gpu_heap_holds(&other, traffic.count);
}
END_TEST

/* ---- Recursion --------------------------------------------------------------------------------------------------- */

/* The program leaves the limit of the stack as it is.  A frame is smaller from compute capability 9.0 on. */
static void trees_grow(size_t heap_bytes, unsigned blocks) {
  struct gpu_heap heap = gpu_heap_of(heap_bytes);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  size_t stack = 0;
  int major = 0;
  GPU_OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
  GPU_OK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  ck_assert_uint_eq(stack, 1024);
  for (unsigned i = 0; i < 3; i++) {
    GPU_OK(gpu_heap_trees(heap.handle, blocks, major >= 9 ? 7 : 4, gpu_small() ? 2 : 20, tally, NULL));
    GPU_OK(cudaDeviceSynchronize());
    ck_assert_uint_eq(tally->changed_bytes, 0);
    ck_assert_uint_gt(tally->served, 0);
    gpu_heap_holds(&heap, 0);
  }
}

START_TEST(recursive_kernels_run_on_the_default_stack) { trees_grow(512 * MIB, 100); }
END_TEST
START_TEST(recursive_kernels_run_on_the_default_stack_in_a_full_heap) { trees_grow(8 * MIB, gpu_small() ? 20 : 528); }
END_TEST

static Suite *heap_lanes_suite(void) {
  Suite *suite = suite_create("callers of device heaps");
  TCase *lanes = gpu_heap_case_add(suite, "lanes");
  tcase_add_test(lanes, whole_warps_are_served);
  tcase_add_test(lanes, diverged_lanes_are_served);
  tcase_add_test(lanes, tiles_of_cooperative_groups_are_served);
  tcase_add_test(lanes, parts_of_warps_are_served);
  TCase *hands = gpu_heap_case_add(suite, "hands");
  tcase_add_test(hands, blocks_change_hands_within_a_kernel);
  tcase_add_test(hands, blocks_are_freed_on_another_stream);
  tcase_add_test(hands, kernels_of_several_streams_use_one_heap_at_once);
  tcase_add_test(hands, two_heaps_keep_apart);
  TCase *recursion = gpu_heap_case_add(suite, "recursion");
  tcase_add_test(recursion, recursive_kernels_run_on_the_default_stack);
  tcase_add_test(recursion, recursive_kernels_run_on_the_default_stack_in_a_full_heap);
  return suite;
}

int main(void) { return gpu_heap_main(heap_lanes_suite); }
