/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Plain host memory as a source: what runs where there is no GPU.  Pages are the system's until they are touched, so
 * a large chunk costs nothing; but once touched they are the pool's, unless they are unmapped.  No GPU work uses it, so
 * there is nothing to wait for.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "cuda/source.h"

/* Maps more than asked for and cuts off both ends, for a chunk aligned as the driver's are. */
static cudaError_t aligned_mmap(size_t bytes, int protection, uintptr_t *base) {
  const size_t granularity = SOURCE_GRANULARITY_BYTES;
  size_t mapped_bytes = bytes + granularity;
  void *mapped = MAP_FAILED;
  errno = ENOMEM; /* if the sum has wrapped around */
  if (mapped_bytes > bytes)
    mapped = mmap(NULL, mapped_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    return error_set(cudaErrorMemoryAllocation, "mmap of %zu bytes: %s", bytes, strerror(errno));
  uintptr_t start = (uintptr_t)mapped;
  size_t before = (granularity - start % granularity) % granularity, after = granularity - before;
  if (before > 0)
    (void)munmap(mapped, before);
  if (after > 0)
    (void)munmap((void *)(start + before + bytes), after);
  *base = start + before;
  return cudaSuccess;
}

static cudaError_t host_take(const struct source *source, size_t bytes, uintptr_t *base) {
  (void)source;
  return aligned_mmap(bytes, PROT_READ | PROT_WRITE, base);
}

static cudaError_t host_give(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source;
  if (munmap((void *)base, bytes) != 0)
    return error_set(cudaErrorUnknown, "munmap of %zu bytes: %s", bytes, strerror(errno));
  return cudaSuccess;
}

static cudaError_t host_reserve(const struct source *source, size_t bytes, uintptr_t *base) {
  (void)source;
  return aligned_mmap(bytes, PROT_NONE, base);
}

static cudaError_t host_map(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source;
  if (mprotect((void *)base, bytes, PROT_READ | PROT_WRITE) != 0)
    return error_set(cudaErrorMemoryAllocation, "mprotect of %zu bytes: %s", bytes, strerror(errno));
  return cudaSuccess;
}

/* Access goes first: if that fails, the content is still there. */
static cudaError_t host_unmap(const struct source *source, uintptr_t base, size_t bytes) {
  (void)source;
  if (mprotect((void *)base, bytes, PROT_NONE) != 0)
    return error_set(cudaErrorUnknown, "mprotect of %zu bytes: %s", bytes, strerror(errno));
  (void)madvise((void *)base, bytes, MADV_DONTNEED); /* fails only for locked pages, which stay then */
  return cudaSuccess;
}

static cudaError_t host_remap(const struct source *source, uintptr_t base, size_t bytes, uintptr_t to, bool *there) {
  *there = true;
  cudaError_t error = host_map(source, to, bytes);
  if (error == cudaSuccess && (error = host_unmap(source, base, bytes)) != cudaSuccess)
    (void)host_unmap(source, to, bytes);
  return error;
}

static cudaError_t host_available(const struct source *source, size_t *bytes) {
  (void)source;
  long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages < 0 || page_bytes < 0)
    return error_set(cudaErrorUnknown, "the system does not say how much memory it has");
  *bytes = (size_t)pages * (size_t)page_bytes;
  return cudaSuccess;
}

static cudaError_t host_synchronize(const struct source *source) {
  (void)source;
  return cudaSuccess;
}

static bool host_lives(const struct source *source) {
  (void)source;
  return true;
}

const struct source_operations source_host = {.name = "host",
                                              .chunk_take = host_take,
                                              .chunk_give = host_give,
                                              .available = host_available,
                                              .synchronize = host_synchronize,
                                              .lives = host_lives,
                                              .reserve = host_reserve,
                                              .unreserve = host_give,
                                              .map = host_map,
                                              .unmap = host_unmap,
                                              .remap = host_remap,
                                              .total = host_available,
                                              .overcommits = true};
