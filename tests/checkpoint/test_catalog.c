/* The catalog: which checkpoints a folder holds, which of them are kept, and what is removed after a run was
 * killed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/checkpoint/step_dir.h"
#include "tests/checkpoint/fixture.h"

static struct ot_chain chain;

static struct saving save_step(const char *folder, int64_t step) {
    chain = fixture_chain(OT_BF16, false);
    struct saving saving = {.parent = folder,
                            .chain = &chain,
                            .step = step,
                            .seed = (uint64_t)step,
                            .io_engine = OT_IO_POOL,
                            .faulty = true};
    fixture_clear_fault();
    fault.no_direct = true;
    check_ok(fixture_save(&saving));
    return saving;
}

static const char *path_of(const char *folder, const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void make_dir(const char *folder, const char *name) {
    assert_int_equal(mkdir(path_of(folder, name), 0777), 0);
}

/* The steps of the checkpoints in the list, such as "120 100". */
static const char *steps_of(const char *folder) {
    static char text[256];
    struct ot_checkpoint_list list;
    check_ok(ot_checkpoint_list_make(folder, &list));
    text[0] = '\0';
    for (int i = 0; i < list.n; i++) {
        char *name;
        check_ok(ot_checkpoint_name(folder, list.entries[i].step, &name));
        assert_string_equal(list.entries[i].dir, name);
        free(name);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i ? " " : "",
                 (long long)list.entries[i].step);
    }
    ot_checkpoint_list_free(&list);
    return text;
}

static void test_list(void **state) {
    (void)state;
    char *folder = make_folder(), *elsewhere = make_folder();
    assert_string_equal(steps_of(path_of(folder, "none")), "");
    assert_string_equal(steps_of(folder), "");
    static const char *const names[] = {"step-00000100",
                                        "step-00000020",
                                        "step-999999999999999999",
                                        "step-00000007.partial",
                                        "step-9223372036854775807",
                                        "step-8",
                                        "step-000000009",
                                        "step--0000010",
                                        "step-00000011x",
                                        "step-",
                                        "other",
                                        "step-00000012 "};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        make_dir(folder, names[i]);
        write_file(path_of(folder, names[i]), "manifest.bin", "", 0);
    }
    make_dir(folder, "step-00000013"); /* a folder without a manifest is no checkpoint */
    write_file(folder, "step-00000014", "", 0);
    write_file(elsewhere, "manifest.bin", "", 0);
    assert_int_equal(symlink(elsewhere, path_of(folder, "step-00000015")), 0);
    make_dir(folder, "step-00000016");
    assert_int_equal(symlink("/etc/passwd", path_of(folder, "step-00000016/manifest.bin")), 0);
    assert_string_equal(steps_of(folder), "999999999999999999 100 20");
    remove_folder(folder);
    remove_folder(elsewhere);
}

static void check_opens(const char *path, const char *words) {
    struct ot_checkpoint *checkpoint = NULL;
    if (words)
        check_fails(ot_checkpoint_open(path, &checkpoint), OT_E_INPUT, words);
    else
        check_ok(ot_checkpoint_open(path, &checkpoint));
    ot_checkpoint_close(checkpoint);
}

/* A checkpoint in a directory that has another step's name is refused, however the user spells the path. */
static void test_a_directory_has_the_name_of_its_step(void **state) {
    (void)state;
    static const char *const written[] = {"step-00000006", "step-00000006/", "step-00000006///",
                                          "./step-00000006"};
    char *folder = make_folder();
    int here = open(".", O_RDONLY | O_DIRECTORY);
    assert_true(here >= 0);
    for (int step = 5; step <= 6; step++) {
        const char *words = step == 6 ? NULL : "it says step 5, but the directory";
        save_step(folder, step);
        if (step == 5)
            assert_int_equal(rename(path_of(folder, "step-00000005"), path_of(folder, "step-00000006")), 0);
        check_opens(path_of(folder, written[0]), words);
        check_opens(path_of(folder, written[1]), words);
        assert_int_equal(chdir(folder), 0);
        for (size_t i = 0; i < sizeof written / sizeof *written; i++)
            check_opens(written[i], words);
        assert_int_equal(fchdir(here), 0);
        if (step == 5) {
            assert_int_equal(rename(path_of(folder, "step-00000006"), path_of(folder, "copy")), 0);
            check_opens(path_of(folder, "copy"), NULL); /* a name that contains no step */
        }
    }
    close(here);
    remove_folder(folder);
}

static void test_remove_follows_no_link(void **state) {
    (void)state;
    char *folder = make_folder(), *elsewhere = make_folder();
    write_file(elsewhere, "precious", "1", 1);
    save_step(folder, 5);
    assert_int_equal(symlink(elsewhere, path_of(folder, "step-00000005/link")), 0);
    check_ok(ot_checkpoint_remove(path_of(folder, "step-00000005")));
    assert_int_equal(symlink(elsewhere, path_of(folder, "step-00000005")), 0);
    check_fails(ot_checkpoint_remove(path_of(folder, "step-00000005")), OT_E_IO, "cannot open");
    check_fails(ot_checkpoint_remove(elsewhere), OT_E_INPUT, "not the name of a checkpoint");
    assert_string_equal(fixture_names(elsewhere), "precious");
    /* Removing nothing succeeds. */
    assert_int_equal(ot_checkpoint_remove(path_of(folder, "step-00000006")), 0);
    remove_folder(folder);
    remove_folder(elsewhere);
}

static void test_remove_leaves_what_is_not_ours(void **state) {
    (void)state;
    char *folder = make_folder();
    save_step(folder, 5);
    make_dir(folder, "step-00000005/notes");
    check_fails(ot_checkpoint_remove(path_of(folder, "step-00000005")), OT_E_IO,
                "notes: not a file of a checkpoint; move it away");
    assert_string_equal(steps_of(folder), "");
    assert_int_equal(rmdir(path_of(folder, "step-00000005/notes")), 0);
    check_ok(ot_checkpoint_remove(path_of(folder, "step-00000005")));
    assert_string_equal(fixture_names(folder), "");
    remove_folder(folder);
}

