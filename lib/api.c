/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The public functions, and the default pools (the paper's environments): one for each CUDA context, known by the
 * context's id; on plain host memory (MAM_SOURCE=host) one for the process.
 *
 * A default pool that came by itself (lazily) ends by itself with its last block: the first time at once, as the paper
 * has it.  If it is missed afterwards and comes back, it is watched instead: a reaper thread, which exists only while
 * an empty pool is watched, ends it when it was not used for linger_ns.  So a loop that frees all it has pays for two
 * chunks in each context, and a program that is done holds no memory.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client.h"
#include "clock.h"
#include "error.h"
#include "front.h"
#include "options.h"
#include "pool.h"

/* The id of the one default pool on plain host memory; a context's is a small number or a handle. */
static const uint64_t HOST_DEFAULT_ID = UINT64_MAX - 1;

/* A pool of several threads is looked at so often at most, also where it would end at once. */
static const int64_t CROWD_LOOK_NS = 100000000;

/* A watched pool stays for at least so many times what its chunk cost to take: at most 5 % of the time goes there. */
enum { LINGER_CREATIONS = 20 };

/* First in the lock order.  Held while default pools come and go. */
static pthread_mutex_t environment_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t reaper_wakes;   /* a pool is watched, or the process ends; with environment_lock, as the next */
static pthread_cond_t ending_changed; /* an environment has ended */
static bool reaper_runs, process_ends;

/* ---- Fork, exit, and what is set up once ---- */

/* The environments that are ending, by id: their pools are no longer found. */
static struct ending {
  uint64_t id;
  struct ending *next;
} * endings;

static void conditions_set_up(void) {
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&reaper_wakes, &attributes);
  (void)pthread_cond_init(&ending_changed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

static void before_fork(void) {
  pthread_mutex_lock(&environment_lock);
  pool_before_fork();
}

static void after_fork_in_parent(void) {
  pool_after_fork(false);
  pthread_mutex_unlock(&environment_lock);
}

static void after_fork_in_child(void) {
  reaper_runs = false;
  endings = NULL; /* they were other threads' */
  conditions_set_up();
  pool_after_fork(true);
  pthread_mutex_unlock(&environment_lock);
}

static void set_up(void) {
  conditions_set_up();
  front_set_up();
  (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* When the library is loaded, while there is mostly one thread: the kernel then registers a process for its barrier at
 * once, and no fork can fall into the middle of it.  A program's own constructor may call before this one. */
__attribute__((constructor)) static void set_up_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, set_up);
}

static void environment_enter(void) {
  set_up_once();
  pthread_mutex_lock(&environment_lock);
}

static void environment_exit(void) { pthread_mutex_unlock(&environment_lock); }

/* From here on the driver may be gone: the reaper must not begin to call it.  What it has begun is not waited for: that
 * may wait for a kernel, and an exit must not. */
__attribute__((destructor)) static void end_of_process(void) {
  environment_enter();
  process_ends = true;
  if (reaper_runs)
    pthread_cond_broadcast(&reaper_wakes);
  environment_exit();
}

/* ---- Which default pool a call means ---- */

/* The options, read at the first use and never again.  A mistake in them is not remembered.  No lock, which a fork
 * could leave taken: of several threads that get here, the first to publish wins. */
static cudaError_t environment_options(const struct options **options) {
  static _Atomic(struct options *) published;
  /* acquire: the options; pairs with the release below */
  struct options *known = atomic_load_explicit(&published, memory_order_acquire), *mine;
  *options = known;
  if (known != NULL)
    return cudaSuccess;
  mine = malloc(sizeof *mine);
  if (mine == NULL)
    return error_set(cudaErrorMemoryAllocation, "no host memory for the options");
  cudaError_t error = options_read(mine);
  if (error != cudaSuccess) {
    free(mine);
    return error;
  }
  /* release: publishes the options; acquire on failure: reads the winner's.  Pairs with the load above. */
  if (!atomic_compare_exchange_strong_explicit(&published, &known, mine, memory_order_acq_rel, memory_order_acquire))
    free(mine);
  *options = known != NULL ? known : mine;
  return cudaSuccess;
}

/* How to ask for the current context, once that is known: the driver's cuCtxGetCurrent, or what answers for it. */
typedef CUresult ask(CUcontext *handle);

static CUresult ask_nobody(CUcontext *handle) {
  (void)handle;
  return CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult ask_host(CUcontext *handle) {
  *handle = NULL;
  return CUDA_SUCCESS;
}

static _Atomic(ask *) asked = ask_nobody;

/* No context's handle. */
#define UNKNOWN_CONTEXT ((CUcontext)UINTPTR_MAX)

/* That of the current context; NULL on plain host memory. */
static inline CUcontext context_handle(void) {
  CUcontext handle;
  /* acquire: what the driver's loading wrote; pairs with the release below */
  CUresult result = atomic_load_explicit(&asked, memory_order_acquire)(&handle);
  return __builtin_expect(result == CUDA_SUCCESS, true) ? handle : UNKNOWN_CONTEXT;
}

/* The id of the default pool that the calling thread means now; 0 if it has no current context that lives. */
static cudaError_t default_id_now(uint64_t *id) {
  const struct options *options;
  const struct driver *driver;
  cudaError_t error = environment_options(&options);
  if (error != cudaSuccess)
    return error;
  if (options->source == MAM_SOURCE_HOST) {
    *id = HOST_DEFAULT_ID;
    atomic_store_explicit(&asked, ask_host, memory_order_release);
    return cudaSuccess;
  }
  error = driver_get(&driver);
  if (error != cudaSuccess)
    return error;
  *id = context_current_id(driver);
  atomic_store_explicit(&asked, driver->cuCtxGetCurrent, memory_order_release);
  return cudaSuccess;
}

/* The same by one quick question, where a front of the thread is known to be of that pool; else 0. */
static uint64_t default_id_quick(void) { return front_default_id(context_handle()); }

static bool default_id_is(uint64_t id) {
  uint64_t now;
  return default_id_now(&now) == cudaSuccess && now == id;
}

/* So that the next allocation by the thread's last front, which is of the default pool of the id, asks a quick
 * question.  An id is never used again: if it is that of the current context before and after, it is that of the
 * context that is watched, and its end will be counted after ends was read. */
static void default_remember(uint64_t id) {
  const struct driver *driver;
  uint64_t ends = context_ends();
  CUcontext handle = context_handle();
  if (handle == UNKNOWN_CONTEXT || front_default_id(handle) == id || !default_id_is(id))
    return;
  bool watched = id == HOST_DEFAULT_ID || (driver_get(&driver) == cudaSuccess && context_watch(driver, handle));
  if (watched && default_id_is(id))
    front_remember(id, handle, ends);
}

/* The calling thread's default pool if there is one, else NULL. */
static struct mam_pool *default_pool_now(uint64_t *id) {
  if (default_id_now(id) != cudaSuccess || *id == 0)
    return NULL;
  return pool_find_default(*id);
}

/* ---- Ending an environment ---- */

/* Ends the environment if it is still the one that is meant and, if only_if_empty, lazy and without a live block.  The
 * lock is left while the memory goes back: that waits for the GPU, and nobody else has to. */
static cudaError_t environment_end_locked(struct mam_pool *pool, uint64_t id, bool only_if_empty) {
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

/* Waits, with the lock left, until no environment of that id is ending: its memory is what the next one is made of. */
static void endings_await_locked(uint64_t id) {
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

/* Whether an environment is made as this library sees fit: of no size, from no source in particular. */
static bool environment_is_free(const struct options *options, size_t bytes) {
  return options->source_is_auto && bytes == 0;
}

/* Whether such an environment is a client's. */
static bool environment_in_chunks(const struct options *options, size_t bytes) {
  return environment_is_free(options, bytes) && client_chunk_bytes() > 0;
}

/* The source of an environment.  By itself it is, without a size, memory that is mapped as needed, where the driver
 * can; with a size the paper's one chunk. */
static cudaError_t environment_source(const struct options *options, size_t bytes, struct source *source) {
  cudaError_t error = cudaErrorNotSupported;
  if (environment_is_free(options, bytes) && !environment_in_chunks(options, bytes))
    error = source_open(MAM_SOURCE_VMM, NULL, -1, source);
  return error == cudaErrorNotSupported ? source_open(options->source, NULL, -1, source) : error;
}

/* The sizes of an environment: an elastic one has a limit rather than a chunk. */
static void environment_size(const struct source *source, size_t bytes, struct pool_config *config) {
  config->elastic = source->operations == &source_vmm || (source->operations == &source_host && bytes == 0);
  *(config->elastic ? &config->limit_bytes : &config->chunk_bytes) = bytes;
}

/* A client's environment takes further chunks as it grows, to all that the device has. */
static cudaError_t environment_size_in_chunks(const struct source *source, struct pool_config *config) {
  struct context_visit visit;
  size_t free_bytes = 0, total_bytes = 0;
  const struct driver *driver = source->context.driver;
  cudaError_t error = context_enter(&source->context, &visit);
  if (error != cudaSuccess)
    return error;
  CUresult result = driver->cuMemGetInfo(&free_bytes, &total_bytes);
  context_leave(&source->context, &visit);
  if (result != CUDA_SUCCESS)
    return driver_error(driver, result, "cuMemGetInfo");
  config->chunk_bytes =
      client_chunk_bytes() + SOURCE_GRANULARITY_BYTES; /* so that the guard costs no block its place */
  config->limit_bytes = total_bytes;
  config->lazy = false;
  config->gives_all = true; /* so that a program may have all memory in one block, as from the driver */
  config->guarded = true;   /* a block may come to the driver's own free */
  return cudaSuccess;
}

static bool reaper_start(void);

/* A client's pool is looked at so often, whether it needs what it holds. */
static int64_t calm_look_ns(const struct options *options) {
  int64_t linger_ns = (int64_t)options->linger_ms * 1000000;
  return linger_ns > CROWD_LOOK_NS ? linger_ns : CROWD_LOOK_NS;
}

/* The lock is held, and left where another environment of the context ends.  bytes 0: all there are.  If there is one
 * already: cudaErrorAlreadyAcquired, *pool is it.  *id is the id of whichever it is. */
static cudaError_t environment_create_locked(size_t bytes, bool lazy, struct mam_pool **pool, uint64_t *id) {
  const struct options *options;
  struct source source;
  pool_abandon_gone();
  cudaError_t error = environment_options(&options);
  if (error == cudaSuccess)
    error = environment_source(options, bytes, &source);
  if (error != cudaSuccess)
    return error;
  *id = options->source == MAM_SOURCE_HOST ? HOST_DEFAULT_ID : source.context.id;
  struct pool_config config = {.reuse = options->reuse,
                               .alignment = POOL_ALIGNMENT_BYTES,
                               .headroom_bytes = options->headroom_bytes,
                               .default_id = *id,
                               .lazy = lazy,
                               .front = &front_operations};
  if (environment_in_chunks(options, bytes))
    error = environment_size_in_chunks(&source, &config);
  else
    environment_size(&source, bytes, &config);
  if (error != cudaSuccess) {
    source_close(&source);
    return error;
  }
  struct mam_pool *held = pool_find_default(*id);
  if (held != NULL && !lazy) /* if it lingers, it is wanted otherwise now */
    (void)environment_end_locked(held, *id, true);
  endings_await_locked(*id);
  held = pool_find_default(*id);
  int64_t start_ns = now_ns(); /* after any wait for the GPU */
  if (held == NULL)
    error = pool_open(&config, &source, pool);
  if (held != NULL || error != cudaSuccess)
    source_close(&source);
  if (held != NULL) {
    *pool = held;
    return cudaErrorAlreadyAcquired;
  }
  if (error == cudaSuccess) {
    (*pool)->linger_ns = config.lazy ? linger_for(options, *id, now_ns() - start_ns) : 0;
    (*pool)->linger_until_ns = environment_in_chunks(options, bytes) ? now_ns() + calm_look_ns(options) : 0;
    (*pool)->calm = (struct pool_calm){0};
    if ((*pool)->linger_until_ns != 0)
      (void)reaper_start(); /* without it, what is not needed goes back when somebody asks for it */
  }
  return error;
}

static cudaError_t environment_create(size_t bytes, const char *who) {
  struct mam_pool *pool;
  uint64_t id;
  environment_enter();
  cudaError_t error = environment_create_locked(bytes, false, &pool, &id);
  environment_exit();
  if (error == cudaErrorAlreadyAcquired)
    return error_set(error, "%s: this context has an environment already", who);
  return error;
}

/* The calling thread's default pool, created if need be: *created is then its generation, else 0.  *id is its id; as
 * given, it is what default_id_quick said. */
static cudaError_t environment_get(struct mam_pool **pool, uint64_t *id, uint64_t *created) {
  *created = 0;
  cudaError_t error = *id == 0 ? default_id_now(id) : cudaSuccess;
  if (error != cudaSuccess)
    return error;
  *pool = *id != 0 ? pool_find_default(*id) : NULL;
  if (*pool != NULL)
    return cudaSuccess;
  environment_enter();
  error = environment_create_locked(0, true, pool, id);
  if (error == cudaSuccess)
    *created = (*pool)->generation; /* constant: it cannot end while the lock is held */
  environment_exit();
  return error == cudaErrorAlreadyAcquired ? cudaSuccess : error;
}

/* ---- Ending an environment by itself ---- */

static int64_t linger_of(const struct mam_pool *pool) {
  return pool->linger_ns > CROWD_LOOK_NS ? pool->linger_ns : CROWD_LOOK_NS;
}

/* Looks at a client's pool, with the lock left: to give memory back takes time, and nobody else has to wait. */
static void calm_locked(struct mam_pool *pool, uint64_t id) {
  const struct options *options;
  uint64_t generation = pool->generation;
  struct pool_calm calm = pool->calm;
  pool->linger_until_ns = 0;
  environment_exit();
  bool again = pool_calm_look(pool, id, &calm) && environment_options(&options) == cudaSuccess;
  environment_enter();
  if (!again || !pool_is_still(pool, generation))
    return;
  pool->calm = calm;
  pool->linger_until_ns = now_ns() + calm_look_ns(options);
}

/* Looks at a watched pool whose time has come: ends it, or says when to look again. */
static void reap_locked(struct mam_pool *pool, uint64_t id) {
  uint64_t count = 0;
  if (!pool->config.lazy) {
    calm_locked(pool, id);
    return;
  }
  enum pool_look look = pool_look(pool, id, &count);
  bool unused = look == POOL_EMPTY && count == pool->linger_malloc_count;
  bool again = look == POOL_CROWDED || (look == POOL_EMPTY && !unused);
  pool->linger_malloc_count = count;
  pool->linger_until_ns = again ? now_ns() + linger_of(pool) : 0;
  if (unused)
    (void)environment_end_locked(pool, id, true);
}

/* The watched pool whose time comes first, NULL if none is watched. */
static struct mam_pool *next_to_reap(void) {
  struct mam_pool *next = NULL;
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next)
    if (pool->linger_until_ns != 0 && (next == NULL || pool->linger_until_ns < next->linger_until_ns))
      next = pool;
  return next;
}

static void *reaper(void *unused) {
  (void)unused;
  struct mam_pool *pool;
  environment_enter();
  while (!process_ends && (pool = next_to_reap()) != NULL) {
    int64_t until_ns = pool->linger_until_ns;
    if (until_ns > now_ns()) {
      struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
      (void)pthread_cond_timedwait(&reaper_wakes, &environment_lock, &until);
    } else {
      reap_locked(pool,
                  atomic_load_explicit(&pool->default_id, memory_order_relaxed)); /* relaxed: checked by pool_look */
    }
  }
  reaper_runs = false;
  environment_exit();
  return NULL;
}

/* Starts the reaper, deaf to signals.  The lock is held. */
static bool reaper_start(void) {
  pthread_t thread;
  pthread_attr_t attributes;
  sigset_t all, before;
  if (reaper_runs || process_ends)
    return reaper_runs;
  if (pthread_attr_init(&attributes) != 0)
    return false;
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before);
  reaper_runs = pthread_create(&thread, &attributes, reaper, NULL) == 0;
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  (void)pthread_attr_destroy(&attributes);
  return reaper_runs;
}

/* Watches a lazy environment from its second thread on. */
static void environment_watch(struct mam_pool *pool) {
  environment_enter();
  pool->linger_until_ns = now_ns() + linger_of(pool);
  (void)pthread_cond_broadcast(&reaper_wakes);
  (void)reaper_start(); /* without it, the environment stays until MAM_Destroy */
  environment_exit();
}

/* The last block of a lazy environment was freed. */
static cudaError_t environment_emptied(const struct pool_emptied *emptied) {
  struct mam_pool *pool = emptied->pool;
  cudaError_t error = cudaSuccess;
  environment_enter();
  if (!pool_is_still(pool, emptied->generation)) { /* it has ended without this, and another was made of its struct */
    environment_exit();
    return cudaSuccess;
  }
  bool watch = pool->linger_ns > 0;
  if (watch) {
    (void)pool_look(pool, emptied->default_id, &pool->linger_malloc_count);
    pool->linger_until_ns = now_ns() + pool->linger_ns;
    (void)pthread_cond_broadcast(&reaper_wakes); /* its time may come before the one that the reaper waits for */
  }
  if (!watch || !reaper_start()) {
    pool->linger_until_ns = 0;
    error = environment_end_locked(pool, emptied->default_id, true);
  }
  environment_exit();
  return error;
}

/* ---- The paper's five ---- */

cudaError_t MAM_Create(size_t maxSize) {
  if (maxSize == 0)
    return error_set(cudaErrorInvalidValue, "MAM_Create: a chunk of 0 bytes");
  return environment_create(maxSize, "MAM_Create");
}

cudaError_t MAM_Create_auto(void) { return environment_create(0, "MAM_Create_auto"); }

cudaError_t MAM_Destroy(void) {
  uint64_t id = 0;
  cudaError_t error = cudaSuccess;
  environment_enter();
  pool_abandon_gone();
  struct mam_pool *pool = default_pool_now(&id);
  if (pool != NULL)
    error = environment_end_locked(pool, id, false);
  endings_await_locked(id); /* whoever asked for the end, it has come when this returns */
  environment_exit();
  return error;
}

/* Size 0 is a success where anything could be allocated. */
static cudaError_t malloc_nothing(void) {
  uint64_t id;
  return default_id_now(&id);
}

/* By the calling thread's front, the environment created if need be. */
static cudaError_t default_malloc(size_t size, const void *site, const void *tag, uintptr_t *address) {
  struct front_request request = {.size = size, .site = site, .tag = tag};
  uint64_t created;
  bool known;
  cudaError_t error;
  do { /* again if the environment ended between being found and being asked */
    request.default_id = default_id_quick();
    known = request.default_id != 0;
    error = environment_get(&request.pool, &request.default_id, &created);
    if (error == cudaSuccess)
      error = front_malloc(&request, address);
  } while (error == cudaErrorInvalidResourceHandle);
  if (error == cudaSuccess && !known)
    default_remember(request.default_id);
  if (error != cudaSuccess && created != 0) /* for nothing: as if its last block had been freed */
    (void)environment_emptied(&(struct pool_emptied){request.pool, request.default_id, created});
  else if (error == cudaSuccess && pool_to_be_watched(request.pool))
    environment_watch(request.pool);
  return error;
}

/* The same, first by the thread's last front.  id: of the pool that is meant, 0 if that is not known; tried: the front
 * has been asked for what it has at hand. */
static cudaError_t default_malloc_front(uint64_t id, bool tried, size_t size, const void *site, const void *tag,
                                        uintptr_t *address) {
  struct front_request request = {
      .default_id = id != 0 ? id : default_id_quick(), .size = size, .site = site, .tag = tag, .tried = tried};
  bool known = request.default_id != 0;
  cudaError_t error = known ? cudaSuccess : default_id_now(&request.default_id);
  if (error != cudaSuccess)
    return error;
  error = request.default_id != 0 ? front_malloc(&request, address) : cudaErrorInvalidResourceHandle;
  if (error == cudaErrorInvalidResourceHandle)
    return default_malloc(size, site, tag, address);
  if (error == cudaSuccess && !known)
    default_remember(request.default_id);
  return error;
}

/* What is rare about MAM_CudaMalloc. */
static __attribute__((noinline)) cudaError_t malloc_slowly(void **ptr, size_t size, const void *site, uint64_t id) {
  uintptr_t address = 0;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMalloc: nowhere to write the address");
  cudaError_t error = size == 0 ? malloc_nothing() : default_malloc_front(id, id != 0, size, site, NULL, &address);
  *ptr = (void *)address;
  return error;
}

cudaError_t MAM_CudaMalloc(void **ptr, size_t size) {
  if (ptr == NULL)
    return malloc_slowly(ptr, size, __builtin_return_address(0), 0);
  return front_malloc_quick(ptr, size, __builtin_return_address(0), malloc_slowly, context_handle());
}

cudaError_t MAM_CudaMallocTagged(void **ptr, size_t size, const void *tag) {
  uintptr_t address = 0;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocTagged: nowhere to write the address");
  cudaError_t error =
      size == 0 ? malloc_nothing() : default_malloc_front(0, false, size, __builtin_return_address(0), tag, &address);
  *ptr = (void *)address;
  return error;
}

/* Ends the environment that a free has emptied. */
static cudaError_t free_finish(cudaError_t error, const struct pool_emptied *emptied) {
  if (emptied->pool == NULL)
    return error;
  cudaError_t ended = environment_emptied(emptied);
  return error == cudaSuccess ? ended : error;
}

/* What is rare about a free: what front_free_quick said. */
static __attribute__((noinline)) cudaError_t free_slowly(uintptr_t address, enum front_freed freed) {
  struct pool_emptied emptied;
  cudaError_t error = cudaSuccess;
  if (freed == FRONT_FREED_ZERO)
    front_zero(&emptied);
  else
    error = front_free(address, &emptied);
  return free_finish(error, &emptied);
}

cudaError_t MAM_CudaFree(void *ptr) {
  return ptr == NULL ? cudaSuccess : front_free_quick((uintptr_t)ptr, free_slowly);
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
      return refuse_option("struct_size is not that of MAM_PoolOptions");
    memcpy(options, given, sizeof *options);
  }
  if (options->alignment == 0)
    options->alignment = POOL_ALIGNMENT_BYTES;
  return cudaSuccess;
}

static cudaError_t options_check(const MAM_PoolOptions *options) {
  size_t alignment = options->alignment;
  if (options->source < MAM_SOURCE_DEVICE || options->source > MAM_SOURCE_VMM)
    return refuse_option("source is none of MAM_Source");
  if (options->reuse < MAM_REUSE_FENCED || options->reuse > MAM_REUSE_STREAM)
    return refuse_option("reuse is none of MAM_Reuse");
  if (options->device < -1)
    return refuse_option("device is neither an ordinal nor -1");
  if (alignment < POOL_ALIGNMENT_LEAST_BYTES || alignment > POOL_ALIGNMENT_MOST_BYTES ||
      (alignment & (alignment - 1)) != 0)
    return refuse_option("alignment is not a power of two from 16 to 2 MiB");
  if (options->limit_bytes > 0 && options->limit_bytes < options->chunk_bytes)
    return refuse_option("limit_bytes is smaller than chunk_bytes");
  return cudaSuccess;
}

cudaError_t MAM_PoolCreate(MAM_Pool *pool, const MAM_PoolOptions *given) {
  MAM_PoolOptions options;
  struct source source;
  const struct options *defaults;
  if (pool == NULL)
    return refuse_option("nowhere to write the handle");
  cudaError_t error = options_resolve(given, &options);
  if (error == cudaSuccess)
    error = options_check(&options);
  if (error == cudaSuccess)
    error = environment_options(&defaults);
  if (error != cudaSuccess)
    return error;
  set_up_once();
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
  if (pool == NULL)
    return cudaSuccess;
  cudaError_t error = pool_is_known(pool) ? pool_close(pool, 0) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolDestroy") : error;
}

cudaError_t MAM_PoolDefault(MAM_Pool *pool) {
  struct mam_pool *found;
  uint64_t id = default_id_quick(), created;
  if (pool == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolDefault: nowhere to write the handle");
  cudaError_t error = environment_get(&found, &id, &created);
  if (error == cudaSuccess)
    *pool = found;
  return error;
}

/* From a pool of choice; who is the function's name. */
static cudaError_t pool_malloc_by(const char *who, MAM_Pool pool, struct front_request *request, void **ptr) {
  uintptr_t address = 0;
  cudaError_t error = cudaErrorInvalidResourceHandle;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "%s: nowhere to write the address", who);
  request->pool = pool;
  request->default_id = POOL_ANY_ID;
  if (pool_is_known(pool))
    error = request->size == 0 ? pool_usable(pool) : front_malloc(request, &address);
  *ptr = (void *)address;
  if (error == cudaSuccess && pool_to_be_watched(pool))
    environment_watch(pool);
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

/* The id of a stream of the current context; notices whether it is being captured.  The legacy stream never is, and
 * nobody is asked.  *entered: whether the pool is usable; if it is not, that is the error. */
static cudaError_t stream_id(cudaStream_t stream, struct mam_pool *pool, uint64_t default_id, uint64_t *id,
                             bool *entered) {
  bool captured = false;
  *id = context_stream_default();
  *entered = true;
  if (context_stream_is_legacy((CUstream)stream))
    return cudaSuccess;
  cudaError_t error = pool_enter(pool, default_id);
  *entered = error == cudaSuccess;
  if (error != cudaSuccess)
    return error;
  error = context_stream_id(pool->source.context.driver, (CUstream)stream, id, &captured);
  if (error == cudaSuccess && captured)
    reuse_notice_capture(pool->reuse, (CUstream)stream);
  pool_exit(pool);
  return error;
}

/* The pool's, or the default one's. */
static cudaError_t stream_malloc(struct front_request *request, cudaStream_t stream, uintptr_t *address) {
  uint64_t id;
  bool entered;
  cudaError_t error = stream_id(stream, request->pool, request->default_id, &id, &entered);
  return error == cudaSuccess ? front_malloc_stream(request, id, address) : error;
}

cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream) {
  struct front_request request = {
      .pool = pool, .default_id = POOL_ANY_ID, .size = size, .site = __builtin_return_address(0)};
  uintptr_t address = 0;
  cudaError_t error = cudaErrorInvalidResourceHandle;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolMallocAsync: nowhere to write the address");
  if (pool_is_known(pool))
    error = size == 0 ? pool_usable(pool) : stream_malloc(&request, stream, &address);
  *ptr = (void *)address;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolMallocAsync") : error;
}

static cudaError_t default_malloc_stream(struct front_request *request, cudaStream_t stream, uintptr_t *address) {
  uint64_t created;
  bool known;
  cudaError_t error;
  do { /* as in default_malloc */
    request->default_id = default_id_quick();
    known = request->default_id != 0;
    error = environment_get(&request->pool, &request->default_id, &created);
    if (error == cudaSuccess)
      error = stream_malloc(request, stream, address);
  } while (error == cudaErrorInvalidResourceHandle);
  if (error == cudaSuccess && !known)
    default_remember(request->default_id);
  if (error != cudaSuccess && created != 0)
    (void)environment_emptied(&(struct pool_emptied){request->pool, request->default_id, created});
  else if (error == cudaSuccess && pool_to_be_watched(request->pool))
    environment_watch(request->pool);
  return error;
}

cudaError_t MAM_CudaMallocAsync(void **ptr, size_t size, cudaStream_t stream) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0)};
  uintptr_t address = 0;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocAsync: nowhere to write the address");
  cudaError_t error = size == 0 ? malloc_nothing() : default_malloc_stream(&request, stream, &address);
  *ptr = (void *)address;
  return error;
}

