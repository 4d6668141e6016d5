/* SPDX-License-Identifier: BSD-2-Clause */
/* Stream captures: what is known of those that go on, and how to wait for the GPU beside them. */
#include "base/locked.h"
#include "base/mutex.h"
#include "cuda/reuse_inside.h"

/* Brackets of captures that are open in any context: what a capture forbids its thread, it forbids in all. */
static _Atomic unsigned captures_open;

bool reuse_brackets_open(void) {
  /* relaxed: a thread that captures has opened its bracket itself, or been told of it */
  return atomic_load_explicit(&captures_open, memory_order_relaxed) > 0;
}

bool reuse_captured_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (reuse->captures > 0)
    return true;
  if (reuse->noticed != NULL && !context_stream_captures(reuse->source.context.driver, reuse->noticed))
    reuse->noticed = NULL;
  return reuse->noticed != NULL;
}

/* ---- Waits beside captures ---- */

enum { SPARE_BYTES = 1 };

/* Sees to it that there is a spare block.  If there is no memory for one, the next wait asks again. */
static void spare_get_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (reuse->spare == 0)
    (void)source_device.chunk_take(&reuse->source, SPARE_BYTES, &reuse->spare);
}

bool reuse_may_free_to_wait_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  if (reuse->captures == 0 || reuse->captures != reuse->keeping)
    return false;
  spare_get_locked(reuse);
  return reuse->spare != 0;
}

cudaError_t reuse_free_to_wait_locked(struct reuse *reuse) {
  lock_held(&reuse->lock);
  uintptr_t spare = reuse->spare;
  reuse->spare = 0;
  pthread_mutex_unlock(&reuse->lock);
  cudaError_t error = source_device.chunk_give(&reuse->source, spare, SPARE_BYTES);
  mutex_lock(&reuse->lock);
  spare_get_locked(reuse);
  return error;
}

/* ---- Brackets ---- */

void reuse_capture_begin(struct reuse *reuse, bool keeps) {
  pthread_mutex_lock(&reuse->lock); /* no fence is in the middle of being recorded */
  reuse->captures++;
  reuse->keeping += keeps;
  atomic_fetch_add_explicit(&captures_open, 1, memory_order_relaxed); /* relaxed: see reuse_brackets_open */
  while (reuse->synchronizing > 0)
    (void)pthread_cond_wait(&reuse->quiet, &reuse->lock);
  if (keeps)
    spare_get_locked(reuse);
  pthread_mutex_unlock(&reuse->lock);
}

bool reuse_capture_end(struct reuse *reuse, bool keeps) {
  pthread_mutex_lock(&reuse->lock);
  bool begun = (keeps ? reuse->keeping : reuse->captures - reuse->keeping) > 0; /* each kind ends its own */
  if (begun) {
    reuse->captures--;
    reuse->keeping -= keeps;
    atomic_fetch_sub_explicit(&captures_open, 1, memory_order_relaxed); /* relaxed: see reuse_brackets_open */
  }
  pthread_mutex_unlock(&reuse->lock);
  return begun;
}

void reuse_notice_capture(struct reuse *reuse, CUstream stream) {
  pthread_mutex_lock(&reuse->lock);
  if (reuse->captures == 0) /* else the bracket says when it ends, and the stream may be gone by then */
    reuse->noticed = stream;
  pthread_mutex_unlock(&reuse->lock);
}
