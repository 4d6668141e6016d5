/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The continuations of the quick path (front_quick.h), and what slower rooms call again.
 */
#include "front/front_quick.h"

/* ---- Taking a block from a front.  The thread is inside. ---- */

uintptr_t front_pop_small(struct front *front, unsigned class, size_t size, struct lane *lane) {
  struct magazine *magazine = &front->magazines[class];
  struct batch *from = lane != NULL ? lane_loaded(lane, class) : &magazine_nothing;
  if (from->count > 0) {
    magazine->loaded_blocks++; /* as if it came to the magazine and left at once */
    front->numbers.stream_small_hits++;
  } else if (magazine->loaded->count > 0 || magazine_wake(magazine, front->reuse)) {
    from = magazine->loaded;
  } else {
    return 0;
  }
  front_count(front, slab_class_bytes(class));
  return magazine_pop(magazine, from, class, size);
}

/* What goes out on its own stream at once does not wait for a fence. */
static void stream_hit(struct front *front, size_t bytes) {
  int64_t left = front->unfenced_left + (int64_t)bytes;
  front->numbers.stream_large_hits++;
  front->unfenced_left = left < front->fence_bytes ? left : front->fence_bytes;
}

static inline __attribute__((always_inline)) uintptr_t ready_pop(struct front *front, struct shelf *shelf, size_t bytes,
                                                                 size_t size, const void *site, const void *tag,
                                                                 const struct lane *lane) {
  uint64_t mark = lane_mark(lane);
  struct freed_block *block = shelf_ready(shelf, reuse_passed(front->reuse), mark, bytes);
  if (block == NULL)
    return 0;
  if (mark != LANE_NONE && block_lane(block) == mark)
    stream_hit(front, block->segment->bytes);
  return shelf_hand_out(front, shelf, block, size, site, tag);
}

static inline __attribute__((always_inline)) uintptr_t shelf_pop(struct front *front, size_t size, const void *site,
                                                                 const void *tag, const struct lane *lane) {
  size_t bytes = front_whole(front, size);
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  if (shelf_is_empty(shelf) || bytes < size || !shelf_is_for(shelf, bytes, tag))
    return 0;
  return ready_pop(front, shelf, bytes, size, site, tag, lane);
}

static uintptr_t bin_pop(struct front *front, size_t size, const void *site, const void *tag, struct lane *lane) {
  size_t bytes = front_whole(front, size);
  struct shelf *bin = bin_serving(&front->bins, bytes, lane_mark(lane));
  return bin != NULL && bytes >= size ? ready_pop(front, bin, bytes, size, site, tag, lane) : 0;
}

uintptr_t front_pop(struct front *front, size_t size, const void *site, const void *tag, struct lane *lane) {
  uintptr_t address = 0;
  if (size <= POOL_SMALL_MOST_BYTES)
    address = front_pop_small(front, slab_class(size), size, lane);
  if (address == 0)
    address = shelf_pop(front, size, site, tag, lane);
  return address == 0 ? bin_pop(front, size, site, tag, lane) : address;
}

/* ---- Malloc: the address, 0 if the front has nothing at hand ---- */

uintptr_t front_malloc_reenter(size_t size, const void *site, uint64_t default_id) {
  struct front *front = front_mine;
  uintptr_t address = 0;
  biased_enter(&front->lock);
  bool late = front_is_late();
  if (size > 0 && front->default_id == default_id && !late)
    address = front_pop(front, size, site, NULL, NULL);
  biased_leave(&front->lock);
  if (!late)
    front_heed_if_hindered(front);
  return address;
}

/* The epoch that the shelf of a size waits for, if a fence may as well be asked for at once; else 0. */
static uint64_t size_waits_for(struct front *front, size_t size) {
  size_t bytes = front_whole(front, size);
  const struct shelf *shelf = shelf_for(front->shelves, bytes, NULL);
  if (shelf_is_empty(shelf) || !shelf_is_for(shelf, bytes, NULL))
    return 0;
  bool asks = shelf_is_full(shelf) || shelf_has_enough(shelf, bytes);
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
  uintptr_t address = shelf_pop(front, size, site, NULL, NULL);
  if (address != 0) {
    front->last_size = size;
    front->last_shelf = shelf_for(front->shelves, front_whole(front, size), NULL);
  } else {
    address = bin_pop(front, size, site, NULL, NULL);
  }
  uint64_t epoch = address == 0 ? size_waits_for(front, size) : 0;
  biased_leave(&front->lock);
  return epoch != 0 && reach_and_recount(front, epoch) ? front_malloc_reenter(size, site, default_id) : address;
}

