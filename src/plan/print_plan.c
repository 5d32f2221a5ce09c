#include "src/plan/print_plan.h"

#include <math.h>
#include <string.h>

#include "models/selection.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/checkpoint/writer.h"
#include "src/report/forecast.h"
#include "src/report/table.h"
#include "src/train/run_shape.h"

struct ot_ledger ot_plan_view_ledger(const struct ot_plan_case *c) {
    struct ot_ledger ledger = c->chosen.plan.ledger;
    if (c->machine.workspace_bytes && ledger.n < OT_LEDGER_MAX)
        ledger.entries[ledger.n++] =
            (struct ot_ledger_entry){OT_TIER_GPU, "kernel workspace", c->machine.workspace_bytes, 0};
    return ledger;
}

/* ---- numbers ---- */

/* The format of a step's times: all have the same unit and the same number of decimals. */
struct look {
    const char *unit;
    double per_second;
    int decimals;
};

static struct look look_of(const struct ot_plan_case *c) {
    double step = c->chosen.prediction.step_seconds;
    struct look look = step < 1 ? (struct look){"ms", 1e3, 3} : (struct look){"s", 1, 3};
    if (c->machine.card) /* three digits */
        look.decimals = step * look.per_second >= 100 ? 0 : step * look.per_second >= 10 ? 1 : 2;
    return look;
}

/* "21.7 s", "152.123 ms": times of a step. */
static const char *plan_view_seconds(const struct ot_plan_case *c, double seconds, char text[OT_TEXT_BYTES]) {
    const struct look look = look_of(c);
    snprintf(text, OT_TEXT_BYTES, "%.*f %s", look.decimals, seconds * look.per_second, look.unit);
    return text;
}

/* "3,020", "18.7": tokens a second; for a described machine rounded to three digits. */
static const char *plan_view_rate(const struct ot_plan_case *c, double rate, char text[OT_TEXT_BYTES]) {
    return ot_text_rate(c->machine.card ? ot_three_digits(rate) : rate, text);
}

/* "152.0 TFLOP", "76.3 GFLOP" */
static const char *text_flops(double flops, char text[OT_TEXT_BYTES]) {
    bool big = flops >= 1e12;
    snprintf(text, OT_TEXT_BYTES, "%.*f %s", flops * (big ? 1e-12 : 1e-9) >= 100 ? 0 : 1,
             flops * (big ? 1e-12 : 1e-9), big ? "TFLOP" : "GFLOP");
    return text;
}

/* Rounds a part to a multiple of 1 / fineness. Takes the difference of the rounded running sums, so that all
 * rounded parts add up to the rounded sum. */
static double next_rounded(double part, double fineness, double *sum) {
    double before = round(*sum * fineness);
    *sum += part;
    return (round(*sum * fineness) - before) / fineness;
}

/* ---- the machine ---- */

/* Prints the links between the ranks. The rates above this line are for one rank while all work. */
static void print_fabric(const struct ot_plan_case *c, FILE *out) {
    static const char *const ways[] = {[OT_WAY_NVLINK] = "over NVLink",
                                       [OT_WAY_PCIE] = "from GPU to GPU over PCIe",
                                       [OT_WAY_HOST] = "through host memory (no peer-to-peer copies)"};
    const struct ot_described *m = &c->machine.described;
    if (!c->machine.card || m->ranks == 1)
        return;
    fprintf(out, "        %d ranks, rates of one of them · they exchange %s", m->ranks, ways[m->fabric.way]);
    if (m->fabric.remote_share > 0)
        fprintf(out, " and %.3g Gbit/s a host", m->fabric.nic_bytes * 8e-9);
    fprintf(out, ": %.3g GB/s into each\n", c->costs.rates.comm_bytes * 1e-9);
}

static void print_source(const char *what, const char *source, FILE *out) {
    if (source)
        fprintf(out, "          %s: %s\n", what, source);
}

