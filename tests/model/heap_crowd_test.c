/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device heap's algorithm when many ask at once: hundreds of warps, each stopped before every atomic operation, of
 * which chance says who goes on.  What a full heap has left must reach those who ask, however they are interleaved.
 *
 * The warps are coroutines on one thread, and chance has a seed, so that a run can be repeated.
 */
#include <stdbool.h>
#include <stdint.h>

static void step(void);
static uint32_t random_below(uint32_t bound);
#define MAM__ATOMICS_SALT() random_below(64)
#define MAM__ATOMICS_STEP() step()
#define MAM__ATOMICS_SEEN(value) (value)
#define MAM__ATOMICS_PAUSE() step()

#include <check.h>
#include <stdio.h>

#include "support/coroutine.h"
#include "support/heap_model.h"
#include "support/run_suite.h"

enum { CROWD = 256, LANES = 32, MIB = 1 << 20 };

static uint64_t random_state;

static uint32_t random_below(uint32_t bound) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32) % bound;
}

/* ---- The crowd ---- */

static int present[CROWD]; /* who has not ended, in any order */
static unsigned long operations[CROWD];

static void step(void) {
  if (coroutine_running < 0)
    return;
  operations[coroutine_running]++;
  coroutine_yield();
}

/* Each goes through the task of all, of which every call takes the next part, and answers whether there was one. */
static bool (*task)(void);

static void body(int which) {
  (void)which;
  while (task())
    continue;
}

static void crowd_run(bool (*todo)(void)) {
  unsigned count = CROWD;
  task = todo;
  for (int i = 0; i < CROWD; i++) {
    coroutine_create(i, body);
    present[i] = i;
  }
  while (count != 0) {
    unsigned who = random_below(count);
    coroutine_resume(present[who]);
    if (!coroutine_lives[present[who]])
      present[who] = present[--count];
  }
}

/* ---- Requests ---- */

static struct heap_model *model;
static void **blocks;           /* of each request, NULL if it has none */
static unsigned requests, next; /* the first of the warp that comes next */
static unsigned low, high;      /* bytes */
static size_t served_bytes;
static unsigned served;
static unsigned long longest, all_operations; /* of one request, and of all of them */

static unsigned bytes_of(unsigned request) {
  return low + (unsigned)((request * 0x9e3779b97f4a7c15u >> 33) % (high - low + 1));
}

/* The first request of the warp that comes next; false if there is none. */
static bool warp_comes(unsigned *first) {
  if (next >= requests)
    return false;
  *first = next;
  next += LANES;
  return true;
}

/* One class's lanes of a warp after another's, as they act together on the GPU. */
static void ask_as_a_group(unsigned first, unsigned leader, bool *asked) {
  unsigned group[LANES], count = 0, bytes = bytes_of(first + leader);
  void *got[LANES];
  for (unsigned lane = leader; lane < LANES && first + lane < requests; lane++)
    if (!asked[lane] && blocks[first + lane] == NULL && mam__class_of(bytes_of(first + lane)) == mam__class_of(bytes)) {
      asked[lane] = true;
      group[count++] = first + lane;
    }
  unsigned slots = model->control->heap.slot_count;
  unsigned long before = operations[coroutine_running];
  unsigned had = heap_model_malloc_warp(model, bytes, first / LANES % slots, count, got);
  unsigned long took = operations[coroutine_running] - before;
  all_operations += took;
  longest = took > longest ? took : longest;
  for (unsigned i = 0; i < had; i++) {
    if (blocks[group[i]] != NULL || mam__block_bytes(model->control, (mam__u64)(uintptr_t)got[i]) < bytes_of(group[i]))
      ck_abort_msg("a block is too small for its request");
    blocks[group[i]] = got[i];
    served_bytes += bytes_of(group[i]);
    served++;
  }
}

static bool ask_as_a_warp(void) {
  bool asked[LANES] = {false};
  unsigned first = 0;
  if (!warp_comes(&first))
    return false;
  for (unsigned lane = 0; lane < LANES && first + lane < requests; lane++)
    if (!asked[lane] && blocks[first + lane] == NULL)
      ask_as_a_group(first, lane, asked);
  return true;
}

