/* Names of repositories, revisions and files, and URLs: which are taken, which are refused, and to whom a URL
 * leads. */
#include "tests/support/check.h"

#include <string.h>

#include "src/hub/http.h"
#include "src/hub/name.h"

static void check_name(const char *text, const char *id, const char *revision) {
    struct ot_hub_name name;
    if (!ot_hub_name_parse(text, &name))
        fail_msg("'%s' is refused", text);
    assert_string_equal(name.id, id);
    assert_string_equal(name.revision, revision);
    assert_int_equal(name.kind, OT_HUB_MODEL);
}

static void repositories(void **state) {
    (void)state;
    check_name("org/name", "org/name", "main");
    check_name("0x/N_a-m.e1", "0x/N_a-m.e1", "main");
    check_name("org/name@v1.0", "org/name", "v1.0");
    check_name("org/name@refs/pr/12", "org/name", "refs/pr/12");
    check_name("org/name@0123456789abcdef0123456789abcdef01234567", "org/name",
               "0123456789abcdef0123456789abcdef01234567");
    static const char *const refused[] = {"",
                                          "/",
                                          "org",
                                          "org/",
                                          "/name",
                                          "a/b/c",
                                          "../name",
                                          "org/..",
                                          "./name",
                                          "org/.",
                                          ".org/name",
                                          "org/.name",
                                          "org/name.",
                                          "-org/name",
                                          "org/name-",
                                          "org/na--me",
                                          "o..rg/name",
                                          "org/na me",
                                          "org/name\n",
                                          "org/n\xc3\xa4me",
                                          "org\\name",
                                          "org/name@",
                                          "@main",
                                          "org@main/name",
                                          "org/name@a@b",
                                          "org/name@/a",
                                          "org/name@a/",
                                          "org/name@a//b",
                                          "org/name@..",
                                          "org/name@a/../b",
                                          "org/name@.a",
                                          "org/name@a/.b",
                                          "org/name@a b",
                                          "org/name@-a",
                                          "org/name@a..b",
                                          "org/name@%2e"};
    struct ot_hub_name name;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (ot_hub_name_parse(refused[i], &name))
            fail_msg("'%s' is taken", refused[i]);
}

static void the_longest_names(void **state) {
    (void)state;
    struct ot_hub_name name;
    char text[600] = "org/";
    memset(text + 4, 'n', 92); /* 96 with "org/" */
    assert_true(ot_hub_name_parse(text, &name));
    text[96] = 'n';
    assert_false(ot_hub_name_parse(text, &name));
    strcpy(text, "org/name@");
    memset(text + 9, 'r', 128);
    text[9 + 128] = '\0';
    assert_true(ot_hub_name_parse(text, &name));
    assert_int_equal(strlen(name.revision), 128);
    text[9 + 128] = 'r', text[9 + 129] = '\0';
    assert_false(ot_hub_name_parse(text, &name));
}

