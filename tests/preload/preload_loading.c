/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program of a library that opens the driver by itself (preload_loader.c).  It is linked with it and uses its
 * variables, and opens another one of them.
 */
#include <dlfcn.h>
#include <stdio.h>

extern int (*cuMemAlloc_v2)(unsigned long long *address, size_t bytes);
extern int (*cuMemFree_v2)(unsigned long long address);
int loader_run(void);

static int open_and_run(const char *path) {
  int (*run)(void);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return 1;
  *(void **)&run = dlsym(library, "loader_run");
  return run();
}

int main(int count, char **arguments) {
  unsigned long long address;
  printf("at the start: %s\n", cuMemAlloc_v2 != NULL || cuMemFree_v2 != NULL ? "there" : "absent");
  if (loader_run() != 0 || cuMemAlloc_v2(&address, 1000) != 0 || cuMemFree_v2(address) != 0)
    return 1;
  return count > 1 ? open_and_run(arguments[1]) : 0;
}
