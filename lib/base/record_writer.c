/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/helper.h"
#include "base/locked.h"
#include "base/record_inside.h"
#include "base/record_path.h"

/* How long an event waits for the writer. */
enum { WRITER_MS = 20 };

static struct {
  pthread_mutex_t lock; /* a leaf */
  pthread_cond_t wakes;
  bool woken;
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER};

void writer_set_up(void) {
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&writer.wakes, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

/* False if the record has ended. */
static bool writer_drain(bool sends) {
  pthread_mutex_lock(&record_lock);
  bool goes_on = !atomic_load_explicit(&recording.direct, memory_order_relaxed) && record_is_on();
  if (goes_on)
    recorders_drain_locked(sends);
  else
    atomic_store_explicit(&recording.writes, false, memory_order_relaxed);
  pthread_mutex_unlock(&record_lock);
  return goes_on;
}

/* Waits until the moment, or until a thread wakes the writer. */
static void writer_await(int64_t until_ns) {
  struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
  pthread_mutex_lock(&writer.lock);
  while (!writer.woken && pthread_cond_timedwait(&writer.wakes, &writer.lock, &until) == 0)
    ;
  writer.woken = false;
  pthread_mutex_unlock(&writer.lock);
}

static void *writer_run(void *unused) {
  (void)unused;
  bool sends;
  int64_t until_ns = 0;
  (void)pthread_setname_np(pthread_self(), "mam-record");
  do {
    sends = now_ns() >= until_ns;
    if (sends)
      until_ns = now_ns() + (int64_t)WRITER_MS * 1000000;
    else
      writer_await(until_ns);
  } while (writer_drain(sends));
  helper_end();
  return NULL;
}

void writer_wake(void) {
  pthread_mutex_lock(&writer.lock);
  writer.woken = true;
  (void)pthread_cond_signal(&writer.wakes);
  pthread_mutex_unlock(&writer.lock);
}

void writer_start_locked(void) {
  lock_held(&record_lock);
  if (!record_is_on() || atomic_load_explicit(&recording.direct, memory_order_relaxed) ||
      atomic_load_explicit(&recording.writes, memory_order_relaxed)) /* that of the record before goes on */
    return;
  atomic_store_explicit(&recording.writes, helper_start(NULL, writer_run, NULL) == 0, memory_order_relaxed);
}

void writer_forget(void) {
  writer.woken = false;
  (void)pthread_mutex_init(&writer.lock, NULL);
  writer_set_up();
}

/* ---- Which file ---- */

/* Opens one of FILE, FILE.PID, FILE.PID.2 and so on; -1 after a message. */
static int file_open_locked(void) {
  lock_held(&record_lock);
  char path[PATH_MAX];
  enum record_taken taken = TAKEN_BY_OTHER;
  int fd = -1;
  record_path_expand(recording.path, path, sizeof path);
  for (int attempt = 0; attempt < 100 && taken == TAKEN_BY_OTHER; attempt++) {
    int suffix = attempt == 0 ? 0 : (int)getpid();
    (void)snprintf(recording.written_path, sizeof recording.written_path,
                   attempt == 0   ? "%s"
                   : attempt == 1 ? "%s.%d"
                                  : "%s.%d.%d",
                   path, suffix, attempt);
    fd = record_path_open(recording.written_path, recording.by_call, recording.run, &taken);
  }
  if (fd >= 0)
    return fd;
  recording.open = true; /* so that the message names this path */
  recording_stop_locked(errno == EEXIST ? "no record, so it is not written over:" : "cannot write the record", errno);
  recording.open = false;
  return -1;
}

bool recording_open_locked(int fd) {
  lock_held(&record_lock);
  static char command[RECORD_TEXT_MOST];
  struct timespec now;
  recording.open = record_file_open(&recording.file, fd, recording.zstd);
  if (!recording.open) {
    (void)close(fd);
    return false;
  }
  (void)clock_gettime(CLOCK_REALTIME, &now);
  record_command(command, sizeof command);
  record_file_program(&recording.file, (uint64_t)getpid(), recording.run,
                      (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, command);
  return true;
}

bool recording_begin_locked(void) {
  lock_held(&record_lock);
  if (recording.open || !record_is_on())
    return recording.open;
  int fd = file_open_locked();
  if (fd < 0)
    return false;
  if (!recording_open_locked(fd)) {
    recording_stop_locked("cannot write the record", ENOMEM);
    return false;
  }
  recording_flush_locked();
  writer_start_locked();
  return record_is_on();
}

void recording_close_locked(bool in_child) {
  lock_held(&record_lock);
  numbers_clear(&recording.sites);
  numbers_clear(&recording.tags);
  numbers_clear(&recording.streams);
  numbers_clear(&recording.contexts);
  numbers_clear(&recording.texts);
  if (recording.open)
    record_file_close(&recording.file, in_child);
  recording.open = recording.by_call = false;
  recording.begin_ticks = 0;
}
