/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The continuations of the quick path (front_quick.h), and what slower rooms call again.
 */
#include "front/front_quick.h"

/* ---- Taking a block from a front.  The thread is inside. ---- */

uintptr_t front_pop_small(struct front *front, unsigned class, size_t size) {
  struct magazine *magazine = &front->magazines[class];
  bool any = magazine->loaded->count > 0 || magazine_wake(magazine, front->reuse);
  return any ? magazine_pop(magazine, class, size) : 0;
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

/* ---- Malloc: the address, 0 if the front has nothing at hand ---- */

uintptr_t front_malloc_reenter(size_t size, const void *site, uint64_t default_id) {
  struct front *front = front_mine;
  uintptr_t address = 0;
  biased_enter(&front->lock);
  if (size > 0 && front->default_id == default_id && (address = front_pop(front, size, site, NULL)) != 0)
    front->numbers.live_less_one++;
  biased_leave(&front->lock);
  return address;
}

/* The epoch that the shelf of a size waits for, if a fence may as well be asked for at once; else 0. */
static uint64_t size_waits_for(struct front *front, size_t size) {
  size_t bytes = front_whole(front, size);
  const struct shelf *shelf = shelf_for(front->shelves, bytes, NULL);
  if (shelf_is_empty(shelf) || !shelf_is_for(shelf, bytes, NULL))
    return 0;
  bool asks = !shelf_has_room(front, shelf) || shelf_has_enough(shelf, bytes);
  return asks ? shelf->oldest->epoch : 0;
}

/* reuse_reach.  If a fence has closed the epoch of what was freed, the count of bytes without a fence begins again. */
static bool reach_and_recount(struct front *front, uint64_t epoch) {
  bool reached = reuse_reach(front->reuse, epoch);
  uint64_t now = reuse_epoch(front->reuse);
  if (now != front->unfenced_epoch)
    front->unfenced_left = front->fence_bytes;
  front->unfenced_epoch = now;
  return reached;
}

uintptr_t front_malloc_shelf_or_bin(size_t size, const void *site) {
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
  return epoch != 0 && reach_and_recount(front, epoch) ? front_malloc_reenter(size, site, default_id) : address;
}

uintptr_t front_malloc_coarse(struct front *front, size_t size, const void *site) {
  if (size - 1 < SLAB_BLOCK_MOST_BYTES)
    return malloc_small(front, slab_class(size), size, site);
  return front_malloc_shelf_or_bin(size, site);
}

/* ---- Free ---- */

enum front_freed front_count_free(struct front *front) { return freed_count(front); }

/* An empty batch to fill, by means of the magazine alone.  False if there is none. */
static __attribute__((noinline)) bool magazine_renew_filling(struct front *front, struct magazine *magazine,
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
    if (magazine_renew_filling(front, &front->magazines[class], class))
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

enum front_freed front_free_large_elsewhere(struct front *front, const struct freed_block *freed_one) {
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
  return freed;
}

enum front_freed front_free_large_unknown(struct front *front, uintptr_t address) {
  biased_leave(&front->lock);
  struct slab *slab = page_map_find(address);
  return slab != NULL ? front_free_small(front, slab, address) : FRONT_FREED_NOT;
}

enum front_freed front_free_large_lookup(struct front *front, uintptr_t address) {
  struct owned *places = owned_pair(front->owned, address), *owned = owned_find(places, address);
  return owned != NULL ? free_large_at(front, address, places, owned) : front_free_large_unknown(front, address);
}

enum front_freed front_free_large(struct front *front, uintptr_t address) {
  biased_enter(&front->lock);
  return free_large(front, address);
}
