/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * References that the dynamic linker has bound to hooks, and that mean something else.
 *
 * Weak references.  A program may refer to the driver's functions weakly, and use those whose addresses are not NULL.
 * Under this library the dynamic linker finds hooks for them.  If no driver was loaded with the program, or it lacks
 * the function, the address must be what it is without this library: NULL, or a function of that name in a library
 * behind.  So the library binds such references anew before the program begins.  It does not look at libraries that are
 * opened later.
 *
 * Variables.  A library may open the driver by itself, and keep what it finds in variables that have the names of the
 * functions.  The dynamic linker compares names, not types, so it binds references to such variables to hooks, and the
 * library would write to their code.  So such a reference is bound to the variable: before the program begins, and in
 * libraries that are opened later when a library asks dlsym for a function of the driver, which it does before it has
 * something to write.  A constructor that runs before this library's may still find a hook.
 *
 * A program whose variable comes from such a library has a copy of it, which the dynamic linker begins with the first
 * bytes of the hook's code.  It is cleared.
 */
#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/module.h"
#include "preload/preload.h"

/* Kinds of references that hold the address of a function: of the GOT, of the PLT, and in data.  COPY is a variable of
 * the program that begins as that of a library. */
#if defined(__x86_64__)
enum { SLOT = R_X86_64_GLOB_DAT, CALL_SLOT = R_X86_64_JUMP_SLOT, WORD = R_X86_64_64, COPY = R_X86_64_COPY };
#else
enum { SLOT = R_AARCH64_GLOB_DAT, CALL_SLOT = R_AARCH64_JUMP_SLOT, WORD = R_AARCH64_ABS64, COPY = R_AARCH64_COPY };
#endif

/* The tables of a library's references, from its dynamic section. */
struct references {
  const ElfW(Sym) * symbols;
  const char *names;            /* of the symbols */
  const ElfW(Rela) * tables[2]; /* of data and of calls; NULL: none */
  size_t bytes[2];
};

/* False if the library has no symbols. */
static bool references_find(const struct dl_phdr_info *library, struct references *found) {
  const ElfW(Dyn) *entry = module_dynamic(library);
  *found = (struct references){0};
  for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB)
      found->symbols = module_at(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_STRTAB)
      found->names = module_at(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_RELA)
      found->tables[0] = module_at(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_RELASZ)
      found->bytes[0] = entry->d_un.d_val;
    else if (entry->d_tag == DT_JMPREL)
      found->tables[1] = module_at(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_PLTRELSZ)
      found->bytes[1] = entry->d_un.d_val;
  }
  return found->symbols != NULL;
}

/* The dynamic linker runs one callback of dl_iterate_phdr at a time, so no other thread writes to the page meanwhile.
 */
static void slot_set(const struct dl_phdr_info *library, uintptr_t *slot, uintptr_t value) {
  size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)slot & ~(uintptr_t)(page_bytes - 1));
  bool guarded = module_has(library, PT_GNU_RELRO, (uintptr_t)slot);
  if (guarded && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0)
    return;
  *slot = value;
  if (guarded)
    (void)mprotect(page, page_bytes, PROT_READ);
}

/* ---- What a reference means ---- */

/* A reference of a library: where it stands, and what it names. */
struct reference {
  const struct dl_phdr_info *library;
  uintptr_t *slot;
  const ElfW(Sym) * symbol;
  const char *name;
  ElfW(Sxword) addend;
  unsigned type;
};

static void weak_bind(const struct reference *reference) {
  const ElfW(Sym) *symbol = reference->symbol;
  if (reference->type == COPY || symbol->st_shndx != SHN_UNDEF || ELF64_ST_BIND(symbol->st_info) != STB_WEAK)
    return;
  void *found = (void *)*reference->slot, *meant = preload_hook_meant(found);
  if (meant != found)
    slot_set(reference->library, reference->slot, (uintptr_t)meant);
}

static void copy_clear(const struct reference *reference) {
  const void *hook;
  if (reference->type == COPY && preload_hook_named(reference->name, &hook) < PRELOAD_ROWS &&
      reference->symbol->st_size == sizeof(void *) && memcmp(reference->slot, hook, sizeof(void *)) == 0)
    memset(reference->slot, 0, sizeof(void *));
}

