/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Calls that fail for want of memory that a pool keeps.
 *
 * With the driver alone, memory that a program has freed can serve any later need: a stream-ordered pool, an array, a
 * module, a context, a kernel's stack.  A pool keeps such memory.  So each call that can answer "out of memory" (a row
 * AGAIN of the table) is made again after pools have given memory back.  That is safe, because a call that failed so
 * has done nothing.  When no pool gives any more, the program gets the driver's answer.
 */
#include "preload/preload.h"

enum {
  /* The first attempts use pools of this process: once for memory that lies free, once more with a wait for the GPU. */
  OWN_TRIES = 2,
  /* The others ask other processes.  One that brought memory counts as one: of several processes that ask at once, or
   * beside one that allocates all the time, one may get what was given back for all.  They take 10 ms each. */
  TRIES = OWN_TRIES + 100,
  /* One that brought nothing counts as so many.  The call is made again even so: what was given when another process
   * asked may have come after the call that failed. */
  VAIN_TRIES = 50
};

/* The wait for the GPU replaces those that the driver's own frees would have made.  It leaves out a context in which a
 * stream is captured. */
bool preload_make_room(unsigned *tries) {
  bool given = false, asked = false;
  if (preload_depth != 0 || !preload_active())
    return false;
  preload_depth++;
  for (; !given && *tries < OWN_TRIES; (*tries)++)
    given = mam_client.give_back(*tries > 0);
  if (!given && *tries < TRIES) {
    asked = preload_bell_ring(&given);
    *tries += given ? 1 : VAIN_TRIES;
  }
  preload_depth--;
  return given || asked;
}

#define HOOK(name, arguments)
#define REAL(name, arguments)
#define AGAIN(name, arguments, values)                                                                                 \
  CUresult name arguments {                                                                                            \
    const struct preload_real *real = preload_real_get();                                                              \
    unsigned tries = 0;                                                                                                \
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
