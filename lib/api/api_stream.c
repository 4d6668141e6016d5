/* SPDX-License-Identifier: BSD-2-Clause */
/* The public functions of streams: allocating and freeing on one, freeing by another rule, captures. */
#include "api/api_serve.h"
#include "api/environment.h"
#include "base/error.h"
#include "base/library_call.h"
#include "cuda/reuse.h"
#include "front/front_quick.h"
#include "front/front_record.h"

/* In a process that makes a record, what the thread has at hand for the request's stream; 0 if nothing. */
static inline uintptr_t malloc_recorded(struct mam_pool *pool, uint64_t id, const struct front_request *request) {
  return record_on() ? front_record_malloc_on(pool, id, request->size, request->site, request->stream->handle) : 0;
}

static __attribute__((noinline)) cudaError_t pool_malloc_slow(MAM_Pool pool, void **ptr, size_t size, const void *site,
                                                              cudaStream_t stream) {
  struct front_stream on = {.handle = (CUstream)stream};
  struct front_request request = {.size = size, .site = site, .stream = &on};
  uintptr_t address = pool_is_known(pool) ? malloc_recorded(pool, POOL_ANY_ID, &request) : 0;
  if (address == 0)
    return api_pool_malloc("MAM_PoolMallocAsync", pool, &request, ptr);
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream) {
  const void *site = __builtin_return_address(0);
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolMallocAsync: ptr is NULL");
  uintptr_t address =
      pool_is_known(pool) ? front_malloc_on_quick(front_at_hand, pool, POOL_ANY_ID, size, site, (CUstream)stream) : 0;
  if (address == 0)
    return pool_malloc_slow(pool, ptr, size, site, stream);
  *ptr = (void *)address;
  return cudaSuccess;
}

/* id: of the default pool, 0 if the thread was not asked for it. */
static __attribute__((noinline)) cudaError_t malloc_slow(void **ptr, uint64_t id, size_t size, const void *site,
                                                         cudaStream_t stream) {
  struct front_stream on = {.handle = (CUstream)stream};
  struct front_request request = {
      .default_id = id != 0 ? id : environment_id_quick(), .size = size, .site = site, .stream = &on};
  uintptr_t address = malloc_recorded(NULL, request.default_id, &request);
  if (address == 0)
    return api_malloc_until(&request, ptr);
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t MAM_CudaMallocAsync(void **ptr, size_t size, cudaStream_t stream) {
  const void *site = __builtin_return_address(0);
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocAsync: ptr is NULL");
  uint64_t id = context_stream_is_created((CUstream)stream) ? 0 : environment_id_quick();
  uintptr_t address = front_malloc_on_quick(front_at_hand, NULL, id, size, site, (CUstream)stream);
  if (address == 0)
    return malloc_slow(ptr, id, size, site, stream);
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t MAM_CudaFreeAsync(void *ptr, cudaStream_t stream) {
  if (ptr == NULL)
    return cudaSuccess;
  enum front_freed freed = front_free_on_quick(front_at_hand, (uintptr_t)ptr, (CUstream)stream);
  if (__builtin_expect(freed == FRONT_FREED, true))
    return cudaSuccess;
  if (freed == FRONT_FREED_NOT && record_on())
    freed = front_record_free_on((uintptr_t)ptr, (CUstream)stream);
  if (freed == FRONT_FREED)
    return cudaSuccess;
  return freed == FRONT_FREED_ZERO ? api_free((uintptr_t)ptr, freed)
                                   : api_free_by_rule((uintptr_t)ptr, MAM_REUSE_STREAM, stream);
}

cudaError_t MAM_CudaFreeReuse(void *ptr, MAM_Reuse reuse) {
  if (reuse < MAM_REUSE_FENCED || reuse > MAM_REUSE_STREAM)
    return error_set(cudaErrorInvalidValue, "MAM_CudaFreeReuse: reuse is not a value of MAM_Reuse");
  return ptr == NULL ? cudaSuccess : api_free_by_rule((uintptr_t)ptr, reuse, NULL);
}

/* ---- Stream captures ---- */

/* The reuse of the current context, of which the caller becomes a user. */
static cudaError_t reuse_current(struct reuse **reuse) {
  const struct options *options;
  struct source source;
  cudaError_t error = environment_options(&options);
  if (error == cudaSuccess)
    error = source_open(options->source, NULL, -1, &source);
  if (error != cudaSuccess)
    return error;
  environment_set_up();
  *reuse = reuse_open(&source);
  if (*reuse == NULL)
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a capture");
  source_close(&source);
  return error;
}

cudaError_t MAM_CaptureBegin(void) {
  LIBRARY_CALL;
  struct reuse *reuse;
  cudaError_t error = reuse_current(&reuse);
  if (error == cudaSuccess)
    reuse_capture_begin(reuse, false); /* a user until the end */
  return error;
}

cudaError_t MAM_CaptureEnd(void) {
  LIBRARY_CALL;
  struct reuse *reuse;
  cudaError_t error = reuse_current(&reuse);
  if (error != cudaSuccess)
    return error;
  bool begun = reuse_capture_end(reuse, false);
  if (begun) {
    (void)reuse_reach(reuse, reuse_epoch(reuse)); /* what was freed meanwhile; no fence if other brackets are open */
    reuse_close(reuse);                           /* the beginning's use */
  }
  reuse_close(reuse);
  return begun ? cudaSuccess : error_set(cudaErrorInvalidValue, "MAM_CaptureEnd: no capture has begun in this context");
}
