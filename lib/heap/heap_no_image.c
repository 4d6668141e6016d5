/* SPDX-License-Identifier: BSD-2-Clause */
#include "heap/heap_image.h"

const unsigned char heap_image[1] = {0};
const size_t heap_image_bytes = 0;
