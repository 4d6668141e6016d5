/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A door is one way in which programs reach the driver.  gpu_door_runtime.c calls the CUDA runtime, linked statically
 * or shared.  gpu_door_driver.c calls the driver, opened with dlopen (by dlsym or by cuGetProcAddress) or linked.  The
 * programs that include this file know neither libmam nor Check: they are run by mam-run, and print what a door
 * answered.
 *
 * Results are the numbers of cudaError_t and CUresult, which agree for all that is asked here.
 */
#ifndef MAM_TESTS_GPU_DOOR_H
#define MAM_TESTS_GPU_DOOR_H

#include <stdbool.h>
#include <stddef.h>

enum {
  DOOR_SKIP = 77,
  DOOR_HANDLE_BYTES = 64, /* of an IPC handle */
  DOOR_CAPTURE_MODES = 3, /* global, thread-local, relaxed: by their numbers in either API */
};

typedef void *door_stream;
typedef void *door_graph;

/* Which one this is, for messages. */
extern const char door_name[];

/* Makes device 0 current.  0; DOOR_SKIP without a GPU; otherwise the error. */
int door_open(void);

/* The driver's function of exactly that name ("cuMemAlloc_v2"), found as this door finds functions; NULL if there is
 * none. version: a CUDA version in which the name without its suffix means this function (3020). */
void *door_function(const char *name, int version);

int door_malloc(void **block, size_t bytes);
int door_free(void *block);
int door_malloc_pitch(void **block, size_t *pitch, size_t width, size_t height);
int door_memory(size_t *free_bytes, size_t *total_bytes);
int door_malloc_async(void **block, size_t bytes, door_stream stream);
int door_free_async(void *block, door_stream stream);
int door_malloc_managed(void **block, size_t bytes);
int door_malloc_host(void **block, size_t bytes);
int door_free_host(void *block);
int door_array(size_t width, size_t height); /* creates an array and frees it */

int door_fill(void *block, int byte, size_t bytes);
int door_write(void *to, const void *from, size_t bytes); /* host to device */
int door_read(void *to, const void *from, size_t bytes);  /* device to host */
int door_fill_async(void *block, int byte, size_t bytes, door_stream stream);
int door_copy_async(void *to, const void *from, size_t bytes, door_stream stream); /* on the device */
int door_call_async(void (*function)(void *), void *argument, door_stream stream); /* on the host */

int door_stream_new(door_stream *stream); /* not ordered with the default stream */
int door_stream_end(door_stream stream);
int door_wait(door_stream stream);
int door_wait_all(void);

int door_capture_begin(door_stream stream, int mode);
int door_capture_status(door_stream stream, int *status);
int door_capture_end(door_stream stream, door_graph *graph); /* *graph can be launched; NULL on failure */
int door_graph_launch(door_graph graph, door_stream stream);
int door_graph_end(door_graph graph);

int door_handle_get(void *handle, void *block);
int door_handle_open(void **block, const void *handle);
int door_handle_close(void *block);

/* What the runtime's cudaPointerGetAttributes answers, or at the driver's doors cuPointerGetAttributes. */
struct door_attributes {
  int type, device;
  bool device_pointer_is_it, host_pointer_is_null;
};
int door_attributes(struct door_attributes *attributes, void *pointer);

int door_reset(void); /* resets the device, which can be used again afterwards */

#endif
