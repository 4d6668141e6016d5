/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The public functions.  An allocation without a pool means the calling thread's environment (environment.h), which is
 * made if there is none.
 */
#include "api/api.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/reaper.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/last_word.h"
#include "front/front_quick.h"
#include "front/front_record.h"

/* ---- The end of the process ---- */

static pid_t loaded_by; /* a forked child reports nothing of its parent's */

__attribute__((constructor)) static void begin_of_process(void) { loaded_by = getpid(); }

/* What MAM_REPORT asks for.  Not of a client, which has a summary of its own. */
static void report_at_exit(void) {
  const struct options *options;
  if (environment_client_chunk_bytes() > 0 || environment_options(&options) != cudaSuccess)
    return;
  if (options->report == OPTIONS_REPORT_STATS)
    pools_tell_stats(stderr);
  else if (options->report == OPTIONS_REPORT_LEAKS)
    pools_tell_leaks(stderr);
}

/* From here on the driver may be gone: the reaper must not begin to call it.  What it has begun is not waited for: that
 * may wait for a kernel, and an exit must not. */
__attribute__((destructor)) static void end_of_process(void) {
  NOT_CANCELLED;
  reaper_end();
  record_end();
  if (getpid() == loaded_by)
    report_at_exit();
}

/* ---- The paper's five ---- */

cudaError_t MAM_Create(size_t maxSize) {
  if (maxSize == 0)
    return error_set(cudaErrorInvalidValue, "MAM_Create: maxSize is 0");
  return environment_create(maxSize, "MAM_Create");
}

cudaError_t MAM_Create_auto(void) { return environment_create(0, "MAM_Create_auto"); }

cudaError_t MAM_CreateWith(size_t maxSize, const char *source, const char *limit) {
  return environment_create_with(maxSize, source, limit, "MAM_CreateWith");
}

cudaError_t MAM_Destroy(void) {
  NOT_CANCELLED;
  uint64_t id = 0;
  cudaError_t error = cudaSuccess;
  (void)environment_id_now(&id); /* before the lock: it may load the driver */
  environment_enter();
  pool_abandon_gone();
  struct mam_pool *pool = id != 0 ? pool_find_default(id) : NULL;
  if (pool != NULL)
    error = environment_end_locked(pool, id, false);
  environment_await_locked(id); /* the end has come when this returns, whichever thread asked for it */
  environment_exit();
  return error;
}

