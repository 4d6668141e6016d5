/* SPDX-License-Identifier: BSD-2-Clause */
/* The file of a record: the reader returns what was written, in the order of time; files that are cut or damaged. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench_record.h"
#include "support/record_writer.h"
#include "support/run_suite.h"

static char path[64], other_path[64];
static struct record record;

static void files_name(void) {
  (void)snprintf(path, sizeof path, "record_file_test.%ld", (long)getpid());
  (void)snprintf(other_path, sizeof other_path, "record_file_test.%ld.other", (long)getpid());
  (void)freopen("/dev/null", "w", stderr); /* for the complaints of mam-bench */
}

static void files_remove(void) {
  (void)unlink(path);
  (void)unlink(other_path);
}

static const struct zstd *method(int i) { return i == 0 ? NULL : zstd_load(); }

/* Events and items of every kind. */
static void write_all_kinds(const struct zstd *zstd) {
  struct record_file file;
  ck_assert(writer_open(&file, path, zstd));
  uint32_t one = record_file_thread(&file, "main"), two = record_file_thread(&file, "loader");
  uint32_t context = record_file_context(&file, 77, 0), second = record_file_context(&file, 78, 3);
  uint32_t site = record_file_site(&file, "prog", 0x1234, "work+0x10"), at = record_file_site(&file, "", 5, "0x5");
  uint32_t stream = 1 + record_file_stream(&file, 0xabc0), tag = record_file_text(&file, "weights");
  uint32_t text = record_file_text(&file, "epoch 3");
  record_file_event(&file, one,
                    &(struct record_item){.kind = RECORD_TAKEN, .ticks = 10, .size = 1 << 20, .context = second});
  record_file_event(&file, one,
                    &(struct record_item){.kind = RECORD_ALLOCATE,
                                          .ticks = 20,
                                          .address = 0x7f0000001000,
                                          .size = 1000,
                                          .site = site,
                                          .stream = stream,
                                          .tag = tag,
                                          .context = second});
  record_file_event(&file, two, /* before the mark in the file, after it in time */
                    &(struct record_item){.kind = RECORD_FREE, .ticks = 60, .address = 0x7f0000001000});
  record_file_event(&file, one, &(struct record_item){.kind = RECORD_MARK, .ticks = 30, .text = text});
  record_file_event(&file, one, &(struct record_item){.kind = RECORD_PUSH, .ticks = 40, .text = tag});
  record_file_event(
      &file, one,
      &(struct record_item){.kind = RECORD_REFUSED, .ticks = 50, .size = UINT64_MAX, .site = at, .context = context});
  record_file_event(&file, one, &(struct record_item){.kind = RECORD_POP, .ticks = 55});
  record_file_event(
      &file, one,
      &(struct record_item){.kind = RECORD_TAKEN, .ticks = 70, .size = -(uint64_t)(1 << 19), .context = second});
  record_file_event(&file, two, &(struct record_item){.kind = RECORD_FREE, .ticks = 80, .address = 0x42});
  record_file_lost(&file, 3);
  writer_close(&file, 1000);
}

START_TEST(what_is_written_is_read) {
  write_all_kinds(method(_i));
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  ck_assert(!record.cut);
  ck_assert_str_eq(record.command, "prog --option");
  ck_assert_uint_eq(record.process, 4711);
  ck_assert_uint_eq(record.lost_count, 3);
  ck_assert_uint_eq(record.event_count, 9);
  static const uint32_t kinds[] = {RECORD_TAKEN, RECORD_ALLOCATE, RECORD_MARK,  RECORD_PUSH, RECORD_REFUSED,
                                   RECORD_POP,   RECORD_FREE,     RECORD_TAKEN, RECORD_FREE};
  static const uint64_t times[] = {10, 20, 30, 40, 50, 55, 60, 70, 80};
  for (size_t i = 0; i < 9; i++) {
    ck_assert_uint_eq(record.events[i].kind, kinds[i]);
    ck_assert_uint_eq(record.events[i].time_ns, times[i]);
  }
  const struct record_event *events = record.events;
  ck_assert_uint_eq(events[0].size, 1 << 20);
  ck_assert_uint_eq(events[0].device, 3);
  ck_assert_uint_eq(events[1].address, 0x7f0000001000);
  ck_assert_uint_eq(events[1].size, 1000);
  ck_assert_uint_eq(events[1].serial, 0);
  ck_assert_uint_eq(events[1].context, 1);
  ck_assert_uint_eq(record.streams[events[1].stream - 1], 0xabc0);
  ck_assert_str_eq(record.texts[events[1].tag], "weights");
  ck_assert_str_eq(record.sites[events[1].site].name, "work+0x10");
  ck_assert_str_eq(record.threads[events[1].thread], "main");
  ck_assert_str_eq(record.texts[events[2].text], "epoch 3");
  ck_assert_uint_eq(events[4].size, UINT64_MAX);
  ck_assert_uint_eq(events[4].address, 0);
  ck_assert_uint_eq(events[4].stream, 0);
  ck_assert_uint_eq(record.sites[events[4].site].offset, 5);
  ck_assert_uint_eq(events[6].serial, 0); /* it ends an allocation by another thread */
  ck_assert_uint_eq(events[6].size, 1000);
  ck_assert_uint_eq(events[6].device, 3);
  ck_assert_str_eq(record.threads[events[6].thread], "loader");
  ck_assert_uint_eq(events[7].size, (1 << 20) - (1 << 19));
  ck_assert_uint_eq(events[8].serial, RECORD_NO_SERIAL);
  record_free(&record);
}
END_TEST

