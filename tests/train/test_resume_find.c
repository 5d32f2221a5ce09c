/* Resuming: which checkpoint is found, which are refused, and which are cleared. */
#include "tests/train/resume_folder.h"

static void the_newest_is_found(void **state) {
    const struct folder *f = *state;
    char line[1400];
    expect_step(f, "", 0);
    make_checkpoint(f->checkpoints, 20, NULL);
    make_checkpoint(f->checkpoints, 120, NULL);
    make_checkpoint(f->checkpoints, 90, NULL);
    expect_step(f, "", 120);
    expect_step(f, "--resume never", 0);
    snprintf(line, sizeof line, "--resume %s", f->checkpoints);
    expect_step(f, line, 120);
    snprintf(line, sizeof line, "--resume %s", f->out);
    expect_step(f, line, 120);
    snprintf(line, sizeof line, "--resume %s/step-00000020", f->checkpoints);
    expect_step(f, line, 20);
    snprintf(line, sizeof line, "--resume %s/step-00000020/", f->checkpoints);
    expect_step(f, line, 20);
}

static void a_run_that_came_to_its_end_is_not_resumed_by_itself(void **state) {
    const struct folder *f = *state;
    char line[1400];
    make_checkpoint(f->checkpoints, 120, NULL);
    check_ok(ot_checkpoint_mark_complete(f->checkpoints));
    expect_step(f, "", 0);
    snprintf(line, sizeof line, "--resume %s", f->out);
    expect_step(f, line, 120);
    check_ok(ot_checkpoint_clear_complete(f->checkpoints));
    expect_step(f, "", 120);
}

static void a_directory_without_one_is_refused(void **state) {
    const struct folder *f = *state;
    char line[1400];
    expect_refusal(f, "--resume /nowhere/at/all", OT_E_INPUT, "--resume: /nowhere/at/all: no such directory");
    snprintf(line, sizeof line, "--resume %s", f->root);
    expect_refusal(f, line, OT_E_INPUT, "not a checkpoint");
}

static int count(const char *parent) {
    struct ot_checkpoint_list list;
    check_ok(ot_checkpoint_list_make(parent, &list));
    int n = list.n;
    ot_checkpoint_list_free(&list);
    return n;
}

/* No run goes on without the optimizer's moments, and none takes the best state for its newest checkpoint. */
static void the_weights_alone_are_refused(void **state) {
    const struct folder *f = *state;
    char line[1400], best[700];
    make_best(f, 60, STEPS);
    snprintf(best, sizeof best, "%s/best", f->checkpoints);
    expect_step(f, "", 0);
    snprintf(line, sizeof line, "--resume %s", f->out);
    expect_refusal(f, line, OT_E_INPUT, "has no checkpoint to resume from; give the directory of one");
    make_checkpoint(f->checkpoints, 40, NULL);
    expect_step(f, "", 40);
    expect_step(f, line, 40);
    snprintf(line, sizeof line, "--resume %s/step-00000060", best);
    expect_refusal(f, line, OT_E_INPUT, "step-00000060: has the weights of an evaluated state without");
    expect_refusal(f, line, OT_E_INPUT, "step-00000060 --out MODEL) and use --model MODEL");
    snprintf(line, sizeof line, "--resume %s", best);
    expect_refusal(f, line, OT_E_INPUT, "no run can resume from it");
    struct ot_found found;
    check_ok(ot_find_checkpoints(f->out, &found));
    assert_int_equal(found.list.n, 1);
    assert_int_equal(found.best.n, 1);
    assert_int_equal(found.best.entries[0].step, 60);
    ot_found_free(&found);
    write_file(f->root, "best", "", 0); /* a file of the user's */
    expect_refusal(f, "--resume /nowhere/at/all", OT_E_INPUT, "no such directory");
    snprintf(line, sizeof line, "--resume %s", f->root);
    expect_refusal(f, line, OT_E_INPUT, "not a checkpoint");
}

/* A newer best state stays if the run comes to it again. */
static void a_newer_best_state_of_another_length_is_cleared(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    char best[700];
    snprintf(best, sizeof best, "%s/best", f->checkpoints);
    make_checkpoint(f->checkpoints, 40, NULL);
    make_best(f, 30, STEPS + 1);
    make_best(f, 50, STEPS);
    make_best(f, 60, STEPS + 1);
    check_ok(find(f, "", &resume));
    check_ok(ot_resume_clear_newer(&resume, f->out, STEPS));
    assert_int_equal(count(best), 2);
    char kept[720];
    snprintf(kept, sizeof kept, "%s/step-00000050", best);
    assert_int_equal(access(kept, F_OK), 0);
    assert_int_equal(count(f->checkpoints), 1);
    check_ok(ot_resume_clear_newer(&resume, f->out, STEPS + 1));
    assert_int_equal(count(best), 1); /* of step 30 */
    ot_resume_close(&resume);
}

