/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The biased lock (lib/base/biased.h): every interleaving of its owner and one other thread, with store buffers.
 *
 *             coroutines            store buffers          memory
 *   owner     biased_enter       --> | store | store |  --> inside, wanted, ...
 *   other     biased_other_want  --> | store |          --> a counter, or a block to claim
 *
 * The code is that of biased.c, built a second time so that each access comes here.  Both threads stop before each
 * access.  A store goes into the thread's buffer, and each buffer drains at any later point, like a further thread.
 * That is total store order, as on x86; biased.h argues what weaker orders could add.  A state is the memory, the
 * buffers, and what each thread has read so far, which says where the thread is.
 *
 * The lock protects a counter to which both threads add by a load and a store.  Other variants test claims (claim.h)
 * instead: the owner, at first alone, frees a block twice.  The other thread frees it too, after it has made the owner
 * stop being alone.
 */
#include <linux/membarrier.h>
#include <stdarg.h>
#include <string.h>

#include "base/biased.h"
#include "biased_step.h"
#include "front/claim.h"
#include "support/interleave.h"
#include "support/run_suite.h"

enum { OWNER, OTHER, THREADS, DRAIN_OWNER = THREADS, DRAIN_OTHER, ACTORS };
enum { INSIDE, WANTED, BARRIER, COUNTER, ALONE, LIVE, CELLS };
enum { BUFFER = 16, TURNS = 2 };

/* What a variant leaves out of the code or does otherwise.  The search must find a fault in each that leaves something
 * out. */
struct variant {
  const char *name;
  bool owner_barrier;    /* the kernel has no membarrier */
  bool refused_late;     /* the kernel has it at first and refuses it later */
  bool restored;         /* the process was restored, and the kernel refuses it until it is registered again */
  bool no_walk;          /* the other thread does not run on all processors where it is refused */
  bool trusts_no_fence;  /* the owner ignores the word that says that it has to execute a barrier */
  bool no_barrier;       /* the other thread does not call membarrier */
  bool no_second_look;   /* the owner goes in without looking at wanted */
  bool no_await;         /* the other thread does not wait */
  bool no_leave_release; /* the owner's leave overtakes the stores before it */
  bool want_relaxed;     /* the other thread's first store may stay in its buffer */
  bool exchange_relaxed; /* so may the owner's exchange */
  bool claims;           /* the threads claim a block and do not add to a counter */
  bool still_alone;      /* the other thread claims while the owner believes that it is alone */
};

struct store {
  int cell;
  unsigned value;
};

static const struct variant *variant;
static struct biased lock;
static unsigned memory[CELLS];
static struct store buffers[THREADS][BUFFER];
static unsigned buffered[THREADS];
static uint64_t histories[THREADS]; /* a hash of what the thread has read */
static unsigned changes;            /* how often the memory has changed */
static bool waits[THREADS];         /* the thread waits until the memory changes */
static unsigned waits_since[THREADS];
static unsigned inside_count, claimed;
static bool restored; /* the process was restored and has not registered since */
static const char *fault;

/* ---- A machine with total store order ---- */

static void remember(uint64_t what) {
  histories[coroutine_running] = (histories[coroutine_running] ^ what) * UINT64_C(0x100000001b3) + 7;
}

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

/* Loads a cell.  A thread reads its own latest store, also while that is in its buffer. */
static unsigned machine_load(int cell) {
  coroutine_yield();
  unsigned value = memory[cell];
  for (unsigned i = 0; i < buffered[coroutine_running]; i++)
    if (buffers[coroutine_running][i].cell == cell)
      value = buffers[coroutine_running][i].value;
  remember(value);
  return value;
}

static void machine_store(int cell, unsigned value, bool drained) {
  if (coroutine_running < 0) { /* called by atomic_init */
    write_memory((struct store){cell, value});
    return;
  }
  coroutine_yield();
  remember(0);
  if (buffered[coroutine_running] == BUFFER)
    ck_abort_msg("more stores than any thread makes");
  buffers[coroutine_running][buffered[coroutine_running]++] = (struct store){cell, value};
  if (drained)
    drain_all(coroutine_running);
}

/* Exchanges a cell in one step, after all of the thread's earlier stores. */
static unsigned machine_exchange(int cell, unsigned value) {
  coroutine_yield();
  drain_all(coroutine_running);
  unsigned before = memory[cell];
  write_memory((struct store){cell, value});
  remember(before);
  return before;
}

static _Atomic uint8_t live;

static int cell_of(const volatile void *flag) {
  return flag == &lock.inside ? INSIDE : flag == &live ? LIVE : flag == &biased_owner_barrier ? BARRIER : WANTED;
}

