/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_text.h"

#include <stdbool.h>

/* By table 3-7 of the Unicode standard.  No sequence has the terminating 0. */
size_t text_sequence_length(const char *from) {
  const unsigned char *text = (const unsigned char *)from;
  unsigned char least = 0x80, most = 0xbf;
  size_t length;
  if (text[0] < 0x80)
    return 1;
  if (text[0] < 0xc2 || text[0] > 0xf4)
    return 0;
  length = text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
  if (text[0] == 0xe0)
    least = 0xa0;
  if (text[0] == 0xed) /* else it is a surrogate */
    most = 0x9f;
  if (text[0] == 0xf0)
    least = 0x90;
  if (text[0] == 0xf4) /* else it is beyond U+10FFFF */
    most = 0x8f;
  if (text[1] < least || text[1] > most)
    return 0;
  for (size_t i = 2; i < length; i++)
    if (text[i] < 0x80 || text[i] > 0xbf)
      return 0;
  return length;
}

/* Also U+0080 to U+009f, which some terminals obey. */
static bool is_control(const char *text) {
  unsigned char first = (unsigned char)text[0], second = (unsigned char)text[1];
  return first < 0x20 || first == 0x7f || (first == 0xc2 && second < 0xa0);
}

void text_print(FILE *stream, const char *text, size_t bytes, size_t characters_most) {
  for (const char *end = text + bytes; text < end && *text != '\0'; characters_most--) {
    if (characters_most == 0) {
      (void)fputs("...", stream);
      return;
    }
    size_t length = text_sequence_length(text);
    bool plain = length > 0 && !is_control(text);
    if (plain)
      (void)fwrite(text, 1, length, stream);
    for (size_t i = 0; !plain && (i == 0 || i < length); i++)
      (void)fprintf(stream, "\\x%02x", (unsigned char)text[i]);
    text += length > 0 ? length : 1;
  }
}
