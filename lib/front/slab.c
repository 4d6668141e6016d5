/* SPDX-License-Identifier: BSD-2-Clause */
#include "front/slab.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "base/mutex.h"

/* So many batches rest in a depot.  When there are twice as many, the blocks of further ones go back into their slabs,
 * if they may.  slab_retake looks at twice as many: a search through all that wait for a long kernel would have no
 * bound. */
enum { DEPOT_BATCHES = 16 };

/* At most so many batches go back with each batch that comes: after a long kernel, a hundred thousand may have passed.
 */
enum { BATCHES_RETURNED = 4 };

/* When a depot comes to have so many batches, or a multiple of that, and the oldest has not passed, a free asks for a
 * fence.  A program that frees a million blocks asks for none by itself, and later one call would return them all. */
enum { FENCE_BATCHES = 64 };

void depot_init(struct depot *depot, pthread_mutex_t *lock) {
  depot->lock = lock;
  TAILQ_INIT(&depot->slabs);
  depot->first = depot->shells = NULL;
  depot->last = &depot->first;
  depot->batch_count = 0;
  atomic_init(&depot->slab_count, 0);
}

/* ---- Batches ---- */

/* An empty batch; NULL if the host has no memory. */
static struct batch *shell_take_locked(struct depot *depot) {
  lock_held(depot->lock);
  struct batch *shell = depot->shells;
  if (shell != NULL)
    depot->shells = shell->next;
  else
    shell = aligned_alloc(_Alignof(struct batch), sizeof *shell);
  if (shell != NULL)
    shell->count = 0;
  return shell;
}

struct batch *slab_shell_take(struct depot *depot) {
  mutex_lock(depot->lock);
  struct batch *shell = shell_take_locked(depot);
  pthread_mutex_unlock(depot->lock);
  return shell;
}

static void shell_give_locked(struct depot *depot, struct batch *shell) {
  lock_held(depot->lock);
  shell->next = depot->shells;
  depot->shells = shell;
}

static void batch_push_locked(struct depot *depot, struct batch *batch) {
  lock_held(depot->lock);
  if (batch->epoch == 0) {
    batch->next = depot->first;
    depot->first = batch;
    if (batch->next == NULL)
      depot->last = &batch->next;
  } else {
    batch->next = NULL;
    *depot->last = batch;
    depot->last = &batch->next;
  }
  depot->batch_count++;
}

static struct batch *batch_unlink_locked(struct depot *depot, struct batch **link) {
  lock_held(depot->lock);
  struct batch *batch = *link;
  *link = batch->next;
  if (*link == NULL)
    depot->last = link;
  depot->batch_count--;
  return batch;
}

static struct batch *batch_pull_locked(struct depot *depot, uint64_t passed) {
  lock_held(depot->lock);
  bool any = depot->first != NULL && depot->first->epoch <= passed;
  return any ? batch_unlink_locked(depot, &depot->first) : NULL;
}

struct batch *slab_retake(struct depot *depot, struct context_stream stream) {
  struct batch **link = &depot->first, *batch = NULL;
  mutex_lock(depot->lock);
  for (unsigned i = 0; i < 2 * DEPOT_BATCHES && *link != NULL && !context_stream_same((*link)->stream, stream); i++)
    link = &(*link)->next;
  if (*link != NULL && context_stream_same((*link)->stream, stream))
    batch = batch_unlink_locked(depot, link);
  pthread_mutex_unlock(depot->lock);
  return batch;
}

/* ---- Slabs ---- */

/* A slab with its bytes, on cache lines of their own, and then its bits, all 0.  NULL if the host has no memory. */
static struct slab *slab_new(uintptr_t base, unsigned class) {
  size_t block_bytes = slab_class_bytes(class);
  uint32_t blocks = (uint32_t)(SLAB_BYTES / block_bytes);
  size_t words = (blocks + SLAB_BATCH - 1) / SLAB_BATCH, cells = words * SLAB_BATCH; /* cache lines: see SLAB_BATCH */
  size_t live_bytes = slab_exact != NULL ? SLAB_BLOCKS_MOST + cells : cells;
  size_t all = sizeof(struct slab) + live_bytes + words * sizeof(uint64_t), line = _Alignof(struct slab);
  struct slab *slab = aligned_alloc(line, (all + line - 1) / line * line);
  if (slab == NULL)
    return NULL;
  memset(slab, 0, all);
  slab->base = base;
  slab->index_magic = UINT64_MAX / block_bytes + 1;
  slab->block_count = blocks;
  slab->class = class;
  slab->live = (_Atomic uint8_t *)(slab + 1);
  slab->inside = (uint64_t *)(void *)((char *)(slab + 1) + live_bytes);
  slab->next_of_class = slab;
  return slab;
}

