#include "src/cli/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/cli/units.h"

enum { LINE_BYTES = 512 };

/* ---- the lines above the plan ---- */

static void print_machine(const struct ot_report *r) {
    const struct ot_machine *machine = &r->session->machine;
    char total[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    ot_log(OT_LOG_INFO, "machine %s · %d cores · RAM %s, %s free%s", ot_device_name(r->session->device),
           machine->cores, ot_text_bytes(machine->ram_bytes, total), ot_text_bytes(machine->free_bytes, left),
           machine->limited ? " within the container's limit" : "");
}

static void print_model(const struct ot_report *r) {
    const struct ot_session *s = r->session;
    char params[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES];
    bool random = s->options->init == OT_CHOICE_INIT_RANDOM;
    ot_log(OT_LOG_INFO, "model   %s", s->resolved.path ? s->resolved.found : s->options->model);
    ot_log(OT_LOG_INFO, "        %s · %lld layers · %s parameters · %s, computed in %s",
           ot_family_row(s->config.family)->model_type, (long long)s->config.n_layers,
           ot_text_short((double)ot_model_param_count(&s->config), params),
           random ? "random weights" : ot_dtype_name(s->stored), ot_dtype_name(s->dtype));
    ot_log(OT_LOG_INFO, "        %s tokens · %s",
           ot_text_count(ot_tokenizer_vocab_size(s->tokenizer), tokens),
           s->tokenizer_is_own ? "byte-level tokenizer" : s->tokenizer_path);
}

static void print_dataset(const char *path, const struct ot_data_stats *stats) {
    char rows[OT_TEXT_BYTES], line[LINE_BYTES];
    int n = snprintf(line, sizeof line, "data    %.200s · %s rows (%s%s%s) · %lld dropped · %lld truncated",
                     path, ot_text_count(stats->rows, rows), ot_row_kind_name(stats->kind),
                     stats->template_name ? ", " : "", stats->template_name ? stats->template_name : "",
                     (long long)stats->untrained, (long long)stats->truncated);
    if (stats->bad)
        n += snprintf(line + n, sizeof line - (size_t)n, " · %lld bad, the first on line %lld",
                      (long long)stats->bad, (long long)stats->first_bad_line);
    if (stats->split)
        snprintf(line + n, sizeof line - (size_t)n, " · %lld split", (long long)stats->split);
    ot_log(OT_LOG_INFO, "%s", line);
}

static void print_notes(const struct ot_session *s, const struct ot_data_stats *stats) {
    size_t bytes = 0;
    const char *token =
        stats->with_specials ? ot_tokenizer_token(s->tokenizer, stats->first_special, &bytes) : NULL;
    if (token)
        ot_log(OT_LOG_INFO,
               "note    %lld rows contain a literal \"%.*s\", the first on line %lld: encoded as the token, "
               "as Hugging Face does",
               (long long)stats->with_specials, (int)bytes, token, (long long)stats->first_special_line);
    if (stats->straddling)
        ot_log(OT_LOG_INFO,
               "note    in %lld rows the answer begins inside the prompt's last token, which does not train",
               (long long)stats->straddling);
}

static void print_data(const struct ot_report *r) {
    const struct ot_rows *rows = r->rows;
    char train[OT_TEXT_BYTES], held[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES], sequences[OT_TEXT_BYTES];
    const struct ot_data_stats *stats = ot_dataset_stats(rows->data);
    double all = (double)ot_packing_tokens(rows->train),
           trained = (double)ot_packing_trained_tokens(rows->train);
    print_dataset(r->session->options->data, stats);
    if (rows->own_eval)
        print_dataset(r->session->options->eval_data, ot_dataset_stats(rows->own_eval));
    ot_log(OT_LOG_INFO,
           "        %s train / %s eval rows · %s tokens, %.0f %% trained · %s sequences x %lld, %.1f %% full",
           ot_text_count(ot_packing_rows(rows->train), train),
           ot_text_count(rows->eval ? ot_packing_rows(rows->eval) : 0, held), ot_text_short(all, tokens),
           100 * trained / all, ot_text_count(r->shape->sequences, sequences), (long long)rows->seq_len,
           100 * ot_packing_fill(rows->train));
    print_notes(r->session, stats);
}

/* ---- the plan ---- */

static int count_weights(const struct ot_plan *plan) {
    int n = 0;
    for (int i = 0; i < plan->n_slabs; i++)
        n += plan->slabs[i].weights == OT_HOME_GPU;
    return n;
}

/* "updates gpu 3 of 8 tiles (37.5 %) · cpu 5 of 8 tiles (62.5 %)" */
static void print_engines(const struct ot_plan *plan) {
    char line[160] = "";
    int64_t all = 0;
    size_t used = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        all += ot_plan_count_tiles(plan, (enum ot_tile_engine)e);
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        int64_t n = ot_plan_count_tiles(plan, (enum ot_tile_engine)e);
        if (n > 0)
            used += (size_t)snprintf(line + used, sizeof line - used, "%s%s %lld of %lld tiles (%.1f %%)",
                                     used ? " · " : "", ot_tile_engine_name((enum ot_tile_engine)e),
                                     (long long)n, (long long)all, 100 * (double)n / (double)all);
    }
    ot_log(OT_LOG_INFO, "        updates %s", line);
}

