#include "src/migrate/tree.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

int ot_tree_open(const char *where, struct ot_tree *out) {
    *out = (struct ot_tree){.where = where, .w = {.indent = -1}};
    return ot_arena_open(&out->arena);
}

void ot_tree_close(struct ot_tree *tree) {
    free(tree->w.out.text);
    free(tree->keys);
    ot_arena_close(tree->arena);
}

int ot_tree_fail(const struct ot_tree *tree, size_t line, const char *what) {
    return ot_fail(OT_E_INPUT, "%s:%zu: %s", tree->where, line, what);
}

int ot_tree_count(struct ot_tree *tree, size_t line) {
    if (tree->w.out.failed)
        return ot_fail(OT_E_BUDGET, "%s: no memory to parse it", tree->where);
    if (++tree->n_nodes > OT_TREE_MAX_NODES || tree->w.out.bytes > OT_TREE_MAX_BYTES)
        return ot_tree_fail(tree, line, "the file stands for more than 100,000 values, or 16 MiB of them");
    return 0;
}

int ot_tree_take_key(struct ot_tree *tree, size_t line, const char *text, size_t bytes, const char **key) {
    size_t first = tree->first_key[tree->depth];
    if (bytes > 0 && memchr(text, '\0', bytes))
        return ot_tree_fail(tree, line, "a key with a NUL in it");
    for (size_t i = first; i < tree->n_keys; i++)
        if (strlen(tree->keys[i]) == bytes && memcmp(tree->keys[i], text, bytes) == 0)
            return ot_fail(OT_E_INPUT, "%s:%zu: the key %.200s is given twice; remove one of them",
                           tree->where, line, tree->keys[i]);
    if (tree->n_keys - first == OT_TREE_MAX_KEYS)
        return ot_tree_fail(tree, line, "an object with more than 1,000 keys");
    OT_TRY(ot_grow(&tree->keys, &tree->capacity, tree->n_keys + 1, sizeof *tree->keys, "keys"));
    *key = ot_arena_strdup(tree->arena, text, bytes);
    if (!*key)
        return -OT_E_BUDGET;
    tree->keys[tree->n_keys++] = *key;
    return 0;
}

int ot_tree_begin(struct ot_tree *tree, size_t line, const char *key, bool is_object) {
    OT_TRY(ot_tree_count(tree, line));
    if (tree->depth == OT_TREE_MAX_DEPTH)
        return ot_tree_fail(tree, line, "values are nested more than 60 levels deep");
    tree->first_key[++tree->depth] = tree->n_keys;
    if (is_object)
        ot_json_begin_object(&tree->w, key);
    else
        ot_json_begin_array(&tree->w, key);
    return 0;
}

void ot_tree_end(struct ot_tree *tree, bool is_object) {
    tree->n_keys = tree->first_key[tree->depth--];
    if (is_object)
        ot_json_end_object(&tree->w);
    else
        ot_json_end_array(&tree->w);
}

int ot_tree_put_text(struct ot_tree *tree, size_t line, const char *key, const char *text, size_t bytes) {
    ot_json_put_string(&tree->w, key, text, bytes);
    return ot_tree_count(tree, line);
}

int ot_tree_put_null(struct ot_tree *tree, size_t line, const char *key) {
    ot_json_put_null(&tree->w, key);
    return ot_tree_count(tree, line);
}

int ot_tree_put_bool(struct ot_tree *tree, size_t line, const char *key, bool value) {
    ot_json_put_bool(&tree->w, key, value);
    return ot_tree_count(tree, line);
}

int ot_tree_put_number(struct ot_tree *tree, size_t line, const char *key, const char *digits, bool is_int) {
    double real = strtod(digits, NULL);
    errno = 0;
    long long integer = is_int ? strtoll(digits, NULL, 10) : 0;
    if (is_int && errno == 0)
        ot_json_put_int(&tree->w, key, integer);
    else if (isfinite(real))
        ot_json_put_exact(&tree->w, key, real);
    else
        return ot_tree_fail(tree, line, "a number that no double holds");
    return ot_tree_count(tree, line);
}

int ot_tree_finish(struct ot_tree *tree, struct ot_json **out) {
    char *text;
    size_t bytes;
    OT_TRY(ot_json_writer_take(&tree->w, &text, &bytes));
    int rc = ot_json_parse(text, bytes, tree->where, out);
    free(text);
    return rc;
}
