/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam-bench: what the library's allocations cost beside those of CUDA, or of the C library where there is no GPU.
 *
 * This file has the command line, and chooses what to measure on.  The tests are in bench_NAME.c.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/options.h"
#include "bench.h"
#include "bench_clock.h"
#include "bench_compact.h"
#include "bench_heap.h"
#include "bench_picture.h"
#include "bench_plot.h"
#include "bench_progress.h"
#include "bench_recorded.h"
#include "bench_report.h"
#include "bench_warp.h"

enum { exit_usage = 2, thread_limit = 128 };

/* ---- Tests by name ----------------------------------------------------------------------------------------------- */

struct test {
  const char *name;
  bool (*run)(const struct bench *bench);
  bool by_default;
  double seconds; /* roughly, on plain host memory */
  const char *help;
};

static const struct test tests[] = {
    {"pair", bench_pair, true, 6, "one allocation and its free, at sizes from 1 B to 1 GiB in powers of four"},
    {"random", bench_random, true, 3, "4096 slots, 256 B to 64 MiB: free what a slot holds, else allocate"},
    {"size", bench_size, true, 6, "the paper's figures 8 and 9: time by size while memory fills, and of frees"},
    {"live", bench_live, true, 15, "the paper's figure 10: time after n live blocks; host memory for each"},
    {"threads", bench_threads, true, 45,
     "T pairs of 4 KiB, R random, X allocated here and freed there, 1 to N threads"},
    {"trace", bench_trace, true, 3, "memory taken over peak live on a training-like trace, and ns an operation"},
    {"chunk", bench_chunk, true, 5, "the smallest pool of fixed size for training-like traces, beside plain best fit"},
    {"cold", bench_cold, true, 1, "the first 10,000 random operations of a new pool: time, longest call, memory taken"},
    {"full", bench_full, true, 5, "the share of a pool of fixed size that is live when it refuses, beside best fit"},
    {"iterate", bench_iterate, true, 1, "us of an FFT's passes that go into allocation, with and without tags"},
    {"loop", bench_loop, true, 8, "ns for one allocation and its free, in a loop over 10 to 320 sizes"},
    {"stall", bench_stall, true, 5, "the longest an allocation or a free takes while a kernel of 200 ms runs"},
    {"soak", bench_soak, false, 60, "random traffic of N threads, verified; fails on any fault"},
};

enum { test_count = sizeof tests / sizeof tests[0] };

/* ---- The command line -------------------------------------------------------------------------------------------- */

struct arguments {
  bool is_quickstart;
  bool chosen[test_count];
  const char *source, *reuse; /* NULL: from the environment */
  enum allocator_calls calls;
  struct bench bench;
  unsigned threads; /* 0: the default of each test */
};

static const char usage_text[] =
    "Usage: mam-bench quickstart [OPTION]...\n"
    "       mam-bench host [OPTION]...\n"
    "       mam-bench heap [OPTION]...\n"
    "       mam-bench compact [OPTION]...\n"
    "       mam-bench warp [OPTION]...\n"
    "       mam-bench replay [OPTION]... FILE\n"
    "       mam-bench plot DIR\n"
    "       mam-bench picture [-o OUT] [--trace-events] FILE\n"
    "       mam-bench --version\n"
    "Measures what allocations of libmam (MAM_CudaMalloc, MAM_CudaFree) cost, beside CUDA's in the same run.\n"
    "\n"
    "quickstart prints in seconds what an allocation and a free cost by size.  Without a GPU it measures on plain\n"
    "host memory, beside mmap and malloc, and says so.  host runs the tests below.\n"
    "heap measures allocations in kernels: see 'mam-bench heap --help'.\n"
    "compact measures defragmentation of device heaps: see 'mam-bench compact --help'.\n"
    "warp measures series of them by warp heaps: see 'mam-bench warp --help'.\n"
    "replay makes the calls of a record once more, by each setting: see 'mam-bench replay --help'.\n"
    "plot draws what was written by --csv DIR: see 'mam-bench plot --help'.\n"
    "picture makes a page of a record of allocations: see 'mam-bench picture --help'.\n"
    "On a terminal, a line on stderr says how much is done and how long the rest takes.\n"
    "\n"
    "Both:\n"
    "  --source SOURCE   where the pool's memory comes from: a value of MAM_SOURCE, see mam(7).  The default is\n"
    "                    MAM_SOURCE of the environment if it is set, else device where there is a GPU, else host\n"
    "  --reuse REUSE     fenced, stream or immediate: when freed memory is handed out again.  The default is\n"
    "                    MAM_REUSE of the environment if it is set, else fenced\n"
    "  --chunk BYTES     the pool's size, with K, M or G; the default is all the memory there is\n"
    "  --help            print this and exit\n"
    "  --version         print the version and exit\n"
    "\n"
    "host only:\n"
    "  --calls CALLS     plain (the default); tagged, with a tag for each power of two; or stream-ordered: legacy, on\n"
    "                    the legacy default stream, stream, on one created stream, streams, on one for each thread\n"
    "  --test NAME,...   the tests to run; the default is all but soak\n"
    "  --csv DIR         write DIR/host-NAME.csv for each test, and DIR/host-machine.csv\n"
    "  --quick           shorter and rougher, with at most 10^5 live blocks unless --max-live says otherwise\n"
    "  --max-live N      of the test live: the most live blocks, 1 to 10^7\n"
    "  --threads N       the most threads of the test threads (default 16); how many soak uses (default 8)\n"
    "  --trace-seed N    draws other traces for the tests trace, chunk, cold and full (default 1)\n"
    "  --seconds S       how long soak lasts (default 60)\n"
    "\n"
    "Tests:\n";

