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

#endif
