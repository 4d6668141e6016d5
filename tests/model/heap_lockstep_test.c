/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How long a kernel waits for a device heap that is partly full.  All groups of a kernel run in lock-step, as on a GPU
 * that has room for all of them: in each tick every group makes one atomic operation, or eight loads, which a GPU has
 * under way together; a store costs nothing.  So threads that disturb each other cost ticks, which a count of
 * operations does not show.  An H200 took about a microsecond for a tick.
 *
 * In a round half of the blocks are freed, and one kernel allocates as many, of 16 B to 1 KiB.  In traffic, each thread
 * of one kernel frees and allocates by itself, and so do the threads of all sizes at the same time.
 */
#include <stdbool.h>
#include <stdint.h>

static void step(void);
static void step_load(void);
static uint32_t random_below(uint32_t bound);
#define MAM__ATOMICS_SALT() random_below(1u << 24)
#define MAM__ATOMICS_STEP() step()
#define MAM__ATOMICS_SEEN(value) (value)
#define MAM__ATOMICS_LOAD() step_load()
#define MAM__ATOMICS_STORE() ((void)0)
#define MAM__ATOMICS_PAUSE() step()
static uint64_t ticks_ns(void);
#define MAM__ATOMICS_TIME_NS() ticks_ns()

#include <check.h>
#include <stdio.h>

#define COROUTINES 8192
#define COROUTINE_STACK_BYTES (16 * 1024)
#include "mam/detail/heap_grow.h"
#include "support/coroutine.h"
#include "support/heap_model.h"
#include "support/random.h"
#include "support/run_suite.h"

enum { LANES = 32, LOADS_TOGETHER = 8, THREADS_MOST = 1 << 14, LOW = 16, HIGH = 1024, MIB = 1 << 20 };

/* ---- Lock-step ---- */

static uint8_t loads[COROUTINES]; /* since the coroutine's last step */

static void step(void) {
  if (coroutine_running < 0)
    return;
  loads[coroutine_running] = 0;
  coroutine_yield();
}

static void step_load(void) {
  if (coroutine_running >= 0 && ++loads[coroutine_running] == LOADS_TOGETHER)
    step();
}

static unsigned ticks; /* of this run */
static unsigned late;  /* the first coroutine stands still from the third tick on, up to this one */

static uint64_t ticks_ns(void) { return (uint64_t)ticks * 1000; }

/* Runs so many coroutines in lock-step.  Returns the ticks. */
static unsigned run(unsigned count, void (*body)(int which)) {
  static int present[COROUTINES];
  ticks = 0;
  for (unsigned i = 0; i < count; i++) {
    coroutine_create((int)i, body);
    present[i] = (int)i;
    loads[i] = 0;
  }
  for (; count != 0; ticks++)
    for (unsigned i = 0; i < count;) {
      if (present[i] == 0 && ticks > 1 && ticks < late) {
        i++;
        continue;
      }
      coroutine_resume(present[i]);
      if (coroutine_lives[present[i]])
        i++;
      else
        present[i] = present[--count];
    }
  return ticks;
}

/* ---- Rounds ---- */

/* Lanes of a warp that ask for the same class at once. */
struct group {
  unsigned warp, count, bytes, threads[LANES];
};

static struct heap_model *model;
static void *blocks[THREADS_MOST];
static unsigned threads, group_count, refused;
static struct group groups[COROUTINES];

static void ask(int which) {
  struct group *group = &groups[which];
  void *got[LANES];
  unsigned slot = group->warp % model->control->heap.slot_count;
  unsigned had = heap_model_malloc_warp(model, group->bytes, slot, group->count, got);
  for (unsigned i = 0; i < had; i++)
    blocks[group->threads[i]] = got[i];
  refused += group->count - had;
}

static void groups_form(void) {
  static unsigned bytes[THREADS_MOST];
  group_count = 0;
  for (unsigned thread = 0; thread < threads; thread++)
    bytes[thread] = blocks[thread] == NULL ? LOW + random_below(HIGH - LOW + 1) : 0;
  for (unsigned thread = 0; thread < threads; thread++) {
    if (bytes[thread] == 0)
      continue;
    ck_assert_uint_lt(group_count, COROUTINES);
    struct group *group = &groups[group_count++];
    *group = (struct group){.warp = thread / LANES, .bytes = bytes[thread]};
    for (unsigned other = thread; other < threads && other / LANES == group->warp; other++)
      if (bytes[other] != 0 && mam__class_of(bytes[other]) == mam__class_of(group->bytes)) {
        group->threads[group->count++] = other;
        bytes[other] = 0;
      }
  }
}

