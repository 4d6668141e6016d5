/* SPDX-License-Identifier: BSD-2-Clause */
#define _GNU_SOURCE /* RUSAGE_THREAD */
#include "bench_clock.h"

#include <malloc.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench_numbers.h"

uint64_t clock_now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail: every Linux has this clock */
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct clock_thread clock_thread_now(void) {
  struct timespec cpu;
  struct rusage usage;
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  (void)getrusage(RUSAGE_THREAD, &usage);
  return (struct clock_thread){(uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec, (uint64_t)usage.ru_nvcsw};
}

static double pair_measure_ns(void) {
  enum { count = 1001 };
  double spans[count];
  for (size_t i = 0; i < count; i++) {
    uint64_t start_ns = clock_now_ns();
    spans[i] = (double)(clock_now_ns() - start_ns);
  }
  return numbers_quantile(spans, count, 0.5);
}

double clock_pair_ns(void) {
  static double pair_ns = -1;
  if (pair_ns < 0)
    pair_ns = pair_measure_ns();
  return pair_ns;
}

double clock_span_ns(uint64_t start_ns, uint64_t end_ns) {
  double span_ns = (double)(end_ns - start_ns) - clock_pair_ns();
  return span_ns > 0 ? span_ns : 0;
}

void clock_sleep_ms(unsigned milliseconds) {
  struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0)
    continue; /* a signal came: sleeps for the rest */
}

size_t clock_resident_bytes(void) {
  (void)malloc_trim(0); /* memory that an earlier test freed would hide growth */
  unsigned long total_pages, resident_pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL)
    return 0;
  if (fscanf(file, "%lu %lu", &total_pages, &resident_pages) != 2)
    resident_pages = 0;
  (void)fclose(file);
  return resident_pages * (size_t)sysconf(_SC_PAGESIZE);
}

size_t clock_malloc_bytes(void) {
#if __GLIBC_PREREQ(2, 33) /* the older mallinfo counts in int */
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}
