/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An interposer that counts memory, of the kind that containers are given quotas by: it has functions under the names
 * of the driver's and a dlsym that finds them, and reaches what it stands in front of by the next dlsym, which it looks
 * up by glibc's version.  At exit it prints what it saw.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);

static unsigned allocations, frees;

static void *next_dlsym(void *library, const char *name) {
  static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17"};
  static void *(*next)(void *, const char *);
  for (int i = 0; i < 2 && next == NULL; i++)
    *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  return next(library, name);
}

static void *driver_function(const char *name) {
  static void *library;
  if (library == NULL)
    library = dlopen("libcuda.so.1", RTLD_NOW);
  return next_dlsym(library, name);
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  int (*real)(unsigned long long *, size_t);
  *(void **)&real = driver_function("cuMemAlloc_v2");
  allocations++;
  return real(address, bytes);
}

int cuMemFree_v2(unsigned long long address) {
  int (*real)(unsigned long long);
  *(void **)&real = driver_function("cuMemFree_v2");
  frees++;
  return real(address);
}

/* Of other libraries' callers RTLD_NEXT is not as they mean it, which is so of its kind. */
void *dlsym(void *library, const char *name) {
  if (strcmp(name, "cuMemAlloc_v2") == 0)
    return (void *)cuMemAlloc_v2;
  if (strcmp(name, "cuMemFree_v2") == 0)
    return (void *)cuMemFree_v2;
  return next_dlsym(library, name);
}

__attribute__((destructor)) static void tell(void) {
  if (strstr(program_invocation_short_name, "preload_program") != NULL) /* not of a shell on the way there */
    (void)fprintf(stderr, "quota saw %u allocations and %u frees\n", allocations, frees);
}
