/* SPDX-License-Identifier: BSD-2-Clause */
/* Forks a process whose other threads are busy. */
#ifndef MAM_TESTS_BUSY_FORK_H
#define MAM_TESTS_BUSY_FORK_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* A lock that was left behind hangs the child.  A child can also hang in a sanitizer's own allocator, whose locks other
 * threads may have had at the fork: there, and only there, a child that does not end says nothing. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { BUSY_FORK_S = 5, BUSY_FORK_MAY_HANG = true };
#else
enum { BUSY_FORK_S = 20, BUSY_FORK_MAY_HANG = false };
#endif

/* Whether a child did what body does, whose result is its exit status, and ended with 0. */
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
    return ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  (void)kill(child, SIGKILL);
  (void)waitpid(child, &status, 0);
  return BUSY_FORK_MAY_HANG;
}

#endif
