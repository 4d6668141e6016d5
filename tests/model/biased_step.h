/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The build includes this file before everything else in the copy of biased.c, biased.h and claim.h that biased_test.c
 * explores.  Each access, barrier and yield of that code then calls a function of the test, with the memory order that
 * the code asks for.
 */
#ifndef MAM_TESTS_BIASED_STEP_H
#define MAM_TESTS_BIASED_STEP_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* as in biased.c, which comes later */
#endif
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

unsigned char biased_test_load(const volatile void *flag, memory_order order);
void biased_test_store(volatile void *flag, unsigned char value, memory_order order);
unsigned char biased_test_exchange(volatile void *flag, unsigned char value, memory_order order);
long biased_test_syscall(long number, ...);
int biased_test_yield(void);
void biased_test_walk(void);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#define atomic_load_explicit(flag, order) biased_test_load(flag, order)
#define atomic_store_explicit(flag, value, order) biased_test_store(flag, value, order)
#define atomic_exchange_explicit(flag, value, order) biased_test_exchange(flag, value, order)
#define syscall biased_test_syscall
#define BIASED_WAIT(wait) ((void)(wait), (void)biased_test_yield())
#define BIASED_WALK() biased_test_walk()

#endif
