/* SPDX-License-Identifier: BSD-2-Clause */
/* Growth of an elastic pool: which addresses get memory, and how much. */
#include "base/clock.h"
#include "base/error.h"
#include "pool/pool_inside.h"
#include "pool/segment_inside.h"

/* ---- Places: the unmapped parts that get memory ---- */

/* What is missing for a block of bytes beside a neighbour that may be free. */
static size_t missing_beside(const struct segment *neighbour, size_t bytes) {
  size_t there = neighbour != NULL && neighbour->state == SEGMENT_FREE ? neighbour->bytes : 0;
  return bytes > there ? round_up(bytes - there, SOURCE_GRANULARITY_BYTES) : SOURCE_GRANULARITY_BYTES;
}

/* The parts of an unmapped segment that make room for a block of bytes, with what is free beside them: above what lies
 * before it, below what lies after it, or all of it, between the two.  Returns how many. */
enum { PLACES_WITHIN = 2 };
static unsigned places_within(struct segment *unmapped, size_t bytes, struct pool_place places[PLACES_WITHIN]) {
  const struct segment *before = neighbour_before(unmapped), *after = neighbour_after(unmapped);
  size_t above = missing_beside(before, bytes), below = missing_beside(after, bytes), room = unmapped->bytes;
  unsigned count = 0;
  if (above <= room)
    places[count++] = (struct pool_place){unmapped, unmapped->base, above, true, false};
  if (below <= room)
    places[count++] = (struct pool_place){unmapped, unmapped->base + room - below, below, false, true};
  if (count == 0 && before != NULL && before->state == SEGMENT_FREE &&
      missing_beside(after, bytes - before->bytes) <= room)
    places[count++] = (struct pool_place){unmapped, unmapped->base, room, true, true};
  return count;
}

/* What a pool may do for a place: hold so much in the end, and before give back so much that is free in pieces, but for
 * what is free beside the place. */
struct move {
  size_t most_bytes, trimmable_bytes;
};

static bool move_serves_locked(struct mam_pool *pool, const struct move *move, struct pool_place place) {
  lock_held(&pool->lock);
  if (place.bytes > move->most_bytes)
    return false;
  size_t keep = move->most_bytes - place.bytes, excess = pool->held_bytes > keep ? pool->held_bytes - keep : 0;
  return excess + pool_pieces_beside_locked(pool, place) <= move->trimmable_bytes;
}

/* The place that needs the least new memory; of those, the lowest.  Only places that the move serves, unless it is
 * NULL. */
static bool place_find_locked(struct mam_pool *pool, size_t bytes, const struct move *move, struct pool_place *best) {
  lock_held(&pool->lock);
  struct segment *unmapped;
  bool found = false;
  LIST_FOREACH(unmapped, &pool->segments.unmapped, as.unmapped) {
    struct pool_place places[PLACES_WITHIN];
    unsigned count = places_within(unmapped, bytes, places);
    for (unsigned i = 0; i < count; i++) {
      bool better =
          !found || places[i].bytes < best->bytes || (places[i].bytes == best->bytes && places[i].base < best->base);
      if (!better || (move != NULL && !move_serves_locked(pool, move, places[i])))
        continue;
      *best = places[i];
      found = true;
    }
  }
  return found;
}

/* A growth takes at least this part of what the pool holds, so that growths are few; as much may be held in vain. */
enum { GROWTH_SHARE = 128 };

/* But that part counts for at most so much: memory that the driver gives out for the first time costs up to 4 ms a GiB
 * (H200). */
enum { GROWTH_MOST_BYTES = 32 << 20 };

/* Growths that begin less than so long after the one before ended are a rush: mapping is a large part of what the
 * program does. */
enum { RUSH_NS = 1000000 };

/* In a rush a growth takes at least this part of what came by the rush, and so what is held in vain in the end stays
 * little beside what was needed. */
enum { RUSH_SHARE = 16 };

/* But at most this part of what the pool holds.  From cold to 11 GiB by random blocks of up to 64 MiB it took 130
 * mappings with a 32nd, 180 with a 48th, 210 with a 64th and 380 with a 128th. */
enum { RUSH_MOST_SHARE = 48 };

/* What a growth takes at least. */
static size_t growth_least_bytes(const struct mam_pool *pool) {
  size_t steady = pool->held_bytes / GROWTH_SHARE, rush = pool->rush_bytes / RUSH_SHARE;
  size_t most = pool->held_bytes / RUSH_MOST_SHARE;
  steady = steady > GROWTH_MOST_BYTES ? GROWTH_MOST_BYTES : steady;
  most = most > POOL_PIECE_MOST_BYTES ? POOL_PIECE_MOST_BYTES : most;
  rush = rush > most ? most : rush;
  return whole_units(rush > steady ? rush : steady);
}

/* Makes a place larger, as far as the limit and the unmapped segment allow. */
static void place_extend(const struct mam_pool *pool, struct pool_place *place) {
  size_t want = growth_least_bytes(pool), room = pool->limit_bytes - pool->held_bytes;
  size_t most = pool_place_most_bytes(*place);
  want = want < pool->config.chunk_bytes ? pool->config.chunk_bytes : want;
  want = want < place->bytes + pool->wanted_bytes ? place->bytes + whole_units(pool->wanted_bytes) : want;
  want = want > room ? room & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1) : want;
  want = want > most ? most : want;
  if (want > place->bytes)
    pool_place_resize(place, want);
}

/* ---- Growth ---- */

