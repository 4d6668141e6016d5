/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_training.h"

#include <math.h>

enum {
  layer_count = 36, /* every third layer is a convolution */
  hidden = 1536,
  heads = 24,
  batch = 8,
  element_bytes = 2,
  parameters_most = 6,  /* of a layer */
  activations_most = 9, /* of a layer */
  lingering_most = 256
};

/* The places of the program that allocate: a range for each kind, with a place for each parameter or activation of a
 * layer. */
enum place {
  place_parameter = 0,
  place_state = 6,
  place_gradient = 12,
  place_attention = 18,
  place_convolution = 27,
  place_workspace = 36,
  place_description = 38,
  place_lingering = 40,
  place_flow = 42
};

struct layer {
  bool convolution;
  bool checkpointed;
  size_t channels, side; /* of a convolution */
  size_t parameter_count, activation_count;
  size_t parameter_bytes[parameters_most];
  uint32_t gradients[parameters_most], activations[activations_most]; /* slots */
};

/* A slot whose block is freed at the end of a later iteration. */
struct lingering {
  uint32_t slot;
  size_t iteration;
};

struct maker {
  struct trace_maker trace;
  struct layer layers[layer_count];
  struct lingering lingering[lingering_most];
  size_t lingering_count;
  size_t tokens;  /* of this iteration: sequences times their length */
  double picture; /* the side of a picture, as a multiple of the usual one */
};

/* ---- Drawing ----------------------------------------------------------------------------------------------------- */

static double draw_unit(struct maker *maker) { return (double)(numbers_next(&maker->trace.draw) >> 11) * 0x1p-53; }

/* By the method of Box and Muller. */
static double draw_log_normal(struct maker *maker, double median, double sigma) {
  double radius = sqrt(-2 * log(1 - draw_unit(maker)));
  return median * exp(sigma * radius * cos(2 * 3.14159265358979 * draw_unit(maker)));
}

static size_t draw_bytes(struct maker *maker, double median, double sigma, double most) {
  double bytes = draw_log_normal(maker, median, sigma);
  return (size_t)(bytes < 1 ? 1 : bytes > most ? most : bytes);
}

static bool draw_one_in(struct maker *maker, size_t count) { return numbers_below(&maker->trace.draw, count) == 0; }

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

static void layer_set_up(struct maker *maker, struct layer *layer, size_t index) {
  static const size_t square = (size_t)hidden * hidden * element_bytes;
  *layer = (struct layer){.convolution = index % 3 == 2, .checkpointed = index % 4 == 3};
  if (layer->convolution) {
    layer->channels = (size_t)64 << numbers_below(&maker->trace.draw, 5);
    layer->side = 7168 / layer->channels;
    layer->parameter_count = 3;
    layer->activation_count = 4;
    layer->parameter_bytes[0] = 9 * layer->channels * layer->channels * element_bytes;
    layer->parameter_bytes[1] = layer->parameter_bytes[2] = layer->channels * element_bytes;
  } else {
    const size_t bytes[parameters_most] = {
        3 * square, square, 4 * square, 4 * square, hidden * element_bytes, hidden * element_bytes};
    layer->parameter_count = parameters_most;
    layer->activation_count = activations_most;
    for (size_t i = 0; i < parameters_most; i++)
      layer->parameter_bytes[i] = bytes[i];
  }
  for (size_t i = 0; i < layer->parameter_count; i++)
    (void)trace_allocate(&maker->trace, layer->parameter_bytes[i], place_parameter + (unsigned)i);
}

/* The weights in twice the precision, and two moments. */
static void layer_state(struct maker *maker, const struct layer *layer) {
  for (size_t i = 0; i < layer->parameter_count; i++)
    for (size_t moment = 0; moment < 2; moment++)
      (void)trace_allocate(&maker->trace, 2 * layer->parameter_bytes[i], place_state + (unsigned)i);
}

/* The bytes of one feature map, or of a hidden vector for each token. */
static size_t layer_flow_bytes(const struct maker *maker, const struct layer *layer) {
  if (!layer->convolution)
    return maker->tokens * hidden * element_bytes;
  size_t side = (size_t)((double)layer->side * maker->picture) + 1;
  return batch * layer->channels * side * side * element_bytes;
}

static size_t layer_activation_bytes(const struct maker *maker, const struct layer *layer, size_t index) {
  /* For attention: the norm, the three projections, the result of attention, the second norm, the wide layer before and
   * after its function, the result, and what the backward pass needs of the softmax and of the random mask. */
  static const size_t widths[] = {1, 3, 1, 1, 4, 4, 1};
  size_t flow_bytes = layer_flow_bytes(maker, layer);
  if (layer->convolution)
    return index == 3 ? flow_bytes / 8 : flow_bytes; /* the last is a mask of bits */
  if (index < sizeof widths / sizeof widths[0])
    return widths[index] * flow_bytes;
  return index == 7 ? maker->tokens * heads * 4 : maker->tokens * hidden / 8;
}

static void layer_activate(struct maker *maker, struct layer *layer) {
  unsigned place = layer->convolution ? place_convolution : place_attention;
  for (size_t i = 0; i < layer->activation_count; i++)
    layer->activations[i] = trace_allocate(&maker->trace, layer_activation_bytes(maker, layer, i), place + (unsigned)i);
}

