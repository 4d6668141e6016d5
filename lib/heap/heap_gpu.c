/* SPDX-License-Identifier: BSD-2-Clause */
#include "heap/heap_gpu.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "heap/heap_image.h"

/* Kernels run in blocks of so many threads, up to so many blocks on a multiprocessor: as many threads as it
 * has room for, since sm_80. */
enum { BLOCK_THREADS = 256, BLOCKS_PER_MULTIPROCESSOR = 8 };

/* The host looks for a kernel's sign for so long.  Then the driver waits, in the way that the program has set. */
enum { SIGN_PATIENCE_NS = 1000000 };

static const char *const kernel_names[HEAP_KERNELS] = {
    "mam_kernel_clear",   "mam_kernel_clear_slots", "mam_kernel_drain",     "mam_kernel_free",
    "mam_kernel_records", "mam_kernel_compact",     "mam_kernel_warp_list", "mam_kernel_warp_end",
};

/* ---- Kernels, once for each context ---- */

struct loaded {
  struct loaded *next;
  uint64_t context_id; /* never used again, so an entry can stay when its context goes */
  CUfunction kernels[HEAP_KERNELS];
};

static pthread_mutex_t loaded_lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded *loaded_first; /* protected by loaded_lock */

cudaError_t heap_gpu_known(void) {
  if (heap_image_bytes == 0)
    return error_set(cudaErrorNotSupported, "device heaps do not work: the library was built without CUDA");
  return cudaSuccess;
}

/* The context is current. */
static cudaError_t load(const struct driver *driver, struct loaded *loaded) {
  CUmodule module;
  CUresult result = driver->cuModuleLoadData(&module, heap_image);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuModuleLoadData of the heap's kernels");
  for (int i = 0; i < HEAP_KERNELS; i++) {
    result = driver->cuModuleGetFunction(&loaded->kernels[i], module, kernel_names[i]);
    if (result != CUDA_SUCCESS)
      return driver_error(driver, result, "cuModuleGetFunction");
  }
  return cudaSuccess;
}

static cudaError_t kernels_of(const struct context *context, const CUfunction **kernels) {
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&loaded_lock);
  struct loaded *loaded = loaded_first;
  while (loaded != NULL && loaded->context_id != context->id)
    loaded = loaded->next;
  if (loaded == NULL) {
    loaded = calloc(1, sizeof *loaded);
    error = loaded == NULL ? error_set(cudaErrorMemoryAllocation, "the host has no memory for the heap's kernels")
                           : load(context->driver, loaded);
    if (error == cudaSuccess) {
      loaded->context_id = context->id;
      loaded->next = loaded_first;
      loaded_first = loaded;
    } else
      free(loaded);
  }
  pthread_mutex_unlock(&loaded_lock);
  if (error == cudaSuccess)
    *kernels = loaded->kernels;
  return error;
}

/* ---- Opening ---- */

static cudaError_t open_current(const struct context *context, struct heap_gpu *gpu) {
  const struct driver *driver = context->driver;
  struct heap_gpu opened = {.context = *context};
  CUdevice device;
  int multiprocessors;
  cudaError_t error = kernels_of(context, &opened.kernels);
  if (error != cudaSuccess)
    return error;
  CUresult result = driver->cuCtxGetDevice(&device);
  if (result == CUDA_SUCCESS)
    result = driver->cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuDeviceGetAttribute");
  result = driver->cuStreamCreate(&opened.stream, CU_STREAM_NON_BLOCKING);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuStreamCreate");
  opened.multiprocessors = (unsigned)multiprocessors;
  *gpu = opened;
  return cudaSuccess;
}

cudaError_t heap_gpu_open(const struct context *context, struct heap_gpu *gpu) {
  const struct driver *driver = context->driver;
  if (driver->cuModuleLoadData == NULL || driver->cuModuleGetFunction == NULL || driver->cuLaunchKernel == NULL ||
      driver->cuStreamCreate == NULL || driver->cuStreamDestroy == NULL || driver->cuStreamSynchronize == NULL ||
      driver->cuMemcpyDtoHAsync == NULL || driver->cuMemcpyHtoDAsync == NULL || driver->cuCtxGetDevice == NULL ||
      driver->cuDeviceGetAttribute == NULL)
    return error_set(cudaErrorNotSupported, "device heaps do not work: the CUDA driver cannot launch kernels");
  struct context_visit visit;
  cudaError_t error = context_enter(context, &visit);
  if (error != cudaSuccess)
    return error;
  error = open_current(context, gpu);
  context_leave(context, &visit);
  return error;
}

void heap_gpu_close(struct heap_gpu *gpu) {
  struct context_visit visit;
  if (context_lives(&gpu->context) && context_enter(&gpu->context, &visit) == cudaSuccess) {
    (void)gpu->context.driver->cuStreamDestroy(gpu->stream);
    context_leave(&gpu->context, &visit);
  }
}

/* ---- Work ---- */

