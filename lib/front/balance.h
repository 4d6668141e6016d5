/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How many bytes of a pool's blocks are live, and the most that ever were.
 *
 * Each thread keeps a balance: the bytes of the blocks that it allocated, less the bytes of those that it freed, no
 * matter which thread allocated them.  No atomic operation is needed for that.  The balances of all threads, and those
 * of threads that ended, add up to the live bytes.
 *
 * The most that they were does not follow from the balances, each of which is at its own most at another time.  A
 * thread that has the pool to itself notes its own most, which is the pool's.  Several threads share a sum, and the
 * pool notes the most that the sum was.  A thread publishes its balance in the sum when it has moved by more than a
 * slack: BALANCE_SLACK_LEAST, or a thousandth of the pool's most if that is more.  A thread that would publish more
 * often than every BALANCE_QUICK_NS takes twice the slack, so that the sum costs little.  So a noted sum is wrong by at
 * most the slack of each thread: the most that it has allocated or freed within a few microseconds since it last
 * published.
 */
#ifndef MAM_LIB_BALANCE_H
#define MAM_LIB_BALANCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BALANCE_SLACK_BITS = 10, BALANCE_SLACK_LEAST = 1 << 20, BALANCE_QUICK_NS = 4000 };

/* Of a pool.  Relaxed, all: numbers that order nothing.  A caller that adds up holds all threads' fronts still. */
struct balance_sum {
  _Atomic int64_t bytes, most;
};

/* Of a thread in a pool, which alone writes it, inside its front. */
struct balance {
  int64_t bytes;     /* less one: below 0, no block of the pool may be left */
  int64_t most;      /* of bytes, since they were published last */
  int64_t high, low; /* beyond them the thread publishes */
  int64_t published; /* of bytes, in the sum */
  int64_t slack;     /* 0: the thread has the pool to itself */
  int64_t published_ns;
};

/* A thread that has the pool to itself does not publish. */
#define BALANCE_INIT                                                                                                   \
  { .bytes = -1, .most = -1, .high = INT64_MAX, .low = INT64_MIN, .published = -1 }

/* Adds what has moved to the sum, and notes the most.  The thread is inside, or its front is held still. */
void balance_publish(struct balance *balance, struct balance_sum *sum);

/* Publishes, and sets the slack: from now on the thread does not have the pool to itself. */
void balance_share(struct balance *balance, struct balance_sum *sum);

/* The most of the sum is at least bytes from now on.  Returns the most. */
int64_t balance_note(struct balance_sum *sum, int64_t bytes);

/* Counts a block that is allocated.  True if the thread is to call balance_share. */
static inline bool balance_add(struct balance *balance, size_t bytes) {
  int64_t now = balance->bytes += (int64_t)bytes;
  if (__builtin_expect(now <= balance->most, true))
    return false;
  balance->most = now;
  return __builtin_expect(now > balance->high, false);
}

/* The same for one that is freed. */
static inline bool balance_subtract(struct balance *balance, size_t bytes) {
  return __builtin_expect((balance->bytes -= (int64_t)bytes) < balance->low, false);
}

#endif