/* Prints the sources of a described card's rates. */
static void print_sources(const struct ot_described *machine, FILE *out) {
    const struct ot_card *card = machine->card;
    fprintf(out, "        sources of the shares of the data sheet\n");
    print_source("products", card->achieved->source, out);
    print_source("attention", card->attention->source, out);
    print_source("device memory", machine->memory_source, out);
    print_source("link", machine->link_source, out);
}

static void print_machine(const struct ot_plan_case *c, FILE *out) {
    const struct ot_rates *r = &c->costs.rates;
    const struct ot_card *card = c->machine.card;
    struct ot_attention_rates attention = ot_rates_attention(r, c->config.head_dim);
    char products[OT_TEXT_BYTES], forward[OT_TEXT_BYTES], backward[OT_TEXT_BYTES];
    fprintf(out, "machine %s\n", c->machine.name);
    fprintf(out, "        products %s/s", text_flops(r->product_flops, products));
    if (card)
        fprintf(out, ", %.0f %% of the data sheet (+-%.0f %%)", 100 * card->achieved->share,
                100 * card->achieved->spread);
    fprintf(out, " · device memory %.0f GB/s", r->device_bytes * 1e-9);
    if (card)
        fprintf(out, ", %.0f %%", 100 * r->device_bytes / (card->memory_gb * 1e9));
    fprintf(out, "\n        attention with heads of %lld: %s/s forward, %s/s backward",
            (long long)c->config.head_dim, text_flops(attention.forward, forward),
            text_flops(attention.backward, backward));
    fprintf(
        out,
        "\n        link %.1f GB/s to the device, %.1f back, %.1f both · host memory %.1f GB/s, %d cores\n",
        r->h2d_bytes * 1e-9, r->d2h_bytes * 1e-9, r->both_bytes * 1e-9, r->triad_bytes * 1e-9, r->cores);
    if (c->machine.budget_bytes[OT_TIER_NVME])
        fprintf(out, "        nvme reads %.2f GB/s, writes %.2f, both %.2f\n", r->nvme_read_bytes * 1e-9,
                r->nvme_write_bytes * 1e-9, r->nvme_mixed_bytes * 1e-9);
    print_fabric(c, out);
    if (card)
        print_sources(&c->machine.described, out);
    if (*c->machine.assumed)
        fprintf(out, "        Assumed (override with): %s\n", c->machine.assumed);
}

/* ---- the plan ---- */

/* Prints the candidates of --tokens-per-step auto. */
static void print_choice(const struct ot_plan_case *c, FILE *out) {
    char tokens[OT_TEXT_BYTES], step[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], steps[OT_TEXT_BYTES];
    if (c->choice.n == 0)
        return;
    fprintf(out, "        The fewest tokens a step that reach the best rate, within %.0f %%:\n",
            100 * OT_PLANNER_RESOLUTION);
    fprintf(out, "          %-13s %14s %14s %12s\n", "tokens a step", "a step", "tokens/s", "steps");
    for (int i = 0; i < c->choice.n; i++) {
        const struct ot_step_candidate *one = &c->choice.candidates[i];
        fprintf(out, "          %13s", ot_text_count(one->tokens, tokens));
        if (one->tokens_per_second > 0)
            fprintf(out, " %14s %14s %12s%s\n", plan_view_seconds(c, one->step_seconds, step),
                    plan_view_rate(c, one->tokens_per_second, rate),
                    one->steps ? ot_text_count(one->steps, steps) : "-",
                    i == c->choice.chosen ? "   chosen" : "");
        else
            fprintf(out, "   does not fit\n");
    }
}

/* Slots of the layers' weights, trained or frozen: those that there are more of. */
static int layer_slots(const struct ot_plan *plan) {
    int trained = plan->weight_slots[OT_SLOT_LAYER], frozen = plan->weight_slots[OT_SLOT_FROZEN_LAYER];
    return ot_max(trained, frozen);
}

