/* SPDX-License-Identifier: BSD-2-Clause */
#include "context.h"

#include "error.h"

/* The id of a context, NULL meaning the current one; 0 if there is none or it no longer lives. */
static uint64_t context_id(const struct driver *driver, CUcontext handle) {
  unsigned long long id = 0;
  if (driver->cuCtxGetId != NULL)
    return driver->cuCtxGetId(handle, &id) == CUDA_SUCCESS ? id : 0;
  if (handle == NULL && driver->cuCtxGetCurrent(&handle) != CUDA_SUCCESS)
    return 0;
  return (uint64_t)(uintptr_t)handle;
}

uint64_t context_current_id(const struct driver *driver) { return context_id(driver, NULL); }

cudaError_t context_open_handle(const struct driver *driver, CUcontext handle, struct context *context) {
  uint64_t id = context_id(driver, handle);
  if (id == 0)
    return error_set(cudaErrorInvalidValue, "the CUDA context %p does not live", (void *)handle);
  *context = (struct context){.driver = driver, .handle = handle, .id = id};
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

cudaError_t context_open_current(const struct driver *driver, struct context *context) {
  CUcontext handle = NULL;
  CUresult result = driver->cuCtxGetCurrent(&handle);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxGetCurrent");
  if (handle != NULL && context_id(driver, handle) != 0)
    return context_open_handle(driver, handle, context);
  /* None, or a primary context after a reset, which the retain brings back to life. */
  struct context first;
  cudaError_t error = context_open_device(driver, 0, &first);
  if (error != cudaSuccess)
    return error;
  result = driver->cuCtxSetCurrent(first.handle);
  if (result != CUDA_SUCCESS) {
    error = driver_error(driver, result, "cuCtxSetCurrent");
    context_release(&first);
    return error;
  }
  *context = first;
  return cudaSuccess;
}

void context_release(struct context *context) {
  /* A reset has taken our reference with the context; releasing it would take somebody else's. */
  if (context->retained && context_lives(context))
    (void)context->driver->cuDevicePrimaryCtxRelease(context->device);
  context->retained = false;
}

bool context_lives(const struct context *context) {
  return context_id(context->driver, context->handle) == context->id;
}

cudaError_t context_enter(const struct context *context, struct context_visit *visit) {
  const struct driver *driver = context->driver;
  if (!context_lives(context))
    return error_set(cudaErrorContextIsDestroyed, "the pool's CUDA context was destroyed or reset");
  CUresult result = driver->cuCtxPushCurrent(context->handle);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuCtxPushCurrent");
  visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver->cuThreadExchangeStreamCaptureMode != NULL)
    (void)driver->cuThreadExchangeStreamCaptureMode(&visit->mode);
  return cudaSuccess;
}

void context_leave(const struct context *context, const struct context_visit *visit) {
  const struct driver *driver = context->driver;
  CUstreamCaptureMode mode = visit->mode;
  CUcontext popped;
  if (driver->cuThreadExchangeStreamCaptureMode != NULL)
    (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
  (void)driver->cuCtxPopCurrent(&popped);
}
