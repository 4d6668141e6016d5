/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reaper: a thread that exists only while a pool is watched.  It ends an environment that came by itself (lazily)
 * and was not used for linger_ns, and it has a pool that has grown and is calm give memory back.
 *
 * A lazy environment ends with its last block: the first time at once, as the paper has it.  If it is missed afterwards
 * and comes back, it is watched instead.  So a loop that frees all it has pays for two chunks in each context, and a
 * program that is done holds no memory.
 *
 * Stands on environment.h, whose lock is held while anything here is changed.
 */
#ifndef MAM_LIB_REAPER_H
#define MAM_LIB_REAPER_H

#include "api/environment.h"

/* Watches a lazy environment from its second thread on. */
void reaper_watch(struct mam_pool *pool);

/* The last block of a lazy environment was freed: ends it, or watches it. */
cudaError_t reaper_emptied(const struct pool_emptied *emptied);

/* Sees to it that the pools that have grown are looked at. */
void reaper_watch_grown(void);

/* After an allocation that may have made a pool grow. */
static inline void reaper_look_grown(void) {
  if (__builtin_expect(pools_grown(), false))
    reaper_watch_grown();
}

/* The reaper begins no call of the driver from here on.  What it has begun is not waited for. */
void reaper_end(void);

#endif
