/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fast path as a program sees it, on plain host memory: what is refused, what comes back, and what is kept.  A test
 * that runs for a time takes MAM_TEST_MS milliseconds, 300 by default.
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/client.h"
#include "front/front_check.h"
#include "mam.h"
#include "support/busy_fork.h"
#include "support/run_suite.h"
#include "support/sanitized.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

enum { THREADS = 4, SMALL = 1000, LARGE = 300000 };

/* ---- Host memory ---- */

#if !SANITIZED
/* Whether the calling thread gets no memory by calloc, as for a front. */
static __thread bool no_host_memory;

void *__libc_calloc(size_t count, size_t bytes);
void *calloc(size_t count, size_t bytes) { return no_host_memory ? NULL : __libc_calloc(count, bytes); }
#endif

/* ---- Faults of other threads are counted: Check's own assertions are for the main thread ---- */

static _Atomic unsigned faults;
/* Without a driver, a handle is its stream's name. */
#define stream_a ((cudaStream_t)(uintptr_t)4096)
#define stream_b ((cudaStream_t)(uintptr_t)8192)

static void expect(bool holds, int line, const char *what) {
  if (holds)
    return;
  faults++;
  (void)fprintf(stderr, "line %d: %s (%s)\n", line, what, MAM_LastError());
}
#define EXPECT(condition) expect(condition, __LINE__, #condition)

static int64_t now_ms(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static _Atomic int64_t end_ms;

static bool time_is_up(void) { return now_ms() >= end_ms; }

static void start_clock(void) {
  const char *text = getenv("MAM_TEST_MS");
  end_ms = now_ms() + (text != NULL ? atoi(text) : 300);
}

/* xorshift64*: one state a thread. */
static size_t random_below(uint64_t *state, size_t bound) {
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return (size_t)((*state * UINT64_C(0x2545F4914F6CDD1D)) >> 32) % bound;
}

static void in_thread(void *(*body)(void *), void *argument) {
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, body, argument), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_uint_eq(faults, 0);
}

static void in_threads(void *(*body)(void *), int count) {
  pthread_t threads[THREADS];
  for (int i = 0; i < count; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)(i + 1)), 0);
  for (int i = 0; i < count; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(faults, 0);
}

/* ---- Shorthands ---- */

static char *get(size_t size) {
  void *block = NULL;
  EXPECT(MAM_CudaMalloc(&block, size) == cudaSuccess);
  return block;
}

static char *get_tagged(size_t size, const void *tag) {
  void *block = NULL;
  EXPECT(MAM_CudaMallocTagged(&block, size, tag) == cudaSuccess);
  return block;
}

static void put(void *block) { EXPECT(MAM_CudaFree(block) == cudaSuccess); }

static MAM_PoolInfo info_now(void) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  EXPECT(MAM_PoolGetInfo(NULL, &info) == cudaSuccess);
  return info;
}

static bool all_is_free(size_t bytes) {
  void *all;
  bool served = MAM_CudaMalloc(&all, bytes) == cudaSuccess;
  return served && MAM_CudaFree(all) == cudaSuccess;
}

static size_t pool_bytes;

/* Only a large pool has slabs from the beginning.  Its pages cost nothing until they are touched. */
static void set_up_of(size_t bytes) {
  setenv("MAM_SOURCE", "host", 1);
  pool_bytes = bytes;
  ck_assert_int_eq(MAM_Create(bytes), cudaSuccess);
}
static void set_up_small(void) { set_up_of(64 * MIB); }
static void set_up_large(void) { set_up_of(4 * GIB); }
static void tear_down(void) {
  MAM_Pool pool;
  ck_assert_uint_eq(faults, 0);
  ck_assert_int_eq(MAM_PoolDefault(&pool), cudaSuccess);
  ck_assert_ptr_null(front_check(pool, true));
  ck_assert_int_eq(MAM_Destroy(), cudaSuccess);
}

/* ---- What is no block is refused ---- */

static void *refused(void *block) {
  EXPECT(MAM_CudaFree(block) == cudaErrorInvalidValue);
  for (int rule = MAM_REUSE_FENCED; rule <= MAM_REUSE_IMMEDIATE; rule++)
    EXPECT(MAM_CudaFreeReuse(block, (MAM_Reuse)rule) == cudaErrorInvalidValue);
  return NULL;
}

static void refused_everywhere(void *block) {
  (void)refused(block);
  in_thread(refused, block);
  (void)refused(block);
}

static void *free_body(void *block) {
  put(block);
  return NULL;
}

static const size_t refused_sizes[] = {1, 512, SMALL, 32768, 32769, LARGE};

