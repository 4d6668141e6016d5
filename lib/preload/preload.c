/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The hooks of cuMemAlloc, cuMemFree and questions about addresses.  Each asks libmam first.  What belongs to no pool
 * is passed on to the driver.
 */
#include "preload/preload.h"

#include <string.h>

#include "base/clock.h"

__thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) unsigned preload_depth;

/* ---- Allocating ---- */

CUstreamCaptureMode preload_relaxed_begin(const struct preload_real *real) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  preload_depth++;
  (void)PRELOAD_CALL(real, cuThreadExchangeStreamCaptureMode, &mode);
  return mode;
}

void preload_relaxed_end(const struct preload_real *real, CUstreamCaptureMode mode) {
  (void)PRELOAD_CALL(real, cuThreadExchangeStreamCaptureMode, &mode);
  preload_depth--;
}

/* A block of the current context's pool.  False if the pool has no memory for it. */
static bool pool_malloc(size_t bytes, const void *site, uintptr_t *address) {
  preload_depth++;
  cudaError_t error = mam_client.malloc(bytes, site, address);
  preload_depth--;
  return error == cudaSuccess;
}

/* Frees a block that the program has not got. */
static void pool_free(uintptr_t address) {
  cudaError_t error;
  preload_depth++;
  (void)mam_client.free(address, &error);
  preload_depth--;
}

/* Whether a block of a pool starts there. */
static bool is_block(uintptr_t address, struct client_block *block) {
  preload_depth++;
  bool is_base = mam_client.block_at(address, block) == CLIENT_LIVE && block->base == address;
  preload_depth--;
  return is_base;
}

/* The driver alone refuses an allocation and a free during a capture, unless it is relaxed.  Here they succeed, and the
 * capture goes on.  The graph may use the block, so its keeper gets it.  False if the host has no memory. */
static __attribute__((noinline)) bool kept_in_capture(const struct preload_real *real, uintptr_t address) {
  struct client_block block;
  return !is_block(address, &block) || preload_capture_keep(real, &block);
}

static __attribute__((noinline)) void served_count(const struct preload_real *real, size_t bytes, uint64_t start_ns) {
  preload_count_add(PRELOAD_MALLOCS, 1);
  preload_count_add(PRELOAD_MALLOC_BYTES, bytes);
  if (start_ns == 0)
    return;
  preload_count_add(PRELOAD_MALLOC_NS, preload_now_ns() - start_ns);
  preload_sample(real, bytes);
}

/* Serves an allocation and counts it.  False if it must be passed on.  site: where in the program. */
static bool served(const struct preload_real *real, size_t bytes, const void *site, CUdeviceptr *address) {
  uintptr_t found;
  bool counts = preload_counts();
  uint64_t start_ns = __builtin_expect(counts, false) ? preload_start_ns() : 0;
  if (!pool_malloc(bytes, site, &found))
    return false;
  if (__builtin_expect(preload_capturing(), false) && !kept_in_capture(real, found)) {
    pool_free(found);
    return false;
  }
  *address = found;
  if (__builtin_expect(counts, false))
    served_count(real, bytes, start_ns);
  return true;
}

static void pools_give_back(void) {
  preload_depth++;
  (void)mam_client.give_back(true);
  preload_depth--;
}

/* Serves an allocation for which the pool had no memory.  first: the driver was not asked yet.  It is to be asked
 * first: a pool that has reached its limit is none of its business.  But in a capture the driver's cuMemAlloc may end
 * the capture, so there all pools first give back what they can, and at last what is only held softly. */
static bool served_later(const struct preload_real *real, size_t bytes, const void *site, bool first,
                         CUdeviceptr *address) {
  if (first) {
    if (!preload_capturing())
      return false;
    do {
      pools_give_back();
      if (served(real, bytes, site, address))
        return true;
    } while (preload_soft_end());
    return false;
  }
  return served(real, bytes, site, address);
}

/* preload_again for an allocation.  What the device could not hold if it were empty no pool can make room for, and
 * other processes are not to give up what they keep for it. */
static bool again(const struct preload_real *real, size_t bytes, CUresult result, struct preload_tries *tries) {
  size_t free_bytes, total_bytes;
  if (result != CUDA_ERROR_OUT_OF_MEMORY)
    return false;
  preload_depth++;
  bool fits = PRELOAD_CALL(real, cuMemGetInfo_v2, &free_bytes, &total_bytes) != CUDA_SUCCESS || bytes <= total_bytes;
  preload_depth--;
  return fits && preload_again(result, tries);
}

