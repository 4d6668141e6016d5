/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where chunks come from: one small interface (the paper, section VI: the method fits any contiguous space).
 *
 * source_cuda.c holds those that ask the driver for whole chunks (device, pinned, managed), source_vmm.c device memory
 * that is mapped piece by piece into addresses reserved before, source_host.c plain host memory, which can do both.
 * Sources know nothing of pools, hold no lock and may be called by several threads at once, except for source_open and
 * source_close.
 */
#ifndef MAM_LIB_SOURCE_H
#define MAM_LIB_SOURCE_H

#include "cuda/context.h"

struct source;

struct source_operations {
  const char *name; /* as in MAM_SOURCE and in reports */
  /* A chunk of bytes, a multiple of SOURCE_GRANULARITY_BYTES, at *base.  cudaErrorMemoryAllocation if there is none.
   * On failure nothing changed.  Must not wait for the GPU.  NULL, as chunk_give, for a source that only reserves. */
  cudaError_t (*chunk_take)(const struct source *source, size_t bytes, uintptr_t *base);
  /* Gives a chunk back.  Waits for GPU work that may use it.  A chunk whose context is gone is gone too: success. */
  cudaError_t (*chunk_give)(const struct source *source, uintptr_t base, size_t bytes);
  /* How many bytes the source could give, as far as it knows: a guess, since others take too. */
  cudaError_t (*available)(const struct source *source, size_t *bytes);
  /* How many bytes the source has in all, free or taken by any process. */
  cudaError_t (*total)(const struct source *source, size_t *bytes);
  /* More than the total can be mapped: pages become memory when they are touched. */
  bool overcommits;
  /* Waits until all GPU work has finished that was submitted so far. */
  cudaError_t (*synchronize)(const struct source *source);
  /* Whether chunks taken are still there. */
  bool (*lives)(const struct source *source);

  /* Addresses first, memory later; all are NULL for a source that knows only whole chunks.  Bytes and addresses
   * are multiples of SOURCE_GRANULARITY_BYTES.  None of them waits for the GPU: a caller that takes memory away has
   * made sure that the GPU is done with it. */

  /* Reserves bytes of addresses at *base, without memory.  cudaErrorMemoryAllocation if there are not as many; on
   * failure nothing changed. */
  cudaError_t (*reserve)(const struct source *source, size_t bytes, uintptr_t *base);
  /* Gives reserved addresses back, the whole of a reservation at once, with no piece mapped in it.  This and unmap also
   * work when the context is gone. */
  cudaError_t (*unreserve)(const struct source *source, uintptr_t base, size_t bytes);
  /* Puts memory under a part of a reservation that has none: from then on one piece, with undefined content.
   * cudaErrorMemoryAllocation if there is none; on failure nothing changed.  To be used it needs access, too. */
  cudaError_t (*map)(const struct source *source, uintptr_t base, size_t bytes);
  /* Lets the GPU use a range of pieces: one call for all that were mapped together, as it is what costs most, above all
   * beside a running kernel.  NULL: they can be used at once. */
  cudaError_t (*access)(const struct source *source, uintptr_t base, size_t bytes);
  /* Takes the memory of one piece, as it was mapped, away.  On failure it is still there. */
  cudaError_t (*unmap)(const struct source *source, uintptr_t base, size_t bytes);
  /* Takes the memory of one piece away and puts it under another part of a reservation that has none.  Cheaper than
   * unmap and map, as nothing is given back.  The content is undefined.  To be used there it needs access.  On failure
   * nothing is mapped at to, and *there says whether the piece is still where it was. */
  cudaError_t (*remap)(const struct source *source, uintptr_t base, size_t bytes, uintptr_t to, bool *there);
};

/* So many peers of a device are given access, further ones are not: a struct source is small and of a fixed size. */
enum { SOURCE_PEERS_MOST = 31 };

struct source {
  const struct source_operations *operations;
  struct context context; /* of those that ask the driver */
  CUdevice device;        /* of source_vmm, as all that follows */
  bool exports, rdma;     /* its memory can be exported as a file descriptor; can be reached by other adapters */
  unsigned peer_count;
  CUdevice peers[SOURCE_PEERS_MOST]; /* devices that can reach its memory, and are to */
};

/* Chunks are taken in multiples of this: the granularity of the driver's own blocks. */
enum { SOURCE_GRANULARITY_BYTES = 2 << 20 };

/* Opens a source of a kind for a context: handle if not NULL, else the primary context of the device with that ordinal
 * if that is not negative, else the current context.  Host memory needs and asks for none of them.
 * cudaErrorNotSupported where the driver cannot do what the kind needs.
 * On failure *source is left alone.  Undone by source_close. */
cudaError_t source_open(MAM_Source kind, CUcontext handle, int ordinal, struct source *source);
void source_close(struct source *source);

/* Takes the largest chunk that succeeds, of at most limit_bytes, leaving headroom_bytes of what is available. */
cudaError_t source_take_largest(const struct source *source, size_t headroom_bytes, size_t limit_bytes, uintptr_t *base,
                                size_t *bytes);

extern const struct source_operations source_device, source_pinned, source_managed, source_host, source_vmm;

/* What all sources of a CUDA context answer alike (source_cuda.c). */
cudaError_t source_cuda_available(const struct source *source, size_t *bytes);
cudaError_t source_cuda_synchronize(const struct source *source);
bool source_cuda_lives(const struct source *source);

/* source_vmm.c: the second half of source_open, once the context is known. */
cudaError_t source_vmm_open(struct source *source);

#endif
