/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory under libmam_preload answers as the driver's own: sizes, ranges, attributes, errors; and where a pool has
 * none, the driver is asked.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "preload_util.h"

static uint64_t attribute(int which, address_t address) {
  uint64_t value = 0;
  OK(cuPointerGetAttribute(&value, which, address));
  return value;
}

/* ---- Blocks ---- */

START_TEST(a_block_answers_with_its_own_base_and_size) {
  static const size_t sizes[] = {1, 1000, 1001, 4096, 9999, 20001, 32768, 32769, 100000, 3 * MIB + 7, 100 * MIB};
  begin();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    address_t address = allocate(sizes[i]), base = 0;
    size_t bytes = 0;
    OK(cuMemGetAddressRange_v2(&base, &bytes, address + sizes[i] - 1));
    ck_assert_uint_eq(base, address);
    ck_assert_uint_eq(bytes, sizes[i]);
    ck_assert_uint_eq(attribute(RANGE_START, address + sizes[i] / 2), address);
    ck_assert_uint_eq(attribute(RANGE_SIZE, address), sizes[i]);
    FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, address + sizes[i]));
    OK(cuMemGetAddressRange_v2(NULL, &bytes, address));
    OK(cuMemGetAddressRange_v2(&base, NULL, address));
  }
}
END_TEST

START_TEST(every_live_block_has_its_own_buffer_id) {
  uint64_t ids[64];
  begin();
  for (int i = 0; i < 64; i++) {
    address_t address = allocate(i % 2 == 0 ? 512 : MIB);
    ids[i] = attribute(BUFFER_ID, address);
    ck_assert_uint_eq(attribute(BUFFER_ID, address + 511), ids[i]);
    for (int j = 0; j < i; j++)
      ck_assert_uint_ne(ids[i], ids[j]);
  }
}
END_TEST

START_TEST(several_attributes_at_once_are_the_blocks_own) {
  void *context = begin(), *owner = NULL;
  address_t address = allocate(5000), start = 0;
  uint64_t bytes = 0;
  int which[] = {1, MEMORY_TYPE, RANGE_START, RANGE_SIZE}, type = 0;
  void *values[] = {&owner, &type, &start, &bytes};
  OK(cuPointerGetAttributes(4, which, values, address + 100));
  ck_assert_ptr_eq(owner, context);
  ck_assert_int_eq(type, 2);
  ck_assert_uint_eq(start, address);
  ck_assert_uint_eq(bytes, 5000);
}
END_TEST

START_TEST(a_freed_block_is_nobodys_memory) {
  static const size_t sizes[] = {1000, MIB};
  begin();
  for (int i = 0; i < 2; i++) {
    address_t address = allocate(sizes[i]), base;
    int which = MEMORY_TYPE, type = 7;
    void *value = &type;
    uint64_t one;
    OK(cuMemFree_v2(address));
    FAILS(NOT_FOUND, cuMemGetAddressRange_v2(&base, NULL, address));
    FAILS(INVALID_VALUE, cuPointerGetAttribute(&one, RANGE_START, address));
    OK(cuPointerGetAttributes(1, &which, &value, address));
    ck_assert_int_eq(type, 0);
  }
}
END_TEST

START_TEST(wrong_frees_are_refused_and_harm_nothing) {
  begin();
  address_t small = allocate(1000), large = allocate(MIB);
  FAILS(INVALID_VALUE, cuMemFree_v2(small + 512));
  FAILS(INVALID_VALUE, cuMemFree_v2(large + 512));
  FAILS(INVALID_VALUE, cuMemFree_v2(0x1234500)); /* the driver's to refuse */
  OK(cuMemFree_v2(small));
  OK(cuMemFree_v2(large));
  FAILS(INVALID_VALUE, cuMemFree_v2(small));
  FAILS(INVALID_VALUE, cuMemFree_v2(large));
  OK(cuMemFree_v2(0));
}
END_TEST

START_TEST(a_refusal_after_the_driver_shut_down_is_the_drivers) {
  begin();
  address_t address = allocate(MIB);
  OK(cuMemFree_v2(address));
  fake_fail("cuCtxGetCurrent", 1, 4);
  FAILS(4, cuMemFree_v2(address));
  FAILS(INVALID_VALUE, cuMemFree_v2(address));
}
END_TEST

START_TEST(wrong_allocations_answer_as_the_driver) {
  address_t address = 7;
  begin();
  FAILS(INVALID_VALUE, cuMemAlloc_v2(NULL, 1000));
  FAILS(INVALID_VALUE, cuMemAlloc_v2(&address, 0));
  FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&address, (size_t)1 << 50));
  ck_assert_uint_eq(address, 7); /* a failing cuMemAlloc writes nothing */
  OK(cuCtxSetCurrent(NULL));
  FAILS(INVALID_CONTEXT, cuMemAlloc_v2(&address, 1000));
}
END_TEST

/* For what the device cannot hold, pools give nothing up. */
START_TEST(an_allocation_larger_than_the_device_takes_nothing_from_pools) {
  address_t address = 7;
  size_t pitch;
  begin();
  OK(cuMemAllocPitch_v2(&address, &pitch, 1, 1, 4)); /* which tells the pitch */
  OK(cuMemFree_v2(allocate(GIB)));
  size_t bytes = fake_live_bytes();
  FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&address, 4 * GIB + 1));
  FAILS(OUT_OF_MEMORY, cuMemAllocPitch_v2(&address, &pitch, MIB, 5000, 4));
  ck_assert_uint_eq(fake_live_bytes(), bytes);
}
END_TEST

START_TEST(pitched_rows_have_the_drivers_pitch) {
  address_t address = 0;
  size_t pitch = 0, bytes = 0;
  begin();
  OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 700, 4));
  ck_assert_uint_eq(pitch, 1024);
  OK(cuMemGetAddressRange_v2(NULL, &bytes, address));
  ck_assert_uint_eq(bytes, 1024 * 700);
  ck_assert_uint_le(fake_live_bytes(), CHUNK_BYTES + FAKE_GRANULARITY_BYTES); /* the row that told the pitch */
  OK(cuMemAllocPitch_v2(&address, &pitch, 1025, 3, 16));
  ck_assert_uint_eq(pitch, 1536);
  FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&address, &pitch, 1000, 700, 3));
  FAILS(INVALID_VALUE, cuMemAllocPitch_v2(&address, &pitch, 0, 700, 4));
}
END_TEST

