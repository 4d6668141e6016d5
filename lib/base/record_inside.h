/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of a record share; others know record.h.
 *
 *   record_drain.c   turns the slots of rings into items of the file
 *   record_writer.c  opens the file; has the thread that drains all rings every 20 ms
 *   record_ring.c    the quick path: a thread puts slots into its ring (struct recorder)
 *   record.c         begins and ends a record; what a fork does to it
 *
 * A file calls only those above it in this list.
 */
#ifndef MAM_LIB_RECORD_INSIDE_H
#define MAM_LIB_RECORD_INSIDE_H

#include <limits.h>
#include <pthread.h>

#include "base/record.h"
#include "base/record_file.h"
#include "base/record_numbers.h"

/* A ring of 1 MiB: in a tight loop it lasts for some 300 us. */
enum { RING_SLOTS = 32768 };

/* How far ahead of the thread its ring is fetched: behind the end, into as many slots that are not used. */
enum { RING_FETCH = 48 };

enum { NUMBER_UNKNOWN = UINT32_MAX };

/* What a slot holds, beside the events of enum record_kind. */
enum slot_kind { SLOT_GONE = RECORD_KINDS, SLOT_DETAIL, SLOT_KIND_BITS = 4 };

/* An event as the thread leaves it; what it cannot hold stands in a SLOT_DETAIL before it.
 *
 *   kind             a                b                 c
 *   allocate         address          size              site
 *   refused          0                size              site
 *   free             address          stream            1 on a stream
 *   mark, push, pop  the text, from malloc   domain
 *   taken            context          change            device
 *   gone             address          bytes
 *   detail           stream           tag               context      ticks: 1 on a stream */
struct slot {
  uint64_t when; /* ticks of the clock << SLOT_KIND_BITS | kind */
  uint64_t a, b, c;
};

/* A range that has begun and not ended; text: its number in the file. */
struct open_range {
  uint64_t domain;
  uint32_t text;
};

/* Written by its thread, read under record_lock.  The thread has a place for one more event whenever it has returned
 * from putting one. */
struct recorder {
  _Atomic uint64_t written;  /* by the thread: counts slots; release after a slot, pairs with the acquire in
                                recorder_drain_locked */
  _Atomic uint64_t limit;    /* at this count the thread looks around; only the end of the process lowers it; order: see
                              * ring_look, else relaxed */
  uint64_t last;             /* the thread's: the time of its last event; never falls */
  bool fast;                 /* the thread's: its next allocation may have that time, too */
  struct record_call detail; /* the thread's: of the last SLOT_DETAIL */
  _Alignas(64) _Atomic uint64_t read; /* release: the slots before may be written again; pairs with ring_look */
  bool ended;                         /* its thread has; under record_lock */
  _Atomic bool visited;               /* relaxed: a hint of the writer's that time has gone by */
  uint64_t file;                      /* the generation of the file that the numbers are of */
  uint32_t number;                    /* of the thread in the file */
  struct slot told;                   /* the last SLOT_DETAIL that was read; a of 0: none */
  uint32_t tag, context, stream;      /* of it, as numbers in the file; as in struct record_item */
  struct open_range *ranges;          /* of the thread, in the file, the innermost last */
  size_t range_count, range_room;
  struct recorder *next;
  char name[32];
  struct slot slots[RING_SLOTS + RING_FETCH];
};

extern pthread_mutex_t record_lock __attribute__((visibility("hidden")));

extern struct recording { /* under record_lock, but for what record_prepare writes and the atomics */
  char path[PATH_MAX];    /* as asked for, from the root */
  const struct zstd *zstd;
  uint64_t ticks_base;
  uint64_t run;         /* the process that the run began with (MAM_RECORD_PROCESS), 0 if MAM_RECORD is not set */
  bool open, by_call;   /* the file is; MAM_RecordBegin made it */
  _Atomic bool writes;  /* a thread writes; relaxed: without it, the rings' own threads do */
  uint64_t generation;  /* counts the records that calls began */
  uint64_t begin_ticks; /* when record_begin_cut was, 0 without it: no event is earlier */
  struct record_file file;
  struct recorder *recorders;
  struct numbers sites, tags, streams, contexts, texts;
  uint64_t unloads;
  char written_path[PATH_MAX + 32];
  _Atomic uint64_t lost_count; /* relaxed: a number for itself */
  _Atomic bool direct;         /* the process ends, and each event goes to the file at once; order: see ring_look */
} recording __attribute__((visibility("hidden")));

/* record_on for a thread that has asked it before. */
static inline bool record_is_on(void) {
  /* acquire: as in record_on */
  return atomic_load_explicit(&record_state, memory_order_acquire) == RECORD_ON;
}

/* ---- record_drain.c ---- */

void recorder_free(struct recorder *recorder);
/* Brings a ring to the file, or with drops to nowhere.  Whether there was anything. */
bool recorder_drain_locked(struct recorder *recorder, bool drops);
/* All rings to the file; to nowhere if none is open.  Unless sends, what does not fill a frame waits in the file's
 * buffer: large frames cost less. */
void recorders_drain_locked(bool sends);
void recording_clock_put_locked(void);
void recording_live_put_locked(const struct record_live *all, size_t count);
void recording_flush_locked(void);
void recording_failed_locked(void);
void recording_stop_locked(const char *what, int error);

/* ---- record_writer.c ---- */

void writer_set_up(void);
/* Without a writer, events wait until a ring is full or the process ends. */
void writer_start_locked(void);
void writer_wake(void);
/* In a forked child. */
void writer_forget(void);

/* Begins the file of a descriptor.  False if the host has no memory. */
bool recording_open_locked(int fd);
/* Begins a file if none is open.  Whether there is one to write to. */
bool recording_begin_locked(void);
void recording_close_locked(bool in_child);

/* ---- record_ring.c ---- */

/* Before the first record. */
void rings_set_up(void);
/* In a forked child: the thread has no ring. */
void rings_forget(void);

#endif
