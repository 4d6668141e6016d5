/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_picture.h"

#include "base/utf8.h"

void picture_text(FILE *stream, const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  (void)fputc('"', stream);
  while (*at != '\0') {
    size_t length = utf8_length((const char *)at);
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
