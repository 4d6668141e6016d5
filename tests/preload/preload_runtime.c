/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A made-up CUDA runtime: all allocations of a program go through one call of the driver.  Built as a library, without
 * frame pointers, and a second time for a program with names as the real one has there.
 */
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);

#ifdef RUNTIME_EMBEDDED
#define RUNTIME(name) libcudart_static_##name
#define runtime_malloc cudaMalloc
#else
#define RUNTIME(name) name
#endif

#define CALLED __attribute__((noinline))

int runtime_malloc(unsigned long long *address, size_t bytes);

#ifdef RUNTIME_EMBEDDED
/* Part of the real one is before the program's functions. */
__attribute__((constructor, section(".text.startup"))) static void RUNTIME(begin)(void) { __asm__ volatile(""); }
#endif

/* Each looks at what it gets, so that no call is a jump. */
static CALLED int RUNTIME(first)(unsigned long long *address, size_t bytes) {
#ifdef RUNTIME_EMBEDDED
  volatile char *some = __builtin_alloca(bytes / 16); /* the frame's size changes */
  some[0] = 0;
#endif
  return cuMemAlloc_v2(address, bytes) == 0 ? 0 : 2;
}

static CALLED int RUNTIME(last)(unsigned long long *address, size_t bytes);

CALLED int runtime_malloc(unsigned long long *address, size_t bytes) {
  return RUNTIME(last)(address, bytes) == 0 ? 0 : 3;
}

static CALLED int RUNTIME(last)(unsigned long long *address, size_t bytes) {
  return RUNTIME(first)(address, bytes) == 0 ? 0 : 4;
}
