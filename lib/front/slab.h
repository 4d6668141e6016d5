/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Slabs: 512 KiB of a pool each, carved in equal blocks of a size class, with a byte a block that says whether it is
 * live and a bit a block that says whether it is inside the slab; and the depot of each class, where the fronts'
 * batches of blocks change hands.
 *
 * A block of a slab is in exactly one place: live (the program has it), in a batch (a front's or the depot's), or
 * inside its slab (its bit is set).  A live block has a code in its live byte, all others have 0.  A free claims the
 * block by that byte (claim.h), so that of two frees of one block one fails, whatever threads they come from.
 *
 * Slabs take their memory from the pool and give it back when all blocks are inside.  A slab is bound for good to its
 * page (512 KiB of addresses) and to its class: a page has one slab for each class that it was ever carved for, and the
 * page map names the last.  A slab is found through page_map.h without a lock; its pool is read then.  So neither a
 * slab nor its bytes are freed.
 *
 * This also makes a double free harmless that is held up between its look at a slab and its claim.  All blocks may have
 * come in meanwhile, and the page may be carved again.  If it is carved for another class, no thread writes the bytes
 * of this slab, which are 0.  If it is carved for the same class, the byte is that of a block at this very address.  It
 * is still a block of the pool that was looked at: a page comes to another pool only with its chunk, and before that no
 * thread is inside a front of this pool (fronts_step_out in pool_trim.c).
 *
 * Lock order: a depot's lock, then its pool's.  No lock is held while the pool grows or the driver is asked.
 */
#ifndef MAM_LIB_SLAB_H
#define MAM_LIB_SLAB_H

#include "front/page_map.h"
#include "pool/pool.h"

/* A slab is a page of the page map.  Blocks are multiples of the alignment. */
enum {
  SLAB_BYTES = POOL_SLAB_BYTES,
  SLAB_UNIT_BYTES = POOL_ALIGNMENT_BYTES,
  SLAB_BLOCKS_MOST = SLAB_BYTES / SLAB_UNIT_BYTES
};
_Static_assert(SLAB_BYTES == 1 << PAGE_MAP_PAGE_BITS, "a slab is not a page of the page map");

/* Classes are 512 B apart up to 8 KiB, 1 KiB up to 16 KiB, 2 KiB up to 32 KiB: at most an eighth of a block is lost. */
enum { SLAB_FINE_BYTES = 16 * SLAB_UNIT_BYTES, SLAB_CLASSES = 32 };

/* Blocks that move together: the bits of a word of the slab's map, and the live bytes of a cache line.  At least so
 * many frees share a fence. */
enum { SLAB_BATCH = 64 };

/* Not NULL under libmam_preload: each block then has a second byte, SLAB_BLOCKS_MOST bytes after the first, for what
 * its code leaves out, so that the size that was asked for is known exactly.  Constant before any code runs. */
extern const void *const slab_exact __attribute__((visibility("hidden")));

/* A block that is not live, and where that is written: an allocation then need not look for it. */
struct slab_block {
  uintptr_t address;
  _Atomic uint8_t *live;
};

/* Free blocks of one class that move together.  The front or the depot that has a batch owns it. */
struct batch {
  _Alignas(64) struct batch *next; /* no two threads' batches share a cache line */
  uint64_t epoch;                  /* none of the blocks was freed later: they may be used when it has passed */
  struct context_stream stream;    /* in a depot: on which all were freed, and may be used at once; id 0: none */
  unsigned count;
  struct slab_block blocks[SLAB_BATCH];
};

struct slab {
  /* The pool whose memory it has, NULL while it has none; written under the depot's lock, read by frees without one. */
  _Atomic(struct mam_pool *) pool;
  /* Constant. */
  uintptr_t base;       /* of its page */
  uint64_t index_magic; /* 2^64 / a block's bytes, rounded up: see slab_index */
  uint32_t block_count;
  unsigned class;
  _Atomic uint8_t *live;         /* a code for each block, 0 if it is not the program's */
  _Alignas(64) uint64_t *inside; /* a bit for each block, under the depot's lock; the pointer is constant */
  uint32_t inside_count;
  TAILQ_ENTRY(slab) link;     /* in its depot: those with blocks inside first */
  struct slab *next_of_class; /* the ring of its page's slabs, of the pool that has the page */
};

TAILQ_HEAD(slab_list, slab);

/* All slabs and resting batches of one class of a pool. */
struct depot {
  _Alignas(64) pthread_mutex_t *lock; /* may be other depots' too */
  struct slab_list slabs;
  struct batch *first, **last; /* resting, oldest epoch first but for what was freed for immediate use */
  unsigned batch_count;
  _Atomic unsigned slab_count; /* written under the lock; relaxed, a hint for others */
  struct batch *shells;        /* empty batches for the next to come */
};

/* The lock stays the caller's, and exists for as long as the depot is used. */
void depot_init(struct depot *depot, pthread_mutex_t *lock);

/* The smallest class whose blocks hold bytes, 1 to POOL_SMALL_MOST_BYTES. */
static inline unsigned slab_class(size_t bytes) {
  unsigned unit = (unsigned)((bytes - 1) / SLAB_UNIT_BYTES);
  if (__builtin_expect(unit < 16, true))
    return unit;
  return unit < 32 ? 16 + (unit - 16) / 2 : 24 + (unit - 32) / 4;
}

