/* SPDX-License-Identifier: BSD-2-Clause */
/* Taking memory from the source: a pool's first chunk, and growth. */
#include <sched.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

/* ---- Chunks ---- */

/* A chunk's description; of a reserved one with room for its pieces.  NULL if the host has no memory. */
static struct pool_chunk *chunk_new(uintptr_t base, size_t bytes, bool reserved) {
  size_t pieces = reserved ? bytes / SOURCE_GRANULARITY_BYTES : 0;
  struct pool_chunk *chunk = calloc(1, sizeof *chunk + pieces * sizeof chunk->pieces[0]);
  if (chunk == NULL)
    return NULL;
  chunk->base = base;
  chunk->bytes = bytes;
  chunk->reserved = reserved;
  return chunk;
}

/* What is left free at the beginning of a chunk of so many bytes.  One of a single large block has a whole granule, so
 * that the block is aligned as the chunk is. */
static size_t guard_bytes(const struct mam_pool *pool, size_t bytes) {
  if (!pool->config.guarded)
    return 0;
  bool large = whole_units(bytes) > whole_units(pool->config.chunk_bytes);
  return large ? SOURCE_GRANULARITY_BYTES : pool->config.alignment;
}

/* Puts a chunk's usable part into the trees, if that has room for a block of least bytes.  The lock is held. */
static bool chunk_enter_locked(struct mam_pool *pool, struct pool_chunk *chunk, size_t least) {
  lock_held(&pool->lock);
  size_t alignment = pool->config.alignment;
  uintptr_t first = round_up(chunk->base + guard_bytes(pool, chunk->bytes), alignment);
  uintptr_t end = (chunk->base + chunk->bytes) & ~(uintptr_t)(alignment - 1);
  chunk->first = first;
  chunk->usable_bytes = end > first ? end - first : 0;
  if (chunk->usable_bytes < least)
    return false;
  enum segment_state state = chunk->reserved ? SEGMENT_UNMAPPED : SEGMENT_FREE;
  if (!segment_add_chunk(&pool->segments, first, chunk->usable_bytes, state))
    return false;
  SLIST_INSERT_HEAD(&pool->chunks, chunk, link);
  pool_held_change_locked(pool, chunk->reserved ? 0 : chunk->bytes);
  return true;
}

/* Makes a chunk that the source gave the pool's own, if it has room for a block of least bytes, at least 1.  The lock
 * is not held.  On failure the caller still has the chunk. */
static cudaError_t chunk_attach(struct mam_pool *pool, uintptr_t base, size_t bytes, size_t least, bool reserved) {
  struct mam_pool *other;
  struct pool_chunk *chunk = chunk_new(base, bytes, reserved);
  enum chunk_map_result result = CHUNK_MAP_NO_MEMORY;
  while (chunk != NULL && (result = chunk_map_add(base, bytes, pool, &other)) == CHUNK_MAP_OVERLAP && other != pool)
    pool_abandon(other, base, bytes);
  if (result != CHUNK_MAP_OK) {
    free(chunk);
    return result == CHUNK_MAP_NO_MEMORY
               ? error_set(cudaErrorMemoryAllocation, "the host has no memory for a chunk")
               : error_set(cudaErrorUnknown, "the source gave the memory at %p twice", (void *)base);
  }
  pool_lock(pool);
  bool entered = chunk_enter_locked(pool, chunk, least);
  pool_unlock(pool);
  if (entered)
    return cudaSuccess;
  chunk_map_remove(base);
  free(chunk);
  return error_set(cudaErrorMemoryAllocation, "a chunk of %zu bytes at %p does not hold a block of %zu, aligned to %zu",
                   bytes, (void *)base, least, pool->config.alignment);
}

/* The same; on failure the source has its chunk back. */
static cudaError_t chunk_adopt(struct mam_pool *pool, uintptr_t base, size_t bytes, size_t least) {
  cudaError_t error = chunk_attach(pool, base, bytes, least, false);
  if (error != cudaSuccess)
    (void)pool->source.operations->chunk_give(&pool->source, base, bytes);
  return error;
}

