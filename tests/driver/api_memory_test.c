/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How much memory a pool holds beside what its program needs: in loops, after an impossible request, when it has been
 * calm for a while, and under a limit.  The tests use the fake driver, whose GPU is idle unless a test says otherwise.
 */
#include <pthread.h>
#include <stdatomic.h>

#include <stddef.h>

#include "api_util.h"

/* What a loop with one live block of this size may leave behind. */
static size_t spare_of(size_t size) { return 4 * size > 256 * MIB ? 4 * size : 256 * MIB; }

static void pairs(size_t size, unsigned count) {
  for (unsigned i = 0; i < count; i++)
    OK(MAM_CudaFree(block(size)));
}

static const size_t pair_sizes[] = {100 * KIB, MIB, 10 * MIB, 16 * MIB, 100 * MIB, GIB, 8 * GIB};
enum { PAIR_SIZES = sizeof pair_sizes / sizeof pair_sizes[0] };

/* ---- Loops ---- */

START_TEST(loop_of_pairs_holds_four_blocks_or_256_mib) {
  size_t size = pair_sizes[_i % PAIR_SIZES];
  setenv("MAM_SOURCE", _i < PAIR_SIZES ? "vmm" : "chunks", 1);
  fake_set_capacity(256 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  pairs(size, 20000);
  ck_assert_uint_le(info_of(NULL).reserved_bytes, spare_of(size));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* All the blocks of a size that a thread may keep share a fence. */
START_TEST(fence_is_shared_by_what_a_loop_may_hold) {
  size_t size = pair_sizes[_i % PAIR_SIZES];
  setenv("MAM_SOURCE", _i < PAIR_SIZES ? "vmm" : "chunks", 1);
  fake_set_capacity(256 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  pairs(size, 20000);
  uint64_t before = info_of(NULL).fence_count;
  pairs(size, 10000);
  uint64_t shared = 10000 / (info_of(NULL).fence_count - before);
  size_t blocks = spare_of(size) / size;
  ck_assert_uint_ge(4 * shared, 3 * (blocks < 256 ? blocks : 256)); /* a shelf has 256 at most; chunks leave a rest */
}
END_TEST

/* The driver has no fences, so what is freed passes only by waits for the GPU.  One block is live at a time. */
START_TEST(small_pairs_without_fences_hold_little) {
  static const size_t sizes[] = {600, 3000, 20000, 5000};
  enum { pairs_each = 20000 };
  use_driver_without_fences();
  use_primary(0);
  OK(MAM_Create_auto());
  for (int i = 0; i < 4; i++)
    pairs(sizes[i], pairs_each);
  for (int i = 0; i < 4 * pairs_each; i++)
    pairs(sizes[i % 4], 1);
  ck_assert_uint_le(info_of(NULL).reserved_bytes, 32 * MIB);
  ck_assert_uint_le(info_of(NULL).synchronize_count, 8 * pairs_each / 20);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(small_blocks_without_fences_wait_up_to_the_limit) {
  MAM_PoolOptions options = options_with(0);
  options.source = MAM_SOURCE_VMM;
  options.waiting_limit_bytes = 16 * MIB;
  use_driver_without_fences();
  use_primary(0);
  MAM_Pool pool = pool_with(options);
  for (int i = 0; i < 100000; i++) {
    OK(MAM_CudaFree(block_of(pool, 3000)));
    ck_assert(i % 1000 != 0 || info_of(pool).waiting_bytes <= 20 * MIB);
  }
  ck_assert_uint_le(info_of(pool).reserved_bytes, 24 * MIB);
  ck_assert_uint_gt(info_of(pool).synchronize_count, 10);
  OK(MAM_PoolDestroy(pool));
}
END_TEST

/* During a capture nothing waits, so the pool grows. */
START_TEST(small_pairs_in_a_capture_wait_for_nothing) {
  use_driver_without_fences();
  use_primary(0);
  OK(MAM_Create_auto());
  pairs(3000, 10);
  void *stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
  OK(MAM_CaptureBegin());
  ck_assert(fake_stream_capture_begin(stream, 0));
  unsigned before = fake_waits();
  pairs(3000, 20000);
  ck_assert(fake_stream_capture_end(stream));
  OK(MAM_CaptureEnd());
  ck_assert_uint_eq(fake_waits(), before);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
  OK(MAM_Destroy());
}
END_TEST

/* A loop has one live block at a time, and its sizes alternate. */
START_TEST(loop_over_many_sizes_holds_no_more) {
  fake_set_capacity(256 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  for (unsigned i = 0; i < 5000; i++)
    for (size_t size = GIB; size >= 64 * MIB; size /= 2)
      pairs(size + (i % 3) * 5 * MIB, 1);
  ck_assert_uint_le(info_of(NULL).reserved_bytes, 2 * spare_of(GIB));
}
END_TEST

/* One live block at a time, each larger than all before: no chunk of before has room for it. */
START_TEST(loop_of_rising_sizes_holds_four_blocks) {
  enum { STEPS = 100 };
  size_t step = _i < 2 ? 64 * MIB : 16 * MIB, most = 0;
  setenv("MAM_SOURCE", _i % 2 == 0 ? "vmm" : "chunks", 1);
  fake_set_capacity(256 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  for (unsigned i = 1; i <= STEPS; i++) {
    pairs(i * step, 1);
    size_t held = info_of(NULL).reserved_bytes;
    ck_assert_uint_le(held, spare_of(i * step));
    most = held > most ? held : most;
  }
  ck_assert_uint_ge(most, STEPS * step);
}
END_TEST

/* A chunk that goes back is waited for by the driver. */
START_TEST(growth_beside_a_running_kernel_gives_nothing_back) {
  setenv("MAM_SOURCE", "chunks", 1);
  fake_set_capacity(256 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  fake_submit(fake_current());
  for (size_t i = 1; i <= 30; i++)
    pairs(i * 64 * MIB, 1);
  ck_assert_uint_eq(fake_waits(), 0);
}
END_TEST

/* ---- Growth from cold ---- */

static uint64_t random_next(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return *state >> 33;
}

/* A size from least to most, where all powers of two are equally likely. */
static size_t random_size(uint64_t *state, size_t least, size_t most) {
  size_t low = least << random_next(state) % (64 - (unsigned)__builtin_clzl(most / least));
  size_t size = low + random_next(state) % low;
  return size < most ? size : most;
}

/* Pieces that were mapped, given back or moved, which is a cuMemUnmap and a cuMemMap. */
static unsigned piece_calls(void) {
  return fake_calls("cuMemMap") + fake_calls("cuMemUnmap") - fake_calls("cuMemRetainAllocationHandle");
}

/* Random slots, each allocated or freed.  calls: of cuMemCreate in all; in_one: pieces in one call of the library;
 * share: the memory held, in percent of the peak of live bytes. */
static const struct cold {
  size_t slots, least, most;
  unsigned calls, in_one, share;
} colds[] = {
    {4096, 256, 64 * MIB, 500, 6, 120},        /* 10 GiB */
    {300, 100 * KIB, 100 * MIB, 150, 12, 140}, /* 3 GiB */
    {60, MIB, 2 * GIB, 200, 12, 135},          /* 17 GiB */
    {2700, 256, MIB, 170, 3, 130},             /* 200 MiB */
};

START_TEST(growth_from_cold_takes_few_mappings) {
  const struct cold *cold = &colds[_i];
  static char *blocks[4096];
  static size_t sizes[4096];
  size_t live = 0, most_live = 0;
  uint64_t state = 7;
  fake_set_capacity(64 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  for (unsigned i = 0; i < 10000; i++) {
    size_t slot = random_next(&state) % cold->slots;
    unsigned before = piece_calls();
    if (blocks[slot] != NULL) {
      OK(MAM_CudaFree(blocks[slot]));
      live -= sizes[slot];
      blocks[slot] = NULL;
    } else {
      live += sizes[slot] = random_size(&state, cold->least, cold->most);
      blocks[slot] = block(sizes[slot]);
    }
    most_live = live > most_live ? live : most_live;
    ck_assert_uint_le(piece_calls() - before, cold->in_one);
  }
  ck_assert_uint_le(fake_calls("cuMemCreate"), cold->calls);
  ck_assert_uint_le(info_of(NULL).peak_reserved_bytes, most_live / 100 * cold->share);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* Once growths are rare again, each is small, however large they were in a rush before. */
START_TEST(growth_is_small_again_after_a_rush) {
  fake_set_capacity(64 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  for (unsigned i = 0; i < 1000; i++)
    (void)block(4 * MIB);
  sleep_ms(20);
  size_t live = 4000 * MIB, held = 0;
  while (info_of(NULL).reserved_bytes != held) { /* uses up what the rush left */
    held = info_of(NULL).reserved_bytes;
    for (; live + 4 * MIB <= held; live += 4 * MIB)
      (void)block(4 * MIB);
  }
  sleep_ms(20);
  (void)block(4 * MIB);
  ck_assert_uint_le(info_of(NULL).reserved_bytes - held, 32 * MIB);
}
END_TEST

/* ---- A chunk of a fixed size ---- */

/* A block that a thread keeps is not a hole.  A request that fits that block must not cut the last large hole. */
START_TEST(freed_block_serves_a_smaller_one_before_the_large_hole_is_cut) {
  static const char tags[3];
  void *freed = NULL, *between = NULL, *smaller = NULL, *large = NULL;
  use_primary(0);
  OK(MAM_Create(320 * MIB));
  const bool tagged = _i == 1;
  OK(tagged ? MAM_CudaMallocTagged(&freed, 100 * MIB, &tags[0]) : MAM_CudaMalloc(&freed, 100 * MIB));
  OK(MAM_CudaMalloc(&between, 65 * MIB));
  OK(MAM_CudaFree(freed));
  OK(tagged ? MAM_CudaMallocTagged(&smaller, 60 * MIB, &tags[1]) : MAM_CudaMalloc(&smaller, 60 * MIB));
  ck_assert_ptr_eq(smaller, freed);
  OK(tagged ? MAM_CudaMallocTagged(&large, 155 * MIB, &tags[2]) : MAM_CudaMalloc(&large, 155 * MIB));
  assert_adds_up(NULL);
}
END_TEST

/* ---- The impossible ---- */

static _Atomic bool asked_enough;

static void *ask_for_the_impossible(void *size) {
  void *a;
  fake_make_current(fake_primary_retain(0));
  while (!atomic_load(&asked_enough))
    ck_assert_int_eq(MAM_CudaMalloc(&a, *(size_t *)size), cudaErrorMemoryAllocation);
  return NULL;
}

/* Another thread makes the pool grow meanwhile. */
START_TEST(request_that_can_never_be_served_maps_nothing) {
  static size_t sizes[] = {SIZE_MAX / 16, 65 * GIB, SIZE_MAX, SIZE_MAX - 512};
  pthread_t thread;
  fake_set_capacity(64 * GIB);
  use_primary(0);
  OK(MAM_Create_auto());
  ck_assert_int_eq(pthread_create(&thread, NULL, ask_for_the_impossible, &sizes[_i]), 0);
  for (unsigned i = 0; i < 200; i++)
    (void)block(40 * MIB);
  atomic_store(&asked_enough, true);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  MAM_PoolInfo info = info_of(NULL);
  ck_assert_uint_eq(info.used_bytes, 200 * 40 * MIB);
  ck_assert_uint_le(info.reserved_bytes, info.used_bytes + 256 * MIB); /* for speed, as in a crowd */
}
END_TEST

START_TEST(request_that_can_never_be_served_asks_the_driver_nothing) {
  void *a;
  use_primary(0);
  OK(MAM_Create_auto());
  (void)block(MIB);
  MAM_PoolInfo before = info_of(NULL);
  unsigned calls = fake_calls("cuMemCreate") + fake_calls("cuCtxSynchronize") + fake_calls("cuMemUnmap");
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&a, 5 * GIB));
  ck_assert_uint_eq(fake_calls("cuMemCreate") + fake_calls("cuCtxSynchronize") + fake_calls("cuMemUnmap"), calls);
  assert_error_says("no room for 5368709120 bytes");
  ck_assert_uint_eq(info_of(NULL).failure_count, before.failure_count + 1);
  assert_unchanged(NULL, before);
}
END_TEST

/* ---- When it is calm ---- */

/* What the pool holds, once nothing has used it until that is at most so much, or for some time. */
static size_t held_after_a_while(size_t most) {
  for (unsigned i = 0; i < 100 && info_of(NULL).reserved_bytes > most; i++)
    sleep_ms(50);
  return info_of(NULL).reserved_bytes;
}

static void use_calm_pool(const char *source) {
  setenv("MAM_SOURCE", source, 1);
  setenv("MAM_LINGER_MS", "100", 1);
  fake_set_capacity(64 * GIB);
  if (strcmp(source, "host") != 0)
    use_primary(0);
  OK(MAM_Create_auto());
}

/* Only a wait tells such a driver's GPU has finished.  Blocks of slabs and others, by each rule. */
static const char *const trim_sources[] = {"vmm", "chunks"};
static const char *const trim_rules[] = {"fenced", "stream", "immediate"};

static void use_full_pool_without_fences(const char *source, const char *rule) {
  static char *small[4000];
  char *large[8];
  setenv("MAM_REUSE", rule, 1);
  setenv("MAM_LINGER_MS", "100", 1);
  use_driver_without_fences();
  use_primary(0);
  OK(MAM_CreateWith(0, source, NULL));
  (void)block(1000);
  for (int i = 0; i < 4000; i++)
    small[i] = block(3000);
  for (int i = 0; i < 8; i++)
    large[i] = block(200 * MIB);
  for (int i = 0; i < 8; i++)
    OK(MAM_CudaFree(large[i]));
  for (int i = 0; i < 4000; i++)
    OK(MAM_CudaFree(small[i]));
}

START_TEST(trim_without_fences_gives_back_what_was_freed) {
  use_full_pool_without_fences(trim_sources[_i % 2], trim_rules[_i / 2]);
  OK(MAM_Trim(0));
  ck_assert_uint_le(info_of(NULL).reserved_bytes, 72 * MIB);
  ck_assert_uint_eq(info_of(NULL).waiting_bytes, 0);
  uint64_t waits = info_of(NULL).synchronize_count;
  OK(MAM_Trim(0)); /* nothing waits */
  ck_assert_uint_eq(info_of(NULL).synchronize_count, waits);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(calm_pool_and_captures_wait_for_nothing_without_fences) {
  void *stream = NULL;
  use_full_pool_without_fences(trim_sources[_i % 2], "fenced");
  unsigned waits = fake_waits();
  uint64_t synchronizes = info_of(NULL).synchronize_count;
  fake_submit(fake_current());
  for (int i = 0; i < 5; i++) {
    OK(MAM_CudaFree(block(1000)));
    sleep_ms(100);
  }
  if (_i % 2 == 0) { /* chunks go by cuMemFree, which a capture forbids */
    stream = fake_stream_create(FAKE_STREAM_NON_BLOCKING);
    OK(MAM_CaptureBegin());
    ck_assert(fake_stream_capture_begin(stream, 0));
    OK(MAM_Trim(0));
    ck_assert(fake_stream_capture_end(stream));
    OK(MAM_CaptureEnd());
  }
  ck_assert_uint_eq(fake_waits(), waits);
  ck_assert_uint_eq(info_of(NULL).synchronize_count, synchronizes);
  ck_assert_uint_eq(fake_captures_invalidated(), 0);
  OK(MAM_Destroy());
}
END_TEST

static const char *const calm_sources[] = {"vmm", "chunks", "host"};

START_TEST(calm_pool_gives_back_what_a_loop_left) {
  use_calm_pool(calm_sources[_i]);
  char *live = block(MIB);
  pairs(512 * MIB, 1000);
  ck_assert_uint_gt(info_of(NULL).reserved_bytes, 512 * MIB);
  ck_assert_uint_le(held_after_a_while(128 * MIB), 128 * MIB);
  ck_assert_ptr_ne(live, block(512 * MIB)); /* the pool still serves */
  OK(MAM_Destroy());
}
END_TEST

START_TEST(calm_pool_gives_back_what_was_freed) {
  char *blocks[100];
  use_calm_pool(calm_sources[_i]);
  for (unsigned i = 0; i < 100; i++)
    blocks[i] = block(30 * MIB);
  for (unsigned i = 0; i < 98; i++)
    OK(MAM_CudaFree(blocks[i]));
  ck_assert_uint_le(held_after_a_while(256 * MIB), 256 * MIB);
  ck_assert_uint_eq(info_of(NULL).used_bytes, 60 * MIB);
  OK(MAM_Destroy());
}
END_TEST

/* A pool has the struct of one that ended while the reaper watched it.  The reaper does not confuse them. */
START_TEST(calm_pool_made_anew_gives_back) {
  use_calm_pool(calm_sources[_i]);
  OK(MAM_CudaFree(block(GIB)));
  OK(MAM_Destroy());
  OK(MAM_Create_auto());
  OK(MAM_CudaFree(block(GIB)));
  ck_assert_uint_gt(info_of(NULL).reserved_bytes, 512 * MIB);
  ck_assert_uint_le(held_after_a_while(256 * MIB), 256 * MIB);
  OK(MAM_Destroy());
}
END_TEST

/* If the reaper should not look at the second pool, it takes nothing from it. */
START_TEST(pool_with_chunks_after_a_watched_one_keeps_them) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  char *blocks[4];
  options.source = MAM_SOURCE_HOST;
  options.chunk_bytes = 64 * MIB;
  options.limit_bytes = GIB;
  use_calm_pool("host");
  OK(MAM_CudaFree(block(GIB)));
  OK(MAM_Destroy());
  MAM_Pool pool = pool_with(options);
  for (unsigned i = 0; i < 4; i++)
    blocks[i] = block_of(pool, 48 * MIB);
  size_t reserved_bytes = info_of(pool).reserved_bytes;
  for (unsigned i = 0; i < 4; i++)
    OK(MAM_CudaFree(blocks[i]));
  sleep_ms(600);
  ck_assert_uint_eq(info_of(pool).reserved_bytes, reserved_bytes);
  OK(MAM_PoolDestroy(pool));
}
END_TEST

START_TEST(calm_pool_of_the_program_s_own_gives_back) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_VMM;
  options.limit_bytes = 32 * GIB;
  setenv("MAM_LINGER_MS", "100", 1);
  fake_set_capacity(64 * GIB);
  use_primary(0);
  MAM_Pool pool = pool_with(options);
  char *a = block_of(pool, GIB);
  OK(MAM_CudaFree(a));
  for (unsigned i = 0; i < 100 && info_of(pool).reserved_bytes > 64 * MIB; i++)
    sleep_ms(50);
  ck_assert_uint_le(info_of(pool).reserved_bytes, 64 * MIB);
  OK(MAM_PoolDestroy(pool));
  assert_nothing_held();
}
END_TEST

/* The reaper does not wait for a kernel, and takes no memory that the kernel uses. */
/* Two pools like the one above, one of which keeps its memory; both have freed 80 MiB. */
static MAM_Pool keeping;

static MAM_Pool use_keeping_pool(MAM_Source source) {
  MAM_PoolOptions options = options_with(8 * MIB);
  setenv("MAM_LINGER_MS", "100", 1);
  fake_set_capacity(GIB);
  use_primary(0);
  options.source = source;
  options.limit_bytes = 256 * MIB;
  MAM_Pool other = pool_with(options);
  options.keeps_memory = 1;
  keeping = pool_with(options);
  MAM_Pool pools[] = {other, keeping};
  for (int i = 0; i < 2; i++) {
    char *blocks[] = {block_of(pools[i], 40 * MIB), block_of(pools[i], 40 * MIB)};
    OK(MAM_CudaFree(blocks[0]));
    OK(MAM_CudaFree(blocks[1]));
    ck_assert_uint_ge(info_of(pools[i]).reserved_bytes, 80 * MIB);
  }
  return other;
}

static const MAM_Source keeping_sources[] = {MAM_SOURCE_VMM, MAM_SOURCE_DEVICE};

START_TEST(keeping_pool_keeps_its_memory_when_calm) {
  MAM_Pool other = use_keeping_pool(MAM_SOURCE_VMM);
  for (int i = 0; i < 100 && info_of(other).reserved_bytes > 40 * MIB; i++)
    sleep_ms(50);
  ck_assert_uint_le(info_of(other).reserved_bytes, 40 * MIB);
  sleep_ms(500); /* several looks more */
  ck_assert_uint_ge(info_of(keeping).reserved_bytes, 80 * MIB);
}
END_TEST

START_TEST(keeping_pool_keeps_its_memory_in_a_trim) {
  MAM_Pool other = use_keeping_pool(keeping_sources[_i]);
  OK(MAM_PoolTrim(other, 0));
  OK(MAM_PoolTrim(keeping, 0));
  ck_assert_uint_le(info_of(other).reserved_bytes, 8 * MIB);
  ck_assert_uint_ge(info_of(keeping).reserved_bytes, 80 * MIB);
  (void)block_of(keeping, 40 * MIB); /* and hands it out again */
  ck_assert_uint_lt(info_of(keeping).reserved_bytes, 120 * MIB);
}
END_TEST

START_TEST(keeping_pool_keeps_its_memory_when_others_need_it) {
  void *pointer = NULL;
  MAM_Pool other = use_keeping_pool(keeping_sources[_i]);
  MAM_PoolOptions options = options_with(8 * MIB);
  options.source = keeping_sources[_i];
  options.limit_bytes = GIB;
  MAM_Pool needy = pool_with(options);
  fake_set_capacity(fake_live_bytes() + 4 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_PoolMalloc(needy, &pointer, 160 * MIB));
  ck_assert_uint_ge(info_of(keeping).reserved_bytes, 80 * MIB);
  ck_assert_uint_le(info_of(other).reserved_bytes, 8 * MIB);
  OK(MAM_PoolDestroy(keeping));
  (void)block_of(needy, 120 * MIB);
}
END_TEST

/* Memory is needed at other addresses of the same pool: a pool may move its pieces, but not from under a graph. */
START_TEST(keeping_pool_leaves_its_memory_where_it_is) {
  void *pointer = NULL;
  MAM_Pool other = use_keeping_pool(MAM_SOURCE_VMM), pools[] = {other, keeping};
  cudaError_t expected[] = {cudaSuccess, cudaErrorMemoryAllocation};
  for (int i = 0; i < 2; i++) {
    size_t held_bytes = info_of(pools[i]).reserved_bytes;
    char *held = block_of(pools[i], 40 * MIB);
    (void)held;
    OK(MAM_PoolMalloc(pools[i], &pointer, 40 * MIB));
    OK(MAM_CudaFree(held));
    ck_assert_uint_le(info_of(pools[i]).reserved_bytes, held_bytes + 8 * MIB);
    FAILS(expected[i], MAM_PoolMalloc(pools[i], &pointer, 210 * MIB));
  }
}
END_TEST

START_TEST(options_of_before_keeps_memory_are_taken) {
  MAM_PoolOptions options = options_with(8 * MIB);
  options.struct_size = offsetof(MAM_PoolOptions, keeps_memory);
  options.keeps_memory = 1; /* not part of it */
  options.limit_bytes = 64 * MIB;
  options.source = MAM_SOURCE_VMM;
  MAM_Pool pool = pool_with(options);
  OK(MAM_CudaFree(block_of(pool, 32 * MIB)));
  OK(MAM_PoolTrim(pool, 0));
  ck_assert_uint_lt(info_of(pool).reserved_bytes, 32 * MIB);
}
END_TEST

START_TEST(calm_pool_takes_nothing_from_a_running_kernel) {
  void *context = use_primary(0);
  use_calm_pool(calm_sources[_i]);
  char *a = block(GIB);
  const struct fake_range range = {a, GIB};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  OK(MAM_CudaFree(a));
  sleep_ms(1000);
  ck_assert_uint_ge(info_of(NULL).reserved_bytes, GIB);
  ck_assert(fake_pending(context));
  ck_assert_uint_eq(fake_waits(), 0);
  fake_finish(context);
  ck_assert_uint_le(held_after_a_while(64 * MIB), 64 * MIB);
  ck_assert_uint_eq(fake_faults(), 0);
  OK(MAM_Destroy());
}
END_TEST

/* A pool that is used keeps its memory. */
START_TEST(busy_pool_keeps_what_it_uses) {
  use_calm_pool("vmm");
  pairs(512 * MIB, 1000);
  size_t held = info_of(NULL).reserved_bytes;
  for (unsigned i = 0; i < 50; i++) {
    pairs(512 * MIB, 100);
    sleep_ms(10);
  }
  ck_assert_uint_eq(info_of(NULL).reserved_bytes, held);
  OK(MAM_Destroy());
}
END_TEST

/* ---- All of the limit ---- */

/* Nothing is live, and the last small blocks that were freed are a batch that is not full. */
START_TEST(all_of_the_limit_can_be_had_after_one_wait) {
  static const char *const sources[] = {"vmm", "chunks", "device"};
  static char *small[100];
  if (_i % 2 == 1)
    use_driver_without_fences();
  void *context = use_primary(0);
  OK(MAM_CreateWith(0, sources[_i / 2], "600M"));
  char *large = block(300 * MIB);
  for (int i = 0; i < 100; i++)
    small[i] = block(3000);
  fake_submit(context);
  OK(MAM_CudaFree(large));
  for (int i = 0; i < 100; i++)
    OK(MAM_CudaFree(small[i]));
  uint64_t before = info_of(NULL).synchronize_count;
  ck_assert(fake_holds(block(600 * MIB), 600 * MIB));
  ck_assert_uint_le(info_of(NULL).synchronize_count - before, 1);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

/* ---- Limits and peaks ---- */

static const char *const limited_sources[] = {"vmm", "chunks", "device", "auto", "managed"};

START_TEST(default_pool_holds_no_more_than_the_limit) {
  static const char *const limits[] = {"1g", "25%"};
  setenv("MAM_SOURCE", limited_sources[_i % 5], 1);
  setenv("MAM_LIMIT", limits[_i / 5], 1);
  void *a;
  use_primary(0); /* of 4 GiB */
  OK(MAM_Create_auto());
  for (unsigned i = 0; i < 10; i++)
    (void)block(100 * MIB);
  FAILS(cudaErrorMemoryAllocation, MAM_CudaMalloc(&a, 100 * MIB));
  ck_assert_uint_le(fake_live_bytes(), GIB);
  ck_assert_uint_eq(info_of(NULL).limit_bytes, GIB);
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(size_beyond_the_limit_is_refused) {
  setenv("MAM_LIMIT", "10%", 1);
  use_primary(0);
  FAILS(cudaErrorMemoryAllocation, MAM_Create(GIB));
  assert_error_says("MAM_LIMIT");
  ck_assert_uint_eq(fake_live_bytes(), 0);
  OK(MAM_Create(256 * MIB));
  OK(MAM_Destroy());
  assert_nothing_held();
}
END_TEST

START_TEST(peaks_begin_anew) {
  use_primary(0);
  FAILS(cudaErrorInvalidResourceHandle, MAM_PoolResetPeaks(NULL));
  OK(MAM_Create_auto());
  ck_assert_uint_eq(info_of(NULL).peak_reserved_bytes, 0);
  char *large = block(100 * MIB), *small = block(10 * MIB);
  size_t reserved_bytes = info_of(NULL).reserved_bytes;
  OK(MAM_CudaFree(large));
  OK(MAM_Trim(0));
  ck_assert_uint_eq(info_of(NULL).peak_reserved_bytes, reserved_bytes);
  ck_assert_uint_eq(info_of(NULL).peak_used_bytes, 110 * MIB);
  OK(MAM_PoolResetPeaks(NULL));
  ck_assert_uint_eq(info_of(NULL).peak_reserved_bytes, info_of(NULL).reserved_bytes);
  ck_assert_uint_eq(info_of(NULL).peak_used_bytes, 10 * MIB);
  OK(MAM_CudaFree(small));
  OK(MAM_Destroy());
}
END_TEST

/* The default pool has this rule by MAM_REUSE, and other pools by an option. */
/* One step of random traffic in the default pool, by any kind of call; used_bytes is asked for after it. */
enum { PEAK_SLOTS = 512 };
static void *peak_slots[PEAK_SLOTS];

static size_t peak_step(unsigned *seed) {
  void **slot = &peak_slots[(unsigned)rand_r(seed) % PEAK_SLOTS];
  unsigned kind = (unsigned)rand_r(seed) % 4;
  size_t size = (size_t)1 << rand_r(seed) % 23;
  size += (size_t)rand_r(seed) % size;
  if (*slot != NULL) {
    OK(kind == 0   ? MAM_CudaFreeAsync(*slot, cudaStreamLegacy)
       : kind == 1 ? MAM_CudaFreeReuse(*slot, MAM_REUSE_IMMEDIATE)
                   : MAM_CudaFree(*slot));
    *slot = NULL;
  } else {
    OK(kind == 0   ? MAM_CudaMallocAsync(slot, size, cudaStreamLegacy)
       : kind == 1 ? MAM_CudaMallocTagged(slot, size, peak_slots)
                   : MAM_CudaMalloc(slot, size));
  }
  return info_of(NULL).used_bytes;
}

static void peak_slots_free(void) {
  for (unsigned i = 0; i < PEAK_SLOTS; i++) {
    OK(MAM_CudaFree(peak_slots[i]));
    peak_slots[i] = NULL;
  }
}

/* Whole slabs, and what the thread keeps, count nothing. */
START_TEST(peak_of_one_thread_is_exact) {
  unsigned seed = (unsigned)_i;
  size_t most = 0;
  use_primary(0);
  OK(MAM_Create_auto());
  OK(MAM_CudaFree(block(100)));
  ck_assert_uint_eq(info_of(NULL).peak_used_bytes, 512);
  for (size_t size = MIB; size <= 64 * MIB; size += MIB)
    OK(MAM_CudaFree(block(size)));
  ck_assert_uint_eq(info_of(NULL).peak_used_bytes, 64 * MIB);
  OK(MAM_PoolResetPeaks(NULL));
  ck_assert_uint_eq(info_of(NULL).peak_used_bytes, 0);
  for (unsigned i = 0; i < 20000; i++) {
    size_t used = peak_step(&seed);
    most = used > most ? used : most;
    ck_assert_uint_eq(info_of(NULL).peak_used_bytes, most);
    if (i % 5000 == 4999) {
      OK(MAM_PoolResetPeaks(NULL));
      most = used;
    }
  }
  peak_slots_free();
  ck_assert_uint_eq(info_of(NULL).used_bytes, 0);
  ck_assert_uint_eq(info_of(NULL).peak_used_bytes, most);
  OK(MAM_Destroy());
}
END_TEST

/* Threads take turns, so that the most is known.  Some end, with blocks that others free. */
enum { PEAK_THREADS = 4, PEAK_TURNS = 4000 };
static pthread_mutex_t peak_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t peak_turned = PTHREAD_COND_INITIALIZER;
static unsigned peak_turn, peak_seed;
static size_t peak_most;

static void *peak_thread(void *number) {
  use_primary(0);
  for (unsigned i = 0; i < PEAK_TURNS / PEAK_THREADS; i++) {
    pthread_mutex_lock(&peak_lock);
    while (peak_turn % PEAK_THREADS != (uintptr_t)number)
      pthread_cond_wait(&peak_turned, &peak_lock);
    size_t used = peak_step(&peak_seed);
    peak_most = used > peak_most ? used : peak_most;
    peak_turn++;
    pthread_cond_broadcast(&peak_turned);
    pthread_mutex_unlock(&peak_lock);
  }
  return NULL;
}

START_TEST(peak_of_several_threads_is_close) {
  peak_seed = (unsigned)_i;
  use_primary(0);
  OK(MAM_Create_auto());
  for (unsigned round = 0; round < 3; round++) {
    pthread_t threads[PEAK_THREADS];
    for (uintptr_t i = 0; i < PEAK_THREADS; i++)
      ck_assert_int_eq(pthread_create(&threads[i], NULL, peak_thread, (void *)i), 0);
    for (unsigned i = 0; i < PEAK_THREADS; i++)
      pthread_join(threads[i], NULL);
    size_t peak = info_of(NULL).peak_used_bytes, apart = peak > peak_most ? peak - peak_most : peak_most - peak;
    ck_assert_uint_gt(peak_most, 128 * MIB);
    ck_assert_uint_le(apart, 2 * PEAK_THREADS * MIB);
    peak_slots_free();
    ck_assert_uint_eq(info_of(NULL).used_bytes, 0);
    ck_assert_uint_ge(info_of(NULL).peak_used_bytes, peak);
    OK(MAM_PoolResetPeaks(NULL));
    ck_assert_uint_eq(info_of(NULL).peak_used_bytes, 0);
    peak_most = 0;
  }
  OK(MAM_Destroy());
}
END_TEST

START_TEST(stream_rule_of_the_default_pool_serves_at_once) {
  setenv("MAM_REUSE", "stream", 1);
  void *context = use_primary(0);
  OK(MAM_Create_auto());
  char *a = block(MIB);
  const struct fake_range range = {a, MIB};
  ck_assert(fake_launch(FAKE_STREAM_LEGACY, &range, 1));
  OK(MAM_CudaFreeAsync(a, NULL));
  void *b;
  OK(MAM_CudaMallocAsync(&b, MIB, NULL));
  ck_assert_ptr_eq(a, b);
  fake_finish(context);
  OK(MAM_Destroy());
}
END_TEST

/* The driver answers 400, which would mean here that a pool is gone. */
START_TEST(handle_that_is_no_stream_is_an_unknown_error) {
  static const size_t sizes[] = {512, 64 << 10, 3 << 20};
  cudaStream_t stream = (cudaStream_t)0x123;
  void *pointer = &pointer;
  char *a = block(sizes[_i]);
  MAM_PoolInfo before = info_of(NULL);
  FAILS(cudaErrorUnknown, MAM_CudaFreeAsync(a, stream));
  assert_error_says("(400)");
  FAILS(cudaErrorUnknown, MAM_CudaMallocAsync(&pointer, sizes[_i], stream));
  assert_error_says("(400)");
  ck_assert_ptr_null(pointer);
  assert_unchanged(NULL, before);
  pointer = &pointer;
  OK(MAM_CudaMallocAsync(&pointer, 0, stream));
  ck_assert_ptr_null(pointer);
  OK(MAM_CudaFreeAsync(NULL, stream));
  OK(MAM_CudaFree(a));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("memory");
  TCase *loops = add_case(suite, "loops"), *growth = add_case(suite, "growth from cold"),
        *chunk = add_case(suite, "a chunk of a fixed size"), *impossible = add_case(suite, "the impossible"),
        *calm = add_case(suite, "when it is calm"), *limits = add_case(suite, "limits and peaks");
  tcase_add_loop_test(loops, loop_of_pairs_holds_four_blocks_or_256_mib, 0, 2 * PAIR_SIZES);
  tcase_add_loop_test(loops, fence_is_shared_by_what_a_loop_may_hold, 0, 2 * PAIR_SIZES);
  tcase_add_test(loops, small_pairs_without_fences_hold_little);
  tcase_add_test(loops, small_blocks_without_fences_wait_up_to_the_limit);
  tcase_add_test(loops, small_pairs_in_a_capture_wait_for_nothing);
  tcase_add_test(loops, loop_over_many_sizes_holds_no_more);
  tcase_add_loop_test(loops, loop_of_rising_sizes_holds_four_blocks, 0, 4);
  tcase_add_test(loops, growth_beside_a_running_kernel_gives_nothing_back);
  tcase_add_loop_test(growth, growth_from_cold_takes_few_mappings, 0, sizeof colds / sizeof colds[0]);
  tcase_add_test(growth, growth_is_small_again_after_a_rush);
  tcase_add_loop_test(chunk, freed_block_serves_a_smaller_one_before_the_large_hole_is_cut, 0, 2);
  tcase_add_loop_test(impossible, request_that_can_never_be_served_maps_nothing, 0, 4);
  tcase_add_test(impossible, request_that_can_never_be_served_asks_the_driver_nothing);
  tcase_add_loop_test(calm, calm_pool_gives_back_what_a_loop_left, 0, 3);
  tcase_add_loop_test(calm, calm_pool_gives_back_what_was_freed, 0, 3);
  tcase_add_loop_test(calm, calm_pool_made_anew_gives_back, 0, 3);
  tcase_add_loop_test(calm, trim_without_fences_gives_back_what_was_freed, 0, 6);
  tcase_add_loop_test(calm, calm_pool_and_captures_wait_for_nothing_without_fences, 0, 2);
  tcase_add_test(calm, pool_with_chunks_after_a_watched_one_keeps_them);
  tcase_add_test(calm, calm_pool_of_the_program_s_own_gives_back);
  tcase_add_test(calm, keeping_pool_keeps_its_memory_when_calm);
  tcase_add_loop_test(calm, keeping_pool_keeps_its_memory_in_a_trim, 0, 2);
  tcase_add_loop_test(calm, keeping_pool_keeps_its_memory_when_others_need_it, 0, 2);
  tcase_add_test(calm, keeping_pool_leaves_its_memory_where_it_is);
  tcase_add_test(calm, options_of_before_keeps_memory_are_taken);
  tcase_add_loop_test(calm, calm_pool_takes_nothing_from_a_running_kernel, 0, 2);
  tcase_add_test(calm, busy_pool_keeps_what_it_uses);
  tcase_add_loop_test(limits, all_of_the_limit_can_be_had_after_one_wait, 0, 6);
  tcase_add_loop_test(limits, default_pool_holds_no_more_than_the_limit, 0, 10);
  tcase_add_test(limits, size_beyond_the_limit_is_refused);
  tcase_add_test(limits, peaks_begin_anew);
  tcase_add_loop_test(limits, peak_of_one_thread_is_exact, 0, 4);
  tcase_add_loop_test(limits, peak_of_several_threads_is_close, 0, 4);
  tcase_add_loop_test(limits, handle_that_is_no_stream_is_an_unknown_error, 0, 3);
  tcase_add_test(limits, stream_rule_of_the_default_pool_serves_at_once);
  return run_suite(suite);
}