/* Passes an allocation on, and again each time that pools give memory back; then, if serves, it may be served. */
static __attribute__((noinline)) CUresult alloc_passed(const struct preload_real *real, CUdeviceptr *address,
                                                       size_t bytes, const void *site, bool serves) {
  struct preload_tries tries = {0};
  CUresult result;
  do {
    if (serves && served_later(real, bytes, site, tries.own == 0, address))
      return CUDA_SUCCESS;
    preload_depth++;
    result = PRELOAD_CALL(real, cuMemAlloc_v2, address, preload_passed_bytes(bytes));
    preload_depth--;
  } while (again(real, bytes, result, &tries));
  preload_passed(serves);
  return preload_refused(result, bytes);
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  const struct preload_real *real = preload_real_get();
  bool serves = address != NULL && preload_serves(real, bytes);
  const void *site = serves ? preload_site() : NULL;
  if (serves && served(real, bytes, site, address))
    return CUDA_SUCCESS;
  return alloc_passed(real, address, bytes, site, serves);
}

/* The driver rounds the width of a row up to a multiple of this number of bytes, for elements of that size.  The first
 * call asks the driver for an allocation of one row of one byte, which stays: a free would wait for kernels, which may
 * wait for the program.  0 if that failed, or must wait for the end of a capture. */
static size_t pitch_unit(const struct preload_real *real, unsigned element_bytes) {
  static _Atomic size_t units[3]; /* relaxed: single numbers; all threads find the same */
  _Atomic size_t *unit = &units[element_bytes / 8];
  size_t known = atomic_load_explicit(unit, memory_order_relaxed);
  CUdeviceptr row;
  if (known != 0 || preload_capturing())
    return known;
  CUstreamCaptureMode mode = preload_relaxed_begin(real);
  if (PRELOAD_CALL(real, cuMemAllocPitch_v2, &row, &known, 1, 1, element_bytes) != CUDA_SUCCESS)
    known = 0;
  preload_relaxed_end(real, mode);
  atomic_store_explicit(unit, known, memory_order_relaxed);
  return known;
}

/* A pitched allocation: what the driver would answer as its pitch, and the bytes of all rows. */
struct pitched {
  size_t pitch, bytes;
};

/* False if the driver is to answer. */
static bool pitch_plan(const struct preload_real *real, size_t width, size_t height, unsigned element_bytes,
                       struct pitched *plan) {
  if (width == 0 || height == 0 || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) ||
      !preload_may_serve(real))
    return false;
  size_t unit = pitch_unit(real, element_bytes);
  if (unit == 0 || width > SIZE_MAX - unit)
    return false;
  plan->pitch = (width + unit - 1) / unit * unit;
  return !__builtin_mul_overflow(plan->pitch, height, &plan->bytes);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element_bytes) {
  const struct preload_real *real = preload_real_get();
  struct pitched plan = {0};
  bool planned = address != NULL && pitch != NULL && pitch_plan(real, width, height, element_bytes, &plan);
  bool serves = planned && preload_serves(real, plan.bytes);
  const void *site = serves ? preload_site() : NULL;
  bool done = serves && served(real, plan.bytes, site, address);
  size_t passed_bytes = planned ? preload_passed_bytes(plan.bytes) : 0;
  for (struct preload_tries tries = {0};
       !done && !(serves && served_later(real, plan.bytes, site, tries.own == 0, address));) {
    preload_depth++;
    CUresult result = passed_bytes > plan.bytes /* the driver's own pitched block might share a page */
                          ? PRELOAD_CALL(real, cuMemAlloc_v2, address, passed_bytes)
                          : PRELOAD_CALL(real, cuMemAllocPitch_v2, address, pitch, width, height, element_bytes);
    preload_depth--;
    if (again(real, plan.bytes, result, &tries)) /* 0 if there is no plan */
      continue;
    preload_passed(serves);
    if (result != CUDA_SUCCESS || passed_bytes <= plan.bytes)
      return preload_refused(result, width * height);
    done = true;
  }
  *pitch = plan.pitch;
  return CUDA_SUCCESS;
}

/* An address at which there is no memory.  The driver is asked about it in place of an address in a freed block of a
 * pool, so that its answer is the one for freed memory. */
static const CUdeviceptr NOBODYS = 1;

/* ---- Freeing ---- */

/* Whether a keeper has the block: then the program's free is done.  *error is what the program gets, an error if it had
 * freed the block before. */
