/* SPDX-License-Identifier: BSD-2-Clause */
/* Device heaps that grow under the kernel that runs out of memory, from pools that have memory and from pools that
 * first have to get some. */
#include <time.h>

#include "gpu_heap_util.h"

/* Where a heap that grows gets memory. */
struct origin {
  const char *name;
  MAM_Source source;
  size_t chunk_bytes; /* 0: one chunk for everything */
};

static const struct origin origins[] = {{"a pool that has it", MAM_SOURCE_DEVICE, 0},
                                        {"a pool that takes chunks", MAM_SOURCE_DEVICE, 16 * MIB},
                                        {"a pool that maps", MAM_SOURCE_VMM, 16 * MIB}};
enum { ORIGINS = sizeof origins / sizeof origins[0] };

static struct gpu_heap grower_new(const struct origin *origin, size_t bytes, size_t limit_bytes) {
  struct gpu_heap heap = {0};
  MAM_PoolOptions pool_options = MAM_POOL_OPTIONS_INIT;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  /* compute-sanitizer treats memory that did not exist at a kernel's launch as invalid.  So in its runs the pools have
   * all memory from the beginning. */
  if (gpu_small())
    origin = &origins[0];
  pool_options.source = origin->source;
  pool_options.limit_bytes = limit_bytes + limit_bytes / 4 + 64 * MIB;
  pool_options.chunk_bytes = origin->chunk_bytes != 0 ? origin->chunk_bytes : pool_options.limit_bytes;
  options.bytes = options.grow_bytes = bytes;
  options.limit_bytes = limit_bytes;
  options.wait_ms = 5000;
  heap.pool = gpu_pool_new(&pool_options);
  gpu_heap_create(&heap, &options);
  return heap;
}

