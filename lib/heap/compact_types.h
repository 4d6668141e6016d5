/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The types that the kernel of defragmentation (compact_core.h) and the host (heap_compact.c) share.
 *
 *   struct mam_compact          what is to be done, and the memory to work in; the host writes it, the kernel reads it
 *   struct mam_compact_state    what the kernel's threads tell each other, in device memory
 *   struct mam_compact_report   what the host learns, in host memory
 */
#ifndef MAM_LIB_COMPACT_TYPES_H
#define MAM_LIB_COMPACT_TYPES_H

#include <mam/detail/heap_core.h>

/* The numbers of pages, blocks and batches were chosen by measurements on an H200. */
enum {
  /* The largest n that a caller may ask for. */
  MAM_COMPACT_TARGETS = 16,
  /* Pages that one thread looks at.  An element of candidates has four bits for each of them. */
  MAM_COMPACT_GROUP = 4,
  /* Groups in a tile.  A warp looks at a tile, each lane at a group. */
  MAM_COMPACT_GROUPS = 32,
  MAM_COMPACT_TILE = MAM_COMPACT_GROUP * MAM_COMPACT_GROUPS,
  /* Threads of a block. */
  MAM_COMPACT_THREADS = 320,
  /* Blocks of a multiprocessor.  They run at the same time, because they wait for each other. */
  MAM_COMPACT_BLOCKS = 2,
  /* Pointers that a thread rewrites together, so that its reads overlap. */
  MAM_COMPACT_BATCH = 4,
  /* Units that a thread copies together, so that its reads overlap. */
  MAM_UNIT_BATCH = 4,
  /* A thread copies so many bytes by one instruction. */
  MAM_UNIT_BYTES = 16,
  /* A line of the L2 cache: it drops so many bytes at a time. */
  MAM_LINE_BYTES = 128,
  /* The most chunks of a span. */
  MAM_SPAN_CHUNKS = 32 * MAM__PAGE_WORDS,
  /* A pass with n is followed by one with n + 1 if it takes away less than one span of so many. */
  MAM_COMPACT_LITTLE = 64
};

/* A part of an object that is copied by one instruction. */
struct mam_unit {
  mam__u64 low, high;
} __attribute__((aligned(16)));

/* What was found in a heap's typed spans: live and candidates are numbers of objects and of spans. */
struct mam_compact_found {
  mam__u64 spans, pages, live, candidates;
  /* The sum of the free shares of all spans, in 1/65536. */
  mam__u64 free_level;
};

/* What was done: sources that were merged, their objects, the bytes of these objects' chunks, and the sources' pages.
 */
struct mam_compact_done {
  mam__u64 merges, moved, moved_bytes, pages;
};

/* What was found in a tile. */
struct mam_tile_found {
  /* Spans; from bit 16 on candidates; from bit 32 on live objects. */
  mam__u64 numbers;
  /* The sum of the free shares, in 1/65536; from bit 32 on pages. */
  mam__u64 sizes;
};

/* What the threads of a compaction tell each other. */
struct mam_compact_state {
  /* Where the candidates of type i + 1 begin in order. */
  mam__u32 starts[MAM_HEAP_TYPES + 1];
  /* Atomic: how many are in spans. */
  mam__u32 span_count;
  /* Atomic: how many are in objects. */
  mam__u32 object_count;
  /* Atomic: slots that a request took a ticket of during the run. */
  mam__u32 slots_used;
  mam__u32 passes;                      /* passes that merged something */
  struct mam_compact_found found;       /* by the last look */
  struct mam_compact_found found_first; /* by the first look */
  mam__u32 looks;                       /* how many looks there were */
  /* Atomic: how many spans are in order while pointers are rewritten. */
  mam__u32 left_count;
  struct mam_compact_done done; /* atomic: all passes add to it */
};

/* What the host learns. */
struct mam_compact_report {
  /* Written last.  From bit 32 on the run's number, below that slots_used of the state. */
  mam__u64 end;
  struct mam_compact_state state;
};

/* An array of pointers that the program registered. */
struct mam_compact_roots {
  mam__u64 *pointers;
  mam__u64 count;
};

/* What a run is to do, as bits of struct mam_compact.what. */
enum {
  MAM_COMPACT_PASSES = 1,  /* move objects and rewrite pointers */
  MAM_COMPACT_INFO = 2,    /* then look at what is left */
  MAM_COMPACT_RELEASE = 4, /* give the pages of moved spans back */
  MAM_COMPACT_OBJECTS = 8, /* list the objects of a type */
  MAM_COMPACT_STATE = 16   /* report the state */
};

/* A run: what does not change meanwhile, and the memory to work in.  Pages are numbered over all superblocks.  The
 * pages of each superblock begin at a multiple of a tile. */
struct mam_compact {
  mam_device_heap heap;
  struct mam__heap_control *control;
  struct mam_compact_state *state;
  struct mam_compact_report *report; /* in host memory */
  mam__u32 *barrier;                 /* words that are 0 before a run and after it */
  /* Four bits for each page: the type of the candidate that begins there, 0 if none does. */
  mam__u16 *candidates;
  /* A byte for each group of pages: a bit for each page in which a span with pointers begins. */
  mam__u8 *with_pointers;
  /* For each type and tile, the number of candidates; then the number of candidates before. */
  mam__u32 *sums;
  /* What was found, for each tile. */
  struct mam_tile_found *found;
  /* The candidates' first pages, type by type (R in the paper).  After the passes, the first pages of spans that have
   * pointers and were not moved. */
  mam__u32 *order;
  /* For a list of objects: the first pages of their spans. */
  mam__u32 *spans;
  /* For a list of objects: their addresses, with room for object_room of them. */
  mam__u64 *objects;
  mam__u64 object_room;
  struct mam_compact_roots *roots;
  mam__u32 what, root_count;
  mam__u32 number; /* of this run */
  /* n_first: of the first pass; n_last: of the last ones.  pass_limit 0: as many passes as it takes. */
  mam__u32 n_first, n_last, pass_limit;
  mam__u32 object_type; /* whose objects are listed */
  /* types: how many there are, which is the number of the last one. */
  mam__u32 superblocks, tiles, types;
  /* A bit for each type whose objects have pointers: bit 0 for type 1. */
  mam__u32 types_with_pointers;
  mam__u32 pointers_most;         /* pointers of an object, at most */
  mam__u32 kinds[MAM_HEAP_TYPES]; /* of type i + 1 */
  /* The number of each superblock's first page. */
  mam__u32 first[MAM_HEAP_SUPERBLOCKS + 1];
};

#endif
