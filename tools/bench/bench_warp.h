/* SPDX-License-Identifier: BSD-2-Clause */
/* `mam-bench warp`: series of requests in kernels, by warp heaps and others. */
#ifndef MAM_BENCH_WARP_H
#define MAM_BENCH_WARP_H

int bench_warp(int argc, char **argv);

#endif
