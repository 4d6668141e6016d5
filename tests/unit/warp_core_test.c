/* SPDX-License-Identifier: BSD-2-Clause */
/* The behaviour of warp heaps, on the host: what lanes are given, what is registered, and when it is freed. */
#include "support/warp_model.h"

#include "support/run_suite.h"

enum { KIB = 1024, LANES = 4, ALL = 0xF };

static const mam_warp_options usual = {32 * KIB, 10 * KIB, 126, 16, 32 * KIB};
static const mam_warp_options even = {32 * KIB, 32 * KIB, 126, 16,
                                      32 * KIB}; /* a first superblock as large as the later ones */
static const mam_warp_options tiny = {1 * KIB, 512, 3, 16, 1 * KIB};

static void model_begin(void) { warp_model_begin(); }

static void model_end(void) {
  ck_assert_uint_eq(warp_model.wrong_frees, 0);
  warp_model_begin();
}

static struct mam_warp *start(mam_warp_options options) {
  struct mam_warp *warp = warp_model_start(options, ALL);
  ck_assert_ptr_nonnull(warp);
  return warp;
}

static void everyone(struct mam_warp *warp, enum mam__warp_leaving how) {
  for (unsigned lane = 0; lane < LANES; lane++)
    warp_model_leave(warp, lane, how);
}

/* Takes a block in live memory, and lets the lane write to it. */
static char *take(struct mam_warp *warp, unsigned lane, size_t bytes) {
  char *block = warp_model_malloc(warp, lane, bytes);
  ck_assert_ptr_nonnull(block);
  ck_assert_uint_eq((uintptr_t)block % 16, 0);
  ck_assert_ptr_nonnull(warp_model_around((mam__u64)(uintptr_t)block, bytes));
  memset(block, (int)lane, bytes);
  return block;
}

/* ---- Starting ---- */

