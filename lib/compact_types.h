/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the kernels of defragmentation (compact_core.h) and the host that directs them both know.
 */
#ifndef MAM_LIB_COMPACT_TYPES_H
#define MAM_LIB_COMPACT_TYPES_H

#include <mam/heap_core.h>

enum {
  MAM_COMPACT_TARGETS = 64, /* n at most */
  MAM_COMPACT_GROUP = 8,    /* pages that one thread looks at */
  MAM_COMPACT_GROUPS = 256, /* of a tile: as many threads as a team has */
  MAM_COMPACT_TILE = MAM_COMPACT_GROUP * MAM_COMPACT_GROUPS,
  MAM_SPAN_CHUNKS = 32 * MAM_PAGE_WORDS, /* at most */
  MAM_UNIT_BYTES = 16                    /* copied by one thread at a time */
};

/* What was found of a heap's typed spans. */
struct mam_compact_found {
  mam_u64 spans, pages, live, candidates;
  mam_u64 free_level; /* sum over the spans of the free share of each, in 1/65536 */
};

/* What was done to them: sources that were merged, their objects, the bytes of those objects' chunks, their pages. */
struct mam_compact_done {
  mam_u64 merges, moved, moved_bytes, pages;
};

/* A compaction, in memory that is its own.  Pages are numbered over all superblocks, each from a multiple of a tile. */
struct mam_compact {
  struct mam_heap_control *control;
  mam_u8 *candidates;                      /* a bit for each page: a candidate begins there */
  mam_u32 *sums;                           /* of a type and a tile: how many candidates; then, how many come before */
  mam_u32 *order;                          /* the candidates' first pages, type by type (R in the paper) */
  mam_u32 *spans;                          /* first pages of all spans with pointers */
  mam_u32 superblocks, tiles, types, n;    /* types: the number of the last one */
  mam_u32 first[MAM_HEAP_SUPERBLOCKS + 1]; /* page of each superblock */
  mam_u32 starts[MAM_HEAP_TYPES + 1];      /* where in order the candidates of type i + 1 begin */
  mam_u32 span_count;                      /* atomic: in spans */
  mam_u32 slots_used;                      /* atomic: slots that a request was made of meanwhile */
  struct mam_compact_found counts;         /* atomic: of the pass that looks */
  struct mam_compact_found found;          /* by the pass that looked last */
  struct mam_compact_found found_first;    /* by the first one */
  mam_u32 looks, passes;                   /* how often it was looked; passes that merged, but for the last one */
  mam_u64 merges_before;                   /* done.merges at the last look */
  struct mam_compact_done done;            /* atomic: by all passes */
};

#endif
