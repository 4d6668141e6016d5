/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread is not cancelled (pthread_cancel) in the middle of a call: it would keep the locks that it holds, and other
 * threads would wait for them without end.  So a function that may wait, or that calls one that may, begins with
 * NOT_CANCELLED.  A request that comes meanwhile takes effect at the thread's next point of cancellation after the
 * call. Fast paths have no point of cancellation and do without.
 */
#ifndef MAM_LIB_CANCEL_H
#define MAM_LIB_CANCEL_H

#include <pthread.h>

static inline int cancel_hold(void) {
  int before = PTHREAD_CANCEL_ENABLE;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  return before;
}

static inline void cancel_restore(const int *before) {
  int held;
  (void)pthread_setcancelstate(*before, &held);
}

#define NOT_CANCELLED __attribute__((cleanup(cancel_restore), unused)) const int cancel_before = cancel_hold()

#endif
