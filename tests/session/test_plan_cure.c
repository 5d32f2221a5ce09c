/* The options that a refusal names: each is tried, none is larger than the machine, and the sizes and lengths
 * are the least and the most that fit. */
#include "src/session/plan_cure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

static const size_t GIB = (size_t)1 << 30;

struct refused {
    struct fake fake;
    struct ot_options options;
    struct ot_plan_request request;
    struct ot_shortage shortage;
    struct ot_cure cure;
};

/* words: options of `plan`, separated by spaces. Nothing fits until the test gives budgets. */
static void open_refused(struct refused *r, const char *words) {
    char text[256], *argv[24] = {"plan"}, *rest = text, *word;
    int argc = 1;
    memset(r, 0, sizeof *r);
    snprintf(text, sizeof text, "--model llama-7b --gpu rtx4090 %s", words);
    while ((word = strtok_r(rest, " ", &rest)))
        argv[argc++] = word;
    check_ok(ot_options_parse(argc, argv, &r->options));
    fake_open_small(&r->fake, OT_BF16, false);
    r->request = fake_request(&r->fake);
    r->request.step_sequences = 1;
    memset(r->request.budget_bytes, 0, sizeof r->request.budget_bytes);
    r->cure = (struct ot_cure){.options = &r->options,
                               .request = &r->request,
                               .most_gpu_bytes = 24 * GIB,
                               .most_host_bytes = SIZE_MAX,
                               .is_described = true};
}

static bool fits(const struct ot_plan_request *request) {
    struct ot_plan plan;
    if (ot_plan_make(request, &plan) < 0)
        return false;
    ot_plan_free(&plan);
    return true;
}

/* The cures of a request, with the budgets that ot_plan_make finds. */
static const char *cures_of(struct refused *r) {
    struct ot_plan plan;
    int rc = ot_plan_make(&r->request, &plan);
    if (rc != -OT_E_BUDGET)
        assert_int_equal(ot_plan_make(&r->request, &plan), -OT_E_BUDGET);
    r->shortage = plan.shortage;
    assert_int_equal(ot_plan_cure(&r->cure, &plan.shortage), -OT_E_BUDGET);
    return ot_error_cures();
}

/* The cures for a shortage that the test makes up. */
static void check_cures(const struct refused *r, const char *want) {
    char text[400];
    (void)ot_fail(OT_E_BUDGET, "no room");
    assert_int_equal(ot_plan_cure(&r->cure, &r->shortage), -OT_E_BUDGET);
    snprintf(text, sizeof text, "no room%s%s", *want ? ". What helps: " : "", want);
    assert_string_equal(ot_error_text(), text);
}

/* ---- memory ---- */

static void sizes_are_rounded_up_and_within_the_machine(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--ram 8G");
    size_t *gpu = &r.shortage.alone[OT_TIER_GPU], *host = &r.shortage.alone[OT_TIER_HOST];
    check_cures(&r, ""); /* an empty shortage */
    *gpu = MIB;
    check_cures(&r, "--gpu-mem 1M");
    *gpu = MIB + 1;
    check_cures(&r, "--gpu-mem 2M");
    *gpu = 10 * GIB - 1;
    check_cures(&r, "--gpu-mem 10240M");
    *gpu = 10 * GIB;
    check_cures(&r, "--gpu-mem 10G");
    *gpu = 10 * GIB + 1;
    check_cures(&r, "--gpu-mem 11G");
    *gpu = 24 * GIB;
    check_cures(&r, "--gpu-mem 24G");
    *gpu = 24 * GIB + 1;
    (void)ot_fail(OT_E_BUDGET, "no room");
    assert_int_equal(ot_plan_cure(&r.cure, &r.shortage), -OT_E_BUDGET);
    assert_string_equal(ot_error_text(), "no room. No option helps: the machine is too small for this model");
    *gpu = MIB;
    *host = 900 * (size_t)MIB; /* a tenth of the RAM is left to the system */
    check_cures(&r, "--gpu-mem 1M; or --ram 1001M");
    r.cure.host_ranks = 2;
    check_cures(&r, "--gpu-mem 1M; or --ram 2002M");
    r.cure.most_host_bytes = *host;
    check_cures(&r, "--gpu-mem 1M; or --ram 2002M");
    r.cure.most_host_bytes = *host - 1;
    check_cures(&r, "--gpu-mem 1M");
    r.cure.most_host_bytes = *host;
    r.cure.is_described = false; /* this machine cannot have other RAM */
    check_cures(&r, "--gpu-mem 1M; or --host-mem 900M");
    ot_options_free(&r.options);
    open_refused(&r, "--host-mem 1G");
    r.shortage.alone[OT_TIER_HOST] = 900 * (size_t)MIB;
    check_cures(&r, "--host-mem 900M");
    ot_options_free(&r.options);
}

