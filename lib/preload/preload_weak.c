/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Weak references.  A program may refer to the driver's functions weakly, and use those whose addresses are not NULL.
 * Under this library the dynamic linker finds hooks for them.  If no driver was loaded with the program, or it lacks
 * the function, the address must be NULL.  So the library clears such references before the program begins.  It does
 * not look at libraries that are opened later.
 */
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include "preload/preload.h"

/* Kinds of references that hold the address of a function: of the GOT, of the PLT, and in data. */
#if defined(__x86_64__)
enum { SLOT = R_X86_64_GLOB_DAT, CALL_SLOT = R_X86_64_JUMP_SLOT, WORD = R_X86_64_64 };
#else
enum { SLOT = R_AARCH64_GLOB_DAT, CALL_SLOT = R_AARCH64_JUMP_SLOT, WORD = R_AARCH64_ABS64 };
#endif

/* The tables of a library's references, from its dynamic section. */
struct references {
  const ElfW(Sym) * symbols;
  const ElfW(Rela) * tables[2]; /* of data and of calls; NULL: none */
  size_t bytes[2];
};

/* The dynamic linker has turned most values of the dynamic section into addresses.  Some it leaves as offsets. */
static const void *address_of(const struct dl_phdr_info *library, ElfW(Addr) value) {
  return (const void *)(value < library->dlpi_addr ? library->dlpi_addr + value : value);
}

/* False if the library has no symbols. */
static bool references_find(const struct dl_phdr_info *library, struct references *found) {
  const ElfW(Dyn) *entry = NULL;
  *found = (struct references){0};
  for (unsigned i = 0; i < library->dlpi_phnum; i++)
    if (library->dlpi_phdr[i].p_type == PT_DYNAMIC)
      entry = (const ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
  for (; entry != NULL && entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_SYMTAB)
      found->symbols = address_of(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_RELA)
      found->tables[0] = address_of(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_RELASZ)
      found->bytes[0] = entry->d_un.d_val;
    else if (entry->d_tag == DT_JMPREL)
      found->tables[1] = address_of(library, entry->d_un.d_ptr);
    else if (entry->d_tag == DT_PLTRELSZ)
      found->bytes[1] = entry->d_un.d_val;
  }
  return found->symbols != NULL;
}

/* Whether the slot lies in the part that the dynamic linker has made read-only (RELRO). */
static bool is_protected(const struct dl_phdr_info *library, const void *slot) {
  for (unsigned i = 0; i < library->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &library->dlpi_phdr[i];
    if (part->p_type == PT_GNU_RELRO && (uintptr_t)slot - (library->dlpi_addr + part->p_vaddr) < part->p_memsz)
      return true;
  }
  return false;
}

static void slot_clear(const struct dl_phdr_info *library, void **slot) {
  size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
  void *page = (void *)((uintptr_t)slot & ~(uintptr_t)(page_bytes - 1));
  bool guarded = is_protected(library, slot);
  if (guarded && mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0)
    return;
  *slot = NULL;
  if (guarded)
    (void)mprotect(page, page_bytes, PROT_READ);
}

/* Clears the weak references of one library to hooks that stand for nothing; for dl_iterate_phdr. */
static int library_clear(struct dl_phdr_info *library, size_t bytes, void *unused) {
  struct references found;
  (void)bytes;
  (void)unused;
  if (!references_find(library, &found))
    return 0;
  for (int table = 0; table < 2; table++)
    for (size_t i = 0; found.tables[table] != NULL && i < found.bytes[table] / sizeof(ElfW(Rela)); i++) {
      const ElfW(Rela) *reference = &found.tables[table][i];
      const ElfW(Sym) *symbol = &found.symbols[ELF64_R_SYM(reference->r_info)];
      unsigned type = (unsigned)ELF64_R_TYPE(reference->r_info);
      void **slot = (void **)(library->dlpi_addr + reference->r_offset);
      if ((type == SLOT || type == CALL_SLOT || type == WORD) && symbol->st_shndx == SHN_UNDEF &&
          ELF64_ST_BIND(symbol->st_info) == STB_WEAK && preload_hook_is_void(*slot))
        slot_clear(library, slot);
    }
  return 0;
}

/* The priority runs it before other constructors, which may look at such addresses.  101 is the first that is not
 * reserved. */
__attribute__((constructor(101))) static void weak_references_clear(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  preload_voids_find(driver);
  (void)dl_iterate_phdr(library_clear, NULL);
  if (driver != NULL)
    (void)dlclose(driver);
  (void)dlerror(); /* of what the program did not ask for */
}
