/* Finds settings that several keys, or other files, say together: the size of a step, the datasets. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/migrate/migrate_state.h"

static const double most_step_tokens = 1e9; /* of --tokens-per-step */
enum { DEFAULT_SEQ_LEN = 2048, DATASETS_MAX_BYTES = 16 << 20 };

/* ---- the size of a step ---- */

/* The names of the sizes: all sequences of a step; those of a GPU at once; how often; the number of GPUs. */
static const struct {
    const char *total, *micro, *times, *ranks;
} batch_keys[OT_PROGRAM_COUNT] = {
    [OT_PROGRAM_DEEPSPEED] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                              "gradient_accumulation_steps", NULL},
    [OT_PROGRAM_TRAINER] = {NULL, "per_device_train_batch_size", "gradient_accumulation_steps", "n_gpu"},
    [OT_PROGRAM_LLAMAFACTORY] = {NULL, "per_device_train_batch_size", "gradient_accumulation_steps",
                                 "ray_num_workers"},
    [OT_PROGRAM_AXOLOTL] = {"batch_size", "micro_batch_size", "gradient_accumulation_steps", "world_size"},
};

/* Each of these keys has a row, whose value ot_migrate_finish_step finds. */
static int call_batch(struct ot_migrating *m, const struct ot_migrate_key *key) {
    double number;
    const char *text = ot_json_string(key->value, NULL);
    bool is_auto = m->program == OT_PROGRAM_DEEPSPEED && text && strcmp(text, "auto") == 0;
    if (is_auto)
        return ot_migrate_add_row(
            m, key, m->trainer ? OT_MIGRATE_USED : OT_MIGRATE_IGNORED,
            m->trainer ? ot_migrate_format(m, "auto: --tokens-per-step, as %s says", m->trainer)
                       : "auto: the default of --tokens-per-step");
    if (!ot_migrate_number(key->value, &number) || number < 1 || number > most_step_tokens ||
        number != (double)(int64_t)number)
        return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED, "it must be a whole number from 1 on");
    OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, ""));
    m->out->rows[m->out->n_rows - 1].option = "tokens-per-step";
    return 0;
}

static int64_t read_size(struct ot_migrating *m, const char *key) {
    double number;
    bool is_size = key && ot_migrate_number(ot_migrate_value(m, key), &number) && number >= 1 &&
                   number <= most_step_tokens;
    return is_size ? (int64_t)number : 0;
}

/* The GPUs whose sequences are in a step: those of the run, else those that the file tells. */
static int64_t find_ranks(struct ot_migrating *m) {
    int64_t told = read_size(m, batch_keys[m->program].ranks);
    return m->request->ranks > 0 ? m->request->ranks : ot_max(told, 1);
}

static int call_ranks(struct ot_migrating *m, const struct ot_migrate_key *key) {
    bool counts = m->request->ranks == 0 && read_size(m, batch_keys[m->program].ranks) > 0;
    return ot_migrate_add_row(m, key, counts ? OT_MIGRATE_USED : OT_MIGRATE_IGNORED,
                              counts ? "the tokens of a step are those of so many GPUs; --gpus starts them"
                                     : "--gpus or the launcher says how many GPUs there are");
}

/* The rows of the step that this file has become refusals. */
static int refuse_step(struct ot_migrating *m, const char *why) {
    if (!why)
        return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
    for (size_t i = 0; i < m->out->n_rows; i++) {
        struct ot_migrate_row *row = &m->out->rows[i];
        if (row->file == m->file && row->option && strcmp(row->option, "tokens-per-step") == 0) {
            row->verdict = OT_MIGRATE_REFUSED;
            row->text = why;
        }
    }
    return 0;
}

/* Beside a file of the Trainer, each size of a ds_config must be the Trainer's, as the Trainer wants it. If
 * nobody says how many GPUs there are, train_batch_size of the ds_config does. */
