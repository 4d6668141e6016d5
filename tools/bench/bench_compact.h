/* SPDX-License-Identifier: BSD-2-Clause */
/* mam-bench compact. */
#ifndef MAM_BENCH_COMPACT_H
#define MAM_BENCH_COMPACT_H

/* Runs the command; argv[0] is its name.  Returns the exit status. */
int bench_compact(int argc, char **argv);

#endif