START_TEST(pitched_blocks_are_chosen_by_their_size) {
  address_t small = 0, large = 0;
  size_t pitch = 0, bytes = 0;
  (void)setenv("MAM_PRELOAD_MIN", "1M", 1);
  begin();
  OK(cuMemAllocPitch_v2(&small, &pitch, 1000, 1023, 4));
  OK(cuMemAllocPitch_v2(&large, &pitch, 1000, 1024, 4));
  OK(cuMemGetAddressRange_v2(NULL, &bytes, large));
  ck_assert_uint_eq(bytes, MIB);
  unsigned frees = fake_calls("cuMemFree");
  OK(cuMemFree_v2(small));
  ck_assert_uint_eq(fake_calls("cuMemFree"), frees + 1);
  OK(cuMemFree_v2(large));
  ck_assert_uint_eq(fake_calls("cuMemFree"), frees + 1);
}
END_TEST

/* ---- How much there is ---- */

START_TEST(free_memory_counts_what_the_pool_can_hand_out) {
  size_t before, total, used, after;
  begin();
  OK(cuMemGetInfo_v2(&before, &total));
  ck_assert_uint_eq(before, total);
  address_t address = allocate(10 * MIB);
  OK(cuMemGetInfo_v2(&used, &total));
  ck_assert_uint_eq(before - used, 10 * MIB);
  OK(cuMemFree_v2(address));
  OK(cuMemGetInfo_v2(&after, &total));
  ck_assert_uint_eq(after, before);
}
END_TEST

static void *let_go_later(void *unused) {
  struct timespec time = {.tv_nsec = 50000000};
  (void)nanosleep(&time, NULL);
  fake_let_go();
  return unused;
}

/* A calm pool gives a chunk back, by a call of the driver that does not return. */
static void hold_a_chunk_on_its_way(void) {
  OK(cuMemFree_v2(allocate(GIB)));
  fake_hold("cuMemFree");
  for (int i = 0; i < 5000 && !fake_is_held(); i++) {
    OK(cuMemFree_v2(allocate(1000))); /* by which a growth is noticed */
    (void)usleep(1000);
  }
  ck_assert(fake_is_held());
}

/* The reaper gives the chunk back while the program asks: the pool has it no more, and the driver not yet. */
START_TEST(free_memory_counts_what_is_on_its_way_to_the_driver) {
  size_t before, after, total;
  pthread_t thread;
  (void)setenv("MAM_LINGER_MS", "100", 1);
  begin();
  OK(cuMemGetInfo_v2(&before, &total));
  hold_a_chunk_on_its_way();
  ck_assert_int_eq(pthread_create(&thread, NULL, let_go_later, NULL), 0);
  OK(cuMemGetInfo_v2(&after, &total));
  ck_assert_uint_eq(after, before);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

/* A call of the driver that gives a chunk back does not return. */
START_TEST(a_question_for_free_memory_waits_for_a_second_at_most) {
  struct timespec begun, ended;
  size_t free_bytes, total;
  (void)setenv("MAM_LINGER_MS", "100", 1);
  begin();
  hold_a_chunk_on_its_way();
  (void)clock_gettime(CLOCK_MONOTONIC, &begun);
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  (void)clock_gettime(CLOCK_MONOTONIC, &ended);
  ck_assert_int_lt((ended.tv_sec - begun.tv_sec) * 1000 + (ended.tv_nsec - begun.tv_nsec) / 1000000, 1500);
  fake_let_go();
}
END_TEST

/* What the pool of one context keeps, an allocation in another context of the device gets. */
START_TEST(free_memory_counts_what_other_contexts_of_the_device_keep) {
  size_t free_bytes, total;
  void *elsewhere = NULL;
  fake_set_devices(2);
  begin();
  address_t kept = allocate(10 * MIB);
  OK(cuMemFree_v2(allocate(3 * GIB)));
  OK(cuCtxSetCurrent(fake_context_create(0)));
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  ck_assert_uint_eq(free_bytes, total - 10 * MIB);
  OK(cuMemFree_v2(allocate(1000)));
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  ck_assert_uint_eq(free_bytes, total - 10 * MIB);
  OK(cuDevicePrimaryCtxRetain(&elsewhere, 1));
  OK(cuCtxSetCurrent(elsewhere));
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  ck_assert_uint_eq(free_bytes, total);
  OK(cuMemFree_v2(allocate(1000)));
  OK(cuMemGetInfo_v2(&free_bytes, &total));
  ck_assert_uint_eq(free_bytes, total);
  OK(cuMemFree_v2(kept));
}
END_TEST

START_TEST(large_blocks_take_chunks_of_their_own_size) {
  begin();
  address_t address = allocate(GIB);
  ck_assert_uint_eq(address % FAKE_GRANULARITY_BYTES, 0);
  size_t held = fake_live_bytes();
  ck_assert_uint_ge(held, CHUNK_BYTES + GIB); /* the first chunk comes with the pool */
  ck_assert_uint_le(held, CHUNK_BYTES + GIB + FAKE_GRANULARITY_BYTES);
  OK(cuMemFree_v2(address));
  ck_assert_uint_eq(allocate(GIB), address);
  ck_assert_uint_eq(fake_live_bytes(), held);
}
END_TEST

/* Sizes that divide a chunk fill it. */
START_TEST(blocks_lie_in_a_chunk_without_a_gap) {
  static const size_t sizes[] = {64 * MIB, 32 * MIB, 16 * MIB, 8 * MIB};
  begin();
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    size_t before = fake_live_bytes();
    for (size_t bytes = 0; bytes < 512 * MIB; bytes += sizes[i])
      (void)allocate(sizes[i]);
    ck_assert_uint_le(fake_live_bytes() - before, 9 * CHUNK_BYTES);
  }
}
END_TEST

