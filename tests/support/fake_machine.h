/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the fake driver share: its functions, its state, and its words.
 *
 *   fake_driver.c    calls, contexts, memory of cuMemAlloc, the look-up of functions
 *   fake_program.c   what programs call and the library does not
 *   fake_work.c      streams, work, events, captures
 *   fake_heap.c      what device heaps ask for
 *   fake_mapping.c   memory that is mapped piece by piece
 *
 * One mutex guards everything except what belongs to a thread.  The caller of a work_, stream_, capture_, context_,
 * memory_ or mapping_ function holds it.
 */
#ifndef MAM_TESTS_FAKE_MACHINE_H
#define MAM_TESTS_FAKE_MACHINE_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fake_driver.h"

/* The library exports what a test calls, and those of the driver's functions that fake_driver.map names. */
#define EXPORT __attribute__((visibility("default")))

#pragma GCC visibility push(hidden)

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  NOT_SUPPORTED = 801,
  CONTEXT_IS_DESTROYED = 709,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_IMPLICIT = 906,
};

enum { device_limit = 4, context_limit = 32, stack_limit = 16, stream_limit = 4096, event_limit = 1024 };
enum { mode_global, mode_thread_local, mode_relaxed };

/* ---- The functions ----------------------------------------------------------------------------------------------- */

