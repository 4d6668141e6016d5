/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a program finds the driver's functions, and how this library finds the real ones.
 *
 * A program has three doors: the exported symbols, for which the dynamic linker takes the first library that has them;
 * dlsym; and cuGetProcAddress.  The real functions are looked up in the driver's own handle, by the dlsym behind this
 * one, so none of the doors leads back to this library.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"

struct row {
  const char *name;
  void *hook;    /* NULL: none */
  size_t offset; /* of the real one in struct preload_real */
};

static const struct row rows[] = {
#define HOOK(name, arguments) {#name, (void *)(name), offsetof(struct preload_real, name)},
#define REAL(name, arguments) {#name, NULL, offsetof(struct preload_real, name)},
#include "preload_table.def"
#undef HOOK
#undef REAL
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void *row_real(const struct preload_real *real, const struct row *row) {
  return *(void *const *)((const char *)real + row->offset);
}

/* ---- The dlsym behind this one ---- */

/* In front of glibc's may stand another interposer's, which then comes first here too. */
__attribute__((visibility("hidden"))) void *(*preload_dlsym)(void *, const char *);

static void dlsym_find(void) {
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  void *found = NULL;
  for (size_t i = 0; found == NULL && i < sizeof versions / sizeof versions[0]; i++)
    found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  /* relaxed: every thread finds the same function, which was there before */
  __atomic_store_n((void **)&preload_dlsym, found, __ATOMIC_RELAXED);
}

static void *dlsym_behind(void *library, const char *name) {
  if (__atomic_load_n((void **)&preload_dlsym, __ATOMIC_RELAXED) == NULL) /* relaxed: see dlsym_find */
    dlsym_find();
  return preload_dlsym(library, name);
}

/* ---- The real functions ---- */

const struct preload_real *preload_real_get(void) {
  static _Atomic(struct preload_real *) published;
  /* acquire: the table's content; pairs with the release below */
  struct preload_real *known = atomic_load_explicit(&published, memory_order_acquire);
  if (known != NULL)
    return known;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  struct preload_real *mine = library != NULL ? calloc(1, sizeof *mine) : NULL;
  if (mine == NULL)
    return NULL;
  for (size_t i = 0; i < ROWS; i++)
    *(void **)((char *)mine + rows[i].offset) = dlsym_behind(library, rows[i].name);
  /* Several threads may get here; the first to publish wins.  The library stays open for the table's sake.
   * release: publishes the table; acquire on failure: reads the winner's.  Pairs with the load above. */
  if (!atomic_compare_exchange_strong_explicit(&published, &known, mine, memory_order_acq_rel, memory_order_acquire)) {
    free(mine);
    mine = known;
  }
  return mine;
}

static _Atomic unsigned given[PRELOAD_DOORS]; /* relaxed: each a number for itself */

static void *give(enum preload_door door, void *hook) {
  atomic_fetch_add_explicit(&given[door], 1, memory_order_relaxed);
  return hook;
}

unsigned preload_given(enum preload_door door) { return atomic_load_explicit(&given[door], memory_order_relaxed); }

static const struct row *row_by_hook(const void *hook) {
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].hook != NULL && rows[i].hook == hook)
      return &rows[i];
  return NULL;
}

static const struct row *row_by_real(const struct preload_real *real, const void *function) {
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].hook != NULL && row_real(real, &rows[i]) == function)
      return &rows[i];
  return NULL;
}

static const struct row *row_by_name(const char *name) {
  for (size_t i = 0; i < ROWS; i++)
    if (rows[i].hook != NULL && strcmp(rows[i].name, name) == 0)
      return &rows[i];
  return NULL;
}

static void *detour_real(void *function) {
  const struct row *row = row_by_hook(function);
  const struct preload_real *real = row != NULL ? preload_real_get() : NULL;
  return real != NULL ? row_real(real, row) : function;
}

/* A program may use libmam before it calls any hook. */
static void detour_begin(void) { (void)preload_active(); }

/* So libmam's table holds the driver's own functions. */
PRELOAD_HOOK const struct driver_detour mam_driver_detour = {
    .begin = detour_begin, .symbol = dlsym_behind, .real = detour_real};

/* ---- cuGetProcAddress ---- */

/* What it found decides, not what it was asked for: one name stands for other functions at other versions. */
static CUresult found_hooked(const struct preload_real *real, CUresult result, void **function) {
  if (result != CUDA_SUCCESS || function == NULL || *function == NULL)
    return result;
  const struct row *row = row_by_real(real, *function);
  if (row != NULL)
    *function = give(PRELOAD_DOOR_PROC_ADDRESS, row->hook);
  return result;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  const struct preload_real *real = preload_real_get();
  return found_hooked(real, PRELOAD_CALL(real, cuGetProcAddress, name, function, version, flags), function);
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
  const struct preload_real *real = preload_real_get();
  return found_hooked(real, PRELOAD_CALL(real, cuGetProcAddress_v2, name, function, version, flags, found), function);
}

/* ---- dlsym ---- */

/* The library that the caller of dlsym lies in. */
static struct link_map *library_of(const void *address) {
  Dl_info info;
  void *map = NULL;
  return dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

/* An interposer that asks for what comes after itself gets that.  Any other library means the driver's function. */
static bool is_interposer(const char *name, const void *caller) {
  struct link_map *own = library_of(caller);
  void *its = own != NULL ? dlsym_behind(own, name) : NULL;
  return own == NULL || (its != NULL && library_of(its) == own);
}

/* Whether the driver is loaded; it is not loaded for the question. */
static bool driver_loaded(void) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library != NULL)
    (void)dlclose(library);
  return library != NULL;
}

/* What dlsym answers by itself, NULL if the one behind is to be asked.  That is then jumped to, and finds the caller's
 * return address: RTLD_NEXT and RTLD_DEFAULT depend on it. */
__attribute__((visibility("hidden"), used)) void *preload_dlsym_answer(void *library, const char *name,
                                                                       const void *caller);
void *preload_dlsym_answer(void *library, const char *name, const void *caller) {
  if (__atomic_load_n((void **)&preload_dlsym, __ATOMIC_RELAXED) == NULL) /* relaxed: see dlsym_find */
    dlsym_find();
  if (name == NULL || name[0] != 'c' || name[1] != 'u' || library == RTLD_DEFAULT)
    return NULL; /* the first of all libraries that has a hooked name is this one, or stands in front of it */
  const struct row *row = row_by_name(name);
  if (row == NULL)
    return NULL;
  if (library == RTLD_NEXT) {
    const struct preload_real *real = driver_loaded() && !is_interposer(name, caller) ? preload_real_get() : NULL;
    return real != NULL && row_real(real, row) != NULL ? give(PRELOAD_DOOR_DLSYM, row->hook) : NULL;
  }
  return dlsym_behind(library, name) != NULL ? give(PRELOAD_DOOR_DLSYM, row->hook) : NULL;
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, @function\n"
        "dlsym:\n"
        "  .cfi_startproc\n"
        "  endbr64\n"
        "  pushq %rdi\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  pushq %rsi\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  movq 16(%rsp), %rdx\n" /* the return address */
        "  subq $8, %rsp\n"
        "  .cfi_adjust_cfa_offset 8\n"
        "  call preload_dlsym_answer\n"
        "  addq $8, %rsp\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  popq %rsi\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  popq %rdi\n"
        "  .cfi_adjust_cfa_offset -8\n"
        "  testq %rax, %rax\n"
        "  jz 1f\n"
        "  ret\n"
        "1: movq preload_dlsym(%rip), %rax\n"
        "  jmp *%rax\n"
        "  .cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n"
        ".type dlsym, %function\n"
        "dlsym:\n"
        "  .cfi_startproc\n"
        "  hint #34\n" /* bti c */
        "  stp x29, x30, [sp, #-32]!\n"
        "  .cfi_def_cfa_offset 32\n"
        "  .cfi_offset 29, -32\n"
        "  .cfi_offset 30, -24\n"
        "  mov x29, sp\n"
        "  stp x0, x1, [sp, #16]\n"
        "  mov x2, x30\n" /* the return address */
        "  bl preload_dlsym_answer\n"
        "  mov x16, x0\n"
        "  ldp x0, x1, [sp, #16]\n"
        "  ldp x29, x30, [sp], #32\n"
        "  .cfi_def_cfa_offset 0\n"
        "  .cfi_restore 29\n"
        "  .cfi_restore 30\n"
        "  cbz x16, 1f\n"
        "  mov x0, x16\n"
        "  ret\n"
        "1: adrp x16, preload_dlsym\n"
        "  ldr x16, [x16, #:lo12:preload_dlsym]\n"
        "  br x16\n"
        "  .cfi_endproc\n"
        ".size dlsym, .-dlsym\n");
#else
#error "libmam_preload has no dlsym for this processor"
#endif
