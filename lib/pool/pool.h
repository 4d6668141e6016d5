/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The pool: segments in chunks, one lock, and the rule of when freed memory may be handed out again.
 *
 * Stands on segment.h (what is where), source.h (chunks and waiting for the GPU) and chunk_map.h (whose is an address).
 * A default pool carries its context's id; which pools are default ones, lib/api decides.
 *
 *   a chunk, in segments:   | used | free | waiting | used | free |
 *   malloc makes a free segment used, free makes it waiting, and it is free again when its fence has passed.
 *
 * Lock order: environment_lock (lib/api), pools_lock (the list of pools), one pool's lock, chunk_map's write lock.  No
 * lock of this floor is held while a source is called, except to ask whether it lives.  A thread that leaves the lock
 * in the middle of a call counts itself in users; a thread that closes the pool waits until there are none.
 *
 * A struct mam_pool is never freed: a closed one is used for the next pool, and its lock stays a lock.  So a thread may
 * lock a pool whose pointer it found without a lock; under the lock it asks which pool that is (generation,
 * default_id).
 *
 * Invariants, checked by pool_check beside those of segment.h:
 *   - the segments' bytes add up to those of the chunks' usable parts;
 *   - held_bytes is the sum of the chunks' bytes, less unmapped and moving ones, and at most limit_bytes;
 *   - the pieces of a reserved chunk tile exactly what is neither unmapped nor moving in it;
 *   - only the thread that has set growing changes pieces, unmapped segments and moving ones;
 *   - used bytes <= peak_taken_bytes; requested_bytes <= used bytes;
 *   - unless it grows, the bytes of its segments that have memory <= peak_reserved_bytes;
 *   - every used segment is a multiple of the alignment, in address and size;
 *   - no waiting segment has an epoch later than the present one.
 */
#ifndef MAM_LIB_POOL_H
#define MAM_LIB_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/record_file.h"
#include "cuda/reuse.h"
#include "cuda/source.h"
#include "pool/segment.h"

/* Blocks are aligned to this unless a pool's options say otherwise: sources align their memory to it at least. */
enum { POOL_ALIGNMENT_BYTES = 512 };

/* The range of that option: from what the largest type needs to the granularity of sources. */
enum { POOL_ALIGNMENT_LEAST_BYTES = 16, POOL_ALIGNMENT_MOST_BYTES = 2 << 20 };

/* Slabs (slab.h) serve sizes up to this one. */
enum { POOL_SMALL_MOST_BYTES = 32 << 10 };

/* Such a size is rounded up to a multiple of the alignment, of which there are so many. */
enum { POOL_SMALL_SIZES = POOL_SMALL_MOST_BYTES / POOL_ALIGNMENT_BYTES };

/* The pool gives tickets (segment.h) that are less than two to this power; fronts give the others. */
enum { POOL_TICKET_BITS = 40 };

enum pool_state {
  POOL_DEAD,    /* no pool; may be taken for a new one */
  POOL_OPENING, /* taken, not usable yet */
  POOL_OPEN,
  POOL_CLOSING, /* not usable; the thread that closes it waits for its users */
  POOL_LOSING,  /* the same, on the way to POOL_LOST instead of POOL_DEAD */
  POOL_LOST,    /* its memory went with its context; its owner has the handle until pool_close */
  POOL_FORKED   /* the child's image of a pool whose memory stayed with the parent */
};

/* Allocations that a front served itself, by how. */
enum front_hit { FRONT_HIT_MAGAZINE, FRONT_HIT_SIZE, FRONT_HIT_TAG, FRONT_HIT_STREAM, FRONT_HIT_KINDS };

/* The sums over all fronts of a pool. */
struct pool_front_sum {
  bool in_use;                               /* a block is live, or an allocation is on its way */
  size_t peak_bytes;                         /* the most that live blocks had together */
  size_t live_small_bytes, live_small_count; /* in slabs */
  size_t slab_bytes, small_waiting_bytes;    /* of slabs; of these, freed and waiting */
  /* Segments that fronts keep; of these, waiting. */
  size_t large_bytes, large_waiting_bytes, large_count, large_waiting_count;
  size_t requested_bytes;              /* to be added to the pool's own; may be negative, modulo 2^64 */
  size_t thread_count, metadata_bytes; /* of host memory */
  uint64_t hits[FRONT_HIT_KINDS], frees;
  uint64_t stream_large_hits; /* of FRONT_HIT_STREAM */
};

