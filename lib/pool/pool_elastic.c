/* SPDX-License-Identifier: BSD-2-Clause */
/* Growth of an elastic pool: which addresses get memory, and in which pieces. */
#include <limits.h>

#include "base/clock.h"
#include "base/error.h"
#include "pool/pool_inside.h"
#include "pool/segment_inside.h"

/* ---- Pieces: the mapped parts of a reserved chunk ---- */

/* A mapping costs 50 us, and 60 to 140 us for each GiB of it (H200).  So a growth is one piece, unless it is so large
 * that several cost little in comparison.  A piece can only be given back as a whole: of a large block's pieces, some
 * may be free while a smaller block lies in another. */
enum { PIECE_MOST_BYTES = 512 << 20 };

/* Gives the pieces back that were put from base on, up to end. */
static void pieces_undo(const struct source *source, const struct pool_chunk *chunk, uintptr_t base, uintptr_t end) {
  for (uintptr_t at = base; at < end;) {
    uint32_t *piece = pool_piece_at(chunk, at);
    size_t bytes = pool_piece_bytes(*piece);
    *piece = 0;
    (void)source->operations->unmap(source, at, bytes);
    at += bytes;
  }
}

/* Puts memory under a range of the chunk: first the pieces, which go to gone, then new ones.  On failure nothing is
 * mapped there.  The lock is not held: only the caller, for whom the pool grows, looks at pieces. */
static cudaError_t pieces_put(const struct source *source, const struct pool_chunk *chunk, uintptr_t base, size_t bytes,
                              struct moving_list *pieces, struct moving_list *gone) {
  uintptr_t at = base, end = base + bytes;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && at < end) {
    struct segment *piece = SLIST_FIRST(pieces);
    size_t next = piece != NULL ? piece->bytes : end - at < PIECE_MOST_BYTES ? end - at : PIECE_MOST_BYTES;
    bool there = true;
    error = piece != NULL ? source->operations->remap(source, piece->base, next, at, &there)
                          : source->operations->map(source, at, next);
    if (piece != NULL && (error == cudaSuccess || !there)) {
      SLIST_REMOVE_HEAD(pieces, as.moving);
      SLIST_INSERT_HEAD(gone, piece, as.moving);
    }
    if (error == cudaSuccess) {
      *pool_piece_at(chunk, at) = (uint32_t)(next / SOURCE_GRANULARITY_BYTES);
      at += next;
    }
  }
  if (error == cudaSuccess && source->operations->access != NULL)
    error = source->operations->access(source, base, bytes);
  if (error != cudaSuccess)
    pieces_undo(source, chunk, base, at);
  return error;
}

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
  return excess + pool_trimmable_beside_locked(pool, place) <= move->trimmable_bytes;
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
  most = most > PIECE_MOST_BYTES ? PIECE_MOST_BYTES : most;
  rush = rush > most ? most : rush;
  return whole_units(rush > steady ? rush : steady);
}

/* Whether a place begins where its unmapped segment does, and may be longer; else it ends where that ends. */
static bool place_is_low(struct pool_place place) { return place.base == place.unmapped->base; }

/* How large a place may become. */
static size_t place_most_bytes(struct pool_place place) {
  uintptr_t end = place.base + place.bytes;
  return place_is_low(place) ? place.unmapped->base + place.unmapped->bytes - place.base : end - place.unmapped->base;
}

static void place_resize(struct pool_place *place, size_t bytes) {
  if (!place_is_low(*place))
    place->base -= bytes - place->bytes;
  place->bytes = bytes;
}

/* Makes a place larger, as far as the limit and the unmapped segment allow. */
static void place_extend(const struct mam_pool *pool, struct pool_place *place) {
  size_t want = growth_least_bytes(pool), room = pool->limit_bytes - pool->held_bytes;
  size_t most = place_most_bytes(*place);
  want = want < pool->config.chunk_bytes ? pool->config.chunk_bytes : want;
  want = want < place->bytes + pool->wanted_bytes ? place->bytes + whole_units(pool->wanted_bytes) : want;
  want = want > room ? room & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1) : want;
  want = want > most ? most : want;
  if (want > place->bytes)
    place_resize(place, want);
}

/* Pieces that were to be moved stay where they are. */
static void pieces_leave_locked(struct mam_pool *pool, struct moving_list *pieces) {
  lock_held(&pool->lock);
  for (struct segment *piece; (piece = SLIST_FIRST(pieces)) != NULL; pool_piece_end_locked(pool, piece, true))
    SLIST_REMOVE_HEAD(pieces, as.moving);
}

/* Takes a place out of the unmapped segments, until place_fill_locked.  NULL if the host has no memory. */
static struct segment *place_take_locked(struct mam_pool *pool, struct pool_place place) {
  lock_held(&pool->lock);
  struct segment *moving = segment_move(&pool->segments, place.unmapped, place.base, place.bytes);
  if (moving == NULL)
    (void)error_set(cudaErrorMemoryAllocation, "the host has no memory for a segment");
  return moving;
}