static void print_shape(const struct ot_report *r) {
    const struct ot_options *o = r->session->options;
    const struct ot_plan *plan = &r->session->plan;
    const struct ot_run_shape *shape = r->shape;
    static const char *const schedules[] = {"constant", "linear", "cosine", "wsd"};
    char tokens[OT_TEXT_BYTES], steps[96], steps_text[OT_TEXT_BYTES];
    ot_text_count(shape->lr.steps, steps_text);
    if (o->steps)
        snprintf(steps, sizeof steps, "%s steps (%.2f epochs)", steps_text,
                 (double)shape->lr.steps / (double)shape->steps_per_epoch);
    else
        snprintf(steps, sizeof steps, "%lld x %lld epochs = %s steps", (long long)shape->steps_per_epoch,
                 (long long)o->epochs, steps_text);
    ot_log(OT_LOG_INFO, "plan    all parameters · AdamW %.2g %s, warm-up %lld, clip %g · %s tokens/step · %s",
           o->lr, schedules[shape->lr.kind], (long long)shape->lr.warmup, o->clip,
           ot_text_count(shape->step_sequences * shape->seq_len, tokens), steps);
    int n_layers = (int)r->session->config.n_layers;
    ot_log(
        OT_LOG_INFO,
        "        micro-batch %lld x %lld sequences · on gpu: weights of %d of %d blocks, activations %s · %d "
        "of %d layers recomputed",
        (long long)((shape->step_sequences + o->micro_batch - 1) / o->micro_batch), (long long)o->micro_batch,
        count_weights(plan), plan->n_slabs, plan->activations == OT_HOME_GPU ? "too" : "not",
        n_layers - plan->kept_blocks, n_layers);
    print_engines(plan);
}

/* A cell, rounded so that the rows add up: the difference of the rounded running sums. */
static const char *format_cell(double value, double *running, char cell[16]) {
    double before = round(*running * 10);
    *running += value;
    if (value > 0)
        snprintf(cell, 16, "%.1f", (round(*running * 10) - before) / 10);
    return value > 0 ? cell : "-";
}

static void print_row(char line[OT_TABLE_LINE_BYTES], const char *name, const char *gpu, const char *host) {
    snprintf(line, OT_TABLE_LINE_BYTES, "          %-24s %12s %12s", name, gpu, host);
}

/* The sums of all entries that are named as entry i; false if an earlier one was named so. */
static bool sum_entries(const struct ot_ledger *ledger, int i, double sums[OT_TIER_COUNT]) {
    for (int j = 0; j < ledger->n; j++)
        if (strcmp(ledger->entries[j].name, ledger->entries[i].name) == 0) {
            if (j < i)
                return false;
            sums[ledger->entries[j].tier] += (double)ledger->entries[j].bytes;
        }
    return true;
}

