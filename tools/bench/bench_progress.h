/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where a long run is: how much of it is done, how long the rest will take, and what is being measured.  One line on
 * stderr if that is a terminal; nothing at all otherwise.
 *
 * A run is made of tests, a test of parts that take about as long as each other.  Knows nothing of what they measure.
 * For one thread.
 */
#ifndef MAM_BENCH_PROGRESS_H
#define MAM_BENCH_PROGRESS_H

#include <stddef.h>

/* whole: the weights of all tests to come.  Nothing is shown in a process that does not call this. */
void progress_begin(double whole);

/* The test before is done, and this one begins. */
void progress_test(const char *name, double weight);

/* The index-th of count parts begins; who: what it measures. */
void progress_part(const char *who, size_t index, size_t count);

/* So much of the present part is done, of so much in all.  Not for timed code: it writes to the terminal. */
void progress_within(double done, double of);

/* Takes the line away, before something else is printed. */
void progress_clear(void);

#endif
