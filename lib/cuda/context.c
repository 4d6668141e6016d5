/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/context.h"

#include <pthread.h>

#include "base/error.h"
#include "base/locked.h"

CUresult context_handle_id(const struct driver *driver, CUcontext handle, uint64_t *id) {
  unsigned long long found = (uintptr_t)handle;
  CUresult result = driver->cuCtxGetId != NULL ? driver->cuCtxGetId(handle, &found) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS)
    *id = found;
  return result;
}

uint64_t context_current_id(const struct driver *driver) {
  unsigned long long found = 0;
  CUcontext handle = NULL;
  uint64_t id = 0;
  if (driver->cuCtxGetId != NULL) {
    CUresult result = driver->cuCtxGetId(NULL, &found);
    if (result == CUDA_SUCCESS)
      return found;
    if (result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
      return 0;
  }
  /* After an error of the GPU the driver answers the question about the current context with that error, while the
   * context's handle still has its id. */
  if (driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS || handle == NULL)
    return 0;
  return context_handle_id(driver, handle, &id) == CUDA_SUCCESS ? id : 0;
}

/* ---- Opening ---- */

cudaError_t context_open_handle(const struct driver *driver, CUcontext handle, struct context *context) {
  uint64_t id;
  CUresult result = context_handle_id(driver, handle, &id);
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
    return error_set(cudaErrorInvalidValue, "the CUDA context %p was destroyed", (void *)handle);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxGetId");
  *context = (struct context){.driver = driver, .handle = handle, .id = id, .device = -1};
  return cudaSuccess;
}

cudaError_t context_open_device(const struct driver *driver, int ordinal, struct context *context) {
  CUdevice device;
  CUcontext handle;
  CUresult result = driver->cuDeviceGet(&device, ordinal);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuDeviceGet");
  result = driver->cuDevicePrimaryCtxRetain(&handle, device);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuDevicePrimaryCtxRetain");
  cudaError_t error = context_open_handle(driver, handle, context);
  if (error != cudaSuccess) {
    (void)driver->cuDevicePrimaryCtxRelease(device);
    return error;
  }
  context->device = device;
  context->retained = true;
  return cudaSuccess;
}

/* The context is the thread's now, as with the runtime: it must neither end under the thread with a pool, nor be made
 * anew for each pool.  So one reference to it, but not one for each thread, is never given back. */
static void hold_for_good(struct context *context) {
  static _Atomic uint64_t held_id;
  /* relaxed: nothing else is published by it */
  if (atomic_exchange_explicit(&held_id, context->id, memory_order_relaxed) == context->id)
    (void)context->driver->cuDevicePrimaryCtxRelease(context->device);
  context->retained = false;
}

cudaError_t context_open_current(const struct driver *driver, struct context *context) {
  CUcontext handle = NULL;
  CUresult result = driver->cuCtxGetCurrent(&handle);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxGetCurrent");
  uint64_t id;
  if (handle != NULL && context_handle_id(driver, handle, &id) != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
    cudaError_t error = context_open_handle(driver, handle, context);
    if (error == cudaSuccess && driver->cuCtxGetDevice != NULL)
      (void)driver->cuCtxGetDevice(&context->device);
    return error;
  }
  /* None, or a primary context after a reset, which the retain brings back to life. */
  struct context first;
  cudaError_t error = context_open_device(driver, 0, &first);
  if (error != cudaSuccess)
    return error;
  /* A reset leaves the handle as it is.  Another one is a context of another device, or no primary one: to go on with
   * the first device would be a surprise. */
  if (handle != NULL && handle != first.handle) {
    context_release(&first);
    return error_set(cudaErrorContextIsDestroyed, "the thread's current CUDA context was destroyed or reset");
  }
  result = driver->cuCtxSetCurrent(first.handle);
  if (result != CUDA_SUCCESS) {
    error = driver_error(driver, result, "cuCtxSetCurrent");
    context_release(&first);
    return error;
  }
  hold_for_good(&first);
  *context = first;
  return cudaSuccess;
}

void context_release(struct context *context) {
  /* Also after a reset: on driver 580 references outlive it. */
  if (context->retained)
    (void)context->driver->cuDevicePrimaryCtxRelease(context->device);
  context->retained = false;
}

bool context_lives(const struct context *context) {
  uint64_t id;
  CUresult result = context_handle_id(context->driver, context->handle, &id);
  if (result == CUDA_SUCCESS)
    return id == context->id;
  /* Any other answer says nothing of the context: the caller's next call meets the error. */
  return result != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* ---- Visits, and ends of contexts ---- */

static pthread_mutex_t visits_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static pthread_cond_t visits_changed = PTHREAD_COND_INITIALIZER;
static LIST_HEAD(, context_visit) visits = LIST_HEAD_INITIALIZER(visits); /* that go on */
static LIST_HEAD(, context_end) ends = LIST_HEAD_INITIALIZER(ends);       /* that go on */

static bool ends_for(const struct context_end *end, const struct context_visit *visit) {
  return end->id != 0 ? end->id == visit->id : end->device == visit->device || visit->device < 0;
}

static bool ends_locked(const struct context_visit *visit) {
  lock_held(&visits_lock);
  const struct context_end *end;
  LIST_FOREACH(end, &ends, link) {
    if (ends_for(end, visit))
      return true;
  }
  return false;
}

static bool visited_locked(const struct context_end *end) {
  lock_held(&visits_lock);
  const struct context_visit *visit;
  LIST_FOREACH(visit, &visits, link) {
    if (ends_for(end, visit))
      return true;
  }
  return false;
}

/* A visit begins when no end for it goes on, and an end when no visit does.  A thread that waits here may hold other
 * locks: an end that goes on is a call of the driver, which needs none of them. */
static void visit_begin(struct context_visit *visit, uint64_t id, CUdevice device) {
  visit->id = id;
  visit->device = device;
  pthread_mutex_lock(&visits_lock);
  while (ends_locked(visit))
    (void)pthread_cond_wait(&visits_changed, &visits_lock);
  LIST_INSERT_HEAD(&visits, visit, link);
  pthread_mutex_unlock(&visits_lock);
}

void context_visit_all(struct context_visit *visit) { visit_begin(visit, 0, -1); }

void context_visit_end(struct context_visit *visit) {
  pthread_mutex_lock(&visits_lock);
  LIST_REMOVE(visit, link);
  (void)pthread_cond_broadcast(&visits_changed);
  pthread_mutex_unlock(&visits_lock);
}

cudaError_t context_enter(const struct context *context, struct context_visit *visit) {
  const struct driver *driver = context->driver;
  CUresult result = CUDA_SUCCESS;
  visit_begin(visit, context->id, context->device);
  bool lives = context_lives(context);
  if (lives)
    result = driver->cuCtxPushCurrent(context->handle);
  if (!lives || result != CUDA_SUCCESS)
    context_visit_end(visit);
  if (!lives)
    return error_set(cudaErrorContextIsDestroyed, "the pool's CUDA context was destroyed or reset");
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxPushCurrent");
  visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  visit->relaxed = driver->cuThreadExchangeStreamCaptureMode != NULL &&
                   driver->cuThreadExchangeStreamCaptureMode(&visit->mode) == CUDA_SUCCESS;
  return cudaSuccess;
}

void context_leave(const struct context *context, struct context_visit *visit) {
  const struct driver *driver = context->driver;
  CUstreamCaptureMode mode = visit->mode;
  CUcontext popped;
  if (visit->relaxed)
    (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
  (void)driver->cuCtxPopCurrent(&popped);
  context_visit_end(visit);
}

bool context_end_begin(CUcontext handle, CUdevice device, struct context_end *end) {
  const struct driver *driver = driver_known();
  *end = (struct context_end){.device = device};
  if (driver == NULL || (handle != NULL && context_handle_id(driver, handle, &end->id) != CUDA_SUCCESS))
    return false;
  pthread_mutex_lock(&visits_lock);
  while (visited_locked(end))
    (void)pthread_cond_wait(&visits_changed, &visits_lock);
  LIST_INSERT_HEAD(&ends, end, link);
  pthread_mutex_unlock(&visits_lock);
  return true;
}

void context_end_done(struct context_end *end) {
  pthread_mutex_lock(&visits_lock);
  LIST_REMOVE(end, link);
  (void)pthread_cond_broadcast(&visits_changed);
  pthread_mutex_unlock(&visits_lock);
}

void context_before_fork(void) { pthread_mutex_lock(&visits_lock); }

/* The visits and ends of other threads are not in the child. */
void context_after_fork(bool in_child) {
  if (in_child) {
    LIST_INIT(&visits);
    LIST_INIT(&ends);
    (void)pthread_cond_init(&visits_changed, NULL);
  }
  pthread_mutex_unlock(&visits_lock);
}

/* ---- Streams ---- */

/* Ids of the driver's count up from 1 and never get here. */
static const uint64_t DEFAULT_STREAM_BIT = (uint64_t)1 << 63, CAPTURE_BIT = (uint64_t)1 << 62;

/* A number for the calling thread that no other has had. */
static uint64_t thread_number(void) {
  static _Atomic uint64_t threads;
  static __thread uint64_t number;
  if (number == 0) /* relaxed: a number for itself */
    number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
  return number;
}

/* The id of the capture that the calling thread's stream is in, 0 if in none.  A driver without cuStreamGetCaptureInfo
 * gives the handle. */
static uint64_t capture_id(const struct driver *driver, CUstream stream) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  unsigned long long id = (uintptr_t)stream;
  if (!context_stream_captures(driver, stream))
    return 0;
  if (driver->cuStreamGetCaptureInfo != NULL)
    (void)driver->cuStreamGetCaptureInfo(stream, &status, &id);
  return (uint64_t)id | CAPTURE_BIT;
}

static uint64_t default_stream_id(CUstream stream) {
  return DEFAULT_STREAM_BIT |
         (context_stream_is_legacy(stream) ? (uint64_t)CU_STREAM_LEGACY : thread_number() << 2 | CU_STREAM_PER_THREAD);
}

/* The context of a created stream is its own, whichever is current. */
static cudaError_t created_stream_name(const struct driver *driver, CUstream handle, struct context_stream *stream) {
  CUcontext context = NULL;
  unsigned long long id = (uintptr_t)handle;
  CUresult result = driver != NULL && driver->cuStreamGetId != NULL ? driver->cuStreamGetId(handle, &id) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuStreamGetId");
  result = driver != NULL && driver->cuStreamGetCtx != NULL ? driver->cuStreamGetCtx(handle, &context) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuStreamGetCtx");
  *stream = (struct context_stream){context, id};
  return cudaSuccess;
}

/* In a forked child no context is current: the driver says that it is not initialised there. */
static cudaError_t default_stream_name(const struct driver *driver, CUstream handle, struct context_stream *stream) {
  CUcontext context = NULL;
  CUresult result = driver != NULL ? driver->cuCtxGetCurrent(&context) : CUDA_SUCCESS;
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_INITIALIZED)
    return driver_error(driver, result, "cuCtxGetCurrent");
  *stream = (struct context_stream){context, default_stream_id(handle)};
  return cudaSuccess;
}

cudaError_t context_stream_name(const struct driver *driver, CUstream handle, struct context_stream *stream,
                                bool *captured) {
  uint64_t capture = capture_id(driver, handle);
  *captured = capture != 0;
  if (context_stream_is_legacy(handle) || (capture == 0 && (uintptr_t)handle == CU_STREAM_PER_THREAD))
    return default_stream_name(driver, handle, stream);
  if (capture == 0)
    return created_stream_name(driver, handle, stream);
  /* cuStreamGetId may not be called: it would end the capture.  A capture's id is that of all streams which have joined
   * it, and these run side by side in the graph: so the handle is a part of the name, in the context's place.  All
   * per-thread default streams have one handle. */
  uint64_t handle_id = (uintptr_t)handle == CU_STREAM_PER_THREAD ? default_stream_id(handle) : (uintptr_t)handle;
  *stream = (struct context_stream){(CUcontext)(uintptr_t)handle_id, capture};
  return cudaSuccess;
}

bool context_has_stream(const struct context *context, struct context_stream stream) {
  return stream.context == context->handle && !context_stream_is_capture(stream) &&
         (context->driver == NULL || context_lives(context));
}

bool context_stream_is_capture(struct context_stream stream) {
  return (stream.id & CAPTURE_BIT) != 0 && (stream.id & DEFAULT_STREAM_BIT) == 0;
}