static cudaError_t free_by_rule(void *ptr, MAM_Reuse reuse, cudaStream_t stream) {
  struct pool_emptied emptied = {0};
  uint64_t id = 0;
  bool entered = true;
  cudaError_t error = cudaSuccess;
  struct mam_pool *pool = front_pool_of((uintptr_t)ptr);
  if (pool == NULL)
    return pool_refuse_free((uintptr_t)ptr, false);
  if (reuse == MAM_REUSE_STREAM)
    error = stream_id(stream, pool, POOL_ANY_ID, &id, &entered);
  if (!entered)
    return MAM_CudaFree(ptr); /* which knows what to answer */
  if (error == cudaSuccess)
    error = front_free_reuse((uintptr_t)ptr, reuse, id, &emptied);
  return free_finish(error, &emptied);
}

cudaError_t MAM_CudaFreeAsync(void *ptr, cudaStream_t stream) {
  return ptr == NULL ? cudaSuccess : free_by_rule(ptr, MAM_REUSE_STREAM, stream);
}

cudaError_t MAM_CudaFreeReuse(void *ptr, MAM_Reuse reuse) {
  if (reuse < MAM_REUSE_FENCED || reuse > MAM_REUSE_STREAM)
    return error_set(cudaErrorInvalidValue, "MAM_CudaFreeReuse: reuse is none of MAM_Reuse");
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
  set_up_once();
  *reuse = reuse_open(&source);
  if (*reuse == NULL)
    error = error_set(cudaErrorMemoryAllocation, "no host memory for a capture");
  source_close(&source);
  return error;
}

