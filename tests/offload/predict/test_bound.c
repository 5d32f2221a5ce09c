/* Lower bounds of a step's time that can be computed on paper. (test_simulate.c compares them with simulated
 * times.) Each test gives rates to one lane alone, so that the bound is the work of that lane. */
#include "offload/predict/bound.h"

#include <math.h>
#include <string.h>

#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

/* A tile is a slab of a layer. Edge slabs have two tiles. */
enum { LAYERS = 4, BLOCKS = LAYERS + 2, HIDDEN = 64, TILE = 1 << 14, TOKENS = 8, MICROS = 6 };
/* Bytes of a layer's weights in bf16, of a tile's state, and of a boundary. */
enum { LAYER = 2 * TILE, STATE = 10 * TILE, BOUNDARY = 2 * HIDDEN * TOKENS };

struct paper {
    struct fake fake;
    struct ot_slab_plan slabs[BLOCKS];
    struct ot_plan plan;
    struct ot_block_cost blocks[BLOCKS];
    struct ot_costs costs;
};

/* Everything is on the device and takes no time. */
static void open_paper(struct paper *p) {
    memset(p, 0, sizeof *p);
    p->fake = (struct fake){.layers = LAYERS,
                            .hidden = HIDDEN,
                            .layer_params = TILE,
                            .edge_params = 2 * TILE,
                            .vocab = 64,
                            .dtype = OT_BF16};
    fake_open(&p->fake);
    for (int s = 0; s < BLOCKS; s++)
        p->slabs[s].tiles[OT_TILE_GPU] = p->fake.slabs[s].edge ? 2 : 1;
    p->plan = (struct ot_plan){.slabs = p->slabs,
                               .n_slabs = BLOCKS,
                               .micro_tokens = TOKENS,
                               .max_micro = MICROS,
                               .train = true,
                               .tile_params = TILE};
    p->costs.blocks = p->blocks;
    p->costs.n_blocks = BLOCKS;
}

static void check_least(const struct paper *p, double want) {
    double got = ot_plan_least_seconds(&p->fake.chain, &p->plan, &p->costs);
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.15g, not %.15g", got, want);
}

/* The work of one lane, in bytes. */
static void check_lane(struct paper *p, double *rate, double want) {
    *rate = 1;
    check_least(p, want);
    *rate = 0; /* unknown: it limits nothing */
    check_least(p, 0);
}

static void set_rounds(struct paper *p, int round_micro) {
    p->plan.first_round = p->plan.round_micro = round_micro;
}

static void computing_is_the_passes_through_the_blocks(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    for (int b = 0; b < BLOCKS; b++) {
        p.blocks[b].forward = (struct ot_line){1, 1};      /* 9 s for 8 tokens */
        p.blocks[b].backward = (struct ot_line){0, 2};     /* 16 s */
        p.blocks[b].recompute[0] = (struct ot_line){0, 3}; /* 24 s */
        p.blocks[b].recompute[1] = (struct ot_line){4, 0}; /* 4 s */
        p.blocks[b].first = b % 2 ? -5 : 100;              /* only what it saves is certain */
    }
    p.costs.rates.task_seconds = 0.5;
    p.plan.kept[OT_TIER_GPU] = (struct ot_kept_blocks){OT_KEEP_ATTENTION, 1};
    /* one block keeps attention; three rounds have a first backward each */
    const double pass = 9 + 16 + 2 * 0.5, last = 9 + 0.5; /* the last block's backward contains its forward */
    const double all = BLOCKS * pass - last + (BLOCKS - 1) * 24 + 4;
    set_rounds(&p, 2);
    check_least(&p, all * MICROS - 3 * 3 * 5);
    p.costs.slower[OT_LANE_COMPUTE] = 2;
    check_least(&p, 2 * (all * MICROS - 3 * 3 * 5));
    p.costs.slower[OT_LANE_COMPUTE] = 0;
    p.fake.slabs[0].frozen = p.fake.slabs[1].frozen = true; /* backward ends at block 2 */
    check_least(&p, (all - 2 * (16 + 0.5 + 24)) * MICROS - 3 * 3 * 5);
}

/* The bound holds for any plan: a block keeps the level or nothing, the faster of the two, and each pass may
 * be a first one. */
