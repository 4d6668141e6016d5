/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/mutex.h"

#include <sched.h>
#include <stdint.h>

#include "base/clock.h"

/* A thread first tries so many times without a system call, with pauses in between: some microseconds in all. */
enum { LOOKS = 6 };

/* The pause before the first try is so many pause instructions; each further one is twice as long, up to the most. */
enum { PAUSES_FIRST = 4, PAUSES_MOST = 32 };

/* Then it tries for so long with sched_yield in between, since the holder may wait for this processor.  That is longer
 * than a mutex is held whose holder runs, and longer than most growths of a pool.  A thread that sleeps instead is
 * woken late: the kernel wakes sleepers one after the other, 30 to 200 us each (H200's host). */
enum { YIELD_NS = 1000000 };

/* After so long a thread is hungry: a tenth of YIELD_NS, many times what a mutex is held for. */
enum { HUNGRY_NS = 100000 };

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

/* Tries without a system call.  Whether the calling thread has the mutex. */
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

/* Tries for YIELD_NS.  Until the thread is hungry, it does not try while another thread is. */
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
