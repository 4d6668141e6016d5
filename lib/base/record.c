/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "base/record.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/helper.h"
#include "base/locked.h"
#include "base/option_text.h"
#include "base/record_clock.h"
#include "base/record_file.h"
#include "base/record_numbers.h"
#include "base/record_path.h"
#include "base/record_site.h"
#include "base/zstd.h"

/* How long an event waits for the writer. */
enum { WRITER_MS = 20 };

/* A thread whose events come so soon one after the other does not look at the clock for each. */
enum { FAST_NS = 700 };

/* A thread's ring, and how full it is when the writer is woken: in a tight loop a half lasts for some 160 us.  To wake
 * it costs 5 to 10 us. */
enum { RING_SLOTS = 16384, RING_WAKE = RING_SLOTS / 2 };

enum { NUMBER_UNKNOWN = UINT32_MAX };
static const uint64_t NO_CONTEXT = UINT64_MAX;

/* What a slot holds, beside the events of enum record_kind. */
enum slot_kind { SLOT_GONE = RECORD_KINDS, SLOT_DETAIL, SLOT_KIND_BITS = 4 };

/* An event as the thread leaves it; what it cannot hold stands in a SLOT_DETAIL before it.
 *
 *   kind             a                b                 c
 *   allocate         address          size              site
 *   refused          0                size              site
 *   free             address          stream            1 on a stream
 *   mark, push       the text, from malloc
 *   taken            context          change            device
 *   gone             address          bytes
 *   detail           stream           tag               context      ticks: 1 on a stream */
struct slot {
  uint64_t when; /* ticks << SLOT_KIND_BITS | kind */
  uint64_t a, b, c;
};

/* Written by its thread, read under record_lock.  The thread has a place for one more event whenever it has returned
 * from putting one. */
struct recorder {
  _Atomic uint64_t written;  /* by the thread: counts slots; release after a slot, pairs with the acquire in
                                recorder_drain_locked */
  _Atomic uint64_t limit;    /* relaxed: at this count the thread looks around; only the end of the process lowers it */
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
  struct recorder *next;
  char name[32];
  struct slot slots[RING_SLOTS];
};

_Atomic(unsigned char) record_state;
_Atomic uint64_t record_generation;

static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {        /* under record_lock, but for what set_up writes */
  char path[PATH_MAX]; /* as asked for, from the root */
  const struct zstd *zstd;
  uint64_t ticks_base;
  uint64_t run;         /* the process that the run began with (MAM_RECORD_PROCESS), 0 if MAM_RECORD is not set */
  bool open, by_call;   /* the file is; record_begin made it */
  _Atomic bool writes;  /* a thread writes; relaxed: without it, the rings' own threads do */
  uint64_t begin_ticks; /* when record_begin cut, 0 without it: no event is earlier */
  struct record_file file;
  struct recorder *recorders;
  struct numbers sites, tags, streams, contexts, texts;
  uint64_t unloads;
  char written_path[PATH_MAX + 32];
} record;

/* relaxed, both: a number for itself */
static _Atomic uint64_t lost_count;
static _Atomic bool direct; /* set at the end of the process; see ring_look */

static uint64_t fast_ticks; /* FAST_NS, roughly */

static __thread __attribute__((tls_model("initial-exec"))) struct recorder *recorder_mine;
static pthread_key_t thread_end; /* these are set before the first record */
static bool thread_end_heard;

