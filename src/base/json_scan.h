/* Inside the JSON glue: the check that stands before json-c.
 *
 * json-c 0.16 accepts more than JSON even in its strict mode (control characters, NaN, leading zeros),
 * saturates long integers in silence, mistakes some surrogate pairs for halves, and says nothing of where. So
 * a document is read through once, without building anything, before it is handed over. This follows RFC 8259
 * to the letter, bounds the depth, names the byte of a fault, and says what json-c must be given instead of
 * what it would misread.
 */
#ifndef OT_BASE_JSON_SCAN_H
#define OT_BASE_JSON_SCAN_H

#include <stddef.h>

enum { OT_JSON_MAX_DEPTH = 64 };

struct ot_json_scan {
    const unsigned char *text;
    size_t bytes;
    const char *where; /* for errors */
    /* Called, in order, for what json-c would misread: the bytes [begin, end) must be replaced. An integer
     * outside int64_t gets a fraction and so becomes a real; an escaped surrogate pair becomes its UTF-8. */
    int (*on_replace)(void *context, size_t begin, size_t end, const char *text, size_t bytes);
    void *context;
    size_t at; /* starts as 0 */
    int depth;
};

/* Errors: OT_E_INPUT, or what on_replace returned. */
int ot_json_scan_document(struct ot_json_scan *scan);

#endif
