/* The saver: which checkpoints stay, and what a save that failed changes for the next one. */
#include "tests/train/saver_run.h"

#include "src/train/disk_reserve.h"

/* ---- which checkpoints stay ---- */

static void expect_best(const struct run *r, int64_t step, double eval) {
    double loss;
    assert_int_equal(ot_saver_best(r->saver, &loss), step);
    if (step >= 0)
        assert_true(loss == eval);
}

static bool wants(const struct run *r, int64_t step, double cost) {
    return ot_saver_wants_best(r->saver, step, cost);
}

/* The best state is saved by its weights alone. The one before it is removed after that. */
static void the_best_stays_beside_the_newest(void **state) {
    struct run *r = *state;
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 1");
    assert_true(r->saver->keeps_best);
    assert_true(wants(r, 1, 9) && !wants(r, 1, NAN));
    save(r, 1, NAN);
    expect_best(r, -1, 0);
    save_best(r, 2, 3);
    expect_best(r, 2, 3);
    assert_true(wants(r, 3, 2.9) && !wants(r, 3, 3) && !wants(r, 2, 3));
    save_best(r, 3, 2);
    expect_steps(r->best, STEPS(3));
    expect_steps(r->parent, STEPS(1));
    save(r, 4, 2);
    save(r, 5, NAN);
    save(r, 6, 2.5);
    expect_best(r, 3, 2);
    expect_steps(r->parent, STEPS(6));
    expect_steps(r->best, STEPS(3));
    assert_int_equal(ot_saver_last_step(r->saver), 6);
    reopen(r, 6);
    expect_best(r, 3, 2);
    save_best(r, 7, 1);
    expect_best(r, 7, 1);
    expect_steps(r->best, STEPS(7));
    expect_steps(r->parent, STEPS(6));
    assert_int_equal(ot_saver_last_step(r->saver), 6);
    assert_true(ot_saver_has(r->saver, 6) && !ot_saver_has(r->saver, 7));
}

static int64_t bytes_of(const char *parent, int64_t step) {
    struct ot_checkpoint *checkpoint;
    char *dir;
    check_ok(ot_checkpoint_name(parent, step, &dir));
    check_ok(ot_checkpoint_open(dir, &checkpoint));
    int64_t bytes = ot_checkpoint_bytes(checkpoint);
    ot_checkpoint_close(checkpoint);
    free(dir);
    return bytes;
}

/* In bf16 a checkpoint has 12 bytes a parameter, and the best state 4. Both have the same values. */
static void the_best_state_is_a_third_of_a_checkpoint(void **state) {
    struct run *r = *state;
    int64_t copied, referred;
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --dtype bf16");
    save_best(r, 1, 3);
    save(r, 1, 3);
    ot_saver_bytes(&r->session, &copied, &referred);
    int64_t best = ot_saver_best_bytes(&r->session), params = ot_model_param_count(&r->session.model.config);
    assert_true(best >= 4 * params && best < 5 * params && copied >= 12 * params);
    assert_true(bytes_of(r->best, 1) < 5 * params && bytes_of(r->parent, 1) >= 12 * params);
    expect_best(r, 1, 3);
    assert_false(r->saver->best_is_whole); /* the weights alone came first */
    const char *parents[] = {r->parent, r->best};
    float values[2][64];
    for (int i = 0; i < 2; i++) {
        struct ot_checkpoint *checkpoint;
        struct ot_checkpoint_master *master;
        char *dir;
        check_ok(ot_checkpoint_name(parents[i], 1, &dir));
        check_ok(ot_checkpoint_open(dir, &checkpoint));
        check_ok(ot_checkpoint_master_open(checkpoint, OT_IO_AUTO, NULL, &master));
        check_ok(ot_checkpoint_master_get(master, 1, 0, 64, values[i]));
        ot_checkpoint_master_close(master);
        ot_checkpoint_close(checkpoint);
        free(dir);
    }
    assert_memory_equal(values[0], values[1], sizeof values[0]);
}

/* A signal may end the run after an evaluation and before its state is saved alone: then the checkpoint of
 * the stop has it. It stays until a better state is saved, or this one by its weights alone. */
