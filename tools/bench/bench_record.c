/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/zstd.h"

/* Memory ended.  The reader makes a free for each of its blocks in place of this. */
enum { KIND_GONE = RECORD_KINDS };

/* An event's place: by time, and at the same time by its place in the file. */
struct order {
  uint64_t ticks, index;
};

/* A moment by two clocks. */
struct moment {
  uint64_t ticks, ns;
};

struct reader {
  struct record *record;
  const char *path;
  FILE *file;
  uint64_t offset; /* of the frame */
  unsigned char *stored, *content;
  const unsigned char *at, *end; /* of the content */
  bool bad;                      /* an item goes beyond its frame, or names what is not defined */
  size_t events_most;
  size_t event_room, site_room, thread_room, stream_room, text_room, context_room;
  bool program_known, ended, clock_known, from_known;
  struct moment first, last;
  struct record_event now; /* the previous event, with ticks in time_ns */
};

static bool complain(const struct reader *reader, const char *what) {
  (void)fprintf(stderr, "mam-bench: %s: %s\n", reader->path, what);
  return false;
}

static bool complain_damage(const struct reader *reader, const char *what) {
  (void)fprintf(stderr, "mam-bench: %s is damaged: %s, in the frame at byte %llu\n", reader->path, what,
                (unsigned long long)reader->offset);
  return false;
}

/* Makes room for one more; NULL if the host has no memory. */
static void *grow(void *array, size_t count, size_t *room, size_t size) {
  if (count < *room)
    return array;
  size_t more = *room == 0 ? 64 : *room * 2;
  void *larger = more <= SIZE_MAX / 2 / size ? realloc(array, more * size) : NULL;
  if (larger != NULL)
    *room = more;
  return larger;
}

/* The new last element of an array.  Without memory, the reader turns bad. */
#define ADD(reader, member, count, room)                                                                               \
  (add((reader), (void **)&(reader)->record->member, &(reader)->record->count, &(reader)->room,                        \
       sizeof *(reader)->record->member)                                                                               \
       ? &(reader)->record->member[(reader)->record->count - 1]                                                        \
       : NULL)

static bool add(struct reader *reader, void **array, size_t *count, size_t *room, size_t size) {
  void *larger = *count <= RECORD_EVENTS_MOST ? grow(*array, *count, room, size) : NULL;
  if (larger == NULL) {
    reader->bad = true;
    return false;
  }
  *array = larger;
  memset((char *)larger + *count * size, 0, size);
  ++*count;
  return true;
}

/* ---- Numbers and texts of a frame ---- */

static uint64_t number_get(struct reader *reader) {
  uint64_t number = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (reader->at == reader->end)
      break;
    unsigned char byte = *reader->at++;
    number |= (uint64_t)(byte & 127) << shift;
    if (byte < 128)
      return number;
  }
  reader->bad = true;
  return 0;
}

static uint64_t signed_get(struct reader *reader) {
  uint64_t number = number_get(reader);
  return number >> 1 ^ (number & 1 ? ~(uint64_t)0 : 0);
}

/* Reads a number that must be less than count. */
static uint32_t index_get(struct reader *reader, size_t count) {
  uint64_t number = number_get(reader);
  if (number >= count)
    reader->bad = true;
  return reader->bad ? 0 : (uint32_t)number;
}

/* A text that the caller frees.  A 0 in it ends it. */
static char *text_get(struct reader *reader) {
  uint64_t bytes = number_get(reader);
  if (reader->bad || bytes > RECORD_TEXT_MOST || bytes > (size_t)(reader->end - reader->at)) {
    reader->bad = true;
    return NULL;
  }
  char *text = strndup((const char *)reader->at, bytes);
  reader->at += bytes;
  reader->bad = text == NULL;
  return text;
}

/* ---- Items ---- */

static void program_get(struct reader *reader) {
  struct record *record = reader->record;
  reader->bad = reader->program_known;
  reader->program_known = true;
  record->process = number_get(reader);
  (void)number_get(reader); /* the run, which only writers need */
  record->time_us = number_get(reader);
  free(record->command);
  record->command = text_get(reader);
}