/* An error of the disk must not look like a directory that is not a checkpoint. */
static void test_remove_says_what_failed(void **state) {
    (void)state;
    char *folder = make_folder();
    static const struct {
        int error;
        const char *words;
    } cases[] = {{EIO, ": cannot remove: "}, {EPERM, ": not a file of a checkpoint"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        save_step(folder, 5);
        int fd = open(folder, O_RDONLY | O_DIRECTORY);
        fixture_clear_fault();
        fault.calls = CALL_REMOVE;
        fault.at = 1; /* the first call removes the manifest */
        fault.error = cases[i].error;
        check_fails(ot_step_remove(&fixture_calls, fd, "step-00000005", "step-00000005"), OT_E_IO,
                    cases[i].words);
        fixture_clear_fault();
        close(fd);
        check_ok(ot_checkpoint_remove(path_of(folder, "step-00000005")));
    }
    remove_folder(folder);
}

/* A directory that disappears while tidying looks at it is not an error. */
static void test_hold(void **state) {
    (void)state;
    char *folder = make_folder();
    int parent = open(folder, O_RDONLY | O_DIRECTORY), fd = 77, again = 77;
    assert_int_equal(ot_step_hold(parent, "step-00000005", "step-00000005", &fd), 0);
    assert_int_equal(fd, -1);
    make_dir(folder, "step-00000005");
    assert_int_equal(ot_step_hold(parent, "step-00000005", "step-00000005", &fd), 0);
    assert_true(fd >= 0);
    assert_int_equal(ot_step_hold(parent, "step-00000005", "step-00000005", &again), 0);
    assert_int_equal(again, -1); /* the lock is held */
    close(fd);
    write_file(folder, "step-00000006", "", 0);
    check_fails(ot_step_hold(parent, "step-00000006", "step-00000006", &fd), OT_E_INPUT,
                "a checkpoint needs this name");
    close(parent);
    remove_folder(folder);
}

static int remove_fifth(void *context) {
    int fd = open(context, O_RDONLY | O_DIRECTORY);
    return ot_step_remove(&fixture_calls, fd, "step-00000005", "step-00000005");
}

/* Wherever a removal is interrupted, the rest is a whole checkpoint or none, and tidying finishes the
 * removal. */
static void test_process_ends_within_a_removal(void **state) {
    (void)state;
    char *folder = make_folder();
    bool killed = true;
    int at, whole = 0;
    for (at = 0; killed; at++) {
        struct saving saving = save_step(folder, 5);
        fault.calls = CALL_REMOVE | CALL_FSYNC;
        fault.at = at;
        killed = !fixture_runs_in_child(remove_fifth, folder);
        if (*steps_of(folder)) {
            assert_null(fixture_examine(&saving, path_of(folder, "step-00000005")));
            check_ok(ot_checkpoint_remove(path_of(folder, "step-00000005")));
            whole++;
        }
        check_ok(ot_checkpoint_tidy(folder));
        assert_string_equal(fixture_names(folder), "");
    }
    assert_int_equal(whole, 1); /* interrupted before the first call, which removes the manifest */
    assert_int_equal(at, 6);    /* the calls: manifest, flush, two files, the directory; then none */
    remove_folder(folder);
}

static void test_prune(void **state) {
    (void)state;
    char *folder = make_folder();
    for (int step = 10; step <= 50; step += 10)
        save_step(folder, step);
    write_file(folder, "complete", "", 0);
    check_ok(ot_checkpoint_prune(folder, 3, 20));
    assert_string_equal(steps_of(folder), "50 40 30 20");
    check_ok(ot_checkpoint_prune(folder, 3, 40));
    assert_string_equal(steps_of(folder), "50 40 30");
    check_ok(ot_checkpoint_prune(folder, 1, 30));
    assert_string_equal(steps_of(folder), "50 30");
    check_ok(ot_checkpoint_prune(folder, 1, 12345));
    assert_string_equal(steps_of(folder), "50");
    check_ok(ot_checkpoint_prune(folder, 1, -1));
    assert_string_equal(fixture_names(folder), "complete step-00000050");
    save_step(folder, 60);
    check_ok(ot_checkpoint_prune(folder, 0, 50));
    assert_string_equal(steps_of(folder), "50");
    check_ok(ot_checkpoint_prune(folder, 0, -1));
    assert_string_equal(fixture_names(folder), "complete");
    check_ok(ot_checkpoint_prune(path_of(folder, "none"), 1, -1));
    remove_folder(folder);
}

static void test_tidy(void **state) {
    (void)state;
    char *folder = make_folder();
    struct saving first = save_step(folder, 1), second = save_step(folder, 2);
    /* step 3: unfinished; 4: complete but not renamed; 5: half removed; 2: an unfinished copy beside a whole
     * checkpoint */
    make_dir(folder, "step-00000003.partial");
    write_file(path_of(folder, "step-00000003.partial"), "state.bin", "12", 2);
    struct saving fourth = save_step(folder, 4);
    assert_int_equal(rename(path_of(folder, "step-00000004"), path_of(folder, "step-00000004.partial")), 0);
    save_step(folder, 5);
    assert_int_equal(unlink(path_of(folder, "step-00000005/manifest.bin")), 0);
    make_dir(folder, "step-00000002.partial");
    make_dir(folder, "notes");
    write_file(folder, "step-x.partial", "", 0);
    check_ok(ot_checkpoint_tidy(folder));
    assert_string_equal(fixture_names(folder),
                        "notes step-00000001 step-00000002 step-00000004 step-x.partial");
    assert_null(fixture_examine(&first, path_of(folder, "step-00000001")));
    assert_null(fixture_examine(&second, path_of(folder, "step-00000002")));
    assert_null(fixture_examine(&fourth, path_of(folder, "step-00000004")));
    check_ok(ot_checkpoint_tidy(path_of(folder, "none")));
    remove_folder(folder);
}

/* A complete checkpoint that was not renamed, beside a damaged or a whole one of the same step. */
static void test_tidy_prefers_what_is_whole(void **state) {
    (void)state;
    for (int damaged = 0; damaged < 2; damaged++) {
        char *folder = make_folder();
        struct saving newer = save_step(folder, 4);
        assert_int_equal(rename(path_of(folder, "step-00000004"), path_of(folder, "kept")), 0);
        struct saving older = save_step(folder, 4);
        newer.seed = 77;
        assert_int_equal(rename(path_of(folder, "step-00000004"), path_of(folder, "older")), 0);
        check_ok(fixture_save(&newer));
        assert_int_equal(rename(path_of(folder, "step-00000004"), path_of(folder, "step-00000004.partial")),
                         0);
        assert_int_equal(rename(path_of(folder, "older"), path_of(folder, "step-00000004")), 0);
        if (damaged)
            assert_int_equal(truncate(path_of(folder, "step-00000004/state.bin"), 4096), 0);
        check_ok(ot_checkpoint_tidy(folder));
        assert_string_equal(fixture_names(folder), "kept step-00000004");
        assert_null(fixture_examine(damaged ? &newer : &older, path_of(folder, "step-00000004")));
        remove_folder(folder);
    }
}

/* A new run in the directory of an old one removes the old run's checkpoints and leaves other files alone. */
static void test_clear(void **state) {
    (void)state;
    char *folder = make_folder();
    for (int step = 1; step <= 3; step++)
        save_step(folder, step);
    make_dir(folder, "step-00000004.partial");
    make_dir(folder, "notes");
    check_ok(ot_checkpoint_mark_complete(folder));
    check_ok(ot_checkpoint_clear(folder));
    assert_string_equal(fixture_names(folder), "notes");
    check_ok(ot_checkpoint_clear(path_of(folder, "none")));
    save_step(folder, 5);
    make_dir(folder, "step-00000005/notes");
    check_fails(ot_checkpoint_clear(folder), OT_E_IO, "notes: not a file of a checkpoint");
    remove_folder(folder);
}

/* The state of the best evaluation lies in a directory of its own, which lists do not see. */
static void test_the_best(void **state) {
    (void)state;
    char *folder = make_folder(), *best;
    check_ok(ot_checkpoint_best_parent(folder, &best));
    assert_string_equal(best, path_of(folder, "best"));
    save_step(folder, 7);
    make_dir(folder, "best");
    save_step(best, 3);
    make_dir(best, "step-00000004.partial");
    assert_string_equal(steps_of(folder), "7");
    assert_string_equal(steps_of(best), "3");
    check_ok(ot_checkpoint_tidy(folder));
    assert_string_equal(fixture_names(best), "step-00000003");
    write_file(best, "notes", "", 0);
    check_ok(ot_checkpoint_clear(folder));
    assert_string_equal(fixture_names(folder), "best"); /* for the notes */
    assert_string_equal(fixture_names(best), "notes");
    assert_int_equal(unlink(path_of(best, "notes")), 0);
    save_step(best, 5);
    check_ok(ot_checkpoint_clear(folder));
    assert_string_equal(fixture_names(folder), "");
    free(best);
    remove_folder(folder);
}

static void test_mark(void **state) {
    (void)state;
    char *folder = make_folder();
    assert_false(ot_checkpoint_is_complete(folder));
    check_ok(ot_checkpoint_clear_complete(folder));
    check_ok(ot_checkpoint_mark_complete(folder));
    check_ok(ot_checkpoint_mark_complete(folder));
    assert_true(ot_checkpoint_is_complete(folder));
    check_ok(ot_checkpoint_clear_complete(folder));
    assert_false(ot_checkpoint_is_complete(folder));
    assert_int_equal(symlink("elsewhere", path_of(folder, "complete")), 0);
    assert_false(ot_checkpoint_is_complete(folder));
    check_fails(ot_checkpoint_mark_complete(folder), OT_E_IO, "/complete: cannot write");
    assert_string_equal(fixture_names(folder), "complete");
    const char *none = path_of(folder, "none");
    assert_false(ot_checkpoint_is_complete(none));
    check_ok(ot_checkpoint_clear_complete(none));
    check_fails(ot_checkpoint_mark_complete(none), OT_E_IO, "No such file");
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_a_directory_has_the_name_of_its_step),
        cmocka_unit_test(test_remove_follows_no_link),
        cmocka_unit_test(test_remove_leaves_what_is_not_ours),
        cmocka_unit_test(test_remove_says_what_failed),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_process_ends_within_a_removal),
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_tidy),
        cmocka_unit_test(test_tidy_prefers_what_is_whole),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_the_best),
        cmocka_unit_test(test_mark),
    };
    return cmocka_run_group_tests_name("checkpoint catalog", tests, NULL, NULL);
}
