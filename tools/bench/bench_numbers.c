/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_numbers.h"

#include <math.h>
#include <stdlib.h>

struct numbers_random numbers_seed(uint64_t seed) {
  struct numbers_random random_state = {seed * 0x9e3779b97f4a7c15u + 1};
  if (random_state.state == 0) /* xorshift would stay at 0 */
    random_state.state = 1;
  for (int i = 0; i < 8; i++) /* small seeds have similar beginnings */
    (void)numbers_next(&random_state);
  return random_state;
}

/* Marsaglia's xorshift64, with a product as its output. */
uint64_t numbers_next(struct numbers_random *random_state) {
  uint64_t x = random_state->state;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  random_state->state = x;
  return x * 0x2545f4914f6cdd1du;
}

size_t numbers_below(struct numbers_random *random_state, size_t limit) {
  return (size_t)(numbers_next(random_state) >> 8) % limit;
}

size_t numbers_log_uniform(struct numbers_random *random_state, size_t low, size_t high) {
  double unit = (double)(numbers_next(random_state) >> 11) * 0x1p-53;
  return (size_t)((double)low * exp2(unit * log2((double)high / (double)low)));
}

double numbers_log_uniform_mean(size_t low, size_t high) {
  return (double)(high - low) / log((double)high / (double)low);
}

size_t numbers_log_uniform_fit(size_t low, size_t high, double count, double total) {
  size_t fitting = 2 * low;
  while (2 * fitting <= high && count * numbers_log_uniform_mean(low, 2 * fitting) <= total)
    fitting *= 2;
  return fitting;
}

bool numbers_samples_add(struct numbers_samples *samples, double value) {
  if (samples->count == samples->capacity) {
    size_t capacity = samples->capacity == 0 ? 256 : 2 * samples->capacity;
    double *values = realloc(samples->values, capacity * sizeof *values);
    if (values == NULL)
      return false;
    samples->values = values;
    samples->capacity = capacity;
  }
  samples->values[samples->count++] = value;
  return true;
}

void numbers_samples_free(struct numbers_samples *samples) {
  free(samples->values);
  *samples = (struct numbers_samples){0};
}

double numbers_mean(const double *values, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++)
    sum += values[i];
  return count == 0 ? (double)NAN : sum / (double)count;
}

static int double_compare(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

double numbers_quantile(double *values, size_t count, double share) {
  if (count == 0)
    return (double)NAN;
  qsort(values, count, sizeof *values, double_compare);
  size_t index = (size_t)(share * (double)count);
  return values[index < count ? index : count - 1];
}
