/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which ranges of NVTX were open when a block was allocated.  Where one library allocates for others, all have its call
 * site, and the ranges tell more.
 */
#ifndef MAM_BENCH_RANGES_H
#define MAM_BENCH_RANGES_H

#include "bench_record.h"

/* Ranges within each other, by their names. */
struct range_path {
  uint32_t around; /* the path of the range around it; 0: none */
  uint32_t name;   /* index of record.texts: of the first text with this name */
};

struct ranges {
  struct range_path *paths; /* each once; the first is that of no range */
  size_t path_count;
  uint32_t *of_event; /* of each event of the record that allocates or is refused, the path; else 0 */
};

/* False if the host has no memory; call ranges_free in any case. */
bool ranges_make(struct ranges *ranges, const struct record *record);
void ranges_free(struct ranges *ranges);

/* How many bytes of a range's text are its name.  It ends where details follow, which differ each time: ", seq = 7" or
 * ", op_id = 12" of PyTorch. */
size_t range_name_length(const char *text);

#endif
