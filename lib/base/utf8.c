/* SPDX-License-Identifier: BSD-2-Clause */
#include "base/utf8.h"

/* By table 3-7 of the Unicode standard.  No sequence has the terminating 0. */
size_t utf8_length(const char *from) {
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
