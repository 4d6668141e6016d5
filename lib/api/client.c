/* SPDX-License-Identifier: BSD-2-Clause */
#include "api/client.h"

#include <stdatomic.h>

#include "api/api_serve.h"
#include "api/environment.h"
#include "base/helper.h"
#include "base/library_call.h"
#include "front/front_quick.h"
#include "front/front_record.h"
#include "front/slab.h"
#include "pool/chunk_map.h"
#include "pool/pool_inside.h"

const void *const slab_exact = &mam_driver_detour;

/* ---- Options ---- */

static cudaError_t client_options(struct options_preload *options) {
  const struct options *pools;
  cudaError_t error = environment_options(&pools);
  return error == cudaSuccess ? options_read_preload(options) : error;
}

/* ---- Allocating and freeing ---- */

/* No environment is made for a client.  The quick question has no answer after an error of the GPU: then the driver has
 * to say what happened. */
static cudaError_t client_malloc_slow(size_t size, const void *site, uint64_t id, uintptr_t *address) {
  bool tried = id != 0;
  cudaError_t error = tried ? cudaSuccess : environment_id_now(&id); /* by which the quick question is known */
  if (error != cudaSuccess)
    return error;
  id = tried ? id : environment_id_quick();
  if (tried && record_on() && (*address = front_record_malloc(size, site, id)) != 0)
    return cudaSuccess;
  struct front_request request = {.default_id = id, .size = size, .site = site, .tried = tried};
  return id != 0 ? api_malloc(&request, address) : cudaErrorInvalidResourceHandle;
}

static cudaError_t client_malloc(size_t size, const void *site, uintptr_t *address) {
  uint64_t id = environment_id_quick();
  *address = front_malloc_quick(front_at_hand, size, site, id);
  return __builtin_expect(*address != 0, true) ? cudaSuccess : client_malloc_slow(size, site, id, address);
}

static void contexts_changed(void) {
  LIBRARY_CALL;
  environment_enter();
  pool_abandon_gone();
  environment_exit();
}

/* A context may have ended just now, and another's memory have come to the address, which the pool refuses.  Whether
 * the address is still a pool's. */
static bool is_pools_still(uintptr_t address, cudaError_t error) {
  if (error == cudaErrorInvalidValue)
    contexts_changed();
  return error != cudaErrorInvalidValue || front_pool_of(address) != NULL;
}

static bool client_free(uintptr_t address, cudaError_t *error) {
  enum front_freed freed = front_free_quick(front_at_hand, address);
  if (freed > FRONT_FREED_ZERO && front_pool_of(address) == NULL)
    return false;
  *error = freed == FRONT_FREED ? cudaSuccess : api_free(address, freed);
  return is_pools_still(address, *error);
}

static bool client_free_async(uintptr_t address, CUstream stream, cudaError_t *error) {
  if (front_pool_of(address) == NULL)
    return false;
  *error = MAM_CudaFreeAsync((void *)address, (cudaStream_t)stream);
  return is_pools_still(address, *error);
}

static void client_free_of(const struct client_block *block) {
  (void)api_free_of(block->pool, block->generation, block->base);
}

/* ---- What is where ---- */

/* No other live block begins at the address; of one that began there before, the low bits tell it mostly. */
static uint64_t block_id(uintptr_t base, uint64_t distinction) {
  uint64_t hash = distinction * 0x9e3779b97f4a7c15u >> 40;
  return (uint64_t)1 << 63 | (uint64_t)(base / POOL_ALIGNMENT_LEAST_BYTES) << 20 >> 1 | (hash & 0x7ffff);
}

static bool slab_block_at(const struct slab *slab, uintptr_t address, struct client_block *block) {
  size_t block_bytes = slab_class_bytes(slab->class);
  uintptr_t base = address - (address - slab->base) % block_bytes;
  uint32_t index = slab_index(slab, base);
  /* relaxed: a thread that asks about a live block has its address from the allocation */
  uint8_t code = index != UINT32_MAX ? atomic_load_explicit(slab_live(slab, index), memory_order_relaxed) : 0;
  if (code == 0)
    return false;
  size_t bytes = slab_requested_bytes(slab_live(slab, index), slab->class, code);
  *block = (struct client_block){.base = base, .bytes = bytes, .id = block_id(base, bytes)};
  return true;
}

