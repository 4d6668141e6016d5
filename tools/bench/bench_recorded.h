/* SPDX-License-Identifier: BSD-2-Clause */
/* mam-bench replay: makes the calls of a record (bench_record.h) again, in each way in which the library can serve
 * them. */
#ifndef MAM_BENCH_RECORDED_H
#define MAM_BENCH_RECORDED_H

/* argv[0] is "replay".  Returns the exit status. */
int bench_recorded(int argc, char **argv);

#endif
