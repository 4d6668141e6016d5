/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/record_inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "base/record_clock.h"
#include "base/record_site.h"

_Atomic(unsigned char) record_state;

pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;
struct recording recording;
bool counter_used;

/* ---- Numbers ---- */

static uint32_t site_put(uint64_t key, const void *more) {
  (void)more;
  static struct site site; /* under record_lock */
  if (key == 0)            /* of a small block that was live before */
    return record_file_site(&recording.file, "", 0, "not known");
  site_find((uintptr_t)key, true, &site);
  return record_file_site(&recording.file, site.module, site.offset, site.name);
}

static uint32_t tag_put(uint64_t key, const void *more) {
  (void)more;
  static struct site site;
  site_find((uintptr_t)key, false, &site);
  return record_file_text(&recording.file, site.name);
}

static uint32_t stream_put(uint64_t key, const void *more) {
  (void)more;
  return record_file_stream(&recording.file, key);
}

static uint32_t context_put(uint64_t key, const void *more) {
  return record_file_context(&recording.file, key, more != NULL ? *(const uint32_t *)more : 0);
}

static uint32_t text_put(uint64_t key, const void *more) {
  (void)key;
  return record_file_text(&recording.file, more);
}

/* By a hash alone: of two texts with the same one, the second would go by the name of the first. */
static uint32_t text_number(const char *text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char *at = text; *at != '\0'; at++)
    hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
  return number_of(&recording.texts, hash, text_put, text);
}

/* ---- From the rings to the file ---- */

static uint32_t stream_number(bool on_stream, uint64_t handle) {
  return on_stream ? 1 + number_of(&recording.streams, handle, stream_put, NULL) : 0;
}

/* The numbers in this file of what the thread has last told. */
static void detail_number_locked(struct recorder *recorder) {
  lock_held(&record_lock);
  const struct slot *told = &recorder->told;
  if (told->when == 0)
    return;
  recorder->stream = stream_number(told->when >> SLOT_KIND_BITS != 0, told->a);
  recorder->tag = told->b == 0 ? 0 : number_of(&recording.tags, told->b, tag_put, NULL);
  recorder->context = number_of(&recording.contexts, told->c, context_put, NULL);
}

/* In the file, a pop ends the innermost range.  Where one of another domain is around it and ends first, those inside
 * end with it and begin again. */
static void range_put_locked(struct recorder *recorder, enum record_kind kind, uint64_t ticks, uint32_t text) {
  lock_held(&record_lock);
  record_file_event(&recording.file, recorder->number,
                    &(struct record_item){.kind = kind,
                                          .ticks = ticks,
                                          .tag = recorder->tag,
                                          .context = recorder->context,
                                          .stream = recorder->stream,
                                          .text = text});
}

static void range_begin_locked(struct recorder *recorder, uint64_t ticks, uint64_t domain, uint32_t text) {
  lock_held(&record_lock);
  if (recorder->range_count == recorder->range_room) {
    size_t room = recorder->range_room == 0 ? 16 : 2 * recorder->range_room;
    struct open_range *larger = realloc(recorder->ranges, room * sizeof *larger);
    if (larger == NULL) {
      atomic_fetch_add_explicit(&recording.lost_count, 1, memory_order_relaxed);
      return;
    }
    recorder->ranges = larger;
    recorder->range_room = room;
  }
  recorder->ranges[recorder->range_count++] = (struct open_range){domain, text};
  range_put_locked(recorder, RECORD_PUSH, ticks, text);
}

/* Of a range that began before the record, the end is not in it either. */
static void range_end_locked(struct recorder *recorder, uint64_t ticks, uint64_t domain) {
  lock_held(&record_lock);
  size_t index = recorder->range_count;
  while (index > 0 && recorder->ranges[index - 1].domain != domain)
    index--;
  if (index-- == 0)
    return;
  for (size_t i = index; i < recorder->range_count; i++)
    range_put_locked(recorder, RECORD_POP, ticks, 0);
  recorder->range_count--;
  for (size_t i = index; i < recorder->range_count; i++) {
    recorder->ranges[i] = recorder->ranges[i + 1];
    range_put_locked(recorder, RECORD_PUSH, ticks, recorder->ranges[i].text);
  }
}

static void slot_encode_locked(struct recorder *recorder, const struct slot *slot) {
  lock_held(&record_lock);
  unsigned kind = slot->when & ((1 << SLOT_KIND_BITS) - 1);
  uint64_t ticks = (slot->when - (recording.ticks_base << SLOT_KIND_BITS)) >> SLOT_KIND_BITS;
  uint32_t device = (uint32_t)slot->c;
  if (kind == SLOT_DETAIL) {
    recorder->told = *slot;
    detail_number_locked(recorder);
    return;
  }
  struct record_item item = {.kind = (enum record_kind)kind,
                             .ticks = ticks < recording.begin_ticks ? recording.begin_ticks : ticks,
                             .tag = recorder->tag,
                             .context = recorder->context,
                             .stream = recorder->stream};
  switch (kind) {
  case SLOT_GONE:
    record_file_gone(&recording.file, recorder->number, item.ticks, slot->a, slot->b);
    return;
  case RECORD_FREE:
    item.address = slot->a;
    item.stream = stream_number(slot->c != 0, slot->b);
    break;
  case RECORD_TAKEN:
    item.context = number_of(&recording.contexts, slot->a, context_put, &device);
    item.size = slot->b;
    break;
  case RECORD_MARK:
  case RECORD_PUSH:
    item.text = text_number((const char *)(uintptr_t)slot->a);
    free((void *)(uintptr_t)slot->a);
    if (kind == RECORD_MARK)
      break;
    range_begin_locked(recorder, item.ticks, slot->b, item.text);
    return;
  case RECORD_POP:
    range_end_locked(recorder, item.ticks, slot->b);
    return;
  default: /* allocate, refused */
    item.address = slot->a;
    item.size = slot->b;
    item.site = number_of(&recording.sites, slot->c, site_put, NULL);
  }
  record_file_event(&recording.file, recorder->number, &item);
}

