/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_grow.h - how a device heap grows while a kernel runs: what requests and the host say to each other.
 * lib/heap/README.md, "Growth under a running kernel", has the argument.
 *
 * Time goes in rounds.  Three words carry the talk, each with a round's number above and a number of pages below:
 *
 *   request                  growth->rung (GPU)   bell (host's memory)     host              growth->reply (GPU)
 *   fails in round r,
 *   needs n pages  --------> r | n  ------------> r | n  ----------------> takes memory
 *   waits                                                                  publishes a
 *                                                                          superblock -----> r + 1 | 0
 *   asks the heap again <------------------------------------------------------------------ (or r + 1 | refused)
 *
 * A request raises growth->rung by compare-and-swap; the thread that does stores the same word to the bell.  So there
 * is one store to the host for each round and size, however many threads wait, and all of them wait on one word in the
 * GPU's memory.  The pages of a reply say that there is no memory for so many in a row; 0 if no request was refused.
 */
#ifndef MAM_DETAIL_HEAP_GROW_H
#define MAM_DETAIL_HEAP_GROW_H

#include <mam/detail/heap_core.h>

/* A round's number has the upper 32 bits of a reply. */
enum { MAM_ROUND_SHIFT = 32 };
/* A thread that waits first rests for 2 us between two looks at the reply. */
enum { MAM_NAP_NS = 2000 };
/* The rest doubles up to 64 us, so that many threads that wait long load the memory little. */
enum { MAM_NAP_MOST_NS = 64000 };

/* A reply, or a word that is rung. */
MAM_INLINE mam_u64 mam_round_of(mam_u32 round, mam_u32 pages) { return (mam_u64)round << MAM_ROUND_SHIFT | pages; }
MAM_INLINE mam_u32 mam_round_number(mam_u64 word) { return (mam_u32)(word >> MAM_ROUND_SHIFT); }
MAM_INLINE mam_u32 mam_round_pages(mam_u64 word) { return (mam_u32)word; }

/* Whether a reply refuses so many pages. */
MAM_INLINE int mam_reply_refuses(mam_u64 reply, mam_u32 pages) {
  return mam_round_pages(reply) != 0 && pages >= mam_round_pages(reply);
}

/* What a request that is being refused remembers.  0: nothing yet.
 *   above     the round in which it asked the heap the last time
 *   below     when it gives up, in units of 2^20 ns */
typedef mam_u64 mam_plea;

MAM_INLINE mam_u32 mam_growth_clock(void) { return (mam_u32)(mam_time_ns() >> 20); }

/* Rings, if no thread has rung for that round and as many pages. */
MAM_INLINE void mam_growth_ring(struct mam_growth *growth, mam_u64 ring) {
  mam_u64 rung = mam_load_relaxed_u64(&growth->rung);
  MAM_LOOP
  for (int i = 0; i < MAM_RETRIES && rung < ring; i++) {
    /* relaxed: the word itself is all there is to say.  It never has the same value twice, so of all threads that ring
     * for a value one stores it. */
    mam_u64 seen = mam_cas_relaxed_u64(&growth->rung, rung, ring);
    if (seen == rung) {
      mam_store_relaxed_system_u64(growth->bell, ring); /* pairs with the host's look at its bell */
      return;
    }
    rung = seen;
  }
}

/* Waits until the reply is of another round, or the request's time is over.  Returns the reply.  acquire: pairs with
 * the host's publication, so that a request that asks again finds the superblock. */
MAM_INLINE mam_u64 mam_growth_wait(struct mam_growth *growth, mam_plea plea) {
  mam_u64 reply = mam_load_acquire_u64(&growth->reply);
  mam_u32 nap = MAM_NAP_NS;
  MAM_LOOP
  while (mam_round_number(reply) == mam_round_number(plea) && (int)(mam_growth_clock() - (mam_u32)plea) < 0) {
    mam_sleep(nap);
    nap = nap < MAM_NAP_MOST_NS ? 2 * nap : nap;
    reply = mam_load_acquire_u64(&growth->reply);
  }
  return reply;
}

/* For a request of so many pages in a row that the heap has just refused.  Waits for the host if need be, in all at
 * most as long as the heap's patience.  Returns what the request remembers while it asks the heap again; 0 if it fails.
 */
MAM_OUTLINE mam_plea mam_growth_await(struct mam_growth *growth, mam_u32 pages, mam_plea plea) {
  mam_u64 reply;
  if (growth->bell == 0)
    return 0;
  if (plea == 0) { /* a superblock may have come since the request looked */
    plea = mam_growth_clock() + growth->patience;
    reply = mam_load_acquire_u64(&growth->reply); /* as in mam_growth_wait */
  } else {
    mam_growth_ring(growth, mam_round_of(mam_round_number(plea), pages));
    reply = mam_growth_wait(growth, plea);
    if (mam_round_number(reply) == mam_round_number(plea))
      return 0;
  }
  return mam_reply_refuses(reply, pages) ? 0 : mam_round_of(mam_round_number(reply), (mam_u32)plea);
}

#endif /* MAM_DETAIL_HEAP_GROW_H */
