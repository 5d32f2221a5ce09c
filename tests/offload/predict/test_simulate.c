/* Schedules with times known on paper, properties of any plan's schedule, and schedules of real models. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/predict/bound.h"
#include "offload/predict/simulate.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static void check_near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want) + 1e-12)) /* sums of a few exact numbers */
        fail_msg("%s: %.15g, not %.15g", what, got, want);
}

/* ---- schedules on paper ---- */

enum { MOST_TASKS = 16, MOST_DEPS = 4 };

/* A schedule made task by task, in fp32, on a machine that moves one parameter per second on every path. */
struct hand {
    struct ot_chain chain;
    struct ot_slab_spec slab[1];
    struct ot_plan plan;
    struct ot_buffer disk;
    struct ot_layout layout;
    struct ot_costs costs;
    struct ot_task tasks[MOST_TASKS];
    struct ot_access accesses[MOST_TASKS]; /* of nvme tasks */
    struct ot_dep deps[MOST_TASKS][MOST_DEPS];
    int lanes[OT_LANE_COUNT][MOST_TASKS];
    struct ot_schedule schedule;
};

static void open_hand(struct hand *h) {
    memset(h, 0, sizeof *h);
    h->chain.dtype = OT_F32;
    h->chain.slabs = h->slab;
    h->disk = (struct ot_buffer){.tier = OT_TIER_NVME, .bytes = 4 * 100, .n_tiles = 100};
    h->layout = (struct ot_layout){.n_buffers = 1, .buffers = &h->disk};
    h->plan = (struct ot_plan){.micro_tokens = 10, .max_micro = 3};
    h->schedule.tasks = h->tasks;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        h->schedule.lane_tasks[l] = h->lanes[l];
    h->costs.rates = (struct ot_rates){.h2d_bytes = 4,
                                       .d2h_bytes = 4,
                                       .device_bytes = 28,
                                       .adamw_bytes = {28},
                                       .nvme_read_bytes = 4,
                                       .nvme_write_bytes = 4};
}

/* Adds a task of a whole number of seconds. */
static int add(struct hand *h, enum ot_lane_id lane, int seconds) {
    static const enum ot_task_kind kinds[OT_LANE_COUNT] = {
        OT_TASK_FETCH,      OT_TASK_UPDATE_GPU, OT_TASK_GRAD_OUT,  OT_TASK_GATHER,
        OT_TASK_UPDATE_CPU, OT_TASK_NVME_READ,  OT_TASK_NVME_WRITE};
    int i = h->schedule.n_tasks++;
    struct ot_task *task = &h->tasks[i];
    assert_true(i < MOST_TASKS);
    task->kind = seconds == 0 ? OT_TASK_DECIDE : kinds[lane];
    task->lane = lane;
    task->block = task->micro = task->tile = task->frame = task->cache = -1;
    task->slab = kinds[lane] == OT_TASK_GATHER || kinds[lane] == OT_TASK_FETCH ? 0 : -1;
    task->span.n = seconds;
    task->deps = h->deps[i];
    task->n_accesses = lane >= OT_LANE_NVME_READ;
    h->accesses[i] = (struct ot_access){.n_tiles = seconds};
    task->accesses = &h->accesses[i];
    h->lanes[lane][h->schedule.lane_count[lane]++] = i;
    return i;
}

static void after(struct hand *h, int task, int before, bool previous_step) {
    assert_true(h->tasks[task].n_deps < MOST_DEPS);
    h->deps[task][h->tasks[task].n_deps++] = (struct ot_dep){before, previous_step, false};
}

/* Adds the decision at the end of every step. It takes no time. */
static int decide(struct hand *h) {
    return add(h, OT_LANE_CPU, 0);
}

static struct ot_prediction run(struct hand *h, struct ot_trace *trace) {
    struct ot_prediction p;
    check_ok(ot_simulate(&(struct ot_simulation){&h->chain, &h->plan, &h->layout, &h->schedule, &h->costs},
                         trace, &p));
    double sum = p.busy[OT_LANE_COMPUTE] + p.exposed_host;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        sum += p.exposed[l];
    check_near("busy and exposed", sum, p.step_seconds);
    check_near("tokens", p.tokens, 30);
    return p;
}

