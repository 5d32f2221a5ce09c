/* The second prediction: a machine whose lanes are slower than its rates say is predicted right once the time
 * of its lanes was measured. The simulator stands for that machine. */
#include <math.h>
#include <string.h>

#include "offload/predict/simulate.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

#define GB 1e9

/* Rates at which every lane bounds a part of the step. On the cpu device the lanes share cores and memory. */
static struct ot_rates some_rates(bool device_is_host) {
    return (struct ot_rates){.product_flops = 1e13,
                             .attention = {[OT_HEAD_128] = {5e12, 5e12}},
                             .device_bytes = 500 * GB,
                             .h2d_bytes = 20 * GB,
                             .d2h_bytes = 20 * GB,
                             .both_bytes = 30 * GB,
                             .triad_bytes = 100 * GB,
                             .adamw_bytes = {80 * GB},
                             .cores = 4,
                             .device_is_host = device_is_host,
                             .nvme_read_bytes = 5 * GB,
                             .nvme_write_bytes = 2 * GB,
                             .nvme_mixed_bytes = 4 * GB,
                             .crc_bytes = 10 * GB,
                             .task_seconds = 1e-6};
}

/* Plan number `kind`: everything on the host; state streamed through the device; state on disk. */
enum { KINDS = 3 };

struct machine {
    struct fake fake;
    struct ot_plan plan;
    struct ot_costs costs;
    struct ot_prediction first;
};

static void open_machine(struct machine *m, int kind, bool device_is_host) {
    struct ot_rates rates = some_rates(device_is_host);
    fake_open_small(&m->fake, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&m->fake);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = OT_HOME_HOST;
    rq.state = kind == 2 ? OT_HOME_NVME : OT_HOME_HOST;
    rq.fractions[kind == 1 ? OT_TILE_STREAM : OT_TILE_CPU] = 1;
    rq.tile_params = 1 << 18;
    rq.slots = 3;
    rq.rounds = 1;
    check_ok(ot_plan_make(&rq, &m->plan));
    check_ok(ot_costs_estimate(&m->fake.chain, &rates, 512, m->plan.micro_tokens, &m->costs));
    check_ok(ot_simulate_plan(&m->fake.chain, &m->plan, &m->costs, &m->first));
}

static void close_machine(struct machine *m) {
    ot_costs_free(&m->costs);
    ot_plan_free(&m->plan);
}

/* The step of the machine whose lanes are that much slower than the costs say. */
static struct ot_prediction truth(const struct machine *m, const double slower[OT_LANE_COUNT]) {
    struct ot_costs costs = m->costs;
    struct ot_prediction p;
    memcpy(costs.slower, slower, sizeof costs.slower);
    check_ok(ot_simulate_plan(&m->fake.chain, &m->plan, &costs, &p));
    return p;
}

static struct ot_prediction predict_again(struct machine *m, const double busy[OT_LANE_COUNT]) {
    struct ot_prediction p;
    check_ok(ot_predict_measured(&m->fake.chain, &m->plan, &m->first, busy, &m->costs, &p));
    return p;
}

/* Lanes that slow each other down approach their measured time with each simulation. After three of them the
 * farthest of these plans is 2.6 % off. */
static void check_like(const char *what, const struct ot_prediction *got, const struct ot_prediction *want) {
    if (!(fabs(got->step_seconds / want->step_seconds - 1) < 0.03))
        fail_msg("%s: %g s, not %g s", what, got->step_seconds, want->step_seconds);
}

static void a_slow_lane_is_found(void **state) {
    (void)state;
    int bounds[OT_LANE_COUNT] = {0};
    for (int kind = 0; kind < KINDS; kind++)
        for (int on_host = 0; on_host < 2; on_host++)
            for (int lane = 0; lane < OT_LANE_COUNT; lane++) {
                struct machine m;
                double slower[OT_LANE_COUNT] = {0};
                open_machine(&m, kind, on_host);
                slower[lane] = kind + 2 * lane + 2; /* up to 16 times, so that each lane bounds a step */
                struct ot_prediction slow = truth(&m, slower), again = predict_again(&m, slow.busy);
                check_like(ot_lane_name((enum ot_lane_id)lane), &again, &slow);
                bounds[lane] += slow.step_seconds > 1.05 * m.first.step_seconds;
                close_machine(&m);
            }
    for (int lane = 0; lane < OT_LANE_COUNT; lane++) /* else the checks above say nothing about the lane */
        assert_true(bounds[lane] > 0 || lane == OT_LANE_COMM);
}

static void many_slow_and_fast_lanes_are_found(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        struct machine m;
        double slower[OT_LANE_COUNT];
        open_machine(&m, (int)(seed % KINDS), seed & 1);
        for (int l = 0; l < OT_LANE_COUNT; l++) /* from a third of the time to three times it */
            slower[l] = pow(3, 2 * ot_random_unit(seed, 1, (uint64_t)l) - 1);
        struct ot_prediction real = truth(&m, slower), again = predict_again(&m, real.busy);
        check_like("all lanes", &again, &real);
        close_machine(&m);
    }
}

/* If the lanes took the predicted time, or were not measured, nothing changes. */
static void a_right_prediction_stays(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct machine m;
        static const double nothing[OT_LANE_COUNT];
        open_machine(&m, kind, true);
        struct ot_prediction again = predict_again(&m, nothing);
        assert_memory_equal(&again, &m.first, sizeof again);
        again = predict_again(&m, m.first.busy);
        assert_true(fabs(again.step_seconds / m.first.step_seconds - 1) < 1e-9);
        close_machine(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_lane_is_found),
        cmocka_unit_test(many_slow_and_fast_lanes_are_found),
        cmocka_unit_test(a_right_prediction_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