/* What came between two records, of which only what later events refer to is kept. */
static void slot_drop(struct recorder *recorder, const struct slot *slot) {
  unsigned kind = slot->when & ((1 << SLOT_KIND_BITS) - 1);
  if (kind == SLOT_DETAIL)
    recorder->told = *slot;
  else if (kind == RECORD_MARK || kind == RECORD_PUSH)
    free((void *)(uintptr_t)slot->a);
}

void recorder_free(struct recorder *recorder) {
  free(recorder->ranges);
  free(recorder);
}

bool recorder_drain_locked(struct recorder *recorder, bool drops) {
  lock_held(&record_lock);
  uint64_t read = atomic_load_explicit(&recorder->read, memory_order_relaxed); /* relaxed: written under this lock */
  /* acquire: the slots; pairs with the release in put */
  uint64_t written = atomic_load_explicit(&recorder->written, memory_order_acquire);
  if (read == written)
    return false;
  if (!drops && (recorder->number == NUMBER_UNKNOWN || recorder->file != recording.generation)) {
    recorder->number = record_file_thread(&recording.file, recorder->name);
    recorder->file = recording.generation;
    recorder->range_count = 0;
    detail_number_locked(recorder);
  }
  for (; read != written; read++) {
    const struct slot *slot = &recorder->slots[read % RING_SLOTS];
    __builtin_prefetch(slot + RING_FETCH); /* the thread's processor has it */
    if (drops)
      slot_drop(recorder, slot);
    else
      slot_encode_locked(recorder, slot);
  }
  /* release: the slots may be written again; pairs with the acquire in ring_look */
  atomic_store_explicit(&recorder->read, read, memory_order_release);
  atomic_store_explicit(&recorder->visited, true, memory_order_relaxed);
  return true;
}

/* The file cannot be written: the program goes on without a record. */
void recording_stop_locked(const char *what, int error) {
  lock_held(&record_lock);
  /* relaxed: nothing is published */
  if (atomic_exchange_explicit(&record_state, RECORD_OFF, memory_order_relaxed) == RECORD_ON)
    (void)fprintf(stderr, "mam: %s %s: %s; no more is recorded\n", what,
                  recording.open ? recording.written_path : recording.path, strerror(error));
}

void recording_failed_locked(void) {
  lock_held(&record_lock);
  if (recording.file.error != 0)
    recording_stop_locked(recording.file.error == EBADF ? "the program has closed the record"
                                                        : "cannot write the record",
                          recording.file.error);
}

void recording_clock_put_locked(void) {
  lock_held(&record_lock);
  uint64_t before = clock_after(), ns = (uint64_t)now_ns(), after = clock_after();
  record_file_clock(&recording.file, before + (after - before) / 2 - recording.ticks_base, ns);
}

void recording_flush_locked(void) {
  lock_held(&record_lock);
  uint64_t lost = atomic_exchange_explicit(&recording.lost_count, 0, memory_order_relaxed);
  if (lost > 0)
    record_file_lost(&recording.file, lost);
  recording_clock_put_locked();
  record_file_flush(&recording.file);
  recording_failed_locked();
}

/* What was found of modules may be wrong when one was unloaded: another may have come to its addresses. */
static void modules_look_locked(void) {
  lock_held(&record_lock);
  uint64_t unloads = site_unloads();
  if (unloads == recording.unloads)
    return;
  recording.unloads = unloads;
  numbers_clear(&recording.sites);
  numbers_clear(&recording.tags);
}

void recorders_drain_locked(bool sends) {
  lock_held(&record_lock);
  modules_look_locked();
  for (struct recorder **link = &recording.recorders, *recorder; (recorder = *link) != NULL;) {
    (void)recorder_drain_locked(recorder, !recording.open);
    if (recorder->ended) {
      *link = recorder->next;
      recorder_free(recorder);
    } else {
      link = &recorder->next;
    }
  }
  if (sends && recording.open && recording.file.content_bytes > 0)
    recording_flush_locked();
}

/* ---- What is live when a call begins a record ---- */

void recording_live_put_locked(const struct record_live *all, size_t count) {
  lock_held(&record_lock);
  uint32_t thread = count > 0 ? record_file_thread(&recording.file, "before the record") : 0;
  recording_clock_put_locked();
  for (size_t i = 0; i < count; i++) {
    const struct record_live *live = &all[i];
    struct record_item item = {.kind = live->address != 0 ? RECORD_LIVE : RECORD_TAKEN,
                               .ticks = recording.begin_ticks,
                               .address = live->address,
                               .size = live->size};
    item.context = number_of(&recording.contexts, live->context, context_put, &live->device);
    if (live->address != 0) {
      item.site = number_of(&recording.sites, (uintptr_t)live->site, site_put, NULL);
      item.tag = live->tag == NULL ? 0 : number_of(&recording.tags, (uintptr_t)live->tag, tag_put, NULL);
    }
    record_file_event(&recording.file, thread, &item);
  }
}
