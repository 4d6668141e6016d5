/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lanes of a warp heap in every interleaving, one atomic operation at a time (interleave.h): two and three lanes that
 * allocate, tidy up, end and hand over by themselves; and warps that share a park, where headers and superblocks wait.
 *
 * Lanes are coroutines that stop before each atomic operation.  The values that a lane has read say where it is.
 *
 *   bodies       what each lane does: take, tidy, end, hand_over
 *   judge        what a lane holds is live memory that no other lane holds
 *   judge_end    after the last lane no memory is left, or what was handed over can be adopted
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static void step(void);
static uint64_t seen(uint64_t value);
#define MAM__ATOMICS_STEP() step()
#define MAM__ATOMICS_SEEN(value) seen(value)

#include "support/interleave.h"
#include "support/run_suite.h"
#include "support/warp_model.h"

enum { LANES = 3, HELD = 8, CELLS = 24, CELL_BYTES = 512 };
enum { PAGES = 1 }; /* of the heap; an eighth of it may wait: 512 bytes */

/* A list has one entry, and a superblock has room for three requests of 64 bytes, so that much happens in few steps. */
static const mam_warp_options options = {192, 256, 1, 16, 192};
/* With a park: a superblock has room for one request of 100 bytes, and the next one for several. */
static const mam_warp_options parked = {128, 256, 1, 16, CELL_BYTES};

/* ---- Memory: the lowest free cell comes first, so freed memory is soon used again ---- */

static _Alignas(CELL_BYTES) unsigned char cells[CELLS][CELL_BYTES];
static bool cell_is_used[CELLS];

static void *cell_take(size_t bytes) {
  for (unsigned i = 0; i < CELLS && bytes <= CELL_BYTES; i++)
    if (!cell_is_used[i]) {
      cell_is_used[i] = true;
      return cells[i];
    }
  return NULL;
}

static void cell_give(void *address, size_t bytes) {
  memset(address, WARP_MODEL_FREED, bytes);
  cell_is_used[((unsigned char *)address - cells[0]) / CELL_BYTES] = false;
}

/* ---- Lanes ---- */

static uint64_t readings[LANES];

static void step(void) {
  if (coroutine_running < 0)
    return;
  readings[coroutine_running] = interleave_mix(readings[coroutine_running], 0);
  coroutine_yield();
}

static uint64_t seen(uint64_t value) {
  if (coroutine_running >= 0)
    readings[coroutine_running] = interleave_mix(readings[coroutine_running], value + 1);
  return value;
}

/* ---- A scenario ---- */

struct scenario {
  const char *name;
  unsigned lanes;
  void (*bodies[LANES])(void);
  bool hands_over;
  /* PARK: one header uses the park.  PARK_OF_EACH: each lane is a warp with headers of its own there. */
  enum { NO_PARK, PARK, PARK_OF_EACH } park;
};

struct held {
  mam__u64 address, bytes;
};

static const struct scenario *scenario;
static struct mam_warp *warp, *own[LANES];
static struct mam__heap_control control;
static mam__u64 park[MAM__PARK_WORDS];
static struct held held[LANES][HELD];
static unsigned held_count[LANES];
static const char *violation;

static void hold(mam__u64 address, mam__u64 bytes) {
  if (address == 0)
    violation = "a request got nothing";
  else
    held[coroutine_running][held_count[coroutine_running]++] = (struct held){address, bytes};
}

static struct mam_warp *header(void) { return scenario->park == PARK_OF_EACH ? own[coroutine_running] : warp; }

static void take(mam__u64 bytes) {
  hold((mam__u64)(uintptr_t)warp_model_malloc(header(), (unsigned)coroutine_running, bytes), bytes);
}

static void leave(enum mam__warp_leaving how) {
  held_count[coroutine_running] = 0;
  warp_model_leave(header(), (unsigned)coroutine_running, how);
}
static void tidy(void) { leave(MAM__WARP_TIDIES); }
static void end(void) { leave(MAM__WARP_ENDS); }
static void hand_over(void) {
  held_count[coroutine_running] = 0;
  warp_model_hand_over(warp, (unsigned)coroutine_running);
}

/* A header for those lanes that uses the park: one that waited there, or a new one. */
static struct mam_warp *start_parked(mam__u32 lanes) {
  struct mam_warp *found = mam__warp_find(park, lanes, 0);
  if (found != NULL)
    return found;
  mam__u64 block = mam__warp_heap_malloc(NULL, parked.first_bytes);
  return mam__warp_begin(&control, block, mam__warp_options_sound(parked), lanes, 0, (mam__u64)(uintptr_t)park);
}

static struct mam_warp *start_unparked(mam__u32 lanes) { return warp_model_start(options, lanes); }

