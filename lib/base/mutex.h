/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How to lock a mutex that is mostly held for less than a microsecond.
 *
 * A pthread mutex puts who finds it taken to sleep at once, and wakes him when it is free; by the time he runs, another
 * thread may have it again, and he sleeps anew.  Where threads take it all the time, one of them was kept out for more
 * than a millisecond (H200's host, 8 threads).  So a thread first looks again for a while; and when it has looked for
 * long, the others let it go first.
 */
#ifndef MAM_LIB_MUTEX_H
#define MAM_LIB_MUTEX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* How many threads are let go first, at whatever mutex: seldom any, and not for long. */
extern _Atomic unsigned mutex_hungry;

/* In a forked child, before others lock: who was hungry is gone. */
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
