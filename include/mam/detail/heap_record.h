/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mam/detail/heap_record.h - records: the line that allocated a block, and the bytes it asked for.
 *
 *   a block   | the owner's bytes | requested, site, check |     a record in its last 16 bytes
 *
 * mam_malloc_at (device_record.cuh) writes records, and the host reads them.  A record is known by its check, a hash of
 * the record and its address.  So a block of a kernel that was compiled without records shows none.
 *
 * The thread that records a site first copies its text to a table on the GPU, because the module with the string may be
 * gone when the host looks.
 */
#ifndef MAM_DETAIL_HEAP_RECORD_H
#define MAM_DETAIL_HEAP_RECORD_H

#include <mam/detail/heap_core.h>

/* The table has places for so many sites.  When it is full, blocks of further sites have no site. */
enum { MAM_SITES = 1024 };
/* A site has 128 bytes, of which so many hold the file's name. */
enum { MAM_SITE_TEXT_BYTES = 112 };
/* A site's key has 15 bits for the line; larger lines share a key. */
enum { MAM_SITE_LINE_BITS = 15 };

/* A place in a program that allocates. */
struct mam_site {
  mam_u64 key; /* atomic; 0: the entry is free */
  mam_u32 line, unused;
  char file[MAM_SITE_TEXT_BYTES]; /* the end of the file's name, if the name is longer */
};

struct mam_record {
  mam_u64 requested;
  mam_u32 site; /* its place in the table, plus 1; 0: the table is full */
  mam_u32 check;
};

MAM_INLINE mam_u32 mam_record_check(const struct mam_record *record, mam_u64 address) {
  mam_u64 mixed = (address ^ record->requested * 0x9e3779b97f4a7c15ull) + record->site;
  mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
  return (mam_u32)(mixed >> 32) | 1;
}

/* The record of a block of so many bytes. */
MAM_INLINE struct mam_record *mam_record_place(mam_u64 address, mam_u64 bytes) {
  return (struct mam_record *)(address + bytes - sizeof(struct mam_record));
}

MAM_INLINE int mam_record_holds(const struct mam_record *record, mam_u64 address) {
  return record->check == mam_record_check(record, address);
}

/* Writes a site that the caller has just claimed. */
MAM_OUTLINE void mam_site_write(struct mam_site *site, const char *file, mam_u32 line) {
  mam_u32 length = 0;
  MAM_LOOP
  while (file[length] != 0)
    length++;
  if (length >= MAM_SITE_TEXT_BYTES) {
    file += length - (MAM_SITE_TEXT_BYTES - 1);
    length = MAM_SITE_TEXT_BYTES - 1;
  }
  MAM_LOOP
  for (mam_u32 i = 0; i < length; i++)
    site->file[i] = file[i];
  site->file[length] = 0;
  site->line = line;
}

/* The place of a site in the table, plus 1; 0 if the table is full.  The host reads the table when the kernels that
 * write to it have ended. */
MAM_OUTLINE mam_u32 mam_site_find(MAM_TAG(1) struct mam_site *sites, const char *file, mam_u32 line) {
  mam_u32 most = (1u << MAM_SITE_LINE_BITS) - 1;
  mam_u64 key = (mam_u64)(line < most ? line : most) << (64 - MAM_SITE_LINE_BITS) |
                ((mam_u64)file & (MAM_FULL_WORD >> MAM_SITE_LINE_BITS));
  mam_u32 begin = (mam_u32)((key * 0x9e3779b97f4a7c15ull) >> 40);
  MAM_LOOP
  for (mam_u32 i = 0; i < MAM_SITES; i++) {
    struct mam_site *site = &sites[(begin + i) % MAM_SITES];
    mam_u64 seen = mam_load_relaxed_u64(&site->key);
    if (seen == 0) {
      /* relaxed: until the kernel has ended, only the thread that claimed the entry uses what follows */
      seen = mam_cas_relaxed_u64(&site->key, 0, key);
      if (seen == 0)
        MAM_OUT_OF_SIGHT(mam_site_write)(site, file, line);
    }
    if (seen == 0 || seen == key)
      return (begin + i) % MAM_SITES + 1;
  }
  return 0;
}

/* Records a block of a heap that has records. */
MAM_OUTLINE void mam_record_write(struct mam_heap_control *control, mam_u64 address, mam_u64 requested,
                                  const char *file, mam_u32 line) {
  mam_u64 bytes = MAM_OUT_OF_SIGHT(mam_block_bytes)(control, address);
  struct mam_record record = {requested, MAM_OUT_OF_SIGHT(mam_site_find)(control->sites, file, line), 0};
  record.check = mam_record_check(&record, address);
  *mam_record_place(address, bytes) = record;
}

/* The bytes of a live block that its owner may use: all but the record, if there is one. */
MAM_OUTLINE mam_u64 mam_record_size(struct mam_heap_control *control, mam_u64 address) {
  mam_u64 bytes = MAM_OUT_OF_SIGHT(mam_block_bytes)(control, address);
  if (bytes == 0 || control->sites == 0 || !mam_record_holds(mam_record_place(address, bytes), address))
    return bytes;
  return bytes - sizeof(struct mam_record);
}

/* Ends the record of a block that is about to be freed, since its next owner may write none. */
MAM_OUTLINE void mam_record_end(struct mam_heap_control *control, mam_u64 address) {
  mam_u64 bytes = MAM_OUT_OF_SIGHT(mam_block_bytes)(control, address);
  if (bytes != 0)
    mam_record_place(address, bytes)->check = 0;
}

#endif /* MAM_DETAIL_HEAP_RECORD_H */
