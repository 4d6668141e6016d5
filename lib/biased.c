/* SPDX-License-Identifier: BSD-2-Clause */
#include "biased.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

bool biased_owner_fences;

void biased_register(void) {
  biased_owner_fences = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0;
}

void biased_init(struct biased *lock) {
  atomic_init(&lock->inside, false);
  atomic_init(&lock->wanted, false);
}

void biased_stand_back(struct biased *lock) {
  biased_leave(lock);
  /* acquire: as in biased_enter */
  while (atomic_load_explicit(&lock->wanted, memory_order_acquire))
    (void)sched_yield(); /* for microseconds, where a pool ran out of memory or is described */
}

void biased_other_want(struct biased *lock) {
  /* seq_cst: see biased_enter; otherwise ordered before the load of inside by biased_barrier */
  atomic_store_explicit(&lock->wanted, true, memory_order_seq_cst);
}

void biased_barrier(void) {
  if (!biased_owner_fences)
    (void)syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void biased_other_await(struct biased *lock) {
  /* includes acquire: what the owner wrote; pairs with the release in biased_leave */
  while (atomic_load_explicit(&lock->inside, memory_order_seq_cst))
    (void)sched_yield(); /* an owner is inside for some nanoseconds, unless it was preempted there */
}

void biased_other_leave(struct biased *lock) {
  /* release: what this thread wrote; pairs with the acquire in biased_enter */
  atomic_store_explicit(&lock->wanted, false, memory_order_release);
}
