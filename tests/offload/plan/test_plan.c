/* The planner over chains that consist of sizes only: its choices under shrinking budgets, its errors when
 * nothing fits, and that a senseless request is at worst refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "offload/schedule/schedule.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

/* ---- budgets ---- */

static void all_resident_when_it_fits(void **state) {
    (void)state;
    for (int mix = 0; mix < 4; mix++) {
        struct fake f;
        fake_open_small(&f, mix & 1 ? OT_BF16 : OT_F32, mix & 2);
        struct ot_plan_request rq = fake_request(&f);
        struct ot_plan plan;
        for (int exact = 0; exact < 2; exact++) {
            check_ok(ot_plan_make(&rq, &plan));
            check_fits(&rq, &plan);
            assert_int_equal(count_resident(&plan), f.chain.n_slabs);
            assert_int_equal(plan.weight_slots[OT_SLOT_LAYER] + plan.weight_slots[OT_SLOT_EDGE], 0);
            assert_int_equal(plan.activations, OT_HOME_GPU);
            assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_COUNT), f.layers);
            for (int t = 0; t < OT_TIER_COUNT; t++)
                rq.budget_bytes[t] = ot_ledger_total(&plan.ledger, (enum ot_tier)t);
            ot_plan_free(&plan);
        }
        rq.budget_bytes[OT_TIER_GPU]--; /* one byte less, so something must move out */
        rq.budget_bytes[OT_TIER_HOST] = (size_t)1 << 34;
        check_ok(ot_plan_make(&rq, &plan));
        check_fits(&rq, &plan);
        assert_true(ot_plan_kept_blocks(&plan, OT_TIER_COUNT) < f.layers || plan.max_micro > 1);
        ot_plan_free(&plan);
    }
}

/* 2: nothing streamed, nothing recomputed. 1: nothing streamed. */
static int residency_rank(const struct ot_plan *plan) {
    return count_resident(plan) < plan->n_slabs                           ? 0
           : ot_plan_kept_blocks(plan, OT_TIER_COUNT) < plan->n_slabs - 2 ? 1
                                                                          : 2;
}

/* How much of the device a plan uses to be fast, the most important use first. Smaller budgets never get
 * more. */
static int compare_speed(const struct ot_plan *a, const struct ot_plan *b) {
    int64_t of_a[] = {residency_rank(a), a->micro_tokens,
                      -a->activations,   a->grad_out_slots[OT_SLOT_LAYER],
                      count_resident(a), ot_plan_kept_blocks(a, OT_TIER_COUNT)};
    int64_t of_b[] = {residency_rank(b), b->micro_tokens,
                      -b->activations,   b->grad_out_slots[OT_SLOT_LAYER],
                      count_resident(b), ot_plan_kept_blocks(b, OT_TIER_COUNT)};
    for (int i = 0; i < 6; i++)
        if (of_a[i] != of_b[i])
            return of_a[i] > of_b[i] ? 1 : -1;
    return 0;
}

static void shrinking_budgets_shrink_the_plan(void **state) {
    (void)state;
    struct fake f;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    struct ot_plan before, plan;
    rq.rounds = 1; /* with more rounds, less of the rest has to shrink */
    check_ok(ot_plan_make(&rq, &before));
    size_t budget = ot_ledger_total(&before.ledger, OT_TIER_GPU), smallest = 0;
    int plans = 0, changes = 0;
    for (rq.budget_bytes[OT_TIER_GPU] = budget; plan_or_cure(&rq, &plan);
         rq.budget_bytes[OT_TIER_GPU] -= MIB, plans++) {
        int order = compare_speed(&plan, &before);
        assert_true(order <= 0);
        changes += order < 0;
        smallest = rq.budget_bytes[OT_TIER_GPU];
        ot_plan_free(&before);
        before = plan;
    }
    ot_plan_free(&before);
    assert_true(plans > 100 && changes > f.layers);
    check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "gpu memory: ");
    assert_true(plan.shortage.alone[OT_TIER_GPU] <=
                smallest); /* the shortage describes the smallest plan, not just any plan that fits */
}

