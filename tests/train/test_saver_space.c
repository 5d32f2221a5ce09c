/* What the saver needs before and between saves: disk space, data that the store keeps, time. */
#include "tests/train/saver_run.h"

#include <sys/resource.h>

#include "src/train/disk_reserve.h"

enum { BLOCK = 4096 };

/* ---- disk space ---- */

static int64_t blocks(int64_t bytes) {
    return (bytes + BLOCK - 1) / BLOCK * BLOCK;
}

/* Skips the test on file systems that reserve nothing. */
static void need_reserving(const struct run *r) {
    assert_int_equal(ot_disk_reserve(r->root, 1 << 20), 0);
    bool reserves = ot_disk_reserved(r->root) == 1 << 20;
    check_ok(ot_disk_reserve(r->root, 0));
    if (!reserves) {
        print_message("skipped: the file system of %s does not reserve exactly\n", r->root);
        skip();
    }
}

static int64_t own_bytes(const struct run *r) {
    int64_t copied, referred;
    ot_saver_own_bytes(&r->session, &copied, &referred);
    return copied;
}

/* Room for `checkpoints` checkpoints of this many bytes, and for the model, must be reserved. */
static void expect_reserved(const struct run *r, int64_t checkpoints, int64_t bytes) {
    assert_int_equal(ot_disk_reserved(r->parent), blocks(checkpoints * bytes + MODEL_BYTES));
}

static void space_for_all_that_is_to_come(void **state) {
    struct run *r = *state;
    need_reserving(r);
    open_saver(r, "--save-every 10 --keep 2");
    int64_t bytes = own_bytes(r), params = ot_model_param_count(&r->session.model.config);
    assert_true(bytes >= 12 * params && bytes < 13 * params);
    expect_reserved(r, 3, bytes);
    save(r, 1, NAN);
    expect_reserved(r, 2, bytes);
    save(r, 2, NAN);
    expect_reserved(r, 1, bytes);
    struct ot_checkpoint_record record = record_of(3, NAN);
    check_ok(ot_saver_begin(r->saver, &record, 0));
    expect_reserved(r, 0, bytes); /* the writer has the rest */
    check_ok(ot_saver_poll(r->saver, true));
    expect_reserved(r, 1, bytes);
    reopen(r, 3);
    expect_reserved(r, 1, bytes);
    ot_saver_make_room(r->saver);
    assert_int_equal(ot_disk_reserved(r->parent), 0);
}

/* The best state needs its weights alone. While it is made, it takes the place of the next checkpoint. */
static void space_for_the_best_state(void **state) {
    struct run *r = *state;
    need_reserving(r);
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 1 --dtype bf16");
    int64_t bytes = own_bytes(r), best = ot_saver_own_best_bytes(&r->session);
    assert_true(best < bytes / 2);
    assert_int_equal(ot_disk_reserved(r->parent), blocks(2 * bytes + best + MODEL_BYTES));
    save(r, 1, NAN);
    assert_int_equal(ot_disk_reserved(r->parent), blocks(bytes + best + MODEL_BYTES));
    struct ot_checkpoint_record record = record_of(2, 3);
    check_ok(ot_saver_begin_best(r->saver, &record, 0));
    expect_reserved(r, 1, bytes); /* the writer has the rest */
    check_ok(ot_saver_poll(r->saver, true));
    expect_reserved(r, 1, bytes);
    record = record_of(3, 2);
    check_ok(ot_saver_begin_best(r->saver, &record, 0));
    assert_int_equal(ot_disk_reserved(r->parent), blocks(bytes - best + MODEL_BYTES));
    check_ok(ot_saver_poll(r->saver, true));
    expect_reserved(r, 1, bytes);
    save(r, 4, 1);
    expect_reserved(r, 1, bytes);
    struct ot_saver sv = {.config = r->config, .parent = r->parent, .keeps_best = true};
    r->config.model_bytes = sv.config.model_bytes = (int64_t)1 << 60;
    check_fails(ot_saver_hold_space(&sv), OT_E_IO, "the model and 1 checkpoint at a time, but only");
    check_ok(ot_checkpoint_clear(r->parent));
    check_fails(ot_saver_hold_space(&sv), OT_E_IO,
                "the model, 2 checkpoints at a time and the best state, but only");
}

/* Each directory needs room for the parts of the ranks that share it. Without shards it has one whole
 * checkpoint, however many ranks there are. */
