/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is recorded of the blocks of a heap, as the host reads it: sizes that were asked for, and sites.  Under the
 * heap's lock.
 */
#ifndef MAM_LIB_HEAP_RECORDS_H
#define MAM_LIB_HEAP_RECORDS_H

#include "heap/heap_gpu.h"
#include "mam/detail/heap_record.h"
#include "mam/heap.h"

struct heap_records {
  struct mam__site *sites; /* on the GPU: a block of the pool */
  char *names[MAM__SITES]; /* of files, NULL where none was seen yet; handed out, so kept as long as the heap */
  mam__u32 lines[MAM__SITES];
};

/* Makes an empty table of sites; on failure *records is left alone. */
cudaError_t heap_records_begin(const struct heap_gpu *gpu, MAM_Pool pool, struct heap_records **records);
/* gives: the table too, which is still a block of the pool.  records may be NULL. */
void heap_records_end(struct heap_records *records, bool gives);

/* Fills in what is recorded of blocks: requested_bytes, file and line, 0 and NULL where nothing is.  Works in memory of
 * the pool. */
cudaError_t heap_records_read(struct heap_records *records, const struct heap_gpu *gpu, MAM_Pool pool,
                              MAM_HeapBlock *blocks, size_t count);

#endif
