/* SPDX-License-Identifier: BSD-2-Clause */
#include "heap/heap_view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Chunks in slots ---- */

/* The usage word, in a copy, of a chunk of the span that begins at a device address.  NULL if no superblock has the
 * address. */
static mam__u64 *word_of(const struct heap_view *view, mam__u64 address, mam__u32 chunk) {
  for (mam__u32 i = 0; i < view->count; i++) {
    const struct mam__area *area = &view->areas[i];
    mam__u64 page = (address - area->base) >> MAM__PAGE_SHIFT;
    if (address >= area->base && page < area->page_count)
      return &area->words[page * MAM__PAGE_WORDS + chunk / 32];
  }
  return NULL;
}

/* Takes a block that a park holds out of a copy.  It is not live. */
static void settle_parked(struct heap_view *view, mam__u64 address) {
  for (mam__u32 i = 0; i < view->count; i++) {
    struct mam__area area = view->areas[i];
    mam__u64 offset = address - area.base;
    mam__u32 page = (mam__u32)(offset >> MAM__PAGE_SHIFT);
    if (offset >> MAM__PAGE_SHIFT >= area.page_count)
      continue;
    mam__u32 entry = *mam__page_entry(area.words, page);
    view->held_count++;
    if (entry == MAM__ENTRY_RUN)
      area.words[(size_t)page * MAM__PAGE_WORDS] = 0; /* its pages stay taken in the map */
    else {
      struct mam__bit bit = mam__bit_of(offset, entry);
      area.words[bit.word] |= 1ull << bit.bit;
      view->held_bytes += mam__class_bytes((entry & 63) - 1);
    }
  }
}

/* Takes the headers of warp heaps and the superblocks that wait in parks out of the copies. */
static void settle_parks(struct heap_view *view) {
  const mam__u64 *parks = mam__parks(view->control);
  for (mam__u32 i = 0; i < mam__park_count(&view->control->heap); i++, parks += MAM__PARK_WORDS) {
    if (parks[0] != 0)
      settle_parked(view, parks[0]);
    if (mam__park_address(parks[1]) != 0)
      settle_parked(view, mam__park_address(parks[1]));
  }
}

/* Frees the words of a copy's page map that are kept for long runs. */
static void give_kept_back(const struct mam__area *area) {
  for (mam__u32 i = 0; i < mam__area_map_words(*area); i++)
    if ((mam__area_kept(*area)[i >> 6] >> (i & 63) & 1) == 0)
      mam__area_pages(*area)[i] = 0;
}

/* Ends a span of a copy that begins at a page, if it is empty: it was left to a slot. */
static void end_if_empty(const struct mam__area *area, mam__u32 page) {
  mam__u64 *words = &area->words[(size_t)page * MAM__PAGE_WORDS];
  mam__u32 pages = mam__word_span_pages(words[0]), count = mam__word_span_words(words[0]), used = 0;
  for (mam__u32 i = 0; i < count; i++)
    used |= mam__word_used(words[i]);
  if (used != 0)
    return;
  memset(words, 0, count * sizeof *words);
  for (mam__u32 i = page; i < page + pages; i++)
    mam__area_pages(*area)[i >> 6] &= ~(1ull << (i & 63));
}

void heap_view_settle(struct heap_view *view) {
  const mam_device_heap *heap = &view->control->heap;
  view->held_count = view->held_bytes = 0;
  for (mam__u32 i = 0; i < view->count; i++)
    give_kept_back(&view->areas[i]);
  for (mam__u32 i = 0; i < view->count; i++)
    for (mam__u32 page = 0; page < view->areas[i].page_count; page++) {
      mam__u64 word = view->areas[i].words[(size_t)page * MAM__PAGE_WORDS];
      if (mam__word_class(word) != MAM__NO_KIND && !mam__word_is_run(word))
        end_if_empty(&view->areas[i], page);
    }
  for (mam__u32 i = 0; i < heap->slot_count * MAM__HEAP_KINDS; i++) {
    mam__u32 size_class = mam__kind_numbered(view->control, i / heap->slot_count);
    mam__u32 limit = mam__slot_limit(heap, size_class);
    mam__u64 slot = *mam__slot_at(view->control, i), address = mam__slot_address(slot);
    for (mam__u64 ticket = slot & MAM__SLOT_TICKETS; ticket < limit; ticket++) {
      mam__u64 *word = word_of(view, address, (mam__u32)ticket);
      if (word == NULL || mam__word_class(*word) != size_class)
        break;
      *word |= 1ull << ticket % 32;
      view->held_count++;
      view->held_bytes += mam__class_bytes(size_class);
    }
  }
  settle_parks(view);
}