/* Whatever the size, blocks of one size fill the device but for a few percent. */
START_TEST(blocks_of_one_size_may_have_the_device) {
  static const size_t sizes[] = {20 * MIB, 22 * MIB, 33 * MIB, 40 * MIB, 50 * MIB};
  size_t bytes = sizes[_i], taken_bytes = 0, free_bytes, total_bytes;
  address_t address;
  begin();
  while (cuMemAlloc_v2(&address, bytes) == 0)
    taken_bytes += bytes;
  OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
  ck_assert_uint_ge(taken_bytes, total_bytes / 100 * 94);
}
END_TEST

/* All of the device's memory, in pieces that come and go: nothing fails that the driver could have served. */
START_TEST(memory_is_given_back_before_an_allocation_fails) {
  address_t blocks[32];
  fake_set_capacity(2 * GIB);
  begin();
  for (int i = 0; i < 20; i++)
    blocks[i] = allocate(90 * MIB);
  for (int i = 0; i < 20; i++)
    OK(cuMemFree_v2(blocks[i]));
  (void)allocate(GIB + 500 * MIB);
  address_t address = 0;
  FAILS(OUT_OF_MEMORY, cuMemAlloc_v2(&address, GIB));
}
END_TEST

static size_t free_now(void) {
  size_t free_bytes, total_bytes;
  OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
  return free_bytes;
}

/* The driver's own frees would have waited for the kernels. */
START_TEST(memory_that_kernels_use_is_waited_for_before_an_allocation_fails) {
  fake_set_capacity(2 * GIB);
  begin();
  for (int i = 0; i < 6; i++) {
    address_t address = allocate(90 * MIB + (size_t)i * MIB);
    struct fake_range range = {(const void *)(uintptr_t)address, MIB};
    ck_assert(fake_launch(NULL, &range, 1));
    OK(cuMemFree_v2(address));
  }
  (void)allocate(GIB + 700 * MIB);
  ck_assert_uint_eq(fake_faults(), 0);
}
END_TEST

/* After large blocks and many small ones. */
/* The kernel may wait for what the program does next. */
START_TEST(a_pitched_allocation_waits_for_no_kernel) {
  address_t address;
  size_t pitch;
  fake_submit(begin());
  for (unsigned element_bytes = 4; element_bytes <= 16; element_bytes *= 2)
    OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 700, element_bytes));
  ck_assert_uint_eq(fake_waits(), 0);
}
END_TEST

/* As with the driver alone: what the pool has no room for is the driver's at once. */
START_TEST(beyond_the_limit_an_allocation_waits_for_nothing) {
  (void)setenv("MAM_LIMIT", "8M", 1);
  void *context = begin();
  address_t kept = allocate(MIB), address;
  size_t pitch;
  for (int i = 0; i < 20; i++) {
    fake_submit(context);
    (void)allocate(MIB);
    OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 1000, 4));
    ck_assert(fake_pending(context));
  }
  ck_assert_uint_eq(fake_waits(), 0);
  OK(cuMemFree_v2(kept));
}
END_TEST

START_TEST(what_is_said_to_be_free_can_be_had) {
  static address_t blocks[2000];
  fake_set_capacity(16 * GIB);
  begin();
  for (int i = 0; i < 3; i++)
    blocks[i] = allocate(2 * GIB);
  for (int i = 0; i < 3; i++)
    OK(cuMemFree_v2(blocks[i]));
  for (int i = 0; i < 2000; i++)
    blocks[i] = allocate(32 * KIB);
  for (int i = 0; i < 2000; i++)
    OK(cuMemFree_v2(blocks[i]));
  address_t all = allocate(free_now() - GIB);
  ck_assert_uint_lt(free_now(), GIB + GIB / 10);
  OK(cuMemFree_v2(all));
}
END_TEST

/* In one piece, by the pool or by the driver after the pool gave everything back. */
START_TEST(all_that_is_said_to_be_free_can_be_had_at_once) {
  static address_t blocks[300];
  begin();
  for (int i = 0; i < 300; i++)
    blocks[i] = allocate((size_t)(i % 30 + 1) * 300 * KIB);
  for (int i = 0; i < 300; i++)
    OK(cuMemFree_v2(blocks[i]));
  (void)allocate(free_now());
}
END_TEST

/* Also where the two that are added up were not true at one time. */
START_TEST(never_is_more_free_than_there_is) {
  size_t free_bytes, total_bytes;
  begin();
  address_t kept = allocate(10 * MIB);
  OK(cuMemFree_v2(allocate(200 * MIB)));
  fake_set_capacity(100 * MIB);
  OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
  ck_assert_uint_le(free_bytes, total_bytes - 10 * MIB);
  OK(cuMemFree_v2(kept));
}
END_TEST

/* ---- Memory for others ---- */

static void *function(const char *name) {
  void *found = NULL;
  OK(cuGetProcAddress_v2(name, &found, 12000, 0, NULL));
  return found;
}

static int call_create(void) {
  const struct {
    int type, handles;
    int location_type, device;
    void *windows;
    unsigned char flags[8];
  } properties = {.type = 1, .location_type = 1};
  int (*create)(unsigned long long *, size_t, const void *, unsigned long long);
  unsigned long long handle;
  *(void **)&create = function("cuMemCreate");
  return create(&handle, 2 * GIB, &properties, 0);
}

static int call_managed(void) {
  int (*alloc)(address_t *, size_t, unsigned);
  address_t address;
  *(void **)&alloc = function("cuMemAllocManaged");
  return alloc(&address, MIB, 1);
}

static int call_async(void) {
  address_t address;
  return cuMemAllocAsync(&address, 2 * GIB, NULL);
}

static int call_stream(void) {
  int (*create)(void **, unsigned);
  void *stream;
  *(void **)&create = function("cuStreamCreate");
  return create(&stream, 0);
}

