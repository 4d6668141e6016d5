/* SPDX-License-Identifier: BSD-2-Clause */
#include "api/environment.h"

#include <stdlib.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/locked.h"
#include "base/record.h"
#include "front/front.h"

/* The id of the one default pool on plain host memory; a context's is a small number or a handle. */
static const uint64_t HOST_DEFAULT_ID = UINT64_MAX - 1;

/* A watched pool stays for at least so many times what its chunk cost to take: at most 5 % of the time goes there. */
enum { LINGER_CREATIONS = 20 };

pthread_mutex_t environment_lock = PTHREAD_MUTEX_INITIALIZER;
struct environment_reaper environment_reaper;

static pthread_cond_t ending_changed; /* an environment has ended; with the lock */

/* ---- Fork, and what is set up once ---- */

/* The environments that are ending, by id: their pools are no longer found. */
static struct ending {
  uint64_t id;
  struct ending *next;
} * endings;

static void conditions_set_up(void) {
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&environment_reaper.wakes, &attributes);
  (void)pthread_cond_init(&ending_changed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

/* The child has no reaper. */
static void watches_forget(void) {
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next)
    if (pool->watch != NULL)
      pool->watch->linger_until_ns = pool->watch->calm_until_ns = 0;
}

static void before_fork(void) {
  pthread_mutex_lock(&environment_lock);
  pool_before_fork();
  record_before_fork(); /* last: a thread may record under any lock */
}

static void after_fork_in_parent(void) {
  record_after_fork(false);
  pool_after_fork(false);
  pthread_mutex_unlock(&environment_lock);
}

static void after_fork_in_child(void) {
  record_after_fork(true);
  environment_reaper.runs = false;
  watches_forget();
  endings = NULL; /* they were other threads' */
  conditions_set_up();
  pool_after_fork(true);
  pthread_mutex_unlock(&environment_lock);
}

