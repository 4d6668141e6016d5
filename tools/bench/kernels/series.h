/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the host and the kernels of `mam-bench warp` agree on: threads that each make a series of requests.  It is plain
 * C for both compilers, and knows no allocator.
 */
#ifndef MAM_BENCH_HEAP_SERIES_H
#define MAM_BENCH_HEAP_SERIES_H

#include "work.h"

/* The requests of one kernel, passed by value.  Addresses are of device memory. */
struct series_work {
  heap_word *slots;                 /* the block of thread t's request i is at i * threads + t */
  heap_word *handles;               /* for each thread what another kernel needs to free its memory */
  heap_word *failed;                /* counts requests without a block */
  heap_word threads;                /* threads beyond this number do nothing */
  unsigned count, bytes;            /* requests of a thread, and the bytes of each */
  unsigned superblock, first, most; /* of warp heaps: their options, in bytes */
};

#endif
