/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the host and the kernels of `mam-bench heap` agree on: the requests of a kernel, and the counts of its answers.
 * It is plain C for both compilers, and knows no allocator.
 */
#ifndef MAM_BENCH_HEAP_WORK_H
#define MAM_BENCH_HEAP_WORK_H

#ifdef __CUDACC__
#define HEAP_WORK_FUNCTION static __host__ __device__ inline
#else
#define HEAP_WORK_FUNCTION static inline
#endif

typedef unsigned long long heap_word;

enum {
  heap_handle_words = 16, /* enough for every allocator's handle */
  heap_chance_whole = 65536,
  heap_cycles_free = 1u << 30, /* set in the cycles of a free; heap_cycles_failed is set in those of a failed request */
  heap_cycles_failed = 1u << 29,
  heap_cycles_most = (1u << 29) - 1,
  heap_width_wide = 32 /* lanes that look at a block together */
};

/* The requests of one kernel, passed by value.  Addresses are of device memory. */
struct heap_work {
  heap_word *slots;     /* the block of each request, 0 for none */
  unsigned *sizes;      /* the bytes that each request asked for; NULL: not noted */
  unsigned *cycles;     /* the cycles of each request, 0 if there was none; NULL: not timed */
  heap_word count;      /* of requests */
  unsigned every_shift; /* one thread in 2^this has a request */
  unsigned low, high;   /* sizes are drawn evenly from these, both included */
  unsigned seed;
  unsigned alloc_chance, free_chance; /* in heap_chance_whole */
};

/* What is wrong with the blocks; all 0 if nothing is. */
struct heap_faults {
  heap_word failed; /* requests without a block, which is right where the heap was full */
  heap_word misaligned, outside, overlapped;
};

/* Live blocks: formula 1 of the paper is waste / blocks. */
struct heap_inside {
  heap_word blocks, asked_bytes, block_bytes;
  double waste; /* the sum of (size - asked) / size */
};

/* What is free, if an allocator can say. */
struct heap_survey {
  heap_word free_bytes, largest_free_bytes, metadata_bytes;
};

/* Mixes the bits of a number, so that close numbers give unrelated results. */
HEAP_WORK_FUNCTION unsigned heap_mix(unsigned x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

HEAP_WORK_FUNCTION unsigned heap_size(const struct heap_work *work, unsigned request) {
  if (work->low == work->high)
    return work->low;
  return work->low + heap_mix(request * 0x9e3779b9u + work->seed) % (work->high - work->low + 1);
}

#endif