/* Waits for what was enqueued with that result, and leaves the context. */
static cudaError_t finish(const struct heap_gpu *gpu, struct context_visit *visit, CUresult result, const char *what) {
  const struct driver *driver = gpu->context.driver;
  if (result == CUDA_SUCCESS)
    result = driver->cuStreamSynchronize(gpu->stream);
  cudaError_t error = result == CUDA_SUCCESS ? cudaSuccess : driver_error(driver, result, what);
  context_leave(&gpu->context, visit);
  return error;
}

static CUresult launch(const struct heap_gpu *gpu, enum heap_kernel kernel, size_t threads, void **arguments) {
  size_t most = (size_t)gpu->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
  size_t blocks = (threads + BLOCK_THREADS - 1) / BLOCK_THREADS;
  return gpu->context.driver->cuLaunchKernel(gpu->kernels[kernel], (unsigned)(blocks < most ? blocks : most), 1, 1,
                                             threads < BLOCK_THREADS ? (unsigned)threads : BLOCK_THREADS, 1, 1, 0,
                                             gpu->stream, arguments, NULL);
}

cudaError_t heap_gpu_run(const struct heap_gpu *gpu, enum heap_kernel kernel, size_t threads, void **arguments) {
  struct context_visit visit;
  cudaError_t error = context_enter(&gpu->context, &visit);
  if (error != cudaSuccess)
    return error;
  return finish(gpu, &visit, launch(gpu, kernel, threads, arguments), kernel_names[kernel]);
}

cudaError_t heap_gpu_read(const struct heap_gpu *gpu, void *to, uint64_t from, size_t bytes) {
  struct context_visit visit;
  cudaError_t error = context_enter(&gpu->context, &visit);
  if (error != cudaSuccess)
    return error;
  return finish(gpu, &visit, gpu->context.driver->cuMemcpyDtoHAsync(to, from, bytes, gpu->stream),
                "copying from a heap");
}

cudaError_t heap_gpu_write(const struct heap_gpu *gpu, uint64_t to, const void *from, size_t bytes) {
  struct context_visit visit;
  cudaError_t error = context_enter(&gpu->context, &visit);
  if (error != cudaSuccess)
    return error;
  return finish(gpu, &visit, gpu->context.driver->cuMemcpyHtoDAsync(to, from, bytes, gpu->stream), "copying to a heap");
}

/* Looks for a sign for SIGN_PATIENCE_NS; whether it was seen.  A kernel that fails gives none. */
static bool sign_seen(const struct heap_gpu_sign *sign) {
  bool seen;
  int64_t until_ns = now_ns() + SIGN_PATIENCE_NS;
  do /* acquire: what the kernel reports; pairs with its fence */
    seen = (__atomic_load_n(sign->word, __ATOMIC_ACQUIRE) & sign->mask) == sign->value;
  while (!seen && now_ns() < until_ns);
  return seen;
}

cudaError_t heap_gpu_run_together(const struct heap_gpu *gpu, enum heap_kernel kernel, unsigned blocks,
                                  unsigned threads, void **arguments, const struct heap_gpu_sign *sign) {
  const struct driver *driver = gpu->context.driver;
  struct context_visit visit;
  if (driver->cuLaunchCooperativeKernel == NULL)
    return error_set(cudaErrorNotSupported, "the CUDA driver cannot launch cooperative kernels");
  cudaError_t error = context_enter(&gpu->context, &visit);
  if (error != cudaSuccess)
    return error;
  CUresult result;
  do /* with as many blocks as this GPU has room for */
    result = driver->cuLaunchCooperativeKernel(gpu->kernels[kernel], gpu->multiprocessors * blocks, 1, 1, threads, 1, 1,
                                               0, gpu->stream, arguments);
  while (result == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE && --blocks != 0);
  if (result != CUDA_SUCCESS || !sign_seen(sign))
    return finish(gpu, &visit, result, kernel_names[kernel]);
  context_leave(&gpu->context, &visit);
  return cudaSuccess;
}

cudaError_t heap_gpu_host_take(const struct heap_gpu *gpu, void **memory, size_t bytes) {
  const struct driver *driver = gpu->context.driver;
  struct context_visit visit;
  cudaError_t error = context_enter(&gpu->context, &visit);
  if (error != cudaSuccess)
    return error;
  CUresult result = driver->cuMemHostAlloc(memory, bytes, CU_MEMHOSTALLOC_DEVICEMAP);
  error = result == CUDA_SUCCESS ? cudaSuccess : driver_error(driver, result, "cuMemHostAlloc for a heap");
  context_leave(&gpu->context, &visit);
  return error;
}

void heap_gpu_host_give(const struct heap_gpu *gpu, void *memory) {
  struct context_visit visit;
  if (context_lives(&gpu->context) && context_enter(&gpu->context, &visit) == cudaSuccess) {
    (void)gpu->context.driver->cuMemFreeHost(memory);
    context_leave(&gpu->context, &visit);
  }
}
