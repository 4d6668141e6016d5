/* SPDX-License-Identifier: BSD-2-Clause */
/* A program that is linked with a library that has a driver's function itself (preload_plain.c), and no driver. */
#include <stddef.h>
#include <stdio.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);

int main(void) {
  unsigned long long address = 0;
  printf("answer: %d\n", cuMemAlloc_v2(&address, 1000));
  return 0;
}
