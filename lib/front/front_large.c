/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Large blocks, the slow way: what an allocation does that found nothing on its shelf and in its bin.
 */
#include "front/front_inside.h"

#include <limits.h>
#include <stdlib.h>

/* So many fences in a row for one size show that the size has too few blocks: a growing pool then gets more of it, so
 * that a fence serves more. */
enum { TIGHT_MOST = 16 };

/* A growing pool grows by so much for a crowd. */
enum { GROWTH_BYTES = 128 << 20 };

/* Takes up to most of the oldest blocks off shelves, from one on until the end, and puts them into the pool's trees.
 * What was freed on a stream waits there for the stream, even if it has passed: beside what waits it fits together, and
 * a fence soon frees all. */
static void shelves_return(struct front *front, struct shelf *shelf, const struct shelf *end, unsigned most) {
  struct segment *segments[FRONT_GIVEN_MOST];
  uint64_t epoch = 0, lane;
  unsigned count;
  do {
    biased_enter(&front->lock); /* another thread may be taking what the front keeps */
    struct mam_pool *pool = front->pool;
    while (shelf_is_empty(shelf) && shelf + 1 < end)
      shelf++;
    count = shelf_clear(shelf, FRONT_EVERY_EPOCH, segments, &epoch, &lane,
                        most < FRONT_GIVEN_MOST ? most : FRONT_GIVEN_MOST);
    struct context_stream stream = front_stream(front, lane);
    biased_leave(&front->lock);
    pool_give(pool, front->generation, segments, count, stream.id != 0 ? FRONT_EVERY_EPOCH : epoch, stream);
    most -= count;
  } while (count > 0 && most > 0);
}

static void shelf_return(struct front *front, struct shelf *shelf, unsigned most) {
  shelves_return(front, shelf, shelf + 1, most);
}

/* All that the thread keeps goes to the pool.  There what was freed on a stream fits together, and serves the stream's
 * next allocations whatever their sizes. */
static void kept_return(struct front *front) {
  shelves_return(front, front->shelves, front->shelves + FRONT_SHELVES, UINT_MAX);
  front->keeps_of_streams = false;
}

/* A tag's oldest block that does not fit goes back to the trees (the seed hands it to the driver). */
static void shelf_drop_misfit(struct front *front, size_t bytes, const void *tag) {
  biased_enter(&front->lock);
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  bool misfit = !shelf_is_empty(shelf) && shelf_is_for(shelf, bytes, tag) && !block_fits(shelf, shelf->oldest, bytes);
  biased_leave(&front->lock);
  if (misfit)
    shelf_return(front, shelf, 1);
}

/* Serves from what the front has if a fence, asked for now, says that the GPU is done with the epoch: that of the
 * oldest block of a shelf or a bin.  0: none. */
static bool pop_fenced(struct front *front, const struct front_request *request, uint64_t epoch, uintptr_t *address) {
  if (epoch == 0 || !reuse_reach(front->reuse, epoch))
    return false;
  biased_enter(&front->lock);
  bool served = (*address = front_pop(front, request->size, request->site, request->tag, request->lane)) != 0;
  biased_leave(&front->lock);
  return served;
}

/* The bytes of the pool's live blocks, but for what other threads have not published (balance.h).  The thread is
 * inside. */
static size_t front_live_bytes(const struct front *front) {
  /* relaxed: a hint */
  int64_t bytes = atomic_load_explicit(&front->pool->fronts->live.bytes, memory_order_relaxed) + front->balance.bytes -
                  front->balance.published;
  return bytes > 0 ? (size_t)bytes : 0;
}

/* How much a pool may grow at most for the thread's speed alone: the program needs the memory, and blocks that the
 * thread keeps are of no use to other threads. */
static size_t spare_bytes(struct front *front, size_t bytes) {
  size_t most = bytes > SHELF_ENOUGH_BYTES / SHELF_ENOUGH_BLOCKS ? SHELF_ENOUGH_BLOCKS * bytes : SHELF_ENOUGH_BYTES;
  size_t held = 0;
  biased_enter(&front->lock);
  for (const struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++)
    held += shelf_bytes(shelf);
  biased_leave(&front->lock);
  return held < most ? most - held : 0;
}

void large_miss(struct front *front, const struct front_request *request, struct miss *miss) {
  size_t bytes = front_whole(front, request->size);
  const void *tag = request->tag;
  unsigned index = bin_index_used(&front->bins, bytes);
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  const struct freed_block *block = shelf->oldest;
  bool does = !shelf_is_empty(shelf) && shelf_is_for(shelf, bytes, tag) && block_fits(shelf, block, bytes);
  miss->pool = front->pool;
  miss->live_bytes = front_live_bytes(front);
  miss->live_exact = front->balance.slack == 0;
  miss->shelf = shelf;
  miss->bin = index < BINS ? &front->bins.ranges[index] : NULL;
  miss->epoch = does ? block->epoch : 0;
  miss->shelf_blocks = does ? shelf_count(shelf) : 0;
  miss->enough = (does && shelf_is_full(shelf)) || shelf_has_enough(shelf, bytes);
  const struct shelf *bin = bin_serving(&front->bins, bytes, LANE_NONE);
  miss->crowded = front->bins.crowded;
  miss->bin_epoch = bin != NULL ? bin->oldest->epoch : 0;
  miss->bin_enough = bin != NULL && shelf_count(bin) >= SHELF_ENOUGH_BLOCKS;
}

