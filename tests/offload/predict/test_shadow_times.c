/* What updates ahead of the decision cost and save, by the simulator, and whether the planner finds them. */
#include <math.h>
#include <string.h>

#include "offload/plan/shadow_updates.h"
#include "offload/predict/planner.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

#define GB 1e9

/* A machine whose pool updates at `adamw` bytes a second. All state lives on the host. */
struct machine {
    struct fake fake;
    struct ot_costs costs;
    struct ot_plan_request request;
};

static void open_machine(struct machine *m, double adamw) {
    struct ot_rates rates = {.product_flops = 2e13,
                             .attention = {[OT_HEAD_128] = {1e13, 1e13}},
                             .device_bytes = 500 * GB,
                             .h2d_bytes = 25 * GB,
                             .d2h_bytes = 25 * GB,
                             .both_bytes = 40 * GB,
                             .triad_bytes = 1000 * GB,
                             .adamw_bytes = {adamw},
                             .cores = 8,
                             .task_seconds = 1e-6};
    fake_open_small(&m->fake, OT_BF16, false);
    check_ok(ot_costs_estimate(&m->fake.chain, &rates, 512, 4096, &m->costs));
    m->request = fake_request(&m->fake);
    m->request.weights = m->request.state = OT_HOME_HOST;
    m->request.fractions[OT_TILE_CPU] = 1;
    m->request.tile_params = 1 << 18;
    m->request.keep = OT_KEEP_NONE;
    m->request.slots = 3;
    m->request.rounds = 1;
}

static double step_of(const struct machine *m, double shadows, struct ot_prediction *out) {
    struct ot_plan_request rq = m->request;
    struct ot_plan plan;
    rq.shadows = shadows;
    check_ok(ot_plan_make(&rq, &plan));
    check_ok(ot_simulate_plan(rq.chain, &plan, &m->costs, out));
    assert_int_equal(plan.shadow_frames > 0, shadows > 0);
    ot_plan_free(&plan);
    return out->step_seconds;
}

/* A shadow moves the bytes of an update (26 a parameter in bf16), and reads and writes the tile once more (12
 * each); the update behind it moves none. */
static void shadows_move_more_bytes(void **state) {
    (void)state;
    struct machine m;
    struct ot_prediction without, with;
    double params = 0;
    open_machine(&m, 100 * GB);
    for (int s = 0; s < m.fake.chain.n_slabs; s++)
        params += (double)m.fake.chain.slabs[s].n_params;
    step_of(&m, 0, &without);
    step_of(&m, 1, &with);
    assert_true(fabs(without.bytes[OT_LANE_CPU] - 26 * params) < 1e-6 * params);
    assert_true(fabs(with.bytes[OT_LANE_CPU] - 50 * params) < 1e-6 * params);
    assert_true(with.bytes[OT_LANE_D2H] == without.bytes[OT_LANE_D2H]); /* norms leave once, only earlier */
    ot_costs_free(&m.costs);
}

/* With a pool that is slower than forward and faster than backward, shadows take a part of the wait. A pool
 * so slow that no shadow is made before the decision loses nothing by them; a fast pool has nothing to
 * gain. */
static void shadows_shorten_the_wait_for_the_pool(void **state) {
    (void)state;
    static const struct {
        double adamw, least, most; /* bounds of the step's time, as a share of the time without shadows */
    } cases[] = {{30 * GB, 0.5, 0.95}, {1000 * GB, 0.99, 1.01}, {0.5 * GB, 0.9, 1.01}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct machine m;
        struct ot_prediction p;
        open_machine(&m, cases[i].adamw);
        double without = step_of(&m, 0, &p), wait = p.exposed[OT_LANE_CPU], with = step_of(&m, 1, &p);
        print_message("pool at %.1f GB/s: %.4g s without shadows (%.4g s of it waiting), %.4g s with them\n",
                      cases[i].adamw / GB, without, wait, with);
        assert_true(with > cases[i].least * without && with < cases[i].most * without);
        ot_costs_free(&m.costs);
    }
}

/* The planner finds them where they help, leaves them out where they do not, and keeps what the user says. */
static void the_planner_chooses_shadows(void **state) {
    (void)state;
    static const double pools[2] = {30 * GB, 1000 * GB};
    for (int i = 0; i < 2; i++) {
        struct machine m;
        struct ot_planner_result chosen, forbidden;
        struct ot_plan again;
        open_machine(&m, pools[i]);
        m.request.shadows = OT_SHADOWS_CHOSEN;
        check_ok(ot_planner_choose(&m.request, &m.costs, &chosen));
        m.request.shadows = 0;
        check_ok(ot_planner_choose(&m.request, &m.costs, &forbidden));
        assert_int_equal(forbidden.plan.shadow_frames, 0);
        double gain = 1 - chosen.prediction.step_seconds / forbidden.prediction.step_seconds;
        assert_true(i == 0 ? chosen.plan.shadow_frames > 0 && gain > 0.05 : fabs(gain) < 0.02);
        check_ok(ot_plan_make(&chosen.forced, &again));
        assert_int_equal(again.shadow_frames, chosen.plan.shadow_frames);
        check_fits(&m.request, &chosen.plan);
        ot_plan_free(&again);
        ot_plan_free(&chosen.plan);
        ot_plan_free(&forbidden.plan);
        ot_costs_free(&m.costs);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shadows_move_more_bytes),
        cmocka_unit_test(shadows_shorten_the_wait_for_the_pool),
        cmocka_unit_test(the_planner_chooses_shadows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