/* The error says what is needed, what is there and what is short, in one unit. */
static void shortages_add_up(void **state) {
    (void)state;
    static const struct {
        int64_t layer_params;
        size_t budget;
        const char *unit, *has;
    } cases[] = {{1 << 20, 5 * MIB + MIB / 4, "MiB", "5.2 MiB"},
                 {(int64_t)1 << 32, ((size_t)1 << 30) + (size_t)700 * MIB, "GiB", "1.6 GiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake f;
        struct ot_plan plan;
        double needs, has, lacks;
        char units[3][8];
        fake_open_small(&f, OT_BF16, false);
        f.layer_params = cases[i].layer_params;
        fake_open(&f);
        struct ot_plan_request rq = fake_request(&f);
        rq.budget_bytes[OT_TIER_GPU] = cases[i].budget;
        rq.budget_bytes[OT_TIER_HOST] = (size_t)1 << 44;
        check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "gpu memory: the smallest plan");
        const char *words = strstr(ot_error_text(), " needs ");
        assert_non_null(words);
        assert_int_equal(
            sscanf(words, " needs %lf %7s of gpu memory, but the budget is %lf %7[^,], short by %lf %7s",
                   &needs, units[0], &has, units[1], &lacks, units[2]),
            6);
        for (int u = 0; u < 3; u++)
            assert_string_equal(units[u], cases[i].unit);
        assert_non_null(strstr(words, cases[i].has));
        /* Needs are rounded up to a tenth, and the budget down. */
        assert_true(fabs(needs - has - lacks) < 0.15);
        double unit = i == 0 ? MIB : 1024.0 * MIB;
        assert_true(fabs(needs - (double)plan.shortage.alone[OT_TIER_GPU] / unit) < 0.11);
    }
}

static void every_pair_of_budgets_is_used_or_cured(void **state) {
    (void)state;
    size_t step = getenv("OT_TEST_SLOW") ? 30 : tests_are_brief() ? 90 : 60;
    int least = step == 30 ? 10 : 3;
    for (int mix = 0; mix < 8; mix += tests_are_brief() ? 3 : 1) {
        struct fake f;
        int made = 0, refused = 0;
        fake_open_small(&f, mix & 1 ? OT_BF16 : OT_F32, mix & 2);
        struct ot_plan_request rq = fake_request(&f);
        rq.rounds = mix & 4 ? 3 : 1;
        for (size_t gpu = 0; gpu <= 360; gpu += step)
            for (size_t host = 0; host <= 360; host += step) {
                struct ot_plan plan;
                rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
                rq.budget_bytes[OT_TIER_HOST] = host * MIB;
                bool planned = plan_or_cure(&rq, &plan);
                made += planned;
                refused += !planned;
                if (planned)
                    ot_plan_free(&plan);
            }
        assert_true(made > least && refused > least);
    }
}

/* The device alone is too small for everything, the host alone too, and both together are large enough. */
static void tiers_share_what_neither_holds(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.keep = OT_KEEP_NONE;
    rq.weights = rq.state = OT_HOME_HOST;
    check_ok(ot_plan_make(&rq, &plan));
    size_t all_host = ot_ledger_total(&plan.ledger, OT_TIER_HOST);
    ot_plan_free(&plan);
    rq.weights = rq.state = OT_HOME_GPU;
    check_ok(ot_plan_make(&rq, &plan));
    size_t all_gpu = ot_ledger_total(&plan.ledger, OT_TIER_GPU);
    int64_t plan_micro = plan.micro_tokens / rq.sequence_tokens;
    ot_plan_free(&plan);
    rq.weights = rq.state = OT_HOME_AUTO;
    rq.micro_sequences = plan_micro; /* otherwise the planner would cut it to make room */
    rq.budget_bytes[OT_TIER_GPU] = all_gpu - MIB;
    rq.budget_bytes[OT_TIER_HOST] = all_host - MIB;
    check_ok(ot_plan_make(&rq, &plan));
    check_fits(&rq, &plan);
    assert_true(count_resident(&plan) > 0 && count_resident(&plan) < f.chain.n_slabs);
    ot_plan_free(&plan);
}