static const char usage_end_text[] =
    "\n"
    "Baselines are called as the CUDA runtime calls the driver: cudaMalloc and cudaFree are measured at cuMemAlloc\n"
    "and cuMemFree; cudaMallocAsync and cudaFreeAsync at cuMemAllocAsync and cuMemFreeAsync, on the default stream\n"
    "with the default pool, synchronised between batches.  The library is measured through its public functions;\n"
    "under fenced reuse its waits for the GPU are part of the figures.  Times are of CLOCK_MONOTONIC, less its own\n"
    "cost.\n"
    "\n"
    "Exit status: 0 success; 1 a call failed, an address was wrong, or there is no GPU for the source; 2 bad usage.\n";

static void usage_print(void) {
  (void)fputs(usage_text, stdout);
  for (size_t i = 0; i < test_count; i++)
    (void)printf("  %-16s  %s\n", tests[i].name, tests[i].help);
  (void)fputs(usage_end_text, stdout);
}

static _Noreturn void usage_refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: %s%s%s\nTry 'mam-bench --help'.\n", what, text[0] == '\0' ? "" : ": ", text);
  exit(exit_usage);
}

/* A decimal number from least to most, and nothing after it. */
static unsigned long parse_number(const char *option, const char *text, unsigned long least, unsigned long most) {
  char *end;
  errno = 0;
  unsigned long value = strtoul(text, &end, 10);
  if (*text < '0' || *text > '9' || errno != 0 || *end != '\0' || value < least || value > most) {
    char what[96];
    (void)snprintf(what, sizeof what, "%s wants a number from %lu to %lu, not", option, least, most);
    usage_refuse(what, text);
  }
  return value;
}

/* A number of bytes: decimal digits and at most one of K, M, G. */
static size_t parse_bytes(const char *option, const char *text) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
  if (shift != 0)
    end++;
  if (*text < '0' || *text > '9' || errno != 0 || *end != '\0' || value == 0 || value > SIZE_MAX >> shift) {
    char what[96];
    (void)snprintf(what, sizeof what, "%s wants a number of bytes, with K, M or G, not", option);
    usage_refuse(what, text);
  }
  return (size_t)value << shift;
}

static enum allocator_calls parse_calls(const char *text) {
  enum allocator_calls calls = calls_plain;
  while (calls < calls_count && strcmp(allocator_calls_names[calls], text) != 0)
    calls++;
  if (calls == calls_count)
    usage_refuse("--calls knows plain, tagged, legacy, stream and streams, not", text);
  return calls;
}

