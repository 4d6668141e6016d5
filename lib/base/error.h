/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What went wrong, in words: the calling thread's last error (MAM_LastError) and, with MAM_LOG=error, a line on stderr.
 *
 * The function that first knows of an error sets it; its callers pass the code on and do not set it again.  Stands on
 * option_text.h.  Knows nothing of pools or the driver.
 */
#ifndef MAM_LIB_ERROR_H
#define MAM_LIB_ERROR_H

#include "mam.h"

/* Records the sentence for this thread and returns code, so that callers can write: return error_set(code, ...). */
cudaError_t error_set(cudaError_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The sentence last recorded in this thread, "" if none; in an array of ERROR_SENTENCE_BYTES. */
enum { ERROR_SENTENCE_BYTES = 256 };
const char *error_last(void);

/* Makes a copy of that array the thread's last sentence again. */
void error_restore(const char *sentence);

#endif