/* Makes the shelf the size's or the tag's if no other blocks are on it.  Returns the shelf if they have been in the way
 * for too long, and it is to be cleared; else NULL. */
static struct shelf *shelf_claim(struct front *front, size_t bytes, const void *tag) {
  struct shelf *shelf = shelf_for(front->shelves, bytes, tag);
  if (shelf_is_for(shelf, bytes, tag))
    return NULL;
  if (!shelf_is_empty(shelf)) {
    shelf->in_the_way = shelf->stood == shelf->oldest ? shelf->in_the_way + 1 : 1;
    shelf->stood = shelf->oldest;
    return shelf->in_the_way >= SHELF_PATIENCE ? shelf : NULL;
  }
  shelf->bytes = tag == NULL ? bytes : 0;
  shelf->tag = tag;
  shelf->stood = NULL;
  front->last_size = FRONT_NO_SIZE; /* it may have been this one's */
  return NULL;
}

/* Keeps the balance of how often the thread meets others at the pool's lock.  Returns true if the
 * thread has just stopped using its bins for all sizes. */
static bool crowd_count(struct front *front, bool contended) {
  if (contended)
    front->bins.crowd = front->bins.crowd + CROWD_STEP < CROWD_MOST ? front->bins.crowd + CROWD_STEP : CROWD_MOST;
  else if (front->bins.crowd > 0)
    front->bins.crowd--;
  bool was = front->bins.crowded;
  front->bins.crowded = !front->shelves_off && (front->bins.crowd >= CROWD_ENOUGH || (was && front->bins.crowd > 0));
  return was && !front->bins.crowded;
}

/* Gives a shelf a ring that has none.  Without host memory it stays without, and takes no blocks.  Rings are the
 * owner's to look at, also while it is not inside. */
static void ring_make(struct front *front, struct shelf *shelf, unsigned blocks) {
  bool wanted = shelf != NULL && ring_is_none(shelf) && !front->shelves_off;
  struct freed_block *ring = wanted ? calloc(blocks + 1, sizeof *ring) : NULL;
  if (ring == NULL)
    return;
  biased_enter(&front->lock);
  ring_set(shelf, ring, blocks + 1);
  biased_leave(&front->lock);
}

/* Notes where a block of the pool may go when it is freed.  Returns a shelf that is to be cleared for that, else NULL.
 * The thread is inside. */
static struct shelf *large_note(struct front *front, const struct pool_block *block, const void *tag) {
  struct shelf *clear = shelf_claim(front, block->bytes, tag);
  if (!front->shelves_off) {
    front->owns = true;
    owned_remember(owned_pair(front->owned, block->address), block->address, block->segment, block->ticket,
                   shelf_for(front->shelves, block->bytes, tag));
  }
  return clear;
}

struct pool_order large_order(const struct front *front, const struct front_request *request, enum pool_effort effort,
                              const struct miss *miss) {
  return (struct pool_order){.default_id = request->default_id,
                             .generation = front->generation,
                             .size = request->size,
                             .site = request->site,
                             .tag = request->tag,
                             .effort = effort == POOL_TAKE_ANY && request->at_once ? POOL_TAKE_AT_ONCE : effort,
                             .live_bytes = miss->live_bytes + request->size,
                             .live_exact = miss->live_exact,
                             .stream = request->stream != NULL ? request->stream->name : no_stream};
}