static void reserved_bytes_come_first(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    for (int tier = 0; tier < OT_TIER_NVME; tier++) {
        rq = fake_request(&f);
        rq.weights = rq.state = tier == OT_TIER_GPU ? OT_HOME_GPU : OT_HOME_HOST;
        int64_t *reserved = tier == OT_TIER_GPU ? &rq.extra_device_bytes : &rq.extra_host_bytes;
        *reserved = (int64_t)rq.budget_bytes[tier] - 50 * MIB;
        assert_false(plan_or_cure(&rq, &plan));
        *reserved -= (int64_t)1 << 30;
        assert_true(plan_or_cure(&rq, &plan));
        ot_plan_free(&plan);
    }
}

/* ---- choices of the caller ---- */

static void forced_homes_are_honoured(void **state) {
    (void)state;
    for (int mix = 0; mix < 27; mix += tests_are_few() ? 5 : 1) {
        struct fake f;
        struct ot_plan plan;
        fake_open_small(&f, OT_BF16, mix & 1);
        struct ot_plan_request rq = fake_request(&f);
        rq.weights = (enum ot_home)(mix % 3 - 1);
        rq.state = (enum ot_home)(mix / 3 % 3 - 1);
        rq.activations = (enum ot_home)(mix / 9 - 1);
        for (size_t gpu = 4096; gpu > 0; gpu /= 2) {
            rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
            if (!plan_or_cure(&rq, &plan))
                continue;
            for (int s = 0; s < plan.n_slabs; s++) {
                assert_true(rq.weights == OT_HOME_AUTO || plan.slabs[s].weights == rq.weights);
                assert_true(rq.state == OT_HOME_AUTO ||
                            is_whole(&plan.slabs[s], rq.state == OT_HOME_GPU ? OT_TILE_GPU : OT_TILE_CPU));
            }
            assert_true(rq.activations == OT_HOME_AUTO || plan.activations == rq.activations);
            ot_plan_free(&plan);
        }
    }
}

static void recompute_and_slots_are_honoured(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    for (int recompute = 0; recompute < 2; recompute++)
        for (int slots = 1; slots <= OT_PLAN_MAX_SLOTS; slots++) {
            struct ot_plan_request rq = fake_request(&f);
            int made = 0;
            rq.keep = recompute ? OT_KEEP_NONE : OT_KEEP_PRODUCTS;
            rq.kept = OT_HOME_GPU;
            rq.slots = slots;
            /* Keeping everything takes 1152 MiB. Slabs that could as well stream must not take this
             * memory. */
            for (size_t gpu = 1600; gpu >= 100; gpu -= 100) {
                rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
                if (!plan_or_cure(&rq, &plan))
                    continue;
                made++;
                assert_int_equal(ot_plan_kept_blocks(&plan, OT_TIER_COUNT), recompute ? 0 : f.layers);
                for (int k = 0; k < OT_SLOT_KINDS; k++)
                    assert_true(plan.weight_slots[k] == 0 || plan.weight_slots[k] == slots);
                assert_true(plan.activation_slots == 0 || plan.activation_slots == slots);
                ot_plan_free(&plan);
            }
            assert_true(made >= (recompute ? 10 : 2));
        }
}

static void micro_batches_are_chosen_or_honoured(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    for (int64_t micro = 0; micro <= 20; micro++) {
        struct ot_plan_request rq = fake_request(&f);
        rq.micro_sequences = micro;
        assert_true(plan_or_cure(&rq, &plan));
        /* Chosen by the planner: 4096 tokens are enough. */
        int64_t want = micro == 0 ? 8 : micro < 16 ? micro : 16;
        assert_int_equal(plan.micro_tokens, want * rq.sequence_tokens);
        ot_plan_free(&plan);
    }
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_GPU] = 70 * MIB;
    rq.micro_sequences = 16;
    assert_false(plan_or_cure(&rq, &plan));
    rq.micro_sequences = 0;
    assert_true(plan_or_cure(&rq, &plan)); /* the same budget, with the choice left to the planner */
    assert_true(plan.micro_tokens < 8 * rq.sequence_tokens);
    ot_plan_free(&plan);
}

static void forward_alone_has_no_state(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, true);
    struct ot_plan_request rq = fake_request(&f);
    rq.train = false;
    for (size_t gpu = 512; gpu > 0; gpu /= 2) {
        rq.budget_bytes[OT_TIER_GPU] = gpu * MIB;
        if (!plan_or_cure(&rq, &plan))
            continue;
        for (int e = 0; e < plan.ledger.n; e++)
            assert_true(!strstr(plan.ledger.entries[e].name, "state") &&
                        !strstr(plan.ledger.entries[e].name, "gradient"));
        ot_plan_free(&plan);
    }
}

