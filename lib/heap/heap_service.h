/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A thread that listens to a bell: a word that a GPU writes to, which cannot wake a thread of the host.  So the thread
 * polls the word: every 50 us in the 20 ms after a ring, then less and less often, down to every 5 ms.  That costs less
 * than a hundredth of a core.
 *
 * Knows nothing of heaps or the GPU.
 */
#ifndef MAM_LIB_HEAP_SERVICE_H
#define MAM_LIB_HEAP_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

/* What is to be done when the bell was rung. */
enum heap_answer {
  HEAP_ANSWER_DONE,  /* nothing more */
  HEAP_ANSWER_LATER, /* retry in a while */
  HEAP_ANSWER_END    /* never answer again */
};

struct heap_service_work {
  /* The word is another than it was when it was last answered, or when the service began. */
  enum heap_answer (*answer)(void *closure, uint64_t word);
  /* HEAP_SERVICE_RETRY_MS after an answer of HEAP_ANSWER_LATER, unless another came meanwhile. */
  enum heap_answer (*retry)(void *closure);
  /* Whether the bell can still be rung; asked at each look that finds no ring. */
  bool (*lives)(void *closure);
};

/* The time from an answer of HEAP_ANSWER_LATER to the retry. */
enum { HEAP_SERVICE_RETRY_MS = 100 };

struct heap_service;

/* Begins to listen.  NULL if there is no thread or memory for it.
 * The functions are called by that thread alone, one at a time, with no lock held. */
struct heap_service *heap_service_start(const uint64_t *word, const struct heap_service_work *work, void *closure);

/* Ends it: after this none of the functions runs.  In a forked child, where there is no such thread, only forgets it.
 */
void heap_service_stop(struct heap_service *service);

#endif
