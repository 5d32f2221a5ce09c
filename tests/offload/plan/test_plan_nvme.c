/* The nvme tier in plans: what moves to the disks when the host is too small, in which order, and the error
 * when the disks are too small as well. */
#include <stdlib.h>
#include <string.h>

#include "offload/plan/layout.h"
#include "offload/schedule/schedule.h"
#include "offload/store/store.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

static int count_state(const struct ot_plan *plan) {
    int n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].state == OT_HOME_NVME;
    return n;
}

static int count_grads(const struct ot_plan *plan) {
    int n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].grads == OT_HOME_NVME;
    return n;
}

static int count_weights_on(const struct ot_plan *plan, enum ot_home home) {
    int n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].weights == home;
    return n;
}

static void all_budgets_are_used_or_cured(void **state) {
    (void)state;
    for (int mix = tests_are_few() ? 3 : 0; mix < 4; mix += tests_are_brief() ? 3 : 1) {
        struct fake f;
        int made = 0, refused = 0, spilled = 0;
        fake_open_small(&f, mix & 1 ? OT_BF16 : OT_F32, mix & 2);
        struct ot_plan_request rq = fake_request(&f);
        for (size_t gpu = 20; gpu <= 320; gpu += 100)
            for (size_t host = 0; host <= 240; host += tests_are_brief() ? 80 : 60)
                for (size_t nvme = 0; nvme <= 600; nvme += 200) {
                    struct ot_plan plan;
                    rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
                    rq.budget_bytes[OT_TIER_HOST] = host * MIB;
                    rq.budget_bytes[OT_TIER_NVME] = nvme * MIB;
                    bool planned = plan_or_cure(&rq, &plan);
                    made += planned;
                    refused += !planned;
                    if (!planned)
                        continue;
                    spilled += ot_ledger_total(&plan.ledger, OT_TIER_NVME) > 0;
                    ot_plan_free(&plan);
                }
        assert_true(made > 5 && refused > 5 && spilled > 5);
    }
}

/* State moves before boundaries, boundaries before gradients and gradients before weights, the last slabs
 * first. Never more moves than the host lacks. */
static void what_goes_first(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    int64_t before[5] = {0};
    int steps = 0, boundaries_wait = 0;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = OT_HOME_AUTO;
    rq.keep = OT_KEEP_NONE;
    rq.slots = 1;
    rq.rounds = 1;
    rq.tile_params = 2 << 20;
    rq.budget_bytes[OT_TIER_GPU] = 60 * MIB;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)4 << 30;
    for (size_t host = 400; host > 0 && plan_or_cure(&rq, &plan); host--, steps++) {
        int n = f.chain.n_slabs, on_nvme = count_state(&plan),
            weights = count_weights_on(&plan, OT_HOME_NVME), grads = count_grads(&plan);
        int64_t now[5] = {on_nvme, plan.activations == OT_HOME_NVME, grads, weights,
                          (int64_t)ot_ledger_total(&plan.ledger, OT_TIER_NVME)};
        for (int s = 0; s < n; s++) {
            assert_int_equal(plan.slabs[s].state == OT_HOME_NVME, s >= n - on_nvme);
            assert_int_equal(plan.slabs[s].grads == OT_HOME_NVME, s >= n - grads);
            assert_true(plan.slabs[s].weights != OT_HOME_NVME || s >= n - weights);
        }
        assert_true(plan.activations != OT_HOME_NVME || on_nvme == n);
        boundaries_wait += on_nvme == n && plan.activations == OT_HOME_HOST;
        assert_true(grads == 0 || (on_nvme == n && plan.activations != OT_HOME_HOST));
        assert_true(weights == 0 || grads == n);
        for (int i = 0; i < 5; i++) {
            assert_true(now[i] >= before[i]);
            before[i] = now[i];
        }
        rq.budget_bytes[OT_TIER_HOST] = (host - 1) * MIB;
        rq.micro_sequences = plan.micro_tokens / rq.sequence_tokens; /* kept: less memory, not less work */
        rq.activations = plan.activations == OT_HOME_GPU ? OT_HOME_GPU : OT_HOME_AUTO;
        ot_plan_free(&plan);
    }
    assert_true(steps > 50 && before[0] > 0 && before[2] > 0 && before[3] > 0);
    assert_true(boundaries_wait > 0);
}