static void half_free(void) {
  for (unsigned thread = 0; thread < threads; thread++)
    if (blocks[thread] != NULL && random_below(2) == 0) {
      ck_assert(heap_model_free(model, blocks[thread]));
      blocks[thread] = NULL;
    }
}

/* The ticks are those of rounds that are like each other; when threads began all at the same free chunks and went on
 * with an old copy of what is free, a round took 267 and 284 on average, and 331 and 321 at most. */
static const struct {
  size_t heap_bytes;
  unsigned threads, mean_most, round_most;
} loads_of_heap[] = {{16 * MIB, 1 << 14, 100, 200}, {8 * MIB, 12288, 120, 220}};

START_TEST(a_heap_that_is_partly_full_is_quick) {
  enum { WARM = 5, ROUNDS = 12 };
  unsigned all = 0, most = 0;
  random_state = 88172645463325252u;
  threads = loads_of_heap[_i].threads;
  refused = 0;
  memset(blocks, 0, sizeof blocks);
  model = heap_model_create(loads_of_heap[_i].heap_bytes, 132);
  for (unsigned round = 0; round < WARM + ROUNDS; round++) {
    half_free();
    groups_form();
    (void)run(group_count, ask);
    all += round >= WARM ? ticks : 0;
    most = round >= WARM && ticks > most ? ticks : most;
  }
  (void)printf("%zu MiB, %u threads: %u ticks a round, %u at most\n", loads_of_heap[_i].heap_bytes / MIB, threads,
               all / ROUNDS, most);
  ck_assert_uint_eq(refused, 0);
  ck_assert_uint_le(all / ROUNDS, loads_of_heap[_i].mean_most);
  ck_assert_uint_le(most, loads_of_heap[_i].round_most);
  heap_model_destroy(model);
}
END_TEST

/* Requests of single lanes for blocks of which a span has two: so many spans are opened at once.  When a thread counted
 * itself among those that open a span by a compare-and-swap, a round took up to 9,436 ticks. */
START_TEST(single_lanes_open_spans_at_once) {
  enum { REQUESTS = 2000, BYTES = 10 << 10, ROUNDS = 3 };
  unsigned most = 0;
  random_state = 88172645463325252u;
  threads = group_count = REQUESTS;
  refused = 0;
  memset(blocks, 0, sizeof blocks);
  model = heap_model_create((size_t)64 * MIB, 132);
  for (unsigned round = 0; round < ROUNDS; round++) {
    for (unsigned i = 0; i < REQUESTS; i++)
      groups[i] = (struct group){.warp = i / LANES, .count = 1, .bytes = BYTES, .threads = {i}};
    (void)run(group_count, ask);
    most = ticks > most ? ticks : most;
    for (unsigned i = 0; i < REQUESTS; i++)
      ck_assert(blocks[i] != NULL && heap_model_free(model, blocks[i]));
  }
  (void)printf("64 MiB, single lanes: %u ticks at most\n", most);
  ck_assert_uint_eq(refused, 0);
  ck_assert_uint_le(most, 3000);
  heap_model_destroy(model);
}
END_TEST

/* The thread that refills a slot is slow, as the first warp of a kernel is whose instructions are not there yet.  The
 * requests that wait for it open spans of their own, few at a time.  When a span of one page did not count,
 * each took a page for 16 bytes: 2,000 of the heap's 2,012. */
START_TEST(a_slow_refill_costs_little_memory) {
  static const unsigned sizes[] = {16, 64, 200};
  enum { REQUESTS = 2000 };
  random_state = 88172645463325252u;
  threads = group_count = REQUESTS;
  refused = 0;
  memset(blocks, 0, sizeof blocks);
  model = heap_model_create((size_t)8 * MIB, 132);
  mam__u32 pages = heap_model_free_pages(model);
  for (unsigned i = 0; i < REQUESTS; i++)
    groups[i] = (struct group){.count = 1, .bytes = sizes[_i], .threads = {i}};
  late = 2000;
  (void)run(group_count, ask);
  late = 0;
  pages -= heap_model_free_pages(model);
  (void)printf("8 MiB, a slow refill: %u requests of %u bytes take %u pages\n", REQUESTS, sizes[_i], pages);
  ck_assert_uint_eq(refused, 0);
  ck_assert_uint_le(pages, REQUESTS * sizes[_i] / 4096 + 32);
  heap_model_destroy(model);
}
END_TEST

/* ---- Traffic ---- */

enum { PLACES = 4, TRAFFIC_ROUNDS = 8, TRAFFIC_THREADS = 40000 };

static void *held[TRAFFIC_THREADS][PLACES];
static unsigned traffic_low, traffic_high;

