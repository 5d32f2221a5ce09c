#include "src/jinja/parser.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

/* One level is about ten functions deep: the stack of a worker thread must hold them. */
enum { MOST_DEPTH = 60, MOST_NAMES = 4096 };

int ot_jinja_enter(struct ot_jinja_parser *p) {
    if (p->depth == MOST_DEPTH)
        return ot_jinja_fail(p->heap, "the template is nested more than %d deep", MOST_DEPTH);
    p->depth++;
    return 0;
}

int ot_jinja_new_node(struct ot_jinja_parser *p, enum ot_jinja_node_kind kind, struct ot_jinja_node **out) {
    struct ot_jinja_node *node = ot_jinja_alloc(p->heap, 1, sizeof *node);
    if (!node)
        return p->heap->error;
    node->kind = kind;
    node->line = p->token->line;
    *out = node;
    return 0;
}

int ot_jinja_intern(struct ot_jinja_parser *p, const char *text, size_t bytes,
                    const struct ot_jinja_string **out) {
    struct ot_jinja_value value;
    struct ot_jinja_names *names = &p->names;
    for (size_t i = 0; i < names->n; i++)
        if (names->items[i]->bytes == bytes && memcmp(names->items[i]->text, text, bytes) == 0) {
            *out = names->items[i];
            return 0;
        }
    if (names->n == MOST_NAMES)
        return ot_jinja_fail(p->heap, "the template has more than %d names", MOST_NAMES);
    if (!names->items && !(names->items = ot_jinja_alloc(p->heap, MOST_NAMES, sizeof(void *))))
        return p->heap->error;
    OT_TRY(ot_jinja_string(p->heap, text, bytes, true, &value));
    *out = names->items[names->n++] = value.as.string;
    return 0;
}

int ot_jinja_unexpected(struct ot_jinja_parser *p, const char *wanted) {
    const struct ot_jinja_token *t = p->token;
    if (t->kind == OT_JINJA_T_END)
        return ot_jinja_fail(p->heap, "the template ends where %s is expected", wanted);
    if (t->kind == OT_JINJA_T_PRINT_END || t->kind == OT_JINJA_T_BLOCK_END)
        return ot_jinja_fail(p->heap, "the tag ends where %s is expected", wanted);
    return ot_jinja_fail(p->heap, "'%.*s' where %s is expected", (int)ot_min(t->bytes, 40), t->text, wanted);
}

bool ot_jinja_at_name(const struct ot_jinja_parser *p, const char *name) {
    return p->token->kind == OT_JINJA_T_NAME && p->token->bytes == strlen(name) &&
           memcmp(p->token->text, name, p->token->bytes) == 0;
}

bool ot_jinja_skip_op(struct ot_jinja_parser *p, int op) {
    if (!ot_jinja_at_op(p, op))
        return false;
    ot_jinja_advance(p);
    return true;
}

bool ot_jinja_skip_name(struct ot_jinja_parser *p, const char *name) {
    if (!ot_jinja_at_name(p, name))
        return false;
    ot_jinja_advance(p);
    return true;
}

int ot_jinja_need_op(struct ot_jinja_parser *p, int op) {
    char wanted[4] = {'\'', (char)op, '\'', '\0'};
    return ot_jinja_skip_op(p, op) ? 0 : ot_jinja_unexpected(p, wanted);
}

int ot_jinja_need_name(struct ot_jinja_parser *p, const struct ot_jinja_string **out) {
    if (p->token->kind != OT_JINJA_T_NAME)
        return ot_jinja_unexpected(p, "a name");
    OT_TRY(ot_jinja_intern(p, p->token->text, p->token->bytes, out));
    ot_jinja_advance(p);
    return 0;
}