/* What a lane holds is in live memory, and no other lane holds a part of it. */
static const char *judge(void) {
  const struct held *all[LANES * HELD];
  unsigned count = 0;
  for (unsigned lane = 0; lane < scenario->lanes; lane++)
    for (unsigned i = 0; i < held_count[lane]; i++)
      all[count++] = &held[lane][i];
  for (unsigned i = 0; i < count; i++) {
    if (warp_model_around(all[i]->address, all[i]->bytes) == NULL)
      return "memory was freed that a lane holds";
    for (unsigned j = 0; j < i; j++)
      if (all[i]->address < all[j]->address + all[j]->bytes && all[j]->address < all[i]->address + all[i]->bytes)
        return "two requests overlap";
  }
  return warp_model.wrong_frees != 0 ? "what is no block was freed" : violation;
}

/* When all lanes have ended, all memory has been given back.  What was handed over goes when it was adopted and ended.
 */
static const char *judge_end(void) {
  if (scenario->hands_over &&
      (warp_model_around((mam__u64)(uintptr_t)warp, sizeof *warp) == NULL || !mam__warp_adopt_by(warp, 1, 0)))
    return "what was handed over cannot be adopted";
  if (scenario->hands_over)
    warp_model_leave(warp, 0, MAM__WARP_ENDS);
  if (control.parked != mam__park_number(park[1]))
    return "what waits is not what is counted";
  if (park[0] != 0)
    mam__warp_heap_free(NULL, park[0]);
  if (mam__park_address(park[1]) != 0)
    mam__warp_heap_free(NULL, mam__park_address(park[1]));
  return warp_model.live != 0 ? "memory was left behind" : judge();
}

/* ---- All interleavings ---- */

static uint64_t state_hash(void) {
  uint64_t hash = 0;
  for (unsigned i = 0; i < CELLS; i++)
    for (size_t k = 0; cell_is_used[i] && k < CELL_BYTES; k += 8) {
      uint64_t word;
      memcpy(&word, &cells[i][k], sizeof word);
      hash = interleave_mix(hash, word + i);
    }
  if (scenario->park != NO_PARK)
    hash = interleave_mix(interleave_mix(interleave_mix(hash, park[0]), park[1]),
                          control.parked | control.parks_held << 32);
  for (unsigned i = 0; i < scenario->lanes; i++)
    hash = interleave_mix(hash, readings[i] * 2 + coroutine_lives[i]);
  return hash;
}

static void body(int which) { scenario->bodies[which](); }

static void memory_begin(void) {
  memset(warp_model.blocks, 0, warp_model.count * sizeof warp_model.blocks[0]); /* the C library must not free cells */
  memset(cell_is_used, 0, sizeof cell_is_used);
  memset(cells, 0, sizeof cells);
  memset(park, 0, sizeof park);
  control.parked = 0;
  control.parks_held = 0;
  control.heap.page_count = PAGES;
  warp_model_begin();
  warp_model.take = cell_take;
  warp_model.give = cell_give;
  violation = NULL;
}

static void run_begin(void) {
  memory_begin();
  if (scenario->park != PARK_OF_EACH)
    warp = (scenario->park == PARK ? start_parked : start_unparked)((1u << scenario->lanes) - 1);
  for (unsigned i = 0; i < scenario->lanes; i++) {
    coroutine_create((int)i, body);
    readings[i] = i;
    held_count[i] = 0;
  }
}

static unsigned who_can(void) {
  unsigned can = 0;
  for (unsigned i = 0; i < scenario->lanes; i++)
    can |= (unsigned)coroutine_lives[i] << i;
  return can;
}

/* Explores a scenario.  Returns the first fault that is found, NULL if there is none. */
static const char *explore(const struct scenario *explored) {
  const struct interleave lanes = {explored->name, run_begin, who_can, coroutine_resume, state_hash, judge, judge_end};
  size_t states;
  scenario = explored;
  const char *fault = interleave_explore(&lanes, &states);
  memory_begin();
  return fault;
}

/* ---- Scenarios ---- */

static void take_and_end(void) {
  take(64);
  end();
}
static void take_much_and_end(void) {
  take(64);
  take(160);
  end();
}
static void take_directly_and_end(void) {
  take(300);
  take(310);
  end();
}
static void tidy_between(void) {
  take(64);
  tidy();
  take(48);
  end();
}
static void tidy_twice(void) {
  tidy();
  take(32);
  tidy();
  take(16);
  end();
}
static void tidy_and_end(void) {
  tidy();
  end();
}
static void tidy_and_take(void) {
  tidy();
  take(64);
  end();
}
static void tidy_and_hand_over(void) {
  tidy();
  take(32);
  hand_over();
}
static void take_and_hand_over(void) {
  take(64);
  hand_over();
}

