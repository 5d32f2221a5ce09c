/* HJSON and YAML: as the packages hjson and PyYAML read them (tests/golden/migrate.json), where these are not
 * stricter here; and hostile files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/migrate/settings_file.h"
#include "src/migrate/tree.h"
#include "tests/support/check.h"

typedef int (*parser)(const char *text, size_t bytes, const char *where, struct ot_json **out);

static bool has_yaml(void) {
    struct ot_json *tree;
    int rc = ot_yaml_parse("a: 1", 4, "probe", &tree);
    ot_json_free(tree);
    if (rc == -OT_E_USAGE)
        print_message(
            "this build has no libyaml, so YAML is not tested; scripts/install-packages installs it\n");
    else
        check_ok(rc);
    return rc == 0;
}

static char *print(const struct ot_json *tree) {
    struct ot_json_writer w = {.indent = -1};
    char *text;
    size_t bytes;
    ot_json_put_value(&w, NULL, tree);
    check_ok(ot_json_writer_take(&w, &text, &bytes));
    return text;
}

static void check_golden(const char *name, parser parse) {
    struct ot_json *golden;
    size_t bytes, n_refused = 0;
    check_ok(ot_json_read_file(OT_TEST_GOLDEN "/migrate.json", 1 << 20, &golden));
    const struct ot_json *cases = ot_json_get(golden, name);
    assert_true(ot_json_length(cases) > 50);
    for (size_t i = 0; i < ot_json_length(cases); i++) {
        const struct ot_json *one = ot_json_at(cases, i), *wanted = ot_json_get(one, "value");
        const char *text = ot_json_string(ot_json_get(one, "text"), &bytes);
        struct ot_json *tree;
        bool refused = ot_json_bool(ot_json_get(one, "refused"), false);
        int rc = parse(text, bytes, "case", &tree);
        n_refused += refused;
        if (refused ? rc != -OT_E_INPUT : rc < 0 || !ot_json_equal(tree, wanted)) {
            char *got = rc < 0 ? NULL : print(tree);
            fail_msg("%s: \"%s\": returned %d: %s", name, text, rc, got ? got : ot_error_text());
        }
        assert_true(rc == 0 || !tree);
        ot_json_free(tree);
    }
    assert_true(n_refused > 10);
    ot_json_free(golden);
}

static void hjson_is_read_as_the_package_reads_it(void **state) {
    (void)state;
    check_golden("hjson", ot_hjson_parse);
}

static void yaml_is_read_as_pyyaml_reads_it(void **state) {
    (void)state;
    if (has_yaml())
        check_golden("yaml", ot_yaml_parse);
}

/* The text must be refused, with these words. */
static void refuse_bytes(parser parse, const char *text, size_t bytes, const char *words) {
    struct ot_json *tree;
    int rc = parse(text, bytes, "f", &tree);
    if (rc != -OT_E_INPUT || !strstr(ot_error_text(), words) || strchr(ot_error_text(), '\n') || tree)
        fail_msg("%.60s: returned %d: \"%s\", which does not contain \"%s\"", text, rc, ot_error_text(),
                 words);
}

static void refuse(parser parse, const char *text, const char *words) {
    refuse_bytes(parse, text, strlen(text), words);
}

static char *repeat(const char *begin, const char *text, int n, const char *end) {
    struct ot_string_builder b = {0};
    ot_string_append_text(&b, begin);
    for (int i = 0; i < n; i++)
        ot_string_append_text(&b, text);
    ot_string_append_text(&b, end);
    assert_false(b.failed);
    return b.text;
}

static void refuse_repeated(parser parse, const char *begin, const char *text, int n, const char *end,
                            const char *words) {
    char *whole = repeat(begin, text, n, end);
    refuse(parse, whole, words);
    free(whole);
}