int ot_report_table(const struct ot_ledger *ledger, const size_t budget_bytes[OT_TIER_COUNT],
                    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES]) {
    size_t gpu_bytes = ot_ledger_total(ledger, OT_TIER_GPU),
           host_bytes = ot_ledger_total(ledger, OT_TIER_HOST);
    bool big = gpu_bytes >= (size_t)10 << 30 || host_bytes >= (size_t)10 << 30;
    double unit = big ? 0x1p30 : 0x1p20, running[OT_TIER_COUNT] = {0};
    char gpu[16], host[16];
    int n = 0;
    print_row(lines[n++], big ? "GiB" : "MiB", "gpu", "host");
    for (int i = 0; i < ledger->n; i++) {
        double sums[OT_TIER_COUNT] = {0};
        if (!sum_entries(ledger, i, sums) || sums[OT_TIER_GPU] + sums[OT_TIER_HOST] == 0)
            continue;
        print_row(lines[n++], ledger->entries[i].name,
                  format_cell(sums[OT_TIER_GPU] / unit, &running[OT_TIER_GPU], gpu),
                  format_cell(sums[OT_TIER_HOST] / unit, &running[OT_TIER_HOST], host));
    }
    snprintf(gpu, sizeof gpu, "%.1f", round(running[OT_TIER_GPU] * 10) / 10);
    snprintf(host, sizeof host, "%.1f", round(running[OT_TIER_HOST] * 10) / 10);
    print_row(lines[n++], "total", gpu, host);
    snprintf(gpu, sizeof gpu, "%.1f", (double)budget_bytes[OT_TIER_GPU] / unit);
    snprintf(host, sizeof host, "%.1f", (double)budget_bytes[OT_TIER_HOST] / unit);
    print_row(lines[n++], "may use", gpu, host);
    return n;
}

static void add_entry(struct ot_ledger *ledger, enum ot_tier tier, const char *name, size_t bytes) {
    if (ledger->n < OT_LEDGER_MAX)
        ledger->entries[ledger->n++] = (struct ot_ledger_entry){tier, name, bytes};
}

/* What the program holds: the plan's bytes, what the device's ops work in, the cache for the sample's answer,
 * and the rows. */
static struct ot_ledger whole_ledger(const struct ot_report *r) {
    struct ot_ledger ledger = r->session->plan.ledger;
    if (r->session->workspace_bytes)
        add_entry(&ledger, OT_TIER_GPU, "kernel workspace", r->session->workspace_bytes);
    add_entry(&ledger, OT_TIER_GPU, "key/value cache", r->session->cache_bytes);
    add_entry(&ledger, OT_TIER_HOST, "rows", (size_t)ot_rows_bytes(r->rows));
    return ledger;
}

void ot_report_print(const struct ot_report *r) {
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES], save[OT_TEXT_BYTES], disk[OT_TEXT_BYTES];
    struct ot_ledger ledger = whole_ledger(r);
    print_machine(r);
    print_model(r);
    print_data(r);
    print_shape(r);
    int n = ot_report_table(&ledger, r->session->budget_bytes, lines);
    for (int i = 0; i < n; i++)
        ot_log(OT_LOG_INFO, "%s", lines[i]);
    if (!r->out) {
        ot_log(OT_LOG_INFO, "save    nothing: --no-save");
        return;
    }
    ot_log(OT_LOG_INFO, "save    %s · up to %s in %s%s%s", r->out, ot_text_bytes(r->save_bytes, save),
           ot_dtype_name(r->session->stored), r->disk_free_bytes >= 0 ? " · free on that disk: " : "",
           r->disk_free_bytes >= 0 ? ot_text_bytes(r->disk_free_bytes, disk) : "");
}

/* ---- the log's "run" event ---- */

