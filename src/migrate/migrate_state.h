/* Private header: a migration while it is made. apply.c turns keys into rows and settings, special.c what
 * several keys say together; migrate.c reads the files and walks over their keys. */
#ifndef OT_MIGRATE_MIGRATE_STATE_H
#define OT_MIGRATE_MIGRATE_STATE_H

#include "src/base/json.h"
#include "src/migrate/map.h"
#include "src/migrate/migrate.h"

/* NAME=VALUE of an option that has several parts. */
struct ot_migrate_part {
    const char *option, *name, *value;
    size_t row;
};

struct ot_migrating {
    const struct ot_migrate_request *request;
    struct ot_migration *out;

    /* the file at hand */
    enum ot_program program;
    const char *path, *file; /* `file` is its name in rows */
    const struct ot_json *tree;
    struct ot_map map;

    const char *trainer; /* the name of the file with the Trainer's values; NULL: none */
    /* the ds_config that a file names, or has in it; NULL: none */
    const char *deepspeed_path;
    const struct ot_json *deepspeed_tree;
    struct ot_migrate_step {
        int64_t total, micro,
            times;     /* sequences of a step; of a GPU at once; how often. 0: no file says it */
        int64_t ranks; /* GPUs whose sequences `total` counts; 0: a file says `total` itself */
    } step;

    struct ot_migrate_part *parts;
    size_t n_parts, part_capacity;
    struct ot_json **owned; /* trees that rows and values borrow from */
    size_t n_owned, owned_capacity;
};

/* ---- apply.c ---- */

/* A key of the file as it is printed ("datasets[0].path"), its row, and its value. */
struct ot_migrate_key {
    const char *name;
    const struct ot_map_row *row;
    const struct ot_json *value;
    bool is_default;
};
int ot_migrate_apply(struct ot_migrating *m, const struct ot_migrate_key *key);
/* Adds a row; text: borrowed for the life of the migration. */
int ot_migrate_add_row(struct ot_migrating *m, const struct ot_migrate_key *key,
                       enum ot_migrate_verdict verdict, const char *text);
/* Makes the last row one that sets an option. Settings of one option that differ are a contradiction, and the
 * row becomes a refusal; a default gives way instead. `repeats`: the option takes several values. */
int ot_migrate_use(struct ot_migrating *m, const char *option, const char *value, bool repeats);
int ot_migrate_use_part(struct ot_migrating *m, const char *option, const char *name, const char *value);
/* Joins the parts of all options. */
int ot_migrate_join_parts(struct ot_migrating *m);

/* The value of a key by its path, under any of its names; NULL: the file lacks it, or it is null. */
const struct ot_json *ot_migrate_given(struct ot_migrating *m, const char *key);
/* The same, or the key's default; NULL: it has none. */
const struct ot_json *ot_migrate_value(struct ot_migrating *m, const char *key);
/* A value as text, in memory of the migration; lists with commas. NULL: an object, a list of such, or
 * a text with control characters. */
const char *ot_migrate_text(struct ot_migrating *m, const struct ot_json *value);
/* Reads a number, also one that is written as a text. */
bool ot_migrate_number(const struct ot_json *value, double *out);
/* Formats into memory of the migration; NULL: no memory. */
const char *ot_migrate_format(struct ot_migrating *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Keeps a tree until the migration is made. */
int ot_migrate_own(struct ot_migrating *m, struct ot_json *tree);

/* ---- special.c ---- */

/* Calls a function of a map; it adds the row of the key. */
int ot_migrate_call(struct ot_migrating *m, const char *function, const struct ot_migrate_key *key);
bool ot_migrate_has_function(const char *function);
/* After the keys of a file: how many sequences its step has. */
int ot_migrate_find_step(struct ot_migrating *m);
/* After all files: the tokens of a step. */
int ot_migrate_finish_step(struct ot_migrating *m);

#endif
