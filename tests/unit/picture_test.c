/* SPDX-License-Identifier: BSD-2-Clause */
/* Pictures of records that a test makes by hand: the test unpacks the page itself, and reads the trace events. */
#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_picture.h"
#include "support/run_suite.h"

enum { base = 0x10000, events_most = 4096 };

static struct record_event events[events_most];
static struct record record;
static struct picture picture;
static char *text; /* of a page, or of trace events */
static size_t text_size;
static char name_work[] = "work+0x10", name_load[] = "load+0x20", module[] = "prog", main_name[] = "main",
            loader_name[] = "loader", none[] = "", epoch[] = "epoch 1", loaded[] = "loaded", layer[] = "layer",
            command[] = "prog --option";
static struct record_site sites[] = {{module, 0x1000, name_work}, {module, 0x2000, name_load}};
static char *threads[] = {main_name, loader_name}, *texts[] = {none, epoch, loaded, layer};
static uint64_t streams[] = {0xabc0};
static struct record_context contexts[] = {{0, false}};

static void record_start(void) {
  record = (struct record){.events = events,
                           .sites = sites,
                           .site_count = 2,
                           .threads = threads,
                           .thread_count = 2,
                           .streams = streams,
                           .stream_count = 1,
                           .texts = texts,
                           .text_count = 4,
                           .contexts = contexts,
                           .context_count = 1,
                           .command = command};
}

static void put(struct record_event event) {
  ck_assert_uint_lt(record.event_count, events_most);
  record.events[record.event_count++] = event;
}

static void allocate(uint64_t time_ns, uint64_t address, uint64_t size, uint32_t site) {
  put((struct record_event){.kind = RECORD_ALLOCATE,
                            .time_ns = time_ns,
                            .address = address,
                            .size = size,
                            .serial = record.allocation_count++,
                            .site = site});
}

static void release(uint64_t time_ns, uint64_t serial) {
  put((struct record_event){.kind = RECORD_FREE, .time_ns = time_ns, .serial = serial});
}

static void make(bool (*print)(FILE *, const struct picture *)) {
  ck_assert(picture_make(&picture, &record));
  FILE *stream = open_memstream(&text, &text_size);
  ck_assert_ptr_nonnull(stream);
  ck_assert(print(stream, &picture));
  ck_assert_int_eq(fclose(stream), 0);
}

static void unmake(void) {
  picture_free(&picture);
  free(text);
  text = NULL;
}

/* The content of the script element with this id; *size does not count the end mark. */
static const char *element_text(const char *id, size_t *size) {
  char begin_mark[64];
  (void)snprintf(begin_mark, sizeof begin_mark, "id=\"%s\">\n", id);
  const char *begin = strstr(text, begin_mark);
  ck_assert_ptr_nonnull(begin);
  begin += strlen(begin_mark);
  const char *end = strstr(begin, "</script>");
  ck_assert_ptr_nonnull(end);
  *size = (size_t)(end - begin);
  return begin;
}

static json_t *header_read(void) {
  size_t size;
  json_error_t error;
  const char *begin = element_text("header", &size);
  json_t *header = json_loadb(begin, size, 0, &error);
  ck_assert_msg(header != NULL, "the header is no JSON: %s", error.text);
  return header;
}

static long long number_of(const json_t *header, const char *key) {
  return json_integer_value(json_object_get(header, key));
}

/* The bytes behind the page's base64. */
static unsigned char *data_read(size_t *count) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t size, bits = 0;
  unsigned word = 0;
  const char *begin = element_text("data", &size);
  unsigned char *bytes = malloc(size + 1);
  *count = 0;
  for (size_t i = 0; i < size; i++) {
    const char *digit = begin[i] == '\n' || begin[i] == '=' ? NULL : strchr(digits, begin[i]);
    if (digit == NULL)
      continue;
    word = word << 6 | (unsigned)(digit - digits);
    bits += 6;
    if (bits >= 8)
      bytes[(*count)++] = (unsigned char)(word >> (bits -= 8));
  }
  return bytes;
}

