/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_picture.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench_json.h"
#include "bench_report.h"

enum { exit_usage = 2 };

/* The largest report of a pool that is read; each of its lines has about a hundred bytes. */
static const size_t report_bytes_most = (size_t)1 << 30;

static const char usage_text[] =
    "Usage: mam-bench picture [-o OUT] [--trace-events] FILE\n"
    "Makes an HTML page of a record (mam-run --record FILE, MAM_RECORD=FILE): memory over time by call site, the\n"
    "address map at any moment, holes, phases, and what held the memory at the peak.  The page needs a browser and\n"
    "nothing else.  From the JSON of MAM_PoolReport it makes the map of that moment.\n"
    "\n"
    "  -o, --output OUT  what to write, - for standard output; the default is FILE.html, or FILE.json\n"
    "  --trace-events    write the record as trace events instead, for chrome://tracing and ui.perfetto.dev\n"
    "  --help            print this and exit\n"
    "\n"
    "Exit status: 0 success; 1 FILE cannot be read or is no record, or OUT cannot be written; 2 bad usage.\n";

struct arguments {
  const char *file, *output; /* a NULL output means a name made from the file's */
  bool trace_events;
};

static bool refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: picture: %s%s%s\n", what, text[0] == '\0' ? "" : ": ", text);
  return false;
}

/* ---- The output -------------------------------------------------------------------------------------------------- */

/* The output goes to a file beside the wanted one, which gets its name when it is complete.  If the wanted one exists
 * and is no plain file, the output goes there directly. */
struct output {
  FILE *stream;
  char *path, *part; /* path NULL: standard output; part empty: there is no file beside */
};

/* What a name has more that is made of it: two numbers. */
enum { part_bytes = 64 };

static bool is_same_file(const struct stat *status, const char *path) {
  struct stat other;
  return stat(path, &other) == 0 && status->st_dev == other.st_dev && status->st_ino == other.st_ino;
}

/* Makes a file that was not there. */
static FILE *part_open(struct output *output) {
  FILE *stream = NULL;
  errno = EEXIST;
  for (unsigned i = 0; stream == NULL && errno == EEXIST; i++) {
    (void)sprintf(output->part, "%s.%ld-%u.part", output->path, (long)getpid(), i);
    stream = fopen(output->part, "wx");
  }
  return stream;
}

static bool output_open(struct output *output, const struct arguments *arguments) {
  const char *path = arguments->output != NULL ? arguments->output : arguments->file;
  const char *ending = arguments->output != NULL ? "" : arguments->trace_events ? ".json" : ".html";
  struct stat status;
  *output = (struct output){.stream = stdout};
  if (strcmp(path, "-") == 0)
    return true;
  output->stream = NULL;
  output->path = malloc(strlen(path) + strlen(ending) + 1);
  output->part = malloc(strlen(path) + strlen(ending) + part_bytes);
  if (output->path == NULL || output->part == NULL)
    return refuse("the host has no memory for it", "");
  (void)sprintf(output->path, "%s%s", path, ending);
  output->part[0] = '\0';
  bool beside = true;
  if (lstat(output->path, &status) == 0) {
    if (is_same_file(&status, arguments->file))
      return refuse(output->path, "it is the file to read");
    beside = S_ISREG(status.st_mode);
  }
  output->stream = beside ? part_open(output) : fopen(output->path, "w");
  return output->stream != NULL || refuse(beside ? output->part : output->path, strerror(errno));
}

/* good: everything was written. */
static bool output_close(struct output *output, bool good) {
  bool beside = output->path != NULL && output->part != NULL && output->part[0] != '\0';
  bool begun = output->stream != NULL, written = begun;
  if (begun && output->stream != stdout) { /* report_status reports a failure of stdout */
    written = ferror(output->stream) == 0;
    written = fclose(output->stream) == 0 && written;
  }
  if (good && (!written || (beside && rename(output->part, output->path) != 0)))
    good = refuse(output->path, strerror(errno));
  if (!good && begun && beside)
    (void)unlink(output->part);
  return good;
}

static void output_free(struct output *output) {
  free(output->path);
  free(output->part);
}

/* ---- A record ---------------------------------------------------------------------------------------------------- */

static void picture_tell(const struct picture *picture, const char *path) {
  char peak[report_label_size];
  const struct picture_moment *moment = &picture->moments[picture->peak];
  report_bytes_text(peak, picture->peak == picture->moment_count ? 0 : (size_t)moment->live);
  (void)printf("%s: %zu allocations, at most %s at a time", path, picture->block_count, peak);
  if (picture->peak < picture->moment_count)
    (void)printf(", after %.3f ms", (double)moment->time_ns * 1e-6);
  (void)printf("%s.\n", picture->record->cut ? "; the record's end is missing" : "");
}