/* What stands in front of a pool (lib/front): the pool calls it, and knows no more of it.
 *
 * This arrow goes up, because a pool comes to need its fronts in the middle of a call: what they hold must come back
 * when the pool would otherwise grow, wait or refuse, by whatever call that is (an allocation, a trim, another pool's
 * growth), and numbers are exact only while no front changes.  A visible call would make the pool know its fronts,
 * whose locks come before its own.  Tests open pools without. */
struct pool_live;
struct pool_front {
  /* fronts_open (front_pool.c): before any thread can use the pool.  False: the host has no memory. */
  bool (*open)(struct mam_pool *pool);
  /* fronts_collect (front_collect.c): brings everything that fronts hold back to the pool, for its rule of reuse to
   * decide about; unless all, only as much of the small blocks as takes a fraction of a millisecond.  False if some
   * were left.  No lock is held. */
  bool (*collect)(struct mam_pool *pool, bool all);
  /* fronts_close (front_pool.c): the memory is about to go, the pool has no users left, no thread may be served any
   * more.  No lock is held. */
  void (*close)(struct mam_pool *pool);
  /* fronts_freeze_all (front_list.c), fronts_check_and_thaw_all, fronts_sum (front_pool.c): nothing changes in front
   * from freeze to thaw, in which sum may be called.  Before the pool's lock. */
  void (*freeze)(struct mam_pool *pool);
  void (*thaw)(struct mam_pool *pool);
  void (*sum)(struct mam_pool *pool, struct pool_front_sum *sum);
  /* fronts_reset_peak (front_pool.c): peak_bytes of the sum begin anew.  Between freeze and thaw. */
  void (*reset_peak)(struct mam_pool *pool);
  /* fronts_after_fork (front_pool.c): thaws after a fork, before which they were frozen.  With the pool's lock, as the
   * caller may have locks that a thread takes under the pool's (record.h). */
  void (*after_fork)(struct mam_pool *pool, bool in_child);
  /* fronts_begin_record (front_pool.c): a record begins, between freeze and after_fork.  Lists the live blocks of
   * slabs, NULL: nothing, and sees to it that each thread hears of the record before its next quick call. */
  void (*begin_record)(struct mam_pool *pool, struct pool_live *live);
};

/* See MAM_PoolOptions. */
struct pool_config {
  MAM_Reuse reuse;
  size_t alignment;   /* a power of two, in the range above */
  bool elastic;       /* one reserved chunk, mapped as needed; where the source can do only one of both, it decides */
  size_t chunk_bytes; /* 0: the largest there is, less headroom_bytes.  Elastic: mapped first and least at a time */
  size_t headroom_bytes;
  size_t limit_bytes;         /* 0: the first chunk's size.  Elastic: the source's total, less headroom_bytes */
  size_t user_limit_bytes;    /* 0: none; else neither the limit nor a chunk is larger */
  size_t waiting_limit_bytes; /* 0: half of what is held */
  bool keeps;                 /* gives nothing back before it closes, and unmaps nothing */
  uint64_t default_id;        /* the context's id for a default pool, else 0 */
  bool lazy;                  /* a default pool that came by itself */
  bool gives_all;             /* a trim gives the last chunk too, if it is free; not of an elastic one */
  bool in_chunks;             /* begins without a chunk, and takes chunks of at least chunk_bytes as it grows */
  bool no_slabs;              /* small blocks are segments of their own, with a call site each */
  bool guarded;               /* no block begins where a chunk does: by that address the driver would free the chunk */
  bool yields;                /* gives back what it has not needed for a while, all of it, also while it is in use */
  const struct pool_front *front; /* NULL: no fronts, in some tests */
};

/* What was freed on one stream and has not passed. */
struct pool_stream {
  SLIST_ENTRY(pool_stream) link;
  struct context_stream stream; /* replaced by another one when nothing waits */
  struct waiting_stream waiting;
};

struct pool_chunk {
  SLIST_ENTRY(pool_chunk) link;
  uintptr_t base; /* as the source gave it */
  size_t bytes;
  uintptr_t first;     /* the first segment's */
  size_t usable_bytes; /* what is left when both ends are cut to the alignment, and the guard */
  bool reserved;
  /* Of a reserved chunk: for each granule of the source the length in granules of the mapped piece that begins there, 0
   * if none does. */
  uint32_t pieces[];
};

