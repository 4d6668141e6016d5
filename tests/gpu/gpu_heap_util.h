/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the GPU tests of device heaps share: a heap with its pool, slots and a tally that host and kernels see, and the
 * checks at the end of each test.  All of it ends with its test.
 */
#ifndef MAM_TESTS_GPU_HEAP_UTIL_H
#define MAM_TESTS_GPU_HEAP_UTIL_H

#include "gpu_heap_kernels.h"
#include "gpu_util.h"

enum { GPU_HEAPS_MAX = 4, GPU_HEAP_ARRAYS_MAX = 32 };

/* A heap as a test uses it. */
struct gpu_heap {
  MAM_Pool pool;
  MAM_Heap heap;
  mam_device_heap handle;
};

static MAM_Heap gpu_heaps[GPU_HEAPS_MAX];
static int gpu_heap_count;
static void *gpu_heap_arrays[GPU_HEAP_ARRAYS_MAX];
static int gpu_heap_array_count;

/* A heap in heap->pool. */
static inline void gpu_heap_create(struct gpu_heap *heap, const MAM_HeapOptions *options) {
  ck_assert_int_lt(gpu_heap_count, GPU_HEAPS_MAX);
  MAM_OK(MAM_HeapCreate(&heap->heap, heap->pool, options));
  gpu_heaps[gpu_heap_count++] = heap->heap;
  MAM_OK(MAM_HeapHandle(heap->heap, &heap->handle));
}

/* Makes a pool with room for limit_bytes of heap, or for bytes if there is no limit, and for somewhat more. */
static inline struct gpu_heap gpu_heap_new(const MAM_HeapOptions *options) {
  struct gpu_heap heap = {0};
  MAM_PoolOptions pool_options = MAM_POOL_OPTIONS_INIT;
  size_t most = options->limit_bytes > options->bytes ? options->limit_bytes : options->bytes;
  pool_options.chunk_bytes = most + most / 4 + 16 * MIB;
  heap.pool = gpu_pool_new(&pool_options);
  gpu_heap_create(&heap, options);
  return heap;
}

static inline struct gpu_heap gpu_heap_of(size_t bytes) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = bytes;
  return gpu_heap_new(&options);
}

/* Zeroed memory that the host may read while no kernel runs. */
static inline void *gpu_heap_array(size_t bytes) {
  void *array = NULL;
  ck_assert_int_lt(gpu_heap_array_count, GPU_HEAP_ARRAYS_MAX);
  GPU_OK(cudaMallocManaged(&array, bytes, cudaMemAttachGlobal));
  gpu_heap_arrays[gpu_heap_array_count++] = array;
  GPU_OK(cudaMemset(array, 0, bytes));
  GPU_OK(cudaDeviceSynchronize());
  return array;
}

static inline unsigned long long *gpu_heap_slots(size_t count) {
  return gpu_heap_array(count * sizeof(unsigned long long));
}
static inline struct gpu_heap_tally *gpu_heap_tally_new(void) { return gpu_heap_array(sizeof(struct gpu_heap_tally)); }

static inline unsigned long long gpu_heap_refused(const struct gpu_heap_tally *tally) {
  unsigned long long refused = 0;
  for (int i = 0; i < GPU_HEAP_STATUSES; i++)
    refused += tally->refused[i];
  return refused;
}

/* Waits for the GPU, and fails on anything that is wrong whatever the traffic. */
static inline void gpu_heap_sound(const struct gpu_heap_tally *tally) {
  GPU_OK(cudaDeviceSynchronize());
  ck_assert_uint_eq(tally->misaligned, 0);
  ck_assert_uint_eq(tally->too_small, 0);
  ck_assert_uint_eq(tally->outside, 0);
  ck_assert_uint_eq(tally->contradictions, 0);
  ck_assert_uint_eq(tally->changed_bytes, 0);
}

static inline MAM_HeapInfo gpu_heap_info(const struct gpu_heap *heap) {
  MAM_HeapInfo info = {.struct_size = sizeof info};
  MAM_OK(MAM_HeapGetInfo(heap->heap, &info));
  return info;
}

/* Fails unless the heap knows of exactly so many live blocks, and never saw a wrong free. */
static inline void gpu_heap_holds(const struct gpu_heap *heap, unsigned long long blocks) {
  size_t listed = 0;
  MAM_HeapInfo info = gpu_heap_info(heap);
  ck_assert_uint_eq(info.live_count, blocks);
  ck_assert_uint_eq(info.refused_free_count, 0);
  MAM_OK(MAM_HeapList(heap->heap, NULL, 0, &listed));
  ck_assert_uint_eq(listed, blocks);
}

static inline void gpu_heap_test_end(void) {
  cudaError_t kernels = cudaDeviceSynchronize(), heaps = cudaSuccess;
  while (gpu_heap_count > 0) {
    cudaError_t error = MAM_HeapDestroy(gpu_heaps[--gpu_heap_count]);
    heaps = heaps == cudaSuccess ? error : heaps;
  }
  while (gpu_heap_array_count > 0)
    (void)cudaFree(gpu_heap_arrays[--gpu_heap_array_count]);
  gpu_test_end();
  GPU_OK(kernels);
  MAM_OK(heaps);
}

static inline TCase *gpu_heap_case_add(Suite *suite, const char *name) {
  TCase *tests = tcase_create(name);
  tcase_add_checked_fixture(tests, NULL, gpu_heap_test_end);
  suite_add_tcase(suite, tests);
  return tests;
}

/* For main: skips where there is no GPU, else runs the suite. */
static inline int gpu_heap_main(Suite *(*suite)(void)) {
  gpu_environment_clear();
  int absent = gpu_probe();
  return absent != 0 ? absent : gpu_suite_run(suite());
}

#endif
