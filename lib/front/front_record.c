/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a process that makes a record (record.h) does in place of the quick paths, which see no front there.
 */
#include "front/front_record.h"

static uint64_t context_of(const struct mam_pool *pool, uint64_t default_id) {
  return default_id != POOL_ANY_ID ? default_id : pool_record_context(pool);
}

uintptr_t front_record_malloc_on(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site,
                                 CUstream handle) {
  uintptr_t address = front_malloc_on_quick(front_mine, pool, default_id, size, site, handle);
  if (address != 0)
    record_allocated_quick(address, size, site, context_of(pool, default_id), true, (uintptr_t)handle);
  return address;
}

enum front_freed front_record_free_on(uintptr_t address, CUstream handle) {
  uint64_t before = record_before();
  enum front_freed freed = front_free_on_quick(front_mine, address, handle);
  if (freed <= FRONT_FREED_ZERO)
    record_freed(before, address, true, (uintptr_t)handle);
  return freed;
}

void front_record_request(const struct front_request *request, uintptr_t address, cudaError_t error) {
  struct record_call call = {.size = request->size,
                             .site = request->site,
                             .tag = request->tag,
                             .context = context_of(request->pool, request->default_id),
                             .on_stream = request->stream != NULL,
                             .stream = request->stream != NULL ? (uintptr_t)request->stream->handle : 0};
  if (error == cudaSuccess)
    record_allocated(address, &call);
  else if (error == cudaErrorMemoryAllocation)
    record_refused(&call);
}
