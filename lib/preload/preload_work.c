/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The hooks that tell the library what it must not disturb and need not ask: stream captures, which a fence would end;
 * waits for all work of a context, which are as good as a fence; and ends of contexts.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "preload/preload.h"

/* ---- Captures ---- */

/* A stream that a program captures, and the reuse of its context, which neither fences nor waits meanwhile. */
struct capture {
  CUstream stream;
  CUcontext context; /* for the streams that are none without it: legacy and per-thread ones */
  pthread_t thread;  /* that began it */
  bool of_all;       /* it means allocations of every thread */
  struct reuse *reuse;
  struct preload_keeper *keeper; /* of its blocks */
  struct capture *next;
};

/* Only graphs_lock is taken under it, and nothing called. */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic unsigned
    capture_count; /* relaxed: a hint; those too that are out of the list while the driver is called */

bool preload_capturing(void) { return atomic_load_explicit(&capture_count, memory_order_relaxed) > 0; }

static bool capture_is(const struct capture *capture, CUstream stream, CUcontext context) {
  bool per_thread = (uintptr_t)stream == CU_STREAM_PER_THREAD;
  return capture->stream == stream &&
         (!per_thread || (capture->context == context && pthread_equal(capture->thread, pthread_self())));
}

static void capture_put(struct capture *capture) {
  pthread_mutex_lock(&captures_lock);
  capture->next = captures;
  captures = capture;
  pthread_mutex_unlock(&captures_lock);
}

/* From here on nobody waits for the GPU. */
static void capture_add(struct capture *capture) {
  atomic_fetch_add_explicit(&capture_count, 1, memory_order_relaxed);
  capture_put(capture);
}

/* Out of the list, while the driver is called: as soon as it has let the stream go, another thread may have the same
 * handle and begin a capture of it. */
static struct capture *capture_take(CUstream stream, CUcontext context) {
  struct capture **link = &captures, *found;
  pthread_mutex_lock(&captures_lock);
  while ((found = *link) != NULL && !capture_is(found, stream, context))
    link = &found->next;
  if (found != NULL)
    *link = found->next;
  pthread_mutex_unlock(&captures_lock);
  return found;
}

/* The same of this very one, if it is still there: its context may have ended. */
static bool capture_remove(const struct capture *capture) {
  struct capture **link = &captures;
  pthread_mutex_lock(&captures_lock);
  while (*link != NULL && *link != capture)
    link = &(*link)->next;
  bool found = *link != NULL;
  if (found)
    *link = capture->next;
  pthread_mutex_unlock(&captures_lock);
  return found;
}

/* graph: what came of it, NULL if nothing did. */
static void capture_drop(struct capture *capture, void *graph) {
  atomic_fetch_sub_explicit(&capture_count, 1, memory_order_relaxed);
  preload_keeper_end(capture->keeper, graph);
  mam_client.capture_end(capture->reuse);
  free(capture);
}

static CUcontext context_now(const struct preload_real *real) {
  CUcontext context = NULL;
  return PRELOAD_CALL(real, cuCtxGetCurrent, &context) == CUDA_SUCCESS ? context : NULL;
}

/* A capture that is in the list has its keeper, and the list is locked. */
void preload_capture_keep(const struct preload_real *real, uintptr_t address) {
  CUcontext context = context_now(real);
  pthread_mutex_lock(&captures_lock);
  const struct capture *capture = captures;
  while (capture != NULL &&
         (capture->context != context || !(capture->of_all || pthread_equal(capture->thread, pthread_self()))))
    capture = capture->next;
  if (capture != NULL && capture->keeper != NULL)
    preload_keep(capture->keeper, address);
  pthread_mutex_unlock(&captures_lock);
}

/* The context whose work a stream is part of.  Asking does not disturb a capture. */
static CUcontext context_of(const struct preload_real *real, CUstream stream) {
  CUcontext context = NULL;
  bool is_handle = (uintptr_t)stream > CU_STREAM_PER_THREAD;
  if (is_handle && PRELOAD_CALL(real, cuStreamGetCtx, stream, &context) == CUDA_SUCCESS && context != NULL)
    return context;
  return context_now(real);
}

