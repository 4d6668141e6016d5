/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A lock for an object that one thread, the owner, uses all the time and other threads use rarely.  To take and leave
 * the lock, the owner executes a store, a load and a store; another thread calls membarrier(2), which takes some
 * microseconds.
 *
 *         owner                        another thread
 *         inside = true                wanted = 1
 *         (no barrier)                 membarrier(2)
 *         read wanted                  read inside
 *
 * These are the two flags of Dekker's algorithm: each thread must write its own flag before it reads the other's.
 * membarrier makes every thread of the process execute a full barrier between the call and the return.  So it orders
 * the owner's two accesses as well, which the owner's code orders for the compiler only:
 *   - if the owner's barrier comes before its read of wanted, the owner reads 1 and stands back;
 *   - else the barrier comes after its write of inside; the other thread reads true and waits.
 * The release of a flag publishes what its thread wrote under the lock, and the other thread's read acquires it.  Where
 * the kernel has no membarrier, the owner executes a full barrier between its two accesses.  wanted is then never 0, so
 * that biased_try fails and the owner takes the slow way: where there is a membarrier, this costs nothing.
 *
 * The kernel may refuse membarrier later, when a sandbox has come or the process was restored on another machine.  Then
 * the other thread registers again.  If that fails, it runs once on each processor, which has the same effect and takes
 * milliseconds, and it leaves the lock with BIASED_OWNER_BARRIER in wanted: from then on the owner executes the
 * barrier. An owner that read 0 earlier is no danger: it gets in without a barrier only if it reads 0 again after it
 * wrote inside, and wanted was overwritten before the other thread's barrier.
 *
 * tests/model/biased_test.c runs every interleaving of an owner and another thread, with the owner's store delayed at
 * will.
 */
#ifndef MAM_LIB_BIASED_H
#define MAM_LIB_BIASED_H

#include <stdatomic.h>
#include <stdbool.h>

/* Bits of wanted: another thread wants or has the lock; the owner has to execute the barrier. */
enum { BIASED_WANTED = 1, BIASED_OWNER_BARRIER = 2 };

struct biased {
  _Atomic bool inside;          /* written by the owner */
  _Atomic unsigned char wanted; /* bits, written by other threads, which see to it that they come one at a time */
};

/* The wanted of a lock that is set up or left from now on: BIASED_OWNER_BARRIER if owners have to execute the barrier,
 * else 0.  A forked child asks the kernel again, and sets up or leaves each lock before its owner enters it. */
extern _Atomic unsigned char biased_owner_barrier __attribute__((visibility("hidden")));

void biased_init(struct biased *lock);

/* Registers the process for membarrier: once before the first lock is set up, and in a forked child before the first
 * lock is left. */
void biased_register(void);

/* The slow half of biased_enter: waits until no other thread wants or has the lock. */
void biased_enter_slowly(struct biased *lock);

/* For the owner, which must not have the lock.  False if another thread wants the lock, or may want it unseen by the
 * owner; then the owner has to call biased_enter or biased_leave. */
static inline bool biased_try(struct biased *lock) {
  /* relaxed: ordered before the load below by the other thread's membarrier; where there is none, the load is not 0 */
  atomic_store_explicit(&lock->inside, true, memory_order_relaxed);
  atomic_signal_fence(memory_order_seq_cst); /* for the compiler */
  /* includes acquire: what the last other holder wrote; pairs with the release in biased_other_leave */
  return __builtin_expect(atomic_load_explicit(&lock->wanted, memory_order_seq_cst) == 0, true);
}

static inline void biased_enter(struct biased *lock) {
  if (!biased_try(lock))
    biased_enter_slowly(lock);
}

static inline void biased_leave(struct biased *lock) {
  /* release: what the owner wrote; pairs with the acquire in biased_other_await */
  atomic_store_explicit(&lock->inside, false, memory_order_release);
}

/* For other threads, or for the owner while it is not inside; one thread at a time.  In three steps, so that one
 * barrier serves many locks: biased_other_want for each lock; biased_barrier once, if any of those returned true;
 * biased_other_await for each lock.  The last access of biased_other_leave is the store to wanted; after it the owner
 * may free the lock. */
bool biased_other_want(struct biased *lock);
void biased_barrier(void);
void biased_other_await(struct biased *lock);
void biased_other_leave(struct biased *lock);

/* From the next biased_other_leave on the owner executes the barrier, and biased_try fails, until the owner has called
 * biased_relieve: so the owner hears of what was done meanwhile.  For a thread that has the lock. */
void biased_other_hinder(struct biased *lock);

/* For the owner while it is not inside.  No other thread wants the lock or has it, and none may until this returns. */
void biased_relieve(struct biased *lock);

/* For the owner: whether biased_relieve would be of use. */
static inline bool biased_is_hindered(const struct biased *lock) {
  /* relaxed, both: a hint */
  return __builtin_expect(atomic_load_explicit(&lock->wanted, memory_order_relaxed) != 0, false) &&
         atomic_load_explicit(&biased_owner_barrier, memory_order_relaxed) == 0;
}

#endif
