/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The page.  Its numbers stand in columns, each the values of one thing in their order.  A value is seven bits a byte,
 * the lowest first, and the highest bit says that another byte follows; a difference is first made d >= 0 ? 2d : -2d
 * - 1. All columns together are base64 in a script element, where no browser looks for a program.  Names and what else
 * is small stand as JSON in another.  page.js has the other side of it (`unpack`).
 *
 *   moments:  time     difference to the one before, ns
 *             what     4 times the subject plus the kind (enum moment_kind).  The subject is the refusal, or of a free
 *                      how many allocations were made since the block's own; 0 for the others
 *             hole     difference to the one before, bytes
 *             taken    bytes, of those of the kind moment_taken
 *   blocks:   position difference to the one before, in units
 *             size     bytes
 *             who      index of the header's whos
 *   refusals: size, who
 *   marks:    time (difference), text, thread
 *   ranges:   time (difference), duration, text, thread, depth
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "bench_picture.h"

/* ---- Columns ----------------------------------------------------------------------------------------------------- */

enum { value_bytes_most = 10, columns_most = 24 };

struct packed {
  unsigned char *bytes;
  size_t size, room;
  bool failed;
  const char *names[columns_most]; /* of the columns, and where each begins */
  size_t begins[columns_most], column_count;
};

static void packed_column(struct packed *packed, const char *name) {
  packed->names[packed->column_count] = name;
  packed->begins[packed->column_count++] = packed->size;
}

static void packed_value(struct packed *packed, uint64_t value) {
  if (packed->room - packed->size < value_bytes_most && !packed->failed) {
    size_t room = packed->room == 0 ? 4096 : 2 * packed->room;
    unsigned char *bytes = realloc(packed->bytes, room);
    packed->failed = bytes == NULL;
    if (bytes != NULL) {
      packed->bytes = bytes;
      packed->room = room;
    }
  }
  if (packed->failed)
    return;
  for (; value > 127; value >>= 7)
    packed->bytes[packed->size++] = (unsigned char)(value | 128);
  packed->bytes[packed->size++] = (unsigned char)value;
}

static void packed_difference(struct packed *packed, uint64_t before, uint64_t value) {
  packed_value(packed, value >= before ? (value - before) << 1 : ((before - value) << 1) - 1);
}

/* A member of each element of an array; width is that of a uint32_t or of a uint64_t. */
struct member {
  size_t stride, offset, width;
};

#define MEMBER(type, name) ((struct member){sizeof(type), offsetof(type, name), sizeof(((type *)NULL)->name)})

static uint64_t member_value(const void *elements, size_t i, struct member member) {
  const void *at = (const char *)elements + i * member.stride + member.offset;
  return member.width == sizeof(uint64_t) ? *(const uint64_t *)at : *(const uint32_t *)at;
}

static void packed_members(struct packed *packed, const char *column, const void *elements, size_t count,
                           struct member member) {
  packed_column(packed, column);
  for (size_t i = 0; i < count; i++)
    packed_value(packed, member_value(elements, i, member));
}

static void packed_differences(struct packed *packed, const char *column, const void *elements, size_t count,
                               struct member member) {
  uint64_t before = 0;
  packed_column(packed, column);
  for (size_t i = 0; i < count; i++) {
    uint64_t value = member_value(elements, i, member);
    packed_difference(packed, before, value);
    before = value;
  }
}

static void pack_moments(struct packed *packed, const struct picture *picture) {
  const struct picture_moment *moments = picture->moments;
  size_t count = picture->moment_count, allocated = 0;
  packed_differences(packed, "time", moments, count, MEMBER(struct picture_moment, time_ns));
  packed_column(packed, "what");
  for (size_t i = 0; i < count; i++) {
    uint64_t subject = moments[i].kind == moment_free      ? allocated - 1 - moments[i].subject
                       : moments[i].kind == moment_refused ? moments[i].subject
                                                           : 0;
    allocated += moments[i].kind == moment_allocate;
    packed_value(packed, subject << 2 | moments[i].kind);
  }
  packed_differences(packed, "hole", moments, count, MEMBER(struct picture_moment, hole));
  packed_column(packed, "taken");
  for (size_t i = 0; i < count; i++)
    if (moments[i].kind == moment_taken)
      packed_value(packed, moments[i].taken);
}

