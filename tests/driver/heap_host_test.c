/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the host does with device heaps, over the fake driver with real memory.  Threads act as kernels, with the handle
 * that kernels get.
 */
#include "mam/heap.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned long long time_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec;
}
#define MAM__ATOMICS_TIME_NS() time_ns()
#define MAM__ATOMICS_PAUSE() (void)sched_yield()

#include "heap/heap_image.h"
#include "mam/detail/heap_grow.h"
#include "mam/detail/heap_record.h"
#include "support/fake_driver.h"
#include "support/heap_model.h"
#include "support/run_suite.h"

/* The fake driver runs the heap's kernels itself.  This image makes the library believe that it has them without
 * CUDA. */
const unsigned char heap_image[1] = {1};
const size_t heap_image_bytes = sizeof heap_image;

enum { KIB = 1 << 10, MIB = 1 << 20, THREADS = 6, BLOCKS_MOST = 20000 };

#define OK(call) ck_assert_msg((call) == cudaSuccess, #call ": %s", MAM_LastError())
#define IS(call, code) ck_assert_int_eq((call), (code))

static MAM_Pool pool;
static MAM_Heap heap;
static mam_device_heap handle;
static struct heap_model kernels;

static void pool_begin(size_t bytes) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = bytes;
  fake_back_memory();
  OK(MAM_PoolCreate(&pool, &options));
}

static void heap_begin(size_t bytes, size_t limit_bytes, size_t grow_bytes) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = bytes;
  options.limit_bytes = limit_bytes;
  options.grow_bytes = grow_bytes;
  options.wait_ms = 60000;
  OK(MAM_HeapCreate(&heap, pool, &options));
  OK(MAM_HeapHandle(heap, &handle));
  kernels.control = handle.control;
}

/* No heap has left anything behind. */
static void end(void) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  OK(MAM_HeapDestroy(heap));
  OK(MAM_PoolGetInfo(pool, &info));
  ck_assert_uint_eq(info.used_bytes, 0);
  OK(MAM_PoolDestroy(pool));
  ck_assert_uint_eq(fake_violations(), 0);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
  ck_assert_uint_eq(fake_live_bytes(), 0);
}

static MAM_HeapInfo info_now(void) {
  MAM_HeapInfo info = {.struct_size = sizeof info};
  OK(MAM_HeapGetInfo(heap, &info));
  return info;
}

/* Does what mam_malloc does, for one thread of a kernel. */
static void *kernel_malloc(size_t bytes, unsigned slot) {
  mam__plea plea = 0;
  for (;;) {
    void *block = heap_model_malloc(&kernels, bytes, slot % kernels.control->heap.slot_count);
    mam__u32 pages = bytes > MAM__CHUNK_BYTES ? (mam__u32)((bytes + MAM__PAGE_BYTES - 1) / MAM__PAGE_BYTES)
                                              : mam__span_pages(handle.tuning, mam__class_of((mam__u32)bytes));
    if (block != NULL || (plea = mam__growth_await(&handle.control->growth, pages, plea)) == 0)
      return block;
  }
}

/* ---- Without growth ---------------------------------------------------------------------------------------------- */

START_TEST(blocks_of_kernels_are_seen_copied_and_freed) {
  enum { COUNT = 60 };
  char bytes[64];
  char *blocks[COUNT];
  size_t count = 0;
  MAM_HeapBlock list[COUNT];
  pool_begin(64 * MIB);
  heap_begin(MIB, 0, 0);
  ck_assert_uint_eq(info_now().live_count, 0);
  for (unsigned i = 0; i < COUNT; i++) {
    blocks[i] = kernel_malloc(64 + i, i);
    ck_assert_ptr_nonnull(blocks[i]);
    memset(blocks[i], (int)(i % 128), 64);
  }
  ck_assert_uint_eq(info_now().live_count, COUNT);
  OK(MAM_HeapList(heap, list, COUNT, &count));
  ck_assert_uint_eq(count, COUNT);
  for (unsigned i = 0; i < COUNT; i++) {
    OK(MAM_HeapCopy(heap, bytes, blocks[i], sizeof bytes));
    ck_assert_int_eq(bytes[0], (char)(i % 128));
    ck_assert_int_eq(bytes[63], (char)(i % 128));
    OK(MAM_HeapFree(heap, blocks[i]));
    IS(MAM_HeapFree(heap, blocks[i]), cudaErrorInvalidValue);
    IS(MAM_HeapCopy(heap, bytes, blocks[i], sizeof bytes), cudaErrorInvalidValue);
  }
  ck_assert_uint_eq(info_now().live_count, 0);
  ck_assert_uint_eq(info_now().refused_free_count, COUNT);
  end();
}
END_TEST