/* Numbers by which lib/api knows that a pool is calm: they have hardly changed since the last look. */
struct pool_calm {
  uint64_t generation, malloc_count;
  size_t used_bytes, reserved_bytes, waiting_bytes;
  bool yields; /* as the pool's config */
};

struct mam_pool {
  struct mam_pool *next; /* constant once published */

  /* Relaxed: hints that are checked again under the lock, where they are written, or need not be exact. */
  _Atomic uint64_t default_id; /* config.default_id while open, else 0 */
  _Atomic size_t limit_hint;   /* limit_bytes */
  _Atomic bool reports_empty;  /* lazy: the last free reports it; else lib/api watches it */
  /* Several threads use it: no thread can tell that its free was the last, so a lazy pool has to be watched. */
  _Atomic bool crowded;
  _Atomic uint64_t growths;                      /* growths and trims that have ended */
  _Atomic bool grown;                            /* since lib/api last asked, by memory that it could give back */
  _Atomic size_t live_by_size[POOL_SMALL_SIZES]; /* used segments that a slab could have served */

  struct fronts *fronts;                       /* of lib/front; kept with the struct once it is there, as the next */
  _Atomic(const struct pool_front *) in_front; /* what to call for them; published after them */
  struct reuse *reuse;                         /* constant while open */
  uint64_t generation;                         /* constant while open: no two pools in this struct have the same */

  _Alignas(64) pthread_mutex_t lock; /* away from the hints; protects everything below, unless said otherwise */
  pthread_cond_t changed;            /* signalled when a thread steps back in, or the state changes */
  enum pool_state state;
  unsigned users;         /* threads that left the lock in the middle of a call */
  bool growing;           /* a thread grows or trims the pool, with the lock left in between */
  unsigned synchronizing; /* threads that wait for the GPU */

  struct pool_config config; /* constant while open */
  struct source source;      /* constant while open; used without the lock */
  int device;                /* of the source; for a record, 0 without one; constant while open */
  SLIST_HEAD(, pool_chunk) chunks;
  struct segment_set segments;
  SLIST_HEAD(, pool_stream) streams; /* the newest first */

  /* pool_reset clears all from here to frozen_for_fork. */
  uint64_t unfenced_epoch;  /* of the latest free whose memory was free at once, 0 if none was */
  unsigned freed_since;     /* segments freed since a fence was last asked for */
  size_t left_bytes;        /* what the fronts kept after the last look; 0 if it left what had not passed */
  uint64_t collected_epoch; /* the latest that had passed when the fronts were last collected; 0: never */

  size_t held_bytes;      /* of the source */
  size_t limit_bytes;     /* held_bytes never passes it */
  size_t moved_bytes;     /* put at places instead of growth, with what was mapped new there */
  size_t rush_bytes;      /* by which an elastic pool has grown, one growth soon after the other */
  int64_t rushed_ns;      /* when its last growth ended */
  size_t live_most_bytes; /* the most that was live when a block was taken, while taken_bytes were; */
  size_t live_last_bytes; /* and in the period before */
  size_t taken_bytes;
  unsigned looks;          /* at what fronts keep, by weight, since the pool grew */
  unsigned vain_looks;     /* of an elastic pool, as many as led to a hole's being cut up */
  uint64_t looked_growths; /* growths that had ended at the last of these */
  size_t speed_bytes;      /* by which an elastic pool grew for speed alone, since a trim */
  size_t wanted_bytes;     /* that threads wait for while another grows the pool */
  size_t refused_bytes;    /* the smallest size that the source has refused, 0 if it has refused none */
  size_t requested_bytes;  /* live, as asked for */
  size_t span_count;       /* used segments that are slabs, or on their way between the pool and a depot */
  size_t peak_taken_bytes; /* the most of the segments' used bytes: with whole slabs, and with what fronts keep */
  size_t peak_reserved_bytes;
  uint64_t ticket_next; /* odd */
  uint64_t malloc_count, free_call_count, failure_count, synchronize_count, stream_hit_count;
  uint64_t source_call_count; /* changes of held_bytes */
  char source_said[256];      /* why it last refused a chunk; "" if it never has */

  const struct pool_front *frozen_for_fork;

  struct watch *watch; /* of lib/api (environment.h), under its lock; kept with the struct once it is there */
};

