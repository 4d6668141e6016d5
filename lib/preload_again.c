/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Calls that fail for want of memory that a pool keeps.  With the driver alone what a program has freed serves whatever
 * it asks for next: a stream-ordered pool, an array, a module, a context, a kernel's stack.  So each call that can
 * answer out of memory is made once more when pools have given back what they do not need; what the driver then answers
 * is the answer.  A call that failed so has done nothing.
 */
#include "preload.h"

/* At first what lies free; then also what waits for the GPU, as the driver's own frees would have waited before now.
 * A context in which a stream is captured is not waited for. */
bool preload_make_room(unsigned *tries) {
  bool given = false;
  if (preload_depth != 0 || !preload_active())
    return false;
  preload_depth++;
  while (!given && *tries < 2)
    given = mam_client.give_back((*tries)++ > 0);
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
#include "preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL
