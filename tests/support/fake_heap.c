/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What device heaps ask of the fake driver: real memory, copies, registered host memory, and the kernels of
 * lib/heap/heap_kernels.cu.  The thread that launches a kernel runs it at once, as one thread.  See fake_machine.h.
 */
#include "fake_machine.h"

#include <string.h>
#include <sys/mman.h>

#include "mam/detail/heap_record.h"

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

typedef void kernel(void **arguments);

static void clear(void **arguments) { mam__area_clear(*(struct mam__area *)arguments[0], 0, 1); }
static void clear_slots(void **arguments) { mam__slots_clear(*(struct mam__heap_control **)arguments[0], 0, 1); }
static void drain(void **arguments) { mam__slots_drain(*(struct mam__heap_control **)arguments[0], 0, 1); }

static void free_block(void **arguments) {
  struct mam__heap_control *control = *(struct mam__heap_control **)arguments[0];
  control->answer = (mam__u64)mam__block_free(control, *(mam__u64 *)arguments[1]);
}

static void records(void **arguments) {
  const mam__u64 *places = *(const mam__u64 **)arguments[0];
  struct mam__record *gathered = *(struct mam__record **)arguments[1];
  for (mam__u64 i = 0; i < *(mam__u64 *)arguments[2]; i++)
    gathered[i] = *(const struct mam__record *)places[i];
}

struct kernel_row {
  const char *name;
  kernel *run;
};

static struct kernel_row kernels[] = {{"mam_kernel_clear", clear},
                                      {"mam_kernel_clear_slots", clear_slots},
                                      {"mam_kernel_drain", drain},
                                      {"mam_kernel_free", free_block},
                                      {"mam_kernel_records", records}};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

/* Kernels that only a GPU runs.  They are found, and a launch fails. */
static struct kernel_row elsewhere[] = {
    {"mam_kernel_compact", NULL}, {"mam_kernel_warp_list", NULL}, {"mam_kernel_warp_end", NULL}};

int cuModuleLoadData(void **module, const void *image) {
  int error = call_begin(CALL_cuModuleLoadData);
  if (error == SUCCESS)
    *module = (void *)image;
  return call_end(error);
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  int error = call_begin(CALL_cuModuleGetFunction);
  (void)module;
  *function = NULL;
  for (int i = 0; error == SUCCESS && i < KERNELS; i++)
    if (strcmp(kernels[i].name, name) == 0)
      *function = &kernels[i];
  for (size_t i = 0; error == SUCCESS && i < sizeof elsewhere / sizeof elsewhere[0]; i++)
    if (strcmp(elsewhere[i].name, name) == 0)
      *function = &elsewhere[i];
  return call_end(error == SUCCESS && *function == NULL ? NOT_FOUND : error);
}

static int launch(enum call call, struct kernel_row *row, const unsigned sizes[6], unsigned shared_bytes, void *handle,
                  void **parameters, void **extra) {
  struct stream *stream = NULL;
  int error = call_begin(call);
  if (error == SUCCESS)
    error = stream_of(handle, &stream);
  if (error == SUCCESS && (sizes[0] == 0 || sizes[1] != 1 || sizes[2] != 1 || sizes[3] == 0 || sizes[3] > 1024 ||
                           sizes[4] != 1 || sizes[5] != 1 || shared_bytes != 0 || extra != NULL))
    error = INVALID_VALUE;
  if (error == SUCCESS && row->run == NULL)
    error = INVALID_HANDLE;
  error = call_end(error);
  if (error == SUCCESS) /* without the mutex: other threads may call the driver meanwhile */
    row->run(parameters);
  return error;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, void *handle, void **parameters,
                   void **extra) {
  const unsigned sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  return launch(CALL_cuLaunchKernel, (struct kernel_row *)function, sizes, shared_bytes, handle, parameters, extra);
}

int cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared_bytes, void *handle,
                              void **parameters) {
  const unsigned sizes[6] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  return launch(CALL_cuLaunchCooperativeKernel, (struct kernel_row *)function, sizes, shared_bytes, handle, parameters,
                NULL);
}

/* ---- Copies ------------------------------------------------------------------------------------------------------ */

/* Copies word by word, because other threads may read meanwhile.  Words become visible in the order in which they are
 * copied, as on a stream. */
static void copy(char *to, const char *from, size_t bytes) {
  while (bytes != 0) {
    size_t step = ((uintptr_t)to | (uintptr_t)from | bytes) % 8 == 0   ? 8
                  : ((uintptr_t)to | (uintptr_t)from | bytes) % 4 == 0 ? 4
                                                                       : 1;
    if (step == 8)
      __atomic_store_n((uint64_t *)to, __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    else if (step == 4)
      __atomic_store_n((uint32_t *)to, __atomic_load_n((const uint32_t *)from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    else
      __atomic_store_n(to, __atomic_load_n(from, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    to += step;
    from += step;
    bytes -= step;
  }
}

static int copy_begin(enum call call, uintptr_t on_device, size_t bytes, void *handle) {
  struct stream *stream = NULL;
  int error = call_begin(call);
  if (error == SUCCESS)
    error = stream_of(handle, &stream);
  if (error == SUCCESS && !(fake.backed && memory_holds(on_device, bytes, NULL)))
    error = INVALID_VALUE;
  return call_end(error);
}

int cuMemcpyHtoDAsync(unsigned long long to, const void *from, size_t bytes, void *stream) {
  int error = copy_begin(CALL_cuMemcpyHtoDAsync, to, bytes, stream);
  if (error == SUCCESS)
    copy((char *)(uintptr_t)to, from, bytes);
  return error;
}

int cuMemcpyDtoHAsync(void *to, unsigned long long from, size_t bytes, void *stream) {
  int error = copy_begin(CALL_cuMemcpyDtoHAsync, from, bytes, stream);
  if (error == SUCCESS)
    copy(to, (const char *)(uintptr_t)from, bytes);
  fake_lock();
  call_hold(CALL_cuMemcpyDtoHAsync);
  return call_end(error);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

void *memory_back(size_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

void memory_unback(uintptr_t address, size_t bytes) { (void)munmap((void *)address, bytes); }

EXPORT void fake_back_memory(void) {
  fake_lock();
  fake.backed = true;
  fake_unlock();
}

/* Registers pages of the host.  Kernels reach them at the address that they have for the host. */
int cuMemHostRegister(void *address, size_t bytes, unsigned flags) {
  int error = call_begin(CALL_cuMemHostRegister);
  if (error == SUCCESS && (address == NULL || bytes == 0 || flags > 15))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    fake.registered++;
  return call_end(error);
}

int cuMemHostUnregister(void *address) {
  int error = call_begin(CALL_cuMemHostUnregister);
  if (error == SUCCESS && (address == NULL || fake.registered == 0))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    fake.registered--;
  return call_end(error);
}

int cuMemHostGetDevicePointer(unsigned long long *on_device, void *address, unsigned flags) {
  int error = call_begin(CALL_cuMemHostGetDevicePointer);
  if (error == SUCCESS && (flags != 0 || fake.registered == 0))
    error = INVALID_VALUE;
  if (error == SUCCESS)
    *on_device = (uintptr_t)address;
  return call_end(error);
}

int cuStreamCreate(void **stream, unsigned flags) {
  int error = call_end(call_begin(CALL_cuStreamCreate));
  if (error == SUCCESS)
    *stream = fake_stream_create(flags);
  return error == SUCCESS && *stream == NULL ? INVALID_CONTEXT : error;
}
