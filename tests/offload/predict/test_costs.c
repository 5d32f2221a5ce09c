/* The costs of tasks against the bytes that a step must move and the FLOPs that it must compute under any
 * schedule. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/adamw.h"
#include "offload/predict/costs.h"
#include "tests/offload/fake_chain.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static void check_near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%s: %.15g, not %.15g", what, got, want);
}

static const struct ot_rates rates = {.product_flops = 1e12,
                                      .attention = {[OT_HEAD_128] = {5e11, 5e11}},
                                      .device_bytes = 1e11,
                                      .h2d_bytes = 1e10,
                                      .d2h_bytes = 2e10,
                                      .adamw_bytes = {5e10, 4e10, 3e10},
                                      .nvme_read_bytes = 4e9,
                                      .nvme_write_bytes = 2e9,
                                      .nvme_read_seconds = 4e-5,
                                      .nvme_write_seconds = 2e-5,
                                      .task_seconds = 1e-6};

/* ---- blocks ---- */

/* A chain that does not state its work. */
static void parameters_make_the_estimate(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    fake_open_small(&f, OT_BF16, true);
    check_ok(ot_costs_estimate(&f.chain, &rates, 512, 2048, &costs));
    assert_int_equal(costs.n_blocks, f.chain.n_blocks);
    assert_false(costs.is_measured);
    for (int b = 0; b < costs.n_blocks; b++) {
        bool layer = b > 0 && b < costs.n_blocks - 1;
        double flops = 2 * 1024.0 * (double)(layer ? f.layer_params : f.edge_params);
        check_near("forward", ot_line_at(costs.blocks[b].forward, 1024), flops / 1e12);
        check_near("backward", ot_line_at(costs.blocks[b].backward, 1024), 2 * flops / 1e12);
        const double shares[OT_KEEP_LEVELS] = {1, 11.0 / 12, 0, 0}; /* of the bytes that fake chains keep */
        for (int level = 0; level < OT_KEEP_LEVELS; level++)
            check_near("recompute", ot_line_at(costs.blocks[b].recompute[level], 1024),
                       layer ? shares[level] * flops / 1e12 : 0);
    }
    ot_costs_free(&costs);
    assert_null(costs.blocks);
}

static void missing_rates_are_named(void **state) {
    (void)state;
    static const char *const names[] = {
        "of products",      "of attention forward",    "of attention backward",
        "of device memory", "of copies to the device", "of copies from the device"};
    struct fake f;
    fake_open_small(&f, OT_BF16, false);
    for (int i = 0; i < 6; i++) {
        struct ot_rates some = rates;
        struct ot_costs costs;
        double *all[] = {&some.product_flops,
                         &some.attention[OT_HEAD_128].forward,
                         &some.attention[OT_HEAD_128].backward,
                         &some.device_bytes,
                         &some.h2d_bytes,
                         &some.d2h_bytes};
        *all[i] = 0;
        check_fails(ot_costs_estimate(&f.chain, &some, 512, 2048, &costs), OT_E_USAGE, names[i]);
    }
}

static struct ot_block_work recompute_of(const struct ot_chain *chain, int block, int level) {
    struct ot_block_work work;
    chain->work(chain->context, block, OT_WORK_RECOMPUTE, (enum ot_keep_level)level, 4096, 2048, &work);
    return work;
}

static struct ot_block_work work_of(const struct ot_chain *chain, int block, enum ot_work_kind kind) {
    struct ot_block_work work;
    chain->work(chain->context, block, kind, OT_KEEP_NONE, 4096, 2048, &work);
    return work;
}

