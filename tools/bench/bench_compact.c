/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * compact: what defragmentation of a device heap costs and what it wins (CompactGpu's figures 3 to 5).
 */
#include "bench_compact.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_clock.h"
#include "bench_heap_gpu.h"
#include "bench_numbers.h"
#include "bench_progress.h"
#include "bench_report.h"
#include "kernels/compact.h"
#include "mam/heap.h"

enum { exit_usage = 2, objects_most = 1 << 22, repetitions_most = 9, passes_most = 40 };

struct compact_bench {
  const char *csv_directory; /* NULL: none */
  bool quick;
  unsigned every; /* how many steps of the particles lie between two compactions */
  struct machine machine;
  struct heap_gpu gpu;
  CUmodule module;
  CUfunction make, thin, link, forward, verify, free_plain, free_keeping;
  CUfunction particles_birth, particles_step, particles_count;
  MAM_Heap heap;
  mam_device_heap handle;
  CUdeviceptr table, other;
};

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static bool accept(cudaError_t error, const char *what) {
  if (error != cudaSuccess)
    (void)fprintf(stderr, "mam-bench: compact: %s: error %d: %s\n", what, (int)error, MAM_LastError());
  return error == cudaSuccess;
}

static bool heap_new(struct compact_bench *bench, size_t bytes) {
  MAM_HeapOptions options = MAM_HEAP_OPTIONS_INIT;
  options.bytes = bytes;
  options.limit_bytes = 2 * bytes;
  return accept(MAM_HeapCreate(&bench->heap, NULL, &options), "MAM_HeapCreate") &&
         accept(MAM_HeapHandle(bench->heap, &bench->handle), "MAM_HeapHandle");
}

static bool heap_gone(struct compact_bench *bench) {
  MAM_Heap heap = bench->heap;
  bench->heap = NULL;
  return accept(MAM_HeapDestroy(heap), "MAM_HeapDestroy");
}

static bool type_new(struct compact_bench *bench, size_t bytes, bool has_links, mam_type *type) {
  static const size_t offsets[] = {offsetof(struct compact_object, links[0]),
                                   offsetof(struct compact_object, links[1])};
  MAM_HeapTypeOptions options = MAM_HEAP_TYPE_OPTIONS_INIT;
  options.bytes = bytes;
  options.pointer_offsets = offsets;
  options.pointer_count = has_links ? compact_links : 0;
  return accept(MAM_HeapRegisterType(bench->heap, &options, type), "MAM_HeapRegisterType");
}

static bool faults_read(struct compact_bench *bench, struct compact_faults *faults) {
  return gpu_read(&bench->gpu, faults, bench->gpu.scratch, sizeof *faults);
}

/* Makes objects of one type that point to each other, and frees some at random, so that keep of heap_chance_whole
 * stay. */
static bool objects_new(struct compact_bench *bench, struct compact_work *work) {
  CUdeviceptr faults_at = bench->gpu.scratch;
  struct compact_faults faults;
  void *make[] = {&bench->handle, work, &faults_at}, *thin[] = {&bench->handle, work}, *link[] = {work};
  if (!gpu_clear(&bench->gpu, faults_at, sizeof faults) ||
      !gpu_clear(&bench->gpu, bench->table, work->count * sizeof(heap_word)) ||
      !gpu_run(&bench->gpu, bench->make, work->count, make) || !faults_read(bench, &faults) ||
      !gpu_run(&bench->gpu, bench->thin, work->count, thin) || !gpu_run(&bench->gpu, bench->link, work->count, link))
    return false;
  if (faults.refused != 0)
    (void)fprintf(stderr, "mam-bench: compact: the heap refused %llu objects\n", faults.refused);
  return faults.refused == 0;
}

/* Every object is whole, and points to the same objects as before. */
static bool objects_sound(struct compact_bench *bench, struct compact_work *work, heap_word *live) {
  CUdeviceptr faults_at = bench->gpu.scratch;
  struct compact_faults faults;
  void *verify[] = {work, &faults_at};
  if (!gpu_clear(&bench->gpu, faults_at, sizeof faults) || !gpu_run(&bench->gpu, bench->verify, work->count, verify) ||
      !faults_read(bench, &faults))
    return false;
  if (faults.wrong_objects + faults.wrong_links != 0)
    (void)fprintf(stderr, "mam-bench: compact: %llu objects and %llu pointers are wrong\n", faults.wrong_objects,
                  faults.wrong_links);
  *live = faults.live;
  return faults.wrong_objects + faults.wrong_links == 0;
}

static MAM_HeapCompactOptions options_of(unsigned n, unsigned first, unsigned pass_limit) {
  MAM_HeapCompactOptions options = MAM_HEAP_COMPACT_OPTIONS_INIT;
  options.targets = n;
  options.targets_first = first;
  options.pass_limit = pass_limit;
  return options;
}

/* A compaction in a program that forwards a table of its own.  *us is the time of the library's two calls. */
static bool compact_time(struct compact_bench *bench, struct compact_work *work, MAM_HeapCompactOptions options,
                         MAM_HeapCompactInfo *info, double *us) {
  void *forward[] = {&bench->handle, work};
  if (info != NULL)
    info->struct_size = sizeof *info;
  uint64_t start = clock_now_ns();
  if (!accept(MAM_HeapCompactBegin(bench->heap, &options, info), "MAM_HeapCompactBegin"))
    return false;
  uint64_t middle = clock_now_ns();
  if (!gpu_run(&bench->gpu, bench->forward, work->count, forward))
    return false;
  uint64_t later = clock_now_ns();
  bool good = accept(MAM_HeapCompactEnd(bench->heap), "MAM_HeapCompactEnd");
  *us = (double)(middle - start + clock_now_ns() - later) / 1e3;
  return good;
}

/* ---- passes: the paper's figure 3, left -------------------------------------------------------------------------- */

/* The figures of each pass.  All passes use n, as in the paper, or begin with first, as in the library. */
static bool passes_of(struct compact_bench *bench, const struct report_csv *csv, unsigned n, unsigned first) {
  struct compact_work work = {
      .table = (heap_word *)bench->table, .count = objects_most / 2, .seed = n, .keep = heap_chance_whole * 2 / 5};
  MAM_HeapCompactInfo info;
  double us, levels[passes_most + 1] = {0};
  unsigned pass = 0, limit = 0;
  heap_word live;
  do { /* each time one pass more, from the beginning */
    if (!heap_new(bench, (size_t)1 << 30) || !type_new(bench, 64, true, &work.type) ||
        !compact_time(bench, &work, options_of(n, first, 1), NULL, &us) || !objects_new(bench, &work) ||
        !compact_time(bench, &work, options_of(n, first, ++limit), &info, &us) || !objects_sound(bench, &work, &live) ||
        !heap_gone(bench))
      return false;
    levels[0] = info.fragmentation_before;
    if (info.pass_count > pass) {
      levels[++pass] = info.fragmentation_after;
      report_csv_row(csv, "%u,%u,%u,%.5f,%zu,%.1f", n, first, pass, info.fragmentation_after, info.moved_bytes, us);
    }
  } while (limit < passes_most && limit < pass + n);
  progress_clear();
  (void)printf("  %2u  %5u  %6u   %.3f  %.3f  %.3f  %.3f  %.3f   %.3f   %8.0f\n", n, first, pass, levels[0],
               levels[pass < 1 ? pass : 1], levels[pass < 2 ? pass : 2], levels[pass < 3 ? pass : 3], levels[pass],
               1.0 / (n + 1), us);
  return true;
}

static bool passes_run(struct compact_bench *bench) {
  static const unsigned numbers[] = {1, 2, 4, 3, 8};
  struct report_csv csv;
  bool good = true;
  if (!report_csv_open_file(&csv, bench->csv_directory, "compact-passes", "n,first,pass,fragmentation,moved_bytes,us"))
    return false;
  (void)printf("passes: 2^21 objects of 64 B, of which 60 %% are freed at random; n of the first pass and of the last\n"
               "   n  first  passes  before    1st    2nd    3rd   last    bound   us in all\n");
  const size_t count = bench->quick ? 3 : sizeof numbers / sizeof numbers[0];
  for (size_t i = 0; good && i < count; i++) {
    progress_within((double)i, (double)count);
    good = (numbers[i] == 1 || passes_of(bench, &csv, numbers[i], numbers[i])) && passes_of(bench, &csv, numbers[i], 1);
  }
  return report_csv_close(&csv) && good;
}

/* ---- levels: the paper's figure 3, right ------------------------------------------------------------------------- */

static bool levels_of(struct compact_bench *bench, const struct report_csv *csv, unsigned n, unsigned percent) {
  struct compact_work work = {.table = (heap_word *)bench->table,
                              .count = objects_most / 8,
                              .seed = percent,
                              .keep = heap_chance_whole * (100 - percent) / 100};
  MAM_HeapCompactInfo info;
  double us;
  heap_word live;
  if (!heap_new(bench, (size_t)256 << 20) || !type_new(bench, 64, true, &work.type) || !objects_new(bench, &work) ||
      !compact_time(bench, &work, options_of(n, 1, 0), &info, &us) || !objects_sound(bench, &work, &live))
    return false;
  report_csv_row(csv, "%u,%.5f,%.5f,%u,%.1f", n, info.fragmentation_before, info.fragmentation_after, info.pass_count,
                 us);
  progress_clear();
  if (percent % 20 == 0)
    (void)printf("  %2u  %.3f  %.3f  %.3f  %6u\n", n, info.fragmentation_before, info.fragmentation_after,
                 1.0 / (n + 1), info.pass_count);
  if (info.fragmentation_after >= 1.0 / (n + 1))
    (void)fprintf(stderr, "mam-bench: compact: levels: the bound of n %u is passed\n", n);
  return heap_gone(bench) && info.fragmentation_after < 1.0 / (n + 1);
}

static bool levels_run(struct compact_bench *bench) {
  static const unsigned numbers[] = {1, 2, 3, 4, 8, 16};
  struct report_csv csv;
  bool good = true;
  if (!report_csv_open_file(&csv, bench->csv_directory, "compact-levels", "n,before,after,passes,us"))
    return false;
  (void)printf("levels: 2^19 objects of 64 B, some freed at random; all passes\n   n  before  after  bound  passes\n");
  const size_t count = sizeof numbers / sizeof numbers[0];
  for (size_t i = 0; i < count; i++)
    for (unsigned percent = bench->quick ? 20 : 5; good && percent < 100; percent += bench->quick ? 20 : 5) {
      progress_within((double)i + percent / 100.0, (double)count);
      good = levels_of(bench, &csv, numbers[i], percent);
    }
  return report_csv_close(&csv) && good;
}

/* ---- rate: bytes moved in a pass, against a plain copy ----------------------------------------------------------- */

/* The time of a plain copy of so many bytes, on the device. */
static bool copy_time(struct compact_bench *bench, CUdeviceptr to, CUdeviceptr from, size_t bytes, double *us) {
  const struct driver *driver = bench->gpu.driver;
  double values[repetitions_most];
  for (unsigned i = 0; i < repetitions_most; i++) {
    uint64_t start = clock_now_ns();
    if (!gpu_accept(&bench->gpu, driver->cuMemcpyDtoDAsync(to, from, bytes, NULL), "cuMemcpyDtoD") ||
        !gpu_accept(&bench->gpu, driver->cuStreamSynchronize(NULL), "cuStreamSynchronize"))
      return false;
    values[i] = (double)(clock_now_ns() - start) / 1e3;
  }
  *us = numbers_quantile(values, repetitions_most, 0.5);
  return true;
}

enum { copy_most = 1 << 30 };

/* Memory for two blocks of copy_most bytes, and the rate that a copy of as many bytes reaches. */
struct copies {
  CUdeviceptr memory;
  double peak_gb_s;
};

static bool copies_open(struct compact_bench *bench, struct copies *copies) {
  double us = 0;
  if (!gpu_accept(&bench->gpu, bench->gpu.driver->cuMemAlloc(&copies->memory, 2 * (size_t)copy_most), "cuMemAlloc"))
    return false;
  bool good = copy_time(bench, copies->memory + copy_most, copies->memory, copy_most, &us);
  copies->peak_gb_s = (double)copy_most / us / 1e3;
  return good;
}

static bool copies_close(struct compact_bench *bench, const struct copies *copies) {
  return copies->memory == 0 || gpu_accept(&bench->gpu, bench->gpu.driver->cuMemFree(copies->memory), "cuMemFree");
}

/* One pass in one call.  No pointer from outside the heap has to be forwarded. */
static bool compact_alone_time(struct compact_bench *bench, unsigned n, double *us) {
  MAM_HeapCompactOptions options = options_of(n, n, 1);
  uint64_t start = clock_now_ns();
  bool good = accept(MAM_HeapCompact(bench->heap, &options, NULL), "MAM_HeapCompact");
  *us = (double)(clock_now_ns() - start) / 1e3;
  return good;
}

static bool rate_of(struct compact_bench *bench, const struct report_csv *csv, const struct copies *copies,
                    unsigned bytes, unsigned n, unsigned live_log2) {
  struct compact_work work = {
      .table = (heap_word *)bench->table, .count = (5u << live_log2) / 2, .seed = n, .keep = heap_chance_whole * 2 / 5};
  MAM_HeapCompactInfo info;
  unsigned repetitions = bench->quick ? 3 : repetitions_most;
  double us[repetitions_most], copy_us, first;
  heap_word live = 0;
  for (unsigned i = 0; i < repetitions; i++) {
    /* A compaction of the empty heap allocates the memory that all compactions use.  The first repetition checks the
     * objects. */
    if (!heap_new(bench, (size_t)work.count * bytes * 5 / 4 + ((size_t)256 << 20)) ||
        !type_new(bench, bytes, true, &work.type) || !compact_time(bench, &work, options_of(n, n, 1), NULL, &first) ||
        !objects_new(bench, &work))
      return false;
    bool good =
        i == 0 ? compact_time(bench, &work, options_of(n, n, 1), &info, &us[i]) && objects_sound(bench, &work, &live)
               : compact_alone_time(bench, n, &us[i]);
    if (!good || !heap_gone(bench))
      return false;
  }
  double median = numbers_quantile(us + 1, repetitions - 1, 0.5);
  if (!copy_time(bench, copies->memory + copy_most, copies->memory, info.moved_bytes, &copy_us))
    return false;
  double rate = (double)info.moved_bytes / median / 1e3, copy = (double)info.moved_bytes / copy_us / 1e3;
  report_csv_row(csv, "%u,%u,%llu,%zu,%.2f,%.2f,%.1f,%.1f,%.1f", bytes, n, live, info.moved_bytes, median, copy_us,
                 rate, copy, copies->peak_gb_s);
  progress_clear();
  (void)printf("  %6u  %2u  %9llu  %8.1f  %8.1f  %8.0f  %8.1f  %8.0f   %.2f     %.2f\n", bytes, n, live,
               (double)info.moved_bytes / (1 << 20), median, rate, copy_us, copy, rate / copy,
               rate / copies->peak_gb_s);
  return true;
}

static bool rate_run(struct compact_bench *bench) {
  static const unsigned sizes[] = {64, 32, 128, 256, 1024};
  struct report_csv csv;
  bool good = true;
  struct copies copies = {0};
  if (!report_csv_open_file(&csv, bench->csv_directory, "compact-rate",
                            "bytes,n,live,moved_bytes,us,copy_us,gb_s,copy_gb_s,copy_peak_gb_s"))
    return false;
  good = copies_open(bench, &copies);
  (void)printf("rate: one pass over objects, 40 %% of each page live, two pointers in each, by the host's clock;\n"
               "  of a copy of as many bytes, and of one of 1 GiB, which reaches %.0f GB/s\n"
               "   bytes   n       live  moved MiB        us      GB/s   copy us copy GB/s  share  of 1 GiB\n",
               copies.peak_gb_s);
  const size_t size_count = bench->quick ? 2 : sizeof sizes / sizeof sizes[0];
  for (unsigned n = 1; good && n <= 3; n++) {
    progress_within(n - 1, (double)size_count + 3);
    good = rate_of(bench, &csv, &copies, 64, n, 20);
  }
  for (size_t i = 1; good && i < size_count; i++) {
    progress_within((double)i + 2, (double)size_count + 3);
    good = rate_of(bench, &csv, &copies, sizes[i], 1, sizes[i] < 1024 ? 20 : 17);
  }
  if (good && !bench->quick)
    good = rate_of(bench, &csv, &copies, 64, 1, 17);
  return copies_close(bench, &copies) && report_csv_close(&csv) && good;
}

/* ---- candidates: a scan, against a bitmap that each free keeps --------------------------------------------------- */

static bool candidates_run(struct compact_bench *bench) {
  struct compact_work work = {.table = (heap_word *)bench->table, .count = 1 << 20, .keep = heap_chance_whole};
  struct report_csv csv;
  double scan[repetitions_most], plain[repetitions_most], keeping[repetitions_most];
  CUdeviceptr map = bench->other;
  void *free_plain[] = {&bench->handle, &work}, *free_keeping[] = {&bench->handle, &work, &map};
  bool good =
      heap_new(bench, (size_t)1 << 30) && type_new(bench, 64, true, &work.type) && gpu_clear(&bench->gpu, map, 1 << 20);
  for (unsigned i = 0; good && i < repetitions_most; i++)
    good = objects_new(bench, &work) && compact_time(bench, &work, options_of(1, 1, 1), NULL, &scan[i]) &&
           gpu_time(&bench->gpu, bench->free_plain, work.count, free_plain, &plain[i]) && objects_new(bench, &work) &&
           gpu_time(&bench->gpu, bench->free_keeping, work.count, free_keeping, &keeping[i]);
  if (!good || !report_csv_open_file(&csv, bench->csv_directory, "compact-candidates", "what,us"))
    return false;
  const double scan_us = numbers_quantile(scan + 1, repetitions_most - 1, 0.5),
               plain_us = numbers_quantile(plain + 1, repetitions_most - 1, 0.5),
               keeping_us = numbers_quantile(keeping + 1, repetitions_most - 1, 0.5);
  report_csv_row(&csv, "compaction that finds nothing,%.2f", scan_us);
  report_csv_row(&csv, "free,%.2f", plain_us);
  report_csv_row(&csv, "free that keeps a bitmap,%.2f", keeping_us);
  progress_clear();
  (void)printf("candidates: 2^20 objects of 64 B in a heap of 1 GiB: a compaction that finds nothing takes %.1f us;\n"
               "  to free all takes %.1f us, %.1f us if each free keeps a bitmap of candidates\n",
               scan_us, plain_us, keeping_us);
  return report_csv_close(&csv) && heap_gone(bench);
}

/* ---- particles: an application ----------------------------------------------------------------------------------- */

enum { particles_live = 6 << 20, particles_life = 200, particles_room = 16 << 20 };

/* What one run should do, and its result. */
struct particles {
  struct particles_work work;
  unsigned n; /* 0: without compaction */
  unsigned steps;
  double ms;
  struct particles_counts counts;
};

static bool particles_begin(struct compact_bench *bench, struct particles *run) {
  CUdeviceptr counts = bench->gpu.scratch;
  void *birth[] = {&bench->handle, &run->work, &counts};
  run->work = (struct particles_work){
      .table = (struct particle **)bench->table, .births = particles_live, .life = particles_life};
  bool good = heap_new(bench, (size_t)2 << 30) && type_new(bench, sizeof(struct particle), false, &run->work.type) &&
              gpu_clear(&bench->gpu, counts, sizeof run->counts) &&
              gpu_run(&bench->gpu, bench->particles_birth, run->work.births, birth);
  run->work.count = run->work.first_number = run->work.births;
  run->work.births = particles_live / particles_life;
  return good;
}

/* Compacts if the run does so, and fills the table anew with the live particles, in order of address. */
static bool particles_collect(struct compact_bench *bench, struct particles *run) {
  MAM_HeapCompactOptions options = options_of(run->n, 1, 0);
  size_t count = 0;
  if (!gpu_accept(&bench->gpu, bench->gpu.driver->cuStreamSynchronize(NULL), "cuStreamSynchronize") ||
      (run->n != 0 && !accept(MAM_HeapCompact(bench->heap, &options, NULL), "MAM_HeapCompact")) ||
      !accept(MAM_HeapObjects(bench->heap, run->work.type, (void **)run->work.table, particles_room, &count),
              "MAM_HeapObjects"))
    return false;
  run->work.count = (unsigned)count;
  return true;
}

static bool particles_step(struct compact_bench *bench, struct particles *run) {
  CUdeviceptr counts = bench->gpu.scratch;
  void *step[] = {&bench->handle, &run->work}, *birth[] = {&bench->handle, &run->work, &counts};
  run->work.step++;
  if (!gpu_start(&bench->gpu, bench->particles_step, run->work.count, step) ||
      !gpu_start(&bench->gpu, bench->particles_birth, run->work.births, birth))
    return false;
  run->work.count += run->work.births;
  run->work.first_number += run->work.births;
  return run->work.step % bench->every != 0 || particles_collect(bench, run);
}

static bool particles_end(struct compact_bench *bench, struct particles *run) {
  CUdeviceptr counts = bench->gpu.scratch;
  void *count[] = {&run->work, &counts};
  return gpu_run(&bench->gpu, bench->particles_count, run->work.count, count) &&
         gpu_read(&bench->gpu, &run->counts, counts, sizeof run->counts) && heap_gone(bench);
}

/* One run for the time. */
static bool particles_time(struct compact_bench *bench, struct particles *run) {
  if (!particles_begin(bench, run))
    return false;
  uint64_t start = clock_now_ns();
  while (run->work.step < run->steps)
    if (!particles_step(bench, run))
      return false;
  if (!gpu_accept(&bench->gpu, bench->gpu.driver->cuStreamSynchronize(NULL), "cuStreamSynchronize"))
    return false;
  run->ms = (double)(clock_now_ns() - start) / 1e6;
  return particles_end(bench, run);
}

/* One run for the memory, with samples halfway between two collections, right before one and right after.  *mean_bytes:
 * of the pages in use, over the second half. */
static bool particles_look(struct compact_bench *bench, struct particles *run, const struct report_csv *csv,
                           double *mean_bytes, double *most_bytes) {
  double sum = 0;
  unsigned count = 0;
  bool good = particles_begin(bench, run);
  *most_bytes = 0;
  while (good && run->work.step < run->steps) {
    MAM_HeapInfo info = {.struct_size = sizeof info};
    good = particles_step(bench, run);
    unsigned phase = run->work.step % bench->every;
    if (!good || (phase != 0 && phase != bench->every / 2 && phase != bench->every - 1))
      continue;
    good = gpu_accept(&bench->gpu, bench->gpu.driver->cuStreamSynchronize(NULL), "cuStreamSynchronize") &&
           accept(MAM_HeapGetInfo(bench->heap, &info), "MAM_HeapGetInfo");
    double pages = (double)(info.page_count - info.free_page_count) * (double)info.page_bytes;
    report_csv_row(csv, "%u,%u,%zu,%zu,%.0f", run->n, run->work.step, info.live_count, info.used_bytes, pages);
    *most_bytes = pages > *most_bytes ? pages : *most_bytes;
    if (run->work.step > run->steps / 2) {
      sum += pages;
      count++;
    }
  }
  *mean_bytes = sum / (count == 0 ? 1 : count);
  return particles_end(bench, run) && good;
}

/* The particles must be the same after each run. */
static bool particles_same(const struct particles *run, heap_word check) {
  if (run->counts.check != check || run->counts.refused != 0)
    (void)fprintf(stderr, "mam-bench: compact: particles: n %u: %llu requests were refused, and the particles are %s\n",
                  run->n, run->counts.refused, run->counts.check == check ? "the same" : "others");
  return run->counts.check == check && run->counts.refused == 0;
}

enum { particles_variants = 4 };

static bool particles_report(const struct compact_bench *bench, const unsigned *numbers, const double *ms,
                             const double *mean, const double *most, unsigned steps) {
  struct report_csv csv;
  if (!report_csv_open_file(&csv, bench->csv_directory, "compact-particles-time", "n,every,ms,mean_bytes,most_bytes"))
    return false;
  progress_clear();
  (void)printf("particles: %u steps of %.1f million, the table anew every %u, after a compaction unless n is 0\n"
               "   n         ms  of none   mean MiB  of none   most MiB  of none\n",
               steps, particles_live / 1e6, bench->every);
  for (unsigned j = 0; j < particles_variants; j++) {
    (void)printf("  %2u  %9.2f    %.3f  %9.1f    %.3f  %9.1f    %.3f\n", numbers[j], ms[j], ms[j] / ms[0],
                 mean[j] / (1 << 20), mean[j] / mean[0], most[j] / (1 << 20), most[j] / most[0]);
    report_csv_row(&csv, "%u,%u,%.3f,%.0f,%.0f", numbers[j], bench->every, ms[j], mean[j], most[j]);
  }
  return report_csv_close(&csv);
}

static bool particles_run(struct compact_bench *bench) {
  static const unsigned numbers[particles_variants] = {0, 1, 2, 4};
  struct report_csv csv;
  unsigned repetitions = bench->quick ? 2 : 5;
  double ms[particles_variants][repetitions_most], median[particles_variants], mean[particles_variants],
      most[particles_variants];
  struct particles run = {.steps = bench->quick ? 400 : 1000};
  heap_word check = 0;
  for (unsigned i = 0; i < repetitions; i++) /* in turns */
    for (unsigned j = 0; j < particles_variants; j++) {
      run.n = numbers[j];
      progress_within(i * particles_variants + j, (repetitions + 1) * particles_variants);
      if (!particles_time(bench, &run))
        return false;
      ms[j][i] = run.ms;
      check = i == 0 && j == 0 ? run.counts.check : check;
      if (!particles_same(&run, check))
        return false;
    }
  if (!report_csv_open_file(&csv, bench->csv_directory, "compact-particles", "n,step,live,used_bytes,page_bytes"))
    return false;
  bool good = true;
  for (unsigned j = 0; good && j < particles_variants; j++) {
    run.n = numbers[j];
    progress_within(repetitions * particles_variants + j, (repetitions + 1) * particles_variants);
    median[j] = numbers_quantile(ms[j], repetitions, 0.5);
    good = particles_look(bench, &run, &csv, &mean[j], &most[j]);
  }
  return report_csv_close(&csv) && good && particles_report(bench, numbers, median, mean, most, run.steps);
}

/* ---- The command ------------------------------------------------------------------------------------------------- */

struct compact_test {
  const char *name;
  bool (*run)(struct compact_bench *bench);
  const char *help;
};

static const struct compact_test tests[] = {
    {"passes", passes_run, "the paper's figure 3, left: fragmentation by pass, for several n"},
    {"levels", levels_run, "the paper's figure 3, right: fragmentation after, by what it was before"},
    {"rate", rate_run, "bytes that one pass moves in a second, against a plain copy"},
    {"candidates", candidates_run, "a scan for candidates, against frees that keep a bitmap of them"},
    {"particles", particles_run, "particles that come and go: their memory over time and their running time"},
};

enum { test_count = sizeof tests / sizeof tests[0] };

static void usage_print(void) {
  (void)printf("Usage: mam-bench compact [OPTION]...\n"
               "Measures defragmentation of a device heap (MAM_HeapCompact).  Every object and pointer is checked.\n"
               "\n"
               "  --test NAME,...  the tests to run; the default is all\n"
               "  --csv DIR        write DIR/compact-NAME.csv for each test, and DIR/compact-machine.csv\n"
               "  --every N        of the particles: steps from one compaction to the next (default 50)\n"
               "  --quick          fewer cases and repetitions\n"
               "  --help           print this and exit\n"
               "\n"
               "Tests:\n");
  for (size_t i = 0; i < test_count; i++)
    (void)printf("  %-10s  %s\n", tests[i].name, tests[i].help);
  (void)printf("\nExit status: 0 success; 1 a call failed, an object was wrong, or there is no GPU; 2 bad usage.\n");
}

static _Noreturn void usage_refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: compact: %s: %s\nTry 'mam-bench compact --help'.\n", what, text);
  exit(exit_usage);
}