START_TEST(more_events_than_are_wanted_are_refused) {
  write_all_kinds(method(_i));
  ck_assert(!record_read(&record, path, 8));
  record_free(&record);
  ck_assert(record_read(&record, path, 9));
  ck_assert_uint_eq(record.event_count, 9);
  record_free(&record);
}
END_TEST

/* Two blocks were live.  The allocation of one was under way, so its event follows. */
START_TEST(what_was_live_before_is_one_allocation) {
  struct record_file file;
  struct record_item live = {.kind = RECORD_LIVE, .ticks = 10, .address = 0x1000, .size = 16};
  ck_assert(writer_open(&file, path, method(_i)));
  uint32_t before = record_file_thread(&file, "before"), one = record_file_thread(&file, "one");
  live.site = record_file_site(&file, "", 0, "not known");
  uint32_t site = record_file_site(&file, "prog", 1, "a");
  (void)record_file_context(&file, 1, 0);
  record_file_event(&file, before, &live);
  live.address = 0x2000;
  record_file_event(&file, before, &live);
  writer_allocate(&file, one, 20, 0x1000, 15, site);
  writer_free(&file, one, 30, 0x1000);
  writer_free(&file, one, 40, 0x2000);
  writer_allocate(&file, one, 50, 0x2000, 8, site);
  writer_close(&file, 1000);
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  static const uint32_t kinds[] = {RECORD_ALLOCATE, RECORD_ALLOCATE, RECORD_FREE, RECORD_FREE, RECORD_ALLOCATE};
  static const uint64_t times[] = {10, 10, 30, 40, 50}, sizes[] = {15, 16, 15, 16, 8}, serials[] = {0, 1, 0, 1, 2};
  ck_assert_uint_eq(record.event_count, 5);
  for (size_t i = 0; i < 5; i++) {
    const struct record_event *event = &record.events[i];
    ck_assert_uint_eq(event->kind, kinds[i]);
    ck_assert_uint_eq(event->time_ns, times[i]);
    ck_assert_uint_eq(event->size, sizes[i]);
    ck_assert_uint_eq(event->serial, serials[i]);
    ck_assert_int_eq(event->before, i == 1);
  }
  ck_assert_uint_eq(record.events[0].site, site);
  ck_assert_uint_eq(record.live_before, 1);
  record_free(&record);
}
END_TEST

/* Begins a file with a context, a site, and one thread or two.  Returns the site. */
static uint32_t file_begin(struct record_file *file, int i, uint32_t *one, uint32_t *two) {
  ck_assert(writer_open(file, path, method(i)));
  *one = record_file_thread(file, "one");
  if (two != NULL)
    *two = record_file_thread(file, "two");
  uint32_t site = record_file_site(file, "prog", 1, "a");
  (void)record_file_context(file, 1, 0);
  return site;
}

