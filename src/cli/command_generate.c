/* offload-train generate: continues texts, or answers data rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/command.h"
#include "src/cli/generator.h"
#include "src/cli/lines.h"
#include "src/cli/prompt.h"
#include "src/cli/units.h"

enum { MOST_PROMPTS = 100000, PREFILL_TOKENS = 512 };

struct job {
    struct ot_session session;
    struct ot_lines lines;
    struct ot_prompt *prompts; /* [lines.n] */
    int64_t longest;
};

/* The tokenizer may be another model's. */
static int check_prompt(const struct job *job, const struct ot_prompt *prompt, const char *where) {
    const struct ot_session *s = &job->session;
    for (int64_t i = 0; i < prompt->n; i++)
        if (prompt->ids[i] >= s->config.vocab) {
            const char *token = ot_tokenizer_token(s->tokenizer, prompt->ids[i], NULL);
            return ot_fail(
                OT_E_INPUT,
                "%s: token %d ('%s') is beyond the model's embedding of %lld rows; use the tokenizer "
                "that belongs to the model",
                where, prompt->ids[i], token ? token : "", (long long)s->config.vocab);
        }
    if (prompt->n < s->config.max_position)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: %lld tokens leave no room in the model's %lld positions", where,
                   (long long)prompt->n, (long long)s->config.max_position);
}

static int read_prompts(struct job *job) {
    const struct ot_options *o = job->session.options;
    if (o->prompt)
        OT_TRY(ot_lines_add(&job->lines, o->prompt, strlen(o->prompt)));
    else
        OT_TRY(ot_lines_read_stdin(&job->lines, MOST_PROMPTS));
    if (job->lines.n == 0)
        return ot_fail(OT_E_INPUT, "stdin: no prompt; give -p TEXT or a prompt a line");
    job->prompts = calloc(job->lines.n, sizeof *job->prompts);
    if (!job->prompts)
        return ot_fail(OT_E_BUDGET, "no memory for %zu prompts", job->lines.n);
    for (size_t i = 0; i < job->lines.n; i++) {
        char where[40] = "--prompt";
        if (!o->prompt)
            snprintf(where, sizeof where, "stdin:%zu", i + 1);
        struct ot_prompt *prompt = &job->prompts[i];
        int rc =
            o->row ? ot_prompt_from_row(&job->session, job->lines.text[i], job->lines.bytes[i], where, prompt)
                   : ot_prompt_from_text(&job->session, job->lines.text[i], job->lines.bytes[i], prompt);
        OT_TRY(rc);
        OT_TRY(check_prompt(job, prompt, where));
        job->longest = prompt->n > job->longest ? prompt->n : job->longest;
    }
    return 0;
}

static int start(struct job *job) {
    struct ot_session *s = &job->session;
    int64_t capacity = job->longest + s->options->max_new_tokens;
    if (capacity > s->config.max_position)
        capacity = s->config.max_position;
    int64_t prefill = job->longest < 1 ? 1 : job->longest < PREFILL_TOKENS ? job->longest : PREFILL_TOKENS;
    struct ot_session_need need = {.max_position = capacity,
                                   .sequence_tokens = prefill,
                                   .step_sequences = 1,
                                   .micro_sequences = 1,
                                   .cache_tokens = capacity};
    OT_TRY(ot_session_plan(s, &need));
    return ot_session_start(s, NULL);
}

static int print_piece(void *context, const char *text, size_t bytes) {
    (void)context;
    if (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)
        return ot_fail(OT_E_IO, "stdout: cannot write the text");
    return 0;
}

static int print_json(const struct job *job, size_t i, const struct ot_generated *generated) {
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_string(&w, "prompt", job->lines.text[i], job->lines.bytes[i]);
    ot_json_put_string(&w, "text", generated->text ? generated->text : "", generated->bytes);
    ot_json_begin_array(&w, "ids");
    for (int64_t t = 0; t < generated->n; t++)
        ot_json_put_int(&w, NULL, generated->ids[t]);
    ot_json_end_array(&w);
    ot_json_put_text(&w, "ended_by", generated->ended ? "eos" : "length");
    ot_json_put_int(&w, "prompt_tokens", job->prompts[i].n);
    ot_json_put_real(&w, "seconds", generated->seconds);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}

static int generate_one(struct job *job, size_t i) {
    const struct ot_options *o = job->session.options;
    struct ot_generation generation = {.prompt = job->prompts[i].ids,
                                       .n_prompt = job->prompts[i].n,
                                       .max_new = o->max_new_tokens,
                                       .temperature = o->temperature,
                                       .top_p = o->top_p,
                                       .seed = (uint64_t)o->seed,
                                       .number = i,
                                       .emit = o->json ? NULL : print_piece};
    struct ot_generated generated = {0};
    int rc = ot_generate(&job->session, &generation, &generated);
    if (rc == 0 && o->json)
        rc = print_json(job, i, &generated);
    else if (rc == 0)
        putchar('\n');
    if (rc == 0 && ot_log_is_terminal()) {
        char time[OT_TEXT_BYTES];
        ot_log(OT_LOG_INFO, "%lld tokens in %s, %.1f tok/s%s", (long long)generated.n,
               ot_text_duration(generated.seconds, time),
               generated.seconds > 0 ? (double)generated.n / generated.seconds : 0.0,
               generated.ended ? "" : " (stopped by --max-new-tokens or the model's positions)");
    }
    ot_generated_free(&generated);
    return rc;
}

static int run(struct job *job) {
    OT_TRY(read_prompts(job));
    OT_TRY(start(job));
    for (size_t i = 0; i < job->lines.n; i++)
        OT_TRY(generate_one(job, i));
    return 0;
}

int ot_command_generate(struct ot_options *options) {
    struct job job = {0};
    int rc = ot_session_open(options, &job.session);
    if (rc == 0)
        rc = run(&job);
    for (size_t i = 0; job.prompts && i < job.lines.n; i++)
        ot_prompt_free(&job.prompts[i]);
    free(job.prompts);
    ot_lines_clear(&job.lines);
    ot_session_close(&job.session);
    return rc;
}
