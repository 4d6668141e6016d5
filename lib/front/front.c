/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/front.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/biased.h"
#include "base/cancel.h"
#include "base/error.h"
#include "front/claim.h"
#include "front/slab.h"
#include "pool/chunk_map.h"

enum {
  OWNED_BITS = 13, /* large blocks that a front remembers its thread allocated, by a hash of the address */
  SHELF_BITS = 5,  /* shelves, in pairs by a hash of size or tag */
  SHELVES = 1 << SHELF_BITS,
  SHELF_BLOCKS = 256,           /* on one shelf: what a fence is shared by */
  NO_SIZE = 1,                  /* of any shelf */
  SHELF_PATIENCE = 8,           /* a shelf goes to another size or tag when it was in the way so many times in a row */
  RESTING_MOST = 8,             /* batches that rest in a magazine, */
  RESTING_MOST_BYTES = 8 << 20, /* of so many bytes, unless it is one: they share a fence */
  TIGHT_MOST = 16,  /* fences in a row for one size: then a growing pool gets more of it, so that a fence serves more */
  SPARE_BLOCKS = 4, /* what a pool grows for speed alone leaves a thread with at most so many blocks of the size, */
  SPARE_BYTES = 256 << 20,  /* or so many bytes, whichever is more */
  GROWTH_BYTES = 128 << 20, /* a growing pool grows by so much for a crowd */
  FENCE_SHARE = 2,          /* what one thread frees is fenced when it comes to this part of the limit, at the latest */
  BIN_LEAST_BITS = 12,      /* bins are for blocks of 4 KiB */
  BIN_DOUBLINGS = 15,       /* to 128 MiB, */
  BIN_STEP_BITS = 3,        /* in eight steps a doubling, */
  BINS = BIN_DOUBLINGS << BIN_STEP_BITS,
  BIN_BLOCKS = 64,           /* with so many blocks at most, */
  BIN_BYTES = 256 << 20,     /* of so many bytes, unless it is one */
  BIN_CALM_BYTES = 64 << 20, /* without a crowd, bins are for blocks of at most so many bytes, */
  BIN_CALM_SHARE = 1024,     /* and of so small a part of the limit, */
  BIN_CALM_BLOCKS = 32,      /* and so many of them */
  BIN_FENCED = 4,            /* so many blocks in one are worth a fence */
  CROWD_STEP = 8,     /* an allocation that met another thread at the pool's lock weighs as much as so many others, */
  CROWD_ENOUGH = 64,  /* and such a balance, at least and at most, */
  CROWD_MOST = 256,   /* makes a thread use its bins */
  LIMBO_BLOCKS = 512, /* large blocks on no shelf, on their way back to the pool */
  LIMBO_FENCED = 128, /* so many are worth a fence */
  LIMBO_DRAINED = 4,  /* at most so many go along with an allocation that goes to the pool */
  GIVEN_MOST = 64,    /* segments that go back in one hold of the pool's lock */
  RECLAIM_MOST = 256, /* batches that a collection puts back into their slabs, where growing is the other way */
  SLAB_SHARE = 512,   /* a class gets its first slab at once if that is at most this part of the pool, */
  SLAB_CROWD = 64     /* else when so many of its blocks are live as segments */
};

/* Later than any. */
#define EVERY_EPOCH UINT64_MAX

/* No pool's generation. */
#define NO_GENERATION UINT64_MAX

/* No segment's ticket. */
#define FREED UINT64_MAX

/* Of a front that serves no default pool: no context's. */
#define NO_DEFAULT_ID UINT64_MAX

/* Small blocks of one class; the owner's, inside.  What the quick way needs is on one cache line. */
struct magazine {
  _Alignas(64) struct batch *ready; /* to allocate from; never NULL, see none_ready */
  struct batch *freed;              /* to push frees on; never NULL, see none_freed */
  int64_t codes;                    /* a number as in struct front_numbers: the sum of the live ones' */
  struct batch *resting;            /* were freed, oldest first; NULL if none */
  struct batch **resting_end;
  unsigned resting_count;
  struct batch *shells; /* empty ones for the next to come */
  /* Counted by whole batches: the blocks that ever came to the ready one, and those that ever left the freed one.  What
   * these hold themselves is the difference to what was allocated and freed. */
  uint64_t readied, rested;
};

struct kept {
  struct segment *segment;
  uintptr_t address;    /* the segment's base, so that a hand-out need not wait for the segment to be read */
  uint64_t epoch;       /* of its free */
  struct owned *places; /* for the address, in the front's table of what it owns */
};

/* Large blocks of one exact size, of one tag, or of a range of sizes (a bin). */
struct shelf {
  size_t bytes;               /* of each block; 0 if it goes by the tag, or is a bin */
  const void *tag;            /* NULL if it goes by the size */
  struct kept *oldest, *next; /* in the ring: the same if there is none; and where the next one goes */
  struct kept *ring, *end;    /* has one place more than blocks, the next; if that is all, the shelf was never used */
  const struct kept *stood;   /* the oldest when the shelf was in the way of another size or tag, */
  unsigned in_the_way;        /* so many times in a row */
};

/* A large block that the thread allocated and has not freed, as far as it knows. */
struct owned {
  uintptr_t address;
  struct segment *segment;
  uint64_t ticket;     /* FREED: by the thread; the segment has another one if somebody else did that */
  struct shelf *shelf; /* where it may go to when it is freed */
};

/* Written by the owner inside, read by others that add up while nobody is. */
struct front_numbers {
  int64_t live_less_one;   /* blocks allocated less blocks freed by the thread, less one: below 0, none may be left */
  int64_t requested_bytes; /* what hand-outs from shelves changed in what segments say was asked for */
  uint64_t tag_hits;       /* hand-outs by tag, of all those from shelves */
};

struct front {
  /* What every quick allocation and free looks at is on one cache line, what those of large blocks do on the next. */
  _Alignas(64) struct biased lock; /* for everything below but what says otherwise */
  bool immediate, shelves_off;     /* without fences, what is kept would never be known to have passed */
  bool alone;                      /* no other thread claims blocks of the pool (claim.h) */
  struct mam_pool *pool;           /* NULL: of a pool that ended, free for another */
  uint64_t default_id;             /* NO_DEFAULT_ID if the pool is none */
  struct front_numbers numbers;
  const _Atomic uint64_t *epoch;          /* that a free takes: the reuse's, or no_epoch if immediate */
  _Alignas(64) struct owned *last_places; /* for the block that a shelf served last */
  size_t last_size;                       /* untagged, that a shelf served last; NO_SIZE: none */
  struct shelf *last_shelf;               /* which one */
  uint64_t ticket_next;                   /* each hand-out from a shelf takes one */
  struct reuse *reuse;
  int64_t unfenced_left; /* so many bytes more may be freed before the next fence, */
  int64_t fence_bytes;   /* after one so many */
  uint64_t ticket_first; /* the pool's */
  uint64_t generation;   /* of the pool, as the next two */
  size_t alignment;
  bool no_slabs;
  struct magazine magazines[SLAB_CLASSES];
  struct owned owned[1 << OWNED_BITS]; /* all 0 while there is no pool, or shelves_off */
  struct shelf shelves[SHELVES];
  struct shelf bins[BINS];
  struct kept no_ring;             /* of shelves that were never used */
  bool owns;                       /* or has, since there is a pool */
  bool binning;                    /* bins are for all blocks, not for small ones alone */
  size_t bin_calm_bytes;           /* of the small ones */
  unsigned crowd;                  /* the balance of allocations that met others at the pool's lock */
  struct kept limbo[LIMBO_BLOCKS]; /* a ring, oldest first */
  unsigned limbo_first, limbo_count;
  const struct shelf *tight;    /* where the last slow allocations needed a fence for lack of free memory, */
  unsigned tight_count;         /* so many in a row; the owner's, inside or not, as the one before */
  uint64_t unfenced_epoch;      /* the present one when unfenced_left last began anew; both are such too */
  struct front *next_of_thread; /* the thread's own */
  struct front *next_of_pool;   /* under the fronts' lock */
  struct mam_pool *zero_pool;   /* whose last block the thread has freed, as it seems: the owner's, */
  uint64_t zero_generation;     /* inside or not */
  bool orphan;                  /* its thread is gone; under the fronts' lock */
  void *memory;                 /* that it lies in */
};

/* A few locks for all depots, which are used once in SLAB_BATCH operations: a fork has to hold them all, for each pool.
 */
enum { DEPOT_LOCKS = 4 };

/* All fronts of a pool, and what they share. */
struct fronts {
  pthread_mutex_t lock; /* of the list */
  struct front *first;
  bool shared;                /* some thread had no memory for a front: none is ever alone again */
  struct pool_front_sum gone; /* the numbers of threads that ended */
  pthread_mutex_t depot_locks[DEPOT_LOCKS];
  struct depot depots[SLAB_CLASSES];
};

/* Stand in for batches that are not there: nothing to take, no room to push. */
static struct batch none_ready = {.count = 0}, none_freed = {.count = SLAB_BATCH};

/* What is freed for immediate use waits for nothing. */
static const _Atomic uint64_t no_epoch;

static bool batch_real(const struct batch *batch) {
  return batch != NULL && batch != &none_ready && batch != &none_freed;
}

/* ---- The calling thread's fronts ---- */

/* initial-exec: one instruction instead of a call; the library has a few bytes of it, which a dlopen still finds. */
static __thread __attribute__((tls_model("initial-exec"))) struct front *mine; /* the last one used comes first */

/* Of a thread whose end has begun, or would not be heard: no front outlives a call. */
static __thread __attribute__((tls_model("initial-exec"))) bool ending;

static pthread_key_t thread_end;
static bool thread_end_heard; /* a program may have taken all keys; constant once there are fronts */
static _Atomic(uint64_t) fronts_made;

static bool front_serves(const struct front *front, const struct mam_pool *pool, uint64_t default_id) {
  return pool != NULL ? front->pool == pool : front->pool != NULL && front->default_id == default_id;
}

/* The thread's front for a pool; it becomes the first.  NULL if there is none. */
static struct front *front_find(const struct mam_pool *pool, uint64_t default_id) {
  for (struct front **link = &mine, *front; (front = *link) != NULL; link = &front->next_of_thread) {
    biased_enter(&front->lock);
    bool serves = front_serves(front, pool, default_id);
    biased_leave(&front->lock);
    if (!serves)
      continue;
    *link = front->next_of_thread;
    front->next_of_thread = mine;
    mine = front;
    return front;
  }
  return NULL;
}

static void ring_empty(struct shelf *shelf) { shelf->oldest = shelf->next = shelf->ring; }

static void ring_set(struct shelf *shelf, struct kept *ring, unsigned places) {
  shelf->ring = ring;
  shelf->end = ring + places;
  ring_empty(shelf);
}

static void magazine_init(struct magazine *magazine) {
  magazine->ready = &none_ready;
  magazine->freed = &none_freed;
  magazine->resting = magazine->shells = NULL;
  magazine->resting_end = &magazine->resting;
  magazine->resting_count = 0;
}

static bool ring_is_none(const struct shelf *shelf) { return shelf->end - shelf->ring == 1; }

/* All 0, and mostly not touched: a thread with few large blocks never pays for the pages of what it owns. */
static struct front *front_new(void) {
  void *memory = calloc(1, sizeof(struct front) + _Alignof(struct front));
  if (memory == NULL)
    return NULL;
  uintptr_t aligned = ((uintptr_t)memory + _Alignof(struct front)) & ~(uintptr_t)(_Alignof(struct front) - 1);
  struct front *front = (struct front *)aligned;
  front->memory = memory;
  front->default_id = NO_DEFAULT_ID;
  front->last_places = front->owned;
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    magazine_init(&front->magazines[i]);
  for (unsigned i = 0; i < SHELVES; i++)
    ring_set(&front->shelves[i], &front->no_ring, 1);
  for (unsigned i = 0; i < BINS; i++)
    ring_set(&front->bins[i], &front->no_ring, 1);
  return front;
}