static struct {
  pthread_mutex_t lock; /* a leaf */
  pthread_cond_t wakes;
  bool woken;
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void clock_put_locked(void) {
  lock_held(&record_lock);
  uint64_t before = clock_after(), ns = (uint64_t)now_ns(), after = clock_after();
  record_file_clock(&record.file, before + (after - before) / 2 - record.ticks_base, ns);
}

uint64_t record_before(void) { return clock_before(); }

/* ---- Numbers ---- */

static uint32_t site_put(uint64_t key, const void *more) {
  (void)more;
  static struct site site; /* under record_lock */
  if (key == 0)            /* of a small block that was live before */
    return record_file_site(&record.file, "", 0, "not known");
  site_find((uintptr_t)key, true, &site);
  return record_file_site(&record.file, site.module, site.offset, site.name);
}

static uint32_t tag_put(uint64_t key, const void *more) {
  (void)more;
  static struct site site;
  site_find((uintptr_t)key, false, &site);
  return record_file_text(&record.file, site.name);
}

static uint32_t stream_put(uint64_t key, const void *more) {
  (void)more;
  return record_file_stream(&record.file, key);
}

static uint32_t context_put(uint64_t key, const void *more) {
  return record_file_context(&record.file, key, more != NULL ? *(const uint32_t *)more : 0);
}

static uint32_t text_put(uint64_t key, const void *more) {
  (void)key;
  return record_file_text(&record.file, more);
}

/* By a hash alone: of two texts with the same one, the second would go by the name of the first. */
static uint32_t text_number(const char *text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char *at = text; *at != '\0'; at++)
    hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
  return number_of(&record.texts, hash, text_put, text);
}

/* ---- From the rings to the file ---- */

static uint32_t stream_number(bool on_stream, uint64_t handle) {
  return on_stream ? 1 + number_of(&record.streams, handle, stream_put, NULL) : 0;
}

/* The numbers in this file of what the thread has last told. */
static void detail_number_locked(struct recorder *recorder) {
  lock_held(&record_lock);
  const struct slot *told = &recorder->told;
  if (told->when == 0)
    return;
  recorder->stream = stream_number(told->when >> SLOT_KIND_BITS != 0, told->a);
  recorder->tag = told->b == 0 ? 0 : number_of(&record.tags, told->b, tag_put, NULL);
  recorder->context = number_of(&record.contexts, told->c, context_put, NULL);
}

static void slot_encode_locked(struct recorder *recorder, const struct slot *slot) {
  lock_held(&record_lock);
  unsigned kind = slot->when & ((1 << SLOT_KIND_BITS) - 1);
  uint64_t ticks = slot->when >> SLOT_KIND_BITS;
  uint32_t device = (uint32_t)slot->c;
  if (kind == SLOT_DETAIL) {
    recorder->told = *slot;
    detail_number_locked(recorder);
    return;
  }
  struct record_item item = {.kind = (enum record_kind)kind,
                             .ticks = ticks < record.begin_ticks ? record.begin_ticks : ticks,
                             .tag = recorder->tag,
                             .context = recorder->context,
                             .stream = recorder->stream};
  switch (kind) {
  case SLOT_GONE:
    record_file_gone(&record.file, recorder->number, item.ticks, slot->a, slot->b);
    return;
  case RECORD_FREE:
    item.address = slot->a;
    item.stream = stream_number(slot->c != 0, slot->b);
    break;
  case RECORD_TAKEN:
    item.context = number_of(&record.contexts, slot->a, context_put, &device);
    item.size = slot->b;
    break;
  case RECORD_MARK:
  case RECORD_PUSH:
    item.text = text_number((const char *)(uintptr_t)slot->a);
    free((void *)(uintptr_t)slot->a);
    break;
  case RECORD_POP:
    break;
  default: /* allocate, refused */
    item.address = slot->a;
    item.size = slot->b;
    item.site = number_of(&record.sites, slot->c, site_put, NULL);
  }
  record_file_event(&record.file, recorder->number, &item);
}

/* What came between two records, of which only what later events refer to is kept. */
static void slot_drop(struct recorder *recorder, const struct slot *slot) {
  unsigned kind = slot->when & ((1 << SLOT_KIND_BITS) - 1);
  if (kind == SLOT_DETAIL)
    recorder->told = *slot;
  else if (kind == RECORD_MARK || kind == RECORD_PUSH)
    free((void *)(uintptr_t)slot->a);
}

