/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * warp: threads that each make a series of requests and free everything at the end, as the FDGMalloc paper measures
 * them (its figures 4, 5 and 6).  They use warp heaps, the same device heap block by block, CUDA's own malloc, and no
 * allocator at all.
 *
 * A cell is one kernel of one of these.  First the requests and the frees run as two kernels, and the blocks are
 * checked in between.  Then the whole is timed.
 */
#include "bench_warp.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_heap_allocators.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"
#include "kernels/series.h"
#include "mam/warp_types.h"

enum {
  exit_usage = 2,
  repetitions = 11,
  unmeasured = 4, /* runs before: a small kernel may run on several multiprocessors, each cold at first */
  competitors_most = 8,
  cells_most = 700,
  label_most = report_label_size,
  kib = 1024,
};

static const size_t requests_most = ((size_t)1 << 26) + 1024, heap_bytes = (size_t)8 << 30;
static const double long_us = 20000; /* then one run is enough */

/* One of those that serve the requests. */
struct competitor {
  const char *name, *image, *heap;
  unsigned superblock, first; /* options of warp heaps; 0: the usual one */
  size_t series_most;         /* requests in one kernel, so that it ends in bearable time */
};

static const struct competitor competitors[] = {
    {"warp heap", "series_warp", "MAM", 0, 0, SIZE_MAX},    {"MAM", "series_mam", "MAM", 0, 0, SIZE_MAX},
    {"CUDA", "series_cuda", "CUDA", 0, 0, (size_t)1 << 24}, {"warp direct", "series_warp", "MAM", 16, 256, SIZE_MAX},
    {"floor", "series_floor", "floor", 0, 0, SIZE_MAX},
};
enum { competitor_count = sizeof competitors / sizeof competitors[0], warp_heap = 0, one_by_one = 1 };

/* The requests of a cell. */
struct series_case {
  unsigned threads, block_threads, count, bytes;
  size_t row; /* of the table, which has the mean of its cells */
  bool with_cuda;
};

struct test {
  const char *name, *help, *row_title;
  size_t (*cases)(bool quick, struct series_case cases[cells_most]);
  void (*label)(const struct series_case *what, char text[label_most]);
};

struct player {
  CUmodule module;
  CUfunction whole, keep, drop;
  struct heap *heap;
};

struct bench {
  bool quick;
  const char *csv_directory;
  bool chosen[8];
  bool competes[competitor_count];
  struct machine machine;
  struct heap_gpu gpu;
  struct heap heaps[3]; /* for CUDA, MAM and the floor */
  struct player players[competitor_count];
  CUdeviceptr handles;
  struct series_case cases[cells_most];
};

struct times {
  double whole_us, keep_us, drop_us;
};

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

static const unsigned seed_sizes[] = {16, 32, 64, 128, 256, 512};
enum { seed_size_count = sizeof seed_sizes / sizeof seed_sizes[0] };

/* Figure 4. */
static size_t size_cases(bool quick, struct series_case cases[cells_most]) {
  size_t count = 0;
  for (unsigned power = 16; power <= 4096; power *= 2)
    for (unsigned bytes = power; bytes < 2 * power; bytes += quick ? power : (power + 3) / 4)
      cases[count++] = (struct series_case){64, 64, 16, (bytes + 15) & ~15u, 0, true};
  cases[count++] = (struct series_case){64, 64, 16, 8192, 0, true};
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) /* a small power of two has fewer than four multiples of 16 */
    if (kept == 0 || cases[kept - 1].bytes != cases[i].bytes) {
      cases[kept] = cases[i];
      cases[kept].row = kept;
      kept++;
    }
  return kept;
}

