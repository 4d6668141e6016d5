/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks that are held back because a graph may use them.
 *
 *   keeper of capture 1 --hold--+--> block 0x..1000
 *                       --hold-----> block 0x..2000 <--soft hold-- keeper of capture 2
 *
 * A block goes to the pool when the program has freed it and no keeper holds it any more.
 *
 * A hold is hard if the driver alone would have refused the call.  Else the driver would serve the program, which then
 * frees the block when no launch will use it, and holding it back is only care.  Such a hold is soft if the thread
 * itself had begun the capture, and slight if another one had: its blocks are more likely none of the graph's.  A freed
 * block without a hard hold counts as free, and goes to the pool when memory is needed: first those that have slight
 * holds only.  Such blocks stand in queues, and only so many of the newest are held back, as a program may allocate and
 * free without end while a capture goes on.
 *
 *   a block's rank = that of its strongest hold;  count and bytes of queue r = those of the freed blocks of rank r
 */
#include <pthread.h>
#include <stdlib.h>

#include "preload/preload_keep.h"

struct hold {
  struct kept *kept;
  struct preload_keeper *keeper;
  enum preload_hold rank;
  struct hold *next;             /* of the block */
  struct hold *sibling, **place; /* of the keeper; place is what points to this one */
};

struct preload_keeper {
  unsigned users; /* the capture, and the uses of graphs */
  bool for_good;
  struct hold *holds;
};

struct kept {
  struct client_block block;
  bool freed;          /* by the program */
  struct queue *queue; /* that it stands in, NULL if in none */
  struct hold *holds;
  struct kept *next;          /* in the chain of the table; or in a list of blocks to free */
  struct kept *older, *newer; /* in the queue */
};

/* Freed blocks that have no hard hold, in the order in which they came here. */
struct queue {
  struct kept *oldest, *newest;
  unsigned count;
  size_t bytes;
};

static pthread_mutex_t keep_lock = PTHREAD_MUTEX_INITIALIZER;

enum { KEPT_BITS = 12 }; /* the table has 2 to this power chains: a capture may allocate thousands of blocks */

static struct kept *kept_blocks[1 << KEPT_BITS];
static _Atomic unsigned kept_count; /* relaxed: a hint whether to look into the table */

/* More blocks than a graph uses, and few enough for short chains. */
enum { QUEUE_MOST = 1 << 13 };

/* By rank.  Threads that have nothing to do with a capture are not to fill the device because it goes on. */
static const size_t queue_bytes_most[PRELOAD_HOLD_HARD] = {(size_t)256 << 20, SIZE_MAX};

static struct queue queues[PRELOAD_HOLD_HARD]; /* by rank */

void preload_keep_lock(void) { pthread_mutex_lock(&keep_lock); }
void preload_keep_unlock(void) { pthread_mutex_unlock(&keep_lock); }

static bool some_kept(void) { return atomic_load_explicit(&kept_count, memory_order_relaxed) > 0; }

/* Fibonacci hashing: the product's high bits depend on all bits of the key. */
static struct kept **kept_chain(uintptr_t address) {
  return &kept_blocks[(uint64_t)address * 0x9e3779b97f4a7c15u >> (64 - KEPT_BITS)];
}

/* What is at the address, also a block of a context that has ended. */
static struct kept *kept_at_locked(uintptr_t address) {
  struct kept *kept = *kept_chain(address);
  while (kept != NULL && kept->block.base != address)
    kept = kept->next;
  return kept;
}

static bool kept_is(const struct kept *kept, const struct client_block *block) {
  return kept->block.pool == block->pool && kept->block.generation == block->generation;
}

static struct kept *kept_find_locked(const struct client_block *block) {
  struct kept *kept = kept_at_locked(block->base);
  return kept != NULL && kept_is(kept, block) ? kept : NULL;
}

/* ---- Queues ---- */

static void queue_add_locked(struct queue *queue, struct kept *kept) {
  kept->queue = queue;
  kept->older = queue->newest;
  kept->newer = NULL;
  *(queue->newest != NULL ? &queue->newest->newer : &queue->oldest) = kept;
  queue->newest = kept;
  queue->count++;
  queue->bytes += kept->block.bytes;
}

static void queue_remove_locked(struct kept *kept) {
  struct queue *queue = kept->queue;
  *(kept->older != NULL ? &kept->older->newer : &queue->oldest) = kept->newer;
  *(kept->newer != NULL ? &kept->newer->older : &queue->newest) = kept->older;
  kept->queue = NULL;
  queue->count--;
  queue->bytes -= kept->block.bytes;
}

