/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The environment variables, parsed.  Knows the table options.def and nothing else of the library.
 */
#ifndef MAM_LIB_OPTIONS_H
#define MAM_LIB_OPTIONS_H

#include <stdbool.h>

#include "mam.h"

/* What the environment says about default pools. */
struct options {
  MAM_Source source;
  bool source_is_auto; /* device, but vmm for environments without a size where the driver can */
  MAM_Reuse reuse;
  size_t headroom_bytes;
  unsigned linger_ms;
};

/* Fills *options.  cudaErrorInvalidValue, with the variable named in the error text, if a value cannot be understood;
 * then *options is left alone. */
cudaError_t options_read(struct options *options);

/* Whether MAM_LOG=error.  Anything else counts as none: a complaint about the log has nowhere to go. */
bool options_log_errors(void);

#endif