/* FUNCTION(name, first version with the signature written here, last one, arguments) */
#define FUNCTIONS                                                                                                      \
  FUNCTION(cuInit, 2000, INT_MAX, (unsigned flags))                                                                    \
  FUNCTION(cuDriverGetVersion, 2020, INT_MAX, (int *version))                                                          \
  FUNCTION(cuGetErrorName, 6000, INT_MAX, (int error, const char **name))                                              \
  FUNCTION(cuGetErrorString, 6000, INT_MAX, (int error, const char **text))                                            \
  FUNCTION(cuDeviceGet, 2000, INT_MAX, (int *device, int ordinal))                                                     \
  FUNCTION(cuDeviceGetName, 2000, INT_MAX, (char *name, int length, int device))                                       \
  FUNCTION(cuDeviceGetAttribute, 2000, INT_MAX, (int *value, int attribute, int device))                               \
  FUNCTION(cuDeviceTotalMem, 3020, INT_MAX, (size_t * bytes, int device))                                              \
  FUNCTION(cuDeviceGetCount, 2000, INT_MAX, (int *count))                                                              \
  FUNCTION(cuDeviceCanAccessPeer, 4000, INT_MAX, (int *can, int device, int peer))                                     \
  FUNCTION(cuDevicePrimaryCtxGetState, 7000, INT_MAX, (int device, unsigned *flags, int *active))                      \
  FUNCTION(cuDevicePrimaryCtxRetain, 7000, INT_MAX, (struct context * *context, int device))                           \
  FUNCTION(cuDevicePrimaryCtxRelease, 7000, INT_MAX, (int device))                                                     \
  FUNCTION(cuCtxGetCurrent, 4000, INT_MAX, (struct context * *context))                                                \
  FUNCTION(cuCtxSetCurrent, 4000, INT_MAX, (struct context * context))                                                 \
  FUNCTION(cuCtxPushCurrent, 4000, INT_MAX, (struct context * context))                                                \
  FUNCTION(cuCtxPopCurrent, 4000, INT_MAX, (struct context * *context))                                                \
  FUNCTION(cuCtxGetId, 12000, INT_MAX, (struct context * context, unsigned long long *id))                             \
  FUNCTION(cuCtxGetDevice, 2000, 12999, (int *device))                                                                 \
  FUNCTION(cuCtxSynchronize, 2000, 12999, (void))                                                                      \
  FUNCTION(cuCtxRecordEvent, 12050, INT_MAX, (struct context * context, struct event * event))                         \
  FUNCTION(cuEventCreate, 2000, INT_MAX, (struct event * *event, unsigned flags))                                      \
  FUNCTION(cuEventDestroy, 4000, INT_MAX, (struct event * event))                                                      \
  FUNCTION(cuEventRecord, 2000, INT_MAX, (struct event * event, void *stream))                                         \
  FUNCTION(cuEventQuery, 2000, INT_MAX, (struct event * event))                                                        \
  FUNCTION(cuStreamGetId, 12000, INT_MAX, (void *stream, unsigned long long *id))                                      \
  FUNCTION(cuStreamIsCapturing, 10000, INT_MAX, (void *stream, int *status))                                           \
  FUNCTION(cuStreamGetCaptureInfo, 10010, 11029, (void *stream, int *status, unsigned long long *id))                  \
  FUNCTION(cuStreamSynchronize, 2000, INT_MAX, (void *stream))                                                         \
  FUNCTION(cuThreadExchangeStreamCaptureMode, 10010, INT_MAX, (int *mode))                                             \
  FUNCTION(cuMemGetInfo, 3020, INT_MAX, (size_t * free_bytes, size_t * total_bytes))                                   \
  FUNCTION(cuMemAlloc, 3020, INT_MAX, (unsigned long long *address, size_t bytes))                                     \
  FUNCTION(cuMemFree, 3020, INT_MAX, (unsigned long long address))                                                     \
  FUNCTION(cuMemAllocManaged, 6000, INT_MAX, (unsigned long long *address, size_t bytes, unsigned flags))              \
  FUNCTION(cuMemHostAlloc, 2020, INT_MAX, (void **address, size_t bytes, unsigned flags))                              \
  FUNCTION(cuMemFreeHost, 2000, INT_MAX, (void *address))                                                              \
  FUNCTION(cuMemAllocAsync, 11020, INT_MAX, (unsigned long long *address, size_t bytes, void *stream))                 \
  FUNCTION(cuMemFreeAsync, 11020, INT_MAX, (unsigned long long address, void *stream))                                 \
  FUNCTION(cuMemAllocPitch, 3020, INT_MAX,                                                                             \
           (unsigned long long *address, size_t *pitch, size_t width, size_t height, unsigned element_bytes))          \
  FUNCTION(cuMemGetAddressRange, 3020, INT_MAX, (unsigned long long *base, size_t *bytes, unsigned long long address)) \
  FUNCTION(cuPointerGetAttribute, 4000, INT_MAX, (void *value, int attribute, unsigned long long address))             \
  FUNCTION(cuPointerGetAttributes, 7000, INT_MAX,                                                                      \
           (unsigned count, int *attributes, void **values, unsigned long long address))                               \
  FUNCTION(cuIpcGetMemHandle, 4010, INT_MAX, (struct ipc_handle * handle, unsigned long long address))                 \
  FUNCTION(cuIpcOpenMemHandle, 11000, INT_MAX,                                                                         \
           (unsigned long long *address, struct ipc_handle handle, unsigned flags))                                    \
  FUNCTION(cuIpcCloseMemHandle, 4010, INT_MAX, (unsigned long long address))                                           \
  FUNCTION(cuCtxDestroy, 4000, INT_MAX, (struct context * context))                                                    \
  FUNCTION(cuDevicePrimaryCtxReset, 7000, INT_MAX, (int device))                                                       \
  FUNCTION(cuStreamGetCtx, 9020, INT_MAX, (void *stream, struct context **context))                                    \
  FUNCTION(cuStreamDestroy, 4000, INT_MAX, (void *stream))                                                             \
  FUNCTION(cuStreamBeginCapture, 10010, INT_MAX, (void *stream, int mode))                                             \
  FUNCTION(cuStreamEndCapture, 10000, INT_MAX, (void *stream, void **graph))                                           \
  FUNCTION(cuGraphInstantiateWithFlags, 11040, INT_MAX, (void **executable, void *graph, unsigned long long flags))    \
  FUNCTION(cuGraphDestroy, 10000, INT_MAX, (void *graph))                                                              \
  FUNCTION(cuGraphExecDestroy, 10000, INT_MAX, (void *executable))                                                     \
  FUNCTION(cuGraphClone, 10000, INT_MAX, (void **clone, void *graph))                                                  \
  FUNCTION(cuGraphAddChildGraphNode, 10000, INT_MAX,                                                                   \
           (void **node, void *graph, const void *nodes, size_t count, void *child))                                   \
  FUNCTION(cuGraphChildGraphNodeGetGraph, 10000, INT_MAX, (void *node, void **graph))                                  \
  FUNCTION(cuGraphCreate, 10000, INT_MAX, (void **graph, unsigned flags))                                              \
  FUNCTION(cuGraphDestroyNode, 10000, INT_MAX, (void *node))                                                           \
  FUNCTION(cuGraphNodeFindInClone, 10000, INT_MAX, (void **node, void *original, void *clone))                         \
  FUNCTION(cuGraphNodeSetParams, 12020, INT_MAX, (void *node, int *parameters))                                        \
  FUNCTION(cuGraphAddNode, 12020, INT_MAX,                                                                             \
           (void **node, void *graph, const void *nodes, size_t count, int *parameters))                               \
  FUNCTION(cuGraphExecChildGraphNodeSetParams, 11010, INT_MAX, (void *executable, void *node, void *child))            \
  FUNCTION(cuGraphLaunch, 10000, INT_MAX, (void *executable, void *stream))                                            \
  FUNCTION(cuStreamBeginCaptureToGraph, 12030, INT_MAX,                                                                \
           (void *stream, void *graph, const void *nodes, const void *edges, size_t count, int mode))                  \
  FUNCTION(cuGraphExecUpdate, 12000, INT_MAX, (void *executable, void *graph, void *outcome))                          \
  FUNCTION(cuMemAddressReserve, 10020, INT_MAX,                                                                        \
           (unsigned long long *address, size_t bytes, size_t alignment, unsigned long long fixed,                     \
            unsigned long long flags))                                                                                 \
  FUNCTION(cuMemAddressFree, 10020, INT_MAX, (unsigned long long address, size_t bytes))                               \
  FUNCTION(cuMemCreate, 10020, INT_MAX,                                                                                \
           (unsigned long long *handle, size_t bytes, const struct properties *properties, unsigned long long flags))  \
  FUNCTION(cuMemRelease, 10020, INT_MAX, (unsigned long long handle))                                                  \
  FUNCTION(cuMemRetainAllocationHandle, 11000, INT_MAX, (unsigned long long *handle, void *address))                   \
  FUNCTION(                                                                                                            \
      cuMemMap, 10020, INT_MAX,                                                                                        \
      (unsigned long long address, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags))  \
  FUNCTION(cuMemUnmap, 10020, INT_MAX, (unsigned long long address, size_t bytes))                                     \
  FUNCTION(cuMemSetAccess, 10020, INT_MAX,                                                                             \
           (unsigned long long address, size_t bytes, const struct access *access, size_t count))                      \
  FUNCTION(cuModuleLoadData, 2000, INT_MAX, (void **module, const void *image))                                        \
  FUNCTION(cuModuleGetFunction, 2000, INT_MAX, (void **function, void *module, const char *name))                      \
  FUNCTION(cuLaunchKernel, 4000, INT_MAX,                                                                              \
           (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
            unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra))                   \
  FUNCTION(cuLaunchCooperativeKernel, 9000, INT_MAX,                                                                   \
           (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,     \
            unsigned block_z, unsigned shared_bytes, void *stream, void **parameters))                                 \
  FUNCTION(cuMemcpyHtoDAsync, 3020, INT_MAX, (unsigned long long to, const void *from, size_t bytes, void *stream))    \
  FUNCTION(cuMemcpyDtoHAsync, 3020, INT_MAX, (void *to, unsigned long long from, size_t bytes, void *stream))          \
  FUNCTION(cuMemHostRegister, 6050, INT_MAX, (void *address, size_t bytes, unsigned flags))                            \
  FUNCTION(cuMemHostUnregister, 4000, INT_MAX, (void *address))                                                        \
  FUNCTION(cuMemHostGetDevicePointer, 3020, INT_MAX, (unsigned long long *on_device, void *address, unsigned flags))   \
  FUNCTION(cuStreamCreate, 2000, INT_MAX, (void **stream, unsigned flags))