/* A front of a pool that ended, or a new one, made the thread's. */
static struct front *front_spare(void) {
  struct front *front;
  for (front = mine; front != NULL; front = front->next_of_thread) {
    biased_enter(&front->lock);
    bool spare = front->pool == NULL;
    biased_leave(&front->lock);
    if (spare)
      return front;
  }
  front = front_new();
  if (front == NULL)
    return NULL;
  biased_init(&front->lock);
  /* Tickets are never used twice: each front counts in a range of its own, odd numbers only. */
  front->ticket_next = (atomic_fetch_add_explicit(&fronts_made, 1, memory_order_relaxed) + 1) << POOL_TICKET_BITS | 1;
  front->next_of_thread = mine;
  mine = front;
  if (!ending) /* any value makes front_thread_end run */
    ending = !thread_end_heard || pthread_setspecific(thread_end, front) != 0;
  return front;
}

/* All shelves of a front, the bins included: the index-th, NULL after the last. */
static struct shelf *shelf_at(struct front *front, unsigned index) {
  if (index < SHELVES)
    return &front->shelves[index];
  index -= SHELVES;
  return index < BINS ? &front->bins[index] : NULL;
}

static void front_free_memory(struct front *front) {
  struct shelf *shelf;
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
    if (!ring_is_none(shelf))
      free(shelf->ring);
  free(front->memory);
}

/* Up to which size a block may be a little too large for what it serves: a quarter of it is nothing beside the pool. */
static size_t bin_calm_bytes(const struct mam_pool *pool) {
  /* relaxed: a hint */
  size_t share = atomic_load_explicit(&pool->limit_hint, memory_order_relaxed) / BIN_CALM_SHARE;
  return share < BIN_CALM_BYTES ? share : BIN_CALM_BYTES;
}

/* How much a thread may free before a fence tells it from what runs later. */
static size_t fence_bytes(const struct mam_pool *pool) {
  /* relaxed: a hint */
  size_t share = atomic_load_explicit(&pool->limit_hint, memory_order_relaxed) / FENCE_SHARE;
  size_t limit = pool->config.waiting_limit_bytes;
  return limit > 0 && limit < share ? limit : share;
}

static void front_attach(struct front *front, struct mam_pool *pool) {
  front->pool = pool;
  front->generation = pool->generation;
  front->reuse = pool->reuse;
  front->default_id = pool->config.default_id != 0 ? pool->config.default_id : NO_DEFAULT_ID;
  front->alignment = pool->config.alignment;
  front->no_slabs = pool->config.no_slabs;
  front->alone = pool->fronts->first == NULL && !pool->fronts->shared;
  front->immediate = pool->config.reuse == MAM_REUSE_IMMEDIATE;
  front->epoch = front->immediate ? &no_epoch : &pool->reuse->epoch;
  front->shelves_off = !front->immediate && !reuse_passes_by_itself(pool->reuse);
  front->last_size = NO_SIZE;
  front->unfenced_epoch = 0;
  front->unfenced_left = front->fence_bytes = (int64_t)fence_bytes(pool);
  front->ticket_first = front->ticket_next;
  front->bin_calm_bytes = bin_calm_bytes(pool);
  front->numbers = (struct front_numbers){.live_less_one = -1};
  memset(front->magazines, 0, sizeof front->magazines);
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    magazine_init(&front->magazines[i]);
}

/* For another thread than its own, which keeps out until biased_other_leave. */
static void front_take(struct front *front) {
  if (biased_other_want(&front->lock))
    biased_barrier();
  biased_other_await(&front->lock);
}

/* Another thread is about to use the pool: from here on, no front is alone.  The fronts' lock is held. */
static void fronts_share_locked(struct fronts *fronts) {
  struct front *front = fronts->first; /* of several, none is alone any more */
  if (front == NULL || !front->alone)
    return;
  front_take(front);
  front->alone = false;
  biased_other_leave(&front->lock);
}

/* The thread's front for a pool that it is a user of, made if there is none. */
static struct front *front_make(struct mam_pool *pool) {
  struct front *front = front_find(pool, 0);
  if (front != NULL)
    return front;
  front = front_spare();
  pthread_mutex_lock(&pool->fronts->lock);
  fronts_share_locked(pool->fronts);
  if (front == NULL) { /* the thread frees without one */
    pool->fronts->shared = true;
    pthread_mutex_unlock(&pool->fronts->lock);
    return NULL;
  }
  biased_init(&front->lock); /* nobody else knows of it; see biased_owner_fences */
  front_attach(front, pool);
  if (pool->fronts->first != NULL || pool->fronts->gone.live != 0) /* no thread can tell the last free */
    pool_crowd(pool);
  front->next_of_pool = pool->fronts->first;
  pool->fronts->first = front;
  pthread_mutex_unlock(&pool->fronts->lock);
  return front;
}

/* ---- All fronts of a pool ---- */

/* Nobody is inside a front from freeze to thaw, and none comes or goes. */
static void fronts_freeze(struct mam_pool *pool) {
  struct fronts *fronts = pool->fronts;
  struct front *front;
  bool barrier = false;
  pthread_mutex_lock(&fronts->lock);
  for (front = fronts->first; front != NULL; front = front->next_of_pool)
    barrier = biased_other_want(&front->lock) || barrier;
  if (barrier)
    biased_barrier();
  for (front = fronts->first; front != NULL; front = front->next_of_pool)
    biased_other_await(&front->lock);
}

static void fronts_thaw(struct mam_pool *pool) {
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    biased_other_leave(&front->lock);
  pthread_mutex_unlock(&pool->fronts->lock);
}

/* The same, and for the depots too. */
static void all_freeze(struct mam_pool *pool) {
  fronts_freeze(pool);
  for (unsigned i = 0; i < DEPOT_LOCKS; i++)
    pthread_mutex_lock(&pool->fronts->depot_locks[i]);
}

static void all_thaw(struct mam_pool *pool) {
  for (unsigned i = 0; i < DEPOT_LOCKS; i++)
    pthread_mutex_unlock(&pool->fronts->depot_locks[i]);
  fronts_thaw(pool);
}

static int64_t fronts_live(const struct fronts *fronts) {
  int64_t live = fronts->gone.live;
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool)
    live += front->numbers.live_less_one + 1;
  return live;
}

/* ---- Small blocks: magazines.  The thread is inside. ---- */

static uint64_t stamp(const struct front *front) {
  return atomic_load_explicit(front->epoch, memory_order_acquire); /* acquire: as in reuse_epoch */
}

static void shell_keep(struct magazine *magazine, struct batch *batch) {
  if (!batch_real(batch))
    return;
  batch->next = magazine->shells;
  magazine->shells = batch;
}

/* Gives frees an empty batch to go to.  False if there is none at hand. */
static bool magazine_open(struct magazine *magazine) {
  struct batch *shell = magazine->shells;
  if (shell != NULL) {
    magazine->shells = shell->next;
  } else if (magazine->ready->count == 0 && batch_real(magazine->ready)) {
    shell = magazine->ready;
    magazine->ready = &none_ready;
  }
  magazine->freed = shell != NULL ? shell : &none_freed;
  return shell != NULL;
}

/* Lets what was freed rest. */
static void magazine_rest(struct front *front, struct magazine *magazine) {
  struct batch *freed = magazine->freed;
  freed->epoch = stamp(front);
  freed->next = NULL;
  magazine->rested += freed->count;
  *magazine->resting_end = freed;
  magazine->resting_end = &freed->next;
  magazine->resting_count++;
  magazine->freed = &none_freed;
}

static struct batch *resting_pull(struct magazine *magazine) {
  struct batch *batch = magazine->resting;
  magazine->resting = batch->next;
  if (batch->next == NULL)
    magazine->resting_end = &magazine->resting;
  magazine->resting_count--;
  return batch;
}

/* Makes the batch that has rested longest ready if its epoch has passed; the ready one is empty. */
static bool magazine_wake(struct front *front, struct magazine *magazine) {
  if (magazine->resting == NULL || magazine->resting->epoch > reuse_passed(front->reuse))
    return false;
  shell_keep(magazine, magazine->ready);
  magazine->ready = resting_pull(magazine);
  magazine->readied += magazine->ready->count;
  return true;
}

/* How many batches a magazine lets rest before it asks for a fence: all threads share the driver's. */
static unsigned resting_most(unsigned class) {
  size_t count = RESTING_MOST_BYTES / (SLAB_BATCH * slab_class_bytes(class));
  return count < 1 ? 1 : count > RESTING_MOST ? RESTING_MOST : (unsigned)count;
}

/* Room for a free in a magazine whose batch has none, by means of the magazine alone. */
static __attribute__((noinline)) bool magazine_has_more(struct front *front, struct magazine *magazine,
                                                        unsigned class) {
  if (batch_real(magazine->freed)) {
    if (magazine->resting_count >= resting_most(class))
      return false;
    magazine_rest(front, magazine);
  }
  return magazine_open(magazine);
}

/* How many blocks were allocated from the magazine, and freed to it. */
static uint64_t magazine_mallocs(const struct magazine *magazine) { return magazine->readied - magazine->ready->count; }

static uint64_t magazine_frees(const struct magazine *magazine) {
  return magazine->rested + (batch_real(magazine->freed) ? magazine->freed->count : 0);
}

/* A block from the ready batch, which is not empty. */
static inline __attribute__((always_inline)) uintptr_t ready_pop(struct magazine *magazine, unsigned class,
                                                                 size_t size) {
  struct batch *ready = magazine->ready;
  const struct slab_block *block = &ready->blocks[--ready->count];
  uint32_t code = slab_code(size, class);
  if (__builtin_expect(slab_exact != NULL, false))
    slab_exact_write(block->live, size, class);
  magazine->codes += code;
  /* relaxed: the block is this thread's alone; whoever frees it was given the address after this */
  atomic_store_explicit(block->live, (uint8_t)code, memory_order_relaxed);
  return block->address;
}

static uintptr_t small_pop(struct front *front, unsigned class, size_t size) {
  struct magazine *magazine = &front->magazines[class];
  bool any = magazine->ready->count > 0 || magazine_wake(front, magazine);
  return any ? ready_pop(magazine, class, size) : 0;
}

/* Takes a block out of the program's hands.  False if it was not there. */
static inline bool small_claim(const struct front *front, struct magazine *magazine, _Atomic uint8_t *live) {
  uint8_t code = claim_live(front->alone, live);
  if (code == 0)
    return false;
  magazine->codes -= code;
  return true;
}

/* ---- Large blocks: shelves.  The thread is inside. ---- */

static unsigned hash(uint64_t value, unsigned bits) { return (unsigned)((value * 0x9e3779b97f4a7c15u) >> (64 - bits)); }

static inline struct kept *ring_after(const struct shelf *shelf, struct kept *kept) {
  return kept + 1 == shelf->end ? shelf->ring : kept + 1;
}

static inline bool shelf_is_empty(const struct shelf *shelf) { return shelf->oldest == shelf->next; }

static inline bool shelf_is_full(const struct shelf *shelf) { return ring_after(shelf, shelf->next) == shelf->oldest; }

static unsigned shelf_count(const struct shelf *shelf) {
  ptrdiff_t count = shelf->next - shelf->oldest;
  return (unsigned)(count >= 0 ? count : count + (shelf->end - shelf->ring));
}

static bool shelf_is_for(const struct shelf *shelf, size_t bytes, const void *tag) {
  return shelf->tag == tag && (tag != NULL || shelf->bytes == bytes);
}

/* Of the pair of shelves for a size or a tag the one that is its own; else the one that may become so. */
static inline __attribute__((always_inline)) struct shelf *shelf_for(struct front *front, size_t bytes,
                                                                     const void *tag) {
  uint64_t key = tag != NULL ? (uintptr_t)tag : bytes / POOL_ALIGNMENT_LEAST_BYTES;
  struct shelf *pair = &front->shelves[2 * hash(key, SHELF_BITS - 1)];
  if (__builtin_expect(shelf_is_for(&pair[0], bytes, tag), true))
    return &pair[0];
  return shelf_is_for(&pair[1], bytes, tag) || !shelf_is_empty(&pair[0]) ? &pair[1] : &pair[0];
}

