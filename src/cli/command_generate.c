/* offload-train generate: continues texts, or answers data rows. Texts of several prompts grow side by side.
 * Several ranks generate together (src/train/generator.h); rank 0 alone reads prompts and prints. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/signals.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/cli/chat.h"
#include "src/cli/command.h"
#include "src/cli/launch.h"
#include "src/cli/turns.h"
#include "src/session/open.h"
#include "src/session/session_ranks.h"
#include "src/train/generator.h"
#include "src/train/run_identity.h"

enum { MOST_PROMPTS = 100000, PREFILL_TOKENS = 512, MOST_TEXTS = 64 };
/* Prompts, or pieces of a long one, that a pass reads together: each takes memory for the activations between
 * layers. */
enum { PROMPTS_TOGETHER = OT_MOST_PIECES };
/* Prompts whose texts are in memory at the same time. */
enum { PROMPTS_AT_ONCE = 1024 };
/* On a terminal, memory is planned before the prompts are known: room for prompts of up to this many tokens.
 */
enum { DIALOGUE_TOKENS = 4096 };

enum mode { PROMPTS, DIALOGUE, CHAT };

struct job {
    struct ot_session session;
    struct ot_lines lines;     /* rank 0 */
    struct ot_prompt *prompts; /* [n] */
    size_t n;
    int64_t longest, capacity; /* tokens of the longest prompt; of a prompt and its text together */
    int64_t texts_tokens;      /* of the caches of all prompts; 0: one text at a time */
};

/* Checks the prompt against the model; the tokenizer may belong to another model. */
static int check_prompt(const struct job *job, const struct ot_prompt *prompt, const char *where) {
    const struct ot_session *s = &job->session;
    for (int64_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] >= s->model.config.vocab) {
            const char *token = ot_tokenizer_token(s->text.tokenizer, prompt->ids[i], NULL);
            return ot_fail(OT_E_INPUT,
                           "%s: token %d ('%s') is outside of the model's embedding, which has %lld rows; "
                           "use the tokenizer of this model",
                           where, prompt->ids[i], token ? token : "", (long long)s->model.config.vocab);
        }
    if (prompt->n < 1)
        return ot_fail(OT_E_INPUT,
                       "%s: the prompt has no token; this tokenizer has no start token, so give some text",
                       where);
    if (prompt->n >= ot_model_longest_row(&s->model.config))
        return ot_fail(
            OT_E_INPUT,
            "%s: the prompt has %lld tokens and leaves no room in the model's %lld positions; shorten it",
            where, (long long)prompt->n, (long long)ot_model_longest_row(&s->model.config));
    if (job->capacity && prompt->n >= job->capacity)
        return ot_fail(
            OT_E_INPUT,
            "%s: the prompt has %lld tokens, but there is room for only %lld here; use -p for long prompts",
            where, (long long)prompt->n, (long long)job->capacity);
    return 0;
}

/* Makes the prompt of line i. The caller frees it, also after an error. */
static int make_row_prompt(const struct job *job, size_t i, struct ot_prompt *prompt) {
    const struct ot_session *s = &job->session;
    const char *text = job->lines.text[i];
    char where[40] = "--prompt";
    if (!s->options->prompt)
        snprintf(where, sizeof where, "stdin:%zu", i + 1);
    OT_TRY(s->options->row ? ot_prompt_from_row(s, text, job->lines.bytes[i], where, prompt)
                           : ot_prompt_from_text(s, text, job->lines.bytes[i], prompt));
    return check_prompt(job, prompt, where);
}

static int allocate_prompts(struct job *job, size_t n) {
    job->prompts = calloc(n, sizeof *job->prompts);
    if (!job->prompts)
        return ot_fail(OT_E_BUDGET, "no memory for %zu prompts", n);
    job->n = n;
    return 0;
}

static int read_prompts(struct job *job) {
    const struct ot_options *o = job->session.options;
    if (o->prompt)
        OT_TRY(ot_lines_add(&job->lines, o->prompt, strlen(o->prompt)));
    else
        OT_TRY(ot_lines_read_stdin(&job->lines, MOST_PROMPTS));
    if (job->lines.n == 0)
        return ot_fail(OT_E_INPUT, "stdin: no prompt; use -p TEXT, or write one prompt per line");
    OT_TRY(allocate_prompts(job, job->lines.n));
    for (size_t i = 0; i < job->n; i++)
        OT_TRY(make_row_prompt(job, i, &job->prompts[i]));
    return 0;
}

