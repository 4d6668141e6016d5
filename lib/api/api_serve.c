/* SPDX-License-Identifier: BSD-2-Clause */
#include "api/api_serve.h"

#include "api/environment.h"
#include "api/reaper.h"
#include "base/error.h"
#include "base/last_word.h"
#include "base/library_call.h"
#include "front/front_record.h"

cudaError_t api_refuse_handle(const char *who) {
  return error_set(cudaErrorInvalidResourceHandle, "%s: no such pool", who);
}

/* ---- On a stream ---- */

/* Names a stream; notices whether it is being captured.  The legacy stream never is, and only the current context
 * is asked.  *entered: whether the pool is usable; if it is not, that is the error. */
static cudaError_t stream_name(cudaStream_t handle, struct mam_pool *pool, uint64_t default_id,
                               struct context_stream *stream, bool *entered) {
  bool captured = false;
  *entered = true;
  if (context_stream_is_legacy((CUstream)handle))
    return context_stream_name(driver_known(), (CUstream)handle, stream, &captured);
  cudaError_t error = pool_enter(pool, default_id);
  *entered = error == cudaSuccess;
  if (error != cudaSuccess)
    return error;
  error = context_stream_name(pool->source.context.driver, (CUstream)handle, stream, &captured);
  if (error == cudaSuccess && captured && !reuse_bracketed(environment_id_quick()))
    reuse_notice_capture(pool->reuse, (CUstream)handle);
  pool_exit(pool);
  return error;
}

/* front_malloc on the request's stream.  request->pool is not NULL. */
static cudaError_t stream_serve(const struct front_request *request, uintptr_t *address) {
  LIBRARY_CALL;
  struct front_stream *stream = request->stream;
  bool entered;
  cudaError_t error = stream_name(stream->handle, request->pool, request->default_id, &stream->name, &entered);
  return error == cudaSuccess ? front_malloc(request, address) : error;
}

static inline cudaError_t serve(const struct front_request *request, uintptr_t *address) {
  return request->stream != NULL ? stream_serve(request, address) : front_malloc(request, address);
}

/* ---- By an environment ---- */

/* Size 0 is a success where anything could be allocated. */
static cudaError_t malloc_nothing(void) {
  LIBRARY_CALL;
  uint64_t id;
  return environment_id_now(&id);
}

/* What an environment owes its reaper after an allocation.  created: its generation if it was created for that. */
static void environment_after_malloc(const struct front_request *request, uint64_t created, cudaError_t error) {
  if (error != cudaSuccess && created != 0) /* for nothing: as if its last block had been freed */
    (void)reaper_emptied(&(struct pool_emptied){request->pool, request->default_id, created, false});
  else if (error == cudaSuccess && pool_to_be_watched(request->pool))
    reaper_watch(request->pool);
  reaper_look_grown();
}

/* From the calling thread's environment, created if need be. */
static cudaError_t environment_malloc(struct front_request *request, uintptr_t *address) {
  LIBRARY_CALL;
  uint64_t created;
  cudaError_t error;
  for (;;) {
    error = environment_get(&request->pool, &request->default_id, &created);
    if (error == cudaSuccess)
      error = serve(request, address);
    if (error != cudaErrorInvalidResourceHandle)
      break;
    request->default_id = environment_id_quick(); /* the environment ended between being found and being asked */
  }
  environment_after_malloc(request, created, error);
  return error;
}

cudaError_t api_malloc(struct front_request *request, uintptr_t *address) {
  bool asks_front = request->default_id != 0 && request->stream == NULL;
  cudaError_t error = asks_front ? front_malloc(request, address) : cudaErrorInvalidResourceHandle;
  request->tried = false;
  if (error == cudaErrorInvalidResourceHandle) /* the thread's last front is not of that environment */
    return environment_malloc(request, address);
  reaper_look_grown();
  return error;
}

cudaError_t api_malloc_until(struct front_request *request, void **ptr) {
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  while (true) {
    error = request->size == 0 ? malloc_nothing() : api_malloc(request, &address);
    if (!last_word_again(error, NULL, request->size, &attempts))
      break;
    request->pool = NULL;
    request->default_id = environment_id_quick();
  }
  *ptr = (void *)address;
  return error;
}

/* ---- By a pool of choice ---- */

cudaError_t api_pool_malloc(const char *who, MAM_Pool pool, struct front_request *request, void **ptr) {
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  request->pool = pool;
  request->default_id = POOL_ANY_ID;
  do
    error = !pool_is_known(pool) ? cudaErrorInvalidResourceHandle
            : request->size == 0 ? pool_usable(pool)
                                 : serve(request, &address);
  while (last_word_again(error, pool, request->size, &attempts));
  *ptr = (void *)address;
  if (error == cudaSuccess && pool_to_be_watched(pool))
    reaper_watch(pool);
  reaper_look_grown();
  return error == cudaErrorInvalidResourceHandle ? api_refuse_handle(who) : error;
}

/* ---- Freeing ---- */

/* Ends the environment that a free has emptied. */
static cudaError_t free_finish(cudaError_t error, const struct pool_emptied *emptied) {
  if (emptied->pool == NULL)
    return error;
  if (emptied->watch) {
    reaper_watch(emptied->pool);
    return error;
  }
  cudaError_t ended = reaper_emptied(emptied);
  return error == cudaSuccess ? ended : error;
}

static __attribute__((noinline)) cudaError_t free_slow(uintptr_t address, enum front_freed freed) {
  LIBRARY_CALL;
  struct pool_emptied emptied;
  cudaError_t error = cudaSuccess;
  if (freed == FRONT_FREED_ZERO)
    front_zero(&emptied);
  else
    error = front_free(address, &emptied);
  return free_finish(error, &emptied);
}

cudaError_t api_free(uintptr_t address, enum front_freed freed) {
  if (freed == FRONT_FREED_NOT && record_on())
    freed = front_record_free(address);
  return freed == FRONT_FREED ? cudaSuccess : free_slow(address, freed);
}

cudaError_t api_free_of(struct mam_pool *pool, uint64_t generation, uintptr_t address) {
  LIBRARY_CALL;
  struct pool_emptied emptied;
  cudaError_t error = front_free_of(pool, generation, address, &emptied);
  return free_finish(error, &emptied);
}

cudaError_t api_free_by_rule(uintptr_t address, MAM_Reuse reuse, cudaStream_t handle) {
  LIBRARY_CALL;
  struct pool_emptied emptied = {0};
  struct front_stream stream = {.handle = (CUstream)handle};
  bool entered = true;
  cudaError_t error = cudaSuccess;
  struct mam_pool *pool = front_pool_of(address);
  if (pool == NULL)
    return pool_refuse_free(address, false);
  if (reuse == MAM_REUSE_STREAM)
    error = stream_name(handle, pool, POOL_ANY_ID, &stream.name, &entered);
  if (!entered)
    return api_free(address, FRONT_FREED_NOT); /* which knows what to answer */
  if (error == cudaSuccess)
    error = reuse == MAM_REUSE_STREAM ? front_free_on(address, &stream, &emptied)
                                      : front_free_reuse(address, reuse, &emptied);
  return free_finish(error, &emptied);
}
