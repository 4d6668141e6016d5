/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Helpers: the threads of the library.  They block all signals, which are the program's threads' to handle, and they
 * keep no process alive.
 *
 * The C library ends a process with its last thread, and a helper is a thread to it.  So where the program's main
 * thread has ended, by pthread_exit, a further helper looks how many threads there are, again and again, and calls exit
 * when only helpers are left.  Until then nothing is looked at.
 *
 * Why it is right.  A helper is counted after it was created and until it is about to end, both under the lock that is
 * held during a look: so no more helpers are counted than there are.  The kernel gives the number of threads as
 * one number, with the main thread in it, which stays as a zombie.  If that number is one more than the count, every
 * thread is a helper or has ended; and helpers begin no threads for the program.
 *
 * Threads that another library has begun, as the driver does, keep the process alive as they do without this one.
 * libmam_preload's thread is a helper (client.h): the driver's may have ended with the program's last context.
 */
#ifndef MAM_LIB_HELPER_H
#define MAM_LIB_HELPER_H

#include <pthread.h>

/* thread NULL: nobody joins it.  run calls helper_end last.  Answers with an error of the C library's, 0 for none. */
int helper_start(pthread_t *thread, void *(*run)(void *), void *closure);
void helper_end(void);

#endif
