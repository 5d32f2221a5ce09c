/* Calibration finds cost lines that the test knows, works within the memory that it gets, and frees all
 * memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/device.h"
#include "offload/plan/layout.h"
#include "offload/predict/calibrate.h"
#include "tests/offload/fake_chain.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static const struct ot_rates rates = {.product_flops = 1e10,
                                      .attention = {[OT_HEAD_128] = {1e10, 1e10}},
                                      .device_bytes = 1e10,
                                      .h2d_bytes = 1e9,
                                      .d2h_bytes = 2e9,
                                      .both_bytes = 3e9};

static struct ot_device *open_device(size_t bytes) {
    struct ot_device *device;
    tiny_open_device(bytes, 1, 0, &device);
    return device;
}

static void close_device(struct ot_device *device) {
    struct ot_device_usage usage;
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes, usage.scratch_bytes);
    assert_int_equal(usage.pinned_bytes, 0);
    ot_device_close(device);
}

/* ---- blocks that take a known time: their calls sleep, and the lane waits for them ---- */

enum { FORWARD_US = 2000, BACKWARD_US = 4000, RECOMPUTE_US = 2000, FIRST_US = 3000, TOKEN_US = 20 };

static int calls[2][MAX_LAYERS + 2]; /* by direction: forward, backward */
/* Calls [first, first + n) of this block, in both directions, take DISTURBED_TIMES as long, as if another
 * program ran. */
static struct { int block, first, n; } disturbed;
enum { DISTURBED_TIMES = 4 };

static void sleep_for(int block, int64_t microseconds) {
    int before = calls[0][block] + calls[1][block] - 1;
    bool slow =
        block == disturbed.block && before >= disturbed.first && before < disturbed.first + disturbed.n;
    usleep((useconds_t)(microseconds * (slow ? DISTURBED_TIMES : 1)));
}

static void sleep_forward(const void *context, int block, const struct ot_block_run *run) {
    (void)context;
    calls[0][block]++;
    assert_true((run->x != NULL) == (block > 0) && run->y != NULL);
    sleep_for(block, FORWARD_US + TOKEN_US * run->batch.n_tokens);
}

static void sleep_backward(const void *context, int block, const struct ot_block_run *run) {
    const struct fake *f = context;
    calls[1][block]++;
    assert_true((run->y != NULL) == (block <= f->layers));
    int again = block == 0 || block > f->layers ? 0 : (OT_KEEP_ALL - (int)run->saved_level) * RECOMPUTE_US;
    sleep_for(block, again + (run->first ? FIRST_US : 0) + BACKWARD_US + TOKEN_US * run->batch.n_tokens);
}

static void fill_constants(const void *context, void *host_memory) {
    (void)context;
    memset(host_memory, 0, 4096);
}

static void open_sleeping(struct fake *f) {
    *f = (struct fake){.layers = 3,
                       .hidden = 16,
                       .layer_params = OT_SLAB_ALIGN_PARAMS,
                       .edge_params = 8 * OT_SLAB_ALIGN_PARAMS,
                       .vocab = 50,
                       .dtype = OT_BF16};
    fake_open(f);
    f->chain.forward = sleep_forward;
    f->chain.backward = sleep_backward;
    f->chain.fill_constants = fill_constants;
    memset(calls, 0, sizeof calls);
}

/* A sleep is never shorter than asked for, and longer on a busy machine. A line goes through two
 * measurements, so a disturbed measurement also makes the line too low elsewhere. The test then measures
 * everything again, ATTEMPTS times at most. */
enum { ATTEMPTS = 5 };

static bool is_near(double seconds, double microseconds) {
    return seconds >= 0.8e-6 * microseconds && seconds < 2.5e-6 * microseconds;
}

static bool has_known_lines(const struct ot_costs *costs) {
    bool known = true;
    for (int level = 0; level < OT_KEEP_ALL; level++)
        known = known && is_near(ot_line_at(costs->blocks[2].recompute[level], 256),
                                 (OT_KEEP_ALL - level) * RECOMPUTE_US);
    for (int b = 0; b < 5; b++) {
        const struct ot_block_cost *cost = &costs->blocks[b];
        known = known && is_near(cost->first, FIRST_US);
        for (int64_t n = 128; n <= 512; n *= 2) {
            double tokens_us = TOKEN_US * (double)n;
            /* training does not run the last block's forward alone */
            known = known && (b == 4 || is_near(ot_line_at(cost->forward, n), FORWARD_US + tokens_us));
            known = known && is_near(ot_line_at(cost->backward, n), BACKWARD_US + tokens_us);
        }
    }
    return known;
}

