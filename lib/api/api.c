/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The public functions, and the default pools (the paper's environments): one for each CUDA context, known by the
 * context's id; on plain host memory (MAM_SOURCE=host) one for the process.
 *
 * A default pool that came by itself (lazily) ends by itself with its last block: the first time at once, as the paper
 * has it.  If it is missed afterwards and comes back, it is watched instead: a reaper thread, which exists only while
 * a pool is watched, ends it when it was not used for linger_ns.  So a loop that frees all it has pays for two
 * chunks in each context, and a program that is done holds no memory.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "api/client.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/options.h"
#include "front/front_quick.h"
#include "pool/pool.h"

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
static pid_t process_id; /* that loaded the library: a forked child reports nothing of its parent's */

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
  process_id = getpid();
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
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for the options");
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

/* What MAM_REPORT asks for.  Not of a client, which has a summary of its own. */
static void report_at_exit(void) {
  const struct options *options;
  if (client_chunk_bytes() > 0 || environment_options(&options) != cudaSuccess)
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
  environment_enter();
  process_ends = true;
  if (reaper_runs)
    pthread_cond_broadcast(&reaper_wakes);
  environment_exit();
  if (getpid() == process_id)
    report_at_exit();
}

/* How to ask for the id of the default pool that the calling thread means, once that is known: the driver's cuCtxGetId,
 * which is asked about the current context, or what answers for it. */
typedef CUresult ask(CUcontext current, unsigned long long *id);

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

static _Atomic(ask *) asked = ask_nobody;

/* By one quick question; 0 if it has no answer, which does not say that there is none. */
static inline uint64_t default_id_quick(void) {
  unsigned long long id;
  /* acquire: what the driver's loading wrote; pairs with the release in default_id_now */
  CUresult result = atomic_load_explicit(&asked, memory_order_acquire)(NULL, &id);
  return __builtin_expect(result == CUDA_SUCCESS, true) ? id : 0;
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
  atomic_store_explicit(&asked, driver->cuCtxGetId != NULL ? driver->cuCtxGetId : ask_handle, memory_order_release);
  return cudaSuccess;
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
  bool in_chunks = bytes == 0 && (options->source_in_chunks || (options->source_is_auto && client_chunk_bytes() > 0));
  if (bytes == 0 && options->source_is_auto && !in_chunks)
    return environment_source_choose(source, way);
  *way = in_chunks && client_chunk_bytes() > 0 ? WAY_OF_CLIENT : in_chunks ? WAY_CHUNKS : WAY_PIECES;
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
  config->chunk_bytes =
      client ? client_chunk_bytes() + SOURCE_GRANULARITY_BYTES /* so that the guard costs no block its place */
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
                          : error_set(cudaErrorMemoryAllocation, "MAM_LIMIT leaves the default pool less than 2 MiB");
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
    return error_set(cudaErrorMemoryAllocation, "MAM_LIMIT does not allow %zu bytes: it allows %zu", size, limit_bytes);
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

/* bytes 0: all there are.  On failure there is nothing to close. */
static cudaError_t environment_plan(size_t bytes, bool lazy, struct plan *plan) {
  enum environment_way way = WAY_WHOLE;
  cudaError_t error = environment_options(&plan->options);
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
  uint64_t id = plan->config.default_id;
  cudaError_t error = cudaSuccess;
  pool_abandon_gone();
  struct mam_pool *held = pool_find_default(id);
  if (held != NULL && !plan->lazy) /* if it lingers, it is wanted otherwise now */
    (void)environment_end_locked(held, id, true);
  endings_await_locked(id);
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
    (*pool)->linger_ns = plan->config.lazy ? linger_for(plan->options, id, now_ns() - start_ns) : 0;
    (*pool)->linger_until_ns = 0;
  }
  return error;
}

static cudaError_t environment_create(size_t bytes, const char *who) {
  NOT_CANCELLED;
  struct mam_pool *pool;
  struct plan plan;
  cudaError_t error = environment_plan(bytes, false, &plan);
  if (error != cudaSuccess)
    return error;
  environment_enter();
  error = environment_create_locked(&plan, &pool);
  environment_exit();
  if (error == cudaErrorAlreadyAcquired)
    return error_set(error, "%s: this context has an environment already", who);
  return error;
}

/* The calling thread's default pool, created if need be: *created is then its generation, else 0.  *id is its id; as
 * given, it is what default_id_quick said. */
static cudaError_t environment_get(struct mam_pool **pool, uint64_t *id, uint64_t *created) {
  struct plan plan;
  *created = 0;
  cudaError_t error = *id == 0 ? default_id_now(id) : cudaSuccess;
  if (error != cudaSuccess)
    return error;
  *pool = *id != 0 ? pool_find_default(*id) : NULL;
  if (*pool != NULL)
    return cudaSuccess;
  error = environment_plan(0, true, &plan);
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

/* ---- Ending an environment by itself ---- */

static int64_t linger_of(const struct mam_pool *pool) {
  return pool->linger_ns > CROWD_LOOK_NS ? pool->linger_ns : CROWD_LOOK_NS;
}

/* Looks at a watched pool whose time has come: ends it, or says when to look again. */
static void reap_locked(struct mam_pool *pool, uint64_t id) {
  uint64_t count = 0;
  enum pool_look look = pool_look(pool, id, &count);
  bool unused = look == POOL_EMPTY && count == pool->linger_malloc_count;
  bool again = look == POOL_CROWDED || (look == POOL_EMPTY && !unused);
  pool->linger_malloc_count = count;
  pool->linger_until_ns = again ? now_ns() + linger_of(pool) : 0;
  if (unused)
    (void)environment_end_locked(pool, id, true);
}

/* A pool that has grown is looked at again and again, and is calm if it served at most so many allocations since the
 * look before, and uses as much as then.  It then keeps so many bytes beside what is used.  One that yields keeps what
 * it used at this look or the one before, whatever it serves.  Where a pool grows again soon after, it is given more
 * and more time, and so is a calm one that has nothing to give: so a program whose steps take longer than a look does
 * not pay for each of them. */
enum { CALM_MALLOCS = 16, CALM_KEPT_BYTES = 32 << 20, CALM_TIMES_MOST = 64, CALM_SOON = 32 };

/* The time between two looks, without patience. */
static int64_t calm_ns(void) {
  const struct options *options;
  int64_t linger_ns = environment_options(&options) == cudaSuccess ? (int64_t)options->linger_ms * 1000000 : 0;
  return linger_ns > CROWD_LOOK_NS ? linger_ns : CROWD_LOOK_NS;
}

static void calm_double(unsigned *times) { *times = *times < CALM_TIMES_MOST ? 2 * *times : CALM_TIMES_MOST; }

static void calm_look_later(struct mam_pool *pool) {
  unsigned times = pool->calm_patience * pool->calm_idle;
  pool->calm_until_ns = now_ns() + (times < CALM_TIMES_MOST ? times : CALM_TIMES_MOST) * calm_ns();
}

/* A pool that is watched from now on; pool->calm says what it is like. */
static void calm_first_look(struct mam_pool *pool) {
  pool->calm_patience = pool->calm_idle = 1;
  pool->calm_trimmed_ns = 0;
  calm_look_later(pool);
}

static bool calm_is_quiet(const struct pool_calm *before, const struct pool_calm *now) {
  return now->malloc_count - before->malloc_count <= CALM_MALLOCS && now->used_bytes == before->used_bytes;
}

/* How much of what it holds a pool is to keep. */
static size_t calm_keep_bytes(const struct mam_pool *pool, const struct pool_calm *before,
                              const struct pool_calm *now) {
  size_t keep_bytes = SIZE_MAX;
  if (pool->config.yields)
    keep_bytes = now->used_bytes > before->used_bytes ? now->used_bytes : before->used_bytes;
  else if (calm_is_quiet(before, now))
    keep_bytes = now->used_bytes + CALM_KEPT_BYTES;
  return keep_bytes < now->reserved_bytes ? keep_bytes : now->reserved_bytes;
}

/* Looks at a pool that has grown: if it is calm, it gives back what it does not need.  The lock is left for that. */
static void calm_look_locked(struct mam_pool *pool) {
  const struct pool_calm before = pool->calm;
  if (!pool_calm_look(pool, &pool->calm)) {
    pool->calm_until_ns = 0;
    return;
  }
  if (pool->calm.generation != before.generation) {
    calm_first_look(pool); /* the next pool in this struct: its growth was noted as this one's */
    return;
  }
  const struct pool_calm now = pool->calm;
  size_t keep_bytes = calm_keep_bytes(pool, &before, &now);
  if (keep_bytes == now.reserved_bytes && calm_is_quiet(&before, &now) && !pool->config.yields)
    calm_double(&pool->calm_idle);
  calm_look_later(pool);
  if (keep_bytes == now.reserved_bytes)
    return;
  pool->calm_trimmed_ns = now_ns(); /* before: it may grow again meanwhile */
  environment_exit();
  cudaError_t error = pool_trim_calm(pool, now.generation, keep_bytes);
  environment_enter();
  if (error != cudaSuccess && pool->calm.generation == now.generation)
    pool->calm_trimmed_ns = 0;
}

/* The pool whose time comes first, to be looked at for whatever reason; NULL if there is none. */
static struct mam_pool *next_to_reap(int64_t *until_ns) {
  struct mam_pool *next = NULL;
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    int64_t linger_ns = pool->linger_until_ns, calm_ns = pool->calm_until_ns;
    int64_t first_ns = linger_ns == 0 || (calm_ns != 0 && calm_ns < linger_ns) ? calm_ns : linger_ns;
    if (first_ns != 0 && (next == NULL || first_ns < *until_ns)) {
      next = pool;
      *until_ns = first_ns;
    }
  }
  return next;
}

static void *reaper(void *unused) {
  (void)unused;
  struct mam_pool *pool;
  int64_t until_ns = 0;
  environment_enter();
  while (!process_ends && (pool = next_to_reap(&until_ns)) != NULL) {
    if (until_ns > now_ns()) {
      struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
      (void)pthread_cond_timedwait(&reaper_wakes, &environment_lock, &until);
    } else if (until_ns == pool->calm_until_ns) {
      calm_look_locked(pool);
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

/* A pool has grown that is not looked at yet. */
static void calm_begin_locked(struct mam_pool *pool) {
  const struct pool_calm before = pool->calm;
  unsigned patience = pool->calm_patience;
  if (!pool_calm_look(pool, &pool->calm))
    return;
  calm_first_look(pool);
  if (before.generation == pool->calm.generation && patience > 1) { /* the same pool keeps what it was given */
    pool->calm_patience = patience;
    calm_look_later(pool);
  }
}

/* One that is looked at has grown.  If it gave back too early, it is given more time from now on. */
static void calm_go_on_locked(struct mam_pool *pool) {
  int64_t trimmed_ns = pool->calm_trimmed_ns;
  if (trimmed_ns != 0 && now_ns() - trimmed_ns < CALM_SOON * (int64_t)pool->calm_patience * calm_ns())
    calm_double(&pool->calm_patience);
  else if (trimmed_ns != 0)
    pool->calm_patience = 1;
  pool->calm_trimmed_ns = 0;
  if (pool->calm_idle > 1) {
    pool->calm_idle = 1;
    calm_look_later(pool);
  }
}

/* Sees to it that the pools that have grown are looked at. */
static __attribute__((noinline)) void pools_grown_watch(void) {
  NOT_CANCELLED;
  environment_enter();
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next)
    if (pool_has_grown(pool))
      (pool->calm_until_ns != 0 ? calm_go_on_locked : calm_begin_locked)(pool);
  if (reaper_runs)
    (void)pthread_cond_broadcast(&reaper_wakes);
  else
    (void)reaper_start(); /* without it, the memory stays until a trim */
  environment_exit();
}

/* After an allocation that may have made a pool grow. */
static inline void grown_look(void) {
  if (__builtin_expect(pools_grown(), false))
    pools_grown_watch();
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
    return error_set(cudaErrorInvalidValue, "MAM_Create: maxSize is 0");
  return environment_create(maxSize, "MAM_Create");
}

cudaError_t MAM_Create_auto(void) { return environment_create(0, "MAM_Create_auto"); }

cudaError_t MAM_Destroy(void) {
  NOT_CANCELLED;
  uint64_t id = 0;
  cudaError_t error = cudaSuccess;
  (void)default_id_now(&id); /* before the lock: it may load the driver */
  environment_enter();
  pool_abandon_gone();
  struct mam_pool *pool = id != 0 ? pool_find_default(id) : NULL;
  if (pool != NULL)
    error = environment_end_locked(pool, id, false);
  endings_await_locked(id); /* whoever asked for the end, it has come when this returns */
  environment_exit();
  return error;
}

/* Size 0 is a success where anything could be allocated. */
static cudaError_t malloc_nothing(void) {
  NOT_CANCELLED;
  uint64_t id;
  return default_id_now(&id);
}

/* By the calling thread's front, the environment created if need be. */
static cudaError_t default_malloc(size_t size, const void *site, const void *tag, uintptr_t *address) {
  NOT_CANCELLED;
  struct front_request request = {.size = size, .site = site, .tag = tag};
  uint64_t created;
  cudaError_t error;
  do { /* again if the environment ended between being found and being asked */
    request.default_id = default_id_quick();
    error = environment_get(&request.pool, &request.default_id, &created);
    if (error == cudaSuccess)
      error = front_malloc(&request, address);
  } while (error == cudaErrorInvalidResourceHandle);
  if (error != cudaSuccess && created != 0) /* for nothing: as if its last block had been freed */
    (void)environment_emptied(&(struct pool_emptied){request.pool, request.default_id, created, false});
  else if (error == cudaSuccess && pool_to_be_watched(request.pool))
    environment_watch(request.pool);
  grown_look();
  return error;
}

/* The same, first by the thread's last front.  id: of the pool that is meant, 0 if that is not known; tried: the front
 * has been asked for what it has at hand. */
static cudaError_t default_malloc_front(uint64_t id, bool tried, size_t size, const void *site, const void *tag,
                                        uintptr_t *address) {
  struct front_request request = {
      .default_id = id != 0 ? id : default_id_quick(), .size = size, .site = site, .tag = tag, .tried = tried};
  cudaError_t error = request.default_id != 0 ? cudaSuccess : default_id_now(&request.default_id);
  if (error != cudaSuccess)
    return error;
  error = request.default_id != 0 ? front_malloc(&request, address) : cudaErrorInvalidResourceHandle;
  if (error == cudaErrorInvalidResourceHandle)
    return default_malloc(size, site, tag, address);
  grown_look();
  return error;
}

/* What is rare about MAM_CudaMalloc.  The thread's last front had nothing at hand.  Its id is asked for again: to keep
 * it would cost the quick way more. */
static __attribute__((noinline)) cudaError_t malloc_slowly(void **ptr, size_t size, const void *site) {
  uintptr_t address = 0;
  uint64_t id = default_id_quick();
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMalloc: ptr is NULL");
  cudaError_t error = size == 0 ? malloc_nothing() : default_malloc_front(id, id != 0, size, site, NULL, &address);
  *ptr = (void *)address;
  return error;
}

cudaError_t MAM_CudaMalloc(void **ptr, size_t size) {
  if (ptr == NULL)
    return malloc_slowly(ptr, size, __builtin_return_address(0));
  uintptr_t address = front_malloc_quick(size, __builtin_return_address(0), default_id_quick());
  if (__builtin_expect(address == 0, false))
    return malloc_slowly(ptr, size, __builtin_return_address(0));
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t MAM_CudaMallocTagged(void **ptr, size_t size, const void *tag) {
  uintptr_t address = 0;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocTagged: ptr is NULL");
  cudaError_t error =
      size == 0 ? malloc_nothing() : default_malloc_front(0, false, size, __builtin_return_address(0), tag, &address);
  *ptr = (void *)address;
  return error;
}

/* Ends the environment that a free has emptied. */
static cudaError_t free_finish(cudaError_t error, const struct pool_emptied *emptied) {
  if (emptied->pool == NULL)
    return error;
  if (emptied->watch) {
    environment_watch(emptied->pool);
    return error;
  }
  cudaError_t ended = environment_emptied(emptied);
  return error == cudaSuccess ? ended : error;
}

/* What is rare about a free: what front_free_quick said. */
static __attribute__((noinline)) cudaError_t free_slowly(uintptr_t address, enum front_freed freed) {
  NOT_CANCELLED;
  struct pool_emptied emptied;
  cudaError_t error = cudaSuccess;
  if (freed == FRONT_FREED_ZERO)
    front_zero(&emptied);
  else
    error = front_free(address, &emptied);
  return free_finish(error, &emptied);
}

cudaError_t MAM_CudaFree(void *ptr) {
  if (ptr == NULL)
    return cudaSuccess;
  enum front_freed freed = front_free_quick((uintptr_t)ptr);
  return __builtin_expect(freed == FRONT_FREED, true) ? cudaSuccess : free_slowly((uintptr_t)ptr, freed);
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
  uint64_t id = default_id_quick(), created;
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
  cudaError_t error = cudaErrorInvalidResourceHandle;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "%s: ptr is NULL", who);
  request->pool = pool;
  request->default_id = POOL_ANY_ID;
  if (pool_is_known(pool))
    error = request->size == 0 ? pool_usable(pool) : front_malloc(request, &address);
  *ptr = (void *)address;
  if (error == cudaSuccess && pool_to_be_watched(pool))
    environment_watch(pool);
  grown_look();
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

/* Names a stream; notices whether it is being captured.  The legacy stream never is, and nobody but the current context
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
  struct context_stream stream;
  bool entered;
  cudaError_t error = stream_name(handle, request->pool, request->default_id, &stream, &entered);
  return error == cudaSuccess ? front_malloc_stream(request, stream, address) : error;
}

cudaError_t MAM_PoolMallocAsync(MAM_Pool pool, void **ptr, size_t size, cudaStream_t stream) {
  NOT_CANCELLED;
  struct front_request request = {
      .pool = pool, .default_id = POOL_ANY_ID, .size = size, .site = __builtin_return_address(0)};
  uintptr_t address = 0;
  cudaError_t error = cudaErrorInvalidResourceHandle;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_PoolMallocAsync: ptr is NULL");
  if (pool_is_known(pool))
    error = size == 0 ? pool_usable(pool) : stream_malloc(&request, stream, &address);
  *ptr = (void *)address;
  grown_look();
  return error == cudaErrorInvalidResourceHandle ? refuse_handle("MAM_PoolMallocAsync") : error;
}

static cudaError_t default_malloc_stream(struct front_request *request, cudaStream_t stream, uintptr_t *address) {
  NOT_CANCELLED;
  uint64_t created;
  cudaError_t error;
  do { /* as in default_malloc */
    request->default_id = default_id_quick();
    error = environment_get(&request->pool, &request->default_id, &created);
    if (error == cudaSuccess)
      error = stream_malloc(request, stream, address);
  } while (error == cudaErrorInvalidResourceHandle);
  if (error != cudaSuccess && created != 0)
    (void)environment_emptied(&(struct pool_emptied){request->pool, request->default_id, created, false});
  else if (error == cudaSuccess && pool_to_be_watched(request->pool))
    environment_watch(request->pool);
  grown_look();
  return error;
}

cudaError_t MAM_CudaMallocAsync(void **ptr, size_t size, cudaStream_t stream) {
  struct front_request request = {.size = size, .site = __builtin_return_address(0)};
  uintptr_t address = 0;
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocAsync: ptr is NULL");
  cudaError_t error = size == 0 ? malloc_nothing() : default_malloc_stream(&request, stream, &address);
  *ptr = (void *)address;
  return error;
}

static cudaError_t free_by_rule(void *ptr, MAM_Reuse reuse, cudaStream_t handle) {
  NOT_CANCELLED;
  struct pool_emptied emptied = {0};
  struct context_stream stream = {0};
  bool entered = true;
  cudaError_t error = cudaSuccess;
  struct mam_pool *pool = front_pool_of((uintptr_t)ptr);
  if (pool == NULL)
    return pool_refuse_free((uintptr_t)ptr, false);
  if (reuse == MAM_REUSE_STREAM)
    error = stream_name(handle, pool, POOL_ANY_ID, &stream, &entered);
  if (!entered)
    return MAM_CudaFree(ptr); /* which knows what to answer */
  if (error == cudaSuccess)
    error = front_free_reuse((uintptr_t)ptr, reuse, stream, &emptied);
  return free_finish(error, &emptied);
}

cudaError_t MAM_CudaFreeAsync(void *ptr, cudaStream_t stream) {
  return ptr == NULL ? cudaSuccess : free_by_rule(ptr, MAM_REUSE_STREAM, stream);
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
  set_up_once();
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
    return default_pool_now(id);
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

const char *MAM_LastError(void) { return error_last(); }

/* ---- For client.c ---- */

/* No environment is made for a client.  The quick question has no answer after an error of the GPU: then the driver has
 * to say what happened. */
static cudaError_t client_malloc_slowly(size_t size, const void *site, uint64_t id, uintptr_t *address) {
  bool tried = id != 0;
  cudaError_t error = tried ? cudaSuccess : default_id_now(&id); /* by which the quick question is known */
  if (error != cudaSuccess)
    return error;
  id = tried ? id : default_id_quick();
  return id != 0 ? default_malloc_front(id, tried, size, site, NULL, address) : cudaErrorInvalidResourceHandle;
}

cudaError_t api_client_malloc(size_t size, const void *site, uintptr_t *address) {
  uint64_t id = default_id_quick();
  *address = front_malloc_quick(size, site, id);
  return __builtin_expect(*address != 0, true) ? cudaSuccess : client_malloc_slowly(size, site, id, address);
}

bool api_client_free(uintptr_t address, cudaError_t *error) {
  enum front_freed freed = front_free_quick(address);
  if (freed > FRONT_FREED_ZERO && front_pool_of(address) == NULL)
    return false;
  *error = freed == FRONT_FREED ? cudaSuccess : free_slowly(address, freed);
  return true;
}

bool api_source_is_device(void) {
  const struct options *options;
  return environment_options(&options) == cudaSuccess &&
         (options->source == MAM_SOURCE_DEVICE || options->source == MAM_SOURCE_VMM);
}

void api_contexts_changed(void) {
  NOT_CANCELLED;
  environment_enter();
  pool_abandon_gone();
  environment_exit();
}
