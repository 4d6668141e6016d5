/* SPDX-License-Identifier: BSD-2-Clause */
/* What the host knows of blocks that were allocated with records, and of their pool. */
#include "gpu_heap_util.h"
#include "gpu_record_kernels.h"

enum { THREADS = 1920 };

static struct gpu_heap recording_heap(void) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = 32 * MIB;
  options.records = 1;
  return gpu_heap_new(&options);
}

START_TEST(list_names_sites_and_sizes) {
  struct gpu_heap heap = recording_heap();
  void **blocks = gpu_heap_array(THREADS * sizeof *blocks);
  static MAM_HeapBlock list[THREADS];
  GPU_OK(gpu_record_allocate(heap.handle, blocks, THREADS));
  GPU_OK(gpu_record_free(heap.handle, blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  size_t count = 0, first = 0, requested = 0;
  MAM_OK(MAM_HeapList(heap.heap, list, THREADS, &count));
  ck_assert_uint_eq(count, THREADS / 3);
  for (size_t i = 0; i < count; i++) {
    unsigned thread = 0;
    while (blocks[thread] != list[i].address)
      ck_assert_uint_lt(++thread, THREADS);
    ck_assert_uint_eq(list[i].requested_bytes, gpu_record_bytes(thread));
    ck_assert_uint_eq(list[i].line, thread % 2 == 0 ? 100 : 200);
    ck_assert_str_eq(list[i].file, thread % 2 == 0 ? "first.cu" : "second.cu");
    first += thread % 2 == 0;
    requested += list[i].requested_bytes;
  }
  ck_assert_uint_eq(first, THREADS / 6);
  MAM_HeapInfo info = gpu_heap_info(&heap);
  ck_assert_uint_eq(info.recorded_count, count);
  ck_assert_uint_eq(info.requested_bytes, requested);
  ck_assert_double_gt(info.internal_fragmentation, 0);
  ck_assert_double_lt(info.internal_fragmentation, 0.25);
}
END_TEST

/* The same kernels in a heap without records: it sets nothing aside and knows nothing of its blocks. */
START_TEST(heap_without_records_has_none) {
  struct gpu_heap heap = gpu_heap_of(32 * MIB);
  void **blocks = gpu_heap_array(THREADS * sizeof *blocks);
  static MAM_HeapBlock list[THREADS];
  size_t count = 0;
  GPU_OK(gpu_record_allocate(heap.handle, blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  MAM_OK(MAM_HeapList(heap.heap, list, THREADS, &count));
  ck_assert_uint_eq(count, THREADS);
  for (size_t i = 0; i < count; i++) {
    ck_assert_uint_eq(list[i].requested_bytes, 0);
    ck_assert_ptr_null(list[i].file);
  }
  ck_assert_uint_eq(gpu_heap_info(&heap).recorded_count, 0);
}
END_TEST

START_TEST(share_adds_up) {
  struct gpu_heap heap = recording_heap();
  MAM_HeapShare share = {.struct_size = sizeof share};
  void **blocks = gpu_heap_array(THREADS * sizeof *blocks), *call = NULL;
  GPU_OK(gpu_record_allocate(heap.handle, blocks, THREADS));
  GPU_OK(cudaDeviceSynchronize());
  MAM_OK(MAM_PoolMalloc(heap.pool, &call, 2 * MIB));
  MAM_OK(MAM_HeapGetShare(heap.pool, &share));
  ck_assert_uint_eq(share.call_bytes, 2 * MIB);
  ck_assert_uint_eq(share.reserved_bytes, share.call_bytes + share.heap_bytes + share.waiting_bytes + share.free_bytes);
  ck_assert_uint_eq(share.heap_used_bytes, gpu_heap_info(&heap).used_bytes);
  ck_assert_uint_eq(share.heap_count, 1);
  MAM_OK(MAM_CudaFree(call));
}
END_TEST

static Suite *heap_record_suite(void) {
  Suite *suite = suite_create("records of device heaps");
  TCase *tests = gpu_heap_case_add(suite, "records");
  tcase_add_test(tests, list_names_sites_and_sizes);
  tcase_add_test(tests, heap_without_records_has_none);
  tcase_add_test(tests, share_adds_up);
  return suite;
}

int main(void) { return gpu_heap_main(heap_record_suite); }
