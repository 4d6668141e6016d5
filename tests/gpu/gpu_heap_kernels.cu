/* SPDX-License-Identifier: BSD-2-Clause */
#include <mam/device.cuh>

#include <cooperative_groups.h>

#include "gpu_heap_kernels.h"

static const unsigned threads_per_block = 128;

static unsigned grid_for(unsigned threads) { return (threads + threads_per_block - 1) / threads_per_block; }

static __device__ void count(unsigned long long *number, unsigned long long more) {
  if (more != 0)
    atomicAdd(number, more);
}

/* ---- A block ----------------------------------------------------------------------------------------------------- */

static __device__ void block_write(unsigned long long block, unsigned bytes, uint32_t seed) {
  for (unsigned i = 0; i < bytes / 4; i++)
    ((uint32_t *)block)[i] = gpu_pattern_word(seed, i);
  for (unsigned i = bytes / 4 * 4; i < bytes; i++)
    ((uint8_t *)block)[i] = gpu_pattern_byte(seed, i);
}

/* How many bytes differ from the pattern.  Volatile, so that memory is read and not a cache. */
static __device__ unsigned block_changes(unsigned long long block, unsigned bytes, uint32_t seed) {
  unsigned changes = 0;
  for (unsigned i = 0; i < bytes / 4; i++) {
    uint32_t difference = ((const volatile uint32_t *)block)[i] ^ gpu_pattern_word(seed, i);
    for (; difference != 0; difference >>= 8)
      changes += (difference & 0xFF) != 0;
  }
  for (unsigned i = bytes / 4 * 4; i < bytes; i++)
    changes += ((const volatile uint8_t *)block)[i] != gpu_pattern_byte(seed, i);
  return changes;
}

static __device__ uint32_t seed_of(const struct gpu_heap_traffic &traffic, unsigned request) {
  return traffic.seed * 0x01000193u + request;
}

/* Makes a request and counts everything that its answer says. */
static __device__ unsigned long long ask(mam_device_heap heap, unsigned long long bytes, struct gpu_heap_tally *tally) {
  mam_heap_status why = MAM_HEAP_BAD;
  void *block = mam_malloc_why(heap, bytes, &why);
  unsigned status = (unsigned)why < GPU_HEAP_STATUSES ? (unsigned)why : MAM_HEAP_BAD;
  count(block != NULL ? &tally->served : &tally->refused[status], 1);
  count(&tally->contradictions, (block != NULL) != (why == MAM_HEAP_OK));
  count(&tally->misaligned, (unsigned long long)block % 16 != 0);
  count(&tally->outside, block != NULL && !mam_heap_contains(heap, (char *)block + bytes - 1));
  count(&tally->outside, block != NULL && !mam_heap_contains(heap, block));
  count(&tally->too_small, block != NULL && mam_malloc_size(heap, block) < bytes);
  return (unsigned long long)block;
}

/* ---- Many blocks ------------------------------------------------------------------------------------------------- */

/* Whether this thread makes a request itself.  The lanes of a warp may differ. */
static __device__ bool asks(const struct gpu_heap_traffic &traffic, unsigned request) {
  unsigned warp_mask = (request / 32 + traffic.seed) * 0x9E3779B1u | 1u << (request / 32 % 32);
  if (traffic.lanes == GPU_HEAP_IN_TILES)
    return cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block()).thread_rank() == 0;
  return traffic.lanes != GPU_HEAP_SOME || (warp_mask >> request % 32 & 1) != 0;
}

static __global__ void allocate_kernel(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned long long *slots,
                                       struct gpu_heap_tally *tally) {
  unsigned request = blockIdx.x * blockDim.x + threadIdx.x;
  bool wants = asks(traffic, request) && request < traffic.count && slots[request] == 0;
  unsigned bytes = wants ? gpu_heap_bytes(&traffic, request) : 0;
  unsigned long long block = 0;
  if (traffic.lanes == GPU_HEAP_ONE_BY_ONE) {
    for (unsigned lane = 0; lane < 32; lane++)
      if (wants && threadIdx.x % 32 == lane)
        block = ask(heap, bytes, tally);
  } else if (wants)
    block = ask(heap, bytes, tally);
  if (block == 0)
    return;
  block_write(block, bytes, seed_of(traffic, request));
  slots[request] = block;
}

