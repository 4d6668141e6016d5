/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Calls that fail for want of memory that a pool keeps.
 *
 * With the driver alone, memory that a program has freed can serve any later need: a stream-ordered pool, an array, a
 * module, a context, a kernel's stack.  A pool keeps such memory.  So each call that can answer "out of memory" (a row
 * AGAIN of the table) is made again after pools have given memory back.  That is safe, because a call that failed so
 * has done nothing.  When no pool gives any more, the program gets the driver's answer.
 */
#include "base/cancel.h"
#include "base/clock.h"
#include "preload/preload.h"

enum {
  /* The first attempts use pools of this process: once for memory that lies free, once more with a wait for the GPU,
   * and at last with what is only held softly for graphs, a rank at a time. */
  OWN_SOFT = 2,
  OWN_TRIES = OWN_SOFT + PRELOAD_HOLD_HARD,
  /* The others ask other processes.  After one that brought nothing the call is made again even so: what was given when
   * another process asked may have come after the call that failed. */
  VAIN_RINGS = 2,
  /* While others give, they are asked for so long: of several processes that ask at once, or beside one that allocates
   * all the time, one may get what was given back for all. */
  RINGS_MS = 1000
};

/* Gives the pool what is only held softly, and has pools give back.  Whether there was some: a pool may serve it even
 * if the driver got none. */
static bool soft_try(void) {
  if (!preload_soft_end())
    return false;
  (void)mam_client.give_back(true);
  return true;
}

/* The wait for the GPU replaces those that the driver's own frees would have made.  It leaves out a context in which a
 * stream is captured. */
bool preload_make_room(struct preload_tries *tries) {
  NOT_CANCELLED; /* waits for other processes */
  bool given = false, asked = false;
  if (preload_depth != 0 || !preload_active())
    return false;
  preload_depth++;
  for (; !given && tries->own < OWN_TRIES; tries->own++)
    given = tries->own >= OWN_SOFT ? soft_try() : mam_client.give_back(tries->own > 0);
  if (!given && tries->end_ns == 0)
    tries->end_ns = now_ns() + (int64_t)RINGS_MS * 1000000;
  if (!given && tries->vain_rings < VAIN_RINGS && now_ns() < tries->end_ns) {
    asked = preload_bell_ring(&given);
    tries->vain_rings += !given;
  }
  preload_depth--;
  return given || asked;
}

#define HOOK(name, arguments)
#define REAL(name, arguments)
#define AGAIN(name, arguments, values)                                                                                 \
  CUresult name arguments {                                                                                            \
    const struct preload_real *real = preload_real_get();                                                              \
    struct preload_tries tries = {0};                                                                                  \
    CUresult result;                                                                                                   \
    do                                                                                                                 \
      result = real != NULL && real->name != NULL ? real->name values : PRELOAD_NO_FUNCTION;                           \
    while (preload_again(result, &tries));                                                                             \
    return result;                                                                                                     \
  }
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL
