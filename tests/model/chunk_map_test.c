/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The lock-free reader of chunk_map.c and its writer: every interleaving of their accesses, one step at a time.
 *
 * Reader and writer are coroutines on one thread, and stop before each access that the other can see.  So accesses are
 * sequentially consistent; chunk_map.c argues what weaker orders could add.  A run is a string of choices, which of the
 * two goes at each step.  All strings are tried, depth first, each from the same beginning.  The build makes a second
 * copy of chunk_map.c for this test (chunk_map_step.h).
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "chunk_map_step.h"
#include "pool/chunk_map.h"
#include "support/run_suite.h"
#include "support/sanitized.h"

enum { READER, WRITER, COROUTINES, STACK_BYTES = 64 * 1024, CHOICES = 400 };

static struct mam_pool *const POOL_A = (struct mam_pool *)0xa0, *const POOL_B = (struct mam_pool *)0xb0,
                              *const POOL_C = (struct mam_pool *)0xc0;

/* ---- A scenario ---- */

struct scenario {
  void (*write)(void);
  void (*undo)(void); /* back to the beginning: a chunk of A at 100, one of C at 300 */
  uintptr_t address;  /* the address that the reader looks for */
  struct mam_pool *allowed[3];
  bool grows; /* each addition of the writer needs a larger table */
};

static const struct scenario *scenario;
/* ---- Coroutines ---- */

static ucontext_t scheduler, contexts[COROUTINES];
static _Alignas(16) char stacks[COROUTINES][STACK_BYTES];
static bool alive[COROUTINES];
static int running = COROUTINES; /* COROUTINES: the main program runs */

void chunk_map_test_step(bool is_store) {
  /* Only the writer stores, so its loads need no step. */
  if (running == READER || (running == WRITER && is_store))
    (void)swapcontext(&contexts[running], &scheduler);
}

/* A step only if tables are written: otherwise it would multiply the runs and show nothing. */
void chunk_map_test_table_step(void) {
  if (running == READER && scenario->grows)
    chunk_map_test_step(false);
}

static bool retried; /* the reader found the writer in the middle, and the writer has not gone on */

void chunk_map_test_retry(void) { retried = true; }

static void resume(int which) {
  running = which;
  (void)swapcontext(&scheduler, &contexts[which]);
  running = COROUTINES;
}

static struct mam_pool *found;

bool chunk_map_test_full(void) { return running == WRITER && scenario->grows; }

static void add(uintptr_t base, struct mam_pool *pool) {
  struct mam_pool *other;
  if (chunk_map_add(base, 100, pool, &other) != CHUNK_MAP_OK) /* an assertion of Check would cost more than a run */
    ck_abort_msg("the chunk at %#zx was not added", (size_t)base);
}

static void read_body(void) {
  found = chunk_map_find(scenario->address);
  alive[READER] = false;
}

static void write_body(void) {
  scenario->write();
  alive[WRITER] = false;
}

static void begin(int which, void (*body)(void)) {
  (void)getcontext(&contexts[which]);
  contexts[which].uc_stack.ss_sp = stacks[which];
  contexts[which].uc_stack.ss_size = STACK_BYTES;
  contexts[which].uc_link = &scheduler;
  makecontext(&contexts[which], body, 0);
  alive[which] = true;
}

/* ---- All interleavings ---- */

static unsigned char choices[CHOICES]; /* which one goes at each step of the present run */
static bool open_choice[CHOICES];      /* the writer could have gone there and was not tried */
static size_t length;

/* A reader that tries again knows nothing, so what follows depends on the position of the writer alone.  Of all runs
 * that reach a second look at one position, only one goes on with all its choices: the run that is here. */
static struct {
  size_t length;
  unsigned char choices[CHOICES];
} second_looks[CHOICES]; /* by the number of the writer's steps; length 0: no run yet */

/* Whether this run is the one that goes on from the writer's position. */
static bool looks_first(size_t writer_steps) {
  if (second_looks[writer_steps].length == 0) {
    second_looks[writer_steps].length = length;
    memcpy(second_looks[writer_steps].choices, choices, length);
  }
  return second_looks[writer_steps].length == length &&
         memcmp(second_looks[writer_steps].choices, choices, length) == 0;
}

/* Runs the first prefix choices; after these the reader goes first.  A reader that found the writer in the middle waits
 * until the writer has gone on. */
static void run_once(size_t prefix) {
  size_t writer_steps = 0;
  bool known = false; /* another run explores what follows */
  begin(READER, read_body);
  begin(WRITER, write_body);
  retried = false;
  for (length = 0; alive[READER] || alive[WRITER]; length++) {
    if (length + 1 == CHOICES)
      ck_abort_msg("a run is longer than any should be");
    bool reader_can = alive[READER] && !(retried && alive[WRITER]);
    int who = length < prefix ? choices[length] : reader_can ? READER : WRITER;
    choices[length] = (unsigned char)who;
    open_choice[length] = who == READER && alive[WRITER] && !known;
    bool waited = retried;
    resume(who);
    writer_steps += who == WRITER;
    if (who == WRITER && waited) {
      retried = false;
      length++;
      known = known || !looks_first(writer_steps);
      length--;
    }
  }
}

/* Makes the next string: the longest beginning of this run whose last choice can be changed from reader to writer.
 * Returns its length.  0: all strings were tried. */