static void a_rated_checkpoint_stays_until_a_better_state_is_saved(void **state) {
    struct run *r = *state;
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 1");
    save_best(r, 1, 5);
    save(r, 2, 3);
    assert_true(r->saver->best_is_whole);
    save(r, 3, NAN);
    expect_best(r, 2, 3);
    expect_steps(r->parent, STEPS(3, 2));
    reopen(r, 3);
    assert_true(r->saver->best_is_whole);
    expect_best(r, 2, 3);
    assert_true(wants(r, 2, 3) && !wants(r, 3, 3)); /* the run resumes after step 2, or after step 3 */
    save_best(r, 2, 3);
    assert_false(r->saver->best_is_whole || wants(r, 2, 3));
    expect_steps(r->best, STEPS(2));
    expect_steps(r->parent, STEPS(3));
    save(r, 4, 2);
    save(r, 5, NAN);
    expect_steps(r->parent, STEPS(5, 4));
    save_best(r, 6, 1);
    expect_best(r, 6, 1);
    expect_steps(r->best, STEPS(6));
    expect_steps(r->parent, STEPS(5));
}

/* The run was killed after a better state had its name, and before the older one was removed. */
static void of_two_best_states_the_better_one_stays(void **state) {
    struct run *r = *state;
    char *dir, kept[700];
    r->config.evaluates = true;
    open_saver(r, "--save-every 10");
    save(r, 1, NAN);
    save_best(r, 2, 3);
    check_ok(ot_checkpoint_name(r->best, 2, &dir));
    snprintf(kept, sizeof kept, "%s/kept", r->best);
    assert_int_equal(rename(dir, kept), 0);
    save_best(r, 3, 2.5);
    assert_int_equal(rename(kept, dir), 0);
    free(dir);
    expect_steps(r->best, STEPS(3, 2));
    reopen(r, 1);
    expect_best(r, 3, 2.5);
    expect_steps(r->best, STEPS(3));
    save(r, 4, 2);
    save(r, 5, 2);
    reopen(r, 5);
    expect_best(r, 4, 2); /* of equal ones the oldest */
    expect_steps(r->parent, STEPS(5, 4));
}

static void a_run_that_does_not_evaluate_keeps_no_best(void **state) {
    struct run *r = *state;
    open_saver(r, "--save-every 10 --keep 1");
    save(r, 1, 1);
    save(r, 2, 2);
    expect_steps(r->parent, STEPS(2));
    assert_false(wants(r, 2, 0.5));
}

static void without_regular_saves_the_best_is_not_asked_for(void **state) {
    struct run *r = *state;
    r->config.evaluates = true;
    open_saver(r, "--save-every never");
    assert_false(wants(r, 1, 1));
    assert_int_equal(ot_disk_reserved(r->parent), 0);
    assert_false(ot_saver_is_regular(r->session.options));
}

/* The evaluated state that is being saved goes for a later one with the same loss. */
static void the_state_under_way_counts(void **state) {
    struct run *r = *state;
    struct ot_checkpoint_record record = record_of(1, 3), next = record_of(2, 2);
    r->config.evaluates = true;
    open_saver(r, "--save-every 10");
    check_ok(ot_saver_begin_best(r->saver, &record, 0));
    assert_true(ot_saver_is_under_way(r->saver));
    assert_true(wants(r, 2, 2.5));
    assert_false(wants(r, 2, 3));
    assert_false(wants(r, 2, 3.5));
    check_ok(ot_saver_poll(r->saver, true));
    assert_int_equal(ot_saver_last_step(r->saver), -1); /* no run can resume from it */
    assert_null(ot_saver_last_dir(r->saver));
    check_ok(ot_saver_begin(r->saver, &next, 0)); /* a checkpoint under way is not the best state alone */
    assert_true(wants(r, 2, 2));
    check_ok(ot_saver_poll(r->saver, true));
    assert_int_equal(ot_saver_last_step(r->saver), 2);
    assert_non_null(ot_saver_last_dir(r->saver));
    assert_true(wants(r, 3, 1.5));
}

static void a_caller_may_wait_for_the_checkpoint_under_way(void **state) {
    struct run *r = *state;
    struct ot_checkpoint_record record = record_of(1, NAN);
    open_saver(r, "--save-every 10");
    assert_true(ot_saver_wait(r->saver, 0)); /* there is none */
    check_ok(ot_saver_begin(r->saver, &record, 0));
    assert_true(ot_saver_wait(r->saver, 60));
    assert_false(ot_saver_is_under_way(r->saver));
    assert_true(ot_saver_has(r->saver, 1));
}

/* ---- one step is saved once ---- */

