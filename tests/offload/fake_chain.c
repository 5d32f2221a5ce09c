#include "tests/offload/fake_chain.h"

#include <stdio.h>
#include <string.h>

#include "tests/support/check.h"

/* Elements of `hidden` that each level keeps. */
static const size_t kept[OT_KEEP_LEVELS] = {0, 1, 12, 17};

static size_t inside_bytes(const struct fake *f, int block, int64_t n_tokens, size_t elems) {
    bool layer = block > 0 && block <= f->layers;
    return layer ? (size_t)n_tokens * (size_t)f->hidden * elems * ot_dtype_bytes(f->dtype) : 0;
}

static size_t saved_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    return inside_bytes(context, block, n_tokens, kept[level]);
}

static size_t work_bytes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    size_t most = kept[OT_KEEP_PRODUCTS];
    return inside_bytes(context, block, n_tokens, level < OT_KEEP_PRODUCTS ? most - kept[level] : 0);
}

static size_t scratch_bytes(const void *context, int block, int64_t n_tokens) {
    const struct fake *f = context;
    return block == 0 ? 0 : (size_t)n_tokens * (size_t)f->hidden * 4;
}

void fake_open(struct fake *f) {
    static const struct ot_param_group group = {.decay = true, .trained = true};
    int last = f->layers + 1, n_slabs = f->layers + 2 - f->tied;
    for (int b = 0; b <= last; b++) {
        int slab = b == last && f->tied ? 0 : b;
        f->blocks[b] = (struct ot_block_spec){.name = "block", .n_uses = 1, .uses = {{slab, b > 0}}};
    }
    for (int s = 0; s < n_slabs; s++) {
        bool edge = s == 0 || s == last;
        f->slabs[s] = (struct ot_slab_spec){.name = "slab",
                                            .n_params = edge ? f->edge_params : f->layer_params,
                                            .edge = edge,
                                            .n_groups = 1,
                                            .groups = &group};
    }
    f->chain = (struct ot_chain){.context = f,
                                 .dtype = f->dtype,
                                 .n_blocks = last + 1,
                                 .n_slabs = n_slabs,
                                 .blocks = f->blocks,
                                 .slabs = f->slabs,
                                 .boundary_elems = f->hidden,
                                 .kv_elems = f->hidden,
                                 .vocab = f->vocab,
                                 .max_position = 1 << 20,
                                 .constant_bytes = 4096,
                                 .saved_bytes = saved_bytes,
                                 .work_bytes = work_bytes,
                                 .scratch_bytes = scratch_bytes};
}

void fake_open_small(struct fake *f, enum ot_dtype dtype, bool tied) {
    *f = (struct fake){.layers = 12,
                       .hidden = 512,
                       .layer_params = 1 << 20,
                       .edge_params = 1 << 21,
                       .vocab = 4096,
                       .tied = tied,
                       .dtype = dtype};
    fake_open(f);
}

struct ot_plan_request fake_request(const struct fake *f) {
    return (struct ot_plan_request){.chain = &f->chain,
                                    .budget_bytes = {(size_t)1 << 34, (size_t)1 << 34},
                                    .sequence_tokens = 512,
                                    .step_sequences = 16,
                                    .train = true,
                                    .clip = true,
                                    .weights = OT_HOME_AUTO,
                                    .state = OT_HOME_AUTO,
                                    .grads = OT_HOME_AUTO,
                                    .sums = OT_HOME_AUTO,
                                    .activations = OT_HOME_AUTO,
                                    .keep = OT_KEEP_CHOSEN,
                                    .kept = OT_HOME_AUTO};
}

void check_fits(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    assert_true(ot_ledger_total(&plan->ledger, OT_TIER_GPU) + (size_t)rq->extra_device_bytes <=
                rq->budget_bytes[OT_TIER_GPU]);
    assert_true(ot_ledger_total(&plan->ledger, OT_TIER_HOST) + (size_t)rq->extra_host_bytes <=
                rq->budget_bytes[OT_TIER_HOST]);
    assert_true(plan->micro_tokens % rq->sequence_tokens == 0);
    assert_true(plan->micro_tokens / rq->sequence_tokens * plan->max_micro >= rq->step_sequences);
    assert_true(plan->micro_tokens / rq->sequence_tokens * (plan->max_micro - 1) < rq->step_sequences);
}

