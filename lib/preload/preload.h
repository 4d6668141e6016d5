/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libmam_preload.so defines functions with the names of the CUDA driver's functions (preload_table.def): the hooks.  A
 * program that preloads the library calls the hooks.  A hook serves the call from libmam's pools, or passes it on to
 * the real function, which is the driver's of that name.
 *
 *                                serves
 *   the program ----> a hook ---------------> client.h ----> a pool of libmam.so
 *                        |      passes on
 *                        +------------------> struct preload_real ----> libcuda.so.1
 *
 *   preload_resolve.c    how a program finds the driver's functions, and how this library finds the real ones
 *   preload.c            the hooks of memory
 *   preload_again.c      calls that fail for want of memory that a pool keeps
 *   preload_bell.c       the same, where another process has the pool
 *   preload_work.c       captures, waits, ends of contexts
 *   preload_graph.c      which graphs use blocks
 *   preload_keep.c       blocks that are held back for graphs
 *   preload_part.c       which graphs are inside of others
 *   preload_ipc.c        memory of other processes
 *   preload_options.c    which processes, threads, devices and sizes are served
 *   preload_site.c       where in the program an allocation is
 *   preload_refer.c      references to hooks that mean something else
 *   preload_summary.c    numbers, printed at exit
 *
 * The library does not know how a pool works: client.h is all that it knows of pools.
 *
 * Rules:
 *   - Before the program's first call of a hook, the library mends references that mean no hook, looks which file
 *     stderr is, and keeps it open if a summary was asked for, but for forked children.  It does nothing else.
 *   - No lock is held while dlopen, dlsym, dladdr or the driver is called.
 *   - An allocation that no pool serves is passed on, and the program gets the driver's answer.
 */
#ifndef MAM_LIB_PRELOAD_H
#define MAM_LIB_PRELOAD_H

#include <stdatomic.h>

#include "api/client.h"

/* CUipcMemHandle.  Programs pass it by value, so its size is part of the calls. */
struct preload_ipc_handle {
  unsigned char bytes[64];
};

#define PRELOAD_HOOK __attribute__((visibility("default")))

/* ---- The real functions ---- */

/* The real functions of all rows of the table.  One that this driver lacks is NULL.  Then its hook is called only by a
 * program that was linked for a newer driver. */
struct preload_real {
#define HOOK(name, arguments) CUresult(*name) arguments;
#define AGAIN(name, arguments, values) HOOK(name, arguments)
#define REAL(name, arguments) HOOK(name, arguments)
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL
};

/* The hooks.  Libraries that patch functions (UCX's hooks) write a jump over the first five bytes, and need to know the
 * instructions there to move them elsewhere.  What a compiler puts there they may not know.  So on x86-64 each hook is
 * exported by an entry of two instructions, of which the first has five bytes (preload_resolve.c), and to the linker
 * the function in C has a name of its own. */
#if defined(__x86_64__)
#define PRELOAD_INNER(name) __asm__("preload_" #name)
#define PRELOAD_VISIBILITY
#else
#define PRELOAD_INNER(name)
#define PRELOAD_VISIBILITY PRELOAD_HOOK
#endif
#define HOOK(name, arguments) PRELOAD_VISIBILITY CUresult name arguments PRELOAD_INNER(name);
#define AGAIN(name, arguments, values) HOOK(name, arguments)
#define REAL(name, arguments)
#include "preload/preload_table.def"
#undef HOOK
#undef AGAIN
#undef REAL

/* The table of real functions, made by the first call.  NULL if there is neither a driver nor another library that has
 * functions by these names, or no host memory. */
const struct preload_real *preload_real_get(void);

/* A door is a way by which a program finds a hook.  There is a third one: the dynamic linker gives hooks to programs
 * that are linked with the driver, and this library does not see it. */
enum preload_door { PRELOAD_DOOR_DLSYM, PRELOAD_DOOR_PROC_ADDRESS, PRELOAD_DOORS };

/* How many hooks the program was given by a door. */
unsigned preload_given(enum preload_door door);

/* Finds out what hooks stand for where the driver is NULL or lacks the function.  driver: a handle of dlopen.  To be
 * called once, before the program begins. */
void preload_meant_find(void *driver);

/* What the linker would have found in place of a hook that stands for no function of the driver, NULL if nothing; any
 * other function as it is. */
void *preload_hook_meant(void *function);

/* The row of the hook of that name, and the hook; PRELOAD_ROWS and NULL if there is none. */
enum { PRELOAD_ROWS = sizeof(struct preload_real) / sizeof(void *) };
size_t preload_hook_named(const char *name, const void **hook);

/* Mends references of libraries to variables that have the names of hooks, also in libraries that were opened after the
 * program began.  caller: an address in code that asks for a function of the driver. */
void preload_references_mend(const void *caller);