static void space_for_the_parts_of_the_ranks_that_share_a_directory(void **state) {
    static const struct {
        struct ot_shard shard;
        bool is_local;
        int sharers, parts; /* of one rank */
    } cases[] = {
        {{.ranks = 1}, false, 1, 1},
        {{.ranks = 4, .mode = OT_SHARD_FULL}, false, 4, 4},
        {{.ranks = 4, .mode = OT_SHARD_FULL}, true, 2, 2},
        {{.ranks = 4, .mode = OT_SHARD_FULL}, true, 1, 1},
        {{.ranks = 4, .mode = OT_SHARD_STATE}, true, 3, 3},
        {{.ranks = 4, .mode = OT_SHARD_NONE}, false, 4, 1},
        {{.ranks = 4, .mode = OT_SHARD_NONE}, true, 2, 1},
    };
    struct run *r = *state;
    need_reserving(r);
    plan(r, "--save-every 10 --keep 2");
    int64_t whole = own_bytes(r);
    assert_int_equal(mkdir(r->parent, 0777), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ot_saver sv = {.config = r->config, .parent = r->parent, .leads = true};
        r->session.plan.chosen.shard = cases[i].shard;
        r->sharing.is_local = sv.is_local = cases[i].is_local;
        r->sharing.sharers = cases[i].sharers;
        int64_t own = own_bytes(r), copied, referred;
        bool has_part = cases[i].shard.ranks > 1 && cases[i].shard.mode != OT_SHARD_NONE;
        assert_true(has_part ? own < whole / 2 && own >= whole / 4 : own == whole);
        check_ok(ot_saver_hold_space(&sv));
        expect_reserved(r, 3, cases[i].parts * own);
        ot_saver_bytes(&r->session, &copied, &referred);
        assert_int_equal(copied, has_part ? 4 * own : own);
        assert_int_equal(referred, 0);
    }
    r->session.plan.chosen.shard = (struct ot_shard){0};
}

/* An error before step 1. Checkpoints of this run have their space; those of another run stay meanwhile. */
static void a_disk_that_is_too_small_is_an_error(void **state) {
    struct run *r = *state;
    plan(r, "--save-every 10 --keep 2");
    check_ok(ot_saver_check_space(&r->config));
    r->config.model_bytes = (int64_t)1 << 60;
    const char *of_three = "are needed for the model and 3 checkpoints at a time, but only";
    check_fails(ot_saver_check_space(&r->config), OT_E_IO, of_three);
    assert_int_equal(mkdir(r->parent, 0777), 0);
    write_under(r->parent, "step-00000001/manifest.bin", "");
    write_under(r->parent, "step-00000002/manifest.bin", "");
    check_fails(ot_saver_check_space(&r->config), OT_E_IO, of_three);
    r->config.is_own = true;
    check_fails(ot_saver_check_space(&r->config), OT_E_IO, "the model and 1 checkpoint at a time, but");
    write_under(r->parent, "step-00000003/manifest.bin", "");
    write_under(r->parent, "step-00000004/manifest.bin", "");
    check_fails(ot_saver_check_space(&r->config), OT_E_IO, "the model and 0 checkpoints at a time, but");
    r->settings.in_effect.save_every = (struct ot_every){0};
    check_ok(ot_saver_check_space(&r->config)); /* a checkpoint may never be made */
}

/* If there is no room for the best state, the run goes on without it, unless it was asked for. There is no
 * room for the model either here, so both are refused, and the words tell which one was tried last. */
static void without_room_the_best_state_is_given_up_first(void **state) {
    struct run *r = *state;
    need_reserving(r);
    for (int asked = 0; asked < 2; asked++) {
        r->config.evaluates = true;
        plan(r, asked ? "--save-every 10 --result best" : "--save-every 10 --result last");
        r->config.model_bytes = (int64_t)1 << 60;
        assert_int_equal(mkdir(r->parent, 0777), asked ? -1 : 0);
        struct ot_saver sv = {.config = r->config, .parent = r->parent, .leads = true};
        int rc = ot_saver_hold_first_space(&sv);
        check_fails(rc, OT_E_IO,
                    asked ? "2 checkpoints at a time and the best state" : "2 checkpoints at a time, but");
        assert_int_equal(strncmp(ot_error_text(), "--result best: ", 15) == 0, asked);
        assert_int_equal(sv.keeps_best, asked);
        ot_session_close(&r->session);
        ot_run_log_close(r->log);
        ot_options_free(&r->options);
        memset(&r->session, 0, sizeof r->session);
        memset(&r->options, 0, sizeof r->options);
        r->log = NULL;
    }
}

/* A small model needs few slots, and a large one no more than keep a disk busy. */
static void slots_are_few(void **state) {
    (void)state;
    assert_int_equal(ot_saver_slots(100000, OT_BF16), 2);
    assert_int_equal(ot_saver_slots(100 << 20, OT_BF16), 12);
    assert_int_equal(ot_saver_slots((int64_t)7 << 30, OT_BF16), 16);
}

