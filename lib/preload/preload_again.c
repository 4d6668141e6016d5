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
  /* The other attempts, two, ask other processes.  One may fail: of two processes that ask at once, one may get what
   * was given back for both. */
  TRIES = 4
};

/* The wait for the GPU replaces those that the driver's own frees would have made.  It leaves out a context in which a
 * stream is captured. */
bool preload_make_room(unsigned *tries) {
  bool given = false;
  if (preload_depth != 0 || !preload_active())
    return false;
  preload_depth++;
  for (; !given && *tries < TRIES; (*tries)++)
    given = *tries < OWN_TRIES ? mam_client.give_back(*tries > 0) : preload_bell_ring();
  preload_depth--;
  return given;
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
