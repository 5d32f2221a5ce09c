/* The output directory is whole or absent, and never replaces files of others, whatever the disk does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <fcntl.h>

#include "src/files/out_dir.h"
#include "src/files/out_lock.h"
#include "tests/files/fixture.h"

/* The next call of flock(2) finds that another process has removed this directory. NULL: none. */
static const char *removed_by_another;

/* Takes the place of the C library's function. */
int flock(int fd, int operation) {
    if (removed_by_another)
        assert_int_equal(rmdir(removed_by_another), 0);
    removed_by_another = NULL;
    return (int)syscall(SYS_flock, fd, operation);
}

static int open_folder(void **state) {
    *state = make_folder();
    faults_clear();
    return 0;
}

static int drop_folder(void **state) {
    remove_folder(*state);
    return 0;
}

/* Writes an output that holds only the file `name`. */
static int save_with(const char *out, struct ot_out_lock *lock, const char *name, const char *text) {
    struct ot_out_dir *dir;
    OT_TRY(ot_out_dir_open(out, &faulty_calls, lock, &dir));
    int rc = ot_out_dir_put(dir, name, text, strlen(text));
    if (rc == 0)
        rc = ot_out_dir_commit(dir);
    ot_out_dir_close(dir);
    return rc;
}

static int save(const char *out, const char *name, const char *text) {
    return save_with(out, NULL, name, text);
}

static void check_content(const char *folder, const char *name, const char *want) {
    char *text = read_text(folder, name, NULL);
    assert_string_equal(text, want);
    free(text);
}

static void test_appears_whole(void **state) {
    struct ot_out_dir *dir;
    const char *out = in_folder(*state, "a/b/out/");
    check_ok(ot_out_dir_open(out, NULL, NULL, &dir));
    check_ok(ot_out_dir_create(dir, "f", 5));
    check_ok(ot_out_dir_write(dir, "he", 2));
    check_ok(ot_out_dir_write(dir, "llo", 3));
    check_ok(ot_out_dir_finish(dir));
    assert_false(file_exists(*state, "a/b/out"));
    check_ok(ot_out_dir_commit(dir));
    ot_out_dir_close(dir);
    check_content(*state, "a/b/out/f", "hello");
    assert_int_equal(count_entries(in_folder(*state, "a/b")), 1);
    assert_int_equal(count_entries(out), 2);
}

/* A part behind the others first, and none between. */
static void test_writes_at_offsets(void **state) {
    struct ot_out_dir *dir;
    const char *out = in_folder(*state, "out");
    size_t bytes;
    check_ok(ot_out_dir_open(out, NULL, NULL, &dir));
    check_ok(ot_out_dir_create(dir, "f", 64));
    check_ok(ot_out_dir_write_at(dir, 6, "llo", 3));
    check_ok(ot_out_dir_write_at(dir, 0, "he", 2));
    check_ok(ot_out_dir_finish(dir));
    check_ok(ot_out_dir_commit(dir));
    ot_out_dir_close(dir);
    char *text = read_text(out, "f", &bytes);
    assert_int_equal(bytes, 9);
    assert_memory_equal(text, "he\0\0\0\0llo", 9);
    free(text);
}

static void test_given_up_leaves_nothing(void **state) {
    struct ot_out_dir *dir;
    check_ok(ot_out_dir_open(in_folder(*state, "a/b/out"), NULL, NULL, &dir));
    check_ok(ot_out_dir_put(dir, "f", "x", 1));
    check_ok(ot_out_dir_create(dir, "half", 0));
    ot_out_dir_close(dir);
    assert_int_equal(count_entries(*state), 0);
}

static void test_replaces_its_own_and_keeps_what_is_not(void **state) {
    const char *out = in_folder(*state, "out");
    check_ok(save(out, "old", "1"));
    write_text(out, "log.jsonl", "a line\n");
    assert_int_equal(mkdir(in_folder(out, "checkpoints"), 0777), 0);
    write_text(out, "checkpoints/one", "state");
    check_ok(save(out, "new", "2"));
    assert_false(file_exists(out, "old"));
    check_content(out, "new", "2");
    check_content(out, "log.jsonl", "a line\n");
    check_content(out, "checkpoints/one", "state");
    assert_int_equal(count_entries(*state), 1);
    check_ok(save(out, "new", "3")); /* a second time: the kept file is still not ours */
    check_content(out, "log.jsonl", "a line\n");
    check_content(out, "new", "3");
}

