/* offload-train quantize: a quantised copy of a model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/signals.h"
#include "src/base/units.h"
#include "src/cli/command.h"
#include "src/files/out_lock.h"
#include "src/quantize/quantize.h"
#include "src/train/rows.h"
#include "src/train/run_shape.h"

/* The share of the calibration rows that an expert must get to be calibrated: GPTQModel's default. */
#define LEAST_SHARE 0.005

struct command {
    struct ot_settings settings;
    const struct ot_options *options; /* in effect */
    struct ot_session session;
    struct ot_rows rows;
    struct ot_sequences calibration, held_out;
    struct ot_quant_format format;
    struct ot_model_save save;
    struct ot_extra_file extra;
    char *quantize_config; /* NULL: the format has no such file */
    struct ot_out_lock *lock;
    struct ot_quantize job;
    struct ot_json_writer layers; /* --json: an array of them */
    int64_t experts, rounded;     /* of the layers that are done */
};

/* ---- the format ---- */

static int read_group_size(const char *text, int64_t *out) {
    static const int sizes[] = {16, 32, 64, 128, 256, 512, 1024};
    char *end;
    long n = strtol(text, &end, 10);
    *out = -1;
    if (strcmp(text, "none") == 0 || strcmp(text, "-1") == 0)
        return 0;
    for (size_t i = 0; *end == '\0' && i < sizeof sizes / sizeof *sizes; i++)
        if (n == sizes[i]) {
            *out = n;
            return 0;
        }
    return ot_fail(OT_E_USAGE, "--group-size %.20s: it must be 16, 32, 64, 128, 256, 512, 1024 or none",
                   text);
}

static int choose_format(struct command *c) {
    static const struct ot_quant_format formats[] = {
        [OT_CHOICE_TO_GPTQ4] = {.kind = OT_QUANT_KIND_GPTQ, .bits = 4},
        [OT_CHOICE_TO_GPTQ8] = {.kind = OT_QUANT_KIND_GPTQ, .bits = 8},
        [OT_CHOICE_TO_GPTQ3] = {.kind = OT_QUANT_KIND_GPTQ, .bits = 3},
        [OT_CHOICE_TO_GPTQ2] = {.kind = OT_QUANT_KIND_GPTQ, .bits = 2},
        [OT_CHOICE_TO_NF4] = {.kind = OT_QUANT_KIND_4BIT},
        [OT_CHOICE_TO_NF4_DOUBLE] = {.kind = OT_QUANT_KIND_4BIT, .nested = true},
        [OT_CHOICE_TO_INT8] = {.kind = OT_QUANT_KIND_INT8},
        [OT_CHOICE_TO_MXFP4] = {.kind = OT_QUANT_KIND_MXFP4}};
    const struct ot_options *o = c->options;
    c->format = formats[o->to];
    c->format.symmetric = o->symmetric;
    c->format.act_order = o->act_order;
    c->format.damping = o->damping;
    return read_group_size(o->group_size, &c->format.group_size);
}

/* GPTQModel first looks for the description in quantize_config.json. */
static int make_quantize_config(struct command *c) {
    struct ot_json_writer w = {.indent = 0};
    if (c->format.kind != OT_QUANT_KIND_GPTQ)
        return 0;
    ot_quant_encode_config(&c->format, NULL, &w);
    c->extra.name = "quantize_config.json";
    OT_TRY(ot_json_writer_take(&w, &c->quantize_config, &c->extra.bytes));
    c->extra.text = c->quantize_config;
    c->save.extra = &c->extra;
    c->save.n_extra = 1;
    return 0;
}

/* ---- opening ---- */

