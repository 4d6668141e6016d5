/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/option_text.h"

#include <stdlib.h>
#include <string.h>

const struct option option_table[OPTION_COUNT] = {
#define OPTION(name, kind, fallback, values, help) {#name, fallback, values},
#include "base/options.def"
#undef OPTION
};

const char *option_text(enum option_index index) {
  const char *text = getenv(option_table[index].name);
  return text != NULL && *text != '\0' ? text : option_table[index].fallback;
}

bool options_log_errors(void) { return strcmp(option_text(OPTION_MAM_LOG), "error") == 0; }
