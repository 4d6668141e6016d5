/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread's fronts: finding the one for a pool, making it, and the end of the thread.
 */
#include "front/front_inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/library_call.h"
#include "base/locked.h"
#include "base/record.h"

/* What one thread frees is fenced when it comes to this part of the pool's limit, at the latest. */
enum { FENCE_SHARE = 2 };

/* Of a thread whose end has begun, or would not be heard: no front outlives a call. */
static __thread __attribute__((tls_model("initial-exec"))) bool ending;

static pthread_key_t thread_end;
static bool thread_end_heard; /* a program may have taken all keys; constant once there are fronts */
static _Atomic(uint64_t) fronts_made;

/* What is freed for immediate use waits for nothing. */
static const _Atomic uint64_t no_epoch;

/* Makes a front the thread's first one. */
static void front_come_first(struct front *front) {
  front_mine = front;
  front_show();
}

void front_show(void) { front_at_hand = record_on() ? NULL : front_mine; }

void front_hide(void) { front_at_hand = NULL; }

/* Of a thread that forks. */
static __thread __attribute__((tls_model("initial-exec"))) struct front *front_of_fork;

void front_before_fork(void) {
  front_of_fork = front_mine;
  front_mine = NULL;
  front_hide();
}

void front_after_fork(void) { front_come_first(front_of_fork); }

/* Under the fronts' lock no other thread wants the front's. */
static void front_relieve(struct front *front) {
  struct mam_pool *pool = front_pool(front);
  if (pool == NULL)
    return;
  pthread_mutex_lock(&pool->fronts->lock);
  if (front->pool == pool) /* it changes under the fronts' lock */
    biased_relieve(&front->lock);
  pthread_mutex_unlock(&pool->fronts->lock);
}

void front_heed(void) {
  for (struct front *front = front_mine; front != NULL; front = front->next_of_thread)
    if (biased_is_hindered(&front->lock))
      front_relieve(front);
  front_show(); /* last: a record may have begun before a front was relieved, not after */
}

/* ---- Making one ---- */

/* The thread's front for a pool; it becomes the first.  NULL if there is none. */
static struct front *front_find(const struct mam_pool *pool, uint64_t default_id) {
  for (struct front **link = &front_mine, *front; (front = *link) != NULL; link = &front->next_of_thread) {
    biased_enter(&front->lock);
    bool serves = front_serves(front, pool, default_id);
    biased_leave(&front->lock);
    if (!serves)
      continue;
    *link = front->next_of_thread;
    front->next_of_thread = front_mine;
    front_come_first(front);
    return front;
  }
  return NULL;
}