/* What is live at the beginning of a record; lost: blocks that the host had no memory for. */
struct pool_live {
  struct record_live *all;
  size_t count, room;
  uint64_t lost;
};
void pool_live_add(struct pool_live *live, const struct record_live *one);

/* Lists what all open pools hold, between pool_before_fork and pool_after_fork. */
void pools_list_live(struct pool_live *live);

/* By what a record tells apart what is limited apart: the default pools of a context, one after the other, and each
 * pool that the program created.  A struct that serves one pool after the other has one name for all those of a device,
 * so a program that creates pools without an end has only so many.  Addresses have 48 bits. */
static inline uint64_t pool_record_context(const struct mam_pool *pool) {
  uint64_t created = RECORD_CREATED | (uint64_t)pool->device << 48 | (uintptr_t)pool;
  return pool->config.default_id != 0 ? pool->config.default_id : created;
}

/* Opens a pool on an open source, which then belongs to the pool; takes the first chunk.  On failure *pool is left
 * alone and the source is still the caller's. */
cudaError_t pool_open(const struct pool_config *config, const struct source *source, struct mam_pool **pool);

/* Closes the pool if its default_id is still the given one (0: no default pool).  Waits for calls in progress and gives
 * the memory back, which waits for the GPU.  cudaErrorInvalidResourceHandle, without an error text, if it is not that
 * pool any more. */
cudaError_t pool_close(struct mam_pool *pool, uint64_t default_id);

/* The two halves of pool_close, for a caller with a lock that it must not hold during the wait.  pool_retire returns
 * whether the pool was the one that is meant and, if only_if_empty, lazy and without a live block.  If so, the pool is
 * closing and is not found any more, and the caller has to call pool_finish, which waits and gives the memory back. */
bool pool_retire(struct mam_pool *pool, uint64_t default_id, bool only_if_empty);
cudaError_t pool_finish(struct mam_pool *pool);

/* Sets the peaks to what the pool holds at the moment. */
cudaError_t pool_reset_peaks(struct mam_pool *pool, uint64_t default_id);

/* The counts of all pools that have ended, and the highest of their peaks: of default pools, and of others. */
struct pool_past_kind {
  size_t pool_count;
  uint64_t malloc_count, hit_count, synchronize_count;
  size_t peak_used_bytes;
};
struct pool_past {
  struct pool_past_kind defaults, others;
  size_t left_count, left_bytes; /* of every pool: blocks that were live at its end, and what was asked for */
};
struct pool_past pool_past(void);

/* Whether the pool is still that default pool, and whether it is in use. */
enum pool_look { POOL_GONE, POOL_BUSY, POOL_CROWDED, POOL_EMPTY }; /* crowded: busy, and no emptying is reported */
/* Looks at a lazy pool.  Unless it is empty, its next emptying is reported again (watched ends). */
enum pool_look pool_look(struct mam_pool *pool, uint64_t default_id, uint64_t *malloc_count);

/* Empties every pool whose context is gone, without giving back memory that is gone too.  A pool that is no default
 * pool then stays, as POOL_LOST, until its owner closes it. */
void pool_abandon_gone(void);

/* size > 0 bytes at *address, of a pool without fronts.  default_id as for pool_close, POOL_ANY_ID if it does not
 * matter.  site: where in the program.  cudaErrorInvalidResourceHandle, without an error text, if it is not that pool
 * (any more). */
#define POOL_ANY_ID UINT64_MAX
cudaError_t pool_malloc(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site, void **address);

/* ---- For lib/front ---- */

/* A block that the pool handed out.  Its segment is not the caller's: another thread may free the block at any time, by
 * the address of an earlier block.  The ticket tells the caller whether the segment still is the block's. */
struct pool_block {
  struct segment *segment;
  uintptr_t address;
  size_t bytes;
  uint64_t ticket;
  bool contended; /* another thread had the pool's lock at the time */
  /* If POOL_TAKE_LAST found no room, the pool's bytes then: used, of these for slabs, waiting for the GPU, and free or
   * still to be taken. */
  size_t used_bytes, slab_bytes, waiting_bytes, room_bytes;
};

/* Counts the caller among the users of the pool, which cannot end before pool_exit.  Errors: as pool_malloc. */
cudaError_t pool_enter(struct mam_pool *pool, uint64_t default_id);
void pool_exit(struct mam_pool *pool);

