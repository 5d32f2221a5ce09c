#include "src/train/answers.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/text.h"
#include "src/data/pipeline.h"
#include "src/data/sample.h"
#include "src/session/session_ranks.h"

/* An answer may have this many times the tokens of the gold answer, and so many more. */
enum { LONGER = 2, MORE = 16 };

struct answer_row {
    int64_t document;
    int32_t *prompt; /* [n_prompt] */
    int64_t n_prompt, max_new, gold_tokens;
    char *gold;
    char *context, *database; /* NULL: the row has none */
};

struct ot_answers {
    struct answer_row *rows;
    size_t capacity;
    int n;
    struct ot_judge *judge; /* NULL: answers are not executed */
    FILE *failures;         /* NULL: not wanted */
    const char *path;       /* of failures */
};

/* ---- scores ---- */

struct ot_kind_score ot_answer_score_sum(const struct ot_answer_score *score) {
    struct ot_kind_score sum = {0};
    for (int k = 0; k < OT_SQL_KINDS; k++) {
        sum.judged += score->kinds[k].judged;
        sum.valid += score->kinds[k].valid;
        sum.equal += score->kinds[k].equal;
    }
    return sum;
}

static double share(int64_t n, int64_t all) {
    return all > 0 ? (double)n / (double)all : NAN;
}

double ot_answer_match(const struct ot_answer_score *score) {
    return share(score->normalised, score->rows);
}

double ot_answer_execution(const struct ot_answer_score *score) {
    struct ot_kind_score sum = ot_answer_score_sum(score);
    return share(sum.equal, sum.judged);
}

const char *ot_answers_summary(const struct ot_answer_score *score, char text[OT_ANSWERS_TEXT_BYTES]) {
    struct ot_kind_score sum = ot_answer_score_sum(score);
    int used = snprintf(text, OT_ANSWERS_TEXT_BYTES, "exact %.1f %% · normalised %.1f %%",
                        100 * share(score->exact, score->rows), 100 * share(score->normalised, score->rows));
    if (score->executes && sum.judged > 0)
        snprintf(text + used, OT_ANSWERS_TEXT_BYTES - (size_t)used,
                 " · equal results %.1f %%, valid SQL %.1f %%", 100 * share(sum.equal, sum.judged),
                 100 * share(sum.valid, sum.judged));
    return text;
}

static void put_kinds(const struct ot_answer_score *score, struct ot_json_writer *w) {
    ot_json_begin_object(w, "by_kind");
    for (int k = 0; k < OT_SQL_KINDS; k++) {
        const struct ot_kind_score *kind = &score->kinds[k];
        if (kind->judged == 0)
            continue;
        ot_json_begin_object(w, ot_sql_kind_name((enum ot_sql_kind)k));
        ot_json_put_int(w, "judged", kind->judged);
        ot_json_put_int(w, "valid", kind->valid);
        ot_json_put_int(w, "equal", kind->equal);
        ot_json_end_object(w);
    }
    ot_json_end_object(w);
}

void ot_answers_put(const struct ot_answer_score *score, struct ot_json_writer *w) {
    struct ot_kind_score sum = ot_answer_score_sum(score);
    if (score->rows == 0)
        return;
    ot_json_put_int(w, "answered", score->rows);
    ot_json_put_real(w, "exact_match", share(score->exact, score->rows));
    ot_json_put_real(w, "normalised_match", share(score->normalised, score->rows));
    if (!score->executes)
        return;
    ot_json_put_real(w, "valid_sql", share(sum.valid, sum.judged));
    ot_json_put_real(w, "equal_results", share(sum.equal, sum.judged));
    ot_json_put_int(w, "not_judged", score->unjudged);
    ot_json_put_int(w, "variants", score->variants);
    ot_json_put_int(w, "variants_told_apart", score->separated);
    put_kinds(score, w);
}

/* ---- texts ---- */

