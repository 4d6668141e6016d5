/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Live blocks: an array of them, which are allocated, freed and checked through an allocator's table.
 *
 * It says on stderr what an allocator refused or did wrong.  It knows nothing of time.
 */
#ifndef MAM_BENCH_BLOCKS_H
#define MAM_BENCH_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>

#include "bench_allocators.h"

struct block {
  void *address; /* NULL: no block */
  size_t bytes;
};

/* Says that a call failed, and with what.  Always false. */
bool blocks_complain(const struct allocator *allocator, const char *what, size_t bytes, cudaError_t error);

/* Opens or closes the allocator's pool.  False after a complaint. */
bool blocks_pool_open(const struct allocator *allocator, size_t chunk_bytes);
bool blocks_pool_close(const struct allocator *allocator);

/* Allocates one block.  False, after a complaint, if it is refused. */
bool blocks_allocate(const struct allocator *allocator, struct block *block, size_t bytes);

/* The same with a tag.  An allocator that knows no tags allocates as before. */
bool blocks_allocate_tagged(const struct allocator *allocator, struct block *block, size_t bytes, const void *tag);

/* Frees all of count blocks and leaves NULLs.  If one free fails, the others still happen, and the answer is false. */
bool blocks_release(const struct allocator *allocator, struct block *blocks, size_t count);

/* Whether every block has its alignment and no two overlap.  Sorts the blocks by address. */
bool blocks_check(const struct allocator *allocator, struct block *blocks, size_t count);

/* Waits until what was freed is free.  False, after a complaint, if that fails. */
bool blocks_settle(const struct allocator *allocator);

#endif
