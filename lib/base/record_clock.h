/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The clock of a record: the processor's counter where the kernel itself takes the time from it, else the kernel's
 * clock in nanoseconds, which costs more.  Only the files of a record include it.
 */
#ifndef MAM_LIB_RECORD_CLOCK_H
#define MAM_LIB_RECORD_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"

extern bool counter_used __attribute__((visibility("hidden")));

#if defined(__x86_64__)
#include <cpuid.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <x86intrin.h>

static inline bool counter_usable(void) {
  unsigned a, b, c, d;
  char text[16] = "";
  bool steady = __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0; /* in all states of the processor */
  bool ordered = __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (d >> 27 & 1) != 0; /* has rdtscp */
  int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  ssize_t bytes = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
  if (fd >= 0)
    (void)close(fd);
  return steady && ordered && bytes > 0 && strncmp(text, "tsc\n", 4) == 0; /* the same on all processors */
}
static inline uint64_t counter_before(void) { return __rdtsc(); }
/* The instruction waits for those before it. */
static inline uint64_t counter_after(void) {
  unsigned processor;
  return __rdtscp(&processor);
}
static inline uint64_t counter_ticks(uint64_t ns) { return ns * 3; }
#elif defined(__aarch64__)
static inline bool counter_usable(void) { return true; }
static inline uint64_t counter_before(void) {
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks)::"memory");
  return ticks;
}
static inline uint64_t counter_after(void) {
  uint64_t ticks;
  __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(ticks)::"memory");
  return ticks;
}
static inline uint64_t counter_ticks(uint64_t ns) {
  uint64_t frequency;
  __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(frequency));
  return ns * (frequency / 1000) / 1000000;
}
#else
static inline bool counter_usable(void) { return false; }
static inline uint64_t counter_before(void) { return 0; }
static inline uint64_t counter_after(void) { return 0; }
static inline uint64_t counter_ticks(uint64_t ns) { return ns; }
#endif

static inline void clock_set_up(void) { counter_used = counter_usable(); }

/* A time that is not later than what the thread's stores after it make others see; and one that is not earlier than
 * what it has seen before. */
static inline uint64_t clock_before(void) { return counter_used ? counter_before() : (uint64_t)now_ns(); }
static inline uint64_t clock_after(void) { return counter_used ? counter_after() : (uint64_t)now_ns(); }

/* Roughly. */
static inline uint64_t clock_ticks(uint64_t ns) { return counter_used ? counter_ticks(ns) : ns; }

#endif
