/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake CUDA driver: see fake_driver.h.  One mutex guards everything but what belongs to a thread: its context
 * stack and its capture mode.
 *
 * Exported are the two look-up functions that programs take by dlsym; every other function is found through them, at
 * the versions where it has the signature written here (those of cudaTypedefs.h), and nowhere else.
 */
#include "fake_driver.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  CONTEXT_IS_DESTROYED = 709,
  CAPTURE_UNSUPPORTED = 900,
};

enum { device_limit = 4, context_limit = 32, stack_limit = 16, mode_relaxed = 2 };

/* ---- The functions ----------------------------------------------------------------------------------------------- */

/* FUNCTION(name, first version of the signature written here, last one) */
#define FUNCTIONS                                                                                                      \
  FUNCTION(cuInit, 2000, INT_MAX)                                                                                      \
  FUNCTION(cuDriverGetVersion, 2020, INT_MAX)                                                                          \
  FUNCTION(cuGetErrorName, 6000, INT_MAX)                                                                              \
  FUNCTION(cuGetErrorString, 6000, INT_MAX)                                                                            \
  FUNCTION(cuDeviceGet, 2000, INT_MAX)                                                                                 \
  FUNCTION(cuDeviceGetName, 2000, INT_MAX)                                                                             \
  FUNCTION(cuDevicePrimaryCtxRetain, 7000, INT_MAX)                                                                    \
  FUNCTION(cuDevicePrimaryCtxRelease, 7000, INT_MAX)                                                                   \
  FUNCTION(cuCtxGetCurrent, 4000, INT_MAX)                                                                             \
  FUNCTION(cuCtxSetCurrent, 4000, INT_MAX)                                                                             \
  FUNCTION(cuCtxPushCurrent, 4000, INT_MAX)                                                                            \
  FUNCTION(cuCtxPopCurrent, 4000, INT_MAX)                                                                             \
  FUNCTION(cuCtxGetId, 12000, INT_MAX)                                                                                 \
  FUNCTION(cuCtxSynchronize, 2000, 12999)                                                                              \
  FUNCTION(cuThreadExchangeStreamCaptureMode, 10010, INT_MAX)                                                          \
  FUNCTION(cuMemGetInfo, 3020, INT_MAX)                                                                                \
  FUNCTION(cuMemAlloc, 3020, INT_MAX)                                                                                  \
  FUNCTION(cuMemFree, 3020, INT_MAX)                                                                                   \
  FUNCTION(cuMemAllocManaged, 6000, INT_MAX)                                                                           \
  FUNCTION(cuMemHostAlloc, 2020, INT_MAX)                                                                              \
  FUNCTION(cuMemFreeHost, 2000, INT_MAX)                                                                               \
  FUNCTION(cuStreamSynchronize, 2000, INT_MAX)                                                                         \
  FUNCTION(cuMemAllocAsync, 11020, INT_MAX)                                                                            \
  FUNCTION(cuMemFreeAsync, 11020, INT_MAX)

enum call {
#define FUNCTION(name, first, last) CALL_##name,
  FUNCTIONS
#undef FUNCTION
      call_count
};

static const char *const call_names[] = {
#define FUNCTION(name, first, last) #name,
    FUNCTIONS
#undef FUNCTION
};

struct call_state {
  unsigned calls;
  unsigned countdown; /* calls until the injected error; 0 for none */
  int error;
  bool hidden;
};

/* ---- The machine's state ----------------------------------------------------------------------------------------- */

struct context {
  bool alive;
  bool primary;
  bool pending; /* submitted work is unfinished */
  int poison;   /* what its work ended in */
  int device;
  unsigned retains;
  unsigned long long id; /* never used twice */
};

enum kind { KIND_DEVICE, KIND_PINNED, KIND_MANAGED, kind_count };

struct block {
  uintptr_t address;
  size_t bytes;
  enum kind kind;
  int device;
  struct context *owner;
  struct block *next;
};

static struct {
  pthread_mutex_t mutex;
  pid_t process; /* that called cuInit; 0 before */
  int device_count;
  size_t capacity_bytes;
  size_t host_capacity_bytes;
  size_t largest_bytes;
  unsigned long long last_id;
  struct context primaries[device_limit];
  struct context others[context_limit];
  struct block *blocks; /* by address */
  struct call_state calls[call_count];
  unsigned lookups;
  unsigned failures;
  unsigned waits;
  unsigned wrong_frees;
  unsigned violations;
  bool capturing;
  bool capture_spoilt;
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER,
          .device_count = 1,
          .capacity_bytes = (size_t)4 << 30,
          .host_capacity_bytes = (size_t)64 << 30};

