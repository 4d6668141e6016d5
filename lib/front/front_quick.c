/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The quick path: an allocation from what the thread's last front has at hand, and a free of a block that the front
 * keeps.  No lock of another thread, no call of the driver but the fence of a full shelf.
 *
 * What is rare is out of line and the last thing that its function does, so that what is done every time saves no
 * registers.
 */
#include "front/front_inside.h"

/* ---- Taking a block from a front.  The thread is inside. ---- */

uintptr_t front_pop_small(struct front *front, unsigned class, size_t size) {
  struct magazine *magazine = &front->magazines[class];
  bool any = magazine->loaded->count > 0 || magazine_wake(magazine, front->reuse);
  return any ? magazine_pop(magazine, class, size) : 0;
}

/* Hands a shelf's oldest block out. */
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
  block_prefetch(next);
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
  size_t bytes = front_whole(front, size);
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  struct freed_block *block = shelf->oldest;
  if (shelf_is_empty(shelf) || bytes < size || !shelf_is_for(shelf, bytes, tag) || !block_fits(shelf, block, bytes) ||
      block->epoch > reuse_passed(front->reuse))
    return 0;
  return shelf_hand_out(front, shelf, block, size, site, tag);
}

uintptr_t front_pop_shelf(struct front *front, size_t size, const void *site, const void *tag) {
  return shelf_pop(front, size, site, tag);
}

uintptr_t front_pop_bin(struct front *front, size_t size, const void *site) {
  size_t bytes = front_whole(front, size);
  struct shelf *bin = bin_serving(&front->bins, bytes);
  if (bin == NULL || bytes < size || bin->oldest->epoch > reuse_passed(front->reuse))
    return 0;
  return shelf_hand_out(front, bin, bin->oldest, size, site, NULL);
}

uintptr_t front_pop(struct front *front, size_t size, const void *site, const void *tag) {
  uintptr_t address = 0;
  if (tag == NULL && size <= SLAB_BLOCK_MOST_BYTES)
    address = front_pop_small(front, slab_class(size), size);
  if (address == 0)
    address = shelf_pop(front, size, site, tag);
  return address == 0 && tag == NULL ? front_pop_bin(front, size, site) : address;
}

/* ---- Malloc ---- */