/* pool_malloc of the pool of that generation, if it has not ended.  effort: from what is free and, where memory is
 * short, fits closely; or from what is free; or also by a growth of growth_bytes, to at most half of the limit; or from
 * what is free, wherever, with nothing spared (these else fail with cudaErrorMemoryAllocation, without an error text);
 * or by all means; or by all means that never wait for the GPU (these with CUDA_ERROR_NOT_READY, and the caller calls
 * pool_refuse in the end). */
#define POOL_ANY_GENERATION 0
enum pool_effort {
  POOL_TAKE_CLOSE,
  POOL_TAKE_FREE,
  POOL_TAKE_GROWTH,
  POOL_TAKE_LAST,
  POOL_TAKE_ANY,
  POOL_TAKE_AT_ONCE
};
struct pool_order {
  uint64_t default_id, generation;
  size_t size;
  const void *site, *tag;
  enum pool_effort effort;
  size_t growth_bytes, growth_most_bytes; /* of POOL_TAKE_GROWTH; most: if it is by chunks, which may be larger */
  size_t live_bytes; /* of the pool's live blocks and this one, as far as the caller knows; 0: all that is used */
  bool live_exact;   /* it knows: no other thread has the pool */
  struct context_stream stream; /* what was freed on it may serve before it has passed; id 0: none */
};
cudaError_t pool_take(struct mam_pool *pool, const struct pool_order *order, struct pool_block *block);

/* An allocation gives up after so many waits of its own for the GPU.  One is enough where a single thread allocates.
 * Among many threads, another one may take what the wait made free and free it again; but an allocation that can never
 * be served must not wait for ever.  With 8, four threads that shared four blocks saw a refusal in up to one of three
 * runs of half a second. */
enum { POOL_WAITS_MOST = 16 };

/* Waits for the GPU, for an allocation of the pool of that generation: until there is a hole of enough bytes, or all
 * that waited is free.  The caller has no lock.  cudaErrorMemoryAllocation, without an error text, if the pool has
 * ended or a capture forbids it; else, what the wait says. */
cudaError_t pool_await_gpu(struct mam_pool *pool, uint64_t generation, size_t enough);

/* Refuses an allocation of the pool of that generation: counts it, sets the error and returns it. */
cudaError_t pool_refuse(struct mam_pool *pool, uint64_t generation, size_t size);

/* Notes that memory was freed for which nobody waits, though a kernel may still use it: before the present epoch has
 * passed, none of the pool's memory is unmapped. */
void pool_freed_unfenced(struct mam_pool *pool);

/* Takes used segments back whose blocks were freed in epoch or earlier, on a stream unless its id is 0.  Nothing
 * happens if the pool has become one of another generation: then the segments are none of its own. */
void pool_give(struct mam_pool *pool, uint64_t generation, struct segment *const *segments, unsigned count,
               uint64_t epoch, struct context_stream stream);

/* Memory for slabs: used segments of so many bytes, at multiples of that, which are no blocks.  pool_slab_take never
 * waits for the GPU.  pool_slab_give makes one free at once: the GPU is known to be done with it. */
enum { POOL_SLAB_BYTES = 1 << 19 };
cudaError_t pool_slab_take(struct mam_pool *pool, uintptr_t *base);
void pool_slab_give(struct mam_pool *pool, uintptr_t base);

/* Before a front takes a further slab.  Where only waits make free what was freed, waits for the GPU if more bytes wait
 * than the waiting limit, with what the fronts keep; not during a capture, nor while another thread waits.  Whether it
 * did.  The caller is a user of the pool and has no lock. */
bool pool_wait_before_slab(struct mam_pool *pool);

/* Gives memory that is free back to the source as long as more than keep_bytes are held: of an elastic pool the mapped
 * pieces that lie in free segments, from the highest address down; of another whole chunks, but never its last one, as
 * the paper's pool is its chunk and might not get it again.  What the fronts keep is collected first.  Waits for no
 * kernel, but for what the source waits for in chunk_give; and, if the caller lets it, where the driver has no fences
 * and something waits, unless a capture is known.  Errors: as pool_usable, and what the source or the wait says. */
cudaError_t pool_trim(struct mam_pool *pool, uint64_t default_id, size_t keep_bytes, bool waits);

/* Whether any pool, or this pool, has grown since this was last asked, by memory that it could give back. */
bool pools_grown(void);
bool pool_has_grown(struct mam_pool *pool);

/* How often the pool's growths and trims have ended.  If one goes on, after its end, or at end_ns (now_ns). */
uint64_t pool_moves(struct mam_pool *pool, int64_t end_ns);

