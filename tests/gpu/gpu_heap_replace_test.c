/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels whose malloc, free, new and delete are replaced by a device heap's; and aligned blocks. */
#include <stdio.h>
#include <unistd.h>

#include "gpu_heap_util.h"
#include "gpu_replace_kernels.h"

enum { THREADS = 256, LENGTH = 100 };

/* How often the process writes this text to its standard output while work runs. */
static unsigned told(const char *text, void (*work)(void)) {
  char line[512];
  unsigned count = 0;
  FILE *file = tmpfile();
  (void)fflush(stdout);
  int kept = dup(STDOUT_FILENO);
  ck_assert(file != NULL && kept >= 0);
  ck_assert_int_ge(dup2(fileno(file), STDOUT_FILENO), 0);
  work();
  (void)fflush(stdout);
  ck_assert_int_ge(dup2(kept, STDOUT_FILENO), 0);
  (void)close(kept);
  rewind(file);
  while (fgets(line, sizeof line, file) != NULL)
    count += strstr(line, text) != NULL;
  (void)fclose(file);
  return count;
}

static void **replace_blocks;

static void ask_without_a_heap(void) {
  GPU_OK(gpu_replace_second_leave(replace_blocks, THREADS));
  GPU_OK(gpu_replace_second_leave(replace_blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
}

/* This test comes first: each file says it once. */
START_TEST(a_forgotten_heap_is_told_once) {
  replace_blocks = gpu_heap_array(GPU_REPLACE_PART_BLOCKS * THREADS * sizeof *replace_blocks);
  memset(replace_blocks, 1, GPU_REPLACE_PART_BLOCKS * THREADS * sizeof *replace_blocks);
  ck_assert_uint_eq(told("libmam: ", ask_without_a_heap), 1);
  for (unsigned i = 0; i < GPU_REPLACE_PART_BLOCKS * THREADS; i++)
    ck_assert_ptr_null(replace_blocks[i]);
  ck_assert_uint_eq(told("libmam: ", ask_without_a_heap), 0);
  ck_assert_ptr_null(gpu_replace_heap());
}
END_TEST

START_TEST(kernels_get_their_blocks_from_the_heap) {
  struct gpu_heap heap = gpu_heap_of(32 * MIB);
  int *sums = gpu_heap_array(THREADS * sizeof *sums);
  MAM_OK(gpu_replace_use(heap.heap));
  for (unsigned round = 0; round < 3; round++) {
    memset(sums, 0, THREADS * sizeof *sums);
    GPU_OK(gpu_replace_list(sums, LENGTH, THREADS));
    GPU_OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < THREADS; i++)
      ck_assert_int_eq(sums[i], LENGTH * (LENGTH - 1) / 2);
    gpu_heap_holds(&heap, 0);
  }
}
END_TEST

START_TEST(every_way_to_a_block_leads_to_the_heap) {
  static const size_t alignments[GPU_REPLACE_DOORS] = {16, 16, 16, 16, 16, 256, 64, 64, 4096, 16};
  struct gpu_heap heap = gpu_heap_of(32 * MIB);
  void **blocks = gpu_heap_array(GPU_REPLACE_DOORS * THREADS * sizeof *blocks);
  MAM_OK(gpu_replace_use(heap.heap));
  for (unsigned round = 0; round < 3; round++) {
    GPU_OK(gpu_replace_take(blocks, THREADS));
    GPU_OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < GPU_REPLACE_DOORS * THREADS; i++) {
      ck_assert_ptr_nonnull(blocks[i]);
      ck_assert_uint_eq((uintptr_t)blocks[i] % alignments[i % GPU_REPLACE_DOORS], 0);
    }
    gpu_heap_holds(&heap, GPU_REPLACE_DOORS * THREADS);
    GPU_OK(gpu_replace_give(blocks, THREADS));
    GPU_OK(cudaDeviceSynchronize());
    gpu_heap_holds(&heap, 0);
  }
}
END_TEST