START_TEST(a_header_and_its_first_superblock_are_one_block) {
  struct mam_warp *warp = start(usual);
  (void)take(warp, 0, 16);
  ck_assert_uint_eq(warp_model.live, 1);
  ck_assert_uint_eq(warp_model.requests, 1);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(a_full_heap_starts_nothing) {
  warp_model.refuse_from = 1;
  ck_assert_ptr_null(warp_model_start(usual, ALL));
}
END_TEST

/* Whatever the options are, a header's first superblock lies in the header's block and can serve. */
START_TEST(any_options_are_made_sound) {
  static const unsigned sizes[] = {0, 1, 15, 16, 17, 100, 1000, 4096, 5000, 65536, 1u << 24, ~0u};
  const size_t count = sizeof sizes / sizeof sizes[0];
  for (size_t i = 0; i < count * count; i++) {
    mam_warp_options options = {sizes[i % count], sizes[i / count], sizes[(i + 3) % count], sizes[(i * 5) % count],
                                sizes[(i / count + i) % count]};
    struct mam_warp *warp = start(options);
    for (unsigned round = 0; round < 3; round++)
      (void)take(warp, round, 40);
    everyone(warp, MAM__WARP_ENDS);
    ck_assert_uint_eq(warp_model.live, 0);
  }
}
END_TEST

/* ---- Allocating ---- */

START_TEST(requests_are_rounded_up_to_blocks) {
  struct mam_warp *warp = start(usual);
  const char *first = take(warp, 0, 1), *second = take(warp, 1, 17), *third = take(warp, 2, 1);
  ck_assert_int_eq(first - second, 32);
  ck_assert_int_eq(second - third, 16);
  mam_warp_options wide = even;
  wide.block_bytes = 256;
  struct mam_warp *other = start(wide);
  first = take(other, 0, 1), second = take(other, 1, 257), third = take(other, 2, 1);
  ck_assert_int_eq(first - second, 512);
  ck_assert_int_eq(second - third, 256);
  ck_assert_uint_eq((uintptr_t)first % 16, 0);
}
END_TEST

START_TEST(blocks_do_not_overlap_over_many_superblocks) {
  struct mam_warp *warp = start(tiny);
  static char *blocks[600];
  static size_t sizes[600];
  for (unsigned i = 0; i < 600; i++) {
    sizes[i] = 1 + i * 37 % 700;
    blocks[i] = take(warp, i % LANES, sizes[i]);
    memset(blocks[i], (int)(i & 127), sizes[i]);
  }
  for (unsigned i = 0; i < 600; i++)
    for (size_t k = 0; k < sizes[i]; k++)
      ck_assert_int_eq(blocks[i][k], (int)(i & 127));
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(a_new_superblock_comes_when_one_is_full) {
  struct mam_warp *warp = start(even);
  for (unsigned i = 0; i < 3 * 32; i++)
    (void)take(warp, i % LANES, 1 * KIB);
  ck_assert_uint_eq(warp_model.live, 1 + 3); /* the first one is shorter by the header */
  everyone(warp, MAM__WARP_ENDS);
}
END_TEST

/* A new superblock begins when the one before has no room.  A larger request gets a superblock for four such
 * requests. */
START_TEST(superblocks_grow_to_their_full_size) {
  static const mam_warp_options growing = {2 * KIB, 1 * KIB, 126, 16, 32 * KIB};
  static const size_t sizes[] = {1 * KIB, 2 * KIB, 8 * KIB, 32 * KIB, 32 * KIB};
  struct mam_warp *warp = start(growing);
  size_t count = 0;
  for (unsigned i = 0; i < 1000 && count < 5; i++) {
    mam__u64 block = (mam__u64)(uintptr_t)take(warp, i % LANES, 128);
    if (i == 0 || warp_model.live > count)
      ck_assert_uint_eq(warp_model_around(block, 128)->bytes, sizes[count++]);
  }
  ck_assert_uint_eq(count, 5);
  struct mam_warp *other = start(growing);
  ck_assert_uint_eq(warp_model_around((mam__u64)(uintptr_t)take(other, 0, 5 * KIB), 1)->bytes, 20 * KIB);
  ck_assert_uint_eq(warp_model_around((mam__u64)(uintptr_t)take(other, 0, 30 * KIB), 1)->bytes, 32 * KIB);
  everyone(warp, MAM__WARP_ENDS);
  everyone(other, MAM__WARP_ENDS);
}
END_TEST

/* Above 32 KiB the next size is tried for, once.  If it is not there, the header gets what it needs. */
START_TEST(a_header_does_not_wait_for_the_next_size) {
  static const mam_warp_options growing = {16 * KIB, 1 * KIB, 126, 16, 1024 * KIB};
  static const size_t sizes[] = {1 * KIB, 16 * KIB, 16 * KIB, 40 * KIB, 160 * KIB};
  static const size_t requests[] = {512, 15 * KIB, 15 * KIB, 40 * KIB, 20 * KIB};
  struct mam_warp *warp = start(growing);
  for (unsigned i = 0; i < 5; i++) {
    warp_model.refuse_tries = i < 4;
    mam__u64 block = (mam__u64)(uintptr_t)take(warp, i % LANES, requests[i]);
    ck_assert_uint_eq(warp_model_around(block, requests[i])->bytes, sizes[i]);
  }
  ck_assert_uint_eq(warp_model.tries, 3);
  everyone(warp, MAM__WARP_ENDS);
}
END_TEST

START_TEST(what_is_larger_than_a_superblock_is_a_block_of_the_heap) {
  struct mam_warp *warp = start(usual);
  const char *block = take(warp, 0, 100 * KIB);
  const struct warp_model_block *around = warp_model_around((mam__u64)(uintptr_t)block, 1);
  ck_assert_uint_eq(around->address, (mam__u64)(uintptr_t)block);
  ck_assert_uint_eq(around->bytes, 100 * KIB);
  (void)take(warp, 1, 16);
  ck_assert_uint_eq(warp_model.live, 2);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(a_superblock_s_size_exactly_is_no_larger) {
  struct mam_warp *warp = start(usual);
  (void)take(warp, 0, 32 * KIB);
  ck_assert_uint_eq(warp_model_around((mam__u64)(uintptr_t)take(warp, 1, 64), 64)->address, (mam__u64)(uintptr_t)warp);
  everyone(warp, MAM__WARP_ENDS);
}
END_TEST

START_TEST(lists_are_chained_when_full) {
  struct mam_warp *warp = start(tiny);
  for (unsigned i = 0; i < 20; i++)
    (void)take(warp, i % LANES, 2 * KIB);
  ck_assert_uint_eq(warp_model.live, 1 + 20 + 4); /* 9 stand in the header, 3 in each further list */
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

static void *take_up_to_2_kib(size_t bytes) { return bytes > 2 * KIB ? NULL : warp_model_take(bytes); }

START_TEST(where_there_is_no_large_superblock_a_small_one_does) {
  static const mam_warp_options growing = {2 * KIB, 1 * KIB, 126, 16, 32 * KIB};
  struct mam_warp *warp = start(growing);
  warp_model.take = take_up_to_2_kib;
  for (unsigned i = 0; i < 64; i++)
    (void)take(warp, i % LANES, 128);
  ck_assert_uint_lt(warp_model.live, 8);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(nothing_and_too_much_get_nothing) {
  struct mam_warp *warp = start(usual);
  ck_assert_ptr_null(warp_model_malloc(warp, 0, 0));
  warp_model.refuse_from = warp_model.requests + 1;
  ck_assert_ptr_null(warp_model_malloc(warp, 0, SIZE_MAX));
  ck_assert_ptr_null(warp_model_malloc(warp, 0, (size_t)1 << 40));
  warp_model.refuse_from = 0;
  (void)take(warp, 0, 16);
  everyone(warp, MAM__WARP_ENDS);
}
END_TEST

START_TEST(a_lane_that_takes_no_part_gets_nothing) {
  struct mam_warp *warp = start(usual);
  ck_assert_ptr_null(warp_model_malloc(warp, LANES, 16));
  warp_model_leave(warp, 1, MAM__WARP_ENDS);
  ck_assert_ptr_null(warp_model_malloc(warp, 1, 16));
  (void)take(warp, 0, 16);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

/* ---- A full heap ---- */

/* The n-th request to the heap and all later ones are refused, for each n. */
START_TEST(a_full_heap_loses_nothing) {
  for (size_t from = 2; from < 40; from++) {
    struct mam_warp *warp = start(tiny);
    unsigned refused = 0;
    warp_model.refuse_from = warp_model.requests + from - 1;
    for (unsigned i = 0; i < 60; i++) {
      char *block = warp_model_malloc(warp, i % LANES, 1 + i * 97 % 1500);
      refused += block == NULL;
      if (block != NULL)
        ck_assert_ptr_nonnull(warp_model_around((mam__u64)(uintptr_t)block, 1 + i * 97 % 1500));
    }
    ck_assert_uint_gt(refused, 0);
    everyone(warp, MAM__WARP_TIDIES);
    ck_assert_uint_eq(warp_model.live, 1);
    warp_model.refuse_from = 0;
    (void)take(warp, 0, 1 * KIB);
    everyone(warp, MAM__WARP_ENDS);
    ck_assert_uint_eq(warp_model.live, 0);
  }
}
END_TEST

/* The heap has room for what is asked for, but not for a superblock. */
static void *take_small_ones(size_t bytes) { return bytes > 512 ? NULL : warp_model_take(bytes); }

START_TEST(a_request_without_a_superblock_gets_a_block_of_its_own) {
  struct mam_warp *warp = start(usual);
  while (mam__warp_number(warp->current) >= 4)
    (void)take(warp, 0, 64);
  warp_model.take = take_small_ones;
  const char *block = take(warp, 1, 64);
  ck_assert_uint_eq(warp_model_around((mam__u64)(uintptr_t)block, 64)->bytes, 64);
  ck_assert_ptr_null(warp_model_malloc(warp, 1, 600));
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

/* ---- Tidying up and ending ---- */

START_TEST(tidying_up_frees_when_the_last_lane_does) {
  struct mam_warp *warp = start(even);
  for (unsigned i = 0; i < 100; i++)
    (void)take(warp, i % LANES, 2 * KIB);
  size_t before = warp_model.live;
  for (unsigned lane = 0; lane + 1 < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_TIDIES);
  ck_assert_uint_eq(warp_model.live, before);
  warp_model_leave(warp, LANES - 1, MAM__WARP_TIDIES);
  ck_assert_uint_eq(warp_model.live, 1);
  for (unsigned i = 0; i < 15; i++)
    (void)take(warp, i % LANES, 2 * KIB);
  ck_assert_uint_eq(warp_model.live, 1); /* the first superblock serves again */
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(what_an_early_lane_takes_outlives_the_round) {
  struct mam_warp *warp = start(tiny);
  warp_model_leave(warp, 0, MAM__WARP_TIDIES);
  char *blocks[10];
  for (unsigned i = 0; i < 10; i++)
    blocks[i] = take(warp, 0, 100);
  (void)take(warp, 1, 100);
  for (unsigned lane = 1; lane < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_TIDIES);
  for (unsigned i = 0; i < 10; i++)
    ck_assert_ptr_nonnull(warp_model_around((mam__u64)(uintptr_t)blocks[i], 100));
  everyone(warp, MAM__WARP_TIDIES);
  ck_assert_uint_eq(warp_model.live, 1);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(a_lane_that_tidies_up_twice_counts_once) {
  struct mam_warp *warp = start(usual);
  for (unsigned i = 0; i < 2 * LANES; i++)
    warp_model_leave(warp, 0, MAM__WARP_TIDIES);
  const char *block = take(warp, 1, 40 * KIB);
  for (unsigned i = 0; i < LANES; i++)
    warp_model_leave(warp, 0, MAM__WARP_TIDIES);
  ck_assert_ptr_nonnull(warp_model_around((mam__u64)(uintptr_t)block, 40 * KIB));
  everyone(warp, MAM__WARP_ENDS);
}
END_TEST

START_TEST(a_lane_that_ends_is_not_waited_for) {
  struct mam_warp *warp = start(usual);
  (void)take(warp, 0, 40 * KIB);
  warp_model_leave(warp, 0, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 2);
  for (unsigned lane = 1; lane < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_TIDIES);
  ck_assert_uint_eq(warp_model.live, 1);
  (void)take(warp, 1, 40 * KIB);
  for (unsigned lane = 1; lane < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(the_last_one_s_end_tidies_up_for_those_who_wait) {
  struct mam_warp *warp = start(usual);
  (void)take(warp, 0, 40 * KIB);
  for (unsigned lane = 1; lane < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_TIDIES);
  warp_model_leave(warp, 0, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 1);
  (void)take(warp, 2, 16);
  for (unsigned lane = 1; lane < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(a_second_end_does_nothing) {
  struct mam_warp *warp = start(usual);
  for (unsigned i = 0; i < LANES; i++)
    warp_model_leave(warp, 0, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 1);
  (void)take(warp, 1, 16);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(an_ended_header_says_that_it_is_none) {
  static _Alignas(16) char memory[4 * KIB];
  struct mam_warp *warp = mam__warp_begin(NULL, (mam__u64)(uintptr_t)memory, mam__warp_options_sound(tiny), 1, 0, 0);
  ck_assert_int_ne(mam__warp_is(warp), 0);
  struct mam_warp moved = *warp;
  ck_assert_int_eq(mam__warp_is(&moved), 0); /* a copy is no warp heap */
  warp_model_leave(warp, 0, MAM__WARP_ENDS);
  ck_assert_int_eq(mam__warp_is(warp), 0);
  ck_assert_ptr_null(warp_model_malloc(warp, 0, 16));
  ck_assert_uint_eq(warp_model.wrong_frees, 1); /* the model did not give that memory */
  warp_model.wrong_frees = 0;
}
END_TEST

/* ---- Waiting for the next user ---- */

static const mam_warp_options parked = {32 * KIB, 4 * KIB, 126, 16, 512 * KIB};

/* A heap's control block, which says how much may wait in parks, and an empty park. */
static struct mam__heap_control control;
static mam__u64 park[MAM__PARK_WORDS];

static void park_begin(size_t heap_bytes) {
  memset(&control, 0, sizeof control);
  memset(park, 0, sizeof park);
  control.heap.page_count = (mam__u32)(heap_bytes >> MAM__PAGE_SHIFT);
}

/* Starts the header that waits in the park, or a new one, by all lanes. */
static struct mam_warp *park_start(void) {
  struct mam_warp *warp = mam__warp_find(park, ALL, 5);
  if (warp != NULL)
    return warp;
  mam__u64 block = mam__warp_heap_malloc(NULL, parked.first_bytes);
  return mam__warp_begin(&control, block, parked, ALL, 5, (mam__u64)(uintptr_t)park);
}

/* All lanes make a series of so many bytes.  Its blocks stay live and whole until its end. */
static void park_series(size_t bytes) {
  struct mam_warp *warp = park_start();
  static char *blocks[4096];
  unsigned count = 0;
  for (size_t taken = 0; taken < bytes; taken += 1000, count++) {
    blocks[count] = take(warp, count % LANES, 1000);
    memset(blocks[count], (int)(count % 251), 1000);
  }
  for (unsigned i = 0; i < count; i++) { /* not an assertion a byte: under a sanitizer that took seconds */
    unsigned whole = 0;
    while (whole < 1000 && (unsigned char)blocks[i][whole] == i % 251)
      whole++;
    ck_assert_uint_eq(whole, 1000);
  }
  everyone(warp, MAM__WARP_ENDS);
}

/* The bytes of the superblock that waits in the park; the heap has counted as many. */
static size_t park_waiting(void) {
  mam__u64 address = mam__park_address(park[1]);
  size_t bytes = 16 * (size_t)mam__park_number(park[1]);
  ck_assert_uint_eq(control.parked, mam__park_number(park[1]));
  if (address == 0)
    return 0;
  ck_assert_uint_eq(warp_model_around(address, bytes)->bytes, bytes);
  return bytes;
}

START_TEST(an_ended_header_waits_for_its_next_user) {
  park_begin(0);
  struct mam_warp *warp = park_start();
  for (unsigned i = 0; i < 40; i++)
    (void)take(warp, i % LANES, 1000);
  everyone(warp, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 1);
  ck_assert_uint_eq(park[0], (mam__u64)(uintptr_t)warp);
  ck_assert_int_eq(mam__warp_is(warp), 0); /* no warp has it meanwhile */
  ck_assert_ptr_null(warp_model_malloc(warp, 0, 16));
  ck_assert_ptr_eq(mam__warp_find(park, 0x100, 5), warp);
  ck_assert_ptr_null(mam__warp_find(park, 1, 5));
  ck_assert_int_ne(mam__warp_is(warp), 0);
  for (unsigned i = 0; i < 3; i++)
    (void)take(warp, 8, 1000);
  ck_assert_uint_eq(warp_model.live, 1); /* its first superblock is whole again */
  warp_model_leave(warp, 8, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 1);
}
END_TEST

START_TEST(of_two_headers_one_waits) {
  park_begin(0);
  mam_warp_options options = mam__warp_options_sound(tiny);
  for (unsigned i = 0; i < 2; i++) {
    mam__u64 block = mam__warp_heap_malloc(NULL, 512);
    struct mam_warp *warp = mam__warp_begin(&control, block, options, 1, 0, (mam__u64)(uintptr_t)park);
    warp_model_leave(warp, 0, MAM__WARP_ENDS);
    ck_assert_uint_eq(warp_model.live, 1);
    ck_assert_uint_eq(park[0], block);
  }
}
END_TEST

/* The largest superblock of a series stays.  So a second series of that length asks the heap for less, and a third one,
 * or a shorter one, for nothing. */
START_TEST(a_superblock_waits_for_the_next_series) {
  park_begin((size_t)1 << 30);
  park_series(100 * KIB);
  ck_assert_uint_eq(park_waiting(), 128 * KIB);
  ck_assert_uint_eq(warp_model.live, 2);
  for (unsigned i = 0; i < 5; i++) {
    size_t before = warp_model.requests;
    park_series((i == 3 ? 2 : 100) * KIB);
    ck_assert_uint_eq(warp_model.requests, before);
    ck_assert_uint_eq(park_waiting(), 128 * KIB);
    ck_assert_uint_eq(warp_model.live, 2);
  }
  park_series(600 * KIB);
  ck_assert_uint_eq(park_waiting(), 512 * KIB);
  ck_assert_uint_eq(warp_model.live, 2);
}
END_TEST

/* The same for the rounds of one header. */
START_TEST(a_superblock_waits_for_the_next_round) {
  park_begin((size_t)1 << 30);
  struct mam_warp *warp = park_start();
  size_t requests = 0;
  for (unsigned round = 0; round < 5; round++) {
    for (unsigned i = 0; i < 30; i++)
      (void)take(warp, i % LANES, 1000);
    ck_assert_uint_eq(warp_model.live, 2);
    ck_assert(round == 0 || warp_model.requests == requests);
    requests = warp_model.requests;
    everyone(warp, MAM__WARP_TIDIES);
    ck_assert_uint_eq(park_waiting(), 32 * KIB);
  }
  everyone(warp, MAM__WARP_ENDS);
}
END_TEST

/* A waiting superblock that is too small for a request stays.  At most an eighth of the heap waits. */
START_TEST(what_waits_is_a_share_of_the_heap) {
  park_begin((size_t)1 << 20);
  park_series(30 * KIB);
  ck_assert_uint_eq(park_waiting(), 32 * KIB);
  struct mam_warp *warp = park_start();
  (void)take(warp, 0, 40 * KIB);
  ck_assert_uint_eq(park_waiting(), 32 * KIB);
  everyone(warp, MAM__WARP_ENDS); /* 160 KiB are more than the share */
  ck_assert_uint_eq(park_waiting(), 32 * KIB);
  ck_assert_uint_eq(warp_model.live, 2);
  park_series(100 * KIB);
  ck_assert_uint_eq(park_waiting(), 128 * KIB);
  ck_assert_uint_eq(warp_model.live, 2);
}
END_TEST

/* Two headers use one park, and one of them has what waited there.  The larger superblock stays. */
START_TEST(of_two_superblocks_the_larger_waits) {
  for (int larger_last = 0; larger_last < 2; larger_last++) {
    park_begin((size_t)1 << 30);
    struct mam_warp *warps[2] = {park_start(), park_start()};
    for (unsigned i = 0; i < 30; i++)
      (void)take(warps[0], i % LANES, 1000);
    (void)take(warps[1], 0, 40 * KIB);
    ck_assert_uint_eq(warp_model.live, 4);
    everyone(warps[larger_last ? 0 : 1], MAM__WARP_ENDS);
    everyone(warps[larger_last ? 1 : 0], MAM__WARP_ENDS);
    ck_assert_uint_eq(park_waiting(), 160 * KIB);
    ck_assert_uint_eq(warp_model.live, 2);
    warp_model_begin();
  }
}
END_TEST

/* A superblock that was taken from the park stays counted until another one takes its place. */
START_TEST(what_is_handed_over_with_a_header_stays_counted) {
  park_begin((size_t)1 << 30);
  park_series(100 * KIB);
  struct mam_warp *warp = park_start();
  for (unsigned i = 0; i < 100; i++)
    (void)take(warp, i % LANES, 1000);
  for (unsigned lane = 0; lane < LANES; lane++)
    warp_model_hand_over(warp, lane);
  ck_assert_uint_eq(park_waiting(), 0);
  park_series(30 * KIB);
  ck_assert_uint_eq(park_waiting(), 32 * KIB);
  ck_assert_int_ne(mam__warp_adopt_by(warp, 1, 7), 0);
  warp_model_leave(warp, 0, MAM__WARP_ENDS);
  ck_assert_uint_eq(park_waiting(), 128 * KIB);
  ck_assert_uint_eq(warp_model.live, 2);
}
END_TEST

/* ---- Handing over ---- */

START_TEST(what_was_handed_over_lives_until_it_is_ended) {
  struct mam_warp *warp = start(tiny);
  char *blocks[20];
  for (unsigned i = 0; i < 20; i++)
    blocks[i] = take(warp, i % LANES, 200);
  for (unsigned lane = 0; lane < LANES; lane++)
    warp_model_hand_over(warp, lane);
  for (unsigned i = 0; i < 20; i++)
    ck_assert_int_eq(blocks[i][199], (int)(i % LANES));
  ck_assert_int_ne(mam__warp_adopt_by(warp, 0x30, 7), 0);
  ck_assert_ptr_null(warp_model_malloc(warp, 0, 16));
  (void)take(warp, 4, 2000);
  ck_assert_int_eq(blocks[7][0], 3);
  warp_model_leave(warp, 4, MAM__WARP_ENDS);
  warp_model_leave(warp, 5, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(one_lane_that_hands_over_is_enough) {
  struct mam_warp *warp = start(usual);
  (void)take(warp, 0, 16);
  warp_model_leave(warp, 0, MAM__WARP_ENDS);
  warp_model_hand_over(warp, 1);
  warp_model_leave(warp, 2, MAM__WARP_ENDS);
  warp_model_leave(warp, 3, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 1);
  ck_assert_int_ne(mam__warp_adopt_by(warp, 1, 7), 0);
  warp_model_leave(warp, 0, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

START_TEST(only_what_was_handed_over_is_adopted_and_once) {
  struct mam_warp *warp = start(usual);
  ck_assert_int_eq(mam__warp_adopt_by(warp, 1, 7), 0);
  warp_model_hand_over(warp, 0);
  ck_assert_int_eq(mam__warp_adopt_by(warp, 1, 7), 0); /* other lanes still take part */
  for (unsigned lane = 1; lane < LANES; lane++)
    warp_model_leave(warp, lane, MAM__WARP_ENDS);
  ck_assert_int_ne(mam__warp_adopt_by(warp, 1, 7), 0);
  ck_assert_int_eq(mam__warp_adopt_by(warp, 2, 8), 0);
  warp_model_hand_over(warp, 0);
  ck_assert_int_ne(mam__warp_adopt_by(warp, 2, 8), 0); /* and again */
  warp_model_leave(warp, 1, MAM__WARP_ENDS);
  ck_assert_uint_eq(warp_model.live, 0);
}
END_TEST

static Suite *warp_core_suite(void) {
  const TTest *const tests[] = {
      a_header_and_its_first_superblock_are_one_block,
      a_full_heap_starts_nothing,
      any_options_are_made_sound,
      requests_are_rounded_up_to_blocks,
      blocks_do_not_overlap_over_many_superblocks,
      a_new_superblock_comes_when_one_is_full,
      superblocks_grow_to_their_full_size,
      where_there_is_no_large_superblock_a_small_one_does,
      a_header_does_not_wait_for_the_next_size,
      what_is_larger_than_a_superblock_is_a_block_of_the_heap,
      a_superblock_s_size_exactly_is_no_larger,
      lists_are_chained_when_full,
      nothing_and_too_much_get_nothing,
      a_lane_that_takes_no_part_gets_nothing,
      a_full_heap_loses_nothing,
      a_request_without_a_superblock_gets_a_block_of_its_own,
      tidying_up_frees_when_the_last_lane_does,
      what_an_early_lane_takes_outlives_the_round,
      a_lane_that_tidies_up_twice_counts_once,
      a_lane_that_ends_is_not_waited_for,
      the_last_one_s_end_tidies_up_for_those_who_wait,
      a_second_end_does_nothing,
      an_ended_header_says_that_it_is_none,
      an_ended_header_waits_for_its_next_user,
      of_two_headers_one_waits,
      a_superblock_waits_for_the_next_series,
      a_superblock_waits_for_the_next_round,
      what_waits_is_a_share_of_the_heap,
      of_two_superblocks_the_larger_waits,
      what_is_handed_over_with_a_header_stays_counted,
      what_was_handed_over_lives_until_it_is_ended,
      one_lane_that_hands_over_is_enough,
      only_what_was_handed_over_is_adopted_and_once,
  };
  Suite *suite = suite_create("warp heaps");
  TCase *all = tcase_create("all");
  tcase_add_checked_fixture(all, model_begin, model_end);
  for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
    tcase_add_test(all, tests[i]);
  suite_add_tcase(suite, all);
  return suite;
}

int main(void) { return run_suite(warp_core_suite()); }