cudaError_t pool_elastic_try_locked(struct mam_pool *pool, size_t bytes, bool generous, bool *asked) {
  lock_held(&pool->lock);
  struct pool_place place = {0};
  if (segment_largest_free(&pool->segments) >= bytes) /* the lock was left: another thread freed */
    return cudaSuccess;
  if (!place_find_locked(pool, bytes, NULL, &place) || place.bytes > pool->limit_bytes - pool->held_bytes)
    return cudaErrorMemoryAllocation;
  size_t need = place.bytes;
  if (generous)
    place_extend(pool, &place);
  *asked = true;
  cudaError_t error = pool_place_fill_locked(pool, place);
  if (error == cudaErrorMemoryAllocation && place.bytes > need)
    error = pool_elastic_try_locked(pool, bytes, false, asked);
  return error;
}

/* For a block that the limit or the source leaves no other room: moves pieces to a place beside a hole, which stays.
 * If there is no such place, gives pieces back, for all of the block. */
static cudaError_t scarce_move_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  struct pool_place place, all = {.bytes = round_up(bytes, SOURCE_GRANULARITY_BYTES)};
  size_t most = *asked ? pool->held_bytes : pool->limit_bytes; /* what may be held in the end */
  if (!place_find_locked(pool, bytes, NULL, &place))
    place = all;
  if (place.bytes > most || pool->held_bytes <= most - place.bytes ||
      pool->held_bytes - (most - place.bytes) > pool->segments.bytes[SEGMENT_FREE])
    return cudaErrorMemoryAllocation;
  struct move move = {most, pool_free_may_be_unmapped_locked(pool) ? pool_free_pieces_bytes_locked(pool) : 0};
  if (place_find_locked(pool, bytes, &move, &place))
    return pool_place_move_locked(pool, &place, most, asked);
  if (!move_serves_locked(pool, &move, all))
    return cudaErrorMemoryAllocation;
  cudaError_t error = pool_pieces_trim_locked(pool, most - all.bytes, all);
  return error == cudaSuccess ? pool_elastic_try_locked(pool, bytes, false, asked) : error;
}

/* A pool moves rather than grows beyond what was ever used, if free pieces lack no more than this part of what is
 * needed.  A move costs as much as several mappings, so one that must map much as well is not worth it (H200, 24
 * sequences from cold: lacking an eighth or a half, 1 MB to 2 GB take 8.1 or 10.6 ms of calls of the driver, and hold
 * 1.144 or 1.132 times the peak).  In all a pool moves so many times what it holds: where sizes never fit what is free,
 * it would move for ever.  A smaller move counts as one of so many bytes, since it costs as much. */
enum { LACK_SHARE = 8, MOVED_TIMES = 2, MOVED_LEAST_BYTES = 16 << 20 };

/* Whether the GPU lags behind; asks for a fence to learn it. */
static bool gpu_lags_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool_step_out(pool);
  if (!reuse_lags(pool->reuse))
    (void)reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
  pool_step_in(pool);
  return reuse_lags(pool->reuse);
}

/* The place for a block, if a growth there would make the pool hold more than was ever used at once, and a GROWTH_SHARE
 * of that; and if enough free pieces can move there.  *new_bytes: what they lack. */
static bool excess_place_locked(struct mam_pool *pool, size_t bytes, struct pool_place *place, size_t *new_bytes) {
  lock_held(&pool->lock);
  size_t most = pool->segments.bytes[SEGMENT_USED] + bytes;
  if (most < pool->peak_taken_bytes)
    most = pool->peak_taken_bytes;
  if (!place_find_locked(pool, bytes, NULL, place) || pool->held_bytes + place->bytes <= most + most / GROWTH_SHARE)
    return false;
  size_t pieces = pool_free_pieces_bytes_locked(pool) - pool_pieces_beside_locked(pool, *place);
  *new_bytes = place->bytes > pieces ? place->bytes - pieces : 0;
  return *new_bytes <= place->bytes / LACK_SHARE && *new_bytes <= pool->limit_bytes - pool->held_bytes;
}

/* Moves free pieces in place of such a growth.  Not while the GPU lags behind: there is time for it later; nor if other
 * threads wait for the growth, as one mapping serves them all. */
static cudaError_t excess_move_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  struct pool_place place;
  size_t new_bytes;
  if (pool->wanted_bytes > 0 || pool->moved_bytes / MOVED_TIMES > pool->held_bytes ||
      !excess_place_locked(pool, bytes, &place, &new_bytes) || gpu_lags_locked(pool) ||
      !pool_free_may_be_unmapped_locked(pool))
    return cudaErrorMemoryAllocation;
  if (segment_largest_free(&pool->segments) >= bytes) /* the lock was left: another thread freed */
    return cudaSuccess;
  if (!excess_place_locked(pool, bytes, &place, &new_bytes))
    return cudaErrorMemoryAllocation;
  cudaError_t error = pool_place_move_locked(pool, &place, pool->held_bytes + new_bytes, asked);
  if (error == cudaSuccess)
    pool->moved_bytes += place.bytes > MOVED_LEAST_BYTES ? place.bytes : MOVED_LEAST_BYTES;
  return error;
}

cudaError_t pool_elastic_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  if (bytes > pool->limit_bytes)
    return cudaErrorMemoryAllocation;
  if (now_ns() - pool->rushed_ns > RUSH_NS)
    pool->rush_bytes = 0;
  cudaError_t error = excess_move_locked(pool, bytes, asked);
  if (error != cudaSuccess)
    error = pool_elastic_try_locked(pool, bytes, true, asked);
  if (error == cudaErrorMemoryAllocation)
    error = scarce_move_locked(pool, bytes, asked);
  pool->rush_bytes += pool->held_bytes > held_bytes ? pool->held_bytes - held_bytes : 0;
  pool->rushed_ns = now_ns();
  return error;
}
