#include "src/cli/plan_view.h"

#include <math.h>
#include <string.h>

#include "src/checkpoint/writer.h"
#include "src/cli/lines.h"
#include "src/cli/report_forecast.h"
#include "src/cli/report_table.h"
#include "src/cli/run_shape.h"
#include "src/cli/units.h"

/* What consumer drives of 1 TB are rated for: 600 TB written (data sheets of Samsung 990 PRO and WD Black
 * SN850X, both 1 TB). */
static const double RATED_BYTES = 600e12;

/* ---- what follows from the prediction ---- */

struct answer {
    double tokens_per_second, model_flops, mfu, peak; /* peak 0: unknown */
    double run_seconds, run_tokens, run_price, million_price;
    double written, read; /* bytes of nvme, a step */
};

static struct answer answer_of(const struct ot_plan_view *v) {
    const struct ot_prediction *p = &v->chosen->prediction;
    struct answer a = {.peak = v->card ? v->card->peak_tflops * 1e12 : v->costs->rates.product_flops};
    /* A prediction is of full micro-batches: where the last one is short, the step takes no longer. */
    double tokens = (double)(v->step_sequences * v->seq_len);
    a.model_flops = p->model_flops * tokens / p->tokens;
    a.tokens_per_second = tokens / p->step_seconds;
    a.mfu = a.peak > 0 ? a.model_flops / p->step_seconds / a.peak : 0;
    a.run_tokens = (double)v->steps * tokens;
    a.run_seconds = (double)v->steps * p->step_seconds;
    a.run_price = a.run_seconds / 3600 * v->options->price;
    a.million_price = 1e6 / a.tokens_per_second / 3600 * v->options->price;
    a.written = p->bytes[OT_LANE_NVME_WRITE];
    a.read = p->bytes[OT_LANE_NVME_READ];
    return a;
}

static struct ot_ledger whole_ledger(const struct ot_plan_view *v) {
    struct ot_ledger ledger = v->chosen->plan.ledger;
    if (v->workspace_bytes && ledger.n < OT_LEDGER_MAX)
        ledger.entries[ledger.n++] =
            (struct ot_ledger_entry){OT_TIER_GPU, "kernel workspace", v->workspace_bytes};
    return ledger;
}

/* ---- text ---- */

/* Tokens a second: "13,623", "18.7" */
static const char *text_rate(double rate, char text[OT_TEXT_BYTES]) {
    if (rate >= 99.95)
        return ot_text_count((int64_t)round(rate), text);
    snprintf(text, OT_TEXT_BYTES, "%.1f", rate);
    return text;
}

/* "152.0 TFLOP", "76.3 GFLOP" */
static const char *text_flops(double flops, char text[OT_TEXT_BYTES]) {
    bool big = flops >= 1e12;
    snprintf(text, OT_TEXT_BYTES, "%.1f %s", flops * (big ? 1e-12 : 1e-9), big ? "TFLOP" : "GFLOP");
    return text;
}

static void print_machine(const struct ot_plan_view *v, FILE *out) {
    const struct ot_rates *r = &v->costs->rates;
    char products[OT_TEXT_BYTES], attention[OT_TEXT_BYTES];
    fprintf(out, "machine %s\n", v->machine);
    fprintf(out, "        products %s/s · attention %s/s · device memory %.0f GB/s\n",
            text_flops(r->product_flops, products), text_flops(r->attention_flops, attention),
            r->device_bytes * 1e-9);
    fprintf(out,
            "        link %.1f GB/s to the device, %.1f back, %.1f both · host memory %.1f GB/s, %d cores\n",
            r->h2d_bytes * 1e-9, r->d2h_bytes * 1e-9, r->both_bytes * 1e-9, r->triad_bytes * 1e-9, r->cores);
    if (v->budget_bytes[OT_TIER_NVME])
        fprintf(out, "        nvme reads %.2f GB/s, writes %.2f, both %.2f\n", r->nvme_read_bytes * 1e-9,
                r->nvme_write_bytes * 1e-9, r->nvme_mixed_bytes * 1e-9);
    if (*v->assumed)
        fprintf(out, "        assumed, say what you know: %s\n", v->assumed);
}