static int open_rows(struct command *c) {
    const struct ot_options *o = c->options;
    struct ot_session *s = &c->session;
    int64_t seq_len = 1, multiple = ot_device_token_multiple(s->machine.device);
    if (o->data.n) {
        OT_TRY(ot_shape_seq_len(s->settings, ot_model_longest_row(&s->model.config), &seq_len));
        OT_TRY(ot_rows_open(s, seq_len, &c->rows));
    }
    OT_TRY(ot_model_open(&s->model.config, s->model.dtype, seq_len, &s->model.built));
    ot_model_set_chunk(s->model.built, INT64_MAX); /* the inputs of a map are those of all tokens */
    if (o->data.n && c->format.kind == OT_QUANT_KIND_GPTQ)
        OT_TRY(ot_sequences_open(c->rows.train, c->rows.data, seq_len, o->calibration_rows, multiple,
                                 &c->calibration));
    if (!c->rows.eval)
        return 0;
    return ot_sequences_open(c->rows.eval, c->rows.eval_set, seq_len, o->calibration_rows, multiple,
                             &c->held_out);
}

static void note_rows(const struct command *c) {
    char tokens[OT_TEXT_BYTES], held_out[OT_TEXT_BYTES], name[OT_DATA_NAME_BYTES];
    const struct ot_options *o = c->options;
    if (c->calibration.n > 0 && c->calibration.n < o->calibration_rows)
        ot_log(OT_LOG_WARN, "%s has only %lld sequences to calibrate on, not the %lld of --calibration-rows",
               ot_data_name(o, name), (long long)c->calibration.n, (long long)o->calibration_rows);
    if (o->data.n)
        ot_log(OT_LOG_INFO, "rows    %lld sequences (%s tokens) to calibrate on, %lld (%s tokens) held out",
               (long long)c->calibration.n, ot_text_count(c->calibration.row_tokens, tokens),
               (long long)c->held_out.n, ot_text_count(c->held_out.row_tokens, held_out));
}

/* Prints the host memory that the job needs; fails if the host has less. */
static int check_memory(const struct command *c) {
    struct ot_quantize_memory m;
    OT_TRY(ot_quantize_memory(&c->job, &m));
    int64_t total = m.activations + m.weights + m.codes + m.hessian;
    int64_t budget = (int64_t)c->session.machine.budget_bytes[OT_TIER_HOST];
    char text[5][OT_TEXT_BYTES], device[OT_TEXT_BYTES];
    ot_text_bytes(total, text[0]);
    ot_text_bytes(m.activations, text[1]);
    ot_text_bytes(m.weights, text[2]);
    ot_text_bytes(m.codes, text[3]);
    ot_text_bytes(m.hessian, text[4]);
    ot_log(OT_LOG_INFO, "memory  %s of RAM: activations %s, a layer %s, its codes %s, Hessian %s", text[0],
           text[1], text[2], text[3], text[4]);
    if (m.hessians > 0)
        ot_log(OT_LOG_INFO, "memory  %s of the device for Hessians", ot_text_bytes(m.hessians, device));
    if (total <= budget)
        return 0;
    return ot_fail(
        OT_E_BUDGET,
        "quantizing takes %s of RAM (activations %s, a layer %s, its codes %s, Hessian %s), and the "
        "budget is %s; lower --calibration-rows or --seq-len, or raise --host-mem",
        text[0], text[1], text[2], text[3], text[4], ot_text_bytes(budget, (char[OT_TEXT_BYTES]){0}));
}

static int open_save(struct command *c) {
    struct ot_session *s = &c->session;
    c->format.dtype = s->model.stored;
    c->format.plain_down = s->model.config.family == OT_FAMILY_T5;
    c->format.least_share = s->model.config.n_experts > 0 ? LEAST_SHARE : 0;
    c->save = (struct ot_model_save){.out = c->options->out,
                                     .model = s->model.built,
                                     .base = s->model.dir,
                                     .dtype = s->model.stored,
                                     .pack = &c->format,
                                     .shard_bytes = c->options->max_shard_size,
                                     .lock = c->lock};
    OT_TRY(make_quantize_config(c));
    return ot_model_dir_save_try(&c->save);
}

/* ---- output ---- */