static void any_plan_computes_that_long(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    for (int b = 0; b < BLOCKS; b++) {
        p.blocks[b].forward = (struct ot_line){1, 0};
        p.blocks[b].recompute[OT_KEEP_NONE] = (struct ot_line){0, 3};
        p.blocks[b].recompute[OT_KEEP_PRODUCTS] = (struct ot_line){0, b == 2 ? 4 : 1};
        p.blocks[b].first = b == 3 ? -0.25 : 1;
    }
    const struct ot_chain *chain = &p.fake.chain;
    const double want = 7 * ((BLOCKS - 1) * (1 + 2) + (1 + 6) - 1 - 0.25);
    assert_true(
        fabs(ot_least_compute_seconds(chain, &(struct ot_shard){0}, &p.costs, 2, 7, OT_KEEP_PRODUCTS) -
             want) < 1e-9);
    p.costs.slower[OT_LANE_COMPUTE] = 3;
    assert_true(
        fabs(ot_least_compute_seconds(chain, &(struct ot_shard){0}, &p.costs, 2, 7, OT_KEEP_PRODUCTS) -
             3 * want) < 1e-9);
}

/* Forward and backward fetch each slab that is not on the device; a slab in a slot is not fetched again. */
static void streamed_slabs_are_fetched_twice_a_round(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    double *h2d = &p.costs.rates.h2d_bytes;
    p.slabs[1].weights = p.slabs[2].weights = p.slabs[3].weights = OT_HOME_HOST;
    check_lane(&p, h2d, 6 * LAYER);
    p.plan.weight_slots[OT_SLOT_LAYER] = 1;
    check_lane(&p, h2d, 4 * LAYER);
    p.plan.encoded_slots[OT_SLOT_LAYER] = 1;
    check_lane(&p, h2d, 2 * LAYER);
    p.plan.weight_slots[OT_SLOT_LAYER] = 3; /* all stay in slots */
    p.plan.encoded_slots[OT_SLOT_LAYER] = 0;
    check_lane(&p, h2d, 0);
    p.plan.weight_slots[OT_SLOT_LAYER] = 1;
    set_rounds(&p, 2);
    check_lane(&p, h2d, 3 * 4 * LAYER);
    p.slabs[0].weights = p.slabs[5].weights = OT_HOME_HOST; /* edges have slots of their own */
    check_lane(&p, h2d, 3 * (4 * LAYER + 8 * LAYER));
    p.plan.weight_slots[OT_SLOT_EDGE] = 1;
    check_lane(&p, h2d, 3 * (4 * LAYER + 4 * LAYER));
    p.costs.slower[OT_LANE_H2D] = 2;
    check_lane(&p, h2d, 2 * 3 * (4 * LAYER + 4 * LAYER));
    p.plan.fetch_used = true; /* nothing is certain */
    check_lane(&p, h2d, 0);
}

/* Four ranks: each brings its quarter and gathers the others, or reads the one copy whole. */
static void ranks_gather_what_others_bring(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    double *h2d = &p.costs.rates.h2d_bytes, *comm = &p.costs.rates.comm_bytes;
    p.plan.shard = (struct ot_shard){.rank = 1, .ranks = 4, .mode = OT_SHARD_FULL};
    for (int s = 0; s < BLOCKS; s++)
        p.slabs[s].tiles[OT_TILE_GPU] = 1;
    p.slabs[1].weights = OT_HOME_HOST;
    const double whole = 2 * (LAYERS + 4) * LAYER, quarter = LAYER / 4; /* two passes, all slabs */
    check_lane(&p, h2d, 2 * quarter);
    check_lane(&p, comm, 0.75 * whole);
    p.plan.weight_slots[OT_SLOT_LAYER] = 1;
    check_lane(&p, h2d, 0);
    check_lane(&p, comm, 0.75 * whole - 2 * 3 * quarter);
    p.costs.slower[OT_LANE_COMM] = 2;
    check_lane(&p, comm, 2 * (0.75 * whole - 2 * 3 * quarter));
    p.costs.slower[OT_LANE_COMM] = 0;
    set_rounds(&p, 3);
    p.plan.weight_slots[OT_SLOT_LAYER] = 0;
    check_lane(&p, comm, 2 * 0.75 * whole);
    set_rounds(&p, 0);
    p.plan.shard.one_copy = true;
    check_lane(&p, h2d, 2 * LAYER);
    check_lane(&p, comm, 0.75 * (whole - 2 * LAYER));
}

/* Boundaries without a slot cross the bus twice, and so do kept activations. */
static void activations_leave_and_come_back(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    double *h2d = &p.costs.rates.h2d_bytes, *d2h = &p.costs.rates.d2h_bytes;
    p.plan.activations = OT_HOME_HOST;
    p.plan.activation_slots = 1; /* of five boundaries, three are in slots and in use */
    check_lane(&p, h2d, 2 * BOUNDARY * MICROS);
    check_lane(&p, d2h, 2 * BOUNDARY * MICROS);
    p.plan.activation_slots = 3;
    check_lane(&p, h2d, 0);
    p.plan.activation_slots = 4;
    check_lane(&p, h2d, 0);
    p.plan.activations = OT_HOME_GPU;
    p.plan.activation_slots = 0;
    check_lane(&p, h2d, 0);
    p.plan.kept[OT_TIER_GPU] = (struct ot_kept_blocks){OT_KEEP_ALL, 1};
    p.plan.kept[OT_TIER_HOST] = (struct ot_kept_blocks){OT_KEEP_PRODUCTS, 2};
    const double kept = (double)p.fake.chain.saved_bytes(&p.fake, 2, OT_KEEP_PRODUCTS, TOKENS);
    check_lane(&p, h2d, 2 * MICROS * kept);
    check_lane(&p, d2h, 2 * MICROS * kept);
    p.plan.kept_slots = 2;
    set_rounds(&p, 2);
    check_lane(&p, h2d, 2 * MICROS * kept - 2 * 3 * kept);
    p.plan.kept_slots = 8;
    check_lane(&p, h2d, 0);
}

