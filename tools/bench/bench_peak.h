/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When the most bytes of a record are live, and who holds them: call sites, and ranges of NVTX where one site allocates
 * for all.
 */
#ifndef MAM_BENCH_PEAK_H
#define MAM_BENCH_PEAK_H

#include "bench_record.h"

struct peak {
  const struct record *record;
  uint32_t context;
  size_t bytes, count; /* with each block in whole units; 0 bytes: nothing was allocated */
  size_t event;        /* the peak is right after this event */
};

/* The most that is live at once in a context. */
struct peak peak_find(const struct record *record, uint32_t context);

/* Prints when it was, the last mark before it, and the ranges around it in its thread. */
void peak_print_moment(const struct peak *peak);

/* Prints the ten holders that have most of it. */
void peak_print_holders(const struct peak *peak);

static inline bool event_is(const struct record_event *event, uint32_t context, uint32_t kind) {
  return event->kind == kind && event->context == context;
}

#endif
