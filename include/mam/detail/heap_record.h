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
enum { MAM__SITES = 1024 };
/* A site has 128 bytes, of which so many hold the file's name. */
enum { MAM__SITE_TEXT_BYTES = 112 };
/* A site's key has 15 bits for the line; larger lines share a key. */
enum { MAM__SITE_LINE_BITS = 15 };

/* A place in a program that allocates. */
struct mam__site {
  mam__u64 key; /* atomic; 0: the entry is free */
  mam__u32 line, unused;
  char file[MAM__SITE_TEXT_BYTES]; /* the end of the file's name, if the name is longer */
};

struct mam__record {
  mam__u64 requested;
  mam__u32 site; /* its place in the table, plus 1; 0: the table is full */
  mam__u32 check;
};

MAM__INLINE mam__u32 mam__record_check(const struct mam__record *record, mam__u64 address) {
  mam__u64 mixed = (address ^ record->requested * 0x9e3779b97f4a7c15ull) + record->site;
  mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
  return (mam__u32)(mixed >> 32) | 1;
}

/* The record of a block of so many bytes. */
MAM__INLINE struct mam__record *mam__record_place(mam__u64 address, mam__u64 bytes) {
  return (struct mam__record *)(address + bytes - sizeof(struct mam__record));
}

MAM__INLINE int mam__record_holds(const struct mam__record *record, mam__u64 address) {
  return record->check == mam__record_check(record, address);
}

/* Writes a site that the caller has just claimed. */
MAM__OUTLINE void mam__site_write(struct mam__site *site, const char *file, mam__u32 line) {
  mam__u32 length = 0;
  MAM__LOOP
  while (file[length] != 0)
    length++;
  if (length >= MAM__SITE_TEXT_BYTES) {
    file += length - (MAM__SITE_TEXT_BYTES - 1);
    length = MAM__SITE_TEXT_BYTES - 1;
  }
  MAM__LOOP
  for (mam__u32 i = 0; i < length; i++)
    site->file[i] = file[i];
  site->file[length] = 0;
  site->line = line;
}

/* The place of a site in the table, plus 1; 0 if the table is full.  The host reads the table when the kernels that
 * write to it have ended. */
MAM__OUTLINE mam__u32 mam__site_find(MAM__TAG(1) struct mam__site *sites, const char *file, mam__u32 line) {
  mam__u32 most = (1u << MAM__SITE_LINE_BITS) - 1;
  mam__u64 key = (mam__u64)(line < most ? line : most) << (64 - MAM__SITE_LINE_BITS) |
                 ((mam__u64)file & (MAM__FULL_WORD >> MAM__SITE_LINE_BITS));
  mam__u32 begin = (mam__u32)((key * 0x9e3779b97f4a7c15ull) >> 40);
  MAM__LOOP
  for (mam__u32 i = 0; i < MAM__SITES; i++) {
    struct mam__site *site = &sites[(begin + i) % MAM__SITES];
    mam__u64 seen = mam__load_relaxed_u64(&site->key);
    if (seen == 0) {
      /* relaxed: until the kernel has ended, only the thread that claimed the entry uses what follows */
      seen = mam__cas_relaxed_u64(&site->key, 0, key);
      if (seen == 0)
        MAM__OUT_OF_SIGHT(mam__site_write)(site, file, line);
    }
    if (seen == 0 || seen == key)
      return (begin + i) % MAM__SITES + 1;
  }
  return 0;
}

/* Records a block of a heap that has records. */
MAM__OUTLINE void mam__record_write(struct mam__heap_control *control, mam__u64 address, mam__u64 requested,
                                    const char *file, mam__u32 line) {
  mam__u64 bytes = MAM__OUT_OF_SIGHT(mam__block_bytes)(control, address);
  struct mam__record record = {requested, MAM__OUT_OF_SIGHT(mam__site_find)(control->sites, file, line), 0};
  record.check = mam__record_check(&record, address);
  *mam__record_place(address, bytes) = record;
}

/* The bytes of a live block that its owner may use: all but the record, if there is one. */
MAM__OUTLINE mam__u64 mam__record_size(MAM__TAG(5) struct mam__heap_control *control, mam__u64 address) {
  mam__u64 bytes = MAM__OUT_OF_SIGHT(mam__block_bytes)(control, address);
  if (bytes == 0 || control->sites == 0 || !mam__record_holds(mam__record_place(address, bytes), address))
    return bytes;
  return bytes - sizeof(struct mam__record);
}

/* Ends the record of a block that is about to be freed, since its next owner may write none. */
MAM__OUTLINE void mam__record_end(struct mam__heap_control *control, mam__u64 address) {
  mam__u64 bytes = MAM__OUT_OF_SIGHT(mam__block_bytes)(control, address);
  if (bytes != 0)
    mam__record_place(address, bytes)->check = 0;
}

#endif /* MAM_DETAIL_HEAP_RECORD_H */