/* Before the capture begins, so that no fence falls into it.  NULL if there is nothing to be held back. */
static struct capture *capture_open(const struct preload_real *real, CUstream stream, CUstreamCaptureMode mode) {
  if (preload_depth != 0 || !preload_active())
    return NULL;
  struct capture *capture = malloc(sizeof *capture);
  CUcontext context = context_of(real, stream);
  if (capture == NULL || context == NULL) {
    free(capture);
    return NULL;
  }
  *capture = (struct capture){
      .stream = stream, .context = context, .thread = pthread_self(), .of_all = mode == CU_STREAM_CAPTURE_MODE_GLOBAL};
  preload_depth++;
  capture->reuse = mam_client.capture_begin(context);
  preload_depth--;
  if (capture->reuse == NULL) {
    free(capture);
    return NULL;
  }
  capture->keeper = preload_keeper_new();
  capture_add(capture);
  return capture;
}

/* Whether the capture began is known. */
static CUresult capture_opened(struct capture *capture, CUresult result) {
  if (capture == NULL || result == CUDA_SUCCESS)
    return result;
  preload_depth++;
  if (capture_remove(capture))
    capture_drop(capture, NULL);
  preload_depth--;
  return result;
}

/* Before the end of a stream's capture, or of the stream; NULL if none is known. */
static struct capture *capture_goes(const struct preload_real *real, CUstream stream) {
  return preload_capturing() && preload_depth == 0 ? capture_take(stream, context_now(real)) : NULL;
}

/* After it: the capture comes back if it goes on. */
static void capture_gone(struct capture *capture, bool goes_on, void *graph) {
  if (capture == NULL)
    return;
  preload_depth++;
  if (goes_on)
    capture_put(capture);
  else
    capture_drop(capture, graph);
  preload_depth--;
}

/* After the end of a capture, whether or not it gave a graph. */
static CUresult capture_closed(const struct preload_real *real, struct capture *capture, void *const *graph,
                               CUresult result) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  bool goes_on = capture != NULL && result != CUDA_SUCCESS &&
                 PRELOAD_CALL(real, cuStreamIsCapturing, capture->stream, &status) == CUDA_SUCCESS &&
                 status != CU_STREAM_CAPTURE_STATUS_NONE;
  capture_gone(capture, goes_on, result == CUDA_SUCCESS && graph != NULL ? *graph : NULL);
  return result;
}