static bool contains(const void *address) {
  int answer = -1;
  OK(MAM_HeapContains(heap, address, &answer));
  ck_assert(answer == 0 || answer == 1);
  return answer == 1;
}

/* Goes through a block, and through what lies before and behind a superblock. */
START_TEST(address_is_known_to_lie_in_the_heap_or_not) {
  int answer = -1;
  pool_begin(64 * MIB);
  heap_begin(MIB, 8 * MIB, 0);
  size_t pages = info_now().free_page_count;
  char *all = kernel_malloc(pages * (size_t)MAM__PAGE_BYTES, 0);
  ck_assert_ptr_nonnull(all); /* so the heap has these addresses, and no others */
  ck_assert(contains(all) && contains(all + pages * MAM__PAGE_BYTES - 1) && contains(all + 1234));
  ck_assert(!contains(all - 1) && !contains(all + pages * MAM__PAGE_BYTES) && !contains(NULL) && !contains(&answer));
  OK(MAM_HeapFree(heap, all));
  ck_assert(contains(all));
  OK(MAM_HeapGrow(heap, 2 * MIB));
  char *large = kernel_malloc(pages * (size_t)MAM__PAGE_BYTES + 1, 0);
  ck_assert_ptr_nonnull(large);
  ck_assert(contains(large) && contains(large + pages * MAM__PAGE_BYTES) && contains(all));
  OK(MAM_HeapFree(heap, large));
  OK(MAM_HeapTrim(heap, 0));
  ck_assert(!contains(large));
  IS(MAM_HeapContains(heap, all, NULL), cudaErrorInvalidValue);
  IS(MAM_HeapContains(NULL, all, &answer), cudaErrorInvalidResourceHandle);
  ck_assert_int_eq(answer, -1);
  OK(MAM_HeapCompactBegin(heap, NULL, NULL));
  ck_assert(contains(all));
  OK(MAM_HeapCompactEnd(heap));
  end();
}
END_TEST

/* The callback gives back what the heap does not need.  It takes the heap's lock for that. */
static unsigned questions;
static int trims_the_heap(MAM_Pool asked, size_t size, unsigned attempt, void *data) {
  (void)asked, (void)size, (void)attempt, (void)data;
  questions++;
  OK(MAM_HeapTrim(heap, 0));
  return 1;
}

static mam_device_heap handle_of(MAM_Heap of) {
  mam_device_heap its;
  OK(MAM_HeapHandle(of, &its));
  return its;
}

/* Lanes of one call tell their heaps apart by number.  A number comes back with its heap, and if a creation fails. */
START_TEST(heaps_have_numbers_of_their_own) {
  enum { HEAPS = 70 };
  MAM_Heap heaps[HEAPS], none = NULL;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = MIB;
  pool_begin(256 * MIB);
  for (unsigned round = 0; round < 3; round++) {
    for (unsigned i = 0; i < HEAPS; i++) {
      OK(MAM_HeapCreate(&heaps[i], pool, &options));
      ck_assert_uint_ne(handle_of(heaps[i]).number, 0); /* that of a handle whose bytes are all 0 */
      ck_assert_uint_le(handle_of(heaps[i]).number, HEAPS);
      for (unsigned j = 0; j < i; j++)
        ck_assert_uint_ne(handle_of(heaps[i]).number, handle_of(heaps[j]).number);
    }
    OK(MAM_HeapDestroy(heaps[round]));
    OK(MAM_HeapCreate(&heaps[round], pool, &options));
    ck_assert_uint_eq(handle_of(heaps[round]).number, round + 1);
    options.bytes = 1024 * (size_t)MIB;
    IS(MAM_HeapCreate(&none, pool, &options), cudaErrorMemoryAllocation);
    options.bytes = MIB;
    for (unsigned i = 0; i < HEAPS; i++)
      OK(MAM_HeapDestroy(heaps[i]));
  }
  heap_begin(MIB, 0, 0);
  end();
}
END_TEST