/* ---- Blocks ---- */

/* Visits the blocks of the span or run that begins at a page.  False if visit returned false. */
static bool walk_page(const struct mam__area *area, mam__u32 page, heap_visit *visit, void *closure) {
  const mam__u64 *words = &area->words[(size_t)page * MAM__PAGE_WORDS];
  mam__u64 address = mam__area_address(*area, page);
  if (mam__word_is_run(words[0]))
    return visit(closure, address, (mam__u64)mam__run_pages(words[0], words[1]) << MAM__PAGE_SHIFT);
  mam__u32 bytes = mam__class_bytes(mam__word_class(words[0]));
  for (mam__u32 i = 0; i < mam__word_span_words(words[0]); i++)
    for (mam__u32 used = mam__word_used(words[i]); used != 0; used &= used - 1)
      if (!visit(closure, address + (mam__u64)(32 * i + mam__lowest_u32(used)) * bytes, bytes))
        return false;
  return true;
}

void heap_view_walk(const struct heap_view *view, heap_visit *visit, void *closure) {
  for (mam__u32 i = 0; i < view->count; i++)
    for (mam__u32 page = 0; page < view->areas[i].page_count; page++)
      if (mam__word_class(view->areas[i].words[(size_t)page * MAM__PAGE_WORDS]) != MAM__NO_KIND &&
          !walk_page(&view->areas[i], page, visit, closure))
        return;
}

/* ---- Numbers ---- */

/* How many spans of one class there are, and their live and free chunks. */
struct class_count {
  size_t spans, live, free;
};

struct tally {
  struct class_count classes[MAM__HEAP_CLASSES];
  size_t runs, run_bytes;
};

static void tally_span(struct class_count *count, const mam__u64 *words) {
  count->spans++;
  for (mam__u32 i = 0; i < mam__word_span_words(words[0]); i++) {
    mam__u32 live = mam__ones_u32(mam__word_used(words[i]));
    count->live += live;
    count->free += mam__word_chunks(words[i]) - live;
  }
}

static void tally_view(const struct heap_view *view, struct tally *tally) {
  memset(tally, 0, sizeof *tally);
  for (mam__u32 i = 0; i < view->count; i++)
    for (mam__u32 page = 0; page < view->areas[i].page_count; page++) {
      const mam__u64 *words = &view->areas[i].words[(size_t)page * MAM__PAGE_WORDS];
      if (mam__word_is_run(words[0])) {
        tally->runs++;
        tally->run_bytes += (size_t)mam__run_pages(words[0], words[1]) << MAM__PAGE_SHIFT;
      } else if (mam__word_class(words[0]) != MAM__NO_KIND)
        tally_span(&tally->classes[mam__word_class(words[0]) & MAM__KIND_CLASS], words);
    }
}

/* The number of a superblock's free pages.  *longest becomes the longest run of them, if that is longer. */
static mam__u32 free_pages(const struct mam__area *area, mam__u32 *longest) {
  mam__u32 count = 0, run = 0;
  for (mam__u32 page = 0; page < area->page_count; page++) {
    bool taken = (mam__area_pages(*area)[page >> 6] >> (page & 63) & 1) != 0;
    run = taken ? 0 : run + 1;
    count += !taken;
    *longest = run > *longest ? run : *longest;
  }
  return count;
}