/* The pair of places for a block. */
static inline struct owned *owned_pair(struct front *front, uintptr_t address) {
  return &front->owned[2 * hash(address / POOL_ALIGNMENT_LEAST_BYTES, OWNED_BITS - 1)];
}

/* NULL if the thread does not know the block, or has freed it. */
static inline struct owned *owned_find(struct owned *pair, uintptr_t address) {
  for (struct owned *owned = pair; owned < pair + 2; owned++)
    if (owned->address == address && owned->ticket != FREED)
      return owned;
  return NULL;
}

static inline void owned_write(struct owned *owned, uintptr_t address, struct segment *segment, uint64_t ticket,
                               struct shelf *shelf) {
  owned->address = address; /* each by itself: a copy of the whole would wait for its parts */
  owned->segment = segment;
  owned->ticket = ticket;
  owned->shelf = shelf;
}

/* Where both places are taken, the second one's block is forgotten, and will be freed through the pool. */
static inline void owned_remember(struct owned *pair, uintptr_t address, struct segment *segment, uint64_t ticket,
                                  struct shelf *shelf) {
  bool first = pair->address == 0 || pair->ticket == FREED || pair->address == address;
  owned_write(first ? pair : pair + 1, address, segment, ticket, shelf);
}

/* The same for a block that was remembered before, mostly there and with nothing changed but the ticket. */
static inline void owned_again(struct owned *pair, uintptr_t address, struct segment *segment, uint64_t ticket,
                               struct shelf *shelf) {
  if (__builtin_expect(pair->address == address && pair->segment == segment && pair->shelf == shelf, true))
    pair->ticket = ticket;
  else
    owned_remember(pair, address, segment, ticket, shelf);
}

/* Seed 002: a block is taken back if it is neither too small nor more than twice as large.  By size it fits exactly. */
static bool kept_fits(const struct shelf *shelf, const struct kept *kept, size_t bytes) {
  return shelf->tag == NULL || (kept->segment->bytes >= bytes && kept->segment->bytes / 2 <= bytes);
}

/* What of a ring's oldest block the next hand-out will write: many blocks share a fence, so it was last used long ago.
 */
static inline void kept_prefetch(const struct kept *next) {
  __builtin_prefetch(next->segment, 1);
  __builtin_prefetch(next->places, 1);
}

static struct kept *kept_take(struct shelf *shelf) {
  struct kept *kept = shelf->oldest;
  shelf->oldest = ring_after(shelf, kept);
  return kept;
}

/* Hands a shelf's oldest block out. */
static inline __attribute__((always_inline)) uintptr_t shelf_hand_out(struct front *front, struct shelf *shelf,
                                                                      struct kept *kept, size_t size, const void *site,
                                                                      const void *tag) {
  struct kept *next = ring_after(shelf, kept);
  struct segment *segment = kept->segment;
  struct owned *places = kept->places;
  uintptr_t address = kept->address;
  uint64_t ticket = front->ticket_next;
  size_t requested_before = segment->as.used.requested_bytes;
  if (__builtin_expect(size != requested_before, false)) {
    front->numbers.requested_bytes += (int64_t)(size - requested_before);
    segment->as.used.requested_bytes = size;
  }
  segment->as.used.site = site;
  segment->as.used.tag = tag;
  kept_prefetch(next);
  shelf->oldest = next;
  front->ticket_next = ticket + 2;
  /* release: the fields above, for a thread that frees the block through the pool; pairs with pool_free's exchange */
  atomic_store_explicit(&segment->ticket, ticket, memory_order_release);
  owned_again(places, address, segment, ticket, shelf);
  front->last_places = places;
  if (tag != NULL)
    front->numbers.tag_hits++;
  return address;
}

static inline __attribute__((always_inline)) uintptr_t shelf_pop(struct front *front, size_t size, const void *site,
                                                                 const void *tag) {
  size_t bytes = (size + front->alignment - 1) & ~(front->alignment - 1);
  struct shelf *shelf = shelf_for(front, bytes, tag);
  struct kept *kept = shelf->oldest;
  if (shelf_is_empty(shelf) || bytes < size || !shelf_is_for(shelf, bytes, tag) || !kept_fits(shelf, kept, bytes) ||
      kept->epoch > reuse_passed(front->reuse))
    return 0;
  return shelf_hand_out(front, shelf, kept, size, site, tag);
}

/* ---- Bins: shelves by ranges of sizes, for threads that would else meet at the pool's lock.  Inside, too. ---- */

/* The bin whose range has the size; BINS or more if none has. */
static unsigned bin_index(size_t bytes) {
  if (bytes >> BIN_LEAST_BITS == 0)
    return BINS;
  unsigned log = 63 - (unsigned)__builtin_clzl(bytes);
  unsigned step = (unsigned)(bytes >> (log - BIN_STEP_BITS)) & ((1 << BIN_STEP_BITS) - 1);
  return (log - BIN_LEAST_BITS) << BIN_STEP_BITS | step;
}

/* The same, BINS or more also if the thread has no use for bins of that size. */
static unsigned bin_index_used(const struct front *front, size_t bytes) {
  bool used = front->binning || bytes <= front->bin_calm_bytes;
  return used ? bin_index(bytes) : BINS;
}

static bool bin_serves(const struct shelf *bin, size_t bytes) {
  return !shelf_is_empty(bin) && bin->oldest->segment->bytes >= bytes;
}

/* The bin whose oldest block is large enough, and less than a quarter too large; NULL if there is none. */
static struct shelf *bin_serving(struct front *front, size_t bytes) {
  unsigned index = bin_index_used(front, bytes);
  struct shelf *bin = index < BINS ? &front->bins[index] : NULL;
  if (bin == NULL || bin_serves(bin, bytes))
    return bin;
  return index + 1 < BINS && bin_serves(bin + 1, bytes) ? bin + 1 : NULL;
}

static uintptr_t bin_pop(struct front *front, size_t size, const void *site) {
  size_t bytes = (size + front->alignment - 1) & ~(front->alignment - 1);
  struct shelf *bin = bin_serving(front, bytes);
  if (bin == NULL || bytes < size || bin->oldest->epoch > reuse_passed(front->reuse))
    return 0;
  return shelf_hand_out(front, bin, bin->oldest, size, site, NULL);
}

/* The bin for a block that is freed; NULL if there is none with room. */
static struct shelf *bin_with_room(struct front *front, size_t bytes) {
  unsigned index = bin_index_used(front, bytes);
  unsigned most = front->binning ? BIN_BLOCKS : BIN_CALM_BLOCKS;
  if (index >= BINS)
    return NULL;
  struct shelf *bin = &front->bins[index];
  unsigned count = shelf_count(bin);
  return !shelf_is_full(bin) && count < most && (count == 0 || (count + 1) * bytes <= BIN_BYTES) ? bin : NULL;
}

/* How many bytes that is, is no matter: what is kept is collected where it is needed. */
static bool shelf_has_room(const struct front *front, const struct shelf *shelf) {
  return !shelf_is_full(shelf) && !front->shelves_off;
}

static inline void ring_write(struct kept *kept, struct segment *segment, uintptr_t address, uint64_t epoch,
                              struct owned *places) {
  kept->segment = segment; /* each by itself, as in owned_write */
  kept->address = address;
  kept->epoch = epoch;
  kept->places = places;
}

static inline struct kept *shelf_end(struct shelf *shelf) {
  struct kept *kept = shelf->next;
  shelf->next = ring_after(shelf, kept);
  return kept;
}

/* Takes up to most of the oldest blocks off a shelf, of those that were freed in the epoch or earlier. */
static unsigned shelf_clear(struct shelf *shelf, uint64_t passed, struct segment **segments, uint64_t *epoch,
                            unsigned most) {
  unsigned count = 0;
  for (; !shelf_is_empty(shelf) && count < most && shelf->oldest->epoch <= passed; count++) {
    const struct kept *kept = kept_take(shelf);
    segments[count] = kept->segment;
    *epoch = kept->epoch > *epoch ? kept->epoch : *epoch;
  }
  return count;
}

/* Room for a block that belongs on no shelf: it waits here until it has passed, so that the trees see it once. */
static bool limbo_has_room(const struct front *front) {
  return front->limbo_count < LIMBO_BLOCKS && !front->shelves_off;
}

static struct kept *limbo_end(struct front *front) {
  return &front->limbo[(front->limbo_first + front->limbo_count++) % LIMBO_BLOCKS];
}

static struct segment *limbo_pull(struct front *front) {
  struct segment *segment = front->limbo[front->limbo_first].segment;
  front->limbo_first = (front->limbo_first + 1) % LIMBO_BLOCKS;
  front->limbo_count--;
  return segment;
}

/* Takes up to GIVEN_MOST of the oldest blocks out of limbo, as shelf_clear. */
static unsigned limbo_clear(struct front *front, uint64_t passed, struct segment **segments, uint64_t *epoch) {
  unsigned count = 0;
  for (; front->limbo_count > 0 && count < GIVEN_MOST && front->limbo[front->limbo_first].epoch <= passed; count++) {
    *epoch = front->limbo[front->limbo_first].epoch; /* the latest: oldest first */
    segments[count] = limbo_pull(front);
  }
  return count;
}

/* Takes up to LIMBO_DRAINED blocks that have passed out of limbo, and says which epoch is worth a fence, 0 if none. */
static unsigned limbo_drain(struct front *front, struct segment **segments, uint64_t *fence) {
  uint64_t passed = reuse_passed(front->reuse);
  unsigned count = 0;
  while (count < LIMBO_DRAINED && front->limbo_count > 0 && front->limbo[front->limbo_first].epoch <= passed)
    segments[count++] = limbo_pull(front);
  bool many = front->limbo_count >= LIMBO_FENCED && front->limbo[front->limbo_first].epoch > passed;
  *fence = many ? front->limbo[front->limbo_first].epoch : 0;
  return count;
}

/* ---- The quick way ----
 *
 * What is rare is out of line and the last thing that its function does, so that what is done every time
 * saves no registers. */

/* A block from what the front has at hand.  The thread is inside. */
static uintptr_t front_pop(struct front *front, size_t size, const void *site, const void *tag) {
  uintptr_t address = 0;
  if (tag == NULL && size <= SLAB_BLOCK_MOST_BYTES)
    address = small_pop(front, slab_class(size), size);
  if (address == 0)
    address = shelf_pop(front, size, site, tag);
  return address == 0 && tag == NULL ? bin_pop(front, size, site) : address;
}

/* What seems to have been the pool's last block was freed, and somebody wants to know. */
static inline enum front_freed freed_zero(struct front *front) {
  front->zero_pool = front->pool;
  front->zero_generation = front->generation;
  return FRONT_FREED_ZERO;
}

static inline enum front_freed freed_count(struct front *front) {
  /* relaxed: a hint, asked again under the pool's lock */
  bool zero =
      --front->numbers.live_less_one < 0 && atomic_load_explicit(&front->pool->reports_empty, memory_order_relaxed);
  return __builtin_expect(zero, false) ? freed_zero(front) : FRONT_FREED;
}

/* Where a free goes to by the immediate rule: the next allocation may have it. */
static struct batch *magazine_free_at_once(struct magazine *magazine) {
  if (!batch_real(magazine->ready) || magazine->ready->count >= SLAB_BATCH)
    return magazine->freed;
  magazine->readied++;
  magazine->rested++;
  return magazine->ready;
}

