/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The quick path: an allocation from what the thread's last front has at hand, and a free of a block that the front
 * keeps.  It takes no lock of another thread.
 *
 * It is inline in the floor above, which sees the answer and goes on by itself where there is none.  Out of line, the
 * answer would cost a pair 1.1 to 1.8 ns.  What is rare is out of line, in front_quick.c.
 */
#ifndef MAM_LIB_FRONT_QUICK_H
#define MAM_LIB_FRONT_QUICK_H

#include "front/front_inside.h"

/* ---- Continuations in front_quick.c, for what is rare.  Where the thread is inside, they leave. ---- */

/* Enters the front, which the thread may be inside already, and looks in every place. */
uintptr_t front_malloc_reenter(size_t size, const void *site, uint64_t default_id);

/* From the shelf of the size, wherever it is, or from a bin; if the shelf is full, with a fence.  The thread is inside,
 * here and in the next. */
uintptr_t front_malloc_shelf_or_bin(size_t size, const void *site);

/* More than SLAB_FINE_BYTES, or nothing. */
uintptr_t front_malloc_coarse(struct front *front, size_t size, const void *site);

/* A block that is the thread's to keep, but not on the shelf it was from: on another or in a bin; or it goes to
 * the pool.  If much was freed, a fence now tells it from what runs later.  The thread is inside, here and below. */
enum front_freed front_free_large_elsewhere(struct front *front, const struct freed_block *freed_one);

/* No block that the thread owns.  It may be the first block of a slab: see front_free_quick. */
enum front_freed front_free_large_unknown(struct front *front, uintptr_t address, struct lane *lane);

/* Not the block that a shelf served last. */
enum front_freed front_free_large_lookup(struct front *front, uintptr_t address, struct lane *lane);

/* ---- Malloc ---- */

/* Hands a shelf's oldest or newest block out. */
static inline __attribute__((always_inline)) uintptr_t shelf_hand_out(struct front *front, struct shelf *shelf,
                                                                      struct freed_block *block, size_t size,
                                                                      const void *site, const void *tag) {
  struct freed_block *next = ring_after(shelf, block);
  struct segment *segment = block->segment;
  struct owned *places = block->places;
  uintptr_t address = block->address;
  uint64_t ticket = front->ticket_next;
  size_t requested_before = segment->as.used.requested_bytes;
  if (__builtin_expect(size != requested_before, false)) {
    front->numbers.requested_bytes += (int64_t)(size - requested_before);
    segment->as.used.requested_bytes = size;
  }
  segment->as.used.site = site;
  segment->as.used.tag = tag;
  front_count(front, segment->bytes); /* before another thread may free it */
  if (__builtin_expect(block == shelf->oldest, true)) {
    block_prefetch(next);
    shelf->oldest = next;
  } else {
    shelf->next = block;
  }
  front->ticket_next = ticket + 2;
  /* release: the fields above, for a thread that frees the block through the pool; pairs with pool_free's exchange */
  atomic_store_explicit(&segment->ticket, ticket, memory_order_release);
  owned_again(places, address, segment, ticket, shelf);
  front->last_places = places;
  if (tag != NULL && shelf->tag != NULL)
    front->numbers.tag_hits++;
  return address;
}

/* A block from the magazine, if it has one loaded. */
static inline __attribute__((always_inline)) uintptr_t malloc_small(struct front *front, unsigned class, size_t size,
                                                                    const void *site) {
  struct magazine *magazine = &front->magazines[class];
  if (__builtin_expect(magazine->loaded->count == 0, false))
    return front_malloc_reenter(size, site, front->default_id);
  uintptr_t address = magazine_pop(magazine, magazine->loaded, class, size);
  front_count(front, slab_class_bytes(class));
  biased_leave(&front->lock);
  return address;
}