/* On the other ranks: takes the prompts out of the bytes of hand_prompts. */
static int take_prompts(struct job *job, size_t n, const unsigned char *bytes) {
    const unsigned char *at = bytes + n * sizeof(int64_t);
    OT_TRY(allocate_prompts(job, n));
    for (size_t i = 0; i < n; i++) {
        struct ot_prompt *prompt = &job->prompts[i];
        memcpy(&prompt->n, bytes + i * sizeof prompt->n, sizeof prompt->n);
        size_t ids = (size_t)prompt->n * sizeof *prompt->ids;
        prompt->ids = malloc(ids + 1);
        if (!prompt->ids)
            return ot_fail(OT_E_BUDGET, "no memory for a prompt of %lld tokens", (long long)prompt->n);
        memcpy(prompt->ids, at, ids);
        at += ids;
    }
    return 0;
}

/* Hands rank 0's prompts to all ranks: their lengths, then their tokens. */
static int hand_prompts(struct job *job) {
    struct ot_session *s = &job->session;
    size_t bytes = job->n * sizeof(int64_t), at = 0;
    for (size_t i = 0; i < job->n; i++)
        bytes += (size_t)job->prompts[i].n * sizeof(int32_t);
    unsigned char *all = ot_is_rank0(s) ? malloc(bytes) : NULL;
    if (ot_is_rank0(s) && !all)
        return ot_fail(OT_E_BUDGET, "no memory for the tokens of %zu prompts", job->n);
    for (size_t i = 0; i < job->n; i++)
        memcpy(all + i * sizeof(int64_t), &job->prompts[i].n, sizeof(int64_t));
    at = job->n * sizeof(int64_t);
    for (size_t i = 0; i < job->n; at += (size_t)job->prompts[i++].n * sizeof(int32_t))
        memcpy(all + at, job->prompts[i].ids, (size_t)job->prompts[i].n * sizeof(int32_t));
    int n = (int)job->n, rc = ot_session_ranks_choose(s, &n);
    if (rc == 0)
        rc = ot_session_ranks_hand(s, 0, &all, &bytes);
    if (rc == 0 && !ot_is_rank0(s))
        rc = take_prompts(job, (size_t)n, all);
    free(all);
    return rc;
}

/* Finds the memory that the texts need side by side. */
static void find_needs(struct job *job) {
    const struct ot_session *s = &job->session;
    for (size_t i = 0; i < job->n; i++) {
        const struct ot_generation generation = {.n_prompt = job->prompts[i].n,
                                                 .max_new = s->options->max_new_tokens};
        job->texts_tokens += ot_generation_room(s, &generation);
        job->longest = ot_max(job->longest, job->prompts[i].n);
    }
}

static int start(struct job *job) {
    struct ot_session *s = &job->session;
    int64_t longest_row = ot_model_longest_row(&s->model.config), n = ot_max(job->n, (size_t)1);
    int64_t capacity = ot_min(job->longest + s->options->max_new_tokens, longest_row);
    job->capacity = capacity;
    /* The input of an encoder-decoder is encoded at once, and a start token follows. */
    bool pairs = ot_model_has_pairs(&s->model.config);
    int64_t prefill = job->longest < 1                         ? 1
                      : job->longest < PREFILL_TOKENS || pairs ? job->longest
                                                               : PREFILL_TOKENS;
    int64_t texts = ot_min(ot_min(n, MOST_TEXTS), capacity); /* a pass has a token of each */
    int64_t pieces = s->ranks.comm ? 1 : (job->longest + prefill - 1) / prefill;
    struct ot_session_need need = {.max_position = capacity,
                                   .sequence_tokens = ot_max(prefill, texts),
                                   .step_sequences = ot_min(ot_max(n, pieces), PROMPTS_TOGETHER),
                                   .micro_sequences = 1,
                                   .cache_tokens = ot_max(job->texts_tokens, capacity + pairs),
                                   .texts = job->texts_tokens > 0 ? n : 0,
                                   .longest_text = capacity + pairs};
    OT_TRY(ot_session_plan(s, &need));
    OT_TRY(ot_session_start(s, NULL));
    return ot_agree_on_weights(s);
}

/* ---- printing ---- */

/* Texts grow side by side, but are printed one after the other, in the order of their prompts. The first text
 * that is not finished is printed as it grows. The pieces of later texts are kept until their turn. */
struct printer {
    struct job *job;
    size_t first, n; /* prompts of this round: */
    const struct ot_prompt *prompts;
    size_t turn;            /* index of the text that is printed now */
    struct text_state *all; /* [n] */
    int64_t tokens;
};

struct text_state {
    struct printer *printer;
    struct ot_string_builder kept;
    size_t bytes; /* that were kept or printed */
    bool is_done;
};

static int print(const char *text, size_t bytes) {
    if (bytes > 0 && (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0))
        return ot_fail(OT_E_IO, "stdout: cannot write the text");
    return 0;
}

static int take_piece(void *context, const char *text, size_t bytes) {
    struct text_state *state = context;
    struct printer *p = state->printer;
    state->bytes += bytes;
    if (state == &p->all[p->turn])
        return print(text, bytes);
    ot_string_append(&state->kept, text, bytes);
    return state->kept.failed ? ot_fail(OT_E_BUDGET, "no memory for generated text") : 0;
}