static void print_plan(const struct ot_plan_view *v, FILE *out) {
    const struct ot_model_config *config = ot_model_get_config(v->model);
    const struct ot_plan *plan = &v->chosen->plan;
    struct ot_ledger ledger = whole_ledger(v);
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES], text[OT_TABLE_LINE_BYTES];
    char tokens[OT_STEP_TEXT_BYTES], params[OT_TEXT_BYTES];
    int64_t micro = plan->micro_tokens / v->seq_len;
    fprintf(out, "model   %s · %s · %lld layers · %s parameters, computed in %s\n", v->model_name,
            ot_family_row(config->family)->model_type, (long long)config->n_layers,
            ot_text_short((double)ot_model_param_count(config), params), ot_dtype_name(v->dtype));
    fprintf(out, "step    %s · %d micro-batch%s of %s%lld\n",
            ot_shape_step_text(v->options, v->step_sequences, v->seq_len, tokens), plan->max_micro,
            plan->max_micro == 1 ? "" : "es", v->step_sequences % micro ? "up to " : "", (long long)micro);
    fprintf(out, "plan    %s\n", ot_report_homes(plan, text));
    fprintf(out, "        updates %s\n", ot_report_engines(plan, text));
    fprintf(out, "        %lld of %lld layers recomputed · %d weight slots\n",
            (long long)(config->n_layers - plan->kept_blocks), (long long)config->n_layers,
            plan->weight_slots[OT_SLOT_LAYER]);
    int n = ot_report_table(&ledger, v->budget_bytes, lines);
    for (int i = 0; i < n; i++)
        fprintf(out, "%s\n", lines[i]);
    fprintf(out, "disk    a checkpoint takes %s: the newest stays, and its successor is made beside it\n",
            ot_text_bytes(ot_checkpoint_state_bytes(ot_model_chain(v->model)), text));
}

/* Times of one step are all in its unit. */
struct step_unit {
    const char *name;
    double per_second;
};
static struct step_unit unit_of(const struct ot_prediction *p) {
    return p->step_seconds < 1 ? (struct step_unit){"ms", 1e3} : (struct step_unit){"s", 1};
}

/* A part rounded to one in `fineness`, so that all rounded parts add up to the rounded sum: the difference of
 * the rounded running sums. */
static double next_rounded(double part, double fineness, double *sum) {
    double before = round(*sum * fineness);
    *sum += part;
    return (round(*sum * fineness) - before) / fineness;
}

/* A row a lane: how long it is busy, what it moves, and its part of the step: compute's own time, and the
 * time that compute waits for the others. The parts add up. */
static void print_lanes(const struct ot_plan_view *v, FILE *out) {
    const struct ot_prediction *p = &v->chosen->prediction;
    const struct step_unit unit = unit_of(p);
    double times = 0, shares = 0, step = p->step_seconds;
    fprintf(out, "          %-12s %11s %-2s %11s %15s\n", "lane", "busy", "", "moved", "of the step");
    for (int i = 0; i < OT_LANE_COUNT; i++) {
        int lane = i == 0 ? OT_LANE_COMPUTE : i <= OT_LANE_COMPUTE ? i - 1 : i; /* compute first */
        bool is_compute = lane == OT_LANE_COMPUTE;
        double part = is_compute ? p->busy[lane] + p->exposed[lane] : p->exposed[lane];
        double time = next_rounded(part * unit.per_second, 1000, &times);
        double share = next_rounded(100 * part / step, 10, &shares);
        char moved[OT_TEXT_BYTES] = "";
        if (p->bytes[lane] > 0)
            snprintf(moved, sizeof moved, "%.2f GB", p->bytes[lane] * 1e-9);
        if (p->busy[lane] * unit.per_second >= 0.0005 || time > 0 || share > 0)
            fprintf(out, "          %-12s %11.3f %-2s %11s %11.3f %-2s %6.1f %%   %s\n",
                    ot_lane_name((enum ot_lane_id)lane), p->busy[lane] * unit.per_second, unit.name, moved,
                    time, unit.name, share, is_compute ? "computing" : "compute waits for it");
    }
    fprintf(out, "          %-12s %11s %-2s %11s %11.3f %-2s %6.1f %%   compute waits, nothing runs\n",
            "none", "", "", "", next_rounded(p->exposed_host * unit.per_second, 1000, &times), unit.name,
            next_rounded(100 * p->exposed_host / step, 10, &shares));
    fprintf(out, "          %-12s %11s %-2s %11s %11.3f %-2s %6.1f %%\n", "step", "", "", "",
            step * unit.per_second, unit.name, 100.0);
}