static int compare_step(struct ot_migrating *m, const struct ot_migrate_step *step) {
    struct ot_migrate_step *of = &m->step;
    int64_t of_gpu = of->micro * of->times;
    if (m->request->ranks == 0 && of->ranks == 1 && step->total > 0 && step->total % of_gpu == 0) {
        of->total = step->total;
        of->ranks = step->total / of_gpu;
    }
    const int64_t ours[] = {step->total, step->micro, step->times};
    const int64_t theirs[] = {of->total, of->micro, of->times};
    const char *const names[] = {batch_keys[m->program].total, batch_keys[m->program].micro,
                                 batch_keys[m->program].times};
    for (size_t i = 0; i < 3; i++)
        if (ours[i] > 0 && ours[i] != theirs[i])
            return refuse_step(
                m, ot_migrate_format(m, "%s is %lld, and %lld in %s%s; set it to \"auto\", or remove it",
                                     names[i], (long long)ours[i], (long long)theirs[i], m->trainer,
                                     i == 0 ? ot_migrate_format(m, " with %lld GPU%s", (long long)of->ranks,
                                                                ot_plural(of->ranks))
                                            : ""));
    return 0;
}

int ot_migrate_find_step(struct ot_migrating *m) {
    int64_t ranks = find_ranks(m);
    struct ot_migrate_step step = {.total = read_size(m, batch_keys[m->program].total),
                                   .micro = read_size(m, batch_keys[m->program].micro),
                                   .times = read_size(m, batch_keys[m->program].times)};
    if (m->step.total > 0)
        return compare_step(m, &step);
    if (step.total > 0 && step.micro > 0 && step.times > 0 && step.total % (step.micro * step.times) != 0)
        return refuse_step(m, ot_migrate_format(m, "%lld is not %lld x %lld times a number of GPUs",
                                                (long long)step.total, (long long)step.micro,
                                                (long long)step.times));
    if (!step.total && !step.micro && step.times)
        return refuse_step(m, "DeepSpeed also needs train_batch_size or train_micro_batch_size_per_gpu");
    step.times = step.times ? step.times : 1;
    double total = (double)step.micro * (double)step.times * (double)ranks;
    if (!step.total && total > most_step_tokens)
        return refuse_step(m, "a step would have more than 1e9 sequences");
    step.ranks = step.total ? 0 : ranks;
    step.total = step.total ? step.total : (int64_t)total;
    m->step = step;
    return 0;
}

/* The length that the user or a file gives; else it becomes a setting, because the tokens of a step depend on
 * it. */
static int find_seq_len(struct ot_migrating *m, int64_t *out) {
    *out = m->request->seq_len;
    for (size_t i = 0; i < m->out->n_settings && !*out; i++)
        if (strcmp(m->out->settings[i].option, "seq-len") == 0)
            *out = strtoll(m->out->settings[i].value, NULL, 10);
    if (*out > 0)
        return 0;
    struct ot_migrate_key key = {.name = "(the length of a sequence)"};
    *out = DEFAULT_SEQ_LEN;
    OT_TRY(ot_migrate_add_row(m, &key, OT_MIGRATE_USED,
                              "no file says it; if you give another --seq-len, the tokens of a step follow"));
    return ot_migrate_use(m, "seq-len", ot_migrate_format(m, "%d", DEFAULT_SEQ_LEN), false);
}

