/* SPDX-License-Identifier: BSD-2-Clause */
#include "chunk_map.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/*
 * A sequence lock.  The writer, alone under write_lock, makes the sequence odd, stores, and makes it even again.  A
 * reader takes what it read only if the sequence was even before and is unchanged after.  Why that holds without
 * fences, by the C11 model:
 *   - Every store to an entry is a release that follows the store of the odd number in the writer.  A reader's load of
 *     an entry is an acquire; if it reads such a store, it also sees the odd number (or a later one), so its second
 *     look at the sequence differs from its first, and it tries again.
 *   - The first look is an acquire that pairs with the release of the even number: the entries read afterwards are at
 *     least as new as that.
 *   - The second look follows the loads of entries, because those are acquires.
 * Torn reads of an entry (base of one chunk, end of another) only lead to a retry: nothing is dereferenced before the
 * second look.
 */
struct entry {
  _Atomic uintptr_t base;
  _Atomic uintptr_t end;
  _Atomic(struct mam_pool *) pool;
};

static struct entry entries[CHUNK_MAP_CAPACITY]; /* ordered by base; protected as said above */
static _Atomic size_t count;
static _Atomic unsigned sequence;
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;

void chunk_map_lock(void) { pthread_mutex_lock(&write_lock); }
void chunk_map_unlock(void) { pthread_mutex_unlock(&write_lock); }

/* A test that explores every interleaving steps in here, before each access that another thread can see or make. */
#ifndef CHUNK_MAP_STEP
#define CHUNK_MAP_STEP(is_store) ((void)0)
#define CHUNK_MAP_RETRY() ((void)sched_yield()) /* the writer may have been taken off its processor in the middle */
#endif

/* acquire: pairs with the release stores of entry_set and the two counters' (see above) */
#define READ(object) (CHUNK_MAP_STEP(false), atomic_load_explicit(&(object), memory_order_acquire))
/* release: keeps the store after the odd sequence number (see above) */
#define WRITE(object, value) (CHUNK_MAP_STEP(true), atomic_store_explicit(&(object), (value), memory_order_release))

/* The number of entries that begin at or below address. */
static size_t entries_up_to(uintptr_t address) {
  size_t low = 0, high = READ(count);
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (READ(entries[middle].base) <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct mam_pool *chunk_map_find(uintptr_t address) {
  for (;;) {
    unsigned before = READ(sequence);
    size_t below = entries_up_to(address);
    struct mam_pool *pool = NULL;
    if (below > 0 && address < READ(entries[below - 1].end))
      pool = READ(entries[below - 1].pool);
    if (before % 2 == 0 && READ(sequence) == before)
      return pool;
    CHUNK_MAP_RETRY();
  }
}

static void write_begin(void) {
  CHUNK_MAP_STEP(true);
  /* relaxed: only writers store it, and they hold write_lock; the release stores that follow order it */
  atomic_store_explicit(&sequence, atomic_load_explicit(&sequence, memory_order_relaxed) + 1, memory_order_relaxed);
}

static void write_end(void) { WRITE(sequence, atomic_load_explicit(&sequence, memory_order_relaxed) + 1); }

static void entry_set(size_t index, uintptr_t base, uintptr_t end, struct mam_pool *pool) {
  WRITE(entries[index].base, base);
  WRITE(entries[index].end, end);
  WRITE(entries[index].pool, pool);
}

static void entry_copy(size_t to, size_t from) {
  entry_set(to, READ(entries[from].base), READ(entries[from].end), READ(entries[from].pool));
}

/* The pool of an entry that overlaps [base, end), given the number of entries up to base; NULL if none does. */
static struct mam_pool *overlapping(uintptr_t base, uintptr_t end, size_t below) {
  if (below > 0 && READ(entries[below - 1].end) > base)
    return READ(entries[below - 1].pool);
  if (below < READ(count) && READ(entries[below].base) < end)
    return READ(entries[below].pool);
  return NULL;
}

static enum chunk_map_result add_locked(uintptr_t base, size_t bytes, struct mam_pool *pool, struct mam_pool **other) {
  size_t below = entries_up_to(base), held = READ(count);
  *other = overlapping(base, base + bytes, below);
  if (*other != NULL)
    return CHUNK_MAP_OVERLAP;
  if (held == CHUNK_MAP_CAPACITY)
    return CHUNK_MAP_FULL;
  write_begin();
  for (size_t i = held; i > below; i--)
    entry_copy(i, i - 1);
  entry_set(below, base, base + bytes, pool);
  WRITE(count, held + 1);
  write_end();
  return CHUNK_MAP_OK;
}

enum chunk_map_result chunk_map_add(uintptr_t base, size_t bytes, struct mam_pool *pool, struct mam_pool **other) {
  chunk_map_lock();
  enum chunk_map_result result = add_locked(base, bytes, pool, other);
  chunk_map_unlock();
  return result;
}

void chunk_map_remove(uintptr_t base) {
  chunk_map_lock();
  size_t held = READ(count);
  write_begin();
  for (size_t i = entries_up_to(base); i < held; i++)
    entry_copy(i - 1, i);
  WRITE(count, held - 1);
  write_end();
  chunk_map_unlock();
}
