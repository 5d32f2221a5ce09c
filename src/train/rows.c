#include "src/train/rows.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/data/data_files.h"
#include "src/data/source.h"
#include "src/session/chat_choice.h"
#include "src/session/forecast.h"

static void show_progress(void *context, int64_t bytes_read, int64_t bytes_total) {
    char line[160];
    if (bytes_total > 0) {
        snprintf(line, sizeof line, "reading %.100s: %d %%", (const char *)context,
                 (int)(100 * (double)bytes_read / (double)bytes_total));
        ot_log_set_status(line);
    }
}

/* The configuration for reading `path`, as the options say. */
static struct ot_dataset_config rows_config(const struct ot_session *session, const char *path,
                                            int64_t seq_len) {
    const struct ot_options *o = session->options;
    return (struct ot_dataset_config){
        .path = path,
        .tokenizer = session->text.tokenizer,
        .specials = session->text.specials,
        .vocab_size = (int32_t)session->model.config.vocab,
        .seq_len = seq_len,
        .chat = ot_chat_choice(session),
        .columns = o->columns,
        .prompt_format = session->text.prompt_format,
        .train_prompt = o->train_on_prompt,
        .no_eos = o->no_eos,
        .pairs = ot_model_has_pairs(&session->model.config),
        .objective = (enum ot_objective_kind)o->objective,
        .skip_bad = o->skip_bad,
        .text_by = (enum ot_text_by)o->text_by,
        .max_rows = o->max_rows,
        .dedup = o->dedup,
        .keeps_json = o->metric == OT_CHOICE_METRIC_EXECUTION,
        .pool = session->machine.pool,
        .progress = o->quiet ? NULL : show_progress,
        .progress_context = (void *)path,
    };
}

/* Files of this size, or larger ones, get a cache of their own accord. */
enum { LEAST_CACHED = 256 << 20 };

/* Chooses the directory for the tokens of the rows. paths[n]: the sources. path: receives it. */
static struct ot_row_cache_config find_cache(const struct ot_session *session, const char *const *paths,
                                             int n, char path[PATH_MAX]) {
    const struct ot_options *o = session->options;
    struct ot_data_files files = {0};
    bool is_auto = strcmp(o->cache, "auto") == 0;
    if (o->command != OT_COMMAND_TRAIN || strcmp(o->cache, "never") == 0 || (is_auto && o->no_save))
        return (struct ot_row_cache_config){0};
    if (!is_auto)
        return (struct ot_row_cache_config){.dir = o->cache, .may_make = !o->dry_run};
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++) /* what is wrong with a path is said when it is read */
        rc = ot_data_files_open(paths[i], &files);
    bool is_large = rc == 0 && ot_data_files_bytes(&files) >= LEAST_CACHED;
    ot_data_files_close(&files);
    int length = snprintf(path, PATH_MAX, "%s.rows", o->out);
    if (!is_large || length < 0 || length >= PATH_MAX)
        return (struct ot_row_cache_config){0};
    return (struct ot_row_cache_config){
        .dir = path, .may_make = !o->dry_run, .is_optional = true, .is_own = true};
}

/* Standard input can be read once, by one process. */
static int check_input(const struct ot_session *session, const char *path) {
    if (strcmp(path, OT_SOURCE_STANDARD_INPUT) != 0)
        return 0;
    if (session->ranks.world != NULL)
        return ot_fail(OT_E_USAGE,
                       "--data -: several ranks cannot share standard input; write the rows to a file");
    return session->options->show_sample
               ? ot_fail(OT_E_USAGE, "--data -: --show-sample reads its rows again; write them to a file")
               : 0;
}

static int open_eval_data(const struct ot_session *session, struct ot_rows *rows) {
    const char *path = session->options->eval_data;
    OT_TRY(check_input(session, path));
    struct ot_dataset_config config = rows_config(session, path, rows->seq_len);
    char dir[PATH_MAX];
    config.cache = find_cache(session, &path, 1, dir);
    config.cache.is_own = false;
    int rc = ot_dataset_open(&config, &rows->own_eval);
    ot_log_set_status("");
    return rc;
}