/* Whether there was anything. */
static bool recorder_drain_locked(struct recorder *recorder, bool drops) {
  lock_held(&record_lock);
  uint64_t read = atomic_load_explicit(&recorder->read, memory_order_relaxed); /* relaxed: written under this lock */
  /* acquire: the slots; pairs with the release in put */
  uint64_t written = atomic_load_explicit(&recorder->written, memory_order_acquire);
  uint64_t generation = atomic_load_explicit(&record_generation, memory_order_relaxed); /* relaxed: as read */
  if (read == written)
    return false;
  if (!drops && (recorder->number == NUMBER_UNKNOWN || recorder->file != generation)) {
    recorder->number = record_file_thread(&record.file, recorder->name);
    recorder->file = generation;
    detail_number_locked(recorder);
  }
  for (; read != written; read++)
    if (drops)
      slot_drop(recorder, &recorder->slots[read % RING_SLOTS]);
    else
      slot_encode_locked(recorder, &recorder->slots[read % RING_SLOTS]);
  /* release: the slots may be written again; pairs with the acquire in ring_look */
  atomic_store_explicit(&recorder->read, read, memory_order_release);
  atomic_store_explicit(&recorder->visited, true, memory_order_relaxed);
  return true;
}

/* The file cannot be written: the program goes on without a record. */
static void stop_locked(const char *what, int error) {
  lock_held(&record_lock);
  /* relaxed: nothing is published.  MAM_RecordEnd says it of its own. */
  if (atomic_exchange_explicit(&record_state, RECORD_OFF, memory_order_relaxed) == RECORD_ON && !record.by_call)
    (void)fprintf(stderr, "mam: %s %s: %s; no more is recorded\n", what,
                  record.open ? record.written_path : record.path, strerror(error));
}

static void file_failed_locked(void) {
  lock_held(&record_lock);
  if (record.file.error != 0)
    stop_locked(record.file.error == EBADF ? "the program has closed the record" : "cannot write the record",
                record.file.error);
}

static void file_flush_locked(void) {
  lock_held(&record_lock);
  uint64_t lost = atomic_exchange_explicit(&lost_count, 0, memory_order_relaxed);
  if (lost > 0)
    record_file_lost(&record.file, lost);
  clock_put_locked();
  record_file_flush(&record.file);
  file_failed_locked();
}

/* What was found of modules may be wrong when one was unloaded: another may have come to its addresses. */
static void modules_look_locked(void) {
  lock_held(&record_lock);
  uint64_t unloads = site_unloads();
  if (unloads == record.unloads)
    return;
  record.unloads = unloads;
  numbers_clear(&record.sites);
  numbers_clear(&record.tags);
}

/* To the file; to nowhere if none is open.  Unless it is sent on, what does not fill a frame waits in the file's
 * buffer: large frames cost less. */
static void recorders_drain_locked(bool sends) {
  lock_held(&record_lock);
  modules_look_locked();
  for (struct recorder **link = &record.recorders, *recorder; (recorder = *link) != NULL;) {
    (void)recorder_drain_locked(recorder, !record.open);
    if (recorder->ended) {
      *link = recorder->next;
      free(recorder);
    } else {
      link = &recorder->next;
    }
  }
  if (sends && record.open && record.file.content_bytes > 0)
    file_flush_locked();
}

/* False if the record has ended. */
static bool writer_drain(bool sends) {
  pthread_mutex_lock(&record_lock);
  bool goes_on = !atomic_load_explicit(&direct, memory_order_relaxed) && record_on();
  if (goes_on)
    recorders_drain_locked(sends);
  else
    atomic_store_explicit(&record.writes, false, memory_order_relaxed);
  pthread_mutex_unlock(&record_lock);
  return goes_on;
}

/* Waits until the moment, or until a ring is half full. */
static void writer_await(int64_t until_ns) {
  struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
  pthread_mutex_lock(&writer.lock);
  while (!writer.woken && pthread_cond_timedwait(&writer.wakes, &writer.lock, &until) == 0)
    ;
  writer.woken = false;
  pthread_mutex_unlock(&writer.lock);
}

