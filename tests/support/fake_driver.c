/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The fake CUDA driver: calls, contexts, memory of cuMemAlloc, and the look-up of functions.  fake_driver.h is what a
 * test calls; fake_machine.h says what the other files have.
 *
 * The look-up finds a function only at the versions at which it has the signature written here (that of
 * cudaTypedefs.h).  The names that are exported besides are those that programs find in the real driver.
 */
#include "fake_machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

static const char *const call_names[] = {
#define FUNCTION(name, first, last, arguments) #name,
    FUNCTIONS
#undef FUNCTION
};

struct machine fake = {.mutex = PTHREAD_MUTEX_INITIALIZER,
                       .device_count = 1,
                       .capacity_bytes = (size_t)4 << 30,
                       .host_capacity_bytes = (size_t)64 << 30};

_Thread_local struct thread_state thread;

static void lock_own(void) { (void)pthread_mutex_lock(&fake.mutex); }
static void unlock_own(void) { (void)pthread_mutex_unlock(&fake.mutex); }

/* A process may end while a thread of the library calls the driver for it: the next one goes on.  What it left is a
 * number of bytes, its own. */
static void lock_shared(void) {
  if (fake.shared != NULL && pthread_mutex_lock(&fake.shared->mutex) == EOWNERDEAD)
    (void)pthread_mutex_consistent(&fake.shared->mutex);
}

static void unlock_shared(void) {
  if (fake.shared != NULL)
    (void)pthread_mutex_unlock(&fake.shared->mutex);
}

void fake_lock(void) {
  lock_own();
  lock_shared();
}

void fake_unlock(void) {
  for (int i = 0; fake.shared != NULL && i < device_limit; i++)
    fake.shared->used_bytes[fake.number][i] = memory_used(KIND_DEVICE, i);
  unlock_shared();
  unlock_own();
}

/* In a child of fork the mutex is open, whichever thread held it. */
static void begin_in_child(void) {
  unlock_own();
  if (fake.shared == NULL)
    return;
  lock_shared();
  fake.number = ++fake.shared->processes;
  unlock_shared();
  if (fake.number >= process_limit)
    abort(); /* a test with more processes needs a larger process_limit */
}

__attribute__((constructor)) static void fake_construct(void) {
  (void)pthread_atfork(lock_own, unlock_own, begin_in_child);
}

__attribute__((destructor)) static void fake_destruct(void) {
  fake_lock();
  if (fake.shared != NULL)
    memset(fake.shared->used_bytes[fake.number], 0, sizeof fake.shared->used_bytes[0]);
  unlock_shared();
  fake.shared = NULL;
  unlock_own();
}

/* ---- A call's beginning and end ---------------------------------------------------------------------------------- */

/* Whether a function needs cuInit.  The others also answer before it, and in a forked child. */
static bool call_needs_init(enum call call) {
  return call != CALL_cuInit && call != CALL_cuDriverGetVersion && call != CALL_cuGetErrorName &&
         call != CALL_cuGetErrorString && call != CALL_cuThreadExchangeStreamCaptureMode;
}

int call_begin(enum call call) {
  fake_lock();
  struct call_state *state = &fake.calls[call];
  state->calls++;
  if (state->countdown > 0 && --state->countdown == 0) {
    fake.failures++;
    return state->error;
  }
  return call_needs_init(call) && fake.process != getpid() ? NOT_INITIALIZED : SUCCESS;
}

int call_end(int result) {
  fake_unlock();
  return result;
}

static pthread_cond_t hold_changed = PTHREAD_COND_INITIALIZER;
static bool holding; /* guarded by the mutex */

void call_hold(enum call call) {
  if (!fake.calls[call].held)
    return;
  fake.calls[call].held = false;
  holding = true;
  unlock_shared();
  while (holding)
    (void)pthread_cond_wait(&hold_changed, &fake.mutex);
  lock_shared();
}

/* ---- Contexts ---------------------------------------------------------------------------------------------------- */

bool context_known(const struct context *context) {
  return (context >= fake.primaries && context < fake.primaries + device_limit) ||
         (context >= fake.others && context < fake.others + context_limit);
}

static void context_begin(struct context *context, int device) {
  context->alive = true;
  context->poison = SUCCESS;
  (void)memset(context->reaches, 0, sizeof context->reaches);
  context->device = device;
  context->id = ++fake.last_id;
}

