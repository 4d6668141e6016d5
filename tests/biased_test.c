/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The biased lock: every interleaving of its owner and another thread, each store held in a store buffer and drained at
 * any later point (total store order, as on x86: what weaker orders could add is argued in biased.h).
 *
 * The code is biased.c's own, built a second time so that its accesses come here.  Both threads run as coroutines and
 * stop before each access.  The buffers drain as two more threads.  A state is the memory, the buffers and what each
 * thread has read so far, which says where it stands; all states that can be reached are visited, depth first, each
 * run from the beginning.  The lock protects a counter that both add to, by a load and a store.
 */
#include <linux/membarrier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "biased.h"
#include "biased_step.h"
#include "run_suite.h"

enum { OWNER, OTHER, THREADS, DRAIN_OWNER = THREADS, DRAIN_OTHER, ACTORS, NOBODY };
enum { INSIDE, WANTED, COUNTER, CELLS };
enum { STACK_BYTES = 64 * 1024, STEPS = 400, BUFFER = 16, SEEN_BITS = 20, TURNS = 2 };

/* Sanitizers do not follow a thread from stack to stack. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = true };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { SANITIZED = false };
#endif

/* What is left out of the code, to see that the search would tell. */
struct variant {
  const char *name;
  bool owner_fences;     /* the kernel has no membarrier */
  bool no_barrier;       /* the other thread does not call it */
  bool no_second_look;   /* the owner goes in without looking at wanted */
  bool no_await;         /* the other thread does not wait */
  bool no_leave_release; /* the owner's leave overtakes the stores before it */
  bool want_relaxed;     /* the other thread's first store may stay in its buffer */
  bool exchange_relaxed; /* and so may the owner's */
};

struct store {
  int cell;
  unsigned value;
};

static const struct variant *variant;
static struct biased lock;
/* NOBODY has a place too, which no thread uses: the compiler cannot know. */
static unsigned memory[CELLS];
static struct store buffers[NOBODY + 1][BUFFER];
static unsigned buffered[NOBODY + 1];
static uint64_t histories[NOBODY + 1]; /* of what the thread read, as a number */
static unsigned changes;               /* of the memory, so far */
static bool waits[NOBODY + 1];         /* for a change since */
static unsigned waits_since[NOBODY + 1];
static unsigned inside_count;
static const char *fault;

/* ---- Coroutines ---- */

static ucontext_t scheduler, contexts[NOBODY + 1];
static _Alignas(16) char stacks[THREADS][STACK_BYTES];
static bool alive[THREADS];
static int running = NOBODY;

static void step(void) { (void)swapcontext(&contexts[running], &scheduler); }

static void resume(int which) {
  running = which;
  waits[which] = false;
  (void)swapcontext(&scheduler, &contexts[which]);
  running = NOBODY;
}

static void begin(int which, void (*body)(void)) {
  (void)getcontext(&contexts[which]);
  contexts[which].uc_stack.ss_sp = stacks[which];
  contexts[which].uc_stack.ss_size = STACK_BYTES;
  contexts[which].uc_link = &scheduler;
  makecontext(&contexts[which], body, 0);
  alive[which] = true;
  waits[which] = false;
  buffered[which] = 0;
  histories[which] = 1;
}

/* ---- A machine with total store order ---- */

static void remember(uint64_t what) { histories[running] = (histories[running] ^ what) * UINT64_C(0x100000001b3) + 7; }

static void write_memory(struct store store) {
  changes += memory[store.cell] != store.value;
  memory[store.cell] = store.value;
}

static void drain_one(int thread, unsigned which) {
  write_memory(buffers[thread][which]);
  buffered[thread]--;
  memmove(&buffers[thread][which], &buffers[thread][which + 1], (buffered[thread] - which) * sizeof(struct store));
}

static void drain_all(int thread) {
  while (buffered[thread] > 0)
    drain_one(thread, 0);
}

/* A thread reads its own latest store, whether or not it has left the buffer. */
static unsigned machine_load(int cell) {
  step();
  unsigned value = memory[cell];
  for (unsigned i = 0; i < buffered[running]; i++)
    if (buffers[running][i].cell == cell)
      value = buffers[running][i].value;
  remember(value);
  return value;
}

