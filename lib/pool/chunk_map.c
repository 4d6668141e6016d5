/* SPDX-License-Identifier: BSD-2-Clause */
#include "pool/chunk_map.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/wait.h"

/*
 * A sequence lock.  The writer, alone under write_lock, makes the sequence odd, stores, and makes it even again.  A
 * reader takes what it read only if the sequence was even before and is unchanged after.  Why that holds without
 * memory barriers, by the C11 model:
 *   - Every store to an entry is a release that follows the store of the odd number in the writer.  A reader's load of
 *     an entry is an acquire; if it reads such a store, it also sees the odd number (or a later one), so its second
 *     look at the sequence differs from its first, and it tries again.
 *   - The first look is an acquire that pairs with the release of the even number: the entries read afterwards are at
 *     least as new as that.
 *   - The second look follows the loads of entries, because those are acquires.
 * Torn reads of an entry (base of one chunk, end of another) only lead to a retry: nothing is dereferenced before the
 * second look but the table, which the reader has a pointer to.  When the table is full, its entries go to one of twice
 * the room, and the old one stays as it was for those that still read it: all that were outgrown have as much room as
 * the present one.  A count that is not the table's own is cut to its room, and the second look finds out.
 */
struct entry {
  _Atomic uintptr_t base;
  _Atomic uintptr_t end;
  _Atomic(struct mam_pool *) pool;
};

struct table {
  size_t room;            /* constant, as the next */
  struct table *outgrown; /* for leak checkers */
  struct entry entries[]; /* ordered by base; protected as said above */
};

static _Atomic(struct table *) table; /* NULL: there never was a chunk */
static _Atomic size_t count;
static _Atomic unsigned sequence;
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;

void chunk_map_lock(void) { pthread_mutex_lock(&write_lock); }
void chunk_map_unlock(void) { pthread_mutex_unlock(&write_lock); }

/* A test that explores every interleaving steps in here, before each access that another thread can see or make. */
#ifndef CHUNK_MAP_STEP
#define CHUNK_MAP_STEP(is_store) ((void)0)
#define CHUNK_MAP_TABLE_STEP() ((void)0)
#define CHUNK_MAP_RETRY(wait) wait_more(wait) /* the writer may have been taken off its processor in the middle */
#define CHUNK_MAP_IS_FULL(held, room) ((held) == (room))
#define CHUNK_MAP_ROOM 64 /* of the first table */
#endif

/* acquire: pairs with the release stores of entry_set, the table's and the two counters' (see above) */
#define READ(object) (CHUNK_MAP_STEP(false), atomic_load_explicit(&(object), memory_order_acquire))
/* release: keeps the store after the odd sequence number (see above) */
#define WRITE(object, value) (CHUNK_MAP_STEP(true), atomic_store_explicit(&(object), (value), memory_order_release))

/* The number of entries of a table that begin at or below address. */
static size_t entries_up_to(struct table *in, uintptr_t address) {
  size_t low = 0, high = in != NULL ? READ(count) : 0;
  if (in != NULL && high > in->room)
    high = in->room;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (READ(in->entries[middle].base) <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

struct mam_pool *chunk_map_find(uintptr_t address) {
  struct wait wait = WAIT_INIT;
  for (;;) {
    unsigned before = READ(sequence);
    CHUNK_MAP_TABLE_STEP();
    struct table *in = atomic_load_explicit(&table, memory_order_acquire); /* acquire: as READ */
    size_t below = entries_up_to(in, address);
    struct mam_pool *pool = NULL;
    if (below > 0 && address < READ(in->entries[below - 1].end))
      pool = READ(in->entries[below - 1].pool);
    if (before % 2 == 0 && READ(sequence) == before)
      return pool;
    CHUNK_MAP_RETRY(&wait);
  }
}

static void write_begin(void) {
  CHUNK_MAP_STEP(true);
  /* relaxed: only writers store it, and they hold write_lock; the release stores that follow order it */
  atomic_store_explicit(&sequence, atomic_load_explicit(&sequence, memory_order_relaxed) + 1, memory_order_relaxed);
}

static void write_end(void) { WRITE(sequence, atomic_load_explicit(&sequence, memory_order_relaxed) + 1); }

static void entry_set(struct entry *entry, uintptr_t base, uintptr_t end, struct mam_pool *pool) {
  WRITE(entry->base, base);
  WRITE(entry->end, end);
  WRITE(entry->pool, pool);
}

static void entry_copy(struct entry *to, struct entry *from) {
  entry_set(to, READ(from->base), READ(from->end), READ(from->pool));
}

/* ---- Writing.  The lock is held. ---- */

/* relaxed, both: only writers store them, and they hold write_lock */
static struct table *table_locked(void) {
  lock_held(&write_lock);
  return atomic_load_explicit(&table, memory_order_relaxed);
}
static size_t count_locked(void) {
  lock_held(&write_lock);
  return atomic_load_explicit(&count, memory_order_relaxed);
}

/* The pool of an entry that overlaps [base, end), given the number of entries up to base; NULL if none does. */
static struct mam_pool *overlapping_locked(uintptr_t base, uintptr_t end, size_t below) {
  lock_held(&write_lock);
  struct table *in = table_locked();
  if (below > 0 && READ(in->entries[below - 1].end) > base)
    return READ(in->entries[below - 1].pool);
  if (below < count_locked() && READ(in->entries[below].base) < end)
    return READ(in->entries[below].pool);
  return NULL;
}

/* A table with room for more entries and those of the present one; NULL if the host has no memory. */
static struct table *table_larger_locked(void) {
  lock_held(&write_lock);
  struct table *old = table_locked(), *larger;
  size_t room = 2 * count_locked() > CHUNK_MAP_ROOM ? 2 * count_locked() : CHUNK_MAP_ROOM;
  larger = calloc(1, sizeof *larger + room * sizeof larger->entries[0]);
  if (larger == NULL)
    return NULL;
  larger->room = room;
  larger->outgrown = old;
  for (size_t i = 0; i < count_locked(); i++) { /* relaxed, all: no thread reads it yet */
    struct entry *from = &old->entries[i], *to = &larger->entries[i];
    atomic_store_explicit(&to->base, atomic_load_explicit(&from->base, memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(&to->end, atomic_load_explicit(&from->end, memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(&to->pool, atomic_load_explicit(&from->pool, memory_order_relaxed), memory_order_relaxed);
  }
  return larger;
}

static enum chunk_map_result add_locked(uintptr_t base, size_t bytes, struct mam_pool *pool, struct mam_pool **other) {
  lock_held(&write_lock);
  struct table *in = table_locked();
  size_t below = entries_up_to(in, base), held = count_locked();
  *other = overlapping_locked(base, base + bytes, below);
  if (*other != NULL)
    return CHUNK_MAP_OVERLAP;
  bool grows = in == NULL || CHUNK_MAP_IS_FULL(held, in->room);
  if (grows && (in = table_larger_locked()) == NULL)
    return CHUNK_MAP_NO_MEMORY;
  write_begin();
  if (grows)
    WRITE(table, in);
  for (size_t i = held; i > below; i--)
    entry_copy(&in->entries[i], &in->entries[i - 1]);
  entry_set(&in->entries[below], base, base + bytes, pool);
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
  struct table *in = table_locked();
  size_t held = count_locked();
  write_begin();
  for (size_t i = entries_up_to(in, base); i < held; i++)
    entry_copy(&in->entries[i - 1], &in->entries[i]);
  WRITE(count, held - 1);
  write_end();
  chunk_map_unlock();
}
