/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam-bench replay: what the calls of a record cost in memory and time, by each rule of reuse and each way in which a
 * pool takes memory, and which of them to choose.
 *
 * All runs on plain host memory, which is never touched, so a record of any size can be replayed on a machine without a
 * GPU. One thread makes the calls, in order of time.  There is no GPU that could still use what was freed.
 */
#include "bench_recorded.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "bench_best_fit.h"
#include "bench_clock.h"
#include "bench_peak.h"
#include "bench_progress.h"
#include "bench_record.h"
#include "bench_replay.h"
#include "bench_report.h"
#include "bench_text.h"

enum { exit_usage = 2, name_bytes = 60 };

static const size_t chunk_bytes = (size_t)64 << 20; /* MAM_PRELOAD_CHUNK, and what MAM_SOURCE=chunks takes */

/* Another setting is mentioned only if it saves both this share and so many bytes. */
static const double worth_share = 0.05, worth_bytes = 32 << 20;

/* A limit is recommended if it and the ones below it, so many in all, were served in a row.  A limit changes what a
 * pool does, and runs differ: the calls may fit into one limit and not into one that is a little larger.  The steps
 * between them are such that all of them together are not worth mentioning. */
enum { limits_in_a_row = 4 };

/* bytes > 0: an allocation for the slot, which is empty.  0: the slot's block is freed. */
struct step {
  uint32_t slot, site, stream;
  size_t bytes;
};

/* The calls of one context, or of one pool that the program created. */
struct calls {
  const struct record *record;
  uint32_t context;
  struct step *steps;
  size_t step_count, slot_count, allocation_count, refused_count, unknown_free_count, stream_call_count;
  struct peak peak;
};

static bool is_created(const struct calls *calls) { return calls->record->contexts[calls->context].created; }

/* ---- What the record says ---------------------------------------------------------------------------------------- */

/* The context, or pool, that holds the most bytes. */
static uint32_t context_choose(const struct record *record) {
  size_t most = 0;
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < record->context_count; i++) {
    struct peak peak = peak_find(record, i);
    if (peak.bytes > most) {
      most = peak.bytes;
      chosen = i;
    }
  }
  return chosen;
}

/* Gives a slot to each block that is live at a time.  Blocks that are live at the end are freed then. */
static bool steps_make(struct calls *calls) {
  const struct record *record = calls->record;
  size_t spare_count = 0;
  calls->steps = malloc((2 * record->allocation_count + 1) * sizeof *calls->steps);
  uint32_t *slots = malloc((record->allocation_count + 1) * sizeof *slots);
  uint32_t *spare = malloc((record->allocation_count + 1) * sizeof *spare);
  bool *live = calloc(record->allocation_count + 1, sizeof *live);
  bool good = calls->steps != NULL && slots != NULL && spare != NULL && live != NULL;
  for (size_t i = 0; i < record->event_count && good; i++) {
    const struct record_event *event = &record->events[i];
    calls->refused_count += event_is(event, calls->context, RECORD_REFUSED);
    if (event_is(event, calls->context, RECORD_ALLOCATE) && event->size > 0) {
      uint32_t slot = spare_count > 0 ? spare[--spare_count] : (uint32_t)calls->slot_count++;
      slots[event->serial] = slot;
      live[event->serial] = true;
      calls->allocation_count++;
      calls->stream_call_count += event->stream != 0;
      calls->steps[calls->step_count++] = (struct step){slot, event->site, event->stream, event->size};
    } else if (event->kind == RECORD_FREE && event->serial == RECORD_NO_SERIAL) {
      calls->unknown_free_count++;
    } else if (event_is(event, calls->context, RECORD_FREE) && live[event->serial]) {
      live[event->serial] = false;
      spare[spare_count++] = slots[event->serial];
      calls->steps[calls->step_count++] = (struct step){slots[event->serial], event->site, event->stream, 0};
    }
  }
  for (size_t i = 0; i < record->allocation_count && good; i++)
    if (live[i])
      calls->steps[calls->step_count++] = (struct step){.slot = slots[i]};
  free(slots);
  free(spare);
  free(live);
  if (!good)
    (void)fprintf(stderr, "mam-bench: replay: this machine has no memory for so many calls\n");
  return good;
}