static void known_lines_are_found(void **state) {
    (void)state;
    tiny_needs_cpu(); /* a GPU's lane does not wait for the thread that enqueues */
    struct fake f;
    struct ot_costs costs;
    struct ot_device *device = open_device(16 << 20);
    open_sleeping(&f);
    struct ot_calibration c = {&f.chain, device, &rates, 256, 64, 1 << 20, 1.0, 0};
    bool known = false;
    for (int attempt = 0; attempt < ATTEMPTS && !known; attempt++) {
        if (attempt > 0)
            ot_costs_free(&costs);
        memset(calls, 0, sizeof calls);
        check_ok(ot_calibrate(&c, &costs));
        known = has_known_lines(&costs);
    }
    assert_true(known);
    assert_true(costs.is_measured);
    assert_int_equal(costs.n_blocks, 5);
    assert_int_equal(costs.row_tokens, 64);
    assert_true(costs.rates.h2d_bytes == rates.h2d_bytes && costs.rates.both_bytes == rates.both_bytes);
    assert_true(ot_line_at(costs.blocks[0].recompute[OT_KEEP_NONE], 256) == 0);
    /* One layer is measured for all layers. */
    assert_true(calls[0][1] > 0 && calls[0][2] == 0 && calls[0][3] == 0 && calls[0][4] == 0);
    assert_true(calls[1][0] > 0 && calls[1][1] > 0 && calls[1][4] > 0);
    assert_memory_equal(&costs.blocks[1], &costs.blocks[3], sizeof costs.blocks[1]);
    ot_costs_free(&costs);
    close_device(device);
}

/* For a while a layer takes four times as long: 30 calls after the first six. If the sizes did not take
 * turns, these would be five rounds of the smaller size, more than half of its rounds. Because they take
 * turns, two rounds of each size are disturbed. */
static void a_while_of_disturbance_tilts_no_line(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct fake f;
    struct ot_costs costs;
    struct ot_device *device = open_device(16 << 20);
    open_sleeping(&f);
    struct ot_calibration c = {&f.chain, device, &rates, 256, 64, 1 << 20, 20.0, 0};
    bool known = false;
    disturbed.block = 1;
    disturbed.first = 6;
    disturbed.n = 30;
    for (int attempt = 0; attempt < ATTEMPTS && !known; attempt++) {
        memset(calls, 0, sizeof calls);
        check_ok(ot_calibrate(&c, &costs));
        known = has_known_lines(&costs);
        ot_costs_free(&costs);
    }
    disturbed.n = 0;
    assert_true(known);
    close_device(device);
}

/* ---- a device whose clock falls ----
 *
 * The cpu device with a clock of its own, which only the calls of blocks move. They move it by more after
 * PATIENCE seconds in which nobody waited for the lane. */

static const double PATIENCE = 0.3, CALL = 1e-3, CALL_TOKEN = 1e-5;
static struct {
    double now, busy_since, longest, slower; /* longest: seconds without a pause */
    int n;
    struct {
        const struct ot_event *event;
        double at;
    } records[32];
} load;
static struct ot_device_api load_api;

static int load_sync(struct ot_lane *lane) {
    load.busy_since = load.now;
    return ot_cpu_device_api.lane_sync(lane);
}

static void load_record(struct ot_lane *lane, struct ot_event *event) {
    int i = 0;
    while (i < load.n && load.records[i].event != event)
        i++;
    assert_in_range(i, 0, 31);
    load.n = i == load.n ? i + 1 : load.n;
    load.records[i].event = event;
    load.records[i].at = load.now;
    ot_cpu_device_api.record(lane, event);
}

static int load_seconds(struct ot_event *event, double *out) {
    for (int i = 0; i < load.n; i++)
        if (load.records[i].event == event)
            *out = load.records[i].at;
    return 0;
}

static void compute(int calls_long, int64_t tokens) {
    double busy = load.now - load.busy_since, seconds = calls_long * (CALL + CALL_TOKEN * (double)tokens);
    load.now += seconds * (busy > PATIENCE ? load.slower : 1);
    load.longest = load.now - load.busy_since > load.longest ? load.now - load.busy_since : load.longest;
}

static void load_forward(const void *context, int block, const struct ot_block_run *run) {
    (void)context, (void)block;
    compute(1, run->batch.n_tokens);
}

