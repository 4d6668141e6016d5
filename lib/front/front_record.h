/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The quick paths of a process that makes a record.  There front_at_hand is NULL, so the quick paths of front_quick.h
 * have nothing at hand, and a caller whose call they did not serve asks record_on() and then these.  What these do not
 * serve either goes the slow way, which records by itself (front_malloc, front_free and their kin).
 */
#ifndef MAM_LIB_FRONT_RECORD_H
#define MAM_LIB_FRONT_RECORD_H

#include "base/record.h"
#include "front/front_quick.h"

/* As front_malloc_quick, front_malloc_on_quick, front_free_quick and front_free_on_quick by the thread's first front.
 * What has no stream is inline, as the quick path is: so a recorded call saves registers once. */

static inline __attribute__((always_inline)) uintptr_t front_record_malloc(size_t size, const void *site,
                                                                           uint64_t default_id) {
  uintptr_t address = front_malloc_quick(front_mine, size, site, default_id);
  if (address != 0)
    record_allocated_quick(address, size, site, default_id, false, 0);
  return address;
}

static inline __attribute__((always_inline)) enum front_freed front_record_free(uintptr_t address) {
  uint64_t before = record_before();
  enum front_freed freed = front_free_quick(front_mine, address);
  if (freed <= FRONT_FREED_ZERO)
    record_freed(before, address, false, 0);
  return freed;
}

uintptr_t front_record_malloc_on(struct mam_pool *pool, uint64_t default_id, size_t size, const void *site,
                                 CUstream handle);
enum front_freed front_record_free_on(uintptr_t address, CUstream handle);

/* Records what came of a request that went the slow way. */
void front_record_request(const struct front_request *request, uintptr_t address, cudaError_t error);

#endif
