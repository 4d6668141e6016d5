/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Warp heaps on a GPU.  In whatever way lanes come to their calls, each byte is its owner's until its lane tidies up or
 * ends.  A later kernel gets what was handed over, and the host finds what was never ended.  A full heap refuses and
 * loses nothing. Misuse does no harm, and kernels that check notice it.
 */
#include "gpu_heap_util.h"
#include "gpu_warp_kernels.h"
#include "mam/warp.h"

enum { KIB = 1024 };

static const mam_warp_options usual = MAM_WARP_OPTIONS_INIT, tiny = {2 * KIB, 256, 3, 16, 2 * KIB};

/* Fewer warps under a sanitizer. */
static unsigned scaled(unsigned count) { return gpu_small() && count > 200 ? 200 : count; }

static struct gpu_heap heap_of(size_t bytes) {
  return gpu_heap_of(gpu_small() && bytes > 128 * MIB ? 128 * MIB : bytes);
}

static uint64_t *words_new(size_t count) { return gpu_heap_array(count * sizeof(uint64_t)); }
static struct gpu_warp_tally *tally_new(void) { return gpu_heap_array(sizeof(struct gpu_warp_tally)); }

static unsigned long long refused(const struct gpu_warp_tally *tally) {
  unsigned long long sum = 0;
  for (int i = 0; i < 5; i++)
    sum += tally->refused[i];
  return sum;
}

/* Waits for the GPU, and fails on anything that is wrong whatever the traffic. */
static void sound(const struct gpu_warp_tally *tally) {
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(tally->changed_bytes, 0);
  ck_assert_uint_eq(tally->misaligned, 0);
  ck_assert_uint_eq(tally->contradictions, 0);
}

static size_t left_behind(const struct gpu_heap *heap) {
  size_t count = 12345;
  MAM_OK(MAM_WarpList(heap->heap, NULL, 0, &count));
  return count;
}

static struct gpu_warp_traffic traffic_of(unsigned lanes, mam_warp_options options) {
  return (struct gpu_warp_traffic){.threads = scaled(6000),
                                   .requests = gpu_small() ? 6 : 20,
                                   .rounds = 4,
                                   .low = 1,
                                   .high = 300,
                                   .lanes = lanes,
                                   .options = options};
}

/* ---- Lanes ------------------------------------------------------------------------------------------------------- */