/* The values of a column.  difference: each stands as the difference to the value before. */
static void column_expect(const char *name, bool difference, const long long *values, size_t count) {
  size_t size;
  json_t *header = header_read();
  json_t *column = json_object_get(json_object_get(header, "columns"), name);
  ck_assert_msg(column != NULL, "there is no column %s", name);
  unsigned char *bytes = data_read(&size);
  const unsigned char *at = bytes + json_integer_value(column);
  long long before = 0;
  for (size_t i = 0; i < count; i++) {
    unsigned long long value = 0;
    for (unsigned shift = 0;; shift += 7) {
      ck_assert(at < bytes + size);
      value |= (unsigned long long)(*at & 127) << shift;
      if ((*at++ & 128) == 0)
        break;
    }
    if (difference)
      before += value % 2 == 0 ? (long long)(value / 2) : -(long long)(value / 2) - 1;
    ck_assert_msg((difference ? before : (long long)value) == values[i], "%s[%zu] is %lld, not %lld", name, i,
                  difference ? before : (long long)value, values[i]);
  }
  free(bytes);
  json_decref(header);
}
#define EXPECT(name, difference, ...)                                                                                  \
  column_expect(name, difference, (const long long[]){__VA_ARGS__},                                                    \
                sizeof((const long long[]){__VA_ARGS__}) / sizeof(long long))

/* ---- A page ------------------------------------------------------------------------------------------------------ */

/*  us  1     2        3        4        5       6        7 */
/*      taken A 3 KiB  B 1 KiB  C 2 KiB  free B  D 512 B  free C */
static void small_record(void) {
  record_start();
  put((struct record_event){.kind = RECORD_TAKEN, .time_ns = 1000, .size = 8192});
  allocate(2000, base, 3072, 0);
  put((struct record_event){.kind = RECORD_MARK, .time_ns = 2500, .text = 2});
  put((struct record_event){.kind = RECORD_PUSH, .time_ns = 2600, .text = 1, .thread = 1});
  put((struct record_event){.kind = RECORD_PUSH, .time_ns = 2700, .text = 3, .thread = 1});
  allocate(3000, base + 3072, 1024, 1);
  put((struct record_event){.kind = RECORD_POP, .time_ns = 3500, .thread = 1});
  put((struct record_event){.kind = RECORD_POP, .time_ns = 3600}); /* the other thread has no open range */
  allocate(4000, base + 4096, 2048, 1);
  events[record.event_count - 1].thread = 1;
  events[record.event_count - 1].stream = 1;
  events[record.event_count - 1].tag = 3;
  release(5000, 1);
  allocate(6000, base + 3072, 512, 1);
  release(7000, 2);
  put((struct record_event){.kind = RECORD_FREE, .time_ns = 7500, .serial = RECORD_NO_SERIAL});
  put((struct record_event){.kind = RECORD_REFUSED, .time_ns = 8000, .size = 1 << 20, .site = 0});
}

START_TEST(page_has_what_the_record_has) {
  small_record();
  make(picture_page);
  json_t *header = header_read();
  ck_assert_str_eq(json_string_value(json_object_get(header, "command")), "prog --option");
  ck_assert_int_eq(number_of(header, "moments"), 8);
  ck_assert_int_eq(number_of(header, "blocks"), 4);
  ck_assert_int_eq(number_of(header, "unknownFrees"), 1);
  ck_assert_int_eq(number_of(header, "end"), 8000);
  ck_assert_int_eq(number_of(header, "unit"), 512);
  json_t *spans = json_object_get(header, "spans");
  ck_assert_int_eq((int)json_array_size(spans), 1);
  ck_assert_str_eq(json_string_value(json_array_get(json_array_get(spans, 0), 0)), "0x10000");
  ck_assert_int_eq(json_integer_value(json_array_get(json_array_get(spans, 0), 1)), 6144);
  json_t *whos = json_object_get(header, "whos"), *who = json_array_get(whos, 2);
  static const int third[] = {1, 1, 1, 3, 0, 0, 1}; /* C: site, thread, stream, tag, context, device, ranges */
  ck_assert_int_eq((int)json_array_size(whos), 3);
  for (size_t i = 0; i < sizeof third / sizeof third[0]; i++)
    ck_assert_int_eq(json_integer_value(json_array_get(who, i)), third[i]);
  json_decref(header);
  EXPECT("time", true, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000);
  /* taken, three allocations, a free of the second to last one, an allocation, the same kind of free, a refusal */
  EXPECT("what", false, 2, 0, 0, 0, 1 + 4 * 1, 0, 1 + 4 * 1, 3);
  EXPECT("hole", true, 0, 0, 0, 0, 1024, 512, 512 + 2048, 512 + 2048);
  EXPECT("taken", false, 8192);
  EXPECT("position", true, 0, 6, 8, 6);
  EXPECT("size", false, 3072, 1024, 2048, 512);
  EXPECT("who", false, 0, 1, 2, 1);
  EXPECT("refusedSize", false, 1 << 20);
  EXPECT("markTime", true, 2500);
  EXPECT("rangeTime", true, 2600, 2700);
  EXPECT("rangeDuration", false, 8000 - 2600, 800); /* the first range is open at the end */
  EXPECT("rangeDepth", false, 0, 1);
  EXPECT("rangeThread", false, 1, 1);
  unmake();
}
END_TEST

