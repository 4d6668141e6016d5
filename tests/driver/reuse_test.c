/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When freed memory is handed out again, as mam.h promises, over the fake driver.  Kernels name the memory that they
 * use and stay in flight until the test turns the clock.  The test looks at each block that is handed out.  It never
 * asks the library what has passed.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api_util.h"

/* ---- A schedule ---------------------------------------------------------------------------------------------------
 */

enum { stream_count = 8, live_limit = 96, step_count = 3000, in_flight_limit = 48, thread_count = 4 };
enum { relaxed_mode = 2 };

static unsigned next_random(unsigned *state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

/* From 1 B to 64 MiB: three of four sizes are at most 4 KiB, and the others have a random power of two. */
static size_t random_size(unsigned *state) {
  unsigned small = next_random(state) % 4, bits = small > 0 ? 12 : 16 + next_random(state) % 10;
  size_t most = (size_t)1 << bits;
  return 1 + (small > 0 ? next_random(state) % most : most / 2 + next_random(state) % (most / 2));
}

struct held {
  char *address;
  size_t bytes;
  unsigned origin; /* the stream that the first use must come after; stream_count: none */
  unsigned used;   /* the streams that used it, a bit each */
};

/* Streams have numbers.  The default ones are those of the calling thread. */
struct schedule {
  MAM_Pool pool;
  MAM_Reuse reuse;
  void *streams[stream_count];
  bool trims;
  unsigned state;
  struct held held[live_limit];
  unsigned held_count;
  unsigned early, reused_under_kernels; /* handed out too early; handed out rightly while a kernel runs */
  bool capturing;                       /* this thread */
  bool others_capture;                  /* a thread beside this one */
  bool alone;                           /* no other thread uses the streams: this one may use all, and destroy them */
  unsigned captures, renewals, tagged;
};

/* A thread's streams.  Its per-thread default stream has number 1. */
static void streams_make(void **streams) {
  streams[0] = FAKE_STREAM_LEGACY;
  streams[1] = FAKE_STREAM_PER_THREAD;
  for (int i = 2; i < stream_count; i++)
    streams[i] = fake_stream_create(i < stream_count / 2 ? 0 : FAKE_STREAM_NON_BLOCKING);
}

/* The captured stream is the last one.  It runs nothing during the capture. */
static unsigned pick_stream(struct schedule *schedule) {
  bool all = schedule->alone && !schedule->capturing;
  return next_random(&schedule->state) % (all ? stream_count : stream_count - 1);
}

/* In a pool with the stream rule, plain calls are calls on the legacy stream. */
static unsigned plain_stream(const struct schedule *schedule) {
  return schedule->reuse == MAM_REUSE_STREAM ? 0 : stream_count;
}

/* Without a stream it is a plain call, and every fourth one has a tag. */
static cudaError_t allocate_by(struct schedule *schedule, void **pointer, size_t bytes, unsigned stream) {
  static const char tags[3];
  if (stream < stream_count)
    return MAM_PoolMallocAsync(schedule->pool, pointer, bytes, schedule->streams[stream]);
  unsigned tag = next_random(&schedule->state) % 12;
  if (tag >= 3)
    return MAM_PoolMalloc(schedule->pool, pointer, bytes);
  schedule->tagged++;
  return MAM_PoolMallocTagged(schedule->pool, pointer, bytes, &tags[tag]);
}

static void allocate(struct schedule *schedule) {
  void *pointer = NULL;
  size_t bytes = random_size(&schedule->state);
  unsigned stream = next_random(&schedule->state) % 2 ? pick_stream(schedule) : stream_count;
  if (schedule->held_count == live_limit)
    return;
  cudaError_t error = allocate_by(schedule, &pointer, bytes, stream);
  if (error != cudaSuccess) {
    bool in_capture = (int)error == 900 && (schedule->capturing || schedule->others_capture);
    ck_assert_msg(error == cudaErrorMemoryAllocation || in_capture, "%d, %s", error, MAM_LastError());
    return;
  }
  if (stream == stream_count)
    stream = plain_stream(schedule);
  const void *ordered = stream < stream_count ? schedule->streams[stream] : FAKE_NO_STREAM;
  schedule->early += fake_in_use(pointer, bytes, ordered);
  schedule->reused_under_kernels += fake_in_use(pointer, bytes, FAKE_NO_STREAM);
  schedule->held[schedule->held_count++] = (struct held){pointer, bytes, stream, 0};
}

/* Launches a kernel on a few blocks.  Before it, the stream waits for the stream that each block came from. */
static void launch(struct schedule *schedule) {
  struct fake_range ranges[3];
  unsigned stream = pick_stream(schedule);
  size_t count = 0;
  while (count < 3 && schedule->held_count > 0) {
    struct held *held = &schedule->held[next_random(&schedule->state) % schedule->held_count];
    if (held->origin < stream_count && held->origin != stream)
      (void)fake_stream_wait(schedule->streams[stream], schedule->streams[held->origin]);
    held->used |= 1u << stream;
    ranges[count++] = (struct fake_range){held->address, held->bytes};
  }
  ck_assert(fake_launch(schedule->streams[stream], ranges, count));
}

/* Makes the stream wait for all streams that used the block. */
static void join(const struct schedule *schedule, const struct held *held, unsigned stream) {
  for (unsigned i = 0; i < stream_count; i++)
    if (i != stream && (held->used & 1u << i) != 0)
      (void)fake_stream_wait(schedule->streams[stream], schedule->streams[i]);
  if (held->origin < stream_count && held->origin != stream)
    (void)fake_stream_wait(schedule->streams[stream], schedule->streams[held->origin]);
}

static void release(struct schedule *schedule) {
  if (schedule->held_count == 0)
    return;
  unsigned index = next_random(&schedule->state) % schedule->held_count, stream = pick_stream(schedule);
  struct held held = schedule->held[index];
  schedule->held[index] = schedule->held[--schedule->held_count];
  switch (next_random(&schedule->state) % 4) {
  case 0:
    if (schedule->reuse == MAM_REUSE_STREAM)
      join(schedule, &held, 0);
    OK(MAM_CudaFree(held.address));
    return;
  case 1:
    OK(MAM_CudaFreeReuse(held.address, MAM_REUSE_FENCED));
    return;
  case 2:
    join(schedule, &held, 0);
    OK(MAM_CudaFreeReuse(held.address, MAM_REUSE_STREAM));
    return;
  default:
    join(schedule, &held, stream);
    OK(MAM_CudaFreeAsync(held.address, schedule->streams[stream]));
  }
}

/* Makes the legacy stream wait for the stream, and notes it in place of that stream in all blocks. */
static void replace_stream(struct schedule *schedule, unsigned stream) {
  unsigned bit = 1u << stream;
  (void)fake_stream_wait(schedule->streams[0], schedule->streams[stream]);
  for (unsigned i = 0; i < schedule->held_count; i++) {
    struct held *held = &schedule->held[i];
    if (held->origin == stream)
      held->origin = 0;
    if ((held->used & bit) != 0)
      held->used = (held->used & ~bit) | 1;
  }
}

/* Destroys a stream with work on it and creates another one, which may get the same handle. */
static void renew_stream(struct schedule *schedule) {
  unsigned stream = 2 + next_random(&schedule->state) % (stream_count - 3);
  replace_stream(schedule, stream);
  fake_stream_destroy(schedule->streams[stream]);
  schedule->streams[stream] = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  schedule->renewals++;
}

/* The block counts as early if any work uses it: a graph may run at any time. */
static void allocate_in_capture(struct schedule *schedule) {
  void *pointer = NULL, *stream = schedule->streams[stream_count - 1];
  size_t bytes = random_size(&schedule->state);
  if (MAM_PoolMallocAsync(schedule->pool, &pointer, bytes, stream) != cudaSuccess)
    return;
  schedule->early += fake_in_use(pointer, bytes, FAKE_NO_STREAM);
  OK(MAM_CudaFreeAsync(pointer, stream));
}

/* Begins or ends a capture of the last stream, in some mode, in a bracket. */
static void capture(struct schedule *schedule) {
  void *stream = schedule->streams[stream_count - 1];
  if (!schedule->capturing) {
    if (schedule->alone)
      replace_stream(schedule, stream_count - 1);
    OK(MAM_CaptureBegin());
    ck_assert(fake_stream_capture_begin(stream, (int)(next_random(&schedule->state) % 3)));
    schedule->capturing = true;
    return;
  }
  ck_assert_msg(fake_stream_capture_end(stream), "a capture was invalidated");
  OK(MAM_CaptureEnd());
  schedule->capturing = false;
  schedule->captures++;
}

static void schedule_step(struct schedule *schedule, bool captures) {
  unsigned what = next_random(&schedule->state) % 100;
  if (what < 35)
    allocate(schedule);
  else if (what < 55)
    launch(schedule);
  else if (what < 85)
    release(schedule);
  else if (what < 97 || fake_in_flight() > in_flight_limit)
    (void)fake_step(next_random(&schedule->state));
  else if (what < 98 && captures)
    capture(schedule);
  else if (what < 99 && schedule->trims)
    OK(MAM_PoolTrim(schedule->pool, 0));
  else if (schedule->alone && !schedule->capturing)
    renew_stream(schedule);
  if (schedule->capturing && what % 2 == 0)
    allocate_in_capture(schedule);
  while (fake_in_flight() > in_flight_limit)
    (void)fake_step(next_random(&schedule->state));
}

static void schedule_run(struct schedule *schedule, bool captures) {
  for (int i = 0; i < step_count; i++)
    schedule_step(schedule, captures);
  if (schedule->capturing)
    capture(schedule);
}

static MAM_Pool reuse_pool(MAM_Reuse reuse, MAM_Source source) {
  MAM_PoolOptions options = options_with(source == MAM_SOURCE_VMM ? 0 : 256 * MIB);
  options.reuse = reuse;
  options.source = source;
  options.limit_bytes = GIB;
  return pool_with(options);
}

static void assert_clean_end(MAM_Pool pool) {
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
  ck_assert_uint_eq(fake_reserved_bytes(), 0);
  ck_assert_uint_eq(fake_faults(), 0);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}

/* A whole schedule in one thread. */
static struct schedule play(MAM_Reuse reuse, MAM_Source source, unsigned seed, bool captures) {
  struct schedule schedule = {.reuse = reuse, .state = 2463534242u + seed * 7919};
  (void)use_primary(0);
  schedule.pool = reuse_pool(reuse, source);
  schedule.trims = schedule.alone = true;
  streams_make(schedule.streams);
  schedule_run(&schedule, captures);
  ck_assert_uint_gt(schedule.tagged, 0);
  ck_assert_uint_gt(schedule.renewals, 0);
  return schedule;
}

enum { seed_count = 20 };

START_TEST(fenced_memory_is_never_handed_out_early) {
  struct schedule schedule = play(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE, (unsigned)_i, false);
  ck_assert_uint_eq(schedule.early, 0);
  ck_assert_uint_gt(schedule.reused_under_kernels, 0); /* from the calls with a stream */
  assert_clean_end(schedule.pool);
}
END_TEST

START_TEST(mapped_memory_is_never_handed_out_early_nor_unmapped_under_a_kernel) {
  struct schedule schedule = play(MAM_REUSE_FENCED, MAM_SOURCE_VMM, (unsigned)_i, false);
  ck_assert_uint_eq(schedule.early, 0);
  assert_clean_end(schedule.pool);
}
END_TEST

START_TEST(stream_ordered_memory_is_never_handed_out_early) {
  struct schedule schedule = play(MAM_REUSE_STREAM, MAM_SOURCE_DEVICE, (unsigned)_i, false);
  ck_assert_uint_eq(schedule.early, 0);
  ck_assert_uint_gt(schedule.reused_under_kernels, 0);
  assert_clean_end(schedule.pool);
}
END_TEST

START_TEST(captures_between_change_neither) {
  MAM_Reuse reuse = _i % 2 == 0 ? MAM_REUSE_FENCED : MAM_REUSE_STREAM;
  struct schedule schedule = play(reuse, _i % 4 < 2 ? MAM_SOURCE_DEVICE : MAM_SOURCE_VMM, (unsigned)_i, true);
  ck_assert_uint_eq(schedule.early, 0);
  ck_assert_uint_gt(schedule.captures, 0);
  assert_clean_end(schedule.pool);
}
END_TEST

START_TEST(driver_without_fences_hands_out_nothing_early) {
  fake_hide("cuCtxRecordEvent");
  struct schedule schedule =
      play(_i % 2 == 0 ? MAM_REUSE_FENCED : MAM_REUSE_STREAM, MAM_SOURCE_DEVICE, (unsigned)_i, _i % 4 >= 2);
  ck_assert_uint_eq(schedule.early, 0);
  ck_assert_uint_gt(fake_calls("cuCtxSynchronize"), 0);
  assert_clean_end(schedule.pool);
}
END_TEST

/* The schedules can find a block that is handed out too early: under the immediate rule they do. */
START_TEST(immediate_reuse_is_caught_by_the_same_schedules) {
  struct schedule schedule = play(MAM_REUSE_IMMEDIATE, MAM_SOURCE_DEVICE, (unsigned)_i, false);
  ck_assert_uint_gt(schedule.early, 0);
  assert_clean_end(schedule.pool);
}
END_TEST

/* ---- Several threads ----------------------------------------------------------------------------------------------
 */

static struct {
  pthread_mutex_t mutex;
  struct held held;
  bool full;
} mailbox = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Exchanges a block with another thread.  A block that was used on this thread's own default stream stays: the other
 * thread cannot wait for that stream. */
static void exchange(struct schedule *schedule) {
  if (schedule->held_count == 0)
    return;
  struct held *mine = &schedule->held[next_random(&schedule->state) % schedule->held_count];
  if ((mine->used & 2) != 0 || mine->origin == 1)
    return;
  pthread_mutex_lock(&mailbox.mutex);
  struct held other = mailbox.held;
  bool full = mailbox.full;
  mailbox.held = *mine;
  mailbox.full = true;
  pthread_mutex_unlock(&mailbox.mutex);
  *mine = full ? other : schedule->held[--schedule->held_count];
}

struct worker {
  pthread_t thread;
  struct schedule schedule;
  void *context;
  bool captures;
};

static void *worker_run(void *argument) {
  struct worker *worker = argument;
  fake_make_current(worker->context);
  for (int i = 0; i < step_count; i++) {
    schedule_step(&worker->schedule, worker->captures);
    if (i % 8 == 0)
      exchange(&worker->schedule);
  }
  if (worker->schedule.capturing)
    capture(&worker->schedule);
  return NULL;
}

/* Threads share the pool and all created streams but the last, which only the first thread captures. */
static void threads_play(MAM_Reuse reuse, MAM_Source source, unsigned seed, bool captures) {
  static struct worker workers[thread_count];
  void *context = use_primary(0), *streams[stream_count];
  MAM_Pool pool = reuse_pool(reuse, source);
  streams_make(streams);
  for (unsigned i = 0; i < thread_count; i++) {
    workers[i].context = context;
    workers[i].captures = captures && i == 0;
    workers[i].schedule =
        (struct schedule){.pool = pool, .reuse = reuse, .trims = i == 1, .state = 88172645u + seed * 104729 + i * 31};
    workers[i].schedule.others_capture = captures;
    (void)memcpy(workers[i].schedule.streams, streams, sizeof streams);
    ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]), 0);
  }
  for (unsigned i = 0; i < thread_count; i++) {
    ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
    ck_assert_uint_eq(workers[i].schedule.early, 0);
  }
  assert_clean_end(pool);
}

