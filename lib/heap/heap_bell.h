/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Host memory that a GPU's kernels and copies reach: a word that kernels ring, and room for what is copied to the GPU
 * beside running kernels.
 *
 * The memory is the library's own, and only registered with the driver: the driver's own would go with its context,
 * under whoever looks at the word.  It is never given back while its context lives, since a kernel may still ring a
 * heap's bell that is gone; the next heap gets it, and takes such a ring for nothing.
 *
 * Knows contexts and the driver; nothing of heaps.
 */
#ifndef MAM_LIB_HEAP_BELL_H
#define MAM_LIB_HEAP_BELL_H

#include "cuda/context.h"

enum { HEAP_BELL_ZERO_BYTES = 256 << 10, HEAP_BELL_STAGING_BYTES = 64 << 10 };

struct heap_bell {
  struct heap_bell *next; /* of those that nobody has; protected by the lock in heap_bell.c */
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