/* The keys of a row in three sections come 0 + 1 + 2 times the size of a section: in forward, for attention
 * again, and in backward with their sums. */
static void key_groups_come_and_go(void **state) {
    (void)state;
    enum { ROWS = MICROS / 3, KEYS = 2 * 2 * HIDDEN * TOKENS, SUMS = 2 * KEYS };
    struct paper p;
    open_paper(&p);
    double *h2d = &p.costs.rates.h2d_bytes, *d2h = &p.costs.rates.d2h_bytes;
    p.plan.sections = 3;
    check_lane(&p, h2d, 0);
    p.plan.key_groups = 4;
    check_lane(&p, h2d, LAYERS * ROWS * 3 * (3 * KEYS + SUMS));
    check_lane(&p, d2h, LAYERS * ROWS * (2 * 2 * KEYS + 3 * SUMS));
    p.plan.kept[OT_TIER_GPU] = (struct ot_kept_blocks){OT_KEEP_ATTENTION, 1};
    check_lane(&p, h2d, ROWS * 3 * (4 * (3 * KEYS + SUMS) - KEYS));
}

/* A streamed tile's state comes and goes. Gradients leave, except where they wait on the device. */
static void updates_move_state_and_gradients(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    struct ot_rates *r = &p.costs.rates;
    struct ot_slab_plan *slab = &p.slabs[1];
    *slab = (struct ot_slab_plan){.state = OT_HOME_HOST, .grads = OT_HOME_HOST, .tiles = {0, 1, 0}};
    check_lane(&p, &r->h2d_bytes, STATE);
    check_lane(&p, &r->d2h_bytes, STATE + LAYER);
    slab->grads = OT_HOME_GPU;
    check_lane(&p, &r->d2h_bytes, STATE);
    *slab = (struct ot_slab_plan){.state = OT_HOME_NVME, .grads = OT_HOME_HOST, .tiles = {0, 0, 1}};
    check_lane(&p, &r->h2d_bytes, 0);
    check_lane(&p, &r->d2h_bytes, LAYER);
    check_lane(&p, &r->adamw_bytes[OT_STATE_F32], 26.0 * TILE); /* 16 of moments and 10 of the rest */
    check_lane(&p, &r->nvme_read_bytes, STATE);
    check_lane(&p, &r->nvme_write_bytes, STATE);
    p.costs.slower[OT_LANE_CPU] = p.costs.slower[OT_LANE_NVME_READ] = p.costs.slower[OT_LANE_D2H] = 2;
    p.costs.slower[OT_LANE_NVME_WRITE] = 3;
    check_lane(&p, &r->adamw_bytes[OT_STATE_F32], 2 * 26.0 * TILE);
    check_lane(&p, &r->nvme_read_bytes, 2 * STATE);
    check_lane(&p, &r->nvme_write_bytes, 3 * STATE);
    check_lane(&p, &r->d2h_bytes, 2 * LAYER);
    memset(p.costs.slower, 0, sizeof p.costs.slower);
    slab->weights = OT_HOME_NVME; /* the update writes them */
    check_lane(&p, &r->nvme_write_bytes, STATE + LAYER);
    p.plan.fetch_used = true;
    check_lane(&p, &r->nvme_write_bytes, STATE);
    p.fake.slabs[1].frozen = true;
    check_lane(&p, &r->nvme_write_bytes, 0);
}

/* A sum that leaves comes back in each round but the first. */
static void sums_leave_between_rounds(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    p.slabs[2].sums = OT_HOME_HOST;
    check_lane(&p, &p.costs.rates.h2d_bytes, 0);
    set_rounds(&p, 2);
    check_lane(&p, &p.costs.rates.h2d_bytes, 2 * 4.0 * TILE);
    check_lane(&p, &p.costs.rates.d2h_bytes, 2 * 4.0 * TILE);
}

/* The link carries both directions, and the disks reads and writes. Both directions together are never slower
 * than one of them alone. */
