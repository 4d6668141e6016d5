/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Where a record goes: the file of a name, whether it may be written over, and the command that stands in it.  Knows no
 * events; only the files of a record include it.
 */
#ifndef MAM_LIB_RECORD_PATH_H
#define MAM_LIB_RECORD_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Puts the process's number where the path says %p. */
void record_path_expand(const char *path, char *to, size_t bytes);

/* foreign: it is no record. */
enum record_taken { TAKEN_NOT, TAKEN_BY_OTHER, TAKEN_FOREIGN, TAKEN_ERROR };

/* The file for the taking; else -1 with errno, EBUSY if it is another process's, EEXIST if it is no record, nor a
 * regular file.  named: by the program itself; run: the process that the run began with, 0 for none. */
int record_path_open(const char *path, bool named, uint64_t run, enum record_taken *taken);

/* The program's arguments, with spaces between. */
void record_command(char *text, size_t bytes);

#endif
