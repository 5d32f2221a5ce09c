#include "src/data/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/data/preference.h"

enum { WHERE_BYTES = 512 };

/* "%.400s:%lld", for each row, so without a call of snprintf. line: >= 0 */
static void say_where(char where[WHERE_BYTES], const char *path, int64_t line) {
    char digits[24], *first = digits + sizeof digits;
    size_t n = strnlen(path, 400);
    *--first = '\0';
    do
        *--first = (char)('0' + line % 10);
    while ((line /= 10) > 0);
    memcpy(where, path, n);
    where[n++] = ':';
    memcpy(where + n, first, (size_t)(digits + sizeof digits - first));
}

static int check_special(const struct ot_dataset_config *config, const char *name, int32_t id) {
    if (id < config->vocab_size)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "the tokenizer's %s token has the id %d, but the model's embedding has only %d rows; use "
                   "the model's own tokenizer",
                   name, id, config->vocab_size);
}

static int check_config(const struct ot_dataset_config *config) {
    if (config->seq_len < 2 || config->seq_len > OT_DATA_MAX_SEQ_LEN)
        return ot_fail(OT_E_USAGE, "--seq-len is %lld, must be from 2 to %d tokens",
                       (long long)config->seq_len, OT_DATA_MAX_SEQ_LEN);
    if (config->pairs && config->train_prompt)
        return ot_fail(OT_E_USAGE, "--train-on-prompt: an encoder-decoder has no losses of its input");
    OT_TRY(check_special(config, "BOS", config->specials.bos_id));
    for (int i = 0; i < config->specials.n_eos; i++)
        OT_TRY(check_special(config, "EOS", config->specials.eos_ids[i]));
    return 0;
}

/* Finds out by a trial whether the tokenizer finds this token everywhere in a text. Tokenizers such as Llama
 * 2's first normalise end-of-text marks, and then find them only after spaces. */
static int make_mark(const struct ot_tokenizer *tokenizer, int32_t id, struct ot_chat_mark *out) {
    *out = (struct ot_chat_mark){.id = id};
    if (id < 0 || !(out->text = ot_tokenizer_token(tokenizer, id, &out->bytes)))
        return 0;
    struct ot_string_builder text = {0};
    struct ot_token_list list = {0};
    int rc = 0;
    ot_string_append(&text, "x", 1);
    ot_string_append(&text, out->text, out->bytes);
    ot_string_append(&text, "x", 1);
    rc = text.failed ? ot_fail(OT_E_BUDGET, "no memory for a special token")
                     : ot_tokenizer_encode(tokenizer, text.text, text.bytes, 0, &list);
    for (size_t i = 0; rc == 0 && i < list.n; i++)
        if (list.ids[i] == id)
            out->id = -1;
    ot_token_list_free(&list);
    free(text.text);
    return rc;
}

int ot_pipeline_marks(const struct ot_tokenizer *tokenizer, const struct ot_special_tokens *specials,
                      struct ot_chat_marks *out) {
    OT_TRY(make_mark(tokenizer, specials->bos_id, &out->bos));
    return make_mark(tokenizer, specials->n_eos > 0 ? specials->eos_ids[0] : -1, &out->eos);
}

int ot_pipeline_open(struct ot_pipeline *p, const struct ot_dataset_config *config) {
    OT_TRY(check_config(config));
    p->path = config->path;
    p->objective = config->objective;
    p->sample = (struct ot_sample_config){.tokenizer = config->tokenizer,
                                          .specials = config->specials,
                                          .append_eos = !config->no_eos,
                                          .pairs = config->pairs,
                                          .seq_len = config->seq_len,
                                          .vocab_size = config->vocab_size};
    struct ot_format_config format = {.chat = config->chat,
                                      .prompt_format = config->prompt_format,
                                      .tokenizer = config->tokenizer,
                                      .train_prompt = config->train_prompt};
    if (config->columns)
        OT_TRY(ot_columns_open(config->columns, config->prompt_format != NULL, &p->columns));
    OT_TRY(ot_pipeline_marks(config->tokenizer, &config->specials, &format.marks));
    return ot_format_open(&format, &p->format);
}

