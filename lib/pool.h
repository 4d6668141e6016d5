/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pool: segments in chunks, one lock, and the rule of when freed memory may be handed out again.
 *
 * Stands on segment.h (what is where), source.h (chunks and waiting for the GPU) and chunk_map.h (whose is an address).
 * Does not know which pools are default ones, beyond carrying their context's id; that is api.c's.
 *
 * Lock order: api.c's environment_lock, pools_lock (the list of pools), one pool's lock, chunk_map's write lock.  No
 * lock of this file is held while a source is called, but for the question whether it lives: a thread that leaves the
 * lock in the middle of a call counts itself in users, which whoever closes the pool waits for.
 *
 * Pools are type-stable: a closed pool's memory is kept for the next one and never unmapped, its lock stays a lock.
 * So a pointer to a pool that was found without a lock may be locked at any time; what it stands for is asked then.
 *
 * Invariants, checked by pool_check beside those of segment.h:
 *   - the segments' bytes add up to those of the chunks' usable parts;
 *   - held_bytes is the sum of the chunks' bytes and at most limit_bytes;
 *   - used bytes <= peak_used_bytes; requested_bytes <= used bytes;
 *   - every used segment is a multiple of the alignment, in address and size;
 *   - no waiting segment has an epoch later than the present one.
 */
#ifndef MAM_LIB_POOL_H
#define MAM_LIB_POOL_H

#include <pthread.h>
#include <stdatomic.h>

#include "segment.h"
#include "source.h"

enum { POOL_ALIGNMENT_BYTES = 512, POOL_ALIGNMENT_LEAST_BYTES = 16, POOL_ALIGNMENT_MOST_BYTES = 2 << 20 };

enum pool_state {
  POOL_DEAD,    /* no pool; may be claimed for a new one */
  POOL_OPENING, /* claimed, not usable yet */
  POOL_OPEN,
  POOL_CLOSING, /* usable no more; waits for its users */
  POOL_LOSING,  /* on the way from open to lost, as POOL_CLOSING is to dead */
  POOL_LOST,    /* its memory went with its context; the handle stays its owner's until pool_close */
  POOL_FORKED   /* the child's image of a pool whose memory stayed with the parent */
};

/* See MAM_PoolOptions. */
struct pool_config {
  MAM_Reuse reuse;
  size_t alignment;   /* a power of two, in the range above */
  size_t chunk_bytes; /* 0: the largest there is, less headroom_bytes */
  size_t headroom_bytes;
  size_t limit_bytes;         /* 0: the first chunk's size */
  size_t waiting_limit_bytes; /* 0: half of what is held */
  uint64_t default_id;        /* the context's id for a default pool, else 0 */
  bool lazy;                  /* a default pool that came by itself */
};

struct pool_chunk {
  SLIST_ENTRY(pool_chunk) link;
  uintptr_t base; /* as the source gave it */
  size_t bytes;
  size_t usable_bytes; /* what is left when both ends are cut to the alignment */
};

struct mam_pool {
  struct mam_pool *next; /* constant once published */

  /* Relaxed: a hint that is checked again under the lock, where it is written. */
  _Atomic uint64_t default_id; /* config.default_id while open, else 0 */

  pthread_mutex_t lock;   /* protects everything below, unless said otherwise */
  pthread_cond_t changed; /* signalled when a thread steps back in, or the state changes */
  enum pool_state state;
  unsigned users; /* threads that left the lock in the middle of a call */
  bool growing;
  unsigned synchronizing; /* threads that wait for the GPU */

  struct pool_config config; /* constant while open */
  struct source source;      /* constant while open; used without the lock */
  SLIST_HEAD(, pool_chunk) chunks;
  struct segment_set segments;
  uint64_t epoch; /* of frees made now: passed by a synchronise that begins later */

  size_t held_bytes;      /* of the source */
  size_t limit_bytes;     /* held_bytes never passes it */
  size_t refused_bytes;   /* the least that the source had no chunk for, 0 if it always had */
  size_t requested_bytes; /* live, as asked for */
  size_t peak_used_bytes;
  uint64_t malloc_count, free_call_count, failure_count, synchronize_count;
  char source_said[256]; /* why it last gave no chunk, "" if it never did not */

