/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The allocators under test, ours and the baselines, behind one small table of functions.
 *
 * It knows how each is called, and not what is measured.  Ours is called through mam.h alone, as programs call it.  The
 * baselines call the C library, or the driver functions in which calls of the CUDA runtime end.
 */
#ifndef MAM_BENCH_ALLOCATORS_H
#define MAM_BENCH_ALLOCATORS_H

#include <stdbool.h>
#include <stddef.h>

#include "bench_machine.h"
#include "mam.h"

struct allocator {
  const char *name;
  size_t alignment;   /* of its addresses, in bytes */
  bool bounded;       /* refuses when the memory under test is full; an unbounded one goes on */
  bool sized;         /* a pool with as much memory as open is told */
  const char *remark; /* a footnote: what its figures include; NULL for none */

  cudaError_t (*open)(size_t chunk_bytes); /* before a test; 0 for all memory */
  cudaError_t (*close)(void);              /* after it */
  cudaError_t (*settle)(void); /* between batches: waits until what was freed is free; NULL: nothing to wait for */
  cudaError_t (*allocate)(void **address, size_t bytes);
  cudaError_t (*release)(void *address, size_t bytes);
  /* Allocates for the place in a program that tag stands for; NULL: it knows no tags. */
  cudaError_t (*allocate_tagged)(void **address, size_t bytes, const void *tag);
  cudaError_t (*reserved)(size_t *bytes); /* held from the source now, or at most since open; NULL: not known */
  cudaError_t (*metadata)(size_t *bytes); /* host memory for its own data; NULL: not known */
  const char *(*last_error)(void);        /* about the calling thread's last failing call */
};

enum { allocators_most = 4 };

/* By which calls our allocator, and a baseline that has such calls, allocates and frees. */
enum allocator_calls {
  calls_plain,
  calls_tagged,  /* with a tag for each power of two */
  calls_legacy,  /* on the legacy default stream */
  calls_stream,  /* all threads on one created stream */
  calls_streams, /* each thread on a created stream of its own */
  calls_count
};
extern const char *const allocator_calls_names[calls_count];

/* Writes the allocators for a source to list, ours first, and returns their number.  machine must stay, and have a GPU
 * unless source is MAM_SOURCE_HOST.  A baseline whose functions the driver lacks is left out. */
size_t allocators_select(const struct allocator *list[allocators_most], MAM_Source source, enum allocator_calls calls,
                         const struct machine *machine);

/* Our allocator once more, for tests that allocate with tags.  It is not in the list. */
const struct allocator *allocators_tagged(void);

#endif