static bool segment_block_at(struct mam_pool *pool, uintptr_t address, struct client_block *block) {
  LIBRARY_CALL;
  pool_lock(pool);
  struct segment *segment = pool->state == POOL_OPEN ? segment_at(&pool->segments, address) : NULL;
  bool live = segment != NULL && segment->state == SEGMENT_USED;
  /* acquire: what was asked for; pairs with the releases where blocks are handed out */
  uint64_t ticket = live ? atomic_load_explicit(&segment->ticket, memory_order_acquire) : 0;
  live = ticket % 2 == 1;
  if (live)
    *block = (struct client_block){.base = segment->base,
                                   .bytes = segment->as.used.requested_bytes,
                                   .id = block_id(segment->base, ticket),
                                   .generation = pool->generation};
  pool_unlock(pool);
  return live;
}

static uint64_t generation_of(struct mam_pool *pool) {
  LIBRARY_CALL;
  pool_lock(pool);
  uint64_t generation = pool->generation;
  pool_unlock(pool);
  return generation;
}

static enum client_found block_at(uintptr_t address, struct client_block *block) {
  struct mam_pool *pool = front_pool_of(address);
  struct client_block found;
  if (pool == NULL)
    return CLIENT_FOREIGN;
  struct slab *slab = page_map_find(address);
  /* acquire: as in free_small (front_quick.c) */
  bool in_slab = slab != NULL && atomic_load_explicit(&slab->pool, memory_order_acquire) != NULL;
  if (!(in_slab ? slab_block_at(slab, address, &found) : segment_block_at(pool, address, &found)) ||
      address - found.base >= found.bytes)
    return CLIENT_DEAD;
  *block = found;
  block->pool = pool;
  if (in_slab)
    block->generation = generation_of(pool);
  return CLIENT_LIVE;
}

static bool chunk_at(uintptr_t address, uintptr_t *base) {
  LIBRARY_CALL;
  struct mam_pool *pool = chunk_map_find(address);
  const struct pool_chunk *chunk;
  bool found = false;
  if (pool == NULL)
    return false;
  pool_lock(pool);
  if (pool->state == POOL_OPEN && pool->source.operations == &source_device)
    SLIST_FOREACH(chunk, &pool->chunks, link) {
      if (address - chunk->base < chunk->bytes) {
        *base = chunk->base;
        found = true;
      }
    }
  pool_unlock(pool);
  return found;
}

/* ---- The pool of a context ---- */

/* Of the current one if NULL; *id is its id.  NULL if it has none. */
static struct mam_pool *pool_of_context(CUcontext handle, uint64_t *id) {
  const struct driver *driver;
  struct context context;
  if (pool_first() == NULL || driver_get(&driver) != cudaSuccess) /* a first question must not initialise the driver */
    return NULL;
  if (handle == NULL)
    *id = context_current_id(driver);
  else
    *id = context_open_handle(driver, handle, &context) == cudaSuccess ? context.id : 0;
  return *id != 0 ? pool_find_default(*id) : NULL;
}

static size_t held_bytes(struct mam_pool *pool) {
  pool_lock(pool);
  size_t bytes = pool->held_bytes;
  pool_unlock(pool);
  return bytes;
}

/* ---- The pools of a device ---- */

/* The device of the current context, and that context's pool, NULL if it has none. */
struct here {
  CUdevice device;
  struct mam_pool *pool;
};

/* False if there is no pool at all, or no context is current. */
static bool here_find(struct here *here) {
  uint64_t id;
  *here = (struct here){.device = -1, .pool = pool_of_context(NULL, &id)};
  const struct driver *driver = driver_known();
  if (pool_first() == NULL || driver == NULL)
    return false;
  return (driver->cuCtxGetDevice != NULL && driver->cuCtxGetDevice(&here->device) == CUDA_SUCCESS) ||
         here->pool != NULL;
}

