#include "src/train/generator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/data/pipeline.h"
#include "src/data/template.h"
#include "src/session/chat_choice.h"
#include "src/session/session_ranks.h"
#include "src/train/generator_state.h"

void ot_generated_free(struct ot_generated *generated) {
    free(generated->ids);
    free(generated->text);
    *generated = (struct ot_generated){0};
}

/* ---- a group of texts ---- */

struct writer { /* a generation in progress */
    const struct ot_generation *generation;
    struct ot_generated *out;
    struct ot_decode_stream *stream;
    int64_t most; /* new tokens */
    bool is_done;
};

struct group {
    struct ot_session *session;
    struct ot_meetings *meetings; /* NULL: none */
    double started;
    struct writer *writers;          /* [n] */
    struct ot_text_tokens *appended; /* [n]; the next tokens of the texts that go on */
    int32_t *next;                   /* [n] */
    float *logits;                   /* [n, vocab] of the texts in `appended`, in that order */
    struct ot_sampler *sampler;
    int n, n_appended;
    int64_t vocab;
};

static int add_text(struct writer *w, const char *text, size_t bytes) {
    size_t capacity = w->out->bytes;
    OT_TRY(ot_grow(&w->out->text, &capacity, w->out->bytes + bytes + 1, 1, "bytes of generated text"));
    memcpy(w->out->text + w->out->bytes, text, bytes);
    w->out->bytes += bytes;
    w->out->text[w->out->bytes] = '\0';
    return w->generation->emit && bytes ? w->generation->emit(w->generation->context, text, bytes) : 0;
}

int ot_generated_finish(const struct ot_generation *generation, const struct ot_generated *generated) {
    return generation->finished ? generation->finished(generation->context, generated) : 0;
}

static int finish_text(const struct group *g, struct writer *w) {
    const char *text;
    size_t bytes;
    w->is_done = true;
    w->out->seconds = ot_clock_seconds() - g->started;
    OT_TRY(ot_decode_stream_finish(w->stream, &text, &bytes));
    OT_TRY(add_text(w, text, bytes));
    return ot_generated_finish(w->generation, w->out);
}

static bool is_end(const struct ot_session *s, int32_t id) {
    for (int i = 0; i < s->text.ids.n_eos; i++)
        if (s->text.ids.eos[i] == id)
            return true;
    return false;
}

static int check(const struct ot_session *s, const struct ot_generation *g) {
    if (g->n_prompt < 1)
        return ot_fail(OT_E_INPUT,
                       "the prompt has no token; this tokenizer has no start token, so give some text");
    if (g->n_prompt >= ot_model_longest_row(&s->model.config))
        return ot_fail(OT_E_INPUT, "the prompt's %lld tokens leave no room in the model's %lld positions",
                       (long long)g->n_prompt, (long long)ot_model_longest_row(&s->model.config));
    return 0;
}

int64_t ot_generation_room(const struct ot_session *s, const struct ot_generation *g) {
    int64_t room = ot_model_longest_row(&s->model.config) - g->n_prompt;
    return g->n_prompt + ot_min(g->max_new, room) + ot_model_has_pairs(&s->model.config);
}

static int open_writer(const struct ot_session *s, struct writer *w) {
    const struct ot_generation *g = w->generation;
    OT_TRY(check(s, g));
    w->most = ot_min(g->max_new, ot_model_longest_row(&s->model.config) - g->n_prompt);
    ot_generated_free(w->out);
    w->out->ids = malloc((size_t)w->most * sizeof *w->out->ids);
    if (!w->out->ids)
        return ot_fail(OT_E_BUDGET, "no memory to generate %lld tokens", (long long)w->most);
    return ot_decode_stream_open(s->text.tokenizer, true, &w->stream);
}

/* Passes the prompt through the decoder too, so that the first new word keeps the space before it. The
 * decoder of an encoder-decoder writes the answer as a new text. */
static int pass_prompt(struct writer *w) {
    for (int64_t i = 0; i < w->generation->n_prompt; i++) {
        const char *text;
        size_t bytes;
        OT_TRY(ot_decode_stream_push(w->stream, w->generation->prompt[i], &text, &bytes));
    }
    return 0;
}

static int append(struct group *g) {
    return ot_engine_texts_append(g->session->engine, g->appended, g->n_appended, g->logits);
}