char *ot_answer_normalise(const char *text) {
    static const char apart[] = "(),;=<>!+*/";
    char *out = malloc(strlen(text) + 1), quote = '\0';
    size_t n = 0;
    if (!out)
        return NULL;
    for (const char *c = text; *c; c++) {
        bool space = isspace((unsigned char)*c) && !quote;
        if (!space) {
            if (n > 0 && out[n - 1] == ' ' && !quote && strchr(apart, *c))
                n--;
            out[n++] = quote || (unsigned char)*c >= 0x80 ? *c : (char)tolower((unsigned char)*c);
            if (quote ? *c == quote : strchr("'\"`", *c) != NULL)
                quote = quote ? '\0' : *c;
        } else if (n > 0 && out[n - 1] != ' ' && !strchr(apart, out[n - 1])) {
            out[n++] = ' ';
        }
    }
    while (n > 0 && (out[n - 1] == ' ' || out[n - 1] == ';'))
        n--;
    out[n] = '\0';
    return out;
}

static bool is_exact(const char *a, const char *b) {
    static const char spaces[] = " \t\r\n";
    size_t n = strlen(a += strspn(a, spaces)), m = strlen(b += strspn(b, spaces));
    while (n > 0 && strchr(spaces, a[n - 1]))
        n--;
    while (m > 0 && strchr(spaces, b[m - 1]))
        m--;
    return n == m && memcmp(a, b, n) == 0;
}

/* ---- rows ---- */

static int no_memory(void) {
    return ot_fail(OT_E_BUDGET, "no memory for the rows that are to be answered");
}

static bool is_end(const struct ot_session *s, int32_t id) {
    for (int i = 0; i < s->text.ids.n_eos; i++)
        if (s->text.ids.eos[i] == id)
            return true;
    return false;
}

/* The text of the gold answer, decoded behind the prompt as generated text is. *n: its tokens. */
static int decode_gold(const struct ot_session *s, const struct ot_row *row, int64_t n_prompt, char **gold,
                       int64_t *n) {
    struct ot_decode_stream *stream;
    struct ot_string_builder text = {0};
    const char *piece;
    size_t bytes;
    bool pairs = ot_model_has_pairs(&s->model.config);
    int64_t end = row->second > 0 ? row->second : row->n; /* of the answer that is right */
    int rc = 0;
    OT_TRY(ot_decode_stream_open(s->text.tokenizer, true, &stream));
    for (int64_t i = 0; i < n_prompt && !pairs && rc == 0; i++)
        rc = ot_decode_stream_push(stream, ot_token_id(row->tokens[i]), &piece, &bytes);
    for (*n = 0; rc == 0 && n_prompt + *n < end; ++*n) {
        uint32_t token = row->tokens[n_prompt + *n];
        if (!ot_token_trained(token) || is_end(s, ot_token_id(token)))
            break;
        rc = ot_decode_stream_push(stream, ot_token_id(token), &piece, &bytes);
        if (rc == 0)
            ot_string_append(&text, piece, bytes);
    }
    if (rc == 0)
        rc = ot_decode_stream_finish(stream, &piece, &bytes);
    if (rc == 0)
        ot_string_append(&text, piece, bytes);
    ot_decode_stream_close(stream);
    ot_string_append(&text, "", 0); /* an empty answer is a text too */
    *gold = text.text;
    if (rc == 0 && (text.failed || !text.text))
        rc = no_memory();
    return rc;
}

static int copy_field(const struct ot_json *row, const char *name, char **out) {
    size_t bytes;
    const char *text = ot_json_string(ot_json_get(row, name), &bytes);
    *out = text ? ot_string_copy(text, bytes) : NULL;
    return text && !*out ? no_memory() : 0;
}

/* The fields of the row that execution needs. */
static int read_fields(const struct ot_session *s, const struct ot_rows *rows, struct answer_row *to) {
    const struct ot_options *o = s->options;
    struct ot_columns *columns = NULL;
    struct ot_json *row;
    size_t bytes;
    OT_TRY(ot_dataset_check_json(rows->eval_set, to->document));
    const char *text = ot_dataset_json(rows->eval_set, to->document, &bytes);
    if (!text || ot_json_parse_row(text, bytes, "a row to be answered", &row) < 0)
        return 0; /* a row that is no object has no context: the judge says so */
    int rc = o->columns ? ot_columns_open(o->columns, s->text.prompt_format != NULL, &columns) : 0;
    if (rc == 0 && columns)
        rc = ot_columns_rename(columns, row, false, "a row to be answered");
    if (rc == 0)
        rc = copy_field(row, "context", &to->context);
    if (rc == 0)
        rc = copy_field(row, "db_id", &to->database);
    ot_columns_close(columns);
    ot_json_free(row);
    return rc;
}