/* The slab of a page for a class, made if there never was one there.  NULL if the host has no memory. */
static struct slab *slab_of_page(uintptr_t base, unsigned class) {
  struct slab *first = page_map_find(base), *slab = first;
  while (slab != NULL && slab->class != class)
    slab = slab->next_of_class != first ? slab->next_of_class : NULL;
  bool is_new = slab == NULL;
  if (is_new && (slab = slab_new(base, class)) == NULL)
    return NULL;
  if (!page_map_set(base, slab)) { /* only where the page has none */
    free(slab);
    return NULL;
  }
  if (is_new && first != NULL) {
    slab->next_of_class = first->next_of_class;
    first->next_of_class = slab;
  }
  return slab;
}

/* Carves a span that no other slab has. */
static struct slab *slab_open(uintptr_t base, unsigned class) {
  struct slab *slab = slab_of_page(base, class);
  if (slab == NULL)
    return NULL;
  slab->inside_count = slab->block_count;
  for (uint32_t i = 0; i < slab->block_count; i++)
    slab->inside[i / SLAB_BATCH] |= (uint64_t)1 << i % SLAB_BATCH;
  return slab;
}

/* Moves the blocks of a word into a batch. */
static void word_carve_locked(struct slab *slab, uint32_t word, struct batch *batch) {
  size_t block_bytes = slab_class_bytes(slab->class);
  for (uint64_t bits = slab->inside[word]; bits != 0; bits &= bits - 1) {
    uint32_t index = word * SLAB_BATCH + (uint32_t)__builtin_ctzl(bits);
    batch->blocks[batch->count++] = (struct slab_block){slab->base + index * block_bytes, slab_live(slab, index)};
    slab->inside_count--;
  }
  slab->inside[word] = 0;
}

/* Moves blocks from a slab into a batch, whole words, lowest first, until it is half full. */
static void slab_carve_locked(struct depot *depot, struct slab *slab, struct batch *batch) {
  lock_held(depot->lock);
  uint32_t words = (slab->block_count + SLAB_BATCH - 1) / SLAB_BATCH;
  for (uint32_t word = 0; word < words && batch->count < SLAB_BATCH / 2; word++)
    if (batch->count + (unsigned)__builtin_popcountl(slab->inside[word]) <= SLAB_BATCH)
      word_carve_locked(slab, word, batch);
  if (slab->inside_count == 0) { /* those with blocks inside come first */
    TAILQ_REMOVE(&depot->slabs, slab, link);
    TAILQ_INSERT_TAIL(&depot->slabs, slab, link);
  }
}

static bool slab_full(const struct slab *slab) { return slab->inside_count == slab->block_count; }

/* A slab with all its blocks inside is no longer the depot's. */
static void slab_leave_locked(struct depot *depot, struct slab *slab) {
  lock_held(depot->lock);
  TAILQ_REMOVE(&depot->slabs, slab, link);
  /* release: nothing is read of it after this; a free that finds it gone answers that there is no such block */
  atomic_store_explicit(&slab->pool, NULL, memory_order_release);
  /* relaxed: written under the lock; a hint for threads that read it without */
  atomic_fetch_sub_explicit(&depot->slab_count, 1, memory_order_relaxed);
}

/* Puts a block back.  Returns its slab if all its blocks are in now: then it is no longer the depot's. */
static struct slab *block_return_locked(struct depot *depot, uintptr_t address) {
  lock_held(depot->lock);
  struct slab *slab = page_map_find(address);
  if (slab == NULL) /* never: it is one of its blocks */
    return NULL;
  uint32_t index = slab_index(slab, address);
  slab->inside[index / SLAB_BATCH] |= (uint64_t)1 << index % SLAB_BATCH;
  slab->inside_count++;
  if (slab_full(slab)) {
    slab_leave_locked(depot, slab);
    return slab;
  }
  TAILQ_REMOVE(&depot->slabs, slab, link);
  TAILQ_INSERT_HEAD(&depot->slabs, slab, link);
  return NULL;
}