  bool watched; /* api.c looks at a lazy pool by itself: its emptying needs no report */

  /* api.c's, under its environment_lock. */
  int64_t linger_ns;            /* how long the pool outlives its last block */
  int64_t linger_until_ns;      /* when to look whether it was used since, 0 if not watched */
  uint64_t linger_malloc_count; /* its malloc_count at the last look */
};

/* Opens a pool on an open source, which then belongs to the pool; takes the first chunk.  On failure *pool is left
 * alone and the source is still the caller's. */
cudaError_t pool_open(const struct pool_config *config, const struct source *source, struct mam_pool **pool);

/* Closes the pool if its default_id is still the given one (0: no default pool).  Waits for calls in progress and gives
 * the memory back, which waits for the GPU.  cudaErrorInvalidResourceHandle, without an error text, if it is not that
 * pool any more. */
cudaError_t pool_close(struct mam_pool *pool, uint64_t default_id);

/* The two halves of pool_close, for who holds a lock that must not be held during the wait.  pool_retire: whether the
 * pool was the one that is meant and, if only_if_empty, lazy and without a live block; then it is closing, nobody finds
 * it any more, and pool_finish must follow, which waits and gives the memory back. */
bool pool_retire(struct mam_pool *pool, uint64_t default_id, bool only_if_empty);
cudaError_t pool_finish(struct mam_pool *pool);

/* Whether the pool is still that default pool, and what it is about. */
enum pool_look { POOL_GONE, POOL_BUSY, POOL_EMPTY };
/* Looks at a lazy pool.  Unless it is empty, its next emptying is reported again (watched ends). */
enum pool_look pool_look(struct mam_pool *pool, uint64_t default_id, uint64_t *malloc_count);

/* Empties every pool whose context is gone, without giving back what is not there.  Those that are nobody's default
 * stay their owner's, who may not know yet. */
void pool_abandon_gone(void);

/* size > 0 bytes at *address.  default_id as for pool_close, POOL_ANY_ID if it does not matter.  site: where in the
 * program.  cudaErrorInvalidResourceHandle, without an error text, if it is not that pool (any more). */
#define POOL_ANY_ID UINT64_MAX
cudaError_t pool_malloc(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site, void **address);

/* A lazy pool that lost its last block; it is watched from then on.  pool NULL if none did. */
struct pool_emptied {
  struct mam_pool *pool;
  uint64_t default_id;
};

/* Frees a block of any pool. */
cudaError_t pool_free(void *address, struct pool_emptied *emptied);

/* The open default pool with that id, NULL if there is none.  No lock; see default_id. */
struct mam_pool *pool_find_default(uint64_t default_id);

/* All pools there ever were, linked by next: the state is to be asked under the lock. */
struct mam_pool *pool_first(void);

/* Whether a handle from outside is, or was, a pool's. */
bool pool_is_known(struct mam_pool *pool);

/* Whether the pool is open: cudaErrorInvalidResourceHandle, without an error text, if it is not;
 * cudaErrorContextIsDestroyed if it is lost; cudaErrorInitializationError in a forked child. */
cudaError_t pool_usable(struct mam_pool *pool);

/* What the pool holds now.  Errors: as pool_usable, here and below. */
cudaError_t pool_info(struct mam_pool *pool, MAM_PoolInfo *info);
/* pool_report.c: strings for the caller to free. */
cudaError_t pool_report(struct mam_pool *pool, char **json);
cudaError_t pool_explain(struct mam_pool *pool, size_t size, char **text);
/* pool_check.c: NULL if every invariant holds, else which one does not.  The lock is held. */
const char *pool_check_locked(struct mam_pool *pool);

/* For pool_report.c: pool_usable, the lock held. */
cudaError_t pool_usable_locked(const struct mam_pool *pool);
/* The same numbers as pool_info, the lock held. */
void pool_info_locked(struct mam_pool *pool, MAM_PoolInfo *info);

/* Fork: no pool is in the middle of a change between before and after; in the child, pools whose memory is a GPU's are
 * POOL_FORKED. */
void pool_before_fork(void);
void pool_after_fork(bool in_child);

#endif