/* A warp of its own that uses the common park and needs a superblock there. */
static void series(mam__u64 bytes) {
  own[coroutine_running] = start_parked(1u << coroutine_running);
  take(bytes);
  end();
}
static void series_once(void) { series(100); }
static void series_twice(void) {
  series(100);
  series(100);
}
static void series_of_more(void) { series(160); }
static void series_in_rounds(void) {
  own[coroutine_running] = start_parked(1u << coroutine_running);
  take(100);
  tidy();
  take(100);
  end();
}

/* A thread that finds no other memory and empties the park. */
static void need(void) {
  mam__u64 block = mam__park_empty(&control, &park[1]);
  if (block != 0)
    mam__warp_heap_free(NULL, block);
}
static void need_twice(void) {
  need();
  need();
}

static const struct scenario scenarios[] = {
    {"two that fill superblocks", 2, {take_much_and_end, take_much_and_end, NULL}, false, NO_PARK},
    {"two that are served directly", 2, {take_directly_and_end, take_directly_and_end, NULL}, false, NO_PARK},
    {"two that tidy up", 2, {tidy_between, tidy_between, NULL}, false, NO_PARK},
    {"two that tidy up, one twice", 2, {tidy_twice, tidy_between, NULL}, false, NO_PARK},
    {"one that tidies up and one that ends", 2, {tidy_twice, take_much_and_end, NULL}, false, NO_PARK},
    {"three that take and end", 3, {take_and_end, take_and_end, take_and_end}, false, NO_PARK},
    {"three, one of which tidies up", 3, {tidy_and_take, end, take_and_end}, false, NO_PARK},
    {"three, two of which tidy up", 3, {tidy_and_end, tidy_and_end, end}, false, NO_PARK},
    {"two, one of which hands over", 2, {take_and_hand_over, take_and_end, NULL}, true, NO_PARK},
    {"two that hand over, one early", 2, {take_and_hand_over, tidy_and_hand_over, NULL}, true, NO_PARK},
    {"three, one of which hands over", 3, {hand_over, tidy_and_end, take_and_end}, true, NO_PARK},
    {"two whose superblock waits", 2, {take_much_and_end, take_much_and_end, NULL}, false, PARK},
    {"two whose superblock waits for their next round", 2, {tidy_and_take, tidy_between, NULL}, false, PARK},
    {"two warps in one place", 2, {series_twice, series_once, NULL}, false, PARK_OF_EACH},
    {"two warps in one place, one of which needs more", 2, {series_twice, series_of_more, NULL}, false, PARK_OF_EACH},
    {"a warp and somebody in need", 2, {series_in_rounds, need_twice, NULL}, false, PARK_OF_EACH},
    {"two warps in one place and somebody in need", 3, {series_once, series_once, need}, false, PARK_OF_EACH},
    {"two warps in one place, one in rounds", 2, {series_in_rounds, series_once, NULL}, false, PARK_OF_EACH},
};

START_TEST(every_interleaving_is_sound) {
  const char *fault = explore(&scenarios[_i]);
  ck_assert_msg(fault == NULL, "%s: %s", scenarios[_i].name, fault);
}
END_TEST

/* A known fault: a lane that tidied up early takes from the list of the others.  The search must find it. */
static void early_without_care(void) {
  tidy();
  hold(mam__warp_serve(0, warp, &warp->list, 4), 64);
  end();
}

START_TEST(an_early_lane_among_the_others_is_found) {
  static const struct scenario careless = {
      "an early lane without care", 2, {early_without_care, tidy_between, NULL}, false, NO_PARK};
  ck_assert_ptr_nonnull(explore(&careless));
}
END_TEST

/* A known fault: a superblock that waits is taken by a load and a store.  The search must find it. */
static void take_waiting_without_care(void) {
  series(100);
  mam__u64 there = mam__load_relaxed_u64(&park[1]);
  if (mam__park_address(there) == 0)
    return;
  mam__store_relaxed_u64(&park[1], mam__park_number(there));
  hold(mam__park_address(there), 100);
  step();
  held_count[coroutine_running] = 0;
  mam__store_relaxed_u64(&park[1], there);
}

START_TEST(a_superblock_that_two_take_is_found) {
  static const struct scenario careless = {
      "a look and a store", 2, {take_waiting_without_care, take_waiting_without_care, NULL}, false, PARK_OF_EACH};
  ck_assert_ptr_nonnull(explore(&careless));
}
END_TEST

static Suite *warp_interleave_suite(void) {
  Suite *suite = suite_create("warp heaps in every interleaving");
  TCase *all = tcase_create("interleavings");
  tcase_set_timeout(all, 120);
  if (COROUTINES_WORK) {
    tcase_add_loop_test(all, every_interleaving_is_sound, 0, sizeof scenarios / sizeof scenarios[0]);
    tcase_add_test(all, an_early_lane_among_the_others_is_found);
    tcase_add_test(all, a_superblock_that_two_take_is_found);
  }
  suite_add_tcase(suite, all);
  return suite;
}

int main(void) { return run_suite(warp_interleave_suite()); }
