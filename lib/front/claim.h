/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Claims: how a free takes a block out of the program's hands.  Of two frees of one block, which is the program's
 * mistake, one must find that the block is gone, whichever threads they come from.
 *
 * So a claim is one atomic exchange.  On x86 an exchange waits for all stores before it: 3 of the 22 ns that a pair of
 * large blocks took on an H200's host.  A thread that is alone in claiming a pool's blocks does without.  It reads
 * whether it is alone inside its front, where it claims.  Another thread that is about to claim for the first time ends
 * that before, inside the first thread's front too (biased.h).  So it sees what the first thread claimed by then, and
 * from then on the first thread exchanges.
 *
 * A thread claims as the owner of a front that is attached to the pool: inside the front, or under the pool's lock with
 * the pool still of the front's generation.  So a free that was held up while its pool ended, and another pool came to
 * its addresses, does not claim beside a thread that is alone there.
 *
 * tests/model/biased_test.c runs every interleaving of a thread that is alone and one that ends that.
 */
#ifndef MAM_LIB_CLAIM_H
#define MAM_LIB_CLAIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Of a small block, by what its live byte holds (slab.h): that, or 0 if it is gone. */
static inline uint8_t claim_live(bool alone, _Atomic uint8_t *live) {
  if (!alone)
    /* acq_rel: of two one finds 0; the block's last use is before its next owner's first */
    return atomic_exchange_explicit(live, 0, memory_order_acq_rel);
  /* relaxed: both are this thread's, as is the next use, or the front's lock is in between */
  uint8_t held = atomic_load_explicit(live, memory_order_relaxed);
  if (held != 0)
    atomic_store_explicit(live, 0, memory_order_relaxed);
  return held;
}

/* Of a large one, by its ticket (segment.h), which becomes even.  False if it has another one. */
static inline bool claim_ticket(bool alone, _Atomic uint64_t *held, uint64_t ticket) {
  if (!alone)
    /* acq_rel: as above.  relaxed on failure: the block is another one or none, and nothing of it is looked at */
    return atomic_compare_exchange_strong_explicit(held, &ticket, ticket + 1, memory_order_acq_rel,
                                                   memory_order_relaxed);
  /* relaxed: as above */
  if (atomic_load_explicit(held, memory_order_relaxed) != ticket)
    return false;
  atomic_store_explicit(held, ticket + 1, memory_order_relaxed);
  return true;
}

#endif
