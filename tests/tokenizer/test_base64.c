/* Base64: the vectors of RFC 4648, all lengths, and texts that are not base64. */
#include "src/tokenizer/charsmap.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

static void vectors_of_the_rfc(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text, *bytes;
        size_t n_text, n_bytes;
        check_ok(ot_base64_encode(cases[i][0], strlen(cases[i][0]), &text, &n_text));
        assert_string_equal(text, cases[i][1]);
        assert_int_equal(n_text, strlen(cases[i][1]));
        check_ok(ot_base64_decode(text, n_text, "here", &bytes, &n_bytes));
        assert_int_equal(n_bytes, strlen(cases[i][0]));
        assert_string_equal(bytes, cases[i][0]);
        free(text);
        free(bytes);
    }
}

static void all_bytes_come_back(void **state) {
    (void)state;
    unsigned char in[256];
    for (int i = 0; i < 256; i++)
        in[i] = (unsigned char)(i * 7 + 3);
    for (size_t n = 0; n <= sizeof in; n++) {
        char *text, *bytes;
        size_t n_text, n_bytes;
        check_ok(ot_base64_encode(in, n, &text, &n_text));
        check_ok(ot_base64_decode(text, n_text, "here", &bytes, &n_bytes));
        assert_int_equal(n_bytes, n);
        assert_memory_equal(bytes, in, n);
        free(text);
        free(bytes);
    }
}

static void other_texts_are_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"Zg=", "no multiple of 4"}, {"Zg=a", "byte 2"}, {"=g==", "byte 0"},    {"Z===", "byte 1"},
        {"Zm9v\n", "multiple"},      {"Zm-_", "byte 2"}, {"Zg==Zg==", "byte 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *bytes = NULL;
        size_t n;
        check_fails(ot_base64_decode(bad[i][0], strlen(bad[i][0]), "here", &bytes, &n), OT_E_INPUT,
                    bad[i][1]);
    }
    char *bytes;
    size_t n;
    check_fails(ot_base64_decode("Zm\0v", 4, "here", &bytes, &n), OT_E_INPUT, "here is not base64: byte 2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_the_rfc),
        cmocka_unit_test(all_bytes_come_back),
        cmocka_unit_test(other_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
