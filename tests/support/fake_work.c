/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake GPU: streams, work, events and captures.  See fake_machine.h.
 *
 *   fake.first                                                    fake.last
 *      | kernel A | kernel B | mark A | kernel A | mark: B after A |
 *        order of submission -->
 *
 * Work stands in one list in the order of submission.  Which work may finish follows from that order and from the
 * streams alone (work_follows), so no stream has a list of its own.  Kernels finish when a test turns the clock or a
 * call waits.  Marks (events, waits between streams) are work too, and finish by themselves as soon as they may.
 */
#include "fake_machine.h"

#include <stdlib.h>
#include <string.h>

struct work {
  struct work *next, *before;
  unsigned long long sequence; /* rises with every submission */
  struct context *context;
  /* The stream's id, because work may outlive its stream.  0 for a mark of the whole context. */
  unsigned long long stream;
  enum order order;
  unsigned long long joined; /* another stream whose earlier work comes first, by its id; 0: none */
  bool mark;
  bool chosen; /* used to choose a set of work */
  size_t range_count;
  struct fake_range ranges[];
};

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

static unsigned long long thread_number(void) {
  if (thread.number == 0)
    thread.number = ++fake.last_thread_number;
  return thread.number;
}

static struct stream *stream_begin(struct context *context, enum order order) {
  for (struct stream *stream = fake.streams; stream < fake.streams + stream_limit; stream++)
    if (!stream->alive) {
      *stream = (struct stream){.alive = true, .order = order, .context = context, .id = ++fake.last_stream_id};
      return stream;
    }
  abort(); /* a test with more streams needs a larger stream_limit */
}

/* The legacy stream of the context (number 0), or the default stream of a thread.  It is made when it is first asked
 * for. */
static struct stream *stream_default(struct context *context, unsigned long long number) {
  enum order order = number == 0 ? ORDER_LEGACY : ORDER_BLOCKING;
  for (struct stream *stream = fake.streams; stream < fake.streams + stream_limit; stream++)
    if (stream->alive && !stream->created && stream->context == context && stream->thread_number == number)
      return stream;
  struct stream *stream = stream_begin(context, order);
  stream->thread_number = number;
  return stream;
}

/* As stream_of. */
static int stream_find(const void *handle, struct stream **found) {
  struct context *context = NULL;
  uintptr_t number = (uintptr_t)handle, table = (uintptr_t)fake.streams;
  if (number <= (uintptr_t)FAKE_STREAM_PER_THREAD) {
    int error = context_current(&context);
    if (error == SUCCESS)
      *found = stream_default(context, number == (uintptr_t)FAKE_STREAM_PER_THREAD ? thread_number() : 0);
    return error;
  }
  if (number < table || number >= table + sizeof fake.streams || (number - table) % sizeof fake.streams[0] != 0)
    return INVALID_HANDLE;
  struct stream *stream = &fake.streams[(number - table) / sizeof fake.streams[0]];
  if (!stream->alive || !stream->created) {
    fake.violations++; /* the real driver follows the pointer */
    return INVALID_HANDLE;
  }
  *found = stream;
  return stream->context->poison;
}

int stream_of(const void *handle, struct stream **stream) { return stream_find(handle, stream); }

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static void capture_spoil(struct stream *stream) {
  fake.captures_invalidated += !stream->capture_spoilt;
  stream->capture_spoilt = true;
}

/* Whether the stream's capture forbids the calling thread what might be unsafe, as cuThreadExchangeStreamCaptureMode
 * defines it. */
static bool capture_forbids(const struct stream *stream) {
  if (!stream->capturing || stream->capture_mode == mode_relaxed || thread.capture_mode == mode_relaxed)
    return false;
  if (stream->capturing_thread == thread_number())
    return true;
  return stream->capture_mode == mode_global && thread.capture_mode == mode_global;
}

int capture_check(void) {
  int error = SUCCESS;
  for (struct stream *stream = fake.streams; stream <= fake.streams + stream_limit; stream++) {
    struct stream *one = stream < fake.streams + stream_limit ? stream : &fake.elsewhere;
    if (!capture_forbids(one))
      continue;
    capture_spoil(one);
    error = CAPTURE_UNSUPPORTED;
  }
  return error;
}

