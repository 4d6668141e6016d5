/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The naive model of an elastic pool, beside the model of pool_model.h: one cell for each 64 KiB of the reserved
 * addresses.
 *
 *   granule   |        2 MiB = 32 cells         |                              |
 *   cell      | used | free | waiting | free |..| unmapped ...                 |
 *   pieces    what was mapped at once; only whole pieces are given back
 *
 * The pool works with holes, neighbours and pieces.  The model tries instead.  For growth it tries every run of
 * granules, from the shortest and lowest on, whether the block would fit if that run were mapped.  For trimming it
 * tries every piece from the top, cell by cell.
 */
#ifndef MAM_TESTS_ELASTIC_MODEL_H
#define MAM_TESTS_ELASTIC_MODEL_H

#include "model_require.h"

enum {
  ELASTIC_CELL_BYTES = 64 << 10,
  ELASTIC_GRANULE_CELLS = SOURCE_GRANULARITY_BYTES / ELASTIC_CELL_BYTES,
  ELASTIC_MEMORY_GRANULES = 32,
  ELASTIC_GRANULES = 2 * ELASTIC_MEMORY_GRANULES, /* granules of addresses */
  ELASTIC_CELLS = ELASTIC_GRANULES * ELASTIC_GRANULE_CELLS,
  ELASTIC_BLOCKS = 128
};

enum elastic_cell { ELASTIC_UNMAPPED, ELASTIC_FREE, ELASTIC_USED, ELASTIC_WAITING };

struct elastic_model {
  unsigned char cells[ELASTIC_CELLS];
  unsigned pieces[ELASTIC_GRANULES]; /* the length in granules of the piece that begins there, 0 if none does */
  struct {
    size_t cell, cells;
  } blocks[ELASTIC_BLOCKS]; /* live */
  size_t block_count;
  unsigned limit, step; /* both in granules */
  size_t waiting_limit_bytes;
  unsigned synchronizes;
  size_t peak_cells, moved_granules; /* the most that was ever used; what was moved instead of growth */
  /* fenced: the pool's rule is the fenced one.  unfenced: something was free before the GPU was known to be done with
   * it. */
  bool fenced, unfenced;
};

static size_t elastic_count(const struct elastic_model *model, enum elastic_cell state) {
  size_t count = 0;
  for (size_t cell = 0; cell < ELASTIC_CELLS; cell++)
    count += model->cells[cell] == state;
  return count;
}

static unsigned elastic_held(const struct elastic_model *model) {
  return ELASTIC_GRANULES - (unsigned)(elastic_count(model, ELASTIC_UNMAPPED) / ELASTIC_GRANULE_CELLS);
}

/* The first cell of the smallest hole for so many cells, of equal ones the first.  -1 if there is none. */
static long elastic_best_fit(const struct elastic_model *model, size_t cells) {
  size_t best = SIZE_MAX;
  long best_cell = -1;
  for (size_t cell = 0, end; cell < ELASTIC_CELLS; cell = end + 1) {
    for (end = cell; end < ELASTIC_CELLS && model->cells[end] == ELASTIC_FREE;)
      end++;
    if (end - cell >= cells && end - cell < best)
      best = end - cell, best_cell = (long)cell;
  }
  return best_cell;
}

static void elastic_fill(struct elastic_model *model, unsigned granule, unsigned count, enum elastic_cell state) {
  memset(&model->cells[granule * ELASTIC_GRANULE_CELLS], state, (size_t)count * ELASTIC_GRANULE_CELLS);
}

static bool elastic_unmapped(const struct elastic_model *model, unsigned granule, unsigned count) {
  for (unsigned i = granule; i < granule + count; i++)
    if (i >= ELASTIC_GRANULES || model->cells[i * ELASTIC_GRANULE_CELLS] != ELASTIC_UNMAPPED)
      return false;
  return true;
}

/* Whether a block of so many cells would fit if these granules had memory. */
static bool elastic_would_do(struct elastic_model *model, unsigned granule, unsigned count, size_t cells) {
  elastic_fill(model, granule, count, ELASTIC_FREE);
  bool fits = elastic_best_fit(model, cells) >= 0;
  elastic_fill(model, granule, count, ELASTIC_UNMAPPED);
  return fits;
}

/* Maps a run of granules as one piece. */
static void elastic_map(struct elastic_model *model, unsigned granule, unsigned count) {
  elastic_fill(model, granule, count, ELASTIC_FREE);
  model->pieces[granule] = count;
}