static void directions_share_the_link_and_the_disks(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    struct ot_rates *r = &p.costs.rates;
    p.slabs[1] = (struct ot_slab_plan){.state = OT_HOME_NVME, .grads = OT_HOME_HOST, .tiles = {0, 1, 0}};
    r->h2d_bytes = r->d2h_bytes = 4;
    check_least(&p, (STATE + LAYER) / 4.0);
    r->both_bytes = 5;
    check_least(&p, (2.0 * STATE + LAYER) / 5);
    r->both_bytes = 3; /* impossible; counts as one direction's */
    check_least(&p, (2.0 * STATE + LAYER) / 4);
    r->d2h_bytes = 6; /* as fast as the faster direction */
    check_least(&p, (2.0 * STATE + LAYER) / 6);
    r->h2d_bytes = r->d2h_bytes = r->both_bytes = 0;
    r->nvme_read_bytes = r->nvme_write_bytes = 4;
    check_least(&p, STATE / 4.0);
    r->nvme_mixed_bytes = 5;
    check_least(&p, 2.0 * STATE / 5);
    r->nvme_mixed_bytes = 1;
    r->nvme_read_bytes = 3;
    check_least(&p, 2.0 * STATE / 4);
    r->nvme_read_bytes = 6;
    check_least(&p, 2.0 * STATE / 6);
}

/* With clipping, all updates come after a decision, and before what the device computes after the first
 * round's forward. Shadows make theirs before, and slots hold tiles at either end. */
static void updates_wait_for_the_decision(void **state) {
    (void)state;
    struct paper p;
    open_paper(&p);
    struct ot_rates *r = &p.costs.rates;
    for (int b = 0; b < BLOCKS; b++) {
        p.blocks[b].forward = (struct ot_line){1, 0};
        p.blocks[b].backward = (struct ot_line){2, 0};
    }
    const double forward = BLOCKS - 1, backward = 2 * BLOCKS, all = (forward + backward) * MICROS;
    p.plan.clip = true;
    check_least(&p, all);
    for (int s = 1; s < 4; s++)
        p.slabs[s] = (struct ot_slab_plan){.state = OT_HOME_NVME, .grads = OT_HOME_HOST, .tiles = {0, 0, 1}};
    p.fake.slabs[4].frozen = true;
    p.slabs[4].tiles[OT_TILE_GPU] = 0;
    r->adamw_bytes[OT_STATE_F32] = TILE; /* 26 s a tile, as long as two micro-batches and a bit */
    check_least(&p, backward * MICROS + 3 * 26);
    set_rounds(&p, 2); /* the later rounds' forward waits too */
    check_least(&p, backward * MICROS + 3 * 26 + forward * 4);
    set_rounds(&p, 0);
    p.plan.shadow_frames = 1;
    check_least(&p, backward * MICROS + 2 * 26);
    p.plan.shadow_frames = 4;
    check_least(&p, all);
    r->adamw_bytes[OT_STATE_F32] = 0;
    r->nvme_read_bytes = r->nvme_write_bytes = STATE / 30.0;
    check_least(&p, backward * MICROS + 3 * 30);
    r->nvme_mixed_bytes = STATE / 20.0;
    check_least(&p, backward * MICROS + 3 * 40);
    p.plan.tile_slots = 1;
    check_least(&p, backward * MICROS + 2 * 40);
    r->nvme_read_bytes = r->nvme_write_bytes = r->nvme_mixed_bytes = 0;
    p.slabs[1].tiles[OT_TILE_STREAM] = p.slabs[2].tiles[OT_TILE_STREAM] = 1;
    p.slabs[1].tiles[OT_TILE_CPU] = p.slabs[2].tiles[OT_TILE_CPU] = 0;
    r->h2d_bytes = STATE / 50.0;
    check_least(&p, backward * MICROS + 100);
    p.plan.state_slots = 1;
    check_least(&p, backward * MICROS + 50);
    p.costs.slower[OT_LANE_COMPUTE] = 2;
    check_least(&p, 2 * all);
    p.costs.slower[OT_LANE_H2D] = 2;
    check_least(&p, 2 * backward * MICROS + 100);
    p.plan.clip = false;
    check_least(&p, 2 * all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computing_is_the_passes_through_the_blocks),
        cmocka_unit_test(any_plan_computes_that_long),
        cmocka_unit_test(streamed_slabs_are_fetched_twice_a_round),
        cmocka_unit_test(ranks_gather_what_others_bring),
        cmocka_unit_test(activations_leave_and_come_back),
        cmocka_unit_test(key_groups_come_and_go),
        cmocka_unit_test(updates_move_state_and_gradients),
        cmocka_unit_test(sums_leave_between_rounds),
        cmocka_unit_test(directions_share_the_link_and_the_disks),
        cmocka_unit_test(updates_wait_for_the_decision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