/* A thread frees, and another one gets the address at once.  The allocation comes first in the file. */
START_TEST(a_free_finds_its_allocation_by_time) {
  struct record_file file;
  uint32_t one, two, site = file_begin(&file, _i, &one, &two);
  for (uint64_t i = 1; i < 1000; i++)
    writer_allocate(&file, two, 100 * i, 0x1000, i, site);
  for (uint64_t i = 0; i < 999; i++) {
    if (i == 0)
      writer_allocate(&file, one, 1, 0x1000, 0, site);
    writer_free(&file, one, 100 * i + 99, 0x1000);
  }
  writer_close(&file, 1000000);
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  ck_assert_uint_eq(record.event_count, 1999);
  for (size_t i = 0; i < 1999; i++) {
    ck_assert_uint_eq(record.events[i].kind, i % 2 == 0 ? RECORD_ALLOCATE : RECORD_FREE);
    ck_assert_uint_eq(record.events[i].serial, i / 2);
    ck_assert_uint_eq(record.events[i].size, i / 2);
  }
  record_free(&record);
}
END_TEST

/* The clock of a free was read a little early.  Of another block, the record has the free alone. */
START_TEST(an_early_free_ends_its_allocation) {
  struct record_file file;
  uint32_t one, two, site = file_begin(&file, _i, &one, &two);
  writer_allocate(&file, one, 1000, 0x1000, 8, site);
  writer_free(&file, two, 900, 0x1000);
  writer_allocate(&file, one, 1100, 0x1000, 9, site);
  writer_free(&file, two, 1200, 0x1000);
  writer_free(&file, two, 2000, 0x2000);
  writer_allocate(&file, one, 2000000, 0x2000, 10, site);
  writer_close(&file, 10000000);
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  static const uint32_t kinds[] = {RECORD_ALLOCATE, RECORD_FREE, RECORD_ALLOCATE,
                                   RECORD_FREE,     RECORD_FREE, RECORD_ALLOCATE};
  static const uint64_t times[] = {900, 1000, 1100, 1200, 2000, 2000000};
  static const uint64_t serials[] = {0, 0, 1, 1, RECORD_NO_SERIAL, 2};
  ck_assert_uint_eq(record.event_count, 6);
  for (size_t i = 0; i < 6; i++) {
    ck_assert_uint_eq(record.events[i].kind, kinds[i]);
    ck_assert_uint_eq(record.events[i].time_ns, times[i]);
    ck_assert_uint_eq(record.events[i].serial, serials[i]);
  }
  record_free(&record);
}
END_TEST

/* The events of a thread that only frees may come to the file before those of any thread that allocates. */
START_TEST(a_free_may_come_first_in_the_file) {
  struct record_file file;
  ck_assert(writer_open(&file, path, method(_i)));
  uint32_t one = record_file_thread(&file, "one");
  writer_free(&file, one, 2000, 0x1000);
  uint32_t two = record_file_thread(&file, "two"), site = record_file_site(&file, "prog", 1, "a");
  (void)record_file_context(&file, 1, 5);
  writer_allocate(&file, two, 1000, 0x1000, 8, site);
  writer_close(&file, 10000);
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  ck_assert_uint_eq(record.event_count, 2);
  ck_assert_uint_eq(record.events[1].kind, RECORD_FREE);
  ck_assert_uint_eq(record.events[1].serial, 0);
  ck_assert_uint_eq(record.events[1].device, 5);
  record_free(&record);
}
END_TEST

START_TEST(memory_that_ends_ends_its_blocks) {
  struct record_file file;
  uint32_t thread, site = file_begin(&file, _i, &thread, NULL);
  for (uint64_t i = 0; i < 5000; i++)
    writer_allocate(&file, thread, i, 0x1000 * i, 8, site);
  record_file_gone(&file, thread, 6000, 0x1000 * 1000, 0x1000 * 3000);
  for (uint64_t i = 0; i < 1000; i++)
    writer_free(&file, thread, 7000 + i, 0x1000 * i);
  writer_allocate(&file, thread, 9000, 0x1000 * 4500, 16, site); /* the block here before must have ended */
  writer_close(&file, 10000);
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  size_t frees = 0, of_gone = 0;
  static bool ended[5001];
  for (size_t i = 0; i < record.event_count; i++)
    if (record.events[i].kind == RECORD_FREE) {
      ck_assert_uint_lt(record.events[i].serial, 5000);
      ck_assert(!ended[record.events[i].serial]);
      ended[record.events[i].serial] = true;
      frees++;
      of_gone += record.events[i].time_ns == 6000;
    }
  ck_assert_uint_eq(of_gone, 3000);
  ck_assert_uint_eq(frees, 3000 + 1000 + 1);
  ck_assert(ended[4500] && !ended[4499] && ended[1000] && ended[3999] && !ended[4000]);
  record_free(&record);
}
END_TEST

