/* SPDX-License-Identifier: BSD-2-Clause */
#include "mutex.h"

/* Some 20 us in all: longer than such a mutex is held, unless its holder sleeps. */
enum { LOOKS = 20, PAUSES_FIRST = 4, PAUSES_MOST = 32 };

static inline void pause_shortly(void) {
#if defined __x86_64__ || defined __i386__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
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
  pthread_mutex_lock(mutex);
}