/* The unit of positions: 512 bytes if all blocks are aligned to that. */
static unsigned position_shift(const struct picture *picture) {
  uint64_t bits = 0;
  for (size_t i = 0; i < picture->block_count; i++)
    bits |= picture->blocks[i].position;
  return bits % picture_granularity_bytes == 0 ? 9 : 0;
}

static void pack_blocks(struct packed *packed, const struct picture *picture) {
  const struct picture_block *blocks = picture->blocks;
  const struct picture_refusal *refusals = picture->refusals;
  size_t count = picture->block_count, refusal_count = picture->refusal_count;
  unsigned shift = position_shift(picture);
  uint64_t before = 0;
  packed_column(packed, "position");
  for (size_t i = 0; i < count; before = blocks[i++].position >> shift)
    packed_difference(packed, before, blocks[i].position >> shift);
  packed_members(packed, "size", blocks, count, MEMBER(struct picture_block, size));
  packed_members(packed, "who", blocks, count, MEMBER(struct picture_block, who));
  packed_members(packed, "refusedSize", refusals, refusal_count, MEMBER(struct picture_refusal, size));
  packed_members(packed, "refusedWho", refusals, refusal_count, MEMBER(struct picture_refusal, who));
}

static void pack_phases(struct packed *packed, const struct picture *picture) {
  const struct picture_mark *marks = picture->marks;
  const struct picture_range *ranges = picture->ranges;
  size_t mark_count = picture->mark_count, count = picture->range_count;
  packed_differences(packed, "markTime", marks, mark_count, MEMBER(struct picture_mark, time_ns));
  packed_members(packed, "markText", marks, mark_count, MEMBER(struct picture_mark, text));
  packed_members(packed, "markThread", marks, mark_count, MEMBER(struct picture_mark, thread));
  packed_differences(packed, "rangeTime", ranges, count, MEMBER(struct picture_range, begin_ns));
  packed_column(packed, "rangeDuration");
  for (size_t i = 0; i < count; i++)
    packed_value(packed, ranges[i].end_ns - ranges[i].begin_ns);
  packed_members(packed, "rangeText", ranges, count, MEMBER(struct picture_range, text));
  packed_members(packed, "rangeThread", ranges, count, MEMBER(struct picture_range, thread));
  packed_members(packed, "rangeDepth", ranges, count, MEMBER(struct picture_range, depth));
}

static void base64_print(FILE *stream, const unsigned char *bytes, size_t size) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < size; i += 3) {
    size_t left = size - i;
    unsigned word =
        (unsigned)bytes[i] << 16 | (left > 1 ? (unsigned)bytes[i + 1] << 8 : 0) | (left > 2 ? bytes[i + 2] : 0);
    char text[4] = {digits[word >> 18], digits[word >> 12 & 63], left > 1 ? digits[word >> 6 & 63] : '=',
                    left > 2 ? digits[word & 63] : '='};
    (void)fwrite(text, 1, sizeof text, stream);
  }
}

/* ---- The header -------------------------------------------------------------------------------------------------- */

static void header_texts(FILE *stream, const char *name, char *const *texts, size_t count) {
  (void)fprintf(stream, ",\n\"%s\":[", name);
  for (size_t i = 0; i < count; i++) {
    (void)fputs(i == 0 ? "" : ",", stream);
    picture_text(stream, texts[i]);
  }
  (void)fputc(']', stream);
}

static void header_sites(FILE *stream, const struct record *record) {
  (void)fputs(",\n\"sites\":[", stream);
  for (size_t i = 0; i < record->site_count; i++) {
    (void)fputs(i == 0 ? "[" : ",[", stream);
    picture_text(stream, record->sites[i].name);
    (void)fputc(',', stream);
    picture_text(stream, record->sites[i].module);
    (void)fprintf(stream, ",\"%#llx\"]", (unsigned long long)record->sites[i].offset);
  }
  (void)fputs("],\n\"created\":[", stream);
  for (size_t i = 0; i < record->context_count; i++)
    (void)fprintf(stream, "%s%s", i == 0 ? "" : ",", record->contexts[i].created ? "true" : "false");
  (void)fputs("],\n\"streams\":[", stream);
  for (size_t i = 0; i < record->stream_count; i++)
    (void)fprintf(stream, "%s\"%#llx\"", i == 0 ? "" : ",", (unsigned long long)record->streams[i]);
  (void)fputc(']', stream);
}

