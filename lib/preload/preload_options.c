/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is served: processes, threads, devices and sizes of allocations.  The options (mam-run(1)) say it, and come from
 * the environment.  The first hook that the program calls decides for the process.  The rest is decided for each
 * allocation.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "preload/preload.h"

struct decision {
  struct options_preload options; /* their texts are in texts */
  const char *why_not;            /* why the process is not served; NULL if it is */
  bool active;                    /* it is served: why_not is NULL */
  bool selective;                 /* some allocations may be passed on: preload_serves must look */
  char texts[];                   /* a program may overwrite its environment */
};

static _Atomic(struct decision *) decided; /* NULL until the first call; then never changes */

/* The process that the numbers are of: the one that made the first context, until then the
 * one that decided.  So it is no child that was forked after the parent had begun.  relaxed: a single number. */
static _Atomic pid_t owner;

/* compute-sanitizer finds errors at the ends of the driver's own allocations.  It cannot see those inside a chunk, so a
 * process that runs under it is not served. */
static bool sanitizer_injected(void) {
  const char *injection = getenv("CUDA_INJECTION64_PATH"), *preload = getenv("LD_PRELOAD");
  if (injection != NULL && strstr(injection, "sanitizer") != NULL)
    return true;
  if (preload != NULL && strstr(preload, "libsanitizer-collection") != NULL)
    return true;
  for (char *const *variable = environ; variable != NULL && *variable != NULL; variable++)
    if (strncmp(*variable, "NV_SANITIZER_", strlen("NV_SANITIZER_")) == 0)
      return true;
  return false;
}

static bool program_chosen(const struct options_preload *options) {
  const char *name = program_invocation_short_name;
  if (options->programs != NULL && !mam_client.list_has(options->programs, name))
    return false;
  return !mam_client.list_has(options->skip_programs, name);
}

/* Why the process is not served, NULL if it is. */
static const char *why_not(const struct options_preload *options) {
  if (!options->on)
    return "MAM_PRELOAD is off";
  if (!program_chosen(options))
    return "this program is not to be served";
  if (sanitizer_injected())
    return "compute-sanitizer is running";
  return mam_client.source_is_device() ? NULL : "MAM_SOURCE names no device memory";
}

enum { TEXTS = 5 };

/* Where the options have their texts. */
static void texts_of(struct options_preload *options, const char **texts[TEXTS]) {
  texts[0] = &options->programs;
  texts[1] = &options->skip_programs;
  texts[2] = &options->skip_threads;
  texts[3] = &options->skip_devices;
  texts[4] = &options->output;
}

/* A decision with these options and copies of their texts.  NULL if the host has no memory. */
static struct decision *decision_new(struct options_preload options) {
  const char **texts[TEXTS];
  size_t bytes = sizeof(struct decision);
  texts_of(&options, texts);
  for (int i = 0; i < TEXTS; i++)
    bytes += *texts[i] != NULL ? strlen(*texts[i]) + 1 : 0;
  struct decision *decision = calloc(1, bytes);
  char *end = decision != NULL ? decision->texts : NULL;
  for (int i = 0; end != NULL && i < TEXTS; i++)
    if (*texts[i] != NULL) {
      char *text = end;
      end = stpcpy(text, *texts[i]) + 1;
      *texts[i] = text;
    }
  if (decision != NULL)
    decision->options = options;
  return decision;
}

/* Where to say that nothing is served, when the options cannot be read. */
static struct options_preload options_of_summary(void) {
  const char *summary = getenv("MAM_PRELOAD_SUMMARY"), *process = getenv("MAM_PRELOAD_PROCESS");
  const char *output = getenv("MAM_PRELOAD_OUTPUT");
  bool wanted = summary != NULL && strcmp(summary, "none") != 0;
  return (struct options_preload){.summary = wanted ? OPTIONS_SUMMARY_COUNTS : OPTIONS_SUMMARY_NONE,
                                  .output = output != NULL && *output != '\0' ? output : NULL,
                                  .process = process != NULL ? strtoul(process, NULL, 10) : 0};
}

/* Reads the options.  Says what is wrong.  *why: why the process is not served, NULL if it is. */
static struct options_preload options_now(const char **why) {
  struct options_preload options;
  *why = "it could not be set up";
  if (mam_client.struct_size != sizeof(struct client))
    (void)fputs("mam: libmam_preload and libmam are of different versions; nothing is served\n", stderr);
  else if (mam_client.options(&options) != cudaSuccess)
    (void)fprintf(stderr, "mam: %s; nothing is served\n", MAM_LastError());
  else {
    *why = why_not(&options);
    return options;
  }
  return options_of_summary();
}