static bool free_as_a_warp(void) {
  unsigned first = 0;
  if (!warp_comes(&first))
    return false;
  for (unsigned i = first; i < first + LANES && i < requests; i++)
    if (blocks[i] != NULL) {
      if (!heap_model_free(model, blocks[i]))
        ck_abort_msg("a live block was refused");
      blocks[i] = NULL;
    }
  return true;
}

static void ask_all(void) {
  next = 0;
  crowd_run(ask_as_a_warp);
}

static void free_all(void) {
  next = 0;
  crowd_run(free_as_a_warp);
  served = 0;
  served_bytes = 0;
}

static void begin(size_t heap_bytes, size_t asked_bytes, unsigned least, unsigned most, bool lazy) {
  model = heap_model_create(heap_bytes, 132);
  if (lazy)
    heap_model_make_lazy(model);
  low = least;
  high = most;
  served = 0;
  served_bytes = 0;
  requests = (unsigned)(asked_bytes / ((low + high) / 2));
  blocks = (void **)calloc(requests, sizeof *blocks);
}

static void end(void) {
  heap_model_destroy(model);
  free(blocks);
}

/* ---- Tests ---- */

static const struct {
  size_t heap_bytes;
  unsigned low, high;
  double least_share, least_mean; /* of one round, of all of them */
} fills[] = {
    {MIB / 4, 16, 64, 0.73, 0.78},   {MIB / 4, 256, 256, 0.9, 0.95},    {1 * MIB, 16, 64, 0.75, 0.75},
    {2 * MIB, 4, 512, 0.65, 0.65},   {8 * MIB, 4, 512, 0.75, 0.75},     {1 * MIB, 16, 16, 0.95, 0.95},
    {4 * MIB, 256, 256, 0.95, 0.95}, {4 * MIB, 1024, 1024, 0.95, 0.95}, {8 * MIB, 4096, 4096, 0.95, 0.95},
};

/* Time and again: what a crowd leaves behind must not keep the next one from the memory.  The mean share. */
enum { FILLS = 4 };
static double fill_and_empty(size_t heap_bytes, double least_share, bool lazy) {
  double all = 0;
  for (unsigned round = 0; round < FILLS; round++) {
    ask_all();
    double share = (double)served_bytes / (double)heap_bytes;
    all += share;
    (void)printf("%s%zu KiB in %u to %u bytes, round %u: %.1f %%\n", lazy ? "lazy: " : "", heap_bytes >> 10, low, high,
                 round, 100 * share);
    if (share < least_share)
      ck_abort_msg("round %u: of %zu bytes only %.1f %% are handed out in %u to %u bytes", round, heap_bytes,
                   100 * share, low, high);
    free_all();
  }
  return all / FILLS;
}

START_TEST(a_crowd_gets_what_there_is) {
  bool lazy = _i % 2 != 0;
  size_t heap_bytes = fills[_i / 2].heap_bytes;
  /* What is lost of a small heap is seen at once, if chance gets that far. */
  unsigned seeds = heap_bytes < MIB ? 20 : 1;
  double all = 0;
  for (unsigned seed = 0; seed < seeds; seed++) {
    random_state = 88172645463325252u + (unsigned)_i + 1000003u * seed;
    begin(heap_bytes, heap_bytes / 4 * 5, fills[_i / 2].low, fills[_i / 2].high, lazy);
    all += fill_and_empty(heap_bytes, fills[_i / 2].least_share, lazy);
    end();
  }
  (void)printf("the mean: %.2f %%\n", 100 * all / seeds);
  ck_assert_double_ge(all / seeds, fills[_i / 2].least_mean);
}
END_TEST

/* Spans of one size that were emptied serve another, though nobody ended them. */
START_TEST(a_crowd_gets_what_another_size_left) {
  static const unsigned sizes[] = {16, 1024, 48, 4096, 160};
  random_state = 88172645463325252u;
  begin(2 * MIB, 2 * MIB / 4 * 5, sizes[0], sizes[0], _i != 0);
  for (unsigned i = 0; i < 5; i++) {
    low = high = sizes[i];
    requests = (unsigned)((_i != 0 ? 1 : 2) * MIB * 9 / 10 / sizes[i]);
    ask_all();
    if (served != requests)
      ck_abort_msg("of %u blocks of %u bytes only %u are served", requests, low, served);
    free_all();
  }
  end();
}
END_TEST

