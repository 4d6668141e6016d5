/* SPDX-License-Identifier: BSD-2-Clause */
#include "cuda/peer.h"

static _Atomic int device_count; /* 0: not asked yet */

bool peer_possible(const struct driver *driver) {
  /* relaxed, as in peer_find: the number is the same for every thread that asks */
  int count = atomic_load_explicit(&device_count, memory_order_relaxed);
  if (driver == NULL || driver->cuDeviceGetCount == NULL || driver->cuDevicePrimaryCtxGetState == NULL ||
      driver->cuPointerGetAttribute == NULL || driver->cuCtxGetDevice == NULL || driver->cuCtxGetId == NULL)
    return false;
  if (count == 0 && driver->cuDeviceGetCount(&count) == CUDA_SUCCESS)
    atomic_store_explicit(&device_count, count, memory_order_relaxed);
  return count > 1;
}

/* The smallest piece there is.  In a full device there may be none; then the address is 0. */
static CUresult probe_begin(const struct driver *driver, struct peer_probe *probe) {
  CUdeviceptr address = 0;
  if (probe->address != 0)
    return CUDA_SUCCESS;
  CUresult result = driver->cuMemAlloc(&address, 1);
  if (result == CUDA_SUCCESS)
    probe->address = address;
  return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

void peer_probe_end(const struct driver *driver, struct peer_probe *probe) {
  if (probe->address != 0)
    (void)driver->cuMemFree(probe->address);
  probe->address = 0;
}

/* Asks for the primary context of a device: its handle and id if it lives, else NULL and 0.  None is made for the
 * question. */
static CUresult primary_ask(const struct driver *driver, int ordinal, struct peer_seen *primary) {
  unsigned long long id = 0;
  CUdevice device;
  unsigned flags;
  int active = 0;
  *primary = (struct peer_seen){0};
  CUresult result = driver->cuDeviceGet(&device, ordinal);
  if (result == CUDA_SUCCESS)
    result = driver->cuDevicePrimaryCtxGetState(device, &flags, &active);
  if (result != CUDA_SUCCESS || active == 0)
    return result;
  CUcontext context;
  result = driver->cuDevicePrimaryCtxRetain(&context, device);
  if (result != CUDA_SUCCESS)
    return result;
  (void)driver->cuDevicePrimaryCtxRelease(device); /* others hold it: it was active */
  result = driver->cuCtxGetId(context, &id);
  if (result == CUDA_SUCCESS)
    *primary = (struct peer_seen){context, id};
  return result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_SUCCESS : result;
}

/* The same, by what was seen before if that is still so. */
static CUresult primary_of(const struct driver *driver, int ordinal, struct peer_probe *probe,
                           struct peer_seen *primary) {
  struct peer_seen *seen = ordinal < PEER_SEEN_MOST ? &probe->seen[ordinal] : NULL;
  unsigned long long id = 0;
  if (seen != NULL && seen->handle != NULL && driver->cuCtxGetId(seen->handle, &id) == CUDA_SUCCESS && id == seen->id) {
    *primary = *seen;
    return CUDA_SUCCESS;
  }
  CUresult result = primary_ask(driver, ordinal, primary);
  if (seen != NULL)
    *seen = *primary;
  return result;
}

/* Whether kernels of a context can use an address.  Where it is 0, or the driver does not say, they might. */
static bool can_use(const struct driver *driver, CUcontext context, CUdeviceptr address) {
  CUdeviceptr there = 0;
  CUcontext popped;
  if (address == 0 || driver->cuCtxPushCurrent(context) != CUDA_SUCCESS)
    return true;
  CUresult result = driver->cuPointerGetAttribute(&there, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address);
  (void)driver->cuCtxPopCurrent(&popped);
  return result == CUDA_SUCCESS ? there != 0 : result != CUDA_ERROR_INVALID_VALUE;
}

/* *peer: the primary context of a device, if the caller does not know it and it can use memory of the current one. */
static CUresult peer_at(const struct driver *driver, int ordinal, struct peer_probe *probe, peer_known *known,
                        const void *caller, CUcontext *peer) {
  struct peer_seen primary;
  CUresult result = primary_of(driver, ordinal, probe, &primary);
  if (result != CUDA_SUCCESS || primary.handle == NULL || known(caller, primary.id))
    return result;
  if (!probe->open)
    result = probe_begin(driver, probe);
  if (result == CUDA_SUCCESS && (probe->open || can_use(driver, primary.handle, probe->address)))
    *peer = primary.handle;
  return result;
}

/* Finds the device of the current context, whose probe it is. */
static CUresult own_find(const struct driver *driver, struct peer_probe *probe, int count) {
  CUdevice own, device;
  if (probe->own_known)
    return CUDA_SUCCESS;
  CUresult result = driver->cuCtxGetDevice(&own);
  for (int i = 0; result == CUDA_SUCCESS && !probe->own_known && i < count; i++) {
    result = driver->cuDeviceGet(&device, i);
    probe->own = i;
    probe->own_known = result == CUDA_SUCCESS && device == own;
  }
  return result;
}

CUresult peer_find(const struct driver *driver, struct peer_probe *probe, peer_known *known, const void *caller,
                   CUcontext *peer) {
  int count =
      atomic_load_explicit(&device_count, memory_order_relaxed); /* relaxed: as in peer_possible, asked before */
  struct context_visit visit;
  *peer = NULL;
  CUresult result = own_find(driver, probe, count);
  context_visit_all(&visit);
  for (int i = 0; result == CUDA_SUCCESS && *peer == NULL && i < count; i++)
    if (!probe->own_known || i != probe->own)
      result = peer_at(driver, i, probe, known, caller, peer);
  context_visit_end(&visit);
  return result;
}
