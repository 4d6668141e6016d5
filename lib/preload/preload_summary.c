/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The summary: numbers of what was served, printed at exit (mam-run --summary).  If none was asked for, nothing is
 * counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/unsignalled.h"
#include "preload/preload.h"

/* Threads count in so many shares, so that few of them write to the same cache line. */
enum { SHARES = 16 };

/* Relaxed: single numbers. */
static struct { _Alignas(64) _Atomic uint64_t counts[PRELOAD_COUNTS]; } shares[SHARES];

enum {
  /* The driver's own pair is timed at one of so many allocations, because its free waits for the GPU. */
  SAMPLE_EVERY = 64,
  /* It is timed no more often than this, so that a long run is not slowed for good. */
  SAMPLES_MOST = 4096
};

/* The calling thread's share. */

static _Atomic(uint64_t) *share_counts(void) {
  static _Atomic unsigned threads;
  static __thread __attribute__((tls_model("initial-exec"))) unsigned number;
  if (number == 0)
    number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % SHARES + 1;
  return shares[number - 1].counts;
}

bool preload_counts(void) {
  const struct options_preload *options = preload_options_get();
  return options != NULL && options->summary != OPTIONS_SUMMARY_NONE;
}

void preload_count_add(enum preload_count count, uint64_t value) {
  if (__builtin_expect(preload_counts(), false))
    atomic_fetch_add_explicit(&share_counts()[count], value, memory_order_relaxed);
}

/* A count over all threads. */
static uint64_t count_of(enum preload_count count) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < SHARES; i++)
    sum += atomic_load_explicit(&shares[i].counts[count], memory_order_relaxed);
  return sum;
}

/* Allocations that found no memory. */
static pthread_mutex_t refusals_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */
static struct {
  uint64_t count;
  size_t last_bytes, left_bytes; /* of the last one, and what lay free in pools then */
} refusals;

CUresult preload_refused(CUresult result, size_t bytes) {
  struct client_totals totals;
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !preload_counts())
    return result;
  mam_client.totals(&totals);
  pthread_mutex_lock(&refusals_lock);
  refusals.count++;
  refusals.last_bytes = bytes;
  refusals.left_bytes = totals.held_bytes - totals.used_bytes;
  pthread_mutex_unlock(&refusals_lock);
  return result;
}

/* Why the first allocation that was left to the driver was; under refusals_lock. */
static char first_passed[256];

void preload_passed(bool asked) {
  if (!preload_counts())
    return;
  preload_count_add(PRELOAD_PASSED, 1);
  pthread_mutex_lock(&refusals_lock);
  if (first_passed[0] == '\0')
    (void)snprintf(first_passed, sizeof first_passed, "%s",
                   asked ? MAM_LastError() : "the options leave it to the driver, or there was no context");
  pthread_mutex_unlock(&refusals_lock);
}

uint64_t preload_now_ns(void) { return (uint64_t)now_ns(); }

uint64_t preload_start_ns(void) {
  const struct options_preload *options = preload_options_get();
  return options != NULL && options->summary == OPTIONS_SUMMARY_MEASURED ? preload_now_ns() : 0;
}

void preload_sample(const struct preload_real *real, size_t bytes) {
  static _Atomic uint64_t asked;
  CUdeviceptr address;
  uint64_t number = atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
  if (number % SAMPLE_EVERY != 0 || number / SAMPLE_EVERY >= SAMPLES_MOST || preload_capturing())
    return;
  CUstreamCaptureMode mode = preload_relaxed_begin(real);
  uint64_t start_ns = preload_now_ns();
  if (PRELOAD_CALL(real, cuMemAlloc_v2, &address, bytes) == CUDA_SUCCESS) {
    (void)PRELOAD_CALL(real, cuMemFree_v2, address);
    preload_count_add(PRELOAD_DRIVER_NS, preload_now_ns() - start_ns);
    preload_count_add(PRELOAD_DRIVER_SAMPLES, 1);
  }
  preload_relaxed_end(real, mode);
}

/* ---- At exit ---- */

