/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/forking.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

__thread bool fork_holds;

/* How many of the handlers before a fork have run whose counterparts have not; whether one of those has. */
static __thread __attribute__((tls_model("initial-exec"))) unsigned fork_depth;
static __thread __attribute__((tls_model("initial-exec"))) bool fork_past;

static const struct fork_functions *_Atomic parts[FORK_PARTS];

/* Of the thread that has the lock: one thread holds the library still at a time. */
static pthread_mutex_t forking_lock = PTHREAD_MUTEX_INITIALIZER;
static const struct fork_functions *held[FORK_PARTS]; /* NULL: was not registered when the library was held */
static pid_t parent;

void fork_join(enum fork_part part, const struct fork_functions *functions) {
  /* release: what the functions work on; pairs with the acquire in fork_step_in */
  atomic_store_explicit(&parts[part], functions, memory_order_release);
}

void fork_step_in(void) {
  pthread_mutex_lock(&forking_lock);
  parent = getpid();
  for (int i = 0; i < FORK_PARTS; i++) {
    held[i] = atomic_load_explicit(&parts[i], memory_order_acquire); /* pairs with the release in fork_join */
    if (held[i] != NULL && held[i]->hold != NULL)
      held[i]->hold();
  }
  fork_holds = true;
}

bool fork_step_out(void) {
  bool in_child = getpid() != parent;
  fork_holds = false;
  for (int i = FORK_PARTS; i-- > 0;)
    if (held[i] != NULL)
      held[i]->let_go(in_child);
  pthread_mutex_unlock(&forking_lock);
  return !in_child && !fork_past;
}

/* It is held already but at the first run, or after a fork from another library's fork handler. */
static void before(void) {
  fork_depth++;
  fork_past = false;
  if (!fork_holds)
    fork_step_in();
}

/* In the parent and in the child.  A C library may run it for a registration that came after the fork had begun. */
static void after(void) {
  if (fork_depth == 0)
    return;
  fork_past = true;
  if (--fork_depth == 0 && fork_holds)
    (void)fork_step_out();
}

void fork_handle(void) {
  void *volatile first = malloc(1); /* volatile: or the compiler leaves the pair out */
  free(first);
  (void)pthread_atfork(before, after, after);
}