static void nothing_goes_there_without_need(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = rq.state = OT_HOME_HOST;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_NVME), 0);
    assert_int_equal(plan.tile_slots + plan.host_weight_slots[0] + plan.host_weight_slots[1], 0);
    assert_int_equal(plan.host_grad_slots + count_grads(&plan), 0);
    ot_plan_free(&plan);
}

static void forced_homes_are_honoured_or_refused(void **state) {
    (void)state;
    for (int mix = 0; mix < 27; mix += tests_are_brief() ? 5 : getenv("OT_TEST_SLOW") ? 1 : 2) {
        static const enum ot_home homes[3] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME};
        struct fake f;
        struct ot_plan plan;
        fake_open_small(&f, mix & 1 ? OT_BF16 : OT_F32, mix & 2);
        struct ot_plan_request rq = fake_request(&f);
        rq.weights = homes[mix % 3];
        rq.state = homes[mix / 3 % 3];
        rq.activations = homes[mix / 9];
        bool nvme = rq.weights == OT_HOME_NVME || rq.state == OT_HOME_NVME || rq.activations == OT_HOME_NVME;
        if (nvme)
            check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "nvme: no disk is given");
        rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
        check_ok(ot_plan_make(&rq, &plan));
        check_fits(&rq, &plan);
        assert_int_equal(count_weights_on(&plan, rq.weights), plan.n_slabs);
        assert_int_equal(count_state(&plan), rq.state == OT_HOME_NVME ? plan.n_slabs : 0);
        assert_int_equal(plan.activations, rq.activations);
        assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_NVME) > 0, nvme);
        ot_plan_free(&plan);
    }
}

/* The disks hold two sides of everything homed there: twice the bytes that the host would have held. */
static void disks_hold_two_sides(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan host, nvme;
    size_t bytes[2] = {0};
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.state = OT_HOME_HOST;
    check_ok(ot_plan_make(&rq, &host));
    rq.state = OT_HOME_NVME;
    check_ok(ot_plan_make(&rq, &nvme));
    for (int i = 0; i < host.ledger.n; i++)
        if (host.ledger.entries[i].tier == OT_TIER_HOST &&
            strcmp(host.ledger.entries[i].name, "optimizer state") == 0)
            bytes[0] += host.ledger.entries[i].bytes;
    bytes[1] = ot_ledger_total(&nvme.ledger, OT_TIER_NVME);
    assert_int_equal(bytes[1], 2 * bytes[0]);
    ot_plan_free(&host);
    ot_plan_free(&nvme);
}

static size_t bytes_on_nvme(const struct ot_plan *plan, const char *name) {
    for (int i = 0; i < plan->ledger.n; i++)
        if (plan->ledger.entries[i].tier == OT_TIER_NVME && strcmp(plan->ledger.entries[i].name, name) == 0)
            return plan->ledger.entries[i].bytes;
    return 0;
}

/* State and weights have one more side for each content that is to be kept. Boundaries have two sides. */
static void pinned_contents_take_sides(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    struct ot_layout layout;
    size_t bytes[3] = {0};
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = rq.state = rq.activations = OT_HOME_NVME;
    for (rq.pinned_contents = 0; rq.pinned_contents <= OT_PLAN_MAX_PINNED_CONTENTS; rq.pinned_contents++) {
        static const char *const names[3] = {"weights", "optimizer state", "activations"};
        check_ok(ot_plan_make(&rq, &plan));
        check_ok(ot_layout_make(&f.chain, &plan, &layout));
        check_fits(&rq, &plan);
        assert_int_equal(layout.tier_bytes[OT_TIER_NVME], ot_ledger_total(&plan.ledger, OT_TIER_NVME));
        assert_int_equal(ot_store_bytes(layout.extent_bytes, layout.extent_sides, layout.n_extents),
                         layout.tier_bytes[OT_TIER_NVME]);
        for (int i = 0; i < 3; i++) {
            size_t sides = i < 2 ? 2 + (size_t)rq.pinned_contents : 2;
            if (rq.pinned_contents == 0)
                bytes[i] = bytes_on_nvme(&plan, names[i]) / 2;
            assert_true(bytes[i] > 0);
            assert_int_equal(bytes_on_nvme(&plan, names[i]), sides * bytes[i]);
        }
        ot_layout_free(&layout);
        ot_plan_free(&plan);
    }
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "15 contents to be kept on nvme; give 0 to 14");
    rq.pinned_contents = -1;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "-1 contents to be kept on nvme");
}

