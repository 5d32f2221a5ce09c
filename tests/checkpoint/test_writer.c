/* Writing a checkpoint. Either the whole new checkpoint exists afterwards or none, whichever call fails and
 * wherever the process ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/slot_writer.h"
#include "tests/checkpoint/fixture.h"
#include "tests/support/damage.h"

enum { OLD_STEP = 100, NEW_STEP = 120, OLD_SEED = 1, NEW_SEED = 2, BEFORE_SEED = 3 };
static const char old_name[] = "step-00000100", new_name[] = "step-00000120";

static const char *path_of(const char *folder, const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void check_whole(const struct saving *saving, const char *name) {
    const char *found = fixture_examine(saving, path_of(saving->parent, name));
    if (found)
        fail_msg("%s: %s", name, found);
}

static void test_what_was_put_is_there(void **state) {
    (void)state;
    for (int dtype = tests_are_for_races() ? OT_BF16 : OT_F32; dtype <= OT_F16; dtype++)
        for (int engine = OT_IO_URING; engine <= OT_IO_POOL; engine++) {
            if (tests_are_few() && engine == OT_IO_URING && dtype != OT_BF16)
                continue;
            char *folder = make_folder();
            struct ot_chain chain = fixture_chain((enum ot_dtype)dtype, true);
            struct saving saving = {.parent = folder,
                                    .chain = &chain,
                                    .step = NEW_STEP,
                                    .seed = NEW_SEED,
                                    .n_slots = dtype == OT_F16 ? 5 : 2,
                                    .io_engine = (enum ot_io_choice)engine,
                                    .unreserved = dtype == OT_F16};
            int rc = fixture_save(&saving);
            if (rc < 0 && engine == OT_IO_URING && strstr(ot_error_text(), "io_uring")) {
                print_message("io_uring is refused here: %s\n", ot_error_text());
            } else {
                check_ok(rc);
                assert_string_equal(fixture_names(folder), new_name);
                check_whole(&saving, new_name);
                assert_string_equal(fixture_names(path_of(folder, new_name)),
                                    "checkpoint.json manifest.bin state.bin");
            }
            remove_folder(folder);
        }
}

/* The test's folder has one old checkpoint. new_save describes the next one. */
static struct ot_chain chain;
static struct saving old_save, new_save;

static void set_up(char *folder) {
    chain = fixture_chain(OT_BF16, false);
    old_save = (struct saving){
        .parent = folder, .chain = &chain, .step = OLD_STEP, .seed = OLD_SEED, .faulty = true};
    new_save = (struct saving){.parent = folder,
                               .chain = &chain,
                               .step = NEW_STEP,
                               .seed = NEW_SEED,
                               .io_engine = OT_IO_POOL,
                               .faulty = true};
    fixture_clear_fault();
    check_ok(fixture_save(&old_save));
}

static void test_nuisances_are_taken_up(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++)
        for (int engine = OT_IO_URING; engine <= OT_IO_POOL; engine++) {
            char *folder = make_folder();
            set_up(folder);
            fault.short_writes = i == 0 || i == 4;
            fault.interrupts = i == 1 || i == 4;
            fault.no_direct = i == 2 || i == 4;
            fault.no_reserve = i == 3;
            fault.no_direct_transfer = i == 5;
            new_save.io_engine = (enum ot_io_choice)engine;
            int rc = fixture_save(&new_save);
            if (rc == 0 || engine == OT_IO_POOL) {
                check_ok(rc);
                check_whole(&new_save, new_name);
            } else if (!strstr(ot_error_text(), "io_uring")) {
                fail_msg("%s", ot_error_text());
            }
            check_whole(&old_save, old_name);
            remove_folder(folder);
        }
}

