/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Random numbers with a seed, samples and their statistics.  Knows nothing of allocators or clocks.
 */
#ifndef MAM_BENCH_NUMBERS_H
#define MAM_BENCH_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stream of pseudo-random numbers: the same seed gives every allocator the same requests. */
struct numbers_random {
  uint64_t state;
};

struct numbers_random numbers_seed(uint64_t seed);
uint64_t numbers_next(struct numbers_random *random_state);

/* Uniform in [0, limit), for a limit far below 2^64. */
size_t numbers_below(struct numbers_random *random_state, size_t limit);

/* Log-uniform in [low, high). */
size_t numbers_log_uniform(struct numbers_random *random_state, size_t low, size_t high);

/* The mean of that distribution. */
double numbers_log_uniform_mean(size_t low, size_t high);

/* The largest upper limit for which count numbers from [low, limit) add up to at most total on average.  It is a power
 * of two times low, at most high, and at least 2 * low. */
size_t numbers_log_uniform_fit(size_t low, size_t high, double count, double total);

/* Values that are collected.  Begin with {0}; the owner calls numbers_samples_free. */
struct numbers_samples {
  double *values;
  size_t count, capacity;
};

bool numbers_samples_add(struct numbers_samples *samples, double value); /* false: no host memory */
void numbers_samples_free(struct numbers_samples *samples);

double numbers_mean(const double *values, size_t count); /* NAN if there are none, as below */

/* The value that a share of the values is below.  It sorts the values. */
double numbers_quantile(double *values, size_t count, double share);

#endif
