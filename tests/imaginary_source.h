/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A source of chunks at imaginary addresses, for tests of the pool: nothing is ever mapped there, so a pool that
 * touched its memory would crash.  It counts what is taken and given, refuses when told to, and knows "GPU work" only
 * as the number of waits.  For one thread, but for the atomic counters.
 */
#ifndef MAM_TESTS_IMAGINARY_SOURCE_H
#define MAM_TESTS_IMAGINARY_SOURCE_H

#include <stdatomic.h>

#include "error.h"
#include "pool.h"

struct imaginary {
  _Atomic uintptr_t next_base; /* of the next chunk; chunks are never at the same place twice */
  uintptr_t gap_bytes;         /* left between chunks */
  size_t capacity_bytes;       /* of all chunks together */
  _Atomic size_t taken_bytes;  /* now */
  _Atomic unsigned take_calls; /* refused ones too */
  _Atomic unsigned synchronizes;
  cudaError_t take_error; /* what the next takes answer, cudaSuccess for memory */
  cudaError_t synchronize_error;
  void (*on_synchronize)(void); /* called in the middle of a wait, if not NULL */
};

static struct imaginary imaginary;

static inline void imaginary_reset(void) {
  imaginary.next_base = (uintptr_t)1 << 40;
  imaginary.gap_bytes = 0;
  imaginary.capacity_bytes = (size_t)1 << 40;
  imaginary.taken_bytes = 0;
  imaginary.take_calls = imaginary.synchronizes = 0;
  imaginary.take_error = imaginary.synchronize_error = cudaSuccess;
  imaginary.on_synchronize = NULL;
}

static cudaError_t imaginary_take(const struct source *source, size_t bytes, uintptr_t *base) {
  (void)source;
  imaginary.take_calls++;
  if (imaginary.take_error != cudaSuccess)
    return error_set(imaginary.take_error, "the imaginary source refuses");
  if (bytes > imaginary.capacity_bytes - imaginary.taken_bytes)
    return error_set(cudaErrorMemoryAllocation, "the imaginary source is empty");
  imaginary.taken_bytes += bytes;
  *base = atomic_fetch_add(&imaginary.next_base, bytes + imaginary.gap_bytes);
  return cudaSuccess;
}

static cudaError_t imaginary_give(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source, (void)base;
  imaginary.taken_bytes -= bytes;
  return cudaSuccess;
}

static cudaError_t imaginary_available(const struct source *source, size_t *bytes) {
  (void)source;
  *bytes = imaginary.capacity_bytes - imaginary.taken_bytes;
  return cudaSuccess;
}

static cudaError_t imaginary_synchronize(const struct source *source) {
  (void)source;
  imaginary.synchronizes++;
  if (imaginary.on_synchronize != NULL)
    imaginary.on_synchronize();
  return imaginary.synchronize_error;
}

static bool imaginary_lives(const struct source *source) {
  (void)source;
  return true;
}

static const struct source_operations imaginary_operations = {
    "imaginary", imaginary_take, imaginary_give, imaginary_available, imaginary_synchronize, imaginary_lives};

static const struct source imaginary_source = {.operations = &imaginary_operations};

#endif