/* Prints what the texts have whose turn it is. */
static int print_turns(struct printer *p) {
    for (;; p->turn++) {
        struct text_state *state = &p->all[p->turn];
        OT_TRY(print(state->kept.text, state->kept.bytes));
        free(state->kept.text);
        state->kept = (struct ot_string_builder){0};
        if (!state->is_done)
            return 0;
        OT_TRY(print("\n", 1));
        if (p->turn + 1 == p->n)
            return 0;
    }
}

static int make_line(const struct printer *p, size_t i, const struct ot_generated *generated, char **line,
                     size_t *bytes) {
    const struct ot_lines *lines = &p->job->lines;
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_string(&w, "prompt", lines->text[p->first + i], lines->bytes[p->first + i]);
    ot_json_put_string(&w, "text", generated->text ? generated->text : "", generated->bytes);
    ot_json_begin_array(&w, "ids");
    for (int64_t t = 0; t < generated->n; t++)
        ot_json_put_int(&w, NULL, generated->ids[t]);
    ot_json_end_array(&w);
    ot_json_put_text(&w, "ended_by", generated->ended ? "eos" : "length");
    ot_json_put_int(&w, "prompt_tokens", p->prompts[i].n);
    ot_json_put_real(&w, "seconds", generated->seconds);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, line, bytes);
}

/* Keeps the line of --json, or the pieces of a text that another rank has generated. */
static int take_text(void *context, const struct ot_generated *text) {
    struct text_state *state = context;
    struct printer *p = state->printer;
    size_t i = (size_t)(state - p->all), bytes = text->bytes, seen = state->bytes;
    char *line = NULL;
    if (p->job->session.options->json)
        OT_TRY(make_line(p, i, text, &line, &bytes));
    if (bytes > seen)
        ot_string_append(&state->kept, (line ? line : text->text) + seen, bytes - seen);
    free(line);
    state->is_done = true;
    p->tokens += text->n;
    if (state->kept.failed)
        return ot_fail(OT_E_BUDGET, "no memory for generated text");
    return i == p->turn ? print_turns(p) : 0;
}

static void log_speed(const struct ot_generated *texts, const struct printer *p, double seconds) {
    char time[OT_TEXT_BYTES], many[40] = "";
    bool all_ended = true;
    for (size_t i = 0; i < p->n; i++)
        all_ended = all_ended && texts[i].ended;
    if (!ot_log_is_terminal())
        return;
    if (p->n > 1)
        snprintf(many, sizeof many, "%zu texts, ", p->n);
    ot_log(OT_LOG_INFO, "%s%lld tokens in %s, %.1f tok/s%s", many, (long long)p->tokens,
           ot_text_duration(seconds, time), seconds > 0 ? (double)p->tokens / seconds : 0.0,
           all_ended ? "" : " (stopped by --max-new-tokens or the model's maximum length)");
}

/* ---- generation ---- */

static struct ot_generation generation_of(const struct job *job, size_t i, const struct ot_prompt *prompt,
                                          struct text_state *state) {
    const struct ot_options *o = job->session.options;
    bool prints = ot_is_rank0(&job->session);
    return (struct ot_generation){.prompt = prompt->ids,
                                  .n_prompt = prompt->n,
                                  .max_new = ot_min(o->max_new_tokens, job->capacity - prompt->n),
                                  .temperature = o->temperature,
                                  .top_p = o->top_p,
                                  .seed = (uint64_t)o->seed,
                                  .number = i,
                                  .emit = prints && !o->json ? take_piece : NULL,
                                  .finished = prints ? take_text : NULL,
                                  .context = state};
}

/* Generates the texts of n prompts, from prompt `first` on. turn: of a dialogue. */
static int generate(struct job *job, size_t first, size_t n, const struct ot_prompt *prompts, bool turn) {
    struct printer p = {
        .job = job, .first = first, .n = n, .prompts = prompts, .all = calloc(n, sizeof *p.all)};
    double started = ot_clock_seconds();
    struct ot_generation *generations = calloc(n, sizeof *generations);
    struct ot_generated *texts = calloc(n, sizeof *texts);
    int rc;
    if (!p.all || !generations || !texts)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory to generate %zu texts", n), rc, out);
    for (size_t i = 0; i < n; i++) {
        p.all[i].printer = &p;
        generations[i] = generation_of(job, first + i, &prompts[i], &p.all[i]);
    }
    rc = turn ? ot_turns_generate(&job->session, generations, texts)
              : ot_generate_all(&job->session, generations, (int)n, texts);
    if (rc == 0 && ot_is_rank0(&job->session))
        log_speed(texts, &p, ot_clock_seconds() - started);
out:
    for (size_t i = 0; i < n && p.all && texts; i++) {
        free(p.all[i].kept.text);
        ot_generated_free(&texts[i]);
    }
    free(p.all);
    free(generations);
    free(texts);
    return rc;
}