/* The layers of the rank that the plan is of. */
static int layers_of(const struct ot_plan_case *c) {
    const struct ot_plan *plan = &c->chosen.plan;
    return ot_plan_has_stages(plan) ? ot_shard_layers(ot_model_chain(c->model), &plan->shard)
                                    : (int)c->config.n_layers;
}

/* "stages  9 + 8 + 8 + 7 layers, one turn each · 2 replicas · 16 rounds, 8 in flight": the division of a
 * replica, by rank. */
static void print_stages(const struct ot_plan_case *c, FILE *out) {
    const struct ot_plan *plan = &c->chosen.plan;
    struct ot_shard shard = plan->shard;
    fprintf(out, "stages  ");
    for (shard.rank = 0; shard.rank < shard.ranks; shard.rank += ot_shard_holders(&shard))
        fprintf(out, "%s%d", shard.rank > 0 ? " + " : "", ot_shard_layers(ot_model_chain(c->model), &shard));
    if (shard.turn_blocks > 0)
        fprintf(out, " layers, in turns of %d", shard.turn_blocks);
    else
        fprintf(out, " layers, one turn each");
    if (ot_shard_holders(&shard) > 1)
        fprintf(out, " · %d replicas", ot_shard_holders(&shard));
    if (ot_plan_rounds(plan) > 1)
        fprintf(out, " · %d rounds, %d in flight", ot_plan_rounds(plan), ot_max(shard.in_flight, 1));
    fprintf(out, "\n");
}

static void print_plan(const struct ot_plan_case *c, FILE *out) {
    static const char *const held[] = {
        [OT_SHARD_NONE] = "each holds everything",
        [OT_SHARD_STATE] = "each holds its share of state and gradients, and all weights",
        [OT_SHARD_FULL] = "each holds its share of weights, state and gradients",
        [OT_SHARD_STAGES] = "each owns whole layers, with their weights, state and gradients"};
    const struct ot_plan *plan = &c->chosen.plan;
    struct ot_ledger ledger = ot_plan_view_ledger(c);
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES], text[OT_TABLE_LINE_BYTES];
    char tokens[OT_STEP_TEXT_BYTES], params[OT_PARAMS_TEXT_BYTES], rounds[OT_TEXT_BYTES];
    char choice[OT_FORECAST_LINE_BYTES];
    int64_t micro = ot_plan_micro_sequences(plan, c->seq_len);
    int n_micro = plan->max_micro / ot_plan_sections(plan); /* ot_report_details tells the sections */
    fprintf(out, "model   %s · %s · %lld layer%s · %s, computed in %s\n", ot_plan_case_model(c),
            ot_family_row(c->config.family)->model_type, (long long)c->config.n_layers,
            ot_plural(c->config.n_layers),
            ot_text_params(ot_model_frozen_count(c->model), ot_model_trained_count(c->model), params),
            ot_dtype_name(c->machine.dtype));
    fprintf(out, "step    %s · %d micro-batch%s of %s%lld\n",
            ot_shape_step_text(c->options, c->step_sequences, c->seq_len, tokens), n_micro,
            n_micro == 1 ? "" : "es", c->step_sequences % micro ? "up to " : "", (long long)micro);
    print_choice(c, out);
    if (plan->shard.ranks > 1)
        fprintf(out, "ranks   %d · shard %s: %s · what follows is of %s\n", plan->shard.ranks,
                ot_shard_mode_name(plan->shard.mode), held[plan->shard.mode],
                ot_plan_has_stages(plan) ? "rank 0" : "one rank");
    if (*ot_report_shards(&c->shards, plan->shard.mode, choice))
        fprintf(out, "        chosen by time: %s\n", choice);
    if (ot_plan_has_stages(plan))
        print_stages(c, out);
    fprintf(out, "plan    %s\n", ot_report_homes(plan, text));
    fprintf(out, "        updates %s\n", ot_report_engines(plan, text));
    int n = ot_report_details(c->model, plan, c->options, lines);
    for (int i = 0; i < n; i++)
        fprintf(out, "        %s\n", lines[i]);
    fprintf(out, "        %s · %d weight slot%s%s\n", ot_report_kept(plan, layers_of(c), text),
            layer_slots(plan), ot_plural(layer_slots(plan)), ot_report_rounds(plan, rounds));
    n = ot_report_table(&ledger, c->machine.budget_bytes, c->options->explain, lines);
    for (int i = 0; i < n; i++)
        fprintf(out, "%s\n", lines[i]);
    fprintf(out, "disk    a checkpoint takes %s: keep room for two checkpoints\n",
            ot_text_bytes(ot_checkpoint_state_bytes(ot_model_chain(c->model)), text));
}