int ot_migrate_finish_step(struct ot_migrating *m) {
    int64_t seq_len;
    struct ot_migration *out = m->out;
    if (m->step.total == 0)
        return 0;
    OT_TRY(find_seq_len(m, &seq_len));
    double tokens = (double)m->step.total * (double)seq_len;
    const char *value = ot_migrate_format(m, "%.0f", tokens);
    const char *gpus = m->step.ranks ? ot_migrate_format(m, ", with %lld GPU%s", (long long)m->step.ranks,
                                                         ot_plural(m->step.ranks))
                                     : ", whatever the number of GPUs";
    const char *text = ot_migrate_format(m, "%lld sequences of %lld%s", (long long)m->step.total,
                                         (long long)seq_len, gpus ? gpus : "");
    const struct ot_migrate_row *first = NULL;
    for (size_t i = 0; i < out->n_rows; i++) {
        struct ot_migrate_row *row = &out->rows[i];
        if (!row->option || strcmp(row->option, "tokens-per-step") != 0 || row->verdict != OT_MIGRATE_USED)
            continue;
        row->value = value;
        row->text = text;
        if (tokens > most_step_tokens) {
            row->verdict = OT_MIGRATE_REFUSED;
            row->text = "a step would have more than 1e9 tokens";
        }
        first = first ? first : row;
    }
    if (!first || tokens > most_step_tokens)
        return 0;
    OT_TRY(ot_grow(&out->settings, &out->setting_capacity, out->n_settings + 1, sizeof *out->settings,
                   "settings"));
    if (!value || !text)
        return ot_fail(OT_E_BUDGET, "no memory for the tokens of a step");
    out->settings[out->n_settings++] =
        (struct ot_migrate_setting){"tokens-per-step", value, first->file, first->key};
    return 0;
}

/* ---- small ones ---- */

static int call_betas(struct ot_migrating *m, const struct ot_migrate_key *key) {
    static const char *const names[] = {"beta1", "beta2"};
    const char *text = ot_json_string(key->value, NULL);
    double number;
    if (text && strcmp(text, "auto") == 0)
        return ot_migrate_add_row(
            m, key, m->trainer ? OT_MIGRATE_USED : OT_MIGRATE_IGNORED,
            m->trainer ? ot_migrate_format(m, "auto: --beta1 and --beta2, as %s says", m->trainer)
                       : "auto: the defaults of --beta1 and --beta2");
    if (ot_json_length(key->value) != 2)
        return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED, "it must be a list of two numbers");
    for (size_t i = 0; i < 2; i++) {
        const struct ot_json *item = ot_json_at(key->value, i);
        if (!ot_migrate_number(item, &number))
            return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED, "it must be a list of two numbers");
        OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, ""));
        OT_TRY(ot_migrate_use(m, names[i], ot_migrate_text(m, item), false));
    }
    return 0;
}

/* A path as the other program takes it, from the working directory; or beside the file at hand. NULL: neither
 * exists. */
static const char *find_path(struct ot_migrating *m, const char *path) {
    const char *slash = strrchr(m->path, '/'), *beside = NULL;
    if (access(path, F_OK) == 0)
        return ot_migrate_format(m, "%s", path);
    if (*path != '/' && slash)
        beside = ot_migrate_format(m, "%.*s/%s", (int)(slash - m->path), m->path, path);
    return beside && access(beside, F_OK) == 0 ? beside : NULL;
}

/* The key deepspeed: the path of a ds_config, or the config itself. */
static int call_deepspeed(struct ot_migrating *m, const struct ot_migrate_key *key) {
    const char *path = ot_json_string(key->value, NULL);
    if (m->request->files[OT_PROGRAM_DEEPSPEED])
        return ot_migrate_add_row(m, key, OT_MIGRATE_IGNORED, "--deepspeed names another file");
    if (ot_json_type(key->value) == OT_JSON_OBJECT) {
        m->deepspeed_tree = key->value;
        return ot_migrate_add_row(m, key, OT_MIGRATE_USED, "its keys follow");
    }
    m->deepspeed_path = path ? find_path(m, path) : NULL;
    return m->deepspeed_path
               ? ot_migrate_add_row(m, key, OT_MIGRATE_USED,
                                    ot_migrate_format(m, "its keys follow: %s", m->deepspeed_path))
               : ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED,
                                    "no such file; give it with --deepspeed, and remove the key");
}

/* ---- datasets of LLaMA-Factory ---- */

/* The name of a column that a row of dataset_info.json calls `theirs`, as rows here have it. */
static const struct {
    const char *key, *theirs, *ours; /* `theirs`: its default */
    bool of_turns;
} columns[] = {
    {"prompt", "instruction", "instruction", false},
    {"query", "input", "input", false},
    {"response", "output", "output", false},
    {"history", "history", "history", false},
    {"system", "system", "system", false},
    {"system", "system", "system", true},
    {"messages", "conversations", "conversations", true},
    {"tools", "tools", "tools", true},
    {"chosen", "chosen", "chosen", false},
    {"chosen", "chosen", "chosen", true},
    {"rejected", "rejected", "rejected", false},
    {"rejected", "rejected", "rejected", true},
    {"kto_tag", "label", "label", false},
    {"kto_tag", "label", "label", true},
};