/* Where the first variable of each name is, 0 if none was seen.  The dynamic linker runs one callback at a time. */
static uintptr_t variables[PRELOAD_ROWS];

/* To its own variable, if the library has one, else to another's. */
static void variable_bind(const struct reference *reference) {
  const ElfW(Sym) *symbol = reference->symbol;
  const void *hook;
  if ((reference->type != SLOT && reference->type != WORD) || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT)
    return;
  size_t row = preload_hook_named(reference->name, &hook);
  if (row == PRELOAD_ROWS)
    return;
  uintptr_t addend = reference->type == WORD ? (uintptr_t)reference->addend : 0;
  uintptr_t own = symbol->st_shndx != SHN_UNDEF ? reference->library->dlpi_addr + symbol->st_value : variables[row];
  if (*reference->slot - addend == (uintptr_t)hook && own != 0)
    slot_set(reference->library, reference->slot, own + addend);
  if (variables[row] == 0 && *reference->slot - addend != (uintptr_t)hook)
    variables[row] = *reference->slot - addend;
}

static void library_references(const struct dl_phdr_info *library, void (*visit)(const struct reference *)) {
  struct references found;
  if (!references_find(library, &found))
    return;
  for (int table = 0; table < 2; table++)
    for (size_t i = 0; found.tables[table] != NULL && i < found.bytes[table] / sizeof(ElfW(Rela)); i++) {
      const ElfW(Rela) *entry = &found.tables[table][i];
      const ElfW(Sym) *symbol = &found.symbols[ELF64_R_SYM(entry->r_info)];
      unsigned type = (unsigned)ELF64_R_TYPE(entry->r_info);
      if (type == SLOT || type == CALL_SLOT || type == WORD || type == COPY)
        visit(&(struct reference){library, (uintptr_t *)(library->dlpi_addr + entry->r_offset), symbol,
                                  found.names + symbol->st_name, entry->r_addend, type});
    }
}

/* ---- When ---- */

static void visit_early(const struct reference *reference) {
  weak_bind(reference);
  copy_clear(reference);
}

/* For dl_iterate_phdr, before the program begins. */
static int library_early(struct dl_phdr_info *library, size_t bytes, void *unused) {
  (void)bytes;
  (void)unused;
  library_references(library, visit_early);
  return 0;
}

/* A look at libraries on behalf of code that asks for a function. */
struct look {
  uintptr_t caller;
  bool begun, all;
};

/* For dl_iterate_phdr.  All libraries are looked at when some were opened since.  When another library asks than the
 * last time, it is looked at in any case: it may have been in the middle of being opened when all were, but now its
 * code runs.  What is static here is protected as variables is. */
static int library_variables(struct dl_phdr_info *library, size_t bytes, void *closure) {
  static unsigned long long opened;     /* how many libraries had been opened when all were looked at */
  static const ElfW(Phdr) * last_asked; /* identifies a library */
  struct look *look = closure;
  (void)bytes;
  if (!look->begun && library->dlpi_adds != opened) {
    look->all = true;
    opened = library->dlpi_adds;
    memset(variables, 0, sizeof variables); /* one of them may have been closed */
  }
  look->begun = true;
  bool asks = module_has(library, PT_LOAD, look->caller);
  if (look->all || (asks && last_asked != library->dlpi_phdr))
    library_references(library, variable_bind);
  if (asks)
    last_asked = library->dlpi_phdr;
  return asks && !look->all;
}

/* If all libraries are looked at, twice: a variable may be in a library behind the one that refers to it. */
void preload_references_mend(const void *caller) {
  struct look look = {.caller = (uintptr_t)caller};
  (void)dl_iterate_phdr(library_variables, &look);
  if (look.all)
    (void)dl_iterate_phdr(library_variables, &look);
}

/* The priority runs it before other constructors, which may look at such addresses.  101 is the first that is not
 * reserved. */
__attribute__((constructor(101))) static void references_begin(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  preload_meant_find(driver);
  (void)dl_iterate_phdr(library_early, NULL);
  preload_references_mend((const void *)(uintptr_t)references_begin);
  if (driver != NULL)
    (void)dlclose(driver);
  (void)dlerror(); /* of what the program did not ask for */
}
