/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The texts of the environment variables, as options.def names them.  Parsing them is options.h's.
 *
 * error.h stands on this and not on options.h, which reports what it cannot parse as an error.
 */
#ifndef MAM_LIB_OPTION_TEXT_H
#define MAM_LIB_OPTION_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum option_index {
#define OPTION(name, kind, fallback, values, help) OPTION_##name,
#include "base/options.def"
#undef OPTION
  OPTION_COUNT
};

/* A row of options.def. */
struct option {
  const char *name;
  const char *fallback;
  const char *values; /* what it may be, in words */
};

extern const struct option option_table[OPTION_COUNT] __attribute__((visibility("hidden")));

/* The variable's text; the fallback if it is unset or empty. */
const char *option_text(enum option_index index);

/* Whether MAM_LOG=error.  Anything else counts as none; options_read refuses what is neither. */
bool options_log_errors(void);

#endif
