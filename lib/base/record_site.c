/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dl_iterate_phdr */
#endif
#include "base/record_site.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/module.h"

/* A module's dynamic symbols, as it has them in memory. */
struct symbols {
  const ElfW(Sym) * table;
  size_t count;
  const char *texts;
  size_t texts_bytes;
};

/* How many symbols the hash table knows: it has a chain for each bucket, and the last of all ends the table. */
static size_t hash_count(const uint32_t *hash) {
  uint32_t buckets = hash[0], first = hash[1], filter_words = hash[2], last = 0;
  const uint32_t *bucket = hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof *hash), *chain = bucket + buckets;
  for (uint32_t i = 0; i < buckets; i++)
    last = bucket[i] > last ? bucket[i] : last;
  if (last < first)
    return 0;
  while ((chain[last - first] & 1) == 0)
    last++;
  return (size_t)last + 1;
}

static struct symbols symbols_of(const struct dl_phdr_info *module) {
  struct symbols symbols = {0};
  const ElfW(Dyn) *dynamic = module_dynamic(module);
  for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
    const void *at = module_at(module, dynamic->d_un.d_ptr);
    if (dynamic->d_tag == DT_SYMTAB)
      symbols.table = at;
    else if (dynamic->d_tag == DT_STRTAB)
      symbols.texts = at;
    else if (dynamic->d_tag == DT_STRSZ)
      symbols.texts_bytes = dynamic->d_un.d_val;
    else if (dynamic->d_tag == DT_GNU_HASH)
      symbols.count = hash_count(at);
    else if (dynamic->d_tag == DT_HASH && symbols.count == 0)
      symbols.count = ((const uint32_t *)at)[1];
  }
  if (symbols.table == NULL || symbols.texts == NULL)
    symbols.count = 0;
  return symbols;
}

/* The symbol that the offset lies in; NULL if there is none. */
static const char *symbol_find(const struct dl_phdr_info *module, uint64_t offset, uint64_t *inside) {
  struct symbols symbols = symbols_of(module);
  for (size_t i = 0; i < symbols.count; i++) {
    const ElfW(Sym) *symbol = &symbols.table[i];
    unsigned type = symbol->st_info & 15;
    if (symbol->st_shndx == SHN_UNDEF || type == STT_TLS || symbol->st_name >= symbols.texts_bytes ||
        offset - symbol->st_value >= symbol->st_size)
      continue;
    *inside = offset - symbol->st_value;
    return symbols.texts + symbol->st_name;
  }
  return NULL;
}

/* The program's own file has no name there. */
static void module_name(const struct dl_phdr_info *module, char *name) {
  ssize_t bytes = -1;
  if (module->dlpi_name != NULL && module->dlpi_name[0] != '\0')
    (void)snprintf(name, SITE_TEXT_BYTES, "%s", module->dlpi_name);
  else if ((bytes = readlink("/proc/self/exe", name, SITE_TEXT_BYTES - 1)) >= 0)
    name[bytes] = '\0';
  else
    (void)snprintf(name, SITE_TEXT_BYTES, "program");
}

struct search {
  uintptr_t address;
  bool code;
  struct site *site;
};

static int search_module(struct dl_phdr_info *module, size_t size, void *data) {
  (void)size;
  const struct search *search = data;
  struct site *site = search->site;
  uint64_t inside;
  if (!module_has(module, PT_LOAD, search->address))
    return 0;
  module_name(module, site->module);
  site->offset = search->address - module->dlpi_addr;
  const char *symbol = symbol_find(module, site->offset - search->code, &inside);
  const char *slash = strrchr(site->module, '/');
  if (symbol != NULL)
    (void)snprintf(site->name, sizeof site->name, "%.900s+0x%llx", symbol, (unsigned long long)(inside + search->code));
  else
    (void)snprintf(site->name, sizeof site->name, "%.900s+0x%llx", slash != NULL ? slash + 1 : site->module,
                   (unsigned long long)site->offset);
  return 1;
}

void site_find(uintptr_t address, bool code, struct site *site) {
  struct search search = {address, code, site};
  site->module[0] = '\0';
  site->offset = address;
  (void)snprintf(site->name, sizeof site->name, "0x%llx", (unsigned long long)address);
  (void)dl_iterate_phdr(search_module, &search);
}

static int first_module(struct dl_phdr_info *module, size_t size, void *data) {
  if (size >= offsetof(struct dl_phdr_info, dlpi_subs) + sizeof module->dlpi_subs)
    *(uint64_t *)data = module->dlpi_subs;
  return 1;
}

uint64_t site_unloads(void) {
  uint64_t unloads = 0;
  (void)dl_iterate_phdr(first_module, &unloads);
  return unloads;
}
