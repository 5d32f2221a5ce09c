/* Parquet files as pyarrow writes them have the rows that pyarrow reads; damaged ones are refused in one line
 * (scripts/golden/parquet.py). */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "src/base/file_io.h"
#include "src/base/json.h"
#include "src/data/source.h"
#include "tests/support/check.h"

enum { MOST_BYTES = 1 << 16 };
static char *folder;

static int open_folder(void **state) {
    (void)state;
    folder = make_folder();
    return 0;
}

static int close_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

static const char *golden(const char *name, const char *ending) {
    static char path[512];
    snprintf(path, sizeof path, OT_TEST_GOLDEN "/parquet/%s.%s", name, ending);
    return path;
}

static void check_row(const char *name, int row, const char *text, size_t bytes, const char *want) {
    struct ot_json *is, *was;
    check_ok(ot_json_parse_row(text, bytes, "the row", &is));
    check_ok(ot_json_parse_row(want, strcspn(want, "\n"), "the golden row", &was));
    if (!ot_json_equal(is, was))
        fail_msg("%s: row %d is\n%.*s\nand not\n%s", name, row, (int)bytes, text, want);
    ot_json_free(is);
    ot_json_free(was);
}

/* rows: the file of its rows. A file that needs a library which is missing is left out. */
static void check_file(const char *name, const char *rows) {
    static char want[MOST_BYTES];
    struct ot_source *source;
    const char *text;
    size_t bytes;
    int64_t line, row = 0, had = 0;
    int rc;
    FILE *lines = fopen(golden(rows, "jsonl"), "r");
    assert_non_null(lines);
    check_ok(ot_source_open(golden(name, "parquet"), OT_TEXT_BY_DOCUMENT, &source));
    while ((rc = ot_source_next(source, &text, &bytes, &line)) == 1) {
        assert_int_equal(line, ++row);
        assert_in_range(ot_source_bytes_read(source), had, ot_source_bytes_total(source));
        had = ot_source_bytes_read(source);
        if (!fgets(want, sizeof want, lines))
            fail_msg("%s: row %d is one too many", name, (int)row);
        check_row(name, (int)row, text, bytes, want);
    }
    bool has_snappy = dlopen("libsnappy.so.1", RTLD_NOW | RTLD_LOCAL) != NULL;
    if (rc == -OT_E_USAGE && strstr(ot_error_text(), "install") &&
        (!has_snappy || strcmp(name, "zstd") == 0)) {
        print_message("SKIP: %s\n", ot_error_text());
    } else {
        check_ok(rc);
        assert_null(fgets(want, sizeof want, lines));
        assert_int_equal(ot_source_bytes_read(source), ot_source_bytes_total(source));
        assert_int_equal(ot_source_next(source, &text, &bytes, &line), 0);
    }
    ot_source_close(source);
    fclose(lines);
}

/* Returns the code with which reading ended. */
static int read_rows(const char *path) {
    struct ot_source *source;
    const char *text;
    size_t bytes;
    int64_t line;
    int rc = ot_source_open(path, OT_TEXT_BY_DOCUMENT, &source);
    if (rc < 0)
        return rc;
    while ((rc = ot_source_next(source, &text, &bytes, &line)) == 1)
        ;
    ot_source_close(source);
    return rc;
}

static void test_goldens(void **state) {
    static const char *const flat[] = {"plain", "dictionary", "snappy", "gzip", "zstd"};
    static const char *const nested[] = {"nested", "nested_pages", "nested_old"};
    static const char *const others[] = {"required",     "seed_flat",     "seed_nested", "seed_second",
                                         "single",       "hand_repeated", "hand_array",  "hand_tuple",
                                         "hand_wrapper", "hand_pairs",    "odd_struct"};
    (void)state;
    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++)
        check_file(flat[i], "flat");
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++)
        check_file(nested[i], "nested");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        check_file(others[i], others[i]);
    check_ok(read_rows(golden("empty", "parquet")));
}

