/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A second library of a program, as a Python extension module or a library with a CUDA runtime of its own: it reaches
 * the driver by its own symbols, and by dlsym from where it stands.  Built a second time as an interposer, with
 * functions of its own that count and pass on what comes after it, and print at exit what they
 * saw.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
void *plugin_next(const char *name);
void *plugin_inner_next(const char *name);
void *plugin_default(const char *name);
int plugin_alloc(unsigned long long *address, size_t bytes);
int plugin_free(unsigned long long address);
unsigned plugin_calls(void);

#ifdef PLUGIN_INTERPOSES
int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream);

static unsigned calls, stream_calls, frees;

/* It needs the driver, whatever it has itself. */
int cuInit(unsigned flags);
extern int (*const plugin_init)(unsigned);
int (*const plugin_init)(unsigned) = cuInit;

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  int (*next)(unsigned long long *, size_t);
  *(void **)&next = plugin_next("cuMemAlloc_v2");
  calls++;
  return next(address, bytes);
}

int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream) {
  int (*next)(unsigned long long *, size_t, void *);
  *(void **)&next = plugin_next("cuMemAllocAsync");
  stream_calls++;
  return next(address, bytes, stream);
}

int cuMemFree_v2(unsigned long long address) {
  int (*next)(unsigned long long);
  *(void **)&next = plugin_next("cuMemFree_v2");
  frees++;
  return next(address);
}

unsigned plugin_calls(void) { return calls; }

__attribute__((destructor)) static void tell(void) {
  if (strstr(program_invocation_short_name, "preload_program") != NULL) /* not of a shell on the way there */
    (void)fprintf(stderr, "interposer saw %u and %u allocations and %u frees\n", calls, stream_calls, frees);
}
#else
void *inner_next(const char *name);

unsigned plugin_calls(void) { return 0; }

/* As a library asks that only this one needs. */
void *plugin_inner_next(const char *name) { return inner_next(name); }
#endif

/* volatile: a tail call would show dlsym the caller's library instead */
void *plugin_next(const char *name) {
  void *volatile found = dlsym(RTLD_NEXT, name);
  return found;
}

void *plugin_default(const char *name) {
  void *volatile found = dlsym(RTLD_DEFAULT, name);
  return found;
}

int plugin_alloc(unsigned long long *address, size_t bytes) { return cuMemAlloc_v2(address, bytes); }
int plugin_free(unsigned long long address) { return cuMemFree_v2(address); }