static void layer_deactivate(struct maker *maker, struct layer *layer) {
  if (draw_one_in(maker, 8))
    for (size_t i = layer->activation_count; i > 1; i--) {
      size_t other = numbers_below(&maker->trace.draw, i);
      uint32_t slot = layer->activations[i - 1];
      layer->activations[i - 1] = layer->activations[other];
      layer->activations[other] = slot;
    }
  for (size_t i = layer->activation_count; i > 0; i--)
    trace_free(&maker->trace, layer->activations[i - 1]);
}

/* Blocks that a layer has only while it works, around its own allocations.  Now and then one of them stays. */
struct scratch {
  uint32_t workspace, descriptions[3];
};

static struct scratch scratch_take(struct maker *maker, size_t iteration, bool backward) {
  struct scratch scratch;
  for (size_t i = 0; i < 3; i++)
    scratch.descriptions[i] =
        trace_allocate(&maker->trace, draw_bytes(maker, 1024, 1.5, 1 << 20), place_description + backward);
  scratch.workspace =
      trace_allocate(&maker->trace, draw_bytes(maker, 8 << 20, 1.2, 512 << 20), place_workspace + backward);
  if (draw_one_in(maker, 12) && maker->lingering_count < lingering_most) {
    bool large = draw_one_in(maker, 2);
    size_t bytes = large ? draw_bytes(maker, 1 << 20, 1.5, 64 << 20) : draw_bytes(maker, 1024, 1.5, 1 << 20);
    maker->lingering[maker->lingering_count++] =
        (struct lingering){trace_allocate(&maker->trace, bytes, place_lingering + large),
                           iteration + numbers_below(&maker->trace.draw, 9)};
  }
  return scratch;
}

static void scratch_give(struct maker *maker, const struct scratch *scratch) {
  trace_free(&maker->trace, scratch->workspace);
  for (size_t i = 0; i < 3; i++)
    trace_free(&maker->trace, scratch->descriptions[i]);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

static void pass_forward(struct maker *maker, size_t iteration, uint32_t flows[layer_count]) {
  for (size_t i = 0; i < layer_count; i++) {
    struct layer *layer = &maker->layers[i];
    struct scratch scratch = scratch_take(maker, iteration, false);
    layer_activate(maker, layer);
    flows[i] = trace_allocate(&maker->trace, layer_flow_bytes(maker, layer), place_flow);
    scratch_give(maker, &scratch);
    if (layer->checkpointed)
      layer_deactivate(maker, layer);
  }
}

static void pass_backward(struct maker *maker, size_t iteration, const uint32_t flows[layer_count]) {
  uint32_t upstream =
      trace_allocate(&maker->trace, layer_flow_bytes(maker, &maker->layers[layer_count - 1]), place_flow + 1);
  for (size_t i = layer_count; i > 0; i--) {
    struct layer *layer = &maker->layers[i - 1];
    if (layer->checkpointed)
      layer_activate(maker, layer);
    struct scratch scratch = scratch_take(maker, iteration, true);
    uint32_t downstream = trace_allocate(&maker->trace, layer_flow_bytes(maker, layer), place_flow + 1);
    for (size_t j = 0; j < layer->parameter_count; j++)
      layer->gradients[j] = trace_allocate(&maker->trace, layer->parameter_bytes[j], place_gradient + (unsigned)j);
    trace_free(&maker->trace, flows[i - 1]);
    layer_deactivate(maker, layer);
    trace_free(&maker->trace, upstream);
    scratch_give(maker, &scratch);
    upstream = downstream;
  }
  trace_free(&maker->trace, upstream);
}

static void pass_optimizer(struct maker *maker, size_t iteration) {
  for (size_t i = 0; i < layer_count; i++) {
    struct layer *layer = &maker->layers[i];
    if (iteration == 0)
      layer_state(maker, layer);
    for (size_t j = 0; j < layer->parameter_count; j++)
      trace_free(&maker->trace, layer->gradients[j]);
  }
}

/* Frees the blocks whose iterations are over. */
static void pass_tidy(struct maker *maker, size_t iteration) {
  size_t kept = 0;
  for (size_t i = 0; i < maker->lingering_count; i++) {
    if (maker->lingering[i].iteration <= iteration)
      trace_free(&maker->trace, maker->lingering[i].slot);
    else
      maker->lingering[kept++] = maker->lingering[i];
  }
  maker->lingering_count = kept;
}

static void training_iterate(void *program, size_t iteration) {
  struct maker *maker = program;
  uint32_t flows[layer_count];
  double length = draw_log_normal(maker, 768, 0.5);
  maker->tokens = batch * (size_t)(length < 64 ? 64 : length > 2048 ? 2048 : length);
  maker->picture = 0.75 + 0.5 * draw_unit(maker);
  pass_forward(maker, iteration, flows);
  pass_backward(maker, iteration, flows);
  pass_optimizer(maker, iteration);
  pass_tidy(maker, iteration);
}

static void training_begin(void *program, uint64_t seed) {
  struct maker *maker = program;
  (void)seed;
  for (size_t i = 0; i < layer_count; i++)
    layer_set_up(maker, &maker->layers[i], i);
}

bool training_draw(struct training *training, uint64_t seed, size_t iterations, size_t peak_most_bytes) {
  static const struct trace_program program = {sizeof(struct maker), training_begin, training_iterate};
  return trace_draw(training, &program, seed, iterations, peak_most_bytes);
}
