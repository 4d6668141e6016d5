/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Records for tests of what reads them.
 *
 *   record_samples small FILE                two sites, a phase, a refusal; all figures are known: see the function
 *   record_samples empty | one | stray FILE  no event; one allocation; frees only
 *   record_samples ranges FILE               one site, as of PyTorch's allocator, and the ranges of its operators
 *   record_samples hostile FILE              names that would leave their place in a page, and bytes that are no UTF-8
 *   record_samples training FILE ITERATIONS  a training-like trace, its blocks placed by best fit in a growing chunk
 *
 * A record that is cut is made by cutting a file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_training.h"
#include "support/record_writer.h"

static void event_put(struct record_file *file, uint32_t thread, struct record_item item) {
  record_file_event(file, thread, &item);
}

static void taken_put(struct record_file *file, uint32_t thread, uint64_t ns, uint64_t change) {
  event_put(file, thread, (struct record_item){.kind = RECORD_TAKEN, .ticks = ns, .size = change});
}

/* ---- Small ones -------------------------------------------------------------------------------------------------- */

/* Time, us:   1        2        3        4        5          6        7        8        9
 * taken      +8 MiB
 * weights             A 3 MiB                                                          (not freed)
 * batch                        B 1 MiB  C 2 MiB free B    D 512 KiB  free C   D freed at 8
 * Addresses: A at 0, B at 3 MiB, C at 4 MiB, D in B's place.  At most in use is 6 MiB, at 4 us.  At 7 us 3.5 MiB are in
 * use; the holes are 512 KiB behind D and 2 MiB where C was, together, since they touch.  At 9 us 1 GiB is refused. */
static void small_put(struct record_file *file) {
  const uint64_t mib = 1 << 20, base = 0x7f0000000000;
  uint32_t main_thread = record_file_thread(file, "main"), loader = record_file_thread(file, "loader");
  (void)record_file_context(file, 1, 0);
  uint32_t weights = record_file_site(file, "prog", 0x1234, "load_weights+0x10");
  uint32_t batch = record_file_site(file, "prog", 0x2000, "next_batch+0x20");
  uint32_t stream = 1 + record_file_stream(file, 0xabc0), tag = record_file_text(file, "layer 1");
  uint32_t phase = record_file_text(file, "epoch 1"), mark = record_file_text(file, "loaded");
  taken_put(file, main_thread, 1000, 8 * mib);
  writer_allocate(file, main_thread, 2000, base, 3 * mib, weights);
  event_put(file, main_thread, (struct record_item){.kind = RECORD_MARK, .ticks = 2500, .text = mark});
  event_put(file, main_thread, (struct record_item){.kind = RECORD_PUSH, .ticks = 2600, .text = phase});
  writer_allocate(file, loader, 3000, base + 3 * mib, mib, batch);
  event_put(file, loader,
            (struct record_item){.kind = RECORD_ALLOCATE,
                                 .ticks = 4000,
                                 .address = base + 4 * mib,
                                 .size = 2 * mib,
                                 .site = batch,
                                 .stream = stream,
                                 .tag = tag});
  writer_free(file, main_thread, 5000, base + 3 * mib);
  writer_allocate(file, loader, 6000, base + 3 * mib, mib / 2, batch);
  writer_free(file, main_thread, 7000, base + 4 * mib);
  writer_free(file, main_thread, 8000, base + 3 * mib);
  event_put(file, main_thread,
            (struct record_item){.kind = RECORD_REFUSED, .ticks = 9000, .size = 1024 * mib, .site = weights});
  event_put(file, main_thread, (struct record_item){.kind = RECORD_POP, .ticks = 10000});
}

static void one_put(struct record_file *file) {
  uint32_t thread = record_file_thread(file, "main"), site = record_file_site(file, "prog", 0x10, "only+0x1");
  (void)record_file_context(file, 1, 0);
  writer_allocate(file, thread, 5000, 0x7f0000000000, 1000, site);
}

static void stray_put(struct record_file *file) {
  uint32_t thread = record_file_thread(file, "main");
  (void)record_file_context(file, 1, 0);
  for (uint64_t i = 1; i <= 3; i++)
    writer_free(file, thread, 1000 * i, 0x7f0000000000 + 512 * i);
  event_put(file, thread, (struct record_item){.kind = RECORD_POP, .ticks = 4000});
}

