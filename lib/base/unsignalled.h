/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writing to a file of the library's own.  A file that may grow no more (RLIMIT_FSIZE) and a pipe without a reader
 * raise signals that end a process, SIGXFSZ and SIGPIPE, and these would reach whichever thread of the program writes.
 */
#ifndef MAM_LIB_UNSIGNALLED_H
#define MAM_LIB_UNSIGNALLED_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* write, without these signals.  One that was pending before is the program's. */
static inline ssize_t write_unsignalled(int fd, const void *bytes, size_t count) {
  sigset_t both, before, pending, raised;
  (void)sigemptyset(&both);
  (void)sigaddset(&both, SIGXFSZ);
  (void)sigaddset(&both, SIGPIPE);
  (void)pthread_sigmask(SIG_BLOCK, &both, &before);
  (void)sigpending(&pending);
  ssize_t written = write(fd, bytes, count);
  int error = errno;
  int signal = written >= 0 ? 0 : error == EFBIG ? SIGXFSZ : error == EPIPE ? SIGPIPE : 0;
  if (signal != 0 && !sigismember(&pending, signal)) {
    (void)sigemptyset(&raised);
    (void)sigaddset(&raised, signal);
    (void)sigtimedwait(&raised, NULL, &(struct timespec){0});
  }
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = error;
  return written;
}

#endif