static void header_picture(FILE *stream, const struct picture *picture) {
  (void)fputs(",\n\"whos\":[", stream);
  for (size_t i = 0; i < picture->who_count; i++) {
    const struct picture_who *who = &picture->whos[i];
    (void)fprintf(stream, "%s[%u,%u,%u,%u,%u,%u,%u]", i == 0 ? "" : ",", who->site, who->thread, who->stream, who->tag,
                  who->context, who->device, who->path);
  }
  (void)fputs("],\n\"paths\":[", stream);
  for (size_t i = 0; i < picture->paths.path_count; i++)
    (void)fprintf(stream, "%s[%u,%u]", i == 0 ? "" : ",", picture->paths.paths[i].around, picture->paths.paths[i].name);
  (void)fputs("],\n\"spans\":[", stream);
  for (size_t i = 0; i < picture->span_count; i++)
    (void)fprintf(stream, "%s[\"%#llx\",%llu]", i == 0 ? "" : ",", (unsigned long long)picture->spans[i].address,
                  (unsigned long long)picture->spans[i].bytes);
  (void)fputc(']', stream);
}

static void header_columns(FILE *stream, const struct packed *packed) {
  (void)fputs(",\n\"columns\":{", stream);
  for (size_t i = 0; i < packed->column_count; i++)
    (void)fprintf(stream, "%s\"%s\":%zu", i == 0 ? "" : ",", packed->names[i], packed->begins[i]);
  (void)fputc('}', stream);
}

static void header_print(FILE *stream, const struct picture *picture, const struct packed *packed) {
  const struct record *record = picture->record;
  (void)fputs("{\"command\":", stream);
  picture_text(stream, record->command);
  (void)fprintf(stream, ",\"cut\":%s,\"end\":%llu,\"granularity\":%d,\"unit\":%u", record->cut ? "true" : "false",
                (unsigned long long)picture->end_ns, picture_granularity_bytes, 1u << position_shift(picture));
  (void)fprintf(stream, ",\n\"moments\":%zu,\"blocks\":%zu,\"refusals\":%zu,\"marks\":%zu,\"ranges\":%zu",
                picture->moment_count, picture->block_count, picture->refusal_count, picture->mark_count,
                picture->range_count);
  (void)fprintf(stream, ",\"unknownFrees\":%zu,\"lost\":%llu", picture->unknown_free_count,
                (unsigned long long)record->lost_count);
  header_columns(stream, packed);
  header_texts(stream, "threads", record->threads, record->thread_count);
  header_texts(stream, "texts", record->texts, record->text_count);
  header_sites(stream, record);
  header_picture(stream, picture);
  (void)fputs("}\n", stream);
}

/* ---- The page ---------------------------------------------------------------------------------------------------- */

/* Prints the text up to a line.  Returns what comes after the line. */
static const char *page_until(FILE *stream, const char *text, const char *line) {
  const char *end = strstr(text, line);
  (void)fwrite(text, 1, (size_t)(end - text), stream);
  return end + strlen(line);
}

bool picture_page(FILE *stream, const struct picture *picture) {
  struct packed packed = {0};
  pack_moments(&packed, picture);
  pack_blocks(&packed, picture);
  pack_phases(&packed, picture);
  if (packed.failed) {
    (void)fputs("mam-bench: picture: the host has no memory for the page\n", stderr);
  } else {
    const char *rest = page_until(stream, picture_template, "@header@\n");
    header_print(stream, picture, &packed);
    rest = page_until(stream, rest, "@data@\n");
    base64_print(stream, packed.bytes, packed.size);
    (void)fputs(rest, stream);
  }
  free(packed.bytes);
  return !packed.failed;
}

void picture_page_report(FILE *stream, const char *json, size_t size) {
  const char *rest = page_until(stream, picture_template, "@header@\n");
  (void)fputs("{\"report\":true}\n", stream);
  rest = page_until(stream, rest, "@data@\n");
  base64_print(stream, (const unsigned char *)json, size);
  (void)fputs(rest, stream);
}
