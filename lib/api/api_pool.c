/* SPDX-License-Identifier: BSD-2-Clause */
/* The public functions of pools as objects, and those that look into a pool. */
#include <stddef.h>
#include <string.h>

#include "api/api_serve.h"
#include "api/environment.h"
#include "base/error.h"
#include "base/library_call.h"

/* ---- Pools as objects ---- */

static cudaError_t refuse_option(const char *what) {
  return error_set(cudaErrorInvalidValue, "MAM_PoolCreate: %s", what);
}

/* The caller's options over the defaults.  A later version's struct is longer; what it has beyond is not known here.
 * The first version's ended before keeps_memory. */
static cudaError_t options_resolve(const MAM_PoolOptions *given, MAM_PoolOptions *options) {
  *options = (MAM_PoolOptions)MAM_POOL_OPTIONS_INIT;
  if (given != NULL) {
    if (given->struct_size < offsetof(MAM_PoolOptions, keeps_memory))
      return refuse_option("struct_size is less than the structure ever had");
    memcpy(options, given, given->struct_size < sizeof *options ? given->struct_size : sizeof *options);
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
  if (options->device < -1 && options->source != MAM_SOURCE_HOST)
    return refuse_option("device is neither the ordinal of a device nor -1");
  if (alignment < POOL_ALIGNMENT_LEAST_BYTES || alignment > POOL_ALIGNMENT_MOST_BYTES ||
      (alignment & (alignment - 1)) != 0)
    return refuse_option("alignment is not a power of two from 16 to 2 MiB");
  if (options->limit_bytes > 0 && options->limit_bytes < options->chunk_bytes)
    return refuse_option("limit_bytes is smaller than chunk_bytes");
  return cudaSuccess;
}

cudaError_t MAM_PoolCreate(MAM_Pool *pool, const MAM_PoolOptions *given) {
  LIBRARY_CALL;
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
                               .keeps = options.keeps_memory != 0,
                               .no_slabs = defaults->report == OPTIONS_REPORT_LEAKS,
                               .front = &front_operations};
  error = pool_open(&config, &source, pool);
  if (error != cudaSuccess)
    source_close(&source);
  return error;
}

cudaError_t MAM_PoolDestroy(MAM_Pool pool) {
  LIBRARY_CALL;
  if (pool == NULL)
    return cudaSuccess;
  cudaError_t error = pool_is_known(pool) ? pool_close(pool, 0) : cudaErrorInvalidResourceHandle;
  front_trim();
  return error == cudaErrorInvalidResourceHandle
             ? error_set(error, "MAM_PoolDestroy: no such pool, or a default pool, which MAM_Destroy ends")
             : error;
}

cudaError_t MAM_PoolDefault(MAM_Pool *pool) {
  LIBRARY_CALL;
  struct mam_pool *found;
  uint64_t id = environment_id_quick(), created;
  if (pool == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolDefault: pool is NULL");
  cudaError_t error = environment_get(&found, &id, &created);
  if (error == cudaSuccess)
    *pool = found;
  return error;
}

cudaError_t MAM_PoolMalloc(MAM_Pool pool, void **ptr, size_t size) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0)};
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolMalloc: ptr is NULL");
  return api_pool_malloc("MAM_PoolMalloc", pool, &request, ptr);
}

cudaError_t MAM_PoolMallocTagged(MAM_Pool pool, void **ptr, size_t size, const void *tag) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0), .tag = tag};
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolMallocTagged: ptr is NULL");
  return api_pool_malloc("MAM_PoolMallocTagged", pool, &request, ptr);
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
  LIBRARY_CALL;
  uint64_t id;
  struct mam_pool *pool = pool_asked(NULL, &id);
  cudaError_t error = pool != NULL ? pool_trim(pool, id, keep_bytes, true) : cudaSuccess;
  return error == cudaErrorInvalidResourceHandle ? cudaSuccess : error; /* it has ended meanwhile */
}

cudaError_t MAM_PoolTrim(MAM_Pool pool, size_t keep_bytes) {
  LIBRARY_CALL;
  cudaError_t error =
      pool_is_known(pool) ? pool_trim(pool, POOL_ANY_ID, keep_bytes, true) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? api_refuse_handle("MAM_PoolTrim") : error;
}

/* ---- Seeing in ---- */

cudaError_t MAM_PoolGetInfo(MAM_Pool pool, MAM_PoolInfo *info) {
  LIBRARY_CALL;
  uint64_t id;
  MAM_PoolInfo now;
  if (info == NULL || info->struct_size < offsetof(MAM_PoolInfo, used_bytes))
    return error_set(cudaErrorInvalidValue, "MAM_PoolGetInfo: info is NULL or its struct_size is too small");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_info(pool, id, &now) : cudaErrorInvalidResourceHandle;
  if (error == cudaErrorInvalidResourceHandle)
    return api_refuse_handle("MAM_PoolGetInfo");
  if (error == cudaSuccess) {
    now.struct_size = info->struct_size;
    memcpy(info, &now, info->struct_size < sizeof now ? info->struct_size : sizeof now);
  }
  return error;
}

cudaError_t MAM_PoolResetPeaks(MAM_Pool pool) {
  LIBRARY_CALL;
  uint64_t id;
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_reset_peaks(pool, id) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? api_refuse_handle("MAM_PoolResetPeaks") : error;
}

cudaError_t MAM_PoolReport(MAM_Pool pool, char **json) {
  LIBRARY_CALL;
  uint64_t id;
  if (json == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolReport: json is NULL");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_report(pool, id, json) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? api_refuse_handle("MAM_PoolReport") : error;
}

cudaError_t MAM_PoolExplain(MAM_Pool pool, size_t size, char **text) {
  LIBRARY_CALL;
  uint64_t id;
  if (text == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolExplain: text is NULL");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_explain(pool, id, size, text) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? api_refuse_handle("MAM_PoolExplain") : error;
}
