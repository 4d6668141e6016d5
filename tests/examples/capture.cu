/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Allocations while a stream is captured into a CUDA graph.  The library interposes nothing, so the program says when
 * it captures; in between, no call of the library invalidates the capture.
 */
#include <cstdio>
#include <mam.h>

int main() {
  cudaStream_t stream;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  char *scratch = nullptr;
  cudaStreamCreate(&stream);
  MAM_Create_auto(); /* a pool that the first allocation creates could end during the capture */

  MAM_CaptureBegin();
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  MAM_CudaMallocAsync(reinterpret_cast<void **>(&scratch), 1 << 20, stream);
  cudaMemsetAsync(scratch, 1, 1 << 20, stream);
  cudaStreamEndCapture(stream, &graph);
  MAM_CaptureEnd();

  cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphLaunch(executable, stream);
  cudaError_t error = cudaStreamSynchronize(stream);
  std::printf("%s\n", cudaGetErrorString(error));
  MAM_CudaFree(scratch); /* after the graph's last launch has ended */
  MAM_Destroy();
  return error == cudaSuccess ? 0 : 1;
}