static void push(const char *name) {
  for (uint32_t i = 1; i < record.text_count; i++)
    if (strcmp(record.texts[i], name) == 0)
      put((struct record_event){.kind = RECORD_PUSH, .time_ns = 1000, .text = i});
}

/* PyTorch's ranges have numbers behind the name of the operator; by them each would be another one. */
START_TEST(ranges_of_one_name_are_one) {
  static char *op_texts[] = {
      "", "mm, op_id = 9", "step, two", "mm, seq = 12, op_id = 5", "mm2, seq = 1", "mm, op_id = 1"};
  record_start();
  record.texts = op_texts;
  record.text_count = sizeof op_texts / sizeof op_texts[0];
  push("step, two");
  for (uint32_t i = 1; i < record.text_count; i++) {
    if (i == 2)
      continue;
    push(op_texts[i]);
    allocate(1000 + i, base + 512ull * i, 512, 0);
    put((struct record_event){.kind = RECORD_POP, .time_ns = 1100});
  }
  allocate(2000, base, 512, 0);
  make(picture_page);
  EXPECT("who", false, 0, 0, 1, 0, 2);
  json_t *header = header_read(), *paths = json_object_get(header, "paths");
  static const long long expected[][2] = {{0, 0}, {0, 2}, {1, 1}, {1, 4}}; /* the range around it, its first text */
  ck_assert_uint_eq(json_array_size(paths), 4);
  for (size_t i = 0; i < 8; i++)
    ck_assert_int_eq(json_integer_value(json_array_get(json_array_get(paths, i / 2), i % 2)), expected[i / 2][i % 2]);
  json_decref(header);
  unmake();
}
END_TEST

/* Of a block that was live before, the thread is not known, so neither are its ranges. */
START_TEST(a_block_of_before_is_in_no_range) {
  record_start();
  put((struct record_event){.kind = RECORD_PUSH, .time_ns = 0, .text = 1});
  allocate(0, base, 512, 0);
  events[record.event_count - 1].before = true;
  allocate(1, base + 512, 512, 0);
  make(picture_page);
  EXPECT("who", false, 0, 1);
  ck_assert_uint_eq(picture.whos[0].path, 0);
  ck_assert_uint_eq(picture.whos[1].path, 1);
  unmake();
}
END_TEST

START_TEST(peak_is_the_first_moment_with_most_in_use) {
  small_record();
  ck_assert(picture_make(&picture, &record));
  ck_assert_uint_eq(picture.moments[picture.peak].time_ns, 4000);
  ck_assert_uint_eq(picture.moments[picture.peak].live, 6144);
  ck_assert_uint_eq(picture.moments[picture.peak].taken, 8192);
  unmake();
}
END_TEST

