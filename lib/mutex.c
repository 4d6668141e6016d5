/* SPDX-License-Identifier: BSD-2-Clause */
#include "mutex.h"

#include <sched.h>
#include <stdint.h>
#include <time.h>

/* Some microseconds without a call of the system, and then so long with others let go first: the holder may be one of
 * them.  Longer than such a mutex is held, unless its holder sleeps, and less than a thread takes to be woken by those
 * that were woken before it. */
enum { LOOKS = 6, PAUSES_FIRST = 4, PAUSES_MOST = 32, YIELD_NS = 100000 };

static inline void pause_shortly(void) {
#if defined __x86_64__ || defined __i386__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void mutex_await(pthread_mutex_t *mutex) {
  unsigned pauses = PAUSES_FIRST;
  for (unsigned look = 0; look < LOOKS; look++) {
    for (unsigned i = 0; i < pauses; i++)
      pause_shortly();
    if (pthread_mutex_trylock(mutex) == 0)
      return;
    pauses = 2 * pauses > PAUSES_MOST ? PAUSES_MOST : 2 * pauses;
  }
  for (int64_t end_ns = now_ns() + YIELD_NS; now_ns() < end_ns;) {
    (void)sched_yield();
    if (pthread_mutex_trylock(mutex) == 0)
      return;
  }
  pthread_mutex_lock(mutex);
}