/* The thread may be inside. */
static __attribute__((noinline)) cudaError_t malloc_quick_anew(void **ptr, size_t size, const void *site,
                                                               uint64_t default_id, front_malloc_rest *rest) {
  struct front *front = front_mine;
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
  size_t bytes = front_whole(front, size);
  const struct shelf *shelf = shelf_for(front->shelves, bytes, NULL);
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
  struct front *front = front_mine;
  uint64_t default_id = front->default_id;
  uintptr_t address = shelf_pop(front, size, site, NULL);
  if (address != 0) {
    front->last_size = size;
    front->last_shelf = shelf_for(front->shelves, front_whole(front, size), NULL);
  } else {
    address = front_pop_bin(front, size, site);
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
  if (__builtin_expect(magazine->loaded->count == 0, false))
    return malloc_quick_anew(ptr, size, site, front->default_id, rest);
  uintptr_t address = magazine_pop(magazine, class, size);
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
  struct freed_block *block = shelf->oldest;
  if (__builtin_expect(shelf_is_empty(shelf) || block->epoch > reuse_passed(front->reuse) ||
                           block->segment->as.used.requested_bytes != size,
                       false))
    return malloc_quick_other(ptr, size, site, rest);
  uintptr_t address = shelf_hand_out(front, shelf, block, size, site, NULL);
  front->numbers.live_less_one++;
  biased_leave(&front->lock);
  *ptr = (void *)address;
  return cudaSuccess;
}

cudaError_t front_malloc_quick(void **ptr, size_t size, const void *site, front_malloc_rest *rest,
                               uint64_t default_id) {
  struct front *front = front_mine;
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

/* ---- Free ---- */

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

enum front_freed front_count_free(struct front *front) { return freed_count(front); }

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
  struct batch *to = magazine->filling;
  if (__builtin_expect(to->count >= SLAB_BATCH || (quick && front->immediate), false))
    return FRONT_FREED_NO_ROOM;
  _Atomic uint8_t *live = slab_live(slab, index);
  if (!magazine_claim(magazine, front->alone, live))
    return FRONT_FREED_NOT;
  if (!quick && front->immediate)
    to = magazine_free_at_once(magazine);
  to->blocks[to->count++] = (struct slab_block){address, live};
  return freed_count(front);
}

/* Room for a block by means of the magazine alone. */
static __attribute__((noinline)) bool magazine_has_more(struct front *front, struct magazine *magazine,
                                                        unsigned class) {
  if (batch_real(magazine->filling)) {
    if (magazine->resting_count >= resting_most(class))
      return false;
    magazine_rest(magazine, front_stamp(front));
  }
  return magazine_open(magazine);
}

enum front_freed front_free_small(struct front *front, struct slab *slab, uintptr_t address) {
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
static struct freed_block *place_elsewhere(struct front *front, size_t bytes, const void *tag) {
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  if (!shelf_is_for(shelf, bytes, tag) || !shelf_has_room(front, shelf))
    shelf = tag == NULL ? bin_with_room(&front->bins, bytes) : NULL;
  return shelf != NULL ? shelf_end(shelf) : limbo_has_room(front) ? limbo_end(&front->limbo) : NULL;
}

static inline __attribute__((always_inline)) cudaError_t free_end(uintptr_t address, front_free_rest *rest,
                                                                  enum front_freed freed) {
  return __builtin_expect(freed == FRONT_FREED, true) ? cudaSuccess : rest(address, freed);
}

/* A block that is the thread's to keep, but not on the shelf it was from: on another, in a bin, in limbo; or it goes to
 * the pool.  If much was freed, a fence now tells it from what runs later.  The thread is inside, and leaves, here and
 * in all that follow. */
static __attribute__((noinline)) cudaError_t free_large_elsewhere(uintptr_t address, front_free_rest *rest,
                                                                  struct front *front,
                                                                  const struct freed_block *freed_one) {
  struct segment *segment = freed_one->segment;
  uint64_t epoch = freed_one->epoch;
  struct freed_block *block = place_elsewhere(front, segment->bytes, segment->as.used.tag);
  struct mam_pool *pool = front->pool;
  uint64_t generation = front->generation;
  bool fence = front->unfenced_left < 0;
  if (block != NULL)
    *block = *freed_one;
  if (fence)
    front->unfenced_left = front->fence_bytes;
  enum front_freed freed = freed_count(front);
  biased_leave(&front->lock);
  if (block == NULL)
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
  return free_end(address, rest, slab != NULL ? front_free_small(front, slab, address) : FRONT_FREED_NOT);
}

/* A block that the thread owns is freed, and the front keeps it.  Without fences, which frees would wait for, none is.
 */
static inline __attribute__((always_inline)) cudaError_t free_large_at(uintptr_t address, front_free_rest *rest,
                                                                       struct front *front, struct owned *places,
                                                                       struct owned *owned) {
  struct segment *segment = owned->segment;
  struct shelf *shelf = owned->shelf;
  uint64_t ticket = owned->ticket, epoch = front_stamp(front);
  owned->ticket = OWNED_FREED;
  if (!claim_ticket(front->alone, &segment->ticket, ticket)) /* pool_free will say so */
    return free_large_not(address, rest, front);
  size_t bytes = segment->bytes; /* from here on the segment is this thread's */
  struct freed_block *block = shelf->next;
  ring_write(block, segment, address, epoch, places); /* there is always a place for one; it may not count */
  front->unfenced_left -= (int64_t)bytes;
  if (__builtin_expect(front->unfenced_left < 0 || !shelf_takes(shelf, segment, bytes), false))
    return free_large_elsewhere(address, rest, front, block);
  struct freed_block *next = ring_after(shelf, block);
  if (__builtin_expect(next == shelf->oldest, false))
    return free_large_elsewhere(address, rest, front, block);
  shelf->next = next;
  enum front_freed freed = freed_count(front);
  biased_leave(&front->lock);
  return free_end(address, rest, freed);
}

/* Not freed right after its allocation. */
static __attribute__((noinline)) cudaError_t free_large_later(uintptr_t address, front_free_rest *rest,
                                                              struct front *front) {
  struct owned *places = owned_pair(front->owned, address), *owned = owned_find(places, address);
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
  return free_end(address, rest, front_free_small(front, slab, address));
}

cudaError_t front_free_quick(uintptr_t address, front_free_rest *rest) {
  struct front *front = front_mine;
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

enum front_freed front_free_large(struct front *front, uintptr_t address) {
  return (enum front_freed)free_large_anew(address, freed_tell, front);
}