static void *writer_run(void *unused) {
  (void)unused;
  bool sends;
  int64_t until_ns = 0;
  (void)pthread_setname_np(pthread_self(), "mam-record");
  do {
    sends = now_ns() >= until_ns;
    if (sends)
      until_ns = now_ns() + (int64_t)WRITER_MS * 1000000;
    else
      writer_await(until_ns);
  } while (writer_drain(sends));
  helper_end();
  return NULL;
}

static void writer_wake(void) {
  pthread_mutex_lock(&writer.lock);
  writer.woken = true;
  (void)pthread_cond_signal(&writer.wakes);
  pthread_mutex_unlock(&writer.lock);
}

/* Without one, events wait until a ring is full or the process ends. */
static void writer_start_locked(void) {
  lock_held(&record_lock);
  if (!record_on() || atomic_load_explicit(&direct, memory_order_relaxed) ||
      atomic_load_explicit(&record.writes, memory_order_relaxed)) /* that of the record before goes on */
    return;
  atomic_store_explicit(&record.writes, helper_start(NULL, writer_run, NULL) == 0, memory_order_relaxed);
}

/* ---- Which file ---- */

/* Opens one of FILE, FILE.PID, FILE.PID.2 and so on; -1 after a message. */
static int file_open_locked(void) {
  lock_held(&record_lock);
  char path[PATH_MAX];
  enum record_taken taken = TAKEN_BY_OTHER;
  int fd = -1;
  record_path_expand(record.path, path, sizeof path);
  for (int attempt = 0; attempt < 100 && taken == TAKEN_BY_OTHER; attempt++) {
    int suffix = attempt == 0 ? 0 : (int)getpid();
    (void)snprintf(record.written_path, sizeof record.written_path,
                   attempt == 0   ? "%s"
                   : attempt == 1 ? "%s.%d"
                                  : "%s.%d.%d",
                   path, suffix, attempt);
    fd = record_path_open(record.written_path, record.by_call, record.run, &taken);
  }
  if (fd >= 0)
    return fd;
  record.open = true; /* so that the message names this path */
  stop_locked(errno == EEXIST ? "no record, so it is not written over:" : "cannot write the record", errno);
  record.open = false;
  return -1;
}

