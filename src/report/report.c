#include "src/report/report.h"

#include <stdio.h>
#include <string.h>

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/report/forecast.h"
#include "src/report/table.h"
#include "src/session/add_tokens.h"
#include "src/session/plan_request.h"
#include "src/session/chat_choice.h"
#include "src/session/device.h"
#include "src/session/measure.h"
#include "src/session/session_ranks.h"
#include "src/session/weights.h"
#include "src/train/saver.h"

enum { LINE_BYTES = 768 };

/* ---- the lines above the plan ---- */

static void print_machine(const struct ot_report *r) {
    const struct ot_machine *machine = &r->session->machine.limits;
    char total[OT_TEXT_BYTES], left[OT_TEXT_BYTES];
    ot_log(OT_LOG_INFO, "machine %s · RAM %s, %s free%s", ot_device_name(r->session->machine.device),
           ot_text_bytes(machine->ram_bytes, total), ot_text_bytes(machine->free_bytes, left),
           machine->within);
}

/* Says why this rank uses fewer cores than the machine has. */
static void name_cores(const struct ot_session *s, int threads, char text[96]) {
    int locals = s->ranks.world ? ot_world_ranks(s->ranks.world)->local_ranks : 1;
    if (locals > 1)
        snprintf(text, 96, " · %d of %d core%s: %d ranks share this host", s->machine.limits.cores, threads,
                 threads == 1 ? "" : "s", locals);
    else
        snprintf(text, 96, " · the quota allows %d at a time", s->machine.limits.cores);
}

/* Prints the cores and memory nodes that threads and memory are bound to, and the causes of slow pinned
 * memory. */
static void print_topology(const struct ot_session *s) {
    char note[OT_MACHINE_NOTE_BYTES];
    bool by_gpu = s->options->device.kind == OT_DEVICE_CUDA;
    bool by_disks = s->machine.store.n_dirs > 0 && s->machine.store.engine != OT_IO_POOL;
    int64_t bytes = (int64_t)ot_ledger_total(&s->plan.chosen.ledger, OT_TIER_HOST);
    struct ot_topology_summary summary;
    char cores[96] = "";
    ot_topology_summarise(s->machine.topology, &summary);
    if (s->machine.limits.cores < summary.threads)
        name_cores(s, summary.threads, cores);
    ot_log(OT_LOG_INFO, "        %s%s", ot_topology_describe(s->machine.topology), cores);
    if ((by_gpu || by_disks) && *ot_machine_pinning_note(&s->machine.limits, bytes, by_disks, note))
        ot_log(OT_LOG_INFO, "note    %s", note);
}

static void print_disks(const struct ot_session *s) {
    char may[OT_TEXT_BYTES], have[OT_TEXT_BYTES];
    for (int i = 0; i < s->machine.store.n_dirs; i++) {
        const struct ot_store_dir *dir = &s->machine.store.dirs[i];
        ot_log(OT_LOG_INFO, "%-7s %s · budget %s · %s free", i ? "" : "nvme", dir->path,
               ot_text_bytes((int64_t)dir->bytes, may), ot_text_bytes(ot_session_free_in(dir->path), have));
    }
    ot_session_warn_disks(s);
}

static void print_model(const struct ot_report *r) {
    const struct ot_session *s = r->session;
    char params[OT_PARAMS_TEXT_BYTES], tokens[OT_ADDED_TEXT_BYTES];
    bool random = s->options->init == OT_CHOICE_INIT_RANDOM;
    const char *sentencepiece = ot_session_is_of_sentencepiece(s) ? ot_session_sentencepiece(s) : NULL;
    ot_log(OT_LOG_INFO, "model   %s", s->model.resolved.path ? s->model.resolved.found : s->options->model);
    ot_log(
        OT_LOG_INFO, "        %s · %lld layer%s · %s · %s, computed in %s",
        ot_family_row(s->model.config.family)->model_type, (long long)s->model.config.n_layers,
        ot_plural(s->model.config.n_layers),
        ot_text_params(ot_model_frozen_count(s->model.built), ot_model_trained_count(s->model.built), params),
        random ? "random weights" : ot_dtype_name(s->model.stored), ot_dtype_name(s->model.dtype));
    ot_log(OT_LOG_INFO, "        %s tokens · %s",
           ot_text_count(ot_tokenizer_vocab_size(s->text.tokenizer), tokens),
           s->text.tokenizer_is_own           ? "byte-level tokenizer"
           : ot_session_has_made_tokenizer(s) ? "tokenizer of the GGUF file"
           : sentencepiece                    ? sentencepiece
           : s->text.tokenizer_file           ? s->text.tokenizer_file
                                              : s->text.tokenizer_path);
    if (s->text.new_tokens.n > 0)
        ot_log(OT_LOG_INFO, "        %s", ot_added_tokens_text(s, tokens));
}