/* The prompt of an encoder-decoder is the input; the start token follows it. */
static int read_prompts(struct group *g) {
    static const int32_t start = OT_PAIR_START_ID;
    bool pairs = ot_model_has_pairs(&g->session->model.config);
    g->n_appended = g->n;
    for (int i = 0; i < g->n; i++) {
        const struct ot_generation *generation = g->writers[i].generation;
        g->appended[i] = (struct ot_text_tokens){i, generation->prompt, generation->n_prompt};
        if (!pairs)
            OT_TRY(pass_prompt(&g->writers[i]));
    }
    OT_TRY(append(g));
    for (int i = 0; i < g->n && pairs; i++)
        g->appended[i] = (struct ot_text_tokens){i, &start, 1};
    return pairs ? append(g) : 0;
}

enum { NO_TOKEN = -1 };

/* Chooses the next token of a text. NO_TOKEN: the text ends without another one. */
static int choose_token(struct group *g, const struct writer *w, const float *logits, int32_t *id) {
    const struct ot_generation *generation = w->generation;
    uint64_t stream = ot_random_stream(OT_RANDOM_SAMPLE, generation->number, 0);
    *id = NO_TOKEN;
    if (w->out->n >= w->most || (generation->stopped && generation->stopped()))
        return 0;
    double unit = ot_random_unit(generation->seed, stream, (uint64_t)w->out->n);
    return ot_sampler_pick(g->sampler, logits, generation->temperature, generation->top_p, unit, id);
}

static int write_token(struct group *g, struct writer *w, int32_t id) {
    const char *text;
    size_t bytes;
    w->out->ended = id != NO_TOKEN && is_end(g->session, id);
    if (id == NO_TOKEN || w->out->ended)
        return finish_text(g, w);
    w->out->ids[w->out->n++] = id;
    OT_TRY(ot_decode_stream_push(w->stream, id, &text, &bytes));
    OT_TRY(add_text(w, text, bytes));
    return w->out->n >= w->most ? finish_text(g, w) : 0;
}

/* Ranks that make their passes together choose alike, also if their devices differ in the last digits. */
static int choose_tokens(struct group *g) {
    bool together = g->session->ranks.comm && !g->meetings;
    for (int i = 0; i < g->n_appended && (!together || ot_is_rank0(g->session)); i++) {
        int text = g->appended[i].text;
        OT_TRY(choose_token(g, &g->writers[text], g->logits + i * g->vocab, &g->next[text]));
    }
    size_t bytes = (size_t)g->n * sizeof *g->next;
    return together ? ot_comm_broadcast_host(g->session->ranks.comm, g->next, bytes, 0) : 0;
}

static int write_texts(struct group *g) {
    while (g->n_appended > 0) {
        int left = 0, rc = g->meetings ? ot_meetings_pass(g->meetings) : 0;
        if (rc != 0)
            return rc;
        OT_TRY(choose_tokens(g));
        for (int i = 0; i < g->n_appended; i++) {
            int text = g->appended[i].text;
            OT_TRY(write_token(g, &g->writers[text], g->next[text]));
            if (!g->writers[text].is_done)
                g->appended[left++] = (struct ot_text_tokens){text, &g->next[text], 1};
        }
        g->n_appended = left;
        if (left > 0)
            OT_TRY(append(g));
    }
    return 0;
}

static int begin_texts(struct group *g) {
    bool pairs = ot_model_has_pairs(&g->session->model.config);
    struct ot_text_room *rooms = calloc((size_t)g->n, sizeof *rooms);
    if (!rooms)
        return ot_fail(OT_E_BUDGET, "no memory to generate %d texts", g->n);
    for (int i = 0; i < g->n; i++) {
        const struct ot_generation *generation = g->writers[i].generation;
        rooms[i] = (struct ot_text_room){pairs ? generation->n_prompt : 0,
                                         ot_generation_room(g->session, generation)};
    }
    int rc = ot_engine_texts_begin(g->session->engine, rooms, g->n);
    free(rooms);
    return rc;
}