static void load_backward(const void *context, int block, const struct ot_block_run *run) {
    (void)context, (void)block;
    compute(2 + (OT_KEEP_ALL - (int)run->saved_level) + run->first, run->batch.n_tokens);
}

/* Calibrates on a device that says whether it slows under load, and then computes `slower` times as long. */
static struct ot_costs calibrate_under_load(bool says, double slower, double seconds, int64_t run_tokens) {
    struct fake f;
    struct ot_costs costs;
    struct ot_device *device = open_device(16 << 20);
    load_api = ot_cpu_device_api;
    load_api.slows_under_load = says;
    load_api.lane_sync = load_sync;
    load_api.record = load_record;
    load_api.event_seconds = load_seconds;
    device->api = &load_api;
    memset(&load, 0, sizeof load);
    load.slower = slower;
    open_sleeping(&f);
    f.chain.forward = load_forward;
    f.chain.backward = load_backward;
    struct ot_calibration c = {&f.chain, device, &rates, 256, 64, 1 << 20, seconds, run_tokens};
    check_ok(ot_calibrate(&c, &costs));
    close_device(device);
    return costs;
}

static void check_seconds(double got, double want) {
    if (!(fabs(got - want) < 1e-9 * (1 + want))) /* sums of some thousand calls */
        fail_msg("%.12f s, not %.12f s", got, want);
}

/* All costs of all blocks are `slower` times those of calls after a pause. */
static void check_costs(struct ot_costs *costs, double slower) {
    const double call = CALL + CALL_TOKEN * 256;
    check_seconds(costs->under_load, slower);
    for (int b = 0; b < costs->n_blocks; b++) {
        const struct ot_block_cost *cost = &costs->blocks[b];
        if (b < costs->n_blocks - 1)
            check_seconds(ot_line_at(cost->forward, 256), slower * call);
        check_seconds(ot_line_at(cost->backward, 256), slower * 2 * call);
        check_seconds(cost->first, slower * (CALL + CALL_TOKEN * (256 + 128) / 2));
        if (b > 0 && b < costs->n_blocks - 1)
            check_seconds(ot_line_at(cost->recompute[OT_KEEP_NONE], 256),
                          slower * (OT_KEEP_ALL - OT_KEEP_NONE) * call);
    }
    ot_costs_free(costs);
}

static void blocks_cost_what_they_take_under_load(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct ot_costs costs = calibrate_under_load(true, 1.25, 1, 0);
    assert_true(load.longest > 0.9 && load.longest < 1.5);
    check_costs(&costs, 1.25);
    /* with hours of time, the load takes two seconds */
    costs = calibrate_under_load(true, 1.25, 3600, 0);
    assert_true(load.longest > 1.9 && load.longest < 2.5);
    check_costs(&costs, 1.25);
}

/* The load lasts as long as the measurements of blocks may take. */
static void a_short_run_gets_less_time(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct fake f;
    struct ot_costs costs;
    open_sleeping(&f);
    check_ok(ot_costs_estimate(&f.chain, &rates, 64, 256, &costs));
    double micro_batch = 0;
    for (int b = 0; b < costs.n_blocks; b++)
        micro_batch += ot_line_at(costs.blocks[b].forward, 256) + ot_line_at(costs.blocks[b].backward, 256);
    ot_costs_free(&costs);
    const struct { double run, want; /* seconds */ } cases[] = {{1e-6, 0.1}, {0.9, 0.1}, {5, 0.5}, {1e3, 1}};
    for (int i = 0; i < 4; i++) {
        int64_t tokens = (int64_t)ceil(cases[i].run / micro_batch * 256);
        costs = calibrate_under_load(true, 1, 1, tokens);
        if (load.longest < cases[i].want || load.longest > cases[i].want + 0.1)
            fail_msg("a run of %g s: a load of %g s, not %g s", cases[i].run, load.longest, cases[i].want);
        ot_costs_free(&costs);
    }
}

static void a_device_that_keeps_its_clock_has_no_factor(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct ot_costs costs = calibrate_under_load(true, 1, 1, 0);
    check_costs(&costs, 1);
    costs = calibrate_under_load(true, 0.9, 1, 0); /* faster than after a pause: the caches were warm */
    check_costs(&costs, 1);
    costs = calibrate_under_load(true, 4, 1, 0); /* another program */
    check_costs(&costs, 1);
    costs = calibrate_under_load(false, 1.25, 1, 0); /* the cpu device: no load at all */
    assert_true(load.longest < 0.1);
    check_costs(&costs, 1);
}

/* ---- decoding ---- */

