/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How to wait for a thread that needs some nanoseconds to go on, unless it was taken off its processor.
 *
 * The waiter calls wait_more between two looks at what it waits for.  The first calls yield the processor, the later
 * ones sleep.  A thread that only yields keeps a thread of lower priority from running for good (SCHED_FIFO), or for
 * most of a second (beside SCHED_IDLE).  The sleep is no point of cancellation, since the waiter may hold a lock.
 */
#ifndef MAM_LIB_WAIT_H
#define MAM_LIB_WAIT_H

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* So many looks without a sleep: some 10 us. */
enum { WAIT_LOOKS = 32 };

/* The first sleep, and the longest: each is twice the one before.  A thread that waits for a collection of a
 * millisecond is late by a fraction of it. */
enum { WAIT_FIRST_NS = 20000, WAIT_MOST_NS = 160000 };

struct wait {
  unsigned looks;
  long sleep_ns;
};

#define WAIT_INIT                                                                                                      \
  { 0, WAIT_FIRST_NS }

static inline void wait_more(struct wait *wait) {
  if (wait->looks < WAIT_LOOKS) {
    wait->looks++;
    (void)sched_yield();
    return;
  }
  const struct timespec time = {.tv_nsec = wait->sleep_ns};
  (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
  wait->sleep_ns = 2 * wait->sleep_ns < WAIT_MOST_NS ? 2 * wait->sleep_ns : WAIT_MOST_NS;
}

#endif
