/* SPDX-License-Identifier: BSD-2-Clause */
#include "api/environment.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/forking.h"
#include "base/locked.h"
#include "base/record.h"
#include "front/front.h"

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

static void hold(void) {
  pthread_mutex_lock(&environment_lock);
  front_before_fork();
  pool_before_fork();
  record_before_fork(); /* last: a thread may record under any lock */
}

static void let_go(bool in_child) {
  record_after_fork(in_child);
  if (in_child) {
    environment_reaper.runs = false;
    watches_forget();
    endings = NULL; /* they were other threads' */
    conditions_set_up();
  }
  front_after_fork();
  pool_after_fork(in_child);
  pthread_mutex_unlock(&environment_lock);
}

static void set_up(void) {
  static const struct fork_functions functions = {hold, let_go};
  record_set_up();
  conditions_set_up();
  front_set_up();
  fork_join(FORK_ENVIRONMENT, &functions);
  driver_on_first(fork_handle); /* before the call here: if the driver is initialised by now, that call is enough */
  fork_handle();
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

/* The options as the environment variables have them now. */
static cudaError_t options_now(struct options *options) {
  options_unknown_tell();
  return options_read(options);
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
  cudaError_t error = options_now(&mine);
  return error == cudaSuccess ? options_publish_first(&mine, options) : error;
}

cudaError_t environment_options_with(const char *source, const char *limit, struct options *wanted) {
  const struct options *held = NULL;
  struct options before;
  /* acquire: as in environment_options */
  struct published *known = atomic_load_explicit(&published, memory_order_acquire);
  cudaError_t error = cudaSuccess;
  if (known != NULL)
    before = known->options;
  else
    error = options_now(&before);
  if (error != cudaSuccess)
    return error;
  *wanted = before;
  error = options_change(wanted, source, limit);
  if (error != cudaSuccess)
    return error;
  struct options first = before; /* the limit holds only after a success */
  if ((before.source == MAM_SOURCE_HOST) != (wanted->source == MAM_SOURCE_HOST))
    (void)options_change(&first, source, NULL);
  error = known == NULL ? options_publish_first(&first, &held) : environment_options(&held);
  if (error == cudaSuccess && (held->source == MAM_SOURCE_HOST) != (wanted->source == MAM_SOURCE_HOST))
    return error_set(cudaErrorNotSupported,
                     held->source == MAM_SOURCE_HOST
                         ? "the default pool of this process is in plain host memory, which its first use settled"
                         : "the default pool of this process is not in plain host memory, which its first use settled: "
                           "set MAM_SOURCE=host in the environment");
  return error;
}

void environment_options_publish_locked(const struct options *wanted) {
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
  *id = ENVIRONMENT_HOST_ID;
  return CUDA_SUCCESS;
}

/* A driver before CUDA 12.0 has no ids; see context.h. */
static CUresult ask_handle(CUcontext current, unsigned long long *id) {
  CUresult result = driver_known()->cuCtxGetCurrent(&current);
  *id = (uintptr_t)current;
  return result;
}

_Atomic(environment_ask *) environment_asked = ask_nobody;

/* Quick paths read it, so it is written only if that changes it. */
static void ask_from_now_on(environment_ask *ask) {
  /* relaxed: a stale answer costs a store.  release: the driver as it is loaded; pairs with the acquire in
   * environment_id_quick */
  if (atomic_load_explicit(&environment_asked, memory_order_relaxed) != ask)
    atomic_store_explicit(&environment_asked, ask, memory_order_release);
}

cudaError_t environment_id_now(uint64_t *id) {
  const struct options *options;
  const struct driver *driver;
  cudaError_t error = environment_options(&options);
  if (error != cudaSuccess)
    return error;
  if (options->source == MAM_SOURCE_HOST) {
    *id = ENVIRONMENT_HOST_ID;
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