/* forward: 2 MiB for mm, one of them by an operator that only allocates; 1 MiB for relu.  Then 512 KiB in no range. */
static void ranges_put(struct record_file *file) {
  static const char *const names[][3] = {{"aten::mm, seq = 1, op_id = 2"},
                                         {"aten::mm, seq = 2, op_id = 3", "aten::empty, op_id = 4"},
                                         {"aten::relu, op_id = 5"}};
  const uint64_t mib = 1 << 20, base = 0x7f0000000000;
  uint32_t thread = record_file_thread(file, "main"), site = record_file_site(file, "bridge", 0x10, "alloc+0x1");
  (void)record_file_context(file, 1, 0);
  uint64_t ns = 1000;
  event_put(file, thread,
            (struct record_item){.kind = RECORD_PUSH, .ticks = ns, .text = record_file_text(file, "forward")});
  for (uint64_t i = 0; i < 3; i++, ns += 1000) {
    size_t depth = 0;
    for (; names[i][depth] != NULL; depth++)
      event_put(
          file, thread,
          (struct record_item){.kind = RECORD_PUSH, .ticks = ns, .text = record_file_text(file, names[i][depth])});
    writer_allocate(file, thread, ns, base + i * mib, mib, site);
    for (; depth > 0; depth--)
      event_put(file, thread, (struct record_item){.kind = RECORD_POP, .ticks = ns + 500});
  }
  event_put(file, thread, (struct record_item){.kind = RECORD_POP, .ticks = ns});
  writer_allocate(file, thread, ns, base + 3 * mib, mib / 2, site);
}

static void hostile_put(struct record_file *file) {
  static const char *const names[] = {"</script><script>document.documentElement.dataset.harmed='yes'</script>",
                                      "<!--<script>",
                                      "'\"><img src=x onerror=\"document.documentElement.dataset.harmed='yes'\">",
                                      "\xff\xfe broken \xc3( \xe2\x82 \xed\xa0\x80 \xf5\x80\x80\x80 \xc0\x80",
                                      "gr\xc3\xb6\xc3\x9f"
                                      "e \xe2\x82\xac \xf0\x9f\x98\x80",
                                      "line\nbreak\ttab\x01\x7f \xe2\x80\xa8 \\u003c \\",
                                      "@data@",
                                      "__proto__",
                                      ""};
  uint32_t thread = record_file_thread(file, names[0]);
  (void)record_file_context(file, 1, 0);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    uint32_t text = record_file_text(file, names[i]), site = record_file_site(file, names[i], i, names[i]);
    uint64_t ns = 1000 * (i + 1);
    event_put(file, thread, (struct record_item){.kind = RECORD_MARK, .ticks = ns, .text = text});
    event_put(file, thread, (struct record_item){.kind = RECORD_PUSH, .ticks = ns, .text = text});
    event_put(file, thread,
              (struct record_item){.kind = RECORD_ALLOCATE,
                                   .ticks = ns + 1,
                                   .address = i == 0   ? UINT64_MAX - 100
                                              : i == 1 ? 1
                                                       : (uint64_t)i << 60,
                                   .size = i == 2 ? UINT64_MAX : 1000 * i,
                                   .site = site,
                                   .tag = text});
    writer_free(file, thread, ns + 2, 0x123456789 * i);
  }
}

/* ---- A training-like one ----------------------------------------------------------------------------------------- */

enum { granularity_bytes = training_granularity_bytes };

/* Free memory behind which comes no free memory, sorted by address. */
struct gap {
  uint64_t address, bytes;
};

struct chunk {
  struct gap *gaps;
  size_t count;
};

static void gap_insert(struct chunk *chunk, size_t at, struct gap gap) {
  (void)memmove(&chunk->gaps[at + 1], &chunk->gaps[at], (chunk->count - at) * sizeof gap);
  chunk->gaps[at] = gap;
  chunk->count++;
}

static void gap_remove(struct chunk *chunk, size_t at) {
  chunk->count--;
  (void)memmove(&chunk->gaps[at], &chunk->gaps[at + 1], (chunk->count - at) * sizeof chunk->gaps[0]);
}