START_TEST(a_hole_is_no_more_than_the_pools_hold) {
  record_start();
  put((struct record_event){.kind = RECORD_TAKEN, .time_ns = 1, .size = 8192});
  allocate(2, base, 8192, 0);
  release(3, 0);
  put((struct record_event){.kind = RECORD_TAKEN, .time_ns = 4, .size = 4096});
  put((struct record_event){.kind = RECORD_TAKEN, .time_ns = 5, .size = 0});
  make(picture_page);
  EXPECT("hole", true, 0, 0, 8192, 4096, 0);
  unmake();
}
END_TEST

START_TEST(far_addresses_are_drawn_side_by_side) {
  record_start();
  allocate(1, 0x7f0000000000, 1 << 20, 0);
  allocate(2, 0x7e0000000000, 1000, 0);
  allocate(3, 0x7e0000000000 + (1 << 20), 1000, 0); /* near enough that the gap is drawn */
  make(picture_page);
  EXPECT("position", true, ((1 << 20) + 1024) / 512, 0, (1 << 20) / 512);
  unmake();
}
END_TEST

START_TEST(an_empty_record_has_a_page) {
  record_start();
  make(picture_page);
  json_t *header = header_read();
  ck_assert_int_eq(number_of(header, "moments"), 0);
  ck_assert_uint_eq(picture.peak, picture.moment_count);
  json_decref(header);
  unmake();
}
END_TEST

/* A name of any bytes ends neither its script element nor its string.  In JSON, bytes that are not UTF-8 are U+FFFD. */
START_TEST(names_of_any_bytes_stay_names) {
  static char closing[] = "</script><!--<script>&\"\\\n\x7f",
              broken[] = "a\xff\xc3(\xed\xa0\x80z\xf0\x9f\x98\x80\xe2\x82";
  static const char mended[] =
      "a\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\xf0\x9f\x98\x80\xef\xbf\xbd\xef\xbf\xbd";
  struct record_site hostile[] = {{closing, 0, closing}, {broken, 0, broken}};
  record_start();
  record.sites = hostile;
  record.command = closing;
  allocate(1, base, 512, 0);
  allocate(2, base + 512, 512, 1);
  make(picture_page);
  json_t *header = header_read(), *site = json_array_get(json_object_get(header, "sites"), 0);
  ck_assert_str_eq(json_string_value(json_array_get(site, 0)), closing);
  site = json_array_get(json_object_get(header, "sites"), 1);
  ck_assert_str_eq(json_string_value(json_array_get(site, 0)), mended);
  json_decref(header);
  size_t ends = 0; /* one each for the header, the data and the program */
  for (const char *at = text; (at = strstr(at, "</script")) != NULL; at++)
    ends++;
  ck_assert_uint_eq(ends, 3);
  ck_assert_ptr_null(strstr(text, "<!--<script>"));
  unmake();
}
END_TEST

/* ---- Holes, beside a naive model --------------------------------------------------------------------------------- */

enum { model_units = 64, model_rounds = 1500 };

/* Of each unit: 0 if no block ever had it, 1 if one has it, 2 if one had it. */
static uint64_t model_hole(const int *state) {
  uint64_t largest = 0, run = 0;
  for (size_t i = 0; i < model_units; i++) {
    run = state[i] == 2 ? run + 512 : 0;
    if (run > largest)
      largest = run;
  }
  return largest;
}

START_TEST(holes_are_those_of_a_naive_model) {
  int state[model_units] = {0};
  size_t serials[model_units] = {0}, units[model_units] = {0}; /* of the block that begins at a unit; units 0: none */
  uint64_t expected[model_rounds];
  size_t count = 0;
  srand(7 + (unsigned)_i);
  record_start();
  for (size_t round = 0; round < model_rounds; round++) {
    size_t at = (size_t)rand() % model_units, wanted = 1 + (size_t)rand() % 8, room = 0;
    while (at + room < model_units && state[at + room] != 1 && room < wanted)
      room++;
    if (units[at] != 0) {
      release(round, serials[at]);
      for (size_t i = at; i < at + units[at]; i++)
        state[i] = 2;
      units[at] = 0;
    } else if (room > 0) {
      serials[at] = record.allocation_count;
      units[at] = room;
      allocate(round, base + 512 * at, 512 * room - (size_t)rand() % 512, 0); /* the last unit may be used in part */
      for (size_t i = at; i < at + room; i++)
        state[i] = 1;
    } else {
      continue;
    }
    expected[count++] = model_hole(state);
  }
  ck_assert(picture_make(&picture, &record));
  ck_assert_uint_eq(picture.moment_count, count);
  for (size_t i = 0; i < count; i++)
    ck_assert_uint_eq(picture.moments[i].hole, expected[i]);
  unmake();
}
END_TEST

