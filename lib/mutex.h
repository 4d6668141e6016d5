/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How to lock a mutex that is mostly held for less than a microsecond.
 *
 * A pthread mutex puts who finds it taken to sleep at once, and wakes him when it is free; by the time he runs, another
 * thread may have it again, and he sleeps anew.  Where threads take it all the time, one of them was kept out for more
 * than a millisecond (H200's host, 8 threads).  So a thread first looks again for a while.
 */
#ifndef MAM_LIB_MUTEX_H
#define MAM_LIB_MUTEX_H

#include <pthread.h>

/* The slow half of mutex_lock. */
void mutex_await(pthread_mutex_t *mutex);

static inline void mutex_lock(pthread_mutex_t *mutex) {
  if (__builtin_expect(pthread_mutex_trylock(mutex) != 0, 0))
    mutex_await(mutex);
}

#endif
