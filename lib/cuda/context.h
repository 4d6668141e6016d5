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

#include "cuda/driver.h"

struct context {
  const struct driver *driver;
  CUcontext handle;
  uint64_t id;     /* never 0 */
  CUdevice device; /* if retained */
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

/* Whether a handle still means the stream that it was once found to be, in the calling thread, and the stream is not
 * being captured.  Up to two questions to the driver.  is_current: the caller sees to it that the stream's context is
 * the current one, which a default stream is asked about otherwise. */
bool context_stream_still(const struct driver *driver, CUstream handle, struct context_stream stream, bool is_current);

/* Whether a name is that of a capture. */
bool context_stream_is_capture(struct context_stream stream);

/* Whether a handle means a legacy default stream. */
bool context_stream_is_legacy(CUstream stream);

/* Whether a stream is being captured.  False for a stream that cannot be, and where the driver does not say. */
bool context_stream_captures(const struct driver *driver, CUstream stream);

/* The calling thread's state while it works in a context. */
struct context_visit {
  CUstreamCaptureMode mode; /* as it was, if relaxed */
  bool relaxed;
};

/* Makes the context current, and lets the thread call what a stream capture in progress would forbid (allocating;
 * waiting for the GPU stays forbidden).  context_leave restores both.  cudaErrorContextIsDestroyed if it no longer
 * lives; then there is nothing to leave. */
cudaError_t context_enter(const struct context *context, struct context_visit *visit);
void context_leave(const struct context *context, const struct context_visit *visit);

#endif
