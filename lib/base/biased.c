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

_Atomic unsigned char biased_owner_barrier;

/* Set before the first lock, and in a forked child before others run. */
static bool registered;

static bool membarrier_call(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

/* relaxed, both: a lock's owner and other threads go by the lock's own word */
static unsigned char barrier_now(void) { return atomic_load_explicit(&biased_owner_barrier, memory_order_relaxed); }

static void barrier_set(unsigned char barrier) {
  atomic_store_explicit(&biased_owner_barrier, barrier, memory_order_relaxed);
}

void biased_register(void) {
  registered = membarrier_call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  barrier_set(registered ? 0 : BIASED_OWNER_BARRIER);
}

void biased_init(struct biased *lock) {
  atomic_init(&lock->inside, false);
  atomic_init(&lock->wanted, barrier_now());
}

/* ---- A test that explores every interleaving steps in here ---- */

#ifndef BIASED_WAIT
#define BIASED_WAIT(wait) wait_more(wait)
#define BIASED_WALK() walk_processors()

/* A store of another processor is visible after so long on every processor that Linux runs on, though no document
 * promises it.  For kernels that do not let a thread choose its processor. */
enum { SETTLE_NS = 20000000 };

static void settle(void) {
  int64_t end_ns = now_ns() + SETTLE_NS;
  struct wait wait = WAIT_INIT;
  while (now_ns() < end_ns)
    wait_more(&wait);
}

/* Runs on each processor once.  A thread that was running there has to make way, and a thread that is not running was
 * taken off its processor before.  Both are full barriers of that thread: in Linux each change of the running thread is
 * one, and membarrier(2) relies on it. */
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

/* Waits until no other thread wants the lock.  Returns its word. */
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
  unsigned char barrier;
  do {
    barrier = stand_back(lock);
    if (barrier != 0)
      /* seq_cst, as the load below and the pair of the other: the four accesses of both threads have one order */
      (void)atomic_exchange_explicit(&lock->inside, true, memory_order_seq_cst);
    else
      atomic_store_explicit(&lock->inside, true, memory_order_relaxed); /* relaxed: as in biased_try */
    atomic_signal_fence(memory_order_seq_cst);                          /* for the compiler */
    /* includes acquire: as in biased_try.  Not 0: another thread wants the lock, or has ceased to execute the barrier
     * for both */
  } while ((atomic_load_explicit(&lock->wanted, memory_order_seq_cst) & ~barrier) != 0);
}

/* ---- Others ---- */

bool biased_other_want(struct biased *lock) {
  /* relaxed: others come one at a time, and the owner does not write it */
  unsigned char barrier = atomic_load_explicit(&lock->wanted, memory_order_relaxed) & BIASED_OWNER_BARRIER;
  /* seq_cst: see biased_enter_slowly; otherwise ordered before the load of inside by biased_barrier */
  atomic_store_explicit(&lock->wanted, BIASED_WANTED | barrier, memory_order_seq_cst);
  return barrier == 0;
}

void biased_barrier(void) {
  if (!registered || membarrier_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    return;
  /* A process that was written to disk and restored may have to register anew. */
  if (membarrier_call(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier_call(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    return;
  barrier_set(BIASED_OWNER_BARRIER); /* from each lock's next leave on, its owner does it: see biased.h */
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
  unsigned char barrier = atomic_load_explicit(&lock->wanted, memory_order_relaxed) & BIASED_OWNER_BARRIER;
  /* release: what this thread wrote; pairs with the acquire in biased_try */
  atomic_store_explicit(&lock->wanted, barrier | barrier_now(), memory_order_release);
}

void biased_other_hinder(struct biased *lock) {
  /* relaxed: the owner is outside, and biased_other_leave publishes it */
  atomic_store_explicit(&lock->wanted, BIASED_WANTED | BIASED_OWNER_BARRIER, memory_order_relaxed);
}

void biased_relieve(struct biased *lock) {
  /* relaxed: the next thread that wants the lock comes after this one by the lock that keeps them apart, finds no
   * BIASED_OWNER_BARRIER there, and executes the barrier for both */
  atomic_store_explicit(&lock->wanted, barrier_now(), memory_order_relaxed);
}
