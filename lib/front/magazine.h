/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Magazines: a front's small blocks of one size class (README.md, "Small blocks").  An emptied batch becomes a shell,
 * and is filled next.
 *
 * Invariant: of the blocks of the class, loaded_blocks - loaded->count were allocated here, and filled_blocks plus
 * what the filling batch holds were freed here.
 *
 * Knows no front and takes no lock: its owner is inside its front, or no thread is.  The inline functions are the quick
 * path's.
 */
#ifndef MAM_LIB_MAGAZINE_H
#define MAM_LIB_MAGAZINE_H

#include "cuda/reuse.h"
#include "front/claim.h"
#include "front/slab.h"

/* A magazine lets so many batches rest before it asks for a fence, of so many bytes: at least four batches.  These
 * batches share the fence, and all threads share the driver's lock, which a fence takes. */
enum { RESTING_MOST = 8, RESTING_MOST_BYTES = 8 << 20 };

/* What the quick way needs is on one cache line. */
struct magazine {
  _Alignas(64) struct batch *loaded; /* to allocate from; never NULL, see magazine_nothing */
  struct batch *filling;             /* to push frees on; never NULL, see magazine_no_room */
  int64_t codes;         /* the sum of the live blocks' codes (slab.h), as far as this thread made them so */
  struct batch *resting; /* full ones, oldest first; NULL if none */
  struct batch **resting_end;
  unsigned resting_count;
  struct batch *shells; /* empty batches for the next to come */
  /* Counted by whole batches: the blocks that ever came to the loaded one, and those that ever left the filling one. */
  uint64_t loaded_blocks, filled_blocks;
};

/* Stand in for batches that are not there: nothing to take, no room to push. */
extern struct batch magazine_nothing __attribute__((visibility("hidden")));
extern struct batch magazine_no_room __attribute__((visibility("hidden")));

/* Whether it is a batch, not NULL or a stand-in. */
static inline bool batch_real(const struct batch *batch) {
  return batch != NULL && batch != &magazine_nothing && batch != &magazine_no_room;
}

void magazine_init(struct magazine *magazine);

static inline void shell_keep(struct magazine *magazine, struct batch *batch) {
  if (!batch_real(batch))
    return;
  batch->next = magazine->shells;
  magazine->shells = batch;
}

/* Gives frees an empty batch to go to.  False if there is none at hand. */
static inline bool magazine_open(struct magazine *magazine) {
  struct batch *shell = magazine->shells;
  if (shell != NULL) {
    magazine->shells = shell->next;
  } else if (magazine->loaded->count == 0 && batch_real(magazine->loaded)) {
    shell = magazine->loaded;
    magazine->loaded = &magazine_nothing;
  }
  magazine->filling = shell != NULL ? shell : &magazine_no_room;
  return shell != NULL;
}

/* Lets the batch that is being filled rest. */
static inline void magazine_rest(struct magazine *magazine, uint64_t epoch) {
  struct batch *filling = magazine->filling;
  filling->epoch = epoch;
  filling->next = NULL;
  magazine->filled_blocks += filling->count;
  *magazine->resting_end = filling;
  magazine->resting_end = &filling->next;
  magazine->resting_count++;
  magazine->filling = &magazine_no_room;
}

/* Takes the batch that has rested longest. */
static inline struct batch *resting_pull(struct magazine *magazine) {
  struct batch *batch = magazine->resting;
  magazine->resting = batch->next;
  if (batch->next == NULL)
    magazine->resting_end = &magazine->resting;
  magazine->resting_count--;
  return batch;
}

/* Loads the batch that has rested longest if its epoch has passed; the loaded one is empty. */
static inline bool magazine_wake(struct magazine *magazine, struct reuse *reuse) {
  if (magazine->resting == NULL || magazine->resting->epoch > reuse_passed(reuse))
    return false;
  shell_keep(magazine, magazine->loaded);
  magazine->loaded = resting_pull(magazine);
  magazine->loaded_blocks += magazine->loaded->count;
  return true;
}

/* How many batches a magazine lets rest before it asks for a fence: all threads share the driver's. */
static inline unsigned resting_most(unsigned class) {
  size_t count = RESTING_MOST_BYTES / (SLAB_BATCH * slab_class_bytes(class));
  return count > RESTING_MOST ? RESTING_MOST : (unsigned)count;
}

/* How many blocks were allocated from the magazine, and freed to it. */
static inline uint64_t magazine_mallocs(const struct magazine *magazine) {
  return magazine->loaded_blocks - magazine->loaded->count;
}

static inline uint64_t magazine_frees(const struct magazine *magazine) {
  return magazine->filled_blocks + (batch_real(magazine->filling) ? magazine->filling->count : 0);
}

/* The live blocks of the class, as far as this thread made them so. */
static inline int64_t magazine_live(const struct magazine *magazine) {
  return (int64_t)(magazine_mallocs(magazine) - magazine_frees(magazine));
}

/* A block from a batch that is not empty: the loaded one, or a lane's. */
static inline __attribute__((always_inline)) uintptr_t magazine_pop(struct magazine *magazine, struct batch *loaded,
                                                                    unsigned class, size_t size) {
  const struct slab_block *block = &loaded->blocks[--loaded->count];
  uint32_t code = slab_code(size, class);
  if (__builtin_expect(slab_exact != NULL, false))
    slab_exact_write(block->live, size, class);
  magazine->codes += code;
  /* relaxed: the block is this thread's alone; a thread that frees it gets the address after this */
  atomic_store_explicit(block->live, (uint8_t)code, memory_order_relaxed);
  return block->address;
}

/* Takes a block out of the program's hands.  False if it was not there.  alone: see claim.h. */
static inline bool magazine_claim(struct magazine *magazine, bool alone, _Atomic uint8_t *live) {
  uint8_t code = claim_live(alone, live);
  if (code == 0)
    return false;
  magazine->codes -= code;
  return true;
}

/* Where a free goes to by the immediate rule: the next allocation may have it. */
static inline struct batch *magazine_free_at_once(struct magazine *magazine) {
  if (!batch_real(magazine->loaded) || magazine->loaded->count >= SLAB_BATCH)
    return magazine->filling;
  magazine->loaded_blocks++;
  magazine->filled_blocks++;
  return magazine->loaded;
}

/* Takes a batch of blocks that may be used; the loaded one is empty.  Returns that one if the magazine has an empty
 * batch to spare already, else NULL: a thread that only allocates would gather one for each refill. */
struct batch *magazine_load(struct magazine *magazine, struct batch *batch);

/* Sends what may be used, and resting batches of the epoch passed or earlier, to the depot.  magazine_empty_all sends
 * everything; what is being filled takes the epoch. */
void magazine_empty_passed(struct magazine *magazine, struct mam_pool *pool, struct depot *depot, uint64_t passed);
void magazine_empty_all(struct magazine *magazine, struct mam_pool *pool, struct depot *depot, uint64_t epoch);

/* Forgets all blocks, whose pool ends. */
void magazine_drop(struct magazine *magazine);

#endif
