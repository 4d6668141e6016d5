/* SPDX-License-Identifier: BSD-2-Clause */
/* Growth of an elastic pool: which addresses get memory, and in which pieces. */
#include "base/clock.h"
#include "base/error.h"
#include "pool/pool_inside.h"
#include "pool/segment_inside.h"

/* ---- Pieces: the mapped parts of a reserved chunk ---- */

/* A mapping costs some 40 us, whatever its size, and 70 us for each GiB of it (H200).  So a growth is one piece, unless
 * it is so large that several cost little in comparison.  A piece can only be given back as a whole: of a large block's
 * pieces, some may be free while a smaller block lies in another. */
enum { PIECE_MOST_BYTES = 512 << 20 };

/* Maps a range in pieces.  On failure nothing changed.  The lock is not held. */
static cudaError_t pieces_map(const struct source *source, uintptr_t base, size_t bytes) {
  const size_t piece = PIECE_MOST_BYTES;
  size_t done = 0;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && done < bytes) {
    size_t next = bytes - done < piece ? bytes - done : piece;
    error = source->operations->map(source, base + done, next);
    if (error == cudaSuccess)
      done += next;
  }
  if (error == cudaSuccess && source->operations->access != NULL)
    error = source->operations->access(source, base, bytes);
  for (size_t at = 0; error != cudaSuccess && at < done; at += piece)
    (void)source->operations->unmap(source, base + at, done - at < piece ? done - at : piece);
  return error;
}

/* Remembers the pieces of a range that was mapped. */
static void pieces_note_locked(const struct mam_pool *pool, const struct pool_chunk *chunk, uintptr_t base,
                               size_t bytes) {
  const size_t piece = PIECE_MOST_BYTES;
  lock_held(&pool->lock);
  for (size_t at = 0; at < bytes; at += piece)
    *pool_piece_at(chunk, base + at) = (uint32_t)((bytes - at < piece ? bytes - at : piece) / SOURCE_GRANULARITY_BYTES);
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

/* Makes a place larger, as far as the limit and the unmapped segment allow. */
static void place_extend(const struct mam_pool *pool, struct pool_place *place) {
  size_t want = growth_least_bytes(pool), room = pool->limit_bytes - pool->held_bytes;
  uintptr_t end = place->base + place->bytes, unmapped_end = place->unmapped->base + place->unmapped->bytes;
  bool up = place->base == place->unmapped->base;
  want = want < pool->config.chunk_bytes ? pool->config.chunk_bytes : want;
  want = want < place->bytes + pool->wanted_bytes ? place->bytes + whole_units(pool->wanted_bytes) : want;
  want = want > room ? room & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1) : want;
  size_t most = up ? unmapped_end - place->base : end - place->unmapped->base;
  want = want > most ? most : want;
  if (want <= place->bytes)
    return;
  place->bytes = want;
  if (!up)
    place->base = end - want;
}

