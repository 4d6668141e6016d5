/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The front from inside: what its rooms (front_*.c) share.
 *
 *   thread -> front of pool A -> front of pool B -> ...                      (front_mine, next_of_thread)
 *               |
 *               |- magazines[32]  small blocks, one magazine a size class     magazine.h
 *               |    loaded       malloc pops here, at most 64 blocks
 *               |    filling      free pushes here, at most 64 blocks
 *               |    resting      full batches, each with the epoch of its frees
 *               |    shells       empty batches
 *               |- owned          live large blocks that the thread allocated  owned.h
 *               |- shelves[152]   freed large blocks: 32 of one size or one tag     shelf.h
 *               |                 then 120 of a range of sizes, the bins      bin.h
 *               `- lanes[16]      small blocks that were freed on a stream     lane.h
 *   pool   -> fronts -> front of thread 1 -> front of thread 2 -> ...         (next_of_pool)
 *               `- depots[32]     batches and slabs of one size class, for all fronts   slab.h
 *
 * Invariants, checked by front_check.h:
 *   - A block of a slab is in exactly one place: live, in one batch of one front (or lane) or depot, or inside its
 *     slab.  A block whose live byte is not 0 is live.
 *   - Blocks allocated less blocks freed, over all magazines of a class, are the live blocks of its slabs; what their
 *     live bytes hold adds up to the magazines' codes, while no thread of the pool has ended.
 *   - The balances of the pool's threads, and what is in the pool's sum, are the bytes of the live blocks.
 *   - A block on a shelf or in a bin is a used segment with an even ticket, and in one such place.
 *   - An owned entry whose ticket is its segment's has the segment's address.
 *   - The blocks of a shelf have its size or its tag; those of a bin have sizes of its range.
 *   - A ring is oldest first, by epoch.
 *
 * Rooms, from below; each calls those before it alone.  balance, owned, shelf, bin and magazine know no front.
 * front_list holds the fronts of a pool still; front_collect empties them; front_thread finds and makes a thread's
 * fronts. front_quick.h is the quick path, front_quick.c what is rare about it.  front_small and front_large refill
 * what the quick path serves from; front_malloc and front_free put the slow calls together.  front_check verifies all
 * this. front_pool is what the pool calls.
 *
 * A thread is inside its front from biased_enter to biased_leave.  "The thread is inside" at a function says that the
 * caller must be.
 */
#ifndef MAM_LIB_FRONT_INSIDE_H
#define MAM_LIB_FRONT_INSIDE_H

#include "base/biased.h"
#include "base/record.h"
#include "front/balance.h"
#include "front/bin.h"
#include "front/front.h"
#include "front/lane.h"
#include "front/magazine.h"
#include "front/shelf.h"

/* Later than any epoch. */
#define FRONT_EVERY_EPOCH UINT64_MAX

/* The default_id of a front that serves no default pool: no context's. */
#define FRONT_NO_DEFAULT_ID UINT64_MAX

/* The last_size of a front without one: no shelf has it. */
enum { FRONT_NO_SIZE = 1 };

/* By size or tag, and then the bins. */
enum { FRONT_SHELVES = SHELVES + BINS };

/* Segments that go back to the pool in one hold of its lock. */
enum { FRONT_GIVEN_MOST = 64 };

/* Written by the owner inside, read by other threads that add up while no thread is inside, here and below. */
struct front_numbers {
  int64_t requested_bytes;    /* what hand-outs from shelves changed in what segments say was asked for */
  uint64_t tag_hits;          /* hand-outs by tag, of all those from shelves */
  uint64_t stream_large_hits; /* of what was freed on the same stream, of all those from shelves */
  uint64_t stream_small_hits; /* the same of small blocks */
};

