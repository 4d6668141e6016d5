/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every block of a slab and every freed large block is in exactly one place (front_check.h) after several threads have
 * allocated and freed, under every rule of reuse.  The checker finds each fault that a test makes on purpose.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "front/front_check.h"
#include "front/front_inside.h"
#include "support/run_suite.h"

#define MIB ((size_t)1 << 20)

enum { THREADS = 4, ROUNDS = 8, STEPS = 2000, SLOTS = 256 };

static MAM_Pool pool;

static void set_up_with(MAM_Reuse reuse) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST, options.limit_bytes = 2048 * MIB, options.reuse = reuse;
  ck_assert_int_eq(MAM_PoolCreate(&pool, &options), cudaSuccess);
}

static void set_up(void) { set_up_with(MAM_REUSE_FENCED); }

static void tear_down(void) { ck_assert_int_eq(MAM_PoolDestroy(pool), cudaSuccess); }

static void *get(size_t size) {
  void *block;
  ck_assert_int_eq(MAM_PoolMalloc(pool, &block, size), cudaSuccess);
  return block;
}

static void put(void *block) { ck_assert_int_eq(MAM_CudaFree(block), cudaSuccess); }

static void expect_sound(void) {
  const char *fault = front_check(pool, true);
  if (fault != NULL)
    ck_abort_msg("%s", fault);
}

static void expect_fault(const char *expected) {
  const char *fault = front_check(pool, true);
  ck_assert_ptr_nonnull(fault);
  ck_assert_str_eq(fault, expected);
}

/* ---- Traffic ---- */

/* xorshift64*: one state a thread. */
static size_t random_below(uint64_t *state, size_t bound) {
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return (size_t)((*state * UINT64_C(0x2545F4914F6CDD1D)) >> 32) % bound;
}

static pthread_barrier_t gate;
static _Atomic unsigned faults;
static void *_Atomic slots[SLOTS]; /* a block that any thread may free */

static size_t random_size(uint64_t *state) {
  static const size_t bounds[] = {1024, 32768, MIB, 8 * MIB};
  size_t bound = bounds[random_below(state, 4)];
  return random_below(state, 2) == 0 ? bound : 1 + random_below(state, bound);
}

/* More streams than a front has lanes; the last ones are used seldom.  Without a driver, a handle is its stream's
 * name. */
enum { STREAMS = 3 * LANES };

static cudaStream_t stream_of(size_t number) {
  number = number < STREAMS / 2 ? number % 4 : number;
  return number == 0 ? NULL : (cudaStream_t)(uintptr_t)(4096 * number);
}

static void step(uint64_t *state) {
  static const char tags[4];
  void *block = NULL;
  size_t kind = random_below(state, 16), size = random_size(state);
  cudaStream_t stream = stream_of(random_below(state, STREAMS));
  cudaError_t error = kind == 0  ? MAM_PoolMallocTagged(pool, &block, size, &tags[size % 4])
                      : kind < 8 ? MAM_PoolMallocAsync(pool, &block, size, stream)
                                 : MAM_PoolMalloc(pool, &block, size);
  faults += error != cudaSuccess && error != cudaErrorMemoryAllocation;
  block = atomic_exchange(&slots[random_below(state, SLOTS)], block);
  if (block == NULL)
    return;
  kind = random_below(state, 16);
  error = kind == 1   ? MAM_CudaFreeReuse(block, MAM_REUSE_IMMEDIATE)
          : kind == 2 ? MAM_CudaFreeReuse(block, MAM_REUSE_FENCED)
          : kind < 10 ? MAM_CudaFreeAsync(block, stream)
                      : MAM_CudaFree(block);
  faults += error != cudaSuccess;
}

/* Between its two waits at the gate, no thread is in a call. */
static void *traffic(void *number) {
  uint64_t state = ((uintptr_t)number + 1) * UINT64_C(0x9E3779B97F4A7C15);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < STEPS; i++)
      step(&state);
    faults += MAM_PoolTrim(pool, SIZE_MAX) != cudaSuccess;
    (void)pthread_barrier_wait(&gate);
    (void)pthread_barrier_wait(&gate);
  }
  return NULL;
}

static void free_slots(void) {
  for (int i = 0; i < SLOTS; i++)
    if (slots[i] != NULL)
      put(atomic_exchange(&slots[i], NULL));
}

START_TEST(every_block_is_in_one_place_after_any_traffic) {
  pthread_t threads[THREADS];
  set_up_with(_i == 0 ? MAM_REUSE_FENCED : MAM_REUSE_IMMEDIATE);
  (void)pthread_barrier_init(&gate, NULL, THREADS + 1);
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, traffic, (void *)i), 0);
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < 4; i++)
      ck_assert_ptr_null(front_check(pool, false));
    (void)pthread_barrier_wait(&gate);
    expect_sound();
    (void)pthread_barrier_wait(&gate);
  }
  for (int i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(faults, 0);
  expect_sound(); /* the threads have ended */
  free_slots();
  expect_sound();
  ck_assert_int_eq(MAM_PoolTrim(pool, 0), cudaSuccess);
  expect_sound();
  tear_down();
}
END_TEST

