/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Calls that fail for want of memory that a pool keeps.  With the driver alone what a program has freed serves whatever
 * it asks for next: a stream-ordered pool, an array, a module, a context, a kernel's stack.  So each call that can
 * answer out of memory is made once more when pools have given back what they do not need; what the driver then answers
 * is the answer.  A call that failed so has done nothing.
 */
#include "preload/preload.h"

/* The last resort may be needed twice: of two processes that ask at once, one may have what was given to both. */
enum { OWN_TRIES = 2, TRIES = 4 };

/* At first what lies free; then also what waits for the GPU, as the driver's own frees would have waited before now.
 * A context in which a stream is captured is not waited for.  At last what other processes keep. */
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
