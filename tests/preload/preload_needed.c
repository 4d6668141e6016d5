/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A library that others need, and nobody opens by itself: it asks for the driver's functions from where it stands.
 * Built once for a program to be linked with, and once for a plugin.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#ifndef NEEDED_NEXT
#define NEEDED_NEXT needed_next
#endif

void *NEEDED_NEXT(const char *name);

/* volatile: a tail call would show dlsym the caller's library instead */
void *NEEDED_NEXT(const char *name) {
  void *volatile found = dlsym(RTLD_NEXT, name);
  return found;
}
