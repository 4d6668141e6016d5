/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Whether a text is JSON of a given shape (RFC 8259).  Nothing is kept of it.
 *
 * It does not know what the shapes are.
 */
#ifndef MAM_BENCH_JSON_H
#define MAM_BENCH_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Where the reader is, in a text that ends with a 0. */
struct json {
  const char *at;
  unsigned depth; /* of what it is in */
};

/* Reads a value, and says whether it is of a kind. */
typedef bool json_reader(struct json *json);

/* Of a member that an object has to have. */
struct json_member {
  const char *name;
  json_reader *read;
};

/* Any value; a text; a number; a whole number that is not negative; an address as "0x7f0000000000". */
json_reader json_any, json_text, json_number, json_count, json_address;

/* An object with these members, at most 32, and perhaps others; an array of such elements. */
bool json_object(struct json *json, const struct json_member *members, size_t count);
bool json_array(struct json *json, json_reader *element);

/* Whether the whole text, of so many bytes and a 0 after them, is one such value. */
bool json_is(const char *text, size_t size, json_reader *read);

#endif
