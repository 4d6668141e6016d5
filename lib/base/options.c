/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/options.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option_text.h"

static cudaError_t option_refuse(enum option_index index) {
  return error_set(cudaErrorInvalidValue, "%s=%s is not understood: expected %s", option_table[index].name,
                   option_text(index), option_table[index].values);
}

/* The position of the text among names, -1 if it is none of them. */
static int text_choice(const char *text, const char *const names[], int count) {
  for (int i = 0; i < count; i++)
    if (strcmp(text, names[i]) == 0)
      return i;
  return -1;
}

static int option_choice(enum option_index index, const char *const names[], int count) {
  return text_choice(option_text(index), names, count);
}

static unsigned unit_shift(char unit) {
  switch (unit) {
  case 'K':
  case 'k':
    return 10;
  case 'M':
  case 'm':
    return 20;
  case 'G':
  case 'g':
    return 30;
  default:
    return 0;
  }
}

/* Decimal digits and at most one of the units; *end is what comes after them. */
static bool text_number(const char *text, size_t *number, char **end) {
  if (*text < '0' || *text > '9')
    return false;
  errno = 0;
  unsigned long long value = strtoull(text, end, 10);
  unsigned shift = unit_shift(**end);
  *end += shift != 0;
  if (errno != 0 || value > SIZE_MAX >> shift)
    return false;
  *number = (size_t)value << shift;
  return true;
}

static bool option_bytes(enum option_index index, size_t *bytes) {
  char *end;
  return text_number(option_text(index), bytes, &end) && *end == '\0';
}

/* Bytes, or a percentage; neither is 0. */
static bool text_limit(const char *text, struct options *options) {
  size_t number;
  char *end;
  if (!text_number(text, &number, &end) || number == 0)
    return false;
  bool is_percent = strcmp(end, "%") == 0 && end[-1] >= '0' && end[-1] <= '9' && number <= 100;
  if (*end != '\0' && !is_percent)
    return false;
  options->limit_bytes = is_percent ? 0 : number;
  options->limit_percent = is_percent ? (unsigned)number : 0;
  return true;
}

/* The texts of MAM_SOURCE: in the order of MAM_Source, then two that are no MAM_Source.  Those of MAM_REUSE: in the
 * order of MAM_Reuse. */
enum { SOURCE_AUTO = MAM_SOURCE_VMM + 1, SOURCE_CHUNKS, SOURCE_COUNT };
static const char *const source_names[] = {"device", "pinned", "managed", "host", "vmm", "auto", "chunks"};
static const char *const reuse_names[] = {"fenced", "immediate", "stream"};

static bool text_source(const char *text, struct options *options) {
  int source = text_choice(text, source_names, SOURCE_COUNT);
  options->source = source >= SOURCE_AUTO ? MAM_SOURCE_DEVICE : (MAM_Source)source;
  options->source_is_auto = source == SOURCE_AUTO;
  options->source_in_chunks = source == SOURCE_CHUNKS;
  return source >= 0;
}

/* ---- Variables that the library does not know ---- */

extern char **environ;

/* Those of the project's tests and tools, which the library does not read. */
static bool name_is_foreign(const char *name, size_t length) {
  static const char *const prefixes[] = {"MAM_TEST_", "MAM_RUN"};
  for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
    if (strlen(prefixes[i]) <= length && strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
      return true;
  return false;
}

static bool name_is_known(const char *name, size_t length) {
  for (size_t i = 0; i < OPTION_COUNT; i++)
    if (strlen(option_table[i].name) == length && strncmp(name, option_table[i].name, length) == 0)
      return true;
  return name_is_foreign(name, length);
}

/* A mistyped name has no effect, and without a message the user would not learn why. */
void options_unknown_tell(void) {
  static _Atomic bool told;
  /* relaxed: of several threads one prints; nothing else is ordered by it */
  if (atomic_exchange_explicit(&told, true, memory_order_relaxed))
    return;
  for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
    size_t length = strcspn(*variable, "=");
    bool is_empty = strcmp(*variable + length, "=") == 0; /* counts as not set */
    if (strncmp(*variable, "MAM_", 4) == 0 && !is_empty && !name_is_known(*variable, length))
      (void)fprintf(stderr, "mam: %.*s is no option of this library, see mam(7)\n", (int)length, *variable);
  }
}

/* ---- Reading ---- */

cudaError_t options_read(struct options *options) {
  static const char *const report_names[] = {"none", "stats", "leaks"};
  static const char *const log_names[] = {"none", "error"};
  struct options found = {0};
  int reuse = option_choice(OPTION_MAM_REUSE, reuse_names, 3);
  size_t linger_ms;
  int report = option_choice(OPTION_MAM_REPORT, report_names, 3);
  if (option_choice(OPTION_MAM_LOG, log_names, 2) < 0)
    return option_refuse(OPTION_MAM_LOG);
  if (report < 0)
    return option_refuse(OPTION_MAM_REPORT);
  if (!text_source(option_text(OPTION_MAM_SOURCE), &found))
    return option_refuse(OPTION_MAM_SOURCE);
  if (reuse < 0)
    return option_refuse(OPTION_MAM_REUSE);
  if (!option_bytes(OPTION_MAM_HEADROOM, &found.headroom_bytes))
    return option_refuse(OPTION_MAM_HEADROOM);
  if (!text_limit(option_text(OPTION_MAM_LIMIT), &found))
    return option_refuse(OPTION_MAM_LIMIT);
  if (!option_bytes(OPTION_MAM_LINGER_MS, &linger_ms) || linger_ms > UINT_MAX)
    return option_refuse(OPTION_MAM_LINGER_MS);
  found.reuse = (MAM_Reuse)reuse;
  found.linger_ms = (unsigned)linger_ms;
  found.report = (enum options_report)report;
  *options = found;
  return cudaSuccess;
}

