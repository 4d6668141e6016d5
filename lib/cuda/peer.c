/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/peer.h"

bool peer_possible(const struct driver *driver) {
  static _Atomic int devices; /* 0: not asked yet */
  /* relaxed: the number is the same for every thread that asks */
  int count = atomic_load_explicit(&devices, memory_order_relaxed);
  if (driver == NULL || driver->cuDeviceGetCount == NULL || driver->cuDevicePrimaryCtxGetState == NULL ||
      driver->cuPointerGetAttribute == NULL || driver->cuCtxGetDevice == NULL || driver->cuCtxGetId == NULL)
    return false;
  if (count == 0 && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS)
    atomic_store_explicit(&devices, count, memory_order_relaxed);
  return count > 1;
}

/* The smallest piece there is. */
static CUresult probe_begin(const struct driver *driver, struct peer_probe *probe) {
  return probe->address != 0 ? CUDA_SUCCESS : driver->cuMemAlloc(&probe->address, 1);
}

void peer_probe_end(const struct driver *driver, struct peer_probe *probe) {
  if (probe->address != 0)
    (void)driver->cuMemFree(probe->address);
  probe->address = 0;
}

/* The primary context of a device if it lives, else NULL: none is made for the question. */
static CUresult primary_of(const struct driver *driver, int ordinal, CUdevice own, CUcontext *context) {
  CUdevice device;
  unsigned flags;
  int active = 0;
  *context = NULL;
  CUresult result = driver->cuDeviceGet(&device, ordinal);
  if (result != CUDA_SUCCESS || device == own)
    return result;
  result = driver->cuDevicePrimaryCtxGetState(device, &flags, &active);
  if (result != CUDA_SUCCESS || active == 0)
    return result;
  result = driver->cuDevicePrimaryCtxRetain(context, device);
  if (result == CUDA_SUCCESS)
    (void)driver->cuDevicePrimaryCtxRelease(device); /* others hold it: it was active */
  return result;
}

/* Whether kernels of a context can use an address.  Where the driver does not say, they might. */
static bool can_use(const struct driver *driver, CUcontext context, CUdeviceptr address) {
  CUdeviceptr there = 0;
  CUcontext popped;
  if (driver->cuCtxPushCurrent(context) != CUDA_SUCCESS)
    return true;
  CUresult result = driver->cuPointerGetAttribute(&there, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
  (void)driver->cuCtxPopCurrent(&popped);
  return result == CUDA_SUCCESS ? there != 0 : result != CUDA_ERROR_INVALID_VALUE;
}

/* *peer: the primary context of a device, if the caller does not know it and it can use memory of the current one. */
static CUresult peer_at(const struct driver *driver, int ordinal, CUdevice own, struct peer_probe *probe,
                        peer_known *known, const void *caller, CUcontext *peer) {
  unsigned long long id = 0;
  CUcontext context;
  CUresult result = primary_of(driver, ordinal, own, &context);
  if (result != CUDA_SUCCESS || context == NULL)
    return result;
  result = driver->cuCtxGetId(context, &id);
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED || (result == CUDA_SUCCESS && known(caller, id)))
    return CUDA_SUCCESS;
  if (result == CUDA_SUCCESS && !probe->open)
    result = probe_begin(driver, probe);
  if (result == CUDA_SUCCESS && (probe->open || can_use(driver, context, probe->address)))
    *peer = context;
  return result;
}

CUresult peer_find(const struct driver *driver, struct peer_probe *probe, peer_known *known, const void *caller,
                   CUcontext *peer) {
  int count = 0;
  CUdevice own;
  *peer = NULL;
  CUresult result = driver->cuDeviceGetCount(&count);
  if (result == CUDA_SUCCESS)
    result = driver->cuCtxGetDevice(&own);
  for (int i = 0; result == CUDA_SUCCESS && *peer == NULL && i < count; i++)
    result = peer_at(driver, i, own, probe, known, caller, peer);
  return result;
}