static size_t file_load(unsigned char *bytes, size_t most) {
  FILE *file = fopen(path, "rb");
  ck_assert_ptr_nonnull(file);
  size_t count = fread(bytes, 1, most, file);
  fclose(file);
  return count;
}

static bool other_read(const unsigned char *bytes, size_t count) {
  FILE *file = fopen(other_path, "wb");
  ck_assert_ptr_nonnull(file);
  ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
  ck_assert_int_eq(fclose(file), 0);
  return record_read(&record, other_path, RECORD_EVENTS_MOST);
}

static unsigned char bytes[4096];

/* The file has two frames.  A reader keeps what is in whole frames. */
/* A server with many live blocks makes a pool for each request.  To look at each block at each end takes a minute. */
START_TEST(the_end_of_a_small_pool_does_not_take_longer_where_many_blocks_live) {
  enum { LIVE = 200000, ENDS = 20000 };
  const uint64_t far = (uint64_t)1 << 40;
  struct record_file file;
  ck_assert(writer_open(&file, path, zstd_load()));
  uint32_t thread = record_file_thread(&file, "main"), site = record_file_site(&file, "prog", 1, "work");
  (void)record_file_context(&file, 1, 0);
  for (uint64_t i = 0; i < LIVE; i++)
    writer_allocate(&file, thread, i, i << 12, 600, site);
  for (uint64_t i = 0; i < ENDS; i++) {
    writer_allocate(&file, thread, LIVE + 2 * i, far + (i % 7 << 12), 600, site);
    record_file_gone(&file, thread, LIVE + 2 * i + 1, far, 1 << 20);
  }
  writer_close(&file, 1000000);
  clock_t begin = clock();
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  ck_assert_int_lt((clock() - begin) / CLOCKS_PER_SEC, 10);
  ck_assert_uint_eq(record.event_count, LIVE + 2 * ENDS);
  for (size_t i = LIVE; i < record.event_count; i += 2)
    ck_assert(record.events[i + 1].kind == RECORD_FREE && record.events[i + 1].serial == record.events[i].serial);
  record_free(&record);
}
END_TEST

START_TEST(a_cut_file_is_read_up_to_the_cut) {
  struct record_file file;
  uint32_t thread, site = file_begin(&file, _i, &thread, NULL);
  writer_allocate(&file, thread, 1, 0x1000, 8, site);
  record_file_flush(&file);
  writer_free(&file, thread, 2, 0x1000);
  writer_close(&file, 10);
  size_t count = file_load(bytes, sizeof bytes), events_before = 0;
  for (size_t cut = 0; cut < count; cut++) {
    bool good = other_read(bytes, cut);
    ck_assert(good == (cut > 0));
    ck_assert(!good || record.cut);
    ck_assert_uint_ge(record.event_count, events_before);
    events_before = record.event_count;
    record_free(&record);
  }
  ck_assert_uint_eq(events_before, 1);
  ck_assert(other_read(bytes, count) && !record.cut && record.event_count == 2);
  record_free(&record);
}
END_TEST

/* The checksum is wrong.  A changed length may also make the rest of the file look cut. */
START_TEST(a_damaged_file_is_refused) {
  write_all_kinds(method(_i));
  size_t count = file_load(bytes, sizeof bytes);
  for (size_t at = 0; at < count; at++)
    for (unsigned bit = 0; bit < 8; bit += 7) {
      bytes[at] ^= 1u << bit;
      ck_assert(!other_read(bytes, count) || (record.cut && record.event_count == 0));
      record_free(&record);
      bytes[at] ^= 1u << bit;
    }
}
END_TEST