static void print_time(const struct ot_plan_view *v, FILE *out) {
    const struct ot_prediction *p = &v->chosen->prediction;
    const struct step_unit unit = unit_of(p);
    struct answer a = answer_of(v);
    char rate[OT_TEXT_BYTES], work[OT_TEXT_BYTES], peak[OT_TEXT_BYTES];
    fprintf(out, "time    %.3f %s a step · %s tokens/s\n", p->step_seconds * unit.per_second, unit.name,
            text_rate(a.tokens_per_second, rate));
    if (a.peak > 0)
        fprintf(out, "        MFU %.1f %% = %s a step (6 N a token, and attention) / %.3f %s / %s/s %s\n",
                100 * a.mfu, text_flops(a.model_flops, work), p->step_seconds * unit.per_second, unit.name,
                text_flops(a.peak, peak), v->card ? "of the data sheet" : "of the best product measured");
    print_lanes(v, out);
}

static void print_run(const struct ot_plan_view *v, FILE *out) {
    struct answer a = answer_of(v);
    char steps[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES], time[OT_TEXT_BYTES];
    ot_text_duration(a.run_seconds, time);
    if (a.run_seconds > 1e9) /* beyond what durations are for */
        snprintf(time, sizeof time, "%.3g years", a.run_seconds / (365.25 * 86400));
    if (v->steps)
        fprintf(out, "run     %s steps · %s tokens · %s\n", ot_text_count(v->steps, steps),
                ot_text_short(a.run_tokens, tokens), time);
    if (v->options->price > 0 && v->steps)
        fprintf(out, "price   %.2f for the run at %g an hour · %.4g a million tokens\n", a.run_price,
                v->options->price, a.million_price);
    else if (v->options->price > 0)
        fprintf(out,
                "price   %.4g a million tokens at %g an hour (the run's with --steps, --tokens or --rows)\n",
                a.million_price, v->options->price);
    if (a.written + a.read == 0)
        return;
    fprintf(out, "nvme    %.2f GB read, %.2f GB written a step", a.read * 1e-9, a.written * 1e-9);
    if (v->steps)
        fprintf(out, " · %.3f TB written in the run, %.2g %% of the %.0f TB that a 1 TB drive is rated for",
                a.written * (double)v->steps * 1e-12, 100 * a.written * (double)v->steps / RATED_BYTES,
                RATED_BYTES * 1e-12);
    else if (a.written > 0)
        fprintf(out, " · %.0f steps write the %.0f TB that a 1 TB drive is rated for",
                RATED_BYTES / a.written, RATED_BYTES * 1e-12);
    fputc('\n', out);
}

static void print_explanation(const struct ot_plan_view *v, FILE *out) {
    const struct ot_explanation *e = v->explanation;
    const struct step_unit unit = unit_of(&v->chosen->prediction);
    double now = answer_of(v).tokens_per_second;
    char rate[OT_TEXT_BYTES];
    if (!e)
        return;
    if (e->bound == OT_LANE_COMPUTE)
        fprintf(out, "bound   computing, %.1f %% of the step\n", 100 * e->bound_share);
    else
        fprintf(out, "bound   %s, which compute waits for in %.1f %% of the step\n", ot_lane_name(e->bound),
                100 * e->bound_share);
    for (int i = 0; i < e->n_ifs; i++)
        fprintf(out, "%-7s %-28s %11.3f %s a step %11s tokens/s %+7.1f %%\n", i ? "" : "if", e->ifs[i].what,
                e->ifs[i].step_seconds * unit.per_second, unit.name,
                text_rate(e->ifs[i].tokens_per_second, rate), 100 * (e->ifs[i].tokens_per_second / now - 1));
}

static const char *basis_text(const struct ot_plan_view *v) {
    if (v->card)
        return "from the card's data sheet and assumptions, measured nowhere";
    if (!v->costs->is_measured)
        return "rates measured on this machine; the blocks' times follow from their work";
    if (v->budget_bytes[OT_TIER_NVME] == 0)
        return "this model's own blocks and copies, measured on this machine";
    return *v->assumed
               ? "this model's own blocks and copies, measured on this machine; disks that are not there"
               : "this model's own blocks, copies and disks, measured on this machine";
}

void ot_plan_view_print(const struct ot_plan_view *v, FILE *out) {
    print_machine(v, out);
    print_plan(v, out);
    print_time(v, out);
    print_run(v, out);
    print_explanation(v, out);
    fprintf(out, "basis   %s\n", basis_text(v));
}

/* ---- JSON ---- */