static void print_measured(FILE *out) {
  uint64_t mallocs = count_of(PRELOAD_MALLOCS), frees = count_of(PRELOAD_FREES);
  uint64_t samples = count_of(PRELOAD_DRIVER_SAMPLES);
  if (mallocs == 0 || frees == 0 || samples == 0) {
    (void)fputs("mam-run:   nothing was measured\n", out);
    return;
  }
  double pair_ns = (double)count_of(PRELOAD_DRIVER_NS) / (double)samples;
  double malloc_ns = (double)count_of(PRELOAD_MALLOC_NS) / (double)mallocs;
  double free_ns = (double)count_of(PRELOAD_FREE_NS) / (double)frees;
  double saved_ms = (pair_ns - malloc_ns - free_ns) * (double)mallocs / 1e6;
  (void)fprintf(out,
                "mam-run:   ns a call: %.0f to allocate, %.0f to free; the driver's pair: %.0f (%" PRIu64
                " samples); saved: %.3f ms\n",
                malloc_ns, free_ns, pair_ns, samples, saved_ms);
}

static void print(FILE *out, bool measured) {
  struct client_totals totals;
  mam_client.totals(&totals);
  uint64_t mallocs = count_of(PRELOAD_MALLOCS);
  (void)fprintf(out, "mam-run: %s (process %ld)\n", program_invocation_short_name, (long)getpid());
  (void)fprintf(out,
                "mam-run:   calls: %" PRIu64 " allocations and %" PRIu64 " frees served, %" PRIu64
                " allocations left to the driver\n",
                mallocs, count_of(PRELOAD_FREES), count_of(PRELOAD_PASSED));
  if (mallocs == 0 && first_passed[0] != '\0')
    (void)fprintf(out, "mam-run:   nothing was served; the first allocation: %s\n", first_passed);
  (void)fprintf(out, "mam-run:   hits: %" PRIu64 " allocations by what a thread kept; waits for the GPU: %" PRIu64 "\n",
                totals.hits, totals.waits);
  (void)fprintf(out, "mam-run:   bytes: %" PRIu64 " allocated, %zu at the peak, %zu held in %u pools at exit\n",
                count_of(PRELOAD_MALLOC_BYTES), totals.peak_used_bytes, totals.held_bytes, totals.pools);
  if (refusals.count > 0)
    (void)fprintf(out,
                  "mam-run:   refused: %" PRIu64
                  " allocations found no memory; the last was of %zu bytes, while %zu lay "
                  "free between the blocks of pools\n",
                  refusals.count, refusals.last_bytes, refusals.left_bytes);
  (void)fprintf(out, "mam-run:   doors: %u functions by dlsym, %u by cuGetProcAddress\n",
                preload_given(PRELOAD_DOOR_DLSYM), preload_given(PRELOAD_DOOR_PROC_ADDRESS));
  if (measured)
    print_measured(out);
}

/* The reason why a process has nothing to count.  NULL if it has. */
static const char *nothing_counted(const char *why, bool decided) {
  return why != NULL ? why : decided ? NULL : "loaded, but no CUDA call was seen";
}

/* The file that standard error was when the program began.  Its descriptor may be another file of the program by now.
 */
static struct stat first_stderr;
static bool had_stderr;

/* Many programs close stderr before destructors of libraries run.  So a second descriptor of it is kept, if a summary
 * was asked for.  Its number is no less than this, so that it takes none of the small numbers that programs expect. */
enum { KEPT_LEAST = 100 };
static int kept_stderr = -1; /* -1: none */

static bool is_first_stderr(int fd) {
  struct stat file;
  return had_stderr && fstat(fd, &file) == 0 && file.st_dev == first_stderr.st_dev &&
         file.st_ino == first_stderr.st_ino;
}

/* A forked child may be a daemon, which closes its descriptors.  If it kept one, a program that reads its parent's
 * stderr would not see the end. */
static void let_stderr_go(void) {
  if (is_first_stderr(kept_stderr))
    (void)close(kept_stderr);
  kept_stderr = -1;
}

__attribute__((constructor)) static void keep_stderr(void) {
  const char *summary = getenv("MAM_PRELOAD_SUMMARY"), *output = getenv("MAM_PRELOAD_OUTPUT");
  had_stderr = fstat(STDERR_FILENO, &first_stderr) == 0;
  if (had_stderr && summary != NULL && strcmp(summary, "none") != 0 && (output == NULL || *output == '\0') &&
      pthread_atfork(NULL, NULL, let_stderr_go) == 0)
    kept_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, KEPT_LEAST);
}

/* A descriptor of the file that standard error was.  -1 if the program has closed it. */
static int stderr_now(void) {
  return is_first_stderr(kept_stderr) ? kept_stderr : is_first_stderr(STDERR_FILENO) ? STDERR_FILENO : -1;
}

/* False if not all of the text is written: errno. */
static bool text_write(int fd, const char *text, size_t bytes) {
  for (ssize_t written = 0; bytes > 0; text += written, bytes -= (size_t)written) {
    written = write_unsignalled(fd, text, bytes);
    if (written < 0 && errno != EINTR)
      return false;
    written = written > 0 ? written : 0;
  }
  return true;
}