/* quick: what the immediate rule does is left to free_small_anew, as if there were no room. */
static inline __attribute__((always_inline)) enum front_freed free_small(struct front *front, struct slab *slab,
                                                                         uintptr_t address, bool quick) {
  /* acquire: the slab as carved; pairs with the release in slab_add.  While it is this pool's, it stays: a slab goes
   * back only without a live block, and if the block is none, the index or the claim says so, however long the thread
   * is held up before it (slab.h).  If neither slab nor front has a pool, the quick one finds no room and the other
   * says so. */
  struct mam_pool *pool = atomic_load_explicit(&slab->pool, memory_order_acquire);
  if (pool != front->pool || (!quick && pool == NULL))
    return FRONT_FREED_NOT;
  uint32_t index = slab_index(slab, address);
  if (index == UINT32_MAX)
    return FRONT_FREED_NOT;
  struct magazine *magazine = &front->magazines[slab->class];
  struct batch *to = magazine->freed;
  if (__builtin_expect(to->count >= SLAB_BATCH || (quick && front->immediate), false))
    return FRONT_FREED_NO_ROOM;
  _Atomic uint8_t *live = slab_live(slab, index);
  if (!small_claim(front, magazine, live))
    return FRONT_FREED_NOT;
  if (!quick && front->immediate)
    to = magazine_free_at_once(magazine);
  to->blocks[to->count++] = (struct slab_block){address, live};
  return freed_count(front);
}

/* The same, with room made by means of the magazine alone if need be. */
static __attribute__((noinline)) enum front_freed free_small_anew(struct front *front, struct slab *slab,
                                                                  uintptr_t address) {
  biased_enter(&front->lock);
  enum front_freed freed = free_small(front, slab, address, false);
  if (freed == FRONT_FREED_NO_ROOM) {
    unsigned class = slab->class;
    if (magazine_has_more(front, &front->magazines[class], class))
      freed = free_small(front, slab, address, false);
  }
  biased_leave(&front->lock);
  return freed;
}

/* Room for a block that does not go back where it was from; NULL if there is none. */
static struct kept *place_elsewhere(struct front *front, size_t bytes, const void *tag) {
  struct shelf *shelf = shelf_for(front, bytes, tag);
  if (!shelf_is_for(shelf, bytes, tag) || !shelf_has_room(front, shelf))
    shelf = tag == NULL ? bin_with_room(front, bytes) : NULL;
  return shelf != NULL ? shelf_end(shelf) : limbo_has_room(front) ? limbo_end(front) : NULL;
}

static inline __attribute__((always_inline)) cudaError_t free_end(uintptr_t address, front_free_rest *rest,
                                                                  enum front_freed freed) {
  return __builtin_expect(freed == FRONT_FREED, true) ? cudaSuccess : rest(address, freed);
}

/* A block that is the thread's to keep, but not on the shelf it was from: on another, in a bin, in limbo; or it goes to
 * the pool.  If much was freed, a fence now tells it from what runs later.  The thread is inside, and leaves, here and
 * in all that follow. */
static __attribute__((noinline)) cudaError_t free_large_elsewhere(uintptr_t address, front_free_rest *rest,
                                                                  struct front *front, const struct kept *freed_one) {
  struct segment *segment = freed_one->segment;
  uint64_t epoch = freed_one->epoch;
  struct kept *kept = place_elsewhere(front, segment->bytes, segment->as.used.tag);
  struct mam_pool *pool = front->pool;
  uint64_t generation = front->generation;
  bool fence = front->unfenced_left < 0;
  if (kept != NULL)
    *kept = *freed_one;
  if (fence)
    front->unfenced_left = front->fence_bytes;
  enum front_freed freed = freed_count(front);
  biased_leave(&front->lock);
  if (kept == NULL)
    pool_give(pool, generation, &segment, 1, epoch);
  if (fence)
    (void)reuse_reach(front->reuse, reuse_epoch(front->reuse));
  return free_end(address, rest, freed);
}

/* It may be the first block of a slab: see front_free_quick. */
static __attribute__((noinline)) cudaError_t free_large_not(uintptr_t address, front_free_rest *rest,
                                                            struct front *front) {
  biased_leave(&front->lock);
  struct slab *slab = page_map_find(address);
  return free_end(address, rest, slab != NULL ? free_small_anew(front, slab, address) : FRONT_FREED_NOT);
}

/* Whether a block that was from the shelf may go there again.  One with a tag may also go where its size is kept, if
 * that is what the shelf became. */
static inline bool shelf_takes(const struct shelf *shelf, const struct segment *segment, size_t bytes) {
  return __builtin_expect(shelf->bytes == bytes, true) || shelf_is_for(shelf, bytes, segment->as.used.tag);
}

/* A block that the thread owns is freed and kept.  Without fences, which frees would wait for, none is. */
static inline __attribute__((always_inline)) cudaError_t free_large_at(uintptr_t address, front_free_rest *rest,
                                                                       struct front *front, struct owned *places,
                                                                       struct owned *owned) {
  struct segment *segment = owned->segment;
  struct shelf *shelf = owned->shelf;
  uint64_t ticket = owned->ticket, epoch = stamp(front);
  owned->ticket = FREED;
  if (!claim_ticket(front->alone, &segment->ticket, ticket)) /* pool_free will say so */
    return free_large_not(address, rest, front);
  size_t bytes = segment->bytes; /* from here on the segment is this thread's */
  struct kept *kept = shelf->next;
  ring_write(kept, segment, address, epoch, places); /* there is always a place for one; it may not count */
  front->unfenced_left -= (int64_t)bytes;
  if (__builtin_expect(front->unfenced_left < 0 || !shelf_takes(shelf, segment, bytes), false))
    return free_large_elsewhere(address, rest, front, kept);
  struct kept *next = ring_after(shelf, kept);
  if (__builtin_expect(next == shelf->oldest, false))
    return free_large_elsewhere(address, rest, front, kept);
  shelf->next = next;
  enum front_freed freed = freed_count(front);
  biased_leave(&front->lock);
  return free_end(address, rest, freed);
}

/* Not freed right after its allocation. */
static __attribute__((noinline)) cudaError_t free_large_later(uintptr_t address, front_free_rest *rest,
                                                              struct front *front) {
  struct owned *places = owned_pair(front, address), *owned = owned_find(places, address);
  return owned != NULL ? free_large_at(address, rest, front, places, owned) : free_large_not(address, rest, front);
}

static inline __attribute__((always_inline)) cudaError_t free_large(uintptr_t address, front_free_rest *rest,
                                                                    struct front *front) {
  struct owned *places = front->last_places;
  if (__builtin_expect(places->address != address, false)) /* if it was freed, its claim fails */
    return free_large_later(address, rest, front);
  return free_large_at(address, rest, front, places, places);
}

/* The thread may be inside. */
static __attribute__((noinline)) cudaError_t free_large_anew(uintptr_t address, front_free_rest *rest,
                                                             struct front *front) {
  biased_enter(&front->lock);
  return free_large(address, rest, front);
}

/* A small free again, and what is left to do. */
static __attribute__((noinline)) cudaError_t free_quick_anew(uintptr_t address, front_free_rest *rest,
                                                             struct front *front, struct slab *slab) {
  return free_end(address, rest, free_small_anew(front, slab, address));
}

cudaError_t front_free_quick(uintptr_t address, front_free_rest *rest) {
  struct front *front = mine;
  if (__builtin_expect(front == NULL, false))
    return rest(address, FRONT_FREED_NOT);
  /* Mostly a large block: their pages lie far apart, and asking the map about each costs more than all the rest. */
  struct slab *slab = address % SLAB_BYTES != 0 ? page_map_find(address) : NULL;
  if (slab == NULL)
    return __builtin_expect(biased_try(&front->lock), true) ? free_large(address, rest, front)
                                                            : free_large_anew(address, rest, front);
  enum front_freed freed = FRONT_FREED_NO_ROOM;
  if (__builtin_expect(biased_try(&front->lock), true))
    freed = free_small(front, slab, address, true);
  biased_leave(&front->lock);
  if (__builtin_expect(freed == FRONT_FREED_NO_ROOM, false))
    return free_quick_anew(address, rest, front, slab);
  return free_end(address, rest, freed);
}

/* The rest for who does it all by itself. */
static cudaError_t freed_tell(uintptr_t address, enum front_freed freed) {
  (void)address;
  return (cudaError_t)freed;
}

/* ---- Small blocks, the slow way ---- */

/* How many live segments a slab of the class could have served. */
static size_t class_live_segments(const struct mam_pool *pool, unsigned class) {
  size_t count = 0, first = class > 0 ? slab_class_bytes(class - 1) / SLAB_UNIT_BYTES : 0;
  for (size_t i = first; i < slab_class_bytes(class) / SLAB_UNIT_BYTES; i++)
    count += atomic_load_explicit(&pool->live_by_class[i], memory_order_relaxed); /* relaxed: a hint */
  return count;
}

/* Whether the class may be served from slabs: at once where a slab is a small part of the pool, else when the class
 * fills one anyway. */
static bool class_has_slabs(const struct front *front, const struct mam_pool *pool, unsigned class) {
  const struct depot *depot = &pool->fronts->depots[class];
  if (front->alignment != POOL_ALIGNMENT_BYTES || front->no_slabs)
    return false;
  /* relaxed, all: hints that need not be exact */
  if (atomic_load_explicit(&depot->slab_count, memory_order_relaxed) > 0)
    return true;
  bool small = slab_class_bytes(class) <= SLAB_BYTES / SLAB_SHARE;
  return (small && atomic_load_explicit(&pool->limit_hint, memory_order_relaxed) / SLAB_SHARE >= SLAB_BYTES) ||
         class_live_segments(pool, class) >= SLAB_CROWD;
}

/* Takes a refill into a magazine that the thread left meanwhile.  Returns the empty batch that it takes the place of if
 * the magazine has one to spare already: a thread that only allocates would gather one for each refill. */
static struct batch *magazine_install(struct front *front, struct magazine *magazine, struct batch *batch) {
  struct batch *surplus = NULL;
  biased_enter(&front->lock);
  if (magazine->ready->count == 0) {
    if (magazine->shells != NULL && batch_real(magazine->ready))
      surplus = magazine->ready;
    else
      shell_keep(magazine, magazine->ready);
    magazine->ready = batch;
    magazine->readied += batch->count;
  } else { /* as if it had rested */
    batch->epoch = 0;
    batch->next = NULL;
    *magazine->resting_end = batch;
    magazine->resting_end = &batch->next;
    magazine->resting_count++;
  }
  biased_leave(&front->lock);
  return surplus;
}

/* The epoch that the magazine waits for, 0 if for none.  full: if no more may rest in it. */
static uint64_t magazine_waits_for(struct front *front, struct magazine *magazine, unsigned class, bool full) {
  biased_enter(&front->lock);
  if (full && magazine->resting_count == 0 && batch_real(magazine->freed) && magazine->freed->count == SLAB_BATCH)
    magazine_rest(front, magazine);
  if (!full && magazine->resting_count == 0 && batch_real(magazine->freed) && magazine->freed->count > 0)
    magazine_rest(front, magazine);
  bool asks = magazine->resting != NULL && (!full || magazine->resting_count >= resting_most(class));
  uint64_t epoch = asks ? magazine->resting->epoch : 0;
  biased_leave(&front->lock);
  return epoch;
}

/* Makes what the thread freed itself ready again, if the GPU is done with it. */
static bool magazine_turn(struct front *front, unsigned class, bool full) {
  struct magazine *magazine = &front->magazines[class];
  uint64_t epoch = magazine_waits_for(front, magazine, class, full);
  return epoch != 0 && reuse_reach(front->reuse, epoch);
}

/* Gets blocks into the magazine of a class.  The caller is a user of the pool. */
static bool magazine_refill(struct front *front, struct mam_pool *pool, unsigned class) {
  if (!class_has_slabs(front, pool, class))
    return false;
  struct depot *depot = &pool->fronts->depots[class];
  struct batch *batch = slab_refill(pool, depot, class);
  if (batch == NULL)
    return magazine_turn(front, class, false);
  slab_shell_give(depot, magazine_install(front, &front->magazines[class], batch));
  return true;
}

