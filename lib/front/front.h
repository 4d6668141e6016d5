/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A front for each thread and pool, which serves most allocations and frees without a lock.  README.md says what it
 * keeps, where, and when another thread enters it.
 *
 * Stands on pool.h, slab.h and reuse.h.  Lock order: a pool's fronts lock, a front's own, a depot's, the pool's.  A
 * thread is never inside its front when it takes another lock or calls the driver.
 */
#ifndef MAM_LIB_FRONT_H
#define MAM_LIB_FRONT_H

#include "pool/pool.h"

/* A stream, and the handle that means it now. */
struct front_stream {
  struct context_stream name;
  CUstream handle;
};

/* What an allocation is about. */
struct front_request {
  struct mam_pool *pool;       /* NULL: by the id alone */
  uint64_t default_id;         /* as for pool_malloc */
  size_t size;                 /* not 0 */
  const void *site, *tag;      /* tag NULL: none */
  bool tried;                  /* front_malloc_quick (front_quick.h) had nothing at hand a moment ago */
  bool at_once;                /* never waits for the GPU: a request that would have to is refused */
  struct front_stream *stream; /* for work on it: what was freed on it may serve before it has passed; NULL: none */
  struct lane *lane;           /* of the stream in a front: the front's to set */
};

/* pool_malloc by the calling thread's front, made if there is none and the pool is given.  Without a pool:
 * cudaErrorInvalidResourceHandle if the thread's last front is not of that id. */
cudaError_t front_malloc(const struct front_request *request, uintptr_t *address);

/* What came of a free. */
enum front_freed {
  FRONT_FREED,         /* done */
  FRONT_FREED_ZERO,    /* done, and the pool may be empty: the caller calls front_zero */
  FRONT_FREED_NO_ROOM, /* not freed, the magazine has no room: the caller calls front_free */
  FRONT_FREED_NOT      /* not freed, the front knows of no such block: the caller calls front_free */
};

/* A free by all means.  Errors: as pool_free; *emptied as there. */
cudaError_t front_free(uintptr_t address, struct pool_emptied *emptied);

/* The same of a block of that pool and generation; of another one's that has come to the address it frees none. */
cudaError_t front_free_of(struct mam_pool *pool, uint64_t generation, uintptr_t address, struct pool_emptied *emptied);

/* After FRONT_FREED_ZERO: fills *emptied as a free does. */
void front_zero(struct pool_emptied *emptied);

/* A free under a rule of its own: the fenced or the immediate one.  front_free_on: on a stream. */
cudaError_t front_free_reuse(uintptr_t address, MAM_Reuse reuse, struct pool_emptied *emptied);
cudaError_t front_free_on(uintptr_t address, const struct front_stream *stream, struct pool_emptied *emptied);

/* The pool of the block at an address; NULL if no pool has that address. */
struct mam_pool *front_pool_of(uintptr_t address);

/* Lets the quick paths see the calling thread's first front, unless calls are recorded; and lets them see none. */
void front_show(void);
void front_hide(void);

/* What a record's beginning has done to the thread's fronts is heard of: their locks are quick again, and front_show.
 */
void front_heed(void);

/* After pools have ended: frees what the calling thread has kept for them, but for one front.  Not in the middle of
 * another call. */
void front_trim(void);

/* As pool_retire: if only_if_empty, no block of any front is live and none becomes so. */
bool front_retire(struct mam_pool *pool, uint64_t default_id, bool only_if_empty);

/* Once, before the first pool with fronts is opened. */
void front_set_up(void);

/* While the calling thread forks, with its fronts held still, it has none at hand. */
void front_before_fork(void);
void front_after_fork(void);

/* What pools call: see struct pool_front. */
extern const struct pool_front front_operations;

#endif
