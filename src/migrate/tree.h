/* Builds the tree of a settings file, within limits: a small file can stand for a large tree, because aliases
 * of YAML repeat what they name. The parsers say what they find in the order of the file; ot_tree_finish
 * makes the tree. */
#ifndef OT_MIGRATE_TREE_H
#define OT_MIGRATE_TREE_H

#include "src/base/json.h"
#include "src/base/memory.h"

enum {
    OT_TREE_MAX_DEPTH = 60,
    OT_TREE_MAX_NODES = 100000,
    OT_TREE_MAX_KEYS = 1000, /* of one object */
    OT_TREE_MAX_BYTES = 16 << 20
};

struct ot_tree {
    const char *where; /* of errors */
    struct ot_json_writer w;
    struct ot_arena *arena;
    const char **keys; /* of all objects that are open, innermost last */
    size_t n_keys, capacity, n_nodes;
    size_t first_key[OT_TREE_MAX_DEPTH + 1]; /* by depth */
    int depth;
};

int ot_tree_open(const char *where, struct ot_tree *out);
void ot_tree_close(struct ot_tree *tree); /* also after an error of ot_tree_open */

/* Each call returns an error for line `line` of the file where a limit is passed. key: NULL in arrays and at
 * the root. */
int ot_tree_fail(const struct ot_tree *tree, size_t line, const char *what);
int ot_tree_count(struct ot_tree *tree, size_t line);
/* Takes a key of the innermost object. Errors: it has a NUL in it, or is there already. */
int ot_tree_take_key(struct ot_tree *tree, size_t line, const char *text, size_t bytes, const char **key);
int ot_tree_begin(struct ot_tree *tree, size_t line, const char *key, bool is_object);
void ot_tree_end(struct ot_tree *tree, bool is_object);
int ot_tree_put_text(struct ot_tree *tree, size_t line, const char *key, const char *text, size_t bytes);
int ot_tree_put_null(struct ot_tree *tree, size_t line, const char *key);
int ot_tree_put_bool(struct ot_tree *tree, size_t line, const char *key, bool value);
/* A decimal number as strtod reads it, without a '.' or an exponent if is_int. */
int ot_tree_put_number(struct ot_tree *tree, size_t line, const char *key, const char *digits, bool is_int);
int ot_tree_finish(struct ot_tree *tree, struct ot_json **out);

#endif