static void set_up(void) {
  record_set_up();
  conditions_set_up();
  front_set_up();
  (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* When the library is loaded, while there is mostly one thread: the kernel then registers a process for its barrier at
 * once, and no fork can fall into the middle of it.  A program's own constructor may call before this one. */
__attribute__((constructor)) void environment_set_up(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, set_up);
}

void environment_enter(void) {
  environment_set_up();
  pthread_mutex_lock(&environment_lock);
}

void environment_exit(void) { pthread_mutex_unlock(&environment_lock); }

/* ---- Options, a client's chunks, watches ---- */

/* What default pools are made by.  Former ones stay: another thread may still read them. */
struct published {
  struct options options;
  struct published *former;
};
static _Atomic(struct published *) published;

static cudaError_t published_new(const struct options *options, struct published *former, struct published **made) {
  *made = malloc(sizeof **made);
  if (*made == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for the options");
  **made = (struct published){*options, former};
  return cudaSuccess;
}

/* No lock, which a fork could leave taken: of several threads that get here, the first to publish wins. */
static cudaError_t options_publish_first(const struct options *first, const struct options **options) {
  struct published *known = NULL, *mine;
  cudaError_t error = published_new(first, NULL, &mine);
  if (error != cudaSuccess)
    return error;
  /* release: publishes the options; acquire on failure: reads the winner's.  Pairs with the loads of published. */
  if (!atomic_compare_exchange_strong_explicit(&published, &known, mine, memory_order_acq_rel, memory_order_acquire))
    free(mine);
  *options = known != NULL ? &known->options : &mine->options;
  return cudaSuccess;
}

cudaError_t environment_options(const struct options **options) {
  struct options mine;
  /* acquire: the options; pairs with the release of whoever published them */
  struct published *known = atomic_load_explicit(&published, memory_order_acquire);
  if (known != NULL) {
    *options = &known->options;
    return cudaSuccess;
  }
  *options = NULL;
  cudaError_t error = options_read(&mine);
  return error == cudaSuccess ? options_publish_first(&mine, options) : error;
}

/* The options with a source and a limit of the caller's in place of theirs.  Whether the default pool is in plain host
 * memory is settled by what is published first, and stays: every call that means a default pool has to find the same.
 */
static cudaError_t options_with(const char *source, const char *limit, struct options *wanted) {
  const struct options *held = NULL;
  struct options before;
  /* acquire: as in environment_options */
  struct published *known = atomic_load_explicit(&published, memory_order_acquire);
  cudaError_t error = cudaSuccess;
  if (known != NULL)
    before = known->options;
  else
    error = options_read(&before);
  if (error != cudaSuccess)
    return error;
  *wanted = before;
  error = options_change(wanted, source, limit);
  if (error != cudaSuccess)
    return error;
  bool settles = (before.source == MAM_SOURCE_HOST) != (wanted->source == MAM_SOURCE_HOST);
  error = known == NULL ? options_publish_first(settles ? wanted : &before, &held) : environment_options(&held);
  if (error == cudaSuccess && (held->source == MAM_SOURCE_HOST) != (wanted->source == MAM_SOURCE_HOST))
    return error_set(cudaErrorNotSupported,
                     held->source == MAM_SOURCE_HOST
                         ? "the default pool of this process is in plain host memory, which its first use settled"
                         : "the default pool of this process is not in plain host memory, which its first use settled: "
                           "set MAM_SOURCE=host in the environment");
  return error;
}

/* From now on default pools are made by these.  The lock orders the threads that publish. */
static void options_publish_locked(const struct options *wanted) {
  lock_held(&environment_lock);
  /* relaxed: published by this lock's holders, or by the thread that found none before */
  struct published *former = atomic_load_explicit(&published, memory_order_relaxed), *mine;
  const struct options *held = &former->options;
  if (held->source == wanted->source && held->source_is_auto == wanted->source_is_auto &&
      held->source_in_chunks == wanted->source_in_chunks && held->limit_bytes == wanted->limit_bytes &&
      held->limit_percent == wanted->limit_percent && held->limit_is_given == wanted->limit_is_given)
    return;
  if (published_new(wanted, former, &mine) == cudaSuccess)
    atomic_store_explicit(&published, mine, memory_order_release); /* pairs with the loads of published */
}

/* relaxed: a number for itself, set before the first allocation of the client that sets it */
static _Atomic size_t client_chunk_bytes_set;

void environment_client_chunks_set(size_t chunk_bytes) {
  atomic_store_explicit(&client_chunk_bytes_set, chunk_bytes, memory_order_relaxed);
}

size_t environment_client_chunk_bytes(void) {
  return atomic_load_explicit(&client_chunk_bytes_set, memory_order_relaxed);
}

struct watch *environment_watch_locked(struct mam_pool *pool) {
  lock_held(&environment_lock);
  if (pool->watch == NULL)
    pool->watch = calloc(1, sizeof *pool->watch);
  return pool->watch;
}

/* ---- Which default pool a call means ---- */

static CUresult ask_nobody(CUcontext current, unsigned long long *id) {
  (void)current, (void)id;
  return CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult ask_host(CUcontext current, unsigned long long *id) {
  (void)current;
  *id = HOST_DEFAULT_ID;
  return CUDA_SUCCESS;
}

/* A driver before CUDA 12.0 has no ids; see context.h. */
static CUresult ask_handle(CUcontext current, unsigned long long *id) {
  CUresult result = driver_known()->cuCtxGetCurrent(&current);
  *id = (uintptr_t)current;
  return result;
}

_Atomic(environment_ask *) environment_asked = ask_nobody;

/* How a process asks that makes a record, which needs the answer twice.
 *
 * What a thread has kept is good for the record in which it was kept, and no other: a call that finds a record on and
 * an id of that record asked, in this call or before, when ids were kept already, so its own question was kept, too. */
static environment_ask *_Atomic asked_for_record = ask_nobody;
static _Atomic bool ids_are_kept;
static __thread __attribute__((tls_model("initial-exec"))) uint64_t id_kept, id_kept_generation;

static CUresult ask_and_keep(CUcontext current, unsigned long long *id) {
  /* acquire, both: the driver, and the generation before the id; pair with the releases in ask_from_now_on and
   * record_begin_cut */
  CUresult result = atomic_load_explicit(&asked_for_record, memory_order_acquire)(current, id);
  id_kept_generation = atomic_load_explicit(&record_generation, memory_order_acquire);
  id_kept = result == CUDA_SUCCESS ? *id : 0;
  return result;
}

uint64_t environment_id_kept(void) {
  /* acquire: as in ask_and_keep */
  return id_kept_generation == atomic_load_explicit(&record_generation, memory_order_acquire) ? id_kept : 0;
}

/* If ids come to be kept meanwhile, the exchange fails here, or that one's in environment_ids_keep does: it goes by
 * what stands in environment_asked after its own store. */
static void ask_from_now_on(environment_ask *ask) {
  /* acquire: pairs with the release of whoever stored it */
  environment_ask *before = atomic_load_explicit(&environment_asked, memory_order_acquire), *next;
  do {
    next = ask;
    if (record_on() || atomic_load_explicit(&ids_are_kept, memory_order_seq_cst)) {
      atomic_store_explicit(&asked_for_record, ask, memory_order_release); /* pairs with ask_and_keep's acquire */
      next = ask_and_keep;
    }
    /* seq_cst: after the load of ids_are_kept, for environment_ids_keep; the release in it pairs with the acquire in
     * environment_id_quick */
  } while (before != next && !atomic_compare_exchange_weak_explicit(&environment_asked, &before, next,
                                                                    memory_order_seq_cst, memory_order_acquire));
}

void environment_ids_keep(void) {
  atomic_store_explicit(&ids_are_kept, true, memory_order_seq_cst); /* see ask_from_now_on */
  environment_ask *before = atomic_load_explicit(&environment_asked, memory_order_seq_cst);
  while (before != ask_and_keep) {
    atomic_store_explicit(&asked_for_record, before, memory_order_release); /* pairs with ask_and_keep's acquire */
    if (atomic_compare_exchange_weak_explicit(&environment_asked, &before, ask_and_keep, memory_order_seq_cst,
                                              memory_order_seq_cst))
      break;
  }
}

void environment_ids_pass(void) {
  environment_ask *before = ask_and_keep;
  atomic_store_explicit(&ids_are_kept, false, memory_order_seq_cst);
  environment_ask *ask = atomic_load_explicit(&asked_for_record, memory_order_acquire); /* as in ask_and_keep */
  /* If another thread has stored a function of its own, that stays. */
  (void)atomic_compare_exchange_strong_explicit(&environment_asked, &before, ask, memory_order_seq_cst,
                                                memory_order_relaxed);
}

cudaError_t environment_id_now(uint64_t *id) {
  const struct options *options;
  const struct driver *driver;
  cudaError_t error = environment_options(&options);
  if (error != cudaSuccess)
    return error;
  if (options->source == MAM_SOURCE_HOST) {
    *id = HOST_DEFAULT_ID;
    ask_from_now_on(ask_host);
    return cudaSuccess;
  }
  error = driver_get(&driver);
  if (error != cudaSuccess)
    return error;
  *id = context_current_id(driver);
  ask_from_now_on(driver->cuCtxGetId != NULL ? driver->cuCtxGetId : ask_handle);
  return cudaSuccess;
}

struct mam_pool *environment_pool_now(uint64_t *id) {
  if (environment_id_now(id) != cudaSuccess || *id == 0)
    return NULL;
  return pool_find_default(*id);
}

/* ---- Ending an environment ---- */

cudaError_t environment_end_locked(struct mam_pool *pool, uint64_t id, bool only_if_empty) {
  lock_held(&environment_lock);
  struct ending ending = {.id = id, .next = endings}, **link = &endings;
  if (!front_retire(pool, id, only_if_empty))
    return cudaSuccess;
  endings = &ending;
  environment_exit();
  cudaError_t error = pool_finish(pool);
  environment_enter();
  while (*link != &ending)
    link = &(*link)->next;
  *link = ending.next;
  (void)pthread_cond_broadcast(&ending_changed);
  return error;
}

void environment_await_locked(uint64_t id) {
  lock_held(&environment_lock);
  const struct ending *ending = endings;
  while (ending != NULL) {
    if (ending->id == id) {
      (void)pthread_cond_wait(&ending_changed, &environment_lock);
      ending = endings;
    } else {
      ending = ending->next;
    }
  }
}

/* ---- Creating an environment ---- */

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
  plan->config =
      (struct pool_config){.reuse = options->reuse,
                           .alignment = POOL_ALIGNMENT_BYTES,
                           .headroom_bytes = options->headroom_bytes,
                           .default_id = options->source == MAM_SOURCE_HOST ? HOST_DEFAULT_ID : plan->source.context.id,
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
    options_publish_locked(wanted);
  environment_exit();
  if (error == cudaErrorAlreadyAcquired)
    return error_set(error, "%s: this context has an environment already", who);
  return error;
}

cudaError_t environment_create(size_t bytes, const char *who) {
  NOT_CANCELLED;
  return create_as(bytes, NULL, who);
}

cudaError_t environment_create_with(size_t bytes, const char *source, const char *limit, const char *who) {
  NOT_CANCELLED;
  struct options wanted;
  cudaError_t error = options_with(source, limit, &wanted);
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
