/* YAML with libyaml's composer, which makes the nodes of a document and finds what aliases name. Here nodes
 * get their types, merge keys are applied, and the tree is made. */
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/migrate/settings_file.h"
#include "src/migrate/tree.h"

struct walk {
    yaml_document_t *document;
    struct ot_tree *tree;
};

static int put_node(struct walk *w, const char *key, int index);

static size_t line_of(const yaml_node_t *node) {
    return node->start_mark.line + 1;
}

/* ---- types of plain scalars, as PyYAML resolves them ---- */

static bool is_one_of(const char *text, const char *words) {
    return *text && ot_words_have(words, text);
}

static bool is_null(const char *text) {
    return !*text || is_one_of(text, "~ null Null NULL");
}

static bool is_true(const char *text) {
    return is_one_of(text, "yes Yes YES true True TRUE on On ON");
}

static bool is_false(const char *text) {
    return is_one_of(text, "no No NO false False FALSE off Off OFF");
}

static const char *after_sign(const char *text) {
    return text + (*text == '-' || *text == '+');
}

/* The digits of a number without the underscores that YAML allows between them. False: the number is longer
 * than numbers are. */
enum { NUMBER_BYTES = 400 };
static bool copy_number(const char *text, char out[NUMBER_BYTES]) {
    size_t n = 0;
    for (; *text && n < NUMBER_BYTES - 1; text++)
        if (*text != '_')
            out[n++] = *text;
    out[n] = '\0';
    return !*text;
}

static bool is_decimal(const char *text) {
    const char *digits = after_sign(text);
    return strcmp(digits, "0") == 0 ||
           (*digits >= '1' && *digits <= '9' && !digits[strspn(digits, "0123456789_")]);
}

/* Integers of other bases, and of base 60 ("1:30"): nobody means one in a settings file. */
static bool is_other_int(const char *text) {
    const char *digits = after_sign(text);
    if (digits[0] == '0' && digits[1])
        return digits[1] == 'x'   ? digits[2] && !digits[2 + strspn(digits + 2, "0123456789abcdefABCDEF_")]
               : digits[1] == 'b' ? digits[2] && !digits[2 + strspn(digits + 2, "01_")]
                                  : !digits[strspn(digits, "01234567_")];
    size_t n = strspn(digits, "0123456789_");
    const char *rest = digits + n;
    if (n == 0 || digits[0] == '_' || *rest != ':')
        return false;
    for (n = 1; *rest == ':' && n; rest += n)
        n = ot_min(strspn(++rest, "0123456789"), (size_t)2);
    return n && (!*rest || *rest == '.');
}

/* "1.5", "1.", ".5", "1.5e-3": with an exponent only after a point, and only with a sign. */
static bool is_float(const char *text) {
    const char *digits = after_sign(text);
    size_t before = strspn(digits, "0123456789_"), after;
    if ((before > 0 && digits[0] == '_') || digits[before] != '.')
        return false;
    const char *rest = digits + before + 1;
    after = strspn(rest, "0123456789_");
    if (before == 0 && (after == 0 || rest[0] == '_' || digits != text))
        return false; /* PyYAML knows ".5", but not "-.5" */
    rest += after;
    if (*rest != 'e' && *rest != 'E')
        return !*rest;
    rest++;
    return (*rest == '-' || *rest == '+') && rest[1] && !rest[1 + strspn(rest + 1, "0123456789")];
}

static bool is_not_finite(const char *text) {
    return is_one_of(after_sign(text), ".inf .Inf .INF") || is_one_of(text, ".nan .NaN .NAN");
}

static int put_plain(struct walk *w, const char *key, const yaml_node_t *node) {
    const char *text = (const char *)node->data.scalar.value;
    size_t bytes = node->data.scalar.length, line = line_of(node);
    char number[NUMBER_BYTES];
    bool is_int = is_decimal(text);
    if (strlen(text) != bytes)
        return ot_tree_put_text(w->tree, line, key, text, bytes);
    if (is_null(text))
        return ot_tree_put_null(w->tree, line, key);
    if (is_true(text) || is_false(text))
        return ot_tree_put_bool(w->tree, line, key, is_true(text));
    if (is_not_finite(text))
        return ot_tree_fail(w->tree, line, "infinity and nan are no values here");
    if (is_other_int(text))
        return ot_fail(OT_E_INPUT,
                       "%s:%zu: YAML reads %.40s as a number that is not decimal; write it in decimal, or in "
                       "quotes if it is a text",
                       w->tree->where, line, text);
    if (!is_int && !is_float(text))
        return ot_tree_put_text(w->tree, line, key, text, bytes);
    if (!copy_number(text, number))
        return ot_tree_fail(w->tree, line, "a number of more than 399 digits");
    return ot_tree_put_number(w->tree, line, key, number, is_int);
}

