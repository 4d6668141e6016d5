/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A program with CUDA runtimes (preload_runtime.c), one of them in a library and one in itself, for
 * preload_run_test.sh.  Each function leaves blocks of a number of KiB that says which one it is.
 */
#include <stddef.h>

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int runtime_malloc(unsigned long long *address, size_t bytes);
int cudaMalloc(unsigned long long *address, size_t bytes);
int site_direct(void), site_shared(void), site_shared_twice(void), site_inside(void), site_inside_twice(void),
    site_template(void);

static const size_t KIB = 1024;
static unsigned long long block;

#define SITE __attribute__((noinline))

SITE int site_direct(void) { return cuMemAlloc_v2(&block, 64 * KIB) != 0; }
SITE int site_shared(void) { return runtime_malloc(&block, 128 * KIB) != 0; }
SITE int site_shared_twice(void) {
  return runtime_malloc(&block, 256 * KIB) != 0 || runtime_malloc(&block, 512 * KIB) != 0;
}
SITE int site_inside(void) { return cudaMalloc(&block, 1024 * KIB) != 0; }
SITE int site_inside_twice(void) { return cudaMalloc(&block, 2048 * KIB) != 0 || cudaMalloc(&block, 4096 * KIB) != 0; }

/* By the name that a compiler gives to cudaMalloc<float> of cuda_runtime_api.h. */
static int of_template(size_t bytes) __asm__("_Z10cudaMallocIfE9cudaErrorPPT_m");
static SITE int of_template(size_t bytes) { return cudaMalloc(&block, bytes) != 0; }
SITE int site_template(void) { return of_template(8192 * KIB) != 0; }

int main(void) {
  void *context = NULL;
  int failed = cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0;
  for (int i = 0; i < 4 && !failed; i++)
    failed = site_direct() || site_shared() || site_shared_twice() || site_inside() || site_inside_twice() ||
             site_template();
  return failed;
}
