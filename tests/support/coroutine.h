/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Coroutines on one thread, for tests that choose which one goes on.  Each runs until it yields or ends.  A switch is a
 * _setjmp and a _longjmp, and makes no system call.
 *
 * Sanitizers do not follow a thread from stack to stack, so with them COROUTINES_WORK is false and a test leaves its
 * coroutines out.
 */
#ifndef MAM_TESTS_COROUTINE_H
#define MAM_TESTS_COROUTINE_H

#include <setjmp.h>
#include <stdbool.h>
#include <ucontext.h>

#include "support/sanitized.h"

/* How many there are at most; a test may say it. */
#ifndef COROUTINES
#define COROUTINES 512
#endif
#ifndef COROUTINE_STACK_BYTES
#define COROUTINE_STACK_BYTES (64 * 1024)
#endif

enum { COROUTINES_WORK = !SANITIZED };

static jmp_buf coroutine_places[COROUTINES], coroutine_caller;
static bool coroutine_began[COROUTINES], coroutine_lives[COROUTINES];
static char coroutine_stacks[COROUTINES][COROUTINE_STACK_BYTES] __attribute__((aligned(16)));
static void (*coroutine_body)(int which);
/* Which coroutine runs, -1: none.  Volatile, because it changes over each yield: a compiler that sees through the calls
 * could keep the old value. */
static volatile int coroutine_running = -1;

/* Creates a coroutine.  All have the same body, which is told the number of its coroutine. */
static inline void coroutine_create(int which, void (*body)(int which)) {
  coroutine_body = body;
  coroutine_began[which] = false;
  coroutine_lives[which] = true;
}

static void coroutine_main(void) {
  coroutine_body(coroutine_running);
  coroutine_lives[coroutine_running] = false;
  _longjmp(coroutine_caller, 1);
}

static inline void coroutine_begin(int which) {
  ucontext_t context;
  (void)getcontext(&context);
  context.uc_stack.ss_sp = coroutine_stacks[which];
  context.uc_stack.ss_size = COROUTINE_STACK_BYTES;
  context.uc_link = NULL;
  makecontext(&context, coroutine_main, 0);
  coroutine_began[which] = true;
  (void)setcontext(&context);
}

/* Lets a coroutine go on until it yields or ends. */
static __attribute__((noinline)) void coroutine_resume(int which) {
  coroutine_running = which;
  if (_setjmp(coroutine_caller) == 0) {
    if (coroutine_began[which])
      _longjmp(coroutine_places[which], 1);
    coroutine_begin(which);
  }
  coroutine_running = -1;
}

/* Called by a coroutine: goes back to the caller of coroutine_resume. */
static __attribute__((noinline)) void coroutine_yield(void) {
  if (_setjmp(coroutine_places[coroutine_running]) == 0)
    _longjmp(coroutine_caller, 1);
}

#endif