/* All 0, and mostly not touched: a thread with few large blocks never pays for the pages of what it owns. */
static struct front *front_new(void) {
  void *memory = calloc(1, sizeof(struct front) + _Alignof(struct front));
  if (memory == NULL)
    return NULL;
  uintptr_t aligned = ((uintptr_t)memory + _Alignof(struct front)) & ~(uintptr_t)(_Alignof(struct front) - 1);
  struct front *front = (struct front *)aligned;
  front->memory = memory;
  front->default_id = FRONT_NO_DEFAULT_ID;
  front->last_places = front->owned;
  front->last_lane = front->lanes;
  front->bins.ranges = front->shelves + SHELVES;
  for (struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    ring_set(shelf, &front->no_ring, 1);
  return front;
}

/* The first of the thread's fronts whose pools ended, NULL if there is none; the others are freed.  One is kept for the
 * next pool, as a loop may make and end pools. */
static struct front *front_spares_free(void) {
  struct front **link = &front_mine, *front, *spare = NULL;
  while ((front = *link) != NULL) {
    bool ended = front_pool(front) == NULL;
    if (ended && spare != NULL) { /* not the thread's first one, so no pointer to that changes */
      *link = front->next_of_thread;
      front_free_memory(front);
    } else {
      spare = ended ? front : spare;
      link = &front->next_of_thread;
    }
  }
  return spare;
}

void front_trim(void) { (void)front_spares_free(); }

/* A front of a pool that ended, or a new one, made the thread's. */
static struct front *front_spare(void) {
  struct front *front = front_spares_free();
  if (front != NULL)
    return front;
  front = front_new();
  if (front == NULL)
    return NULL;
  biased_init(&front->lock);
  /* Tickets are never used twice: each front counts in a range of its own, odd numbers only. */
  front->ticket_next = (atomic_fetch_add_explicit(&fronts_made, 1, memory_order_relaxed) + 1) << POOL_TICKET_BITS | 1;
  front->next_of_thread = front_mine;
  front_come_first(front);
  if (!ending) /* any value makes front_thread_end run */
    ending = !thread_end_heard || pthread_setspecific(thread_end, front) != 0;
  return front;
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
  front->default_id = pool->config.default_id != 0 ? pool->config.default_id : FRONT_NO_DEFAULT_ID;
  front->alignment = pool->config.alignment;
  front->no_slabs = pool->config.no_slabs;
  front->alone = pool->fronts->first == NULL && !pool->fronts->shared;
  front->immediate = pool->config.reuse == MAM_REUSE_IMMEDIATE;
  front->epoch = front->immediate ? &no_epoch : &pool->reuse->epoch;
  front->shelves_off = !front->immediate && !reuse_passes_by_itself(pool->reuse);
  front->last_size = FRONT_NO_SIZE;
  front->unfenced_epoch = 0;
  front->unfenced_left = front->fence_bytes = (int64_t)fence_bytes(pool);
  front->ticket_first = front->ticket_next;
  front->bins.calm_bytes = bin_calm_bytes(pool);
  front->numbers = (struct front_numbers){0};
  front->balance = (struct balance)BALANCE_INIT;
  if (!front->alone)
    balance_share(&front->balance, &pool->fronts->live);
  front->allocates = false;
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    magazine_init(&front->magazines[i]);
  front->keeps_of_streams = false;
  memset(front->lanes, 0, sizeof front->lanes); /* their names; the batches went with the pool before */
  front->context = pool->source.context;
  if (front->context.driver == NULL)
    front->context.id = pool->config.default_id;
}

/* Another thread is about to use the pool: from here on, no front is alone.  The fronts' lock is held. */
static void fronts_share_locked(struct fronts *fronts) {
  lock_held(&fronts->lock);
  struct front *front = fronts->first; /* of several, none is alone any more */
  if (front == NULL || !front->alone)
    return;
  front_take(front);
  front->alone = false;
  balance_share(&front->balance, &fronts->live);
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
  biased_init(&front->lock); /* no other thread knows of it; see biased_owner_barrier */
  front_attach(front, pool);
  if (pool->fronts->first != NULL || fronts_live_bytes(pool->fronts) != 0) /* no thread can tell the last free */
    /* relaxed: a hint */
    atomic_store_explicit(&pool->crowded, true, memory_order_relaxed);
  front->next_of_pool = pool->fronts->first;
  pool->fronts->first = front;
  pthread_mutex_unlock(&pool->fronts->lock);
  front_show(); /* a record may have begun while the front was of no pool */
  return front;
}

cudaError_t front_get(struct mam_pool *pool, uint64_t default_id, struct front **front) {
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

/* ---- Which pool and thread it belongs to ---- */

struct mam_pool *front_pool(struct front *front) {
  biased_enter(&front->lock);
  struct mam_pool *pool = front->pool;
  biased_leave(&front->lock);
  return pool;
}

bool front_is_mine(const struct front *front) {
  const struct front *of_thread = front_mine;
  while (of_thread != NULL && of_thread != front)
    of_thread = of_thread->next_of_thread;
  return of_thread != NULL;
}

/* ---- Letting go ---- */

void front_detach(struct front *front) {
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    magazine_drop(&front->magazines[i]);
  for (struct lane *lane = front->lanes; lane < front->lanes + LANES; lane++) {
    for (unsigned i = 0; i < 2 * SLAB_CLASSES; i++)
      free(lane->batches.of_class[i / 2][i % 2]);
    lane->batches = (struct lane_batches){{{NULL}}};
  }
  for (struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    ring_empty(shelf);
  if (front->owns)
    owned_clear(front->owned);
  front->owns = false;
  front->bins.crowd = 0;
  front->bins.crowded = front->alone = false;
  front->pool = NULL;
  front->default_id = FRONT_NO_DEFAULT_ID;
}

static void front_leave_pool(struct front *front, struct mam_pool *pool) {
  pthread_mutex_lock(&pool->fronts->lock);
  if (front->pool == pool) { /* else the pool ended first; it changes under the fronts' lock */
    front_empty(front, FRONT_EVERY_EPOCH);
    front_unlink(pool->fronts, front);
  }
  pthread_mutex_unlock(&pool->fronts->lock);
}

static void fronts_leave(void) {
  struct front *front;
  while ((front = front_mine) != NULL) {
    front_come_first(front->next_of_thread);
    struct mam_pool *pool = front_pool(front);
    if (pool != NULL)
      front_leave_pool(front, pool);
    front_free_memory(front);
  }
}

/* Destructors of the program's may follow, and allocate and free. */
static void front_thread_end(void *unused) {
  LIBRARY_CALL;
  (void)unused;
  ending = true;
  fronts_leave();
}

void front_call_end(void) {
  if (__builtin_expect(ending, false))
    fronts_leave();
}

void front_set_up(void) {
  biased_register();
  thread_end_heard = pthread_key_create(&thread_end, front_thread_end) == 0;
}
