/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device memory that is mapped piece by piece into addresses reserved before (cuMemAddressReserve, cuMemCreate,
 * cuMemMap).
 *
 * Mappings belong to the device, not to a context: every context of the device can use them, and they survive
 * cudaDeviceReset (measured on an H200, driver 580).  So unlike a cuMemAlloc block they have to be given back when the
 * context is gone, too; none of the calls that do so needs one.
 *
 * The driver does some things for a block of cudaMalloc that have to be asked for here.  cudaDeviceEnablePeerAccess has
 * no effect on mapped memory, and the library does not learn of the call.  So every device that can reach the memory
 * gets access when the memory is mapped, whether the program enables peer access or not.  The memory is also asked for
 * as one that can be exported and that other adapters can reach; if the driver refuses, it is plain memory.
 *
 * Nothing here waits for the GPU, unmapping under a running kernel included: see source.h.
 */
#include "base/error.h"
#include "cuda/source.h"

static cudaError_t checked(const struct source *source, CUresult result, const char *what) {
  return result == CUDA_SUCCESS ? cudaSuccess : driver_error(source->context.driver, result, what);
}

static bool driver_can(const struct driver *driver) {
  return driver->cuMemAddressReserve != NULL && driver->cuMemAddressFree != NULL && driver->cuMemCreate != NULL &&
         driver->cuMemRelease != NULL && driver->cuMemMap != NULL && driver->cuMemUnmap != NULL &&
         driver->cuMemSetAccess != NULL && driver->cuMemRetainAllocationHandle != NULL &&
         driver->cuCtxGetDevice != NULL && driver->cuDeviceTotalMem != NULL;
}

/* Asked when the source is opened, so that the first mapping does not fail for it.  unknown: the answer where the
 * driver does not say. */
static bool device_can(const struct driver *driver, CUdevice device, int attribute, bool unknown) {
  int can = 0;
  bool known =
      driver->cuDeviceGetAttribute != NULL && driver->cuDeviceGetAttribute(&can, attribute, device) == CUDA_SUCCESS;
  return known ? can != 0 : unknown;
}

/* The devices that can reach the source's memory. */
static void peers_find(struct source *source) {
  const struct driver *driver = source->context.driver;
  int count = 0;
  source->peer_count = 0;
  if (driver->cuDeviceGetCount == NULL || driver->cuDeviceCanAccessPeer == NULL ||
      driver->cuDeviceGetCount(&count) != CUDA_SUCCESS)
    return;
  for (int ordinal = 0; ordinal < count && source->peer_count < SOURCE_PEERS_MOST; ordinal++) {
    CUdevice device;
    int can = 0;
    if (driver->cuDeviceGet(&device, ordinal) == CUDA_SUCCESS && device != source->device &&
        driver->cuDeviceCanAccessPeer(&can, device, source->device) == CUDA_SUCCESS && can != 0)
      source->peers[source->peer_count++] = device;
  }
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
  if (error != cudaSuccess)
    return error;
  if (!device_can(driver, source->device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, true))
    return error_set(cudaErrorNotSupported, "the device cannot map memory piece by piece");
  source->exports =
      device_can(driver, source->device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, false);
  source->rdma = device_can(driver, source->device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, false);
  peers_find(source);
  return cudaSuccess;
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

static CUresult create(const struct source *source, size_t bytes, bool exports, bool rdma,
                       CUmemGenericAllocationHandle *handle) {
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .requested_handle_types =
                                              exports ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, source->device},
                                          .flags = {.rdma = rdma}};
  return source->context.driver->cuMemCreate(handle, bytes, &properties, 0);
}

/* What a device says that it can do may be refused all the same (containers, adapters that lack a module). */
static CUresult create_as_can_be(const struct source *source, size_t bytes, CUmemGenericAllocationHandle *handle) {
  CUresult result = create(source, bytes, source->exports, source->rdma, handle);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && source->exports && source->rdma)
    result = create(source, bytes, false, true, handle);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && (source->exports || source->rdma))
    result = create(source, bytes, false, false, handle);
  return result;
}

/* New memory at an address, not accessible yet.  The mapping alone keeps it: the handle is given back at once. */
static cudaError_t create_and_map(const struct source *source, uintptr_t base, size_t bytes) {
  const struct driver *driver = source->context.driver;
  CUmemGenericAllocationHandle handle;
  CUresult result = create_as_can_be(source, bytes, &handle);
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

/* Gives access to the device itself and its peers.  If the driver refuses that, because the peers are too many or one
 * cannot be reached after all, to the device alone: a program that uses no peers must get its memory. */
static CUresult access_set(const struct source *source, uintptr_t base, size_t bytes) {
  CUmemAccessDesc access[1 + SOURCE_PEERS_MOST];
  const struct driver *driver = source->context.driver;
  for (unsigned i = 0; i <= source->peer_count; i++)
    access[i] =
        (CUmemAccessDesc){.location = {CU_MEM_LOCATION_TYPE_DEVICE, i == 0 ? source->device : source->peers[i - 1]},
                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = driver->cuMemSetAccess(base, bytes, access, 1 + source->peer_count);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && source->peer_count > 0)
    result = driver->cuMemSetAccess(base, bytes, access, 1);
  return result;
}

static cudaError_t vmm_access(const struct source *source, uintptr_t base, size_t bytes) {
  struct context_visit visit;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, access_set(source, base, bytes), "cuMemSetAccess");
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

/* If the driver will not map the memory elsewhere, the handle was the last that kept it. */
static cudaError_t vmm_remap(const struct source *source, uintptr_t base, size_t bytes, uintptr_t to, bool *there) {
  const struct driver *driver = source->context.driver;
  CUmemGenericAllocationHandle handle;
  struct context_visit visit;
  *there = true;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, driver->cuMemRetainAllocationHandle(&handle, (void *)base), "cuMemRetainAllocationHandle");
  if (error == cudaSuccess) {
    error = checked(source, driver->cuMemUnmap(base, bytes), "cuMemUnmap");
    *there = error != cudaSuccess;
    if (error == cudaSuccess)
      error = checked(source, driver->cuMemMap(to, bytes, 0, handle, 0), "cuMemMap");
    (void)driver->cuMemRelease(handle);
  }
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
                                             .remap = vmm_remap,
                                             .total = vmm_total};