static int call_event(void) {
  int (*create)(void **, unsigned);
  void *event;
  *(void **)&create = function("cuEventCreate");
  return create(&event, 0);
}

static int call_retain(void) {
  void *context;
  return cuDevicePrimaryCtxRetain(&context, 0);
}

static int call_instantiate(void) {
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *graph, *executable;
  OK(cuStreamBeginCapture_v2(stream, 2));
  OK(cuStreamEndCapture(stream, &graph));
  return cuGraphInstantiateWithFlags(&executable, graph, 0);
}

static const struct {
  const char *name;
  int (*call)(void);
} others[] = {{"cuMemCreate", call_create},
              {"cuMemAllocManaged", call_managed},
              {"cuMemAllocAsync", call_async},
              {"cuStreamCreate", call_stream},
              {"cuEventCreate", call_event},
              {"cuDevicePrimaryCtxRetain", call_retain},
              {"cuGraphInstantiateWithFlags", call_instantiate}};

/* What a program freed serves whatever it asks for next. */
START_TEST(freed_memory_serves_the_drivers_other_calls) {
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  ck_assert_uint_gt(fake_live_bytes(), 3 * GIB);
  fake_fail(others[_i].name, 1, OUT_OF_MEMORY);
  OK(others[_i].call());
  ck_assert_uint_lt(fake_live_bytes(), 3 * GIB);
}
END_TEST

/* Small blocks do not lie in what was a large one, which can then go back. */
START_TEST(small_blocks_do_not_keep_a_large_chunk) {
  address_t address;
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  for (int i = 0; i < 100; i++)
    (void)allocate(MIB + (size_t)i * KIB);
  for (int i = 0; i < 100; i++)
    (void)allocate(20000);
  OK(cuMemAllocAsync(&address, 3 * GIB + GIB / 2, NULL));
}
END_TEST

/* Nor does one that fills half of it, or a little more. */
START_TEST(a_block_does_not_keep_a_much_larger_chunk) {
  address_t address;
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  (void)allocate(3 * GIB / 2 + (size_t)_i * 50 * MIB);
  OK(cuMemAllocAsync(&address, 2 * GIB + 200 * MIB, NULL));
}
END_TEST

/* If the driver has no more, they do. */
START_TEST(small_blocks_may_have_all_there_is) {
  static address_t blocks[4096];
  begin();
  OK(cuMemFree_v2(allocate(3 * GIB)));
  for (int i = 0; i < 3900; i++)
    blocks[i] = allocate(MIB);
  for (int i = 0; i < 3900; i++)
    OK(cuMemFree_v2(blocks[i]));
  (void)allocate(3 * GIB);
}
END_TEST

/* What nobody can serve is asked for once. */
START_TEST(without_memory_to_give_back_a_call_is_made_once) {
  begin();
  (void)allocate(60 * MIB);
  unsigned before = fake_calls("cuMemAllocAsync");
  address_t address;
  FAILS(OUT_OF_MEMORY, cuMemAllocAsync(&address, 4 * GIB, NULL));
  ck_assert_uint_eq(fake_calls("cuMemAllocAsync"), before + 1);
}
END_TEST

/* As the driver's own free would have waited for it. */
START_TEST(memory_that_a_kernel_uses_is_waited_for_before_another_call_fails) {
  address_t address;
  begin();
  address_t block = allocate(3 * GIB);
  struct fake_range range = {(const void *)(uintptr_t)block, MIB};
  ck_assert(fake_launch(NULL, &range, 1));
  OK(cuMemFree_v2(block));
  OK(cuMemAllocAsync(&address, 2 * GIB, NULL));
  ck_assert_uint_eq(fake_faults(), 0);
}
END_TEST

START_TEST(a_capture_survives_a_call_that_finds_no_memory) {
  void *graph;
  begin();
  address_t free_block = allocate(2 * GIB), used_block = allocate(GIB), address;
  OK(cuMemFree_v2(free_block));
  OK(cuCtxSynchronize());
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  struct fake_range range = {(const void *)(uintptr_t)used_block, MIB};
  ck_assert(fake_launch(stream, &range, 1));
  OK(cuMemFree_v2(used_block));
  OK(cuMemAllocAsync(&address, 2 * GIB, NULL));
  FAILS(OUT_OF_MEMORY, cuMemAllocAsync(&address, 2 * GIB, NULL));
  OK(cuStreamEndCapture(stream, &graph));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* A thread that captures a stream in the thread-local mode until it is told to end. */
struct capturer {
  pthread_t thread;
  void *context;
  _Atomic int begun, ends;
};

static void *captures(void *argument) {
  struct capturer *capturer = argument;
  void *graph;
  OK(cuCtxSetCurrent(capturer->context));
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 1));
  capturer->begun = 1;
  while (capturer->ends == 0)
    (void)usleep(100);
  OK(cuStreamEndCapture(stream, &graph));
  return NULL;
}

/* Blocks of 1 GiB and more, each used by a kernel when it is freed: the device has room for three. */
static void blocks_come_and_go(void) {
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  for (int i = 0; i < 20; i++) {
    address_t block = allocate(GIB + (size_t)i * MIB);
    struct fake_range range = {(const void *)(uintptr_t)block, MIB};
    ck_assert(!fake_in_use(range.address, MIB, FAKE_NO_STREAM));
    ck_assert(fake_launch(stream, &range, 1));
    OK(cuMemFree_v2(block));
  }
  ck_assert_uint_eq(fake_faults(), 0);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}

/* The driver's own frees would have waited for the kernels.  Here a wait comes when memory runs out, and no capture is
 * disturbed by it. */
START_TEST(beside_a_capture_of_another_thread_freed_memory_serves_again) {
  struct capturer capturer = {.context = begin()};
  OK(pthread_create(&capturer.thread, NULL, captures, &capturer));
  while (capturer.begun == 0)
    (void)usleep(100);
  blocks_come_and_go();
  capturer.ends = 1;
  OK(pthread_join(capturer.thread, NULL));
}
END_TEST

