/* SPDX-License-Identifier: BSD-2-Clause */
/* What the tests of `mam-bench heap` share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_heap.h"

const size_t heap_roomy_bytes = (size_t)8 << 30;

bool heap_result_add(struct heap_result *result, double step, const double *values, size_t count) {
  if (result->row_count == result->row_room) {
    size_t room = result->row_room == 0 ? 1 : 2 * result->row_room;
    struct heap_row *rows = realloc(result->rows, room * sizeof *rows);
    if (rows == NULL) {
      (void)fputs("mam-bench: heap: no host memory\n", stderr);
      return false;
    }
    result->rows = rows;
    result->row_room = room;
  }
  struct heap_row *row = &result->rows[result->row_count++];
  *row = (struct heap_row){.step = step};
  memcpy(row->values, values, count * sizeof *values);
  return true;
}

void heap_result_free(struct heap_result *result) {
  free(result->rows);
  *result = (struct heap_result){0};
}

struct heap_case *heap_case_set(struct heap_case *what, const char *label, unsigned low, unsigned high, size_t requests,
                                size_t heap_bytes) {
  *what =
      (struct heap_case){.low = low, .high = high, .requests = requests, .heap_bytes = heap_bytes, .superblocks = 1};
  (void)snprintf(what->label, sizeof what->label, "%s", label);
  return what + 1;
}

struct heap_work heap_work_of(const struct heap_run *run) {
  return (struct heap_work){.slots = (heap_word *)run->gpu->slots,
                            .count = run->what->requests,
                            .every_shift = run->what->every_shift,
                            .low = run->what->low,
                            .high = run->what->high,
                            .seed = 1};
}

unsigned heap_repetitions(const struct heap_run *run, unsigned usual) {
  return run->heap->allocator->slow ? 2 : run->quick ? (usual + 1) / 2 : usual;
}

bool heap_kernel_run(const struct heap_run *run, CUfunction kernel, struct heap_work *work) {
  void *parameters[] = {run->heap->handle, work};
  return gpu_run(run->gpu, kernel, gpu_work_threads(work), parameters);
}

bool heap_kernel_time(const struct heap_run *run, CUfunction kernel, struct heap_work *work, double *us) {
  void *parameters[] = {run->heap->handle, work};
  return gpu_time(run->gpu, kernel, gpu_work_threads(work), parameters, us);
}

bool heap_blocks_sound(const struct heap_run *run, const struct heap_work *work, size_t *failed) {
  struct heap_faults faults = {0};
  *failed = 0;
  if (!run->heap->allocator->hands_out)
    return true;
  if (!gpu_blocks_check(run->gpu, work, run->heap->low, run->heap->high, &faults))
    return false;
  *failed = (size_t)faults.failed;
  if (faults.misaligned + faults.outside + faults.overlapped == 0)
    return true;
  (void)fprintf(stderr,
                "mam-bench: heap: %s, %s: of %zu blocks %llu are misaligned, %llu outside the heap, %llu "
                "overlap others\n",
                run->heap->allocator->name, run->what->label, run->what->requests, faults.misaligned, faults.outside,
                faults.overlapped);
  return false;
}