static void a_chain_is_the_sum_of_its_tasks(void **state) {
    (void)state;
    static const enum ot_lane_id lanes[] = {OT_LANE_NVME_READ, OT_LANE_H2D, OT_LANE_COMPUTE,
                                            OT_LANE_D2H,       OT_LANE_CPU, OT_LANE_NVME_WRITE};
    struct hand h;
    open_hand(&h);
    int last = -1, first = 0;
    for (int i = 0; i < 6; i++) {
        int task = add(&h, lanes[i], i + 1);
        if (last >= 0)
            after(&h, task, last, false);
        last = task;
    }
    int end = decide(&h);
    after(&h, end, last, false);
    after(&h, first, end, true);
    struct ot_prediction p = run(&h, NULL);
    check_near("step", p.step_seconds, 21);
    for (int i = 0; i < 6; i++) {
        check_near(ot_lane_name(lanes[i]), p.busy[lanes[i]], i + 1);
        check_near("exposed", p.exposed[lanes[i]], lanes[i] == OT_LANE_COMPUTE ? 0 : i + 1);
        double bytes[] = {4 * 1, 4 * 2, 0, 4 * 4, 28 * 5, 4 * 6};
        check_near("bytes", p.bytes[lanes[i]], bytes[i]);
    }
    check_near("host", p.exposed_host, 0);
    h.costs.rates.task_seconds = 0.5;
    check_near("with starts", run(&h, NULL).step_seconds, 21 + 7 * 0.5);
}

/* Lanes that do not wait for each other overlap. The longest lane is the length of the step. */
static void lanes_overlap(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h);
    int fetch = add(&h, OT_LANE_H2D, 3), compute = add(&h, OT_LANE_COMPUTE, 5), end = decide(&h);
    after(&h, end, compute, false);
    after(&h, end, fetch, false);
    struct ot_prediction p = run(&h, NULL);
    check_near("step", p.step_seconds, 5);
    check_near("h2d", p.busy[OT_LANE_H2D], 3);
    check_near("exposed", p.exposed[OT_LANE_H2D], 0);
}

/* Two lanes between one decision and the next. */
static struct ot_prediction run_pair(struct hand *h, enum ot_lane_id a, int seconds_a, enum ot_lane_id b,
                                     int seconds_b) {
    int first = add(h, a, seconds_a), second = add(h, b, seconds_b), end = decide(h);
    after(h, end, first, false);
    after(h, end, second, false);
    after(h, first, end, true);
    after(h, second, end, true);
    return run(h, NULL);
}

static void the_link_is_shared(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h);
    h.costs.rates.both_bytes = 6; /* three quarters of the sum of both directions */
    check_near("both", run_pair(&h, OT_LANE_H2D, 6, OT_LANE_D2H, 6).step_seconds, 8);
    open_hand(&h);
    /* Both run for 4 seconds and 3 seconds of each are done; then the longer one runs alone. */
    h.costs.rates.both_bytes = 6;
    check_near("uneven", run_pair(&h, OT_LANE_H2D, 3, OT_LANE_D2H, 6).step_seconds, 4 + 3);
    open_hand(&h);
    h.costs.rates.both_bytes = 3; /* less than one direction alone, which is impossible */
    check_near("half duplex", run_pair(&h, OT_LANE_H2D, 3, OT_LANE_D2H, 6).step_seconds, 9);
}

static void the_disks_are_shared(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h);
    h.costs.rates.nvme_mixed_bytes = 4;
    check_near("mixed", run_pair(&h, OT_LANE_NVME_READ, 2, OT_LANE_NVME_WRITE, 5).step_seconds, 7);
    open_hand(&h);
    check_near("unknown", run_pair(&h, OT_LANE_NVME_READ, 2, OT_LANE_NVME_WRITE, 5).step_seconds, 5);
    open_hand(&h); /* one core: the checksums of 4 bytes a second take half of it, the optimizer all of it */
    h.costs.rates.crc_bytes = 8;
    h.costs.rates.cores = 1;
    check_near("checksums", run_pair(&h, OT_LANE_NVME_READ, 4, OT_LANE_CPU, 4).step_seconds, 6);
    /* Cores for all; a checksum reads the 4 bytes a second once more, the optimizer moves 28. */
    open_hand(&h);
    h.costs.rates.crc_bytes = 1000;
    h.costs.rates.triad_bytes = 32;
    check_near("their memory", run_pair(&h, OT_LANE_NVME_READ, 4, OT_LANE_CPU, 4).step_seconds, 4.5);
}