static void site_get(struct reader *reader) {
  struct record_site *site = ADD(reader, sites, site_count, site_room);
  if (site == NULL)
    return;
  site->module = text_get(reader);
  site->offset = number_get(reader);
  site->name = text_get(reader);
}

static void clock_get(struct reader *reader) {
  struct moment now = {.ticks = number_get(reader)};
  now.ns = number_get(reader);
  if (!reader->clock_known)
    reader->first = now;
  reader->clock_known = true;
  reader->last = now;
}

static void from_get(struct reader *reader) {
  uint32_t thread = index_get(reader, reader->record->thread_count);
  reader->now = (struct record_event){.thread = thread, .time_ns = number_get(reader)};
  reader->from_known = true;
}

static void gone_get(struct reader *reader) {
  struct record_event *event = ADD(reader, events, event_count, event_room);
  reader->now.time_ns += signed_get(reader);
  uint64_t address = number_get(reader), bytes = number_get(reader);
  reader->bad = reader->bad || !reader->from_known;
  if (event != NULL)
    *event = (struct record_event){.kind = KIND_GONE,
                                   .time_ns = reader->now.time_ns,
                                   .thread = reader->now.thread,
                                   .address = address,
                                   .size = bytes};
}

static void event_get(struct reader *reader, unsigned code) {
  struct record *record = reader->record;
  struct record_event *now = &reader->now;
  uint64_t size;
  now->kind = code & RECORD_KIND_MASK;
  reader->bad = reader->bad || !reader->from_known || now->kind >= RECORD_KINDS;
  now->time_ns += signed_get(reader);
  if (code & RECORD_HAS_ADDRESS)
    now->address += signed_get(reader);
  size = now->size;
  if (now->kind == RECORD_TAKEN)
    size = signed_get(reader);
  else if (code & RECORD_HAS_SIZE)
    size = now->size = number_get(reader);
  if (code & RECORD_HAS_SITE)
    now->site = (uint32_t)number_get(reader);
  if (code & RECORD_HAS_DETAIL) {
    now->stream = index_get(reader, record->stream_count + 1);
    now->tag = index_get(reader, record->text_count);
    now->context = (uint32_t)number_get(reader);
  }
  bool texted = now->kind == RECORD_MARK || now->kind == RECORD_PUSH;
  uint32_t text = texted ? index_get(reader, record->text_count) : 0;
  bool sited = now->kind <= RECORD_REFUSED || now->kind == RECORD_LIVE;
  bool placed = sited || now->kind == RECORD_TAKEN; /* has a context; a free has that of its allocation */
  if ((sited && now->site >= record->site_count) || (placed && now->context >= record->context_count))
    reader->bad = true;
  struct record_event *event = reader->bad ? NULL : ADD(reader, events, event_count, event_room);
  if (event == NULL)
    return;
  *event = (struct record_event){
      .time_ns = now->time_ns, .serial = RECORD_NO_SERIAL, .kind = now->kind, .thread = now->thread, .text = text};
  if (now->kind == RECORD_ALLOCATE || now->kind == RECORD_FREE || now->kind == RECORD_LIVE)
    event->address = now->address;
  if (placed || now->kind == RECORD_FREE)
    event->stream = now->stream;
  if (placed) {
    event->size = size;
    event->tag = now->tag;
    event->context = now->context;
    event->site = sited ? now->site : 0;
    event->device = record->contexts[now->context].device;
  }
}