unsigned char biased_test_load(const volatile void *flag, memory_order order) {
  /* every load is an acquire on this machine */
  if (coroutine_running < 0) /* called by biased_init */
    return (unsigned char)memory[cell_of(flag)];
  if (variant->no_second_look && coroutine_running == OWNER && flag != &live)
    return 0;
  unsigned char value = (unsigned char)machine_load(cell_of(flag));
  bool second_look = flag == &lock.wanted && order == memory_order_seq_cst;
  return variant->trusts_no_fence && second_look ? value & BIASED_WANTED : value;
}

void biased_test_store(volatile void *flag, unsigned char value, memory_order order) {
  bool relaxed = variant->want_relaxed || order != memory_order_seq_cst;
  machine_store(cell_of(flag), value, !relaxed);
  if (variant->no_leave_release && coroutine_running == OWNER && value == 0 && buffered[OWNER] > 0 &&
      buffers[OWNER][0].cell != INSIDE)
    drain_one(OWNER, buffered[OWNER] - 1); /* stores to the same cell stay in order */
}

unsigned char biased_test_exchange(volatile void *flag, unsigned char value, memory_order order) {
  if (flag == &live)
    return (unsigned char)machine_exchange(LIVE, value);
  machine_store(cell_of(flag), value, order == memory_order_seq_cst && !variant->exchange_relaxed);
  return 0; /* the code does not use the result */
}

/* A barrier of every thread, which comes between the call and the return.  The caller does nothing meanwhile. */
static void barrier_of_all(void) {
  coroutine_yield();
  remember(0);
  drain_all(OWNER);
  drain_all(OTHER);
}

long biased_test_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  int command = va_arg(arguments, int);
  va_end(arguments);
  if (number != SYS_membarrier)
    ck_abort_msg("a system call that is not membarrier");
  if (coroutine_running < 0) /* called by biased_register */
    return variant->owner_barrier ? -1 : 0;
  if (variant->refused_late)
    return -1;
  if (command == MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
    restored = false;
  else if (restored)
    return -1;
  else
    barrier_of_all();
  return 0;
}

/* The thread runs on every processor in turn, so whichever thread ran there was switched out, which is a barrier. */
void biased_test_walk(void) {
  if (!variant->no_walk)
    barrier_of_all();
}

int biased_test_yield(void) {
  waits[coroutine_running] = true;
  waits_since[coroutine_running] = changes;
  return 0;
}

/* ---- The two threads ---- */

static void use_counter(void) {
  if (inside_count++ != 0)
    fault = "both were inside";
  unsigned value = machine_load(COUNTER);
  machine_store(COUNTER, value + 1, false);
  coroutine_yield(); /* the thread stays inside for a step */
  remember(0);
  inside_count--;
}

static void claim(bool alone) { claimed += claim_live(alone, &live) != 0; }

static void owner_body(void) {
  for (int i = 0; i < TURNS; i++) {
    biased_enter(&lock);
    if (variant->claims)
      claim(machine_load(ALONE) != 0);
    else
      use_counter();
    biased_leave(&lock);
  }
}

static void other_enter(void) {
  if (biased_other_want(&lock) && !variant->no_barrier)
    biased_barrier();
  if (!variant->no_await)
    biased_other_await(&lock);
}

static void other_claim_body(void) {
  if (!variant->still_alone) {
    other_enter();
    machine_store(ALONE, false, false);
    biased_other_leave(&lock);
  }
  claim(false);
}

static void other_body(void) {
  for (int i = 0; i < TURNS; i++) {
    other_enter();
    use_counter();
    biased_other_leave(&lock);
  }
}

/* ---- All states ---- */

static uint64_t state_hash(void) {
  uint64_t hash = restored ? 2 : 1;
  for (int i = 0; i < CELLS; i++)
    hash = interleave_mix(hash, memory[i]);
  for (int i = 0; i < THREADS; i++) {
    hash = interleave_mix(hash, histories[i]);
    hash = interleave_mix(hash, (uint64_t)coroutine_lives[i] << 1 | (waits[i] && waits_since[i] == changes));
    hash = interleave_mix(hash, buffered[i]);
    for (unsigned j = 0; j < buffered[i]; j++)
      hash = interleave_mix(hash, (uint64_t)buffers[i][j].cell << 32 | buffers[i][j].value);
  }
  return hash;
}