START_TEST(memory_for_a_heap_is_no_question_to_the_program) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  MAM_Heap second;
  void *block;
  pool_begin(16 * MIB);
  heap_begin(1 * MIB, 64 * MIB, 0);
  OK(MAM_HeapGrow(heap, 8 * MIB));
  OK(MAM_SetOutOfMemoryCallback(trims_the_heap, NULL));
  IS(MAM_HeapGrow(heap, 12 * MIB), cudaErrorMemoryAllocation);
  options.bytes = 12 * MIB;
  IS(MAM_HeapCreate(&second, pool, &options), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(questions, 0);
  OK(MAM_PoolMalloc(pool, &block, 12 * MIB)); /* a program's own allocation asks, and gets the heap's memory */
  ck_assert_uint_eq(questions, 1);
  OK(MAM_CudaFree(block));
  OK(MAM_SetOutOfMemoryCallback(NULL, NULL));
  end();
}
END_TEST

START_TEST(heap_grows_and_trims_between_kernels) {
  unsigned count = 0;
  static void *blocks[BLOCKS_MOST];
  pool_begin(64 * MIB);
  heap_begin(1 * MIB, 16 * MIB, 0);
  while ((blocks[count] = kernel_malloc(1000, count)) != NULL)
    count++;
  unsigned first = count;
  OK(MAM_HeapGrow(heap, 4 * MIB));
  while ((blocks[count] = kernel_malloc(1000, count)) != NULL)
    count++;
  ck_assert_uint_ge(count - first, 3 * first);
  IS(MAM_HeapGrow(heap, 12 * MIB), cudaErrorMemoryAllocation);
  IS(MAM_HeapGrow(heap, 1), cudaErrorInvalidValue);
  ck_assert_uint_eq(info_now().live_count, count);
  OK(MAM_HeapTrim(heap, 0));
  ck_assert_uint_eq(info_now().reserved_bytes, 5 * MIB);
  for (unsigned i = 0; i < count; i++)
    ck_assert(heap_model_free(&kernels, blocks[i]));
  OK(MAM_HeapTrim(heap, 0));
  ck_assert_uint_eq(info_now().reserved_bytes, 1 * MIB);
  ck_assert_uint_eq(info_now().growth_count, 1);
  OK(MAM_HeapReset(heap));
  end();
}
END_TEST

/* ---- Records and shares ------------------------------------------------------------------------------------------ */

static void *malloc_at(size_t bytes, unsigned line) {
  void *block = kernel_malloc(bytes + sizeof(struct mam__record), 0);
  ck_assert_ptr_nonnull(block);
  memset(block, 0xff, bytes);
  mam__record_write(handle.control, (mam__u64)(uintptr_t)block, bytes, line % 2 == 0 ? "even.cu" : "odd \"1\".cu",
                    line);
  return block;
}

static void records_begin(void) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = 4 * MIB;
  options.records = 1;
  pool_begin(64 * MIB);
  OK(MAM_HeapCreate(&heap, pool, &options));
  OK(MAM_HeapHandle(heap, &handle));
  kernels.control = handle.control;
}