/* If the disks cannot hold the kept contents, the refusal names the bytes that they need. */
static void pinned_contents_count_against_the_budget(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = rq.state = OT_HOME_NVME;
    check_ok(ot_plan_make(&rq, &plan));
    rq.budget_bytes[OT_TIER_NVME] = ot_ledger_total(&plan.ledger, OT_TIER_NVME);
    ot_plan_free(&plan);
    check_ok(ot_plan_make(&rq, &plan));
    ot_plan_free(&plan);
    rq.pinned_contents = 1;
    assert_false(plan_or_cure(&rq, &plan)); /* also checks that the budget that the refusal names is enough */
    rq.budget_bytes[OT_TIER_NVME] = rq.budget_bytes[OT_TIER_NVME] / 2 * 3;
    check_ok(ot_plan_make(&rq, &plan));
    assert_int_equal(ot_ledger_total(&plan.ledger, OT_TIER_NVME), rq.budget_bytes[OT_TIER_NVME]);
    ot_plan_free(&plan);
}

/* A model of many layers needs little of the host beside a disk: slots for a few layers and tiles. All else
 * of it has another home. */
static void a_tenth_of_the_weights_is_enough_for_the_host(void **state) {
    (void)state;
    for (int rounds = 1; rounds <= 2; rounds++) {
        struct fake f = {.layers = 60,
                         .hidden = 512,
                         .layer_params = 1 << 20,
                         .edge_params = 1 << 20,
                         .vocab = 4096,
                         .dtype = OT_BF16};
        struct ot_plan plan;
        size_t weights = 0;
        fake_open(&f);
        struct ot_plan_request rq = fake_request(&f);
        for (int s = 0; s < f.chain.n_slabs; s++)
            weights += 2 * (size_t)f.chain.slabs[s].n_params;
        rq.rounds = rounds;
        rq.tile_params = 1 << 16;
        rq.budget_bytes[OT_TIER_GPU] = 200 * MIB;
        rq.budget_bytes[OT_TIER_HOST] = weights / 10;
        check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "short by");
        rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
        check_ok(ot_plan_make(&rq, &plan));
        check_fits(&rq, &plan);
        assert_int_equal(count_grads(&plan), plan.n_slabs);
        assert_true(plan.host_grad_slots > 1 && plan.tile_slots > 1);
        ot_plan_free(&plan);
        rq.grads = rq.sums = OT_HOME_HOST; /* gradients of 2 bytes a parameter do not fit */
        check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "host memory");
    }
}

/* The number of slots for reading ahead grows with the memory, up to half of the tiles. */
static void slots_grow_with_memory(void **state) {
    (void)state;
    struct fake f;
    int before = 0, grown = 0;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.state = OT_HOME_NVME;
    rq.tile_params = 16 * OT_SLAB_ALIGN_PARAMS;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    for (size_t host = 60; host <= 400; host += 20) {
        struct ot_plan plan;
        rq.budget_bytes[OT_TIER_HOST] = host * MIB;
        if (ot_plan_make(&rq, &plan) < 0)
            continue;
        check_fits(&rq, &plan);
        assert_true(plan.tile_slots >= before && plan.tile_slots <= ot_plan_passing_tiles(&plan) / 2);
        grown += plan.tile_slots > before;
        before = plan.tile_slots;
        ot_plan_free(&plan);
    }
    assert_true(grown > 2);
}

/* ---- the order of extents on the disks ---- */

struct stream {
    const int *rank; /* the rank of each extent */
    int last;        /* the rank of the extent used last; -1: none yet */
    int used, jumps; /* jumps: uses that did not follow the extent used last */
};

