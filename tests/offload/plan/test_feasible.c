/* A refusal is a proof. Over small chains and budgets, everything that a caller can force is forced in turn:
 * rounds, micro-batch, homes, slots, engines, tiles. If ot_plan_make refuses a request, no such plan may fit;
 * if one fits, ot_plan_make must find a plan too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

static const enum ot_home homes[] = {OT_HOME_AUTO, OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME};

static bool fits(const struct ot_plan_request *rq) {
    struct ot_plan plan;
    if (ot_plan_make(rq, &plan) < 0)
        return false;
    check_fits(rq, &plan);
    assert_true(ot_ledger_total(&plan.ledger, OT_TIER_NVME) <= rq->budget_bytes[OT_TIER_NVME]);
    ot_plan_free(&plan);
    return true;
}

/* Forces the homes, engines and slots of a request in all ways. Writes the first way that fits. */
static bool any_placement(const struct ot_plan_request *rq, char how[160]) {
    static const double fractions[][OT_TILE_ENGINES] = {
        {0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0.5, 0, 0.5}};
    for (int i = 0; i < 4 * 4 * 4 * 5 * 2; i++) {
        struct ot_plan_request forced = *rq;
        forced.is_trial = true;
        forced.weights = homes[i % 4];
        forced.activations = homes[i / 4 % 4];
        forced.sums = homes[i / 16 % 4];
        memcpy(forced.fractions, fractions[i / 64 % 5], sizeof forced.fractions);
        forced.slots = i / 320;
        if (fits(&forced)) {
            snprintf(how, 160, "rounds %d, micro-batch %lld, tile %lld, homes %d %d %d, shares %d, slots %d",
                     forced.rounds, (long long)forced.micro_sequences, (long long)forced.tile_params,
                     forced.weights, forced.activations, forced.sums, i / 64 % 5, forced.slots);
            return true;
        }
    }
    return false;
}

static bool any_plan(const struct ot_plan_request *rq, char how[160]) {
    for (int64_t micro = 1; micro <= rq->step_sequences; micro++)
        for (int rounds = 1; rounds <= (int)rq->step_sequences; rounds++)
            for (int tile = 0; tile < 2; tile++) {
                struct ot_plan_request forced = *rq;
                forced.micro_sequences = micro;
                forced.rounds = rounds;
                forced.tile_params = tile ? 1 << 16 : 0;
                if (any_placement(&forced, how))
                    return true;
            }
    return false;
}

static struct ot_plan_request random_request(struct fake *f, uint64_t seed) {
    double unit[8];
    for (int i = 0; i < 8; i++)
        unit[i] = ot_random_unit(seed, 5, (uint64_t)i);
    *f = (struct fake){.layers = 1 + (int)(unit[0] * 4),
                       .hidden = 256,
                       .layer_params = 1 << 18,
                       .edge_params = 1 << (17 + (int)(unit[1] * 3)),
                       .vocab = 1024,
                       .tied = unit[2] < 0.3,
                       .dtype = unit[3] < 0.3 ? OT_F32 : OT_BF16};
    fake_open(f);
    struct ot_plan_request rq = fake_request(f);
    rq.step_sequences = 1 + (int64_t)(unit[4] * 4);
    rq.budget_bytes[OT_TIER_GPU] = (size_t)((4 + 36 * unit[5]) * MIB);
    rq.budget_bytes[OT_TIER_HOST] = (size_t)((1 + 24 * unit[6]) * MIB);
    rq.budget_bytes[OT_TIER_NVME] = unit[7] < 0.6 ? 0 : (size_t)1 << 30;
    return rq;
}

static void a_refusal_is_right_and_every_plan_fits(void **state) {
    (void)state;
    int trials = tests_are_few()          ? 12
                 : tests_are_brief()      ? 20
                 : getenv("OT_TEST_SLOW") ? 400
                                          : 48,
        refused = 0, made = 0;
    for (uint64_t seed = 0; seed < (uint64_t)trials; seed++) {
        struct fake f;
        struct ot_plan_request rq = random_request(&f, seed);
        char how[160];
        struct ot_plan_request trial = rq;
        trial.is_trial = true; /* names no shortage, and that is all */
        assert_int_equal(fits(&trial), fits(&rq));
        if (fits(&rq)) {
            made++;
            continue;
        }
        refused++;
        if (any_plan(&rq, how))
            fail_msg("seed %d: refused, but this fits: %s", (int)seed, how);
    }
    print_message("%d plans, %d refusals\n", made, refused);
    assert_true(made > trials / 5 && refused > trials / 5);
}

/* More rounds need less for activations, so they make room where nothing else does. */
static void rounds_make_room(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan one, plan;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.budget_bytes[OT_TIER_HOST] = (size_t)1 << 30;
    rq.activations = OT_HOME_GPU;
    rq.step_sequences = 256;
    rq.budget_bytes[OT_TIER_GPU] = (size_t)300 * MIB;
    check_ok(ot_plan_make(&rq, &plan));
    assert_true(plan.first_round < plan.max_micro);
    ot_plan_free(&plan);
    rq.rounds = 1;
    check_fails(ot_plan_make(&rq, &one), OT_E_BUDGET, "gpu memory");
}

/* ---- the memo ---- */

static int sizes_asked;
static size_t (*fake_saved_bytes)(const void *context, int block, enum ot_keep_level level, int64_t n_tokens);

static size_t count_sizes(const void *context, int block, enum ot_keep_level level, int64_t n_tokens) {
    sizes_asked++;
    return fake_saved_bytes(context, block, level, n_tokens);
}

/* Makes the plan of a request and lists what it chose. 0: it does not fit. */
static uint64_t print_of(const struct ot_plan_request *rq, struct ot_ledger *ledger) {
    struct ot_plan plan;
    if (ot_plan_make(rq, &plan) < 0)
        return 0;
    uint64_t print = ot_plan_print(&plan);
    *ledger = plan.ledger;
    ot_plan_free(&plan);
    return print;
}

/* Requests with other budgets and choices share a memo: each plan is the one without it, and what was
 * measured once is not measured again. */
static void a_memo_changes_no_plan_and_saves_work(void **state) {
    (void)state;
    int without = 0, first = 0, second = 0;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct fake f;
        struct ot_plan_request rq = random_request(&f, seed);
        struct ot_ledger alone = {0}, shared = {0};
        fake_saved_bytes = f.chain.saved_bytes;
        f.chain.saved_bytes = count_sizes;
        struct ot_plan_memo *memo = ot_plan_memo_open();
        for (int i = 0; i < 32; i++) {
            rq.is_trial = i / 4 % 2;
            rq.kept_off = i / 8 % 2 / 2.0;
            rq.rounds = i / 16;
            rq.budget_bytes[i % 2] += (size_t)MIB;
            rq.memo = NULL;
            sizes_asked = 0;
            uint64_t print = print_of(&rq, &alone);
            without += sizes_asked;
            rq.memo = memo;
            for (int *asked = &first; asked; asked = asked == &first ? &second : NULL) {
                sizes_asked = 0;
                assert_true(print_of(&rq, &shared) == print);
                *asked += sizes_asked;
                assert_memory_equal(&alone, &shared, sizeof alone);
            }
        }
        ot_plan_memo_close(memo);
    }
    print_message("sizes asked for: %d without, %d with a memo, %d again\n", without, first, second);
    assert_true(first < without / 2 && second < without / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_is_right_and_every_plan_fits),
        cmocka_unit_test(rounds_make_room),
        cmocka_unit_test(a_memo_changes_no_plan_and_saves_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
