/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a program finds the driver's functions, and how this library finds the real ones.
 *
 * A program finds a function by one of three doors, and each gives it the hook:
 *
 *   linking             the dynamic linker takes the first library that exports the name, which is this one
 *   cuGetProcAddress    hooked; asks the driver's own, and exchanges a real function for its hook
 *   dlsym               defined here; exchanges it, or jumps to the next dlsym
 *
 * This library looks the real functions up in the handle of libcuda.so.1, by glibc's own dlsym.  So it never finds its
 * hooks there.  README.md in this folder has the table of what dlsym answers.
 *
 * The next dlsym is that of the first library after this one in the linker's order: glibc's, or that of another
 * interposer.  An interposer is a library that defines a function in front of the library that the program means.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload.h"

/* A row of preload_table.def. */
struct row {
  const char *name;
  void *hook;    /* NULL in a row REAL */
  size_t offset; /* of the real function in struct preload_real */
};

/* What the program finds by the names of the hooks. */
#if defined(__x86_64__)
#define HOOK(name, arguments)                                                                                          \
  extern const char entry_##name[] __asm__(#name);                                                                     \
  __asm__(".text\n"                                                                                                    \
          ".p2align 4\n"                                                                                               \
          ".globl " #name "\n"                                                                                         \
          ".type " #name ", @function\n" #name ":\n"                                                                   \
          "  .cfi_startproc\n"                                                                                         \
          "  movl $0, %eax\n" /* five bytes; the register has no meaning here */                                       \
          "  jmp preload_" #name "\n"                                                                                  \
          "  .cfi_endproc\n"                                                                                           \
          ".size " #name ", .-" #name "\n");
#define AGAIN(name, arguments, values) HOOK(name, arguments)
#define REAL(name, arguments)
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL
#define ENTRY(name) (void *)(uintptr_t)(entry_##name)
#else
#define ENTRY(name) (void *)(name)
#endif

static const struct row rows[] = {
#define HOOK(name, arguments) {#name, ENTRY(name), offsetof(struct preload_real, name)},
#define AGAIN(name, arguments, values) HOOK(name, arguments)
#define REAL(name, arguments) {#name, NULL, offsetof(struct preload_real, name)},
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL
};
enum { ROWS = sizeof rows / sizeof rows[0] };
_Static_assert((size_t)ROWS == (size_t)PRELOAD_ROWS, "a row of the table has a pointer");

/* The real function of a row, NULL if this driver lacks it. */
static void *row_real(const struct preload_real *real, const struct row *row) {
  return *(void *const *)((const char *)real + row->offset);
}

/* ---- The other dlsym ---- */

/* glibc's own, and the next one.  NULL until dlsym_find has run. */
static void *(*glibc_dlsym)(void *, const char *);
__attribute__((visibility("hidden"))) void *(*preload_dlsym)(void *, const char *);

/* dlvsym needs a version of dlsym: GLIBC_2.34, or an older one that the processor's glibc has. */
static void dlsym_find(void) {
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
  void *(*found)(void *, const char *) = NULL;
  for (size_t i = 0; found == NULL && i < sizeof versions / sizeof versions[0]; i++)
    *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  void *next = found(RTLD_NEXT, "dlsym");
  /* relaxed, both: every thread finds the same functions, and no other data is published */
  __atomic_store_n(&glibc_dlsym, found, __ATOMIC_RELAXED);
  __atomic_store_n((void **)&preload_dlsym, next != NULL ? next : *(void **)&found, __ATOMIC_RELAXED);
}

/* Asks glibc's dlsym, so that a function of an interposer is not taken for the driver's. */
static void *dlsym_behind(void *library, const char *name) {
  if (__atomic_load_n((void **)&preload_dlsym, __ATOMIC_RELAXED) == NULL) /* relaxed: see dlsym_find */
    dlsym_find();
  return __atomic_load_n(&glibc_dlsym, __ATOMIC_RELAXED)(library, name);
}

/* The first function of that name after this library in the linker's order.  volatile prevents a tail call: it would
 * show glibc the return address of another library, which RTLD_NEXT depends on. */
static void *symbol_after_this(const char *name) {
  void *volatile found = dlsym_behind(RTLD_NEXT, name);
  return found;
}

/* ---- The real functions ---- */

/* The real function of a row.  In a served process that is the driver's.  In a process that is left alone it is the
 * next one in the linker's order, so that another interposer sees all that it would see without this library.  Without
 * a driver (library is NULL) it is the next one, too, of a simulator for example.  But what this library calls for
 * itself is not there then, so nothing is served. */
static void *real_find(void *library, const struct row *row) {
  if (library == NULL)
    return row->hook != NULL ? symbol_after_this(row->name) : NULL;
  void *after = preload_active() ? NULL : symbol_after_this(row->name);
  return after != NULL ? after : dlsym_behind(library, row->name);
}

/* The real functions, and the driver's own cuGetProcAddress, which the table has only in a served process. */
struct table {
  struct preload_real real;
  struct driver_look_up look_up;
};

/* False if the table is empty. */
static bool table_fill(struct table *table, void *library) {
  bool found = false;
  for (size_t i = 0; i < ROWS; i++) {
    void *function = real_find(library, &rows[i]);
    *(void **)((char *)&table->real + rows[i].offset) = function;
    found |= function != NULL;
  }
  *(void **)&table->look_up.v1 = library != NULL ? dlsym_behind(library, "cuGetProcAddress") : NULL;
  *(void **)&table->look_up.v2 = library != NULL ? dlsym_behind(library, "cuGetProcAddress_v2") : NULL;
  return found;
}

static _Atomic(struct table *) published;

static __attribute__((noinline)) const struct table *table_make(void) {
  struct table *known = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  struct table *mine = calloc(1, sizeof *mine);
  if (mine == NULL || !table_fill(mine, library)) {
    free(mine);
    return NULL; /* a later call looks again */
  }
  /* If several threads make a table at once, the first one's counts.  The driver stays open, as the table points to it.
   * release: publishes the table; acquire on failure: reads the winner's.  Pairs with the load in table_get. */
  if (!atomic_compare_exchange_strong_explicit(&published, &known, mine, memory_order_acq_rel, memory_order_acquire)) {
    free(mine);
    mine = known;
  }
  return mine;
}

static inline const struct table *table_get(void) {
  /* acquire: the table's content; pairs with the release in table_make */
  const struct table *known = atomic_load_explicit(&published, memory_order_acquire);
  return __builtin_expect(known != NULL, true) ? known : table_make();
}

const struct preload_real *preload_real_get(void) {
  const struct table *table = table_get();
  return table != NULL ? &table->real : NULL;
}

static _Atomic unsigned given[PRELOAD_DOORS]; /* relaxed: single numbers */

/* Counts a hook that a program gets by a door, and returns it. */
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

/* What a hook stands for before the driver is opened: itself where the driver was loaded with the program and has the
 * function, else what comes after it, mostly nothing.  Written before the program begins. */
static void *meant[ROWS];

void preload_meant_find(void *driver) {
  for (size_t i = 0; i < ROWS; i++)
    meant[i] =
        driver != NULL && dlsym_behind(driver, rows[i].name) != NULL ? rows[i].hook : symbol_after_this(rows[i].name);
}

void *preload_hook_meant(void *function) {
  const struct row *row = row_by_hook(function);
  return row != NULL ? meant[row - rows] : function;
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

size_t preload_hook_named(const char *name, const void **hook) {
  const struct row *row = name[0] == 'c' && name[1] == 'u' ? row_by_name(name) : NULL;
  *hook = row != NULL ? row->hook : NULL;
  return row != NULL ? (size_t)(row - rows) : PRELOAD_ROWS;
}

/* libmam's table of the driver gets the real function in place of a hook. */
static void *detour_real(void *function) {
  const struct row *row = row_by_hook(function);
  const struct preload_real *real = row != NULL ? preload_real_get() : NULL;
  return real != NULL ? row_real(real, row) : function;
}

/* libmam is used, maybe before the program calls any hook: the options must have been read. */
static bool detour_open(struct driver_look_up *look_up) {
  (void)preload_active();
  const struct table *table = table_get();
  if (table == NULL || (table->look_up.v1 == NULL && table->look_up.v2 == NULL))
    return false;
  *look_up = table->look_up;
  return true;
}

/* How libmam finds the driver's functions without the hooks (driver.h). */
PRELOAD_HOOK const struct driver_detour mam_driver_detour = {.open = detour_open, .real = detour_real};

/* ---- cuGetProcAddress ---- */

/* Exchanges a real function that the driver has found for its hook.  The function decides, not the name that it was
 * asked by: one name stands for several functions at several versions. */
static CUresult found_hooked(const struct preload_real *real, CUresult result, void **function) {
  if (result != CUDA_SUCCESS || function == NULL || *function == NULL || !preload_active())
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

/* The library that an address lies in, NULL if in none. */
static struct link_map *library_of(const void *address) {
  Dl_info info;
  void *map = NULL;
  return dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

/* Whether the library that asks for name by RTLD_NEXT defines that function itself: then it gets what comes after it.
 * Any other library means the driver's function.  Also true if the library is not known.
 *
 * dlopen makes a handle of the library.  Its link_map alone is none: a library that was never opened by dlopen has no
 * list of libraries to search in. */
static bool is_interposer(const char *name, const void *caller) {
  const struct link_map *own = library_of(caller);
  void *library = own != NULL ? dlopen(own->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
  if (library == NULL)
    return true;
  void *its = dlsym_behind(library, name);
  bool interposes = its != NULL && library_of(its) == own;
  (void)dlclose(library);
  return interposes;
}

/* Whether the driver is loaded and has the function.  Does not load it. */
static bool driver_has(const char *name) {
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  bool has = library != NULL && dlsym_behind(library, name) != NULL;
  if (library != NULL)
    (void)dlclose(library);
  return has;
}

/* What dlsym answers.  If ask is 0: function, NULL if no library has it.  If ask is 1: what the next dlsym answers, to
 * which the assembler below jumps.  The next dlsym then finds the caller's return address, which RTLD_NEXT and
 * RTLD_DEFAULT depend on.  The struct comes back in two registers. */
struct dlsym_answer {
  void *function;
  uintptr_t ask;
};

static const struct dlsym_answer ask_behind = {NULL, 1};

/* The answer where the driver has no such function, or none is loaded: the hook is not there, and what is found is
 * another interposer's or nothing.  A look-up is the last call here, so that dlerror tells of it. */
static struct dlsym_answer answer_void(void *library, const struct row *row) {
  if (library != RTLD_NEXT && dlsym_behind(library, row->name) != row->hook)
    return ask_behind;
  return (struct dlsym_answer){symbol_after_this(row->name), 0};
}

/* The answer to RTLD_NEXT. */
static struct dlsym_answer answer_next(const struct row *row, const void *caller) {
  if (is_interposer(row->name, caller))
    return ask_behind;
  return (struct dlsym_answer){give(PRELOAD_DOOR_DLSYM, row->hook), 0};
}

/* The answer to a library's handle: the hook if the driver's function is found in it, else what is found.  The library
 * may have a function of its own by that name.  Or it may be another copy of the driver, in a namespace of its own
 * (dlmopen), to which contexts of this one mean nothing. */
static struct dlsym_answer answer_of(void *library, const char *name) {
  void *found = dlsym_behind(library, name);
  const struct preload_real *real = found != NULL ? preload_real_get() : NULL;
  const struct row *row = real != NULL ? row_by_real(real, found) : NULL;
  return (struct dlsym_answer){row != NULL ? give(PRELOAD_DOOR_DLSYM, row->hook) : found, 0};
}

/* Decides what a call of dlsym answers.  caller: its return address.  Called by the assembler below. */
__attribute__((visibility("hidden"), used)) struct dlsym_answer preload_dlsym_answer(void *library, const char *name,
                                                                                     const void *caller);
struct dlsym_answer preload_dlsym_answer(void *library, const char *name, const void *caller) {
  if (__atomic_load_n((void **)&preload_dlsym, __ATOMIC_RELAXED) == NULL) /* relaxed: see dlsym_find */
    dlsym_find();
  bool drivers = name != NULL && name[0] == 'c' && name[1] == 'u';
  if (drivers)
    preload_references_mend(caller);
  const struct row *row = drivers ? row_by_name(name) : NULL;
  if (row == NULL)
    return ask_behind;
  if (!driver_has(name))
    return answer_void(library, row);
  if (!preload_active() || library == RTLD_DEFAULT) /* the first library with that name: this one, or one before it */
    return ask_behind;
  return library == RTLD_NEXT ? answer_next(row, caller) : answer_of(library, name);
}

/* dlsym, which jumps to the next dlsym or answers itself.  It is written in assembler because a jump must leave the
 * stack as the caller made it.  It has both versions that glibc's has, so that an interposer in front of this library
 * that asks for one of them by dlvsym finds this one. */
#if defined(__x86_64__)
__asm__(".symver preload_dlsym_entry, dlsym@@GLIBC_2.34\n"
        ".symver preload_dlsym_older, dlsym@GLIBC_2.2.5\n"
        ".text\n"
        ".globl preload_dlsym_entry, preload_dlsym_older\n"
        ".type preload_dlsym_entry, @function\n"
        ".type preload_dlsym_older, @function\n"
        "preload_dlsym_entry:\n"
        "preload_dlsym_older:\n"
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
        "  testq %rdx, %rdx\n"
        "  jnz 1f\n"
        "  ret\n"
        "1: movq preload_dlsym(%rip), %rax\n"
        "  jmp *%rax\n"
        "  .cfi_endproc\n"
        ".size preload_dlsym_entry, .-preload_dlsym_entry\n"
        ".size preload_dlsym_older, .-preload_dlsym_older\n");
#elif defined(__aarch64__)
__asm__(".symver preload_dlsym_entry, dlsym@@GLIBC_2.34\n"
        ".symver preload_dlsym_older, dlsym@GLIBC_2.17\n"
        ".text\n"
        ".globl preload_dlsym_entry, preload_dlsym_older\n"
        ".type preload_dlsym_entry, %function\n"
        ".type preload_dlsym_older, %function\n"
        "preload_dlsym_entry:\n"
        "preload_dlsym_older:\n"
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
        "  mov x17, x1\n"
        "  ldp x0, x1, [sp, #16]\n"
        "  ldp x29, x30, [sp], #32\n"
        "  .cfi_def_cfa_offset 0\n"
        "  .cfi_restore 29\n"
        "  .cfi_restore 30\n"
        "  cbnz x17, 1f\n"
        "  mov x0, x16\n"
        "  ret\n"
        "1: adrp x16, preload_dlsym\n"
        "  ldr x16, [x16, #:lo12:preload_dlsym]\n"
        "  br x16\n"
        "  .cfi_endproc\n"
        ".size preload_dlsym_entry, .-preload_dlsym_entry\n"
        ".size preload_dlsym_older, .-preload_dlsym_older\n");
#else
#error "libmam_preload has no dlsym for this processor"
#endif