/* ---- the step ---- */

/* Prints a row for each lane: its busy time, the bytes that it moves, and its part of the step. The part of
 * compute is its own time; the part of another lane is the time that compute stalls on it. The parts add up
 * to the step. */
static void print_lanes(const struct ot_plan_case *c, FILE *out) {
    const struct ot_prediction *p = &c->chosen.prediction;
    const struct look look = look_of(c);
    double times = 0, shares = 0, step = p->step_seconds, fineness = pow(10, look.decimals);
    fprintf(out, "          %-12s %11s %-2s %11s %15s\n", "lane", "busy", "", "moved", "of the step");
    for (int i = 0; i < OT_LANE_COUNT; i++) {
        int lane = i == 0 ? OT_LANE_COMPUTE : i <= OT_LANE_COMPUTE ? i - 1 : i; /* compute first */
        bool is_compute = lane == OT_LANE_COMPUTE;
        double part = is_compute ? p->busy[lane] + p->exposed[lane] : p->exposed[lane];
        double time = next_rounded(part * look.per_second, fineness, &times);
        double share = next_rounded(100 * part / step, 10, &shares);
        char moved[OT_TEXT_BYTES] = "";
        if (p->bytes[lane] > 0)
            snprintf(moved, sizeof moved, "%.2f GB", p->bytes[lane] * 1e-9);
        if (p->busy[lane] * look.per_second * fineness >= 0.5 || time > 0 || share > 0)
            fprintf(out, "          %-12s %11.*f %-2s %11s %11.*f %-2s %6.1f %%   %s\n",
                    ot_lane_name((enum ot_lane_id)lane), look.decimals, p->busy[lane] * look.per_second,
                    look.unit, moved, look.decimals, time, look.unit, share,
                    is_compute ? "computing" : "compute stalled on this");
    }
    fprintf(out, "          %-12s %11s %-2s %11s %11.*f %-2s %6.1f %%   compute idle\n", "none", "", "", "",
            look.decimals, next_rounded(p->exposed_host * look.per_second, fineness, &times), look.unit,
            next_rounded(100 * p->exposed_host / step, 10, &shares));
    fprintf(out, "          %-12s %11s %-2s %11s %11.*f %-2s %6.1f %%\n", "step", "", "", "", look.decimals,
            step * look.per_second, look.unit, 100.0);
}

static void print_time(const struct ot_plan_case *c, FILE *out) {
    const struct ot_prediction *p = &c->chosen.prediction;
    struct ot_plan_answer a = ot_plan_case_answer(c);
    bool measured = !c->machine.card;
    char step[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], slow[OT_TEXT_BYTES], fast[OT_TEXT_BYTES];
    plan_view_seconds(c, p->step_seconds, step);
    plan_view_rate(c, a.tokens_per_second, rate);
    if (measured) {
        fprintf(out, "time    %s a step · %s tokens/s\n", step, rate);
    } else {
        char from[OT_TEXT_BYTES], to[OT_TEXT_BYTES];
        fprintf(out, "time    about %s a step (%s to %s) · %s tokens/s (%s to %s)\n", step,
                plan_view_seconds(c, c->fast_seconds, from), plan_view_seconds(c, c->slow_seconds, to), rate,
                plan_view_rate(c, a.slow_rate, slow), plan_view_rate(c, a.fast_rate, fast));
    }
    if (a.peak > 0) {
        char work[OT_TEXT_BYTES], peak[OT_TEXT_BYTES];
        fprintf(out, "        MFU %.*f %% = %s a step (%s, and attention) / %s / %s/s %s\n", measured ? 1 : 0,
                100 * a.mfu, text_flops(a.model_flops, work),
                ot_model_has_frozen(c->model) ? "forward, backward of what is trained" : "6 N a token", step,
                text_flops(a.peak, peak), measured ? "of the best product measured" : "of the data sheet");
    }
    print_lanes(c, out);
}

