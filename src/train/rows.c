#include "src/train/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/data/source.h"
#include "src/session/chat_choice.h"

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
        .skip_bad = o->skip_bad,
        .pool = session->machine.pool,
        .progress = o->quiet ? NULL : show_progress,
        .progress_context = (void *)path,
    };
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

static int open_file(const struct ot_session *session, const char *path, int64_t seq_len,
                     struct ot_dataset **out) {
    OT_TRY(check_input(session, path));
    struct ot_dataset_config config = rows_config(session, path, seq_len);
    int rc = ot_dataset_open(&config, out);
    ot_log_set_status("");
    return rc;
}

static int pack(const struct ot_session *session, const struct ot_rows *rows,
                const struct ot_dataset *dataset, bool training, struct ot_packing **out) {
    bool split = dataset == rows->data && rows->held_out;
    struct ot_packing_config config = {
        .dataset = dataset,
        .only = split ? rows->held_out : NULL,
        .only_value = split && !training,
        .seq_len = rows->seq_len,
        .one_row = !session->options->pack,
        .shuffle = training,
        .seed = (uint64_t)session->options->seed,
    };
    return ot_packing_open(&config, out);
}

static int split(const struct ot_session *session, struct ot_rows *rows) {
    const struct ot_options *o = session->options;
    rows->held_out = calloc((size_t)ot_dataset_rows(rows->data), sizeof *rows->held_out);
    if (!rows->held_out)
        return ot_fail(OT_E_BUDGET, "no memory to split the rows");
    ot_split_rows(rows->data, o->eval_fraction, (uint64_t)o->seed, rows->held_out);
    return 0;
}

static int open_training(const struct ot_session *session, struct ot_rows *rows) {
    const struct ot_options *o = session->options;
    if (o->eval_data)
        OT_TRY(open_file(session, o->eval_data, rows->seq_len, &rows->own_eval));
    else if (o->eval_fraction > 0)
        OT_TRY(split(session, rows));
    rows->eval_set = rows->own_eval ? rows->own_eval : rows->held_out ? rows->data : NULL;
    OT_TRY(pack(session, rows, rows->data, true, &rows->train));
    if (ot_packing_sequences(rows->train) == 0)
        return ot_fail(OT_E_INPUT, "%s: no row is left to train on", o->data);
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
    OT_TRY(open_file(session, session->options->data, seq_len, &out->data));
    const struct ot_data_stats *stats = ot_dataset_stats(out->data);
    ot_chat_choice_settle(session, stats->template_name, stats->template_source);
    if (session->options->command == OT_COMMAND_TRAIN || session->options->command == OT_COMMAND_QUANTIZE)
        return open_training(session, out);
    out->eval_set = out->data;
    return pack(session, out, out->data, false, &out->eval);
}

void ot_rows_close(struct ot_rows *rows) {
    ot_packing_close(rows->eval);
    ot_packing_close(rows->train);
    free(rows->held_out);
    ot_dataset_close(rows->own_eval);
    ot_dataset_close(rows->data);
    *rows = (struct ot_rows){0};
}

int64_t ot_rows_bytes(const struct ot_rows *rows) {
    size_t bytes = ot_dataset_bytes(rows->data);
    bytes += rows->own_eval ? ot_dataset_bytes(rows->own_eval) : 0;
    bytes += rows->train ? ot_packing_bytes(rows->train) : 0;
    bytes += rows->eval ? ot_packing_bytes(rows->eval) : 0;
    return (int64_t)bytes;
}

/* ---- showing a row ---- */

int ot_sample_view_print(const struct ot_session *session, const struct ot_rows *rows) {
    struct ot_dataset_config config = rows_config(session, session->options->data, rows->seq_len);
    char *text;
    config.progress = NULL;
    OT_TRY(ot_dataset_show_sample(&config, 0, ot_log_is_terminal(), &text));
    ot_log_text(text, strlen(text));
    free(text);
    return 0;
}