enum { PLACE_BYTES = 128 };

/* "line 12", and the file if there are several. */
static const char *place_text(const struct ot_dataset *dataset, const struct ot_row_place *place,
                              char text[PLACE_BYTES]) {
    const char *file = ot_dataset_file(dataset, place->file), *slash = strrchr(file, '/');
    int n = snprintf(text, PLACE_BYTES, "line %lld", (long long)place->line);
    if (ot_dataset_stats(dataset)->files > 1)
        snprintf(text + n, PLACE_BYTES - (size_t)n, " of %.80s", slash ? slash + 1 : file);
    return text;
}

/* "3 files: a.jsonl, b.jsonl": what a directory or a pattern gave. */
static void put_files(const struct ot_dataset *dataset, char line[LINE_BYTES]) {
    enum { SHOWN = 4 };
    int64_t files = ot_dataset_stats(dataset)->files;
    size_t n = (size_t)snprintf(line, LINE_BYTES, "        %lld files: ", (long long)files);
    for (int64_t i = 0; i < files && i < SHOWN; i++) {
        const char *file = ot_dataset_file(dataset, (size_t)i), *slash = strrchr(file, '/');
        n += (size_t)snprintf(line + n, LINE_BYTES - n, "%s%.60s", i ? ", " : "", slash ? slash + 1 : file);
    }
    if (files > SHOWN)
        snprintf(line + n, LINE_BYTES - n, " and %lld more", (long long)(files - SHOWN));
}

static void print_dataset(const struct ot_options *o, const char *path, const struct ot_dataset *dataset) {
    const struct ot_data_stats *stats = ot_dataset_stats(dataset);
    char rows[OT_TEXT_BYTES], line[LINE_BYTES], place[PLACE_BYTES];
    bool named = stats->template_name && strcmp(stats->template_name, ot_row_kind_name(stats->kind)) != 0;
    int n =
        snprintf(line, sizeof line, "data    %.200s · %s rows (%s%s%s) · %lld dropped · %lld truncated", path,
                 ot_text_count(stats->rows, rows),
                 stats->several_kinds ? "several kinds" : ot_row_kind_name(stats->kind), named ? ", " : "",
                 named ? stats->template_name : "", (long long)stats->untrained, (long long)stats->truncated);
    if (stats->bad)
        n += snprintf(line + n, sizeof line - (size_t)n, " · %lld bad, the first on %s",
                      (long long)stats->bad, place_text(dataset, &stats->first_bad, place));
    if (stats->split)
        n += snprintf(line + n, sizeof line - (size_t)n, " · %lld split", (long long)stats->split);
    if (o->dedup)
        n += snprintf(line + n, sizeof line - (size_t)n, " · %lld duplicate%s", (long long)stats->duplicates,
                      ot_plural(stats->duplicates));
    if (stats->reached_max)
        snprintf(line + n, sizeof line - (size_t)n, " · --max-rows %lld reached", (long long)o->max_rows);
    ot_log(OT_LOG_INFO, "%s", line);
    if (stats->files > 1) {
        put_files(dataset, line);
        ot_log(OT_LOG_INFO, "%s", line);
    }
    if (ot_dataset_cache_dir(dataset))
        ot_log(OT_LOG_INFO, "        tokens in %s: %s", ot_dataset_cache_dir(dataset),
               ot_text_bytes((double)ot_dataset_cached_bytes(dataset), rows));
}

