/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every door by which a program finds the driver's functions leads to the pool, and every one that is none of the
 * pool's leads to the driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/mman.h>

#include "preload_util.h"

#define PLUGIN "tests/preload/.libs/preload_plugin.so"
#define INTERPOSER "tests/preload/.libs/preload_interposer.so"

void *needed_next(const char *name); /* preload_needed.c */

typedef int (*alloc_function)(address_t *, size_t);
typedef int (*free_function)(address_t);
typedef int (*look_up_v1)(const char *, void **, int, uint64_t);
typedef int (*look_up_v2)(const char *, void **, int, uint64_t, int *);

/* Small and large allocations through these functions take one chunk of the driver, and give it nothing back. */
static void assert_served(void *alloc, void *release) {
  alloc_function do_alloc;
  free_function do_free;
  address_t blocks[20];
  ck_assert_ptr_nonnull(alloc);
  ck_assert_ptr_nonnull(release);
  *(void **)&do_alloc = alloc;
  *(void **)&do_free = release;
  unsigned calls = fake_calls("cuMemAlloc"), frees = fake_calls("cuMemFree");
  for (int i = 0; i < 20; i++)
    OK(do_alloc(&blocks[i], i % 2 == 0 ? 1000 : MIB));
  for (int i = 0; i < 20; i++)
    OK(do_free(blocks[i]));
  ck_assert_uint_le(fake_calls("cuMemAlloc") - calls, 1);
  ck_assert_uint_eq(fake_calls("cuMemFree") - frees, 0);
  ck_assert_uint_eq(fake_live_bytes(), CHUNK_BYTES);
}

static void *driver_library(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ck_assert_ptr_nonnull(library);
  return library;
}

static void *plugin_symbol(const char *library, int mode, const char *name) {
  void *plugin = dlopen(library, RTLD_NOW | mode);
  ck_assert_msg(plugin != NULL, "%s", dlerror());
  void *symbol = dlsym(plugin, name);
  ck_assert_ptr_nonnull(symbol);
  return symbol;
}

START_TEST(exported_symbols_are_served) {
  begin();
  assert_served((void *)cuMemAlloc_v2, (void *)cuMemFree_v2);
}
END_TEST

START_TEST(dlsym_of_the_driver_is_served) {
  begin();
  void *library = driver_library();
  assert_served(dlsym(library, "cuMemAlloc_v2"), dlsym(library, "cuMemFree_v2"));
}
END_TEST

START_TEST(dlsym_of_everybody_is_served) {
  begin();
  assert_served(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlsym(RTLD_NEXT, "cuMemFree_v2"));
}
END_TEST

/* As a static CUDA runtime does it. */
START_TEST(the_runtimes_order_of_looking_up_is_served) {
  void *function = NULL, *alloc = NULL, *release = NULL;
  look_up_v2 first, look_up;
  look_up_v1 older;
  *(void **)&first = dlsym(driver_library(), "cuGetProcAddress_v2");
  int status = 7;
  OK(first("cuGetProcAddress", &function, 12000, 0, &status));
  ck_assert_int_eq(status, 0);
  *(void **)&look_up = function;
  OK(look_up("cuGetProcAddress", &function, 11030, 0, NULL));
  *(void **)&older = function;
  begin();
  OK(look_up("cuMemAlloc", &alloc, 3020, 0, NULL));
  OK(look_up("cuMemFree", &release, 3020, 2, NULL));
  assert_served(alloc, release);
  alloc = release = NULL;
  OK(older("cuMemAlloc", &alloc, 12080, 0));
  OK(older("cuMemFree", &release, 3020, 0));
  assert_served(alloc, release);
}
END_TEST