/* If the newest checkpoint is damaged, the error names the one before, and the option that resumes from
 * it. */
static void a_damaged_newest_one_is_not_passed_over(void **state) {
    const struct folder *f = *state;
    char line[1400], words[1500];
    make_checkpoint(f->checkpoints, 80, NULL);
    make_checkpoint(f->checkpoints, 100, NULL);
    make_checkpoint(f->checkpoints, 120, NULL);
    damage(f->checkpoints, 120);
    expect_refusal(f, "", OT_E_INPUT, "step-00000120/checkpoint.json: damaged");
    snprintf(line, sizeof line, "--resume %s/step-00000100", f->checkpoints);
    snprintf(words, sizeof words, "; to resume from the checkpoint before it, use %s", line);
    expect_refusal(f, "", OT_E_INPUT, words);
    expect_step(f, line, 100);
    damage(f->checkpoints, 100);
    expect_refusal(f, "", OT_E_INPUT, "step-00000080");
    expect_refusal(f, line, OT_E_INPUT, "step-00000080");
    damage(f->checkpoints, 80);
    expect_refusal(f, "", OT_E_INPUT,
                   "no earlier checkpoint is intact; to start a new run, use --resume never");
    expect_step(f, "--resume never", 0);
}

/* Damage that only reading the data finds. */
static void reading_that_fails_gets_the_same_advice(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    make_checkpoint(f->checkpoints, 100, NULL);
    make_checkpoint(f->checkpoints, 120, NULL);
    check_ok(find(f, "", &resume));
    const char *dir = ot_checkpoint_dir(resume.checkpoint);
    check_fails(ot_resume_advise(&resume, ot_fail_cause(OT_E_INPUT, OT_CAUSE_CHECKPOINT, "a checksum")),
                OT_E_INPUT, "a checksum; to resume from");
    check_fails(ot_resume_advise(&resume, ot_fail_cause(OT_E_IO, OT_CAUSE_CHECKPOINT, "an error")), OT_E_IO,
                "step-00000100");
    check_fails(ot_resume_advise(&resume, ot_fail(OT_E_USAGE, "%s: another format", dir)), OT_E_USAGE,
                "step-00000120: another format");
    assert_null(strstr(ot_error_text(), "--resume")); /* the checkpoint itself has no error */
    assert_int_equal(ot_resume_advise(&resume, 0), 0);
    ot_resume_close(&resume);
}

static void what_is_newer_is_cleared(void **state) {
    const struct folder *f = *state;
    struct ot_resume resume;
    char line[1400], other[700];
    for (int step = 10; step <= 50; step += 10)
        make_checkpoint(f->checkpoints, step, NULL);
    snprintf(line, sizeof line, "--resume %s/step-00000030", f->checkpoints);
    check_ok(find(f, line, &resume));
    assert_int_equal(ot_resume_log_bytes(&resume, f->out), 1234);
    check_ok(ot_resume_clear_newer(&resume, f->out, STEPS));
    assert_int_equal(count(f->checkpoints), 3);
    ot_resume_close(&resume);
    expect_step(f, "", 30);

    /* A checkpoint of another folder: the log and the checkpoints there belong to another run. */
    snprintf(other, sizeof other, "%s/other", f->root);
    assert_int_equal(mkdir(other, 0777), 0);
    make_checkpoint(other, 5, NULL);
    snprintf(line, sizeof line, "--resume %s", other);
    check_ok(find(f, line, &resume));
    assert_int_equal(ot_resume_log_bytes(&resume, f->out), 0);
    assert_false(ot_resume_is_own(&resume, f->out));
    check_ok(ot_resume_clear_newer(&resume, f->out, STEPS));
    assert_int_equal(count(f->checkpoints), 3);
    assert_int_equal(count(other), 1);
    ot_resume_close(&resume);

    /* A new run after one that has finished. */
    check_ok(ot_checkpoint_mark_complete(f->checkpoints));
    check_ok(find(f, "", &resume));
    check_ok(ot_resume_clear_newer(&resume, f->out, STEPS));
    assert_int_equal(count(f->checkpoints), 3);
    assert_int_equal(ot_resume_log_bytes(&resume, f->out), 0);
    ot_resume_close(&resume);
}

int main(void) {
#define resume_test(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
    const struct CMUnitTest tests[] = {
        resume_test(the_newest_is_found),
        resume_test(a_run_that_came_to_its_end_is_not_resumed_by_itself),
        resume_test(a_directory_without_one_is_refused),
        resume_test(the_weights_alone_are_refused),
        resume_test(a_newer_best_state_of_another_length_is_cleared),
        resume_test(a_damaged_newest_one_is_not_passed_over),
        resume_test(reading_that_fails_gets_the_same_advice),
        resume_test(what_is_newer_is_cleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