/* A file in memory, because thousands are read. */
static int read_bytes(const void *bytes, size_t n) {
    char path[64];
    int fd = memfd_create("bad.parquet", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = read_rows(path);
    close(fd);
    return rc;
}

/* Columns that disagree are never a wrong row. */
static void test_disagreeing_columns(void **state) {
    static const char *const files[][2] = {
        {"bad_elements", "column 'v' of group 1 of its rows: it has other rows"},
        {"bad_absent", "column 'v' of group 1 of its rows: it has a value where"},
        {"bad_values", "column 'v' of group 1 of its rows: it has no value where"},
        {"bad_rows", "column 'u' of group 1 of its rows: it has more rows"},
        {"bad_fewer", "column 'u' of group 1 of its rows: it has other rows"},
        {"bad_texts", "column 'v' of group 1 of its rows: a page has too few values"},
        {"bad_level", "column 'v' of group 1 of its rows: the levels of a page"},
        {"bad_size", "the pages of the Parquet file are too large (0 MB, and one of 256 MB)"},
        {"bad_packed", "column 'u' of group 1 of its rows: the levels of a page"},
        {"bad_definition", "column 'u' of group 1 of its rows: the levels of a page"}};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check_fails(read_rows(golden(files[i][0], "parquet")), OT_E_INPUT, files[i][1]);
}

static void test_long_text(void **state) {
    struct ot_source *source;
    const char *text;
    size_t bytes;
    int64_t line;
    (void)state;
    check_ok(ot_source_open(golden("long_text", "parquet"), OT_TEXT_BY_DOCUMENT, &source));
    assert_int_equal(ot_source_next(source, &text, &bytes, &line), 1);
    assert_int_equal(bytes, 70000 + strlen("{\"t\":\"\"}"));
    for (size_t i = 6; i < 70006; i++)
        assert_int_equal(text[i], 'y');
    assert_int_equal(ot_source_next(source, &text, &bytes, &line), 1);
    assert_memory_equal(text, "{\"t\":\"z\"}", bytes);
    assert_int_equal(ot_source_next(source, &text, &bytes, &line), 0);
    ot_source_close(source);
}

/* Structs in structs, deeper than any stack. */
static void test_deep_footer(void **state) {
    enum { DEPTH = 1 << 22 };
    char *file = malloc(DEPTH + 12);
    (void)state;
    assert_non_null(file);
    memcpy(file, "PAR1", 4);
    memset(file + 4, 0x1c, DEPTH);
    memcpy(file + 4 + DEPTH, "\0\0\x40\0PAR1", 8);
    check_fails(read_bytes(file, DEPTH + 12), OT_E_INPUT, "in its footer: it ends too early");
    free(file);
}

static void test_refused(void **state) {
    static const struct {
        const char *bytes, *words;
        size_t n;
    } files[] = {
        {"PAR1....", "the Parquet file is damaged in its footer: it ends too early", 8},
        {"PAR1\0\0\0\0PAR1", "the Parquet file is damaged in its footer: it ends too early", 12},
        {"PAR1\1\0\0\0PAR1", "the Parquet file is damaged in its footer: its length", 12},
        {"PAR1\0\0\0\0PARE", "the Parquet file is encrypted", 12},
        {"PAR1\0\0\0\0PAR2", "so it is truncated", 12},
    };
    char path[512];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        check_fails(read_bytes(files[i].bytes, files[i].n), OT_E_INPUT, files[i].words);
    check_fails(read_rows(golden("delta", "parquet")), OT_E_INPUT,
                "column 'question' of the Parquet file has the encoding DELTA_BYTE_ARRAY");
    check_fails(read_rows(golden("brotli", "parquet")), OT_E_INPUT,
                "column 'question' of the Parquet file has the codec brotli");
    snprintf(path, sizeof path, "%s/a.gz", folder);
    gzFile file = gzopen(path, "wb");
    assert_int_equal(gzwrite(file, files[1].bytes, 12), 12);
    gzclose(file);
    check_fails(read_rows(path), OT_E_INPUT, "a.gz: a Parquet file inside a packed file");
}

/* Each file that is cut, and each byte that is changed: rows, or a refusal in one line. A page with a
 * checksum has no byte that may change. */
static void test_damaged(void **state) {
    static const char *const names[] = {"seed_flat", "seed_nested", "seed_second"};
    char *bytes;
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_ok(ot_read_file(golden(names[i], "parquet"), MOST_BYTES, &bytes, &n));
        for (size_t cut = 4; cut < n; cut++)
            check_fails(read_bytes(bytes, cut), OT_E_INPUT, "Parquet file is damaged");
        for (size_t at = 4; at < n; at++) {
            static const char changes[] = {1, 0x55, -1, -128};
            char was = bytes[at];
            bytes[at] = (char)(was ^ changes[at % 4]);
            int rc = read_bytes(bytes, n);
            if (rc != 0 && rc != -OT_E_INPUT && rc != -OT_E_USAGE)
                fail_msg("%s with byte %zu changed: %d, %s", names[i], at, rc, ot_error_text());
            bytes[at] = was;
        }
        free(bytes);
    }
    check_ok(ot_read_file(golden("dictionary", "parquet"), MOST_BYTES, &bytes, &n));
    char *content = strstr(bytes + 4, "labor"); /* in the dictionary page of the first column */
    for (size_t at = 0; !content && at + 5 < n; at++)
        content = memcmp(bytes + at, "labor", 5) == 0 ? bytes + at : NULL;
    assert_non_null(content);
    content[0] = 'L';
    check_fails(read_bytes(bytes, n), OT_E_INPUT,
                "in column 'question' of group 1 of its rows: the checksum of a page is wrong");
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_disagreeing_columns),
        cmocka_unit_test(test_deep_footer),
        cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
