/* Functions that all files of the parser share, and the statements. */
#include <stdio.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/parser.h"

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

/* ---- statements ---- */

enum { MOST_ENDS = 4 };

/* Statements up to a tag that begins with one of the names in `ends`, which is the present token then.
 * ends[0] NULL: up to the end of the template. */
static int parse_body(struct ot_jinja_parser *p, const char *const ends[MOST_ENDS],
                      struct ot_jinja_node **body);

static int need_block_end(struct ot_jinja_parser *p) {
    if (p->token->kind != OT_JINJA_T_BLOCK_END)
        return ot_jinja_unexpected(p, "the end of the tag");
    ot_jinja_advance(p);
    return 0;
}

/* The body of a block, and the tag that ends it. */
static int parse_block(struct ot_jinja_parser *p, const char *end, struct ot_jinja_node **body) {
    const char *const ends[MOST_ENDS] = {end};
    OT_TRY(need_block_end(p));
    OT_TRY(parse_body(p, ends, body));
    ot_jinja_advance(p);
    return 0;
}

/* The same for a block with its own scope: its variables stay inside, and it is in no loop. */
static int parse_own_block(struct ot_jinja_parser *p, const char *end, struct ot_jinja_node **body) {
    int loops = p->loops;
    p->loops = 0;
    OT_TRY(parse_block(p, end, body));
    p->loops = loops;
    return 0;
}

static int parse_if(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    static const char *const ends[MOST_ENDS] = {"elif", "else", "endif"};
    for (;;) {
        OT_TRY(ot_jinja_parse_plain_tuple(p, NULL, &node->a));
        OT_TRY(need_block_end(p));
        OT_TRY(parse_body(p, ends, &node->body));
        if (!ot_jinja_skip_name(p, "elif"))
            break;
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_S_IF, &node->other));
        node = node->other;
    }
    if (ot_jinja_skip_name(p, "else")) {
        node->has_else = true;
        return parse_block(p, "endif", &node->other);
    }
    ot_jinja_advance(p);
    return 0;
}

static int parse_for(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    static const char *const ends[MOST_ENDS] = {"else", "endfor"};
    OT_TRY(ot_jinja_parse_target(p, "in", false, &node->a));
    if (!ot_jinja_skip_name(p, "in"))
        return ot_jinja_unexpected(p, "'in'");
    OT_TRY(ot_jinja_parse_plain_tuple(p, "recursive", &node->b));
    if (ot_jinja_skip_name(p, "if"))
        OT_TRY(ot_jinja_parse_expression(p, &node->c));
    if (ot_jinja_at_name(p, "recursive"))
        return ot_jinja_unsupported(p->heap, "a recursive loop");
    OT_TRY(need_block_end(p));
    p->loops++;
    OT_TRY(parse_body(p, ends, &node->body));
    p->loops--;
    if (ot_jinja_skip_name(p, "else"))
        return parse_block(p, "endfor", &node->other);
    ot_jinja_advance(p);
    return 0;
}

static int parse_set(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    OT_TRY(ot_jinja_parse_target(p, NULL, true, &node->a));
    if (ot_jinja_skip_op(p, '='))
        return ot_jinja_parse_tuple(p, NULL, &node->b);
    node->kind = OT_JINJA_S_SET_BLOCK;
    OT_TRY(ot_jinja_parse_filters(p, NULL, false, &node->b));
    return parse_own_block(p, "endset", &node->body);
}

static int parse_parameters(struct ot_jinja_parser *p, struct ot_jinja_node **list) {
    struct ot_jinja_node **tail = list, *parameter;
    bool defaults = false;
    OT_TRY(ot_jinja_need_op(p, '('));
    while (!ot_jinja_at_op(p, ')')) {
        if (*list)
            OT_TRY(ot_jinja_need_op(p, ','));
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_KEYWORD, &parameter));
        OT_TRY(ot_jinja_need_name(p, &parameter->name));
        if (ot_jinja_skip_op(p, '=')) {
            OT_TRY(ot_jinja_parse_expression(p, &parameter->a));
            defaults = true;
        } else if (defaults) {
            return ot_jinja_fail(p->heap, "a parameter without a default follows one with a default");
        }
        *tail = parameter;
        tail = &parameter->next;
    }
    return ot_jinja_need_op(p, ')');
}

static int parse_macro(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    OT_TRY(ot_jinja_need_name(p, &node->name));
    OT_TRY(parse_parameters(p, &node->list));
    return parse_own_block(p, "endmacro", &node->body);
}