/* A file is on the disk before it is renamed, and the manifest is written last. */
static void test_order_of_flushes(void **state) {
    (void)state;
    char *folder = make_folder(), log[FIXTURE_LOG_BYTES] = "", want[FIXTURE_LOG_BYTES];
    set_up(folder);
    fixture_log = log;
    check_ok(fixture_save(&new_save));
    fixture_log = NULL;
    snprintf(
        want, sizeof want,
        "flush checkpoint.json; flush state.bin; flush manifest.bin; flush step-00000120.partial; rename; "
        "flush %s; ",
        strrchr(folder, '/') + 1);
    assert_string_equal(log, want);
    remove_folder(folder);
}

/* ---- failures ---- */

static void test_what_has_no_end_is_not_there(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    new_save.abandoned = true;
    check_ok(fixture_save(&new_save));
    assert_string_equal(fixture_names(folder), old_name);
    new_save.abandoned = false;
    new_save.lacking = true;
    check_fails(fixture_save(&new_save), OT_E_INTERNAL,
                "not complete: manifest.bin: parameter 0 of slab 1 has no");
    assert_string_equal(fixture_names(folder), old_name);
    check_whole(&old_save, old_name);
    remove_folder(folder);
}

/* Makes each call of a kind fail in turn, until a save succeeds. After each failure there must be no new
 * checkpoint, and the error must contain the words. Returns the number of failures. */
static int fail_each(unsigned calls, int error, bool lasting, const char *words) {
    char *folder = make_folder();
    bool struck = true;
    int at;
    set_up(folder);
    for (at = 0; struck; at++) {
        fixture_clear_fault();
        fault.calls = calls;
        fault.at = at;
        fault.error = error;
        fault.lasting = lasting;
        int rc = fixture_save(&new_save);
        struck = fixture_was_struck();
        check_whole(&old_save, old_name);
        if (!struck) {
            check_whole(&new_save, new_name);
            check_ok(ot_checkpoint_remove(path_of(folder, new_name)));
        } else if (strcmp(fixture_names(folder), old_name) != 0) {
            fail_msg("call %d of kinds %u failed (%s) and left %s", at, calls, ot_error_text(),
                     fixture_names(folder));
        }
        assert_int_equal(rc, struck ? -OT_E_IO : 0);
        if (struck && (!strstr(ot_error_text(), words) || !strstr(ot_error_text(), folder)))
            fail_msg("'%s' does not contain '%s'", ot_error_text(), words);
    }
    remove_folder(folder);
    return at - 1;
}

static void test_full_disk(void **state) {
    (void)state;
    unsigned calls = CALL_OPEN | CALL_MAKE_DIR | CALL_WRITE | CALL_PWRITE | CALL_RESERVE | CALL_TRUNCATE;
    assert_in_range(fail_each(calls, ENOSPC, true, "No space left"), 9, 40);
    assert_int_equal(fail_each(CALL_RESERVE, ENOSPC, true, "cannot reserve 0.6 MB for a checkpoint"), 1);
    assert_in_range(fail_each(CALL_PWRITE, EDQUOT, false, "make room there"), 2, 10);
}

static void test_broken_disk(void **state) {
    (void)state;
    assert_int_equal(fail_each(CALL_FSYNC, EIO, false, "cannot"), 5);
    assert_in_range(fail_each(CALL_PWRITE | CALL_WRITE, EIO, false, "Input/output error"), 4, 20);
    assert_int_equal(fail_each(CALL_RENAME, EIO, false, "cannot rename the complete checkpoint"), 1);
}

static void test_disk_that_never_gets_to_it(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    fault.calls = CALL_PWRITE;
    fault.error = EAGAIN;
    fault.lasting = true;
    check_fails(fixture_save(&new_save), OT_E_IO, "tries without progress");
    assert_string_equal(fixture_names(folder), old_name);
    remove_folder(folder);
}