START_TEST(during_a_relaxed_capture_freed_memory_serves_again) {
  void *graph;
  begin();
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(cuStreamBeginCapture_v2(stream, 2));
  blocks_come_and_go();
  OK(cuStreamEndCapture(stream, &graph));
}
END_TEST

/* ---- Calm ---- */

/* Whether the program's memory falls to so many bytes, within some seconds. */
static bool falls_to(size_t bytes) {
  for (int i = 0; i < 500 && fake_live_bytes() > bytes; i++)
    (void)usleep(10000);
  return fake_live_bytes() <= bytes;
}

/* 3 GiB, freed again. */
static void peak(void) {
  address_t blocks[40];
  for (int i = 0; i < 40; i++)
    blocks[i] = allocate(80 * MIB);
  for (int i = 0; i < 40; i++)
    OK(cuMemFree_v2(blocks[i]));
}

START_TEST(what_is_not_needed_goes_back_in_a_while) {
  begin();
  peak();
  ck_assert(falls_to(0));
  (void)allocate(1000);
  peak();
  ck_assert(falls_to(CHUNK_BYTES));
}
END_TEST

/* A program that goes on with little. */
START_TEST(a_program_that_peaked_once_does_not_keep_it) {
  begin();
  peak();
  for (int i = 0; i < 500 && fake_live_bytes() > CHUNK_BYTES; i++) {
    OK(cuMemFree_v2(allocate((size_t)(i % 20 + 1) * MIB)));
    (void)usleep(10000);
  }
  ck_assert_uint_le(fake_live_bytes(), CHUNK_BYTES);
}
END_TEST

/* The driver's free would wait for a kernel, and others behind it. */
START_TEST(beside_a_running_kernel_nothing_goes_back) {
  void *context = begin();
  peak();
  fake_submit(context);
  unsigned before = fake_calls("cuMemFree");
  (void)usleep(500000);
  ck_assert_uint_eq(fake_calls("cuMemFree"), before);
  ck_assert(fake_pending(context));
  fake_finish(context);
  ck_assert(falls_to(0));
}
END_TEST

/* A program that needs it again and again has it less and less often taken away. */
START_TEST(memory_that_is_needed_again_stays) {
  begin();
  unsigned calls_before = fake_calls("cuMemFree");
  for (int i = 0; i < 30; i++) {
    peak();
    (void)usleep(100000);
  }
  ck_assert_uint_le(fake_calls("cuMemFree") - calls_before, 8 * 41);
}
END_TEST

START_TEST(the_driver_serves_what_no_chunk_is_there_for) {
  begin();
  fake_set_capacity(40 * MIB); /* less than a chunk */
  address_t address = allocate(10 * MIB);
  OK(cuMemFree_v2(address));
  ck_assert_uint_eq(fake_live_bytes(), 0);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
}
END_TEST

/* ---- By stream ---- */

START_TEST(a_block_may_be_freed_on_a_stream) {
  begin();
  void *stream = fake_stream_create(0);
  address_t one = allocate(MIB), other = allocate(1000), drivers = 0;
  OK(cuMemFreeAsync(one, stream));
  OK(cuMemFreeAsync_ptsz(other, NULL));
  FAILS(INVALID_VALUE, cuMemFreeAsync(one, stream));
  OK(cuMemAllocAsync(&drivers, MIB, stream));
  unsigned calls = fake_calls("cuMemFreeAsync");
  OK(cuMemFreeAsync(drivers, stream));
  ck_assert_uint_eq(fake_calls("cuMemFreeAsync") - calls, 1);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
}
END_TEST

START_TEST(a_free_on_a_stream_that_is_gone_hears_of_the_stream) {
  enum { INVALID_HANDLE = 400 };
  begin();
  void *stream = fake_stream_create(0);
  address_t address = allocate(MIB);
  fake_stream_destroy(stream);
  FAILS(INVALID_HANDLE, cuMemFreeAsync(address, stream));
  FAILS(INVALID_HANDLE, cuMemFreeAsync_ptsz(address, stream));
  OK(cuMemFree_v2(address));
}
END_TEST

/* ---- Other processes ---- */

/* Where the fake driver opens memory that is at an address. */
static address_t opened_at(address_t address) { return address + ((address_t)1 << 45); }

START_TEST(an_exported_block_opens_at_its_own_bytes) {
  begin();
  for (int i = 0; i < 40; i++) {
    size_t size = i % 3 == 0 ? 1000 : i % 3 == 1 ? MIB + 5 : 70 * MIB;
    address_t address = allocate(size), opened = 0, base = 0;
    struct ipc_handle handle, interior;
    size_t bytes = 0;
    OK(cuIpcGetMemHandle(&handle, address));
    OK(cuIpcGetMemHandle(&interior, address + size - 1));
    ck_assert_mem_eq(&handle, &interior, sizeof handle);
    OK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
    ck_assert_uint_eq(opened, opened_at(address));
    if (address % FAKE_GRANULARITY_BYTES != 0) {
      OK(cuMemGetAddressRange_v2(&base, &bytes, opened + size - 1));
      ck_assert_uint_eq(base, opened);
      ck_assert_uint_eq(bytes, size);
    }
    OK(cuIpcCloseMemHandle(opened));
    if (size == 70 * MIB)
      OK(cuMemFree_v2(address));
  }
}
END_TEST

START_TEST(a_block_may_be_opened_twice) {
  begin();
  (void)allocate(MIB);
  address_t address = allocate(MIB), first = 0, second = 0;
  struct ipc_handle handle;
  OK(cuIpcGetMemHandle(&handle, address));
  OK(cuIpcOpenMemHandle_v2(&first, handle, 1));
  OK(cuIpcOpenMemHandle_v2(&second, handle, 1));
  ck_assert_uint_eq(first, second);
  OK(cuIpcCloseMemHandle(first));
  OK(cuMemGetAddressRange_v2(NULL, NULL, second));
  OK(cuIpcCloseMemHandle(second));
  FAILS(INVALID_VALUE, cuIpcCloseMemHandle(second));
}
END_TEST