/* Figure 5: the combinations that every allocator serves in bearable time. */
static size_t threads_cases(bool quick, struct series_case cases[cells_most]) {
  size_t count = 0, row = 0;
  for (unsigned threads = 1; threads <= 65536; threads *= quick ? 4 : 2) {
    size_t before = count;
    for (size_t n = 0; n < seed_size_count; n += quick ? 2 : 1)
      for (size_t s = 0; s < seed_size_count; s += quick ? 2 : 1)
        if ((size_t)threads * seed_sizes[n] * seed_sizes[s] <= (size_t)(quick ? 1 : 16) << 20)
          cases[count++] =
              (struct series_case){threads, threads < 256 ? threads : 256, seed_sizes[n], seed_sizes[s], row, true};
    row += count > before;
  }
  return count;
}

/* Figure 6. */
static size_t blocks_cases(bool quick, struct series_case cases[cells_most]) {
  static const unsigned counts[] = {1, 16, 128};
  size_t count = 0;
  for (size_t n = 0; n < 3; n++)
    for (unsigned blocks = 1; blocks <= 512; blocks *= quick ? 8 : 2)
      cases[count] = (struct series_case){1024 * blocks, 1024,
                                          counts[n],     16,
                                          count,         1024 * blocks * counts[n] <= (quick ? 1u << 15 : 1u << 20)},
      count++;
  return count;
}

static size_t series_cases(bool quick, struct series_case cases[cells_most]) {
  static const unsigned counts[] = {16, 1, 16};
  for (size_t i = 0; i < 3; i++)
    cases[i] = (struct series_case){1 << 20, 256, counts[i], i == 2 ? 64 : 16, i, i == 1 || (i == 0 && !quick)};
  return 3;
}

static void size_label(const struct series_case *what, char text[label_most]) {
  (void)snprintf(text, label_most, "%u B", what->bytes);
}
static void threads_label(const struct series_case *what, char text[label_most]) {
  (void)snprintf(text, label_most, "%u", what->threads);
}
static void blocks_label(const struct series_case *what, char text[label_most]) {
  (void)snprintf(text, label_most, "%u blocks, %u x", what->threads / 1024, what->count);
}
static void series_label(const struct series_case *what, char text[label_most]) {
  (void)snprintf(text, label_most, "%u x %u B", what->count, what->bytes);
}

static const struct test tests[] = {
    {"series", "2^20 threads, 16 requests of 16 B each", "2^20 threads", series_cases, series_label},
    {"size", "64 threads, 16 requests of 16 to 8192 B each (figure 4)", "bytes", size_cases, size_label},
    {"threads", "1 to 65536 threads, 16 to 512 requests of 16 to 512 B each, the mean (figure 5)", "threads",
     threads_cases, threads_label},
    {"blocks", "1 to 512 blocks of 1024 threads, 1, 16 and 128 requests of 16 B each (figure 6)", "blocks, requests",
     blocks_cases, blocks_label},
};
enum { test_count = sizeof tests / sizeof tests[0] };

/* ---- A cell ------------------------------------------------------------------------------------------------------ */

static struct series_work work_of(const struct bench *bench, const struct competitor *competitor,
                                  const struct series_case *what) {
  const mam_warp_options usual = MAM_WARP_OPTIONS_INIT;
  return (struct series_work){(heap_word *)bench->gpu.slots,
                              (heap_word *)bench->handles,
                              (heap_word *)bench->gpu.scratch,
                              what->threads,
                              what->count,
                              what->bytes,
                              competitor->superblock != 0 ? competitor->superblock : usual.superblock_bytes,
                              competitor->first != 0 ? competitor->first : usual.first_bytes,
                              competitor->superblock != 0 ? competitor->superblock : usual.most_bytes};
}

