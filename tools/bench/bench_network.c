/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_network.h"

enum {
  layers_least = 12,
  layers_most = 40,
  parameters_most = 6,  /* of a layer */
  activations_most = 8, /* of a layer */
  element_bytes = 2,
  evaluation_every = 5,
  average_every = 4,
  vocabulary = 32000
};

enum kind { kind_attention, kind_shrinking, kind_there_and_back, kind_count };

/* The places of the program that allocate. */
enum place {
  place_parameter = 0,
  place_state = 6,
  place_gradient = 12,
  place_activation = 18,
  place_temporary = 26,
  place_workspace = 28,
  place_input = 30,
  place_flow = 31,
  place_average = 33
};

struct layer {
  size_t width, side; /* channels or hidden size; 1 / side of a picture's side is the side of a map */
  size_t parameter_count, activation_count;
  size_t parameter_bytes[parameters_most];
  uint32_t averages[parameters_most], gradients[parameters_most], activations[activations_most]; /* slots */
};

struct maker {
  struct trace_maker trace;
  enum kind kind;
  size_t layer_count;
  struct layer layers[layers_most];
  size_t batch, length; /* of this iteration: sequences and their length, or pictures and their side */
  uint32_t input;
};

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

static size_t draw_between(struct maker *maker, size_t least, size_t most) {
  return least + numbers_below(&maker->trace.draw, most - least + 1);
}

/* How often the side of a layer's map is halved: ever more towards the last layer, or towards the middle one. */
static size_t layer_halvings(const struct maker *maker, size_t index) {
  size_t half = maker->layer_count / 2;
  if (maker->kind == kind_attention)
    return 0;
  if (maker->kind == kind_shrinking)
    return index * 5 / maker->layer_count;
  return (index < half ? index : maker->layer_count - 1 - index) * 4 / half;
}

static void layer_set_up(struct maker *maker, struct layer *layer, size_t index, size_t width) {
  size_t halvings = layer_halvings(maker, index);
  *layer = (struct layer){.width = width << halvings, .side = (size_t)1 << halvings};
  if (maker->kind == kind_attention) {
    const size_t matrix = layer->width * layer->width * element_bytes;
    const size_t bytes[parameters_most] = {3 * matrix, matrix,           4 * matrix,
                                           4 * matrix, layer->width * 4, layer->width * 12};
    layer->parameter_count = parameters_most;
    layer->activation_count = 8;
    for (size_t i = 0; i < parameters_most; i++)
      layer->parameter_bytes[i] = bytes[i];
  } else {
    layer->parameter_count = 4;
    layer->activation_count = draw_between(maker, 3, 5);
    for (size_t i = 0; i < 2; i++) {
      layer->parameter_bytes[i] = 9 * layer->width * layer->width * element_bytes;
      layer->parameter_bytes[2 + i] = layer->width * 4;
    }
  }
  for (size_t i = 0; i < layer->parameter_count; i++)
    (void)trace_allocate(&maker->trace, layer->parameter_bytes[i], place_parameter + (unsigned)i);
}

/* The bytes that a layer hands to the next one. */
static size_t layer_flow_bytes(const struct maker *maker, const struct layer *layer) {
  size_t side = maker->kind == kind_attention ? 1 : maker->length / layer->side + 1;
  size_t places = maker->kind == kind_attention ? maker->length : side * side;
  return maker->batch * places * layer->width * element_bytes;
}

static size_t layer_activation_bytes(const struct maker *maker, const struct layer *layer, size_t index) {
  /* For attention: norm, projections, the result of attention, its statistics, norm, the wide layer twice, a random
   * mask. */
  static const size_t eighths[] = {8, 24, 8, 1, 8, 32, 32, 4};
  size_t flow_bytes = layer_flow_bytes(maker, layer);
  if (maker->kind == kind_attention)
    return flow_bytes * eighths[index] / 8;
  return index == 2 ? flow_bytes / 16 + 1 : flow_bytes; /* the third is a mask of bits */
}