/* Such memory may be handed out while a kernel uses it, but must not be unmapped. */
START_TEST(immediate_reuse_unmaps_nothing_under_a_kernel) {
  struct schedule schedule = play(MAM_REUSE_IMMEDIATE, MAM_SOURCE_VMM, (unsigned)_i, false);
  assert_clean_end(schedule.pool);
}
END_TEST

enum { slab_blocks = 2000 };

START_TEST(block_freed_at_once_keeps_its_slab_mapped) {
  static const size_t sizes_at_once[] = {512, 4 * MIB};
  static char *blocks[slab_blocks];
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_VMM);
  size_t bytes = sizes_at_once[_i];
  int count = _i == 0 ? slab_blocks : 8;
  for (int i = 0; i < count; i++)
    blocks[i] = block_of(pool, bytes);
  struct fake_range range = {blocks[7], bytes};
  for (int i = 0; i < count; i++)
    if (i != 7)
      OK(MAM_CudaFree(blocks[i]));
  OK(MAM_PoolTrim(pool, 0));
  ck_assert(fake_launch(fake_stream_create(FAKE_STREAM_NON_BLOCKING), &range, 1));
  OK(MAM_CudaFreeReuse(blocks[7], MAM_REUSE_IMMEDIATE));
  OK(MAM_PoolTrim(pool, 0));
  ck_assert_uint_eq(fake_faults(), 0);
  assert_clean_end(pool);
}
END_TEST