/* Takes a chunk of at least need bytes, of want if the source has that much, for a block of least bytes.  The lock is
 * not held. */
static cudaError_t chunk_take(struct mam_pool *pool, size_t want, size_t need, size_t least) {
  const struct source *source = &pool->source;
  uintptr_t base;
  size_t bytes = want;
  cudaError_t error = source->operations->chunk_take(source, bytes, &base);
  if (error == cudaErrorMemoryAllocation && need < want) {
    bytes = need;
    error = source->operations->chunk_take(source, bytes, &base);
  }
  return error == cudaSuccess ? chunk_adopt(pool, base, bytes, least) : error;
}

/* ---- Growth by chunks ---- */

/* A pool that grows by chunks takes at least this part of what it holds, so that the chunk map stays short. */
enum { CHUNK_SHARE = 32 };

/* How much to ask the source for, for a block of bytes in a pool that holds so much: *need at least, *want if it can
 * be.  That has room for a whole number of such blocks, as a loop takes them: a rest that fits none would be held in
 * vain.  False if the limit leaves no room. */
static bool growth_plan(const struct mam_pool *pool, size_t held_bytes, size_t bytes, size_t *want, size_t *need) {
  size_t room = (pool->limit_bytes - held_bytes) & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
  size_t slack = guard_bytes(pool, bytes + pool->config.alignment), alignment = pool->config.alignment;
  if (room < slack || bytes > room - slack)
    return false;
  /* Sources align to 512 at least; beyond that, the chunk's ends may be lost.  Where the limit has no room for that, a
   * chunk may still be aligned as it comes. */
  if (alignment > POOL_ALIGNMENT_BYTES && alignment <= room - slack - bytes)
    slack += alignment;
  *need = round_up(bytes + slack, SOURCE_GRANULARITY_BYTES);
  *want = pool->config.chunk_bytes;
  if (pool->config.in_chunks && *want < held_bytes / CHUNK_SHARE)
    *want = whole_units(held_bytes / CHUNK_SHARE);
  if (*want < *need)
    *want = *need;
  if (*want > room)
    *want = room;
  *want = round_up((*want - slack) / bytes * bytes + slack, SOURCE_GRANULARITY_BYTES);
  return true;
}

/* Takes a further chunk.  *asked: whether the source was. */
static cudaError_t chunk_grow_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  size_t want, need;
  if (!growth_plan(pool, pool->held_bytes, bytes, &want, &need))
    return cudaErrorMemoryAllocation;
  *asked = true;
  pool_step_out(pool);
  cudaError_t error = chunk_take(pool, want, need, bytes);
  pool_step_in(pool);
  return error;
}

/* The sum of what pool_chunk_give_locked could give back.  The list's last chunk would come last. */
static size_t free_chunks_bytes_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  struct pool_chunk *chunk;
  size_t bytes = 0, last = 0;
  bool all = true;
  SLIST_FOREACH(chunk, &pool->chunks, link) {
    const struct segment *segment = segment_find(&pool->segments, chunk->first);
    bool is_free = segment->state == SEGMENT_FREE && segment->bytes == chunk->usable_bytes;
    last = chunk->bytes;
    bytes += is_free ? chunk->bytes : 0;
    all = all && is_free;
  }
  if (pool->config.keeps)
    return 0;
  return all && !pool->config.gives_all ? bytes - last : bytes;
}

/* Free chunks that are too small, each by itself, give way to one that is large enough.  The source waits for the GPU
 * when it takes one back: this is for what would otherwise fail. */
static cudaError_t chunks_exchange_locked(struct mam_pool *pool, size_t bytes, bool *asked) {
  lock_held(&pool->lock);
  cudaError_t error = cudaErrorMemoryAllocation;
  size_t want, need;
  if (!growth_plan(pool, pool->held_bytes - free_chunks_bytes_locked(pool), bytes, &want, &need))
    return error;
  while (error == cudaErrorMemoryAllocation && pool_chunk_give_locked(pool, bytes, &error))
    error = chunk_grow_locked(pool, bytes, asked);
  return error;
}