static int open_data(const struct ot_session *session, struct ot_rows *rows) {
    const struct ot_texts *given = &session->options->data;
    const char *paths[OT_TEXTS_MAX];
    char name[OT_DATA_NAME_BYTES];
    rows->sources = calloc((size_t)given->n, sizeof *rows->sources);
    if (!rows->sources)
        return ot_fail(OT_E_BUDGET, "no memory for the names of --data");
    rows->n_sources = given->n;
    for (int i = 0; i < given->n; i++) {
        OT_TRY(ot_mixture_parse(given->items[i], &rows->sources[i]));
        OT_TRY(check_input(session, rows->sources[i].path));
        paths[i] = rows->sources[i].path;
    }
    struct ot_dataset_config config =
        rows_config(session, ot_data_name(session->options, name), rows->seq_len);
    char dir[PATH_MAX];
    config.cache = find_cache(session, paths, given->n, dir);
    int rc = ot_dataset_open_sources(&config, paths, given->n, &rows->data);
    ot_log_set_status("");
    return rc;
}

/* Training takes the rows that are not held out, as often as the mixture says. Evaluation takes the others,
 * once. */
static int pack(const struct ot_session *session, const struct ot_rows *rows,
                const struct ot_dataset *dataset, bool training, struct ot_packing **out) {
    const struct ot_packing_config config = {
        .dataset = dataset,
        .copies = training ? rows->copies : NULL,
        .held_out = dataset == rows->data ? rows->held_out : NULL,
        .takes_held_out = !training,
        .seq_len = rows->seq_len,
        .one_row = !session->options->pack,
        .shuffle = training,
        .seed = (uint64_t)session->options->seed,
        .cache = ot_dataset_keeps(dataset),
        .key = dataset == rows->data ? rows->key.text : NULL,
    };
    return ot_packing_open(&config, out);
}

static int check_texts(const struct ot_session *session, const struct ot_rows *rows) {
    bool has_text = ot_dataset_stats(rows->data)->texts > 0 ||
                    (rows->own_eval && ot_dataset_stats(rows->own_eval)->texts > 0);
    return session->options->text_by == OT_TEXT_BY_DOCUMENT || has_text
               ? 0
               : ot_fail(OT_E_USAGE, "--text-by has no effect: no file of the data is a text (.txt)");
}

/* Returns 1 if the sources have shares: all of them, or none. */
static int check_shares(const struct ot_session *session, const struct ot_rows *rows) {
    const struct ot_options *o = session->options;
    int with_share = 0;
    for (int i = 0; i < rows->n_sources; i++)
        with_share += rows->sources[i].share > 0;
    if (with_share == 0)
        return o->mix_by == OT_CHOICE_MIX_BY_TOKENS
                   ? ot_fail(OT_E_USAGE, "--mix-by has no effect without shares, such as --data a.jsonl:0.7 "
                                         "--data b.jsonl:0.3")
                   : 0;
    if (rows->n_sources == 1 || o->command == OT_COMMAND_EVAL)
        return ot_fail(OT_E_USAGE, "--data %.200s:%g: a share has no effect %s", rows->sources[0].path,
                       rows->sources[0].share,
                       rows->n_sources == 1 ? "with a single --data"
                                            : "on an evaluation, which takes each row once");
    for (int i = 0; i < rows->n_sources; i++)
        if (rows->sources[i].share == 0)
            return ot_fail(OT_E_USAGE,
                           "--data %.200s has no share, but another --data has one; give all of "
                           "them one, such as %.200s:0.5, or none",
                           rows->sources[i].path, rows->sources[i].path);
    return 1;
}

/* ---- held-out rows, and the mixture ---- */

struct making {
    const struct ot_session *session;
    struct ot_rows *rows;
};

