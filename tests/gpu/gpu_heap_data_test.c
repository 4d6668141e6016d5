/* SPDX-License-Identifier: BSD-2-Clause */
/* A block of a device heap keeps what is written to it: every byte, over many kernels, at every size. */
#include "gpu_heap_util.h"

static unsigned scaled(unsigned count) { return gpu_small() ? count / 32 + 33 : count; }

/* Some blocks live on while others come and go. */
static void blocks_survive(const struct gpu_heap *heap, struct gpu_heap_traffic traffic, unsigned rounds) {
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  GPU_OK(gpu_heap_allocate(heap->handle, traffic, slots, tally, NULL));
  for (unsigned round = 0; round < rounds; round++) {
    /* A third of the blocks is freed and allocated again, another third each time.  All are checked before and
     * after. */
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_release(heap->handle, traffic, round * 37, round % 3, 3, slots, tally, NULL));
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_allocate(heap->handle, traffic, slots, tally, NULL));
  }
  GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  gpu_heap_holds(heap, tally->served - tally->freed);
  ck_assert_uint_eq(tally->served - tally->freed, traffic.count);
  GPU_OK(gpu_heap_release(heap->handle, traffic, 11, 0, 1, slots, tally, NULL));
  gpu_heap_sound(tally);
  gpu_heap_holds(heap, 0);
}

START_TEST(blocks_of_one_size_keep_their_bytes) {
  static const unsigned sizes[] = {1, 16, 24, 64, 100, 256, 700, 1024, 4096, 5000};
  struct gpu_heap heap = gpu_heap_of(512 * MIB);
  unsigned size = sizes[_i];
  blocks_survive(&heap, (struct gpu_heap_traffic){.count = scaled(30000), .low = size, .high = size, .seed = 7}, 9);
}
END_TEST

START_TEST(blocks_of_mixed_sizes_keep_their_bytes) {
  struct gpu_heap heap = gpu_heap_of(512 * MIB);
  blocks_survive(&heap, (struct gpu_heap_traffic){.count = scaled(100000), .low = 4, .high = 512, .seed = 3}, 9);
  blocks_survive(&heap, (struct gpu_heap_traffic){.count = scaled(20000), .low = 1, .high = 9000, .seed = 5}, 6);
  blocks_survive(&heap, (struct gpu_heap_traffic){.count = 500, .low = 1, .high = 200000, .seed = 9}, 6);
}
END_TEST

START_TEST(every_small_size_is_served_and_large_enough) {
  struct gpu_heap heap = gpu_heap_of(512 * MIB);
  /* There are as many requests as sizes, so each size comes once. */
  blocks_survive(&heap, (struct gpu_heap_traffic){.count = 4096, .low = 1, .high = 4096}, 1);
  blocks_survive(&heap, (struct gpu_heap_traffic){.count = scaled(8192), .low = 4097, .high = 65536}, 1);
}
END_TEST

