/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "base/helper.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/forking.h"
#include "base/locked.h"

/* Between two looks whether the process is to end: at first, and twice as long each time up to the most.  A look takes
 * some microseconds. */
enum { LOOK_FIRST_MS = 10, LOOK_MOST_MS = 1000 };

static pthread_mutex_t helper_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct {                                                 /* under helper_lock */
  int count;
  bool main_ended, watched; /* main_ended: or its end would not be heard */
} helpers;

static pthread_key_t main_end; /* these are set before the first helper */
static bool main_end_known;

/* ---- The end of the process ---- */

/* The state of the main thread and the number of threads stand behind the name of the program, which is in brackets and
 * may hold any character. */
static bool alone(void) {
  char text[1024], state = '?';
  int threads = 0;
  pthread_mutex_lock(&helper_lock);
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  ssize_t bytes = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
  if (fd >= 0)
    (void)close(fd);
  text[bytes > 0 ? bytes : 0] = '\0';
  const char *behind = strrchr(text, ')');
  bool known =
      behind != NULL &&
      sscanf(behind, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d", &state, &threads) == 2;
  bool only_helpers = known && state == 'Z' && threads == helpers.count + 1;
  pthread_mutex_unlock(&helper_lock);
  return only_helpers;
}

static void *watch(void *unused) {
  (void)unused;
  (void)pthread_setname_np(pthread_self(), "mam-exit");
  for (int ms = LOOK_FIRST_MS; !alone(); ms = 2 * ms < LOOK_MOST_MS ? 2 * ms : LOOK_MOST_MS) {
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)nanosleep(&time, NULL);
  }
  exit(0); /* as the C library does with the last thread */
}

/* Counts the thread before a look, or another thread, can find it. */
static int start_locked(pthread_t *thread, void *(*run)(void *), void *closure) {
  lock_held(&helper_lock);
  pthread_t unjoined;
  sigset_t all, before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = pthread_create(thread != NULL ? thread : &unjoined, NULL, run, closure);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error == 0) {
    helpers.count++;
    if (thread == NULL)
      (void)pthread_detach(unjoined);
  }
  return error;
}

static void watch_locked(void) {
  lock_held(&helper_lock);
  if (helpers.main_ended && helpers.count > 0 && !helpers.watched)
    helpers.watched = start_locked(NULL, watch, NULL) == 0;
}

/* ---- The main thread ---- */

static void main_ends(void *unused) {
  (void)unused;
  pthread_mutex_lock(&helper_lock);
  helpers.main_ended = true;
  watch_locked();
  pthread_mutex_unlock(&helper_lock);
}

/* In the main thread, its end will be heard.  In another one, which loads the library, it may have come already. */
static void main_hear(void) {
  bool is_main = syscall(SYS_gettid) == getpid();
  helpers.main_ended = !is_main || !main_end_known || pthread_setspecific(main_end, &helpers) != 0;
}

static void hold(void) { pthread_mutex_lock(&helper_lock); }

/* The child has one thread, its main one. */
static void let_go(bool in_child) {
  if (in_child) {
    helpers.count = 0;
    helpers.watched = false;
    main_hear();
  }
  pthread_mutex_unlock(&helper_lock);
}

static void set_up(void) {
  static const struct fork_functions functions = {hold, let_go};
  main_end_known = pthread_key_create(&main_end, main_ends) == 0;
  main_hear();
  fork_join(FORK_HELPERS, &functions);
}

__attribute__((constructor)) static void helper_set_up(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, set_up);
}

/* ---- Beginning and end ---- */

int helper_start(pthread_t *thread, void *(*run)(void *), void *closure) {
  helper_set_up();
  pthread_mutex_lock(&helper_lock);
  int error = start_locked(thread, run, closure);
  watch_locked();
  pthread_mutex_unlock(&helper_lock);
  return error;
}

void helper_end(void) {
  pthread_mutex_lock(&helper_lock);
  helpers.count--;
  pthread_mutex_unlock(&helper_lock);
}