/* An entry remembers the id, so that a handle which is used again for another context is not taken for the first. */
struct stack_entry {
  struct context *context;
  unsigned long long id;
};

static _Thread_local struct {
  struct stack_entry stack[stack_limit];
  int depth;
  int capture_mode;
} thread;

static void fake_lock(void) { (void)pthread_mutex_lock(&fake.mutex); }
static void fake_unlock(void) { (void)pthread_mutex_unlock(&fake.mutex); }

/* A child of fork gets the mutex open, whichever thread held it. */
__attribute__((constructor)) static void fake_construct(void) {
  (void)pthread_atfork(fake_lock, fake_unlock, fake_unlock);
}

/* ---- A call's beginning and end ---------------------------------------------------------------------------------- */

/* These answer before cuInit and in a forked child too. */
static bool call_needs_init(enum call call) {
  return call != CALL_cuInit && call != CALL_cuDriverGetVersion && call != CALL_cuGetErrorName &&
         call != CALL_cuGetErrorString && call != CALL_cuThreadExchangeStreamCaptureMode;
}

/* Takes the lock; what the call must answer at once, or SUCCESS for it to go on. */
static int call_begin(enum call call) {
  fake_lock();
  struct call_state *state = &fake.calls[call];
  state->calls++;
  if (state->countdown > 0 && --state->countdown == 0) {
    fake.failures++;
    return state->error;
  }
  return call_needs_init(call) && fake.process != getpid() ? NOT_INITIALIZED : SUCCESS;
}