cudaError_t MAM_CaptureBegin(void) {
  struct reuse *reuse;
  cudaError_t error = reuse_current(&reuse);
  if (error == cudaSuccess)
    reuse_capture_begin(reuse); /* a user until the end */
  return error;
}

cudaError_t MAM_CaptureEnd(void) {
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
    return default_pool_now(id);
  *id = POOL_ANY_ID;
  return pool_is_known(pool) ? pool : NULL;
}

/* ---- Giving back ---- */

cudaError_t MAM_Trim(size_t keep_bytes) {
  uint64_t id;
  struct mam_pool *pool = pool_asked(NULL, &id);
  cudaError_t error = pool != NULL ? pool_trim(pool, id, keep_bytes) : cudaSuccess;
  return error == cudaErrorInvalidResourceHandle ? cudaSuccess : error; /* it has ended meanwhile */
}

cudaError_t MAM_PoolTrim(MAM_Pool pool, size_t keep_bytes) {
  cudaError_t error = pool_is_known(pool) ? pool_trim(pool, POOL_ANY_ID, keep_bytes) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolTrim") : error;
}

/* ---- Seeing in ---- */

cudaError_t MAM_PoolGetInfo(MAM_Pool pool, MAM_PoolInfo *info) {
  uint64_t id;
  MAM_PoolInfo now;
  if (info == NULL || info->struct_size < offsetof(MAM_PoolInfo, used_bytes))
    return error_set(cudaErrorInvalidValue, "MAM_PoolGetInfo: info is NULL or its struct_size is not set");
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

cudaError_t MAM_PoolReport(MAM_Pool pool, char **json) {
  uint64_t id;
  if (json == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolReport: nowhere to write the text");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_report(pool, id, json) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolReport") : error;
}

cudaError_t MAM_PoolExplain(MAM_Pool pool, size_t size, char **text) {
  uint64_t id;
  if (text == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolExplain: nowhere to write the text");
  pool = pool_asked(pool, &id);
  cudaError_t error = pool != NULL ? pool_explain(pool, id, size, text) : cudaErrorInvalidResourceHandle;
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolExplain") : error;
}

const char *MAM_LastError(void) { return error_last(); }

/* ---- For client.c ---- */

/* Whether the current context's work has ended in error: then the driver allocates nothing in it, and has to say so. It
 * is asked where that costs nothing beside the rest. */
static bool context_is_broken(void) {
  const struct driver *driver;
  unsigned long long id;
  if (driver_get(&driver) != cudaSuccess || driver->cuCtxGetId == NULL)
    return false;
  CUresult result = driver->cuCtxGetId(NULL, &id);
  return result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_CONTEXT && result != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* No environment is made for a client. */
static cudaError_t client_malloc_slowly(void **ptr, size_t size, const void *site, uint64_t id) {
  uintptr_t address = 0;
  bool tried = id != 0;
  if (context_is_broken())
    return cudaErrorUnknown; /* the driver is asked next */
  cudaError_t error = tried ? cudaSuccess : default_id_now(&id);
  if (error != cudaSuccess)
    return error;
  error = id != 0 ? default_malloc_front(id, tried, size, site, NULL, &address) : cudaErrorInvalidResourceHandle;
  *ptr = (void *)address;
  return error;
}

cudaError_t api_client_malloc(size_t size, const void *site, uintptr_t *address) {
  void *block = NULL;
  cudaError_t error = front_malloc_quick(&block, size, site, client_malloc_slowly, context_handle());
  *address = (uintptr_t)block;
  return error;
}

/* Of an address that is no pool's: no error of CUDA's. */
static const cudaError_t client_free_elsewhere = (cudaError_t)-1;

static cudaError_t client_free_slowly(uintptr_t address, enum front_freed freed) {
  if (freed > FRONT_FREED_ZERO && front_pool_of(address) == NULL)
    return client_free_elsewhere;
  return free_slowly(address, freed);
}

bool api_client_free(uintptr_t address, cudaError_t *error) {
  *error = front_free_quick(address, client_free_slowly);
  if (*error != client_free_elsewhere)
    return true;
  *error = cudaSuccess;
  return false;
}

bool api_source_is_device(void) {
  const struct options *options;
  return environment_options(&options) == cudaSuccess &&
         (options->source == MAM_SOURCE_DEVICE || options->source == MAM_SOURCE_VMM);
}

void api_contexts_changed(void) {
  environment_enter();
  pool_abandon_gone();
  environment_exit();
}