/* What a hook answers if there is no real function to call. */
enum { PRELOAD_NO_FUNCTION = 500 }; /* CUDA_ERROR_NOT_FOUND */

/* Calls the real function of that name with the arguments that follow.  PRELOAD_NO_FUNCTION if there is none. */
#define PRELOAD_CALL(real, name, ...)                                                                                  \
  ((real) != NULL && (real)->name != NULL ? (real)->name(__VA_ARGS__) : PRELOAD_NO_FUNCTION)

/* ---- What is served ---- */

/* Whether this process is served.  The first call reads the options. */
bool preload_active(void);

/* Whether this process is a forked child of one that had made a context, or of one that decided what is served if this
 * one has made none. */
bool preload_is_child(void);

/* In a forked child: initialise locks that other threads of the parent may have held. */
void preload_work_forked(void);
void preload_keep_forked(void);
void preload_ipc_forked(void);
void preload_site_forked(void);

/* Whether an allocation of bytes is served, if the calling thread makes it in its current context. */
bool preload_serves(const struct preload_real *real, size_t bytes);

/* Whether the options have a say in an allocation: its size, its thread or its device may yet exclude it. */
bool preload_may_serve(const struct preload_real *real);

/* How many bytes to ask the driver for when an allocation of bytes is passed on: a multiple of 2 MiB if the options say
 * that such a block has pages of its own (mam-run --own-pages), else bytes. */
size_t preload_passed_bytes(size_t bytes);

/* The options.  NULL if they have not been read, or if this process is not served. */
const struct options_preload *preload_options_get(void);

/* Whether the options have been read.  The first call of most hooks reads them. */
bool preload_decided(void);

/* Reads the options if they have not been read.  *why: the reason why this process is not served, NULL if it is. */
const struct options_preload *preload_options_read(const char **why);

/* ---- Calls from inside a hook ---- */

/* How deep the calling thread is inside hooks.  Above 0 each hook passes on: the driver may call its own functions by
 * their exported names, and so reach a hook from inside a hook. */
extern __thread __attribute__((tls_model("initial-exec"), visibility("hidden"))) unsigned preload_depth;

/* ---- Calls that find no memory ---- */

/* What a call has done so far to get memory. */
struct preload_tries {
  unsigned own;        /* how often pools of this process were asked */
  unsigned vain_rings; /* how often all other processes were asked, and gave none */
  int64_t end_ns;      /* after this time (now_ns) they are asked no more; 0 before the first ring */
};

/* To be called when a call of the driver found no memory.  Returns true if a pool gave some back, or other processes
 * were asked: then the caller makes the call again.  *tries is all 0 before the first failure of a call. */
bool preload_make_room(struct preload_tries *tries);

/* Starts a thread that listens to other processes of the user: it gives back memory when one of them needs some.  Only
 * the first call does something, and only if the options want it. */
void preload_bell_start(void);

/* Asks the other processes for memory, until one gives some (*given), or all have answered.  False if there is none to
 * ask.  Waits for each of them, no longer than 0.1 s for one that says nothing and 1 s more for one that is giving. */
bool preload_bell_ring(bool *given);

/* In a forked child, which has no such thread. */
void preload_bell_forked(void);

/* preload_make_room, if result says that a call found no memory.  Else false, at the cost of a comparison. */
static inline bool preload_again(CUresult result, struct preload_tries *tries) {
  return __builtin_expect(result == CUDA_ERROR_OUT_OF_MEMORY, false) && preload_make_room(tries);
}

/* Around calls of the driver that the program did not ask for.  A stream capture of another thread, of which this
 * library may not know, forbids allocations.  In the relaxed mode the calls do not end it.  begin returns the mode for
 * end. */
CUstreamCaptureMode preload_relaxed_begin(const struct preload_real *real);
void preload_relaxed_end(const struct preload_real *real, CUstreamCaptureMode mode);

/* ---- Numbers ---- */

enum preload_count {
  PRELOAD_MALLOCS,        /* allocations served by a pool */
  PRELOAD_MALLOC_BYTES,   /* the bytes of these */
  PRELOAD_MALLOC_NS,      /* their time, if it is measured */
  PRELOAD_FREES,          /* frees of pools' blocks */
  PRELOAD_FREE_NS,        /* their time, if it is measured */
  PRELOAD_PASSED,         /* allocations passed on */
  PRELOAD_DRIVER_NS,      /* time of the driver's own pairs that preload_sample has made */
  PRELOAD_DRIVER_SAMPLES, /* their number */
  PRELOAD_COUNTS
};

/* Adds value to a count, if a summary was asked for. */
void preload_count_add(enum preload_count count, uint64_t value);

/* To be called when an allocation of bytes found no memory in a pool, nor in the driver after pools have given back
 * what they could.  Returns the driver's answer. */