static int call_end(int result) {
  fake_unlock();
  return result;
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

static bool context_known(const struct context *context) {
  return (context >= fake.primaries && context < fake.primaries + device_limit) ||
         (context >= fake.others && context < fake.others + context_limit);
}

static void context_begin(struct context *context, int device) {
  context->alive = true;
  context->pending = false;
  context->poison = SUCCESS;
  context->device = device;
  context->id = ++fake.last_id;
}

static void context_end(struct context *context) {
  context->alive = false;
  struct block **link = &fake.blocks;
  while (*link != NULL) {
    struct block *block = *link;
    if (block->owner != context) {
      link = &block->next;
      continue;
    }
    *link = block->next;
    free(block);
  }
}

static bool entry_alive(const struct stack_entry *entry) {
  return entry->context->alive && (entry->context->primary || entry->context->id == entry->id);
}

/* Writes the current context, if it can be used. */
static int context_current(struct context **context) {
  if (thread.depth == 0)
    return INVALID_CONTEXT;
  const struct stack_entry *top = &thread.stack[thread.depth - 1];
  if (!entry_alive(top))
    return CONTEXT_IS_DESTROYED;
  *context = top->context;
  return top->context->poison;
}

static int stack_push(struct context *context) {
  if (!context_known(context) || thread.depth == stack_limit)
    return INVALID_CONTEXT;
  if (!context->alive)
    fake.violations++; /* the real one answers success too */
  thread.stack[thread.depth++] = (struct stack_entry){context, context->id};
  return SUCCESS;
}

static int stack_pop(struct context **context) {
  if (thread.depth == 0)
    return INVALID_CONTEXT;
  const struct stack_entry *top = &thread.stack[--thread.depth];
  if (!entry_alive(top) && !top->context->primary)
    fake.violations++; /* corrupts the heap of the real one */
  if (context != NULL)
    *context = top->context;
  return SUCCESS;
}

/* Unlike a pop, this does no harm where the current context is destroyed. */
static int stack_replace(struct context *context) {
  if (thread.depth > 0)
    thread.depth--;
  return context != NULL ? stack_push(context) : SUCCESS;
}

/* Waits for the context's work by finishing it. */
static int context_wait(struct context *context) {
  if (fake.capturing)
    fake.capture_spoilt = true;
  if (context->pending)
    fake.waits++;
  context->pending = false;
  return context->poison;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Each kind and device has a window of addresses of its own. */
static uintptr_t window_begin(enum kind kind, int device) {
  return ((uintptr_t)(kind + 1) << 44) + ((uintptr_t)device << 40);
}

static size_t memory_used(enum kind kind, int device) {
  size_t used = 0;
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    if (block->kind == kind && (kind != KIND_DEVICE || block->device == device))
      used += block->bytes;
  return used;
}

static bool memory_fits(enum kind kind, int device, size_t bytes) {
  size_t capacity = kind == KIND_DEVICE ? fake.capacity_bytes : fake.host_capacity_bytes;
  size_t used = memory_used(kind, device);
  return used <= capacity && bytes <= capacity - used && (fake.largest_bytes == 0 || bytes <= fake.largest_bytes);
}

/* The lowest gap of the window that is large enough, so addresses are used again as soon as they can be. */
static void block_place(struct block *block) {
  struct block **link = &fake.blocks;
  uintptr_t address = window_begin(block->kind, block->device);
  while (*link != NULL && (*link)->address < address)
    link = &(*link)->next;
  while (*link != NULL && (*link)->address - address < block->bytes) {
    address = (*link)->address + (*link)->bytes;
    link = &(*link)->next;
  }
  block->address = address;
  block->next = *link;
  *link = block;
}

static int capture_check(void) {
  if (!fake.capturing || thread.capture_mode == mode_relaxed)
    return SUCCESS;
  fake.capture_spoilt = true;
  return CAPTURE_UNSUPPORTED;
}

static int memory_take(enum kind kind, size_t bytes, uintptr_t *address) {
  struct context *context = NULL;
  int error = context_current(&context);
  if (error == SUCCESS)
    error = address == NULL || bytes == 0 ? INVALID_VALUE : capture_check();
  if (error != SUCCESS)
    return error;
  if (bytes > SIZE_MAX - FAKE_GRANULARITY_BYTES)
    return OUT_OF_MEMORY;
  bytes = (bytes + FAKE_GRANULARITY_BYTES - 1) / FAKE_GRANULARITY_BYTES * FAKE_GRANULARITY_BYTES;
  struct block *block = memory_fits(kind, context->device, bytes) ? malloc(sizeof *block) : NULL;
  if (block == NULL)
    return OUT_OF_MEMORY;
  *block = (struct block){.bytes = bytes, .kind = kind, .device = context->device, .owner = context};
  block_place(block);
  *address = block->address;
  return SUCCESS;
}

/* Works with any context current or none, but not with one that is destroyed. */
static int memory_give(uintptr_t address, bool pinned) {
  struct context *current;
  if (address == 0)
    return SUCCESS;
  if (context_current(&current) == CONTEXT_IS_DESTROYED)
    return CONTEXT_IS_DESTROYED;
  struct block **link = &fake.blocks;
  while (*link != NULL && ((*link)->address != address || ((*link)->kind == KIND_PINNED) != pinned))
    link = &(*link)->next;
  struct block *block = *link;
  if (block == NULL) {
    fake.wrong_frees++;
    return INVALID_VALUE;
  }
  int error = capture_check();
  if (error == SUCCESS)
    error = block->owner->poison;
  if (error != SUCCESS)
    return error;
  if (block->owner->pending)
    fake.waits++;
  block->owner->pending = false;
  *link = block->next;
  free(block);
  return SUCCESS;
}

/* ---- The driver's functions, as cuda.h declares them ------------------------------------------------------------- */

static int cuInit(unsigned flags) {
  int error = call_begin(CALL_cuInit);
  if (error == SUCCESS)
    error = flags != 0 ? INVALID_VALUE : fake.device_count == 0 ? NO_DEVICE : SUCCESS;
  if (error == SUCCESS && fake.process != 0 && fake.process != getpid())
    error = NOT_INITIALIZED;
  if (error == SUCCESS)
    fake.process = getpid();
  return call_end(error);
}

static int cuDriverGetVersion(int *version) {
  int error = call_begin(CALL_cuDriverGetVersion);
  if (error == SUCCESS)
    *version = 13000;
  return call_end(error);
}

struct error_row {
  int error;
  const char *name;
  const char *text;
};

static const struct error_row error_rows[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_row *error_find(int error) {
  for (size_t i = 0; i < sizeof error_rows / sizeof error_rows[0]; i++)
    if (error_rows[i].error == error)
      return &error_rows[i];
  return NULL;
}

static int cuGetErrorName(int error, const char **name) {
  int result = call_begin(CALL_cuGetErrorName);
  const struct error_row *row = error_find(error);
  if (result == SUCCESS) {
    *name = row == NULL ? NULL : row->name;
    result = row == NULL ? INVALID_VALUE : SUCCESS;
  }
  return call_end(result);
}

static int cuGetErrorString(int error, const char **text) {
  int result = call_begin(CALL_cuGetErrorString);
  const struct error_row *row = error_find(error);
  if (result == SUCCESS) {
    *text = row == NULL ? NULL : row->text;
    result = row == NULL ? INVALID_VALUE : SUCCESS;
  }
  return call_end(result);
}

static int device_check(int device) { return device < 0 || device >= fake.device_count ? INVALID_DEVICE : SUCCESS; }

static int cuDeviceGet(int *device, int ordinal) {
  int error = call_begin(CALL_cuDeviceGet);
  if (error == SUCCESS)
    error = device_check(ordinal);
  if (error == SUCCESS)
    *device = ordinal;
  return call_end(error);
}

static int cuDeviceGetName(char *name, int length, int device) {
  int error = call_begin(CALL_cuDeviceGetName);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS && length > 0) {
    (void)strncpy(name, "imaginary device", (size_t)length);
    name[length - 1] = '\0';
  }
  return call_end(error);
}

static struct context *primary_retain(int device) {
  struct context *context = &fake.primaries[device];
  if (!context->alive)
    context_begin(context, device);
  context->primary = true;
  context->retains++;
  return context;
}

static int cuDevicePrimaryCtxRetain(struct context **context, int device) {
  int error = call_begin(CALL_cuDevicePrimaryCtxRetain);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS)
    *context = primary_retain(device);
  return call_end(error);
}

static int cuDevicePrimaryCtxRelease(int device) {
  int error = call_begin(CALL_cuDevicePrimaryCtxRelease);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS && fake.primaries[device].retains == 0)
    error = INVALID_CONTEXT;
  if (error == SUCCESS && --fake.primaries[device].retains == 0)
    context_end(&fake.primaries[device]);
  return call_end(error);
}