/* The rows that each source gives to an epoch. */
static void print_mixture(const struct ot_rows *rows) {
    for (int i = 0; rows->parts && i < rows->n_sources; i++) {
        const struct ot_mixture_part *part = &rows->parts[i];
        char documents[OT_TEXT_BYTES], unique[OT_TEXT_BYTES], trained[OT_TEXT_BYTES];
        ot_log(OT_LOG_INFO, "        %5.1f %%  %.200s · %s rows an epoch, from %s of its %s",
               100 * part->share, rows->sources[i].path, ot_text_count(part->trained, trained),
               ot_text_count(part->unique, unique), ot_text_count(part->documents, documents));
    }
}

static void print_notes(const struct ot_session *s, const struct ot_dataset *dataset) {
    const struct ot_data_stats *stats = ot_dataset_stats(dataset);
    char place[PLACE_BYTES];
    size_t bytes = 0;
    ot_chat_choice_note(s, stats->template_name);
    const char *token =
        stats->with_specials ? ot_tokenizer_token(s->text.tokenizer, stats->first_special, &bytes) : NULL;
    if (token)
        ot_log(OT_LOG_INFO,
               "note    %lld rows contain a literal \"%.*s\", the first on %s: encoded as the token, "
               "as Hugging Face does",
               (long long)stats->with_specials, (int)bytes, token,
               place_text(dataset, &stats->first_special_at, place));
    if (stats->straddling)
        ot_log(OT_LOG_INFO,
               "note    in %lld rows the answer begins inside the prompt's last token, which is not trained",
               (long long)stats->straddling);
    if (stats->untrainable_turns)
        ot_log(OT_LOG_INFO,
               "note    %lld assistant turns in %lld rows do not train, the first on %s: the chat "
               "template writes them in another way once later turns follow",
               (long long)stats->untrainable_turns, (long long)stats->untrainable_rows,
               place_text(dataset, &stats->first_untrainable, place));
    if (stats->left_out)
        ot_log(OT_LOG_INFO,
               "note    in %lld rows the chat template leaves out a text of a turn, or changes it, the first "
               "on %s (--show-sample)",
               (long long)stats->left_out, place_text(dataset, &stats->first_left_out, place));
    float dropout = ot_model_most_dropout(&s->model.config);
    if (s->model.dir && ot_model_dir_facts(s->model.dir)->is_text_part)
        ot_log(OT_LOG_INFO,
               "note    this is the text part of a model that also reads images; the result is a "
               "model of text alone");
    if (dropout > 0 && s->model.dir && !s->options->config_dropout)
        ot_log(OT_LOG_INFO, "note    dropout %g of config.json is not applied: add --config-dropout",
               (double)dropout);
}

/* Warns if more than 1 % of the rows are cut: so many are hardly intended. */
static void warn_truncated(const struct ot_session *s, const char *path, const struct ot_data_stats *stats,
                           int64_t seq_len) {
    char longest[OT_TEXT_BYTES], cut[OT_TEXT_BYTES];
    int64_t most = ot_model_longest_row(&s->model.config) * (s->options->objective ? 2 : 1);
    if (stats->truncated * 100 <= stats->rows)
        return;
    ot_text_count(stats->longest_whole, longest);
    ot_text_count(stats->truncated, cut);
    if (stats->longest_whole <= most)
        ot_log(OT_LOG_WARN,
               "%s: %s of %lld rows are cut to --seq-len %lld; the longest has %s tokens: --seq-len %lld "
               "would fit all",
               path, cut, (long long)stats->rows, (long long)seq_len, longest,
               (long long)stats->longest_whole);
    else
        ot_log(OT_LOG_WARN,
               "%s: %s of %lld rows are cut to --seq-len %lld; the longest has %s tokens, and the model "
               "takes --seq-len %lld at most",
               path, cut, (long long)stats->rows, (long long)seq_len, longest, (long long)most);
}