/* A sequence may have two answers, and then be longer than the model's positions. */
static int64_t longest(const struct ot_session *s, const struct ot_rows *rows) {
    return ot_min(rows->seq_len, ot_model_longest_row(&s->model.config));
}

static int add_row(struct ot_answers *a, const struct ot_session *s, const struct ot_rows *rows,
                   const struct ot_row *row, int64_t n_prompt) {
    OT_TRY(ot_grow(&a->rows, &a->capacity, (size_t)a->n + 1, sizeof *a->rows, "rows to be answered"));
    struct answer_row *to = &a->rows[a->n++];
    *to = (struct answer_row){.document = row->document,
                              .n_prompt = n_prompt,
                              .prompt = malloc((size_t)n_prompt * sizeof *to->prompt)};
    if (!to->prompt)
        return no_memory();
    for (int64_t i = 0; i < n_prompt; i++)
        to->prompt[i] = ot_token_id(row->tokens[i]);
    OT_TRY(decode_gold(s, row, n_prompt, &to->gold, &to->gold_tokens));
    int64_t most = ot_options_given(s->options, "max-new-tokens") ? s->options->max_new_tokens
                                                                  : LONGER * to->gold_tokens + MORE;
    to->max_new = ot_min(most, longest(s, rows) - n_prompt);
    return a->judge ? read_fields(s, rows, to) : 0;
}

static int add_rows(struct ot_answers *a, const struct ot_session *s, const struct ot_rows *rows) {
    int64_t last = -1, front = s->text.specials.add_bos; /* a prompt of a start token alone asks nothing */
    for (int64_t i = 0; i < ot_dataset_rows(rows->eval_set) && a->n < s->options->eval_generate; i++) {
        if (rows->eval_set == rows->data && rows->held_out && !rows->held_out[i])
            continue;
        OT_TRY(ot_dataset_check_row(rows->eval_set, i));
        struct ot_row row = ot_dataset_row(rows->eval_set, i);
        int64_t n_prompt = ot_row_prompt_tokens(&row);
        bool first_piece = row.document != last;
        last = row.document;
        bool has_gold = s->options->objective != OT_OBJECTIVE_KTO || row.good;
        if (first_piece && has_gold && n_prompt > front && n_prompt < row.n)
            OT_TRY(add_row(a, s, rows, &row, n_prompt));
    }
    return a->n > 0 ? 0
                    : ot_fail(OT_E_INPUT,
                              "no row of the evaluation has a prompt to answer; %s needs rows with "
                              "a question and an answer",
                              s->options->command == OT_COMMAND_EVAL ? "--generate" : "--eval-generate");
}

int ot_answers_open(const struct ot_session *s, const struct ot_rows *rows, struct ot_answers **out) {
    const struct ot_options *o = s->options;
    *out = NULL;
    if (o->eval_generate == 0 || !rows->eval)
        return 0;
    struct ot_answers *a = calloc(1, sizeof *a);
    int rc = a ? 0 : no_memory();
    if (rc == 0 && o->metric == OT_CHOICE_METRIC_EXECUTION)
        rc = ot_judge_open(o->databases, &a->judge);
    if (rc == 0)
        rc = add_rows(a, s, rows);
    if (rc == 0 && o->failures && ot_is_rank0(s)) { /* it judges the answers of all ranks */
        a->path = o->failures;
        a->failures = fopen(o->failures, "w");
        if (!a->failures)
            rc = ot_fail_errno(OT_E_IO, errno, "--failures %s: cannot write there", o->failures);
    }
    if (rc < 0)
        ot_answers_close(a);
    else
        *out = a;
    return rc;
}

void ot_answers_close(struct ot_answers *a) {
    if (!a)
        return;
    for (int i = 0; i < a->n; i++) {
        free(a->rows[i].prompt);
        free(a->rows[i].gold);
        free(a->rows[i].context);
        free(a->rows[i].database);
    }
    free(a->rows);
    if (a->failures)
        fclose(a->failures);
    ot_judge_close(a->judge);
    free(a);
}

