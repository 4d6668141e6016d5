/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The file of a record (mam-record(5)), from the writer's side: items are put into a frame, and full frames go to a
 * file descriptor.  Knows neither threads nor clocks; record.h does.
 *
 * The file begins with RECORD_MAGIC.  A frame is a head of RECORD_HEAD_BYTES and its content:
 *
 *   offset  0  'F' 'R'
 *           2  method: 0 the content as it is, 1 zstd
 *           3  0
 *           4  bytes of the content as stored        32 bits, the lowest byte first, as the next two
 *           8  bytes of the content
 *          12  CRC-32 of the 12 bytes before and of the content as stored
 *
 * The content is items.  A number is a varint: seven bits a byte, the lowest first, the highest bit set in all bytes
 * but the last.  A signed number n is the varint of 2n, or of -2n-1 if it is negative.  A text is the number of its
 * bytes and the bytes.  An item begins with a byte: one of enum record_item_code, or an event, RECORD_EVENT and its
 * kind and flags.  What an item defines gets the next number of its kind, from 0; texts begin with 1, as 0 is "none".
 */
#ifndef MAM_LIB_RECORD_FILE_H
#define MAM_LIB_RECORD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RECORD_MAGIC "mamrec\001\n"

enum { RECORD_MAGIC_BYTES = 8, RECORD_HEAD_BYTES = 16 };

/* A frame's content never has more bytes, nor a text. */
enum { RECORD_CONTENT_MOST = 1 << 17, RECORD_TEXT_MOST = 4096 };

/* A pool that the program created has an id of its own, from here to twice as much.  No context has: the driver counts
 * them, and plain host memory has the number before the last. */
#define RECORD_CREATED ((uint64_t)1 << 62)

enum record_method { RECORD_PLAIN, RECORD_ZSTD };

enum record_item_code {
  RECORD_ITEM_PROGRAM, /* process, run, microseconds since 1970, text: the command; a first frame of its own, plain */
  RECORD_ITEM_TEXT,    /* text */
  RECORD_ITEM_SITE,    /* text: module, offset, text: name */
  RECORD_ITEM_THREAD,  /* text: name */
  RECORD_ITEM_STREAM,  /* handle */
  RECORD_ITEM_CONTEXT, /* id, device: a context's default pools, or a pool that the program created */
  RECORD_ITEM_CLOCK,   /* ticks, nanoseconds: the same moment by two clocks */
  RECORD_ITEM_FROM,    /* thread, ticks: the events that follow are the thread's; what they refer to begins anew */
  RECORD_ITEM_GONE,    /* signed ticks, address, bytes: the memory there has ended, with the blocks in it */
  RECORD_ITEM_LOST,    /* so many events were lost, because the host had no memory */
  RECORD_ITEM_END,     /* the end of the process */
  RECORD_ITEM_COUNT
};

/* Also an index of mam-bench's. */
enum record_kind {
  RECORD_ALLOCATE, /* address, size (asked), stream, tag, context, site */
  RECORD_REFUSED,  /* an allocation that failed: size, stream, tag, context, site; address is 0 */
  RECORD_FREE,     /* address, stream; size and serial are those of the allocation it ends */
  RECORD_MARK,     /* text: MAM_Mark */
  RECORD_PUSH,     /* text: an NVTX range begins on this thread */
  RECORD_POP,      /* it ends */
  RECORD_TAKEN,    /* size: bytes that the pools of this context hold of the driver, from now on */
  RECORD_LIVE,     /* as RECORD_ALLOCATE, of a block that was live when the record began; a reader makes it one */
  RECORD_KINDS
};

/* The byte of an event.  What follows it, in this order, if its flag is set:
 *
 *   always                signed  ticks since the event before
 *   RECORD_HAS_ADDRESS    signed  address, less that of the event before
 *   RECORD_HAS_SIZE       size; of RECORD_TAKEN signed: by how much it changes
 *   RECORD_HAS_SITE       site
 *   RECORD_HAS_DETAIL     stream (0: none, else 1 and its number), tag (a text's number), context (number)
 *   of RECORD_MARK and RECORD_PUSH  the text's number
 *
 * What has no flag is as in the event before; a RECORD_TAKEN always has a size, and leaves that of the events alone. */
enum {
  RECORD_EVENT = 128,
  RECORD_KIND_MASK = 7,
  RECORD_HAS_ADDRESS = 8,
  RECORD_HAS_SIZE = 16,
  RECORD_HAS_SITE = 32,
  RECORD_HAS_DETAIL = 64
};

struct record_item {
  enum record_kind kind;
  uint64_t ticks, address, size; /* size of RECORD_TAKEN: the change */
  uint32_t tag, context;         /* written and read as one word: in two writes, the read would wait for both */
  uint32_t stream, site, text;
};

struct zstd;

struct record_file {
  int fd;
  dev_t device; /* of the file; with inode: a program that closes all descriptors may get the number for another file */
  ino_t inode;
  int error; /* of the write that failed, 0 if none did, EBADF if the number is not the file's any more; from then on
                nothing is written */
  const struct zstd *zstd;
  void *zstd_context;
  unsigned char *content, *frame; /* the latter: as it goes out, head first */
  size_t content_bytes;
  uint32_t text_count, site_count, thread_count, stream_count, context_count;
  bool from_known; /* a RECORD_ITEM_FROM is in this frame */
  uint32_t from;
  struct record_item last;
};

/* Begins a file; zstd NULL: frames are stored as they are.  False if the host has no memory: then nothing is to be
 * closed.  The descriptor is the file's from now on. */
bool record_file_open(struct record_file *file, int fd, const struct zstd *zstd);
/* Writes nothing, and closes the descriptor only if it is still the file's.  in_child: the lock is the parent's. */
void record_file_close(struct record_file *file, bool in_child);

/* Sends what was put to the file. */
void record_file_flush(struct record_file *file);

/* Items that define something answer with its number. */
void record_file_program(struct record_file *file, uint64_t process, uint64_t run, uint64_t time_us,
                         const char *command);
uint32_t record_file_text(struct record_file *file, const char *text);
uint32_t record_file_site(struct record_file *file, const char *module, uint64_t offset, const char *name);
uint32_t record_file_thread(struct record_file *file, const char *name);
uint32_t record_file_stream(struct record_file *file, uint64_t handle);
uint32_t record_file_context(struct record_file *file, uint64_t id, uint32_t device);
void record_file_clock(struct record_file *file, uint64_t ticks, uint64_t ns);
void record_file_event(struct record_file *file, uint32_t thread, const struct record_item *item);
void record_file_gone(struct record_file *file, uint32_t thread, uint64_t ticks, uint64_t address, uint64_t bytes);
void record_file_lost(struct record_file *file, uint64_t count);
void record_file_end(struct record_file *file);

/* The checksum of a frame, of its head without the sum and its content as stored. */
uint32_t record_sum(const unsigned char *head, const unsigned char *content, size_t content_bytes);

#endif