static void context_end(struct context *context) {
  context_drop(context);
  context->alive = false;
  struct block **link = &fake.blocks;
  while (*link != NULL) {
    struct block *block = *link;
    if (block->owner != context) {
      link = &block->next;
      continue;
    }
    *link = block->next;
    if (block->backed)
      memory_unback(block->address, block->bytes);
    free(block);
  }
}

static bool entry_alive(const struct stack_entry *entry) {
  return entry->context->alive && (entry->context->primary || entry->context->id == entry->id);
}

int context_current(struct context **context) {
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
    fake.violations++; /* the real driver answers success too */
  thread.stack[thread.depth++] = (struct stack_entry){context, context->id};
  return SUCCESS;
}

static int stack_pop(struct context **context) {
  if (thread.depth == 0)
    return INVALID_CONTEXT;
  const struct stack_entry *top = &thread.stack[--thread.depth];
  if (!entry_alive(top) && !top->context->primary)
    fake.violations++; /* the real driver corrupts its heap */
  if (context != NULL)
    *context = top->context;
  return SUCCESS;
}

/* Replaces the top of the stack.  Unlike a pop, this does no harm if the current context is destroyed. */
static int stack_replace(struct context *context) {
  if (thread.depth > 0)
    thread.depth--;
  return context != NULL ? stack_push(context) : SUCCESS;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Each kind and device has a window of addresses of its own. */
static uintptr_t window_begin(enum kind kind, int device) {
  return ((uintptr_t)(kind + 1) << 44) + ((uintptr_t)device << 40);
}

size_t memory_used(enum kind kind, int device) {
  size_t used = 0;
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    if (block->kind == kind && (kind != KIND_DEVICE || block->device == device))
      used += block->bytes;
  return kind == KIND_DEVICE ? used + mapping_used(device) : used;
}

size_t memory_used_elsewhere(int device) {
  size_t used = 0;
  for (unsigned i = 0; fake.shared != NULL && i < process_limit; i++)
    used += i != fake.number ? fake.shared->used_bytes[i][device] : 0;
  return used;
}

static bool memory_fits(enum kind kind, int device, size_t bytes) {
  size_t capacity = kind == KIND_DEVICE ? fake.capacity_bytes : fake.host_capacity_bytes;
  size_t used = memory_used(kind, device) + (kind == KIND_DEVICE ? memory_used_elsewhere(device) : 0);
  return used <= capacity && bytes <= capacity - used && (fake.largest_bytes == 0 || bytes <= fake.largest_bytes);
}

/* Gives a block real memory, if a test wants that.  False if the host has none. */
static bool block_back(struct block *block) {
  struct block **link = &fake.blocks;
  block->address = (uintptr_t)memory_back(block->bytes);
  if (block->address == 0)
    return false;
  while (*link != NULL && (*link)->address < block->address)
    link = &(*link)->next;
  block->next = *link;
  *link = block;
  return true;
}

/* Places a block in the lowest gap of its window that is large enough, so that addresses are used again early. */
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

struct block *memory_block_at(uintptr_t address) {
  struct block *block = fake.blocks;
  while (block != NULL && address - block->address >= block->bytes)
    block = block->next;
  return block;
}

/* A context reaches memory of cuMemAlloc of its own device, and of devices to which the program has enabled peer
 * access. */
bool memory_reached(const struct block *block, const struct context *user) {
  return block->kind != KIND_DEVICE || user == NULL || user->device == block->device || user->reaches[block->device];
}

bool memory_holds(uintptr_t address, size_t bytes, const struct context *user) {
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    if (address >= block->address && address - block->address <= block->bytes &&
        bytes <= block->bytes - (address - block->address))
      return memory_reached(block, user);
  return mapping_holds(address, bytes, user);
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
  size_t requested_bytes = bytes;
  bytes = (bytes + FAKE_GRANULARITY_BYTES - 1) / FAKE_GRANULARITY_BYTES * FAKE_GRANULARITY_BYTES;
  struct block *block = memory_fits(kind, context->device, bytes) ? malloc(sizeof *block) : NULL;
  if (block == NULL)
    return OUT_OF_MEMORY;
  *block = (struct block){.bytes = bytes,
                          .requested_bytes = requested_bytes,
                          .id = ++fake.last_id,
                          .kind = kind,
                          .device = context->device,
                          .owner = context};
  block->backed = fake.backed && kind == KIND_DEVICE;
  if (!block->backed)
    block_place(block);
  else if (!block_back(block)) {
    free(block);
    return OUT_OF_MEMORY;
  }
  *address = block->address;
  return SUCCESS;
}

/* Frees with any context current or none, but not with one that is destroyed. */
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
  context_finish(block->owner, true);
  *link = block->next;
  if (block->backed)
    memory_unback(block->address, block->bytes);
  free(block);
  return SUCCESS;
}