/* Only O_DIRECT's own errors cause a second attempt without O_DIRECT, and only once. */
static void test_refusals_that_are_not_of_o_direct(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    fault.calls = CALL_PWRITE;
    fault.error = EINVAL;
    fault.lasting = true;
    check_fails(fixture_save(&new_save), OT_E_IO, "cannot write");
    for (int at = 0; at < 2; at++) { /* the file of the state, then the file of the record */
        fixture_clear_fault();
        fault.calls = CALL_OPEN;
        fault.at = at;
        fault.error = EIO;
        check_fails(fixture_save(&new_save), OT_E_IO,
                    at == 0 ? "state.bin: cannot create" : "checkpoint.json: cannot create");
    }
    assert_string_equal(fixture_names(folder), old_name);
    remove_folder(folder);
}

static void test_too_little_space_where_none_can_be_reserved(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    fault.no_reserve = true;
    fault.free_bytes = 500000;
    check_fails(fixture_save(&new_save), OT_E_IO, "0.5 MB are free");
    assert_string_equal(fixture_names(folder), old_name);
    remove_folder(folder);
}

static void test_read_only_folder(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    new_save.faulty = false;
    assert_int_equal(chmod(folder, 0555), 0);
    if (access(folder, W_OK) == 0) { /* the test runs as root, who may write anyway */
        fault = (struct fixture_fault){.calls = CALL_MAKE_DIR, .error = EROFS, .free_bytes = -1};
        new_save.faulty = true;
    }
    check_fails(fixture_save(&new_save), OT_E_IO, "cannot make a directory here");
    assert_int_equal(chmod(folder, 0755), 0);
    assert_string_equal(fixture_names(folder), old_name);
    check_whole(&old_save, old_name);
    remove_folder(folder);
}

/* Replaces this process's only ring by /dev/null: every call to the kernel for it fails. */
static bool break_ring(void) {
    char link[64], name[64];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, name, sizeof name - 1);
        if (n <= 0 || strncmp(name, "anon_inode:[io_uring]", (size_t)n) != 0)
            continue;
        int null = open("/dev/null", O_RDWR);
        bool broken = null >= 0 && dup2(null, fd) == fd;
        close(null);
        return broken;
    }
    return false;
}

/* An I/O engine that breaks with slots in flight returns the slots, so no thread waits for them forever. */
static void test_broken_engine(void **state) {
    (void)state;
    enum { SLOTS = 2, BYTES = 2 * OT_SLOT_CHUNK_BYTES };
    char *folder = make_folder();
    void *memory = aligned_alloc(4096, (size_t)SLOTS * BYTES);
    int fd = open(path_of(folder, "state.bin"), O_WRONLY | O_CREAT, 0666);
    struct ot_slot_writer *writer;
    struct ot_slot *slots[SLOTS];
    assert_true(memory && fd >= 0);
    memset(memory, 7, (size_t)SLOTS * BYTES);
    int rc = ot_slot_writer_open(&(struct ot_slot_writer_config){.fd = fd,
                                                                 .path = "state.bin",
                                                                 .memory = memory,
                                                                 .slot_bytes = BYTES,
                                                                 .n_slots = SLOTS,
                                                                 .io_engine = OT_IO_URING},
                                 &writer);
    if (rc < 0) {
        print_message("io_uring is refused here: %s\n", ot_error_text());
    } else {
        for (int i = 0; i < SLOTS; i++) {
            check_ok(ot_slot_writer_take(writer, &slots[i]));
            slots[i]->offset = (int64_t)i * BYTES;
            slots[i]->bytes = BYTES;
        }
        assert_true(break_ring());
        for (int i = 0; i < SLOTS; i++)
            ot_slot_writer_start(writer, slots[i]);
        alarm(60); /* ends the test if it waits forever */
        assert_int_equal(ot_slot_writer_wait(writer), -OT_E_IO);
        assert_int_equal(ot_slot_writer_take(writer, &slots[0]), -OT_E_IO);
        ot_slot_writer_close(writer);
        alarm(0);
    }
    close(fd);
    free(memory);
    remove_folder(folder);
}

/* ---- obstacles ---- */

static void test_same_step_again(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    new_save.step = OLD_STEP;
    check_ok(fixture_save(&new_save));
    assert_string_equal(fixture_names(folder), old_name);
    check_whole(&new_save, old_name);
    assert_string_equal(fixture_examine(&old_save, path_of(folder, old_name)), "the bytes are others");
    remove_folder(folder);
}