void ot_pipeline_close(struct ot_pipeline *p) {
    ot_format_close(p->format);
    ot_columns_close(p->columns);
    p->format = NULL;
    p->columns = NULL;
}

void ot_row_scratch_free(struct ot_row_scratch *scratch) {
    ot_json_reader_free(&scratch->reader);
    ot_rendered_free(&scratch->rendered);
    ot_sample_free(&scratch->sample);
    ot_rendered_free(&scratch->rendered_rejected);
    ot_sample_free(&scratch->rejected);
}

/* Kinds with several turns, or one text, have no input and target. */
static int check_pairs(const struct ot_pipeline *p, const char *where) {
    enum ot_row_kind kind = ot_format_kind(p->format);
    if (!p->sample.pairs || (kind != OT_ROW_TEXT && kind != OT_ROW_MESSAGES && kind != OT_ROW_SHAREGPT))
        return 0;
    return ot_fail(
        OT_E_USAGE,
        "%s: an encoder-decoder learns a target for an input, and rows of kind '%s' have none; "
        "accepted: input + target; prompt + completion or response; instruction + output; question "
        "+ context + answer; or give the fields with --prompt-format",
        where, ot_row_kind_name(kind));
}

/* Parses a row, or the row of one of its answers, which belongs to the reader. all: the row must have every
 * column. */
static int parse(const struct ot_pipeline *p, const char *text, size_t bytes, int answer, bool all,
                 const char *where, struct ot_json_reader *reader, struct ot_json **row, bool *good) {
    *good = true;
    OT_TRY(ot_json_read_row(reader, text, bytes, where, row));
    if (p->columns)
        OT_TRY(ot_columns_rename(p->columns, *row, all, where));
    return p->objective == OT_OBJECTIVE_SFT
               ? 0
               : ot_preference_take_answer(*row, p->objective, answer, where, good);
}

int ot_pipeline_detect(struct ot_pipeline *p, const char *text, size_t bytes, int64_t line) {
    char where[WHERE_BYTES];
    struct ot_json_reader reader = {0};
    struct ot_json *row;
    bool good;
    say_where(where, p->path, line);
    int rc = parse(p, text, bytes, 0, true, where, &reader, &row, &good);
    if (rc == 0)
        rc = ot_format_detect(p->format, row, where);
    if (rc == 0)
        rc = check_pairs(p, where);
    ot_json_reader_free(&reader);
    return rc;
}

/* Renders an answer's row. The rendered text is a copy of the row's. */
static int render(const struct ot_pipeline *p, const char *text, size_t bytes, int answer, const char *where,
                  struct ot_json_reader *reader, struct ot_rendered *rendered, bool *good) {
    struct ot_json *row;
    OT_TRY(parse(p, text, bytes, answer, false, where, reader, &row, good));
    return ot_format_render(p->format, row, where, rendered);
}

/* Makes the tokens of two answers. If one is too long, the prompts of both lose as many tokens. */
static int make_answers(const struct ot_pipeline *p, const char *where, struct ot_row_scratch *scratch) {
    struct ot_sample_config config = p->sample;
    config.seq_len = p->sample.seq_len / 2;
    for (int again = 0; again < 2; again++) {
        OT_TRY(ot_sample_make(&config, &scratch->rendered, false, where, &scratch->sample));
        OT_TRY(ot_sample_make(&config, &scratch->rendered_rejected, false, where, &scratch->rejected));
        int64_t longest = (int64_t)ot_max(scratch->sample.whole_tokens, scratch->rejected.whole_tokens);
        config.cut = ot_max(longest - config.seq_len, 0);
        if (config.cut == 0)
            break;
    }
    if (scratch->sample.piece_tokens == 0 || scratch->rejected.piece_tokens == 0)
        scratch->sample.piece_tokens = scratch->rejected.piece_tokens = 0;
    return 0;
}