void heap_view_info(const struct heap_view *view, MAM_HeapInfo *info) {
  struct tally tally;
  mam__u32 longest = 0;
  size_t free_chunk_bytes = 0;
  tally_view(view, &tally);
  info->page_bytes = MAM__PAGE_BYTES;
  info->page_count = info->free_page_count = 0;
  for (mam__u32 i = 0; i < view->count; i++) {
    info->page_count += view->areas[i].page_count;
    info->free_page_count += free_pages(&view->areas[i], &longest);
  }
  info->used_bytes = tally.run_bytes;
  info->live_count = tally.runs;
  for (mam__u32 i = 0; i < MAM__HEAP_CLASSES; i++) {
    info->used_bytes += tally.classes[i].live * mam__class_bytes(i);
    info->live_count += tally.classes[i].live;
    free_chunk_bytes += tally.classes[i].free * mam__class_bytes(i);
  }
  info->free_bytes = info->free_page_count * (size_t)MAM__PAGE_BYTES + free_chunk_bytes - view->held_bytes;
  info->largest_free_bytes = longest * (size_t)MAM__PAGE_BYTES;
  info->superblock_count = view->count;
  info->held_count = view->held_count;
  info->refused_free_count = view->control->refused_free;
  info->failure_count = 0;
  for (mam__u32 i = 0; i < MAM__COUNTERS; i++)
    info->failure_count += view->control->failures[i];
  info->external_fragmentation =
      info->free_bytes == 0 ? 0 : 1 - (double)info->largest_free_bytes / (double)info->free_bytes;
  info->recorded_count = info->requested_bytes = 0;
  info->internal_fragmentation = 0;
}

void heap_view_records(const MAM_HeapBlock *blocks, size_t count, MAM_HeapInfo *info) {
  double unused = 0;
  info->recorded_count = info->requested_bytes = 0;
  for (size_t i = 0; i < count; i++) {
    if (blocks[i].requested_bytes == 0)
      continue;
    double bytes = (double)(blocks[i].bytes - sizeof(struct mam__record));
    info->recorded_count++;
    info->requested_bytes += blocks[i].requested_bytes;
    unused += (bytes - (double)blocks[i].requested_bytes) / bytes;
  }
  info->internal_fragmentation = info->recorded_count == 0 ? 0 : unused / (double)info->recorded_count;
}

/* ---- The report ---- */

/* The live blocks of one place in the program. */
struct site_count {
  const char *file;
  unsigned line;
  size_t live, bytes, requested_bytes;
};

/* Orders by line, then by file.  Equal file names may be different strings. */
static int site_order(const void *left, const void *right) {
  const struct site_count *a = left, *b = right;
  return a->line != b->line ? (a->line < b->line ? -1 : 1) : strcmp(a->file, b->file);
}

static void write_text(FILE *out, const char *text) {
  (void)fputc('"', out);
  for (; *text != '\0'; text++)
    if (*text == '"' || *text == '\\')
      (void)fprintf(out, "\\%c", *text);
    else if ((unsigned char)*text < ' ')
      (void)fprintf(out, "\\u%04x", (unsigned)(unsigned char)*text);
    else
      (void)fputc(*text, out);
  (void)fputc('"', out);
}

/* Writes the first site, with the sums of all its blocks.  The blocks are sorted by site.  Returns how many are of this
 * site. */
static size_t write_site(FILE *out, const struct site_count *sites, size_t count) {
  struct site_count sum = sites[0];
  size_t same = 1;
  for (; same < count && site_order(&sites[0], &sites[same]) == 0; same++) {
    sum.live++;
    sum.bytes += sites[same].bytes;
    sum.requested_bytes += sites[same].requested_bytes;
  }
  (void)fputs("\n    {\"file\": ", out);
  write_text(out, sum.file);
  (void)fprintf(out, ", \"line\": %u, \"live\": %zu, \"bytes\": %zu, \"requested_bytes\": %zu}", sum.line, sum.live,
                sum.bytes, sum.requested_bytes);
  return same;
}