static struct ot_generation generation_of(const struct answer_row *row, bool (*stopped)(void)) {
    return (struct ot_generation){.prompt = row->prompt,
                                  .n_prompt = row->n_prompt,
                                  .max_new = row->max_new,
                                  .top_p = 1,
                                  .stopped = stopped};
}

void ot_answers_need(const struct ot_answers *a, const struct ot_session *s, struct ot_session_need *need) {
    int64_t tokens = 0, longest = need->cache_tokens;
    if (!a)
        return;
    for (int i = 0; i < a->n; i++) {
        struct ot_generation generation = generation_of(&a->rows[i], NULL);
        int64_t room = ot_generation_room(s, &generation);
        tokens += room;
        longest = ot_max(longest, room);
    }
    need->cache_tokens = ot_max(tokens, longest);
    need->longest_text = longest;
    need->texts = a->n;
}

void ot_answers_work(const struct ot_answers *a, struct ot_run_work *work) {
    if (!a)
        return;
    work->answers = a->n;
    for (int i = 0; i < a->n; i++)
        work->answer_tokens = ot_max(work->answer_tokens, a->rows[i].gold_tokens);
}

/* ---- judging ---- */

/* Appends the row to the file of failures. */
static int write_failure(const struct ot_answers *a, const struct ot_session *s, const struct answer_row *row,
                         const char *answer, const struct ot_verdict *verdict) {
    struct ot_json_writer w = {.indent = -1};
    char *prompt, *line;
    size_t bytes;
    OT_TRY(ot_tokenizer_decode(s->text.tokenizer, row->prompt, (size_t)row->n_prompt, true, &prompt, NULL));
    ot_json_begin_object(&w, NULL);
    ot_json_put_int(&w, "row", row->document + 1);
    ot_json_put_text(&w, "prompt", prompt);
    ot_json_put_text(&w, "answer", row->gold);
    ot_json_put_text(&w, "generated", answer);
    if (a->judge) {
        ot_json_put_text(&w, "kind", ot_sql_kind_name(verdict->kind));
        ot_json_put_text(&w, "why", verdict->why);
    }
    ot_json_end_object(&w);
    free(prompt);
    OT_TRY(ot_json_writer_take(&w, &line, &bytes));
    bool written = fwrite(line, 1, bytes, a->failures) == bytes && fputc('\n', a->failures) != EOF;
    free(line);
    return written ? 0 : ot_fail_errno(OT_E_IO, errno, "--failures %s: cannot write", a->path);
}

static int execute(const struct ot_answers *a, const struct answer_row *row, const char *answer,
                   struct ot_answer_score *score, struct ot_verdict *verdict) {
    const struct ot_judged_row judged = {row->context, row->database, row->gold};
    OT_TRY(ot_judge_answer(a->judge, &judged, answer, verdict));
    struct ot_kind_score *kind = &score->kinds[verdict->kind];
    score->unjudged += !verdict->is_judged;
    score->variants += verdict->variants;
    score->separated += verdict->separated;
    kind->judged += verdict->is_judged;
    kind->valid += verdict->is_valid;
    kind->equal += verdict->is_equal;
    return 0;
}

static int judge_row(const struct ot_answers *a, const struct ot_session *s, const struct answer_row *row,
                     const char *answer, struct ot_answer_score *score) {
    struct ot_verdict verdict = {0};
    char *want = ot_answer_normalise(row->gold), *got = ot_answer_normalise(answer);
    bool same = want && got && strcmp(want, got) == 0, failed = !want || !got;
    free(want);
    free(got);
    if (failed)
        return no_memory();
    score->rows++;
    score->exact += is_exact(row->gold, answer);
    score->normalised += same;
    if (a->judge)
        OT_TRY(execute(a, row, answer, score, &verdict));
    bool right = verdict.is_judged ? verdict.is_equal : same;
    return a->failures && !right ? write_failure(a, s, row, answer, &verdict) : 0;
}