static __global__ void check_kernel(struct gpu_heap_traffic traffic, const unsigned long long *slots,
                                    struct gpu_heap_tally *tally) {
  unsigned request = blockIdx.x * blockDim.x + threadIdx.x;
  if (request < traffic.count && slots[request] != 0)
    count(&tally->changed_bytes,
          block_changes(slots[request], gpu_heap_bytes(&traffic, request), seed_of(traffic, request)));
}

static __global__ void release_kernel(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned shift,
                                      unsigned first, unsigned step, unsigned long long *slots,
                                      struct gpu_heap_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= traffic.count)
    return;
  unsigned request = (thread + shift) % traffic.count;
  if (request % step != first || slots[request] == 0)
    return;
  mam_free(heap, (void *)slots[request]);
  slots[request] = 0;
  count(&tally->freed, 1);
}

/* ---- Churn in one kernel ----------------------------------------------------------------------------------------- */

enum { held_blocks = 4 };

static __global__ void churn_kernel(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned rounds,
                                    struct gpu_heap_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned long long blocks[held_blocks] = {0};
  unsigned requests[held_blocks];
  if (thread >= traffic.count)
    return;
  for (unsigned round = 0; round < rounds + held_blocks; round++) {
    unsigned place = round % held_blocks, request = round * traffic.count + thread;
    if (blocks[place] != 0) {
      count(&tally->changed_bytes,
            block_changes(blocks[place], gpu_heap_bytes(&traffic, requests[place]), seed_of(traffic, requests[place])));
      mam_free(heap, (void *)blocks[place]);
      count(&tally->freed, 1);
    }
    blocks[place] = 0;
    requests[place] = request;
    /* Each thread skips other rounds, so that warps are rarely whole. */
    if (round >= rounds || (request * 0x9E3779B1u >> 20) % 4 == 0)
      continue;
    blocks[place] = ask(heap, gpu_heap_bytes(&traffic, request), tally);
    if (blocks[place] != 0)
      block_write(blocks[place], gpu_heap_bytes(&traffic, request), seed_of(traffic, request));
  }
}

/* ---- Blocks that change hands in one kernel ---------------------------------------------------------------------- */

/* The first words of a block that goes to another thread have its size and seed. */
static __device__ void parcel_write(unsigned long long block, unsigned bytes, uint32_t seed) {
  block_write(block + 8, bytes - 8, seed);
  ((volatile unsigned *)block)[0] = bytes;
  ((volatile unsigned *)block)[1] = seed;
}

static __device__ void parcel_open(mam_device_heap heap, unsigned long long block, struct gpu_heap_tally *tally) {
  unsigned bytes = ((volatile unsigned *)block)[0], seed = ((volatile unsigned *)block)[1];
  if (bytes < 16 || bytes > 1u << 20)
    count(&tally->changed_bytes, 4);
  else
    count(&tally->changed_bytes, block_changes(block + 8, bytes - 8, seed));
  mam_free(heap, (void *)block);
  count(&tally->freed, 1);
}

static __global__ void exchange_kernel(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned rounds,
                                       unsigned long long *slots, struct gpu_heap_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= traffic.count)
    return;
  for (unsigned round = 0; round < rounds; round++) {
    unsigned request = round * traffic.count + thread, bytes = gpu_heap_bytes(&traffic, request);
    unsigned long long block = ask(heap, bytes, tally);
    if (block != 0)
      parcel_write(block, bytes, seed_of(traffic, request));
    __threadfence(); /* the parcel is written before another thread can find it */
    unsigned long long other = atomicExch(&slots[(request * 0x9E3779B1u >> 7) % traffic.count], block);
    __threadfence(); /* and what was found is read after that */
    if (other != 0)
      parcel_open(heap, other, tally);
  }
}

static __global__ void drain_kernel(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned long long *slots,
                                    struct gpu_heap_tally *tally) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= traffic.count || slots[thread] == 0)
    return;
  parcel_open(heap, slots[thread], tally);
  slots[thread] = 0;
}

/* ---- One call ---------------------------------------------------------------------------------------------------- */

static __global__ void free_address_kernel(mam_device_heap heap, unsigned long long address) {
  mam_free(heap, (void *)address);
}

static __global__ void contains_kernel(mam_device_heap heap, const unsigned long long *addresses, int *answers) {
  answers[threadIdx.x] = mam_heap_contains(heap, (const void *)addresses[threadIdx.x]);
}