/* Parameters of the slabs that rank 0 holds with others. */
static double shared_params(const struct ot_plan_case *c) {
    const struct ot_chain *chain = ot_model_chain(c->model);
    int64_t n = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        n += ot_slab_is_own(&c->chosen.plan, s) ? chain->slabs[s].n_params : 0;
    return (double)n;
}

/* What crosses between the ranks of a pipeline. */
static void print_crossing(const struct ot_plan_case *c, FILE *out) {
    const struct ot_prediction *p = &c->chosen.prediction;
    double weight = (double)ot_dtype_bytes(c->machine.dtype),
           elems = (double)ot_model_chain(c->model)->boundary_elems;
    double crossing = p->bytes[OT_LANE_COMM] - p->gathered - p->exchanged;
    fprintf(out,
            "comm    rank 0 sends or receives %.2f GB a step = activations and their gradients, %.0f bytes x "
            "%.0f a token, %.1f times\n",
            crossing * 1e-9, weight, elems, crossing / weight / p->tokens / elems);
    if (p->exchanged > 0)
        fprintf(out, "        and receives from the same stage of other replicas");
}

/* Prints how the bytes between ranks follow from the model: (D - 1) / D of the gathered and exchanged
 * bytes, with D holders of a slab. */
static void print_exchange(const struct ot_plan_case *c, FILE *out) {
    const struct ot_prediction *p = &c->chosen.prediction;
    const struct ot_shard *shard = &c->chosen.plan.shard;
    struct ot_plan_answer a = ot_plan_case_answer(c);
    int holders = ot_shard_holders(shard);
    bool stages = ot_plan_has_stages(&c->chosen.plan);
    double params = stages ? shared_params(c) : (double)ot_model_param_count(&c->config);
    double weight = (double)ot_dtype_bytes(c->machine.dtype), sum = shard->narrow ? weight : sizeof(float);
    double share = (holders - 1.0) / holders;
    if (a.ranks == 1)
        return;
    if (stages)
        print_crossing(c, out);
    else
        fprintf(out, "comm    each rank receives %.2f GB a step =", p->bytes[OT_LANE_COMM] * 1e-9);
    if (p->gathered > 0)
        fprintf(out, " weights %.2f GB: %d/%d x %.0f bytes x %.3g G parameters x %.2f, +", p->gathered * 1e-9,
                holders - 1, holders, weight, params * 1e-9, p->gathered / share / weight / params);
    if (p->exchanged > 0)
        fprintf(out, " gradients %.2f GB: %d/%d x %.0f bytes x %.3g G x %.2f\n", p->exchanged * 1e-9,
                holders - 1, holders, sum, params * 1e-9, p->exchanged / share / sum / params);
    fprintf(out,
            "        a link carries %.2f GB a step = %.2f to the GPU + %.2f back + %.3g x %.2f of ranks\n",
            a.link * 1e-9, p->bytes[OT_LANE_H2D] * 1e-9, p->bytes[OT_LANE_D2H] * 1e-9,
            c->costs.rates.comm_link, p->bytes[OT_LANE_COMM] * 1e-9);
    if (a.network > 0 && !ot_plan_has_stages(&c->chosen.plan))
        fprintf(out, "        each host receives %.2f GB a step from other hosts\n", a.network * 1e-9);
}