START_TEST(churn_within_a_kernel_keeps_bytes) {
  struct gpu_heap heap = gpu_heap_of(512 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  static const unsigned highs[] = {16, 64, 512, 3000};
  for (unsigned i = 0; i < 4; i++) {
    struct gpu_heap_traffic traffic = {.count = scaled(40000), .low = 1, .high = highs[i], .seed = i};
    GPU_OK(gpu_heap_churn(heap.handle, traffic, gpu_small() ? 4 : 30, tally, NULL));
    gpu_heap_sound(tally);
    ck_assert_uint_eq(gpu_heap_refused(tally), 0);
    ck_assert_uint_eq(tally->served, tally->freed);
    gpu_heap_holds(&heap, 0);
  }
}
END_TEST

/* ---- Large blocks ------------------------------------------------------------------------------------------------ */

/* Asks for one block; 0 if it is refused. */
static unsigned long long ask(const struct gpu_heap *heap, size_t bytes, unsigned long long *slot,
                              struct gpu_heap_tally *tally) {
  GPU_OK(gpu_heap_ask(heap->handle, bytes, slot, tally, NULL));
  gpu_heap_sound(tally);
  return *slot;
}

/* Allocates one block, writes and reads all of it, and frees it. */
static void large_block_is_served(const struct gpu_heap *heap, size_t bytes, unsigned long long *slot,
                                  struct gpu_heap_tally *tally, uint64_t *mismatches) {
  size_t largest = gpu_heap_info(heap).largest_free_bytes;
  void *block = (void *)(uintptr_t)ask(heap, bytes, slot, tally);
  ck_assert_msg(block != NULL, "%zu bytes were refused while %zu are free in one piece", bytes, largest);
  GPU_OK(gpu_fill(block, bytes, (uint32_t)bytes, NULL));
  GPU_OK(gpu_check(block, bytes, (uint32_t)bytes, mismatches, NULL));
  GPU_OK(gpu_heap_free_address(heap->handle, *slot, NULL));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(*mismatches, 0);
}

/* Small blocks leave pages set aside for a multiprocessor, so the largest sizes come first. */
START_TEST(large_sizes_are_served_up_to_the_largest_free_run) {
  struct gpu_heap heap = gpu_heap_of(64 * MIB);
  unsigned long long *slot = gpu_heap_slots(1);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  uint64_t *mismatches = gpu_counter_new();
  size_t largest = gpu_heap_info(&heap).largest_free_bytes;
  ck_assert_uint_ge(largest, 60 * MIB);
  large_block_is_served(&heap, largest, slot, tally, mismatches);
  large_block_is_served(&heap, largest - 1, slot, tally, mismatches);
  for (size_t bytes = 32 * MIB; bytes >= 4096; bytes /= 2)
    for (size_t odd = 0; odd < 3; odd++)
      large_block_is_served(&heap, bytes - 1 + odd, slot, tally, mismatches);
  gpu_heap_holds(&heap, 0);
  GPU_OK(cudaFreeHost(mismatches));
}
END_TEST

START_TEST(large_and_small_blocks_share_a_heap) {
  struct gpu_heap heap = gpu_heap_of(256 * MIB);
  struct gpu_heap_traffic small = {.count = scaled(50000), .low = 1, .high = 300, .seed = 1};
  struct gpu_heap_traffic large = {.count = 60, .low = 300000, .high = 1100000, .seed = 2};
  unsigned long long *slots = gpu_heap_slots(small.count), *large_slots = gpu_heap_slots(large.count);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  if (gpu_small())
    large.count = 6;
  for (unsigned round = 0; round < 3; round++) {
    GPU_OK(gpu_heap_allocate(heap.handle, small, slots, tally, NULL));
    GPU_OK(gpu_heap_allocate(heap.handle, large, large_slots, tally, NULL));
    GPU_OK(gpu_heap_check(small, slots, tally, NULL));
    GPU_OK(gpu_heap_check(large, large_slots, tally, NULL));
    GPU_OK(gpu_heap_release(heap.handle, small, 1, round % 2, 2, slots, tally, NULL));
    GPU_OK(gpu_heap_release(heap.handle, large, 1, round % 2, 2, large_slots, tally, NULL));
  }
  gpu_heap_sound(tally);
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  gpu_heap_holds(&heap, tally->served - tally->freed);
}
END_TEST

/* ---- The host ---------------------------------------------------------------------------------------------------- */

START_TEST(host_lists_copies_and_frees_what_kernels_allocated) {
  enum { COUNT = 1000, BYTES = 200 };
  struct gpu_heap heap = gpu_heap_of(64 * MIB);
  struct gpu_heap_traffic traffic = {.count = COUNT, .low = BYTES, .high = BYTES};
  unsigned long long *slots = gpu_heap_slots(COUNT);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  static MAM_HeapBlock blocks[COUNT];
  size_t count = 0;
  unsigned char bytes[BYTES];
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  gpu_heap_sound(tally);
  MAM_OK(MAM_HeapList(heap.heap, blocks, COUNT, &count));
  ck_assert_uint_eq(count, COUNT);
  for (unsigned i = 0; i < COUNT; i++) {
    unsigned listed = 0;
    for (unsigned j = 0; j < COUNT; j++)
      listed += (uintptr_t)blocks[j].address == slots[i] && blocks[j].bytes >= BYTES;
    ck_assert_uint_eq(listed, 1);
    MAM_OK(MAM_HeapCopy(heap.heap, bytes, (void *)(uintptr_t)slots[i], BYTES));
    for (unsigned byte = 0; byte < BYTES; byte++)
      ck_assert_uint_eq(bytes[byte], gpu_pattern_byte(i, byte));
    MAM_OK(MAM_HeapFree(heap.heap, (void *)(uintptr_t)slots[i]));
    MAM_IS(MAM_HeapFree(heap.heap, (void *)(uintptr_t)slots[i]), cudaErrorInvalidValue);
    if (i == 20 && gpu_small())
      break;
  }
  ck_assert_uint_eq(gpu_heap_info(&heap).live_count, gpu_small() ? COUNT - 21 : 0);
}
END_TEST

/* What kernels and the host say of an address: whether the heap has it. */
static void contains_is(const struct gpu_heap *heap, unsigned long long *address, bool contained) {
  int *answer = gpu_heap_array(sizeof *answer), host = -1;
  GPU_OK(gpu_heap_contains(heap->handle, address, 1, answer, NULL));
  MAM_OK(MAM_HeapContains(heap->heap, (void *)(uintptr_t)*address, &host));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_msg(*answer == contained && host == contained, "%#llx: kernels say %d, the host %d", *address, *answer,
                host);
}

START_TEST(address_lies_in_the_heap_that_its_block_is_from) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = 8 * MIB;
  options.limit_bytes = 64 * MIB;
  struct gpu_heap heap = gpu_heap_new(&options), other = gpu_heap_of(8 * MIB);
  unsigned long long *slot = gpu_heap_slots(1);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  char on_the_stack;
  void *of_the_pool;
  contains_is(&heap, slot, false); /* NULL */
  *slot = (uintptr_t)&on_the_stack;
  contains_is(&heap, slot, false);
  MAM_OK(MAM_PoolMalloc(heap.pool, &of_the_pool, MIB));
  *slot = (uintptr_t)of_the_pool;
  contains_is(&heap, slot, false);
  ck_assert(ask(&other, 100, slot, tally) != 0);
  contains_is(&other, slot, true);
  contains_is(&heap, slot, false);
  MAM_OK(MAM_HeapGrow(heap.heap, 16 * MIB));
  ck_assert(ask(&heap, 15 * MIB, slot, tally) != 0); /* only what was added has so much in one piece */
  contains_is(&heap, slot, true);
  contains_is(&other, slot, false);
  *slot += 15 * MIB - 1;
  contains_is(&heap, slot, true);
  *slot += 1 - 15 * MIB;
  GPU_OK(gpu_heap_free_address(heap.handle, *slot, NULL));
  contains_is(&heap, slot, true);
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  contains_is(&heap, slot, false);
}
END_TEST

static Suite *heap_data_suite(void) {
  Suite *suite = suite_create("data in device heaps");
  TCase *patterns = gpu_heap_case_add(suite, "patterns");
  tcase_add_loop_test(patterns, blocks_of_one_size_keep_their_bytes, 0, 10);
  tcase_add_test(patterns, blocks_of_mixed_sizes_keep_their_bytes);
  tcase_add_test(patterns, every_small_size_is_served_and_large_enough);
  tcase_add_test(patterns, churn_within_a_kernel_keeps_bytes);
  TCase *large = gpu_heap_case_add(suite, "large blocks");
  tcase_add_test(large, large_sizes_are_served_up_to_the_largest_free_run);
  tcase_add_test(large, large_and_small_blocks_share_a_heap);
  TCase *host = gpu_heap_case_add(suite, "the host looks in");
  tcase_add_test(host, host_lists_copies_and_frees_what_kernels_allocated);
  tcase_add_test(host, address_lies_in_the_heap_that_its_block_is_from);
  return suite;
}

int main(void) { return gpu_heap_main(heap_data_suite); }