/* The new checkpoint replaces one of the same step, and removing the old one fails. The new checkpoint is
 * complete and must stay. */
static void test_the_one_before_does_not_go(void **state) {
    (void)state;
    int as_new = 0, at;
    bool struck = true;
    for (at = 0; struck; at++) {
        char *folder = make_folder();
        set_up(folder);
        new_save.step = OLD_STEP;
        fault.calls = CALL_REMOVE;
        fault.at = at;
        fault.error = EIO;
        int rc = fixture_save(&new_save);
        struck = fixture_was_struck();
        assert_int_equal(rc, struck ? -OT_E_IO : 0);
        check_ok(ot_checkpoint_tidy(folder));
        assert_string_equal(fixture_names(folder), old_name);
        if (!fixture_examine(&new_save, path_of(folder, old_name)))
            as_new++;
        else
            check_whole(&old_save, old_name);
        remove_folder(folder);
    }
    /* The removals: a leftover's manifest (none exists), the old manifest, two files, the old directory. */
    assert_int_equal(at, 6);
    /* The new checkpoint stays if a later removal fails; without the removal of its manifest the old one
     * stays. */
    assert_int_equal(as_new, 4);
}

static void test_nothing_is_written_through_links(void **state) {
    (void)state;
    char *folder = make_folder(), *elsewhere = make_folder();
    write_file(elsewhere, "precious", "1", 1);
    set_up(folder);
    assert_int_equal(symlink(elsewhere, path_of(folder, new_name)), 0);
    check_fails(fixture_save(&new_save), OT_E_INPUT, "a checkpoint needs this name");
    assert_int_equal(unlink(path_of(folder, new_name)), 0);
    assert_int_equal(symlink(elsewhere, path_of(folder, "step-00000120.partial")), 0);
    check_fails(fixture_save(&new_save), OT_E_INPUT, "a checkpoint needs this name");
    assert_int_equal(unlink(path_of(folder, "step-00000120.partial")), 0);
    assert_int_equal(symlink(elsewhere, path_of(folder, "checkpoints")), 0);
    char *parent = strdup(path_of(folder, "checkpoints"));
    new_save.parent = parent;
    check_fails(fixture_save(&new_save), OT_E_IO, "cannot open the directory for checkpoints");
    assert_string_equal(fixture_names(elsewhere), "precious");
    free(parent);
    remove_folder(folder);
    remove_folder(elsewhere);
}

static void test_one_process_saves_a_step(void **state) {
    (void)state;
    char *folder = make_folder();
    set_up(folder);
    assert_int_equal(mkdir(path_of(folder, "step-00000120.partial"), 0777), 0);
    int fd = open(path_of(folder, "step-00000120.partial"), O_RDONLY | O_DIRECTORY);
    write_file(path_of(folder, "step-00000120.partial"), "state.bin", "others", 6);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    check_fails(fixture_save(&new_save), OT_E_INPUT, "another process is saving this step");
    check_ok(ot_checkpoint_tidy(folder));
    assert_string_equal(fixture_names(path_of(folder, "step-00000120.partial")), "state.bin");
    close(fd); /* its process is dead: its leftovers are removed */
    check_ok(fixture_save(&new_save));
    check_whole(&new_save, new_name);
    assert_string_equal(fixture_names(folder), "step-00000100 step-00000120");
    remove_folder(folder);
}

/* ---- processes that end during a save ---- */

enum before { NOTHING, VALID, DAMAGED };

static int save(void *context) {
    return fixture_save(context);
}

/* Returns true if the child was killed. */
static bool end_at(unsigned calls, int at, unsigned share) {
    fault.calls = calls;
    fault.at = at;
    fault.share = share;
    bool killed = !fixture_runs_in_child(save, &new_save);
    fault.calls = 0;
    return killed;
}

