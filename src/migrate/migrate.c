#include "src/migrate/migrate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/base/utf8.h"
#include "src/migrate/migrate_state.h"
#include "src/migrate/settings_file.h"
#include "src/tokenizer/charsmap.h"

/* ---- a file's keys ---- */

/* A key that the map lacks. Of DeepSpeed, the blocks are checked by DeepSpeed itself, and other keys are not
 * looked at. */
static int add_unknown(struct ot_migrating *m, const struct ot_migrate_key *key) {
    bool is_inside = strchr(key->name, '.') != NULL;
    if (m->program == OT_PROGRAM_DEEPSPEED)
        return ot_migrate_add_row(m, key, is_inside ? OT_MIGRATE_REFUSED : OT_MIGRATE_IGNORED,
                                  is_inside ? "DeepSpeed has no such key here; remove it"
                                            : "DeepSpeed has no such key");
    return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED,
                              "this key is not known here; remove it, if it changes no result");
}

static int walk(struct ot_migrating *m, const struct ot_json *object, const char *name, const char *path);

/* The objects of a list, whose keys are "datasets[].path" in the map. */
static int walk_list(struct ot_migrating *m, const struct ot_json *list, const char *name, const char *path) {
    for (size_t i = 0; i < ot_json_length(list); i++) {
        const struct ot_json *item = ot_json_at(list, i);
        struct ot_migrate_key key = {.name = ot_migrate_format(m, "%s[%zu]", name, i), .value = item};
        const char *inside = ot_migrate_format(m, "%s[]", path);
        if (!key.name || !inside)
            return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
        OT_TRY(ot_json_type(item) == OT_JSON_OBJECT ? walk(m, item, key.name, inside) : add_unknown(m, &key));
    }
    return 0;
}

static int walk_key(struct ot_migrating *m, struct ot_migrate_key *key, const char *path) {
    enum ot_json_type type = ot_json_type(key->value);
    key->row = ot_map_find(&m->map, path);
    if (key->row)
        return ot_migrate_apply(m, key);
    if (type == OT_JSON_OBJECT && ot_map_has_inside(&m->map, path, false))
        return walk(m, key->value, key->name, path);
    if (type == OT_JSON_ARRAY && ot_map_has_inside(&m->map, path, true))
        return walk_list(m, key->value, key->name, path);
    bool is_block = ot_map_has_inside(&m->map, path, false) || ot_map_has_inside(&m->map, path, true);
    if (type == OT_JSON_NULL && (is_block || m->program != OT_PROGRAM_DEEPSPEED))
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED, "null is the same as no key");
    if (is_block)
        return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED, "it must be an object, or a list of objects");
    return add_unknown(m, key);
}

/* The name of a key as it is printed: on one line. */
static const char *name_key(struct ot_migrating *m, const char *name, const char *dot, const char *member) {
    char *text = ot_arena_alloc(m->out->arena, strlen(name) + strlen(member) + 2, 1);
    if (!text)
        return NULL;
    stpcpy(stpcpy(stpcpy(text, name), dot), member);
    ot_utf8_keep_line(text);
    return text;
}

/* NOLINTNEXTLINE(misc-no-recursion): as deep as the file, at most OT_TREE_MAX_DEPTH */
static int walk(struct ot_migrating *m, const struct ot_json *object, const char *name, const char *path) {
    void *cursor = NULL;
    const char *member;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &member, &value)) {
        const char *dot = *name ? "." : "";
        struct ot_migrate_key key = {.name = name_key(m, name, dot, member), .value = value};
        const char *full = ot_migrate_format(m, "%s%s%s", path, dot, member);
        if (!key.name || !full)
            return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
        bool is_path = strpbrk(member, ".[") != NULL; /* a name, not the path of a key */
        OT_TRY(is_path ? add_unknown(m, &key) : walk_key(m, &key, full));
    }
    return 0;
}

/* True if the file has the object that the key belongs to: "optimizer" of optimizer.params.lr. */
static bool has_object_of(struct ot_migrating *m, const char *key) {
    char object[64];
    size_t n = strcspn(key, ".");
    if (!key[n] || strchr(key, '['))
        return !strchr(key, '[');
    memcpy(object, key, n < sizeof object ? n : 0);
    object[n < sizeof object ? n : 0] = '\0';
    return ot_json_type(ot_json_get(m->tree, object)) == OT_JSON_OBJECT;
}

