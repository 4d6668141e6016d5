/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Coroutines on one thread, for tests that choose who goes on: each runs until it yields or ends.  Switching costs no
 * call of the system.  Sanitizers do not follow a thread from stack to stack.
 */
#ifndef MAM_TESTS_COROUTINE_H
#define MAM_TESTS_COROUTINE_H

#include <setjmp.h>
#include <stdbool.h>
#include <ucontext.h>

enum { COROUTINES = 512, COROUTINE_STACK_BYTES = 64 * 1024 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COROUTINES_WORK = false };
#elif defined(__has_feature)
enum { COROUTINES_WORK = !(__has_feature(address_sanitizer) || __has_feature(thread_sanitizer)) };
#else
enum { COROUTINES_WORK = true };
#endif

static jmp_buf coroutine_places[COROUTINES], coroutine_caller;
static bool coroutine_began[COROUTINES], coroutine_lives[COROUTINES];
static _Alignas(16) char coroutine_stacks[COROUTINES][COROUTINE_STACK_BYTES];
static void (*coroutine_body)(int which);
/* -1: none.  Volatile: it is another after every yield, which a compiler that sees through the calls is not to guess.
 */
static volatile int coroutine_running = -1;

/* Each has the same body, which is told its number. */
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

/* Lets one go on until it yields or ends. */
static __attribute__((noinline)) void coroutine_resume(int which) {
  coroutine_running = which;
  if (_setjmp(coroutine_caller) == 0) {
    if (coroutine_began[which])
      _longjmp(coroutine_places[which], 1);
    coroutine_begin(which);
  }
  coroutine_running = -1;
}

/* Called by one: back to who resumed it. */
static __attribute__((noinline)) void coroutine_yield(void) {
  if (_setjmp(coroutine_places[coroutine_running]) == 0)
    _longjmp(coroutine_caller, 1);
}

#endif
