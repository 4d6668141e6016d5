/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/last_word.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/library_call.h"
#include "base/locked.h"

/* So often a callback is asked about one allocation.  A program that gives up its caches one by one is done by then,
 * and one that always answers "again" gets its error in the end. */
enum { ATTEMPTS_MOST = 16 };

static pthread_mutex_t last_word_lock = PTHREAD_MUTEX_INITIALIZER;

/* What is set; number: of the settings so far.  Under the lock. */
static struct {
  MAM_OutOfMemoryCallback callback;
  void *data;
  uint64_t number;
} setting;

/* relaxed: whether a callback is set, so that a program without one takes no lock.  A thread that was told of a
 * callback sees what was stored before it was told. */
static _Atomic bool is_set;

/* A call of a callback that has not returned: on the stack of its thread, and in a list under the lock. */
struct asking {
  uint64_t number; /* of the setting that it is about */
  struct asking *next;
};
static struct asking *askings;
static pthread_cond_t asking_ended = PTHREAD_COND_INITIALIZER;
static _Thread_local struct asking *asking_here; /* NULL unless the thread is in a callback */

static _Thread_local bool is_forbidden;

bool last_word_forbid(void) {
  bool before = is_forbidden;
  is_forbidden = true;
  return before;
}

void last_word_allow(const bool *before) { is_forbidden = *before; }

/* ---- Fork ---- */

static void hold(void) { pthread_mutex_lock(&last_word_lock); }

/* The calls of other threads are not in the child. */
static void let_go(bool in_child) {
  if (in_child) {
    (void)pthread_cond_init(&asking_ended, NULL);
    askings = asking_here;
    if (asking_here != NULL)
      asking_here->next = NULL;
  }
  pthread_mutex_unlock(&last_word_lock);
}

/* ---- Asking ---- */

/* *callback is what is set now, and a call of it has begun; NULL if none is set. */
static void asking_begin(struct asking *asking, MAM_OutOfMemoryCallback *callback, void **data) {
  pthread_mutex_lock(&last_word_lock);
  *callback = setting.callback;
  *data = setting.data;
  if (*callback != NULL) {
    *asking = (struct asking){.number = setting.number, .next = askings};
    askings = asking_here = asking;
  }
  pthread_mutex_unlock(&last_word_lock);
}

static void asking_end(struct asking *asking) {
  pthread_mutex_lock(&last_word_lock);
  struct asking **link = &askings;
  while (*link != asking)
    link = &(*link)->next;
  *link = asking->next;
  asking_here = NULL;
  (void)pthread_cond_broadcast(&asking_ended);
  pthread_mutex_unlock(&last_word_lock);
}

/* What the callback allocates itself fails without a further question. */
bool last_word_ask(MAM_Pool pool, size_t size, unsigned *attempts) {
  LIBRARY_CALL;
  struct asking asking;
  MAM_OutOfMemoryCallback callback;
  void *data;
  char sentence[ERROR_SENTENCE_BYTES];
  if (!atomic_load_explicit(&is_set, memory_order_relaxed) || asking_here != NULL || is_forbidden ||
      *attempts == ATTEMPTS_MOST)
    return false;
  asking_begin(&asking, &callback, &data);
  if (callback == NULL)
    return false;
  memcpy(sentence, error_last(), sizeof sentence);
  bool again = callback(pool, size, ++*attempts, data) != 0;
  if (!again)
    error_restore(sentence); /* the callback's own calls may have failed too */
  asking_end(&asking);
  return again;
}

/* ---- Setting ---- */

static bool asked_before_locked(uint64_t number) {
  lock_held(&last_word_lock);
  const struct asking *asking = askings;
  while (asking != NULL && asking->number >= number)
    asking = asking->next;
  return asking != NULL;
}

void last_word_set(MAM_OutOfMemoryCallback callback, void *data) {
  LIBRARY_CALL;
  static const struct fork_functions functions = {hold, let_go};
  fork_join(FORK_LAST_WORD, &functions);
  pthread_mutex_lock(&last_word_lock);
  uint64_t number = ++setting.number;
  setting.callback = callback;
  setting.data = data;
  atomic_store_explicit(&is_set, callback != NULL, memory_order_relaxed);
  while (asking_here == NULL && asked_before_locked(number)) /* two callbacks would wait for each other */
    (void)pthread_cond_wait(&asking_ended, &last_word_lock);
  pthread_mutex_unlock(&last_word_lock);
}
