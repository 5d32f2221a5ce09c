/* offload-train generate: continues texts, or answers data rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/cli/chat.h"
#include "src/cli/command.h"
#include "src/report/lines.h"
#include "src/train/generator.h"
#include "src/train/prompt.h"

enum { MOST_PROMPTS = 100000, PREFILL_TOKENS = 512 };
/* On a terminal, memory is planned before the prompts are known: room for prompts of up to this many tokens.
 */
enum { DIALOGUE_TOKENS = 4096 };

struct job {
    struct ot_session session;
    struct ot_lines lines;
    struct ot_prompt *prompts; /* [lines.n] */
    int64_t longest, capacity; /* tokens of the longest prompt; of a prompt and its text together */
};

/* Checks the prompt against the model; the tokenizer may belong to another model. */
static int check_prompt(const struct job *job, const struct ot_prompt *prompt, const char *where) {
    const struct ot_session *s = &job->session;
    for (int64_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] >= s->config.vocab) {
            const char *token = ot_tokenizer_token(s->tokenizer, prompt->ids[i], NULL);
            return ot_fail(OT_E_INPUT,
                           "%s: token %d ('%s') is outside of the model's embedding, which has %lld rows; "
                           "use the tokenizer of this model",
                           where, prompt->ids[i], token ? token : "", (long long)s->config.vocab);
        }
    if (prompt->n >= ot_model_longest_row(&s->config))
        return ot_fail(
            OT_E_INPUT,
            "%s: the prompt has %lld tokens and leaves no room in the model's %lld positions; shorten it",
            where, (long long)prompt->n, (long long)ot_model_longest_row(&s->config));
    if (job->capacity && prompt->n >= job->capacity)
        return ot_fail(
            OT_E_INPUT,
            "%s: the prompt has %lld tokens, but there is room for only %lld here; use -p for long prompts",
            where, (long long)prompt->n, (long long)job->capacity);
    return 0;
}

/* Makes the prompt of line i. The caller frees it, also after an error. */
static int make_prompt(const struct job *job, size_t i, struct ot_prompt *prompt) {
    const struct ot_session *s = &job->session;
    const char *text = job->lines.text[i];
    char where[40] = "--prompt";
    if (!s->options->prompt)
        snprintf(where, sizeof where, "stdin:%zu", i + 1);
    OT_TRY(s->options->row ? ot_prompt_from_row(s, text, job->lines.bytes[i], where, prompt)
                           : ot_prompt_from_text(s, text, job->lines.bytes[i], prompt));
    return check_prompt(job, prompt, where);
}

static int read_prompts(struct job *job) {
    const struct ot_options *o = job->session.options;
    if (o->prompt)
        OT_TRY(ot_lines_add(&job->lines, o->prompt, strlen(o->prompt)));
    else
        OT_TRY(ot_lines_read_stdin(&job->lines, MOST_PROMPTS));
    if (job->lines.n == 0)
        return ot_fail(OT_E_INPUT, "stdin: no prompt; use -p TEXT, or write one prompt per line");
    job->prompts = calloc(job->lines.n, sizeof *job->prompts);
    if (!job->prompts)
        return ot_fail(OT_E_BUDGET, "no memory for %zu prompts", job->lines.n);
    for (size_t i = 0; i < job->lines.n; i++) {
        OT_TRY(make_prompt(job, i, &job->prompts[i]));
        if (job->prompts[i].n > job->longest)
            job->longest = job->prompts[i].n;
    }
    return 0;
}

static int start(struct job *job) {
    struct ot_session *s = &job->session;
    int64_t capacity = job->longest + s->options->max_new_tokens;
    if (capacity > ot_model_longest_row(&s->config))
        capacity = ot_model_longest_row(&s->config);
    job->capacity = capacity;
    bool pairs = ot_model_has_pairs(&s->config); /* an input is encoded at once, and a start token follows */
    int64_t prefill = job->longest < 1                         ? 1
                      : job->longest < PREFILL_TOKENS || pairs ? job->longest
                                                               : PREFILL_TOKENS;
    struct ot_session_need need = {.max_position = capacity,
                                   .sequence_tokens = prefill,
                                   .step_sequences = 1,
                                   .micro_sequences = 1,
                                   .cache_tokens = capacity + pairs};
    OT_TRY(ot_session_plan(s, &need));
    return ot_session_start(s, NULL);
}

static int print_piece(void *context, const char *text, size_t bytes) {
    (void)context;
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return ot_fail(OT_E_IO, "stdout: cannot write the text");
    return 0;
}