static __global__ void ask_kernel(mam_device_heap heap, unsigned long long bytes, unsigned long long *slot,
                                  struct gpu_heap_tally *tally) {
  *slot = ask(heap, bytes, tally);
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

/* ---- Trees ---- */

/* A binary tree in memory of the heap.  The nodes of a level have a size of their own. */
struct tree {
  tree *branches[2];
  unsigned long long number;
};

static __device__ __noinline__ tree *tree_grow(mam_device_heap heap, unsigned levels, unsigned long long number) {
  tree *made = (tree *)mam_malloc(heap, sizeof(tree) + levels % 4 * 48);
  if (made == NULL)
    return NULL;
  made->number = number;
  for (unsigned i = 0; i < 2; i++)
    made->branches[i] = levels > 1 ? tree_grow(heap, levels - 1, 2 * number + i) : NULL;
  return made;
}

/* Returns how many nodes have another number. */
static __device__ __noinline__ unsigned tree_fell(mam_device_heap heap, tree *made, unsigned long long number) {
  unsigned wrong = made->number != number;
  for (unsigned i = 0; i < 2; i++)
    if (made->branches[i] != NULL)
      wrong += tree_fell(heap, made->branches[i], 2 * number + i);
  mam_free(heap, made);
  return wrong;
}

static __global__ void trees_kernel(mam_device_heap heap, unsigned levels, unsigned rounds,
                                    struct gpu_heap_tally *tally) {
  for (unsigned round = 0; round < rounds; round++) {
    tree *made = tree_grow(heap, levels, 1 + threadIdx.x);
    atomicAdd(made != NULL ? &tally->served : &tally->refused[MAM_HEAP_FULL], 1ull);
    if (made != NULL)
      atomicAdd(&tally->changed_bytes, (unsigned long long)tree_fell(heap, made, 1 + threadIdx.x));
  }
}

/* ---- Launches ---- */

extern "C" cudaError_t gpu_heap_trees(mam_device_heap heap, unsigned blocks, unsigned levels, unsigned rounds,
                                      struct gpu_heap_tally *tally, cudaStream_t stream) {
  trees_kernel<<<blocks, 128, 0, stream>>>(heap, levels, rounds, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_allocate(mam_device_heap heap, struct gpu_heap_traffic traffic,
                                         unsigned long long *slots, struct gpu_heap_tally *tally, cudaStream_t stream) {
  allocate_kernel<<<grid_for(traffic.count), threads_per_block, 0, stream>>>(heap, traffic, slots, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_check(struct gpu_heap_traffic traffic, const unsigned long long *slots,
                                      struct gpu_heap_tally *tally, cudaStream_t stream) {
  check_kernel<<<grid_for(traffic.count), threads_per_block, 0, stream>>>(traffic, slots, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_release(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned shift,
                                        unsigned first, unsigned step, unsigned long long *slots,
                                        struct gpu_heap_tally *tally, cudaStream_t stream) {
  release_kernel<<<grid_for(traffic.count), threads_per_block, 0, stream>>>(heap, traffic, shift, first, step, slots,
                                                                            tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_churn(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned rounds,
                                      struct gpu_heap_tally *tally, cudaStream_t stream) {
  churn_kernel<<<grid_for(traffic.count), threads_per_block, 0, stream>>>(heap, traffic, rounds, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_exchange(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned rounds,
                                         unsigned long long *slots, struct gpu_heap_tally *tally, cudaStream_t stream) {
  exchange_kernel<<<grid_for(traffic.count), threads_per_block, 0, stream>>>(heap, traffic, rounds, slots, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_drain(mam_device_heap heap, struct gpu_heap_traffic traffic, unsigned long long *slots,
                                      struct gpu_heap_tally *tally, cudaStream_t stream) {
  drain_kernel<<<grid_for(traffic.count), threads_per_block, 0, stream>>>(heap, traffic, slots, tally);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_free_address(mam_device_heap heap, unsigned long long address, cudaStream_t stream) {
  free_address_kernel<<<1, 1, 0, stream>>>(heap, address);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_contains(mam_device_heap heap, const unsigned long long *addresses, unsigned count,
                                         int *answers, cudaStream_t stream) {
  contains_kernel<<<1, count, 0, stream>>>(heap, addresses, answers);
  return cudaGetLastError();
}

extern "C" cudaError_t gpu_heap_ask(mam_device_heap heap, unsigned long long bytes, unsigned long long *slot,
                                    struct gpu_heap_tally *tally, cudaStream_t stream) {
  ask_kernel<<<1, 1, 0, stream>>>(heap, bytes, slot, tally);
  return cudaGetLastError();
}