/* A level that keeps more has less to compute again, and the highest nothing. */
static void check_levels(const struct ot_chain *chain, int block) {
    for (int level = OT_KEEP_ATTENTION; level < OT_KEEP_LEVELS; level++) {
        struct ot_block_work less = recompute_of(chain, block, level),
                             more = recompute_of(chain, block, level - 1);
        assert_true(less.product_flops <= more.product_flops && less.moved_bytes <= more.moved_bytes);
        assert_true(less.attention_flops <= more.attention_flops);
    }
    struct ot_block_work all = recompute_of(chain, block, OT_KEEP_ALL);
    assert_true(all.product_flops == 0 && all.attention_flops == 0 && all.moved_bytes == 0);
}

/* The blocks of every known model sum to the model's published formula of FLOPs. */
static void work_adds_up_to_the_models(void **state) {
    (void)state;
    for (int i = 0; ot_preset_at(i); i++) {
        const struct ot_preset *preset = ot_preset_at(i);
        struct ot_model *model;
        struct ot_costs costs;
        int64_t row = preset->config.max_position < 2048 ? preset->config.max_position : 2048;
        check_ok(ot_model_open(&preset->config, OT_BF16, row, &model));
        const struct ot_chain *chain = ot_model_chain(model);
        check_ok(ot_costs_estimate(chain, &rates, row, 4096, &costs));
        struct ot_plan plan = {.micro_tokens = 4096, .max_micro = 3};
        double want = 3 * 4096 * ot_model_flops_per_token(model, (double)row);
        double got = ot_costs_model_flops(&costs, chain, &plan);
        /* The formula counts norms and biases as if they were matrices. */
        if (!(got <= want && got > 0.995 * want))
            fail_msg("%s: %g FLOPs a step, not %g", preset->name, got, want);
        for (int b = 0; b < chain->n_blocks; b++) {
            struct ot_block_work forward = work_of(chain, b, OT_WORK_FORWARD),
                                 backward = work_of(chain, b, OT_WORK_BACKWARD),
                                 recompute = work_of(chain, b, OT_WORK_RECOMPUTE);
            bool layer = b > 0 && b < chain->n_blocks - 1;
            assert_true(forward.moved_bytes > 0 && backward.moved_bytes > 0);
            assert_true(layer == (recompute.product_flops > 0));
            assert_true(layer == (recompute.moved_bytes > 0));
            assert_true(recompute.product_flops <= forward.product_flops);
            /* Of the usual form of a layer: norm1 once more, and not the last residual sum. */
            const struct ot_model_config *c = &preset->config;
            bool usual = c->n_experts == 0 && !ot_model_has_pairs(c);
            if (usual && c->norm_place == OT_NORMS_BEFORE && c->residual == OT_SEQUENTIAL)
                check_near("recompute", recompute.moved_bytes,
                           layer ? forward.moved_bytes + 4096 * 2.0 * (double)c->hidden : 0);
            check_near("backward", backward.product_flops,
                       (b == chain->n_blocks - 1 ? 3 : 2) * forward.product_flops);
            check_near("attention", backward.attention_flops, 2.5 * forward.attention_flops);
            check_levels(chain, b);
        }
        ot_costs_free(&costs);
        ot_model_close(model);
    }
}