static unsigned who_can(void) {
  unsigned can = 0;
  for (int i = 0; i < THREADS; i++)
    can |= (coroutine_lives[i] && !(waits[i] && waits_since[i] == changes) ? 1u : 0u) << i | (buffered[i] > 0 ? 1u : 0u)
                                                                                                 << (DRAIN_OWNER + i);
  return can;
}

static void go(int actor) {
  if (actor >= THREADS) {
    drain_one(actor - THREADS, 0);
    return;
  }
  waits[actor] = false;
  coroutine_resume(actor);
}

static void body(int which) {
  if (which == OWNER)
    owner_body();
  else if (variant->claims)
    other_claim_body();
  else
    other_body();
}

static void run_begin(void) {
  memset(memory, 0, sizeof memory);
  biased_register();
  biased_init(&lock);
  restored = variant->restored;
  memory[ALONE] = memory[LIVE] = true;
  changes = inside_count = claimed = 0;
  fault = NULL;
  for (int i = 0; i < THREADS; i++) {
    coroutine_create(i, body);
    waits[i] = false;
    buffered[i] = 0;
    histories[i] = 1;
  }
  go(OWNER); /* goes to its first access; each later step goes to the next one */
  go(OTHER);
}

static const char *fault_so_far(void) { return fault; }

static const char *fault_at_the_end(void) {
  return coroutine_lives[OWNER] || coroutine_lives[OTHER]               ? "both wait for good"
         : variant->claims && claimed != 1                              ? "a block was claimed twice, or never"
         : !variant->claims && memory[COUNTER] != 2 * TURNS             ? "an addition was lost"
         : memory[INSIDE] != 0 || (memory[WANTED] & BIASED_WANTED) != 0 ? "the lock is not free at the end"
                                                                        : fault;
}

/* Explores a variant.  Returns what is wrong with it, NULL if nothing. */
static const char *explore(const struct variant *explored, size_t *states) {
  const struct interleave machine = {explored->name, run_begin,    who_can,         go,
                                     state_hash,     fault_so_far, fault_at_the_end};
  variant = explored;
  return interleave_explore(&machine, states);
}

START_TEST(one_is_inside_at_a_time_and_sees_what_the_last_one_wrote) {
  static const struct variant variants[] = {
      {.name = "membarrier"},
      {.name = "membarrier orders the other's store too", .want_relaxed = true},
      {.name = "without membarrier", .owner_barrier = true},
      {.name = "claims", .claims = true},
      {.name = "claims without membarrier", .owner_barrier = true, .claims = true},
      {.name = "membarrier refused late", .refused_late = true},
      {.name = "claims, membarrier refused late", .refused_late = true, .claims = true},
      {.name = "a process that was restored", .restored = true},
  };
  size_t states;
  const char *wrong = explore(&variants[_i], &states);
  ck_assert_msg(wrong == NULL, "%s: %s", variants[_i].name, wrong);
  ck_assert_uint_gt(states, 1000); /* if the steps were not compiled in, there would be one */
}
END_TEST

START_TEST(each_step_is_needed) {
  static const struct variant variants[] = {
      {.name = "no barrier", .no_barrier = true},
      {.name = "no second look", .no_second_look = true},
      {.name = "no await", .no_await = true},
      {.name = "leave overtakes", .no_leave_release = true},
      {.name = "no second look, without membarrier", .owner_barrier = true, .no_second_look = true},
      {.name = "no full barrier of the owner", .owner_barrier = true, .exchange_relaxed = true},
      {.name = "no full barrier of the other", .owner_barrier = true, .want_relaxed = true},
      {.name = "refused late, no walk", .refused_late = true, .no_walk = true},
      {.name = "refused late, no second look", .refused_late = true, .no_second_look = true},
      {.name = "refused late, the word not heeded", .refused_late = true, .trusts_no_fence = true},
      {.name = "claims beside one who is alone", .claims = true, .still_alone = true},
      {.name = "claims, no barrier", .claims = true, .no_barrier = true},
      {.name = "claims, no await", .claims = true, .no_await = true},
      {.name = "claims, no second look", .claims = true, .no_second_look = true},
      {.name = "claims, leave overtakes", .claims = true, .no_leave_release = true},
  };
  size_t states;
  ck_assert_msg(explore(&variants[_i], &states) != NULL, "%s: nobody noticed", variants[_i].name);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("biased lock");
  TCase *tests = tcase_create("interleavings");
  tcase_set_timeout(tests, 60);
  if (COROUTINES_WORK) {
    tcase_add_loop_test(tests, one_is_inside_at_a_time_and_sees_what_the_last_one_wrote, 0, 8);
    tcase_add_loop_test(tests, each_step_is_needed, 0, 15);
  }
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