/* A pool may hold so many times the block for which it grows, or this many bytes, or the most that was used, before its
 * free chunks go back. */
enum { SURPLUS_BLOCKS = 4, SURPLUS_BYTES = 256 << 20 };

/* Gives free chunks back that the pool holds beyond that, before it takes one more.  Each is too small for the block,
 * and a loop whose blocks become larger would leave one behind each time.  Only beside an idle GPU, as the source
 * waits for it. */
static void surplus_give_locked(struct mam_pool *pool, size_t bytes) {
  lock_held(&pool->lock);
  cudaError_t error;
  size_t want, need, most = SURPLUS_BLOCKS * bytes;
  most = most < SURPLUS_BYTES ? SURPLUS_BYTES : most;
  most = most < pool->peak_taken_bytes ? pool->peak_taken_bytes : most;
  if (!growth_plan(pool, pool->held_bytes, bytes, &want, &need) || pool->held_bytes + want <= most ||
      free_chunks_bytes_locked(pool) == 0)
    return;
  pool_step_out(pool);
  bool idle = reuse_reach_soon(pool->reuse, reuse_epoch(pool->reuse));
  pool_step_in(pool);
  while (idle && pool->held_bytes + want > most && pool_chunk_give_locked(pool, bytes, &error))
    continue;
}

/* ---- Growth of either kind ---- */

/* A hint that is asked by every allocation on the slow path: relaxed, as the pool's own, since nothing goes by it. */
static _Atomic bool some_grown;

bool pools_grown(void) {
  return atomic_load_explicit(&some_grown, memory_order_relaxed) &&
         atomic_exchange_explicit(&some_grown, false, memory_order_relaxed);
}

bool pool_has_grown(struct mam_pool *pool) {
  return atomic_load_explicit(&pool->grown, memory_order_relaxed) &&
         atomic_exchange_explicit(&pool->grown, false, memory_order_relaxed);
}

static void grown_tell(struct mam_pool *pool) {
  if (!pool->config.elastic && !pool->config.gives_all)
    return;
  atomic_store_explicit(&pool->grown, true, memory_order_relaxed);
  atomic_store_explicit(&some_grown, true, memory_order_relaxed);
}

/* Has the other pools that draw on the same memory give back what is free in them.  Whether one did.  One that grows is
 * left alone: it may be waiting for this one.  No lock is held. */
static bool others_give_back(const struct mam_pool *pool) {
  bool given = false;
  for (struct mam_pool *other = pool_first(); other != NULL; other = other->next) {
    if (other == pool)
      continue;
    pool_lock(other);
    if (other->state == POOL_OPEN && !other->growing && other->source.context.driver == pool->source.context.driver) {
      pool_collect_locked(other, SIZE_MAX, true);
      size_t held_bytes = other->held_bytes;
      if (other->state == POOL_OPEN && !other->growing)
        (void)pool_trim_locked(other, 0);
      given = given || other->held_bytes < held_bytes;
    }
    pool_unlock(other);
  }
  return given;
}

/* Grows a pool that no other thread grows. */
static cudaError_t grow_alone_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  cudaError_t (*grow)(struct mam_pool *, size_t, bool *) =
      pool->config.elastic ? pool_elastic_grow_locked : chunk_grow_locked;
  bool asked = false;
  if (pool->config.gives_all && !at_once && !reuse_capturing(pool->reuse))
    surplus_give_locked(pool, bytes);
  cudaError_t error = grow(pool, bytes, &asked);
  if (error == cudaErrorMemoryAllocation && !pool->config.elastic && !at_once && !reuse_capturing(pool->reuse))
    error = chunks_exchange_locked(pool, bytes, &asked);
  if (error == cudaErrorMemoryAllocation && asked && !at_once) {
    pool_step_out(pool);
    bool given = others_give_back(pool);
    pool_step_in(pool);
    if (given)
      error = grow(pool, bytes, &asked);
  }
  if (error == cudaSuccess)
    pool->refused_bytes = 0;
  if (error != cudaErrorMemoryAllocation || !asked)
    return error;
  if (pool->refused_bytes == 0 || bytes < pool->refused_bytes)
    pool->refused_bytes = bytes;
  (void)snprintf(pool->source_said, sizeof pool->source_said, "%s", error_last());
  return error;
}