/* Fills *calm with the pool's numbers.  False if it is not open. */
bool pool_calm_look(struct mam_pool *pool, struct pool_calm *calm);

/* pool_trim of the pool of that generation, without any wait.  Giving a chunk waits for the GPU, so if the GPU has work
 * to do, nothing happens: cudaErrorNotReady (600), without an error text. */
cudaError_t pool_trim_calm(struct mam_pool *pool, uint64_t generation, size_t keep_bytes);

/* Whether lib/api has to watch it from now on, because no thread can report that it is empty. */
bool pool_to_be_watched(struct mam_pool *pool);

/* The host had no memory for that: a later call is told again. */
void pool_not_watched(struct mam_pool *pool);

/* The fronts are frozen and empty: fills *emptied if that is to be reported, as pool_free, and the pool is still of
 * that generation. */
struct pool_emptied;
void pool_report_emptied(struct mam_pool *pool, uint64_t generation, struct pool_emptied *emptied);

/* The error for a free of an address that is no live block.  freed_before: one may have begun there. */
cudaError_t pool_refuse_free(uintptr_t address, bool freed_before);

/* A lazy pool whose last block was freed; it is watched from then on.  pool is NULL if there is none.  watch: no thread
 * can tell whether its last block was freed, and lib/api has to watch it. */
struct pool_emptied {
  struct mam_pool *pool;
  uint64_t default_id, generation;
  bool watch;
};

/* Whether the pool's struct has not become another pool since, and it is open: addresses that it gave out are still its
 * own. */
bool pool_is_open(struct mam_pool *pool, uint64_t generation);

/* A rule of reuse for one block. */
struct pool_rule {
  MAM_Reuse reuse;
  struct context_stream stream; /* of MAM_REUSE_STREAM */
  bool passed;                  /* the GPU is known to be done with the block; reuse is MAM_REUSE_IMMEDIATE */
};

/* pool_free of a block of that pool, if it is still of that generation; else the address is no block.  rule NULL: the
 * pool's own; one of a stream comes after pool_accompany.  If a block was freed, whatever the error, *bytes is what it
 * had. */
cudaError_t pool_free_from(struct mam_pool *pool, uint64_t generation, uintptr_t address, const struct pool_rule *rule,
                           size_t *bytes);

/* Before a free on a stream.  If the stream is another context's, that context's work uses the pool's memory, and
 * fences wait for it, too.  The caller is a user of the pool.  Errors: as reuse_accompany. */
cudaError_t pool_accompany(struct mam_pool *pool, struct context_stream stream);

/* Frees a block of any pool that is a segment of its own.  emptied may be NULL. */
cudaError_t pool_free(void *address, struct pool_emptied *emptied);

/* The open default pool with that id, NULL if there is none.  No lock; see default_id. */
struct mam_pool *pool_find_default(uint64_t default_id);

/* The list of all structs of pools, linked by next.  The caller asks for the state under the pool's lock. */
struct mam_pool *pool_first(void);

/* Whether a handle from outside is, or was, a pool's. */
bool pool_is_known(struct mam_pool *pool);

/* Whether the pool is open: cudaErrorInvalidResourceHandle, without an error text, if it is not;
 * cudaErrorContextIsDestroyed if it is lost; cudaErrorInitializationError in a forked child. */
cudaError_t pool_usable(struct mam_pool *pool);

/* What the pool holds now.  default_id as for pool_malloc.  Errors: as pool_usable, here and below. */
cudaError_t pool_info(struct mam_pool *pool, uint64_t default_id, MAM_PoolInfo *info);
/* pool_report.c: strings for the caller to free. */
cudaError_t pool_report(struct mam_pool *pool, uint64_t default_id, char **json);
cudaError_t pool_explain(struct mam_pool *pool, uint64_t default_id, size_t size, char **text);
/* What all pools have done, or which blocks they still have, in words. */
void pools_tell_stats(FILE *stream);
void pools_tell_leaks(FILE *stream);
/* pool_check.c: NULL if every invariant holds, else which one does not.  The lock is held. */
const char *pool_check_locked(struct mam_pool *pool);

/* Fork: no pool is in the middle of a change between before and after; in the child, pools whose memory is a GPU's are
 * POOL_FORKED. */
void pool_before_fork(void);
void pool_after_fork(bool in_child);

#endif