static int generate_group(struct ot_session *s, const struct ot_generation *generations, int n,
                          struct ot_meetings *meetings, struct ot_generated *out) {
    struct group g = {.session = s,
                      .meetings = meetings,
                      .started = ot_clock_seconds(),
                      .n = n,
                      .vocab = ot_model_chain(s->model.built)->vocab};
    int rc;
    g.writers = calloc((size_t)n, sizeof *g.writers);
    g.appended = calloc((size_t)n, sizeof *g.appended);
    g.next = calloc((size_t)n, sizeof *g.next);
    g.logits = malloc((size_t)(n * g.vocab) * sizeof *g.logits);
    if (!g.writers || !g.appended || !g.next || !g.logits)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory to generate %d texts", n), rc, out);
    OT_TRY_GOTO(ot_sampler_open(g.vocab, &g.sampler), rc, out);
    for (int i = 0; i < n; i++) {
        g.writers[i] = (struct writer){.generation = &generations[i], .out = &out[i]};
        OT_TRY_GOTO(open_writer(s, &g.writers[i]), rc, out);
    }
    OT_TRY_GOTO(begin_texts(&g), rc, out);
    rc = read_prompts(&g);
    if (rc >= 0)
        rc = write_texts(&g);
    ot_engine_decode_end(s->engine);
out:
    for (int i = 0; i < n && g.writers; i++)
        ot_decode_stream_close(g.writers[i].stream);
    ot_sampler_close(g.sampler);
    free(g.writers);
    free(g.appended);
    free(g.next);
    free(g.logits);
    return rc;
}

int ot_generate_groups(struct ot_session *s, const struct ot_generation *generations, int n,
                       struct ot_meetings *meetings, struct ot_generated *out) {
    for (int i = 0, group; i < n; i += group) {
        int64_t tokens = 0;
        for (group = 0; i + group < n && group < ot_max(s->plan.texts, 1); group++) {
            tokens += ot_generation_room(s, &generations[i + group]);
            if (group > 0 && tokens > s->plan.cache_tokens)
                break;
        }
        int rc = generate_group(s, generations + i, group, meetings, out + i);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int ot_generate_all(struct ot_session *s, const struct ot_generation *generations, int n,
                    struct ot_generated *out) {
    return s->ranks.comm && ot_engine_runs_alone(s->engine)
               ? ot_generate_shared(s, generations, n, out)
               : ot_generate_groups(s, generations, n, NULL, out);
}

int ot_generate(struct ot_session *s, const struct ot_generation *generation, struct ot_generated *out) {
    return ot_generate_all(s, generation, 1, out);
}

/* ---- the choice of a token ---- */

struct candidate {
    double weight;
    int32_t id;
};

struct ot_sampler {
    int64_t vocab;
    struct candidate candidates[];
};

int ot_sampler_open(int64_t vocab, struct ot_sampler **out) {
    *out = malloc(sizeof **out + (size_t)vocab * sizeof(struct candidate));
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory to sample from %lld tokens", (long long)vocab);
    (*out)->vocab = vocab;
    return 0;
}

void ot_sampler_close(struct ot_sampler *sampler) {
    free(sampler);
}

static int by_weight(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

int ot_sampler_pick(struct ot_sampler *sampler, const float *logits, double temperature, double top_p,
                    double unit, int32_t *id) {
    int32_t best = 0;
    for (int64_t i = 0; i < sampler->vocab; i++) {
        if (isnan(logits[i]))
            return ot_fail(OT_E_NUMERIC, "the model's output is not a number; its weights are damaged");
        if (logits[i] > logits[best])
            best = (int32_t)i;
    }
    *id = best;
    if (temperature <= 0)
        return 0;
    double sum = 0;
    for (int64_t i = 0; i < sampler->vocab; i++) {
        double weight = exp(((double)logits[i] - logits[best]) / temperature);
        sampler->candidates[i] = (struct candidate){weight, (int32_t)i};
        sum += weight;
    }
    qsort(sampler->candidates, (size_t)sampler->vocab, sizeof *sampler->candidates, by_weight);
    double kept = 0;
    int64_t n = 0;
    while (n < sampler->vocab && (n == 0 || kept < top_p * sum))
        kept += sampler->candidates[n++].weight;
    double at = unit * kept;
    for (int64_t i = 0; i < n; i++) {
        *id = sampler->candidates[i].id;
        at -= sampler->candidates[i].weight;
        if (at < 0)
            break;
    }
    return 0;
}

/* ---- prompts ---- */

void ot_prompt_free(struct ot_prompt *prompt) {
    free(prompt->ids);
    *prompt = (struct ot_prompt){0};
}

static int32_t *allocate(struct ot_prompt *out, int64_t n) {
    out->n = n;
    out->ids = malloc((size_t)(n + 1) * sizeof *out->ids);
    if (!out->ids)
        ot_fail(OT_E_BUDGET, "no memory for a prompt of %lld tokens", (long long)n);
    return out->ids;
}

int ot_prompt_from_text(const struct ot_session *s, const char *text, size_t bytes, struct ot_prompt *out) {
    struct ot_token_list list = {0};
    int rc = ot_tokenizer_encode(s->text.tokenizer, text, bytes, 0, &list);
    int32_t bos = s->text.specials.add_bos && !s->options->no_special ? s->text.specials.bos_id : -1;
    int front = bos >= 0 && (list.n == 0 || list.ids[0] != bos);
    bool pair =
        ot_model_has_pairs(&s->model.config) && s->text.specials.n_eos > 0; /* an input ends with EOS */
    if (rc == 0 && !allocate(out, (int64_t)list.n + front + pair))
        rc = -OT_E_BUDGET;
    if (rc == 0) {
        out->ids[0] = bos;
        if (list.n > 0)
            memcpy(out->ids + front, list.ids, list.n * sizeof *list.ids);
        if (pair)
            out->ids[out->n - 1] = s->text.specials.eos_ids[0];
    }
    ot_token_list_free(&list);
    return rc;
}

/* ---- rows ---- */

/* The name of an answer for each name of a prompt. Both kinds of chats end with a turn of the assistant. */
static const struct {
    const char *prompt, *answer;
} plain_kinds[] = {
    {"question", "answer"}, {"instruction", "output"}, {"prompt", "completion"}, {"input", "target"}};
static const struct {
    const char *turns, *role, *text, *assistant;
} chat_kinds[] = {{"messages", "role", "content", "assistant"}, {"conversations", "from", "value", "gpt"}};
static const char filler[] = "."; /* stands in for the answer; its tokens are cut off again */

static void copy_members(const struct ot_json *row, const char *but, struct ot_json_writer *w) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(row, &cursor, &key, &value))
        if (strcmp(key, but) != 0)
            ot_json_put_value(w, key, value);
}

static bool is_blank(const struct ot_json *value) {
    size_t bytes;
    const char *text = ot_json_string(value, &bytes);
    return text && ot_text_is_blank(text, bytes);
}

/* Returns the last turn if the assistant speaks it, else NULL. */
static const struct ot_json *find_answer_turn(const struct ot_json *row, int kind) {
    const struct ot_json *turns = ot_json_get(row, chat_kinds[kind].turns);
    size_t n = ot_json_length(turns);
    const struct ot_json *turn = n ? ot_json_at(turns, n - 1) : NULL;
    const char *role = ot_json_string(ot_json_get(turn, chat_kinds[kind].role), NULL);
    bool answers = role && (strcmp(role, chat_kinds[kind].assistant) == 0 || strcmp(role, "assistant") == 0);
    return answers ? turn : NULL;
}

static void add_turn(const struct ot_json *row, int kind, struct ot_json_writer *w) {
    const struct ot_json *turns = ot_json_get(row, chat_kinds[kind].turns);
    ot_json_begin_array(w, chat_kinds[kind].turns);
    size_t n = ot_json_length(turns) - (find_answer_turn(row, kind) != NULL); /* replaces an empty answer */
    for (size_t i = 0; i < n; i++)
        ot_json_put_value(w, NULL, ot_json_at(turns, i));
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, chat_kinds[kind].role, chat_kinds[kind].assistant);
    ot_json_put_text(w, chat_kinds[kind].text, filler);
    ot_json_end_object(w);
    ot_json_end_array(w);
}

