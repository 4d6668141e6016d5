/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the host and the kernels of `mam-bench compact` agree on.  Plain C that both compilers read.
 */
#ifndef MAM_BENCH_HEAP_COMPACT_H
#define MAM_BENCH_HEAP_COMPACT_H

#include <mam/heap_types.h>

#include "work.h"

/* ---- Objects that point to each other ---- */

enum { compact_links = 2 };

struct compact_object {
  heap_word number;
  struct compact_object *links[compact_links]; /* to objects at random, NULL for one that is gone */
};

/* Objects of one type: table has the address of each, 0 for those that are gone. */
struct compact_work {
  heap_word *table;
  unsigned count, seed;
  mam_type type;
  unsigned keep; /* of heap_chance_whole, so many stay */
};

struct compact_faults {
  heap_word refused, wrong_objects, wrong_links, live;
};

/* ---- A forest ----
 *
 * Saplings come up in empty cells at random, grow up after a while, and burn where lightning strikes or a neighbour
 * burns.  A cell has a pointer to what grows in it. */

struct forest_plant {
  unsigned cell, age;
  float height;
  unsigned burning; /* 1: it is gone after this step */
};

/* Grown up. */
struct forest_tree {
  struct forest_plant plant;
  float rings[12];
};

enum { forest_nothing, forest_sprout, forest_grow, forest_mature, forest_ignite, forest_vanish };

struct forest_work {
  struct forest_plant **cells; /* NULL: empty.  The lowest bit of no address is 1 */
  unsigned char *decisions;    /* one of the above for each cell */
  unsigned width, height;      /* powers of two */
  unsigned step;
  mam_type sapling, tree;
  unsigned sprouting, lightning; /* chances of a cell in a step, in 2^32 */
  unsigned mature_age;
};

struct forest_counts {
  heap_word saplings, trees, refused;
  heap_word check; /* a sum over all plants that depends on what they are, not on where */
};

#endif