/* A scalar in quotes is a text, unless a tag says its type. */
static int put_scalar(struct walk *w, const char *key, const yaml_node_t *node) {
    static const char prefix[] = "tag:yaml.org,2002:";
    const char *tag = (const char *)node->tag;
    const char *type = strncmp(tag, prefix, strlen(prefix)) == 0 ? tag + strlen(prefix) : "";
    bool is_plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if ((strcmp(type, "str") == 0 && is_plain) || is_one_of(type, "int float bool null"))
        return put_plain(w, key, node);
    if (strcmp(type, "str") == 0)
        return ot_tree_put_text(w->tree, line_of(node), key, (const char *)node->data.scalar.value,
                                node->data.scalar.length);
    return ot_fail(OT_E_INPUT, "%s:%zu: the tag %.100s is not supported; a settings file needs none",
                   w->tree->where, line_of(node), tag);
}

/* ---- collections ---- */

struct members {
    struct member {
        const yaml_node_t *key;
        int value;
    } * list;
    size_t n, capacity;
};

static bool has_key(const struct members *m, const yaml_node_t *key) {
    for (size_t i = 0; i < m->n; i++)
        if (m->list[i].key->data.scalar.length == key->data.scalar.length &&
            memcmp(m->list[i].key->data.scalar.value, key->data.scalar.value, key->data.scalar.length) == 0)
            return true;
    return false;
}

static bool is_merge(const yaml_node_t *key) {
    return key->type == YAML_SCALAR_NODE && key->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           strcmp((const char *)key->data.scalar.value, "<<") == 0;
}

static int add_merged(struct walk *w, int index, int depth, struct members *m);

/* Adds the pairs of a mapping, and then what its merge keys name: a key that is there already wins. Pairs of
 * the mapping itself are all added, so that ot_tree_take_key sees one that is given twice. */
static int add_pairs(struct walk *w, const yaml_node_t *mapping, int depth, struct members *m) {
    for (int merges = 0; merges < 2; merges++)
        for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
             pair < mapping->data.mapping.pairs.top; pair++) {
            const yaml_node_t *key = yaml_document_get_node(w->document, pair->key);
            if (is_merge(key) != (merges == 1))
                continue;
            OT_TRY(ot_tree_count(w->tree, line_of(key)));
            if (merges == 1) {
                OT_TRY(add_merged(w, pair->value, depth, m));
                continue;
            }
            if (key->type != YAML_SCALAR_NODE)
                return ot_tree_fail(w->tree, line_of(key), "a key must be a text");
            if (depth > 0 && has_key(m, key))
                continue;
            if (m->n == OT_TREE_MAX_KEYS + 1)
                return ot_tree_fail(w->tree, line_of(key), "an object with more than 1,000 keys");
            OT_TRY(ot_grow(&m->list, &m->capacity, m->n + 1, sizeof *m->list, "keys"));
            m->list[m->n++] = (struct member){key, pair->value};
        }
    return 0;
}

/* The value of a merge key: a mapping, or a list of mappings, of which the first ones win. */
static int add_merged(struct walk *w, int index, int depth, struct members *m) {
    const yaml_node_t *node = yaml_document_get_node(w->document, index);
    OT_TRY(ot_tree_count(w->tree, line_of(node)));
    if (depth == OT_TREE_MAX_DEPTH)
        return ot_tree_fail(w->tree, line_of(node), "merge keys are nested more than 60 levels deep");
    if (node->type == YAML_MAPPING_NODE)
        return add_pairs(w, node, depth + 1, m);
    if (node->type != YAML_SEQUENCE_NODE)
        return ot_tree_fail(w->tree, line_of(node),
                            "a merge key (<<) needs a mapping, or a list of mappings");
    for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
         item++)
        OT_TRY(add_merged(w, *item, depth + 1, m));
    return 0;
}