/* A thread yields for so long, until another thread's growth has ended, before it sleeps.  Beside a running kernel a
 * growth takes 100 to 600 us, and the kernel wakes sleeping threads one after the other, 30 to 200 us each (H200's
 * host): 8 threads that slept took up to 2 ms. */
enum { GROWTH_LOOK_NS = 1000000 };

/* Waits for the end of another thread's growth. */
static cudaError_t growth_await_locked(struct mam_pool *pool) {
  lock_held(&pool->lock);
  /* relaxed, both: a hint, what it stands for is looked at under the lock */
  uint64_t growths = atomic_load_explicit(&pool->growths, memory_order_relaxed);
  int64_t end_ns = now_ns() + GROWTH_LOOK_NS;
  pool_step_out(pool);
  while (atomic_load_explicit(&pool->growths, memory_order_relaxed) == growths && now_ns() < end_ns)
    (void)sched_yield();
  pool_step_in(pool);
  bool ended = atomic_load_explicit(&pool->growths, memory_order_relaxed) != growths;
  return ended ? cudaSuccess : pool_await_change_locked(pool);
}

cudaError_t pool_grow_locked(struct mam_pool *pool, size_t bytes, bool at_once) {
  lock_held(&pool->lock);
  if (pool->growing) { /* another thread's growth may be enough; else one waiting thread grows for all of them at once
                        */
    size_t room = pool->limit_bytes - pool->held_bytes;
    size_t wanted =
        bytes <= room && pool->wanted_bytes <= room - bytes ? bytes : 0; /* no room: no thread is to grow for it */
    pool->wanted_bytes += wanted;
    cudaError_t awaited = growth_await_locked(pool);
    pool->wanted_bytes -= wanted;
    return awaited;
  }
  pool->growing = true;
  cudaError_t error = grow_alone_locked(pool, bytes, at_once);
  if (error == cudaSuccess)
    grown_tell(pool);
  pool_growing_end_locked(pool);
  return error;
}

uint64_t pool_moves(struct mam_pool *pool, int64_t end_ns) {
  struct wait wait = WAIT_INIT;
  while (true) {
    pool_lock(pool);
    bool moves = pool->growing;
    uint64_t count = atomic_load_explicit(&pool->growths, memory_order_relaxed); /* relaxed: written under the lock */
    pool_unlock(pool);
    if (!moves || now_ns() >= end_ns)
      return count;
    wait_more(&wait);
  }
}

/* ---- Opening ---- */

static cudaError_t first_chunk(struct mam_pool *pool) {
  const struct source *source = &pool->source;
  size_t bytes = pool->config.chunk_bytes;
  uintptr_t base;
  if (pool->config.in_chunks)
    return cudaSuccess;
  if (pool->config.user_limit_bytes > 0 && bytes > pool->config.user_limit_bytes) /* a client's */
    bytes = pool->config.user_limit_bytes;
  if (bytes > 0) {
    cudaError_t taken = chunk_take(pool, bytes, bytes, 1);
    return taken == cudaErrorMemoryAllocation && others_give_back(pool) ? chunk_take(pool, bytes, bytes, 1) : taken;
  }
  size_t limit_bytes = pool->config.limit_bytes > 0 ? pool->config.limit_bytes : SIZE_MAX;
  if (pool->config.user_limit_bytes > 0 && pool->config.user_limit_bytes < limit_bytes)
    limit_bytes = pool->config.user_limit_bytes;
  cudaError_t error = source_take_largest(source, pool->config.headroom_bytes, limit_bytes, &base, &bytes);
  return error == cudaSuccess ? chunk_adopt(pool, base, bytes, 1) : error;
}

