/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What libmam_preload asks of libmam beside mam.h: one table of functions, the only private symbol that libmam.so
 * exports.  So there is one pool for a context and one table of the driver in a process, whether the program itself is
 * linked with libmam or not.
 *
 * The client stands above api_serve.h: it may create default pools, and never holds a lock of the library when it
 * calls.
 */
#ifndef MAM_LIB_CLIENT_H
#define MAM_LIB_CLIENT_H

#include <pthread.h>
#include <stdbool.h>

#include "base/library_call.h"
#include "base/options.h"
#include "base/record.h"
#include "cuda/context.h"
#include "cuda/driver.h"

struct reuse;

/* What is at an address. */
enum client_found {
  CLIENT_FOREIGN, /* no memory of a pool */
  CLIENT_LIVE,    /* inside a live block, *block is it */
  CLIENT_DEAD     /* memory of a pool, in no live block */
};

struct client_block {
  uintptr_t base;
  size_t bytes; /* as asked for */
  uint64_t id;  /* no other live block has it, and it has the highest bit */
  struct mam_pool *pool;
  uint64_t generation; /* of the pool: no other pool there has it, before or after */
};

/* What the counts of a summary are made of, over all default pools, those that ended too; bytes of those that live, but
 * the peak. */
struct client_totals {
  uint64_t mallocs, hits, waits; /* hits: allocations that a thread served from what it keeps */
  size_t held_bytes, used_bytes, waiting_bytes, peak_used_bytes;
  unsigned pools;
};

/* A call of the driver that may end a context. */
struct client_end {
  struct library_call call;
  struct context_end end;
  bool has_begun;
};

struct client {
  size_t struct_size;

  /* As options_read_preload; refuses wrong options of pools, too. */
  cudaError_t (*options)(struct options_preload *options);
  bool (*list_has)(const char *list, const char *text); /* options_list_has */

  /* From now on a default pool that comes by itself takes chunks of so many bytes by cuMemAlloc, and further ones as it
   * grows, unless MAM_SOURCE names a source; it stays when its last block is freed.  0: as without a client. */
  void (*chunks_set)(size_t chunk_bytes);

  /* Whether MAM_SOURCE names device memory, so that its addresses can stand for those of cuMemAlloc. */
  bool (*source_is_device)(void);

  /* As MAM_CudaMalloc, in the calling thread's current context; without one, or after an error of the GPU,
   * cudaErrorInvalidResourceHandle and nothing happens.  size > 0.  site: where in the program. */
  cudaError_t (*malloc)(size_t size, const void *site, uintptr_t *address);

  /* As MAM_CudaFree, *error is what it answers.  False if the address is no pool's. */
  bool (*free)(uintptr_t address, cudaError_t *error);
  bool (*free_async)(uintptr_t address, CUstream stream, cudaError_t *error);

  /* Frees a block that block_at told of, if it is still there. */
  void (*free_of)(const struct client_block *block);

  enum client_found (*block_at)(uintptr_t address, struct client_block *block);

  /* The chunk of cuMemAlloc that an address lies in.  False if it lies in none. */
  bool (*chunk_at)(uintptr_t address, uintptr_t *base);

  /* What the default pools of the current context's device could hand out, or will when the GPU is done; what they have
   * handed out; and which one is the context's own, NULL if it has none. */
  size_t (*available_bytes)(size_t *used_bytes, const void **pool);

  /* How often these pools have taken memory from the driver or given some back.  While one does, its memory is neither
   * the driver's nor the pool's: waits for the end of that, until end_ns (now_ns) at most. */
  uint64_t (*moves)(int64_t end_ns);

  /* Has every pool on a device give back what it does not need; waits: after the GPU is done with what was freed.
   * Whether one gave something. */
  bool (*give_back)(bool waits);

  /* Around a call that waits for all work of a context, NULL the current one: if it succeeds, what was freed before it
   * began may be used again. */
  struct reuse *(*wait_begin)(CUcontext context, uint64_t *epoch);
  void (*wait_end)(struct reuse *reuse, uint64_t epoch);

  /* As MAM_CaptureBegin and MAM_CaptureEnd, of any context; NULL if it does not live or the host has no memory. */
  struct reuse *(*capture_begin)(CUcontext context);
  void (*capture_end)(struct reuse *reuse);

  /* Whether the context of a capture still lives. */
  bool (*context_lives)(const struct reuse *reuse);

  /* Around a call of the driver that may end a context, NULL: the device's primary one.  No thread of the library works
   * in it meanwhile.  From begin to done is one call of the library. */
  void (*end_begin)(CUcontext context, CUdevice device, struct client_end *end);
  void (*end_done)(struct client_end *end);

  /* A context may have ended: pools of those that have are forgotten, their memory not freed. */
  void (*contexts_changed)(void);

  void (*totals)(struct client_totals *totals);

  /* The client takes part in each fork. */
  void (*fork_join)(const struct fork_functions *functions);

  /* The client's threads are helpers of the library: helper_start and helper_end (base/helper.h). */
  int (*helper_start)(pthread_t *thread, void *(*run)(void *), void *closure);
  void (*helper_end)(void);

  const _Atomic(unsigned char) *record_state; /* whether calls are recorded */
};

extern const struct client mam_client __attribute__((visibility("default")));

#endif