/* Gives frees room to push on.  The caller is a user of the pool. */
static bool magazine_make_room(struct front *front, struct mam_pool *pool, unsigned class) {
  struct magazine *magazine = &front->magazines[class];
  struct depot *depot = &pool->fronts->depots[class];
  struct batch *shell = slab_shell_take(depot), *rested = NULL;
  biased_enter(&front->lock);
  if (batch_real(magazine->freed) && magazine->freed->count == SLAB_BATCH) {
    magazine_rest(front, magazine);
    if (magazine->resting_count > resting_most(class))
      rested = resting_pull(magazine);
  }
  if (magazine->shells == NULL) { /* else one for each free that is refused would gather */
    shell_keep(magazine, shell);
    shell = NULL;
  }
  bool room = magazine->freed->count < SLAB_BATCH || magazine_open(magazine);
  biased_leave(&front->lock);
  slab_shell_give(depot, shell);
  if (rested != NULL)
    slab_rest(pool, depot, rested, false);
  return room;
}

static bool small_malloc(struct front *front, struct mam_pool *pool, unsigned class, size_t size, uintptr_t *address) {
  bool served = false;
  while (!served && magazine_refill(front, pool, class)) {
    biased_enter(&front->lock);
    served = (*address = small_pop(front, class, size)) != 0;
    biased_leave(&front->lock);
  }
  return served;
}

/* ---- Large blocks, the slow way ---- */

/* Takes up to most of the oldest blocks off a shelf and puts them into the pool's trees. */
static void shelf_return(struct front *front, struct shelf *shelf, unsigned most) {
  struct segment *segments[SHELF_BLOCKS];
  uint64_t epoch = 0;
  biased_enter(&front->lock);
  struct mam_pool *pool = front->pool;
  uint64_t generation = front->generation;
  unsigned count = pool != NULL ? shelf_clear(shelf, UINT64_MAX, segments, &epoch, most) : 0;
  biased_leave(&front->lock);
  if (count > 0)
    pool_give(pool, generation, segments, count, epoch);
}

/* A tag's oldest block that does not fit goes back to the trees (the seed hands it to the driver). */
static void shelf_drop_misfit(struct front *front, size_t bytes, const void *tag) {
  biased_enter(&front->lock);
  struct shelf *shelf = shelf_for(front, bytes, tag);
  bool misfit = !shelf_is_empty(shelf) && shelf_is_for(shelf, bytes, tag) && !kept_fits(shelf, shelf->oldest, bytes);
  biased_leave(&front->lock);
  if (misfit)
    shelf_return(front, shelf, 1);
}

/* Serves from the shelf if a fence, asked for now, says that the GPU is done with its oldest block. */
static bool shelf_pop_fenced(struct front *front, const struct front_request *request, uint64_t epoch,
                             uintptr_t *address) {
  if (epoch == 0 || !reuse_reach(front->reuse, epoch))
    return false;
  biased_enter(&front->lock);
  bool served = (*address = shelf_pop(front, request->size, request->site, request->tag)) != 0;
  biased_leave(&front->lock);
  return served;
}

/* What an allocation that the front could not serve found there, while it was inside. */
struct miss {
  struct mam_pool *pool;
  uint64_t generation;
  struct shelf *shelf, *bin; /* for the size or the tag; bin: NULL if the thread has no use for it */
  uint64_t epoch;            /* that the shelf's oldest block waits for, if it would do; else 0 */
  bool full, enough;         /* the shelf can keep no more; the pool is not to grow for more of it */
  unsigned kept_count;       /* blocks that would do */
  uint64_t fence;            /* that what is in limbo waits for, if it is worth one; else 0 */
  bool binning;
  uint64_t bin_epoch; /* that a bin's oldest block waits for, if it would do and is worth it; else 0 */
  struct segment *passed[LIMBO_DRAINED]; /* to go back to the pool */
  unsigned passed_count;
};

/* Whether so many blocks of the size are kept that the pool is not to grow for more: these share a fence. */
static bool shelf_has_enough(const struct shelf *shelf, size_t bytes) {
  size_t count = shelf_count(shelf);
  return count >= SPARE_BLOCKS && (count + 1) * bytes > SPARE_BYTES;
}

/* What lies on a shelf. */
static size_t shelf_bytes(const struct shelf *shelf) {
  size_t bytes = 0;
  if (shelf->bytes != 0)
    return shelf_count(shelf) * shelf->bytes;
  for (struct kept *kept = shelf->oldest; kept != shelf->next; kept = ring_after(shelf, kept))
    bytes += kept->segment->bytes;
  return bytes;
}

/* What the thread keeps of large blocks. */
static size_t front_kept_bytes(struct front *front) {
  const struct shelf *shelf;
  size_t bytes = 0;
  biased_enter(&front->lock);
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
    bytes += shelf_bytes(shelf);
  for (unsigned i = 0; i < front->limbo_count; i++)
    bytes += front->limbo[(front->limbo_first + i) % LIMBO_BLOCKS].segment->bytes;
  biased_leave(&front->lock);
  return bytes;
}

/* How much a pool may grow at most for the thread's speed alone: memory is the program's, and what the thread keeps is
 * no use to others. */
static size_t spare_bytes(struct front *front, size_t bytes) {
  size_t most = bytes > SPARE_BYTES / SPARE_BLOCKS ? SPARE_BLOCKS * bytes : SPARE_BYTES;
  size_t kept = front_kept_bytes(front);
  return kept < most ? most - kept : 0;
}

/* The thread is inside, here and in the next. */
static void large_miss(struct front *front, size_t size, const void *tag, struct miss *miss) {
  size_t bytes = (size + front->alignment - 1) & ~(front->alignment - 1);
  unsigned index = tag == NULL ? bin_index_used(front, bytes) : BINS;
  struct shelf *shelf = shelf_for(front, bytes, tag);
  const struct kept *kept = shelf->oldest;
  bool does = !shelf_is_empty(shelf) && shelf_is_for(shelf, bytes, tag) && kept_fits(shelf, kept, bytes);
  miss->pool = front->pool;
  miss->generation = front->generation;
  miss->shelf = shelf;
  miss->bin = index < BINS ? &front->bins[index] : NULL;
  miss->epoch = does ? kept->epoch : 0;
  miss->full = does && !shelf_has_room(front, shelf);
  miss->kept_count = does ? shelf_count(shelf) : 0;
  miss->enough = miss->full || shelf_has_enough(shelf, bytes);
  const struct shelf *bin = tag == NULL ? bin_serving(front, bytes) : NULL;
  miss->binning = front->binning;
  miss->bin_epoch = bin != NULL && shelf_count(bin) >= BIN_FENCED ? bin->oldest->epoch : 0;
  miss->passed_count = limbo_drain(front, miss->passed, &miss->fence);
}

/* Makes the shelf the size's or the tag's if nothing is in the way.  If something has been for too long, the shelf that
 * is to be cleared; else NULL.
 */
static struct shelf *shelf_claim(struct front *front, size_t bytes, const void *tag) {
  struct shelf *shelf = shelf_for(front, bytes, tag);
  if (shelf_is_for(shelf, bytes, tag))
    return NULL;
  if (!shelf_is_empty(shelf)) {
    shelf->in_the_way = shelf->stood == shelf->oldest ? shelf->in_the_way + 1 : 1;
    shelf->stood = shelf->oldest;
    return shelf->in_the_way >= SHELF_PATIENCE ? shelf : NULL;
  }
  shelf->bytes = tag == NULL ? bytes : 0;
  shelf->tag = tag;
  shelf->stood = NULL;
  front->last_size = NO_SIZE; /* it may have been this one's */
  return NULL;
}

/* Keeps the balance of how often the thread meets others at the pool's lock.  Whether the bins are used no more. */
static bool crowd_count(struct front *front, bool contended) {
  if (contended)
    front->crowd = front->crowd + CROWD_STEP < CROWD_MOST ? front->crowd + CROWD_STEP : CROWD_MOST;
  else if (front->crowd > 0)
    front->crowd--;
  bool was = front->binning;
  front->binning = !front->shelves_off && (front->crowd >= CROWD_ENOUGH || (was && front->crowd > 0));
  return was && !front->binning;
}

static void bins_return(struct front *front) {
  for (unsigned i = 0; i < BINS; i++)
    shelf_return(front, &front->bins[i], BIN_BLOCKS);
}

/* How much a pool is to grow for the sake of speed. */
struct growth {
  size_t bytes, most; /* bytes: 0 if it is not to */
};

/* By as many blocks as the thread keeps of the size, or what a crowd needs, as far as the thread may keep them. */
static struct growth growth_for_speed(struct front *front, const struct miss *miss, size_t size) {
  size_t bytes = (size + front->alignment - 1) & ~(front->alignment - 1);
  if (bytes < size || bytes > SIZE_MAX / SPARE_BLOCKS)
    return (struct growth){0, 0};
  size_t spare = spare_bytes(front, bytes);
  size_t want = miss->binning ? GROWTH_BYTES : miss->kept_count * bytes;
  want = want < bytes ? bytes : want;
  return (struct growth){want < spare ? want : spare - spare % bytes, spare};
}

/* Room for what is freed of the size of a miss.  Without host memory there is none, and it goes to limbo.  Rings are
 * the owner's to make, while it is not inside: nobody else looks at one without blocks. */
static void shelf_make_room(struct front *front, struct shelf *shelf, unsigned blocks) {
  struct kept *ring = ring_is_none(shelf) && !front->shelves_off ? calloc(blocks + 1, sizeof *ring) : NULL;
  if (ring == NULL)
    return;
  biased_enter(&front->lock);
  ring_set(shelf, ring, blocks + 1);
  biased_leave(&front->lock);
}

/* cudaErrorInvalidResourceHandle if the pool has ended, whatever its struct is now. */
static cudaError_t large_take(struct front *front, const struct front_request *request, enum pool_effort effort,
                              struct growth growth, struct miss *miss, uintptr_t *address) {
  struct pool_block block;
  struct pool_order order = {.default_id = request->default_id,
                             .generation = miss->generation,
                             .size = request->size,
                             .site = request->site,
                             .tag = request->tag,
                             .effort = effort == POOL_TAKE_ANY && request->at_once ? POOL_TAKE_AT_ONCE : effort,
                             .growth_bytes = growth.bytes,
                             .growth_most_bytes = growth.most,
                             .passed = miss->passed,
                             .passed_count = miss->passed_count};
  miss->passed_count = 0;
  cudaError_t error = pool_take(miss->pool, &order, &block);
  if (error != cudaSuccess)
    return error;
  shelf_make_room(front, miss->shelf, SHELF_BLOCKS);
  if (miss->bin != NULL)
    shelf_make_room(front, miss->bin, BIN_BLOCKS);
  biased_enter(&front->lock);
  bool attached = front->pool == miss->pool && front->generation == miss->generation;
  bool deserted = crowd_count(front, block.contended);
  struct shelf *clear = attached ? shelf_claim(front, block.bytes, request->tag) : NULL;
  if (attached && !front->shelves_off) {
    front->owns = true;
    owned_remember(owned_pair(front, block.address), block.address, block.segment, block.ticket,
                   shelf_for(front, block.bytes, request->tag));
  }
  biased_leave(&front->lock);
  if (clear != NULL)
    shelf_return(front, clear, SHELF_BLOCKS);
  if (deserted)
    bins_return(front);
  *address = block.address;
  return attached ? cudaSuccess : cudaErrorInvalidResourceHandle; /* the pool ended since, and the block with it */
}

/* Serves from a bin if a fence says that the GPU is done with its oldest block. */
static bool bin_pop_fenced(struct front *front, const struct front_request *request, uint64_t epoch,
                           uintptr_t *address) {
  if (epoch == 0 || !reuse_reach(front->reuse, epoch))
    return false;
  biased_enter(&front->lock);
  bool served = front_serves(front, request->pool, request->default_id) &&
                (*address = bin_pop(front, request->size, request->site)) != 0;
  biased_leave(&front->lock);
  return served;
}

