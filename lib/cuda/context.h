/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * CUDA contexts: which one is current, whether one still lives, and how to work in one without leaving a trace.
 *
 * A CUcontext is a bad name for a context: after cuCtxDestroy another may get the same handle, after cudaDeviceReset
 * the primary context keeps its handle but none of its memory, and on driver 580 popping a destroyed context corrupts
 * the host's heap.  So a context is named by its id (cuCtxGetId, CUDA 12.0), which is never used again, and entered
 * only after asking for it.  Older drivers have no ids; there the handle itself is the id, and a program must not
 * destroy a context that has a pool.
 *
 * Knows the driver; nothing of pools.
 */
#ifndef MAM_LIB_CONTEXT_H
#define MAM_LIB_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "cuda/driver.h"

struct context {
  const struct driver *driver;
  CUcontext handle;
  uint64_t id;     /* never 0 */
  CUdevice device; /* its, or -1 if that is not known */
  bool retained;   /* holds a reference to the device's primary context */
};

/* The id of the calling thread's current context, 0 if it has none that lives.  12 to 25 ns on an H200's host. */
uint64_t context_current_id(const struct driver *driver);

/* The id of a context by its handle, and what the driver answers: 709 if the context is gone. */
CUresult context_handle_id(const struct driver *driver, CUcontext handle, uint64_t *id);

/* Each fills *context and is undone by context_release; on failure *context is left alone.
 *
 * context_open_current: the calling thread's current context; if it has none, the primary context of the first device,
 * made current as the CUDA runtime does. */
cudaError_t context_open_current(const struct driver *driver, struct context *context);
/* context_open_device: the primary context of a device.  cudaErrorInvalidDevice if there is none of that ordinal. */
cudaError_t context_open_device(const struct driver *driver, int ordinal, struct context *context);
/* context_open_handle: a context that the caller keeps alive.  cudaErrorInvalidValue if it does not live. */
cudaError_t context_open_handle(const struct driver *driver, CUcontext handle, struct context *context);

/* Gives up what context_open_* took. */
void context_release(struct context *context);

/* Whether the context still is the one that was opened: not destroyed, not reset. */
bool context_lives(const struct context *context);

/* A stream, named by its context and by itself.  The handle of a context is a good name here: it comes again only when
 * its context was destroyed or reset, and then the work of all its streams is over.  A stream's own handle is none,
 * since it comes again while work of the stream that had it is still under way; an id does not. */
struct context_stream {
  CUcontext context; /* NULL: of none, or of whichever.  Of a captured stream: its handle, which is no context */
  uint64_t id;       /* 0: no stream */
};

static const struct context_stream no_stream = {NULL, 0};

static inline bool context_stream_same(struct context_stream a, struct context_stream b) {
  return a.id == b.id && a.context == b.context;
}

/* Names the stream that a handle means in the calling thread now.  Each context has a legacy default stream, and a
 * per-thread default stream for each thread.  While it is being captured, a stream goes by the capture's id: what runs
 * then is the graph, whenever it is launched.  driver NULL: no GPU, the handle is its id. */
cudaError_t context_stream_name(const struct driver *driver, CUstream handle, struct context_stream *stream,
                                bool *captured);

/* Whether a name is that of a capture. */
bool context_stream_is_capture(struct context_stream stream);

/* Whether a handle means a legacy default stream; and a stream that the program created. */
static inline bool context_stream_is_legacy(CUstream stream) { return (uintptr_t)stream <= CU_STREAM_LEGACY; }
static inline bool context_stream_is_created(CUstream stream) { return (uintptr_t)stream > CU_STREAM_PER_THREAD; }

/* Whether a stream is being captured.  False for a stream that cannot be, and where the driver does not say.
 *
 * One question alone, as the stream may be another thread's, which ends the capture meanwhile: cuStreamGetCaptureInfo
 * then ends in a fault of the driver (580.159). */
static inline bool context_stream_captures(const struct driver *driver, CUstream stream) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (driver == NULL || context_stream_is_legacy(stream))
    return false; /* the legacy stream cannot be captured, and may not be asked during a capture */
  return driver->cuStreamIsCapturing != NULL && driver->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Whether a stream that has just been named is of a context that still is the one that was opened, and not of a later
 * one with the same handle.  False for a captured one.  Without a driver all streams are of the one context. */
bool context_has_stream(const struct context *context, struct context_stream stream);

/* Whether a context is the calling thread's current one, by its handle. */
static inline bool context_is_current(const struct driver *driver, CUcontext context) {
  CUcontext current = NULL;
  return driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context;
}

/* Whether a handle still means the stream that it was once found to be, in the calling thread, and the stream is not
 * being captured.  README.md says why these questions are enough, and why no fewer.
 *
 * Of a default stream the current context is asked, unless the caller sees to it that it is the stream's (is_current).
 * The number in a per-thread one's id is the caller's own.  Of a created stream its id is asked, if it is not captured:
 * else that question would end the capture.  A driver without ids makes every call go the slow way. */
static inline bool context_stream_still(const struct driver *driver, CUstream handle, struct context_stream stream,
                                        bool is_current) {
  unsigned long long id = 0;
  if (driver == NULL)
    return true;
  if (context_stream_captures(driver, handle))
    return false;
  if (!context_stream_is_created(handle))
    return is_current || context_is_current(driver, stream.context);
  return driver->cuStreamGetId != NULL && driver->cuStreamGetId(handle, &id) == CUDA_SUCCESS && id == stream.id;
}

/* The id of the context of a stream that context_has_stream and, just now, context_stream_still told of, if it is the
 * current one; else 0.  The handle is enough to compare if the stream is a created one: as it lives, its context does,
 * and no other can have its handle.  Of a default stream that is not known: 0. */
static inline uint64_t context_stream_current_id(const struct context *context, CUstream handle) {
  bool is_current = context->driver == NULL ||
                    (context_stream_is_created(handle) && context_is_current(context->driver, context->handle));
  return is_current ? context->id : 0;
}

/* The calling thread's state while it works in a context. */
struct context_visit {
  CUstreamCaptureMode mode; /* as it was, if relaxed */
  bool relaxed;
  uint64_t id;     /* of the context */
  CUdevice device; /* of the context, as there */
  LIST_ENTRY(context_visit) link;
};

/* Makes the context current, and lets the thread call what a stream capture in progress would forbid (allocating;
 * waiting for the GPU stays forbidden).  context_leave restores both.  cudaErrorContextIsDestroyed if it no longer
 * lives; then there is nothing to leave. */
cudaError_t context_enter(const struct context *context, struct context_visit *visit);
void context_leave(const struct context *context, struct context_visit *visit);

/* The part of the two by which the ends of contexts wait, for a thread that works in the primary contexts of all
 * devices, one after the other. */
void context_visit_all(struct context_visit *visit);
void context_visit_end(struct context_visit *visit);

/* A call of the driver that may end contexts, for a client that hears of it. */
struct context_end {
  uint64_t id;     /* of the context, 0: of all of the device */
  CUdevice device; /* if id is 0 */
  LIST_ENTRY(context_end) link;
};

/* No thread works in the contexts between the two: begin waits for those that do, and others wait until done.  handle
 * NULL: what is on the device.  False if the driver is not known yet, or the context not alive: there is nothing to be
 * done then.  The caller holds no lock. */
bool context_end_begin(CUcontext handle, CUdevice device, struct context_end *end);
void context_end_done(struct context_end *end);

/* Around a fork, with the locks of pools held. */
void context_before_fork(void);
void context_after_fork(bool in_child);

#endif