/* The shortest run of granules that makes room, the lowest of these.  Returns its length, from *granule on.  0: there
 * is none. */
static unsigned elastic_place(struct elastic_model *model, size_t cells, unsigned *granule) {
  for (unsigned count = 1; count <= ELASTIC_GRANULES; count++)
    for (*granule = 0; *granule + count <= ELASTIC_GRANULES; ++*granule)
      if (elastic_unmapped(model, *granule, count) && elastic_would_do(model, *granule, count, cells))
        return count;
  return 0;
}

/* Maps that run, or a whole step at once if generous.  A step extends away from the hole that the run continues. */
static bool elastic_grow(struct elastic_model *model, size_t cells, bool generous) {
  unsigned room = model->limit - elastic_held(model), granule, count = elastic_place(model, cells, &granule);
  if (count == 0 || count > room)
    return false;
  unsigned end = granule + count, want = generous && model->step > count ? model->step : count;
  bool down = granule > 0 && elastic_unmapped(model, granule - 1, 1);
  for (; end - granule < want && end - granule < room; down ? granule-- : end++)
    if (!elastic_unmapped(model, down ? granule - 1 : end, 1) || (down && granule == 0))
      break;
  elastic_map(model, granule, end - granule);
  return true;
}

/* Whether all cells from one to another are free, in whichever order the two are; neither itself is looked at. */
static bool elastic_free_between(const struct elastic_model *model, size_t one, size_t other) {
  size_t first = one < other ? one : other, last = one < other ? other : one;
  while (++first < last)
    if (model->cells[first] != ELASTIC_FREE)
      return false;
  return true;
}

/* A run of granules that is to get memory, and the holes beside it with which it serves.  No granules: none. */
enum elastic_sides { ELASTIC_BEFORE = 1, ELASTIC_AFTER = 2, ELASTIC_BOTH = 3 };
struct elastic_run {
  unsigned granule, count, sides;
};

/* Whether a block of so many cells fits into the run and those holes. */
static bool elastic_run_serves(const struct elastic_model *model, struct elastic_run run, size_t cells) {
  size_t first = (size_t)run.granule * ELASTIC_GRANULE_CELLS, end = first + (size_t)run.count * ELASTIC_GRANULE_CELLS;
  while ((run.sides & ELASTIC_BEFORE) != 0 && first > 0 && model->cells[first - 1] == ELASTIC_FREE)
    first--;
  while ((run.sides & ELASTIC_AFTER) != 0 && end < ELASTIC_CELLS && model->cells[end] == ELASTIC_FREE)
    end++;
  return end - first >= cells;
}

/* Whether a piece that is free as a whole is a part of a hole with which the run serves. */
static bool elastic_beside(const struct elastic_model *model, unsigned granule, struct elastic_run run) {
  size_t piece = (size_t)granule * ELASTIC_GRANULE_CELLS, first = (size_t)run.granule * ELASTIC_GRANULE_CELLS;
  size_t last = first + (size_t)run.count * ELASTIC_GRANULE_CELLS - 1;
  unsigned side = piece < first ? ELASTIC_BEFORE : ELASTIC_AFTER;
  return (run.sides & side) != 0 && elastic_free_between(model, piece, piece < first ? first : last);
}

/* The granule of the highest piece below end that is free as a whole, and not beside the run.  -1 if there is none. */
static long elastic_free_piece(const struct elastic_model *model, long end, struct elastic_run run) {
  for (long granule = end - 1; granule >= 0; granule--) {
    size_t free_cells = 0, all = (size_t)model->pieces[granule] * ELASTIC_GRANULE_CELLS;
    for (size_t i = 0; i < all; i++)
      free_cells += model->cells[(size_t)granule * ELASTIC_GRANULE_CELLS + i] == ELASTIC_FREE;
    if (all > 0 && free_cells == all && !elastic_beside(model, (unsigned)granule, run))
      return granule;
  }
  return -1;
}

/* Leaves what is free beside the run. */
static void elastic_trim(struct elastic_model *model, unsigned keep, struct elastic_run run) {
  for (long end = ELASTIC_GRANULES; elastic_held(model) > keep && !model->unfenced;) {
    end = elastic_free_piece(model, end, run);
    if (end < 0)
      return;
    elastic_fill(model, (unsigned)end, model->pieces[end], ELASTIC_UNMAPPED);
    model->pieces[end] = 0;
  }
}

/* The free piece that is best for a run which lacks so many granules: the shortest that has as many, of at most so
 * many; else the longest.  The lowest of equal ones.  -1 if there is none.  least: 32 times the least granules. */