/* Decides, and tells libmam how to take chunks.  NULL if the host has no memory. */
static struct decision *decide(void) {
  const char *why;
  const struct options_preload options = options_now(&why);
  struct decision *decision = decision_new(options);
  if (decision == NULL)
    return NULL;
  decision->why_not = why;
  decision->active = why == NULL;
  decision->selective = options.least_bytes > 0 || options.most_bytes < SIZE_MAX || options.own_bytes < SIZE_MAX ||
                        options.skip_threads != NULL || options.skip_devices != NULL;
  if (decision->active)
    mam_client.chunks_set(options.chunk_bytes);
  return decision;
}

/* In a forked child the driver does not work if the parent has used it, so no call succeeds there.  But the child may
 * call hooks, and must not find a lock that another thread of its parent held. */
static void let_go(bool in_child) {
  if (!in_child)
    return;
  preload_bell_forked();
  preload_work_forked();
  preload_keep_forked();
  preload_ipc_forked();
  preload_site_forked();
}

/* The decision, which the first call makes.  If several threads make it at once, the first one's counts.  Without host
 * memory the process is not served, until a later call decides. */
static const struct decision *decision_get(void) {
  static const struct decision passive;
  static const struct fork_functions fork_functions = {NULL, let_go};
  /* acquire: the decision; pairs with the release below */
  struct decision *known = atomic_load_explicit(&decided, memory_order_acquire);
  if (__builtin_expect(known != NULL, true))
    return known;
  struct decision *mine = decide();
  if (mine == NULL)
    return &passive;
  atomic_store_explicit(&owner, getpid(), memory_order_relaxed);
  /* release: publishes the decision; acquire on failure: reads the winner's.  Pairs with the load above. */
  if (atomic_compare_exchange_strong_explicit(&decided, &known, mine, memory_order_acq_rel, memory_order_acquire))
    mam_client.fork_join(&fork_functions);
  else
    free(mine);
  return known != NULL ? known : mine;
}

bool preload_is_child(void) {
  return preload_decided() && atomic_load_explicit(&owner, memory_order_relaxed) != getpid();
}

const struct options_preload *preload_options_read(const char **why) {
  const struct decision *decision = decision_get();
  *why = decision->why_not;
  return &decision->options;
}

bool preload_decided(void) {
  /* relaxed: the decision itself is not read */
  return atomic_load_explicit(&decided, memory_order_relaxed) != NULL;
}

const struct options_preload *preload_options_get(void) {
  /* acquire: as above */
  const struct decision *known = atomic_load_explicit(&decided, memory_order_acquire);
  return known != NULL && known->active ? &known->options : NULL;
}

bool preload_active(void) { return decision_get()->active; }

/* Whether the calling thread's name is in a list, which may be NULL. */
static bool thread_skipped(const char *list) {
  char name[16];
  return list != NULL && pthread_getname_np(pthread_self(), name, sizeof name) == 0 && mam_client.list_has(list, name);
}

/* Whether the current device's ordinal is in a list, which may be NULL. */
static bool device_skipped(const struct preload_real *real, const char *list) {
  CUdevice device;
  char ordinal[16];
  if (list == NULL || PRELOAD_CALL(real, cuCtxGetDevice, &device) != CUDA_SUCCESS)
    return false;
  (void)snprintf(ordinal, sizeof ordinal, "%d", device);
  return mam_client.list_has(list, ordinal);
}

static _Atomic bool context_was_seen; /* relaxed: it publishes no other data */

static __attribute__((noinline)) bool context_look(const struct preload_real *real) {
  CUcontext context = NULL;
  bool now = PRELOAD_CALL(real, cuCtxGetCurrent, &context) == CUDA_SUCCESS && context != NULL;
  if (now) {
    atomic_store_explicit(&owner, getpid(), memory_order_relaxed);
    atomic_store_explicit(&context_was_seen, true, memory_order_relaxed);
    preload_bell_start();
  }
  return now;
}

/* Whether the program has made a context.  Before that libmam must not be asked, because it would initialise the
 * driver. */
static inline bool context_seen(const struct preload_real *real) {
  return __builtin_expect(atomic_load_explicit(&context_was_seen, memory_order_relaxed), true) || context_look(real);
}

bool preload_may_serve(const struct preload_real *real) {
  return preload_active() && preload_depth == 0 && context_seen(real);
}

bool preload_serves(const struct preload_real *real, size_t bytes) {
  const struct decision *decision = decision_get();
  if (!decision->active || preload_depth != 0 || bytes == 0 || !context_seen(real))
    return false;
  if (__builtin_expect(!decision->selective, true))
    return true;
  const struct options_preload *options = &decision->options;
  return bytes >= options->least_bytes && bytes <= options->most_bytes && bytes < options->own_bytes &&
         !thread_skipped(options->skip_threads) && !device_skipped(real, options->skip_devices);
}

size_t preload_passed_bytes(size_t bytes) {
  enum { PAGE_BYTES = 2 << 20 }; /* a block of whole such pages shares none with another block */
  const struct options_preload *options = preload_options_get();
  if (options == NULL || bytes == 0 || bytes < options->own_bytes || bytes > SIZE_MAX - PAGE_BYTES)
    return bytes;
  return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}
