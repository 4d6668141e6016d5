/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Creating an environment.
 *
 *   environment_plan           without the lock: the options, the source, the sizes and limits
 *   environment_create_locked  ends what is in the way, opens the pool, says how long it may linger
 */
#include <stdlib.h>

#include "api/environment.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/library_call.h"
#include "base/locked.h"
#include "front/front.h"

/* A watched pool stays for at least so many times what its chunk cost to take: at most 5 % of the time goes there. */
enum { LINGER_CREATIONS = 20 };

/* Whether a lazy environment was created for the id before; remembers that one is now.  Without host memory to remember
 * it by, the next one ends as the first does. */
static bool lazy_before_locked(uint64_t id) {
  lock_held(&environment_lock);
  static struct lazy {
    uint64_t id;
    struct lazy *next;
  } * known;
  struct lazy *lazy = known;
  while (lazy != NULL && lazy->id != id)
    lazy = lazy->next;
  if (lazy != NULL)
    return true;
  lazy = malloc(sizeof *lazy);
  if (lazy != NULL) {
    *lazy = (struct lazy){.id = id, .next = known};
    known = lazy;
  }
  return false;
}

static int64_t linger_for(const struct options *options, uint64_t id, int64_t creation_ns) {
  if (!lazy_before_locked(id) || options->linger_ms == 0)
    return 0;
  int64_t least_ns = (int64_t)options->linger_ms * 1000000, cost_ns = LINGER_CREATIONS * creation_ns;
  return cost_ns > least_ns ? cost_ns : least_ns;
}

/* How an environment takes its memory. */
enum environment_way {
  WAY_WHOLE,     /* one chunk */
  WAY_PIECES,    /* mapped as it is needed, or whatever the source that was named does */
  WAY_CHUNKS,    /* cuMemAlloc, chunk by chunk as it is needed */
  WAY_OF_CLIENT, /* the same, as a client wants it */
};

/* What an environment takes from the driver at a time, at least. */
static const size_t environment_chunk_bytes = (size_t)64 << 20;

/* An environment of no size from no source in particular.  Where another device can reach the memory of this one,
 * programs expect of a block what cudaMalloc's are to peers, to other processes and to the libraries that talk to them:
 * chunks of cuMemAlloc.  Elsewhere memory that is mapped as it is needed, if the driver can; else one chunk. */
static cudaError_t environment_source_choose(struct source *source, enum environment_way *way) {
  cudaError_t error = source_open(MAM_SOURCE_VMM, NULL, -1, source);
  *way = error == cudaErrorNotSupported ? WAY_WHOLE : WAY_PIECES;
  if (error == cudaSuccess && source->peer_count > 0) {
    source_close(source);
    *way = WAY_CHUNKS;
  }
  return *way == WAY_PIECES ? error : source_open(MAM_SOURCE_DEVICE, NULL, -1, source);
}

/* The source of an environment, and how it takes memory.  With a size, by itself, it is the paper's one chunk. */
static cudaError_t environment_source(const struct options *options, size_t bytes, struct source *source,
                                      enum environment_way *way) {
  bool in_chunks =
      bytes == 0 && (options->source_in_chunks || (options->source_is_auto && environment_client_chunk_bytes() > 0));
  if (bytes == 0 && options->source_is_auto && !in_chunks)
    return environment_source_choose(source, way);
  *way = in_chunks && environment_client_chunk_bytes() > 0 ? WAY_OF_CLIENT : in_chunks ? WAY_CHUNKS : WAY_PIECES;
  return source_open(options->source, NULL, -1, source);
}

/* An elastic environment has a limit rather than a chunk. */
static void environment_size(const struct source *source, size_t bytes, struct pool_config *config) {
  config->elastic = source->operations == &source_vmm || (source->operations == &source_host && bytes == 0);
  *(config->elastic ? &config->limit_bytes : &config->chunk_bytes) = bytes;
}