/* Puts memory at a place: these pieces, then new ones.  Leaves the lock.  Afterwards no piece is in the list. */
static cudaError_t place_fill_locked(struct mam_pool *pool, struct segment *place, struct moving_list *pieces) {
  lock_held(&pool->lock);
  struct moving_list gone = SLIST_HEAD_INITIALIZER(gone);
  struct segment *piece;
  pool_step_out(pool);
  cudaError_t error = pieces_put(&pool->source, SLIST_FIRST(&pool->chunks), place->base, place->bytes, pieces, &gone);
  pool_step_in(pool);
  if (error == cudaSuccess)
    pool_held_change_locked(pool, place->bytes);
  segment_moved(&pool->segments, place, error == cudaSuccess ? SEGMENT_FREE : SEGMENT_UNMAPPED);
  for (; (piece = SLIST_FIRST(&gone)) != NULL; pool_piece_end_locked(pool, piece, false))
    SLIST_REMOVE_HEAD(&gone, as.moving);
  pieces_leave_locked(pool, pieces);
  return error;
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
  struct segment *moving = place_take_locked(pool, place);
  struct moving_list none = SLIST_HEAD_INITIALIZER(none);
  *asked = true;
  cudaError_t error = moving != NULL ? place_fill_locked(pool, moving, &none) : cudaErrorMemoryAllocation;
  if (error == cudaErrorMemoryAllocation && place.bytes > need)
    error = pool_elastic_try_locked(pool, bytes, false, asked);
  return error;
}

/* A pool moves pieces rather than growing if a few have at least this part of what is needed.  Each piece costs 35 us
 * (H200), whatever its size, as a mapping does; more of them would be a long call. */
enum { MOVE_SHARE = 2, MOVE_PIECES = 4 };

/* Moves free pieces to a place, and new memory for the rest of it.  Further free pieces are given back, if the pool
 * would hold more than most_bytes otherwise.  choosy: only a few pieces, and only if they have a large part. */
static cudaError_t place_move_locked(struct mam_pool *pool, struct pool_place place, size_t most_bytes, bool choosy,
                                     bool *asked) {
  lock_held(&pool->lock);
  struct moving_list pieces = SLIST_HEAD_INITIALIZER(pieces);
  size_t least_bytes = choosy ? place.bytes / MOVE_SHARE : 0;
  size_t taken =
      pool_pieces_take_locked(pool, place, place_most_bytes(place), choosy ? MOVE_PIECES : UINT_MAX, &pieces);
  if (taken > place.bytes)
    place_resize(&place, taken);
  struct segment *moving = taken >= least_bytes ? place_take_locked(pool, place) : NULL;
  cudaError_t error = cudaErrorMemoryAllocation;
  if (moving != NULL) {
    error = pool_pieces_trim_locked(pool, most_bytes - place.bytes, place);
    if (error == cudaSuccess && pool->held_bytes <= most_bytes - place.bytes) {
      *asked = true;
      return place_fill_locked(pool, moving, &pieces);
    }
    segment_moved(&pool->segments, moving, SEGMENT_UNMAPPED);
  }
  pieces_leave_locked(pool, &pieces);
  return error == cudaSuccess ? cudaErrorMemoryAllocation : error;
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
  struct move move = {most, pool_trimmable_bytes_locked(pool)};
  if (place_find_locked(pool, bytes, &move, &place))
    return place_move_locked(pool, place, most, false, asked);
  if (!move_serves_locked(pool, &move, all))
    return cudaErrorMemoryAllocation;
  cudaError_t error = pool_pieces_trim_locked(pool, most - all.bytes, all);
  return error == cudaSuccess ? pool_elastic_try_locked(pool, bytes, false, asked) : error;
}

/* In all a pool moves so many times what it holds: where sizes never fit what is free, it would move for ever.  A
 * smaller move counts as one of so many bytes, since it costs as much. */
enum { MOVED_TIMES = 2, MOVED_LEAST_BYTES = 16 << 20 };

/* Whether the GPU lags behind; asks for a fence to learn it. */
static bool gpu_lags_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool_step_out(pool);
  if (!reuse_lags(pool->reuse))
    (void)reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
  pool_step_in(pool);
  return reuse_lags(pool->reuse);
}

/* Moves pieces instead of growth.  Not while the GPU lags behind: there is time for it later. */
static cudaError_t growth_move_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  struct pool_place place;
  bool found = place_find_locked(pool, bytes, NULL, &place);
  size_t charge = found && place.bytes > MOVED_LEAST_BYTES ? place.bytes : MOVED_LEAST_BYTES;
  if (!found || (pool->moved_bytes + charge) / MOVED_TIMES > pool->held_bytes ||
      pool_free_pieces_bytes_locked(pool) < place.bytes / MOVE_SHARE || gpu_lags_locked(pool) ||
      pool_trimmable_bytes_locked(pool) < place.bytes / MOVE_SHARE)
    return cudaErrorMemoryAllocation;
  if (segment_largest_free(&pool->segments) >= bytes) /* the lock was left: another thread freed */
    return cudaSuccess;
  if (!place_find_locked(pool, bytes, NULL, &place) || place.bytes > pool->limit_bytes - pool->held_bytes)
    return cudaErrorMemoryAllocation;
  cudaError_t error = place_move_locked(pool, place, pool->limit_bytes, true, asked);
  pool->moved_bytes += error == cudaSuccess ? charge : 0;
  return error;
}

cudaError_t pool_elastic_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  if (bytes > pool->limit_bytes)
    return cudaErrorMemoryAllocation;
  if (now_ns() - pool->rushed_ns > RUSH_NS)
    pool->rush_bytes = 0;
  cudaError_t error = growth_move_locked(pool, bytes, asked);
  if (error != cudaSuccess)
    error = pool_elastic_try_locked(pool, bytes, true, asked);
  if (error == cudaErrorMemoryAllocation)
    error = scarce_move_locked(pool, bytes, asked);
  pool->rush_bytes += pool->held_bytes > held_bytes ? pool->held_bytes - held_bytes : 0;
  pool->rushed_ns = now_ns();
  return error;
}