/* The bytes of a workspace, as a library chooses them by the shape of the input. */
static size_t workspace_bytes(struct maker *maker, const struct layer *layer) {
  size_t flow_bytes = layer_flow_bytes(maker, layer);
  return numbers_below(&maker->trace.draw, 4) == 0 ? numbers_log_uniform(&maker->trace.draw, 1 << 20, 256 << 20)
                                                   : flow_bytes / draw_between(maker, 1, 6) + 4096;
}

/* One operation, which has a workspace and a small description while it runs. */
static uint32_t operation(struct maker *maker, const struct layer *layer, size_t bytes, unsigned place) {
  uint32_t workspace = trace_allocate(&maker->trace, workspace_bytes(maker, layer), place_workspace);
  uint32_t description = trace_allocate(&maker->trace, draw_between(maker, 64, 16384), place_workspace + 1);
  uint32_t result = trace_allocate(&maker->trace, bytes, place);
  trace_free(&maker->trace, description);
  trace_free(&maker->trace, workspace);
  return result;
}

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

static void shape_draw(struct maker *maker) {
  bool attention = maker->kind == kind_attention;
  maker->batch = draw_between(maker, 8, 24);
  maker->length = attention ? 16 * draw_between(maker, 8, 96) : 32 * draw_between(maker, 4, 10);
}

static size_t input_bytes(const struct maker *maker) {
  return maker->kind == kind_attention ? maker->batch * maker->length * 8
                                       : maker->batch * maker->length * maker->length * 3 * 4;
}

/* The forward pass.  A flow is freed as soon as the next layer has read it, unless the backward pass needs it. */
static void pass_forward(struct maker *maker, uint32_t flows[layers_most], bool keeps) {
  for (size_t i = 0; i < maker->layer_count; i++) {
    struct layer *layer = &maker->layers[i];
    uint32_t temporary = trace_allocate(&maker->trace, layer_flow_bytes(maker, layer), place_temporary);
    for (size_t j = 0; j < layer->activation_count; j++) {
      size_t bytes = layer_activation_bytes(maker, layer, j);
      uint32_t made = j % 3 == 0 ? operation(maker, layer, bytes, place_activation + (unsigned)j)
                                 : trace_allocate(&maker->trace, bytes, place_activation + (unsigned)j);
      if (keeps)
        layer->activations[j] = made;
      else
        trace_free(&maker->trace, made);
    }
    flows[i] = operation(maker, layer, layer_flow_bytes(maker, layer), place_flow);
    trace_free(&maker->trace, temporary);
    if (!keeps && i > 0)
      trace_free(&maker->trace, flows[i - 1]);
  }
}

/* On the way up a layer reads the map of this layer, its counterpart on the way down. */
static size_t counterpart(const struct maker *maker, size_t index) { return maker->layer_count - 1 - index; }

static void pass_backward(struct maker *maker, const uint32_t flows[layers_most]) {
  uint32_t upstream =
      trace_allocate(&maker->trace, layer_flow_bytes(maker, &maker->layers[maker->layer_count - 1]), place_flow + 1);
  uint32_t ways_up[layers_most] = {0};
  for (size_t i = maker->layer_count; i-- > 0;) {
    struct layer *layer = &maker->layers[i];
    bool up = maker->kind == kind_there_and_back && i > counterpart(maker, i);
    uint32_t downstream = operation(maker, layer, layer_flow_bytes(maker, layer), place_flow + 1);
    if (up) /* the counterpart's share stays until the backward pass comes to it */
      ways_up[counterpart(maker, i)] =
          trace_allocate(&maker->trace, layer_flow_bytes(maker, layer), place_temporary + 1);
    for (size_t j = 0; j < layer->activation_count; j++) {
      if (j < layer->parameter_count)
        layer->gradients[j] = operation(maker, layer, layer->parameter_bytes[j], place_gradient + (unsigned)j);
      trace_free(&maker->trace, layer->activations[layer->activation_count - 1 - j]);
    }
    for (size_t j = layer->activation_count; j < layer->parameter_count; j++)
      layer->gradients[j] = trace_allocate(&maker->trace, layer->parameter_bytes[j], place_gradient + (unsigned)j);
    if (maker->kind == kind_there_and_back && i < counterpart(maker, i))
      trace_free(&maker->trace, ways_up[i]);
    trace_free(&maker->trace, flows[i]);
    trace_free(&maker->trace, upstream);
    upstream = downstream;
  }
  trace_free(&maker->trace, upstream);
}

