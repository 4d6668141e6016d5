/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Results for the reader: tables on stdout, CSV files, sizes in words.  It does not know how they were measured.
 */
#ifndef MAM_BENCH_REPORT_H
#define MAM_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "bench_allocators.h"

enum { report_label_size = 24, report_columns_most = 8 };

/* "4 KiB", "1 GiB": exact if bytes is a whole number of a unit, otherwise to a tenth. */
void report_bytes_text(char text[report_label_size], size_t bytes);

/* "10^6" for a power of ten, else the number. */
void report_count_text(char text[report_label_size], size_t count);

/* A row of a table: a label and a value for each allocator, NAN where there is none. */
struct report_row {
  char label[report_label_size];
  double values[report_columns_most];
};

struct report_column {
  const char *name;
};

struct report_table {
  const char *title, *row_title;
  bool higher_is_better;
  const struct report_row *rows;
  size_t row_count;
};

/* Prints the table.  Beside each baseline's value stands how many times better ours is. */
void report_table_print(const struct report_table *table, const struct allocator *const *allocators,
                        size_t allocator_count);

/* The same with any columns, of which the first is ours. */
void report_columns_print(const struct report_table *table, const struct report_column *columns, size_t count);

/* Says, if it is so, that the rows from this one on were left out because they need more memory than the pool has. */
void report_left_out_print(const struct report_table *table, size_t first, size_t capacity_bytes);

/* Prints the remarks on the allocators' figures. */
void report_remarks_print(const struct allocator *const *allocators, size_t allocator_count);

/* A CSV file.  If the directory is NULL, nothing is written, and all calls succeed. */
struct report_csv {
  FILE *file;
  char path[1024];
};

/* Makes the directory if it is missing, and begins DIRECTORY/host-NAME.csv with a header row.  False, with a message on
 * stderr, if that fails; so do the others. */
bool report_csv_open(struct report_csv *csv, const char *directory, const char *name, const char *header);
/* The same with DIRECTORY/FILE.csv. */
bool report_csv_open_file(struct report_csv *csv, const char *directory, const char *file, const char *header);
void report_csv_row(const struct report_csv *csv, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes a row: text columns, then numbers.  A NAN becomes an empty column. */
void report_csv_numbers(const struct report_csv *csv, const char *text, const double *numbers, size_t count);
bool report_csv_close(struct report_csv *csv);

/* The exit status of a command, whose output ends here.  If stdout did not take all, the command has failed, and a line
 * on stderr says so. */
int report_status(bool good);

#endif