START_TEST(a_crowd_gets_all_of_a_heap_that_grew) {
  random_state = 88172645463325252u;
  begin(1 * MIB, 5 * MIB, 256, 256, _i != 0);
  ask_all();
  ck_assert_uint_lt(served, requests);
  for (unsigned i = 0; i < 5; i++)
    heap_model_grow(model, 1 * MIB);
  ask_all();
  if (served != requests)
    ck_abort_msg("of %u requests only %u are served, with a sixth of the heap to spare", requests, served);
  free_all();
  end();
}
END_TEST

/* ---- What it takes ---- */

/* In a heap of 1 GiB whose pages have run out, though three quarters of it are free.  With a search of the whole page
 * map for each refill that found none near its home, the longest requests took 6,074 and 52,845 operations one after
 * the other, and those of a warp 153 and 19,816. */
static const struct need {
  const char *name;
  unsigned low, high, requests, chance; /* in quarters: that a request comes or goes in a round */
  unsigned long longest_most, warp_most;
} needs[] = {
    {"512 B that come and go", 512, 512, 1 << 20, 3, 700, 60},
    {"16 B to 4 KiB", 16, 4096, 1 << 17, 4, 6000, 3000},
};
static const struct need *need;
static unsigned round_now;

static bool comes_or_goes(unsigned request) {
  uint64_t mixed = (request + 1) * 0x9e3779b97f4a7c15u + round_now * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 31) * 0x94d049bb133111ebu;
  return (unsigned)(mixed >> 40) % 4 < need->chance;
}

/* Those of a warp's requests that have a block free it; the others ask for one. */
static bool change_as_a_warp(void) {
  bool asked[LANES] = {false};
  unsigned first = 0;
  if (!warp_comes(&first))
    return false;
  for (unsigned i = first; i < first + LANES; i++) {
    bool changes = comes_or_goes(i);
    asked[i - first] = !changes || blocks[i] != NULL;
    if (changes && blocks[i] != NULL) {
      ck_assert(heap_model_free(model, blocks[i]));
      blocks[i] = NULL;
    }
  }
  for (unsigned lane = 0; lane < LANES; lane++)
    if (!asked[lane])
      ask_as_a_group(first, lane, asked);
  return true;
}

START_TEST(a_crowd_in_need_does_not_search_in_vain) {
  enum { ROUNDS = 16, WARM = 6 };
  unsigned long all = 0, most = 0, asking = 0;
  need = &needs[_i];
  random_state = 88172645463325252u;
  begin((size_t)1024 * MIB, (size_t)need->requests * ((need->low + need->high) / 2), need->low, need->high, true);
  for (round_now = 0; round_now < ROUNDS; round_now++) {
    next = served = 0;
    longest = all_operations = 0;
    crowd_run(change_as_a_warp);
    if (round_now < WARM || served == 0)
      continue;
    all += all_operations;
    most = longest > most ? longest : most;
    asking += served;
  }
  (void)printf("%s: the longest request takes %lu operations, a warp's %lu\n", need->name, most, 32 * all / asking);
  (void)fflush(stdout);
  ck_assert_int_ne(model->control->mode, MAM__MODE_LAZY); /* pages did run out */
  ck_assert_uint_le(most, need->longest_most);
  ck_assert_uint_le(32 * all / asking, need->warp_most);
  end();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap crowd");
  TCase *tests = tcase_create("crowd");
  tcase_set_timeout(tests, 100);
  if (COROUTINES_WORK) {
    tcase_add_loop_test(tests, a_crowd_gets_what_there_is, 0, 2 * sizeof fills / sizeof fills[0]);
    tcase_add_loop_test(tests, a_crowd_gets_what_another_size_left, 0, 2);
    tcase_add_loop_test(tests, a_crowd_gets_all_of_a_heap_that_grew, 0, 2);
    tcase_add_loop_test(tests, a_crowd_in_need_does_not_search_in_vain, 0, sizeof needs / sizeof needs[0]);
  }
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