/* A layer of Llama 7B, whose costs can be computed by hand. */
static void a_known_layer(void **state) {
    (void)state;
    struct ot_model *model;
    struct ot_costs costs;
    check_ok(ot_model_open(&ot_preset_find("llama-7b")->config, OT_BF16, 2048, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    struct ot_block_work forward = work_of(chain, 1, OT_WORK_FORWARD),
                         recompute = work_of(chain, 1, OT_WORK_RECOMPUTE);
    double h = 4096, ffn = 11008, n = 4096;
    check_near("products", forward.product_flops, 2 * n * (4 * h * h + 3 * h * ffn));
    check_near("attention", forward.attention_flops, 4 * n * h * 2049 / 2);
    check_near("recompute", recompute.product_flops, 2 * n * (4 * h * h + 2 * h * ffn));
    check_near("moved", forward.moved_bytes, 2 * n * (2 * h + 4 * h + 2 * h + 3 * ffn + 2 * h));
    struct ot_block_work attention = recompute_of(chain, 1, OT_KEEP_ATTENTION),
                         products = recompute_of(chain, 1, OT_KEEP_PRODUCTS);
    check_near("none: attention", recompute.attention_flops, forward.attention_flops);
    check_near("attention: products", attention.product_flops, recompute.product_flops); /* q, k, v too */
    check_near("attention: attention", attention.attention_flops, 0);
    check_near("attention: moved", attention.moved_bytes, 2 * n * (2 * h + 4 * h + 5 * h + 3 * ffn));
    check_near("products: products", products.product_flops, 0);
    check_near("first: moved", work_of(chain, 1, OT_WORK_CLEAR).moved_bytes, 4 * 2 * h); /* the norms */
    check_near("products: moved", products.moved_bytes, 2 * n * (4 * h + 3 * ffn));
    check_ok(ot_costs_estimate(chain, &rates, 2048, 4096, &costs));
    check_near("seconds", ot_line_at(costs.blocks[7].forward, 4096),
               forward.product_flops / 1e12 + forward.attention_flops / 5e11 + forward.moved_bytes / 1e11);
    ot_costs_free(&costs);
    ot_model_close(model);
}

/* Forward and recomputation have the rate of forward, backward has its own, each for the size of the heads.
 * A size without rates has those of heads of 128. */
static void attention_has_rates_by_pass_and_size(void **state) {
    (void)state;
    struct ot_rates some = rates;
    struct ot_chain chain = {.head_dim = 128};
    some.attention[OT_HEAD_64] = (struct ot_attention_rates){3, 2};
    some.attention[OT_HEAD_128] = (struct ot_attention_rates){5, 4};
    assert_true(ot_costs_attention_rate(&some, &chain, OT_WORK_FORWARD) == 5);
    assert_true(ot_costs_attention_rate(&some, &chain, OT_WORK_RECOMPUTE) == 5);
    assert_true(ot_costs_attention_rate(&some, &chain, OT_WORK_BACKWARD) == 4);
    const struct {
        int64_t head_dim;
        double forward;
    } sizes[] = {{0, 5}, {16, 3}, {64, 3}, {65, 5}, {96, 5}, {128, 5}, {256, 5}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_true(ot_rates_attention(&some, sizes[i].head_dim).forward == sizes[i].forward);
    some.attention[OT_HEAD_256] = (struct ot_attention_rates){7, 6};
    assert_true(ot_rates_attention(&some, 256).forward == 7 && ot_rates_attention(&some, 128).forward == 5);
    some.attention[OT_HEAD_64].backward = 0;
    assert_true(ot_rates_attention(&some, 64).forward == 5);
    struct ot_model *model;
    struct ot_costs costs;
    some = rates;
    some.attention[OT_HEAD_128].backward = 1e11;
    check_ok(ot_model_open(&ot_preset_find("llama-7b")->config, OT_BF16, 2048, &model));
    const struct ot_chain *llama = ot_model_chain(model);
    struct ot_block_work work = work_of(llama, 1, OT_WORK_BACKWARD);
    check_ok(ot_costs_estimate(llama, &some, 2048, 4096, &costs));
    check_near("seconds", ot_line_at(costs.blocks[1].backward, 4096),
               work.product_flops / 1e12 + work.attention_flops / 1e11 + work.moved_bytes / 1e11);
    ot_costs_free(&costs);
    ot_model_close(model);
}

/* The first backward of a sum takes what it clears, or the difference that was measured. */
static void a_first_backward_has_its_own_time(void **state) {
    (void)state;
    struct ot_model *model;
    struct ot_costs costs;
    check_ok(ot_model_open(&ot_preset_find("llama-7b")->config, OT_BF16, 2048, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_costs_estimate(chain, &rates, 2048, 4096, &costs));
    struct ot_plan plan = {.micro_tokens = 2048};
    struct ot_layout layout = {0};
    struct ot_task adds = {
        .kind = OT_TASK_BACKWARD, .lane = OT_LANE_COMPUTE, .block = 1, .saved_level = OT_KEEP_ALL};
    struct ot_task first = adds;
    first.first = true;
    double without = ot_costs_of_task(&costs, chain, &plan, &layout, &adds).seconds;
    const double extra[] = {work_of(chain, 1, OT_WORK_CLEAR).moved_bytes / rates.device_bytes, -without / 2};
    for (int i = 0; i < 2; i++) {
        costs.blocks[1].first = i == 0 ? costs.blocks[1].first : extra[i];
        check_near("first", ot_costs_of_task(&costs, chain, &plan, &layout, &first).seconds,
                   without + extra[i]);
    }
    costs.blocks[1].first = -2 * without;
    assert_true(ot_costs_of_task(&costs, chain, &plan, &layout, &first).seconds == 0);
    check_near("adds", ot_costs_of_task(&costs, chain, &plan, &layout, &adds).seconds, without);
    ot_costs_free(&costs);
    ot_model_close(model);
}

/* ---- tasks ---- */

/* Sums of a step by kind. */
struct totals {
    struct ot_task_cost of[OT_TASK_KINDS];
    int n[OT_TASK_KINDS];
};

static void check_lane(const struct ot_task *task, const struct ot_task_cost *cost, bool pure) {
    const double by_lane[OT_LANE_COUNT] = {1e10, 1e11, 2e10, 0, 5e10, 4e9, 2e9};
    const double starts[OT_LANE_COUNT] = {[OT_LANE_NVME_READ] = 4e-5, [OT_LANE_NVME_WRITE] = 2e-5};
    assert_true(cost->seconds >= rates.task_seconds && isfinite(cost->seconds) && cost->bytes >= 0);
    if (pure)
        check_near(ot_task_kind_name(task->kind), cost->seconds,
                   rates.task_seconds + starts[task->lane] + cost->bytes / by_lane[task->lane]);
}

/* A training step, or a pass of generation. */
static void sum_pass(struct tiny_run *run, bool decodes, struct totals *t, struct ot_layout *layout,
                     int64_t *params) {
    struct ot_model *model;
    struct ot_schedule schedule;
    struct ot_costs costs;
    memset(t, 0, sizeof *t);
    tiny_open_model(run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_layout_make(chain, &run->plan, layout));
    check_ok(decodes ? ot_schedule_make_forward(chain, &run->plan, layout, OT_PASS_DECODE, &schedule)
                     : ot_schedule_make_train(chain, &run->plan, layout, &schedule));
    check_ok(ot_costs_estimate(chain, &rates, TINY_SEQUENCE, run->plan.micro_tokens, &costs));
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        struct ot_task_cost cost = ot_costs_of_task(&costs, chain, &run->plan, layout, task);
        bool block = task->kind == OT_TASK_FORWARD || task->kind == OT_TASK_BACKWARD;
        check_lane(task, &cost, !block);
        assert_true(block == (cost.flops > 0) || task->block == 0); /* the embedding has no product */
        t->n[task->kind]++;
        t->of[task->kind].bytes += cost.bytes;
        t->of[task->kind].flops += cost.flops;
        t->of[task->kind].seconds += cost.seconds;
    }
    *params = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        *params += chain->slabs[s].n_params;
    ot_costs_free(&costs);
    ot_schedule_free(&schedule);
    ot_model_close(model);
}

static void sum_step(struct tiny_run *run, struct totals *t, struct ot_layout *layout, int64_t *params) {
    sum_pass(run, false, t, layout, params);
}

/* By dtype: the bytes that AdamW reads and writes per parameter, and the bytes of state per parameter. */
static const double touched[] = {[OT_F32] = 28, [OT_BF16] = 26, [OT_F16] = 28};
static const double state_of[] = {[OT_F32] = 8, [OT_BF16] = 10, [OT_F16] = 12};

static void every_engine_moves_what_it_must(void **state) {
    (void)state;
    for (enum ot_dtype dtype = OT_F32; dtype <= OT_F16; dtype++)
        for (int engine = 0; engine < OT_TILE_ENGINES; engine++) {
            struct tiny_run run;
            struct ot_layout layout;
            struct totals t;
            int64_t params;
            double item = (double)ot_dtype_bytes(dtype);
            tiny_defaults(&run, 3, false, dtype);
            tiny_plan(&run, OT_HOME_HOST, engine == OT_TILE_GPU ? OT_HOME_GPU : OT_HOME_HOST, OT_HOME_HOST,
                      2);
            if (engine != OT_TILE_GPU)
                tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1u << engine, 0);
            for (int s = 0; s < run.plan.n_slabs; s++)
                run.plan.slabs[s].grads = OT_HOME_HOST;
            tiny_finish(&run);
            sum_step(&run, &t, &layout, &params);
            static const enum ot_task_kind updates[] = {OT_TASK_UPDATE_GPU, OT_TASK_UPDATE_STREAM,
                                                        OT_TASK_UPDATE_CPU};
            double n = (double)params, micro = (double)run.plan.max_micro;
            for (int e = 0; e < OT_TILE_ENGINES; e++)
                check_near("update", t.of[updates[e]].bytes, e == engine ? n * touched[dtype] : 0);
            bool streams = engine == OT_TILE_STREAM, leaves = engine != OT_TILE_GPU;
            check_near("state in", t.of[OT_TASK_STATE_IN].bytes, streams ? n * (state_of[dtype] + item) : 0);
            check_near("state out", t.of[OT_TASK_STATE_OUT].bytes,
                       streams ? n * (state_of[dtype] + item) : 0);
            check_near("gradients", t.of[OT_TASK_GRAD_OUT].bytes, leaves ? n * item : 0);
            check_near("stored", t.of[OT_TASK_STORE].bytes, leaves ? 0 : n * item);
            assert_true(t.of[OT_TASK_FETCH].bytes >= n * item);
            /* Read once for the norm; if the gradient is rounded, read again and written. */
            check_near("finish", t.of[OT_TASK_GRAD_FINISH].bytes, n * (dtype == OT_F32 ? 4 : 4 + item));
            check_near("batch", t.of[OT_TASK_BATCH_IN].bytes, micro * (double)run.plan.micro_tokens * 16);
            double boundary = (double)(run.plan.micro_tokens * run.config.hidden) * item;
            check_near("boundaries", t.of[OT_TASK_BOUNDARY_OUT].bytes, boundary * t.n[OT_TASK_BOUNDARY_OUT]);
            check_near("and back", t.of[OT_TASK_BOUNDARY_IN].bytes, t.of[OT_TASK_BOUNDARY_OUT].bytes);
            assert_true(t.n[OT_TASK_BOUNDARY_OUT] > 0);
            ot_layout_free(&layout);
            ot_plan_free(&run.plan);
        }
}

/* Generation, with all rows of the cache filled: they come to the device, and one row goes back; on nvme as
 * an extent of k and one of v. */
static void a_cache_moves_its_rows(void **state) {
    (void)state;
    enum { LAYERS = 3, ROWS = 1000 };
    for (int home = OT_HOME_GPU; home <= OT_HOME_NVME; home++) {
        struct tiny_run run;
        struct ot_layout layout;
        struct totals t;
        int64_t params;
        tiny_defaults(&run, LAYERS, false, OT_BF16);
        run.cache_rows = ROWS;
        tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
        run.plan.cache = (enum ot_home)home;
        run.plan.cache_slots = run.plan.host_cache_slots = 2;
        tiny_finish(&run);
        sum_pass(&run, true, &t, &layout, &params);
        double row = 2.0 * (double)(run.config.n_kv_heads * run.config.head_dim) * 2;
        bool leaves = home != OT_HOME_GPU, nvme = home == OT_HOME_NVME;
        check_near("in", t.of[OT_TASK_CACHE_IN].bytes, leaves ? LAYERS * ROWS * row : 0);
        check_near("out", t.of[OT_TASK_CACHE_OUT].bytes, leaves ? LAYERS * row : 0);
        check_near("read", t.of[OT_TASK_NVME_READ].bytes, nvme ? LAYERS * ROWS * row : 0);
        check_near("written", t.of[OT_TASK_NVME_WRITE].bytes, nvme ? LAYERS * 2.0 * 4096 : 0);
        ot_layout_free(&layout);
        ot_plan_free(&run.plan);
    }
}

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

/* A base crosses the bus in its type. Each visit of a block reads it, and writes the decoded weights. */
static void a_base_moves_in_its_type(void **state) {
    (void)state;
    for (int base = OT_BASE_INT8; base <= OT_BASE_MXFP4; base++) {
        struct tiny_run run;
        struct ot_layout layout;
        struct ot_model *model;
        struct totals t;
        int64_t params, encoded = 0, decoded = 0, plain = 0;
        tiny_defaults(&run, 3, false, OT_BF16);
        run.trains = trains_norms;
        run.base = (enum ot_base_type)base;
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 1);
        sum_step(&run, &t, &layout, &params);
        tiny_open_model(&run, &model);
        const struct ot_chain *chain = ot_model_chain(model);
        for (int s = 0; s < chain->n_slabs; s++) {
            const struct ot_slab_spec *slab = &chain->slabs[s];
            encoded += slab->encoded_bytes;
            decoded += slab->encoded_bytes > 0 ? 2 * slab->n_params : 0;
            plain += slab->encoded_bytes > 0 ? 0 : 2 * slab->n_params;
        }
        assert_true(encoded > 0);
        assert_in_range(t.n[OT_TASK_DECODE], 3 + 2, 3 + 3); /* the last layer may stay for backward */
        check_near("decode", t.of[OT_TASK_DECODE].bytes,
                   t.n[OT_TASK_DECODE] / 3.0 * (double)(encoded + decoded));
        double fetched = t.of[OT_TASK_FETCH].bytes;
        assert_true(fetched >= (double)(encoded + plain) && fetched <= 3.0 * (double)(encoded + plain));
        ot_model_close(model);
        ot_layout_free(&layout);
        ot_plan_free(&run.plan);
    }
}

/* A rate of decoding that was measured replaces that of other kernels. */
static void decoding_takes_its_measured_time(void **state) {
    (void)state;
    const struct ot_slab_spec slab = {.frozen = true, .n_params = 1 << 20, .encoded_bytes = 1 << 19};
    const struct ot_chain chain = {.dtype = OT_BF16, .n_slabs = 1, .slabs = &slab};
    const struct ot_task task = {.kind = OT_TASK_DECODE, .lane = OT_LANE_COMPUTE};
    const struct ot_plan plan = {0};
    const struct ot_layout layout = {0};
    struct ot_costs costs = {.rates = rates};
    double bytes = (1 << 19) + 2.0 * (1 << 20);
    check_near("estimated", ot_costs_of_task(&costs, &chain, &plan, &layout, &task).seconds,
               rates.task_seconds + bytes / rates.device_bytes);
    costs.decode_bytes = 3e9;
    check_near("measured", ot_costs_of_task(&costs, &chain, &plan, &layout, &task).seconds,
               rates.task_seconds + bytes / 3e9);
}

static double update_seconds(const struct ot_costs *costs, enum ot_state_format format,
                             enum ot_masters masters, enum ot_task_kind kind, enum ot_lane_id lane) {
    const struct ot_chain chain = {.dtype = OT_BF16, .state = format, .masters = masters};
    const struct ot_task task = {.kind = kind, .lane = lane, .span = {.n = 1 << 20}};
    const struct ot_plan plan = {0};
    const struct ot_layout layout = {0};
    return ot_costs_of_task(costs, &chain, &plan, &layout, &task).seconds - costs->rates.task_seconds;
}

/* The optimizer's rate is that of the state's format, for the bytes that an update moves: 4 fewer without
 * masters. The cpu device's rate, measured with fp32 state, falls as much as the optimizer's; a GPU's does
 * not. */
static void compact_updates_have_their_own_rate(void **state) {
    (void)state;
    static const double bytes[OT_STATE_FORMATS] = {26, 18, 14.25},
                        rate[OT_STATE_FORMATS] = {5e10, 4e10, 3e10};
    struct ot_costs gpu = {.rates = rates}, cpu = {.rates = rates};
    cpu.rates.device_is_host = true;
    for (int i = 0; i < 2 * OT_STATE_FORMATS; i++) {
        enum ot_state_format format = (enum ot_state_format)(i / 2);
        enum ot_masters masters = i % 2 ? OT_MASTERS_NONE : OT_MASTERS_F32;
        double each = bytes[format] - (i % 2 ? 4 : 0), all = each * (1 << 20),
               on_gpu = all / rates.device_bytes;
        check_near("bytes", ot_adamw_bytes(OT_BF16, format, masters), each);
        check_near("pool", update_seconds(&gpu, format, masters, OT_TASK_UPDATE_CPU, OT_LANE_CPU),
                   all / rate[format]);
        check_near("gpu", update_seconds(&gpu, format, masters, OT_TASK_UPDATE_GPU, OT_LANE_COMPUTE), on_gpu);
        check_near("stream", update_seconds(&gpu, format, masters, OT_TASK_UPDATE_STREAM, OT_LANE_COMPUTE),
                   on_gpu);
        check_near("cpu device",
                   update_seconds(&cpu, format, masters, OT_TASK_UPDATE_STREAM, OT_LANE_COMPUTE),
                   on_gpu * rate[0] / rate[format]);
    }
}

/* Keeping the activations saves exactly the recomputation. */
static void recomputation_costs_a_forward(void **state) {
    (void)state;
    struct totals kept, again;
    struct ot_layout layout;
    struct tiny_run run;
    int64_t params;
    tiny_defaults(&run, 3, false, OT_F32);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 1);
    run.plan.kept[OT_TIER_GPU] = (struct ot_kept_blocks){OT_KEEP_PRODUCTS, 3};
    tiny_finish(&run);
    sum_step(&run, &kept, &layout, &params);
    ot_layout_free(&layout);
    run.plan.kept[OT_TIER_GPU].blocks = 0;
    tiny_finish(&run);
    sum_step(&run, &again, &layout, &params);
    ot_layout_free(&layout);
    double more = again.of[OT_TASK_BACKWARD].flops - kept.of[OT_TASK_BACKWARD].flops;
    double n = (double)(run.plan.micro_tokens * run.plan.max_micro), h = (double)run.config.hidden;
    /* Half as many heads for k and v. */
    double matrices = h * (h + 2 * h / 2) + h * h + 2 * h * (double)run.config.ffn;
    check_near("more", more, 3 * n * (2 * matrices + 4 * h * (TINY_SEQUENCE + 1) / 2));
    check_near("forward", again.of[OT_TASK_FORWARD].flops, kept.of[OT_TASK_FORWARD].flops);
    ot_plan_free(&run.plan);
}

