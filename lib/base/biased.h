/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A lock for a thing that one thread uses all the time and others rarely: its owner pays a store, a load and a store,
 * the others a membarrier(2) of some microseconds.
 *
 * Two flags, as in Dekker's algorithm: the owner says inside and then looks at wanted; another thread says wanted and
 * then looks at inside.  Each must write before it reads.  The other thread's membarrier makes every thread of the
 * process execute a full barrier between its call and its return, so that it orders the owner's pair of accesses too,
 * which in the code of the owner is ordered for the compiler alone:
 *   - if the owner's barrier comes before its read of wanted, it reads true and stands back;
 *   - else it comes after its write of inside, which the other thread then reads, and waits for.
 * What either wrote while it had the lock is published by the release of its flag and acquired by the other's read.
 * Where the kernel has no membarrier, the owner executes the full barrier itself, between the same two accesses.  So
 * that this costs nothing elsewhere, wanted then is never 0: the owner does not get in by a try, and enters slowly.
 *
 * The kernel may refuse its barrier later: a sandbox came, or the process was restored elsewhere.  Then the other
 * thread registers again; if that does not help, it runs on each processor once, which has the same effect and takes
 * milliseconds, and leaves the lock with the owner told to execute the barrier itself.  From then on the lock needs no
 * other.  An owner that read 0 before cannot get in by that: it gets in without a barrier only if it reads 0 again
 * after it has said inside, and that was overwritten before the other thread's barrier.
 *
 * tests/model/biased_test.c runs every interleaving of an owner and another thread, with the owner's store delayed at
 * will.
 */
#ifndef MAM_LIB_BIASED_H
#define MAM_LIB_BIASED_H

#include <stdatomic.h>
#include <stdbool.h>

enum { BIASED_WANTED = 1, BIASED_OWNER_FENCES = 2 };

struct biased {
  _Atomic bool inside;          /* written by the owner */
  _Atomic unsigned char wanted; /* of the above; written by others: one at a time, which is their concern */
};

/* What locks are set up and left with from now on: BIASED_OWNER_FENCES if owners have to execute the barrier
 * themselves, or 0.  A forked child, which asks again, sets up or leaves each lock as another before its owner enters
 * it. */
extern _Atomic unsigned char biased_owner_fences __attribute__((visibility("hidden")));

void biased_init(struct biased *lock);

/* Asks the kernel for its barrier: once before the first lock, and in a forked child before the first is left there. */
void biased_register(void);

/* The slow half of biased_enter: waits until nobody else holds the lock. */
void biased_enter_slowly(struct biased *lock);

/* For the owner, who must not hold the lock already.  If somebody else wants it, or may without the owner's having seen
 * it, false, and the owner has to enter or to leave. */
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

/* For other threads, or the owner while it is not inside; one at a time.  In three steps, so that one barrier serves
 * many locks: biased_other_want for each, biased_barrier once, unless none of them said that it needs it,
 * biased_other_await for each.  After the last access of biased_other_leave, which is the store to wanted, the owner
 * may free the lock. */
bool biased_other_want(struct biased *lock);
void biased_barrier(void);
void biased_other_await(struct biased *lock);
void biased_other_leave(struct biased *lock);

#endif
