/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compiles tests/tree/device_header.cu and tests/tree/device_replace.cu, and with them the device headers, with NVRTC,
 * which has no standard headers: as CuPy's RawModule does.  For sm_90 in all ways, for sm_75 and the newest GPU that
 * the library knows in one; with MAM_TEST_SHORT in the environment for sm_90 in one.  Needs no GPU; skips without the
 * library.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { exit_skip = 77, architectures_most = 64, source_most = 1 << 16 };

/* The library's own types and functions, as far as they are used: its header need not be there. */
typedef struct program_handle *nvrtc_program;
static struct nvrtc {
  int (*nvrtcCreateProgram)(nvrtc_program *program, const char *source, const char *name, int header_count,
                            const char *const *headers, const char *const *header_names);
  int (*nvrtcCompileProgram)(nvrtc_program program, int option_count, const char *const *options);
  int (*nvrtcGetProgramLogSize)(nvrtc_program program, size_t *bytes);
  int (*nvrtcGetProgramLog)(nvrtc_program program, char *text);
  int (*nvrtcDestroyProgram)(nvrtc_program *program);
  int (*nvrtcGetNumSupportedArchs)(int *count);
  int (*nvrtcGetSupportedArchs)(int *architectures);
} nvrtc;

static bool function_find(void *library, const char *name, void *function) {
  *(void **)function = dlsym(library, name);
  if (*(void **)function == NULL)
    (void)printf("FAIL: the NVRTC library has no %s\n", name);
  return *(void **)function != NULL;
}

static void *library_open(void) {
  static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                      "/usr/local/cuda/lib64/libnvrtc.so"};
  void *library = NULL;
  for (size_t i = 0; library == NULL && i < sizeof names / sizeof names[0]; i++)
    library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  return library;
}

static bool functions_find(void *library) {
  return function_find(library, "nvrtcCreateProgram", &nvrtc.nvrtcCreateProgram) &&
         function_find(library, "nvrtcCompileProgram", &nvrtc.nvrtcCompileProgram) &&
         function_find(library, "nvrtcGetProgramLogSize", &nvrtc.nvrtcGetProgramLogSize) &&
         function_find(library, "nvrtcGetProgramLog", &nvrtc.nvrtcGetProgramLog) &&
         function_find(library, "nvrtcDestroyProgram", &nvrtc.nvrtcDestroyProgram) &&
         function_find(library, "nvrtcGetNumSupportedArchs", &nvrtc.nvrtcGetNumSupportedArchs) &&
         function_find(library, "nvrtcGetSupportedArchs", &nvrtc.nvrtcGetSupportedArchs);
}

/* The whole file as a string; NULL if it cannot be read. */
static char *source_read(const char *path) {
  FILE *file = fopen(path, "r");
  char *text = calloc(1, source_most);
  if (file == NULL || text == NULL || fread(text, 1, source_most - 1, file) == 0) {
    (void)printf("FAIL: cannot read %s\n", path);
    free(text);
    text = NULL;
  }
  if (file != NULL)
    (void)fclose(file);
  return text;
}

static void log_print(nvrtc_program program) {
  size_t bytes = 0;
  char *text;
  if (nvrtc.nvrtcGetProgramLogSize(program, &bytes) != 0 || bytes <= 1 || (text = malloc(bytes)) == NULL)
    return;
  if (nvrtc.nvrtcGetProgramLog(program, text) == 0)
    (void)printf("%.2000s\n", text);
  free(text);
}

static bool compile(const char *source, const char *include_option, int architecture, const char *extra) {
  char architecture_option[48];
  (void)snprintf(architecture_option, sizeof architecture_option, "--gpu-architecture=sm_%d", architecture);
  const char *options[] = {architecture_option, include_option, extra};
  nvrtc_program program = NULL;
  if (nvrtc.nvrtcCreateProgram(&program, source, "device_header.cu", 0, NULL, NULL) != 0)
    return false;
  bool good = nvrtc.nvrtcCompileProgram(program, 3, options) == 0;
  (void)printf("%s: NVRTC, sm_%d, %s\n", good ? "ok" : "FAIL", architecture, extra);
  if (!good)
    log_print(program);
  (void)nvrtc.nvrtcDestroyProgram(&program);
  return good;
}

/* For sm_75, sm_90 and the newest, as far as the library knows them. */
static bool compile_all(const char *source, const char *include_option) {
  int architectures[architectures_most], count = 0, newest = 0;
  bool good = true, is_short = getenv("MAM_TEST_SHORT") != NULL;
  if (nvrtc.nvrtcGetNumSupportedArchs(&count) != 0 || count > architectures_most ||
      nvrtc.nvrtcGetSupportedArchs(architectures) != 0)
    return false;
  for (int i = 0; i < count; i++)
    newest = architectures[i] > newest ? architectures[i] : newest;
  for (int i = 0; i < count; i++) {
    bool all_ways = architectures[i] == 90;
    if (!all_ways && (is_short || (architectures[i] != 75 && architectures[i] != newest)))
      continue;
    good = compile(source, include_option, architectures[i], "--std=c++17") && good;
    if (!all_ways || is_short)
      continue;
    good = compile(source, include_option, architectures[i], "-DMAM_HEAP_CHECKED=1") && good;
    good = compile(source, include_option, architectures[i], "-DMAM_HEAP_RECORDED=1") && good;
    good = compile(source, include_option, architectures[i], "--relocatable-device-code=true") && good;
  }
  return good;
}

static bool file_compile(const char *folder, const char *file) {
  char path[1024], include_option[1024];
  (void)snprintf(path, sizeof path, "%s/tests/tree/%s", folder, file);
  (void)snprintf(include_option, sizeof include_option, "--include-path=%s/include", folder);
  char *source = source_read(path);
  (void)printf("%s:\n", file);
  bool good = source != NULL && compile_all(source, include_option);
  free(source);
  return good;
}

int main(void) {
  const char *folder = getenv("srcdir");
  void *library = library_open();
  if (library == NULL) {
    (void)printf("SKIP: no NVRTC library: %s\n", dlerror());
    return exit_skip;
  }
  folder = folder == NULL ? "." : folder;
  bool good = functions_find(library) && file_compile(folder, "device_header.cu");
  good = good && file_compile(folder, "device_replace.cu");
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
