/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The heaps that `mam-bench heap` compares, behind one table of functions: how each is made, emptied and looked into.
 *
 * It does not know what is measured.  A function that returns bool has said on stderr what failed.
 */
#ifndef MAM_BENCH_HEAP_ALLOCATORS_H
#define MAM_BENCH_HEAP_ALLOCATORS_H

#include "bench_heap_gpu.h"

struct heap;

struct heap_allocator {
  const char *name;
  const char *image;               /* of its kernels */
  bool hands_out;                  /* its blocks can be used; those of the floor cannot */
  bool guarded;                    /* its kernels may not end: it runs in a process of its own, with a time limit */
  bool fixed;                      /* one heap for the life of the process */
  bool slow;                       /* gets fewer repetitions */
  size_t requests_most;            /* in one kernel, so that it ends in bearable time */
  bool (*open)(struct heap *heap); /* makes a heap of heap->bytes, in so many superblocks, and fills handle */
  void (*close)(struct heap *heap);
  bool (*reset)(struct heap *heap);                              /* frees everything; NULL: it cannot */
  bool (*survey)(struct heap *heap, struct heap_survey *survey); /* NULL: it cannot say */
};

enum { heap_allocators_most = 6 };

/* All allocators that this program has kernels for, ours first, then the floor.  Returns their number. */
size_t heap_allocators_get(const struct heap_allocator *list[heap_allocators_most]);

/* A heap on which something is measured. */
struct heap {
  const struct heap_allocator *allocator;
  const struct heap_gpu *gpu;
  size_t bytes;
  unsigned superblocks;
  heap_word handle[heap_handle_words];
  heap_word low, high; /* blocks lie in [low, high), where that is known */
  double create_us;    /* the time to make the heap, without its memory */
  CUmodule module;
  CUfunction malloc, free, churn, churn_timed, look_inside;
  /* Kernels of this allocator alone. */
  CUfunction prepare, look_free;
  CUdeviceptr memory;
  void *pool, *own;
};

/* Loads the allocator's kernels and makes its heap.  Call heap_end in any case. */
bool heap_begin(struct heap *heap, const struct heap_allocator *allocator, const struct heap_gpu *gpu, size_t bytes,
                unsigned superblocks);
void heap_end(struct heap *heap);

/* Calls heap_begin unless the heap is already as wanted. */
bool heap_want(struct heap *heap, const struct heap_allocator *allocator, const struct heap_gpu *gpu, size_t bytes,
               unsigned superblocks);

#endif