/* Begins the file of a descriptor.  False if the host has no memory. */
static bool file_set_locked(int fd) {
  lock_held(&record_lock);
  static char command[RECORD_TEXT_MOST];
  struct timespec now;
  record.open = record_file_open(&record.file, fd, record.zstd);
  if (!record.open) {
    (void)close(fd);
    return false;
  }
  (void)clock_gettime(CLOCK_REALTIME, &now);
  record_command(command, sizeof command);
  record_file_program(&record.file, (uint64_t)getpid(), record.run,
                      (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000, command);
  return true;
}

static bool file_begin_locked(void) {
  lock_held(&record_lock);
  if (record.open || !record_on())
    return record.open;
  int fd = file_open_locked();
  if (fd < 0)
    return false;
  if (!file_set_locked(fd)) {
    stop_locked("cannot write the record", ENOMEM);
    return false;
  }
  file_flush_locked();
  writer_start_locked();
  return record_on();
}

/* ---- Rings ---- */

/* Its thread ends: what follows it, as other threads' destructors do, gets another ring.  Between two records there is
 * no other thread that would free this one. */
static void recorder_end(void *data) {
  struct recorder *recorder = data;
  recorder_mine = NULL;
  pthread_mutex_lock(&record_lock);
  recorder->ended = true;
  if (!record.open)
    recorders_drain_locked(true);
  pthread_mutex_unlock(&record_lock);
}

/* The calling thread's ring, made if it has none.  NULL without host memory or a file. */
static __attribute__((noinline)) struct recorder *recorder_make(void) {
  NOT_CANCELLED;
  void *memory;
  if (posix_memalign(&memory, _Alignof(struct recorder), sizeof(struct recorder)) != 0) {
    atomic_fetch_add_explicit(&lost_count, 1, memory_order_relaxed);
    return NULL;
  }
  struct recorder *recorder = memory;
  memset(recorder, 0, offsetof(struct recorder, slots));
  recorder->number = NUMBER_UNKNOWN;
  recorder->detail.context = NO_CONTEXT;
  recorder->last = record.ticks_base;
  (void)prctl(PR_GET_NAME, recorder->name);
  pthread_mutex_lock(&record_lock);
  bool good = file_begin_locked();
  bool at_once = atomic_load_explicit(&direct, memory_order_relaxed);
  atomic_init(&recorder->limit, at_once ? 0 : RING_WAKE);
  if (good) {
    recorder->next = record.recorders;
    record.recorders = recorder;
  }
  pthread_mutex_unlock(&record_lock);
  if (!good) {
    free(recorder);
    return NULL;
  }
  recorder_mine = recorder;
  if (thread_end_heard)
    (void)pthread_setspecific(thread_end, recorder);
  return recorder;
}

static inline struct recorder *recorder_get(void) {
  struct recorder *recorder = recorder_mine;
  return __builtin_expect(recorder != NULL, true) ? recorder : recorder_make();
}

/* The ring is by half fuller than at the last look, or full, or the process ends.  Makes room for one slot. */
static __attribute__((noinline)) void ring_look(struct recorder *recorder, uint64_t written) {
  NOT_CANCELLED;
  bool ends = atomic_load_explicit(&direct, memory_order_relaxed);
  /* acquire: the slots before are read; pairs with the release in recorder_drain_locked */
  uint64_t read = atomic_load_explicit(&recorder->read, memory_order_acquire);
  bool writes = atomic_load_explicit(&record.writes, memory_order_relaxed);
  if (ends || written - read >= RING_SLOTS || !writes) {
    pthread_mutex_lock(&record_lock);
    if (recorder_drain_locked(recorder, !record.open) && ends && record.open) {
      file_flush_locked();
      record_file_end(&record.file);
    }
    pthread_mutex_unlock(&record_lock);
    read = written;
  } else {
    writer_wake();
  }
  uint64_t limit = written + RING_WAKE;
  if (limit > read + RING_SLOTS)
    limit = read + RING_SLOTS;
  atomic_store_explicit(&recorder->limit, ends ? 0 : limit, memory_order_relaxed);
}

static inline void put(struct recorder *recorder, struct slot slot) {
  uint64_t written = atomic_load_explicit(&recorder->written, memory_order_relaxed); /* relaxed: this thread's */
  recorder->slots[written % RING_SLOTS] = slot;
  __builtin_prefetch(&recorder->slots[(written + 16) % RING_SLOTS], 1); /* the writer has had it last */
  /* release: the slot; pairs with the acquire in recorder_drain_locked */
  atomic_store_explicit(&recorder->written, ++written, memory_order_release);
  if (__builtin_expect(written >= atomic_load_explicit(&recorder->limit, memory_order_relaxed), false))
    ring_look(recorder, written);
}

static inline uint64_t when(uint64_t ticks, unsigned kind) {
  return (ticks - record.ticks_base) << SLOT_KIND_BITS | kind;
}

static __attribute__((noinline)) void detail_put(struct recorder *recorder, const struct record_call *call) {
  recorder->detail = *call;
  put(recorder, (struct slot){(uint64_t)call->on_stream << SLOT_KIND_BITS | SLOT_DETAIL, call->stream,
                              (uintptr_t)call->tag, call->context});
}

/* An event of the thread's at the time, but not before its last one. */
static inline uint64_t seen(struct recorder *recorder, uint64_t ticks) {
  uint64_t last = recorder->last;
  recorder->fast = ticks - last < fast_ticks;
  return recorder->last = ticks > last ? ticks : last;
}

static inline void request_put(struct recorder *recorder, uint64_t ticks, enum record_kind kind, uintptr_t address,
                               const struct record_call *call) {
  const struct record_call *known = &recorder->detail;
  if (__builtin_expect(known->context != call->context || known->tag != call->tag || known->stream != call->stream ||
                           known->on_stream != call->on_stream,
                       false))
    detail_put(recorder, call);
  put(recorder, (struct slot){when(ticks, kind), address, call->size, (uintptr_t)call->site});
}

void record_allocated(uintptr_t address, const struct record_call *call) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  if (recorder != NULL)
    request_put(recorder, seen(recorder, ticks), RECORD_ALLOCATE, address, call);
}

