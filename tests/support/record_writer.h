/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records made by hand, for tests: a file of its own each, ticks are nanoseconds.
 *
 *   struct record_file file;
 *   writer_open(&file, path, zstd_load());           a program, and the clock's first moment
 *   uint32_t thread = record_file_thread(&file, "main"), context = record_file_context(&file, 1, 0);
 *   uint32_t site = record_file_site(&file, "prog", 0x1234, "work+0x10");
 *   writer_allocate(&file, thread, 100, 0x1000, 512, site);
 *   writer_free(&file, thread, 200, 0x1000);
 *   writer_close(&file, 1000);                       the clock's last moment, and the end
 */
#ifndef MAM_TESTS_RECORD_WRITER_H
#define MAM_TESTS_RECORD_WRITER_H

#include <fcntl.h>

#include "base/record_file.h"
#include "base/zstd.h"

static inline bool writer_open(struct record_file *file, const char *path, const struct zstd *zstd) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0 || !record_file_open(file, fd, zstd))
    return false;
  record_file_program(file, 4711, 0, 1700000000000000, "prog --option");
  record_file_clock(file, 0, 0);
  return true;
}

static inline void writer_allocate(struct record_file *file, uint32_t thread, uint64_t ns, uint64_t address,
                                   uint64_t size, uint32_t site) {
  record_file_event(
      file, thread,
      &(struct record_item){.kind = RECORD_ALLOCATE, .ticks = ns, .address = address, .size = size, .site = site});
}

static inline void writer_free(struct record_file *file, uint32_t thread, uint64_t ns, uint64_t address) {
  record_file_event(file, thread, &(struct record_item){.kind = RECORD_FREE, .ticks = ns, .address = address});
}

static inline void writer_close(struct record_file *file, uint64_t ns) {
  record_file_clock(file, ns, ns);
  record_file_end(file);
  record_file_close(file, false);
}

#endif