enum call {
#define FUNCTION(name, first, last, arguments) CALL_##name,
  FUNCTIONS
#undef FUNCTION
      call_count
};

struct context;
struct event;

/* These structs have the driver's layout. */
struct location {
  int type, id;
};
struct properties {
  int type, requested_handle_types;
  struct location location;
  void *windows;
  unsigned char compression, rdma, rest[6];
};
struct access {
  struct location location;
  int flags;
};

struct ipc_handle {
  unsigned char bytes[64];
};

#pragma GCC visibility push(default)
#define FUNCTION(name, first, last, arguments) int name arguments;
FUNCTIONS
#undef FUNCTION
#pragma GCC visibility pop

/* Exports a function under a second name, for a program that is linked with the driver or calls dlsym. */
#define EXPORT_AS(name, exported, arguments) EXPORT int exported arguments __attribute__((alias(#name)));

/* A further function that the look-up finds by a name at some versions.  It comes before those above. */
struct later_row {
  const char *name;
  int first;
  bool per_thread; /* only with the flag for per-thread default streams */
  void (*function)(void);
};
extern const struct later_row later_rows[];
extern const size_t later_row_count;

/* ---- The machine's state ----------------------------------------------------------------------------------------- */

struct call_state {
  bool held; /* the next call waits at its end */
  unsigned calls;
  unsigned countdown; /* calls until the injected error, that one included; 0: none */
  int error;
  bool hidden;
};

