/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The hooks that tell libmam what the program does with its GPU work:
 *
 *   captures            a fence or a wait would end them, so each opens a bracket in which libmam makes none
 *   waits               a wait for all work of a context is as good as a fence
 *   ends of contexts    the memory of a context goes with it, so its pool must be forgotten
 *
 * A list has the captures that go on.  The file does not know what graphs do with blocks; preload_graph.c does.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "preload/preload.h"

/* ---- Captures ---- */

/* A capture that goes on. */
struct capture {
  CUstream stream;
  CUcontext context;             /* of the stream; with the thread it tells which per-thread stream is meant */
  uint64_t thread;               /* the number of the thread that began it */
  CUstreamCaptureMode mode;      /* as the program began it */
  struct reuse *reuse;           /* of the context, whose bracket is open */
  struct preload_keeper *keeper; /* of its blocks */
  void *graph;                   /* that it adds to; NULL: it makes a new one */
  bool ends;                     /* a thread is in a call that may end it, and has it until that returns */
  struct capture *next;
};

/* Protects the list.  Under it a thread takes keep_lock (preload_keep.c) only, and calls neither libmam nor the driver.
 */
static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;
static _Atomic unsigned capture_count; /* relaxed: a hint */

/* So many of these are not relaxed. */
static _Atomic unsigned strict_count;

/* A number that no other thread of the process has or had: a new thread may get the identity of one that has ended. */
static uint64_t thread_number(void) {
  static _Atomic uint64_t last; /* relaxed: a counter */
  static __thread __attribute__((tls_model("initial-exec"))) uint64_t own;
  if (own == 0)
    own = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
  return own;
}

bool preload_capturing(void) { return atomic_load_explicit(&capture_count, memory_order_relaxed) > 0; }

/* Whether the capture is of that stream, as far as is known: as soon as the driver has ended a stream, another thread
 * may get its handle and begin a capture.  A per-thread stream has one handle for all threads and contexts. */
static bool capture_is(const struct capture *capture, CUstream stream, CUcontext context) {
  bool per_thread = (uintptr_t)stream == CU_STREAM_PER_THREAD;
  return !capture->ends && capture->stream == stream &&
         (!per_thread || (capture->context == context && capture->thread == thread_number()));
}

/* Puts a new capture into the list, and counts it. */
static void capture_add(struct capture *capture) {
  atomic_fetch_add_explicit(&capture_count, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&strict_count, capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED, memory_order_relaxed);
  pthread_mutex_lock(&captures_lock);
  capture->next = captures;
  captures = capture;
  pthread_mutex_unlock(&captures_lock);
}

/* Finds the capture of a stream, NULL if there is none.  It stays in the list while the driver is called to end it, as
 * its keeper holds blocks until then.  But no other call finds it. */
static struct capture *capture_claim(CUstream stream, CUcontext context) {
  pthread_mutex_lock(&captures_lock);
  struct capture *found = captures;
  while (found != NULL && !capture_is(found, stream, context))
    found = found->next;
  if (found != NULL)
    found->ends = true;
  pthread_mutex_unlock(&captures_lock);
  return found;
}

/* The driver has not ended it. */
static void capture_unclaim(struct capture *capture) {
  pthread_mutex_lock(&captures_lock);
  capture->ends = false;
  pthread_mutex_unlock(&captures_lock);
}

/* Takes this capture out of the list: claimed by the caller or not.  False if it is not there so: another thread has
 * it; or its context has ended, and captures_sweep took it. */
static bool capture_remove(const struct capture *capture, bool claimed) {
  struct capture **link = &captures;
  pthread_mutex_lock(&captures_lock);
  while (*link != NULL && *link != capture)
    link = &(*link)->next;
  bool found = *link != NULL && (*link)->ends == claimed;
  if (found)
    *link = capture->next;
  pthread_mutex_unlock(&captures_lock);
  return found;
}

