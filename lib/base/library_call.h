/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A function that a program calls, and that may wait or take a lock, begins with LIBRARY_CALL.  Its thread is not
 * cancelled (cancel.h).  If it holds the library still for a fork, because the call comes from another library's fork
 * handler, it lets go until the function returns (forking.h).
 *
 * Fast paths do without: they have no point of cancellation, and nothing at hand while the thread forks.
 */
#ifndef MAM_LIB_LIBRARY_CALL_H
#define MAM_LIB_LIBRARY_CALL_H

#include "base/cancel.h"
#include "base/forking.h"

struct library_call {
  int cancel_before;
  bool holds_again;
};

static inline struct library_call library_call_begin(void) {
  struct library_call call = {cancel_hold(), false};
  if (__builtin_expect(fork_holds, false))
    call.holds_again = fork_step_out();
  return call;
}

static inline void library_call_end(const struct library_call *call) {
  if (__builtin_expect(call->holds_again, false))
    fork_step_in();
  cancel_restore(&call->cancel_before);
}

#define LIBRARY_CALL                                                                                                   \
  __attribute__((cleanup(library_call_end), unused)) const struct library_call library_call = library_call_begin()

#endif