static void machine_store(int cell, unsigned value, bool drained) {
  if (running == NOBODY) { /* atomic_init */
    write_memory((struct store){cell, value});
    return;
  }
  step();
  remember(0);
  if (buffered[running] == BUFFER)
    ck_abort_msg("more stores than any thread makes");
  buffers[running][buffered[running]++] = (struct store){cell, value};
  if (drained)
    drain_all(running);
}

static int cell_of(const _Atomic bool *flag) { return flag == &lock.inside ? INSIDE : WANTED; }

bool biased_test_load(const _Atomic bool *flag, memory_order order) {
  (void)order; /* every load is an acquire on such a machine */
  if (variant->no_second_look && running == OWNER)
    return false;
  return machine_load(cell_of(flag)) != 0;
}

void biased_test_store(_Atomic bool *flag, bool value, memory_order order) {
  bool relaxed = variant->want_relaxed || order != memory_order_seq_cst;
  machine_store(cell_of(flag), value, !relaxed);
  if (variant->no_leave_release && running == OWNER && !value && buffered[OWNER] > 0 &&
      buffers[OWNER][0].cell != INSIDE)
    drain_one(OWNER, buffered[OWNER] - 1); /* stores to one cell stay in order */
}

bool biased_test_exchange(_Atomic bool *flag, bool value, memory_order order) {
  machine_store(cell_of(flag), value, order == memory_order_seq_cst && !variant->exchange_relaxed);
  return false; /* the code does not ask */
}

/* The barrier of every thread comes between the call and the return, while the caller does nothing. */
long biased_test_syscall(long number, ...) {
  if (number != SYS_membarrier)
    ck_abort_msg("a system call that is not membarrier");
  if (running == NOBODY) /* biased_register */
    return variant->owner_fences ? -1 : 0;
  step();
  remember(0);
  drain_all(OWNER);
  drain_all(OTHER);
  return 0;
}

int biased_test_yield(void) {
  waits[running] = true;
  waits_since[running] = changes;
  return 0;
}

/* ---- The two threads ---- */

static void use_counter(void) {
  if (inside_count++ != 0)
    fault = "both were inside";
  unsigned value = machine_load(COUNTER);
  machine_store(COUNTER, value + 1, false);
  step(); /* it stays for a while */
  remember(0);
  inside_count--;
}

static void owner_body(void) {
  for (int i = 0; i < TURNS; i++) {
    biased_enter(&lock);
    use_counter();
    biased_leave(&lock);
  }
  alive[OWNER] = false;
}

static void other_body(void) {
  for (int i = 0; i < TURNS; i++) {
    biased_other_want(&lock);
    if (!variant->no_barrier)
      biased_barrier();
    if (!variant->no_await)
      biased_other_await(&lock);
    use_counter();
    biased_other_leave(&lock);
  }
  alive[OTHER] = false;
}

/* ---- All states ---- */

static uint64_t seen[1 << SEEN_BITS];
static size_t seen_count;

