/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_clock.h"

enum { checked_every = 512 };

/* An address for each place of the program. */
static const char tags[training_tag_count];

bool replay_make(struct replay *replay, const struct bench *bench, const struct allocator *allocator,
                 const struct training *training) {
  size_t slot_count = training->slot_count;
  *replay = (struct replay){.bench = bench,
                            .allocator = allocator,
                            .training = training,
                            .slots = calloc(slot_count, sizeof(struct block)),
                            .sorted = malloc(slot_count * sizeof(struct block))};
  return (replay->slots != NULL && replay->sorted != NULL) ||
         blocks_complain(allocator, "bookkeeping", 2 * slot_count * sizeof(struct block), cudaErrorMemoryAllocation);
}

void replay_free(struct replay *replay) {
  free(replay->slots);
  free(replay->sorted);
}

/* ---- One replay -------------------------------------------------------------------------------------------------- */

static bool replay_sample(struct replay *replay) {
  size_t bytes = 0;
  if (replay->allocator->reserved != NULL) {
    cudaError_t error = replay->allocator->reserved(&bytes);
    if (error != cudaSuccess)
      return blocks_complain(replay->allocator, "asking what is reserved", 0, error);
    replay->reserved_most = bytes > replay->reserved_most ? bytes : replay->reserved_most;
  }
  if (machine_free_bytes(replay->bench->machine, &bytes) && bytes < replay->free_least)
    replay->free_least = bytes;
  return true;
}

static bool replay_check(const struct replay *replay) {
  memcpy(replay->sorted, replay->slots, replay->training->slot_count * sizeof *replay->slots);
  return blocks_check(replay->allocator, replay->sorted, replay->training->slot_count);
}

static bool replay_allocate(struct replay *replay, const struct training_step *step) {
  const struct allocator *allocator = replay->allocator;
  struct block *block = &replay->slots[step->slot];
  void *address = NULL;
  cudaError_t error = allocator->allocate_tagged != NULL
                          ? allocator->allocate_tagged(&address, step->bytes, &tags[step->tag])
                          : allocator->allocate(&address, step->bytes);
  replay->refused = error == cudaErrorMemoryAllocation && replay->may_be_refused;
  if (error != cudaSuccess)
    return !replay->refused && blocks_complain(allocator, "an allocation", step->bytes, error);
  *block = (struct block){address, step->bytes};
  return !replay->sampled || replay_sample(replay);
}

static bool replay_release(struct replay *replay, const struct training_step *step) {
  struct block *block = &replay->slots[step->slot];
  cudaError_t error = replay->allocator->release(block->address, block->bytes);
  block->address = NULL;
  return error == cudaSuccess || blocks_complain(replay->allocator, "a free", block->bytes, error);
}

/* It ends when all frees have taken effect, like an iteration that reads its loss. */
static bool replay_iteration(struct replay *replay, size_t from, size_t to) {
  bool good = true;
  uint64_t start_ns = clock_now_ns();
  for (size_t i = from; i < to && good; i++) {
    const struct training_step *step = &replay->training->steps[i];
    good = step->bytes > 0 ? replay_allocate(replay, step) : replay_release(replay, step);
    if (replay->sampled && i % checked_every == 0)
      good = good && replay_check(replay);
  }
  replay->spent_ns += clock_now_ns() - start_ns;
  return good && blocks_settle(replay->allocator);
}

bool replay_run(struct replay *replay) {
  const struct training *training = replay->training;
  bool good = true;
  replay->refused = false;
  replay->reserved_most = 0;
  replay->free_least = SIZE_MAX;
  replay->spent_ns = 0;
  for (size_t i = 0; i < training->iterations && good; i++)
    good = replay_iteration(replay, i == 0 ? 0 : training->ends[i - 1], training->ends[i]);
  return blocks_release(replay->allocator, replay->slots, training->slot_count) && good;
}

/* ---- The smallest pool ---------------------------------------------------------------------------------------- */

bool replay_search(replay_fits *fits, void *what, size_t peak_bytes, size_t most_bytes, double *smallest_bytes) {
  const size_t granularity_bytes = replay_granularity_bytes;
  bool good = true;
  size_t grain = peak_bytes / 1000 / granularity_bytes * granularity_bytes + granularity_bytes;
  size_t low = peak_bytes / granularity_bytes * granularity_bytes;
  size_t high = low + granularity_bytes;
  *smallest_bytes = (double)NAN;
  while (good && high <= most_bytes && !fits(what, high, &good)) {
    size_t step = high - low + grain;
    low = high;
    high += 2 * step;
  }
  if (high > most_bytes)
    return good;
  while (good && high - low > grain) {
    size_t middle = low + (high - low) / 2 / granularity_bytes * granularity_bytes;
    if (fits(what, middle, &good))
      high = middle;
    else
      low = middle;
  }
  *smallest_bytes = (double)high;
  return good;
}

static bool pool_fits(void *what, size_t pool_bytes, bool *good) {
  struct replay *replay = what;
  if (!blocks_pool_open(replay->allocator, pool_bytes)) {
    *good = false;
    return false;
  }
  bool fits = replay_run(replay);
  *good = blocks_pool_close(replay->allocator) && (fits || replay->refused);
  return fits && *good;
}

bool replay_smallest(struct replay *replay, double *smallest_bytes) {
  replay->may_be_refused = true;
  bool good =
      replay_search(pool_fits, replay, replay->training->peak_bytes, replay->bench->capacity_bytes, smallest_bytes);
  replay->may_be_refused = false;
  return good;
}
