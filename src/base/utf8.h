/* Checks UTF-8 characters by table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing
 * above U+10FFFF. Also makes texts safe for one line. Any thread. */
#ifndef OT_BASE_UTF8_H
#define OT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The number of well-formed bytes of the first character of the text; *length is the number that the
 * character needs. Both are 0 if the first byte cannot begin a character. bytes >= 1. */
static inline size_t ot_utf8_well_formed(const char *text, size_t bytes, size_t *length) {
    const unsigned char *s = (const unsigned char *)text;
    unsigned char first = s[0], low = 0x80, high = 0xbf;
    *length = first < 0x80   ? 1
              : first < 0xc2 ? 0
              : first < 0xe0 ? 2
              : first < 0xf0 ? 3
              : first < 0xf5 ? 4
                             : 0;
    if (*length <= 1)
        return *length;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed) /* surrogates are not characters */
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    size_t good = 1;
    while (good < *length && good < bytes && s[good] >= low && s[good] <= high) {
        good++;
        low = 0x80, high = 0xbf;
    }
    return good;
}

/* The length of the first character of the text; 0 if the text does not begin with a whole character. bytes
 * >= 1. */
static inline size_t ot_utf8_character(const char *text, size_t bytes) {
    size_t length, good = ot_utf8_well_formed(text, bytes, &length);
    return good == length ? length : 0;
}

/* Encodes a code point up to U+10FFFF. Returns the length. */
static inline size_t ot_utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Replaces control characters (C0, DEL and C1) by spaces, and bytes that are not UTF-8 by question marks, so
 * that a file's name or content cannot break a line or control a terminal. The length stays the same. */
void ot_utf8_keep_line(char *text);

#endif
