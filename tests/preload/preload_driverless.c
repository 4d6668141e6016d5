/* SPDX-License-Identifier: BSD-2-Clause */
/* A program that uses the driver where there is one: it has no library of its, and looks whether somebody else does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) __attribute__((weak));
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) __attribute__((weak));

static int (*const in_a_table)(unsigned long long *, size_t) = cuMemAlloc_v2;
static const char *early = "unseen";

__attribute__((constructor)) static void look_early(void) { early = cuMemAlloc_v2 != NULL ? "there" : "absent"; }

int main(void) {
  printf("at the start: %s\n", dlerror() != NULL ? "an error" : "no error");
  void *anybody = dlopen(NULL, RTLD_NOW);
  (void)dlerror();
  printf("by default: %s\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL ? "there" : "absent");
  printf("dlerror: %s\n", dlerror() != NULL ? "told" : "silent");
  printf("next: %s\n", dlsym(RTLD_NEXT, "cuGetProcAddress_v2") != NULL ? "there" : "absent");
  printf("in the program: %s\n", dlsym(anybody, "cuMemAlloc_v2") != NULL ? "there" : "absent");
  printf("weak: %s, %s, %s\n", cuMemGetInfo_v2 != NULL ? "there" : "absent", early,
         *(int (*const volatile *)(unsigned long long *, size_t)) & in_a_table != NULL ? "there" : "absent");
  printf("answer: %d\n", cuMemAlloc_v2 != NULL ? cuMemAlloc_v2(&(unsigned long long){0}, 1000) : 0);
  return 0;
}
