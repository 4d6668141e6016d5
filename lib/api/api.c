/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The public functions.  An allocation without a pool means the calling thread's environment (environment.h), which is
 * made if there is none.  What is rare is in api_serve.c.
 */
#include <unistd.h>

#include "api/api_serve.h"
#include "api/environment.h"
#include "api/reaper.h"
#include "base/error.h"
#include "base/last_word.h"
#include "base/library_call.h"
#include "front/front_quick.h"
#include "front/front_record.h"

/* ---- The end of the process ---- */

static pid_t loaded_by; /* a forked child reports nothing of its parent's */

__attribute__((constructor)) static void begin_of_process(void) { loaded_by = getpid(); }

/* What MAM_REPORT asks for.  Not of a client, which has a summary of its own. */
static void report_at_exit(void) {
  const struct options *options;
  if (environment_client_chunk_bytes() > 0 || environment_options(&options) != cudaSuccess)
    return;
  if (options->report == OPTIONS_REPORT_STATS)
    pools_tell_stats(stderr);
  else if (options->report == OPTIONS_REPORT_LEAKS)
    pools_tell_leaks(stderr);
}

/* From here on the driver may be gone: the reaper must not begin to call it.  What it has begun is not waited for: that
 * may wait for a kernel, and an exit must not. */
__attribute__((destructor)) static void end_of_process(void) {
  LIBRARY_CALL;
  reaper_end();
  record_end();
  if (getpid() == loaded_by)
    report_at_exit();
}

/* ---- The paper's five ---- */

cudaError_t MAM_Create(size_t maxSize) {
  if (maxSize == 0)
    return error_set(cudaErrorInvalidValue, "MAM_Create: maxSize is 0");
  return environment_create(maxSize, "MAM_Create");
}

cudaError_t MAM_Create_auto(void) { return environment_create(0, "MAM_Create_auto"); }

cudaError_t MAM_CreateWith(size_t maxSize, const char *source, const char *limit) {
  return environment_create_with(maxSize, source, limit, "MAM_CreateWith");
}

cudaError_t MAM_Destroy(void) {
  LIBRARY_CALL;
  uint64_t id = 0;
  cudaError_t error = cudaSuccess;
  (void)environment_id_now(&id); /* before the lock: it may load the driver */
  environment_enter();
  pool_abandon_gone();
  struct mam_pool *pool = id != 0 ? pool_find_default(id) : NULL;
  if (pool != NULL)
    error = environment_end_locked(pool, id, false);
  environment_await_locked(id); /* the end has come when this returns, whichever thread asked for it */
  environment_exit();
  front_trim();
  return error;
}

/* The thread's last front had nothing at hand.  Its id is asked for again: to keep it would cost the quick way more. */
static __attribute__((noinline)) cudaError_t malloc_missed(void **ptr, size_t size, const void *site) {
  struct front_request request = {.default_id = environment_id_quick(), .size = size, .site = site, .tried = true};
  return api_malloc_until(&request, ptr);
}

/* The thread sees no front (front_at_hand), or ptr is NULL. */
static __attribute__((noinline)) cudaError_t malloc_hidden(void **ptr, size_t size, const void *site) {
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMalloc: ptr is NULL");
  uintptr_t address = record_on() ? front_record_malloc(size, site, environment_id_quick()) : 0;
  if (address == 0)
    return malloc_missed(ptr, size, site);
  *ptr = (void *)address;
  return cudaSuccess;
}

static __attribute__((noinline)) cudaError_t malloc_shown(void **ptr, size_t size, const void *site,
                                                          struct front *front) {
  uintptr_t address = front_malloc_quick(front, size, site, environment_id_quick());
  if (__builtin_expect(address == 0, false))
    return malloc_missed(ptr, size, site);
  *ptr = (void *)address;
  return cudaSuccess;
}

/* Out of line, here and in MAM_CudaFree: a call that records saves no registers before it goes its own way.  A thread
 * that sees no front does not ask for the id here: so one that records asks once. */
cudaError_t MAM_CudaMalloc(void **ptr, size_t size) {
  const void *site = __builtin_return_address(0);
  struct front *front = front_at_hand;
  return __builtin_expect(ptr != NULL && front != NULL, true) ? malloc_shown(ptr, size, site, front)
                                                              : malloc_hidden(ptr, size, site);
}

cudaError_t MAM_CudaMallocTagged(void **ptr, size_t size, const void *tag) {
  struct front_request request = {
      .default_id = environment_id_quick(), .size = size, .site = __builtin_return_address(0), .tag = tag};
  if (ptr == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_CudaMallocTagged: ptr is NULL");
  uintptr_t address = 0;
  if (size <= POOL_SMALL_MOST_BYTES) /* mostly of a slab, whatever its tag */
    address = front_malloc_quick(front_at_hand, size, request.site, request.default_id);
  if (address == 0)
    return api_malloc_until(&request, ptr);
  *ptr = (void *)address;
  return cudaSuccess;
}

static __attribute__((noinline)) cudaError_t free_shown(uintptr_t address, struct front *front) {
  enum front_freed freed = front_free_quick(front, address);
  return __builtin_expect(freed == FRONT_FREED, true) ? cudaSuccess : api_free(address, freed);
}

cudaError_t MAM_CudaFree(void *ptr) {
  struct front *front = front_at_hand;
  if (ptr == NULL)
    return cudaSuccess;
  return __builtin_expect(front != NULL, true) ? free_shown((uintptr_t)ptr, front)
                                               : api_free((uintptr_t)ptr, FRONT_FREED_NOT);
}

/* ---- Errors ---- */

cudaError_t MAM_SetOutOfMemoryCallback(MAM_OutOfMemoryCallback callback, void *data) {
  last_word_set(callback, data);
  return cudaSuccess;
}

const char *MAM_LastError(void) { return error_last(); }
