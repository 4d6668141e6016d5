/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records as a program sees them: their beginning and end, and the phases in them, which are MAM_Mark, and the marks
 * and ranges of NVTX, which many libraries have already.
 *
 * NVTX 3 is headers only.  With a program's first call of it they load the library that NVTX_INJECTION64_PATH names and
 * call its InitializeInjectionNvtx2, which fills in what is called from then on.  While a record is made this library
 * is named there, unless another one is.  What is declared here is the part of that interface that is used.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#include "api/environment.h"
#include "base/error.h"
#include "base/library_call.h"
#include "base/record.h"
#include "base/record_file.h"
#include "mam.h"

cudaError_t MAM_Mark(const char *text) {
  if (text == NULL)
    return error_set(cudaErrorInvalidValue, "MAM_Mark: text is NULL");
  if (record_on())
    record_mark(text);
  return cudaSuccess;
}

/* The pools are held still for as long as it takes to list what is live, as before a fork.  environment_lock keeps
 * beginnings, ends and forks apart. */
cudaError_t MAM_RecordBegin(const char *path) {
  LIBRARY_CALL;
  struct pool_live live = {0};
  if (path == NULL || path[0] == '\0')
    return error_set(cudaErrorInvalidValue, "MAM_RecordBegin: no path is given");
  (void)record_on(); /* MAM_RECORD comes first */
  record_prepare();
  environment_enter();
  cudaError_t error = record_begin_file(path);
  if (error == cudaSuccess) {
    pool_before_fork();
    record_begin_cut();
    pools_list_live(&live);
    pool_after_fork(false);
    record_begin_live(live.all, live.count, live.lost);
  }
  environment_exit();
  free(live.all);
  return error;
}

cudaError_t MAM_RecordEnd(void) {
  LIBRARY_CALL;
  environment_enter();
  cudaError_t error = record_end_file();
  environment_exit();
  return error;
}

/* ---- NVTX ---- */

/* What a mark or a range has, as nvtxEventAttributes_t; a later version is longer. */
struct nvtx_attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void *message;
};

enum { MESSAGE_ASCII = 1, MESSAGE_UNICODE = 2, MESSAGE_REGISTERED = 3 };
enum { TABLE_CALLBACKS = 1, MODULE_CORE = 1, MODULE_CORE2 = 5 };

/* A level that says that levels are not counted. */
enum { LEVEL_UNKNOWN = -2 };

typedef void (*nvtx_function)(void);

struct nvtx_callbacks {
  size_t struct_size;
  int (*module_functions)(int module, nvtx_function ***table, unsigned *count);
};

/* A text, made of one of wchar_t. */
struct narrow {
  char text[RECORD_TEXT_MOST + 1];
};

/* As UTF-8, whatever the locale is.  What is no character becomes U+FFFD; what is too long is left out. */
static const char *narrow_of(const wchar_t *wide, struct narrow *narrow) {
  static const unsigned char heads[] = {0, 0, 0xc0, 0xe0, 0xf0};
  size_t bytes = 0;
  for (; wide != NULL && *wide != L'\0'; wide++) {
    uint32_t code = (uint32_t)*wide;
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      code = 0xfffd;
    unsigned count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (bytes + count > RECORD_TEXT_MOST)
      break;
    for (unsigned i = count; i-- > 1; code >>= 6)
      narrow->text[bytes + i] = (char)(0x80 | (code & 0x3f));
    narrow->text[bytes] = (char)(heads[count == 1 ? 0 : count] | code);
    bytes += count;
  }
  narrow->text[bytes] = '\0';
  return narrow->text;
}

/* Registered texts are pointers to copies, for good. */
static const char *message_of(const struct nvtx_attributes *attributes, struct narrow *narrow) {
  if (attributes == NULL || attributes->message == NULL)
    return "";
  if (attributes->message_type == MESSAGE_UNICODE)
    return narrow_of(attributes->message, narrow);
  bool text = attributes->message_type == MESSAGE_ASCII || attributes->message_type == MESSAGE_REGISTERED;
  return text ? attributes->message : "";
}