static int64_t written_at(const struct run *r) {
    struct stat info;
    assert_int_equal(stat(ot_saver_last_dir(r->saver), &info), 0);
    return (int64_t)info.st_ino;
}

static void a_step_is_saved_once(void **state) {
    struct run *r = *state;
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 9");
    save(r, 1, NAN);
    int64_t first = written_at(r);
    save(r, 1, NAN);
    save(r, 1, 3);
    assert_int_equal(written_at(r), first);
    reopen(r, 1);
    assert_true(ot_saver_has(r->saver, 1) && !ot_saver_has(r->saver, 2));
    save(r, 1, 3);
    assert_int_equal(written_at(r), first);
    check_ok(ot_checkpoint_remove(ot_saver_last_dir(r->saver)));
    assert_false(ot_saver_has(r->saver, 1));
    save(r, 1, 3);
    expect_steps(r->parent, STEPS(1));
}

/* ---- when ---- */

static void a_save_is_due_by_steps_epochs_or_time(void **state) {
    struct run *r = *state;
    struct ot_every *every = &r->settings.in_effect.save_every;
    open_saver(r, "--save-every 10");
    assert_int_equal(ot_saver_next_step(r->saver, 0), 10);
    assert_int_equal(ot_saver_next_step(r->saver, 9), 10);
    assert_int_equal(ot_saver_next_step(r->saver, 10), 20);
    assert_false(ot_saver_is_due(r->saver));
    *every = (struct ot_every){.epoch = true};
    assert_int_equal(ot_saver_next_step(r->saver, 0), 7);
    assert_int_equal(ot_saver_next_step(r->saver, 13), 14);
    assert_int_equal(ot_saver_next_step(r->saver, 14), 21);
    *every = (struct ot_every){.seconds = 3600};
    assert_int_equal(ot_saver_next_step(r->saver, 5), INT64_MAX);
    assert_false(ot_saver_is_due(r->saver));
    r->saver->last_begun -= 3700;
    assert_true(ot_saver_is_due(r->saver));
    save(r, 1, NAN); /* the next save is due an hour after this one began */
    assert_false(ot_saver_is_due(r->saver));
    *every = (struct ot_every){0};
    assert_int_equal(ot_saver_next_step(r->saver, 5), INT64_MAX);
    r->saver->last_begun -= 1e9;
    assert_false(ot_saver_is_due(r->saver));
}

/* ---- the checkpoints of an earlier run ---- */

static void a_new_run_removes_old_checkpoints_after_its_first(void **state) {
    struct run *r = *state;
    open_saver(r, "--save-every 10 --keep 9");
    save(r, 1, NAN);
    save(r, 2, NAN);
    ot_saver_close(r->saver);
    check_ok(ot_saver_open(&r->config, &r->saver)); /* a new run */
    expect_steps(r->parent, STEPS(0));
    expect_steps(r->aside, STEPS(2, 1));
    assert_int_equal(ot_saver_last_step(r->saver), -1);
    ot_saver_close(r->saver);
    check_ok(ot_saver_open(&r->config, &r->saver)); /* another one, as the first was killed */
    expect_steps(r->aside, STEPS(2, 1));
    save(r, 5, NAN);
    expect_steps(r->parent, STEPS(5));
    assert_int_equal(access(r->aside, F_OK), -1);
    /* The removal is made once: what another program puts there stays. */
    assert_int_equal(mkdir(r->aside, 0777), 0);
    save(r, 6, NAN);
    assert_int_equal(access(r->aside, F_OK), 0);
}

/* Also if it is all that the other run has left. */
static void a_new_run_sets_the_best_state_aside_too(void **state) {
    struct run *r = *state;
    char aside[700];
    snprintf(aside, sizeof aside, "%s/best", r->aside);
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 9");
    save_best(r, 1, 3);
    ot_saver_close(r->saver);
    expect_steps(r->best, STEPS(1));
    check_ok(ot_saver_open(&r->config, &r->saver)); /* a new run */
    expect_best(r, -1, 0);
    expect_steps(aside, STEPS(1));
    assert_int_equal(access(r->best, F_OK), -1);
    save_best(r, 2, 4);
    expect_best(r, 2, 4);
    assert_int_equal(access(r->aside, F_OK), -1);
}