START_TEST(records_say_who_allocated_what_and_how_much) {
  enum { SITED = 300, COUNT = SITED + 10 };
  MAM_HeapBlock list[COUNT];
  size_t count = 0, requested = 0, seen = 0;
  double unused = 0;
  records_begin();
  for (unsigned i = 0; i < SITED; i++)
    (void)malloc_at(1 + i * 31, i % 7 + 1);
  for (unsigned i = SITED; i < COUNT; i++)
    memset(kernel_malloc(100, 0), 0xaa, 100);
  OK(MAM_HeapList(heap, list, COUNT, &count));
  ck_assert_uint_eq(count, COUNT);
  for (unsigned i = 0; i < COUNT; i++) {
    if (list[i].requested_bytes == 0) {
      ck_assert_ptr_null(list[i].file);
      continue;
    }
    unsigned number = (unsigned)((list[i].requested_bytes - 1) / 31);
    ck_assert_uint_eq(list[i].requested_bytes, 1 + number * 31);
    ck_assert_uint_eq(list[i].line, number % 7 + 1);
    ck_assert_str_eq(list[i].file, list[i].line % 2 == 0 ? "even.cu" : "odd \"1\".cu");
    ck_assert_uint_ge(list[i].bytes, list[i].requested_bytes + 16);
    unused += 1 - (double)list[i].requested_bytes / (double)(list[i].bytes - 16);
    requested += list[i].requested_bytes;
    seen++;
  }
  ck_assert_uint_eq(seen, SITED);
  MAM_HeapInfo info = info_now();
  ck_assert_uint_eq(info.recorded_count, SITED);
  ck_assert_uint_eq(info.requested_bytes, requested);
  ck_assert_double_eq_tol(info.internal_fragmentation, unused / SITED, 1e-9);
  char *json = NULL;
  OK(MAM_HeapReport(heap, &json));
  ck_assert_ptr_nonnull(strstr(json, "{\"file\": \"odd \\\"1\\\".cu\", \"line\": 7, \"live\": 42, "));
  free(json);
  end();
}
END_TEST

START_TEST(freed_block_has_no_record_any_more) {
  MAM_HeapBlock block;
  size_t count = 0;
  records_begin();
  char *first = malloc_at(100, 3);
  mam__record_end(handle.control, (mam__u64)(uintptr_t)first);
  ck_assert(heap_model_free(&kernels, first));
  ck_assert_uint_eq(info_now().recorded_count, 0);
  char *second = NULL;
  for (unsigned i = 0; i < 100000 && second != first; i++) /* until the chunk is the first one, now without a record */
    second = kernel_malloc(116, 0);
  ck_assert_uint_eq(info_now().recorded_count, 0);
  OK(MAM_HeapList(heap, &block, 1, &count));
  ck_assert_ptr_null(block.file);
  end();
}
END_TEST

START_TEST(more_sites_than_there_are_places_are_recorded_without_one) {
  records_begin();
  for (unsigned i = 1; i <= MAM__SITES + 50; i++)
    (void)malloc_at(10, i);
  ck_assert_uint_eq(info_now().recorded_count, MAM__SITES + 50);
  ck_assert_uint_eq(info_now().requested_bytes, 10 * (MAM__SITES + 50));
  end();
}
END_TEST

START_TEST(share_tells_calls_and_kernels_apart) {
  MAM_HeapShare share = {.struct_size = sizeof share};
  MAM_Heap second = NULL;
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  void *call = NULL;
  pool_begin(64 * MIB);
  OK(MAM_HeapGetShare(pool, &share));
  ck_assert_uint_eq(share.reserved_bytes, share.free_bytes);
  heap_begin(4 * MIB, 8 * MIB, 0);
  options.bytes = 2 * MIB;
  options.records = 1;
  OK(MAM_HeapCreate(&second, pool, &options));
  OK(MAM_PoolMalloc(pool, &call, 3 * MIB));
  ck_assert_ptr_nonnull(kernel_malloc(MIB, 0));
  OK(MAM_HeapGetShare(pool, &share));
  ck_assert_uint_eq(share.reserved_bytes, share.call_bytes + share.heap_bytes + share.waiting_bytes + share.free_bytes);
  ck_assert_uint_eq(share.heap_bytes, share.heap_used_bytes + share.heap_free_bytes + share.heap_metadata_bytes);
  ck_assert_uint_eq(share.call_bytes, 3 * MIB);
  ck_assert_uint_eq(share.heap_count, 2);
  ck_assert_uint_eq(share.heap_used_bytes, MIB);
  ck_assert_uint_ge(share.heap_bytes, 6 * MIB);
  ck_assert_uint_lt(share.heap_bytes, 7 * MIB);
  OK(MAM_HeapDestroy(second));
  OK(MAM_CudaFree(call));
  OK(MAM_HeapGetShare(pool, &share));
  ck_assert_uint_eq(share.call_bytes, 0);
  ck_assert_uint_eq(share.heap_count, 1);
  IS(MAM_HeapGetShare(pool, NULL), cudaErrorInvalidValue);
  end();
}
END_TEST

static void *share_ask(void *result) {
  *(MAM_HeapShare *)result = (MAM_HeapShare){.struct_size = sizeof(MAM_HeapShare)};
  OK(MAM_HeapGetShare(pool, result));
  return NULL;
}