/* A step reads and writes everything on nvme once. Weights are also read for the device. */
static void disks_move_what_lives_there(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_layout layout;
    struct totals t;
    int64_t params;
    tiny_defaults(&run, 3, false, OT_BF16);
    tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_GPU, 2);
    tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1u << OT_TILE_CPU, 0);
    sum_step(&run, &t, &layout, &params);
    double stored = 0;
    for (int b = 0; b < layout.n_buffers; b++)
        stored += layout.buffers[b].tier == OT_TIER_NVME ? (double)layout.buffers[b].bytes : 0;
    check_near("stored", stored, (double)params * 12); /* no tile of this chain is incomplete */
    check_near("written", t.of[OT_TASK_NVME_WRITE].bytes, stored);
    double weights = (double)params * 2, read = t.of[OT_TASK_NVME_READ].bytes;
    assert_true(read > stored + weights - 1 && read < stored + 2 * weights + 1);
    check_near("update", t.of[OT_TASK_UPDATE_CPU].bytes, (double)params * 26);
    ot_layout_free(&layout);
    ot_plan_free(&run.plan);
}

/* A step writes waiting gradients once and reads them once, and also the sums of each round but the last. */
static void disks_move_gradients(void **state) {
    (void)state;
    for (int rounds = 1; rounds <= 3; rounds++) {
        struct tiny_run run;
        struct ot_layout layout;
        struct totals t;
        int64_t params;
        tiny_defaults(&run, 3, false, OT_BF16);
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1u << OT_TILE_CPU | 1u << OT_TILE_STREAM, 0);
        for (int s = 0; s < run.plan.n_slabs; s++)
            run.plan.slabs[s].grads = run.plan.slabs[s].sums = OT_HOME_NVME;
        run.plan.tile_slots = run.plan.host_grad_slots = 2;
        ot_plan_set_rounds(&run.plan, rounds);
        tiny_finish(&run);
        sum_step(&run, &t, &layout, &params);
        double sums = (rounds - 1) * (double)params * 4;
        check_near("written", t.of[OT_TASK_NVME_WRITE].bytes, (double)params * 2 + sums);
        check_near("read", t.of[OT_TASK_NVME_READ].bytes, (double)params * 2 + sums);
        check_near("out", t.of[OT_TASK_GRAD_OUT].bytes, (double)params * 2);
        check_near("sums out", t.of[OT_TASK_SUM_OUT].bytes, sums);
        check_near("sums in", t.of[OT_TASK_SUM_IN].bytes, sums);
        ot_layout_free(&layout);
        ot_plan_free(&run.plan);
    }
}

