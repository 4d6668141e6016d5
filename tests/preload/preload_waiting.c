/* SPDX-License-Identifier: BSD-2-Clause */
/* A library whose constructor waits for a thread that allocates, in the context of the program. */
#include <pthread.h>
#include <stddef.h>

int cuCtxGetCurrent(void **context);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);

static void *allocate(void *context) {
  static char failed;
  unsigned long long address;
  return cuCtxSetCurrent(context) != 0 || cuMemAlloc_v2(&address, 1000) != 0 || cuMemFree_v2(address) != 0 ? &failed
                                                                                                           : NULL;
}

int waiting_failed = 1;

__attribute__((constructor)) static void wait_for_it(void) {
  pthread_t thread;
  void *context, *failed;
  waiting_failed = cuCtxGetCurrent(&context) != 0 || pthread_create(&thread, NULL, allocate, context) != 0 ||
                   pthread_join(thread, &failed) != 0 || failed != NULL;
}