static inline size_t slab_class_bytes(unsigned class) {
  size_t units = class < 16 ? class + 1 : class < 24 ? 18 + 2 * (class - 16) : 36 + 4 * (class - 24);
  return units * SLAB_UNIT_BYTES;
}

/* Which block of the slab starts at the address, which is in its page; UINT32_MAX if none does.  By one product: its
 * upper half is the quotient, its lower half is less than the magic if nothing is left over.  Both are exact for
 * numbers of 32 bits (Lemire, Kaser and Kurz, Faster remainder by direct computation, 2019), and an offset has 21. */
static inline uint32_t slab_index(const struct slab *slab, uintptr_t address) {
  uint64_t offset = address % SLAB_BYTES, index = (uint64_t)((unsigned __int128)offset * slab->index_magic >> 64);
  bool starts = offset * slab->index_magic < slab->index_magic;
  return index < slab->block_count && starts ? (uint32_t)index : UINT32_MAX;
}

static inline _Atomic uint8_t *slab_live(const struct slab *slab, uint32_t index) { return &slab->live[index]; }

/* What was asked for, as one byte: 1 and what is left over of the block in steps of a 128th of the class's spacing. The
 * spacing is a power of two, and the class's size a multiple of it. */
static inline unsigned slab_code_shift(unsigned class) { return class < 16 ? 2 : class < 24 ? 3 : 4; }

static inline uint32_t slab_left_over(size_t bytes, unsigned class) {
  return -(uint32_t)bytes & ((128u << slab_code_shift(class)) - 1);
}

static inline uint32_t slab_code(size_t bytes, unsigned class) {
  return 1 + (slab_left_over(bytes, class) >> slab_code_shift(class));
}

/* What the code leaves out; the code itself is written next. */
static inline void slab_exact_write(_Atomic uint8_t *live, size_t bytes, unsigned class) {
  uint32_t rest = slab_left_over(bytes, class) & ((1u << slab_code_shift(class)) - 1);
  atomic_store_explicit(live + SLAB_BLOCKS_MOST, (uint8_t)rest, memory_order_relaxed); /* relaxed: as the code */
}

/* What was asked for by a code's block, exactly if that was written. */
static inline size_t slab_requested_bytes(const _Atomic uint8_t *live, unsigned class, uint8_t code) {
  /* relaxed: as the code */
  size_t rest = slab_exact != NULL ? atomic_load_explicit(live + SLAB_BLOCKS_MOST, memory_order_relaxed) : 0;
  return slab_class_bytes(class) - ((size_t)(code - 1) << slab_code_shift(class)) - rest;
}

/* Blocks for a front: a batch that may be used, or one carved from a slab; of a slab, blocks of one word of bits, so
 * that no two threads write live bytes of one cache line unless blocks have wandered.  May grow the pool.  Waits
 * for the GPU only where the driver has no fences (pool_wait_before_slab).  NULL if there are none.  The caller is a
 * user of the pool. */
struct batch *slab_refill(struct mam_pool *pool, struct depot *depot, unsigned class);

/* Where a depot's blocks are that are not in its slabs: neither there nor in its batches, and in these. */
struct slab_missing {
  size_t away, resting;
};

/* The same with no further slab, and no wait.  *missing: if there is none, and the pointer is not NULL. */
struct batch *slab_refill_at_hand(struct mam_pool *pool, struct depot *depot, unsigned class,
                                  struct slab_missing *missing);

/* A batch of what was freed on a stream, among those that rest longest, as many as a depot keeps; NULL if there is
 * none. */
struct batch *slab_retake(struct depot *depot, struct context_stream stream);

/* An empty batch; NULL if the host has no memory. */
struct batch *slab_shell_take(struct depot *depot);

/* Takes a batch from a front.  Its epoch is set; with 0, the next refill takes it before all others.  stream: on which
 * all its blocks were freed.  Then slabs whose blocks are all inside may go back to the pool.  An empty batch becomes a
 * shell; NULL is none. */
void slab_rest(struct mam_pool *pool, struct depot *depot, struct batch *batch, struct context_stream stream);

/* Whether batches rest in the depot. */
bool slab_rests(struct depot *depot);

/* Asks for a fence if the depot has come to keep many batches of which none has passed, as far as is known.  For frees
 * that fill batches, one call for each; not inside a front. */
void slab_fence(struct mam_pool *pool, struct depot *depot);

/* Frees a list of batches. */
void slab_batches_free(struct batch *batch);

/* Puts the blocks of resting batches whose epoch has passed into their slabs and gives slabs back that have them all:
 * of at most *most batches, which counts down.  Returns how many bytes went to the pool. */
size_t slab_reclaim(struct mam_pool *pool, struct depot *depot, unsigned *most);

/* The bytes of the depot's slabs. */
static inline size_t slab_depot_bytes(const struct depot *depot) {
  return SLAB_BYTES * (size_t)atomic_load_explicit(&depot->slab_count, memory_order_relaxed); /* relaxed: a hint */
}

/* Forgets all slabs and batches: the pool's memory is about to go.  No other thread uses the depot. */
void slab_forget(struct depot *depot);

/* The depot's lock is held.  What it holds: bytes of its slabs; of these, in batches whose epoch has not passed; and of
 * host memory. */
struct slab_sum {
  size_t slab_bytes, waiting_bytes, host_bytes;
};
struct slab_sum slab_count(struct mam_pool *pool, struct depot *depot, unsigned class);

#endif
