/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for processors by number */
#endif
#include "base/biased.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wait.h"

_Atomic unsigned char biased_owner_fences;

/* Set before the first lock, and in a forked child before others run. */
static bool registered;

static bool membarrier_call(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

/* relaxed, both: what a lock's owner and others do goes by the lock's own word */
static unsigned char fences_now(void) { return atomic_load_explicit(&biased_owner_fences, memory_order_relaxed); }

static void fences_set(unsigned char fences) {
  atomic_store_explicit(&biased_owner_fences, fences, memory_order_relaxed);
}

void biased_register(void) {
  registered = membarrier_call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  fences_set(registered ? 0 : BIASED_OWNER_FENCES);
}

void biased_init(struct biased *lock) {
  atomic_init(&lock->inside, false);
  atomic_init(&lock->wanted, fences_now());
}

/* ---- A test that explores every interleaving steps in here ---- */

#ifndef BIASED_WAIT
#define BIASED_WAIT(wait) wait_more(wait)
#define BIASED_WALK() walk_processors()

/* No processor that Linux runs on keeps a store to itself for so long, though no document says so: for where the kernel
 * does not even let a thread choose its processor. */
enum { SETTLE_NS = 20000000 };

static void settle(void) {
  int64_t end_ns = now_ns() + SETTLE_NS;
  struct wait wait = WAIT_INIT;
  while (now_ns() < end_ns)
    wait_more(&wait);
}

/* Runs on each processor once.  A thread that runs all the while runs on one of them, and has to make way there; one
 * that does not run has been taken off its processor.  Both are full barriers of that thread, as a change of the
 * running thread always is in Linux; membarrier(2) counts on it too. */
static void walk_processors(void) {
  enum { SETS = 8 }; /* of 1024 processors each */
  cpu_set_t before[SETS], one[SETS];
  long count = sysconf(_SC_NPROCESSORS_CONF);
  int error = errno;
  bool walked = false, known = sched_getaffinity(0, sizeof before, before) == 0;
  for (long i = 0; known && i < count && i < SETS * CPU_SETSIZE; i++) {
    CPU_ZERO_S(sizeof one, one);
    CPU_SET_S((size_t)i, sizeof one, one);
    walked = sched_setaffinity(0, sizeof one, one) == 0 || walked; /* not on one that the process may not use */
  }
  if (walked)
    (void)sched_setaffinity(0, sizeof before, before);
  else
    settle();
  errno = error;
}
#endif

/* ---- The owner ---- */

/* Waits until nobody else wants the lock; what its word says then. */
static unsigned char stand_back(struct biased *lock) {
  struct wait wait = WAIT_INIT;
  unsigned char wanted;
  biased_leave(lock);
  /* acquire: as in biased_try */
  while (((wanted = atomic_load_explicit(&lock->wanted, memory_order_acquire)) & BIASED_WANTED) != 0)
    BIASED_WAIT(&wait); /* for microseconds, where a pool ran out of memory or is described */
  return wanted;
}

void biased_enter_slowly(struct biased *lock) {
  unsigned char fences;
  do {
    fences = stand_back(lock);
    if (fences != 0)
      /* seq_cst, as the load below and the pair of the other: the four accesses of both threads have one order */
      (void)atomic_exchange_explicit(&lock->inside, true, memory_order_seq_cst);
    else
      atomic_store_explicit(&lock->inside, true, memory_order_relaxed); /* relaxed: as in biased_try */
    atomic_signal_fence(memory_order_seq_cst);                          /* for the compiler */
    /* includes acquire: as in biased_try.  What it did not know before: somebody wants the lock, or no longer executes
     * the barrier for both */
  } while ((atomic_load_explicit(&lock->wanted, memory_order_seq_cst) & ~fences) != 0);
}

/* ---- Others ---- */

bool biased_other_want(struct biased *lock) {
  /* relaxed: others come one at a time, and the owner does not write it */
  unsigned char fences = atomic_load_explicit(&lock->wanted, memory_order_relaxed) & BIASED_OWNER_FENCES;
  /* seq_cst: see biased_enter_slowly; otherwise ordered before the load of inside by biased_barrier */
  atomic_store_explicit(&lock->wanted, BIASED_WANTED | fences, memory_order_seq_cst);
  return fences == 0;
}

void biased_barrier(void) {
  if (!registered || membarrier_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    return;
  /* A process that was written to disk and restored may have to register anew. */
  if (membarrier_call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    return;
  fences_set(BIASED_OWNER_FENCES); /* from each lock's next leave on, its owner does it: see biased.h */
  BIASED_WALK();
}

void biased_other_await(struct biased *lock) {
  struct wait wait = WAIT_INIT;
  /* includes acquire: what the owner wrote; pairs with the release in biased_leave */
  while (atomic_load_explicit(&lock->inside, memory_order_seq_cst))
    BIASED_WAIT(&wait); /* an owner is inside for some nanoseconds, unless it was preempted there */
}

void biased_other_leave(struct biased *lock) {
  /* relaxed: as in biased_other_want */
  unsigned char fences = atomic_load_explicit(&lock->wanted, memory_order_relaxed) & BIASED_OWNER_FENCES;
  /* release: what this thread wrote; pairs with the acquire in biased_try */
  atomic_store_explicit(&lock->wanted, fences | fences_now(), memory_order_release);
}
