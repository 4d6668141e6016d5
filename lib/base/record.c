/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/error.h"
#include "base/locked.h"
#include "base/option_text.h"
#include "base/record_clock.h"
#include "base/record_inside.h"
#include "base/record_path.h"
#include "base/record_site.h"
#include "base/zstd.h"

/* ---- Beginning, end and fork ---- */

/* Relative paths are of the folder that the program is in now. */
static bool path_set(const char *text) {
  size_t bytes = 0;
  if (text[0] != '/' && getcwd(recording.path, sizeof recording.path - 1) != NULL) {
    bytes = strlen(recording.path);
    recording.path[bytes++] = '/';
  }
  int written = snprintf(recording.path + bytes, sizeof recording.path - bytes, "%s", text);
  return written >= 0 && (size_t)written < sizeof recording.path - bytes;
}

/* The number of the process that mam-run became, which it puts into the environment; 0: there is none. */
static uint64_t run_read(void) {
  const char *text = option_text(OPTION_MAM_RECORD_PROCESS);
  char *end;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (*text >= '0' && *text <= '9' && *end == '\0' && errno == 0)
    return number;
  (void)fprintf(stderr, "mam: MAM_RECORD_PROCESS=%s is not understood: expected %s; it is ignored\n", text,
                option_table[OPTION_MAM_RECORD_PROCESS].values);
  return 0;
}

/* What every record of the process needs. */
static void prepare(void) {
  recording.run = run_read();
  recording.zstd = zstd_load();
  clock_set_up();
  recording.ticks_base = clock_after();
  rings_set_up();
  writer_set_up();
  (void)at_quick_exit(record_end);
}

void record_prepare(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, prepare);
}

/* Without mam-run, a run begins here.  Children have the number by fork, what they execute has it by the environment.
 */
static void run_begin(void) {
  char number[32];
  if (recording.run != 0)
    return;
  recording.run = (uint64_t)getpid();
  (void)snprintf(number, sizeof number, "%ld", (long)getpid());
  (void)setenv("MAM_RECORD_PROCESS", number, 1);
}

static void set_up(void) {
  const char *text = option_text(OPTION_MAM_RECORD);
  bool wanted = strcmp(text, "none") != 0 && getauxval(AT_SECURE) == 0; /* no file by another user's rights */
  if (wanted && !path_set(text)) {
    (void)fprintf(stderr, "mam: MAM_RECORD: the path is too long; nothing is recorded\n");
    wanted = false;
  }
  if (wanted) {
    record_prepare();
    run_begin();
  }
  /* release: what was prepared; pairs with the acquire in record_on */
  atomic_store_explicit(&record_state, wanted ? RECORD_ON : RECORD_OFF, memory_order_release);
}

__attribute__((constructor)) void record_set_up(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, set_up);
}

void record_end(void) {
  if (!record_on())
    return;
  pthread_mutex_lock(&record_lock);
  /* seq_cst, as the stores below: pairs with ring_look, which may raise a limit meanwhile. */
  atomic_store_explicit(&recording.direct, true, memory_order_seq_cst);
  if (recording.open) {
    for (struct recorder *recorder = recording.recorders; recorder != NULL; recorder = recorder->next)
      atomic_store_explicit(&recorder->limit, 0, memory_order_seq_cst);
    recorders_drain_locked(true);
    record_file_end(&recording.file);
    recording_failed_locked();
  }
  pthread_mutex_unlock(&record_lock);
}

void record_before_fork(void) { pthread_mutex_lock(&record_lock); }

/* The child's events go to another file.  What the parent has not written yet is the parent's to write. */
static void forget_locked(void) {
  lock_held(&record_lock);
  struct recorder *recorder;
  while ((recorder = recording.recorders) != NULL) {
    recording.recorders = recorder->next;
    recorder_free(recorder);
  }
  rings_forget();
  if (recording.by_call) /* relaxed: the child has one thread */
    atomic_store_explicit(&record_state, RECORD_OFF, memory_order_relaxed);
  recording_close_locked(true);
  atomic_store_explicit(&recording.writes, false, memory_order_relaxed);
  writer_forget();
}

void record_after_fork(bool in_child) {
  if (in_child)
    forget_locked();
  pthread_mutex_unlock(&record_lock);
}

/* ---- By a call ---- */

static cudaError_t cannot_write(const char *path, int error) {
  return error == EEXIST  ? error_set(cudaErrorUnknown, "%s is no record, so it is not written over", path)
         : error == EBADF ? error_set(cudaErrorUnknown, "the program has closed the record %s", path)
         : error == EBUSY ? error_set(cudaErrorUnknown, "another process writes its record to %s", path)
                          : error_set(cudaErrorUnknown, "cannot write the record %s: %s", path, strerror(error));
}

static cudaError_t begin_file_locked(const char *path) {
  lock_held(&record_lock);
  enum record_taken taken;
  if (record_on() || recording.by_call)
    return error_set(cudaErrorAlreadyAcquired, "a record is made already, to %s",
                     recording.open ? recording.written_path : recording.path);
  if (!path_set(path))
    return error_set(cudaErrorInvalidValue, "the path of the record is too long");
  recording_close_locked(false); /* an earlier one may have stopped because of an error */
  record_path_expand(recording.path, recording.written_path, PATH_MAX);
  recording.by_call = true;
  int fd = record_path_open(recording.written_path, recording.by_call, recording.run, &taken), error = errno;
  if (fd >= 0 && !recording_open_locked(fd)) {
    recording.by_call = false;
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a record");
  }
  error = fd >= 0 ? recording.file.error : error;
  if (error == 0)
    return cudaSuccess;
  recording_close_locked(false);
  return cannot_write(recording.written_path, error);
}

cudaError_t record_begin_file(const char *path) {
  pthread_mutex_lock(&record_lock);
  cudaError_t error = begin_file_locked(path);
  pthread_mutex_unlock(&record_lock);
  return error;
}

void record_begin_cut(void) {
  pthread_mutex_lock(&record_lock);
  for (struct recorder *recorder = recording.recorders; recorder != NULL; recorder = recorder->next)
    (void)recorder_drain_locked(recorder, true);
  atomic_store_explicit(&recording.lost_count, 0, memory_order_relaxed);
  recording.unloads = site_unloads();
  recording.begin_ticks = clock_after() - recording.ticks_base;
  recording.generation++;
  /* release: what was prepared; pairs with the acquire in record_on */
  atomic_store_explicit(&record_state, RECORD_ON, memory_order_release);
}

void record_begin_live(const struct record_live *all, size_t count, uint64_t lost) {
  lock_held(&record_lock);
  recording_live_put_locked(all, count);
  atomic_fetch_add_explicit(&recording.lost_count, lost, memory_order_relaxed);
  recording_flush_locked();
  writer_start_locked();
  pthread_mutex_unlock(&record_lock);
}

cudaError_t record_end_file(void) {
  pthread_mutex_lock(&record_lock);
  if (!recording.by_call) {
    bool on = record_on();
    pthread_mutex_unlock(&record_lock);
    return error_set(cudaErrorInvalidValue,
                     on ? "the record is not one that MAM_RecordBegin began" : "no record is made");
  }
  atomic_store_explicit(&record_state, RECORD_OFF, memory_order_relaxed); /* relaxed: the rings are under the lock */
  recorders_drain_locked(true);
  recording_clock_put_locked();
  record_file_end(&recording.file);
  int error = recording.file.error;
  recording_close_locked(false);
  cudaError_t result = error != 0 ? cannot_write(recording.written_path, error) : cudaSuccess;
  pthread_mutex_unlock(&record_lock);
  return result;
}