/* ---- Trace events ------------------------------------------------------------------------------------------------ */

/* The number of events of a phase with a name; NULL: any name. */
static size_t events_count(const json_t *list, const char *phase, const char *name) {
  size_t count = 0, i;
  json_t *event;
  json_array_foreach(list, i, event) {
    if (strcmp(json_string_value(json_object_get(event, "ph")), phase) == 0 &&
        (name == NULL || strcmp(json_string_value(json_object_get(event, "name")), name) == 0))
      count++;
  }
  return count;
}

/* The values of a counter, in order. */
static void counter_expect(const json_t *list, const char *name, const long long *values, size_t count) {
  size_t found = 0, i;
  json_t *event;
  json_array_foreach(list, i, event) {
    if (strcmp(json_string_value(json_object_get(event, "ph")), "C") != 0 ||
        strcmp(json_string_value(json_object_get(event, "name")), name) != 0)
      continue;
    ck_assert_uint_lt(found, count);
    ck_assert_int_eq(json_integer_value(json_object_get(json_object_get(event, "args"), "bytes")), values[found++]);
  }
  ck_assert_uint_eq(found, count);
}

START_TEST(trace_events_tell_the_same) {
  json_error_t error;
  small_record();
  make(picture_trace);
  json_t *all = json_loadb(text, text_size, 0, &error);
  ck_assert_msg(all != NULL, "%s", error.text);
  json_t *list = json_object_get(all, "traceEvents");
  counter_expect(list, "work+0x10", (const long long[]){3072}, 1);
  counter_expect(list, "load+0x20", (const long long[]){1024, 3072, 2048, 2560, 512}, 5);
  counter_expect(list, "all blocks", (const long long[]){3072, 4096, 6144, 5120, 5632, 3584}, 6);
  counter_expect(list, "taken of the driver", (const long long[]){8192}, 1);
  ck_assert_uint_eq(events_count(list, "b", NULL), 4);
  ck_assert_uint_eq(events_count(list, "e", NULL), 2);
  ck_assert_uint_eq(events_count(list, "X", "epoch 1"), 1);
  ck_assert_uint_eq(events_count(list, "X", "layer"), 1);
  ck_assert_uint_eq(events_count(list, "i", "loaded"), 1);
  ck_assert_uint_eq(events_count(list, "i", "refused"), 1);
  json_decref(all);
  unmake();
}
END_TEST

START_TEST(trace_events_have_microseconds) {
  record_start();
  allocate(1234567, base, 512, 0);
  make(picture_trace);
  ck_assert_ptr_nonnull(strstr(text, "\"ts\":1234.567,"));
  unmake();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("picture");
  TCase *page = tcase_create("page"), *holes = tcase_create("holes"), *trace = tcase_create("trace");
  tcase_add_test(page, page_has_what_the_record_has);
  tcase_add_test(page, ranges_of_one_name_are_one);
  tcase_add_test(page, a_block_of_before_is_in_no_range);
  tcase_add_test(page, peak_is_the_first_moment_with_most_in_use);
  tcase_add_test(page, a_hole_is_no_more_than_the_pools_hold);
  tcase_add_test(page, far_addresses_are_drawn_side_by_side);
  tcase_add_test(page, an_empty_record_has_a_page);
  tcase_add_test(page, names_of_any_bytes_stay_names);
  tcase_add_loop_test(holes, holes_are_those_of_a_naive_model, 0, 20);
  tcase_add_test(trace, trace_events_tell_the_same);
  tcase_add_test(trace, trace_events_have_microseconds);
  suite_add_tcase(suite, page);
  suite_add_tcase(suite, holes);
  suite_add_tcase(suite, trace);
  return run_suite(suite);
}
