/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_allocators.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

/* The baselines' driver.  allocators_select sets it once, before any thread starts. */
static const struct driver *driver;

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

const char *const allocator_calls_names[calls_count] = {"plain", "tagged", "legacy", "stream", "streams"};

/* allocators_select sets it once, before any thread starts. */
static enum allocator_calls calls;

/* A stream for each thread that mam-bench starts, and one for the first thread. */
enum { streams_most = 129 };

enum { stream_non_blocking = 1 }; /* as the driver defines it */

/* Streams that were created.  They stay until the process ends, and a new thread takes one that no thread has.  Without
 * a driver, a stream is a name. */
static struct {
  pthread_mutex_t lock;
  pthread_key_t of_thread; /* gives a thread's stream back when the thread ends */
  CUstream free[streams_most], all[streams_most];
  size_t free_count, count;
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local CUstream stream_mine;

static void stream_return(void *stream) {
  pthread_mutex_lock(&streams.lock);
  streams.free[streams.free_count++] = stream;
  pthread_mutex_unlock(&streams.lock);
}

static cudaError_t stream_create_locked(CUstream *stream) {
  if (streams.count == streams_most)
    return error_set(cudaErrorUnknown, "more threads than streams");
  *stream = (CUstream)(uintptr_t)(0x1000 + streams.count);
  if (driver != NULL) {
    CUresult result = driver->cuStreamCreate(stream, stream_non_blocking);
    if (result != CUDA_SUCCESS)
      return driver_error(driver, result, "cuStreamCreate");
  }
  streams.all[streams.count++] = *stream;
  return cudaSuccess;
}

/* The calling thread's stream, which it takes when it first asks. */
static cudaError_t stream_take(CUstream *stream) {
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&streams.lock);
  if (calls == calls_stream && streams.count > 0)
    *stream = streams.all[0];
  else if (streams.free_count > 0)
    *stream = streams.free[--streams.free_count];
  else
    error = stream_create_locked(stream);
  pthread_mutex_unlock(&streams.lock);
  if (error == cudaSuccess && calls == calls_streams)
    (void)pthread_setspecific(streams.of_thread, *stream);
  return error;
}

/* The stream of a stream-ordered call.  NULL is the legacy default stream. */
static inline cudaError_t stream_now(CUstream *stream) {
  cudaError_t error = cudaSuccess;
  if (calls >= calls_stream && stream_mine == NULL)
    error = stream_take(&stream_mine);
  *stream = stream_mine;
  return error;
}

static cudaError_t nothing_open(size_t chunk_bytes) {
  (void)chunk_bytes;
  return cudaSuccess;
}

static cudaError_t nothing_close(void) { return cudaSuccess; }

/* ---- Ours -------------------------------------------------------------------------------------------------------- */

static cudaError_t mam_open(size_t chunk_bytes) {
  return chunk_bytes == 0 ? MAM_Create_auto() : MAM_Create(chunk_bytes);
}

static cudaError_t mam_release(void *address, size_t bytes) {
  (void)bytes;
  return MAM_CudaFree(address);
}

static cudaError_t mam_reserved(size_t *bytes) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  cudaError_t error = MAM_PoolGetInfo(NULL, &info);
  if (error == cudaSuccess)
    *bytes = info.reserved_bytes;
  return error;
}

static cudaError_t mam_metadata(size_t *bytes) {
  MAM_PoolInfo info = {.struct_size = sizeof info};
  cudaError_t error = MAM_PoolGetInfo(NULL, &info);
  if (error == cudaSuccess)
    *bytes = info.metadata_bytes;
  return error;
}

static const struct allocator mam = {.name = "MAM",
                                     .alignment = 512,
                                     .bounded = true,
                                     .sized = true,
                                     .open = mam_open,
                                     .close = MAM_Destroy,
                                     .allocate = MAM_CudaMalloc,
                                     .release = mam_release,
                                     .reserved = mam_reserved,
                                     .metadata = mam_metadata,
                                     .last_error = MAM_LastError};

static const struct allocator mam__tagged = {.name = "MAM-tagged",
                                             .alignment = 512,
                                             .bounded = true,
                                             .sized = true,
                                             .open = mam_open,
                                             .close = MAM_Destroy,
                                             .allocate = MAM_CudaMalloc,
                                             .release = mam_release,
                                             .allocate_tagged = MAM_CudaMallocTagged,
                                             .reserved = mam_reserved,
                                             .metadata = mam_metadata,
                                             .last_error = MAM_LastError};

/* A program in which each place allocates blocks of about one size. */
static cudaError_t tagged_allocate(void **address, size_t bytes) {
  uintptr_t tag = 1;
  for (size_t rest = bytes; rest > 1; rest >>= 1)
    tag++;
  return MAM_CudaMallocTagged(address, bytes, (const void *)tag);
}