static void mark(const char *message) {
  if (record_on())
    record_mark(message != NULL ? message : "");
}

static int push(const void *domain, const char *message) {
  if (record_on())
    record_push(message != NULL ? message : "", domain);
  return LEVEL_UNKNOWN;
}

static void mark_wide(const wchar_t *message) {
  struct narrow narrow;
  mark(narrow_of(message, &narrow));
}

static void domain_mark_with(void *domain, const struct nvtx_attributes *attributes) {
  struct narrow narrow;
  (void)domain;
  mark(message_of(attributes, &narrow));
}

static void mark_with(const struct nvtx_attributes *attributes) { domain_mark_with(NULL, attributes); }

static int range_push(const char *message) { return push(NULL, message); }

static int range_push_wide(const wchar_t *message) {
  struct narrow narrow;
  return push(NULL, narrow_of(message, &narrow));
}

static int domain_range_push_with(void *domain, const struct nvtx_attributes *attributes) {
  struct narrow narrow;
  return push(domain, message_of(attributes, &narrow));
}

static int range_push_with(const struct nvtx_attributes *attributes) {
  return domain_range_push_with(NULL, attributes);
}

static int domain_range_pop(void *domain) {
  if (record_on())
    record_pop(domain);
  return LEVEL_UNKNOWN;
}

static int range_pop(void) { return domain_range_pop(NULL); }

static void *domain_register_text(void *domain, const char *text) {
  (void)domain;
  return text != NULL ? strdup(text) : NULL;
}

static void *domain_register_wide(void *domain, const wchar_t *text) {
  struct narrow narrow;
  return text != NULL ? domain_register_text(domain, narrow_of(text, &narrow)) : NULL;
}

/* A function and its place in a module's table. */
struct nvtx_place {
  unsigned index;
  nvtx_function function;
};

static bool module_fill(const struct nvtx_callbacks *callbacks, int module, const struct nvtx_place *places,
                        size_t place_count) {
  nvtx_function **table = NULL; /* of pointers to what is called */
  unsigned count = 0;
  if (callbacks->module_functions(module, &table, &count) == 0 || table == NULL)
    return false;
  for (size_t i = 0; i < place_count; i++)
    if (places[i].index < count && table[places[i].index] != NULL)
      *table[places[i].index] = places[i].function;
  return true;
}

/* 0: NVTX stays off. */
MAM_API int InitializeInjectionNvtx2(const void *(*table_get)(uint32_t table));
int InitializeInjectionNvtx2(const void *(*table_get)(uint32_t table)) {
  static const struct nvtx_place core[] = {{1, (nvtx_function)mark_with},  {2, (nvtx_function)mark},
                                           {3, (nvtx_function)mark_wide},  {8, (nvtx_function)range_push_with},
                                           {9, (nvtx_function)range_push}, {10, (nvtx_function)range_push_wide},
                                           {11, (nvtx_function)range_pop}};
  static const struct nvtx_place core2[] = {{1, (nvtx_function)domain_mark_with},
                                            {4, (nvtx_function)domain_range_push_with},
                                            {5, (nvtx_function)domain_range_pop},
                                            {10, (nvtx_function)domain_register_text},
                                            {11, (nvtx_function)domain_register_wide}};
  const struct nvtx_callbacks *callbacks = table_get(TABLE_CALLBACKS); /* a record may begin later */
  if (callbacks == NULL || callbacks->struct_size < sizeof *callbacks)
    return 0;
  bool filled = module_fill(callbacks, MODULE_CORE, core, sizeof core / sizeof core[0]);
  (void)module_fill(callbacks, MODULE_CORE2, core2, sizeof core2 / sizeof core2[0]); /* since NVTX 2 */
  return filled;
}

/* In the static library there is none that could be loaded. */
__attribute__((constructor)) static void nvtx_name(void) {
  Dl_info self;
  if (record_on() && dladdr((void *)(uintptr_t)MAM_Mark, &self) != 0 && self.dli_fname != NULL &&
      strstr(self.dli_fname, ".so") != NULL)
    (void)setenv("NVTX_INJECTION64_PATH", self.dli_fname, 0);
}
