/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/record_inside.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/cancel.h"
#include "base/record_clock.h"

/* A thread whose events come so soon one after the other does not look at the clock for each. */
enum { FAST_NS = 700 };

/* How full a ring is when the writer is woken.  To wake it costs 5 to 10 us.  Until it runs, and has read, the thread
 * writes on: with half of the ring left for that, it often found the ring full and waited. */
enum { RING_WAKE = RING_SLOTS / 4 };

static const uint64_t NO_CONTEXT = UINT64_MAX;

static uint64_t fast_ticks; /* FAST_NS, roughly */

static __thread __attribute__((tls_model("initial-exec"))) struct recorder *recorder_mine;
static pthread_key_t thread_end; /* these are set before the first record */
static bool thread_end_heard;

uint64_t record_before(void) { return clock_before(); }

/* ---- Rings ---- */

/* The ring's thread ends.  A destructor that runs later and allocates gets another ring.  Between two records no other
 * thread would free this one. */
static void recorder_end(void *data) {
  struct recorder *recorder = data;
  recorder_mine = NULL;
  pthread_mutex_lock(&record_lock);
  recorder->ended = true;
  if (!recording.open)
    recorders_drain_locked(true);
  pthread_mutex_unlock(&record_lock);
}

void rings_set_up(void) {
  fast_ticks = clock_ticks(FAST_NS);
  thread_end_heard = pthread_key_create(&thread_end, recorder_end) == 0;
}

void rings_forget(void) {
  recorder_mine = NULL;
  if (thread_end_heard)
    (void)pthread_setspecific(thread_end, NULL);
}

/* The calling thread's ring, made if it has none.  NULL without host memory or a file. */
static __attribute__((noinline)) struct recorder *recorder_make(void) {
  NOT_CANCELLED;
  void *memory;
  if (posix_memalign(&memory, _Alignof(struct recorder), sizeof(struct recorder)) != 0) {
    atomic_fetch_add_explicit(&recording.lost_count, 1, memory_order_relaxed);
    return NULL;
  }
  struct recorder *recorder = memory;
  memset(recorder, 0, offsetof(struct recorder, slots));
  recorder->number = NUMBER_UNKNOWN;
  recorder->detail.context = NO_CONTEXT;
  recorder->last = recording.ticks_base;
  (void)prctl(PR_GET_NAME, recorder->name);
  pthread_mutex_lock(&record_lock);
  bool good = recording_begin_locked();
  bool at_once = atomic_load_explicit(&recording.direct, memory_order_relaxed);
  atomic_init(&recorder->limit, at_once ? 0 : RING_WAKE);
  if (good) {
    recorder->next = recording.recorders;
    recording.recorders = recorder;
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

/* Makes room for one slot.  ends: the process ends.  Returns up to which count the thread need not look again. */
static uint64_t room_make(struct recorder *recorder, uint64_t written, bool ends) {
  /* acquire: the slots before are read; pairs with the release in recorder_drain_locked */
  uint64_t read = atomic_load_explicit(&recorder->read, memory_order_acquire);
  bool writes = atomic_load_explicit(&recording.writes, memory_order_relaxed);
  if (ends || written - read >= RING_SLOTS || !writes) {
    pthread_mutex_lock(&record_lock);
    if (recorder_drain_locked(recorder, !recording.open) && ends && recording.open) {
      recording_flush_locked();
      record_file_end(&recording.file);
    }
    pthread_mutex_unlock(&record_lock);
    read = written;
  } else {
    writer_wake();
  }
  uint64_t limit = written + RING_WAKE;
  if (limit > read + RING_SLOTS)
    limit = read + RING_SLOTS;
  return ends ? 0 : limit;
}

/* The ring is by a quarter fuller than at the last look, or full, or the process ends.  If record_end comes between the
 * look at its flag and the store of the limit, the second look at the flag sees it: if it does not, it comes before
 * record_end's store of the flag in the order of all seq_cst operations, so this limit comes before record_end's 0. */
static __attribute__((noinline)) void ring_look(struct recorder *recorder, uint64_t written) {
  NOT_CANCELLED;
  bool ends, ends_now = atomic_load_explicit(&recording.direct, memory_order_relaxed);
  do {
    ends = ends_now;
    atomic_store_explicit(&recorder->limit, room_make(recorder, written, ends), memory_order_seq_cst);
    ends_now = atomic_load_explicit(&recording.direct, memory_order_seq_cst); /* pairs with record_end */
  } while (ends_now && !ends);
}

/* The writer has had the line of a slot last, so a store would wait for it.  A compiler that may not count on prefetchw
 * fetches a line to read.  A processor that lacks prefetchw does nothing. */
static inline void fetch_to_write(struct slot *slot) {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(*slot));
#else
  __builtin_prefetch(slot, 1);
#endif
}

static inline void put(struct recorder *recorder, struct slot slot) {
  uint64_t written = atomic_load_explicit(&recorder->written, memory_order_relaxed); /* relaxed: this thread's */
  struct slot *place = &recorder->slots[written % RING_SLOTS];
  *place = slot;
  fetch_to_write(place + RING_FETCH);
  /* release: the slot; pairs with the acquire in recorder_drain_locked */
  atomic_store_explicit(&recorder->written, ++written, memory_order_release);
  if (__builtin_expect(written >= atomic_load_explicit(&recorder->limit, memory_order_relaxed), false))
    ring_look(recorder, written);
}

static inline uint64_t when(uint64_t ticks, unsigned kind) { return ticks << SLOT_KIND_BITS | kind; }

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

/* Whether the thread has told so much of the call. */
static inline bool detail_is(const struct recorder *recorder, const struct record_call *call) {
  const struct record_call *known = &recorder->detail;
  return known->context == call->context && known->tag == call->tag && known->stream == call->stream &&
         known->on_stream == call->on_stream;
}

static inline void request_put(struct recorder *recorder, uint64_t ticks, enum record_kind kind, uintptr_t address,
                               const struct record_call *call) {
  if (__builtin_expect(!detail_is(recorder, call), false))
    detail_put(recorder, call);
  put(recorder, (struct slot){when(ticks, kind), address, call->size, (uintptr_t)call->site});
}

void record_allocated(uintptr_t address, const struct record_call *call) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  if (recorder != NULL)
    request_put(recorder, seen(recorder, ticks), RECORD_ALLOCATE, address, call);
}

