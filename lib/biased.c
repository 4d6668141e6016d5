/* SPDX-License-Identifier: BSD-2-Clause */
#include "biased.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

unsigned char biased_owner_fences;

void biased_register(void) {
  bool fails = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0;
  biased_owner_fences = fails ? BIASED_OWNER_FENCES : 0;
}

void biased_init(struct biased *lock) {
  atomic_init(&lock->inside, false);
  atomic_init(&lock->wanted, biased_owner_fences);
}

static bool wanted_by_others(struct biased *lock, memory_order order) {
  return (atomic_load_explicit(&lock->wanted, order) & BIASED_WANTED) != 0;
}

static void stand_back(struct biased *lock) {
  biased_leave(lock);
  /* acquire: as in biased_try */
  while (wanted_by_others(lock, memory_order_acquire))
    (void)sched_yield(); /* for microseconds, where a pool ran out of memory or is described */
}

void biased_enter_slowly(struct biased *lock) {
  do {
    stand_back(lock);
    if (biased_owner_fences != 0)
      /* seq_cst, as the load below and the pair of the other: the four accesses of both threads have one order */
      (void)atomic_exchange_explicit(&lock->inside, true, memory_order_seq_cst);
    else
      atomic_store_explicit(&lock->inside, true, memory_order_relaxed); /* relaxed: as in biased_try */
    atomic_signal_fence(memory_order_seq_cst);                          /* for the compiler */
  } while (wanted_by_others(lock, memory_order_seq_cst));               /* includes acquire: as in biased_try */
}

void biased_other_want(struct biased *lock) {
  /* seq_cst: see biased_enter_slowly; otherwise ordered before the load of inside by biased_barrier */
  atomic_store_explicit(&lock->wanted, BIASED_WANTED | biased_owner_fences, memory_order_seq_cst);
}

void biased_barrier(void) {
  if (biased_owner_fences == 0)
    (void)syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void biased_other_await(struct biased *lock) {
  /* includes acquire: what the owner wrote; pairs with the release in biased_leave */
  while (atomic_load_explicit(&lock->inside, memory_order_seq_cst))
    (void)sched_yield(); /* an owner is inside for some nanoseconds, unless it was preempted there */
}

void biased_other_leave(struct biased *lock) {
  /* release: what this thread wrote; pairs with the acquire in biased_try */
  atomic_store_explicit(&lock->wanted, biased_owner_fences, memory_order_release);
}
