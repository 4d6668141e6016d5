/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_json.h"

#include <stdint.h>
#include <string.h>

/* A value in so many others is refused: reading it would take as many calls in each other. */
enum { depth_most = 64 };

static void blanks_pass(struct json *json) { json->at += strspn(json->at, " \t\r\n"); }

static bool passes(struct json *json, char wanted) {
  blanks_pass(json);
  if (*json->at != wanted)
    return false;
  json->at++;
  return true;
}

static size_t digits_pass(struct json *json) {
  size_t count = strspn(json->at, "0123456789");
  json->at += count;
  return count;
}

static bool word_pass(struct json *json, const char *word) {
  size_t length = strlen(word);
  if (strncmp(json->at, word, length) != 0)
    return false;
  json->at += length;
  return true;
}

bool json_text(struct json *json) {
  if (!passes(json, '"'))
    return false;
  for (; *json->at != '"'; json->at++) {
    if ((unsigned char)*json->at < ' ') /* also the end */
      return false;
    if (*json->at != '\\')
      continue;
    json->at++;
    if (*json->at == 'u' ? strspn(json->at + 1, "0123456789abcdefABCDEF") < 4
                         : *json->at == '\0' || strchr("\"\\/bfnrt", *json->at) == NULL)
      return false;
  }
  json->at++;
  return true;
}

/* The digits before a point: a 0 is the only one. */
static bool whole_pass(struct json *json) {
  const char *begin = json->at;
  size_t count = digits_pass(json);
  return count == 1 || (count > 1 && *begin != '0');
}

bool json_count(struct json *json) {
  blanks_pass(json);
  return whole_pass(json) && strchr(".eE", *json->at) == NULL;
}

bool json_number(struct json *json) {
  (void)passes(json, '-');
  if (!whole_pass(json))
    return false;
  if (*json->at == '.') {
    json->at++;
    if (digits_pass(json) == 0)
      return false;
  }
  if (*json->at != 'e' && *json->at != 'E')
    return true;
  json->at++;
  json->at += *json->at == '+' || *json->at == '-';
  return digits_pass(json) > 0;
}

bool json_address(struct json *json) {
  blanks_pass(json);
  const char *begin = json->at;
  if (!json_text(json) || strncmp(begin, "\"0x", 3) != 0)
    return false;
  size_t count = strspn(begin + 3, "0123456789abcdef");
  return count > 0 && count <= 16 && begin[3 + count] == '"';
}

bool json_object(struct json *json, const struct json_member *members, size_t count) {
  uint32_t seen = 0;
  if (!passes(json, '{') || json->depth++ == depth_most)
    return false;
  if (!passes(json, '}')) {
    do {
      blanks_pass(json);
      const char *name = json->at + 1;
      if (!json_text(json))
        return false;
      size_t length = (size_t)(json->at - 1 - name), i = 0;
      while (i < count && (strlen(members[i].name) != length || strncmp(members[i].name, name, length) != 0))
        i++;
      if (!passes(json, ':') || !(i < count ? members[i].read : json_any)(json))
        return false;
      seen |= i < count ? (uint32_t)1 << i : 0;
    } while (passes(json, ','));
    if (!passes(json, '}'))
      return false;
  }
  json->depth--;
  return seen == ((uint64_t)1 << count) - 1;
}

bool json_array(struct json *json, json_reader *element) {
  if (!passes(json, '[') || json->depth++ == depth_most)
    return false;
  if (!passes(json, ']')) {
    do
      if (!element(json))
        return false;
    while (passes(json, ','));
    if (!passes(json, ']'))
      return false;
  }
  json->depth--;
  return true;
}

bool json_any(struct json *json) {
  blanks_pass(json);
  switch (*json->at) {
  case '{':
    return json_object(json, NULL, 0);
  case '[':
    return json_array(json, json_any);
  case '"':
    return json_text(json);
  case 't':
    return word_pass(json, "true");
  case 'f':
    return word_pass(json, "false");
  case 'n':
    return word_pass(json, "null");
  default:
    return json_number(json);
  }
}

bool json_is(const char *text, size_t size, json_reader *read) {
  struct json json = {.at = text};
  if (!read(&json))
    return false;
  blanks_pass(&json);
  return json.at == text + size;
}