/* Slabs that no thread took a block from: two threads added one each, and one sufficed.  Those with blocks come first.
 */
static void slabs_unused_locked(struct depot *depot, struct slab_list *empty) {
  lock_held(depot->lock);
  struct slab *slab = TAILQ_FIRST(&depot->slabs), *next;
  for (; slab != NULL && slab->inside_count > 0; slab = next) {
    next = TAILQ_NEXT(slab, link);
    if (!slab_full(slab))
      continue;
    slab_leave_locked(depot, slab);
    TAILQ_INSERT_TAIL(empty, slab, link);
  }
}

/* Puts batches that have passed into their slabs, at most so many, until only so many are left.  Empty slabs are
 * collected in a list. */
static void batches_return_locked(struct depot *depot, uint64_t passed, unsigned keep, unsigned *most,
                                  struct slab_list *empty) {
  struct batch *batch;
  for (; depot->batch_count > keep && *most > 0 && (batch = batch_pull_locked(depot, passed)) != NULL; --*most) {
    for (unsigned i = 0; i < batch->count; i++) {
      struct slab *slab = block_return_locked(depot, batch->blocks[i].address);
      if (slab != NULL)
        TAILQ_INSERT_TAIL(empty, slab, link);
    }
    shell_give_locked(depot, batch);
  }
}

static size_t spans_give(struct mam_pool *pool, struct slab_list *empty) {
  struct slab *slab;
  size_t bytes = 0;
  while ((slab = TAILQ_FIRST(empty)) != NULL) {
    TAILQ_REMOVE(empty, slab, link); /* from here on another pool may have the page */
    pool_slab_give(pool, slab->base);
    bytes += SLAB_BYTES;
  }
  return bytes;
}

static size_t batches_return(struct mam_pool *pool, struct depot *depot, unsigned keep, unsigned *most) {
  struct slab_list empty = TAILQ_HEAD_INITIALIZER(empty);
  mutex_lock(depot->lock);
  batches_return_locked(depot, reuse_passed(pool->reuse), keep, most, &empty);
  if (keep == 0)
    slabs_unused_locked(depot, &empty);
  pthread_mutex_unlock(depot->lock);
  return spans_give(pool, &empty);
}

size_t slab_reclaim(struct mam_pool *pool, struct depot *depot, unsigned *most) {
  return batches_return(pool, depot, 0, most);
}

void slab_rest(struct mam_pool *pool, struct depot *depot, struct batch *batch, struct context_stream stream) {
  unsigned most = BATCHES_RETURNED;
  if (batch == NULL)
    return;
  batch->stream = stream;
  mutex_lock(depot->lock);
  if (batch->count > 0)
    batch_push_locked(depot, batch);
  else
    shell_give_locked(depot, batch);
  bool many = depot->batch_count > 2 * DEPOT_BATCHES;
  pthread_mutex_unlock(depot->lock);
  if (many)
    (void)batches_return(pool, depot, DEPOT_BATCHES, &most);
}

bool slab_rests(struct depot *depot) {
  mutex_lock(depot->lock);
  bool rests = depot->first != NULL;
  pthread_mutex_unlock(depot->lock);
  return rests;
}

void slab_fence(struct mam_pool *pool, struct depot *depot) {
  mutex_lock(depot->lock);
  bool asks = depot->first != NULL && depot->batch_count % FENCE_BATCHES == 0;
  uint64_t epoch = asks ? depot->first->epoch : 0;
  pthread_mutex_unlock(depot->lock);
  if (asks)
    (void)reuse_reach(pool->reuse, epoch);
}

/* ---- Refilling a front ---- */

/* A batch that may be used, or one carved from a slab that has blocks; NULL if there is neither. */
static struct batch *refill_locked(struct mam_pool *pool, struct depot *depot) {
  lock_held(depot->lock);
  struct batch *batch = batch_pull_locked(depot, reuse_passed(pool->reuse));
  struct slab *slab = TAILQ_FIRST(&depot->slabs);
  if (batch != NULL || slab == NULL || slab->inside_count == 0)
    return batch;
  batch = shell_take_locked(depot);
  if (batch != NULL)
    slab_carve_locked(depot, slab, batch);
  return batch;
}

