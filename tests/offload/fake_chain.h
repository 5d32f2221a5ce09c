/* A chain that consists of sizes only, for the planner's tests, and checks that hold for every plan. */
#ifndef OT_TESTS_FAKE_CHAIN_H
#define OT_TESTS_FAKE_CHAIN_H

#include "offload/plan/layout.h"
#include "offload/plan/plan_search.h"
#include "offload/predict/rates.h"

enum { MAX_LAYERS = 80, MIB = 1 << 20 };

/* An embedding, layers and a head. */
struct fake {
    int layers;
    int64_t hidden, layer_params, edge_params, vocab;
    bool tied;
    enum ot_dtype dtype;
    struct ot_chain chain;
    struct ot_block_spec blocks[MAX_LAYERS + 2];
    struct ot_slab_spec slabs[MAX_LAYERS + 2];
};

/* Builds the chain from the fields above it. */
void fake_open(struct fake *f);
/* 12 layers of 1 Mi parameters: 168 MiB of weights, state and gradients in bf16. */
void fake_open_small(struct fake *f, enum ot_dtype dtype, bool tied);
/* Training with budgets that hold everything. All other choices are left to the planner. */
struct ot_plan_request fake_request(const struct fake *f);

/* Rates of a small machine with several ranks, round numbers. */
extern const struct ot_rates fake_rates;

/* Fails the test if the plan exceeds the budgets of its request, or does not cut the step into the
 * micro-batches that it states. */
void check_fits(const struct ot_plan_request *rq, const struct ot_plan *plan);
/* True if the engine updates all tiles of the slab. */
bool is_whole(const struct ot_slab_plan *slab, enum ot_tile_engine engine);
int count_resident(const struct ot_plan *plan);
/* The request of one rank alone: with the same budgets, its part of the step, and without the room that
 * `plan` of the ranks takes for what they exchange. */
struct ot_plan_request rank_alone(const struct ot_plan_request *rq, const struct ot_plan *plan);
/* Makes a plan that keeps its budgets (true), or gets a refusal (false). A refusal must name the tier that is
 * short, and the budgets that its shortage names must be enough. */
bool plan_or_cure(const struct ot_plan_request *rq, struct ot_plan *plan);

#endif