/* The requests of a warp, a group of lanes after another. */
static void warp_asks(unsigned warp, unsigned place) {
  unsigned classes[LANES];
  for (unsigned lane = 0; lane < LANES; lane++)
    classes[lane] = random_below(4) == 0 ? MAM__HEAP_CLASSES
                                         : mam__class_of(traffic_low + random_below(traffic_high - traffic_low + 1));
  for (unsigned lane = 0; lane < LANES; lane++) {
    unsigned lanes[LANES], count = 0, class = classes[lane];
    void *got[LANES];
    for (unsigned other = lane; other < LANES && class < MAM__HEAP_CLASSES; other++)
      if (classes[other] == class) {
        lanes[count++] = other;
        classes[other] = MAM__HEAP_CLASSES;
      }
    unsigned had = heap_model_malloc_warp(model, mam__class_bytes(class % MAM__HEAP_CLASSES),
                                          warp % model->control->heap.slot_count, count, got);
    for (unsigned i = 0; i < had; i++)
      held[warp * LANES + lanes[i]][place] = got[i];
    refused += count - had;
  }
}

static void warp_goes(int warp) {
  for (unsigned round = 0; round < TRAFFIC_ROUNDS; round++) {
    for (unsigned lane = 0; lane < LANES; lane++) {
      void **block = &held[(unsigned)warp * LANES + lane][round % PLACES];
      if (*block != NULL && !heap_model_free(model, *block))
        abort();
      *block = NULL;
    }
    warp_asks((unsigned)warp, round % PLACES);
  }
}

/* Runs the traffic of so many threads, with blocks of low to high bytes.  Returns the ticks. */
static unsigned traffic(size_t heap_bytes, unsigned count, unsigned low, unsigned high) {
  random_state = 88172645463325252u;
  refused = 0;
  memset(held, 0, sizeof held);
  traffic_low = low;
  traffic_high = high;
  model = heap_model_create(heap_bytes, 132);
  (void)run(count / LANES, warp_goes);
  (void)printf("%zu MiB, %u threads, %u to %u bytes: %u ticks, %u refused\n", heap_bytes / MIB, count, low, high, ticks,
               refused);
  heap_model_destroy(model);
  return ticks;
}

/* Half of the heap is live.  With the spans of a vast heap, of which slots of all classes hold more than this heap has,
 * every twenty-first request was refused. */
START_TEST(traffic_of_all_sizes_leaves_room) {
  ck_assert_uint_le(traffic((size_t)512 * MIB, TRAFFIC_THREADS, 1, 5000), 30000);
  ck_assert_uint_eq(refused, 0);
}
END_TEST

/* Pages come back all the time, a few at a time.  When each made all threads search again for runs of all lengths, this
 * took 46,946 ticks; and 877 requests were refused, since slots held spans of up to 64 pages of all classes. */
START_TEST(single_pages_that_come_back_are_no_reason_to_search_for_long_runs) {
  ck_assert_uint_le(traffic((size_t)1024 * MIB, TRAFFIC_THREADS, 16, 11000), 15000);
  ck_assert_uint_eq(refused, 0);
}
END_TEST

/* Four blocks for each thread would be nine times the heap.  What is freed goes to one request at once, and the others
 * find each time that something came back.  When they searched up to 1,024 times for it, this took 513,870 ticks. */
START_TEST(requests_for_more_than_there_is_end_soon) {
  enum { THREADS = 2048 };
  ck_assert_uint_le(traffic((size_t)16 * MIB, THREADS, 16 << 10, 32 << 10), 15000);
  ck_assert_uint_gt(refused, 0);
  ck_assert_uint_lt(refused, THREADS * TRAFFIC_ROUNDS * 9 / 10);
}
END_TEST

/* ---- Runs ---- */

enum { RUN_BYTES = 128 << 10, RUNS = 1228, WARM_THREADS = 4000, WARM_BLOCKS = 12 };

static void *run_blocks[RUNS];

/* Allocates and frees blocks of all classes, so that slots hold spans afterwards. */
static void warms(int thread) {
  for (unsigned i = 0; i < WARM_BLOCKS; i++) {
    void *block[1];
    unsigned slot = (unsigned)thread % model->control->heap.slot_count;
    if (heap_model_malloc_kind(model, random_below(MAM__HEAP_CLASSES), slot, 1, block) != 1 ||
        !heap_model_free(model, block[0]))
      abort();
  }
}

static void asks_for_a_run(int thread) {
  unsigned slot = (unsigned)thread % model->control->heap.slot_count;
  refused += heap_model_malloc_warp(model, RUN_BYTES, slot, 1, &run_blocks[thread]) != 1;
}