/* ---- the run ---- */

static void print_nvme(const struct ot_plan_case *c, const struct ot_plan_answer *a, FILE *out) {
    char steps[OT_TEXT_BYTES];
    double drives = ot_max(c->options->nvme.n, 1);
    if (a->written + a->read == 0)
        return;
    fprintf(out, "nvme    %.2f GB read, %.2f GB written a step", a->read * 1e-9, a->written * 1e-9);
    if (a->written > 0)
        fprintf(out, " · a 1 TB drive (%.0f TB endurance) lasts %s steps", OT_WEAR_RATED_BYTES * 1e-12,
                ot_text_count((int64_t)(OT_WEAR_RATED_BYTES * drives / a->written), steps));
    fputc('\n', out);
}

static void print_run(const struct ot_plan_case *c, FILE *out) {
    struct ot_plan_answer a = ot_plan_case_answer(c);
    char steps[OT_TEXT_BYTES], tokens[OT_TEXT_BYTES], time[OT_TEXT_BYTES], rows[OT_TEXT_BYTES];
    char others[OT_FORECAST_LINE_BYTES], name[OT_DATA_NAME_BYTES];
    double price = c->price;
    const char *about = c->machine.card ? "about " : "";
    ot_text_duration(a.run_seconds, time);
    if (a.run_seconds > 1e9) /* too long for days and hours */
        snprintf(time, sizeof time, "%.3g years", a.run_seconds / (365.25 * 86400));
    if (c->rows)
        fprintf(out, "data    %s · %s row%s to train on · %s%s tokens\n", ot_data_name(c->options, name),
                ot_text_count(c->rows, rows), ot_plural(c->rows), c->bytes_per_token > 0 ? "about " : "",
                ot_text_short((double)c->row_tokens, tokens));
    if (c->rows && c->bytes_per_token > 0)
        fprintf(out,
                "        The model's tokenizer is not here. Its tokens are estimated, at %.1f bytes a token; "
                "--tokenizer FILE counts them.\n",
                c->bytes_per_token);
    if (c->steps)
        fprintf(out, "run     %s step%s · %s tokens · %s%s%s\n", ot_text_count(c->steps, steps),
                ot_plural(c->steps), ot_text_short(a.run_tokens, tokens), about, time,
                ot_report_others(&c->times, a.run_seconds, ", with ", others));
    if (price > 0 && c->steps)
        fprintf(out, "price   %s%.*f for the run at %g an hour · %.4g a million tokens\n", about,
                c->machine.card && a.run_price >= 10 ? 0 : 2, a.run_price, price, a.million_price);
    else if (price > 0)
        fprintf(out,
                "price   %s%.4g a million tokens at %g an hour (--steps, --data, --tokens or --rows add "
                "the price of the run)\n",
                about, a.million_price, price);
    print_nvme(c, &a, out);
}

/* ---- the explanation ---- */

static void print_explanation(const struct ot_plan_case *c, FILE *out) {
    const struct ot_explanation *e = &c->explanation;
    char bound[OT_FORECAST_LINE_BYTES], instead[OT_FORECAST_LINE_BYTES], rate[OT_TEXT_BYTES],
        step[OT_TEXT_BYTES], gain[OT_TEXT_BYTES];
    if (!c->options->explain)
        return;
    int64_t half = ot_shape_half_steps(c->options, c->sequences, c->step_sequences);
    fprintf(out, "bound   %s\n", ot_report_bound(e, bound));
    for (int i = 0; i < e->n_ifs; i++)
        fprintf(out, "%-7s %-32s %14s a step %11s tokens/s %9s%s\n", i ? "" : "if", e->ifs[i].what,
                plan_view_seconds(c, e->ifs[i].step_seconds, step),
                plan_view_rate(c, e->ifs[i].tokens_per_second, rate), ot_report_gain(e->ifs[i].gain, gain),
                ot_report_instead(&e->ifs[i], c->steps, half, instead));
}