static void the_model_alone_replaces_old_checkpoints_too(void **state) {
    struct run *r = *state;
    open_saver(r, "--save-every 10");
    save(r, 1, NAN);
    ot_saver_close(r->saver);
    check_ok(ot_saver_open(&r->config, &r->saver));
    check_ok(ot_saver_complete(r->saver));
    assert_int_equal(access(r->aside, F_OK), -1);
    assert_false(ot_checkpoint_is_complete(r->parent)); /* there is none */
    save(r, 2, NAN);
    check_ok(ot_saver_complete(r->saver));
    assert_true(ot_checkpoint_is_complete(r->parent));
}

/* The run resumes from a checkpoint that an earlier run has set aside: it must stay until this run has its
 * own. */
static void what_the_run_resumes_from_is_not_removed(void **state) {
    struct run *r = *state;
    open_saver(r, "--save-every 10");
    save(r, 1, NAN);
    ot_saver_close(r->saver);
    check_ok(ot_saver_open(&r->config, &r->saver));
    save(r, 2, NAN); /* as if the earlier run had been killed before it removed OUT/checkpoints.old */
    ot_saver_close(r->saver);
    r->saver = NULL;
    assert_int_equal(mkdir(r->aside, 0777), 0);
    write_under(r->aside, "step-00000001/manifest.bin", "");
    char resumed[700];
    snprintf(resumed, sizeof resumed, "%s/step-00000001", r->aside);
    r->config.resumed = resumed;
    r->config.step = 1;
    check_ok(ot_saver_open(&r->config, &r->saver));
    expect_steps(r->aside, STEPS(1));
    expect_steps(r->parent, STEPS(0));
    assert_int_equal(ot_saver_last_step(r->saver), 1);
    save(r, 3, NAN);
    assert_int_equal(access(r->aside, F_OK), -1);
}

/* ---- saves that fail ---- */

static void the_store_keeps_no_more_than_the_plan_says(void **state) {
    struct run *r = *state;
    open_saver(r, "NVME --save-every 10 --keep 1 --eval-fraction 0");
    assert_int_equal(r->session.plan.chosen.pinned_contents, 2);
    r->settings.in_effect.keep = 9; /* older checkpoints are not removed */
    save(r, 1, NAN);
    check_ok(ot_saver_failure(r->saver));
    save(r, 2, NAN);
    check_ok(ot_saver_failure(r->saver));
    expect_steps(r->parent, STEPS(2, 1));
    save(r, 3, NAN);
    check_fails(ot_saver_failure(r->saver), OT_E_IO, "the NVMe store cannot keep another one");
    expect_steps(r->parent, STEPS(2, 1));
    assert_int_equal(ot_saver_last_step(r->saver), 2);
    assert_int_equal(r->saver->n_held, 2);
}

/* Else no later checkpoint would be made: the store keeps the data of two, and the first would never be
 * released. */
static void a_removal_that_failed_is_tried_again(void **state) {
    struct run *r = *state;
    char mine[700];
    open_saver(r, "NVME --save-every 10 --keep 1 --eval-fraction 0");
    save(r, 1, NAN);
    snprintf(mine, sizeof mine, "%s/step-00000001/mine", r->parent);
    assert_int_equal(mkdir(mine, 0777), 0);
    save(r, 2, NAN); /* warns */
    assert_int_equal(access(mine, F_OK), 0);
    assert_int_equal(r->saver->n_held, 2);
    save(r, 3, NAN);
    check_ok(ot_saver_failure(r->saver));
    expect_steps(r->parent, STEPS(3));
    assert_int_equal(r->saver->n_held, 1);
}

static void the_next_save_is_made_after_one_that_failed(void **state) {
    struct run *r = *state;
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 1");
    save(r, 1, NAN);
    int64_t reserved = ot_disk_reserved(r->parent);
    stand_in_the_way(r, 2, true);
    save(r, 2, NAN);
    check_fails(ot_saver_failure(r->saver), OT_E_INPUT, "step-00000002");
    assert_int_equal(ot_saver_last_step(r->saver), 1);
    assert_true(ot_saver_has(r->saver, 1) && !ot_saver_has(r->saver, 2));
    assert_int_equal(ot_disk_reserved(r->parent), reserved);
    stand_in_the_way(r, 2, false);
    save(r, 2, NAN);
    assert_int_equal(ot_saver_last_step(r->saver), 2);
    expect_steps(r->parent, STEPS(2));
}