struct context {
  bool alive;
  bool primary;
  int poison; /* the error that its work ended in */
  int device;
  unsigned retains;
  unsigned long long id; /* never used twice */
  /* A device is true if kernels of the context can use its memory of cuMemAlloc, by peer access. */
  bool reaches[device_limit];
};

enum kind { KIND_DEVICE, KIND_PINNED, KIND_MANAGED, kind_count };

struct block {
  uintptr_t address;
  size_t bytes;
  size_t requested_bytes;
  unsigned long long id; /* never used twice */
  enum kind kind;
  bool backed;
  int device;
  struct context *owner;
  struct block *next;
};

/* How a stream's work is ordered among that of other streams.  The legacy stream's work comes after all earlier work of
 * blocking streams, and theirs after its.  Work of the others waits for no other stream. */
enum order { ORDER_LEGACY, ORDER_BLOCKING, ORDER_FREE };

/* A handle is the address of one of these, and it comes back after the stream is gone.  The default streams are here
 * too, without a handle. */
struct stream {
  bool alive;
  enum order order;
  struct context *context;
  unsigned long long id; /* never used twice */
  /* The thread whose default stream it is; 0 for other streams. */
  unsigned long long thread_number;
  bool created; /* has a handle */
  bool capturing;
  bool capture_spoilt;
  int capture_mode;
  unsigned long long capture_id; /* of the latest capture; never used twice */
  unsigned long long capturing_thread;
};

struct event {
  bool alive;
  struct context *context;
  unsigned long long sequence; /* of its mark in the list of work; 0 if it was never recorded */
};

struct work;
struct physical;
struct mapping;
struct reservation;

enum { process_limit = 16 };

/* What processes hold of the devices' memory, in pages that they share. */
struct shared {
  pthread_mutex_t mutex; /* held by a call as long as the process's own */
  unsigned processes;    /* have begun */
  size_t used_bytes[process_limit][device_limit];
};