/* ---- The driver's functions, as cuda.h declares them ------------------------------------------------------------- */

int cuInit(unsigned flags) {
  int error = call_begin(CALL_cuInit);
  if (error == SUCCESS)
    error = flags != 0 ? INVALID_VALUE : fake.device_count == 0 ? NO_DEVICE : SUCCESS;
  if (error == SUCCESS && fake.process != 0 && fake.process != getpid())
    error = NOT_INITIALIZED;
  if (error == SUCCESS)
    fake.process = getpid();
  return call_end(error);
}

int cuDriverGetVersion(int *version) {
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
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct error_row *error_find(int error) {
  for (size_t i = 0; i < sizeof error_rows / sizeof error_rows[0]; i++)
    if (error_rows[i].error == error)
      return &error_rows[i];
  return NULL;
}

int cuGetErrorName(int error, const char **name) {
  int result = call_begin(CALL_cuGetErrorName);
  const struct error_row *row = error_find(error);
  if (result == SUCCESS) {
    *name = row == NULL ? NULL : row->name;
    result = row == NULL ? INVALID_VALUE : SUCCESS;
  }
  return call_end(result);
}

int cuGetErrorString(int error, const char **text) {
  int result = call_begin(CALL_cuGetErrorString);
  const struct error_row *row = error_find(error);
  if (result == SUCCESS) {
    *text = row == NULL ? NULL : row->text;
    result = row == NULL ? INVALID_VALUE : SUCCESS;
  }
  return call_end(result);
}

int device_check(int device) { return device < 0 || device >= fake.device_count ? INVALID_DEVICE : SUCCESS; }

int cuDeviceGet(int *device, int ordinal) {
  int error = call_begin(CALL_cuDeviceGet);
  if (error == SUCCESS)
    error = device_check(ordinal);
  if (error == SUCCESS)
    *device = ordinal;
  return call_end(error);
}

int cuDeviceGetName(char *name, int length, int device) {
  int error = call_begin(CALL_cuDeviceGetName);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS && length > 0) {
    (void)strncpy(name, "imaginary device", (size_t)length);
    name[length - 1] = '\0';
  }
  return call_end(error);
}

int cuDeviceGetCount(int *count) {
  int error = call_begin(CALL_cuDeviceGetCount);
  if (error == SUCCESS)
    *count = fake.device_count;
  return call_end(error);
}

int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  int error = call_begin(CALL_cuDeviceCanAccessPeer);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS)
    error = device_check(peer);
  if (error == SUCCESS)
    *can = fake.peers[device][peer];
  return call_end(error);
}

/* The attributes that the library asks for: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
 * CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ..._HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED and
 * ..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED.  The last two are yes even if cuMemCreate refuses such memory. */
enum {
  attribute_multiprocessors = 16,
  attribute_maps = 102,
  attribute_exports = 103,
  attribute_rdma = 110,
  multiprocessors = 8
};

static int attribute_value(int attribute) {
  switch (attribute) {
  case attribute_multiprocessors:
    return multiprocessors;
  case attribute_maps:
    return !fake.maps_nothing;
  case attribute_exports:
  case attribute_rdma:
    return 1;
  default:
    return -1;
  }
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int error = call_begin(CALL_cuDeviceGetAttribute);
  int known = attribute_value(attribute);
  if (error == SUCCESS)
    error = known < 0 ? INVALID_VALUE : device_check(device);
  if (error == SUCCESS)
    *value = known;
  return call_end(error);
}

int cuDeviceTotalMem(size_t *bytes, int device) {
  int error = call_begin(CALL_cuDeviceTotalMem);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS)
    *bytes = fake.capacity_bytes;
  return call_end(error);
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  int error = call_begin(CALL_cuDevicePrimaryCtxGetState);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS) {
    *flags = 0;
    *active = fake.primaries[device].alive;
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

int cuDevicePrimaryCtxRetain(struct context **context, int device) {
  int error = call_begin(CALL_cuDevicePrimaryCtxRetain);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS)
    *context = primary_retain(device);
  return call_end(error);
}

int cuDevicePrimaryCtxRelease(int device) {
  int error = call_begin(CALL_cuDevicePrimaryCtxRelease);
  if (error == SUCCESS)
    error = device_check(device);
  if (error == SUCCESS && fake.primaries[device].retains == 0)
    error = INVALID_CONTEXT;
  if (error == SUCCESS && --fake.primaries[device].retains == 0)
    context_end(&fake.primaries[device]);
  return call_end(error);
}