CUresult cuStreamBeginCapture(CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_open(real, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture, stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_open(real, preload_stream_ptsz(stream), CU_STREAM_CAPTURE_MODE_GLOBAL);
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture_ptsz, stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_open(real, stream, mode);
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture_v2, stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_open(real, preload_stream_ptsz(stream), mode);
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture_v2_ptsz, stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, void *graph, const void *nodes, const void *edges, size_t count,
                                     CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_open(real, stream, mode);
  return capture_opened(capture,
                        PRELOAD_CALL(real, cuStreamBeginCaptureToGraph, stream, graph, nodes, edges, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, void *graph, const void *nodes, const void *edges,
                                          size_t count, CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_open(real, preload_stream_ptsz(stream), mode);
  return capture_opened(capture,
                        PRELOAD_CALL(real, cuStreamBeginCaptureToGraph_ptsz, stream, graph, nodes, edges, count, mode));
}

CUresult cuStreamEndCapture(CUstream stream, void **graph) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_goes(real, stream);
  return capture_closed(real, capture, graph, PRELOAD_CALL(real, cuStreamEndCapture, stream, graph));
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, void **graph) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_goes(real, preload_stream_ptsz(stream));
  return capture_closed(real, capture, graph, PRELOAD_CALL(real, cuStreamEndCapture_ptsz, stream, graph));
}

/* A stream that goes in the middle of its capture takes it along. */
CUresult cuStreamDestroy(CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_goes(real, stream);
  CUresult result = PRELOAD_CALL(real, cuStreamDestroy, stream);
  capture_gone(capture, result != CUDA_SUCCESS, NULL);
  return result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture = capture_goes(real, stream);
  CUresult result = PRELOAD_CALL(real, cuStreamDestroy_v2, stream);
  capture_gone(capture, result != CUDA_SUCCESS, NULL);
  return result;
}

/* ---- Waits ---- */

static struct reuse *wait_begin(CUcontext context, uint64_t *epoch) {
  if (preload_depth != 0 || !preload_active())
    return NULL;
  return mam_client.wait_begin(context, epoch);
}

static CUresult wait_end(struct reuse *reuse, uint64_t epoch, CUresult result) {
  if (reuse != NULL && result == CUDA_SUCCESS)
    mam_client.wait_end(reuse, epoch);
  return result;
}

CUresult cuCtxSynchronize(void) {
  const struct preload_real *real = preload_real_get();
  uint64_t epoch = 0;
  struct reuse *reuse = wait_begin(NULL, &epoch);
  return wait_end(reuse, epoch, PRELOAD_CALL(real, cuCtxSynchronize));
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  const struct preload_real *real = preload_real_get();
  uint64_t epoch = 0;
  struct reuse *reuse = wait_begin(context, &epoch);
  return wait_end(reuse, epoch, PRELOAD_CALL(real, cuCtxSynchronize_v2, context));
}

/* ---- Ends of contexts ---- */

/* Copies whose captures go on, at most so many at a time. */
enum { SWEPT_MOST = 64 };

static unsigned captures_copy(struct reuse *reuses[SWEPT_MOST]) {
  unsigned count = 0;
  pthread_mutex_lock(&captures_lock);
  for (const struct capture *capture = captures; capture != NULL && count < SWEPT_MOST; capture = capture->next)
    reuses[count++] = capture->reuse;
  pthread_mutex_unlock(&captures_lock);
  return count;
}

static struct capture *capture_take_of(const struct reuse *reuse) {
  struct capture **link = &captures, *found;
  pthread_mutex_lock(&captures_lock);
  while ((found = *link) != NULL && found->reuse != reuse)
    link = &found->next;
  if (found != NULL)
    *link = found->next;
  pthread_mutex_unlock(&captures_lock);
  return found;
}

/* Captures went with the streams of their context: what they held back is let go. */
static void captures_sweep(void) {
  struct reuse *reuses[SWEPT_MOST];
  struct capture *capture;
  unsigned count = captures_copy(reuses);
  for (unsigned i = 0; i < count; i++)
    while (!mam_client.context_lives(reuses[i]) && (capture = capture_take_of(reuses[i])) != NULL)
      capture_drop(capture, NULL);
}

/* A call that may have ended a context, and with it freed its memory. */
static CUresult context_gone(const struct preload_real *real, CUresult result) {
  if (result != CUDA_SUCCESS || preload_depth != 0 || !preload_active())
    return result;
  preload_depth++;
  if (preload_capturing())
    captures_sweep();
  mam_client.contexts_changed();
  preload_kept_sweep();
  preload_ipc_sweep(real);
  preload_depth--;
  return result;
}

CUresult cuCtxDestroy(CUcontext context) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuCtxDestroy, context));
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuCtxDestroy_v2, context));
}

CUresult cuCtxDetach(CUcontext context) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuCtxDetach, context));
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuDevicePrimaryCtxRelease, device));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuDevicePrimaryCtxRelease_v2, device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuDevicePrimaryCtxReset, device));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  const struct preload_real *real = preload_real_get();
  return context_gone(real, PRELOAD_CALL(real, cuDevicePrimaryCtxReset_v2, device));
}

void preload_work_forked(void) { (void)pthread_mutex_init(&captures_lock, NULL); }
