/* Unfinished files: they go on after the end of a process, and a table that does not fit begins anew. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/file_io.h"
#include "src/hub/partial.h"

enum { CHUNK = 4 << 20, BYTES = 2 * CHUNK + 100 };

static char *folder, blob[512], unfinished[600];

static int open_folder(void **state) {
    (void)state;
    folder = make_folder();
    snprintf(blob, sizeof blob, "%s/blob", folder);
    snprintf(unfinished, sizeof unfinished, "%s.offload-train.incomplete", blob);
    return 0;
}

static int drop_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

static void put(struct ot_partial *p, size_t chunk, const char *text) {
    check_ok(ot_partial_put(p, chunk, text, strlen(text)));
}

static void goes_on(void **state) {
    (void)state;
    struct ot_partial p;
    check_ok(ot_partial_open(blob, BYTES, true, &p));
    assert_int_equal(p.n_chunks, 3);
    assert_int_equal(ot_partial_size_of(&p, 0), CHUNK);
    assert_int_equal(ot_partial_size_of(&p, 2), 100);
    put(&p, 0, "first");
    put(&p, 2, "third");
    put(&p, 0, " chunk");
    assert_int_equal(ot_partial_here(&p), 16);
    ot_partial_close(&p);
    check_ok(ot_partial_open(blob, BYTES, true, &p));
    assert_int_equal(p.done[0], 11);
    assert_int_equal(p.done[1], 0);
    assert_int_equal(p.done[2], 5);
    char text[12] = "";
    assert_int_equal(ot_read_at(p.fd, text, 11, 0), 11);
    assert_string_equal(text, "first chunk");
    assert_int_equal(ot_read_at(p.fd, text, 5, 2 * CHUNK), 5);
    assert_memory_equal(text, "third", 5);
    check_ok(ot_partial_restart(&p));
    assert_int_equal(ot_partial_here(&p), 0);
    ot_partial_close(&p);
    check_ok(ot_partial_open(blob, BYTES, true, &p));
    assert_int_equal(ot_partial_here(&p), 0);
    ot_partial_close(&p);
}

/* More bytes than a chunk lacks are left out, and the table behind the file stays as it is. */
static void a_chunk_ends(void **state) {
    (void)state;
    struct ot_partial p;
    char many[300];
    memset(many, 'x', sizeof many);
    check_ok(ot_partial_open(blob, 200, true, &p));
    assert_int_equal(p.n_chunks, 1);
    put(&p, 0, "abc");
    check_ok(ot_partial_put(&p, 0, many, sizeof many));
    check_ok(ot_partial_put(&p, 0, many, sizeof many));
    assert_int_equal(p.done[0], 200);
    check_ok(ot_partial_finish(&p, blob));
    ot_partial_close(&p);
    struct stat info;
    assert_int_equal(stat(blob, &info), 0);
    assert_int_equal(info.st_size, 200);
    assert_int_equal(stat(unfinished, &info), -1);
    char *text;
    size_t bytes;
    check_ok(ot_read_file(blob, 1000, &text, &bytes));
    assert_memory_equal(text, "abcxxx", 6);
    free(text);
}

static void chunks_of_large_files(void **state) {
    (void)state;
    struct ot_partial p;
    check_ok(ot_partial_open(blob, (INT64_C(1) << 30) + 1, true, &p));
    assert_int_equal(p.chunk_bytes, 64 << 20);
    assert_int_equal(p.n_chunks, 17);
    ot_partial_close(&p);
    check_ok(ot_partial_open(blob, 200 << 20, true, &p));
    assert_int_equal(p.chunk_bytes, 16 << 20);
    assert_true(ot_partial_space(blob) < 1 << 20);
    ot_partial_close(&p);
    check_ok(ot_partial_open(blob, 200 << 20, false, &p));
    assert_int_equal(p.n_chunks, 1);
    ot_partial_close(&p);
    check_ok(ot_partial_open(blob, 0, true, &p));
    assert_int_equal(p.n_chunks, 0);
    check_ok(ot_partial_finish(&p, blob));
    ot_partial_close(&p);
    assert_int_equal(ot_partial_space(blob), 0);
}

/* Files of another length, damaged tables and tables that lie are begun anew. */
static void tables_that_do_not_fit(void **state) {
    (void)state;
    static const struct {
        int64_t at; /* in the table */
        unsigned char byte;
    } damages[] = {{0, 'X'}, {8, 1}, {15, 1}, {16, 4}, {24 + 3, 1}, {24 + 8, 101}};
    struct ot_partial p;
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        check_ok(ot_partial_open(blob, BYTES, true, &p));
        put(&p, 0, "abc");
        assert_int_equal(ot_write_at(NULL, p.fd, &damages[i].byte, 1, BYTES + damages[i].at), 0);
        ot_partial_close(&p);
        check_ok(ot_partial_open(blob, BYTES, true, &p));
        assert_int_equal(ot_partial_here(&p), 0);
        ot_partial_close(&p);
    }
    check_ok(ot_partial_open(blob, BYTES, true, &p));
    put(&p, 0, "abc");
    ot_partial_close(&p);
    check_ok(ot_partial_open(blob, BYTES + 1, true, &p));
    assert_int_equal(ot_partial_here(&p), 0);
    ot_partial_close(&p);
    assert_int_equal(truncate(unfinished, 7), 0);
    check_ok(ot_partial_open(blob, BYTES + 1, true, &p));
    assert_int_equal(ot_partial_here(&p), 0);
    ot_partial_close(&p);
}

/* Somebody else's link in the place of the file is not followed. */
static void links(void **state) {
    (void)state;
    struct ot_partial p;
    write_file(folder, "other", "keep", 4);
    assert_int_equal(symlink("other", unfinished), 0);
    check_fails(ot_partial_open(blob, BYTES, true, &p), OT_E_IO, "cannot write");
    ot_partial_close(&p);
    char *text;
    size_t bytes;
    char path[600];
    snprintf(path, sizeof path, "%s/other", folder);
    check_ok(ot_read_file(path, 100, &text, &bytes));
    assert_int_equal(bytes, 4);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(goes_on, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_chunk_ends, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(chunks_of_large_files, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(tables_that_do_not_fit, open_folder, drop_folder),
        cmocka_unit_test_setup_teardown(links, open_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
