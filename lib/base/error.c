/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cancel.h"
#include "base/option_text.h"

static _Thread_local char last_error[ERROR_SENTENCE_BYTES];

static void last_error_tell(void) {
  NOT_CANCELLED; /* also in a call that does not wait otherwise */
  (void)fprintf(stderr, "mam: %s\n", last_error);
}

cudaError_t error_set(cudaError_t code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  if (options_log_errors())
    last_error_tell();
  return code;
}

const char *error_last(void) { return last_error; }

void error_restore(const char *sentence) { memcpy(last_error, sentence, sizeof last_error); }