/* ---- Replaying --------------------------------------------------------------------------------------------------- */

enum rule { rule_best_fit, rule_fenced, rule_stream, rule_immediate, rule_tagged, rule_count };

static const char *const rule_names[rule_count] = {"best fit", "fenced", "stream", "immediate", "tagged"};

/* The cost of a rule; NAN: not known. */
struct cost {
  double smallest_bytes;                    /* the smallest chunk that serves all calls */
  double grown_bytes, grown_calls, call_ns; /* as needed */
  double chunks_bytes, chunks_calls;        /* with chunks of 64 MiB */
};

/* What to choose: one chunk, or a pool that grows within a limit.  0: no limit was found. */
struct advice {
  bool one_chunk;
  size_t limit_bytes, chunks_limit_bytes; /* of one chunk, its size; with chunks of 64 MiB, as under mam-run */
};

struct player {
  const struct calls *calls;
  enum rule rule;
  struct best_fit fit;
  void **blocks;
  bool refused;
  uint64_t spent_ns;
  MAM_PoolInfo info;
  MAM_Pool pool;
  char *sites; /* the tag of a site is an address in here */
};

static cudaError_t step_allocate(struct player *player, const struct step *step) {
  void **block = &player->blocks[step->slot];
  if (player->rule == rule_tagged)
    return MAM_PoolMallocTagged(player->pool, block, step->bytes, player->sites + step->site);
  if (player->rule != rule_stream)
    return MAM_PoolMalloc(player->pool, block, step->bytes);
  return MAM_PoolMallocAsync(player->pool, block, step->bytes, (cudaStream_t)(uintptr_t)(step->stream * 16));
}

static cudaError_t step_release(const struct player *player, const struct step *step) {
  void *block = player->blocks[step->slot];
  if (player->rule != rule_stream)
    return MAM_CudaFree(block);
  return MAM_CudaFreeAsync(block, (cudaStream_t)(uintptr_t)(step->stream * 16));
}

static bool complain(const char *what) {
  (void)fprintf(stderr, "mam-bench: replay: %s: %s\n", what, MAM_LastError());
  return false;
}

/* False if a call was refused, or after a complaint, if one failed. */
static bool steps_run(struct player *player) {
  const struct calls *calls = player->calls;
  cudaError_t error = cudaSuccess;
  uint64_t start_ns = clock_now_ns();
  for (size_t i = 0; i < calls->step_count && error == cudaSuccess; i++) {
    const struct step *step = &calls->steps[i];
    error = step->bytes > 0 ? step_allocate(player, step) : step_release(player, step);
  }
  player->spent_ns = clock_now_ns() - start_ns;
  player->refused = error == cudaErrorMemoryAllocation;
  return error == cudaSuccess || (!player->refused && complain("a call failed"));
}

/* Runs the calls in a new pool.  first_bytes 0: it takes memory as needed.  fits: it served all calls. */
static bool pool_run(struct player *player, size_t first_bytes, size_t limit_bytes, bool *fits) {
  MAM_PoolOptions options = MAM_POOL_OPTIONS_INIT;
  options.source = MAM_SOURCE_HOST;
  options.reuse = player->rule == rule_immediate ? MAM_REUSE_IMMEDIATE : MAM_REUSE_FENCED;
  options.chunk_bytes = first_bytes;
  options.limit_bytes = limit_bytes;
  if (MAM_PoolCreate(&player->pool, &options) != cudaSuccess)
    return complain("no pool of so many bytes on this machine");
  *fits = steps_run(player);
  player->info = (MAM_PoolInfo){.struct_size = sizeof player->info};
  bool known = MAM_PoolGetInfo(player->pool, &player->info) == cudaSuccess;
  bool ended = MAM_PoolDestroy(player->pool) == cudaSuccess;
  if (!known || !ended)
    return complain("a call failed");
  return *fits || player->refused;
}

static bool best_fit_run(struct player *player, size_t pool_bytes) {
  const struct calls *calls = player->calls;
  bool fits = true;
  best_fit_begin(&player->fit, pool_bytes);
  for (size_t i = 0; i < calls->step_count && fits; i++) {
    const struct step *step = &calls->steps[i];
    if (step->bytes > 0)
      fits = best_fit_allocate(&player->fit, step->slot, step->bytes);
    else
      best_fit_release(&player->fit, step->slot);
  }
  return fits;
}

