/* SPDX-License-Identifier: BSD-2-Clause */
/* What reuse.c and reuse_users.c share. */
#ifndef MAM_LIB_REUSE_INSIDE_H
#define MAM_LIB_REUSE_INSIDE_H

#include "cuda/reuse.h"

static inline struct reuse_companion *reuse_companions_first(const struct reuse *reuse) {
  /* acquire: the companion; pairs with the release in companion_add_locked */
  return atomic_load_explicit(&reuse->companions, memory_order_acquire);
}

/* Whether the context of the id is a companion of a struct reuse, the caller. */
bool reuse_has_companion(const void *caller, uint64_t id);

/* ---- Captures (reuse_capture.c) ---- */

/* Whether brackets are open in any context. */
bool reuse_brackets_open(void);

/* Whether a fence, or a wait by cuCtxSynchronize, would invalidate a capture, as far as is known.  Inside brackets no
 * stream is asked for: its owner may be ending the capture or destroying the stream, and the driver does not bear that.
 */
bool reuse_captured_locked(struct reuse *reuse);

/* Whether captures go on that all keep what their graphs use, and there is a block for reuse_free_to_wait_locked. */
bool reuse_may_free_to_wait_locked(struct reuse *reuse);

/* Waits for the work of the context by a cuMemFree, which a capture bears.  Leaves the lock meanwhile.  In a full
 * device the spare block may be the only one that there is to free.  Afterwards there is one again, if there is memory.
 */
cudaError_t reuse_free_to_wait_locked(struct reuse *reuse);

#endif