static void item_get(struct reader *reader) {
  struct record *record = reader->record;
  unsigned code = *reader->at++;
  char **text;
  uint64_t *stream;
  struct record_context *context;
  uint64_t id;
  if (code >= RECORD_EVENT) {
    event_get(reader, code);
    return;
  }
  switch (code) {
  case RECORD_ITEM_PROGRAM:
    program_get(reader);
    break;
  case RECORD_ITEM_TEXT:
    if ((text = ADD(reader, texts, text_count, text_room)) != NULL)
      *text = text_get(reader);
    break;
  case RECORD_ITEM_SITE:
    site_get(reader);
    break;
  case RECORD_ITEM_THREAD:
    if ((text = ADD(reader, threads, thread_count, thread_room)) != NULL)
      *text = text_get(reader);
    break;
  case RECORD_ITEM_STREAM:
    if ((stream = ADD(reader, streams, stream_count, stream_room)) != NULL)
      *stream = number_get(reader);
    break;
  case RECORD_ITEM_CONTEXT:
    id = number_get(reader);
    if ((context = ADD(reader, contexts, context_count, context_room)) != NULL)
      *context = (struct record_context){(uint32_t)number_get(reader), id / RECORD_CREATED == 1};
    break;
  case RECORD_ITEM_CLOCK:
    clock_get(reader);
    break;
  case RECORD_ITEM_FROM:
    from_get(reader);
    break;
  case RECORD_ITEM_GONE:
    gone_get(reader);
    break;
  case RECORD_ITEM_LOST:
    record->lost_count += number_get(reader);
    break;
  case RECORD_ITEM_END:
    reader->ended = true;
    return;
  default:
    reader->bad = true;
  }
  reader->ended = false; /* a destructor may free after the end */
}

/* ---- Frames ---- */

