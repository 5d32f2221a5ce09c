/* The answer of `plan` as one JSON object: the same numbers as the text, not rounded. */
#include "src/plan/print_plan.h"

#include "models/encoded.h"
#include "models/selection.h"
#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "src/base/json.h"
#include "src/checkpoint/writer.h"
#include "src/report/forecast.h"
#include "src/report/table.h"

static void put_ranks(const struct ot_plan_case *c, struct ot_json_writer *w) {
    const struct ot_described *m = &c->machine.described;
    const struct ot_rates *r = &c->costs.rates;
    if (!c->machine.card || m->ranks == 1)
        return;
    ot_json_put_int(w, "ranks", m->ranks);
    ot_json_put_int(w, "ranks_per_host", m->local_ranks);
    ot_json_put_bool(w, "p2p", m->fabric.p2p);
    ot_json_put_bool(w, "nvlink", m->fabric.way == OT_WAY_NVLINK);
    ot_json_put_real(w, "network_bits_per_s", m->fabric.nic_bytes * 8);
    ot_json_put_real(w, "comm_bytes_per_s", r->comm_bytes);
    ot_json_put_real(w, "comm_seconds", r->comm_seconds);
    ot_json_put_real(w, "transfer_bytes_per_s", r->inside.bytes);
    if (r->between.bytes > 0)
        ot_json_put_real(w, "transfer_bytes_per_s_of_host", r->between.bytes);
}