/* As large as the last one, whose shelf need not be looked for. */
static inline __attribute__((always_inline)) uintptr_t malloc_last_shelf(struct front *front, size_t size,
                                                                         const void *site) {
  struct shelf *shelf = front->last_shelf;
  struct freed_block *block = shelf->oldest;
  if (__builtin_expect(shelf_is_empty(shelf) || block->epoch > reuse_passed(front->reuse) ||
                           block->segment->as.used.requested_bytes != size,
                       false))
    return front_malloc_shelf_or_bin(size, site);
  uintptr_t address = shelf_hand_out(front, shelf, block, size, site, NULL);
  biased_leave(&front->lock);
  return address;
}

/* The address of a block from what the thread's last front has at hand, if that is of the default pool of the id (0: no
 * pool's); else 0, and the caller goes on with front_malloc.  size may be 0: there is no such block.  front, here and
 * below: front_at_hand, or front_mine of a caller that records. */
static inline __attribute__((always_inline)) uintptr_t front_malloc_quick(struct front *front, size_t size,
                                                                          const void *site, uint64_t default_id) {
  if (__builtin_expect(front == NULL, false))
    return 0;
  if (__builtin_expect(!biased_try(&front->lock) || front->default_id != default_id, false))
    return front_malloc_reenter(size, site, default_id);
  if (size - 1 < SLAB_FINE_BYTES)
    return malloc_small(front, slab_class(size), size, site);
  if (size == front->last_size)
    return malloc_last_shelf(front, size, site);
  return front_malloc_coarse(front, size, site);
}

/* ---- Free; lane: of the stream that it is on, NULL if on none ---- */

/* Counts a free.  FRONT_FREED_ZERO if it seems to have been the pool's last block, and the pool reports that. */
static inline enum front_freed freed_count(struct front *front, size_t bytes) {
  if (balance_subtract(&front->balance, bytes))
    balance_share(&front->balance, &front->pool->fronts->live);
  /* relaxed: a hint, asked again under the pool's lock */
  bool zero = front->balance.bytes < 0 && atomic_load_explicit(&front->pool->reports_empty, memory_order_relaxed);
  return __builtin_expect(zero, false) ? FRONT_FREED_ZERO : FRONT_FREED;
}

/* quick: what the immediate rule does is left to front_free_small, as if there were no room. */
static inline __attribute__((always_inline)) enum front_freed
free_small(struct front *front, struct slab *slab, uintptr_t address, bool quick, struct lane *lane) {
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
  struct batch *to = lane == NULL ? magazine->filling : lane_filling(lane, slab->class);
  if (__builtin_expect(to->count >= SLAB_BATCH || (quick && front->immediate), false))
    return FRONT_FREED_NO_ROOM;
  _Atomic uint8_t *live = slab_live(slab, index);
  if (!magazine_claim(magazine, front->alone, live))
    return FRONT_FREED_NOT;
  if (lane != NULL)
    magazine->filled_blocks++;
  else if (!quick && front->immediate)
    to = magazine_free_at_once(magazine);
  to->blocks[to->count++] = (struct slab_block){address, live};
  return freed_count(front, slab_class_bytes(slab->class));
}

/* A block that the thread owns is freed, and the front keeps it.  Without fences, which frees would wait for, none is.
 */
static inline __attribute__((always_inline)) enum front_freed
free_large_at(struct front *front, uintptr_t address, struct owned *places, struct owned *owned, struct lane *lane) {
  struct segment *segment = owned->segment;
  struct shelf *shelf = owned->shelf;
  uint64_t ticket = owned->ticket, epoch = front_stamp(front);
  owned->ticket = OWNED_FREED;
  if (!claim_ticket(front->alone, &segment->ticket, ticket)) /* pool_free will say so */
    return front_free_large_unknown(front, address, lane);
  size_t bytes = segment->bytes; /* from here on the segment is this thread's */
  struct freed_block *block = shelf->next;
  segment->as.used.site = (const void *)(uintptr_t)lane_mark(lane);
  if (lane != NULL)
    front->keeps_of_streams = true;
  ring_write(block, segment, address, epoch, places); /* there is always a place for one; it may not count */
  front->unfenced_left -= (int64_t)bytes;
  if (__builtin_expect(front->unfenced_left < 0 || !shelf_takes(shelf, segment, bytes), false))
    return front_free_large_elsewhere(front, block);
  struct freed_block *next = ring_after(shelf, block);
  if (__builtin_expect(next == shelf->oldest, false))
    return front_free_large_elsewhere(front, block);
  shelf->next = next;
  enum front_freed freed = freed_count(front, bytes);
  biased_leave(&front->lock);
  return freed;
}