static size_t size_at(address_t address) {
  size_t bytes = 0;
  OK(cuMemGetAddressRange_v2(NULL, &bytes, address));
  return bytes;
}

/* The exporter freed the block and exported another one that lies at its place, while the first is still open here. */
START_TEST(a_block_that_is_opened_where_another_was_has_its_own_size) {
  address_t first = 0, second = 0, address = 0;
  struct ipc_handle handle;
  (void)setenv("MAM_REUSE", "immediate", 1);
  begin();
  (void)allocate(MIB);
  address_t before = allocate(900);
  OK(cuIpcGetMemHandle(&handle, before));
  OK(cuIpcOpenMemHandle_v2(&first, handle, 1));
  OK(cuMemFree_v2(before));
  OK(cuCtxSynchronize());
  for (int i = 0; i < 2000 && address != before; i++)
    address = allocate(1000);
  ck_assert_uint_eq(address, before);
  OK(cuIpcGetMemHandle(&handle, address));
  OK(cuIpcOpenMemHandle_v2(&second, handle, 1));
  ck_assert_uint_eq(second, first);
  ck_assert_uint_eq(size_at(second + 950), 1000);
  OK(cuIpcCloseMemHandle(first));
  ck_assert_uint_eq(size_at(second), 1000);
  OK(cuIpcCloseMemHandle(second));
  FAILS(NOT_FOUND, cuMemGetAddressRange_v2(NULL, NULL, second));
}
END_TEST

START_TEST(what_was_opened_goes_with_its_context) {
  address_t opened = 0;
  struct ipc_handle handle;
  void *context = begin();
  (void)allocate(MIB);
  OK(cuIpcGetMemHandle(&handle, allocate(40 * KIB)));
  OK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
  ck_assert_uint_eq(size_at(opened), 40 * KIB);
  OK(cuDevicePrimaryCtxReset_v2(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  FAILS(NOT_FOUND, cuMemGetAddressRange_v2(NULL, NULL, opened));
  FAILS(INVALID_VALUE, cuIpcCloseMemHandle(opened));
}
END_TEST

START_TEST(a_handle_that_found_no_memory_is_opened_again) {
  address_t opened = 0;
  struct ipc_handle handle;
  begin();
  address_t address = allocate(40 * KIB);
  OK(cuMemFree_v2(allocate(GIB))); /* which the pool can give back */
  OK(cuIpcGetMemHandle(&handle, address));
  fake_fail("cuIpcOpenMemHandle", 1, OUT_OF_MEMORY);
  OK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
  ck_assert_uint_eq(fake_calls("cuIpcOpenMemHandle"), 2);
  ck_assert_uint_lt(fake_live_bytes(), GIB);
  OK(cuIpcCloseMemHandle(opened));
}
END_TEST

START_TEST(a_block_that_could_not_be_closed_is_still_open) {
  address_t opened = 0;
  struct ipc_handle handle;
  begin();
  (void)allocate(MIB);
  OK(cuIpcGetMemHandle(&handle, allocate(40 * KIB)));
  OK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
  fake_fail("cuIpcCloseMemHandle", 1, 700);
  FAILS(700, cuIpcCloseMemHandle(opened));
  ck_assert_uint_eq(size_at(opened), 40 * KIB);
  OK(cuIpcCloseMemHandle(opened));
  FAILS(NOT_FOUND, cuMemGetAddressRange_v2(NULL, NULL, opened));
}
END_TEST

/* Such a block is the driver's: anybody may open it, and gets nobody else's bytes. */
START_TEST(a_block_may_have_pages_of_its_own) {
  struct ipc_handle handle;
  address_t opened = 0;
  (void)setenv("MAM_PRELOAD_OWN_PAGES", "4K", 1);
  begin();
  address_t small = allocate(4095), address = allocate(4096), next = allocate(5000);
  ck_assert_uint_eq(address % FAKE_GRANULARITY_BYTES, 0);
  ck_assert_uint_eq(next % FAKE_GRANULARITY_BYTES, 0);
  ck_assert_uint_eq(size_at(address), FAKE_GRANULARITY_BYTES);
  ck_assert_uint_eq(size_at(small), 4095);
  OK(cuIpcGetMemHandle(&handle, address));
  ck_assert_uint_eq(handle.bytes[0], 0); /* the driver's own, not one that carries a place */
  OK(cuIpcOpenMemHandle_v2(&opened, handle, 1));
  ck_assert_uint_eq(opened, opened_at(address));
  OK(cuIpcCloseMemHandle(opened));
  OK(cuMemFree_v2(address));
  ck_assert(!fake_holds((const void *)(uintptr_t)address, 1));
}
END_TEST

/* With the driver's own pitch, which the driver itself is not asked to round. */
START_TEST(a_pitched_block_may_have_pages_of_its_own) {
  address_t address = 0;
  size_t pitch = 0;
  (void)setenv("MAM_PRELOAD_OWN_PAGES", "4K", 1);
  begin();
  OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 5, 4));
  ck_assert_uint_eq(pitch, 1024);
  ck_assert_uint_eq(size_at(address), FAKE_GRANULARITY_BYTES);
  OK(cuMemFree_v2(address));
  ck_assert(!fake_holds((const void *)(uintptr_t)address, 1));
  OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 3, 4));
  ck_assert_uint_eq(size_at(address), 3072);
}
END_TEST

/* Where nobody adds the block's place, the driver refuses the handle, rather than open the chunk's beginning. */
START_TEST(a_handle_never_opens_at_other_bytes) {
  begin();
  (void)allocate(MIB);
  address_t address = allocate(MIB), opened = 0;
  struct ipc_handle handle;
  OK(cuIpcGetMemHandle(&handle, address));
  for (size_t i = 0; i < sizeof handle.bytes; i++) {
    struct ipc_handle damaged = handle;
    damaged.bytes[i] ^= 0x40;
    FAILS(INVALID_VALUE, cuIpcOpenMemHandle_v2(&opened, damaged, 1));
  }
  FAILS(INVALID_VALUE, cuIpcGetMemHandle(&handle, 0x1234500));
  OK(cuMemFree_v2(address));
  FAILS(INVALID_VALUE, cuIpcGetMemHandle(&handle, address));
}
END_TEST