static void hostile_hjson_is_refused(void **state) {
    (void)state;
    refuse(ot_hjson_parse, "{\n a: 1\n b: 2\n a: 3\n}", "f:4: the key a is given twice");
    refuse(ot_hjson_parse, "{a: {b: 1, \"b\": 2}}", "f:1: the key b is given twice");
    refuse_bytes(ot_hjson_parse, "{a: \0}", 6, "f:1: a NUL");
    refuse(ot_hjson_parse, "{\"a\\u0000b\": 1}", "f:1: a key with a NUL");
    refuse(ot_hjson_parse, "{\n\na: \xff\n}", "f:3: not valid UTF-8");
    refuse(ot_hjson_parse, "{a: \xc3\x28\n}", "not valid UTF-8");
    refuse(ot_hjson_parse, "{a: 1e999}", "f:1: a number that no double holds");
    refuse(ot_hjson_parse, "{a: 1 /* x }", "f:1: a comment that begins here does not end");
    refuse(ot_hjson_parse, "\n{a: '''x\ny}", "f:2: a text in three quotes does not end");
    refuse(ot_hjson_parse, "{a: 'x\n'}", "f:1: a text in quotes does not end in its line");
    refuse(ot_hjson_parse, "{a:\n1}\nx", "f:3: text after the end");
    refuse_repeated(ot_hjson_parse, "", "[", 61, "", "f:1: values are nested more than 60 levels");
    refuse_repeated(ot_hjson_parse, "", "[", 1 << 20, "", "nested more than 60 levels");
    refuse_repeated(ot_hjson_parse, "[", "1,", 100001, "]", "more than 100,000 values");
    struct ot_string_builder many = {0};
    for (int i = 0; i <= OT_TREE_MAX_KEYS; i++)
        ot_string_append_format(&many, "k%d: 1\n", i);
    refuse(ot_hjson_parse, many.text, "f:1001: an object with more than 1,000 keys");
    free(many.text);
}

/* A surrogate pair is a character; half of one is U+FFFD. */
static void escapes_and_limits_of_hjson(void **state) {
    (void)state;
    struct ot_json *tree;
    static const char halves[] = "{a: \"\\ud83d\\u0041\\ud83d\\ude00\\udc00\", b: '\\'\\/'}";
    check_ok(ot_hjson_parse(halves, strlen(halves), "f", &tree));
    assert_string_equal(ot_json_string(ot_json_get(tree, "a"), NULL), "\xef\xbf\xbd"
                                                                      "A\xf0\x9f\x98\x80\xef\xbf\xbd");
    assert_string_equal(ot_json_string(ot_json_get(tree, "b"), NULL), "'/");
    ot_json_free(tree);
    static const char bom[] = "\xef\xbb\xbf{a: 1}";
    check_ok(ot_hjson_parse(bom, strlen(bom), "f", &tree));
    assert_int_equal(ot_json_int(ot_json_get(tree, "a"), 0), 1);
    ot_json_free(tree);
    char *deep = repeat("", "[", 60, ""), *whole = repeat(deep, "]", 60, "");
    check_ok(ot_hjson_parse(whole, strlen(whole), "f", &tree));
    ot_json_free(tree);
    free(deep);
    free(whole);
}

/* Ten aliases to ten aliases to ...: a small file for a billion texts. */
static void hostile_yaml_is_refused_in_no_time(void **state) {
    (void)state;
    struct ot_string_builder b = {0};
    if (!has_yaml())
        return;
    int64_t begin = ot_clock_ns();
    ot_string_append_text(&b, "a0: &a0 lol\n");
    for (int i = 1; i < 10; i++) {
        ot_string_append_format(&b, "a%d: &a%d [", i, i);
        for (int k = 0; k < 10; k++)
            ot_string_append_format(&b, "%s*a%d", k ? ", " : "", i - 1);
        ot_string_append_text(&b, "]\n");
    }
    refuse(ot_yaml_parse, b.text, "more than 100,000 values");
    b.bytes = 0;
    ot_string_append_text(&b, "a: &a {k0: 1");
    for (int i = 1; i < 900; i++)
        ot_string_append_format(&b, ", k%d: 1", i);
    ot_string_append_text(&b, "}\nb:\n  <<: [");
    for (int i = 0; i < 20000; i++)
        ot_string_append_text(&b, "*a, ");
    ot_string_append_text(&b, "]\n");
    refuse(ot_yaml_parse, b.text, "more than 100,000 values");
    free(b.text);
    char *text = repeat("a: &a \"", "0123456789", 100000, "\"\nb: ["), *bomb = repeat(text, "*a,", 100, "]");
    refuse(ot_yaml_parse, bomb, "16 MiB");
    free(text);
    free(bomb);
    refuse(ot_yaml_parse, "&a [*a]", "f:1: values are nested more than 60 levels");
    refuse(ot_yaml_parse, "a: &a\n  b: *a\n", "nested more than 60 levels");
    refuse(ot_yaml_parse, "a: &a\n  <<: *a\n", "f:1: merge keys are nested more than 60 levels");
    refuse_repeated(ot_yaml_parse, "", "[", 900, "", "f:");
    refuse_repeated(ot_yaml_parse, "", "- ", 100000, "", "f:1: values are nested more than 60 levels");
    refuse_repeated(ot_yaml_parse, "", "[", 4096, "", "f:2: not valid YAML");
    refuse_repeated(ot_yaml_parse, "", "[", 4097, "", "f:1: more than 4,096 of the characters");
    refuse_repeated(ot_yaml_parse, "", "[ #]\n", 100000, "", "f:1: more than 4,096 of the characters");
    refuse_repeated(ot_yaml_parse, "", "- &a b\n", 100000, "", "f:1: more than 4,096 of the characters");
    assert_true(ot_clock_ns() - begin < 10000000000);
}