static void the_host_is_shared(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h);
    h.costs.rates.cores = 2;
    check_near("a gpu needs no cores", run_pair(&h, OT_LANE_COMPUTE, 3, OT_LANE_CPU, 3).step_seconds, 3);
    open_hand(&h);
    h.costs.rates.cores = 1;
    check_near("nor does its link", run_pair(&h, OT_LANE_H2D, 3, OT_LANE_CPU, 3).step_seconds, 3);
    open_hand(&h);
    h.costs.rates.cores = 2;
    h.costs.rates.device_is_host = true;
    check_near("two that want all", run_pair(&h, OT_LANE_COMPUTE, 2, OT_LANE_CPU, 6).step_seconds, 8);
    open_hand(&h);
    h.costs.rates.cores = 2;
    h.costs.rates.device_is_host = true;
    h.costs.rates.device_threads = h.costs.rates.optimizer_threads = 1;
    check_near("a core each", run_pair(&h, OT_LANE_COMPUTE, 2, OT_LANE_CPU, 6).step_seconds, 6);
    open_hand(&h);
    h.costs.rates.cores = 2;
    h.costs.rates.device_is_host = true; /* three threads on two cores */
    check_near("and one", run_pair(&h, OT_LANE_COMPUTE, 2, OT_LANE_H2D, 2).step_seconds, 3);
    open_hand(&h);
    h.costs.rates.triad_bytes = 30; /* 28 for the optimizer and 4 for the copy */
    check_near("memory", run_pair(&h, OT_LANE_CPU, 15, OT_LANE_H2D, 15).step_seconds, 16);
}

/* A gather of the smallest share, one byte a second, beside a task of another lane. */
static struct ot_prediction run_gather(struct hand *h, enum ot_lane_id lane, int seconds) {
    h->costs.rates.comm_bytes = 1;
    h->slab[0].n_params = 2 * OT_SHARD_ALIGN_PARAMS;
    h->plan.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_FULL};
    return run_pair(h, OT_LANE_COMM, 1, lane, seconds);
}

/* The communicator uses what its way through the machine uses, and no disk. */
static void the_way_of_the_communicator_is_shared(void **state) {
    (void)state;
    const int unit = 4 * OT_SHARD_ALIGN_PARAMS; /* bytes of the smallest share */
    struct hand h;
    open_hand(&h);
    h.costs.rates.nvme_mixed_bytes = 4;
    check_near("disks", run_gather(&h, OT_LANE_NVME_READ, unit).step_seconds, unit);
    open_hand(&h);
    h.costs.rates.both_bytes = 4; /* of the link; the copy wants all of it */
    check_near("elsewhere", run_gather(&h, OT_LANE_H2D, unit).step_seconds, unit);
    open_hand(&h);
    h.costs.rates.both_bytes = 4;
    h.costs.rates.comm_link = 2; /* wants half of the link: 6 bytes/s of 4 */
    check_near("the link", run_gather(&h, OT_LANE_H2D, unit).step_seconds, 1.5 * unit);
    open_hand(&h);
    h.costs.rates.triad_bytes = 28;
    h.costs.rates.comm_memory = 14;
    check_near("memory", run_gather(&h, OT_LANE_CPU, unit).step_seconds, 1.5 * unit);
    open_hand(&h);
    h.costs.rates.cores = 1;
    h.costs.rates.device_is_host = true;
    check_near("a core", run_gather(&h, OT_LANE_CPU, unit).step_seconds, 2 * unit);
    open_hand(&h);
    h.costs.rates.comm_seconds = 10;
    check_near("a start", run_gather(&h, OT_LANE_CPU, 1).step_seconds, unit + 10);
}

/* A task that does not use the contended resource goes on at full speed. */
static void speeds_are_max_min_fair(void **state) {
    (void)state;
    struct hand h;
    struct ot_trace *trace;
    struct ot_trace_summary s;
    open_hand(&h);
    h.costs.rates.both_bytes = 4;
    check_ok(ot_trace_open(&h.chain, 1000, &trace));
    int in = add(&h, OT_LANE_H2D, 4), out = add(&h, OT_LANE_D2H, 4), compute = add(&h, OT_LANE_COMPUTE, 6);
    int end = decide(&h), all[] = {in, out, compute};
    for (int i = 0; i < 3; i++) {
        after(&h, end, all[i], false);
        after(&h, all[i], end, true);
    }
    check_near("step", run(&h, trace).step_seconds, 8);
    check_ok(ot_trace_summarise(trace, &s));
    check_near("compute", s.busy[OT_LANE_COMPUTE] / (double)s.steps, 6);
    check_near("copies", s.busy[OT_LANE_H2D] / (double)s.steps, 8);
    ot_trace_close(trace);
}