/* A replay_fits. */
static bool player_fits(void *what, size_t pool_bytes, bool *good) {
  struct player *player = what;
  bool fits = false;
  if (player->rule == rule_best_fit)
    return best_fit_run(player, pool_bytes);
  *good = pool_run(player, pool_bytes, 0, &fits);
  return fits;
}

/* As many addresses as any rule can need. */
static size_t room_bytes(const struct calls *calls) {
  return calls->peak.bytes < (size_t)1 << 42 ? 4 * calls->peak.bytes + ((size_t)4 << 30) : (size_t)1 << 44;
}

/* Runs the calls in a pool that grows.  Only the machine can refuse it memory. */
static bool grown_run(struct player *player, size_t first_bytes) {
  bool fits = false;
  if (!pool_run(player, first_bytes, room_bytes(player->calls), &fits))
    return false;
  return fits || complain("this machine has no addresses for the record's memory");
}

static bool grown_measure(struct player *player, struct cost *cost) {
  const struct calls *calls = player->calls;
  if (!grown_run(player, 0))
    return false;
  cost->grown_bytes = (double)player->info.peak_reserved_bytes;
  cost->grown_calls = (double)player->info.source_call_count;
  cost->call_ns = (double)player->spent_ns / (double)calls->step_count;
  if (!grown_run(player, chunk_bytes))
    return false;
  cost->chunks_bytes = (double)player->info.peak_reserved_bytes;
  cost->chunks_calls = (double)player->info.source_call_count;
  return true;
}

static bool rule_measure(struct player *player, struct cost *cost) {
  const struct calls *calls = player->calls;
  *cost = (struct cost){NAN, NAN, NAN, NAN, NAN, NAN};
  if (player->rule == rule_best_fit) {
    uint64_t start_ns = clock_now_ns();
    (void)best_fit_run(player, room_bytes(calls));
    cost->call_ns = (double)(clock_now_ns() - start_ns) / (double)calls->step_count;
    cost->grown_bytes = (double)player->fit.extent_bytes;
  } else if (!grown_measure(player, cost)) {
    return false;
  }
  return replay_search(player_fits, player, calls->peak.bytes, room_bytes(calls), &cost->smallest_bytes);
}

static bool is_worth(double bytes, double chosen_bytes) {
  return bytes < chosen_bytes * (1 - worth_share) && bytes < chosen_bytes - worth_bytes;
}

static size_t granules_up(double bytes) {
  size_t granule = replay_granularity_bytes;
  return ((size_t)bytes + granule - 1) / granule * granule;
}

/* A limit from from_bytes on under which the calls are served; 0 if there is none within the room.  first_bytes: of the
 * pool's first chunk, 0: it maps memory as needed, SIZE_MAX: all of it. */
static bool limit_find(struct player *player, size_t first_bytes, double from_bytes, size_t *limit_bytes) {
  size_t step = granules_up(from_bytes * worth_share / limits_in_a_row), limit = granules_up(from_bytes);
  *limit_bytes = 0;
  for (unsigned served = 0; limit <= room_bytes(player->calls); limit += step) {
    bool fits = false;
    if (!pool_run(player, first_bytes < limit ? first_bytes : limit, limit, &fits))
      return false;
    served = fits ? served + 1 : 0;
    if (served == limits_in_a_row) {
      *limit_bytes = limit;
      return true;
    }
  }
  return true;
}

static bool advice_find(struct player *player, const struct cost *fenced, struct advice *advice) {
  player->rule = rule_fenced;
  *advice = (struct advice){0};
  if (is_worth(fenced->smallest_bytes, fenced->grown_bytes) &&
      !limit_find(player, SIZE_MAX, fenced->smallest_bytes, &advice->limit_bytes))
    return false;
  advice->one_chunk = advice->limit_bytes > 0;
  if (advice->one_chunk)
    return true;
  /* mam-run's limit is of default pools */
  return limit_find(player, 0, fenced->grown_bytes, &advice->limit_bytes) &&
         (is_created(player->calls) ||
          limit_find(player, chunk_bytes, fenced->chunks_bytes, &advice->chunks_limit_bytes));
}

