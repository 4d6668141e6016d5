/* SPDX-License-Identifier: BSD-2-Clause */
/* Texts of a record, which may have any bytes. */
#ifndef MAM_BENCH_TEXT_H
#define MAM_BENCH_TEXT_H

#include <stdio.h>

/* Prints so many bytes of a text, or those before its end, for a terminal: what would control it is written as \x1b,
 * and so is what is no UTF-8.  After characters_most, dots stand for the rest. */
void text_print(FILE *stream, const char *text, size_t bytes, size_t characters_most);

#endif