static void two_tiers_are_named_where_one_is_not_enough(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--host-mem 8G");
    r.request.budget_bytes[OT_TIER_GPU] = MIB;
    r.request.budget_bytes[OT_TIER_NVME] = MIB;
    memcpy(r.shortage.together, (size_t[]){24 * GIB, GIB, MIB}, sizeof r.shortage.together);
    check_cures(&r, "--gpu-mem 24G with --host-mem 1024M");
    r.cure.most_gpu_bytes = 24 * GIB - 1;
    (void)ot_fail(OT_E_BUDGET, "no room");
    assert_int_equal(ot_plan_cure(&r.cure, &r.shortage), -OT_E_BUDGET);
    assert_non_null(strstr(ot_error_text(), "No option helps"));
    r.shortage.together[OT_TIER_GPU] = MIB; /* it has that much */
    check_cures(&r, "--host-mem 1024M");
    r.shortage.together[OT_TIER_NVME] = MIB + 1; /* a third tier is short as well */
    (void)ot_fail(OT_E_BUDGET, "no room");
    assert_int_equal(ot_plan_cure(&r.cure, &r.shortage), -OT_E_BUDGET);
    assert_non_null(strstr(ot_error_text(), "No option helps"));
    ot_options_free(&r.options);
}

static void memory_that_is_named_is_enough_and_no_more(void **state) {
    (void)state;
    struct refused r;
    unsigned long long host, gpu;
    open_refused(&r, "--host-mem 8G");
    r.request.budget_bytes[OT_TIER_GPU] = (size_t)100 * MIB;
    r.request.budget_bytes[OT_TIER_HOST] = (size_t)20 * MIB;
    const char *cures = cures_of(&r), *at = strstr(cures, "--host-mem "), *also = strstr(cures, "--gpu-mem ");
    assert_true(at && sscanf(at, "--host-mem %lluM", &host) == 1);
    assert_true(also && sscanf(also, "--gpu-mem %lluM", &gpu) == 1);
    for (unsigned less = 0; less < 2; less++) {
        struct ot_plan_request with = r.request;
        with.budget_bytes[OT_TIER_HOST] = (host - less) * MIB;
        assert_int_equal(fits(&with), !less);
        with = r.request;
        with.budget_bytes[OT_TIER_GPU] = (gpu - less) * MIB;
        assert_int_equal(fits(&with), !less);
    }
    ot_options_free(&r.options);
}

/* ---- disks ---- */

static void a_disk_takes_what_the_host_cannot(void **state) {
    (void)state;
    struct refused r;
    unsigned long long disk, more;
    open_refused(&r, "--ram 8G");
    r.request.budget_bytes[OT_TIER_GPU] = (size_t)100 * MIB;
    r.request.budget_bytes[OT_TIER_HOST] = (size_t)60 * MIB;
    assert_int_equal(sscanf(cures_of(&r), "--nvme %lluM; or ", &disk), 1);
    struct ot_plan_request with = r.request;
    with.budget_bytes[OT_TIER_NVME] = disk * MIB;
    assert_true(fits(&with));
    r.cure.host_ranks = 2;
    assert_int_equal(sscanf(cures_of(&r), "--nvme %lluM; or ", &more), 1);
    assert_true(more == 2 * disk || more == 2 * disk - 1); /* rounded up once */
    r.cure.host_ranks = 1;
    r.cure.is_described = false;
    assert_int_equal(sscanf(cures_of(&r), "--nvme DIR:%lluM; or ", &more), 1);
    assert_int_equal(more, disk);
    r.request.budget_bytes[OT_TIER_NVME] = MIB;
    char want[64];
    snprintf(want, sizeof want, "--nvme DIR:%lluM in total; or ", disk);
    assert_memory_equal(cures_of(&r), want, strlen(want));
    ot_options_free(&r.options);
}

/* A disk alone is not enough: the host tier must hold what passes between the disk and the device. */
static void a_disk_and_host_memory_go_together(void **state) {
    (void)state;
    struct refused r;
    unsigned long long host, disk;
    open_refused(&r, "--host-mem 1M");
    r.request.budget_bytes[OT_TIER_GPU] = (size_t)100 * MIB;
    r.request.budget_bytes[OT_TIER_HOST] = MIB;
    assert_int_equal(sscanf(cures_of(&r), "--host-mem %lluM with --nvme %lluM; or ", &host, &disk), 2);
    struct ot_plan_request with = r.request;
    with.budget_bytes[OT_TIER_HOST] = host * MIB;
    assert_false(fits(&with));
    with.budget_bytes[OT_TIER_NVME] = disk * MIB;
    assert_true(fits(&with));
    with.budget_bytes[OT_TIER_HOST] = r.request.budget_bytes[OT_TIER_HOST];
    assert_false(fits(&with));
    ot_options_free(&r.options);
}

/* ---- less work ---- */