static bool rules_measure(const struct calls *calls, struct cost costs[rule_count], struct advice *advice) {
  struct player player = {.calls = calls,
                          .blocks = malloc((calls->slot_count + 1) * sizeof *player.blocks),
                          .sites = malloc(calls->record->site_count + 1)};
  bool good = best_fit_make(&player.fit, calls->slot_count) && player.blocks != NULL && player.sites != NULL;
  if (!good)
    (void)fprintf(stderr, "mam-bench: replay: this machine has no memory for so many blocks\n");
  progress_begin(1);
  progress_test("replay", 1);
  for (enum rule rule = 0; rule < rule_count && good; rule++) {
    progress_part(rule_names[rule], rule, rule_count);
    player.rule = rule;
    good = rule_measure(&player, &costs[rule]);
  }
  good = good && advice_find(&player, &costs[rule_fenced], advice);
  progress_clear();
  best_fit_free(&player.fit);
  free(player.blocks);
  free(player.sites);
  return good;
}

/* ---- What is printed --------------------------------------------------------------------------------------------- */

static void summary_print(const struct calls *calls) {
  const struct record *record = calls->record;
  double seconds = record->event_count > 0 ? (double)record->events[record->event_count - 1].time_ns / 1e9 : 0;
  (void)printf("record of process %llu: ", (unsigned long long)record->process);
  text_print(stdout, record->command, strlen(record->command), SIZE_MAX);
  (void)printf("\n");
  if (record->cut)
    (void)printf("the end of the record is missing: the program was killed, or it still runs\n");
  if (record->lost_count > 0)
    (void)printf("%llu events are missing, for which the program's machine had no memory\n",
                 (unsigned long long)record->lost_count);
  (void)printf("%zu allocations, %zu refused, %zu threads, %zu call sites, %.3f s\n", calls->allocation_count,
               calls->refused_count, record->thread_count, record->site_count, seconds);
  if (record->live_before > 0)
    (void)printf("of the allocations, %zu are of blocks that were live when the record began\n", record->live_before);
  if (record->context_count > 1)
    (void)printf("of %zu contexts and pools this is number %u, %s on device %u; --context chooses another one\n",
                 record->context_count, calls->context,
                 is_created(calls) ? "a pool that the program created," : "the default pool of a context,",
                 record->contexts[calls->context].device);
  if (calls->unknown_free_count > 0)
    (void)printf("%zu frees are of blocks that are older than the record; they are left out\n",
                 calls->unknown_free_count);
}

static void number_print(double number, int width, int digits) {
  if (isnan(number))
    (void)printf("  %*s", width, "-");
  else
    (void)printf("  %*.*f", width, digits, number);
}

static void costs_print(const struct calls *calls, const struct cost costs[rule_count]) {
  double peak = (double)calls->peak.bytes;
  (void)printf("\nmemory over the peak, and calls of the driver that take memory or give it back:\n\n"
               "             one chunk    as needed            in chunks of 64M\n"
               "rule          smallest        taken    calls        taken    calls    ns a call\n");
  for (enum rule rule = 0; rule < rule_count; rule++) {
    const struct cost *cost = &costs[rule];
    (void)printf("%-10s", rule_names[rule]);
    number_print(cost->smallest_bytes / peak, 10, 3);
    number_print(cost->grown_bytes / peak, 11, 3);
    number_print(cost->grown_calls, 7, 0);
    number_print(cost->chunks_bytes / peak, 11, 3);
    number_print(cost->chunks_calls, 7, 0);
    number_print(cost->call_ns, 11, 1);
    (void)printf("\n");
  }
  (void)printf(
      "\nbest fit is the yardstick: it keeps nothing.  fenced is the default rule.  stream: by MAM_CudaMallocAsync\n"
      "and MAM_CudaFreeAsync on the streams of the record.  tagged: MAM_CudaMallocTagged, a tag for each call\n"
      "site.  One thread made the calls in the order of time; no kernel held back what was freed.\n");
}

static double least(double a, double b) { return a < b ? a : b; }