START_TEST(threads_never_get_memory_early) {
  threads_play(_i % 2 == 0 ? MAM_REUSE_FENCED : MAM_REUSE_STREAM, _i % 4 < 2 ? MAM_SOURCE_DEVICE : MAM_SOURCE_VMM,
               (unsigned)_i, _i % 8 >= 4);
}
END_TEST

/* ---- Waiting ------------------------------------------------------------------------------------------------------
 */

static void run_kernel(void *stream, const void *address, size_t bytes) {
  struct fake_range range = {address, bytes};
  ck_assert(fake_launch(stream, &range, 1));
}

static const size_t sizes[] = {1, 1000, 4 * KIB, 64 * KIB, MIB, 64 * MIB};
enum { size_count = sizeof sizes / sizeof sizes[0] };

START_TEST(nobody_waits_while_memory_is_left) {
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  size_t bytes = sizes[_i];
  for (int i = 0; i < 8; i++) {
    char *a = block_of(pool, bytes);
    ck_assert(!fake_in_use(a, bytes, FAKE_NO_STREAM));
    run_kernel(stream, a, bytes);
    OK(MAM_CudaFree(a));
  }
  ck_assert_uint_eq(fake_in_flight(), 8);
  ck_assert_uint_eq(fake_waits(), 0);
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  assert_clean_end(pool);
}
END_TEST

START_TEST(memory_comes_back_without_waiting_when_kernels_have_ended) {
  (void)use_primary(0);
  MAM_Pool pool = pool_with(options_with(64 * MIB));
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  for (int i = 0; i < 50; i++) {
    char *a = block_of(pool, 30 * MIB);
    ck_assert(!fake_in_use(a, 30 * MIB, FAKE_NO_STREAM));
    run_kernel(stream, a, 30 * MIB);
    OK(MAM_CudaFree(a));
    fake_finish_stream(stream);
  }
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  assert_clean_end(pool);
}
END_TEST

START_TEST(allocation_waits_when_no_memory_is_left) {
  (void)use_primary(0);
  MAM_Pool pool = pool_with(options_with(64 * MIB));
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  if (_i == 1)
    fake_hide("cuCtxRecordEvent");
  char *a = block_of(pool, 64 * MIB);
  run_kernel(stream, a, 64 * MIB);
  OK(MAM_CudaFree(a));
  char *b = block_of(pool, 40 * MIB);
  ck_assert(!fake_in_use(b, 40 * MIB, FAKE_NO_STREAM));
  ck_assert_uint_eq(fake_waits(), 1);
  assert_clean_end(pool);
}
END_TEST

/* Two pools share a full device.  What both have free waits for a kernel, and after that one grows by what the other
 * gives back. */
START_TEST(allocation_waits_for_what_another_pool_can_give_back) {
  enum { small_bytes = 30 * KIB, small_most = 256, large_most = 256 };
  MAM_PoolOptions options = options_with(2 * MIB);
  char *smalls[small_most], *larges[large_most];
  void *pointer;
  size_t small_count = 0, large_count = 0;
  options.context = use_primary(0);
  options.source = MAM_SOURCE_VMM;
  fake_set_capacity(256 * MIB);
  options.limit_bytes = 128 * MIB;
  MAM_Pool pool = pool_with(options);
  options.limit_bytes = 256 * MIB;
  MAM_Pool other = pool_with(options);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  smalls[small_count++] = block_of(pool, small_bytes);
  while (large_count < large_most && MAM_PoolMalloc(other, &pointer, 2 * MIB) == cudaSuccess)
    larges[large_count++] = pointer;
  while (small_count < small_most && MAM_PoolMalloc(pool, &pointer, small_bytes) == cudaSuccess)
    smalls[small_count++] = pointer;
  run_kernel(stream, smalls[0], small_bytes);
  run_kernel(stream, larges[0], 2 * MIB);
  for (size_t i = 0; i < large_count; i++)
    OK(MAM_CudaFree(larges[i]));
  OK(MAM_CudaFree(smalls[0]));
  (void)block_of(pool, _i == 0 ? 32 * KIB : 40000);
  ck_assert_uint_eq(fake_waits(), 1);
}
END_TEST

/* The driver runs fences one after another, so many frees share one. */
START_TEST(fences_are_far_fewer_than_frees) {
  enum { rounds = 4000 };
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  void *stream = fake_stream_create(0);
  size_t bytes = _i == 0 ? 256 : 200 * KIB;
  for (int i = 0; i < rounds; i++) {
    char *a = block_of(pool, bytes);
    if (i % 16 == 0) {
      run_kernel(stream, a, bytes);
      (void)fake_step(0);
    }
    OK(MAM_CudaFree(a));
  }
  ck_assert_uint_gt(fake_calls("cuCtxRecordEvent"), 0);
  ck_assert_uint_lt(fake_calls("cuCtxRecordEvent"), rounds / 16);
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  assert_clean_end(pool);
}
END_TEST

/* ---- Streams ------------------------------------------------------------------------------------------------------
 */

/* Takes a block of the default pool if pool is NULL. */
static char *block_on(MAM_Pool pool, size_t bytes, void *stream) {
  void *pointer = NULL;
  OK(pool != NULL ? MAM_PoolMallocAsync(pool, &pointer, bytes, stream) : MAM_CudaMallocAsync(&pointer, bytes, stream));
  ck_assert_ptr_nonnull(pointer);
  return pointer;
}

/* Frees a block on a stream that has a running kernel which uses the block. */
static char *freed_on(MAM_Pool pool, size_t bytes, void *stream) {
  char *a = block_on(pool, bytes, stream);
  run_kernel(stream, a, bytes);
  OK(MAM_CudaFreeAsync(a, stream));
  return a;
}

START_TEST(same_stream_takes_memory_at_once) {
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  void *streams[] = {NULL, FAKE_STREAM_LEGACY, FAKE_STREAM_PER_THREAD, fake_stream_create(0),
                     fake_stream_create(FAKE_STREAM_NON_BLOCKING)};
  size_t bytes = sizes[_i];
  for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++) {
    char *a = freed_on(pool, bytes, streams[i]);
    char *b = block_on(pool, bytes, streams[i]);
    ck_assert_ptr_eq(b, a);
    ck_assert(fake_in_use(b, bytes, FAKE_NO_STREAM)); /* the kernel still runs */
    ck_assert(!fake_in_use(b, bytes, streams[i]));
  }
  ck_assert_uint_eq(fake_waits(), 0);
  assert_clean_end(pool);
}
END_TEST