/* Why rows of an entry of dataset_info.json cannot be read here; NULL: they can. */
static const char *fault_of_entry(const struct ot_json *entry) {
    static const char *const remote[] = {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url",
                                         "cloud_file_name"};
    static const char *const media[] = {"images", "videos", "audios"};
    const struct ot_json *names = ot_json_get(entry, "columns");
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        if (ot_json_get(entry, remote[i]) && !ot_json_get(entry, "file_name"))
            return "it is on a hub; download its file, and give it as --data FILE";
    for (size_t i = 0; i < sizeof media / sizeof *media; i++)
        if (ot_json_get(names, media[i]))
            return "its rows have images, sound or films, and models are trained on text here";
    if (ot_json_get(entry, "num_samples") || ot_json_get(entry, "ranking_file"))
        return "num_samples is not known here; use --data and --max-rows";
    if (ot_json_get(entry, "file_name"))
        return NULL;
    return "it has no file_name";
}

/* Adds the parts of --columns for names that rows here do not have by themselves. */
static int name_columns(struct ot_migrating *m, const struct ot_migrate_key *key,
                        const struct ot_json *entry) {
    const char *formatting = ot_json_string(ot_json_get(entry, "formatting"), NULL);
    bool of_turns = formatting && strcmp(formatting, "sharegpt") == 0;
    const struct ot_json *names = ot_json_get(entry, "columns");
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const char *theirs = ot_json_string(ot_json_get(names, columns[i].key), NULL);
        bool is_known = !theirs || strcmp(theirs, columns[i].ours) == 0 ||
                        (strcmp(columns[i].ours, "conversations") == 0 && strcmp(theirs, "messages") == 0);
        if (columns[i].of_turns != of_turns || is_known)
            continue;
        OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, ""));
        OT_TRY(ot_migrate_use_part(m, "columns", columns[i].ours, ot_migrate_format(m, "%s", theirs)));
    }
    return 0;
}

/* The folder with dataset_info.json; NULL: there is none. */
static const char *find_datasets(struct ot_migrating *m) {
    const char *named = ot_migrate_text(m, ot_migrate_value(m, "dataset_dir"));
    const char *slash = strrchr(m->path, '/');
    const char *folders[] = {named ? find_path(m, named) : NULL,
                             slash ? ot_migrate_format(m, "%.*s", (int)(slash - m->path), m->path) : "."};
    for (size_t i = 0; i < 2; i++) {
        const char *path = folders[i] ? ot_migrate_format(m, "%s/dataset_info.json", folders[i]) : NULL;
        if (path && access(path, F_OK) == 0)
            return folders[i];
    }
    return NULL;
}

static int use_dataset(struct ot_migrating *m, const struct ot_migrate_key *key, const char *option,
                       const char *folder, const struct ot_json *entry) {
    const char *name = ot_json_string(ot_json_get(entry, "file_name"), NULL);
    const char *path = strcmp(folder, ".") == 0 ? ot_migrate_format(m, "%s", name)
                                                : ot_migrate_format(m, "%s/%s", folder, name);
    OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, ""));
    OT_TRY(ot_migrate_use(m, option, path, strcmp(option, "data") == 0));
    return name_columns(m, key, entry);
}

