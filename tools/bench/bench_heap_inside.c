/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fill, spread: the paper's figures 2 and 4.  fill: 16,384 threads request 128 to 160 bytes with a chance of 0.05,
 * round after round, until 16 MiB in two superblocks are full.  spread: churn with a chance of 0.6 and sizes around 512
 * bytes, by the width of their range.  Both measure cycles and fragmentation (formulas 1 and 2).
 */
#include <math.h>
#include <stdio.h>

#include "bench_heap.h"

enum {
  fill_requests = 16384,
  fill_rounds_most = 240,
  fill_rounds_after = 4, /* rounds after the first refusal */
  fill_survey_rounds = 4,
  spread_rounds = 20,
};

static const size_t figure_heap_bytes = (size_t)16 << 20;

static bool inside_fits(const struct heap_allocator *allocator, const struct heap_case *what) {
  (void)what;
  return allocator->hands_out && !allocator->fixed;
}

static struct heap_work inside_work(const struct heap_run *run) {
  struct heap_work work = heap_work_of(run);
  work.sizes = (unsigned *)run->gpu->sizes;
  work.cycles = (unsigned *)run->gpu->cycles;
  return work;
}

/* Live blocks and free memory in the paper's terms. */
struct fragmentation {
  double live_bytes, internal, external, overhead;
};

static bool fragmentation_look(const struct heap_run *run, const struct heap_work *work,
                               struct fragmentation *fragmentation) {
  struct heap_inside inside = {0};
  struct heap_survey survey = {0};
  struct heap_work parameter = *work;
  CUdeviceptr counts = run->gpu->scratch;
  void *parameters[] = {run->heap->handle, &parameter, &counts};
  if (!gpu_clear(run->gpu, counts, sizeof inside) ||
      !gpu_run(run->gpu, run->heap->look_inside, (size_t)work->count, parameters) ||
      !gpu_read(run->gpu, &inside, counts, sizeof inside) || !run->heap->allocator->survey(run->heap, &survey))
    return false;
  double blocks = (double)inside.blocks, free_bytes = (double)survey.free_bytes;
  *fragmentation = (struct fragmentation){
      .live_bytes = (double)inside.asked_bytes,
      .internal = inside.blocks == 0 ? (double)NAN : inside.waste / blocks,
      .external = survey.free_bytes == 0 ? 0 : 1 - (double)survey.largest_free_bytes / free_bytes,
      .overhead = inside.asked_bytes == 0 ? (double)NAN : (double)survey.metadata_bytes / (double)inside.asked_bytes,
  };
  return true;
}

/* ---- Figure 2 ---------------------------------------------------------------------------------------------------- */

static size_t fill_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  (void)quick;
  heap_case_set(cases, "128-160 B", 128, 160, fill_requests, figure_heap_bytes);
  cases->superblocks = 2;
  return 1;
}

/* Runs one round, whose blocks go into slots of their own.  Adds a row if one is due. */
static bool fill_round(const struct heap_run *run, unsigned round, bool *refused, struct heap_result *result) {
  static const unsigned kinds[] = {0, heap_cycles_failed};
  struct gpu_cycles sums[2];
  struct fragmentation now = {0};
  struct heap_work work = inside_work(run), all = work;
  work.slots += (size_t)round * fill_requests;
  work.sizes += (size_t)round * fill_requests;
  work.seed = round + 1;
  work.alloc_chance = heap_chance_whole / 20;
  all.count = (heap_word)(round + 1) * fill_requests;
  if (!heap_kernel_run(run, run->heap->churn_timed, &work) || !gpu_cycles_sum(run->gpu, &work, kinds, 2, sums))
    return false;
  *refused = *refused || sums[1].count != 0;
  if (round % fill_survey_rounds != 0 && !*refused)
    return true;
  const double cell[] = {sums[0].mean, sums[0].variation, (double)sums[1].count};
  if (!fragmentation_look(run, &all, &now))
    return false;
  const double values[] = {cell[0],      cell[1],      now.live_bytes / (double)run->what->heap_bytes,
                           now.internal, now.external, now.overhead,
                           cell[2]};
  return heap_result_add(result, round, values, 7);
}