struct front {
  /* What every quick allocation and free looks at is on one cache line, what those of large blocks do on the next. */
  _Alignas(64) struct biased lock; /* for everything below but what says otherwise */
  bool immediate, shelves_off;     /* shelves_off: without fences, freed blocks would never be known to have passed */
  bool alone;                      /* no other thread claims blocks of the pool (claim.h) */
  struct mam_pool *pool;           /* NULL: of a pool that ended, free for another */
  uint64_t default_id;             /* FRONT_NO_DEFAULT_ID if the pool is none */
  const _Atomic uint64_t *epoch;   /* that a free takes: the reuse's, or no_epoch if immediate */
  struct balance balance;          /* its first half */
  _Alignas(64) struct owned *last_places; /* for the block that a shelf served last */
  size_t last_size;                       /* untagged, that a shelf served last; FRONT_NO_SIZE: none */
  struct shelf *last_shelf;               /* which one */
  uint64_t ticket_next;                   /* each hand-out from a shelf takes one */
  struct reuse *reuse;
  int64_t unfenced_left; /* so many bytes more may be freed before the next fence, */
  int64_t fence_bytes;   /* after one so many */
  uint64_t ticket_first; /* the pool's */
  struct front_numbers numbers;
  bool allocates; /* an allocation of the thread's is on its way: the pool is not to be taken for empty */
  /* Of the pool, or of the last one.  Only the owner changes these, in front_attach, and so reads them without the lock
   * as well. */
  uint64_t generation;
  size_t alignment;
  bool no_slabs;
  struct magazine magazines[SLAB_CLASSES];
  struct owned owned[1 << OWNED_BITS]; /* all 0 while there is no pool, or shelves_off */
  struct shelf shelves[FRONT_SHELVES];
  struct bins bins;
  struct freed_block no_ring; /* of shelves that were never used */
  bool owns;                  /* owned has entries, or had some since there is a pool */
  struct lane lanes[LANES];
  struct lane *last_lane;    /* the owner's, inside or not, as the next six */
  unsigned lane_next;        /* to go to the next stream */
  bool keeps_of_streams;     /* shelves or bins may have blocks that were freed on streams */
  uint64_t lane_marks;       /* given so far */
  struct context context;    /* the pool's, to ask about streams; driver NULL: of a pool without */
  const struct shelf *tight; /* where the last slow allocations needed a fence for lack of free memory, */
  unsigned tight_count;      /* so many in a row; the owner's, inside or not, as the one before */
  uint64_t unfenced_epoch;   /* the present one when unfenced_left was last set; both are the owner's, inside or not */
  struct front *next_of_thread; /* the thread's own */
  struct front *next_of_pool;   /* under the fronts' lock */
  bool orphan;                  /* its thread is gone; under the fronts' lock */
  void *memory;                 /* that it lies in */
};

/* A few locks for all depots, which are used once in SLAB_BATCH operations: a fork has to hold them all, for each pool.
 */
enum { FRONT_DEPOT_LOCKS = 4 };

/* All fronts of a pool, and what they share. */
struct fronts {
  pthread_mutex_t lock; /* of the list */
  struct front *first;
  bool waited_in_vain;             /* for what threads have in hand, and they have it still (front_last.c) */
  bool shared;                     /* some thread had no memory for a front: none is ever alone again */
  struct balance_sum live;         /* bytes, as far as they are published */
  struct pool_front_sum gone;      /* the numbers of threads that ended, */
  int64_t gone_live[SLAB_CLASSES]; /* of these, the live blocks of each class */
  pthread_mutex_t depot_locks[FRONT_DEPOT_LOCKS];
  struct depot depots[SLAB_CLASSES];
};

/* The calling thread's fronts; the last one used comes first.  initial-exec: one instruction instead of a call; the
 * library has a few bytes of it, which a dlopen still finds. */
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) struct front *front_mine;

/* The first of them as the quick paths see it.  NULL while calls are recorded (record.h), and while a slow free is
 * under way: then the quick paths have nothing at hand, and the slow ways record.  So they need no test for it.
 *
 * A record may begin while a thread has read the pointer.  Whatever begins it has all fronts meanwhile and hinders
 * their locks, so the quick path's biased_try fails, and a continuation enters.  That looks, inside, whether a record
 * has begun of which the thread has not heard (front_is_late), and then has nothing at hand either.  To look inside is
 * exact: the thread is there before the record begins, and then the block is or is not live in its list, or after it.
 */
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) struct front *front_at_hand;

/* Whether a quick path goes on in a process that records by now.  The thread is inside. */
static inline bool front_is_late(void) { return front_at_hand != NULL && record_on(); }

/* At the end of a slow call, and of a continuation that was not late: the thread is not inside. */
static inline void front_heed_if_hindered(const struct front *front) {
  if (front != NULL && biased_is_hindered(&front->lock))
    front_heed();
}