/* "identity,alpaca": names of dataset_info.json. */
static int call_datasets(struct ot_migrating *m, const struct ot_migrate_key *key, const char *option) {
    const char *names = ot_migrate_text(m, key->value), *folder = find_datasets(m);
    struct ot_json *info = NULL;
    if (!names || !folder)
        return ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED,
                                  "there is no dataset_info.json in dataset_dir; give the file of the rows");
    const char *path = ot_migrate_format(m, "%s/dataset_info.json", folder);
    if (!path)
        return ot_fail(OT_E_BUDGET, "no memory for what %s says", m->file);
    OT_TRY(ot_json_read_file(path, DATASETS_MAX_BYTES, &info));
    OT_TRY(ot_migrate_own(m, info));
    for (size_t n; *names; names += n + (names[n] == ',')) {
        names += strspn(names, " ");
        n = strcspn(names, ",");
        const char *name = ot_migrate_format(m, "%.*s", (int)strcspn(names, " ,"), names);
        const struct ot_json *entry = name ? ot_json_get(info, name) : NULL;
        const char *fault = entry ? fault_of_entry(entry) : "dataset_info.json does not have it";
        if (fault) {
            OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED,
                                      ot_migrate_format(m, "%s: %s", name ? name : "", fault)));
            m->out->rows[m->out->n_rows - 1].option = option;
        } else {
            OT_TRY(use_dataset(m, key, option, folder, entry));
        }
    }
    return 0;
}

static int call_datasets_train(struct ot_migrating *m, const struct ot_migrate_key *key) {
    return call_datasets(m, key, "data");
}

static int call_datasets_eval(struct ot_migrating *m, const struct ot_migrate_key *key) {
    return call_datasets(m, key, "eval-data");
}

/* ---- datasets of axolotl ---- */

/* A file or a directory, or the name of a dataset on the hub: what exists here, or ends as a file of rows
 * does. */
static int use_path(struct ot_migrating *m, const struct ot_migrate_key *key, const char *path,
                    const char *option) {
    static const char ends[] = "json jsonl parquet csv tsv txt gz zst";
    const char *dot = path ? strrchr(path, '.') : NULL, *found = path ? find_path(m, path) : NULL;
    if (path && ot_words_have("json parquet csv text", path))
        return ot_migrate_add_row(m, key, OT_MIGRATE_USED, "data_files says where the rows are");
    if (found || (dot && ot_words_have(ends, dot + 1))) {
        OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_USED, ""));
        return ot_migrate_use(m, option, found ? found : path, strcmp(option, "data") == 0);
    }
    OT_TRY(ot_migrate_add_row(m, key, OT_MIGRATE_REFUSED,
                              "it is no file here; download the file of the rows, and give it with --data "
                              "(help sources)"));
    m->out->rows[m->out->n_rows - 1].option = option;
    return 0;
}

static int use_rows(struct ot_migrating *m, const struct ot_migrate_key *key, const char *option) {
    if (ot_json_type(key->value) != OT_JSON_ARRAY)
        return use_path(m, key, ot_json_string(key->value, NULL) ? ot_migrate_text(m, key->value) : NULL,
                        option);
    for (size_t i = 0; i < ot_json_length(key->value); i++)
        OT_TRY(use_path(m, key, ot_migrate_text(m, ot_json_at(key->value, i)), option));
    return 0;
}

static int call_rows(struct ot_migrating *m, const struct ot_migrate_key *key) {
    return use_rows(m, key, "data");
}

static int call_eval_rows(struct ot_migrating *m, const struct ot_migrate_key *key) {
    return use_rows(m, key, "eval-data");
}

/* ---- the table ---- */

static const struct {
    const char *name;
    int (*call)(struct ot_migrating *m, const struct ot_migrate_key *key);
} functions[] = {
    {"batch", call_batch},
    {"ranks", call_ranks},
    {"betas", call_betas},
    {"deepspeed", call_deepspeed},
    {"datasets", call_datasets_train},
    {"eval-datasets", call_datasets_eval},
    {"rows", call_rows},
    {"eval-rows", call_eval_rows},
};

bool ot_migrate_has_function(const char *function) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, function) == 0)
            return true;
    return false;
}

int ot_migrate_call(struct ot_migrating *m, const char *function, const struct ot_migrate_key *key) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, function) == 0)
            return functions[i].call(m, key);
    return ot_fail(OT_E_INTERNAL, "a map calls %s, which is no function", function);
}
