/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void report_bytes_text(char text[report_label_size], size_t bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  double value = (double)bytes;
  while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
    value /= 1024;
    unit++;
  }
  int digits = value - floor(value) > 0 ? 1 : 0;
  (void)snprintf(text, report_label_size, "%.*f %s", digits, value, units[unit]);
}

void report_count_text(char text[report_label_size], size_t count) {
  size_t power = 1;
  unsigned exponent = 0;
  for (; power < count && power <= SIZE_MAX / 10; power *= 10)
    exponent++;
  if (power == count && exponent > 2)
    (void)snprintf(text, report_label_size, "10^%u", exponent);
  else
    (void)snprintf(text, report_label_size, "%zu", count);
}

enum { label_width = 10, label_width_most = 18, value_width = 13, name_width = 18, ratio_width = 8 };

static void value_print(double value, int width) {
  if (isnan(value))
    (void)printf("%*s", width, "-");
  else
    (void)printf("%*.*f", width, value < 10 ? 2 : value < 1000 ? 1 : 0, value);
}

static void ratio_print(double ratio) {
  char text[report_label_size] = "";
  if (isfinite(ratio) && ratio > 0) /* 0 has no ratio to it */
    (void)snprintf(text, sizeof text, "%.*fx", ratio < 1 ? 2 : ratio < 10 ? 1 : 0, ratio);
  (void)printf("%*s", ratio_width, text);
}

static void row_print(const struct report_table *table, const struct report_row *row, size_t count, int width) {
  (void)printf("%-*s", width, row->label);
  value_print(row->values[0], value_width);
  for (size_t i = 1; i < count; i++) {
    value_print(row->values[i], name_width);
    ratio_print(table->higher_is_better ? row->values[0] / row->values[i] : row->values[i] / row->values[0]);
  }
  (void)putchar('\n');
}

static int label_width_of(const struct report_table *table) {
  for (size_t i = 0; i < table->row_count; i++)
    if (strlen(table->rows[i].label) >= label_width)
      return label_width_most;
  return label_width;
}

void report_columns_print(const struct report_table *table, const struct report_column *columns, size_t count) {
  int width = label_width_of(table);
  (void)printf("\n%s\n%-*s%*s", table->title, width, table->row_title, value_width, columns[0].name);
  for (size_t i = 1; i < count; i++)
    (void)printf("%*s%*s", name_width, columns[i].name, ratio_width, "ratio");
  (void)putchar('\n');
  for (size_t i = 0; i < table->row_count; i++)
    row_print(table, &table->rows[i], count, width);
  (void)fflush(stdout);
}

void report_table_print(const struct report_table *table, const struct allocator *const *allocators,
                        size_t allocator_count) {
  struct report_column columns[allocators_most];
  for (size_t i = 0; i < allocator_count; i++)
    columns[i].name = allocators[i]->name;
  report_columns_print(table, columns, allocator_count);
}

void report_left_out_print(const struct report_table *table, size_t first, size_t capacity_bytes) {
  char text[report_label_size];
  if (first == table->row_count)
    return;
  report_bytes_text(text, capacity_bytes);
  (void)printf("Not measured: %s and more, for which a pool of %s is too small.\n", table->rows[first].label, text);
}

void report_remarks_print(const struct allocator *const *allocators, size_t allocator_count) {
  (void)printf("\nRatio: how many times better %s is.\n", allocators[0]->name);
  for (size_t i = 0; i < allocator_count; i++)
    if (allocators[i]->remark != NULL)
      (void)printf("%s.\n", allocators[i]->remark);
}

static bool csv_refuse(const char *path, const char *what) {
  (void)fprintf(stderr, "mam-bench: cannot %s %s: %s\n", what, path, strerror(errno));
  return false;
}

bool report_csv_open(struct report_csv *csv, const char *directory, const char *name, const char *header) {
  char file[128];
  (void)snprintf(file, sizeof file, "host-%s", name);
  return report_csv_open_file(csv, directory, file, header);
}

bool report_csv_open_file(struct report_csv *csv, const char *directory, const char *file, const char *header) {
  *csv = (struct report_csv){0};
  if (directory == NULL)
    return true;
  if (mkdir(directory, 0777) != 0 && errno != EEXIST)
    return csv_refuse(directory, "make the folder");
  int length = snprintf(csv->path, sizeof csv->path, "%s/%s.csv", directory, file);
  if (length < 0 || (size_t)length >= sizeof csv->path) {
    errno = ENAMETOOLONG;
    return csv_refuse(directory, "write to");
  }
  csv->file = fopen(csv->path, "w");
  if (csv->file == NULL)
    return csv_refuse(csv->path, "write");
  (void)fprintf(csv->file, "%s\n", header); /* report_csv_close reports a failed write */
  return true;
}

void report_csv_row(const struct report_csv *csv, const char *format, ...) {
  if (csv->file == NULL)
    return;
  va_list arguments;
  va_start(arguments, format);
  (void)vfprintf(csv->file, format, arguments);
  va_end(arguments);
  (void)fputc('\n', csv->file);
}

void report_csv_numbers(const struct report_csv *csv, const char *text, const double *numbers, size_t count) {
  if (csv->file == NULL)
    return;
  (void)fputs(text, csv->file);
  for (size_t i = 0; i < count; i++)
    if (isnan(numbers[i]))
      (void)fputc(',', csv->file);
    else
      (void)fprintf(csv->file, ",%.3f", numbers[i]);
  (void)fputc('\n', csv->file);
}

bool report_csv_close(struct report_csv *csv) {
  if (csv->file == NULL)
    return true;
  bool written = ferror(csv->file) == 0;
  written = fclose(csv->file) == 0 && written;
  csv->file = NULL;
  return written || csv_refuse(csv->path, "write");
}

int report_status(bool good) {
  bool flushed = fflush(stdout) == 0;
  if (flushed && ferror(stdout) == 0)
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
  (void)fprintf(stderr, "mam-bench: cannot write to standard output%s%s\n", flushed ? "" : ": ",
                flushed ? "" : strerror(errno));
  return EXIT_FAILURE;
}
