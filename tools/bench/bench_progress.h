/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How far a long run is: how much is done, how long the rest will take, and what is being measured.  It is one line on
 * stderr, if that is a terminal; otherwise it writes nothing.
 *
 * A run consists of tests, and a test of parts that take about equally long.  It does not know what they measure.  One
 * thread may use it.
 */
#ifndef MAM_BENCH_PROGRESS_H
#define MAM_BENCH_PROGRESS_H

#include <stddef.h>

/* whole: the weights of all tests of the run.  A process that does not call this shows nothing. */
void progress_begin(double whole);

/* The test before has ended, and this one begins. */
void progress_test(const char *name, double weight);

/* The index-th of count parts begins.  who: what it measures. */
void progress_part(const char *who, size_t index, size_t count);

/* This much of the present part is done.  Not for timed code: it writes to the terminal. */
void progress_within(double done, double of);

/* Clears the line, before something else is printed. */
void progress_clear(void);

#endif
