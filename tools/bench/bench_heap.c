/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * heap: what an allocation in a kernel costs, beside the floor, CUDA's own and two list-based allocators.
 *
 * This file has the command line and the run through all cells, and prints and writes the results.
 */
#include "bench_heap.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_clock.h"
#include "bench_heap_guard.h"
#include "bench_progress.h"
#include "bench_report.h"

enum { exit_usage = 2, requests_most = (1 << 24) + (1 << 20) };

static const struct heap_test *const tests[] = {
    &heap_uniform, &heap_mixed,   &heap_warp,   &heap_large,  &heap_churn,   &heap_share, &heap_small,
    &heap_latency, &heap_failing, &heap_access, &heap_create, &heap_threads, &heap_fill,  &heap_spread,
};

enum { test_count = sizeof tests / sizeof tests[0] };

struct heap_bench {
  const struct heap_allocator *allocators[heap_allocators_most];
  size_t allocator_count;
  bool chosen[test_count];
  bool quick;
  const char *csv_directory; /* NULL: none */
  unsigned limit_s;
  size_t guarded_first; /* the first cell of a process that runs a guarded allocator */
  bool is_guarded;
  struct machine machine;
  struct heap_gpu gpu;
  struct heap_case cases[heap_cases_most]; /* of the present test */
  size_t case_count;
  struct heap_result results[test_count][heap_cases_most][heap_allocators_most];
};

/* ---- The command line -------------------------------------------------------------------------------------------- */

static const char usage_text[] =
    "Usage: mam-bench heap [OPTION]...\n"
    "Measures allocations in kernels (mam_malloc, mam_free), beside the floor (kernels that only store and read the\n"
    "pointers), the floor with one atomic a warp, CUDA's own malloc and free, and two allocators with lists, one for\n"
    "all and one a multiprocessor.  Every block is checked: aligned, inside the heap, no overlap.\n"
    "\n"
    "  --test NAME,...        the tests to run; the default is all\n"
    "  --allocator NAME,...   of the allocators only these: MAM, floor, one-atomic, CUDA, mp-lists, size-list\n"
    "  --csv DIR              write DIR/heap-NAME.csv for each test, and DIR/heap-machine.csv\n"
    "  --quick                fewer cases and repetitions\n"
    "  --limit S              CUDA's own has not answered after so many seconds: it hangs (default 10)\n"
    "  --help                 print this and exit\n"
    "\n"
    "Tests:\n";

static const char usage_end_text[] =
    "\n"
    "Times are the GPU's, from before a kernel's launch to its end, medians; cycles are those of a multiprocessor.\n"
    "\n"
    "Exit status: 0 success; 1 a call failed, a block was wrong, or there is no GPU; 2 bad usage.\n";

static _Noreturn void usage_print(void) {
  (void)fputs(usage_text, stdout);
  for (size_t i = 0; i < test_count; i++)
    (void)printf("  %-10s  %s\n", tests[i]->name, tests[i]->help);
  (void)fputs(usage_end_text, stdout);
  exit(report_status(true));
}

static _Noreturn void usage_refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: heap: %s: %s\nTry 'mam-bench heap --help'.\n", what, text);
  exit(exit_usage);
}

static bool name_is(const char *name, const char *word, size_t length) {
  return strlen(name) == length && strncmp(name, word, length) == 0;
}

static void tests_choose(struct heap_bench *bench, const char *list) {
  for (const char *word = list; *word != '\0'; word += *word == ',') {
    size_t length = strcspn(word, ","), i = 0;
    while (i < test_count && !name_is(tests[i]->name, word, length))
      i++;
    if (i == test_count)
      usage_refuse("no such test", word);
    bench->chosen[i] = true;
    word += length;
  }
}

/* Keeps those allocators of the list that are named, in their order. */
static void allocators_choose(struct heap_bench *bench, const char *list) {
  size_t kept = 0;
  for (size_t i = 0; i < bench->allocator_count; i++) {
    const char *word = list;
    while (*word != '\0' && !name_is(bench->allocators[i]->name, word, strcspn(word, ","))) {
      word += strcspn(word, ",");
      word += *word == ',';
    }
    if (*word != '\0')
      bench->allocators[kept++] = bench->allocators[i];
  }
  bench->allocator_count = kept;
  if (kept == 0)
    usage_refuse("none of these allocators is built in", list);
}

static unsigned limit_parse(const char *text) {
  char *end;
  unsigned long value = strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || value == 0 || value > 3600)
    usage_refuse("--limit wants seconds, 1 to 3600, not", text);
  return (unsigned)value;
}

