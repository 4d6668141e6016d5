/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A source of chunks at imaginary addresses, for tests of the pool.  Nothing is mapped there, so a pool that touched
 * its memory would crash.  The source counts what is taken and given back, and refuses when it is told to.  Of GPU work
 * it knows only how often the pool waited.  One thread uses it; the atomic counters may be used by several.
 *
 *   imaginary_source    chunks, from IMAGINARY_FIRST_BASE up
 *   imaginary_elastic   reserves addresses and maps pieces
 *
 * imaginary_elastic knows what is mapped where.  It aborts on what a driver refuses or does not survive: mapping twice,
 * unmapping a part of a piece or several pieces, pieces that outlive their addresses.
 */
#ifndef MAM_TESTS_IMAGINARY_SOURCE_H
#define MAM_TESTS_IMAGINARY_SOURCE_H

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "pool/pool.h"

struct imaginary {
  _Atomic uintptr_t next_base; /* of the next chunk; no address is used twice */
  uintptr_t gap_bytes;         /* left between chunks */
  size_t capacity_bytes;       /* of all chunks together */
  _Atomic size_t taken_bytes;  /* not given back */
  _Atomic unsigned take_calls; /* refused calls included */
  _Atomic unsigned synchronizes;
  cudaError_t take_error; /* what the next takes answer; cudaSuccess: memory */
  cudaError_t synchronize_error;
  void (*on_synchronize)(void); /* called during a wait, if not NULL */
  /* map_fails_after: so many calls succeed before one answers map_error. */
  unsigned map_calls, unmap_calls, map_fails_after;
  cudaError_t map_error, unmap_error;
  void (*on_map)(void), (*on_unmap)(void); /* called during the call, if not NULL */
};

/* What is at each 2 MiB of the addresses that can be reserved, 16 GiB. */
enum { IMAGINARY_GRANULES = 8192 };
enum { IMAGINARY_NOTHING, IMAGINARY_RESERVED, IMAGINARY_PIECE, IMAGINARY_PIECE_GOES_ON };

static struct imaginary imaginary;
static unsigned char imaginary_granules[IMAGINARY_GRANULES];