static int cuCtxGetCurrent(struct context **context) {
  int error = call_begin(CALL_cuCtxGetCurrent);
  if (error == SUCCESS)
    *context = thread.depth == 0 ? NULL : thread.stack[thread.depth - 1].context;
  return call_end(error);
}

static int cuCtxPushCurrent(struct context *context) {
  int error = call_begin(CALL_cuCtxPushCurrent);
  return call_end(error == SUCCESS ? stack_push(context) : error);
}

static int cuCtxPopCurrent(struct context **context) {
  int error = call_begin(CALL_cuCtxPopCurrent);
  return call_end(error == SUCCESS ? stack_pop(context) : error);
}

static int cuCtxSetCurrent(struct context *context) {
  int error = call_begin(CALL_cuCtxSetCurrent);
  if (error == SUCCESS && context != NULL && !context_known(context))
    error = INVALID_CONTEXT;
  if (error == SUCCESS)
    error = stack_replace(context);
  return call_end(error);
}

static int cuCtxGetId(struct context *context, unsigned long long *id) {
  int error = call_begin(CALL_cuCtxGetId);
  if (error == SUCCESS && context == NULL) {
    error = context_current(&context); /* with what its work ended in, unlike the question by handle */
  } else if (error == SUCCESS) {
    error = !context_known(context) ? INVALID_CONTEXT : context->alive ? SUCCESS : CONTEXT_IS_DESTROYED;
  }
  if (error == SUCCESS)
    *id = context->id;
  return call_end(error);
}

static int current_wait(void) {
  struct context *context;
  int error = context_current(&context);
  if (error == SUCCESS)
    error = context_wait(context);
  return error == SUCCESS && fake.capturing ? CAPTURE_UNSUPPORTED : error;
}

static int cuCtxSynchronize(void) {
  int error = call_begin(CALL_cuCtxSynchronize);
  return call_end(error == SUCCESS ? current_wait() : error);
}

static int cuStreamSynchronize(void *stream) {
  (void)stream;
  int error = call_begin(CALL_cuStreamSynchronize);
  return call_end(error == SUCCESS ? current_wait() : error);
}

static int cuThreadExchangeStreamCaptureMode(int *mode) {
  int error = call_begin(CALL_cuThreadExchangeStreamCaptureMode);
  if (error == SUCCESS && (*mode < 0 || *mode > mode_relaxed))
    error = INVALID_VALUE;
  if (error == SUCCESS) {
    int before = thread.capture_mode;
    thread.capture_mode = *mode;
    *mode = before;
  }
  return call_end(error);
}