static void print_data(const struct ot_report *r) {
    const struct ot_rows *rows = r->rows;
    char train[OT_TEXT_BYTES], held[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES], sequences[OT_TEXT_BYTES];
    char name[OT_DATA_NAME_BYTES];
    const struct ot_options *o = r->session->options;
    const struct ot_data_stats *stats = ot_dataset_stats(rows->data);
    double all = (double)ot_packing_tokens(rows->train),
           trained = (double)ot_packing_trained_tokens(rows->train);
    print_dataset(o, ot_data_name(o, name), rows->data);
    print_mixture(rows);
    if (rows->own_eval)
        print_dataset(o, o->eval_data, rows->own_eval);
    ot_log(
        OT_LOG_INFO,
        "        %s train / %s eval rows · %s tokens, %.0f %% trained · %s sequence%s x %lld, %.1f %% full",
        ot_text_count(ot_packing_rows(rows->train), train),
        ot_text_count(rows->eval ? ot_packing_rows(rows->eval) : 0, held), ot_text_short(all, tokens),
        100 * trained / all, ot_text_count(r->shape->sequences, sequences), ot_plural(r->shape->sequences),
        (long long)rows->seq_len, 100 * ot_packing_fill(rows->train));
    print_notes(r->session, rows->data);
    warn_truncated(r->session, ot_data_name(o, name), stats, rows->seq_len);
    if (rows->own_eval)
        warn_truncated(r->session, o->eval_data, ot_dataset_stats(rows->own_eval), rows->seq_len);
}

/* ---- the plan ---- */

static void print_objective(const struct ot_report *r) {
    const struct ot_objective o = ot_plan_request_objective(r->session->options);
    const struct ot_data_stats *stats = ot_dataset_stats(r->rows->data);
    char line[OT_TABLE_LINE_BYTES], rows[OT_TEXT_BYTES];
    int n = snprintf(line, sizeof line, "%s, beta %g", ot_objective_name(o.kind), o.beta);
    if (o.kind == OT_OBJECTIVE_SIMPO)
        n += snprintf(line + n, sizeof line - (size_t)n, ", gamma %g", o.gamma);
    if (o.smoothing > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, ", label smoothing %g", o.smoothing);
    if (o.sft_weight > 0)
        n += snprintf(line + n, sizeof line - (size_t)n, ", sft weight %g", o.sft_weight);
    if (o.kind == OT_OBJECTIVE_KTO)
        n +=
            snprintf(line + n, sizeof line - (size_t)n, ", weights %g and %g · %lld of %lld answers are good",
                     o.weights[0], o.weights[1], (long long)stats->good, (long long)stats->kept);
    if (ot_objective_has_reference(o.kind))
        snprintf(line + n, sizeof line - (size_t)n, " · reference: this model, in one pass over %s rows",
                 ot_text_count(stats->kept, rows));
    ot_log(OT_LOG_INFO, "        objective %s", line);
}

static void print_shape(const struct ot_report *r) {
    const struct ot_options *o = r->session->options;
    const struct ot_plan *plan = &r->session->plan.chosen;
    const struct ot_run_shape *shape = r->shape;
    static const char *const schedules[] = {"constant", "linear", "cosine", "wsd"};
    char tokens[OT_STEP_TEXT_BYTES], steps[OT_STEP_TEXT_BYTES], line[OT_TABLE_LINE_BYTES];
    char rounds[OT_TEXT_BYTES], details[OT_REPORT_MOST_DETAILS][OT_TABLE_LINE_BYTES];
    ot_log(OT_LOG_INFO, "plan    %s · AdamW %.2g %s, warm-up %lld, clip %g · %s · %s",
           o->lora                 ? "adapters"
           : o->train || o->freeze ? "some parameters"
                                   : "all parameters",
           o->lr, schedules[shape->lr.kind], (long long)shape->lr.warmup, o->clip,
           ot_shape_step_text(o, shape->step_sequences, shape->seq_len, tokens),
           ot_shape_length_text(o, shape, steps));
    if (r->choice->n > 0)
        ot_log(OT_LOG_INFO, "        tokens  %s", ot_report_choice(r->choice, line));
    int n_layers = ot_plan_has_stages(plan)
                       ? ot_shard_layers(ot_model_chain(r->session->model.built), &plan->shard)
                       : (int)r->session->model.config.n_layers;
    ot_log(OT_LOG_INFO, "        micro-batch %lld x %lld sequence%s%s · %s",
           (long long)((shape->step_sequences + o->micro_batch - 1) / o->micro_batch),
           (long long)o->micro_batch, ot_plural(o->micro_batch), ot_report_rounds(plan, rounds),
           ot_report_kept(plan, n_layers, line));
    if (o->objective != OT_OBJECTIVE_SFT)
        print_objective(r);
    if (*ot_report_regular(ot_model_get_regular(r->session->model.built), line))
        ot_log(OT_LOG_INFO, "        regular %s", line);
    ot_log(OT_LOG_INFO, "        homes   %s", ot_report_homes(plan, line));
    ot_log(OT_LOG_INFO, "        updates %s", ot_report_engines(plan, line));
    int n_details = ot_report_details(r->session->model.built, plan, o, details);
    for (int i = 0; i < n_details; i++)
        ot_log(OT_LOG_INFO, "        %s", details[i]);
}