enum { DECODE_US = 3000 };
static int decoded_slab;

static void sleep_decode(const void *context, int slab, struct ot_lane *lane,
                         const struct ot_slab_decoding *what) {
    (void)context, (void)lane;
    assert_true(what->encoded && what->weights && what->dense && what->parts && !what->used);
    decoded_slab = slab;
    usleep(DECODE_US);
}

static void encode_layer(struct fake *f, int slab, int64_t bytes) {
    f->slabs[slab].frozen = true;
    f->slabs[slab].encoded_bytes = bytes;
    f->chain.decode = sleep_decode;
}

/* The rate of the largest slab, unless it does not fit. */
static void decoding_has_its_own_rate(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct fake f;
    struct ot_costs costs;
    struct ot_device *device = open_device(16 << 20);
    open_sleeping(&f);
    struct ot_calibration c = {&f.chain, device, &rates, 128, 64, 1 << 20, 0.1, 0};
    check_ok(ot_calibrate(&c, &costs));
    assert_true(costs.decode_bytes == 0);
    ot_costs_free(&costs);
    encode_layer(&f, 1, OT_ENCODED_ALIGN);
    encode_layer(&f, 3, 3 * OT_ENCODED_ALIGN);
    double bytes = 3.0 * OT_ENCODED_ALIGN + 2.0 * OT_SLAB_ALIGN_PARAMS;
    bool known = false;
    for (int attempt = 0; attempt < ATTEMPTS && !known; attempt++) {
        check_ok(ot_calibrate(&c, &costs));
        known = is_near(bytes / costs.decode_bytes, DECODE_US);
        ot_costs_free(&costs);
    }
    assert_true(known && decoded_slab == 3);
    encode_layer(&f, 3, 256 * OT_ENCODED_ALIGN); /* 1 MiB, without the weights */
    check_ok(ot_calibrate(&c, &costs));
    assert_true(costs.decode_bytes == 0 && costs.is_measured);
    ot_costs_free(&costs);
    close_device(device);
}

/* The cost of an estimated block on a device that takes `under_load` times as long under a long load. */
static struct ot_block_cost slow_down(struct ot_block_cost cost, double under_load) {
    ot_line_scale(&cost.forward, under_load);
    ot_line_scale(&cost.backward, under_load);
    for (int level = 0; level < OT_KEEP_LEVELS; level++)
        ot_line_scale(&cost.recompute[level], under_load);
    cost.first *= under_load;
    return cost;
}

static void blocks_without_room_are_estimated(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs, estimate;
    struct ot_device *device = open_device(16 << 20);
    open_sleeping(&f);
    struct ot_calibration c = {&f.chain, device, &rates, 128, 64, 72 << 10, 0.1, 0};
    check_ok(ot_costs_estimate(&f.chain, &rates, 64, 128, &estimate));
    /* The layers fit into the memory with 64 tokens, the larger edges do not. */
    check_ok(ot_calibrate(&c, &costs));
    assert_true(costs.is_measured);
    assert_int_equal(calls[1][0] + calls[1][4], 0);
    for (int b = 0; b < 5; b += 4) {
        struct ot_block_cost want = slow_down(estimate.blocks[b], costs.under_load);
        assert_memory_equal(&costs.blocks[b], &want, sizeof want);
    }
    assert_true(costs.blocks[1].forward.per_token > estimate.blocks[1].forward.per_token);
    ot_costs_free(&costs);
    c.device_bytes = 1000;
    memset(calls, 0, sizeof calls);
    check_ok(ot_calibrate(&c, &costs));
    assert_false(costs.is_measured);
    assert_int_equal(calls[1][1], 0);
    for (int b = 0; b < 5; b++)
        assert_memory_equal(&costs.blocks[b], &estimate.blocks[b], sizeof estimate.blocks[b]);
    ot_costs_free(&costs);
    ot_costs_free(&estimate);
    close_device(device);
}

static void failures_leave_nothing(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    /* The device has less memory than the calibration may use. */
    struct ot_device *device = open_device(16 << 10);
    open_sleeping(&f);
    struct ot_calibration c = {&f.chain, device, &rates, 128, 64, 16 << 20, 0.1, 0};
    check_fails(ot_calibrate(&c, &costs), OT_E_BUDGET, "calibration");
    assert_null(costs.blocks);
    struct ot_rates none = {.h2d_bytes = 1, .d2h_bytes = 1, .both_bytes = 1};
    c.rates = &none;
    check_fails(ot_calibrate(&c, &costs), OT_E_USAGE, "rate of products");
    assert_null(costs.blocks);
    close_device(device);
}