static void a_smaller_step_is_the_largest_that_fits(void **state) {
    (void)state;
    struct refused r;
    unsigned long long tokens;
    char k;
    for (int micro = 0; micro <= 4; micro += 4) {
        open_refused(&r, "--ram 8G");
        r.request.budget_bytes[OT_TIER_GPU] = r.request.budget_bytes[OT_TIER_HOST] = (size_t)700 * MIB;
        r.request.budget_bytes[OT_TIER_NVME] = MIB;
        r.request.step_sequences = 1000;
        r.request.micro_sequences = micro;
        r.request.activations = OT_HOME_GPU;
        r.request.rounds = 1;
        r.cure.most_gpu_bytes = r.cure.most_host_bytes = MIB;
        const char *at = strstr(cures_of(&r), "--tokens-per-step ");
        assert_non_null(at);
        int n = sscanf(at, "--tokens-per-step %llu%c", &tokens, &k);
        tokens *= n == 2 && k == 'k' ? 1024 : 1;
        assert_int_equal(tokens % 512, 0);
        assert_int_equal(n == 2 && k == 'k', tokens % 1024 == 0);
        for (unsigned more = 0; more < 2; more++) {
            struct ot_plan_request with = r.request;
            with.step_sequences = (int64_t)(tokens / 512 + more);
            with.is_trial = true;
            assert_int_equal(fits(&with), !more);
        }
        ot_options_free(&r.options);
    }
}

static void shorter_rows_are_the_longest_that_fit(void **state) {
    (void)state;
    struct refused r;
    unsigned long long tokens;
    char k;
    open_refused(&r, "--ram 8G");
    r.request.budget_bytes[OT_TIER_GPU] = r.request.budget_bytes[OT_TIER_HOST] = (size_t)300 * MIB;
    r.request.budget_bytes[OT_TIER_NVME] = MIB;
    r.request.sequence_tokens = 64 << 10;
    r.cure.most_gpu_bytes = r.cure.most_host_bytes = MIB;
    const char *at = strstr(cures_of(&r), "--seq-len ");
    assert_non_null(at);
    int n = sscanf(at, "--seq-len %llu%c", &tokens, &k);
    tokens *= n == 2 && k == 'k' ? 1024 : 1;
    assert_int_equal(tokens % 512, 0); /* 64k in 128 steps */
    for (unsigned more = 0; more < 2; more++) {
        struct ot_plan_request with = r.request;
        with.sequence_tokens = (int64_t)tokens + 512 * more;
        with.step_sequences = r.request.sequence_tokens / with.sequence_tokens;
        with.is_trial = true;
        assert_int_equal(fits(&with), !more);
    }
    ot_options_free(&r.options);
}

/* ---- what the user forced ---- */

static void only_given_options_are_to_be_left_out(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--rounds 1 --slots 8 --recompute none");
    r.request.budget_bytes[OT_TIER_GPU] = r.request.budget_bytes[OT_TIER_HOST] = (size_t)300 * MIB;
    r.request.step_sequences = 64;
    r.request.rounds = 1;
    r.request.keep = OT_KEEP_ALL;
    r.request.kept = OT_HOME_GPU;
    r.request.activations = OT_HOME_GPU;
    char cures[400];
    snprintf(cures, sizeof cures, "%s", cures_of(&r)); /* another failure overwrites the sentence */
    static const char *const names[] = {"home",      "optimizer-engine", "micro-batch",
                                        "recompute", "rounds",           "slots"};
    int left_out = 0;
    for (int i = 0; i < 6; i++) {
        struct ot_plan_request with = r.request;
        char cure[64];
        snprintf(cure, sizeof cure, "leave out --%s", names[i]);
        bool is_named = strstr(cures, cure) != NULL;
        assert_true(!is_named || i >= 3); /* the others were not given */
        with.keep = i == 3 ? OT_KEEP_CHOSEN : with.keep;
        with.rounds = i == 4 ? 0 : with.rounds;
        assert_int_equal(is_named, i >= 3 && fits(&with));
        left_out += is_named;
    }
    assert_true(left_out > 0);
    ot_options_free(&r.options);
}

/* Two options that are each in the way are named together. */
static void options_are_left_out_together(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--home weights=gpu,state=gpu --recompute none --micro-batch 8");
    r.request.budget_bytes[OT_TIER_GPU] = (size_t)120 * MIB;
    r.request.budget_bytes[OT_TIER_HOST] = (size_t)600 * MIB;
    r.request.weights = r.request.state = OT_HOME_GPU;
    r.request.keep = OT_KEEP_ALL;
    r.request.kept = OT_HOME_GPU;
    r.request.step_sequences = r.request.micro_sequences = 64;
    assert_memory_equal(cures_of(&r), "leave out --home, --micro-batch, --recompute;", 45);
    ot_options_free(&r.options);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_rounded_up_and_within_the_machine),
        cmocka_unit_test(two_tiers_are_named_where_one_is_not_enough),
        cmocka_unit_test(memory_that_is_named_is_enough_and_no_more),
        cmocka_unit_test(a_disk_takes_what_the_host_cannot),
        cmocka_unit_test(a_disk_and_host_memory_go_together),
        cmocka_unit_test(a_smaller_step_is_the_largest_that_fits),
        cmocka_unit_test(shorter_rows_are_the_longest_that_fit),
        cmocka_unit_test(only_given_options_are_to_be_left_out),
        cmocka_unit_test(options_are_left_out_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