/* A fetch may run ahead of the computing by as many blocks as there are slots. */
static void rings_run_ahead(void **state) {
    (void)state;
    enum { BLOCKS = 4 };
    static const double want[] = {0, 2 * BLOCKS, BLOCKS, BLOCKS};
    for (int slots = 1; slots <= 3; slots++) {
        struct hand h;
        int fetch[BLOCKS], compute[BLOCKS];
        open_hand(&h);
        for (int b = 0; b < BLOCKS; b++) {
            fetch[b] = add(&h, OT_LANE_H2D, 1);
            compute[b] = add(&h, OT_LANE_COMPUTE, 1);
            after(&h, compute[b], fetch[b], false);
        }
        for (int b = 0; b < BLOCKS; b++) /* the last reader of the slot */
            after(&h, fetch[b], compute[(b - slots + BLOCKS) % BLOCKS], b < slots);
        after(&h, decide(&h), compute[BLOCKS - 1], false);
        struct ot_prediction p = run(&h, NULL);
        check_near("step", p.step_seconds, want[slots]);
        check_near("exposed", p.exposed[OT_LANE_H2D], slots == 1 ? BLOCKS : 0);
    }
}

/* The update that the next forward needs first runs first. The older step's updates run before the newer
 * step's. */
static void the_earliest_deadline_goes_first(void **state) {
    (void)state;
    enum { UPDATES = 3 };
    struct hand h;
    open_hand(&h);
    int compute[UPDATES], update[UPDATES];
    for (int i = 0; i < UPDATES; i++)
        compute[i] = add(&h, OT_LANE_COMPUTE, 2);
    int end = decide(&h);
    h.tasks[end].deadline = -1;
    after(&h, end, compute[UPDATES - 1], false);
    for (int i = 0; i < UPDATES; i++) { /* listed in the wrong order */
        update[i] = add(&h, OT_LANE_CPU, 2);
        h.tasks[update[i]].deadline = UPDATES - 1 - i;
        after(&h, update[i], end, false);
        after(&h, compute[UPDATES - 1 - i], update[i], true);
    }
    /* Each block's update runs while the block before it computes. */
    struct ot_prediction p = run(&h, NULL);
    check_near("step", p.step_seconds, 2 + 2 * UPDATES);
    check_near("exposed", p.exposed[OT_LANE_CPU], 2);
    for (int i = 0; i < UPDATES; i++)
        h.tasks[update[i]].deadline = i; /* the first block's update comes last */
    p = run(&h, NULL);
    check_near("late", p.step_seconds, 2 * UPDATES + 2 * UPDATES);
    check_near("all exposed", p.exposed[OT_LANE_CPU], 2 * UPDATES);
}

/* Deadlines also order two tasks, the smallest number that has an order. */
static void the_earlier_of_two_goes_first(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h);
    int late = add(&h, OT_LANE_NVME_WRITE, 3), soon = add(&h, OT_LANE_NVME_WRITE, 2);
    int compute = add(&h, OT_LANE_COMPUTE, 5), end = decide(&h);
    h.tasks[late].deadline = 1;
    after(&h, compute, soon, false);
    after(&h, end, compute, false);
    after(&h, end, late, false);
    after(&h, late, end, true);
    after(&h, soon, end, true);
    check_near("step", run(&h, NULL).step_seconds, 7);
}

static void two_steps_are_in_flight(void **state) {
    (void)state;
    struct hand h;
    open_hand(&h);
    /* Only the step after the next one waits for the write of its step. */
    int compute = add(&h, OT_LANE_COMPUTE, 1), end = decide(&h), write = add(&h, OT_LANE_NVME_WRITE, 10);
    after(&h, end, compute, false);
    after(&h, write, end, false);
    check_near("step", run(&h, NULL).step_seconds, 10);
}