static void add_entry(struct ot_ledger *ledger, enum ot_tier tier, const char *name, size_t bytes) {
    if (ledger->n < OT_LEDGER_MAX)
        ledger->entries[ledger->n++] = (struct ot_ledger_entry){tier, name, bytes, 0};
}

struct ot_ledger ot_report_ledger(const struct ot_report *r) {
    struct ot_ledger ledger = r->session->plan.chosen.ledger;
    if (r->session->machine.workspace_bytes)
        add_entry(&ledger, OT_TIER_GPU, "kernel workspace", r->session->machine.workspace_bytes);
    add_entry(&ledger, OT_TIER_HOST, "rows", (size_t)ot_rows_bytes(r->rows));
    add_entry(&ledger, OT_TIER_HOST, "a matrix, while it is encoded",
              ot_slab_encoder_bytes(r->session->model.built));
    if (r->out)
        add_entry(&ledger, OT_TIER_HOST, "a slab of the model, to save it",
                  (size_t)ot_gather_bytes(r->session));
    return ledger;
}

bool ot_report_is_local(const struct ot_report *r) {
    return r->has_places && ot_plan_is_divided(&r->session->plan.chosen);
}

/* "1 and the best, 30.1 MiB · reserved: 100.4 MiB": what --save-every keeps, and its space on disk. */
static void put_kept(const struct ot_report *r, int64_t copied, size_t bytes, char *text) {
    const struct ot_options *o = r->session->options;
    int64_t best = r->rows->eval && ot_saver_is_regular(o) ? ot_saver_best_bytes(r->session) : 0;
    char size[OT_TEXT_BYTES];
    size_t used = (size_t)snprintf(text, bytes, "%lld%s%s", (long long)o->keep, best ? " and the best, " : "",
                                   best ? ot_text_bytes(best, size) : "");
    if (ot_saver_is_regular(o) && !ot_report_is_local(r))
        snprintf(text + used, bytes - used, " · reserved: %s",
                 ot_text_bytes((o->keep + 1) * copied + best + r->save_bytes, size));
}

/* What the evaluations decide: "result: best by loss · stops after 3 evaluations in a row without a gain". */
static void print_evaluations(const struct ot_report *r) {
    const struct ot_options *o = r->session->options;
    char result[48] = "result: last", early[192] = "", delta[64] = "";
    if (o->result != OT_CHOICE_RESULT_LAST)
        snprintf(result, sizeof result, "result: best by %s",
                 ot_eval_metric_name((enum ot_eval_metric)o->eval_metric));
    long long patience = o->stop_early.evaluations;
    if (o->stop_early.delta > 0)
        snprintf(delta, sizeof delta, " of more than %g", o->stop_early.delta);
    if (patience > 0)
        snprintf(early, sizeof early, "stops after %lld evaluation%s in a row without a gain%s", patience,
                 ot_plural(patience), delta);
    if (r->rows->eval && (r->out || *early))
        ot_log(OT_LOG_INFO, "        %s%s%s", r->out ? result : "", r->out && *early ? " · " : "", early);
}

