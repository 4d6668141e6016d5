/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Keepers, and the blocks that they hold back.  preload_keep.c has them; preload_graph.c says which graphs use a
 * keeper. It knows neither captures nor graphs.
 */
#ifndef MAM_LIB_PRELOAD_KEEP_H
#define MAM_LIB_PRELOAD_KEEP_H

#include "preload/preload.h"

/* A block that keepers hold back. */
struct kept;

/* Around the functions below and the tables of preload_graph.c.  A leaf: no other lock is taken under it, and neither
 * libmam nor the driver is called. */
void preload_keep_lock(void);
void preload_keep_unlock(void);

/* Adds a user to a keeper. */
void preload_keeper_join_locked(struct preload_keeper *keeper);

/* Takes one away.  Without users the keeper ends.  Those of its blocks that the program has freed, and that no other
 * keeper holds, go to the front of the list freed, which is returned. */
struct kept *preload_keeper_leave_locked(struct preload_keeper *keeper, struct kept *freed);

/* A use could not be noted: the keeper never ends. */
void preload_keeper_stay_locked(struct preload_keeper *keeper);

/* Whether a keeper holds no block. */
bool preload_keeper_is_empty_locked(const struct preload_keeper *keeper);

/* Frees a list of blocks.  The caller does not hold the lock. */
void preload_kept_end(struct kept *freed);

/* In a forked child, in which no other thread holds the lock. */
void preload_keep_forked(void);

#endif