static void put_lanes(struct ot_json_writer *w, const char *key, const double values[OT_LANE_COUNT]) {
    ot_json_begin_object(w, key);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        ot_json_put_real(w, ot_lane_name((enum ot_lane_id)l), values[l]);
    ot_json_end_object(w);
}

static void put_machine(const struct ot_plan_view *v, struct ot_json_writer *w) {
    const struct ot_rates *r = &v->costs->rates;
    ot_json_begin_object(w, "machine");
    ot_json_put_text(w, "name", v->machine);
    ot_json_put_bool(w, "described", v->card != NULL);
    ot_json_put_text(w, "assumed", v->assumed);
    ot_json_put_real(w, "product_flops", r->product_flops);
    ot_json_put_real(w, "attention_flops", r->attention_flops);
    ot_json_put_real(w, "device_bytes_per_s", r->device_bytes);
    ot_json_put_real(w, "h2d_bytes_per_s", r->h2d_bytes);
    ot_json_put_real(w, "d2h_bytes_per_s", r->d2h_bytes);
    ot_json_put_real(w, "both_bytes_per_s", r->both_bytes);
    ot_json_put_real(w, "host_bytes_per_s", r->triad_bytes);
    ot_json_put_real(w, "optimizer_bytes_per_s", r->adamw_bytes);
    ot_json_put_real(w, "nvme_read_bytes_per_s", r->nvme_read_bytes);
    ot_json_put_real(w, "nvme_write_bytes_per_s", r->nvme_write_bytes);
    ot_json_put_int(w, "cores", r->cores);
    ot_json_begin_object(w, "budget_bytes");
    for (int t = 0; t < OT_TIER_COUNT; t++)
        ot_json_put_int(w, ot_tier_name((enum ot_tier)t), (int64_t)v->budget_bytes[t]);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_tiers(struct ot_json_writer *w, const char *key, const int64_t counts[OT_TIER_COUNT]) {
    ot_json_begin_object(w, key);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        ot_json_put_int(w, ot_tier_name((enum ot_tier)t), counts[t]);
    ot_json_end_object(w);
}

static void put_plan(const struct ot_plan_view *v, struct ot_json_writer *w) {
    const struct ot_plan *plan = &v->chosen->plan;
    const struct ot_plan_homes homes = ot_report_count_homes(plan);
    struct ot_ledger ledger = whole_ledger(v);
    ot_json_begin_object(w, "plan");
    ot_json_put_int(w, "tried", v->chosen->tried);
    ot_json_put_int(w, "sequence_tokens", v->seq_len);
    ot_json_put_int(w, "step_sequences", v->step_sequences);
    ot_json_put_int(w, "micro_sequences", plan->micro_tokens / v->seq_len);
    ot_json_put_int(w, "micro_batches", plan->max_micro);
    ot_json_put_int(w, "kept_blocks", plan->kept_blocks);
    put_tiers(w, "weights_slabs", homes.weights);
    put_tiers(w, "state_tiles", homes.state);
    ot_json_put_text(w, "activations", ot_tier_name((enum ot_tier)plan->activations));
    ot_json_begin_object(w, "optimizer_tiles");
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        ot_json_put_int(w, ot_tile_engine_name((enum ot_tile_engine)e),
                        ot_plan_count_tiles(plan, (enum ot_tile_engine)e));
    ot_json_end_object(w);
    ot_report_put_ledger(&ledger, w);
    ot_json_put_int(w, "checkpoint_bytes", ot_checkpoint_state_bytes(ot_model_chain(v->model)));
    ot_json_end_object(w);
}

static void put_time(const struct ot_plan_view *v, struct ot_json_writer *w) {
    const struct ot_prediction *p = &v->chosen->prediction;
    struct answer a = answer_of(v);
    ot_json_begin_object(w, "prediction");
    ot_json_put_text(w, "basis", basis_text(v));
    ot_json_put_real(w, "step_seconds", p->step_seconds);
    ot_json_put_real(w, "tokens_per_s", a.tokens_per_second);
    ot_json_put_real(w, "model_flops", a.model_flops);
    ot_json_put_real(w, "flops", p->flops);
    if (a.peak > 0) {
        ot_json_put_real(w, "mfu", a.mfu);
        ot_json_put_real(w, "mfu_peak_flops", a.peak);
    }
    put_lanes(w, "busy_seconds", p->busy);
    put_lanes(w, "exposed_seconds", p->exposed);
    ot_json_put_real(w, "exposed_host_seconds", p->exposed_host);
    put_lanes(w, "bytes", p->bytes);
    ot_json_end_object(w);
    if (!v->steps && v->options->price == 0)
        return;
    ot_json_begin_object(w, "run");
    if (v->steps) {
        ot_json_put_int(w, "steps", v->steps);
        ot_json_put_real(w, "tokens", a.run_tokens);
        ot_json_put_real(w, "seconds", a.run_seconds);
        ot_json_put_real(w, "nvme_written_bytes", a.written * (double)v->steps);
    }
    if (v->options->price > 0) {
        ot_json_put_real(w, "price_per_million_tokens", a.million_price);
        if (v->steps)
            ot_json_put_real(w, "price", a.run_price);
    }
    ot_json_end_object(w);
}

static void put_explanation(const struct ot_plan_view *v, struct ot_json_writer *w) {
    const struct ot_explanation *e = v->explanation;
    if (!e)
        return;
    ot_json_begin_object(w, "explanation");
    ot_report_put_explanation(e, w);
    ot_json_end_object(w);
}

int ot_plan_view_print_json(const struct ot_plan_view *v) {
    const struct ot_model_config *config = ot_model_get_config(v->model);
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_options_put_json(v->options, "options", &w);
    put_machine(v, &w);
    ot_json_begin_object(&w, "model");
    ot_json_put_text(&w, "name", v->model_name);
    ot_json_put_text(&w, "family", ot_family_row(config->family)->model_type);
    ot_json_put_int(&w, "parameters", ot_model_param_count(config));
    ot_json_put_text(&w, "computed", ot_dtype_name(v->dtype));
    ot_json_end_object(&w);
    put_plan(v, &w);
    put_time(v, &w);
    put_explanation(v, &w);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}

/* ---- the cards ---- */

void ot_cards_print(FILE *out) {
    const struct ot_card *card;
    const struct ot_pod *pod;
    fprintf(out, "%-14s %-26s %10s %13s %10s %12s  %s\n", "card", "", "memory", "peak", "assumed",
            "bandwidth", "PCIe");
    for (int i = 0; (card = ot_card_at(i)); i++)
        fprintf(out, "%-14s %-26s %6.1f GiB %6.1f TFLOP/s %8.0f %% %7.0f GB/s  %d.0 x%d\n", card->name,
                card->title, card->memory_mib / 1024.0, card->peak_tflops, 100 * card->achieved,
                card->memory_gb, card->pcie_gen, card->pcie_lanes);
    fprintf(out, "\n%-16s %-28s %-14s %6s %10s %10s\n", "rented machine", "", "card", "vCPUs", "RAM",
            "local NVMe");
    for (int i = 0; (pod = ot_pod_at(i)); i++) {
        char disk[OT_TEXT_BYTES] = "-";
        if (pod->disk_gb)
            snprintf(disk, sizeof disk, "%d GB", pod->disk_gb);
        fprintf(out, "%-16s %-28s %-14s %6d %6d GiB %10s\n", pod->name, pod->title, pod->card, pod->vcpus,
                pod->host_gib, disk);
    }
}

int ot_cards_print_json(void) {
    const struct ot_card *card;
    const struct ot_pod *pod;
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_begin_array(&w, "cards");
    for (int i = 0; (card = ot_card_at(i)); i++) {
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "name", card->name);
        ot_json_put_text(&w, "title", card->title);
        ot_json_put_int(&w, "memory_bytes", (int64_t)card->memory_mib << 20);
        ot_json_put_real(&w, "peak_flops", card->peak_tflops * 1e12);
        ot_json_put_real(&w, "achieved", card->achieved);
        ot_json_put_real(&w, "memory_bytes_per_s", card->memory_gb * 1e9);
        ot_json_put_int(&w, "pcie_generation", card->pcie_gen);
        ot_json_put_int(&w, "pcie_lanes", card->pcie_lanes);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_begin_array(&w, "machines");
    for (int i = 0; (pod = ot_pod_at(i)); i++) {
        ot_json_begin_object(&w, NULL);
        ot_json_put_text(&w, "name", pod->name);
        ot_json_put_text(&w, "title", pod->title);
        ot_json_put_text(&w, "card", pod->card);
        ot_json_put_int(&w, "vcpus", pod->vcpus);
        ot_json_put_int(&w, "host_bytes", (int64_t)pod->host_gib << 30);
        ot_json_put_int(&w, "nvme_bytes", (int64_t)pod->disk_gb * 1000000000);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_lines_print_json(&w);
}
