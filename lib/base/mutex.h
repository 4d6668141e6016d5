/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How to lock a mutex that is mostly held for less than a microsecond.
 *
 * A pthread mutex puts a thread that finds it taken to sleep at once, and wakes it when the mutex is free.  By the time
 * the thread runs, another one may have the mutex, and the thread sleeps again.  Where 8 threads take the mutex all the
 * time, one of them was kept out for more than a millisecond (H200's host).  So a thread first spins: it tries again
 * and again for up to a millisecond.  A thread that has spun for 100 us is hungry: the others stop trying until it has
 * the mutex.
 */
#ifndef MAM_LIB_MUTEX_H
#define MAM_LIB_MUTEX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* How many threads are hungry, at any mutex of the library: seldom one, and not for long. */
extern _Atomic unsigned mutex_hungry;

/* In a forked child, before other threads lock: the hungry threads are not in the child. */
void mutex_forked(void);

/* The slow half of mutex_lock. */
void mutex_await(pthread_mutex_t *mutex);

static inline void mutex_lock(pthread_mutex_t *mutex) {
  /* relaxed: a hint */
  bool hungry = atomic_load_explicit(&mutex_hungry, memory_order_relaxed) != 0;
  if (__builtin_expect(hungry || pthread_mutex_trylock(mutex) != 0, 0))
    mutex_await(mutex);
}

#endif