/* A waiting block of the stream is taken first only if it fits as well as the best hole. */
START_TEST(small_holes_serve_before_large_ones_are_cut) {
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  size_t small = sizes[_i], large = 16 * small;
  char *hole = block_on(pool, small, NULL);
  (void)block_on(pool, small, NULL); /* keeps them from joining */
  char *waiting = block_on(pool, large, NULL);
  (void)block_on(pool, small, NULL);
  run_kernel(NULL, waiting, large);
  OK(MAM_CudaFreeReuse(hole, MAM_REUSE_IMMEDIATE));
  OK(MAM_CudaFreeAsync(waiting, NULL));
  ck_assert_ptr_eq(block_on(pool, small, NULL), hole);
  ck_assert_ptr_eq(block_on(pool, large, NULL), waiting);
  assert_clean_end(pool);
}
END_TEST

/* Steps of a training on the legacy stream.  Each layer keeps some blocks until its backward pass and frees others at
 * once.  A kernel comes with each call, and the GPU is so many calls behind. */
enum { layers = 24, kept_in_layer = 6, passing_in_layer = 4, training_steps = 12 };

struct training {
  unsigned behind, state;
  size_t live_bytes, peak_bytes, held_bytes;
};

static char *training_block(struct training *training, size_t bytes) {
  void *pointer = NULL;
  OK(MAM_CudaMallocAsync(&pointer, bytes, NULL));
  training->live_bytes += bytes;
  if (training->live_bytes > training->peak_bytes)
    training->peak_bytes = training->live_bytes;
  if (fake_live_bytes() > training->held_bytes)
    training->held_bytes = fake_live_bytes();
  ck_assert(fake_launch(NULL, &(struct fake_range){pointer, bytes}, 1));
  while (fake_in_flight() > training->behind)
    (void)fake_step(0);
  return pointer;
}

static void training_free(struct training *training, void *pointer, size_t bytes) {
  OK(MAM_CudaFreeAsync(pointer, NULL));
  training->live_bytes -= bytes;
}

/* Half of the sizes are small.  The others are 1 to 64 MiB and few, as those of tensors. */
static size_t training_size(struct training *training) {
  unsigned random = next_random(&training->state);
  size_t large = (MIB + random / 2 % 4 * (MIB / 4)) << random / 8 % 6;
  return random % 2 == 0 ? 1 + random / 8 % 4096 : large;
}

static void training_pass_by(struct training *training) {
  for (int i = 0; i < passing_in_layer; i++) {
    size_t bytes = training_size(training), more = training_size(training);
    char *a = training_block(training, bytes), *b = training_block(training, more);
    training_free(training, a, bytes);
    training_free(training, b, more);
  }
}

static void training_step(struct training *training) {
  struct {
    char *address;
    size_t bytes;
  } kept[layers * kept_in_layer];
  training->state = 1; /* so that each step is the same */
  for (int layer = 0; layer < layers; layer++) {
    for (int i = layer * kept_in_layer; i < (layer + 1) * kept_in_layer; i++) {
      kept[i].bytes = training_size(training);
      kept[i].address = training_block(training, kept[i].bytes);
    }
    training_pass_by(training);
  }
  for (int layer = layers - 1; layer >= 0; layer--) {
    training_pass_by(training);
    for (int i = layer * kept_in_layer; i < (layer + 1) * kept_in_layer; i++)
      training_free(training, kept[i].address, kept[i].bytes);
  }
}

static const unsigned calls_behind[] = {0, 10, 300, UINT32_MAX};
enum { behind_count = sizeof calls_behind / sizeof calls_behind[0] };

/* The bytes that are held but not used, over those that are used. */
static double training_in_vain(unsigned behind) {
  struct training training = {.behind = behind};
  unsigned waits = fake_waits();
  OK(MAM_Create_auto());
  for (int step = 0; step < training_steps; step++)
    training_step(&training);
  ck_assert_uint_eq(training.live_bytes, 0);
  ck_assert_uint_eq(fake_waits(), waits);
  OK(MAM_Destroy());
  return (double)(training.held_bytes - training.peak_bytes) / (double)training.peak_bytes;
}

/* The least of a few tries.  The clock says which calls set a fence (REUSE_FENCE_PAUSE_NS) and which growths are a rush
 * (RUSH_NS).  With the GPU ten calls behind, one of 20 runs, or of ten on a busy machine, has nothing free for one of
 * the largest blocks at the wrong moment, and grows by that: a twentieth of its peak. */
START_TEST(training_takes_little_more_than_it_uses) {
  enum { TRIES = 5 };
  double least = 1;
  (void)use_primary(0);
  for (int i = 0; i < TRIES && least > 0.05; i++) {
    double in_vain = training_in_vain(calls_behind[_i]);
    least = in_vain < least ? in_vain : least;
    ck_assert_double_le(in_vain, 0.2);
  }
  ck_assert_double_le(least, 0.05);
}
END_TEST

START_TEST(two_names_of_the_legacy_stream_are_one_stream) {
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  char *a = freed_on(pool, sizes[_i], NULL);
  ck_assert_ptr_eq(block_on(pool, sizes[_i], FAKE_STREAM_LEGACY), a);
  assert_clean_end(pool);
}
END_TEST

START_TEST(other_streams_do_not_take_it) {
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(_i % 2 == 0 ? MAM_REUSE_FENCED : MAM_REUSE_STREAM, MAM_SOURCE_DEVICE);
  size_t bytes = sizes[_i / 2];
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *other = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  (void)freed_on(pool, bytes, stream);
  for (int i = 0; i < 4; i++) {
    ck_assert(!fake_in_use(block_on(pool, bytes, other), bytes, FAKE_NO_STREAM));
    ck_assert(!fake_in_use(block_of(pool, bytes), bytes, FAKE_NO_STREAM));
    ck_assert(!fake_in_use(block_on(pool, bytes, FAKE_STREAM_PER_THREAD), bytes, FAKE_NO_STREAM));
  }
  ck_assert_uint_eq(fake_waits(), 0);
  assert_clean_end(pool);
}
END_TEST

