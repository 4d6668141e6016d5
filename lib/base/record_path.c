/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/record_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/record_file.h"

void record_path_expand(const char *path, char *to, size_t bytes) {
  size_t used = 0;
  for (; *path != '\0' && used + 24 < bytes; path++)
    if (path[0] == '%' && path[1] == 'p') {
      used += (size_t)snprintf(to + used, bytes - used, "%ld", (long)getpid());
      path++;
    } else {
      to[used++] = *path;
    }
  to[used] = '\0';
}

static bool number_read(const unsigned char **at, const unsigned char *end, uint64_t *number) {
  *number = 0;
  for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
    unsigned char byte = *(*at)++;
    *number |= (uint64_t)(byte & 127) << shift;
    if (byte < 128)
      return true;
  }
  return false;
}

/* Whether this process may write over what is in the file: not another process's that writes it now, nor, unless the
 * program names the file itself, one of the same run or its own from before an exec; and nothing that is no record. */
static enum record_taken file_taken(int fd, bool named, uint64_t own_run) {
  unsigned char begin[64];
  struct stat status;
  uint64_t process, run;
  if (fstat(fd, &status) != 0)
    return TAKEN_ERROR;
  if (!S_ISREG(status.st_mode))
    return TAKEN_FOREIGN;
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return TAKEN_BY_OTHER;
  ssize_t bytes = pread(fd, begin, sizeof begin, 0);
  if (bytes < 0)
    return TAKEN_ERROR;
  if (bytes > 0 && memcmp(begin, RECORD_MAGIC, (size_t)bytes < 6 ? (size_t)bytes : 6) != 0)
    return TAKEN_FOREIGN;
  const unsigned char *at = begin + RECORD_MAGIC_BYTES + RECORD_HEAD_BYTES, *end = begin + bytes;
  if (!named && bytes > RECORD_MAGIC_BYTES + RECORD_HEAD_BYTES && begin[RECORD_MAGIC_BYTES + 2] == RECORD_PLAIN &&
      *at++ == RECORD_ITEM_PROGRAM && number_read(&at, end, &process) && number_read(&at, end, &run) &&
      (process == (uint64_t)getpid() || (run != 0 && run == own_run)))
    return TAKEN_BY_OTHER;
  return ftruncate(fd, 0) == 0 ? TAKEN_NOT : TAKEN_ERROR;
}

int record_path_open(const char *path, bool named, uint64_t run, enum record_taken *taken) {
  /* not blocking: a pipe would make the program wait for a reader */
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  *taken = TAKEN_ERROR;
  if (fd < 0)
    return -1;
  *taken = file_taken(fd, named, run);
  if (*taken == TAKEN_NOT)
    return fd;
  int error = errno;
  (void)close(fd);
  errno = *taken == TAKEN_FOREIGN ? EEXIST : *taken == TAKEN_BY_OTHER ? EBUSY : error;
  return -1;
}

void record_command(char *text, size_t bytes) {
  int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  ssize_t count = fd >= 0 ? read(fd, text, bytes - 1) : 0;
  if (fd >= 0)
    (void)close(fd);
  if (count < 0)
    count = 0;
  while (count > 0 && text[count - 1] == '\0')
    count--;
  for (ssize_t i = 0; i < count; i++)
    if (text[i] == '\0')
      text[i] = ' ';
  text[count] = '\0';
}