START_TEST(blocks_that_are_left_are_the_heaps) {
  struct gpu_heap heap = gpu_heap_of(32 * MIB);
  void **blocks = gpu_heap_array(GPU_REPLACE_DOORS * THREADS * sizeof *blocks);
  MAM_OK(gpu_replace_use(heap.heap));
  GPU_OK(gpu_replace_take(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  MAM_OK(MAM_HeapFree(heap.heap, blocks[1]));
  blocks[1] = NULL;
  GPU_OK(gpu_replace_give(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&heap, 0);
}
END_TEST

START_TEST(another_heap_takes_over) {
  struct gpu_heap first = gpu_heap_of(8 * MIB), second = gpu_heap_of(8 * MIB);
  void **blocks = gpu_heap_array(GPU_REPLACE_DOORS * THREADS * sizeof *blocks);
  MAM_OK(gpu_replace_use(first.heap));
  MAM_OK(gpu_replace_use(second.heap));
  GPU_OK(gpu_replace_take(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&first, 0);
  gpu_heap_holds(&second, GPU_REPLACE_DOORS * THREADS);
}
END_TEST

START_TEST(host_code_of_the_same_file_keeps_its_own) { ck_assert_int_eq(gpu_replace_host(), 1); }
END_TEST

/* ---- One line on the host ---- */

static void replace_end(void) {
  (void)cudaDeviceSynchronize();
  (void)gpu_replace_destroy();
}

START_TEST(one_call_is_for_all_files) {
  static cudaError_t (*const leave[])(void **, unsigned) = {gpu_replace_second_leave, gpu_replace_linked_leave,
                                                            gpu_replace_plain_leave,  gpu_replace_debug_leave,
                                                            gpu_replace_beside_leave, gpu_replace_other_leave};
  static cudaError_t (*const give[])(void **, unsigned) = {gpu_replace_plain_free,  gpu_replace_second_free,
                                                           gpu_replace_linked_free, gpu_replace_beside_free,
                                                           gpu_replace_other_free,  gpu_replace_debug_free};
  enum { PARTS = 6, BLOCKS = GPU_REPLACE_PART_BLOCKS * THREADS };
  void **blocks = gpu_heap_array(PARTS * BLOCKS * sizeof *blocks);
  MAM_OK(gpu_replace_create(32 * MIB));
  ck_assert_int_eq(gpu_replace_empty_kernels(), 0);
  struct gpu_heap heap = {.heap = gpu_replace_heap()};
  for (int i = 0; i < PARTS; i++)
    GPU_OK(leave[i](blocks + i * BLOCKS, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  for (unsigned i = 0; i < PARTS * BLOCKS; i++)
    ck_assert_uint_eq((uintptr_t)blocks[i] % (i % 4 == 2 ? 128 : i % 4 == 3 ? 1024 : 16), 0);
  gpu_heap_holds(&heap, PARTS * BLOCKS);
  for (int i = 0; i < PARTS; i++)
    GPU_OK(give[i](blocks + i * BLOCKS, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&heap, 0);
  GPU_OK(cudaGetLastError());
}
END_TEST

/* A file without the header takes malloc for CUDA's own, and keeps values in registers that only that one leaves alone.
 */
START_TEST(a_file_keeps_its_values_over_a_call) {
  static cudaError_t (*const keep[])(const unsigned *, unsigned, unsigned *, unsigned) = {
      gpu_replace_second_keep, gpu_replace_linked_keep, gpu_replace_plain_keep,
      gpu_replace_debug_keep,  gpu_replace_beside_keep, gpu_replace_other_keep};
  enum { PARTS = 6, GRID = 40, VALUES = GRID * 1024 + GPU_REPLACE_KEPT };
  unsigned *values = gpu_heap_array(VALUES * sizeof *values), *wrong = gpu_heap_array(PARTS * sizeof *wrong);
  for (unsigned i = 0; i < VALUES; i++)
    values[i] = (i + 1) * 2246822519u;
  for (int i = 0; i < PARTS; i++) {
    MAM_OK(gpu_replace_create(256 * MIB));
    struct gpu_heap heap = {.heap = gpu_replace_heap()};
    wrong[i] = 0;
    GPU_OK(keep[i](values, 20, &wrong[i], GRID));
    GPU_OK(cudaDeviceSynchronize());
    ck_assert_msg(wrong[i] == 0, "part %d: %u of %u values are others", i, wrong[i], GRID * 1024 * GPU_REPLACE_KEPT);
    gpu_heap_holds(&heap, 0);
    MAM_OK(gpu_replace_destroy());
  }
}
END_TEST

START_TEST(a_device_has_one_heap_at_a_time) {
  void **blocks = gpu_heap_array(GPU_REPLACE_PART_BLOCKS * THREADS * sizeof *blocks);
  ck_assert_int_eq(gpu_replace_create(1000), cudaErrorInvalidValue);
  ck_assert_ptr_null(gpu_replace_heap());
  MAM_OK(gpu_replace_create(8 * MIB));
  MAM_Heap heap = gpu_replace_heap();
  ck_assert_ptr_nonnull(heap);
  ck_assert_int_eq(gpu_replace_create(8 * MIB), cudaErrorInvalidValue);
  ck_assert_ptr_eq(gpu_replace_heap(), heap);
  MAM_OK(gpu_replace_destroy());
  ck_assert_ptr_null(gpu_replace_heap());
  MAM_OK(gpu_replace_destroy());
  memset(blocks, 1, GPU_REPLACE_PART_BLOCKS * THREADS * sizeof *blocks);
  GPU_OK(gpu_replace_second_leave(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  for (unsigned i = 0; i < GPU_REPLACE_PART_BLOCKS * THREADS; i++)
    ck_assert_ptr_null(blocks[i]);
  MAM_OK(gpu_replace_create(8 * MIB));
  GPU_OK(gpu_replace_second_leave(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  struct gpu_heap again = {.heap = gpu_replace_heap()};
  gpu_heap_holds(&again, GPU_REPLACE_PART_BLOCKS * THREADS);
}
END_TEST

/* ---- Aligned blocks ---- */

static const size_t aligned_bytes[] = {1, 40, 64, 65, 130, 200, 1000, 2049, 5000, 12000, 32768, 40000};
enum { ALIGNED_SIZES = sizeof aligned_bytes / sizeof aligned_bytes[0], ALIGNED = 2048 };

static int blocks_compare(const void *one, const void *other) {
  uintptr_t a = (uintptr_t) * (void *const *)one, b = (uintptr_t) * (void *const *)other;
  return (a > b) - (a < b);
}

/* How many of count blocks exist, are multiples of alignment, and lie at least bytes apart. */
static unsigned aligned_check(void *const *blocks, unsigned count, size_t alignment, size_t bytes) {
  void **sorted = malloc(count * sizeof *sorted);
  unsigned got = 0;
  ck_assert_ptr_nonnull(sorted);
  for (unsigned i = 0; i < count; i++) {
    ck_assert_uint_eq((uintptr_t)blocks[i] & (alignment - 1), 0);
    if (blocks[i] != NULL)
      sorted[got++] = blocks[i];
  }
  qsort(sorted, got, sizeof *sorted, blocks_compare);
  for (unsigned i = 1; i < got; i++)
    ck_assert_uint_ge((uintptr_t)sorted[i] - (uintptr_t)sorted[i - 1], bytes);
  free(sorted);
  return got;
}

START_TEST(aligned_blocks_are_aligned) {
  struct gpu_heap heap = gpu_heap_of(256 * MIB);
  void **blocks = gpu_heap_array(ALIGNED * sizeof *blocks);
  for (size_t alignment = 1; alignment <= 4096; alignment *= 2)
    for (int i = 0; i < ALIGNED_SIZES; i++) {
      GPU_OK(gpu_aligned_take(heap.handle, blocks, ALIGNED, alignment, aligned_bytes[i]));
      GPU_OK(cudaDeviceSynchronize());
      ck_assert_uint_eq(aligned_check(blocks, ALIGNED, alignment, aligned_bytes[i]), ALIGNED);
      gpu_heap_holds(&heap, ALIGNED);
      GPU_OK(gpu_aligned_give(heap.handle, blocks, ALIGNED, 1));
    }
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* Chunks of 80 bytes fill the heap, and every seventh is free.  A request of 64 bytes finds nothing else, and only
 * every fourth of these chunks is a multiple of 64. */
START_TEST(a_full_heap_serves_aligned_blocks_or_none) {
  enum { MANY = 1 << 17 };
  struct gpu_heap heap = gpu_heap_of(8 * MIB);
  void **odd = gpu_heap_array(MANY * sizeof *odd), **blocks = gpu_heap_array(MANY * sizeof *blocks);
  GPU_OK(gpu_aligned_take(heap.handle, odd, MANY, 16, 80));
  GPU_OK(cudaDeviceSynchronize());
  unsigned taken = aligned_check(odd, MANY, 16, 80);
  ck_assert_uint_lt(taken, MANY);
  GPU_OK(gpu_aligned_give(heap.handle, odd, MANY, 7));
  GPU_OK(cudaDeviceSynchronize());
  for (size_t alignment = 32; alignment <= 4096; alignment *= 2) {
    size_t left = gpu_heap_info(&heap).live_count;
    GPU_OK(gpu_aligned_take(heap.handle, blocks, MANY, alignment, 64));
    GPU_OK(cudaDeviceSynchronize());
    gpu_heap_holds(&heap, left + aligned_check(blocks, MANY, alignment, 64));
    GPU_OK(gpu_aligned_give(heap.handle, blocks, MANY, 1));
    GPU_OK(cudaDeviceSynchronize());
    gpu_heap_holds(&heap, left);
  }
  GPU_OK(gpu_aligned_give(heap.handle, odd, MANY, 1));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&heap, 0);
}
END_TEST

START_TEST(what_is_no_alignment_is_refused) {
  static const size_t wrong[] = {0, 3, 48, 4097, 8192, (size_t)1 << 63, SIZE_MAX};
  struct gpu_heap heap = gpu_heap_of(8 * MIB);
  void **blocks = gpu_heap_array(ALIGNED * sizeof *blocks);
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    GPU_OK(gpu_aligned_take(heap.handle, blocks, ALIGNED, wrong[i], 64));
    GPU_OK(cudaDeviceSynchronize());
    ck_assert_uint_eq(aligned_check(blocks, ALIGNED, 16, 64), 0);
  }
  GPU_OK(gpu_aligned_take(heap.handle, blocks, ALIGNED, 4096, SIZE_MAX - 5));
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(aligned_check(blocks, ALIGNED, 16, 64), 0);
  gpu_heap_holds(&heap, 0);
}
END_TEST

static Suite *heap_replace_suite(void) {
  Suite *suite = suite_create("malloc and new of kernels");
  TCase *tests = gpu_heap_case_add(suite, "replaced");
  tcase_add_test(tests, a_forgotten_heap_is_told_once);
  tcase_add_test(tests, kernels_get_their_blocks_from_the_heap);
  tcase_add_test(tests, every_way_to_a_block_leads_to_the_heap);
  tcase_add_test(tests, blocks_that_are_left_are_the_heaps);
  tcase_add_test(tests, another_heap_takes_over);
  tcase_add_test(tests, host_code_of_the_same_file_keeps_its_own);
  tests = gpu_heap_case_add(suite, "created");
  tcase_add_checked_fixture(tests, NULL, replace_end);
  tcase_add_test(tests, one_call_is_for_all_files);
  tcase_add_test(tests, a_file_keeps_its_values_over_a_call);
  tcase_add_test(tests, a_device_has_one_heap_at_a_time);
  tests = gpu_heap_case_add(suite, "aligned");
  tcase_add_test(tests, aligned_blocks_are_aligned);
  tcase_add_test(tests, a_full_heap_serves_aligned_blocks_or_none);
  tcase_add_test(tests, what_is_no_alignment_is_refused);
  return suite;
}

int main(void) { return gpu_heap_main(heap_replace_suite); }