struct destruction {
  MAM_Heap heap;
  _Atomic bool ended;
};

static void *heap_destroy(void *of) {
  struct destruction *destruction = of;
  OK(MAM_HeapDestroy(destruction->heap));
  destruction->ended = true;
  return NULL;
}

/* A thread that asks is visiting a heap while another thread destroys it.  The visitor goes on to the next heap. */
START_TEST(heap_that_is_looked_at_is_destroyed_afterwards) {
  MAM_HeapShare share;
  struct destruction destruction = {NULL, false};
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  pthread_t asker, destroyer;
  struct timespec time = {.tv_nsec = 50000000};
  pool_begin(64 * MIB);
  heap_begin(4 * MIB, 8 * MIB, 0);
  options.bytes = 2 * MIB;
  OK(MAM_HeapCreate(&destruction.heap, pool, &options));
  fake_hold("cuMemcpyDtoHAsync");
  ck_assert_int_eq(pthread_create(&asker, NULL, share_ask, &share), 0);
  while (!fake_is_held())
    (void)sched_yield();
  ck_assert_int_eq(pthread_create(&destroyer, NULL, heap_destroy, &destruction), 0);
  (void)nanosleep(&time, NULL);
  ck_assert(!destruction.ended);
  fake_let_go();
  ck_assert_int_eq(pthread_join(asker, NULL), 0);
  ck_assert_int_eq(pthread_join(destroyer, NULL), 0);
  ck_assert_uint_eq(share.heap_count, 2);
  (void)share_ask(&share);
  ck_assert_uint_eq(share.heap_count, 1);
  end();
}
END_TEST

/* ---- Under kernels ----------------------------------------------------------------------------------------------- */

struct kernel {
  unsigned low, high, count;
};

static struct kernel kernel;
static void *blocks[BLOCKS_MOST];
static unsigned refused;

static unsigned bytes_of(unsigned i) { return kernel.low + i * 7919u % (kernel.high - kernel.low + 1); }

static void *run_thread(void *argument) {
  for (unsigned i = (unsigned)(uintptr_t)argument; i < kernel.count; i += THREADS) {
    blocks[i] = kernel_malloc(bytes_of(i), i % THREADS);
    if (blocks[i] == NULL)
      (void)__atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
    else
      memset(blocks[i], (int)(i % 251), bytes_of(i));
  }
  return NULL;
}

static void run_kernel(struct kernel what) {
  pthread_t threads[THREADS];
  kernel = what;
  refused = 0;
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, run_thread, (void *)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    (void)pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < kernel.count; i++)
    for (unsigned j = 0; blocks[i] != NULL && j < bytes_of(i); j += 61)
      ck_assert_uint_eq(((unsigned char *)blocks[i])[j], i % 251);
}

START_TEST(kernel_that_asks_for_16_times_the_heap_is_served) {
  static const struct kernel cases[] = {
      {1000, 1000, 16 * MIB / 1000}, {16, 3000, 16 * MIB / 1508}, {30000, 70000, 16 * MIB / 50000}};
  pool_begin(96 * MIB);
  heap_begin(MIB, 64 * MIB, MIB);
  run_kernel(cases[_i]);
  ck_assert_uint_eq(refused, 0);
  ck_assert_uint_eq(info_now().live_count, cases[_i].count);
  ck_assert_uint_ge(info_now().growth_count, 4);
  for (unsigned i = 0; i < cases[_i].count; i++)
    ck_assert(heap_model_free(&kernels, blocks[i]));
  ck_assert_uint_eq(info_now().live_count, 0);
  OK(MAM_HeapTrim(heap, 0));
  ck_assert_uint_eq(info_now().reserved_bytes, MIB);
  end();
}
END_TEST

/* Heaps that come one after another get the same bell, and the second heap may ring with the same word as the first. */
START_TEST(next_heap_is_heard_that_asks_for_the_same) {
  pool_begin(64 * MIB);
  for (unsigned i = 0; i < 3; i++) {
    heap_begin(MIB, 16 * MIB, MIB);
    ck_assert_ptr_nonnull(kernel_malloc(4 * MIB, 0));
    ck_assert_uint_eq(info_now().growth_count, 1);
    OK(MAM_HeapDestroy(heap));
  }
  heap = NULL;
  end();
}
END_TEST

