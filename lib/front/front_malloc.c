/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An allocation that the quick path did not serve.
 */
#include "base/library_call.h"
#include "front/front_inside.h"
#include "front/front_record.h"

enum tried { TRIED_SERVED, TRIED_MISSED, TRIED_NO_FRONT };

/* Serves from what the front has at hand.  If it has nothing, fills *miss for the slow way and says that an allocation
 * is on its way, so that no thread takes the pool for empty meanwhile. */
static inline enum tried front_try(struct front *front, const struct front_request *request, bool tried_before,
                                   struct miss *miss, uintptr_t *address) {
  enum tried tried = TRIED_NO_FRONT;
  biased_enter(&front->lock);
  if (front_serves(front, request->pool, request->default_id)) {
    bool served =
        !tried_before && (*address = front_pop(front, request->size, request->site, request->tag, request->lane)) != 0;
    tried = served ? TRIED_SERVED : TRIED_MISSED;
    front->allocates = !served;
    if (!served)
      large_miss(front, request, miss);
  }
  biased_leave(&front->lock);
  return tried;
}

/* Nothing was at hand: by the depot, a fence, or the pool. */
static cudaError_t malloc_missed(struct front *front, const struct front_request *request, struct miss *miss,
                                 uintptr_t *address) {
  cudaError_t error = cudaSuccess;
  *address = 0;
  if (request->size <= POOL_SMALL_MOST_BYTES)
    error = small_serve(front, request, miss->pool, address);
  if (error == cudaSuccess && *address == 0)
    error = large_malloc(front, request, miss, address);
  if (error == (cudaError_t)CUDA_ERROR_NOT_READY)
    error = last_malloc(front, request, miss, address);
  biased_enter(&front->lock);
  front->allocates = false;
  biased_leave(&front->lock);
  return error;
}

/* tried: what came of the thread's last front, if it has one; *miss: as that says. */
static __attribute__((noinline)) cudaError_t malloc_slow(struct front *front, const struct front_request *request,
                                                         enum tried tried, struct miss *miss, uintptr_t *address) {
  LIBRARY_CALL;
  struct front_request ordered = *request;
  cudaError_t error = cudaSuccess;
  while (error == cudaSuccess && tried == TRIED_NO_FRONT) {
    error = front_get(request->pool, request->default_id, &front);
    if (error == cudaSuccess && request->stream != NULL)
      ordered.lane = lane_get(front, request->pool, request->stream);
    if (error == cudaSuccess)
      tried = front_try(front, &ordered, false, miss, address);
  }
  if (error == cudaSuccess && tried == TRIED_MISSED)
    error = malloc_missed(front, &ordered, miss, address);
  front_call_end();
  return error;
}

static cudaError_t malloc_any(const struct front_request *request, uintptr_t *address) {
  struct front *front = front_mine;
  struct miss miss;
  bool tries = front != NULL && request->stream == NULL; /* else the lane is to be found first */
  enum tried tried = tries ? front_try(front, request, request->tried, &miss, address) : TRIED_NO_FRONT;
  if (__builtin_expect(tried == TRIED_SERVED, true))
    return cudaSuccess;
  if (tried == TRIED_NO_FRONT && request->pool == NULL)
    return cudaErrorInvalidResourceHandle;
  return malloc_slow(front, request, tried, &miss, address);
}

cudaError_t front_malloc(const struct front_request *request, uintptr_t *address) {
  cudaError_t error = malloc_any(request, address);
  if (record_on())
    front_record_request(request, *address, error);
  if (front_at_hand == NULL || record_on()) /* the record has ended, or it is made */
    front_heed();
  else
    front_heed_if_hindered(front_mine);
  return error;
}
