/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of gpu_preload_test share.  The program asks a door (gpu_door.h) and prints each answer as a line
 * "case.what = answer", without addresses or times.  gpu_preload_test.sh runs it with and without mam-run and compares.
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

/* Prints one answer, with the name of the present case in front.  A line asks one call only, because C evaluates
 * arguments in any order. */
__attribute__((format(printf, 2, 3))) void tell(const char *what, const char *format, ...);

/* Ends the program if a call fails without which no case could go on. */
#define NEED(call)                                                                                                     \
  do {                                                                                                                 \
    int need_ = (call);                                                                                                \
    if (need_ != 0) {                                                                                                  \
      printf("FAIL: %s:%d: %s answered %d\n", __FILE__, __LINE__, #call, need_);                                       \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static inline const char *yes(bool is) { return is ? "yes" : "no"; }

/* Allocates a block at the door, whose address is not printed; ends the program if that fails. */
static inline unsigned char *block_new(size_t bytes) {
  void *block = NULL;
  NEED(door_malloc(&block, bytes));
  return (unsigned char *)block;
}

/* Whether all bytes of a block have that value; also false if they cannot be read. */
bool block_holds(const void *block, int byte, size_t bytes);

/* The base and size that cuMemGetAddressRange gives.  Returns its answer. */
int block_range(const void *pointer, const void **base, size_t *bytes);

struct preload_case {
  const char *name;
  void (*run)(void);
};

/* In gpu_preload_memory.c and gpu_preload_work.c: rows without a name end them. */
extern const struct preload_case memory_cases[], work_cases[];

#endif
