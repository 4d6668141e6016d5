/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A library that is preloaded and calls the driver from fork handlers, as libraries do that unregister memory before a
 * fork.  Its constructor runs before libmam's.
 */
#include <pthread.h>
#include <stddef.h>

/* Weak: a shell that runs before the program has no driver. */
__attribute__((weak)) int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
__attribute__((weak)) int cuMemFree_v2(unsigned long long address);
__attribute__((weak)) int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
__attribute__((weak)) int cuCtxSynchronize(void);
__attribute__((weak)) int cuDevicePrimaryCtxRetain(void **context, int device);
__attribute__((weak)) int cuDevicePrimaryCtxRelease(int device);

/* A pair, a wait, a question, and a reference to a context, as the CUDA runtime gives one back.  In a child they fail.
 */
static void call_driver(void) {
  void *context;
  unsigned long long address;
  size_t free_bytes, total_bytes;
  if (cuMemAlloc_v2 == NULL)
    return;
  if (cuMemAlloc_v2(&address, 1 << 20) == 0)
    (void)cuMemFree_v2(address);
  (void)cuCtxSynchronize();
  (void)cuMemGetInfo_v2(&free_bytes, &total_bytes);
  if (cuDevicePrimaryCtxRetain(&context, 0) == 0)
    (void)cuDevicePrimaryCtxRelease(0);
}

__attribute__((constructor)) static void begin(void) { (void)pthread_atfork(call_driver, call_driver, call_driver); }