static long elastic_best_piece(const struct elastic_model *model, struct elastic_run run, unsigned lacking,
                               unsigned most, unsigned least) {
  long best = -1;
  unsigned best_count = 0;
  for (long at = ELASTIC_GRANULES; (at = elastic_free_piece(model, at, run)) >= 0;) {
    unsigned count = model->pieces[at];
    bool enough = count >= lacking, best_enough = best_count >= lacking;
    bool better = best < 0 || count == best_count || (enough && best_enough ? count < best_count : count > best_count);
    if (count > most || 32 * count < least || !better)
      continue;
    best = at;
    best_count = count;
  }
  return best;
}

/* How long a run may become where it is: downwards, if the granule before it has no memory. */
static unsigned elastic_run_most(const struct elastic_model *model, struct elastic_run run, bool down) {
  unsigned first = run.granule, end = run.granule + run.count;
  while (down && first > 0 && elastic_unmapped(model, first - 1, 1))
    first--;
  while (!down && elastic_unmapped(model, end, 1))
    end++;
  return end - first;
}

/* Moves free pieces to a run, but those of less than a 32nd of it, and maps the rest of it.  Gives others back, so that
 * at most so many granules are held.  Returns how long the run has become, 0 if it cannot be. */
static unsigned elastic_move_to(struct elastic_model *model, struct elastic_run run, unsigned most_held) {
  struct elastic_model tried = *model;
  bool down = run.granule > 0 && elastic_unmapped(model, run.granule - 1, 1);
  unsigned most = elastic_run_most(model, run, down), least = run.count, taken = 0, count = 0;
  unsigned counts[ELASTIC_GRANULES];
  long piece;
  while (taken < run.count && !model->unfenced &&
         (piece = elastic_best_piece(&tried, run, run.count - taken, most - taken, least)) >= 0) {
    counts[count] = tried.pieces[piece];
    taken += counts[count++];
    elastic_fill(&tried, (unsigned)piece, tried.pieces[piece], ELASTIC_UNMAPPED);
    tried.pieces[piece] = 0;
  }
  if (taken > run.count) {
    run.granule -= down ? taken - run.count : 0;
    run.count = taken;
  }
  if (run.count > most_held)
    return 0;
  elastic_trim(&tried, most_held - run.count, run);
  if (elastic_held(&tried) > most_held - run.count)
    return 0;
  unsigned at = run.granule, end = run.granule + run.count;
  for (unsigned i = 0; i < count; at += counts[i++])
    elastic_map(&tried, at, counts[i]);
  if (at < end)
    elastic_map(&tried, at, end - at);
  *model = tried;
  return run.count;
}

/* The granules of all free pieces that are not beside the run. */
static unsigned elastic_free_pieces(const struct elastic_model *model, struct elastic_run run) {
  unsigned granules = 0;
  for (long at = ELASTIC_GRANULES; (at = elastic_free_piece(model, at, run)) >= 0;)
    granules += model->pieces[at];
  return granules;
}

/* What the pool does before it grows beyond the most that was ever used, and a 128th of it: if all but an eighth of
 * what it needs is free in pieces elsewhere, it moves these, and maps no more than they lack.  It stops when it has
 * moved twice what it holds, where each move counts as at least 16 MiB. */
static bool elastic_move_early(struct elastic_model *model, size_t cells) {
  const size_t granule_bytes = SOURCE_GRANULARITY_BYTES;
  size_t used = elastic_count(model, ELASTIC_USED) + cells;
  size_t most = (used > model->peak_cells ? used : model->peak_cells) * ELASTIC_CELL_BYTES;
  unsigned granule, held = elastic_held(model), count = elastic_place(model, cells, &granule);
  if (count == 0 || model->unfenced || (held + count) * granule_bytes <= most + most / 128 ||
      model->moved_granules > 2 * (size_t)held)
    return false;
  struct elastic_run run = {granule, count, ELASTIC_BEFORE};
  while (!elastic_run_serves(model, run, cells))
    run.sides++;
  unsigned pieces = elastic_free_pieces(model, run), new = count > pieces ? count - pieces : 0;
  if (8 * new > count || new > model->limit - held)
    return false;
  count = elastic_move_to(model, run, held + new);
  model->moved_granules += count == 0 ? 0 : count > 8 ? count : 8;
  return count > 0;
}

