/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The last try of an allocation that is about to be refused.
 *
 * The pool has collected what all fronts kept, and found no room.  Two things may be wrong with that.  Small blocks
 * that were collected lie in slabs, and a slab that is partly used stays with its depot.  And where threads share the
 * pool, another thread may have taken what was collected before this one searched, or have blocks in hand: on the way
 * from its front to the pool, say, when it was taken off its processor.
 *
 * So the thread holds all fronts still, brings back what they have, and searches the depot and the pool.  Then it
 * compares numbers.  What the pool has given out is live, or lies in slabs; what the slabs of the class have given out
 * is live.  If there is more, some thread has it in hand, and this one lets all go on for a moment and tries again.
 *
 * The numbers are those of the moment of the search.  What the depot and the pool have given out is read under the lock
 * under which they are searched, and no thread counts a block as live while its front is held still.  So a block that
 * was in hand when it was looked for is in the difference, even if it has arrived by then.  One thing may hide it: a
 * free by the pool counts after the memory has come back, and for that moment the difference is too small.
 */
#include "base/clock.h"
#include "base/wait.h"
#include "front/front_inside.h"

/* How long a thread waits for others at most.  One that was taken off its processor has it back within a few
 * milliseconds, unless there are many.  No thread waits again while they have something in hand still. */
enum { IN_HAND_NS = 100000000 };

/* What a search found out that found nothing. */
struct search {
  size_t away;             /* blocks of the class that are in no slab and no batch */
  struct pool_block block; /* what the pool said */
};

/* The fronts are held still.  Whether some thread has what the search looked for in hand, as far as that can be told: a
 * block that another thread is about to count as live or as freed is taken for one. */
static bool in_hand(const struct mam_pool *pool, size_t size, const struct search *search) {
  const struct fronts *fronts = pool->fronts;
  struct pool_front_sum sum = fronts->gone;
  bool small = size <= POOL_SMALL_MOST_BYTES;
  unsigned class = small ? slab_class(size) : 0;
  int64_t class_live = fronts->gone_live[class];
  size_t slab_bytes = 0;
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool) {
    front_add_numbers(front, &sum);
    class_live += magazine_live(&front->magazines[class]);
  }
  for (unsigned i = 0; i < SLAB_CLASSES; i++)
    slab_bytes += slab_depot_bytes(&fronts->depots[i]);
  int64_t large_live = fronts_live_bytes(fronts) - (int64_t)sum.live_small_bytes;
  return (small && (int64_t)search->away > class_live) || search->block.slab_bytes > slab_bytes ||
         (int64_t)(search->block.used_bytes - search->block.slab_bytes) > large_live;
}

/* The fronts are held still.  *found: of the pool. */
static bool search_held(struct front *front, const struct front_request *request, const struct miss *miss,
                        struct search *search, uintptr_t *address, bool *found) {
  struct pool_order order = large_order(request, POOL_TAKE_LAST, miss);
  *search = (struct search){.away = 0};
  *found = false;
  if (request->size <= POOL_SMALL_MOST_BYTES)
    *address = small_serve_held(front, request, miss->pool, &search->away);
  if (*address == 0)
    *found = pool_take(miss->pool, &order, &search->block) == cudaSuccess;
  return *address != 0 || *found;
}

/* Of a pool that threads share. */
static cudaError_t shared_last(struct front *front, const struct front_request *request, struct miss *miss,
                               uintptr_t *address) {
  struct fronts *fronts = miss->pool->fronts;
  struct wait wait = WAIT_INIT;
  struct search search;
  int64_t end_ns = now_ns() + IN_HAND_NS;
  bool found, again;
  do {
    fronts_hold(miss->pool);
    bool done = search_held(front, request, miss, &search, address, &found);
    bool may_come = !done && in_hand(miss->pool, request->size, &search);
    again = may_come && !fronts->waited_in_vain && now_ns() < end_ns;
    if (!again)
      fronts->waited_in_vain = may_come;
    fronts_thaw(miss->pool);
    if (again)
      wait_more(&wait);
  } while (again);
  return found ? large_receive(front, request, &search.block, miss, address) : cudaSuccess;
}

cudaError_t last_malloc(struct front *front, const struct front_request *request, struct miss *miss,
                        uintptr_t *address) {
  cudaError_t error = cudaSuccess;
  size_t away;
  /* relaxed: a hint.  What is more than the limit never has room, and no thread is to be kept waiting for it. */
  bool possible = request->size <= atomic_load_explicit(&miss->pool->limit_hint, memory_order_relaxed);
  if (possible && !miss->live_exact) {
    error = shared_last(front, request, miss, address);
  } else if (possible && request->size <= POOL_SMALL_MOST_BYTES) {
    biased_enter(&front->lock);
    *address = small_serve_held(front, request, miss->pool, &away);
    biased_leave(&front->lock);
  }
  return error == cudaSuccess && *address == 0 ? pool_refuse(miss->pool, miss->generation, request->size) : error;
}
