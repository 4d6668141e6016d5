/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of gpu_preload_test share.  The program asks a door (gpu_door.h) and prints each answer as a line
 * "case.what = answer", without addresses or times: gpu_preload_test.sh runs it with and without mam-run and compares.
 * No expected answer stands here: the driver's own is the oracle.
 */
#ifndef MAM_TESTS_GPU_PRELOAD_H
#define MAM_TESTS_GPU_PRELOAD_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu_door.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* Prints one answer, with the name of the present case in front.  One call is asked in a line: C leaves it open in
 * which order arguments are worked out. */
__attribute__((format(printf, 2, 3))) void tell(const char *what, const char *format, ...);

/* Ends the program: a call that every case stands on failed, so that nothing after it would be an answer. */
#define NEED(call)                                                                                                     \
  do {                                                                                                                 \
    int need_ = (call);                                                                                                \
    if (need_ != 0) {                                                                                                  \
      printf("FAIL: %s:%d: %s answered %d\n", __FILE__, __LINE__, #call, need_);                                       \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static inline const char *yes(bool is) { return is ? "yes" : "no"; }

/* A block of the door, whose address is no answer; ends the program if it cannot be had. */
static inline unsigned char *block_new(size_t bytes) {
  void *block = NULL;
  NEED(door_malloc(&block, bytes));
  return (unsigned char *)block;
}

/* Whether all bytes of a block have that value; false also if they cannot be read. */
bool block_holds(const void *block, int byte, size_t bytes);

/* The base and size that cuMemGetAddressRange says; the answer. */
int block_range(const void *pointer, const void **base, size_t *bytes);

struct preload_case {
  const char *name;
  void (*run)(void);
};

/* In gpu_preload_memory.c and gpu_preload_work.c: rows without a name end them. */
extern const struct preload_case memory_cases[], work_cases[];

#endif