uintptr_t front_malloc_coarse(struct front *front, size_t size, const void *site) {
  if (size - 1 < POOL_SMALL_MOST_BYTES)
    return malloc_small(front, slab_class(size), size, site);
  return front_malloc_shelf_or_bin(size, site);
}

/* ---- Free ---- */

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

enum front_freed front_free_small(struct front *front, struct slab *slab, uintptr_t address, struct lane *lane) {
  biased_enter(&front->lock);
  bool late = front_is_late();
  enum front_freed freed = late ? FRONT_FREED_NOT : free_small(front, slab, address, false, lane);
  if (freed == FRONT_FREED_NO_ROOM && lane == NULL) {
    unsigned class = slab->class;
    if (magazine_renew_filling(front, &front->magazines[class], class))
      freed = free_small(front, slab, address, false, NULL);
  }
  biased_leave(&front->lock);
  if (front_at_hand != NULL && !late) /* a slow free does it at its end */
    front_heed_if_hindered(front);
  return freed;
}

/* Which has room for a block that does not go back where it was from; NULL if none has.  How many bytes a shelf holds
 * is no matter: they are collected where they are needed. */
static struct shelf *shelf_elsewhere(struct front *front, size_t bytes, const void *tag) {
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  bool takes = shelf_is_for(shelf, bytes, tag) && !shelf_is_full(shelf);
  return takes ? shelf : bin_with_room(&front->bins, bytes);
}

enum front_freed front_free_large_elsewhere(struct front *front, const struct freed_block *freed_one) {
  struct segment *segment = freed_one->segment;
  uint64_t epoch = freed_one->epoch;
  struct context_stream stream = front_stream(front, block_lane(freed_one));
  struct shelf *shelf = shelf_elsewhere(front, segment->bytes, segment->as.used.tag);
  struct mam_pool *pool = front->pool;
  bool fence = front->unfenced_left < 0;
  if (shelf != NULL) {
    *shelf->next = *freed_one;
    shelf->next = ring_after(shelf, shelf->next);
  }
  if (fence)
    front->unfenced_left = front->fence_bytes;
  enum front_freed freed = freed_count(front, segment->bytes);
  biased_leave(&front->lock);
  if (shelf == NULL)
    pool_give(pool, front->generation, &segment, 1, epoch, stream);
  if (fence)
    (void)reuse_reach(front->reuse, reuse_epoch(front->reuse));
  return freed;
}

enum front_freed front_free_large_unknown(struct front *front, uintptr_t address, struct lane *lane) {
  biased_leave(&front->lock);
  struct slab *slab = page_map_find(address);
  return slab != NULL ? front_free_small(front, slab, address, lane) : FRONT_FREED_NOT;
}

enum front_freed front_free_large_lookup(struct front *front, uintptr_t address, struct lane *lane) {
  struct owned *places = owned_pair(front->owned, address), *owned = owned_find(places, address);
  return owned != NULL ? free_large_at(front, address, places, owned, lane)
                       : front_free_large_unknown(front, address, lane);
}

enum front_freed front_free_large(struct front *front, uintptr_t address, struct lane *lane) {
  biased_enter(&front->lock);
  if (front_is_late()) {
    biased_leave(&front->lock);
    return FRONT_FREED_NOT;
  }
  /* By the immediate rule a shelf's blocks have no epoch, so the pool takes what is freed on a stream. */
  bool pools = lane != NULL && front->immediate;
  enum front_freed freed = pools ? front_free_large_unknown(front, address, lane) : free_large(front, address, lane);
  if (front_at_hand != NULL) /* as in front_free_small */
    front_heed_if_hindered(front);
  return freed;
}