/* The new output needs a name that a file of another program has. Both files survive, and a message says
 * so. */
static void test_says_what_it_could_not_keep(void **state) {
    const char *out = in_folder(*state, "out");
    check_ok(save(out, "old", "1"));
    write_text(out, "new", "a user's");
    check_fails(save(out, "new", "2"), OT_E_IO, "saved, but the previous output could not be removed");
    check_content(out, "new", "2");
    check_content(*state, "out.partial/new", "a user's");
}

static void test_file_systems_without_exchange(void **state) {
    const char *out = in_folder(*state, "out");
    check_ok(save(out, "old", "1"));
    write_text(out, "log.jsonl", "a line\n");
    write_text(out, "new", "a user's");
    faults.no_exchange = true;
    check_ok(save(out, "new", "2"));
    assert_false(file_exists(out, "old"));
    check_content(out, "new", "2");
    check_content(out, "new.kept", "a user's");
    check_content(out, "log.jsonl", "a line\n");
    assert_int_equal(count_entries(*state), 1);
    assert_int_equal(count_entries(out), 4);
    check_ok(save(out, "config.json", "3"));
    check_content(out, "config.json", "3");
    assert_false(file_exists(out, "new"));
}

/* Makes a half-finished output: the new files are complete in OUT/.offload-train-replacing, and the first
 * `moved` of them have been moved. */
static void make_half(const char *out, int moved) {
    static const char *const names[] = {"both", "new", "config.json", "offload-train.json"};
    static const char old_marker[] = "{\"files\": [\"both\", \"config.json\", \"old\"]}",
                      new_marker[] = "{\"files\": [\"both\", \"config.json\", \"new\"]}";
    assert_int_equal(mkdir(out, 0777), 0);
    assert_int_equal(mkdir(in_folder(out, ".offload-train-replacing"), 0777), 0);
    write_text(out, "log.jsonl", "a line\n");
    write_text(out, "offload-train.json", old_marker);
    write_text(out, "both", "1");
    if (moved < 0) { /* interrupted before the first move */
        write_text(out, "config.json", "1");
        write_text(out, "old", "1");
    }
    for (int i = 0; i < 4; i++)
        write_text(i < moved ? out : in_folder(out, ".offload-train-replacing"), names[i],
                   i == 3 ? new_marker : "2");
}

static void test_finishes_what_was_half_replaced(void **state) {
    for (int moved = -1; moved <= 4; moved++) {
        char name[16];
        struct ot_model_dir *model = NULL;
        snprintf(name, sizeof name, "out%d", moved);
        const char *out = in_folder(*state, name);
        make_half(out, moved);
        check_fails(ot_model_dir_open(out, &model), OT_E_INPUT, "while it was replacing the result");
        check_ok(ot_out_dir_settle(out, NULL, NULL));
        assert_int_equal(count_entries(out), 5);
        check_content(out, "both", "2");
        check_content(out, "new", "2");
        check_content(out, "config.json", "2");
        check_content(out, "log.jsonl", "a line\n");
        check_ok(save(out, "f", "3")); /* which removes the files that the new marker lists */
        assert_int_equal(count_entries(out), 3);
    }
}

