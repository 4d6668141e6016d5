/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The driver's doors.  Built with GPU_DOOR_LINKED, the program is linked with libcuda and calls its symbols; otherwise
 * it opens libcuda.so.1 and asks dlsym for each function, or cuGetProcAddress_v2 if GPU_DOOR=procaddress stands in the
 * environment.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>

#include "gpu_door.h"

/* A row has the driver's own symbol, and then the name that cuGetProcAddress knows. */
#define DOOR_FUNCTIONS(ROW)                                                                                            \
  ROW(cuInit, "cuInit", (unsigned))                                                                                    \
  ROW(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                   \
  ROW(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", (CUdevice))                                               \
  ROW(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext))                                                                 \
  ROW(cuCtxSynchronize, "cuCtxSynchronize", (void))                                                                    \
  ROW(cuMemAlloc_v2, "cuMemAlloc", (CUdeviceptr *, size_t))                                                            \
  ROW(cuMemFree_v2, "cuMemFree", (CUdeviceptr))                                                                        \
  ROW(cuMemAllocPitch_v2, "cuMemAllocPitch", (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                      \
  ROW(cuMemGetInfo_v2, "cuMemGetInfo", (size_t *, size_t *))                                                           \
  ROW(cuMemAllocAsync, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream))                                           \
  ROW(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr, CUstream))                                                       \
  ROW(cuMemAllocManaged, "cuMemAllocManaged", (CUdeviceptr *, size_t, unsigned))                                       \
  ROW(cuMemAllocHost_v2, "cuMemAllocHost", (void **, size_t))                                                          \
  ROW(cuMemFreeHost, "cuMemFreeHost", (void *))                                                                        \
  ROW(cuArrayCreate_v2, "cuArrayCreate", (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))                                   \
  ROW(cuArrayDestroy, "cuArrayDestroy", (CUarray))                                                                     \
  ROW(cuMemsetD8_v2, "cuMemsetD8", (CUdeviceptr, unsigned char, size_t))                                               \
  ROW(cuMemcpyHtoD_v2, "cuMemcpyHtoD", (CUdeviceptr, const void *, size_t))                                            \
  ROW(cuMemcpyDtoH_v2, "cuMemcpyDtoH", (void *, CUdeviceptr, size_t))                                                  \
  ROW(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                              \
  ROW(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                         \
  ROW(cuLaunchHostFunc, "cuLaunchHostFunc", (CUstream, CUhostFn, void *))                                              \
  ROW(cuStreamCreate, "cuStreamCreate", (CUstream *, unsigned))                                                        \
  ROW(cuStreamDestroy_v2, "cuStreamDestroy", (CUstream))                                                               \
  ROW(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                                          \
  ROW(cuStreamBeginCapture_v2, "cuStreamBeginCapture", (CUstream, CUstreamCaptureMode))                                \
  ROW(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream, CUstreamCaptureStatus *))                                 \
  ROW(cuStreamEndCapture, "cuStreamEndCapture", (CUstream, CUgraph *))                                                 \
  ROW(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", (CUgraphExec *, CUgraph, unsigned long long))        \
  ROW(cuGraphDestroy, "cuGraphDestroy", (CUgraph))                                                                     \
  ROW(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                         \
  ROW(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec))                                                         \
  ROW(cuIpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr))                                         \
  ROW(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", (CUdeviceptr *, CUipcMemHandle, unsigned))                          \
  ROW(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", (CUdeviceptr))                                                       \
  ROW(cuPointerGetAttributes, "cuPointerGetAttributes", (unsigned, CUpointer_attribute *, void **, CUdeviceptr))

#define DOOR_MEMBER(name, plain, arguments) CUresult(CUDAAPI *name) arguments;
static struct { DOOR_FUNCTIONS(DOOR_MEMBER) } driver;

enum { DOOR_VERSION = 12000 }; /* in CUDA 12.0 the names mean the symbols of the table */

static CUcontext context;

