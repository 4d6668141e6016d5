/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread is not cancelled (pthread_cancel) in the middle of a call: it would keep the locks that it holds, and what
 * others wait for would never end.  So a function that may wait, or call what may, begins with NOT_CANCELLED; a request
 * that comes meanwhile is granted at the thread's next point of cancellation after the call.  Quick ways have no such
 * point and need none.
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
