/* SPDX-License-Identifier: BSD-2-Clause */
/* An interposer that needs no driver: a library with a function by a driver's name. */
#include <stddef.h>

int cuMemAlloc_v2(unsigned long long *address, size_t bytes);

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
  (void)address;
  (void)bytes;
  return 100; /* CUDA_ERROR_NO_DEVICE */
}