/* With a right checksum, items may be anything.  The reader must not crash. */
START_TEST(random_items_do_no_harm) {
  unsigned seed = 1;
  write_all_kinds(NULL);
  size_t count = file_load(bytes, sizeof bytes), refused = 0;
  static unsigned char damaged[sizeof bytes];
  for (int round = 0; round < 2000; round++) {
    memcpy(damaged, bytes, count);
    size_t first_bytes = RECORD_HEAD_BYTES + damaged[RECORD_MAGIC_BYTES + 4]; /* the program's own frame */
    unsigned char *head = damaged + RECORD_MAGIC_BYTES + first_bytes, *content = head + RECORD_HEAD_BYTES;
    size_t content_bytes = count - (size_t)(content - damaged);
    for (int i = rand_r(&seed) % 4; i >= 0; i--)
      content[(size_t)rand_r(&seed) % content_bytes] = (unsigned char)rand_r(&seed);
    uint32_t sum = record_sum(head, content, content_bytes);
    for (int i = 0; i < 4; i++)
      head[12 + i] = (unsigned char)(sum >> 8 * i);
    refused += !other_read(damaged, count);
    record_free(&record);
  }
  ck_assert_uint_gt(refused, 200);
  ck_assert_uint_lt(refused, 2000);
}
END_TEST

START_TEST(long_records_and_texts) {
  static char text[10000];
  struct record_file file;
  enum { EVENTS = 300000 };
  memset(text, 'x', sizeof text - 1);
  ck_assert(writer_open(&file, path, method(_i)));
  uint32_t thread = record_file_thread(&file, text), site = record_file_site(&file, text, 1, text);
  (void)record_file_context(&file, 1, 0);
  for (uint64_t i = 0; i < EVENTS; i++)
    writer_allocate(&file, thread, i, i << 16, i * i, site);
  for (uint64_t i = 0; i < 100; i++)
    (void)record_file_text(&file, text);
  writer_close(&file, EVENTS);
  ck_assert(record_read(&record, path, RECORD_EVENTS_MOST));
  ck_assert_uint_eq(record.event_count, EVENTS);
  ck_assert_uint_eq(record.allocation_count, EVENTS);
  for (uint64_t i = 0; i < EVENTS; i++)
    ck_assert(record.events[i].address == i << 16 && record.events[i].size == i * i && record.events[i].time_ns == i);
  ck_assert_uint_eq(strlen(record.texts[100]), RECORD_TEXT_MOST);
  record_free(&record);
}
END_TEST

START_TEST(what_is_no_record_is_refused) {
  static const char *const texts[] = {"", "hello, world", "mamrec\002\n", "mamrec\001\nno frame begins here"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    ck_assert(!other_read((const unsigned char *)texts[i], strlen(texts[i])));
    record_free(&record);
  }
  ck_assert(!record_read(&record, "/nowhere/at all", RECORD_EVENTS_MOST));
  record_free(&record);
  ck_assert(!record_read(&record, "/", RECORD_EVENTS_MOST));
  record_free(&record);
}
END_TEST

START_TEST(a_full_disk_is_an_error_of_the_file) {
  struct record_file file;
  ck_assert(writer_open(&file, "/dev/full", method(_i)));
  ck_assert_int_eq(file.error, ENOSPC);
  (void)record_file_text(&file, "text");
  writer_close(&file, 1);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("record_file");
  TCase *cases = tcase_create("file");
  int methods = zstd_load() != NULL ? 2 : 1;
  tcase_set_timeout(cases, 60); /* thousands of small files, on a disk that others use */
  tcase_add_checked_fixture(cases, files_name, files_remove);
  tcase_add_loop_test(cases, what_is_written_is_read, 0, methods);
  tcase_add_loop_test(cases, more_events_than_are_wanted_are_refused, 0, methods);
  tcase_add_loop_test(cases, what_was_live_before_is_one_allocation, 0, methods);
  tcase_add_loop_test(cases, a_free_finds_its_allocation_by_time, 0, methods);
  tcase_add_loop_test(cases, an_early_free_ends_its_allocation, 0, methods);
  tcase_add_loop_test(cases, a_free_may_come_first_in_the_file, 0, methods);
  tcase_add_loop_test(cases, memory_that_ends_ends_its_blocks, 0, methods);
  tcase_add_test(cases, the_end_of_a_small_pool_does_not_take_longer_where_many_blocks_live);
  tcase_add_loop_test(cases, a_cut_file_is_read_up_to_the_cut, 0, methods);
  tcase_add_loop_test(cases, a_damaged_file_is_refused, 0, methods);
  tcase_add_test(cases, random_items_do_no_harm);
  tcase_add_loop_test(cases, long_records_and_texts, 0, methods);
  tcase_add_test(cases, what_is_no_record_is_refused);
  tcase_add_loop_test(cases, a_full_disk_is_an_error_of_the_file, 0, methods);
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
