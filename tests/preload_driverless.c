/* SPDX-License-Identifier: BSD-2-Clause */
/* A program that uses the driver where there is one: it has no library of its, and looks whether somebody else does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

int main(void) {
  void *anybody = dlopen(NULL, RTLD_NOW);
  (void)dlerror();
  printf("by default: %s\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") != NULL ? "there" : "absent");
  printf("dlerror: %s\n", dlerror() != NULL ? "told" : "silent");
  printf("next: %s\n", dlsym(RTLD_NEXT, "cuGetProcAddress_v2") != NULL ? "there" : "absent");
  printf("in the program: %s\n", dlsym(anybody, "cuMemAlloc_v2") != NULL ? "there" : "absent");
  return 0;
}
