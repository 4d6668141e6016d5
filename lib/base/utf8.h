/* SPDX-License-Identifier: BSD-2-Clause */
/* Texts that may have any bytes, such as the name of a file. */
#ifndef MAM_LIB_UTF8_H
#define MAM_LIB_UTF8_H

#include <stddef.h>

/* The length of the well-formed UTF-8 sequence at text; 0 if there is none.  It stops at the terminating 0. */
size_t utf8_length(const char *text);

#endif
