#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/text.h"
#include "src/base/utf8.h"

static void test_builder(void **state) {
    (void)state;
    struct ot_string_builder b = {0};
    ot_string_append(&b, "", 0);
    assert_string_equal(b.text, "");
    size_t want = 0;
    for (int i = 0; i < 1000; i++) { /* the memory behind the string grows many times */
        ot_string_append(&b, "a\0b", 3);
        ot_string_append_text(&b, "cd");
        ot_string_append_format(&b, "%d,%s;", i, "x");
        want += 3 + 2 + (i < 10 ? 4u : i < 100 ? 5u : 6u);
        assert_int_equal(b.bytes, want);
        assert_int_equal(b.text[want], '\0');
    }
    assert_memory_equal(b.text, "a\0bcd0,x;a\0bcd1,x;", 18);
    assert_string_equal(b.text + want - 8, "cd999,x;");
    assert_false(b.failed);
    free(b.text);
}

static void test_format(void **state) {
    (void)state;
    char *text;
    check_ok(ot_string_format(&text, "%s/%05d", "folder", 42));
    assert_string_equal(text, "folder/00042");
    free(text);
}

/* A copy does not end at a NUL. */
static void test_copy(void **state) {
    (void)state;
    char *copy = ot_string_copy("a\0b", 3);
    assert_non_null(copy);
    assert_memory_equal(copy, "a\0b", 4);
    free(copy);
    copy = ot_string_copy(NULL, 0);
    assert_non_null(copy);
    assert_string_equal(copy, "");
    free(copy);
    assert_null(ot_string_copy("", SIZE_MAX));
}

static void test_keep_line(void **state) {
    (void)state;
    char text[] = "a\nb\r\t\x1b[2J\x7f \xc3\xa9";
    ot_utf8_keep_line(text);
    assert_string_equal(text, "a b   [2J  \xc3\xa9");
    char foreign[] =
        "\xff\xc3|\xc2\x9b[2J\xe2\x96"; /* not UTF-8; half a character; C1 CSI; half a character */
    ot_utf8_keep_line(foreign);
    assert_string_equal(foreign, "??|  [2J??");
}

static void check_form(const char *text, size_t bytes, size_t good, size_t length) {
    size_t wanted;
    assert_int_equal(ot_utf8_well_formed(text, bytes, &wanted), good);
    assert_int_equal(wanted, length);
    assert_int_equal(ot_utf8_character(text, bytes), good == length ? length : 0);
}

/* The borders of Unicode's table 3-7. */
static void test_utf8(void **state) {
    (void)state;
    check_form("a", 1, 1, 1);
    check_form("\0", 1, 1, 1);
    check_form("\x80", 1, 0, 0);
    check_form("\xc1\xbf", 2, 0, 0);
    check_form("\xc2\x80", 2, 2, 2);
    check_form("\xdf\xc0", 2, 1, 2);
    check_form("\xe0\x9f\xbf", 3, 1, 3); /* overlong */
    check_form("\xe0\xa0\x80", 3, 3, 3);
    check_form("\xed\x9f\xbf", 3, 3, 3);
    check_form("\xed\xa0\x80", 3, 1, 3); /* a surrogate */
    check_form("\xf0\x8f\xbf\xbf", 4, 1, 4);
    check_form("\xf0\x90\x80\x80", 4, 4, 4);
    check_form("\xf4\x8f\xbf\xbf", 4, 4, 4);
    check_form("\xf4\x90\x80\x80", 4, 1, 4); /* above U+10FFFF */
    check_form("\xf5\x80\x80\x80", 4, 0, 0);
    check_form("\xf0\x90\x80", 3, 3, 4); /* the text ends inside a character */
    check_form("\xe2\x82q", 3, 2, 3);
}

static void words_are_found_whole(void **state) {
    (void)state;
    static const char words[] = "bos eos_token eos";
    size_t n;
    assert_int_equal(ot_words_find(words, "eos", 3), 2);
    assert_int_equal(ot_words_find(words, "eos_token", 9), 1);
    assert_int_equal(ot_words_find(words, "bosx", 3), 0);
    assert_int_equal(ot_words_find(words, "eos_", 4), -1);
    assert_int_equal(ot_words_find(words, "", 0), -1);
    assert_int_equal(ot_words_find("", "bos", 3), -1);
    assert_true(ot_words_have(words, "bos") && !ot_words_have(words, "bos eos_token"));
    assert_ptr_equal(ot_words_at(words, 1, &n), words + 4);
    assert_int_equal(n, 9);
    assert_null(ot_words_at(words, 3, &n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builder), cmocka_unit_test(test_format),
        cmocka_unit_test(test_copy),    cmocka_unit_test(test_keep_line),
        cmocka_unit_test(test_utf8),    cmocka_unit_test(words_are_found_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