static void mix(uint64_t *hash, uint64_t value) {
  *hash = (*hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  *hash ^= *hash >> 29;
}

/* Two states are taken for one if 64 bits of hash agree: of some 10^5 states, a chance of 10^-9. */
static uint64_t state_hash(void) {
  uint64_t hash = 1;
  for (int i = 0; i < CELLS; i++)
    mix(&hash, memory[i]);
  for (int i = 0; i < THREADS; i++) {
    mix(&hash, histories[i]);
    mix(&hash, (uint64_t)alive[i] << 1 | (waits[i] && waits_since[i] == changes));
    mix(&hash, buffered[i]);
    for (unsigned j = 0; j < buffered[i]; j++)
      mix(&hash, (uint64_t)buffers[i][j].cell << 32 | buffers[i][j].value);
  }
  return hash | 1;
}

static bool state_is_new(void) {
  uint64_t hash = state_hash(), at = hash >> (64 - SEEN_BITS);
  while (seen[at] != 0 && seen[at] != hash)
    at = (at + 1) % (1 << SEEN_BITS);
  if (seen[at] == hash)
    return false;
  if (++seen_count > (1 << SEEN_BITS) / 2)
    ck_abort_msg("more states than there should be");
  seen[at] = hash;
  return true;
}

static bool can_go(int actor) {
  if (actor >= THREADS)
    return buffered[actor - THREADS] > 0;
  return alive[actor] && !(waits[actor] && waits_since[actor] == changes);
}

static int first_from(int actor) {
  while (actor < ACTORS && !can_go(actor))
    actor++;
  return actor;
}

static int choices[STEPS], others[STEPS]; /* who goes at each step, and who could go instead: ACTORS if nobody else */
static int length;

static void run_begin(void) {
  memset(memory, 0, sizeof memory);
  biased_init(&lock);
  changes = inside_count = 0;
  begin(OWNER, owner_body);
  begin(OTHER, other_body);
  resume(OWNER); /* to its first access, as from then on to each next one */
  resume(OTHER);
}

static void run_end(void) {
  if (alive[OWNER] || alive[OTHER])
    fault = "both wait for good";
  else if (memory[COUNTER] != 2 * TURNS)
    fault = "an addition was lost";
  else if (memory[INSIDE] != 0 || memory[WANTED] != 0)
    fault = "the lock is not free at the end";
}

/* Follows the choices and then goes on, until the end or a state that was seen before. */
static void run_once(int prefix) {
  run_begin();
  for (length = 0; fault == NULL; length++) {
    if (length == STEPS)
      ck_abort_msg("a run is longer than any should be");
    int first = first_from(0);
    if (first == ACTORS) {
      run_end();
      return;
    }
    if (length >= prefix) {
      if (!state_is_new())
        return;
      choices[length] = first;
    }
    others[length] = first_from(choices[length] + 1);
    if (choices[length] >= THREADS)
      drain_one(choices[length] - THREADS, 0);
    else
      resume(choices[length]);
  }
}

static int next_prefix(void) {
  for (int i = length; i-- > 0;)
    if (others[i] != ACTORS) {
      choices[i] = others[i];
      return i + 1;
    }
  return 0;
}

/* What is wrong with a variant, NULL if nothing. */
static const char *explore(const struct variant *explored) {
  int prefix = 0;
  variant = explored;
  fault = NULL;
  memset(seen, 0, sizeof seen);
  seen_count = 0;
  biased_register();
  do {
    run_once(prefix);
  } while (fault == NULL && (prefix = next_prefix()) != 0);
  (void)printf("%s: %zu states, %s\n", explored->name, seen_count, fault != NULL ? fault : "sound");
  return fault;
}

START_TEST(one_is_inside_at_a_time_and_sees_what_the_last_one_wrote) {
  static const struct variant variants[] = {
      {.name = "membarrier"},
      {.name = "membarrier orders the other's store too", .want_relaxed = true},
      {.name = "without membarrier", .owner_fences = true},
  };
  const char *wrong = explore(&variants[_i]);
  ck_assert_msg(wrong == NULL, "%s: %s", variants[_i].name, wrong);
  ck_assert_uint_gt(seen_count, 1000); /* had the steps not been compiled in, there would be one */
}
END_TEST

START_TEST(each_step_is_needed) {
  static const struct variant variants[] = {
      {.name = "no barrier", .no_barrier = true},
      {.name = "no second look", .no_second_look = true},
      {.name = "no await", .no_await = true},
      {.name = "leave overtakes", .no_leave_release = true},
      {.name = "no second look, without membarrier", .owner_fences = true, .no_second_look = true},
      {.name = "no full barrier of the owner", .owner_fences = true, .exchange_relaxed = true},
      {.name = "no full barrier of the other", .owner_fences = true, .want_relaxed = true},
  };
  ck_assert_msg(explore(&variants[_i]) != NULL, "%s: nobody noticed", variants[_i].name);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("biased lock");
  TCase *tests = tcase_create("interleavings");
  tcase_set_timeout(tests, 60);
  if (!SANITIZED) {
    tcase_add_loop_test(tests, one_is_inside_at_a_time_and_sees_what_the_last_one_wrote, 0, 3);
    tcase_add_loop_test(tests, each_step_is_needed, 0, 7);
  }
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