static bool kept_back(uintptr_t address, cudaError_t *error) {
  enum preload_kept kept = preload_kept_free(address);
  *error = kept == PRELOAD_KEPT_FREED_BEFORE ? cudaErrorInvalidValue : cudaSuccess;
  return kept != PRELOAD_KEPT_NOT;
}

/* Frees the block of a pool.  False if the address is no pool's, and must be passed on. */
static bool freed(const struct preload_real *real, CUdeviceptr address, cudaError_t *error) {
  bool counts = preload_counts();
  uint64_t start_ns = __builtin_expect(counts, false) ? preload_start_ns() : 0;
  if (__builtin_expect(preload_capturing(), false) && !kept_in_capture(real, (uintptr_t)address)) {
    *error = cudaErrorMemoryAllocation;
    return true;
  }
  bool pooled = kept_back((uintptr_t)address, error);
  if (!pooled) {
    preload_depth++;
    pooled = mam_client.free((uintptr_t)address, error);
    preload_depth--;
  }
  if (__builtin_expect(counts, false) && pooled) {
    preload_count_add(PRELOAD_FREES, 1);
    if (start_ns != 0)
      preload_count_add(PRELOAD_FREE_NS, preload_now_ns() - start_ns);
  }
  return pooled;
}

/* The answer to a free, from that of the pool.  If the pool refused it because the driver has shut down, the program
 * gets the driver's answer. */
static CUresult refused(const struct preload_real *real, cudaError_t error) {
  CUcontext context;
  if (error != cudaErrorInvalidValue)
    return (CUresult)error;
  CUresult result = PRELOAD_CALL(real, cuCtxGetCurrent, &context);
  return result == CUDA_ERROR_DEINITIALIZED ? result : (CUresult)error;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  const struct preload_real *real = preload_real_get();
  cudaError_t error;
  if (address != 0 && preload_depth == 0 && preload_active() && freed(real, address, &error))
    return refused(real, error);
  preload_depth++;
  CUresult result = PRELOAD_CALL(real, cuMemFree_v2, address);
  preload_depth--;
  return result;
}

/* freed, in the order of a stream; not timed. */
static bool freed_async(const struct preload_real *real, CUdeviceptr address, CUstream stream, cudaError_t *error) {
  if (address == 0 || preload_depth != 0 || !preload_active())
    return false;
  struct client_block block;
  if (__builtin_expect(preload_capturing(), false) && is_block((uintptr_t)address, &block) &&
      !preload_capture_keep_async(real, &block, stream)) {
    *error = cudaErrorMemoryAllocation;
    return true;
  }
  bool pooled = kept_back((uintptr_t)address, error);
  if (!pooled) {
    preload_depth++;
    pooled = mam_client.free_async((uintptr_t)address, stream, error);
    preload_depth--;
  }
  preload_count_add(PRELOAD_FREES, pooled);
  return pooled;
}

/* The same for a stream that libmam could not use, which is an unknown error there.  What the driver says of the stream
 * is the answer. */
static CUresult refused_async(const struct preload_real *real, cudaError_t error, CUstream stream) {
  CUcontext context;
  if (error != cudaErrorUnknown)
    return refused(real, error);
  CUresult result = PRELOAD_CALL(real, cuStreamGetCtx, stream, &context);
  return result != CUDA_SUCCESS && result != PRELOAD_NO_FUNCTION ? result : (CUresult)error;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  const struct preload_real *real = preload_real_get();
  cudaError_t error;
  return freed_async(real, address, stream, &error) ? refused_async(real, error, stream)
                                                    : PRELOAD_CALL(real, cuMemFreeAsync, address, stream);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  const struct preload_real *real = preload_real_get();
  cudaError_t error;
  return freed_async(real, address, preload_stream_ptsz(stream), &error)
             ? refused_async(real, error, preload_stream_ptsz(stream))
             : PRELOAD_CALL(real, cuMemFreeAsync_ptsz, address, stream);
}

/* ---- Asking ---- */

/* An answer of the two is begun anew so often at most, and waits so long at most in all: a growth takes less, and a
 * trim may wait for the GPU. */
enum { INFO_ANSWERS_MOST = 8, INFO_WAIT_NS = 1000000000 };