static void urls_of_files(void **state) {
    (void)state;
    struct ot_hub_name name;
    static const struct {
        const char *url;
        enum ot_hub_kind kind;
        const char *revision, *file;
    } cases[] = {{"hf://datasets/org/name/rows.jsonl", OT_HUB_DATASET, "main", "rows.jsonl"},
                 {"hf://datasets/org/name@v2/a/b c/rows.jsonl", OT_HUB_DATASET, "v2", "a/b c/rows.jsonl"},
                 {"hf://datasets/org/name@refs/convert/parquet/a/0.parquet", OT_HUB_DATASET,
                  "refs/convert/parquet", "a/0.parquet"},
                 {"hf://models/org/name/m.gguf", OT_HUB_MODEL, "main", "m.gguf"},
                 {"hf://org/name@x/m.gguf", OT_HUB_MODEL, "x", "m.gguf"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(ot_hub_is_url(cases[i].url));
        check_ok(ot_hub_name_parse_url(cases[i].url, &name));
        assert_int_equal(name.kind, cases[i].kind);
        assert_string_equal(name.id, "org/name");
        assert_string_equal(name.revision, cases[i].revision);
        assert_string_equal(name.file, cases[i].file);
    }
    static const char *const refused[] = {"hf://",
                                          "hf:///",
                                          "hf://org",
                                          "hf://org/name",
                                          "hf://org/name/",
                                          "hf://datasets/org/name",
                                          "hf://datasets/org/name//x",
                                          "hf://datasets/org/name/../x",
                                          "hf://datasets/org/name/a/..",
                                          "hf://datasets/org/name/.x",
                                          "hf://datasets/org/name/a\\b",
                                          "hf://datasets/org/name/a\tb",
                                          "hf://spaces/org/name/x",
                                          "hf://buckets/org/name/x",
                                          "hf://kernels/org/name/x",
                                          "hf://datasets/org/name@/x",
                                          "hf://datasets/org/name@refs/x",
                                          "hf://datasets/org/name@refs/../y/x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        check_fails(ot_hub_name_parse_url(refused[i], &name), OT_E_INPUT, "the form is hf://datasets/");
    assert_false(ot_hub_is_url("hf:/org/name/x"));
}

static void single_names(void **state) {
    (void)state;
    char longest[258] = "";
    memset(longest, 'x', 255);
    assert_true(ot_hub_is_file(longest));
    longest[255] = 'x';
    assert_false(ot_hub_is_file(longest));
    assert_true(ot_hub_is_file("model-00001-of-00002.safetensors"));
    static const char *const refused[] = {"", ".", "..", ".x", "a/b", "/a", "a\\b", "a\nb", "a\x7f"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(ot_hub_is_file(refused[i]));
    assert_true(ot_hub_is_commit("0123456789abcdef0123456789abcdef01234567"));
    assert_false(ot_hub_is_commit("0123456789abcdef0123456789abcdef0123456"));
    assert_false(ot_hub_is_commit("0123456789abcdef0123456789abcdef012345678"));
    assert_false(ot_hub_is_commit("0123456789ABCDEF0123456789abcdef01234567"));
    assert_false(ot_hub_is_commit("0123456789abcdef0123456789abcdef0123456/"));
}

/* ---- URLs ---- */

static void origins(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"https://Host.Example/x?y#z", "https://host.example"},
                                           {"HTTPS://host:443/", "https://host"},
                                           {"http://host:80", "http://host"},
                                           {"http://host:443/", "http://host:443"},
                                           {"https://host:80/", "https://host:80"},
                                           {"http://127.0.0.1:8000?x", "http://127.0.0.1:8000"},
                                           {"http://[::1]:8000/", "http://[::1]:8000"},
                                           {"http://a_b-c.d/@e", "http://a_b-c.d"}};
    char origin[OT_HTTP_ORIGIN_BYTES], host[OT_HTTP_ORIGIN_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!ot_url_origin(cases[i][0], origin))
            fail_msg("'%s' is refused", cases[i][0]);
        assert_string_equal(origin, cases[i][1]);
        assert_string_equal(ot_url_host(cases[i][0], host), strstr(cases[i][1], "://") + 3);
    }
    static const char *const refused[] = {"",
                                          "host",
                                          "ftp://host",
                                          "file:///etc/passwd",
                                          "//host/",
                                          "https:/host",
                                          "https://",
                                          "https:///x",
                                          "https://user@host/",
                                          "https://user:word@host/",
                                          "https://host\\@evil/",
                                          "https://host%2f@evil/",
                                          "https://ho st/",
                                          "https://host/a b",
                                          "https://host/\n",
                                          "https://host/\xc3\xa4",
                                          "https://h\xc3\xa4",
                                          "https://host:/",
                                          "https://host:x/",
                                          "https://host:123456/",
                                          "https://host:80:80/",
                                          "https://[::1/",
                                          "https://[]/",
                                          "https://[:80/",
                                          "https://[::1]x/",
                                          "https://host;x/",
                                          "https://?x",
                                          "https://#x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (ot_url_origin(refused[i], origin))
            fail_msg("'%s' is taken as %s", refused[i], origin);
    assert_string_equal(ot_url_host("ftp://x", host), "the server");
}

static void redirects(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"https://other/x?a=b", "https://other/x?a=b"},
                                           {"http://other/", "http://other/"},
                                           {"//other:9/x", "https://other:9/x"},
                                           {"/x/../y", "https://host:8/x/../y"},
                                           {"/", "https://host:8/"}};
    char url[OT_HTTP_URL_BYTES], huge[OT_HTTP_URL_BYTES + 8] = "/";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(ot_url_join("https://host:8/a/b?c", cases[i][0], url));
        assert_string_equal(url, cases[i][1]);
    }
    static const char *const refused[] = {
        "",     "x",      "?x",           "#x",   "ftp://x/",   "javascript:x", "//",
        "///x", "//a@b/", "https://a@b/", "/a b", "/a\r\nX: y", "\\\\other\\x"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_false(ot_url_join("https://host:8/a/b?c", refused[i], url));
    memset(huge + 1, 'x', OT_HTTP_URL_BYTES);
    assert_false(ot_url_join("https://host/", huge, url));
    assert_false(ot_url_join("host", "/x", url));
}

static void escapes(void **state) {
    (void)state;
    char url[OT_HTTP_URL_BYTES] = "https://host/", huge[OT_HTTP_URL_BYTES];
    assert_true(ot_url_append(url, "a/b c?d%\xc3\xa4-._~", false));
    assert_string_equal(url, "https://host/a/b%20c%3Fd%25%C3%A4-._~");
    url[13] = '\0';
    assert_true(ot_url_append(url, "refs/pr/1", true));
    assert_string_equal(url, "https://host/refs%2Fpr%2F1");
    memset(huge, ' ', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_false(ot_url_append(url, huge, false));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repositories), cmocka_unit_test(the_longest_names), cmocka_unit_test(urls_of_files),
        cmocka_unit_test(single_names), cmocka_unit_test(origins),           cmocka_unit_test(redirects),
        cmocka_unit_test(escapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
