/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_trace_maker.h"

#include <stdlib.h>

/* A trace is drawn again with a smaller scale until its peak fits, at most so many times. */
enum { draws_most = 8 };

/* Smaller blocks keep their size when a trace is scaled down. */
static const size_t scaled_least_bytes = 64 << 10;

static size_t round_up(size_t bytes) {
  return (bytes + training_granularity_bytes - 1) / training_granularity_bytes * training_granularity_bytes;
}

/* Makes an array twice as long, or as long as least.  False if the host has no memory. */
static bool array_grow(void **array, size_t *room, size_t item_bytes, size_t least) {
  size_t wanted = *room == 0 ? least : 2 * *room;
  void *grown = realloc(*array, wanted * item_bytes);
  if (grown == NULL)
    return false;
  *array = grown;
  *room = wanted;
  return true;
}

static void maker_step(struct trace_maker *maker, struct training_step step) {
  struct training *training = maker->training;
  void *steps = training->steps;
  if (training->step_count == maker->step_room)
    maker->failed = !array_grow(&steps, &maker->step_room, sizeof step, 4096);
  training->steps = steps;
  if (!maker->failed)
    training->steps[training->step_count++] = step;
}

static uint32_t maker_slot(struct trace_maker *maker) {
  void *bytes = maker->slot_bytes, *empty = maker->empty;
  if (maker->empty_count > 0)
    return maker->empty[--maker->empty_count];
  if (maker->training->slot_count == maker->slot_room) {
    size_t room = maker->slot_room;
    maker->failed = !array_grow(&bytes, &room, sizeof *maker->slot_bytes, 1024) ||
                    !array_grow(&empty, &maker->slot_room, sizeof *maker->empty, 1024);
    maker->slot_bytes = bytes;
    maker->empty = empty;
  }
  return maker->failed ? 0 : (uint32_t)maker->training->slot_count++;
}

uint32_t trace_allocate(struct trace_maker *maker, size_t bytes, unsigned place) {
  size_t scaled = (size_t)((double)bytes * maker->scale);
  if (bytes > scaled_least_bytes)
    bytes = scaled > scaled_least_bytes ? scaled : scaled_least_bytes;
  uint32_t slot = maker->failed ? 0 : maker_slot(maker);
  if (maker->failed)
    return 0;
  maker->slot_bytes[slot] = bytes;
  maker->live_bytes += round_up(bytes);
  if (maker->live_bytes > maker->training->peak_bytes)
    maker->training->peak_bytes = maker->live_bytes;
  maker_step(maker, (struct training_step){slot, place, bytes});
  return slot;
}

void trace_free(struct trace_maker *maker, uint32_t slot) {
  if (maker->failed)
    return;
  maker->live_bytes -= round_up(maker->slot_bytes[slot]);
  maker->slot_bytes[slot] = 0;
  maker->empty[maker->empty_count++] = slot;
  maker_step(maker, (struct training_step){.slot = slot});
}

/* At the end of the program, and so of the last iteration, frees all blocks. */
static void maker_finish(struct trace_maker *maker) {
  for (uint32_t slot = 0; slot < maker->training->slot_count && !maker->failed; slot++)
    if (maker->slot_bytes[slot] != 0)
      trace_free(maker, slot);
  maker->training->ends[maker->training->iterations - 1] = maker->training->step_count;
}

static bool trace_draw_scaled(struct training *training, const struct trace_program *program, uint64_t seed,
                              double scale) {
  struct trace_maker *maker = calloc(1, program->bytes);
  if (maker == NULL)
    return false;
  *maker = (struct trace_maker){.training = training, .draw = numbers_seed(seed), .scale = scale};
  training->step_count = training->slot_count = training->peak_bytes = 0;
  free(training->steps);
  training->steps = NULL;
  program->begin(maker, seed);
  for (size_t i = 0; i < training->iterations && !maker->failed; i++) {
    program->iterate(maker, i);
    training->ends[i] = training->step_count;
  }
  maker_finish(maker);
  bool good = !maker->failed;
  free(maker->slot_bytes);
  free(maker->empty);
  free(maker);
  return good;
}

bool trace_draw(struct training *training, const struct trace_program *program, uint64_t seed, size_t iterations,
                size_t peak_most_bytes) {
  double scale = 1;
  *training = (struct training){.ends = malloc(iterations * sizeof(size_t)), .iterations = iterations};
  if (training->ends == NULL)
    return false;
  for (unsigned i = 0; i < draws_most; i++) {
    if (!trace_draw_scaled(training, program, seed, scale))
      return false;
    if (training->peak_bytes <= peak_most_bytes)
      return true;
    scale *= 0.95 * (double)peak_most_bytes / (double)training->peak_bytes;
  }
  return false;
}

void training_free(struct training *training) {
  free(training->steps);
  free(training->ends);
  *training = (struct training){0};
}
