/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a pool holds, in JSON and in words.  The pool is copied under its lock and described without it, so that a large
 * report holds up no thread, and the dynamic linker is not asked for names of call sites under a lock.
 */
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/utf8.h"
#include "pool/pool_inside.h"

/* ---- The copy ---- */

struct snapshot_segment {
  uintptr_t base;
  size_t bytes, requested_bytes;
  const void *site;
  enum segment_state state;
  uint64_t ticket;
  bool heads_chunk;
};

struct snapshot {
  MAM_PoolInfo info;
  struct pool_config config;
  const char *source_name;
  char source_said[sizeof((struct mam_pool *)0)->source_said];
  size_t count;
  struct snapshot_segment segments[];
};

static void snapshot_fill_locked(struct snapshot *snapshot, struct mam_pool *pool, const struct pool_front *frozen) {
  lock_held(&pool->lock);
  struct snapshot_segment *copy = snapshot->segments;
  pool_info_locked(pool, frozen, &snapshot->info);
  snapshot->config = pool->config;
  snapshot->source_name = pool->source.operations->name;
  (void)snprintf(snapshot->source_said, sizeof snapshot->source_said, "%s", pool->source_said);
  for (struct segment *segment = segment_first(&pool->segments); segment != NULL; segment = segment_next(segment)) {
    bool used = segment->state == SEGMENT_USED;
    *copy++ = (struct snapshot_segment){.base = segment->base,
                                        .bytes = segment->bytes,
                                        .requested_bytes = used ? segment->as.used.requested_bytes : 0,
                                        .site = used ? segment->as.used.site : NULL,
                                        .state = segment->state,
                                        /* relaxed: the fronts are frozen */
                                        .ticket = atomic_load_explicit(&segment->ticket, memory_order_relaxed),
                                        .heads_chunk = segment->heads_chunk};
  }
  snapshot->count = (size_t)(copy - snapshot->segments);
}

/* A copy for the caller to free. */
static cudaError_t snapshot_take(struct mam_pool *pool, uint64_t default_id, struct snapshot **taken) {
  struct snapshot *snapshot = NULL;
  const struct pool_front *frozen = pool_freeze(pool);
  cudaError_t error = pool_expect_locked(pool, default_id);
  if (error == cudaSuccess) {
    size_t count = 0;
    for (int state = 0; state < SEGMENT_STATES; state++)
      count += pool->segments.count[state];
    snapshot = malloc(sizeof *snapshot + count * sizeof snapshot->segments[0]);
    if (snapshot != NULL)
      snapshot_fill_locked(snapshot, pool, frozen);
  }
  pool_thaw(pool, frozen);
  *taken = snapshot;
  if (error == cudaSuccess && snapshot == NULL)
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a report");
  return error;
}

/* Ends a text begun with open_memstream: the caller's if all went well. */
static cudaError_t text_finish(FILE *stream, char **text, char **result) {
  bool failed = ferror(stream) != 0;
  if (fclose(stream) != 0 || failed) {
    free(*text);
    return error_set(cudaErrorMemoryAllocation, "the host has no memory for a report");
  }
  *result = *text;
  return cudaSuccess;
}

/* ---- JSON ---- */

/* Bytes that are not UTF-8 become U+FFFD. */
static void json_string(FILE *stream, const char *text) {
  (void)fputc('"', stream);
  for (size_t length; *text != '\0'; text += length > 0 ? length : 1) {
    unsigned char character = (unsigned char)*text;
    length = utf8_length(text);
    if (length == 0 || character < 0x20)
      (void)fprintf(stream, "\\u%04x", length == 0 ? 0xfffd : character);
    else
      (void)fprintf(stream, character == '"' || character == '\\' ? "\\%.*s" : "%.*s", (int)length, text);
  }
  (void)fputc('"', stream);
}

/* "program(function+0x12)"; the address alone where the linker knows no more. */
static void json_site(FILE *stream, const void *site) {
  void *address = (void *)(uintptr_t)site;
  char **names = backtrace_symbols(&address, 1);
  json_string(stream, names != NULL ? names[0] : "");
  free(names);
}

/* Whether it is a live block; else, if used, small blocks are carved from it, or a thread keeps it. */
static bool is_block(const struct snapshot_segment *segment) {
  return segment->state == SEGMENT_USED && segment->ticket % 2 == 1;
}

static const char *state_name(const struct snapshot_segment *segment) {
  static const char *const names[] = {[SEGMENT_FREE] = "free",
                                      [SEGMENT_WAITING] = "waiting",
                                      [SEGMENT_UNMAPPED] = "unmapped",
                                      [SEGMENT_MOVING] = "unmapped"};
  if (segment->state == SEGMENT_USED)
    return is_block(segment) ? "used" : segment->ticket == 0 ? "slab" : "kept";
  return names[segment->state];
}