void record_allocated_quick(uintptr_t address, uint64_t size, const void *site, uint64_t context, bool on_stream,
                            uintptr_t stream) {
  struct recorder *recorder = recorder_get();
  if (__builtin_expect(recorder == NULL, false))
    return;
  bool visited = atomic_load_explicit(&recorder->visited, memory_order_relaxed);
  uint64_t ticks = recorder->last;
  if (!recorder->fast || visited)
    ticks = seen(recorder, clock_before());
  else
    recorder->fast = false;
  if (__builtin_expect(visited, false))
    atomic_store_explicit(&recorder->visited, false, memory_order_relaxed);
  const struct record_call *known = &recorder->detail;
  if (__builtin_expect(known->context != context || known->stream != stream || known->on_stream != on_stream ||
                           known->tag != NULL,
                       false))
    detail_put(recorder, &(struct record_call){.context = context, .stream = stream, .on_stream = on_stream});
  put(recorder, (struct slot){when(ticks, RECORD_ALLOCATE), address, size, (uintptr_t)site});
}

void record_refused(const struct record_call *call) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  if (recorder != NULL)
    request_put(recorder, seen(recorder, ticks), RECORD_REFUSED, 0, call);
}

void record_freed(uint64_t before, uintptr_t address, bool on_stream, uintptr_t stream) {
  struct recorder *recorder = recorder_get();
  if (__builtin_expect(recorder != NULL, true))
    put(recorder, (struct slot){when(seen(recorder, before), RECORD_FREE), address, stream, on_stream});
}

/* Inside of a call, whose free may have an earlier time: so it is not the thread's last. */
static void inner_put(unsigned kind, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  if (recorder != NULL)
    put(recorder, (struct slot){when(ticks, kind), a, b, c});
}

static void mark_put(enum record_kind kind, const char *text) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  char *copy = recorder != NULL && text != NULL ? strdup(text) : NULL;
  if (recorder != NULL && (copy != NULL || text == NULL))
    put(recorder, (struct slot){when(seen(recorder, ticks), kind), (uintptr_t)copy, 0, 0});
  else if (recorder != NULL)
    atomic_fetch_add_explicit(&lost_count, 1, memory_order_relaxed);
}

void record_mark(const char *text) { mark_put(RECORD_MARK, text); }
void record_push(const char *text) { mark_put(RECORD_PUSH, text); }
void record_pop(void) { mark_put(RECORD_POP, NULL); }

void record_taken(uint64_t context, int device, int64_t bytes) {
  inner_put(RECORD_TAKEN, context, (uint64_t)bytes, (uint64_t)(device < 0 ? 0 : device));
}

void record_gone(uintptr_t base, uint64_t bytes) { inner_put(SLOT_GONE, base, bytes, 0); }

/* ---- Beginning, end and fork ---- */

/* Relative paths are of the folder that the program is in now. */
static bool path_set(const char *text) {
  size_t bytes = 0;
  if (text[0] != '/' && getcwd(record.path, sizeof record.path - 1) != NULL) {
    bytes = strlen(record.path);
    record.path[bytes++] = '/';
  }
  int written = snprintf(record.path + bytes, sizeof record.path - bytes, "%s", text);
  return written >= 0 && (size_t)written < sizeof record.path - bytes;
}

