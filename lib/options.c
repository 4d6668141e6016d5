/* SPDX-License-Identifier: BSD-2-Clause */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

struct option {
  const char *name;
  const char *fallback;
  const char *values;
};

enum option_index {
#define OPTION(name, kind, fallback, values, help) OPTION_##name,
#include "options.def"
#undef OPTION
};

static const struct option table[] = {
#define OPTION(name, kind, fallback, values, help) {#name, fallback, values},
#include "options.def"
#undef OPTION
};

static const char *option_text(enum option_index index) {
  const char *text = getenv(table[index].name);
  return text != NULL && *text != '\0' ? text : table[index].fallback;
}

static cudaError_t option_refuse(enum option_index index) {
  return error_set(cudaErrorInvalidValue, "%s=%s is not understood: expected %s", table[index].name, option_text(index),
                   table[index].values);
}

/* The position of the option's text among names, -1 if it is none of them. */
static int option_choice(enum option_index index, const char *const names[], int count) {
  const char *text = option_text(index);
  for (int i = 0; i < count; i++)
    if (strcmp(text, names[i]) == 0)
      return i;
  return -1;
}

/* A number of bytes: decimal digits and at most one of K, M, G. */
static bool option_bytes(enum option_index index, size_t *bytes) {
  const char *text = option_text(index);
  char *end;
  if (*text < '0' || *text > '9')
    return false;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
  if (shift != 0)
    end++;
  if (errno != 0 || *end != '\0' || value > SIZE_MAX >> shift)
    return false;
  *bytes = (size_t)value << shift;
  return true;
}

/* In the order of MAM_Source, then auto, and of MAM_Reuse. */
enum { SOURCE_AUTO = MAM_SOURCE_VMM + 1 };
static const char *const source_names[] = {"device", "pinned", "managed", "host", "vmm", "auto"};
static const char *const reuse_names[] = {"fenced", "immediate"};

cudaError_t options_read(struct options *options) {
  int source = option_choice(OPTION_MAM_SOURCE, source_names, SOURCE_AUTO + 1);
  int reuse = option_choice(OPTION_MAM_REUSE, reuse_names, 2);
  size_t headroom_bytes, linger_ms;
  if (source < 0)
    return option_refuse(OPTION_MAM_SOURCE);
  if (reuse < 0)
    return option_refuse(OPTION_MAM_REUSE);
  if (!option_bytes(OPTION_MAM_HEADROOM, &headroom_bytes))
    return option_refuse(OPTION_MAM_HEADROOM);
  if (!option_bytes(OPTION_MAM_LINGER_MS, &linger_ms) || linger_ms > UINT_MAX)
    return option_refuse(OPTION_MAM_LINGER_MS);
  *options = (struct options){.source = source == SOURCE_AUTO ? MAM_SOURCE_DEVICE : (MAM_Source)source,
                              .source_is_auto = source == SOURCE_AUTO,
                              .reuse = (MAM_Reuse)reuse,
                              .headroom_bytes = headroom_bytes,
                              .linger_ms = (unsigned)linger_ms};
  return cudaSuccess;
}

/* A text, NULL if it is the default. */
static const char *option_set(enum option_index index) {
  const char *text = option_text(index);
  return strcmp(text, table[index].fallback) != 0 ? text : NULL;
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

bool options_log_errors(void) { return strcmp(option_text(OPTION_MAM_LOG), "error") == 0; }
