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
enum { MAM__ROUND_SHIFT = 32 };
/* A thread that waits first rests for 2 us between two looks at the reply. */
enum { MAM__NAP_NS = 2000 };
/* The rest doubles up to 64 us, so that many threads that wait long load the memory little. */
enum { MAM__NAP_MOST_NS = 64000 };

/* A reply, or a word that is rung. */
MAM__INLINE mam__u64 mam__round_of(mam__u32 round, mam__u32 pages) {
  return (mam__u64)round << MAM__ROUND_SHIFT | pages;
}
MAM__INLINE mam__u32 mam__round_number(mam__u64 word) { return (mam__u32)(word >> MAM__ROUND_SHIFT); }
MAM__INLINE mam__u32 mam__round_pages(mam__u64 word) { return (mam__u32)word; }

/* Whether a reply refuses so many pages. */
MAM__INLINE int mam__reply_refuses(mam__u64 reply, mam__u32 pages) {
  return mam__round_pages(reply) != 0 && pages >= mam__round_pages(reply);
}

/* What a request that is being refused remembers.  0: nothing yet.
 *   above     the round in which it asked the heap the last time
 *   below     when it gives up, in units of 2^20 ns */
typedef mam__u64 mam__plea;

MAM__INLINE mam__u32 mam__growth_clock(void) { return (mam__u32)(mam__time_ns() >> 20); }

/* Rings, if no thread has rung for that round and as many pages. */
MAM__INLINE void mam__growth_ring(struct mam__growth *growth, mam__u64 ring) {
  mam__u64 rung = mam__load_relaxed_u64(&growth->rung);
  MAM__LOOP
  for (int i = 0; i < MAM__RETRIES && rung < ring; i++) {
    /* relaxed: the word itself is all there is to say.  It never has the same value twice, so of all threads that ring
     * for a value one stores it. */
    mam__u64 seen = mam__cas_relaxed_u64(&growth->rung, rung, ring);
    if (seen == rung) {
      mam__store_relaxed_system_u64(growth->bell, ring); /* pairs with the host's look at its bell */
      return;
    }
    rung = seen;
  }
}

/* Waits until the reply is of another round, or the request's time is over.  Returns the reply.  acquire: pairs with
 * the host's publication, so that a request that asks again finds the superblock. */
MAM__INLINE mam__u64 mam__growth_wait(struct mam__growth *growth, mam__plea plea) {
  mam__u64 reply = mam__load_acquire_u64(&growth->reply);
  mam__u32 nap = MAM__NAP_NS;
  MAM__LOOP
  while (mam__round_number(reply) == mam__round_number(plea) && (int)(mam__growth_clock() - (mam__u32)plea) < 0) {
    mam__sleep(nap);
    nap = nap < MAM__NAP_MOST_NS ? 2 * nap : nap;
    reply = mam__load_acquire_u64(&growth->reply);
  }
  return reply;
}

/* For a request of so many pages in a row that the heap has just refused.  Waits for the host if need be, in all at
 * most as long as the heap's patience.  Returns what the request remembers while it asks the heap again; 0 if it fails.
 */
MAM__OUTLINE mam__plea mam__growth_await(struct mam__growth *growth, mam__u32 pages, mam__plea plea) {
  mam__u64 reply;
  if (growth->bell == 0)
    return 0;
  if (plea == 0) { /* a superblock may have come since the request looked */
    plea = mam__growth_clock() + growth->patience;
    reply = mam__load_acquire_u64(&growth->reply); /* as in mam__growth_wait */
  } else {
    /* A search may take longer than a round.  A ring for a round that is over would only begin another one, in which
     * all requests search in vain.  relaxed: a late ring costs time and no more. */
    if (mam__round_number(mam__load_relaxed_u64(&growth->reply)) == mam__round_number(plea))
      mam__growth_ring(growth, mam__round_of(mam__round_number(plea), pages));
    reply = mam__growth_wait(growth, plea);
    if (mam__round_number(reply) == mam__round_number(plea))
      return 0;
  }
  return mam__reply_refuses(reply, pages) ? 0 : mam__round_of(mam__round_number(reply), (mam__u32)plea);
}

#endif /* MAM_DETAIL_HEAP_GROW_H */