static CUdeviceptr number(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

/* ---- How functions are found ------------------------------------------------------------------------------------- */

#ifdef GPU_DOOR_LINKED

const char door_name[] = "driver, linked";

static bool driver_find(void) {
#define DOOR_LINK(name, plain, arguments) driver.name = name;
  DOOR_FUNCTIONS(DOOR_LINK)
#undef DOOR_LINK
  return true;
}

void *door_function(const char *name, int version) {
  (void)version;
  return dlsym(RTLD_DEFAULT, name);
}

#else

const char door_name[] = "driver, opened";

static void *library;
static CUresult(CUDAAPI *by_version)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *function_find(const char *name, const char *plain, int version) {
  void *function = NULL;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (by_version == NULL)
    return dlsym(library, name);
  return by_version(plain, &function, version, 0, &found) == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS
             ? function
             : NULL;
}

static bool driver_find(void) {
  const char *how = getenv("GPU_DOOR");
  library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL)
    return false;
  if (how != NULL && strcmp(how, "procaddress") == 0)
    *(void **)&by_version = dlsym(library, "cuGetProcAddress_v2");
  bool complete = true;
#define DOOR_FIND(name, plain, arguments)                                                                              \
  *(void **)&driver.name = function_find(#name, plain, DOOR_VERSION);                                                  \
  if (driver.name == NULL)                                                                                             \
    complete = (fprintf(stderr, "the driver has no %s\n", #name), false);
  DOOR_FUNCTIONS(DOOR_FIND)
#undef DOOR_FIND
  return complete;
}

void *door_function(const char *name, int version) {
  char plain[64];
  (void)snprintf(plain, sizeof plain, "%s", name);
  char *end = strstr(plain, "_v2");
  if (end != NULL)
    *end = '\0';
  return function_find(name, plain, version);
}

#endif

int door_open(void) {
  if (!driver_find())
    return DOOR_SKIP;
  CUresult error = driver.cuInit(0);
  if (error == CUDA_ERROR_NO_DEVICE || error == CUDA_ERROR_STUB_LIBRARY)
    return DOOR_SKIP;
  if (error == CUDA_SUCCESS)
    error = driver.cuDevicePrimaryCtxRetain(&context, 0);
  return (int)(error == CUDA_SUCCESS ? driver.cuCtxSetCurrent(context) : error);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Writes *block on failure, too: what the driver left there is part of its answer. */
int door_malloc(void **block, size_t bytes) {
  CUdeviceptr address = number(*block);
  CUresult error = driver.cuMemAlloc_v2(&address, bytes);
  *block = (void *)(uintptr_t)address;
  return (int)error;
}

int door_free(void *block) { return (int)driver.cuMemFree_v2(number(block)); }

int door_malloc_pitch(void **block, size_t *pitch, size_t width, size_t height) {
  CUdeviceptr address = number(*block);
  CUresult error = driver.cuMemAllocPitch_v2(&address, pitch, width, height, 4);
  *block = (void *)(uintptr_t)address;
  return (int)error;
}

int door_memory(size_t *free_bytes, size_t *total_bytes) {
  return (int)driver.cuMemGetInfo_v2(free_bytes, total_bytes);
}

int door_malloc_async(void **block, size_t bytes, door_stream stream) {
  CUdeviceptr address = number(*block);
  CUresult error = driver.cuMemAllocAsync(&address, bytes, (CUstream)stream);
  *block = (void *)(uintptr_t)address;
  return (int)error;
}

int door_free_async(void *block, door_stream stream) {
  return (int)driver.cuMemFreeAsync(number(block), (CUstream)stream);
}

int door_malloc_managed(void **block, size_t bytes) {
  CUdeviceptr address = number(*block);
  CUresult error = driver.cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
  *block = (void *)(uintptr_t)address;
  return (int)error;
}

int door_malloc_host(void **block, size_t bytes) { return (int)driver.cuMemAllocHost_v2(block, bytes); }

int door_free_host(void *block) { return (int)driver.cuMemFreeHost(block); }

int door_array(size_t width, size_t height) {
  CUDA_ARRAY_DESCRIPTOR descriptor = {width, height, CU_AD_FORMAT_FLOAT, 1};
  CUarray array = NULL;
  CUresult error = driver.cuArrayCreate_v2(&array, &descriptor);
  return (int)(error == CUDA_SUCCESS ? driver.cuArrayDestroy(array) : error);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

int door_fill(void *block, int byte, size_t bytes) {
  return (int)driver.cuMemsetD8_v2(number(block), (unsigned char)byte, bytes);
}

int door_write(void *to, const void *from, size_t bytes) {
  return (int)driver.cuMemcpyHtoD_v2(number(to), from, bytes);
}

int door_read(void *to, const void *from, size_t bytes) { return (int)driver.cuMemcpyDtoH_v2(to, number(from), bytes); }

int door_fill_async(void *block, int byte, size_t bytes, door_stream stream) {
  return (int)driver.cuMemsetD8Async(number(block), (unsigned char)byte, bytes, (CUstream)stream);
}

int door_copy_async(void *to, const void *from, size_t bytes, door_stream stream) {
  return (int)driver.cuMemcpyDtoDAsync_v2(number(to), number(from), bytes, (CUstream)stream);
}

int door_call_async(void (*function)(void *), void *argument, door_stream stream) {
  return (int)driver.cuLaunchHostFunc((CUstream)stream, function, argument);
}

int door_stream_new(door_stream *stream) {
  return (int)driver.cuStreamCreate((CUstream *)stream, CU_STREAM_NON_BLOCKING);
}

int door_stream_end(door_stream stream) { return (int)driver.cuStreamDestroy_v2((CUstream)stream); }

int door_wait(door_stream stream) { return (int)driver.cuStreamSynchronize((CUstream)stream); }

int door_wait_all(void) { return (int)driver.cuCtxSynchronize(); }

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

int door_capture_begin(door_stream stream, int mode) {
  return (int)driver.cuStreamBeginCapture_v2((CUstream)stream, (CUstreamCaptureMode)mode);
}

int door_capture_status(door_stream stream, int *status) {
  return (int)driver.cuStreamIsCapturing((CUstream)stream, (CUstreamCaptureStatus *)status);
}

int door_capture_end(door_stream stream, door_graph *graph) {
  *graph = NULL;
  CUgraph captured = NULL;
  CUresult error = driver.cuStreamEndCapture((CUstream)stream, &captured);
  if (error != CUDA_SUCCESS || captured == NULL)
    return (int)error;
  CUgraphExec executable = NULL;
  error = driver.cuGraphInstantiateWithFlags(&executable, captured, 0);
  (void)driver.cuGraphDestroy(captured);
  if (error == CUDA_SUCCESS)
    *graph = executable;
  return (int)error;
}

int door_graph_launch(door_graph graph, door_stream stream) {
  return (int)driver.cuGraphLaunch((CUgraphExec)graph, (CUstream)stream);
}

int door_graph_end(door_graph graph) { return (int)driver.cuGraphExecDestroy((CUgraphExec)graph); }

/* ---- Handles, attributes, the end -------------------------------------------------------------------------------- */

int door_handle_get(void *handle, void *block) {
  return (int)driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, number(block));
}

int door_handle_open(void **block, const void *handle) {
  CUipcMemHandle copy;
  CUdeviceptr address = 0;
  memcpy(&copy, handle, sizeof copy);
  CUresult error = driver.cuIpcOpenMemHandle_v2(&address, copy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  *block = (void *)(uintptr_t)address;
  return (int)error;
}

int door_handle_close(void *block) { return (int)driver.cuIpcCloseMemHandle(number(block)); }

int door_attributes(struct door_attributes *attributes, void *pointer) {
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER};
  unsigned type = 0;
  int device = -1;
  CUdeviceptr device_pointer = 0;
  void *host_pointer = NULL;
  void *values[] = {&type, &device, &device_pointer, &host_pointer};
  CUresult error = driver.cuPointerGetAttributes(4, asked, values, number(pointer));
  *attributes = (struct door_attributes){(int)type, device, device_pointer == number(pointer), host_pointer == NULL};
  return (int)error;
}

/* The reference of door_open outlives the reset.  A retain makes the context live again. */
int door_reset(void) {
  CUresult error = driver.cuDevicePrimaryCtxReset_v2(0);
  if (error == CUDA_SUCCESS)
    error = driver.cuDevicePrimaryCtxRetain(&context, 0);
  return (int)(error == CUDA_SUCCESS ? driver.cuCtxSetCurrent(context) : error);
}