int cuCtxGetCurrent(struct context **context) {
  int error = call_begin(CALL_cuCtxGetCurrent);
  if (error == SUCCESS)
    *context = thread.depth == 0 ? NULL : thread.stack[thread.depth - 1].context;
  return call_end(error);
}

int cuCtxPushCurrent(struct context *context) {
  int error = call_begin(CALL_cuCtxPushCurrent);
  return call_end(error == SUCCESS ? stack_push(context) : error);
}

int cuCtxPopCurrent(struct context **context) {
  int error = call_begin(CALL_cuCtxPopCurrent);
  return call_end(error == SUCCESS ? stack_pop(context) : error);
}

int cuCtxSetCurrent(struct context *context) {
  int error = call_begin(CALL_cuCtxSetCurrent);
  if (error == SUCCESS && context != NULL && !context_known(context))
    error = INVALID_CONTEXT;
  if (error == SUCCESS)
    error = stack_replace(context);
  return call_end(error);
}

int cuCtxGetId(struct context *context, unsigned long long *id) {
  int error = call_begin(CALL_cuCtxGetId);
  if (error == SUCCESS && context == NULL) {
    error = context_current(&context); /* answers the error of its work too, which the question by handle does not */
  } else if (error == SUCCESS) {
    error = !context_known(context) ? INVALID_CONTEXT : context->alive ? SUCCESS : CONTEXT_IS_DESTROYED;
  }
  if (error == SUCCESS)
    *id = context->id;
  return call_end(error);
}

int cuCtxGetDevice(int *device) {
  struct context *context = NULL;
  int error = call_begin(CALL_cuCtxGetDevice);
  if (error == SUCCESS)
    error = context_current(&context);
  if (error == SUCCESS)
    *device = context->device;
  return call_end(error);
}

int cuCtxSynchronize(void) {
  struct context *context = NULL;
  int error = call_begin(CALL_cuCtxSynchronize);
  call_hold(CALL_cuCtxSynchronize);
  if (error == SUCCESS)
    error = context_current(&context);
  if (error == SUCCESS)
    error = capture_check_context(context);
  if (error == SUCCESS)
    context_finish(context, true);
  return call_end(error);
}

int cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  struct context *context = NULL;
  int error = call_begin(CALL_cuMemGetInfo);
  if (error == SUCCESS)
    error = context_current(&context);
  if (error == SUCCESS) {
    size_t used = memory_used(KIND_DEVICE, context->device) + memory_used_elsewhere(context->device);
    *free_bytes = used < fake.capacity_bytes ? fake.capacity_bytes - used : 0;
    *total_bytes = fake.capacity_bytes;
  }
  return call_end(error);
}

int cuMemAlloc(unsigned long long *address, size_t bytes) {
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemAlloc);
  if (error == SUCCESS)
    error = memory_take(KIND_DEVICE, bytes, address != NULL ? &found : NULL);
  if (error == SUCCESS)
    *address = found;
  return call_end(error);
}

int cuMemFree(unsigned long long address) {
  int error = call_begin(CALL_cuMemFree);
  call_hold(CALL_cuMemFree);
  return call_end(error == SUCCESS ? memory_give((uintptr_t)address, false) : error);
}

int cuMemAllocManaged(unsigned long long *address, size_t bytes, unsigned flags) {
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemAllocManaged);
  if (error == SUCCESS)
    error = flags == 1 || flags == 2 ? memory_take(KIND_MANAGED, bytes, &found) : INVALID_VALUE;
  if (error == SUCCESS)
    *address = found;
  return call_end(error);
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemHostAlloc);
  if (error == SUCCESS)
    error = flags <= 7 ? memory_take(KIND_PINNED, bytes, &found) : INVALID_VALUE;
  if (error == SUCCESS)
    *address = (void *)found;
  return call_end(error);
}

int cuMemFreeHost(void *address) {
  int error = call_begin(CALL_cuMemFreeHost);
  return call_end(error == SUCCESS ? memory_give((uintptr_t)address, true) : error);
}

int cuMemAllocAsync(unsigned long long *address, size_t bytes, void *stream) {
  (void)stream;
  uintptr_t found = 0;
  int error = call_begin(CALL_cuMemAllocAsync);
  if (error == SUCCESS)
    error = memory_take(KIND_DEVICE, bytes, &found);
  if (error == SUCCESS)
    *address = found;
  return call_end(error);
}