static int cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  struct context *context = NULL;
  int error = call_begin(CALL_cuMemGetInfo);
  if (error == SUCCESS)
    error = context_current(&context);
  if (error == SUCCESS) {
    size_t used = memory_used(KIND_DEVICE, context->device);
    *free_bytes = used < fake.capacity_bytes ? fake.capacity_bytes - used : 0;
    *total_bytes = fake.capacity_bytes;
  }
  return call_end(error);
}

static int cuMemAlloc(unsigned long long *address, size_t bytes) {
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemAlloc);
  if (error == SUCCESS)
    error = memory_take(KIND_DEVICE, bytes, &found);
  if (error == SUCCESS)
    *address = found;
  return call_end(error);
}

static int cuMemFree(unsigned long long address) {
  int error = call_begin(CALL_cuMemFree);
  return call_end(error == SUCCESS ? memory_give((uintptr_t)address, false) : error);
}

static int cuMemAllocManaged(unsigned long long *address, size_t bytes, unsigned flags) {
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemAllocManaged);
  if (error == SUCCESS)
    error = flags == 1 || flags == 2 ? memory_take(KIND_MANAGED, bytes, &found) : INVALID_VALUE;
  if (error == SUCCESS)
    *address = found;
  return call_end(error);
}

static int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemHostAlloc);
  if (error == SUCCESS)
    error = flags <= 7 ? memory_take(KIND_PINNED, bytes, &found) : INVALID_VALUE;
  if (error == SUCCESS)
    *address = (void *)found;
  return call_end(error);
}

static int cuMemFreeHost(void *address) {
  int error = call_begin(CALL_cuMemFreeHost);
  return call_end(error == SUCCESS ? memory_give((uintptr_t)address, true) : error);
}

static int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream) {
  (void)stream;
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemAllocAsync);
  if (error == SUCCESS)
    error = memory_take(KIND_DEVICE, bytes, &found);
  if (error == SUCCESS)
    *address = found;
  return call_end(error);
}

static int cuMemFreeAsync(unsigned long long address, void *stream) {
  (void)stream;
  int error = call_begin(CALL_cuMemFreeAsync);
  return call_end(error == SUCCESS ? memory_give((uintptr_t)address, false) : error);
}

/* ---- Looking functions up ---------------------------------------------------------------------------------------- */

typedef void (*any_function)(void);

struct function_row {
  any_function function;
  int first;
  int last;
};

static const struct function_row function_rows[] = {
#define FUNCTION(name, first, last) {(any_function)(name), first, last},
    FUNCTIONS
#undef FUNCTION
};

static enum call call_find(const char *name) {
  int call = 0;
  while (call < (int)call_count && strcmp(call_names[call], name) != 0)
    call++;
  return (enum call)call;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  if (name == NULL || function == NULL || flags > 2)
    return INVALID_VALUE;
  *function = NULL;
  enum call call = call_find(name);
  fake_lock();
  fake.lookups++;
  bool hidden = call != call_count && fake.calls[call].hidden;
  fake_unlock();
  if (call == call_count || version < function_rows[call].first || version > function_rows[call].last)
    return NOT_FOUND;
  if (!hidden)
    (void)memcpy(function, &function_rows[call].function, sizeof *function);
  return hidden ? NOT_FOUND : SUCCESS;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  int result = cuGetProcAddress(name, function, version, flags);
  if (status != NULL)
    *status = result == SUCCESS ? 0 : 1;
  return result;
}

/* ---- The test's side --------------------------------------------------------------------------------------------- */

EXPORT void fake_set_devices(int count) {
  fake_lock();
  fake.device_count = count > device_limit ? device_limit : count;
  fake_unlock();
}

static void size_set(size_t *field, size_t bytes) {
  fake_lock();
  *field = bytes;
  fake_unlock();
}

EXPORT void fake_set_capacity(size_t bytes) { size_set(&fake.capacity_bytes, bytes); }
EXPORT void fake_set_largest(size_t bytes) { size_set(&fake.largest_bytes, bytes); }
EXPORT void fake_set_host_capacity(size_t bytes) { size_set(&fake.host_capacity_bytes, bytes); }

/* A test that names a function the fake does not have would check nothing. */
static struct call_state *call_state_get(const char *name) {
  enum call call = call_find(name);
  if (call == call_count)
    abort();
  return &fake.calls[call];
}

EXPORT void fake_hide(const char *name) {
  fake_lock();
  call_state_get(name)->hidden = true;
  fake_unlock();
}