static void json_segment(FILE *stream, const struct snapshot_segment *segment) {
  (void)fprintf(stream, "        {\"base\": \"%#zx\", \"bytes\": %zu, \"state\": \"%s\"", (size_t)segment->base,
                segment->bytes, state_name(segment));
  if (is_block(segment)) {
    (void)fprintf(stream, ", \"requested\": %zu, \"site\": ", segment->requested_bytes);
    json_site(stream, segment->site);
  }
  (void)fputc('}', stream);
}

/* One chunk: the segments from index on until the next one that heads a chunk.  Returns the index after them. */
static size_t json_chunk(FILE *stream, const struct snapshot *snapshot, size_t index) {
  const struct snapshot_segment *segments = snapshot->segments;
  size_t end = index, bytes = 0;
  do
    bytes += segments[end++].bytes;
  while (end < snapshot->count && !segments[end].heads_chunk);
  (void)fprintf(stream, "    {\"base\": \"%#zx\", \"bytes\": %zu, \"segments\": [\n", (size_t)segments[index].base,
                bytes);
  for (; index < end; index++) {
    json_segment(stream, &segments[index]);
    (void)fputs(index + 1 < end ? ",\n" : "\n", stream);
  }
  (void)fputs("      ]}", stream);
  return end;
}

static void json_pool(FILE *stream, const struct snapshot *snapshot) {
  static const char *const reuse_names[] = {"fenced", "immediate", "stream"};
  const MAM_PoolInfo *info = &snapshot->info;
  (void)fprintf(stream, "{\n  \"source\": \"%s\",\n  \"reuse\": \"%s\",\n  \"alignment\": %zu,\n",
                snapshot->source_name, reuse_names[snapshot->config.reuse], snapshot->config.alignment);
  (void)fprintf(stream, "  \"limit_bytes\": %zu,\n  \"reserved_bytes\": %zu,\n  \"used_bytes\": %zu,\n",
                info->limit_bytes, info->reserved_bytes, info->used_bytes);
  (void)fprintf(stream, "  \"requested_bytes\": %zu,\n  \"waiting_bytes\": %zu,\n  \"free_bytes\": %zu,\n",
                info->requested_bytes, info->waiting_bytes, info->free_bytes);
  /* By hand, since %f writes a comma where the locale says so. */
  unsigned millionths = (unsigned)(info->external_fragmentation * 1e6 + 0.5);
  (void)fprintf(stream, "  \"largest_free_bytes\": %zu,\n  \"external_fragmentation\": %u.%06u,\n  \"chunks\": [\n",
                info->largest_free_bytes, millionths / 1000000, millionths % 1000000);
  for (size_t index = 0; index < snapshot->count;) {
    index = json_chunk(stream, snapshot, index);
    (void)fputs(index < snapshot->count ? ",\n" : "\n", stream);
  }
  (void)fputs("  ]\n}\n", stream);
}

/* ---- Words ---- */

struct holder {
  const void *site;
  size_t bytes, count;
};

static int compare_sites(const void *a, const void *b) {
  uintptr_t left = (uintptr_t)((const struct holder *)a)->site, right = (uintptr_t)((const struct holder *)b)->site;
  return (left > right) - (left < right);
}

static int compare_bytes_descending(const void *a, const void *b) {
  size_t left = ((const struct holder *)a)->bytes, right = ((const struct holder *)b)->bytes;
  return (left < right) - (left > right);
}

/* The live blocks by call site, the largest holder first.  Returns how many; *holders is the caller's to free, NULL if
 * there are none or the host has no memory. */
static size_t holders_of(const struct snapshot *snapshot, struct holder **holders) {
  size_t count = 0, merged = 0;
  struct holder *all = malloc((snapshot->count + 1) * sizeof *all);
  *holders = all;
  if (all == NULL)
    return 0;
  for (size_t i = 0; i < snapshot->count; i++)
    if (is_block(&snapshot->segments[i]))
      all[count++] = (struct holder){snapshot->segments[i].site, snapshot->segments[i].bytes, 1};
  qsort(all, count, sizeof *all, compare_sites);
  for (size_t i = 0; i < count; i++) {
    if (merged > 0 && all[merged - 1].site == all[i].site) {
      all[merged - 1].bytes += all[i].bytes;
      all[merged - 1].count++;
    } else {
      all[merged++] = all[i];
    }
  }
  qsort(all, merged, sizeof *all, compare_bytes_descending);
  return merged;
}