cudaError_t large_receive(struct front *front, const struct front_request *request, const struct pool_block *block,
                          struct miss *miss, uintptr_t *address) {
  ring_make(front, miss->shelf, SHELF_BLOCKS);
  ring_make(front, miss->bin, BIN_BLOCKS);
  biased_enter(&front->lock);
  bool attached = front->pool == miss->pool;
  bool deserted = crowd_count(front, block->contended);
  struct shelf *clear = attached ? large_note(front, block, request->tag) : NULL;
  if (attached)
    front_count(front, block->bytes);
  biased_leave(&front->lock);
  if (clear != NULL)
    shelf_return(front, clear, UINT_MAX);
  if (deserted)
    shelves_return(front, front->bins.ranges, front->shelves + FRONT_SHELVES, UINT_MAX);
  *address = attached ? block->address : 0;
  return attached ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

/* cudaErrorInvalidResourceHandle if the pool has ended, whatever its struct is now. */
static cudaError_t take_ordered(struct front *front, const struct front_request *request,
                                const struct pool_order *order, struct miss *miss, uintptr_t *address) {
  struct pool_block block;
  cudaError_t error = pool_take(miss->pool, order, &block);
  return error == cudaSuccess ? large_receive(front, request, &block, miss, address) : error;
}

cudaError_t large_take(struct front *front, const struct front_request *request, enum pool_effort effort,
                       struct miss *miss, uintptr_t *address) {
  struct pool_order order = large_order(front, request, effort, miss);
  return take_ordered(front, request, &order, miss, address);
}

/* The pool grows for the sake of speed: by as many blocks as the thread keeps of the size, or what a crowd needs, as
 * far as the thread may keep them. */
static cudaError_t large_take_grown(struct front *front, const struct front_request *request, struct miss *miss,
                                    uintptr_t *address) {
  size_t bytes = front_whole(front, request->size);
  if (bytes < request->size || bytes > SIZE_MAX / SHELF_ENOUGH_BLOCKS)
    return cudaErrorMemoryAllocation;
  struct pool_order order = large_order(front, request, POOL_TAKE_GROWTH, miss);
  size_t spare = spare_bytes(front, bytes);
  size_t want = miss->crowded ? GROWTH_BYTES : miss->shelf_blocks * bytes;
  want = want < bytes ? bytes : want;
  order.growth_bytes = want < spare ? want : spare - spare % bytes;
  order.growth_most_bytes = spare;
  return order.growth_bytes > 0 ? take_ordered(front, request, &order, miss, address) : cudaErrorMemoryAllocation;
}

/* The pool has nothing free for a size that the shelf could serve with a fence.  Returns true if that was so TIGHT_MOST
 * times in a row. */
static bool tight_for_long(struct front *front, const struct miss *miss) {
  if (miss->epoch == 0 || miss->enough)
    return false;
  front->tight_count = front->tight == miss->shelf ? front->tight_count + 1 : 1;
  front->tight = miss->shelf;
  return front->tight_count % TIGHT_MOST == 0;
}

/* The fullest of the thread's other shelves gives way to one that is tight: its blocks go to the pool.  False if none
 * holds more than the tight one: two sizes must not take from each other for ever. */
static bool fullest_gives_way(struct front *front, const struct miss *miss) {
  struct shelf *fullest = NULL;
  biased_enter(&front->lock);
  size_t most = shelf_bytes(miss->shelf);
  for (struct shelf *shelf = front->shelves; shelf < front->shelves + FRONT_SHELVES; shelf++) {
    size_t bytes = shelf_bytes(shelf);
    if (bytes > most) {
      most = bytes;
      fullest = shelf;
    }
  }
  biased_leave(&front->lock);
  if (fullest != NULL)
    shelf_return(front, fullest, UINT_MAX);
  return fullest != NULL;
}

/* A shelf that has enough blocks, or no room for more, serves first, if it can; then what is free in the pool; then the
 * shelf with a fence; and last the pool by all means it has.  On a stream, only a close fit is taken from the pool
 * before what the thread keeps has gone there.  In a crowd the pool grows before all means are tried: the last step
 * would collect what all threads hold, and that is what keeps them apart. */
cudaError_t large_malloc(struct front *front, const struct front_request *request, struct miss *miss,
                         uintptr_t *address) {
  if ((miss->enough && pop_fenced(front, request, miss->epoch, address)) ||
      (miss->bin_enough && pop_fenced(front, request, miss->bin_epoch, address)))
    return cudaSuccess;
  bool gathers = request->lane != NULL && front->keeps_of_streams && !miss->crowded;
  enum pool_effort effort = gathers ? POOL_TAKE_CLOSE : POOL_TAKE_FREE;
  cudaError_t error = large_take(front, request, effort, miss, address);
  if (error == cudaErrorMemoryAllocation && gathers) {
    kept_return(front);
    error = large_take(front, request, POOL_TAKE_FREE, miss, address);
  }
  bool tight = error == cudaErrorMemoryAllocation && !miss->crowded && tight_for_long(front, miss);
  if (error == cudaErrorMemoryAllocation && (miss->crowded || tight))
    error = large_take_grown(front, request, miss, address);
  if (error == cudaErrorMemoryAllocation && tight && fullest_gives_way(front, miss))
    error = large_take(front, request, POOL_TAKE_FREE, miss, address);
  if (error != cudaErrorMemoryAllocation) {
    front->tight = NULL;
    return error;
  }
  if ((!miss->enough && pop_fenced(front, request, miss->epoch, address)) ||
      (!miss->bin_enough && pop_fenced(front, request, miss->bin_epoch, address)))
    return cudaSuccess;
  if (request->tag != NULL)
    shelf_drop_misfit(front, front_whole(front, request->size), request->tag);
  return large_take(front, request, POOL_TAKE_ANY, miss, address);
}
