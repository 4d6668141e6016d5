/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap as it was at one moment: a copy of its metadata in host memory, on which the host runs the same code as
 * kernels do (heap_core.h).  Knows nothing of the driver or of pools.
 */
#ifndef MAM_LIB_HEAP_VIEW_H
#define MAM_LIB_HEAP_VIEW_H

#include <stdbool.h>

#include "mam/detail/heap_record.h"
#include "mam/heap.h"

struct heap_view {
  struct mam__heap_control *control; /* with the slots; its addresses are the device's */
  mam__u64 *slots;
  mam__u32 count;                               /* of superblocks */
  struct mam__area areas[MAM_HEAP_SUPERBLOCKS]; /* words lead to the copies, base to the device */
  size_t held_count;                            /* chunks that slots held */
  size_t held_bytes;
};

/* Takes what slots hold out of the copies, so that what is used in them is live, and ends spans that are empty.  Once,
 * before what follows. */
void heap_view_settle(struct heap_view *view);

/* Each live block, superblock by superblock in the order of addresses, until visit says false. */
typedef bool heap_visit(void *closure, uint64_t address, uint64_t bytes);
void heap_view_walk(const struct heap_view *view, heap_visit *visit, void *closure);

/* Fills in everything but reserved_bytes, metadata_bytes, growth_count and struct_size; of records, that there are
 * none.
 */
void heap_view_info(const struct heap_view *view, MAM_HeapInfo *info);

/* Fills in what records say of so many blocks. */
void heap_view_records(const MAM_HeapBlock *blocks, size_t count, MAM_HeapInfo *info);

/* The report; NULL if the host has no memory.  recorded: info->live_count blocks with their records, or NULL. */
char *heap_view_report(const struct heap_view *view, const MAM_HeapInfo *info, const MAM_HeapBlock *recorded);

#endif