/* First traffic that ends its headers; then traffic that hands them over, which other kernels check and end. */
static void traffic_is_served(struct gpu_warp_traffic traffic) {
  struct gpu_heap heap = heap_of(512 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  uint64_t *headers = words_new(traffic.threads);
  uint64_t *blocks = words_new((size_t)traffic.threads * traffic.requests);
  unsigned long long started = 0; /* threads of the first traffic */
  for (int keeps = 0; keeps < 2; keeps++) {
    traffic.seed++;
    started = tally->started;
    GPU_OK(gpu_warp_run(heap.handle, traffic, keeps, headers, blocks, tally));
    sound(tally);
    ck_assert_uint_gt(tally->served, 0);
    ck_assert_uint_eq(refused(tally), 0);
    ck_assert_uint_eq(tally->not_started, 0);
    if (!keeps)
      gpu_heap_holds(&heap, 0);
  }
  ck_assert_uint_gt(left_behind(&heap), 0);
  GPU_OK(gpu_warp_check(traffic, headers, blocks, tally));
  GPU_OK(gpu_warp_finish(traffic, headers, tally));
  sound(tally);
  ck_assert_uint_eq(tally->adopted, tally->started - started);
  ck_assert_uint_eq(left_behind(&heap), 0);
  gpu_heap_holds(&heap, 0);
}

static const unsigned all_lanes[] = {
    GPU_WARP_TOGETHER,  GPU_WARP_SOME,      GPU_WARP_FULL_MASK, GPU_WARP_PASSERS_BY, GPU_WARP_ONE_BY_ONE,
    GPU_WARP_HALVES,    GPU_WARP_TIDY_LESS, GPU_WARP_END_EARLY, GPU_WARP_TILES,      GPU_WARP_TILES + 1,
    GPU_WARP_TILES + 2, GPU_WARP_TILES + 3, GPU_WARP_TILES + 4, GPU_WARP_TILES + 5,
};

START_TEST(lanes_are_served_however_they_come) { traffic_is_served(traffic_of(all_lanes[_i], usual)); }
END_TEST
START_TEST(lanes_share_small_superblocks_and_lists) { traffic_is_served(traffic_of(all_lanes[_i], tiny)); }
END_TEST

START_TEST(equal_requests_are_served) {
  struct gpu_warp_traffic traffic = traffic_of(all_lanes[_i], usual);
  traffic.low = traffic.high = 48;
  traffic_is_served(traffic);
}
END_TEST

START_TEST(requests_larger_than_superblocks_are_served) {
  struct gpu_warp_traffic traffic = traffic_of(_i == 0 ? GPU_WARP_TOGETHER : GPU_WARP_SOME, usual);
  traffic.threads = scaled(256);
  traffic.low = 100;
  traffic.high = 40000;
  traffic.requests = 6;
  traffic_is_served(traffic);
}
END_TEST

START_TEST(blocks_may_be_larger) {
  struct gpu_warp_traffic traffic = traffic_of(GPU_WARP_TOGETHER, usual);
  traffic.options.block_bytes = 64;
  traffic.options.first_bytes = 4096;
  traffic_is_served(traffic);
}
END_TEST

/* ---- What the host finds ----------------------------------------------------------------------------------------- */

START_TEST(headers_never_ended_are_listed_and_can_be_ended) {
  struct gpu_heap heap = heap_of(256 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  struct gpu_warp_traffic traffic = traffic_of(GPU_WARP_TOGETHER, usual);
  traffic.threads = 640;
  uint64_t *headers = words_new(traffic.threads);
  uint64_t *blocks = words_new((size_t)traffic.threads * traffic.requests);
  GPU_OK(gpu_warp_run(heap.handle, traffic, 1, headers, blocks, tally));
  sound(tally);
  MAM_WarpHeader found[40];
  size_t count = 0;
  MAM_OK(MAM_WarpList(heap.heap, found, 40, &count));
  ck_assert_uint_eq(count, 20);
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    ck_assert(i == 0 || (uintptr_t)found[i].address > (uintptr_t)found[i - 1].address);
    ck_assert_uint_eq(found[i].handed_over, 1);
    ck_assert_uint_eq(found[i].total_lanes, 0);
    ck_assert_uint_eq(found[i].block_bytes, 16);
    bytes += found[i].bytes;
  }
  ck_assert_uint_eq(bytes, gpu_heap_info(&heap).used_bytes);
  MAM_OK(MAM_WarpList(heap.heap, found, 3, &count));
  ck_assert_uint_eq(count, 20);
  MAM_OK(MAM_WarpList(heap.heap, found, 40, &count));
  for (size_t i = 0; i < count; i++)
    MAM_OK(MAM_WarpEnd(heap.heap, found[i].address));
  MAM_IS(MAM_WarpEnd(heap.heap, found[0].address), cudaErrorInvalidValue);
  MAM_OK(MAM_WarpEnd(heap.heap, NULL));
  gpu_heap_holds(&heap, 0);
  ck_assert_uint_eq(left_behind(&heap), 0);
}
END_TEST

START_TEST(ended_headers_wait_for_others_and_go_with_a_trim) {
  struct gpu_heap heap = heap_of(256 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  struct gpu_warp_traffic traffic = traffic_of(GPU_WARP_TOGETHER, usual);
  uint64_t *blocks = words_new((size_t)traffic.threads * traffic.requests);
  for (int i = 0; i < 3; i++) {
    GPU_OK(gpu_warp_run(heap.handle, traffic, 0, NULL, blocks, tally));
    sound(tally);
    gpu_heap_holds(&heap, 0);
    ck_assert_uint_gt(gpu_heap_info(&heap).held_count, 0);
  }
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  MAM_HeapInfo info = gpu_heap_info(&heap);
  ck_assert_uint_eq(info.held_count, 0);
  ck_assert_uint_eq(info.free_page_count, info.page_count);
  GPU_OK(gpu_warp_run(heap.handle, traffic, 0, NULL, blocks, tally));
  sound(tally);
  MAM_OK(MAM_HeapReset(heap.heap));
  GPU_OK(gpu_warp_run(heap.handle, traffic, 0, NULL, blocks, tally));
  sound(tally);
  ck_assert_uint_eq(refused(tally), 0);
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* ---- A full heap ------------------------------------------------------------------------------------------------- */

START_TEST(a_full_heap_refuses_and_loses_nothing) {
  struct gpu_heap heap = heap_of(gpu_small() ? MIB / 2 : 4 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  struct gpu_warp_traffic traffic = traffic_of(all_lanes[_i], usual);
  traffic.threads = gpu_small() ? 2048 : 16384;
  traffic.rounds = 2;
  uint64_t *blocks = words_new((size_t)traffic.threads * traffic.requests);
  for (int i = 0; i < 3; i++) {
    GPU_OK(gpu_warp_run(heap.handle, traffic, 0, NULL, blocks, tally));
    sound(tally);
    gpu_heap_holds(&heap, 0);
    ck_assert_uint_eq(left_behind(&heap), 0);
  }
  if (all_lanes[_i] < GPU_WARP_TILES) /* small groups may run one after another, when each finds room */
    ck_assert_uint_gt(tally->refused[MAM_HEAP_FULL] + tally->not_started, 0);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_BAD] + tally->refused[MAM_HEAP_ZERO], 0);
  ck_assert_uint_gt(tally->served, 0);
}
END_TEST

START_TEST(a_refusal_says_why) {
  struct gpu_heap heap = heap_of(16 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  struct gpu_warp_traffic traffic = traffic_of(GPU_WARP_TOGETHER, usual);
  traffic.threads = 32;
  traffic.rounds = traffic.requests = 1;
  uint64_t *blocks = words_new(traffic.threads);
  traffic.low = traffic.high = 0;
  GPU_OK(gpu_warp_run(heap.handle, traffic, 0, NULL, blocks, tally));
  sound(tally);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_ZERO], 32);
  traffic.low = traffic.high = 64 * MIB;
  GPU_OK(gpu_warp_run(heap.handle, traffic, 0, NULL, blocks, tally));
  sound(tally);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_TOO_LARGE], 32);
  ck_assert_uint_eq(tally->served, 0);
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* ---- Misuse ------------------------------------------------------------------------------------------------------ */

