/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program that is itself linked with libmam: under mam-run it has one pool by whichever name it allocates.  With an
 * argument it forks while threads allocate by libmam, which needs no driver if its pool is of host memory.
 */
#include <mam.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fake_driver.h"

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);

static void *allocate_many_sizes(void *unused) {
  unsigned seed = (unsigned)(uintptr_t)&seed;
  (void)unused;
  for (;;) {
    void *block;
    if (MAM_CudaMalloc(&block, 1000 + (unsigned)rand_r(&seed) % (80u << 20)) == cudaSuccess)
      (void)MAM_CudaFree(block);
  }
  return NULL;
}

static int fork_busy(void) {
  pthread_t thread;
  int status = 0;
  for (int i = 0; i < 4; i++)
    if (pthread_create(&thread, NULL, allocate_many_sizes, NULL) != 0)
      return 1;
  for (int i = 0; i < 300; i++) {
    pid_t child = fork();
    if (child == 0)
      _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
      return 1;
  }
  puts("forked");
  return 0;
}

int main(int count, char **arguments) {
  void *context = NULL, *ours = NULL;
  unsigned long long theirs = 0;
  (void)arguments;
  if (count > 1)
    return fork_busy();
  if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
    return 1;
  if (MAM_CudaMalloc(&ours, 1000) != cudaSuccess || cuMemAlloc_v2(&theirs, 1000) != 0)
    return 2;
  if (fake_live_blocks() == 1)
    puts("one pool");
  /* each may be freed by the other's name */
  if (MAM_CudaFree((void *)(uintptr_t)theirs) != cudaSuccess || cuMemFree_v2((uintptr_t)ours) != 0)
    return 3;
  return fake_wrong_frees() == 0 ? 0 : 4;
}