/* ---- a real model ---- */

static void a_real_model_is_measured(void **state) {
    (void)state;
    static const enum ot_dtype dtypes[] = {OT_F32, OT_BF16, OT_F16};
    for (int i = 0; i < 6; i += tests_are_for_races() ? 3 : 1) {
        struct ot_model_config config = tiny_config(2, i & 1);
        struct ot_model *model;
        struct ot_costs costs;
        struct ot_rates without_copies = rates;
        struct ot_device *device = open_device(8 << 20);
        without_copies.both_bytes = 0;
        check_ok(ot_model_open(&config, dtypes[i / 2], TINY_SEQUENCE, &model));
        struct ot_calibration c = {ot_model_chain(model),
                                   device,
                                   &without_copies,
                                   4 * TINY_SEQUENCE,
                                   TINY_SEQUENCE,
                                   4 << 20,
                                   0.05,
                                   0};
        check_ok(ot_calibrate(&c, &costs));
        assert_true(costs.is_measured);
        for (int b = 0; b < costs.n_blocks; b++) {
            const struct ot_block_cost *cost = &costs.blocks[b];
            assert_true(b == 3 || ot_line_at(cost->forward, c.micro_tokens) > 0);
            assert_true(ot_line_at(cost->backward, c.micro_tokens) > 0);
            assert_true(ot_line_at(cost->recompute[OT_KEEP_NONE], c.micro_tokens) >= 0);
        }
        /* Copies run in pieces of 2 MiB. No machine needs a second for a piece, and none a nanosecond. */
        const double *copies[] = {&costs.rates.h2d_bytes, &costs.rates.d2h_bytes, &costs.rates.both_bytes};
        for (int k = 0; k < 3; k++)
            assert_true(*copies[k] > 1e7 && *copies[k] < 1e15);
        ot_costs_free(&costs);
        close_device(device);
        ot_model_close(model);
    }
}

/* Two layers of an encoder, three of a decoder, which compute more. */
static void both_kinds_of_layers_are_measured(void **state) {
    (void)state;
    const struct ot_model_config config = {.family = OT_FAMILY_T5,
                                           .n_layers = 5,
                                           .n_encoder_layers = 2,
                                           .hidden = 32,
                                           .ffn = 32,
                                           .n_heads = 4,
                                           .n_kv_heads = 4,
                                           .head_dim = 8,
                                           .vocab = 67,
                                           .max_position = 1 << 20,
                                           .norm = OT_NORM_RMS,
                                           .norm_eps = 1e-6f,
                                           .act = OT_ACT_RELU,
                                           .plain_mlp = true,
                                           .tied = true,
                                           .logit_divisor = 5,
                                           .positions = OT_POSITIONS_RELATIVE,
                                           .position_buckets = 8,
                                           .position_distance = 10,
                                           .attention_scale = 1,
                                           .init_std = 0.1};
    struct ot_model *model;
    struct ot_costs costs;
    struct ot_device *device = open_device(8 << 20);
    check_ok(ot_model_open(&config, OT_F32, TINY_SEQUENCE, &model));
    struct ot_calibration c = {ot_model_chain(model), device,  &rates, 4 * TINY_SEQUENCE,
                               TINY_SEQUENCE,         4 << 20, 0.05,   0};
    check_ok(ot_calibrate(&c, &costs));
    assert_true(costs.is_measured);
    assert_memory_equal(&costs.blocks[1], &costs.blocks[2], sizeof costs.blocks[1]);
    for (int b = 3; b <= 4; b++)
        assert_memory_equal(&costs.blocks[b], &costs.blocks[5], sizeof costs.blocks[b]);
    assert_memory_not_equal(&costs.blocks[1], &costs.blocks[5], sizeof costs.blocks[1]);
    ot_costs_free(&costs);
    close_device(device);
    ot_model_close(model);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_lines_are_found),
        cmocka_unit_test(a_while_of_disturbance_tilts_no_line),
        cmocka_unit_test(blocks_cost_what_they_take_under_load),
        cmocka_unit_test(a_short_run_gets_less_time),
        cmocka_unit_test(a_device_that_keeps_its_clock_has_no_factor),
        cmocka_unit_test(decoding_has_its_own_rate),
        cmocka_unit_test(blocks_without_room_are_estimated),
        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(a_real_model_is_measured),
        cmocka_unit_test(both_kinds_of_layers_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
