/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the host and the kernels of `mam-bench compact` agree on, in plain C for both compilers.
 */
#ifndef MAM_BENCH_HEAP_COMPACT_H
#define MAM_BENCH_HEAP_COMPACT_H

#include <mam/heap_types.h>

#include "work.h"

/* ---- Objects that point to each other ---- */

enum { compact_links = 2 };

struct compact_object {
  heap_word number;
  struct compact_object *links[compact_links]; /* to random objects, NULL for one that is gone */
};

/* Objects of one type: table has the address of each, 0 for those that are gone. */
struct compact_work {
  heap_word *table;
  unsigned count, seed;
  mam_type type;
  unsigned keep; /* so many of heap_chance_whole stay */
};

struct compact_faults {
  heap_word refused, wrong_objects, wrong_links, live;
};

/* ---- Particles ----
 *
 * They fly in a box until they die; others are born in each step.  A table has a pointer to each. */

struct particle {
  float x, y;
  short vx, vy;
  unsigned dies; /* in this step */
};

struct particles_work {
  struct particle **table; /* NULL: the particle is gone */
  unsigned count;          /* of the table's entries */
  unsigned births;         /* they come behind the first count entries */
  unsigned first_number;   /* of the particles that are born */
  unsigned step, life;     /* life: steps that a particle lives on average */
  mam_type type;
};

struct particles_counts {
  heap_word live, refused;
  heap_word check; /* a sum over all particles that does not depend on their addresses */
};

#endif
