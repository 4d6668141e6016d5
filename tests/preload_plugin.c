/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A second library of a program, as a Python extension module or a library with a CUDA runtime of its own: it reaches
 * the driver by its own symbols, and by dlsym from where it stands.  Built a second time as an interposer, with a
 * cuMemAlloc_v2 of its own that counts and passes on what comes after it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
void *plugin_next(const char *name);
void *plugin_default(const char *name);
int plugin_alloc(unsigned long long *address, size_t bytes);
int plugin_free(unsigned long long address);
unsigned plugin_calls(void);

#ifdef PLUGIN_INTERPOSES
static unsigned calls;

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  int (*next)(unsigned long long *, size_t);
  *(void **)&next = plugin_next("cuMemAlloc_v2");
  calls++;
  return next(address, bytes);
}

unsigned plugin_calls(void) { return calls; }
#else
unsigned plugin_calls(void) { return 0; }
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