START_TEST(versions_are_told_apart_by_what_is_found) {
  void *old = NULL, *now = NULL, *per_thread = NULL, *plain = NULL;
  OK(cuGetProcAddress_v2("cuCtxSynchronize", &old, 12000, 0, NULL));
  OK(cuGetProcAddress_v2("cuCtxSynchronize", &now, 13000, 0, NULL));
  ck_assert_ptr_eq(old, (void *)cuCtxSynchronize);
  ck_assert_ptr_eq(now, (void *)cuCtxSynchronize_v2);
  OK(cuGetProcAddress_v2("cuMemFreeAsync", &plain, 11020, 1, NULL));
  OK(cuGetProcAddress_v2("cuMemFreeAsync", &per_thread, 11020, 2, NULL));
  ck_assert_ptr_eq(plain, (void *)cuMemFreeAsync);
  ck_assert_ptr_eq(per_thread, (void *)cuMemFreeAsync_ptsz);
}
END_TEST

START_TEST(what_is_not_hooked_is_the_drivers_own) {
  void *function = NULL;
  Dl_info info;
  OK(cuGetProcAddress_v2("cuInit", &function, 2000, 0, NULL));
  ck_assert_ptr_eq(function, dlsym(driver_library(), "cuInit"));
  ck_assert_int_ne(dladdr(function, &info), 0);
  ck_assert_ptr_nonnull(strstr(info.dli_fname, "libcuda"));
}
END_TEST

START_TEST(what_does_not_exist_is_not_found) {
  void *function = &function;
  FAILS(NOT_FOUND, cuGetProcAddress_v2("cuNothing", &function, 12000, 0, NULL));
  ck_assert_ptr_null(function);
  (void)dlerror();
  /* hooked, but this driver lacks it */
  ck_assert_ptr_null(dlsym(driver_library(), "cuGraphExecNodeSetParams"));
  const char *said = dlerror();
  ck_assert_ptr_nonnull(said);
  ck_assert_ptr_nonnull(strstr(said, "cuGraphExecNodeSetParams"));
}
END_TEST

/* Functions that this driver lacks, hooked or not. */
int cuGraphExecNodeSetParams(void) __attribute__((weak));
int cuStreamEndCapture_ptsz(void *stream, void **graph) __attribute__((weak));

START_TEST(nobody_says_that_an_older_driver_has_a_newer_function) {
  ck_assert_ptr_null(dlerror());
  ck_assert_ptr_null(dlsym(RTLD_DEFAULT, "cuGraphExecNodeSetParams"));
  ck_assert_ptr_nonnull(dlerror());
  ck_assert_ptr_null(dlsym(RTLD_NEXT, "cuGraphExecNodeSetParams"));
  ck_assert_ptr_null(dlsym(dlopen(NULL, RTLD_NOW), "cuGraphExecNodeSetParams"));
  ck_assert(cuGraphExecNodeSetParams == NULL);
  ck_assert(cuStreamEndCapture_ptsz != NULL);
}
END_TEST

START_TEST(a_local_library_is_served_by_its_symbols) {
  begin();
  assert_served(plugin_symbol(PLUGIN, RTLD_LOCAL, "plugin_alloc"), plugin_symbol(PLUGIN, RTLD_LOCAL, "plugin_free"));
}
END_TEST

/* The caller of dlsym is the plugin: what comes after it, not after the program or libmam_preload. */
START_TEST(rtld_next_counts_from_the_library_that_asks) {
  void *(*next)(const char *);
  begin();
  *(void **)&next = plugin_symbol(PLUGIN, RTLD_LOCAL, "plugin_next");
  ck_assert_ptr_null(next("plugin_calls")); /* its own, and nobody has it after it */
  ck_assert_ptr_null(next("ck_nothing"));
  assert_served(next("cuMemAlloc_v2"), next("cuMemFree_v2"));
}
END_TEST