static enum preload_hold kept_rank_locked(const struct kept *kept) {
  enum preload_hold rank = PRELOAD_HOLD_SLIGHT;
  for (const struct hold *hold = kept->holds; hold != NULL; hold = hold->next)
    rank = hold->rank > rank ? hold->rank : rank;
  return rank;
}

/* To be called after a block was freed or its holds changed. */
static void kept_sort_locked(struct kept *kept) {
  enum preload_hold rank = kept_rank_locked(kept);
  struct queue *queue = kept->freed && rank < PRELOAD_HOLD_HARD ? &queues[rank] : NULL;
  if (queue == kept->queue)
    return;
  if (kept->queue != NULL)
    queue_remove_locked(kept);
  if (queue != NULL)
    queue_add_locked(queue, kept);
}

/* ---- Ends of blocks and holds ---- */

/* Takes a block out of the table and out of its queue. */
static void kept_unlink_locked(struct kept *kept) {
  struct kept **link = kept_chain(kept->block.base);
  while (*link != kept)
    link = &(*link)->next;
  *link = kept->next;
  if (kept->queue != NULL)
    queue_remove_locked(kept);
  atomic_fetch_sub_explicit(&kept_count, 1, memory_order_relaxed);
}

/* Takes a hold from its keeper and ends it.  The caller has taken it from its block. */
static void hold_free_locked(struct hold *hold) {
  *hold->place = hold->sibling;
  if (hold->sibling != NULL)
    hold->sibling->place = hold->place;
  free(hold);
}

/* Ends all holds of a block, which leaves the table. */
static void kept_drop_locked(struct kept *kept) {
  for (struct hold *hold = kept->holds, *next; hold != NULL; hold = next) {
    next = hold->next;
    hold_free_locked(hold);
  }
  kept_unlink_locked(kept);
}

/* Takes the oldest blocks out of a queue until it has no more than that.  Returns them as a list. */
static struct kept *queue_cut_locked(struct queue *queue, unsigned most, size_t bytes_most) {
  struct kept *freed = NULL;
  while (queue->count > most || queue->bytes > bytes_most) {
    struct kept *kept = queue->oldest;
    kept_drop_locked(kept);
    kept->next = freed;
    freed = kept;
  }
  return freed;
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
  struct hold **link = &kept->holds;
  while (*link != ended)
    link = &(*link)->next;
  *link = ended->next;
  hold_free_locked(ended);
  if (kept->holds != NULL) {
    kept_sort_locked(kept);
    return freed;
  }
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
  while (keeper->holds != NULL)
    freed = hold_end_locked(keeper->holds, freed);
  free(keeper);
  return freed;
}

void preload_kept_end(struct kept *freed) {
  preload_depth++;
  while (freed != NULL) {
    struct kept *next = freed->next;
    mam_client.free_of(&freed->block);
    free(freed);
    freed = next;
  }
  preload_depth--;
}

/* ---- Holding ---- */

/* The entry of a block in the table, a new one if it has none. NULL if the host has no memory. */
static struct kept *kept_get_locked(const struct client_block *block) {
  struct kept *kept = kept_at_locked(block->base);
  if (kept != NULL && kept_is(kept, block))
    return kept;
  if (kept != NULL) /* its context has ended */
    kept_drop_locked(kept);
  free(kept);
  if ((kept = malloc(sizeof *kept)) == NULL)
    return NULL;
  struct kept **chain = kept_chain(block->base);
  *kept = (struct kept){.block = *block, .next = *chain};
  *chain = kept;
  atomic_fetch_add_explicit(&kept_count, 1, memory_order_relaxed);
  return kept;
}

/* A keeper's hold of a block, a new one if it has none, which is slight.  NULL if the host has no memory. */
static struct hold *hold_get_locked(struct preload_keeper *keeper, struct kept *kept) {
  struct hold *hold = kept->holds;
  while (hold != NULL && hold->keeper != keeper)
    hold = hold->next;
  if (hold != NULL || (hold = malloc(sizeof *hold)) == NULL)
    return hold;
  *hold = (struct hold){kept, keeper, PRELOAD_HOLD_SLIGHT, kept->holds, keeper->holds, &keeper->holds};
  if (keeper->holds != NULL)
    keeper->holds->place = &hold->sibling;
  kept->holds = keeper->holds = hold;
  return hold;
}

