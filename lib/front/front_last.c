/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The last try of an allocation that is about to be refused.
 *
 * The pool has collected what all fronts kept, and found no room.  Three things may be wrong with that.  Small blocks
 * that were collected lie in slabs, and a slab that is partly used stays with its depot.  And where threads share the
 * pool, another thread may have taken what was collected before this one searched, or have blocks in hand: on the way
 * from its front to the pool, say, when it was taken off its processor.
 *
 * So the thread holds all fronts still, brings back what they have, and searches the depot and the pool.  Then it
 * compares numbers.  What the pool has given out is live, or lies in slabs; what the slabs of the class have given out
 * is live.  If there is more, some thread has it in hand, and this one lets all go on for a moment and tries again.
 *
 * What other threads have freed meanwhile may wait for the GPU.  So if nothing is in hand, the thread waits for the GPU
 * as long as a wait may help, tries all that an allocation tries, and searches again.
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
 * milliseconds; with 30 threads on two processors it took more than 100.  No thread waits again while they have
 * something in hand still. */
enum { IN_HAND_NS = 1000000000 };

/* What a search found: a block of the pool, or nothing, and then why. */
struct search {
  bool found;
  bool in_hand;                /* another thread has in hand what may do, and is worth waiting for */
  bool waits;                  /* enough waits for the GPU */
  struct slab_missing missing; /* what the depot of the class said */
  struct pool_block block;     /* what the pool said */
};

/* The fronts are held still.  Says why there was nothing, and whether some thread has what was looked for in hand, as
 * far as that can be told: a block that another thread is about to count as live or as freed is taken for one. */
static bool why_none(const struct mam_pool *pool, size_t size, struct search *search) {
  struct fronts *fronts = pool->fronts;
  const struct pool_block *said = &search->block;
  struct pool_front_sum sum = fronts->gone;
  bool small = size <= POOL_SMALL_MOST_BYTES, rests = search->missing.resting > 0;
  unsigned class = small ? slab_class(size) : 0;
  int64_t class_live = fronts->gone_live[class];
  size_t slab_bytes = 0;
  for (const struct front *front = fronts->first; front != NULL; front = front->next_of_pool) {
    front_add_numbers(front, &sum);
    class_live += magazine_live(&front->magazines[class]);
  }
  for (unsigned i = 0; i < SLAB_CLASSES; i++) {
    slab_bytes += slab_depot_bytes(&fronts->depots[i]);
    rests = rests || slab_rests(&fronts->depots[i]);
  }
  size_t resting = rests && slab_bytes > sum.live_small_bytes ? slab_bytes - sum.live_small_bytes : 0;
  search->waits = resting + said->waiting_bytes > 0 && size <= said->room_bytes + said->waiting_bytes + resting;
  int64_t large_live = fronts_live_bytes(fronts) - (int64_t)sum.live_small_bytes;
  return (small && (int64_t)search->missing.away > class_live) || said->slab_bytes > slab_bytes ||
         (int64_t)(said->used_bytes - said->slab_bytes) > large_live;
}

/* Holds the fronts still and looks for a block: at *address, or one of the pool.  Another thread is waited for until
 * end_ns, and not if that was in vain before. */
static void search_held(struct front *front, const struct front_request *request, const struct miss *miss,
                        int64_t end_ns, struct search *search, uintptr_t *address) {
  struct pool_order order = large_order(front, request, POOL_TAKE_LAST, miss);
  struct fronts *fronts = miss->pool->fronts;
  *search = (struct search){.found = false};
  fronts_hold(miss->pool);
  if (request->size <= POOL_SMALL_MOST_BYTES)
    *address = small_serve_held(front, request, miss->pool, &search->missing);
  if (*address == 0)
    search->found = pool_take(miss->pool, &order, &search->block) == cudaSuccess;
  bool in_hand = *address == 0 && !search->found && why_none(miss->pool, request->size, search);
  search->in_hand = in_hand && !fronts->waited_in_vain && now_ns() < end_ns;
  fronts->waited_in_vain = in_hand && !search->in_hand;
  fronts_thaw(miss->pool);
}

cudaError_t last_malloc(struct front *front, const struct front_request *request, struct miss *miss,
                        uintptr_t *address) {
  /* relaxed: a hint.  What is more than the limit never has room, and no thread is to be kept waiting for it. */
  bool possible = request->size <= atomic_load_explicit(&miss->pool->limit_hint, memory_order_relaxed);
  bool again = possible && (request->size <= POOL_SMALL_MOST_BYTES || !miss->live_exact);
  unsigned waits = request->at_once ? 0 : POOL_WAITS_MOST;
  int64_t end_ns = now_ns() + IN_HAND_NS;
  struct wait wait = WAIT_INIT;
  struct search search;
  while (again) {
    search_held(front, request, miss, end_ns, &search, address);
    if (search.found)
      return large_receive(front, request, &search.block, miss, address);
    if (*address != 0)
      return cudaSuccess;
    again = search.in_hand;
    if (again) {
      wait_more(&wait);
    } else if (search.waits && waits > 0) {
      cudaError_t error = pool_await_gpu(miss->pool, front->generation, request->size);
      if (error == cudaSuccess) /* other pools may have free memory now, too, and this one grows then */
        error = large_take(front, request, POOL_TAKE_ANY, miss, address);
      again = error == (cudaError_t)CUDA_ERROR_NOT_READY;
      if (!again && error != cudaErrorMemoryAllocation)
        return error;
      end_ns = now_ns() + IN_HAND_NS;
      waits--;
    }
  }
  return pool_refuse(miss->pool, front->generation, request->size);
}
