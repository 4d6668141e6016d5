/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_text.h"

#include <stdbool.h>

#include "base/utf8.h"

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
    size_t length = utf8_length(text);
    bool plain = length > 0 && !is_control(text);
    if (plain)
      (void)fwrite(text, 1, length, stream);
    for (size_t i = 0; !plain && (i == 0 || i < length); i++)
      (void)fprintf(stream, "\\x%02x", (unsigned char)text[i]);
    text += length > 0 ? length : 1;
  }
}