/* Prints the settings that would be better still, but have a condition. */
static void other_rules_print(bool created, const struct cost costs[rule_count], double chosen_bytes) {
  static const struct {
    enum rule rule;
    const char *how, *created_how;
  } others[] = {{rule_stream, "MAM_CudaMallocAsync and MAM_CudaFreeAsync on the streams that use the blocks",
                 "MAM_PoolMallocAsync and MAM_CudaFreeAsync on the streams that use the blocks"},
                {rule_immediate, "MAM_REUSE=immediate (mam-run --immediate), if the program works on one stream",
                 "MAM_PoolOptions.reuse = MAM_REUSE_IMMEDIATE, if the program works on one stream"},
                {rule_tagged, "MAM_CudaMallocTagged with a tag for each call site",
                 "MAM_PoolMallocTagged with a tag for each call site"}};
  char text[report_label_size];
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    const struct cost *cost = &costs[others[i].rule];
    double bytes = least(cost->grown_bytes, cost->smallest_bytes);
    if (!is_worth(bytes, chosen_bytes))
      continue;
    report_bytes_text(text, (size_t)bytes);
    (void)printf("With less memory, %s: %s.\n", text, created ? others[i].created_how : others[i].how);
  }
}

static void limits_print(bool created, const struct advice *advice) {
  size_t mib = advice->limit_bytes >> 20, chunks_mib = advice->chunks_limit_bytes >> 20;
  if (mib > 0 || chunks_mib > 0)
    (void)printf("Limits under which all calls were served, as under the %d below them:\n", limits_in_a_row - 1);
  if (mib > 0 && created)
    (void)printf("  in the program        MAM_PoolOptions.limit_bytes = (size_t)%zu << 20\n", mib);
  else if (mib > 0)
    (void)printf("  in the environment    MAM_LIMIT=%zuM\n", mib);
  if (chunks_mib > 0)
    (void)printf("  without changing it   mam-run --limit %zuM PROGRAM\n", chunks_mib);
}

static void recommendation_print(const struct calls *calls, const struct cost costs[rule_count],
                                 const struct advice *advice) {
  const struct cost *fenced = &costs[rule_fenced];
  double peak = (double)calls->peak.bytes, grown = fenced->grown_bytes, bytes = (double)advice->limit_bytes;
  char text[report_label_size];
  size_t mib = advice->limit_bytes >> 20;
  bool created = is_created(calls);
  report_bytes_text(text, advice->limit_bytes);
  (void)printf("\nRecommended: ");
  if (advice->one_chunk)
    (void)printf("one chunk of %s, fenced.  It serves all calls with %.3f of the peak; a pool that takes memory as\n"
                 "it is needed takes %.3f.  Add room for what freed memory waits for kernels.\n",
                 text, bytes / peak, grown / peak);
  else
    (void)printf("the default: memory as it is needed, fenced.  It takes %.3f of the peak, by %.0f calls of the\n"
                 "driver, and no size has to be known; one chunk would save less than %.0f %% or 32 MiB.\n",
                 grown / peak, fenced->grown_calls, 100 * worth_share);
  if (!advice->one_chunk)
    limits_print(created, advice);
  else if (created)
    (void)printf("  in the program        MAM_PoolOptions.chunk_bytes = (size_t)%zu << 20\n", mib);
  else
    (void)printf("  in the program        MAM_Create((size_t)%zu << 20)\n"
                 "  without changing it   mam-run --chunk %zuM --limit %zuM PROGRAM\n",
                 mib, mib, mib + 2);
  other_rules_print(created, costs, advice->one_chunk ? bytes : grown);
}

static bool costs_csv(const char *folder, const struct calls *calls, const struct cost costs[rule_count]) {
  struct report_csv csv;
  if (!report_csv_open_file(&csv, folder, "replay",
                            "rule,calls,peak_live_bytes,smallest_chunk_bytes,grown_bytes,grown_source_calls,"
                            "chunks_bytes,chunks_source_calls,call_ns"))
    return false;
  for (enum rule rule = 0; rule < rule_count; rule++) {
    const struct cost *cost = &costs[rule];
    char text[name_bytes];
    (void)snprintf(text, sizeof text, "%s,%zu,%zu", rule_names[rule], calls->step_count, calls->peak.bytes);
    report_csv_numbers(&csv, text,
                       (const double[]){cost->smallest_bytes, cost->grown_bytes, cost->grown_calls, cost->chunks_bytes,
                                        cost->chunks_calls, cost->call_ns},
                       6);
  }
  return report_csv_close(&csv);
}