static int put_mapping(struct walk *w, const char *key, const yaml_node_t *node) {
    struct members m = {0};
    int rc = ot_tree_begin(w->tree, line_of(node), key, true);
    if (rc == 0)
        rc = add_pairs(w, node, 0, &m);
    for (size_t i = 0; rc == 0 && i < m.n; i++) {
        const char *name;
        rc = ot_tree_take_key(w->tree, line_of(m.list[i].key), (const char *)m.list[i].key->data.scalar.value,
                              m.list[i].key->data.scalar.length, &name);
        if (rc == 0)
            rc = put_node(w, name, m.list[i].value);
    }
    free(m.list);
    OT_TRY(rc);
    ot_tree_end(w->tree, true);
    return 0;
}

static int put_sequence(struct walk *w, const char *key, const yaml_node_t *node) {
    OT_TRY(ot_tree_begin(w->tree, line_of(node), key, false));
    for (const yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top;
         item++)
        OT_TRY(put_node(w, NULL, *item));
    ot_tree_end(w->tree, false);
    return 0;
}

/* NOLINTNEXTLINE(misc-no-recursion): at most OT_TREE_MAX_DEPTH deep, also where an alias contains itself */
static int put_node(struct walk *w, const char *key, int index) {
    const yaml_node_t *node = yaml_document_get_node(w->document, index);
    bool is_scalar = node->type == YAML_SCALAR_NODE;
    const char *own = node->type == YAML_MAPPING_NODE ? YAML_MAP_TAG : YAML_SEQ_TAG;
    if (!is_scalar && strcmp((const char *)node->tag, own) != 0)
        return ot_fail(OT_E_INPUT, "%s:%zu: the tag %.100s is not supported; a settings file needs none",
                       w->tree->where, line_of(node), (const char *)node->tag);
    return is_scalar                         ? put_scalar(w, key, node)
           : node->type == YAML_MAPPING_NODE ? put_mapping(w, key, node)
                                             : put_sequence(w, key, node);
}

/* ---- documents ---- */

static int load(yaml_parser_t *parser, const char *where, yaml_document_t *document) {
    if (yaml_parser_load(parser, document))
        return 0;
    if (parser->error == YAML_MEMORY_ERROR)
        return ot_fail(OT_E_BUDGET, "%s: no memory to parse it", where);
    if (parser->error == YAML_READER_ERROR)
        return ot_fail(OT_E_INPUT, "%s: byte %zu: not valid YAML: %s", where, parser->problem_offset,
                       parser->problem);
    return ot_fail(OT_E_INPUT, "%s:%zu: not valid YAML: %s%s%s", where, parser->problem_mark.line + 1,
                   parser->problem ? parser->problem : "?", parser->context ? " " : "",
                   parser->context ? parser->context : "");
}

static int parse(yaml_parser_t *parser, struct ot_tree *tree, struct ot_json **out) {
    yaml_document_t document, next;
    OT_TRY(load(parser, tree->where, &document));
    struct walk w = {&document, tree};
    int rc = yaml_document_get_root_node(&document) ? put_node(&w, NULL, 1) : ot_tree_put_null(tree, 1, NULL);
    yaml_document_delete(&document);
    OT_TRY(rc);
    OT_TRY(load(parser, tree->where, &next));
    const yaml_node_t *second = yaml_document_get_root_node(&next);
    if (second)
        rc = ot_tree_fail(tree, line_of(second), "a second document begins; one file is one document");
    yaml_document_delete(&next);
    return rc < 0 ? rc : ot_tree_finish(tree, out);
}

/* libyaml takes a time that grows with the square of open brackets, anchors and directives. */
static int check_marks(const struct ot_tree *tree, const char *text, size_t bytes) {
    enum { MOST_MARKS = 4096 };
    int marks = 0;
    for (size_t i = 0; i < bytes; i++)
        marks += text[i] && strchr("[{&%", text[i]) != NULL;
    return marks <= MOST_MARKS ? 0 : ot_tree_fail(tree, 1, "more than 4,096 of the characters [ { & %");
}

int ot_yaml_parse(const char *text, size_t bytes, const char *where, struct ot_json **out) {
    yaml_parser_t parser;
    struct ot_tree tree;
    *out = NULL;
    int rc = ot_tree_open(where, &tree);
    if (rc == 0)
        rc = check_marks(&tree, text, bytes);
    if (rc == 0 && !yaml_parser_initialize(&parser)) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory to parse it", where);
    } else if (rc == 0) {
        yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
        rc = parse(&parser, &tree, out);
        yaml_parser_delete(&parser);
    }
    ot_tree_close(&tree);
    return rc;
}