static inline __attribute__((always_inline)) enum front_freed free_large(struct front *front, uintptr_t address,
                                                                         struct lane *lane) {
  struct owned *places = front->last_places;
  if (__builtin_expect(places->address != address, false)) /* if it was freed, its claim fails */
    return front_free_large_lookup(front, address, lane);
  return free_large_at(front, address, places, places, lane);
}

/* A free by the thread's last front alone. */
static inline __attribute__((always_inline)) enum front_freed front_free_quick(struct front *front, uintptr_t address) {
  if (__builtin_expect(front == NULL, false))
    return FRONT_FREED_NOT;
  /* Mostly a large block: their pages lie far apart, and asking the map about each costs more than all the rest. */
  struct slab *slab = address % SLAB_BYTES != 0 ? page_map_find(address) : NULL;
  if (slab == NULL)
    return __builtin_expect(biased_try(&front->lock), true) ? free_large(front, address, NULL)
                                                            : front_free_large(front, address, NULL);
  enum front_freed freed = FRONT_FREED_NO_ROOM;
  if (__builtin_expect(biased_try(&front->lock), true))
    freed = free_small(front, slab, address, true, NULL);
  biased_leave(&front->lock);
  return __builtin_expect(freed == FRONT_FREED_NO_ROOM, false) ? front_free_small(front, slab, address, NULL) : freed;
}

/* ---- On a stream ---- */

/* The lane of the stream that the handle means, NULL if that is not known without more questions.  is_current: as in
 * context_stream_still.  Calls the driver: the thread is not inside. */
static inline __attribute__((always_inline)) struct lane *lane_quick(struct front *front, CUstream handle,
                                                                     bool is_current) {
  struct lane *lane = front->last_lane;
  if (__builtin_expect(lane->handle != handle || !lane->quick, false)) {
    for (lane = front->lanes; lane->handle != handle || !lane->quick; lane++)
      if (lane + 1 == front->lanes + LANES)
        return NULL;
    front->last_lane = lane;
  }
  return context_stream_still(front->context.driver, handle, lane->stream, is_current) ? lane : NULL;
}

/* front_malloc_quick for work on a stream; pool: as in front_request.  Without a pool, the id is that of the current
 * context, and a front that serves it has lanes of that context; if it is 0, a created stream tells that context. */
static inline __attribute__((always_inline)) uintptr_t front_malloc_on_quick(struct front *front, struct mam_pool *pool,
                                                                             uint64_t default_id, size_t size,
                                                                             const void *site, CUstream handle) {
  struct lane *lane = front != NULL && size > 0 ? lane_quick(front, handle, pool == NULL && default_id != 0) : NULL;
  uintptr_t address = 0;
  if (lane == NULL)
    return 0;
  if (pool == NULL && default_id == 0)
    default_id = context_stream_current_id(&front->context, handle);
  if (__builtin_expect(biased_try(&front->lock) && front_serves(front, pool, default_id), true))
    address = front_pop(front, size, site, NULL, lane);
  biased_leave(&front->lock);
  return address;
}

/* front_free_quick on a stream. */
static inline enum front_freed front_free_on_quick(struct front *front, uintptr_t address, CUstream handle) {
  struct lane *lane = front != NULL ? lane_quick(front, handle, false) : NULL;
  if (lane == NULL)
    return FRONT_FREED_NOT;
  struct slab *slab = address % SLAB_BYTES != 0 ? page_map_find(address) : NULL; /* as in front_free_quick */
  enum front_freed freed = slab != NULL ? front_free_small(front, slab, address, lane) : FRONT_FREED_NOT;
  return freed == FRONT_FREED_NOT ? front_free_large(front, address, lane) : freed; /* also where a slab once was */
}

#endif