START_TEST(stream_that_gets_the_handle_of_a_destroyed_one_is_another) {
  (void)use_primary(0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  (void)freed_on(pool, sizes[_i], stream);
  fake_stream_destroy(stream);
  void *other = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  ck_assert_ptr_eq(other, stream);
  ck_assert(!fake_in_use(block_on(pool, sizes[_i], other), sizes[_i], other));
  assert_clean_end(pool);
}
END_TEST

struct by_thread {
  MAM_Pool pool;
  void *context;
  size_t bytes;
  bool early;
};

static void *allocate_on_own_stream(void *argument) {
  struct by_thread *by_thread = argument;
  fake_make_current(by_thread->context);
  for (int i = 0; i < 4; i++) {
    char *a = block_on(by_thread->pool, by_thread->bytes, FAKE_STREAM_PER_THREAD);
    by_thread->early |= fake_in_use(a, by_thread->bytes, FAKE_STREAM_PER_THREAD);
  }
  return NULL;
}

START_TEST(default_streams_of_two_threads_are_two_streams) {
  struct by_thread by_thread = {.context = use_primary(0), .bytes = sizes[_i]};
  pthread_t thread;
  by_thread.pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  (void)freed_on(by_thread.pool, by_thread.bytes, FAKE_STREAM_PER_THREAD);
  ck_assert_int_eq(pthread_create(&thread, NULL, allocate_on_own_stream, &by_thread), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert(!by_thread.early);
  assert_clean_end(by_thread.pool);
}
END_TEST

/* ---- Streams of several contexts ---------------------------------------------------------------------------------
 */

/* The pool is of the first context.  The second context is on the same device or on another one. */
static void use_contexts(void *contexts[2], bool other_device) {
  fake_set_devices(2);
  contexts[1] = other_device ? fake_primary_retain(1) : fake_context_create(0);
  contexts[0] = use_primary(0);
}

/* The same.  Contexts of different devices can use each other's memory. */
static void use_contexts_in_reach(void *contexts[2], bool other_device) {
  fake_set_peers();
  use_contexts(contexts, other_device);
  for (int i = 0; i < 2 && other_device; i++)
    fake_peer_enable(contexts[i], 1 - i);
}

static void *const default_streams[] = {NULL, FAKE_STREAM_LEGACY, FAKE_STREAM_PER_THREAD};
enum { default_stream_count = 3, other_count = 2 * default_stream_count * size_count };

/* Takes a block, uses it by a kernel of the other context, and frees it there on the stream with that handle. */
static char *freed_elsewhere(MAM_Pool pool, void *const contexts[2], size_t bytes, void *stream) {
  char *a = block_on(pool, bytes, stream);
  fake_make_current(contexts[1]);
  run_kernel(stream, a, bytes);
  OK(MAM_CudaFreeAsync(a, stream));
  fake_make_current(contexts[0]);
  return a;
}

START_TEST(default_streams_of_two_contexts_are_two_streams) {
  void *contexts[2], *stream = default_streams[_i / 2 % default_stream_count];
  size_t bytes = sizes[_i / 2 / default_stream_count];
  use_contexts_in_reach(contexts, _i % 2 == 0);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  (void)freed_elsewhere(pool, contexts, bytes, stream);
  for (int i = 0; i < 4; i++) {
    ck_assert(!fake_in_use(block_on(pool, bytes, stream), bytes, stream));
    ck_assert(!fake_in_use(block_of(pool, bytes), bytes, FAKE_NO_STREAM));
  }
  ck_assert_uint_eq(fake_waits(), 0);
  fake_finish(contexts[1]);
  assert_clean_end(pool);
}
END_TEST

START_TEST(memory_freed_in_another_context_comes_back_when_its_work_is_done) {
  void *contexts[2], *pointer = NULL;
  use_contexts_in_reach(contexts, _i % 2 == 0);
  OK(MAM_Create(64 * MIB));
  char *a = freed_elsewhere(NULL, contexts, 64 * MIB, NULL);
  MAM_PoolInfo before = info_of(NULL);
  fake_fail("cuCtxSynchronize", 1, 719); /* this wait would finish the work, so it must fail */
  FAILS((cudaError_t)719, MAM_CudaMalloc(&pointer, 64 * MIB));
  ck_assert_uint_eq(info_of(NULL).waiting_bytes, before.waiting_bytes);
  fake_finish(contexts[1]);
  ck_assert_ptr_eq(block(64 * MIB), a);
  ck_assert_uint_eq(fake_waits(), 0);
  OK(MAM_Destroy());
  assert_driver_content();
}
END_TEST

START_TEST(allocation_waits_for_the_other_context_where_no_memory_is_left) {
  void *contexts[2];
  use_contexts_in_reach(contexts, _i % 2 == 0);
  OK(MAM_Create(64 * MIB));
  char *a = freed_elsewhere(NULL, contexts, 64 * MIB, FAKE_STREAM_PER_THREAD);
  ck_assert_ptr_eq(block(64 * MIB), a);
  ck_assert(!fake_in_use(a, 64 * MIB, FAKE_NO_STREAM));
  ck_assert_uint_eq(fake_waits(), 1);
  OK(MAM_Destroy());
  assert_driver_content();
}
END_TEST

/* The program enables peer access by the driver, before or after the allocation, and frees by the plain call. */
START_TEST(memory_that_a_peer_uses_comes_back_when_its_work_is_done) {
  void *contexts[2], *pointer = NULL;
  use_contexts(contexts, true);
  OK(_i < 2 ? MAM_Create(64 * MIB) : MAM_Create_auto());
  if (_i % 2 == 0)
    fake_peer_enable(contexts[1], 0);
  size_t all = info_of(NULL).limit_bytes;
  char *a = block(all);
  OK(MAM_CudaFree(a)); /* fences exist before the peer has access */
  ck_assert_ptr_eq(block(all), a);
  if (_i % 2 == 1)
    fake_peer_enable(contexts[1], 0);
  fake_make_current(contexts[1]);
  fake_submit(contexts[1]);
  fake_make_current(contexts[0]);
  OK(MAM_CudaFree(a));
  fake_fail("cuCtxSynchronize", 1, 719); /* this wait would finish the work, so it must fail */
  FAILS((cudaError_t)719, MAM_CudaMalloc(&pointer, all));
  fake_finish(contexts[1]);
  ck_assert_ptr_eq(block(all), a);
  ck_assert_uint_eq(fake_waits(), 0);
  fake_submit(contexts[1]);
  OK(MAM_CudaFree(a));
  ck_assert_ptr_eq(block(all), a); /* waits for both contexts */
  ck_assert(!fake_pending(contexts[1]));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* The peer keeps its handle, by which the library knew it before the reset. */
START_TEST(peer_is_found_again_after_its_context_was_reset) {
  void *contexts[2], *pointer = NULL;
  use_contexts(contexts, true);
  OK(MAM_Create(64 * MIB));
  if (_i % 2 == 0)
    fake_peer_enable(contexts[1], 0);
  for (int i = 0; i < 2; i++)
    OK(MAM_CudaFree(block(64 * MIB)));
  fake_primary_reset(1);
  for (int i = 0; i < 2 && _i < 2; i++) /* without and with a fence in between */
    OK(MAM_CudaFree(block(64 * MIB)));
  ck_assert_ptr_eq(fake_primary_retain(1), contexts[1]);
  fake_make_current(contexts[1]); /* begins anew */
  fake_make_current(contexts[0]);
  fake_peer_enable(contexts[1], 0);
  char *a = block(64 * MIB);
  fake_submit(contexts[1]);
  OK(MAM_CudaFree(a));
  fake_fail("cuCtxSynchronize", 1, 719); /* this wait would finish the work, so it must fail */
  FAILS((cudaError_t)719, MAM_CudaMalloc(&pointer, 64 * MIB));
  fake_finish(contexts[1]);
  ck_assert_ptr_eq(block(64 * MIB), a);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(device_without_access_is_not_waited_for) {
  void *contexts[2];
  use_contexts(contexts, true);
  OK(_i == 0 ? MAM_Create(64 * MIB) : MAM_Create_auto());
  fake_peer_enable(contexts[0], 1); /* access in the other direction */
  fake_submit(contexts[1]);
  size_t all = info_of(NULL).limit_bytes;
  for (int i = 0; i < 10; i++)
    OK(MAM_CudaFree(block(all)));
  ck_assert(fake_pending(contexts[1]));
  ck_assert_uint_eq(fake_waits(), 0);
  fake_finish(contexts[1]);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(work_of_a_context_that_ended_is_waited_for_no_more) {
  void *contexts[2];
  use_contexts(contexts, false);
  OK(MAM_Create(64 * MIB));
  char *a = freed_elsewhere(NULL, contexts, 64 * MIB, NULL);
  fake_context_destroy(contexts[1]);
  ck_assert_ptr_eq(block(64 * MIB), a);
  OK(MAM_CudaFree(a));
  ck_assert_ptr_eq(block(64 * MIB), a);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* After its reset the other context has the same handle, and its default streams have the same handles. */
START_TEST(work_of_a_context_after_its_reset_is_waited_for) {
  void *context = fake_context_create(0), *other = fake_primary_retain(0);
  size_t bytes = sizes[_i];
  fake_make_current(context);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  char *early = block_on(pool, bytes, NULL), *late = block_on(pool, bytes, NULL);
  fake_make_current(other);
  OK(MAM_CudaFreeAsync(early, NULL));
  fake_primary_reset(0);
  ck_assert_ptr_eq(fake_primary_retain(0), other);
  run_kernel(NULL, late, bytes);
  OK(MAM_CudaFreeAsync(late, NULL));
  fake_make_current(context);
  for (int i = 0; i < 8; i++) {
    char *a = block_of(pool, bytes);
    ck_assert(!fake_in_use(a, bytes, FAKE_NO_STREAM));
    OK(MAM_CudaFree(a));
    ck_assert(!fake_in_use(block_on(pool, bytes < MIB ? bytes : 1, NULL), 1, NULL));
  }
  ck_assert(fake_in_use(late, bytes, FAKE_NO_STREAM)); /* the kernel still runs */
  fake_finish(other);
  assert_clean_end(pool);
}
END_TEST

START_TEST(captures_in_the_other_context_survive) {
  void *contexts[2], *pointer = NULL;
  use_contexts(contexts, _i % 2 == 0);
  OK(MAM_Create(64 * MIB));
  char *a = freed_elsewhere(NULL, contexts, 64 * MIB, NULL);
  fake_make_current(contexts[1]);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_CaptureBegin());
  ck_assert(fake_stream_capture_begin(stream, _i / 2));
  fake_make_current(contexts[0]);
  ck_assert_int_ne(MAM_CudaMalloc(&pointer, 64 * MIB), cudaSuccess);
  fake_make_current(contexts[1]);
  ck_assert(fake_stream_capture_end(stream));
  OK(MAM_CaptureEnd());
  fake_make_current(contexts[0]);
  ck_assert_ptr_eq(block(64 * MIB), a);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
  OK(MAM_Destroy());
}
END_TEST

enum { wanderer_steps = 3000, wanderer_streams = 4 };

/* Two contexts in turn, each with blocks of both pools: a block is allocated, used and freed on one stream, in either
 * context. */
static void wander(MAM_Pool const pools[2], void *const contexts[2], unsigned seed) {
  struct {
    char *address;
    size_t bytes;
    unsigned context, stream;
  } held[live_limit];
  unsigned state = 88675123u + seed * 7919, held_count = 0;
  void *streams[2][wanderer_streams] = {{NULL, FAKE_STREAM_PER_THREAD}, {NULL, FAKE_STREAM_PER_THREAD}};
  for (int i = 0; i < 2 * 2; i++) {
    fake_make_current(contexts[i / 2]);
    streams[i / 2][2 + i % 2] = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  }
  for (int i = 0; i < wanderer_steps; i++) {
    unsigned what = next_random(&state) % 100, context = next_random(&state) % 2;
    unsigned stream = next_random(&state) % wanderer_streams;
    if (what < 45 && held_count < live_limit) {
      void *pointer = NULL, *handle = streams[context][stream];
      size_t bytes = random_size(&state);
      fake_make_current(contexts[context]);
      if (MAM_PoolMallocAsync(pools[next_random(&state) % 2], &pointer, bytes, handle) != cudaSuccess)
        continue;
      ck_assert(!fake_in_use(pointer, bytes, handle));
      ck_assert(fake_launch(handle, &(struct fake_range){pointer, bytes}, 1));
      held[held_count].address = pointer;
      held[held_count].bytes = bytes;
      held[held_count].context = context;
      held[held_count++].stream = stream;
    } else if (what < 85 && held_count > 0) {
      unsigned index = next_random(&state) % held_count;
      fake_make_current(contexts[held[index].context]);
      OK(MAM_CudaFreeAsync(held[index].address, streams[held[index].context][held[index].stream]));
      held[index] = held[--held_count];
    }
    while (fake_in_flight() > in_flight_limit || what >= 90) {
      (void)fake_step(next_random(&state));
      what = 0;
    }
  }
}

START_TEST(contexts_that_use_each_others_memory_get_none_early) {
  void *contexts[2];
  MAM_Pool pools[2];
  use_contexts_in_reach(contexts, _i % 2 == 0);
  for (int i = 0; i < 2; i++) {
    fake_make_current(contexts[i]);
    pools[i] = reuse_pool(MAM_REUSE_FENCED, _i % 4 < 2 ? MAM_SOURCE_DEVICE : MAM_SOURCE_VMM);
  }
  wander(pools, contexts, (unsigned)_i);
  for (int i = 0; i < 2; i++)
    OK(MAM_PoolDestroy(pools[i]));
  assert_nothing_held();
}
END_TEST

/* ---- What has room is served, whatever runs -----------------------------------------------------------------------
 */

enum trade_way { trade_plain, trade_tagged, trade_on_a_stream, trade_in_pieces, trade_way_count };
enum { trade_size_count = 3, trade_spare = 4, trade_most_s = 5 };
#ifdef __SANITIZE_THREAD__
enum { trade_calls = 2000 };
#else
enum { trade_calls = 20000 };
#endif
static const size_t trade_sizes[trade_size_count] = {8192, 40000, MIB};

/* Threads trade a few blocks in a pool that is full otherwise. */
struct trade {
  MAM_Pool pool;
  void *context;
  enum trade_way way;
  size_t bytes;
  _Atomic int left; /* so many blocks more have room */
  _Atomic bool ended;
  _Atomic unsigned served, refused;
};

static bool trade_may_take(struct trade *trade) {
  int left = atomic_load(&trade->left);
  while (left > 0 && !atomic_compare_exchange_weak(&trade->left, &left, left - 1))
    continue;
  return left > 0;
}

static cudaError_t trade_take(struct trade *trade, void **pointer, void *stream) {
  static const char tag;
  if (trade->way == trade_on_a_stream)
    return MAM_PoolMallocAsync(trade->pool, pointer, trade->bytes, stream);
  if (trade->way == trade_tagged)
    return MAM_PoolMallocTagged(trade->pool, pointer, trade->bytes, &tag);
  return MAM_PoolMalloc(trade->pool, pointer, trade->bytes);
}

/* Each block is freed while a kernel uses it. */
static void trade_once(struct trade *trade, void *stream) {
  void *pointer = NULL;
  if (trade_take(trade, &pointer, stream) != cudaSuccess) {
    trade->refused++;
    return;
  }
  trade->served++;
  if (fake_in_flight() < in_flight_limit)
    (void)fake_launch(stream, &(struct fake_range){pointer, trade->bytes}, 1);
  OK(trade->way == trade_on_a_stream ? MAM_CudaFreeAsync(pointer, stream) : MAM_CudaFree(pointer));
}

static void *trade_body(void *argument) {
  struct trade *trade = argument;
  fake_make_current(trade->context);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  while (!trade->ended) {
    if (!trade_may_take(trade))
      continue;
    trade_once(trade, stream);
    trade->left++;
  }
  return NULL;
}

/* The main thread is the GPU.  Where processors are busy with other programs, fewer calls have to do. */
static void trade_with_threads(struct trade *trade) {
  pthread_t threads[thread_count];
  unsigned state = 1;
  time_t end = time(NULL) + trade_most_s;
  for (int i = 0; i < thread_count; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, trade_body, trade), 0);
  while (trade->served + trade->refused < trade_calls && time(NULL) < end)
    (void)fake_step(next_random(&state));
  trade->ended = true;
  for (int i = 0; i < thread_count; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
}

START_TEST(what_has_room_is_served_beside_kernels) {
  struct trade trade = {.context = use_primary(0)};
  MAM_PoolOptions options = options_with(64 * MIB);
  void *pointer, *last[trade_spare];
  size_t count = 0;
  trade.bytes = trade_sizes[_i % trade_size_count];
  trade.way = (enum trade_way)(_i / trade_size_count);
  if (trade.way == trade_in_pieces) { /* an elastic pool at its limit */
    options.source = MAM_SOURCE_VMM;
    options.limit_bytes = options.chunk_bytes;
  }
  trade.pool = pool_with(options);
  while (MAM_PoolMalloc(trade.pool, &pointer, trade.bytes) == cudaSuccess)
    last[count++ % trade_spare] = pointer;
  ck_assert_uint_gt(count, trade_spare);
  for (size_t i = 0; i < trade_spare; i++)
    OK(MAM_CudaFree(last[i]));
  trade.left = trade_spare;
  trade_with_threads(&trade);
#ifndef __SANITIZE_THREAD__ /* there a thread may have a block in hand for longer than others wait */
  ck_assert_uint_eq(trade.refused, 0);
#endif
}
END_TEST

/* ---- Captures -----------------------------------------------------------------------------------------------------
 */

enum { mode_count = 3 };

START_TEST(memory_freed_in_a_capture_waits_for_its_end) {
  void *pointer = NULL;
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_Create(64 * MIB));
  char *a = block(64 * MIB);
  OK(MAM_CaptureBegin());
  ck_assert(fake_stream_capture_begin(stream, _i));
  unsigned fences = fake_calls("cuCtxRecordEvent");
  OK(MAM_CudaFree(a));
  ck_assert_int_ne(MAM_CudaMalloc(&pointer, 64 * MIB), cudaSuccess);
  ck_assert_ptr_null(pointer);
  ck_assert_uint_eq(fake_calls("cuCtxRecordEvent"), fences);
  ck_assert_uint_eq(fake_calls("cuCtxSynchronize"), 0);
  ck_assert(fake_stream_capture_end(stream));
  OK(MAM_CaptureEnd());
  (void)block(64 * MIB);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

enum { capture_rounds = 100, traffic_share = 30, traffic_threads = 2 };

/* How many steps the traffic threads may have done, and how many each has done. */
static _Atomic unsigned traffic_allowed, traffic_done[traffic_threads];

struct traffic {
  void *context;
  _Atomic unsigned *done;
};

/* The steps are limited: memory that is freed during a capture waits, so traffic without a limit would run out of
 * memory. */
static void *traffic(void *argument) {
  const struct traffic *traffic = argument;
  char *held[16] = {NULL};
  fake_make_current(traffic->context);
  for (unsigned i = 0; i < 2 * capture_rounds * traffic_share; i++) {
    while (i >= atomic_load_explicit(&traffic_allowed, memory_order_relaxed))
      (void)sched_yield();
    OK(MAM_CudaFree(held[i % 16]));
    held[i % 16] = block(i % 3 == 0 ? 5 * MIB : 100 + i % 4096);
    (void)atomic_fetch_add_explicit(traffic->done, 1, memory_order_relaxed);
  }
  for (int i = 0; i < 16; i++)
    OK(MAM_CudaFree(held[i]));
  return NULL;
}

/* Lets the traffic threads do one share of steps, and frees and allocates meanwhile. */
static void share(void) {
  unsigned allowed = atomic_fetch_add_explicit(&traffic_allowed, traffic_share, memory_order_relaxed) + traffic_share;
  for (size_t i = 0; i < 5; i++)
    OK(MAM_CudaFree(block(1000 + i * 100 * KIB)));
  for (int i = 0; i < traffic_threads; i++)
    while (atomic_load_explicit(&traffic_done[i], memory_order_relaxed) < allowed)
      (void)sched_yield();
}

/* The branches of a graph run side by side, though they are one capture with one id. */
START_TEST(streams_of_one_capture_are_several_streams) {
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *branch = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  MAM_Pool pool = reuse_pool(MAM_REUSE_FENCED, MAM_SOURCE_DEVICE);
  size_t bytes = sizes[_i];
  ck_assert(fake_stream_capture_begin(stream, 0));
  ck_assert(fake_stream_capture_join(branch, stream));
  char *freed = block_on(pool, bytes, stream);
  OK(MAM_CudaFreeAsync(freed, stream));
  for (int i = 0; i < 4; i++)
    ck_assert_ptr_ne(block_on(pool, bytes, branch), freed);
  ck_assert_ptr_eq(block_on(pool, bytes, stream), freed);
  ck_assert(fake_stream_capture_end(branch));
  ck_assert(fake_stream_capture_end(stream));
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

START_TEST(bracketed_captures_survive_traffic_in_other_threads) {
  pthread_t threads[traffic_threads];
  struct traffic traffics[traffic_threads];
  void *context = use_primary(0), *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_Create_auto());
  for (int i = 0; i < traffic_threads; i++) {
    traffics[i] = (struct traffic){context, &traffic_done[i]};
    ck_assert_int_eq(pthread_create(&threads[i], NULL, traffic, &traffics[i]), 0);
  }
  for (int i = 0; i < capture_rounds; i++) {
    fake_submit(context);
    OK(MAM_CaptureBegin());
    ck_assert(fake_stream_capture_begin(stream, _i));
    share();
    ck_assert(fake_stream_capture_end(stream));
    OK(MAM_CaptureEnd());
    fake_finish(context);
    share();
  }
  for (int i = 0; i < traffic_threads; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(captured_stream_is_noticed_without_brackets) {
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_Create(64 * MIB));
  ck_assert(fake_stream_capture_begin(stream, _i));
  void *pointer = NULL;
  OK(MAM_CudaMallocAsync(&pointer, MIB, stream)); /* tells it */
  for (int i = 0; i < 200; i++) {
    void *other = NULL;
    OK(MAM_CudaFreeAsync(pointer, stream));
    OK(MAM_CudaMallocAsync(&pointer, MIB, stream));
    if (MAM_CudaMalloc(&other, 2 * MIB) == cudaSuccess)
      OK(MAM_CudaFree(other));
  }
  /* Any thread asks whether the stream is still captured.  It must not ask more, as the capture may end meanwhile. */
  unsigned captured = fake_calls("cuStreamIsCapturing"), which = fake_calls("cuStreamGetCaptureInfo");
  void *all = NULL;
  ck_assert_int_ne(MAM_CudaMalloc(&all, 64 * MIB), cudaSuccess);
  ck_assert_uint_gt(fake_calls("cuStreamIsCapturing"), captured);
  ck_assert_uint_eq(fake_calls("cuStreamGetCaptureInfo"), which);
  ck_assert(fake_stream_capture_end(stream));
  OK(MAM_CudaFree(pointer));
  (void)block(64 * MIB); /* needs all memory that was freed */
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
}
END_TEST

/* mam(7) says so.  Further allocations may be served from what the thread has at hand, and ask nothing. */
START_TEST(stream_that_was_noticed_may_go_after_a_trim) {
  static const size_t either[] = {1000, MIB};
  void *pointer = NULL;
  if (_i % 2 == 1)
    use_driver_without_fences();
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_Create_auto());
  OK(MAM_CudaFree(block(either[_i / 2])));
  ck_assert(fake_stream_capture_begin(stream, 0));
  OK(MAM_CudaMallocAsync(&pointer, either[_i / 2], stream));
  OK(MAM_CudaFreeAsync(pointer, stream));
  ck_assert(fake_stream_capture_end(stream));
  OK(MAM_Trim(0));
  fake_stream_destroy(stream);
  for (int i = 0; i < 1000; i++)
    OK(MAM_CudaFree(block(either[i % 2])));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* The stream's owner may end the capture or destroy the stream at any moment. */
START_TEST(stream_of_a_bracketed_capture_is_left_alone) {
  (void)use_primary(0);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING), *pointer = NULL;
  OK(MAM_Create(64 * MIB));
  OK(MAM_CaptureBegin());
  ck_assert(fake_stream_capture_begin(stream, _i));
  OK(MAM_CudaMallocAsync(&pointer, MIB, stream)); /* the stream's user asks */
  unsigned asked = fake_calls("cuStreamIsCapturing");
  ck_assert_uint_gt(asked, 0);
  (void)block(2 * MIB);
  ck_assert(fake_stream_capture_end(stream));
  fake_stream_destroy(stream);
  OK(MAM_CaptureEnd());
  OK(MAM_CudaFree(pointer));
  (void)block(61 * MIB); /* this needs a fence after the free */
  ck_assert_uint_eq(fake_calls("cuStreamIsCapturing"), asked);
}
END_TEST

START_TEST(capture_end_without_a_begin_is_invalid) {
  (void)use_primary(0);
  FAILS(cudaErrorInvalidValue, MAM_CaptureEnd());
  OK(MAM_CaptureBegin());
  OK(MAM_CaptureEnd());
  FAILS(cudaErrorInvalidValue, MAM_CaptureEnd());
}
END_TEST

/* ---- Ends ---------------------------------------------------------------------------------------------------------
 */

/* Frees blocks while a kernel runs, often enough that fences are asked for. */
static char *frees_under_a_kernel(void *context) {
  char *kept = block(1000), *blocks[64];
  fake_submit(context);
  for (int i = 0; i < 64; i++)
    blocks[i] = block(i % 2 == 0 ? 512 : MIB);
  for (int i = 0; i < 64; i++)
    OK(MAM_CudaFree(blocks[i]));
  for (int i = 0; i < 4000; i++)
    OK(MAM_CudaFree(block(512)));
  ck_assert_uint_gt(fake_calls("cuCtxRecordEvent"), 0);
  ck_assert(fake_pending(context));
  return kept;
}

START_TEST(reset_takes_pending_fences_along) {
  void *context = use_primary(0);
  OK(_i == 0 ? MAM_Create(256 * MIB) : MAM_Create_auto());
  char *kept = frees_under_a_kernel(context);
  fake_primary_reset(0);
  OK(MAM_CudaFree(block(MIB)));
  FAILS(cudaErrorInvalidValue, MAM_CudaFree(kept));
  (void)MAM_Destroy();
  assert_driver_content();
  ck_assert_uint_eq(fake_live_blocks(), 0);
}
END_TEST

static int fork_child(char *kept) {
  void *pointer = &pointer;
  bool right = MAM_CudaMalloc(&pointer, 1000) == cudaErrorInitializationError && pointer == NULL;
  right = right && MAM_CudaFree(kept) == cudaErrorInitializationError;
  return right && fake_violations() == 0 ? 0 : 1;
}

START_TEST(forked_child_says_so_with_fences_pending) {
  void *context = use_primary(0);
  int status = -1;
  OK(_i == 0 ? MAM_Create(256 * MIB) : MAM_Create_auto());
  char *kept = frees_under_a_kernel(context);
  pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0)
    _exit(fork_child(kept));
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  fake_finish(context);
  OK(MAM_CudaFree(kept));
  OK(MAM_CudaFree(block(MIB)));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("reuse");
  TCase *schedules = add_case(suite, "schedules"), *waiting = add_case(suite, "waiting");
  TCase *streams = add_case(suite, "streams"), *captures = add_case(suite, "captures");
  TCase *contexts = add_case(suite, "contexts"), *ends = add_case(suite, "ends");
  tcase_set_timeout(schedules, 60);
  tcase_add_loop_test(schedules, fenced_memory_is_never_handed_out_early, 0, seed_count);
  tcase_add_loop_test(schedules, mapped_memory_is_never_handed_out_early_nor_unmapped_under_a_kernel, 0, seed_count);
  tcase_add_loop_test(schedules, stream_ordered_memory_is_never_handed_out_early, 0, seed_count);
  tcase_add_loop_test(schedules, captures_between_change_neither, 0, seed_count);
  tcase_add_loop_test(schedules, driver_without_fences_hands_out_nothing_early, 0, seed_count);
  tcase_add_loop_test(schedules, immediate_reuse_is_caught_by_the_same_schedules, 0, 5);
  tcase_add_loop_test(schedules, immediate_reuse_unmaps_nothing_under_a_kernel, 0, seed_count);
  tcase_add_loop_test(schedules, block_freed_at_once_keeps_its_slab_mapped, 0, 2);
  tcase_add_loop_test(schedules, threads_never_get_memory_early, 0, 16);
  tcase_add_loop_test(waiting, nobody_waits_while_memory_is_left, 0, size_count);
  tcase_add_test(waiting, memory_comes_back_without_waiting_when_kernels_have_ended);
  tcase_add_loop_test(waiting, allocation_waits_when_no_memory_is_left, 0, 2);
  tcase_add_loop_test(waiting, allocation_waits_for_what_another_pool_can_give_back, 0, 2);
  tcase_add_loop_test(waiting, fences_are_far_fewer_than_frees, 0, 2);
  tcase_add_loop_test(waiting, what_has_room_is_served_beside_kernels, 0, trade_size_count * trade_way_count);
  tcase_add_loop_test(streams, same_stream_takes_memory_at_once, 0, size_count);
  tcase_add_loop_test(streams, small_holes_serve_before_large_ones_are_cut, 3, size_count - 1);
  tcase_add_loop_test(streams, training_takes_little_more_than_it_uses, 0, behind_count);
  tcase_add_loop_test(streams, two_names_of_the_legacy_stream_are_one_stream, 0, size_count);
  tcase_add_loop_test(streams, other_streams_do_not_take_it, 0, 2 * size_count);
  tcase_add_loop_test(streams, stream_that_gets_the_handle_of_a_destroyed_one_is_another, 0, size_count);
  tcase_add_loop_test(streams, default_streams_of_two_threads_are_two_streams, 0, size_count);
  tcase_add_loop_test(contexts, default_streams_of_two_contexts_are_two_streams, 0, other_count);
  tcase_add_loop_test(contexts, memory_freed_in_another_context_comes_back_when_its_work_is_done, 0, 2);
  tcase_add_loop_test(contexts, allocation_waits_for_the_other_context_where_no_memory_is_left, 0, 2);
  tcase_add_loop_test(contexts, memory_that_a_peer_uses_comes_back_when_its_work_is_done, 0, 4);
  tcase_add_loop_test(contexts, peer_is_found_again_after_its_context_was_reset, 0, 4);
  tcase_add_loop_test(contexts, device_without_access_is_not_waited_for, 0, 2);
  tcase_add_test(contexts, work_of_a_context_that_ended_is_waited_for_no_more);
  tcase_add_loop_test(contexts, work_of_a_context_after_its_reset_is_waited_for, 0, size_count);
  tcase_add_loop_test(contexts, captures_in_the_other_context_survive, 0, 2 * mode_count);
  tcase_add_loop_test(contexts, contexts_that_use_each_others_memory_get_none_early, 0, seed_count);
  tcase_add_loop_test(captures, memory_freed_in_a_capture_waits_for_its_end, 0, mode_count);
  tcase_add_loop_test(captures, streams_of_one_capture_are_several_streams, 0, size_count);
  tcase_add_loop_test(captures, bracketed_captures_survive_traffic_in_other_threads, 0, mode_count);
  tcase_add_loop_test(captures, captured_stream_is_noticed_without_brackets, 0, mode_count);
  tcase_add_loop_test(captures, stream_that_was_noticed_may_go_after_a_trim, 0, 4);
  tcase_add_loop_test(captures, stream_of_a_bracketed_capture_is_left_alone, 0, mode_count);
  tcase_add_test(captures, capture_end_without_a_begin_is_invalid);
  tcase_add_loop_test(ends, reset_takes_pending_fences_along, 0, 2);
  tcase_add_loop_test(ends, forked_child_says_so_with_fences_pending, 0, 2);
  return run_suite(suite);
}
