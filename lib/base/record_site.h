/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Which module and function an address of the program's code or data lies in.
 *
 * It is not dladdr that tells: that takes a lock of the dynamic linker, which a thread holds while it runs constructors
 * of a library that it loads, and these may wait for the thread that asks.
 */
#ifndef MAM_LIB_RECORD_SITE_H
#define MAM_LIB_RECORD_SITE_H

#include <stdbool.h>
#include <stdint.h>

enum { SITE_TEXT_BYTES = 1024 };

struct site {
  char module[SITE_TEXT_BYTES]; /* its file, "" if the address is in none */
  uint64_t offset;              /* from where the module is loaded; of none, the address */
  char name[SITE_TEXT_BYTES];   /* "function+0x12", "module+0x1234", or "0x1234" */
};

/* code: the address is one that a call returns to, and its last instruction is what is meant. */
void site_find(uintptr_t address, bool code, struct site *site);

/* Changes whenever a module was unloaded: then what was found before may be wrong. */
uint64_t site_unloads(void);

#endif