/* Size 0 is a success where anything could be allocated. */
static cudaError_t malloc_nothing(void) {
  NOT_CANCELLED;
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

/* From the calling thread's environment, created if need be.  request->default_id: its id, 0 if that is not known. */
static cudaError_t environment_malloc(struct front_request *request, uintptr_t *address) {
  NOT_CANCELLED;
  uint64_t created;
  cudaError_t error;
  for (;;) {
    error = environment_get(&request->pool, &request->default_id, &created);
    if (error == cudaSuccess)
      error = front_malloc(request, address);
    if (error != cudaErrorInvalidResourceHandle)
      break;
    request->default_id = environment_id_quick(); /* the environment ended between being found and being asked */
  }
  environment_after_malloc(request, created, error);
  return error;
}

cudaError_t api_malloc(uint64_t id, bool tried, size_t size, const void *site, const void *tag, uintptr_t *address) {
  struct front_request request = {.default_id = id, .size = size, .site = site, .tag = tag, .tried = tried};
  cudaError_t error = id != 0 ? front_malloc(&request, address) : cudaErrorInvalidResourceHandle;
  request.tried = false;
  if (error == cudaErrorInvalidResourceHandle) /* the thread's last front is not of that environment */
    return environment_malloc(&request, address);
  reaper_look_grown();
  return error;
}

/* What is rare about MAM_CudaMalloc.  The thread's last front had nothing at hand.  Its id is asked for again: to keep
 * it would cost the quick way more. */
static __attribute__((noinline)) cudaError_t malloc_slow(void **ptr, size_t size, const void *site) {
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMalloc: ptr is NULL");
  if (record_on() && (address = front_record_malloc(size, site, environment_id_kept())) != 0) {
    *ptr = (void *)address;
    return cudaSuccess;
  }
  do {
    uint64_t id = environment_id_quick();
    error = size == 0 ? malloc_nothing() : api_malloc(id, id != 0 && attempts == 0, size, site, NULL, &address);
  } while (last_word_again(error, NULL, size, &attempts));
  *ptr = (void *)address;
  return error;
}

cudaError_t MAM_CudaMalloc(void **ptr, size_t size) {
  if (ptr == NULL)
    return malloc_slow(ptr, size, __builtin_return_address(0));
  uintptr_t address = front_malloc_quick(front_at_hand, size, __builtin_return_address(0), environment_id_quick());
  if (__builtin_expect(address == 0, false))
    return malloc_slow(ptr, size, __builtin_return_address(0));
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t MAM_CudaMallocTagged(void **ptr, size_t size, const void *tag) {
  const void *site = __builtin_return_address(0);
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocTagged: ptr is NULL");
  uint64_t id = environment_id_quick();
  if (size <= SLAB_BLOCK_MOST_BYTES) /* mostly of a slab, whatever its tag */
    address = front_malloc_quick(front_at_hand, size, site, id);
  if (address != 0)
    error = cudaSuccess;
  else
    do
      error = size == 0 ? malloc_nothing() : api_malloc(id, false, size, site, tag, &address);
    while (last_word_again(error, NULL, size, &attempts));
  *ptr = (void *)address;
  return error;
}

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

static cudaError_t free_slow(uintptr_t address, enum front_freed freed) {
  NOT_CANCELLED;
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

cudaError_t MAM_CudaFree(void *ptr) {
  if (ptr == NULL)
    return cudaSuccess;
  enum front_freed freed = front_free_quick(front_at_hand, (uintptr_t)ptr);
  return __builtin_expect(freed == FRONT_FREED, true) ? cudaSuccess : api_free((uintptr_t)ptr, freed);
}

/* ---- Pools as objects ---- */

static cudaError_t refuse_option(const char *what) {
  return error_set(cudaErrorInvalidValue, "MAM_PoolCreate: %s", what);
}

/* The caller's options over the defaults.  A later version's struct is longer; what it has beyond is not known here. */
static cudaError_t options_resolve(const MAM_PoolOptions *given, MAM_PoolOptions *options) {
  *options = (MAM_PoolOptions)MAM_POOL_OPTIONS_INIT;
  if (given != NULL) {
    if (given->struct_size < sizeof(MAM_PoolOptions))
      return refuse_option("struct_size is less than sizeof(MAM_PoolOptions)");
    memcpy(options, given, sizeof *options);
  }
  if (options->alignment == 0)
    options->alignment = POOL_ALIGNMENT_BYTES;
  return cudaSuccess;
}

static cudaError_t options_check(const MAM_PoolOptions *options) {
  size_t alignment = options->alignment;
  if (options->source < MAM_SOURCE_DEVICE || options->source > MAM_SOURCE_VMM)
    return refuse_option("source is not a value of MAM_Source");
  if (options->reuse < MAM_REUSE_FENCED || options->reuse > MAM_REUSE_STREAM)
    return refuse_option("reuse is not a value of MAM_Reuse");
  if (options->device < -1)
    return refuse_option("device is neither the ordinal of a device nor -1");
  if (alignment < POOL_ALIGNMENT_LEAST_BYTES || alignment > POOL_ALIGNMENT_MOST_BYTES ||
      (alignment & (alignment - 1)) != 0)
    return refuse_option("alignment is not a power of two from 16 to 2 MiB");
  if (options->limit_bytes > 0 && options->limit_bytes < options->chunk_bytes)
    return refuse_option("limit_bytes is smaller than chunk_bytes");
  return cudaSuccess;
}

cudaError_t MAM_PoolCreate(MAM_Pool *pool, const MAM_PoolOptions *given) {
  NOT_CANCELLED;
  MAM_PoolOptions options;
  struct source source;
  const struct options *defaults;
  if (pool == NULL)
    return refuse_option("pool is NULL");
  cudaError_t error = options_resolve(given, &options);
  if (error == cudaSuccess)
    error = options_check(&options);
  if (error == cudaSuccess)
    error = environment_options(&defaults);
  if (error != cudaSuccess)
    return error;
  environment_set_up();
  error = source_open(options.source, options.context, options.device, &source);
  if (error != cudaSuccess)
    return error;
  struct pool_config config = {.reuse = options.reuse,
                               .alignment = options.alignment,
                               .elastic = options.source == MAM_SOURCE_HOST && options.chunk_bytes == 0,
                               .chunk_bytes = options.chunk_bytes,
                               .headroom_bytes = defaults->headroom_bytes,
                               .limit_bytes = options.limit_bytes,
                               .waiting_limit_bytes = options.waiting_limit_bytes,
                               .no_slabs = defaults->report == OPTIONS_REPORT_LEAKS,
                               .front = &front_operations};
  error = pool_open(&config, &source, pool);
  if (error != cudaSuccess)
    source_close(&source);
  return error;
}

static cudaError_t refuse_handle(const char *who) {
  return error_set(cudaErrorInvalidResourceHandle, "%s: no such pool", who);
}

cudaError_t MAM_PoolDestroy(MAM_Pool pool) {
  NOT_CANCELLED;
  if (pool == NULL)
    return cudaSuccess;
  cudaError_t error = pool_is_known(pool) ? pool_close(pool, 0) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolDestroy") : error;
}

cudaError_t MAM_PoolDefault(MAM_Pool *pool) {
  NOT_CANCELLED;
  struct mam_pool *found;
  uint64_t id = environment_id_quick(), created;
  if (pool == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolDefault: pool is NULL");
  cudaError_t error = environment_get(&found, &id, &created);
  if (error == cudaSuccess)
    *pool = found;
  return error;
}

/* From a pool of choice; who is the function's name. */
static cudaError_t pool_malloc_by(const char *who, MAM_Pool pool, struct front_request *request, void **ptr) {
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "%s: ptr is NULL", who);
  request->pool = pool;
  request->default_id = POOL_ANY_ID;
  do
    error = !pool_is_known(pool) ? cudaErrorInvalidResourceHandle
            : request->size == 0 ? pool_usable(pool)
                                 : front_malloc(request, &address);
  while (last_word_again(error, pool, request->size, &attempts));
  *ptr = (void *)address;
  if (error == cudaSuccess && pool_to_be_watched(pool))
    reaper_watch(pool);
  reaper_look_grown();
  return error == cudaErrorInvalidResourceHandle ? refuse_handle(who) : error;
}

cudaError_t MAM_PoolMalloc(MAM_Pool pool, void **ptr, size_t size) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0)};
  return pool_malloc_by("MAM_PoolMalloc", pool, &request, ptr);
}