/* Ends a capture, which is out of the list, and closes its bracket.  graph: the graph that it made, NULL if none. */
static void capture_drop(struct capture *capture, void *graph) {
  atomic_fetch_sub_explicit(&capture_count, 1, memory_order_relaxed);
  atomic_fetch_sub_explicit(&strict_count, capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED, memory_order_relaxed);
  preload_keeper_end(capture->keeper, graph, capture->graph == NULL);
  mam_client.capture_end(capture->reuse);
  free(capture);
}

static CUcontext context_now(const struct preload_real *real) {
  CUcontext context = NULL;
  return PRELOAD_CALL(real, cuCtxGetCurrent, &context) == CUDA_SUCCESS ? context : NULL;
}

/* Whether the driver refuses an allocation of the calling thread while this capture goes on, as
 * cuThreadExchangeStreamCaptureMode tells.  mode: the thread's. */
static bool capture_forbids(const struct capture *capture, CUstreamCaptureMode mode) {
  if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  return capture->thread == thread_number() ||
         (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* The mode of the calling thread.  It matters only if a capture is not relaxed, and else the driver is not asked. */
static CUstreamCaptureMode thread_mode(const struct preload_real *real) {
  if (atomic_load_explicit(&strict_count, memory_order_relaxed) == 0)
    return CU_STREAM_CAPTURE_MODE_GLOBAL;
  CUstreamCaptureMode mode = preload_relaxed_begin(real);
  preload_relaxed_end(real, mode);
  return mode;
}

/* How the keeper of a capture is to hold a block that the calling thread allocates or frees.  False if not at all: then
 * neither the capture nor the thread is relaxed, and the thread is none of the capture's business. */
static bool capture_holds(const struct capture *capture, CUstreamCaptureMode mode, enum preload_hold *rank) {
  if (capture_forbids(capture, mode)) {
    *rank = PRELOAD_HOLD_HARD;
    return true;
  }
  *rank = capture->thread == thread_number() ? PRELOAD_HOLD_SOFT : PRELOAD_HOLD_SLIGHT;
  return capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

/* The lock is held to the end: while a capture is in the list, its keeper exists.  hard: whatever the modes are. */
static bool captures_keep(const struct client_block *block, CUstreamCaptureMode mode, bool hard) {
  enum preload_hold rank;
  bool kept = true;
  pthread_mutex_lock(&captures_lock);
  for (const struct capture *capture = captures; capture != NULL && kept; capture = capture->next)
    if (hard)
      kept = preload_keep(capture->keeper, block, PRELOAD_HOLD_HARD);
    else if (capture_holds(capture, mode, &rank))
      kept = preload_keep(capture->keeper, block, rank);
  pthread_mutex_unlock(&captures_lock);
  return kept;
}

bool preload_capture_keep(const struct preload_real *real, const struct client_block *block) {
  return captures_keep(block, thread_mode(real), false);
}

static bool stream_captures(const struct preload_real *real, CUstream stream) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  return PRELOAD_CALL(real, cuStreamIsCapturing, stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool preload_capture_keep_async(const struct preload_real *real, const struct client_block *block, CUstream stream) {
  return captures_keep(block, thread_mode(real), stream_captures(real, stream));
}

/* The stream may have joined the capture of another one, so all captures that go on are meant. */
void preload_capture_launch(const struct preload_real *real, const void *executable, CUstream stream) {
  if (!preload_capturing() || !stream_captures(real, stream))
    return;
  pthread_mutex_lock(&captures_lock);
  for (const struct capture *capture = captures; capture != NULL; capture = capture->next)
    preload_keeper_launch(capture->keeper, executable);
  pthread_mutex_unlock(&captures_lock);
}

/* The context of a stream.  The question does not disturb a capture.  The current context is that of legacy and
 * per-thread streams. */
static CUcontext context_of(const struct preload_real *real, CUstream stream) {
  CUcontext context = NULL;
  bool is_handle = (uintptr_t)stream > CU_STREAM_PER_THREAD;
  if (is_handle && PRELOAD_CALL(real, cuStreamGetCtx, stream, &context) == CUDA_SUCCESS && context != NULL)
    return context;
  return context_now(real);
}

/* A capture of a stream of that context, with an open bracket and a keeper.  NULL if the host has no memory. */
static struct capture *capture_new(CUstream stream, CUcontext context, CUstreamCaptureMode mode) {
  struct capture *capture = malloc(sizeof *capture);
  struct preload_keeper *keeper = preload_keeper_new();
  preload_depth++;
  struct reuse *reuse = capture != NULL && keeper != NULL ? mam_client.capture_begin(context) : NULL;
  preload_depth--;
  if (reuse == NULL) {
    preload_keeper_end(keeper, NULL, false);
    free(capture);
    return NULL;
  }
  *capture = (struct capture){
      .stream = stream, .context = context, .thread = thread_number(), .mode = mode, .reuse = reuse, .keeper = keeper};
  return capture;
}

static bool context_is(const struct preload_real *real, CUcontext context) {
  unsigned long long id;
  return PRELOAD_CALL(real, cuCtxGetId, context, &id) == CUDA_SUCCESS;
}

/* To be called before a capture begins, so that no fence falls into it.  *opened: NULL if the driver has to answer
 * without a bracket.  False if the host has no memory: then the capture must not begin, as its blocks could not be
 * kept. */
static bool capture_open(const struct preload_real *real, CUstream stream, CUstreamCaptureMode mode,
                         struct capture **opened) {
  *opened = NULL;
  CUcontext context = preload_depth == 0 && preload_active() ? context_of(real, stream) : NULL;
  if (context == NULL)
    return true;
  *opened = capture_new(stream, context, mode);
  if (*opened == NULL)
    return !context_is(real, context);
  capture_add(*opened);
  return true;
}

/* To be called after it: result says whether the capture began. */
static CUresult capture_opened(struct capture *capture, CUresult result) {
  if (capture == NULL || result == CUDA_SUCCESS)
    return result;
  preload_depth++;
  if (capture_remove(capture, false))
    capture_drop(capture, NULL);
  preload_depth--;
  return result;
}

/* To be called before a call that may end a stream or its capture.  NULL if the stream has no capture in the list. */
static struct capture *capture_goes(const struct preload_real *real, CUstream stream) {
  return preload_capturing() && preload_depth == 0 ? capture_claim(stream, context_now(real)) : NULL;
}

/* To be called after it. */
static void capture_gone(struct capture *capture, bool goes_on, void *graph) {
  if (capture == NULL)
    return;
  preload_depth++;
  if (goes_on)
    capture_unclaim(capture);
  else if (capture_remove(capture, true))
    capture_drop(capture, graph);
  preload_depth--;
}

/* To be called after cuStreamEndCapture.  If the call failed, the stream says whether its capture goes on. */
static CUresult capture_closed(const struct preload_real *real, struct capture *capture, void *const *graph,
                               CUresult result) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  bool goes_on = capture != NULL && result != CUDA_SUCCESS &&
                 PRELOAD_CALL(real, cuStreamIsCapturing, capture->stream, &status) == CUDA_SUCCESS &&
                 status != CU_STREAM_CAPTURE_STATUS_NONE;
  void *made = capture != NULL && capture->graph != NULL ? capture->graph : graph != NULL ? *graph : NULL;
  capture_gone(capture, goes_on, result == CUDA_SUCCESS ? made : NULL);
  return result;
}

CUresult cuStreamBeginCapture(CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture;
  if (!capture_open(real, stream, CU_STREAM_CAPTURE_MODE_GLOBAL, &capture))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture, stream));
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture;
  if (!capture_open(real, preload_stream_ptsz(stream), CU_STREAM_CAPTURE_MODE_GLOBAL, &capture))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture_ptsz, stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture;
  if (!capture_open(real, stream, mode, &capture))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture_v2, stream, mode));
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture;
  if (!capture_open(real, preload_stream_ptsz(stream), mode, &capture))
    return CUDA_ERROR_OUT_OF_MEMORY;
  return capture_opened(capture, PRELOAD_CALL(real, cuStreamBeginCapture_v2_ptsz, stream, mode));
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, void *graph, const void *nodes, const void *edges, size_t count,
                                     CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture;
  if (!capture_open(real, stream, mode, &capture))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (capture != NULL)
    capture->graph = graph;
  return capture_opened(capture,
                        PRELOAD_CALL(real, cuStreamBeginCaptureToGraph, stream, graph, nodes, edges, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, void *graph, const void *nodes, const void *edges,
                                          size_t count, CUstreamCaptureMode mode) {
  const struct preload_real *real = preload_real_get();
  struct capture *capture;
  if (!capture_open(real, preload_stream_ptsz(stream), mode, &capture))
    return CUDA_ERROR_OUT_OF_MEMORY;
  if (capture != NULL)
    capture->graph = graph;
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

/* The end of a stream ends its capture. */
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

/* Around a call that waits for all work of a context: the epoch is closed before the call, and has
 * passed if the call succeeds. */
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

/* So many captures are looked at when a context ends, as the array is on the stack.  The others stay until another
 * context ends. */
enum { SWEPT_MOST = 64 };

/* The contexts of the captures in the list, to be looked at without the lock.  Returns their number. */
static unsigned captures_copy(struct reuse *reuses[SWEPT_MOST]) {
  unsigned count = 0;
  pthread_mutex_lock(&captures_lock);
  for (const struct capture *capture = captures; capture != NULL && count < SWEPT_MOST; capture = capture->next)
    reuses[count++] = capture->reuse;
  pthread_mutex_unlock(&captures_lock);
  return count;
}

/* Takes a capture of that context out of the list, NULL if there is none.  Those that are claimed end anyway. */
static struct capture *capture_take_of(const struct reuse *reuse) {
  struct capture **link = &captures, *found;
  pthread_mutex_lock(&captures_lock);
  while ((found = *link) != NULL && (found->reuse != reuse || found->ends))
    link = &found->next;
  if (found != NULL)
    *link = found->next;
  pthread_mutex_unlock(&captures_lock);
  return found;
}

/* Ends the captures of contexts that have ended, as these went with their streams. */
static void captures_sweep(void) {
  struct reuse *reuses[SWEPT_MOST];
  struct capture *capture;
  unsigned count = captures_copy(reuses);
  for (unsigned i = 0; i < count; i++)
    while (!mam_client.context_lives(reuses[i]) && (capture = capture_take_of(reuses[i])) != NULL)
      capture_drop(capture, NULL);
}

/* A call of the driver that may end a context, and so free its memory. */
struct ending {
  struct client_end end;
  bool is_heard; /* the library deals with it */
};

/* context NULL: the primary one of the device. */
static void ending_begin(struct ending *ending, CUcontext context, CUdevice device) {
  ending->is_heard = preload_depth == 0 && preload_active();
  if (ending->is_heard)
    mam_client.end_begin(context, device, &ending->end);
}

/* All that was of a context which has ended is forgotten. */
static CUresult ending_done(const struct preload_real *real, struct ending *ending, CUresult result) {
  if (ending->is_heard)
    mam_client.end_done(&ending->end);
  if (result != CUDA_SUCCESS || !ending->is_heard)
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
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, context, -1);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuCtxDestroy, context));
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, context, -1);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuCtxDestroy_v2, context));
}

CUresult cuCtxDetach(CUcontext context) {
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, context, -1);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuCtxDetach, context));
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, NULL, device);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuDevicePrimaryCtxRelease, device));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, NULL, device);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuDevicePrimaryCtxRelease_v2, device));
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, NULL, device);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuDevicePrimaryCtxReset, device));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  struct ending ending;
  const struct preload_real *real = preload_real_get();
  ending_begin(&ending, NULL, device);
  return ending_done(real, &ending, PRELOAD_CALL(real, cuDevicePrimaryCtxReset_v2, device));
}

void preload_work_forked(void) { (void)pthread_mutex_init(&captures_lock, NULL); }