/* Further chunks are taken as it grows: a client's environment to all that the device has, another one to what is left
 * beside the headroom. */
static cudaError_t environment_size_in_chunks(const struct source *source, enum environment_way way,
                                              struct pool_config *config) {
  size_t total_bytes = 0;
  cudaError_t error = source->operations->total(source, &total_bytes);
  if (error != cudaSuccess)
    return error;
  size_t headroom_bytes = config->headroom_bytes < total_bytes / 2 ? config->headroom_bytes : total_bytes / 2;
  bool client = way == WAY_OF_CLIENT;
  config->chunk_bytes = client ? environment_client_chunk_bytes() +
                                     SOURCE_GRANULARITY_BYTES /* so that the guard costs no block its place */
                               : environment_chunk_bytes;
  config->limit_bytes = client ? total_bytes : total_bytes - headroom_bytes;
  config->lazy = config->lazy && !client;
  config->in_chunks = !client;
  config->gives_all = true; /* so that a program may have all memory in one block, as from the driver */
  config->guarded = client; /* a block may come to the driver's own free */
  config->yields = client;  /* as the driver's own frees do */
  return cudaSuccess;
}

/* What the user allows the default pool of the source, in whole units of it. */
static cudaError_t environment_limit(const struct options *options, const struct source *source, size_t *limit_bytes) {
  size_t total_bytes = 0;
  *limit_bytes = options->limit_bytes;
  if (options->limit_bytes == 0) {
    cudaError_t error = source->operations->total(source, &total_bytes);
    if (error != cudaSuccess)
      return error;
    *limit_bytes = total_bytes / 100 * options->limit_percent + total_bytes % 100 * options->limit_percent / 100;
  }
  *limit_bytes -= *limit_bytes % SOURCE_GRANULARITY_BYTES;
  return *limit_bytes > 0 ? cudaSuccess
                          : error_set(cudaErrorMemoryAllocation, "%s leaves the default pool less than 2 MiB",
                                      options_limit_name(options));
}

/* Lowers what an environment may hold to that.  A size that was asked for is served or refused as a whole. */
static cudaError_t environment_restrict(const struct options *options, const struct source *source,
                                        struct pool_config *config) {
  size_t limit_bytes;
  if (options->limit_bytes == 0 && options->limit_percent == 100)
    return cudaSuccess;
  cudaError_t error = environment_limit(options, source, &limit_bytes);
  if (error != cudaSuccess)
    return error;
  size_t size = config->elastic                          ? config->limit_bytes
                : config->in_chunks || config->gives_all ? 0
                                                         : config->chunk_bytes;
  if (size > limit_bytes)
    return error_set(cudaErrorMemoryAllocation, "%s does not allow %zu bytes: it allows %zu",
                     options_limit_name(options), size, limit_bytes);
  config->user_limit_bytes = limit_bytes;
  return cudaSuccess;
}

/* What an environment is made of.  It is found out without the lock: the driver may have to be loaded for it, which
 * runs constructors of others, and a context may have to be made. */
struct plan {
  const struct options *options;
  bool lazy;
  struct source source;
  struct pool_config config;
};

/* bytes 0: all there are.  wanted NULL: what is published.  On failure there is nothing to close. */
static cudaError_t environment_plan(size_t bytes, bool lazy, const struct options *wanted, struct plan *plan) {
  enum environment_way way = WAY_WHOLE;
  cudaError_t error = wanted == NULL ? environment_options(&plan->options) : cudaSuccess;
  if (wanted != NULL)
    plan->options = wanted;
  plan->lazy = lazy;
  if (error == cudaSuccess)
    error = environment_source(plan->options, bytes, &plan->source, &way);
  if (error != cudaSuccess)
    return error;
  const struct options *options = plan->options;
  plan->config = (struct pool_config){.reuse = options->reuse,
                                      .alignment = POOL_ALIGNMENT_BYTES,
                                      .headroom_bytes = options->headroom_bytes,
                                      .default_id = options->source == MAM_SOURCE_HOST ? ENVIRONMENT_HOST_ID
                                                                                       : plan->source.context.id,
                                      .lazy = lazy,
                                      .no_slabs = options->report == OPTIONS_REPORT_LEAKS,
                                      .front = &front_operations};
  if (way == WAY_CHUNKS || way == WAY_OF_CLIENT)
    error = environment_size_in_chunks(&plan->source, way, &plan->config);
  else
    environment_size(&plan->source, bytes, &plan->config);
  if (error == cudaSuccess)
    error = environment_restrict(options, &plan->source, &plan->config);
  if (error != cudaSuccess)
    source_close(&plan->source);
  return error;
}