static void faults_of_yaml_are_refused(void **state) {
    (void)state;
    if (!has_yaml())
        return;
    refuse(ot_yaml_parse, "a: 1\nb: 2\na: 3\n", "f:3: the key a is given twice");
    refuse(ot_yaml_parse, "a: {b: 1, b: 2}", "f:1: the key b is given twice");
    refuse(ot_yaml_parse, "a: &x {b: 1, b: 2}", "f:1: the key b is given twice");
    refuse(ot_yaml_parse, "a: 1\n---\nb: 2\n", "f:3: a second document");
    refuse_bytes(ot_yaml_parse, "a: \0b\n", 6, "f: byte 3: not valid YAML: control characters");
    refuse(ot_yaml_parse, "a: \xff\n", "f: byte 3: not valid YAML: ");
    refuse(ot_yaml_parse, "\"a\\0b\": 1\n", "f:1: a key with a NUL");
    refuse(ot_yaml_parse, "a: 1\n\tb: 2\n", "f:2: not valid YAML: ");
    refuse(ot_yaml_parse, "x: 1\na: [1,\n", "f:3: not valid YAML: ");
    refuse(ot_yaml_parse, "a: .inf\n", "f:1: infinity");
    refuse(ot_yaml_parse, "a: 1\nb: -.INF\n", "f:2: infinity");
    refuse(ot_yaml_parse, "a: .nan\n", "f:1: infinity and nan");
    refuse(ot_yaml_parse, "a: 1.0e+999\n", "f:1: a number that no double holds");
    refuse_repeated(ot_yaml_parse, "a: 1", "0", 398, "", "f:1: a number that no double holds");
    refuse_repeated(ot_yaml_parse, "a: 1", "0", 399, "", "f:1: a number of more than 399 digits");
    refuse(ot_yaml_parse, "? [a]\n: 1\n", "f:1: a key must be a text");
    refuse(ot_yaml_parse, "a:\n  <<: 1\n", "f:2: a merge key (<<) needs a mapping");
    refuse(ot_yaml_parse, "a: !x 1\n", "f:1: the tag !x is not supported");
    refuse(ot_yaml_parse, "a: !!python/object/apply:os.system [x]\n",
           "f:1: the tag tag:yaml.org,2002:python");
    refuse(ot_yaml_parse, "a: !x {b: 1}\n", "f:1: the tag !x is not supported");
    static const char *const others[] = {"0x1f", "0xf",   "017",        "0b101", "0b1",
                                         "1:30", "-0x1F", "+1:30:59.5", "190:20"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char text[40];
        snprintf(text, sizeof text, "a: %s\n", others[i]);
        refuse(ot_yaml_parse, text, "as a number that is not decimal; write it in decimal, or in quotes");
    }
}

static void names_say_the_format(void **state) {
    (void)state;
    assert_true(ot_settings_are_yaml("a.yaml") && ot_settings_are_yaml("x/a.yml"));
    assert_false(ot_settings_are_yaml("a.json") || ot_settings_are_yaml("yaml") ||
                 ot_settings_are_yaml(".yml"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hjson_is_read_as_the_package_reads_it),
        cmocka_unit_test(yaml_is_read_as_pyyaml_reads_it),
        cmocka_unit_test(hostile_hjson_is_refused),
        cmocka_unit_test(escapes_and_limits_of_hjson),
        cmocka_unit_test(hostile_yaml_is_refused_in_no_time),
        cmocka_unit_test(faults_of_yaml_are_refused),
        cmocka_unit_test(names_say_the_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