EXPORT void fake_fail(const char *name, unsigned nth, int error) {
  fake_lock();
  struct call_state *state = call_state_get(name);
  state->countdown = nth;
  state->error = error;
  fake_unlock();
}

EXPORT unsigned fake_calls(const char *name) {
  fake_lock();
  unsigned calls = name != NULL ? call_state_get(name)->calls : fake.lookups;
  for (int i = 0; name == NULL && i < (int)call_count; i++)
    calls += fake.calls[i].calls;
  fake_unlock();
  return calls;
}

static unsigned count_get(const unsigned *count) {
  fake_lock();
  unsigned value = *count;
  fake_unlock();
  return value;
}

EXPORT unsigned fake_failures(void) { return count_get(&fake.failures); }
EXPORT unsigned fake_waits(void) { return count_get(&fake.waits); }
EXPORT unsigned fake_wrong_frees(void) { return count_get(&fake.wrong_frees); }
EXPORT unsigned fake_violations(void) { return count_get(&fake.violations); }
EXPORT unsigned fake_retains(int device) { return count_get(&fake.primaries[device].retains); }

EXPORT size_t fake_live_bytes(void) {
  fake_lock();
  size_t bytes = 0;
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    bytes += block->bytes;
  fake_unlock();
  return bytes;
}

EXPORT unsigned fake_live_blocks(void) {
  fake_lock();
  unsigned count = 0;
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    count++;
  fake_unlock();
  return count;
}

EXPORT bool fake_holds(const void *address, size_t bytes) {
  uintptr_t first = (uintptr_t)address;
  bool holds = false;
  fake_lock();
  for (const struct block *block = fake.blocks; block != NULL && !holds; block = block->next)
    holds = first >= block->address && first - block->address <= block->bytes &&
            bytes <= block->bytes - (first - block->address);
  fake_unlock();
  return holds;
}

EXPORT size_t fake_largest_live(uintptr_t *address) {
  fake_lock();
  size_t bytes = 0;
  *address = 0;
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    if (block->bytes > bytes) {
      bytes = block->bytes;
      *address = block->address;
    }
  fake_unlock();
  return bytes;
}

EXPORT void *fake_context_create(int device) {
  struct context *found = NULL;
  fake_lock();
  for (int i = 0; i < context_limit && found == NULL; i++)
    if (!fake.others[i].alive)
      found = &fake.others[i];
  if (found != NULL)
    context_begin(found, device);
  fake_unlock();
  return found;
}

EXPORT void fake_context_destroy(void *context) {
  fake_lock();
  if (thread.depth > 0 && thread.stack[thread.depth - 1].context == context)
    thread.depth--;
  context_end(context);
  fake_unlock();
}

EXPORT bool fake_context_alive(void *context) {
  fake_lock();
  bool alive = ((struct context *)context)->alive;
  fake_unlock();
  return alive;
}

EXPORT void fake_primary_reset(int device) {
  fake_lock();
  context_end(&fake.primaries[device]);
  fake_unlock();
}

EXPORT void *fake_primary_retain(int device) {
  fake_lock();
  struct context *context = primary_retain(device);
  fake_unlock();
  return context;
}

EXPORT void *fake_current(void) { return thread.depth == 0 ? NULL : thread.stack[thread.depth - 1].context; }
EXPORT int fake_stack_depth(void) { return thread.depth; }
EXPORT int fake_capture_mode(void) { return thread.capture_mode; }

EXPORT void fake_make_current(void *context) {
  fake_lock();
  (void)stack_replace(context);
  fake_unlock();
}

static void pending_set(struct context *context, bool pending) {
  fake_lock();
  context->pending = pending;
  fake_unlock();
}

EXPORT void fake_submit(void *context) { pending_set(context, true); }
EXPORT void fake_finish(void *context) { pending_set(context, false); }

EXPORT bool fake_pending(void *context) {
  fake_lock();
  bool pending = ((struct context *)context)->pending;
  fake_unlock();
  return pending;
}

EXPORT void fake_poison(void *context, int error) {
  fake_lock();
  ((struct context *)context)->poison = error;
  fake_unlock();
}

EXPORT void fake_capture_begin(void) {
  fake_lock();
  fake.capturing = true;
  fake.capture_spoilt = false;
  fake_unlock();
}

EXPORT bool fake_capture_end(void) {
  fake_lock();
  bool alive = fake.capturing && !fake.capture_spoilt;
  fake.capturing = false;
  fake_unlock();
  return alive;
}