/* The pool takes a chunk for the growth. */
START_TEST(request_larger_than_the_pool_is_served) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.chunk_bytes = 16 * MIB;
  options.limit_bytes = 384 * MIB;
  fake_back_memory();
  OK(MAM_PoolCreate(&pool, &options));
  heap_begin(4 * MIB, 256 * MIB, 4 * MIB);
  ck_assert_ptr_nonnull(kernel_malloc(100 * MIB, 0));
  ck_assert_uint_eq(info_now().growth_count, 1);
  end();
}
END_TEST

/* After a trim the heap can grow again. */
START_TEST(growth_stops_at_the_limit) {
  pool_begin(96 * MIB);
  heap_begin(MIB, 4 * MIB, MIB);
  for (unsigned round = 0; round < 2; round++) {
    run_kernel((struct kernel){1000, 1000, 8 * MIB / 1000});
    ck_assert_uint_gt(refused, 0);
    ck_assert_uint_le(refused, 8 * MIB / 1000 - 3 * MIB / 1000);
    ck_assert_uint_le(info_now().reserved_bytes, 4 * MIB);
    unsigned long long begin_ns = time_ns();
    ck_assert_ptr_null(kernel_malloc(1000, 0));
    ck_assert_uint_lt((time_ns() - begin_ns) / 1000000, 10000);
    for (unsigned i = 0; i < 8 * MIB / 1000; i++)
      ck_assert(blocks[i] == NULL || heap_model_free(&kernels, blocks[i]));
    OK(MAM_HeapTrim(heap, 0));
  }
  end();
}
END_TEST

/* A pool that has no memory now may have some later. */
START_TEST(pool_that_is_full_refuses_for_a_while) {
  void *other = NULL;
  pool_begin(8 * MIB);
  heap_begin(MIB, 64 * MIB, MIB);
  OK(MAM_PoolMalloc(pool, &other, 6 * MIB + 512 * KIB));
  while (kernel_malloc(1000, 0) != NULL)
    ;
  ck_assert_uint_lt(info_now().reserved_bytes, 2 * MIB);
  OK(MAM_CudaFree(other));
  void *block = NULL;
  for (unsigned i = 0; i < 500 && block == NULL; i++) {
    (void)usleep(10000);
    block = kernel_malloc(1000, 0);
  }
  ck_assert_ptr_nonnull(block);
  end();
}
END_TEST

/* A growth does not wait for the GPU: it would wait for the very kernel that waits for the growth. */
START_TEST(growth_waits_for_no_kernel) {
  void *other = NULL;
  pool_begin(8 * MIB);
  heap_begin(MIB, 64 * MIB, MIB);
  OK(MAM_PoolMalloc(pool, &other, 6 * MIB + 512 * KIB));
  struct fake_range range = {other, MIB};
  ck_assert(fake_launch(NULL, &range, 1));
  OK(MAM_CudaFree(other)); /* the kernel still uses it */
  unsigned waits = fake_waits();
  while (kernel_malloc(1000, 0) != NULL)
    ;
  ck_assert_uint_eq(fake_waits(), waits);
  ck_assert_uint_eq(fake_in_flight(), 1);
  fake_finish(fake_current());
  end();
}
END_TEST

START_TEST(driver_that_fails_while_growing_ends_the_waiting) {
  static const char *const calls[] = {"cuMemcpyHtoDAsync", "cuStreamSynchronize"};
  pool_begin(64 * MIB);
  heap_begin(MIB, 64 * MIB, MIB);
  void *last;
  while ((last = heap_model_malloc(&kernels, 1000, 0)) != NULL)
    ;
  fake_fail(calls[_i], 1, 719);
  unsigned long long begin_ns = time_ns();
  ck_assert_ptr_null(kernel_malloc(1000, 0));
  ck_assert_uint_lt((time_ns() - begin_ns) / 1000000, 30000);
  end();
}
END_TEST

