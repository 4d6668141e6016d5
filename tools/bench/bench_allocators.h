/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The allocators under test, ours and the baselines, behind one small table of functions.
 *
 * Knows how each is called, and nothing of what is measured.  Ours is called through mam.h alone, as programs call it.
 * The baselines call the driver functions that the CUDA runtime's calls end in, or the C library.
 */
#ifndef MAM_BENCH_ALLOCATORS_H
#define MAM_BENCH_ALLOCATORS_H

#include <stdbool.h>
#include <stddef.h>

#include "bench_machine.h"
#include "mam.h"

struct allocator {
  const char *name;
  size_t alignment;   /* that its addresses must have */
  bool bounded;       /* refuses when the memory under test is full; others would go on beyond it */
  bool sized;         /* a pool whose memory is what open is given */
  const char *remark; /* a footnote: what its figures include; NULL for none */

  cudaError_t (*open)(size_t chunk_bytes); /* before a test; 0 for all the memory there is */
  cudaError_t (*close)(void);              /* after it */
  cudaError_t (*settle)(void); /* between batches: waits until what was freed is free; NULL: nothing to do */
  cudaError_t (*allocate)(void **address, size_t bytes);
  cudaError_t (*release)(void *address, size_t bytes);
  /* As allocate, for the place in a program that tag stands for; NULL: it knows no tags. */
  cudaError_t (*allocate_tagged)(void **address, size_t bytes, const void *tag);
  cudaError_t (*reserved)(size_t *bytes); /* taken from the source: now, or the most since open; NULL: it cannot say */
  cudaError_t (*metadata)(size_t *bytes); /* host memory for its bookkeeping, as it counts; NULL: it cannot say */
  const char *(*last_error)(void);        /* about the calling thread's last failing call */
};

enum { allocators_most = 4 };

/* By which calls blocks are allocated and freed, by ours and by those that know such calls. */
enum allocator_calls {
  calls_plain,
  calls_tagged,  /* with a tag for each power of two */
  calls_legacy,  /* on the legacy default stream */
  calls_stream,  /* on one created stream, by all threads */
  calls_streams, /* on a created stream for each thread */
  calls_count
};
extern const char *const allocator_calls_names[calls_count];

/* Writes those that belong together for a source to list, ours first, and returns their number.  machine must stay, and
 * have a GPU unless source is MAM_SOURCE_HOST.  A baseline that the driver does not have is left out. */
size_t allocators_select(const struct allocator *list[allocators_most], MAM_Source source, enum allocator_calls calls,
                         const struct machine *machine);

/* Ours once more, for tests that allocate with tags.  Not in the list. */
const struct allocator *allocators_tagged(void);

#endif
