/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A GPU at work for one device heap: kernels of heap_kernels.cu and copies, one after another on a stream of their own.
 *
 * Knows contexts and the driver; nothing of heaps or pools.
 */
#ifndef MAM_LIB_HEAP_GPU_H
#define MAM_LIB_HEAP_GPU_H

#include "context.h"

enum heap_kernel {
  HEAP_KERNEL_CLEAR,
  HEAP_KERNEL_CLEAR_SLOTS,
  HEAP_KERNEL_DRAIN,
  HEAP_KERNEL_FREE,
  HEAP_KERNEL_RECORDS,
  HEAP_KERNEL_COMPACT_SLOTS,
  HEAP_KERNEL_COMPACT_LOOK,
  HEAP_KERNEL_COMPACT_SUM,
  HEAP_KERNEL_COMPACT_ORDER,
  HEAP_KERNEL_COMPACT_MERGE,
  HEAP_KERNEL_COMPACT_REWRITE,
  HEAP_KERNEL_COMPACT_ROOTS,
  HEAP_KERNEL_COMPACT_WATCH,
  HEAP_KERNEL_COMPACT_RELEASE,
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

/* Work that is enqueued without waiting for each piece.  After a failure the rest is left out, and the next
 * heap_gpu_work_wait or heap_gpu_work_end says so. */
struct heap_gpu_work {
  const struct heap_gpu *gpu;
  struct context_visit visit;
  CUresult result;
  const char *what; /* failed */
};

/* heap_gpu_work_end follows if it succeeds. */
cudaError_t heap_gpu_work_begin(const struct heap_gpu *gpu, struct heap_gpu_work *work);
void heap_gpu_work_run(struct heap_gpu_work *work, enum heap_kernel kernel, size_t threads, void **arguments);
void heap_gpu_work_read(struct heap_gpu_work *work, void *to, uint64_t from, size_t bytes);
void heap_gpu_work_write(struct heap_gpu_work *work, uint64_t to, const void *from, size_t bytes);
cudaError_t heap_gpu_work_wait(struct heap_gpu_work *work);
cudaError_t heap_gpu_work_end(struct heap_gpu_work *work);

#endif
