/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/record_file.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unsignalled.h"
#include "base/zstd.h"

/* A frame goes out when it has so much: less compresses worse, more waits longer. */
enum { CONTENT_ENOUGH = 1 << 16 };

/* The fastest one but the negative ones. */
enum { ZSTD_LEVEL = 1 };

/* ---- Checksum: CRC-32, the polynomial of IEEE 802.3, eight bytes at a time ---- */

static uint32_t sums[8][256];

static void sums_make(void) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t sum = i;
    for (int bit = 0; bit < 8; bit++)
      sum = sum >> 1 ^ (sum & 1 ? 0xedb88320u : 0);
    sums[0][i] = sum;
  }
  for (uint32_t i = 0; i < 256; i++)
    for (int j = 1; j < 8; j++)
      sums[j][i] = sums[j - 1][i] >> 8 ^ sums[0][sums[j - 1][i] & 255];
}

static uint32_t sum_add(uint32_t sum, const unsigned char *bytes, size_t count) {
  for (; count >= 8; count -= 8, bytes += 8) {
    sum ^= bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
    sum = sums[7][sum & 255] ^ sums[6][sum >> 8 & 255] ^ sums[5][sum >> 16 & 255] ^ sums[4][sum >> 24] ^
          sums[3][bytes[4]] ^ sums[2][bytes[5]] ^ sums[1][bytes[6]] ^ sums[0][bytes[7]];
  }
  while (count-- > 0)
    sum = sum >> 8 ^ sums[0][(sum ^ *bytes++) & 255];
  return sum;
}

uint32_t record_sum(const unsigned char *head, const unsigned char *content, size_t content_bytes) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, sums_make);
  return ~sum_add(sum_add(~0u, head, RECORD_HEAD_BYTES - 4), content, content_bytes);
}

/* ---- Frames ---- */

static bool is_own(const struct record_file *file) {
  struct stat status;
  return fstat(file->fd, &status) == 0 && status.st_dev == file->device && status.st_ino == file->inode;
}

static void write_all(struct record_file *file, const unsigned char *bytes, size_t count) {
  if (file->error == 0 && !is_own(file))
    file->error = EBADF;
  while (count > 0 && file->error == 0) {
    ssize_t written = write_unsignalled(file->fd, bytes, count);
    if (written < 0 && errno != EINTR)
      file->error = errno;
    if (written > 0) {
      bytes += written;
      count -= (size_t)written;
    }
  }
}

static void word_put(unsigned char *to, uint32_t word) {
  for (int i = 0; i < 4; i++)
    to[i] = (unsigned char)(word >> 8 * i);
}

/* The content as it is stored, behind the head. */
static size_t content_store(struct record_file *file, enum record_method *method) {
  unsigned char *to = file->frame + RECORD_HEAD_BYTES;
  if (file->zstd_context != NULL) { /* fails if the result is not smaller */
    size_t bytes = file->zstd->compressCCtx(file->zstd_context, to, file->content_bytes, file->content,
                                            file->content_bytes, ZSTD_LEVEL);
    *method = RECORD_ZSTD;
    if (!file->zstd->isError(bytes))
      return bytes;
  }
  *method = RECORD_PLAIN;
  memcpy(to, file->content, file->content_bytes);
  return file->content_bytes;
}

void record_file_flush(struct record_file *file) {
  enum record_method method;
  unsigned char *head = file->frame;
  if (file->content_bytes == 0)
    return;
  if (file->error == 0) {
    size_t stored_bytes = content_store(file, &method);
    head[0] = 'F', head[1] = 'R', head[2] = (unsigned char)method, head[3] = 0;
    word_put(head + 4, (uint32_t)stored_bytes);
    word_put(head + 8, (uint32_t)file->content_bytes);
    word_put(head + 12, record_sum(head, head + RECORD_HEAD_BYTES, stored_bytes));
    write_all(file, head, RECORD_HEAD_BYTES + stored_bytes);
  }
  file->content_bytes = 0;
  file->from_known = false;
}