static bool context_is_on(const struct context *context, CUdevice device) {
  struct context_visit visit;
  CUdevice its;
  if (device < 0 || context_enter(context, &visit) != cudaSuccess)
    return false;
  bool is_on = context->driver->cuCtxGetDevice(&its) == CUDA_SUCCESS && its == device;
  context_leave(context, &visit);
  return is_on;
}

/* The first default pool from there in the list whose memory is the device's.  It is entered: the caller exits it. */
static struct mam_pool *pool_here(struct mam_pool *pool, const struct here *here) {
  for (; pool != NULL; pool = pool->next) {
    /* relaxed: a pool that begins or ends meanwhile may count or not */
    if (atomic_load_explicit(&pool->default_id, memory_order_relaxed) == 0 ||
        pool_enter(pool, POOL_ANY_ID) != cudaSuccess)
      continue;
    const struct source *source = &pool->source;
    if ((source->operations == &source_device || source->operations == &source_vmm) &&
        (pool == here->pool || context_is_on(&source->context, here->device)))
      return pool;
    pool_exit(pool);
  }
  return NULL;
}

static struct mam_pool *pool_here_next(struct mam_pool *pool, const struct here *here) {
  struct mam_pool *next = pool->next;
  pool_exit(pool);
  return pool_here(next, here);
}

/* A pool gives what it does not need before an allocation is refused, whichever context that is made in.  A chunk's
 * guard counts as well: it is the driver's when the chunk goes back. */
static size_t available_bytes(size_t *used_bytes, const void **which) {
  LIBRARY_CALL;
  struct here here;
  MAM_PoolInfo info = {.struct_size = sizeof info};
  size_t sum = 0;
  *used_bytes = 0;
  *which = NULL;
  if (!here_find(&here))
    return 0;
  *which = here.pool;
  for (struct mam_pool *pool = pool_here(pool_first(), &here); pool != NULL; pool = pool_here_next(pool, &here)) {
    if (pool_info(pool, POOL_ANY_ID, &info) != cudaSuccess)
      continue;
    size_t held = held_bytes(pool);
    *used_bytes += info.used_bytes;
    sum += held > info.used_bytes ? held - info.used_bytes : 0;
  }
  return sum;
}

static uint64_t moves(int64_t end_ns) {
  LIBRARY_CALL;
  struct here here;
  uint64_t sum = 0;
  if (!here_find(&here))
    return 0;
  for (struct mam_pool *pool = pool_here(pool_first(), &here); pool != NULL; pool = pool_here_next(pool, &here))
    sum += pool_moves(pool, end_ns);
  return sum;
}

/* ---- Sources and contexts ---- */

static bool source_is_device_memory(void) {
  const struct options *options;
  return environment_options(&options) == cudaSuccess &&
         (options->source == MAM_SOURCE_DEVICE || options->source == MAM_SOURCE_VMM);
}

static void end_begin(CUcontext context, CUdevice device, struct client_end *end) {
  end->call = library_call_begin();
  end->has_begun = context_end_begin(context, device, &end->end);
}

static void end_done(struct client_end *end) {
  if (end->has_begun)
    context_end_done(&end->end);
  library_call_end(&end->call);
}

/* ---- Giving back ---- */

static bool pool_gives_back(struct mam_pool *pool, bool waits) {
  if (pool_enter(pool, POOL_ANY_ID) != cudaSuccess)
    return false;
  size_t before = held_bytes(pool);
  if (pool->source.operations != &source_host) {
    if (waits)
      (void)reuse_synchronize(pool->reuse);
    (void)pool_trim(pool, POOL_ANY_ID, 0, false);
  }
  bool given = held_bytes(pool) < before;
  pool_exit(pool);
  return given;
}

static bool give_back(bool waits) {
  LIBRARY_CALL;
  bool given = false;
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next)
    given |= pool_gives_back(pool, waits);
  return given;
}

