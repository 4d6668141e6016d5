/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What dl_iterate_phdr tells of a module, a program or a library in memory: its parts and its dynamic section.
 */
#ifndef MAM_LIB_MODULE_H
#define MAM_LIB_MODULE_H

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* Whether an address lies in a part of that type: PT_LOAD, all that is in memory; PT_GNU_RELRO, what the dynamic linker
 * has made read-only. */
static inline bool module_has(const struct dl_phdr_info *module, uint32_t type, uintptr_t address) {
  for (unsigned i = 0; i < module->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &module->dlpi_phdr[i];
    if (part->p_type == type && address - (module->dlpi_addr + part->p_vaddr) < part->p_memsz)
      return true;
  }
  return false;
}

/* The dynamic section, which DT_NULL ends; NULL if there is none. */
static inline const ElfW(Dyn) * module_dynamic(const struct dl_phdr_info *module) {
  const ElfW(Dyn) *dynamic = NULL;
  for (unsigned i = 0; i < module->dlpi_phnum; i++)
    if (module->dlpi_phdr[i].p_type == PT_DYNAMIC)
      dynamic = (const ElfW(Dyn) *)(module->dlpi_addr + module->dlpi_phdr[i].p_vaddr);
  return dynamic;
}

/* What a value of the dynamic section points to.  The dynamic linker has turned most into addresses, and leaves some as
 * offsets. */
static inline const void *module_at(const struct dl_phdr_info *module, ElfW(Addr) value) {
  return (const void *)(value < module->dlpi_addr ? module->dlpi_addr + value : value);
}

#endif