/* Finds what an earlier run has kept of each row of --data, and checks it, or lets make() make it. */
static int keep_by_row(const struct ot_session *session, struct ot_rows *rows, enum ot_row_cache_kind kind,
                       void *head, size_t head_bytes, int (*make)(void *, struct ot_row_arrays *),
                       struct ot_row_arrays *arrays) {
    const struct ot_row_cache_config cache = ot_dataset_keeps(rows->data);
    struct making making = {session, rows};
    if (rows->key.failed)
        return ot_fail(OT_E_BUDGET, "no memory for the choice of rows");
    OT_TRY(ot_row_cache_get(&cache, kind, rows->key.text, head, head_bytes, arrays, make, &making));
    return ot_row_arrays_check(arrays, 0, 0, arrays->maps[0].bytes);
}

static int make_mixture(void *context, struct ot_row_arrays *arrays) {
    const struct making *making = context;
    const struct ot_rows *rows = making->rows;
    const struct ot_options *o = making->session->options;
    const struct ot_mixture_config config = {.dataset = rows->data,
                                             .sources = rows->sources,
                                             .held_out = rows->held_out,
                                             .by_tokens = o->mix_by == OT_CHOICE_MIX_BY_TOKENS,
                                             .seed = (uint64_t)o->seed};
    OT_TRY(
        ot_grow_map_add(&arrays->maps[0], NULL, (size_t)ot_dataset_rows(rows->data) * sizeof *rows->copies));
    ot_dataset_expect_order(rows->data, true);
    int rc = ot_mixture_make(&config, (uint16_t *)(void *)arrays->maps[0].data, rows->parts);
    ot_dataset_expect_order(rows->data, false);
    return rc;
}

static int mix(const struct ot_session *session, struct ot_rows *rows) {
    const struct ot_options *o = session->options;
    const size_t each = sizeof *rows->parts;
    rows->parts = calloc((size_t)rows->n_sources, each);
    if (!rows->parts)
        return ot_fail(OT_E_BUDGET, "no memory to mix the rows");
    ot_string_append_format(&rows->key, "mixture seed %lld by %d:", (long long)o->seed, (int)o->mix_by);
    for (int i = 0; i < rows->n_sources; i++)
        ot_string_append_format(&rows->key, " %a", rows->sources[i].share);
    ot_string_append_text(&rows->key, "\n");
    OT_TRY(keep_by_row(session, rows, OT_ROW_CACHE_MIXTURE, rows->parts, (size_t)rows->n_sources * each,
                       make_mixture, &rows->mixture));
    rows->copies = (const uint16_t *)(const void *)rows->mixture.maps[0].data;
    return 0;
}

/* The most rows that are held out by default. More of them would make each evaluation longer, and its loss
 * hardly more exact. */
enum { MOST_EVAL_ROWS = 5000 };

static int64_t most_held_out(const struct ot_options *o) {
    return ot_options_given(o, "eval-fraction") ? INT64_MAX : MOST_EVAL_ROWS;
}

static int make_split(void *context, struct ot_row_arrays *arrays) {
    const struct making *making = context;
    const struct ot_options *o = making->session->options;
    const struct ot_dataset *data = making->rows->data;
    OT_TRY(ot_grow_map_add(&arrays->maps[0], NULL, (size_t)ot_dataset_rows(data) * sizeof(bool)));
    ot_dataset_expect_order(data, true);
    ot_split_rows(data, o->eval_fraction, most_held_out(o), (uint64_t)o->seed,
                  (bool *)(void *)arrays->maps[0].data);
    ot_dataset_expect_order(data, false);
    return 0;
}

static int split(const struct ot_session *session, struct ot_rows *rows) {
    const struct ot_options *o = session->options;
    int64_t most = most_held_out(o);
    ot_string_append_format(&rows->key, "split seed %lld fraction %a most %lld\n", (long long)o->seed,
                            o->eval_fraction, (long long)most);
    OT_TRY(keep_by_row(session, rows, OT_ROW_CACHE_SPLIT, &most, sizeof most, make_split, &rows->split));
    rows->held_out = (const bool *)(const void *)rows->split.maps[0].data;
    return 0;
}

/* ---- training and evaluation ---- */

