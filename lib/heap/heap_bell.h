/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Host memory that a GPU's kernels and copies reach: a word that kernels ring, and room for what is copied to the GPU
 * beside running kernels.
 *
 * The memory is the library's own and only registered with the driver: memory of the driver's would go with its context
 * while a thread reads the word.  It is never given back while its context lives, since a kernel may still ring the
 * bell of a heap that is gone.  The next heap gets it and ignores such a ring.
 *
 * Knows contexts and the driver; nothing of heaps.
 */
#ifndef MAM_LIB_HEAP_BELL_H
#define MAM_LIB_HEAP_BELL_H

#include "cuda/context.h"

/* So many zero bytes are copied at once: most of an empty superblock's metadata is zero. */
enum { HEAP_BELL_ZERO_BYTES = 256 << 10 };

/* So many other bytes are copied at once. */
enum { HEAP_BELL_STAGING_BYTES = 64 << 10 };

struct heap_bell {
  struct heap_bell *next; /* of the bells that no heap has; protected by the lock in heap_bell.c */
  /* Constant. */
  uint64_t context_id;
  uint64_t *word;          /* atomic: kernels write it */
  uint64_t word_on_device; /* its address for them */
  const void *zeros;       /* HEAP_BELL_ZERO_BYTES */
  void *staging;           /* HEAP_BELL_STAGING_BYTES, the owner's */
};

/* A bell for a context that lives.  cudaErrorNotSupported if the driver cannot register memory. */
cudaError_t heap_bell_take(const struct context *context, struct heap_bell **bell);
void heap_bell_give(struct heap_bell *bell);

#endif