bool is_whole(const struct ot_slab_plan *slab, enum ot_tile_engine engine) {
    const int *tiles = slab->tiles;
    return tiles[engine] > 0 &&
           tiles[engine] == tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU];
}

int count_resident(const struct ot_plan *plan) {
    int n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].weights == OT_HOME_GPU && is_whole(&plan->slabs[s], OT_TILE_GPU);
    return n;
}

struct ot_plan_request rank_alone(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    struct ot_plan_request one = *rq;
    one.shard = (struct ot_shard){.ranks = 1};
    one.step_sequences /= rq->shard.ranks;
    for (int i = 0; i < plan->ledger.n; i++)
        if (strcmp(plan->ledger.entries[i].name, "exchange slots") == 0)
            one.budget_bytes[OT_TIER_GPU] -= plan->ledger.entries[i].bytes;
    return one;
}

/* Sets the budgets that are not 0; with them there must be a plan. */
static void check_enough(const struct ot_plan_request *refused, size_t gpu, size_t host, size_t nvme) {
    struct ot_plan_request rq = *refused;
    struct ot_plan plan;
    assert_true(gpu > 0 || host > 0 || nvme > refused->budget_bytes[OT_TIER_NVME]);
    assert_true((!gpu || gpu > rq.budget_bytes[OT_TIER_GPU]) &&
                (!host || host > rq.budget_bytes[OT_TIER_HOST]));
    rq.budget_bytes[OT_TIER_GPU] = gpu ? gpu : rq.budget_bytes[OT_TIER_GPU];
    rq.budget_bytes[OT_TIER_HOST] = host ? host : rq.budget_bytes[OT_TIER_HOST];
    rq.budget_bytes[OT_TIER_NVME] = nvme ? nvme : rq.budget_bytes[OT_TIER_NVME];
    check_ok(ot_plan_make(&rq, &plan));
    check_fits(&rq, &plan);
    ot_plan_free(&plan);
}

/* After a refusal: the sentence must name the tier that is short, and the budgets that the shortage names
 * must be enough. */
static void check_shortage(const struct ot_plan_request *refused, const struct ot_shortage *shortage) {
    size_t gpu = shortage->alone[OT_TIER_GPU], host = shortage->alone[OT_TIER_HOST];
    size_t nvme = shortage->alone[OT_TIER_NVME];
    const char *tier = nvme          ? "nvme: "
                       : gpu && host ? "gpu or host memory: "
                       : gpu         ? "gpu memory: "
                       : host        ? "host memory: "
                                     : "gpu and host memory: ";
    assert_non_null(strstr(ot_error_text(), tier));
    assert_non_null(strstr(ot_error_text(), "short by"));
    assert_null(strstr(ot_error_text(), "--")); /* the planner must not name command-line options */
    if (gpu)
        check_enough(refused, gpu, 0, 0);
    if (host)
        check_enough(refused, 0, host, 0);
    if (nvme)
        check_enough(refused, 0, 0, nvme);
    if (!gpu && !host && !nvme) {
        const size_t *all = shortage->together, *have = refused->budget_bytes;
        check_enough(refused, all[OT_TIER_GPU] > have[OT_TIER_GPU] ? all[OT_TIER_GPU] : 0,
                     all[OT_TIER_HOST] > have[OT_TIER_HOST] ? all[OT_TIER_HOST] : 0,
                     all[OT_TIER_NVME] > have[OT_TIER_NVME] ? all[OT_TIER_NVME] : 0);
    }
}

bool plan_or_cure(const struct ot_plan_request *rq, struct ot_plan *plan) {
    int rc = ot_plan_make(rq, plan);
    if (rc == 0) {
        check_fits(rq, plan);
        return true;
    }
    assert_int_equal(rc, -OT_E_BUDGET);
    assert_null(plan->slabs);
    check_shortage(rq, &plan->shortage);
    return false;
}

const struct ot_rates fake_rates = {.product_flops = 1e13,
                                    .attention = {[OT_HEAD_128] = {5e12, 5e12}},
                                    .device_bytes = 5e11,
                                    .h2d_bytes = 2e10,
                                    .d2h_bytes = 2e10,
                                    .both_bytes = 3e10,
                                    .triad_bytes = 1e11,
                                    .adamw_bytes = {8e10, 8e10, 4e10},
                                    .cores = 8,
                                    .comm_bytes = 1e10,
                                    .comm_seconds = 2e-5,
                                    .comm_link = 2,
                                    .comm_memory = 2};