static void prepare(char *folder, enum before before, struct saving *before_save) {
    set_up(folder);
    fault.no_direct = true; /* the page cache survives a killed process, and is faster than the disk */
    *before_save = new_save;
    before_save->seed = BEFORE_SEED;
    if (before == NOTHING)
        return;
    check_ok(fixture_save(before_save));
    if (before == DAMAGED) {
        char path[600];
        snprintf(path, sizeof path, "%s/manifest.bin", path_of(folder, new_name));
        assert_int_equal(truncate(path, 100), 0);
    }
}

/* The old checkpoint must be whole. The new step's must be whole too: the earlier one of this step or the new
 * one. Nothing else may exist. */
static void check_after(const char *folder, enum before before, const struct saving *before_save, int at) {
    struct saving old = old_save;
    check_whole(&old, old_name);
    check_ok(ot_checkpoint_tidy(folder));
    check_whole(&old, old_name);
    const char *names = fixture_names(folder);
    if (strcmp(names, old_name) == 0) {
        assert_int_equal(before, NOTHING);
        return;
    }
    assert_string_equal(names, "step-00000100 step-00000120");
    const char *as_new = fixture_examine(&new_save, path_of(folder, new_name));
    const char *as_before = fixture_examine(before_save, path_of(folder, new_name));
    if (as_new && (before == NOTHING || (before == VALID && as_before)))
        fail_msg("call %d: %s", at, as_new);
    /* The damaged checkpoint still has its name, because its manifest cannot be read. */
    if (before == DAMAGED && as_new)
        assert_non_null(as_before);
}

static int end_everywhere(enum before before, unsigned calls, unsigned share) {
    for (int at = 0;; at++) {
        char *folder = make_folder();
        struct saving before_save;
        prepare(folder, before, &before_save);
        bool struck = end_at(calls, at, share);
        if (!struck)
            check_whole(&new_save, new_name);
        check_after(folder, before, &before_save, at);
        remove_folder(folder);
        if (!struck)
            return at;
    }
}

static void test_process_ends_at_every_call(void **state) {
    (void)state;
    /* Earlier calls do not depend on the checkpoint before. */
    unsigned late = CALL_TRUNCATE | CALL_FSYNC | CALL_RENAME | CALL_REMOVE;
    assert_in_range(end_everywhere(NOTHING, CALL_ALL, 0), 15, 40);
    assert_in_range(end_everywhere(VALID, late, 0), 10, 20);
    if (!tests_are_brief())
        assert_in_range(end_everywhere(DAMAGED, late, 0), 10, 20);
}

static void test_process_ends_within_writes(void **state) {
    (void)state;
    for (uint64_t round = 0; round < (tests_are_for_races() ? 1 : 3); round++) {
        struct dice dice = {.round = round};
        unsigned share = (unsigned)throw_below(&dice, 101);
        assert_in_range(end_everywhere(NOTHING, CALL_WRITE | CALL_PWRITE, share), 4, 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_put_is_there),
        cmocka_unit_test(test_nuisances_are_taken_up),
        cmocka_unit_test(test_order_of_flushes),
        cmocka_unit_test(test_what_has_no_end_is_not_there),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_broken_disk),
        cmocka_unit_test(test_disk_that_never_gets_to_it),
        cmocka_unit_test(test_refusals_that_are_not_of_o_direct),
        cmocka_unit_test(test_broken_engine),
        cmocka_unit_test(test_too_little_space_where_none_can_be_reserved),
        cmocka_unit_test(test_read_only_folder),
        cmocka_unit_test(test_same_step_again),
        cmocka_unit_test(test_the_one_before_does_not_go),
        cmocka_unit_test(test_nothing_is_written_through_links),
        cmocka_unit_test(test_one_process_saves_a_step),
        cmocka_unit_test(test_process_ends_at_every_call),
        cmocka_unit_test(test_process_ends_within_writes),
    };
    return cmocka_run_group_tests_name("checkpoint writer", tests, NULL, NULL);
}
