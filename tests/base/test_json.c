#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/json.h"

static struct ot_json *parse(const char *text) {
    struct ot_json *root;
    check_ok(ot_json_parse(text, strlen(text), "doc", &root));
    return root;
}

static void check_refused(const char *text, size_t bytes, const char *words) {
    struct ot_json *root = (struct ot_json *)&root; /* the parser must set it to NULL */
    /* An exact copy, so that ASan sees a read beyond the end. */
    char *exact = malloc(bytes + !bytes);
    memcpy(exact, text, bytes);
    check_fails(ot_json_parse(exact, bytes, "doc.json", &root), OT_E_INPUT, words);
    assert_null(root);
    assert_non_null(strstr(ot_error_text(), "doc.json: byte "));
    free(exact);
}

/* ---- reading ---- */

static void test_types_and_values(void **state) {
    (void)state;
    struct ot_json *root = parse(" {\"i\": -12, \"r\": 1.5e3, \"s\": \"a\\n\\u00e9\", \"t\": true, \"n\": "
                                 "null,\r\n\t\"a\": [1, [], {}]} ");
    assert_int_equal(ot_json_type(root), OT_JSON_OBJECT);
    assert_int_equal(ot_json_int(ot_json_get(root, "i"), 7), -12);
    assert_true(ot_json_real(ot_json_get(root, "i"), 7) == -12.0);
    assert_true(ot_json_real(ot_json_get(root, "r"), 7) == 1500.0);
    assert_int_equal(ot_json_int(ot_json_get(root, "r"), 7), 7);
    size_t bytes;
    assert_string_equal(ot_json_string(ot_json_get(root, "s"), &bytes), "a\n\xc3\xa9");
    assert_int_equal(bytes, 4);
    assert_true(ot_json_bool(ot_json_get(root, "t"), false));
    assert_true(ot_json_bool(ot_json_get(root, "i"), true));
    assert_null(ot_json_get(root, "n"));
    assert_null(ot_json_get(root, "absent"));
    assert_int_equal(ot_json_type(NULL), OT_JSON_NULL);
    const struct ot_json *array = ot_json_get(root, "a");
    assert_int_equal(ot_json_length(array), 3);
    assert_int_equal(ot_json_length(root), 0);
    assert_int_equal(ot_json_type(ot_json_at(array, 1)), OT_JSON_ARRAY);
    assert_null(ot_json_at(array, 3));
    assert_null(ot_json_get(array, "i"));
    assert_null(ot_json_string(array, NULL));
    ot_json_free(root);
    ot_json_free(NULL);
}

static void test_any_value_is_a_document(void **state) {
    (void)state;
    struct ot_json *root = parse("12");
    assert_int_equal(ot_json_int(root, 0), 12);
    ot_json_free(root);
    root = parse("\"x\"");
    assert_string_equal(ot_json_string(root, NULL), "x");
    ot_json_free(root);
    root = parse(" null ");
    assert_null(root);
    root = parse("\xef\xbb\xbf{\"a\":1}"); /* a byte order mark */
    assert_int_equal(ot_json_int(ot_json_get(root, "a"), 0), 1);
    ot_json_free(root);
}

static void test_integers_beyond_int64_become_reals(void **state) {
    (void)state;
    struct ot_json *root =
        parse("[9223372036854775807, -9223372036854775808, 9223372036854775808, "
              "-9223372036854775809, 1000000000000000019884624838656, 18446744073709551616]");
    assert_int_equal(ot_json_int(ot_json_at(root, 0), 0), INT64_MAX);
    assert_int_equal(ot_json_int(ot_json_at(root, 1), 0), INT64_MIN);
    static const double reals[] = {0x1p63, -0x1p63, 1e30, 0x1p64};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(ot_json_type(ot_json_at(root, i + 2)), OT_JSON_REAL);
        assert_true(ot_json_real(ot_json_at(root, i + 2), 0) == reals[i]);
    }
    ot_json_free(root);
    root = parse("123456789012345678901234567890");
    assert_true(ot_json_real(root, 0) == 123456789012345678901234567890.0);
    ot_json_free(root);
}

