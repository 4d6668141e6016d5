/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A GPU at work for one device heap: kernels of heap_kernels.cu and copies, one after another on a stream of their own.
 *
 * Knows contexts and the driver; nothing of heaps or pools.
 */
#ifndef MAM_LIB_HEAP_GPU_H
#define MAM_LIB_HEAP_GPU_H

#include "cuda/context.h"

enum heap_kernel {
  HEAP_KERNEL_CLEAR,
  HEAP_KERNEL_CLEAR_SLOTS,
  HEAP_KERNEL_DRAIN,
  HEAP_KERNEL_FREE,
  HEAP_KERNEL_RECORDS,
  HEAP_KERNEL_COMPACT,
  HEAP_KERNEL_WARP_LIST,
  HEAP_KERNEL_WARP_END,
  HEAP_KERNELS
};

struct heap_gpu {
  struct context context; /* borrowed: not to be released */
  CUstream stream;
  const CUfunction *kernels;
  unsigned multiprocessors;
};

/* Whether the library has kernels at all: cudaErrorNotSupported if it was built without CUDA. */
cudaError_t heap_gpu_known(void);

/* Opens for a context that outlives it.  The first time in a context its kernels are loaded, which takes milliseconds.
 * On failure *gpu is left alone. */
cudaError_t heap_gpu_open(const struct context *context, struct heap_gpu *gpu);
void heap_gpu_close(struct heap_gpu *gpu);

/* Each is done when it returns.  threads: at least so many, if all multiprocessors together have as many. */
cudaError_t heap_gpu_run(const struct heap_gpu *gpu, enum heap_kernel kernel, size_t threads, void **arguments);
cudaError_t heap_gpu_read(const struct heap_gpu *gpu, void *to, uint64_t from, size_t bytes);
cudaError_t heap_gpu_write(const struct heap_gpu *gpu, uint64_t to, const void *from, size_t bytes);

/* What a kernel writes to host memory when it is done with all memory but this word, and all is to be seen by kernels
 * that begin later: the host need not wait for its end, which it learns some microseconds later. */
struct heap_gpu_sign {
  const unsigned long long *word;
  unsigned long long value, mask;
};

/* Runs a kernel of so many blocks of threads on each multiprocessor, or of fewer where it has no room for them, all at
 * the same time, and waits for its sign. */
cudaError_t heap_gpu_run_together(const struct heap_gpu *gpu, enum heap_kernel kernel, unsigned blocks,
                                  unsigned threads, void **arguments, const struct heap_gpu_sign *sign);

/* Host memory that kernels write to, by the same address; given back while the context lives, else gone with it. */
cudaError_t heap_gpu_host_take(const struct heap_gpu *gpu, void **memory, size_t bytes);
void heap_gpu_host_give(const struct heap_gpu *gpu, void *memory);

#endif