static void what_cannot_be_predicted_is_refused(void **state) {
    (void)state;
    struct hand h;
    struct ot_prediction p;
    open_hand(&h);
    struct ot_simulation simulation = {&h.chain, &h.plan, &h.layout, &h.schedule, &h.costs};
    int a = add(&h, OT_LANE_H2D, 1), b = add(&h, OT_LANE_COMPUTE, 1), end = decide(&h);
    after(&h, end, b, false);
    after(&h, a, b, false);
    after(&h, b, a, false);
    check_fails(ot_simulate(&simulation, NULL, &p), OT_E_INTERNAL, "nothing can run");
    h.tasks[a].n_deps = 0;
    check_ok(ot_simulate(&simulation, NULL, &p));
    h.costs.rates.h2d_bytes = 0;
    check_fails(ot_simulate(&simulation, NULL, &p), OT_E_USAGE, "lane h2d");
}

/* ---- any plan ---- */

static struct ot_rates some_rates(uint64_t seed) {
    double r[8];
    for (int i = 0; i < 8; i++) /* from a tenth of a typical machine's rate to ten times it */
        r[i] = pow(10, 2 * ot_random_unit(seed, 7, (uint64_t)i) - 1);
    return (struct ot_rates){.product_flops = 1e13 * r[0],
                             .attention = {[OT_HEAD_128] = {5e12 * r[0], 5e12 * r[0]}},
                             .device_bytes = 5e11 * r[1],
                             .h2d_bytes = 2e10 * r[2],
                             .d2h_bytes = 2e10 * r[2],
                             .both_bytes = 3e10 * r[2],
                             .triad_bytes = 1e11 * r[3],
                             .adamw_bytes = {8e10 * r[3]},
                             .cores = 1 + (int)(seed % 7),
                             .device_is_host = seed % 3 == 0,
                             .nvme_read_bytes = 5e9 * r[4],
                             .nvme_write_bytes = 2e9 * r[4],
                             .nvme_mixed_bytes = 4e9 * r[4],
                             .crc_bytes = 1e10 * r[5]};
}

/* A request that asks for a part of everything. It returns false if no plan fits. */
static bool some_plan(struct fake *f, uint64_t seed, struct ot_plan *plan) {
    static const enum ot_dtype dtypes[] = {OT_F32, OT_BF16, OT_F16};
    fake_open_small(f, dtypes[seed % 3], seed & 1);
    struct ot_plan_request rq = fake_request(f);
    rq.budget_bytes[OT_TIER_GPU] = (size_t)(96 + ot_random_below(seed, 1, 0, 400)) * MIB;
    rq.clip = f->dtype == OT_F16 || (seed & 2);
    rq.step_sequences = 1 + (int64_t)ot_random_below(seed, 1, 1, 12);
    rq.micro_sequences = (int64_t)ot_random_below(seed, 1, 2, 3);
    rq.slots = (int)ot_random_below(seed, 1, 3, 5);
    if (seed % 4 == 1)
        rq.weights = rq.state = OT_HOME_HOST;
    if (seed % 5 == 2)
        rq.activations = OT_HOME_HOST;
    return ot_plan_make(&rq, plan) == 0;
}

static struct ot_prediction predict(const struct fake *f, const struct ot_plan *plan,
                                    const struct ot_rates *rates) {
    struct ot_costs costs;
    struct ot_prediction p;
    check_ok(ot_costs_estimate(&f->chain, rates, 512, plan->micro_tokens, &costs));
    check_ok(ot_simulate_plan(&f->chain, plan, &costs, &p));
    ot_costs_free(&costs);
    return p;
}

static void check_sound(const struct ot_prediction *p) {
    double sum = p->busy[OT_LANE_COMPUTE] + p->exposed_host;
    assert_true(p->step_seconds > 0 && p->flops >= p->model_flops && p->model_flops > 0);
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        sum += p->exposed[l];
        assert_true(p->exposed[l] >= 0 && p->exposed[l] <= p->step_seconds);
        assert_true(p->busy[l] >= 0 && p->busy[l] <= p->step_seconds * (1 + 1e-9));
        assert_true(p->bytes[l] >= 0);
    }
    check_near("busy and exposed", sum, p->step_seconds);
}