/* The lock is held, and left where another environment of the context ends.  If there is one already:
 * cudaErrorAlreadyAcquired, *pool is it.  The plan's source is used up in any case. */
static cudaError_t environment_create_locked(struct plan *plan, struct mam_pool **pool) {
  lock_held(&environment_lock);
  uint64_t id = plan->config.default_id;
  cudaError_t error = cudaSuccess;
  pool_abandon_gone();
  struct mam_pool *held = pool_find_default(id);
  if (held != NULL && !plan->lazy) /* if it lingers, it is wanted otherwise now */
    (void)environment_end_locked(held, id, true);
  environment_await_locked(id);
  held = pool_find_default(id);
  int64_t start_ns = now_ns(); /* after any wait for the GPU */
  if (held == NULL)
    error = pool_open(&plan->config, &plan->source, pool);
  if (held != NULL || error != cudaSuccess)
    source_close(&plan->source);
  if (held != NULL) {
    *pool = held;
    return cudaErrorAlreadyAcquired;
  }
  if (error == cudaSuccess) {
    int64_t linger_ns = plan->config.lazy ? linger_for(plan->options, id, now_ns() - start_ns) : 0;
    struct watch *watch = environment_watch_locked(*pool);
    if (watch != NULL) {
      watch->linger_ns = linger_ns;
      watch->linger_until_ns = 0;
    }
  }
  return error;
}

static cudaError_t create_as(size_t bytes, const struct options *wanted, const char *who) {
  struct mam_pool *pool;
  struct plan plan;
  cudaError_t error = environment_plan(bytes, false, wanted, &plan);
  if (error != cudaSuccess)
    return error;
  environment_enter();
  error = environment_create_locked(&plan, &pool);
  if (error == cudaSuccess && wanted != NULL)
    environment_options_publish_locked(wanted);
  environment_exit();
  if (error == cudaErrorAlreadyAcquired)
    return error_set(error, "%s: this context has an environment already", who);
  return error;
}

cudaError_t environment_create(size_t bytes, const char *who) {
  LIBRARY_CALL;
  return create_as(bytes, NULL, who);
}

cudaError_t environment_create_with(size_t bytes, const char *source, const char *limit, const char *who) {
  LIBRARY_CALL;
  struct options wanted;
  cudaError_t error = environment_options_with(source, limit, &wanted);
  return error == cudaSuccess ? create_as(bytes, &wanted, who) : error;
}

cudaError_t environment_get(struct mam_pool **pool, uint64_t *id, uint64_t *created) {
  struct plan plan;
  *created = 0;
  cudaError_t error = *id == 0 ? environment_id_now(id) : cudaSuccess;
  if (error != cudaSuccess)
    return error;
  *pool = *id != 0 ? pool_find_default(*id) : NULL;
  if (*pool != NULL)
    return cudaSuccess;
  error = environment_plan(0, true, NULL, &plan);
  if (error != cudaSuccess)
    return error;
  *id = plan.config.default_id;
  environment_enter();
  error = environment_create_locked(&plan, pool);
  if (error == cudaSuccess)
    *created = (*pool)->generation; /* constant: it cannot end while the lock is held */
  environment_exit();
  return error == cudaErrorAlreadyAcquired ? cudaSuccess : error;
}