struct machine {
  pthread_mutex_t mutex;
  struct shared *shared; /* NULL: this process has the devices for itself */
  unsigned number;       /* of this process in shared */
  pid_t process;         /* the process that called cuInit; 0 before */
  int device_count;
  size_t capacity_bytes;
  size_t host_capacity_bytes;
  size_t largest_bytes;
  bool maps_nothing; /* no device can map memory piece by piece */
  /* cuMemCreate refuses memory that other processes or adapters could use. */
  bool shares_nothing;
  /* The first device can reach the second one's memory, if the program asks for it. */
  bool peers[device_limit][device_limit];
  /* cuMemAlloc gives real memory. */
  bool backed;
  /* How many pieces of host memory are registered. */
  unsigned registered;
  unsigned long long last_id; /* of contexts */
  unsigned long long last_stream_id;
  unsigned long long last_capture_id;
  unsigned long long last_thread_number;
  unsigned long long last_sequence; /* of work */
  unsigned long long last_handle;   /* of physical memory */
  struct context primaries[device_limit];
  struct context others[context_limit];
  struct stream streams[stream_limit];
  struct event events[event_limit];
  struct block *blocks;       /* by address */
  struct work *first, *last;  /* in the order of submission */
  struct physical *physicals; /* memory of cuMemCreate */
  struct mapping *mappings;   /* by address */
  struct reservation *reservations;
  struct call_state calls[call_count];
  unsigned lookups;
  unsigned failures;
  unsigned waits;
  unsigned wrong_frees;
  unsigned violations;
  unsigned faults;
  unsigned captures_invalidated;
  /* The stream of fake_capture_begin, which belongs to no context and to another thread. */
  struct stream elsewhere;
};

extern struct machine fake;

/* An entry of a thread's context stack.  It has the id too, because a handle may come back for another context. */
struct stack_entry {
  struct context *context;
  unsigned long long id;
};

struct thread_state {
  struct stack_entry stack[stack_limit];
  int depth;
  int capture_mode;
  unsigned long long number; /* 0: the thread has none yet */
};

extern _Thread_local struct thread_state thread;

void fake_lock(void);
void fake_unlock(void);

/* ---- fake_driver.c ----------------------------------------------------------------------------------------------- */

/* Takes the lock.  Returns SUCCESS if the call may go on, else what it answers at once.  call_end leaves the lock and
 * returns result. */
int call_begin(enum call call);
int call_end(int result);

/* The place where a test may hold the call.  The lock is left meanwhile. */
void call_hold(enum call call);

bool context_known(const struct context *context);

/* Writes the calling thread's current context.  Returns what a call answers that needs it. */
int context_current(struct context **context);

int device_check(int device);

/* The memory of a kind that is taken on a device, mapped memory included. */
size_t memory_used(enum kind kind, int device);

/* What other processes hold of a device's memory. */
size_t memory_used_elsewhere(int device);

/* The block of cuMemAlloc or a similar function in which an address lies.  NULL if there is none. */
struct block *memory_block_at(uintptr_t address);

/* Whether the range was given out in one piece and work of the context may use it.  user NULL: work of a context of the
 * memory's own device. */
bool memory_holds(uintptr_t address, size_t bytes, const struct context *user);

/* Whether work of the context may use a block.  user NULL: as for memory_holds. */
bool memory_reached(const struct block *block, const struct context *user);

/* ---- fake_work.c ------------------------------------------------------------------------------------------------- */

/* Finishes all work of the context.  counts: it counts as a wait if there was work. */
void context_finish(struct context *context, bool counts);
bool context_busy(const struct context *context);
/* Ends the work, streams, events and captures of a context that ends. */
void context_drop(struct context *context);
/* Writes the stream that a handle means.  Returns what a call answers that is given the handle. */
int stream_of(const void *handle, struct stream **stream);
/* Whether unfinished work uses a part of the range. */
bool work_uses(uintptr_t address, size_t bytes);
/* Whether a capture, of the calling thread or another one, forbids a call that might be unsafe.  Spoils those captures.
 * Returns what the call answers. */
int capture_check(void);
/* The same for a call about the whole context.  It spoils all captures there, in any mode. */
int capture_check_context(const struct context *context);

/* ---- fake_heap.c ------------------------------------------------------------------------------------------------- */

/* Real memory for a block.  NULL if the host has none. */
void *memory_back(size_t bytes);
void memory_unback(uintptr_t address, size_t bytes);

/* ---- fake_mapping.c ---------------------------------------------------------------------------------------------- */

/* mapping_used: physical memory of a device, in bytes.  mapping_count: of all devices, in pieces. */
size_t mapping_used(int device);
unsigned mapping_count(void);
/* Whether the range is mapped without a gap and work of the context may use it.  user NULL: work of a context of the
 * memory's own device. */
bool mapping_holds(uintptr_t address, size_t bytes, const struct context *user);

#pragma GCC visibility pop

#endif
