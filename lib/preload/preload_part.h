/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which graphs are inside of others (preload_part.c).  It knows neither blocks nor captures.  All but preload_parts are
 * called under preload_keep_lock.
 */
#ifndef MAM_LIB_PRELOAD_PART_H
#define MAM_LIB_PRELOAD_PART_H

#include <stdbool.h>

struct part;

/* Whether a graph is inside of another one.  A hint. */
bool preload_parts(void);

/* The graph that a graph or a node is inside of at last: itself if it is inside of none, NULL if that is not known. */
const void *preload_part_root_locked(const void *part);

/* The driver has just made a graph or a node: what is noted for its handle was another's. */
void preload_part_born_locked(const void *part);

/* A graph is inside of a node, or a node inside of a graph; in: NULL if that is not known.  Without host memory nothing
 * is noted. */
void preload_part_add_locked(const void *part, const void *in);

/* Takes a graph or a node that is about to be destroyed, and all that is inside of it, out of the table.  NULL if it is
 * not there. */
struct part *preload_part_take_locked(const void *part);

/* It was destroyed; or it was not, and comes back. */
void preload_part_end_locked(struct part *taken);
void preload_part_back_locked(struct part *taken);

#endif
