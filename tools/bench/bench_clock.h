/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Time, and the memory of this process, as the benchmarks read them.  Knows nothing of allocators.
 */
#ifndef MAM_BENCH_CLOCK_H
#define MAM_BENCH_CLOCK_H

#include <stddef.h>
#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC. */
uint64_t clock_now_ns(void);

/* The cost of two clock_now_ns with nothing in between: a median, measured at the first call.  Call it once before
 * threads start. */
double clock_pair_ns(void);

/* How long the calling thread has had a processor, and how often it has slept. */
struct clock_thread {
  uint64_t cpu_ns, sleeps;
};
struct clock_thread clock_thread_now(void);

/* The time from start_ns to end_ns less the clock's own cost, never negative. */
double clock_span_ns(uint64_t start_ns, uint64_t end_ns);

void clock_sleep_ms(unsigned milliseconds);

/* The resident set of this process in bytes, after malloc has given its unused memory back to the system; 0 if it
 * cannot be read. */
size_t clock_resident_bytes(void);

/* Bytes that malloc has given out in this process, in all its arenas; 0 if this C library cannot say. */
size_t clock_malloc_bytes(void);

#endif
