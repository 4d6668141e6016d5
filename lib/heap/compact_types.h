/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the kernels of defragmentation (compact_core.h) and the host that directs them both know.
 */
#ifndef MAM_LIB_COMPACT_TYPES_H
#define MAM_LIB_COMPACT_TYPES_H

#include <mam/detail/heap_core.h>

/* The numbers of pages, blocks and batches were measured on an H200. */
enum {
  MAM_COMPACT_TARGETS = 16, /* n at most */
  MAM_COMPACT_GROUP = 4,    /* pages that one thread looks at, as many as candidates has in an element */
  MAM_COMPACT_GROUPS = 32,  /* of a tile: as many threads as a warp has */
  MAM_COMPACT_TILE = MAM_COMPACT_GROUP * MAM_COMPACT_GROUPS,
  MAM_COMPACT_THREADS = 320,              /* of a block */
  MAM_COMPACT_BLOCKS = 2,                 /* of a multiprocessor, which run together */
  MAM_COMPACT_BATCH = 4,                  /* pointers that a thread rewrites together */
  MAM_UNIT_BATCH = 4,                     /* units that a thread copies together */
  MAM_UNIT_BYTES = 16,                    /* copied by one thread at a time */
  MAM_LINE_BYTES = 128,                   /* of the cache: it drops that much at a time */
  MAM_SPAN_CHUNKS = 32 * MAM__PAGE_WORDS, /* at most */
  MAM_COMPACT_LITTLE = 64                 /* a pass merges little if it takes less than one span of so many away */
};

/* A unit of an object, to be copied at once. */
struct mam_unit {
  mam__u64 low, high;
} __attribute__((aligned(16)));

/* What was found of a heap's typed spans. */
struct mam_compact_found {
  mam__u64 spans, pages, live, candidates;
  mam__u64 free_level; /* sum over the spans of the free share of each, in 1/65536 */
};

/* What was done to them: sources that were merged, their objects, the bytes of those objects' chunks, their pages. */
struct mam_compact_done {
  mam__u64 merges, moved, moved_bytes, pages;
};

/* The same of a tile. */
struct mam_tile_found {
  mam__u64 numbers; /* spans, from bit 16 on candidates, from bit 32 on live objects */
  mam__u64 sizes;   /* the free levels, from bit 32 on pages */
};

/* What the threads of a compaction tell each other. */
struct mam_compact_state {
  mam__u32 starts[MAM_HEAP_TYPES + 1];  /* where in order the candidates of type i + 1 begin */
  mam__u32 span_count;                  /* atomic: in spans */
  mam__u32 object_count;                /* atomic: in objects */
  mam__u32 slots_used;                  /* atomic: slots that a request was made of meanwhile */
  mam__u32 passes;                      /* that merged anything */
  struct mam_compact_found found;       /* by the pass that looked last */
  struct mam_compact_found found_first; /* by the first one */
  mam__u32 looks;                       /* how often it was looked */
  mam__u32 left_count;                  /* atomic: in order, when pointers are rewritten */
  struct mam_compact_done done;         /* atomic: by all passes */
};

/* What the host learns. */
struct mam_compact_report {
  mam__u64 end; /* written last: from bit 32 on the run's number, below that the state's slots_used */
  struct mam_compact_state state;
};

/* Pointers that the host registered. */
struct mam_compact_roots {
  mam__u64 *pointers;
  mam__u64 count;
};

/* What is to be done. */
enum {
  MAM_COMPACT_PASSES = 1,  /* move objects and rewrite pointers */
  MAM_COMPACT_INFO = 2,    /* and look at what is left */
  MAM_COMPACT_RELEASE = 4, /* give the pages back of what was moved */
  MAM_COMPACT_OBJECTS = 8, /* list the objects of a type */
  MAM_COMPACT_STATE = 16   /* report the state */
};

/* A compaction: what does not change meanwhile, and the memory that it works in.  Pages are numbered over all
 * superblocks, each from a multiple of a tile. */
struct mam_compact {
  mam_device_heap heap;
  struct mam__heap_control *control;
  struct mam_compact_state *state;
  struct mam_compact_report *report; /* of the host */
  mam__u32 *barrier;                 /* words that are 0 before and after */
  mam__u16 *candidates;              /* four bits for each page: the type of the candidate that begins there */
  mam__u8 *with_pointers;       /* a byte for a group of pages: bits of those that a span with pointers begins in */
  mam__u32 *sums;               /* of a type and a tile: how many candidates; then, how many come before */
  struct mam_tile_found *found; /* in each tile */
  mam__u32 *order;              /* the candidates' first pages, type by type (R in the paper); after the passes, */
                                /* those of spans with pointers that were not moved */
  mam__u32 *spans;              /* for a list of objects: the first pages of their spans, */
  mam__u64 *objects;            /* and room for so many */
  mam__u64 object_room;
  struct mam_compact_roots *roots;
  mam__u32 what, root_count;
  mam__u32 number;                          /* of the run */
  mam__u32 n_first, n_last, pass_limit;     /* of the first pass and of the last ones; pass_limit 0: none */
  mam__u32 object_type;                     /* for a list of objects */
  mam__u32 superblocks, tiles, types;       /* types: the number of the last one */
  mam__u32 types_with_pointers;             /* bits of types, from 1 on, whose objects have any */
  mam__u32 pointers_most;                   /* of an object */
  mam__u32 kinds[MAM_HEAP_TYPES];           /* of types, from 1 on */
  mam__u32 first[MAM_HEAP_SUPERBLOCKS + 1]; /* page of each superblock */
};

#endif