/* Whether a run begins where unmapped granules do, or ends where they end. */
static bool elastic_at_edge(const struct elastic_model *model, struct elastic_run run) {
  bool first = run.granule == 0 || !elastic_unmapped(model, run.granule - 1, 1);
  return run.sides == ELASTIC_BEFORE ? first : !elastic_unmapped(model, run.granule + run.count, 1);
}

/* At the limit, pieces move to the shortest run of granules for which they are enough, beside a hole if there is one.
 * Where no addresses are left for that, pieces are given back. */
static bool elastic_move(struct elastic_model *model, size_t cells) {
  unsigned need = (unsigned)((cells + ELASTIC_GRANULE_CELLS - 1) / ELASTIC_GRANULE_CELLS);
  struct elastic_run run;
  for (run.count = 1; run.count <= need; run.count++)
    for (run.granule = 0; run.granule + run.count <= ELASTIC_GRANULES; run.granule++)
      for (run.sides = ELASTIC_BEFORE; run.sides <= (run.count < need ? ELASTIC_BOTH : ELASTIC_AFTER); run.sides++)
        if (elastic_unmapped(model, run.granule, run.count) && elastic_run_serves(model, run, cells) &&
            (run.count < need || elastic_at_edge(model, run)) && elastic_move_to(model, run, model->limit) > 0)
          return true;
  struct elastic_model tried = *model;
  if (need > model->limit || elastic_held(model) <= model->limit - need)
    return false;
  elastic_trim(&tried, model->limit - need, (struct elastic_run){0, 0, 0});
  if (elastic_held(&tried) > model->limit - need)
    return false;
  *model = tried;
  return elastic_grow(model, cells, false);
}

static void elastic_synchronize(struct elastic_model *model) {
  for (size_t cell = 0; cell < ELASTIC_CELLS; cell++)
    if (model->cells[cell] == ELASTIC_WAITING)
      model->cells[cell] = ELASTIC_FREE;
  model->synchronizes++;
}

static bool elastic_make_room(struct elastic_model *model, size_t cells) {
  if (cells <= (size_t)model->limit * ELASTIC_GRANULE_CELLS) {
    if (elastic_move_early(model, cells) || elastic_grow(model, cells, true) || elastic_move(model, cells))
      return true;
  }
  size_t waiting = elastic_count(model, ELASTIC_WAITING);
  size_t unmapped = (size_t)(model->limit - elastic_held(model)) * ELASTIC_GRANULE_CELLS;
  if (waiting == 0 || cells > waiting + elastic_count(model, ELASTIC_FREE) + unmapped)
    return false;
  elastic_synchronize(model);
  return true;
}

/* ---- Both, step by step ---- */

static void elastic_step_malloc(struct elastic_model *model, struct mam_pool *pool, size_t cells) {
  void *address = NULL;
  long cell;
  bool room = true;
  if (model->block_count == ELASTIC_BLOCKS)
    return;
  while ((cell = elastic_best_fit(model, cells)) < 0 && room)
    room = elastic_make_room(model, cells);
  cudaError_t error = pool_malloc(pool, POOL_ANY_ID, cells * ELASTIC_CELL_BYTES, NULL, &address);
  MODEL_REQUIRE(error == (cell >= 0 ? cudaSuccess : cudaErrorMemoryAllocation));
  if (cell < 0)
    return;
  MODEL_REQUIRE((uintptr_t)address == IMAGINARY_FIRST_BASE + (size_t)cell * ELASTIC_CELL_BYTES);
  memset(&model->cells[cell], ELASTIC_USED, cells);
  size_t used = elastic_count(model, ELASTIC_USED);
  model->peak_cells = used > model->peak_cells ? used : model->peak_cells;
  model->blocks[model->block_count].cell = (size_t)cell;
  model->blocks[model->block_count++].cells = cells;
}

static void elastic_step_free(struct elastic_model *model, size_t choice) {
  if (model->block_count == 0)
    return;
  choice %= model->block_count;
  size_t cell = model->blocks[choice].cell;
  memset(&model->cells[cell], model->fenced ? ELASTIC_WAITING : ELASTIC_FREE, model->blocks[choice].cells);
  model->unfenced = model->unfenced || !model->fenced;
  size_t half = (size_t)elastic_held(model) * SOURCE_GRANULARITY_BYTES / 2;
  size_t limit_bytes = model->waiting_limit_bytes > 0 ? model->waiting_limit_bytes : half;
  if (elastic_count(model, ELASTIC_WAITING) * ELASTIC_CELL_BYTES > limit_bytes)
    elastic_synchronize(model);
  MODEL_REQUIRE(pool_free((void *)(IMAGINARY_FIRST_BASE + cell * ELASTIC_CELL_BYTES), NULL) == cudaSuccess);
  model->blocks[choice] = model->blocks[--model->block_count];
}