/* NaN may stand in a field that is not used, and is then written as null. */
static int check_members(const struct ot_json *row, const char *where) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(row, &cursor, &key, &value))
        if (ot_json_type(value) != OT_JSON_REAL)
            OT_TRY(ot_row_check_value(value, key, where));
    return 0;
}

static void put_answer(const struct ot_json *row, const char *key, struct ot_json_writer *w) {
    if (ot_json_type(ot_json_get(row, "prompt")) != OT_JSON_ARRAY) {
        ot_json_put_text(w, key, filler);
        return;
    }
    ot_json_begin_array(w, key);
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "role", "assistant");
    ot_json_put_text(w, "content", filler);
    ot_json_end_object(w);
    ot_json_end_array(w);
}

/* Gives the row an answer that is not blank. *out is the row itself, or a new row that replaces it. */
static int complete_row(struct ot_json *row, bool custom, const char *where, struct ot_json **out) {
    int chat = -1;
    const char *missing = custom ? "answer" : NULL;
    *out = row;
    for (int i = 0; i < 2; i++)
        if (ot_json_get(row, chat_kinds[i].turns)) {
            chat = i;
            const struct ot_json *turn = find_answer_turn(row, i);
            if (turn && !is_blank(ot_json_get(turn, chat_kinds[i].text)))
                return 0;
        }
    for (const char *const *key = ot_answer_keys; *key; key++) {
        const struct ot_json *answer = ot_json_get(row, *key);
        if (answer && !is_blank(answer))
            return 0;
        if (answer)
            missing = *key;
    }
    for (size_t i = 0; i < sizeof plain_kinds / sizeof *plain_kinds; i++)
        if (!missing && ot_json_get(row, plain_kinds[i].prompt))
            missing = plain_kinds[i].answer;
    if (chat < 0 && !missing)
        return 0; /* ot_format_detect reports what is wrong */
    struct ot_json_writer w = {.indent = -1};
    char *text;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    copy_members(row, chat >= 0 ? chat_kinds[chat].turns : missing, &w);
    if (chat >= 0)
        add_turn(row, chat, &w);
    else
        put_answer(row, missing, &w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = ot_json_parse(text, bytes, where, out);
    free(text);
    if (rc == 0)
        ot_json_free(row);
    return rc;
}

/* Counts the tokens before the last range that trains: earlier turns of a chat belong to the prompt. Of a
 * pair, the tokens of the input. */
static size_t count_prompt(const struct ot_sample *sample, bool pair) {
    size_t n = sample->n_tokens;
    if (pair)
        return n - (size_t)sample->trained;
    while (n > 0 && !ot_token_trained(sample->tokens[n - 1]))
        n--;
    while (n > 0 && ot_token_trained(sample->tokens[n - 1]))
        n--;
    return n;
}

static int take_prompt(const struct ot_sample *sample, size_t n, struct ot_prompt *out) {
    if (!allocate(out, (int64_t)n))
        return -OT_E_BUDGET;
    for (size_t i = 0; i < n; i++)
        out->ids[i] = ot_token_id(sample->tokens[i]);
    return 0;
}

int ot_prompt_from_row(const struct ot_session *s, const char *text, size_t bytes, const char *where,
                       struct ot_prompt *out) {
    struct ot_format_config config = {
        .chat = ot_chat_choice(s), .prompt_format = s->text.prompt_format, .tokenizer = s->text.tokenizer};
    struct ot_sample_config sampling = {.tokenizer = s->text.tokenizer,
                                        .specials = s->text.specials,
                                        .append_eos = true,
                                        .pairs = ot_model_has_pairs(&s->model.config),
                                        .seq_len = s->model.config.max_position,
                                        .vocab_size = (int32_t)s->model.config.vocab};
    struct ot_rendered rendered = {0};
    struct ot_sample sample = {0};
    struct ot_format *format = NULL;
    struct ot_columns *columns = NULL;
    struct ot_json *row = NULL;
    int rc;
    OT_TRY_GOTO(ot_json_parse_row(text, bytes, where, &row), rc, out);
    if (ot_json_type(row) != OT_JSON_OBJECT) {
        rc = ot_fail(OT_E_INPUT, "%s: --row needs a JSON object such as {\"question\": ...}", where);
        goto out;
    }
    if (s->options->columns) {
        bool custom = s->options->prompt_format != NULL;
        OT_TRY_GOTO(ot_columns_open(s->options->columns, custom, &columns), rc, out);
        OT_TRY_GOTO(ot_columns_rename(columns, row, false, where), rc, out);
    }
    OT_TRY_GOTO(check_members(row, where), rc, out); /* before it is written anew */
    OT_TRY_GOTO(complete_row(row, s->text.prompt_format != NULL, where, &row), rc, out);
    OT_TRY_GOTO(ot_pipeline_marks(s->text.tokenizer, &s->text.specials, &config.marks), rc, out);
    OT_TRY_GOTO(ot_format_open(&config, &format), rc, out);
    OT_TRY_GOTO(ot_format_detect(format, row, where), rc, out);
    ot_chat_choice_settle(s, ot_format_template(format), ot_format_template_source(format));
    rc = ot_format_render_prompt(format, row, where, &rendered);
    bool alone = rc > 0;
    sampling.append_eos = !alone;
    if (rc == 0)
        rc = ot_format_render(format, row, where, &rendered);
    if (rc < 0)
        goto out;
    OT_TRY_GOTO(ot_sample_make(&sampling, &rendered, false, where, &sample), rc, out);
    if (sample.truncated)
        rc = ot_fail(OT_E_INPUT, "%s: the row is longer than the model's %lld positions", where,
                     (long long)s->model.config.max_position);
    else
        rc = take_prompt(&sample, alone ? sample.n_tokens : count_prompt(&sample, sampling.pairs), out);
out:
    ot_sample_free(&sample);
    ot_rendered_free(&rendered);
    ot_format_close(format);
    ot_columns_close(columns);
    ot_json_free(row);
    return rc;
}