static void words_holders(FILE *stream, const struct snapshot *snapshot, size_t most) {
  /* What is in slabs has no site. */
  struct holder *holders, rest = {NULL, snapshot->info.used_bytes, snapshot->info.used_count};
  size_t count = holders_of(snapshot, &holders);
  for (size_t i = 0; i < count; i++) {
    rest.bytes -= holders[i].bytes;
    rest.count -= holders[i].count;
    if (i >= most)
      continue;
    void *address = (void *)(uintptr_t)holders[i].site;
    char **names = backtrace_symbols(&address, 1);
    (void)fprintf(stream, "  %zu bytes in %zu blocks, allocated at %s\n", holders[i].bytes, holders[i].count,
                  names != NULL ? names[0] : "an unknown place");
    free(names);
  }
  if (count > most)
    (void)fprintf(stream, "  and %zu more call sites\n", count - most);
  if (rest.count > 0 && holders != NULL)
    (void)fprintf(stream, "  %zu bytes in %zu small blocks; MAM_REPORT=leaks tells where they are allocated\n",
                  rest.bytes, rest.count);
  free(holders);
}

/* Whether what is free in one place can make way for memory in another. */
static bool gives_way(const struct snapshot *snapshot) {
  return !snapshot->config.keeps && (snapshot->config.elastic || snapshot->info.chunk_count > 1);
}

/* The first reason that holds. */
static const char *words_verdict(const struct snapshot *snapshot, size_t size) {
  const MAM_PoolInfo *info = &snapshot->info;
  size_t further_bytes = gives_way(snapshot) ? info->limit_bytes - info->reserved_bytes : 0;
  size_t alignment = snapshot->config.alignment;
  if (size == 0)
    return "a request of 0 bytes always succeeds and gives NULL";
  if (size > SIZE_MAX - alignment)
    return "no memory has that many bytes";
  size = (size + alignment - 1) / alignment * alignment;
  if (size <= info->largest_free_bytes)
    return "the largest hole serves it";
  if (info->limit_bytes - info->reserved_bytes >= size)
    return "no hole is large enough, but the limit allows a further chunk if the source has one";
  if (size > info->limit_bytes)
    return "it is more than the pool may ever hold";
  if (size <= info->waiting_bytes + info->free_bytes + further_bytes && info->waiting_bytes > 0)
    return "no hole is large enough; memory that waits for the GPU may make one";
  if (size <= info->free_bytes + further_bytes && info->cached_bytes > 0)
    return "no hole is large enough; what threads keep is collected first, and may make one";
  if (size <= info->free_bytes + further_bytes && gives_way(snapshot))
    return "no hole is large enough; chunks and pieces that are free as a whole give way to a larger one, if they "
           "suffice";
  if (size <= info->free_bytes)
    return "enough is free, but in pieces: the pool is fragmented";
  return "too much is in use";
}

/* What is free in slabs and kept by threads is in no hole.  Which sizes it has, only the fronts know. */
static bool may_be_kept(const struct snapshot *snapshot, size_t size) {
  const MAM_PoolInfo *info = &snapshot->info;
  return size > 0 && size <= POOL_SMALL_MOST_BYTES && size > info->largest_free_bytes && info->cached_bytes > 0;
}

static void words_pool(FILE *stream, const struct snapshot *snapshot, size_t size) {
  const MAM_PoolInfo *info = &snapshot->info;
  (void)fprintf(stream, "asked: %zu bytes: %s%s\n", size,
                may_be_kept(snapshot, size)
                    ? "a free block that is kept for small ones serves it, if one has its size; "
                      "else "
                    : "",
                words_verdict(snapshot, size));
  (void)fprintf(stream, "free: %zu bytes in %zu holes, the largest hole %zu bytes (external fragmentation %.3f)\n",
                info->free_bytes, info->free_count, info->largest_free_bytes, info->external_fragmentation);
  (void)fprintf(stream, "waiting for the GPU: %zu bytes in %zu segments\n", info->waiting_bytes, info->waiting_count);
  if (info->cached_bytes > 0)
    (void)fprintf(stream, "of these, kept for small blocks and by %zu threads: %zu bytes\n", info->thread_count,
                  info->cached_bytes);
  (void)fprintf(stream, "used: %zu bytes in %zu blocks, asked for as %zu bytes; at most %zu so far\n", info->used_bytes,
                info->used_count, info->requested_bytes, info->peak_used_bytes);
  (void)fprintf(stream, "held: %zu bytes in %zu chunks of the %s source, limit %zu bytes\n", info->reserved_bytes,
                info->chunk_count, snapshot->source_name, info->limit_bytes);
  if (snapshot->source_said[0] != '\0')
    (void)fprintf(stream, "the source's last error: %s\n", snapshot->source_said);
  if (info->used_count > 0)
    (void)fprintf(stream, "the call sites that hold the most:\n");
  words_holders(stream, snapshot, 10);
}

