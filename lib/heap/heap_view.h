/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A device heap as it was at one moment: a copy of its metadata in host memory.  The host reads it by the functions of
 * heap_core.h, which kernels use as well.  This file does not know the driver or pools.
 *
 *   heap_look.c copies  heap_view_settle             heap_view_walk     each live block
 *   the metadata   -->  makes "used" mean "live" --> heap_view_info     numbers
 *                                                    heap_view_report   a report in JSON
 */
#ifndef MAM_LIB_HEAP_VIEW_H
#define MAM_LIB_HEAP_VIEW_H

#include <stdbool.h>

#include "mam/detail/heap_record.h"
#include "mam/heap.h"

struct heap_view {
  struct mam__heap_control *control;            /* with the slots; addresses in it are the device's */
  mam__u32 count;                               /* how many superblocks there are */
  struct mam__area areas[MAM_HEAP_SUPERBLOCKS]; /* words points to the copy, base is the address on the device */
  size_t held_count;                            /* chunks that slots held, and blocks that parks held */
  size_t held_bytes;
};

/* Takes out of the copies what slots and parks hold, and ends empty spans.  What is used in the copies afterwards is
 * live.  The caller calls it once, before the functions below. */
void heap_view_settle(struct heap_view *view);

/* Calls visit for each live block, superblock by superblock in the order of addresses, until it returns false. */
typedef bool heap_visit(void *closure, uint64_t address, uint64_t bytes);
void heap_view_walk(const struct heap_view *view, heap_visit *visit, void *closure);

/* Fills in all of *info except reserved_bytes, metadata_bytes, growth_count and struct_size.  The numbers of records
 * become 0. */
void heap_view_info(const struct heap_view *view, MAM_HeapInfo *info);

/* Fills in what the records of so many blocks say. */
void heap_view_records(const MAM_HeapBlock *blocks, size_t count, MAM_HeapInfo *info);

/* The report, which the caller frees.  NULL if the host has no memory.  recorded: info->live_count blocks with their
 * records, or NULL. */
char *heap_view_report(const struct heap_view *view, const MAM_HeapInfo *info, const MAM_HeapBlock *recorded);

#endif
