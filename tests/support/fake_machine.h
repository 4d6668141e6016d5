/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files of the fake driver share: its functions, its state, and the words for both.  fake_driver.c has calls,
 * contexts, memory by cuMemAlloc and the look-up of functions; fake_program.c what programs call and the library does
 * not; fake_work.c streams, work, events and captures; fake_heap.c what device heaps ask for;
 * fake_mapping.c memory that is mapped piece by piece.
 *
 * One mutex guards everything but what belongs to a thread.  Functions called work_..., stream_..., capture_... and the
 * like are called with it held.
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

/* What a test calls is seen outside, and of the driver's functions what fake_driver.map names. */
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

/* FUNCTION(name, first version of the signature written here, last one, arguments) */
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
  FUNCTION(cuGraphExecUpdate, 12000, INT_MAX, (void *executable, void *graph, void *outcome))                          \
  FUNCTION(cuMemAddressReserve, 10020, INT_MAX,                                                                        \
           (unsigned long long *address, size_t bytes, size_t alignment, unsigned long long fixed,                     \
            unsigned long long flags))                                                                                 \
  FUNCTION(cuMemAddressFree, 10020, INT_MAX, (unsigned long long address, size_t bytes))                               \
  FUNCTION(cuMemCreate, 10020, INT_MAX,                                                                                \
           (unsigned long long *handle, size_t bytes, const struct properties *properties, unsigned long long flags))  \
  FUNCTION(cuMemRelease, 10020, INT_MAX, (unsigned long long handle))                                                  \
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

/* As the driver has them. */
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

/* What a program that is linked with the driver, or asks dlsym, finds: the same function. */
#define EXPORT_AS(name, exported, arguments) EXPORT int exported arguments __attribute__((alias(#name)));

/* A further function that the look-up finds by a name at some versions, before those above. */
struct later_row {
  const char *name;
  int first;
  bool per_thread; /* with the flag for per-thread default streams */
  void (*function)(void);
};
extern const struct later_row later_rows[];
extern const size_t later_row_count;

/* ---- The machine's state ----------------------------------------------------------------------------------------- */

struct call_state {
  bool held; /* the next call waits */
  unsigned calls;
  unsigned countdown; /* calls until the injected error; 0 for none */
  int error;
  bool hidden;
};

struct context {
  bool alive;
  bool primary;
  int poison; /* what its work ended in */
  int device;
  unsigned retains;
  unsigned long long id;      /* never used twice */
  bool reaches[device_limit]; /* its kernels can use memory of cuMemAlloc of these devices, by peer access */
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

/* How a stream's work is ordered beside that of other streams: the legacy stream's after all earlier work of blocking
 * ones, theirs after its, and that of the others after nobody's. */
enum order { ORDER_LEGACY, ORDER_BLOCKING, ORDER_FREE };

/* A handle is the address of one of these and comes back once the stream is gone.  The default streams are here too,
 * without a handle. */
struct stream {
  bool alive;
  enum order order;
  struct context *context;
  unsigned long long id;            /* never used twice */
  unsigned long long thread_number; /* whose per-thread default stream it is; 0 for others */
  bool created;                     /* has a handle */
  bool capturing;
  bool capture_spoilt;
  int capture_mode;
  unsigned long long capture_id; /* of the latest; never used twice */
  unsigned long long capturing_thread;
};

struct event {
  bool alive;
  struct context *context;
  unsigned long long sequence; /* of its mark in the work; 0 if never recorded */
};

struct work;
struct physical;
struct mapping;
struct reservation;

struct machine {
  pthread_mutex_t mutex;
  pid_t process; /* that called cuInit; 0 before */
  int device_count;
  size_t capacity_bytes;
  size_t host_capacity_bytes;
  size_t largest_bytes;
  bool maps_nothing;                      /* no device can map memory piece by piece */
  bool shares_nothing;                    /* cuMemCreate refuses memory that other processes or adapters could use */
  bool peers[device_limit][device_limit]; /* the first can reach the second's memory, if the program asks for it */
  bool backed;                            /* what cuMemAlloc gives is really there */
  unsigned registered;                    /* pieces of host memory */
  unsigned long long last_id;             /* of contexts */
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
  struct stream elsewhere; /* the stream of fake_capture_begin: of no context, of another thread */
};

extern struct machine fake;

/* An entry remembers the id, so that a handle which is used again for another context is not taken for the first. */
struct stack_entry {
  struct context *context;
  unsigned long long id;
};

struct thread_state {
  struct stack_entry stack[stack_limit];
  int depth;
  int capture_mode;
  unsigned long long number; /* 0: has none yet */
};

extern _Thread_local struct thread_state thread;

void fake_lock(void);
void fake_unlock(void);

/* ---- fake_driver.c ----------------------------------------------------------------------------------------------- */

/* Takes the lock; what the call must answer at once, or SUCCESS for it to go on. */
int call_begin(enum call call);
int call_end(int result);

/* Where a test may hold the call: the lock is left meanwhile. */
void call_hold(enum call call);

bool context_known(const struct context *context);

/* Writes the calling thread's current context; what it answers if it cannot be used. */
int context_current(struct context **context);

int device_check(int device);

/* Of a kind on a device, mapped memory too. */
size_t memory_used(enum kind kind, int device);

/* The block of cuMemAlloc and its like that an address lies in, NULL if in none. */
struct block *memory_block_at(uintptr_t address);

/* Whether the driver has given it out, in one piece, and work of the context may use it; NULL: of one of its own
 * device. */
bool memory_holds(uintptr_t address, size_t bytes, const struct context *user);

/* Whether work of the context may use a block that the driver gave out in one piece. */
bool memory_reached(const struct block *block, const struct context *user);

/* ---- fake_work.c ------------------------------------------------------------------------------------------------- */

/* Waits for all work of the context by finishing it; a wait that had something to wait for counts. */
void context_finish(struct context *context, bool counts);
bool context_busy(const struct context *context);
/* Work, streams, events and captures of a context that ends. */
void context_drop(struct context *context);
/* The stream that a handle means; what the calls answer if it means none. */
int stream_of(const void *handle, struct stream **stream);
/* Whether unfinished work uses a piece of the range. */
bool work_uses(uintptr_t address, size_t bytes);
/* Whether the calling thread's captures, or those of others, forbid a call that might be unsafe; spoils them. */
int capture_check(void);
/* A call that looks at the whole context: spoils its captures in any mode. */
int capture_check_context(const struct context *context);

/* ---- fake_heap.c ------------------------------------------------------------------------------------------------- */

/* Memory for a block where blocks are backed, NULL if there is none. */
void *memory_back(size_t bytes);
void memory_unback(uintptr_t address, size_t bytes);

/* ---- fake_mapping.c ---------------------------------------------------------------------------------------------- */

/* Physical memory of a device, and in how many pieces over all devices. */
size_t mapping_used(int device);
unsigned mapping_count(void);
/* Whether the range is mapped without a gap, and work of the context may use it; NULL: of one of the memory's device.
 */
bool mapping_holds(uintptr_t address, size_t bytes, const struct context *user);

#pragma GCC visibility pop

#endif