bool record_file_open(struct record_file *file, int fd, const struct zstd *zstd) {
  *file = (struct record_file){.fd = fd,
                               .zstd = zstd,
                               .zstd_context = zstd != NULL ? zstd->createCCtx() : NULL,
                               .content = malloc(RECORD_CONTENT_MOST),
                               .frame = malloc(RECORD_HEAD_BYTES + RECORD_CONTENT_MOST),
                               .text_count = 1};
  bool good = file->content != NULL && file->frame != NULL;
  struct stat status;
  if (good) {
    if (fstat(fd, &status) == 0)
      file->device = status.st_dev, file->inode = status.st_ino;
    else
      file->error = errno;
    write_all(file, (const unsigned char *)RECORD_MAGIC, RECORD_MAGIC_BYTES);
  } else {
    free(file->content);
    free(file->frame);
    if (file->zstd_context != NULL)
      (void)zstd->freeCCtx(file->zstd_context);
  }
  return good;
}

void record_file_close(struct record_file *file, bool in_child) {
  if (file->zstd_context != NULL)
    (void)file->zstd->freeCCtx(file->zstd_context);
  free(file->content);
  free(file->frame);
  if (file->error == EBADF || !is_own(file))
    return;
  /* A forked child has the descriptor too until it has called exec, and with it the lock. */
  if (!in_child)
    (void)flock(file->fd, LOCK_UN);
  (void)close(file->fd);
}

/* ---- Items ---- */

static void byte_put(struct record_file *file, unsigned byte) {
  file->content[file->content_bytes++] = (unsigned char)byte;
}

/* Writes a number, and up to 8 bytes in all; returns where it ends.  Numbers of one byte and of two, and those of up to
 * eight, take turns in no order that a processor would foresee, and a branch between them costs more than both ways. */
static inline unsigned char *number_at(unsigned char *at, uint64_t number) {
  if (__builtin_expect(number < 1 << 14, true)) {
    at[0] = (unsigned char)(number | (number > 127) << 7);
    at[1] = (unsigned char)(number >> 7);
    return at + 1 + (number > 127);
  }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  if (__builtin_expect(number >> 56 == 0, true)) {
    unsigned more = (63 - (unsigned)__builtin_clzll(number)) / 7; /* bytes after the first one */
    uint64_t bytes = (number & 0xfffffff0000000) << 4 | (number & 0xfffffff);
    bytes = (bytes & 0xfffc0000fffc000) << 2 | (bytes & 0x3fff00003fff);
    bytes = (bytes & 0x3f803f803f803f80) << 1 | (bytes & 0x7f007f007f007f);
    bytes |= 0x80808080808080 & (((uint64_t)1 << 8 * more) - 1);
    memcpy(at, &bytes, sizeof bytes);
    return at + more + 1;
  }
#endif
  while (number >= 128) {
    *at++ = (unsigned char)(number | 128);
    number >>= 7;
  }
  *at++ = (unsigned char)number;
  return at;
}

/* A difference modulo 2^64, the short way round. */
static inline unsigned char *signed_at(unsigned char *at, uint64_t difference) {
  return number_at(at, difference << 1 ^ -(difference >> 63));
}

static void number_put(struct record_file *file, uint64_t number) {
  file->content_bytes = (size_t)(number_at(file->content + file->content_bytes, number) - file->content);
}

static void signed_put(struct record_file *file, uint64_t difference) {
  file->content_bytes = (size_t)(signed_at(file->content + file->content_bytes, difference) - file->content);
}

static void text_put(struct record_file *file, const char *text) {
  size_t bytes = strnlen(text, RECORD_TEXT_MOST);
  number_put(file, bytes);
  memcpy(file->content + file->content_bytes, text, bytes);
  file->content_bytes += bytes;
}

static void item_begin(struct record_file *file, enum record_item_code code) {
  if (file->content_bytes >= CONTENT_ENOUGH)
    record_file_flush(file);
  byte_put(file, code);
}

void record_file_program(struct record_file *file, uint64_t process, uint64_t run, uint64_t time_us,
                         const char *command) {
  item_begin(file, RECORD_ITEM_PROGRAM);
  number_put(file, process);
  number_put(file, run);
  number_put(file, time_us);
  text_put(file, command);
  void *zstd_context = file->zstd_context;
  file->zstd_context = NULL; /* as it is: other processes look who writes this file */
  record_file_flush(file);
  file->zstd_context = zstd_context;
}

uint32_t record_file_text(struct record_file *file, const char *text) {
  item_begin(file, RECORD_ITEM_TEXT);
  text_put(file, text);
  return file->text_count++;
}

