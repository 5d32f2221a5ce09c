/* Private header: the tree that json_parse.c makes and json.c reads.
 *
 * We have our own parser because json-c left out members and cut strings without an error when memory ran
 * out: a run could train with other options than the user gave. Here, a failed allocation is an error of the
 * whole document. A tree lives in one arena, which its root owns.
 */
#ifndef OT_BASE_JSON_STATE_H
#define OT_BASE_JSON_STATE_H

#include <stdint.h>
#include <string.h>

#include "src/base/json.h"
#include "src/base/memory.h"

enum { OT_JSON_MAX_DEPTH = 64 };

struct ot_json_member {
    const char *key;
    struct ot_json *value; /* NULL: null */
};

struct ot_json {
    enum ot_json_type type;
    bool is_torn; /* a string with half of a surrogate pair */
    union {
        bool truth;
        int64_t integer;
        double real;
        struct {
            const char *bytes; /* followed by a NUL */
            size_t n;
        } string;
        struct {
            struct ot_json **items; /* NULL: null */
            size_t n;
        } array;
        struct {
            struct ot_json_member *members;       /* in file order, each key once */
            const struct ot_json_member **sorted; /* by key */
            size_t n;
            uint64_t key_bits; /* ot_json_key_bit of each key */
        } object;
    };
};

struct ot_json_document { /* callers get a pointer to `root` */
    struct ot_json root;
    struct ot_arena *arena;
};

/* A bit for the first two bytes of a key: rows have few keys, and are asked for many that they lack. */
static inline uint64_t ot_json_key_bit(const char *key) {
    return (uint64_t)1 << ((*key ? key[0] + 7 * key[1] : 0) & 63);
}

/* The number of bytes at the front of a text that stand for themselves in a JSON string: ASCII from the space
 * on, without quotes and backslashes. Looks at eight bytes at a time, because most of a row is such text. */
static inline size_t ot_json_plain_bytes(const char *text, size_t n) {
    const uint64_t ones = UINT64_MAX / 255, tops = ones << 7;
    size_t at = 0;
    for (; at + 8 <= n; at += 8) {
        uint64_t word;
        memcpy(&word, text + at, 8);
        uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
        if ((word | (word - ones * ' ') | (quote - ones) | (backslash - ones)) & tops)
            break;
    }
    while (at < n && (signed char)text[at] >= ' ' && text[at] != '"' && text[at] != '\\')
        at++;
    return at;
}

/* Call it after keys have changed: removes members whose key is NULL and sorts the others again. */
void ot_json_order_members(struct ot_json *object);

/* is_row: as ot_json_parse_row says. The tree is in the reader's arena, which is open. *out is NULL if the
 * document is the JSON value null. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_json_parse_document(const char *text, size_t bytes, const char *where, bool is_row,
                           struct ot_json_reader *reader, struct ot_json **out);

#endif
