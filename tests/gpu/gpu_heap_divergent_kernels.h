/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernels whose lanes part and meet again in every way that CUDA C++ has, around mam_malloc and mam_free.
 *
 * A kernel checks each address before it uses it: it has to lie in the heap's pages, be a multiple of 16, and belong to
 * no other thread.  A wrong address is counted, and neither written to nor freed.  Each owner adds to the first and the
 * last word of its block by plain loads and stores, so the sum over the heap tells whether owners saw each other's
 * writes.
 *
 * The file with the kernels is compiled several times with different options of the compiler.  Each object exports one
 * function, whose name the macro DIVERGENT_LAUNCH gives.  It knows nothing of Check.
 */
#ifndef MAM_TESTS_GPU_HEAP_DIVERGENT_KERNELS_H
#define MAM_TESTS_GPU_HEAP_DIVERGENT_KERNELS_H

#include <stdint.h>

#include <cuda_runtime_api.h>

#include "mam/heap.h"

/* A case is a kernel, or a kernel and another one that frees the blocks it leaves.  PLAIN kernels never read
 * divergent_job.owners, so that the heap's own atomic operations are the only ones. */
enum divergent_case {
  DIVERGENT_CONTINUE_PLAIN,     /* a loop with continue before and after malloc; one size for all, known at run time */
  DIVERGENT_CONTINUE_CONSTANT,  /* the same, plain, with 16 bytes, known to the compiler */
  DIVERGENT_CONTINUE_OWNED,     /* the same with one size for all and owners */
  DIVERGENT_CONTINUE_VARIED,    /* the same with a size for each lane */
  DIVERGENT_BREAK,              /* loops in loops, with break and continue, several blocks at once */
  DIVERGENT_RETURN,             /* lanes that return at different places; some leave a block to the next kernel */
  DIVERGENT_SITES,              /* many calls in branches, of constant and other sizes */
  DIVERGENT_SWITCH,             /* a switch that mixes requests and frees, with cases that fall through */
  DIVERGENT_TEMPLATES,          /* calls nested by templates, each in a branch */
  DIVERGENT_TWO_HEAPS,          /* lanes of one warp in two heaps at once */
  DIVERGENT_HEAP_OF_LANE,       /* the same by one call, to which each lane gives the handle of its heap */
  DIVERGENT_LOCKS,              /* calls by the lane that holds a lock for which others of its warp spin */
  DIVERGENT_SHARED_BARRIER,     /* blocks change hands through shared memory, between barriers */
  DIVERGENT_SHARED_EXCHANGE,    /* the same by atomic exchanges, without barriers */
  DIVERGENT_GLOBAL_EXCHANGE,    /* the same through global memory; the last are left to the next kernel */
  DIVERGENT_LANE_EXCHANGE,      /* the same between lanes of a warp, by shuffles */
  DIVERGENT_TILES,              /* tiles of cooperative groups: one lane asks for all, and each for itself */
  DIVERGENT_COALESCED,          /* the same by whatever lanes are together in a branch */
  DIVERGENT_GRID,               /* blocks change hands over the whole grid, by grid barriers */
  DIVERGENT_CLUSTER,            /* the same between the thread blocks of a cluster, through their shared memory */
  DIVERGENT_ODD_SHAPE,          /* thread blocks of three dimensions with a part of a warp at their end */
  DIVERGENT_LARGE,              /* requests of whole pages beside small ones */
  DIVERGENT_WIDE,               /* thread blocks of 1,024 */
  DIVERGENT_WARP_PARTS,         /* warp heaps that are started by parts of warps in a loop */
  DIVERGENT_WARP_TILES,         /* the same by tiles */
  DIVERGENT_WARP_LANES,         /* the same by given lanes, the others meanwhile in the device heap */
  DIVERGENT_POINTERS,           /* calls through function pointers that differ from lane to lane */
  DIVERGENT_RECURSION,          /* trees that are built and torn down by functions that call themselves, */
  DIVERGENT_RECURSION_POINTERS, /* through function pointers, */
  DIVERGENT_RECURSION_VIRTUAL,  /* and as objects with virtual functions */
  DIVERGENT_CASES,
  DIVERGENT_DRAIN = DIVERGENT_CASES /* frees what another kernel left; not a case */
};

/* What kernels counted. */
struct divergent_tally {
  unsigned long long served, refused, freed;
  unsigned long long added;      /* the sum of what was added to words of blocks */
  unsigned long long wild;       /* addresses that are not in the heap, or not a multiple of 16 */
  unsigned long long first_wild; /* one of them */
  unsigned long long shared;     /* blocks that another thread already owned */
  unsigned long long lost;       /* blocks that the owner no longer owned when it freed them */
  unsigned long long changed;    /* contents that had changed */
  unsigned long long unsupported;
};

/* One launch. */
struct divergent_job {
  uint64_t base, bytes;     /* of the heap's pages */
  uint32_t *owners;         /* a bit for each 16 bytes of them: whether a thread owns them; NULL: no such check */
  unsigned long long *mail; /* blocks on their way to another thread, 0 for none: mail_count places */
  struct divergent_tally *tally;
  unsigned mail_count;      /* at least as many as threads */
  unsigned blocks, threads; /* of the grid and of a thread block; fewer where the kernel does not allow as many */
  unsigned rounds, seed;
  unsigned low, high; /* bytes of a request, both included */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues the case on the stream and returns what the launch answered.  other is a second heap with a job of its own,
 * for DIVERGENT_TWO_HEAPS and DIVERGENT_HEAP_OF_LANE. */
typedef cudaError_t divergent_launch(enum divergent_case which, mam_device_heap heap, struct divergent_job job,
                                     mam_device_heap other, struct divergent_job other_job, cudaStream_t stream);

divergent_launch divergent_launch_o3, divergent_launch_debug, divergent_launch_ptxas_o1, divergent_launch_rdc,
    divergent_launch_registers_32, divergent_launch_registers_64, divergent_launch_checked;

/* The same for the cases from DIVERGENT_POINTERS on, in objects of their own (DIVERGENT_DEEP): the compiler treats a
 * file with calls that it cannot see differently. */
divergent_launch divergent_deep_o3, divergent_deep_ptxas_o1, divergent_deep_rdc, divergent_deep_registers_32,
    divergent_deep_registers_64, divergent_deep_checked;

/* Enqueues two sums: all 8-byte words of count words are added to *sum, and the number of bits that are set in owners
 * to *bits. */
cudaError_t divergent_sum(const unsigned long long *words, unsigned long long count, unsigned long long *sum,
                          cudaStream_t stream);
cudaError_t divergent_bits(const uint32_t *owners, unsigned long long count, unsigned long long *bits,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
