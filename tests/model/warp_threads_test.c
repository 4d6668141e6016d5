/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lanes of warp heaps as real threads, for ThreadSanitizer.  Each lane allocates, writes to what it got without any
 * synchronization, tidies up as often as it likes, and ends.  In a second test each thread is a warp, and the warps
 * find their headers and superblocks in one park.  Memory that two lanes have, or that is freed before its owner tidied
 * up, is a data race or shows the bytes of another lane.
 */
#include <check.h>

#include "support/run_suite.h"
#include "support/warp_model.h"

enum { THREADS = 5, HEADERS = 1000, ROUNDS = 12, HELD = 24 };

static struct mam_warp *warp;
static unsigned faults;
static pthread_barrier_t together;

static uint32_t random_below(uint64_t *state, uint32_t bound) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return (uint32_t)(*state >> 32) % bound;
}

struct held {
  unsigned char *address;
  size_t bytes;
  unsigned char mark;
};

static void take(struct mam_warp *from, unsigned lane, struct held *held, uint64_t *state) {
  held->bytes = random_below(state, 10) == 0 ? 1 + random_below(state, 3000) : 1 + random_below(state, 200);
  held->mark = (unsigned char)random_below(state, 200);
  held->address = warp_model_malloc(from, lane, held->bytes);
  if (held->address != NULL)
    memset(held->address, held->mark, held->bytes);
  else
    (void)__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
}

static void verify(const struct held *held) {
  for (size_t i = 0; held->address != NULL && i < held->bytes; i++)
    if (held->address[i] != held->mark) {
      (void)__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
      break;
    }
}

/* The life of a lane: rounds of requests.  Most rounds end with tidying up. */
static void lane_live(unsigned lane, uint64_t *state) {
  struct held held[ROUNDS * HELD];
  unsigned count = 0, rounds = random_below(state, ROUNDS);
  for (unsigned round = 0; round < rounds; round++) {
    for (unsigned i = random_below(state, HELD); i > 0; i--)
      take(warp, lane, &held[count++], state);
    for (unsigned i = 0; i < count; i++)
      verify(&held[i]);
    if (random_below(state, 4) != 0) {
      warp_model_leave(warp, lane, MAM__WARP_TIDIES);
      count = 0;
    }
  }
  warp_model_leave(warp, lane, MAM__WARP_ENDS);
}

static void *lane_run(void *argument) {
  unsigned lane = (unsigned)(uintptr_t)argument;
  uint64_t state = 0x9e3779b97f4a7c15u * (lane + 1);
  static const mam_warp_options options = {2048, 1024, 5, 16, 8192};
  for (unsigned i = 0; i < HEADERS; i++) {
    if (lane == 0)
      warp = warp_model_start(options, (1u << THREADS) - 1);
    (void)pthread_barrier_wait(&together);
    lane_live(lane, &state);
    (void)pthread_barrier_wait(&together);
    if (lane == 0 && (warp_model.live != 0 || warp_model.wrong_frees != 0))
      (void)__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);
  }
  return NULL;
}

START_TEST(lanes_share_a_header) {
  pthread_t threads[THREADS];
  warp_model_begin();
  ck_assert_int_eq(pthread_barrier_init(&together, NULL, THREADS), 0);
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, lane_run, (void *)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  (void)pthread_barrier_destroy(&together);
  ck_assert_uint_eq(faults, 0);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

/* ---- Warps that share a park ---- */

static struct mam__heap_control control;
static mam__u64 park[MAM__PARK_WORDS];

static struct mam_warp *start_parked(void) {
  static const mam_warp_options options = {512, 512, 5, 16, 8192};
  struct mam_warp *found = mam__warp_find(park, 1, 0);
  if (found != NULL)
    return found;
  mam__u64 block = mam__warp_heap_malloc(NULL, options.first_bytes);
  return mam__warp_begin(&control, block, options, 1, 0, (mam__u64)(uintptr_t)park);
}

static void *warp_run(void *argument) {
  uint64_t state = 0x9e3779b97f4a7c15u * ((uintptr_t)argument + 1);
  struct held held[HELD];
  for (unsigned i = 0; i < 4 * HEADERS; i++) {
    struct mam_warp *mine = start_parked();
    for (unsigned round = 1 + random_below(&state, 3); round > 0; round--) {
      unsigned count = random_below(&state, HELD);
      for (unsigned k = 0; k < count; k++)
        take(mine, 0, &held[k], &state);
      for (unsigned k = 0; k < count; k++)
        verify(&held[k]);
      warp_model_leave(mine, 0, round > 1 ? MAM__WARP_TIDIES : MAM__WARP_ENDS);
    }
  }
  return NULL;
}

START_TEST(warps_share_a_place) {
  pthread_t threads[THREADS];
  warp_model_begin();
  faults = 0;
  control.heap.page_count = 8 * 16 * 8192 / MAM__PAGE_BYTES;
  for (uintptr_t i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, warp_run, (void *)i), 0);
  for (unsigned i = 0; i < THREADS; i++)
    ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
  ck_assert_uint_eq(faults, 0);
  ck_assert_uint_eq(control.parked, mam__park_number(park[1]));
  ck_assert_uint_eq(warp_model.live, (park[0] != 0) + (mam__park_address(park[1]) != 0));
  ck_assert_uint_eq(warp_model.wrong_frees, 0);
}
END_TEST

static Suite *warp_threads_suite(void) {
  Suite *suite = suite_create("warp heaps under threads");
  TCase *threads = tcase_create("threads");
  tcase_set_timeout(threads, 120);
  tcase_add_test(threads, lanes_share_a_header);
  tcase_add_test(threads, warps_share_a_place);
  suite_add_tcase(suite, threads);
  return suite;
}

int main(void) { return run_suite(warp_threads_suite()); }