/* ---- Both ---- */

static cudaError_t describe(struct mam_pool *pool, uint64_t default_id, size_t size, bool in_words, char **result) {
  struct snapshot *snapshot = NULL;
  char *text = NULL;
  size_t length;
  cudaError_t error = snapshot_take(pool, default_id, &snapshot);
  if (error != cudaSuccess)
    return error;
  FILE *stream = open_memstream(&text, &length);
  if (stream == NULL) {
    error = error_set(cudaErrorMemoryAllocation, "the host has no memory for a report");
  } else {
    if (in_words)
      words_pool(stream, snapshot, size);
    else
      json_pool(stream, snapshot);
    error = text_finish(stream, &text, result);
  }
  free(snapshot);
  return error;
}

cudaError_t pool_report(struct mam_pool *pool, uint64_t default_id, char **json) {
  return describe(pool, default_id, 0, false, json);
}

cudaError_t pool_explain(struct mam_pool *pool, uint64_t default_id, size_t size, char **text) {
  return describe(pool, default_id, size, true, text);
}

/* ---- At exit ---- */

static void stats_tell(FILE *stream, const struct snapshot *snapshot) {
  const MAM_PoolInfo *info = &snapshot->info;
  (void)fprintf(stream,
                "mam: at exit: %s pool of %s memory: %llu allocations, %llu frees, %zu bytes in %zu blocks left; "
                "at most %zu bytes used, %zu held; %llu fences, %llu waits for the GPU\n",
                snapshot->config.default_id != 0 ? "default" : "a", snapshot->source_name,
                (unsigned long long)info->malloc_count, (unsigned long long)info->free_call_count, info->used_bytes,
                info->used_count, info->peak_used_bytes, info->peak_reserved_bytes,
                (unsigned long long)info->fence_count, (unsigned long long)info->synchronize_count);
}

static void leaks_tell(FILE *stream, const struct snapshot *snapshot) {
  const MAM_PoolInfo *info = &snapshot->info;
  if (info->used_count == 0)
    return;
  (void)fprintf(stream, "mam: at exit: %zu bytes in %zu blocks of a pool of %s memory were not freed:\n",
                info->used_bytes, info->used_count, snapshot->source_name);
  words_holders(stream, snapshot, SIZE_MAX);
}

/* How many pools are open, and how many blocks they have. */
struct told {
  size_t pools, blocks;
};

static struct told pools_tell(FILE *stream, void (*tell)(FILE *, const struct snapshot *)) {
  struct told told = {0, 0};
  for (struct mam_pool *pool = pool_first(); pool != NULL; pool = pool->next) {
    struct snapshot *snapshot = NULL;
    if (snapshot_take(pool, POOL_ANY_ID, &snapshot) == cudaSuccess) {
      tell(stream, snapshot);
      told.pools++;
      told.blocks += snapshot->info.used_count;
    }
    free(snapshot);
  }
  return told;
}

static void past_tell(FILE *stream, const char *which, const struct pool_past_kind *kind) {
  if (kind->pool_count > 0)
    (void)fprintf(stream,
                  "mam: at exit: %s pools that had ended: %llu allocations, at most %zu bytes used, "
                  "%llu waits for the GPU\n",
                  which, (unsigned long long)kind->malloc_count, kind->peak_used_bytes,
                  (unsigned long long)kind->synchronize_count);
}

void pools_tell_stats(FILE *stream) {
  struct pool_past past = pool_past();
  past_tell(stream, "default", &past.defaults);
  past_tell(stream, "other", &past.others);
  if (pools_tell(stream, stats_tell).pools + past.defaults.pool_count + past.others.pool_count == 0)
    (void)fprintf(stream, "mam: at exit: there is no pool, and none has ended\n");
}

void pools_tell_leaks(FILE *stream) {
  struct pool_past gone = pool_past();
  struct told told = pools_tell(stream, leaks_tell);
  if (gone.left_count > 0)
    (void)fprintf(stream, "mam: at exit: %zu blocks of %zu bytes were live when their pools were destroyed\n",
                  gone.left_count, gone.left_bytes);
  else if (told.blocks == 0)
    (void)fprintf(stream, "mam: at exit: every block was freed\n");
}