static void print_checkpoints(const struct ot_report *r) {
    const struct ot_options *o = r->session->options;
    char when[64], each[96], kept[96], size[OT_TEXT_BYTES];
    int64_t copied, referred;
    size_t used = 0;
    ot_saver_bytes(r->session, &copied, &referred);
    if (o->save_every.seconds > 0)
        snprintf(when, sizeof when, "every %s", ot_text_duration(o->save_every.seconds, size));
    else if (o->save_every.steps == 1)
        snprintf(when, sizeof when, "every step");
    else if (o->save_every.steps > 1)
        snprintf(when, sizeof when, "every %lld steps", (long long)o->save_every.steps);
    else
        snprintf(when, sizeof when, "%s", o->save_every.epoch ? "every epoch" : "when stopped");
    if (copied > 0 || referred == 0)
        used = (size_t)snprintf(each, sizeof each, "%s each", ot_text_bytes(copied, size));
    if (referred > 0)
        snprintf(each + used, sizeof each - used, used ? ", and %s on NVMe" : "%s each, on NVMe",
                 ot_text_bytes(referred, size));
    put_kept(r, copied, sizeof kept, kept);
    ot_log(OT_LOG_INFO, "        checkpoints %s · %s · kept: %s", when, each, kept);
    if (ot_report_is_local(r))
        ot_log(OT_LOG_INFO,
               "        each host keeps the parts of its own ranks in its --out; to continue, start "
               "the same ranks on the same hosts");
}

static void print_save(const struct ot_report *r) {
    char save[OT_TEXT_BYTES], disk[OT_TEXT_BYTES];
    if (!r->out) {
        ot_log(OT_LOG_INFO, "save    nothing: --no-save");
        print_evaluations(r);
        return;
    }
    ot_log(OT_LOG_INFO, "save    %s · %sup to %s in %s%s%s", r->out,
           r->session->options->lora ? "adapters for PEFT, " : "", ot_text_bytes(r->save_bytes, save),
           ot_dtype_name(r->session->options->lora ? OT_F32 : r->session->model.stored),
           r->disk_free_bytes >= 0 ? " · free on that disk: " : "",
           r->disk_free_bytes >= 0 ? ot_text_bytes(r->disk_free_bytes, disk) : "");
    const struct ot_session *s = r->session;
    const char *left = s->model.dir ? ot_model_dir_facts(s->model.dir)->left_out : NULL;
    if (left && !s->options->lora)
        ot_log(OT_LOG_INFO, "        not copied from %s: %.300s", ot_model_dir_path(s->model.dir), left);
    print_checkpoints(r);
    print_evaluations(r);
}

static void print_explanation(const struct ot_report *r) {
    const struct ot_session *s = r->session;
    const struct ot_run_shape *shape = r->shape;
    int64_t half = ot_shape_half_steps(s->options, shape->sequences, shape->step_sequences);
    char lines[OT_EXPLANATION_LINES][OT_FORECAST_LINE_BYTES];
    const struct ot_prediction *p = &s->plan.prediction;
    struct ot_lane_times times = {"predicted", p->step_seconds, p->busy, p->exposed, p->exposed_host};
    int n = ot_report_lanes(&times, 1, lines);
    for (int i = 0; i < n; i++)
        ot_log(OT_LOG_INFO, "%-7s %s", i ? "" : "lanes", lines[i]);
    n = ot_report_explanation(&s->plan.forecast.explanation, shape->lr.steps, half, lines);
    for (int i = 0; i < n; i++)
        ot_log(OT_LOG_INFO, "%-7s %s", i == 0 ? "bound" : i == 1 ? "if" : "", lines[i]);
}

static void print_forecast(const struct ot_report *r) {
    const struct ot_forecast *f = &r->session->plan.forecast;
    char line[OT_FORECAST_LINE_BYTES], division[OT_DIVISION_BYTES];
    if (r->session->options->no_forecast)
        return;
    ot_report_prediction(&r->session->plan.prediction, r->resumed ? r->resumed->progress.step : 0,
                         r->shape->lr.steps, r->times, line);
    if (f->tried > 1)
        ot_log(OT_LOG_INFO, "expect  %s · the fastest of %d plans", line, f->tried);
    else
        ot_log(OT_LOG_INFO, "expect  %s", line);
    const struct ot_shard *shard = &r->session->plan.chosen.shard;
    if (*ot_report_shards(&f->shards, shard->mode, line))
        ot_log(OT_LOG_INFO, "shard   %s · %s", ot_report_division(shard, division), line);
    if (f->is_explained)
        print_explanation(r);
    int64_t done = r->resumed ? r->resumed->progress.step : 0;
    ot_wear_warn(r->session->plan.prediction.bytes[OT_LANE_NVME_WRITE], r->shape->lr.steps - done,
                 r->session->options->nvme.n);
}

