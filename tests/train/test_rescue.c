/* Where the state of a run goes that ends with an error, and what the error then says. */
#include "tests/train/saver_run.h"

#include "src/files/out_dir.h"
#include "src/files/out_lock.h"
#include "src/train/rescue.h"

enum { STEP = 5 };

struct ending {
    struct run *run;
    struct ot_rescue rescue;
    char cwd[600], *home, *temporary;
};

/* ---- a run that ends ---- */

static int open_ending(void **state) {
    void *run;
    struct ending *e = calloc(1, sizeof *e);
    assert_non_null(e);
    open_folder(&run);
    e->run = run;
    assert_non_null(getcwd(e->cwd, sizeof e->cwd));
    e->home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    e->temporary = getenv("TMPDIR") ? strdup(getenv("TMPDIR")) : NULL;
    *state = e;
    return 0;
}

static void set_again(const char *name, char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
    free(value);
}

static int close_ending(void **state) {
    struct ending *e = *state;
    void *run = e->run;
    int rc = chdir(e->cwd);
    set_again("HOME", e->home);
    set_again("TMPDIR", e->temporary);
    close_run(&run);
    ot_out_lock_close(e->rescue.lock);
    free(e);
    return rc;
}

static void begin(struct ending *e, const char *words) {
    struct run *r = e->run;
    check_ok(ot_out_lock_open(r->out, &e->rescue.lock));
    check_ok(ot_out_dir_claim(r->out, NULL, e->rescue.lock));
    open_saver(r, words);
    e->rescue.saver = r->saver;
    e->rescue.session = &r->session;
    e->rescue.options = r->session.options;
}

/* Ends the run after STEP with an error. Its sentence must go on with `words`. */
static void end(struct ending *e, const char *words) {
    struct ot_checkpoint_record record = record_of(STEP, NAN);
    int rc = ot_rescue_save(&e->rescue, &record, ot_fail(OT_E_BUDGET, "the log is full"));
    char want[1400];
    snprintf(want, sizeof want, "the log is full%s", words);
    assert_int_equal(rc, -OT_E_BUDGET);
    assert_string_equal(ot_error_text(), want);
}

/* The same; the state must be saved in this place inside the folder. */
static void end_saved(struct ending *e, const char *place) {
    char words[1300], parent[700];
    snprintf(parent, sizeof parent, "%s/%s", e->run->root, place);
    snprintf(words, sizeof words, "; step 5 is saved; resume from it with --resume %s/step-00000005", parent);
    end(e, words);
    expect_steps(parent, STEPS(STEP));
}

/* ---- where ---- */

static void the_output_comes_first(void **state) {
    struct ending *e = *state;
    begin(e, "--save-every never");
    end_saved(e, "out/checkpoints");
}

static void an_output_that_was_moved_away_is_made_again(void **state) {
    struct ending *e = *state;
    char moved[700];
    begin(e, "--save-every never");
    snprintf(moved, sizeof moved, "%s/moved", e->run->root);
    assert_int_equal(rename(e->run->out, moved), 0);
    end_saved(e, "out/checkpoints");
}

static void then_what_is_beside_it(void **state) {
    struct ending *e = *state;
    begin(e, "--save-every never");
    stand_in_the_way(e->run, STEP, true);
    end_saved(e, "out.rescued");
}

/* A file in place of the directory beside OUT. */
static void block_both(struct ending *e) {
    stand_in_the_way(e->run, STEP, true);
    write_file(e->run->root, "out.rescued", "", 0);
}

static void then_a_disk_of_nvme(void **state) {
    struct ending *e = *state;
    char place[64];
    begin(e, "NVME --save-every never");
    block_both(e);
    snprintf(place, sizeof place, "offload-train-rescued.%d", (int)getpid());
    end_saved(e, place);
}