/* Sends what is in limbo back to the pool, as far as a fence says that the GPU is done with it.  Whether any was. */
static bool limbo_turn(struct front *front, const struct miss *miss) {
  struct segment *segments[GIVEN_MOST];
  bool any = false;
  unsigned count;
  biased_enter(&front->lock);
  unsigned last = (front->limbo_first + front->limbo_count - 1) % LIMBO_BLOCKS;
  uint64_t epoch = front->limbo_count > 0 ? front->limbo[last].epoch : 0;
  biased_leave(&front->lock);
  if (epoch != 0)
    (void)reuse_reach(front->reuse, epoch);
  do {
    biased_enter(&front->lock);
    bool attached = front->pool == miss->pool && front->generation == miss->generation;
    count = attached ? limbo_clear(front, reuse_passed(front->reuse), segments, &epoch) : 0;
    biased_leave(&front->lock);
    pool_give(miss->pool, miss->generation, segments, count, 0);
    any = any || count > 0;
  } while (count == GIVEN_MOST);
  return any;
}

/* The pool has nothing free for a size that the shelf could serve with a fence.  Whether that was so for too long. */
static bool tight_for_long(struct front *front, const struct miss *miss) {
  if (miss->epoch == 0 || miss->enough)
    return false;
  front->tight_count = front->tight == miss->shelf ? front->tight_count + 1 : 1;
  front->tight = miss->shelf;
  return front->tight_count % TIGHT_MOST == 0;
}

/* A shelf that has enough blocks, or no room for more, serves first, if it can; then what is free in the pool; then the
 * shelf with a fence; and last the pool by all means it has.  In a crowd the pool grows before all means are tried:
 * what all threads keep, which these would collect, keeps them apart. */
static cudaError_t large_malloc(struct front *front, const struct front_request *request, struct miss *miss,
                                uintptr_t *address) {
  static const struct growth no_growth;
  if (miss->fence != 0)
    (void)reuse_reach(front->reuse, miss->fence);
  if (((miss->full || miss->enough) && shelf_pop_fenced(front, request, miss->epoch, address)) ||
      bin_pop_fenced(front, request, miss->bin_epoch, address))
    return cudaSuccess;
  cudaError_t error = large_take(front, request, POOL_TAKE_FREE, no_growth, miss, address);
  if (error == cudaErrorMemoryAllocation && limbo_turn(front, miss))
    error = large_take(front, request, POOL_TAKE_FREE, no_growth, miss, address);
  struct growth growth = no_growth;
  if (error == cudaErrorMemoryAllocation && (miss->binning || tight_for_long(front, miss)))
    growth = growth_for_speed(front, miss, request->size);
  if (growth.bytes > 0)
    error = large_take(front, request, POOL_TAKE_GROWTH, growth, miss, address);
  if (error != cudaErrorMemoryAllocation) {
    front->tight = NULL;
    return error;
  }
  if (!miss->full && !miss->enough && shelf_pop_fenced(front, request, miss->epoch, address))
    return cudaSuccess;
  if (request->tag != NULL)
    shelf_drop_misfit(front, (request->size + front->alignment - 1) & ~(front->alignment - 1), request->tag);
  return large_take(front, request, POOL_TAKE_ANY, no_growth, miss, address);
}

static void call_end(void);

/* ---- Malloc ---- */

static void live_add(struct front *front, int64_t count) {
  biased_enter(&front->lock);
  front->numbers.live_less_one += count;
  biased_leave(&front->lock);
}

/* The calling thread's front for the pool that is meant. */
static cudaError_t front_get(struct mam_pool *pool, uint64_t default_id, struct front **front) {
  *front = front_find(pool, default_id);
  if (*front != NULL)
    return cudaSuccess;
  cudaError_t error = pool_enter(pool, default_id);
  if (error != cudaSuccess)
    return error;
  *front = front_make(pool);
  pool_exit(pool);
  return *front != NULL ? cudaSuccess
                        : error_set(cudaErrorMemoryAllocation, "the host has no memory for a thread's front");
}

/* Whether the front is still the pool's: it is not, if the pool ended meanwhile, even if its struct is a pool again. */
static bool front_attached(struct front *front, const struct mam_pool *pool) {
  biased_enter(&front->lock);
  bool attached = front->pool == pool;
  biased_leave(&front->lock);
  return attached;
}

/* The generation of the pool that the front is attached to: as long as the pool is of that, it stays attached.  No
 * pool's if it is not attached. */
static uint64_t front_generation(struct front *front, const struct mam_pool *pool) {
  biased_enter(&front->lock);
  uint64_t generation = front->pool == pool ? front->generation : NO_GENERATION;
  biased_leave(&front->lock);
  return generation;
}

static cudaError_t small_serve(struct front *front, const struct front_request *request, struct miss *miss,
                               uintptr_t *address, bool *served) {
  unsigned class = slab_class(request->size);
  if (magazine_turn(front, class, true)) {
    biased_enter(&front->lock);
    *served = front->pool == miss->pool && (*address = small_pop(front, class, request->size)) != 0;
    biased_leave(&front->lock);
    if (*served)
      return cudaSuccess;
  }
  if (!class_has_slabs(front, miss->pool, class))
    return cudaSuccess;
  cudaError_t error = pool_enter(miss->pool, request->default_id);
  if (error != cudaSuccess)
    return error;
  if (front_attached(front, miss->pool))
    *served = small_malloc(front, miss->pool, class, request->size, address);
  else
    error = cudaErrorInvalidResourceHandle;
  pool_exit(miss->pool);
  return error;
}

static cudaError_t front_serve(struct front *front, const struct front_request *request, struct miss *miss,
                               uintptr_t *address) {
  bool served = false;
  cudaError_t error = cudaSuccess;
  if (request->tag == NULL && request->size <= SLAB_BLOCK_MOST_BYTES)
    error = small_serve(front, request, miss, address, &served);
  if (served || error != cudaSuccess)
    return error;
  return large_malloc(front, request, miss, address);
}

enum tried { TRIED_SERVED, TRIED_MISSED, TRIED_NO_FRONT };

/* What the front has at hand; else what there is to know for the slow way, and the allocation counts as live already,
 * so that nobody takes the pool for empty meanwhile. */
static inline enum tried front_try(struct front *front, const struct front_request *request, bool tried_before,
                                   struct miss *miss, uintptr_t *address) {
  enum tried tried = TRIED_NO_FRONT;
  biased_enter(&front->lock);
  if (front_serves(front, request->pool, request->default_id)) {
    bool served = !tried_before && (*address = front_pop(front, request->size, request->site, request->tag)) != 0;
    tried = served ? TRIED_SERVED : TRIED_MISSED;
    front->numbers.live_less_one++;
    if (!served)
      large_miss(front, request->size, request->tag, miss);
  }
  biased_leave(&front->lock);
  return tried;
}

static cudaError_t front_malloc_missed(struct front *front, const struct front_request *request, struct miss *miss,
                                       uintptr_t *address) {
  cudaError_t error = front_serve(front, request, miss, address);
  if (miss->passed_count > 0) /* they did not go with an allocation */
    pool_give(miss->pool, miss->generation, miss->passed, miss->passed_count, 0);
  if (error != cudaSuccess)
    live_add(front, -1);
  return error;
}

/* The thread may be inside, here and in the next. */
static __attribute__((noinline)) cudaError_t malloc_quick_anew(void **ptr, size_t size, const void *site,
                                                               uint64_t default_id, front_malloc_rest *rest) {
  struct front *front = mine;
  uintptr_t address = 0;
  biased_enter(&front->lock);
  if (size > 0 && front->default_id == default_id && (address = front_pop(front, size, site, NULL)) != 0)
    front->numbers.live_less_one++;
  biased_leave(&front->lock);
  if (address == 0)
    return rest(ptr, size, site, default_id);
  *ptr = (void *)address;
  return cudaSuccess;
}

/* The epoch that the shelf of a size waits for, if the block that does may as well be asked for at once; else 0. */
static uint64_t size_waits_for(struct front *front, size_t size) {
  size_t bytes = (size + front->alignment - 1) & ~(front->alignment - 1);
  const struct shelf *shelf = shelf_for(front, bytes, NULL);
  if (shelf_is_empty(shelf) || !shelf_is_for(shelf, bytes, NULL))
    return 0;
  bool asks = !shelf_has_room(front, shelf) || shelf_has_enough(shelf, bytes);
  return asks ? shelf->oldest->epoch : 0;
}

/* reuse_reach.  If a fence has closed the epoch of what was freed, what is freed from now on is counted anew. */
static bool reach_anew(struct front *front, uint64_t epoch) {
  bool reached = reuse_reach(front->reuse, epoch);
  uint64_t now = reuse_epoch(front->reuse);
  if (now != front->unfenced_epoch)
    front->unfenced_left = front->fence_bytes;
  front->unfenced_epoch = now;
  return reached;
}

/* The thread is inside, and leaves, here and in the next two. */
static __attribute__((noinline)) cudaError_t malloc_quick_other(void **ptr, size_t size, const void *site,
                                                                front_malloc_rest *rest) {
  struct front *front = mine;
  uint64_t default_id = front->default_id;
  uintptr_t address = shelf_pop(front, size, site, NULL);
  if (address != 0) {
    front->last_size = size;
    front->last_shelf = shelf_for(front, (size + front->alignment - 1) & ~(front->alignment - 1), NULL);
  } else {
    address = bin_pop(front, size, site);
  }
  uint64_t epoch = address == 0 ? size_waits_for(front, size) : 0;
  if (address != 0)
    front->numbers.live_less_one++;
  biased_leave(&front->lock);
  if (epoch != 0 && reach_anew(front, epoch))
    return malloc_quick_anew(ptr, size, site, default_id, rest);
  if (address == 0)
    return rest(ptr, size, site, default_id);
  *ptr = (void *)address;
  return cudaSuccess;
}

/* A block from the magazine, if it has one ready. */
static inline __attribute__((always_inline)) cudaError_t malloc_quick_class(void **ptr, size_t size, const void *site,
                                                                            front_malloc_rest *rest,
                                                                            struct front *front, unsigned class) {
  struct magazine *magazine = &front->magazines[class];
  if (__builtin_expect(magazine->ready->count == 0, false))
    return malloc_quick_anew(ptr, size, site, front->default_id, rest);
  uintptr_t address = ready_pop(magazine, class, size);
  front->numbers.live_less_one++;
  biased_leave(&front->lock);
  *ptr = (void *)address;
  return cudaSuccess;
}

/* More than SLAB_FINE_BYTES, or nothing. */
static __attribute__((noinline)) cudaError_t malloc_quick_large(void **ptr, size_t size, const void *site,
                                                                front_malloc_rest *rest, struct front *front) {
  if (size - 1 < SLAB_BLOCK_MOST_BYTES)
    return malloc_quick_class(ptr, size, site, rest, front, slab_class(size));
  return malloc_quick_other(ptr, size, site, rest);
}