static void a_best_state_that_cannot_be_saved_changes_nothing(void **state) {
    struct run *r = *state;
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 1");
    save(r, 1, NAN);
    save_best(r, 1, 3);
    int64_t reserved = ot_disk_reserved(r->parent);
    char way[700];
    snprintf(way, sizeof way, "%s/step-00000002", r->best);
    write_under(r->best, "step-00000002", "");
    save_best(r, 2, 2);
    check_fails(ot_saver_failure(r->saver), OT_E_INPUT, "best/step-00000002: a checkpoint needs this name");
    expect_best(r, 1, 3);
    assert_true(wants(r, 2, 2));
    assert_int_equal(ot_disk_reserved(r->parent), reserved);
    assert_int_equal(unlink(way), 0);
    save_best(r, 2, 2);
    expect_best(r, 2, 2);
    expect_steps(r->best, STEPS(2));
    assert_int_equal(ot_disk_reserved(r->parent), reserved);
    expect_steps(r->parent, STEPS(1));
}

/* A run that is about to end keeps every checkpoint, and needs no space for later ones. */
static void the_last_save_removes_nothing(void **state) {
    struct run *r = *state;
    struct ot_checkpoint_record record = record_of(2, NAN), same = record_of(3, NAN);
    char other[700];
    snprintf(other, sizeof other, "%s/elsewhere", r->root);
    r->config.evaluates = true;
    open_saver(r, "--save-every 10 --keep 1");
    save(r, 1, NAN);
    assert_true(ot_disk_reserved(r->parent) > 0);
    check_ok(ot_saver_save_in(r->saver, NULL, &record));
    expect_steps(r->parent, STEPS(2, 1));
    assert_int_equal(ot_disk_reserved(r->parent), 0);
    assert_false(wants(r, 3, 1));
    int64_t made = written_at(r);
    check_ok(ot_saver_save_in(r->saver, other, &record)); /* has it already */
    assert_int_equal(written_at(r), made);
    assert_int_equal(access(other, F_OK), -1);
    check_ok(ot_saver_save_in(r->saver, other, &same));
    expect_steps(r->parent, STEPS(2, 1));
    expect_steps(other, STEPS(3));
    assert_non_null(strstr(ot_saver_last_dir(r->saver), "elsewhere/step-00000003"));
}

static void a_last_save_that_fails_leaves_no_directory(void **state) {
    struct run *r = *state;
    struct ot_checkpoint_record record = record_of(2, NAN);
    char other[700];
    snprintf(other, sizeof other, "%s/elsewhere", r->root);
    open_saver(r, "--save-every never");
    stand_in_the_way(r, 2, true);
    check_fails(ot_saver_save_in(r->saver, NULL, &record), OT_E_INPUT, "step-00000002");
    assert_int_equal(access(r->parent, F_OK), 0); /* has what stands in the way */
    stand_in_the_way(r, 2, false);
    check_ok(ot_saver_save_in(r->saver, other, &record));
    assert_int_equal(access(r->parent, F_OK), -1); /* is empty now */
    expect_steps(other, STEPS(2));
}

int main(void) {
#define saver_test(test) cmocka_unit_test_setup_teardown(test, open_folder, close_run)
    const struct CMUnitTest tests[] = {
        saver_test(the_best_stays_beside_the_newest),
        saver_test(the_best_state_is_a_third_of_a_checkpoint),
        saver_test(a_rated_checkpoint_stays_until_a_better_state_is_saved),
        saver_test(of_two_best_states_the_better_one_stays),
        saver_test(a_best_state_that_cannot_be_saved_changes_nothing),
        saver_test(a_new_run_sets_the_best_state_aside_too),
        saver_test(a_run_that_does_not_evaluate_keeps_no_best),
        saver_test(without_regular_saves_the_best_is_not_asked_for),
        saver_test(the_state_under_way_counts),
        saver_test(a_caller_may_wait_for_the_checkpoint_under_way),
        saver_test(a_step_is_saved_once),
        saver_test(a_save_is_due_by_steps_epochs_or_time),
        saver_test(a_new_run_removes_old_checkpoints_after_its_first),
        saver_test(the_model_alone_replaces_old_checkpoints_too),
        saver_test(what_the_run_resumes_from_is_not_removed),
        saver_test(the_store_keeps_no_more_than_the_plan_says),
        saver_test(a_removal_that_failed_is_tried_again),
        saver_test(the_next_save_is_made_after_one_that_failed),
        saver_test(the_last_save_removes_nothing),
        saver_test(a_last_save_that_fails_leaves_no_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
