/* Inside the JSON glue: the tree that json_parse.c makes and json.c reads.
 *
 * The parser is ours because what a library does when memory runs out decides whether a run trains what was
 * asked for: json-c left out members and cut strings short without an error. Here each allocation that fails
 * is an error of the whole document. A tree lives in one arena, which its root owns.
 */
#ifndef OT_BASE_JSON_STATE_H
#define OT_BASE_JSON_STATE_H

#include "src/base/arena.h"
#include "src/base/json.h"

enum { OT_JSON_MAX_DEPTH = 64 };

struct ot_json_member {
    const char *key;
    struct ot_json *value; /* NULL: null */
};

struct ot_json {
    enum ot_json_type type;
    union {
        bool truth;
        int64_t integer;
        double real;
        struct {
            const char *bytes; /* with a NUL behind them */
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
        } object;
    };
};

struct ot_json_document { /* of which `root` is handed out */
    struct ot_json root;
    struct ot_arena *arena;
};

/* After keys have changed: drops members whose key is NULL and sorts the others anew. */
void ot_json_order_members(struct ot_json *object);

/* *out: NULL for a document that is null. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_json_parse_document(const char *text, size_t bytes, const char *where, struct ot_arena *arena,
                           struct ot_json **out);

#endif