static void check_string(const char *json, const char *want, size_t want_bytes) {
    struct ot_json *root = parse(json);
    size_t bytes;
    const char *got = ot_json_string(root, &bytes);
    assert_non_null(got);
    assert_int_equal(bytes, want_bytes);
    assert_memory_equal(got, want, bytes);
    ot_json_free(root);
}

static void test_strings(void **state) {
    (void)state;
    check_string("\"a\\u0000b\"", "a\0b", 3);
    check_string("\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4);
    check_string("\"\xf0\x9f\x98\x80\x7f\"", "\xf0\x9f\x98\x80\x7f", 5);
    check_string("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8);
    /* lone surrogates: high, low, high before text, two high, high before an escape, high before a pair */
    check_string("\"\\ud800\"", "\xef\xbf\xbd", 3);
    check_string("\"\\udc00\"", "\xef\xbf\xbd", 3);
    check_string("\"\\ud800x\"", "\xef\xbf\xbdx", 4);
    check_string("\"\\ud800\\ud800\"", "\xef\xbf\xbd\xef\xbf\xbd", 6);
    check_string("\"\\ud800\\n\"", "\xef\xbf\xbd\n", 4);
    check_string("\"\\ud800\\u0041\"",
                 "\xef\xbf\xbd"
                 "A",
                 4);
    check_string("\"\\ud800\\ud83d\\ude00\"", "\xef\xbf\xbd\xf0\x9f\x98\x80", 7);
}

/* A pair of escaped surrogates makes one character beyond U+FFFF. */
/* Plain bytes are passed over eight at a time. Each byte that is not plain is found at each place among them,
 * and is written so that it reads back as it was. */
static void test_each_byte_at_each_place(void **state) {
    (void)state;
    for (int byte = 1; byte < 256; byte++)
        for (int at = 0; at < 17; at++) {
            struct ot_json_writer w = {.indent = -1};
            struct ot_json *root;
            char plain[] = "\"~ #[]!}~ #[]!}~ #\"", *json;
            size_t bytes;
            plain[1 + at] = (char)byte;
            if (byte < ' ' || byte >= 0x80 || byte == '"' || byte == '\\')
                assert_int_equal(ot_json_parse(plain, 19, "doc", &root), -OT_E_INPUT);
            else
                check_string(plain, plain + 1, 17);
            ot_json_put_string(&w, NULL, plain + 1, 17);
            check_ok(ot_json_writer_take(&w, &json, &bytes));
            if (byte < 0x80)
                check_string(json, plain + 1, 17);
            free(json);
        }
}

static void test_surrogate_pairs(void **state) {
    (void)state;
    for (unsigned point = 0x10000; point < 0x110000; point += point < 0x20000 ? 1 : 16) {
        char json[32], want[5];
        snprintf(json, sizeof json, "\"\\u%04x\\u%04X\"", 0xd800 + ((point - 0x10000) >> 10),
                 0xdc00 + (point & 0x3ff));
        snprintf(want, sizeof want, "%c%c%c%c", 0xf0 | point >> 18, 0x80 | (point >> 12 & 0x3f),
                 0x80 | (point >> 6 & 0x3f), 0x80 | (point & 0x3f));
        check_string(json, want, 4);
    }
}

/* A reader's rows are those of ot_json_parse_row, also after faults and long rows. */
static void test_a_reader_reads_row_after_row(void **state) {
    (void)state;
    static const char *const rows[] = {"{\"b\": 1, \"a\": [1, 2, {\"c\": \"d\\n\"}], \"ab\": null}",
                                       "{\"k\": ",
                                       "null",
                                       "{\"i\": 1, \"h\": 2, \"g\": 3, \"f\": 4, \"e\": 5, "
                                       " \"d\": 6, \"c\": 7, \"b\": 8, \"a\": 9, \"h\": 10}",
                                       "{\"c\": 1, \"b\": 2, \"c\": 3, \"a\": NaN}",
                                       "\xef\xbb\xbf\"torn \\ud800\"",
                                       "{\"a\": 1} x",
                                       "[]"};
    struct ot_json_reader reader = {0};
    struct ot_json *read, *parsed;
    char *text = malloc(1 << 20);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
            bool is_long = i == sizeof rows / sizeof *rows;
            int n = is_long ? sprintf(text, "{\"x\": \"%0*d\"}", 300000 >> 4 * round, 1)
                            : sprintf(text, "%s", rows[i]);
            int wanted = ot_json_parse_row(text, (size_t)n, "row", &parsed);
            assert_int_equal(ot_json_read_row(&reader, text, (size_t)n, "row", &read), wanted);
            assert_true(ot_json_equal(read, parsed));
            assert_int_equal(ot_json_is_torn(read), ot_json_is_torn(parsed));
            for (char key[2] = "a"; *key <= 'z'; ++*key)
                assert_true(ot_json_equal(ot_json_get(read, key), ot_json_get(parsed, key)));
            assert_null(ot_json_get(read, "az")); /* the first byte alone is no key */
            ot_json_free(parsed);
        }
    check_ok(ot_json_read_row(&reader, rows[3], strlen(rows[3]), "row", &read));
    assert_int_equal(ot_json_int(ot_json_get(read, "h"), 0), 10);
    check_ok(ot_json_read_row(&reader, rows[4], strlen(rows[4]), "row", &read));
    assert_int_equal(ot_json_int(ot_json_get(read, "c"), 0), 3);
    ot_json_rename(read, &(struct ot_json_name){"b", "z"}, 1);
    assert_int_equal(ot_json_int(ot_json_get(read, "z"), 0), 2);
    free(text);
    ot_json_reader_free(&reader);
}

static void test_members_in_file_order(void **state) {
    (void)state;
    struct ot_json *root = parse("{\"z\":1,\"a\":null,\"m\":3,\"z\":4}"), *value;
    static const char *const keys[] = {"z", "a", "m"};
    static const int64_t values[] = {4, -1, 3}; /* the last of several equal keys counts */
    void *cursor = NULL;
    const char *key;
    size_t n = 0;
    for (; ot_json_next(root, &cursor, &key, &value); n++) {
        assert_string_equal(key, keys[n]);
        assert_int_equal(ot_json_int(value, -1), values[n]);
    }
    assert_int_equal(n, 3);
    cursor = NULL;
    assert_false(ot_json_next(ot_json_get(root, "m"), &cursor, &key, &value));
    ot_json_free(root);
}

/* ---- refusing ---- */

static void test_faults_are_named_with_their_place(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "byte 0: not valid JSON: the text ends"},
        {"  ", "byte 2: not valid JSON: the text ends"},
        {"{\"a\": 1", "byte 7: not valid JSON: the text ends"},
        {"\"abc", "byte 4: not valid JSON: the text ends"},
        {"\"\\u12", "byte 5: not valid JSON: the text ends"},
        {"[1,]", "byte 3: not valid JSON: expected a value"},
        {"{\"a\":1,}", "byte 7: not valid JSON: expected a key"},
        {"{a:1}", "byte 1: not valid JSON: expected a key"},
        {"{'a':1}", "byte 1: not valid JSON: expected a key"},
        {"{\"a\" 1}", "byte 5: not valid JSON: expected ':'"},
        {"{\"a\":1 \"b\":2}", "byte 7: not valid JSON: expected ',' or '}'"},
        {"[1 2]", "byte 3: not valid JSON: expected ',' or ']'"},
        {"[1] x", "byte 4: not valid JSON: text after the end"},
        {"1 2", "byte 2: not valid JSON: text after the end"},
        {"NaN", "NaN and Infinity are not JSON"},
        {"[Infinity]", "NaN and Infinity are not JSON"},
        {"[-Infinity]", "a number without digits"},
        {"nul", "the text ends too early"},
        {"nulx", "byte 3: not valid JSON: an unknown word"},
        {"True", "expected a value"},
        {"01", "byte 0: not valid JSON: a number with a leading zero"},
        {"-", "the text ends too early"},
        {"-x", "a number without digits"},
        {"1.x", "without digits after its point"},
        {".5", "expected a value"},
        {"+5", "expected a value"},
        {"1e+x", "without digits in its exponent"},
        {"// c\n1", "expected a value"},
        {"[1/*c*/]", "expected ',' or ']'"},
        {"\"a\nb\"", "byte 2: not valid JSON: a control character"},
        {"\"\\x41\"", "an unknown escape"},
        {"\"\\u12g4\"", "four hexadecimal digits"},
        {"{\"a\\u0000b\":1}", "byte 3: not valid JSON: a key with a NUL"},
        {"\"\x80\"", "byte 1: not valid JSON: invalid UTF-8"},
        {"\"caf\xe9 noir\"", "invalid UTF-8 (Windows-1252 text? iconv -f WINDOWS-1252 -t UTF-8 converts"},
        {"\"\xc0\x80\"", "invalid UTF-8"},
        {"\"\xe0\x9f\x80\"", "invalid UTF-8"},
        {"\"\xed\xa0\x80\"", "invalid UTF-8"},
        {"\"\xf0\x8f\x80\x80\"", "invalid UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "invalid UTF-8"},
        {"\"\xf5\x80\x80\x80\"", "invalid UTF-8"},
        {"\"\xe2\x82", "invalid UTF-8"},
        {"\"\xe2\x82\"", "invalid UTF-8"},
        {"\xff", "expected a value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(cases[i].text, strlen(cases[i].text), cases[i].words);
    check_refused("[1]\0", 4, "byte 3: not valid JSON: text after the end");
    check_refused("\"a\0b\"", 5, "a control character");
}

static void test_depth_is_bounded(void **state) {
    (void)state;
    char text[64 * 2 + 1];
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    text[128] = '\0';
    struct ot_json *root = parse(text);
    ot_json_free(root);
    memmove(text + 1, text, 64);
    text[0] = '[';
    check_refused(text, 65, "byte 64: not valid JSON: nested more than 64");
    char objects[64 * 5 + 1 + 64 + 1] = ""; /* the same depth, made of objects */
    for (int i = 0; i < 64; i++)
        memcpy(objects + 5 * i, "{\"a\":", 5);
    objects[64 * 5] = '1';
    memset(objects + 64 * 5 + 1, '}', 64);
    root = parse(objects);
    ot_json_free(root);
    size_t many = 1000000;
    char *deep = malloc(many);
    memset(deep, '[', many);
    check_refused(deep, many, "nested more than 64");
    for (size_t i = 0; i + 5 <= many; i += 5)
        memcpy(deep + i, "{\"a\":", 5);
    check_refused(deep, many, "nested more than 64");
    free(deep);
}

/* Every prefix and every one-byte change of a rich document is parsed or refused, and ASan finds no error.
 * Every accepted document can be written and read again. */
static void test_damaged_documents(void **state) {
    (void)state;
    static const char good[] =
        "{\"k\":[-1.5e-3,12345678901234567890,true,false,null,\"\\ud83d\\ude00\xc3\xa9\\u0000\"],\"\":{}}";
    size_t bytes = sizeof good - 1, accepted = 0;
    struct ot_json *root, *again;
    for (size_t i = 0; i < bytes; i++)
        check_refused(good, i, "not valid JSON"); /* the error is at its end, or at a half character */
    for (size_t i = 0; i < bytes; i++)
        for (int byte = 0; byte < 256; byte++) {
            char text[sizeof good];
            memcpy(text, good, sizeof good);
            text[i] = (char)byte;
            if (ot_json_parse(text, bytes, "doc", &root) < 0)
                continue;
            accepted++;
            struct ot_json_writer w = {.indent = -1};
            char *written;
            size_t written_bytes;
            ot_json_put_value(&w, NULL, root);
            check_ok(ot_json_writer_take(&w, &written, &written_bytes));
            check_ok(ot_json_parse(written, written_bytes, "again", &again));
            free(written);
            ot_json_free(again);
            ot_json_free(root);
        }
    assert_in_range(accepted, bytes, bytes * 64);
}

/* ---- access with an error message ---- */

static void test_needs(void **state) {
    (void)state;
    struct ot_json *root = parse(
        "{\"i\":5,\"r\":0.5,\"s\":\"x\",\"z\":\"a\\u0000b\",\"b\":true,\"n\":null,\"h\":1e999,\"a\":[]}");
    int64_t i = -1;
    double r = -1;
    bool b = false;
    const char *s = NULL;
    check_ok(ot_json_need_int(root, "f", "i", true, 5, 5, &i));
    assert_int_equal(i, 5);
    check_ok(ot_json_need_real(root, "f", "i", true, 0, 9, &r));
    assert_true(r == 5.0);
    check_ok(ot_json_need_real(root, "f", "r", true, 0, 1, &r));
    assert_true(r == 0.5);
    check_ok(ot_json_need_bool(root, "f", "b", true, &b));
    assert_true(b);
    check_ok(ot_json_need_string(root, "f", "s", true, &s));
    assert_string_equal(s, "x");
    i = 42;
    check_ok(ot_json_need_int(root, "f", "absent", false, 0, 1, &i));
    check_ok(ot_json_need_int(root, "f", "n", false, 0, 1, &i));
    assert_int_equal(i, 42);
    check_fails(ot_json_need_int(root, "f", "absent", true, 0, 1, &i), OT_E_INPUT,
                "f: the key 'absent' is missing");
    check_fails(ot_json_need_int(root, "f", "n", true, 0, 1, &i), OT_E_INPUT, "f: the key 'n' is missing");
    check_fails(ot_json_need_int(root, "f", "i", true, 6, 9, &i), OT_E_INPUT,
                "f: key 'i' is 5; it must be from 6 to 9");
    check_fails(ot_json_need_int(root, "f", "r", true, 0, 9, &i), OT_E_INPUT,
                "f: key 'r' must be an integer, not a number");
    check_fails(ot_json_need_real(root, "f", "s", false, 0, 1, &r), OT_E_INPUT,
                "must be a number, not a string");
    check_fails(ot_json_need_real(root, "f", "h", true, 0, INFINITY, &r), OT_E_INPUT, "key 'h' is inf");
    check_fails(ot_json_need_bool(root, "f", "i", true, &b), OT_E_INPUT,
                "must be true or false, not an integer");
    check_fails(ot_json_need_string(root, "f", "a", true, &s), OT_E_INPUT, "must be a string, not an array");
    check_fails(ot_json_need_string(root, "f", "z", true, &s), OT_E_INPUT, "must not contain a NUL");
    check_fails(ot_json_need_int(ot_json_get(root, "a"), "f", "i", true, 0, 1, &i), OT_E_INPUT,
                "expected an object with the key 'i', found an array");
    assert_int_equal(i, 42);
    ot_json_free(root);
}

/* ---- files ---- */

static void test_files(void **state) {
    (void)state;
    char *folder = make_folder(), path[512];
    struct ot_json *root;
    write_file(folder, "good.json", "{\"a\": 1}\n", 9);
    snprintf(path, sizeof path, "%s/good.json", folder);
    check_ok(ot_json_read_file(path, 9, &root));
    assert_int_equal(ot_json_int(ot_json_get(root, "a"), 0), 1);
    ot_json_free(root);
    check_fails(ot_json_read_file(path, 8, &root), OT_E_INPUT, "larger than the limit of 8 bytes");
    assert_null(root);
    check_fails(ot_json_read_file(folder, 100, &root), OT_E_IO, "Is a directory");
    snprintf(path, sizeof path, "%s/absent.json", folder);
    check_fails(ot_json_read_file(path, 100, &root), OT_E_IO, "absent.json: cannot open it: No such file");
    write_file(folder, "empty.json", "", 0);
    snprintf(path, sizeof path, "%s/empty.json", folder);
    check_fails(ot_json_read_file(path, 100, &root), OT_E_INPUT, "empty.json: byte 0");
    size_t bytes = 300000; /* more than one buffer of the reader */
    char *big = malloc(bytes);
    memset(big, ' ', bytes);
    big[bytes - 1] = '1';
    write_file(folder, "big.json", big, bytes);
    snprintf(path, sizeof path, "%s/big.json", folder);
    check_ok(ot_json_read_file(path, bytes, &root));
    assert_int_equal(ot_json_int(root, 0), 1);
    ot_json_free(root);
    free(big);
    remove_folder(folder);
}

/* ---- writing ---- */

static void write_all(struct ot_json_writer *w) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "text", "q\"\\\n\x01\xc3\xa9");
    ot_json_put_string(w, "bytes", "a\0\xff\xe2\x82", 5);
    ot_json_put_int(w, "int", INT64_MIN);
    ot_json_put_real(w, "real", 0.1);
    ot_json_put_real(w, "nan", NAN);
    ot_json_put_bool(w, "bool", false);
    ot_json_put_null(w, "k\n");
    ot_json_begin_array(w, "list");
    ot_json_put_int(w, NULL, 1);
    ot_json_put_int(w, NULL, 2);
    ot_json_begin_object(w, NULL);
    ot_json_end_object(w);
    ot_json_end_array(w);
    ot_json_begin_array(w, "empty");
    ot_json_end_array(w);
    ot_json_end_object(w);
}