/* The epoch that a free takes.  Acquire: as in reuse_epoch. */
static inline uint64_t front_stamp(const struct front *front) {
  return atomic_load_explicit(front->epoch, memory_order_acquire); /* acquire: as in reuse_epoch */
}

/* Counts a block that is allocated. */
static inline void front_count(struct front *front, size_t bytes) {
  if (balance_add(&front->balance, bytes))
    balance_share(&front->balance, &front->pool->fronts->live);
}

/* The lane's mark for a block on a shelf; 0 for none. */
static inline uint64_t lane_mark(const struct lane *lane) { return lane != NULL ? lane->mark : LANE_NONE; }

/* The stream whose lane has the mark; id 0 if there is none (any more). */
static inline struct context_stream front_stream(const struct front *front, uint64_t mark) {
  for (const struct lane *lane = front->lanes; mark != LANE_NONE && lane < front->lanes + LANES; lane++)
    if (lane->mark == mark)
      return lane->stream;
  return no_stream;
}

/* What a block of so many bytes takes of the pool; less than size if that is beyond the numbers. */
static inline size_t front_whole(const struct front *front, size_t size) {
  return (size + front->alignment - 1) & ~(front->alignment - 1);
}

static inline bool front_serves(const struct front *front, const struct mam_pool *pool, uint64_t default_id) {
  return pool != NULL ? front->pool == pool : front->pool != NULL && front->default_id == default_id;
}

/* ---- front_list.c: the fronts of a pool ---- */

/* For another thread than the front's own, which keeps out until biased_other_leave. */
void front_take(struct front *front);

/* No thread is inside a front from freeze to thaw, and no front comes or goes. */
void fronts_freeze(struct mam_pool *pool);
void fronts_thaw(struct mam_pool *pool);

/* The same, and for the depots too: nothing changes in front of the pool. */
void fronts_freeze_all(struct mam_pool *pool);
void fronts_thaw_all(struct mam_pool *pool);

/* The bytes of all blocks that are live, and whether a block is live or about to be; the fronts are frozen. */
int64_t fronts_live_bytes(const struct fronts *fronts);
bool fronts_in_use(const struct fronts *fronts);

/* The most that the live bytes were, as well as is known (balance.h); the fronts are frozen. */
int64_t fronts_peak_bytes(struct fronts *fronts);

/* Adds a front's numbers to a sum; the front is held still. */
void front_add_numbers(const struct front *front, struct pool_front_sum *sum);

/* Takes a front out of its pool's list; the fronts' lock is held. */
void front_unlink(struct fronts *fronts, struct front *front);

/* Frees a front that is in no list. */
void front_free_memory(struct front *front);

/* ---- front_collect.c: emptying fronts ---- */

/* Empties a front into its pool; of what was freed, what was in the epoch or earlier.  No thread is inside it, and the
 * pool is not past the end of its fronts. */
void front_empty(struct front *front, uint64_t passed);

/* Brings all that fronts hold back to the pool: collect of struct pool_front (pool.h). */
bool fronts_collect(struct mam_pool *pool, bool all);

/* Holds all fronts of the pool still and brings back what they hold, for its rule of reuse to decide about, until
 * fronts_thaw. */
void fronts_hold(struct mam_pool *pool);

/* ---- front_lane.c: what is rare about lanes.  The thread is not inside. ---- */

/* The lane of a stream; if there is none, the one that was named longest ago goes to the stream. */
struct lane *lane_get(struct front *front, struct mam_pool *pool, const struct front_stream *stream);

/* Loads what was freed on the lane's stream and is in the depot.  Whether there was any; lane NULL: no.  The caller is
 * a user of the pool. */
bool lane_refill(struct front *front, struct mam_pool *pool, struct lane *lane, unsigned class);

/* Gives frees on the stream room.  The same caller.  False if the host has no memory. */
bool lane_make_room(struct front *front, struct mam_pool *pool, struct lane *lane, unsigned class);

/* Empties all lanes into the depots.  As front_empty. */
void lanes_empty(struct front *front);

/* ---- front_thread.c: finding and making the calling thread's fronts ---- */

/* The calling thread's front for the pool that is meant. */
cudaError_t front_get(struct mam_pool *pool, uint64_t default_id, struct front **front);