START_TEST(freed_blocks_are_refused_by_every_thread) {
  enum { KEPT = 700 }; /* more than a magazine or a shelf holds */
  static char *blocks[KEPT];
  size_t size = refused_sizes[_i];
  for (int i = 0; i < KEPT; i++)
    ck_assert_ptr_nonnull(blocks[i] = get(size + (size > 32768 && i % 2 == 0 ? (size_t)i * 512 : 0)));
  for (int i = 0; i < KEPT; i++) {
    if (i % 64 == 63)
      in_thread(free_body, blocks[i]);
    else
      put(blocks[i]);
    (void)refused(blocks[i]);
    if (i % 64 >= 62)
      refused_everywhere(blocks[i]);
  }
  for (int i = 0; i < KEPT; i++)
    (void)refused(blocks[i]);
  MAM_PoolInfo info = info_now();
  ck_assert_uint_eq(info.used_count, 0);
  ck_assert_uint_eq(info.free_call_count, KEPT);
}
END_TEST

START_TEST(pointers_that_start_no_block_are_refused) {
  size_t size = refused_sizes[_i], offsets[] = {1, 256, 511, size / 2, size - 1};
  static char foreign[4096];
  char *block = get(size);
  for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++)
    if (offsets[i] != 0)
      refused_everywhere(block + offsets[i]);
  refused_everywhere(foreign);
  refused_everywhere((void *)~(uintptr_t)511);
  refused_everywhere((void *)(uintptr_t)512);
  put(block);
  ck_assert_uint_eq(info_now().used_count, 0);
}
END_TEST

/* A slab has places at which no block has been yet.  It does not know which. */
START_TEST(a_refusal_claims_no_free_that_there_never_was) {
  char *block = get(100), *page = (char *)((uintptr_t)block & ~(uintptr_t)(POOL_SLAB_BYTES - 1)),
       *never = page + POOL_SLAB_BYTES / 2;
  never += never == block ? 512 : 0;
  (void)refused(never);
  ck_assert_ptr_nonnull(strstr(MAM_LastError(), "was freed already, or never allocated"));
  (void)refused(never + 1);
  ck_assert_ptr_nonnull(strstr(MAM_LastError(), "is not the start of a live block"));
  put(block);
}
END_TEST

START_TEST(of_small_blocks_at_most_15_bytes_too_many_are_counted) {
  for (size_t size = 1; size <= 32768; size += size < 1024 ? 1 : 257) {
    char *block = get(size);
    size_t counted = info_now().requested_bytes;
    EXPECT(counted >= size && counted <= size + 15);
    put(block);
  }
}
END_TEST

static char *contested;
static pthread_barrier_t gate;
static _Atomic unsigned winners;

static void *race_body(void *number) {
  for (int i = 0; i < 500; i++) {
    if ((uintptr_t)number == 1)
      contested = get(i % 2 == 0 ? SMALL : LARGE);
    (void)pthread_barrier_wait(&gate);
    cudaError_t error = MAM_CudaFree(contested);
    EXPECT(error == cudaSuccess || error == cudaErrorInvalidValue);
    winners += error == cudaSuccess;
    (void)pthread_barrier_wait(&gate);
    EXPECT(winners == (unsigned)i + 1);
    (void)pthread_barrier_wait(&gate);
  }
  return NULL;
}

START_TEST(of_many_frees_of_one_block_one_succeeds) {
  (void)pthread_barrier_init(&gate, NULL, THREADS);
  in_threads(race_body, THREADS);
  ck_assert_uint_eq(winners, 500);
  ck_assert_uint_eq(info_now().used_count, 0);
}
END_TEST

static bool is_explained(size_t size, const char *by) {
  char *text = NULL;
  EXPECT(MAM_PoolExplain(NULL, size, &text) == cudaSuccess);
  bool found = strstr(text, by) != NULL;
  free(text);
  return found;
}

START_TEST(an_explanation_knows_that_slabs_have_free_blocks) {
  static const char kept[] = "a free block that is kept for small ones serves it";
  char *small = get(100);
  ck_assert(is_explained(100, "the largest hole serves it"));
  for (size_t bytes; (bytes = info_now().largest_free_bytes) > 0;)
    (void)get(bytes);
  ck_assert(is_explained(100, kept));
  ck_assert(!is_explained(LARGE, kept));
  put(get(100));
  put(small);
}
END_TEST

/* ---- Tags ---- */

static const char tag_a, tag_b;