static void use(struct stream *stream, int extent) {
    int rank = stream->rank[extent];
    stream->jumps += stream->used > 0 && rank != stream->last + 1;
    stream->used++;
    stream->last = rank;
}

/* In the order of the engine's transfer for the task (engine/nvme.c): state, then weights. */
static void use_tile(struct stream *stream, const struct ot_layout *layout, const struct ot_plan *plan,
                     const struct ot_task *task) {
    if (task->state != OT_NO_BUFFER)
        use(stream, layout->buffers[task->state].first_extent + task->tile -
                        plan->slabs[task->slab].tiles[OT_TILE_GPU]);
    if (task->weights[0] != OT_NO_BUFFER)
        use(stream, layout->buffers[task->weights[0]].first_extent + task->tile);
}

static int *rank_extents(const struct fake *f, const struct ot_plan *plan, const struct ot_layout *layout) {
    int *order, *rank = malloc((size_t)layout->n_extents * sizeof *rank);
    check_ok(ot_layout_order(&f->chain, plan, layout, &order));
    assert_non_null(rank);
    for (int i = 0; i < layout->n_extents; i++)
        rank[i] = -1;
    for (int i = 0; i < layout->n_extents; i++) {
        assert_in_range(order[i], 0, layout->n_extents - 1);
        assert_int_equal(rank[order[i]], -1); /* each extent has one place */
        rank[order[i]] = i;
    }
    free(order);
    return rank;
}

/* A step that updates on the host reads every tile in one stream and writes it in one stream, and boundaries
 * too: the schedule gives the order of use, the layout gives the places. */
static void extents_lie_as_a_step_uses_them(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    struct ot_layout layout;
    struct ot_schedule schedule;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = rq.state = rq.grads = rq.sums = rq.activations = OT_HOME_NVME;
    rq.rounds = 2;
    rq.micro_sequences = 2;
    rq.tile_params = 16 * OT_SLAB_ALIGN_PARAMS;
    check_ok(ot_plan_make(&rq, &plan));
    check_ok(ot_layout_make(&f.chain, &plan, &layout));
    check_ok(ot_schedule_make_train(&f.chain, &plan, &layout, &schedule));
    int *rank = rank_extents(&f, &plan, &layout), tiles = 0;
    struct stream reads = {.rank = rank}, writes = reads, boundaries = reads, grads = reads;
    for (int s = 0; s < plan.n_slabs; s++) {
        assert_true(is_whole(&plan.slabs[s], OT_TILE_CPU));
        tiles += plan.slabs[s].tiles[OT_TILE_CPU];
        /* The lanes take the task with the earliest deadline first: slab by slab. */
        for (int t = 0; t < schedule.n_tasks; t++) {
            const struct ot_task *task = &schedule.tasks[t];
            if (task->slab == s && task->tile >= 0 && task->kind == OT_TASK_NVME_READ)
                use_tile(&reads, &layout, &plan, task);
            if (task->slab == s && task->tile >= 0 && task->kind == OT_TASK_NVME_WRITE)
                use_tile(&writes, &layout, &plan, task);
        }
    }
    for (int t = 0; t < schedule.n_tasks; t++) {
        const struct ot_task *task = &schedule.tasks[t];
        if (task->kind == OT_TASK_NVME_WRITE && task->block >= 0 && task->micro < layout.places)
            use(&boundaries, layout.buffers[task->to].first_extent);
        if (task->kind == OT_TASK_NVME_WRITE && task->tile >= 0 && task->via == OT_NO_BUFFER)
            use(&grads, layout.buffers[task->to].first_extent + task->tile);
    }
    assert_true(tiles > plan.n_slabs);
    assert_int_equal(reads.used, 2 * tiles);
    assert_int_equal(reads.jumps, 0);
    assert_int_equal(writes.used, 2 * tiles);
    assert_int_equal(writes.jumps, 0);
    assert_true(boundaries.used > f.layers);
    assert_int_equal(boundaries.jumps, 0);
    assert_int_equal(grads.used, 2 * tiles); /* the sums of the first round, then the gradients */
    assert_int_equal(grads.jumps, 1);
    free(rank);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_plan_free(&plan);
}