static uint32_t word_get(const unsigned char *from) {
  return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static bool frame_unpack(struct reader *reader, unsigned method, size_t stored_bytes, size_t content_bytes) {
  const struct zstd *zstd;
  if (method == RECORD_PLAIN && stored_bytes == content_bytes) {
    memcpy(reader->content, reader->stored, content_bytes);
    return true;
  }
  if (method != RECORD_ZSTD)
    return complain_damage(reader, "a method that is not known");
  zstd = zstd_load();
  if (zstd == NULL)
    return complain(reader, "it is compressed, and libzstd.so.1 is not installed here");
  return zstd->decompress(reader->content, RECORD_CONTENT_MOST, reader->stored, stored_bytes) == content_bytes ||
         complain_damage(reader, "what was compressed cannot be read");
}

/* The content of the next frame.  *more: there is one; otherwise the file ends before it or inside it. */
static bool frame_read(struct reader *reader, bool *more) {
  unsigned char head[RECORD_HEAD_BYTES];
  size_t got = fread(head, 1, sizeof head, reader->file);
  *more = false;
  if (got < sizeof head) {
    reader->ended = reader->ended && got == 0;
    return !ferror(reader->file) || complain(reader, strerror(errno));
  }
  size_t stored_bytes = word_get(head + 4), content_bytes = word_get(head + 8);
  if (head[0] != 'F' || head[1] != 'R' || stored_bytes > RECORD_CONTENT_MOST || content_bytes > RECORD_CONTENT_MOST)
    return complain_damage(reader, "no frame begins there");
  got = fread(reader->stored, 1, stored_bytes, reader->file);
  if (got < stored_bytes) {
    reader->ended = false;
    return !ferror(reader->file) || complain(reader, strerror(errno));
  }
  if (record_sum(head, reader->stored, stored_bytes) != word_get(head + 12))
    return complain_damage(reader, "the checksum is wrong");
  if (!frame_unpack(reader, head[2], stored_bytes, content_bytes))
    return false;
  reader->at = reader->content;
  reader->end = reader->content + content_bytes;
  reader->from_known = false;
  *more = true;
  return true;
}

static bool frames_read(struct reader *reader) {
  bool more;
  for (;;) {
    if (!frame_read(reader, &more))
      return false;
    if (!more)
      return true;
    while (reader->at < reader->end && !reader->bad && reader->record->event_count <= reader->events_most)
      item_get(reader);
    if (reader->record->event_count > reader->events_most) {
      (void)fprintf(stderr, "mam-bench: %s: it has more than %zu events\n", reader->path, reader->events_most);
      return false;
    }
    if (reader->bad)
      return complain_damage(reader, "an item cannot be read");
    reader->offset = (uint64_t)ftello(reader->file);
  }
}

/* ---- The order of time ---- */

static int compare_orders(const void *a, const void *b) {
  const struct order *left = a, *right = b;
  if (left->ticks != right->ticks)
    return left->ticks < right->ticks ? -1 : 1;
  return left->index < right->index ? -1 : 1;
}

/* Sorts the events by their ticks, which have the same order as nanoseconds, and are finer. */
static bool events_sort(struct reader *reader) {
  struct record *record = reader->record;
  size_t count = record->event_count;
  struct order *orders = malloc((count + 1) * sizeof *orders);
  struct record_event *sorted = malloc((count + 1) * sizeof *sorted);
  bool good = orders != NULL && sorted != NULL;
  for (size_t i = 0; i < count && good; i++)
    orders[i] = (struct order){record->events[i].time_ns, i};
  if (good) {
    qsort(orders, count, sizeof *orders, compare_orders);
    for (size_t i = 0; i < count; i++)
      sorted[i] = record->events[orders[i].index];
    free(record->events);
    record->events = sorted;
    reader->event_room = count + 1;
  } else {
    free(sorted);
  }
  free(orders);
  return good || complain(reader, "this machine has no memory for so many events");
}

/* Turns ticks into nanoseconds, by the first and the last moment that both clocks have. */
static void events_time(struct reader *reader) {
  struct record *record = reader->record;
  double ticks = (double)(reader->last.ticks - reader->first.ticks);
  double rate = ticks > 0 ? (double)(reader->last.ns - reader->first.ns) / ticks : 1;
  for (size_t i = 0; i < record->event_count; i++) {
    uint64_t since = record->events[i].time_ns - reader->first.ticks;
    double ns = since >> 63 ? 0 : (double)since * rate;
    record->events[i].time_ns = ns < 9e18 ? (uint64_t)ns : 0;
  }
}

/* ---- Which free ends which allocation ---- */

/* Live allocations.  Each address of the record has a rank, so that those of a range follow each other. */
struct live {
  uint64_t *addresses; /* by rank: all there ever are */
  size_t count;
  uint32_t *ranks;  /* by event, of those that have an address */
  uint64_t *places; /* by rank: the allocation that is live there, as an index of the new events plus one; 0: none */
  uint64_t *words;  /* a bit for each rank: something is live */
};

static void live_free(struct live *live) {
  free(live->addresses);
  free(live->ranks);
  free(live->places);
  free(live->words);
}

static bool is_placed(const struct record_event *event) {
  return event->kind == RECORD_ALLOCATE || event->kind == RECORD_FREE || event->kind == RECORD_LIVE;
}

static bool live_make(struct live *live, const struct record *record) {
  size_t count = 0;
  struct order *orders = malloc((record->event_count + 1) * sizeof *orders); /* by address */
  live->ranks = calloc(record->event_count + 1, sizeof *live->ranks);
  for (size_t i = 0; i < record->event_count && orders != NULL; i++)
    if (is_placed(&record->events[i]))
      orders[count++] = (struct order){record->events[i].address, i};
  live->addresses = malloc((count + 1) * sizeof *live->addresses);
  live->places = calloc(count + 1, sizeof *live->places);
  live->words = calloc(count / 64 + 1, sizeof *live->words);
  bool good =
      orders != NULL && live->ranks != NULL && live->addresses != NULL && live->places != NULL && live->words != NULL;
  if (good)
    qsort(orders, count, sizeof *orders, compare_orders);
  for (size_t i = 0; i < count && good; i++) {
    if (i == 0 || orders[i].ticks != orders[i - 1].ticks)
      live->addresses[live->count++] = orders[i].ticks;
    live->ranks[orders[i].index] = (uint32_t)(live->count - 1);
  }
  free(orders);
  return good;
}

static void live_put(struct live *live, size_t rank, uint64_t place) {
  live->places[rank] = place;
  live->words[rank / 64] |= (uint64_t)1 << rank % 64;
}

static void live_remove(struct live *live, size_t rank) {
  live->places[rank] = 0;
  live->words[rank / 64] &= ~((uint64_t)1 << rank % 64);
}

/* The first rank from this one on at which something is live; live->count if there is none. */
static size_t live_next(const struct live *live, size_t rank) {
  for (; rank < live->count; rank = (rank / 64 + 1) * 64) {
    uint64_t word = live->words[rank / 64] >> rank % 64;
    if (word != 0)
      return rank + (size_t)__builtin_ctzll(word);
  }
  return live->count;
}

/* The rank of the first address from this one on. */
static size_t live_rank(const struct live *live, uint64_t address) {
  size_t low = 0, high = live->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (live->addresses[middle] < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void free_of(struct record_event *event, const struct record_event *allocation) {
  event->size = allocation->size;
  event->serial = allocation->serial;
  event->tag = allocation->tag;
  event->context = allocation->context;
  event->site = allocation->site;
  event->device = allocation->device;
}

/* A processor may read the clock for a free a little early.  If another thread made the allocation, the allocation then
 * seems to come later.  The difference is at most this, and so many such frees are remembered. */
enum { EARLY_NS = 10000, EARLY_FREES = 16 };

/* The events once more, with a free for each block in memory that ended. */
struct matcher {
  struct reader *reader;
  struct record_event *events; /* the new ones */
  size_t count, room;
  struct live live;
  uint64_t *held;                         /* bytes that the pools of each context hold */
  size_t early[EARLY_FREES], early_count; /* the latest frees without an allocation, as new indexes plus one */
};

static bool matcher_put(struct matcher *matcher, const struct record_event *event) {
  void *larger = grow(matcher->events, matcher->count, &matcher->room, sizeof *event);
  if (larger == NULL)
    return false;
  matcher->events = larger;
  matcher->events[matcher->count++] = *event;
  return true;
}

static bool match_gone(struct matcher *matcher, const struct record_event *gone) {
  struct live *live = &matcher->live;
  for (size_t rank = live_next(live, live_rank(live, gone->address));
       rank < live->count && live->addresses[rank] - gone->address < gone->size; rank = live_next(live, rank)) {
    struct record_event end = {
        .kind = RECORD_FREE, .time_ns = gone->time_ns, .thread = gone->thread, .address = live->addresses[rank]};
    free_of(&end, &matcher->events[live->places[rank] - 1]);
    if (!matcher_put(matcher, &end))
      return false;
    live_remove(live, rank);
  }
  return true;
}

/* The early free that ends this allocation; else NULL. */
static struct record_event *early_free(struct matcher *matcher, const struct record_event *allocation) {
  for (size_t i = 0; i < EARLY_FREES; i++) {
    struct record_event *early = matcher->early[i] != 0 ? &matcher->events[matcher->early[i] - 1] : NULL;
    if (early == NULL || early->address != allocation->address || allocation->time_ns - early->time_ns > EARLY_NS)
      continue;
    matcher->early[i] = 0;
    return early;
  }
  return NULL;
}

/* Both times stay, but the allocation now has the earlier one. */
static bool match_early(struct matcher *matcher, struct record_event *early, struct record_event *allocation) {
  struct record_event end = *early;
  uint64_t time_ns = early->time_ns;
  end.time_ns = allocation->time_ns;
  free_of(&end, allocation);
  *early = *allocation;
  early->time_ns = time_ns;
  return matcher_put(matcher, &end);
}

/* What the pools of a context hold after a change.  A pool that ended while the record began may give back more than
 * the record knows. */
static uint64_t held_after(uint64_t held, uint64_t change) {
  return change >> 63 != 0 && -change > held ? 0 : held + change;
}

/* The allocation was under way when the record began, and the block was found live then.  It is one allocation. */
static void match_before(struct record_event *before, const struct record_event *event) {
  uint64_t time_ns = before->time_ns, serial = before->serial;
  *before = *event;
  before->time_ns = time_ns;
  before->serial = serial;
}

static bool match(struct matcher *matcher, struct record_event event, size_t rank) {
  struct live *live = &matcher->live;
  event.before = event.kind == RECORD_LIVE;
  if (event.before)
    event.kind = RECORD_ALLOCATE;
  if (event.kind == KIND_GONE)
    return match_gone(matcher, &event);
  uint64_t place = is_placed(&event) ? live->places[rank] : 0;
  if (event.kind == RECORD_TAKEN) {
    event.size = matcher->held[event.context] = held_after(matcher->held[event.context], event.size);
  } else if (event.kind == RECORD_FREE && place != 0) {
    free_of(&event, &matcher->events[place - 1]);
    live_remove(live, rank);
  } else if (event.kind == RECORD_FREE) {
    matcher->early[matcher->early_count++ % EARLY_FREES] = matcher->count + 1;
  } else if (event.kind == RECORD_ALLOCATE && place != 0 && matcher->events[place - 1].before) {
    match_before(&matcher->events[place - 1], &event);
    matcher->reader->record->live_before--;
    return true;
  } else if (event.kind == RECORD_ALLOCATE) {
    matcher->reader->record->live_before += event.before;
    if (place != 0) { /* the record has no free of it, but it has ended by now */
      struct record_event end = {
          .kind = RECORD_FREE, .time_ns = event.time_ns, .thread = event.thread, .address = event.address};
      free_of(&end, &matcher->events[place - 1]);
      if (!matcher_put(matcher, &end))
        return false;
      live_remove(live, rank);
    }
    event.serial = matcher->reader->record->allocation_count++;
    struct record_event *early = early_free(matcher, &event);
    if (early != NULL)
      return match_early(matcher, early, &event);
    live_put(live, rank, matcher->count + 1);
  }
  return matcher_put(matcher, &event);
}

static bool events_match(struct reader *reader) {
  struct record *record = reader->record;
  struct matcher matcher = {.reader = reader, .held = calloc(record->context_count + 1, sizeof *matcher.held)};
  bool good = matcher.held != NULL && live_make(&matcher.live, record);
  for (size_t i = 0; i < record->event_count && good; i++)
    good = match(&matcher, record->events[i], matcher.live.ranks[i]);
  free(matcher.held);
  live_free(&matcher.live);
  if (good) {
    free(record->events);
    record->events = matcher.events;
    record->event_count = matcher.count;
  } else {
    free(matcher.events);
  }
  return good || complain(reader, "this machine has no memory for so many events");
}

/* ---- The whole ---- */

static bool reader_run(struct reader *reader) {
  char magic[RECORD_MAGIC_BYTES];
  size_t got = fread(magic, 1, sizeof magic, reader->file);
  if (ferror(reader->file))
    return complain(reader, strerror(errno));
  if (got == 0)
    return complain(reader, "it is empty: the program has allocated nothing, or was not run with libmam");
  if (memcmp(magic, RECORD_MAGIC, got < 6 ? got : 6) != 0)
    return complain(reader, "it is no record of libmam's");
  if (got == sizeof magic && memcmp(magic, RECORD_MAGIC, sizeof magic) != 0)
    return complain(reader, "it is a record of another version of libmam");
  reader->offset = sizeof magic;
  char **none = ADD(reader, texts, text_count, text_room);
  if (none == NULL || (*none = strdup("")) == NULL)
    return complain(reader, "this machine has no memory");
  if (!frames_read(reader) || !events_sort(reader))
    return false;
  events_time(reader);
  if (!events_match(reader))
    return false;
  reader->record->cut = !reader->ended;
  if (reader->record->command == NULL)
    reader->record->command = strdup("");
  return reader->record->command != NULL;
}

bool record_read(struct record *record, const char *path, size_t events_most) {
  struct reader reader = {.record = record, .path = path, .events_most = events_most};
  *record = (struct record){0};
  reader.file = fopen(path, "rb");
  if (reader.file == NULL)
    return complain(&reader, strerror(errno));
  reader.stored = malloc(RECORD_CONTENT_MOST);
  reader.content = malloc(RECORD_CONTENT_MOST);
  bool good = reader.stored != NULL && reader.content != NULL ? reader_run(&reader)
                                                              : complain(&reader, "this machine has no memory");
  free(reader.stored);
  free(reader.content);
  (void)fclose(reader.file);
  return good;
}

void record_free(struct record *record) {
  free(record->events);
  for (size_t i = 0; i < record->site_count; i++) {
    free(record->sites[i].module);
    free(record->sites[i].name);
  }
  free(record->sites);
  for (size_t i = 0; i < record->thread_count; i++)
    free(record->threads[i]);
  free(record->threads);
  free(record->streams);
  for (size_t i = 0; i < record->text_count; i++)
    free(record->texts[i]);
  free(record->texts);
  free(record->contexts);
  free(record->command);
  *record = (struct record){0};
}