/* Marks the tests of a list of names that commas separate. */
static void parse_tests(struct arguments *arguments, const char *list) {
  for (const char *name = list;; name++) {
    size_t length = strcspn(name, ","), i = 0;
    while (i < test_count && (strlen(tests[i].name) != length || strncmp(tests[i].name, name, length) != 0))
      i++;
    if (i == test_count)
      usage_refuse("--test knows pair, random, size, live, threads, trace, chunk, cold, full, iterate, loop, stall and "
                   "soak, not",
                   length == 0 ? "an empty name" : name);
    arguments->chosen[i] = true;
    name += length;
    if (*name == '\0')
      return;
  }
}

enum option_key {
  key_source = 256,
  key_reuse,
  key_chunk,
  key_help,
  key_version,
  key_host_only, /* for the command host alone, from here on */
  key_calls,
  key_test,
  key_csv,
  key_quick,
  key_live,
  key_threads,
  key_trace_seed,
  key_seconds
};

static const struct option options_known[] = {
    {"source", required_argument, NULL, key_source},   {"reuse", required_argument, NULL, key_reuse},
    {"chunk", required_argument, NULL, key_chunk},     {"help", no_argument, NULL, key_help},
    {"version", no_argument, NULL, key_version},       {"calls", required_argument, NULL, key_calls},
    {"test", required_argument, NULL, key_test},       {"csv", required_argument, NULL, key_csv},
    {"quick", no_argument, NULL, key_quick},           {"max-live", required_argument, NULL, key_live},
    {"threads", required_argument, NULL, key_threads}, {"trace-seed", required_argument, NULL, key_trace_seed},
    {"seconds", required_argument, NULL, key_seconds}, {NULL, 0, NULL, 0},
};

static void arguments_take(struct arguments *arguments, int key, const char *value) {
  struct bench *bench = &arguments->bench;
  switch (key) {
  case key_source:
    arguments->source = value;
    break;
  case key_reuse:
    arguments->reuse = value;
    break;
  case key_chunk:
    bench->chunk_bytes = parse_bytes("--chunk", value);
    break;
  case key_calls:
    arguments->calls = parse_calls(value);
    break;
  case key_test:
    parse_tests(arguments, value);
    break;
  case key_csv:
    if (value[0] == '\0')
      usage_refuse("--csv wants a folder", "");
    bench->csv_directory = value;
    break;
  case key_quick:
    bench->quick = true;
    break;
  case key_live:
    bench->live_most = parse_number("--max-live", value, 1, 10000000);
    break;
  case key_threads:
    arguments->threads = (unsigned)parse_number("--threads", value, 1, thread_limit);
    break;
  case key_trace_seed:
    bench->trace_seed = parse_number("--trace-seed", value, 1, 1000000000);
    break;
  case key_seconds:
    bench->soak_s = (unsigned)parse_number("--seconds", value, 1, 1000000);
    break;
  case key_version:
    (void)puts("mam-bench " PACKAGE_VERSION);
    exit(report_status(true));
  default: /* help */
    usage_print();
    exit(report_status(true));
  }
}

/* Fills in the defaults. */
static void arguments_complete(struct arguments *arguments) {
  bool any = false;
  for (size_t i = 0; i < test_count; i++)
    any = any || arguments->chosen[i];
  for (size_t i = 0; i < test_count && !any; i++)
    arguments->chosen[i] = tests[i].by_default;
  if (arguments->bench.live_most == 0)
    arguments->bench.live_most = arguments->bench.quick ? 100000 : 10000000;
  if (arguments->bench.trace_seed == 0)
    arguments->bench.trace_seed = 1;
  if (arguments->bench.soak_s == 0)
    arguments->bench.soak_s = 60;
}

static void arguments_parse(struct arguments *arguments, int argc, char **argv) {
  int key;
  bool host_only = false; /* there is an option that only the command host takes */
  while ((key = getopt_long(argc, argv, "", options_known, NULL)) != -1) {
    if (key == '?') { /* getopt_long has said what is wrong */
      (void)fputs("Try 'mam-bench --help'.\n", stderr);
      exit(exit_usage);
    }
    if (key > key_host_only)
      host_only = true;
    arguments_take(arguments, key, optarg);
  }
  if (optind == argc)
    usage_refuse("a command is missing: quickstart, host, heap, warp, compact, replay, plot or picture", "");
  arguments->is_quickstart = strcmp(argv[optind], "quickstart") == 0;
  if (!arguments->is_quickstart && strcmp(argv[optind], "host") != 0)
    usage_refuse("no such command", argv[optind]);
  if (optind + 1 < argc)
    usage_refuse("one word too many", argv[optind + 1]);
  if (arguments->is_quickstart && host_only)
    usage_refuse("quickstart takes --source, --reuse and --chunk only", "");
  arguments_complete(arguments);
}