static void check_written(struct ot_json_writer *w, const char *want) {
    char *text;
    size_t bytes;
    check_ok(ot_json_writer_take(w, &text, &bytes));
    assert_string_equal(text, want);
    assert_int_equal(bytes, strlen(want));
    assert_null(w->out.text);
    free(text);
}

static void test_writes_one_line(void **state) {
    (void)state;
    struct ot_json_writer w = {.indent = -1};
    write_all(&w);
    check_written(
        &w, "{\"text\": \"q\\\"\\\\\\n\\u0001\xc3\xa9\", \"bytes\": "
            "\"a\\u0000\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\", "
            "\"int\": -9223372036854775808, \"real\": 0.1, \"nan\": null, \"bool\": false, \"k\\n\": null, "
            "\"list\": [1, 2, {}], \"empty\": []}");
    ot_json_put_int(&w, NULL, 3); /* the writer can be used again */
    check_written(&w, "3");
    check_written(&w, "");
}

static void test_writes_indented(void **state) {
    (void)state;
    struct ot_json_writer w = {.indent = 0};
    ot_json_begin_object(&w, NULL);
    ot_json_begin_array(&w, "a");
    ot_json_put_int(&w, NULL, 1);
    ot_json_put_int(&w, NULL, 2);
    ot_json_end_array(&w);
    ot_json_begin_object(&w, "b");
    ot_json_end_object(&w);
    ot_json_end_object(&w);
    check_written(&w, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

static void test_copies_a_tree(void **state) {
    (void)state;
    static const char text[] = "{\"z\": [1, -2.5, 0.1, 1.0, 1e+300, 0.30000000000000004], \"a\": {\"n\": "
                               "null, \"t\": true}, \"s\": \"\\u0000x\"}";
    struct ot_json *root = parse(text);
    struct ot_json_writer w = {.indent = -1};
    ot_json_put_value(&w, NULL, root);
    check_written(&w, text);
    ot_json_free(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types_and_values),
        cmocka_unit_test(test_any_value_is_a_document),
        cmocka_unit_test(test_integers_beyond_int64_become_reals),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_each_byte_at_each_place),
        cmocka_unit_test(test_surrogate_pairs),
        cmocka_unit_test(test_a_reader_reads_row_after_row),
        cmocka_unit_test(test_members_in_file_order),
        cmocka_unit_test(test_faults_are_named_with_their_place),
        cmocka_unit_test(test_depth_is_bounded),
        cmocka_unit_test(test_damaged_documents),
        cmocka_unit_test(test_needs),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_writes_one_line),
        cmocka_unit_test(test_writes_indented),
        cmocka_unit_test(test_copies_a_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