/* Prints the bytes that fetches of experts have copied and saved. */
static void print_experts(const struct ot_session *s) {
    struct ot_engine_fetches fetches;
    const struct ot_chain *chain = ot_model_chain(s->model.built);
    char copied[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    ot_engine_get_fetches(s->engine, &fetches);
    if (fetches.parts == 0 || !ot_log_is_terminal())
        return;
    int parts = ot_chain_most_parts(chain);
    ot_log(OT_LOG_INFO,
           "experts: %.1f of %d of a layer fetched on average · %s of weights copied, %s left at home",
           parts * (double)fetches.used / (double)fetches.parts, parts,
           ot_text_bytes((double)fetches.bytes, copied), ot_text_bytes((double)fetches.left_bytes, left));
}

/* Reads the next line of a dialogue. Returns 1, 0 at its end, or an error. */
static int read_turn(struct job *job) {
    int rc = job->session.ranks.comm ? ot_turns_await(&job->session, NULL) : 1;
    return rc > 0 ? ot_lines_read_stdin(&job->lines, 1) : rc;
}

/* A dialogue on a terminal: the user types a line and reads the answer. A line that is not a valid prompt
 * gets its error, and the dialogue continues. */
static int converse(struct job *job) {
    int n;
    ot_turns_begin(&job->session);
    ot_lines_invite();
    while ((n = read_turn(job)) > 0) {
        struct ot_prompt prompt = {0};
        size_t i = job->lines.n - 1;
        int rc = make_row_prompt(job, i, &prompt);
        if (rc < 0)
            ot_log(OT_LOG_ERROR, "%s", ot_error_text());
        else
            rc = generate(job, i, 1, &prompt, true);
        ot_prompt_free(&prompt);
        if (rc < 0 && rc != -OT_E_INPUT)
            return rc;
        if (fflush(stdout) != 0)
            return ot_fail(OT_E_IO, "stdout: cannot write the text");
    }
    return ot_turns_end(&job->session, n);
}

/* The other ranks of a dialogue. Ctrl-C at their terminal stops an answer of --chat; rank 0 sees to that. */
static int follow(struct job *job, enum mode mode) {
    if (mode == CHAT)
        signal(SIGINT, SIG_IGN);
    return ot_turns_follow(&job->session);
}

/* The template of --chat is checked before memory is taken. */
static int run_dialogue(struct job *job, enum mode mode) {
    struct ot_session *s = &job->session;
    if (mode == CHAT)
        s->text.prompt_format = NULL; /* the format of a run's rows has no turns */
    if (mode == CHAT && ot_is_rank0(s))
        OT_TRY(ot_chat_check(s));
    job->longest = mode == CHAT ? OT_CHAT_TOKENS : DIALOGUE_TOKENS;
    OT_TRY(start(job));
    if (!ot_is_rank0(s))
        return follow(job, mode);
    return mode == CHAT ? ot_chat_run(s, job->capacity) : converse(job);
}

static int run(struct job *job) {
    struct ot_session *s = &job->session;
    int mode = s->options->chat ? CHAT : !s->options->prompt && isatty(STDIN_FILENO) ? DIALOGUE : PROMPTS;
    OT_TRY(ot_agree_on_use(s, NULL));
    OT_TRY(ot_session_ranks_choose(s, &mode));
    if (mode != PROMPTS)
        return run_dialogue(job, mode);
    if (ot_is_rank0(s))
        OT_TRY(read_prompts(job));
    if (s->ranks.comm)
        OT_TRY(hand_prompts(job));
    find_needs(job);
    OT_TRY(start(job));
    for (size_t i = 0; i < job->n; i += PROMPTS_AT_ONCE)
        OT_TRY(generate(job, i, ot_min(job->n - i, (size_t)PROMPTS_AT_ONCE), job->prompts + i, false));
    if (ot_is_rank0(s))
        print_experts(s);
    return 0;
}

int ot_command_generate(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct ot_world *world = NULL;
    struct job job = {0};
    int rc = ot_launch_join(options, &world);
    job.session.ranks.world = world;
    if (rc == 0 && world)
        rc = ot_stop_install_early("error: stopped before all text was generated\n");
    if (rc == 0)
        rc = ot_session_open(&settings, &job.session);
    if (rc == 0)
        rc = run(&job);
    rc = ot_launch_leave(&job.session, world, rc);
    for (size_t i = 0; job.prompts && i < job.n; i++)
        ot_prompt_free(&job.prompts[i]);
    free(job.prompts);
    ot_lines_clear(&job.lines);
    return rc;
}
