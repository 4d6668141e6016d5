/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device memory that is mapped piece by piece into addresses reserved before (cuMemAddressReserve, cuMemCreate,
 * cuMemMap).
 *
 * Mappings belong to the device, not to a context: every context of the device can use them, and they survive
 * cudaDeviceReset (measured on an H200, driver 580).  So unlike a cuMemAlloc block they have to be given back when the
 * context is gone, too; none of the calls that do so needs one.
 *
 * Nothing here waits for the GPU, unmapping under a running kernel included: see source.h.
 */
#include "error.h"
#include "source.h"

static cudaError_t checked(const struct source *source, CUresult result, const char *what) {
  return result == CUDA_SUCCESS ? cudaSuccess : driver_error(source->context.driver, result, what);
}

static bool driver_can(const struct driver *driver) {
  return driver->cuMemAddressReserve != NULL && driver->cuMemAddressFree != NULL && driver->cuMemCreate != NULL &&
         driver->cuMemRelease != NULL && driver->cuMemMap != NULL && driver->cuMemUnmap != NULL &&
         driver->cuMemSetAccess != NULL && driver->cuCtxGetDevice != NULL && driver->cuDeviceTotalMem != NULL;
}

/* Asked before, so that nobody finds out at the first mapping. */
static bool device_can(const struct driver *driver, CUdevice device) {
  int can = 1;
  if (driver->cuDeviceGetAttribute != NULL)
    (void)driver->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
  return can != 0;
}

cudaError_t source_vmm_open(struct source *source) {
  const struct driver *driver = source->context.driver;
  struct context_visit visit;
  if (!driver_can(driver))
    return error_set(cudaErrorNotSupported, "the CUDA driver cannot map memory piece by piece");
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, driver->cuCtxGetDevice(&source->device), "cuCtxGetDevice");
  context_leave(&source->context, &visit);
  if (error == cudaSuccess && !device_can(driver, source->device))
    return error_set(cudaErrorNotSupported, "the device cannot map memory piece by piece");
  return error;
}

/* ---- Addresses ---- */

static cudaError_t vmm_reserve(const struct source *source, size_t bytes, uintptr_t *base) {
  CUdeviceptr address = 0;
  CUresult result = source->context.driver->cuMemAddressReserve(&address, bytes, SOURCE_GRANULARITY_BYTES, 0, 0);
  if (result == CUDA_SUCCESS)
    *base = (uintptr_t)address;
  return checked(source, result, "cuMemAddressReserve");
}

static cudaError_t vmm_unreserve(const struct source *source, uintptr_t base, size_t bytes) {
  return checked(source, source->context.driver->cuMemAddressFree(base, bytes), "cuMemAddressFree");
}

/* ---- Memory ---- */

/* New memory at an address, not accessible yet.  The mapping alone keeps it: the handle is given back at once. */
static cudaError_t create_and_map(const struct source *source, uintptr_t base, size_t bytes) {
  const struct driver *driver = source->context.driver;
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, source->device}};
  CUmemGenericAllocationHandle handle;
  CUresult result = driver->cuMemCreate(&handle, bytes, &properties, 0);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuMemCreate");
  cudaError_t error = checked(source, driver->cuMemMap(base, bytes, 0, handle, 0), "cuMemMap");
  (void)driver->cuMemRelease(handle);
  return error;
}

/* In the context only because a pool must not go on growing when its context is gone. */
static cudaError_t vmm_map(const struct source *source, uintptr_t base, size_t bytes) {
  struct context_visit visit;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = create_and_map(source, base, bytes);
  context_leave(&source->context, &visit);
  return error;
}

static cudaError_t vmm_access(const struct source *source, uintptr_t base, size_t bytes) {
  const CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, source->device},
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  struct context_visit visit;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, source->context.driver->cuMemSetAccess(base, bytes, &access, 1), "cuMemSetAccess");
  context_leave(&source->context, &visit);
  return error;
}

static cudaError_t vmm_unmap(const struct source *source, uintptr_t base, size_t bytes) {
  struct context_visit visit;
  bool entered = context_lives(&source->context) && context_enter(&source->context, &visit) == cudaSuccess;
  cudaError_t error = checked(source, source->context.driver->cuMemUnmap(base, bytes), "cuMemUnmap");
  if (entered)
    context_leave(&source->context, &visit);
  return error;
}

static cudaError_t vmm_total(const struct source *source, size_t *bytes) {
  size_t total = 0;
  CUresult result = source->context.driver->cuDeviceTotalMem(&total, source->device);
  if (result == CUDA_SUCCESS)
    *bytes = total;
  return checked(source, result, "cuDeviceTotalMem");
}

const struct source_operations source_vmm = {.name = "vmm",
                                             .available = source_cuda_available,
                                             .synchronize = source_cuda_synchronize,
                                             .lives = source_cuda_lives,
                                             .reserve = vmm_reserve,
                                             .unreserve = vmm_unreserve,
                                             .map = vmm_map,
                                             .access = vmm_access,
                                             .unmap = vmm_unmap,
                                             .total = vmm_total};