int capture_check_context(const struct context *context) {
  int error = SUCCESS;
  for (struct stream *stream = fake.streams; stream < fake.streams + stream_limit; stream++)
    if (stream->alive && stream->capturing && stream->context == context) {
      capture_spoil(stream);
      error = CAPTURE_UNSUPPORTED;
    }
  if (!fake.elsewhere.capturing)
    return error;
  capture_spoil(&fake.elsewhere);
  return CAPTURE_UNSUPPORTED;
}

/* Whether a blocking stream of the legacy stream's context captures.  Work of the legacy stream would have to be
 * ordered after it. */
static bool capture_blocks_legacy(const struct stream *legacy, bool spoils) {
  bool blocks = false;
  for (struct stream *stream = fake.streams; stream < fake.streams + stream_limit; stream++)
    if (legacy->order == ORDER_LEGACY && stream->alive && stream->capturing && stream->order == ORDER_BLOCKING &&
        stream->context == legacy->context) {
      blocks = true;
      if (spoils)
        capture_spoil(stream);
    }
  return blocks;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* Whether later must wait for earlier, if there is no other work. */
static bool work_follows(const struct work *later, const struct work *earlier) {
  if (later->context != earlier->context || earlier->stream == 0)
    return false;
  if (later->stream == 0 || later->stream == earlier->stream || later->joined == earlier->stream)
    return true;
  return (later->order == ORDER_LEGACY && earlier->order == ORDER_BLOCKING) ||
         (later->order == ORDER_BLOCKING && earlier->order == ORDER_LEGACY);
}

static bool work_may_finish(const struct work *work) {
  for (const struct work *earlier = fake.first; earlier != work; earlier = earlier->next)
    if (work_follows(work, earlier))
      return false;
  return true;
}

static void work_remove(struct work *work) {
  *(work->before != NULL ? &work->before->next : &fake.first) = work->next;
  *(work->next != NULL ? &work->next->before : &fake.last) = work->before;
  free(work);
}

/* Finishes the marks that may finish.  A mark waits only for work before it in the list, so one pass is enough. */
static void work_settle(void) {
  for (struct work *work = fake.first, *next; work != NULL; work = next) {
    next = work->next;
    if (work->mark && work_may_finish(work))
      work_remove(work);
  }
}

static struct work *work_submit(struct context *context, const struct stream *stream, const struct fake_range *ranges,
                                size_t range_count) {
  struct work *work = calloc(1, sizeof *work + range_count * sizeof ranges[0]);
  if (work == NULL)
    abort();
  work->before = fake.last;
  work->sequence = ++fake.last_sequence;
  work->context = context;
  work->stream = stream != NULL ? stream->id : 0;
  work->order = stream != NULL ? stream->order : ORDER_FREE;
  work->range_count = range_count;
  if (range_count > 0)
    (void)memcpy(work->ranges, ranges, range_count * sizeof ranges[0]);
  *(fake.last != NULL ? &fake.last->next : &fake.first) = work;
  fake.last = work;
  return work;
}

/* Submits a mark.  Returns its sequence, by which an unfinished mark is found. */
static unsigned long long work_mark(struct context *context, const struct stream *stream, unsigned long long joined) {
  struct work *work = work_submit(context, stream, NULL, 0);
  unsigned long long sequence = work->sequence;
  work->mark = true;
  work->joined = joined;
  work_settle();
  return sequence;
}

/* Chooses the work that new work of the stream would wait for, directly or not. */
static void work_choose_before(const struct stream *stream) {
  const struct work now = {.context = stream->context, .stream = stream->id, .order = stream->order};
  for (struct work *work = fake.last; work != NULL; work = work->before) {
    work->chosen = work_follows(&now, work);
    for (const struct work *later = work->next; later != NULL && !work->chosen; later = later->next)
      work->chosen = later->chosen && work_follows(later, work);
  }
}

static void work_choose_context(const struct context *context) {
  for (struct work *work = fake.first; work != NULL; work = work->next)
    work->chosen = work->context == context;
}

static bool work_finish_chosen(void) {
  bool some = false;
  for (struct work *work = fake.first, *next; work != NULL; work = next) {
    next = work->next;
    if (!work->chosen)
      continue;
    work_remove(work);
    some = true;
  }
  work_settle();
  return some;
}

bool context_busy(const struct context *context) {
  const struct work *work = fake.first;
  while (work != NULL && work->context != context)
    work = work->next;
  return work != NULL;
}

void context_finish(struct context *context, bool counts) {
  work_choose_context(context);
  if (work_finish_chosen() && counts)
    fake.waits++;
}

void context_drop(struct context *context) {
  context_finish(context, false);
  for (int i = 0; i < stream_limit; i++)
    if (fake.streams[i].context == context)
      fake.streams[i].alive = fake.streams[i].capturing = false;
  for (int i = 0; i < event_limit; i++)
    if (fake.events[i].context == context)
      fake.events[i].alive = false;
}

static bool ranges_meet(const struct work *work, uintptr_t address, size_t bytes) {
  for (size_t i = 0; i < work->range_count; i++) {
    uintptr_t other = (uintptr_t)work->ranges[i].address;
    if (address < other + work->ranges[i].bytes && other < address + bytes)
      return true;
  }
  return false;
}

bool work_uses(uintptr_t address, size_t bytes) {
  const struct work *work = fake.first;
  while (work != NULL && !ranges_meet(work, address, bytes))
    work = work->next;
  return work != NULL;
}

/* ---- The driver's functions: streams ----------------------------------------------------------------------------- */

/* The real driver ends a capture if it is asked about its stream (measured). */
int cuStreamGetId(void *handle, unsigned long long *id) {
  struct stream *stream = NULL;
  int error = call_begin(CALL_cuStreamGetId);
  if (error == SUCCESS)
    error = stream_find(handle, &stream);
  if (error == SUCCESS && stream->capturing) {
    capture_spoil(stream);
    error = CAPTURE_UNSUPPORTED;
  }
  if (error == SUCCESS)
    *id = stream->id;
  return call_end(error);
}

static int capture_status(void *handle, int *status, unsigned long long *id) {
  struct stream *stream = NULL;
  int error = stream_find(handle, &stream);
  if (error == SUCCESS && capture_blocks_legacy(stream, false))
    error = CAPTURE_IMPLICIT;
  if (error != SUCCESS)
    return error;
  *status = !stream->capturing ? 0 : stream->capture_spoilt ? 2 : 1;
  if (id != NULL && stream->capturing)
    *id = stream->capture_id;
  return SUCCESS;
}

int cuStreamIsCapturing(void *handle, int *status) {
  int error = call_begin(CALL_cuStreamIsCapturing);
  return call_end(error == SUCCESS ? capture_status(handle, status, NULL) : error);
}

int cuStreamGetCaptureInfo(void *handle, int *status, unsigned long long *id) {
  int error = call_begin(CALL_cuStreamGetCaptureInfo);
  return call_end(error == SUCCESS ? capture_status(handle, status, id) : error);
}

/* What a call answers that submits to the stream or waits for it, while there are captures. */
static int stream_check(struct stream *stream) { return capture_blocks_legacy(stream, true) ? CAPTURE_IMPLICIT : 0; }

int cuStreamSynchronize(void *handle) {
  struct stream *stream = NULL;
  int error = call_begin(CALL_cuStreamSynchronize);
  if (error == SUCCESS)
    error = stream_find(handle, &stream);
  if (error == SUCCESS)
    error = stream_check(stream);
  if (error == SUCCESS && stream->capturing) {
    capture_spoil(stream);
    error = CAPTURE_UNSUPPORTED;
  }
  if (error == SUCCESS) {
    work_choose_before(stream);
    fake.waits += work_finish_chosen();
  }
  return call_end(error);
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
  int error = call_begin(CALL_cuThreadExchangeStreamCaptureMode);
  if (error == SUCCESS && (*mode < mode_global || *mode > mode_relaxed))
    error = INVALID_VALUE;
  if (error == SUCCESS) {
    int before = thread.capture_mode;
    thread.capture_mode = *mode;
    *mode = before;
  }
  return call_end(error);
}

/* ---- The driver's functions: events ------------------------------------------------------------------------------ */

/* The real driver follows the handle of an event that is gone.  Here it is an error and a violation. */
static int event_check(const struct event *event) {
  uintptr_t number = (uintptr_t)event, table = (uintptr_t)fake.events;
  bool known = number >= table && number < table + sizeof fake.events && event->alive;
  fake.violations += !known;
  return known ? SUCCESS : INVALID_HANDLE;
}

int cuEventCreate(struct event **event, unsigned flags) {
  struct context *context = NULL;
  int error = call_begin(CALL_cuEventCreate);
  if (error == SUCCESS)
    error = context_current(&context);
  if (error == SUCCESS && (event == NULL || flags > 7))
    error = INVALID_VALUE;
  int i = 0;
  while (i < event_limit && fake.events[i].alive)
    i++;
  if (error == SUCCESS && i == event_limit)
    error = OUT_OF_MEMORY;
  if (error == SUCCESS) {
    fake.events[i] = (struct event){.alive = true, .context = context};
    *event = &fake.events[i];
  }
  return call_end(error);
}

int cuEventDestroy(struct event *event) {
  int error = call_begin(CALL_cuEventDestroy);
  if (error == SUCCESS)
    error = event_check(event);
  if (error == SUCCESS)
    event->alive = false;
  return call_end(error);
}

int cuEventRecord(struct event *event, void *handle) {
  struct stream *stream = NULL;
  int error = call_begin(CALL_cuEventRecord);
  if (error == SUCCESS)
    error = event_check(event);
  if (error == SUCCESS)
    error = stream_find(handle, &stream);
  if (error == SUCCESS && stream->context != event->context)
    error = INVALID_HANDLE;
  if (error == SUCCESS)
    error = stream_check(stream);
  if (error == SUCCESS && stream->capturing)
    error = CAPTURE_UNSUPPORTED; /* the real driver makes it a node of the graph; no test needs that */
  if (error == SUCCESS)
    event->sequence = work_mark(stream->context, stream, 0);
  return call_end(error);
}

int cuCtxRecordEvent(struct context *context, struct event *event) {
  int error = call_begin(CALL_cuCtxRecordEvent);
  if (error == SUCCESS && !context_known(context))
    error = INVALID_CONTEXT;
  if (error == SUCCESS)
    error = context->alive ? event_check(event) : CONTEXT_IS_DESTROYED;
  if (error == SUCCESS)
    error = event->context == context ? context->poison : INVALID_HANDLE;
  if (error == SUCCESS)
    error = capture_check_context(context);
  if (error == SUCCESS)
    event->sequence = work_mark(context, NULL, 0);
  return call_end(error);
}

int cuEventQuery(struct event *event) {
  int error = call_begin(CALL_cuEventQuery);
  if (error == SUCCESS)
    error = event_check(event);
  if (error == SUCCESS)
    error = capture_check();
  if (error == SUCCESS)
    error = event->context->poison;
  for (const struct work *work = fake.first; work != NULL && error == SUCCESS; work = work->next)
    if (work->sequence == event->sequence)
      error = NOT_READY;
  return call_end(error);
}

/* ---- The test's side: streams and kernels ------------------------------------------------------------------------ */

EXPORT void *fake_stream_create(unsigned flags) {
  struct context *context = NULL;
  struct stream *stream = NULL;
  fake_lock();
  if (context_current(&context) == SUCCESS) {
    stream = stream_begin(context, flags == FAKE_STREAM_NON_BLOCKING ? ORDER_FREE : ORDER_BLOCKING);
    stream->created = true;
  }
  fake_unlock();
  return stream;
}

EXPORT void fake_stream_destroy(void *handle) {
  struct stream *stream = NULL;
  fake_lock();
  (void)stream_find(handle, &stream);
  if (stream != NULL)
    stream->alive = stream->capturing = false;
  fake_unlock();
}

EXPORT bool fake_stream_wait(void *handle, void *other) {
  struct stream *waiting = NULL, *joined = NULL;
  fake_lock();
  bool found = stream_find(handle, &waiting) == SUCCESS && stream_find(other, &joined) == SUCCESS;
  if (found)
    (void)work_mark(waiting->context, waiting, joined->id);
  fake_unlock();
  return found;
}

EXPORT bool fake_launch(void *handle, const struct fake_range *ranges, size_t count) {
  struct stream *stream = NULL;
  fake_lock();
  bool runs = stream_find(handle, &stream) == SUCCESS && stream_check(stream) == SUCCESS;
  for (size_t i = 0; i < count && runs; i++)
    fake.faults += !memory_holds((uintptr_t)ranges[i].address, ranges[i].bytes, stream->context);
  if (runs && !stream->capturing)
    (void)work_submit(stream->context, stream, ranges, count);
  fake_unlock();
  return runs;
}

EXPORT void fake_submit(void *context) {
  fake_lock();
  (void)work_submit(context, stream_default(context, 0), NULL, 0);
  fake_unlock();
}

EXPORT bool fake_pending(void *context) {
  fake_lock();
  bool busy = context_busy(context);
  fake_unlock();
  return busy;
}

EXPORT unsigned fake_in_flight(void) {
  unsigned count = 0;
  fake_lock();
  for (const struct work *work = fake.first; work != NULL; work = work->next)
    count += !work->mark;
  fake_unlock();
  return count;
}

EXPORT bool fake_in_use(const void *address, size_t bytes, const void *handle) {
  struct stream *stream = NULL;
  bool used = false;
  fake_lock();
  if (handle != FAKE_NO_STREAM && stream_find(handle, &stream) == SUCCESS)
    work_choose_before(stream);
  for (const struct work *work = fake.first; work != NULL && !used; work = work->next)
    used = (stream == NULL || !work->chosen) && ranges_meet(work, (uintptr_t)address, bytes);
  fake_unlock();
  return used;
}

/* ---- The test's side: the clock ---------------------------------------------------------------------------------- */

EXPORT void fake_finish(void *context) {
  fake_lock();
  context_finish(context, false);
  fake_unlock();
}

EXPORT void fake_finish_stream(void *handle) {
  struct stream *stream = NULL;
  fake_lock();
  if (stream_find(handle, &stream) == SUCCESS) {
    work_choose_before(stream);
    (void)work_finish_chosen();
  }
  fake_unlock();
}

/* Chooses a kernel that may finish, by any number.  NULL if there is none.  Marks that may finish have done so. */
static struct work *work_pick(unsigned choice) {
  struct work *work;
  unsigned count = 0;
  for (work = fake.first; work != NULL; work = work->next)
    count += work_may_finish(work);
  if (count == 0)
    return NULL;
  choice %= count;
  for (work = fake.first; choice > 0 || !work_may_finish(work); work = work->next)
    choice -= work_may_finish(work);
  return work;
}

EXPORT bool fake_step(unsigned choice) {
  fake_lock();
  struct work *work = work_pick(choice);
  if (work != NULL) {
    work_remove(work);
    work_settle();
  }
  fake_unlock();
  return work != NULL;
}

/* ---- The test's side: captures ----------------------------------------------------------------------------------- */

static void capture_begin(struct stream *stream, int mode, unsigned long long number) {
  stream->capturing = true;
  stream->capture_spoilt = false;
  stream->capture_mode = mode;
  stream->capture_id = ++fake.last_capture_id;
  stream->capturing_thread = number;
}

static bool capture_end(struct stream *stream) {
  bool alive = stream->capturing && !stream->capture_spoilt;
  stream->capturing = false;
  return alive;
}

EXPORT bool fake_stream_capture_begin(void *handle, int mode) {
  struct stream *stream = NULL;
  fake_lock();
  bool may = stream_find(handle, &stream) == SUCCESS && stream->order != ORDER_LEGACY && !stream->capturing;
  if (may)
    capture_begin(stream, mode, thread_number());
  fake_unlock();
  return may;
}

EXPORT bool fake_stream_capture_join(void *handle, void *captured) {
  struct stream *stream = NULL, *origin = NULL;
  fake_lock();
  bool may = stream_find(handle, &stream) == SUCCESS && stream->order != ORDER_LEGACY && !stream->capturing &&
             stream_find(captured, &origin) == SUCCESS && origin->capturing;
  if (may) {
    capture_begin(stream, origin->capture_mode, origin->capturing_thread);
    stream->capture_id = origin->capture_id;
  }
  fake_unlock();
  return may;
}

EXPORT bool fake_stream_capture_end(void *handle) {
  struct stream *stream = NULL;
  fake_lock();
  bool alive = stream_find(handle, &stream) == SUCCESS && capture_end(stream);
  fake_unlock();
  return alive;
}

EXPORT void fake_capture_begin(void) {
  fake_lock();
  capture_begin(&fake.elsewhere, mode_global, 0);
  fake_unlock();
}

EXPORT bool fake_capture_end(void) {
  fake_lock();
  bool alive = capture_end(&fake.elsewhere);
  fake_unlock();
  return alive;
}

EXPORT int fake_capture_mode(void) { return thread.capture_mode; }
