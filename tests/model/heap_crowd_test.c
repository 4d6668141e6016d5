/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device heap's algorithm with many warps at once.  Hundreds of warps stop before every atomic operation, and
 * chance decides which one goes on.  The tests ask whether a nearly full heap gives all that it has left, in whatever
 * order the warps go.
 *
 * The warps are coroutines on one thread, and chance has a seed, so a run can be repeated.  heap_interleave_test.c has
 * few threads in every order; here many threads go in one random order.
 */
#include <stdbool.h>
#include <stdint.h>

static void step(void);
static uint32_t random_below(uint32_t bound);
#define MAM__ATOMICS_SALT() random_below(1u << 24)
#define MAM__ATOMICS_STEP() step()
#define MAM__ATOMICS_SEEN(value) (value)
#define MAM__ATOMICS_PAUSE() step()

#include <check.h>
#include <stdio.h>

enum { CROWD = 1056, LANES = 32, MIB = 1 << 20 };
#define COROUTINES CROWD

#include "support/coroutine.h"
#include "support/heap_model.h"
#include "support/random.h"
#include "support/run_suite.h"

/* ---- The crowd ---- */

static int present[CROWD]; /* warps that have not ended, in any order */
static unsigned long operations[CROWD];

static void step(void) {
  if (coroutine_running < 0)
    return;
  operations[coroutine_running]++;
  coroutine_yield();
}

/* All warps share one task.  Each call does the next part of it and returns whether there was one. */
static bool (*task)(void);

static void body(int which) {
  (void)which;
  while (task())
    continue;
}

static int crowd; /* how many there are */

static void crowd_run(bool (*todo)(void)) {
  unsigned count = (unsigned)crowd;
  task = todo;
  for (int i = 0; i < crowd; i++) {
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
static void **blocks;           /* the block of each request, NULL if it has none */
static unsigned requests, next; /* next: the first request of the warp that comes next */
static unsigned low, high;      /* bytes of a request */
static size_t served_bytes;
static unsigned served;
static unsigned long longest, all_operations; /* atomic operations of one request, and of all */

static unsigned bytes_of(unsigned request) {
  return low + (unsigned)((request * 0x9e3779b97f4a7c15u >> 33) % (high - low + 1));
}

/* Writes the first request of the next warp.  False if there is none. */
static bool warp_comes(unsigned *first) {
  if (next >= requests)
    return false;
  *first = next;
  next += LANES;
  return true;
}

/* Takes the lanes that ask for the class of the lowest one out of a mask; they ask together, as on the GPU.  Returns
 * how many they are. */
static unsigned group_take(const unsigned bytes[LANES], uint32_t *lanes, unsigned group[LANES]) {
  unsigned count = 0, first = (unsigned)__builtin_ctz(*lanes);
  for (unsigned lane = first; lane < LANES; lane++)
    if ((*lanes >> lane & 1) != 0 && mam__class_of(bytes[lane]) == mam__class_of(bytes[first])) {
      *lanes &= ~(1u << lane);
      group[count++] = lane;
    }
  return count;
}

/* Asks for the requests of a warp's lanes, a mask.  first: the request of lane 0. */
static void ask_for_lanes(unsigned first, uint32_t lanes) {
  unsigned bytes[LANES], group[LANES], slots = model->control->heap.slot_count;
  void *got[LANES];
  for (unsigned lane = 0; lane < LANES; lane++)
    bytes[lane] = bytes_of(first + lane);
  while (lanes != 0) {
    unsigned count = group_take(bytes, &lanes, group);
    unsigned long before = operations[coroutine_running];
    unsigned had = heap_model_malloc_warp(model, bytes[group[0]], first / LANES % slots, count, got);
    unsigned long took = operations[coroutine_running] - before;
    all_operations += took;
    longest = took > longest ? took : longest;
    for (unsigned i = 0; i < had; i++) {
      void **block = &blocks[first + group[i]];
      if (*block != NULL || mam__block_bytes(model->control, (mam__u64)(uintptr_t)got[i]) < bytes[group[i]])
        ck_abort_msg("a block is too small for its request");
      *block = got[i];
      served_bytes += bytes[group[i]];
      served++;
    }
  }
}

static bool ask_as_a_warp(void) {
  uint32_t lanes = 0;
  unsigned first = 0;
  if (!warp_comes(&first))
    return false;
  for (unsigned i = first; i < first + LANES && i < requests; i++)
    lanes |= (uint32_t)(blocks[i] == NULL) << (i - first);
  ask_for_lanes(first, lanes);
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
  crowd = 256;
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
  double least_share, least_mean; /* the least share that a round hands out, and the least mean */
} fills[] = {
    {MIB / 4, 16, 64, 0.7, 0.78},    {MIB / 4, 256, 256, 0.9, 0.95},    {1 * MIB, 16, 64, 0.75, 0.75},
    {2 * MIB, 4, 512, 0.65, 0.65},   {8 * MIB, 4, 512, 0.75, 0.75},     {1 * MIB, 16, 16, 0.95, 0.95},
    {4 * MIB, 256, 256, 0.95, 0.95}, {4 * MIB, 1024, 1024, 0.95, 0.95}, {8 * MIB, 4096, 4096, 0.95, 0.95},
};

/* An empty heap gives 90 % of its pages in one piece at the first request, whatever slots held before. */
static void assert_gives_one_piece(void) {
  size_t pages = (size_t)model->control->heap.page_count * 9 / 10;
  void *piece = heap_model_malloc(model, pages << MAM__PAGE_SHIFT, 0);
  if (piece == NULL)
    ck_abort_msg("no %zu pages in a row, though %u of %u are free", pages, heap_model_free_pages(model),
                 model->control->heap.page_count);
  ck_assert(heap_model_free(model, piece));
}

/* Fills and empties a heap several times: what one crowd leaves must not keep memory from the next one.  Returns the
 * mean share that was handed out. */
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
    assert_gives_one_piece();
  }
  return all / FILLS;
}