static void arguments_parse(struct heap_bench *bench, int argc, char **argv) {
  static const struct option known[] = {
      {"test", required_argument, NULL, 't'},  {"allocator", required_argument, NULL, 'a'},
      {"csv", required_argument, NULL, 'c'},   {"quick", no_argument, NULL, 'q'},
      {"limit", required_argument, NULL, 'l'}, {"guarded", required_argument, NULL, 'g'}, /* ours alone */
      {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0},
  };
  bool any = false;
  for (int key; (key = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (key == 't')
      tests_choose(bench, optarg);
    else if (key == 'a')
      allocators_choose(bench, optarg);
    else if (key == 'c')
      bench->csv_directory = optarg;
    else if (key == 'q')
      bench->quick = true;
    else if (key == 'l')
      bench->limit_s = limit_parse(optarg);
    else if (key == 'g') {
      bench->is_guarded = true;
      bench->guarded_first = strtoul(optarg, NULL, 10);
    } else if (key == 'h')
      usage_print();
    else { /* getopt_long has said what is wrong */
      (void)fputs("Try 'mam-bench heap --help'.\n", stderr);
      exit(exit_usage);
    }
  }
  if (optind < argc)
    usage_refuse("one word too many", argv[optind]);
  for (size_t i = 0; i < test_count; i++)
    any = any || bench->chosen[i];
  for (size_t i = 0; i < test_count && !any; i++)
    bench->chosen[i] = true;
}

/* ---- Cells ------------------------------------------------------------------------------------------------------- */

/* Makes the heap of the case, or empties it: as if nothing had been allocated before. */
static bool cell_prepare(const struct heap_bench *bench, struct heap *heap, const struct heap_case *what,
                         const struct heap_allocator *allocator) {
  size_t bytes = allocator->fixed ? heap_roomy_bytes : what->heap_bytes;
  bool is_used = heap->allocator != NULL;
  return heap_want(heap, allocator, &bench->gpu, bytes, what->superblocks) &&
         (!is_used || allocator->reset == NULL || allocator->reset(heap));
}

static void cell_run(struct heap_bench *bench, struct heap *heap, const struct heap_test *test,
                     const struct heap_case *what, const struct heap_allocator *allocator, struct heap_result *result) {
  const struct heap_run run = {.gpu = &bench->gpu, .heap = heap, .what = what, .quick = bench->quick};
  result->status = heap_good;
  if (!cell_prepare(bench, heap, what, allocator) || !test->run(&run, result)) {
    result->status = heap_failed;
    (void)fprintf(stderr, "mam-bench: heap: %s, %s: %s failed\n", test->name, what->label, allocator->name);
    heap_end(heap); /* the next cell gets a new heap */
  }
}

static size_t test_cases(struct heap_bench *bench, const struct heap_test *test) {
  memset(bench->cases, 0, sizeof bench->cases);
  bench->case_count = test->cases(bench->quick, bench->cases);
  return bench->case_count;
}

/* A cell of a guarded allocator, by its place among all of them. */
struct guarded_cell {
  size_t test, what, allocator;
};

/* Skips so many cells at most, in the order in which they run: guarded ones or all.  Returns how many it skipped.
 * *cell becomes the next one, if there is one. */
static size_t cells_pass(struct heap_bench *bench, bool guarded, size_t most, struct guarded_cell *cell) {
  size_t passed = 0;
  for (size_t t = 0; t < test_count; t++) {
    if (!bench->chosen[t])
      continue;
    test_cases(bench, tests[t]);
    for (size_t c = 0; c < bench->case_count; c++)
      for (size_t a = 0; a < bench->allocator_count; a++) {
        const struct heap_allocator *allocator = bench->allocators[a];
        if ((guarded && !allocator->guarded) || !tests[t]->fits(allocator, &bench->cases[c]))
          continue;
        *cell = (struct guarded_cell){t, c, a};
        if (passed == most)
          return passed;
        passed++;
      }
  }
  cell->allocator = bench->allocator_count; /* none */
  return passed;
}

static bool guarded_cell_find(struct heap_bench *bench, size_t place, struct guarded_cell *cell) {
  (void)cells_pass(bench, true, place, cell);
  return cell->allocator < bench->allocator_count;
}

/* The number of cells that this run has. */
static size_t cells_count(struct heap_bench *bench) {
  struct guarded_cell cell;
  return cells_pass(bench, false, SIZE_MAX, &cell);
}

static void cell_progress(const struct heap_test *test, const struct heap_allocator *allocator) {
  progress_test(test->name, 1);
  progress_part(allocator->name, 0, 1);
}

/* ---- The process of a guarded allocator, and the one that watches it --------------------------------------------- */

static bool guarded_run(struct heap_bench *bench) {
  struct guarded_cell cell;
  struct heap heap = {0};
  for (size_t place = bench->guarded_first; guarded_cell_find(bench, place, &cell); place++) {
    struct heap_result result = {.status = heap_good};
    guard_begin_send();
    cell_run(bench, &heap, tests[cell.test], &bench->cases[cell.what], bench->allocators[cell.allocator], &result);
    guard_result_send(&result);
    heap_result_free(&result);
  }
  heap_end(&heap);
  return true;
}

/* Runs the guarded cells in other processes.  A process that is silent for too long is ended, and the next cell begins
 * in a new one.  If two processes in a row die before their first answer, it stops. */
static void guarded_collect(struct heap_bench *bench, char **argv) {
  struct guarded_cell cell;
  struct guard guard = {.limit_s = bench->limit_s};
  unsigned lost = 0;
  for (size_t place = 0; lost < 5 && guarded_cell_find(bench, place, &cell); place++) {
    struct heap_result *result = &bench->results[cell.test][cell.what][cell.allocator];
    cell_progress(tests[cell.test], bench->allocators[cell.allocator]);
    if (!guard_running(&guard) && !guard_start(&guard, argv, place))
      return;
    result->status = guard_result_receive(&guard, result);
    lost = result->status == heap_hung ? lost + 1 : 0;
  }
  guard_end(&guard);
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

static bool machine_csv(const struct heap_bench *bench) {
  char device[sizeof bench->machine.device], date[32] = "";
  struct report_csv csv;
  struct tm utc;
  time_t now = time(NULL);
  if (gmtime_r(&now, &utc) != NULL)
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  (void)snprintf(device, sizeof device, "%s", bench->machine.device);
  for (char *comma = strchr(device, ','); comma != NULL; comma = strchr(comma, ','))
    *comma = ' ';
  if (!report_csv_open_file(&csv, bench->csv_directory, "heap-machine", "device,driver_version,date,clock_mhz"))
    return false;
  report_csv_row(&csv, "%s,%d,%s,%.0f", device, bench->machine.driver_version, date, bench->gpu.clock_mhz);
  return report_csv_close(&csv);
}

static const char *const status_names[] = {"good", "refused", "hung", "failed", "not-run"};

static size_t metric_count(const struct heap_test *test) {
  size_t count = 0;
  while (count < heap_metrics_most && test->metrics[count] != NULL)
    count++;
  return count;
}

static void cell_csv(const struct report_csv *csv, const struct heap_test *test, const struct heap_case *what,
                     const char *allocator, const struct heap_result *result) {
  char text[160];
  static const struct heap_row none = {.step = 0};
  double blank[heap_metrics_most];
  for (size_t i = 0; i < heap_metrics_most; i++)
    blank[i] = (double)NAN;
  for (size_t i = 0; i == 0 || i < result->row_count; i++) {
    const struct heap_row *row = result->row_count == 0 ? &none : &result->rows[i];
    (void)snprintf(text, sizeof text, "%s,%u,%u,%zu,%u,%zu,%s,%.0f", allocator, what->low, what->high, what->requests,
                   1u << what->every_shift, what->heap_bytes, status_names[result->status], row->step);
    report_csv_numbers(csv, text, result->row_count == 0 ? blank : row->values, metric_count(test));
  }
}

static bool test_csv(const struct heap_bench *bench, size_t t) {
  const struct heap_test *test = tests[t];
  char name[64], header[512];
  struct report_csv csv;
  int length = snprintf(header, sizeof header, "allocator,low_bytes,high_bytes,requests,every,heap_bytes,status,step");
  for (size_t i = 0; i < metric_count(test); i++)
    length += snprintf(header + length, sizeof header - (size_t)length, ",%s", test->metrics[i]);
  (void)snprintf(name, sizeof name, "heap-%s", test->name);
  if (!report_csv_open_file(&csv, bench->csv_directory, name, header))
    return false;
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t c = 0; c < bench->case_count; c++)
      if (bench->results[t][c][a].status != heap_not_run)
        cell_csv(&csv, test, &bench->cases[c], bench->allocators[a]->name, &bench->results[t][c][a]);
  return report_csv_close(&csv);
}

/* The value in the last row of a cell; NAN if it has none. */
static double cell_value(const struct heap_result *result, unsigned metric) {
  return result->row_count == 0 ? (double)NAN : result->rows[result->row_count - 1].values[metric];
}

static void table_print(const struct heap_bench *bench, size_t t, const struct heap_table *table) {
  static struct report_row rows[heap_cases_most];
  struct report_column columns[heap_allocators_most];
  char title[160];
  for (size_t a = 0; a < bench->allocator_count; a++)
    columns[a].name = bench->allocators[a]->name;
  for (size_t c = 0; c < bench->case_count; c++) {
    (void)snprintf(rows[c].label, sizeof rows[c].label, "%s", bench->cases[c].label);
    for (size_t a = 0; a < bench->allocator_count; a++)
      rows[c].values[a] = cell_value(&bench->results[t][c][a], table->metric);
  }
  (void)snprintf(title, sizeof title, "%s: %s", tests[t]->name, table->title);
  const struct report_table printed = {.title = title,
                                       .row_title = "case",
                                       .higher_is_better = table->higher_is_better,
                                       .rows = rows,
                                       .row_count = bench->case_count};
  report_columns_print(&printed, columns, bench->allocator_count);
}

/* Prints what a table cannot show: cells without a number, and cells where requests were refused. */
static void exceptions_print(const struct heap_bench *bench, size_t t) {
  static const char *const texts[] = {NULL, "refused requests", "HANG: no answer in time", "failed", NULL};
  for (size_t a = 0; a < bench->allocator_count; a++)
    for (size_t c = 0; c < bench->case_count; c++) {
      const char *text = texts[bench->results[t][c][a].status];
      if (text != NULL)
        (void)printf("%s, %s: %s\n", bench->allocators[a]->name, bench->cases[c].label, text);
    }
}

static bool test_run(struct heap_bench *bench, size_t t, struct heap heaps[heap_allocators_most]) {
  const struct heap_test *test = tests[t];
  bool good = true;
  test_cases(bench, test);
  for (size_t c = 0; c < bench->case_count; c++)
    for (size_t a = 0; a < bench->allocator_count; a++) {
      struct heap_result *result = &bench->results[t][c][a];
      if (!bench->allocators[a]->guarded && test->fits(bench->allocators[a], &bench->cases[c])) {
        cell_progress(test, bench->allocators[a]);
        cell_run(bench, &heaps[a], test, &bench->cases[c], bench->allocators[a], result);
      }
      good = good && result->status != heap_failed;
    }
  progress_clear();
  for (size_t i = 0; i < heap_tables_most && test->tables[i].title != NULL; i++)
    table_print(bench, t, &test->tables[i]);
  exceptions_print(bench, t);
  (void)fflush(stdout);
  return test_csv(bench, t) && good;
}

static bool tests_run(struct heap_bench *bench) {
  struct heap heaps[heap_allocators_most] = {{0}};
  bool good = machine_csv(bench);
  for (size_t t = 0; t < test_count; t++)
    if (bench->chosen[t] && !test_run(bench, t, heaps)) {
      (void)fprintf(stderr, "mam-bench: heap: the test %s failed\n", tests[t]->name);
      good = false;
    }
  for (size_t a = 0; a < heap_allocators_most; a++)
    heap_end(&heaps[a]);
  return good;
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static bool machine_ready(struct heap_bench *bench) {
  if (!machine_probe(&bench->machine)) {
    (void)fprintf(stderr, "mam-bench: heap: no GPU here: %s\n", bench->machine.reason);
    return false;
  }
  return gpu_open(&bench->gpu, &bench->machine, requests_most);
}

int bench_heap(int argc, char **argv) {
  static struct heap_bench bench = {.limit_s = 10};
  bench.allocator_count = heap_allocators_get(bench.allocators);
  for (size_t i = 0; i < test_count * heap_cases_most * heap_allocators_most; i++)
    (&bench.results[0][0][0])[i].status = heap_not_run;
  arguments_parse(&bench, argc, argv);
  if (heap_image_count == 0) {
    (void)fputs("mam-bench: heap: this mam-bench was built without a CUDA compiler (configure --with-cuda)\n", stderr);
    return EXIT_FAILURE;
  }
  bool good = machine_ready(&bench);
  if (good && bench.is_guarded)
    good = guarded_run(&bench);
  else if (good) {
    (void)printf("Measuring kernels on %s.\n", bench.machine.device);
    (void)fflush(stdout);
    progress_begin((double)cells_count(&bench));
    guarded_collect(&bench, argv);
    good = tests_run(&bench);
  }
  gpu_close(&bench.gpu);
  return report_status(good);
}