static bool fill_run(const struct heap_run *run, struct heap_result *result) {
  bool refused = false;
  unsigned after = 0, round = 0;
  struct heap_work all = inside_work(run);
  bool good = gpu_clear(run->gpu, run->gpu->slots, (size_t)fill_rounds_most * fill_requests * sizeof(heap_word)) &&
              gpu_clear(run->gpu, run->gpu->sizes, (size_t)fill_rounds_most * fill_requests * sizeof(unsigned));
  for (; good && round < fill_rounds_most && after < fill_rounds_after; round++) {
    good = fill_round(run, round, &refused, result);
    after += refused;
  }
  all.count = (heap_word)round * fill_requests;
  return good && heap_kernel_run(run, run->heap->free, &all);
}

const struct heap_test heap_fill = {
    .name = "fill",
    .help = "the paper's figure 2: 16,384 threads fill 16 MiB; cycles and fragmentation by round",
    .metrics = {"malloc_cycles", "malloc_variation", "share_live", "internal", "external", "overhead", "refusals"},
    .tables = {{"figure 2, the last row before the heap was full: cycles of a malloc", 0, false},
               {"internal fragmentation (formula 1)", 3, false},
               {"external fragmentation (formula 2)", 4, false},
               {"share of the heap that is live", 2, true}},
    .cases = fill_cases,
    .fits = inside_fits,
    .run = fill_run,
};

/* ---- Figure 4 ---------------------------------------------------------------------------------------------------- */

static size_t spread_cases(bool quick, struct heap_case cases[heap_cases_most]) {
  struct heap_case *next = cases;
  for (size_t threads = 1024; threads <= 4096; threads *= 4)
    for (unsigned spread = 0; spread <= 896; spread += quick ? 448 : 128) {
      char label[heap_label_size];
      (void)snprintf(label, sizeof label, "%zu, %u B", threads, spread);
      next = heap_case_set(next, label, 512 - spread / 2, 512 + spread / 2, threads, figure_heap_bytes);
    }
  return (size_t)(next - cases);
}

/* Mean cycles of reading a word of a block. */
static bool spread_touch(const struct heap_run *run, struct heap_work *work, double *cycles) {
  static const unsigned kinds[] = {0};
  struct gpu_cycles sum;
  CUdeviceptr sink = run->gpu->scratch;
  void *parameters[] = {work, &sink};
  if (!gpu_run(run->gpu, run->gpu->touch, (size_t)work->count, parameters) ||
      !gpu_run(run->gpu, run->gpu->touch, (size_t)work->count, parameters) ||
      !gpu_cycles_sum(run->gpu, work, kinds, 1, &sum))
    return false;
  *cycles = sum.mean;
  return true;
}

static bool spread_run(const struct heap_run *run, struct heap_result *result) {
  static const unsigned kinds[] = {0, heap_cycles_free};
  struct gpu_cycles sums[2];
  struct fragmentation now = {0};
  double access_cycles = 0;
  struct heap_work work = inside_work(run);
  work.alloc_chance = work.free_chance = heap_chance_whole / 5 * 3;
  bool good = gpu_clear(run->gpu, run->gpu->slots, run->what->requests * sizeof(heap_word));
  for (unsigned i = 0; good && i < spread_rounds; i++) {
    work.seed++;
    good = heap_kernel_run(run, run->heap->churn_timed, &work);
  }
  size_t empty = 0;
  if (!good || !gpu_cycles_sum(run->gpu, &work, kinds, 2, sums) || !fragmentation_look(run, &work, &now) ||
      !heap_blocks_sound(run, &work, &empty) || !spread_touch(run, &work, &access_cycles) ||
      !heap_kernel_run(run, run->heap->free, &work))
    return false;
  const double values[] = {now.internal, now.external, access_cycles, sums[0].mean, sums[1].mean};
  return heap_result_add(result, run->what->high - run->what->low, values, 5);
}

const struct heap_test heap_spread = {
    .name = "spread",
    .help = "the paper's figure 4: fragmentation and access by how far sizes around 512 B are spread",
    .metrics = {"internal", "external", "access_cycles", "malloc_cycles", "free_cycles"},
    .tables = {{"figure 4: internal fragmentation (formula 1)", 0, false},
               {"external fragmentation (formula 2)", 1, false},
               {"cycles to read a word", 2, false}},
    .cases = spread_cases,
    .fits = inside_fits,
    .run = spread_run,
};
