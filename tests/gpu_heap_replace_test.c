/* SPDX-License-Identifier: BSD-2-Clause */
/* Kernels whose malloc, free, new and delete are a device heap's without their knowing. */
#include "gpu_heap_util.h"
#include "gpu_replace_kernels.h"

enum { THREADS = 256, LENGTH = 100 };

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

START_TEST(blocks_that_are_left_are_the_heaps) {
  struct gpu_heap heap = gpu_heap_of(32 * MIB);
  void **blocks = gpu_heap_array(2 * THREADS * sizeof *blocks);
  MAM_OK(gpu_replace_use(heap.heap));
  GPU_OK(gpu_replace_leave(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&heap, 2 * THREADS);
  MAM_OK(MAM_HeapFree(heap.heap, blocks[1]));
  blocks[1] = NULL;
  GPU_OK(gpu_replace_free(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&heap, 0);
}
END_TEST

START_TEST(another_heap_takes_over) {
  struct gpu_heap first = gpu_heap_of(MIB), second = gpu_heap_of(MIB);
  void **blocks = gpu_heap_array(2 * THREADS * sizeof *blocks);
  MAM_OK(gpu_replace_use(first.heap));
  MAM_OK(gpu_replace_use(second.heap));
  GPU_OK(gpu_replace_leave(blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  gpu_heap_holds(&first, 0);
  gpu_heap_holds(&second, 2 * THREADS);
}
END_TEST

START_TEST(host_code_of_the_same_file_keeps_its_own) { ck_assert_int_eq(gpu_replace_host(), 1); }
END_TEST

static Suite *heap_replace_suite(void) {
  Suite *suite = suite_create("malloc and new of kernels");
  TCase *tests = gpu_heap_case_add(suite, "replaced");
  tcase_add_test(tests, kernels_get_their_blocks_from_the_heap);
  tcase_add_test(tests, blocks_that_are_left_are_the_heaps);
  tcase_add_test(tests, another_heap_takes_over);
  tcase_add_test(tests, host_code_of_the_same_file_keeps_its_own);
  return suite;
}

int main(void) { return gpu_heap_main(heap_replace_suite); }