static cudaError_t stream_allocate(void **address, size_t bytes) {
  CUstream stream;
  cudaError_t error = stream_now(&stream);
  return error == cudaSuccess ? MAM_CudaMallocAsync(address, bytes, (cudaStream_t)stream) : error;
}

static cudaError_t stream_release(void *address, size_t bytes) {
  CUstream stream;
  cudaError_t error = stream_now(&stream);
  (void)bytes;
  return error == cudaSuccess ? MAM_CudaFreeAsync(address, (cudaStream_t)stream) : error;
}

/* Our allocator by the calls that were chosen. */
static struct allocator mam_by_calls;

/* ---- The CUDA driver's ------------------------------------------------------------------------------------------- */

static cudaError_t driver_result(CUresult result, const char *what) {
  return result == CUDA_SUCCESS ? cudaSuccess : driver_error(driver, result, what);
}

static cudaError_t cuda_allocate(void **address, size_t bytes) {
  CUdeviceptr device_address = 0;
  CUresult result = driver->cuMemAlloc(&device_address, bytes);
  *address = (void *)(uintptr_t)device_address;
  return driver_result(result, "cuMemAlloc");
}

static cudaError_t cuda_release(void *address, size_t bytes) {
  (void)bytes;
  return driver_result(driver->cuMemFree((CUdeviceptr)(uintptr_t)address), "cuMemFree");
}

/* CUDA promises 256 bytes. */
static const struct allocator cuda = {.name = "cudaMalloc",
                                      .alignment = 256,
                                      .bounded = true,
                                      .remark = "cudaMalloc and cudaFree are measured at cuMemAlloc and cuMemFree, the "
                                                "driver functions that they call",
                                      .open = nothing_open,
                                      .close = nothing_close,
                                      .allocate = cuda_allocate,
                                      .release = cuda_release,
                                      .last_error = error_last};

/* On the legacy default stream if calls are plain, from the device's default memory pool as the driver sets it up. */
static cudaError_t async_allocate(void **address, size_t bytes) {
  CUdeviceptr device_address = 0;
  CUstream stream;
  cudaError_t error = stream_now(&stream);
  if (error != cudaSuccess)
    return error;
  CUresult result = driver->cuMemAllocAsync(&device_address, bytes, stream);
  *address = (void *)(uintptr_t)device_address;
  return driver_result(result, "cuMemAllocAsync");
}

static cudaError_t async_release(void *address, size_t bytes) {
  CUstream stream;
  cudaError_t error = stream_now(&stream);
  (void)bytes;
  if (error != cudaSuccess)
    return error;
  return driver_result(driver->cuMemFreeAsync((CUdeviceptr)(uintptr_t)address, stream), "cuMemFreeAsync");
}

/* For use between batches, when no other thread creates a stream. */
static cudaError_t async_settle(void) {
  cudaError_t error = driver_result(driver->cuStreamSynchronize(NULL), "cuStreamSynchronize");
  for (size_t i = 0; i < streams.count && error == cudaSuccess; i++)
    error = driver_result(driver->cuStreamSynchronize(streams.all[i]), "cuStreamSynchronize");
  return error;
}

static cudaError_t async_close(void) { return async_settle(); }

/* The pool that a plain cuMemAllocAsync takes from: that of the first device, whose context mam-bench made current. */
static cudaError_t async_pool(CUmemoryPool *pool) {
  return driver_result(driver->cuDeviceGetDefaultMemPool(pool, 0), "cuDeviceGetDefaultMemPool");
}

/* Resets the high-water mark. */
static cudaError_t async_open(size_t chunk_bytes) {
  CUmemoryPool pool = NULL;
  uint64_t none = 0;
  (void)chunk_bytes;
  cudaError_t error = async_pool(&pool);
  if (error != cudaSuccess)
    return error;
  return driver_result(driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &none),
                       "cuMemPoolSetAttribute");
}

static cudaError_t async_reserved(size_t *bytes) {
  CUmemoryPool pool = NULL;
  uint64_t most = 0;
  cudaError_t error = async_pool(&pool);
  if (error != cudaSuccess)
    return error;
  error = driver_result(driver->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &most),
                        "cuMemPoolGetAttribute");
  if (error == cudaSuccess)
    *bytes = (size_t)most;
  return error;
}

static const struct allocator async = {
    .name = "cudaMallocAsync",
    .alignment = 256,
    .bounded = true,
    .remark = "cudaMallocAsync and cudaFreeAsync are measured at cuMemAllocAsync and cuMemFreeAsync, on the default\n"
              "stream or those of --calls, with the default pool; streams are synchronised between batches, which is\n"
              "not timed",
    .open = async_open,
    .close = async_close,
    .settle = async_settle,
    .allocate = async_allocate,
    .release = async_release,
    .reserved = async_reserved,
    .last_error = error_last};

