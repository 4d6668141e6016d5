/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libmam_preload: functions under the names of the CUDA driver's (preload_table.def), in front of the driver's own when
 * the library is preloaded.  They serve what they can from libmam's pools, through client.h, and pass the rest on.
 *
 *   preload_resolve.c    how a program finds the driver's functions, and how this library finds the real ones
 *   preload.c            memory
 *   preload_again.c      calls that fail for want of memory that a pool keeps
 *   preload_bell.c       the same, that other processes keep
 *   preload_work.c       captures, waits, ends of contexts
 *   preload_graph.c      blocks that a graph goes on using
 *   preload_ipc.c        memory of other processes
 *   preload_options.c    whom to serve
 *   preload_weak.c       weak references where there is no driver
 *   preload_summary.c    numbers, printed at exit
 *
 * Rules.  Nothing is done before the program's first call of a hooked function, but for weak references, and for
 * keeping stderr open where a summary was asked for.  No lock is held while dlopen, dlsym,
 * dladdr or the driver is called.  Whatever the pool answers but success, the driver is asked, and its answer counts.
 */
#ifndef MAM_LIB_PRELOAD_H
#define MAM_LIB_PRELOAD_H

#include "api/client.h"

struct preload_ipc_handle {
  unsigned char bytes[64];
};

#define PRELOAD_HOOK __attribute__((visibility("default")))

/* ---- The real functions ---- */

/* A member that this driver lacks is NULL: then no program finds the name either, but one linked for a newer driver. */
struct preload_real {
#define HOOK(name, arguments) CUresult(*name) arguments;
#define AGAIN(name, arguments, values) HOOK(name, arguments)
#define REAL(name, arguments) HOOK(name, arguments)
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL
};

#define HOOK(name, arguments) PRELOAD_HOOK CUresult name arguments;
#define AGAIN(name, arguments, values) HOOK(name, arguments)
#define REAL(name, arguments)
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL

/* NULL where there is no driver. */
const struct preload_real *preload_real_get(void);

/* How many hooks the program was given by each door.  To a program that is linked with the driver, the dynamic linker
 * gives them unseen. */
enum preload_door { PRELOAD_DOOR_DLSYM, PRELOAD_DOOR_PROC_ADDRESS, PRELOAD_DOORS };
unsigned preload_given(enum preload_door door);

/* Whether it is the address of one. */
bool preload_is_hook(const void *function);

/* What a hook answers when the function is not there to be called. */
enum { PRELOAD_NO_FUNCTION = 500 }; /* CUDA_ERROR_NOT_FOUND */

/* The function name of the driver with the arguments that follow, or the answer above. */
#define PRELOAD_CALL(real, name, ...)                                                                                  \
  ((real) != NULL && (real)->name != NULL ? (real)->name(__VA_ARGS__) : PRELOAD_NO_FUNCTION)

/* ---- Whom to serve ---- */

/* Whether anything is served in this process: the options, read at the first use. */
bool preload_active(void);

/* Whether this process is the forked child of one that was. */
bool preload_is_child(void);

/* In a forked child: makes locks anew that other threads may have held. */
void preload_work_forked(void);
void preload_graph_forked(void);
void preload_ipc_forked(void);

/* Whether the calling thread's allocation of bytes is, in the current context. */
bool preload_serves(const struct preload_real *real, size_t bytes);

/* What the driver is asked for where an allocation of bytes is not served: whole pages, if the block is to have pages
 * of its own. */
size_t preload_passed_bytes(size_t bytes);

/* The options, NULL if they have not been read, or nothing is served. */
const struct options_preload *preload_options_get(void);

/* Whether they have been read: a program does so by its first call.  The other reads them; *why: why nothing is served,
 * NULL if it is. */
bool preload_decided(void);
const struct options_preload *preload_options_read(const char **why);

/* ---- Inside ---- */

/* The calling thread is in a hook: what the driver calls by its own exported names meanwhile is passed on. */
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) unsigned preload_depth;

/* ---- Memory that others need ---- */

/* A call of the driver found no memory: whether a pool gave some back, so that it is worth to call once more.  *tries
 * counts from 0. */
bool preload_make_room(unsigned *tries);

/* Other processes of the user: from the first on to listen whether one needs memory; to ask them for theirs, whether
 * one gave some; and the end of it. */
void preload_bell_start(void);
bool preload_bell_ring(void);
void preload_bell_stop(bool in_child);

/* preload_make_room, of what a call answered; no call is made while memory is there. */
static inline bool preload_again(CUresult result, unsigned *tries) {
  return __builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, false) && preload_make_room(tries);
}

/* Around calls of the driver that the library makes of itself: a capture of another thread, known or not, forbids the
 * program to allocate, and these must not end it. */
CUstreamCaptureMode preload_relaxed_begin(const struct preload_real *real);
void preload_relaxed_end(const struct preload_real *real, CUstreamCaptureMode mode);

/* ---- Numbers ---- */

enum preload_count {
  PRELOAD_MALLOCS,      /* allocations served by a pool */
  PRELOAD_MALLOC_BYTES, /* the bytes of these */
  PRELOAD_MALLOC_NS,    /* and their time, if measured */
  PRELOAD_FREES,        /* blocks of pools freed */
  PRELOAD_FREE_NS,
  PRELOAD_PASSED,    /* allocations passed on to the driver */
  PRELOAD_DRIVER_NS, /* a pair of the driver's, sampled: time and number */
  PRELOAD_DRIVER_SAMPLES,
  PRELOAD_COUNTS
};
void preload_count_add(enum preload_count count, uint64_t value);

/* Whether calls are to be timed, and the time. */
bool preload_measures(void);
uint64_t preload_now_ns(void);
/* Times the driver's own pair for an allocation of bytes that was served, now and then. */
void preload_sample(const struct preload_real *real, size_t bytes);

/* ---- Memory of other processes ---- */

/* Forgets what was opened in contexts that are gone. */
void preload_ipc_sweep(const struct preload_real *real);

/* The block that an opened handle stands for; false if the address is in none. */
bool preload_ipc_block_at(uintptr_t address, uintptr_t *base, size_t *bytes);

/* ---- Blocks of graphs ---- */

/* For a capture; NULL if the host has no memory.  Ended with the graph that came of it, NULL if none did; what kept no
 * block is gone then. */
struct preload_keeper *preload_keeper_new(void);
void preload_keeper_end(struct preload_keeper *keeper, void *graph);

/* Keeps a block that the calling thread has just allocated, if that falls into a capture: one of its own, or one that
 * means every thread. */
void preload_capture_keep(const struct preload_real *real, uintptr_t address);

/* The same for a keeper. */
void preload_keep(struct preload_keeper *keeper, uintptr_t address);

/* What a free of the block by the program comes to. */
enum preload_kept { PRELOAD_KEPT_NOT, PRELOAD_KEPT_FREED, PRELOAD_KEPT_FREED_BEFORE };
enum preload_kept preload_kept_free(uintptr_t address);

/* Whether the program has freed the block, and a graph goes on using it. */
bool preload_kept_freed(uintptr_t address);

/* Forgets blocks whose context is gone. */
void preload_kept_sweep(void);

/* ---- Work ---- */

/* A stream as the per-thread forms mean it. */
static inline CUstream preload_stream_ptsz(CUstream stream) {
  return stream == NULL ? (CUstream)(uintptr_t)CU_STREAM_PER_THREAD : stream;
}

/* Whether a capture is known to be going on anywhere. */
bool preload_capturing(void);

#endif