/* The reuse outlives the pool, and epochs never fall: so a wait that ends after the pool does no harm. */
static struct reuse *wait_begin(CUcontext context, uint64_t *epoch) {
  LIBRARY_CALL;
  uint64_t id;
  struct mam_pool *pool = pool_of_context(context, &id);
  if (pool == NULL || pool_enter(pool, id) != cudaSuccess)
    return NULL;
  struct reuse *reuse = pool->reuse;
  *epoch = reuse_wait_begin(reuse);
  pool_exit(pool);
  return reuse;
}

static void wait_end(struct reuse *reuse, uint64_t epoch) {
  LIBRARY_CALL;
  reuse_wait_end(reuse, epoch);
}

/* ---- Captures ---- */

static struct reuse *capture_begin(CUcontext context) {
  LIBRARY_CALL;
  struct source source;
  if (source_open(MAM_SOURCE_DEVICE, context, -1, &source) != cudaSuccess)
    return NULL;
  struct reuse *reuse = reuse_open(&source);
  if (reuse != NULL)
    reuse_capture_begin(reuse, true); /* a user until the end */
  source_close(&source);
  return reuse;
}

static void capture_end(struct reuse *reuse) {
  LIBRARY_CALL;
  (void)reuse_capture_end(reuse, true);
  (void)reuse_reach(reuse, reuse_epoch(reuse)); /* what was freed meanwhile; no fence if others capture */
  reuse_close(reuse);
}

static bool reuse_context_lives(const struct reuse *reuse) { return context_lives(&reuse->source.context); }

/* ---- Numbers ---- */

static void totals(struct client_totals *sum) {
  LIBRARY_CALL;
  MAM_PoolInfo info;
  struct pool_past_kind past = pool_past().defaults;
  *sum = (struct client_totals){.mallocs = past.malloc_count, .hits = past.hit_count, .waits = past.synchronize_count};
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    /* relaxed: a hint; a pool that ends meanwhile is not counted */
    uint64_t id = atomic_load_explicit(&pool->default_id, memory_order_relaxed);
    if (id == 0 || pool_info(pool, id, &info) != cudaSuccess)
      continue;
    sum->mallocs += info.malloc_count;
    sum->hits += info.magazine_hit_count + info.size_hit_count + info.tag_hit_count;
    sum->waits += info.synchronize_count;
    sum->held_bytes += info.reserved_bytes;
    sum->used_bytes += info.used_bytes;
    sum->waiting_bytes += info.waiting_bytes;
    sum->peak_used_bytes += info.peak_used_bytes;
    sum->pools++;
  }
  sum->peak_used_bytes = past.peak_used_bytes > sum->peak_used_bytes ? past.peak_used_bytes : sum->peak_used_bytes;
}

/* ---- Fork ---- */

static void client_fork_join(const struct fork_functions *functions) { fork_join(FORK_CLIENT, functions); }

const struct client mam_client = {.struct_size = sizeof(struct client),
                                  .options = client_options,
                                  .list_has = options_list_has,
                                  .chunks_set = environment_client_chunks_set,
                                  .source_is_device = source_is_device_memory,
                                  .malloc = client_malloc,
                                  .free = client_free,
                                  .free_async = client_free_async,
                                  .free_of = client_free_of,
                                  .block_at = block_at,
                                  .chunk_at = chunk_at,
                                  .available_bytes = available_bytes,
                                  .moves = moves,
                                  .give_back = give_back,
                                  .wait_begin = wait_begin,
                                  .wait_end = wait_end,
                                  .capture_begin = capture_begin,
                                  .capture_end = capture_end,
                                  .context_lives = reuse_context_lives,
                                  .end_begin = end_begin,
                                  .end_done = end_done,
                                  .contexts_changed = contexts_changed,
                                  .totals = totals,
                                  .fork_join = client_fork_join,
                                  .helper_start = helper_start,
                                  .helper_end = helper_end,
                                  .record_state = &record_state};