/* Of 64 threads in two warps 13 start, which makes two headers, and one of the 13 ends. */
static void listing_2_does_no_harm(bool is_checked) {
  struct gpu_heap heap = heap_of(16 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  uint64_t *headers = words_new(64);
  GPU_OK(is_checked ? gpu_warp_checked_misuse(heap.handle, 64, headers, tally)
                    : gpu_warp_misuse(heap.handle, 64, headers, tally));
  sound(tally);
  ck_assert_uint_eq(tally->served, 13);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_BAD], 64 - 13);
  MAM_WarpHeader found[4];
  size_t count = 0;
  MAM_OK(MAM_WarpList(heap.heap, found, 4, &count));
  ck_assert_uint_eq(count, 2); /* neither header was ended by all its lanes */
  for (size_t i = 0; i < count; i++) {
    bool is_first = found[i].address == (void *)(uintptr_t)headers[0];
    ck_assert(is_first || found[i].address == (void *)(uintptr_t)headers[35]);
    /* Lanes 0, 5, ... without the one that ended; lanes 3, 8, ... */
    ck_assert_uint_eq(found[i].total_lanes, is_first ? 0x42108401 : 0x10842108);
    MAM_OK(MAM_WarpEnd(heap.heap, found[i].address));
  }
  gpu_heap_holds(&heap, 0);
}

