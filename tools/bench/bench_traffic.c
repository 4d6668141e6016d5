/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_traffic.h"

#include <stdlib.h>

#include "bench_numbers.h"

/* A power of two, and small enough for a core's cache. */
enum { step_count = 16384 };

size_t traffic_size_fit(size_t capacity_bytes, size_t slot_count) {
  double live_count = 0.5 * (double)slot_count;
  return numbers_log_uniform_fit(traffic_size_least_bytes, traffic_size_most_bytes, live_count,
                                 (double)capacity_bytes / 4);
}

bool traffic_begin(struct traffic *traffic, const struct allocator *allocator, uint64_t seed, size_t size_most_bytes) {
  struct numbers_random draw = numbers_seed(seed);
  *traffic = (struct traffic){.allocator = allocator, .steps = malloc(step_count * sizeof(struct traffic_step))};
  if (traffic->steps == NULL)
    return blocks_complain(allocator, "bookkeeping", step_count * sizeof(struct traffic_step),
                           cudaErrorMemoryAllocation);
  for (size_t i = 0; i < step_count; i++)
    traffic->steps[i] =
        (struct traffic_step){(uint32_t)numbers_below(&draw, traffic_slot_count),
                              (uint32_t)numbers_log_uniform(&draw, traffic_size_least_bytes, size_most_bytes)};
  /* After k steps a share of (1 - exp(-2k / slots)) / 2 is live; here k is the number of slots, which gives 43 %. */
  return traffic_run(traffic, traffic_slot_count);
}

bool traffic_run(struct traffic *traffic, size_t count) {
  const struct allocator *allocator = traffic->allocator;
  for (size_t i = 0; i < count; i++) {
    struct traffic_step step = traffic->steps[traffic->next];
    struct block *block = &traffic->slots[step.slot];
    traffic->next = (traffic->next + 1) & (step_count - 1);
    if (block->address == NULL) {
      block->bytes = step.bytes;
      cudaError_t error = allocator->allocate(&block->address, step.bytes);
      if (error != cudaSuccess) {
        block->address = NULL;
        return blocks_complain(allocator, "an allocation", step.bytes, error);
      }
    } else {
      cudaError_t error = allocator->release(block->address, block->bytes);
      block->address = NULL;
      if (error != cudaSuccess)
        return blocks_complain(allocator, "a free", block->bytes, error);
    }
  }
  return true;
}

bool traffic_end(struct traffic *traffic) {
  free(traffic->steps);
  traffic->steps = NULL;
  return blocks_release(traffic->allocator, traffic->slots, traffic_slot_count);
}
