/* SPDX-License-Identifier: BSD-2-Clause */
/* A program that is itself linked with libmam: under mam-run it has one pool by whichever name it allocates. */
#include <mam.h>
#include <stdio.h>

#include "support/fake_driver.h"

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);

int main(void) {
  void *context = NULL, *ours = NULL;
  unsigned long long theirs = 0;
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