/* One kernel, with its time from before the launch to its end. */
static bool kernel_time(const struct bench *bench, const struct player *player, CUfunction kernel,
                        const struct series_case *what, struct series_work *work, double *us) {
  const struct driver *driver = bench->gpu.driver;
  const struct heap_gpu *gpu = &bench->gpu;
  void *parameters[] = {player->heap->handle, work};
  unsigned blocks = (what->threads + what->block_threads - 1) / what->block_threads;
  float milliseconds = 0;
  if (!gpu_accept(gpu, driver->cuEventRecord(gpu->begin, NULL), "cuEventRecord") ||
      !gpu_accept(gpu,
                  driver->cuLaunchKernel(kernel, blocks, 1, 1, what->block_threads, 1, 1, 0, NULL, parameters, NULL),
                  "cuLaunchKernel") ||
      !gpu_accept(gpu, driver->cuEventRecord(gpu->end, NULL), "cuEventRecord") ||
      !gpu_accept(gpu, driver->cuEventSynchronize(gpu->end), "cuEventSynchronize") ||
      !gpu_accept(gpu, driver->cuEventElapsedTime(&milliseconds, gpu->begin, gpu->end), "cuEventElapsedTime"))
    return false;
  *us = (double)milliseconds * 1e3;
  return true;
}

/* The two halves as two kernels, with a check of the blocks in between. */
static bool halves_run(struct bench *bench, const struct competitor *competitor, const struct player *player,
                       const struct series_case *what, struct times *times) {
  struct series_work work = work_of(bench, competitor, what);
  struct heap_work blocks = {.slots = (heap_word *)bench->gpu.slots,
                             .count = (heap_word)what->threads * what->count,
                             .low = what->bytes,
                             .high = what->bytes};
  struct heap_faults faults = {0};
  if (!kernel_time(bench, player, player->keep, what, &work, &times->keep_us))
    return false;
  if (player->heap->allocator->hands_out &&
      !gpu_blocks_check(&bench->gpu, &blocks, player->heap->low, player->heap->high, &faults))
    return false;
  if (!kernel_time(bench, player, player->drop, what, &work, &times->drop_us))
    return false;
  if (faults.failed + faults.misaligned + faults.outside + faults.overlapped == 0)
    return true;
  (void)fprintf(stderr,
                "mam-bench: warp: %s, %u threads, %u x %u B: %llu refused, %llu misaligned, %llu outside the heap, "
                "%llu overlap others\n",
                competitor->name, what->threads, what->count, what->bytes, faults.failed, faults.misaligned,
                faults.outside, faults.overlapped);
  return false;
}

static bool whole_run(struct bench *bench, const struct competitor *competitor, const struct player *player,
                      const struct series_case *what, struct times *times) {
  double us[repetitions];
  unsigned count = bench->quick ? 5 : repetitions, done = 0;
  struct series_work work = work_of(bench, competitor, what);
  heap_word failed = 0;
  if (!gpu_clear(&bench->gpu, bench->gpu.scratch, sizeof failed))
    return false;
  for (unsigned i = 0; i == 0 || (i < unmeasured && us[0] < long_us); i++)
    if (!kernel_time(bench, player, player->whole, what, &work, &us[0]))
      return false;
  do
    if (!kernel_time(bench, player, player->whole, what, &work, &us[done]))
      return false;
  while (++done < count && us[0] < long_us);
  times->whole_us = numbers_quantile(us, done, 0.5);
  if (!gpu_read(&bench->gpu, &failed, bench->gpu.scratch, sizeof failed))
    return false;
  if (failed != 0)
    (void)fprintf(stderr, "mam-bench: warp: %s, %u threads, %u x %u B: %llu requests refused\n", competitor->name,
                  what->threads, what->count, what->bytes, failed);
  return failed == 0;
}

static bool cell_fits(const struct competitor *competitor, const struct series_case *what) {
  size_t requests = (size_t)what->threads * what->count;
  return requests <= competitor->series_most && (what->with_cuda || strcmp(competitor->heap, "CUDA") != 0);
}