const char *ot_plan_view_basis(const struct ot_plan_case *c) {
    if (c->machine.card)
        return "Estimated from data sheets and assumptions; not measured.";
    if (!c->costs.is_measured)
        return "Rates measured on this machine; the times of the blocks are computed from their work.";
    if (c->machine.budget_bytes[OT_TIER_NVME] == 0)
        return "This model's own blocks and copies, measured on this machine.";
    if (!c->machine.has_future_disks)
        return "This model's own blocks, copies and disks, measured on this machine.";
    return *c->machine.assumed
               ? "This model's own blocks and copies, measured on this machine; disks assumed."
               : "This model's own blocks and copies, measured on this machine; disks as described.";
}

void ot_plan_view_print(const struct ot_plan_case *c, FILE *out) {
    print_machine(c, out);
    print_plan(c, out);
    print_time(c, out);
    print_exchange(c, out);
    print_run(c, out);
    print_explanation(c, out);
    fprintf(out, "basis   %s\n", ot_plan_view_basis(c));
    if (c->costs.under_load > 1)
        fprintf(out,
                "        Under a long load the blocks take %.2f times as long as after a pause; the time "
                "counts that.\n",
                c->costs.under_load);
}

/* ---- the list of cards and rented machines (plan --gpu list) ---- */

void ot_cards_print(FILE *out) {
    const struct ot_card *card;
    const struct ot_pod *pod;
    fprintf(out, "%-14s %-26s %10s %14s %16s %9s  %-8s  %s\n", "card", "", "memory", "peak", "products reach",
            "bandwidth", "PCIe", "source of the share");
    for (int i = 0; (card = ot_card_at(i)); i++)
        fprintf(out, "%-14s %-26s %6.1f GiB %6.1f TFLOP/s %7.0f %% +-%2.0f %% %4.0f GB/s  %d.0 x%-3d  %s\n",
                card->name, card->title, card->memory_mib / 1024.0, card->peak_tflops,
                100 * card->achieved->share, 100 * card->achieved->spread, card->memory_gb, card->pcie_gen,
                card->pcie_lanes, card->achieved->source);
    fprintf(out, "\n%-16s %-28s %4s %-14s %6s %10s %10s %12s\n", "rented machine", "", "GPUs", "card",
            "vCPUs", "RAM", "local NVMe", "network");
    for (int i = 0; (pod = ot_pod_at(i)); i++) {
        char disk[OT_TEXT_BYTES] = "-", nic[OT_TEXT_BYTES] = "-";
        if (pod->disk_gb)
            snprintf(disk, sizeof disk, "%d GB", pod->disk_gb);
        if (pod->nic_gbit)
            snprintf(nic, sizeof nic, "%d Gbit/s", pod->nic_gbit);
        fprintf(out, "%-16s %-28s %4d %-14s %6d %6d GiB %10s %12s\n", pod->name, pod->title, pod->gpus,
                pod->card, pod->vcpus, pod->host_gib, disk, nic);
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
        ot_json_put_real(&w, "achieved", card->achieved->share);
        ot_json_put_real(&w, "achieved_spread", card->achieved->spread);
        ot_json_put_text(&w, "achieved_source", card->achieved->source);
        ot_json_put_text(&w, "attention_source", card->attention->source);
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
        ot_json_put_int(&w, "gpus", pod->gpus);
        ot_json_put_int(&w, "vcpus", pod->vcpus);
        ot_json_put_int(&w, "host_bytes", (int64_t)pod->host_gib << 30);
        ot_json_put_int(&w, "nvme_bytes", (int64_t)pod->disk_gb * 1000000000);
        ot_json_put_real(&w, "network_bits_per_s", pod->nic_gbit * 1e9);
        ot_json_end_object(&w);
    }
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}