START_TEST(a_crowd_gets_what_there_is) {
  bool lazy = _i % 2 != 0;
  size_t heap_bytes = fills[_i / 2].heap_bytes;
  /* In a small heap a loss shows at once, but chance must get there: so there are several seeds. */
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

/* Empty spans of one size serve another size, though no thread ended them. */
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

/* Blocks of many sizes that have room together get it: the spans of the slots of all classes leave enough. */
START_TEST(a_crowd_that_has_room_is_served) {
  static const size_t heaps[] = {8 * MIB, 64 * MIB, 256 * MIB, 512 * MIB, 1024 * MIB};
  random_state = 88172645463325252u;
  begin(heaps[_i], heaps[_i] / 3 * 2, 1, 4000, heaps[_i] >= 256 * MIB);
  for (unsigned round = 0; round < 3; round++) {
    ask_all();
    if (served < requests - requests / 100)
      ck_abort_msg("round %u: of %u requests of 1 to 4,000 bytes, two thirds of %zu MiB, only %u are served", round,
                   requests, heaps[_i] / MIB, served);
    free_all();
  }
  end();
}
END_TEST

/* Each lane asks for blocks until it is refused for the first time.  A lane's blocks are a list. */
static struct block { struct block *next; } * lists[CROWD][LANES];
static bool ask_until_refused(void) {
  uint32_t asking = 0xffffffffu;
  unsigned warp = (unsigned)coroutine_running, slot = warp % model->control->heap.slot_count;
  while (asking != 0) {
    unsigned bytes[LANES], group[LANES];
    void *got[LANES];
    for (unsigned lane = 0; lane < LANES; lane++)
      bytes[lane] = 1 + random_below(4000);
    for (uint32_t left = asking; left != 0;) {
      unsigned count = group_take(bytes, &left, group);
      unsigned had = heap_model_malloc_warp(model, bytes[group[0]], slot, count, got);
      for (unsigned i = 0; i < had; i++) {
        struct block *block = (struct block *)got[i];
        block->next = lists[warp][group[i]];
        lists[warp][group[i]] = block;
        served_bytes += bytes[group[i]];
      }
      for (unsigned i = had; i < count; i++)
        asking &= ~(1u << group[i]);
    }
  }
  return false;
}

static bool free_lists(void) {
  for (unsigned lane = 0; lane < LANES; lane++)
    for (struct block *block = lists[coroutine_running][lane], *after; block != NULL; block = after) {
      after = block->next;
      if (!heap_model_free(model, block))
        ck_abort_msg("a live block was refused");
    }
  memset(lists[coroutine_running], 0, sizeof lists[coroutine_running]);
  return false;
}

/* A heap that was filled and emptied, and whose slots are dry, serves as many bytes as a new one, less 1 %.  When as
 * many spans were opened at once for small chunks as for large ones, it was 1.9 % less, and 7 % on a GPU. */
START_TEST(an_emptied_heap_gives_what_a_new_one_gives) {
  size_t first = 0, later = 0;
  random_state = 88172645463325252u;
  model = heap_model_create(16 * MIB, 132);
  crowd = CROWD;
  for (unsigned round = 0; round < FILLS; round++) {
    served_bytes = 0;
    crowd_run(ask_until_refused);
    (void)printf("1 to 4,000 bytes, each lane until it is refused, round %u: %.1f %%\n", round,
                 100 * (double)served_bytes / (16 * MIB));
    if (round == 0)
      first = served_bytes;
    else
      later += served_bytes;
    crowd_run(free_lists);
  }
  ck_assert_uint_ge(later / (FILLS - 1), first / 100 * 99);
  heap_model_destroy(model);
}
END_TEST

/* ---- How many operations a request takes ---- */

/* A heap of 1 GiB with the spans of a vast one, whose pages have run out, though three quarters of it are free.  The
 * bounds tell this algorithm from one that searches the whole page map for each refill that finds no pages near its
 * home.  There the longest requests took 6,074 operations in the first case and 52,845 in the second.  The requests of
 * a warp took 153 and 19,816. */
static const struct need {
  const char *name;
  unsigned low, high, requests, chance; /* chance: in quarters, that a request comes or goes in a round */
  unsigned long longest_most, warp_most;
} needs[] = {
    {"512 B that come and go", 512, 512, 1 << 20, 3, 1500, 40},
    {"16 B to 4 KiB", 16, 4096, 1 << 17, 4, 3000, 600},
};
static const struct need *need;
static unsigned round_now;

static bool comes_or_goes(unsigned request) {
  uint64_t mixed = (request + 1) * 0x9e3779b97f4a7c15u + round_now * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 31) * 0x94d049bb133111ebu;
  return (unsigned)(mixed >> 40) % 4 < need->chance;
}