/* The last act of a call that may have made a front: a thread whose end has begun keeps none. */
void front_call_end(void);

/* Whether the front is one of the calling thread's. */
bool front_is_mine(const struct front *front);

/* The pool that the front is attached to, NULL if it has ended: even if its struct is a pool again. */
struct mam_pool *front_pool(struct front *front);

/* Lets go of what belongs to a pool that ends.  No thread is inside. */
void front_detach(struct front *front);

/* ---- front_quick.c: what the slow rooms call again.  The thread is inside, but where it says otherwise. ---- */

/* A small block from the lane (NULL: none) or the magazine; 0 if they have none that may be used. */
uintptr_t front_pop_small(struct front *front, unsigned class, size_t size, struct lane *lane);

/* A block from what the front has at hand, whatever it is; 0 if it has none that may be used. */
uintptr_t front_pop(struct front *front, size_t size, const void *site, const void *tag, struct lane *lane);

/* A free of a block of a slab, with room made by means of the magazine alone if need be; and of another block.  lane:
 * of the stream that the free is on, whose batches are the room then; NULL: on none.  The thread is not inside. */
enum front_freed front_free_small(struct front *front, struct slab *slab, uintptr_t address, struct lane *lane);
enum front_freed front_free_large(struct front *front, uintptr_t address, struct lane *lane);

/* ---- front_small.c: small blocks, the slow way ---- */

/* A small block by means of the magazine, or a fence for it, or the depot.  *address is 0 before, and after if there is
 * none. */
cudaError_t small_serve(struct front *front, const struct front_request *request, struct mam_pool *pool,
                        uintptr_t *address);

/* The same at last, from what the depot has at hand, if the pool is the front's still; 0 if that is nothing.  *missing
 * as for slab_refill_at_hand.  The thread holds the fronts still. */
uintptr_t small_serve_held(struct front *front, const struct front_request *request, struct mam_pool *pool,
                           struct slab_missing *missing);

/* Gives frees room to push on.  The caller is a user of the pool. */
bool magazine_make_room(struct front *front, struct mam_pool *pool, unsigned class);

/* ---- front_large.c: large blocks, the slow way ---- */

/* What an allocation that the front could not serve found there, while it was inside. */
struct miss {
  struct mam_pool *pool;     /* of the front's generation: the thread attaches its front to no other one meanwhile */
  size_t live_bytes;         /* of the pool, as far as the thread knows */
  bool live_exact;           /* it knows */
  struct shelf *shelf, *bin; /* for the size or the tag; bin: NULL if the thread has no use for it */
  uint64_t epoch;            /* that the shelf's oldest block waits for, if it would do; else 0 */
  bool enough;               /* the shelf has no room for more, or the pool is not to grow for more of it */
  unsigned shelf_blocks;     /* blocks on the shelf that would do */
  bool crowded;
  uint64_t bin_epoch; /* that a bin's oldest block waits for, if it would do; else 0 */
  bool bin_enough;    /* the bin has enough blocks for a fence before the pool is searched */
};

/* The thread is inside. */
void large_miss(struct front *front, const struct front_request *request, struct miss *miss);

/* CUDA_ERROR_NOT_READY: there is none, and the allocation is not refused yet. */
cudaError_t large_malloc(struct front *front, const struct front_request *request, struct miss *miss,
                         uintptr_t *address);

/* From the pool.  CUDA_ERROR_NOT_READY: as above. */
cudaError_t large_take(struct front *front, const struct front_request *request, enum pool_effort effort,
                       struct miss *miss, uintptr_t *address);

/* What the pool is asked for. */
struct pool_order large_order(const struct front *front, const struct front_request *request, enum pool_effort effort,
                              const struct miss *miss);

/* Takes what the pool handed out.  cudaErrorInvalidResourceHandle: the pool has ended since, and the block with it. */
cudaError_t large_receive(struct front *front, const struct front_request *request, const struct pool_block *block,
                          struct miss *miss, uintptr_t *address);

/* ---- front_last.c: what is tried before an allocation is refused ---- */

/* *address is 0 before, and after if there is nothing. */
cudaError_t last_malloc(struct front *front, const struct front_request *request, struct miss *miss,
                        uintptr_t *address);

#endif