static void put_layer(struct ot_json_writer *w, const struct ot_quantize_row *row) {
    char name[64];
    ot_json_begin_object(w, NULL);
    ot_json_put_int(w, "layer", row->layer);
    ot_json_begin_object(w, "errors");
    for (int i = 0; i < row->n_maps; i++) {
        snprintf(name, sizeof name, "%.*s", row->maps[i].bytes, row->maps[i].name);
        ot_json_put_real(w, name, ot_quantize_map_error(&row->maps[i]));
    }
    ot_json_end_object(w);
    if (row->experts > 0)
        ot_json_put_int(w, "rounded_experts", row->rounded);
    ot_json_put_real(w, "seconds", row->seconds);
    ot_json_end_object(w);
}

static void print_layer(void *context, const struct ot_quantize_row *row) {
    struct command *c = context;
    char line[320], time[OT_TEXT_BYTES];
    int n = snprintf(line, sizeof line, "layer %3lld of %lld ", (long long)row->layer + 1,
                     (long long)row->n_layers);
    put_layer(&c->layers, row);
    c->experts += row->experts;
    c->rounded += row->rounded;
    for (int i = 0; i < row->n_maps; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, " %.*s %.3g %% ", row->maps[i].bytes,
                      row->maps[i].name, 100 * ot_quantize_map_error(&row->maps[i]));
    if (row->rounded > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, " %lld of %lld experts rounded ",
                      (long long)row->rounded, (long long)row->experts);
    if (!c->options->quiet && !c->options->json)
        printf("%s %s\n", line, ot_text_duration(row->seconds, time));
    fflush(stdout);
}

static void print_stages(const struct ot_stage_times *stages, double total) {
    char time[OT_TEXT_BYTES], bytes[OT_TEXT_BYTES];
    printf("%-10s %10s %8s %12s\n", "stage", "time", "share", "peak memory");
    for (int i = 0; i < OT_STAGES; i++)
        printf("%-10s %10s %6.1f %% %12s\n", ot_stage_name((enum ot_stage)i),
               ot_text_seconds(stages->seconds[i], time), 100 * stages->seconds[i] / total,
               stages->peak_bytes[i] ? ot_text_bytes(stages->peak_bytes[i], bytes) : "-");
    printf("%-10s %10s\n", "all", ot_text_seconds(total, time));
}

static int print_json(struct command *c, double total) {
    const struct ot_quantize *job = &c->job;
    struct ot_json_writer *w = &c->layers;
    ot_json_end_array(w);
    ot_json_put_text(w, "out", c->options->out);
    if (c->experts > 0) {
        ot_json_put_int(w, "experts", c->experts);
        ot_json_put_int(w, "rounded_experts", c->rounded);
    }
    if (job->loss.trained > 0) {
        ot_json_put_real(w, "perplexity_before", exp(job->loss.before));
        ot_json_put_real(w, "perplexity_after", exp(job->loss.after));
        ot_json_put_int(w, "trained_tokens", job->loss.trained);
    }
    ot_json_begin_object(w, "stages");
    for (int i = 0; i < OT_STAGES; i++) {
        ot_json_begin_object(w, ot_stage_name((enum ot_stage)i));
        ot_json_put_real(w, "seconds", job->stages.seconds[i]);
        ot_json_put_int(w, "peak_bytes", job->stages.peak_bytes[i]);
        ot_json_end_object(w);
    }
    ot_json_end_object(w);
    ot_json_put_real(w, "seconds", total);
    ot_json_end_object(w);
    return ot_json_print(w);
}

static int print_result(struct command *c, double total) {
    const struct ot_quantize_loss *loss = &c->job.loss;
    char tokens[OT_TEXT_BYTES];
    if (c->options->json)
        return print_json(c, total);
    if (!c->options->quiet)
        print_stages(&c->job.stages, total);
    if (c->rounded > 0)
        printf("%lld of %lld experts rounded to nearest: each gets less than %g %% of the calibration rows\n",
               (long long)c->rounded, (long long)c->experts, 100 * LEAST_SHARE);
    if (loss->trained > 0)
        printf("perplexity %.6g before, %.6g after, on %s held-out tokens\n", exp(loss->before),
               exp(loss->after), ot_text_count(loss->trained, tokens));
    printf("%s\n", c->options->out);
    return 0;
}

/* ---- the command ---- */