/* Nothing is live, and runs of a third of the heap are asked for at once.  When one thread at a time freed what slots
 * held, and only if nothing had come back since its search, 851 of these requests were refused after 248,463 ticks. */
START_TEST(an_empty_heap_whose_slots_hold_much_serves_runs) {
  random_state = 88172645463325252u;
  refused = 0;
  model = heap_model_create((size_t)512 * MIB, 132);
  (void)run(WARM_THREADS, warms);
  (void)run(RUNS, asks_for_a_run);
  (void)printf("512 MiB, runs: %u ticks, %u refused\n", ticks, refused);
  ck_assert_uint_eq(refused, 0);
  ck_assert_uint_le(ticks, 8000);
  for (unsigned i = 0; i < RUNS; i++)
    ck_assert(heap_model_free(model, run_blocks[i]));
  heap_model_destroy(model);
}
END_TEST

/* ---- Growth ---- */

enum {
  GROWERS = 1342,
  GROWN_LOW = 33000,
  GROWN_HIGH = 70000,
  GROWN_BYTES = 4 * MIB,
  /* The host looks at its bell after so many ticks, and takes memory in so many. */
  HOST_LOOKS = 50,
  HOST_TAKES = 500
};

static uint64_t bell;
static unsigned growers_left, answers;

static void host_answers(void) {
  struct mam__growth *growth = &model->control->growth;
  mam__u32 round = mam__round_number(growth->reply);
  answers++;
  if (mam__round_number(bell) == round) {
    for (unsigned i = 0; i < HOST_TAKES; i++)
      step();
    heap_model_grow(model, GROWN_BYTES);
  }
  growth->reply = mam__round_of(round + 1, 0);
}

static void grower(int which) {
  mam__plea plea = 0;
  size_t bytes = GROWN_LOW + random_below(GROWN_HIGH - GROWN_LOW + 1);
  uint64_t last = bell;
  if (which == GROWERS) {
    while (growers_left != 0) {
      for (unsigned i = 0; i < HOST_LOOKS; i++)
        step();
      if (bell != last) {
        last = bell;
        host_answers();
      }
    }
    return;
  }
  do {
    if (heap_model_malloc(model, bytes, (unsigned)which % model->control->heap.slot_count) != NULL)
      break;
    plea =
        mam__growth_await(&model->control->growth, (mam__u32)((bytes + MAM__PAGE_BYTES - 1) / MAM__PAGE_BYTES), plea);
    refused += plea == 0;
  } while (plea != 0);
  growers_left--;
}

/* A search takes longer than an answer of the host.  When a thread rang for the round in which its search began, the
 * host answered one late ring after another, and each answer made all search again: no memory came any more. */
START_TEST(requests_of_many_sizes_let_a_heap_grow) {
  random_state = 88172645463325252u;
  refused = answers = 0;
  bell = 0;
  growers_left = GROWERS;
  model = heap_model_create(GROWN_BYTES, 132);
  model->control->growth =
      (struct mam__growth){.bell = (mam__u64 *)&bell, .patience = 60, .reply = mam__round_of(1, 0)};
  (void)run(GROWERS + 1, grower);
  unsigned grown = model->control->superblock_count - 1;
  (void)printf("growth: %u ticks, %u refused, %u answers, grown %u times\n", ticks, refused, answers, grown);
  ck_assert_uint_eq(refused, 0);
  ck_assert_uint_le(ticks, 30000);
  ck_assert_uint_le(answers, 2 * grown);
  heap_model_destroy(model);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("heap lock-step");
  TCase *tests = tcase_create("rounds");
  tcase_set_timeout(tests, 60);
  if (COROUTINES_WORK)
    tcase_add_test(tests, traffic_of_all_sizes_leaves_room);
  if (COROUTINES_WORK)
    tcase_add_test(tests, single_pages_that_come_back_are_no_reason_to_search_for_long_runs);
  if (COROUTINES_WORK)
    tcase_add_test(tests, requests_for_more_than_there_is_end_soon);
  if (COROUTINES_WORK)
    tcase_add_test(tests, single_lanes_open_spans_at_once);
  if (COROUTINES_WORK)
    tcase_add_loop_test(tests, a_slow_refill_costs_little_memory, 0, 3);
  if (COROUTINES_WORK)
    tcase_add_test(tests, requests_of_many_sizes_let_a_heap_grow);
  if (COROUTINES_WORK)
    tcase_add_test(tests, an_empty_heap_whose_slots_hold_much_serves_runs);
  if (COROUTINES_WORK)
    tcase_add_loop_test(tests, a_heap_that_is_partly_full_is_quick, 0, sizeof loads_of_heap / sizeof loads_of_heap[0]);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