#define IMAGINARY_FIRST_BASE ((uintptr_t)1 << 40)
static inline void imaginary_reset(void) {
  imaginary.next_base = IMAGINARY_FIRST_BASE;
  imaginary.gap_bytes = 0;
  imaginary.capacity_bytes = (size_t)1 << 40;
  imaginary.taken_bytes = 0;
  imaginary.take_calls = imaginary.synchronizes = 0;
  imaginary.take_error = imaginary.synchronize_error = cudaSuccess;
  imaginary.on_synchronize = imaginary.on_map = imaginary.on_unmap = NULL;
  imaginary.map_calls = imaginary.unmap_calls = imaginary.map_fails_after = 0;
  imaginary.map_error = imaginary.unmap_error = cudaSuccess;
  memset(imaginary_granules, IMAGINARY_NOTHING, sizeof imaginary_granules);
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

/* ---- Addresses first, memory later ---- */

static inline unsigned char *imaginary_granule(uintptr_t address) {
  return &imaginary_granules[(address - IMAGINARY_FIRST_BASE) / SOURCE_GRANULARITY_BYTES];
}

/* Whether the granules of a range are all the same. */
static inline bool imaginary_all(uintptr_t base, size_t bytes, int what) {
  for (uintptr_t at = base; at < base + bytes; at += SOURCE_GRANULARITY_BYTES)
    if (*imaginary_granule(at) != what)
      return false;
  return true;
}

static inline void imaginary_require(bool condition, const char *fault) {
  if (!condition) {
    (void)fprintf(stderr, "the imaginary source: %s\n", fault);
    abort();
  }
}

static inline void imaginary_set(uintptr_t base, size_t bytes, int what) {
  imaginary_require(bytes > 0 && (base | bytes) % SOURCE_GRANULARITY_BYTES == 0, "not a multiple of the granularity");
  memset(imaginary_granule(base), what, bytes / SOURCE_GRANULARITY_BYTES);
}

static inline cudaError_t imaginary_reserve(const struct source *source, size_t bytes, uintptr_t *base) {
  (void)source;
  uintptr_t first = (imaginary.next_base + SOURCE_GRANULARITY_BYTES - 1) & ~(uintptr_t)(SOURCE_GRANULARITY_BYTES - 1);
  if (bytes / SOURCE_GRANULARITY_BYTES > (size_t)(imaginary_granules + IMAGINARY_GRANULES - imaginary_granule(first)))
    return error_set(cudaErrorMemoryAllocation, "the imaginary source has no addresses left");
  imaginary.next_base = first + bytes;
  imaginary_set(first, bytes, IMAGINARY_RESERVED);
  *base = first;
  return cudaSuccess;
}

static inline cudaError_t imaginary_unreserve(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source;
  imaginary_require(imaginary_all(base, bytes, IMAGINARY_RESERVED), "addresses go while something is mapped there");
  imaginary_set(base, bytes, IMAGINARY_NOTHING);
  return cudaSuccess;
}

static inline cudaError_t imaginary_map(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source;
  imaginary.map_calls++;
  if (imaginary.on_map != NULL)
    imaginary.on_map();
  imaginary_require(imaginary_all(base, bytes, IMAGINARY_RESERVED), "something is mapped there, or nothing reserved");
  if (imaginary.map_error != cudaSuccess && imaginary.map_fails_after-- == 0) {
    imaginary.map_fails_after = 0;
    return error_set(imaginary.map_error, "the imaginary source refuses");
  }
  if (bytes > imaginary.capacity_bytes - imaginary.taken_bytes)
    return error_set(cudaErrorMemoryAllocation, "the imaginary source is empty");
  imaginary.taken_bytes += bytes;
  imaginary_set(base, bytes, IMAGINARY_PIECE_GOES_ON);
  *imaginary_granule(base) = IMAGINARY_PIECE;
  return cudaSuccess;
}

static inline cudaError_t imaginary_unmap(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source;
  const size_t first = SOURCE_GRANULARITY_BYTES;
  const unsigned char *end = imaginary_granule(base + bytes);
  imaginary.unmap_calls++;
  if (imaginary.on_unmap != NULL)
    imaginary.on_unmap();
  imaginary_require(*imaginary_granule(base) == IMAGINARY_PIECE, "no piece begins there");
  imaginary_require(imaginary_all(base + first, bytes - first, IMAGINARY_PIECE_GOES_ON), "more than a piece");
  imaginary_require(end == imaginary_granules + IMAGINARY_GRANULES || *end != IMAGINARY_PIECE_GOES_ON,
                    "a part of a piece");
  if (imaginary.unmap_error != cudaSuccess)
    return error_set(imaginary.unmap_error, "the imaginary source keeps it");
  imaginary.taken_bytes -= bytes;
  imaginary_set(base, bytes, IMAGINARY_RESERVED);
  return cudaSuccess;
}

static inline cudaError_t imaginary_remap(const struct source *source, uintptr_t base, size_t bytes, uintptr_t to,
                                          bool *there) {
  cudaError_t error = imaginary_unmap(source, base, bytes);
  *there = error != cudaSuccess;
  return error == cudaSuccess ? imaginary_map(source, to, bytes) : error;
}

static inline cudaError_t imaginary_total(const struct source *source, size_t *bytes) {
  (void)source;
  *bytes = imaginary.capacity_bytes;
  return cudaSuccess;
}

static const struct source_operations imaginary_operations = {.name = "imaginary",
                                                              .chunk_take = imaginary_take,
                                                              .chunk_give = imaginary_give,
                                                              .available = imaginary_available,
                                                              .synchronize = imaginary_synchronize,
                                                              .lives = imaginary_lives};

static const struct source_operations imaginary_elastic_operations = {.name = "imaginary elastic",
                                                                      .available = imaginary_available,
                                                                      .synchronize = imaginary_synchronize,
                                                                      .lives = imaginary_lives,
                                                                      .reserve = imaginary_reserve,
                                                                      .unreserve = imaginary_unreserve,
                                                                      .map = imaginary_map,
                                                                      .unmap = imaginary_unmap,
                                                                      .remap = imaginary_remap,
                                                                      .total = imaginary_total};

static const struct source imaginary_source = {.operations = &imaginary_operations};
static const struct source imaginary_elastic __attribute__((unused)) = {.operations = &imaginary_elastic_operations};

#endif
