/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The program's last word before an allocation fails for want of memory: MAM_SetOutOfMemoryCallback.
 *
 * last_word_lock protects what is set, and which calls of a callback have not returned.  No other lock is held when it
 * is taken, none is taken under it but before a fork, and it is not held while the program's function runs.  Knows no
 * pool: it passes on what the program asked for.
 */
#ifndef MAM_LIB_LAST_WORD_H
#define MAM_LIB_LAST_WORD_H

#include <stdbool.h>

#include "mam.h"

/* MAM_SetOutOfMemoryCallback. */
void last_word_set(MAM_OutOfMemoryCallback callback, void *data);

/* The slow half of last_word_again. */
bool last_word_ask(MAM_Pool pool, size_t size, unsigned *attempts);

/* Whether an allocation that ended with this error is to be tried again, because the program's callback says so.  The
 * caller holds no lock.  pool: as the program named it, NULL for the default one.  *attempts: 0 at first; how often the
 * callback was asked about this allocation. */
static inline bool last_word_again(cudaError_t error, MAM_Pool pool, size_t size, unsigned *attempts) {
  return error == cudaErrorMemoryAllocation && last_word_ask(pool, size, attempts);
}

/* A function that allocates under a lock of its own begins with NO_LAST_WORD: until it returns, its thread asks
 * nothing.  The callback might need the lock. */
bool last_word_forbid(void);
void last_word_allow(const bool *before);
#define NO_LAST_WORD __attribute__((cleanup(last_word_allow), unused)) const bool last_word_before = last_word_forbid()

#endif