/* As a library asks that the program is linked with, or that a plugin needs: nobody has opened it by itself. */
START_TEST(a_library_that_nobody_opened_may_ask_for_the_next) {
  void *(*next)(const char *);
  begin();
  assert_served(needed_next("cuMemAlloc_v2"), needed_next("cuMemFree_v2"));
  *(void **)&next = plugin_symbol(PLUGIN, RTLD_LOCAL, "plugin_inner_next");
  ck_assert_ptr_eq(next("cuMemAlloc_v2"), needed_next("cuMemAlloc_v2"));
  ck_assert_ptr_null(next("cuNothing"));
}
END_TEST

/* Another library's own function by a driver's name is not the driver's. */
START_TEST(a_handle_answers_with_what_is_in_it) {
  void *interposer = dlopen(INTERPOSER, RTLD_NOW | RTLD_LOCAL);
  void *alloc = dlsym(interposer, "cuMemAlloc_v2");
  Dl_info in;
  ck_assert_ptr_nonnull(alloc);
  ck_assert_int_ne(dladdr(alloc, &in), 0);
  ck_assert_ptr_nonnull(strstr(in.dli_fname, "preload_interposer"));
  ck_assert_ptr_eq(dlsym(interposer, "cuMemGetInfo_v2"), (void *)cuMemGetInfo_v2); /* of the driver, which it needs */
}
END_TEST