static void record_plan(const struct ot_report *r, struct ot_json_writer *w) {
    const struct ot_plan *plan = &r->session->plan;
    struct ot_ledger ledger = whole_ledger(r);
    ot_json_begin_object(w, "plan");
    ot_json_put_int(w, "steps", r->shape->lr.steps);
    ot_json_put_int(w, "steps_per_epoch", r->shape->steps_per_epoch);
    ot_json_put_int(w, "warmup", r->shape->lr.warmup);
    ot_json_put_int(w, "micro_tokens", plan->micro_tokens);
    ot_json_put_int(w, "kept_blocks", plan->kept_blocks);
    ot_json_put_int(w, "weights_on_gpu", count_weights(plan));
    ot_json_put_int(w, "slabs", plan->n_slabs);
    ot_json_begin_object(w, "optimizer_tiles");
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        ot_json_put_int(w, ot_tile_engine_name((enum ot_tile_engine)e),
                        ot_plan_count_tiles(plan, (enum ot_tile_engine)e));
    ot_json_end_object(w);
    ot_json_put_text(w, "activations", ot_tier_name((enum ot_tier)plan->activations));
    ot_json_put_int(w, "gpu_budget_bytes", (int64_t)r->session->budget_bytes[OT_TIER_GPU]);
    ot_json_put_int(w, "host_budget_bytes", (int64_t)r->session->budget_bytes[OT_TIER_HOST]);
    ot_json_begin_array(w, "ledger");
    for (int i = 0; i < ledger.n; i++) {
        ot_json_begin_object(w, NULL);
        ot_json_put_text(w, "tier", ot_tier_name(ledger.entries[i].tier));
        ot_json_put_text(w, "name", ledger.entries[i].name);
        ot_json_put_int(w, "bytes", (int64_t)ledger.entries[i].bytes);
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
    ot_json_end_object(w);
}

static void record_data(const struct ot_report *r, struct ot_json_writer *w) {
    const struct ot_data_stats *stats = ot_dataset_stats(r->rows->data);
    ot_json_begin_object(w, "data");
    ot_json_put_text(w, "kind", ot_row_kind_name(stats->kind));
    ot_json_put_int(w, "rows", stats->rows);
    ot_json_put_int(w, "bad", stats->bad);
    ot_json_put_int(w, "dropped", stats->untrained);
    ot_json_put_int(w, "truncated", stats->truncated);
    ot_json_put_int(w, "train_rows", ot_packing_rows(r->rows->train));
    ot_json_put_int(w, "eval_rows", r->rows->eval ? ot_packing_rows(r->rows->eval) : 0);
    ot_json_put_int(w, "tokens", ot_packing_tokens(r->rows->train));
    ot_json_put_int(w, "trained_tokens", ot_packing_trained_tokens(r->rows->train));
    ot_json_put_int(w, "sequences", r->shape->sequences);
    ot_json_end_object(w);
}

static void record_machine(const struct ot_session *s, struct ot_json_writer *w) {
    ot_json_begin_object(w, "machine");
    ot_json_put_text(w, "device", ot_device_name(s->device));
    ot_json_put_int(w, "cores", s->machine.cores);
    ot_json_put_int(w, "ram_bytes", s->machine.ram_bytes);
    ot_json_put_int(w, "free_bytes", s->machine.free_bytes);
    ot_json_end_object(w);
    ot_json_begin_object(w, "model");
    ot_json_put_text(w, "found", s->resolved.path ? s->resolved.found : s->options->model);
    ot_json_put_text(w, "family", ot_family_row(s->config.family)->model_type);
    ot_json_put_int(w, "parameters", ot_model_param_count(&s->config));
    ot_json_put_text(w, "stored", ot_dtype_name(s->stored));
    ot_json_put_text(w, "computed", ot_dtype_name(s->dtype));
    ot_json_end_object(w);
}

int ot_report_record(const struct ot_report *r, struct ot_run_log *log) {
    struct ot_json_writer *w = ot_run_log_begin(log, "run");
    ot_json_put_text(w, "version", OT_VERSION);
    if (r->out)
        ot_json_put_text(w, "out", r->out);
    ot_options_put_json(r->session->options, "options", w);
    record_machine(r->session, w);
    record_data(r, w);
    record_plan(r, w);
    return ot_run_log_end(log);
}

/* ---- the end ---- */

struct memory_use { /* bytes */
    int64_t planned[OT_TIER_COUNT], used[OT_TIER_COUNT], resident;
};

static struct memory_use measure_memory(const struct ot_report *r) {
    struct memory_use m = {0};
    struct ot_device_usage usage;
    struct rusage process;
    ot_device_usage(r->session->device, &usage);
    m.planned[OT_TIER_GPU] = (int64_t)(ot_ledger_total(&r->session->plan.ledger, OT_TIER_GPU) +
                                       r->session->cache_bytes + r->session->workspace_bytes);
    m.planned[OT_TIER_HOST] = (int64_t)ot_ledger_total(&r->session->plan.ledger, OT_TIER_HOST);
    m.used[OT_TIER_GPU] = (int64_t)usage.peak_bytes;
    m.used[OT_TIER_HOST] = (int64_t)usage.pinned_peak_bytes;
    m.resident = getrusage(RUSAGE_SELF, &process) == 0 ? (int64_t)process.ru_maxrss * 1024 : 0;
    return m;
}

static double flops_per_second(const struct ot_report *r, const struct ot_outcome *outcome) {
    double rows = (double)ot_packing_rows(r->rows->train), tokens = (double)ot_packing_tokens(r->rows->train);
    double per_token = ot_model_flops_per_token(&r->session->config, tokens / rows);
    return outcome->seconds > 0 ? per_token * (double)outcome->tokens / outcome->seconds : 0;
}

void ot_report_done(const struct ot_report *r, const struct ot_outcome *outcome) {
    char tokens[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], eval[64] = "";
    char size[5][OT_TEXT_BYTES];
    struct memory_use m = measure_memory(r);
    if (outcome->has_eval && outcome->eval_step == outcome->steps) /* an older one is not of what was saved */
        snprintf(eval, sizeof eval, " · eval %.4f -> %.4f", outcome->first_eval, outcome->last_eval);
    double seconds = outcome->seconds > 0 ? outcome->seconds : 1;
    ot_log(OT_LOG_INFO,
           "done    %lld of %lld steps · loss %.4f%s · %s tokens in %s · %s tok/s · %.1f GFLOP/s",
           (long long)outcome->steps, (long long)r->shape->lr.steps, outcome->last_loss, eval,
           ot_text_short((double)outcome->tokens, tokens), ot_text_duration(outcome->seconds, time),
           ot_text_count((int64_t)((double)outcome->tokens / seconds), rate),
           flops_per_second(r, outcome) * 1e-9);
    ot_log(OT_LOG_INFO, "memory  gpu %s planned, %s used · host %s planned, %s used · process peak %s",
           ot_text_bytes(m.planned[OT_TIER_GPU], size[0]), ot_text_bytes(m.used[OT_TIER_GPU], size[1]),
           ot_text_bytes(m.planned[OT_TIER_HOST], size[2]), ot_text_bytes(m.used[OT_TIER_HOST], size[3]),
           ot_text_bytes(m.resident, size[4]));
    if (!r->out)
        return;
    int64_t weights = ot_model_param_count(&r->session->config) * (int64_t)ot_dtype_bytes(r->session->stored);
    ot_log(OT_LOG_INFO, "saved   %s · Hugging Face directory, %s of %s weights · log.jsonl · run.json",
           r->out, ot_text_bytes(weights, size[0]), ot_dtype_name(r->session->stored));
    if (outcome->interrupted)
        ot_log(OT_LOG_INFO,
               "stopped by a signal after step %lld: the weights are saved, the optimizer's state is not "
               "kept; training on from %s starts a new run",
               (long long)outcome->steps, r->out);
    ot_log(OT_LOG_INFO, "next    offload-train generate %s -p \"...\" · offload-train eval %s --data FILE",
           r->out, r->out);
}

int ot_report_record_done(const struct ot_report *r, const struct ot_outcome *outcome,
                          struct ot_run_log *log) {
    struct memory_use m = measure_memory(r);
    struct ot_json_writer *w = ot_run_log_begin(log, "done");
    ot_json_put_int(w, "steps", outcome->steps);
    ot_json_put_int(w, "tokens", outcome->tokens);
    ot_json_put_real(w, "seconds", outcome->seconds);
    ot_json_put_real(w, "loss", outcome->last_loss);
    ot_json_put_real(w, "flops_per_s", flops_per_second(r, outcome));
    ot_json_put_bool(w, "interrupted", outcome->interrupted);
    ot_json_put_int(w, "gpu_planned_bytes", m.planned[OT_TIER_GPU]);
    ot_json_put_int(w, "gpu_used_bytes", m.used[OT_TIER_GPU]);
    ot_json_put_int(w, "host_planned_bytes", m.planned[OT_TIER_HOST]);
    ot_json_put_int(w, "host_used_bytes", m.used[OT_TIER_HOST]);
    ot_json_put_int(w, "process_peak_bytes", m.resident);
    if (r->out)
        ot_json_put_text(w, "out", r->out);
    return ot_run_log_end(log);
}

static void put_lanes(struct ot_json_writer *w, const char *key, const double seconds[OT_LANE_COUNT]) {
    ot_json_begin_object(w, key);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        ot_json_put_real(w, ot_lane_name((enum ot_lane_id)l), seconds[l]);
    ot_json_end_object(w);
}

static void print_trace(const char *path, const struct ot_trace_summary *sum) {
    char left[64] = "";
    double percent = sum->seconds > 0 ? 100 / sum->seconds : 0;
    if (sum->left_out)
        snprintf(left, sizeof left, " (the %lld after them did not fit)", (long long)sum->left_out);
    ot_log(OT_LOG_INFO,
           "lanes   busy: compute %.1f %% · h2d %.1f %% · d2h %.1f %% · cpu %.1f %%; compute waited for: h2d "
           "%.1f %% · d2h %.1f %% · cpu %.1f %% · host %.1f %%",
           percent * sum->busy[OT_LANE_COMPUTE], percent * sum->busy[OT_LANE_H2D],
           percent * sum->busy[OT_LANE_D2H], percent * sum->busy[OT_LANE_CPU],
           percent * sum->exposed[OT_LANE_H2D], percent * sum->exposed[OT_LANE_D2H],
           percent * sum->exposed[OT_LANE_CPU],
           percent * (sum->exposed_host + sum->exposed[OT_LANE_COMPUTE]));
    ot_log(OT_LOG_INFO, "trace   %s · %lld steps%s · open it in Perfetto or chrome://tracing", path,
           (long long)sum->steps, left);
}

int ot_report_trace(const struct ot_report *r, struct ot_run_log *log) {
    const char *path = r->session->options->trace;
    struct ot_trace_summary sum;
    if (!path)
        return 0;
    OT_TRY(ot_trace_write(r->session->trace, path));
    OT_TRY(ot_trace_summarise(r->session->trace, &sum));
    print_trace(path, &sum);
    struct ot_json_writer *w = ot_run_log_begin(log, "trace");
    ot_json_put_text(w, "file", path);
    ot_json_put_int(w, "steps", sum.steps);
    ot_json_put_int(w, "left_out", sum.left_out);
    ot_json_put_real(w, "seconds", sum.seconds);
    put_lanes(w, "busy_seconds", sum.busy);
    put_lanes(w, "exposed_seconds", sum.exposed);
    ot_json_put_real(w, "exposed_host_seconds", sum.exposed_host);
    return ot_run_log_end(log);
}

/* The last words of a prompt are what the answer is to. */
static const char *shorten(const char *text, size_t most) {
    size_t length = strlen(text);
    if (length <= most)
        return text;
    text += length - most;
    while ((*text & 0xc0) == 0x80) /* not inside a character */
        text++;
    return text;
}

int ot_report_sample(struct ot_run_log *log, int64_t step, const char *prompt, const char *text) {
    const char *end = shorten(prompt, 72);
    ot_log(OT_LOG_INFO, "sample  \"%s%s\" -> %s", end == prompt ? "" : "...", end, text);
    struct ot_json_writer *w = ot_run_log_begin(log, "sample");
    ot_json_put_int(w, "step", step);
    ot_json_put_text(w, "prompt", prompt);
    ot_json_put_text(w, "text", text);
    return ot_run_log_end(log);
}