static void conditions_set_up(void) {
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&writer.wakes, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

/* The number of the process that mam-run became, which it puts into the environment; 0: there is none. */
static uint64_t run_read(void) {
  const char *text = option_text(OPTION_MAM_RECORD_PROCESS);
  char *end;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  if (*text >= '0' && *text <= '9' && *end == '\0' && errno == 0)
    return number;
  (void)fprintf(stderr, "mam: MAM_RECORD_PROCESS=%s is not understood: expected %s; it is ignored\n", text,
                option_table[OPTION_MAM_RECORD_PROCESS].values);
  return 0;
}

/* What every record of the process needs. */
static void prepare(void) {
  record.run = run_read();
  record.zstd = zstd_load();
  clock_set_up();
  record.ticks_base = clock_after();
  fast_ticks = clock_ticks(FAST_NS);
  conditions_set_up();
  thread_end_heard = pthread_key_create(&thread_end, recorder_end) == 0;
  (void)at_quick_exit(record_end);
}

void record_prepare(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, prepare);
}

/* Without mam-run, a run begins here.  Children have the number by fork, what they execute has it by the environment.
 */
static void run_begin(void) {
  char number[32];
  if (record.run != 0)
    return;
  record.run = (uint64_t)getpid();
  (void)snprintf(number, sizeof number, "%ld", (long)getpid());
  (void)setenv("MAM_RECORD_PROCESS", number, 1);
}

static void set_up(void) {
  const char *text = option_text(OPTION_MAM_RECORD);
  bool wanted = strcmp(text, "none") != 0 && getauxval(AT_SECURE) == 0; /* no file by another user's rights */
  if (wanted && !path_set(text)) {
    (void)fprintf(stderr, "mam: MAM_RECORD: the path is too long; nothing is recorded\n");
    wanted = false;
  }
  if (wanted) {
    record_prepare();
    run_begin();
  }
  /* release: what was prepared; pairs with the acquire in record_on */
  atomic_store_explicit(&record_state, wanted ? RECORD_ON : RECORD_OFF, memory_order_release);
}

__attribute__((constructor)) void record_set_up(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, set_up);
}

void record_end(void) {
  if (!record_on())
    return;
  pthread_mutex_lock(&record_lock);
  atomic_store_explicit(&direct, true, memory_order_relaxed);
  if (record.open) {
    recorders_drain_locked(true);
    for (struct recorder *recorder = record.recorders; recorder != NULL; recorder = recorder->next)
      atomic_store_explicit(&recorder->limit, 0, memory_order_relaxed);
    record_file_end(&record.file);
    file_failed_locked();
  }
  pthread_mutex_unlock(&record_lock);
}

static void file_close_locked(void) {
  lock_held(&record_lock);
  numbers_clear(&record.sites);
  numbers_clear(&record.tags);
  numbers_clear(&record.streams);
  numbers_clear(&record.contexts);
  numbers_clear(&record.texts);
  if (record.open)
    record_file_close(&record.file);
  record.open = record.by_call = false;
  record.begin_ticks = 0;
}

void record_before_fork(void) { pthread_mutex_lock(&record_lock); }

/* The child's events go to another file.  What the parent has not written yet is the parent's to write. */
static void forget_locked(void) {
  lock_held(&record_lock);
  struct recorder *recorder;
  while ((recorder = record.recorders) != NULL) {
    record.recorders = recorder->next;
    free(recorder);
  }
  recorder_mine = NULL;
  if (thread_end_heard)
    (void)pthread_setspecific(thread_end, NULL);
  if (record.by_call) /* relaxed: the child has one thread */
    atomic_store_explicit(&record_state, RECORD_OFF, memory_order_relaxed);
  file_close_locked();
  atomic_store_explicit(&record.writes, false, memory_order_relaxed);
  writer.woken = false;
  (void)pthread_mutex_init(&writer.lock, NULL);
  conditions_set_up();
}

void record_after_fork(bool in_child) {
  if (in_child)
    forget_locked();
  pthread_mutex_unlock(&record_lock);
}

/* ---- By a call ---- */