/* Whichever of its copies fails, the last one tells kernels that they may ask again. */
START_TEST(growth_that_fails_changes_nothing) {
  bool failed = true;
  for (unsigned nth = 1; failed; nth++) {
    pool_begin(64 * MIB);
    heap_begin(MIB, 64 * MIB, MIB);
    MAM_HeapInfo before = info_now();
    fake_fail("cuMemcpyHtoDAsync", nth, 2);
    unsigned failures = fake_failures();
    cudaError_t error = MAM_HeapGrow(heap, MIB);
    failed = fake_failures() != failures;
    fake_fail("cuMemcpyHtoDAsync", 0, 0);
    MAM_HeapInfo after = info_now();
    ck_assert_uint_eq(after.superblock_count, before.superblock_count + (error == cudaSuccess));
    ck_assert_uint_eq(after.growth_count, before.growth_count + (error == cudaSuccess));
    ck_assert_uint_eq(after.reserved_bytes, before.reserved_bytes + (error == cudaSuccess ? MIB : 0));
    end();
  }
}
END_TEST

START_TEST(creation_that_fails_changes_nothing) {
  static const char *const calls[] = {"cuMemHostRegister", "cuMemHostGetDevicePointer", "cuStreamCreate",
                                      "cuModuleLoadData",  "cuMemcpyHtoDAsync",         "cuLaunchKernel"};
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = options.grow_bytes = MIB;
  options.limit_bytes = 4 * MIB;
  pool_begin(64 * MIB);
  fake_fail(calls[_i], 1, 2);
  heap = (MAM_Heap)1;
  ck_assert_int_ne(MAM_HeapCreate(&heap, pool, &options), cudaSuccess);
  ck_assert_ptr_eq(heap, (MAM_Heap)1);
  heap_begin(MIB, 4 * MIB, MIB);
  end();
}
END_TEST

START_TEST(options_are_checked) {
  static const MAM_HeapOptions wrong[] = {{sizeof(MAM_HeapOptions) - 8, MIB, 0, 0, 0, 0},
                                          {sizeof(MAM_HeapOptions), 1000, 0, 0, 0, 0},
                                          {sizeof(MAM_HeapOptions), (size_t)4 << 40, 0, 0, 0, 0},
                                          {sizeof(MAM_HeapOptions), MIB, KIB, 0, 0, 0},
                                          {sizeof(MAM_HeapOptions), MIB, 0, MIB, 0, 0},
                                          {sizeof(MAM_HeapOptions), MIB, MIB, MIB, 0, 0},
                                          {sizeof(MAM_HeapOptions), MIB, 4 * MIB, 1000, 0, 0},
                                          {sizeof(MAM_HeapOptions), MIB, 4 * MIB, MIB, 3600001, 0},
                                          {sizeof(MAM_HeapOptions), MIB, 0, 0, 0, 2}};
  pool_begin(64 * MIB);
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    IS(MAM_HeapCreate(&heap, pool, &wrong[i]), cudaErrorInvalidValue);
  fake_hide("cuMemHostRegister");
  heap_begin(MIB, 4 * MIB, 0);
  end();
}
END_TEST

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

/* The bell's memory stays when the context ends, and the service ends by itself. */
START_TEST(context_ends_before_a_heap_that_grows) {
  pool_begin(64 * MIB);
  heap_begin(MIB, 4 * MIB, MIB);
  fake_primary_reset(0);
  (void)usleep(50000);
  IS(MAM_HeapGrow(heap, MIB), cudaErrorContextIsDestroyed);
  (void)MAM_HeapDestroy(heap);
  (void)MAM_PoolDestroy(pool);
  ck_assert_uint_eq(fake_violations(), 0);
}
END_TEST

/* After the end of a heap's context or pool, another pool may have the heap's addresses, and the heap may not free
 * them. The next pool's first block begins where the heap's first superblock began, if the pool has the same chunk. */
START_TEST(heap_that_lost_its_memory_frees_nothing_of_others) {
  void *block = NULL;
  pool_begin(64 * MIB);
  heap_begin(MIB, 4 * MIB, 0);
  MAM_Heap left = heap;
  if (_i == 0) {
    fake_primary_reset(0);
    fake_make_current(fake_primary_retain(0));
    (void)MAM_PoolDestroy(pool);
  } else {
    OK(MAM_PoolDestroy(pool));
  }
  IS(MAM_HeapHandle(left, &handle), cudaErrorContextIsDestroyed);
  pool_begin(64 * MIB);
  OK(MAM_PoolMalloc(pool, &block, MIB));
  IS(MAM_HeapGrow(left, MIB), cudaErrorContextIsDestroyed); /* this pool may have the struct of the heap's pool */
  OK(MAM_HeapDestroy(left));
  OK(MAM_CudaFree(block)); /* the heap has not freed it */
  OK(MAM_PoolDestroy(pool));
  ck_assert_uint_eq(fake_violations(), 0);
}
END_TEST