uint32_t record_file_site(struct record_file *file, const char *module, uint64_t offset, const char *name) {
  item_begin(file, RECORD_ITEM_SITE);
  text_put(file, module);
  number_put(file, offset);
  text_put(file, name);
  return file->site_count++;
}

uint32_t record_file_thread(struct record_file *file, const char *name) {
  item_begin(file, RECORD_ITEM_THREAD);
  text_put(file, name);
  return file->thread_count++;
}

uint32_t record_file_stream(struct record_file *file, uint64_t handle) {
  item_begin(file, RECORD_ITEM_STREAM);
  number_put(file, handle);
  return file->stream_count++;
}

uint32_t record_file_context(struct record_file *file, uint64_t id, uint32_t device) {
  item_begin(file, RECORD_ITEM_CONTEXT);
  number_put(file, id);
  number_put(file, device);
  return file->context_count++;
}

void record_file_clock(struct record_file *file, uint64_t ticks, uint64_t ns) {
  item_begin(file, RECORD_ITEM_CLOCK);
  number_put(file, ticks);
  number_put(file, ns);
}

static __attribute__((noinline)) void from_change(struct record_file *file, uint32_t thread, uint64_t ticks) {
  file->from_known = true;
  file->from = thread;
  file->last = (struct record_item){.ticks = ticks};
  byte_put(file, RECORD_ITEM_FROM);
  number_put(file, thread);
  number_put(file, ticks);
}

/* What follows is the thread's. */
static inline void from_put(struct record_file *file, uint32_t thread, uint64_t ticks) {
  if (__builtin_expect(file->content_bytes >= CONTENT_ENOUGH, false))
    record_file_flush(file);
  if (__builtin_expect(!file->from_known || file->from != thread, false))
    from_change(file, thread, ticks);
}

void record_file_event(struct record_file *file, uint32_t thread, const struct record_item *item) {
  from_put(file, thread, item->ticks);
  struct record_item *last = &file->last;
  bool live = item->kind == RECORD_LIVE, sized = item->kind <= RECORD_REFUSED || live,
       taken = item->kind == RECORD_TAKEN;
  bool placed = item->kind == RECORD_ALLOCATE || item->kind == RECORD_FREE || live;
  bool address = placed && item->address != last->address;
  bool size = taken || (sized && item->size != last->size), site = sized && item->site != last->site;
  bool detail = (sized || taken || item->kind == RECORD_FREE) &&
                (item->stream != last->stream || item->tag != last->tag || item->context != last->context);
  unsigned char *at = file->content + file->content_bytes;
  *at++ =
      (unsigned char)(RECORD_EVENT | item->kind | (address ? RECORD_HAS_ADDRESS : 0) | (size ? RECORD_HAS_SIZE : 0) |
                      (site ? RECORD_HAS_SITE : 0) | (detail ? RECORD_HAS_DETAIL : 0));
  at = signed_at(at, item->ticks - last->ticks);
  last->ticks = item->ticks;
  if (address) {
    at = signed_at(at, item->address - last->address);
    last->address = item->address;
  }
  if (taken)
    at = signed_at(at, item->size);
  else if (size)
    at = number_at(at, last->size = item->size);
  if (site)
    at = number_at(at, last->site = item->site);
  if (detail) {
    at = number_at(at, last->stream = item->stream);
    at = number_at(at, last->tag = item->tag);
    at = number_at(at, last->context = item->context);
  }
  if (item->kind == RECORD_MARK || item->kind == RECORD_PUSH)
    at = number_at(at, item->text);
  file->content_bytes = (size_t)(at - file->content);
}

void record_file_gone(struct record_file *file, uint32_t thread, uint64_t ticks, uint64_t address, uint64_t bytes) {
  from_put(file, thread, ticks);
  byte_put(file, RECORD_ITEM_GONE);
  signed_put(file, ticks - file->last.ticks);
  number_put(file, address);
  number_put(file, bytes);
  file->last.ticks = ticks;
}

void record_file_lost(struct record_file *file, uint64_t count) {
  item_begin(file, RECORD_ITEM_LOST);
  number_put(file, count);
}

void record_file_end(struct record_file *file) {
  item_begin(file, RECORD_ITEM_END);
  record_file_flush(file);
}
