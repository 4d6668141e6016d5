/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/mutex.h"

#include <sched.h>
#include <stdint.h>

#include "base/clock.h"

/* Some microseconds without a call of the system, and then so long with others let go first: the holder may be one of
 * them.  Longer than such a mutex is held, unless its holder sleeps, and than most growths of a pool take, since
 * threads that sleep are woken one after the other, 30 to 200 us each (H200's host).  After a tenth of it a thread is
 * hungry. */
enum { LOOKS = 6, PAUSES_FIRST = 4, PAUSES_MOST = 32, YIELD_NS = 1000000, HUNGRY_NS = 100000 };

_Atomic unsigned mutex_hungry;

void mutex_forked(void) { atomic_store_explicit(&mutex_hungry, 0, memory_order_relaxed); } /* relaxed: one thread */

static inline void pause_shortly(void) {
#if defined __x86_64__ || defined __i386__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

/* relaxed, all three: a hint */
static unsigned hungry(void) { return atomic_load_explicit(&mutex_hungry, memory_order_relaxed); }
static void hungry_begin(void) { atomic_fetch_add_explicit(&mutex_hungry, 1, memory_order_relaxed); }
static void hungry_end(void) { atomic_fetch_sub_explicit(&mutex_hungry, 1, memory_order_relaxed); }

/* Looks shortly; whether the mutex is the thread's now. */
static bool look_shortly(pthread_mutex_t *mutex) {
  unsigned pauses = PAUSES_FIRST;
  for (unsigned look = 0; look < LOOKS && hungry() == 0; look++) {
    for (unsigned i = 0; i < pauses; i++)
      pause_shortly();
    if (pthread_mutex_trylock(mutex) == 0)
      return true;
    pauses = 2 * pauses > PAUSES_MOST ? PAUSES_MOST : 2 * pauses;
  }
  return false;
}

/* The same for as long as YIELD_NS, with others let go first: all until the thread is hungry, then none. */
static bool look_long(pthread_mutex_t *mutex) {
  int64_t start_ns = now_ns(), looked_ns = 0;
  bool mine = false, is_hungry = false;
  while (!mine && looked_ns < YIELD_NS) {
    (void)sched_yield();
    looked_ns = now_ns() - start_ns;
    if (looked_ns >= HUNGRY_NS && !is_hungry) {
      is_hungry = true;
      hungry_begin();
    }
    mine = (is_hungry || hungry() == 0) && pthread_mutex_trylock(mutex) == 0;
  }
  if (is_hungry)
    hungry_end();
  return mine;
}

void mutex_await(pthread_mutex_t *mutex) {
  if (!look_shortly(mutex) && !look_long(mutex))
    pthread_mutex_lock(mutex);
}