static bool cell_run(struct bench *bench, size_t c, const struct series_case *what, struct times *times) {
  *times = (struct times){(double)NAN, (double)NAN, (double)NAN};
  const struct competitor *competitor = &competitors[c];
  const struct player *player = &bench->players[c];
  if (!bench->competes[c] || !cell_fits(competitor, what))
    return true;
  /* Empties the heap first: what others left in it would count. */
  if (player->heap->allocator->reset != NULL && !player->heap->allocator->reset(player->heap))
    return false;
  /* Two runs: the first one is cold. */
  return halves_run(bench, competitor, player, what, times) &&
         (times->keep_us > long_us || halves_run(bench, competitor, player, what, times)) &&
         whole_run(bench, competitor, player, what, times);
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

static bool csv_open(const struct bench *bench, struct report_csv *csv, const char *test) {
  char name[64];
  (void)snprintf(name, sizeof name, "warp-%s", test);
  return report_csv_open_file(csv, bench->csv_directory, name,
                              "allocator,threads,block_threads,count,bytes,us,malloc_us,free_us,requests_per_us");
}

static void csv_row(const struct report_csv *csv, const char *allocator, const struct series_case *what,
                    const struct times *times) {
  char text[160];
  double requests = (double)what->threads * what->count;
  const double numbers[] = {times->whole_us, times->keep_us, times->drop_us, requests / times->whole_us};
  (void)snprintf(text, sizeof text, "%s,%u,%u,%u,%u", allocator, what->threads, what->block_threads, what->count,
                 what->bytes);
  report_csv_numbers(csv, text, numbers, 4);
}

/* The mean of each row's cells, in microseconds for a kernel. */
static void table_print(const struct bench *bench, const struct test *test, const struct series_case *cases,
                        size_t count, const struct times (*times)[competitor_count], bool of_halves) {
  static struct report_row rows[cells_most];
  static double weights[cells_most][competitor_count];
  struct report_column columns[competitor_count];
  size_t row_count = 0;
  char title[160];
  (void)bench;
  memset(weights, 0, sizeof weights);
  for (size_t i = 0; i < count; i++) {
    struct report_row *row = &rows[cases[i].row];
    if (cases[i].row >= row_count) {
      row_count = cases[i].row + 1;
      memset(row, 0, sizeof *row);
      test->label(&cases[i], row->label);
    }
    for (size_t c = 0; c < competitor_count; c++) {
      double us = of_halves ? times[i][c].keep_us : times[i][c].whole_us;
      row->values[c] += us; /* NAN stays */
      weights[cases[i].row][c] += 1;
    }
  }
  for (size_t r = 0; r < row_count; r++)
    for (size_t c = 0; c < competitor_count; c++)
      rows[r].values[c] /= weights[r][c];
  for (size_t c = 0; c < competitor_count; c++)
    columns[c].name = competitors[c].name;
  (void)snprintf(title, sizeof title, "%s: us of a kernel that %s", test->name,
                 of_halves ? "allocates and stores the pointers" : "allocates and frees everything");
  const struct report_table table = {title, test->row_title, false, rows, row_count};
  report_columns_print(&table, columns, competitor_count);
}

/* Prints the cell in which warp heaps are slowest against the same device heap. */
static void worst_print(const struct series_case *cases, size_t count, const struct times (*times)[competitor_count]) {
  const struct series_case *worst = NULL;
  double least = (double)INFINITY;
  for (size_t i = 0; i < count; i++) {
    double ratio = times[i][one_by_one].whole_us / times[i][warp_heap].whole_us;
    if (ratio < least) { /* not if one of them did not run */
      least = ratio;
      worst = &cases[i];
    }
  }
  if (worst != NULL)
    (void)printf("Least of all cells: %s takes %.2f times as long as %s (%u threads, %u x %u B).\n",
                 competitors[one_by_one].name, least, competitors[warp_heap].name, worst->threads, worst->count,
                 worst->bytes);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static bool test_run(struct bench *bench, const struct test *test) {
  static struct times times[cells_most][competitor_count];
  size_t count = test->cases(bench->quick, bench->cases);
  struct report_csv csv;
  bool good = true;
  if (!csv_open(bench, &csv, test->name))
    return false;
  for (size_t i = 0; i < count; i++)
    for (size_t c = 0; c < competitor_count; c++) {
      progress_part(competitors[c].name, i * competitor_count + c, count * competitor_count);
      good = cell_run(bench, c, &bench->cases[i], &times[i][c]) && good;
      if (!isnan(times[i][c].whole_us))
        csv_row(&csv, competitors[c].name, &bench->cases[i], &times[i][c]);
    }
  progress_clear();
  table_print(bench, test, bench->cases, count, (const struct times(*)[competitor_count])times, false);
  if (test->cases == series_cases)
    table_print(bench, test, bench->cases, count, (const struct times(*)[competitor_count])times, true);
  worst_print(bench->cases, count, (const struct times(*)[competitor_count])times);
  (void)fflush(stdout);
  return report_csv_close(&csv) && good;
}

static const struct heap_allocator *allocator_of(const char *name) {
  const struct heap_allocator *list[heap_allocators_most];
  size_t count = heap_allocators_get(list);
  for (size_t i = 0; i < count; i++)
    if (strcmp(list[i]->name, name) == 0)
      return list[i];
  return NULL;
}

/* CUDA's own comes first: the size of its heap is settled before anything else runs. */
static bool players_open(struct bench *bench) {
  static const char *const heaps[] = {"CUDA", "MAM", "floor"};
  bool good = true;
  for (size_t h = 0; good && h < 3; h++) {
    good = heap_begin(&bench->heaps[h], allocator_of(heaps[h]), &bench->gpu, heap_bytes, 1);
    for (size_t c = 0; good && c < competitor_count; c++) {
      struct player *player = &bench->players[c];
      if (strcmp(competitors[c].heap, heaps[h]) != 0)
        continue;
      player->heap = &bench->heaps[h];
      good = gpu_module_open(&bench->gpu, competitors[c].image, &player->module) &&
             gpu_function(&bench->gpu, player->module, "series_whole", &player->whole) &&
             gpu_function(&bench->gpu, player->module, "series_keep", &player->keep) &&
             gpu_function(&bench->gpu, player->module, "series_drop", &player->drop);
    }
  }
  return good &&
         gpu_accept(&bench->gpu, bench->gpu.driver->cuMemAlloc(&bench->handles, ((size_t)1 << 20) * 8), "cuMemAlloc");
}

static void players_close(struct bench *bench) {
  for (size_t c = 0; c < competitor_count; c++)
    if (bench->players[c].module != NULL)
      (void)bench->gpu.driver->cuModuleUnload(bench->players[c].module);
  for (size_t h = 0; h < 3; h++)
    heap_end(&bench->heaps[h]);
  if (bench->handles != 0)
    (void)bench->gpu.driver->cuMemFree(bench->handles);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

static _Noreturn void usage_print(void) {
  (void)fputs(
      "Usage: mam-bench warp [OPTION]...\n"
      "Measures series of requests in kernels by warp heaps (mam_warp_malloc), beside one by one on the same\n"
      "device heap (mam_malloc, mam_free), CUDA's own malloc and free, warp heaps whose requests all go to the\n"
      "device heap, and the floor, which has no allocator.  Every block is checked: aligned, inside the heap,\n"
      "no overlap.  What is freed is all that was allocated, in the same kernel.\n"
      "\n"
      "  --test NAME,...        the tests to run; the default is all\n"
      "  --allocator NAME,...   those to measure, by the names in the tables; the default is all\n"
      "  --csv DIR              write DIR/warp-NAME.csv for each test\n"
      "  --quick                fewer cases and repetitions\n"
      "  --help                 print this and exit\n"
      "\n"
      "Tests:\n",
      stdout);
  for (size_t i = 0; i < test_count; i++)
    (void)printf("  %-10s  %s\n", tests[i].name, tests[i].help);
  (void)fputs("\nTimes are the GPU's, from before a kernel's launch to its end, medians.\n"
              "\n"
              "Exit status: 0 success; 1 a call failed, a block was wrong, or there is no GPU; 2 bad usage.\n",
              stdout);
  exit(report_status(true));
}

static _Noreturn void usage_refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: warp: %s: %s\nTry 'mam-bench warp --help'.\n", what, text);
  exit(exit_usage);
}

/* Marks the names of a list in chosen.  name_of returns each of the count names. */
static void names_choose(const char *list, const char *(*name_of)(size_t), size_t count, bool *chosen) {
  for (const char *word = list; *word != '\0'; word += *word == ',') {
    size_t length = strcspn(word, ","), i = 0;
    while (i < count && (strlen(name_of(i)) != length || strncmp(name_of(i), word, length) != 0))
      i++;
    if (i == count)
      usage_refuse("no such name", word);
    chosen[i] = true;
    word += length;
  }
}
static const char *test_name(size_t i) { return tests[i].name; }
static const char *competitor_name(size_t i) { return competitors[i].name; }

/* Marks all if none was chosen. */
static void all_choose(bool *chosen, size_t count) {
  bool any = false;
  for (size_t i = 0; i < count; i++)
    any = any || chosen[i];
  for (size_t i = 0; i < count; i++)
    chosen[i] = chosen[i] || !any;
}

static void arguments_parse(struct bench *bench, int argc, char **argv) {
  static const struct option known[] = {
      {"test", required_argument, NULL, 't'}, {"allocator", required_argument, NULL, 'a'},
      {"csv", required_argument, NULL, 'c'},  {"quick", no_argument, NULL, 'q'},
      {"help", no_argument, NULL, 'h'},       {NULL, 0, NULL, 0},
  };
  for (int key; (key = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (key == 't')
      names_choose(optarg, test_name, test_count, bench->chosen);
    else if (key == 'a')
      names_choose(optarg, competitor_name, competitor_count, bench->competes);
    else if (key == 'c')
      bench->csv_directory = optarg;
    else if (key == 'q')
      bench->quick = true;
    else if (key == 'h')
      usage_print();
    else { /* getopt_long has said what is wrong */
      (void)fputs("Try 'mam-bench warp --help'.\n", stderr);
      exit(exit_usage);
    }
  }
  if (optind < argc)
    usage_refuse("one word too many", argv[optind]);
  all_choose(bench->chosen, test_count);
  all_choose(bench->competes, competitor_count);
}

int bench_warp(int argc, char **argv) {
  static struct bench bench;
  arguments_parse(&bench, argc, argv);
  if (heap_image_count == 0) {
    (void)fputs("mam-bench: warp: this mam-bench was built without a CUDA compiler (configure --with-cuda)\n", stderr);
    return EXIT_FAILURE;
  }
  if (!machine_probe(&bench.machine)) {
    (void)fprintf(stderr, "mam-bench: warp: no GPU here: %s\n", bench.machine.reason);
    return EXIT_FAILURE;
  }
  bool good = gpu_open(&bench.gpu, &bench.machine, requests_most) && players_open(&bench);
  if (good)
    (void)printf("Measuring kernels on %s.\n", bench.machine.device);
  double cells = 0;
  for (size_t i = 0; i < test_count; i++)
    cells += bench.chosen[i] ? (double)tests[i].cases(bench.quick, bench.cases) : 0;
  progress_begin(cells);
  for (size_t i = 0; i < test_count && bench.players[warp_heap].module != NULL; i++) {
    if (bench.chosen[i])
      progress_test(tests[i].name, (double)tests[i].cases(bench.quick, bench.cases));
    if (good && bench.chosen[i] && !test_run(&bench, &tests[i])) {
      (void)fprintf(stderr, "mam-bench: warp: the test %s failed\n", tests[i].name);
      good = false;
    }
  }
  players_close(&bench);
  gpu_close(&bench.gpu);
  return report_status(good);
}