/* What is not so mostly: the thread has no ring, it looks at the clock, or the detail is another one.  Out of line,
 * here and in freed_first: then the quick way saves no registers. */
static __attribute__((noinline)) void allocated_else(uintptr_t address, uint64_t size, const void *site,
                                                     uint64_t context, bool on_stream, uintptr_t stream) {
  struct record_call call = {.size = size, .context = context, .site = site, .on_stream = on_stream, .stream = stream};
  struct recorder *recorder = recorder_get();
  if (recorder == NULL)
    return;
  bool visited = atomic_load_explicit(&recorder->visited, memory_order_relaxed);
  uint64_t ticks = recorder->last;
  if (!recorder->fast || visited)
    ticks = seen(recorder, clock_before());
  else
    recorder->fast = false;
  if (visited)
    atomic_store_explicit(&recorder->visited, false, memory_order_relaxed);
  request_put(recorder, ticks, RECORD_ALLOCATE, address, &call);
}

void record_allocated_quick(uintptr_t address, uint64_t size, const void *site, uint64_t context, bool on_stream,
                            uintptr_t stream) {
  struct record_call call = {.context = context, .on_stream = on_stream, .stream = stream};
  struct recorder *recorder = recorder_mine;
  if (__builtin_expect(recorder == NULL || !recorder->fast ||
                           atomic_load_explicit(&recorder->visited, memory_order_relaxed) ||
                           !detail_is(recorder, &call),
                       false)) {
    allocated_else(address, size, site, context, on_stream, stream);
    return;
  }
  recorder->fast = false;
  put(recorder, (struct slot){when(recorder->last, RECORD_ALLOCATE), address, size, (uintptr_t)site});
}

void record_refused(const struct record_call *call) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  if (recorder != NULL)
    request_put(recorder, seen(recorder, ticks), RECORD_REFUSED, 0, call);
}

static __attribute__((noinline)) void freed_first(uint64_t before, uintptr_t address, bool on_stream,
                                                  uintptr_t stream) {
  if (recorder_make() != NULL)
    record_freed(before, address, on_stream, stream);
}

void record_freed(uint64_t before, uintptr_t address, bool on_stream, uintptr_t stream) {
  struct recorder *recorder = recorder_mine;
  if (__builtin_expect(recorder != NULL, true))
    put(recorder, (struct slot){when(seen(recorder, before), RECORD_FREE), address, stream, on_stream});
  else
    freed_first(before, address, on_stream, stream);
}

/* Inside of a call, whose free may have an earlier time: so it is not the thread's last. */
static void inner_put(unsigned kind, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  if (recorder != NULL)
    put(recorder, (struct slot){when(ticks, kind), a, b, c});
}

static void mark_put(enum record_kind kind, const char *text, const void *domain) {
  uint64_t ticks = clock_after();
  struct recorder *recorder = recorder_get();
  char *copy = recorder != NULL && text != NULL ? strdup(text) : NULL;
  if (recorder != NULL && (copy != NULL || text == NULL))
    put(recorder, (struct slot){when(seen(recorder, ticks), kind), (uintptr_t)copy, (uintptr_t)domain, 0});
  else if (recorder != NULL)
    atomic_fetch_add_explicit(&recording.lost_count, 1, memory_order_relaxed);
}

void record_mark(const char *text) { mark_put(RECORD_MARK, text, NULL); }
void record_push(const char *text, const void *domain) { mark_put(RECORD_PUSH, text, domain); }
void record_pop(const void *domain) { mark_put(RECORD_POP, NULL, domain); }

void record_taken(uint64_t context, int device, int64_t bytes) {
  inner_put(RECORD_TAKEN, context, (uint64_t)bytes, (uint64_t)(device < 0 ? 0 : device));
}

void record_gone(uintptr_t base, uint64_t bytes) { inner_put(SLOT_GONE, base, bytes, 0); }
