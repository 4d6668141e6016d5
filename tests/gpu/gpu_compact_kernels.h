/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The kernels of gpu_compact_test behind host functions: they make objects that point to each other, thin them out and
 * check them.
 *
 * Each function enqueues on the default stream and returns cudaGetLastError() after the launch.  table has the address
 * of each object, NULL for those that are gone.  links says for each pointer of each object which object it leads to,
 * GPU_COMPACT_NONE for none.
 */
#ifndef MAM_TESTS_GPU_COMPACT_KERNELS_H
#define MAM_TESTS_GPU_COMPACT_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "mam/heap.h"

enum { GPU_COMPACT_LINKS = 3 };
#define GPU_COMPACT_NONE 0xffffffffu

/* An object; a pattern follows to its end. */
struct gpu_object {
  unsigned long long number;
  struct gpu_object *links[GPU_COMPACT_LINKS];
};

/* What kernels counted. */
struct gpu_compact_tally {
  unsigned long long refused;        /* requests */
  unsigned long long wrong_objects;  /* table entries that lead to another object, or to none */
  unsigned long long wrong_links;    /* pointers that do not lead where links says */
  unsigned long long wrong_bytes;    /* of patterns */
  unsigned long long live, distance; /* objects; sum of the distances from one in the table to the next, in bytes */
};

/* Objects of number first and on, of bytes each: at least sizeof(struct gpu_object). */
struct gpu_objects {
  struct gpu_object **table;
  unsigned *links; /* GPU_COMPACT_LINKS for each */
  unsigned count, bytes;
  mam_type type;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Makes the objects whose entry is NULL. */
cudaError_t gpu_compact_create(mam_device_heap heap, struct gpu_objects objects, struct gpu_compact_tally *tally);
/* Makes each object point to what links says, or to nothing where that object is gone. */
cudaError_t gpu_compact_link(struct gpu_objects objects);
/* Frees the objects whose keep is 0. */
cudaError_t gpu_compact_thin(mam_device_heap heap, struct gpu_objects objects, const unsigned char *keep);
/* Looks at every object. */
cudaError_t gpu_compact_check(struct gpu_objects objects, struct gpu_compact_tally *tally);
/* Lets mam_forward bring the table up to date. */
cudaError_t gpu_compact_forward(mam_device_heap heap, struct gpu_objects objects);
/* One thread follows the first link from *head, at most limit times, and writes the number of each object that it
 * meets. */
cudaError_t gpu_compact_walk(struct gpu_object **head, unsigned limit, unsigned *numbers);

#ifdef __cplusplus
}
#endif

#endif
