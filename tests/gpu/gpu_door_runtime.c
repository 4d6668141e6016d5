/* SPDX-License-Identifier: BSD-2-Clause */
/* The CUDA runtime's door; the linker decides which runtime. */
#include <string.h>

#include <cuda_runtime_api.h>

#include "gpu_door.h"

const char door_name[] = "runtime";

_Static_assert(sizeof(cudaIpcMemHandle_t) == DOOR_HANDLE_BYTES, "an IPC handle has 64 bytes");

/* Clears the runtime's last error, which no later call should find. */
static int answer(cudaError_t error) {
  if (error != cudaSuccess)
    (void)cudaGetLastError();
  return (int)error;
}

int door_open(void) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary ||
      (error == cudaSuccess && count == 0))
    return DOOR_SKIP;
  if (error == cudaSuccess)
    error = cudaSetDevice(0);
  return answer(error == cudaSuccess ? cudaFree(NULL) : error);
}

/* cudaGetDriverEntryPoint knows names without their version, so it is asked for "cuMemAlloc" instead of
 * "cuMemAlloc_v2". */
void *door_function(const char *name, int version) {
  char plain[64];
  (void)strncpy(plain, name, sizeof plain - 1);
  plain[sizeof plain - 1] = '\0';
  char *end = strstr(plain, "_v2");
  if (end != NULL)
    *end = '\0';
  void *function = NULL;
  enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  if (answer(cudaGetDriverEntryPointByVersion(plain, &function, (unsigned)version, cudaEnableDefault, &found)) != 0)
    return NULL;
  return found == cudaDriverEntryPointSuccess ? function : NULL;
}

int door_malloc(void **block, size_t bytes) { return answer(cudaMalloc(block, bytes)); }

int door_free(void *block) { return answer(cudaFree(block)); }

int door_malloc_pitch(void **block, size_t *pitch, size_t width, size_t height) {
  return answer(cudaMallocPitch(block, pitch, width, height));
}

int door_memory(size_t *free_bytes, size_t *total_bytes) { return answer(cudaMemGetInfo(free_bytes, total_bytes)); }

int door_malloc_async(void **block, size_t bytes, door_stream stream) {
  return answer(cudaMallocAsync(block, bytes, (cudaStream_t)stream));
}

int door_free_async(void *block, door_stream stream) { return answer(cudaFreeAsync(block, (cudaStream_t)stream)); }

int door_malloc_managed(void **block, size_t bytes) {
  return answer(cudaMallocManaged(block, bytes, cudaMemAttachGlobal));
}

int door_malloc_host(void **block, size_t bytes) { return answer(cudaMallocHost(block, bytes)); }

int door_free_host(void *block) { return answer(cudaFreeHost(block)); }

int door_array(size_t width, size_t height) {
  struct cudaChannelFormatDesc format = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
  cudaArray_t array = NULL;
  cudaError_t error = cudaMallocArray(&array, &format, width, height, 0);
  return answer(error == cudaSuccess ? cudaFreeArray(array) : error);
}

int door_fill(void *block, int byte, size_t bytes) { return answer(cudaMemset(block, byte, bytes)); }

int door_write(void *to, const void *from, size_t bytes) {
  return answer(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

int door_read(void *to, const void *from, size_t bytes) {
  return answer(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

int door_fill_async(void *block, int byte, size_t bytes, door_stream stream) {
  return answer(cudaMemsetAsync(block, byte, bytes, (cudaStream_t)stream));
}

int door_copy_async(void *to, const void *from, size_t bytes, door_stream stream) {
  return answer(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, (cudaStream_t)stream));
}

int door_call_async(void (*function)(void *), void *argument, door_stream stream) {
  return answer(cudaLaunchHostFunc((cudaStream_t)stream, function, argument));
}

int door_stream_new(door_stream *stream) {
  return answer(cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
}

int door_stream_end(door_stream stream) { return answer(cudaStreamDestroy((cudaStream_t)stream)); }

int door_wait(door_stream stream) { return answer(cudaStreamSynchronize((cudaStream_t)stream)); }

int door_wait_all(void) { return answer(cudaDeviceSynchronize()); }

int door_capture_begin(door_stream stream, int mode) {
  return answer(cudaStreamBeginCapture((cudaStream_t)stream, (enum cudaStreamCaptureMode)mode));
}

int door_capture_status(door_stream stream, int *status) {
  return answer(cudaStreamIsCapturing((cudaStream_t)stream, (enum cudaStreamCaptureStatus *)status));
}

int door_capture_end(door_stream stream, door_graph *graph) {
  *graph = NULL;
  cudaGraph_t captured = NULL;
  cudaError_t error = cudaStreamEndCapture((cudaStream_t)stream, &captured);
  if (error != cudaSuccess || captured == NULL)
    return answer(error);
  cudaGraphExec_t executable = NULL;
  error = cudaGraphInstantiate(&executable, captured, 0);
  (void)cudaGraphDestroy(captured);
  if (error == cudaSuccess)
    *graph = executable;
  return answer(error);
}

int door_graph_launch(door_graph graph, door_stream stream) {
  return answer(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream));
}

int door_graph_end(door_graph graph) { return answer(cudaGraphExecDestroy((cudaGraphExec_t)graph)); }

int door_handle_get(void *handle, void *block) {
  return answer(cudaIpcGetMemHandle((cudaIpcMemHandle_t *)handle, block));
}

int door_handle_open(void **block, const void *handle) {
  cudaIpcMemHandle_t copy;
  memcpy(&copy, handle, sizeof copy);
  return answer(cudaIpcOpenMemHandle(block, copy, cudaIpcMemLazyEnablePeerAccess));
}

int door_handle_close(void *block) { return answer(cudaIpcCloseMemHandle(block)); }

int door_attributes(struct door_attributes *attributes, void *pointer) {
  struct cudaPointerAttributes said;
  memset(&said, 0, sizeof said);
  cudaError_t error = cudaPointerGetAttributes(&said, pointer);
  *attributes =
      (struct door_attributes){(int)said.type, said.device, said.devicePointer == pointer, said.hostPointer == NULL};
  return answer(error);
}

int door_reset(void) { return answer(cudaDeviceReset()); }
