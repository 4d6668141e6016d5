/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Verifies every invariant of front_inside.h.  Walks everything.  Tests call it at quiet moments; a build with
 * --enable-checks calls it, not still, whenever the fronts and depots of a pool were frozen.
 */
#ifndef MAM_LIB_FRONT_CHECK_H
#define MAM_LIB_FRONT_CHECK_H

#include "pool/pool.h"

/* NULL if every invariant of the pool's fronts and depots holds, else the first that was found not to.  still: no other
 * thread is in the middle of a call, so no block is on its way from one place to another, and every block must be in a
 * place; else in at most one.  No lock is held, and the calling thread is inside no front. */
const char *front_check(struct mam_pool *pool, bool still);

/* The same; the pool's fronts and depots are frozen.  The second is called with the pool's lock. */
const char *front_check_frozen(struct mam_pool *pool, bool still);
const char *front_check_locked(struct mam_pool *pool, bool still);

#endif