/* At exit, AddressSanitizer looks for leaks.  In a child it would wait for a lock that a thread of the parent held. */
#ifdef __SANITIZE_ADDRESS__
#define CHILD_EXIT _exit
#else
#define CHILD_EXIT exit
#endif

START_TEST(process_exits_or_forks_with_a_heap_that_grows) {
  int status = -1;
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    pool_begin(64 * MIB);
    heap_begin(MIB, 4 * MIB, MIB);
    pid_t grandchild = fork();
    if (grandchild == 0)
      CHILD_EXIT(MAM_HeapGrow(heap, MIB) == cudaErrorInitializationError &&
                         MAM_HeapDestroy(heap) == cudaErrorInitializationError
                     ? 0
                     : 1);
    (void)waitpid(grandchild, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

START_TEST(heaps_that_grow_come_and_go) {
  pool_begin(64 * MIB);
  for (unsigned i = 0; i < 30; i++) {
    MAM_Heap second = NULL;
    MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
    options.bytes = options.grow_bytes = MIB;
    options.limit_bytes = 16 * MIB;
    heap_begin(MIB, 16 * MIB, MIB);
    OK(MAM_HeapCreate(&second, pool, &options));
    run_kernel((struct kernel){500, 1500, 2000});
    ck_assert_uint_eq(refused, 0);
    OK(MAM_HeapDestroy(second));
    OK(MAM_HeapDestroy(heap));
  }
  heap = NULL;
  end();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("device heaps and the host");
  TCase *tests = tcase_create("between kernels");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, blocks_of_kernels_are_seen_copied_and_freed);
  tcase_add_test(tests, address_is_known_to_lie_in_the_heap_or_not);
  tcase_add_test(tests, heap_grows_and_trims_between_kernels);
  tcase_add_test(tests, heaps_have_numbers_of_their_own);
  tcase_add_test(tests, memory_for_a_heap_is_no_question_to_the_program);
  tcase_add_loop_test(tests, creation_that_fails_changes_nothing, 0, 6);
  tcase_add_test(tests, growth_that_fails_changes_nothing);
  tcase_add_test(tests, options_are_checked);
  suite_add_tcase(suite, tests);
  tests = tcase_create("records and shares");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, records_say_who_allocated_what_and_how_much);
  tcase_add_test(tests, freed_block_has_no_record_any_more);
  tcase_add_test(tests, more_sites_than_there_are_places_are_recorded_without_one);
  tcase_add_test(tests, share_tells_calls_and_kernels_apart);
  tcase_add_test(tests, heap_that_is_looked_at_is_destroyed_afterwards);
  suite_add_tcase(suite, tests);
  tests = tcase_create("under kernels");
  tcase_set_timeout(tests, 100);
  tcase_add_loop_test(tests, kernel_that_asks_for_16_times_the_heap_is_served, 0, 3);
  tcase_add_test(tests, next_heap_is_heard_that_asks_for_the_same);
  tcase_add_test(tests, request_larger_than_the_pool_is_served);
  tcase_add_test(tests, growth_stops_at_the_limit);
  tcase_add_test(tests, pool_that_is_full_refuses_for_a_while);
  tcase_add_test(tests, growth_waits_for_no_kernel);
  tcase_add_loop_test(tests, driver_that_fails_while_growing_ends_the_waiting, 0, 2);
  suite_add_tcase(suite, tests);
  tests = tcase_create("ends");
  tcase_set_timeout(tests, 60);
  tcase_add_test(tests, context_ends_before_a_heap_that_grows);
  tcase_add_loop_test(tests, heap_that_lost_its_memory_frees_nothing_of_others, 0, 2);
  tcase_add_test(tests, process_exits_or_forks_with_a_heap_that_grows);
  tcase_add_test(tests, heaps_that_grow_come_and_go);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