/* Writes the sites of all live blocks that have a record.  False if the host has no memory. */
static bool write_sites(FILE *out, const MAM_HeapBlock *recorded, size_t count) {
  struct site_count *sites = calloc(count + 1, sizeof *sites);
  size_t sited = 0;
  if (sites == NULL)
    return false;
  for (size_t i = 0; i < count; i++)
    if (recorded[i].file != NULL)
      sites[sited++] =
          (struct site_count){recorded[i].file, recorded[i].line, 1, recorded[i].bytes, recorded[i].requested_bytes};
  qsort(sites, sited, sizeof *sites, site_order);
  (void)fputs("  \"sites\": [", out);
  for (size_t i = 0; i < sited;) {
    (void)fputs(i == 0 ? "" : ",", out);
    i += write_site(out, &sites[i], sited - i);
  }
  (void)fputs("\n  ],\n", out);
  free(sites);
  return true;
}

static void write_superblocks(FILE *out, const struct heap_view *view) {
  (void)fputs("  \"superblocks\": [", out);
  for (mam__u32 i = 0; i < view->count; i++) {
    mam__u32 longest = 0, count = free_pages(&view->areas[i], &longest);
    (void)fprintf(out, "%s\n    {\"base\": \"0x%llx\", \"pages\": %u, \"free_pages\": %u, \"longest_free_run\": %u}",
                  i == 0 ? "" : ",", view->areas[i].base, view->areas[i].page_count, count, longest);
  }
  (void)fputs("\n  ],\n", out);
}

static void write_classes(FILE *out, const struct tally *tally) {
  const char *separator = "";
  (void)fputs("  \"classes\": [", out);
  for (mam__u32 i = 0; i < MAM__HEAP_CLASSES; i++) {
    const struct class_count *count = &tally->classes[i];
    if (count->spans == 0)
      continue;
    (void)fprintf(out, "%s\n    {\"bytes\": %u, \"spans\": %zu, \"live\": %zu, \"free\": %zu}", separator,
                  mam__class_bytes(i), count->spans, count->live, count->free);
    separator = ",";
  }
  (void)fprintf(out, "\n  ],\n  \"runs\": {\"live\": %zu, \"bytes\": %zu}\n}\n", tally->runs, tally->run_bytes);
}

char *heap_view_report(const struct heap_view *view, const MAM_HeapInfo *info, const MAM_HeapBlock *recorded) {
  char *text = NULL;
  size_t length;
  struct tally tally;
  FILE *out = open_memstream(&text, &length);
  if (out == NULL)
    return NULL;
  tally_view(view, &tally);
  (void)fprintf(out,
                "{\n  \"version\": 1,\n  \"reserved_bytes\": %zu,\n  \"metadata_bytes\": %zu,\n  \"used_bytes\": %zu,\n"
                "  \"free_bytes\": %zu,\n  \"largest_free_bytes\": %zu,\n  \"live\": %zu,\n  \"held\": %zu,\n"
                "  \"refused_frees\": %" PRIu64 ",\n  \"failures\": %" PRIu64 ",\n"
                "  \"external_fragmentation\": %.6f,\n  \"recorded\": %zu,\n  \"requested_bytes\": %zu,\n"
                "  \"internal_fragmentation\": %.6f,\n",
                info->reserved_bytes, info->metadata_bytes, info->used_bytes, info->free_bytes,
                info->largest_free_bytes, info->live_count, info->held_count, info->refused_free_count,
                info->failure_count, info->external_fragmentation, info->recorded_count, info->requested_bytes,
                info->internal_fragmentation);
  bool complete = recorded == NULL || write_sites(out, recorded, info->live_count);
  write_superblocks(out, view);
  write_classes(out, &tally);
  bool failed = ferror(out) != 0 || !complete;
  if (fclose(out) != 0 || failed) {
    free(text);
    return NULL;
  }
  return text;
}