/* Free memory is the driver's, what the device's pools could hand out, and what is only held softly for graphs.  A
 * chunk that goes from one to the other between the two questions would count twice or not at all, so they are asked
 * again after each such move.  Where moves do not cease, the sum is cut to what the program's blocks leave of the
 * device. */
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  const struct preload_real *real = preload_real_get();
  if (free_bytes == NULL || preload_depth != 0 || !preload_active())
    return PRELOAD_CALL(real, cuMemGetInfo_v2, free_bytes, total_bytes);
  size_t used_bytes = 0, available_bytes = 0;
  const void *pool = NULL;
  preload_depth++;
  int64_t end_ns = now_ns() + INFO_WAIT_NS;
  uint64_t before, moves = mam_client.moves(end_ns);
  CUresult result;
  unsigned answers = 0;
  do {
    before = moves;
    result = PRELOAD_CALL(real, cuMemGetInfo_v2, free_bytes, total_bytes);
    if (result == CUDA_SUCCESS) {
      available_bytes = mam_client.available_bytes(&used_bytes, &pool);
      moves = mam_client.moves(end_ns);
    }
  } while (moves != before && ++answers < INFO_ANSWERS_MOST);
  preload_depth--;
  if (result != CUDA_SUCCESS)
    return result;
  size_t soft_bytes = preload_soft_bytes(pool), sum = *free_bytes + available_bytes + soft_bytes;
  used_bytes -= soft_bytes < used_bytes ? soft_bytes : used_bytes;
  size_t total = total_bytes != NULL ? *total_bytes : SIZE_MAX, most = total > used_bytes ? total - used_bytes : 0;
  *free_bytes = sum < most ? sum : most;
  return result;
}

/* What is at an address, for questions that the driver would answer with a whole chunk.  Blocks of other processes that
 * were opened here count as live, with id 0; blocks that the program has freed count as dead, also while a keeper has
 * them.  In a forked child no block is live, and the driver is asked, which does not work there and says so. */
static enum client_found block_at(CUdeviceptr address, struct client_block *block) {
  if (preload_depth != 0 || !preload_active())
    return CLIENT_FOREIGN;
  enum client_found found = mam_client.block_at((uintptr_t)address, block);
  if (found == CLIENT_FOREIGN && preload_ipc_block_at((uintptr_t)address, &block->base, &block->bytes)) {
    block->id = 0;
    return CLIENT_LIVE;
  }
  if (found == CLIENT_LIVE && preload_kept_freed(block))
    found = CLIENT_DEAD;
  return found == CLIENT_DEAD && preload_is_child() ? CLIENT_FOREIGN : found;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
  const struct preload_real *real = preload_real_get();
  struct client_block block;
  enum client_found found = block_at(address, &block);
  if (found == CLIENT_FOREIGN)
    return PRELOAD_CALL(real, cuMemGetAddressRange_v2, base, bytes, address);
  if (found == CLIENT_DEAD)
    return PRELOAD_NO_FUNCTION; /* CUDA_ERROR_NOT_FOUND: what the driver answers to it */
  if (base != NULL)
    *base = block.base;
  if (bytes != NULL)
    *bytes = block.bytes;
  return CUDA_SUCCESS;
}

/* Numbers of CUpointer_attribute. */
enum { ATTRIBUTE_BUFFER_ID = 7, ATTRIBUTE_RANGE_START = 11, ATTRIBUTE_RANGE_BYTES = 12 };

/* Writes an attribute of the block in place of the chunk's, which the driver wrote.  Leaves other attributes alone. */
static void attribute_write(const struct client_block *block, int attribute, void *value) {
  const CUdeviceptr base = block->base;
  const unsigned long long id = block->id;
  if (value == NULL)
    return;
  if (attribute == ATTRIBUTE_RANGE_START)
    memcpy(value, &base, sizeof base);
  else if (attribute == ATTRIBUTE_RANGE_BYTES)
    memcpy(value, &block->bytes, sizeof block->bytes);
  else if (attribute == ATTRIBUTE_BUFFER_ID && id != 0) /* 0: a block of another process, the driver's id is right */
    memcpy(value, &id, sizeof id);
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  const struct preload_real *real = preload_real_get();
  struct client_block block;
  enum client_found found = block_at(address, &block);
  CUresult result =
      PRELOAD_CALL(real, cuPointerGetAttribute, value, attribute, found == CLIENT_DEAD ? NOBODYS : address);
  if (result == CUDA_SUCCESS && found == CLIENT_LIVE)
    attribute_write(&block, attribute, value);
  return result;
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address) {
  const struct preload_real *real = preload_real_get();
  struct client_block block;
  enum client_found found = block_at(address, &block);
  CUresult result =
      PRELOAD_CALL(real, cuPointerGetAttributes, count, attributes, values, found == CLIENT_DEAD ? NOBODYS : address);
  for (unsigned i = 0; result == CUDA_SUCCESS && found == CLIENT_LIVE && i < count; i++)
    attribute_write(&block, attributes[i], values[i]);
  return result;
}