/* Tasks that need a device that the machine lacks take infinite time. */
static void absent_disks_take_for_ever(void **state) {
    (void)state;
    struct ot_costs costs = {0};
    struct ot_chain chain = {.dtype = OT_BF16};
    struct ot_plan plan = {0};
    struct ot_buffer buffer = {.tier = OT_TIER_NVME, .bytes = 100, .n_tiles = 4};
    struct ot_layout layout = {.n_buffers = 1, .buffers = &buffer};
    struct ot_access access = {.first_tile = 1, .n_tiles = 2};
    struct ot_task task = {.kind = OT_TASK_NVME_READ,
                           .lane = OT_LANE_NVME_READ,
                           .cache = OT_NO_BUFFER,
                           .n_accesses = 1,
                           .accesses = &access};
    struct ot_task_cost cost = ot_costs_of_task(&costs, &chain, &plan, &layout, &task);
    check_near("bytes", cost.bytes, 50);
    assert_true(isinf(cost.seconds));
    task.n_accesses = 0;
    assert_true(ot_costs_of_task(&costs, &chain, &plan, &layout, &task).seconds == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_make_the_estimate),
        cmocka_unit_test(missing_rates_are_named),
        cmocka_unit_test(work_adds_up_to_the_models),
        cmocka_unit_test(a_known_layer),
        cmocka_unit_test(attention_has_rates_by_pass_and_size),
        cmocka_unit_test(a_first_backward_has_its_own_time),
        cmocka_unit_test(every_engine_moves_what_it_must),
        cmocka_unit_test(a_cache_moves_its_rows),
        cmocka_unit_test(a_base_moves_in_its_type),
        cmocka_unit_test(decoding_takes_its_measured_time),
        cmocka_unit_test(compact_updates_have_their_own_rate),
        cmocka_unit_test(recomputation_costs_a_forward),
        cmocka_unit_test(disks_move_what_lives_there),
        cmocka_unit_test(disks_move_gradients),
        cmocka_unit_test(absent_disks_take_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
