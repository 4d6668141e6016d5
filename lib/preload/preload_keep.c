/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks that are held back because a graph may use them.
 *
 *   keeper of capture 1 --hold--+--> block 0x..1000
 *                       --hold-----> block 0x..2000 <--soft hold-- keeper of capture 2
 *
 * A block goes to the pool when the program has freed it and no keeper holds it any more.  A hold is soft if the driver
 * alone would serve the program: then the program frees the block when no launch will use it, and holding it back is
 * only care.  So a block that has only soft holds counts as free, and goes to the pool when memory is needed.
 */
#include <pthread.h>
#include <stdlib.h>

#include "preload/preload_keep.h"

struct hold {
  struct kept *kept; /* NULL: the block is held no more */
  struct preload_keeper *keeper;
  bool soft;
  struct hold *next;    /* of the block */
  struct hold *sibling; /* of the keeper */
};

struct preload_keeper {
  unsigned users; /* the capture, and the uses of graphs */
  bool for_good;
  struct hold *holds;
};

struct kept {
  uintptr_t address;
  bool freed; /* by the program */
  struct hold *holds;
  struct kept *next; /* in the chain of the table; or in a list of blocks to free */
};

static pthread_mutex_t keep_lock = PTHREAD_MUTEX_INITIALIZER;

enum { KEPT_BITS = 12 }; /* the table has 2 to this power chains: a capture may allocate thousands of blocks */

static struct kept *kept_blocks[1 << KEPT_BITS];
static _Atomic unsigned kept_count; /* relaxed: a hint whether to look into the table */

void preload_keep_lock(void) { pthread_mutex_lock(&keep_lock); }
void preload_keep_unlock(void) { pthread_mutex_unlock(&keep_lock); }

static bool some_kept(void) { return atomic_load_explicit(&kept_count, memory_order_relaxed) > 0; }

/* Fibonacci hashing: the product's high bits depend on all bits of the key. */
static struct kept **kept_chain(uintptr_t address) {
  return &kept_blocks[(uint64_t)address * 0x9e3779b97f4a7c15u >> (64 - KEPT_BITS)];
}

static struct kept *kept_find_locked(uintptr_t address) {
  struct kept *kept = *kept_chain(address);
  while (kept != NULL && kept->address != address)
    kept = kept->next;
  return kept;
}

/* Takes a block out of the table. */
static void kept_unlink_locked(struct kept *kept) {
  struct kept **link = kept_chain(kept->address);
  while (*link != kept)
    link = &(*link)->next;
  *link = kept->next;
  atomic_fetch_sub_explicit(&kept_count, 1, memory_order_relaxed);
}

/* Ends all holds of a block.  The keepers go on to have them, without a block. */
static void holds_drop_locked(struct kept *kept) {
  for (struct hold *hold = kept->holds; hold != NULL; hold = hold->next)
    hold->kept = NULL;
  kept->holds = NULL;
}

/* Whether the program has freed the block, and every hold is soft. */
static bool kept_is_soft_locked(const struct kept *kept) {
  const struct hold *hold = kept->holds;
  while (hold != NULL && hold->soft)
    hold = hold->next;
  return kept->freed && hold == NULL;
}

/* ---- Keepers ---- */

struct preload_keeper *preload_keeper_new(void) {
  struct preload_keeper *keeper = calloc(1, sizeof *keeper);
  if (keeper != NULL)
    keeper->users = 1;
  return keeper;
}

void preload_keeper_join_locked(struct preload_keeper *keeper) { keeper->users++; }
void preload_keeper_stay_locked(struct preload_keeper *keeper) { keeper->for_good = true; }
bool preload_keeper_is_empty_locked(const struct preload_keeper *keeper) { return keeper->holds == NULL; }

/* Ends one hold of a block.  If it was the last one, the block leaves the table, and goes to the front of the list
 * freed if the program has freed it. */
static struct kept *hold_end_locked(struct hold *ended, struct kept *freed) {
  struct kept *kept = ended->kept;
  if (kept == NULL)
    return freed;
  struct hold **link = &kept->holds;
  while (*link != ended)
    link = &(*link)->next;
  *link = ended->next;
  if (kept->holds != NULL)
    return freed;
  kept_unlink_locked(kept);
  if (!kept->freed) { /* it is the program's to free */
    free(kept);
    return freed;
  }
  kept->next = freed;
  return kept;
}

struct kept *preload_keeper_leave_locked(struct preload_keeper *keeper, struct kept *freed) {
  if (--keeper->users > 0 || keeper->for_good)
    return freed;
  for (struct hold *hold = keeper->holds, *next; hold != NULL; hold = next) {
    next = hold->sibling;
    freed = hold_end_locked(hold, freed);
    free(hold);
  }
  free(keeper);
  return freed;
}

void preload_kept_end(struct kept *freed) {
  cudaError_t error;
  preload_depth++;
  while (freed != NULL) {
    struct kept *next = freed->next;
    (void)mam_client.free(freed->address, &error);
    free(freed);
    freed = next;
  }
  preload_depth--;
}

/* ---- Holding ---- */