/* The smallest gap that is large enough; the last one always is. */
static uint64_t chunk_take(struct chunk *chunk, uint64_t bytes) {
  size_t best = chunk->count - 1;
  for (size_t i = 0; i < chunk->count; i++)
    if (chunk->gaps[i].bytes >= bytes && chunk->gaps[i].bytes < chunk->gaps[best].bytes)
      best = i;
  uint64_t address = chunk->gaps[best].address;
  chunk->gaps[best].address += bytes;
  chunk->gaps[best].bytes -= bytes;
  if (chunk->gaps[best].bytes == 0)
    gap_remove(chunk, best);
  return address;
}

static void chunk_give(struct chunk *chunk, uint64_t address, uint64_t bytes) {
  size_t at = 0, end = chunk->count;
  while (at < end) {
    size_t middle = at + (end - at) / 2;
    if (chunk->gaps[middle].address < address)
      at = middle + 1;
    else
      end = middle;
  }
  gap_insert(chunk, at, (struct gap){address, bytes});
  if (at + 1 < chunk->count && address + bytes == chunk->gaps[at + 1].address) {
    chunk->gaps[at].bytes += chunk->gaps[at + 1].bytes;
    gap_remove(chunk, at + 1);
  }
  if (at > 0 && chunk->gaps[at - 1].address + chunk->gaps[at - 1].bytes == address) {
    chunk->gaps[at - 1].bytes += chunk->gaps[at].bytes;
    gap_remove(chunk, at);
  }
}

struct train {
  struct record_file *file;
  struct training training;
  struct chunk chunk;
  struct gap *blocks; /* by slot */
  uint64_t ns, base, held;
  uint32_t threads[2], sites[training_tag_count], stream;
  uint32_t forward, backward;
};

/* Names for the places of bench_training.c. */
static const char *place_name(unsigned tag) {
  static const struct {
    unsigned end;
    const char *name;
  } places[] = {{6, "create_parameter"}, {12, "optimizer_state"},
                {18, "gradient"},        {27, "attention_forward"},
                {36, "convolution_2d"},  {38, "workspace"},
                {40, "describe"},        {42, "cache_lookup"},
                {46, "flow_of_layer"},   {training_tag_count, "recompute"}};
  size_t i = 0;
  while (tag >= places[i].end)
    i++;
  return places[i].name;
}

static void train_define(struct train *train) {
  char name[96];
  train->threads[0] = record_file_thread(train->file, "python3");
  train->threads[1] = record_file_thread(train->file, "autograd");
  (void)record_file_context(train->file, 1, 0);
  for (unsigned i = 0; i < training_tag_count; i++) {
    (void)snprintf(name, sizeof name, "%s+%#x", place_name(i), 16 * i + 18);
    train->sites[i] = record_file_site(train->file, "libmodel.so", 4096 * i + 18, name);
  }
  train->stream = 1 + record_file_stream(train->file, 0x7f12aa0010);
  train->forward = record_file_text(train->file, "forward");
  train->backward = record_file_text(train->file, "backward");
}