static int judge_all(const struct ot_answers *a, const struct ot_session *s,
                     const struct ot_generated *generated, struct ot_answer_score *score) {
    double started = ot_clock_seconds();
    for (int i = 0; i < a->n; i++)
        OT_TRY(judge_row(a, s, &a->rows[i], generated[i].text ? generated[i].text : "", score));
    if (a->failures && fflush(a->failures) != 0)
        return ot_fail_errno(OT_E_IO, errno, "--failures %s: cannot write", a->path);
    score->judge_seconds = ot_clock_seconds() - started;
    return 0;
}

/* All ranks have rank 0's score. Its error is all ranks' error. */
static int tell_score(struct ot_session *s, int rc, struct ot_answer_score *score) {
    OT_TRY(ot_session_ranks_agree(s, rc));
    return s->ranks.comm ? ot_comm_broadcast_host(s->ranks.comm, score, sizeof *score, 0) : 0;
}

int ot_answers_run(struct ot_answers *a, struct ot_session *s, bool (*stopped)(void),
                   struct ot_answer_score *score) {
    double started = ot_clock_seconds();
    struct ot_generation *generations = calloc((size_t)a->n, sizeof *generations);
    struct ot_generated *generated = calloc((size_t)a->n, sizeof *generated);
    int rc = 0;
    *score = (struct ot_answer_score){.executes = a->judge != NULL};
    if (!generations || !generated)
        OT_TRY_GOTO(no_memory(), rc, out);
    for (int i = 0; i < a->n; i++)
        generations[i] = generation_of(&a->rows[i], s->ranks.comm ? NULL : stopped);
    OT_TRY_GOTO(ot_generate_all(s, generations, a->n, generated), rc, out);
    score->seconds = ot_clock_seconds() - started;
    for (int i = 0; i < a->n; i++)
        score->tokens += generated[i].n;
    if (s->ranks.comm || !stopped || !stopped())
        rc = tell_score(s, ot_is_rank0(s) ? judge_all(a, s, generated, score) : 0, score);
out:
    for (int i = 0; generated && i < a->n; i++)
        ot_generated_free(&generated[i]);
    free(generated);
    free(generations);
    return rc;
}

/* ---- the sample ---- */

int64_t ot_sample_row_find(const struct ot_session *s, const struct ot_rows *rows) {
    for (int64_t i = 0; rows->eval && i < ot_dataset_rows(rows->eval_set); i++) {
        if (rows->eval_set == rows->data && !rows->held_out[i])
            continue;
        if (ot_dataset_check_row(rows->eval_set, i) < 0)
            continue; /* the evaluation says so */
        struct ot_row row = ot_dataset_row(rows->eval_set, i);
        if (ot_row_prompt_tokens(&row) > 1 + s->text.specials.add_bos)
            return i;
    }
    return -1;
}

int64_t ot_sample_row_tokens(const struct ot_session *s, const struct ot_rows *rows, int64_t sample_row) {
    if (sample_row < 0)
        return 0;
    struct ot_row row = ot_dataset_row(rows->eval_set, sample_row);
    int64_t tokens = ot_row_prompt_tokens(&row) + OT_SAMPLE_TOKENS;
    tokens = ot_min(tokens, longest(s, rows));
    return tokens + ot_dataset_has_pairs(rows->eval_set); /* the start token */
}

int ot_sample_row_answer(struct ot_session *s, const struct ot_rows *rows, int64_t sample_row,
                         bool (*stopped)(void), char **prompt, struct ot_generated *out) {
    struct ot_row row = ot_dataset_row(rows->eval_set, sample_row);
    int64_t n = ot_row_prompt_tokens(&row);
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids)
        return ot_fail(OT_E_BUDGET, "no memory for a prompt of %lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++)
        ids[i] = ot_token_id(row.tokens[i]);
    struct ot_generation generation = {.prompt = ids,
                                       .n_prompt = n,
                                       .max_new = ot_min(OT_SAMPLE_TOKENS, longest(s, rows) - n),
                                       .top_p = 1,
                                       .stopped = stopped};
    int rc = ot_tokenizer_decode(s->text.tokenizer, ids, (size_t)n, true, prompt, NULL);
    if (rc == 0)
        rc = ot_generate(s, &generation, out);
    free(ids);
    return rc;
}
