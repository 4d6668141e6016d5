/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Environments: the default pools, one for each CUDA context, known by the context's id; on plain host memory
 * (MAM_SOURCE=host) one for the process.  This room knows which of them a call means, makes them and ends them;
 * reaper.h ends them by itself.
 *
 * environment_lock is the first in the lock order.  It is held while environments come and go, and left while
 * one ends.
 */
#ifndef MAM_LIB_ENVIRONMENT_H
#define MAM_LIB_ENVIRONMENT_H

#include <pthread.h>

#include "base/options.h"
#include "cuda/driver.h"
#include "pool/pool.h"

extern pthread_mutex_t environment_lock __attribute__((visibility("hidden")));

/* What environments and their reaper share; under the lock. */
struct environment_reaper {
  pthread_cond_t wakes; /* a pool is watched, or the process ends */
  bool runs, process_ends;
};
extern struct environment_reaper environment_reaper __attribute__((visibility("hidden")));

void environment_enter(void);
void environment_exit(void);

/* What the reaper knows of a pool; under the lock.  The pool has it as pool->watch, NULL until it is needed, and keeps
 * it when its struct becomes another pool's. */
struct watch {
  int64_t linger_ns;            /* how long the pool outlives its last block */
  int64_t linger_until_ns;      /* when to look whether it was used since, 0 if not watched */
  uint64_t linger_malloc_count; /* its malloc_count at the last look */
  struct pool_calm calm;        /* what was seen at the last look whether it is calm, */
  int64_t calm_until_ns;        /* when to look next, 0 if it has not grown; */
  unsigned calm_patience;       /* after so many times the usual time, as the pool grew again when it had given back, */
  unsigned calm_idle;           /* times as many, as there was nothing to give back */
  int64_t calm_trimmed_ns;      /* when it was last found calm, and gave memory back */
};

/* The pool's, made if it has none.  NULL if the host has no memory: then the pool is not watched.  The lock is held. */
struct watch *environment_watch_locked(struct mam_pool *pool);

/* Once, before the first pool: also when the library is loaded. */
void environment_set_up(void);

/* The options: the variables', read at the first use and never again, or those of environment_create_with.  A mistake
 * in them is not remembered. */
cudaError_t environment_options(const struct options **options);

/* A client's chunks (client.h): 0 without a client. */
void environment_client_chunks_set(size_t chunk_bytes);
size_t environment_client_chunk_bytes(void);

/* ---- Which environment a call means ---- */

/* How to ask for the id of the default pool that the calling thread means, once that is known: the driver's cuCtxGetId,
 * which is asked about the current context, or what answers for it. */
typedef CUresult environment_ask(CUcontext current, unsigned long long *id);
extern _Atomic(environment_ask *) environment_asked __attribute__((visibility("hidden")));

/* By one quick question; 0 if it has no answer, which does not say that there is none. */
static inline uint64_t environment_id_quick(void) {
  unsigned long long id;
  /* acquire: what the driver's loading wrote; pairs with the release in environment_id_now */
  CUresult result = atomic_load_explicit(&environment_asked, memory_order_acquire)(NULL, &id);
  return __builtin_expect(result == CUDA_SUCCESS, true) ? id : 0;
}

/* The id of the default pool that the calling thread means now; 0 if it has no current context that lives. */
cudaError_t environment_id_now(uint64_t *id);

/* The calling thread's default pool if there is one, else NULL. */
struct mam_pool *environment_pool_now(uint64_t *id);

/* The calling thread's default pool, created if need be: *created is then its generation, else 0.  *id is its id; as
 * given, it is what environment_id_quick said. */
cudaError_t environment_get(struct mam_pool **pool, uint64_t *id, uint64_t *created);

/* ---- Their beginning and end ---- */

/* The id of the one default pool on plain host memory; a context's is a small number or a handle. */
static const uint64_t ENVIRONMENT_HOST_ID = UINT64_MAX - 1;

/* The options with a source and a limit of the caller's in place of theirs.  Whether the default pool is in plain host
 * memory is settled by what is published first, and stays: every call that means a default pool has to find the same.
 */
cudaError_t environment_options_with(const char *source, const char *limit, struct options *wanted);

/* From now on default pools are made by these.  The lock orders the threads that publish. */
void environment_options_publish_locked(const struct options *wanted);

/* bytes: 0 for all there are.  who: the public function that asks. */
cudaError_t environment_create(size_t bytes, const char *who);

/* The same with a source and a limit in place of the options' own; NULL keeps theirs.  After a success they are the
 * options'. */
cudaError_t environment_create_with(size_t bytes, const char *source, const char *limit, const char *who);

/* Ends the environment if it is still the one that is meant and, if only_if_empty, lazy and without a live block.  The
 * lock is left while the memory goes back: that waits for the GPU, and no other thread has to. */
cudaError_t environment_end_locked(struct mam_pool *pool, uint64_t id, bool only_if_empty);

/* Waits, with the lock left, until no environment of that id is ending: its memory is what the next one is made of. */
void environment_await_locked(uint64_t id);

#endif