/* A further slab for the depot.  False if the pool has no span, or the host no memory. */
static bool slab_add(struct mam_pool *pool, struct depot *depot, unsigned class) {
  uintptr_t base;
  if (pool_slab_take(pool, &base) != cudaSuccess)
    return false;
  struct slab *slab = slab_open(base, class);
  if (slab == NULL) {
    pool_slab_give(pool, base);
    return false;
  }
  mutex_lock(depot->lock);
  TAILQ_INSERT_HEAD(&depot->slabs, slab, link);
  atomic_fetch_add_explicit(&depot->slab_count, 1, memory_order_relaxed); /* relaxed: as in slab_leave_locked */
  /* release: the carved slab; pairs with the acquire in free_small */
  atomic_store_explicit(&slab->pool, pool, memory_order_release);
  pthread_mutex_unlock(depot->lock);
  return true;
}

/* What rests has first claim if a fence frees it without waiting: it was used a moment ago, a new slab never was. */
static bool resting_passes(struct mam_pool *pool, struct depot *depot) {
  mutex_lock(depot->lock);
  uint64_t epoch = depot->first != NULL ? depot->first->epoch : UINT64_MAX;
  pthread_mutex_unlock(depot->lock);
  return epoch != UINT64_MAX && reuse_reach(pool->reuse, epoch);
}

/* The depot has nothing at hand. */
static struct slab_missing missing_locked(const struct depot *depot, unsigned class) {
  lock_held(depot->lock);
  size_t blocks = slab_depot_bytes(depot) / SLAB_BYTES * (SLAB_BYTES / slab_class_bytes(class)), resting = 0;
  for (const struct batch *batch = depot->first; batch != NULL; batch = batch->next)
    resting += batch->count;
  return (struct slab_missing){blocks - resting, resting};
}

struct batch *slab_refill_at_hand(struct mam_pool *pool, struct depot *depot, unsigned class,
                                  struct slab_missing *missing) {
  mutex_lock(depot->lock);
  struct batch *batch = refill_locked(pool, depot);
  if (batch == NULL && missing != NULL)
    *missing = missing_locked(depot, class);
  pthread_mutex_unlock(depot->lock);
  return batch;
}

struct batch *slab_refill(struct mam_pool *pool, struct depot *depot, unsigned class) {
  struct batch *batch;
  bool waited = false;
  while ((batch = slab_refill_at_hand(pool, depot, class, NULL)) == NULL) {
    bool passed = resting_passes(pool, depot) || (!waited && (waited = pool_wait_before_slab(pool)));
    if (!passed && !slab_add(pool, depot, class))
      return NULL;
  }
  return batch;
}

/* ---- The end, and numbers ---- */

void slab_batches_free(struct batch *batch) {
  while (batch != NULL) {
    struct batch *next = batch->next;
    free(batch);
    batch = next;
  }
}

void slab_forget(struct depot *depot) {
  struct slab *slab;
  while ((slab = TAILQ_FIRST(&depot->slabs)) != NULL) {
    TAILQ_REMOVE(&depot->slabs, slab, link);
    atomic_store_explicit(&slab->pool, NULL, memory_order_release); /* as in block_return_locked */
    for (uint32_t i = 0; i < slab->block_count; i++)
      atomic_store_explicit(slab_live(slab, i), 0, memory_order_relaxed); /* relaxed: no block any more */
  }
  slab_batches_free(depot->first);
  slab_batches_free(depot->shells);
  depot_init(depot, depot->lock);
}

struct slab_sum slab_count(struct mam_pool *pool, struct depot *depot, unsigned class) {
  uint64_t passed = reuse_passed(pool->reuse);
  /* relaxed: under the lock */
  size_t slabs = atomic_load_explicit(&depot->slab_count, memory_order_relaxed);
  size_t blocks = SLAB_BYTES / slab_class_bytes(class); /* a byte and a bit each */
  struct slab_sum sum = {.slab_bytes = slabs * SLAB_BYTES,
                         .host_bytes = slabs * (sizeof(struct slab) + blocks + blocks / CHAR_BIT) +
                                       depot->batch_count * sizeof(struct batch)};
  for (const struct batch *batch = depot->first; batch != NULL; batch = batch->next)
    sum.waiting_bytes += batch->epoch > passed ? batch->count * slab_class_bytes(class) : 0;
  return sum;
}