static double now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* One kernel needs a multiple of the heap's size.  All its requests are served and keep their data. */
static void kernel_is_served(const struct origin *origin, unsigned low, unsigned high, unsigned times) {
  struct gpu_heap heap = grower_new(origin, 4 * MIB, 2 * times * 4 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  unsigned count = (unsigned)(2 * times * 4 * MIB / (low + high));
  struct gpu_heap_traffic traffic = {.count = count, .low = low, .high = high};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  double begin_ms = now_ms();
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  GPU_OK(cudaDeviceSynchronize());
  double took_ms = now_ms() - begin_ms;
  MAM_HeapInfo info = gpu_heap_info(&heap);
  (void)printf("%u blocks of %u to %u bytes from %s: %.2f ms, grown %llu times to %zu MiB\n", count, low, high,
               origin->name, took_ms, (unsigned long long)info.growth_count, info.reserved_bytes / MIB);
  gpu_heap_sound(tally);
  if (!gpu_small()) /* when requests of many sizes kept each other searching, it took 1.4 to 28 s */
    ck_assert_double_lt(took_ms, 1000);
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  ck_assert_uint_ge(info.growth_count, 1);
  ck_assert_uint_eq(info.failure_count, 0);
  gpu_heap_holds(&heap, count);
  GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
  GPU_OK(gpu_heap_release(heap.handle, traffic, 99, 0, 1, slots, tally, NULL));
  gpu_heap_sound(tally);
  gpu_heap_holds(&heap, 0);
  MAM_OK(MAM_HeapTrim(heap.heap, 0));
  ck_assert_uint_eq(gpu_heap_info(&heap).reserved_bytes, 4 * MIB);
}

START_TEST(kernel_that_asks_for_16_times_the_heap_is_served) {
  kernel_is_served(&origins[_i], 512, 512, gpu_small() ? 4 : 16);
}
END_TEST

START_TEST(small_mixed_and_large_requests_are_served) {
  static const unsigned ranges[][2] = {{16, 16}, {1, 1000}, {4096, 4096}, {30000, 70000}};
  kernel_is_served(&origins[0], ranges[_i][0], ranges[_i][1], gpu_small() ? 4 : 16);
}
END_TEST

START_TEST(request_larger_than_the_heap_is_served) {
  struct gpu_heap heap = grower_new(&origins[_i], 4 * MIB, 256 * MIB);
  unsigned long long *slot = gpu_heap_slots(1);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  double begin_ms = now_ms();
  GPU_OK(gpu_heap_ask(heap.handle, 100 * MIB, slot, tally, NULL));
  gpu_heap_sound(tally);
  MAM_HeapInfo info = gpu_heap_info(&heap);
  (void)printf("a block of 100 MiB from %s: %.2f ms, grown %llu times to %zu MiB\n", origins[_i].name,
               now_ms() - begin_ms, (unsigned long long)info.growth_count, info.reserved_bytes / MIB);
  ck_assert_uint_eq(tally->served, 1);
  ck_assert_uint_eq(info.growth_count, 1);
  GPU_OK(gpu_heap_free_address(heap.handle, *slot, NULL));
  gpu_heap_sound(tally);
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* No growth is waited for that can never be enough. */
START_TEST(request_larger_than_any_heap_is_refused_at_once) {
  static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4094, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, (size_t)1 << 44};
  struct gpu_heap heap = grower_new(&origins[0], 4 * MIB, 256 * MIB);
  unsigned long long *slot = gpu_heap_slots(1);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  double begin_ms = now_ms();
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    GPU_OK(gpu_heap_ask(heap.handle, sizes[i], slot, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_eq(tally->served, 0);
  ck_assert_uint_eq(tally->refused[MAM_HEAP_TOO_LARGE], sizeof sizes / sizeof *sizes);
  ck_assert_double_lt(now_ms() - begin_ms, 1000);
}
END_TEST

/* At the limit requests fail, and further ones fail at once: the kernel is not slower than in a heap that cannot
 * grow. */
START_TEST(growth_stops_at_its_limit_and_the_heap_answers) {
  struct gpu_heap heap = grower_new(&origins[0], 4 * MIB, 12 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = (unsigned)(16 * MIB / 512), .low = 512, .high = 512};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  gpu_heap_sound(tally);
  ck_assert_uint_gt(tally->refused[MAM_HEAP_FULL], 0);
  ck_assert_uint_ge(tally->served, 9 * MIB / 512);
  ck_assert_uint_le(gpu_heap_info(&heap).reserved_bytes, 12 * MIB);
  double begin_ms = now_ms();
  GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
  gpu_heap_sound(tally);
  (void)printf("a kernel of refused requests: %.2f ms\n", now_ms() - begin_ms);
  ck_assert_double_lt(now_ms() - begin_ms, 500);
}
END_TEST

/* After a trim the heap can grow by as much again. */
START_TEST(heap_grows_again_after_a_trim) {
  struct gpu_heap heap = grower_new(&origins[1], 4 * MIB, 16 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = (unsigned)(20 * MIB / 1024), .low = 1024, .high = 1024};
  unsigned long long *slots = gpu_heap_slots(traffic.count);
  unsigned long long first = 0;
  for (unsigned round = 0; round < 3; round++) {
    unsigned long long served = tally->served;
    GPU_OK(gpu_heap_allocate(heap.handle, traffic, slots, tally, NULL));
    GPU_OK(gpu_heap_check(traffic, slots, tally, NULL));
    gpu_heap_sound(tally);
    served = tally->served - served;
    first = round == 0 ? served : first;
    ck_assert_uint_ge(served, 13 * MIB / 1024);
    ck_assert_uint_ge(served, first - first / 50);
    GPU_OK(gpu_heap_release(heap.handle, traffic, 1, 0, 1, slots, tally, NULL));
    gpu_heap_sound(tally);
    MAM_OK(MAM_HeapTrim(heap.heap, 0));
    ck_assert_uint_eq(gpu_heap_info(&heap).reserved_bytes, 4 * MIB);
  }
}
END_TEST

/* Kernels of several streams run out of memory together, while the host looks into the heap. */
START_TEST(streams_run_out_together) {
  enum { STREAMS = 4 };
  struct gpu_heap heap = grower_new(&origins[2], 4 * MIB, 256 * MIB);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  cudaStream_t streams[STREAMS];
  struct gpu_heap_traffic traffic[STREAMS];
  unsigned long long *slots[STREAMS], total = 0;
  for (unsigned i = 0; i < STREAMS; i++) {
    traffic[i] = (struct gpu_heap_traffic){.count = 20000, .low = 16 << i, .high = 256 << i, .seed = i};
    slots[i] = gpu_heap_slots(traffic[i].count);
    total += traffic[i].count;
    GPU_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  }
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(gpu_heap_allocate(heap.handle, traffic[i], slots[i], tally, streams[i]));
  for (unsigned i = 0; i < 20; i++)
    ck_assert_uint_le(gpu_heap_info(&heap).reserved_bytes, 256 * MIB);
  gpu_heap_sound(tally);
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  for (unsigned i = 0; i < STREAMS; i++)
    GPU_OK(gpu_heap_check(traffic[i], slots[i], tally, streams[i]));
  gpu_heap_sound(tally);
  gpu_heap_holds(&heap, total);
  for (unsigned i = 0; i < STREAMS; i++) {
    GPU_OK(gpu_heap_release(heap.handle, traffic[i], 7, 0, 1, slots[i], tally, streams[i]));
    GPU_OK(cudaStreamSynchronize(streams[i]));
    GPU_OK(cudaStreamDestroy(streams[i]));
  }
  gpu_heap_sound(tally);
  gpu_heap_holds(&heap, 0);
}
END_TEST

/* The pool gets all its memory back, whether a kernel grew the heap or not. */
START_TEST(heaps_that_grow_come_and_go) {
  MAM_PoolOptions pool_options = MAM_POOL_OPTIONS_INIT;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  pool_options.chunk_bytes = 128 * MIB;
  options.bytes = options.grow_bytes = MIB;
  options.limit_bytes = 64 * MIB;
  if (gpu_small()) /* compute-sanitizer makes kernels slower than the usual patience */
    options.wait_ms = 5000;
  MAM_Pool pool = gpu_pool_new(&pool_options);
  struct gpu_heap_tally *tally = gpu_heap_tally_new();
  struct gpu_heap_traffic traffic = {.count = 10000, .low = 700, .high = 900};
  for (unsigned i = 0; i < 20; i++) {
    MAM_Heap heap;
    mam_device_heap handle;
    MAM_OK(MAM_HeapCreate(&heap, pool, &options));
    MAM_OK(MAM_HeapHandle(heap, &handle));
    if (i % 2 == 0)
      GPU_OK(gpu_heap_churn(handle, traffic, 4, tally, NULL));
    gpu_heap_sound(tally);
    MAM_OK(MAM_HeapDestroy(heap));
  }
  ck_assert_uint_eq(gpu_heap_refused(tally), 0);
  ck_assert_uint_eq(gpu_pool_info(pool).used_bytes, 0);
}
END_TEST

static Suite *heap_grow_suite(void) {
  Suite *suite = suite_create("device heaps that grow");
  TCase *growth = gpu_heap_case_add(suite, "under a running kernel");
  tcase_add_loop_test(growth, kernel_that_asks_for_16_times_the_heap_is_served, 0, ORIGINS);
  tcase_add_loop_test(growth, small_mixed_and_large_requests_are_served, 0, 4);
  tcase_add_test(growth, growth_stops_at_its_limit_and_the_heap_answers);
  tcase_add_test(growth, heap_grows_again_after_a_trim);
  tcase_add_test(growth, streams_run_out_together);
  tcase_add_test(growth, heaps_that_grow_come_and_go);
  TCase *large = gpu_heap_case_add(suite, "one large request");
  tcase_add_loop_test(large, request_larger_than_the_heap_is_served, 0, ORIGINS);
  tcase_add_test(large, request_larger_than_any_heap_is_refused_at_once);
  return suite;
}

int main(void) { return gpu_heap_main(heap_grow_suite); }