cudaError_t MAM_PoolMallocTagged(MAM_Pool pool, void **ptr, size_t size, const void *tag) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0), .tag = tag};
  return pool_malloc_by("MAM_PoolMallocTagged", pool, &request, ptr);
}

/* ---- By another rule, on a stream ---- */

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
  if (error == cudaSuccess && captured)
    reuse_notice_capture(pool->reuse, (CUstream)handle);
  pool_exit(pool);
  return error;
}

/* The pool's, or the default one's. */
static cudaError_t stream_malloc(struct front_request *request, cudaStream_t handle, uintptr_t *address) {
  struct front_stream stream = {.handle = (CUstream)handle};
  bool entered;
  cudaError_t error = stream_name(handle, request->pool, request->default_id, &stream.name, &entered);
  request->stream = &stream;
  if (error == cudaSuccess)
    error = front_malloc(request, address);
  request->stream = NULL;
  return error;
}

/* What the thread has at hand for a stream, whether calls are recorded or not; 0 if nothing. */
static inline uintptr_t malloc_on_quick(struct mam_pool *pool, uint64_t id, size_t size, const void *site,
                                        cudaStream_t stream) {
  uintptr_t address = front_malloc_on_quick(front_at_hand, pool, id, size, site, (CUstream)stream);
  return __builtin_expect(address == 0, false) && record_on()
             ? front_record_malloc_on(pool, id, size, site, (CUstream)stream)
             : address;
}

cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream) {
  NOT_CANCELLED;
  struct front_request request = {
      .pool = pool, .default_id = POOL_ANY_ID, .size = size, .site = __builtin_return_address(0)};
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolMallocAsync: ptr is NULL");
  if (pool_is_known(pool))
    address = malloc_on_quick(pool, POOL_ANY_ID, size, request.site, stream);
  if (address != 0)
    error = cudaSuccess;
  else
    do
      error = !pool_is_known(pool) ? cudaErrorInvalidResourceHandle
              : size == 0          ? pool_usable(pool)
                                   : stream_malloc(&request, stream, &address);
    while (last_word_again(error, pool, size, &attempts));
  *ptr = (void *)address;
  reaper_look_grown();
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolMallocAsync") : error;
}

/* environment_malloc on a stream. */
static cudaError_t environment_malloc_stream(struct front_request *request, cudaStream_t stream, uintptr_t *address) {
  NOT_CANCELLED;
  uint64_t created;
  cudaError_t error;
  do {
    request->default_id = environment_id_quick();
    error = environment_get(&request->pool, &request->default_id, &created);
    if (error == cudaSuccess)
      error = stream_malloc(request, stream, address);
  } while (error == cudaErrorInvalidResourceHandle);
  environment_after_malloc(request, created, error);
  return error;
}

cudaError_t MAM_CudaMallocAsync(void **ptr, size_t size, cudaStream_t stream) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0)};
  uintptr_t address = 0;
  unsigned attempts = 0;
  cudaError_t error;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocAsync: ptr is NULL");
  address = malloc_on_quick(NULL, environment_id_quick(), size, request.site, stream);
  if (address != 0)
    error = cudaSuccess;
  else
    do
      error = size == 0 ? malloc_nothing() : environment_malloc_stream(&request, stream, &address);
    while (last_word_again(error, NULL, size, &attempts));
  *ptr = (void *)address;
  return error;
}

static cudaError_t free_by_rule(void *ptr, MAM_Reuse reuse, cudaStream_t handle) {
  NOT_CANCELLED;
  struct pool_emptied emptied = {0};
  struct front_stream stream = {.handle = (CUstream)handle};
  bool entered = true;
  cudaError_t error = cudaSuccess;
  struct mam_pool *pool = front_pool_of((uintptr_t)ptr);
  if (pool == NULL)
    return pool_refuse_free((uintptr_t)ptr, false);
  if (reuse == MAM_REUSE_STREAM)
    error = stream_name(handle, pool, POOL_ANY_ID, &stream.name, &entered);
  if (!entered)
    return MAM_CudaFree(ptr); /* which knows what to answer */
  if (error == cudaSuccess)
    error = reuse == MAM_REUSE_STREAM ? front_free_on((uintptr_t)ptr, &stream, &emptied)
                                      : front_free_reuse((uintptr_t)ptr, reuse, &emptied);
  return free_finish(error, &emptied);
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
  return freed == FRONT_FREED_ZERO ? api_free((uintptr_t)ptr, freed) : free_by_rule(ptr, MAM_REUSE_STREAM, stream);
}