/* ---- What to measure on ------------------------------------------------------------------------------------------ */

/* Sets a variable of the library to the option's value, if there is one. */
static void environment_set(const char *variable, const char *value) {
  if (value != NULL && setenv(variable, value, 1) != 0)
    usage_refuse(variable, strerror(errno));
}

/* Chooses the source and sets it in the environment, where the library reads it.  Without an option, a variable or a
 * GPU it is host memory, and a line says so. */
static void source_choose(const struct arguments *arguments, struct machine *machine) {
  const char *said = getenv("MAM_SOURCE");
  environment_set("MAM_REUSE", arguments->reuse);
  environment_set("MAM_SOURCE", arguments->source);
  if (arguments->source != NULL || (said != NULL && said[0] != '\0'))
    return;
  if (!machine_probe(machine)) {
    (void)printf("No GPU here (%s): measuring on plain host memory.\n", machine->reason);
    environment_set("MAM_SOURCE", "host");
  }
}

static const char *const calls_texts[calls_count] = {"plain", "tagged", "the legacy stream's", "one stream's",
                                                     "each thread's stream's"};
static const char *const reuse_names[] = {"fenced", "immediate", "stream"};

static bool machine_prepare(const struct arguments *arguments, struct bench *bench, struct machine *machine) {
  static const char *const source_texts[] = {"device memory", "pinned host memory", "managed memory",
                                             "plain host memory", "mapped device memory"};
  struct options options;
  source_choose(arguments, machine);
  if (options_read(&options) != cudaSuccess)
    usage_refuse(error_last(), "");
  bench->source = options.source;
  bench->reuse = options.reuse;
  if (options.source != MAM_SOURCE_HOST && machine->driver == NULL && !machine_probe(machine)) {
    (void)fprintf(stderr, "mam-bench: no GPU here: %s.  --source host needs none.\n", machine->reason);
    return false;
  }
  bench->allocator_count = allocators_select(bench->allocators, bench->source, arguments->calls, machine);
  (void)printf("Measuring %s calls on %s%s%s, %s reuse", calls_texts[arguments->calls], source_texts[bench->source],
               machine->driver == NULL ? "" : " of ", machine->driver == NULL ? "" : machine->device,
               reuse_names[bench->reuse]);
  return true;
}

/* Learns how much "all the memory" is: creates the pool that the tests will create. */
static bool capacity_learn(struct bench *bench) {
  const struct allocator *ours = bench->allocators[0];
  MAM_PoolInfo info = {.struct_size = sizeof info};
  cudaError_t error = ours->open(bench->chunk_bytes);
  if (error == cudaSuccess)
    error = MAM_PoolGetInfo(NULL, &info);
  if (error == cudaSuccess)
    error = ours->close();
  if (error != cudaSuccess) {
    (void)printf(".\n");
    (void)fprintf(stderr, "mam-bench: no pool to measure: error %d: %s\n", (int)error, ours->last_error());
    return false;
  }
  char text[report_label_size];
  bench->capacity_bytes = info.limit_bytes > info.reserved_bytes ? info.limit_bytes : info.reserved_bytes;
  report_bytes_text(text, bench->capacity_bytes);
  (void)printf(", a pool of %s.\n", text);
  return true;
}

