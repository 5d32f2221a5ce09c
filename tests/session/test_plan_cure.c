/* The options that a refusal names: each is tried, none is larger than the machine, and the sizes and lengths
 * are the least and the most that fit. */
#include "src/session/plan_request.h"

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

/* The budgets of the device and of the host. */
static void set_room(struct refused *r, size_t gpu_mib, size_t host_mib) {
    r->request.budget_bytes[OT_TIER_GPU] = gpu_mib * MIB;
    r->request.budget_bytes[OT_TIER_HOST] = host_mib * MIB;
}

static bool fits(const struct ot_plan_request *request) {
    struct ot_plan_request trial = *request;
    struct ot_plan plan;
    trial.is_trial = true;
    if (ot_plan_make(&trial, &plan) < 0)
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
    set_room(&r, 100, 20);
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
    set_room(&r, 100, 60);
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
    set_room(&r, 100, 1);
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

/* Where the device uses RAM, less for the device leaves more for the host tier. */
static void less_for_the_device_is_the_most_that_fits(void **state) {
    (void)state;
    int named = 0;
    for (int i = 0; i < 3; i++) {
        struct ot_machine machine = {.ram_bytes = 1 << 30, .free_bytes = (int64_t)(250 + 150 * i) * MIB};
        struct refused r;
        char want[64] = "none";
        open_refused(&r, "--gpu-mem 777M");
        r.request.step_sequences = 16;
        r.cure.is_described = false;
        r.cure.shared = &machine;
        ot_machine_budgets(&machine, r.options.gpu_mem, 0, r.request.budget_bytes);
        const int64_t most = r.options.gpu_mem < machine.free_bytes ? r.options.gpu_mem : machine.free_bytes;
        if (!fits(&r.request)) {
            for (int tenths = 1; tenths < 10; tenths++) {
                struct ot_plan_request with = r.request;
                int64_t mib = most / 10 * tenths / MIB;
                ot_machine_budgets(&machine, mib * MIB, 0, with.budget_bytes);
                if (fits(&with))
                    snprintf(want, sizeof want, "--gpu-mem %lldM", (long long)mib);
            }
            const char *cures = cures_of(&r);
            bool is_first = strncmp(cures, want, strlen(want)) == 0;
            assert_int_equal(is_first, strcmp(want, "none") != 0);
            named += is_first;
        }
        ot_options_free(&r.options);
    }
    assert_true(named > 0);
}

/* ---- less work ---- */

/* A number of tokens as options take it: "3k", "1500". 0: the cures do not name the option. */
static int64_t tokens_of(const char *cures, const char *option) {
    const char *at = strstr(cures, option);
    char *end = NULL;
    if (!at)
        return 0;
    int64_t tokens = strtoll(at + strlen(option), &end, 10);
    assert_true(*end == 'k' || tokens % 1024 != 0);
    return *end == 'k' ? tokens * 1024 : tokens;
}

/* A request that only less work can help: neither tier can have more. */
static void open_work(struct refused *r, size_t mib) {
    open_refused(r, "--ram 8G");
    set_room(r, mib, mib);
    r->request.budget_bytes[OT_TIER_NVME] = MIB;
    r->cure.most_gpu_bytes = r->cure.most_host_bytes = MIB;
}

static void a_smaller_step_is_the_largest_that_fits(void **state) {
    (void)state;
    int named = 0, least = 0;
    for (int i = 0; i < 40; i++) {
        const int64_t micro = i % 2 * 3, low = micro ? micro : 1;
        struct refused r;
        int64_t want = 0;
        open_work(&r, 130 + 5 * (size_t)i);
        r.request.step_sequences = i % 3 ? 24 : 5;
        r.request.micro_sequences = micro;
        r.request.activations = OT_HOME_GPU;
        r.request.rounds = 1;
        for (int64_t n = low; n < r.request.step_sequences; n++) {
            struct ot_plan_request with = r.request;
            with.step_sequences = n;
            want = fits(&with) ? n : want;
        }
        if (!fits(&r.request)) {
            char cures[400];
            snprintf(cures, sizeof cures, "%s", cures_of(&r));
            assert_int_equal(tokens_of(cures, "--tokens-per-step "), want * 512);
            assert_true(want == 0 || !strstr(cures, " with --nvme"));
            named += want > 0;
            least += want == low && low > 1;
        }
        ot_options_free(&r.options);
    }
    assert_true(named > 4 && least > 0);
}

/* Rows are cut to multiples of 128 tokens, and a step keeps its tokens. */
static void check_rows(size_t mib, int64_t tokens, int64_t micro, int64_t step) {
    struct refused r;
    int64_t want = 0;
    open_work(&r, mib);
    r.request.sequence_tokens = tokens;
    r.request.micro_sequences = micro;
    for (int64_t n = step; n < tokens; n += step) {
        struct ot_plan_request with = r.request;
        with.sequence_tokens = n;
        with.step_sequences *= tokens / n;
        with.micro_sequences *= tokens / n;
        want = fits(&with) ? n : want;
    }
    if (!fits(&r.request)) {
        int64_t got = tokens_of(cures_of(&r), "--seq-len ");
        /* A step of longer micro-batches of shorter rows may need more than one of fewer tokens. */
        assert_true(got == want || (micro > 0 && got < want));
    }
    ot_options_free(&r.options);
}

static void shorter_rows_are_the_longest_that_fit(void **state) {
    (void)state;
    for (size_t mib = 130; mib < 190; mib += 30)
        for (int64_t micro = 0; micro < 2; micro++)
            check_rows(mib, 24 * 128 + (mib == 160), micro, 128);
    for (size_t mib = 200; mib < 500; mib += 200)
        check_rows(mib, 64 << 10, 0, 512); /* long rows: 65 to 128 steps */
    check_rows(100, 128, 0, 128);          /* no shorter rows */
}

/* Generation: a shorter text has a smaller cache, and passes in the same pieces. */
static void shorter_texts_are_the_longest_that_fit(void **state) {
    (void)state;
    enum { TEXT = 20000, STEP = 256 };
    for (size_t mib = 100; mib < 1000; mib += 300) {
        struct refused r;
        int64_t want = 0;
        open_refused(&r, "");
        set_room(&r, 100, mib);
        r.cure.most_gpu_bytes = r.cure.most_host_bytes = 0; /* three cures are named, no more */
        r.options.command = OT_COMMAND_GENERATE;
        r.request.train = false;
        r.request.cache = OT_HOME_AUTO;
        r.request.cache_rows = TEXT;
        for (int64_t n = STEP; n < TEXT; n += STEP) {
            struct ot_plan_request with = r.request;
            with.sequence_tokens = n < 512 ? n : 512;
            with.micro_sequences = 0;
            with.cache_rows = n;
            want = fits(&with) ? n : want;
        }
        if (!fits(&r.request))
            assert_int_equal(tokens_of(cures_of(&r), "texts of at most this many tokens: "), want);
        else
            assert_int_equal(mib, 700);
        ot_options_free(&r.options);
    }
}

/* The longest rows that are a multiple of 128, if the rows are one token longer. */
static void rows_lose_one_token_if_that_is_enough(void **state) {
    (void)state;
    struct refused r;
    struct ot_plan plan;
    open_work(&r, 400);
    r.request.budget_bytes[OT_TIER_GPU] = MIB;
    r.request.sequence_tokens = 24 * 128;
    assert_int_equal(ot_plan_make(&r.request, &plan), -OT_E_BUDGET);
    r.request.budget_bytes[OT_TIER_GPU] = plan.shortage.alone[OT_TIER_GPU];
    assert_true(fits(&r.request));
    r.request.sequence_tokens++;
    assert_int_equal(tokens_of(cures_of(&r), "--seq-len "), 24 * 128);
    ot_options_free(&r.options);
}

static void a_disk_and_shorter_rows_go_together(void **state) {
    (void)state;
    struct refused r;
    unsigned long long disk;
    int named = 0;
    for (size_t mib = 24; mib < 80; mib += 24) {
        open_work(&r, mib);
        r.request.budget_bytes[OT_TIER_HOST] = 16 * (size_t)MIB;
        r.request.budget_bytes[OT_TIER_NVME] = 0;
        r.request.sequence_tokens = 4096;
        struct ot_plan_request with = r.request;
        char cures[400];
        snprintf(cures, sizeof cures, "%s", cures_of(&r));
        const char *at = strstr(cures, " with --nvme ");
        if (at) {
            assert_int_equal(sscanf(at, " with --nvme %lluM", &disk), 1);
            with.sequence_tokens = tokens_of(cures, "--seq-len ");
            with.step_sequences = 4096 / with.sequence_tokens;
            assert_false(fits(&with));
            with.budget_bytes[OT_TIER_NVME] = disk * MIB;
            assert_true(fits(&with));
            with.budget_bytes[OT_TIER_NVME] = 1024 * GIB;
            with.sequence_tokens += 128;
            with.step_sequences = 4096 / with.sequence_tokens;
            assert_false(fits(&with));
            named++;
        }
        ot_options_free(&r.options);
    }
    assert_true(named > 0);
    /* Rows of 128 tokens are not cut, even if rows of one token would fit. */
    for (size_t kib = 16 << 10; kib < 40 << 10; kib += 768) {
        open_work(&r, 1);
        r.request.budget_bytes[OT_TIER_GPU] = kib << 10;
        r.request.budget_bytes[OT_TIER_HOST] = 16 * (size_t)MIB;
        r.request.budget_bytes[OT_TIER_NVME] = 0;
        r.request.sequence_tokens = 128;
        if (!fits(&r.request))
            assert_null(strstr(cures_of(&r), "--seq-len"));
        ot_options_free(&r.options);
    }
}

/* ---- what the user forced ---- */

static void only_given_options_are_to_be_left_out(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--rounds 1 --slots 8 --recompute none");
    set_room(&r, 300, 300);
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
    set_room(&r, 120, 600);
    r.request.weights = r.request.state = OT_HOME_GPU;
    r.request.keep = OT_KEEP_ALL;
    r.request.kept = OT_HOME_GPU;
    r.request.step_sequences = r.request.micro_sequences = 64;
    assert_memory_equal(cures_of(&r), "leave out --home, --micro-batch, --recompute;", 45);
    ot_options_free(&r.options);
}

static void the_share_of_an_engine_is_left_out(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--optimizer-engine cpu");
    set_room(&r, 1024, 30);
    r.request.fractions[OT_TILE_CPU] = 1;
    const char want[] = "leave out --optimizer-engine; or ";
    assert_memory_equal(cures_of(&r), want, strlen(want));
    ot_options_free(&r.options);
}

/* A sentence has three cures. The shortage is made up: everything fits. */
static void three_cures_are_named(void **state) {
    (void)state;
    struct refused r;
    open_refused(&r, "--micro-batch 1 --recompute all --rounds 1 --slots 2");
    memcpy(r.request.budget_bytes, (size_t[]){GIB, GIB, 0}, sizeof r.request.budget_bytes);
    r.shortage.alone[OT_TIER_GPU] = GIB;
    check_cures(&r, "leave out --micro-batch; or leave out --recompute; or leave out --rounds");
    ot_options_free(&r.options);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_rounded_up_and_within_the_machine),
        cmocka_unit_test(two_tiers_are_named_where_one_is_not_enough),
        cmocka_unit_test(memory_that_is_named_is_enough_and_no_more),
        cmocka_unit_test(a_disk_takes_what_the_host_cannot),
        cmocka_unit_test(a_disk_and_host_memory_go_together),
        cmocka_unit_test(less_for_the_device_is_the_most_that_fits),
        cmocka_unit_test(a_smaller_step_is_the_largest_that_fits),
        cmocka_unit_test(shorter_rows_are_the_longest_that_fit),
        cmocka_unit_test(shorter_texts_are_the_longest_that_fit),
        cmocka_unit_test(rows_lose_one_token_if_that_is_enough),
        cmocka_unit_test(a_disk_and_shorter_rows_go_together),
        cmocka_unit_test(only_given_options_are_to_be_left_out),
        cmocka_unit_test(options_are_left_out_together),
        cmocka_unit_test(the_share_of_an_engine_is_left_out),
        cmocka_unit_test(three_cures_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