/* ---- Processes and threads ---- */

/* How many questions about a block the driver does not refuse as in a forked child. */
static int served_in_child(address_t address) {
  enum { NOT_INITIALIZED = 3 };
  struct ipc_handle handle;
  address_t base = 0;
  size_t bytes = 0;
  return (cuMemGetAddressRange_v2(&base, &bytes, address) != NOT_INITIALIZED) +
         (cuPointerGetAttribute(&base, RANGE_START, address) != NOT_INITIALIZED) +
         (cuIpcGetMemHandle(&handle, address) != NOT_INITIALIZED) + (cuIpcCloseMemHandle(address) != NOT_INITIALIZED) +
         (cuMemFree_v2(address) != NOT_INITIALIZED) + (cuMemAlloc_v2(&base, MIB) != NOT_INITIALIZED);
}

START_TEST(a_forked_child_hears_what_the_driver_says) {
  address_t addresses[] = {0, 0, 0, 0}; /* large, small, of another process, freed */
  struct ipc_handle handle;
  int status = 1;
  begin();
  addresses[0] = allocate(MIB), addresses[1] = allocate(1000), addresses[3] = allocate(MIB);
  OK(cuIpcGetMemHandle(&handle, addresses[0]));
  OK(cuIpcOpenMemHandle_v2(&addresses[2], handle, 1));
  OK(cuMemFree_v2(addresses[3]));
  for (int i = 0; i < 4; i++) {
    pid_t child = fork();
    if (child == 0)
      _exit(served_in_child(addresses[i]));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
  }
  OK(cuIpcCloseMemHandle(addresses[2]));
  OK(cuMemFree_v2(addresses[0]));
  OK(cuMemFree_v2(addresses[1]));
}
END_TEST

static void *churn(void *context) {
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 2000; i++) {
    address_t address = allocate((size_t)1 << i % 22);
    OK(cuMemFree_v2(address));
  }
  return NULL;
}

START_TEST(threads_are_served_together_from_the_first_call) {
  pthread_t threads[4];
  void *context = begin();
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, churn, context), 0);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(fake_wrong_frees(), 0);
  ck_assert_uint_eq(fake_violations(), 0);
  ck_assert_uint_le(fake_live_bytes(), 2 * CHUNK_BYTES);
}
END_TEST

/* ---- Options ---- */

/* Whether an allocation is a pool's: then the driver gave a whole chunk for it. */
static bool is_served(size_t bytes) {
  size_t before = fake_live_bytes();
  address_t address = allocate(bytes);
  bool served = fake_live_bytes() == before || fake_live_bytes() - before >= CHUNK_BYTES;
  OK(cuMemFree_v2(address));
  return served;
}

START_TEST(the_kill_switch_leaves_all_to_the_driver) {
  (void)setenv("MAM_PRELOAD", "off", 1);
  begin();
  ck_assert(!is_served(MIB));
  ck_assert_uint_eq(fake_live_bytes(), 0);
}
END_TEST

START_TEST(sizes_are_left_alone) {
  (void)setenv("MAM_PRELOAD_MIN", "1K", 1);
  (void)setenv("MAM_PRELOAD_MAX", "1M", 1);
  begin();
  ck_assert(!is_served(1023));
  ck_assert(is_served(1024));
  ck_assert(is_served(MIB));
  ck_assert(!is_served(MIB + 1));
}
END_TEST

START_TEST(programs_are_left_alone) {
  (void)setenv("MAM_PRELOAD_SKIP_PROGRAMS", "other,preload_memory_test,lt-preload_memory_test", 1);
  begin();
  ck_assert(!is_served(MIB));
}
END_TEST

START_TEST(only_named_programs_are_served) {
  (void)setenv("MAM_PRELOAD_PROGRAMS", "preload_memory,emory_test", 1);
  begin();
  ck_assert(!is_served(MIB));
}
END_TEST

START_TEST(threads_are_left_alone) {
  (void)setenv("MAM_PRELOAD_SKIP_THREADS", "loader", 1);
  begin();
  ck_assert(is_served(MIB));
  ck_assert_int_eq(pthread_setname_np(pthread_self(), "loader"), 0);
  ck_assert(!is_served(MIB));
}
END_TEST

START_TEST(devices_are_left_alone) {
  void *context = NULL;
  (void)setenv("MAM_PRELOAD_SKIP_DEVICES", "1,3", 1);
  fake_set_devices(2);
  begin();
  ck_assert(is_served(MIB));
  OK(cuDevicePrimaryCtxRetain(&context, 1));
  OK(cuCtxSetCurrent(context));
  ck_assert(!is_served(MIB));
}
END_TEST

START_TEST(under_the_sanitizer_all_is_left_to_the_driver) {
  (void)setenv("NV_SANITIZER_INJECTION_PORT_BASE", "49152", 1);
  begin();
  ck_assert(!is_served(MIB));
}
END_TEST

START_TEST(a_source_of_host_memory_is_no_source_for_programs) {
  (void)setenv("MAM_SOURCE", "host", 1);
  begin();
  ck_assert(!is_served(MIB));
}
END_TEST

/* The ways out that mam-run(1) names: chunks have guards, and then the last part is refused. */
START_TEST(all_memory_can_be_had_in_equal_parts) {
  static const size_t parts[] = {1, 2, 3, 8, 64};
  (void)setenv(_i < 5 ? "MAM_SOURCE" : "MAM_PRELOAD_MAX", _i < 5 ? "vmm" : "64M", 1);
  fake_set_capacity(80 * GIB);
  begin();
  size_t count = parts[_i % 5], bytes = free_now() / count / (2 * MIB) * (2 * MIB);
  for (size_t i = 0; i < count; i++)
    (void)allocate(bytes);
}
END_TEST

