/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `mam-bench picture`: what a record file, or a report of a pool, looks like.
 *
 *   bench_picture.c        the command line
 *   bench_picture_model.c  a record, made into what is shown: blocks, moments, spans, ranges
 *   bench_picture_holes.c  the largest hole after each moment
 *   bench_picture_page.c   the page: HTML around packed numbers, drawn by tools/bench/picture/page.js
 *   bench_picture_trace.c  the same as Chrome's trace events
 *   bench_picture_text.c   names of any bytes as JSON
 *
 * Knows nothing of the record's file format, which is bench_record.h's.
 */
#ifndef MAM_BENCH_PICTURE_H
#define MAM_BENCH_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "bench_ranges.h"
#include "bench_record.h"

enum {
  picture_granularity_bytes = 512
}; /* blocks begin at its multiples, so the rest of a block's last unit is no hole */

/* Of a record: indexes have 32 bits, here and in the page, and a browser needs about a hundred bytes for each. */
#define PICTURE_EVENTS_MOST ((size_t)1 << 26)

/* Where an allocation came from.  Each combination that occurs stands in picture.whos once. */
struct picture_who {
  uint32_t site, thread, stream, tag, context, device; /* as in struct record_event */
  uint32_t path;                                       /* of picture.paths: the ranges that were open */
};

struct picture_block {
  uint64_t address, size; /* as asked */
  uint64_t position;      /* of the address, where all spans stand one after the other */
  uint32_t begin, end;    /* the moments of its allocation and its free; end is moment_count if it was not freed */
  uint32_t who;
};

enum moment_kind { moment_allocate, moment_free, moment_taken, moment_refused };

/* One change, and the sums after it. */
struct picture_moment {
  uint64_t time_ns;
  uint64_t live;    /* bytes of live blocks */
  uint64_t taken;   /* bytes that the pools of all contexts hold from the driver; 0 if the record does not say */
  uint64_t hole;    /* the largest hole: neighbouring addresses that some block had before, and none has now */
  uint32_t kind;    /* enum moment_kind */
  uint32_t subject; /* a block, or a refusal */
};

struct picture_refusal {
  uint64_t size;
  uint32_t who;
};

/* Addresses that blocks have at some time, without a gap that is large enough to leave out. */
struct picture_span {
  uint64_t address, bytes, position;
};

struct picture_mark {
  uint64_t time_ns;
  uint32_t text, thread;
};

/* In the order in which they begin.  depth: how many ranges of the same thread are around it. */
struct picture_range {
  uint64_t begin_ns, end_ns;
  uint32_t text, thread, depth;
};

struct picture {
  const struct record *record;
  uint64_t end_ns;
  struct picture_block *blocks;
  struct picture_moment *moments;
  struct picture_refusal *refusals;
  struct picture_who *whos;
  struct picture_span *spans;
  struct picture_mark *marks;
  struct picture_range *ranges;
  struct ranges paths;
  size_t block_count, moment_count, refusal_count, who_count, span_count, mark_count, range_count;
  size_t unknown_free_count; /* frees of blocks that the record does not have, or that are free already */
  size_t peak;               /* the first moment at which the most bytes are live; moment_count if none ever are */
};

/* The record is still the caller's and has to live as long as the picture.  False if the host has no memory; call
 * picture_free in any case. */
bool picture_make(struct picture *picture, const struct record *record);
void picture_free(struct picture *picture);

/* Fills in the largest hole of each moment.  False if the host has no memory. */
bool picture_holes(struct picture *picture);

/* Writes a JSON string.  Bytes that are not UTF-8 become U+FFFD.  No text in it can end an HTML script element. */
void picture_text(FILE *stream, const char *text);

/* The outputs.  If the stream did not take all, its error indicator is set. */
bool picture_page(FILE *stream, const struct picture *picture);        /* false: no memory on the host */
void picture_page_report(FILE *stream, const char *json, size_t size); /* of MAM_PoolReport */
bool picture_trace(FILE *stream, const struct picture *picture);       /* false: the same */

/* The page without its numbers, which is part of the program (tools/bench/picture/embed).  The numbers replace the
 * lines "@header@" and "@data@". */
extern const char picture_template[];

/* The command.  Returns the exit status. */
int bench_picture(int argc, char **argv);

#endif