static void tests_choose(bool chosen[test_count], const char *list) {
  for (const char *word = list; *word != '\0'; word += *word == ',') {
    size_t length = strcspn(word, ","), i = 0;
    while (i < test_count && (strlen(tests[i].name) != length || strncmp(tests[i].name, word, length) != 0))
      i++;
    if (i == test_count)
      usage_refuse("no such test", word);
    chosen[i] = true;
    word += length;
  }
}

static unsigned every_parse(const char *text) {
  char *end;
  unsigned long value = strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != '\0' || value < 2 || value > 10000)
    usage_refuse("--every wants steps, 2 to 10000, not", text);
  return (unsigned)value;
}

static bool bench_open(struct compact_bench *bench) {
  const struct {
    const char *name;
    CUfunction *function;
  } kernels[] = {{"compact_make", &bench->make},
                 {"compact_thin", &bench->thin},
                 {"compact_link", &bench->link},
                 {"compact_forward", &bench->forward},
                 {"compact_verify", &bench->verify},
                 {"compact_free", &bench->free_plain},
                 {"compact_free_keeping", &bench->free_keeping},
                 {"particles_birth", &bench->particles_birth},
                 {"particles_step", &bench->particles_step},
                 {"particles_count", &bench->particles_count}};
  if (!machine_probe(&bench->machine)) {
    (void)fprintf(stderr, "mam-bench: compact: no GPU: %s\n", bench->machine.reason);
    return false;
  }
  bool good = gpu_open(&bench->gpu, &bench->machine, 1) && gpu_module_open(&bench->gpu, "compact", &bench->module);
  for (size_t i = 0; good && i < sizeof kernels / sizeof kernels[0]; i++)
    good = gpu_function(&bench->gpu, bench->module, kernels[i].name, kernels[i].function);
  const struct driver *driver = bench->gpu.driver;
  return good && gpu_accept(&bench->gpu, driver->cuMemAlloc(&bench->table, objects_most * 32), "cuMemAlloc") &&
         gpu_accept(&bench->gpu, driver->cuMemAlloc(&bench->other, objects_most * 16), "cuMemAlloc");
}

