/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Sources that ask the driver: device memory, page-locked host memory, managed memory.  They differ in the two calls
 * that take and give a chunk.
 */
#include <unistd.h>

#include "base/error.h"
#include "cuda/source.h"

static cudaError_t checked(const struct source *source, CUresult result, const char *what) {
  return result == CUDA_SUCCESS ? cudaSuccess : driver_error(source->context.driver, result, what);
}

/* ---- Taking ---- */

static CUresult device_alloc(const struct driver *driver, CUdeviceptr *address, size_t bytes) {
  return driver->cuMemAlloc(address, bytes);
}

static CUresult managed_alloc(const struct driver *driver, CUdeviceptr *address, size_t bytes) {
  return driver->cuMemAllocManaged(address, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult pinned_alloc(const struct driver *driver, CUdeviceptr *address, size_t bytes) {
  void *pointer = NULL;
  CUresult result = driver->cuMemHostAlloc(&pointer, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  *address = (CUdeviceptr)(uintptr_t)pointer;
  return result;
}

static cudaError_t take(const struct source *source, size_t bytes, uintptr_t *base, const char *what,
                        CUresult (*alloc)(const struct driver *, CUdeviceptr *, size_t)) {
  struct context_visit visit;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  CUdeviceptr address = 0;
  error = checked(source, alloc(source->context.driver, &address, bytes), what);
  context_leave(&source->context, &visit);
  if (error == cudaSuccess)
    *base = (uintptr_t)address;
  return error;
}

static cudaError_t device_take(const struct source *source, size_t bytes, uintptr_t *base) {
  return take(source, bytes, base, "cuMemAlloc", device_alloc);
}

static cudaError_t managed_take(const struct source *source, size_t bytes, uintptr_t *base) {
  return take(source, bytes, base, "cuMemAllocManaged", managed_alloc);
}

static cudaError_t pinned_take(const struct source *source, size_t bytes, uintptr_t *base) {
  return take(source, bytes, base, "cuMemHostAlloc", pinned_alloc);
}

/* ---- Giving ---- */

static CUresult device_free(const struct driver *driver, uintptr_t base) { return driver->cuMemFree(base); }

static CUresult pinned_free(const struct driver *driver, uintptr_t base) { return driver->cuMemFreeHost((void *)base); }

/* Only while the context lives: afterwards the address may be another context's memory. */
static cudaError_t give(const struct source *source, uintptr_t base, const char *what,
                        CUresult (*release)(const struct driver *, uintptr_t)) {
  struct context_visit visit;
  if (!context_lives(&source->context))
    return cudaSuccess;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, release(source->context.driver, base), what);
  context_leave(&source->context, &visit);
  return error;
}

static cudaError_t device_give(const struct source *source, uintptr_t base, size_t bytes) {
  (void)bytes;
  return give(source, base, "cuMemFree", device_free);
}

static cudaError_t pinned_give(const struct source *source, uintptr_t base, size_t bytes) {
  (void)bytes;
  return give(source, base, "cuMemFreeHost", pinned_free);
}

/* ---- Asking ---- */

static cudaError_t memory_info(const struct source *source, size_t *free_bytes, size_t *total_bytes) {
  struct context_visit visit;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, source->context.driver->cuMemGetInfo(free_bytes, total_bytes), "cuMemGetInfo");
  context_leave(&source->context, &visit);
  return error;
}

cudaError_t source_cuda_available(const struct source *source, size_t *bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  cudaError_t error = memory_info(source, &free_bytes, &total_bytes);
  if (error == cudaSuccess)
    *bytes = free_bytes;
  return error;
}

static cudaError_t cuda_total(const struct source *source, size_t *bytes) {
  size_t free_bytes = 0, total_bytes = 0;
  cudaError_t error = memory_info(source, &free_bytes, &total_bytes);
  if (error == cudaSuccess)
    *bytes = total_bytes;
  return error;
}

/* Page-locked memory is taken from everybody on the machine: at most half of what is free at the moment. */
static cudaError_t pinned_available(const struct source *source, size_t *bytes) {
  (void)source;
  long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages < 0 || page_bytes < 0)
    return error_set(cudaErrorUnknown, "the system does not say how much memory is free");
  *bytes = (size_t)pages * (size_t)page_bytes / 2;
  return cudaSuccess;
}

cudaError_t source_cuda_synchronize(const struct source *source) {
  struct context_visit visit;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  error = checked(source, source->context.driver->cuCtxSynchronize(), "cuCtxSynchronize");
  context_leave(&source->context, &visit);
  return error;
}

bool source_cuda_lives(const struct source *source) { return context_lives(&source->context); }

/* Managed memory that passes what the device holds is legal and slow, or worse: device memory is its measure too. */
const struct source_operations source_device = {.name = "device",
                                                .chunk_take = device_take,
                                                .chunk_give = device_give,
                                                .available = source_cuda_available,
                                                .total = cuda_total,
                                                .synchronize = source_cuda_synchronize,
                                                .lives = source_cuda_lives};
const struct source_operations source_managed = {.name = "managed",
                                                 .chunk_take = managed_take,
                                                 .chunk_give = device_give,
                                                 .available = source_cuda_available,
                                                 .total = cuda_total,
                                                 .synchronize = source_cuda_synchronize,
                                                 .lives = source_cuda_lives};
const struct source_operations source_pinned = {.name = "pinned",
                                                .chunk_take = pinned_take,
                                                .chunk_give = pinned_give,
                                                .available = pinned_available,
                                                .total = pinned_available,
                                                .synchronize = source_cuda_synchronize,
                                                .lives = source_cuda_lives};
