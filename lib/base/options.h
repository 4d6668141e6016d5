/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The environment variables, parsed.  Stands on error.h and on option_text.h, which has the table options.def.
 */
#ifndef MAM_LIB_OPTIONS_H
#define MAM_LIB_OPTIONS_H

#include <stdbool.h>

#include "mam.h"

enum options_report { OPTIONS_REPORT_NONE, OPTIONS_REPORT_STATS, OPTIONS_REPORT_LEAKS };

/* What the environment says about default pools. */
struct options {
  MAM_Source source;
  bool source_is_auto;   /* device; environments without a size are as the library sees fit */
  bool source_in_chunks; /* device; environments without a size take it chunk by chunk, as they need it */
  MAM_Reuse reuse;
  size_t headroom_bytes;
  size_t limit_bytes;     /* 0 if it is the percentage */
  unsigned limit_percent; /* of what the source has */
  bool limit_is_given;    /* by a call, not by MAM_LIMIT */
  unsigned linger_ms;
  enum options_report report; /* at exit */
};

/* Fills *options.  cudaErrorInvalidValue, with the variable named in the error text, if a value cannot be understood;
 * then *options is left alone. */
cudaError_t options_read(struct options *options);

/* Its first call of the process names each variable on stderr that begins with MAM_ and that the library does not know.
 */
void options_unknown_tell(void);

/* Puts what MAM_SOURCE and MAM_LIMIT may say in place of what *options has of them; NULL leaves it.  If a text cannot
 * be understood: cudaErrorInvalidValue, and *options is left alone. */
cudaError_t options_change(struct options *options, const char *source, const char *limit);

/* How a message names the limit. */
const char *options_limit_name(const struct options *options);

enum options_summary { OPTIONS_SUMMARY_NONE, OPTIONS_SUMMARY_COUNTS, OPTIONS_SUMMARY_MEASURED };

/* What it says to libmam_preload.  Texts are the environment's, or the table's. */
struct options_preload {
  bool on;
  bool neighbours; /* memory is asked for and given among processes */
  size_t chunk_bytes;
  size_t least_bytes, most_bytes; /* that are served */
  size_t own_bytes;               /* blocks with pages of their own; SIZE_MAX: none */
  const char *programs, *skip_programs, *skip_threads, *skip_devices; /* lists; NULL: all, none, none, none */
  enum options_summary summary;
  const char *output; /* NULL: stderr */
  size_t process;     /* that prints the summary in any case; 0: none does */
};

/* As options_read. */
cudaError_t options_read_preload(struct options_preload *options);

/* Whether text is an element of a list whose elements are separated by commas; never in NULL. */
bool options_list_has(const char *list, const char *text);

#endif
