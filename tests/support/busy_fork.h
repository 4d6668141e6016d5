/* SPDX-License-Identifier: BSD-2-Clause */
/* Forks a process whose other threads are busy, and tells whether the child could go on. */
#ifndef MAM_TESTS_BUSY_FORK_H
#define MAM_TESTS_BUSY_FORK_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* How many seconds a child has.  A child hangs on a lock that another thread held at the fork.  Under a sanitizer the
 * lock can be one of the sanitizer's own allocator, so there a child that does not end says nothing. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { BUSY_FORK_S = 5, BUSY_FORK_MAY_HANG = true };
#else
enum { BUSY_FORK_S = 20, BUSY_FORK_MAY_HANG = false };
#endif

/* A thread that a child starts may get the identity of one that its parent had.  ThreadSanitizer then ends the child
 * with this status ("dup thread with used id"), which says nothing either. */
#ifdef __SANITIZE_THREAD__
enum { BUSY_FORK_DUP = 66 };
#else
enum { BUSY_FORK_DUP = 0 };
#endif

/* Forks.  The child calls body and exits with what it returns.  Returns whether that was 0. */
static inline bool busy_fork(int (*body)(void)) {
  enum { STEP_US = 500 };
  int status = -1;
  pid_t ended = 0, child = fork();
  if (child == 0)
    _exit(body());
  for (int i = 0; i < BUSY_FORK_S * 1000000 / STEP_US && ended == 0 && child > 0; i++) {
    ended = waitpid(child, &status, WNOHANG);
    if (ended == 0)
      (void)usleep(STEP_US);
  }
  if (ended != 0 || child < 0)
    return ended > 0 && WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == BUSY_FORK_DUP);
  (void)kill(child, SIGKILL);
  (void)waitpid(child, &status, 0);
  return BUSY_FORK_MAY_HANG;
}

#endif