START_TEST(a_tag_takes_back_up_to_twice_what_is_asked) {
  const size_t unit = MIB;
  char *filler = get(pool_bytes - 2 * unit); /* leaves no hole: a hole goes before a fence */
  char *block = get_tagged(2 * unit, &tag_a);
  static const int sizes[] = {200, 150, 100}; /* hundredths of the unit; the block has 200 */
  for (int i = 0; i < 3; i++) {
    uint64_t hits = info_now().tag_hit_count;
    put(block);
    char *again = get_tagged(unit * (size_t)sizes[i] / 100, &tag_a);
    ck_assert_ptr_eq(again, block);
    ck_assert_uint_eq(info_now().tag_hit_count, hits + 1);
  }
  put(block), put(filler);
  uint64_t hits = info_now().tag_hit_count;
  char *other = get_tagged(2 * unit, &tag_b);
  char *plain = get(2 * unit);
  char *larger = get_tagged(2 * unit + 512, &tag_a);
  ck_assert_uint_eq(info_now().tag_hit_count, hits);
  put(other), put(plain), put(larger);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

START_TEST(a_tag_does_not_take_back_more_than_twice_what_is_asked) {
  char *filler = get(pool_bytes - 2 * MIB);
  char *block = get_tagged(2 * MIB, &tag_a);
  put(block);
  uint64_t hits = info_now().tag_hit_count;
  char *half = get_tagged(MIB - 512, &tag_a);
  ck_assert_uint_eq(info_now().tag_hit_count, hits);
  put(half), put(filler);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

START_TEST(what_tags_keep_comes_back_for_a_block_of_the_whole_pool) {
  char *blocks[60];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 60; i++)
      blocks[i] = get_tagged(MIB - (size_t)i * 4096, i % 2 == 0 ? &tag_a : &tag_b);
    for (int i = 0; i < 60; i++)
      put(blocks[i]);
  }
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

/* ---- Sizes that do not come again ---- */

enum { ODD = 32, STEP = 1024 };

/* All sizes differ: the freed ones are even steps, the requested ones lie in between. */
START_TEST(a_medium_block_serves_what_is_a_little_smaller) {
  const size_t least = 192 << 10;
  char *blocks[ODD], *others[4 * ODD];
  for (size_t i = 0; i < ODD / 2; i++)
    blocks[i] = get(least + (i + 1) * STEP);
  for (size_t i = 0; i < 4 * ODD; i++)
    others[i] = get(MIB + i * STEP);
  for (size_t i = 0; i < ODD / 2; i++)
    put(blocks[i]);
  uint64_t hits = info_now().size_hit_count;
  char *served = get(least - STEP), *not_served = get(150 << 10);
  ck_assert_uint_eq(info_now().size_hit_count, hits + 1);
  bool taken_back = false;
  for (size_t i = 0; i < ODD / 2; i++)
    taken_back = taken_back || served == blocks[i];
  ck_assert(taken_back);
  put(served), put(not_served);
  for (size_t i = 0; i < 4 * ODD; i++)
    put(others[i]);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

enum { HELD = 64 };
static char *held[THREADS + 1][HELD];

static void *odd_traffic(void *number) {
  uint64_t random = (uint64_t)(uintptr_t)number;
  char **mine = held[(uintptr_t)number];
  while (!time_is_up()) {
    char **slot = &mine[random_below(&random, HELD)];
    if (*slot != NULL)
      put(*slot);
    *slot = *slot != NULL ? NULL : get((4 << 10) + random_below(&random, 2 * MIB));
  }
  return NULL;
}

START_TEST(no_block_of_many_threads_is_more_than_a_quarter_too_large) {
  start_clock();
  in_threads(odd_traffic, THREADS);
  MAM_PoolInfo info = info_now();
  ck_assert_uint_gt(info.used_count, 0);
  ck_assert_uint_le(info.used_bytes, info.requested_bytes + info.requested_bytes / 4 + 512 * info.used_count);
  for (size_t i = 0; i <= THREADS; i++)
    for (size_t j = 0; j < HELD; j++)
      put(held[i][j]);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

START_TEST(explanation_says_that_what_is_kept_comes_back) {
  char *text = NULL, *filler = get(pool_bytes - 2 * MIB), *block = get(MIB);
  put(block), put(filler);
  ck_assert_int_eq(MAM_PoolExplain(NULL, pool_bytes, &text), cudaSuccess);
  ck_assert_ptr_nonnull(strstr(text, "kept for small blocks and by 1 threads"));
  ck_assert_ptr_nonnull(strstr(text, "may make one"));
  free(text);
  ck_assert_uint_gt(info_now().metadata_bytes, 0);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

/* libmam_preload's summary is made of these numbers. */
START_TEST(what_an_environment_counted_outlives_it) {
  struct client_totals before, after;
  mam_client.totals(&before);
  for (int i = 0; i < 1000; i++)
    put(get(SMALL)), put(get(LARGE));
  ck_assert_int_eq(MAM_Destroy(), cudaSuccess);
  ck_assert_int_eq(MAM_Create(pool_bytes), cudaSuccess);
  mam_client.totals(&after);
  ck_assert_uint_eq(after.mallocs, before.mallocs + 2000);
  ck_assert_uint_gt(after.hits, before.hits + 1000);
  ck_assert_uint_ge(after.peak_used_bytes, LARGE);
}
END_TEST

/* Between the pool and a depot a slab is no block. */
START_TEST(slab_on_its_way_is_no_block) {
  MAM_Pool pool;
  uintptr_t base;
  ck_assert_int_eq(MAM_PoolDefault(&pool), cudaSuccess);
  MAM_PoolInfo before = info_now();
  ck_assert_int_eq(pool_slab_take(pool, &base), cudaSuccess);
  MAM_PoolInfo info = info_now();
  ck_assert_uint_eq(info.used_count, before.used_count);
  ck_assert_uint_eq(info.used_bytes, before.used_bytes);
  ck_assert_uint_eq(info.cached_bytes, before.cached_bytes + POOL_SLAB_BYTES);
  ck_assert_uint_eq(info.used_bytes + info.waiting_bytes + info.free_bytes, info.reserved_bytes);
  pool_slab_give(pool, base);
  ck_assert_uint_eq(info_now().cached_bytes, before.cached_bytes);
}
END_TEST

/* ---- Between threads ---- */

enum { RING = 256 };
static _Atomic(char *) ring[RING];
static _Atomic bool produced;

static void *consume(void *unused) {
  (void)unused;
  for (bool last = false; !last;) {
    last = produced;
    for (int i = 0; i < RING; i++) {
      char *block = atomic_exchange(&ring[i], NULL);
      if (block != NULL)
        put(block);
    }
  }
  return NULL;
}

START_TEST(what_another_thread_frees_comes_back_to_who_allocates) {
  static const size_t sizes[] = {SMALL, 32768, 200000}; /* the pool has room for a ring full of any size */
  pthread_t consumer;
  size_t total = 0;
  uint64_t count = 0;
  ck_assert_int_eq(pthread_create(&consumer, NULL, consume, NULL), 0);
  while (total < 20 * pool_bytes && count < 300000) { /* the pool's bytes 20 times, unless that takes too long */
    int at = (int)(count % RING);
    char *expected = NULL, *block;
    if (ring[at] != NULL) {
      (void)sched_yield();
      continue;
    }
    ck_assert_ptr_nonnull(block = get(sizes[_i]));
    ck_assert(atomic_compare_exchange_strong(&ring[at], &expected, block));
    total += sizes[_i];
    count++;
  }
  produced = true;
  ck_assert_int_eq(pthread_join(consumer, NULL), 0);
  ck_assert_uint_gt(total, 2 * pool_bytes);
  ck_assert_uint_eq(info_now().used_count, 0);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

/* Leaves something in every place that keeps blocks.  There is room for all threads to do so at once. */
static void use_everything(void) {
  enum { COUNT = 1800 / THREADS };
  static _Thread_local char *blocks[COUNT];
  for (int i = 0; i < COUNT; i++)
    blocks[i] = i % 3 == 0   ? get(40000 + (size_t)i % 7 * 512)
                : i % 3 == 1 ? get(1 + (size_t)i * 37)
                             : get_tagged(50000, &tag_a);
  for (int i = 0; i < COUNT; i++)
    put(blocks[i]);
}

static void *use_body(void *unused) {
  (void)unused;
  use_everything();
  return NULL;
}

START_TEST(a_thread_hands_everything_back_when_it_ends) {
  in_threads(use_body, THREADS);
  ck_assert_uint_le(info_now().thread_count, 1);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

static void *stay_body(void *unused) {
  (void)unused;
  use_everything();
  (void)pthread_barrier_wait(&gate);
  (void)pthread_barrier_wait(&gate);
  return NULL;
}

START_TEST(what_a_living_thread_keeps_is_collected_for_another) {
  pthread_t thread;
  (void)pthread_barrier_init(&gate, NULL, 2);
  ck_assert_int_eq(pthread_create(&thread, NULL, stay_body, NULL), 0);
  (void)pthread_barrier_wait(&gate);
  ck_assert_uint_gt(info_now().cached_bytes, 0);
  ck_assert(all_is_free(pool_bytes));
  (void)pthread_barrier_wait(&gate);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

enum { FEW = 10, FEW_BYTES = 16384 };

/* Fills the pool and frees a few blocks, each of another slab, so that no slab is empty. */
static void *frees_few_and_stays(void *blocks_argument) {
  char **blocks = blocks_argument;
  void *block;
  size_t count = 0;
  while (MAM_CudaMalloc(&block, FEW_BYTES) == cudaSuccess)
    blocks[count++] = block;
  for (size_t i = 1; i <= FEW; i++)
    put(blocks[i * count / (FEW + 1)]);
  (void)pthread_barrier_wait(&gate);
  (void)pthread_barrier_wait(&gate);
  return NULL;
}

START_TEST(a_block_that_a_living_thread_keeps_in_a_full_pool_serves_another) {
  static char *blocks[4097];
  pthread_t thread;
  (void)pthread_barrier_init(&gate, NULL, 2);
  ck_assert_int_eq(pthread_create(&thread, NULL, frees_few_and_stays, blocks), 0);
  (void)pthread_barrier_wait(&gate);
  uint64_t failures = info_now().failure_count;
  for (int i = 0; i < FEW; i++)
    ck_assert_ptr_nonnull(get(FEW_BYTES));
  ck_assert_uint_eq(info_now().failure_count, failures);
  void *block;
  ck_assert_int_eq(MAM_CudaMalloc(&block, FEW_BYTES), cudaErrorMemoryAllocation);
  ck_assert_uint_eq(info_now().failure_count, failures + 1);
  (void)pthread_barrier_wait(&gate);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

/* ---- What there is room for is never refused ---- */

enum { SPARE = 4 };
static const size_t spare_sizes[] = {512, 8192, 32768, 40000, MIB};
static size_t spare_bytes;
static _Atomic int spare_left; /* so many blocks more have room */

static bool spare_take(void) {
  int left = spare_left;
  while (left > 0 && !atomic_compare_exchange_weak(&spare_left, &left, left - 1))
    continue;
  return left > 0;
}

/* Threads trade a few blocks in a pool that is full otherwise. */
static void *spare_body(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  while (!time_is_up()) {
    char *blocks[SPARE];
    size_t count = 0, most = 1 + random_below(&state, SPARE);
    while (count < most && spare_take()) {
      void *block = NULL;
      EXPECT(MAM_CudaMalloc(&block, spare_bytes) == cudaSuccess);
      if (block == NULL)
        return NULL;
      blocks[count++] = block;
    }
    while (count > 0) {
      EXPECT((random_below(&state, 4) == 0 ? MAM_CudaFreeReuse(blocks[--count], MAM_REUSE_FENCED)
                                           : MAM_CudaFree(blocks[--count])) == cudaSuccess);
      spare_left++;
    }
  }
  return NULL;
}

START_TEST(what_has_room_is_served_however_many_threads_ask) {
  void *block, *last[SPARE];
  size_t count = 0;
  spare_bytes = spare_sizes[_i];
  while (MAM_CudaMalloc(&block, spare_bytes) == cudaSuccess)
    last[count++ % SPARE] = block;
  ck_assert_uint_gt(count, SPARE);
  for (size_t i = 0; i < SPARE; i++)
    put(last[i]);
  spare_left = SPARE;
  start_clock();
  in_threads(spare_body, THREADS);
  ck_assert_int_eq(spare_left, SPARE);
}
END_TEST

/* ---- Traffic: no two live blocks overlap, and the numbers add up all the while ---- */

enum { CELL_BYTES = 512, CELLS = 64 * 2048, SLOTS = 512 };
static _Atomic uint32_t shadow[CELLS]; /* the thread that holds each 512 bytes of the pool; 0: none */
static struct {
  _Atomic(char *) block; /* NULL: free, or a thread works on it */
  size_t size;
} slots[SLOTS];
static char *shadow_base;

static void shadow_mark(const char *block, size_t size, uint32_t from, uint32_t to) {
  size_t first = (size_t)(block - shadow_base) / CELL_BYTES, cells = (size + CELL_BYTES - 1) / CELL_BYTES;
  EXPECT(block >= shadow_base && first + cells <= CELLS);
  for (size_t i = first; i < first + cells && i < CELLS; i++)
    EXPECT(atomic_exchange(&shadow[i], to) == from);
}

static size_t random_size(uint64_t *state) {
  static const size_t bounds[] = {512, 4096, 32768, 200000};
  return 1 + random_below(state, bounds[random_below(state, 4)]);
}

/* Threads share the slots, so most blocks are freed by another thread than allocated them. */
static void *traffic(void *number) {
  uint64_t state = (uintptr_t)number * UINT64_C(0x9E3779B97F4A7C15);
  static _Atomic bool busy[SLOTS];
  while (!time_is_up()) {
    size_t at = random_below(&state, SLOTS);
    if (atomic_exchange(&busy[at], true))
      continue;
    char *block = slots[at].block;
    if (block != NULL) {
      shadow_mark(block, slots[at].size, (uint32_t)at + 1, 0);
      slots[at].block = NULL;
      size_t how = random_below(&state, 8);
      EXPECT((how < 3 ? MAM_CudaFreeReuse(block, (MAM_Reuse)(how % 2)) : MAM_CudaFree(block)) == cudaSuccess);
    } else {
      size_t size = random_size(&state);
      block = random_below(&state, 4) == 0 ? get_tagged(size, &tag_b) : get(size);
      if (block != NULL)
        shadow_mark(block, size, 0, (uint32_t)at + 1);
      slots[at].size = size;
      slots[at].block = block;
    }
    busy[at] = false;
  }
  return NULL;
}

static void free_slots(void) {
  for (size_t at = 0; at < SLOTS; at++)
    if (slots[at].block != NULL)
      put(slots[at].block);
}

START_TEST(live_blocks_never_overlap) {
  void *all;
  ck_assert_int_eq(MAM_CudaMalloc(&all, pool_bytes), cudaSuccess);
  shadow_base = all;
  put(all);
  start_clock();
  in_threads(traffic, THREADS);
  free_slots();
  ck_assert_uint_eq(info_now().used_count, 0);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

static void *ask(void *number) {
  if ((uintptr_t)number != 1)
    return traffic(number);
  while (!time_is_up()) {
    MAM_PoolInfo info = info_now();
    EXPECT(info.used_bytes + info.waiting_bytes + info.free_bytes == info.reserved_bytes);
    EXPECT(info.segment_count == info.used_count + info.waiting_count + info.free_count);
    EXPECT(info.requested_bytes <= info.used_bytes && info.used_bytes <= info.peak_used_bytes);
    /* A block that is on its way from a thread to the pool counts as used. */
    EXPECT(info.used_count - (info.malloc_count - info.free_call_count) <= 64 * THREADS);
  }
  return NULL;
}

START_TEST(numbers_add_up_at_any_moment) {
  void *all;
  ck_assert_int_eq(MAM_CudaMalloc(&all, pool_bytes), cudaSuccess);
  shadow_base = all;
  put(all);
  start_clock();
  in_threads(ask, THREADS);
  size_t count = 0;
  for (size_t at = 0; at < SLOTS; at++)
    count += slots[at].block != NULL;
  ck_assert_uint_eq(info_now().used_count, count);
  free_slots();
}
END_TEST

static int child(void) {
  char *blocks[2000];
  for (int i = 0; i < 2000; i++)
    if ((blocks[i] = get(1 + (size_t)i * 9)) == NULL)
      return 2;
  memset(blocks[1], 1, 10);
  for (int i = 0; i < 2000; i++)
    put(blocks[i]);
  refused(blocks[0]);
  MAM_PoolInfo info = info_now();
  EXPECT(info.used_bytes + info.waiting_bytes + info.free_bytes == info.reserved_bytes);
  return faults == 0 ? 0 : 1;
}

static void *fork_body(void *number) {
  if ((uintptr_t)number != 1)
    return traffic(number);
  while (!time_is_up())
    EXPECT(busy_fork(child));
  return NULL;
}

START_TEST(a_child_of_a_busy_process_allocates_and_frees) {
  void *all;
  ck_assert_int_eq(MAM_CudaMalloc(&all, pool_bytes), cudaSuccess);
  shadow_base = all;
  put(all);
  start_clock();
  in_threads(fork_body, THREADS);
  free_slots();
}
END_TEST

/* ---- Host memory ---- */

/* The bytes that the process has from the C library's heap, in all arenas and mappings. */
static size_t host_bytes(void) {
  struct mallinfo2 now = mallinfo2();
  return now.uordblks + now.hblkhd;
}

static void pairs(int count) {
  for (int i = 0; i < count; i++) {
    char *small = get(SMALL), *large = get(LARGE), *tagged = get_tagged(LARGE, &tag_a);
    put(small), put(large), put(tagged);
  }
}

START_TEST(pairs_take_no_host_memory) {
  pairs(1000);
  size_t before = host_bytes();
  pairs(100000);
  ck_assert_uint_eq(host_bytes(), before);
}
END_TEST

START_TEST(refused_frees_take_no_host_memory) {
  char *small = get(SMALL), *large = get(LARGE);
  put(small), put(large);
  (void)refused(small), (void)refused(large);
  size_t before = host_bytes();
  for (int i = 0; i < 1000; i++)
    (void)refused(small), (void)refused(large);
  ck_assert_uint_le(host_bytes(), before + 4096);
}
END_TEST

/* An allocation by one of the kinds of calls. */
static void *get_by(int kind, size_t size) {
  void *block = NULL;
  ck_assert_int_eq(kind == 0   ? MAM_CudaMalloc(&block, size)
                   : kind == 1 ? MAM_CudaMallocAsync(&block, size, stream_a)
                               : MAM_CudaMallocTagged(&block, size, &tag_a),
                   cudaSuccess);
  return block;
}

#if !SANITIZED
/* One free without host memory, and one with it.  A small block stays live; a large one needs no memory. */
static cudaError_t free_in_a_way(unsigned way, void *block) {
  return way == 0   ? MAM_CudaFree(block)
         : way == 1 ? MAM_CudaFreeReuse(block, MAM_REUSE_FENCED)
                    : MAM_CudaFreeAsync(block, stream_a);
}

static void *free_without_host_memory(void *argument) {
  void **blocks = argument;
  for (unsigned way = 0; way < 3; way++) {
    no_host_memory = true;
    cudaError_t live = free_in_a_way(way, blocks[way]), inside = free_in_a_way(way, (char *)blocks[way] + 16);
    cudaError_t freed = free_in_a_way(way, blocks[3]);
    no_host_memory = false;
    EXPECT(live == cudaErrorMemoryAllocation);
    EXPECT(inside == cudaErrorInvalidValue);
    EXPECT(freed == (way == 0 ? cudaSuccess : cudaErrorInvalidValue)); /* a large block, and once more */
  }
  for (unsigned way = 0; way < 3; way++) {
    EXPECT(free_in_a_way(way, blocks[way]) == cudaSuccess);
    EXPECT(free_in_a_way(way, blocks[way]) == cudaErrorInvalidValue);
  }
  return NULL;
}

START_TEST(without_host_memory_a_free_says_so_and_loses_nothing) {
  void *blocks[4];
  for (unsigned i = 0; i < 4; i++)
    ck_assert_int_eq(MAM_CudaMalloc(&blocks[i], i < 3 ? SMALL : LARGE), cudaSuccess);
  in_thread(free_without_host_memory, blocks);
  ck_assert_uint_eq(info_now().used_bytes, 0);
}
END_TEST
#endif

START_TEST(small_blocks_cost_two_bytes_of_host_memory) {
  enum { COUNT = 100000, CONSTANT = 400000 }; /* a thread's front and a leaf of the page map */
  static char *blocks[COUNT];
  size_t before = host_bytes();
  for (int i = 0; i < COUNT; i++)
    blocks[i] = get_by(_i, 1);
  size_t cost = host_bytes() - before;
  (void)printf("%d blocks of a byte: %zu bytes of host memory\n", COUNT, cost);
  ck_assert_uint_le(cost, 2 * COUNT + CONSTANT);
  ck_assert_uint_eq(info_now().used_count, COUNT);
  for (int i = 0; i < COUNT; i++)
    put(blocks[i]);
}
END_TEST

/* ---- On a stream ---- */

START_TEST(pairs_on_streams_take_no_host_memory) {
  static const size_t sizes[] = {SMALL, LARGE, 20000};
  size_t before = 0;
  for (int i = 0; i < 20000; i++) {
    cudaStream_t stream = i % 3 == 0 ? stream_b : stream_a;
    void *block = NULL;
    ck_assert_int_eq(MAM_CudaMallocAsync(&block, sizes[i % 3], stream), cudaSuccess);
    ck_assert_int_eq(MAM_CudaFreeAsync(block, stream), cudaSuccess);
    if (i == 10000)
      before = host_bytes();
  }
  ck_assert_uint_eq(host_bytes(), before);
}
END_TEST

START_TEST(a_stream_takes_back_what_it_freed) {
  static const size_t sizes[] = {1, SMALL, 20000, LARGE, 8 * LARGE};
  uint64_t hits = info_now().stream_hit_count;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    void *block = get_by(1, sizes[i]), *again;
    ck_assert_int_eq(MAM_CudaFreeAsync(block, stream_a), cudaSuccess);
    (void)refused(block);
    ck_assert_int_eq(MAM_CudaFreeAsync(block, stream_a), cudaErrorInvalidValue);
    ck_assert_int_eq(MAM_CudaFreeAsync(block, stream_b), cudaErrorInvalidValue);
    ck_assert_ptr_eq(again = get_by(1, sizes[i]), block);
    put(again);
  }
  ck_assert_uint_eq(info_now().stream_hit_count, hits + sizeof sizes / sizeof sizes[0]);
  ck_assert_uint_eq(info_now().used_count, 0);
}
END_TEST

enum { ON_STREAM = 1000 };
static void *on_stream[ON_STREAM];

static void *free_on_stream(void *unused) {
  (void)unused;
  for (int i = 0; i < ON_STREAM; i++)
    EXPECT(MAM_CudaFreeAsync(on_stream[i], stream_a) == cudaSuccess);
  return NULL;
}

/* The thread ends after its frees and leaves no block behind. */
START_TEST(what_another_thread_frees_on_a_stream_serves_the_stream) {
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < ON_STREAM; i++)
      on_stream[i] = get_by(1, SMALL);
    in_thread(free_on_stream, NULL);
    ck_assert_uint_eq(info_now().used_count, 0);
  }
  ck_assert_uint_le(info_now().slab_count, 2); /* of one class */
  ck_assert_uint_ge(info_now().stream_hit_count, 19 * (ON_STREAM - 64));
}
END_TEST

enum { CLASSES = 24, OF_A_CLASS = 65, FURTHER = 640 };

/* Of each class enough blocks for a slab, and all blocks anew after that: 11 MB in all, and then 42 MB. */
START_TEST(few_blocks_of_each_class_leave_room) {
  static char *blocks[CLASSES][OF_A_CLASS];
  size_t size = 0;
  for (int i = 0; i < CLASSES; i++) {
    size += i < 16 ? 512 : 1024;
    for (int round = 0; round < 2; round++)
      for (int j = 0; j < OF_A_CLASS; j++) {
        if (round > 0)
          put(blocks[i][j]);
        blocks[i][j] = get(size);
      }
  }
  ck_assert_uint_eq(size, 16384);
  ck_assert_uint_ge(info_now().slab_count, 1);
  for (int i = 0; i < FURTHER; i++)
    ck_assert_ptr_nonnull(get(65536));
}
END_TEST

/* ---- Rules for one block ---- */

START_TEST(every_rule_frees_once) {
  const size_t sizes[] = {SMALL, LARGE};
  for (int i = 0; i < 2; i++)
    for (int rule = MAM_REUSE_FENCED; rule <= MAM_REUSE_IMMEDIATE; rule++)
      for (int j = 0; j < 200; j++) {
        char *block = get(sizes[i]);
        ck_assert_int_eq(MAM_CudaFreeReuse(block, (MAM_Reuse)rule), cudaSuccess);
        (void)refused(block);
      }
  ck_assert_int_eq(MAM_CudaFreeReuse(NULL, MAM_REUSE_FENCED), cudaSuccess);
  char *block = get(SMALL);
  ck_assert_int_eq(MAM_CudaFreeReuse(block, (MAM_Reuse)7), cudaErrorInvalidValue);
  put(block);
  ck_assert_uint_eq(info_now().used_count, 0);
  ck_assert(all_is_free(pool_bytes));
}
END_TEST

START_TEST(a_block_of_any_thread_can_go_by_the_stream_rule) {
  char *small = get(SMALL), *large = get(LARGE);
  ck_assert_int_eq(MAM_CudaFreeReuse(small, MAM_REUSE_STREAM), cudaSuccess);
  ck_assert_int_eq(MAM_CudaFreeReuse(large, MAM_REUSE_STREAM), cudaSuccess);
  (void)refused(small), (void)refused(large);
  ck_assert_uint_eq(info_now().used_count, 0);
}
END_TEST

static TCase *tests_of(Suite *suite, const char *name, void (*set_up)(void)) {
  TCase *tests = tcase_create(name);
  tcase_set_timeout(tests, 30);
  tcase_add_checked_fixture(tests, set_up, tear_down);
  suite_add_tcase(suite, tests);
  return tests;
}

int main(void) {
  Suite *suite = suite_create("front");
  TCase *large = tests_of(suite, "large pool", set_up_large), *small = tests_of(suite, "small pool", set_up_small);
  tcase_add_loop_test(large, freed_blocks_are_refused_by_every_thread, 0, 6);
  tcase_add_loop_test(large, pointers_that_start_no_block_are_refused, 0, 6);
  tcase_add_test(large, of_many_frees_of_one_block_one_succeeds);
  tcase_add_test(large, a_refusal_claims_no_free_that_there_never_was);
  tcase_add_test(large, of_small_blocks_at_most_15_bytes_too_many_are_counted);
  tcase_add_test(large, an_explanation_knows_that_slabs_have_free_blocks);
  tcase_add_test(large, a_medium_block_serves_what_is_a_little_smaller);
  tcase_add_test(large, no_block_of_many_threads_is_more_than_a_quarter_too_large);
#if !SANITIZED
  tcase_add_test(large, without_host_memory_a_free_says_so_and_loses_nothing);
#endif
  tcase_add_loop_test(large, small_blocks_cost_two_bytes_of_host_memory, 0, 3);
  tcase_add_test(large, pairs_on_streams_take_no_host_memory);
  tcase_add_test(large, a_stream_takes_back_what_it_freed);
  tcase_add_test(large, what_another_thread_frees_on_a_stream_serves_the_stream);
  tcase_add_test(large, pairs_take_no_host_memory);
  tcase_add_test(large, refused_frees_take_no_host_memory);
  tcase_add_test(large, every_rule_frees_once);
  tcase_add_test(large, a_block_of_any_thread_can_go_by_the_stream_rule);
  tcase_add_test(large, a_thread_hands_everything_back_when_it_ends);
  tcase_add_test(large, what_a_living_thread_keeps_is_collected_for_another);
  tcase_add_loop_test(small, pointers_that_start_no_block_are_refused, 0, 6);
  tcase_add_test(small, of_many_frees_of_one_block_one_succeeds);
  tcase_add_test(small, every_rule_frees_once);
  tcase_add_test(small, what_an_environment_counted_outlives_it);
  tcase_add_test(small, few_blocks_of_each_class_leave_room);
  tcase_add_test(small, slab_on_its_way_is_no_block);
  tcase_add_test(small, explanation_says_that_what_is_kept_comes_back);
  tcase_add_test(small, a_tag_takes_back_up_to_twice_what_is_asked);
  tcase_add_test(small, a_tag_does_not_take_back_more_than_twice_what_is_asked);
  tcase_add_test(small, what_tags_keep_comes_back_for_a_block_of_the_whole_pool);
  tcase_add_loop_test(small, what_another_thread_frees_comes_back_to_who_allocates, 0, 3);
  tcase_add_test(small, a_thread_hands_everything_back_when_it_ends);
  tcase_add_test(small, what_a_living_thread_keeps_is_collected_for_another);
  tcase_add_test(small, a_block_that_a_living_thread_keeps_in_a_full_pool_serves_another);
  tcase_add_loop_test(small, what_has_room_is_served_however_many_threads_ask, 0,
                      sizeof spare_sizes / sizeof spare_sizes[0]);
  tcase_add_test(small, live_blocks_never_overlap);
  tcase_add_test(small, numbers_add_up_at_any_moment);
  tcase_add_test(small, a_child_of_a_busy_process_allocates_and_frees);
  return run_suite(suite);
}