static size_t next_prefix(void) {
  for (size_t i = length; i-- > 0;)
    if (open_choice[i]) {
      choices[i] = WRITER;
      return i + 1;
    }
  return 0;
}

static bool is_allowed(const struct mam_pool *pool) {
  for (size_t i = 0; i < sizeof scenario->allowed / sizeof scenario->allowed[0]; i++)
    if (scenario->allowed[i] == pool)
      return true;
  return false;
}

static void explore(const struct scenario *explored) {
  size_t runs = 0, longest = 0, prefix = 0;
  scenario = explored;
  memset(second_looks, 0, sizeof second_looks);
  add(100, POOL_A);
  add(300, POOL_C);
  do {
    run_once(prefix);
    if (!is_allowed(found))
      ck_abort_msg("run %zu: the reader of %#zx found %p", runs, (size_t)scenario->address, (void *)found);
    if (chunk_map_find(350) != POOL_C)
      ck_abort_msg("run %zu lost a chunk that was not touched", runs);
    scenario->undo();
    longest = length > longest ? length : longest;
    runs++;
  } while ((prefix = next_prefix()) != 0);
  chunk_map_remove(100);
  chunk_map_remove(300);
  /* If the steps were not compiled in, there would be one run.  If no reader looked twice, no run would be this long.
   */
  ck_assert_uint_gt(runs, 1000);
  ck_assert_uint_gt(longest, 24);
  (void)printf("%zu interleavings, the longest %zu steps\n", runs, longest);
}

static void add_between(void) { add(200, POOL_B); }
static void remove_between(void) { chunk_map_remove(200); }
static void remove_first(void) { chunk_map_remove(100); }
static void add_first(void) { add(100, POOL_A); }
static void replace_first(void) { remove_first(), add(100, POOL_B); }
static void replace_first_back(void) { remove_first(), add_first(); }

START_TEST(every_interleaving_finds_what_was_or_is_there) {
  static const struct scenario scenarios[] = {
      /* a chunk comes between two others, which are always found */
      {add_between, remove_between, 150, {POOL_A, POOL_A, POOL_A}, false},
      {add_between, remove_between, 350, {POOL_C, POOL_C, POOL_C}, false},
      {add_between, remove_between, 250, {POOL_B, NULL, NULL}, false},
      /* the first chunk goes, and the other moves down in the table */
      {remove_first, add_first, 350, {POOL_C, POOL_C, POOL_C}, false},
      {remove_first, add_first, 150, {POOL_A, NULL, NULL}, false},
      {remove_first, add_first, 250, {NULL, NULL, NULL}, false},
      /* a chunk of another pool comes to the same place */
      {replace_first, replace_first_back, 150, {POOL_A, NULL, POOL_B}, false},
      {replace_first, replace_first_back, 350, {POOL_C, POOL_C, POOL_C}, false},
      /* the table grows */
      {add_between, remove_between, 150, {POOL_A, POOL_A, POOL_A}, true},
      {add_between, remove_between, 350, {POOL_C, POOL_C, POOL_C}, true},
      {add_between, remove_between, 250, {POOL_B, NULL, NULL}, true},
  };
  explore(&scenarios[_i]);
}
END_TEST

enum { MANY = 9000 };

START_TEST(there_is_room_for_any_number_of_chunks) {
  for (uintptr_t i = 0; i < MANY; i++) /* every second one goes before all others */
    add((i % 2 == 0 ? MANY + i : MANY - i) * 100, i % 3 == 0 ? POOL_A : POOL_B);
  for (uintptr_t i = 0; i < MANY; i++)
    ck_assert_ptr_eq(chunk_map_find((i % 2 == 0 ? MANY + i : MANY - i) * 100 + 99), i % 3 == 0 ? POOL_A : POOL_B);
  for (uintptr_t i = 0; i < MANY; i++)
    chunk_map_remove((i % 2 == 0 ? MANY + i : MANY - i) * 100);
  ck_assert_ptr_null(chunk_map_find(MANY * 100));
}
END_TEST

START_TEST(overlaps_are_refused_and_named) {
  struct mam_pool *other;
  add(1000, POOL_A);
  add(1200, POOL_C);
  static const uintptr_t bases[] = {901, 1000, 1099, 1101, 1299};
  struct mam_pool *const owners[] = {POOL_A, POOL_A, POOL_A, POOL_C, POOL_C};
  for (int i = 0; i < 5; i++) {
    ck_assert_int_eq(chunk_map_add(bases[i], 100, POOL_B, &other), CHUNK_MAP_OVERLAP);
    ck_assert_ptr_eq(other, owners[i]);
  }
  add(1100, POOL_B); /* it touches both neighbours and overlaps neither */
  ck_assert_ptr_null(chunk_map_find(999));
  ck_assert_ptr_eq(chunk_map_find(1000), POOL_A);
  ck_assert_ptr_eq(chunk_map_find(1099), POOL_A);
  ck_assert_ptr_eq(chunk_map_find(1100), POOL_B);
  ck_assert_ptr_eq(chunk_map_find(1299), POOL_C);
  ck_assert_ptr_null(chunk_map_find(1300));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("chunk map");
  TCase *tests = tcase_create("chunk map");
  tcase_set_timeout(tests, 60);
  if (!SANITIZED)
    tcase_add_loop_test(tests, every_interleaving_finds_what_was_or_is_there, 0, 11);
  tcase_add_test(tests, there_is_room_for_any_number_of_chunks);
  tcase_add_test(tests, overlaps_are_refused_and_named);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