/* The entry of a block in the table, a new one if it has none. NULL if the host has no memory. */
static struct kept *kept_get_locked(uintptr_t address) {
  struct kept *kept = kept_find_locked(address);
  if (kept != NULL || (kept = malloc(sizeof *kept)) == NULL)
    return kept;
  struct kept **chain = kept_chain(address);
  *kept = (struct kept){.address = address, .next = *chain};
  *chain = kept;
  atomic_fetch_add_explicit(&kept_count, 1, memory_order_relaxed);
  return kept;
}

static bool hold_locked(struct preload_keeper *keeper, uintptr_t address, bool soft) {
  struct kept *kept = kept_get_locked(address);
  struct hold *hold = kept != NULL ? kept->holds : NULL;
  while (hold != NULL && hold->keeper != keeper)
    hold = hold->next;
  if (hold != NULL) {
    hold->soft = hold->soft && soft;
    return true;
  }
  if (kept != NULL && (hold = malloc(sizeof *hold)) != NULL) {
    *hold = (struct hold){kept, keeper, soft, kept->holds, keeper->holds};
    kept->holds = keeper->holds = hold;
    return true;
  }
  if (kept != NULL && kept->holds == NULL) { /* nothing has it: it was made just now */
    kept_unlink_locked(kept);
    free(kept);
  }
  return false;
}

bool preload_keep(struct preload_keeper *keeper, uintptr_t address, bool soft) {
  preload_keep_lock();
  bool held = hold_locked(keeper, address, soft);
  preload_keep_unlock();
  return held;
}

enum preload_kept preload_kept_free(uintptr_t address) {
  enum preload_kept answer = PRELOAD_KEPT_NOT;
  if (!some_kept())
    return answer;
  preload_keep_lock();
  struct kept *kept = kept_find_locked(address);
  if (kept != NULL) {
    answer = kept->freed ? PRELOAD_KEPT_FREED_BEFORE : PRELOAD_KEPT_FREED;
    kept->freed = true;
  }
  preload_keep_unlock();
  return answer;
}

bool preload_kept_freed(uintptr_t address) {
  if (!some_kept())
    return false;
  preload_keep_lock();
  const struct kept *kept = kept_find_locked(address);
  bool freed = kept != NULL && kept->freed;
  preload_keep_unlock();
  return freed;
}

/* ---- Blocks that are only held softly ---- */

bool preload_soft_end(void) {
  struct kept *freed = NULL, *kept;
  if (!some_kept())
    return false;
  preload_keep_lock();
  for (unsigned i = 0; i < 1 << KEPT_BITS; i++)
    for (struct kept **link = &kept_blocks[i]; (kept = *link) != NULL;) {
      if (!kept_is_soft_locked(kept)) {
        link = &kept->next;
        continue;
      }
      kept_unlink_locked(kept); /* now *link is the next one */
      holds_drop_locked(kept);
      kept->next = freed;
      freed = kept;
    }
  preload_keep_unlock();
  bool some = freed != NULL;
  preload_kept_end(freed);
  return some;
}

/* So many addresses of a chain are copied at a time: chains are short, and the copy is on the stack. */
enum { COPIED_MOST = 64 };

/* Copies addresses of a chain, of all blocks or of those that are only held softly, so that they can be looked at
 * without the lock.  Returns their number. */
static unsigned chain_copy(unsigned index, bool all, uintptr_t addresses[COPIED_MOST]) {
  unsigned count = 0;
  preload_keep_lock();
  for (const struct kept *kept = kept_blocks[index]; kept != NULL && count < COPIED_MOST; kept = kept->next)
    if (all || kept_is_soft_locked(kept))
      addresses[count++] = kept->address;
  preload_keep_unlock();
  return count;
}

size_t preload_soft_bytes(void) {
  struct client_block block;
  uintptr_t addresses[COPIED_MOST];
  size_t bytes = 0;
  for (unsigned i = 0; some_kept() && i < 1 << KEPT_BITS; i++)
    for (unsigned count = chain_copy(i, false, addresses); count > 0; count--)
      if (mam_client.block_at(addresses[count - 1], &block) == CLIENT_LIVE)
        bytes += block.bytes;
  return bytes;
}

/* ---- Contexts that have ended ---- */

/* Drops a block from the table and from its keepers.  It is not freed, as its memory has gone with the context. */
static void kept_forget(uintptr_t address) {
  preload_keep_lock();
  struct kept *kept = kept_find_locked(address);
  if (kept != NULL) {
    holds_drop_locked(kept);
    kept_unlink_locked(kept);
  }
  preload_keep_unlock();
  free(kept);
}

void preload_kept_sweep(void) {
  struct client_block block;
  uintptr_t addresses[COPIED_MOST];
  for (unsigned i = 0; some_kept() && i < 1 << KEPT_BITS; i++)
    for (unsigned count = chain_copy(i, true, addresses); count > 0; count--)
      if (mam_client.block_at(addresses[count - 1], &block) != CLIENT_LIVE)
        kept_forget(addresses[count - 1]);
}

void preload_keep_forked(void) { (void)pthread_mutex_init(&keep_lock, NULL); }
