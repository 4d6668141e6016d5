/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A library that opens the driver by itself, as CUEW does: what it finds is in variables that have the names of the
 * driver's functions.
 */
#include <dlfcn.h>
#include <stddef.h>

int (*cuInit)(unsigned flags);
int (*cuDevicePrimaryCtxRetain)(void **context, int device);
int (*cuCtxSetCurrent)(void *context);
int (*cuMemAlloc_v2)(unsigned long long *address, size_t bytes);
int (*cuMemFree_v2)(unsigned long long address);

int loader_run(void);

/* A table of variables: references that are in data. */
static const struct {
  const char *name;
  void *variable;
} table[] = {{"cuCtxSetCurrent", &cuCtxSetCurrent}, {"cuMemFree_v2", &cuMemFree_v2}};

int loader_run(void) {
  void *context = NULL, *driver = dlopen("libcuda.so.1", RTLD_NOW);
  unsigned long long address;
  if (driver == NULL)
    return 1;
  *(void **)&cuInit = dlsym(driver, "cuInit");
  *(void **)&cuDevicePrimaryCtxRetain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&cuMemAlloc_v2 = dlsym(driver, "cuMemAlloc_v2");
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
    *(void **)table[i].variable = dlsym(driver, table[i].name);
  return cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context) | cuMemAlloc_v2(&address, 1000) |
         cuMemFree_v2(address);
}
