/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads a record (mam-record(5)) that MAM_RECORD or `mam-run --record` made: what was allocated and freed, when, and by
 * which line of the program.  It does not know what the events are used for.
 */
#ifndef MAM_BENCH_RECORD_H
#define MAM_BENCH_RECORD_H

#include "base/record_file.h"

/* A free of an allocation that is not in the record. */
#define RECORD_NO_SERIAL UINT64_MAX

/* A free also has the tag, context, site and device of its allocation.  RECORD_LIVE does not occur: it is an
 * allocation, with before.  When memory ends with blocks in it, as at the end of a pool, there is a free for each of
 * them. */
struct record_event {
  uint64_t time_ns; /* since the beginning of the record; events are sorted by it, and each thread's keep their order */
  uint64_t address;
  uint64_t size;    /* bytes */
  uint64_t serial;  /* of allocations: 0, 1, ...; a free has its allocation's, or RECORD_NO_SERIAL */
  uint16_t kind;    /* enum record_kind */
  bool before;      /* live before the record: its time is the beginning, its thread is not known */
  uint32_t thread;  /* index of record.threads */
  uint32_t stream;  /* 0: plain call; else 1 + index of record.streams */
  uint32_t tag;     /* 0: none; else index of record.texts (tag's text) */
  uint32_t context; /* index of record.contexts */
  uint32_t site;    /* index of record.sites */
  uint32_t text;    /* index of record.texts, of a mark or a range */
  uint32_t device;
};

struct record_site {
  char *module;    /* file name, or "" */
  uint64_t offset; /* of the return address in the module */
  char *name;      /* "function+0x12", or "module+0x1234" where there is no symbol */
};

/* The default pools of a context, or a pool that the program created. */
struct record_context {
  uint32_t device;
  bool created;
};

struct record {
  struct record_event *events;
  size_t event_count;
  struct record_site *sites;
  size_t site_count;
  char **threads; /* names */
  size_t thread_count;
  uint64_t *streams; /* handles */
  size_t stream_count;
  char **texts; /* the first is "" */
  size_t text_count;
  struct record_context *contexts; /* in order of appearance */
  size_t context_count;
  size_t allocation_count; /* the number of serials */
  uint64_t process;        /* its number */
  uint64_t time_us;        /* when the record began, in microseconds since 1970 */
  uint64_t lost_count;     /* events that the host had no memory for */
  char *command;           /* the program and its arguments */
  size_t live_before;      /* allocations of blocks that were live when the record began */
  bool cut;                /* the end is missing: the program died, or still runs */
};

/* As many as indexes of 32 bits tell apart. */
#define RECORD_EVENTS_MOST ((size_t)UINT32_MAX - 1)

/* Reads a whole record of at most so many events.  False after a complaint on stderr; call record_free in any case. */
bool record_read(struct record *record, const char *path, size_t events_most);
void record_free(struct record *record);

#endif