/* To write to its end.  A FIFO that has no reader is an error, and is not waited for; what is written is.  -1: errno.
 */
static int file_open(const char *path) {
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
  if (fd >= 0)
    (void)fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

/* Writes to the end of the file path, or to what standard error was if that is NULL.  False if not all is written:
 * errno. */
static bool text_put(const char *path, const char *text, size_t bytes) {
  if (path == NULL)
    return text_write(stderr_now(), text, bytes);
  int fd = file_open(path);
  if (fd < 0)
    return false;
  bool written = text_write(fd, text, bytes);
  int error = errno;
  if (close(fd) != 0 && written)
    return false;
  errno = error;
  return written;
}

/* Whether this process is the one that mam-run became, which prints in any case.  Asked before the options are read. */
static bool is_mam_runs(void) {
  const char *process = getenv("MAM_PRELOAD_PROCESS");
  return process != NULL && strtol(process, NULL, 10) == (long)getpid();
}

/* ---- At _exit ---- */

/* Shells end so, and no destructor runs.  If the process is the one that mam-run ran, and has made no call of CUDA, it
 * says so.  A child of vfork comes here with its parent's memory, and a signal may have led here: so little is done. */
static void say_nothing_was_seen(void) {
  const char *summary = getenv("MAM_PRELOAD_SUMMARY"), *path = getenv("MAM_PRELOAD_OUTPUT");
  char line[128];
  if (summary == NULL || strcmp(summary, "none") == 0 || preload_decided() || !is_mam_runs())
    return;
  int length = snprintf(line, sizeof line, "mam-run: %.40s (process %ld): %s\n", program_invocation_short_name,
                        (long)getpid(), nothing_counted(NULL, false));
  (void)text_put(path != NULL && *path != '\0' ? path : NULL, line, (size_t)length);
}

static _Noreturn void end_at_once(int status) {
  say_nothing_was_seen();
  for (;;)
    (void)syscall(SYS_exit_group, status);
}

/* With the versions that glibc's have: a program asks for these. */
#if defined(__x86_64__)
#define EXIT_VERSION "GLIBC_2.2.5"
#else
#define EXIT_VERSION "GLIBC_2.17"
#endif
__asm__(".symver preload_exit, _exit@@" EXIT_VERSION "\n"
        ".symver preload_exit_c, _Exit@@" EXIT_VERSION);
_Noreturn void preload_exit(int status);
_Noreturn void preload_exit_c(int status);
PRELOAD_HOOK void preload_exit(int status) { end_at_once(status); }
PRELOAD_HOOK void preload_exit_c(int status) { end_at_once(status); }

/* ---- At the end ---- */

/* The summary, as text.  NULL if the host has no memory: errno. */
static char *summary_new(const char *nothing, const char *why, bool measured, size_t *bytes) {
  char *text = NULL;
  FILE *out = open_memstream(&text, bytes);
  if (out == NULL)
    return NULL;
  if (nothing != NULL)
    (void)fprintf(out, "mam-run: %s (process %ld): %s%s\n", program_invocation_short_name, (long)getpid(),
                  why != NULL ? "nothing was served: " : "", nothing);
  else
    print(out, measured);
  if (fclose(out) == 0)
    return text;
  free(text);
  return NULL;
}

static void say_lost(const char *path, int error) {
  char line[PATH_MAX + 128];
  int length = snprintf(line, sizeof line, "mam-run: the summary of process %ld is lost: %s: %s\n", (long)getpid(),
                        path, strerror(error));
  (void)text_put(NULL, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

/* A process that has nothing to count prints nothing, unless mam-run ran it itself.  Otherwise a script would print a
 * line for each of its commands. */
__attribute__((destructor)) static void print_at_exit(void) {
  const char *why;
  bool decided = preload_decided();
  if ((!decided && !is_mam_runs()) || preload_is_child())
    return;
  const struct options_preload *options = preload_options_read(&why);
  const char *nothing = nothing_counted(why, decided);
  if (options->summary == OPTIONS_SUMMARY_NONE || (nothing != NULL && options->process != (size_t)getpid()))
    return;
  size_t bytes;
  char *text = summary_new(nothing, why, options->summary == OPTIONS_SUMMARY_MEASURED, &bytes);
  bool lost = text == NULL || !text_put(options->output, text, bytes);
  if (lost && options->output != NULL) /* mam-run could write to it when the program began */
    say_lost(options->output, errno);
  free(text);
}