int cuMemFreeAsync(unsigned long long address, void *stream) {
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
#define FUNCTION(name, first, last, arguments) {(any_function)(name), first, last},
    FUNCTIONS
#undef FUNCTION
};

static enum call call_find(const char *name) {
  int call = 0;
  while (call < (int)call_count && strcmp(call_names[call], name) != 0)
    call++;
  return (enum call)call;
}

static const struct later_row *later_find(const char *name, int version, uint64_t flags) {
  for (size_t i = 0; i < later_row_count; i++)
    if (strcmp(later_rows[i].name, name) == 0 && version >= later_rows[i].first &&
        (!later_rows[i].per_thread || flags == 2))
      return &later_rows[i];
  return NULL;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  if (name == NULL || function == NULL || flags > 2)
    return INVALID_VALUE;
  *function = NULL;
  const struct later_row *later = later_find(name, version, flags);
  if (later != NULL) {
    (void)memcpy(function, &later->function, sizeof *function);
    return SUCCESS;
  }
  enum call call = call_find(name);
  fake_lock();
  fake.lookups++;
  fake.violations += strcmp(name, "cuGetExportTable") == 0; /* no document says what its tables hold */
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

/* ---- The names that it exports ------------------------------------------------------------------------------------
 */

EXPORT_AS(cuMemAlloc, cuMemAlloc_v2, (unsigned long long *, size_t))
EXPORT_AS(cuMemFree, cuMemFree_v2, (unsigned long long))
EXPORT_AS(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))

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

EXPORT void fake_share_memory(void) {
  pthread_mutexattr_t attributes;
  struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || pthread_mutexattr_init(&attributes) != 0 ||
      pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) != 0 ||
      pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) != 0 ||
      pthread_mutex_init(&shared->mutex, &attributes) != 0)
    abort();
  (void)pthread_mutexattr_destroy(&attributes);
  fake.shared = shared;
}

EXPORT void fake_set_capacity(size_t bytes) { size_set(&fake.capacity_bytes, bytes); }
EXPORT void fake_set_largest(size_t bytes) { size_set(&fake.largest_bytes, bytes); }
EXPORT void fake_set_host_capacity(size_t bytes) { size_set(&fake.host_capacity_bytes, bytes); }

EXPORT void fake_set_maps_nothing(void) {
  fake_lock();
  fake.maps_nothing = true;
  fake_unlock();
}

EXPORT void fake_set_peers(void) {
  fake_lock();
  for (int i = 0; i < device_limit; i++)
    for (int j = 0; j < device_limit; j++)
      fake.peers[i][j] = i != j;
  fake_unlock();
}

EXPORT void fake_set_shares_nothing(void) {
  fake_lock();
  fake.shares_nothing = true;
  fake_unlock();
}

/* A name that the fake does not have is a fault of the test: it would check nothing. */
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

EXPORT void fake_hold(const char *name) {
  fake_lock();
  call_state_get(name)->held = true;
  fake_unlock();
}

EXPORT bool fake_is_held(void) {
  fake_lock();
  bool held = holding;
  fake_unlock();
  return held;
}

EXPORT void fake_let_go(void) {
  fake_lock();
  holding = false;
  (void)pthread_cond_broadcast(&hold_changed);
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
EXPORT unsigned fake_faults(void) { return count_get(&fake.faults); }
EXPORT unsigned fake_captures_invalidated(void) { return count_get(&fake.captures_invalidated); }
EXPORT unsigned fake_retains(int device) { return count_get(&fake.primaries[device].retains); }

EXPORT size_t fake_live_bytes(void) {
  fake_lock();
  size_t bytes = 0;
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    bytes += block->bytes;
  for (int device = 0; device < device_limit; device++)
    bytes += mapping_used(device);
  fake_unlock();
  return bytes;
}

EXPORT unsigned fake_live_blocks(void) {
  fake_lock();
  unsigned count = mapping_count();
  for (const struct block *block = fake.blocks; block != NULL; block = block->next)
    count++;
  fake_unlock();
  return count;
}

EXPORT bool fake_holds(const void *address, size_t bytes) {
  fake_lock();
  bool holds = memory_holds((uintptr_t)address, bytes, NULL);
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

EXPORT void fake_make_current(void *context) {
  fake_lock();
  (void)stack_replace(context);
  fake_unlock();
}

EXPORT void fake_peer_enable(void *context, int device) {
  fake_lock();
  ((struct context *)context)->reaches[device] = true;
  fake_unlock();
}

EXPORT void fake_poison(void *context, int error) {
  fake_lock();
  ((struct context *)context)->poison = error;
  fake_unlock();
}