static void put_machine(const struct ot_plan_case *c, struct ot_json_writer *w) {
    const struct ot_rates *r = &c->costs.rates;
    ot_json_begin_object(w, "machine");
    ot_json_put_text(w, "name", c->machine.name);
    ot_json_put_bool(w, "described", c->machine.card != NULL);
    ot_json_put_text(w, "assumed", c->machine.assumed);
    ot_json_put_real(w, "product_flops", r->product_flops);
    struct ot_attention_rates attention = ot_rates_attention(r, c->config.head_dim);
    ot_json_put_real(w, "attention_forward_flops", attention.forward);
    ot_json_put_real(w, "attention_backward_flops", attention.backward);
    ot_json_put_real(w, "device_bytes_per_s", r->device_bytes);
    ot_json_put_real(w, "h2d_bytes_per_s", r->h2d_bytes);
    ot_json_put_real(w, "d2h_bytes_per_s", r->d2h_bytes);
    ot_json_put_real(w, "both_bytes_per_s", r->both_bytes);
    ot_json_put_real(w, "host_bytes_per_s", r->triad_bytes);
    ot_json_put_real(w, "optimizer_bytes_per_s", r->adamw_bytes[c->options->state]);
    ot_json_put_real(w, "nvme_read_bytes_per_s", r->nvme_read_bytes);
    ot_json_put_real(w, "nvme_write_bytes_per_s", r->nvme_write_bytes);
    ot_json_put_int(w, "cores", r->cores);
    put_ranks(c, w);
    if (c->machine.card) {
        ot_json_put_int(w, "ram_bytes", c->machine.described.host_ram_bytes);
        ot_json_put_real(w, "product_share", c->machine.card->achieved->share);
        ot_json_put_real(w, "product_share_spread", c->machine.card->achieved->spread);
        ot_json_put_text(w, "product_share_source", c->machine.card->achieved->source);
        ot_json_put_text(w, "attention_source", c->machine.card->attention->source);
        ot_json_put_text(w, "device_memory_source", c->machine.described.memory_source);
        if (c->machine.described.link_source)
            ot_json_put_text(w, "link_source", c->machine.described.link_source);
    }
    ot_json_begin_object(w, "budget_bytes");
    for (int t = 0; t < OT_TIER_COUNT; t++)
        ot_json_put_int(w, ot_tier_name((enum ot_tier)t), (int64_t)c->machine.budget_bytes[t]);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

/* The division into stages. */
static void put_stages(const struct ot_plan_case *c, struct ot_json_writer *w) {
    const struct ot_plan *plan = &c->chosen.plan;
    struct ot_shard shard = plan->shard;
    ot_json_begin_object(w, "stages");
    ot_json_begin_array(w, "layers");
    for (shard.rank = 0; shard.rank < shard.ranks; shard.rank += ot_shard_holders(&shard))
        ot_json_put_int(w, NULL, ot_shard_layers(ot_model_chain(c->model), &shard));
    ot_json_end_array(w);
    ot_json_put_int(w, "replicas", ot_shard_holders(&shard));
    ot_json_put_int(w, "turn_layers", shard.turn_blocks);
    ot_json_put_int(w, "rounds", ot_plan_rounds(plan));
    ot_json_put_int(w, "rounds_in_flight", shard.in_flight > 1 ? shard.in_flight : 1);
    ot_json_end_object(w);
}

static void put_plan(const struct ot_plan_case *c, struct ot_json_writer *w) {
    const struct ot_plan *plan = &c->chosen.plan;
    const struct ot_plan_homes homes = ot_report_count_homes(plan);
    struct ot_ledger ledger = ot_plan_view_ledger(c);
    ot_json_begin_object(w, "plan");
    ot_json_put_int(w, "tried", c->chosen.tried);
    ot_json_put_int(w, "sequence_tokens", c->seq_len);
    ot_json_put_int(w, "step_sequences", c->step_sequences);
    ot_json_put_int(w, "micro_sequences", ot_plan_micro_sequences(plan, c->seq_len));
    ot_json_put_int(w, "micro_batches", plan->max_micro / ot_plan_sections(plan));
    ot_json_put_int(w, "row_sections", ot_plan_sections(plan));
    ot_json_put_int(w, "key_groups", ot_plan_key_groups(plan));
    ot_report_put_kept(plan, w);
    if (plan->shard.ranks > 1)
        ot_json_put_text(w, "shard", ot_shard_mode_name(plan->shard.mode));
    if (plan->shard.ranks > 1)
        ot_json_put_bool(w, "one_copy", ot_plan_has_one_copy(plan));
    ot_report_put_shards(&c->shards, plan->shard.mode, w);
    if (ot_plan_has_stages(plan))
        put_stages(c, w);
    ot_report_put_tiers(w, "weights_slabs", homes.weights);
    ot_report_put_tiers(w, "state_tiles", homes.state);
    ot_report_put_tiers(w, "gradient_tiles", homes.grads);
    ot_json_put_text(w, "activations", ot_tier_name((enum ot_tier)plan->activations));
    ot_report_put_engines(plan, w);
    ot_report_put_ledger(&ledger, w);
    ot_json_put_int(w, "checkpoint_bytes", ot_checkpoint_state_bytes(ot_model_chain(c->model)));
    ot_json_end_object(w);
}

static void put_time(const struct ot_plan_case *c, struct ot_json_writer *w) {
    const struct ot_prediction *p = &c->chosen.prediction;
    struct ot_plan_answer a = ot_plan_case_answer(c);
    ot_json_begin_object(w, "prediction");
    ot_json_put_text(w, "basis", ot_plan_view_basis(c));
    if (c->costs.under_load > 0)
        ot_json_put_real(w, "under_load", c->costs.under_load);
    ot_json_put_real(w, "step_seconds", p->step_seconds);
    ot_json_put_real(w, "tokens_per_s", a.tokens_per_second);
    if (c->machine.card) { /* both ends of the assumptions' errors */
        ot_json_put_real(w, "slow_step_seconds", c->slow_seconds);
        ot_json_put_real(w, "fast_step_seconds", c->fast_seconds);
    }
    ot_json_put_real(w, "model_flops", a.model_flops);
    ot_json_put_real(w, "flops", p->flops);
    if (a.peak > 0) {
        ot_json_put_real(w, "mfu", a.mfu);
        ot_json_put_real(w, "mfu_peak_flops", a.peak);
    }
    ot_report_put_lanes("busy_seconds", p->busy, w);
    ot_report_put_lanes("exposed_seconds", p->exposed, w);
    ot_json_put_real(w, "exposed_host_seconds", p->exposed_host);
    ot_report_put_lanes("bytes", p->bytes, w);
    if (a.ranks > 1) {
        ot_json_put_real(w, "gathered_bytes", p->gathered);
        ot_json_put_real(w, "exchanged_bytes", p->exchanged);
        ot_json_put_real(w, "link_bytes", a.link);
        ot_json_put_real(w, "network_bytes_per_host", a.network);
    }
    ot_json_end_object(w);
    if (!c->steps && c->price == 0)
        return;
    ot_json_begin_object(w, "run");
    if (c->steps) {
        ot_json_put_int(w, "steps", c->steps);
        ot_json_put_real(w, "tokens", a.run_tokens);
        ot_json_put_real(w, "seconds", a.run_seconds);
        ot_report_put_times(p, 0, c->steps, &c->times, w);
        if (c->rows)
            ot_json_put_int(w, "rows", c->rows);
        if (c->rows)
            ot_json_put_int(w, "row_tokens", c->row_tokens);
        if (c->rows && c->bytes_per_token > 0)
            ot_json_put_real(w, "assumed_bytes_per_token", c->bytes_per_token);
        ot_json_put_real(w, "nvme_written_bytes", a.written * (double)c->steps);
        ot_json_put_real(w, "wear_share", ot_wear_share(a.written * (double)c->steps, c->options->nvme.n));
    }
    if (c->price > 0) {
        ot_json_put_real(w, "price_per_million_tokens", a.million_price);
        if (c->steps)
            ot_json_put_real(w, "price", a.run_price);
    }
    ot_json_end_object(w);
}

static void put_explanation(const struct ot_plan_case *c, struct ot_json_writer *w) {
    if (!c->options->explain)
        return;
    ot_json_begin_object(w, "explanation");
    ot_report_put_explanation(&c->explanation, w);
    ot_json_end_object(w);
}

int ot_plan_view_print_json(const struct ot_plan_case *c) {
    const struct ot_model_config *config = ot_model_get_config(c->model);
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_options_put_json(c->options, "options", &w);
    ot_options_put_sources(c->options, "sources", &w);
    put_machine(c, &w);
    ot_json_begin_object(&w, "model");
    ot_json_put_text(&w, "name", ot_plan_case_model(c));
    ot_json_put_text(&w, "family", ot_family_row(config->family)->model_type);
    ot_json_put_int(&w, "parameters", ot_model_param_count(config));
    ot_json_put_int(&w, "frozen_parameters", ot_model_frozen_count(c->model));
    ot_json_put_int(&w, "trained_parameters", ot_model_trained_count(c->model));
    ot_json_put_text(
        &w, "base_type",
        ot_weight_format_name(ot_base_format((enum ot_base_type)c->options->base_type, c->machine.dtype)));
    ot_json_put_int(&w, "base_bytes", ot_model_encoded_bytes(c->model, NULL));
    ot_json_put_text(&w, "computed", ot_dtype_name(c->machine.dtype));
    ot_json_end_object(&w);
    put_plan(c, &w);
    ot_report_put_choice(&c->choice, &w);
    put_time(c, &w);
    put_explanation(c, &w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}