/* A driver in a namespace of its own has contexts of its own. */
START_TEST(a_driver_in_another_namespace_is_left_alone) {
  int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
  alloc_function alloc;
  address_t address = 0;
  void *context = NULL, *library = dlmopen(LM_ID_NEWLM, "tests/support/.libs/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(library != NULL, "%s", dlerror());
  *(void **)&init = dlsym(library, "cuInit");
  *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&set = dlsym(library, "cuCtxSetCurrent");
  *(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
  OK(init(0));
  OK(retain(&context, 0));
  OK(set(context));
  OK(alloc(&address, 1000));
  ck_assert_uint_eq(fake_calls("cuMemAlloc"), 0); /* of this one */
}
END_TEST

START_TEST(rtld_default_from_a_second_library_is_served) {
  void *(*find)(const char *);
  begin();
  *(void **)&find = plugin_symbol(PLUGIN, RTLD_LOCAL, "plugin_default");
  assert_served(find("cuMemAlloc_v2"), find("cuMemFree_v2"));
}
END_TEST

/* An interposer that was loaded later asks for what comes after itself and gets the driver's, not a circle. */
START_TEST(an_interposer_behind_reaches_the_driver) {
  address_t address = 0;
  unsigned (*calls)(void);
  alloc_function alloc;
  begin();
  void *interposer = dlopen(INTERPOSER, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  ck_assert_msg(interposer != NULL, "%s", dlerror());
  *(void **)&alloc = dlsym(interposer, "plugin_alloc");
  *(void **)&calls = dlsym(interposer, "plugin_calls");
  OK(alloc(&address, 1000));
  ck_assert_uint_eq(calls(), 1);
  OK(cuMemFree_v2(address)); /* the driver's block goes back to the driver */
  ck_assert_uint_eq(fake_wrong_frees(), 0);
  ck_assert_uint_eq(fake_live_bytes(), 0);
}
END_TEST

/* A library that reaches the driver past this one: its free of a pool's block is refused, and takes nothing away. */
START_TEST(a_free_by_the_drivers_own_door_takes_no_chunk_away) {
  static const size_t sizes[] = {1000, 40 * KIB, 3 * MIB, 40 * MIB, CHUNK_BYTES, 80 * MIB, 200 * MIB};
  free_function deep_free;
  alloc_function deep_alloc;
  address_t address = 0;
  begin();
  *(void **)&deep_free = plugin_symbol(PLUGIN, RTLD_LOCAL | RTLD_DEEPBIND, "plugin_free");
  *(void **)&deep_alloc = plugin_symbol(PLUGIN, RTLD_LOCAL | RTLD_DEEPBIND, "plugin_alloc");
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    address_t block = allocate(sizes[i]);
    FAILS(INVALID_VALUE, deep_free(block));
    ck_assert(fake_holds((const void *)(uintptr_t)block, sizes[i]));
    OK(cuMemFree_v2(block));
    (void)allocate(sizes[i]);
  }
  OK(deep_alloc(&address, MIB));
  OK(cuMemFree_v2(address));
}
END_TEST

START_TEST(the_driver_may_be_closed_and_opened_again) {
  address_t address;
  begin();
  for (int i = 0; i < 3; i++) {
    void *library = driver_library();
    alloc_function alloc;
    free_function release;
    *(void **)&alloc = dlsym(library, "cuMemAlloc_v2");
    *(void **)&release = dlsym(library, "cuMemFree_v2");
    OK(alloc(&address, 1000));
    OK(dlclose(library));
    OK(release(address));
  }
  ck_assert_uint_eq(fake_live_bytes(), CHUNK_BYTES);
}
END_TEST

/* At each version and with all flags what is found is the hook of what the driver has found: of another copy of the
 * driver, which has the same functions and no hooks. */
START_TEST(every_version_finds_what_the_driver_finds) {
  static const char *const names[] = {"cuMemAlloc",           "cuMemFree",        "cuMemFreeAsync",
                                      "cuMemGetInfo",         "cuGetProcAddress", "cuCtxSynchronize",
                                      "cuStreamBeginCapture", "cuNothing",        "cuInit"};
  static const int versions[] = {0, 2000, 3020, 4000, 10010, 11020, 11030, 12000, 13000, 99999};
  void *copy = dlmopen(LM_ID_NEWLM, "tests/support/.libs/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ck_assert_msg(copy != NULL, "%s", dlerror());
  look_up_v2 bare;
  *(void **)&bare = dlsym(copy, "cuGetProcAddress_v2");
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    for (size_t j = 0; j < sizeof versions / sizeof versions[0]; j++)
      for (uint64_t flags = 0; flags < 4; flags++) {
        void *found = &found, *others = &others, *older = &older;
        int status = 7, others_status = 7;
        Dl_info in;
        int result = cuGetProcAddress_v2(names[i], &found, versions[j], flags, &status);
        FAILS(result, bare(names[i], &others, versions[j], flags, &others_status));
        FAILS(result, cuGetProcAddress(names[i], &older, versions[j], flags));
        ck_assert_int_eq(status, others_status);
        if (result != 0)
          continue;
        ck_assert_ptr_eq(found, older);
        ck_assert_int_ne(dladdr(found, &in), 0);
        ck_assert_msg(strstr(in.dli_fname, strcmp(names[i], "cuInit") == 0 ? "libcuda" : "libmam_preload") != NULL,
                      "%s at %d is in %s", names[i], versions[j], in.dli_fname);
      }
}
END_TEST

#if defined(__x86_64__)
static unsigned patched_calls;
static alloc_function patched_next;

static int patched_alloc(address_t *address, size_t bytes) {
  patched_calls++;
  return patched_next(address, bytes);
}

enum { PATCH_BYTES = 5, JUMP_BYTES = 13 };

/* Writes a jump to an address, at whatever distance: by register 11. */
static void jump_write(unsigned char *code, uintptr_t to) {
  static const unsigned char load[] = {0x49, 0xbb}, jump[] = {0x41, 0xff, 0xe3};
  memcpy(code, load, sizeof load);
  memcpy(code + sizeof load, &to, sizeof to);
  memcpy(code + sizeof load + sizeof to, jump, sizeof jump);
}

/* As UCX patches functions: it moves the first five bytes elsewhere, if it knows the instruction to be one that may be
 * moved, and writes a jump in their place.  It knows a load of a constant. */
START_TEST(a_hook_may_be_patched) {
  static const char *const names[] = {"cuMemAlloc_v2",   "cuMemAllocPitch_v2", "cuMemAllocManaged",
                                      "cuMemAllocAsync", "cuMemFree_v2",       "cuMemFreeAsync"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    ck_assert_uint_eq(*(unsigned char *)dlsym(RTLD_DEFAULT, names[i]), 0xb8);
  unsigned char *hook = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)hook & ~(uintptr_t)(page_bytes - 1));
  unsigned char *near = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne((void *)near, MAP_FAILED);
  jump_write(near, (uintptr_t)patched_alloc);
  memcpy(near + JUMP_BYTES, hook, PATCH_BYTES);
  jump_write(near + JUMP_BYTES + PATCH_BYTES, (uintptr_t)(hook + PATCH_BYTES));
  void *moved = near + JUMP_BYTES;
  *(void **)&patched_next = moved;
  int32_t distance = (int32_t)(near - (hook + PATCH_BYTES));
  ck_assert_ptr_eq(hook + PATCH_BYTES + distance, near);
  OK(mprotect(page, 2 * page_bytes, PROT_READ | PROT_WRITE | PROT_EXEC));
  *hook = 0xe9;
  memcpy(hook + 1, &distance, sizeof distance);
  begin();
  assert_served(dlsym(driver_library(), "cuMemAlloc_v2"), (void *)cuMemFree_v2);
  ck_assert_uint_eq(patched_calls, 20);
}
END_TEST
#endif

START_TEST(nothing_is_asked_of_the_driver_before_the_program_does) {
  ck_assert_uint_eq(fake_calls(NULL), 0);
  void *context = begin();
  unsigned calls = fake_calls(NULL);
  ck_assert_ptr_nonnull(context);
  ck_assert_uint_le(calls, 3); /* the program's own */
}
END_TEST

/* A program that has not begun hears what it would from the driver. */
START_TEST(a_call_before_cuInit_is_the_drivers_to_answer) {
  address_t address = 0;
  FAILS(3, cuMemAlloc_v2(&address, 1000));
  ck_assert_uint_eq(fake_calls("cuInit"), 0);
}
END_TEST

static Suite *suite(void) {
  Suite *suite = suite_create("preload, doors");
  TCase *tests = tcase_create("doors");
  tcase_add_test(tests, exported_symbols_are_served);
  tcase_add_test(tests, dlsym_of_the_driver_is_served);
  tcase_add_test(tests, dlsym_of_everybody_is_served);
  tcase_add_test(tests, the_runtimes_order_of_looking_up_is_served);
  tcase_add_test(tests, versions_are_told_apart_by_what_is_found);
  tcase_add_test(tests, what_is_not_hooked_is_the_drivers_own);
  tcase_add_test(tests, what_does_not_exist_is_not_found);
  tcase_add_test(tests, nobody_says_that_an_older_driver_has_a_newer_function);
  tcase_add_test(tests, a_local_library_is_served_by_its_symbols);
  tcase_add_test(tests, rtld_next_counts_from_the_library_that_asks);
  tcase_add_test(tests, a_library_that_nobody_opened_may_ask_for_the_next);
  tcase_add_test(tests, a_handle_answers_with_what_is_in_it);
  tcase_add_test(tests, a_driver_in_another_namespace_is_left_alone);
  tcase_add_test(tests, rtld_default_from_a_second_library_is_served);
  tcase_add_test(tests, an_interposer_behind_reaches_the_driver);
  tcase_add_test(tests, a_free_by_the_drivers_own_door_takes_no_chunk_away);
  tcase_add_test(tests, the_driver_may_be_closed_and_opened_again);
  tcase_add_test(tests, every_version_finds_what_the_driver_finds);
#if defined(__x86_64__)
  tcase_add_test(tests, a_hook_may_be_patched);
#endif
  tcase_add_test(tests, nothing_is_asked_of_the_driver_before_the_program_does);
  tcase_add_test(tests, a_call_before_cuInit_is_the_drivers_to_answer);
  suite_add_tcase(suite, tests);
  return suite;
}

int main(int count, char **arguments) {
  (void)count;
  return preload_run_suite(arguments, suite);
}