static bool machine_csv(const struct arguments *arguments, const struct bench *bench) {
  static const char *const source_names[] = {"device", "pinned", "managed", "host", "vmm"};
  char device[sizeof bench->machine->device], date[32] = "";
  struct report_csv csv;
  struct tm utc;
  time_t now = time(NULL);
  if (gmtime_r(&now, &utc) != NULL)
    (void)strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
  (void)snprintf(device, sizeof device, "%s", bench->machine->device);
  for (char *comma = strchr(device, ','); comma != NULL; comma = strchr(comma, ','))
    *comma = ' ';
  if (!report_csv_open(&csv, bench->csv_directory, "machine",
                       "device,driver_version,date,source,reuse,pool_bytes,host_cpus,calls"))
    return false;
  report_csv_row(&csv, "%s,%d,%s,%s,%s,%zu,%ld,%s", device, bench->machine->driver_version, date,
                 source_names[bench->source], reuse_names[bench->reuse], bench->capacity_bytes,
                 sysconf(_SC_NPROCESSORS_ONLN), allocator_calls_names[arguments->calls]);
  return report_csv_close(&csv);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

bool bench_each(const struct bench *bench, const char *test, bench_part *part, void *result) {
  for (size_t i = 0; i < bench->allocator_count; i++) {
    const struct allocator *allocator = bench->allocators[i];
    progress_part(allocator->name, i, bench->allocator_count);
    cudaError_t error = allocator->open(bench->chunk_bytes);
    if (error != cudaSuccess) {
      (void)fprintf(stderr, "mam-bench: %s: no pool: error %d: %s\n", test, (int)error, allocator->last_error());
      return false;
    }
    bool good = part(bench, allocator, i, result);
    error = allocator->close();
    if (error != cudaSuccess)
      (void)fprintf(stderr, "mam-bench: %s: cannot end the pool: error %d: %s\n", test, (int)error,
                    allocator->last_error());
    if (!good || error != cudaSuccess)
      return false;
  }
  progress_clear();
  return true;
}

struct bench bench_with_tags(const struct bench *bench) {
  struct bench tagged = *bench;
  tagged.allocators[tagged.allocator_count++] = allocators_tagged();
  return tagged;
}

/* The time of a test, relative to the others. */
static double test_seconds(const struct test *test, const struct bench *bench) {
  return test->run == bench_soak ? bench->soak_s : test->seconds * (bench->quick ? 0.1 : 1);
}

static bool tests_run(const struct arguments *arguments, struct bench *bench) {
  bool good = true, compared = false;
  double seconds = 0;
  if (!machine_csv(arguments, bench))
    return false; /* a failure here comes before minutes of measuring */
  for (size_t i = 0; i < test_count; i++)
    seconds += arguments->chosen[i] ? test_seconds(&tests[i], bench) : 0;
  progress_begin(seconds);
  for (size_t i = 0; i < test_count; i++) {
    if (!arguments->chosen[i])
      continue;
    bench->threads_most = arguments->threads != 0 ? arguments->threads : tests[i].run == bench_soak ? 8 : 16;
    progress_test(tests[i].name, test_seconds(&tests[i], bench));
    if (!tests[i].run(bench)) {
      (void)fprintf(stderr, "mam-bench: the test %s failed\n", tests[i].name);
      good = false;
    }
    compared = compared || tests[i].run != bench_soak;
  }
  if (compared)
    report_remarks_print(bench->allocators, bench->allocator_count);
  return good;
}

static bool quickstart_run(const struct bench *bench) {
  progress_begin(1);
  progress_test("quickstart", 1);
  return bench_quickstart(bench);
}

/* The commands that have files of their own. */
static const struct command {
  const char *name;
  char *title; /* stands before the messages of getopt_long */
  int (*run)(int argc, char **argv);
} commands[] = {{"heap", "mam-bench: heap", bench_heap}, {"compact", "mam-bench: compact", bench_compact},
                {"warp", "mam-bench: warp", bench_warp}, {"replay", "mam-bench: replay", bench_recorded},
                {"plot", "mam-bench: plot", bench_plot}, {"picture", "mam-bench: picture", bench_picture}};

int main(int argc, char **argv) {
  (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow so far is said like a full disk */
  for (size_t i = 0; argc > 1 && i < sizeof commands / sizeof commands[0]; i++)
    if (strcmp(argv[1], commands[i].name) == 0) {
      argv[1] = commands[i].title;
      return commands[i].run(argc - 1, argv + 1);
    }
  static struct arguments arguments;
  struct machine machine = {.device = "host memory"};
  arguments_parse(&arguments, argc, argv);
  struct bench *bench = &arguments.bench;
  bench->machine = &machine;
  if (!machine_prepare(&arguments, bench, &machine) || !capacity_learn(bench))
    return EXIT_FAILURE;
  (void)fflush(stdout);
  (void)clock_pair_ns(); /* before threads start */
  bool good = arguments.is_quickstart ? quickstart_run(bench) : tests_run(&arguments, bench);
  return report_status(good);
}