int ot_pipeline_make(const struct ot_pipeline *p, const char *text, size_t bytes, int64_t line,
                     struct ot_row_scratch *scratch) {
    char where[WHERE_BYTES];
    bool good;
    say_where(where, p->path, line);
    OT_TRY(render(p, text, bytes, 0, where, &scratch->reader, &scratch->rendered, &scratch->good));
    if (ot_preference_answers(p->objective) == 2) {
        OT_TRY(render(p, text, bytes, 1, where, &scratch->reader, &scratch->rendered_rejected, &good));
        return make_answers(p, where, scratch);
    }
    struct ot_sample_config config = p->sample;
    if (p->objective == OT_OBJECTIVE_KTO)
        config.seq_len /= 2;
    bool split = ot_format_kind(p->format) == OT_ROW_TEXT && p->objective == OT_OBJECTIVE_SFT;
    OT_TRY(ot_sample_make(&config, &scratch->rendered, split, where, &scratch->sample));
    if (p->objective == OT_OBJECTIVE_KTO)
        scratch->sample.whole_tokens *= 2; /* it has half of a sequence */
    return 0;
}

/* ---- columns ---- */

enum { MOST_COLUMNS = 16 };

struct ot_columns {
    char *text; /* the names point into this text */
    struct ot_json_name names[MOST_COLUMNS];
    size_t n;
    bool drops_rejected; /* the user wants the chosen answers alone */
};

static bool is_field(const char *name) {
    static const char fields[] =
        "text prompt completion response instruction input output messages conversations "
        "conversation question context answer tools system target chosen rejected label";
    return ot_words_have(fields, name);
}

/* Parses a pair "OURS=THEIRS". */
static int take_column(struct ot_columns *c, char *pair, bool custom) {
    char *theirs = strchr(pair, '=');
    if (!theirs || theirs == pair || !theirs[1])
        return ot_fail(
            OT_E_USAGE,
            "--columns: '%.60s' is not a pair OURS=THEIRS; give pairs such as question=query,answer=sql",
            pair);
    *theirs++ = '\0';
    if (!custom && !is_field(pair))
        return ot_fail(
            OT_E_USAGE,
            "--columns: rows have no field '%.60s'; known fields: text, prompt, completion, response, "
            "instruction, input, output, messages, conversations, conversation, question, "
            "context, answer, target, chosen, rejected, label, tools and system",
            pair);
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->names[i].to, pair) == 0 || strcmp(c->names[i].from, theirs) == 0)
            return ot_fail(OT_E_USAGE, "--columns: %.60s=%.60s uses a name of an earlier pair again", pair,
                           theirs);
    if (c->n == MOST_COLUMNS)
        return ot_fail(OT_E_USAGE, "--columns: more than %d pairs", MOST_COLUMNS);
    c->names[c->n++] = (struct ot_json_name){.from = theirs, .to = pair};
    c->drops_rejected = c->drops_rejected || strcmp(theirs, "chosen") == 0;
    return 0;
}

int ot_columns_open(const char *text, bool custom, struct ot_columns **out) {
    struct ot_columns *c = calloc(1, sizeof *c);
    int rc = 0;
    *out = NULL;
    if (!c || !(c->text = strdup(text)))
        rc = ot_fail(OT_E_BUDGET, "no memory for --columns");
    char *pairs = rc == 0 ? c->text : NULL;
    for (char *pair; rc == 0 && (pair = strsep(&pairs, ","));)
        rc = take_column(c, pair, custom);
    if (rc < 0) {
        ot_columns_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void ot_columns_close(struct ot_columns *c) {
    if (!c)
        return;
    free(c->text);
    free(c);
}

int ot_columns_rename(const struct ot_columns *c, struct ot_json *row, bool all, const char *where) {
    for (size_t i = 0; all && i < c->n; i++)
        if (!ot_json_get(row, c->names[i].from))
            return ot_fail(OT_E_INPUT, "%s: the row has no column '%s', but --columns names it", where,
                           c->names[i].from);
    ot_json_rename(row, c->names, c->n);
    if (c->drops_rejected)
        ot_json_rename(row, &(struct ot_json_name){.from = "rejected", .to = "not chosen"}, 1);
    return 0;
}