static bool record_draw(const struct arguments *arguments) {
  struct record record = {0};
  struct picture picture = {0};
  struct output output = {0};
  bool good = record_read(&record, arguments->file, PICTURE_EVENTS_MOST) && picture_make(&picture, &record);
  if (good) {
    good = output_open(&output, arguments) &&
           (arguments->trace_events ? picture_trace(output.stream, &picture) : picture_page(output.stream, &picture));
    good = output_close(&output, good);
  }
  if (good && output.path != NULL)
    picture_tell(&picture, output.path);
  output_free(&output);
  picture_free(&picture);
  record_free(&record);
  return good;
}

/* ---- A report ---------------------------------------------------------------------------------------------------- */

/* The whole file, which the caller frees; NULL after a complaint. */
static char *file_read(const char *path, size_t *size) {
  FILE *file = fopen(path, "r");
  char *text = NULL;
  long end = -1;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0)
    end = ftell(file);
  if (end >= 0 && (size_t)end <= report_bytes_most && fseek(file, 0, SEEK_SET) == 0)
    text = malloc((size_t)end + 1);
  if (text != NULL)
    *size = fread(text, 1, (size_t)end, file);
  if (text == NULL || ferror(file)) {
    (void)refuse(path, end >= 0 && (size_t)end > report_bytes_most ? "it is too large" : strerror(errno));
    free(text);
    text = NULL;
  }
  if (file != NULL)
    (void)fclose(file);
  return text;
}

/* Whether the file begins as JSON does, and a record does not.  A file that can be read only once is not opened. */
static bool is_json(const char *path) {
  struct stat status;
  FILE *file = stat(path, &status) == 0 && S_ISREG(status.st_mode) ? fopen(path, "r") : NULL;
  int first = 0;
  if (file == NULL)
    return false;
  do
    first = fgetc(file);
  while (first == ' ' || first == '\n' || first == '\t' || first == '\r');
  (void)fclose(file);
  return first == '{';
}

/* The members that the page reads. */
static bool report_segment(struct json *json) {
  static const struct json_member members[] = {{"base", json_address}, {"bytes", json_count}, {"state", json_text}};
  return json_object(json, members, sizeof members / sizeof members[0]);
}

static bool report_segments(struct json *json) { return json_array(json, report_segment); }

static bool report_chunk(struct json *json) {
  return json_object(json, &(struct json_member){"segments", report_segments}, 1);
}

static bool report_chunks(struct json *json) { return json_array(json, report_chunk); }

static bool report_read(struct json *json) {
  static const struct json_member members[] = {{"source", json_text},
                                               {"reuse", json_text},
                                               {"limit_bytes", json_count},
                                               {"reserved_bytes", json_count},
                                               {"used_bytes", json_count},
                                               {"requested_bytes", json_count},
                                               {"waiting_bytes", json_count},
                                               {"free_bytes", json_count},
                                               {"largest_free_bytes", json_count},
                                               {"external_fragmentation", json_number},
                                               {"chunks", report_chunks}};
  return json_object(json, members, sizeof members / sizeof members[0]);
}

static bool report_draw(const struct arguments *arguments) {
  struct output output = {0};
  size_t size = 0;
  char *text = file_read(arguments->file, &size);
  if (text == NULL)
    return false;
  text[size] = '\0';
  bool good = json_is(text, size, report_read);
  if (!good) {
    (void)refuse(arguments->file, "it is neither a record nor the whole of what MAM_PoolReport gives");
  } else if (arguments->trace_events) {
    good = refuse(arguments->file, "the report of a pool has no times, and so no trace events");
  } else {
    good = output_open(&output, arguments);
    if (good)
      picture_page_report(output.stream, text, size);
    good = output_close(&output, good);
    if (good && output.path != NULL)
      (void)printf("%s\n", output.path);
  }
  output_free(&output);
  free(text);
  return good;
}

/* ---- The command line -------------------------------------------------------------------------------------------- */

int bench_picture(int argc, char **argv) {
  static const struct option known[] = {{"help", no_argument, NULL, 'h'},
                                        {"output", required_argument, NULL, 'o'},
                                        {"trace-events", no_argument, NULL, 't'},
                                        {NULL, 0, NULL, 0}};
  struct arguments arguments = {0};
  int key;
  while ((key = getopt_long(argc, argv, "o:", known, NULL)) != -1) {
    if (key == 'o') {
      arguments.output = optarg;
    } else if (key == 't') {
      arguments.trace_events = true;
    } else if (key == 'h') {
      (void)fputs(usage_text, stdout);
      return report_status(true);
    } else { /* getopt_long has said what is wrong */
      (void)fputs("Try 'mam-bench picture --help'.\n", stderr);
      return exit_usage;
    }
  }
  if (optind + 1 != argc) {
    (void)refuse(optind == argc ? "a file is missing" : "one word too many", optind == argc ? "" : argv[optind + 1]);
    (void)fputs("Try 'mam-bench picture --help'.\n", stderr);
    return exit_usage;
  }
  arguments.file = argv[optind];
  bool good = is_json(arguments.file) ? report_draw(&arguments) : record_draw(&arguments);
  return report_status(good);
}