static void any_plan(void **state) {
    (void)state;
    int made = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct fake f;
        struct ot_plan plan;
        if (!some_plan(&f, seed, &plan))
            continue;
        struct ot_rates rates = some_rates(seed), twice = rates;
        struct ot_prediction p = predict(&f, &plan, &rates), again = predict(&f, &plan, &rates);
        made++;
        check_sound(&p);
        assert_memory_equal(&p, &again, sizeof p);
        check_near("alone", p.flops / rates.product_flops <= p.step_seconds, 1);
        check_near("the way in", p.bytes[OT_LANE_H2D] / rates.h2d_bytes <= p.step_seconds, 1);
        double *all[] = {&twice.product_flops,
                         &twice.attention[OT_HEAD_128].forward,
                         &twice.attention[OT_HEAD_128].backward,
                         &twice.device_bytes,
                         &twice.h2d_bytes,
                         &twice.d2h_bytes,
                         &twice.both_bytes,
                         &twice.triad_bytes,
                         &twice.adamw_bytes[0],
                         &twice.nvme_read_bytes,
                         &twice.nvme_write_bytes,
                         &twice.nvme_mixed_bytes,
                         &twice.crc_bytes};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            *all[i] *= 2;
            struct ot_prediction faster = predict(&f, &plan, &twice);
            /* Lanes that choose among ready tasks may choose worse on a faster machine (Graham's
             * anomalies). */
            if (faster.step_seconds > p.step_seconds * 1.02)
                fail_msg("plan %d: with twice the rate %zu a step takes %g s, without %g s", (int)seed, i,
                         faster.step_seconds, p.step_seconds);
        }
        check_near("all of it twice", predict(&f, &plan, &twice).step_seconds, p.step_seconds / 2);
        ot_plan_free(&plan);
    }
    assert_true(made > 30);
}

/* A search that gives up early rejects what is too slow and nothing else. */
static void check_limits(const struct ot_chain *chain, const struct ot_plan *plan,
                         const struct ot_costs *costs, const struct ot_prediction *p) {
    static const double shares[] = {0.2, 0.8, 0.97, 0.9999};
    struct ot_prediction within, before;
    memset(&before, 7, sizeof before);
    within = before;
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        assert_int_equal(ot_simulate_faster(chain, plan, costs, shares[i] * p->step_seconds, &within), 0);
    assert_memory_equal(&within, &before, sizeof within);
    assert_int_equal(ot_simulate_faster(chain, plan, costs, 1.0001 * p->step_seconds, &within), 1);
    assert_memory_equal(&within, p, sizeof within);
}

/* The bounds are never more than the simulated time. Returns the share of it that they prove. */
static double check_bounds(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_costs *costs, const struct ot_prediction *p) {
    enum ot_keep_level level = OT_KEEP_NONE;
    double least = ot_plan_least_seconds(chain, plan, costs);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (plan->kept[t].blocks > 0 && plan->kept[t].level > level)
            level = plan->kept[t].level;
    const struct ot_shard *all = &plan->shard;
    int n = plan->max_micro;
    double computing = ot_least_compute_seconds(chain, all, costs, plan->micro_tokens, n, level);
    assert_true(least <= p->step_seconds * (1 + 1e-9) && computing <= least * (1 + 1e-9));
    assert_true(computing >= ot_least_compute_seconds(chain, all, costs, plan->micro_tokens, n, OT_KEEP_ALL));
    return fmin(least, computing) / p->step_seconds;
}

/* The same where the first backward of a round is cheaper. */
static void check_first(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_costs *costs) {
    struct ot_prediction p;
    for (int b = 0; b < chain->n_blocks; b++)
        costs->blocks[b].first = -0.9 * ot_line_at(costs->blocks[b].backward, plan->micro_tokens);
    check_ok(ot_simulate_plan(chain, plan, costs, &p));
    check_bounds(chain, plan, costs, &p);
}

/* Where computing takes no time, the bound shows whether boundaries leave the device. Returns it. */
static bool check_links(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_rates *given) {
    struct ot_plan at_home = *plan;
    struct ot_rates rates = *given;
    struct ot_costs costs;
    rates.product_flops *= 1e6, rates.device_bytes *= 1e6, rates.adamw_bytes[0] *= 1e6;
    rates.attention[OT_HEAD_128].forward *= 1e6, rates.attention[OT_HEAD_128].backward *= 1e6;
    check_ok(ot_costs_estimate(chain, &rates, TINY_SEQUENCE, plan->micro_tokens, &costs));
    at_home.activations = OT_HOME_GPU;
    bool leave =
        ot_plan_least_seconds(chain, plan, &costs) > 1.001 * ot_plan_least_seconds(chain, &at_home, &costs);
    assert_true(!leave || plan->activations != OT_HOME_GPU);
    ot_costs_free(&costs);
    return leave;
}