/* Refuses formats that no reader has for the model. */
static int check_family(const struct command *c) {
    const struct ot_model_config *config = &c->session.model.config;
    const char *type = ot_family_row(config->family)->model_type, *model = c->options->model;
    bool mxfp4 = c->format.kind == OT_QUANT_KIND_MXFP4, is_gpt_oss = config->family == OT_FAMILY_GPT_OSS;
    if (ot_model_has_pairs(config) && (mxfp4 || c->format.kind == OT_QUANT_KIND_GPTQ))
        return ot_fail(
            OT_E_INPUT,
            "%s: a %s can be quantized with --to nf4, nf4-double or int8: encoder-decoders are not "
            "calibrated, and have no MXFP4",
            model, type);
    if (is_gpt_oss && !mxfp4)
        return ot_fail(OT_E_INPUT,
                       "%s: vLLM and transformers read the experts of a gpt_oss in no format of GPTQ or "
                       "bitsandbytes; --to mxfp4 is its own",
                       model);
    if (mxfp4 && !is_gpt_oss)
        return ot_fail(OT_E_INPUT,
                       "%s: --to mxfp4 is the format of gpt_oss, and this is a %s; see --to gptq:4", model,
                       type);
    if (config->family == OT_FAMILY_FALCON && c->format.kind != OT_QUANT_KIND_GPTQ)
        return ot_fail(
            OT_E_INPUT,
            "%s: transformers reads the matrices of a %s in no format of bitsandbytes, because their "
            "class is its own; use --to gptq:4, or --base-type nf4 or int8 while a run lasts",
            model, type);
    if (config->n_experts > 0 && !mxfp4 && c->format.kind != OT_QUANT_KIND_GPTQ)
        return ot_fail(OT_E_INPUT,
                       "%s: of a %s, bitsandbytes would leave the experts as they are, which are nearly all "
                       "weights; --to gptq:4 quantizes them, and so does a run with --base-type nf4 or int8 "
                       "while it lasts",
                       model, type);
    return 0;
}

static int open_all(struct command *c, const struct ot_options *options) {
    struct ot_session *s = &c->session;
    OT_TRY(choose_format(c));
    OT_TRY(ot_out_lock_await(options->out, &c->lock));
    OT_TRY(ot_session_open(&c->settings, s));
    if (!s->model.dir)
        return ot_fail(OT_E_INPUT, "%s has no weights here", options->model);
    if (s->model.lora || s->model.train)
        return ot_fail(
            OT_E_INPUT,
            "%s holds adapters; offload-train merge adds them to their base, which can be quantized",
            options->model);
    OT_TRY(check_family(c));
    OT_TRY(open_rows(c));
    OT_TRY(open_save(c));
    c->job.session = s;
    c->job.model = s->model.built;
    c->job.format = &c->format;
    c->job.calibration = &c->calibration;
    c->job.held_out = &c->held_out;
    c->job.save = &c->save;
    c->job.stopped = ot_stop_requested;
    c->job.done = print_layer;
    c->job.context = c;
    note_rows(c);
    return check_memory(c);
}

static int run(struct command *c) {
    OT_TRY(ot_stop_install("stopping; the output stays as it was (once more: stop at once)\n"));
    int rc = ot_quantize_run(&c->job);
    ot_stop_ignore();
    return rc < 0 ? rc : print_result(c, ot_stage_times_end(&c->job.stages));
}

int ot_command_quantize(const struct ot_options *options) {
    struct command c = {.settings = {*options}, .options = &c.settings.in_effect, .layers = {.indent = -1}};
    ot_stage_times_begin(&c.job.stages, OT_STAGE_READ);
    ot_json_begin_object(&c.layers, NULL);
    ot_json_begin_array(&c.layers, "layers");
    int rc = open_all(&c, options);
    if (rc == 0)
        rc = run(&c);
    free(c.layers.out.text);
    free(c.quantize_config);
    ot_sequences_free(&c.calibration);
    ot_sequences_free(&c.held_out);
    ot_rows_close(&c.rows);
    ot_session_close(&c.session);
    ot_out_lock_close(c.lock);
    return rc;
}