cudaError_t MAM_CudaFreeReuse(void *ptr, MAM_Reuse reuse) {
  if (reuse < MAM_REUSE_FENCED || reuse > MAM_REUSE_STREAM)
    return error_set(cudaErrorInvalidValue, "MAM_CudaFreeReuse: reuse is not a value of MAM_Reuse");
  return ptr == NULL ? cudaSuccess : free_by_rule(ptr, reuse, NULL);
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
  NOT_CANCELLED;
  struct reuse *reuse;
  cudaError_t error = reuse_current(&reuse);
  if (error == cudaSuccess)
    reuse_capture_begin(reuse); /* a user until the end */
  return error;
}

cudaError_t MAM_CaptureEnd(void) {
  NOT_CANCELLED;
  struct reuse *reuse;
  cudaError_t error = reuse_current(&reuse);
  if (error != cudaSuccess)
    return error;
  bool begun = reuse_capture_end(reuse);
  if (begun) {
    (void)reuse_reach(reuse, reuse_epoch(reuse)); /* what was freed meanwhile; no fence if other brackets are open */
    reuse_close(reuse);                           /* the beginning's use */
  }
  reuse_close(reuse);
  return begun ? cudaSuccess : error_set(cudaErrorInvalidValue, "MAM_CaptureEnd: no capture has begun in this context");
}

/* The pool that a question is about, and by which id: the given one, or the default one if NULL, which is not created
 * for it. */
static struct mam_pool *pool_asked(MAM_Pool pool, uint64_t *id) {
  if (pool == NULL)
    return environment_pool_now(id);
  *id = POOL_ANY_ID;
  return pool_is_known(pool) ? pool : NULL;
}

/* ---- Giving back ---- */

cudaError_t MAM_Trim(size_t keep_bytes) {
  NOT_CANCELLED;
  uint64_t id;
  struct mam_pool *pool = pool_asked(NULL, &id);
  cudaError_t error = pool != NULL ? pool_trim(pool, id, keep_bytes) : cudaSuccess;
  return error == cudaErrorInvalidResourceHandle ? cudaSuccess : error; /* it has ended meanwhile */
}

cudaError_t MAM_PoolTrim(MAM_Pool pool, size_t keep_bytes) {
  NOT_CANCELLED;
  cudaError_t error = pool_is_known(pool) ? pool_trim(pool, POOL_ANY_ID, keep_bytes) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolTrim") : error;
}

/* ---- Seeing in ---- */

cudaError_t MAM_PoolGetInfo(MAM_Pool pool, MAM_PoolInfo *info) {
  NOT_CANCELLED;
  uint64_t id;
  MAM_PoolInfo now;
  if (info == NULL || info->struct_size < offsetof(MAM_PoolInfo, used_bytes))
    return error_set(cudaErrorInvalidValue, "MAM_PoolGetInfo: info is NULL or its struct_size is too small");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_info(pool, id, &now) : cudaErrorInvalidResourceHandle;
  if (error == cudaErrorInvalidResourceHandle)
    return refuse_handle("MAM_PoolGetInfo");
  if (error == cudaSuccess) {
    now.struct_size = info->struct_size;
    memcpy(info, &now, info->struct_size < sizeof now ? info->struct_size : sizeof now);
  }
  return error;
}

cudaError_t MAM_PoolResetPeaks(MAM_Pool pool) {
  NOT_CANCELLED;
  uint64_t id;
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_reset_peaks(pool, id) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolResetPeaks") : error;
}

cudaError_t MAM_PoolReport(MAM_Pool pool, char **json) {
  NOT_CANCELLED;
  uint64_t id;
  if (json == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolReport: json is NULL");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_report(pool, id, json) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolReport") : error;
}

cudaError_t MAM_PoolExplain(MAM_Pool pool, size_t size, char **text) {
  NOT_CANCELLED;
  uint64_t id;
  if (text == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolExplain: text is NULL");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_explain(pool, id, size, text) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolExplain") : error;
}

cudaError_t MAM_SetOutOfMemoryCallback(MAM_OutOfMemoryCallback callback, void *data) {
  last_word_set(callback, data);
  return cudaSuccess;
}

const char *MAM_LastError(void) { return error_last(); }
