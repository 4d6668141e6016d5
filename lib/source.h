/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where chunks come from: one small interface (the paper, section VI: the method fits any contiguous space).
 *
 * source_cuda.c holds those that ask the driver (device, pinned, managed), source_host.c plain host memory.  A source
 * that grows and shrinks in place (cuMemAddressReserve, cuMemMap) is to stand beside them.  Sources know nothing of
 * pools, hold no lock and may be called by several threads at once, except for source_open and source_close.
 */
#ifndef MAM_LIB_SOURCE_H
#define MAM_LIB_SOURCE_H

#include "context.h"

struct source;

struct source_operations {
  const char *name; /* as in MAM_SOURCE and in reports */
  /* A chunk of bytes, a multiple of SOURCE_GRANULARITY_BYTES, at *base.  cudaErrorMemoryAllocation if there is none.
   * On failure nothing changed.  Must not wait for the GPU. */
  cudaError_t (*chunk_take)(const struct source *source, size_t bytes, uintptr_t *base);
  /* Gives a chunk back.  Waits for GPU work that may use it.  A chunk whose context is gone is gone too: success. */
  cudaError_t (*chunk_give)(const struct source *source, uintptr_t base, size_t bytes);
  /* How many bytes the source could give, as far as it knows: a guess, since others take too. */
  cudaError_t (*available)(const struct source *source, size_t *bytes);
  /* Waits until all GPU work has finished that was submitted so far. */
  cudaError_t (*synchronize)(const struct source *source);
  /* Whether chunks taken are still there. */
  bool (*lives)(const struct source *source);
};

struct source {
  const struct source_operations *operations;
  struct context context; /* of those that ask the driver */
};

/* Chunks are taken in multiples of this: the granularity of the driver's own blocks. */
enum { SOURCE_GRANULARITY_BYTES = 2 << 20 };

/* Opens a source of a kind for a context: handle if not NULL, else the primary context of the device with that ordinal
 * if that is not negative, else the current context.  Host memory needs and asks for none of them.
 * On failure *source is left alone.  Undone by source_close. */
cudaError_t source_open(MAM_Source kind, CUcontext handle, int ordinal, struct source *source);
void source_close(struct source *source);

/* Takes the largest chunk that succeeds, of at most limit_bytes, leaving headroom_bytes of what is available. */
cudaError_t source_take_largest(const struct source *source, size_t headroom_bytes, size_t limit_bytes, uintptr_t *base,
                                size_t *bytes);

extern const struct source_operations source_device, source_pinned, source_managed, source_host;

#endif