enum { HANDED = 3000 };
static void *handed[HANDED];

static void *allocate_handed(void *size) {
  for (int i = 0; i < HANDED; i++)
    faults += MAM_PoolMalloc(pool, &handed[i], (size_t)(uintptr_t)size) != cudaSuccess;
  return NULL;
}

/* What the freeing thread's magazine and shelf cannot hold goes to the depot and the pool. */
START_TEST(every_block_is_in_one_place_when_another_thread_frees) {
  static const size_t sizes[] = {512, 20000, 40000};
  pthread_t thread;
  set_up();
  ck_assert_int_eq(pthread_create(&thread, NULL, allocate_handed, (void *)(uintptr_t)sizes[_i]), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_uint_eq(faults, 0);
  expect_sound();
  for (int i = 0; i < HANDED; i++) {
    put(handed[i]);
    if (i % 500 == 0)
      expect_sound();
  }
  expect_sound();
  for (int i = 0; i < HANDED; i++)
    handed[i] = get(sizes[_i] + (size_t)i);
  expect_sound();
  for (int i = 0; i < HANDED; i++)
    put(handed[i]);
  expect_sound();
  tear_down();
}
END_TEST

/* ---- What is broken on purpose, and then mended ---- */

enum { SMALL = 512, LARGE = 300000 };

static struct magazine *small_magazine(void) { return &front_mine->magazines[slab_class(SMALL)]; }

/* Some blocks are live, some loaded, some in the batch that is being filled. */
static void use_small(void **live) {
  *live = get(SMALL);
  void *other = get(SMALL);
  put(other);
  ck_assert_uint_gt(small_magazine()->loaded->count, 0);
  ck_assert_uint_eq(small_magazine()->filling->count, 1);
  expect_sound();
}

START_TEST(a_block_that_was_pushed_twice_is_found) {
  void *live;
  set_up();
  use_small(&live);
  struct batch *filling = small_magazine()->filling;
  filling->blocks[filling->count++] = filling->blocks[0];
  expect_fault("a block is in two places");
  filling->count--;
  filling->blocks[filling->count++] = small_magazine()->loaded->blocks[0];
  expect_fault("a block is in two places");
  filling->count--;
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

START_TEST(a_lost_batch_is_found) {
  void *live;
  set_up();
  use_small(&live);
  struct magazine *magazine = small_magazine();
  struct batch *loaded = magazine->loaded;
  magazine->loaded = &magazine_nothing;
  magazine->loaded_blocks -= loaded->count; /* so that the counts do not show the fault */
  expect_fault("a block is in no place");
  magazine->loaded_blocks += loaded->count;
  magazine->loaded = loaded;
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

START_TEST(a_live_block_in_a_batch_is_found) {
  void *live;
  set_up();
  use_small(&live);
  struct batch *filling = small_magazine()->filling;
  _Atomic uint8_t *byte = filling->blocks[0].live;
  *byte = 1;
  expect_fault("a live block is in a batch");
  *byte = 0;
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

START_TEST(a_block_inside_its_slab_and_elsewhere_is_found) {
  void *live;
  set_up();
  use_small(&live);
  struct slab *slab = page_map_find((uintptr_t)live);
  uint32_t index = slab_index(slab, (uintptr_t)live);
  slab->inside[index / 64] |= (uint64_t)1 << index % 64;
  slab->inside_count++;
  expect_fault("a live block is inside its slab");
  slab->inside_count--;
  slab->inside[index / 64] &= ~((uint64_t)1 << index % 64);
  index = slab_index(slab, small_magazine()->loaded->blocks[0].address);
  slab->inside[index / 64] |= (uint64_t)1 << index % 64;
  slab->inside_count++;
  expect_fault("a block is in two places");
  slab->inside_count--;
  expect_fault("a slab's count of blocks inside is wrong");
  slab->inside[index / 64] &= ~((uint64_t)1 << index % 64);
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

START_TEST(counts_that_do_not_add_up_are_found) {
  void *live;
  set_up();
  use_small(&live);
  small_magazine()->filled_blocks++;
  expect_fault("the fronts' counts of small blocks do not add up to the live ones");
  small_magazine()->filled_blocks--;
  small_magazine()->codes++;
  expect_fault("the magazines' codes do not add up to the live bytes");
  small_magazine()->codes--;
  small_magazine()->resting_count++;
  expect_fault("fewer batches rest than were counted");
  small_magazine()->resting_count--;
  front_mine->balance.bytes++;
  expect_fault("the threads' balances do not add up to the live blocks");
  front_mine->balance.bytes--;
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

START_TEST(what_is_wrong_about_a_shelf_is_found) {
  set_up();
  put(get(LARGE)); /* the shelf's ring comes with the first block */
  void *first = get(LARGE), *second = get(LARGE), *live = get(LARGE);
  put(first);
  put(second);
  struct shelf *shelf = owned_find(owned_pair(front_mine->owned, (uintptr_t)live), (uintptr_t)live)->shelf;
  ck_assert_uint_ge(shelf_count(shelf), 2);
  expect_sound();
  struct freed_block was = shelf->oldest[1];
  shelf->oldest[1] = shelf->oldest[0];
  expect_fault("a freed block is in two places");
  shelf->oldest[1] = was;
  shelf->next--;
  expect_fault("a segment is neither live nor a front's nor a slab's");
  shelf->next++;
  shelf->bytes += 512;
  expect_fault("a block is on the shelf of another size");
  shelf->bytes -= 512;
  shelf->oldest->segment->ticket++;
  expect_fault("a live block is on a shelf");
  shelf->oldest->segment->ticket--;
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

START_TEST(what_is_wrong_about_a_lane_is_found) {
  void *block;
  set_up();
  put(get(LARGE));
  for (uintptr_t i = 1; i <= 2; i++)
    for (int j = 0; j < 2; j++) {
      ck_assert_int_eq(MAM_PoolMallocAsync(pool, &block, j == 0 ? SMALL : LARGE, stream_of(i)), cudaSuccess);
      ck_assert_int_eq(MAM_CudaFreeAsync(block, stream_of(i)), cudaSuccess);
    }
  struct lane *lanes = front_mine->lanes;
  struct batch *batch = lanes[0].batches.of_class[0][1];
  ck_assert_uint_eq(batch->count, 1);
  expect_sound();
  lanes[1].batches.of_class[0][0] = batch;
  expect_fault("a block is in two places");
  lanes[1].batches.of_class[0][0] = NULL;
  lanes[0].batches.of_class[0][1] = NULL;
  expect_fault("a block is in no place");
  lanes[0].batches.of_class[0][1] = batch;
  uint64_t mark = lanes[0].mark;
  lanes[0].mark = LANE_NONE;
  expect_fault("a lane without a stream has blocks");
  lanes[0].mark = mark + 9;
  expect_fault("a lane has a mark that was never given");
  lanes[0].mark = lanes[1].mark;
  expect_fault("two lanes have one stream");
  lanes[0].mark = mark;
  const struct shelf *shelf = shelf_for(front_mine->shelves, (LARGE + 511) / 512 * 512, NULL);
  struct segment *segment = shelf->oldest->segment;
  segment->as.used.site = (const char *)segment->as.used.site + 9;
  expect_fault("a freed block is of a lane that never was");
  segment->as.used.site = (const char *)segment->as.used.site - 9;
  expect_sound();
  tear_down();
}
END_TEST

START_TEST(what_is_wrong_about_an_owned_block_is_found) {
  set_up();
  void *live = get(LARGE);
  struct owned *owned = owned_find(owned_pair(front_mine->owned, (uintptr_t)live), (uintptr_t)live);
  expect_sound();
  owned->address ^= 512 << 8;
  expect_fault("an owned block is in another's places");
  owned->address ^= 512 << 8;
  owned->shelf = NULL;
  expect_fault("an owned block is for no shelf of its front");
  owned->shelf = &front_mine->shelves[0];
  struct segment *segment = owned->segment, other = {.base = segment->base + 512, .state = SEGMENT_USED};
  other.ticket = owned->ticket;
  owned->segment = &other;
  expect_fault("an owned block is no block of the pool");
  owned->segment = segment;
  expect_sound();
  put(live);
  tear_down();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("front_check");
  TCase *traffic_case = tcase_create("traffic"), *faults_case = tcase_create("faults");
  tcase_set_timeout(traffic_case, 120);
  tcase_add_loop_test(traffic_case, every_block_is_in_one_place_after_any_traffic, 0, 2);
  tcase_add_loop_test(traffic_case, every_block_is_in_one_place_when_another_thread_frees, 0, 3);
  tcase_add_test(faults_case, a_block_that_was_pushed_twice_is_found);
  tcase_add_test(faults_case, a_lost_batch_is_found);
  tcase_add_test(faults_case, a_live_block_in_a_batch_is_found);
  tcase_add_test(faults_case, a_block_inside_its_slab_and_elsewhere_is_found);
  tcase_add_test(faults_case, counts_that_do_not_add_up_are_found);
  tcase_add_test(faults_case, what_is_wrong_about_a_shelf_is_found);
  tcase_add_test(faults_case, what_is_wrong_about_a_lane_is_found);
  tcase_add_test(faults_case, what_is_wrong_about_an_owned_block_is_found);
  suite_add_tcase(suite, traffic_case);
  suite_add_tcase(suite, faults_case);
  return run_suite(suite);
}