static cudaError_t pinned_allocate(void **address, size_t bytes) {
  return driver_result(driver->cuMemHostAlloc(address, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                       "cuMemHostAlloc");
}

static cudaError_t pinned_release(void *address, size_t bytes) {
  (void)bytes;
  return driver_result(driver->cuMemFreeHost(address), "cuMemFreeHost");
}

static const struct allocator pinned = {
    .name = "cudaHostAlloc",
    .alignment = 64,
    .remark = "cudaHostAlloc and cudaFreeHost are measured at cuMemHostAlloc and cuMemFreeHost",
    .open = nothing_open,
    .close = nothing_close,
    .allocate = pinned_allocate,
    .release = pinned_release,
    .last_error = error_last};

static cudaError_t managed_allocate(void **address, size_t bytes) {
  CUdeviceptr device_address = 0;
  CUresult result = driver->cuMemAllocManaged(&device_address, bytes, CU_MEM_ATTACH_GLOBAL);
  *address = (void *)(uintptr_t)device_address;
  return driver_result(result, "cuMemAllocManaged");
}

static const struct allocator managed = {
    .name = "cudaMallocManaged",
    .alignment = 256,
    .remark = "cudaMallocManaged and cudaFree are measured at cuMemAllocManaged and cuMemFree",
    .open = nothing_open,
    .close = nothing_close,
    .allocate = managed_allocate,
    .release = cuda_release,
    .last_error = error_last};

/* ---- The C library's --------------------------------------------------------------------------------------------- */

static cudaError_t mmap_allocate(void **address, size_t bytes) {
  void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return error_set(cudaErrorMemoryAllocation, "mmap: %s", strerror(errno));
  *address = mapped;
  return cudaSuccess;
}

static cudaError_t mmap_release(void *address, size_t bytes) {
  return munmap(address, bytes) == 0 ? cudaSuccess : error_set(cudaErrorInvalidValue, "munmap: %s", strerror(errno));
}

static const struct allocator mapping = {.name = "mmap",
                                         .alignment = 4096,
                                         .open = nothing_open,
                                         .close = nothing_close,
                                         .allocate = mmap_allocate,
                                         .release = mmap_release,
                                         .last_error = error_last};

static cudaError_t malloc_allocate(void **address, size_t bytes) {
  *address = malloc(bytes);
  return *address != NULL ? cudaSuccess : error_set(cudaErrorMemoryAllocation, "malloc: %s", strerror(errno));
}

static cudaError_t malloc_release(void *address, size_t bytes) {
  (void)bytes;
  free(address);
  return cudaSuccess;
}

static const struct allocator heap = {.name = "malloc",
                                      .alignment = 16,
                                      .remark = "Blocks are never touched: mmap and malloc pay for no page here",
                                      .open = nothing_open,
                                      .close = nothing_close,
                                      .allocate = malloc_allocate,
                                      .release = malloc_release,
                                      .last_error = error_last};

/* ------------------------------------------------------------------------------------------------------------------ */

/* A row has fewer entries than allocators_most, so that a test may add one. */
static const struct allocator *const by_source[][allocators_most] = {
    [MAM_SOURCE_DEVICE] = {&mam, &cuda, &async}, [MAM_SOURCE_PINNED] = {&mam, &pinned},
    [MAM_SOURCE_MANAGED] = {&mam, &managed},     [MAM_SOURCE_HOST] = {&mam, &mapping, &heap},
    [MAM_SOURCE_VMM] = {&mam, &cuda, &async},
};

/* Whether the driver has all functions that the baseline cudaMallocAsync calls. */
static bool async_exists(void) {
  return driver != NULL && driver->cuMemAllocAsync != NULL && driver->cuMemFreeAsync != NULL &&
         driver->cuStreamSynchronize != NULL && driver->cuDeviceGetDefaultMemPool != NULL &&
         driver->cuMemPoolGetAttribute != NULL && driver->cuMemPoolSetAttribute != NULL;
}

const struct allocator *allocators_tagged(void) { return &mam__tagged; }

static const struct allocator *mam_select(void) {
  mam_by_calls = mam;
  if (calls == calls_tagged)
    mam_by_calls.allocate = tagged_allocate;
  if (calls >= calls_legacy) {
    mam_by_calls.allocate = stream_allocate;
    mam_by_calls.release = stream_release;
  }
  return &mam_by_calls;
}

size_t allocators_select(const struct allocator *list[allocators_most], MAM_Source source,
                         enum allocator_calls calls_wanted, const struct machine *machine) {
  driver = machine->driver;
  calls = calls_wanted;
  if (calls == calls_streams)
    (void)pthread_key_create(&streams.of_thread, stream_return); /* cannot fail: few keys are taken */
  size_t count = 0;
  while (count < allocators_most && by_source[source][count] != NULL) {
    list[count] = by_source[source][count];
    count++;
  }
  if (list[count - 1] == &async && !async_exists())
    count--; /* async is the last of its row */
  list[0] = mam_select();
  return count;
}