static void train_step(struct train *train, const struct training_step *step, uint32_t thread) {
  struct gap *block = &train->blocks[step->slot];
  train->ns += 2000 + step->slot * 7919 % 97 * 50;
  if (step->bytes == 0) {
    writer_free(train->file, thread, train->ns, block->address);
    chunk_give(&train->chunk, block->address, block->bytes);
    return;
  }
  block->bytes = (step->bytes + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
  block->address = chunk_take(&train->chunk, block->bytes);
  if (block->address + block->bytes - train->base > train->held) { /* chunks of 64 MiB */
    uint64_t held = (block->address + block->bytes - train->base + (64 << 20)) >> 26 << 26;
    taken_put(train->file, thread, train->ns, held - train->held);
    train->held = held;
  }
  event_put(train->file, thread,
            (struct record_item){.kind = RECORD_ALLOCATE,
                                 .ticks = train->ns,
                                 .address = block->address,
                                 .size = step->bytes,
                                 .site = train->sites[step->tag],
                                 .stream = train->stream});
}

static void phase_put(struct train *train, enum record_kind kind, uint32_t text) {
  event_put(train->file, train->threads[0], (struct record_item){.kind = kind, .ticks = train->ns, .text = text});
}

/* From the step begin on: the first half is forward and in the first thread, the other backward. */
static void train_iteration(struct train *train, size_t iteration, size_t begin) {
  size_t end = train->training.ends[iteration], middle = begin + (end - begin) / 2;
  char name[32];
  (void)snprintf(name, sizeof name, "iteration %zu", iteration + 1);
  phase_put(train, RECORD_PUSH, record_file_text(train->file, name));
  phase_put(train, RECORD_PUSH, train->forward);
  for (size_t i = begin; i < end; i++) {
    if (i == middle) {
      phase_put(train, RECORD_POP, 0);
      phase_put(train, RECORD_PUSH, train->backward);
    }
    train_step(train, &train->training.steps[i], train->threads[i < middle ? 0 : 1]);
  }
  phase_put(train, RECORD_POP, 0);
  phase_put(train, RECORD_POP, 0);
  if (iteration % 4 == 3) {
    (void)snprintf(name, sizeof name, "epoch %zu", iteration / 4 + 2);
    phase_put(train, RECORD_MARK, record_file_text(train->file, name));
  }
}

static bool training_put(struct record_file *file, size_t iterations, uint64_t *end_ns) {
  struct train train = {.file = file, .base = 0x7f4000000000, .ns = 1000};
  bool good = training_draw(&train.training, 1, iterations, (size_t)60 << 30);
  train.blocks = calloc(train.training.slot_count + 1, sizeof *train.blocks);
  train.chunk.gaps = calloc(train.training.step_count + 2, sizeof *train.chunk.gaps);
  good = good && train.blocks != NULL && train.chunk.gaps != NULL;
  if (good) {
    train.chunk.gaps[train.chunk.count++] = (struct gap){train.base, (uint64_t)1 << 40};
    train_define(&train);
    phase_put(&train, RECORD_MARK, record_file_text(file, "epoch 1"));
    for (size_t i = 0, begin = 0; i < iterations; begin = train.training.ends[i++])
      train_iteration(&train, i, begin);
    for (size_t i = train.training.ends[iterations - 1]; i < train.training.step_count; i++)
      train_step(&train, &train.training.steps[i], train.threads[0]);
  }
  *end_ns = train.ns;
  training_free(&train.training);
  free(train.blocks);
  free(train.chunk.gaps);
  return good;
}

/* Each of so many ranges is inside the one before, with a block in it; the innermost ones have the largest. */
static void deep_put(struct record_file *file) {
  enum { DEPTH = 10000 };
  uint32_t thread = record_file_thread(file, "main"), site = record_file_site(file, "prog", 1, "alloc+0x1");
  (void)record_file_context(file, 1, 0);
  for (uint64_t i = 0; i < DEPTH; i++) {
    char name[32];
    (void)snprintf(name, sizeof name, "level %d", (int)i);
    uint32_t text = record_file_text(file, name);
    record_file_event(file, thread, &(struct record_item){.kind = RECORD_PUSH, .ticks = i, .text = text});
    writer_allocate(file, thread, i, 0x7f0000000000 + i * 1024, 600 + i / 25, site);
  }
  for (uint64_t i = 0; i < DEPTH; i++)
    record_file_event(file, thread, &(struct record_item){.kind = RECORD_POP, .ticks = DEPTH + i});
}

int main(int argc, char **argv) {
  struct record_file file;
  uint64_t end_ns = 10000;
  bool good = argc >= 3 && writer_open(&file, argv[2], zstd_load());
  if (!good)
    return EXIT_FAILURE;
  if (strcmp(argv[1], "small") == 0)
    small_put(&file);
  else if (strcmp(argv[1], "one") == 0)
    one_put(&file);
  else if (strcmp(argv[1], "stray") == 0)
    stray_put(&file);
  else if (strcmp(argv[1], "ranges") == 0)
    ranges_put(&file);
  else if (strcmp(argv[1], "deep") == 0)
    deep_put(&file), end_ns = 20000;
  else if (strcmp(argv[1], "hostile") == 0)
    hostile_put(&file);
  else if (strcmp(argv[1], "training") == 0 && argc == 4)
    good = training_put(&file, (size_t)atol(argv[3]), &end_ns);
  else
    good = strcmp(argv[1], "empty") == 0;
  writer_close(&file, end_ns);
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