/* ---- The command line -------------------------------------------------------------------------------------------- */

static const char usage_text[] =
    "Usage: mam-bench replay [--csv DIR] [--context N] FILE\n"
    "Makes the calls of a record (MAM_RECORD=FILE, mam-run --record FILE) once more, on any machine, without a GPU:\n"
    "by each rule of reuse, in one chunk, in a pool that grows, and in chunks.  Prints the peak and the sites that\n"
    "hold it, what memory each way takes, and which one to choose.\n"
    "\n"
    "  --csv DIR      also write DIR/replay.csv\n"
    "  --context N    the calls of this context or created pool; the default is the one that holds the most\n"
    "  --help         print this and exit\n"
    "\n"
    "Exit status: 0 success; 1 the record cannot be read, or a call failed; 2 bad usage.\n";

struct arguments {
  const char *path, *folder;
  long context; /* -1: the one that holds the most */
};

static int usage_refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: replay: %s%s%s\nTry 'mam-bench replay --help'.\n", what,
                text[0] == '\0' ? "" : ": ", text);
  return exit_usage;
}

static bool calls_measure(const struct arguments *arguments, struct calls *calls) {
  struct cost costs[rule_count];
  struct advice advice;
  calls->peak = peak_find(calls->record, calls->context);
  if (!steps_make(calls))
    return false;
  summary_print(calls);
  if (calls->peak.bytes == 0) {
    (void)printf("nothing was allocated\n");
    return true;
  }
  peak_print_moment(&calls->peak);
  peak_print_holders(&calls->peak);
  (void)fflush(stdout);
  if (!rules_measure(calls, costs, &advice))
    return false;
  costs_print(calls, costs);
  recommendation_print(calls, costs, &advice);
  return costs_csv(arguments->folder, calls, costs);
}

static int record_replay(const struct arguments *arguments) {
  struct record record;
  struct calls calls = {.record = &record};
  int status = EXIT_FAILURE;
  if (record_read(&record, arguments->path, RECORD_EVENTS_MOST)) {
    calls.context = arguments->context >= 0 ? (uint32_t)arguments->context : context_choose(&record);
    if (arguments->context >= (long)record.context_count)
      (void)fprintf(stderr, "mam-bench: replay: %s has no context or pool %ld, only %zu of them, from 0\n",
                    arguments->path, arguments->context, record.context_count);
    else
      status = report_status(calls_measure(arguments, &calls));
  }
  free(calls.steps);
  record_free(&record);
  return status;
}

int bench_recorded(int argc, char **argv) {
  static const struct option known[] = {{"csv", required_argument, NULL, 'c'},
                                        {"context", required_argument, NULL, 'n'},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};
  struct arguments arguments = {.context = -1};
  struct options options;
  int key;
  char *end;
  while ((key = getopt_long(argc, argv, "", known, NULL)) != -1) {
    if (key == 'h') {
      (void)fputs(usage_text, stdout);
      return report_status(true);
    } else if (key == 'c') {
      arguments.folder = optarg;
    } else if (key == 'n') {
      errno = 0;
      arguments.context = strtol(optarg, &end, 10);
      if (*optarg < '0' || *optarg > '9' || *end != '\0' || errno != 0 || arguments.context > INT32_MAX)
        return usage_refuse("--context wants a number, not", optarg);
    } else { /* getopt_long has said what is wrong */
      (void)fputs("Try 'mam-bench replay --help'.\n", stderr);
      return exit_usage;
    }
  }
  if (arguments.folder != NULL && arguments.folder[0] == '\0')
    return usage_refuse("--csv wants a folder", "");
  if (optind == argc)
    return usage_refuse("a record is missing", "");
  if (optind + 1 < argc)
    return usage_refuse("one word too many", argv[optind + 1]);
  if (options_read(&options) != cudaSuccess)
    return usage_refuse(error_last(), "");
  arguments.path = argv[optind];
  return record_replay(&arguments);
}