/* As large as the last one, whose shelf need not be looked for. */
static inline __attribute__((always_inline)) cudaError_t
malloc_quick_last(void **ptr, size_t size, const void *site, front_malloc_rest *rest, struct front *front) {
  struct shelf *shelf = front->last_shelf;
  struct kept *kept = shelf->oldest;
  if (__builtin_expect(shelf_is_empty(shelf) || kept->epoch > reuse_passed(front->reuse) ||
                           kept->segment->as.used.requested_bytes != size,
                       false))
    return malloc_quick_other(ptr, size, site, rest);
  uintptr_t address = shelf_hand_out(front, shelf, kept, size, site, NULL);
  front->numbers.live_less_one++;
  biased_leave(&front->lock);
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t front_malloc_quick(void **ptr, size_t size, const void *site, front_malloc_rest *rest,
                               uint64_t default_id) {
  struct front *front = mine;
  if (__builtin_expect(front == NULL, false))
    return rest(ptr, size, site, default_id);
  if (__builtin_expect(!biased_try(&front->lock) || front->default_id != default_id, false))
    return malloc_quick_anew(ptr, size, site, default_id, rest);
  if (size - 1 < SLAB_FINE_BYTES)
    return malloc_quick_class(ptr, size, site, rest, front, slab_class(size));
  if (size == front->last_size)
    return malloc_quick_last(ptr, size, site, rest, front);
  return malloc_quick_large(ptr, size, site, rest, front);
}

/* tried: what came of the thread's last front, if it has one; *miss: as that says. */
static __attribute__((noinline)) cudaError_t front_malloc_slowly(struct front *front,
                                                                 const struct front_request *request, enum tried tried,
                                                                 struct miss *miss, uintptr_t *address) {
  NOT_CANCELLED;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && tried == TRIED_NO_FRONT) {
    error = front_get(request->pool, request->default_id, &front);
    if (error == cudaSuccess)
      tried = front_try(front, request, false, miss, address);
  }
  if (error == cudaSuccess && tried == TRIED_MISSED)
    error = front_malloc_missed(front, request, miss, address);
  call_end();
  return error;
}

cudaError_t front_malloc(const struct front_request *request, uintptr_t *address) {
  struct front *front = mine;
  struct miss miss;
  enum tried tried = front != NULL ? front_try(front, request, request->tried, &miss, address) : TRIED_NO_FRONT;
  if (__builtin_expect(tried == TRIED_SERVED, true))
    return cudaSuccess;
  if (tried == TRIED_NO_FRONT && request->pool == NULL)
    return cudaErrorInvalidResourceHandle;
  return front_malloc_slowly(front, request, tried, &miss, address);
}

/* ---- Free ---- */

/* The pool of a block that the thread has no front for yet, or none that comes first. */
static struct mam_pool *pool_of(uintptr_t address, struct slab **slab) {
  *slab = page_map_find(address);
  /* acquire: as in free_small */
  struct mam_pool *pool = *slab != NULL ? atomic_load_explicit(&(*slab)->pool, memory_order_acquire) : NULL;
  if (pool == NULL)
    *slab = NULL;
  return pool != NULL ? pool : chunk_map_find(address);
}

struct mam_pool *front_pool_of(uintptr_t address) {
  struct slab *slab;
  return pool_of(address, &slab);
}

static cudaError_t slab_free_refused(const struct slab *slab, uintptr_t address) {
  return pool_refuse_free(address, slab_index(slab, address) != UINT32_MAX);
}

/* A free of a block of a pool that the thread got no front for, or could not enter.  Without memory for a front, no
 * other thread is alone in that pool (front_make). */
static cudaError_t free_without(struct mam_pool *pool, uintptr_t address, cudaError_t error) {
  if (error == cudaErrorMemoryAllocation && pool_enter(pool, POOL_ANY_ID) == cudaSuccess) {
    error = pool_free_from(pool, pool->generation, address); /* constant: it cannot end meanwhile */
    pool_exit(pool);
    return error;
  }
  return error == cudaErrorInitializationError ? error : pool_refuse_free(address, false); /* it has ended */
}

static cudaError_t small_free_slowly(struct front *front, struct mam_pool *pool, struct slab *slab, uintptr_t address,
                                     enum front_freed *freed) {
  cudaError_t error = pool_enter(pool, POOL_ANY_ID);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  if (!front_attached(front, pool)) { /* the pool ended, and the block with it */
    pool_exit(pool);
    return pool_refuse_free(address, false);
  }
  do /* again if others collected what was made room with */
    if (!magazine_make_room(front, pool, slab->class))
      error = error_set(cudaErrorMemoryAllocation, "the host has no memory to free %p", (void *)address);
    else
      *freed = free_small_anew(front, slab, address);
  while (error == cudaSuccess && *freed == FRONT_FREED_NO_ROOM);
  if (error == cudaSuccess && *freed == FRONT_FREED_NOT)
    error = slab_free_refused(slab, address);
  pool_exit(pool);
  return error;
}

static cudaError_t large_free_slowly(struct front *front, struct mam_pool *pool, uintptr_t address,
                                     enum front_freed *freed) {
  cudaError_t error = pool_free_from(pool, front_generation(front, pool), address);
  biased_enter(&front->lock);
  if (front->pool != NULL && error == cudaSuccess)
    *freed = freed_count(front);
  biased_leave(&front->lock);
  return error;
}

/* Reports a lazy pool's emptying, once; or that it is to be watched. */
static void report_zero(struct front *front, struct pool_emptied *emptied) {
  struct mam_pool *pool = front->zero_pool;
  if (pool_to_be_watched(pool)) { /* of several threads: this one's frees may be of what others allocate */
    *emptied = (struct pool_emptied){.pool = pool, .watch = true};
    return;
  }
  if (pool_enter(pool, POOL_ANY_ID) != cudaSuccess)
    return;
  fronts_freeze(pool);
  if (fronts_live(pool->fronts) == 0)
    pool_report_emptied(pool, front->zero_generation, emptied);
  fronts_thaw(pool);
  pool_exit(pool);
}

void front_zero(struct pool_emptied *emptied) {
  *emptied = (struct pool_emptied){0};
  report_zero(mine, emptied);
}

static cudaError_t free_by_front(uintptr_t address, struct pool_emptied *emptied) {
  struct slab *slab;
  struct front *front;
  struct mam_pool *pool = pool_of(address, &slab);
  enum front_freed freed = FRONT_FREED_NOT;
  *emptied = (struct pool_emptied){0};
  if (pool == NULL)
    return pool_refuse_free(address, false);
  cudaError_t error = front_get(pool, POOL_ANY_ID, &front);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  freed = slab != NULL ? free_small_anew(front, slab, address)
                       : (enum front_freed)free_large_anew(address, freed_tell, front);
  if (freed > FRONT_FREED_ZERO)
    error = slab != NULL ? small_free_slowly(front, pool, slab, address, &freed)
                         : large_free_slowly(front, pool, address, &freed);
  if (freed == FRONT_FREED_ZERO)
    report_zero(front, emptied);
  return error;
}

cudaError_t front_free(uintptr_t address, struct pool_emptied *emptied) {
  cudaError_t error = free_by_front(address, emptied);
  call_end();
  return error;
}

/* A block of a slab goes to the depot by itself. */
static cudaError_t small_free_alone(struct front *front, struct mam_pool *pool, struct slab *slab, uintptr_t address,
                                    bool at_once, struct context_stream stream) {
  uint32_t index = slab_index(slab, address);
  cudaError_t error = pool_enter(pool, POOL_ANY_ID);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  struct depot *depot = &pool->fronts->depots[slab->class];
  error = pool_accompany(pool, stream);
  struct batch *batch = error == cudaSuccess ? slab_shell_take(depot) : NULL;
  if (error == cudaSuccess && batch == NULL)
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory to free %p", (void *)address);
  biased_enter(&front->lock);
  /* acquire: as in free_small */
  bool ours = front->pool == pool && atomic_load_explicit(&slab->pool, memory_order_acquire) == pool;
  bool claimed = error == cudaSuccess && ours && index != UINT32_MAX &&
                 small_claim(front, &front->magazines[slab->class], slab_live(slab, index));
  if (claimed)
    front->magazines[slab->class].rested++;
  biased_leave(&front->lock);
  if (claimed) {
    batch->blocks[batch->count++] = (struct slab_block){address, slab_live(slab, index)};
    batch->epoch = at_once ? 0 : reuse_epoch(pool->reuse);
    slab_rest(pool, depot, batch, at_once);
  } else if (error == cudaSuccess) {
    slab_shell_give(depot, batch);
    error = slab_free_refused(slab, address);
  }
  pool_exit(pool);
  return error;
}

static cudaError_t free_by_rule(uintptr_t address, MAM_Reuse reuse, struct context_stream stream,
                                struct pool_emptied *emptied) {
  struct slab *slab;
  struct front *front;
  struct mam_pool *pool = pool_of(address, &slab);
  *emptied = (struct pool_emptied){0};
  if (pool == NULL)
    return pool_refuse_free(address, false);
  cudaError_t error = front_get(pool, POOL_ANY_ID, &front);
  if (error != cudaSuccess)
    return free_without(pool, address, error);
  if (slab != NULL)
    error = small_free_alone(front, pool, slab, address, reuse == MAM_REUSE_IMMEDIATE, stream);
  else
    error = pool_free_reuse(pool, front_generation(front, pool), address, reuse, stream);
  if (error != cudaSuccess)
    return error;
  biased_enter(&front->lock);
  enum front_freed freed = front->pool != NULL ? freed_count(front) : FRONT_FREED;
  biased_leave(&front->lock);
  if (freed == FRONT_FREED_ZERO)
    report_zero(front, emptied);
  return cudaSuccess;
}

cudaError_t front_free_reuse(uintptr_t address, MAM_Reuse reuse, struct context_stream stream,
                             struct pool_emptied *emptied) {
  cudaError_t error = free_by_rule(address, reuse, stream, emptied);
  call_end();
  return error;
}

static cudaError_t malloc_stream(const struct front_request *request, struct context_stream stream,
                                 uintptr_t *address) {
  struct front *front;
  struct pool_block block;
  cudaError_t error = front_get(request->pool, request->default_id, &front);
  if (error != cudaSuccess)
    return error;
  biased_enter(&front->lock);
  struct pool_order order = {.default_id = request->default_id,
                             .generation = front->generation,
                             .size = request->size,
                             .site = request->site,
                             .effort = POOL_TAKE_ANY,
                             .stream = stream};
  front->numbers.live_less_one++; /* as in front_try */
  biased_leave(&front->lock);
  error = pool_take(request->pool, &order, &block);
  if (error == cudaSuccess && !front_attached(front, request->pool))
    error = cudaErrorInvalidResourceHandle; /* as in large_take */
  if (error == cudaSuccess)
    *address = block.address;
  else
    live_add(front, -1);
  return error;
}

cudaError_t front_malloc_stream(const struct front_request *request, struct context_stream stream, uintptr_t *address) {
  cudaError_t error = malloc_stream(request, stream, address);
  call_end();
  return error;
}

/* ---- Collecting ---- */

/* Sends a batch to its depot, a stand-in nowhere. */
static void batch_return(struct mam_pool *pool, struct depot *depot, struct batch *batch, uint64_t epoch,
                         bool at_once) {
  if (!batch_real(batch))
    return;
  batch->epoch = epoch;
  if (batch->count > 0)
    slab_rest(pool, depot, batch, at_once);
  else
    slab_shell_give(depot, batch);
}

static void shells_return(struct depot *depot, struct magazine *magazine) {
  struct batch *shell;
  while ((shell = magazine->shells) != NULL) {
    magazine->shells = shell->next;
    slab_shell_give(depot, shell);
  }
}

/* Count the ready and the freed batch, which are about to leave. */
static void magazine_settle_ready(struct magazine *magazine) { magazine->readied = magazine_mallocs(magazine); }

static void magazine_settle_freed(struct magazine *magazine) { magazine->rested = magazine_frees(magazine); }

static void magazine_empty(struct front *front, unsigned class, uint64_t passed) {
  struct magazine *magazine = &front->magazines[class];
  struct mam_pool *pool = front->pool;
  struct depot *depot = &pool->fronts->depots[class];
  magazine_settle_ready(magazine);
  batch_return(pool, depot, magazine->ready, 0, true);
  magazine->ready = &none_ready;
  while (magazine->resting != NULL && magazine->resting->epoch <= passed) {
    struct batch *batch = resting_pull(magazine);
    batch_return(pool, depot, batch, batch->epoch, false);
  }
  if (passed < EVERY_EPOCH)
    return;
  magazine_settle_freed(magazine);
  batch_return(pool, depot, magazine->freed, stamp(front), false);
  shells_return(depot, magazine);
  magazine_init(magazine);
}

