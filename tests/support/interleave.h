/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * All interleavings of a few actors.  Actors are mostly coroutines that yield before each step that others can see.
 *
 *   run 1    A A A B B B
 *   run 2    A A B ...        from the same beginning; another choice at one step
 *   run 3    A B A -> a state that was seen before: the rest is known
 *
 * A run is a string of choices: which actor goes at each step.  Runs are tried depth first, each from the same
 * beginning.  A run ends early at a state that was seen before.  A state is a hash of 64 bits over everything that
 * decides how the run goes on; the test computes it.  Among 10^6 states, two have the same hash with a probability of
 * 10^-7.
 */
#ifndef MAM_TESTS_INTERLEAVE_H
#define MAM_TESTS_INTERLEAVE_H

#include <check.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "coroutine.h"

enum { INTERLEAVE_STEPS = 2000, INTERLEAVE_STATES = 1 << 22 };

/* What is explored.  Actors are numbers from 0 to 7. */
struct interleave {
  const char *name;
  void (*begin)(void);          /* begins a run */
  unsigned (*can)(void);        /* a bit for each actor that can go; 0: the run is over */
  void (*go)(int actor);        /* lets an actor go one step */
  uint64_t (*state)(void);      /* the hash of the state, before a step */
  const char *(*fault)(void);   /* what is wrong in the state, NULL if nothing; the function may be NULL */
  const char *(*verdict)(void); /* what is wrong after the run, NULL if nothing */
};

static struct {
  const struct interleave *explored;
  unsigned char choices[INTERLEAVE_STEPS]; /* the actor that goes at each step of the present run */
  /* A bit for each actor that has gone at that step, in this run or earlier ones. */
  unsigned char tried[INTERLEAVE_STEPS];
  unsigned char could[INTERLEAVE_STEPS];
  size_t length;
  uint64_t *known; /* hashes of states, 0: none */
  size_t known_count;
} interleave;

/* Mixes a value into a hash.  The result for 0 and 0 is not 0. */
static inline uint64_t interleave_mix(uint64_t hash, uint64_t value) {
  hash = (hash + 0x632be59bd9b4e019u + value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

/* Whether a state was seen before.  Remembers it. */
static inline bool interleave_is_known(uint64_t hash) {
  hash |= hash == 0;
  size_t i = hash % INTERLEAVE_STATES;
  while (interleave.known[i] != 0 && interleave.known[i] != hash)
    i = (i + 1) % INTERLEAVE_STATES;
  if (interleave.known[i] == hash)
    return true;
  if (++interleave.known_count > INTERLEAVE_STATES / 2)
    ck_abort_msg("%s has too many states", interleave.explored->name);
  interleave.known[i] = hash;
  return false;
}

/* The actor that goes at this step: the one in the string or, past its end, the first that can. */
static inline unsigned interleave_choose(size_t prefix, unsigned can) {
  size_t at = interleave.length;
  if (at >= prefix) {
    interleave.choices[at] = (unsigned char)__builtin_ctz(can);
    interleave.tried[at] = (unsigned char)(1u << interleave.choices[at]);
    interleave.could[at] = (unsigned char)can;
  }
  if ((can >> interleave.choices[at] & 1) == 0)
    ck_abort_msg("a run of %s is another one the second time", interleave.explored->name);
  return interleave.choices[at];
}

/* Runs the string of choices and then goes on to the end, or to a state that was seen before.  Returns what is wrong,
 * NULL if nothing. */
static inline const char *interleave_run(size_t prefix) {
  const struct interleave *explored = interleave.explored;
  explored->begin();
  for (interleave.length = 0;; interleave.length++) {
    const char *fault = explored->fault == NULL ? NULL : explored->fault();
    unsigned can = explored->can();
    if (fault != NULL || can == 0)
      return fault != NULL ? fault : explored->verdict();
    if (interleave.length >= prefix && interleave_is_known(explored->state()))
      return NULL;
    if (interleave.length + 1 == INTERLEAVE_STEPS)
      ck_abort_msg("a run of %s is longer than any should be", explored->name);
    explored->go((int)interleave_choose(prefix, can));
  }
}

/* Makes the next string: the longest beginning of this run whose last choice can still be changed.  Returns its length.
 * 0: all strings were tried. */
static inline size_t interleave_next(void) {
  for (size_t i = interleave.length; i-- > 0;) {
    unsigned rest = interleave.could[i] & ~(unsigned)interleave.tried[i];
    if (rest == 0)
      continue;
    interleave.choices[i] = (unsigned char)__builtin_ctz(rest);
    interleave.tried[i] |= (unsigned char)(1u << interleave.choices[i]);
    return i + 1;
  }
  return 0;
}

/* Returns the first fault that is found, NULL if there is none.  *states: how many states there are. */
static inline const char *interleave_explore(const struct interleave *explored, size_t *states) {
  size_t prefix = 0, runs = 0;
  const char *fault = NULL;
  interleave.explored = explored;
  interleave.known = (uint64_t *)calloc(INTERLEAVE_STATES, sizeof *interleave.known);
  interleave.known_count = 0;
  ck_assert_ptr_nonnull(interleave.known);
  do {
    fault = interleave_run(prefix);
    runs++;
  } while (fault == NULL && (prefix = interleave_next()) != 0);
  free(interleave.known);
  *states = interleave.known_count;
  (void)printf("%s: %zu states, %zu runs: %s\n", explored->name, *states, runs, fault == NULL ? "sound" : fault);
  return fault;
}

#endif