/* Changes some requests of a warp: those that have a block free it, the others ask for one. */
static bool change_as_a_warp(void) {
  uint32_t asking = 0;
  unsigned first = 0;
  if (!warp_comes(&first))
    return false;
  for (unsigned i = first; i < first + LANES; i++) {
    if (!comes_or_goes(i))
      continue;
    asking |= (uint32_t)(blocks[i] == NULL) << (i - first);
    if (blocks[i] != NULL)
      ck_assert(heap_model_free(model, blocks[i]));
    blocks[i] = NULL;
  }
  ask_for_lanes(first, asking);
  return true;
}

START_TEST(a_crowd_in_need_does_not_search_in_vain) {
  enum { ROUNDS = 16, WARM = 6 };
  unsigned long all = 0, most = 0, asking = 0;
  need = &needs[_i];
  random_state = 88172645463325252u;
  begin((size_t)1024 * MIB, (size_t)need->requests * ((need->low + need->high) / 2), need->low, need->high, true);
  model->control->heap.tuning = (model->control->heap.tuning & ~(MAM__FULL_WORD >> 24)) | MAM__VAST_CHUNKS;
  mam__slots_clear(model->control, 0, 1);
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
  ck_assert_int_ne(model->control->mode, MAM__MODE_LAZY); /* pages ran out */
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
    tcase_add_loop_test(tests, a_crowd_that_has_room_is_served, 0, 5);
    tcase_add_test(tests, an_emptied_heap_gives_what_a_new_one_gives);
    tcase_add_loop_test(tests, a_crowd_in_need_does_not_search_in_vain, 0, sizeof needs / sizeof needs[0]);
  }
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