/* The first `blocked` of the working directory, $HOME and $TMPDIR fail too. */
static void check_others(struct ending *e, int blocked) {
    static const char *const names[] = {"work", "home", "temporary"};
    char folders[3][600], name[64], place[128];
    begin(e, "--save-every never");
    block_both(e);
    snprintf(name, sizeof name, "offload-train-rescued.%d", (int)getpid());
    for (int i = 0; i < 3; i++) {
        snprintf(folders[i], sizeof folders[i], "%s/%s", e->run->root, names[i]);
        assert_int_equal(mkdir(folders[i], 0777), 0);
        if (i < blocked)
            write_file(folders[i], name, "", 0);
    }
    assert_int_equal(chdir(folders[0]), 0);
    setenv("HOME", folders[1], 1);
    setenv("TMPDIR", folders[2], 1);
    if (blocked > 0) {
        snprintf(place, sizeof place, "%s/%s", names[blocked], name);
        end_saved(e, place);
        return;
    }
    snprintf(place, sizeof place, "; step 5 is saved; resume from it with --resume ./%s/step-00000005", name);
    end(e, place);
    expect_steps(name, STEPS(STEP));
}

static void then_the_working_directory(void **state) {
    check_others(*state, 0);
}

static void then_home(void **state) {
    check_others(*state, 1);
}

static void then_the_temporary_directory(void **state) {
    check_others(*state, 2);
}

/* ---- what is said ---- */

static void what_is_lost_is_said(void **state) {
    struct ending *e = *state;
    struct run *r = e->run;
    char words[1300];
    begin(e, "--save-every never");
    e->rescue.only_in_out = true;
    stand_in_the_way(r, STEP, true);
    end(e, "; the state could not be saved anywhere; there is no checkpoint");
    save(r, 4, NAN);
    snprintf(
        words, sizeof words,
        "; the state could not be saved anywhere; the last checkpoint is %s/step-00000004; the same command "
        "continues from it",
        r->parent);
    end(e, words);
    r->settings.in_effect.resume = "never"; /* then the same command begins anew */
    snprintf(words, sizeof words,
             "; the state could not be saved anywhere; the last checkpoint is %s/step-00000004", r->parent);
    end(e, words);
}

/* A sentence that says what is saved is left as it is, also behind a context. */
static void is_complete(struct ending *e, int code) {
    char once[OT_ERROR_TEXT_BYTES];
    ot_fail_context(-code, "rank 0");
    strcpy(once, ot_error_text());
    assert_int_equal(ot_rescue_save(&e->rescue, NULL, -code), -code);
    assert_string_equal(ot_error_text(), once);
}

/* The engine has failed, so its state is worth nothing. */
static void without_a_state_the_last_checkpoint_is_named(void **state) {
    struct ending *e = *state;
    struct run *r = e->run;
    begin(e, "--save-every never");
    check_fails(ot_rescue_save(&e->rescue, NULL, ot_fail(OT_E_DEVICE, "a fault")), OT_E_DEVICE,
                "a fault; there is no checkpoint");
    is_complete(e, OT_E_DEVICE);
    save(r, 4, NAN);
    check_fails(ot_rescue_save(&e->rescue, NULL, ot_fail(OT_E_DEVICE, "a fault")), OT_E_DEVICE,
                "a fault; the last checkpoint is ");
    is_complete(e, OT_E_DEVICE);
    check_fails(ot_rescue_save(&e->rescue, NULL, ot_fail(OT_E_COMM, "rank 1: checkpoint.json: cannot write")),
                OT_E_COMM, "cannot write; the last checkpoint is ");
    check_fails(ot_rescue_tell(&e->rescue, ot_fail(OT_E_IO, "a full disk")), OT_E_IO,
                "a full disk; step 4 is saved; resume from it with --resume ");
    is_complete(e, OT_E_IO);
}

int main(void) {
#define rescue_test(test) cmocka_unit_test_setup_teardown(test, open_ending, close_ending)
    const struct CMUnitTest tests[] = {
        rescue_test(the_output_comes_first),
        rescue_test(an_output_that_was_moved_away_is_made_again),
        rescue_test(then_what_is_beside_it),
        rescue_test(then_a_disk_of_nvme),
        rescue_test(then_the_working_directory),
        rescue_test(then_home),
        rescue_test(then_the_temporary_directory),
        rescue_test(what_is_lost_is_said),
        rescue_test(without_a_state_the_last_checkpoint_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
