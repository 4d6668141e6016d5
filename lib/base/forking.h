/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fork.  A thread that forks holds the library still, with all of its locks, from the first of the library's fork
 * handlers to the last, so that the child finds everything complete.
 *
 * In between run fork handlers of the program and of other libraries, and these may call the library.  Such a call lets
 * all locks go at its beginning (LIBRARY_CALL, library_call.h).  Before the fork it takes them again at its end; after
 * the fork the library is not held again, and in the child it is then made ready at once.
 *
 *   fork: handlers before                                   handlers after, in the parent and in the child
 *         the library's | others'            | the library's   the library's | others'         | the library's
 *         holds         | call: lets go,     |                               | call: lets go   | lets go
 *                       |       holds again  |                               |                 |
 *
 * Threads call malloc and the driver while they hold locks of the library.  Both may have fork handlers that take locks
 * of their own.  So the library's locks must be taken before those, or fork waits for a thread that waits for fork.
 * The handlers before a fork run in the reverse order of their registration, so the library registers after the two:
 * after an allocation, at which an allocator registers at the latest, and again when the driver is initialised.  The
 * first run of the handlers before a fork takes the locks, and the last one of those after it gives them back.  A fork
 * that has begun when another thread initialises the driver has the first registration only: it may wait for ever if
 * the driver's own handler keeps that thread waiting.
 */
#ifndef MAM_LIB_FORKING_H
#define MAM_LIB_FORKING_H

#include <stdbool.h>

/* What has locks, in the order in which they are taken. */
enum fork_part {
  FORK_HEAP_SERVICES,
  FORK_HEAPS,
  FORK_LAST_WORD,
  FORK_ENVIRONMENT,
  FORK_HELPERS,
  FORK_CLIENT,
  FORK_PARTS
};

/* Takes the locks of a part, and gives them back.  In the child, let_go makes the part ready for a process with one
 * thread.  Neither calls the program. */
struct fork_functions {
  void (*hold)(void); /* NULL: the part takes none, and makes them anew in the child */
  void (*let_go)(bool in_child);
};

/* Registers a part, at any time, once or more often. */
void fork_join(enum fork_part part, const struct fork_functions *functions);

/* Registers the handlers: called twice, see above. */
void fork_handle(void);

/* Whether the calling thread forks, and holds the library still. */
extern __thread bool fork_holds __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* For a thread for which that is true, in a call of the program's: lets go.  Whether fork_step_in is to be called at
 * the end of the call. */
bool fork_step_out(void);
void fork_step_in(void);

#endif
