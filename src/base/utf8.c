#include "src/base/utf8.h"

#include <string.h>

void ot_utf8_keep_line(char *text) {
    size_t bytes = strlen(text), length;
    for (size_t at = 0; at < bytes; at += length) {
        unsigned char first = (unsigned char)text[at];
        length = ot_utf8_character(text + at, bytes - at);
        if (length == 0) {
            text[at] = '?';
            length = 1;
        } else if (first < 0x20 || first == 0x7f || (first == 0xc2 && (unsigned char)text[at + 1] < 0xa0)) {
            memset(text + at, ' ', length);
        }
    }
}