static void pass_optimizer(struct maker *maker, size_t iteration) {
  for (size_t i = 0; i < maker->layer_count; i++) {
    struct layer *layer = &maker->layers[i];
    for (size_t j = 0; j < layer->parameter_count; j++) {
      size_t bytes = layer->parameter_bytes[j];
      for (size_t moment = 0; moment < 2 && iteration == 0; moment++)
        (void)trace_allocate(&maker->trace, 2 * bytes, place_state + (unsigned)j);
      uint32_t scratch = trace_allocate(&maker->trace, 2 * bytes, place_temporary);
      uint32_t update = trace_allocate(&maker->trace, bytes, place_temporary + 1);
      trace_free(&maker->trace, scratch);
      trace_free(&maker->trace, update);
      if (iteration % average_every == 0) { /* the new one exists before the old one is freed */
        uint32_t average = trace_allocate(&maker->trace, bytes, place_average);
        if (iteration > 0)
          trace_free(&maker->trace, layer->averages[j]);
        layer->averages[j] = average;
      }
    }
  }
  for (size_t i = 0; i < maker->layer_count; i++)
    for (size_t j = 0; j < maker->layers[i].parameter_count; j++)
      trace_free(&maker->trace, maker->layers[i].gradients[j]);
}

static void pass_evaluation(struct maker *maker) {
  uint32_t flows[layers_most];
  size_t batch = maker->batch, length = maker->length;
  maker->batch = 2 * draw_between(maker, 4, 12);
  pass_forward(maker, flows, false);
  trace_free(&maker->trace, flows[maker->layer_count - 1]);
  maker->batch = batch;
  maker->length = length;
}

static void network_iterate(void *program, size_t iteration) {
  struct maker *maker = program;
  uint32_t flows[layers_most], input = maker->input, logits[2] = {0};
  size_t tokens = maker->batch * maker->length;
  pass_forward(maker, flows, true);
  for (size_t i = 0; i < 2 && maker->kind == kind_attention; i++)
    logits[i] = trace_allocate(&maker->trace, tokens * vocabulary / 4, place_temporary);
  size_t batch = maker->batch, length = maker->length;
  shape_draw(maker);
  size_t next_batch = maker->batch, next_length = maker->length;
  maker->input = trace_allocate(&maker->trace, input_bytes(maker), place_input);
  maker->batch = batch;
  maker->length = length;
  for (size_t i = 0; i < 2 && maker->kind == kind_attention; i++)
    trace_free(&maker->trace, logits[i]);
  pass_backward(maker, flows);
  trace_free(&maker->trace, input);
  pass_optimizer(maker, iteration);
  if (iteration % evaluation_every == evaluation_every - 1)
    pass_evaluation(maker);
  maker->batch = next_batch;
  maker->length = next_length;
}

static void network_begin(void *program, uint64_t seed) {
  struct maker *maker = program;
  maker->kind = (enum kind)(seed % kind_count);
  maker->layer_count = draw_between(maker, layers_least, layers_most);
  size_t width = maker->kind == kind_attention ? 256 * draw_between(maker, 3, 8) : 16 * draw_between(maker, 2, 6);
  for (size_t i = 0; i < maker->layer_count; i++)
    layer_set_up(maker, &maker->layers[i], i, width);
  shape_draw(maker);
  maker->input = trace_allocate(&maker->trace, input_bytes(maker), place_input);
}

bool network_draw(struct training *training, uint64_t seed, size_t iterations, size_t peak_most_bytes) {
  static const struct trace_program program = {sizeof(struct maker), network_begin, network_iterate};
  return trace_draw(training, &program, seed, iterations, peak_most_bytes);
}