static cudaError_t cannot_write(const char *path, int error) {
  return error == EEXIST  ? error_set(cudaErrorUnknown, "%s is no record, so it is not written over", path)
         : error == EBADF ? error_set(cudaErrorUnknown, "the program has closed the record %s", path)
         : error == EBUSY ? error_set(cudaErrorUnknown, "another process writes its record to %s", path)
                          : error_set(cudaErrorUnknown, "cannot write the record %s: %s", path, strerror(error));
}

static cudaError_t begin_file_locked(const char *path) {
  lock_held(&record_lock);
  enum record_taken taken;
  if (record_on() || record.by_call)
    return error_set(cudaErrorAlreadyAcquired, "a record is made already, to %s",
                     record.open ? record.written_path : record.path);
  if (!path_set(path))
    return error_set(cudaErrorInvalidValue, "the path of the record is too long");
  record_path_expand(record.path, record.written_path, PATH_MAX);
  record.by_call = true;
  int fd = record_path_open(record.written_path, record.by_call, record.run, &taken), error = errno;
  if (fd >= 0 && !file_set_locked(fd)) {
    record.by_call = false;
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a record");
  }
  error = fd >= 0 ? record.file.error : error;
  if (error == 0)
    return cudaSuccess;
  file_close_locked();
  return cannot_write(record.written_path, error);
}

cudaError_t record_begin_file(const char *path) {
  pthread_mutex_lock(&record_lock);
  cudaError_t error = begin_file_locked(path);
  pthread_mutex_unlock(&record_lock);
  return error;
}

void record_begin_cut(void) {
  pthread_mutex_lock(&record_lock);
  for (struct recorder *recorder = record.recorders; recorder != NULL; recorder = recorder->next)
    (void)recorder_drain_locked(recorder, true);
  atomic_store_explicit(&lost_count, 0, memory_order_relaxed);
  record.unloads = site_unloads();
  record.begin_ticks = clock_after() - record.ticks_base;
  /* release, both: what was prepared, and that ids are kept; pair with the acquires in environment_id_kept and
   * record_on */
  atomic_fetch_add_explicit(&record_generation, 1, memory_order_release);
  atomic_store_explicit(&record_state, RECORD_ON, memory_order_release);
}

void record_begin_live(const struct record_live *all, size_t count, uint64_t lost) {
  lock_held(&record_lock);
  uint32_t thread = count > 0 ? record_file_thread(&record.file, "before the record") : 0;
  clock_put_locked();
  for (size_t i = 0; i < count; i++) {
    const struct record_live *live = &all[i];
    struct record_item item = {.kind = live->address != 0 ? RECORD_LIVE : RECORD_TAKEN,
                               .ticks = record.begin_ticks,
                               .address = live->address,
                               .size = live->size};
    item.context = number_of(&record.contexts, live->context, context_put, &live->device);
    if (live->address != 0) {
      item.site = number_of(&record.sites, (uintptr_t)live->site, site_put, NULL);
      item.tag = live->tag == NULL ? 0 : number_of(&record.tags, (uintptr_t)live->tag, tag_put, NULL);
    }
    record_file_event(&record.file, thread, &item);
  }
  atomic_fetch_add_explicit(&lost_count, lost, memory_order_relaxed);
  file_flush_locked();
  writer_start_locked();
  pthread_mutex_unlock(&record_lock);
}

cudaError_t record_end_file(void) {
  pthread_mutex_lock(&record_lock);
  if (!record.by_call) {
    bool on = record_on();
    pthread_mutex_unlock(&record_lock);
    return error_set(cudaErrorInvalidValue,
                     on ? "the record is not one that MAM_RecordBegin began" : "no record is made");
  }
  atomic_store_explicit(&record_state, RECORD_OFF, memory_order_relaxed); /* relaxed: the rings are under the lock */
  recorders_drain_locked(true);
  clock_put_locked();
  record_file_end(&record.file);
  int error = record.file.error;
  file_close_locked();
  cudaError_t result = error != 0 ? cannot_write(record.written_path, error) : cudaSuccess;
  pthread_mutex_unlock(&record_lock);
  return result;
}
