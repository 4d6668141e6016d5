/* SPDX-License-Identifier: BSD-2-Clause */
/* The kernels of heap_kernels.cu as the build made them; 0 bytes in a library that was built without CUDA. */
#ifndef MAM_LIB_HEAP_IMAGE_H
#define MAM_LIB_HEAP_IMAGE_H

#include <stddef.h>

extern const unsigned char heap_image[];
extern const size_t heap_image_bytes;

#endif