/* An empty text counts as none, as with the variables. */
cudaError_t options_change(struct options *options, const char *source, const char *limit) {
  struct options changed = *options;
  if (source != NULL && *source != '\0' && !text_source(source, &changed))
    return error_set(cudaErrorInvalidValue, "the source %s is not understood: expected %s", source,
                     option_table[OPTION_MAM_SOURCE].values);
  if (limit != NULL && *limit != '\0' && !text_limit(limit, &changed))
    return error_set(cudaErrorInvalidValue, "the limit %s is not understood: expected %s", limit,
                     option_table[OPTION_MAM_LIMIT].values);
  changed.limit_is_given |= limit != NULL && *limit != '\0';
  *options = changed;
  return cudaSuccess;
}

const char *options_limit_name(const struct options *options) {
  return options->limit_is_given ? "the limit of MAM_CreateWith" : option_table[OPTION_MAM_LIMIT].name;
}

/* A text, NULL if it is the default. */
static const char *option_set(enum option_index index) {
  const char *text = option_text(index);
  return strcmp(text, option_table[index].fallback) != 0 ? text : NULL;
}

/* Whether a list, NULL if it is the default, has nothing but ordinals of devices. */
static bool list_has_ordinals(const char *list) {
  enum { DIGITS = 3 };
  while (list != NULL) {
    size_t digits = strspn(list, "0123456789");
    if (digits == 0 || digits > DIGITS || (list[digits] != ',' && list[digits] != '\0'))
      return false;
    list = list[digits] == ',' ? list + digits + 1 : NULL;
  }
  return true;
}

cudaError_t options_read_preload(struct options_preload *options) {
  static const char *const switch_names[] = {"off", "on"};
  static const char *const summary_names[] = {"none", "counts", "measured"};
  int on = option_choice(OPTION_MAM_PRELOAD, switch_names, 2);
  int summary = option_choice(OPTION_MAM_PRELOAD_SUMMARY, summary_names, 3);
  int neighbours = option_choice(OPTION_MAM_PRELOAD_NEIGHBOURS, switch_names, 2);
  size_t chunk_bytes, least_bytes, most_bytes, own_bytes, process;
  if (on < 0)
    return option_refuse(OPTION_MAM_PRELOAD);
  if (summary < 0)
    return option_refuse(OPTION_MAM_PRELOAD_SUMMARY);
  if (neighbours < 0)
    return option_refuse(OPTION_MAM_PRELOAD_NEIGHBOURS);
  if (!option_bytes(OPTION_MAM_PRELOAD_CHUNK, &chunk_bytes) || chunk_bytes == 0)
    return option_refuse(OPTION_MAM_PRELOAD_CHUNK);
  if (!option_bytes(OPTION_MAM_PRELOAD_MIN, &least_bytes))
    return option_refuse(OPTION_MAM_PRELOAD_MIN);
  if (!option_bytes(OPTION_MAM_PRELOAD_MAX, &most_bytes))
    return option_refuse(OPTION_MAM_PRELOAD_MAX);
  if (!option_bytes(OPTION_MAM_PRELOAD_OWN_PAGES, &own_bytes))
    return option_refuse(OPTION_MAM_PRELOAD_OWN_PAGES);
  if (!option_bytes(OPTION_MAM_PRELOAD_PROCESS, &process))
    return option_refuse(OPTION_MAM_PRELOAD_PROCESS);
  if (!list_has_ordinals(option_set(OPTION_MAM_PRELOAD_SKIP_DEVICES)))
    return option_refuse(OPTION_MAM_PRELOAD_SKIP_DEVICES);
  *options = (struct options_preload){.on = on == 1,
                                      .neighbours = neighbours == 1,
                                      .chunk_bytes = chunk_bytes,
                                      .least_bytes = least_bytes,
                                      .most_bytes = most_bytes > 0 ? most_bytes : SIZE_MAX,
                                      .own_bytes = own_bytes > 0 ? own_bytes : SIZE_MAX,
                                      .programs = option_set(OPTION_MAM_PRELOAD_PROGRAMS),
                                      .skip_programs = option_set(OPTION_MAM_PRELOAD_SKIP_PROGRAMS),
                                      .skip_threads = option_set(OPTION_MAM_PRELOAD_SKIP_THREADS),
                                      .skip_devices = option_set(OPTION_MAM_PRELOAD_SKIP_DEVICES),
                                      .summary = (enum options_summary)summary,
                                      .output = option_set(OPTION_MAM_PRELOAD_OUTPUT),
                                      .process = process};
  return cudaSuccess;
}

bool options_list_has(const char *list, const char *text) {
  size_t length = strlen(text);
  while (list != NULL && *list != '\0') {
    size_t element = strcspn(list, ",");
    if (element == length && strncmp(list, text, length) == 0)
      return true;
    list += element + (list[element] == ',');
  }
  return false;
}