/* The device's updates read and write state alone, and forward reads weights alone. */
static void streamed_tiles_lie_apart(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    struct ot_layout layout;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    rq.weights = rq.state = OT_HOME_NVME;
    rq.tile_params = 16 * OT_SLAB_ALIGN_PARAMS;
    check_ok(ot_plan_make(&rq, &plan));
    for (int s = 0; s < plan.n_slabs; s++) { /* half of the tiles of each slab */
        plan.slabs[s].tiles[OT_TILE_STREAM] = plan.slabs[s].tiles[OT_TILE_CPU] / 2;
        plan.slabs[s].tiles[OT_TILE_CPU] -= plan.slabs[s].tiles[OT_TILE_STREAM];
    }
    plan.state_slots = 2;
    check_ok(ot_layout_make(&f.chain, &plan, &layout));
    int *rank = rank_extents(&f, &plan, &layout);
    for (int s = 0; s < plan.n_slabs; s++) {
        int weights = layout.buffers[layout.slabs[s].weights_nvme].first_extent,
            tile_state = layout.buffers[layout.slabs[s].state_nvme].first_extent,
            streamed = plan.slabs[s].tiles[OT_TILE_STREAM];
        assert_true(streamed > 0);
        for (int t = 1; t < streamed; t++) {
            assert_int_equal(rank[weights + t], rank[weights + t - 1] + 1);
            assert_int_equal(rank[tile_state + t], rank[tile_state + t - 1] + 1);
        }
        for (int t = streamed; t < layout.buffers[layout.slabs[s].weights_nvme].n_tiles; t++)
            assert_int_equal(rank[weights + t], rank[tile_state + t] + 1);
    }
    free(rank);
    ot_layout_free(&layout);
    ot_plan_free(&plan);
}

static void contradictions_are_seen(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = rq.state = rq.grads = rq.activations = OT_HOME_NVME;
    rq.budget_bytes[OT_TIER_NVME] = (size_t)1 << 40;
    check_ok(ot_plan_make(&rq, &plan));
    struct ot_plan broken = plan;
    broken.tile_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "no slot for them");
    broken = plan;
    broken.host_grad_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "gradients on nvme pass through the host");
    broken.host_grad_slots = -1;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "-1 slots for gradients on nvme");
    broken = plan;
    broken.host_activation_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "there is no host slot for them");
    broken = plan;
    broken.host_weight_slots[OT_SLOT_LAYER] = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "weights on nvme need a slot");
    broken = plan;
    memset(broken.kept, 0, sizeof broken.kept);
    broken.kept[OT_TIER_NVME] = (struct ot_kept_blocks){OT_KEEP_ALL, 1};
    broken.kept_slots = broken.host_kept_slots = 1;
    check_ok(ot_plan_finish(&f.chain, &broken));
    broken.kept_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "kept activations leave the device");
    broken.kept_slots = 1;
    broken.host_kept_slots = 0;
    check_fails(ot_plan_finish(&f.chain, &broken), OT_E_USAGE, "kept activations leave the device");
    plan.slabs[0].state = OT_HOME_GPU;
    check_fails(ot_plan_finish(&f.chain, &plan), OT_E_USAGE, "must live on the host or on nvme");
    ot_plan_free(&plan);
    rq.tile_params = 1000;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "the 1000 parameters of a tile");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_budgets_are_used_or_cured),
        cmocka_unit_test(what_goes_first),
        cmocka_unit_test(nothing_goes_there_without_need),
        cmocka_unit_test(forced_homes_are_honoured_or_refused),
        cmocka_unit_test(disks_hold_two_sides),
        cmocka_unit_test(pinned_contents_take_sides),
        cmocka_unit_test(pinned_contents_count_against_the_budget),
        cmocka_unit_test(a_tenth_of_the_weights_is_enough_for_the_host),
        cmocka_unit_test(slots_grow_with_memory),
        cmocka_unit_test(extents_lie_as_a_step_uses_them),
        cmocka_unit_test(streamed_tiles_lie_apart),
        cmocka_unit_test(contradictions_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