void ot_report_print(const struct ot_report *r) {
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES];
    struct ot_ledger ledger = ot_report_ledger(r);
    print_machine(r);
    print_topology(r->session);
    print_disks(r->session);
    print_model(r);
    print_data(r);
    print_shape(r);
    int n = ot_report_table(&ledger, r->session->machine.budget_bytes, r->session->options->explain, lines);
    for (int i = 0; i < n; i++)
        ot_log(OT_LOG_INFO, "%s", lines[i]);
    print_save(r);
    print_forecast(r);
}

void ot_report_print_store(const struct ot_report *r) {
    const char *store = ot_engine_describe_store(r->session->engine);
    if (store)
        ot_log(OT_LOG_INFO, "store   %s", store);
}

/* ---- the log's "run" event ---- */

static void record_plan(const struct ot_report *r, struct ot_json_writer *w) {
    const struct ot_plan *plan = &r->session->plan.chosen;
    const struct ot_plan_homes homes = ot_report_count_homes(plan);
    struct ot_ledger ledger = ot_report_ledger(r);
    ot_json_begin_object(w, "plan");
    ot_json_put_int(w, "steps", r->shape->lr.steps);
    ot_json_put_int(w, "steps_per_epoch", r->shape->steps_per_epoch);
    ot_json_put_int(w, "warmup", r->shape->lr.warmup);
    ot_json_put_int(w, "micro_tokens", plan->micro_tokens);
    ot_json_put_int(w, "row_sections", ot_plan_sections(plan));
    ot_json_put_int(w, "key_groups", ot_plan_key_groups(plan));
    ot_report_put_kept(plan, w);
    ot_json_put_int(w, "slabs", plan->n_slabs);
    ot_report_put_tiers(w, "weights", homes.weights);
    if (plan->shard.ranks > 1)
        ot_json_put_bool(w, "one_copy", ot_plan_has_one_copy(plan));
    ot_report_put_tiers(w, "state_tiles", homes.state);
    ot_report_put_tiers(w, "gradient_tiles", homes.grads);
    ot_report_put_engines(plan, w);
    ot_json_put_text(w, "activations", ot_tier_name((enum ot_tier)plan->activations));
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        char key[32];
        snprintf(key, sizeof key, "%s_budget_bytes", ot_tier_name((enum ot_tier)t));
        ot_json_put_int(w, key, (int64_t)r->session->machine.budget_bytes[t]);
    }
    ot_report_put_ledger(&ledger, w);
    ot_json_end_object(w);
}

static void record_data(const struct ot_report *r, struct ot_json_writer *w) {
    const struct ot_data_stats *stats = ot_dataset_stats(r->rows->data);
    ot_json_begin_object(w, "data");
    ot_json_put_text(w, "kind", ot_row_kind_name(stats->kind));
    ot_json_put_int(w, "rows", stats->rows);
    ot_json_put_int(w, "bad", stats->bad);
    ot_json_put_int(w, "dropped", stats->untrained);
    ot_json_put_int(w, "duplicates", stats->duplicates);
    ot_json_put_int(w, "truncated", stats->truncated);
    ot_json_put_int(w, "train_rows", ot_packing_rows(r->rows->train));
    ot_json_put_int(w, "eval_rows", r->rows->eval ? ot_packing_rows(r->rows->eval) : 0);
    ot_json_put_int(w, "tokens", ot_packing_tokens(r->rows->train));
    ot_json_put_int(w, "trained_tokens", ot_packing_trained_tokens(r->rows->train));
    ot_json_put_int(w, "sequences", r->shape->sequences);
    ot_json_end_object(w);
}