/* An elastic pool reserves so many times as many addresses as there is memory.  Half of them stays unmapped, however
 * the mapped half is scattered, and has room for a large block.  Addresses cost nothing: 2 us for 64 TiB. */
enum { RESERVE_TIMES = 2 };

/* A limit counts up to here: it may be as large as a size_t, and a pool has four bytes for each 2 MiB of addresses. */
static const size_t reserve_limit_most_bytes = (size_t)16 << 40;

/* For how much memory an elastic pool has addresses: where the source lends more than it has, for all of the limit. */
static size_t memory_most_bytes(const struct mam_pool *pool, size_t total_bytes) {
  size_t limit_bytes = pool->config.limit_bytes;
  if (limit_bytes > reserve_limit_most_bytes)
    limit_bytes = reserve_limit_most_bytes;
  return pool->source.operations->overcommits && limit_bytes > total_bytes ? limit_bytes : total_bytes;
}

/* Reserves the addresses of an elastic pool: fewer, where a limit of the process forbids as many. */
static cudaError_t addresses_take(struct mam_pool *pool, size_t total_bytes) {
  const struct source *source = &pool->source;
  size_t bytes = whole_units(memory_most_bytes(pool, total_bytes)) * RESERVE_TIMES;
  uintptr_t base;
  cudaError_t error = source->operations->reserve(source, bytes, &base);
  while (error == cudaErrorMemoryAllocation && bytes > SOURCE_GRANULARITY_BYTES) {
    bytes = bytes / 2 & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
    error = source->operations->reserve(source, bytes, &base);
  }
  if (error != cudaSuccess)
    return error;
  error = chunk_attach(pool, base, bytes, 1, true);
  if (error != cudaSuccess)
    (void)source->operations->unreserve(source, base, bytes);
  return error;
}

static cudaError_t first_piece(struct mam_pool *pool) {
  size_t bytes = pool->config.chunk_bytes;
  pool_lock(pool);
  cudaError_t error = grow_alone_locked(pool, bytes, false);
  bool asked = pool->refused_bytes > 0;
  pool_unlock(pool);
  if (error == cudaErrorMemoryAllocation && !asked)
    return error_set(error, "the %s source has no addresses for %zu bytes", pool->source.operations->name, bytes);
  return error;
}

static cudaError_t elastic_open(struct mam_pool *pool) {
  size_t total_bytes = 0, headroom_bytes = pool->config.headroom_bytes;
  cudaError_t error = pool->source.operations->total(&pool->source, &total_bytes);
  if (error != cudaSuccess)
    return error;
  if (headroom_bytes > total_bytes / 2) /* as source_take_largest has it */
    headroom_bytes = total_bytes / 2;
  if (pool->config.limit_bytes == 0)
    pool->config.limit_bytes = (total_bytes - headroom_bytes) & ~(size_t)(SOURCE_GRANULARITY_BYTES - 1);
  if (pool->config.limit_bytes == 0)
    return error_set(cudaErrorMemoryAllocation, "the %s source has no memory", pool->source.operations->name);
  error = addresses_take(pool, total_bytes);
  if (error == cudaSuccess && pool->config.chunk_bytes > 0) {
    error = first_piece(pool);
    if (error != cudaSuccess) {
      (void)pool_chunks_give(pool);
      segment_set_clear(&pool->segments); /* no other thread has the pool yet */
    }
  }
  return error;
}

cudaError_t pool_first_chunk(struct mam_pool *pool) {
  const struct source_operations *operations = pool->source.operations;
  pool->config.elastic = operations->reserve != NULL && (pool->config.elastic || operations->chunk_take == NULL);
  cudaError_t error = pool->config.elastic ? elastic_open(pool) : first_chunk(pool);
  if (error == cudaSuccess && pool->config.yields) /* the first chunk, too */
    grown_tell(pool);
  return error;
}
