/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The few functions of the CUDA runtime that PyTorch calls around an allocation, for a device that is not there: with
 * it in LD_PRELOAD, PyTorch's allocator interface runs without a driver, on plain host memory (real_libraries_test.py).
 */
int cudaGetDeviceCount(int *count);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
int cudaDriverGetVersion(int *version);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int cudaStreamIsCapturing(void *stream, int *status);
int cudaDeviceGetAttribute(int *value, int attribute, int device);

int cudaGetDeviceCount(int *count) {
  *count = 1;
  return 0;
}

int cudaGetDevice(int *device) {
  *device = 0;
  return 0;
}

int cudaSetDevice(int device) { return device == 0 ? 0 : 101; }

int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -1;
  return 0;
}

int cudaDriverGetVersion(int *version) {
  *version = 99000;
  return 0;
}

int cudaGetLastError(void) { return 0; }

int cudaPeekAtLastError(void) { return 0; }

int cudaStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  *status = 0;
  return 0;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 0;
  return 0;
}