START_TEST(lanes_that_did_not_start_get_nothing) { listing_2_does_no_harm(false); }
END_TEST
START_TEST(lanes_that_did_not_start_get_nothing_when_checked) { listing_2_does_no_harm(true); }
END_TEST

START_TEST(another_warp_s_header_is_noticed_by_checks) {
  struct gpu_heap heap = heap_of(16 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  struct gpu_warp_traffic traffic = traffic_of(GPU_WARP_TOGETHER, usual);
  traffic.threads = 256;
  uint64_t *headers = words_new(traffic.threads);
  uint64_t *blocks = words_new((size_t)traffic.threads * traffic.requests);
  GPU_OK(gpu_warp_checked_run(heap.handle, traffic, 1, headers, blocks, tally));
  sound(tally);
  ck_assert_uint_eq(refused(tally), 0);
  unsigned long long served = tally->served;
  GPU_OK(gpu_warp_checked_intrude(headers, traffic.threads, tally));
  sound(tally);
  ck_assert_uint_eq(tally->served, served);
  ck_assert_uint_gt(gpu_heap_info(&heap).refused_free_count, 0);
  GPU_OK(gpu_warp_checked_check(traffic, headers, blocks, tally));
  GPU_OK(gpu_warp_checked_finish(traffic, headers, tally));
  sound(tally);
  ck_assert_uint_eq(tally->adopted, traffic.threads);
  ck_assert_uint_eq(left_behind(&heap), 0);
}
END_TEST

START_TEST(checked_kernels_do_the_same) {
  struct gpu_heap heap = heap_of(256 * MIB);
  struct gpu_warp_tally *tally = tally_new();
  struct gpu_warp_traffic traffic = traffic_of(all_lanes[_i], usual);
  traffic.threads = scaled(1000);
  uint64_t *blocks = words_new((size_t)traffic.threads * traffic.requests);
  GPU_OK(gpu_warp_checked_run(heap.handle, traffic, 0, NULL, blocks, tally));
  sound(tally);
  ck_assert_uint_eq(refused(tally), 0);
  gpu_heap_holds(&heap, 0);
}
END_TEST

static Suite *warp_suite(void) {
  const int lanes = sizeof all_lanes / sizeof all_lanes[0], some = gpu_small() ? 3 : lanes;
  Suite *suite = suite_create("warp heaps on a GPU");
  TCase *data = gpu_heap_case_add(suite, "data");
  tcase_set_timeout(data, 60);
  tcase_add_loop_test(data, lanes_are_served_however_they_come, 0, lanes);
  tcase_add_loop_test(data, lanes_share_small_superblocks_and_lists, 0, lanes);
  tcase_add_loop_test(data, equal_requests_are_served, 0, lanes);
  tcase_add_loop_test(data, requests_larger_than_superblocks_are_served, 0, 2);
  tcase_add_test(data, blocks_may_be_larger);
  TCase *host = gpu_heap_case_add(suite, "the host");
  tcase_add_test(host, headers_never_ended_are_listed_and_can_be_ended);
  tcase_add_test(host, ended_headers_wait_for_others_and_go_with_a_trim);
  TCase *full = gpu_heap_case_add(suite, "a full heap");
  tcase_add_loop_test(full, a_full_heap_refuses_and_loses_nothing, 0, some);
  tcase_add_test(full, a_refusal_says_why);
  TCase *misuse = gpu_heap_case_add(suite, "misuse");
  tcase_add_test(misuse, lanes_that_did_not_start_get_nothing);
  tcase_add_test(misuse, lanes_that_did_not_start_get_nothing_when_checked);
  tcase_add_test(misuse, another_warp_s_header_is_noticed_by_checks);
  tcase_add_loop_test(misuse, checked_kernels_do_the_same, 0, some);
  return suite;
}

int main(void) { return gpu_heap_main(warp_suite); }