/* Maps memory at a place.  Leaves the lock. */
static cudaError_t place_fill_locked(struct mam_pool *pool, const struct pool_place *place) {
  lock_held(&pool->lock);
  const struct pool_chunk *chunk = SLIST_FIRST(&pool->chunks);
  struct segment *moving = segment_move(&pool->segments, place->unmapped, place->base, place->bytes);
  if (moving == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a segment");
  pool_step_out(pool);
  cudaError_t error = pieces_map(&pool->source, place->base, place->bytes);
  pool_step_in(pool);
  if (error != cudaSuccess) {
    segment_moved(&pool->segments, moving, SEGMENT_UNMAPPED);
    return error;
  }
  pieces_note_locked(pool, chunk, place->base, place->bytes);
  pool_held_change_locked(pool, place->bytes);
  segment_moved(&pool->segments, moving, SEGMENT_FREE);
  return cudaSuccess;
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
  cudaError_t error = place_fill_locked(pool, &place);
  if (error == cudaErrorMemoryAllocation && place.bytes > need)
    error = pool_elastic_try_locked(pool, bytes, false, asked);
  return error;
}

/* Frees memory of the pool's own for a block elsewhere in its addresses, of what is free in pieces: for a place beside
 * a hole, which stays, or else for all of the block.  False if that is not enough; then nothing changed. */
static bool own_pieces_give_locked(struct mam_pool *pool, size_t bytes, bool by_limit) {
  lock_held(&pool->lock);
  struct pool_place place, all = {.bytes = round_up(bytes, SOURCE_GRANULARITY_BYTES)};
  size_t most = by_limit ? pool->limit_bytes : pool->held_bytes; /* what may be held in the end */
  if (!place_find_locked(pool, bytes, NULL, &place))
    place = all;
  if (place.bytes > most || pool->held_bytes <= most - place.bytes ||
      pool->held_bytes - (most - place.bytes) > pool->segments.bytes[SEGMENT_FREE])
    return false;
  struct move move = {most, pool_trimmable_bytes_locked(pool)};
  if (!place_find_locked(pool, bytes, &move, &place)) {
    if (!move_serves_locked(pool, &move, all))
      return false;
    place = all;
  }
  return pool_pieces_trim_locked(pool, most - place.bytes, place) == cudaSuccess &&
         pool->held_bytes <= most - place.bytes;
}

/* A pool moves memory when it gives free pieces back and grows elsewhere in its addresses.  In all it moves at most
 * this part of what it holds.  A move costs more than growth, and where sizes never fit what is free, the pool would
 * move for ever. */
enum { MOVED_SHARE = 2 };

/* A smaller move counts as one of so many bytes: even a small one costs more than growth. */
enum { MOVED_LEAST_BYTES = 16 << 20 };

/* Whether the GPU lags behind; asks for a fence to learn it. */
static bool gpu_lags_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  pool_step_out(pool);
  if (!reuse_lags(pool->reuse))
    (void)reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
  pool_step_in(pool);
  return reuse_lags(pool->reuse);
}

/* Before a growth by which the pool would hold more than was ever used at once and a GROWTH_SHARE of that: gives as
 * much of what is free in pieces back as the place for the block needs.  Whether it did.  Not while the GPU lags
 * behind: there is time for it later. */
static bool excess_give_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  struct pool_place place;
  size_t most = pool->segments.bytes[SEGMENT_USED] + bytes;
  if (most < pool->peak_taken_bytes)
    most = pool->peak_taken_bytes;
  if (!place_find_locked(pool, bytes, NULL, &place) || pool->segments.bytes[SEGMENT_FREE] < place.bytes ||
      pool->held_bytes + place.bytes <= most + most / GROWTH_SHARE)
    return false;
  size_t charge = place.bytes > MOVED_LEAST_BYTES ? place.bytes : MOVED_LEAST_BYTES;
  if (pool->moved_bytes + charge > pool->held_bytes / MOVED_SHARE || gpu_lags_locked(pool) ||
      pool_trimmable_bytes_locked(pool) < place.bytes + pool_trimmable_beside_locked(pool, place))
    return false;
  pool->moved_bytes += charge;
  return pool_pieces_trim_locked(pool, pool->held_bytes - place.bytes, place) == cudaSuccess;
}

cudaError_t pool_elastic_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  size_t held_bytes = pool->held_bytes;
  if (bytes > pool->limit_bytes)
    return cudaErrorMemoryAllocation;
  if (now_ns() - pool->rushed_ns > RUSH_NS)
    pool->rush_bytes = 0;
  bool generous = !excess_give_locked(pool, bytes);
  cudaError_t error = pool_elastic_try_locked(pool, bytes, generous, asked);
  if (error == cudaErrorMemoryAllocation && own_pieces_give_locked(pool, bytes, !*asked))
    error = pool_elastic_try_locked(pool, bytes, false, asked);
  pool->rush_bytes += pool->held_bytes > held_bytes ? pool->held_bytes - held_bytes : 0;
  pool->rushed_ns = now_ns();
  return error;
}