static bool hold_locked(struct preload_keeper *keeper, const struct client_block *block, enum preload_hold rank) {
  struct kept *kept = kept_get_locked(block);
  if (kept != NULL && kept->freed)
    return true;
  struct hold *hold = kept != NULL ? hold_get_locked(keeper, kept) : NULL;
  if (hold != NULL && hold->rank < rank) {
    hold->rank = rank;
    kept_sort_locked(kept);
  }
  if (kept != NULL && kept->holds == NULL) { /* it was made just now */
    kept_unlink_locked(kept);
    free(kept);
  }
  return hold != NULL;
}

bool preload_keep(struct preload_keeper *keeper, const struct client_block *block, enum preload_hold rank) {
  preload_keep_lock();
  bool held = hold_locked(keeper, block, rank);
  preload_keep_unlock();
  return held;
}

enum preload_kept preload_kept_free(uintptr_t address) {
  enum preload_kept answer = PRELOAD_KEPT_NOT;
  struct kept *freed = NULL;
  struct client_block block;
  if (!some_kept() || mam_client.block_at(address, &block) != CLIENT_LIVE || block.base != address)
    return answer;
  preload_keep_lock();
  struct kept *kept = kept_find_locked(&block);
  if (kept != NULL) {
    answer = kept->freed ? PRELOAD_KEPT_FREED_BEFORE : PRELOAD_KEPT_FREED;
    kept->freed = true;
    kept_sort_locked(kept);
    if (kept->queue != NULL)
      freed = queue_cut_locked(kept->queue, QUEUE_MOST, queue_bytes_most[kept->queue - queues]);
  }
  preload_keep_unlock();
  preload_kept_end(freed);
  return answer;
}

bool preload_kept_freed(const struct client_block *block) {
  if (!some_kept())
    return false;
  preload_keep_lock();
  const struct kept *kept = kept_find_locked(block);
  bool freed = kept != NULL && kept->freed;
  preload_keep_unlock();
  return freed;
}

/* ---- Memory is needed ---- */

bool preload_soft_end(void) {
  struct kept *freed = NULL;
  if (!some_kept())
    return false;
  preload_keep_lock();
  for (unsigned rank = 0; rank < PRELOAD_HOLD_HARD && freed == NULL; rank++)
    freed = queue_cut_locked(&queues[rank], 0, 0);
  preload_keep_unlock();
  bool some = freed != NULL;
  preload_kept_end(freed);
  return some;
}

size_t preload_soft_bytes(const void *pool) {
  size_t bytes = 0;
  if (!some_kept())
    return 0;
  preload_keep_lock();
  for (unsigned rank = 0; rank < PRELOAD_HOLD_HARD; rank++)
    for (const struct kept *kept = queues[rank].oldest; kept != NULL; kept = kept->newer)
      bytes += kept->block.pool == pool ? kept->block.bytes : 0;
  preload_keep_unlock();
  return bytes;
}

/* ---- Contexts that have ended ---- */

/* So many blocks of a chain are copied at a time: chains are short, and the copy is on the stack. */
enum { COPIED_MOST = 64 };

/* Copies blocks of a chain, so that they can be looked at without the lock.  Returns their number. */
static unsigned chain_copy(unsigned index, struct client_block blocks[COPIED_MOST]) {
  unsigned count = 0;
  preload_keep_lock();
  for (const struct kept *kept = kept_blocks[index]; kept != NULL && count < COPIED_MOST; kept = kept->next)
    blocks[count++] = kept->block;
  preload_keep_unlock();
  return count;
}

/* Drops a block from the table and from its keepers.  It is not freed, as its memory has gone with the context. */
static void kept_forget(const struct client_block *block) {
  preload_keep_lock();
  struct kept *kept = kept_find_locked(block);
  if (kept != NULL)
    kept_drop_locked(kept);
  preload_keep_unlock();
  free(kept);
}

static bool kept_lives(const struct client_block *block) {
  struct client_block found;
  return mam_client.block_at(block->base, &found) == CLIENT_LIVE && found.pool == block->pool &&
         found.generation == block->generation;
}

void preload_kept_sweep(void) {
  struct client_block blocks[COPIED_MOST];
  for (unsigned i = 0; some_kept() && i < 1 << KEPT_BITS; i++)
    for (unsigned count = chain_copy(i, blocks); count > 0; count--)
      if (!kept_lives(&blocks[count - 1]))
        kept_forget(&blocks[count - 1]);
}

void preload_keep_forked(void) { (void)pthread_mutex_init(&keep_lock, NULL); }