static void shelves_empty(struct front *front, uint64_t passed) {
  struct segment *segments[GIVEN_MOST];
  struct shelf *shelf;
  unsigned count;
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
    do {
      uint64_t epoch = 0;
      count = shelf_clear(shelf, passed, segments, &epoch, GIVEN_MOST);
      pool_give(front->pool, front->generation, segments, count, epoch);
    } while (count == GIVEN_MOST);
}

static void limbo_empty(struct front *front, uint64_t passed) {
  struct segment *segments[GIVEN_MOST];
  unsigned count;
  do {
    uint64_t epoch = 0;
    count = limbo_clear(front, passed, segments, &epoch);
    pool_give(front->pool, front->generation, segments, count, epoch);
  } while (count == GIVEN_MOST);
}

/* Empties a front into its pool; of what was freed, what was in the epoch or earlier.  Nobody is inside it, and the
 * pool is not past the end of its fronts. */
static void front_empty(struct front *front, uint64_t passed) {
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    magazine_empty(front, i, passed);
  shelves_empty(front, passed);
  limbo_empty(front, passed);
}

static void numbers_add(const struct front *front, struct pool_front_sum *sum) {
  const struct front_numbers *numbers = &front->numbers;
  sum->live += numbers->live_less_one + 1;
  sum->requested_bytes += (size_t)numbers->requested_bytes;
  sum->hits[FRONT_HIT_TAG] += numbers->tag_hits;
  sum->hits[FRONT_HIT_SIZE] += (front->ticket_next - front->ticket_first) / 2 - numbers->tag_hits;
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    const struct magazine *magazine = &front->magazines[i];
    uint64_t mallocs = magazine_mallocs(magazine), frees = magazine_frees(magazine);
    sum->hits[FRONT_HIT_MAGAZINE] += mallocs;
    sum->frees += frees;
    sum->live_small_count += mallocs - frees;
    sum->live_small_bytes += (mallocs - frees) * slab_class_bytes(i);
    uint64_t left_over = (uint64_t)magazine->codes - (mallocs - frees); /* in steps, see slab_code */
    sum->requested_bytes += (mallocs - frees) * slab_class_bytes(i) - (left_over << slab_code_shift(i));
  }
}

/* Takes a front out of its pool's list; the fronts' lock is held. */
static void front_unlink(struct fronts *fronts, struct front *front) {
  struct front **link = &fronts->first;
  while (*link != front)
    link = &(*link)->next_of_pool;
  *link = front->next_of_pool;
  numbers_add(front, &fronts->gone);
}

/* Fronts whose threads did not survive a fork are emptied like any other, and then freed. */
static void orphans_free(struct fronts *fronts) {
  for (struct front *front = fronts->first, *next; front != NULL; front = next) {
    next = front->next_of_pool;
    if (front->orphan) {
      front_unlink(fronts, front);
      biased_other_leave(&front->lock);
      front_free_memory(front);
    }
  }
}

/* All at once: then nothing is on its way from one thread to another. */
static void fronts_empty(struct mam_pool *pool) {
  fronts_freeze(pool);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool)
    front_empty(front, EVERY_EPOCH);
  orphans_free(pool->fronts);
  fronts_thaw(pool);
}

/* One after the other, so that a thread is kept out for as long as its own front takes, not for all of them.  Under the
 * fenced rule, only of what has passed: the rest helps nobody yet, and to move thousands of blocks through the pool's
 * lock beside a running kernel took a millisecond. */
static void fronts_empty_in_turn(struct mam_pool *pool) {
  uint64_t passed = pool->config.reuse == MAM_REUSE_FENCED ? reuse_passed(pool->reuse) : EVERY_EPOCH;
  pthread_mutex_lock(&pool->fronts->lock);
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
    front_take(front);
    front_empty(front, passed);
    biased_other_leave(&front->lock);
  }
  pthread_mutex_unlock(&pool->fronts->lock);
}

static bool fronts_collect(struct mam_pool *pool, bool all) {
  unsigned most = all ? UINT_MAX : RECLAIM_MOST;
  if (all)
    fronts_empty(pool);
  else
    fronts_empty_in_turn(pool);
  (void)reuse_reach(pool->reuse, reuse_epoch(pool->reuse)); /* what was just freed may have passed already */
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    (void)slab_reclaim(pool, &pool->fronts->depots[i], &most);
  return most > 0;
}

/* ---- The end of a thread ---- */

static void front_leave_pool(struct front *front, struct mam_pool *pool) {
  pthread_mutex_lock(&pool->fronts->lock);
  if (front->pool == pool) { /* else the pool ended first; it changes under the fronts' lock */
    front_empty(front, EVERY_EPOCH);
    front_unlink(pool->fronts, front);
  }
  pthread_mutex_unlock(&pool->fronts->lock);
}

static void fronts_leave(void) {
  struct front *front;
  while ((front = mine) != NULL) {
    mine = front->next_of_thread;
    biased_enter(&front->lock);
    struct mam_pool *pool = front->pool;
    biased_leave(&front->lock);
    if (pool != NULL)
      front_leave_pool(front, pool);
    front_free_memory(front);
  }
}

/* Destructors of the program's may follow, and allocate and free. */
static void front_thread_end(void *unused) {
  NOT_CANCELLED;
  (void)unused;
  ending = true;
  fronts_leave();
}

/* The last act of a call that may have made a front. */
static void call_end(void) {
  if (__builtin_expect(ending, false))
    fronts_leave();
}

/* ---- The beginning and the end of a pool ---- */

void front_set_up(void) {
  biased_register();
  thread_end_heard = pthread_key_create(&thread_end, front_thread_end) == 0;
}

static bool fronts_open(struct mam_pool *pool) {
  if (pool->fronts != NULL) /* of the pool that had the struct before */
    return true;
  struct fronts *fronts = aligned_alloc(_Alignof(struct fronts), sizeof *fronts);
  if (fronts == NULL)
    return false;
  memset(fronts, 0, sizeof *fronts);
  (void)pthread_mutex_init(&fronts->lock, NULL);
  for (unsigned i = 0; i < DEPOT_LOCKS; i++)
    (void)pthread_mutex_init(&fronts->depot_locks[i], NULL);
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    depot_init(&fronts->depots[i], &fronts->depot_locks[i % DEPOT_LOCKS]);
  pool->fronts = fronts;
  return true;
}

static void batch_drop(struct batch *batch) {
  if (batch_real(batch))
    free(batch);
}

static void batches_drop(struct batch *batch) {
  while (batch_real(batch)) {
    struct batch *next = batch->next;
    free(batch);
    batch = next;
  }
}

static void magazine_drop(struct magazine *magazine) {
  batch_drop(magazine->ready);
  batch_drop(magazine->freed);
  batches_drop(magazine->resting);
  batches_drop(magazine->shells);
  magazine_init(magazine);
}

/* Lets go of what belongs to a pool that ends.  Nobody is inside. */
static void front_detach(struct front *front) {
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    magazine_drop(&front->magazines[i]);
  struct shelf *shelf;
  front->limbo_count = 0;
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
    ring_empty(shelf);
  if (front->owns)
    memset(front->owned, 0, sizeof front->owned);
  front->owns = false;
  front->crowd = 0;
  front->binning = front->alone = false;
  front->pool = NULL;
  front->default_id = NO_DEFAULT_ID;
}

static void fronts_close(struct mam_pool *pool) {
  struct fronts *fronts = pool->fronts;
  struct front *front;
  fronts_freeze(pool);
  while ((front = fronts->first) != NULL) {
    fronts->first = front->next_of_pool;
    front_detach(front);
    bool orphan = front->orphan;
    biased_other_leave(&front->lock); /* from here on, its thread may free it */
    if (orphan)
      front_free_memory(front);
  }
  memset(&fronts->gone, 0, sizeof fronts->gone);
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    slab_forget(&fronts->depots[i]);
  fronts_thaw(pool);
}

bool front_retire(struct mam_pool *pool, uint64_t default_id, bool only_if_empty) {
  if (!only_if_empty)
    return pool_retire(pool, default_id, false);
  all_freeze(pool);
  bool retired = pool_retire(pool, default_id, true);
  if (retired) /* a front that went on could hand out a block of it */
    for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
      front->default_id = NO_DEFAULT_ID;
    }
  all_thaw(pool);
  return retired;
}

/* ---- Numbers ---- */

static void kept_add(const struct kept *kept, uint64_t passed, struct pool_front_sum *sum) {
  sum->kept_count++;
  sum->kept_bytes += kept->segment->bytes;
  sum->requested_bytes -= kept->segment->as.used.requested_bytes; /* the pool counts it until it is given back */
  sum->kept_waiting_bytes += kept->epoch > passed ? kept->segment->bytes : 0;
  sum->kept_waiting_count += kept->epoch > passed;
}

static void front_add_kept(struct front *front, struct pool_front_sum *sum) {
  uint64_t passed = reuse_passed(front->reuse);
  const struct shelf *shelf;
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++) {
    struct kept *kept = shelf->oldest;
    for (; kept != shelf->next; kept = ring_after(shelf, kept))
      kept_add(kept, passed, sum);
  }
  for (unsigned j = 0; j < front->limbo_count; j++)
    kept_add(&front->limbo[(front->limbo_first + j) % LIMBO_BLOCKS], passed, sum);
}

static void front_add_resting(const struct front *front, struct pool_front_sum *sum) {
  uint64_t passed = reuse_passed(front->reuse);
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    const struct magazine *magazine = &front->magazines[i];
    size_t blocks = batch_real(magazine->freed) ? magazine->freed->count : 0;
    for (const struct batch *batch = magazine->resting; batch != NULL; batch = batch->next)
      blocks += batch->epoch > passed ? batch->count : 0;
    sum->small_waiting_bytes += blocks * slab_class_bytes(i);
  }
}

static size_t front_host_bytes(struct front *front) {
  size_t bytes = sizeof *front;
  const struct shelf *shelf;
  for (unsigned i = 0; (shelf = shelf_at(front, i)) != NULL; i++)
    bytes += ring_is_none(shelf) ? 0 : (size_t)(shelf->end - shelf->ring) * sizeof *shelf->ring;
  return bytes;
}

static void fronts_sum(struct mam_pool *pool, struct pool_front_sum *sum) {
  *sum = pool->fronts->gone;
  for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
    numbers_add(front, sum);
    front_add_kept(front, sum);
    front_add_resting(front, sum);
    sum->metadata_bytes += front_host_bytes(front);
    sum->thread_count++;
  }
  /* What large blocks were kept for was handed out again, or still is kept, or went to the pool, which counts it. */
  sum->frees += sum->hits[FRONT_HIT_SIZE] + sum->hits[FRONT_HIT_TAG] + sum->kept_count;
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    struct slab_sum slabs = slab_count(pool, &pool->fronts->depots[i], i);
    sum->span_bytes += slabs.span_bytes;
    sum->small_waiting_bytes += slabs.waiting_bytes;
    sum->metadata_bytes += slabs.host_bytes;
  }
}

/* ---- Fork ---- */

static bool is_mine(const struct front *front) {
  const struct front *of_thread = mine;
  while (of_thread != NULL && of_thread != front)
    of_thread = of_thread->next_of_thread;
  return of_thread != NULL;
}

static void fronts_after_fork(struct mam_pool *pool, bool in_child) {
  if (in_child)
    biased_register();
  if (in_child)
    for (struct front *front = pool->fronts->first; front != NULL; front = front->next_of_pool) {
      front->orphan = !is_mine(front);
      if (front->orphan) /* its thread may have said that it is inside, and not yet stood back */
        biased_leave(&front->lock);
    }
  all_thaw(pool);
}

const struct pool_front front_operations = {.open = fronts_open,
                                            .collect = fronts_collect,
                                            .close = fronts_close,
                                            .freeze = all_freeze,
                                            .thaw = all_thaw,
                                            .sum = fronts_sum,
                                            .before_fork = all_freeze,
                                            .after_fork = fronts_after_fork};