static int print_json(const struct job *job, size_t i, const struct ot_prompt *prompt,
                      const struct ot_generated *generated) {
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_string(&w, "prompt", job->lines.text[i], job->lines.bytes[i]);
    ot_json_put_string(&w, "text", generated->text ? generated->text : "", generated->bytes);
    ot_json_begin_array(&w, "ids");
    for (int64_t t = 0; t < generated->n; t++)
        ot_json_put_int(&w, NULL, generated->ids[t]);
    ot_json_end_array(&w);
    ot_json_put_text(&w, "ended_by", generated->ended ? "eos" : "length");
    ot_json_put_int(&w, "prompt_tokens", prompt->n);
    ot_json_put_real(&w, "seconds", generated->seconds);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}

static int generate_one(struct job *job, size_t i, const struct ot_prompt *prompt) {
    const struct ot_options *o = job->session.options;
    int64_t room = job->capacity - prompt->n;
    struct ot_generation generation = {.prompt = prompt->ids,
                                       .n_prompt = prompt->n,
                                       .max_new = ot_min(o->max_new_tokens, room),
                                       .temperature = o->temperature,
                                       .top_p = o->top_p,
                                       .seed = (uint64_t)o->seed,
                                       .number = i,
                                       .emit = o->json ? NULL : print_piece};
    struct ot_generated generated = {0};
    int rc = ot_generate(&job->session, &generation, &generated);
    if (rc == 0 && o->json)
        rc = print_json(job, i, prompt, &generated);
    else if (rc == 0)
        putchar('\n');
    if (rc == 0 && ot_log_is_terminal()) {
        char time[OT_TEXT_BYTES];
        ot_log(OT_LOG_INFO, "%lld tokens in %s, %.1f tok/s%s", (long long)generated.n,
               ot_text_duration(generated.seconds, time),
               generated.seconds > 0 ? (double)generated.n / generated.seconds : 0.0,
               generated.ended ? "" : " (stopped by --max-new-tokens or the model's maximum length)");
    }
    ot_generated_free(&generated);
    return rc;
}

/* Prints the bytes that fetches of experts have copied and saved. */
static void print_experts(const struct ot_session *s) {
    struct ot_engine_fetches fetches;
    const struct ot_chain *chain = ot_model_chain(s->model);
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

/* A dialogue on a terminal: the user types a line and reads the answer. A line that is not a valid prompt
 * gets its error, and the dialogue continues. */
static int converse(struct job *job) {
    int n;
    job->longest = DIALOGUE_TOKENS;
    OT_TRY(start(job));
    while ((n = ot_lines_read_stdin(&job->lines, 1)) > 0) {
        struct ot_prompt prompt = {0};
        size_t i = job->lines.n - 1;
        int rc = make_prompt(job, i, &prompt);
        if (rc < 0)
            ot_log(OT_LOG_ERROR, "%s", ot_error_text());
        else
            rc = generate_one(job, i, &prompt);
        ot_prompt_free(&prompt);
        if (rc < 0 && rc != -OT_E_INPUT)
            return rc;
        if (fflush(stdout) != 0)
            return ot_fail(OT_E_IO, "stdout: cannot write the text");
    }
    return n;
}

/* The conversation of --chat. Its template is checked before memory is taken. */
static int chat(struct job *job) {
    job->session.prompt_format = NULL; /* the format of a run's rows has no turns */
    OT_TRY(ot_chat_check(&job->session));
    job->longest = OT_CHAT_TOKENS;
    OT_TRY(start(job));
    return ot_chat_run(&job->session, job->capacity);
}

static int run(struct job *job) {
    if (job->session.options->chat)
        return chat(job);
    if (!job->session.options->prompt && isatty(STDIN_FILENO))
        return converse(job);
    OT_TRY(read_prompts(job));
    OT_TRY(start(job));
    for (size_t i = 0; i < job->lines.n; i++)
        OT_TRY(generate_one(job, i, &job->prompts[i]));
    print_experts(&job->session);
    return 0;
}

int ot_command_generate(const struct ot_options *options) {
    struct ot_settings settings = {*options};
    struct job job = {0};
    int rc = ot_session_open(&settings, &job.session);
    if (rc == 0)
        rc = run(&job);
    for (size_t i = 0; job.prompts && i < job.lines.n; i++)
        ot_prompt_free(&job.prompts[i]);
    free(job.prompts);
    ot_lines_clear(&job.lines);
    ot_session_close(&job.session);
    return rc;
}
