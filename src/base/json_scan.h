/* Inside the JSON glue: the check that stands before json-c, and UTF-8.
 *
 * json-c 0.16 accepts more than JSON even in its strict mode (control characters, NaN, leading zeros),
 * saturates long integers in silence, and says nothing of where. So a document is read through once, without
 * building anything, before it is handed over. This follows RFC 8259 to the letter, bounds the depth, and
 * names the byte of a fault.
 */
#ifndef OT_BASE_JSON_SCAN_H
#define OT_BASE_JSON_SCAN_H

#include <stddef.h>

enum { OT_JSON_MAX_DEPTH = 64 };

struct ot_json_scan {
    const unsigned char *text;
    size_t bytes;
    const char *where; /* for errors */
    /* Called for each integer outside int64_t, with the offset of its end. */
    int (*on_long_int)(void *context, size_t end);
    void *context;
    size_t at; /* starts as 0 */
    int depth;
};

/* Errors: OT_E_INPUT, or what on_long_int returned. */
int ot_json_scan_document(struct ot_json_scan *scan);

/* Bytes of the well-formed UTF-8 sequence that text begins with; 0 if it begins with none. bytes >= 1. */
size_t ot_utf8_sequence_bytes(const unsigned char *text, size_t bytes);

#endif
