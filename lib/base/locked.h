/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Assertions that a lock is held.
 *
 * A function whose name ends in _locked, or whose comment says that a lock is held, begins with lock_held(&lock).
 * With --enable-checks it ends the program if the calling thread does not hold the lock; otherwise it is no code.
 *
 * glibc keeps the holder's thread id in the mutex.  Elsewhere the assertion is weaker: some thread holds the lock.
 * A forked child holds the locks that its parent's thread took before the fork: their holder is no thread of the child.
 */
#ifndef MAM_LIB_LOCKED_H
#define MAM_LIB_LOCKED_H

#ifdef MAM_CHECKS

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline bool lock_is_held(const pthread_mutex_t *mutex) {
#ifdef __GLIBC__
  int holder = mutex->__data.__owner;
  if (holder == 0 || holder == (int)syscall(SYS_gettid))
    return holder != 0;
  return syscall(SYS_tgkill, getpid(), holder, 0) != 0; /* signal 0: only asks whether there is such a thread */
#else
  pthread_mutex_t *tried = (pthread_mutex_t *)mutex;
  if (pthread_mutex_trylock(tried) != 0)
    return true;
  (void)pthread_mutex_unlock(tried);
  return false;
#endif
}

static inline void lock_assert(const pthread_mutex_t *mutex, const char *function) {
  if (lock_is_held(mutex))
    return;
  (void)fprintf(stderr, "mam: %s was called without the lock that it needs\n", function);
  abort();
}

#define lock_held(mutex) lock_assert((mutex), __func__)

#else

#define lock_held(mutex) ((void)sizeof(mutex)) /* so that a parameter is not unused */

#endif

#endif