static void bench_close(struct compact_bench *bench) {
  if (bench->table != 0)
    (void)bench->gpu.driver->cuMemFree(bench->table);
  if (bench->other != 0)
    (void)bench->gpu.driver->cuMemFree(bench->other);
  if (bench->gpu.driver != NULL)
    gpu_close(&bench->gpu);
}

static bool machine_csv(const struct compact_bench *bench) {
  struct report_csv csv;
  if (!report_csv_open_file(&csv, bench->csv_directory, "compact-machine", "device,driver_version"))
    return false;
  report_csv_row(&csv, "%s,%d", bench->machine.device, bench->machine.driver_version);
  return report_csv_close(&csv);
}

int bench_compact(int argc, char **argv) {
  static const struct option known[] = {{"test", required_argument, NULL, 't'},  {"csv", required_argument, NULL, 'c'},
                                        {"every", required_argument, NULL, 'e'}, {"quick", no_argument, NULL, 'q'},
                                        {"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0}};
  static struct compact_bench bench = {.every = 50};
  bool chosen[test_count] = {false}, all = true;
  for (int key; (key = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    if (key == 't') {
      tests_choose(chosen, optarg);
      all = false;
    } else if (key == 'c')
      bench.csv_directory = optarg;
    else if (key == 'e')
      bench.every = every_parse(optarg);
    else if (key == 'q')
      bench.quick = true;
    else if (key == 'h') {
      usage_print();
      return report_status(true);
    } else { /* getopt_long has said what is wrong */
      (void)fputs("Try 'mam-bench compact --help'.\n", stderr);
      return exit_usage;
    }
  }
  if (optind < argc)
    usage_refuse("one word too many", argv[optind]);
  bool good = bench_open(&bench) && machine_csv(&bench);
  size_t test_total = 0;
  for (size_t i = 0; i < test_count; i++)
    test_total += all || chosen[i];
  progress_begin((double)test_total);
  for (size_t i = 0; good && i < test_count; i++)
    if (all || chosen[i]) {
      progress_test(tests[i].name, 1);
      progress_part("", 0, 1);
      good = tests[i].run(&bench);
    }
  progress_clear();
  bench_close(&bench);
  return report_status(good);
}