/* `ulimit -f`: the process would be killed at the first write beyond it. */
static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_limit_of_file_sizes_is_an_error(void **state) {
    struct run *r = *state;
    struct rlimit before;
    plan(r, "--save-every 10");
    int64_t bytes = own_bytes(r);
    r->config.model_bytes = bytes / 2;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit_files((rlim_t)bytes);
    check_ok(ot_saver_check_space(&r->config));
    r->config.model_bytes = bytes + 1;
    int model = ot_saver_check_space(&r->config);
    bool says_model = strstr(ot_error_text(), "the model needs a file of up to") != NULL;
    limit_files((rlim_t)bytes - 1);
    int checkpoint = ot_saver_check_space(&r->config);
    limit_files(before.rlim_cur);
    assert_int_equal(model, -OT_E_IO);
    assert_true(says_model);
    check_fails(checkpoint, OT_E_IO, "a checkpoint of this run needs a file of up to");
    check_fails(checkpoint, OT_E_IO, "but `ulimit -f` allows only");
    check_ok(ot_disk_check_file_size("a file", before.rlim_cur == RLIM_INFINITY ? INT64_MAX : 1));
}

/* The checkpoints that refer to the store: those that stay, and the one that is made. The best state is
 * copied. */
static void the_plan_keeps_data_for_the_checkpoints_that_stay(void **state) {
    struct run *r = *state;
    plan(r, "NVME --save-every 10 --keep 2");
    struct ot_options *o = &r->settings.in_effect;
    o->eval_fraction = 0.1;
    assert_int_equal(ot_saver_pinned_contents(&r->session, r->parent), 3);
    o->eval_fraction = 0;
    assert_int_equal(ot_saver_pinned_contents(&r->session, r->parent), 3);
    /* State and weights lie on nvme: all is referred to, or all is copied. */
    int64_t copied, referred, params = ot_model_param_count(&r->session.model.config);
    ot_saver_own_bytes(&r->session, &copied, &referred);
    assert_true(copied == 0 && referred >= 12 * params && referred < 14 * params);
    r->session.plan.chosen.pinned_contents = 0;
    ot_saver_own_bytes(&r->session, &copied, &referred);
    assert_true(referred == 0 && copied >= 12 * params && copied < 14 * params);
    o->keep = OT_PLAN_MAX_PINNED_CONTENTS - 1;
    assert_int_equal(ot_saver_pinned_contents(&r->session, r->parent), OT_PLAN_MAX_PINNED_CONTENTS);
    o->keep++;
    assert_int_equal(ot_saver_pinned_contents(&r->session, r->parent), 0);
    o->keep = 1;
    r->session.machine.store.no_verify = true;
    assert_int_equal(ot_saver_pinned_contents(&r->session, r->parent), 0);
    r->session.machine.store.no_verify = false;
    r->session.machine.store.n_dirs = 0;
    assert_int_equal(ot_saver_pinned_contents(&r->session, r->parent), 0);
}

/* ---- time ---- */

/* Before the first checkpoint the trial flush says how long one takes, and then the last one does. */
static void times_are_those_of_the_last_save(void **state) {
    struct run *r = *state;
    open_saver(r, "--save-every 10 --grace 60s");
    double flush = r->saver->flush_seconds;
    assert_true(flush > 0 && ot_saver_seconds(r->saver) > flush);
    save(r, 1, NAN);
    assert_true(r->saver->seconds > 0);
    r->saver->seconds = 1000;
    assert_true(ot_saver_seconds(r->saver) == 1000);
    int64_t bytes = own_bytes(r);
    double once = ot_saver_model_seconds(r->saver, bytes),
           twice = ot_saver_model_seconds(r->saver, 2 * bytes);
    /* a model has some files, each of which is flushed */
    assert_true(once > 1000 + 5 * flush && once < 1000 + 20 * flush && fabs(twice - once - 1000) < 1e-6);
}

static void nothing_is_timed_without_a_grace(void **state) {
    struct run *r = *state;
    open_saver(r, "--save-every 10");
    assert_true(ot_saver_seconds(r->saver) == 0);
}

int main(void) {
#define saver_test(test) cmocka_unit_test_setup_teardown(test, open_folder, close_run)
    const struct CMUnitTest tests[] = {
        saver_test(space_for_all_that_is_to_come),
        saver_test(space_for_the_best_state),
        saver_test(space_for_the_parts_of_the_ranks_that_share_a_directory),
        saver_test(a_disk_that_is_too_small_is_an_error),
        saver_test(without_room_the_best_state_is_given_up_first),
        cmocka_unit_test(slots_are_few),
        saver_test(a_limit_of_file_sizes_is_an_error),
        saver_test(the_plan_keeps_data_for_the_checkpoints_that_stay),
        saver_test(times_are_those_of_the_last_save),
        saver_test(nothing_is_timed_without_a_grace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