static void elastic_compare(const struct elastic_model *model, struct mam_pool *pool) {
  MAM_PoolInfo info;
  pthread_mutex_lock(&pool->lock);
  const char *fault = pool_check_locked(pool);
  pthread_mutex_unlock(&pool->lock);
  if (fault != NULL)
    (void)fprintf(stderr, "%s\n", fault);
  MODEL_REQUIRE(fault == NULL);
  MODEL_REQUIRE(pool_info(pool, POOL_ANY_ID, &info) == cudaSuccess);
  MODEL_REQUIRE(info.used_bytes == elastic_count(model, ELASTIC_USED) * ELASTIC_CELL_BYTES);
  MODEL_REQUIRE(info.waiting_bytes == elastic_count(model, ELASTIC_WAITING) * ELASTIC_CELL_BYTES);
  MODEL_REQUIRE(info.reserved_bytes == (size_t)elastic_held(model) * SOURCE_GRANULARITY_BYTES);
  MODEL_REQUIRE(info.reserved_bytes == imaginary.taken_bytes);
  MODEL_REQUIRE(info.synchronize_count == model->synchronizes);
  for (unsigned granule = 0; granule < ELASTIC_GRANULES; granule++)
    MODEL_REQUIRE((imaginary_granules[granule] == IMAGINARY_PIECE) == (model->pieces[granule] != 0));
}

static void elastic_step(struct elastic_model *model, struct mam_pool *pool, const uint8_t operation[4]) {
  size_t value = operation[1] | (size_t)operation[2] << 8 | (size_t)operation[3] << 16;
  unsigned keep = (unsigned)(value % (ELASTIC_MEMORY_GRANULES + 1));
  switch (operation[0] % 8) {
  case 0: /* sizes below a granule */
  case 1:
    elastic_step_malloc(model, pool, 1 + value % (ELASTIC_GRANULE_CELLS - 1));
    break;
  case 2:
    elastic_step_malloc(model, pool, 1 + value % (4 * ELASTIC_GRANULE_CELLS));
    break;
  case 3: /* any size, also above the limit */
    elastic_step_malloc(model, pool, 1 + value % (ELASTIC_MEMORY_GRANULES * ELASTIC_GRANULE_CELLS));
    break;
  case 4:
    elastic_trim(model, operation[0] & 8 ? 0 : keep, (struct elastic_run){0, 0, 0});
    MODEL_REQUIRE(pool_trim(pool, POOL_ANY_ID, operation[0] & 8 ? 0 : keep * (size_t)SOURCE_GRANULARITY_BYTES, false) ==
                  cudaSuccess);
    break;
  default:
    elastic_step_free(model, value);
  }
}

/* Runs the pool and the model.  The first byte chooses the pool, the others are operations of four bytes. */
static void elastic_model_run(const uint8_t *data, size_t size) {
  static struct elastic_model model;
  struct mam_pool *pool;
  imaginary_reset();
  imaginary.capacity_bytes = (size_t)ELASTIC_MEMORY_GRANULES * SOURCE_GRANULARITY_BYTES;
  model = (struct elastic_model){.fenced = (data[0] & 1) == 0, .step = data[0] & 2 ? 4 : 0};
  model.limit = ELASTIC_MEMORY_GRANULES >> (data[0] >> 4) % 4;
  model.waiting_limit_bytes = data[0] & 8 ? 100000 : 0;
  struct pool_config config = {.reuse = model.fenced ? MAM_REUSE_FENCED : MAM_REUSE_IMMEDIATE,
                               .alignment = ELASTIC_CELL_BYTES,
                               .chunk_bytes = model.step * (size_t)SOURCE_GRANULARITY_BYTES,
                               .limit_bytes = model.limit * (size_t)SOURCE_GRANULARITY_BYTES,
                               .waiting_limit_bytes = model.waiting_limit_bytes};
  MODEL_REQUIRE(pool_open(&config, &imaginary_elastic, &pool) == cudaSuccess);
  if (model.step > 0)
    elastic_map(&model, 0, model.step);
  for (size_t at = 1; at + 4 <= size; at += 4) {
    elastic_step(&model, pool, data + at);
    elastic_compare(&model, pool);
  }
  MODEL_REQUIRE(pool_close(pool, 0) == cudaSuccess);
  MODEL_REQUIRE(imaginary.taken_bytes == 0);
}

#endif