CUresult preload_refused(CUresult result, size_t bytes);
/* Counts an allocation that is left to the driver.  asked: whether a pool was asked for it, and has said why not. */
void preload_passed(bool asked);

/* Whether a summary was asked for. */
bool preload_counts(void);

/* The time, or 0 if calls are not timed (mam-run --measure). */
uint64_t preload_start_ns(void);
uint64_t preload_now_ns(void);

/* To be called for each served allocation that is timed.  For some of them it times an allocation of bytes and a free
 * by the driver, for comparison. */
void preload_sample(const struct preload_real *real, size_t bytes);

/* ---- Memory of other processes ---- */

/* Forgets the handles that were opened in contexts that have ended. */
void preload_ipc_sweep(const struct preload_real *real);

/* Finds the block of another process that an address lies in.  False if it lies in none that was opened here. */
bool preload_ipc_block_at(uintptr_t address, uintptr_t *base, size_t *bytes);

/* ---- Blocks of graphs ---- */

/* A keeper holds the blocks that were allocated during one capture (preload_keep.c).  This makes one for a capture
 * that begins.  NULL if the host has no memory. */
struct preload_keeper *preload_keeper_new(void);

/* The capture has ended: gives the keeper of its blocks to the graph that it made (is_new) or added to, NULL if there
 * is none.  Without a user the keeper ends, and frees those of its blocks that the program has freed.  keeper may be
 * NULL.
 */
void preload_keeper_end(struct preload_keeper *keeper, void *graph, bool is_new);

/* The calling thread has just allocated a block, or is about to free it: the keepers of captures that go on hold it.
 * False if the host has no memory to remember that. */
bool preload_capture_keep(const struct preload_real *real, const struct client_block *block);

/* The same for a block that is about to be freed on a stream.  If that is captured, the holds are hard. */
bool preload_capture_keep_async(const struct preload_real *real, const struct client_block *block, CUstream stream);

/* An executable graph was launched on a stream.  If that is captured, the graph of the capture uses what the executable
 * uses. */
void preload_capture_launch(const struct preload_real *real, const void *executable, CUstream stream);

/* The graph of a capture that goes on uses what an executable graph uses. */
void preload_keeper_launch(struct preload_keeper *keeper, const void *executable);

/* How a keeper holds a block (preload_keep.c), from the weakest. */
enum preload_hold {
  PRELOAD_HOLD_SLIGHT, /* the driver alone would serve the program; another thread had begun the capture */
  PRELOAD_HOLD_SOFT,   /* the driver alone would serve the program */
  PRELOAD_HOLD_HARD    /* it would have refused the call */
};

/* A keeper holds a block from now on, at least so strongly, unless the program had freed it before.  False if the host
 * has no memory. */
bool preload_keep(struct preload_keeper *keeper, const struct client_block *block, enum preload_hold rank);

/* Gives the pool all blocks that the program has freed and that are held slightly at most; if there is none, those that
 * are held softly at most.  Whether there were some.  Without this call only so many of the newest are held back. */
bool preload_soft_end(void);

/* The bytes of all of these that are a pool's. */
size_t preload_soft_bytes(const void *pool);

enum preload_kept {
  PRELOAD_KEPT_NOT,         /* no keeper has the block: the caller frees it */
  PRELOAD_KEPT_FREED,       /* a keeper has it, and frees it when it ends */
  PRELOAD_KEPT_FREED_BEFORE /* the same, and the program had freed it before: an error of the program */
};

/* To be called when the program frees a block. */
enum preload_kept preload_kept_free(uintptr_t address);

/* Whether the program has freed the block, and a keeper still has it. */
bool preload_kept_freed(const struct client_block *block);

/* Forgets the blocks of contexts that have ended. */
void preload_kept_sweep(void);

/* ---- Where in the program ---- */

/* The first place outside of CUDA runtimes that the call will return to.  site: where the hook returns to; frame: the
 * hook's.  If none is found, site. */
const void *preload_site_find(const void *site, const void *frame);

/* Where in the program the hook was called: in a record outside of runtimes, else where it returns to. */
static inline __attribute__((always_inline)) const void *preload_site(void) {
  const void *site = __builtin_return_address(0);
  /* relaxed: the record is not read */
  bool records = atomic_load_explicit(mam_client.record_state, memory_order_relaxed) == RECORD_ON;
  return __builtin_expect(records, false) ? preload_site_find(site, __builtin_frame_address(0)) : site;
}

/* ---- Work ---- */

/* The stream that functions named *_ptsz mean by stream: to them NULL is the calling thread's own stream. */
static inline CUstream preload_stream_ptsz(CUstream stream) {
  return stream == NULL ? (CUstream)(uintptr_t)CU_STREAM_PER_THREAD : stream;
}

/* Whether this library knows of a capture that goes on, in any context.  A hint. */
bool preload_capturing(void);

#endif