/* Keys that the file lacks, where the default of its program is not ours. */
static int add_defaults(struct ot_migrating *m) {
    for (size_t i = 0; i < m->map.n; i++) {
        const struct ot_map_row *row = &m->map.rows[i];
        char *name =
            row->fallback ? ot_arena_strdup(m->out->arena, row->keys, strcspn(row->keys, " ")) : NULL;
        bool is_shadowed = name && ot_map_find(&m->map, name) != row;
        if (!name || is_shadowed || !has_object_of(m, name) || ot_migrate_given(m, name))
            continue;
        struct ot_migrate_key key = {name, row, ot_migrate_value(m, name), true};
        size_t before = m->out->n_rows;
        OT_TRY(ot_migrate_apply(m, &key));
        bool says_nothing =
            m->out->n_rows > before && m->out->rows[m->out->n_rows - 1].verdict == OT_MIGRATE_IGNORED;
        m->out->n_rows -= says_nothing;
    }
    return 0;
}

/* ---- files ---- */

/* A ds_config in base64 instead of a path, as DeepSpeed takes it: with the alphabet for URLs. */
static int read_base64(const char *text, struct ot_json **out) {
    char *copy = ot_string_copy(text, strlen(text)), *bytes = NULL;
    size_t n;
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for --deepspeed");
    for (char *c = copy; *c; c++)
        *c = *c == '-' ? '+' : *c == '_' ? '/' : *c;
    int rc = ot_base64_decode(copy, strlen(copy), "--deepspeed", &bytes, &n);
    free(copy);
    if (rc < 0)
        return ot_fail(OT_E_INPUT, "--deepspeed %.80s: there is no such file, and it is no base64", text);
    rc = ot_hjson_parse(bytes, n, "--deepspeed, in base64", out);
    free(bytes);
    if (rc == 0 && ot_json_type(*out) != OT_JSON_OBJECT)
        rc = ot_fail(OT_E_INPUT, "--deepspeed, in base64: must be an object of settings");
    return rc;
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Adds the rows of one file. tree: NULL: reads the file. */
static int take_file(struct ot_migrating *m, enum ot_program program, const char *path,
                     const struct ot_json *tree) {
    struct ot_json *read = NULL;
    bool is_base64 =
        program == OT_PROGRAM_DEEPSPEED && !tree && access(path, F_OK) != 0 && !strchr(path, '.');
    if (!tree) {
        OT_TRY(is_base64 ? read_base64(path, &read) : ot_settings_read(path, &read));
        OT_TRY(ot_migrate_own(m, read));
    }
    m->program = program;
    m->path = path;
    m->file = ot_migrate_format(m, "%s", is_base64 ? "--deepspeed" : name_of(path));
    m->tree = tree ? tree : read;
    free(m->map.rows);
    OT_TRY(ot_map_read(program, m->out->arena, &m->map));
    if (!m->file)
        return ot_fail(OT_E_BUDGET, "no memory for the name of a file");
    if (program != OT_PROGRAM_DEEPSPEED)
        m->trainer = m->file;
    OT_TRY(walk(m, m->tree, "", ""));
    OT_TRY(add_defaults(m));
    return ot_migrate_find_step(m);
}

static int take_files(struct ot_migrating *m) {
    const char *const *files = m->request->files, *path = NULL;
    for (int p = 0; p < OT_PROGRAM_COUNT; p++)
        if (p != OT_PROGRAM_DEEPSPEED && files[p]) {
            path = files[p];
            OT_TRY(take_file(m, (enum ot_program)p, path, NULL));
        }
    if (m->deepspeed_tree)
        OT_TRY(take_file(m, OT_PROGRAM_DEEPSPEED, path, m->deepspeed_tree));
    const char *deepspeed = files[OT_PROGRAM_DEEPSPEED] ? files[OT_PROGRAM_DEEPSPEED] : m->deepspeed_path;
    if (deepspeed)
        OT_TRY(take_file(m, OT_PROGRAM_DEEPSPEED, deepspeed, NULL));
    OT_TRY(ot_migrate_join_parts(m));
    return ot_migrate_finish_step(m);
}

int ot_migrate(const struct ot_migrate_request *request, struct ot_migration *out) {
    struct ot_migrating m = {.request = request, .out = out};
    *out = (struct ot_migration){0};
    int rc = ot_arena_open(&out->arena);
    if (rc == 0)
        rc = take_files(&m);
    for (size_t i = 0; i < m.n_owned; i++)
        ot_json_free(m.owned[i]);
    free(m.owned);
    free(m.parts);
    free(m.map.rows);
    return rc;
}

void ot_migration_close(struct ot_migration *migration) {
    ot_arena_close(migration->arena);
    free(migration->rows);
    free(migration->settings);
    *migration = (struct ot_migration){0};
}

/* ---- which program a file is for ---- */

/* Keys that the files of one program have, and those of the others do not. */
static const char *const marks[OT_PROGRAM_COUNT] = {
    [OT_PROGRAM_DEEPSPEED] =
        "zero_optimization train_micro_batch_size_per_gpu train_batch_size aio scheduler "
        "gradient_clipping",
    [OT_PROGRAM_LLAMAFACTORY] = "finetuning_type stage cutoff_len dataset_dir lora_rank val_size template "
                                "quantization_bit",
    [OT_PROGRAM_AXOLOTL] = "base_model datasets sequence_len sample_packing micro_batch_size adapter "
                           "val_set_size num_epochs",
    [OT_PROGRAM_TRAINER] = "per_device_train_batch_size learning_rate num_train_epochs output_dir max_steps "
                           "lr_scheduler_type max_length bf16 fp16",
};

int ot_migrate_guess(const char *path, enum ot_program *out) {
    static const enum ot_program order[] = {OT_PROGRAM_DEEPSPEED, OT_PROGRAM_AXOLOTL, OT_PROGRAM_LLAMAFACTORY,
                                            OT_PROGRAM_TRAINER};
    struct ot_json *tree;
    *out = OT_PROGRAM_COUNT;
    OT_TRY(ot_settings_read(path, &tree));
    for (size_t i = 0; i < sizeof order / sizeof *order && *out == OT_PROGRAM_COUNT; i++) {
        void *cursor = NULL;
        const char *key;
        struct ot_json *value;
        while (ot_json_next(tree, &cursor, &key, &value))
            if (ot_words_have(marks[order[i]], key))
                *out = order[i];
    }
    /* bf16 and fp16 are objects in a ds_config */
    if (*out == OT_PROGRAM_TRAINER && (ot_json_type(ot_json_get(tree, "bf16")) == OT_JSON_OBJECT ||
                                       ot_json_type(ot_json_get(tree, "fp16")) == OT_JSON_OBJECT))
        *out = OT_PROGRAM_DEEPSPEED;
    ot_json_free(tree);
    return 0;
}

/* ---- what rows say ---- */

const char *ot_migrate_row_text(const struct ot_migration *migration, const struct ot_migrate_row *row) {
    static const char *const verdicts[] = {"used", "ignored", "refused"};
    char *text = NULL;
    const char *kept = NULL;
    int rc;
    if (row->overruled)
        return row->overruled;
    if (row->verdict == OT_MIGRATE_USED && row->option && row->value)
        rc = ot_string_format(&text, "used as --%s %s%s%s", row->option, row->value, *row->text ? "; " : "",
                              row->text);
    else
        rc = ot_string_format(&text, "%s: %s", row->differs ? "differs" : verdicts[row->verdict], row->text);
    if (rc == 0)
        ot_utf8_keep_line(text);
    if (rc == 0)
        kept = ot_arena_strdup(migration->arena, text, strlen(text));
    free(text);
    return kept ? kept : "";
}

size_t ot_migrate_count(const struct ot_migration *migration, enum ot_migrate_verdict verdict) {
    size_t n = 0;
    for (size_t i = 0; i < migration->n_rows; i++)
        n += migration->rows[i].verdict == verdict;
    return n;
}