/* The schedules of the engine's own tests end, and their traces agree with the prediction. */
static void real_schedules_end(void **state) {
    (void)state;
    static const enum ot_home homes[2] = {OT_HOME_GPU, OT_HOME_HOST};
    double proved = 0;
    int leaving = 0;
    for (unsigned mix = 0; mix < 32; mix++) {
        struct tiny_run run;
        struct ot_model *model;
        struct ot_layout layout;
        struct ot_schedule schedule;
        struct ot_costs costs;
        struct ot_prediction p, draft;
        struct ot_trace *trace;
        struct ot_trace_summary s;
        struct ot_rates rates = some_rates(mix);
        tiny_defaults(&run, 3, mix & 1, mix & 2 ? OT_BF16 : OT_F32);
        run.clip = mix & 4 ? 1.0f : 0;
        tiny_plan(&run, homes[mix >> 3 & 1], OT_HOME_HOST, homes[mix >> 4], 1 + (int)mix % 3);
        run.plan.state_slots = 1 + (int)mix % 4;
        tiny_random_rounds(&run, mix);
        tiny_random_kept(&run, mix, OT_TIER_HOST);
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1 + mix % 7, mix);
        check_ok(ot_model_open(&run.config, run.dtype, TINY_SEQUENCE, &model));
        const struct ot_chain *chain = ot_model_chain(model);
        check_ok(ot_layout_make(chain, &run.plan, &layout));
        check_ok(ot_schedule_make_train(chain, &run.plan, &layout, &schedule));
        check_ok(ot_costs_estimate(chain, &rates, TINY_SEQUENCE, run.plan.micro_tokens, &costs));
        check_ok(ot_trace_open(chain, 1 << 20, &trace));
        check_ok(
            ot_simulate(&(struct ot_simulation){chain, &run.plan, &layout, &schedule, &costs}, trace, &p));
        check_sound(&p);
        check_ok(ot_simulate_plan(chain, &run.plan, &costs, &draft)); /* implied edges do not count */
        assert_memory_equal(&draft, &p, sizeof p);
        check_limits(chain, &run.plan, &costs, &p);
        proved = fmax(proved, check_bounds(chain, &run.plan, &costs, &p));
        leaving += check_links(chain, &run.plan, &rates);
        check_first(chain, &run.plan, &costs);
        check_ok(ot_trace_summarise_between(trace, 2, 4, &s));
        check_near("step", s.seconds / 2, p.step_seconds);
        assert_int_equal(s.steps, 2);
        check_fails(ot_trace_summarise_between(trace, 5, 6, &s), OT_E_USAGE, "from 5 to 6");
        check_fails(ot_trace_summarise_between(trace, 3, 3, &s), OT_E_USAGE, "from 3 to 3");
        ot_trace_close(trace);
        ot_costs_free(&costs);
        ot_schedule_free(&schedule);
        ot_layout_free(&layout);
        ot_plan_free(&run.plan);
        ot_model_close(model);
    }
    assert_true(leaving > 2);
    assert_true(proved > 0.8); /* in some plans compute hardly waits */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chain_is_the_sum_of_its_tasks),
        cmocka_unit_test(lanes_overlap),
        cmocka_unit_test(the_link_is_shared),
        cmocka_unit_test(the_disks_are_shared),
        cmocka_unit_test(the_host_is_shared),
        cmocka_unit_test(the_way_of_the_communicator_is_shared),
        cmocka_unit_test(speeds_are_max_min_fair),
        cmocka_unit_test(rings_run_ahead),
        cmocka_unit_test(the_earliest_deadline_goes_first),
        cmocka_unit_test(the_earlier_of_two_goes_first),
        cmocka_unit_test(two_steps_are_in_flight),
        cmocka_unit_test(what_cannot_be_predicted_is_refused),
        cmocka_unit_test(any_plan),
        cmocka_unit_test(real_schedules_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