static int open_training(const struct ot_session *session, struct ot_rows *rows, bool has_shares) {
    const struct ot_options *o = session->options;
    char name[OT_DATA_NAME_BYTES];
    if (o->eval_data)
        OT_TRY(open_eval_data(session, rows));
    else if (o->eval_fraction > 0)
        OT_TRY(split(session, rows));
    rows->eval_set = rows->own_eval ? rows->own_eval : rows->held_out ? rows->data : NULL;
    if (has_shares)
        OT_TRY(mix(session, rows));
    OT_TRY(pack(session, rows, rows->data, true, &rows->train));
    if (ot_packing_sequences(rows->train) == 0)
        return ot_fail(OT_E_INPUT, "%s: no row is left to train on", ot_data_name(o, name));
    if (!rows->eval_set)
        return 0;
    OT_TRY(pack(session, rows, rows->eval_set, false, &rows->eval));
    if (ot_packing_sequences(rows->eval) == 0) { /* 2 % of a few rows is less than one row */
        ot_packing_close(rows->eval);
        rows->eval = NULL;
    }
    return 0;
}

int ot_rows_open(const struct ot_session *session, int64_t seq_len, struct ot_rows *out) {
    *out = (struct ot_rows){.seq_len = seq_len};
    OT_TRY(open_data(session, out));
    int has_shares = check_shares(session, out);
    OT_TRY(has_shares);
    const struct ot_data_stats *stats = ot_dataset_stats(out->data);
    ot_chat_choice_settle(session, stats->template_name, stats->template_source);
    if (session->options->command == OT_COMMAND_TRAIN || session->options->command == OT_COMMAND_QUANTIZE) {
        OT_TRY(open_training(session, out, has_shares));
    } else {
        out->eval_set = out->data;
        OT_TRY(pack(session, out, out->data, false, &out->eval));
    }
    return check_texts(session, out);
}

void ot_rows_close(struct ot_rows *rows) {
    ot_packing_close(rows->eval);
    ot_packing_close(rows->train);
    ot_row_arrays_close(&rows->split);
    ot_row_arrays_close(&rows->mixture);
    free(rows->key.text);
    free(rows->parts);
    for (int i = 0; i < rows->n_sources; i++)
        free(rows->sources[i].path);
    free(rows->sources);
    ot_dataset_close(rows->own_eval);
    ot_dataset_close(rows->data);
    *rows = (struct ot_rows){0};
}

int64_t ot_rows_bytes(const struct ot_rows *rows) {
    size_t bytes = ot_dataset_bytes(rows->data);
    bytes += rows->own_eval ? ot_dataset_bytes(rows->own_eval) : 0;
    bytes += ot_row_arrays_memory(&rows->split) + ot_row_arrays_memory(&rows->mixture);
    bytes += rows->train ? ot_packing_bytes(rows->train) : 0;
    bytes += rows->eval ? ot_packing_bytes(rows->eval) : 0;
    return (int64_t)bytes;
}

double ot_rows_flops_per_token(const struct ot_rows *rows, const struct ot_model *model) {
    double tokens = (double)ot_packing_tokens(rows->train), n = (double)ot_packing_rows(rows->train);
    return ot_model_flops_per_token(model, tokens / n);
}

double ot_rows_at_roof(const struct ot_rows *rows, const struct ot_session *session) {
    double roof = ot_forecast_roof(session);
    return roof > 0 ? ot_rows_flops_per_token(rows, session->model.built) / roof : 0;
}

struct ot_data_fingerprint ot_rows_fingerprint(const struct ot_rows *rows) {
    struct ot_data_fingerprint print = ot_dataset_fingerprint(rows->data);
    if (rows->copies)
        print.crc = (uint32_t)crc32_z(print.crc, (const unsigned char *)rows->copies,
                                      (size_t)ot_dataset_rows(rows->data) * sizeof *rows->copies);
    return print;
}

/* ---- showing a row ---- */

int ot_sample_view_print(const struct ot_session *session, const struct ot_rows *rows) {
    struct ot_dataset_config config = rows_config(session, rows->sources[0].path, rows->seq_len);
    char *text;
    config.progress = NULL;
    OT_TRY(ot_dataset_show_sample(&config, 0, ot_log_is_terminal(), &text));
    ot_log_text(text, strlen(text));
    free(text);
    return 0;
}