static int parse_filter_block(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    OT_TRY(ot_jinja_parse_filters(p, NULL, true, &node->a));
    return parse_own_block(p, "endfilter", &node->body);
}

static int parse_generation(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    p->generation = true;
    return parse_own_block(p, "endgeneration", &node->body);
}

static int parse_jump(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    if (p->loops > 0)
        return 0;
    return ot_jinja_fail(p->heap, "{%% %s %%} is in no loop",
                         node->kind == OT_JINJA_S_BREAK ? "break" : "continue");
}

static const struct {
    const char *name;
    enum ot_jinja_node_kind kind;
    int (*parse)(struct ot_jinja_parser *, struct ot_jinja_node *);
} statements[] = {
    {"if", OT_JINJA_S_IF, parse_if},
    {"for", OT_JINJA_S_FOR, parse_for},
    {"set", OT_JINJA_S_SET, parse_set},
    {"macro", OT_JINJA_S_MACRO, parse_macro},
    {"filter", OT_JINJA_S_FILTER, parse_filter_block},
    {"generation", OT_JINJA_S_GENERATION, parse_generation},
    {"break", OT_JINJA_S_BREAK, parse_jump},
    {"continue", OT_JINJA_S_CONTINUE, parse_jump},
};

static int refuse_statement(struct ot_jinja_parser *p) {
    static const char *const jinja[] = {"include", "import", "from",       "extends", "block",
                                        "call",    "with",   "autoescape", "do"};
    const struct ot_jinja_token *t = p->token;
    for (size_t i = 0; i < sizeof jinja / sizeof *jinja; i++)
        if (ot_jinja_at_name(p, jinja[i]))
            return ot_jinja_fail(p->heap,
                                 "{%% %s %%} is not supported in chat templates; supported: if for set macro "
                                 "filter raw generation break continue",
                                 jinja[i]);
    if (t->kind != OT_JINJA_T_NAME)
        return ot_jinja_unexpected(p, "the name of a tag");
    return ot_jinja_fail(p->heap, "unexpected tag '%.*s'", (int)ot_min(t->bytes, 40), t->text);
}

static int parse_statement(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!ot_jinja_at_name(p, statements[i].name))
            continue;
        OT_TRY(ot_jinja_enter(p));
        OT_TRY(ot_jinja_new_node(p, statements[i].kind, out));
        ot_jinja_advance(p);
        OT_TRY(statements[i].parse(p, *out));
        p->depth--;
        return need_block_end(p);
    }
    return refuse_statement(p);
}

static int parse_print(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_S_PRINT, out));
    ot_jinja_advance(p);
    OT_TRY(ot_jinja_parse_tuple(p, NULL, &(*out)->a));
    if (p->token->kind != OT_JINJA_T_PRINT_END)
        return ot_jinja_unexpected(p, "'}}'");
    ot_jinja_advance(p);
    return 0;
}

static int parse_data(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_S_TEXT, out));
    OT_TRY(ot_jinja_string(p->heap, p->token->text, p->token->bytes, false, &(*out)->value));
    ot_jinja_advance(p);
    return 0;
}

static bool is_end(const struct ot_jinja_parser *p, const char *const ends[MOST_ENDS]) {
    for (int i = 0; i < MOST_ENDS && ends[i]; i++)
        if (ot_jinja_at_name(p, ends[i]))
            return true;
    return false;
}

static int parse_body(struct ot_jinja_parser *p, const char *const ends[MOST_ENDS],
                      struct ot_jinja_node **body) {
    struct ot_jinja_node **tail = body;
    for (;;) {
        if (p->token->kind == OT_JINJA_T_END) {
            char wanted[40];
            int last = 0;
            if (!ends[0])
                return 0;
            while (last + 1 < MOST_ENDS && ends[last + 1])
                last++;
            snprintf(wanted, sizeof wanted, "{%% %s %%}", ends[last]);
            return ot_jinja_unexpected(p, wanted);
        }
        if (p->token->kind == OT_JINJA_T_DATA) {
            OT_TRY(parse_data(p, tail));
        } else if (p->token->kind == OT_JINJA_T_PRINT_BEGIN) {
            OT_TRY(parse_print(p, tail));
        } else {
            ot_jinja_advance(p);
            if (is_end(p, ends))
                return 0;
            OT_TRY(parse_statement(p, tail));
        }
        tail = &(*tail)->next;
    }
}

int ot_jinja_parse(struct ot_jinja_parser *p, struct ot_jinja_node **body) {
    static const char *const ends[MOST_ENDS] = {NULL};
    return parse_body(p, ends, body);
}