static void test_refuses_what_is_not_its_own(void **state) {
    struct ot_out_dir *dir = NULL;
    const char *out = in_folder(*state, "out");
    assert_int_equal(mkdir(out, 0777), 0);
    check_ok(save(out, "f", "into an empty one")); /* an empty directory is accepted */
    assert_int_equal(mkdir(in_folder(*state, "other"), 0777), 0);
    write_text(*state, "other/config.json", "{}");
    check_fails(ot_out_dir_open(in_folder(*state, "other"), NULL, NULL, &dir), OT_E_INPUT,
                "not an earlier output");
    write_text(*state, "file", "x");
    check_fails(ot_out_dir_open(in_folder(*state, "file"), NULL, NULL, &dir), OT_E_INPUT,
                "is not a directory");
    assert_int_equal(symlink(out, in_folder(*state, "link")), 0);
    check_fails(ot_out_dir_open(in_folder(*state, "link"), NULL, NULL, &dir), OT_E_INPUT, "symbolic link");
    assert_int_equal(symlink("nowhere", in_folder(*state, "broken")), 0);
    check_fails(ot_out_dir_open(in_folder(*state, "broken"), NULL, NULL, &dir), OT_E_INPUT, "symbolic link");
    check_fails(ot_out_dir_open(in_folder(*state, "file/out"), NULL, NULL, &dir), OT_E_IO, "Not a directory");
    const char *names[] = {"", ".", "..", "/", "a/.", "a/.."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_fails(ot_out_dir_open(names[i], NULL, NULL, &dir), OT_E_INPUT, "cannot be the output");
    assert_int_equal(count_entries(*state), 5);
}

static void test_refuses_a_partial_that_is_not_its_own(void **state) {
    struct ot_out_dir *dir = NULL;
    const char *out = in_folder(*state, "out");
    assert_int_equal(mkdir(in_folder(*state, "out.partial"), 0777), 0);
    check_ok(save(out, "f", "1")); /* a crash may leave an empty one */
    assert_int_equal(mkdir(in_folder(*state, "out.partial"), 0777), 0);
    write_text(*state, "out.partial/thesis.txt", "years of work");
    check_fails(ot_out_dir_open(out, NULL, NULL, &dir), OT_E_INPUT,
                "out.partial: the output needs this name");
    check_content(*state, "out.partial/thesis.txt", "years of work");
    assert_int_equal(unlink(in_folder(*state, "out.partial/thesis.txt")), 0);
    assert_int_equal(rmdir(in_folder(*state, "out.partial")), 0);
    assert_int_equal(symlink(out, in_folder(*state, "out.partial")), 0);
    check_fails(ot_out_dir_open(out, NULL, NULL, &dir), OT_E_INPUT, "the output needs this name");
    check_content(out, "f", "1");
}

static void test_clears_what_a_crash_left(void **state) {
    const char *out = in_folder(*state, "out"), *partial = in_folder(*state, "out.partial");
    check_ok(save(out, "f", "1"));
    /* A crash before the exchange leaves an unfinished output. */
    assert_int_equal(mkdir(partial, 0777), 0);
    write_text(partial, ".offload-train-unfinished", "");
    write_text(partial, "model.safetensors", "half");
    check_ok(save(out, "f", "2"));
    check_content(out, "f", "2");
    assert_false(file_exists(out, "model.safetensors"));
    /* A crash after the exchange leaves the previous output, here with a log that had not been moved yet. */
    assert_int_equal(mkdir(partial, 0777), 0);
    write_text(partial, "offload-train.json", "{\"files\": [\"old\"]}");
    write_text(partial, "old", "x");
    write_text(partial, "log.jsonl", "kept");
    check_ok(save(out, "f", "3"));
    check_content(out, "f", "3");
    check_content(out, "log.jsonl", "kept");
    assert_false(file_exists(out, "old"));
    assert_int_equal(count_entries(*state), 1);
}

static void test_never_overwrites_a_kept_file(void **state) {
    struct ot_out_dir *dir;
    const char *out = in_folder(*state, "out"), *partial = in_folder(*state, "out.partial");
    check_ok(save(out, "f", "1"));
    write_text(out, "log.jsonl", "newer");
    assert_int_equal(mkdir(partial, 0777), 0);
    write_text(partial, "offload-train.json", "{\"files\": []}");
    write_text(partial, "log.jsonl", "older");
    check_fails(ot_out_dir_open(out, NULL, NULL, &dir), OT_E_IO, "log.jsonl: cannot move this file to");
    check_content(out, "log.jsonl", "newer");
    check_content(partial, "log.jsonl", "older");
}

static void test_two_writers_are_one_too_many(void **state) {
    struct ot_out_dir *first, *second = NULL;
    const char *out = in_folder(*state, "out");
    check_ok(ot_out_dir_open(out, NULL, NULL, &first));
    check_ok(ot_out_dir_put(first, "f", "1", 1));
    check_fails(ot_out_dir_open(out, NULL, NULL, &second), OT_E_INPUT, "another process is writing");
    check_ok(ot_out_dir_commit(first));
    ot_out_dir_close(first);
    check_content(out, "f", "1");
}

/* Two processes start at once. One finds the new directory of the other, which is not locked yet, and removes
 * it as stale. A process that has nothing to lose gives way. The last save of a run makes a new directory. */
static void test_a_new_partial_that_another_process_removes(void **state) {
    struct ot_out_dir *dir;
    const char *out = in_folder(*state, "out"), *partial = in_folder(*state, "out.partial");
    struct ot_out_lock *lock;
    check_ok(ot_out_lock_open(out, &lock)); /* OUT is absent: its lock is not taken yet */
    removed_by_another = partial;
    check_fails(ot_out_dir_open(out, NULL, lock, &dir), OT_E_INPUT, "another process is writing this output");
    assert_null(removed_by_another);
    lock->insists = true;
    removed_by_another = partial;
    check_ok(save_with(out, lock, "f", "ours"));
    assert_null(removed_by_another);
    check_content(out, "f", "ours");
    ot_out_lock_close(lock);
}

static void test_the_lock_lasts_over_every_use(void **state) {
    struct ot_out_lock *lock, *other = NULL;
    const char *out = in_folder(*state, "x/out");
    check_ok(ot_out_lock_open(out, &lock)); /* OUT does not exist */
    check_ok(ot_out_dir_claim(out, NULL, lock));
    for (int i = 0; i < 3; i++) {
        struct ot_out_dir *dir;
        faults.no_exchange = i == 2;
        check_fails(ot_out_lock_open(out, &other), OT_E_INPUT, "another process is writing this output");
        check_fails(save(out, "f", "theirs"), OT_E_INPUT, "another process is writing this output");
        check_fails(ot_out_dir_settle(out, NULL, NULL), OT_E_INPUT, "another process is writing this output");
        check_ok(ot_out_dir_open(out, &faulty_calls, lock, &dir));
        check_ok(ot_out_dir_put(dir, "f", "ours", 4));
        check_fails(ot_out_dir_settle(out, NULL, NULL), OT_E_INPUT, "another process is writing this output");
        check_ok(ot_out_dir_commit(dir));
        ot_out_dir_close(dir);
    }
    check_content(out, "f", "ours");
    ot_out_lock_close(lock);
    check_ok(save(out, "f", "theirs"));
}

/* Another program removes the marker or the directory, or puts another marker in its place. */
static void test_what_others_do_to_a_locked_output(void **state) {
    struct ot_out_lock *lock;
    const char *out = in_folder(*state, "out"), *moved = in_folder(*state, "moved");
    check_ok(ot_out_lock_open(out, &lock));
    check_ok(ot_out_dir_claim(out, NULL, lock));
    write_text(out, "log.jsonl", "a line\n");
    check_ok(save_with(out, lock, "f", "1"));
    assert_int_equal(unlink(in_folder(out, "offload-train.json")), 0);
    check_ok(save_with(out, lock, "g", "2"));
    assert_int_equal(count_entries(out), 3); /* the marker, the log, g; f was ours and is gone */
    assert_int_equal(rename(out, moved), 0);
    check_ok(save_with(out, lock, "f", "3"));
    check_content(out, "f", "3");
    check_content(moved, "g", "2");
    assert_int_equal(rename(out, in_folder(*state, "moved2")), 0);
    check_ok(save(out, "f", "another's"));
    check_fails(save_with(out, lock, "f", "4"), OT_E_INPUT, "another directory has taken the place");
    check_content(out, "f", "another's");
    ot_out_lock_close(lock);
}

static void test_full_and_broken_disks(void **state) {
    const char *out = in_folder(*state, "out");
    check_ok(save(out, "f", "before"));
    for (int64_t room = 0; room < 5; room++) { /* fails in the file */
        faults.write_bytes = room;
        check_fails(save(out, "f", "after"), OT_E_IO, "out/f: cannot write: No space left");
    }
    faults.write_bytes = 8; /* fails in the marker */
    check_fails(save(out, "f", "after"), OT_E_IO, "out/offload-train.json: cannot write");
    faults_clear();
    faults.fail_fsync = true;
    check_fails(save(out, "f", "after"), OT_E_IO, "out/f: cannot flush: Input/output error");
    check_content(out, "f", "before");
    assert_int_equal(count_entries(*state), 1);
    faults_clear();
    faults.short_writes = true;
    faults.interrupts = 3;
    check_ok(save(out, "f", "after all"));
    check_content(out, "f", "after all");
}

static void test_space_is_asked_for_first(void **state) {
    struct ot_out_dir *dir;
    check_ok(ot_out_dir_open(in_folder(*state, "out"), &faulty_calls, NULL, &dir));
    faults.free_bytes = 3000000000;
    check_ok(ot_out_dir_need_space(dir, 3000000000));
    check_fails(ot_out_dir_need_space(dir, 5000000000), OT_E_IO,
                "needs 5000.0 MB, but only 3000.0 MB are free there: free 2000.0 MB");
    faults.fail_reserve = true;
    check_fails(ot_out_dir_create(dir, "f", 1000), OT_E_IO,
                "out/f: cannot reserve disk space: No space left");
    ot_out_dir_close(dir);
    assert_int_equal(count_entries(*state), 0);
}

static void test_copies_files(void **state) {
    enum { BYTES = 200001 };
    struct ot_out_dir *dir;
    size_t bytes;
    char *data = malloc(BYTES);
    assert_non_null(data);
    for (int i = 0; i < BYTES; i++)
        data[i] = (char)(i * 7 + i / 256);
    write_file(*state, "from", data, BYTES);
    check_ok(ot_out_dir_open(in_folder(*state, "out"), &faulty_calls, NULL, &dir));
    check_ok(ot_out_dir_copy(dir, "to", in_folder(*state, "from")));
    check_fails(ot_out_dir_copy(dir, "to", in_folder(*state, "from")), OT_E_IO, "out/to: cannot create");
    check_fails(ot_out_dir_copy(dir, "two", in_folder(*state, "absent")), OT_E_IO, "absent: cannot open");
    check_fails(ot_out_dir_copy(dir, "two", *state), OT_E_INPUT, "not a regular file");
    check_fails(ot_out_dir_put(dir, "../up", "x", 1), OT_E_INTERNAL, "not a plain file name");
    check_ok(ot_out_dir_commit(dir));
    ot_out_dir_close(dir);
    char *copy = read_text(*state, "out/to", &bytes);
    assert_int_equal(bytes, BYTES);
    assert_memory_equal(copy, data, BYTES);
    free(copy);
    free(data);
}

static void test_claim_makes_it_ours(void **state) {
    const char *out = in_folder(*state, "x/out");
    check_ok(ot_out_dir_claim(out, NULL, NULL));
    assert_int_equal(count_entries(out), 1);
    write_text(out, "log.jsonl", "line 1\n");
    check_ok(ot_out_dir_claim(out, NULL, NULL));
    check_ok(save(out, "f", "1"));
    check_content(out, "log.jsonl", "line 1\n");
    write_text(*state, "file", "");
    check_fails(ot_out_dir_claim(in_folder(*state, "file"), NULL, NULL), OT_E_INPUT, "is not a directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_appears_whole, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_writes_at_offsets, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_given_up_leaves_nothing, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_replaces_its_own_and_keeps_what_is_not, open_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_says_what_it_could_not_keep, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_file_systems_without_exchange, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_what_is_not_its_own, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_refuses_a_partial_that_is_not_its_own, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_clears_what_a_crash_left, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_never_overwrites_a_kept_file, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_two_writers_are_one_too_many, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_a_new_partial_that_another_process_removes, open_folder,
                                        drop_folder),
        cmocka_unit_test_setup_teardown(test_finishes_what_was_half_replaced, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_the_lock_lasts_over_every_use, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_what_others_do_to_a_locked_output, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_full_and_broken_disks, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_space_is_asked_for_first, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_copies_files, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(test_claim_makes_it_ours, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