START_TEST(mapped_memory_comes_on_request) {
  struct ipc_handle handle;
  (void)setenv("MAM_SOURCE", "vmm", 1);
  begin();
  address_t address = allocate(MIB);
  ck_assert_uint_gt(fake_reserved_bytes(), 0);
  ck_assert_int_ne(cuIpcGetMemHandle(&handle, address), 0); /* it has no such handle */
  OK(cuMemFree_v2(address));
}
END_TEST

static Suite *suite(void) {
  Suite *suite = suite_create("preload, memory");
  TCase *tests = tcase_create("memory");
  tcase_add_test(tests, a_block_answers_with_its_own_base_and_size);
  tcase_add_test(tests, every_live_block_has_its_own_buffer_id);
  tcase_add_test(tests, several_attributes_at_once_are_the_blocks_own);
  tcase_add_test(tests, a_freed_block_is_nobodys_memory);
  tcase_add_test(tests, wrong_frees_are_refused_and_harm_nothing);
  tcase_add_test(tests, a_refusal_after_the_driver_shut_down_is_the_drivers);
  tcase_add_test(tests, wrong_allocations_answer_as_the_driver);
  tcase_add_test(tests, an_allocation_larger_than_the_device_takes_nothing_from_pools);
  tcase_add_test(tests, pitched_rows_have_the_drivers_pitch);
  tcase_add_test(tests, pitched_blocks_are_chosen_by_their_size);
  tcase_add_test(tests, free_memory_counts_what_the_pool_can_hand_out);
  tcase_add_test(tests, free_memory_counts_what_is_on_its_way_to_the_driver);
  tcase_add_test(tests, a_question_for_free_memory_waits_for_a_second_at_most);
  tcase_add_test(tests, free_memory_counts_what_other_contexts_of_the_device_keep);
  tcase_add_test(tests, large_blocks_take_chunks_of_their_own_size);
  tcase_add_test(tests, blocks_lie_in_a_chunk_without_a_gap);
  tcase_add_loop_test(tests, blocks_of_one_size_may_have_the_device, 0, 5);
  tcase_add_test(tests, memory_is_given_back_before_an_allocation_fails);
  tcase_add_test(tests, memory_that_kernels_use_is_waited_for_before_an_allocation_fails);
  tcase_add_test(tests, a_pitched_allocation_waits_for_no_kernel);
  tcase_add_test(tests, beyond_the_limit_an_allocation_waits_for_nothing);
  tcase_add_test(tests, what_is_said_to_be_free_can_be_had);
  tcase_add_test(tests, all_that_is_said_to_be_free_can_be_had_at_once);
  tcase_add_test(tests, never_is_more_free_than_there_is);
  tcase_add_loop_test(tests, freed_memory_serves_the_drivers_other_calls, 0, sizeof others / sizeof others[0]);
  tcase_add_test(tests, small_blocks_do_not_keep_a_large_chunk);
  tcase_add_loop_test(tests, a_block_does_not_keep_a_much_larger_chunk, 0, 3);
  tcase_add_test(tests, small_blocks_may_have_all_there_is);
  tcase_add_test(tests, without_memory_to_give_back_a_call_is_made_once);
  tcase_add_test(tests, memory_that_a_kernel_uses_is_waited_for_before_another_call_fails);
  tcase_add_test(tests, a_capture_survives_a_call_that_finds_no_memory);
  tcase_add_test(tests, beside_a_capture_of_another_thread_freed_memory_serves_again);
  tcase_add_test(tests, during_a_relaxed_capture_freed_memory_serves_again);
  tcase_add_test(tests, what_is_not_needed_goes_back_in_a_while);
  tcase_add_test(tests, a_program_that_peaked_once_does_not_keep_it);
  tcase_add_test(tests, beside_a_running_kernel_nothing_goes_back);
  tcase_add_test(tests, memory_that_is_needed_again_stays);
  tcase_add_test(tests, the_driver_serves_what_no_chunk_is_there_for);
  tcase_add_test(tests, a_block_may_be_freed_on_a_stream);
  tcase_add_test(tests, a_free_on_a_stream_that_is_gone_hears_of_the_stream);
  tcase_add_test(tests, an_exported_block_opens_at_its_own_bytes);
  tcase_add_test(tests, a_block_may_be_opened_twice);
  tcase_add_test(tests, a_block_that_is_opened_where_another_was_has_its_own_size);
  tcase_add_test(tests, what_was_opened_goes_with_its_context);
  tcase_add_test(tests, a_handle_that_found_no_memory_is_opened_again);
  tcase_add_test(tests, a_block_that_could_not_be_closed_is_still_open);
  tcase_add_test(tests, a_block_may_have_pages_of_its_own);
  tcase_add_test(tests, a_pitched_block_may_have_pages_of_its_own);
  tcase_add_test(tests, a_handle_never_opens_at_other_bytes);
  tcase_add_test(tests, a_forked_child_hears_what_the_driver_says);
  tcase_add_test(tests, threads_are_served_together_from_the_first_call);
  tcase_add_test(tests, the_kill_switch_leaves_all_to_the_driver);
  tcase_add_test(tests, sizes_are_left_alone);
  tcase_add_test(tests, programs_are_left_alone);
  tcase_add_test(tests, only_named_programs_are_served);
  tcase_add_test(tests, threads_are_left_alone);
  tcase_add_test(tests, devices_are_left_alone);
  tcase_add_test(tests, under_the_sanitizer_all_is_left_to_the_driver);
  tcase_add_test(tests, a_source_of_host_memory_is_no_source_for_programs);
  tcase_add_loop_test(tests, all_memory_can_be_had_in_equal_parts, 0, 10);
  tcase_add_test(tests, mapped_memory_comes_on_request);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(int count, char **arguments) {
  (void)count;
  (void)setenv("MAM_LINGER_MS", "100", 1);
  return preload_run_suite(arguments, suite);
}