static void record_disks(const struct ot_session *s, struct ot_json_writer *w) {
    ot_json_begin_array(w, "nvme");
    for (int i = 0; i < s->machine.store.n_dirs; i++) {
        ot_json_begin_object(w, NULL);
        ot_json_put_text(w, "dir", s->machine.store.dirs[i].path);
        ot_json_put_int(w, "may_use_bytes", (int64_t)s->machine.store.dirs[i].bytes);
        ot_json_put_int(w, "free_bytes", ot_session_free_in(s->machine.store.dirs[i].path));
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
}

static void record_machine(const struct ot_session *s, struct ot_json_writer *w) {
    ot_json_begin_object(w, "machine");
    ot_json_put_text(w, "device", ot_device_name(s->machine.device));
    ot_json_put_int(w, "cores", s->machine.limits.cores);
    ot_json_put_int(w, "ram_bytes", s->machine.limits.ram_bytes);
    ot_json_put_int(w, "free_bytes", s->machine.limits.free_bytes);
    ot_json_put_text(w, "topology", ot_topology_describe(s->machine.topology));
    record_disks(s, w);
    if (s->engine && ot_engine_describe_store(s->engine))
        ot_json_put_text(w, "store", ot_engine_describe_store(s->engine));
    ot_json_end_object(w);
    ot_json_begin_object(w, "model");
    ot_json_put_text(w, "found", s->model.resolved.path ? s->model.resolved.found : s->options->model);
    ot_json_put_text(w, "family", ot_family_row(s->model.config.family)->model_type);
    ot_json_put_int(w, "parameters", ot_model_param_count(&s->model.config));
    ot_json_put_int(w, "frozen_parameters", ot_model_frozen_count(s->model.built));
    ot_json_put_int(w, "trained_parameters", ot_model_trained_count(s->model.built));
    ot_json_put_text(w, "stored", ot_dtype_name(s->model.stored));
    ot_json_put_text(w, "computed", ot_dtype_name(s->model.dtype));
    ot_json_end_object(w);
}

static void record_forecast(const struct ot_report *r, struct ot_json_writer *w) {
    const struct ot_forecast *f = &r->session->plan.forecast;
    ot_json_begin_object(w, "prediction");
    ot_json_put_int(w, "plans_tried", f->tried);
    ot_report_put_shards(&f->shards, r->session->plan.chosen.shard.mode, w);
    ot_json_put_real(w, "planning_seconds", f->seconds);
    ot_rates_put_json(&f->costs.rates, "rates", w);
    ot_json_put_real(w, "under_load", f->costs.under_load);
    ot_report_put_prediction(&r->session->plan.prediction, r->shape->lr.steps, w);
    ot_report_put_times(&r->session->plan.prediction, r->resumed ? r->resumed->progress.step : 0,
                        r->shape->lr.steps, r->times, w);
    if (f->is_explained) {
        ot_json_begin_object(w, "explanation");
        ot_report_put_explanation(&f->explanation, w);
        ot_json_end_object(w);
    }
    ot_json_end_object(w);
}

int ot_report_record(const struct ot_report *r, struct ot_run_log *log) {
    struct ot_json_writer *w = ot_run_log_begin(log, "run");
    ot_json_put_text(w, "version", OT_VERSION);
    if (r->out)
        ot_json_put_text(w, "out", r->out);
    ot_options_put_json(r->session->options, "options", w);
    ot_options_put_sources(r->session->options, "sources", w);
    record_machine(r->session, w);
    ot_session_ranks_put_json(r->session, "ranks", w);
    record_data(r, w);
    record_plan(r, w);
    ot_report_put_choice(r->choice, w);
    if (!r->session->options->no_forecast)
        record_forecast(r, w);
    return ot_run_log_end(log);
}

int ot_report_forecast_again(const struct ot_session *session, struct ot_run_log *log) {
    const struct ot_forecast *f = &session->plan.forecast;
    const struct ot_prediction *first = &session->plan.prediction, *again = &f->again;
    char line[OT_FORECAST_LINE_BYTES];
    if (ot_report_again(first, again, f->again_from, f->again_to, line))
        ot_log(OT_LOG_INFO, "expect  %s", line);
    struct ot_json_writer *w = ot_run_log_begin(log, "predicted_again");
    ot_json_put_int(w, "from_step", f->again_from);
    ot_json_put_int(w, "to_step", f->again_to);
    ot_json_put_real(w, "first_step_seconds", first->step_seconds);
    ot_json_put_real(w, "step_seconds", again->step_seconds);
    ot_report_put_lanes("busy_seconds", again->busy, w);
    ot_report_put_lanes("exposed_seconds", again->exposed, w);
    ot_json_put_real(w, "exposed_host_seconds", again->exposed_host);
    return ot_run_log_end(log);
}