/* ---- senseless requests ---- */

static void absurd_numbers_are_refused_or_planned(void **state) {
    (void)state;
    static const int64_t numbers[] = {INT64_MIN, -1, 0, 1, 3, 2048, INT32_MAX, (int64_t)1 << 40, INT64_MAX};
    static const size_t budgets[] = {0, 1, (size_t)1 << 30, SIZE_MAX};
    enum { N = sizeof numbers / sizeof *numbers };
    struct fake f;
    int made = 0, refused = 0;
    fake_open_small(&f, OT_BF16, true);
    for (int i = 0; i < N * N * N * 4; i += tests_are_few() ? 5 : 1) {
        struct ot_plan_request rq = fake_request(&f);
        struct ot_plan plan;
        rq.sequence_tokens = numbers[i % N];
        rq.step_sequences = numbers[i / N % N];
        rq.micro_sequences = numbers[i / N / N % N];
        rq.budget_bytes[OT_TIER_GPU] = rq.budget_bytes[OT_TIER_HOST] = budgets[i / N / N / N];
        rq.fractions[OT_TILE_STREAM] = i % 2; /* streams everything, or leaves the choice to the planner */
        int rc = ot_plan_make(&rq, &plan);
        assert_true(rc == 0 || rc == -OT_E_USAGE || rc == -OT_E_BUDGET);
        if (rc == 0)
            check_fits(&rq, &plan);
        made += rc == 0;
        refused += rc < 0;
        ot_plan_free(&plan);
    }
    assert_true(made > 10 && refused > 10);
}

static void bad_requests_are_named(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
#define REFUSED(field, value, words)                                                                         \
    do {                                                                                                     \
        rq = fake_request(&f);                                                                               \
        rq.field = (value);                                                                                  \
        check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, words);                                            \
        assert_null(plan.slabs);                                                                             \
    } while (0)
    REFUSED(sequence_tokens, 0, "0 tokens, or its micro-batch, is empty");
    REFUSED(step_sequences, -4, "-4 sequences");
    REFUSED(micro_sequences, -1, "is empty");
    REFUSED(step_sequences, INT64_MAX, "more than 2^31 tokens a step");
    assert_int_equal(ot_error_cause(), OT_CAUSE_STEP_TOKENS);
    REFUSED(sequence_tokens, INT64_MAX, "more than 2^31 tokens a step");
    REFUSED(slots, -1, "-1 weight slots of each kind; give 1 to 8");
    REFUSED(slots, OT_PLAN_MAX_SLOTS + 1, "9 weight slots");
    REFUSED(extra_device_bytes, -1, "cannot reserve -1 bytes of device memory");
    REFUSED(extra_host_bytes, INT64_MIN, "bytes of host memory");
#undef REFUSED
    rq = fake_request(&f);
    rq.sequence_tokens = 1;
    rq.step_sequences = 1 << 20;
    rq.micro_sequences = 1;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "is too long: a schedule");
    assert_int_equal(ot_error_cause(), OT_CAUSE_MICRO_BATCHES);
    rq.micro_sequences = 0; /* if the choice is left to the planner, it raises it */
    rq.budget_bytes[OT_TIER_GPU] = rq.budget_bytes[OT_TIER_HOST] = (size_t)1 << 40;
    assert_true(plan_or_cure(&rq, &plan));
    ot_plan_free(&plan);
    fake_open_small(&f, OT_F16, false);
    rq = fake_request(&f);
    rq.clip = false;
    check_fails(ot_plan_make(&rq, &plan), OT_E_USAGE, "fp16 needs clipping");
    assert_int_equal(ot_error_cause(), OT_CAUSE_UNCLIPPED_FP16);
}

