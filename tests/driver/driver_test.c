/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The driver's table over the fake driver: how it is found, filled with the right versions and published once, and each
 * way in which the driver can be missing.
 */
#define _GNU_SOURCE 1 /* RTLD_NEXT */
#include "cuda/driver.h"

#include <check.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "support/fake_driver.h"
#include "support/run_suite.h"

/* What dlopen finds in place of the driver; NULL: the driver. */
static const char *library_instead;

/* This program is linked with driver.c, which calls this function. */
void *dlopen(const char *name, int flags) {
  void *(*real)(const char *, int);
  *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
  return real(library_instead != NULL ? library_instead : name, flags);
}

static void assert_error_says(const char *words) {
  ck_assert_msg(strstr(error_last(), words) != NULL, "\"%s\" does not say \"%s\"", error_last(), words);
}

START_TEST(driver_is_found_and_initialised) {
  const struct driver *driver = NULL;
  CUdevice device = -1;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  ck_assert_ptr_nonnull(driver);
  ck_assert_uint_eq(fake_calls("cuInit"), 1);
  ck_assert_int_eq(driver->cuDeviceGet(&device, 0), CUDA_SUCCESS);
  ck_assert_int_eq(device, 0);
}
END_TEST

START_TEST(every_function_is_found_at_its_version) {
  const struct driver *driver = NULL;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  enum { OPTIONAL, REQUIRED, HEAP, BENCHMARK };
#define DRIVER_FUNCTION(name, version, need, arguments)                                                                \
  ck_assert_msg((need) == BENCHMARK || driver->name != NULL, #name " was not found");
#include "cuda/driver.def"
#undef DRIVER_FUNCTION
}
END_TEST

/* Each function does its work when it is called with the arguments of its signature.  A wrong row of the table shows
 * here. */
START_TEST(functions_work_as_declared) {
  const struct driver *driver = NULL;
  CUcontext context = NULL, current = NULL;
  CUdeviceptr address = 0;
  void *pinned = NULL;
  unsigned long long id = 0;
  size_t free_before = 0, free_after = 0, total = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  char name[64];
  int version = 0;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  ck_assert_int_eq(driver->cuDriverGetVersion(&version), CUDA_SUCCESS);
  ck_assert_int_ge(version, 12000);
  ck_assert_int_eq(driver->cuDeviceGetName(name, (int)sizeof name, 0), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuCtxSetCurrent(context), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuCtxPushCurrent(context), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuCtxGetId(NULL, &id), CUDA_SUCCESS);
  ck_assert_uint_gt(id, 0);
  ck_assert_int_eq(driver->cuMemGetInfo(&free_before, &total), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemAlloc(&address, 3 << 20), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemGetInfo(&free_after, &total), CUDA_SUCCESS);
  ck_assert_uint_ge(free_before - free_after, 3 << 20);
  ck_assert_int_eq(driver->cuMemFree(address), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemAllocManaged(&address, 1, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemFree(address), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemHostAlloc(&pinned, 1, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                   CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemFreeHost(pinned), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemAllocAsync(&address, 1, NULL), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemFreeAsync(address, NULL), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuStreamSynchronize(NULL), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuCtxSynchronize(), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  ck_assert_int_eq(mode, 0);
  ck_assert_int_eq(fake_capture_mode(), CU_STREAM_CAPTURE_MODE_RELAXED);
  ck_assert_int_eq(driver->cuCtxPopCurrent(&current), CUDA_SUCCESS);
  ck_assert_ptr_eq(current, context);
  ck_assert_int_eq(driver->cuCtxGetCurrent(&current), CUDA_SUCCESS);
  ck_assert_ptr_eq(current, context);
  ck_assert_int_eq(driver->cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuCtxGetId(context, &id), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ck_assert_uint_eq(fake_live_blocks(), 0);
}
END_TEST

START_TEST(fences_work_as_declared) {
  const struct driver *driver = NULL;
  CUevent event = NULL;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  CUcontext context = fake_primary_retain(0);
  fake_make_current(context);
  ck_assert_int_eq(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  fake_submit(context);
  ck_assert_int_eq(driver->cuCtxRecordEvent(context, event), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuEventQuery(event), CUDA_ERROR_NOT_READY);
  fake_finish(context);
  ck_assert_int_eq(driver->cuEventQuery(event), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuEventDestroy(event), CUDA_SUCCESS);
}
END_TEST

/* A stream's capture has an id of its own, and the next capture of the stream has another one. */
START_TEST(captures_are_told_apart) {
  const struct driver *driver = NULL;
  unsigned long long ids[3] = {0}, stream_id = 0;
  int status = -1; /* 1: a capture is active, by the driver's numbers */
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  fake_make_current(fake_primary_retain(0));
  CUstream stream = fake_stream_create(0);
  ck_assert_int_eq(driver->cuStreamGetId(stream, &stream_id), CUDA_SUCCESS);
  ck_assert_uint_gt(stream_id, 0);
  for (int i = 0; i < 2; i++) {
    ck_assert(fake_stream_capture_begin(stream, 0));
    ck_assert_int_eq(driver->cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    ck_assert_int_eq(status, 1);
    status = -1;
    ck_assert_int_eq(driver->cuStreamGetCaptureInfo(stream, &status, &ids[i]), CUDA_SUCCESS);
    ck_assert_int_eq(status, 1);
    ck_assert(fake_stream_capture_end(stream));
  }
  ck_assert_uint_ne(ids[0], ids[1]);
  ck_assert_int_eq(driver->cuStreamGetCaptureInfo(stream, &status, &ids[2]), CUDA_SUCCESS);
  ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
  ck_assert_uint_eq(ids[2], 0);
}
END_TEST

START_TEST(mapping_works_as_declared) {
  const struct driver *driver = NULL;
  const size_t bytes = FAKE_GRANULARITY_BYTES;
  const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdevice device = -1;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  size_t total = 0;
  int can = 0;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  fake_make_current(fake_primary_retain(0));
  ck_assert_int_eq(driver->cuCtxGetDevice(&device), CUDA_SUCCESS);
  ck_assert_int_eq(device, 0);
  ck_assert_int_eq(driver->cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
                   CUDA_SUCCESS);
  ck_assert_int_eq(can, 1);
  ck_assert_int_eq(driver->cuDeviceTotalMem(&total, device), CUDA_SUCCESS);
  ck_assert_uint_ge(total, bytes);
  ck_assert_int_eq(driver->cuMemAddressReserve(&address, 2 * bytes, 0, 0, 0), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemRelease(handle), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
  ck_assert(fake_holds((void *)(uintptr_t)address, bytes));
  ck_assert_int_eq(driver->cuMemUnmap(address, bytes), CUDA_SUCCESS);
  ck_assert_int_eq(driver->cuMemAddressFree(address, 2 * bytes), CUDA_SUCCESS);
  ck_assert_uint_eq(fake_live_blocks(), 0);
  ck_assert_uint_eq(fake_reserved_bytes(), 0);
}
END_TEST

START_TEST(second_call_gives_the_same_table_without_cuInit) {
  const struct driver *first = NULL, *second = NULL;
  ck_assert_int_eq(driver_get(&first), cudaSuccess);
  ck_assert_int_eq(driver_get(&second), cudaSuccess);
  ck_assert_ptr_eq(first, second);
  ck_assert_uint_eq(fake_calls("cuInit"), 1);
}
END_TEST

START_TEST(no_driver_is_no_device) {
  const struct driver *driver = NULL;
  library_instead = "libcuda-that-is-not-there.so.1";
  ck_assert_int_eq(driver_get(&driver), cudaErrorNoDevice);
  ck_assert_ptr_null(driver);
  assert_error_says("libcuda-that-is-not-there.so.1");
  library_instead = NULL;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
}
END_TEST

START_TEST(driver_without_cuGetProcAddress_is_too_old) {
  const struct driver *driver = NULL;
  library_instead = "libm.so.6"; /* any library that exists */
  ck_assert_int_eq(driver_get(&driver), cudaErrorNotSupported);
  ck_assert_ptr_null(driver);
  assert_error_says("cuGetProcAddress");
}
END_TEST

static const struct {
  int error;
  const char *name;
} init_errors[] = {{100, "CUDA_ERROR_NO_DEVICE"}, {3, "CUDA_ERROR_NOT_INITIALIZED"}, {999, "CUDA_ERROR_UNKNOWN"}};

START_TEST(failure_of_cuInit_passes_through_with_its_name) {
  const struct driver *driver = NULL;
  fake_fail("cuInit", 1, init_errors[_i].error);
  ck_assert_int_eq(driver_get(&driver), (cudaError_t)init_errors[_i].error);
  ck_assert_ptr_null(driver);
  assert_error_says("cuInit");
  assert_error_says(init_errors[_i].name);
}
END_TEST

START_TEST(failure_of_cuInit_is_not_remembered) {
  const struct driver *driver = NULL;
  fake_set_devices(0);
  ck_assert_int_eq(driver_get(&driver), cudaErrorNoDevice);
  fake_set_devices(1);
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  ck_assert_ptr_nonnull(driver);
}
END_TEST

static const char *const required[] = {
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemFreeHost",
};
enum { required_count = sizeof required / sizeof required[0] };

START_TEST(missing_required_function_is_not_supported) {
  const struct driver *driver = NULL;
  fake_hide(required[_i]);
  ck_assert_int_eq(driver_get(&driver), cudaErrorNotSupported);
  ck_assert_ptr_null(driver);
  assert_error_says(required[_i]);
}
END_TEST

/* OPTIONAL_FUNCTION(name) for each that the library does without. */
#define OPTIONAL_FUNCTIONS                                                                                             \
  OPTIONAL_FUNCTION(cuCtxGetId)                                                                                        \
  OPTIONAL_FUNCTION(cuThreadExchangeStreamCaptureMode)                                                                 \
  OPTIONAL_FUNCTION(cuEventCreate)                                                                                     \
  OPTIONAL_FUNCTION(cuEventDestroy)                                                                                    \
  OPTIONAL_FUNCTION(cuEventQuery)                                                                                      \
  OPTIONAL_FUNCTION(cuCtxRecordEvent)                                                                                  \
  OPTIONAL_FUNCTION(cuDeviceGetCount)                                                                                  \
  OPTIONAL_FUNCTION(cuDevicePrimaryCtxGetState)                                                                        \
  OPTIONAL_FUNCTION(cuPointerGetAttribute)                                                                             \
  OPTIONAL_FUNCTION(cuStreamGetId)                                                                                     \
  OPTIONAL_FUNCTION(cuStreamGetCtx)                                                                                    \
  OPTIONAL_FUNCTION(cuStreamIsCapturing)                                                                               \
  OPTIONAL_FUNCTION(cuStreamGetCaptureInfo)                                                                            \
  OPTIONAL_FUNCTION(cuMemAddressReserve)                                                                               \
  OPTIONAL_FUNCTION(cuMemAddressFree)                                                                                  \
  OPTIONAL_FUNCTION(cuMemCreate)                                                                                       \
  OPTIONAL_FUNCTION(cuMemRelease)                                                                                      \
  OPTIONAL_FUNCTION(cuMemRetainAllocationHandle)                                                                       \
  OPTIONAL_FUNCTION(cuMemMap)                                                                                          \
  OPTIONAL_FUNCTION(cuMemUnmap)                                                                                        \
  OPTIONAL_FUNCTION(cuMemSetAccess)                                                                                    \
  OPTIONAL_FUNCTION(cuCtxGetDevice)                                                                                    \
  OPTIONAL_FUNCTION(cuDeviceGetAttribute)                                                                              \
  OPTIONAL_FUNCTION(cuDeviceTotalMem)                                                                                  \
  OPTIONAL_FUNCTION(cuDeviceGetName)                                                                                   \
  OPTIONAL_FUNCTION(cuDriverGetVersion)                                                                                \
  OPTIONAL_FUNCTION(cuStreamSynchronize)                                                                               \
  OPTIONAL_FUNCTION(cuMemAllocAsync)                                                                                   \
  OPTIONAL_FUNCTION(cuMemFreeAsync)

START_TEST(missing_optional_functions_are_null) {
  const struct driver *driver = NULL;
#define OPTIONAL_FUNCTION(name) fake_hide(#name);
  OPTIONAL_FUNCTIONS
#undef OPTIONAL_FUNCTION
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
#define OPTIONAL_FUNCTION(name) ck_assert(driver->name == NULL);
  OPTIONAL_FUNCTIONS
#undef OPTIONAL_FUNCTION
  ck_assert(driver->cuMemAlloc != NULL);
}
END_TEST

START_TEST(error_without_a_name_keeps_its_number) {
  const struct driver *driver = NULL;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  ck_assert_int_eq(driver_error(driver, 12345, "cuSomething"), (cudaError_t)12345);
  assert_error_says("cuSomething");
  assert_error_says("12345");
}
END_TEST

START_TEST(error_text_has_the_call_the_name_and_the_driver_s_words) {
  const struct driver *driver = NULL;
  ck_assert_int_eq(driver_get(&driver), cudaSuccess);
  ck_assert_int_eq(driver_error(driver, CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc"), cudaErrorMemoryAllocation);
  assert_error_says("cuMemAlloc");
  assert_error_says("CUDA_ERROR_OUT_OF_MEMORY");
  assert_error_says("out of memory");
}
END_TEST

enum { thread_count = 8 };
static pthread_barrier_t start_line;

static void *get_driver(void *result) {
  (void)pthread_barrier_wait(&start_line);
  return driver_get((const struct driver **)result) == cudaSuccess ? result : NULL;
}

START_TEST(first_calls_of_many_threads_give_one_table) {
  pthread_t threads[thread_count];
  const struct driver *drivers[thread_count] = {NULL};
  ck_assert_int_eq(pthread_barrier_init(&start_line, NULL, thread_count), 0);
  for (int i = 0; i < thread_count; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, get_driver, &drivers[i]), 0);
  for (int i = 0; i < thread_count; i++) {
    void *success = NULL;
    ck_assert_int_eq(pthread_join(threads[i], &success), 0);
    ck_assert_ptr_nonnull(success);
  }
  ck_assert_ptr_nonnull(drivers[0]);
  for (int i = 1; i < thread_count; i++)
    ck_assert_ptr_eq(drivers[i], drivers[0]);
  (void)pthread_barrier_destroy(&start_line);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("driver");
  TCase *found = tcase_create("found"), *missing = tcase_create("missing");
  tcase_add_test(found, driver_is_found_and_initialised);
  tcase_add_test(found, every_function_is_found_at_its_version);
  tcase_add_test(found, functions_work_as_declared);
  tcase_add_test(found, fences_work_as_declared);
  tcase_add_test(found, captures_are_told_apart);
  tcase_add_test(found, mapping_works_as_declared);
  tcase_add_test(found, second_call_gives_the_same_table_without_cuInit);
  tcase_add_test(found, error_without_a_name_keeps_its_number);
  tcase_add_test(found, error_text_has_the_call_the_name_and_the_driver_s_words);
  tcase_add_loop_test(found, first_calls_of_many_threads_give_one_table, 0, 20);
  tcase_add_test(missing, no_driver_is_no_device);
  tcase_add_test(missing, driver_without_cuGetProcAddress_is_too_old);
  tcase_add_loop_test(missing, failure_of_cuInit_passes_through_with_its_name, 0, 3);
  tcase_add_test(missing, failure_of_cuInit_is_not_remembered);
  tcase_add_loop_test(missing, missing_required_function_is_not_supported, 0, required_count);
  tcase_add_test(missing, missing_optional_functions_are_null);
  suite_add_tcase(suite, found);
  suite_add_tcase(suite, missing);
  return run_suite(suite);
}
