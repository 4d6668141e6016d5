/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_picture.h"

/* The length of the well-formed UTF-8 sequence at text, by table 3-7 of the Unicode standard; 0 if there is none.  It
 * stops at the terminating 0, which no sequence has. */
static size_t sequence_length(const unsigned char *text) {
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

void picture_text(FILE *stream, const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  (void)fputc('"', stream);
  while (*at != '\0') {
    size_t length = sequence_length(at);
    if (length == 0)
      (void)fputs("\\ufffd", stream);
    else if (*at < 0x20 || *at == 0x7f || *at == '<' || *at == '>' || *at == '&') /* keeps out </script> and <!-- */
      (void)fprintf(stream, "\\u%04x", *at);
    else if (*at == '"' || *at == '\\')
      (void)fprintf(stream, "\\%c", *at);
    else
      (void)fwrite(at, 1, length, stream);
    at += length == 0 ? 1 : length;
  }
  (void)fputc('"', stream);
}