static void contradictions_are_seen(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.weights = rq.state = rq.activations = OT_HOME_HOST;
    check_ok(ot_plan_make(&rq, &plan));
#define REFUSED(field, value, words)                                                                         \
    do {                                                                                                     \
        struct ot_plan changed = plan;                                                                       \
        changed.field = (value);                                                                             \
        check_fails(ot_plan_finish(&f.chain, &changed), OT_E_USAGE, words);                                  \
    } while (0)
    REFUSED(weight_slots[OT_SLOT_LAYER], 0, "no layer slot");
    REFUSED(weight_slots[OT_SLOT_EDGE], OT_PLAN_MAX_SLOTS + 1, "9 edge slots");
    REFUSED(grad_slots[OT_SLOT_EDGE], 0, "gradients need a slot");
    REFUSED(grad_out_slots[OT_SLOT_LAYER], -1, "gradients on their way out");
    REFUSED(activation_slots, 0, "there is no device slot for them");
    REFUSED(kept[OT_TIER_GPU].blocks, f.layers + 1, "13 of the 12 middle blocks");
    REFUSED(tile_params, OT_SLAB_ALIGN_PARAMS + 1, "invalid sizes");
    REFUSED(max_micro, 0, "invalid sizes");
    REFUSED(max_micro, INT32_MAX, "is too long: a schedule");
    assert_int_equal(ot_error_cause(), OT_CAUSE_MICRO_BATCHES);
    REFUSED(n_slabs, 3, "3 slabs");
    plan.max_micro = 3;
    plan.round_micro = 0;
    REFUSED(first_round, 1, "3 micro-batches cannot be cut into a round of 1 and others of 0");
    REFUSED(first_round, -1, "cannot be cut into a round of -1");
    REFUSED(first_round, 4, "cannot be cut into a round of 4");
#undef REFUSED
    for (plan.first_round = 0; plan.first_round <= 3; plan.first_round += 3) /* one round */
        check_ok(ot_plan_finish(&f.chain, &plan));
    ot_plan_free(&plan);
}

/* ---- a large model ---- */

static double seconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID,
                  &now); /* CPU time, because other tests may keep the machine busy */
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) * 1e-9;
}

/* 80 layers like those of Llama-2-70B, streamed through 40 GB in 16 micro-batches: planning and checking must
 * be fast enough for a user who waits. The test prints the times; it asserts only the one second, and only in
 * builds without sanitizers. */
static void seventy_billion_parameters_plan_in_a_second(void **state) {
    (void)state;
    struct fake f = {.layers = 80,
                     .hidden = 8192,
                     .layer_params = 855654400,
                     .edge_params = 262144000,
                     .vocab = 32000,
                     .dtype = OT_BF16};
    struct ot_plan plan;
    struct ot_layout layout;
    struct ot_schedule schedule;
    struct timespec start;
    fake_open(&f);
    struct ot_plan_request rq = fake_request(&f);
    rq.sequence_tokens = 2048;
    rq.micro_sequences = 1;
    rq.budget_bytes[OT_TIER_GPU] = (size_t)40 << 30;
    rq.budget_bytes[OT_TIER_HOST] = (size_t)2000 << 30;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    check_ok(ot_plan_make(&rq, &plan));
    double planned = seconds_since(&start);
    check_fits(&rq, &plan);
    assert_int_equal(plan.max_micro, 16);
    check_ok(ot_layout_make(&f.chain, &plan, &layout));
    check_ok(ot_schedule_make_train(&f.chain, &plan, &layout, &schedule));
    double linked = seconds_since(&start);
    check_ok(ot_schedule_verify(&schedule, &layout, &plan));
    double verified = seconds_since(&start);
    printf("70B: plan %.3f s, %d tasks linked in %.3f s, verified in %.3f s\n", planned, schedule.n_tasks,
           linked - planned, verified - linked);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(planned < 1);
#endif
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_resident_when_it_fits),
        cmocka_unit_test(shrinking_budgets_shrink_the_plan),
        cmocka_unit_test(shortages_add_up),
        cmocka_unit_test(every_pair_of_budgets_is_used_or_cured),
        cmocka_unit_test(tiers_share_what_neither_holds),
        cmocka_unit_test(reserved_bytes_come_first),
        cmocka_unit_test(forced_homes_are_honoured),
        cmocka_unit_test(recompute_and_slots_are_honoured),
        cmocka_unit_test(micro_batches_are_chosen_or_honoured),
        cmocka_unit_test(forward_alone_has_no_state),
        cmocka_unit_test(absurd_numbers_are_refused_or_planned),
        cmocka_unit_test(bad_requests_are_named),
        cmocka_unit_test(contradictions_are_seen),
        cmocka_unit_test(seventy_billion_parameters_plan_in_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
